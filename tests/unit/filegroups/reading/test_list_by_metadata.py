"""Reads list files by the metadata table while it can be trusted, and by folders else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from filegroups.table import TableReader, open_reader
from tests.interop import golden_tables
from tests.unit.timeline.engine import BRISK, Far, Heard, world_of
from tests.unit.timeline.recording import RecordingStorage
from timeline.storage.local import LocalStorage

BY_METADATA = replace(BRISK, lists_by_metadata=True)
UNUSED = "metadata_table.not_used"


def reader(path: Path, limits: Any = BY_METADATA, *, far: bool = False) -> TableReader:
    storage = RecordingStorage(LocalStorage(path))
    return open_reader(world_of(Far(storage) if far else storage), limits)


def rows(table: TableReader) -> list[str]:
    found = table.current_state().to_arrow(with_hoodie_columns=True)
    return sorted(map(repr, found.to_pylist()))


def listed_folders(table: TableReader) -> list[str]:
    """The folders of the table, outside of ``.hoodie``, that were listed."""
    storage: Any = table.context.ports.storage
    calls = [one for one in storage.calls if one.operation in ("list", "names")]
    return [one.path for one in calls if not one.path.startswith(".hoodie")]


def reasons(table: TableReader) -> list[str]:
    events = table.context.ports.events
    assert isinstance(events, Heard)
    return [one["reason"] for one in events.named(UNUSED)]


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden_tables.unpack(getattr(request, "param", "v9_mor_ri"), tmp_path)


@pytest.mark.parametrize("path", golden_tables.metadata_names(), indirect=True)
def test_a_read_by_the_metadata_table_returns_the_same_rows(path: Path) -> None:
    by_folders = reader(path, BRISK)
    expected = rows(by_folders)
    assert listed_folders(by_folders)
    by_metadata = reader(path)
    assert rows(by_metadata) == expected
    assert not listed_folders(by_metadata)
    assert not reasons(by_metadata)


def test_a_filter_on_partitions_reads_only_their_files(path: Path) -> None:
    for wanted in ("p0", "p2", "nothing"):
        tables = reader(path, BRISK), reader(path)
        names = [
            sorted(one.file_group.file_id for one in table.file_slices(filter=f"part = '{wanted}'"))
            for table in tables
        ]
        assert names[0] == names[1]
        assert not listed_folders(tables[1])


@pytest.mark.parametrize("path", ["v9_mor_ri", "v8_cow_colstats_nonpart"], indirect=True)
def test_a_partitioned_table_on_a_high_latency_store_is_listed_by_metadata(path: Path) -> None:
    is_partitioned = (path / "p0").exists()
    far, near = reader(path, BRISK, far=True), reader(path, BRISK)
    assert rows(far) == rows(near)
    assert listed_folders(near)
    assert bool(listed_folders(far)) is not is_partitioned
    never = reader(path, replace(BRISK, lists_by_metadata=False), far=True)
    assert rows(never) == rows(near)
    assert listed_folders(never)


def test_small_files_of_the_metadata_table_are_read_once_on_a_high_latency_store(
    path: Path,
) -> None:
    table = reader(path, far=True)
    table.context.ports.storage.forget()  # type: ignore[attr-defined]
    assert table.file_slices()
    calls: Any = table.context.ports.storage.calls  # type: ignore[attr-defined]
    below = [one for one in calls if one.path.startswith(".hoodie/metadata/files/")]
    assert {one.operation for one in below} == {"read"}
    assert len({one.path for one in below}) == len(below)


def test_a_metadata_table_that_lacks_a_commit_is_not_used(path: Path) -> None:
    expected = rows(reader(path, BRISK))
    newest = max((path / ".hoodie/timeline").glob("*_*.deltacommit")).name.split("_")[0]
    next((path / ".hoodie/metadata/.hoodie/timeline").glob(f"{newest}_*")).unlink()
    table = reader(path)
    assert rows(table) == expected
    assert reasons(table) == ["behind"]


def test_a_damaged_metadata_table_is_not_used(path: Path) -> None:
    expected = rows(reader(path, BRISK))
    for file in (path / ".hoodie/metadata/files").glob(".*.log.*"):
        file.write_bytes(file.read_bytes().replace(b"DATABLK*", b"damaged!"))
    table = reader(path)
    assert rows(table) == expected
    assert reasons(table) == ["bad_hfile"]


def test_a_metadata_table_that_was_deleted_is_not_used(path: Path) -> None:
    expected = rows(reader(path, BRISK))
    table = reader(path)
    shutil.rmtree(path / ".hoodie/metadata")
    assert rows(table) == expected
    assert reasons(table) == ["metadata_table_missing"]


def test_an_older_time_is_read_by_the_metadata_table(path: Path) -> None:
    times = sorted(
        one.name.split("_")[0] for one in (path / ".hoodie/timeline").glob("*_*.deltacommit")
    )
    for time in times:
        found = [
            sorted(map(repr, table.as_of(time).to_arrow().to_pylist()))
            for table in (reader(path, BRISK), reader(path))
        ]
        assert found[0] == found[1]

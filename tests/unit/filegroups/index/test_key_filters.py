"""A BLOOM look-up by the metadata table finds the same file groups, and opens fewer files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.files.parquet import read_footer
from filegroups.index import IndexedFile, LookupRules
from filegroups.index.key_filters import footers_in_metadata, metadata_filters
from filegroups.index.lookup import tag
from filegroups.table import TableReader, open_reader
from tests.interop import golden_tables
from tests.unit.timeline.engine import BRISK, Far, Heard, world_of
from tests.unit.timeline.recording import RecordingStorage
from timeline.storage.local import LocalStorage

ALWAYS = LookupRules(filters=True, filters_by_metadata=True)
OPTIONS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.index.type": "GLOBAL_BLOOM",
    "hoodie.bloom.index.use.metadata": "true",
    "hoodie.parquet.small.file.limit": "0",
}
KEYS = [f"k{number:02d}" for number in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with 4 files of 10 keys each: k00, k04, ... in the first."""
    with hoodoo.create_table(tmp_path / "t", record_key="id", properties=OPTIONS) as table:
        for first in range(4):
            table.insert([{"id": key, "v": 0} for key in KEYS[first::4]])
    return tmp_path / "t"


def reader(path: Path, *, far: bool = False) -> TableReader:
    storage = RecordingStorage(LocalStorage(path))
    return open_reader(world_of(Far(storage) if far else storage), BRISK)


def candidates(table: TableReader, rules: LookupRules) -> list[IndexedFile]:
    filters = metadata_filters(table.context, table.context.snapshot(), rules)
    files = sorted(table.file_slices(), key=lambda one: one.base_instant_time)
    return [
        IndexedFile(file_id=str(number), path=one.base_file.path, filters=filters)
        for number, one in enumerate(files)
        if one.base_file is not None
    ]


def found(table: TableReader, files: list[IndexedFile], keys: list[str]) -> tuple[Any, int]:
    """The number of the file of each key, and the number of data files that were opened."""
    ports, storage = table.context.ports, table.context.ports.storage
    storage.forget()  # type: ignore[attr-defined]
    one_place = pa.array([""] * len(keys))
    numbers = tag(
        storage, ports.executor, {"": files}, pa.array(keys), one_place, filters=True
    ).to_pylist()
    calls: Any = storage.calls  # type: ignore[attr-defined]
    return numbers, len({one.path for one in calls if one.path.endswith(".parquet")})


def unused(table: TableReader) -> list[str]:
    events = table.context.ports.events
    assert isinstance(events, Heard)
    return [one["reason"] for one in events.named("metadata_table.not_used")]


def test_only_files_that_may_have_a_key_are_opened(path: Path) -> None:
    table = reader(path)
    files = candidates(table, ALWAYS)
    footers = candidates(table, LookupRules(filters=True, filters_by_metadata=False))
    assert [one.filters for one in footers] == [None] * 4
    for keys, expected, opened in (
        (["k01", "k05", "new"], ["1", "1", None], 1),
        (["new", "other"], [None, None], 0),
        (["k39", "k00"], ["3", "0"], 2),
    ):
        assert found(table, files, keys) == (expected, opened)
        assert found(table, footers, keys) == (expected, 4)


@pytest.mark.parametrize("far", [True, False])
def test_filters_of_the_metadata_table_are_the_default_on_a_high_latency_store(
    path: Path, far: bool
) -> None:
    table = reader(path, far=far)
    made = metadata_filters(table.context, table.context.snapshot(), LookupRules(filters=True))
    assert (made is not None) is far
    assert made is None or (made.blooms, made.ranges) == (True, False)
    assert metadata_filters(table.context, table.context.snapshot(), LookupRules()) is None


def test_ranges_of_keys_exclude_files_without_filters_there(path: Path) -> None:
    with hoodoo.open_table(path) as table:
        table.metadata.drop("bloom_filters")
    other = reader(path)
    files = candidates(other, ALWAYS)
    assert files[0].filters is not None
    assert (files[0].filters.blooms, files[0].filters.ranges) == (False, True)
    assert found(other, files, ["a", "z"]) == ([None, None], 0)
    # Between the bounds, the footers decide.
    assert found(other, files, ["k10"]) == (["2"], 4)


@pytest.mark.spec("MDT-22")
def test_a_file_that_the_metadata_table_lacks_is_opened(path: Path) -> None:
    table = reader(path)
    files = candidates(table, ALWAYS)
    source = files[1].filters
    assert source is not None
    (whole,) = footers_in_metadata(source, [files[1].path])
    assert whole is not None
    assert footers_in_metadata(source, ["elsewhere/" + files[1].path]) == [None]
    renamed = [replace(one, filters=replace(source, blooms=False, ranges=False)) for one in files]
    assert found(table, renamed, ["k01", "new"]) == (["1", None], 4)


def test_a_damaged_metadata_table_is_not_used(path: Path) -> None:
    for file in (path / ".hoodie/metadata/bloom_filters").glob(".*.log.*"):
        file.write_bytes(file.read_bytes().replace(b"DATABLK*", b"damaged!"))
    table = reader(path)
    assert found(table, candidates(table, ALWAYS), ["k01", "new"]) == (["1", None], 4)
    assert unused(table)


@pytest.mark.parametrize("index", ["BLOOM", "GLOBAL_BLOOM"])
def test_upserts_by_the_metadata_table_make_no_second_row_of_a_key(path: Path, index: str) -> None:
    options = {**OPTIONS, "hoodie.index.type": index}
    with hoodoo.open_table(path, properties=options) as table:
        for number in range(3):
            table.upsert([{"id": key, "v": number} for key in [*KEYS[number::3], f"n{number}"]])
        table.delete(keys=[{"id": "k07"}])
        table.upsert([{"id": "k07", "v": 9}])
        rows = {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}
        assert table.to_arrow().num_rows == len(rows) == 43
        assert rows == {key: int(key[1:]) % 3 for key in KEYS} | {
            "n0": 0,
            "n1": 1,
            "n2": 2,
            "k07": 9,
        }
        assert table.metadata.verify() == ()


@pytest.mark.parametrize("name", ["v8_cow_all", "v9a_cow_all"])
def test_filters_that_java_wrote_are_those_of_the_footers(name: str, tmp_path: Path) -> None:
    table = reader(golden_tables.unpack(name, tmp_path))
    files = candidates(table, ALWAYS)
    source = files[0].filters
    assert source is not None
    paths = [one.path for one in files]
    for path, known in zip(paths, footers_in_metadata(source, paths), strict=True):
        own = read_footer(table.context.ports.storage, path)
        assert known is not None
        assert (known.bloom_base64, known.bloom_kind) == (own.bloom_base64, own.bloom_kind)
        assert (known.key_min, known.key_max) == (own.key_min, own.key_max)

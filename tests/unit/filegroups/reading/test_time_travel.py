"""Time travel below the active timeline works while the files exist, and is refused after that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hoodoo
from filegroups.table import TableReader, open_reader
from filegroups.writing.write_request import CommitResult
from tests.interop import golden_tables
from tests.unit.timeline.engine import BRISK, StillClock, new_table, put, upsert, world_of
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.test_archived import with_metadata
from timeline.codecs.instant_avro import encode_clean
from timeline.errors import InstantNotFoundError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import HISTORY, TIMELINE
from timeline.model.plans import CleanMetadata, CleanPartitionMetadata

CLEANED_AT = "20300101000000000"


def row(key: str, ts: int, **more: Any) -> dict[str, Any]:
    return {"id": key, "p": "x", "ts": ts, **more}


def four_writes(
    version: int = 9, kind: TableType = TableType.COPY_ON_WRITE
) -> tuple[MemoryStorage, list[CommitResult]]:
    """Write a and b, a with a new column, the whole partition, and b again."""
    storage = MemoryStorage()
    table = new_table(storage, version=version, clock=StillClock(), table_type=kind)
    upserted = upsert(table, [row("a", 1), row("b", 1)]), upsert(table, [row("a", 2, w=7)])
    overwritten = put(table, WriteOperation.INSERT_OVERWRITE, [row("b", 3, w=8)])
    return storage, [*upserted, overwritten, upsert(table, [row("b", 4, w=9)])]


def archive(storage: MemoryStorage, results: list[CommitResult], *, clean: bytes = b"") -> None:
    """Archive instants, and a clean that happened later."""
    rows: list[tuple[str, str | None, str]] = []
    kept: dict[str, bytes] = {CLEANED_AT: clean}
    for result in results:
        names = [one for one in storage.names(TIMELINE) if one.startswith(result.requested_time)]
        for name in names:
            if "_" in name:
                kept[result.requested_time] = storage.read(f"{TIMELINE}/{name}")
                action = name.rpartition(".")[2]
                rows.append((result.requested_time, result.completion_time, action))
            storage.delete(f"{TIMELINE}/{name}")
    if clean:
        rows.append((CLEANED_AT, CLEANED_AT, "clean"))
    with_metadata(storage, lambda time: kept[time], (f"{rows[0][0]}_{rows[-1][0]}_0.parquet", rows))


def clean_of(*names: str) -> bytes:
    cleaned = CleanPartitionMetadata(partition_path="x", success_delete_files=names)
    return encode_clean(CleanMetadata(start_clean_time="", partition_metadata={"x": cleaned}))


def data_files(storage: MemoryStorage, result: CommitResult) -> list[str]:
    return [name for name in storage.names("x") if result.requested_time in name]


def at(storage: MemoryStorage, result: CommitResult) -> list[dict[str, Any]]:
    found = reopened(storage).as_of(result.requested_time).to_arrow()
    return sorted(found.to_pylist(), key=lambda one: str(one["id"]))


def reopened(storage: MemoryStorage) -> TableReader:
    return open_reader(world_of(storage), BRISK)


def refused(storage: MemoryStorage, result: CommitResult | str) -> str:
    time = result if isinstance(result, str) else result.requested_time
    with pytest.raises(InstantNotFoundError) as caught:
        reopened(storage).as_of(time)
    return caught.value.kind


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("kind", list(TableType))
def test_an_archived_time_has_its_rows_and_its_schema(version: int, kind: TableType) -> None:
    storage, (first, second, third, fourth) = four_writes(version, kind)
    archive(storage, [first, second])
    assert at(storage, first) == [row("a", 1), row("b", 1)]
    assert at(storage, second) == [row("a", 2, w=7), row("b", 1, w=None)]
    assert at(storage, third) == [row("b", 3, w=8)]
    assert at(storage, fourth) == [row("b", 4, w=9)]
    assert refused(storage, "2020-01-01") == "time_travel_too_early"


@pytest.mark.parametrize("kept", [0, 1])
def test_a_savepointed_write_below_the_archive_has_the_schema_of_its_own_time(
    kept: int,
) -> None:
    storage, results = four_writes()
    saved = results[kept]
    name = f"{saved.requested_time}_{results[3].completion_time}.savepoint"
    storage.write(f"{TIMELINE}/{name}", b"")
    archive(storage, [one for one in results[:3] if one is not saved])
    assert at(storage, results[0]) == [row("a", 1), row("b", 1)]
    assert at(storage, results[1]) == [row("a", 2, w=7), row("b", 1, w=None)]
    assert reopened(storage).context.snapshot().first_completion == results[3].completion_time


def test_a_time_of_version_6_is_read_from_its_archive(tmp_path: Path) -> None:
    with hoodoo.open_table(golden_tables.unpack("v6_cow_clean_archive", tmp_path)) as table:
        found = table.as_of("20261121102428131").to_arrow(columns=["id", "ts", "region"])
        assert sorted(tuple(one.values()) for one in found.to_pylist()) == [
            (f"k{number}", number, "us") for number in range(5)
        ]
        with pytest.raises(InstantNotFoundError) as caught:
            table.as_of("20261121102422325")
    assert caught.value.kind == "time_travel_too_early"


def test_the_schema_is_in_the_files_where_the_archive_was_lost() -> None:
    storage, (first, second, *_) = four_writes()
    archive(storage, [first, second])
    for name in storage.names(HISTORY):
        storage.delete(f"{HISTORY}/{name}")
    assert at(storage, first) == [row("a", 1), row("b", 1)]
    assert at(storage, second) == [row("a", 2, w=7), row("b", 1, w=None)]
    assert refused(storage, "2020-01-01") == "time_travel_too_early"


def test_a_time_whose_files_an_archived_clean_deleted_is_refused() -> None:
    storage, (first, second, third, _) = four_writes()
    names = data_files(storage, first)
    archive(storage, [first, second], clean=clean_of(*names))
    for name in names:
        storage.delete(f"x/{name}")
    assert refused(storage, first) == "time_travel_cleaned"
    assert at(storage, second) == [row("a", 2, w=7), row("b", 1, w=None)]
    assert at(storage, third) == [row("b", 3, w=8)]


def test_a_log_that_a_clean_deleted_makes_the_time_unreadable_too() -> None:
    storage, (first, second, *_) = four_writes(kind=TableType.MERGE_ON_READ)
    names = data_files(storage, second)
    archive(storage, [first, second], clean=clean_of(*names))
    for name in names:
        storage.delete(f"x/{name}")
    assert at(storage, first) == [row("a", 1), row("b", 1)]
    assert refused(storage, second) == "time_travel_cleaned"


def test_missing_replaced_files_matter_only_before_their_replacement() -> None:
    storage, (first, second, third, fourth) = four_writes()
    names = [*data_files(storage, first), *data_files(storage, second)]
    archive(storage, [first, second, third], clean=clean_of(*names))
    for name in names:
        storage.delete(f"x/{name}")
    assert refused(storage, first) == "time_travel_cleaned"
    assert refused(storage, second) == "time_travel_cleaned"
    assert at(storage, third) == [row("b", 3, w=8)]
    assert at(storage, fourth) == [row("b", 4, w=9)]


def test_a_clean_by_versions_is_checked_by_the_files_it_deleted() -> None:
    """Such a clean promises no time, so Java returns the remaining rows."""
    storage, (first, second, *_) = four_writes()
    names = data_files(storage, first)
    for name in names:
        storage.delete(f"x/{name}")
    clean = f"{TIMELINE}/{CLEANED_AT}"
    storage.create(f"{clean}.clean.requested", b"")
    storage.create(f"{clean}.clean.inflight", b"")
    storage.create(f"{clean}_{CLEANED_AT}.clean", clean_of(*names))
    assert refused(storage, first) == "time_travel_cleaned"
    assert at(storage, second) == [row("a", 2, w=7), row("b", 1, w=None)]


def test_a_range_of_archived_instants_returns_rows_that_were_not_written_again() -> None:
    """As in Java, although the files exist; newer rows are in their own range."""
    storage, (first, second, third, fourth) = four_writes()

    def changed(since: str, until: CommitResult) -> list[dict[str, Any]]:
        rows = reopened(storage).changes(since, until.completion_time).read_all().to_pylist()
        return sorted(rows, key=lambda one: str(one["id"]))

    assert changed("0", first) == [row("a", 1, w=None), row("b", 1, w=None)]
    archive(storage, [first])
    assert changed("0", first) == []
    assert changed("0", fourth) == [row("b", 4, w=9)]
    assert changed(first.completion_time, second) == [row("a", 2, w=7)]
    assert changed(first.completion_time, third) == [row("b", 3, w=8)]

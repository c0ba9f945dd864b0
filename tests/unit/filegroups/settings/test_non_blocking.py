"""Non-blocking writers: several append to one file group at once, and none is rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from filegroups.keys.bucketing import BucketRules, fixed_file_id
from filegroups.settings.settings import WriteSettings
from filegroups.table import TableReader, open_reader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Rows,
    as_table,
    begun,
    data_files,
    leftovers,
    new_table,
    opened,
    planned,
    put,
    rows_of,
    upsert,
)
from timeline.errors import SettingError, UnsupportedTableError
from timeline.model.commit_metadata import ConcurrencyMode, TableType, WriteOperation
from timeline.model.file_names import parse_log_file_name
from timeline.model.file_slice import FileSlice
from timeline.properties.setting_enums import BucketEngine

INSERT, DELETE = WriteOperation.INSERT, WriteOperation.DELETE
BULK, OVERWRITE = WriteOperation.BULK_INSERT, WriteOperation.INSERT_OVERWRITE
ONE = BucketRules(buckets=1, hash_fields=("id",))
RINGS = BucketRules(engine=BucketEngine.CONSISTENT_HASHING, buckets=2, hash_fields=("id",))
LIMITS = replace(BRISK, mode=ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL)


def row(key: str, ts: int, v: int) -> dict[str, Any]:
    return {"id": key, "p": "x", "ts": ts, "v": v}


START: Rows = [row("a", 5, 1), row("b", 5, 1)]


def made(ordering: tuple[str, ...] = ("ts",)) -> tuple[TableReader, TableReader]:
    """Return a table and a second writer of it."""
    table = new_table(limits=LIMITS, table_type=TableType.MERGE_ON_READ, ordering=ordering)
    return table, opened(table, limits=LIMITS)


def slices(table: TableReader) -> list[FileSlice]:
    return table.file_slices(["x"])


def test_a_bucket_begins_with_a_log_file_of_the_agreed_file_group() -> None:
    table, _ = made()
    result = upsert(table, START, buckets=ONE)
    assert (result.rows_inserted, result.rows_updated) == (2, 0)
    assert data_files(table) == []
    (one,) = slices(table)
    assert one.file_group.file_id == fixed_file_id(0) == "00000000-0000-0000-0000-000000000000-0"
    assert one.base_file is None
    assert table.view.partition_paths() == ["x"]
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 1)]
    assert leftovers(table) == []


@pytest.mark.spec("NBCC-1")
@pytest.mark.spec("NBCC-4")
def test_two_first_writers_of_a_bucket_both_commit() -> None:
    mine, other = made()
    concurrent_write = begun(
        other, WriteOperation.UPSERT, [row("a", 5, 7), row("c", 5, 7)], buckets=ONE
    )
    result = upsert(mine, [row("a", 5, 8), row("d", 5, 8)], concurrent_write, buckets=ONE)
    assert (result.attempts, result.refusals) == (1, ())
    (one,) = slices(mine)
    assert len(one.log_files) == 2
    assert rows_of(mine, "id", "v") == [("a", 8), ("c", 7), ("d", 8)]


def test_two_first_writers_of_a_ring_of_ranges_both_commit() -> None:
    mine, other = made()
    concurrent_write = begun(
        other, WriteOperation.UPSERT, [row("a", 5, 7), row("c", 5, 7)], buckets=RINGS
    )
    result = upsert(mine, [row("a", 5, 8), row("c", 5, 8)], concurrent_write, buckets=RINGS)
    assert result.attempts == 1
    assert rows_of(mine, "id", "v") == [("a", 8), ("c", 8)]


@pytest.mark.spec("NBCC-2")
@pytest.mark.spec("NBCC-2")
@pytest.mark.parametrize("ordering", [("ts",), ()])
def test_of_equal_rows_the_one_with_the_greater_requested_time_counts(
    ordering: tuple[str, ...],
) -> None:
    """NBCC-2: the write that began later wins, although it committed first."""
    mine, other = made(ordering)
    upsert(mine, START, buckets=ONE)
    first = begun(mine, WriteOperation.UPSERT, [row("a", 6, 10)], buckets=ONE)
    second = begun(other, WriteOperation.UPSERT, [row("a", 6, 20)], buckets=ONE)
    committed = second()
    late = first()
    assert late.requested_time < committed.requested_time
    assert late.completion_time > committed.completion_time
    assert rows_of(mine, "id", "v") == [("a", 20), ("b", 1)]


def test_an_ordering_field_decides_in_any_order_of_commits() -> None:
    mine, other = made()
    upsert(mine, START, buckets=ONE)
    first = begun(mine, WriteOperation.UPSERT, [row("a", 9, 10)], buckets=ONE)
    upsert(other, [row("a", 6, 20)], buckets=ONE)
    first()
    assert rows_of(mine, "id", "v") == [("a", 10), ("b", 1)]


def test_a_delete_removes_the_rows_it_read_and_newer_rows_stay() -> None:
    mine, other = made(())
    upsert(mine, START, buckets=ONE)
    gone = begun(mine, DELETE, [{"id": "a", "p": "x"}, {"id": "b", "p": "x"}], buckets=ONE)
    assert upsert(other, [row("a", 6, 20)], buckets=ONE).attempts == 1
    assert gone().attempts == 1
    assert rows_of(mine, "id", "v") == [("a", 20)]


@pytest.mark.spec("NBCC-1")
def test_a_bulk_insert_into_a_first_bucket_conflicts_with_a_log_of_another_writer() -> None:
    mine, other = made()
    concurrent_write = begun(other, WriteOperation.UPSERT, START, buckets=ONE)
    result = put(mine, BULK, [row("c", 5, 1)], concurrent_write, buckets=ONE)
    assert [one.rule for one in result.refusals] == ["C1"]
    assert [one.file_group.file_id for one in slices(mine)] == [fixed_file_id(0)]
    assert rows_of(mine, "id") == [("a",), ("b",), ("c",)]


def test_an_append_conflicts_with_an_overwrite_and_writes_to_the_new_bucket() -> None:
    mine, other = made()
    upsert(mine, START, buckets=ONE)
    concurrent_write = begun(other, OVERWRITE, [row("n", 1, 1)], buckets=ONE)
    result = upsert(mine, [row("a", 6, 2)], concurrent_write, buckets=ONE)
    assert [one.rule for one in result.refusals] == ["C4"]
    (one,) = slices(mine)
    assert one.file_group.file_id != fixed_file_id(0)
    assert rows_of(mine, "id") == [("a",), ("n",)]


def test_a_bucket_that_was_deleted_gets_another_agreed_file_group() -> None:
    """fmt 6.4: a replaced file group hides all files with its id."""
    mine, other = made()
    upsert(mine, START, buckets=ONE)
    gone = delete_partition(mine)
    concurrent_write = begun(other, WriteOperation.UPSERT, [row("c", 1, 1)], buckets=ONE)
    assert upsert(mine, [row("d", 1, 1)], concurrent_write, buckets=ONE).attempts == 1
    (one,) = slices(mine)
    assert one.file_group.file_id == fixed_file_id(0, gone)
    assert rows_of(mine, "id") == [("c",), ("d",)]


def delete_partition(table: TableReader) -> str:
    """Delete the partition and return the requested time."""
    plan = planned(table, WriteOperation.DELETE_PARTITION, delete_partitions=("x",), buckets=ONE)
    return write(table.context, plan, None).requested_time


@pytest.mark.spec("NBCC-4")
def test_two_file_groups_of_one_bucket_conflict_before_both_are_committed() -> None:
    """One write began before the partition was deleted and archived, the other after it."""
    mine, other = made()
    stranger = open_reader(other.context.ports, BRISK)  # a writer without agreed file ids
    concurrent_write = begun(stranger, WriteOperation.UPSERT, [row("a", 5, 7)], buckets=ONE)
    result = upsert(mine, [row("a", 5, 8)], concurrent_write, buckets=ONE)
    assert [one.why for one in result.refusals] == [
        "a concurrent commit created another file group for a bucket of this write"
    ]
    assert len(slices(mine)) == 1
    assert rows_of(mine, "id", "v") == [("a", 8)]


def test_inserts_that_drop_known_keys_still_conflict() -> None:
    mine, other = made()
    upsert(mine, START, buckets=ONE)
    concurrent_write = begun(other, INSERT, [row("c", 1, 7)], buckets=ONE)
    result = put(mine, INSERT, [row("c", 1, 8)], concurrent_write, buckets=ONE, drop_found=True)
    assert [one.rule for one in result.refusals] == ["C1"]
    assert rows_of(mine, "id", "v") == [("a", 1), ("b", 1), ("c", 7)]


def test_partial_updates_are_refused_by_name() -> None:
    mine, _ = made()
    upsert(mine, START, buckets=ONE)
    plan = planned(mine, WriteOperation.UPSERT, buckets=ONE)
    plan = replace(plan, rules=replace(plan.rules, partial_columns=()))
    rows = as_table([{"id": "a", "p": "x", "ts": 9, "v": 3}])
    with pytest.raises(UnsupportedTableError, match="OPTIMISTIC_CONCURRENCY_CONTROL") as refused:
        write(mine.context, plan, LocalWorkload(mine.context.ports, rows))
    assert refused.value.kind == "partial_non_blocking"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"hoodie.datasource.write.table.type": "COPY_ON_WRITE"}, "table.type"),
        ({"hoodie.index.type": "BLOOM"}, "hoodie.index.type"),
        ({"hoodie.table.cdc.enabled": "true"}, "cdc"),
    ],
)
def test_tables_without_support_for_it_are_refused_by_name(
    options: dict[str, str], key: str
) -> None:
    fitting = {
        "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.index.type": "BUCKET",
        "hoodie.datasource.write.recordkey.field": "id",
    }
    WriteSettings.from_properties(fitting)
    with pytest.raises(SettingError, match="OPTIMISTIC_CONCURRENCY_CONTROL") as refused:
        WriteSettings.from_properties({**fitting, **options})
    assert refused.value.kind == "setting_contradiction"
    assert key in refused.value.fields["key"]


def test_log_names_differ_by_writer() -> None:
    mine, other = made()
    first = begun(mine, WriteOperation.UPSERT, START, buckets=ONE)
    second = begun(other, WriteOperation.UPSERT, START, buckets=ONE)
    times = {first().requested_time, second().requested_time}
    (one,) = slices(mine)
    names = [parse_log_file_name(log.name) for log in one.log_files]
    assert {name.instant_time for name in names if name is not None} == times


@pytest.mark.spec("NBCC-3")
def test_changes_of_a_log_that_completes_after_a_plan_are_where_the_table_shows_them() -> None:
    """The slow log began first, and is on top of those in the compaction."""
    mine, other = made(ordering=())
    upsert(mine, [row("a", 1, 1)], buckets=ONE)
    slow = begun(other, WriteOperation.UPSERT, [row("a", 1, 2)], buckets=ONE)
    upsert(mine, [row("a", 1, 3)], buckets=ONE)
    compaction = schedule_compaction(mine.context, CompactionSettings(), SMALL)
    assert compaction is not None
    end = slow().completion_time
    for _ in ("planned", "done"):
        assert rows_of(mine, "id", "v") == [("a", 2)]
        assert mine.changes("earliest", end).read_all()["v"].to_pylist() == [2]
        images = mine.changes("earliest", images=True, columns=["v"]).read_all()
        changes = [(one["before"], one["after"]) for one in images.to_pylist()]
        assert changes == [(None, {"v": 1}), ({"v": 1}, {"v": 3}), ({"v": 3}, {"v": 2})]
        execute_compaction(mine.context, compaction, SMALL)

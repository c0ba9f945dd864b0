"""A key is in one file group only, also when it was deleted, compacted away and written again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import (
    LogCompactionSettings,
    execute_log_compaction,
    schedule_log_compaction,
)
from tests.unit.filegroups.index.test_buckets import insert_into_log
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Behind,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import HoodooError, StorageUnavailableError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.instant import Instant

DELETE = WriteOperation.DELETE
FIRST = [{"id": one, "p": "x", "ts": 1, "v": 1} for one in "ab"]


def again(value: int) -> list[dict[str, Any]]:
    return [{"id": "a", "p": "x", "ts": value, "v": value}]


@pytest.fixture
def table() -> TableReader:
    """One file group, whose log deletes ``a``."""
    made = new_table(MemoryStorage(), table_type=TableType.MERGE_ON_READ)
    upsert(made, FIRST)
    put(made, DELETE, [{"id": "a", "p": "x"}])
    return made


def scheduled(table: TableReader) -> Instant:
    planned = schedule_compaction(table.context, CompactionSettings(), SMALL)
    assert planned is not None
    return planned


def compact(table: TableReader, planned: Instant) -> None:
    assert execute_compaction(opened(table).context, planned, SMALL) is not None


def test_a_key_inserted_again_before_a_compaction_completes_is_found_in_its_log(table: TableReader):
    planned = scheduled(table)
    upsert(table, again(2))
    compact(table, planned)
    upsert(table, again(3))
    assert rows_of(table, "id", "v") == [("a", 3), ("b", 1)]
    assert len(table.file_slices()) == 1


def test_a_delete_finds_a_key_that_is_only_in_a_log(table: TableReader):
    planned = scheduled(table)
    upsert(table, again(2))
    compact(table, planned)
    put(table, DELETE, [{"id": "a", "p": "x"}])
    assert rows_of(table, "id") == [("b",)]


def test_a_key_that_logs_inserted_again_and_deleted_is_new(table: TableReader):
    planned = scheduled(table)
    upsert(table, again(2))
    compact(table, planned)
    put(table, DELETE, [{"id": "a", "p": "x"}])
    assert upsert(table, again(4)).rows_inserted == 1
    assert rows_of(table, "id", "v") == [("a", 4), ("b", 1)]


def test_a_deleted_key_is_inserted_again_into_its_base_file_group(table: TableReader):
    planned = scheduled(table)
    upsert(table, again(2))
    compact(table, planned)
    put(table, DELETE, [{"id": "b", "p": "x"}])
    assert upsert(table, [{"id": "b", "p": "x", "ts": 3, "v": 3}]).rows_inserted == 0
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 3)]
    assert len(table.file_slices()) == 1


@pytest.mark.spec("CMP-4")
def test_a_write_repeats_its_key_lookup_after_a_concurrent_compaction_dropped_keys(
    table: TableReader,
):
    planned = scheduled(table)
    result = upsert(table, again(2), lambda: compact(table, planned))
    assert [one.rule for one in result.refusals] == ["C14"]
    assert result.rows_inserted == 1
    upsert(table, again(3))
    assert rows_of(table, "id", "v") == [("a", 3), ("b", 1)]


def test_a_dropped_key_that_another_write_inserts_again_is_not_duplicated(table: TableReader):
    planned = scheduled(table)

    def meanwhile() -> None:
        compact(table, planned)
        assert upsert(opened(table), again(3)).rows_inserted == 1

    upsert(table, again(4), meanwhile)
    assert rows_of(table, "id", "v") == [("a", 4), ("b", 1)]


def test_a_compaction_that_drops_no_keys_does_not_reject_a_concurrent_write():
    table = new_table(MemoryStorage(), table_type=TableType.MERGE_ON_READ)
    upsert(table, FIRST)
    upsert(table, again(2))
    planned = scheduled(table)
    result = upsert(table, again(3), lambda: compact(table, planned))
    assert (result.attempts, result.refusals) == (1, ())


def test_in_a_bucket_a_key_keeps_its_file_group_after_any_compaction():
    buckets = BucketRules(buckets=1, hash_fields=("id",))
    table = new_table(MemoryStorage(), table_type=TableType.MERGE_ON_READ)
    upsert(table, FIRST, buckets=buckets)
    put(table, DELETE, [{"id": "a", "p": "x"}], buckets=buckets)
    planned = scheduled(table)
    result = upsert(table, again(2), lambda: compact(table, planned), buckets=buckets)
    assert result.attempts == 1
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1)]


def test_a_compaction_records_dropped_keys_also_for_adopted_files(table: TableReader):
    planned = scheduled(table)

    class Broken(Behind):
        """Dies right before its commit slot."""

        def create(self, path: str, data: bytes, **how: object) -> None:
            if "/slots/" in path:
                raise StorageUnavailableError("down", path=path)
            self.inner.create(path, data, **how)

    broken = Broken(table.context.ports.storage)
    dying = opened(table, storage=broken, limits=replace(BRISK, unknown_ms_max=0))
    with pytest.raises(HoodooError):
        execute_compaction(dying.context, planned, SMALL)
    compact(table, planned)
    last = table.context.active().completed_writes[-1]
    stats = table.context.commits.read(last).partition_to_write_stats["x"]
    assert [(one.num_deletes, one.num_writes) for one in stats] == [(1, 1)]


def test_a_key_is_found_in_its_log_after_the_compaction_was_archived(table: TableReader):
    planned = scheduled(table)
    upsert(table, again(2))
    compact(table, planned)
    for number in range(4):
        upsert(table, [{"id": "z", "p": "y", "ts": number, "v": number}])
    rules = ArchiveRules.from_properties(
        {
            "hoodie.keep.min.commits": "2",
            "hoodie.keep.max.commits": "3",
            "hoodie.clean.commits.retained": "1",
            "hoodie.compact.inline.max.delta.commits": "1",
        }
    )
    assert archive(table.context, rules) is not None
    assert table.context.active().find(planned.requested_time) is None
    upsert(table, again(3))
    assert rows_of(table, "id", "v") == [("a", 3), ("b", 1), ("z", 3)]


# ---------------------------------------------------------------- keys that a log inserted


def with_log_insert() -> TableReader:
    """One file group; another engine inserts ``n`` into its log."""
    made = new_table(MemoryStorage(), table_type=TableType.MERGE_ON_READ)
    upsert(made, FIRST)
    insert_into_log(made, [{"id": "n", "p": "x", "ts": 1, "v": 1}])
    return opened(made)


def upsert_n(table: TableReader, value: int) -> None:
    upsert(opened(table), [{"id": "n", "p": "x", "ts": value, "v": value}])


def assert_one_n(table: TableReader, value: int) -> None:
    assert rows_of(opened(table), "id", "v") == [("a", 1), ("b", 1), ("n", value)]


@pytest.mark.spec("LOGIN-1")
def test_a_key_that_a_log_inserted_is_found_during_a_pending_compaction() -> None:
    table = with_log_insert()
    planned = scheduled(table)
    upsert_n(table, 2)
    assert_one_n(table, 2)
    compact(table, planned)
    upsert_n(table, 3)
    assert_one_n(table, 3)


@pytest.mark.spec("LOGIN-1")
def test_a_key_that_a_log_inserted_is_found_after_a_log_compaction() -> None:
    table = with_log_insert()
    upsert(opened(table), [{"id": "b", "p": "x", "ts": 1, "v": 1}])
    joined = schedule_log_compaction(table.context, LogCompactionSettings(blocks_min=2))
    assert joined is not None
    assert execute_log_compaction(table.context, joined, SMALL) is not None
    upsert_n(table, 2)
    assert_one_n(table, 2)


@pytest.mark.spec("LOGIN-1")
@pytest.mark.parametrize("deletes", [False, True])
def test_a_key_that_a_log_inserted_is_found_when_its_instant_is_archived(deletes: bool) -> None:
    table = with_log_insert()
    [slice_] = table.file_slices()
    for version in range(2, 8):
        upsert(opened(table), [{"id": "b", "p": "x", "ts": 1, "v": 1}])
        upsert(opened(table), [{"id": "o", "p": "y", "ts": 1, "v": version}])
    rules = ArchiveRules.from_properties(
        {
            "hoodie.clean.commits.retained": "1",
            "hoodie.keep.min.commits": "2",
            "hoodie.keep.max.commits": "3",
        }
    )
    assert archive(opened(table).context, rules) is not None
    [log] = slice_.log_files
    assert opened(table).context.active().find(log.instant_time) is None
    if deletes:
        put(opened(table), DELETE, [{"id": "n", "p": "x"}])
        assert "n" not in [one[0] for one in rows_of(opened(table), "id")]
    else:
        upsert_n(table, 2)
        found = [one for one in rows_of(opened(table), "id", "v") if one[0] == "n"]
        assert found == [("n", 2)]

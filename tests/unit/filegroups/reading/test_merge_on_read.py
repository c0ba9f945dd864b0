"""Every operation of a merge-on-read table: rows, appended files and rewritten files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filegroups.files.log_files import LogSettings
from filegroups.files.parquet import write_base_file
from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from filegroups.writing.write import write
from filegroups.writing.write_request import FileRules
from tests.unit.timeline.engine import (
    SMALL,
    Rows,
    begun,
    data_files,
    files_below,
    leftovers,
    limited,
    new_table,
    opened,
    planned,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.instant_avro import decode_commit, encode_commit
from timeline.errors import ConflictError
from timeline.model.commit_metadata import CommitMetadata, TableType, WriteOperation, WriteStat
from timeline.model.file_names import BaseFileName, parse_base_file_name, parse_log_file_name
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action
from timeline.properties.setting_enums import LogFormat
from timeline.rollback.rollback import rollback
from timeline.storage.local import LocalStorage

INSERT, UPSERT, DELETE = WriteOperation.INSERT, WriteOperation.UPSERT, WriteOperation.DELETE
MERGE_ON_READ = TableType.MERGE_ON_READ
BUCKETS = BucketRules(buckets=1, hash_fields=("id",))


def row(key: str, part: str, ts: int, v: int) -> dict[str, Any]:
    return {"id": key, "p": part, "ts": ts, "v": v}


START: Rows = [row("a", "x", 5, 1), row("b", "x", 5, 1), row("c", "y", 5, 1)]


@pytest.fixture(params=["memory 9", "local 9", "memory 8"])
def table(request: pytest.FixtureRequest, tmp_path: Any) -> TableReader:
    where, version = request.param.split()
    storage = MemoryStorage() if where == "memory" else LocalStorage(tmp_path / "t")
    made = new_table(storage, version=int(version), table_type=MERGE_ON_READ)
    upsert(made, START)
    return made


def logs(table: TableReader) -> list[str]:
    found = files_below(table.context.ports.storage)
    return [path for path in found if parse_log_file_name(path.rpartition("/")[2])]


def slices(table: TableReader, partition: str = "x") -> list[FileSlice]:
    return table.file_slices([partition])


def last_commit(table: TableReader) -> CommitMetadata:
    return table.context.commits.read(table.context.active().completed_writes[-1])


def test_new_rows_make_base_files_by_a_deltacommit(table: TableReader) -> None:
    assert logs(table) == []
    assert [one.action for one in table.context.active().instants] == [Action.DELTACOMMIT]
    assert leftovers(table) == []


def test_updates_are_appended_to_their_file_groups(table: TableReader) -> None:
    before = data_files(table)
    result = upsert(table, [row("a", "x", 6, 2), row("b", "x", 4, 9)])
    assert (result.action, result.operation) == ("deltacommit", "upsert")
    assert (result.rows_updated, result.rows_inserted, result.files_written) == (2, 0, 1)
    assert data_files(table) == before
    ((one,),) = ([s.log_files for s in slices(table)],)
    assert [log.instant_time for log in one] == [result.requested_time]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1), ("c", 1)]
    assert leftovers(table) == []


def test_only_changed_file_groups_get_a_log(table: TableReader) -> None:
    upsert(table, [row("a", "x", 6, 2)])
    assert [one.log_files for one in slices(table, "y")] == [()]


def test_new_rows_fill_a_small_file_without_logs_by_a_new_base_file(table: TableReader) -> None:
    before = slices(table)
    result = upsert(table, [row("a", "x", 6, 2), row("d", "x", 1, 2)])
    (after,) = slices(table)
    assert after.file_group == before[0].file_group
    assert after.log_files == ()
    assert after.base_instant_time == result.requested_time
    assert (result.rows_inserted, result.rows_updated) == (1, 1)
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1), ("c", 1), ("d", 2)]


def test_new_rows_open_a_file_group_where_small_files_have_logs(table: TableReader) -> None:
    upsert(table, [row("a", "x", 6, 2)])
    result = upsert(table, [row("a", "x", 7, 3), row("d", "x", 1, 2)])
    old, new = sorted(slices(table), key=lambda one: -len(one.log_files))
    assert (len(old.log_files), len(new.log_files)) == (2, 0)
    assert new.base_instant_time == result.requested_time
    assert rows_of(table, "id", "v") == [("a", 3), ("b", 1), ("c", 1), ("d", 2)]


def test_late_rows_are_written_and_ignored_by_readers(table: TableReader) -> None:
    upsert(table, [row("a", "x", 9, 2)])
    upsert(table, [row("a", "x", 7, 3)])
    assert rows_of(table, "id", "v")[0] == ("a", 2)


def test_a_delete_wins_and_an_older_row_does_not_revive_it(table: TableReader) -> None:
    upsert(table, [row("a", "x", 9, 2)])
    result = put(table, DELETE, [{"id": "a", "p": "x"}, {"id": "nowhere", "p": "x"}])
    assert (result.action, result.rows_deleted, result.files_written) == ("deltacommit", 1, 1)
    assert rows_of(table, "id") == [("b",), ("c",)]
    upsert(table, [row("a", "x", 8, 7)])
    assert rows_of(table, "id") == [("b",), ("c",)]
    upsert(table, [row("a", "x", 9, 8)])
    assert rows_of(table, "id", "v") == [("a", 8), ("b", 1), ("c", 1)]


def test_a_second_delete_writes_nothing(table: TableReader) -> None:
    put(table, DELETE, [{"id": "a", "p": "x"}])
    result = put(table, DELETE, [{"id": "a", "p": "x"}])
    assert (result.rows_deleted, result.files_written) == (0, 0)


@pytest.mark.parametrize("drop_found", [False, True])
@pytest.mark.parametrize("ids", range(8))  # file ids are drawn again, and with them their order
def test_a_key_inserted_after_its_delete_is_changed_where_it_was_inserted(
    drop_found: bool, ids: int
) -> None:
    table = new_table(table_type=MERGE_ON_READ)
    upsert(table, START)
    put(table, DELETE, [{"id": "a", "p": "x"}])
    put(table, INSERT, [row("a", "x", 6, 2)], drop_found=drop_found)
    upsert(table, [row("a", "x", 7, 3)])
    assert rows_of(table, "id", "v") == [("a", 3), ("b", 1), ("c", 1)]


def test_without_ordering_the_last_write_wins() -> None:
    table = new_table(ordering=(), table_type=MERGE_ON_READ)
    upsert(table, [{"id": key, "p": "x", "v": 5} for key in "ab"])
    upsert(table, [{"id": "a", "p": "x", "v": 3}])
    put(table, DELETE, [{"id": "b", "p": "x"}])
    assert rows_of(table, "id", "v") == [("a", 3)]
    upsert(table, [{"id": "b", "p": "x", "v": 1}])
    assert rows_of(table, "id", "v") == [("a", 3), ("b", 1)]


def test_rows_marked_as_deleted_delete_by_their_own_order() -> None:
    table = new_table(table_type=MERGE_ON_READ)
    upsert(table, [{**each, "_hoodie_is_deleted": False} for each in START])
    gone = {"_hoodie_is_deleted": True}
    result = upsert(table, [{**row("a", "x", 6, 1), **gone}, {**row("b", "x", 4, 1), **gone}])
    assert result.rows_deleted == 2
    assert rows_of(table, "id") == [("b",), ("c",)]


def test_an_insert_and_a_bulk_insert_write_base_files(table: TableReader) -> None:
    put(table, INSERT, [row("a", "x", 6, 2)])
    put(table, WriteOperation.BULK_INSERT, [row("n", "x", 1, 1)])
    assert logs(table) == []
    assert rows_of(table, "id", "v") == [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("n", 1)]


def test_overwrites_replace_logs_too(table: TableReader) -> None:
    upsert(table, [row("a", "x", 6, 2), row("c", "y", 6, 2)])
    result = put(table, WriteOperation.INSERT_OVERWRITE, [row("n", "x", 1, 9)])
    assert result.action == "replacecommit"
    assert rows_of(table, "id", "v") == [("c", 2), ("n", 9)]
    plan = planned(table, WriteOperation.DELETE_PARTITION, delete_partitions=("y",))
    write(table.context, plan, None)
    assert rows_of(table, "id", "v") == [("n", 9)]
    put(table, WriteOperation.INSERT_OVERWRITE_TABLE, [row("z", "z", 1, 1)])
    assert rows_of(table, "id", "v") == [("z", 1)]


def test_columns_grow_in_logs(table: TableReader) -> None:
    upsert(table, [{**row("a", "x", 6, 2), "w": "new"}])
    assert rows_of(table, "id", "w") == [("a", "new"), ("b", None), ("c", None)]


@pytest.mark.parametrize("form", LogFormat)
def test_both_formats_are_written(form: LogFormat) -> None:
    table = new_table(table_type=MERGE_ON_READ)
    upsert(table, START)
    files = FileRules(bloom=SMALL.bloom, logs=LogSettings(format=form))
    upsert(table, [row("a", "x", 6, 2)], files=files)
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1), ("c", 1)]


def test_the_metadata_names_the_log_and_the_profile_its_file_group(table: TableReader) -> None:
    result = upsert(table, [row("a", "x", 6, 2)])
    ((path, (stat,)),) = last_commit(table).partition_to_write_stats.items()
    (one,) = slices(table)
    assert (path, stat.file_id, stat.base_file) == ("x", one.file_group.file_id, "")
    assert stat.prev_commit == result.requested_time
    storage = table.context.ports.storage
    name = f".hoodie/timeline/{result.requested_time}.deltacommit.inflight"
    profile = decode_commit(storage.read(name), path=name)
    planned_update = profile.partition_to_write_stats["x"][1]
    assert (planned_update.file_id, planned_update.num_update_writes) == (stat.file_id, 1)
    assert planned_update.prev_commit == one.base_instant_time


def test_a_bucket_gets_a_base_file_first_and_logs_after_that() -> None:
    table = new_table(table_type=MERGE_ON_READ)
    upsert(table, START, buckets=BUCKETS)
    assert logs(table) == []
    upsert(table, [row("a", "x", 6, 2), row("n", "x", 1, 1)], buckets=BUCKETS)
    put(table, INSERT, [row("a", "x", 7, 3)], buckets=BUCKETS)
    put(table, DELETE, [{"id": "b", "p": "x"}, {"id": "no", "p": "z"}], buckets=BUCKETS)
    (one,) = slices(table)
    assert len(one.log_files) == 3
    assert rows_of(table, "id", "v") == [("a", 3), ("c", 1), ("n", 1)]


def test_keys_are_searched_in_logs_where_no_base_file_has_them() -> None:
    table = new_table(table_type=MERGE_ON_READ)
    upsert(table, START, buckets=BUCKETS)
    upsert(table, [row("a", "x", 6, 2)], buckets=BUCKETS)
    storage = table.context.ports.storage
    (base,) = (path for path in data_files(table) if path.startswith("x/"))
    storage.delete(base)  # as after another engine that writes logs only
    upsert(table, [row("a", "x", 7, 3)])
    assert rows_of(table, "id", "v") == [("a", 3), ("c", 1)]


# ---------------------------------------------------------------- many writers


def test_of_two_concurrent_appends_to_one_file_group_the_later_is_retried(
    table: TableReader,
) -> None:
    times: list[str] = []

    def concurrent_write() -> None:
        times.append(upsert(opened(table), [row("a", "x", 7, 7)]).requested_time)

    result = upsert(table, [row("b", "x", 6, 6)], concurrent_write)
    assert result.attempts == 2
    assert result.requested_time > times[0]
    assert [report.rule for report in result.refusals] == ["C1"]
    (one,) = slices(table)
    assert [log.instant_time for log in one.log_files] == [times[0], result.requested_time]
    assert rows_of(table, "id", "v") == [("a", 7), ("b", 6), ("c", 1)]
    assert leftovers(table) == []


def test_an_append_that_began_first_and_ends_last_is_rejected(table: TableReader) -> None:
    """With its old time it would precede the winner, and lose the tie that it should win."""
    finish = begun(table, UPSERT, [row("a", "x", 6, 2)])
    upsert(opened(table), [row("a", "x", 6, 1)])
    with pytest.raises(AssertionError):  # this attempt is rejected and commits nothing
        finish()
    assert rows_of(table, "id", "v")[0] == ("a", 1)


def test_a_delete_sees_the_row_that_won(table: TableReader) -> None:
    def concurrent_write() -> None:
        upsert(opened(table), [row("a", "x", 70, 7)])

    put(table, DELETE, [{"id": "a", "p": "x"}], concurrent_write)
    assert rows_of(table, "id") == [("b",), ("c",)]


def test_a_delete_without_matches_is_validated_too(table: TableReader) -> None:
    put(table, DELETE, [{"id": "a", "p": "x"}])

    def concurrent_write() -> None:
        upsert(opened(table), [row("a", "x", 70, 7)])

    result = put(table, DELETE, [{"id": "a", "p": "x"}], concurrent_write)
    assert (result.attempts, result.rows_deleted) == (2, 1)
    assert rows_of(table, "id") == [("b",), ("c",)]


def test_appends_to_different_file_groups_do_not_conflict(table: TableReader) -> None:
    result = upsert(
        table, [row("a", "x", 6, 2)], lambda: upsert(opened(table), [row("c", "y", 6, 2)])
    )
    assert result.attempts == 1


def test_filling_a_small_file_conflicts_with_an_append_to_it(table: TableReader) -> None:
    """The new base file lacks the concurrent rows of the log."""

    def concurrent_write() -> None:
        upsert(opened(table), [row("a", "x", 7, 7)])

    result = upsert(table, [row("n", "x", 1, 1)], concurrent_write)
    assert result.attempts == 2
    assert rows_of(table, "id", "v") == [("a", 7), ("b", 1), ("c", 1), ("n", 1)]


def test_an_append_conflicts_with_the_filling_of_its_file(table: TableReader) -> None:
    def concurrent_write() -> None:
        upsert(opened(table), [row("n", "x", 1, 1)])

    result = put(table, DELETE, [{"id": "a", "p": "x"}], concurrent_write)
    assert result.attempts == 2
    assert rows_of(table, "id") == [("b",), ("c",), ("n",)]


def test_an_append_conflicts_with_a_filling_of_its_file_that_began_earlier(
    table: TableReader,
) -> None:
    """A log's stat names itself as its previous commit, so it does not show the known base file."""
    filling = begun(opened(table), UPSERT, [row("n", "x", 1, 1)])
    result = put(table, DELETE, [{"id": "a", "p": "x"}], filling)
    assert result.attempts == 2
    assert rows_of(table, "id") == [("b",), ("c",), ("n",)]


def test_an_append_does_not_conflict_with_another_engines_compaction(table: TableReader) -> None:
    """A write that completes later is on top of the compaction, at any begin (fmt 6.1)."""
    upsert(table, [row("a", "x", 6, 2)])
    times: list[str] = []

    def compact() -> None:
        (pending,) = table.context.active().pending
        times.append(str(int(pending.requested_time) + 1))
        compacted(table, times[0], str(int(pending.requested_time) + 3))

    result = upsert(table, [row("b", "x", 6, 3)], compact)
    assert result.attempts == 1
    assert result.requested_time < times[0] < result.completion_time
    (one,) = slices(table)
    assert (one.base_instant_time, len(one.log_files)) == (times[0], 1)
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 3), ("c", 1)]


def compacted(table: TableReader, requested: str, completed: str) -> None:
    """Leave the files of a compaction by Java of partition x, without a slot."""
    storage = table.context.ports.storage
    (one,) = slices(table)
    rows = table.current_state().to_arrow(with_hoodie_columns=True, partitions=["x"])
    name = BaseFileName(one.file_group.file_id, "9-9-9", requested).text
    schema = table.context.snapshot().newest_schema_json or ""
    size = write_base_file(storage, f"x/{name}", rows, avro_json=schema)
    stat = WriteStat(
        file_id=one.file_group.file_id,
        path=f"x/{name}",
        partition_path="x",
        prev_commit=one.base_instant_time,
        num_writes=rows.num_rows,
        file_size_in_bytes=size,
    )
    metadata = CommitMetadata(
        partition_to_write_stats={"x": (stat,)}, operation_type="COMPACT", compacted=True
    )
    for suffix in (".compaction.requested", ".compaction.inflight"):
        storage.create(f".hoodie/timeline/{requested}{suffix}", b"")
    storage.create(f".hoodie/timeline/{requested}_{completed}.commit", encode_commit(metadata))


def test_an_overwrite_and_an_append_conflict(table: TableReader) -> None:
    def concurrent_write() -> None:
        upsert(opened(table), [row("a", "x", 7, 7)])

    result = put(table, WriteOperation.INSERT_OVERWRITE, [row("n", "x", 1, 9)], concurrent_write)
    assert result.attempts == 2
    assert rows_of(table, "id") == [("c",), ("n",)]


def test_the_same_new_key_is_detected_in_file_groups_with_logs(table: TableReader) -> None:
    upsert(table, [row("a", "x", 6, 2)])

    def concurrent_write() -> None:
        upsert(opened(table), [row("b", "x", 7, 7), row("n", "x", 2, 2)])

    result = upsert(table, [row("n", "x", 3, 3)], concurrent_write)
    assert result.attempts == 2
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 7), ("c", 1), ("n", 3)]


def test_without_retries_a_conflict_is_raised_and_leaves_nothing(table: TableReader) -> None:
    once = opened(table, limits=limited(conflict_retries_max=0))
    before = logs(table)

    def concurrent_write() -> None:
        upsert(opened(table), [row("a", "x", 7, 7)])

    with pytest.raises(ConflictError):
        upsert(once, [row("b", "x", 6, 6)], concurrent_write)
    assert len(logs(table)) == len(before) + 1
    assert leftovers(table) == []


def test_a_dead_writer_s_log_is_rolled_back(table: TableReader) -> None:
    context = table.context

    def die() -> None:
        storage = context.ports.storage
        (pending,) = context.active().pending
        (one,) = slices(table)
        name = f".{one.file_group.file_id}_{pending.requested_time}.log.1_0-0-0"
        storage.create(f"x/{name}", b"#HUDI#")
        raise KeyboardInterrupt  # deletes nothing, like a killed process

    with pytest.raises(KeyboardInterrupt):
        upsert(table, [row("a", "x", 6, 2)], die)
    assert len(logs(table)) == 1
    (pending,) = context.active().pending
    assert pending.action is Action.DELTACOMMIT
    rollback(context, pending)
    assert logs(table) == []
    assert context.active().pending == ()
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 1), ("c", 1)]


# ---------------------------------------------------------------- compared with a dictionary


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "delete"]),
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 3)),
            min_size=1,
            max_size=3,
            unique_by=lambda one: one[0],
        ),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, form=st.sampled_from(LogFormat), ordered=st.booleans())
def test_every_sequence_of_operations_reads_like_a_dictionary(
    steps: list[tuple[str, list[tuple[str, int]]]], form: LogFormat, ordered: bool
) -> None:
    """A key has (ordering, value, deleted): equal or greater orderings replace, in any order."""
    table = new_table(table_type=MERGE_ON_READ, ordering=("ts",) if ordered else ())
    files = FileRules(bloom=SMALL.bloom, logs=LogSettings(format=form))
    upsert(table, [row("a", "x", 1, -1), row("z", "x", 1, -1)], files=files)
    model: dict[str, tuple[int, int, bool]] = {"a": (1, -1, False), "z": (1, -1, False)}
    for number, (operation, changes) in enumerate(steps):
        if operation == "upsert":
            put(table, UPSERT, [row(key, "x", ts, number) for key, ts in changes], files=files)
            for key, ts in changes:
                if not ordered or key not in model or ts >= model[key][0]:
                    model[key] = (ts, number, False)
        else:
            put(table, DELETE, [{"id": key, "p": "x"} for key, _ in changes], files=files)
            for key, _ in changes:
                if key in model:
                    model[key] = (model[key][0], number, True)
    expected = sorted((key, v) for key, (_, v, gone) in model.items() if not gone)
    assert rows_of(table, "id", "v") == expected


def test_a_log_that_grew_successors_keeps_them_all() -> None:
    """Further files of the same task are no stray files of a failed attempt (PUB-1)."""
    table = new_table(table_type=MERGE_ON_READ)
    upsert(table, START)
    sizes = LogSettings(block_bytes_max=1, file_bytes_max=1)
    upsert(
        table,
        [row("a", "x", 6, 2), row("b", "x", 6, 2)],
        files=FileRules(bloom=SMALL.bloom, logs=sizes),
    )
    assert len(logs(table)) == 2
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2), ("c", 1)]


def test_base_and_log_names_contain_their_instant(table: TableReader) -> None:
    result = upsert(table, [row("a", "x", 6, 2)])
    (path,) = logs(table)
    log = parse_log_file_name(path.rpartition("/")[2])
    assert log is not None
    assert (log.instant_time, log.log_version) == (result.requested_time, 1)
    bases = [parse_base_file_name(path.rpartition("/")[2]) for path in data_files(table)]
    assert {base.file_id for base in bases if base} >= {log.file_id}


def test_wide_rows_survive_both_formats() -> None:
    kinds = {
        "id": pa.array(["a"]),
        "p": pa.array(["x"]),
        "ts": pa.array([1], pa.timestamp("us", "UTC")),
        "d": pa.array([3], pa.date32()),
        "n": pa.array([[1, 2]], pa.list_(pa.int32())),
        "b": pa.array([b"\x00\xff"]),
    }
    for form in LogFormat:
        table = new_table(table_type=MERGE_ON_READ)
        files = FileRules(bloom=SMALL.bloom, logs=LogSettings(format=form))
        upsert(table, pa.table(kinds), files=files)
        before = rows_of(table)
        upsert(table, pa.table(kinds), files=files)
        assert len(logs(table)) == 1
        assert rows_of(table) == before
        put(table, DELETE, pa.table({"id": ["a"], "p": ["x"]}), files=files)
        assert rows_of(table) == []

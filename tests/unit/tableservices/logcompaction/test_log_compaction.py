"""Log compaction: fewer log files, the same rows, and it yields where it would hide newer ones."""

from __future__ import annotations

import pytest

from filegroups.files.log_files import VisibleInstants, find_blocks
from filegroups.table import TableReader
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings, compaction_plan, operations_of
from tableservices.logcompaction import execute
from tableservices.logcompaction.execute import (
    LogCompactionSettings,
    execute_log_compaction,
    is_due,
    schedule_log_compaction,
)
from tests.unit.timeline.engine import (
    SMALL,
    begun,
    files_below,
    leftovers,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from timeline.codecs.instant_avro import decode_compaction_plan, encode_compaction_plan
from timeline.errors import MissingFileError, UnsupportedTableError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import timeline_path
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import WallMs, instant_time, wall_ms
from timeline.properties.properties_file import update_properties

SETTINGS = LogCompactionSettings(blocks_min=2)
FIRST = [{"id": one, "p": "x", "ts": 1, "v": 1} for one in "abcd"]
COLUMNS = ("id", "ts", "v")


@pytest.fixture(params=[("ts",), ()], ids=["event time", "commit time"])
def table(request: pytest.FixtureRequest) -> TableReader:
    """One file group with a base file and three logs: updates, a late one and a delete."""
    made = new_table(table_type=TableType.MERGE_ON_READ, ordering=request.param)
    upsert(made, FIRST)
    upsert(made, [{"id": "a", "p": "x", "ts": 5, "v": 5}, {"id": "b", "p": "x", "ts": 5, "v": 5}])
    upsert(made, [{"id": "a", "p": "x", "ts": 3, "v": 3}])
    put(made, WriteOperation.DELETE, [{"id": "c", "p": "x", "ts": 4, "v": 0}])
    return made


def schedule(table: TableReader) -> Instant:
    planned = schedule_log_compaction(table.context, SETTINGS)
    assert planned is not None
    return planned


def log_compact(table: TableReader):
    return execute_log_compaction(table.context, schedule(table), SMALL)


def test_a_log_compaction_replaces_three_logs_by_one_with_the_same_rows(table: TableReader):
    before = rows_of(table, *COLUMNS, "_hoodie_commit_time", "_hoodie_record_key")
    [slice_] = table.view.latest_slices()
    instants = [log.instant_time for log in slice_.log_files]
    result = log_compact(table)
    assert rows_of(table, *COLUMNS, "_hoodie_commit_time", "_hoodie_record_key") == before
    [slice_] = table.view.latest_slices()
    blocks = find_blocks(
        table.context.ports.storage,
        slice_.log_files,
        VisibleInstants.of(table.snapshot),
    )
    assert {block.instant_time for block in blocks} == {result.requested_time}
    assert blocks[0].compacted_times == tuple(reversed(instants))
    assert (result.log_files, result.file_groups) == (3, 1)
    assert leftovers(table) == []


def test_a_log_compaction_completes_as_a_delta_commit_with_javas_metadata(table: TableReader):
    result = log_compact(table)
    done = table.context.active().find(result.requested_time)
    assert (done.action, done.completion_time) == (Action.DELTACOMMIT, result.completion_time)
    metadata = table.context.commits.read(done)
    [stat] = metadata.write_stats()
    assert (metadata.operation_type, metadata.compacted) == ("LOG_COMPACT", True)
    assert (stat.prev_commit, stat.base_file) == (result.requested_time, "")
    assert stat.path.endswith(f"_{result.requested_time}.log.1_0-0-0")


@pytest.mark.spec("PLAN-1")
def test_a_plan_is_in_the_form_of_java(table: TableReader):
    planned = schedule(table)
    path = timeline_path(f"{planned.requested_time}.logcompaction.requested")
    plan = decode_compaction_plan(table.context.ports.storage.read(path), path=path)
    assert plan.preserve_hoodie_metadata
    assert plan.strategy.compactor_class_name.endswith(".LogCompactionExecutionHelper")
    assert [len(one.delta_file_paths) for one in plan.operations] == [3]


def test_later_changes_and_a_compaction_of_all_apply_after_it(table: TableReader):
    log_compact(table)
    upsert(table, [{"id": "b", "p": "x", "ts": 7, "v": 7}])
    log_compact(table)
    upsert(table, [{"id": "d", "p": "x", "ts": 8, "v": 8}])
    before = rows_of(table, *COLUMNS)
    assert ("b", 7, 7) in before
    assert ("d", 8, 8) in before
    planned = schedule_compaction(table.context, CompactionSettings(), SMALL)
    execute_compaction(table.context, planned, SMALL)
    assert rows_of(table, *COLUMNS) == before


def test_logs_written_meanwhile_stay_unchanged(table: TableReader):
    planned = schedule(table)
    upsert(opened(table), [{"id": "b", "p": "x", "ts": 9, "v": 9}])
    before = rows_of(table, *COLUMNS)
    assert execute_log_compaction(table.context, planned, SMALL) is not None
    assert rows_of(table, *COLUMNS) == before


def test_a_log_after_a_pending_write_is_not_compacted(table: TableReader):
    """The writer's position is between the two, and one log cannot be on both its sides."""
    slow = begun(table, WriteOperation.UPSERT, [{"id": "d", "p": "x", "ts": 6, "v": 6}])
    upsert(opened(table), [{"id": "b", "p": "x", "ts": 9, "v": 9}], detect_early=False)
    result = log_compact(table)
    assert result.log_files == 3
    with pytest.raises(AssertionError):  # it conflicts with the other log, as always
        slow()


def test_older_rows_in_a_compacted_log_hide_no_change_of_a_range(table: TableReader):
    """Its block is above a log that began before it, and is no change itself."""
    last = upsert(table, [{"id": "b", "p": "x", "ts": 9, "v": 9}])
    slow = begun(opened(table), WriteOperation.UPSERT, [{"id": "b", "p": "x", "ts": 9, "v": 8}])
    planned = schedule(table)
    slow()
    execute_log_compaction(table.context, planned, SMALL)
    assert rows_of(table, "id", "v")[1] == ("b", 8)
    changed = table.changes(last.completion_time).read_all()
    assert changed.select(["id", "v"]).to_pylist() == [{"id": "b", "v": 8}]


def test_a_log_compaction_yields_to_a_base_file_written_meanwhile(table: TableReader):
    planned = schedule(table)
    storage = table.context.ports.storage
    compaction_plan = foreign_compaction(table, planned)
    execute_compaction(table.context, compaction_plan, SMALL)
    before = rows_of(table, *COLUMNS)
    assert execute_log_compaction(table.context, planned, SMALL) is None
    assert rows_of(table, *COLUMNS) == before
    assert leftovers(table) == []
    assert all(planned.requested_time not in path for path in files_below(storage, "x"))


def foreign_compaction(table: TableReader, after: Instant) -> Instant:
    """A plan of another engine that does not mind ours."""
    operations = operations_of(table.view.latest_slices(), (), new_file_bytes=0)
    time = instant_time(WallMs(wall_ms(after.requested_time) + 2))
    path = timeline_path(f"{time}.compaction.requested")
    body = encode_compaction_plan(compaction_plan(operations))
    table.context.ports.storage.create(path, body)
    return Instant(action=Action.COMPACTION, requested_time=time, state=State.REQUESTED)


@pytest.mark.spec("LC-1")
def test_a_log_compaction_yields_to_a_compaction_planned_meanwhile(table: TableReader):
    planned = schedule(table)
    compaction_plan = foreign_compaction(table, planned)
    assert execute_log_compaction(table.context, planned, SMALL) is None
    assert [one.action for one in table.context.active().pending] == [Action.COMPACTION]
    assert execute_compaction(table.context, compaction_plan, SMALL) is not None


def test_a_log_compaction_does_not_conflict_with_writers(table: TableReader):
    planned = schedule(table)
    slow = begun(table, WriteOperation.UPSERT, [{"id": "d", "p": "x", "ts": 6, "v": 6}])
    assert execute_log_compaction(opened(table).context, planned, SMALL) is not None
    slow()
    assert ("d", 6, 6) in rows_of(table, *COLUMNS)


def test_too_few_blocks_are_not_compacted(table: TableReader):
    assert schedule_log_compaction(table.context, LogCompactionSettings(blocks_min=4)) is None


def test_a_log_compaction_is_due_after_enough_delta_commits_since_the_last_one(table: TableReader):
    active = table.context.active()
    assert is_due(active, 4)
    assert not is_due(active, 5)
    log_compact(table)
    assert not is_due(table.context.active(), 1)
    upsert(table, FIRST)
    assert is_due(table.context.active(), 1)


def test_a_table_without_logs_is_refused():
    with pytest.raises(UnsupportedTableError, match="copy-on-write"):
        schedule_log_compaction(new_table().context, SETTINGS)


@pytest.mark.parametrize(
    "options",
    [
        {"hoodie.record.merge.mode": "CUSTOM", "hoodie.record.merge.strategy.id": "theirs"},
        {"hoodie.table.partial.update.mode": "IGNORE_DEFAULTS"},
    ],
)
def test_a_merge_that_needs_the_base_file_is_refused(table: TableReader, options: dict[str, str]):
    """Also when a plug-in merges, which the table's file does not show."""
    update_properties(table.context.ports.storage, options, now="now")
    with pytest.raises(UnsupportedTableError) as refused:
        schedule_log_compaction(table.context, SETTINGS)
    assert refused.value.kind == "partial_updates"


@pytest.mark.spec("LC-1")
@pytest.mark.parametrize("compacted", [True, False])
def test_logs_cleaned_during_planning_leave_no_plan(
    table: TableReader, compacted: bool, monkeypatch: pytest.MonkeyPatch
):
    """A planner that slept between its listing and the logs; a lost one is reported."""
    other, real = opened(table), execute.find_blocks

    def slept(storage, logs, visible):
        monkeypatch.setattr(execute, "find_blocks", real)
        if compacted:
            planned = schedule_compaction(other.context, CompactionSettings(), SMALL)
            execute_compaction(other.context, planned, SMALL)
        for log in logs:
            storage.delete(log.path)
        return real(storage, logs, visible)

    monkeypatch.setattr(execute, "find_blocks", slept)
    if compacted:
        assert schedule_log_compaction(table.context, SETTINGS) is None
        assert rows_of(table, "id") == [("a",), ("b",), ("d",)]
    else:
        with pytest.raises(MissingFileError):
            schedule_log_compaction(table.context, SETTINGS)
    assert table.context.active().pending == ()


def test_a_range_with_a_log_compaction_returns_no_row_that_lost_within_it() -> None:
    table = new_table(table_type=TableType.MERGE_ON_READ)
    upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    since = upsert(table, [{"id": "a", "p": "x", "ts": 3, "v": 3}]).completion_time
    late = upsert(table, [{"id": "a", "p": "x", "ts": 2, "v": 2}]).completion_time
    assert table.changes(since).read_all()["v"].to_pylist() == [2]
    assert log_compact(table) is not None
    assert table.changes(since).read_all()["v"].to_pylist() == []
    assert table.changes(since, late).read_all()["v"].to_pylist() == [2]
    upsert(table, [{"id": "a", "p": "x", "ts": 3, "v": 4}])
    assert table.changes(since).read_all()["v"].to_pylist() == [4]
    assert table.changes(late).read_all()["v"].to_pylist() == [4]

"""Compaction with concurrent writers: same rows before and after, with any other process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import TableReader
from filegroups.writing.commit_checks import CommitFacts, commit_checks
from tableservices.compaction.execute import (
    CompactionService,
    execute_compaction,
    schedule_compaction,
)
from tableservices.compaction.plan import CompactionSettings
from tableservices.plan_execution import lease_plan
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Behind,
    StillClock,
    begun,
    data_files,
    files_below,
    leftovers,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.instant_avro import decode_compaction_plan, encode_compaction_plan
from timeline.commit.begin import begin
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.errors import (
    CorruptTableError,
    HoodooError,
    InstantNotFoundError,
    MissingFileError,
    StorageUnavailableError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    TableType,
    WriteOperation,
    WriteSet,
)
from timeline.model.file_names import timeline_path
from timeline.model.instant import Action, Instant
from timeline.model.slot import SlotKind

SETTINGS = CompactionSettings()
FIRST = [{"id": one, "p": "x", "ts": 1, "v": 1} for one in "abc"]
CHANGED = [{"id": "a", "p": "x", "ts": 2, "v": 2}]
COLUMNS = ("id", "ts", "v")


def logged_table(
    storage: MemoryStorage | None = None, clock: StillClock | None = None
) -> TableReader:
    """One file group with a base file of three rows and a log that changes one."""
    table = new_table(storage, table_type=TableType.MERGE_ON_READ, clock=clock)
    upsert(table, FIRST)
    upsert(table, CHANGED)
    return table


def schedule(table: TableReader, settings: CompactionSettings = SETTINGS) -> Instant:
    planned = schedule_compaction(table.context, settings, SMALL)
    assert planned is not None
    return planned


def compact(table: TableReader):
    return execute_compaction(table.context, schedule(table), SMALL)


def plan_path(planned: Instant) -> str:
    return timeline_path(f"{planned.requested_time}.compaction.requested")


def kinds(table: TableReader) -> list[SlotKind]:
    commit_log = table.context.commit_log
    return [slot.kind for slot in commit_log.between(0, commit_log.head())]


def test_a_compaction_changes_no_row_and_leaves_one_base_file_more():
    table = logged_table()
    before = rows_of(table, *COLUMNS, "_hoodie_commit_time", "_hoodie_record_key")
    [old] = data_files(table)
    result = compact(table)
    assert rows_of(table, *COLUMNS, "_hoodie_commit_time", "_hoodie_record_key") == before
    [slice_] = table.view.latest_slices()
    assert slice_.log_files == ()
    assert slice_.base_file.requested_time == result.requested_time
    assert (result.rows_written, result.log_files, result.file_groups) == (3, 1, 1)
    name = old.rpartition("/")[2].partition("_")[0]
    assert slice_.base_file.name == f"{name}_0-0-0_{result.requested_time}.parquet"
    assert rows_of(table, "_hoodie_file_name") == [(slice_.base_file.name,)] * 3
    assert leftovers(table) == []


def test_a_running_process_caches_no_commit_of_a_plan_that_ended():
    table = logged_table()
    assert not table.context.commit_log.may_have_committed(compact(table).requested_time)


def test_a_compaction_completes_as_a_commit_with_javas_metadata():
    table = logged_table()
    result = compact(table)
    done = table.context.active().find(result.requested_time)
    assert (done.action, done.completion_time) == (Action.COMMIT, result.completion_time)
    metadata = table.context.commits.read(done)
    assert (metadata.operation_type, metadata.compacted) == ("COMPACT", True)
    [stat] = metadata.write_stats()
    [(source, _), *_] = [
        (one.requested_time, one) for one in table.context.active().completed_writes
    ]
    assert (stat.prev_commit, stat.num_writes, stat.num_update_writes) == (source, 3, 1)
    assert (stat.total_log_files_compacted, stat.total_log_records) == (1, 1)
    assert metadata.schema_json == table.context.snapshot().newest_schema_json
    assert kinds(table) == [SlotKind.COMMIT, SlotKind.COMMIT, SlotKind.PLAN, SlotKind.COMMIT]


@pytest.mark.spec("PLAN-1")
def test_a_plan_is_in_the_form_of_java():
    table = logged_table()
    planned = schedule(table)
    path = plan_path(planned)
    plan = decode_compaction_plan(table.context.ports.storage.read(path), path=path)
    [one] = plan.operations
    [slice_] = table.view.latest_slices()
    assert (plan.version, plan.strategy, plan.preserve_hoodie_metadata) == (2, None, False)
    assert one.partition_path == "x"
    assert one.base_instant_time == slice_.base_file.requested_time
    assert one.data_file_path == slice_.base_file.name
    assert one.delta_file_paths == tuple(log.name for log in slice_.log_files)
    assert one.metrics["TOTAL_LOG_FILES"] == 1.0
    assert one.metrics["TOTAL_LOG_FILES_SIZE"] == float(slice_.log_files[0].size_bytes)


@pytest.mark.spec("PLAN-3")
def test_planned_slices_are_not_planned_again():
    table = logged_table()
    schedule(table)
    assert schedule_compaction(table.context, SETTINGS, SMALL) is None


def test_nothing_is_planned_without_logs():
    table = new_table(table_type=TableType.MERGE_ON_READ)
    upsert(table, FIRST)
    assert schedule_compaction(table.context, SETTINGS, SMALL) is None
    assert kinds(table) == [SlotKind.COMMIT]


def test_a_table_without_logs_is_refused():
    table = new_table()
    with pytest.raises(UnsupportedTableError, match="copy-on-write"):
        schedule_compaction(table.context, SETTINGS, SMALL)


@pytest.mark.spec("CMP-1")
def test_writers_commit_between_plan_and_completion():
    table = logged_table()
    planned = schedule(table)
    upsert(table, [{"id": "b", "p": "x", "ts": 3, "v": 3}])
    slow = begun(table, WriteOperation.UPSERT, [{"id": "c", "p": "x", "ts": 4, "v": 4}])
    assert execute_compaction(table.context, planned, SMALL) is not None
    slow()
    assert rows_of(table, *COLUMNS) == [("a", 2, 2), ("b", 3, 3), ("c", 4, 4)]
    [slice_] = table.view.latest_slices()
    assert slice_.base_file.requested_time == planned.requested_time
    assert len(slice_.log_files) == 2


def test_a_log_that_began_before_the_plan_is_on_top_of_it():
    table = logged_table()
    slow = begun(table, WriteOperation.UPSERT, [{"id": "b", "p": "x", "ts": 5, "v": 5}])
    planned = schedule(table)
    slow()
    execute_compaction(table.context, planned, SMALL)
    assert rows_of(table, *COLUMNS) == [("a", 2, 2), ("b", 5, 5), ("c", 1, 1)]


@pytest.mark.spec("PLAN-2")
def test_a_commit_between_planning_and_the_commit_section_is_in_the_plan():
    table = logged_table()
    other = opened(table)
    context = table.context
    acts = [lambda: upsert(other, [{"id": "b", "p": "x", "ts": 3, "v": 3}])]

    class Late(Behind):
        def acquire(self, purpose: str):
            if "schedule" in purpose and acts:
                acts.pop()()
            return self.inner.acquire(purpose)

    object.__setattr__(context.ports, "lock", Late(context.ports.lock))
    planned = schedule(table)
    path = plan_path(planned)
    [one] = decode_compaction_plan(context.ports.storage.read(path), path=path).operations
    assert len(one.delta_file_paths) == 2


def test_a_contended_table_is_planned_in_the_commit_section():
    table = logged_table()
    other = opened(table)
    context = table.context
    numbers = iter(range(100))

    class Busy(Behind):
        def acquire(self, purpose: str):
            if "schedule" in purpose:
                number = next(numbers)
                upsert(other, [{"id": "b", "p": "x", "ts": number + 3, "v": number}])
            return self.inner.acquire(purpose)

    object.__setattr__(context.ports, "lock", Busy(context.ports.lock))
    planned = schedule(table)
    execute_compaction(context, planned, SMALL)
    assert next(numbers) == 4
    [slice_] = table.view.latest_slices()
    assert slice_.log_files == ()


def test_a_file_group_of_logs_alone_gets_its_first_base_file():
    table = logged_table()
    [slice_] = table.view.latest_slices()
    storage = table.context.ports.storage
    planned = schedule(table)
    path = plan_path(planned)
    plan = decode_compaction_plan(storage.read(path), path=path)
    [log] = slice_.log_files
    bare = replace(plan.operations[0], data_file_path=None, base_instant_time=log.instant_time)
    storage.write(path, encode_compaction_plan(replace(plan, operations=(bare,))))
    execute_compaction(table.context, planned, SMALL)
    done = table.context.active().find(planned.requested_time)
    [stat] = table.context.commits.read(done).write_stats()
    assert (stat.prev_commit, stat.prev_base_file, stat.num_inserts) == ("null", None, 1)


def test_a_second_executor_is_refused_while_the_first_is_live():
    table = logged_table()
    planned = schedule(table)
    lease = lease_plan(table.context, planned)
    assert execute_compaction(opened(table).context, planned, SMALL) is None
    lease.stop()
    assert execute_compaction(opened(table).context, planned, SMALL) is not None


def test_a_finished_plan_is_not_run_again():
    table = logged_table()
    planned = schedule(table)
    execute_compaction(table.context, planned, SMALL)
    files = data_files(table)
    assert execute_compaction(opened(table).context, planned, SMALL) is None
    assert data_files(table) == files
    assert kinds(table).count(SlotKind.COMMIT) == 3


def test_files_of_a_dead_executor_are_adopted():
    storage = MemoryStorage()
    table = logged_table(storage)
    planned = schedule(table)

    class Broken(Behind):
        """Dies right before its commit slot."""

        def create(self, path: str, data: bytes, **how: object) -> None:
            if "/slots/" in path:
                raise StorageUnavailableError("down", path=path)
            self.inner.create(path, data, **how)

    broken = opened(table, storage=Broken(storage), limits=replace(BRISK, unknown_ms_max=0))
    with pytest.raises(HoodooError):
        execute_compaction(broken.context, planned, SMALL)
    [written] = [path for path in data_files(table) if planned.requested_time in path]
    version = storage.stat(written).version
    result = execute_compaction(table.context, planned, SMALL)
    assert (result.rows_written, storage.stat(written).version) == (3, version)
    assert rows_of(table, *COLUMNS) == [("a", 2, 2), ("b", 1, 1), ("c", 1, 1)]
    assert leftovers(table) == []


def test_files_of_another_engines_attempt_are_deleted_before_the_slot():
    table = logged_table()
    planned = schedule(table)
    storage = table.context.ports.storage
    [old] = data_files(table)
    stray = old.partition("_")[0] + f"_7-8-9_{planned.requested_time}.parquet"
    storage.create(stray, b"half")
    storage.create(timeline_path(f"{planned.requested_time}.compaction.inflight"), b"")
    execute_compaction(table.context, planned, SMALL)
    assert storage.stat(stray) is None
    assert rows_of(table, *COLUMNS) == [("a", 2, 2), ("b", 1, 1), ("c", 1, 1)]


def test_a_cancelled_plan_leaves_nothing_and_its_logs_count_as_before():
    table = logged_table()
    planned = schedule(table)
    upsert(table, [{"id": "b", "p": "x", "ts": 3, "v": 3}])
    before = rows_of(table, *COLUMNS)
    assert cancel_pending_plan(table.context, planned) is not None
    assert rows_of(table, *COLUMNS) == before
    assert leftovers(table) == []
    assert cancel_pending_plan(table.context, planned) is None
    with pytest.raises(InstantNotFoundError):
        execute_compaction(table.context, planned, SMALL)
    assert compact(table).log_files == 2


@pytest.mark.spec("CAN-1")
def test_a_completed_plan_cannot_be_cancelled():
    table = logged_table()
    planned = schedule(table)
    execute_compaction(table.context, planned, SMALL)
    assert cancel_pending_plan(opened(table).context, planned) is None
    assert SlotKind.CANCEL not in kinds(table)


def test_an_executor_that_finds_its_plan_cancelled_deletes_its_files():
    table = logged_table()
    planned = schedule(table)
    other = opened(table)

    class Late(Behind):
        def acquire(self, purpose: str):
            if "complete" in purpose:
                cancel_pending_plan(other.context, planned)
            return self.inner.acquire(purpose)

    object.__setattr__(table.context.ports, "lock", Late(table.context.ports.lock))
    assert execute_compaction(table.context, planned, SMALL) is None
    assert [path for path in data_files(table) if planned.requested_time in path] == []
    assert leftovers(table) == []


def test_a_base_file_that_began_before_the_plan_is_refused():
    """Its rows would be below the compaction's base file, unseen (PUB-5)."""
    table = logged_table()
    [slice_] = table.view.latest_slices()
    before = begin(table.context, Action.DELTACOMMIT)
    schedule(table)
    after = begin(table.context, Action.DELTACOMMIT)

    def refused(touch: Access, requested_time: str) -> bool:
        mine = CommitFacts(
            requested_time=requested_time,
            keys_looked_up=False,
            batch_ids=(),
            schemas=(),
            write_set=WriteSet.of([AccessedFileGroup(file_group=slice_.file_group, access=touch)]),
            partitions_without_match=(),
            inserted_into=(),
            appended=(),
            virtual_keys=None,
            read_only=(),
            whole_table=False,
            in_buckets=False,
        )
        check = commit_checks(table.context, mine)
        return check(table.context.active(), [], lambda: table.config) is not None

    assert refused(Access.BASE, before.requested_time)
    assert not refused(Access.LOG, before.requested_time)
    assert not refused(Access.BASE, after.requested_time)


@pytest.mark.parametrize(
    "change",
    [
        {"data_file_path": "../../other/x/f-0_0-0-0_20260101000000000.parquet"},
        {"data_file_path": "f-0.txt"},
        {"delta_file_paths": ("/etc/passwd",)},
        {"delta_file_paths": (".other-0_20260101000000000.log.1_0-0-0",)},
        {"partition_path": "../x"},
        {"partition_path": ".hoodie/timeline"},
        {"file_id": "another"},
        {"base_instant_time": "20260101000000000"},
    ],
)
def test_a_hostile_plan_is_refused_before_anything_is_written(change: dict[str, object]):
    table = logged_table()
    planned = schedule(table)
    storage = table.context.ports.storage
    path = plan_path(planned)
    plan = decode_compaction_plan(storage.read(path), path=path)
    hostile = replace(plan, operations=(replace(plan.operations[0], **change),))
    storage.write(path, encode_compaction_plan(hostile))
    before = files_below(storage)
    with pytest.raises((CorruptTableError, HoodooError)):
        execute_compaction(table.context, planned, SMALL)
    assert files_below(storage) == before


def test_a_plan_that_names_a_file_group_twice_is_refused():
    table = logged_table()
    planned = schedule(table)
    storage = table.context.ports.storage
    path = plan_path(planned)
    plan = decode_compaction_plan(storage.read(path), path=path)
    storage.write(path, encode_compaction_plan(replace(plan, operations=plan.operations * 2)))
    with pytest.raises(CorruptTableError, match="twice"):
        execute_compaction(table.context, planned, SMALL)


def test_whole_paths_of_a_moved_table_are_taken_by_name():
    table = logged_table()
    planned = schedule(table)
    storage = table.context.ports.storage
    path = plan_path(planned)
    plan = decode_compaction_plan(storage.read(path), path=path)
    [one] = plan.operations
    whole = replace(
        one,
        data_file_path=f"file:/long/ago/x/{one.data_file_path}",
        delta_file_paths=tuple(f"file:/long/ago/x/{name}" for name in one.delta_file_paths),
    )
    storage.write(path, encode_compaction_plan(replace(plan, operations=(whole,), version=1)))
    assert execute_compaction(table.context, planned, SMALL).rows_written == 3


def test_a_plan_with_a_missing_file_is_refused_with_advice():
    table = logged_table()
    planned = schedule(table)
    [slice_] = table.view.latest_slices()
    table.context.ports.storage.delete(slice_.log_files[0].path)
    with pytest.raises(MissingFileError, match="hoodoo services cancel"):
        execute_compaction(table.context, planned, SMALL)


def test_deleted_rows_stay_deleted():
    table = logged_table()
    put(table, WriteOperation.DELETE, [{"id": "a", "p": "x", "ts": 9, "v": 0}])
    compact(table)
    assert rows_of(table, *COLUMNS) == [("b", 1, 1), ("c", 1, 1)]
    upsert(table, [{"id": "b", "p": "x", "ts": 7, "v": 7}])
    compact(table)
    assert rows_of(table, *COLUMNS) == [("b", 7, 7), ("c", 1, 1)]


def test_a_plan_completed_and_cleaned_during_its_read_raises_no_error():
    table = logged_table()
    planned = schedule(table)
    slices = table.view.latest_slices()

    class Overtaken(Behind):
        """Another executor has completed it, and a clean taken its files, once it is read."""

        def read(self, path: str) -> bytes:
            data = bytes(self.inner.read(path))
            if path == plan_path(planned) and self.inner.stat(slices[0].log_files[0].path):
                assert execute_compaction(opened(table).context, planned, SMALL) is not None
                for log in slices[0].log_files:
                    self.inner.delete(log.path)
            return data

    late = opened(table, storage=Overtaken(table.context.ports.storage))
    assert execute_compaction(late.context, planned, SMALL) is None


def test_a_file_group_whose_rows_are_all_deleted_gets_an_empty_base_file():
    table = logged_table()
    put(table, WriteOperation.DELETE, [{"id": one, "p": "x", "ts": 9, "v": 0} for one in "abc"])
    result = compact(table)
    assert (result.rows_written, rows_of(table, *COLUMNS)) == (0, [])
    upsert(table, FIRST)
    assert rows_of(table, *COLUMNS) == [("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]


def test_a_plan_that_cannot_be_carried_out_expires():
    clock = StillClock()
    table = logged_table(clock=clock)
    planned = schedule(table)
    [slice_] = table.view.latest_slices()
    storage = table.context.ports.storage
    kept = storage.read(slice_.log_files[0].path)
    storage.delete(slice_.log_files[0].path)
    young = CompactionService(settings=SETTINGS, files=SMALL)
    with pytest.raises(MissingFileError):
        young.run_once(table.context)
    assert table.context.active().pending == (planned,)
    clock.sleep_ms(10_000)
    settings = CompactionSettings(expiry_ms=1_000, commits_max=2)
    old = CompactionService(settings=settings, files=SMALL)
    assert old.run_once(table.context) is None
    assert table.context.active().pending == ()
    storage.create(slice_.log_files[0].path, kept)
    assert old.run_once(table.context) is not None

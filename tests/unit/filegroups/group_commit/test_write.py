"""Several writes in one instant: shared times, separate results, and no conflicts in the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from filegroups.files.rewrite import FileGroupTask
from filegroups.group_commit import commit_group as group_write
from filegroups.group_commit.commit_group import (
    Answer,
    NotCommitted,
    are_compatible,
    commit_group,
)
from filegroups.keys.bucketing import BucketRules
from filegroups.merge.merging import DeleteKind
from filegroups.table import TableReader
from filegroups.writing.idempotency import committed_batch
from filegroups.writing.pending_commit import announce_tasks
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import PreparedWrite, prepare_write, write_prepared
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import (
    BRISK,
    Far,
    Meddled,
    Rows,
    as_table,
    data_files,
    heard,
    leftovers,
    new_table,
    opened,
    planned,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.begin import begin
from timeline.errors import OutcomeUnknownError, StorageUnavailableError
from timeline.model.commit_metadata import (
    GROUP_KEY,
    CommitMetadata,
    ConcurrencyMode,
    TableType,
    WriteOperation,
)
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind
from timeline.rollback.rollback import rollback
from timeline.system import ThreadExecutor
from timeline.writer_registry import register_process

UPSERT, INSERT = WriteOperation.UPSERT, WriteOperation.INSERT
BULK = WriteOperation.BULK_INSERT


def row(key: str, p: str, v: int) -> dict[str, Any]:
    return {"id": key, "p": p, "ts": v, "v": v}


def member(
    table: TableReader,
    rows: Rows,
    *acts: Callable[[], object],
    operation: WriteOperation = UPSERT,
    batch_id: str | None = None,
    **options: Any,
) -> PreparedWrite:
    workload = Meddled(LocalWorkload(table.context.ports, as_table(rows)), *acts)
    plan = planned(table, operation, batch_id=batch_id, **options)
    return prepare_write(table.context, plan, workload, table.context.cached_snapshot())


def together(table: TableReader, *works: PreparedWrite) -> list[Answer]:
    return commit_group(table.context, works)


def newest_slot(table: TableReader) -> Slot:
    slot = table.context.commit_log.read(table.context.commit_log.head())
    assert slot is not None
    return slot


def committed(answer: Answer) -> CommitResult:
    assert isinstance(answer, CommitResult)
    return answer


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("BEG-6")
def test_on_a_high_latency_store_all_members_are_announced_before_the_first_data_file() -> None:
    storage = RecordingStorage(Far(MemoryStorage()))
    table = new_table(storage)
    works = [member(table, [row(f"k{one}", f"p{one}", 1)], operation=BULK) for one in range(3)]
    executor = ConcurrencyRecorder()
    ports = replace(table.context.ports, executor=executor)
    storage.forget()
    answers = commit_group(replace(table.context, ports=ports), works)
    assert [committed(one).group for one in answers] == [3, 3, 3]
    # The inflight file, three markers, three partitions' metadata, and three precomputed files.
    assert executor.most == 10
    asked = storage.operations()
    first = min(at for at, text in enumerate(asked) if text.startswith("open_output"))
    announced = [text for text in asked[:first] if text.startswith("create")]
    assert sum(".marker." in text for text in announced) == 3
    assert sum(text.endswith(".hoodie_partition_metadata") for text in announced) == 3
    assert sum(text.endswith(".hoodie_partition_metadata") for text in asked) == 3, "once"
    assert announced[0].endswith(".requested")
    assert sum(text.endswith(".inflight") for text in announced) == 1
    assert sum(text.startswith("create") and ".marker." in text for text in asked) == 3, "once"


def test_a_running_process_caches_no_commit_of_a_group_that_ended() -> None:
    table = new_table()
    answers = together(table, *(member(table, [row(f"k{one}", "x", 1)]) for one in range(2)))
    times = {committed(one).requested_time for one in answers}
    assert not any(map(table.context.commit_log.may_have_committed, times))


@pytest.mark.spec("PAR-1")
def test_no_partition_is_created_for_rows_that_may_all_be_deletes() -> None:
    storage = RecordingStorage(Far(MemoryStorage()))
    table = new_table(storage)
    mine = begin(table.context, Action.COMMIT)
    task = first_task(mine.requested_time)
    tasks = [task, replace(task, partition_path="y", deletes=DeleteKind.COLUMN)]
    storage.forget()
    rows = LocalWorkload(table.context.ports, as_table([]))
    [shown] = announce_tasks(table.context, mine, CommitMetadata(), [(rows, tasks)])
    mine.heartbeat.stop()
    assert [one.announced for one in shown] == [True, True]
    assert [one.partition_marked for one in shown] == [True, False]
    made = [text for text in storage.operations() if "partition_metadata" in text]
    assert made == ["create z/.hoodie_partition_metadata"]


@pytest.mark.spec("PUB-1")
def test_files_that_tasks_name_are_not_announced_before() -> None:
    """The marker of a planned name would hide the files of attempts that the write does not use."""
    storage = RecordingStorage(Far(MemoryStorage()))
    table = new_table(storage)
    mine = begin(table.context, Action.COMMIT)
    task = first_task(mine.requested_time)
    rows = LocalWorkload(table.context.ports, as_table([]))
    rows.tasks_name_files = True
    [shown] = announce_tasks(table.context, mine, CommitMetadata(), [(rows, [task])])
    mine.heartbeat.stop()
    assert shown == (task,)
    assert not any(".marker." in text for text in storage.operations())


def first_task(requested_time: str) -> FileGroupTask:
    return FileGroupTask(
        requested_time=requested_time,
        operation=UPSERT,
        partition_path="z",
        file_id="f-0",
        write_token="0-0-0",
        task_number=0,
        avro_json="",
    )


class ConcurrencyRecorder(ThreadExecutor):
    """An executor that records the greatest number of concurrent calls."""

    def __init__(self) -> None:
        super().__init__(1)
        self.most = 0

    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        self.most = max(self.most, len(calls))
        return [call() for call in calls]


@pytest.mark.spec("GRP-6")
def test_only_members_of_an_unanswered_commit_have_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that left earlier must not take the committed instant for its own."""
    table = new_table()
    upsert(table, [row("a", "x", 0)])
    works = [member(table, [row(key, p, 1)]) for key, p in (("a", "x"), ("a", "x"), ("b", "y"))]
    real = group_write.commit_write

    def unanswered(*asked: Any) -> Any:
        real(*asked)
        raise OutcomeUnknownError("no answer", requested_time=asked[1].requested_time)

    monkeypatch.setattr(group_write, "commit_write", unanswered)
    first, conflicting, last = together(table, *works)
    assert isinstance(first, OutcomeUnknownError)
    assert first is last
    assert conflicting is NotCommitted.CONFLICTS
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 1)]


@pytest.mark.spec("GRP-6")
@pytest.mark.spec("UNK-3")
def test_an_error_behind_the_slot_of_a_group_leaves_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error must not read as that of a group without a commit."""
    table = new_table()
    works = [member(table, [row(key, p, 1)]) for key, p in (("a", "x"), ("b", "y"))]
    real = group_write.commit_write

    def fails_later(*asked: Any) -> Any:
        real(*asked)
        raise StorageUnavailableError("no further turn", path="")

    monkeypatch.setattr(group_write, "commit_write", fails_later)
    answers = together(table, *works)
    assert all(isinstance(one, OutcomeUnknownError) for one in answers)
    assert rows_of(table, "id") == [("a",), ("b",)]


@pytest.mark.spec("GRP-1")
def test_a_write_that_arrives_while_the_instant_begins_joins_it() -> None:
    table = new_table()
    pending: list[int] = []

    def join() -> list[PreparedWrite]:
        pending.append(len(table.context.active().pending))
        return [member(table, [row("b", "y", 1)]), member(table, [row("a", "x", 2)])]

    answers = commit_group(table.context, [member(table, [row("a", "x", 1)])], join=join)
    assert pending == [1]
    assert [committed(one).group for one in answers[:2]] == [2, 2]
    assert answers[2] is NotCommitted.CONFLICTS
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 1)]


@pytest.mark.spec("GRP-1")
def test_deferred_cleanup_runs_later_and_its_failure_is_an_event() -> None:
    table = new_table()
    left: list[Callable[[], None]] = []
    work = member(table, [row("a", "x", 1)])
    [answer] = commit_group(table.context, [work], later=left.append)
    rt = committed(answer).requested_time
    assert leftovers(table) != []
    [tidy_up] = left
    tidy_up()
    assert leftovers(table) == []
    assert table.context.active().find(rt, Action.COMMIT) is not None


@pytest.mark.spec("GC-2")
def test_a_process_that_only_leads_groups_raises_its_low_water_mark() -> None:
    table = new_table()
    registration = register_process(table.context, {})
    for number in range(20):
        together(table, member(table, [row("a", "x", number)]))
    assert table.context.low_water_mark.number > 0
    registration.unregister()


@pytest.mark.spec("GRP-1")
def test_members_share_the_instant_and_have_results_of_their_own() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    answers = together(
        table,
        member(table, [row("a", "x", 2)], batch_id="s/1"),
        member(table, [row("b", "y", 2), row("c", "y", 2)], batch_id="s/2"),
        member(table, [row("d", "z", 2)], batch_id="s/3"),
    )
    one, two, three = map(committed, answers)
    assert {(each.requested_time, each.completion_time) for each in (two, three)} == {
        (one.requested_time, one.completion_time)
    }
    assert [(each.rows_inserted, each.rows_updated) for each in (one, two, three)] == [
        (0, 1),
        (2, 0),
        (1, 0),
    ]
    assert [each.files_written for each in (one, two, three)] == [1, 1, 1]
    assert {each.group for each in (one, two, three)} == {3}
    assert len(table.context.active().completed_writes) == 2
    slot = newest_slot(table)
    assert [batch.batch_id for batch in slot.batches] == ["s/1", "s/2", "s/3"]
    metadata = decode_commit(slot.body, path="slot")
    assert metadata.extra_metadata[GROUP_KEY] == "3"
    assert metadata.total_rows_inserted == 3
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2), ("c", 2), ("d", 2)]
    assert leftovers(table) == []
    again = committed_batch(table.context, planned(table, UPSERT, batch_id="s/2"))
    assert again is not None
    assert (again.rows_inserted, again.requested_time) == (2, one.requested_time)


@pytest.mark.spec("GRP-1")
def test_write_tokens_of_members_differ() -> None:
    table = new_table()
    together(
        table,
        member(table, [row("b", "y", 2), row("e", "w", 2)]),
        member(table, [row("d", "z", 2)]),
    )
    tokens = sorted(path.rpartition("/")[2].split("_")[1] for path in data_files(table))
    assert tokens == ["0-0-0", "1-0-0", "2-0-0"]


@pytest.mark.spec("GRP-2")
def test_a_member_that_conflicts_in_a_base_file_waits_for_the_next_group() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1), row("b", "x", 1)])
    later = member(table, [row("b", "x", 3)])
    first, second, third = together(
        table, member(table, [row("a", "x", 2)]), later, member(table, [row("c", "y", 2)])
    )
    assert (committed(first).group, second, committed(third).group) == (
        2,
        NotCommitted.CONFLICTS,
        2,
    )
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1), ("c", 2)]
    write_prepared(later)
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 3), ("c", 2)]
    assert leftovers(table) == []


def test_members_that_would_fill_one_small_file_get_files_of_their_own() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    works = [member(table, [row(key, "x", 2)], operation=INSERT) for key in ("b", "c", "d")]
    assert {committed(answer).group for answer in together(table, *works)} == {3}
    assert rows_of(table, "id") == [("a",), ("b",), ("c",), ("d",)]
    assert len(table.file_slices()) == 3


@pytest.mark.spec("GRP-2")
def test_one_new_key_of_two_members_is_inserted_once() -> None:
    table = new_table()
    twin = member(table, [row("a", "x", 3), row("f", "x", 3)])
    first, second = together(table, member(table, [row("a", "x", 2)]), twin)
    assert (committed(first).group, second) == (1, NotCommitted.CONFLICTS)
    assert len(data_files(table)) == 1  # the other member's file is deleted (PUB-1)
    write_prepared(twin)
    assert rows_of(table, "id", "v") == [("a", 3), ("f", 3)]


def test_one_batch_is_committed_once_in_a_group() -> None:
    table = new_table()
    works = [member(table, [row("a", path, 2)], batch_id="s/1") for path in ("x", "y")]
    first, second = together(table, *works)
    assert second is NotCommitted.CONFLICTS
    assert write_prepared(works[1]) == replace(
        committed(first),
        already_published=True,
        files_written=0,
        bytes_written=0,
    )
    assert rows_of(table, "id") == [("a",)]


@pytest.mark.spec("GRP-2")
def test_a_member_that_fails_leaves_nothing_in_the_group() -> None:
    table = new_table()

    def fail() -> None:
        raise StorageUnavailableError("no space left: y", path="y")

    broken = member(table, [row("b", "y", 2)], fail)
    first, second, third = together(
        table, member(table, [row("a", "x", 2)]), broken, member(table, [row("c", "z", 2)])
    )
    assert (committed(first).group, second, committed(third).group) == (2, NotCommitted.ALONE, 2)
    assert len(heard(table, "group.left")) == 1
    assert rows_of(table, "id") == [("a",), ("c",)]
    assert write_prepared(broken).rows_inserted == 1
    assert rows_of(table, "id") == [("a",), ("b",), ("c",)]


def test_a_group_that_conflicts_with_another_process_commits_nothing() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    other = opened(table)
    works = [
        member(table, [row("a", "x", 2)], lambda: upsert(other, [row("a", "x", 9)])),
        member(table, [row("b", "y", 2)]),
    ]
    assert together(table, *works) == [NotCommitted.ALONE, NotCommitted.ALONE]
    assert rows_of(table, "id", "v") == [("a", 9)]
    assert leftovers(table) == []
    assert [write_prepared(work).group for work in works] == [1, 1]
    assert rows_of(table, "id", "v") == [("a", 9), ("b", 2)]  # a of ts 2 is late


@pytest.mark.spec("GRP-3")
def test_a_group_that_was_rolled_back_is_aborted_once_and_written_again() -> None:
    table = new_table()
    upsert(table, [row("c", "z", 1)])
    other = opened(table).context

    def take_for_dead() -> None:
        [mine] = other.active().pending
        rollback(other, mine)

    works = [
        member(table, [row("a", "x", 2)], take_for_dead, batch_id="s/1"),
        member(table, [row("b", "y", 2)], batch_id="s/2"),
    ]
    assert together(table, *works) == [NotCommitted.ALONE, NotCommitted.ALONE]
    kinds = [
        slot.kind for slot in table.context.commit_log.between(0, table.context.commit_log.head())
    ]
    assert kinds == [SlotKind.COMMIT, SlotKind.ABORT]
    assert [write_prepared(work).group for work in works] == [1, 1]
    assert rows_of(table, "id") == [("a",), ("b",), ("c",)]
    assert leftovers(table) == []


@pytest.mark.spec("GRP-2")
def test_members_append_to_one_bucket_in_their_order() -> None:
    limits = replace(BRISK, mode=ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL)
    table = new_table(limits=limits, table_type=TableType.MERGE_ON_READ, ordering=())
    buckets = BucketRules(buckets=1, hash_fields=("id",))
    works = [
        member(table, [row("a", "x", value), row(f"b{value}", "x", value)], buckets=buckets)
        for value in (1, 2, 3)
    ]
    assert {committed(answer).group for answer in together(table, *works)} == {3}
    (one,) = table.file_slices()
    assert len(one.log_files) == 3
    assert rows_of(table, "id", "v") == [("a", 3), ("b1", 1), ("b2", 2), ("b3", 3)]


@pytest.mark.spec("GRP-2")
def test_more_than_ten_tasks_of_a_group_keep_the_order_of_their_members() -> None:
    """Readers compare tokens as texts, where 10-0-0 precedes 9-0-0."""
    limits = replace(BRISK, mode=ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL)
    table = new_table(limits=limits, table_type=TableType.MERGE_ON_READ, ordering=())
    buckets = BucketRules(buckets=6, hash_fields=("id",))
    keys = [f"k{number}" for number in range(40)]
    works = [member(table, [row(k, "x", value) for k in keys], buckets=buckets) for value in (1, 2)]
    assert {committed(answer).group for answer in together(table, *works)} == {2}
    assert sum(len(one.log_files) for one in table.file_slices()) == 12
    assert rows_of(table, "id", "v") == sorted((key, 2) for key in keys)


def test_only_equal_requests_share_an_instant() -> None:
    table = new_table()
    mine = member(table, [row("a", "x", 1)], batch_id="s/1")
    assert are_compatible(mine, member(table, [row("b", "y", 1)], batch_id="s/2"))
    assert not are_compatible(mine, member(table, [row("b", "y", 1)], operation=INSERT))
    overwrite = member(table, [row("b", "y", 1)], operation=WriteOperation.INSERT_OVERWRITE)
    assert not are_compatible(overwrite, overwrite)

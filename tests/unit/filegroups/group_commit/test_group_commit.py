"""The committer of a process: writes that wait for a commit enter the next instant."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from filegroups.group_commit import commit_group as group_write
from filegroups.group_commit import committer as group_commit
from filegroups.group_commit.commit_group import without_known_conflict
from filegroups.group_commit.committer import GroupCommitter
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    Heard,
    Meddled,
    StillClock,
    as_table,
    leftovers,
    new_table,
    planned,
    rows_of,
    wait_for,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import InvalidInputError, OutcomeUnknownError, StorageUnavailableError
from timeline.model.commit_metadata import FileGroupId, WriteOperation
from timeline.rollback.rollback import rollback_dead_writers
from timeline.system import SystemClock, ThreadExecutor, start_in_background

Write = Callable[[], CommitResult]


class Interrupted(BaseException):
    """An interrupt, such as Ctrl-C, in the leader's thread."""


def row(key: str, p: str, v: int) -> dict[str, Any]:
    return {"id": key, "p": p, "ts": v, "v": v}


class WithoutSpace(Behind):
    """A storage without space for the inflight file of a write."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(".inflight"):
            raise StorageUnavailableError(f"no space left: {path}", path=path)
        self.inner.create(path, data, durable=durable)


class Gathering(StillClock):
    """A clock during whose first sleep other threads start their writes."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Write] = []
        self.started: list[Future[CommitResult]] = []
        self.committer: GroupCommitter | None = None
        self.probe: Callable[[], object] = lambda: None
        self.seen: list[object] = []

    def sleep_ms(self, duration_ms: int) -> None:
        self.seen.append(self.probe())
        others, self.others = self.others, []
        for number, other in enumerate(others, start=2):
            self.started.append(start_in_background(other))
            while self.committer is not None and len(self.committer._waiting) < number:
                pass
        super().sleep_ms(duration_ms)


class Threads:
    """A table, its committer, and writes that start while the first one lingers."""

    def __init__(self, *, writes_max: int = 16, storage: Any = None) -> None:
        self.clock = Gathering()
        self.table = new_table(storage, clock=self.clock)
        self.committer = GroupCommitter(self.table.context, writes_max=writes_max, linger_ms=5)
        self.clock.committer = self.committer

    def write(
        self,
        *rows: dict[str, Any],
        acts: Sequence[Callable[[], object]] = (),
        operation: WriteOperation = WriteOperation.UPSERT,
    ) -> Write:
        def run() -> CommitResult:
            inner = LocalWorkload(self.table.context.ports, as_table(list(rows)))
            plan = planned(self.table, operation)
            return self.committer.write(plan, Meddled(inner, *acts))

        return run

    def first(self, write: Write, *others: Write) -> CommitResult:
        self.clock.others = list(others)
        return write()

    def answers(self) -> list[CommitResult]:
        return [one.result() for one in self.clock.started]


def test_no_instant_begins_while_the_leader_lingers() -> None:
    """Otherwise the group would be validated against a snapshot as old as the linger."""
    threads = Threads()
    threads.clock.probe = lambda: threads.table.context.active().pending
    assert (
        threads.first(threads.write(row("a1", "x", 1)), threads.write(row("b1", "x", 1))).group == 2
    )
    assert threads.clock.seen == [()]


@pytest.mark.spec("GRP-1")
def test_waiting_writes_are_committed_in_one_instant() -> None:
    threads = Threads()
    one = threads.first(
        threads.write(row("a", "x", 1)),
        threads.write(row("b", "y", 1)),
        threads.write(row("c", "z", 1)),
    )
    answers = [one, *threads.answers()]
    assert {each.requested_time for each in answers} == {one.requested_time}
    assert {each.group for each in answers} == {3}
    assert rows_of(threads.table, "id") == [("a",), ("b",), ("c",)]
    assert leftovers(threads.table) == []


def test_a_group_has_a_limit() -> None:
    threads = Threads(writes_max=2)
    one = threads.first(
        threads.write(row("a", "x", 1)),
        threads.write(row("b", "y", 1)),
        threads.write(row("c", "z", 1)),
    )
    assert one.group == 2
    assert sorted(each.group for each in threads.answers()) == [1, 2]


@pytest.mark.spec("GRP-2")
def test_writes_of_one_key_are_committed_one_after_another() -> None:
    threads = Threads()
    threads.first(*[threads.write(row("a", "x", value)) for value in (1, 2, 3)])
    answers = threads.answers()
    assert [each.group for each in answers] == [1, 1]
    assert rows_of(threads.table, "id", "v") == [("a", 3)]


class Counted(Meddled):
    """A workload that counts its key lookups."""

    tagged = 0

    def tag(self, candidates: Any) -> Any:
        self.tagged += 1
        return self._inner.tag(candidates)


@pytest.mark.spec("GRP-2")
def test_a_member_that_conflicts_is_not_assigned_again_before_its_own_group() -> None:
    """Its keys are looked up once in the first group and once in its own, not for each group."""
    threads = Threads()
    threads.write(row("a", "x", 0))()
    workloads: list[Counted] = []

    def counted(value: int) -> Write:
        inner = LocalWorkload(threads.table.context.ports, as_table([row("a", "x", value)]))
        workloads.append(Counted(inner))
        plan = planned(threads.table, WriteOperation.UPSERT)
        return partial(threads.committer.write, plan, workloads[-1])

    threads.first(*[counted(value) for value in (1, 2, 3)])
    assert [each.group for each in threads.answers()] == [1, 1]
    assert [each.tagged for each in workloads] == [1, 2, 2]
    assert rows_of(threads.table, "id", "v") == [("a", 3)]


def test_of_members_that_conflict_in_one_file_group_the_first_is_chosen() -> None:
    one, two = FileGroupId("x", "f1"), FileGroupId("x", "f2")
    conflict_on = {
        "fresh": frozenset[FileGroupId](),
        "first": frozenset({one}),
        "behind it": frozenset({one, two}),
        "apart": frozenset({two}),
        "fresh, too": frozenset[FileGroupId](),
    }
    chosen = without_known_conflict(conflict_on, conflict_on.__getitem__)
    assert chosen == ["fresh", "first", "apart", "fresh, too"]


def test_a_member_that_fails_in_the_group_is_retried_alone() -> None:
    threads = Threads()

    def fail() -> None:
        raise InvalidInputError("no such value", kind="value")

    bad = threads.write(row("b", "y", 1), acts=[fail])
    one = threads.first(threads.write(row("a", "x", 1)), bad, threads.write(row("c", "z", 1)))
    assert one.group == 2
    assert threads.answers()[-1].group == 2
    assert rows_of(threads.table, "id") == [("a",), ("b",), ("c",)]  # the second attempt succeeds


@pytest.mark.spec("GRP-3")
def test_followers_of_an_interrupted_leader_write_themselves() -> None:
    threads = Threads()

    def interrupt() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        threads.first(
            threads.write(row("a", "x", 1), acts=[interrupt]), threads.write(row("b", "y", 1))
        )
    (answer,) = threads.answers()
    assert answer.group == 1
    assert rows_of(threads.table, "id") == [("b",)]


@pytest.mark.spec("PUB-2")
def test_a_member_that_still_writes_for_an_interrupted_leader_is_in_no_other_group() -> None:
    """Files of the abandoned instant would count as those of the next one."""
    threads, writes, led = Threads(), threading.Event(), threading.Event()
    committer, real = threads.committer, threads.committer._wait_for
    bulk = WriteOperation.BULK_INSERT

    def interrupted(_: object) -> None:
        committer._wait_for = real  # type: ignore[method-assign]
        assert writes.wait(60)
        raise Interrupted

    def next_leader() -> CommitResult:
        try:
            return threads.write(row("b", "y", 1), operation=bulk)()
        finally:
            led.set()

    def slow() -> None:
        if writes.is_set():
            wait_for(led.is_set)
            return
        writes.set()
        (mine,) = [one for one in committer._waiting if one.thread == threading.get_ident()]
        wait_for(lambda: led.is_set() or mine.phase is not None)

    committer._wait_for = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        threads.first(
            threads.write(row("a", "x", 1), operation=bulk),
            next_leader,
            threads.write(row("c", "z", 1), acts=[slow, slow], operation=bulk),
        )
    answers = threads.answers()
    rollback_dead_writers(threads.table.context)
    assert rows_of(threads.table, "id") == [("b",), ("c",)]
    assert [answer.rows_inserted for answer in answers] == [1, 1]


@pytest.mark.spec("GRP-6")
@pytest.mark.parametrize(
    "how", [OutcomeUnknownError("no answer"), Interrupted()], ids=["lost", "interrupted"]
)
def test_a_member_left_out_of_a_group_of_unknown_outcome_is_written_later(
    how: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, real = Threads(), group_write.commit_write
    threads.write(row("a", "x", 0))()

    def once(*asked: Any) -> Any:
        monkeypatch.setattr(group_write, "commit_write", real)
        real(*asked)
        raise how

    monkeypatch.setattr(group_write, "commit_write", once)
    with pytest.raises(type(how)):
        threads.first(
            *[threads.write(row(*one)) for one in (("a", "x", 1), ("a", "x", 2), ("b", "y", 1))]
        )
    conflicting, together = threads.clock.started
    assert conflicting.result().group == 1, "it is not a member of that instant"
    with pytest.raises(OutcomeUnknownError):
        together.result()
    assert rows_of(threads.table, "id", "v") == [("a", 2), ("b", 1)]


def test_a_storage_failure_is_raised_for_each_member() -> None:
    threads = Threads(storage=WithoutSpace(MemoryStorage()))
    with pytest.raises(StorageUnavailableError) as leader_error:
        threads.first(threads.write(row("a", "x", 1)), threads.write(row("b", "y", 1)))
    with pytest.raises(StorageUnavailableError) as followed:
        threads.clock.started[0].result()
    assert followed.value is not leader_error.value
    assert followed.value.fields == leader_error.value.fields
    assert leftovers(threads.table) == []


def test_an_interrupted_follower_leaves_nothing_in_the_group() -> None:
    threads = Threads()

    def interrupt() -> None:
        raise Interrupted

    one = threads.first(
        threads.write(row("a", "x", 1)),
        threads.write(row("b", "y", 1), acts=[interrupt]),
        threads.write(row("c", "z", 1)),
    )
    with pytest.raises(Interrupted):
        threads.clock.started[0].result()
    assert (one.group, threads.clock.started[1].result().group) == (2, 2)
    assert rows_of(threads.table, "id") == [("a",), ("c",)]
    assert leftovers(threads.table) == []


def test_a_group_waits_for_threads_that_have_just_got_their_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the fastest of the returning threads would lead every second group alone."""
    monkeypatch.setattr(group_commit, "PATIENCE", 0.0001)  # any machine returns by then
    table: TableReader = new_table(limits=BRISK, clock=SystemClock())
    placed: list[int] = []
    committer = GroupCommitter(table.context, writes_max=16)

    def write(key: str, early: Callable[[], object] | None = None) -> CommitResult:
        inner = LocalWorkload(table.context.ports, as_table([row(key, key, 1)]))
        workload: Any = Meddled(inner, early=early)
        return committer.write(planned(table, WriteOperation.UPSERT), workload)

    def wait_for_second_write() -> None:
        placed.append(1)
        wait_for(lambda: len(committer._waiting) == 2)

    def second() -> CommitResult:
        wait_for(lambda: bool(placed))
        return write("b")

    other = start_in_background(second)
    assert write("a", wait_for_second_write).group == 1
    assert write("c").group == 2
    assert other.result().group == 2


@pytest.mark.spec("GRP-3")
def test_an_error_before_members_are_chosen_is_raised_for_all_waiting_writes() -> None:
    """Otherwise each write would wait for the same silent storage, one after the other."""
    table: TableReader = new_table(limits=BRISK, clock=SystemClock())
    tried: list[int] = []

    def before() -> None:
        tried.append(1)
        wait_for(lambda: len(committer._waiting) == 3)
        raise StorageUnavailableError("gone")

    committer = GroupCommitter(table.context, writes_max=16, before=before)

    def write(key: str) -> str:
        inner = LocalWorkload(table.context.ports, as_table([row(key, key, 1)]))
        with pytest.raises(StorageUnavailableError) as caught:
            committer.write(planned(table, WriteOperation.UPSERT), inner)
        return caught.value.message

    others = [start_in_background(partial(write, key)) for key in "bc"]
    assert [write("a"), *(one.result() for one in others)] == ["gone"] * 3
    assert tried == [1]


def test_a_member_gets_its_result_before_the_markers_are_deleted() -> None:
    answered: list[str] = []

    class Slow(Far):
        def delete_folder(self, folder: str) -> None:
            wait_for(lambda: bool(answered))
            self.inner.delete_folder(folder)

    table: TableReader = new_table(Slow(MemoryStorage()), limits=BRISK, clock=SystemClock())

    def both_wait() -> None:
        wait_for(lambda: len(committer._waiting) == 2)

    committer = GroupCommitter(table.context, writes_max=16, before=both_wait)

    def write(key: str) -> CommitResult:
        inner = LocalWorkload(table.context.ports, as_table([row(key, key, 1)]))
        result = committer.write(planned(table, WriteOperation.UPSERT), inner)
        answered.append(key)
        return result

    other = start_in_background(lambda: write("b"))
    assert write("a").group == 2
    assert other.result().group == 2
    assert leftovers(table) == []


def test_many_threads_lose_no_row() -> None:
    table: TableReader = new_table(limits=BRISK)
    committer = GroupCommitter(table.context, writes_max=16)

    def write(number: int) -> CommitResult:
        rows = as_table([row(f"k{number}", f"p{number % 8}", number), row("hot", "h", number)])
        mine = rows if number % 4 == 0 else rows.slice(0, 1)
        plan = planned(table, WriteOperation.UPSERT, batch_id=f"s/{number}")
        return committer.write(plan, LocalWorkload(table.context.ports, mine))

    with ThreadExecutor(8, events=Heard()) as threads:
        results = threads.map(write, list(range(32)))
    assert len(rows_of(table, "id")) == 33
    sizes = Counter(each.requested_time for each in results)
    assert all(sizes[each.requested_time] == each.group for each in results)
    assert leftovers(table) == []

"""Commits on an object store: the lock, the waiting line and the order of slots (PAR-1, SLOT-1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.timeline.engine import BRISK, Behind, Far, StillClock, new_table, opened, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import commit_by, commit_in_section, write_at
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.commit_lock import CommitSection
from timeline.commit.object_store import ObjectStoreCommit
from timeline.commit.protocol import CommitProtocol
from timeline.commit.section import apply_pending_slots, open_commit, protocol_of
from timeline.commit_log import CommitLog
from timeline.context import TableContext, TableLimits
from timeline.errors import StorageUnavailableError
from timeline.model.file_names import TIMELINE, slot_path
from timeline.model.instant import Action
from timeline.model.instant_time import Residue
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import LockSharing
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.snapshot import ActiveTimeline
from timeline.system import ThreadExecutor

ROWS = [{"id": "a", "p": "x", "ts": 1, "v": 1}]
RT = "20260102030405{:03}"
FREE = replace(BRISK, publish_lock=CommitLockMode.NONE)


class InTurn(ThreadExecutor):
    """Runs concurrent calls one after the other."""

    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return [call() for call in calls]


class Leases:
    """A lock that counts its holders."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.held = inner, 0
        self.is_fifo = False
        self.is_shareable = False
        self.had: list[str] = []
        self.asked: list[LockSharing] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def acquire(self, purpose: str) -> Any:
        self.held += 1
        self.had.append(purpose)
        return _Lease(self.inner.acquire(purpose), self)

    def acquire_while(
        self, _wanted: Callable[[], bool], purpose: str, sharing: LockSharing = LockSharing.NO
    ) -> Any:
        self.asked.append(sharing)
        return self.acquire(purpose)


class _Lease(Behind):
    def __init__(self, inner: Any, lock: Leases) -> None:
        super().__init__(inner)
        self.lock = lock
        self.is_shared = lock.is_shareable

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self.lock.held -= 1
        self.inner.release()


def test_a_failed_refresh_during_lock_acquisition_releases_the_lock() -> None:
    class Silent(Behind):
        failing = False

        def names(self, folder: str) -> list[str]:
            if self.failing:
                raise StorageUnavailableError("gone")
            return list(self.inner.names(folder))

    base = MemoryStorage()
    storage = Silent(base)
    table = opened(new_table(Far(base)), storage=Far(storage))
    upsert(table, ROWS)
    lock = Leases(table.context.ports.lock)
    ports = replace(table.context.ports, lock=lock, executor=InTurn(1))
    context = replace(table.context, ports=ports)
    storage.failing = True
    with pytest.raises(StorageUnavailableError):
        apply_pending_slots(context, "test")
    assert lock.held == 0


def write_commit(context: TableContext) -> CommitProtocol:
    return open_commit(context, "test", write_at(RT.format(1)))


def noop(context: TableContext) -> Callable[[CommitSection], Slot]:
    def decide(section: CommitSection) -> Slot:
        time = section.draw_time(context, Residue.SLOT_REQUESTED)
        return section.next_slot(context, SlotKind.NOOP, Action.COMMIT, time, nonce="n" * 32)

    return decide


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("LOCK-1")
@pytest.mark.spec("UNK-2")
@pytest.mark.parametrize("limits", [FREE, BRISK], ids=["no lock", "a lock had together"])
@pytest.mark.parametrize("writes", [False, True], ids=["service", "write"])
def test_a_lost_slot_is_read_in_the_round_of_the_next_refresh(
    writes: bool, limits: TableLimits
) -> None:
    base = MemoryStorage()
    table = new_table(Far(base), limits=FREE)
    upsert(table, ROWS)
    storage = RecordingStorage(Far(base))
    mine = opened(table, storage=storage, limits=limits)
    lock = Leases(mine.context.ports.lock)
    lock.is_shareable = True
    ports = replace(mine.context.ports, executor=InTurn(1), lock=lock)
    context = replace(mine.context, ports=ports)
    object.__setattr__(context.commit_log, "_world", ports)
    first = noop(context)
    commit = ObjectStoreCommit(context, "test", write_at(RT.format(1)) if writes else None)
    heads: list[int] = []

    def first_slot_is_lost(section: CommitSection) -> Slot:
        heads.append(section.head)
        if len(heads) == 1:
            upsert(opened(table, limits=FREE), ROWS)
            storage.forget()
        return first(section)

    slot, lost = commit_by(commit, first_slot_is_lost)
    assert slot is not None
    assert (lost, heads, slot.number) == (1, [1, 2], 3)
    asked = storage.operations()
    [taken] = [at for at, text in enumerate(asked) if text == f"create {slot_path(2)}"]
    sent = asked.index(f"create {slot_path(3)}")
    between = [text for text in asked[taken + 1 : sent] if not text.endswith(".properties")]
    assert sorted(between) == [
        f"names {TIMELINE}",
        f"read {slot_path(2)}",
        f"read {slot_path(3)}",
    ], "one refresh, which also reads the lost slot"


class Chain:
    """A commit log that grows by a given number of slots at each refresh."""

    def __init__(self, *grows: int, busy: bool = True) -> None:
        self.known_head, self.is_contended, self.grows = 10, busy, list(grows)
        self.refreshes = 0

    def head(self) -> int:
        self.refreshes += 1
        self.known_head += self.grows.pop(0) if self.grows else 0
        return self.known_head

    def between(self, _after: int, _last: int) -> list[Slot]:
        return []

    known_between = between

    def read(self, _number: int) -> None:
        return None

    newest_own_slot = read

    def newest_known(self, _head: int) -> list[Slot]:
        return []


def line(
    commit_log: Chain, *, started_write: str | None = RT.format(500)
) -> tuple[ObjectStoreCommit, StillClock]:
    clock = StillClock()
    base = MemoryStorage()
    table = new_table(base, clock=clock)
    ports = replace(table.context.ports, storage=Far(base), clock=clock)
    context: Any = replace(table.context, ports=ports, commit_log=commit_log)
    write = None if started_write is None else write_at(started_write)
    return ObjectStoreCommit(context, "test", write), clock


def does_wait(
    commit: ObjectStoreCommit, head: int, timeline: ActiveTimeline, *, lease: Any = None
) -> bool:
    section: Any = SimpleNamespace(head=head, timeline=timeline, lease=lease)
    return commit._wait_before_slot(section)


def behind(front: int) -> ActiveTimeline:
    """Return a timeline with this many writes that began before mine, and one that began later."""
    names = [f"{RT.format(one)}.inflight" for one in (*range(front), 999)]
    asked = [f"{RT.format(one)}.commit.requested" for one in (*range(front), 500, 999)]
    return ActiveTimeline.of([*names, *asked, f"{RT.format(500)}.inflight"])


@pytest.mark.parametrize(("front", "waits"), [(0, False), (2, False), (3, True), (9, True)])
def test_on_a_high_latency_store_the_writer_that_began_first_commits_first(
    front: int, waits: bool
) -> None:
    commit_log = Chain(*[1] * front)
    mine, clock = line(commit_log)
    assert does_wait(mine, 10, behind(front)) is waits
    if waits:
        assert commit_log.known_head == 10 + front - 2, (
            "two of the writers ahead may still not have committed"
        )
    else:
        assert (commit_log.refreshes, clock.steady) == (0, 5 * front), (
            "later than the writers ahead"
        )


def test_a_commit_waits_for_no_writer_where_none_commits() -> None:
    commit_log = Chain(busy=False)
    mine, clock = line(commit_log)
    assert does_wait(mine, 10, behind(9)) is False
    assert (commit_log.refreshes, clock.steady) == (0, 0)


def test_a_writer_that_began_long_after_the_others_does_not_wait_for_them() -> None:
    commit_log = Chain(*[1] * 9)
    mine, clock = line(commit_log, started_write="20260102030415" + "500")  # ten seconds after them
    assert does_wait(mine, 10, behind(9)) is False
    assert (commit_log.refreshes, clock.steady) == (0, 5), "the writer that began later"


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_write_that_holds_the_lock_alone_does_not_wait_for_writers(is_shared: bool) -> None:
    mine, _ = line(Chain(*[1] * 9))
    lease = SimpleNamespace(is_shared=is_shared)
    assert does_wait(mine, 10, behind(9), lease=lease) is is_shared


def test_a_table_service_does_not_wait_for_writers() -> None:
    commit_log = Chain(*[1] * 9)
    service, clock = line(commit_log, started_write=None)
    assert does_wait(service, 10, behind(9)) is False
    assert (commit_log.refreshes, clock.steady) == (0, 0)


def test_a_write_that_a_known_slot_rejects_does_not_wait_for_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ObjectStoreCommit, "_is_rejected", lambda _: True)
    commit_log = Chain(*[1] * 9)
    mine, clock = line(commit_log)
    assert does_wait(mine, 10, behind(9)) is False
    assert (commit_log.refreshes, clock.steady) == (0, 0)


@pytest.mark.spec("LOCK-1")
def test_a_write_keeps_its_shared_lease_while_it_waits_and_is_validated_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = [True, True, False]
    refreshed: list[int] = []

    def refresh(commit: CommitProtocol, lease: Any) -> CommitSection:
        refreshed.append(lock.held)
        return plain_refresh(commit, lease)

    plain_refresh = CommitProtocol.refresh
    monkeypatch.setattr(CommitProtocol, "refresh", refresh)
    monkeypatch.setattr(ObjectStoreCommit, "_wait_before_slot", lambda *_: waits.pop(0))
    table = new_table(Far(MemoryStorage()))
    lock = Leases(table.context.ports.lock)
    lock.is_shareable = True
    context = replace(table.context, ports=replace(table.context.ports, lock=lock))
    validated: list[int] = []

    def decide(section: CommitSection) -> Slot:
        validated.append(section.head)
        return noop(context)(section)

    slot, lost = commit_by(write_commit(context), decide)
    assert slot is not None
    assert (lost, refreshed, validated) == (0, [1, 1, 1], [0])
    assert (len(lock.asked), lock.held) == (1, 0)


@pytest.mark.spec("UNK-5")
def test_a_lost_slot_is_reported_although_the_concurrent_refresh_fails() -> None:
    class Silent(Behind):
        silent = 0

        def names(self, folder: str) -> list[str]:
            if self.silent:
                self.silent -= 1
                raise StorageUnavailableError("gone")
            return list(self.inner.names(folder))

    base = MemoryStorage()
    table = new_table(Far(base), limits=FREE)
    upsert(table, ROWS)
    storage = Silent(base)
    mine = opened(table, storage=Far(storage), limits=FREE)
    first = noop(mine.context)
    heads: list[int] = []

    def first_slot_is_lost(section: CommitSection) -> Slot:
        heads.append(section.head)
        if len(heads) == 1:
            upsert(opened(table, limits=FREE), ROWS)
            storage.silent = 1
        return first(section)

    slot, lost = commit_in_section(mine.context, "test", first_slot_is_lost)
    assert slot is not None
    assert (lost, heads, slot.number, storage.silent) == (1, [1, 2], 3, 0)


@pytest.mark.spec("HB-4")
def test_writers_ahead_that_do_not_commit_are_not_waited_for() -> None:
    commit_log = Chain()  # all of them died, or write for an hour
    mine, clock = line(commit_log)
    assert does_wait(mine, 10, behind(9)) is True
    assert does_wait(mine, 10, behind(9)) is False, "the commit log did not grow"
    assert clock.steady < 100


def test_a_writer_in_a_commit_section_waits_for_a_bounded_number_of_others() -> None:
    commit_log = Chain(*[1] * 1_000)
    mine, _ = line(commit_log)
    waited = [does_wait(mine, 10 + one, behind(9)) for one in range(20)]
    assert waited == [True] * 16 + [False] * 4


@pytest.mark.spec("LOCK-1")
@pytest.mark.parametrize("foreign", list(ForeignWriters))
@pytest.mark.parametrize("busy", [True, False])
def test_a_shared_lock_is_acquired_at_once_and_before_the_waiting_line(
    monkeypatch: pytest.MonkeyPatch, busy: bool, foreign: ForeignWriters
) -> None:
    order: list[str] = []

    def waits(_line: ObjectStoreCommit, *_: object) -> bool:
        order.append("line")
        return False

    monkeypatch.setattr(ObjectStoreCommit, "_wait_before_slot", waits)
    monkeypatch.setattr(CommitLog, "is_contended", busy)
    table = new_table(Far(MemoryStorage()))
    lock = Leases(table.context.ports.lock)
    lock.is_shareable = True
    context = replace(
        table.context,
        ports=replace(table.context.ports, lock=lock),
        limits=replace(table.context.limits, foreign_writers=foreign),
    )
    slot, lost = commit_by(write_commit(context), noop(context))
    assert slot is not None
    assert (lost, lock.held) == (0, 0)
    if foreign is ForeignWriters.EXPECTED:
        assert lock.asked == [], "with another engine no lock is shared"
    else:
        assert lock.asked == [LockSharing.START if busy else LockSharing.JOIN]
        assert order == ["line"]
    assert protocol_of(context).shares_lock() is (foreign is ForeignWriters.NONE)


@pytest.mark.spec("LOCK-1")
def test_on_a_local_store_the_lock_is_never_shared() -> None:
    table = new_table(MemoryStorage())
    lock = Leases(table.context.ports.lock)
    lock.is_shareable = True
    context = replace(table.context, ports=replace(table.context.ports, lock=lock))
    assert commit_by(write_commit(context), noop(context))[0] is not None
    assert lock.asked == []
    assert not protocol_of(context).shares_lock()


@pytest.mark.parametrize("shared", [ForeignWriters.NONE, ForeignWriters.EXPECTED])
def test_the_commit_log_is_read_while_a_writer_waits_for_the_lock_and_not_after_that(
    monkeypatch: pytest.MonkeyPatch, shared: ForeignWriters
) -> None:
    class Beats(InTurn):
        work: Callable[[], None]

        def every(self, interval_ms: int, work: Callable[[], None]) -> Any:
            self.work = work
            return super().every(60_000, work)

    class Waits(Leases):
        def acquire(self, purpose: str) -> Any:
            reads.clear()
            beats.work()
            waited.extend(reads)
            return super().acquire(purpose)

    reads: list[str] = []
    waited: list[str] = []
    beats = Beats(1)
    table = new_table(Far(MemoryStorage()))
    real = CommitLog.head

    def head(commit_log: CommitLog) -> int:
        reads.append("head")
        return real(commit_log)

    monkeypatch.setattr(CommitLog, "head", head)
    ports = replace(table.context.ports, lock=Waits(table.context.ports.lock), executor=beats)
    limits = replace(table.context.limits, foreign_writers=shared)
    context = replace(table.context, ports=ports, limits=limits)
    with open_commit(context, "test")._acquire():
        reads.clear()
        beats.work()
        assert (waited, reads) == (["head"], [])


class Taken(Leases):
    """A lock that is free once ``free`` is set, or once its client stops waiting."""

    free = False

    def acquire_while(
        self, wanted: Callable[[], bool], purpose: str, sharing: LockSharing = LockSharing.NO
    ) -> Any:
        for _ in range(100):
            if self.free:
                return self.acquire(purpose)
            if not wanted():
                return None
        raise AssertionError("it was wanted for ever")


def section_behind_a_taken_lock(
    decide: Callable[[CommitSection], Slot | None], *, conflicts: list[bool]
) -> tuple[Slot | None, int, Taken]:
    """Run a commit section of a write with these conflicts, while another writer holds the lock."""
    table = new_table(Far(MemoryStorage()))
    lock = Taken(table.context.ports.lock)
    context = replace(table.context, ports=replace(table.context.ports, lock=lock))

    def is_rejected() -> bool:
        return conflicts.pop(0) if conflicts else False

    def decides(section: CommitSection) -> Slot | None:
        lock.free = True
        return decide(section)

    commit = write_commit(context)
    object.__setattr__(commit, "_is_rejected", is_rejected)
    slot, lost = commit_by(commit, decides)
    return slot, lost, lock


@pytest.mark.spec("PUB-7")
def test_a_writer_that_new_commits_reject_does_not_wait_for_the_lock() -> None:
    slot, _, lock = section_behind_a_taken_lock(lambda _: None, conflicts=[False, False, True])
    assert slot is None
    assert lock.free, "the refresh happened while another writer held the lock"
    assert lock.held == 0


@pytest.mark.spec("PUB-7")
def test_a_writer_that_left_the_lock_queue_without_a_conflict_commits_under_the_lock() -> None:
    """The write sets conflict, but the rows do not."""
    asked: list[int] = []

    def decide(section: CommitSection) -> Slot:
        asked.append(section.head)
        time = section.draw_time(sections.context, Residue.SLOT_REQUESTED)
        return section.next_slot(
            sections.context, SlotKind.NOOP, Action.COMMIT, time, nonce="n" * 32
        )

    sections = new_table(Far(MemoryStorage()))
    lock = Taken(sections.context.ports.lock)
    limits = replace(BRISK, retry=replace(BRISK.retry, commit_attempts_max=1))
    ports = replace(sections.context.ports, lock=lock)
    context = replace(sections.context, ports=ports, limits=limits)

    def decides(section: CommitSection) -> Slot:
        lock.free = True
        return decide(section)

    commit = write_commit(context)
    object.__setattr__(commit, "_is_rejected", lambda: True)
    slot, lost = commit_by(commit, decides)
    assert slot is not None
    assert (asked, lost, lock.held) == ([0, 0], 0, 0)
    assert lock.had == ["test"], "the slot was taken under the lock"

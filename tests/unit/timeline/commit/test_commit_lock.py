"""A retry that keeps the commit lock on a high-latency store: the known slots and the reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.commit.test_object_store import InTurn, Leases
from tests.unit.timeline.engine import Far, StillClock, heard, limited, new_table, opened, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import commit_by, write_at
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.commit_lock import CommitSection, is_commit_lock_kept, keep_commit_lock
from timeline.commit.object_store import ObjectStoreCommit
from timeline.commit_log import CommitLog
from timeline.errors import LeaseLostError
from timeline.model.file_names import TIMELINE

START = [{"id": "a", "p": "x", "ts": 1, "v": 1}, {"id": "b", "p": "x", "ts": 1, "v": 1}]


def changed(ts: int) -> list[dict[str, Any]]:
    return [{"id": "a", "p": "x", "ts": ts, "v": ts}]


class Beats(InTurn):
    """An executor whose background work is run by the test."""

    def __init__(self) -> None:
        super().__init__(1)
        self.works: list[Callable[[], None]] = []

    def every(self, interval_ms: int, work: Callable[[], None]) -> Any:
        self.works.append(work)
        return super().every(60_000, work)


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("PUB-11")
@pytest.mark.parametrize("far", [True, False])
def test_on_a_high_latency_store_a_retry_knows_the_commit_log_when_it_gets_the_lock(
    far: bool,
) -> None:
    """A read after the lock is taken would make all other writers wait for a round or more."""

    class Waits(Leases):
        def acquire(self, purpose: str) -> Any:
            upsert(other, changed(2))
            for work in beats.works:
                work()
            return super().acquire(purpose)

    base, beats = MemoryStorage(), Beats()
    table = new_table(Far(base) if far else base)
    upsert(table, START)
    other = opened(table)
    ports = replace(table.context.ports, lock=Waits(table.context.ports.lock), executor=beats)
    before = table.context.commit_log.head()
    with keep_commit_lock(replace(table.context, ports=ports), "redo") as held:
        assert held.commit_log.known_head == (before + 1 if far else before)


@pytest.mark.spec("PUB-1")
@pytest.mark.spec("PUB-11")
@pytest.mark.parametrize("short_ms", [600_000, 0], ids=["held", "not held"])
def test_on_a_high_latency_store_a_kept_lock_needs_one_refresh_between_data_and_slot(
    short_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the lock is kept no other writer commits, so an earlier refresh saves nothing."""
    monkeypatch.setattr(CommitLog, "is_contended", property(lambda _: True))
    base = MemoryStorage()
    table = new_table(Far(base))
    upsert(table, START)
    mine, other = opened(table, limits=limited(lock_short_ms=short_ms)), opened(table)
    object.__setattr__(mine.context.ports, "executor", Beats())  # only the counted calls run
    commit_log, asked = mine.context.commit_log, list[str]()
    head, take = CommitLog.head, CommitLog.take

    def heads(self: CommitLog) -> int:
        if self is commit_log:
            asked.append("look")
        return head(self)

    def takes(self: CommitLog, *args: Any, **named: Any) -> bool:
        if self is commit_log:
            asked.append("slot")
        return take(self, *args, **named)

    real = mine.context.ports.storage.open_output

    def output(path: str) -> Any:
        asked.append("data")
        return real(path)

    monkeypatch.setattr(CommitLog, "head", heads)
    monkeypatch.setattr(CommitLog, "take", takes)
    monkeypatch.setattr(mine.context.ports.storage, "open_output", output, raising=False)
    result = upsert(mine, changed(3), lambda: upsert(other, changed(2)) and None)
    assert result.attempts == 2
    last = len(asked) - 1 - asked[::-1].index("data")
    assert asked[last : asked.index("slot", last)].count("look") == (1 if short_ms else 2)


@pytest.mark.spec("PUB-7")
@pytest.mark.spec("PAR-1")
@pytest.mark.spec("LOCK-1")
@pytest.mark.parametrize("shared", [False, True])
def test_on_a_high_latency_store_a_conflict_while_acquiring_releases_the_lock_before_the_refresh(
    shared: bool,
) -> None:
    """Other writers wait for the lock. Under a shared lock they do not, so the refresh counts."""

    class Late(Leases):
        def acquire(self, purpose: str) -> Any:
            conflicts.append(True)
            return super().acquire(purpose)

    conflicts: list[bool] = []
    held: list[int] = []
    listings: list[str] = []
    storage = RecordingStorage(Far(MemoryStorage()))
    table = new_table(storage, clock=StillClock())  # the wait for the lock takes no time
    lock = Late(table.context.ports.lock)
    lock.is_shareable = shared
    context = replace(table.context, ports=replace(table.context.ports, lock=lock))
    storage.forget()

    def decide(_: CommitSection) -> None:
        held.append(lock.held)
        listings.extend(one for one in storage.operations() if one == f"names {TIMELINE}")

    commit = ObjectStoreCommit(context, "test", write_at("20260102030405001"))
    object.__setattr__(commit, "_is_rejected", lambda: bool(conflicts))
    slot, _ = commit_by(commit, decide)
    assert (slot, held, lock.had, lock.held) == (None, [int(shared)], ["test"], 0)
    assert len(listings) == (1 if shared else 2)


def held_table() -> tuple[TableReader, Beats]:
    table, beats = new_table(), Beats()
    object.__setattr__(table.context.ports, "executor", beats)
    return table, beats


@pytest.mark.spec("PAR-1")
def test_a_kept_lock_is_the_tables_own_lock_and_exclusive() -> None:
    table, _ = held_table()
    own = table.context.ports.lock
    assert not is_commit_lock_kept(table.context)
    with keep_commit_lock(table.context, "redo") as held:
        lock = held.ports.lock
        assert is_commit_lock_kept(held)
        assert not is_commit_lock_kept(table.context)
        assert (lock.provider, lock.identity) == (own.provider, own.identity)
        assert (lock.is_fifo, lock.is_shareable) == (True, False)
        with lock.acquire("turn") as lease:
            assert own.holder() is not None
            assert lease.is_shared is False
            assert lease.has_time_for_request()
            lease.assert_held()
        assert is_commit_lock_kept(held), "a section without a slot keeps the lock"
        assert lock.acquire_while(lambda: False, "turn") is not None, (
            "the holder waits for no writer"
        )
    assert own.holder() is None
    assert [one["purpose"] for one in heard(table, "write.queued")] == ["redo"]


@pytest.mark.spec("PAR-1")
def test_a_commit_section_with_a_slot_releases_the_kept_lock() -> None:
    table, _ = held_table()
    own = table.context.ports.lock
    with keep_commit_lock(table.context, "redo") as held:
        lease = held.ports.lock.acquire("turn")
        lease.release()
        assert not is_commit_lock_kept(held)
        assert own.holder() is None
        with pytest.raises(LeaseLostError):
            lease.assert_held()
        with held.ports.lock.acquire("another turn"):
            assert own.holder() is not None, "the lock is requested as usual"
        assert own.holder() is None


@pytest.mark.spec("PAR-1")
def test_a_kept_lock_is_released_after_its_time_except_in_a_commit_section() -> None:
    table, beats = held_table()
    own = table.context.ports.lock
    with keep_commit_lock(table.context, "redo", ms_max=7) as held:
        give_back = beats.works[-1]
        with held.ports.lock.acquire("turn"):
            give_back()
            assert is_commit_lock_kept(held)
        give_back()
        give_back()
        assert not is_commit_lock_kept(held)
        assert own.holder() is None
    released = [(one["purpose"], one["held_ms"]) for one in heard(table, "write.queue_given_back")]
    assert released == [("redo", 7)]


@pytest.mark.spec("PAR-1")
def test_a_kept_lock_without_a_limit_has_no_timer() -> None:
    table, beats = held_table()
    with keep_commit_lock(table.context, "timed", ms_max=7):
        timed = len(beats.works)
    beats.works.clear()
    with keep_commit_lock(table.context, "redo"):
        assert len(beats.works) == timed - 1

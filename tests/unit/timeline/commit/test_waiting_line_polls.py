"""What a writer in the waiting line reads, how often, and the state that it gets (PUB-12)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.timeline.engine import (
    BRISK,
    Far,
    StillClock,
    heard,
    opened,
    upsert,
)
from tests.unit.timeline.line import FREE, LOOKS_MAX, Joined, Line, row
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.begin import begin
from timeline.commit.commit_lock import BaseState
from timeline.commit.markers import create_marker
from timeline.commit.section import protocol_of
from timeline.commit.waiting_line import WaitResult, wait_in_line
from timeline.model.commit_metadata import Access, WriteSet
from timeline.model.file_names import SLOTS, TIMELINE, IOType
from timeline.model.instant import Action
from timeline.model.instant_time import WallMs, instant_time
from timeline.ports.ports import LockSharing
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.rules.conflicts import NoConflict, Rejected
from timeline.system import ThreadExecutor


class Slow(Far):
    """A storage on which a listing of the timeline takes time."""

    clock: StillClock
    takes_ms = 0

    def names(self, folder: str) -> Any:
        if folder == TIMELINE:
            self.clock.steady += self.takes_ms
        return self.inner.names(folder)


class WaitingWriter:
    """A started write behind some older writes of its file group, which do nothing."""

    def __init__(self, in_front: int, *, takes_ms: int = 0, lock: bool = False) -> None:
        self.line = line = Line()
        slow = Slow(line.base)
        slow.clock, slow.takes_ms = line.clock, takes_ms
        self.storage = RecordingStorage(slow)
        limits = BRISK if lock else FREE
        me = opened(line.mine, storage=self.storage, limits=limits, clock=line.clock)
        self.ports = replace(me.context.ports, executor=ThreadExecutor(1))
        if lock:
            self.lock = Joined(self.ports.lock)
            self.ports = replace(self.ports, lock=self.lock)
        self.context = replace(me.context, ports=self.ports)
        upsert(line.other("before"), [row("b", 2)])
        slot = self.context.commit_log.read(self.context.commit_log.head())
        assert slot is not None
        [self.touched] = slot.write_set.file_groups
        line.clock.wall += 10_000
        self.front = [instant_time(WallMs(line.clock.wall - 5_000 + n)) for n in range(in_front)]
        for time in self.front:
            for state in ("commit.requested", "inflight"):
                line.base.create(f"{TIMELINE}/{time}.{state}", b"")
        self.started_write = begin(self.context, Action.COMMIT)
        self.storage.forget()
        line.clock.slept.clear()

    def marks(self, name: str, partition: str = "x", *, of: int = -1) -> None:
        create_marker(self.line.base, self.front[of], partition, name, IOType.MERGE)

    def base_file(self, file_id: str = "") -> str:
        return f"{file_id or self.touched.file_group.file_id}_0-1-0_{self.front[-1]}.parquet"

    def wait(self) -> WaitResult | None:
        write_set = WriteSet(file_groups=(self.touched,))
        base_state = BaseState.by(self.started_write.snapshot)
        return wait_in_line(
            self.context, self.started_write, write_set, base_state, logs_may_conflict=False
        )

    def asked(self, *parts: str) -> list[str]:
        return [one for one in self.storage.operations() if all(part in one for part in parts)]


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(
    ("in_front", "takes_ms", "pause_ms"),
    [(1, 20, 5), (2, 20, 5), (3, 20, 25), (4, 20, 45), (9, 20, 105), (4, 0, 5)],
)
def test_a_writer_far_back_in_the_waiting_line_polls_less_often(
    in_front: int, takes_ms: int, pause_ms: int
) -> None:
    waiting = WaitingWriter(in_front, takes_ms=takes_ms)
    waiting.line.clock.steady += 1_000
    before_ms = waiting.line.clock.steady
    assert waiting.wait() is not None
    assert waiting.line.clock.slept == [pause_ms] * LOOKS_MAX
    [waited] = heard(waiting.context, "write.place_came")
    assert waited["wait_ms"] == waiting.line.clock.steady - before_ms


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(("in_front", "listings"), [(1, LOOKS_MAX), (2, 1), (3, 1)])
def test_the_next_writer_in_line_lists_the_timeline_at_each_poll_and_others_once_at_the_end(
    in_front: int, listings: int
) -> None:
    waiting = WaitingWriter(in_front)
    waited_state = waiting.wait()
    assert waited_state is not None
    assert isinstance(waited_state.verdict, NoConflict)
    assert len(waiting.asked("names", TIMELINE)) == listings


@pytest.mark.spec("PUB-12")
def test_a_poll_reads_the_next_slot_and_the_last_one() -> None:
    waiting = WaitingWriter(3)
    waiting.wait()
    head = waiting.context.commit_log.known_head
    asked = [int(one.rpartition("/")[2]) for one in waiting.asked("read", SLOTS)]
    assert asked.count(head + 1) >= LOOKS_MAX
    assert asked.count(head + 2) >= LOOKS_MAX
    assert max(asked) == head + 2


@pytest.mark.spec("PUB-12")
def test_a_writer_stops_polling_when_no_writer_is_ahead_in_line() -> None:
    waiting = WaitingWriter(1)

    def restored_away() -> None:
        for state in ("commit.requested", "inflight"):
            waiting.line.base.delete(f"{TIMELINE}/{waiting.front[0]}.{state}")

    waiting.line.clock.meanwhile = restored_away
    assert waiting.wait() is not None
    assert len(waiting.line.clock.slept) == 1
    assert len(waiting.asked("names", TIMELINE)) == 1


@pytest.mark.spec("PUB-12")
def test_a_writer_with_only_a_requested_file_is_not_waited_for() -> None:
    waiting = WaitingWriter(1)
    waiting.line.base.delete(f"{TIMELINE}/{waiting.front[0]}.inflight")
    waiting.context.active()
    assert waiting.wait() is None
    assert waiting.line.clock.slept == []


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(("in_front", "asks"), [(1, True), (2, True), (3, False)])
def test_a_writer_near_the_head_of_the_line_reads_the_base_file_of_the_writer_ahead(
    in_front: int, asks: bool
) -> None:
    waiting = WaitingWriter(in_front)
    mine = waiting.base_file()
    waiting.marks(mine)
    waiting.marks(waiting.base_file("11111111-2222-3333-4444-555555555555-0"))
    waiting.marks(mine, "y")
    waiting.marks(f".{waiting.touched.file_group.file_id}_{waiting.front[0]}.log.1_0-1-0")
    waiting.wait()
    opened = waiting.asked("open", ".parquet")
    assert {one.split()[-1] for one in opened} == ({f"x/{mine}"} if asks else set())
    if asks:
        assert len(opened) == LOOKS_MAX - 1, "the file is missing, so it is read again"


@pytest.mark.spec("PUB-12")
def test_a_file_of_the_writer_ahead_is_read_once() -> None:
    waiting = WaitingWriter(1)
    waiting.marks(waiting.base_file())
    waiting.line.base.create(f"x/{waiting.base_file()}", b"content")
    waiting.wait()
    assert len(waiting.asked("open", ".parquet")) == 1


@pytest.mark.spec("LOCK-1")
@pytest.mark.parametrize(("in_front", "asks"), [(1, LOOKS_MAX), (2, 1), (3, 1)])
def test_a_shared_lock_is_acquired_along_with_the_polls(in_front: int, asks: int) -> None:
    waiting = WaitingWriter(in_front, lock=True)
    waiting.wait()
    assert waiting.lock.asked == [(False, LockSharing.START)] * asks, (
        "the client does not wait for the lock"
    )
    assert waiting.ports.lock.inner.holder() is None, "an acquired lock is released"


def test_no_lock_is_acquired_in_line_without_a_shared_lock() -> None:
    waiting = WaitingWriter(1, lock=True)
    waiting.lock.is_shareable = False
    waiting.wait()
    assert waiting.lock.asked == []


def test_a_polled_state_is_valid_for_as_long_as_four_polls_take() -> None:
    waiting = WaitingWriter(1, takes_ms=20)
    waited_state = waiting.wait()
    assert waited_state is not None
    waiting.line.clock.steady += 80
    assert waited_state.timeline_state(waiting.context) is waited_state.read
    waiting.line.clock.steady += 1
    assert waited_state.timeline_state(waiting.context) is None


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(
    ("partition", "is_applied", "verdict"),
    [("x", True, Rejected), ("x", False, None), ("y", True, NoConflict), ("y", False, NoConflict)],
)
def test_a_conflict_with_an_unapplied_slot_is_left_to_the_commit_section(
    partition: str, is_applied: bool, verdict: type | None
) -> None:
    """A write that began later commits during the wait."""
    waiting = WaitingWriter(1)

    def overtaken() -> None:
        done = upsert(waiting.line.other("later"), [row("b", 3, partition)])
        if not is_applied:
            base = waiting.line.base
            [name] = [one for one in base.names(TIMELINE) if f"{done.requested_time}_" in one]
            base.delete(f"{TIMELINE}/{name}")

    waiting.line.clock.meanwhile = overtaken
    waited_state = waiting.wait()
    assert (type(waited_state.verdict) if waited_state else None) is verdict


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize("shares", [True, False])
def test_a_write_waits_in_line_behind_a_shared_lock(shares: bool) -> None:
    waiting = WaitingWriter(1, lock=True)
    waiting.lock.is_shareable = shares
    assert (
        protocol_of(waiting.context).must_wait_in_line(WriteSet(file_groups=(waiting.touched,)))
        is shares
    )


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(
    ("change", "waits"),
    [
        pytest.param({}, True, id="high-latency store without a lock"),
        pytest.param({"publish_lock": CommitLockMode.LOCK}, False, id="a lock orders the writers"),
        pytest.param(
            {"foreign_writers": ForeignWriters.EXPECTED}, False, id="others have no slots"
        ),
    ],
)
def test_a_write_waits_in_line_only_under_these_limits(change: dict[str, Any], waits: bool) -> None:
    waiting = WaitingWriter(1)
    context = replace(waiting.context, limits=replace(FREE, **change))
    assert protocol_of(context).must_wait_in_line(WriteSet(file_groups=(waiting.touched,))) is waits


@pytest.mark.spec("PUB-12")
def test_a_write_does_not_wait_in_line_on_a_local_store() -> None:
    waiting = WaitingWriter(1)
    context = replace(waiting.context, ports=replace(waiting.ports, storage=waiting.line.base))
    write_set = WriteSet(file_groups=(waiting.touched,))
    assert not protocol_of(context).must_wait_in_line(write_set)


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize("access", [Access.NEW, Access.LOG, Access.REPLACE])
def test_only_a_write_that_rewrites_a_base_file_waits_in_line(access: Access) -> None:
    waiting = WaitingWriter(1)
    write_set = WriteSet(file_groups=(replace(waiting.touched, access=access),))
    assert not protocol_of(waiting.context).must_wait_in_line(write_set)

"""
Validate again before a file appears: in mode ``shared`` no slot alone decides (FOR-4, FOR-9).

Java Hudi only takes the lock and never reads a slot. If our writer loses the lock between its slot
and its completed file, Java may validate and commit without seeing the slot. The file would then
appear with a completion time below Java's (hole 24). So the slot contains a digest of the timeline
that its owner validated against, and the process that creates the file validates again. If a
foreign instant appeared since, the slot becomes void.

Only its owner applies a plan, a savepoint or a clean. All three are cheap to make again. A helper
cannot distinguish one that never became visible from one that another engine has removed. A clean
that never became visible has deleted nothing, and its files may be needed by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from timeline.active_timeline import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import LeaseLostError, LockTimeoutError
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.instant import WRITE_ACTIONS, Action, Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.ports.lock import Lease
from timeline.properties.setting_enums import ForeignWriters

__all__ = [
    "ENDED_BY",
    "ForeignWriterWait",
    "assert_lease",
    "foreign_writes_without_snapshot",
    "has_lease",
    "is_ended_by",
    "is_still_valid",
    "may_apply",
    "timeline_digest",
    "without_void",
]

#: Kinds that decide together with their file, and the kind of the slot that ends each of them.
ENDED_BY: Mapping[SlotKind, SlotKind] = {
    SlotKind.COMMIT: SlotKind.VOID,
    SlotKind.PLAN: SlotKind.CANCEL,
    SlotKind.SAVEPOINT: SlotKind.UNSAVEPOINT,
    SlotKind.CLEAN: SlotKind.VOID,
}

_DIGEST_BYTES = 16
#: Cleans and savepoints neither write rows nor refer to a write of ours.
_MATTERING = WRITE_ACTIONS | {Action.ROLLBACK, Action.RESTORE}
#: But a clean deletes files, and a savepoint lists files that must stay.
_MATTERING_TOO: Mapping[SlotKind, frozenset[Action]] = {
    SlotKind.SAVEPOINT: frozenset({Action.CLEAN}),
    SlotKind.CLEAN: frozenset({Action.CLEAN, Action.SAVEPOINT}),
}


def timeline_digest(timeline: ActiveTimeline, slot: Slot) -> str:
    """
    Return a digest of everything that is decided on a timeline except the slot's own instant.

    It covers completed writes, plans and rollbacks; pending writes have decided nothing yet. For a
    savepoint it also covers cleans. For a clean it covers cleans and savepoints, because a clean
    may delete files that a savepoint lists.
    """
    begun = set(timeline.pending_ingestion)
    names = (
        f"{one.requested_time} {one.completion_time}"
        for one in _others(timeline, slot)
        if one not in begun
    )
    return blake2b("\n".join(names).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def is_still_valid(slot: Slot, timeline: ActiveTimeline) -> bool:
    """
    Return whether no foreign instant appeared since the owner refreshed: the file may appear.

    A write that began above the slot's completion time counts as well. It may have read the table
    without the file, and its engine validates only against what completed later.
    """
    if any(one.newest_time > slot.completion_time for one in _others(timeline, slot)):
        return False
    mine = timeline.find(slot.requested_time, slot.action, slot.action.completes_as)
    if mine is not None and mine.completed and mine.completion_time != slot.completion_time:
        return False  # another engine executed the same plan
    return timeline_digest(timeline, slot) == slot.foreign


def is_ended_by(slot: Slot, later: Slot) -> bool:
    """Return whether a later slot ends this one, which decides together with its file."""
    return later.kind is ENDED_BY[slot.kind] and later.requested_time == slot.requested_time


def without_void(newest_first: Iterable[Slot]) -> Iterator[Slot]:
    """Return the slots of a commit log, newest first, without the commits that are void."""
    void = ""
    for slot in newest_first:
        if slot.kind is SlotKind.VOID:
            void = slot.requested_time
        elif slot.kind is SlotKind.COMMIT and slot.requested_time == void:
            void = ""  # slots of another table may lie between the two (SLOT-8)
            continue
        yield slot


def _others(timeline: ActiveTimeline, slot: Slot) -> Iterator[Instant]:
    mattering = _MATTERING | _MATTERING_TOO.get(slot.kind, frozenset())
    for one in timeline.instants:
        if one.action in mattering and one.requested_time != slot.requested_time:
            yield one


def may_apply(context: TableContext, slot: Slot, lease: Lease | None) -> bool:
    """
    Validate again, then check the lock (FOR-3, FOR-4) and the time left for a request (FOR-8).

    Outside: 1 list, 1 read of the lock.
    """
    held = is_still_valid(slot, context.active()) and has_lease(lease)
    return held and (lease is None or lease.has_room())


def assert_lease(lease: Lease | None) -> None:
    """
    Return if the lock is held or none is taken.

    Raises:
        LeaseLostError: The lock was lost.
    """
    if lease is not None:
        lease.assert_held()


def has_lease(lease: Lease | None) -> bool:
    """Return whether ``assert_lease`` does not raise."""
    try:
        assert_lease(lease)
    except LeaseLostError:
        return False
    return True


# ---- Wait until pending writes of other engines have read their base snapshot (FOR-5)
#
# Java Hudi creates the requested file, then reads the table and only then creates the inflight
# file. If our write commits in between with a greater requested time, Java merges from our files
# and writes them under its smaller requested time. Readers order the versions of a file group by
# requested time, so they see our version and lose Java's rows. Java validates only after the last
# completed instant and finds no conflict (hole 23). So in mode ``shared`` a commit waits until all
# instants requested below it are inflight. Writers of ours are included: they are inflight soon,
# and the first requested write never waits.

WAIT_MS_MAX = 60_000
_PAUSE_MS_FIRST = 20
_PAUSE_MS_MAX = 500


def foreign_writes_without_snapshot(
    context: TableContext, timeline: ActiveTimeline, requested_time: InstantTime
) -> tuple[InstantTime, ...]:
    """
    Return pending writes below a requested time that may not have read the table yet.

    Dead writers are left out: they write a heartbeat before the requested file, and will never
    read. Returns none if no other engine is expected. Outside: 1 list if there may be some.
    """
    if context.limits.foreign_writers is not ForeignWriters.EXPECTED:
        return ()
    begun = tuple(
        instant.requested_time
        for instant in timeline.pending_ingestion
        if instant.state is State.REQUESTED and instant.requested_time < requested_time
    )
    dead = instants_with_expired_heartbeat(context.world.storage, begun, context.limits.heartbeat)
    return tuple(time for time in begun if time not in dead)


class ForeignWriterWait:
    """The wait of one commit; it holds no lock, because the awaited writer may need it."""

    def __init__(self, context: TableContext, requested_time: InstantTime) -> None:
        self._context = context
        self._requested_time = requested_time
        self._end_ms: int | None = None

    def wait(self, unread: tuple[InstantTime, ...]) -> None:
        """
        Wait until no instant of ``unread`` remains; each refresh may find others. Outside: lists.

        Raises:
            LockTimeoutError: 60 s passed since the first wait of this commit.
        """
        clock, events = self._context.world.clock, self._context.world.events
        started = clock.monotonic_ms()
        if self._end_ms is None:
            self._end_ms = started + WAIT_MS_MAX
        pause_ms = _PAUSE_MS_FIRST
        while unread:
            if clock.monotonic_ms() >= self._end_ms:
                raise LockTimeoutError(
                    "a writer of another engine has begun and does not start to write; look at "
                    f"it, then write again: {', '.join(unread)}",
                    kind="foreign_begin",
                    requested_time=self._requested_time,
                    waited_for=list(unread),
                )
            clock.sleep_ms(pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
            unread = foreign_writes_without_snapshot(
                self._context, self._context.active(), self._requested_time
            )
        events.emit(
            "publish.begin_awaited",
            rt=self._requested_time,
            wait_ms=clock.monotonic_ms() - started,
        )

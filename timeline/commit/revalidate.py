"""
The second look: beside other engines no slot alone decides that a file appears (FOR-4, FOR-9).

Java Hudi excludes by the lock only and never reads a slot. When the lease of one of ours ends
between its slot and its completed file, Java may judge and publish without having seen it; the
file would then appear with a completion time below what Java decided (hole 24). So the slot
notes what its owner saw, and whoever writes its file looks again: what came since then leaves
nothing but to call the slot void.

A plan, a savepoint or a clean is shown by its owner or never. All are cheap to make again, and a
helper could not tell one that was never shown from one that another engine took away since. A clean
that was never shown has deleted nothing yet, and what it is about to may be needed by now.
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

#: What decides together with its file, and what the slot is that says that it never counted.
ENDED_BY: Mapping[SlotKind, SlotKind] = {
    SlotKind.COMMIT: SlotKind.VOID,
    SlotKind.PLAN: SlotKind.CANCEL,
    SlotKind.SAVEPOINT: SlotKind.UNSAVEPOINT,
    SlotKind.CLEAN: SlotKind.VOID,
}

_DIGEST_BYTES = 16
#: Cleans and savepoints neither write rows nor name a write of ours.
_MATTERING = WRITE_ACTIONS | {Action.ROLLBACK, Action.RESTORE}
#: But a clean takes the files that a savepoint lists.
_MATTERING_TOO: Mapping[SlotKind, frozenset[Action]] = {
    SlotKind.SAVEPOINT: frozenset({Action.CLEAN}),
    SlotKind.CLEAN: frozenset({Action.CLEAN, Action.SAVEPOINT}),
}


def timeline_digest(timeline: ActiveTimeline, slot: Slot) -> str:
    """
    A digest of all that is decided on a timeline, but for the slot's own instant.

    Completed writes, plans and rollbacks; writes under way have decided nothing yet. For a
    savepoint cleans as well, for a clean both: it takes the files that a savepoint lists.
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
    Whether nothing came since the owner of a slot looked, so that its file may appear.

    What was begun above its completion time counts as well: it may have read the table
    without the file, and its engine looks only at what completed later than that.
    """
    if any(one.newest_time > slot.completion_time for one in _others(timeline, slot)):
        return False
    mine = timeline.find(slot.requested_time, slot.action, slot.action.completes_as)
    if mine is not None and mine.completed and mine.completion_time != slot.completion_time:
        return False  # another engine carried the same plan out
    return timeline_digest(timeline, slot) == slot.foreign


def is_ended_by(slot: Slot, later: Slot) -> bool:
    """Whether a later slot says that this one, which decides with its file, never counted."""
    return later.kind is ENDED_BY[slot.kind] and later.requested_time == slot.requested_time


def without_void(newest_first: Iterable[Slot]) -> Iterator[Slot]:
    """The slots of a chain, from the newest down, but for the commits that were called void."""
    void = ""
    for slot in newest_first:
        if slot.kind is SlotKind.VOID:
            void = slot.requested_time
        elif slot.kind is SlotKind.COMMIT and slot.requested_time == void:
            void = ""  # slots of others may lie between the two (SLOT-8)
            continue
        yield slot


def _others(timeline: ActiveTimeline, slot: Slot) -> Iterator[Instant]:
    mattering = _MATTERING | _MATTERING_TOO.get(slot.kind, frozenset())
    for one in timeline.instants:
        if one.action in mattering and one.requested_time != slot.requested_time:
            yield one


def may_apply(context: TableContext, slot: Slot, lease: Lease | None) -> bool:
    """
    The second look, and the lock after it (FOR-3, FOR-4), with time for the request (FOR-8).

    Outside: 1 list, 1 look at the lock.
    """
    held = is_still_valid(slot, context.active()) and has_lease(lease)
    return held and (lease is None or lease.has_room())


def assert_lease(lease: Lease | None) -> None:
    """
    Pass while the lock is held, and where none is taken.

    Raises:
        LeaseLostError: It was lost.
    """
    if lease is not None:
        lease.assert_held()


def has_lease(lease: Lease | None) -> bool:
    """As ``assert_lease``, as an answer."""
    try:
        assert_lease(lease)
    except LeaseLostError:
        return False
    return True


# --------------- Waiting until the writers of other engines have read what they begin from (FOR-5)
#
# Java Hudi requests its instant first, reads the table next, and then goes inflight. Published
# in between, a write of ours with a greater requested time becomes its source: it merges from
# our files and writes them again under its own, smaller time. Readers order the versions of a
# file group by requested time, see ours, and never its rows; Java's check looks only behind
# the last completed instant and finds nothing (hole 23). So whoever publishes beside other
# engines waits until everything requested below it is inflight. Writers of ours are not told
# apart: they are inflight soon, and who was requested first never waits.

WAIT_MS_MAX = 60_000
_PAUSE_MS_FIRST = 20
_PAUSE_MS_MAX = 500


def foreign_writes_without_snapshot(
    context: TableContext, timeline: ActiveTimeline, requested_time: InstantTime
) -> tuple[InstantTime, ...]:
    """
    Begun writes below a requested time that may not have read the table yet.

    Those of dead writers are left out, who beat before they request and will never read.
    None where no other engine is expected. Outside: 1 list when there may be some.
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
    """The wait of one publication, without the lock: what is waited for may need it."""

    def __init__(self, context: TableContext, requested_time: InstantTime) -> None:
        self._context = context
        self._requested_time = requested_time
        self._end_ms: int | None = None

    def wait(self, unread: tuple[InstantTime, ...]) -> None:
        """
        Return once none of ``unread`` is; newer looks may find others. Outside: lists.

        Raises:
            LockTimeoutError: 60 s passed since the first wait of this publication.
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

"""
Waiting until the writers of other engines have read what they begin from (FOR-5).

Java Hudi requests its instant first, reads the table next, and then goes inflight. Published
in between, a write of ours with a greater requested time becomes its source: it merges from
our files and writes them again under its own, smaller time. Readers order the versions of a
file group by requested time, see ours, and never its rows; Java's check looks only behind
the last completed instant and finds nothing (hole 23). So whoever publishes beside other
engines waits until everything requested below it is inflight. Writers of ours are not told
apart: they are inflight soon, and who was requested first never waits.
"""

from __future__ import annotations

from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import LockTimeoutError
from timeline.heartbeat import instants_that_seem_dead
from timeline.model.instant import State
from timeline.model.times import InstantTime
from timeline.properties.setting_names import ForeignWriters

__all__ = ["BeginWait", "begins_unread"]

WAIT_MS_MAX = 60_000
_PAUSE_MS_FIRST = 20
_PAUSE_MS_MAX = 500


def begins_unread(
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
    dead = instants_that_seem_dead(context.world.storage, begun, context.limits.heartbeat)
    return tuple(time for time in begun if time not in dead)


class BeginWait:
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
            unread = begins_unread(self._context, self._context.active(), self._requested_time)
        events.emit(
            "publish.begin_awaited",
            rt=self._requested_time,
            wait_ms=clock.monotonic_ms() - started,
        )

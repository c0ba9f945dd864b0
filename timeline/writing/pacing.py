"""
Waiting for the pace of a table: before a write begins, outside of every lock (PACE-1).

Only writes wait, services never do, and nothing fails for it: a write that waited as long as
it may begins without a token and says so. A redo takes no second token; the instant of its
refused attempt is gone, and its own stands for the write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.instant import Action
from timeline.model.operations import TableType
from timeline.rules.pacing import Pace, free_at_ms, nudge_ms

__all__ = ["keep_pace"]

_MEMORY_MS = 3_600_000  # at least; what began before has no say: a debt is forgiven some day


def keep_pace(context: TableContext) -> bool:
    """
    Wait until the table's pace lets a write begin.

    Outside: 1 list, 1 more for each token that others took meanwhile; nothing without a pace.

    Returns:
        Whether it waited, so that an earlier look at the table is an old one.
    """
    pace, clock, events = context.limits.pace, context.world.clock, context.world.events
    if pace is None:
        return False
    started_ms = clock.monotonic_ms()
    times = _TableTime(context, pace)
    lost = 0
    while True:
        begun = times.begins(context.active())
        waited_ms = clock.monotonic_ms() - started_ms
        free_at = free_at_ms(begun, pace)
        wait_ms = 0 if free_at is None else free_at - times.now_ms()
        if wait_ms <= 0:
            break
        left_ms = pace.wait_ms_max - waited_ms
        if left_ms <= 0:
            events.emit("pace.overdue", waited_ms=waited_ms, early_ms=wait_ms)
            return True
        wait_ms += nudge_ms(context.world.ids.jitter(), lost, pace)
        clock.sleep_ms(min(wait_ms, left_ms))
        lost += 1
    if lost:
        events.emit("pace.waited", waited_ms=waited_ms, looks=lost)
    return lost > 0


class _TableTime:
    """
    The time by which tokens come in: this clock, or the newest begin where that is ahead.

    Begins follow the fastest clock of all writers (TL-SUCC-1). Who is behind it counts on from
    there by the own monotonic clock, or would wait as long as the clocks are apart.
    """

    def __init__(self, context: TableContext, pace: Pace) -> None:
        self._clock = context.world.clock
        self._zone = context.zone
        self._memory_ms = max(_MEMORY_MS, math.ceil(pace.interval_ms * pace.burst))
        merges = context.config.table_type is TableType.MERGE_ON_READ
        # A completed compaction is named as a commit; on such tables no write is.
        write = Action.DELTACOMMIT if merges else Action.COMMIT
        self._actions = frozenset({write, Action.REPLACECOMMIT})
        self._newest_ms = 0
        self._seen_at_ms = 0  # monotonic

    def begins(self, timeline: ActiveTimeline) -> list[int]:
        """When the writes of the last hour or more began, ascending; pending ones took a token, too."""
        newest_first: list[int] = []
        for at in self._times(timeline):
            if not newest_first and at > self._newest_ms:
                self._newest_ms, self._seen_at_ms = at, self._clock.monotonic_ms()
            if at <= self.now_ms() - self._memory_ms:
                break
            newest_first.append(at)
        return newest_first[::-1]

    def now_ms(self) -> int:
        """As the class says."""
        since_ms = self._clock.monotonic_ms() - self._seen_at_ms
        return max(self._clock.now_ms(), self._newest_ms + since_ms)

    def _times(self, timeline: ActiveTimeline) -> Iterator[int]:
        """Newest first."""
        for instant in reversed(timeline.instants):
            if instant.action in self._actions:
                with suppress(InvalidInputError):  # no date: a bootstrap of the metadata table
                    yield self._zone.wall_ms(instant.requested_time)

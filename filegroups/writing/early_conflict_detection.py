"""Before a write creates files: detect conflicts early, and wait for the rate limit (PACE-1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from filegroups.writing.assign_file_groups import FileGroupAssignment
from filegroups.writing.pending_commit import planned_write_set
from timeline.active_timeline import ActiveTimeline
from timeline.commit.begin import StartedWrite
from timeline.commit.commit import BaseState, validate_early
from timeline.commit.conflict_report import WaitReport, conflict_report_of
from timeline.commit.pending_writes import announced_writes
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import TableType
from timeline.model.instant import Action
from timeline.model.write_set import FileGroupId, WriteSet
from timeline.rules.conflicts import (
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    RuleId,
    objection_to,
    validate_write_set,
)
from timeline.rules.retry import RateLimit, jitter_ms, next_begin_ms

__all__ = ["detect_early", "wait_for_rate_limit"]

# ---- Early conflict detection
#
# A write always validates against commits since its base snapshot. By option it also compares with
# announced write sets of live writers. Then the writer with the greater requested time waits,
# without the lock, until the other ends or its heartbeat expires. So waits never form a cycle, and
# a writer that waited precedes all writers that begin later. It then works on the other's files,
# and no work is wasted. Safety does not depend on this: the commit validates again.

_PAUSE_MS_FIRST = 20
_PAUSE_MS_MAX = 1_000


def detect_early(
    context: TableContext,
    begun: StartedWrite,
    placement: FileGroupAssignment,
    *,
    gives_way: bool,
    elapsed_ms: int,
    told: Callable[[WaitReport], None] = lambda _: None,
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """
    Validate a write before any of its files is written.

    Outside: 1 list, probes of the commit log; with ``gives_way`` as ``announced_writes`` and 1
    list, repeated while it waits.

    Args:
        context: The table.
        begun: The write; it is announced (BEG-6).
        placement: The assigned file groups.
        gives_way: Also compare with announced writes; not while this writer keeps a lock that the
            others wait for.
        elapsed_ms: Time since the first attempt of this write: the retry budget bounds the wait.
        told: Receives the report of a wait that ended.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).
        StorageUnavailableError: The storage does not answer.
    """
    claim = planned_write_set(placement)
    seen = BaseState.by(begun.snapshot)
    if gives_way:
        met = _wait_for_announced(
            context, begun, claim, placement, elapsed_ms=elapsed_ms, told=told
        )
        if met is not None:
            return met, seen
    return validate_early(context, begun, claim, seen, logs_may_meet=placement.logs_may_meet)


def _wait_for_announced(
    context: TableContext,
    begun: StartedWrite,
    claim: WriteSet,
    placement: FileGroupAssignment,
    *,
    elapsed_ms: int,
    told: Callable[[WaitReport], None],
) -> Rejected | None:
    """Wait for earlier writers that announced a conflict; return it if the budget ends the wait."""
    clock, events = context.world.clock, context.world.events
    budget = context.limits.retry
    started = clock.monotonic_ms()
    pause_ms = 0
    before: Rejected | None = None
    while True:
        met = _announced_conflicts(context, begun, claim, logs_may_meet=placement.logs_may_meet)
        waited_ms = clock.monotonic_ms() - started
        if met is None:
            if before is not None:
                events.emit("write.way_given", rt=begun.requested_time, wait_ms=waited_ms)
                report = conflict_report_of(begun.requested_time, before)
                told(WaitReport(report=report, wait_ms=waited_ms))
            return None
        spent = 0 < budget.total_ms_max < elapsed_ms + waited_ms
        if spent or not budget.conflict_retries_max:
            return met
        if before is None:
            rivals = ", ".join(rival.requested_time for rival in met.rivals)
            events.emit("write.gives_way", rt=begun.requested_time, rivals=rivals)
        before = met if before is None else _both(before, met)
        pause_ms = min(2 * pause_ms or _PAUSE_MS_FIRST, _PAUSE_MS_MAX)
        clock.sleep_ms(pause_ms)
        begun.heartbeat.check()


def _both(before: Rejected, met: Rejected) -> Rejected:
    """Return one conflict with all awaited writers, in the order in which they were found."""
    return replace(
        before,
        rivals=tuple({one.requested_time: one for one in (*before.rivals, *met.rivals)}.values()),
        file_groups=tuple(sorted({*before.file_groups, *met.file_groups})),
        partitions=tuple(sorted({*before.partitions, *met.partitions})),
    )


def _announced_conflicts(
    context: TableContext, begun: StartedWrite, claim: WriteSet, *, logs_may_meet: bool
) -> Rejected | None:
    """Return the conflict with announced writes of live writers with lower requested times."""
    rivals: list[ConcurrentCommit] = []
    groups: list[FileGroupId] = []
    partitions: list[str] = []
    before = announced_writes(context, context.active(), below=begun.requested_time)
    for rival in before:
        verdict = validate_write_set(
            claim, begun.requested_time, [rival], logs_may_meet=logs_may_meet
        )
        if not isinstance(verdict, Rejected):
            verdict = objection_to(claim, [rival], context.limits.strategy) or verdict
        if isinstance(verdict, NoConflict):
            continue
        rivals.append(rival)
        groups += verdict.file_groups
        partitions += verdict.partitions if isinstance(verdict, Rejected) else ()
    if not rivals:
        return None
    return Rejected(
        RuleId.ANNOUNCED_BY_OTHER,
        "the other began before and is about to change the same",
        tuple(rivals),
        tuple(sorted(set(groups))),
        tuple(sorted(set(partitions))),
    )


# ---- Rate limit of a table: a wait before the write begins, outside every lock (PACE-1)
#
# Only writes wait, not services. No write fails because of the limit: after the longest wait it
# begins without a token and emits an event. A retry takes no second token: the instant of the
# rejected attempt is deleted, and the instant of the retry counts instead.

_MEMORY_MS = 3_600_000  # at least; older begins do not count, so a debt of tokens ends


def wait_for_rate_limit(context: TableContext) -> bool:
    """
    Wait until the table's rate limit lets a write begin.

    Outside: 1 list, 1 more for each token that other writers took meanwhile; nothing without a
    rate limit.

    Returns:
        Whether it waited, so that an earlier snapshot of the table is out of date.
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
        free_at = next_begin_ms(begun, pace)
        wait_ms = 0 if free_at is None else free_at - times.now_ms()
        if wait_ms <= 0:
            break
        left_ms = pace.wait_ms_max - waited_ms
        if left_ms <= 0:
            events.emit("pace.overdue", waited_ms=waited_ms, early_ms=wait_ms)
            return True
        wait_ms += jitter_ms(context.world.ids.jitter(), lost, pace)
        clock.sleep_ms(min(wait_ms, left_ms))
        lost += 1
    if lost:
        events.emit("pace.waited", waited_ms=waited_ms, looks=lost)
    return lost > 0


class _TableTime:
    """
    The time by which tokens refill: this clock, or the newest begin if that is ahead.

    Begins follow the fastest clock of all writers (TL-SUCC-1). A writer with a slower clock counts
    on from the newest begin by its monotonic clock. Otherwise it would wait as long as the clocks
    differ.
    """

    def __init__(self, context: TableContext, pace: RateLimit) -> None:
        self._clock = context.world.clock
        self._zone = context.zone
        self._memory_ms = max(_MEMORY_MS, math.ceil(pace.interval_ms * pace.burst))
        merges = context.config.table_type is TableType.MERGE_ON_READ
        # On merge-on-read tables only a completed compaction is a commit; writes are deltacommits.
        write = Action.DELTACOMMIT if merges else Action.COMMIT
        self._actions = frozenset({write, Action.REPLACECOMMIT})
        self._newest_ms = 0
        self._seen_at_ms = 0  # monotonic

    def begins(self, timeline: ActiveTimeline) -> list[int]:
        """Return the begin times of the last hour or more, ascending; pending writes count."""
        newest_first: list[int] = []
        for at in self._times(timeline):
            if not newest_first and at > self._newest_ms:
                self._newest_ms, self._seen_at_ms = at, self._clock.monotonic_ms()
            if at <= self.now_ms() - self._memory_ms:
                break
            newest_first.append(at)
        return newest_first[::-1]

    def now_ms(self) -> int:
        """Return the current time of the table, in ms."""
        since_ms = self._clock.monotonic_ms() - self._seen_at_ms
        return max(self._clock.now_ms(), self._newest_ms + since_ms)

    def _times(self, timeline: ActiveTimeline) -> Iterator[int]:
        """Yield the begin times, newest first."""
        for instant in reversed(timeline.instants):
            if instant.action in self._actions:
                with suppress(InvalidInputError):  # no date: a bootstrap of the metadata table
                    yield self._zone.wall_ms(instant.requested_time)

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

# --- Early conflict detection: what a write meets before it writes files, when that is still cheap
#
# Two looks. At what was *published* while keys were looked up: always. At what living writers have
# *announced* for the same rows: by option. There the smaller requested time goes on and the greater
# one waits in its place, without the lock, until the other has ended or fallen silent; so of two
# that see each other one goes on, waits never form a circle, and whoever waited keeps its turn
# before all that begin later. What the other published is then the base of this write, and
# nothing was computed in vain. Nothing here is needed to be right: the publication judges anew.

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
    Judge a placed write before any of its files is written.

    Outside: 1 list, chain probes; with ``gives_way`` as ``announced_writes`` and 1 list, again
    while it waits.

    Args:
        context: The table.
        begun: The write; it has announced itself (BEG-6).
        placement: What it is going to touch.
        gives_way: Look at announcements, too; not while holding what the others wait for.
        elapsed_ms: Since the first attempt of this write: waiting is bounded as retries are.
        told: Hears of a wait that ended.

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
    """Wait for those who announced the same before; a refusal when that may not go on."""
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
    """One meeting with all who were waited for, in the order in which they were met."""
    return replace(
        before,
        rivals=tuple({one.requested_time: one for one in (*before.rivals, *met.rivals)}.values()),
        file_groups=tuple(sorted({*before.file_groups, *met.file_groups})),
        partitions=tuple(sorted({*before.partitions, *met.partitions})),
    )


def _announced_conflicts(
    context: TableContext, begun: StartedWrite, claim: WriteSet, *, logs_may_meet: bool
) -> Rejected | None:
    """What living writers that were requested before this one have announced of the same."""
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


# ---------- Waiting for the pace of a table: before a write begins, outside of every lock (PACE-1)
#
# Only writes wait, services never do, and nothing fails for it: a write that waited as long as
# it may begins without a token and says so. A redo takes no second token; the instant of its
# refused attempt is gone, and its own stands for the write.

_MEMORY_MS = 3_600_000  # at least; what began before has no say: a debt is forgiven some day


def wait_for_rate_limit(context: TableContext) -> bool:
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
    The time by which tokens come in: this clock, or the newest begin where that is ahead.

    Begins follow the fastest clock of all writers (TL-SUCC-1). Who is behind it counts on from
    there by the own monotonic clock, or would wait as long as the clocks are apart.
    """

    def __init__(self, context: TableContext, pace: RateLimit) -> None:
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

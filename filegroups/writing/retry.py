"""Wait for the rate limit, rebase the file groups of a rejected write, and rerun its reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from filegroups.files.rewrite import FileGroupTask, announce_base_file
from filegroups.writing.pending_commit import WrittenFiles
from filegroups.writing.workload import Workload
from filegroups.writing.write_request import CommitResult
from timeline.commit.conflict_report import KINDS, ConflictReport
from timeline.context import TableContext
from timeline.errors import BudgetSpentError, InvalidInputError, WriteConflictError
from timeline.model.commit_metadata import FileGroupId, TableType
from timeline.model.file_names import join
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.rules.conflicts import ConcurrentCommit, Rebase, RuleId
from timeline.rules.retry import (
    RateLimit,
    RetryScope,
    exhausted_limit,
    jitter_ms,
    next_begin_ms,
    pause_ms,
    pause_within_limit,
)
from timeline.snapshot import ActiveTimeline

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
    pace, clock, events = context.limits.rate_limit, context.ports.clock, context.ports.events
    if pace is None:
        return False
    started_ms = clock.monotonic_ms()
    times = _TableTime(context, pace)
    lost = 0
    while True:
        started = times.begins(context.active())
        waited_ms = clock.monotonic_ms() - started_ms
        free_at = next_begin_ms(started, pace)
        wait_ms = 0 if free_at is None else free_at - times.now_ms()
        if wait_ms <= 0:
            break
        left_ms = pace.wait_ms_max - waited_ms
        if left_ms <= 0:
            events.emit("pace.overdue", waited_ms=waited_ms, early_ms=wait_ms)
            return True
        wait_ms += jitter_ms(context.ports.ids.jitter(), lost, pace)
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
        self._clock = context.ports.clock
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


# ---- Rebase: merge conflicting file groups again, under the same requested time
#
# Only file groups that a concurrent commit wrote are merged again, on its file. This is a new
# attempt of the task, with a new file name. The former file is deleted before the slot (PUB-1).

_AT_ONCE_MAX = (
    16  # file groups whose markers are created, and whose former files are deleted, at once
)


@dataclass(frozen=True, slots=True)
class AnnouncedRebase:
    """File groups whose next attempt is announced, and deleted files of the former attempt."""

    file_groups: frozenset[FileGroupId] = frozenset()
    dropped: frozenset[str] = frozenset()


def announce_rebase(
    context: TableContext,
    workload: Workload,
    written: WrittenFiles,
    file_groups: Collection[FileGroupId],
    *,
    number: int,
) -> AnnouncedRebase:
    """
    On a high-latency store, send the markers and deletes of a rebase before the wait in line.

    Outside: 1 create (marker) for each file group, 1 delete for each former file, all together.
    """
    again = [pair for pair in written.stats if pair[0].file_group in file_groups]
    is_far = context.ports.storage.capabilities.high_latency
    if not is_far or workload.tasks_name_files or len(again) > _AT_ONCE_MAX:
        return AnnouncedRebase()
    storage = context.ports.storage
    former = frozenset(path for _, stats in again for stat in stats for path in stat.paths)
    context.ports.concurrently(
        *(partial(announce_base_file, storage, _next_attempt(task, number)) for task, _ in again),
        *(partial(storage.delete, path) for path in sorted(former)),
    )
    return AnnouncedRebase(frozenset(task.file_group for task, _ in again), former)


def rebase(
    workload: Workload,
    written: WrittenFiles,
    verdict: Rebase,
    announced: AnnouncedRebase,
    *,
    number: int,
) -> WrittenFiles:
    """
    Merge the conflicting file groups again, on the winners' files; the other files stay.

    Args:
        workload: The rows.
        written: The attempt so far.
        verdict: The verdict with the conflicting file groups.
        announced: The result of ``announce_rebase``.
        number: Number of this rebase, above all earlier ones of the instant.

    Errors: as ``Workload.rewrite``.
    """
    stale = sorted(set(verdict.file_groups))
    moved = {task.file_group: task for task in rebase_tasks(written.assignment.tasks, verdict)}
    again = [
        replace(_next_attempt(moved[group], number), announced=group in announced.file_groups)
        for group in stale
    ]
    made = zip(again, workload.rewrite(again), strict=True)
    fresh = dict(zip(stale, made, strict=True))
    stats = tuple(fresh.get(task.file_group, (task, before)) for task, before in written.stats)
    return replace(
        written,
        stats=stats,
        assignment=replace(written.assignment, tasks=tuple(task for task, _ in stats)),
        dropped=written.dropped | announced.dropped,
    )


def _next_attempt(task: FileGroupTask, number: int) -> FileGroupTask:
    return replace(task, write_token=f"{task.task_number}-{number}-0")


def rebase_tasks(tasks: Sequence[FileGroupTask], verdict: Rebase) -> tuple[FileGroupTask, ...]:
    """Return the tasks, with the winners' files as base where file groups conflict."""
    stale = set(verdict.file_groups)
    moved = []
    for task in tasks:
        group = task.file_group
        if group in stale:
            base_path, base_time = _newest_file(group, verdict.concurrent_commits)
            moved.append(replace(task, base_path=base_path, base_requested_time=base_time))
        else:
            moved.append(task)
    return tuple(moved)


def _newest_file(
    group: FileGroupId, commits: Sequence[ConcurrentCommit]
) -> tuple[str, InstantTime]:
    found = [
        (concurrent.requested_time, item.files[-1])
        for concurrent in commits
        for item in concurrent.write_set.file_groups
        if item.file_group == group and item.files
    ]
    time, name = max(found)
    return join(group.partition_path, name), time


# ---- Rerun of reads, for writes whose rows the engine itself computes
#
# Rows of a caller are never written again after their reads changed: only the caller can compute
# them again. A delete by predicate can be rerun, because its predicate is all it needs.

_OVERTAKEN = frozenset({KINDS[RuleId.READ_WAS_CHANGED], KINDS[RuleId.INSERTED_WHERE_I_MISSED]})


def rerun_until_unchanged(
    context: TableContext, attempt: Callable[[tuple[ConflictReport, ...]], CommitResult]
) -> CommitResult:
    """
    Read and write until no concurrent commit changes the reads, within the retry budget.

    Args:
        context: The table; its limits contain the budget.
        attempt: Reads, and writes rows computed from the reads. Its argument holds the reports of
            the earlier attempts.

    Returns:
        The commit result of the last attempt, with the reports of all attempts.

    Raises:
        BudgetSpentError: A concurrent commit changed the reads of every attempt.
        ConflictError: Rejected for another reason.
    """
    ports, budget = context.ports, context.limits.retry
    started_ms = ports.clock.monotonic_ms()
    refusals: list[ConflictReport] = []
    pause = wasted_bytes = 0
    while True:
        wait_for_rate_limit(context)  # not between reading and writing
        try:
            result = attempt(tuple(refusals))
        except WriteConflictError as error:
            if error.kind not in _OVERTAKEN:
                raise
            refusals.append(ConflictReport(**error.fields["report"]))
            wasted_bytes += error.fields["wasted_bytes"]
        else:
            break
        elapsed_ms = ports.clock.monotonic_ms() - started_ms
        bound = exhausted_limit(
            budget, conflicts=len(refusals), elapsed_ms=elapsed_ms, wasted_bytes=wasted_bytes
        )
        if bound is not None:
            raise BudgetSpentError(
                "concurrent commits changed the read rows during every attempt: write at another "
                f"time, or raise {bound}; last: {refusals[-1].text}",
                attempts=[report.as_document() for report in refusals],
                report=refusals[-1].as_document(),
                bound=bound,
            )
        pause = pause_ms(len(refusals) - 1, ports.ids.jitter(), budget, previous_ms=pause)
        ports.clock.sleep_ms(pause_within_limit(budget, pause, elapsed_ms=elapsed_ms))
    if not refusals:
        return result
    return replace(
        result,
        attempts=result.attempts + len(refusals),
        refusals=(*refusals, *result.refusals),
        redone=RetryScope.EVERYTHING.value,
    )

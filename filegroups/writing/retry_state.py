"""The attempts of one write: their cost, and how a rejected one is rebased or made again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from filegroups.files.rewrite import FileGroupTask, announce_base_file
from filegroups.writing.commit_result import CommitResult
from filegroups.writing.early_conflict_detection import wait_for_rate_limit
from filegroups.writing.pending_commit import WrittenFiles
from filegroups.writing.workload import Workload
from timeline.commit.admission import is_lock_shared
from timeline.commit.conflict_report import KINDS, ConflictReport, WaitReport
from timeline.context import TableContext
from timeline.errors import BudgetSpentError, WriteConflictError
from timeline.model.file_names import join
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import FileGroupId
from timeline.rules.conflicts import ConcurrentCommit, Rebase, RuleId
from timeline.rules.retry import (
    RetryScope,
    exhausted_limit,
    keep_lock_ms,
    pause_ms,
    pause_within_limit,
)

__all__ = [
    "AnnouncedRebase",
    "RetryState",
    "announce_rebase",
    "rebase",
    "rebase_tasks",
    "rerun_until_unchanged",
]

# --- What the attempts of one write met and cost: whether it may go on, and how the next one is made
#
# The numbers are kept here, what follows from them is decided by ``timeline.rules.retry``.

#: Redos of one of those who have the lock together before it has it alone, which ends that for all
#: of them: the last of as many as are allowed by default.
_FIRST_WITHOUT = 3


@dataclass(slots=True)
class RetryState:
    """The attempts of one write so far."""

    started_ms: int
    begun: int = 0
    groups_redone: int = 0  # in the attempt that is going on
    wasted_bytes: int = 0
    last_pause_ms: int = 0
    refusals: list[ConflictReport] = field(default_factory=list)
    waits: list[WaitReport] = field(default_factory=list)
    begun_ms: int = 0  # of the last attempt, on the monotonic clock
    offered_ms: int | None = None  # when it first asked to be published

    def begin(self, context: TableContext) -> None:
        """One more attempt begins."""
        self.begun += 1
        self.groups_redone = 0
        self.begun_ms = context.world.clock.monotonic_ms()
        self.offered_ms = None

    def offer(self, context: TableContext) -> None:
        """It asks to be published; from here on it waits for others, too."""
        if self.offered_ms is None:
            self.offered_ms = context.world.clock.monotonic_ms()

    def spent_bound(self, context: TableContext) -> str | None:
        """The option that forbids to do it again; None while it may be."""
        return exhausted_limit(
            context.limits.retry,
            conflicts=len(self.refusals),
            elapsed_ms=self._elapsed_ms(context),
            wasted_bytes=self.wasted_bytes,
        )

    def hold_ms(self, context: TableContext) -> int | None:
        """How long the next attempt may hold the queue, as the rule of that name."""
        ended_ms = self.offered_ms
        if ended_ms is None:
            ended_ms = context.world.clock.monotonic_ms()
        return keep_lock_ms(
            context.limits.retry,
            conflicts=len(self.refusals),
            work_ms=ended_ms - self.begun_ms,
            look_ms=context.looked.took_ms if context.world.storage.capabilities.far else 0,
            first_without=_FIRST_WITHOUT if is_lock_shared(context) else 0,
        )

    def must_queue(self, context: TableContext) -> bool:
        """Whether the user says that the next redo holds the queue, however long it takes."""
        return self.hold_ms(context) == 0

    def queues_rather(self, context: TableContext, *, groups_left: int) -> bool:
        """
        Whether all is done again in the queue, where merging some file groups might be enough.

        That spares most where many are left as they are, and nobody waits for it: it is tried once.
        """
        held_ms = self.hold_ms(context)
        if held_ms is None:
            return False
        return held_ms == 0 or groups_left == 0 or self.groups_redone > 0

    def pause(self, context: TableContext) -> None:
        """Let others pass before everything is done again."""
        world, budget = context.world, context.limits.retry
        self.last_pause_ms = pause_ms(
            self.begun - 1, world.ids.jitter(), budget, previous_ms=self.last_pause_ms
        )
        elapsed_ms = self._elapsed_ms(context)
        world.clock.sleep_ms(pause_within_limit(budget, self.last_pause_ms, elapsed_ms=elapsed_ms))

    def _elapsed_ms(self, context: TableContext) -> int:
        return context.world.clock.monotonic_ms() - self.started_ms


# -------------- Merging overlapping file groups again, under the requested time that the write has
#
# Only what met another's file is merged again, on that file. It is a new attempt of the task, with a
# name of its own; what the one before made goes before the slot is taken (PUB-1).

_AT_ONCE_MAX = 16  # file groups whose markers are made, and former files deleted, together


@dataclass(frozen=True, slots=True)
class AnnouncedRebase:
    """File groups whose next attempt is announced, and files of the former one that are deleted."""

    file_groups: frozenset[FileGroupId] = frozenset()
    dropped: frozenset[str] = frozenset()


def announce_rebase(
    context: TableContext,
    written: WrittenFiles,
    file_groups: Collection[FileGroupId],
    *,
    number: int,
) -> AnnouncedRebase:
    """
    Far away, before a place is waited for: all that a redo asks of the storage besides its files.

    Outside: 1 create (marker) for each file group, 1 delete for each file before, all together.
    """
    again = [pair for pair in written.stats if _group(pair[0]) in file_groups]
    if not context.world.storage.capabilities.far or len(again) > _AT_ONCE_MAX:
        return AnnouncedRebase()
    storage = context.world.storage
    former = frozenset(path for _, stats in again for stat in stats for path in stat.paths)
    context.world.together(
        *(partial(announce_base_file, storage, _next_attempt(task, number)) for task, _ in again),
        *(partial(storage.delete, path) for path in sorted(former)),
    )
    return AnnouncedRebase(frozenset(_group(task) for task, _ in again), former)


def rebase(
    workload: Workload,
    written: WrittenFiles,
    verdict: Rebase,
    announced: AnnouncedRebase,
    *,
    number: int,
) -> WrittenFiles:
    """
    Merge the overlapping file groups again, on the winners' files; the others stay.

    Args:
        workload: The rows.
        written: The attempt so far.
        verdict: What it met.
        announced: What ``announce_rebase`` did.
        number: Of this redo, above every one before in the same instant.

    Errors: as ``Workload.rewrite``.
    """
    stale = sorted(set(verdict.file_groups))
    moved = {_group(task): task for task in rebase_tasks(written.placement.tasks, verdict)}
    again = [
        replace(_next_attempt(moved[group], number), announced=group in announced.file_groups)
        for group in stale
    ]
    made = zip(again, workload.rewrite(again), strict=True)
    fresh = dict(zip(stale, made, strict=True))
    stats = tuple(fresh.get(_group(task), (task, before)) for task, before in written.stats)
    return replace(
        written,
        stats=stats,
        placement=replace(written.placement, tasks=tuple(task for task, _ in stats)),
        dropped=written.dropped | announced.dropped,
    )


def _next_attempt(task: FileGroupTask, number: int) -> FileGroupTask:
    return replace(task, write_token=f"{task.task_number}-{number}-0")


def rebase_tasks(tasks: Sequence[FileGroupTask], verdict: Rebase) -> tuple[FileGroupTask, ...]:
    """The tasks, those of overlapping file groups based on the winner's files."""
    stale = set(verdict.file_groups)
    moved = []
    for task in tasks:
        group = _group(task)
        if group in stale:
            base_path, base_time = _newest_file(group, verdict.rivals)
            moved.append(replace(task, base_path=base_path, base_requested_time=base_time))
        else:
            moved.append(task)
    return tuple(moved)


def _newest_file(group: FileGroupId, rivals: Sequence[ConcurrentCommit]) -> tuple[str, InstantTime]:
    found = [
        (rival.requested_time, item.files[-1])
        for rival in rivals
        for item in rival.claim.file_groups
        if item.file_group == group and item.files
    ]
    time, name = max(found)
    return join(group.partition_path, name), time


def _group(task: FileGroupTask) -> FileGroupId:
    return FileGroupId(task.partition_path, task.file_id)


# ------ Writes whose rows the engine makes from reads, and can make anew when those were overtaken
#
# A caller's rows are never written again from reads that no longer hold: only the caller knows
# how they were made. A delete by predicate is different, its predicate says all of it.

_OVERTAKEN = frozenset({KINDS[RuleId.READ_WAS_CHANGED], KINDS[RuleId.INSERTED_WHERE_I_MISSED]})


def rerun_until_unchanged(
    context: TableContext, attempt: Callable[[tuple[ConflictReport, ...]], CommitResult]
) -> CommitResult:
    """
    Read and write until nobody changed what was read in between, within the retry budget.

    Args:
        context: The table; its limits hold the budget.
        attempt: Reads, and writes with what it read; told what the attempts before it met.

    Returns:
        The receipt of the last attempt, with the refusals of all.

    Raises:
        BudgetSpentError: Every attempt was overtaken.
        ConflictError: Refused for another reason.
    """
    world, budget = context.world, context.limits.retry
    started_ms = world.clock.monotonic_ms()
    refusals: list[ConflictReport] = []
    pause = wasted_bytes = 0
    while True:
        wait_for_rate_limit(context)  # not between reading and writing
        try:
            receipt = attempt(tuple(refusals))
        except WriteConflictError as error:
            if error.kind not in _OVERTAKEN:
                raise
            refusals.append(ConflictReport(**error.fields["report"]))
            wasted_bytes += error.fields["wasted_bytes"]
        else:
            break
        elapsed_ms = world.clock.monotonic_ms() - started_ms
        bound = exhausted_limit(
            budget, conflicts=len(refusals), elapsed_ms=elapsed_ms, wasted_bytes=wasted_bytes
        )
        if bound is not None:
            raise BudgetSpentError(
                "others changed what was read before every attempt was published; write at "
                f"another time, or raise {bound}; last: {refusals[-1].text}",
                attempts=[report.as_document() for report in refusals],
                report=refusals[-1].as_document(),
                bound=bound,
            )
        pause = pause_ms(len(refusals) - 1, world.ids.jitter(), budget, previous_ms=pause)
        world.clock.sleep_ms(pause_within_limit(budget, pause, elapsed_ms=elapsed_ms))
    if not refusals:
        return receipt
    return replace(
        receipt,
        attempts=receipt.attempts + len(refusals),
        refusals=(*refusals, *receipt.refusals),
        redone=RetryScope.EVERYTHING.value,
    )

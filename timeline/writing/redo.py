"""
Merging overlapping file groups again, under the requested time that the write has.

Only what met another's file is merged again, on that file. It is a new attempt of the task, with a
name of its own; what the one before made goes before the slot is taken (PUB-1).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from timeline.context import TableContext
from timeline.files.rewrite import FileGroupTask, announce_base_file
from timeline.model.claim import FileGroupId
from timeline.model.paths import join
from timeline.model.times import InstantTime
from timeline.rules.conflicts import Rebaseable, Rival
from timeline.writing.candidate import Written
from timeline.writing.workload import Workload

__all__ = ["Announced", "announce_again", "on_newest_files", "redo"]

_AT_ONCE_MAX = 16  # file groups whose markers are made, and former files deleted, together


@dataclass(frozen=True, slots=True)
class Announced:
    """File groups whose next attempt is announced, and files of the former one that are deleted."""

    file_groups: frozenset[FileGroupId] = frozenset()
    dropped: frozenset[str] = frozenset()


def announce_again(
    context: TableContext, written: Written, file_groups: Collection[FileGroupId], *, number: int
) -> Announced:
    """
    Far away, before a place is waited for: all that a redo asks of the storage besides its files.

    Outside: 1 create (marker) for each file group, 1 delete for each file before, all together.
    """
    again = [pair for pair in written.stats if _group(pair[0]) in file_groups]
    if not context.world.storage.capabilities.far or len(again) > _AT_ONCE_MAX:
        return Announced()
    storage = context.world.storage
    former = frozenset(path for _, stats in again for stat in stats for path in stat.paths)
    context.world.together(
        *(partial(announce_base_file, storage, _next_attempt(task, number)) for task, _ in again),
        *(partial(storage.delete, path) for path in sorted(former)),
    )
    return Announced(frozenset(_group(task) for task, _ in again), former)


def redo(
    workload: Workload,
    written: Written,
    verdict: Rebaseable,
    announced: Announced,
    *,
    number: int,
) -> Written:
    """
    Merge the overlapping file groups again, on the winners' files; the others stay.

    Args:
        workload: The rows.
        written: The attempt so far.
        verdict: What it met.
        announced: What ``announce_again`` did.
        number: Of this redo, above every one before in the same instant.

    Errors: as ``Workload.rewrite``.
    """
    stale = sorted(set(verdict.file_groups))
    moved = {_group(task): task for task in on_newest_files(written.placement.tasks, verdict)}
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


def on_newest_files(
    tasks: Sequence[FileGroupTask], verdict: Rebaseable
) -> tuple[FileGroupTask, ...]:
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


def _newest_file(group: FileGroupId, rivals: Sequence[Rival]) -> tuple[str, InstantTime]:
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

"""
What a placed write shows before its first data file: the inflight file, then its markers (BEG-6).

Where the storage is far away they are sent together, with the metadata of new partitions and the
early look at what others published: none of them waits for another, and no data file is written
before all have been answered. Meanwhile small files are made in memory. A rollback needs the
markers of what exists, and a marker without a file, or one that came before the inflight file,
tells it nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from timeline.context import TableContext
from timeline.files.rewrite import FileGroupTask, announce_base_file, create_partition_metadata
from timeline.model.commit_metadata import CommitMetadata
from timeline.publishing.begin import Begun, make_inflight
from timeline.publishing.publish import Seen
from timeline.rules.conflicts import Clean, Rebaseable, Refused
from timeline.rules.merging import DeleteKind
from timeline.writing.placing import Placement
from timeline.writing.workload import Workload

__all__ = ["announce", "announce_tasks"]

Looked: TypeAlias = tuple[Clean | Rebaseable | Refused, Seen]
EarlyLook: TypeAlias = Callable[[TableContext, Begun, Placement], Looked]

_MARKERS_MAX = 16  # of more file groups each task makes its own, beside the others


def announce(
    context: TableContext,
    begun: Begun,
    placement: Placement,
    workload: Workload | None,
    look: EarlyLook | None,
    *,
    then: bool,
) -> tuple[Placement, Looked]:
    """
    Show what the write intends, and look for what it meets early.

    Outside: as ``announce_tasks``, and what ``look`` asks.

    Args:
        context: The table.
        begun: The write.
        placement: What it is going to touch.
        workload: Its rows, None for none.
        look: The early look; None for none.
        then: It looks at announcements, and so comes after the own one (BEG-8).

    Returns:
        The placement, its tasks knowing whether they are announced, and what the look found.
    """
    found: list[Looked] = []

    def looks() -> None:
        found.append(
            (Clean(), Seen.by(begun.snapshot)) if look is None else look(context, begun, placement)
        )

    if then or not context.world.storage.capabilities.far:
        make_inflight(context, begun, placement.profile)
        looks()
        return placement, found[0]
    parts = [] if workload is None else [(workload, placement.tasks)]
    shown = announce_tasks(context, begun, placement.profile, parts, looks)
    return replace(placement, tasks=tuple(task for tasks in shown for task in tasks)), found[0]


def announce_tasks(
    context: TableContext,
    begun: Begun,
    profile: CommitMetadata,
    parts: Sequence[tuple[Workload, Sequence[FileGroupTask]]],
    *beside: Callable[[], None],
) -> list[tuple[FileGroupTask, ...]]:
    """
    Show what some tasks are going to write.

    Outside: 1 create; far away 1 create for each base file and for each partition that may be
    new, all under way together.

    Args:
        context: The table.
        begun: The write.
        profile: The content of its inflight file.
        parts: The rows of the instant's writes, and what each of them writes.
        beside: What else can be asked meanwhile.

    Returns:
        For each part its tasks, each knowing what was shown of it.
    """
    show = partial(make_inflight, context, begun, profile)
    storage = context.world.storage
    bases = [task for _, tasks in parts for task in tasks if task.log is None]
    if not storage.capabilities.far or len(bases) > _MARKERS_MAX:
        context.world.together(show, *beside)
        return [tuple(tasks) for _, tasks in parts]
    opened = {
        one.partition_path: one.partition_metafile for one in bases if _opens_its_partition(one)
    }
    context.world.together(
        show,
        *beside,
        *(partial(announce_base_file, storage, task) for task in bases),
        *(
            partial(
                create_partition_metadata,
                storage,
                path,
                begun.requested_time,
                ending=ending,
                looks=False,
            )
            for path, ending in sorted(opened.items())
        ),
        *(partial(_make_ahead, workload, tasks) for workload, tasks in parts),
    )
    return [tuple(_shown(task, opened) for task in tasks) for _, tasks in parts]


def _make_ahead(workload: Workload, tasks: Sequence[FileGroupTask]) -> None:
    with suppress(Exception):  # it fails again when the files are written
        workload.make_ahead(tasks)


def _shown(task: FileGroupTask, opened: Collection[str]) -> FileGroupTask:
    if task.log is not None:
        return task
    marked = task.partition_marked or task.partition_path in opened
    return replace(task, announced=True, partition_marked=marked)


def _opens_its_partition(task: FileGroupTask) -> bool:
    """Whether a file is made for sure, in a partition whose metadata nobody saw yet."""
    new = task.base_path is None and task.deletes is DeleteKind.NONE
    return new and not task.partition_marked

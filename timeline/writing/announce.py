"""
What a placed write shows before its first data file: the inflight file, then its markers (BEG-6).

Where the storage is far away they are sent together, and the early look at what others
published along with them: none of them waits for another, and no data file is begun before all
have been answered. A rollback needs the markers of what exists, and a marker without a file, or
one that came before the inflight file, tells it nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from timeline.context import TableContext
from timeline.files.rewrite import announce_base_file
from timeline.publishing.begin import Begun, make_inflight
from timeline.publishing.publish import Seen
from timeline.rules.conflicts import Clean, Rebaseable, Refused
from timeline.writing.placing import Placement

__all__ = ["announce"]

Looked: TypeAlias = tuple[Clean | Rebaseable | Refused, Seen]
EarlyLook: TypeAlias = Callable[[TableContext, Begun, Placement], Looked]

_MARKERS_MAX = 16  # of more file groups each task makes its own, beside the others


def announce(
    context: TableContext,
    begun: Begun,
    placement: Placement,
    look: EarlyLook | None,
    *,
    then: bool,
) -> tuple[Placement, Looked]:
    """
    Show what the write intends, and look for what it meets early.

    Outside: 1 create, what ``look`` asks, and far away 1 create for each base file.

    Args:
        context: The table.
        begun: The write.
        placement: What it is going to touch.
        look: The early look; None for none.
        then: It looks at announcements, and so comes after the own one (BEG-8).

    Returns:
        The placement, its tasks knowing whether they are announced, and what the look found.
    """
    show = partial(make_inflight, context, begun, placement.profile)
    found: list[Looked] = []

    def looks() -> None:
        found.append(
            (Clean(), Seen.by(begun.snapshot)) if look is None else look(context, begun, placement)
        )

    if then or not context.world.storage.capabilities.far:
        show()
        looks()
        return placement, found[0]
    storage = context.world.storage
    bases = [task for task in placement.tasks if task.log is None]
    if len(bases) > _MARKERS_MAX:
        bases = []
    context.world.together(show, looks, *(partial(announce_base_file, storage, t) for t in bases))
    tasks = tuple(
        replace(task, announced=True) if task in bases else task for task in placement.tasks
    )
    return replace(placement, tasks=tasks), found[0]

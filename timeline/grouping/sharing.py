"""Which of some waiting writes may share an instant, as far as their plans and the past tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from timeline.model.claim import FileGroupId
from timeline.writing.write import Work

__all__ = ["may_share", "not_known_to_meet"]

_Waiting = TypeVar("_Waiting")


def may_share(first: Work, other: Work) -> bool:
    """
    Whether two writes ask for the same thing with other rows, so that one commit can say it.

    Overwrites claim whole partitions and are never shared; nor are rows of a cluster, whose
    files only the markers of an instant tell.
    """
    if first.plan.operation.replaces or first.workload is None or other.workload is None:
        return False
    if first.workload.attempted() is None or other.workload.attempted() is None:
        return False
    if first.plan.reads is not None or other.plan.reads is not None:
        return False  # each is judged by what it read
    return replace(first.plan, batch_id=None) == replace(other.plan, batch_id=None)


def not_known_to_meet(
    waiting: Iterable[_Waiting], met_on: Callable[[_Waiting], frozenset[FileGroupId]]
) -> list[_Waiting]:
    """
    Those of some waiting writes that did not meet in an earlier group what one before them did.

    Writes that meet are placed anew in each group they are offered to, only to meet again; the
    first of them goes now, and the others in their order.

    Args:
        waiting: In their order.
        met_on: On which file groups one met somebody, when it was last offered.
    """
    chosen, taken = [], set[FileGroupId]()
    for one in waiting:
        if taken.isdisjoint(met_on(one)):
            chosen.append(one)
            taken |= met_on(one)
    return chosen

"""The chain of slots reaches from the boundary to the newest write of ours (SLOT-1, GC-2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from timeline.active import ActiveTimeline
from timeline.boundary import boundary_number
from timeline.context import TableContext
from timeline.errors import UnsafeSetupError
from timeline.model.sealing import TamperEvidence
from timeline.model.slot import Slot, SlotOwner
from timeline.places import SLOTS, slot_path
from timeline.properties.setting_names import ForeignWriters

__all__ = ["check_chain"]


class _Report(Protocol):
    def problem(self, kind: str, path: str, message: str) -> None:
        """One thing that is wrong."""

    def note(self, kind: str, path: str, message: str) -> None:
        """One thing worth knowing."""


def check_chain(
    context: TableContext, slots: Sequence[Slot], timeline: ActiveTimeline, report: _Report
) -> None:
    """
    Compare both ends of the chain with what boundary and timeline tell of it.

    Where slots are lost their numbers are taken a second time, and a batch is not known again.
    Outside: 1 list, 1 get per write above the newest slot.

    Args:
        context: The table.
        slots: The chain, oldest first.
        timeline: The timeline, listed before the chain was read.
        report: Gets what is wrong.
    """
    try:
        context.identity.assert_decided_here(context.world)
    except UnsafeSetupError as error:
        report.note(error.kind, SLOTS, f"slots were not checked: {error.message}")
        return
    collected = boundary_number(context.world.storage)
    first = slots[0].number if slots else collected and collected + 2  # a cut is above its boundary
    if first - 1 > collected:
        report.problem("slot_missing", slot_path(first - 1), "a number of the chain is missing")
    limits = context.limits
    sealed = limits.sealing.evidence is not TamperEvidence.NONE
    if context.identity.known is None or (sealed and limits.foreign_writers is ForeignWriters.NONE):
        return  # where seals are asked for they tell it of each instant (SLOT-7)
    own = [slot.newest_time for slot in slots if not context.chain.is_of_another(slot)]
    newest = max(own, default="")
    for instant in timeline.completed_writes:
        if (instant.completion_time or "") <= newest:
            continue
        if SlotOwner.told_in(context.commits.read(instant).extra_metadata) is not None:
            report.problem(
                "slots_lost",
                slot_path(slots[-1].number + 1 if slots else collected + 1),
                f"{instant} was published by a slot, and the chain ends before it: bring its slots "
                "back before anybody writes",
            )
            return

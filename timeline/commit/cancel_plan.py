"""
Ending a plan without carrying it out, by whoever has reason to (CAN-1).

An operator, a service whose plan can no longer stand, and a writer that goes before a
clustering take the same slot. The first slot counts: a plan that was completed meanwhile
stays completed, and an executor of a cancelled one finds its turn refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from timeline.active_timeline import ActiveTimeline
from timeline.commit.section import commit_in_section
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.model.file_names import pending_file_names
from timeline.model.instant import Instant
from timeline.model.slot import Slot, SlotKind
from timeline.properties.properties_file import refuse_behind_metadata_table

__all__ = ["PlanOutcome", "cancel_blocking_plans", "cancel_pending_plan", "plan_outcome"]


class PlanOutcome(Enum):
    """Why a plan was not completed here."""

    COMPLETED_ELSEWHERE = "another executor completed it"
    CANCELLED = "it was cancelled"
    ROLLED_BACK = "another engine rolled its execution back"
    REFUSED = "what it was made from has changed"


def plan_outcome(timeline: ActiveTimeline, plan: Instant) -> PlanOutcome | None:
    """What became of a plan; None while it is being carried out."""
    now = timeline.find(plan.requested_time, plan.action, plan.action.completes_as)
    if now is not None and now.completed:
        return PlanOutcome.COMPLETED_ELSEWHERE
    inflight, requested = pending_file_names(plan.action, plan.requested_time)
    if requested in timeline.file_names:
        return None if inflight in timeline.file_names else PlanOutcome.ROLLED_BACK
    below = timeline.archived_below
    if below is not None and plan.requested_time < below:
        return PlanOutcome.COMPLETED_ELSEWHERE  # and archived since: its files are everybody's
    return PlanOutcome.CANCELLED


def cancel_pending_plan(context: TableContext, plan: Instant) -> Slot | None:
    """
    End a plan that nobody shall complete; what was written for it goes (CAN-1).

    Outside: 1 turn (lock, list, create), the listing of its files, the deletes.

    Returns:
        None when it had ended already, completed or cancelled.

    Raises:
        TableConfigConflictError: It was begun, and the metadata table is on (FOR-7).
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.commit.commit.publish``; once the slot is taken the next turn of anybody
            finishes the deletes.
    """
    nonce = context.world.ids.nonce()

    def decide(turn: CommitSection) -> Slot | None:
        if plan_outcome(turn.timeline, plan) in (
            PlanOutcome.COMPLETED_ELSEWHERE,
            PlanOutcome.CANCELLED,
        ):
            return None
        if pending_file_names(plan.action, plan.requested_time)[0] in turn.timeline.file_names:
            # Whoever carried it out may have put its files into the metadata table.
            refuse_behind_metadata_table(
                turn.config(), without_metadata_table=context.limits.without_metadata_table
            )
        return turn.slot(
            context,
            SlotKind.CANCEL,
            plan.action,
            plan.requested_time,
            nonce=nonce,
        )

    slot, _ = commit_in_section(context, f"cancel {plan.requested_time}", decide)
    if slot is not None:
        context.world.events.emit(
            "service.cancelled", action=plan.action.value, rt=plan.requested_time
        )
    return slot


def cancel_blocking_plans(context: TableContext, plans: Iterable[Instant]) -> None:
    """
    Cancel the plans that stand in a writer's way, where writers go first (CL-2).

    One that was completed meanwhile is met as any other publication. Outside: as ``cancel_pending_plan``,
    for each plan. Raises: as ``cancel_pending_plan``.
    """
    for plan in plans:
        stopped = cancel_pending_plan(context, plan) is not None
        context.world.events.emit("write.made_way", plan=plan.requested_time, cancelled=stopped)

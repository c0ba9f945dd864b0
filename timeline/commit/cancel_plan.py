"""
Cancel a plan: end it without executing it (CAN-1).

An operator, a service whose plan is no longer valid, and a writer with priority over a clustering
take the same slot. The first slot counts: a plan that was completed meanwhile stays completed, and
the executor of a cancelled plan is rejected in its commit section.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from timeline.commit.section import open_commit
from timeline.context import TableContext
from timeline.model.file_names import pending_file_names
from timeline.model.instant import Instant
from timeline.model.slot import Slot, SlotKind
from timeline.snapshot import ActiveTimeline


class PlanOutcome(Enum):
    """Why a plan was not completed here."""

    COMPLETED_BY_OTHER = "another executor completed it"
    CANCELLED = "it was cancelled"
    ROLLED_BACK = "another engine rolled its execution back"
    REJECTED = "its input has changed"


def plan_outcome(timeline: ActiveTimeline, plan: Instant) -> PlanOutcome | None:
    """Return the outcome of a plan; None while it is being executed."""
    now = timeline.find(plan.requested_time, plan.action, plan.action.completes_as)
    if now is not None and now.completed:
        return PlanOutcome.COMPLETED_BY_OTHER
    inflight, requested = pending_file_names(plan.action, plan.requested_time)
    if requested in timeline.file_names:
        return None if inflight in timeline.file_names else PlanOutcome.ROLLED_BACK
    below = timeline.archived_below
    if below is not None and plan.requested_time < below:
        return PlanOutcome.COMPLETED_BY_OTHER  # and archived since: its files are visible to all
    return PlanOutcome.CANCELLED


def cancel_pending_plan(context: TableContext, plan: Instant) -> Slot | None:
    """
    End a plan that must not be completed, and delete its executor's files (CAN-1).

    Outside: 1 commit section (lock, list, create), the listing of its files, the deletes.

    Returns:
        The slot; None when the plan had already ended, completed or cancelled.

    Raises:
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.commit.commit.commit_write``. Once the slot is taken, the next commit section
            of any process completes the deletes.
    """
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, f"cancel {plan.requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            if plan_outcome(section.timeline, plan) in (
                PlanOutcome.COMPLETED_BY_OTHER,
                PlanOutcome.CANCELLED,
            ):
                return None
            slot = section.next_slot(
                context, SlotKind.CANCEL, plan.action, plan.requested_time, nonce=nonce
            )
            commit.take(section, slot)
    context.ports.events.emit("service.cancelled", action=plan.action.value, rt=plan.requested_time)
    return commit.taken


def cancel_blocking_plans(context: TableContext, plans: Iterable[Instant]) -> None:
    """
    Cancel the plans that reject a write, where writers have priority (CL-2).

    A plan that was completed meanwhile is validated as any other commit. Outside: as
    ``cancel_pending_plan``, for each plan. Raises: as ``cancel_pending_plan``.
    """
    for plan in plans:
        stopped = cancel_pending_plan(context, plan) is not None
        context.ports.events.emit("write.made_way", plan=plan.requested_time, cancelled=stopped)

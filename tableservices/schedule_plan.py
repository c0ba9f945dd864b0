"""
Scheduling: a service's plan becomes an instant of the timeline (PLAN-1 to PLAN-3).

A plan holds exactly what completed before its requested time; a log that completed earlier
and is not in it would be lost by the compaction. So the plan is made from a snapshot, and
the turn in which its slot is taken passes only if nothing was published since. A busy table
never stands still that long: after some tries the plan is made within the turn, as Java does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from timeline.active_timeline import ActiveTimeline
from timeline.commit.begin import refuse_during_restore
from timeline.commit.section import commit_in_section
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.model.file_names import instant_file_name
from timeline.model.instant import Action, Instant, State
from timeline.model.slot import Slot, SlotKind
from timeline.rules.instant_times import Residue
from timeline.snapshot import Snapshot

__all__ = ["PLANS", "pending_plans", "schedule"]

#: What a table service plans on the timeline and somebody carries out later.
PLANS = frozenset({Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING})

_TRIES_OUTSIDE = 3

Build = Callable[[Snapshot], bytes | None]


def pending_plans(timeline: ActiveTimeline, *actions: Action) -> tuple[Instant, ...]:
    """Plans that nobody has completed yet, oldest first; of all actions when none is named."""
    wanted = frozenset(actions) or PLANS
    return tuple(one for one in timeline.pending if one.action in wanted)


def schedule(context: TableContext, action: Action, build: Build) -> Instant | None:
    """
    Make a plan and put it on the timeline.

    Outside: for each try what ``build`` does and 1 turn (lock, list, create), 1 create.

    Args:
        context: The table.
        action: COMPACTION, LOGCOMPACTION or CLUSTERING.
        build: Makes the bytes of the requested file from a snapshot; None when there is
            nothing to plan. Called again for a newer snapshot, at last within the turn.

    Returns:
        The pending instant; None when there was nothing to plan.

    Raises:
        TableConfigConflictError: Another engine's restore is pending (BEG-3).
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.commit.commit.publish``; a plan whose slot was taken is made visible by the
            next turn of anybody.
    """
    for tries_left in reversed(range(_TRIES_OUTSIDE + 1)):
        draft = _Draft.of(context, build)
        slot = _publish(context, action, draft, within=None if tries_left else build)
        if slot is not None:
            planned = Instant(
                action=action, requested_time=slot.requested_time, state=State.REQUESTED
            )
            context.timelines.add(instant_file_name(planned))
            context.world.events.emit(
                "service.planned", action=action.value, rt=slot.requested_time, number=slot.number
            )
            return planned
        if draft.body is None:
            return None
        context.world.events.emit("service.replanned", action=action.value)
    return None


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan that is not on the timeline yet, and what it was made from."""

    snapshot: Snapshot
    body: bytes | None

    @classmethod
    def of(cls, context: TableContext, build: Build) -> _Draft:
        snapshot = context.snapshot()
        return cls(snapshot, build(snapshot))

    def holds(self, timeline: ActiveTimeline) -> bool:
        """
        Whether nothing completed and nothing was planned since.

        All slots up to the turn's are settled, so that the timeline tells of ours as of
        foreign instants (PUB-3, FOR-2).
        """
        seen = self.snapshot.active
        return timeline.completed_writes == seen.completed_writes and pending_plans(
            timeline
        ) == pending_plans(seen)


def _publish(
    context: TableContext, action: Action, draft: _Draft, *, within: Build | None
) -> Slot | None:
    """Take the slot of a plan; ``within`` makes it anew in the turn when it is stale there."""
    if draft.body is None:
        return None
    nonce = context.world.ids.nonce()

    def decide(turn: CommitSection) -> Slot | None:
        nonlocal draft
        refuse_during_restore(turn.timeline)  # it knows no plan that came after its own
        if not draft.holds(turn.timeline):
            if within is None:
                return None
            draft = _Draft.of(context, within)
        if draft.body is None:
            return None
        requested = turn.draw(context, Residue.SLOT_REQUESTED)
        return Slot(
            number=turn.head + 1,
            table_id=context.table_id,
            kind=SlotKind.PLAN,
            action=action,
            requested_time=requested,
            completion_time=requested,
            base=turn.head,
            nonce=nonce,
            owner=turn.owner,
            body=draft.body,
        )

    slot, _ = commit_in_section(context, f"schedule {action.value}", decide)
    return slot

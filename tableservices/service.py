"""The interface of all table services, and the scheduling of their plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from timeline.commit.begin import refuse_during_restore
from timeline.commit.section import open_commit
from timeline.context import TableContext
from timeline.model.file_names import instant_file_name
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.slot import Slot, SlotKind
from timeline.snapshot import ActiveTimeline, Snapshot


class ServiceResult(Protocol):
    """The result of one round of a service."""

    @property
    def requested_time(self) -> InstantTime:
        """The requested time of the instant that the round made."""

    @property
    def completion_time(self) -> InstantTime | None:
        """Its completion time; None for a plan that another executor will execute."""

    @property
    def text(self) -> str:
        """One line for people."""


class TableService(Protocol):
    """A table service; runs on one table at a time and keeps no state that safety needs."""

    @property
    def name(self) -> str:
        """The name in ``hoodoo services``, such as ``clean``."""

    @property
    def runs_inline(self) -> bool:
        """Whether a writer runs it after its own commit."""

    @property
    def runs_in_background(self) -> bool:
        """Whether a writer runs it on a background thread."""

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Run one round; return None when there was nothing to do."""


# ---- Schedule: commit a service's plan as an instant of the timeline (PLAN-1 to PLAN-3)
# A plan must include every change that completed before its requested time. Compaction would lose a
# log file that completed earlier and is not in the plan. So the plan is made from a snapshot, and its
# commit section succeeds only if there was no commit since. On a busy table this fails again and
# again. After some attempts the plan is made inside the commit section, as Java does.

#: Actions whose plans are committed first and executed later.
PLANS = frozenset({Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING})

_TRIES_OUTSIDE = 3

Build = Callable[[Snapshot], bytes | None]


def pending_plans(timeline: ActiveTimeline, *actions: Action) -> tuple[Instant, ...]:
    """Return the plans not completed yet, oldest first; of all actions when none is given."""
    wanted = frozenset(actions) or PLANS
    return tuple(one for one in timeline.pending if one.action in wanted)


def schedule(context: TableContext, action: Action, build: Build) -> Instant | None:
    """
    Make a plan and commit it.

    Outside: for each attempt the calls of ``build`` and 1 commit section (lock, list, create), 1
    create.

    Args:
        context: The table.
        action: COMPACTION, LOGCOMPACTION or CLUSTERING.
        build: Returns the bytes of the requested file for a snapshot; None when there is nothing to
            plan. Called again for a newer snapshot, at last inside the commit section.

    Returns:
        The pending instant; None when there was nothing to plan.

    Raises:
        TableConfigConflictError: Another engine's restore is pending (BEG-3).
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.commit.commit.commit_write``; the next commit section of any process applies
            a plan whose slot was taken.
    """
    for tries_left in reversed(range(_TRIES_OUTSIDE + 1)):
        draft = _Draft.of(context, build)
        slot = _publish(context, action, draft, within=None if tries_left else build)
        if slot is not None:
            planned = Instant(
                action=action, requested_time=slot.requested_time, state=State.REQUESTED
            )
            context.timelines.add(instant_file_name(planned))
            context.ports.events.emit(
                "service.planned", action=action.value, rt=slot.requested_time, number=slot.number
            )
            return planned
        if draft.body is None:
            return None
        context.ports.events.emit("service.replanned", action=action.value)
    return None


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan that is not committed yet, and its snapshot."""

    snapshot: Snapshot
    body: bytes | None

    @classmethod
    def of(cls, context: TableContext, build: Build) -> _Draft:
        snapshot = context.snapshot()
        return cls(snapshot, build(snapshot))

    def is_current(self, timeline: ActiveTimeline) -> bool:
        """
        Return whether no write completed and no plan was committed since the snapshot.

        All slots up to the commit section's are applied, so the timeline lists hoodoo's instants as
        well as those of other engines (PUB-3, FOR-2).
        """
        seen = self.snapshot.active
        return timeline.completed_writes == seen.completed_writes and pending_plans(
            timeline
        ) == pending_plans(seen)


def _publish(
    context: TableContext, action: Action, draft: _Draft, *, within: Build | None
) -> Slot | None:
    """Take the slot of a plan; ``within`` makes a stale plan again inside the commit section."""
    if draft.body is None:
        return None
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, f"schedule {action.value}")
    while not commit.is_decided():
        with commit.section() as section:
            # The restore does not know plans newer than its own.
            refuse_during_restore(section.timeline)
            if not draft.is_current(section.timeline):
                if within is None:
                    return None
                draft = _Draft.of(context, within)
            if draft.body is None:
                return None
            requested = section.draw_time(context, Residue.SLOT_REQUESTED)
            slot = Slot(
                number=section.head + 1,
                table_id=context.table_id,
                kind=SlotKind.PLAN,
                action=action,
                requested_time=requested,
                completion_time=requested,
                base=section.head,
                nonce=nonce,
                owner=section.owner,
                body=draft.body,
            )
            commit.take(section, slot)
    return commit.taken

"""
Services that plan first and carry out later: what they are, and one round of one.

The plan is an instant; carrying it out is somebody's job. A round may do either part alone,
so that writers plan and workers execute, and whoever executes takes up every plan that has
no living executor, of this engine or of Java Hudi.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tableservices.claims import is_claimed
from tableservices.scheduling import pending_plans
from tableservices.service import ServiceReceipt, TableService
from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import HoodooError, InstantNotFoundError
from timeline.model.instant import Action, Instant
from timeline.model.times import InstantTime

__all__ = ["Part", "PlannedService", "ScheduledReceipt", "run_round"]


class Part(Enum):
    """What of its work a service does in a round."""

    SCHEDULE = "schedule"
    EXECUTE = "execute"
    BOTH = "both"

    @property
    def schedules(self) -> bool:
        """Whether new plans are made."""
        return self is not Part.EXECUTE

    @property
    def executes(self) -> bool:
        """Whether plans are carried out."""
        return self is not Part.SCHEDULE


class PlannedService(TableService, Protocol):
    """A service whose plans are instants of the timeline."""

    @property
    def action(self) -> Action:
        """Of its plans."""

    @property
    def after_commit(self) -> TableService:
        """The same as a writer runs it after its own commit, perhaps one part alone."""

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:
        """Whether its trigger says that a plan is worth making."""

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """What a plan of this moment would hold, in figures; changes nothing."""

    def schedule(self, context: TableContext) -> Instant | None:
        """Put a plan on the timeline; None when there is nothing to plan."""

    def execute(self, context: TableContext, planned: Instant) -> ServiceReceipt | None:
        """Carry out a plan; None when another executor is at it or it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledReceipt:
    """A plan that was put on the timeline, for somebody else to carry out."""

    planned: Instant

    @property
    def requested_time(self) -> InstantTime:
        """Of the plan."""
        return self.planned.requested_time

    @property
    def completion_time(self) -> InstantTime | None:
        """Not completed yet."""
        return None

    @property
    def text(self) -> str:
        """One line for people."""
        return f"planned a {self.planned.action.value}"


def run_round(
    context: TableContext,
    service: PlannedService,
    part: Part = Part.BOTH,
    *,
    now: bool = False,
) -> ServiceReceipt | None:
    """
    Carry out what is planned, then plan anew if it is due and carry that out.

    Args:
        context: The table.
        service: Whose round.
        part: What it does of that.
        now: Plan whether due or not.

    Returns:
        The last receipt; None when there was nothing to do.

    Raises:
        HoodooError: The first failure of a plan, after all other plans were tried. Nothing
            new is planned then: a service that cannot end its plans must not heap them up.
    """
    receipt: ServiceReceipt | None = None
    failure: HoodooError | None = None
    timeline = context.active()
    for planned in pending_plans(timeline, service.action) if part.executes else ():
        if is_claimed(context, planned):
            continue
        try:
            receipt = service.execute(context, planned) or receipt
        except InstantNotFoundError:
            continue  # ended meanwhile
        except HoodooError as error:
            failure = failure or error
            context.world.events.emit(
                "service.plan_failed", rt=planned.requested_time, why=str(error)
            )
    if failure is not None:
        raise failure
    if part.schedules and (now or service.is_due(context, context.active())):
        made = service.schedule(context)
        if made is not None:
            done = service.execute(context, made) if part.executes else None
            receipt = done or ScheduledReceipt(planned=made)
    return receipt

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

from tableservices.claims import Standing, await_plan
from tableservices.scheduling import pending_plans
from tableservices.service import ServiceReceipt, TableService
from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import (
    FencedError,
    HoodooError,
    InstantNotFoundError,
    OutcomeUnknownError,
    ServiceConflictError,
    TableConfigConflictError,
    UnavailableError,
)
from timeline.model.instant import Action, Instant
from timeline.model.times import InstantTime
from timeline.properties.options import Option, OptionKind
from timeline.publishing.plan_ending import cancel

__all__ = ["PLAN_EXPIRY", "Part", "PlannedService", "ScheduledReceipt", "run_plan", "run_round"]

_EXPIRY_MS = 86_400_000

#: Read by the settings of every service that plans.
PLAN_EXPIRY = Option(
    key="hoodoo.services.plan.expiry.ms",
    default=str(_EXPIRY_MS),
    kind=OptionKind.MS,
    doc="Age at which a plan that cannot be carried out is cancelled by who tries in vain.",
    since="0.1",
)


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


#: Says nothing about a plan: another attempt may do, or another engine's restore ends first.
_PASSING = (UnavailableError, FencedError, OutcomeUnknownError, TableConfigConflictError)


def _age_ms(context: TableContext, planned: Instant) -> int:
    return context.world.clock.now_ms() - context.zone.wall_ms(planned.requested_time)


def _executed(
    context: TableContext, service: PlannedService, planned: Instant
) -> ServiceReceipt | None:
    """As ``execute``; a plan that somebody cancelled just before has ended, nothing failed."""
    try:
        return service.execute(context, planned)
    except InstantNotFoundError:
        return None


def run_plan(
    context: TableContext, service: PlannedService, planned: Instant, *, wait_ms: int = 0
) -> ServiceReceipt | None:
    """
    Carry out one plan that somebody named.

    Args:
        context: The table.
        service: The one of the plan's action.
        planned: A pending plan.
        wait_ms: For how long to wait for another executor of it.

    Returns:
        None when it ended without this executor: completed elsewhere, cancelled, or writers
        changed all of it.

    Raises:
        ServiceConflictError: Another executor is at it and stayed for all that time.
        Others: As ``PlannedService.execute``.
    """
    clock = context.world.clock
    until = clock.monotonic_ms() + wait_ms
    while True:
        left = max(0, until - clock.monotonic_ms())
        standing = await_plan(context, planned, wait_ms=left, named=True)
        if standing is Standing.HELD:
            raise ServiceConflictError(
                "another executor is at this plan; wait longer for it, or cancel the plan: "
                f"{planned}",
                kind="plan_claimed",
                requested_time=planned.requested_time,
                waited_ms=wait_ms,
            )
        receipt = _executed(context, service, planned) if standing is Standing.FREE else None
        # Without a receipt it has ended, or another one claimed it just before.
        if receipt is not None or await_plan(context, planned, wait_ms=0) is not Standing.HELD:
            return receipt


def run_round(
    context: TableContext,
    service: PlannedService,
    part: Part = Part.BOTH,
    *,
    now: bool = False,
    expiry_ms: int = _EXPIRY_MS,
    wait_ms: int = 0,
) -> ServiceReceipt | None:
    """
    Carry out what is planned, then plan anew if it is due and carry that out.

    Args:
        context: The table.
        service: Whose round.
        part: What it does of that.
        now: Plan whether due or not.
        expiry_ms: Age at which a plan that fails again is cancelled, else a damaged plan or
            one whose files are gone would stand in the way for ever. A storage or lock that
            does not answer says nothing about the plan.
        wait_ms: For how long to wait for the executor of each plan that somebody is at; such
            a plan is left to them afterwards.

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
        if await_plan(context, planned, wait_ms=wait_ms) is not Standing.FREE:
            continue
        try:
            receipt = _executed(context, service, planned) or receipt
        except HoodooError as error:
            context.world.events.emit(
                "service.plan_failed", rt=planned.requested_time, why=str(error)
            )
            if not isinstance(error, _PASSING) and _age_ms(context, planned) > expiry_ms:
                cancel(context, planned)
            else:
                failure = failure or error
    if failure is not None:
        raise failure
    if part.schedules and (now or service.is_due(context, context.active())):
        made = service.schedule(context)
        if made is not None:
            done = _executed(context, service, made) if part.executes else None
            receipt = done or ScheduledReceipt(planned=made)
    return receipt

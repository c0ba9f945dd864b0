"""Services that commit a plan first and execute it later; checks of the slices in a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Protocol

from pydantic import Field

from tableservices.plan_execution import ExecutorState, wait_for_executor
from tableservices.service import ServiceResult, TableService, pending_plans
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    FencedError,
    HoodooError,
    InstantNotFoundError,
    OutcomeUnknownError,
    ServiceConflictError,
    TableConfigConflictError,
    UnavailableError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import check_partition_path, join, without_scheme
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import Storage
from timeline.properties.options import OptionKind, OptionSettings, option
from timeline.snapshot import ActiveTimeline

# ---- File slices of a plan, checked before any of them is opened (SEC1, SEC2)
#
# Any process may have written the plan. Every name in it must be that of a data file of its
# file group. Every address must be in its partition: a bare name, a path below this table's
# base, or a path below an earlier base of a moved table (Java's plans hold full addresses).
# The check calls no storage. It runs before any read or delete.


def planned_slice(
    storage: Storage,
    *,
    partition_path: str | None,
    file_id: str | None,
    base_file: str | None,
    log_files: Sequence[str],
    bootstrap_file: str | None,
    path: str,
) -> FileSlice:
    """
    Return a file slice of a plan; its file sizes are unknown and set to 0.

    Args:
        storage: The table's storage, for its address.
        partition_path: As in the plan, like all arguments that follow.
        file_id: Of the file group.
        base_file: Name or address; None for a slice with log files only.
        log_files: Names or addresses.
        bootstrap_file: Only in tables that Hudi bootstrapped.
        path: The plan's path, for errors.

    Raises:
        CorruptTableError: The plan names a file that is not a data file of its file group.
        MalformedNameError: The partition path leaves the table.
        UnsupportedTableError: The plan reads bootstrapped files.
    """
    if bootstrap_file:
        raise UnsupportedTableError(
            "the plan reads files of a bootstrapped table, which this release does not support: "
            f"let Java Hudi execute it: {path}",
            kind="bootstrap",
            path=path,
        )
    group = FileGroupId(check_partition_path(partition_path or ""), file_id or "")
    base = None
    if base_file:
        name = _file_name(storage, group.partition_path, base_file, path)
        base = BaseFile.found(group.partition_path, name, 0)
        if base is None or base.file_group != group:
            raise invalid_plan_error(path, f"not a base file of {group}: {base_file[:300]!a}")
    logs = tuple(_log(storage, group, address, path) for address in log_files)
    if base is None and not logs:
        raise invalid_plan_error(path, f"a slice without files: {group}")
    first = base.requested_time if base else min(log.instant_time for log in logs)
    ordered = tuple(sorted(logs, key=lambda log: log.order))
    return FileSlice(file_group=group, base_instant_time=first, base_file=base, log_files=ordered)


def refuse_repeated(slices: Sequence[FileSlice], *, path: str) -> None:
    """
    Refuse a plan that names a file group twice.

    Raises:
        CorruptTableError: It does.
    """
    seen: set[FileGroupId] = set()
    for one in slices:
        if one.file_group in seen:
            raise invalid_plan_error(path, f"it names file group {one.file_group} twice")
        seen.add(one.file_group)


def invalid_plan_error(path: str, why: str) -> CorruptTableError:
    """Return the error for a plan that must not be executed."""
    return CorruptTableError(
        "a plan is damaged or hostile. Nothing was read or deleted: cancel it with 'hoodoo "
        f"services cancel TABLE INSTANT', then plan again: {path}: {why}",
        kind="bad_plan",
        path=path,
    )


def _log(storage: Storage, group: FileGroupId, address: str, path: str) -> LogFile:
    name = _file_name(storage, group.partition_path, address, path)
    found = LogFile.found(group.partition_path, name, 0)
    if found is None or found.file_group != group:
        raise invalid_plan_error(path, f"not a log file of {group}: {address[:300]!a}")
    return found


def _file_name(storage: Storage, partition_path: str, address: str, path: str) -> str:
    """Return the file name of an address; an address below this table's base must match exactly."""
    folder, _, name = address.rpartition("/")
    if not folder and "/" not in address:
        return name
    if not name or "/../" in address or "/./" in address:
        raise invalid_plan_error(path, f"an address that leaves its folder: {address[:300]!a}")
    plain = without_scheme(address)
    expected = join(partition_path, name)
    base = without_scheme(storage.base_uri).rstrip("/") + "/"
    inside = plain.startswith(base)
    if (inside and plain != base + expected) or not plain.endswith("/" + expected):
        raise invalid_plan_error(
            path, f"an address outside its partition {partition_path!a}: {address[:300]!a}"
        )
    return name


# ---- Services that commit a plan and execute it later; one round of such a service
#
# A round may schedule, execute, or do both. So writers can schedule while workers execute.
# An executor takes every plan without a live executor, planned by hoodoo or by Java Hudi.

_EXPIRY_MS = 86_400_000


class PlannedServiceSettings(OptionSettings):
    """Settings of every service that schedules plans."""

    expiry_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=2**53)] = option(
        "hoodoo.services.plan.expiry.ms",
        _EXPIRY_MS,
        "Age from which a plan that cannot be executed is cancelled by the next "
        "process that tries.",
    )


class Phase(Enum):
    """The work that a service does in a round."""

    SCHEDULE = "schedule"
    EXECUTE = "execute"
    BOTH = "both"

    @property
    def schedules(self) -> bool:
        """Return whether the round makes new plans."""
        return self is not Phase.EXECUTE

    @property
    def executes(self) -> bool:
        """Return whether the round executes plans."""
        return self is not Phase.SCHEDULE


class PlannedService(TableService, Protocol):
    """A service whose plans are instants of the timeline."""

    @property
    def action(self) -> Action:
        """The action of its plans."""

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:
        """Return whether its trigger is reached, so that a plan is due."""

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the figures of a plan made from the present state; change nothing."""

    def schedule(self, context: TableContext) -> Instant | None:
        """Commit a plan; return None when there is nothing to plan."""

    def execute(self, context: TableContext, planned: Instant) -> ServiceResult | None:
        """Execute a plan; return None when another executor has it or it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPlan:
    """A committed plan that another executor will execute."""

    planned: Instant

    @property
    def requested_time(self) -> InstantTime:
        """Return the requested time of the plan."""
        return self.planned.requested_time

    @property
    def completion_time(self) -> InstantTime | None:
        """Return None: the plan is not completed yet."""
        return None

    @property
    def text(self) -> str:
        """One line for people."""
        return f"planned a {self.planned.action.value}"


#: These errors do not blame the plan: a retry, or the end of another engine's restore, may help.
_PASSING = (UnavailableError, FencedError, OutcomeUnknownError, TableConfigConflictError)


def _age_ms(context: TableContext, planned: Instant) -> int:
    return context.ports.clock.now_ms() - context.zone.wall_ms(planned.requested_time)


def _executed(
    context: TableContext, service: PlannedService, planned: Instant
) -> ServiceResult | None:
    """Execute a plan; return None when it was cancelled just before."""
    try:
        return service.execute(context, planned)
    except InstantNotFoundError:
        return None


def run_plan(
    context: TableContext, service: PlannedService, planned: Instant, *, wait_ms: int = 0
) -> ServiceResult | None:
    """
    Execute one plan that the caller named.

    Args:
        context: The table.
        service: The service of the plan's action.
        planned: A pending plan.
        wait_ms: How long to wait for another executor of the plan, ms.

    Returns:
        None when it ended without this executor: it was completed elsewhere or cancelled, or
        writers changed all of it.

    Raises:
        ServiceConflictError: Another executor kept the plan for all of ``wait_ms``.
        Others: As ``PlannedService.execute``.
    """
    clock = context.ports.clock
    until = clock.monotonic_ms() + wait_ms
    while True:
        left = max(0, until - clock.monotonic_ms())
        state = wait_for_executor(context, planned, wait_ms=left, named=True)
        if state is ExecutorState.LEASED:
            raise ServiceConflictError(
                "another executor works on this plan: wait longer for it, or cancel the plan "
                f"with 'hoodoo services cancel TABLE INSTANT': {planned}",
                kind="plan_claimed",
                requested_time=planned.requested_time,
                waited_ms=wait_ms,
            )
        result = _executed(context, service, planned) if state is ExecutorState.FREE else None
        # No result: the plan has ended, or another executor leased it just before.
        if (
            result is not None
            or wait_for_executor(context, planned, wait_ms=0) is not ExecutorState.LEASED
        ):
            return result


def run_round(
    context: TableContext,
    service: PlannedService,
    part: Phase = Phase.BOTH,
    *,
    now: bool = False,
    expiry_ms: int = _EXPIRY_MS,
    wait_ms: int = 0,
) -> ServiceResult | None:
    """
    Execute the pending plans, then schedule and execute a new one if it is due.

    Args:
        context: The table.
        service: The service to run.
        part: The phases to run.
        now: Schedule a plan even when it is not due.
        expiry_ms: Age, ms, at which a plan that fails again is cancelled. Otherwise a damaged plan,
            or one with missing files, would block the service for ever. Errors of the storage or
            the lock do not count against the plan.
        wait_ms: How long to wait for another executor of each plan, ms; then the round leaves the
            plan to it.

    Returns:
        The last result; None when there was nothing to do.

    Raises:
        HoodooError: The first failure of a plan, after all other plans were tried. The round
            schedules no new plan then, so that failing plans do not pile up.
    """
    result: ServiceResult | None = None
    failure: HoodooError | None = None
    timeline = context.active()
    for planned in pending_plans(timeline, service.action) if part.executes else ():
        if wait_for_executor(context, planned, wait_ms=wait_ms) is not ExecutorState.FREE:
            continue
        try:
            result = _executed(context, service, planned) or result
        except HoodooError as error:
            context.ports.events.emit(
                "service.plan_failed", rt=planned.requested_time, why=str(error)
            )
            if not isinstance(error, _PASSING) and _age_ms(context, planned) > expiry_ms:
                cancel_pending_plan(context, planned)
            else:
                failure = failure or error
    if failure is not None:
        raise failure
    if part.schedules and (now or service.is_due(context, context.active())):
        made = service.schedule(context)
        if made is not None:
            done = _executed(context, service, made) if part.executes else None
            result = done or ScheduledPlan(planned=made)
    return result

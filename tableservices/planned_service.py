"""Services that plan first and execute later, and the proof of the slices that a plan names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tableservices.plan_execution import ExecutorState, wait_for_executor
from tableservices.schedule_plan import pending_plans
from tableservices.service import ServiceResult, TableService
from timeline.active_timeline import ActiveTimeline
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
from timeline.model.file_names import (
    BaseFile,
    FileSlice,
    LogFile,
    check_partition_path,
    join,
    parse_base_file_name,
    parse_log_file_name,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import FileGroupId
from timeline.ports.storage import Storage
from timeline.properties.options import Option, OptionKind

__all__ = [
    "PLAN_EXPIRY",
    "Phase",
    "PlannedService",
    "ScheduledPlan",
    "invalid_plan_error",
    "planned_slice",
    "refuse_repeated",
    "run_plan",
    "run_round",
]

# ------------ The file slices that a plan names, proven before a single one is opened (SEC1, SEC2)
#
# A plan is a file of the table that anybody may have written. Every name in it must be that of a
# data file of its file group, and every address must lie in its partition: bare, below this
# table's base, or where a table lay that was moved since (Java's plans carry whole addresses).
# Nothing is asked of the storage for that, and nothing is read or deleted before.

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


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
    A slice of a plan; the sizes of its files are not known yet and 0.

    Args:
        storage: Where the table lies, for its address.
        partition_path: As the plan says, like all that follows.
        file_id: Of the file group.
        base_file: Name or address; none for a slice of logs alone.
        log_files: Names or addresses.
        bootstrap_file: Of tables that Hudi bootstrapped.
        path: Where the plan is, for errors.

    Raises:
        CorruptTableError: It names something that is no data file of its file group.
        MalformedNameError: The partition path leaves the table.
        UnsupportedTableError: It reads bootstrapped files.
    """
    if bootstrap_file:
        raise UnsupportedTableError(
            "the plan reads files of a bootstrapped table, which this release does not; let "
            f"Java Hudi carry it out: {path}",
            kind="bootstrap",
            path=path,
        )
    group = FileGroupId(check_partition_path(partition_path or ""), file_id or "")
    base = None
    if base_file:
        name = _file_name(storage, group.partition_path, base_file, path)
        parsed = parse_base_file_name(name)
        if parsed is None or parsed.file_id != group.file_id:
            raise invalid_plan_error(path, f"not a base file of {group}: {base_file[:300]!a}")
        base = BaseFile(
            file_group=group, name=name, requested_time=parsed.requested_time, size_bytes=0
        )
    logs = tuple(_log(storage, group, address, path) for address in log_files)
    if base is None and not logs:
        raise invalid_plan_error(path, f"a slice without files: {group}")
    first = base.requested_time if base else min(log.instant_time for log in logs)
    ordered = tuple(sorted(logs, key=lambda log: log.order))
    return FileSlice(file_group=group, base_instant_time=first, base_file=base, log_files=ordered)


def refuse_repeated(slices: Sequence[FileSlice], *, path: str) -> None:
    """
    Pass when a plan names no file group twice.

    Raises:
        CorruptTableError: It does.
    """
    seen: set[FileGroupId] = set()
    for one in slices:
        if one.file_group in seen:
            raise invalid_plan_error(path, f"it names file group {one.file_group} twice")
        seen.add(one.file_group)


def invalid_plan_error(path: str, why: str) -> CorruptTableError:
    """The error of a plan that must not be carried out."""
    return CorruptTableError(
        f"a plan is damaged or hostile; nothing was read or deleted, cancel it and plan anew: "
        f"{path}: {why}",
        kind="bad_plan",
        path=path,
    )


def _log(storage: Storage, group: FileGroupId, address: str, path: str) -> LogFile:
    name = _file_name(storage, group.partition_path, address, path)
    parsed = parse_log_file_name(name)
    if parsed is None or parsed.is_cdc or parsed.file_id != group.file_id:
        raise invalid_plan_error(path, f"not a log file of {group}: {address[:300]!a}")
    return LogFile(
        file_group=group,
        name=name,
        instant_time=parsed.instant_time,
        log_version=parsed.log_version,
        write_token=parsed.write_token,
        size_bytes=0,
    )


def _file_name(storage: Storage, partition_path: str, address: str, path: str) -> str:
    """The last part of an address; one below this table's base must be the very place."""
    folder, _, name = address.rpartition("/")
    if not folder and "/" not in address:
        return name
    if not name or "/../" in address or "/./" in address:
        raise invalid_plan_error(path, f"an address that leaves its folder: {address[:300]!a}")
    plain = _plain(address)
    expected = join(partition_path, name)
    base = _plain(storage.base_uri).rstrip("/") + "/"
    inside = plain.startswith(base)
    if (inside and plain != base + expected) or not plain.endswith("/" + expected):
        raise invalid_plan_error(
            path, f"an address outside its partition {partition_path!a}: {address[:300]!a}"
        )
    return name


def _plain(address: str) -> str:
    """An address without its scheme and with one leading slash."""
    return "/" + _SCHEME.sub("", address, count=1).lstrip("/")


# --------------- Services that plan first and carry out later: what they are, and one round of one
#
# The plan is an instant; carrying it out is somebody's job. A round may do either part alone,
# so that writers plan and workers execute, and whoever executes takes up every plan that has
# no living executor, of this engine or of Java Hudi.

_EXPIRY_MS = 86_400_000

#: Read by the settings of every service that plans.
PLAN_EXPIRY = Option(
    key="hoodoo.services.plan.expiry.ms",
    default=str(_EXPIRY_MS),
    kind=OptionKind.MS,
    doc="Age at which a plan that cannot be carried out is cancelled by who tries in vain.",
    since="0.1",
)


class Phase(Enum):
    """What of its work a service does in a round."""

    SCHEDULE = "schedule"
    EXECUTE = "execute"
    BOTH = "both"

    @property
    def schedules(self) -> bool:
        """Whether new plans are made."""
        return self is not Phase.EXECUTE

    @property
    def executes(self) -> bool:
        """Whether plans are carried out."""
        return self is not Phase.SCHEDULE


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

    def execute(self, context: TableContext, planned: Instant) -> ServiceResult | None:
        """Carry out a plan; None when another executor is at it or it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPlan:
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
) -> ServiceResult | None:
    """As ``execute``; a plan that somebody cancelled just before has ended, nothing failed."""
    try:
        return service.execute(context, planned)
    except InstantNotFoundError:
        return None


def run_plan(
    context: TableContext, service: PlannedService, planned: Instant, *, wait_ms: int = 0
) -> ServiceResult | None:
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
        standing = wait_for_executor(context, planned, wait_ms=left, named=True)
        if standing is ExecutorState.HELD:
            raise ServiceConflictError(
                "another executor is at this plan; wait longer for it, or cancel the plan: "
                f"{planned}",
                kind="plan_claimed",
                requested_time=planned.requested_time,
                waited_ms=wait_ms,
            )
        receipt = _executed(context, service, planned) if standing is ExecutorState.FREE else None
        # Without a receipt it has ended, or another one claimed it just before.
        if (
            receipt is not None
            or wait_for_executor(context, planned, wait_ms=0) is not ExecutorState.HELD
        ):
            return receipt


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
    receipt: ServiceResult | None = None
    failure: HoodooError | None = None
    timeline = context.active()
    for planned in pending_plans(timeline, service.action) if part.executes else ():
        if wait_for_executor(context, planned, wait_ms=wait_ms) is not ExecutorState.FREE:
            continue
        try:
            receipt = _executed(context, service, planned) or receipt
        except HoodooError as error:
            context.world.events.emit(
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
            receipt = done or ScheduledPlan(planned=made)
    return receipt

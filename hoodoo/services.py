"""Table services of one opened table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from filegroups.settings.known_keys import key_warnings, keys_without_effect
from filegroups.settings.settings import WriteSettings
from filegroups.writing.write_request import FileRules
from hoodoo.configuration import declared_keys
from hoodoo.service_executor import service_context
from hoodoo.sync.service import SILENT, CatalogSyncService
from hoodoo.sync.settings import SyncSettings
from hoodoo.sync.sync import SyncResult, sync_table
from hoodoo.write_requests import file_rules_of
from lockproviders.registry import registry_for
from lockproviders.settings import LockSettings
from tableservices import hookspecs
from tableservices.archiving.execute import ArchiveResult, ArchivingService, archive
from tableservices.archiving.plan import ArchiveRules, ArchivingSettings
from tableservices.cleaning.execute import CleaningService, CleanResult, clean
from tableservices.cleaning.plan import CleaningSettings
from tableservices.clustering.execute import ClusteringService
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.execute import CompactionService
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionService, LogCompactionSettings
from tableservices.metadata_table.execute import (
    MetadataServiceResult,
    MetadataTableService,
    maintain_metadata_table,
)
from tableservices.metadata_table.plan import MetadataServiceSettings
from tableservices.planned_service import Phase, PlannedService, run_plan, run_round
from tableservices.service import ServiceResult, TableService, pending_plans
from tableservices.ttl.execute import TtlResult, TtlService, TtlSettings, expire
from tableservices.worker import (
    BackgroundServices,
    WorkerSettings,
    WorkerTable,
)
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, InvalidInputError, reason_of
from timeline.model.instant import Instant
from timeline.model.time_arguments import TimeArgument
from timeline.ports.ports import EventSink
from timeline.properties.options import (
    CODE_LAYER,
    Option,
    OptionSettings,
    PropertySet,
    as_property_set,
)
from timeline.rollback.rollback import RollbackDecision, rollback_dead_writers
from timeline.snapshot import ActiveTimeline

# ---- Table services of one opened table: ``table.services``


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """The inputs of the services of one table; each service reads its own keys."""

    properties: Mapping[str, str]
    files: FileRules
    phase: Phase = Phase.BOTH  # of services that plan first
    after_commits: bool = False  # whether they run after a writer's commits


_Made_co = TypeVar("_Made_co", bound=TableService, covariant=True)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[_Made_co]):
    """
    A service of this release.

    Args:
        settings: Class of its options; ``config show`` lists them, opening a table checks them.
        switches: A writer runs the service after a commit or on a thread if one of these fields
            is true. A service that is off runs no code.
        make: Returns the service with its settings.
    """

    settings: type[OptionSettings]
    switches: tuple[str, ...]
    make: Callable[[Any, _Making], _Made_co]

    def is_on(self, settings: OptionSettings) -> bool:
        """Return whether a writer runs the service."""
        return any(getattr(settings, switch) for switch in self.switches)


def _make_archiving(settings: ArchivingSettings, making: _Making) -> TableService:
    rules = ArchiveRules.from_properties(making.properties, settings)
    return ArchivingService(rules=rules, has_other_writers=making.after_commits)


def _make_metadata(settings: MetadataServiceSettings, making: _Making) -> TableService:
    return MetadataTableService(
        settings=settings,
        archiving=ArchivingSettings.from_properties(making.properties),
        after_commits=making.after_commits,
    )


def _make_compaction(settings: CompactionSettings, making: _Making) -> PlannedService:
    orders = _plugged(making.properties, "compaction_strategies")
    made = CompactionService(
        settings=settings, files=making.files, phase=making.phase, orders=orders
    )
    return made.after_commit if making.after_commits else made


def _make_clustering(settings: ClusteringSettings, making: _Making) -> PlannedService:
    made = ClusteringService(settings=settings, files=making.files, phase=making.phase)
    return made.after_commit if making.after_commits else made


#: Services whose plans are instants of the timeline. Add a new service of that kind here.
_PLANNED: tuple[_Entry[PlannedService], ...] = (
    _Entry(CompactionSettings, ("runs_inline", "plans_inline", "asynchronous"), _make_compaction),
    _Entry(
        LogCompactionSettings,
        ("inline",),
        lambda settings, making: LogCompactionService(
            settings=settings, files=making.files, phase=making.phase
        ),
    ),
    _Entry(ClusteringSettings, ("inline", "schedule_inline", "asynchronous"), _make_clustering),
)

#: All services of this release, in Hudi's order; a sync sees what the others did. Add a new one here.
_SERVICES: tuple[_Entry[TableService], ...] = (
    _Entry(
        CleaningSettings, ("automatic",), lambda settings, _: CleaningService(settings=settings)
    ),
    _Entry(MetadataServiceSettings, ("inline",), _make_metadata),
    _Entry(ArchivingSettings, ("automatic",), _make_archiving),
    *_PLANNED,
    _Entry(TtlSettings, ("inline",), lambda settings, _: TtlService(settings=settings)),
    _Entry(
        SyncSettings,
        ("hive_enabled", "meta_enabled"),
        lambda settings, _: CatalogSyncService(settings=settings),
    ),
)


def service_options() -> tuple[Option, ...]:
    """Return the options of all services, one for each key."""
    declared: list[type[OptionSettings]] = [*(one.settings for one in _SERVICES), WorkerSettings]
    options = (option for settings in declared for option in settings.options.values())
    return tuple({option.key: option for option in options}.values())


@cache
def _declared_keys() -> frozenset[str]:
    return declared_keys(service_options())


def warn_ignored_keys(properties: PropertySet, events: EventSink) -> None:
    """Warn of keys without effect; keys without effect by design only emit an event."""
    declared = _declared_keys()
    warned = key_warnings(properties, declared)
    if warned:
        warnings.warn("; ".join(warned), stacklevel=3)
    ineffective = keys_without_effect(properties, declared)
    if ineffective:
        events.emit("options.without_effect", keys=", ".join(ineffective))


def compaction_of_stream(properties: PropertySet, settings: WriteSettings) -> Mapping[str, object]:
    """Return the options of compaction for a stream: in the background by default, as in Hudi."""
    option = CompactionSettings.options["asynchronous"]
    if settings.stream_disables_compaction:
        return {option.key: "false"}
    return {} if properties.get_option(option) is not None else {option.key: "true"}


def services_of(
    properties: Mapping[str, str],
    part: Phase = Phase.BOTH,
    settings: WriteSettings | None = None,
) -> tuple[TableService, ...]:
    """
    Return all services of this release in Hudi's order, configured.

    Args:
        properties: Effective properties; each service reads its own keys.
        part: The phases that planned services run.
        settings: The settings of writes, if known: the properties of a table of another engine
            may not give them again.

    Raises:
        SettingError: A service's property is wrong.
    """
    making = _making(properties, settings, part)
    made = [one.make(one.settings.from_properties(properties), making) for one in _SERVICES]
    return (*made, *_plugged(properties, "table_services"))


def planned_services_of(
    properties: Mapping[str, str], settings: WriteSettings
) -> tuple[PlannedService, ...]:
    """Return the services with plans on the timeline; arguments and errors as ``services_of``."""
    making = _making(properties, settings)
    return tuple(one.make(one.settings.from_properties(properties), making) for one in _PLANNED)


def services_of_writer(
    properties: Mapping[str, str], settings: WriteSettings, *, after_commits: bool
) -> tuple[TableService, ...]:
    """
    Return the services that a writer's options switch on, and the services of plug-ins.

    Args:
        properties: Effective properties; options of services that are off are checked, too.
        settings: The settings of writes.
        after_commits: Whether they run after the writer's commits; else on a thread.

    Raises:
        SettingError: A service's property is wrong.
    """
    making = _making(properties, settings, after_commits=after_commits)
    read = [(one, one.settings.from_properties(properties)) for one in _SERVICES]
    made = [one.make(options, making) for one, options in read if one.is_on(options)]
    return (*made, *_plugged(properties, "table_services"))


def _making(
    properties: Mapping[str, str],
    settings: WriteSettings | None,
    phase: Phase = Phase.BOTH,
    *,
    after_commits: bool = False,
) -> _Making:
    files = file_rules_of(settings or WriteSettings.from_properties(properties))
    return _Making(properties=properties, files=files, phase=phase, after_commits=after_commits)


def _plugged(properties: Mapping[str, str], hook: str) -> tuple[Any, ...]:
    """Return the objects that allowed plug-ins offer for a hook; empty without allowed plug-ins."""
    if not properties.get(LockSettings.options["plugins"].key):
        return ()
    return registry_for(properties, (hookspecs,)).offers(hook, properties=properties)


_Service = TypeVar("_Service", bound=TableService)


def chosen_services(offered: Sequence[_Service], names: Iterable[str]) -> list[_Service]:
    """
    Return the services of these names; all services without names.

    Raises:
        InvalidInputError: No service has one of these names.
    """
    wanted = set(names)
    known = {one.name for one in offered}
    if wanted - known:
        raise InvalidInputError(
            f"this service is unknown; choose from {sorted(known)}: {sorted(wanted - known)}",
            kind="no_service",
        )
    return [one for one in offered if not wanted or one.name in wanted]


def find_plan(context: TableContext, requested_time: TimeArgument) -> Instant:
    """
    Return the pending plan of a requested time, in any form of a time argument. Outside: 1 list.

    Raises:
        InstantNotFoundError: No such plan; the text lists the pending plans.
        InvalidInputError: The argument is not a time.
    """
    time = context.parse_instant(requested_time)
    pending = pending_plans(context.active())
    for planned in pending:
        if planned.requested_time == time:
            return planned
    known = [f"{one.requested_time} ({one.action.value})" for one in pending]
    raise InstantNotFoundError(
        f"the table has no such pending plan; choose from {known}: {time}",
        kind="plan_unknown",
        requested_time=time,
    )


class Services:
    """
    The table services of one table.

    Args:
        context: The table.
        properties: Effective properties; each service reads its own keys.
        settings: The settings of writes of the opened table.
        register_writer: Registers this process as a writer of the table.

    Raises:
        SettingError: A service's property is wrong.
    """

    def __init__(
        self,
        context: TableContext,
        properties: Mapping[str, str],
        settings: WriteSettings,
        register_writer: Callable[[], None],
    ) -> None:
        self._context = context
        self._register_writer = register_writer
        self._properties = properties
        self._settings = settings
        self._running = WorkerSettings.from_properties(properties)
        self._working: TableContext | None = None
        self._started: list[BackgroundServices] = []
        self._announced_changes = False
        self._cleaning = CleaningSettings.from_properties(properties)
        self._after_commit = services_of_writer(properties, settings, after_commits=True)

    def clean(self) -> CleanResult | None:
        """
        Roll back dead writers, then delete the file slices that retention no longer keeps.

        Returns:
            The result, or None without anything to delete.

        Raises:
            WriterDisagreementError: A live writer is configured differently.
            LockTimeoutError, StorageUnavailableError, OutcomeUnknownError: The lock or the
                storage did not answer.
        """
        self._register_writer()
        return clean(self._context, self._cleaning)

    def compact(self) -> ServiceResult | None:
        """
        Execute pending compactions, then merge all log files, due or not.

        Returns:
            The last result, or None without anything to compact.

        Raises:
            UnsupportedTableError: The table has no logs.
            SettingError, WriterDisagreementError, LockTimeoutError, StorageUnavailableError,
                OutcomeUnknownError: As ``clean``.
        """
        return self._run("compact", Phase.BOTH)

    def cluster(
        self, sort_by: Sequence[str] | None = None, *, curve: str | None = None
    ) -> ServiceResult | None:
        """
        Execute pending clusterings, then rewrite small files into big ones, due or not.

        Args:
            sort_by: Columns that sort the rows; None for those of
                ``hoodie.clustering.plan.strategy.sort.columns``.
            curve: ``linear``, ``zorder`` or ``hilbert``; None for
                ``hoodie.layout.optimize.strategy``.

        Returns:
            The last result; None if nothing would change, or if writers changed all of the
            input meanwhile.

        Raises:
            InvalidInputError: A sort column is missing or has no order.
            UnsupportedTableError: The table has a bucket index.
            SettingError, WriterDisagreementError, LockTimeoutError, StorageUnavailableError,
                OutcomeUnknownError: As ``clean``.
        """
        options = {
            ClusteringSettings.options["sort_columns"].key: None
            if sort_by is None
            else ",".join(sort_by),
            ClusteringSettings.options["curve"].key: curve,
        }
        chosen = {key: value for key, value in options.items() if value is not None}
        properties = as_property_set(self._properties).with_layer(CODE_LAYER, chosen)
        return self._run("cluster", Phase.BOTH, properties)

    def log_compact(self) -> ServiceResult | None:
        """Merge small log files, due or not. Returns and errors: as ``compact``."""
        return self._run("logcompact", Phase.BOTH)

    def schedule(self, service: str) -> ServiceResult | None:
        """
        Commit a plan of a service, due or not, for another executor.

        Args:
            service: ``compact``, ``logcompact`` or ``cluster``.

        Raises:
            InstantNotFoundError: No planned service has this name.
            Others: As ``compact``.
        """
        return self._run(service, Phase.SCHEDULE)

    def start(
        self, *names: str, part: Phase = Phase.BOTH, interval_ms: int | None = None
    ) -> BackgroundServices:
        """
        Run services on a thread of this process, in rounds, until stopped.

        The writer writes at the same time; no lock outside of this machine is needed. A failure
        emits the event ``service.failed``, and the next write or ``close`` warns of it. The next
        round tries again.

        Args:
            names: Names of services; all services without names.
            part: The phases that planned services run.
            interval_ms: Pause between two rounds, in milliseconds; default
                ``hoodoo.services.interval.ms``.

        Returns:
            The running services: ``stop()`` waits for the current service and ends them.
            Closing the table does the same.

        Raises:
            InvalidInputError: No service has one of these names.
            WriterDisagreementError: A live writer is configured differently.
        """
        offered = services_of(self._properties, part, self._settings)
        return self._start(chosen_services(offered, names), interval_ms)

    def start_background(self) -> None:
        """
        Start the asynchronous services of a registered writer, once, before its first write.

        The options are ``hoodie.clean.async``, ``hoodie.archive.async``,
        ``hoodie.datasource.compaction.async.enable`` and ``hoodie.clustering.async.enabled``.
        ``hoodoo.services.beside.writers=false`` leaves these services to workers.
        Errors: as ``start``.
        """
        if self._announced_changes:
            return
        self._announced_changes = True
        if not (self._running.enabled and self._running.in_background):
            return
        offered = services_of_writer(self._properties, self._settings, after_commits=False)
        chosen = [one for one in offered if one.runs_in_background]
        if chosen:
            self._start(chosen, None)

    def _start(
        self, services: Sequence[TableService], interval_ms: int | None
    ) -> BackgroundServices:
        ports, config = self._at_work().ports, self._context.config
        served = WorkerTable(
            # A context of its own, because only one thread may use a context's commit log.
            context=TableContext.of(ports, config, self._context.limits),
            services=services,
        )
        self._register_writer()
        started = BackgroundServices(served, interval_ms=interval_ms or self._running.interval_ms)
        self._started.append(started)
        return started

    def take_failures(self) -> tuple[str, ...]:
        """Return one line for each failure of a background service since the last call."""
        return tuple(line for one in self._started for line in one.take_failures())

    def close(self) -> tuple[str, ...]:
        """Stop all background services after their current service; return the last failures."""
        for one in self._started:
            one.stop()
        last = self.take_failures()
        self._started.clear()
        return last

    def _at_work(self) -> TableContext:
        if self._working is None:
            self._working = service_context(self._context, self._properties)
        return self._working

    def execute(
        self, requested_time: TimeArgument, *, wait_ms: int | None = None
    ) -> ServiceResult | None:
        """
        Execute one pending plan of hoodoo or of Java Hudi.

        Args:
            requested_time: The plan's time, in any form of ``Table.as_of``.
            wait_ms: How long to wait for another executor of the plan, in milliseconds; the lease
                of a dead one ends with its heartbeat. None for ``hoodoo.services.wait.ms``.

        Returns:
            The result; None if another process ended the plan meanwhile.

        Raises:
            InstantNotFoundError: No such pending plan.
            ServiceConflictError: Another executor still runs the plan after the wait.
            CorruptTableError, MalformedNameError: The plan is damaged or hostile.
            Others: As ``compact``.
        """
        planned = find_plan(self._context, requested_time)
        for service in planned_services_of(self._properties, settings=self._settings):
            if service.action is planned.action:
                self._register_writer()
                wait = self._running.wait_ms if wait_ms is None else wait_ms
                return run_plan(self._at_work(), service, planned, wait_ms=wait)
        raise _no_service(planned.action.value)

    def cancel(self, requested_time: TimeArgument) -> bool:
        """
        Cancel a pending plan and delete the files that were written for it.

        Args:
            requested_time: The plan's time, in any form of ``Table.as_of``.

        Returns:
            False if the plan was completed or cancelled meanwhile.

        Raises:
            InstantNotFoundError: No such pending plan.
            Others: As ``compact``.
        """
        planned = find_plan(self._context, requested_time)
        self._register_writer()
        return cancel_pending_plan(self._context, planned) is not None

    def _run(
        self, name: str, part: Phase, properties: Mapping[str, str] | None = None
    ) -> ServiceResult | None:
        given = properties or self._properties
        for service in planned_services_of(given, settings=self._settings):
            if service.name == name:
                self._register_writer()
                return run_round(
                    self._at_work(), service, part, now=True, wait_ms=self._running.wait_ms
                )
        raise _no_service(name)

    def maintain_metadata_table(self) -> MetadataServiceResult | None:
        """
        Compact the metadata table, due or not; then clean it and archive its instants.

        Returns:
            The result; None without a metadata table or without new log files, or if a pending
            instant or another process prevents it.

        Raises:
            MetadataTableOnError: It has partitions that this release cannot maintain.
            WriterDisagreementError: A live writer is configured differently.
            LockTimeoutError, StorageUnavailableError, OutcomeUnknownError: The lock or the
                storage did not answer; the next round continues from there.
        """
        self._register_writer()
        return maintain_metadata_table(
            self._context,
            MetadataServiceSettings.from_properties(self._properties),
            ArchivingSettings.from_properties(self._properties),
            now=True,
        )

    def archive(self) -> ArchiveResult | None:
        """
        Move old instants from the active timeline to the archived timeline.

        Returns:
            The result; None if it is not due or all instants are still needed.

        Raises:
            SettingError: A property of archiving is wrong, or contradicts cleaning.
            WriterDisagreementError: A live writer is configured differently.
            LockTimeoutError, StorageUnavailableError, OutcomeUnknownError: The lock or the
                storage did not answer; the next archive continues from there.
        """
        self._register_writer()
        return archive(self._context, ArchiveRules.from_properties(self._properties))

    def expire_partitions(self) -> TtlResult | None:
        """
        Delete expired partitions (``hoodie.partition.ttl.*``).

        The sync of the next commit or round removes them from catalogs; ``sync`` does so at once.

        Returns:
            The result; None if no partition has expired, or no number of days is set.

        Raises:
            ConflictError: In each attempt other writers wrote into expired partitions.
            SettingError, WriterDisagreementError, LockTimeoutError, StorageUnavailableError,
                OutcomeUnknownError: As ``clean``.
        """
        self._register_writer()
        return expire(self._context, TtlSettings.from_properties(self._properties))

    def sync(self, *, full: bool = False) -> SyncResult | None:
        """
        Sync the table with the catalogs of its options, also if they do not switch it on.

        The options are ``hoodie.datasource.hive_sync.*`` and ``hoodie.meta.sync.*``.

        Args:
            full: Compare all partitions, not only those of commits after the last sync.

        Returns:
            The changes of each entry; None for a table without a completed write.

        Raises:
            MissingExtraError: The packages of a catalog are not installed.
            UnavailableError: A catalog does not answer; the table is as before, so repeat it.
            UnsafeSetupError: A catalog refuses a change, or its database is missing.
            InvalidInputError: A partition path does not fit the partition columns.
            UnsupportedTableError: A catalog has no type for a column, or other partition columns.
        """
        settings = SyncSettings.from_properties(self._properties, asked=True)
        result = sync_table(self._context, settings, full=full)
        SILENT.forget(settings)
        return result

    def rollback_dead_writers(
        self, timeline: ActiveTimeline | None = None
    ) -> list[RollbackDecision]:
        """
        Roll back all pending writes with an expired heartbeat. Errors: as ``clean``.

        Args:
            timeline: A recent timeline of the caller; None to read it.
        """
        self._register_writer()
        return rollback_dead_writers(self._context, timeline)

    def after_commit(self) -> tuple[str, ...]:
        """
        Run the services that are due after a commit; return a line for each that failed.

        A sync is none of the services that ``hoodie.table.services.enabled`` switches off.
        """
        due = [
            one
            for one in self._after_commit
            if self._running.enabled or isinstance(one, CatalogSyncService)
        ]
        return run_inline(self._at_work(), due) if due else ()


def run_inline(context: TableContext, services: Sequence[TableService]) -> tuple[str, ...]:
    """Run each inline service once; a failure does not undo the commit before it (PUB-9)."""
    failures = []
    for service in services:
        if service.runs_inline:
            try:
                service.run_once(context)
            except Exception as error:  # noqa: BLE001 - the next round tries again
                context.ports.events.emit(
                    "service.failed", service=service.name, why=reason_of(error)
                )
                failures.append(
                    f"the write is committed, but {service.name} after it failed: {error}"
                )
    return tuple(failures)


def _no_service(name: str) -> InstantNotFoundError:
    return InstantNotFoundError(
        f"this release has no planning service of this name; choose another: {name}",
        kind="no_service",
    )

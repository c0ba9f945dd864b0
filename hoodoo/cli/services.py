"""``hoodoo services``: run table services once, plan or execute them, or start a worker."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from hoodoo.cli.instants import instant_named
from hoodoo.cli.invocation import (
    ERROR,
    CommandGroup,
    Invocation,
    changing,
    exit_code,
    nothing_to_do,
    progress_events,
    reading,
)
from hoodoo.cli.printing import Printer, count_text, size_text
from hoodoo.inspect.idle_services import idle_reason
from hoodoo.service_executor import service_context
from hoodoo.service_previews import preview
from hoodoo.services import (
    chosen_services,
    find_plan,
    planned_services_of,
    services_of,
)
from hoodoo.sync.sync import SyncResult
from hoodoo.writer import register_writer
from tableservices.archiving.execute import ArchiveResult
from tableservices.cleaning.execute import CleanResult
from tableservices.clustering.execute import ClusteringResult
from tableservices.compaction.execute import CompactionResult
from tableservices.logcompaction.execute import LogCompactionResult
from tableservices.metadata_table.execute import MetadataTableService
from tableservices.planned_service import Phase, PlannedService, run_plan, run_round
from tableservices.service import ServiceResult, TableService, pending_plans
from tableservices.ttl.execute import TtlResult
from tableservices.worker import (
    FailingService,
    ServiceExecutor,
    StopFlag,
    WorkerListener,
    WorkerReport,
    WorkerSettings,
    WorkerTable,
    run_worker,
)
from timeline.commit.cancel_plan import cancel_pending_plan as cancel_plan
from timeline.errors import HoodooError, InvalidInputError
from timeline.model.instant import Instant
from timeline.ports.ports import Clock, Value

if TYPE_CHECKING:
    from hoodoo.table import Table

# ---- Results of services as documents and lines, and the state of a worker

_REPAIRS = {
    "rollback.done": ("rolled_back", "target"),
    "rollback.finished": ("finished_rollbacks", "rt"),
    "cleaning.foreign_finished": ("finished_cleans", "rt"),
}


@dataclass(frozen=True, slots=True)
class Repairs:
    """An event sink for the work of a service that its result does not name, as rollbacks."""

    _done: dict[str, list[str]] = field(default_factory=dict)

    def emit(self, name: str, /, **fields: Value) -> None:
        """Note one event."""
        if name in _REPAIRS:
            kind, time = _REPAIRS[name]
            self._done.setdefault(kind, []).append(str(fields[time]))

    @property
    def is_any(self) -> bool:
        """Whether there was such work."""
        return bool(self._done)

    def take(self) -> dict[str, list[str]]:
        """Return the instants by kind of work, and forget them."""
        taken = dict(self._done)
        self._done.clear()
        return taken


def print_service_result(
    printer: Printer,
    service: str,
    result: ServiceResult | None,
    *,
    why: str = "",
    repairs: Repairs | None = None,
    table: str | None = None,
) -> None:
    """
    Print one run of one service.

    Args:
        printer: Prints it.
        service: The name of the service.
        result: Its result; None without work.
        why: Why there was no work.
        repairs: The events of the run.
        table: The address of the table if there are several.
    """
    done = {} if repairs is None else repairs.take()
    if printer.for_people:
        where = "" if table is None else f"{table}: "
        for name, times in done.items():
            printer.line(f"{where}{service}: {name.replace('_', ' ')} {', '.join(times)}")
        if result is None:
            nothing = "nothing else to do" if done else "nothing to do"
            printer.line(f"{where}{service}: {nothing}{f': {why}' if why else ''}")
        else:
            printer.line(f"{where}{service} {result.requested_time}: {result.text}")
        return
    document = _document(service, table) | done
    if why and result is None:
        document["why"] = why
    if result is not None:
        document["requested_time"] = result.requested_time
        document["completion_time"] = result.completion_time
        document["attempts"] = 1
        document["text"] = result.text
        document.update(_figures(result))
    printer.document(document)


def _print_preview(printer: Printer, service: str, shown: Mapping[str, object]) -> None:
    """Print the work that a service would do."""
    if not printer.for_people:
        printer.document({**nothing_to_do(service, service), **shown})
        return
    printer.line(f"{service} would do:")
    flat = {key: each for key, each in shown.items() if not isinstance(each, Mapping)}
    for one in shown.values():
        flat |= one if isinstance(one, Mapping) else {}
    printer.facts({key.replace("_", " "): _preview_text(key, each) for key, each in flat.items()})


def _preview_text(name: str, value: object) -> object:
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value)) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return size_text(value) if isinstance(value, int) and "bytes" in name else value


def _document(service: str, table: str | None) -> dict[str, Any]:
    document = nothing_to_do(service, service)
    return document if table is None else {**document, "table": table}


def _figures(result: ServiceResult) -> Mapping[str, object]:
    """Return the counts of a result by their names in documents; none for a plug-in's result."""
    match result:
        case SyncResult():
            return {"entries": [asdict(one) for one in result.entries]}
        case CompactionResult():
            return {
                "file_groups": result.file_groups,
                "files_written": result.file_groups,
                "rows_written": result.rows_written,
                "bytes_written": result.bytes_written,
                "log_files_merged": result.log_files,
                "log_bytes_merged": result.log_bytes,
            }
        case LogCompactionResult():
            return {
                "file_groups": result.file_groups,
                "files_written": result.file_groups,
                "bytes_written": result.bytes_written,
                "log_files_merged": result.log_files,
            }
        case ClusteringResult():
            return {
                "file_groups": result.file_groups_replaced,
                "files_written": result.files_written,
                "rows_written": result.rows_written,
                "bytes_written": result.bytes_written,
                "groups_left_to_writers": result.groups_left_out,
            }
        case CleanResult():
            return {"files_deleted": list(result.files)}
        case ArchiveResult():
            return {"instants_archived": result.instants, "slots_up_to": result.slots_up_to}
        case TtlResult():
            return {"partitions_deleted": list(result.partitions)}
    return {}


def log_events() -> None:
    """Print the events of this process on standard error, as lines of a log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("hoodoo")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def import_all() -> None:
    """
    Import pandas now instead of during the work.

    PyArrow imports pandas with its first list. A signal during that import would leave a half
    import, and the cleanup after the signal would fail.
    """
    pa.array([])


def write_health_file(path: Path, document: Mapping[str, Any]) -> None:
    """
    Replace a health file by one rename, so that a reader never gets a part of it.

    Raises:
        InvalidInputError: The file cannot be written.
    """
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(json.dumps(document), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise InvalidInputError(
            "cannot write the health file; name one in an existing, writable folder: "
            f"{path}: {error.strerror}",
            kind="health_file",
            path=str(path),
        ) from error


@dataclass(slots=True, kw_only=True)
class WorkerReporter(WorkerListener):
    """
    Prints the work of a worker and keeps its health file.

    Args:
        printer: Prints results and failures.
        clock: For the times in the health file.
        several: Whether lines name the table.
        repairs: The events of the tables.
        health: The health file; None for none.
    """

    printer: Printer
    clock: Clock
    several: bool
    health: Path | None
    repairs: Repairs
    _reasons: dict[tuple[str, str], str] = field(default_factory=dict)  # by table and service
    _report: WorkerReport = field(default_factory=WorkerReport)
    _doing: dict[str, str] | None = None

    def on_start(self, served: WorkerTable, service: TableService) -> None:
        """As ``WorkerListener``."""
        self._doing = {"table": served.address, "service": service.name}
        self._write_health("at_work")

    def on_done(self, served: WorkerTable, service: TableService, result: ServiceResult) -> None:
        """As ``WorkerListener``."""
        self._reasons.pop((served.address, service.name), None)
        self._print(served, service, result)

    def on_nothing(self, served: WorkerTable, service: TableService) -> None:
        """Print the reason in the first round, and after each work; the health file has all."""
        at = (served.address, service.name)
        is_new = at not in self._reasons
        if is_new or self.health is not None:
            self._reasons[at] = idle_reason(served.context, service)
        if self.repairs.is_any:
            self._print(served, service, None)
        elif is_new:
            where = f"{served.address}: " if self.several else ""
            why = f": {self._reasons[at]}" if self._reasons[at] else ""
            self.printer.remark(f"{where}{service.name}: nothing to do{why}")

    def _print(
        self, served: WorkerTable, service: TableService, result: ServiceResult | None
    ) -> None:
        print_service_result(
            self.printer,
            service.name,
            result,
            repairs=self.repairs,
            table=served.address if self.several else None,
        )

    def on_failure(self, failing: FailingService) -> None:
        """As ``WorkerListener``."""
        if self.printer.for_people:
            self.printer.line(failing.text, style="red")
            return
        document = _document(failing.service, failing.table)
        self.printer.document({**document, "error": _error(failing.error)})

    def on_idle(self, report: WorkerReport) -> None:
        """As ``WorkerListener``."""
        self._report, self._doing = report, None
        self._write_health("resting")

    def ended(self) -> None:
        """Note the end of the worker."""
        self._doing = None
        self._write_health("ended")

    def _write_health(self, state: str) -> None:
        if self.health is None:
            return
        report = self._report
        document = {
            "state": state,
            "at_ms": self.clock.now_ms(),
            "doing": self._doing,
            "rounds": report.rounds,
            "receipts": report.receipts,
            "failures": report.failures,
            "idle": [
                {"table": table, "service": service, "why": why}
                for (table, service), why in self._reasons.items()
            ],
            "failing": [
                {"table": one.table, "service": one.service, **_error(one.error)}
                for one in report.failing
            ],
        }
        write_health_file(self.health, document)


def _error(error: Exception) -> dict[str, Any]:
    if isinstance(error, HoodooError):
        return error.as_document()
    return {
        "kind": "unexpected",
        "reaction": "report",
        "message": f"{type(error).__name__}: {error}",
    }


# ---- ``hoodoo services``: run services once, in two phases, or in a worker


@click.group(cls=CommandGroup)
def services() -> None:
    """Run cleaning, compaction and other services."""


def working(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where and how many file groups a service processes."""
    command = click.option(
        "--max-file-groups",
        "file_groups_max",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="File groups processed at a time. Default: the number of processors.",
    )(command)
    return click.option(
        "--executor",
        type=click.Choice([one.value for one in ServiceExecutor]),
        help="Process file groups here, or on the cluster of a Spark session.",
    )(command)


def _given_options(**values: object) -> dict[str, object]:
    """Return the properties of the given command line options."""
    return {
        WorkerSettings.options[name].key: value
        for name, value in values.items()
        if value is not None
    }


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--service", default="clean", show_default=True, help="The name of the service.")
@click.option("--instant", metavar="INSTANT", help="Execute only this pending plan.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait so long for another executor of the plan. Default: do not wait.",
)
@working
@changing
def run(
    invocation: Invocation,
    *,
    address: str,
    service: str,
    instant: str | None,
    wait_s: float | None,
    executor: str | None,
    file_groups_max: int | None,
) -> None:
    """
    Run one round of a service now, due or not.

    Services: archive, clean, cluster, compact, logcompact, metadata, sync, ttl, and those of plug-ins.
    """
    wait_ms = None if wait_s is None else round(wait_s * 1000)
    given = _given_options(executor=executor, file_groups_max=file_groups_max, wait_ms=wait_ms)
    repairs = Repairs()
    with (
        progress_events(invocation) as sinks,
        invocation.open_table(address, given, sinks=(*sinks, repairs)) as opened,
    ):
        context = opened.context
        planning = _planning(opened)
        if instant is not None:
            planned = _plan_named(opened, instant)
            by_action = {one.action: one for one in planning.values()}
            service = by_action[planned.action].name if planned.action in by_action else service
        [chosen] = chosen_services(
            services_of(opened.properties, settings=opened.settings), (service,)
        )
        if invocation.dry_run:
            named = None if instant is None else planned.requested_time
            shown = _would_run(opened, chosen, planning, named)
            _print_preview(invocation.printer, service, shown)
            return
        register_writer(opened.context, opened.properties, opened.settings)
        context = service_context(context, opened.properties)
        wait_ms = WorkerSettings.from_properties(opened.properties).wait_ms
        if instant is not None:
            result = run_plan(context, planning[service], planned, wait_ms=wait_ms)
        elif service in planning:
            result = run_round(context, planning[service], now=True, wait_ms=wait_ms)
        elif isinstance(chosen, MetadataTableService):
            result = chosen.run_now(context)
        else:
            result = chosen.run_once(context)
        why = "" if result or instant else idle_reason(context, chosen, now=True)
    print_service_result(invocation.printer, chosen.name, result, why=why, repairs=repairs)


def _would_run(
    opened: Table, chosen: TableService, planning: Mapping[str, PlannedService], named: str | None
) -> dict[str, object]:
    """Return the plans that a run would execute, and its other work."""
    context = opened.context
    if named is not None:
        return {"would_carry_out": [named]}
    shown = preview(context, chosen, opened.properties, planning)
    if chosen.name not in planning:
        return shown
    plans = pending_plans(context.active(), planning[chosen.name].action)
    return {"would_carry_out": [one.requested_time for one in plans], **shown}


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--service", default="compact", show_default=True, help="The name of the service.")
@changing
def plan(invocation: Invocation, *, address: str, service: str) -> None:
    """
    Schedule the plan of a service, due or not.

    A worker or Java Hudi executes the plan. --dry-run shows the work of any service.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        planning = _planning(opened)
        if invocation.dry_run:
            [any_one] = chosen_services(
                services_of(opened.properties, settings=opened.settings), (service,)
            )
            shown = preview(context, any_one, opened.properties, planning)
            _print_preview(invocation.printer, service, shown)
            return
        [chosen] = chosen_services(tuple(planning.values()), (service,))
        register_writer(opened.context, opened.properties, opened.settings)
        result = run_round(context, chosen, Phase.SCHEDULE, now=True)
        why = "" if result else idle_reason(context, chosen, now=True)
    print_service_result(invocation.printer, service, result, why=why)


def _plan_named(opened: Table, text: str) -> Instant:
    """Return the pending plan that a text names, among the pending plans of the table."""
    plans = pending_plans(opened.context.active())
    return find_plan(opened.context, instant_named(opened.context, text, plans))


def _planning(opened: Table) -> dict[str, PlannedService]:
    return {
        one.name: one for one in planned_services_of(opened.properties, settings=opened.settings)
    }


@services.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT")
@changing
def cancel(invocation: Invocation, *, address: str, instant: str) -> None:
    """
    Cancel a pending plan and delete its files.

    INSTANT is the plan's time or its first digits, or @-1 for the newest plan.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        planned = _plan_named(opened, instant)
        document: dict[str, Any] = {
            **nothing_to_do("cancel", planned.action.value),
            "cancelled": planned.requested_time,
        }
        if not invocation.dry_run:
            invocation.confirm(f"cancel the {planned.action.value} {planned.requested_time}?")
            register_writer(opened.context, opened.properties, opened.settings)
            slot = cancel_plan(context, planned)
            if slot is None:
                document["cancelled"] = None
                document["why"] = "it has ended meanwhile"
            else:
                document["requested_time"] = slot.requested_time
                document["completion_time"] = slot.completion_time
                document["attempts"] = 1
    plan_text = f"the {planned.action.value} {planned.requested_time}"
    done = "would cancel" if invocation.dry_run else "cancelled"
    if document["cancelled"] is None:
        done, plan_text = "not cancelled:", f"{plan_text} has ended meanwhile"
    invocation.printer.result(document, f"{done} {plan_text}")


@services.command()
@click.argument("addresses", metavar="TABLE...", nargs=-1, required=True)
@click.option("--service", "names", multiple=True, help="Only this service. May be repeated.")
@click.option(
    "--only",
    type=click.Choice([Phase.SCHEDULE.value, Phase.EXECUTE.value]),
    help="One phase of the services that plan first.",
)
@click.option("--interval-ms", type=click.IntRange(min=100), help="Pause between rounds, in ms.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="End after so many rounds. The exit code then reports failed services.",
)
@click.option(
    "--health",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A JSON file with the state of the worker and the failing services.",
)
@click.option("--events", is_flag=True, help="Print every event on standard error.")
@working
@reading
def worker(
    invocation: Invocation,
    *,
    addresses: tuple[str, ...],
    names: tuple[str, ...],
    only: str | None,
    interval_ms: int | None,
    rounds: int | None,
    health: Path | None,
    events: bool,
    executor: str | None,
    file_groups_max: int | None,
) -> None:
    """
    Run services in rounds until Ctrl-C.

    SIGTERM or Ctrl-C ends the worker after its current service. A second one interrupts that
    service; its plan stays, and the next worker executes it.
    """
    part = Phase(only) if only else Phase.BOTH
    import_all()
    stop = stop_on_signals()
    if events:
        log_events()
    given = _given_options(
        executor=executor, file_groups_max=file_groups_max, interval_ms=interval_ms
    )
    repairs = Repairs()
    with ExitStack() as held:
        tables = [
            held.enter_context(invocation.open_table(one, given, sinks=(repairs,)))
            for one in addresses
        ]
        served = []
        for opened in tables:
            chosen = chosen_services(services_of(opened.properties, part, opened.settings), names)
            register_writer(opened.context, opened.properties, opened.settings)
            context = service_context(opened.context, opened.properties)
            served.append(WorkerTable(context=context, services=chosen))
        reporter = WorkerReporter(
            printer=invocation.printer,
            clock=served[0].context.ports.clock,
            several=len(served) > 1,
            health=health,
            repairs=repairs,
        )
        pause = min(WorkerSettings.from_properties(one.properties).interval_ms for one in tables)
        for one in served:
            on = ", ".join(service.name for service in one.services)
            invocation.printer.remark(f"{one.address}: services {on}, every {pause / 1000:g} s")
        report = run_worker(
            served, interval_ms=pause, stop=stop, rounds_max=rounds, watcher=reporter
        )
        reporter.ended()
    invocation.printer.remark(
        f"{count_text(report.rounds, 'round')}, {report.receipts} with work, "
        f"{report.failures} failed"
    )
    for failing in report.failing:
        invocation.printer.remark(failing.text)
    if report.failing and not stop.is_set():
        error = report.failing[0].error
        code = exit_code(error) if isinstance(error, HoodooError) else ERROR
        raise click.exceptions.Exit(code)


def stop_on_signals() -> StopFlag:
    """Return a flag that SIGTERM or SIGINT sets; a second signal raises KeyboardInterrupt."""
    stop = StopFlag()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, ask)
    return stop

"""``hoodoo services``: upkeep once, in two parts, or by a worker beside the writers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from hoodoo.cli.exits import ERROR, exit_code
from hoodoo.cli.invocation import Invocation, changing, reading
from hoodoo.cli.progress import shown_progress
from hoodoo.cli.receipts import nothing_done
from hoodoo.cli.service_reports import WorkerTold, import_all, print_receipt, tell_events
from hoodoo.executors import working_context
from hoodoo.service_previews import preview
from hoodoo.services import chosen_services, find_plan, planned_services_of, services_of
from hoodoo.table import Table
from tableservices.planned_service import Part, PlannedService, run_plan, run_round
from tableservices.scheduling import pending_plans
from tableservices.service import TableService
from tableservices.worker import Served, StopFlag, run_worker
from tableservices.worker_settings import WORKER_OPTIONS, ServiceExecutor, WorkerSettings
from timeline.errors import HoodooError
from timeline.publishing.plan_ending import cancel as cancel_plan

__all__ = ["services"]


@click.group()
def services() -> None:
    """Table services: cleaning, compaction; once, planned ahead, or by a worker."""


def working(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that does the work of services the options of where and how much."""
    command = click.option(
        "--max-file-groups",
        "file_groups_max",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="At work at a time; as many as there are processors.",
    )(command)
    return click.option(
        "--executor",
        type=click.Choice([one.value for one in ServiceExecutor]),
        help="Where file groups are worked on: here, or by a Spark session's cluster.",
    )(command)


def _said(**values: object) -> dict[str, object]:
    """Options of the command line as the properties they stand for."""
    return {WORKER_OPTIONS[name].key: value for name, value in values.items() if value is not None}


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--service", default="clean", show_default=True, help="Which one.")
@click.option("--instant", metavar="INSTANT", help="Carry out this pending plan, nothing else.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="For another executor of a plan; without, its plan is left to it.",
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
    """Run one round of a service now, due or not."""
    wait_ms = None if wait_s is None else round(wait_s * 1000)
    said = _said(executor=executor, file_groups_max=file_groups_max, wait_ms=wait_ms)
    with (
        shown_progress(invocation) as told,
        invocation.open_table(address, said, told=told) as opened,
    ):
        context = opened.core.context
        planning = _planning(opened)
        if instant is not None:
            planned = find_plan(context, instant)
            by_action = {one.action: one for one in planning.values()}
            service = by_action[planned.action].name if planned.action in by_action else service
        [chosen] = chosen_services(
            services_of(opened.properties, settings=opened.settings), (service,)
        )
        if invocation.dry_run:
            named = None if instant is None else planned.requested_time
            shown = _would_run(opened, chosen, planning, named)
            invocation.printer.document({**nothing_done(service, service), **shown})
            return
        opened.join_writers()
        context = working_context(context, opened.properties)
        wait_ms = WorkerSettings.from_properties(opened.properties).wait_ms
        if instant is not None:
            receipt = run_plan(context, planning[service], planned, wait_ms=wait_ms)
        elif service in planning:
            receipt = run_round(context, planning[service], now=True, wait_ms=wait_ms)
        else:
            receipt = chosen.run_once(context)
    print_receipt(invocation.printer, chosen.name, receipt)


def _would_run(
    opened: Table, chosen: TableService, planning: Mapping[str, PlannedService], named: str | None
) -> dict[str, object]:
    """The plans that a run would carry out, and what it would do beside them."""
    context = opened.core.context
    if named is not None:
        return {"would_carry_out": [named]}
    shown = preview(context, chosen, opened.properties, planning)
    if chosen.name not in planning:
        return shown
    plans = pending_plans(context.active(), planning[chosen.name].action)
    return {"would_carry_out": [one.requested_time for one in plans], **shown}


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--service", default="compact", show_default=True, help="Which one.")
@changing
def plan(invocation: Invocation, *, address: str, service: str) -> None:
    """
    Put a plan on the timeline, due or not; a worker or Java Hudi carries it out.

    With --dry-run it tells of any service what it would do.
    """
    with invocation.open_table(address) as opened:
        context = opened.core.context
        planning = _planning(opened)
        if invocation.dry_run:
            [any_one] = chosen_services(
                services_of(opened.properties, settings=opened.settings), (service,)
            )
            shown = preview(context, any_one, opened.properties, planning)
            invocation.printer.document({**nothing_done(service, service), **shown})
            return
        [chosen] = chosen_services(tuple(planning.values()), (service,))
        opened.join_writers()
        receipt = run_round(context, chosen, Part.SCHEDULE, now=True)
    print_receipt(invocation.printer, service, receipt)


def _planning(opened: Table) -> dict[str, PlannedService]:
    return {
        one.name: one for one in planned_services_of(opened.properties, settings=opened.settings)
    }


@services.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT")
@changing
def cancel(invocation: Invocation, *, address: str, instant: str) -> None:
    """End the pending plan INSTANT for good; what was written for it is deleted."""
    with invocation.open_table(address) as opened:
        context = opened.core.context
        planned = find_plan(context, instant)
        document: dict[str, Any] = {
            **nothing_done("cancel", planned.action.value),
            "cancelled": planned.requested_time,
        }
        if not invocation.dry_run:
            invocation.confirm(f"cancel the {planned.action.value} {planned.requested_time}?")
            opened.join_writers()
            slot = cancel_plan(context, planned)
            if slot is None:
                document["cancelled"] = None
                document["why"] = "it had ended meanwhile"
            else:
                document["requested_time"] = slot.requested_time
                document["completion_time"] = slot.completion_time
                document["attempts"] = 1
    invocation.printer.document(document)


@services.command()
@click.argument("addresses", metavar="TABLE...", nargs=-1, required=True)
@click.option("--service", "names", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--only",
    type=click.Choice([Part.SCHEDULE.value, Part.EXECUTE.value]),
    help="Of services that plan first, one part.",
)
@click.option("--interval-ms", type=click.IntRange(min=100), help="Pause between two rounds.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="End after so many rounds; the exit code then tells of services that fail.",
)
@click.option(
    "--health",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that tells, as JSON, what the worker does and which services fail.",
)
@click.option("--events", is_flag=True, help="Tell every event on standard error.")
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
    Run the services of tables round after round until SIGTERM or Ctrl-C.

    The first signal lets the present service end, a second one breaks it off; its plan stays,
    and the next worker carries it out.
    """
    part = Part(only) if only else Part.BOTH
    import_all()
    stop = StopFlag()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: _ask(stop))
    if events:
        tell_events()
    said = _said(executor=executor, file_groups_max=file_groups_max, interval_ms=interval_ms)
    with ExitStack() as held:
        tables = [held.enter_context(invocation.open_table(one, said)) for one in addresses]
        served = []
        for opened in tables:
            chosen = chosen_services(services_of(opened.properties, part, opened.settings), names)
            opened.join_writers()
            context = working_context(opened.core.context, opened.properties)
            served.append(Served(context=context, services=chosen))
        told = WorkerTold(
            printer=invocation.printer,
            clock=served[0].context.world.clock,
            several=len(served) > 1,
            health=health,
        )
        pause = min(WorkerSettings.from_properties(one.properties).interval_ms for one in tables)
        report = run_worker(served, interval_ms=pause, stop=stop, rounds_max=rounds, watcher=told)
        told.ended()
    invocation.printer.remark(
        f"{report.rounds} rounds, {report.receipts} with work, {report.failures} failed"
    )
    for failing in report.failing:
        invocation.printer.remark(failing.text)
    if report.failing and not stop.is_set():
        error = report.failing[0].error
        code = exit_code(error) if isinstance(error, HoodooError) else ERROR
        raise click.exceptions.Exit(code)


def _ask(stop: StopFlag) -> None:
    if stop.is_set():
        raise KeyboardInterrupt
    stop.set()

"""``hoodoo services``: upkeep once, in two parts, or by a worker beside the writers."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from hoodoo.cli.invocation import Invocation, changing, reading
from hoodoo.cli.progress import shown_progress
from hoodoo.cli.receipts import nothing_done
from hoodoo.services import chosen_services, find_plan, planned_services_of, services_of
from hoodoo.table import Table
from tableservices.archiving.execute import preview
from tableservices.archiving.settings import ArchiveRules
from tableservices.cleaning.execute import CleanReceipt
from tableservices.cleaning.facts import gather
from tableservices.cleaning.plan import plan_clean
from tableservices.cleaning.settings import CleaningSettings
from tableservices.completing import cancel as cancel_plan
from tableservices.planned_service import Part, PlannedService, run_round
from tableservices.service import ServiceReceipt
from tableservices.ttl.execute import TtlReceipt, expired_partitions
from tableservices.ttl.settings import TtlSettings
from tableservices.worker import Served, StopFlag, WorkerReport, run_worker

__all__ = ["services"]


@click.group()
def services() -> None:
    """Table services: cleaning, compaction; once, planned ahead, or by a worker."""


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--service", default="clean", show_default=True, help="Which one.")
@click.option("--instant", metavar="INSTANT", help="Carry out this pending plan, nothing else.")
@changing
def run(invocation: Invocation, *, address: str, service: str, instant: str | None) -> None:
    """Run one round of a service now, due or not."""
    with (
        shown_progress(invocation) as told,
        invocation.open_table(address, told=told) as opened,
    ):
        context = opened.core.context
        planning = {
            one.name: one
            for one in planned_services_of(opened.properties, settings=opened.settings)
        }
        if instant is not None:
            planned = find_plan(context, instant)
            by_action = {one.action: one for one in planning.values()}
            service = by_action[planned.action].name if planned.action in by_action else service
        [chosen] = chosen_services(
            services_of(opened.properties, settings=opened.settings), (service,)
        )
        if invocation.dry_run:
            invocation.printer.document(
                {**nothing_done(service, service), **_preview(opened, service, planning)}
            )
            return
        opened.join_writers()
        if instant is not None:
            receipt = planning[service].execute(context, find_plan(context, instant))
        elif service in planning:
            receipt = run_round(context, planning[service], now=True)
        else:
            receipt = chosen.run_once(context)
    _print(invocation, chosen.name, receipt)


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--service", default="compact", show_default=True, help="Which one.")
@changing
def plan(invocation: Invocation, *, address: str, service: str) -> None:
    """Put a plan on the timeline, due or not; a worker or Java Hudi carries it out."""
    with invocation.open_table(address) as opened:
        [chosen] = chosen_services(
            planned_services_of(opened.properties, settings=opened.settings), (service,)
        )
        context = opened.core.context
        if invocation.dry_run:
            preview = {"would_plan": dict(chosen.preview(context))}
            invocation.printer.document({**nothing_done(service, service), **preview})
            return
        opened.join_writers()
        receipt = run_round(context, chosen, Part.SCHEDULE, now=True)
    _print(invocation, service, receipt)


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
            "cancelled": instant,
        }
        if not invocation.dry_run:
            invocation.confirm(f"cancel the {planned.action.value} {instant}?")
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
@click.option("--rounds", type=click.IntRange(min=1), help="End after so many rounds.")
@click.option(
    "--health",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that tells after each round, as JSON, how the worker fares.",
)
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
) -> None:
    """Run the services of tables round after round until SIGTERM or Ctrl-C."""
    part = Part(only) if only else Part.BOTH
    stop = StopFlag()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    with ExitStack() as held:
        tables = [held.enter_context(invocation.open_table(address)) for address in addresses]
        served = []
        for opened in tables:
            chosen = chosen_services(services_of(opened.properties, part, opened.settings), names)
            opened.join_writers()
            served.append(Served(context=opened.core.context, services=chosen))
        several = len(served) > 1
        report = run_worker(
            served,
            interval_ms=interval_ms or _interval_ms(tables),
            stop=stop,
            rounds_max=rounds,
            on_receipt=lambda table, service, receipt: _print(
                invocation,
                service.name,
                receipt,
                table=table.context.world.storage.base_uri if several else None,
            ),
            on_round=None if health is None else lambda now: _tell_health(health, now),
        )
    invocation.printer.remark(
        f"{report.rounds} rounds, {report.receipts} with work, {report.failures} failed"
    )


def _interval_ms(tables: Iterable[Table]) -> int:
    return min(CleaningSettings.from_properties(one.properties).interval_ms for one in tables)


def _preview(opened: Table, service: str, planning: dict[str, PlannedService]) -> dict[str, object]:
    context = opened.core.context
    if service in planning:
        return {"would_plan": dict(planning[service].preview(context))}
    if service == "ttl":
        ttl = TtlSettings.from_properties(opened.properties)
        return {"would_delete_partitions": list(expired_partitions(context, ttl))}
    if service == "archive":
        rules = ArchiveRules.from_properties(opened.properties)
        return {"would_archive": list(preview(context, rules))}
    settings = CleaningSettings.from_properties(opened.properties)
    gathered = gather(context, context.snapshot(), settings)
    return {"would_delete": list(plan_clean(gathered.facts, settings).paths)}


def _tell_health(path: Path, report: WorkerReport) -> None:
    """Replaced as a whole, so that whoever looks never reads half of it."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(
        json.dumps(
            {"rounds": report.rounds, "receipts": report.receipts, "failures": report.failures}
        ),
        encoding="utf-8",
    )
    beside.replace(path)


def _print(
    invocation: Invocation,
    service: str,
    receipt: ServiceReceipt | None,
    *,
    table: str | None = None,
) -> None:
    printer = invocation.printer
    if printer.for_people:
        where = "" if table is None else f"{table}: "
        if receipt is None:
            printer.line(f"{where}{service}: nothing to do")
        else:
            printer.line(f"{where}{service} {receipt.requested_time}: {receipt.text}")
        return
    document: dict[str, Any] = nothing_done(service, service)
    if table is not None:
        document["table"] = table
    if receipt is not None:
        document["requested_time"] = receipt.requested_time
        document["completion_time"] = receipt.completion_time
        document["attempts"] = 1
        document["text"] = receipt.text
    if isinstance(receipt, CleanReceipt):
        document["files_deleted"] = list(receipt.files)
    if isinstance(receipt, TtlReceipt):
        document["partitions_deleted"] = list(receipt.partitions)
    printer.document(document)

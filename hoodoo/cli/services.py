"""``hoodoo services``: upkeep once, or by a worker beside the writers."""

from __future__ import annotations

import signal
import threading
from typing import Any

import click

from hoodoo.cli.invocation import Invocation, changing, reading
from hoodoo.cli.receipts import nothing_done
from hoodoo.services import services_of
from hoodoo.table import Table
from tableservices.cleaning.execute import CleanReceipt
from tableservices.cleaning.facts import gather
from tableservices.cleaning.plan import plan_clean
from tableservices.cleaning.settings import CleaningSettings
from tableservices.service import ServiceReceipt, TableService
from tableservices.worker import StopFlag, run_worker

__all__ = ["services"]

_NAMES = ("clean",)


@click.group()
def services() -> None:
    """Table services: cleaning, with the rollback of dead writers."""


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--service", type=click.Choice(_NAMES), default="clean", show_default=True)
@changing
def run(invocation: Invocation, *, address: str, service: str) -> None:
    """Run one round of a service now."""
    with invocation.open_table(address) as opened:
        chosen = next(one for one in services_of(opened.properties) if one.name == service)
        if invocation.dry_run:
            invocation.printer.document(
                {**nothing_done(service, service), "would_delete": _planned(opened)}
            )
            return
        opened.join_writers()
        receipt = chosen.run_once(opened.core.context)
    _print(invocation, chosen, receipt)


def _planned(opened: Table) -> list[str]:
    settings = CleaningSettings.from_properties(opened.properties)
    context = opened.core.context
    gathered = gather(context, context.snapshot(), settings)
    return list(plan_clean(gathered.facts, settings).paths)


@services.command()
@click.argument("address", metavar="TABLE")
@click.option("--interval-ms", type=click.IntRange(min=100), help="Pause between two rounds.")
@click.option("--rounds", type=click.IntRange(min=1), help="End after so many rounds.")
@reading
def worker(
    invocation: Invocation, *, address: str, interval_ms: int | None, rounds: int | None
) -> None:
    """Run the services round after round until SIGTERM or Ctrl-C."""
    with invocation.open_table(address) as opened:
        settings = CleaningSettings.from_properties(opened.properties)
        opened.join_writers()
        stop = StopFlag()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
        report = run_worker(
            opened.core.context,
            services_of(opened.properties),
            interval_ms=interval_ms or settings.interval_ms,
            stop=stop,
            rounds_max=rounds,
            on_receipt=lambda service, receipt: _print(invocation, service, receipt),
        )
    invocation.printer.remark(
        f"{report.rounds} rounds, {report.receipts} with work, {report.failures} failed"
    )


def _print(invocation: Invocation, service: TableService, receipt: ServiceReceipt | None) -> None:
    printer = invocation.printer
    if printer.for_people:
        if receipt is None:
            printer.line(f"{service.name}: nothing to do")
        else:
            printer.line(f"{service.name} {receipt.requested_time}: {receipt.text}")
        return
    document: dict[str, Any] = nothing_done(service.name, service.name)
    if receipt is not None:
        document["requested_time"] = receipt.requested_time
        document["completion_time"] = receipt.completion_time
        document["attempts"] = 1
    if isinstance(receipt, CleanReceipt):
        document["files_deleted"] = list(receipt.files)
    printer.document(document)

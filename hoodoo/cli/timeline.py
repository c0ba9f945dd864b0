"""``hoodoo timeline``: the timeline of a table."""

from __future__ import annotations

from typing import Any

import click

from hoodoo.cli.invocation import CommandGroup, Invocation, reading
from hoodoo.cli.printing import Printer
from hoodoo.inspect.instants import InstantSummary, list_instants, time_text
from timeline.context import TableContext
from timeline.entries import timeline_entries
from timeline.errors import counted


@click.group(cls=CommandGroup)
def timeline() -> None:
    """Show the timeline of a table."""


@timeline.command()
@click.argument("address", metavar="TABLE")
@click.option("--history", is_flag=True, help="List archived instants, too.")
@reading
def show(invocation: Invocation, *, address: str, history: bool) -> None:
    """
    List all instants, oldest first.

    Rows are + inserted, ~ updated, - deleted. 'hoodoo log' lists the newest instants first.
    """
    with invocation.open_timeline(address) as context:
        if invocation.printer.for_people:
            print_timeline(invocation.printer, list_instants(context, archived=history))
        else:
            invocation.printer.document(_document(context, archived=history))


def _document(context: TableContext, *, archived: bool) -> dict[str, Any]:
    config = context.config
    return {
        "table": {
            "name": config.name,
            "version": config.table_version,
            "type": config.table_type.value,
            "base_path": context.ports.storage.base_uri,
        },
        "instants": [
            {
                "requested_time": entry.requested_time,
                "completion_time": entry.completion_time,
                "action": entry.action,
                "state": entry.state,
                "archived": entry.archived,
            }
            for entry in timeline_entries(context, archived=archived)
        ],
    }


def print_timeline(printer: Printer, accounts: list[InstantSummary]) -> None:
    """Print the instants with writers and times, then the rejected attempts."""
    zone = accounts[0].zone.name if accounts else ""
    printer.grid(
        ("instant", f"completed ({zone})", "action", "rows", "writer"),
        [
            (
                one.requested_time,
                time_text(one.completion_time)[:19] if one.completion_time else one.state,
                _action_text(one),
                one.rows_text
                or (f"-{counted(one.files_deleted, 'file')}" if one.files_deleted else ""),
                one.who,
            )
            for one in accounts
        ],
        empty="no instant",
    )
    rejected = [(one, refusal) for one in accounts for refusal in one.refusals]
    if not rejected:
        return
    printer.line()
    printer.line("Attempts that a conflict rejected before they succeeded", style="bold")
    printer.grid(
        ("instant", "writer", "rule", "redone", "winner"),
        [
            (
                one.requested_time,
                one.who,
                refusal.get("rule", ""),
                refusal.get("redo", ""),
                "; ".join(refusal.get("winners", ())) or "unknown",
            )
            for one, refusal in rejected
        ],
    )
    reasons = {str(refusal.get("rule", "")): refusal.get("why", "") for _, refusal in rejected}
    for rule, why in sorted(reasons.items()):
        printer.line(f"{rule}: {why}")


def _action_text(one: InstantSummary) -> str:
    operation = one.operation.lower()
    words = one.action if operation in ("", one.action) else f"{one.action} {operation}"
    return words + (" (archived)" if one.archived else "")

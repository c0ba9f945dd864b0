"""``hoodoo timeline``: what happened on a table, and when."""

from __future__ import annotations

from typing import Any

import click

from filegroups.table import timeline_entries
from hoodoo.cli.invocation import Invocation, reading
from hoodoo.cli.printing import Printer
from hoodoo.inspect.instants import InstantSummary, list_instants, time_text
from hoodoo.table import Table


@click.group()
def timeline() -> None:
    """What happened on a table, and when."""


@timeline.command()
@click.argument("address", metavar="TABLE")
@click.option("--history", is_flag=True, help="Show archived instants too.")
@reading
def show(invocation: Invocation, *, address: str, history: bool) -> None:
    """Show every instant, ascending by requested time."""
    with invocation.open_table(address) as opened:
        if invocation.printer.for_people:
            print_timeline(invocation.printer, list_instants(opened, archived=history))
        else:
            invocation.printer.document(_document(opened, archived=history))


def _document(opened: Table, *, archived: bool) -> dict[str, Any]:
    config = opened.config
    return {
        "table": {
            "name": config.name,
            "version": config.table_version,
            "type": config.table_type.value,
            "base_path": opened.context.ports.storage.base_uri,
        },
        "instants": [
            {
                "requested_time": entry.requested_time,
                "completion_time": entry.completion_time,
                "action": entry.action,
                "state": entry.state,
                "archived": entry.archived,
            }
            for entry in timeline_entries(opened.context, archived=archived)
        ],
    }


def print_timeline(printer: Printer, accounts: list[InstantSummary]) -> None:
    """The timeline for people: who did what, from when to when, and what it met."""
    printer.grid(
        ("instant", "from", "to", "what", "by", "rows"),
        [
            (
                one.requested_time,
                time_text(one.requested_time)[11:],
                time_text(one.completion_time)[11:] if one.completion_time else one.state,
                _what(one),
                one.who,
                one.rows_text or (f"{one.files_deleted} files" if one.files_deleted else ""),
            )
            for one in accounts
        ],
    )
    refused = [(one, refusal) for one in accounts for refusal in one.refusals]
    if not refused:
        return
    printer.line()
    printer.line("Refused by a conflict first, and done again", style="bold")
    printer.grid(
        ("instant", "by", "rule", "done again", "the winner"),
        [
            (
                one.requested_time,
                one.who,
                refusal.get("rule", ""),
                refusal.get("redo", ""),
                "; ".join(refusal.get("winners", ())) or "nobody known",
            )
            for one, refusal in refused
        ],
    )
    whys = {str(refusal.get("rule", "")): refusal.get("why", "") for _, refusal in refused}
    for rule, why in sorted(whys.items()):
        printer.line(f"{rule}: {why}")


def _what(one: InstantSummary) -> str:
    operation = one.operation.lower()
    words = one.action if operation in ("", one.action) else f"{one.action} {operation}"
    return words + (" (archived)" if one.archived else "")

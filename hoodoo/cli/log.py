"""``hoodoo log``: a line for each instant of a table, newest first."""

from __future__ import annotations

import click
from rich.filesize import decimal

from hoodoo.cli.invocation import Invocation, reading
from hoodoo.inspect.instants import InstantSummary, time_text


@click.command()
@click.argument("address", metavar="TABLE")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, help="Instants at most.")
@click.option("--writer", metavar="TEXT", help="Only writers whose name or host contains TEXT.")
@click.option("--action", metavar="TEXT", help="Only this action or operation: commit, upsert, ..")
@click.option("--archived", is_flag=True, help="Include the archived timeline.")
@reading
def log(
    invocation: Invocation,
    *,
    address: str,
    limit: int,
    writer: str | None,
    action: str | None,
    archived: bool,
) -> None:
    """
    Show what happened to TABLE, newest first: who wrote, when, how many rows.

    '@-1' and the first digits of an instant name it in other commands.
    """
    with invocation.open_table(address) as opened:
        zone = opened.context.zone.name
        found = [
            one
            for one in opened.history(archived=archived)
            if (writer is None or writer in f"{one.who} {one.host} {one.writer}")
            and (action is None or action.lower() in (one.action, one.operation.lower()))
        ][:limit]
    if not invocation.printer.for_people:
        invocation.printer.document({"instants": [one.as_document() for one in found]})
        return
    invocation.printer.grid(
        ("instant", f"completed ({zone})", "what", "rows", "size", "by"),
        [
            (
                one.requested_time,
                time_text(one.completion_time)[:19] if one.completion_time else one.state,
                _what(one),
                one.rows_text or (f"-{one.files_deleted} files" if one.files_deleted else ""),
                decimal(one.bytes_written) if one.bytes_written else "",
                one.who,
            )
            for one in found
        ],
    )


def _what(one: InstantSummary) -> str:
    retried = f", attempt {one.attempts}" if (one.attempts or 1) > 1 else ""
    return f"{one.operation.lower() or one.action}{retried}"

"""``hoodoo log``: list the instants of a table, newest first."""

from __future__ import annotations

import click

from hoodoo.cli.invocation import Command, Invocation, reading
from hoodoo.cli.printing import size_text
from hoodoo.inspect.instants import InstantSummary, list_instants, time_text
from timeline.errors import counted


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Lines."
)
@click.option("--writer", metavar="TEXT", help="Only writers with TEXT in name or host.")
@click.option("--action", metavar="TEXT", help="Only this action or operation.")
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
    List the instants of a table, newest first.

    Each line has writer, time and row counts: + inserted, ~ updated, - deleted. Other commands
    accept '@-1' or the first digits of an instant.
    """
    with invocation.open_timeline(address) as context:
        zone = context.zone.name
        found = [
            one
            for one in reversed(list_instants(context, archived=archived))
            if (writer is None or writer in f"{one.who} {one.host} {one.writer}")
            and (action is None or action.lower() in (one.action, one.operation.lower()))
        ][:limit]
    if not invocation.printer.for_people:
        invocation.printer.document({"instants": [one.as_document() for one in found]})
        return
    invocation.printer.grid(
        ("instant", f"completed ({zone})", "action", "rows", "size", "writer"),
        [
            (
                one.requested_time,
                time_text(one.completion_time)[:19] if one.completion_time else one.state,
                _action_text(one),
                one.rows_text
                or (f"-{counted(one.files_deleted, 'file')}" if one.files_deleted else ""),
                size_text(one.bytes_written) if one.bytes_written else "",
                one.who,
            )
            for one in found
        ],
        empty="no instant",
    )


def _action_text(one: InstantSummary) -> str:
    retried = f", attempt {one.attempts}" if (one.attempts or 1) > 1 else ""
    return f"{one.operation.lower() or one.action}{retried}"

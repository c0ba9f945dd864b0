"""``hoodoo savepoint``: keep a state of a table whatever cleaning would delete, and give it up."""

from __future__ import annotations

import click

from hoodoo.cli.invocation import Invocation, changing, reading
from hoodoo.cli.receipts import nothing_done
from tableservices.restoring.savepoints import delete_savepoint, plan_savepoint, savepoints
from tableservices.restoring.savepoints import savepoint as make_savepoint
from timeline.errors import InstantNotFoundError

__all__ = ["savepoint"]


@click.group()
def savepoint() -> None:
    """Savepoints: states of a table that cleaning leaves whole."""


@savepoint.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="[INSTANT]", required=False)
@click.option("--comment", default="", help="Text for people, kept with the savepoint.")
@changing
def create(invocation: Invocation, *, address: str, instant: str | None, comment: str) -> None:
    """Keep the state of TABLE as of the write INSTANT (default: the newest completed one)."""
    with invocation.open_table(address) as opened:
        context = opened.core.context
        instant = None if instant is None else context.instant_named(instant)
        if invocation.dry_run:
            made = plan_savepoint(context, instant)
        else:
            opened.join_writers()
            made = make_savepoint(context, instant, comments=comment)
    invocation.printer.document(
        {
            **nothing_done("savepoint", "savepoint"),
            "requested_time": made.requested_time,
            "completion_time": made.completion_time,
            "attempts": 0 if invocation.dry_run else 1,
            "files_kept": list(made.files),
        }
    )


@savepoint.command("list")
@click.argument("address", metavar="TABLE")
@reading
def show(invocation: Invocation, *, address: str) -> None:
    """Show the savepoints of TABLE."""
    with invocation.open_table(address) as opened:
        found = savepoints(opened.core.context)
    printer = invocation.printer
    if printer.for_people:
        printer.grid(
            ("instant", "made", "by", "comment", "files"),
            [
                (one.requested_time, one.completion_time, one.made_by, one.comments, len(one.files))
                for one in found
            ],
        )
        return
    printer.document(
        {
            "savepoints": [
                {
                    "requested_time": one.requested_time,
                    "completion_time": one.completion_time,
                    "made_by": one.made_by,
                    "comment": one.comments,
                    "files": len(one.files),
                }
                for one in found
            ]
        }
    )


@savepoint.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT")
@changing
def delete(invocation: Invocation, *, address: str, instant: str) -> None:
    """Give up the savepoint of the write INSTANT; the next clean may delete its files."""
    with invocation.open_table(address) as opened:
        context = opened.core.context
        instant = context.instant_named(instant)
        known = [one for one in savepoints(context) if one.requested_time == instant]
        if not known and invocation.dry_run:
            raise InstantNotFoundError(
                f"no savepoint of this write: {instant}",
                kind="no_such_savepoint",
                requested_time=instant,
            )
        document = {**nothing_done("savepoint", "delete_savepoint"), "requested_time": instant}
        if not invocation.dry_run:
            invocation.confirm(f"give up the savepoint {instant}?")
            opened.join_writers()
            document["completion_time"] = delete_savepoint(context, instant)
            document["attempts"] = 1
    invocation.printer.document(document)

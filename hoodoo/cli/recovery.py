"""``hoodoo rollback``, ``hoodoo restore`` and ``hoodoo savepoint``."""

from __future__ import annotations

from typing import Any

import click

from hoodoo.cli.instants import instant_named
from hoodoo.cli.invocation import Invocation, changing, nothing_to_do, reading
from hoodoo.writer import register_writer
from tableservices.restoring.restore import plan_restore
from tableservices.restoring.rollback import plan_rollback
from tableservices.restoring.savepoints import delete_savepoint, plan_savepoint, savepoints
from timeline.errors import InstantNotFoundError

# ---- ``hoodoo rollback`` and ``hoodoo restore``: undo one write, or everything after one


@click.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT")
@click.option("--force", is_flag=True, help="Even if its writer still gives signs of life.")
@changing
def rollback(invocation: Invocation, *, address: str, instant: str, force: bool) -> None:
    """
    Undo the write INSTANT (a requested time) of TABLE for good.

    Either a pending write, or the newest completed one: what may be built on it, or is held
    by a savepoint, is not undone.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        instant = instant_named(opened, instant)
        planned = plan_rollback(context, instant, force=force)
        document: dict[str, Any] = {
            **nothing_to_do("rollback", "rollback"),
            "rolled_back": instant,
            "files_deleted": list(planned.files),
        }
        if not invocation.dry_run:
            what = "completed" if planned.target.completed else "pending"
            invocation.confirm(
                f"roll back {what} {instant}, which deletes {len(planned.files)} data files?"
            )
            done = opened.rollback(instant, force=force)
            document["why"] = done.why
            document["files_deleted"] = list(done.files)
            if done.requested_time is None:
                document["rolled_back"] = None  # it had ended, or another engine is at it
            else:
                document["requested_time"] = done.requested_time
                document["completion_time"] = done.completion_time
                document["attempts"] = 1
    invocation.printer.document(document)


@click.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT", required=False)
@click.option("--force", is_flag=True, help="Even if writers still give signs of life.")
@click.option("--finish", is_flag=True, help="Finish what another engine, now ended, began.")
@changing
def restore(
    invocation: Invocation, *, address: str, instant: str | None, force: bool, finish: bool
) -> None:
    """
    Take TABLE back to its state as of the write INSTANT (a requested time) for good.

    Everything after that write is taken away, begun writes and plans included. End the
    writers first. The files of a state are certainly there where a savepoint holds it.
    """
    if (instant is None) is not finish:
        raise click.UsageError("name an instant to go back to, or say --finish instead of one")
    with invocation.open_table(address) as opened:
        context = opened.context
        instant = None if instant is None else instant_named(opened, instant)
        document: dict[str, Any] = nothing_to_do("restore", "restore")
        question = "finish the restore that another engine left?"
        if instant is not None:
            planned = plan_restore(context, instant, force=force)
            document |= {
                "restored_to": instant,
                "instants_taken_away": [one.requested_time for one in planned.instants],
                "files_deleted": list(planned.files),
            }
            question = (
                f"restore to {instant}, which takes {len(planned.instants)} instants and "
                f"{len(planned.files)} data files away?"
            )
        if not invocation.dry_run:
            invocation.confirm(question)
            done = (
                opened.finish_restore() if instant is None else opened.restore(instant, force=force)
            )
            if done is not None:
                document |= {
                    "requested_time": done.requested_time,
                    "completion_time": done.completion_time,
                    "restored_to": done.restored_to,
                    "instants_taken_away": list(done.instants),
                    "files_deleted": list(done.files),
                    "attempts": 1,
                }
    invocation.printer.document(document)


# ---- ``hoodoo savepoint``: keep a state of a table whatever cleaning would delete, and give it up


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
        context = opened.context
        instant = None if instant is None else instant_named(opened, instant)
        if invocation.dry_run:
            made = plan_savepoint(context, instant)
        else:
            made = opened.savepoint(instant, comments=comment)
    invocation.printer.document(
        {
            **nothing_to_do("savepoint", "savepoint"),
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
        found = opened.savepoints
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
        context = opened.context
        instant = instant_named(opened, instant)
        known = [one for one in savepoints(context) if one.requested_time == instant]
        if not known and invocation.dry_run:
            raise InstantNotFoundError(
                f"no savepoint of this write: {instant}",
                kind="no_such_savepoint",
                requested_time=instant,
            )
        document = {**nothing_to_do("savepoint", "delete_savepoint"), "requested_time": instant}
        if not invocation.dry_run:
            invocation.confirm(f"give up the savepoint {instant}?")
            register_writer(opened.context, opened.properties, opened.settings)
            document["completion_time"] = delete_savepoint(context, instant)
            document["attempts"] = 1
    invocation.printer.document(document)

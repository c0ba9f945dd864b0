"""``hoodoo rollback``, ``hoodoo restore`` and ``hoodoo savepoint``."""

from __future__ import annotations

from typing import Any

import click

from hoodoo.cli.instants import instant_named
from hoodoo.cli.invocation import (
    Command,
    CommandGroup,
    Invocation,
    changing,
    nothing_to_do,
    reading,
)
from hoodoo.cli.printing import count_text
from hoodoo.inspect.instants import time_text
from hoodoo.writer import register_writer
from tableservices.restoring.restore import plan_restore
from tableservices.restoring.rollback import plan_rollback
from tableservices.restoring.savepoints import delete_savepoint, plan_savepoint, savepoints
from timeline.errors import counted
from timeline.model.time_arguments import instant_not_found

# ---- ``hoodoo rollback`` and ``hoodoo restore``: undo one write, or everything after one


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT")
@click.option("--force", is_flag=True, help="Even if its writer seems alive.")
@changing
def rollback(invocation: Invocation, *, address: str, instant: str, force: bool) -> None:
    """
    Roll back one write.

    INSTANT is a pending write or the newest completed write. A write with later changes or a
    savepoint cannot be rolled back.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        instant = instant_named(opened.context, instant)
        planned = plan_rollback(context, instant, force=force)
        document: dict[str, Any] = {
            **nothing_to_do("rollback", "rollback"),
            "rolled_back": instant,
            "files_deleted": list(planned.files),
        }
        if not invocation.dry_run:
            what = "completed" if planned.target.completed else "pending"
            invocation.confirm(
                f"roll back {what} {instant}, which deletes {counted(len(planned.files), 'data file')}?"
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
    invocation.printer.result(document, _rollback_text(invocation, instant, document))


def _rollback_text(invocation: Invocation, instant: str, document: dict[str, Any]) -> str:
    files = count_text(len(document["files_deleted"]), "data file")
    if invocation.dry_run:
        return f"would roll back {instant} and delete {files}"
    if document["rolled_back"] is None:
        return f"not rolled back: {instant}; {document['why']}"
    return f"rolled back {instant} and deleted {files}"


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT", required=False)
@click.option("--force", is_flag=True, help="Even if writers seem alive.")
@click.option("--finish", is_flag=True, help="Finish the restore of another engine that ended.")
@changing
def restore(
    invocation: Invocation, *, address: str, instant: str | None, force: bool, finish: bool
) -> None:
    """
    Restore a table to an earlier state.

    TABLE has the rows that it had right after the write INSTANT. All later instants are removed,
    with pending writes and plans. Stop the writers first. A savepoint keeps the files of a state.

    A time means the newest write until then. A day means its start, so 'today' keeps the
    writes of yesterday and 'yesterday' removes them:

    \b
      hoodoo restore TABLE today --dry-run
    """  # noqa: D301 - click needs the control character
    if (instant is None) is not finish:
        raise click.UsageError("name the INSTANT to restore, or use --finish")
    with invocation.open_table(address) as opened:
        context = opened.context
        instant = None if instant is None else instant_named(opened.context, instant)
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
                f"restore to {instant}, which removes {counted(len(planned.instants), 'instant')} "
                f"and {counted(len(planned.files), 'data file')}?"
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
    invocation.printer.result(document, _restore_text(invocation, document))


def _restore_text(invocation: Invocation, document: dict[str, Any]) -> str:
    if "restored_to" not in document:
        return "would finish the restore" if invocation.dry_run else "no restore to finish"
    counts = (
        f"{count_text(len(document['instants_taken_away']), 'instant')} and "
        f"{count_text(len(document['files_deleted']), 'data file')}"
    )
    if invocation.dry_run:
        return f"would restore to {document['restored_to']} and remove {counts}"
    return f"restored to {document['restored_to']} and removed {counts}"


# ---- ``hoodoo savepoint``: keep the files of a state from cleaning, and end that
@click.group(cls=CommandGroup)
def savepoint() -> None:
    """Keep a state of a table from cleaning."""


@savepoint.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="[INSTANT]", required=False)
@click.option("--comment", default="", help="A text that is stored with the savepoint.")
@changing
def create(invocation: Invocation, *, address: str, instant: str | None, comment: str) -> None:
    """
    Keep the state after a write.

    INSTANT is the write. Default: the newest completed write.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        instant = None if instant is None else instant_named(opened.context, instant)
        if invocation.dry_run:
            made = plan_savepoint(context, instant)
        else:
            made = opened.savepoint(instant, comments=comment)
    invocation.printer.result(
        {
            **nothing_to_do("savepoint", "savepoint"),
            "requested_time": made.requested_time,
            "completion_time": made.completion_time,
            "attempts": 0 if invocation.dry_run else 1,
            "files_kept": list(made.files),
        },
        f"{'would keep' if invocation.dry_run else 'kept'} the state of {made.requested_time} "
        f"with {count_text(len(made.files), 'file')}",
    )


@savepoint.command("list")
@click.argument("address", metavar="TABLE")
@reading
def show(invocation: Invocation, *, address: str) -> None:
    """List the savepoints of a table."""
    with invocation.open_table(address) as opened:
        found, zone = opened.savepoints, opened.context.zone.name
    printer = invocation.printer
    if printer.for_people:
        printer.grid(
            ("instant", f"made ({zone})", "files", "by", "comment"),
            [
                (
                    one.requested_time,
                    time_text(one.completion_time or one.requested_time)[:19],
                    len(one.files),
                    one.made_by,
                    one.comments,
                )
                for one in found
            ],
            empty="the table has no savepoint",
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
    """
    Delete the savepoint of a write.

    INSTANT is the write. The next clean may delete the files of that state.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        instant = instant_named(opened.context, instant)
        known = [one.requested_time for one in savepoints(context)]
        if instant not in known and invocation.dry_run:
            raise instant_not_found(
                "this write has no savepoint; 'hoodoo savepoint list TABLE' shows them",
                instant,
                known,
                kind="no_such_savepoint",
            )
        document = {**nothing_to_do("savepoint", "delete_savepoint"), "requested_time": instant}
        if not invocation.dry_run:
            invocation.confirm(f"give up the savepoint {instant}?")
            register_writer(opened.context, opened.properties, opened.settings)
            document["completion_time"] = delete_savepoint(context, instant)
            document["attempts"] = 1
    done = "would delete" if invocation.dry_run else "deleted"
    invocation.printer.result(document, f"{done} the savepoint of {instant}")

"""``hoodoo rollback`` and ``hoodoo restore``: undo one write, or everything after one."""

from __future__ import annotations

from typing import Any

import click

from hoodoo.cli.invocation import Invocation, changing
from hoodoo.cli.receipts import nothing_done
from tableservices.restoring.restore import finish_restore, plan_restore
from tableservices.restoring.restore import restore as go_back
from tableservices.restoring.rollback import plan_rollback
from tableservices.restoring.rollback import rollback as undo

__all__ = ["restore", "rollback"]


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
        context = opened.core.context
        instant = context.instant_named(instant)
        planned = plan_rollback(context, instant, force=force)
        document: dict[str, Any] = {
            **nothing_done("rollback", "rollback"),
            "rolled_back": instant,
            "files_deleted": list(planned.files),
        }
        if not invocation.dry_run:
            what = "completed" if planned.target.completed else "pending"
            invocation.confirm(
                f"roll back {what} {instant}, which deletes {len(planned.files)} data files?"
            )
            opened.join_writers()
            done = undo(context, instant, force=force)
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
        context = opened.core.context
        instant = None if instant is None else context.instant_named(instant)
        document: dict[str, Any] = nothing_done("restore", "restore")
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
            opened.join_writers()
            done = (
                finish_restore(context)
                if instant is None
                else go_back(context, instant, force=force)
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

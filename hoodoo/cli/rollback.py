"""``hoodoo rollback``: undo one write that never completed."""

from __future__ import annotations

from typing import Any

import click

from hoodoo.cli.invocation import Invocation, changing
from hoodoo.cli.receipts import nothing_done
from timeline.errors import InstantNotFoundError, InvalidInputError
from timeline.heartbeat import instants_that_seem_dead
from timeline.settle import data_files_of
from timeline.undo import rollback as undo

__all__ = ["rollback"]


@click.command()
@click.argument("address", metavar="TABLE")
@click.argument("instant", metavar="INSTANT")
@click.option("--alive-too", is_flag=True, help="Even if its writer still gives signs of life.")
@changing
def rollback(invocation: Invocation, *, address: str, instant: str, alive_too: bool) -> None:
    """Undo the pending write INSTANT (a requested time) of TABLE for good."""
    with invocation.open_table(address) as opened:
        context = opened.core.context
        active = context.active()
        target = next(
            (one for one in active.pending_ingestion if one.requested_time == instant), None
        )
        if target is None:
            pending = [one.requested_time for one in active.pending_ingestion]
            raise InstantNotFoundError(
                f"no such pending write; pending are {pending}: {instant}",
                kind="no_pending_write",
                requested_time=instant,
            )
        dead = instants_that_seem_dead(context.world.storage, (instant,), context.limits.heartbeat)
        if not dead and not alive_too:
            raise InvalidInputError(
                "its writer still gives signs of life; end the writer, or say --alive-too: "
                f"{instant}",
                kind="writer_alive",
                requested_time=instant,
            )
        files = data_files_of(context.world.storage, instant)
        document: dict[str, Any] = {
            **nothing_done("rollback", "rollback"),
            "rolled_back": instant,
            "files_deleted": files,
        }
        if not invocation.dry_run:
            opened.join_writers()
            invocation.confirm(f"roll back {instant}, which deletes {len(files)} data files?")
            done = undo(context, target)
            document["why"] = done.why
            if done.slot is not None:
                document["requested_time"] = done.slot.instant_time
                document["completion_time"] = done.slot.completion_time
                document["attempts"] = 1
    invocation.printer.document(document)

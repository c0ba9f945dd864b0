"""``hoodoo locks``: does the configured lock exclude, and who holds it?"""

from __future__ import annotations

import click

from hoodoo.assembly import assemble
from hoodoo.cli.exits import PROBLEMS_FOUND
from hoodoo.cli.invocation import Invocation, reading
from lockproviders.doctor import examine

__all__ = ["locks"]


@click.group()
def locks() -> None:
    """Look into the lock that writers of a table share."""


@locks.command()
@click.argument("address", metavar="TABLE")
@reading
def doctor(invocation: Invocation, *, address: str) -> None:
    """Acquire, refuse a second holder, release, hand over; exit code 5 when one fails."""
    printer = invocation.printer
    with invocation.open_table(address) as opened:
        world = opened.core.context.world
        quick = invocation.layers.with_code(
            {
                "hoodie.write.lock.wait_time_ms": "100",
                "hoodie.write.lock.client.num_retries": "0",
                "hoodie.write.lock.num_retries": "0",
            }
        )
        rival = assemble(address, quick.load(opened.config.raw)).lock
        try:
            found = examine(world.lock, rival, clock=world.clock)
        finally:
            rival.close()
    if printer.for_people:
        printer.line(f"provider {found.provider}")
        printer.grid(
            ("check", "ok", "seconds", "what"),
            [
                (c.name, "yes" if c.ok else "NO", f"{c.seconds:.3f}", c.message)
                for c in found.checks
            ],
        )
    else:
        printer.document(found.as_document())
    if not found.ok:
        raise click.exceptions.Exit(PROBLEMS_FOUND)

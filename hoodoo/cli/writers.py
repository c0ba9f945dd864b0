"""``hoodoo writers``: who writes to a table."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hoodoo.cli.invocation import Invocation, reading
from timeline.registry import registered_writers

__all__ = ["writers"]


@click.command()
@click.argument("address", metavar="TABLE")
@reading
def writers(invocation: Invocation, *, address: str) -> None:
    """Show every registered writer and whether it still gives signs of life."""
    with invocation.open_table(address) as opened:
        found = registered_writers(opened.core.context)
    if invocation.printer.for_people:
        invocation.printer.grid(
            ("application", "pid", "host", "since", "last sign of life", "seems"),
            [
                (
                    one.application,
                    one.pid,
                    one.host,
                    _text(one.since_ms),
                    _text(one.last_beat_ms),
                    "alive" if one.alive else "dead",
                )
                for one in found
            ],
        )
        return
    invocation.printer.document(
        {
            "writers": [
                {
                    "writer_id": one.writer_id,
                    "host": one.host,
                    "pid": one.pid,
                    "application": one.application,
                    "since": _text(one.since_ms),
                    "last_beat": _text(one.last_beat_ms),
                    "alive": one.alive,
                    "agreement": dict(one.agreement),
                }
                for one in found
            ]
        }
    )


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")

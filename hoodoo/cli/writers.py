"""``hoodoo writers``: who writes to a table, and whom cleaning must wait for."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hoodoo.cli.invocation import Invocation, reading
from timeline.reading.reader_lease import registered_readers
from timeline.registry import registered_writers

__all__ = ["writers"]


@click.command()
@click.argument("address", metavar="TABLE")
@reading
def writers(invocation: Invocation, *, address: str) -> None:
    """Show every registered writer and every reader with a lease, and who seems alive."""
    with invocation.open_table(address) as opened:
        found = registered_writers(opened.core.context)
        readers = registered_readers(opened.core.context)
    if invocation.printer.for_people:
        invocation.printer.grid(
            ("application", "pid", "host", "since", "last sign of life", "seems", "buckets"),
            [
                (
                    one.application,
                    one.pid,
                    one.host,
                    _text(one.since_ms),
                    _text(one.last_beat_ms),
                    "alive" if one.alive else "dead",
                    one.buckets,
                )
                for one in found
            ],
        )
        if readers:
            invocation.printer.line()
            invocation.printer.grid(
                ("reader", "pid", "host", "since", "reads as of", "lease until"),
                [
                    (
                        one.application,
                        one.pid,
                        one.host,
                        _text(one.since_ms),
                        one.newest,
                        _text(one.until_ms) if one.alive else "ended",
                    )
                    for one in readers
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
                    "buckets": one.buckets,
                }
                for one in found
            ],
            "readers": [
                {
                    "reader_id": one.reader_id,
                    "host": one.host,
                    "pid": one.pid,
                    "application": one.application,
                    "since": _text(one.since_ms),
                    "oldest": one.oldest,
                    "newest": one.newest,
                    "until": _text(one.until_ms),
                    "alive": one.alive,
                }
                for one in readers
            ],
        }
    )


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")

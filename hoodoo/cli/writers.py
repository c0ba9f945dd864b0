"""``hoodoo writers``: who writes to a table, whom cleaning must wait for, and who is gone."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hoodoo.cli.invocation import Invocation, changing, reading
from timeline.reader_lease import registered_readers
from timeline.writer_registry import forget as forget_entry
from timeline.writer_registry import registered_writers


class _ShownByDefault(click.Group):
    """``hoodoo writers TABLE`` is ``hoodoo writers show TABLE``; other tables are ``./forget``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if not args or args[0] in known else ["show", *args])


@click.group(cls=_ShownByDefault)
def writers() -> None:
    """Writers and readers of a table: show them (hoodoo writers TABLE), forget a dead one."""


@writers.command()
@click.argument("address", metavar="TABLE")
@click.argument("writer_id", metavar="WRITER")
@click.option("--force", is_flag=True, help="Even if it still gives signs of life.")
@changing
def forget(invocation: Invocation, *, address: str, writer_id: str, force: bool) -> None:
    """
    Let TABLE wait no longer for WRITER (an id of 'hoodoo writers TABLE'), whose process is gone.

    Archiving respects for a while which slots it may need, and newcomers must agree with it as
    long as it seems alive; both end at once. Its pending write is rolled back by the next clean.
    Never force it for a process that may only sleep: a file that it asked for long ago may come
    back after the archive took its instant away.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        gone = forget_entry(context, writer_id, force=force, dry_run=True)
        if not invocation.dry_run:
            invocation.confirm(f"forget {gone.text}, last heard of {_text(gone.last_beat_ms)}?")
            gone = forget_entry(context, writer_id, force=force)
        pins = [
            one.low_water_mark
            for one in registered_writers(context)
            if not one.silent and one.writer_id != writer_id
        ]
    invocation.printer.document(
        {
            "forgotten": not invocation.dry_run,
            "writer_id": gone.writer_id,
            "host": gone.host,
            "pid": gone.pid,
            "application": gone.application,
            "last_beat": _text(gone.last_beat_ms),
            "alive": gone.alive,
            "pin": None if gone.silent else gone.low_water_mark,
            "next_pin": min(pins, default=None),
            "buckets": gone.buckets,
        }
    )


@writers.command()
@click.argument("address", metavar="TABLE")
@reading
def show(invocation: Invocation, *, address: str) -> None:
    """Show every registered writer and every reader with a lease, and who seems alive."""
    with invocation.open_table(address) as opened:
        found = registered_writers(opened.context)
        readers = registered_readers(opened.context)
    if invocation.printer.for_people:
        invocation.printer.grid(
            (
                "writer",
                "application",
                "pid",
                "host",
                "since",
                "last beat",
                "seems",
                "buckets",
                "engine",
            ),
            [
                (
                    one.writer_id,
                    one.application,
                    one.pid,
                    one.host,
                    _text(one.since_ms),
                    _text(one.last_beat_ms),
                    "alive" if one.alive else "dead",
                    one.buckets,
                    one.engine_version,
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
                    "pin": one.low_water_mark,
                    "agreement": dict(one.agreement),
                    "buckets": one.buckets,
                    "engine_version": one.engine_version,
                    "least_engine_version": one.least_engine_version,
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

"""``hoodoo writers``: the writers and readers of a table, and how to forget a dead writer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from hoodoo.cli.invocation import CommandGroup, Invocation, changing, reading
from hoodoo.cli.printing import Printer, short_id, wall_text
from timeline.reader_lease import RegisteredReader, registered_readers
from timeline.writer_registry import RegisteredWriter, registered_writers
from timeline.writer_registry import forget as forget_entry


class _ShownByDefault(CommandGroup):
    """Reads ``hoodoo writers TABLE`` as ``hoodoo writers show TABLE``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if not args or args[0] in known else ["show", *args])


@click.group(cls=_ShownByDefault)
def writers() -> None:
    """
    Show writers and readers, or forget one.

    'hoodoo writers TABLE' is short for 'hoodoo writers show TABLE'.
    """


@writers.command()
@click.argument("address", metavar="TABLE")
@click.argument("writer_id", metavar="WRITER")
@click.option("--force", is_flag=True, help="Even if the writer seems alive.")
@changing
def forget(invocation: Invocation, *, address: str, writer_id: str, force: bool) -> None:
    """
    Forget a writer whose process has ended.

    WRITER is an id of 'hoodoo writers TABLE', or its first digits. Archiving no longer retains
    slots for this writer, and new writers need not agree with its settings. The next clean rolls
    back its pending write. Do not force it for a process that may be suspended: its late file
    could appear after its instant is archived.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        writer_id = _whole_id(registered_writers(context), writer_id)
        gone = forget_entry(context, writer_id, force=force, dry_run=True)
        if not invocation.dry_run:
            invocation.confirm(f"forget {gone.text}, last heartbeat {_text(gone.last_beat_ms)}?")
            gone = forget_entry(context, writer_id, force=force)
        pins = [
            one.low_water_mark
            for one in registered_writers(context)
            if not one.silent and one.writer_id != writer_id
        ]
    done = "would forget" if invocation.dry_run else "forgot"
    invocation.printer.result(
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
        },
        f"{done} {gone.text}, last heartbeat {wall_text(gone.last_beat_ms)} UTC",
    )


def _whole_id(known: Sequence[RegisteredWriter], text: str) -> str:
    """Return the id that begins with the text; the text itself if there is not exactly one."""
    found = [one.writer_id for one in known if one.writer_id.startswith(text)]
    return found[0] if text and len(found) == 1 else text


@writers.command()
@click.argument("address", metavar="TABLE")
@reading
def show(invocation: Invocation, *, address: str) -> None:
    """
    List writers, and readers with a lease.

    A writer is alive if its last heartbeat is recent enough.
    """
    with invocation.open_timeline(address) as context:
        found = registered_writers(context)
        readers = registered_readers(context)
    if invocation.printer.for_people:
        _print_tables(invocation.printer, found, readers)
    else:
        invocation.printer.document(
            {
                "writers": [_writer_document(one) for one in found],
                "readers": [_reader_document(one) for one in readers],
            }
        )


def _print_tables(
    printer: Printer, found: Sequence[RegisteredWriter], readers: Sequence[RegisteredReader]
) -> None:
    printer.grid(
        ("writer", "state", "last heartbeat (UTC)", "process", "buckets", "engine", "application"),
        [
            (
                short_id(one.writer_id),
                "alive" if one.alive else "dead",
                wall_text(one.last_beat_ms),
                f"{one.pid} on {one.host}",
                one.buckets,
                one.engine_version,
                one.application,
            )
            for one in found
        ],
        empty="no registered writer",
    )
    if readers:
        printer.line()
        printer.grid(
            ("reader", "lease until (UTC)", "reads as of", "process"),
            [
                (
                    one.application or short_id(one.reader_id),
                    wall_text(one.until_ms) if one.alive else "ended",
                    one.newest,
                    f"{one.pid} on {one.host}",
                )
                for one in readers
            ],
        )


def _writer_document(one: RegisteredWriter) -> dict[str, object]:
    return {
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


def _reader_document(one: RegisteredReader) -> dict[str, object]:
    return {
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


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")

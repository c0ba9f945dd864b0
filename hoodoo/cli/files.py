"""``hoodoo files``: the data files of a table."""

from __future__ import annotations

from typing import Any

import click

from hoodoo.cli.instants import time_named
from hoodoo.cli.invocation import Command, Invocation, reading
from hoodoo.cli.printing import short_id, size_text
from timeline.model.file_slice import FileSlice


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.option("--as-of", metavar="TIME", help="Show the state at this time or instant.")
@reading
def files(invocation: Invocation, *, address: str, as_of: str | None) -> None:
    """Show the newest slice of each file group."""
    with invocation.open_table(address) as opened:
        shown = opened if as_of is None else opened.as_of(time_named(opened.context, as_of))
        slices = sorted(
            shown.file_slices(),
            key=lambda one: (one.file_group.partition_path, one.file_group.file_id),
        )
    if invocation.printer.for_people:
        invocation.printer.grid(
            ("partition", "file id", "base instant", "size", "log files"),
            [
                (
                    one.file_group.partition_path,
                    short_id(one.file_group.file_id),
                    one.base_instant_time,
                    size_text(one.size_bytes),
                    len(one.log_files),
                )
                for one in slices
            ],
            empty="the table has no data files",
        )
        return
    invocation.printer.document({"as_of": as_of, "file_slices": [_shape(one) for one in slices]})


def _shape(one: FileSlice) -> dict[str, Any]:
    return {
        "partition_path": one.file_group.partition_path,
        "file_id": one.file_group.file_id,
        "base_instant_time": one.base_instant_time,
        "base_file": None if one.base_file is None else one.base_file.name,
        "log_files": [log.name for log in one.log_files],
    }

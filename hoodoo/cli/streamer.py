"""``hoodoo streamer``: batches of a source into a table, once or until stopped."""

from __future__ import annotations

from typing import Any

import click

from filegroups.settings.settings import WriteSettings
from hoodoo.cli.invocation import Command, Invocation, changing
from hoodoo.cli.printing import count_text
from hoodoo.cli.services import stop_on_signals
from hoodoo.streamer.run import Streamer, WrittenBatch
from hoodoo.streamer.settings import StreamerExecutor, StreamerSettings
from hoodoo.sync.settings import SyncSettings


@click.command(cls=Command)
@click.option("--target-base-path", "target", metavar="TABLE", help="The table to write.")
@click.option("--target-table", "name", metavar="NAME", help="Name of a new table.")
@click.option("--table-type", metavar="TYPE", help="COPY_ON_WRITE or MERGE_ON_READ, if new.")
@click.option(
    "--source-class",
    metavar="NAME",
    help="JsonDFSSource, JsonKafkaSource, HoodieIncrSource, ... (see the docs).",
)
@click.option(
    "--source-ordering-fields",
    "--source-ordering-field",
    "ordering",
    metavar="A,..",
    help="Ordering columns of a new table.",
)
@click.option("--op", "operation", metavar="NAME", help="UPSERT (default), INSERT, BULK_INSERT, ..")
@click.option(
    "--transformer-class", "transformers", metavar="A,..", help="Classes, or module:function."
)
@click.option("--schemaprovider-class", "schema_class", metavar="NAME", help="Origin of schemas.")
@click.option(
    "--source-limit", type=click.IntRange(min=1), help="Bytes of files, or messages, in a batch."
)
@click.option("--checkpoint", metavar="TEXT", help="Begin here, once for each text.")
@click.option(
    "--ignore-checkpoint",
    metavar="TEXT",
    help="Begin at the start of the source, once for each text.",
)
@click.option(
    "--executor",
    type=click.Choice([one.value for one in StreamerExecutor]),
    help="Compute in this process, or on a Spark session.",
)
@click.option("--enable-sync", "sync", is_flag=True, help="Register the table in a catalog.")
@click.option("--continuous", is_flag=True, default=None, help="Go on until a signal.")
@click.option(
    "--min-sync-interval-seconds",
    "interval_s",
    type=click.IntRange(min=0),
    help="Least time between two batches.",
)
@changing
def streamer(
    invocation: Invocation,
    *,
    target: str | None,
    name: str | None,
    table_type: str | None,
    ordering: str | None,
    operation: str | None,
    interval_s: int | None,
    sync: bool,
    **flags: Any,
) -> None:
    """
    Write what is new in a source into a table.

    It writes batch by batch. Each commit has the checkpoint of its batch, so a killed streamer continues without loss or
    repetition. The flags are those of Java's HoodieStreamer; all else is in --props. --dry-run
    checks table, checkpoint and source.
    """
    values = {
        **flags,
        "target": target,
        "interval_ms": None if interval_s is None else interval_s * 1000,
    }
    given = {
        StreamerSettings.options[field].key: value
        for field, value in values.items()
        if value is not None
    }
    of_table = {
        "table_name": name,
        "table_type": table_type,
        "ordering_fields": ordering,
        "operation": operation,
    }
    given |= {
        WriteSettings.options[field].key: value
        for field, value in of_table.items()
        if value is not None
    }
    if sync:
        given[SyncSettings.options["meta_enabled"].key] = "true"
    with Streamer(invocation.layers.with_code(given)) as opened:
        if invocation.dry_run:
            checkpoint = opened.check()
            invocation.printer.result(
                {"checkpoint": checkpoint, "batches": 0, "rows": 0, "bad_records": 0},
                "would begin "
                + ("at the begin of the source" if checkpoint is None else f"at {checkpoint}"),
            )
            return

        def show(batch: WrittenBatch) -> None:
            invocation.printer.remark(
                f"{batch.result.operation.lower()} {batch.result.requested_time}: "
                f"{count_text(batch.rows, 'row')}, checkpoint {batch.checkpoint}"
            )

        report = opened.run(stop=stop_on_signals(), on_batch=show)
    invocation.printer.result(
        {
            "batches": report.batches,
            "rows": report.rows,
            "bad_records": report.bad,
            "checkpoint": report.checkpoint,
        },
        f"wrote {count_text(report.rows, 'row')} in {count_text(report.batches, 'batch')}"
        if report.batches
        else "the source has nothing new",
    )

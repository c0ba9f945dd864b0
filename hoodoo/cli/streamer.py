"""``hoodoo streamer``: batches of a source into a table, once or until stopped."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import click

from filegroups.settings.settings import WriteSettings
from hoodoo.cli.invocation import Command, Invocation, changing
from hoodoo.cli.printing import count_text
from hoodoo.cli.services import stop_on_signals
from hoodoo.streamer.run import Streamer, WrittenBatch
from hoodoo.streamer.settings import StreamerExecutor, StreamerSettings
from hoodoo.sync.settings import SyncSettings

#: Flags of Java's streamer that set an option of the table, and its key.
_OF_TABLE: Final = {
    "--base-file-format": "hoodie.table.base.file.format",
    "--merge-mode": "hoodie.write.record.merge.mode",
    "--merger-impls": "hoodie.write.record.merge.custom.implementation.classes",
    "--payload-class": "hoodie.datasource.write.payload.class",
    "--record-merge-strategy-id": "hoodie.write.record.merge.strategy.id",
    "--sync-tool-classes": "hoodie.meta.sync.client.tool.class",
}
_WARNINGS: Final = "hoodoo.streamer.warnings"
_SESSION: Final = "the Spark session decides that"
_SERVICES: Final = "the options of table services decide that"
_REPEATS: Final = "hoodoo.streamer.retry.count decides that"
#: Flags of Java's streamer that only tune Java: whether they have a value, and why they do nothing.
_OF_JAVA: Final = {
    "--allow-commit-on-no-checkpoint-change": (False, "nothing new makes no commit"),
    "--cluster-scheduling-minshare": (True, _SESSION),
    "--cluster-scheduling-weight": (True, _SESSION),
    "--compact-scheduling-minshare": (True, _SESSION),
    "--compact-scheduling-weight": (True, _SESSION),
    "--config-hot-update-strategy-class": (True, "options are read once"),
    "--delta-sync-scheduling-minshare": (True, _SESSION),
    "--delta-sync-scheduling-weight": (True, _SESSION),
    "--force-empty-sync": (False, "nothing new makes no commit"),
    "--ingestion-metrics-class": (True, "hoodoo sends no metrics"),
    "--max-pending-clustering": (True, _SERVICES),
    "--max-pending-compactions": (True, _SERVICES),
    "--max-retry-count": (True, _REPEATS),
    "--retry-interval-seconds": (True, _REPEATS),
    "--retry-last-pending-inline-clustering": (False, _SERVICES),
    "--retry-last-pending-inline-compaction": (False, _SERVICES),
    "--retry-on-source-failures": (False, _REPEATS),
    "--spark-master": (True, _SESSION),
}
#: Flags of Java's streamer that would change rows, and what to do instead.
_REFUSED: Final = {
    "--bootstrap-index-class": "write the rows by another source",
    "--bootstrap-overwrite": "write the rows by another source",
    "--commit-on-errors": "set hoodie.errortable.enable=true, which keeps bad records",
    "--initial-checkpoint-provider": "pass the checkpoint by --checkpoint",
    "--post-write-termination-strategy-class": "leave out --continuous to end with the source",
    "--run-bootstrap": "write the rows by another source",
}


def _flags_of_java(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take the flags of Java's streamer that the help does not list."""

    def note(context: click.Context, parameter: click.Parameter, value: object) -> None:
        flag = parameter.opts[0]
        if value in (None, False):
            return
        if flag in _REFUSED:
            raise click.UsageError(f"hoodoo lacks {flag}; leave it out, and {_REFUSED[flag]}")
        context.meta.setdefault(_WARNINGS, []).append(
            f"no effect here, {_OF_JAVA[flag][1]}: {flag}"
        )

    for flag, (has_value, _) in (_OF_JAVA | dict.fromkeys(_REFUSED, (False, ""))).items():
        takes_value = has_value or flag.endswith(("-class", "-provider"))
        command = click.option(
            flag, is_flag=not takes_value, hidden=True, expose_value=False, callback=note
        )(command)
    return command


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
@click.option("--payload-class", metavar="NAME", help="How the versions of a record are merged.")
@click.option("--merge-mode", metavar="NAME", hidden=True)
@click.option("--merger-impls", metavar="A,..", hidden=True)
@click.option("--record-merge-strategy-id", metavar="ID", hidden=True)
@click.option("--base-file-format", metavar="NAME", hidden=True)
@click.option("--sync-tool-classes", metavar="A,..", hidden=True)
@click.option("--filter-dupes", is_flag=True, help="Leave out rows of known keys; for INSERT.")
@click.option("--disable-compaction", is_flag=True, help="Compact nothing in the background.")
@click.option(
    "--enable-sync",
    "--enable-hive-sync",
    "sync",
    is_flag=True,
    help="Register the table in a catalog.",
)
@click.option("--continuous", is_flag=True, default=None, help="Run until a signal.")
@click.option(
    "--min-sync-interval-seconds",
    "interval_s",
    type=click.IntRange(min=0),
    help="Least time between two batches.",
)
@_flags_of_java
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
    filter_dupes: bool,
    disable_compaction: bool,
    **flags: Any,
) -> None:
    """
    Write what is new in a source into a table.

    It writes batch by batch. Each commit has the checkpoint of its batch, so a killed streamer continues without loss or
    repetition. The flags are those of Java's HoodieStreamer; all else is in --props. --dry-run
    checks table, checkpoint and source.
    """
    for text in click.get_current_context().meta.get(_WARNINGS, []):
        warnings.warn(text, stacklevel=1)
    keys = {flag.removeprefix("--").replace("-", "_"): key for flag, key in _OF_TABLE.items()}
    values = {
        **{field: value for field, value in flags.items() if field not in keys},
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
    given |= {key: flags[flag] for flag, key in keys.items() if flags[flag] is not None}
    if filter_dupes:
        given[WriteSettings.options["insert_drop_duplicates"].key] = "true"
    if disable_compaction:
        given["hoodie.datasource.compaction.async.enable"] = "false"
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

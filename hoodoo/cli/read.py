"""``hoodoo read``: stream the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from filegroups.schema.avro_schema import RAW
from filegroups.schema.schema import META_COLUMNS, hudi_type_name, with_meta
from filegroups.settings.read_settings import ReadSettings
from hoodoo.cli.instants import time_named
from hoodoo.cli.invocation import Command, Invocation, reading
from hoodoo.cli.output_files import check_output_file, write_rows
from hoodoo.cli.printing import count_text, size_text
from timeline.errors import InvalidInputError
from timeline.properties.setting_enums import QueryType

if TYPE_CHECKING:
    from hoodoo.table import Table

_CHANGES = "cdc"  # Hudi's format of an incremental query; here a query type
_KINDS = ("snapshot", "read_optimized", "incremental", _CHANGES)


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.option(
    "--query-type",
    type=click.Choice(_KINDS),
    help="Default: snapshot; with --since or --until: incremental.",
)
@click.option("--as-of", metavar="TIME", help="Read the state at this time or instant.")
@click.option("--since", metavar="TIME", help="Read changes after this time, or 'earliest'.")
@click.option("--until", metavar="TIME", help="Read changes up to and including this time.")
@click.option("--columns", metavar="A,B,..", help="Columns to return, in this order.")
@click.option(
    "--filter",
    "condition",
    metavar="TEXT",
    help="A SQL condition: \"month = 3 AND name LIKE 'A%'\".",
)
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of rows.")
@click.option("--meta", is_flag=True, help="Return the five _hoodie_ columns, too.")
@click.option(
    "--to",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the rows to a new file: .parquet .csv. --output does not change the file.",
)
@click.option("--force", is_flag=True, help="With --to: replace an existing file.")
@reading
def read(
    invocation: Invocation,
    *,
    address: str,
    query_type: str | None,
    as_of: str | None,
    since: str | None,
    until: str | None,
    columns: str | None,
    condition: str | None,
    limit: int | None,
    meta: bool,
    target: Path | None,
    force: bool,
) -> None:
    """
    Print rows, or save them to a file.

    A program gets one JSON object for each row. Query type cdc returns each change since a time:
    op (i, u, d), ts_ms (its instant), and the row before and after. Query type incremental needs
    --since; cdc without it starts at the first write.
    """
    if target is not None:
        check_output_file(target, force=force)
    ranged = since is not None or until is not None
    if ranged and query_type not in (None, QueryType.INCREMENTAL.value, _CHANGES):
        # Without the range, older rows would pass for changes.
        raise click.UsageError(
            f"--since and --until select changes: remove --query-type {query_type}, or use "
            f"{QueryType.INCREMENTAL.value} or {_CHANGES}"
        )
    incremental_format = None
    if query_type == _CHANGES:
        query_type, incremental_format = QueryType.INCREMENTAL.value, _CHANGES
        since = "earliest" if since is None else since
    if query_type is None and ranged:
        query_type = QueryType.INCREMENTAL.value
    given = {
        "hoodie.datasource.query.type": query_type,
        "hoodie.datasource.query.incremental.format": incremental_format,
        "as.of.instant": as_of,
        "hoodie.datasource.read.begin.instanttime": since,
        "hoodie.datasource.read.end.instanttime": until,
    }
    code = {key: value for key, value in given.items() if value is not None}
    table = invocation.open_table(address, code)
    settings = ReadSettings.from_properties(table.properties)
    names = None if columns is None else _named(columns)
    if settings.is_cdc:
        _refuse_for_changes(condition, meta=meta)
        batches = table.changes(*_range(table, settings), names, images=True)
    elif settings.query_type is QueryType.INCREMENTAL:
        batches = _changes(table, settings, names, condition, meta=meta)
    else:
        pinned = (
            table
            if settings.as_of is None
            else table.as_of(time_named(table.context, settings.as_of))
        )
        batches = pinned.scan(
            columns=names,
            filter=condition,
            with_hoodie_columns=meta,
            query_type=settings.query_type.value,
        )
    _warn_of_raw(invocation, table, names)
    if limit is not None:
        batches = pa.RecordBatchReader.from_batches(batches.schema, _limited(batches, limit))
    if target is None and settings.is_cdc and invocation.printer.for_people:
        invocation.printer.changes(batches)
        return
    if target is None:
        invocation.printer.rows(batches)
        return
    made = write_rows(target, batches, force=force)
    invocation.printer.result(
        {"file": str(target), "rows": made.rows, "bytes": made.size_bytes},
        f"saved {count_text(made.rows, 'row')} ({size_text(made.size_bytes)}) to {target}",
    )


def _warn_of_raw(invocation: Invocation, table: Table, names: list[str] | None) -> None:
    """Warn of columns that are printed in their stored form, without a decoder."""
    for column in table.schema:
        kind = hudi_type_name(column)
        if kind is not None and kind.startswith(RAW) and (names is None or column.name in names):
            invocation.printer.remark(
                f"column {column.name!r} is printed {kind}: hoodoo has no decoder for it"
            )


def _named(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _refuse_for_changes(condition: str | None, *, meta: bool) -> None:
    if condition is not None or meta:
        raise InvalidInputError(
            "changes have a row before and after, so a filter is ambiguous, and they have no "
            "meta columns; remove --filter and --meta",
            kind="unsupported_query",
            query_type=_CHANGES,
        )


def _changes(
    table: Table,
    settings: ReadSettings,
    names: list[str] | None,
    condition: str | None,
    *,
    meta: bool,
) -> pa.RecordBatchReader:
    """Return changed rows in the chosen columns; a filter may use other columns."""
    wanted = names
    if wanted is None:
        every = with_meta(table.schema).names
        wanted = [name for name in every if meta or name not in META_COLUMNS]
    return table.changes(*_range(table, settings), columns=wanted, filter=condition)


def _range(table: Table, settings: ReadSettings) -> tuple[str, str | None]:
    """Return the range of an incremental read; an instant means its completion time."""
    since, until = settings.begin_time or "earliest", settings.end_time
    return (
        time_named(table.context, since, completed=True),
        None if until is None else time_named(table.context, until, completed=True),
    )


def _limited(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows

"""``hoodoo read``: rows of a table, streamed as they are read."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pyarrow as pa

from filegroups.schema.avro_schema import RAW
from filegroups.schema.schema import META_COLUMNS, hudi_type_name, with_meta
from filegroups.settings.read_settings import ReadSettings
from hoodoo.cli.instants import time_named
from hoodoo.cli.invocation import Invocation, reading
from hoodoo.table import Table
from timeline.errors import InvalidInputError
from timeline.properties.setting_enums import QueryType

_CHANGES = "cdc"  # Hudi's format of an incremental query, a kind of its own here
_KINDS = ("snapshot", "read_optimized", "incremental", _CHANGES)


@click.command()
@click.argument("address", metavar="TABLE")
@click.option("--query-type", type=click.Choice(_KINDS), default=None)
@click.option("--as-of", metavar="TIME", help="The table as it was at this time.")
@click.option("--since", metavar="TIME", help="Incremental: after this time, or 'earliest'.")
@click.option("--until", metavar="TIME", help="Incremental: up to and with this time.")
@click.option("--columns", metavar="A,B,..", help="Columns to return, in this order.")
@click.option(
    "--filter",
    "condition",
    metavar="TEXT",
    help="A SQL condition: \"month = 3 AND name LIKE 'A%'\".",
)
@click.option("--limit", type=click.IntRange(min=0), help="Rows at most.")
@click.option("--meta", is_flag=True, help="Return the five _hoodie_ columns too.")
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
) -> None:
    """
    Print the rows of TABLE, one JSON object a row.

    With query type cdc each change since a time: op (i, u, d), ts_ms (its instant), and the row
    before and after.
    """
    ranged = since is not None or until is not None
    if ranged and query_type not in (None, QueryType.INCREMENTAL.value, _CHANGES):
        # It would be left out without a word, and rows of before the range look like changes.
        raise click.UsageError(
            f"--since and --until bound what changed: leave --query-type {query_type} out, or say "
            f"{QueryType.INCREMENTAL.value} or {_CHANGES}"
        )
    incremental_format = None
    if query_type == _CHANGES:
        query_type, incremental_format = QueryType.INCREMENTAL.value, _CHANGES
        since = "earliest" if since is None else since
    if query_type is None and ranged:
        query_type = QueryType.INCREMENTAL.value
    told = {
        "hoodie.datasource.query.type": query_type,
        "hoodie.datasource.query.incremental.format": incremental_format,
        "as.of.instant": as_of,
        "hoodie.datasource.read.begin.instanttime": since,
        "hoodie.datasource.read.end.instanttime": until,
    }
    code = {key: value for key, value in told.items() if value is not None}
    table = invocation.open_table(address, code)
    settings = ReadSettings.from_properties(table.properties)
    names = None if columns is None else _named(columns)
    if settings.is_cdc:
        _refuse_for_changes(condition, meta=meta)
        batches = iter(table.changes(*_range(table, settings), names, images=True))
    elif settings.query_type is QueryType.INCREMENTAL:
        batches = _changes(table, settings, names, condition, meta=meta)
    else:
        pinned = table if settings.as_of is None else table.as_of(time_named(table, settings.as_of))
        batches = iter(
            pinned.scan(
                columns=names,
                filter=condition,
                with_hoodie_columns=meta,
                query_type=settings.query_type.value,
            )
        )
    _warn_of_raw(invocation, table, names)
    invocation.printer.rows(batches if limit is None else _limited(batches, limit))


def _warn_of_raw(invocation: Invocation, table: Table, names: list[str] | None) -> None:
    """Say which columns are shown as they are stored, because nothing here decodes them."""
    for column in table.schema:
        told = hudi_type_name(column)
        if told is not None and told.startswith(RAW) and (names is None or column.name in names):
            invocation.printer.remark(f"column {column.name!r} is shown {told}: no decoder is here")


def _named(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _refuse_for_changes(condition: str | None, *, meta: bool) -> None:
    if condition is not None or meta:
        raise InvalidInputError(
            "changes are printed as they are: a filter would have to choose between the row "
            "before and after, and images have no meta columns; leave out --filter and --meta",
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
) -> Iterator[pa.RecordBatch]:
    """Changed rows in the columns that are shown; as in a scan, a filter may name others."""
    wanted = names
    if wanted is None:
        every = with_meta(table.schema).names
        wanted = [name for name in every if meta or name not in META_COLUMNS]
    return iter(table.changes(*_range(table, settings), columns=wanted, filter=condition))


def _range(table: Table, settings: ReadSettings) -> tuple[str, str | None]:
    """Return the range of an incremental read; an instant stands for its completion time."""
    since, until = settings.begin_time or "earliest", settings.end_time
    return (
        time_named(table, since, completed=True),
        None if until is None else time_named(table, until, completed=True),
    )


def _limited(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows

"""
``hoodoo read``: rows of a table, with the grammar of ``--filter``.

A filter is ``column operator value [and ...]``, typed by the schema::

    month = 3 and carrier in (AA, UA) and arr_delay > 60 and tailnum != "N 1"

Operators are ``= == != < <= > >= in``, and ``not in``. A value in quotes may hold anything;
quotes inside are doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import click
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.avro_schema import RAW
from filegroups.schema.schema import META_COLUMNS, hudi_type_name, with_meta
from filegroups.settings.read_settings import ReadSettings
from hoodoo.cli.invocation import Invocation, reading
from hoodoo.table import Table
from timeline.errors import InvalidInputError
from timeline.properties.setting_enums import QueryType

Condition = tuple[str, str, Any]

_TOKEN: Final = re.compile(
    r"""\s*(?:
        '(?P<single>(?:[^']|'')*)' | "(?P<double>(?:[^"]|"")*)"
        | (?P<operator>==|!=|<=|>=|=|<|>) | (?P<mark>[(),])
        | (?P<word>[^\s'"(),=!<>]+)
    )""",
    re.VERBOSE,
)
_OPERATORS: Final = {"=": "==", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
TEXT_CHARACTERS_MAX: Final = 100_000

_Token = tuple[str, str]


def parse_filter(text: str, schema: pa.Schema) -> list[Condition]:
    """
    Read a filter.

    Args:
        text: As the user wrote it.
        schema: Columns that may be named, with the types their values get.

    Returns:
        ``(column, operator, value)`` triples that all hold; values are Arrow scalars, lists
        Arrow arrays.

    Raises:
        InvalidInputError: It does not follow the grammar, names no column, or a value does
            not fit the column's type.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise _refused(f"a filter has at most {TEXT_CHARACTERS_MAX} characters", text[:80])
    tokens = _tokens(text)
    found: list[Condition] = []
    while True:
        found.append(_condition(tokens, schema, text))
        if not tokens:
            return found
        kind, word = tokens.pop(0)
        if kind != "word" or word.casefold() != "and":
            raise _refused(f"expected 'and', found {word!r}", text)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise _refused(f"cannot read it from {stripped[position : position + 20]!r}", text)
        kind = str(match.lastgroup)
        value = match.group(kind)
        if kind == "single":
            kind, value = "text", value.replace("''", "'")
        elif kind == "double":
            kind, value = "text", value.replace('""', '"')
        found.append((kind, value))
        position = match.end()
    return found


def _condition(tokens: list[_Token], schema: pa.Schema, text: str) -> Condition:
    kind, column = _next(tokens, "a column", text)
    if kind not in ("word", "text"):
        raise _refused(f"expected a column, found {column!r}", text)
    if column not in schema.names:
        raise InvalidInputError(
            f"no such column: {column!r}; the table has {list(schema.names)}",
            kind="unknown_column",
            columns=[column],
        )
    kind, operator = _next(tokens, "an operator", text)
    wanted = schema.field(column).type
    if kind == "operator" and operator in _OPERATORS:
        return column, _OPERATORS[operator], _value(tokens, column, wanted, text)
    negated = kind == "word" and operator.casefold() == "not"
    if negated:
        kind, operator = _next(tokens, "'in'", text)
    if kind == "word" and operator.casefold() == "in":
        return column, "not in" if negated else "in", _values(tokens, column, wanted, text)
    raise _refused(f"expected one of = != < <= > >= in, 'not in', found {operator!r}", text)


def _values(tokens: list[_Token], column: str, wanted: pa.DataType, text: str) -> pa.Array:
    if _next(tokens, "'('", text) != ("mark", "("):
        raise _refused("a list of values stands in parentheses", text)
    values = [_value(tokens, column, wanted, text)]
    while True:
        mark = _next(tokens, "')'", text)
        if mark == ("mark", ")"):
            return pa.array([value.as_py() for value in values], wanted)
        if mark != ("mark", ","):
            raise _refused(f"expected ',' or ')', found {mark[1]!r}", text)
        values.append(_value(tokens, column, wanted, text))


def _value(tokens: list[_Token], column: str, wanted: pa.DataType, text: str) -> Any:
    kind, value = _next(tokens, "a value", text)
    if kind not in ("word", "text"):
        raise _refused(f"expected a value, found {value!r}", text)
    try:
        if pa.types.is_timestamp(wanted) and wanted.tz is not None:
            # A time without a zone is UTC, as everywhere in this engine.
            has_zone = re.search(r"(Z|[+-]\d{2}:?\d{2})$", value) is not None
            return pc.cast(pa.scalar(value if has_zone else f"{value}Z"), wanted)
        return pc.cast(pa.scalar(value), wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the value does not fit the column: {column} has type {wanted}: {value[:80]!r}",
            kind="filter_value",
            column=column,
        ) from error


def _next(tokens: list[_Token], what: str, text: str) -> _Token:
    if not tokens:
        raise _refused(f"it ends where {what} should stand", text)
    return tokens.pop(0)


def _refused(why: str, text: str) -> InvalidInputError:
    return InvalidInputError(
        f"a filter reads: column operator value [and ...]; {why}: {text[:200]!r}",
        kind="filter",
    )


# ---- ``hoodoo read``: rows of a table, streamed as they are read

_CHANGES = "cdc"  # Hudi's format of an incremental query, a kind of its own here
_KINDS = ("snapshot", "read_optimized", "incremental", _CHANGES)


@click.command()
@click.argument("address", metavar="TABLE")
@click.option("--query-type", type=click.Choice(_KINDS), default=None)
@click.option("--as-of", metavar="TIME", help="The table as it was at this time.")
@click.option("--since", metavar="TIME", help="Incremental: after this time, or 'earliest'.")
@click.option("--until", metavar="TIME", help="Incremental: up to and with this time.")
@click.option("--columns", metavar="A,B,..", help="Columns to return, in this order.")
@click.option("--filter", "condition", metavar="TEXT", help="For example: month = 3 and day < 9")
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
    conditions = None
    if condition is not None:
        conditions = parse_filter(condition, with_meta(table.schema))
    if settings.is_cdc:
        _refuse_for_changes(condition, meta=meta)
        since_then, until_then = settings.begin_time or "earliest", settings.end_time
        batches = iter(table.changes(since_then, until_then, names, images=True))
    elif settings.query_type is QueryType.INCREMENTAL:
        batches = _changes(table, settings, names, conditions, meta=meta)
    else:
        pinned = table.as_of(settings.as_of) if settings.as_of is not None else table
        batches = iter(
            pinned.scan(
                columns=names,
                filter=conditions,
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
    conditions: list[Condition] | None,
    *,
    meta: bool,
) -> Iterator[pa.RecordBatch]:
    """Changed rows in the columns that are shown; as in a scan, a filter may name others."""
    wanted = names
    if wanted is None:
        every = with_meta(table.schema).names
        wanted = [name for name in every if meta or name not in META_COLUMNS]
    return iter(
        table.changes(
            settings.begin_time or "earliest", settings.end_time, columns=wanted, filter=conditions
        )
    )


def _limited(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows

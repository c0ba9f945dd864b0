"""Rows of the streamer in this process: queries by DuckDB, flat structs, given columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from filegroups.schema.casting import normalise
from timeline.errors import InvalidInputError, needs_extra


def conform(rows: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Return rows with exactly the columns of a given schema. Errors: as ``normalise``."""
    return rows if schema is None else normalise(rows, schema)


def flatten(rows: pa.Table) -> pa.Table:
    """Return each field of a struct as a column of its own, with ``_`` between the names."""
    while any(pa.types.is_struct(kind) for kind in rows.schema.types):
        names: list[str] = []
        columns: list[Any] = []
        for field, column in zip(rows.schema, rows.columns, strict=True):
            if not pa.types.is_struct(field.type):
                names.append(field.name)
                columns.append(column)
                continue
            names += [f"{field.name}_{each.name}" for each in field.type]
            columns += pa.Table.from_arrays([column], names=["c"]).flatten().columns
        rows = pa.Table.from_arrays(columns, names=names)
    return rows


def run_query(query: str, relations: Mapping[str, Any], key: str) -> pa.Table:
    """
    Run a query of DuckDB.

    Args:
        query: The query.
        relations: Arrow tables and datasets by their names in it.
        key: The option that has it, for messages.

    Raises:
        InvalidInputError: The query is wrong (``streamer_query``).
        MissingExtraError: DuckDB is not installed.
    """
    with needs_extra("a query of the streamer needs duckdb", "duckdb", package="duckdb"):
        import duckdb
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, relation in relations.items():
            connection.register(name, relation)
        try:
            found = connection.sql(query)
            if found is None:
                raise InvalidInputError(
                    f"the query returns no rows, use a SELECT: {key}",
                    kind="streamer_query",
                    key=key,
                )
            rows = found.to_arrow_table()
        except duckdb.Error as error:
            why = str(error).partition("\n\n")[0].replace("\n", " ")[:300]
            raise InvalidInputError(
                "the query fails, which is SQL of DuckDB: correct it, or run it as SQL of Spark "
                f"(--executor spark, or hoodoo.streamer.executor=spark): {key}: {why}",
                kind="streamer_query",
                key=key,
            ) from None
    return plain_types(rows)


def plain_types(rows: pa.Table) -> pa.Table:
    """Return a result of DuckDB in types of a table: a sum of whole numbers is a long if it fits."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0 and field.type.precision == 38:
            try:
                column = rows.column(number).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            rows = rows.set_column(number, field.name, column)
    return rows

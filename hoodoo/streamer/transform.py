"""Transformers: functions of Python and queries between a source and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pyarrow as pa

from hoodoo.inputs import to_arrow_table
from hoodoo.streamer.settings import StreamerSettings
from timeline.errors import HoodooError, InvalidInputError, SettingError, needs_extra
from timeline.properties.options import PropertySet

Transform = Callable[[pa.Table], pa.Table]

_PACKAGE = "org.apache.hudi.utilities.transform."
_QUERY = "SqlQueryBasedTransformer"
_QUERY_FILE = "SqlFileBasedTransformer"
_FLATTENING = "FlatteningTransformer"
_CLASSES = (_QUERY, _QUERY_FILE, _FLATTENING)
_PLACEHOLDER, _NAME = "<SRC>", "hoodoo_batch"


def transforms_of(settings: StreamerSettings, properties: PropertySet) -> Sequence[Transform]:
    """
    Return the transformers in their order; a query alone needs no class.

    Raises:
        SettingError: There is no such class, function or query.
    """
    names = settings.transformers
    if not names:
        names = (_QUERY,) * (settings.transformer_sql is not None)
        names += (_QUERY_FILE,) * (settings.transformer_sql_file is not None)
    return [_transform(name, settings, properties) for name in names]


def _transform(name: str, settings: StreamerSettings, properties: PropertySet) -> Transform:
    prefix, _, after = name.rpartition(":")
    short = after.removeprefix(_PACKAGE)
    if short not in _CLASSES:
        return _python(name, properties)
    if short == _FLATTENING:
        return flatten
    field = "transformer_sql" if short == _QUERY else "transformer_sql_file"
    key = StreamerSettings.options[field].key
    text = properties.get(f"{key}.{prefix}") if prefix else getattr(settings, field)
    if not text:
        raise StreamerSettings.missing(properties, field, "a query with <SRC>", name)
    if short == _QUERY_FILE:
        text = read_text(text, key)
    return partial(_by_query, text, key)


def read_text(path: str, key: str) -> str:
    """Return the text of a local file that an option names. Raises: ``SettingError``."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise SettingError(
            f"the file cannot be read, correct its path: {key}={path}: {error}",
            kind="setting_value",
            key=key,
            value=path,
            layer="",
            suggestion="a readable file",
        ) from None


def _by_query(query: str, key: str, rows: pa.Table) -> pa.Table:
    return run_query(query.replace(_PLACEHOLDER, _NAME), {_NAME: rows}, key)


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


def _python(name: str, properties: PropertySet) -> Transform:
    """Return the function ``module:function`` of the caller's own options (SEC4)."""
    try:
        found = resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise StreamerSettings.refusal(
            properties, "transformers", f"the function cannot be imported, {error}", value=name
        ) from None
    if not callable(found):
        raise StreamerSettings.refusal(
            properties,
            "transformers",
            f"this is no transformer; use module:function or one of {', '.join(_CLASSES)}",
            value=name,
        )
    return partial(_by_function, found, name)


def _by_function(function: Callable[[pa.Table], object], name: str, rows: pa.Table) -> pa.Table:
    try:
        return to_arrow_table(function(rows))
    except HoodooError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"the transformer failed, correct it: {name}: {type(error).__name__}: {error}"[:500],
            kind="streamer_transformer",
            transformer=name,
        ) from error


# ---- Queries, by DuckDB


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
                f"the query fails, correct it: {key}: {why}", kind="streamer_query", key=key
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

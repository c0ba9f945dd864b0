"""
Rows as JSON lines, a column at a time: no Python loop over rows of plain types.

Timestamps become ISO 8601 with their zone, dates ISO, decimals and 64-bit integers JSON
numbers, binary base64. Only nested and binary columns, and texts that need escapes, are
taken value by value, because Arrow has no kernel for them.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.cli.escaping import NEEDS_ESCAPE, compact_json

__all__ = ["json_lines"]

_NOT_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def json_lines(batch: pa.RecordBatch) -> pa.Array:
    """
    One JSON object for each row.

    Shapes: batch (n rows); result (n,) string, order kept.
    """
    if batch.num_columns == 0:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    parts: list[Any] = []
    for number, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        parts.append(("{" if number == 0 else ",") + compact_json(field.name) + ":")
        parts.append(pc.fill_null(_values(column), "null"))
    return pc.binary_join_element_wise(*parts, "}", "")


def _values(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(column.cast(pa.string()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_timestamp(kind):
        return _quoted(_iso(column))
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    texts = [None if value is None else compact_json(_plain(value)) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def _strings(column: pa.Array) -> pa.Array:
    special = pc.fill_null(pc.match_substring_regex(column, NEEDS_ESCAPE), fill_value=False)
    quoted = _quoted(column)
    if not pc.any(special).as_py():
        return quoted
    escaped = [compact_json(text) for text in column.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _floats(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.float32() if pa.types.is_float16(column.type) else column.type)
    texts = texts.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return texts
    for word, text in _NOT_NUMBERS.items():  # JSON has no words for them
        texts = pc.if_else(pc.equal(texts, word), text, texts)
    return texts


def _iso(column: pa.Array) -> pa.Array:
    """``2013-01-01T10:00:00.000000Z``; a timestamp of no zone gets none."""
    if column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    return pc.replace_substring(column.cast(pa.string()), " ", "T")


def _plain(value: Any) -> Any:
    """A nested value in JSON's own types."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        text = value.isoformat()
        return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return {str(key): _plain(inner) for key, inner in value}  # a map
        return [_plain(inner) for inner in value]
    return value

"""
Rows as JSON lines, a column at a time: no Python loop over rows of plain types.

Timestamps become ISO 8601 with their zone, dates ISO, decimals and 64-bit integers JSON
numbers, binary base64, structs and maps objects. Only binary columns and texts that need
escapes are taken value by value, because Arrow has no kernel for them.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.cli.escaping import NEEDS_ESCAPE, compact_json
from timeline.errors import CorruptTableError
from timeline.model.evolution import is_list, is_variant
from timeline.model.variant import variant_json

__all__ = ["json_lines", "with_variants"]

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
    if is_variant(kind):
        return _variants(column)
    if pa.types.is_struct(kind):
        return _struct(column)
    if pa.types.is_map(kind):
        return _map(column)
    if is_list(kind):
        return _list(column)
    texts = [None if value is None else compact_json(_plain(value)) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def _variants(column: pa.StructArray) -> pa.Array:
    """Variants as texts of JSON, one by one; what is no variant stays a struct."""
    texts = [None if one is None else _variant_text(one) for one in column.to_pylist()]
    shown = _strings(pa.array(texts, pa.string()))
    return pc.coalesce(shown, _struct(column)) if shown.null_count else shown


def with_variants(value: Any) -> Any:
    """A value with the variants in it, at any level, as their JSON texts."""
    if isinstance(value, dict):
        if (text := _variant_text(value)) is not None:
            return text
        return {key: with_variants(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_variants, value))
    return value


def _variant_text(value: dict[str, Any]) -> str | None:
    """The JSON text of a struct that is a variant; None of any other, and of a damaged one."""
    metadata, data = value.get("metadata"), value.get("value")
    if len(value) != 2 or not isinstance(metadata, bytes) or not isinstance(data, bytes):
        return None
    with suppress(CorruptTableError):
        return variant_json(metadata, data)
    return None


def _struct(column: pa.StructArray) -> pa.Array:
    parts: list[Any] = []
    for number, child in enumerate(column.type):
        parts.append(("{" if number == 0 else ",") + compact_json(child.name) + ":")
        parts.append(pc.fill_null(_values(column.field(number)), "null"))
    texts = pc.binary_join_element_wise(*parts, "}", "")
    return pc.if_else(column.is_valid(), texts, None)


def _list(column: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return _joined(column, lengths, _values(column.flatten()), "[]")


def _map(column: pa.MapArray) -> pa.Array:
    as_list = pa.ListArray.from_arrays(
        column.offsets, pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"])
    )
    entries = pc.if_else(column.is_valid(), as_list, None)
    lengths = pc.fill_null(pc.list_value_length(entries), 0)
    pairs = entries.flatten()
    values = pc.fill_null(_values(pairs.field(1)), "null")
    texts = pc.binary_join_element_wise(_values(pairs.field(0)), values, ":")
    return _joined(column, lengths, texts, "{}")


def _joined(column: pa.Array, lengths: pa.Array, texts: pa.Array, ends: str) -> pa.Array:
    """Texts of elements put together, so many a row. Shapes: (n,), (n,), (m,) -> (n,)."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pc.fill_null(texts, "null")), ",")
    whole = pc.binary_join_element_wise(ends[0], joined, ends[1], "")
    return pc.if_else(column.is_valid(), whole, None)


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
    texts = pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)  # a whole number has no sign of zero
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
    """A value of a type that has no column-wise form, in JSON's own types."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value

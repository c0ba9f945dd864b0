"""
Values as Java's ``toString`` writes them: what record keys and folder names are made of.

One different character would make an update an insert (fmt 4.1, 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import InvalidInputError

__all__ = ["java_texts", "one_array"]


def java_texts(column: Any, name: str, kind: str) -> Any:
    """Values as Java's ``toString`` gives them; nulls stay."""
    types, value_type = pa.types, column.type
    if types.is_dictionary(value_type):
        column = pc.cast(column, value_type.value_type)
        value_type = column.type
    if types.is_string(value_type):
        return column
    if types.is_large_string(value_type) or types.is_string_view(value_type):
        return pc.cast(column, pa.string())
    if types.is_integer(value_type) or types.is_boolean(value_type) or types.is_date32(value_type):
        return pc.cast(column, pa.string())
    if types.is_decimal(value_type) or types.is_null(value_type):
        return pc.cast(column, pa.string())
    if types.is_float32(value_type) or types.is_float64(value_type):
        return _distinct_text(column, _java_float(value_type))
    if types.is_timestamp(value_type) and kind == "unsupported_key_type":
        # Hudi's own default: the stored number, not a date (fmt 4.1).
        return pc.cast(pc.cast(_as_stored(column), pa.int64()), pa.string())
    raise InvalidInputError(
        "values of this type make no key or folder name; use a string, integer, date or decimal "
        f"column: column={name!r} type={value_type}",
        kind=kind,
        column=name,
        type=str(value_type),
    )


def _as_stored(column: Any) -> Any:
    # Files hold micro- or milliseconds: one moment has one key, whatever unit it came in.
    unit = {"s": "us", "ns": "us"}.get(column.type.unit)
    if unit is None:
        return column
    return pc.cast(column, pa.timestamp(unit, column.type.tz), safe=False)


def _distinct_text(column: Any, write: Callable[[float], str]) -> Any:
    # Formatted once per distinct value: Arrow has no Java-like form of floating numbers.
    encoded = column.dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    encoded = one_array(encoded)
    texts = [write(value.as_py()) for value in encoded.dictionary]
    return pc.take(pa.array(texts, pa.string()), encoded.indices)


def _java_float(value_type: pa.DataType) -> Callable[[float], str]:
    """``Double.toString`` and ``Float.toString`` with the fewest digits that tell values apart."""
    single = pa.types.is_float32(value_type)

    def write(value: float) -> str:
        if math.isnan(value):
            return "NaN"
        if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        if value == 0:
            return "-0.0" if str(value).startswith("-") else "0.0"
        shortest = _shortest_single(value) if single else repr(value)
        sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
        text = "".join(map(str, digits))
        point = len(text) + int(exponent)  # value = 0.text * 10**point
        minus = "-" if sign else ""
        if -2 <= point <= 7:
            whole = (text[: max(point, 0)] or "0").ljust(point, "0")
            fraction = "0" * max(-point, 0) + text[max(point, 0) :]
            return f"{minus}{whole}.{fraction or '0'}"
        return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"

    return write


def _shortest_single(value: float) -> str:
    candidates = (f"{value:.{digits}g}" for digits in range(1, 10))
    stored = pa.scalar(value, pa.float32())
    return next(c for c in candidates if pa.scalar(float(c), pa.float32()) == stored)


def one_array(column: Any) -> Any:
    """A chunked column as one array; an array stays what it is."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined

"""
Values as Java's ``toString`` writes them: what record keys and folder names are made of.

One different character would make an update an insert (fmt 4.1, 4.3).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import InvalidInputError
from timeline.model.columns import one_array
from timeline.model.java_text import java_text

__all__ = ["java_texts"]


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
        return java_text(one_array(column))
    if types.is_timestamp(value_type):
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

"""
Values as the texts that Java's ``toString`` writes.

Record keys and folder names consist of such texts: one different character would turn an update
into an insert (fmt 4.1, 4.3). Java Hudi also converts columns of old files with it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.arrow_columns import one_array
from timeline.errors import InvalidInputError

_DECIMAL = r"^(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<rest>\d+))?$"
_PLAIN_MIN, _PLAIN_BELOW = 1e-3, 1e7  # in this range Java writes no exponent


def java_text(values: pa.Array) -> pa.Array:
    """
    Write numbers, dates and decimals as Java does.

    Floating numbers have at least one digit after the point. Below 0.001 and from ten million on
    they have an exponent (``1.0E7``). Special values are ``NaN`` and ``Infinity``.

    Shapes: values (n,) -> text (n,); nulls stay.
    """
    if not pa.types.is_floating(values.type):
        return pc.cast(values, pa.string())
    text = pc.cast(values, pa.string())
    size = pc.abs(pc.cast(values, pa.float64()))
    zero = pc.equal(size, 0.0)
    plain = pc.or_(zero, pc.and_(pc.greater_equal(size, _PLAIN_MIN), pc.less(size, _PLAIN_BELOW)))
    plain_text = _pointed(text)
    if pc.all(plain, skip_nulls=True).as_py() is not False:
        return plain_text
    exponent = pc.if_else(pc.is_finite(values), _with_exponent(text), _no_number(text))
    return pc.if_else(plain, plain_text, exponent)


def _pointed(text: pa.Array) -> pa.Array:
    """Turn ``5`` into ``5.0``."""
    whole = pc.invert(pc.match_substring_regex(text, r"[.e]"))
    return pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)


def _with_exponent(text: pa.Array) -> pa.Array:
    """
    Write an exponent: ``0.00012`` as ``1.2E-4``, ``12345678`` as ``1.2345678E7``.

    An existing exponent gets Java's form: ``1e+30`` becomes ``1.0E30``.
    """
    already = pc.match_substring(text, "e")
    kept = pc.replace_substring_regex(text, r"e\+?", "E")
    kept = pc.replace_substring_regex(kept, r"^(-?\d)E", r"\1.0E")
    parts = pc.extract_regex(text, _DECIMAL)
    sign, whole, rest = (pc.struct_field(parts, name) for name in ("sign", "whole", "rest"))
    small = pc.equal(whole, "0")
    digits = pc.binary_join_element_wise(pc.if_else(small, "", whole), rest, "")
    leading = pc.utf8_ltrim(digits, "0")
    power = pc.if_else(
        small,
        pc.subtract(pc.subtract(pc.utf8_length(leading), pc.utf8_length(digits)), 1),
        pc.subtract(pc.utf8_length(whole), 1),
    )
    digits = pc.utf8_rtrim(leading, "0")
    behind = pc.utf8_slice_codeunits(digits, 1)
    behind = pc.if_else(pc.equal(pc.utf8_length(behind), 0), "0", behind)
    first = pc.utf8_slice_codeunits(digits, 0, 1)
    made = pc.binary_join_element_wise(
        sign, first, ".", behind, "E", pc.cast(power, pa.string()), ""
    )
    return pc.if_else(already, kept, made)


def _no_number(text: pa.Array) -> pa.Array:
    text = pc.replace_substring_regex(text, r"^-?nan$", "NaN")
    return pc.replace_substring_regex(text, r"^(-?)inf$", r"\1Infinity")


#: Types whose texts are the same in Arrow and in Java.
_CAST_TO_TEXT = (
    *(pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer, pa.types.is_boolean),
    *(pa.types.is_date32, pa.types.is_decimal, pa.types.is_null),
)


def java_texts(column: Any, name: str, kind: str) -> Any:
    """Return values as Java's ``toString`` writes them; nulls stay."""
    types, value_type = pa.types, column.type
    if types.is_dictionary(value_type):
        column = pc.cast(column, value_type.value_type)
        value_type = column.type
    if types.is_string(value_type):
        return column
    if any(fits(value_type) for fits in _CAST_TO_TEXT):
        return pc.cast(column, pa.string())
    if types.is_float32(value_type) or types.is_float64(value_type):
        return java_text(one_array(column))
    if types.is_timestamp(value_type):
        # Hudi's default: the stored number, not a date (fmt 4.1).
        return pc.cast(pc.cast(_as_stored(column), pa.int64()), pa.string())
    raise InvalidInputError(
        "values of this type cannot be a key or folder name: use a string, integer, date or "
        f"decimal column: column={name!r} type={value_type}",
        kind=kind,
        column=name,
        type=str(value_type),
    )


def _as_stored(column: Any) -> Any:
    # Files hold micro- or milliseconds: a time has one key, whatever unit the rows use.
    unit = {"s": "us", "ns": "us"}.get(column.type.unit)
    if unit is None:
        return column
    return pc.cast(column, pa.timestamp(unit, column.type.tz), safe=False)

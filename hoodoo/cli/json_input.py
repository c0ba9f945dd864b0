"""
Rows of a JSON file, in the form that ``hoodoo read`` prints.

Arrow's reader takes a file of one object a line, as far as it loses nothing. The rest goes value
by value: documents that are a list, maps, ``"NaN"``, whole numbers with a fraction. Both ways
give the same rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from hoodoo.untyped import cast_values, typed_column, typed_rows
from timeline.model.evolution import is_list, is_variant
from timeline.model.schema import META_FIELDS

__all__ = ["read_json"]

_BLOCK_BYTES: Final = 16 << 20  # a row must fit into one
_BRACKETS_MAX: Final = 500
_NO_SPACE: Final = re.compile(r"[^ \t\r\n]")


def read_json(path: Path, schema: pa.Schema | None) -> pa.Table:
    """
    Every row of a JSON file.

    A column that no row names is left out, and so is a field of a struct.

    Args:
        path: Objects, or one list of objects.
        schema: The table's own columns; None where there is no table.

    Raises:
        InvalidInputError: A value does not fit the table (``lossy_value``, ``schema_mismatch``),
            or those of a new column have no type in common (``data``).
        ValueError: The file is no such JSON.
    """
    if _has_flat_lines(path):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return _by_arrow(path, schema)
    return typed_rows(_objects(path), schema, json=True)


def _objects(path: Path) -> Sequence[Mapping[str, Any]]:
    """The objects of a file, one after the other or in a list."""
    text = path.read_text(encoding="utf-8-sig")
    decoder = json.JSONDecoder(parse_float=Decimal)
    found: list[Any] = []
    at = 0
    while (begin := _NO_SPACE.search(text, at)) is not None:
        one, at = decoder.raw_decode(text, begin.start())
        found.append(one)
    if len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    strange = next((one for one in found if not isinstance(one, Mapping)), None)
    if strange is not None:
        raise ValueError(f"a row is a JSON object, not {str(strange)[:80]!r}")
    return found


# ---- by Arrow's reader


def _has_flat_lines(path: Path) -> bool:
    """
    Whether each line is empty or holds whole objects of few brackets.

    Arrow's reader has no limit of depth: a file that nests too deep ends the process.
    """
    if path.stat().st_size == 0:
        return False
    text = np.memmap(path, np.uint8, "r")
    ends = np.flatnonzero(text == ord("\n"))
    if text[-1] != ord("\n"):
        ends = np.append(ends, len(text))
    begins = np.append(0, ends[:-1] + 1)
    last = ends - 1
    last = np.where(text[last] == ord("\r"), last - 1, last)
    whole = (text[begins] == ord("{")) & (text[last] == ord("}"))
    if not (whole | (begins == ends)).all():
        return False
    if (ends - begins).max() <= _BRACKETS_MAX:
        return True
    brackets = (text == ord("{")) | (text == ord("["))
    return bool(np.add.reduceat(brackets, begins, dtype=np.int64).max() <= _BRACKETS_MAX)


def _by_arrow(path: Path, schema: pa.Schema | None) -> pa.Table:
    """
    Every row, read by Arrow.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: Arrow cannot read the file without loss.
    """
    own = pa.schema([]) if schema is None else schema
    known = {each.name: each.type for each in (*META_FIELDS, *own)}
    asked = pa.schema([(each.name, _read_type(each.type)) for each in own])
    rows = _read(path, asked)
    # A column that was asked for is there without being named, so it is not asked for again.
    found = {name: rows.column(name) for name in known if name in rows.column_names}
    kinds = {name: _with_values(_read_type(known[name]), found[name]) for name in found}
    named = pa.schema([(name, kind) for name, kind in kinds.items() if kind is not None])
    if named != asked:
        rows = _read(path, named)
    rows.validate(full=True)  # texts that are no UTF-8
    return pa.table(
        {
            name: pa.chunked_array(
                [_typed(chunk, known.get(name), name) for chunk in rows.column(name).chunks]
            )
            for name in _in_order(known, rows.column_names)
        }
    )


def _read(path: Path, asked: pa.Schema) -> pa.Table:
    options = pajson.ParseOptions(explicit_schema=asked, unexpected_field_behavior="infer")
    blocks = pajson.ReadOptions(block_size=_BLOCK_BYTES)
    return pajson.read_json(path, read_options=blocks, parse_options=options)


def _in_order(known: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [*(one for one in known if one in names), *(one for one in names if one not in known)]


def _read_type(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow reads a column; what JSON has no word for is a text."""
    types = pa.types
    if types.is_struct(kind) and not is_variant(kind):
        return pa.struct([(each.name, _read_type(each.type)) for each in kind])
    if is_list(kind):
        return pa.list_(_read_type(kind.value_type))
    own = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_map)
    return kind if any(one(kind) for one in own) else pa.string()  # of maps Arrow reads none


def _with_values(kind: pa.DataType, values: pa.ChunkedArray) -> pa.DataType | None:
    """The part of a type that has values; None where all are null."""
    if values.null_count == len(values):
        return None if len(values) else kind
    if pa.types.is_struct(kind):
        fields = [
            (each.name, _with_values(each.type, pc.struct_field(values, [number])))
            for number, each in enumerate(kind)
        ]
        return pa.struct([one for one in fields if one[1] is not None])
    if pa.types.is_list(kind):
        return pa.list_(_with_values(kind.value_type, pc.list_flatten(values)) or pa.null())
    return kind


def _typed(values: pa.Array, kind: pa.DataType | None, name: str) -> pa.Array:
    """Values as Arrow read them in the type that the table has; None is no column of it."""
    read, types = values.type, pa.types
    if kind is None:
        if types.is_floating(read) and pc.any(pc.greater_equal(pc.abs(values), 2.0**63)).as_py():
            raise pa.ArrowInvalid("a float that may have been an integer above a long")
        return values
    if types.is_null(read):
        return values if types.is_nested(kind) else pa.nulls(len(values), kind)
    if types.is_struct(read):
        known = {each.name: each.type for each in kind}
        names = _in_order(known, [each.name for each in read])
        if not names:
            raise pa.ArrowInvalid("objects without fields")
        children = [_typed(values.field(one), known.get(one), f"{name}.{one}") for one in names]
        return pa.StructArray.from_arrays(children, names=names, mask=values.is_null())
    if types.is_list(read):
        inner = _typed(values.values, kind.value_type, name + ".element")
        return pa.ListArray.from_arrays(values.offsets, inner, mask=values.is_null())
    if types.is_temporal(kind):
        return cast_values(values, kind=kind, name=name)
    if read != kind:  # base64 and variants
        return typed_column(values.to_pylist(), kind, name, json=True)
    if types.is_floating(kind) and pc.any(pc.is_inf(values)).as_py():
        raise pa.ArrowInvalid("a number that may be above the greatest of the type")
    return values

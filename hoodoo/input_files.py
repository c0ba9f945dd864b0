"""Rows from a file that a user names: Parquet, CSV, JSON, Arrow."""

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
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from filegroups.schema.evolution import is_list, is_variant
from filegroups.schema.schema import META_FIELDS
from hoodoo.inputs import cast_values, typed_column, typed_rows
from timeline.errors import HoodooError, InvalidInputError

# ---- Rows of a JSON file, in the form that ``hoodoo read`` prints
# Arrow's reader takes a file of one object a line, as far as it loses nothing. The rest goes value
# by value: documents that are a list, maps, ``"NaN"``, whole numbers with a fraction. Both ways
# give the same rows.

_JSON_BLOCK_BYTES: Final = 16 << 20  # a row must fit into one
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
    blocks = pajson.ReadOptions(block_size=_JSON_BLOCK_BYTES)
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


# ---- Rows from a file a user names: Parquet, CSV, JSON or Arrow
# CSV and JSON have few types of their own, so the columns of an existing table are read
# with the table's types. In CSV an empty field without quotes is null, and one in quotes is an
# empty text; nothing else means null. JSON is read in the form that ``hoodoo read`` prints.

FORMATS = (".parquet", ".csv", ".json", ".jsonl", ".ndjson", ".arrow")
_BLOCK_BYTES = 16 << 20


def read_rows(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """
    Every row of a file.

    Args:
        path: The file; its ending tells the format.
        schema: The table's columns, when there is a table.

    Raises:
        InvalidInputError: No such file, another ending, its content cannot be read, or a value
            does not fit the table (``lossy_value``, ``schema_mismatch``).
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise InvalidInputError(
            f"an input file ends in one of {', '.join(FORMATS)}: {path}", kind="input_file"
        )
    try:
        if ending == ".parquet":
            return pq.ParquetFile(path).read()
        if ending == ".csv":
            return _csv(path, schema)
        if ending == ".arrow":
            return _arrow(path)
        return read_json(path, schema)
    except FileNotFoundError:
        raise InvalidInputError(f"there is no such input file: {path}", kind="input_file") from None
    except HoodooError:
        raise
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0][:300]
        raise InvalidInputError(
            f"the input file cannot be read: {path}: {why}", kind="input_file", path=str(path)
        ) from error


def _csv(path: Path, schema: pa.Schema | None) -> pa.Table:
    if path.stat().st_size == 0:
        return pa.table({})
    types = {field.name: field.type for field in (*META_FIELDS, *(schema or ()))}
    nested = {name: kind for name, kind in types.items() if pa.types.is_nested(kind)}
    rows = pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=types | dict.fromkeys(nested, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for name in nested.keys() & set(rows.column_names):  # as JSON, for want of a form of CSV's own
        values = rows.column(name).to_pylist()
        if not is_variant(nested[name]):  # its text is the value
            values = [one and json.loads(one, parse_float=Decimal) for one in values]
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, typed_column(values, nested[name], name, json=True))
    return rows


def _arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()

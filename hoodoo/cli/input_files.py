"""
Rows from a file a user names: Parquet, CSV, JSON or Arrow.

CSV and JSON have few types of their own, so the columns of an existing table are read
with the table's types. In CSV an empty field is null, quoted or not is what tells an empty
text from it; nothing else means null. JSON is read in the form that ``hoodoo read`` prints.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from hoodoo.untyped import typed_column, typed_rows
from timeline.errors import HoodooError, InvalidInputError

__all__ = ["FORMATS", "read_rows"]

FORMATS = (".parquet", ".csv", ".json", ".jsonl", ".ndjson", ".arrow")
_LINES = (".jsonl", ".ndjson")
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
        if ending == ".json" or ending in _LINES:
            return _json(path, schema)
        return _arrow(path)
    except FileNotFoundError:
        raise InvalidInputError(f"there is no such input file: {path}", kind="input_file") from None
    except HoodooError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0][:300]
        raise InvalidInputError(
            f"the input file cannot be read: {path}: {why}", kind="input_file", path=str(path)
        ) from error


def _csv(path: Path, schema: pa.Schema | None) -> pa.Table:
    if path.stat().st_size == 0:
        return pa.table({})
    types = {} if schema is None else {field.name: field.type for field in schema}
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
        texts = rows.column(name).to_pylist()
        values = [None if one is None else json.loads(one, parse_float=Decimal) for one in texts]
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, typed_column(values, nested[name], name, json=True))
    return rows


def _json(path: Path, schema: pa.Schema | None) -> pa.Table:
    lines = path.suffix.lower() in _LINES
    if lines and schema is not None:
        rows = _plain_lines(path, schema)
        if rows is not None:
            return rows
    objects = _objects(path, lines=lines)
    if not objects:
        return pa.table({})
    known = set() if schema is None else set(schema.names)
    others = {name for row in objects for name in row if name not in known}
    if not others:
        return typed_rows(objects, schema, json=True)
    found = _inferred([{name: row[name] for name in row if name in others} for row in objects])
    own = [{name: row[name] for name in row if name in known} for row in objects]
    typed = typed_rows(own, schema, json=True)
    columns = [
        *zip(typed.column_names, typed.columns, strict=True),
        *zip(found.column_names, found.columns, strict=True),
    ]
    return pa.table(dict(columns))


def _plain_lines(path: Path, schema: pa.Schema) -> pa.Table | None:
    """Rows of types that JSON has itself, by Arrow's own reader; None where it is not enough."""
    if not all(_is_plain(each.type) for each in schema):
        return None
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    blocks = pajson.ReadOptions(block_size=_BLOCK_BYTES)  # a row must fit into one
    try:
        rows = pajson.read_json(path, read_options=blocks, parse_options=options)
    except pa.ArrowInvalid:
        return None
    # A column that the file does not name looks like one of nulls.
    unnamed = any(column.null_count == len(column) for column in rows.columns)
    return None if unnamed else rows


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_string(kind))


def _objects(path: Path, *, lines: bool) -> Sequence[Mapping[str, Any]]:
    """The objects of a file: one a line, or a document that is one or a list of them."""
    text = path.read_text(encoding="utf-8-sig")
    if not lines and text.lstrip()[:1] in ("[", ""):
        found = json.loads(text, parse_float=Decimal) if text.strip() else []
    else:
        found = []
        for number, line in enumerate(text.split("\n"), 1):
            try:
                if line.strip():
                    found.append(json.loads(line, parse_float=Decimal))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    strange = next((one for one in found if not isinstance(one, Mapping)), None)
    if strange is not None:
        raise ValueError(f"a row is a JSON object, not {str(strange)[:80]!r}")
    return found


def _inferred(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Columns that no table knows, with the types that Arrow's reader finds in them."""
    text = "\n".join(json.dumps(row, default=float) for row in rows)
    blocks = pajson.ReadOptions(block_size=_BLOCK_BYTES)
    return pajson.read_json(io.BytesIO(text.encode()), read_options=blocks)


def _arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()

"""
Rows from a file a user names: Parquet, CSV, JSON or Arrow.

CSV and JSON have few types of their own, so the columns of an existing table are read
with the table's types. In CSV an empty field is null, quoted or not is what tells an empty
text from it; nothing else means null. JSON is read in the form that ``hoodoo read`` prints.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hoodoo.cli.json_input import read_json
from hoodoo.untyped import typed_column
from timeline.errors import HoodooError, InvalidInputError
from timeline.model.evolution import is_variant
from timeline.model.schema import META_FIELDS

__all__ = ["FORMATS", "read_rows"]

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

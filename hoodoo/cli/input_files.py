"""
Rows from a file a user names: Parquet, CSV, NDJSON or Arrow.

CSV and NDJSON have few types of their own, so the columns of an existing table are read
with the table's types. In CSV an empty field is null, quoted or not is what tells an empty
text from it; nothing else means null.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from timeline.errors import InvalidInputError

__all__ = ["FORMATS", "read_rows"]

FORMATS = (".parquet", ".csv", ".ndjson", ".arrow")
_BLOCK_BYTES = 16 << 20


def read_rows(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """
    Every row of a file.

    Args:
        path: The file; its ending tells the format.
        schema: The table's columns, when there is a table.

    Raises:
        InvalidInputError: No such file, another ending, or its content cannot be read.
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
        if ending == ".ndjson":
            return _ndjson(path, schema)
        return _arrow(path)
    except FileNotFoundError:
        raise InvalidInputError(f"there is no such input file: {path}", kind="input_file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0][:300]
        raise InvalidInputError(
            f"the input file cannot be read: {path}: {why}", kind="input_file", path=str(path)
        ) from error


def _csv(path: Path, schema: pa.Schema | None) -> pa.Table:
    types = {} if schema is None else {field.name: field.type for field in schema}
    return pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _ndjson(path: Path, schema: pa.Schema | None) -> pa.Table:
    options = None
    if schema is not None:
        options = pajson.ParseOptions(explicit_schema=_as_json_can(schema))
    blocks = pajson.ReadOptions(block_size=_BLOCK_BYTES)  # a row must fit into one
    rows = pajson.read_json(path, read_options=blocks, parse_options=options)
    if schema is None:
        return rows
    # Columns the file does not name came as nulls of the explicit schema: leave those out.
    named = set(pajson.read_json(path, read_options=blocks).column_names)
    return rows.select([name for name in rows.column_names if name in named])


def _as_json_can(schema: pa.Schema) -> pa.Schema:
    """Types the JSON reader knows; the rest is cast when the rows are written."""
    return pa.schema(
        [
            pa.field(field.name, pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
            for field in schema
            if not (pa.types.is_date(field.type) or pa.types.is_decimal(field.type))
        ]
    )


def _arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()

"""
Encode the values of a record as one text, so that one kernel compares whole rows.

Arrow cannot compare nested values. The Avro datums of two rows are equal exactly if their values
are, including nulls and every bit of a float.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from filegroups.files.avro_columns.encode import encode_rows
from filegroups.files.avro_columns.types import arrow_type, parse_schema
from filegroups.schema.casting import cast_column, one_array

_CHUNK_ROWS: Final = 16 * 1024


def record_values(rows: pa.Table, schema_json: str) -> pa.ChunkedArray:
    """
    Return a text per row; two texts are equal exactly if all the schema's columns are.

    Shapes: rows (n,) with the schema's columns -> (n,).

    Raises:
        InvalidInputError: A column is missing or has a value that the schema does not accept.
    """
    record = parse_schema(schema_json, path="")
    chunks = []
    for start in range(0, rows.num_rows, _CHUNK_ROWS):
        part = rows.slice(start, _CHUNK_ROWS)
        columns = [
            one_array(cast_column(part.column(field.name), field.type, field.name))
            for field in arrow_type(record)
        ]
        chunks.append(encode_rows(record, columns, part.num_rows).cast(pa.large_binary()))
    return pa.chunked_array(chunks, pa.large_binary())

"""
The records of a log block as Arrow columns, and back: the codec of Avro data blocks.

A block holds, per record, its length as a big-endian int32 and an Avro datum (fmt 5.4).
Decoding works on chunks of some thousand records that stay in the processor's cache, all
records of a chunk in lockstep; encoding builds the bytes of whole columns and joins them.
Neither ever loops over rows in Python. The bytes are taken as hostile: every length is
held against what is there before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timeline.codecs.avro_columns_cursor import PADDING_BYTES, Chunk, Cursor
from timeline.codecs.avro_columns_decode import RecordPlan, plan_record, read_record
from timeline.codecs.avro_columns_frames import damaged_block, record_borders
from timeline.codecs.avro_columns_types import Record, arrow_type, parse_schema

__all__ = ["decode_block", "decode_records"]

_VERSIONS: Final = (1, 2, 3)
_HEAD: Final = struct.Struct(">ii")
_LENGTH_BYTES: Final = 4
_CHUNK_ROWS: Final = 16 * 1024
_CHUNK_BYTES: Final = 32 * 1024 * 1024

Integers = npt.NDArray[np.int64]
BytesLike = bytes | bytearray | memoryview


def decode_block(
    content: BytesLike,
    writer_schema_json: str,
    reader_schema: pa.Schema | None = None,
    *,
    path: str,
    defaults: Mapping[str, pa.Scalar] | None = None,
) -> pa.Table:
    """
    Decode the whole content of an Avro data or change data block.

    As ``decode_records``, after the two numbers the content begins with.

    Raises:
        CorruptTableError: As ``decode_records``, or the content's version is unknown.
        UnsupportedTableError: As ``decode_records``.
    """
    view = memoryview(content).cast("B")
    if len(view) < _HEAD.size:
        raise damaged_block(path, "shorter than its head")
    version, count = _HEAD.unpack_from(view)
    if version not in _VERSIONS:
        raise damaged_block(path, f"content version {version}")
    return decode_records(
        view[_HEAD.size :], count, writer_schema_json, reader_schema, path=path, defaults=defaults
    )


def decode_records(
    content: BytesLike,
    count: int,
    writer_schema_json: str,
    reader_schema: pa.Schema | None = None,
    *,
    path: str,
    defaults: Mapping[str, pa.Scalar] | None = None,
) -> pa.Table:
    """
    Decode the length-prefixed records of a block.

    Args:
        content: The bytes behind the version and the count of the block's content.
        count: Records in it.
        writer_schema_json: The Avro JSON of the block's header.
        reader_schema: The columns to build, matched by exact name; other columns are
            stepped over. A column the writer lacks is null. None: the writer's columns.
        path: What errors name as the damaged file.
        defaults: Values instead of null, by name of a column the writer lacks.

    Shapes: a table of `count` rows in the order of the records, in chunks.

    Raises:
        CorruptTableError: The bytes are not `count` records of the schema.
        UnsupportedTableError: A column to build has a type this engine does not handle
            (``unsupported_type``) or cannot be promoted (``unsupported_promotion``).
    """
    record = parse_schema(writer_schema_json, path=path)
    schema = pa.schema(list(arrow_type(record))) if reader_schema is None else reader_schema
    plan = plan_record(record, pa.struct(list(schema)))
    data = np.frombuffer(content, np.uint8)
    borders = record_borders(content, count, path=path)
    starts, ends = borders[:-1] + _LENGTH_BYTES, borders[1:]
    batches = [
        pa.RecordBatch.from_arrays(
            _read_chunk(plan, data, (starts[rows], ends[rows]), path), schema=schema
        )
        for rows in _chunks(starts, ends)
    ]
    table = pa.Table.from_batches(batches, schema=schema)
    return _with_defaults(table, record, defaults or {})


def _chunks(starts: Integers, ends: Integers) -> Iterator[slice]:
    """Runs of rows of a limited number and size; a larger record stands alone."""
    row, count = 0, len(starts)
    while row < count:
        limit = int(np.searchsorted(ends, starts[row] + _CHUNK_BYTES, side="right"))
        until = min(row + _CHUNK_ROWS, max(limit, row + 1))
        yield slice(row, until)
        row = until


def _read_chunk(
    plan: RecordPlan, content: npt.NDArray[np.uint8], borders: tuple[Integers, Integers], path: str
) -> list[pa.Array]:
    starts, ends = borders
    base = int(starts[0])
    chunk = Chunk(content[base : int(ends[-1])], path)
    shift = PADDING_BYTES - base
    cursor = Cursor(chunk, starts + shift, ends + shift)
    columns = read_record(plan, cursor, early_end=True)
    to_the_end = len(plan.steps) - 1 in plan.picks  # else the last fields were not visited
    if to_the_end and (cursor.position != cursor.end).any():
        chunk.damaged("bytes behind a record's last field")
    return columns


def _with_defaults(table: pa.Table, record: Record, defaults: Mapping[str, Any]) -> pa.Table:
    for position, field in enumerate(table.schema):
        if field.name in defaults and field.name not in record.names:
            column = pa.repeat(pa.scalar(defaults[field.name], field.type), table.num_rows)
            table = table.set_column(position, field, column)
    return table

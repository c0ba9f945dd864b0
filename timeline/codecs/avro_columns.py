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
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timeline.codecs.avro_columns_cursor import PADDING_BYTES, Chunk, Cursor
from timeline.codecs.avro_columns_decode import RecordPlan, plan_record, read_record
from timeline.codecs.avro_columns_frames import damaged_block, record_borders
from timeline.codecs.avro_columns_types import arrow_type, parse_schema
from timeline.model.casting import promote

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
        InvalidInputError: As ``decode_records``.
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
            stepped over. A column the writer lacks is null, an older type is promoted.
            None: the writer's columns.
        path: What errors name as the damaged file.
        defaults: Values instead of null for columns the writer lacks, by name; of the
            reader's types.

    Shapes: a table of `count` rows in the order of the records, in chunks.

    Raises:
        CorruptTableError: The bytes are not `count` records of the schema.
        UnsupportedTableError: A column to build has a type this engine does not handle
            (``unsupported_type``).
        InvalidInputError: A column or value cannot be promoted to the reader's type
            (``schema_mismatch``, ``lossy_value``).
    """
    record = parse_schema(writer_schema_json, path=path)
    wanted = arrow_type(record) if reader_schema is None else pa.struct(list(reader_schema))
    plan = plan_record(record, wanted)
    borders = record_borders(content, count, path=path)
    starts, ends = borders[:-1] + _LENGTH_BYTES, borders[1:]
    data = np.frombuffer(content, np.uint8)
    built = pa.schema(list(plan.built))
    batches = [
        pa.RecordBatch.from_arrays(
            _read_chunk(plan, data, (starts[rows], ends[rows]), path), schema=built
        )
        for rows in _chunks(starts, ends)
    ]
    table = pa.Table.from_batches(batches, schema=built)
    if reader_schema is None:
        return table
    table = _with_defaults(table, count, reader_schema, defaults or {})
    return promote(table, reader_schema)


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


def _with_defaults(
    table: pa.Table, rows: int, schema: pa.Schema, defaults: Mapping[str, pa.Scalar]
) -> pa.Table:
    """The table with the columns it lacks, so that it has `rows` rows even without any."""
    for field in schema:
        if field.name not in table.column_names:
            default = defaults.get(field.name)
            values = pa.nulls(rows, field.type) if default is None else pa.repeat(default, rows)
            table = table.append_column(field, values)
    return table

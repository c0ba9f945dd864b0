"""
The records of a log block as Arrow columns, and back: the codec of Avro data blocks.

A block holds, per record, its length as a big-endian int32 and an Avro datum (fmt 5.4). The decoder
works on chunks of some thousand records that fit the processor's cache, all records of a chunk in
lockstep. The encoder builds the bytes of whole columns and joins them. Neither loops over rows in
Python. The bytes are untrusted: every length is checked against the data before memory is
allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from filegroups.files.avro_columns.decode import RecordPlan, plan_record, read_record
from filegroups.files.avro_columns.encode import encode_rows
from filegroups.files.avro_columns.items import PADDING_BYTES, Chunk, Cursor
from filegroups.files.avro_columns.types import arrow_type, parse_schema
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.casting import cast_column, promote
from timeline.codecs.log_blocks import corrupt_block_error, record_borders
from timeline.errors import InvalidInputError

__all__ = ["decode_block", "decode_datums", "decode_records", "encode_records"]

_VERSIONS: Final = (1, 2, 3)
_HEAD: Final = struct.Struct(">ii")
_LENGTH_BYTES: Final = 4
_CHUNK_ROWS: Final = 16 * 1024
_CHUNK_BYTES: Final = 32 * 1024 * 1024
_VERSION: Final = 3

Integers = npt.NDArray[np.int64]
BytesLike = bytes | bytearray | memoryview


def decode_block(
    content: BytesLike,
    writer_schema_json: str,
    reader_schema: pa.Schema | None = None,
    *,
    path: str,
) -> pa.Table:
    """
    Decode the whole content of an Avro data or CDC data block.

    As ``decode_records``, after the two numbers at the start of the content.

    Raises:
        CorruptTableError: As ``decode_records``, or the content's version is unknown.
        UnsupportedTableError: As ``decode_records``.
        InvalidInputError: As ``decode_records``.
    """
    view = memoryview(content).cast("B")
    if len(view) < _HEAD.size:
        raise corrupt_block_error(path, "shorter than its head")
    version, count = _HEAD.unpack_from(view)
    if version not in _VERSIONS:
        raise corrupt_block_error(path, f"content version {version}")
    return decode_records(view[_HEAD.size :], count, writer_schema_json, reader_schema, path=path)


def decode_records(
    content: BytesLike,
    count: int,
    writer_schema_json: str,
    reader_schema: pa.Schema | None = None,
    *,
    path: str,
) -> pa.Table:
    """
    Decode the length-prefixed records of a block.

    Args:
        content: The bytes after the version and the count of the block's content.
        count: Number of records.
        writer_schema_json: The Avro JSON of the block's header.
        reader_schema: The columns to build, matched by exact name; other columns are skipped. A
            column the writer lacks is null, an older type is promoted. None: the writer's columns.
        path: The file that errors name.

    Shapes: a table of `count` rows in the order of the records, in chunks.

    Raises:
        CorruptTableError: The bytes are not `count` records of the schema.
        UnsupportedTableError: A column to build has a type that hoodoo does not support
            (``unsupported_type``).
        InvalidInputError: A column or value cannot be promoted to the reader's type
            (``schema_mismatch``, ``lossy_value``).
    """
    plan = _plan(writer_schema_json, reader_schema, path)
    borders = record_borders(content, count, path=path)
    places = borders[:-1] + _LENGTH_BYTES, borders[1:]
    return _decoded(plan, np.frombuffer(content, np.uint8), places, reader_schema, path)


def decode_datums(
    values: pa.BinaryArray,
    writer_schema_json: str,
    reader_schema: pa.Schema | None = None,
    *,
    path: str,
) -> pa.Table:
    """
    Decode records that are values of a column, as in an HFile.

    Args:
        values: One datum each, no nulls.
        writer_schema_json: As in ``decode_records``.
        reader_schema: The columns to build, as in ``decode_records``.
        path: The file that errors name.

    Shapes: values (n,) -> a table of n rows, in their order.

    Raises:
        CorruptTableError: A value is not a record of the schema.
        UnsupportedTableError: As ``decode_records``.
        InvalidInputError: As ``decode_records``.
    """
    plan = _plan(writer_schema_json, reader_schema, path)
    _, offsets, content = values.buffers()
    borders: Integers = np.zeros(1, np.int64)
    if len(values):  # an empty column may have no offsets at all
        places = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1]
        borders = places.astype(np.int64)
    data = np.frombuffer(content or b"", np.uint8)
    return _decoded(plan, data, (borders[:-1], borders[1:]), reader_schema, path)


def _plan(writer_schema_json: str, reader_schema: pa.Schema | None, path: str) -> RecordPlan:
    record = parse_schema(writer_schema_json, path=path)
    wanted = arrow_type(record) if reader_schema is None else pa.struct(list(reader_schema))
    return plan_record(record, wanted)


def _decoded(
    plan: RecordPlan,
    data: npt.NDArray[np.uint8],
    borders: tuple[Integers, Integers],
    reader_schema: pa.Schema | None,
    path: str,
) -> pa.Table:
    starts, ends = borders
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
    held = set(table.column_names)
    columns = [
        table.column(each.name) if each.name in held else pa.nulls(len(starts), each.type)
        for each in reader_schema
    ]
    return promote(pa.table(columns, names=reader_schema.names), reader_schema)


def _chunks(starts: Integers, ends: Integers) -> Iterator[slice]:
    """Yield runs of rows of a limited number and size; a larger record is a run by itself."""
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
    to_the_end = len(plan.steps) - 1 in plan.picks  # else the last fields were not read
    if to_the_end and (cursor.position != cursor.end).any():
        chunk.damaged("bytes behind a record's last field")
    return columns


def encode_records(table: pa.Table, schema_json: str) -> bytes:
    """
    Encode rows as the whole content of an Avro data block, version 3.

    Args:
        table: The rows; columns in any order, of types that fit the schema's without loss. A column
            of the schema that is missing is written as null.
        schema_json: The Avro JSON for the block's header; decides order and unions.

    Raises:
        InvalidInputError: A column is not in the schema or does not fit it (``schema_mismatch``,
            ``lossy_value``); a value is null where the schema has no null (``null_value``), or is
            not a symbol of its enum (``unknown_symbol``).
        UnsupportedTableError: The schema has a type that hoodoo does not support.
        CorruptTableError: The text is not an Avro record.
    """
    record = parse_schema(schema_json, path="")
    fields = list(arrow_type(record))
    unknown = sorted(set(table.column_names) - set(record.names))
    if unknown or len(set(table.column_names)) != table.num_columns:
        raise InvalidInputError(
            "the rows have columns that repeat or that the table lacks: remove the columns, or "
            f"add them to the table first: columns={unknown or table.column_names}",
            kind="schema_mismatch",
            columns=unknown or table.column_names,
        )
    columns = [
        cast_column(table.column(field.name), field.type, field.name)
        if field.name in table.column_names
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in fields
    ]
    rows = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    parts: list[BytesLike] = [_HEAD.pack(_VERSION, table.num_rows)]
    for part in _parts(rows):
        arrays = [one_array(column) for column in part.columns]
        _, offsets, data = encode_rows(record, arrays, part.num_rows).buffers()
        size = int(np.frombuffer(offsets, np.int32)[part.num_rows])
        parts.append(memoryview(data)[:size])
    return b"".join(parts)


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """Yield runs of rows of a limited number and size."""
    row = 0
    while row < table.num_rows:
        part = table.slice(row, _CHUNK_ROWS)
        while part.num_rows > 1 and part.nbytes > _CHUNK_BYTES:
            part = part.slice(0, part.num_rows // 2)
        yield part
        row += part.num_rows

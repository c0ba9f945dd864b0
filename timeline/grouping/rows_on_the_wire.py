"""Prepared rows as text, from a writer to the committer that writes them (GRP-8)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from timeline.model.schema import KEY_COLUMN, PARTITION_COLUMN, TableSchema

__all__ = ["are_rows_of", "decoded_rows", "encoded_rows"]


def are_rows_of(rows: pa.Table, schema: TableSchema) -> bool:
    """Whether prepared rows are whole, and have keys: what ``decoded_rows`` takes of any."""
    keys, wanted = (KEY_COLUMN, PARTITION_COLUMN), _columns(schema)
    return [(field.name, field.type) for field in rows.schema] == wanted and not any(
        rows.column(name).null_count for name in keys
    )


def _columns(schema: TableSchema) -> list[tuple[str, pa.DataType]]:
    columns = [(field.name, field.type) for field in schema.arrow]
    return [*columns, (KEY_COLUMN, pa.string()), (PARTITION_COLUMN, pa.string())]


def encoded_rows(rows: pa.Table) -> str:
    """Rows as Arrow IPC in base 64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def decoded_rows(
    text: str, schema: TableSchema, partition_paths: Collection[str], *, bytes_max: int
) -> pa.Table:
    """
    Read back what ``encoded_rows`` wrote, by another process.

    Args:
        text: What came.
        schema: What the rows were prepared for.
        partition_paths: Those the rows may belong to.
        bytes_max: What they may take in memory.

    Raises:
        ValueError: These are no rows, or not such ones.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text, validate=True))) as stream:
            rows = stream.read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError, binascii.Error, ValueError) as error:
        raise ValueError(f"these are no rows: {error}") from None
    if [(field.name, field.type) for field in rows.schema] != _columns(schema):
        raise ValueError(f"rows of other columns: {', '.join(rows.schema.names)[:300]!a}")
    if rows.nbytes > bytes_max:
        raise ValueError(f"more rows than were offered: {rows.nbytes} bytes")
    keys, paths = rows.column(KEY_COLUMN), rows.column(PARTITION_COLUMN)
    if keys.null_count or paths.null_count:
        raise ValueError("rows without a key or a partition path")
    if not set(pc.unique(paths).to_pylist()) <= set(partition_paths):
        raise ValueError("rows of partitions that were not offered")
    return rows

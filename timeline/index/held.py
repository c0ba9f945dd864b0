"""
What a file group holds now: its record keys, and the order of its rows.

A base file tells by itself, unless logs lie on it whose keys count; then the slice is
merged as readers do, of the columns that are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from timeline.files.parquet import read_base_file, read_keys
from timeline.files.slice_reader import read_slice
from timeline.files.virtual_keys import read_virtual_keys
from timeline.index import IndexedFile, MergedSlice
from timeline.machine import NullEvents
from timeline.model.schema import KEY_COLUMN
from timeline.ports.storage import Storage
from timeline.rules.ordering import ordering_column

__all__ = ["held_keys", "held_rows"]


def held_keys(storage: Storage, file: IndexedFile) -> pa.ChunkedArray:
    """
    The record keys of a file group.

    Raises:
        MissingFileError: A file is gone.
        CorruptTableError: A file is damaged or has no record keys.

    Outside: 1 open_input, those of ``read_slice`` where logs count.
    """
    if file.merged is not None:
        return held_rows(storage, file, pa.schema([])).column(0)
    if file.virtual_keys is not None:
        return read_virtual_keys(storage, file.path, file.virtual_keys)
    return read_keys(storage, file.path)


def held_rows(
    storage: Storage, file: IndexedFile, schema: pa.Schema, ordering: Sequence[str] = ()
) -> pa.Table:
    """
    The record keys of a file group and its rows' ordering values.

    Args:
        storage: Where the table lies.
        file: The file group.
        schema: Has the columns of the ordering fields, as they are wanted.
        ordering: The fields; a dotted name is a field inside a struct.

    Errors as ``held_keys``. Outside: 2 open_input, those of ``read_slice`` where logs count.
    """
    heads = dict.fromkeys(name.partition(".")[0] for name in ordering)
    wanted = pa.schema([schema.field(name) for name in heads])
    if file.merged is not None:
        rows = _merged(storage, file.merged)
        read = file.merged.read
        keys = (
            rows.column(KEY_COLUMN) if read.keys is None else pa.chunked_array([read.keys.of(rows)])
        )
        rows = rows.select(wanted.names).cast(wanted)
    else:
        keys = held_keys(storage, file)
        if not ordering:
            return pa.table([keys], names=[KEY_COLUMN])
        rows = read_base_file(storage, file.path, schema=wanted)
    values = [ordering_column(rows, name) for name in ordering]
    return pa.table([keys, *values], names=[KEY_COLUMN, *ordering])


def _merged(storage: Storage, merged: MergedSlice) -> pa.Table:
    # Corrupt blocks hold nothing that was published; readers of the table are told of them.
    batches = read_slice(storage, NullEvents(), merged.slice, merged.read)
    return pa.Table.from_batches(list(batches), schema=merged.read.output_schema)

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
from timeline.model.schema import META_COLUMNS
from timeline.ports.storage import Storage

__all__ = ["held_keys", "held_rows"]

_KEY = META_COLUMNS[2]


def held_keys(storage: Storage, file: IndexedFile) -> pa.ChunkedArray:
    """
    The record keys of a file group.

    Raises:
        MissingFileError: A file is gone.
        CorruptTableError: A file is damaged or has no record keys.

    Outside: 1 open_input, those of ``read_slice`` where logs count.
    """
    if file.merged is not None:
        return held_rows(storage, file, ()).column(0)
    if file.virtual_keys is not None:
        return read_virtual_keys(storage, file.path, file.virtual_keys)
    return read_keys(storage, file.path)


def held_rows(storage: Storage, file: IndexedFile, ordering: Sequence[pa.Field]) -> pa.Table:
    """
    The record keys of a file group and its rows' ordering values, of the given types.

    Errors as ``held_keys``. Outside: 2 open_input, those of ``read_slice`` where logs count.
    """
    names = [each.name for each in ordering]
    if file.merged is not None:
        rows = _merged(storage, file.merged)
        read = file.merged.read
        keys = rows.column(_KEY) if read.keys is None else pa.chunked_array([read.keys.of(rows)])
        columns = [rows.column(each.name).cast(each.type) for each in ordering]
        return pa.table([keys, *columns], names=[_KEY, *names])
    keys = held_keys(storage, file)
    if not names:
        return pa.table([keys], names=[_KEY])
    rows = read_base_file(storage, file.path, schema=pa.schema(list(ordering)))
    return pa.table([keys, *rows.columns], names=[_KEY, *names])


def _merged(storage: Storage, merged: MergedSlice) -> pa.Table:
    # Corrupt blocks hold nothing that was published; readers of the table are told of them.
    batches = read_slice(storage, NullEvents(), merged.slice, merged.read)
    return pa.Table.from_batches(list(batches), schema=merged.read.output_schema)

"""
The simple index: look the keys up in the key columns of the partition's base files.

Nothing is stored, so nothing can go stale: it is right with every other writer of the
table, Java's included. Files whose range of keys cannot meet the batch's are skipped by
their footer; of each other file only the key column is read, one file at a time on each
worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.files.parquet import read_keys_between
from timeline.index import IndexedFile
from timeline.ports.executor import Executor
from timeline.ports.storage import Storage
from timeline.rules.keys import key_range
from timeline.rules.placement import rows_by_number

__all__ = ["SimpleIndex", "tag"]


class SimpleIndex:
    """The simple index as an ``Index``; it has no state."""

    def tag(
        self,
        storage: Storage,
        executor: Executor,
        base_files: Mapping[str, Sequence[IndexedFile]],
        keys: pa.Array | pa.ChunkedArray,
        partition_paths: pa.Array | pa.ChunkedArray,
    ) -> pa.Array:
        """As ``Index.tag``. Outside: at most 1 open_input a candidate file."""
        return tag(storage, executor, base_files, keys, partition_paths)


def tag(
    storage: Storage,
    executor: Executor,
    base_files: Mapping[str, Sequence[IndexedFile]],
    keys: pa.Array | pa.ChunkedArray,
    partition_paths: pa.Array | pa.ChunkedArray,
) -> pa.Array:
    """
    Tell each row's file group, null for a new record.

    A key that lies in several file groups (plain inserts may do that) is given to the first
    in the view's order. Arguments, shapes and errors are those of ``Index.tag``.
    """
    file_ids: list[str] = []
    lookups: list[_Lookup] = []
    rows_of: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]] = []
    for path, rows in _rows_by_path(partition_paths).items():
        files = base_files.get(path, ())
        if not files:
            continue
        distinct, codes = _distinct(keys if len(rows) == len(keys) else keys.take(pa.array(rows)))
        limits = key_range(distinct)
        if limits is None:
            continue
        for each in files:
            lookups.append(_Lookup(each.path, distinct, limits, len(rows_of), len(file_ids)))
            file_ids.append(each.file_id)
        rows_of.append((rows, codes))
    found = np.full(len(keys), -1, np.int64)
    for lookup, hits in zip(lookups, executor.map(partial(_look, storage), lookups), strict=True):
        rows, codes = rows_of[lookup.group]
        inside = np.zeros(len(lookup.keys), np.bool_)
        inside[hits] = True
        mine = rows[inside[codes]]
        mine = mine[found[mine] < 0]
        found[mine] = lookup.number
    indices = pa.array(found, mask=found < 0)
    return pa.array(file_ids, pa.string()).take(indices)


@dataclass(frozen=True, slots=True)
class _Lookup:
    path: str
    keys: pa.Array  # distinct keys of one partition's rows
    limits: tuple[str, str]
    group: int
    number: int


def _look(storage: Storage, lookup: _Lookup) -> npt.NDArray[np.intp]:
    """Positions in ``lookup.keys`` of the keys that the file holds."""
    held = read_keys_between(storage, lookup.path, *lookup.limits)
    if held is None:
        return np.zeros(0, np.intp)
    positions = pc.drop_null(pc.index_in(held, value_set=lookup.keys))
    return np.asarray(positions).astype(np.intp)


def _rows_by_path(paths: Any) -> dict[str, npt.NDArray[np.intp]]:
    distinct, codes = _distinct(paths)
    names = distinct.to_pylist()
    return {names[code]: rows for code, rows in rows_by_number(codes).items()}


def _distinct(column: Any) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if not isinstance(column, pa.ChunkedArray):
        column = pa.chunked_array([column])
    encoded = column.dictionary_encode().unify_dictionaries()
    if len(encoded) == 0:
        return pa.array([], pa.string()), np.zeros(0, np.int64)
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in encoded.chunks])
    return encoded.chunk(0).dictionary, codes.astype(np.int64)

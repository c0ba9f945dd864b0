"""
The look-up indexes: find keys in the key columns of base files.

Nothing is stored, so nothing can go stale: they are right with every other writer of the
table, Java's included. SIMPLE skips files whose range of keys cannot meet the batch's and
reads the key column of every other; BLOOM asks each footer key by key first, its range
and its bloom filter, and reads only files that may hold one. One file at a time on each
worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.codecs.bloom import BloomFilter
from timeline.errors import CorruptTableError
from timeline.files.parquet import Footer, read_keys_between, read_keys_if
from timeline.index import IndexedFile
from timeline.index.held import held_keys
from timeline.model.columns import distinct_codes
from timeline.ports.executor import Executor
from timeline.ports.storage import Storage
from timeline.rules.keys import key_range
from timeline.rules.placement import codes_of, rows_by_number

__all__ = ["may_hold_any", "tag"]

_SURROGATES = 0xEE  # from this byte on, UTF-8 and Java's UTF-16 may order keys differently


def tag(
    storage: Storage,
    executor: Executor,
    base_files: Mapping[str, Sequence[IndexedFile]],
    keys: pa.Array | pa.ChunkedArray,
    partition_paths: pa.Array | pa.ChunkedArray,
    *,
    filters: bool = False,
) -> pa.Array:
    """
    Tell each row's file group, null for a new record.

    A key that lies in several file groups (plain inserts may do that) is given to the first
    candidate.

    Args:
        storage: Where the table lies.
        executor: Looks into several files side by side.
        base_files: Candidates by partition path, the preferred ones first.
        keys: Record keys of the rows; may repeat.
        partition_paths: Where each row belongs; a key is looked for there only.
        filters: Ask ranges and bloom filters of footers before keys are read.

    Shapes: keys (n,), partition_paths (n,) -> file ids (n,), null = a new record.

    Raises:
        MissingFileError: A candidate was cleaned meanwhile; plan anew.
        CorruptTableError: A candidate is damaged.

    Outside: at most 1 open_input a candidate file; the files of a slice whose logs count.
    """
    file_ids: list[str] = []
    lookups: list[_Lookup] = []
    rows_of: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]] = []
    path_codes, paths = codes_of(partition_paths)
    for code, rows in rows_by_number(path_codes).items():
        files = base_files.get(paths[code], ())
        if not files:
            continue
        mine = keys if len(rows) == len(keys) else keys.take(pa.array(rows))
        codes, distinct = distinct_codes(mine)
        limits = key_range(distinct)
        if limits is None:
            continue
        for each in files:
            lookups.append(_Lookup(each, distinct, limits, len(rows_of), len(file_ids)))
            file_ids.append(each.file_id)
        rows_of.append((rows, codes))
    found = np.full(len(keys), -1, np.int64)
    look = partial(_look_by_filter if filters else _look, storage)
    for lookup, hits in zip(lookups, executor.map(look, lookups), strict=True):
        rows, codes = rows_of[lookup.group]
        inside = np.zeros(len(lookup.keys), np.bool_)
        inside[hits] = True
        here = rows[inside[codes]]
        here = here[found[here] < 0]
        found[here] = lookup.number
    indices = pa.array(found, mask=found < 0)
    return pa.array(file_ids, pa.string()).take(indices)


@dataclass(frozen=True, slots=True)
class _Lookup:
    file: IndexedFile
    keys: pa.Array  # distinct keys of one partition's rows
    limits: tuple[str, str]
    group: int
    number: int


def _look(storage: Storage, lookup: _Lookup) -> npt.NDArray[np.intp]:
    """Positions in ``lookup.keys`` of the keys that the file holds."""
    file = lookup.file
    if file.virtual_keys is not None or file.merged is not None:
        return _positions(held_keys(storage, file), lookup.keys)
    held = read_keys_between(storage, file.path, *lookup.limits)
    return _positions(held, lookup.keys)


def _look_by_filter(storage: Storage, lookup: _Lookup) -> npt.NDArray[np.intp]:
    """The same; the file's keys are read only when its footer rules not all of them out."""
    if lookup.file.virtual_keys is not None or lookup.file.merged is not None:
        return _look(storage, lookup)
    held = read_keys_if(storage, lookup.file.path, partial(may_hold_any, lookup.keys))
    return _positions(held, lookup.keys)


def _positions(held: pa.ChunkedArray | None, keys: pa.Array) -> npt.NDArray[np.intp]:
    if held is None:
        return np.zeros(0, np.intp)
    positions = pc.drop_null(pc.index_in(held, value_set=keys))
    return np.asarray(positions).astype(np.intp)


def may_hold_any(keys: pa.Array, footer: Footer) -> bool:
    """Whether a base file may hold one of some keys; False is certain. Shapes: keys (n,)."""
    inside = _within(keys, footer)
    if footer.bloom_base64 is None or len(inside) == 0:
        return len(inside) > 0
    try:
        held = BloomFilter.load(footer.bloom_base64, footer.bloom_kind)
    except CorruptTableError:
        return True  # of an old format: the keys themselves tell
    return bool(held.may_contain(inside).any())


def _within(keys: pa.Array, footer: Footer) -> pa.Array:
    """The keys that lie in the file's range; all of them where byte order is not Java's."""
    limits = (footer.key_min, footer.key_max)
    if footer.rows == 0:
        return keys.slice(0, 0)
    if limits[0] is None or limits[1] is None:
        return keys
    data = keys.buffers()[2]
    texts = (data or b"", *(limit.encode() for limit in limits if limit is not None))
    if any(np.frombuffer(text, np.uint8).max(initial=0) >= _SURROGATES for text in texts):
        return keys
    inside = pc.and_(pc.greater_equal(keys, limits[0]), pc.less_equal(keys, limits[1]))
    return keys.filter(inside)

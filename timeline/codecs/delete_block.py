"""
The content of delete blocks: which keys a write removed, and the ordering of each removal.

The content is one Avro array of records whose ordering is a union of wrapper records, one
for each type (fmt 5.5). All records are decoded in step, as in data blocks. That needs to
know where each record begins, which an Avro array does not say. In the blocks that exist
all records share the partition path and the wrapper, so those bytes are searched for, and
the records between them must touch one another from the first byte to the last; where they
do not, the array is walked item by item.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timeline.codecs.avro_columns.cursor import PADDING_BYTES, Chunk, Cursor
from timeline.codecs.avro_columns.decode import read_record
from timeline.codecs.avro_columns.items import find_items, skip
from timeline.codecs.avro_columns.types import Choice, Record
from timeline.codecs.delete_wrappers import (
    ARRAY,
    BRANCHES,
    INT,
    NULL,
    delete_layout,
    texts,
    wrapped,
)
from timeline.codecs.ragged import content_of, joined, longs
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError
from timeline.model.schema import KEY_COLUMN, PARTITION_COLUMN

__all__ = [
    "COMMIT_TIME",
    "decode_deletes",
    "encode_deletes",
    "ordering_names",
]

COMMIT_TIME: Final = "is_commit_time"
_ORDERING: Final = "ordering_"

_VERSION: Final = 3
_JAVA_VERSIONS: Final = (1, 2)
_HEAD: Final = struct.Struct(">ii")
_CHUNK_ROWS: Final = 16 * 1024
_SEARCHED_RECORDS_MIN: Final = 256  # fewer are walked sooner than searched for
_ORDERING_FIELDS_MAX: Final = 64
_PRESENT: Final = b"\x02"  # the branch of a nullable value that is not null
_BY_COMMIT_TIME: Final = bytes([2 * INT, 0])  # an int of 0, as Java's deletes say

Integers = npt.NDArray[np.int64]


def ordering_names(deletes: pa.Table) -> list[str]:
    """Names of the ordering columns of decoded deletes, in the order of the fields."""
    return [name for name in deletes.column_names if name.startswith(_ORDERING)]


def decode_deletes(content: bytes, *, path: str) -> pa.Table:
    """
    Decode the content of a delete block.

    Args:
        content: As ``read_content`` gives it.
        path: What errors name as the damaged file.

    Returns:
        Columns ``_hoodie_record_key``, ``_hoodie_partition_path``, ``is_commit_time`` and,
        unless all are deletes by commit time, ``ordering_0`` and so on. An ordering has the
        type of its wrapper, and is null in a delete by commit time: one with an int of 0
        or nothing as its ordering, which holds whatever the row's ordering is.

    Shapes: a table of n deletes in the order of the records.

    Raises:
        CorruptTableError: The bytes are no delete records, or their orderings have types
            that cannot be compared.
        UnsupportedTableError: The content has another version (``delete_block_version``).
    """
    if len(content) < _HEAD.size:
        raise _damaged(path, "shorter than its head")
    version, size = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise _other_version(path, version)
    if size != len(content) - _HEAD.size:
        raise _damaged(path, f"{len(content) - _HEAD.size} bytes of records, not {size}")
    chunk = Chunk(np.frombuffer(content, np.uint8, offset=_HEAD.size), path)
    records = _records(chunk, size)
    found = _Found(len(records))
    for first in range(0, len(records), _CHUNK_ROWS):
        found.read(records.at(slice(first, first + _CHUNK_ROWS)), first)
    return found.table(chunk)


def encode_deletes(
    keys: pa.Array | pa.ChunkedArray,
    partition_paths: pa.Array | pa.ChunkedArray | str,
    orderings: Sequence[pa.Array | pa.ChunkedArray] = (),
    *,
    is_commit_time: pa.Array | pa.ChunkedArray | None = None,
) -> bytes:
    """
    Write the content of a delete block.

    Args:
        keys: Record keys.
        partition_paths: One for each key, or the one of all.
        orderings: The ordering columns; none makes all deletes hold by commit time, which
            readers of 1.0.x do not survive once such a key is inserted again (fmt 5.5).
        is_commit_time: Which deletes hold by commit time although there are orderings.

    Raises:
        InvalidInputError: A key, a partition path or an ordering is null, or an ordering has
            a type or a value that no wrapper holds.
    """
    paths: pa.Array | bytes
    if isinstance(partition_paths, str):
        text = partition_paths.encode()
        paths = _PRESENT + _long(len(text)) + text
    else:
        paths = joined(_PRESENT, texts(partition_paths, PARTITION_COLUMN))
    ordering = _orderings(orderings, is_commit_time)
    records = joined(_PRESENT, texts(keys, KEY_COLUMN), paths, ordering)
    count = _long(len(keys)) if len(keys) else b""
    datum = b"".join((count, content_of(records), _long(0)))
    return _HEAD.pack(_VERSION, len(datum)) + datum


def _orderings(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    is_commit_time: pa.Array | pa.ChunkedArray | None,
) -> pa.Array | bytes:
    if not columns:
        return _BY_COMMIT_TIME
    if is_commit_time is None:
        return _real_orderings(columns)
    by_commit_time = np.asarray(is_commit_time, dtype=np.bool_)
    real = _real_orderings([column.filter(pa.array(~by_commit_time)) for column in columns])
    places = pa.array(np.cumsum(~by_commit_time) - 1, mask=by_commit_time)
    return real.take(places).fill_null(_BY_COMMIT_TIME)


def _real_orderings(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    nulls = max(column.null_count for column in columns)
    if nulls:
        raise InvalidInputError(
            "a delete's ordering is null, which hudi's readers do not survive: take the deleted "
            f"row's ordering, or delete by commit time: {nulls} rows",
            kind="null_ordering",
            rows=nulls,
        )
    if len(columns) == 1:
        return wrapped(columns[0])
    head = bytes([2 * ARRAY]) + _PRESENT + _long(len(columns))
    return joined(head, *(wrapped(each) for each in columns), _long(0))


def _long(value: int) -> bytes:
    return content_of(longs(np.array([value])))


# ---------------------------------------------------------------- where records begin


def _records(chunk: Chunk, size: int) -> Cursor:
    """A cursor with one row for each record of the array that fills the chunk."""
    borders = np.array([PADDING_BYTES, PADDING_BYTES + size], np.int64)
    whole = Cursor(chunk, borders[:1], borders[1:])
    searched = _touching_records(whole.at(slice(None)))
    if searched is not None:
        return searched
    _, records = find_items(delete_layout().records, whole)
    if whole.position[0] != borders[1]:
        chunk.damaged("bytes behind the last delete")
    return records


def _touching_records(whole: Cursor) -> Cursor | None:
    """
    Find the records by the bytes between key and ordering, which are those of the first one.

    Every record found is proven: it begins where the one before ends, its key ends where
    the searched bytes begin, and the last one ends where the array does.
    """
    record = delete_layout().records.item
    assert isinstance(record, Record)
    key, partition, ordering = record.nodes
    assert isinstance(ordering, Choice)
    content = whole.chunk.content
    end = int(whole.end[0])
    try:
        count = int(whole.integers(None)[0])
        if count < _SEARCHED_RECORDS_MIN or content[end - 1] != 0:
            return None
        first = whole.position
        skip(key, whole)
        searched_from = int(whole.position[0])
        skip(partition, whole)
        searched = content[searched_from : int(whole.position[0]) + 1]
        at = _places(content[:end], int(first[0]), searched)
        if len(at) != count:
            return None
        wrapper = ordering.branches[searched[-1] >> 1]
        values = Cursor(whole.chunk, at + len(searched), np.full(count, end, np.int64))
        skip(wrapper, values)
        starts = np.concatenate([first, values.position[:-1]])
        if values.position[-1] != end - 1 or (starts > at).any() or (np.diff(starts) <= 0).any():
            return None
        keys = Cursor(whole.chunk, starts, at)
        skip(key, keys)
    except (CorruptTableError, IndexError):
        return None
    return Cursor(whole.chunk, starts, values.position) if (keys.position == at).all() else None


def _places(
    content: npt.NDArray[np.uint8], start: int, searched: npt.NDArray[np.uint8]
) -> Integers:
    """Where some bytes stand, from a start on."""
    room = content[start : len(content) - len(searched) + 1]
    at = np.flatnonzero(room == searched[0]) + start
    for place in range(1, len(searched)):
        at = at[content[at + place] == searched[place]]
    return at


# ---------------------------------------------------------------- what they say


class _Found:
    """Deletes decoded so far: keys and paths in order, orderings by field and wrapper."""

    def __init__(self, rows: int) -> None:
        self._keys: list[pa.Array] = []
        self._paths: list[pa.Array] = []
        self._by_commit_time = np.zeros(rows, np.bool_)
        self._fields = np.zeros(rows, np.int64)  # ordering fields of each delete
        self._values: defaultdict[int, list[tuple[Integers, pa.Array]]] = defaultdict(list)

    def read(self, cursor: Cursor, first: int) -> None:
        """Decode some records, of which the first has the given row."""
        keys, paths = read_record(delete_layout().names, cursor)
        self._keys.append(keys)
        self._paths.append(paths)
        rows = np.arange(first, first + len(cursor))
        self._read_wrapped(cursor, rows, 0, self._read_single)

    def _read_wrapped(
        self,
        cursor: Cursor,
        rows: Integers,
        field: int,
        read: Callable[[int, Cursor, Integers, int], None],
    ) -> None:
        """Read a branch, and then the rows of each branch together."""
        branches = cursor.branches(BRANCHES)
        present = np.unique(branches).tolist()
        if len(present) == 1:
            read(present[0], cursor, rows, field)
            return
        for branch in present:
            chosen_rows = np.flatnonzero(branches == branch)
            part = cursor.at(chosen_rows)
            read(branch, part, rows[chosen_rows], field)
            cursor.put_back(chosen_rows, part)

    def _read_single(self, branch: int, cursor: Cursor, rows: Integers, field: int) -> None:
        """An ordering that stands alone, where an int of 0 means commit time."""
        if branch == NULL:
            self._by_commit_time[rows] = True
        elif branch == ARRAY:
            self._read_array(cursor, rows)
        else:
            values = self._value(branch, cursor)
            if branch == INT:
                by_commit_time = values.to_numpy() == 0
                self._by_commit_time[rows] = by_commit_time
                real = ~by_commit_time
                rows, values = rows[real], values.filter(pa.array(real))
            self._fields[rows] = 1
            self._values[field].append((rows, values))

    def _read_array(self, cursor: Cursor, rows: Integers) -> None:
        counts = cursor.integers(None) if (cursor.branches(2) == 1).all() else None
        if counts is None or not 0 < counts[0] <= _ORDERING_FIELDS_MAX:
            cursor.chunk.damaged("a delete without ordering fields")
        if (counts != counts[0]).any():
            cursor.chunk.damaged("deletes with different ordering fields")
        self._fields[rows] = counts
        for field in range(int(counts[0])):
            self._read_wrapped(cursor, rows, field, self._read_item)
        if cursor.integers(None).any():
            cursor.chunk.damaged("an ordering in several pieces")

    def _read_item(self, branch: int, cursor: Cursor, rows: Integers, field: int) -> None:
        if branch != NULL:
            self._values[field].append((rows, self._value(branch, cursor)))

    def _value(self, branch: int, cursor: Cursor) -> pa.Array:
        plan = delete_layout().wrappers[branch]
        assert plan is not None
        (values,) = read_record(plan, cursor)
        return values

    def table(self, chunk: Chunk) -> pa.Table:
        """All deletes."""
        fields = self._fields[~self._by_commit_time]
        if len(fields) and (fields != fields[0]).any():
            chunk.damaged("deletes with different ordering fields")
        columns = {
            KEY_COLUMN: pa.chunked_array(self._keys, pa.string()),
            PARTITION_COLUMN: pa.chunked_array(self._paths, pa.string()),
            COMMIT_TIME: pa.array(self._by_commit_time),
        }
        for field in range(int(fields[0]) if len(fields) else 0):
            columns[f"{_ORDERING}{field}"] = self._ordering(field, chunk)
        return pa.table(columns)

    def _ordering(self, field: int, chunk: Chunk) -> pa.Array:
        pieces = [(rows, values) for rows, values in self._values[field] if len(rows)]
        if not pieces:
            return pa.nulls(len(self._by_commit_time))
        target = _common_type({values.type for _, values in pieces})
        if target is None:
            chunk.damaged("orderings of types that cannot be compared")
        values = pa.concat_arrays([values.cast(target) for _, values in pieces])
        places = np.full(len(self._by_commit_time), -1, np.int64)
        places[np.concatenate([rows for rows, _ in pieces])] = np.arange(len(values))
        return values.take(pa.array(places, mask=places < 0))


def _common_type(types: set[pa.DataType]) -> pa.DataType | None:
    """The type all orderings of a field have, or the widest of their numbers."""
    if len(types) == 1:
        return next(iter(types))
    if types <= {pa.int32(), pa.int64()}:
        return pa.int64()
    if types <= {pa.int32(), pa.float32(), pa.float64()}:
        return pa.float64()
    return None


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"a delete block is damaged ({why}): restore the file or roll its instant back: {path}",
        kind="bad_record",
        path=path,
    )


def _other_version(path: str, version: int) -> UnsupportedTableError:
    what = "serialised by java, before hudi 0.13" if version in _JAVA_VERSIONS else "not known"
    return UnsupportedTableError(
        f"a delete block has a version that is {what}; compact the table with the engine that "
        f"wrote it: version {version}, {path}",
        kind="delete_block_version",
        path=path,
        version=version,
    )

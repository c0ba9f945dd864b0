"""The content of delete blocks: removed record keys, with the ordering of each removal."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns.decode import RecordPlan, plan_record, read_record
from filegroups.files.avro_columns.encode import RowWriter, shortest_bytes
from filegroups.files.avro_columns.items import PADDING_BYTES, Chunk, Cursor, find_items, skip
from filegroups.files.avro_columns.types import (
    Items,
    Leaf,
    Node,
    Record,
    Union,
    arrow_type,
    parse_schema,
)
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError, counted

# ---- Typed wrappers of ordering values, one per column type
#
# A Java reader compares the wrapped value with the row's own, and raises an exception for a value
# of another class (fmt 5.5). So a column is wrapped as by Java's writers. Values that Avro stores
# as plain numbers (also dates, times of day and timestamps) stay numbers.

NULL: Final = 0
INT: Final = 2
ARRAY: Final = 12
"""Branch of several orderings in one; inside of them 12 is a wrapper of a local date."""
BRANCHES: Final = 13

_WRAPPERS: Final[tuple[tuple[str, Any], ...]] = (
    ("BooleanWrapper", "boolean"),
    ("IntWrapper", "int"),
    ("LongWrapper", "long"),
    ("FloatWrapper", "float"),
    ("DoubleWrapper", "double"),
    ("BytesWrapper", "bytes"),
    ("StringWrapper", "string"),
    ("DateWrapper", {"type": "int", "logicalType": "date"}),
    ("DecimalWrapper", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}),
    ("TimeMicrosWrapper", {"type": "long", "logicalType": "time-micros"}),
    ("TimestampMicrosWrapper", {"type": "long", "logicalType": "timestamp-micros"}),
)
_LOCAL_DATE: Final = ("LocalDateWrapper", {"type": "int", "logicalType": "date"})
_DECIMAL: Final = pa.decimal128(30, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLayout:
    """How delete records are read and written."""

    records: Items  # the whole array, to skip its items
    names: RecordPlan  # record key and partition path
    wrappers: tuple[RecordPlan | None, ...]  # by branch inside an array; None for null
    leaves: tuple[Node, ...]  # by branch: the wrapped value; null itself


@cache
def delete_layout() -> DeleteLayout:
    """Return the layout of every delete block; releases before 1.1 lack only the last branch."""
    named = ["null", *(name for name, _ in _WRAPPERS), _wrapper(*_LOCAL_DATE)]
    array = _record("ArrayWrapper", wrappedValues=["null", {"type": "array", "items": named}])
    texts_only = {"recordKey": ["null", "string"], "partitionPath": ["null", "string"]}
    union = ["null", *(_wrapper(*each) for each in _WRAPPERS), array]
    record = _record("HoodieDeleteRecord", **texts_only, orderingVal=union)
    root = _parsed(_record("HoodieDeleteRecordList", list={"type": "array", "items": record}))
    (records,) = root.nodes
    assert isinstance(records, Items)
    assert isinstance(records.item, Record)
    ordering = records.item.nodes[-1]
    assert isinstance(ordering, Union)
    return DeleteLayout(
        records=records,
        names=_plan(_record("Names", **texts_only)),
        leaves=tuple(
            each.nodes[0] if isinstance(each, Record) else each for each in ordering.branches
        ),
        wrappers=(None, *(_plan(_wrapper(*each)) for each in (*_WRAPPERS, _LOCAL_DATE))),
    )


def _record(name: str, **fields: Any) -> dict[str, Any]:
    listed = [{"name": each, "type": kind} for each, kind in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


def _wrapper(name: str, kind: Any) -> dict[str, Any]:
    return _record(name, value=kind)


def _parsed(schema: dict[str, Any]) -> Record:
    return parse_schema(json.dumps(schema), path="")


def _plan(schema: dict[str, Any]) -> RecordPlan:
    record = _parsed(schema)
    return plan_record(record, arrow_type(record))


def branch_of(kind: pa.DataType) -> int:
    """
    Return the branch of the wrapper for a column's type.

    Raises:
        InvalidInputError: No wrapper holds the type (``ordering_type``).
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    for fits, branch in _BRANCH_OF_TYPE:
        if fits(kind):
            return branch
    raise InvalidInputError(
        f"a delete cannot store an ordering of this type: choose another ordering field: {kind}",
        kind="ordering_type",
        type=str(kind),
    )


# Of dates, times and timestamps the stored number is written. In Java a DateWrapper is not a number.
_BRANCH_OF_TYPE: Final[tuple[tuple[Callable[[Any], bool], int], ...]] = (
    (pa.types.is_boolean, 1),
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.int32(), pa.date32()), INT),
    (pa.types.is_time32, INT),
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_time64(kind), 3),
    (pa.types.is_timestamp, 3),
    (pa.types.is_float32, 4),
    (pa.types.is_float64, 5),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), 6),
    (pa.types.is_fixed_size_binary, 6),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), 7),
    (pa.types.is_decimal, 9),
)


def _writable(column: pa.Array) -> pa.Array:
    """
    Return an ordering column in a type that its wrapper's leaf writes.

    Raises:
        InvalidInputError: A decimal has more digits than the wrapper holds (``ordering_value``).
    """
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_int8(column.type) or types.is_int16(column.type):
        return column.cast(pa.int32())
    return _unscaled(column) if types.is_decimal(column.type) else column


def _unscaled(column: pa.Array) -> pa.Array:
    """Return decimals as two's complement in the fewest bytes, as Java writes them."""
    try:
        held = pc.cast(column, _DECIMAL)
    except pa.ArrowInvalid as failure:
        raise InvalidInputError(
            "a delete's ordering has more digits than Hudi stores (15 before and 15 after the "
            f"point): round it: {str(failure)[:200]}",
            kind="ordering_value",
        ) from failure
    return shortest_bytes(held)


# ---- The content of delete blocks
#
# The content is one Avro array of records whose ordering is a union of wrapper records, one per
# type (fmt 5.5). All records are decoded in lockstep, as in data blocks. That needs the start of
# each record, which an Avro array does not have. In existing blocks all records share the partition
# path and the wrapper, so the decoder searches for those bytes. The records between them must be
# adjacent from the first byte to the last; otherwise the decoder walks the array item by item.

COMMIT_TIME: Final = "is_commit_time"
_ORDERING: Final = "ordering_"

_VERSION: Final = 3
_JAVA_VERSIONS: Final = (1, 2)
_HEAD: Final = struct.Struct(">ii")
_CHUNK_ROWS: Final = 16 * 1024
_SEARCHED_RECORDS_MIN: Final = 256  # a walk of fewer records is faster than a search
_ORDERING_FIELDS_MAX: Final = 64
_PRESENT: Final = 1  # the branch of a nullable value that is not null
_TEXT: Final = Leaf(kind="string", arrow=pa.string())
_BY_COMMIT_TIME: Final = bytes([2 * INT, 0])  # an int of 0, as in Java's deletes

Integers = npt.NDArray[np.int64]


def ordering_names(deletes: pa.Table) -> list[str]:
    """Return the names of the ordering columns of decoded deletes, in the order of the fields."""
    return [name for name in deletes.column_names if name.startswith(_ORDERING)]


def decode_deletes(content: bytes, *, path: str) -> pa.Table:
    """
    Decode the content of a delete block.

    Args:
        content: From ``read_content``.
        path: The file that errors name.

    Returns:
        Columns ``_hoodie_record_key``, ``_hoodie_partition_path``, ``is_commit_time`` and, unless
        all are commit-time deletes, ``ordering_0`` and so on. An ordering has the type of its
        wrapper, and is null in a commit-time delete. Such a delete has an int of 0 or nothing as
        its ordering and is valid for any ordering of the row.

    Shapes: a table of n deletes in the order of the records.

    Raises:
        CorruptTableError: The bytes are not delete records, or their orderings have types that
            cannot be compared.
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
    partition_path: str,
    orderings: Sequence[pa.Array | pa.ChunkedArray] = (),
    *,
    is_commit_time: pa.Array | pa.ChunkedArray | None = None,
) -> bytes:
    """
    Encode the content of a delete block.

    Args:
        keys: Record keys.
        partition_path: The partition of all of them.
        orderings: The ordering columns. Without any, all are commit-time deletes; readers of 1.0.x
            fail on those once such a key is inserted again (fmt 5.5).
        is_commit_time: A mask of commit-time deletes among deletes with orderings.

    Raises:
        InvalidInputError: A key or an ordering is null, or an ordering has a type
            or a value that no wrapper holds.
    """
    count = len(keys)
    text = partition_path.encode()
    path = b"".join((_number(_PRESENT), _number(len(text)), text))
    by_commit_time = np.full(count, not orderings)
    if orderings and is_commit_time is not None:
        by_commit_time = np.asarray(is_commit_time, dtype=np.bool_)
    branches = [branch_of(column.type) for column in orderings]
    _refuse_nulls(keys, orderings, by_commit_time)
    table = pa.table([keys, *orderings], names=[*map(str, range(1 + len(orderings)))])
    pieces = [_number(count)] if count else []
    for first in range(0, count, _CHUNK_ROWS):
        part = table.slice(first, _CHUNK_ROWS)
        key, *columns = (one_array(column) for column in part.columns)
        mask = by_commit_time[first : first + _CHUNK_ROWS]
        writer = RowWriter(part.num_rows)
        writer.number(_PRESENT)
        writer.value(_TEXT, key.cast(pa.string()), "")
        writer.put(pa.repeat(path, part.num_rows))
        writer.put(_orderings(columns, branches, mask))
        pieces.append(_content(writer.rows()))
    datum = b"".join((*pieces, _number(0)))
    return _HEAD.pack(_VERSION, len(datum)) + datum


def _refuse_nulls(
    keys: pa.Array | pa.ChunkedArray,
    orderings: Sequence[pa.Array | pa.ChunkedArray],
    by_commit_time: npt.NDArray[np.bool_],
) -> None:
    if keys.null_count:
        raise InvalidInputError(
            f"a delete needs a key: fill column {KEY_COLUMN}: {keys.null_count} are null",
            kind="null_key",
            column=KEY_COLUMN,
        )
    real = pa.array(~by_commit_time)
    nulls = max((column.filter(real).null_count for column in orderings), default=0)
    if nulls:
        raise InvalidInputError(
            "a delete's ordering is null, and Hudi's readers fail on it: use the ordering of the "
            f"deleted row, or delete by commit time: {counted(nulls, 'row')}",
            kind="null_ordering",
            rows=nulls,
        )


def _orderings(
    columns: Sequence[pa.Array], branches: Sequence[int], by_commit_time: npt.NDArray[np.bool_]
) -> pa.Array:
    """Return the bytes of each delete's ordering. Shapes: columns, by_commit_time (n,) -> (n,)."""
    if by_commit_time.all():
        return pa.repeat(_BY_COMMIT_TIME, len(by_commit_time))
    real = ~by_commit_time
    writer = RowWriter(int(real.sum()))
    if len(columns) > 1:
        writer.number(ARRAY)
        writer.number(_PRESENT)
        writer.number(len(columns))
    for column, branch in zip(columns, branches, strict=True):
        writer.number(branch)
        writer.value(delete_layout().leaves[branch], _writable(column.filter(pa.array(real))), "")
    if len(columns) > 1:
        writer.number(0)  # the end of the array
    places = pa.array(np.cumsum(real) - 1, mask=by_commit_time)
    return writer.rows().take(places).fill_null(_BY_COMMIT_TIME)


def _number(value: int) -> bytes:
    writer = RowWriter(1)
    writer.number(value)
    return _content(writer.rows())


def _content(rows: pa.Array) -> bytes:
    """Return the bytes of all rows in sequence."""
    _, offsets, content = rows.buffers()
    return bytes(memoryview(content)[: np.frombuffer(offsets, np.int32)[len(rows)]])


# ---- Find the start of each record


def _records(chunk: Chunk, size: int) -> Cursor:
    """Return a cursor with one row for each record of the array that fills the chunk."""
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
    Find the records by the bytes between key and ordering, which all share with the first one.

    The result is verified: every record begins where the one before ends, its key ends where the
    searched bytes begin, and the last one ends where the array does.
    """
    record = delete_layout().records.item
    assert isinstance(record, Record)
    key, partition, ordering = record.nodes
    assert isinstance(ordering, Union)
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
        at = _positions(content[:end], int(first[0]), searched)
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


def _positions(
    content: npt.NDArray[np.uint8], start: int, searched: npt.NDArray[np.uint8]
) -> Integers:
    """Return the positions of some bytes after a start."""
    room = content[start : len(content) - len(searched) + 1]
    at = np.flatnonzero(room == searched[0]) + start
    for place in range(1, len(searched)):
        at = at[content[at + place] == searched[place]]
    return at


# ---- Decode keys and orderings


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
        """Read the branch numbers, and then the rows of each branch together."""
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
        """Read a single ordering, in which an int of 0 means commit time."""
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
        """Return all deletes."""
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
    """Return the type of all orderings of a field, or the widest of their number types."""
    if len(types) == 1:
        return next(iter(types))
    if types <= {pa.int32(), pa.int64()}:
        return pa.int64()
    if types <= {pa.int32(), pa.float32(), pa.float64()}:
        return pa.float64()
    return None


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"a delete block is damaged ({why}): restore the file from a backup, or roll its instant "
        f"back with 'hoodoo rollback TABLE INSTANT': {path}",
        kind="bad_record",
        path=path,
    )


def _other_version(path: str, version: int) -> UnsupportedTableError:
    what = "serialised by java, before hudi 0.13" if version in _JAVA_VERSIONS else "not known"
    return UnsupportedTableError(
        f"a delete block has a version that is {what}: compact the table with the engine that "
        f"wrote it: version {version}, {path}",
        kind="delete_block_version",
        path=path,
        version=version,
    )

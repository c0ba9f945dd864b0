"""
The tasks of Spark's Python workers: prepare rows, read keys, write file groups.

Each task takes and returns Arrow batches and needs no session. It calls the same functions as the
local executor. A worker keeps one batch, or the rows of one file group, in memory.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from filegroups.files.rewrite import FileGroupTask, stats_to_json
from filegroups.index import IndexedFile, SliceWithLogs
from filegroups.index.lookup import RecordIndexFiles, file_group_rows
from filegroups.keys.bucketing import BucketAssigner
from filegroups.keys.keys import (
    KeySpec,
    VirtualKeys,
    addresses,
    changed_addresses,
    key_columns,
    partition_paths,
    validate_ordering,
)
from filegroups.merge.merging import (
    RELOCATED_COLUMN,
    Changes,
    combine_incoming,
    key_codes,
    newest_positions,
)
from filegroups.merge.rules import MergeRules, ordering_column
from filegroups.schema.arrow_columns import codes_of, rows_by_number
from filegroups.schema.casting import normalise, refuse_null_elements
from filegroups.schema.schema import META_FIELDS, drop_meta
from filegroups.writing.workload import (
    NewGroups,
    combined,
    refuse_other_keys,
    write_task,
)
from filegroups.writing.write_request import RowRules
from hoodoo.spark.attempts import keep_if_awaited
from hoodoo.spark.error_transport import TaskFailedError, error_from_json, error_to_json
from hoodoo.spark.schema import transport_schema
from lockproviders.registry import has_external_slots
from timeline.errors import HoodooError, UnavailableError
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import MergeDefinition
from timeline.ports.ports import Storage
from timeline.storage.non_atomic import NonAtomicStorage
from timeline.storage.open_storage import storage_for

KEY, PARTITION = META_FIELDS[2].name, META_FIELDS[3].name
ORDER, ERROR, TARGET = "_hoodoo_order", "_hoodoo_error", "_hoodoo_target"
ROWS = "_hoodoo_rows"  # incoming rows that a prepared row stands for, itself included
BUCKET_COLUMN = "_hoodoo_share"  # the bucket of a bucket index
FILE_ID = "_hoodoo_file_id"
KEY_HASH, CHECKSUM = "_hoodoo_key_hash", "_hoodoo_checksum"
ERROR_TARGET = -2  # of rows that do not fit the table, instead of a file group
OLD_ORDER = "_hoodoo_old_"  # prefix: ordering values of the table's rows

FOUND_KEYS = pa.schema(
    [
        pa.field(PARTITION, pa.string()),
        pa.field(KEY, pa.string()),
        pa.field("number", pa.int32()),
    ]
)
LOCATED_KEYS = pa.schema([pa.field(name, pa.string()) for name in (KEY, PARTITION, FILE_ID)])
NAMED_PARTITIONS = pa.schema([pa.field(PARTITION, pa.string()), pa.field(ERROR, pa.string())])
ANSWERS = pa.schema(
    [
        pa.field(TARGET, pa.int32()),
        pa.field("rows", pa.int64()),  # that arrived
        pa.field(CHECKSUM, pa.int64()),  # of their keys
        pa.field("stats", pa.string()),
        pa.field(ERROR, pa.string()),
    ]
)

NEW_GROUPS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in (PARTITION, FILE_ID)),
        *(each for each in ANSWERS if each.name not in (TARGET, CHECKSUM)),
    ]
)

_LAST = MergeRules(definition=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING))
_COMBINED_BYTES_MIN = 64 << 20
_COMBINED_SHARE_MAX = 0.9  # keys of a batch's rows; with more keys, a combination saves too little
_FILE_SHIFT = 20  # bits for the files of one Spark partition
_KEPT_BYTES_MAX = 256 << 20  # rows that a task keeps for the files of several partition paths
_PIECE_ROWS, _PIECE_BYTES = 100_000, 32 << 20
_PARTITION_SHIFT = 40  # bits for the positions of rows in one Spark partition


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAddress:
    """The storage of a table, for other processes."""

    base_uri: str
    options: tuple[tuple[str, str], ...] = ()

    def open(self) -> Storage:
        """Open the storage in this process, for operations that need no slot store."""
        options = dict(self.options)
        storage = storage_for(self.base_uri, options=options)
        return NonAtomicStorage(storage) if has_external_slots(options) else storage


def prepared_schema(
    rules: RowRules, schema: pa.Schema, *, keys_only: bool = False, marked: bool = False
) -> pa.Schema:
    """
    Return the schema of prepared rows: table columns, key, partition path, order, rows, error.

    ``marked``: a column marks rows that delete their records.
    """
    without = keys_only or rules.operation.traits.deletes_keys
    own = () if without else tuple(transport_schema(schema))
    return pa.schema(
        [
            *own,
            pa.field(KEY, pa.string()),
            pa.field(PARTITION, pa.string()),
            pa.field(ORDER, pa.int64()),
            pa.field(ROWS, pa.int32()),
            pa.field(ERROR, pa.string()),
            *([pa.field(RELOCATED_COLUMN, pa.bool_())] if marked else []),
        ]
    )


def fitted_rows(incoming: pa.Table, rules: RowRules, schema: pa.Schema) -> pa.Table:
    """Return incoming rows in the table's own columns and types. Errors: as ``Workload.prepare``."""
    rows = incoming.select(drop_meta(incoming.schema).names)
    validate_ordering(rows, rules.ordering_fields)
    own = normalise(rows, schema)
    if rules.for_java:
        refuse_null_elements(own)
    return own


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRows:
    """
    Fit incoming rows to the table and compute their keys; a bad batch becomes an error row.

    Where many rows of a batch share keys, one row stays for each key, and the others do not travel.
    A batch of other keys costs one look at its keys.
    """

    rules: RowRules
    schema: pa.Schema  # the table's own columns
    keys_only: bool = False  # without the table's columns, which the rows may lack
    marked: bool = False  # the rows are changes of rows that were read; some delete their records
    newest: MergeRules | None = None  # which row of a key stays; None keeps all

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield prepared rows; runs in a worker."""
        context = TaskContext.get()
        position = (context.partitionId() if context is not None else 0) << _PARTITION_SHIFT
        shape = prepared_schema(
            self.rules, self.schema, keys_only=self.keys_only, marked=self.marked
        )
        for batch in batches:
            try:
                rows = self._prepared(pa.Table.from_batches([batch]), position, shape)
            except HoodooError as error:
                yield _error_row(shape, error)  # continues, so that the message counts all rows
                continue
            position += batch.num_rows
            yield from rows.combine_chunks().to_batches()

    def _prepared(self, incoming: pa.Table, position: int, shape: pa.Schema) -> pa.Table:
        columns: list[pa.ChunkedArray | pa.Array] = []
        if self.rules.adds_rows and self.rules.keys.carried:
            incoming, keys, paths = changed_addresses(incoming, self.rules.keys, self.schema)
        else:
            keys, paths = addresses(incoming, self.rules.keys, self.schema)
        marks = []
        if self.marked:
            refuse_other_keys(incoming, keys, None if self.rules.lookup.whole_table else paths)
            marks.append(incoming.column(RELOCATED_COLUMN))
            incoming = incoming.drop_columns([RELOCATED_COLUMN])
        if not (self.keys_only or self.rules.operation.traits.deletes_keys):
            own = fitted_rows(incoming, self.rules, self.schema)
            columns.extend(own.cast(transport_schema(self.schema)).columns)
        count = incoming.num_rows
        order = pa.array(np.arange(position, position + count))
        ones = pa.array(np.ones(count, np.int32))
        columns.extend([keys, paths, order, ones, pa.nulls(count, pa.string()), *marks])
        rows = pa.Table.from_arrays(columns, schema=shape)
        return rows if self.newest is None else self._combined(rows, self.newest)

    def _combined(self, rows: pa.Table, newest: MergeRules) -> pa.Table:
        codes, distinct = key_codes(rows, by_partition=not self.rules.lookup.whole_table)
        if distinct > len(codes) * _COMBINED_SHARE_MAX:
            return rows
        changes = Changes(rows=rows, kinds=np.zeros(len(codes), np.int8))
        stay = newest_positions(changes, codes, distinct, _LAST if self.keys_only else newest)
        counts = pa.array(np.bincount(codes)[codes[stay]].astype(np.int32))
        place = rows.schema.get_field_index(ROWS)
        return rows.take(pa.array(stay)).set_column(place, rows.schema.field(place), counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineRows:
    """Combine the rows of each key into one; a task keeps one piece and the rows of one key."""

    rules: RowRules
    avro_json: str  # the table's schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row for each key of this worker; the rows arrive sorted by key and order."""
        shape = pa.schema([])

        def good_rows() -> Iterator[pa.Table | HoodooError]:
            nonlocal shape
            for piece in _joined(batches):
                shape = piece.schema
                yield from _without_errors(piece)

        for rows in _one_row_a_key(good_rows(), self.rules, self.avro_json):
            if isinstance(rows, HoodooError):
                yield _error_row(shape, rows)
            else:
                yield from rows.combine_chunks().to_batches()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePartitions:
    """
    Yield the partitions of each batch, without duplicates; a bad batch becomes an error row.

    Tasks do this, because on the driver Spark converts timestamps to local time without a zone.
    """

    keys: KeySpec
    schema: pa.Schema  # the table's own columns, if it has any

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield partition paths; runs in a worker."""
        for batch in batches:
            try:
                rows = key_columns(pa.Table.from_batches([batch]), self.keys, self.schema)
                named = pc.unique(partition_paths(rows, self.keys))
            except HoodooError as error:
                yield _error_row(NAMED_PARTITIONS, error)
            else:
                columns = [named, pa.nulls(len(named), pa.string())]
                yield pa.RecordBatch.from_arrays(columns, schema=NAMED_PARTITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignBuckets:
    """Add the bucket number to each row, for a table with a bucket index."""

    assigner: BucketAssigner

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with their bucket numbers; runs in a worker."""
        for batch in batches:
            numbers = np.full(batch.num_rows, -1, np.int32)
            good = pc.is_valid(batch.column(KEY))  # the others do not fit the table
            keys = batch.select([KEY, PARTITION]).filter(good)
            numbers[np.asarray(good).astype(np.bool_)] = self.assigner.numbers(*keys.columns)
            yield batch.append_column(BUCKET_COLUMN, pa.array(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKeys:
    """Read the keys of base files, which rows name by number, partition path and path."""

    address: StorageAddress
    virtual_keys: VirtualKeys | None = None  # the rule for keys that files do not store
    schema: pa.Schema  # of the table
    ordering: tuple[str, ...] = ()  # fields to read in addition to the keys
    merged: Mapping[int, SliceWithLogs] = field(default_factory=dict)  # slices with logs, by number

    @property
    def answers(self) -> pa.Schema:
        """The schema of the rows that the task yields."""
        empty = self.schema.empty_table()
        fields = [
            pa.field(f"{OLD_ORDER}{number}", ordering_column(empty, name).type)
            for number, name in enumerate(self.ordering)
        ]
        return pa.schema([*FOUND_KEYS, *fields])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the keys with the number of their file; runs in a worker."""
        storage = self.address.open()
        for batch in batches:
            for file in batch.to_pylist():
                try:
                    indexed = IndexedFile(
                        file_id="",
                        path=file["path"],
                        virtual_keys=self.virtual_keys,
                        merged=self.merged.get(file["number"]),
                    )
                    rows = file_group_rows(storage, indexed, self.schema, self.ordering)
                except HoodooError as error:
                    raise TaskFailedError(error) from error
                for piece in rows.to_batches():
                    key, *ordering = piece.columns
                    columns = [
                        pa.repeat(pa.scalar(file["partition_path"]), piece.num_rows),
                        key.cast(pa.string()),
                        pa.repeat(pa.scalar(file["number"], pa.int32()), piece.num_rows),
                        *ordering,
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateKeys:
    """Look up the keys of a task in the record index; the task keeps its keys in memory."""

    address: StorageAddress
    files: RecordIndexFiles
    whole_table: bool  # else each key counts in its own partition

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the keys with partition and file id of their file groups; runs in a worker."""
        pieces = list(batches)
        if not pieces:
            return
        rows = pa.Table.from_batches(pieces)
        paths = None if self.whole_table else rows.column(PARTITION)
        try:
            index = self.files.open(self.address.open())
            found = index.locate(rows.column(KEY), paths)
        except HoodooError as error:
            raise TaskFailedError(error) from error
        found = found.rename_columns(LOCATED_KEYS.names).cast(LOCATED_KEYS)
        yield from found.combine_chunks().to_batches()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteGroups:
    """Write the file groups of rows sorted by target and order; return the write stats."""

    address: StorageAddress
    rules: RowRules
    tasks: Mapping[int, str]  # target -> the task as JSON

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row with the write stats of each file group; runs in a worker."""
        storage = self.address.open()
        for target, pieces in _groups(batches):
            stats, failure = None, None
            if target == ERROR_TARGET:
                for piece in pieces:
                    yield from map(_failed, piece.column(ERROR).to_pylist())
                continue
            task = FileGroupTask.from_json(self.tasks[target])
            arrived = _Arrived(self.rules.combining(task.avro_json) if self.rules.combine else None)
            for piece in pieces:
                arrived.add(piece)
            try:
                stats = self._write(storage, task, arrived.rows())
            except UnavailableError as error:
                raise TaskFailedError(error) from error
            except HoodooError as error:
                failure = error_to_json(error)
            answer = {
                TARGET: [target],
                "rows": [arrived.count],
                CHECKSUM: [arrived.checksum],
                "stats": [stats],
                ERROR: [failure],
            }
            yield pa.RecordBatch.from_pydict(answer, schema=ANSWERS)

    def _write(self, storage: Storage, task: FileGroupTask, rows: pa.Table) -> str:
        # Spark may run a task twice. Each attempt writes files with its own write token, and the
        # driver removes the files of the losing attempt before it commits.
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        token = f"{task.write_token.rpartition('-')[0]}-{attempt}"
        own = replace(task, write_token=token, merge=self.rules.merge)
        return _written_by_attempt(storage, own, rows)


def _written_by_attempt(storage: Storage, task: FileGroupTask, rows: pa.Table) -> str:
    stats = write_task(storage, task, rows)
    keep_if_awaited(storage, task.requested_time, stats)
    return stats_to_json(stats)


class _Arrived:
    """
    The rows of one file group while they arrive; rows of one key become one.

    Many rows of few keys would fill the memory. So they are combined each time that their bytes
    have doubled, where pieces may be combined.

    Args:
        rules: How rows of one key become one; None keeps all rows.
    """

    def __init__(self, rules: MergeRules | None) -> None:
        self.count = self.checksum = 0
        self._rules = rules
        self._pieces: list[pa.Table] = []
        self._bytes, self._bytes_max = 0, _COMBINED_BYTES_MIN

    def add(self, piece: pa.RecordBatch) -> None:
        """Add rows, in their order."""
        self.count += pc.sum(piece.column(piece.schema.get_field_index(ROWS))).as_py() or 0
        self.checksum ^= key_checksum(piece)
        own = piece.drop_columns([KEY_HASH, ROWS, ERROR])
        self._pieces.append(pa.Table.from_batches([own]))
        self._bytes += own.nbytes
        if self._bytes > self._bytes_max and self._rules and self._rules.combines_in_pieces:
            self._pieces = [self.rows()]
            self._bytes = self._pieces[0].nbytes
            self._bytes_max = max(_COMBINED_BYTES_MIN, 2 * self._bytes)

    def rows(self) -> pa.Table:
        """
        Return the rows, one for each key if they are combined.

        Errors: as ``combine_incoming``.
        """
        rows = pa.concat_tables(self._pieces)
        return rows if self._rules is None else combine_incoming(rows, self._rules)


# ---- New file groups of any number of rows, in one pass: files are chosen while rows arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNewGroups:
    """
    Write rows into new file groups, without a count of them before; return the write stats.

    A task keeps the rows of one file for each partition path in memory, and all of them up to a
    limit. Beyond it, the biggest part becomes a smaller file.
    """

    address: StorageAddress
    rules: RowRules
    schema: pa.Schema  # the table's own columns
    groups: NewGroups
    prepared: bool  # the rows come from ``PrepareRows``, sorted by key where they are combined

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row for each file group, and one for each bad batch; runs in a worker."""
        context = TaskContext.get()
        partition, attempt = (
            (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        )
        storage, rows = self.address.open(), _RowsByPartition(self.groups)
        is_good, files = True, 0
        try:
            for piece in self._pieces(batches):
                if isinstance(piece, HoodooError):  # continues, so that the message counts all rows
                    is_good = False
                    yield _new_group_row(error=piece)
                elif is_good:
                    for path, full in rows.add(piece):
                        yield self._written(storage, path, full, (partition, files, attempt))
                        files += 1
            for path, rest in rows.rest() if is_good else ():
                yield self._written(storage, path, rest, (partition, files, attempt))
                files += 1
        except UnavailableError as error:
            raise TaskFailedError(error) from error
        except HoodooError as error:
            yield _new_group_row(error=error)

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table | HoodooError]:
        """Yield the rows with their keys and partition paths, in pieces of many batches."""
        pieces = self._fitted(batches)
        if self.rules.combine:
            return _one_row_a_key(pieces, self.rules, self.groups.task.avro_json)
        return pieces

    def _fitted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table | HoodooError]:
        for piece in _joined(batches):
            if self.prepared:
                yield from _without_errors(piece, ERROR, ROWS, ORDER)
                continue
            try:
                keys, paths = addresses(piece, self.rules.keys, self.schema)
                own = fitted_rows(piece, self.rules, self.schema)
            except HoodooError as error:
                yield error
            else:
                yield own.append_column(KEY, keys).append_column(PARTITION, paths)

    def _written(
        self, storage: Storage, path: str, rows: pa.Table, numbers: tuple[int, int, int]
    ) -> pa.RecordBatch:
        partition, file, attempt = numbers
        number = (partition << _FILE_SHIFT) + file  # unique, and so are sequence numbers
        task = replace(
            self.groups.task,
            partition_path=path,
            file_id=f"{uuid.uuid4()}-0",
            write_token=f"{partition}-{file}-{attempt}",
            task_number=number,
            merge=self.rules.merge,  # with a plug-in's merger
        )
        stats = _written_by_attempt(storage, task, rows)
        return _new_group_row(task=task, rows=rows.num_rows, stats=stats)


class _RowsByPartition:
    """
    Rows of new file groups by partition path, until a file is full.

    It is full by its rows and by their bytes. In memory rows have mostly more bytes than in a file.
    """

    def __init__(self, groups: NewGroups) -> None:
        self._groups = groups
        self._pieces: dict[str, list[pa.Table]] = {}
        self._rows: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def add(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Add rows; yield the rows of full files with their partition path."""
        codes, paths = codes_of(rows.column(PARTITION))
        for code, positions in rows_by_number(codes).items():
            path = paths[code]
            mine = rows if len(paths) == 1 else rows.take(pa.array(positions))
            self._pieces.setdefault(path, []).append(mine)
            self._rows[path] = self._rows.get(path, 0) + mine.num_rows
            self._bytes[path] = self._bytes.get(path, 0) + mine.nbytes
            while self._rows[path] >= self._rows_of_a_file(path):
                yield path, self._taken(path)
        while sum(self._bytes.values()) > _KEPT_BYTES_MAX:
            biggest = max(self._bytes, key=self._bytes.__getitem__)
            yield biggest, self._taken(biggest)

    def rest(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield all rows that are left."""
        for path in sorted(self._pieces):
            yield path, self._taken(path)

    def _taken(self, path: str) -> pa.Table:
        """Take the rows of one file, at most."""
        full = self._rows_of_a_file(path)
        rows = pa.concat_tables(self._pieces.pop(path))
        kept = rows.slice(full)
        self._rows[path], self._bytes[path] = kept.num_rows, 0
        if kept.num_rows:
            # Slices keep the buffers of the whole.
            self._pieces[path] = [kept.take(pa.array(np.arange(kept.num_rows)))]
            self._bytes[path] = self._pieces[path][0].nbytes
        return rows.slice(0, full)

    def _rows_of_a_file(self, path: str) -> int:
        by_bytes = -(-self._groups.bytes_per_file * self._rows[path] // max(1, self._bytes[path]))
        return max(self._groups.rows_per_file, by_bytes)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join batches of Spark, which have 10,000 rows, into pieces for which Arrow's calls pay."""
    pieces: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            pieces.append(batch)
            rows, size = rows + batch.num_rows, size + batch.get_total_buffer_size()
        if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
            yield pa.Table.from_batches(pieces)
            pieces, rows, size = [], 0, 0
    if pieces:
        yield pa.Table.from_batches(pieces)


def _without_errors(prepared: pa.Table, *dropped: str) -> Iterator[pa.Table | HoodooError]:
    """Yield the errors among prepared rows, and the other rows without some columns."""
    rows = prepared
    failed = pc.is_valid(prepared.column(ERROR))
    if pc.any(failed).as_py():
        for text in prepared.column(ERROR).drop_null().to_pylist():
            yield error_from_json(text)
        rows = prepared.filter(pc.invert(failed))
    if rows.num_rows:
        yield rows.drop_columns(dropped)


def _one_row_a_key(
    pieces: Iterable[pa.Table | HoodooError], rules: RowRules, avro_json: str
) -> Iterator[pa.Table | HoodooError]:
    """Combine the rows of each key, which arrive sorted by it; some may be in the next pieces."""
    names = (KEY,) if rules.lookup.whole_table else (PARTITION, KEY)
    in_pieces = rules.combining(avro_json).combines_in_pieces
    held: pa.Table | None = None
    for rows in pieces:
        if isinstance(rows, HoodooError):
            yield rows
            continue
        together = rows if held is None else pa.concat_tables([held, rows])
        cut = _start_of_last(together, names)
        held = together.slice(cut)
        if cut:
            yield _combined_or_error(together.slice(0, cut), rules, avro_json)
        elif in_pieces:
            held = combined(together, rules, avro_json)  # many rows of one key
    if held is not None:
        yield _combined_or_error(held, rules, avro_json)


def _combined_or_error(rows: pa.Table, rules: RowRules, avro_json: str) -> pa.Table | HoodooError:
    try:
        return combined(rows, rules, avro_json)
    except HoodooError as error:
        return error


def _start_of_last(rows: pa.Table, names: tuple[str, ...]) -> int:
    """Return the position of the first row that has the key of the last row, in sorted rows."""
    same = np.ones(rows.num_rows, np.bool_)
    for name in names:
        column = rows.column(name)
        same &= np.asarray(pc.equal(column, column[-1])).astype(np.bool_)
    return int(np.argmax(same))


def _new_group_row(
    *,
    task: FileGroupTask | None = None,
    rows: int = 0,
    stats: str | None = None,
    error: HoodooError | None = None,
) -> pa.RecordBatch:
    row = {
        PARTITION: [None if task is None else task.partition_path],
        FILE_ID: [None if task is None else task.file_id],
        "rows": [rows],
        "stats": [stats],
        ERROR: [None if error is None else error_to_json(error)],
    }
    return pa.RecordBatch.from_pydict(row, schema=NEW_GROUPS)


def key_checksum(rows: pa.RecordBatch) -> int:
    """Return the exclusive or of the rows' key hashes, which does not depend on their order."""
    hashes = np.asarray(rows.column(rows.schema.get_field_index(KEY_HASH)))
    return int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0


def _failed(text: str) -> pa.RecordBatch:
    answer = {TARGET: [ERROR_TARGET], "rows": [0], CHECKSUM: [0], "stats": [None], ERROR: [text]}
    return pa.RecordBatch.from_pydict(answer, schema=ANSWERS)


def _groups(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each target with the pieces of its rows; the batches arrive sorted by target."""
    for target, pairs in groupby(_pieces(batches), key=itemgetter(0)):
        yield target, (piece for _, piece in pairs)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        targets = np.asarray(batch.column(batch.schema.get_field_index(TARGET)))
        if len(targets) == 0:
            continue
        starts = np.append(0, np.flatnonzero(np.diff(targets)) + 1)
        for start, end in pairwise([*starts.tolist(), len(targets)]):
            yield int(targets[start]), batch.slice(start, end - start)


def _error_row(schema: pa.Schema, error: HoodooError) -> pa.RecordBatch:
    columns = [pa.nulls(1, each.type) for each in schema]
    columns[schema.get_field_index(ERROR)] = pa.array([error_to_json(error)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


if TaskContext.get() is not None:
    # Spark's worker collects garbage after each task. Over all modules that takes 0.07 CPU seconds.
    gc.freeze()

"""Lookup indexes: find record keys in base files and logs, by partition or table-wide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.log_files import VisibleInstants
from filegroups.files.parquet import (
    Footer,
    read_base_file,
    read_keys,
    read_keys_between,
    read_keys_if,
    read_virtual_keys,
)
from filegroups.files.slice_reader import read_slice
from filegroups.index import IndexedFile, LookupRules, SliceWithLogs
from filegroups.index.key_filters import (
    FILTERS_AT_ONCE,
    FIRST_VERSION,
    UNUSABLE,
    footers_in_metadata,
    may_contain_any,
)
from filegroups.keys.keys import key_range
from filegroups.merge.rules import not_below, ordering_column
from filegroups.metadata_table.keys import FileGroupNumber
from filegroups.metadata_table.lag import Lag
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.reading.file_system_view import FileSystemView
from filegroups.schema.arrow_columns import codes_of, distinct_codes, one_array, rows_by_number
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from timeline.archived import ArchivedTimeline
from timeline.context import TableContext
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import PartitionKind
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Executor, Ports, Storage
from timeline.properties.properties_file import load_config
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot
from timeline.system import NullEvents
from timeline.truncation import read_truncation_point

# ---- Keys and rows of a file group
#
# The base file alone has them, unless log files with keys that count belong to it. Then the slice
# is merged as for a read, with only the columns needed.


def file_group_keys(storage: Storage, file: IndexedFile) -> pa.ChunkedArray:
    """
    Return the record keys of a file group.

    Raises:
        MissingFileError: A file is missing.
        CorruptTableError: A file is damaged or has no record keys.

    Outside: 1 open_input; those of ``read_slice`` if logs count.
    """
    if file.merged is not None:
        return file_group_rows(storage, file, pa.schema([])).column(0)
    if file.virtual_keys is not None:
        return read_virtual_keys(storage, file.path, file.virtual_keys)
    return read_keys(storage, file.path)


def file_group_rows(
    storage: Storage, file: IndexedFile, schema: pa.Schema, ordering: Sequence[str] = ()
) -> pa.Table:
    """
    Return the record keys of a file group and its rows' ordering values.

    Args:
        storage: Storage of the table.
        file: The file group.
        schema: Has the columns of the ordering fields, in the types of the result.
        ordering: The fields; a dotted name is a field inside a struct.

    Errors as ``file_group_keys``. Outside: 2 open_input; those of ``read_slice`` if logs count.
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
        keys = file_group_keys(storage, file)
        if not ordering:
            return pa.table([keys], names=[KEY_COLUMN])
        rows = read_base_file(storage, file.path, schema=wanted)
    values = [ordering_column(rows, name) for name in ordering]
    return pa.table([keys, *values], names=[KEY_COLUMN, *ordering])


def _merged(storage: Storage, merged: SliceWithLogs) -> pa.Table:
    # Corrupt blocks hold nothing that was committed; reads of the table report them.
    batches = read_slice(storage, NullEvents(), merged.slice, merged.read)
    return pa.Table.from_batches(list(batches), schema=merged.read.output_schema)


# ---- Find keys in the key columns of base files
#
# These indexes store nothing, so they are never outdated, whatever other engine writes. SIMPLE
# skips files whose key range does not overlap the batch's, and reads the key column of all others.
# BLOOM first checks each key against the footer's range and bloom filter, and reads only files that
# may hold one. Each worker reads one file at a time. If the metadata table has the filter of a file,
# its footer is not opened.


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
    Return the file id of each row, null for a new record.

    If several file groups hold a key (after plain inserts), the first candidate gets the row.

    Args:
        storage: Storage of the table.
        executor: Reads several files in parallel.
        base_files: Candidates by partition path, the preferred ones first.
        keys: Record keys of the rows; may repeat.
        partition_paths: The partition of each row; a key is looked for there only.
        filters: Whether to check ranges and bloom filters of footers before keys are read.

    Shapes: keys (n,), partition_paths (n,) -> file ids (n,), null = a new record.

    Raises:
        MissingFileError: A candidate was cleaned since; plan again.
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
            number = len(file_ids)
            lookups.append(_Lookup(each, distinct, limits, group=len(rows_of), number=number))
            file_ids.append(each.file_id)
        rows_of.append((rows, codes))
    found = np.full(len(keys), -1, np.int64)
    if filters:
        lookups = _not_excluded(executor, lookups)
    find = partial(_find_keys_by_filter if filters else _find_keys, storage)
    for lookup, hits in zip(lookups, executor.map(find, lookups), strict=True):
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
    is_checked: bool = False  # by a filter of the metadata table


def _find_keys(storage: Storage, lookup: _Lookup) -> npt.NDArray[np.intp]:
    """Return the positions in ``lookup.keys`` of the keys in the file."""
    file = lookup.file
    if file.virtual_keys is not None or file.merged is not None:
        return _positions(file_group_keys(storage, file), lookup.keys)
    held = read_keys_between(storage, file.path, *lookup.limits)
    return _positions(held, lookup.keys)


def _find_keys_by_filter(storage: Storage, lookup: _Lookup) -> npt.NDArray[np.intp]:
    """Do the same, but read the file's keys only if its footer does not exclude them all."""
    if lookup.is_checked or not _has_filter(lookup):
        return _find_keys(storage, lookup)
    held = read_keys_if(storage, lookup.file.path, partial(may_contain_any, lookup.keys))
    return _positions(held, lookup.keys)


def _has_filter(lookup: _Lookup) -> bool:
    return lookup.file.virtual_keys is None and lookup.file.merged is None


def _positions(held: pa.ChunkedArray | None, keys: pa.Array) -> npt.NDArray[np.intp]:
    if held is None:
        return np.zeros(0, np.intp)
    positions = pc.drop_null(pc.index_in(held, value_set=keys))
    return np.asarray(positions).astype(np.intp)


def _not_excluded(executor: Executor, lookups: Sequence[_Lookup]) -> list[_Lookup]:
    """Return the look-ups that the metadata table does not exclude, in their order."""
    asked: list[_Lookup] = []
    left: list[_Lookup] = []
    for one in lookups:
        (asked if one.file.filters is not None and _has_filter(one) else left).append(one)
    for start in range(0, len(asked), FILTERS_AT_ONCE):
        some = asked[start : start + FILTERS_AT_ONCE]
        left += (
            one
            for one in executor.map(_checked, list(zip(some, _footers(some), strict=True)))
            if one is not None
        )
    return sorted(left, key=lambda one: one.number)


def _checked(pair: tuple[_Lookup, Footer | None]) -> _Lookup | None:
    """Return a look-up, None if its file has none of the keys."""
    lookup, footer = pair
    if footer is None:
        return lookup
    if not may_contain_any(lookup.keys, footer):
        return None
    return replace(lookup, is_checked=footer.bloom_base64 is not None)


def _footers(lookups: Sequence[_Lookup]) -> Sequence[Footer | None]:
    source = lookups[0].file.filters
    paths = [one.file.path for one in lookups]
    return [None] * len(paths) if source is None else footers_in_metadata(source, paths)


# ---- The global lookup: a key is unique in the whole table
#
# A row whose key exists in another partition either moves there or updates the old row in its
# partition. A row that does not replace the old row must not move it: a late row in event-time
# order, and a delete. Such a row goes to the old row's file group, where the merge decides.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTargets:
    """The file group of each row, and the rows that leave another file group for it."""

    partition_paths: pa.Array  # of each row's file group
    file_ids: pa.Array  # null for a row that is new there
    relocated: Mapping[FileGroupId, npt.NDArray[np.intp]]  # positions of rows that leave it


def find_in_table(
    storage: Storage,
    executor: Executor,
    base_files: Mapping[str, Sequence[IndexedFile]],
    rows: pa.Table,
    rules: LookupRules,
    *,
    ordering_fields: Sequence[str] = (),
    deletes: npt.NDArray[np.bool_] | None = None,
    located: pa.Table | None = None,
) -> RowTargets:
    """
    Find each row's file group in the whole table.

    Args:
        storage: Storage of the table.
        executor: Reads several files in parallel.
        base_files: The newest base file of every file group, by partition path.
        rows: With record key, partition path and the ordering fields; keys are unique.
        rules: How to look keys up, and whether rows move.
        ordering_fields: Compared left to right if they decide; empty in commit-time order.
        deletes: Rows that delete; they never move.
        located: Answer of the record index for the keys, instead of the keys in files. Each of its
            file groups is among the files.

    Shapes: rows (n), deletes (n,) -> (n,) each.

    Raises:
        MissingFileError: A candidate was cleaned since; plan again.
        CorruptTableError: A candidate is damaged.

    Outside: at most 1 open_input a file, 1 more for files of moving rows if order decides.
    """
    files = [(path, each) for path, some in base_files.items() for each in some]
    keys, own_paths = (
        rows.column(KEY_COLUMN),
        one_array(pc.cast(rows.column(PARTITION_COLUMN), pa.string())),
    )
    if located is None:
        everything = [replace(each, file_id=str(number)) for number, (_, each) in enumerate(files)]
        one_place = pa.repeat(pa.scalar(""), rows.num_rows)
        found = tag(storage, executor, {"": everything}, keys, one_place, filters=rules.filters)
        numbers = pc.cast(found, pa.int64())
    else:
        numbers = _numbers_located(located, files).take(rows_located(located, keys))
    where = pa.array([path for path, _ in files], pa.string()).take(numbers)
    file_ids = pa.array([each.file_id for _, each in files], pa.string()).take(numbers)
    elsewhere = np.asarray(pc.fill_null(pc.not_equal(where, own_paths), False)).astype(np.bool_)
    moving = elsewhere & np.bool_(rules.moves_rows)
    if deletes is not None:
        moving &= ~deletes
    leaving: dict[FileGroupId, npt.NDArray[np.intp]] = {}
    placed = np.asarray(pc.fill_null(numbers, -1)).astype(np.int64)
    candidates = np.flatnonzero(moving)
    for number, part in rows_by_number(placed[candidates]).items():
        path, file = files[number]
        positions = candidates[part]
        if ordering_fields:
            newer = _replaces(storage, file, rows.take(pa.array(positions)), ordering_fields)
            moving[positions[~newer]] = False
            positions = positions[newer]
        if len(positions):
            leaving[FileGroupId(path, file.file_id)] = positions
    stays = pa.array(elsewhere & ~moving)
    return RowTargets(
        partition_paths=pc.if_else(stays, where, own_paths),
        file_ids=pc.if_else(pa.array(moving), pa.scalar(None, pa.string()), file_ids),
        relocated=leaving,
    )


def rows_located(
    located: pa.Table,
    keys: pa.Array | pa.ChunkedArray,
    partition_paths: pa.Array | pa.ChunkedArray | None = None,
) -> pa.Array:
    """
    Return for each key its row in the answer of a record index; null if it has none.

    Args:
        located: As ``RecordIndex.locate`` returns it.
        keys: Record keys.
        partition_paths: Their partitions, if a key counts in its own partition only.

    Shapes: (n,) each -> (n,).
    """
    known = located.column("record_key")
    if partition_paths is not None:
        known = _joined(located.column("partition_path"), known)
        keys = _joined(partition_paths, keys)
    return one_array(pc.index_in(keys, value_set=one_array(known)))


def _joined(paths: pa.ChunkedArray, names: pa.ChunkedArray) -> pa.Array:
    """Return texts that are equal only if both parts are: no path has the separator."""
    text = pa.string()
    parts = (one_array(pc.cast(paths, text)), one_array(pc.cast(names, text)))
    return one_array(pc.binary_join_element_wise(*parts, "\0"))


def _numbers_located(located: pa.Table, files: Sequence[tuple[str, IndexedFile]]) -> pa.Array:
    """Return the number of the file group in each row of a record index's answer."""
    groups = pa.array([f"{path}\0{each.file_id}" for path, each in files], pa.string())
    there = _joined(located.column("partition_path"), located.column("file_id"))
    return pc.cast(pc.index_in(there, value_set=groups), pa.int64())


def _replaces(
    storage: Storage, file: IndexedFile, rows: pa.Table, ordering_fields: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Return which rows are not older than the rows of their keys in a base file."""
    held = file_group_rows(storage, file, rows.schema, ordering_fields)
    older = held.take(pc.index_in(rows.column(KEY_COLUMN), value_set=held.column(KEY_COLUMN)))
    newer = [ordering_column(rows, name) for name in ordering_fields]
    return not_below(newer, older.columns[1:])


# ---- Slices whose logs may hold a key that their base file lacks (CMP-4)
#
# A key that a log deleted stays in the file group until a compaction removes it. A write that began
# before that compaction completed still finds the key there and writes it again, to a log on the
# new base file. From then on no base file has the key. An index that reads base files only would
# insert it a second time.


def may_resurrect(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice]
) -> Iterator[FileSlice]:
    """
    Yield the slices with a log that began before their base file existed.

    Outside: nothing while the base files' instants are on the active timeline; else 1 list, 1 get,
    and the archived timeline for a log that began before the newest archived instant completed.
    """
    archived: InstantTime | None = None
    for one in slices:
        if one.base_file is None or not one.log_files:
            continue
        began = min(log.instant_time for log in one.log_files)
        base_time = one.base_file.requested_time
        completed = view.snapshot.completions.get(base_time)
        if completed is None:
            if archived is None:
                archived = read_truncation_point(context.ports.storage).time
            if archived and began >= archived:
                continue
            completed = view.snapshot.archived.completions.get(base_time)
        if completed is not None and began < completed:
            yield one


# ---- The record index in a table's metadata table: the file group of each key

_INDEX: Final = PartitionKind.RECORD_INDEX.value
_FOUND: Final = ("record_key", "partition_path", "file_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIndex:
    """The record index of a table, or one of each of its partitions, as of one snapshot."""

    metadata: MetadataTable

    @property
    def is_per_partition(self) -> bool:
        """
        Whether there is an index of each partition, in which a key counts in that partition only.

        Errors and calls outside: as ``MetadataTable.slices``.
        """
        places = self.metadata.slices(_INDEX)
        return any(place.data_partition is not None for place in places)

    @property
    def files(self) -> RecordIndexFiles:
        """The files, to send them. Errors and calls outside: as ``MetadataTable.slices``."""
        return RecordIndexFiles(slices=self.metadata.slices(_INDEX), visible=self.metadata.visible)

    def locate(
        self,
        keys: pa.Array | pa.ChunkedArray,
        partition_paths: pa.Array | pa.ChunkedArray | None = None,
    ) -> pa.Table:
        """
        Return the file groups of keys; unknown keys are left out.

        Args:
            keys: No nulls; may repeat.
            partition_paths: Their partitions. An index per partition looks up each key in its own
                one only. None: in all.

        Shapes: keys (n,) -> columns ``record_key``, ``partition_path``, ``file_id``, in no order.
        In an index per partition, a key has a row for each partition that has it.

        Raises:
            CorruptTableError: A file of the index is damaged.
            MissingFileError: A file was deleted since; open the index again.
            UnsupportedTableError: This release does not read the index's version.

        Outside: 1 list, 1 open_input for each file of the file groups that the keys belong to.
        """
        if partition_paths is None or not self.is_per_partition:
            found = self.metadata.look_up(_INDEX, keys)
        else:
            codes, paths = codes_of(partition_paths)
            found = pa.concat_tables(
                self.metadata.look_up(_INDEX, keys.take(pa.array(rows)), paths[code])
                for code, rows in rows_by_number(codes).items()
            )
        return found.select(["key", "partition_path", "file_id"]).rename_columns(list(_FOUND))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIndexFiles:
    """The files of a record index and the instants that count, for another process."""

    slices: Mapping[FileGroupNumber, FileSlice]
    visible: VisibleInstants

    def open(self, storage: Storage) -> RecordIndex:
        """Return the index, read by the storage of this process."""
        nothing = Snapshot(
            active=ActiveTimeline.of([]),
            head=0,
            commits=CommitReader(storage),
            history=ArchivedTimeline(storage, NullEvents()),
        )
        return RecordIndex(
            metadata=MetadataTable(
                storage=storage,
                partitions=(_INDEX,),
                own=nothing,
                visible=self.visible,
                lag=Lag(),
                _slices={_INDEX: dict(self.slices)},
            )
        )


def has_record_index(config: TableConfig) -> bool:
    """Return whether the record index is complete and maintained, by the table's properties."""
    built = config.raw.get("hoodie.table.metadata.partitions", "")
    return _INDEX in (one.strip() for one in built.split(","))


def open_record_index(
    storage: Storage, config: TableConfig, snapshot: Snapshot, *, ports: Ports | None = None
) -> RecordIndex | None:
    """
    Return the record index of a table; None if there is no complete one, or none for the snapshot.

    The index does not serve a snapshot if the metadata table lacks a commit of it, or if a
    compaction merged later commits into the index. The result is valid only if
    ``has_record_index`` still holds after the lookup.

    Args:
        storage: Storage of the table.
        config: Its configuration, which lists the built parts of the metadata table.
        snapshot: Its pending instants do not count, even if completed in the metadata table.
        ports: As of ``open_metadata_table``.

    Errors and calls outside: as ``open_metadata_table``.
    """
    if not has_record_index(config) or config.table_version < FIRST_VERSION:
        return None
    metadata = open_metadata_table(storage, config, snapshot, ports=ports)
    if metadata is None or metadata.is_newer or not metadata.lag.is_trusted:
        return None
    return RecordIndex(metadata=metadata)


def file_groups_by_index(
    context: TableContext,
    snapshot: Snapshot,
    locate: Callable[[RecordIndex], frozenset[FileGroupId]],
    *,
    whole_table: bool,
) -> frozenset[FileGroupId] | None:
    """
    Look up the keys of a write in the record index; None to look them up in files (MDT-20).

    Args:
        context: The table.
        snapshot: The base snapshot of the write.
        locate: Looks the keys up and returns the file groups that the index names.
        whole_table: Whether a key is unique in the table. The index must have the same scope: one
            of the table has one place for a key that several partitions have.

    Outside: as ``open_record_index``, 2 get, 1 list. The event ``record_index.not_used`` says why
    files are read.
    """
    storage = context.ports.storage
    config = load_config(storage)
    try:
        index = open_record_index(storage, config, snapshot, ports=context.ports)
        if index is None:
            note_unused_index(context, "behind" if has_record_index(config) else "no_index")
            return None
        if config.partition_fields and index.is_per_partition == whole_table:
            note_unused_index(context, "other_scope")
            return None
        located = locate(index)
    except UNUSABLE as error:
        note_unused_index(context, error.kind)
        return None
    # An index that was dropped meanwhile, and perhaps is being built again, lacks keys.
    if not has_record_index(load_config(storage)):
        note_unused_index(context, "no_index")
        return None
    return located


def note_unused_index(context: TableContext, reason: str) -> None:
    """Say that keys are looked up in files, although the write asks for the record index."""
    context.ports.events.emit("record_index.not_used", reason=reason)

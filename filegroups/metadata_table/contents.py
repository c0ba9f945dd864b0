"""
The records that a write or a clean adds to the metadata table.

Those of a write follow from its files alone: its new files, and the slices that it updated or
replaced. So a writer makes them before its commit, and they stay right whatever other writers
commit. A record index and a secondary index need the keys of each changed file group before and
after. For them each thread reads one file group at a time, and only its key and indexed columns.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.keys.keys import plain_column
from filegroups.metadata_table.column_stats import (
    ColumnStats,
    can_bound,
    column_stats_records,
    deleted_column_stats,
    merge_stats,
    partition_stats_records,
    unknown_stats,
)
from filegroups.metadata_table.file_group_contents import (
    FileGroupChange,
    FileGroupContents,
    IndexedTable,
    difference,
    file_group_contents,
)
from filegroups.metadata_table.keys import bloom_filter_keys
from filegroups.metadata_table.records import (
    ALL_PARTITIONS,
    BLOOM_FILTERS,
    COLUMN_STATS,
    FILES,
    NO_PARTITION,
    RECORD_INDEX,
    SECONDARY_INDEX,
)
from filegroups.schema.arrow_columns import one_array
from timeline.errors import InvariantError
from timeline.model.commit_metadata import (
    LOG_COMPACT,
    CommitMetadata,
    FileGroupId,
    WriteStat,
)
from timeline.model.file_names import join, parse_base_file_name, parse_log_file_name
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant_time import InstantTime, TimelineZone
from timeline.model.metadata_table import PartitionKind
from timeline.ports.ports import Executor, Storage

#: Operations whose files have the rows of other writes.
KEEPS_KEYS: Final = frozenset({"COMPACT", LOG_COMPACT})
_CLUSTER: Final = "CLUSTER"
# File groups whose records a build has in memory at the same time.
_FILE_GROUPS_MIN: Final = 4
_FILE_GROUPS_MAX: Final = 100
_BATCH_BYTES: Final = 32 * 1024 * 1024  # of their data files

#: Keys that a partition of the metadata table forgets, with the table's partition of each.
DELETES: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("partition_path", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContents:
    """
    What one partition of the metadata table gets.

    ``records`` has the flat schema of its kind. ``deletes`` has schema `DELETES`; its keys become a
    delete block. Only a record index needs the partition path there; elsewhere it is empty. No key
    is in both, except in a record index of each partition, with other partitions of the table.
    """

    records: pa.Table
    deletes: pa.Table = field(default_factory=DELETES.empty_table)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.records.num_rows or self.deletes.num_rows)


# ---- A write


def contents_of_commit(
    storage: Storage,
    executor: Executor,
    table: IndexedTable,
    commit: CommitMetadata,
    slices: Mapping[FileGroupId, FileSlice],
    *,
    requested_time: InstantTime,
    zone: TimelineZone,
    same_keys: Container[FileGroupId] = frozenset(),
) -> dict[str, PartitionContents]:
    """
    Return the records of a write, a compaction or a clustering.

    Args:
        storage: Storage of the table; the new files exist.
        executor: Maps over the file groups.
        table: The indexes to update.
        commit: The metadata that will complete the instant.
        slices: The merged slices before the write, as it read them: of each file group that it
            updates or replaces. Not needed for services without a record or secondary index.
        requested_time: Of the instant.
        zone: Of the table's timeline.
        same_keys: File groups in which the record index has all written keys already; without
            deletes, their keys are not compared.

    Returns:
        What each partition of ``table.partitions`` gets; partitions without a rule (an expression
        index) are left out.

    Raises:
        InvariantError: ``slices`` lacks a file group.
        MissingFileError: A file vanished.
        CorruptTableError: A file is damaged.

    Outside: for each file group the reads of its new files, and of its slices before and after if
    keys are compared.
    """
    changes = changes_of(table, commit, slices, same_keys)
    work = partial(file_group_contents, storage, table, requested_time)
    found = list(zip(changes, executor.map(work, changes), strict=True))
    made = {PartitionKind.FILES.value: _files_of(commit)}
    made |= _statistics(table, found)
    if table.has(PartitionKind.BLOOM_FILTERS):
        blooms = [
            (change.file_group.partition_path, *each)
            for change, got in found
            for each in got.blooms
        ]
        made[PartitionKind.BLOOM_FILTERS.value] = _blooms(blooms, requested_time)
    made |= _keys(table, [(change, got, requested_time) for change, got in found], zone)
    return {name: each for name, each in made.items() if name in table.partitions}


def changes_of(
    table: IndexedTable,
    commit: CommitMetadata,
    slices: Mapping[FileGroupId, FileSlice],
    same_keys: Container[FileGroupId] = frozenset(),
) -> list[FileGroupChange]:
    """
    Return the file groups that a commit changes: the units of work of ``file_group_contents``.

    Arguments, errors: as ``contents_of_commit``.
    """
    compares = table.indexes_keys and commit.operation_type not in KEEPS_KEYS
    changes = []
    for path, stats in sorted(commit.partition_to_write_stats.items()):
        by_id: dict[str, list[WriteStat]] = {}
        for stat in stats:
            by_id.setdefault(stat.file_id, []).append(stat)
        for file_id, listed in sorted(by_id.items()):
            group = FileGroupId(path, file_id)
            is_same = group in same_keys and not any(stat.num_deletes for stat in listed)
            change = FileGroupChange(
                file_group=group,
                stats=tuple(listed),
                before=slices.get(group),
                compares_keys=compares and not (is_same and not table.secondary),
            )
            if compares and change.before is None and change.has_previous:
                raise _no_slice(group)
            changes.append(change)
    if compares and commit.operation_type != _CLUSTER:  # all keys of a clustering come back
        changes += _replaced(commit, slices)
    return changes


def _replaced(
    commit: CommitMetadata, slices: Mapping[FileGroupId, FileSlice]
) -> list[FileGroupChange]:
    changes = []
    for path, file_id in sorted(commit.replaced_file_groups()):
        group = FileGroupId(path, file_id)
        if group not in slices:
            raise _no_slice(group)
        changes.append(FileGroupChange(file_group=group, before=slices[group]))
    return changes


def _no_slice(group: FileGroupId) -> InvariantError:
    return InvariantError(
        f"the records of a file group need its slice before the write; report it: {group}",
        path=str(group),
    )


# ---- Records of all file groups


def _files_of(commit: CommitMetadata) -> PartitionContents:
    sizes: dict[tuple[str, str], int] = {}
    for path, stats in sorted(commit.partition_to_write_stats.items()):
        for stat in stats:
            listed = {stat.path or "": stat.file_size_in_bytes} | dict(stat.cdc_stats or {})
            for file, size in listed.items():
                name = file.rpartition("/")[2]
                if name:
                    sizes[path, name] = max(size, sizes.get((path, name), 0))
    replaced = commit.partition_to_replace_file_ids or {}
    paths = sorted({*(path for path, _ in sizes), *(path for path in replaced if replaced[path])})
    rows = [(ALL_PARTITIONS, path or NO_PARTITION, 0, False) for path in paths]
    rows += [(path or NO_PARTITION, name, size, False) for (path, name), size in sizes.items()]
    return PartitionContents(records=_files(rows))


def _files(rows: Sequence[tuple[str, str, int, bool]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(FILES)
    return pa.table([list(each) for each in columns], schema=FILES)


def _statistics(
    table: IndexedTable, found: Sequence[tuple[FileGroupChange, FileGroupContents]]
) -> dict[str, PartitionContents]:
    version = table.stats_version
    files = [
        (change.file_group.partition_path, name, stats)
        for change, got in found
        for name, stats in got.stats.items()
    ]
    made = {}
    if table.has(PartitionKind.COLUMN_STATS):
        records = column_stats_records(files, version)
        made[PartitionKind.COLUMN_STATS.value] = PartitionContents(records=records)
    if table.has(PartitionKind.PARTITION_STATS):
        of_partition: dict[str, list[tuple[str, tuple[ColumnStats, ...]]]] = {}
        for path, name, stats in files:
            of_partition.setdefault(path, []).append((name, stats))
        for path in sorted(table.older_partitions):
            of_partition.setdefault(path, [])
        records = partition_stats_records(
            ((path, _of_partition(table, path, each)) for path, each in of_partition.items()),
            version,
        )
        made[PartitionKind.PARTITION_STATS.value] = PartitionContents(records=records)
    return made


def _of_partition(
    table: IndexedTable, path: str, files: Sequence[tuple[str, tuple[ColumnStats, ...]]]
) -> list[ColumnStats]:
    """
    Return the statistics of the new files of a partition.

    Files without rows count nothing. A base file without a column may have other values there than
    nulls when it is read, so its bounds are the widest. So are those of a column that the commit
    adds, if the partition has older files (MDT-13).
    """
    found: dict[str, list[ColumnStats]] = {name: [] for name in table.stats_columns}

    def lacks(columns: Iterable[str], rows: int) -> None:
        for column in sorted(columns):
            values = plain_column(table.read.file_schema.empty_table(), column)
            if values is not None and can_bound(values.type, table.stats_version):
                found[column].append(unknown_stats(column, values.type, rows))

    if path in table.older_partitions:
        lacks(found.keys() & table.added_columns, 1)
    for name, stats in files:
        for each in stats:
            if each.value_count:
                found[each.column].append(each)
        if parse_base_file_name(name) is None:
            continue
        rows = max((each.value_count for each in stats), default=1)
        if rows:
            lacks(found.keys() - {each.column for each in stats}, rows)
    merged = (merge_stats(pieces) for pieces in found.values())
    return [each for each in merged if each is not None]


def _blooms(
    blooms: Sequence[tuple[str, str, str, str]], requested_time: InstantTime, *, gone: bool = False
) -> PartitionContents:
    paths = pa.array([path for path, _, _, _ in blooms], pa.string())
    names = pa.array([name for _, name, _, _ in blooms], pa.string())
    columns = [
        bloom_filter_keys(paths, names),
        pa.array([kind for _, _, kind, _ in blooms], pa.string()),
        pa.repeat(pa.scalar(requested_time), len(blooms)),
        pa.array([text.encode() for _, _, _, text in blooms], pa.binary()),
        pa.repeat(pa.scalar(gone), len(blooms)),
    ]
    return PartitionContents(records=pa.Table.from_arrays(columns, schema=BLOOM_FILTERS))


def _keys(
    table: IndexedTable,
    found: Sequence[tuple[FileGroupChange, FileGroupContents, InstantTime]],
    zone: TimelineZone,
) -> dict[str, PartitionContents]:
    """Return the records of the record index and of secondary indexes."""
    made = {}
    if table.has(PartitionKind.RECORD_INDEX):
        made[PartitionKind.RECORD_INDEX.value] = _record_index(table, found, zone)
    for name in table.secondary:
        gained = _joined(got.pairs[name][0] for _, got, _ in found if name in got.pairs)
        lost = _joined(got.pairs[name][1] for _, got, _ in found if name in got.pairs)
        made[name] = changed_pairs(gained, difference(lost, gained))
    return made


def changed_pairs(gained: pa.Array, lost: pa.Array) -> PartitionContents:
    """Return the part of a secondary index: the keys that it gains, and those that it loses."""
    gained, lost = pc.unique(gained), pc.unique(lost)
    present, nowhere = pa.repeat(pa.scalar(False), len(gained)), pa.repeat(pa.scalar(""), len(lost))
    return PartitionContents(
        records=pa.Table.from_arrays([gained, present], schema=SECONDARY_INDEX),
        deletes=pa.Table.from_arrays([lost, nowhere], schema=DELETES),
    )


def _joined(arrays: Iterable[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.string()), *arrays])


def _record_index(
    table: IndexedTable,
    found: Sequence[tuple[FileGroupChange, FileGroupContents, InstantTime]],
    zone: TimelineZone,
) -> PartitionContents:
    """Return the record index's part. A key that one file group loses and another gains moves."""
    puts, gone = [RECORD_INDEX.empty_table()], [DELETES.empty_table()]
    for change, got, time in found:
        path, file_id = change.file_group.partition_path, change.file_group.file_id
        count = len(got.inserted)
        if count:
            columns = [
                got.inserted,
                pa.repeat(pa.scalar(path), count),
                pa.repeat(pa.scalar(file_id), count),
                pa.repeat(pa.scalar(int(zone.wall_ms(time)), pa.int64()), count),
            ]
            puts.append(pa.Table.from_arrays(columns, schema=RECORD_INDEX))
        paths = pa.repeat(pa.scalar(path), len(got.deleted))
        gone.append(pa.Table.from_arrays([got.deleted, paths], schema=DELETES))
    inserted, deleted = pa.concat_tables(puts), pa.concat_tables(gone)
    inserted, places = _last_of_each(inserted, table)
    deleted, lost = _last_of_each(deleted, table)
    deleted = deleted.filter(pc.invert(pc.is_in(lost, value_set=places)))
    return PartitionContents(records=inserted, deletes=deleted)


def _last_of_each(rows: pa.Table, table: IndexedTable) -> tuple[pa.Table, pa.Array]:
    """Return rows with distinct places in the index, and the places: of equal ones the last."""
    places = one_array(rows.column("key"))
    if table.is_per_partition:
        paths = one_array(rows.column("partition_path"))
        places = pc.binary_join_element_wise(paths, places, "\0")
    codes = np.asarray(places.dictionary_encode().indices)
    _, first = np.unique(codes[::-1], return_index=True)
    kept = pa.array(np.sort(len(codes) - 1 - first))
    return rows.take(kept), places.take(kept)


# ---- A partition of the table as it is committed


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    """
    A partition of the table in a snapshot: what the metadata table lists and indexes of it.

    ``files`` are all committed files with their sizes in bytes, also of older slices and replaced
    file groups, and change logs. ``slices`` are the newest ones of its visible file groups.
    """

    path: str
    files: Mapping[str, int]
    slices: tuple[FileSlice, ...]


def contents_of_partition(
    storage: Storage,
    executor: Executor,
    table: IndexedTable,
    partition: CommittedPartition,
    *,
    requested_time: InstantTime,
    zone: TimelineZone,
) -> Iterator[dict[str, PartitionContents]]:
    """
    Yield the records of one partition of the table, to build partitions of the metadata table.

    Each item has the records of some file groups, so they bound the memory, not the partition.

    Args:
        storage: Storage of the table.
        executor: Maps over the file groups.
        table: The indexes to build.
        partition: The partition of the table.
        requested_time: Of the instant that builds them.
        zone: Of the table's timeline.

    Yields:
        As ``contents_of_commit``, without the record that lists the partitions
        (``listed_partitions``). A key of a record index may be in several items; the last counts.

    Raises:
        MissingFileError: A clean deleted a file meanwhile; list the partition again.
        CorruptTableError: A file is damaged.

    Outside: the reads of each data file for statistics and bloom filters; those of each slice for
    keys.
    """
    if table.has(PartitionKind.FILES):
        key = partition.path or NO_PARTITION
        rows = [(key, name, size, False) for name, size in sorted(partition.files.items())]
        yield {PartitionKind.FILES.value: PartitionContents(records=_files(rows))}
    if table.stats_columns or table.has(PartitionKind.BLOOM_FILTERS):
        yield from _of_files(storage, executor, table, partition, requested_time)
    if not table.indexes_keys:
        return
    for slices in _batches(partition.slices, _bytes_of_slice):
        found = _all_keys(storage, executor, table, slices, requested_time)
        yield _keys(table, found, zone)


def _of_files(
    storage: Storage,
    executor: Executor,
    table: IndexedTable,
    partition: CommittedPartition,
    requested_time: InstantTime,
) -> Iterator[dict[str, PartitionContents]]:
    """Yield statistics and bloom filters of the files, then the statistics of the partition."""
    work = partial(file_group_contents, storage, table, requested_time)
    current = {file.name for one in partition.slices for file in _files_of_slice(one)}
    whole: dict[str, ColumnStats] = {}
    for some in _batches(_by_file_group(partition), _bytes_of_change):
        found = list(zip(some, executor.map(work, some), strict=True))
        made = _statistics(table, found)
        made.pop(PartitionKind.PARTITION_STATS.value, None)
        if table.has(PartitionKind.BLOOM_FILTERS):
            blooms = [(partition.path, *each) for _, got in found for each in got.blooms]
            made[PartitionKind.BLOOM_FILTERS.value] = _blooms(blooms, requested_time)
        yield made
        newest = [pair for _, got in found for pair in got.stats.items() if pair[0] in current]
        for each in _of_partition(table, partition.path, newest):
            known = whole.get(each.column)
            whole[each.column] = each if known is None else merge_stats([known, each]) or each
    if table.has(PartitionKind.PARTITION_STATS) and current:
        records = partition_stats_records(
            [(partition.path, list(whole.values()))], table.stats_version
        )
        yield {PartitionKind.PARTITION_STATS.value: PartitionContents(records=records)}


def statistics_of_slices(
    storage: Storage,
    executor: Executor,
    table: IndexedTable,
    slices: Sequence[FileSlice],
    requested_time: InstantTime,
) -> pa.Table:
    """
    Return the records of ``partition_stats`` for slices, which widen those of their partitions.

    Outside: the reads of the files of each slice for statistics.
    """
    index = PartitionKind.PARTITION_STATS.value
    of_partition: dict[str, list[FileSlice]] = {}
    for one in slices:
        of_partition.setdefault(one.file_group.partition_path, []).append(one)
    made = []
    for path, own in of_partition.items():
        sizes = {file.name: file.size_bytes for one in own for file in _files_of_slice(one)}
        partition = CommittedPartition(path=path, files=sizes, slices=tuple(own))
        for found in _of_files(storage, executor, table, partition, requested_time):
            made += [found[index].records] if index in found else []
    return pa.concat_tables([COLUMN_STATS.empty_table(), *made])


_Work = TypeVar("_Work")


def _batches(some: Sequence[_Work], size: Callable[[_Work], int]) -> Iterator[list[_Work]]:
    """Yield file groups in batches of limited size; a few at least, for the executor's threads."""
    batch: list[_Work] = []
    total = 0
    for one in some:
        batch.append(one)
        total += size(one)
        is_big = len(batch) >= _FILE_GROUPS_MIN and total >= _BATCH_BYTES
        if is_big or len(batch) >= _FILE_GROUPS_MAX:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _bytes_of_slice(one: FileSlice) -> int:
    return sum(file.size_bytes for file in _files_of_slice(one))


def _bytes_of_change(one: FileGroupChange) -> int:
    return sum(stat.file_size_in_bytes for stat in one.stats)


def listed_partitions(paths: Iterable[str]) -> PartitionContents:
    """Return the record that lists the partitions of the table."""
    rows = [(ALL_PARTITIONS, path or NO_PARTITION, 0, False) for path in sorted(paths)]
    return PartitionContents(records=_files(rows))


def distinct_keys(records: pa.Table, table: IndexedTable) -> pa.Table:
    """Return the records of a record index without those whose key is in a later record, too."""
    return _last_of_each(records, table)[0]


def _by_file_group(partition: CommittedPartition) -> list[FileGroupChange]:
    by_id: dict[str, list[WriteStat]] = {}
    for name, size in sorted(partition.files.items()):
        parsed = parse_base_file_name(name) or parse_log_file_name(name)
        if parsed is not None:
            path = join(partition.path, name)
            stat = WriteStat(file_id=parsed.file_id, path=path, file_size_in_bytes=size)
            by_id.setdefault(parsed.file_id, []).append(stat)
    return [
        FileGroupChange(
            file_group=FileGroupId(partition.path, file_id),
            stats=tuple(stats),
            compares_keys=False,
        )
        for file_id, stats in sorted(by_id.items())
    ]


def _files_of_slice(one: FileSlice) -> list[BaseFile | LogFile]:
    return [*([one.base_file] if one.base_file else []), *one.log_files]


def _all_keys(
    storage: Storage,
    executor: Executor,
    table: IndexedTable,
    slices: Sequence[FileSlice],
    requested_time: InstantTime,
) -> list[tuple[FileGroupChange, FileGroupContents, InstantTime]]:
    """Return all keys of the slices, as if each file group were new."""
    changes = [FileGroupChange(file_group=one.file_group, before=one) for one in slices]
    work = partial(file_group_contents, storage, table, requested_time)
    found = []
    for change, got in zip(changes, executor.map(work, changes), strict=True):
        pairs = {name: (lost, gained) for name, (gained, lost) in got.pairs.items()}
        added = FileGroupContents(inserted=got.deleted, pairs=pairs)
        time = change.before.base_instant_time if change.before is not None else requested_time
        found.append((change, added, time))
    return found


# ---- Cleans


def contents_of_clean(
    table: IndexedTable,
    deleted: Mapping[str, Sequence[str]],
    *,
    requested_time: InstantTime,
) -> dict[str, PartitionContents]:
    """
    Return the records of a clean.

    Args:
        table: The indexes to update.
        deleted: Names of the deleted files by partition path.
        requested_time: Of the clean.
    """
    rows = [
        (path or NO_PARTITION, name, 0, True)
        for path, names in sorted(deleted.items())
        for name in sorted(names)
    ]
    made = {PartitionKind.FILES.value: PartitionContents(records=_files(rows))}
    made |= _without_files(table, deleted, requested_time)
    return {name: each for name, each in made.items() if name in table.partitions}


def _without_files(
    table: IndexedTable, deleted: Mapping[str, Sequence[str]], requested_time: InstantTime
) -> dict[str, PartitionContents]:
    """Return the records that delete statistics and bloom filters of files."""
    files = [(path, name) for path, names in sorted(deleted.items()) for name in sorted(names)]
    bases = [(path, name) for path, name in files if parse_base_file_name(name) is not None]
    made = {}
    if table.stats_columns:
        logs = [(path, name) for path, name in files if _is_log(name)]
        records = deleted_column_stats([*bases, *logs], table.stats_columns, table.stats_version)
        made[PartitionKind.COLUMN_STATS.value] = PartitionContents(records=records)
    if table.has(PartitionKind.BLOOM_FILTERS):
        blooms = [(path, name, "", "") for path, name in bases]
        made[PartitionKind.BLOOM_FILTERS.value] = _blooms(blooms, requested_time, gone=True)
    return made


def _is_log(name: str) -> bool:
    parsed = parse_log_file_name(name)
    return parsed is not None and not parsed.is_cdc

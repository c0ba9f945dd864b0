"""
The part of a commit's records in the metadata table that comes from one file group.

Statistics and bloom filters describe its new files. A record index and a secondary index need its
keys before and after the write; only key columns and indexed columns are read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.bloom import BloomFilter, BloomSettings
from filegroups.files.log_files import keys_of_log
from filegroups.files.parquet import read_footer, read_keys, read_virtual_keys
from filegroups.files.slice_reader import SliceRead, read_slice
from filegroups.keys.keys import plain_column
from filegroups.metadata_table.column_stats import (
    ColumnStats,
    base_file_stats,
    columns_to_index,
    log_file_stats,
)
from filegroups.metadata_table.index_definitions import IndexDefinition, bad_definitions_error
from filegroups.metadata_table.keys import IndexVersion, secondary_keys
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.java_text import java_texts
from filegroups.schema.schema import KEY_COLUMN
from timeline.model.commit_metadata import (
    NO_PREVIOUS_COMMIT,
    FileGroupId,
    WriteStat,
)
from timeline.model.file_names import parse_base_file_name
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.ports.ports import Storage, with_cached_reads
from timeline.system import NullEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedTable:
    """
    The indexes of a table, and how its slices are read: a plain value.

    Args:
        partitions: Folders of the metadata table to update.
        definitions: From ``index.json``, by name.
        read: How the table's slices are read; ``columns`` and filters are not used. ``visible``
            is needed only for log files of table version 6, which have blocks of several instants.
        avro_json: The table's schema without meta columns.
        version: Version of an index without a definition: V1 in table version 8.
        added_columns: The columns with statistics that the commit adds to the schema (MDT-13).
        older_partitions: Partitions with files from before, which lack those columns.
    """

    partitions: tuple[str, ...]
    definitions: Mapping[str, IndexDefinition]
    read: SliceRead
    avro_json: str
    version: IndexVersion = IndexVersion.V2
    added_columns: frozenset[str] = frozenset()
    older_partitions: frozenset[str] = frozenset()

    def has(self, kind: PartitionKind) -> bool:
        """Return whether a partition of a kind without a name is updated."""
        return kind.value in self.partitions

    @property
    def stats_columns(self) -> tuple[str, ...]:
        """The columns with statistics; none if no partition with statistics is updated."""
        if not (self.has(PartitionKind.COLUMN_STATS) or self.has(PartitionKind.PARTITION_STATS)):
            return ()
        defined = self.definitions.get(PartitionKind.COLUMN_STATS.value)
        if defined is not None and defined.source_fields:
            return defined.source_fields
        return columns_to_index(self.avro_json, self.stats_version)

    @property
    def stats_version(self) -> IndexVersion:
        """The version of ``column_stats`` and ``partition_stats``."""
        defined = self.definitions.get(PartitionKind.COLUMN_STATS.value)
        return self.version if defined is None else defined.version

    @property
    def is_per_partition(self) -> bool:
        """Whether the record index has its own file groups for each partition of the table."""
        defined = self.definitions.get(PartitionKind.RECORD_INDEX.value)
        return defined is not None and defined.is_per_partition

    @property
    def indexes_keys(self) -> bool:
        """Whether the records depend on the keys of file groups before and after a write."""
        return self.has(PartitionKind.RECORD_INDEX) or bool(self.secondary)

    @property
    def secondary(self) -> Mapping[str, str]:
        """
        The column of each secondary index, by the folder of the index.

        Raises:
            CorruptTableError: An index has no definition (``bad_index_definitions``).
        """
        names = (name for name in self.partitions if kind_of(name) is PartitionKind.SECONDARY_INDEX)
        return {name: self._secondary_column(name) for name in names}

    def _secondary_column(self, name: str) -> str:
        defined = self.definitions.get(name)
        if defined is None or not defined.source_fields:
            raise bad_definitions_error(f"it does not name the column of the index {name!r}", name)
        return defined.source_fields[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupChange:
    """
    A file group that a write changed, as a value that an executor can send to another process.

    Args:
        file_group: The file group.
        stats: Its new files; none if it was replaced.
        before: Its slice before; None if it is new.
        compares_keys: Whether keys may have changed.
    """

    file_group: FileGroupId
    stats: tuple[WriteStat, ...] = ()
    before: FileSlice | None = None
    compares_keys: bool = True

    @property
    def has_previous(self) -> bool:
        """Whether a new base file replaces an older one, or a new log file has updates."""
        return any(
            stat.prev_commit not in ("", NO_PREVIOUS_COMMIT)
            if _is_base(stat)
            else stat.num_update_writes > 0
            for stat in self.stats
        )

    def after(self, requested_time: InstantTime) -> FileSlice | None:
        """Return its slice after the write; None if it was replaced."""
        path, logs = self.file_group.partition_path, []
        for stat in self.stats:
            name = _name(stat)
            base = BaseFile.found(path, name, stat.file_size_in_bytes)
            if base is not None:
                return FileSlice(
                    file_group=self.file_group,
                    base_instant_time=base.requested_time,
                    base_file=base,
                )
            log = LogFile.found(path, name, stat.file_size_in_bytes)
            if log is not None:
                logs.append(log)
        if not logs:
            return None
        if self.before is None:
            return FileSlice(
                file_group=self.file_group,
                base_instant_time=requested_time,
                base_file=None,
                log_files=tuple(logs),
            )
        merged = sorted((*self.before.log_files, *logs), key=lambda log: log.order)
        return replace(self.before, log_files=tuple(merged))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupContents:
    """
    The part of the records that comes from one file group.

    Args:
        stats: The statistics of each new file, by its name.
        blooms: Name, kind and base64 text of the bloom filter of each new base file.
        inserted: Record keys that the file group has after, not before.
        deleted: Record keys that it had before.
        pairs: For each secondary index the keys that it gains and those that it loses.
    """

    stats: Mapping[str, tuple[ColumnStats, ...]] = field(default_factory=dict)
    blooms: tuple[tuple[str, str, str], ...] = ()
    inserted: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    deleted: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    pairs: Mapping[str, tuple[pa.Array, pa.Array]] = field(default_factory=dict)


def file_group_contents(
    storage: Storage, table: IndexedTable, requested_time: InstantTime, change: FileGroupChange
) -> FileGroupContents:
    """
    Return the part of a commit's records that comes from one file group.

    Errors: as ``contents_of_commit``. Outside: 1 open_kept of a new base file for each of
    statistics, bloom filter and keys; those of ``read_slice`` for slices whose keys are compared.
    """
    storage = with_cached_reads(storage)  # the write has just read or written most files
    path = change.file_group.partition_path
    stats: dict[str, tuple[ColumnStats, ...]] = {}
    blooms = []
    for stat in change.stats:
        base = BaseFile.found(path, _name(stat), stat.file_size_in_bytes)
        log = LogFile.found(path, _name(stat), stat.file_size_in_bytes)
        if base is not None and table.has(PartitionKind.BLOOM_FILTERS):
            blooms.append((base.name, *_bloom_of(storage, table, base)))
        if not table.stats_columns:
            continue
        if base is not None:
            of_base = base_file_stats(storage, base.path, table.stats_columns)
            if of_base is not None:
                stats[base.name] = of_base
        elif log is not None:
            stats[log.name] = log_file_stats(storage, log, table.stats_columns)
    found = FileGroupContents(stats=stats, blooms=tuple(blooms))
    if not change.compares_keys:
        return found
    return _with_keys(storage, table, requested_time, change, found)


def _bloom_of(storage: Storage, table: IndexedTable, base: BaseFile) -> tuple[str, str]:
    """Return kind and text of a base file's bloom filter; made of the keys if it has none."""
    footer = read_footer(storage, base.path, kept=True)
    if footer.bloom_base64 is not None:
        return footer.bloom_kind, footer.bloom_base64
    made = BloomFilter(BloomSettings().fitted(footer.rows))
    keys = table.read.keys
    made.add(read_virtual_keys(storage, base.path, keys) if keys else read_keys(storage, base.path))
    return made.kind, made.to_base64()


def _with_keys(
    storage: Storage,
    table: IndexedTable,
    requested_time: InstantTime,
    change: FileGroupChange,
    found: FileGroupContents,
) -> FileGroupContents:
    secondary = dict(table.secondary)
    if not secondary and _is_rewrite_of_known_keys(change):
        return found
    columns = tuple(dict.fromkeys(secondary.values()))
    before = slice_rows(storage, table, change.before, columns)
    if not secondary and _only_updates(storage, table, change, before):
        return found
    after = slice_rows(storage, table, change.after(requested_time), columns)
    pairs = {}
    for name, column in secondary.items():
        version = table.definitions[name].version
        old, new = (secondary_pairs(rows, column, version) for rows in (before, after))
        pairs[name] = difference(new, old), difference(old, new)
    old, new = _unique_keys(before), _unique_keys(after)
    new = pc.unique(pa.concat_arrays([new, _written_keys(storage, table, change)]))
    return replace(found, inserted=difference(new, old), deleted=difference(old, new), pairs=pairs)


@dataclass(frozen=True, slots=True)
class _VisibleLogs:
    """The instants whose log blocks count: the visible ones, and those of the slice's log files."""

    visible: Container[InstantTime]
    own: frozenset[InstantTime]

    def __contains__(self, time: object) -> bool:
        return time in self.own or time in self.visible


def _written_keys(storage: Storage, table: IndexedTable, change: FileGroupChange) -> pa.Array:
    """
    Return the keys that the new logs write, also those that an older delete hides.

    The delete has a greater ordering value. It is forgotten if a compaction that is planned already
    merges it without the new logs: then the rows are visible, so the record index must have them.
    """
    path, read = change.file_group.partition_path, table.read
    logs = (LogFile.found(path, _name(stat), stat.file_size_in_bytes) for stat in change.stats)
    found = [
        one_array(keys_of_log(storage, log, read.file_schema, read.keys, with_deleted=False))
        for log in logs
        if log is not None
    ]
    return pa.concat_arrays([pa.array([], pa.string()), *found])


def keys_in_logs(storage: Storage, table: IndexedTable, one: FileSlice) -> pa.Array:
    """
    Return the keys of a slice's logs whose last entry writes a row, also rows that a delete hides.

    An index has them, because a compaction may forget the delete.
    """
    read, found = table.read, pa.array([], pa.string())
    for log in one.log_files:
        touched, written = (
            one_array(
                keys_of_log(storage, log, read.file_schema, read.keys, with_deleted=with_deleted)
            )
            for with_deleted in (True, False)
        )
        found = pc.unique(pa.concat_arrays([difference(found, touched), written]))
    return found


def _is_rewrite_of_known_keys(change: FileGroupChange) -> bool:
    """Return whether a base file without logs got a new version that has the same keys."""
    if change.before is None or change.before.base_file is None or change.before.log_files:
        return False
    return bool(change.stats) and all(
        _is_base(stat) and not (stat.num_inserts or stat.num_deletes) for stat in change.stats
    )


def _only_updates(
    storage: Storage, table: IndexedTable, change: FileGroupChange, before: pa.Table
) -> bool:
    """Return whether new logs have only records whose keys the slice had: then no key changes."""
    if change.before is None or not change.stats or any(map(_is_base, change.stats)):
        return False
    if any(stat.num_deletes for stat in change.stats):
        return False
    held = before.column(KEY_COLUMN)
    path, schema = change.file_group.partition_path, table.read.file_schema
    for stat in change.stats:
        log = LogFile.found(path, _name(stat), stat.file_size_in_bytes)
        if log is not None:
            keys = keys_of_log(storage, log, schema, table.read.keys)
            if not pc.all(pc.is_in(keys, value_set=held), min_count=0).as_py():
                return False
    return True


def slice_rows(
    storage: Storage, table: IndexedTable, one: FileSlice | None, columns: tuple[str, ...]
) -> pa.Table:
    """Return the record keys of a slice, and columns by their (dotted) names."""
    read = table.read
    keys = read.keys
    heads = (name.partition(".")[0] for name in (*(keys.fields if keys else ()), *columns))
    known = set(read.file_schema.names)
    names = tuple(dict.fromkeys((KEY_COLUMN, *(head for head in heads if head in known))))
    if one is not None and one.base_file is not None and not (one.log_files or columns):
        path = one.base_file.path
        held = read_virtual_keys(storage, path, keys) if keys else read_keys(storage, path)
        return pa.table([held], names=[KEY_COLUMN])
    own = frozenset(log.instant_time for log in one.log_files) if one else frozenset()
    read = replace(
        read,
        columns=names,
        filter=None,
        base_filter=None,
        finds_keys=False,
        visible=_VisibleLogs(read.visible, own),
        whole_file_groups=None,
        whole_filter=None,
    )
    batches = [] if one is None else list(read_slice(storage, NullEvents(), one, read))
    rows = pa.Table.from_batches(batches, schema=read.output_schema)
    if keys is not None and rows.num_rows:
        rows = keys.fill(rows)
    values = [plain_column(rows, name) for name in columns]
    present = [each for each in zip(columns, values, strict=True) if each[1] is not None]
    return pa.table(
        [rows.column(KEY_COLUMN), *(values for _, values in present)],
        names=[KEY_COLUMN, *(name for name, _ in present)],
    )


def secondary_pairs(rows: pa.Table, column: str, version: IndexVersion) -> pa.Array:
    """
    Return the keys of a secondary index for rows; its value is the stored one as Java's text.

    An index of version V1 has no nulls.
    """
    values: Any = pa.nulls(rows.num_rows, pa.string())
    if column in rows.column_names:
        values = rows.column(column)
        if pa.types.is_date32(values.type):
            values = pc.cast(values, pa.int32())  # as in Spark's rows: days
        values = java_texts(values, column, "unsupported_key_type")
    keys = rows.column(KEY_COLUMN)
    if version is IndexVersion.V1:
        present = pc.is_valid(values)
        values, keys = values.filter(present), keys.filter(present)
    return pc.unique(secondary_keys(values, keys))


def _unique_keys(rows: pa.Table) -> pa.Array:
    return pc.unique(one_array(rows.column(KEY_COLUMN)))


def difference(these: pa.Array, those: pa.Array) -> pa.Array:
    """Return the values of one array that another lacks. Shapes: (n,), (m,) -> (k,)."""
    return these.filter(pc.invert(pc.is_in(these, value_set=those)))


def _name(stat: WriteStat) -> str:
    return (stat.path or "").rpartition("/")[2]


def _is_base(stat: WriteStat) -> bool:
    return parse_base_file_name(_name(stat)) is not None

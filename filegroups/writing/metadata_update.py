"""
Write what a commit adds to the metadata table, before its slot (MDT-1, MDT-2).

The records follow from the files of the commit. Each goes to the file group that its key hashes to;
each changed file group of the metadata table gets one log file. No reader sees it before the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import pyarrow as pa

from filegroups.files.log_files import VisibleInstants
from filegroups.files.slice_reader import SliceRead
from filegroups.keys.keys import plain_column
from filegroups.merge.rules import MergeRules
from filegroups.metadata_table.column_stats import columns_to_index, evolved_columns
from filegroups.metadata_table.contents import PartitionContents, contents_of_commit
from filegroups.metadata_table.file_group_contents import IndexedTable
from filegroups.metadata_table.index_definitions import (
    IndexDefinition,
    read_index_definitions,
    write_index_definitions,
)
from filegroups.metadata_table.keys import IndexVersion
from filegroups.metadata_table.log_files import MetadataWrite, metadata_log_files
from filegroups.reading.scan import computed_keys, view_of
from filegroups.schema.column_ids import schema_history
from filegroups.schema.schema import TableSchema, with_meta
from filegroups.supported import refuse_unmaintained
from filegroups.writing.pending_commit import WrittenFiles
from timeline.commit.begin import StartedWrite
from timeline.commit.commit_lock import PendingCommit, acquire_exclusively
from timeline.commit.section import protocol_of
from timeline.context import TableContext
from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.commit_metadata import CommitMetadata, FileGroupId
from timeline.model.file_names import METADATA_TABLE, join
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import (
    MetadataLogFile,
    MetadataUpdate,
    PartitionKind,
    kind_of,
    parse_metadata_file_name,
)
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Storage
from timeline.snapshot import Snapshot

_OF_SERVICES = "0-0-0"
#: So few bytes take about one request's time; others may wait for the lock meanwhile.
_DURING_REFRESH_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFileGroups:
    """
    The file groups and index definitions of a metadata table; they change with its partitions only.

    ``file_ids`` are those of each partition, sorted.
    """

    config: TableConfig
    definitions: Mapping[str, IndexDefinition]
    file_ids: Mapping[str, tuple[str, ...]]

    @staticmethod
    def read(context: TableContext, config: TableConfig) -> MetadataFileGroups:
        """
        Read them. Outside: 1 get; 1 list for each partition, all at the same time.

        Raises:
            MetadataTableOnError: As ``refuse_unmaintained``.
            CorruptTableError: A partition has no file group, or the definitions are damaged.
        """
        refuse_unmaintained(config)
        storage, partitions = context.ports.storage, sorted(config.metadata_partitions)

        folders = [join(METADATA_TABLE, name) for name in partitions]
        definitions, listed = context.ports.concurrently(
            partial(read_index_definitions, storage),
            partial(context.ports.for_each, storage.names, folders),
        )
        found = map(file_ids_of, listed)
        return MetadataFileGroups(
            config=config,
            definitions=definitions,
            file_ids=dict(zip(partitions, found, strict=True)),
        )


def file_ids_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the file ids of base and log files of a partition of the metadata table, sorted."""
    parsed = map(parse_metadata_file_name, names)
    return tuple(sorted({one[0] for one in parsed if one is not None}))


class MetadataWriter:
    """
    Writes the metadata table's part of one commit, again after each rebase.

    Args:
        context: The table.
        started: The write.
    """

    def __init__(self, context: TableContext, started: StartedWrite) -> None:
        self._context = context
        self._begun = started
        self._attempts = count()
        self._written: tuple[MetadataLogFile, ...] = ()
        self._uncreated: Sequence[tuple[MetadataLogFile, bytes]] = ()
        self._unsynced: set[str] = set()  # folders

    def with_update(self, pending: PendingCommit, written: WrittenFiles) -> PendingCommit:
        """
        Return the pending commit with its update, whose log files exist and are durable (MDT-2).

        It first deletes those of an earlier attempt. Few bytes are created during the refresh of
        the commit, where the protocol allows it. Outside: nothing without a metadata table.
        Else the deletes; the reads of ``contents_of_commit``; 1 open_output for each changed file
        group of the metadata table, all at the same time.

        Raises:
            MetadataTableOnError, CorruptTableError: As ``MetadataFileGroups.read``.
            StorageUnavailableError: The storage failed; discard the write.
        """
        context = self._context
        config = context.metadata_table.config or context.config
        if not config.metadata_table_on:
            return pending
        groups = with_new_columns(
            context, _file_groups(context, config), written.schema_before, written.schema.avro_json
        )
        for file in self._written:
            context.ports.storage.delete(file.path)
            self._unsynced.add(join(METADATA_TABLE, file.partition))
        snapshot, visible = self._begun.snapshot, self._visible(written)
        table = indexed_table(context, groups, written.schema.avro_json, snapshot, visible)
        table = _with_older_partitions(context, table, written.schema_before, snapshot)
        if table.indexes_keys and context.non_blocking:
            raise UnsupportedTableError(
                "non-blocking writers cannot keep a record or secondary index: use "
                "optimistic_concurrency_control (hoodie.write.concurrency.mode), or drop these "
                f"indexes: {', '.join(_indexes_of_keys(table))}",
                kind="index_non_blocking",
            )
        contents = contents_of_commit(
            context.ports.storage,
            context.ports.executor,
            table,
            pending.metadata,
            self._slices(written, pending.metadata) if table.indexes_keys else {},
            requested_time=self._begun.requested_time,
            zone=context.zone,
            same_keys={task.file_group for task, _ in written.stats if task.indexed},
        )
        logs = log_files(
            context,
            groups,
            contents,
            requested_time=self._begun.requested_time,
            write_token=f"{next(self._attempts)}-0-0",
        )
        update = update_of(config, (file for file, _ in logs))
        self._written, self._uncreated = update.files, logs
        pending = replace(
            pending,
            metadata_update=update,
            metadata_state=config.metadata_state,
            create_files=self._create,
        )
        few = sum(file.size_bytes for file in update.files) <= _DURING_REFRESH_BYTES_MAX
        if few and protocol_of(context).creates_during_refresh:
            return pending
        self._create()
        return replace(pending, create_files=None)

    def _create(self) -> None:
        """Create the log files that do not exist yet, and make the changes of names durable."""
        storage, logs, self._uncreated = self._context.ports.storage, self._uncreated, ()
        self._context.ports.for_each(partial(_put, storage), logs)
        # A power failure must not bring a deleted log file back, nor lose a new one.
        self._unsynced |= {join(METADATA_TABLE, file.partition) for file, _ in logs}
        storage.sync_folders(sorted(self._unsynced))
        self._unsynced.clear()

    def _visible(self, written: WrittenFiles) -> VisibleInstants:
        """Return the instants whose log blocks count, also of logs that a rebase brought."""
        seen = VisibleInstants.of(self._begun.snapshot)
        logs = (log for task, _ in written.stats if task.log for log in task.log.logs)
        return replace(seen, times=seen.times | {log.instant_time for log in logs})

    def _slices(
        self, written: WrittenFiles, commit: CommitMetadata
    ) -> dict[FileGroupId, FileSlice]:
        """Return the slices below the commit: of the file groups that it updates or replaces."""
        found: dict[FileGroupId, FileSlice] = {}
        view = view_of(self._context, self._begun.snapshot)
        for path, file_id in commit.replaced_file_groups():
            one = view.latest_slice(FileGroupId(path, file_id))
            if one is not None:
                found[one.file_group] = one
        for task, _ in written.stats:
            before = task.previous_slice
            if before is not None:
                found[before.file_group] = before
        return found


def _file_groups(context: TableContext, config: TableConfig) -> MetadataFileGroups:
    """
    Return the cached file groups; read them if the partitions changed (MDT-5).

    They are never cached if the record index has file groups of each partition of the table: a
    commit creates those of a new partition, and a restore deletes them.
    """
    cached = context.metadata_table.file_groups
    if (
        not isinstance(cached, MetadataFileGroups)
        or cached.config.metadata_state != config.metadata_state
        or any(one.is_per_partition for one in cached.definitions.values())
    ):
        cached = MetadataFileGroups.read(context, config)
        context.metadata_table.file_groups = cached
    return cached


def _indexes_of_keys(table: IndexedTable) -> list[str]:
    kinds = (PartitionKind.RECORD_INDEX, PartitionKind.SECONDARY_INDEX)
    return [name for name in table.partitions if kind_of(name) in kinds]


def with_new_columns(
    context: TableContext, groups: MetadataFileGroups, before: str, after: str
) -> MetadataFileGroups:
    """
    Return the file groups with an index of columns that has the columns that a write adds (MDT-13).

    Java adds them to an index of the first columns, and ignores files that lack their statistics.
    A definition that a rejected write changed does no harm. Outside: nothing without new columns,
    else the exclusive lock, 1 get and 1 write.

    Args:
        context: The table.
        groups: The file groups of its metadata table.
        before: The table's schema; empty before its first rows.
        after: The schema that the write gives it.
    """
    name, storage = PartitionKind.COLUMN_STATS.value, context.ports.storage
    defined = groups.definitions.get(name)
    if before == after or name not in groups.file_ids or defined is None:
        return groups
    old = before or TableSchema.from_arrow(pa.schema([]), "t").avro_json

    def grown(one: IndexDefinition) -> tuple[str, ...]:
        if not before and set(one.source_fields) != set(columns_to_index(old, one.version)):
            return one.source_fields  # chosen by name before the first rows
        return evolved_columns(one.source_fields, old, after, one.version)

    if grown(defined) == defined.source_fields:
        return groups
    with acquire_exclusively(context, "index new columns"):
        definitions = read_index_definitions(storage)
        now = definitions.get(name, defined)
        now = replace(now, source_fields=grown(now))
        write_index_definitions(storage, [now])
    changed = replace(groups, definitions={**definitions, name: now})
    context.metadata_table.file_groups = changed
    return changed


def _with_older_partitions(
    context: TableContext, table: IndexedTable, before: str, snapshot: Snapshot
) -> IndexedTable:
    """
    Return the indexes of a write, with the partitions whose files lack columns that it adds.

    Another attempt finds the columns in the index, so the schemas decide. Outside: nothing without
    new columns, else the files of the snapshot.
    """
    if not before or not table.has(PartitionKind.PARTITION_STATS):
        return table
    known = with_meta(TableSchema.from_avro(before).arrow).empty_table()
    now = table.read.file_schema.empty_table()
    added = {
        name
        for name in table.stats_columns
        if plain_column(known, name) is None and plain_column(now, name) is not None
    }
    if not added:
        return table
    slices = view_of(context, snapshot).latest_slices()
    return replace(
        table,
        added_columns=frozenset(added),
        older_partitions=frozenset(one.file_group.partition_path for one in slices),
    )


def indexed_table(
    context: TableContext,
    groups: MetadataFileGroups,
    avro_json: str,
    snapshot: Snapshot,
    visible: VisibleInstants,
) -> IndexedTable:
    """
    Return the table's indexes, and how slices are read for them.

    Args:
        context: The table.
        groups: The file groups of its metadata table.
        avro_json: The schema that the commit writes.
        snapshot: Before the commit.
        visible: The instants whose log blocks count before the commit.
    """
    return IndexedTable(
        partitions=tuple(groups.file_ids),
        definitions=groups.definitions,
        read=SliceRead(
            file_schema=with_meta(TableSchema.from_avro(avro_json).arrow),
            columns=(),
            rules=MergeRules.of(context.config.merge, avro_json),
            keys=computed_keys(context),
            visible=visible,
            history=schema_history(context.ports.storage, snapshot),
        ),
        avro_json=avro_json,
        version=IndexVersion.V1 if groups.config.table_version < 9 else IndexVersion.V2,
    )


class ServiceUpdate:
    """
    The metadata table's part of a service's slot; its log files are in the slot (MDT-9).

    Several processes may execute one plan, and each draws the time of a clean in its section. So no
    log file may exist before the slot decides.

    Args:
        context: The table.
        avro_json: The table's schema; None if it has none yet.
        contents: Returns the records of the service, for the indexes and a requested time.
    """

    def __init__(
        self,
        context: TableContext,
        avro_json: str | None,
        contents: Callable[[IndexedTable, InstantTime], Mapping[str, PartitionContents]],
    ) -> None:
        self._context = context
        self._avro_json = avro_json or TableSchema.from_arrow(pa.schema([]), "t").avro_json
        self._contents = contents
        self._made: dict[tuple[InstantTime, tuple[tuple[str, ...], str]], MetadataUpdate] = {}

    def prepare(self, requested_time: InstantTime) -> None:
        """Make the update before the section, for the partitions as they are known (PUB-1)."""
        self._of(self._context.metadata_table.config or self._context.config, requested_time)

    def of(
        self, config: TableConfig, requested_time: InstantTime, *, slot_number: int
    ) -> MetadataUpdate | None:
        """
        Return the update under these properties for a slot; None without a metadata table.

        Its log files have names of their own: those of a void slot of the same plan may still
        appear, and are deleted (MDT-10). Outside: nothing if ``prepare`` made it, else as ``MetadataFileGroups.read`` and the reads of
        ``contents``.

        Raises:
            MetadataTableOnError, CorruptTableError: As ``MetadataFileGroups.read``.
        """
        update = self._of(config, requested_time)
        return None if update is None else update.with_token(f"0-0-{slot_number}")

    def _of(self, config: TableConfig, requested_time: InstantTime) -> MetadataUpdate | None:
        context = self._context
        if not config.metadata_table_on:
            return None
        context.metadata_table.config = config
        groups = _file_groups(context, config)
        key = (requested_time, config.metadata_state)
        if key not in self._made:
            snapshot = context.snapshot()
            visible = VisibleInstants.of(snapshot)
            table = indexed_table(context, groups, self._avro_json, snapshot, visible)
            logs = log_files(
                context,
                groups,
                self._contents(table, requested_time),
                requested_time=requested_time,
                write_token=_OF_SERVICES,
            )
            self._made[key] = update_of(
                config, [replace(file, content=data) for file, data in logs]
            )
        return self._made[key]


def log_files(
    context: TableContext,
    groups: MetadataFileGroups,
    contents: Mapping[str, PartitionContents],
    *,
    requested_time: InstantTime,
    write_token: str,
) -> list[tuple[MetadataLogFile, bytes]]:
    """
    Return records of an instant as log files of the metadata table, with their bytes.

    Args:
        context: The table.
        groups: The file groups of its metadata table.
        contents: The records by partition.
        requested_time: The instant's.
        write_token: Unique among the attempts of the instant.

    Raises:
        CorruptTableError: A partition has no file group (``metadata_partition_empty``).
    """
    for partition, each in contents.items():
        defined = groups.definitions.get(partition)
        is_split = defined is not None and defined.is_per_partition
        if not (is_split or each.is_empty or groups.file_ids[partition]):
            raise CorruptTableError(
                "a partition of the metadata table has no file group: run 'hoodoo metadata rebuild "
                f"TABLE {partition}'",
                kind="metadata_partition_empty",
                path=join(METADATA_TABLE, partition),
            )
    write = MetadataWrite(
        requested_time=requested_time,
        write_token=write_token,
        table_version=groups.config.table_version,
        created_ms=int(context.zone.wall_ms(requested_time)),
    )
    return list(metadata_log_files(contents, groups.file_ids, groups.definitions, write))


def update_of(config: TableConfig, files: Iterable[MetadataLogFile]) -> MetadataUpdate:
    """Return the update of log files that were made under these properties."""
    return MetadataUpdate(
        table_version=config.table_version,
        partitions=tuple(sorted(config.metadata_partitions)),
        files=tuple(files),
    )


def _put(storage: Storage, log: tuple[MetadataLogFile, bytes]) -> None:
    with storage.open_output(log[0].path) as sink:
        sink.write(log[1])

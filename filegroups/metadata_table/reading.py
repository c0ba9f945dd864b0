"""
Read the metadata table as of a snapshot of its table.

The metadata table is a merge-on-read table with a timeline of its own. A commit of the table has a
deltacommit of the same requested time there, which completes first. So two timelines decide what
counts (``getValidInstantTimestamps`` in Java Hudi): the instant is completed in the metadata table,
and not pending on the table. Instants that only the metadata table has count, too: those that
built it, its services, and the deltacommit after a restore.

A commit that began after the snapshot is on neither timeline of the reader. Such instants are found
by one more listing of the table's timeline, and do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from io import BytesIO
from itertools import groupby
from typing import IO, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.hfile import open_hfile
from filegroups.files.log_files import (
    InputFiles,
    VisibleInstants,
    find_blocks,
    opened,
    read_blocks,
)
from filegroups.metadata_table.decode import (
    SHAPE_OF_KIND,
    decode_block,
    decode_hfile,
    decode_together,
)
from filegroups.metadata_table.index_definitions import (
    IndexDefinition,
    bad_definitions_error,
    read_index_definitions,
)
from filegroups.metadata_table.keys import (
    FileGroupNumber,
    IndexVersion,
    parse_file_group_id,
    secondary_keys,
    shards,
    split_secondary_keys,
)
from filegroups.metadata_table.lag import Lag, hidden_instants, lag_of, newest_merge
from filegroups.metadata_table.lost_files import NEEDS_ALL_FILES, refuse_lost_files
from filegroups.metadata_table.merge import live_files, merge_layers, merge_logs
from filegroups.metadata_table.recent import FILE_BYTES_MAX, RECENT
from filegroups.metadata_table.records import (
    ALL_PARTITIONS,
    BLOOM_FILTERS,
    COLUMN_STATS,
    NO_PARTITION,
)
from filegroups.schema.arrow_columns import one_array, rows_by_number
from timeline.archived import ArchivedTimeline
from timeline.codecs.log_blocks import BlockType, ByteSource, BytesSource, LogBlock
from timeline.errors import (
    CorruptTableError,
    HoodooError,
    MissingFileError,
    SnapshotExpiredError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import CommitMetadata, FileGroupId
from timeline.model.file_names import METADATA_TABLE, PROPERTIES, check_relative_path
from timeline.model.file_slice import BaseFile, FileSlice, LogFile, merged_slice, slice_files
from timeline.model.instant import Instant
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.model.table_config import TableConfig
from timeline.ports.ports import ObjectMissingError, Ports, Storage
from timeline.properties.properties_file import parse_properties
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot, TimelineReader
from timeline.storage.subfolder import SubfolderStorage
from timeline.system import NullEvents

_COMPLETE: Final = "hoodie.table.metadata.partitions"
_VERSION: Final = "hoodie.table.version"
#: Partitions with records of files, which never change; a later record is of another file.
_OF_FILES: Final = frozenset(
    {PartitionKind.FILES, PartitionKind.COLUMN_STATS, PartitionKind.BLOOM_FILTERS}
)
_OWN_BASE: Final = f"{METADATA_TABLE}/"
_FILE_ID: Final = r"[^_/\\\x00-\x1f]+"
_TOKEN: Final = r"\d+-\d+-\d+"  # noqa: S105 - a file name part
_BASE: Final = re.compile(rf"({_FILE_ID})_{_TOKEN}_(\d{{17}})\.hfile", re.ASCII)
# A file id of a record index per partition may contain dots, unlike one of the table.
_LOG: Final = re.compile(rf"\.({_FILE_ID})_(\d{{17}})\.log\.(\d+)_({_TOKEN})", re.ASCII)
#: Files up to this size are read whole on a high-latency store, so many of a file group at once.
_WHOLE_BYTES_MAX: Final = 1024 * 1024
_WHOLE_FILES_MAX: Final = 64
_WHOLE_LIST_BYTES_MAX: Final = 4 * 1024 * 1024  # those of ``files``: 160,000 names

#: Bytes of log blocks of a file group that are in memory undecoded, to decode them at once.
_TOGETHER_BYTES_MAX: Final = 16 * 1024 * 1024

_SmallBlock: TypeAlias = tuple[LogBlock, bytes]
_One = TypeVar("_One")
_Two = TypeVar("_Two")


@dataclass(frozen=True, slots=True)
class _Fetched:
    """The files of a storage, some of them already read."""

    storage: Storage
    contents: Mapping[str, bytes]

    def open_input(self, path: str) -> IO[bytes]:
        known = self.contents.get(path)
        return self.storage.open_input(path) if known is None else BytesIO(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedLogs:
    """
    What some log files of a slice do together.

    Args:
        records: Their records, above ``deletes``.
        deletes: The keys that they delete.
        times: The instants of their blocks, newest first.
    """

    records: pa.Table
    deletes: pa.Array
    times: tuple[InstantTime, ...]


@dataclass(kw_only=True)
class MetadataTable:
    """
    The metadata table of a table, as of a snapshot; partitions are listed when first needed.

    ``partitions`` are the complete ones, which readers may use. ``own`` is the snapshot of its own timeline, and ``visible`` has the instants whose blocks count. ``lag``
    compares the timelines. ``is_newer``: a compaction merged commits that the snapshot does not
    have, so only partitions with records of files can still be read. ``ports`` read several file groups in
    parallel; None reads one after the other.
    """

    storage: Storage
    partitions: tuple[str, ...]
    own: Snapshot
    visible: VisibleInstants
    lag: Lag
    is_newer: bool = False
    ports: Ports | None = None
    _slices: dict[str, dict[FileGroupNumber, FileSlice]] = field(default_factory=dict)
    _kept: dict[FileGroupId, InputFiles] = field(default_factory=dict)

    @cached_property
    def definitions(self) -> Mapping[str, IndexDefinition]:
        """The indexes that the table defines. Errors and calls outside: ``read_index_definitions``."""
        return read_index_definitions(self.storage)

    def slices(self, partition: str) -> dict[FileGroupNumber, FileSlice]:
        """
        Return the newest slice of each file group, by data partition and number.

        Raises:
            MissingFileError: The partition has no file group (``metadata_table_missing``).
            CorruptTableError: File groups are missing (``metadata_file_groups``).

        Outside: 1 list.
        """
        known = self._slices.get(partition)
        if known is None:
            known = self._slices[partition] = self._listed(partition)
        return known

    def read(self, partition: str) -> Iterator[pa.Table]:
        """
        Yield the merged records of a partition, one file group at a time.

        Tables have the schema of the partition's kind in ``records``, by ascending bytes of the key.
        They include tombstones of files that are not listed.

        Raises:
            CorruptTableError: A file is damaged.
            MissingFileError: A file was deleted since; open the metadata table again.
            SnapshotExpiredError: ``is_newer``, and the records are not those of files.
            UnsupportedTableError: The partition is of a kind that this release does not know.

        Outside: 1 list, 1 open_input for each file.
        """
        shape = self.records_shape(partition)
        for one in self.slices(partition).values():
            yield self._merged(one, shape, None)

    def look_up(
        self, partition: str, keys: pa.Array | pa.ChunkedArray, data_partition: str | None = None
    ) -> pa.Table:
        """
        Return the records of some keys; unknown keys are left out.

        Args:
            partition: A partition of the metadata table.
            keys: No nulls; may repeat.
            data_partition: In a record index per partition, the partition of the keys. None: all,
                and then a key may have a record in each.

        Shapes: keys (n,) -> the schema of the partition's kind, in no order.

        Errors as ``read``. Outside: 1 list, 1 open_input for each file of the keys' file groups.
        """
        shape = self.records_shape(partition)
        kind = kind_of(partition) or PartitionKind.EXPRESSION_INDEX
        wanted = pc.unique(one_array(pc.cast(keys, pa.string())))
        version = IndexVersion.V2
        if kind is PartitionKind.SECONDARY_INDEX:
            version = self._definition(partition).version
        by_partition: dict[str | None, list[FileSlice]] = {}
        for place, one in self.slices(partition).items():
            by_partition.setdefault(place.data_partition, []).append(one)
        if data_partition is not None and None not in by_partition:
            by_partition = {data_partition: by_partition.get(data_partition, [])}
        tasks = []
        for group in by_partition.values():
            if not group or not len(wanted):
                continue
            numbers = shards(
                wanted, len(group), kind, index_version=version, path=_folder(partition)
            )
            tasks += [
                (group[number], wanted.take(pa.array(rows)))
                for number, rows in rows_by_number(numbers).items()
            ]
        return self._found(tasks, shape)

    def record_keys(self, index: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
        """
        Return the record keys of the rows that have some values in the column of a secondary index.

        Args:
            index: The partition of the index.
            values: Texts, as Java writes the values; null for rows without a value. May repeat.

        Shapes: values (n,) -> columns ``value`` and ``record_key``, in no order.

        Errors and calls outside: as ``look_up``. An index of version 1 is read whole.
        """
        shape = self.records_shape(index)
        slices = list(self.slices(index).values())
        distinct = pc.unique(one_array(pc.cast(values, pa.string())))
        prefixes = secondary_keys(distinct, pa.repeat(pa.scalar(""), len(distinct)))
        parts: dict[int, pa.Array] = dict.fromkeys(range(len(slices)), prefixes)
        version = self._definition(index).version
        if version is IndexVersion.V2:
            numbers = shards(prefixes, len(slices), PartitionKind.SECONDARY_INDEX)
            parts = {
                at: prefixes.take(pa.array(one)) for at, one in rows_by_number(numbers).items()
            }
        tasks = [(slices[at], some) for at, some in parts.items()] if len(prefixes) else []
        keys = self._found(tasks, shape, by_prefix=True).column("key")
        both = split_secondary_keys(keys, path=_folder(index))
        return pa.table(list(both), names=["value", "record_key"])

    def partition_paths(self) -> list[str]:
        """
        Return the partitions of the table that ``files`` lists, sorted; "" for the base folder.

        Errors and calls outside: as ``look_up``.
        """
        rows = live_files(self.look_up(PartitionKind.FILES.value, pa.array([ALL_PARTITIONS])))
        paths = rows.column("name").to_pylist()
        return sorted("" if path == NO_PARTITION else path for path in paths)

    def files_of(self, partition_paths: Iterable[str]) -> pa.Table:
        """
        Return the files of some partitions of the table, also of replaced and of old slices.

        Shapes: -> columns ``partition_path``, ``name`` and ``size`` in bytes, in no order.

        Errors and calls outside: as ``look_up``.
        """
        keys = pa.array([path or NO_PARTITION for path in partition_paths], pa.string())
        rows = live_files(self.look_up(PartitionKind.FILES.value, keys))
        paths = pc.if_else(pc.equal(rows.column("key"), NO_PARTITION), "", rows.column("key"))
        names = ["partition_path", "name", "size"]
        return pa.table([paths, rows.column("name"), rows.column("size")], names=names)

    def records_shape(self, partition: str) -> pa.Schema:
        """
        Return the schema of a partition's records. Outside: nothing, or the index definitions.

        Raises: as ``read``.
        """
        kind = kind_of(partition)
        if self.is_newer and kind not in _OF_FILES:
            raise SnapshotExpiredError(
                "a compaction of the metadata table merged commits that are newer than the "
                "snapshot: take a new snapshot, then look the keys up again",
                partition=partition,
            )
        if kind is None or partition not in self.partitions:
            why = "does not know" if kind is None else "does not read, because it is not complete,"
            raise UnsupportedTableError(
                f"this release {why} this partition of the metadata table: use another index: "
                f"{partition}",
                kind="metadata_partition",
                partition=partition,
            )
        if kind is PartitionKind.EXPRESSION_INDEX:
            is_stats = self._definition(partition).index_type == PartitionKind.COLUMN_STATS.value
            return COLUMN_STATS if is_stats else BLOOM_FILTERS
        return SHAPE_OF_KIND[kind]

    def _definition(self, partition: str) -> IndexDefinition:
        found = self.definitions.get(partition)
        if found is None:
            raise bad_definitions_error(f"it does not define the index {partition!r}", partition)
        return found

    def _found(
        self,
        tasks: Sequence[tuple[FileSlice, pa.Array]],
        shape: pa.Schema,
        *,
        by_prefix: bool = False,
    ) -> pa.Table:
        """Return the records of some keys of each slice."""

        def read(task: tuple[FileSlice, pa.Array]) -> pa.Table:
            return self._merged(task[0], shape, task[1], by_prefix=by_prefix)

        return pa.concat_tables([shape.empty_table(), *self._for_each(read, tasks)])

    def _for_each(self, work: Callable[[_One], _Two], items: Sequence[_One]) -> list[_Two]:
        return list(map(work, items)) if self.ports is None else self.ports.for_each(work, items)

    def _merged(
        self,
        one: FileSlice,
        shape: pa.Schema,
        keys: pa.Array | None,
        *,
        by_prefix: bool = False,
    ) -> pa.Table:
        return merge_layers(self._layers(one, shape, keys, by_prefix=by_prefix), shape)

    def _layers(
        self,
        one: FileSlice,
        shape: pa.Schema,
        keys: pa.Array | None = None,
        *,
        by_prefix: bool = False,
    ) -> list[pa.Table | pa.Array]:
        layers, base_time, files = [], None, self._fetched(one)
        if one.base_file is not None:
            base_time, path = one.base_file.requested_time, one.base_file.path
            with opened(files, path) as source:
                size, known = one.base_file.size_bytes, None
                whole: ByteSource = source
                if keys is None and size <= FILE_BYTES_MAX:
                    content = source.read_at(0, size)
                    known, whole = RECENT.find(content, shape), BytesSource(content)
                layers.append(
                    decode_hfile(whole, size, shape, keys, by_prefix=by_prefix, path=path)
                    if known is None
                    else known
                )
        small_bytes = 0

        def decode(block: LogBlock, content: bytes) -> pa.Table | pa.Array | _SmallBlock:
            nonlocal small_bytes
            is_data = block.block_type is BlockType.HFILE_DATA
            if keys is None and is_data and (known := RECENT.find(content, shape)) is not None:
                return known
            # A few keys are looked up by the index of each block, without the other records.
            if keys is None and is_data and small_bytes + len(content) <= _TOGETHER_BYTES_MAX:
                small_bytes += len(content)
                return block, content
            return decode_block(block, content, shape, keys, by_prefix=by_prefix)

        found = read_blocks(
            files, NullEvents(), one.log_files, self.visible, decode, base_time=base_time
        )
        for are_small, run in groupby(found, key=lambda one: isinstance(one, tuple)):
            some = list(run)
            layers += [decode_together(some, shape)] if are_small else some
        return layers

    def _fetched(self, one: FileSlice) -> InputFiles:
        """Return the slice's files; on a high-latency store the small ones are read at once."""
        if (known := self._kept.get(one.file_group)) is not None:
            return known
        if not self.storage.capabilities.high_latency:
            return self.storage
        files: list[BaseFile | LogFile] = [*one.log_files]
        files += [one.base_file] if one.base_file is not None else []
        is_list = one.file_group.partition_path == _folder(PartitionKind.FILES.value)
        most = _WHOLE_LIST_BYTES_MAX if is_list else _WHOLE_BYTES_MAX
        small = [each.path for each in files if each.size_bytes <= most][:_WHOLE_FILES_MAX]
        try:
            contents = self._for_each(self.storage.read, small)
        except ObjectMissingError:
            return self.storage  # opening it gives the error that names it
        fetched = _Fetched(self.storage, dict(zip(small, contents, strict=True)))
        if is_list:
            self._kept[one.file_group] = fetched  # read for the partitions, then for their files
        return fetched

    def files(self, partition: str) -> tuple[list[BaseFile], list[LogFile]]:
        """Return the base and log files in the folder of a partition, visible or not. Outside: 1 list."""
        folder = _folder(partition)
        bases, logs = [], []
        for entry in self.storage.list(folder):
            if (base := _BASE.fullmatch(entry.name)) is not None:
                bases.append(
                    BaseFile(
                        file_group=FileGroupId(folder, base[1]),
                        name=entry.name,
                        requested_time=base[2],
                        size_bytes=entry.size_bytes,
                    )
                )
            elif (log := _LOG.fullmatch(entry.name)) is not None:
                logs.append(
                    LogFile(
                        file_group=FileGroupId(folder, log[1]),
                        name=entry.name,
                        instant_time=log[2],
                        log_version=int(log[3]),
                        write_token=log[4],
                        size_bytes=entry.size_bytes,
                    )
                )
        return bases, logs

    def all_slices(
        self, bases: Sequence[BaseFile], logs: Sequence[LogFile]
    ) -> Mapping[FileGroupId, Sequence[FileSlice]]:
        """Return the visible slices of files of a partition, oldest first."""
        completions = self.own.completions
        return slice_files(
            self._only([one for one in bases if self._shows(one.requested_time, one)]),
            [one for one in logs if self._shows(one.instant_time, one)],
            # An archived instant is merged into the newest base file of its file groups (MDT-8). So
            # its completion time is irrelevant, and need not be read from the archived timeline.
            completion_of=lambda time: completions.get(time, time),
        )

    def damage(self, partition: str, file_groups_max: int) -> tuple[HoodooError, ...]:
        """
        Return what is wrong with the files of a partition by their frames; records are not read.

        Args:
            partition: A complete one.
            file_groups_max: So many file groups are looked at.

        Returns:
            At most one error for each file group.

        Outside: 1 list, the index definitions, 1 open_input for each file, with bounded reads.
        """
        kind = kind_of(partition)
        try:
            _ = self.definitions
            if kind is not None and kind.is_named:
                self._definition(partition)
            slices = list(self.slices(partition).values())[:file_groups_max]
        except (CorruptTableError, MissingFileError, UnsupportedTableError) as error:
            return (error,)
        return tuple(error for error in self._for_each(self._damage, slices) if error is not None)

    def _damage(self, one: FileSlice) -> HoodooError | None:
        try:
            if (base := one.base_file) is not None:
                with opened(self.storage, base.path) as source:
                    open_hfile(source, base.size_bytes, path=base.path)
            find_blocks(self.storage, one.log_files, self.visible)
        except (CorruptTableError, MissingFileError, UnsupportedTableError) as error:
            return error
        return None

    def merged(self, partition: str, one: FileSlice) -> pa.Table:
        """Return the records of a slice; errors as ``read``. Outside: 1 open_input for each file."""
        return self._merged(one, self.records_shape(partition), None)

    def merged_logs(self, partition: str, one: FileSlice) -> MergedLogs:
        """
        Return the log files of a slice as one with the same effect (MDT-17).

        Errors as ``read``. Outside: 2 open_input for each log file; 1 for the base file of ``files``.
        """
        shape, logs = self.records_shape(partition), replace(one, base_file=None)
        is_list = partition == PartitionKind.FILES.value
        base = self._layers(replace(one, log_files=()), shape) if is_list else []
        layers = self._layers(logs, shape)
        blocks = find_blocks(self.storage, one.log_files, self.visible)
        records, deletes = merge_logs(layers, shape, merge_layers(base, shape))
        newest_first = dict.fromkeys(block.instant_time for block in reversed(blocks))
        return MergedLogs(records=records, deletes=deletes, times=tuple(newest_first))

    def _listed(self, partition: str) -> dict[FileGroupNumber, FileSlice]:
        bases, logs = self.files(partition)
        if kind_of(partition) in NEEDS_ALL_FILES:
            refuse_lost_files(self.own, partition, bases, logs, self._commits)
        slices = self.all_slices(bases, logs)
        found: dict[FileGroupNumber, FileSlice] = {}
        for group, some in slices.items():
            number = parse_file_group_id(partition, group.file_id)
            if number is None:
                raise _strange_file_group(partition, group.file_id)
            found[number] = merged_slice(some)
        defined = None if found else self.definitions.get(partition)
        if defined is not None and defined.is_per_partition:
            return found  # each partition of the table brings its own, and none has rows yet
        return _in_order(partition, found)

    def _commits(self, instants: Sequence[Instant]) -> list[CommitMetadata]:
        return self._for_each(self.own.commits.read, instants)

    def _shows(self, time: InstantTime, file: BaseFile | LogFile) -> bool:
        return time in self.visible and self.own.shows(file)

    def _only(self, bases: Sequence[BaseFile]) -> list[BaseFile]:
        """Leave out base files of failed tasks: of two of one instant, its metadata names one."""
        found: dict[tuple[FileGroupId, InstantTime], list[BaseFile]] = {}
        for one in bases:
            found.setdefault((one.file_group, one.requested_time), []).append(one)
        return [self._named(time, some) for (_, time), some in found.items()]

    def _named(self, time: InstantTime, bases: Sequence[BaseFile]) -> BaseFile:
        instant = self.own.active.find(time) if len(bases) > 1 else None
        named = self.own.commits.read(instant).written_paths() if instant is not None else ()
        return next((one for one in bases if one.path.removeprefix(_OWN_BASE) in named), bases[0])


def open_metadata_table(
    storage: Storage,
    config: TableConfig,
    snapshot: Snapshot,
    *,
    ports: Ports | None = None,
) -> MetadataTable | None:
    """
    Open the metadata table of a table; None if the table has none.

    Args:
        storage: Storage of the table.
        config: Its configuration, which lists the complete partitions.
        snapshot: Instants that it does not have do not count, even if the metadata table has them.
        ports: Those of the table, to read in parallel; None reads one file after the other.

    Raises:
        MissingFileError: The metadata table is missing (``metadata_table_missing``).
        UnsupportedTableError: It has another version than the table (``metadata_table_version``).
        CorruptTableError: Its properties or the index definitions are damaged.

    Outside: 1 list, 1 get; 1 list more if the metadata table has instants that are unknown to the
    snapshot; the archived timelines if instants are older than the active ones.
    """
    listed = (one.strip() for one in config.raw.get(_COMPLETE, "").split(","))
    partitions = tuple(sorted(one for one in listed if one))
    if not partitions:
        return None
    below = SubfolderStorage(storage, METADATA_TABLE)
    reader = TimelineReader(below)
    calls = (partial(_check_version, storage, config), reader.read)
    ports.concurrently(*calls) if ports is not None else [call() for call in calls]
    active = reader.last or reader.read()
    own = _own_snapshot(below, active)
    hidden = hidden_instants(storage, own, snapshot)
    done = {one.requested_time for one in active.instants if one.completed}
    first_hidden = min((own.completions[time] for time in hidden), default=None)
    return MetadataTable(
        storage=storage,
        partitions=partitions,
        own=own,
        visible=VisibleInstants(
            times=frozenset(done - hidden), archived_below=active.archived_below
        ),
        lag=lag_of(own, snapshot, hidden),
        is_newer=first_hidden is not None and first_hidden < newest_merge(active),
        ports=ports,
    )


def lag_of_timelines(storage: Storage, own: ActiveTimeline, snapshot: Snapshot) -> Lag:
    """
    Return how the metadata table's timeline differs from a snapshot of its table.

    Outside: 1 list more if the metadata table has instants that are unknown to the snapshot; the
    archived timelines if instants are older than the active ones.
    """
    whole = _own_snapshot(SubfolderStorage(storage, METADATA_TABLE), own)
    return lag_of(whole, snapshot, hidden_instants(storage, whole, snapshot))


def _own_snapshot(below: Storage, active: ActiveTimeline) -> Snapshot:
    return Snapshot(
        active=active,
        head=0,
        commits=CommitReader(below),
        history=ArchivedTimeline(below, NullEvents()),
    )


def _check_version(storage: Storage, config: TableConfig) -> None:
    path = f"{METADATA_TABLE}/{PROPERTIES}"
    try:
        properties = parse_properties(storage.read(path), path=path)
    except ObjectMissingError as error:
        raise MissingFileError(
            "the metadata table is missing, and the table's properties list its partitions: open "
            "the table again, or build the metadata table again with 'hoodoo metadata rebuild "
            f"TABLE': {path}",
            kind="metadata_table_missing",
            path=path,
        ) from error
    version = properties.get(_VERSION, "")
    if version != str(config.table_version):
        raise UnsupportedTableError(
            "the metadata table has another version than its table: let Java Hudi upgrade both "
            f"with one write, or run 'hoodoo metadata rebuild TABLE': version {version!r} of the "
            f"metadata table, {config.table_version} of the table",
            kind="metadata_table_version",
            path=path,
            version=version,
            table_version=config.table_version,
        )


# ---- File groups


def _folder(partition: str) -> str:
    return check_relative_path(f"{METADATA_TABLE}/{partition}")


def _in_order(
    partition: str, found: Mapping[FileGroupNumber, FileSlice]
) -> dict[FileGroupNumber, FileSlice]:
    """Return file groups by data partition and number; a missing number would misplace keys."""
    numbers: dict[str | None, list[int]] = {}
    for one in found:
        numbers.setdefault(one.data_partition, []).append(one.number)
    if not numbers:
        path = _folder(partition)
        raise MissingFileError(
            "a partition of the metadata table has no files, and the table's properties list it as "
            "complete: open the table again, or build it again with 'hoodoo metadata rebuild TABLE "
            f"{partition}': {path}",
            kind="metadata_table_missing",
            path=path,
        )
    for data_partition, some in numbers.items():
        if sorted(some) != list(range(len(some))):
            raise CorruptTableError(
                "a partition of the metadata table lacks some of its file groups: run "
                f"'hoodoo metadata rebuild TABLE {partition}': {_folder(partition)} has "
                f"{sorted(some)}"
                + (f" for partition {data_partition!r}" if data_partition is not None else ""),
                kind="metadata_file_groups",
                path=_folder(partition),
            )
    order = sorted(found, key=lambda one: (one.data_partition or "", one.number))
    return {one: found[one] for one in order}


def _strange_file_group(partition: str, file_id: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        "this release does not know the file groups of this partition of the metadata table: use "
        f"a newer release of hoodoo, or another index: {_folder(partition)} has {file_id}",
        kind="metadata_partition",
        partition=partition,
    )

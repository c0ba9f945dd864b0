"""
Build partitions of the metadata table while writers write (MDT-11).

1. Under the exclusive lock the new partitions get their file groups, and the properties list them as
   being built. A ``metadata`` slot follows: the fence. Each commit above it brings its own records,
   because a write that read the properties before is rejected (MDT-5).
2. The base files are made from a snapshot at the fence or above it, without the lock.
3. Under the lock the instant that builds them is completed, and the properties list the partitions
   as complete. Records of later commits are in log files, which are read after the base files.

A crash leaves partitions that are being built. No reader uses them, writers maintain them, and
another build or a drop ends them. Beside another engine all steps are under one holding of the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa

from filegroups.files.log_files import VisibleInstants
from filegroups.files.parquet import read_footer
from filegroups.metadata_table.contents import (
    CommittedPartition,
    PartitionContents,
    contents_of_partition,
    listed_partitions,
)
from filegroups.metadata_table.decode import SHAPE_OF_KIND
from filegroups.metadata_table.encode import encode_log_file, encode_records, write_base_file
from filegroups.metadata_table.index_definitions import (
    read_index_definitions,
    write_index_definitions,
)
from filegroups.metadata_table.keys import IndexVersion, parse_file_group_id, shards
from filegroups.metadata_table.log_files import RECORD_TYPES
from filegroups.metadata_table.new_partitions import (
    NewPartition,
    planned_partitions,
    settings_as_built,
    with_needed,
)
from filegroups.reading.scan import known_schema, view_of
from filegroups.schema.arrow_columns import codes_of, rows_by_number
from filegroups.schema.schema import TableSchema
from filegroups.settings.metadata_settings import MetadataTableSettings
from filegroups.supported import refuse_old_version
from filegroups.writing.metadata_update import MetadataFileGroups, file_ids_of, indexed_table
from tableservices.metadata_table.sorting import SortedRecords
from timeline.codecs.metadata_instants import (
    encode_metadata_deltacommit,
    encode_metadata_inflight,
    metadata_partition_body,
    metadata_table_properties,
)
from timeline.commit.begin import refuse_during_restore
from timeline.commit.commit_lock import assert_lease, keep_commit_lock
from timeline.commit.section import open_commit, protocol_of
from timeline.context import TableContext
from timeline.errors import CorruptTableError, MissingFileError, TableChangedError
from timeline.model.file_names import (
    INDEX_DEFINITIONS,
    METADATA_TABLE,
    PARTITION_METADATA,
    PROPERTIES,
    LogFileName,
    join,
    parse_instant_name,
    parse_log_file_name,
)
from timeline.model.file_slice import BaseFile, LogFile
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime, Residue, WallMs, instant_time
from timeline.model.metadata_table import (
    BUILDING,
    METADATA_TIMELINE,
    MetadataLogFile,
    MetadataUpdate,
    PartitionKind,
    kind_of,
)
from timeline.model.slot import Slot, SlotKind
from timeline.model.table_config import (
    METADATA_CHANGES,
    METADATA_COMPLETE,
    METADATA_INFLIGHT,
    TableConfig,
)
from timeline.partitions import list_partition_paths
from timeline.ports.ports import Storage, create_if_absent
from timeline.properties.properties_file import format_properties, load_config, update_properties
from timeline.reader_lease import deferred_deletes
from timeline.snapshot import Snapshot

_DEFINITIONS_PATH: Final = "hoodie.table.index.defs.path"
_TRIES: Final = 5  # a clean may delete files while the builder reads them
_TOKEN: Final = "0-0-0"  # noqa: S105 - a file name part


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBuild:
    """The result of a build: the partitions, with the records in each, and the fence's number."""

    records: Mapping[str, int]
    slot_number: int

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that are complete now."""
        return tuple(sorted(self.records))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A file of a new partition."""

    file_id: str
    name: str
    size_bytes: int
    records: int


@dataclass(kw_only=True)
class _Build:
    """Partitions under way: the instant that builds each, its files, and the fence."""

    config: TableConfig
    times: Mapping[str, InstantTime]
    fence: Slot
    files: dict[str, list[_Made]] = field(default_factory=dict)


def build_partitions(
    context: TableContext,
    names: Iterable[str],
    settings: MetadataTableSettings,
    *,
    columns: Mapping[str, str] | None = None,
    again: Iterable[str] = (),
) -> MetadataBuild | None:
    """
    Build partitions of the metadata table, and the ones that they need; None if all are complete.

    Args:
        context: The table.
        names: The partitions.
        settings: Hudi's options.
        columns: The column of each new secondary index, by its partition.
        again: Those of ``names`` that are replaced if they are complete. With ``files``, the whole
            metadata table begins again, so ``names`` has all its partitions.

    Raises:
        InvalidInputError: As ``with_needed`` and ``planned_partitions``.
        TableChangedError: Another process dropped a partition meanwhile; build again.
        UnsupportedTableError: The table has version 6.
        LockTimeoutError, LeaseLostError, StorageUnavailableError: As a commit; build again.
        CorruptTableError: A data file is damaged.

    Outside: 2 commit sections, 1 list and 2 puts for each partition, the reads of
    ``contents_of_partition``.
    """
    config = load_config(context.ports.storage)
    refuse_old_version(config)
    complete, afresh = set(config.complete_metadata_partitions), frozenset(again)
    wanted = [
        name for name in with_needed(names, config, settings) if name not in complete - afresh
    ]
    if not wanted:
        return None
    planned = _planned(context, config, wanted, settings, columns)
    whole: AbstractContextManager[TableContext] = nullcontext(context)
    if protocol_of(context).has_foreign_instants:
        whole = keep_commit_lock(context, "build the metadata table")
    with whole as locked:
        build = _start(locked, planned, afresh)
        _write_base_files(locked, build, planned)
        _finish(locked, build)
    context.metadata_table.config = load_config(context.ports.storage)
    records = {name: sum(one.records for one in made) for name, made in build.files.items()}
    context.ports.events.emit("metadata_table.built", partitions=", ".join(sorted(records)))
    return MetadataBuild(records=records, slot_number=build.fence.number)


def _planned(
    context: TableContext,
    config: TableConfig,
    names: Sequence[str],
    settings: MetadataTableSettings,
    columns: Mapping[str, str] | None,
) -> tuple[NewPartition, ...]:
    snapshot = context.snapshot()
    schema = known_schema(context, snapshot)
    rows: Mapping[str, int] = {}
    if any(
        kind_of(name) in (PartitionKind.RECORD_INDEX, PartitionKind.SECONDARY_INDEX)
        for name in names
    ):
        rows = _row_counts(context, snapshot)
    known = read_index_definitions(context.ports.storage)
    named = {name: one.source_fields[0] for name, one in known.items() if one.source_fields}
    present = {name: one for name, one in known.items() if name in config.metadata_partitions}
    avro_json = None if schema is None else schema.avro_json
    return planned_partitions(
        names,
        config,
        settings_as_built(settings, present, avro_json),
        avro_json=avro_json,
        rows=rows,
        columns={**named, **(columns or {})},
    )


def _row_counts(context: TableContext, snapshot: Snapshot) -> Mapping[str, int]:
    """Return the rows in the base files of each partition. Outside: 1 open_input for each file."""
    storage, found = context.ports.storage, Counter[str]()
    files = [one.base_file for one in view_of(context, snapshot).base_slices() if one.base_file]
    paths = [one.path for one in files]
    counts = context.ports.executor.map(partial(_rows_of, storage), paths)
    for file, count in zip(files, counts, strict=True):
        found[file.file_group.partition_path] += count
    return found


def _rows_of(storage: Storage, path: str) -> int:
    return read_footer(storage, path).rows


# ---- 1. Begin: file groups, properties, fence


def _start(
    context: TableContext, planned: Sequence[NewPartition], afresh: frozenset[str]
) -> _Build:
    """Create the file groups, list the partitions as being built, and take the fence."""
    purpose, nonce = "begin to build the metadata table", context.ports.ids.nonce()
    times: dict[str, InstantTime] = {}
    with keep_commit_lock(context, purpose) as locked:
        commit = open_commit(locked, purpose)
        while not commit.is_decided():
            with commit.section() as section:
                refuse_during_restore(section.timeline)
                config = _without(locked, section.config(), afresh)
                times = _create_file_groups(locked, config, planned)
                with locked.ports.lock.acquire(purpose) as lease:
                    assert_lease(lease)
                    config = _list_as_inflight(locked, config, planned)
                time = section.draw_time(locked, Residue.SLOT_REQUESTED)
                slot = section.next_slot(
                    locked, SlotKind.METADATA, Action.DELTACOMMIT, time, nonce=nonce
                )
                commit.take(section, slot)
    return _Build(config=config, times=times, fence=commit.taken)


def _without(context: TableContext, config: TableConfig, afresh: frozenset[str]) -> TableConfig:
    """
    Let the properties list partitions as being built that are about to be replaced.

    The returned properties lack them, so their folders are deleted next. Readers stop using them
    before that.
    """
    gone = afresh.intersection(config.metadata_partitions)
    if not gone:
        return config
    complete = set(config.complete_metadata_partitions) - gone
    lists = {
        METADATA_COMPLETE: ",".join(sorted(complete)),
        METADATA_INFLIGHT: ",".join(sorted(set(config.metadata_partitions) - complete)),
    }
    storage = context.ports.storage
    with context.ports.lock.acquire("build the metadata table again") as lease:
        assert_lease(lease)
        update_properties(storage, lists, now=_now(context))
    left = tuple(one for one in config.metadata_partitions if one not in gone)
    raw = {**config.raw, **lists, METADATA_INFLIGHT: ",".join(sorted(set(left) - complete))}
    return replace(config, metadata_partitions=left, raw=raw)


def _create_file_groups(
    context: TableContext, config: TableConfig, planned: Sequence[NewPartition]
) -> dict[str, InstantTime]:
    """Create the file groups of partitions that are not being built; return the instant of each."""
    storage = context.ports.storage
    if not config.metadata_table_on:
        storage.delete_folder(METADATA_TABLE)  # what remained of a dropped one
        properties = metadata_table_properties(config.name, table_version=config.table_version)
        _create(storage, f"{METADATA_TABLE}/{PROPERTIES}", format_properties(properties))
    times = {}
    known = _building_times(storage, config)
    for one in planned:
        folder = join(METADATA_TABLE, one.name)
        if one.name in config.metadata_partitions:
            found = _time_of_build(storage.names(folder))
            if found is not None:
                times[one.name] = found
                continue
        storage.delete_folder(folder)
        number = max((int(time) for time in known), default=-1) + 1
        time = times[one.name] = f"{number:017d}"
        known.append(time)
        path = f"{folder}/{PARTITION_METADATA}"
        _create(storage, path, metadata_partition_body(time))
        ids = [*one.file_ids]
        if one.is_per_partition:
            for path in list_partition_paths(storage):
                ids += one.file_ids_of(path)
        for file_id in ids:
            _create_file_group(storage, config, one.name, file_id, time)
    return times


def _create_file_group(
    storage: Storage, config: TableConfig, partition: str, file_id: str, time: InstantTime
) -> None:
    data = encode_log_file(partition, time, table_version=config.table_version, created_ms=0)
    name = LogFileName(file_id, time, 1, _TOKEN).text
    _create(storage, join(METADATA_TABLE, partition, name), data)


def _create(storage: Storage, path: str, data: bytes) -> None:
    create_if_absent(storage, path, data, repeat="build the partition again")


def _building_times(storage: Storage, config: TableConfig) -> list[InstantTime]:
    """Return the times of instants that built partitions, or are about to."""
    parsed = map(parse_instant_name, storage.names(METADATA_TIMELINE))
    found = [one.requested_time for one in parsed if one is not None]
    for name in config.metadata_partitions:
        time = _time_of_build(storage.names(join(METADATA_TABLE, name)))
        found += [time] if time is not None else []
    return [time for time in found if time.startswith(BUILDING)]


def _time_of_build(names: Iterable[str]) -> InstantTime | None:
    """Return the requested time of the instant that builds a partition, from its log files."""
    logs = (parse_log_file_name(name) for name in names)
    times = {log.instant_time for log in logs if log is not None}
    return max((time for time in times if time.startswith(BUILDING)), default=None)


def _list_as_inflight(
    context: TableContext, config: TableConfig, planned: Sequence[NewPartition]
) -> TableConfig:
    """Write the definitions, then list the partitions as being built."""
    storage = context.ports.storage
    definitions = [one.definition for one in planned if one.definition is not None]
    changes: dict[str, str | None] = {}
    if definitions:
        write_index_definitions(storage, definitions)
        changes[_DEFINITIONS_PATH] = INDEX_DEFINITIONS
    complete = set(config.complete_metadata_partitions)
    inflight = {*config.metadata_partitions, *(one.name for one in planned)} - complete
    changes |= {
        METADATA_COMPLETE: ",".join(sorted(complete)),
        METADATA_INFLIGHT: ",".join(sorted(inflight)),
        METADATA_CHANGES: next_change(config),
    }
    return update_properties(storage, changes, now=_now(context))


def next_change(config: TableConfig) -> str:
    """Return the value of `METADATA_CHANGES` after one more change of the partitions."""
    _, before = config.metadata_state
    return str(int(before) + 1 if before.isdecimal() else 1)


def _now(context: TableContext) -> InstantTime:
    return instant_time(WallMs(context.ports.clock.now_ms()))


# ---- 2. Base files from a snapshot


def _write_base_files(
    context: TableContext, build: _Build, planned: Sequence[NewPartition]
) -> None:
    """Write the base files; a snapshot whose files a clean deletes meanwhile is read again."""
    for left in reversed(range(_TRIES)):
        snapshot = context.snapshot()
        with ExitStack() as stack:
            new = [_NewRecords(context, build, one) for one in planned]
            for one in new:
                stack.enter_context(one.records)
            try:
                _collect(context, build, new, snapshot)
            except MissingFileError:
                if not left:
                    raise
                continue
            for one in new:
                name = one.partition.name
                _delete_former_files(context, build, name, snapshot)
                build.files[name] = [*one.write()]
        break
    folders = sorted(join(METADATA_TABLE, one.name) for one in planned)
    context.ports.storage.sync_folders(folders)


def _collect(
    context: TableContext, build: _Build, new: Iterable[_NewRecords], snapshot: Snapshot
) -> None:
    by_name = {one.partition.name: one for one in new}
    time = build.fence.requested_time
    for some in contents_by_file_group(
        context, build.config, build.times, snapshot, requested_time=time
    ):
        for name, contents in some.items():
            by_name[name].add(contents.records)


class _NewRecords:
    """The records of a new partition, by the file group that they belong to."""

    def __init__(
        self,
        context: TableContext,
        build: _Build,
        partition: NewPartition,
    ) -> None:
        kind = _kind(partition.name)
        self.partition = partition
        self.records = SortedRecords(SHAPE_OF_KIND[kind], once=kind is not PartitionKind.FILES)
        self._context, self._build, self._kind = context, build, kind
        names = context.ports.storage.names(join(METADATA_TABLE, partition.name))
        self._ids = list(file_ids_of(names))
        if not (self._ids or partition.is_per_partition):
            raise CorruptTableError(
                "a partition of the metadata table lost its file groups while it was built: run "
                f"'hoodoo metadata drop TABLE {partition.name}', then build it again",
                kind="metadata_file_groups",
                path=join(METADATA_TABLE, partition.name),
            )
        self._of_path: dict[str | None, list[int]] = {}
        for at, file_id in enumerate(self._ids):
            number = parse_file_group_id(partition.name, file_id)
            if number is not None:
                self._of_path.setdefault(number.data_partition, []).append(at)

    def add(self, records: pa.Table) -> None:
        """Add records of any file groups, in any order."""
        if not self.partition.is_per_partition:
            self._add(records, self._of_path.get(None, []))
            return
        codes, paths = codes_of(records.column("partition_path"))
        for code, rows in rows_by_number(codes).items():
            path = paths[code]
            if path not in self._of_path:
                self._open_file_groups(path)
            self._add(records.take(pa.array(rows)), self._of_path[path])

    def _open_file_groups(self, path: str) -> None:
        """Create the file groups of a partition of the table that is new since the build began."""
        name, config, time = self.partition.name, self._build.config, self._build.times
        for file_id in self.partition.file_ids_of(path):
            _create_file_group(self._context.ports.storage, config, name, file_id, time[name])
            self._of_path.setdefault(path, []).append(len(self._ids))
            self._ids.append(file_id)

    def _add(self, records: pa.Table, places: Sequence[int]) -> None:
        defined = self.partition.definition
        version = IndexVersion.V1 if defined is None else defined.version
        numbers = shards(records.column("key"), len(places), self._kind, index_version=version)
        self.records.add(records, np.array(places, np.int64)[numbers])

    def write(self) -> Iterator[_Made]:
        """Write the base file of each file group that has records, one at a time."""
        build, context, name = self._build, self._context, self.partition.name
        version = build.config.table_version
        created_ms = int(context.zone.wall_ms(build.fence.requested_time))
        for number, runs in groupby(self.records.runs(), key=itemgetter(0)):
            file_id = self._ids[number]
            file = f"{file_id}_{build.fence.number}-0-0_{build.times[name]}{_HFILE}"
            entries = (
                encode_records(rows, RECORD_TYPES[self._kind], table_version=version)
                for _, rows in runs
            )
            with context.ports.storage.open_output(join(METADATA_TABLE, name, file)) as sink:
                made = write_base_file(sink, entries, table_version=version, created_ms=created_ms)
            yield _Made(
                file_id=file_id, name=file, size_bytes=made.size_bytes, records=made.entries
            )


def contents_of_snapshot(
    context: TableContext,
    config: TableConfig,
    names: Iterable[str],
    snapshot: Snapshot,
    *,
    requested_time: InstantTime,
) -> dict[str, pa.Table]:
    """
    Return the records that partitions of the metadata table have to have, all in memory.

    Arguments, errors, calls outside: as ``contents_by_file_group``.
    """
    parts = {name: [SHAPE_OF_KIND[_kind(name)].empty_table()] for name in names}
    for some in contents_by_file_group(
        context, config, parts, snapshot, requested_time=requested_time
    ):
        for name, contents in some.items():
            parts[name].append(contents.records)
    return {name: pa.concat_tables(some) for name, some in parts.items()}


def _kind(name: str) -> PartitionKind:
    return kind_of(name) or PartitionKind.EXPRESSION_INDEX


def contents_by_file_group(
    context: TableContext,
    config: TableConfig,
    names: Iterable[str],
    snapshot: Snapshot,
    *,
    requested_time: InstantTime,
) -> Iterator[dict[str, PartitionContents]]:
    """
    Yield what partitions of the metadata table have to have, from the files of the table.

    Each item has the records of some file groups of the table.

    Args:
        context: The table.
        config: Its properties.
        names: The partitions.
        snapshot: The commits that count.
        requested_time: Of bloom filters.

    Errors, calls outside: as ``contents_of_partition`` for each partition of the table.
    """
    storage, schema = context.ports.storage, known_schema(context, snapshot)
    avro_json = (schema or TableSchema.from_arrow(pa.schema([]), "t")).avro_json
    groups = MetadataFileGroups(
        config=config,
        definitions=read_index_definitions(storage),
        file_ids=dict.fromkeys(names, ()),
    )
    visible = VisibleInstants.of(snapshot)
    table = indexed_table(context, groups, avro_json, snapshot, visible)
    paths = []
    for partition in committed_partitions(context, snapshot):
        paths.append(partition.path)
        yield from contents_of_partition(
            storage,
            context.ports.executor,
            table,
            partition,
            requested_time=requested_time,
            zone=context.zone,
        )
    if PartitionKind.FILES.value in groups.file_ids:
        yield {PartitionKind.FILES.value: listed_partitions(paths)}


def committed_partitions(context: TableContext, snapshot: Snapshot) -> Iterator[CommittedPartition]:
    """
    Yield the partitions of the table that have committed files, from their folders.

    Files of failed writes, and those whose deletion a clean deferred, are left out. Outside: as
    ``list_partition_paths``, 2 lists for each partition.
    """
    storage = context.ports.storage
    deferred, view = deferred_deletes(storage), view_of(context, snapshot)
    for path in list_partition_paths(storage):
        files = {
            entry.name: entry.size_bytes
            for entry in storage.list(path)
            if not entry.is_folder
            and join(path, entry.name) not in deferred
            and _is_committed(snapshot, path, entry.name)
        }
        slices = tuple(view.latest_slices([path]))
        if files:
            yield CommittedPartition(path=path, files=files, slices=slices)


def _is_committed(snapshot: Snapshot, path: str, name: str) -> bool:
    file = BaseFile.found(path, name, 0) or LogFile.found(path, name, 0)
    if file is not None:
        return snapshot.shows(file)
    log = parse_log_file_name(name)  # a change log
    return log is not None and snapshot.is_committed(log.instant_time)


def _delete_former_files(
    context: TableContext, build: _Build, partition: str, snapshot: Snapshot
) -> None:
    """
    Delete base files of an earlier build, and log files of commits below the fence.

    The new base files have the records of those commits, and of commits that brought none.
    """
    storage, folder = context.ports.storage, join(METADATA_TABLE, partition)
    done = {
        time
        for time, completed in snapshot.active.completed_times
        if completed < build.fence.completion_time
    }
    for name in storage.names(folder):
        log = parse_log_file_name(name)
        if name.endswith(_HFILE) or (log is not None and log.instant_time in done):
            storage.delete(join(folder, name))


_HFILE: Final = ".hfile"


# ---- 3. End: the instants, then the properties


def _finish(context: TableContext, build: _Build) -> None:
    """Complete the instants that build the partitions, and list these as complete."""
    purpose = "end the build of the metadata table"
    with keep_commit_lock(context, purpose) as locked, open_commit(locked, purpose).section() as at:
        config = at.config()
        for name in build.times:
            _assert_unchanged(locked, config, build, name)
        for name, time in sorted(build.times.items(), key=lambda item: item[1]):
            _complete_instant(locked, build, name, time)
        complete = {*config.complete_metadata_partitions, *build.times}
        changes = {
            METADATA_COMPLETE: ",".join(sorted(complete)),
            METADATA_INFLIGHT: ",".join(sorted(set(config.metadata_partitions) - complete)),
        }
        with locked.ports.lock.acquire(purpose) as lease:
            assert_lease(lease)
            update_properties(locked.ports.storage, changes, now=_now(locked))


def _assert_unchanged(context: TableContext, config: TableConfig, build: _Build, name: str) -> None:
    """Raise if another process dropped or built the partition since the fence."""
    storage, folder = context.ports.storage, join(METADATA_TABLE, name)
    names = set(storage.names(folder))
    mine = {one.name for one in build.files[name]}
    if name not in config.metadata_partitions or not mine <= names:
        raise TableChangedError(
            "another process dropped or built this partition of the metadata table meanwhile: run "
            f"'hoodoo metadata status TABLE', and build it again if it is missing: {name}",
            kind="metadata_partition_changed",
            partition=name,
        )
    for other in names - mine:
        if other.endswith(_HFILE):  # of a build that this one replaced
            storage.delete(join(folder, other))


def _complete_instant(
    context: TableContext, build: _Build, partition: str, time: InstantTime
) -> None:
    storage = context.ports.storage
    update = MetadataUpdate(
        table_version=build.config.table_version,
        partitions=(partition,),
        files=tuple(
            MetadataLogFile(
                partition=partition,
                file_id=one.file_id,
                name=one.name,
                size_bytes=one.size_bytes,
                records=one.records,
                base_time=time,
            )
            for one in build.files[partition]
        ),
    )
    head = f"{METADATA_TIMELINE}/{time}"
    completed = f"{head}_{build.fence.completion_time}.deltacommit"
    there = storage.names(METADATA_TIMELINE)
    if any(name.startswith(f"{time}_") for name in there):
        return  # an earlier build completed it and died before the properties
    for path, data in (
        (f"{head}.deltacommit.requested", b""),
        (f"{head}.deltacommit.inflight", encode_metadata_inflight()),
        (completed, encode_metadata_deltacommit(update)),
    ):
        _create(storage, path, data)

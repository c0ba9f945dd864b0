"""
Write the files of a compaction or log compaction of the metadata table, one file group at a time.

All names follow from the plan, and the bytes of two executors are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from filegroups.metadata_table.encode import (
    encode_base_file,
    encode_log_file,
    encode_records,
    in_order,
)
from filegroups.metadata_table.log_files import RECORD_TYPES
from filegroups.metadata_table.reading import (
    MergedLogs,
    MetadataTable,
)
from tableservices.planned_service import invalid_plan_error
from timeline.codecs.metadata_instants import metadata_record_schema
from timeline.commit.apply import metadata_plan_path
from timeline.context import TableContext
from timeline.errors import MissingFileError, StorageUnavailableError
from timeline.model.commit_metadata import (
    NO_PREVIOUS_COMMIT,
    SCHEMA_KEY,
    CommitMetadata,
    FileGroupId,
    WriteStat,
)
from timeline.model.file_names import METADATA_TABLE, LogFileName
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.model.plans import CompactionOperation, CompactionPlan
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Storage, create_if_absent

_TOKEN: Final = "0-0-0"  # noqa: S105 - a file name part
_AGAIN: Final = "run the service again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMerge:
    """A compaction of either kind of the metadata table that this process executes."""

    action: Action
    requested_time: InstantTime
    completion_time: InstantTime
    plan: CompactionPlan


def merge_files(
    context: TableContext,
    table: MetadataTable,
    config: TableConfig,
    planned: PlannedMerge,
    made: list[str],
) -> list[WriteStat]:
    """
    Write the base files of a plan, one file group in memory at a time; return their statistics.

    ``made`` receives the paths of the files that this process created. A file group without a base
    file and without a record keeps its log files, as in Java.
    """
    operations, time = planned.plan.operations, planned.requested_time
    # A partition that was dropped has no files.
    named = sorted({one.partition_path or "" for one in operations} & set(table.partitions))
    listed = dict(zip(named, context.ports.for_each(table.files, named), strict=True))
    created_ms = int(context.zone.wall_ms(time))
    stats = []
    for operation in operations:
        partition = operation.partition_path or ""
        kind = kind_of(partition)
        if kind is None or kind not in RECORD_TYPES:
            path = metadata_plan_path(time, planned.action)
            raise invalid_plan_error(path, f"partition {partition!a:.100}")
        one = _planned_slice(operation, *listed.get(partition, ((), ())))
        if planned.action is Action.LOGCOMPACTION:
            logs = table.merged_logs(partition, one)
            stats.append(_write_logs(context, config, planned, one, logs=logs, made=made))
            continue
        rows = table.merged(partition, one)
        if one.base_file is None and not rows.num_rows:
            continue
        version = config.table_version
        rows = in_order(rows, RECORD_TYPES[kind])
        entries = encode_records(rows, RECORD_TYPES[kind], table_version=version)
        data = encode_base_file(
            entries, table_version=version, created_ms=created_ms, kept=(rows, None)
        )
        name = f"{one.file_group.file_id}_{_TOKEN}_{time}.hfile"
        size, is_new = _create(context.ports.storage, one.file_group.partition_path, name, data)
        made += [f"{one.file_group.partition_path}/{name}"] if is_new else []
        stats.append(_stat(one, f"{partition}/{name}", entries.num_rows, size))
    return stats


def _write_logs(
    context: TableContext,
    config: TableConfig,
    planned: PlannedMerge,
    one: FileSlice,
    *,
    logs: MergedLogs,
    made: list[str],
) -> WriteStat:
    """Write the one log file of a slice's log files (MDT-17); return its statistics."""
    folder, time, version = (
        one.file_group.partition_path,
        planned.requested_time,
        config.table_version,
    )
    partition = folder.removeprefix(f"{METADATA_TABLE}/")
    entries = encode_records(
        logs.records, RECORD_TYPES[PartitionKind(kind_of(partition))], table_version=version
    )
    data = encode_log_file(
        partition,
        time,
        table_version=version,
        created_ms=int(context.zone.wall_ms(time)),
        entries=entries,
        deleted_keys=logs.deletes,
        compacted_times=logs.times,
    )
    name = LogFileName(one.file_group.file_id, time, 1, _TOKEN).text
    size, is_new = _create(context.ports.storage, folder, name, data)
    made += [f"{folder}/{name}"] if is_new else []
    return WriteStat(
        file_id=one.file_group.file_id,
        path=f"{partition}/{name}",
        prev_commit=time,
        partition_path=partition,
        num_writes=entries.num_rows,
        num_update_writes=entries.num_rows,
        num_deletes=len(logs.deletes),
        total_write_bytes=size,
        file_size_in_bytes=size,
        log_version=1,
        log_offset=0,
        base_file="",
        log_files=(name,),
        total_log_blocks=len(logs.times),
        total_log_files_compacted=len(one.log_files),
        total_log_size_compacted=sum(log.size_bytes for log in one.log_files),
    )


def _create(storage: Storage, folder: str, name: str, data: bytes) -> tuple[int, bool]:
    """Create a base or log file unless another executor did; return its size and whether it is new."""
    path = f"{folder}/{name}"
    if create_if_absent(storage, path, data, repeat=_AGAIN):
        return len(data), True
    stat = storage.stat(path)
    if stat is None:
        raise StorageUnavailableError(
            f"a file of the metadata table vanished: {_AGAIN}: {path}", path=path
        )
    return stat.size_bytes, False


def _stat(one: FileSlice, path: str, records: int, size_bytes: int) -> WriteStat:
    base = one.base_file
    return WriteStat(
        file_id=one.file_group.file_id,
        path=path,
        prev_commit=base.requested_time if base is not None else NO_PREVIOUS_COMMIT,
        num_writes=records,
        num_inserts=records,
        total_write_bytes=size_bytes,
        file_size_in_bytes=size_bytes,
        partition_path=path.partition("/")[0],
        prev_base_file=base.name if base is not None else None,
        total_log_files_compacted=len(one.log_files),
        total_log_size_compacted=sum(log.size_bytes for log in one.log_files),
    )


def _planned_slice(
    operation: CompactionOperation, bases: Sequence[BaseFile], logs: Sequence[LogFile]
) -> FileSlice:
    """
    Return the slice of an operation, by the files in the folder: the plan is untrusted.

    Raises:
        MissingFileError: A file of it is missing.
    """
    partition, names = operation.partition_path or "", set(operation.delta_file_paths)
    base = next((one for one in bases if one.name == operation.data_file_path), None)
    found = sorted((one for one in logs if one.name in names), key=lambda one: one.order)
    groups = {one.file_group for one in found} | ({base.file_group} if base is not None else set())
    expected = FileGroupId(f"{METADATA_TABLE}/{partition}", operation.file_id or "")
    if (
        groups != {expected}
        or len(found) < len(names)
        or (base is None and operation.data_file_path)
    ):
        raise MissingFileError(
            "a file of a pending compaction of the metadata table is missing; the service plans "
            f"again: {partition} {operation.file_id}",
            path=f"{METADATA_TABLE}/{partition}",
        )
    return FileSlice(
        file_group=expected,
        base_instant_time=operation.base_instant_time or found[0].instant_time,
        base_file=base,
        log_files=tuple(found),
    )


def merge_metadata(
    stats: Sequence[WriteStat], table_version: int, action: Action
) -> CommitMetadata:
    """Return the content of the completed file of a compaction of either kind."""
    by_partition: dict[str, list[WriteStat]] = {}
    for one in stats:
        by_partition.setdefault(one.partition_path or "", []).append(one)
    return CommitMetadata(
        partition_to_write_stats={name: tuple(by_partition[name]) for name in sorted(by_partition)},
        operation_type="COMPACT" if action is Action.COMPACTION else "LOG_COMPACT",
        extra_metadata={SCHEMA_KEY: metadata_record_schema(table_version)},
        compacted=True,
    )

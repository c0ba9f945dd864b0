"""
One file group of a compaction: its slice merged into a base file of a name fixed by the plan.

The file is created whole or not at all, because two executors of one plan may be at it, one
of them taken for dead: whichever comes first made it, and the other adopts it (CMP-2). So
a plan never leaves two base files of one instant in a file group, and never half a one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from timeline.errors import StorageUnavailableError
from timeline.files.markers import create_marker
from timeline.files.parquet import base_file_bytes, read_base_file, read_footer
from timeline.files.rewrite import (
    FileGroupTask,
    base_file_stat,
    bloom_for,
    create_partition_metadata,
    placed_rows,
)
from timeline.files.slice_reader import SliceRead, merge_slice
from timeline.model.commit_metadata import RuntimeStats, WriteStat
from timeline.model.file_group import FileSlice
from timeline.model.filenames import IOType
from timeline.model.paths import join
from timeline.model.schema import META_COLUMNS, TableSchema
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError
from timeline.ports.world import World
from timeline.rules.merging import MergeOutcome, append_rows

__all__ = ["CompactionTask", "compact_file_group"]

_MERGED_APART = META_COLUMNS[3:]  # equal in all rows of a file: written anew, not merged


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """A slice, how it is read, and the base file that it becomes."""

    slice: FileSlice
    read: SliceRead
    target: FileGroupTask


def compact_file_group(world: World, task: CompactionTask) -> WriteStat:
    """
    Merge one slice and write its base file, unless an executor before did.

    Holds the file group in memory, and its new file once more as it is stored.

    Raises:
        MissingFileError: A file of the slice is gone: cancel the plan.
        CorruptTableError: A file of the slice is damaged or does not fit the schema.
        UnsupportedTableError: A log file has blocks that are not read.
        StorageUnavailableError: The storage failed; run the plan again.

    Outside: 1 stat; then the reads of the slice and its footer, 1 create (marker; for a file
    group without a base file also a stat of the partition's metadata) and 1 create.
    """
    storage, target = world.storage, task.target
    path = join(target.partition_path, target.file_name)
    if storage.stat(path) is not None:
        return _adopted(world, task, path)
    started = world.clock.monotonic_ms()
    outcome = _merged(world, task)
    read_ms = world.clock.monotonic_ms() - started
    schema = TableSchema.from_avro(target.avro_json).arrow
    data = base_file_bytes(
        placed_rows(outcome.table, target, schema, target.file_name),
        avro_json=target.avro_json,
        bloom=bloom_for(storage, target, outcome),
        settings=target.parquet,
    )
    if target.base_path is None:
        create_partition_metadata(storage, target.partition_path, target.requested_time)
    io_type = IOType.CREATE if target.base_path is None else IOType.MERGE
    create_marker(storage, target.requested_time, target.partition_path, target.file_name, io_type)
    try:
        storage.create(path, data)
    except ObjectExistsError:
        return _adopted(world, task, path)
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; run the service again: {path}", path=path
        ) from error
    taken = RuntimeStats(
        total_scan_time=read_ms, total_upsert_time=world.clock.monotonic_ms() - started
    )
    return replace(_stat(task, path, outcome, len(data)), runtime_stats=taken)


def _merged(world: World, task: CompactionTask) -> MergeOutcome:
    names = [name for name in task.read.file_schema.names if name not in _MERGED_APART]
    read = replace(task.read, columns=tuple(names))
    outcome = merge_slice(world.storage, world.events, task.slice, read)
    if outcome is None:  # no log of it counts: all were rolled back
        rows = read.output_schema.empty_table()
        base = task.slice.base_file
        if base is not None:
            rows = read_base_file(world.storage, base.path, schema=read.file_schema, columns=names)
        return append_rows(rows, rows.slice(0, 0))
    return replace(outcome, table=outcome.table.select(names))


def _adopted(world: World, task: CompactionTask, path: str) -> WriteStat:
    """
    What another executor of the plan wrote; its footer tells that it is a base file.

    Merged once more all the same: writers have to learn whether deleted keys were left out.
    """
    rows = read_footer(world.storage, path).rows
    stat = world.storage.stat(path)
    if stat is None:
        raise StorageUnavailableError(
            f"a file of the plan vanished; run the service again: {path}", path=path
        )
    return replace(_stat(task, path, _merged(world, task), stat.size_bytes), num_writes=rows)


def _stat(task: CompactionTask, path: str, outcome: MergeOutcome, size_bytes: int) -> WriteStat:
    target, logs = task.target, task.slice.log_files
    merged = outcome.inserted + outcome.updated + outcome.deleted + outcome.ignored_late
    return replace(
        base_file_stat(target, path, outcome, size_bytes),
        total_log_records=merged,
        total_updated_records_compacted=merged,
        total_log_files_compacted=len(logs),
        total_log_size_compacted=sum(log.size_bytes for log in logs),
    )

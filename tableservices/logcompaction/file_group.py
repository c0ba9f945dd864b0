"""
One file group of a log compaction: the logs of its slice folded into one of a fixed name.

The new log says which instants it stands for; readers then leave their blocks out and take
it at the place of the newest of them (fmt 5.7). Created whole or not at all, as the base
files of a compaction are (CMP-2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timeline.codecs.avro_columns import encode_records
from timeline.codecs.delete_block import encode_deletes
from timeline.codecs.log_blocks import BlockType, HeaderKey, LogBlock, block_frame
from timeline.errors import StorageUnavailableError, UnsupportedTableError
from timeline.files.blocks import find_blocks
from timeline.files.log_files import LogRead, read_logs
from timeline.files.markers import create_marker
from timeline.files.parquet import ParquetSettings, parquet_bytes
from timeline.model.appending import LogFormat
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_group import FileSlice
from timeline.model.filenames import IOType, LogFileName
from timeline.model.paths import join
from timeline.model.schema import KEY_COLUMN, TableSchema, avro_with_meta, with_meta
from timeline.model.times import InstantTime
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError
from timeline.ports.world import World
from timeline.rules.merging import ChangeKind, Changes
from timeline.rules.ordering import ordering_column

__all__ = ["LogCompactionTask", "compact_logs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionTask:
    """A slice's logs, how they are read, and the log they become."""

    slice: FileSlice
    read: LogRead
    requested_time: InstantTime
    number: int  # place in the plan: the write token
    avro_json: str
    format: LogFormat
    parquet: ParquetSettings

    @property
    def file_name(self) -> str:
        """A function of the plan."""
        token = f"{self.number}-0-0"
        return LogFileName(self.slice.file_group.file_id, self.requested_time, 1, token).text


def compact_logs(world: World, task: LogCompactionTask) -> WriteStat | None:
    """
    Fold the logs of one slice and write the log that stands for them; None if none counts.

    Raises:
        MissingFileError: A log file is gone: cancel the plan.
        CorruptTableError: A log file is damaged.
        UnsupportedTableError: The logs hold partial updates.
        StorageUnavailableError: The storage failed; run the plan again.

    Outside: 2 open_input for each log, 1 create (marker), 1 create; 1 stat where an executor
    before had written it.
    """
    storage, logs = world.storage, task.slice.log_files
    blocks = find_blocks(storage, logs, task.read.visible)
    if any(block.is_partial for block in blocks):
        raise UnsupportedTableError(
            "log files with partial updates are not put together by this release; cancel the "
            f"plan and compact: {task.slice.file_group}",
            kind="partial_blocks",
        )
    changes = read_logs(storage, world.events, logs, task.read)
    if changes is None:
        return None
    records, deletes = _split(changes, task.read)
    data = b"".join(_blocks(task, blocks, records, deletes))
    partition_path = task.slice.file_group.partition_path
    path = join(partition_path, task.file_name)
    create_marker(storage, task.requested_time, partition_path, task.file_name, IOType.CREATE)
    size_bytes = len(data)
    try:
        storage.create(path, data)
    except ObjectExistsError:
        found = storage.stat(path)
        size_bytes = found.size_bytes if found is not None else size_bytes
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; run the service again: {path}", path=path
        ) from error
    return WriteStat(
        file_id=task.slice.file_group.file_id,
        path=path,
        prev_commit=task.requested_time,  # as Java's: a log has no earlier version
        partition_path=partition_path,
        num_writes=records.num_rows,
        num_update_writes=records.num_rows,
        num_deletes=deletes.num_rows,
        total_write_bytes=size_bytes,
        file_size_in_bytes=size_bytes,
        log_version=1,
        log_offset=0,
        base_file="",
        log_files=(task.file_name,),
        total_log_records=changes.rows.num_rows,
        total_updated_records_compacted=changes.rows.num_rows,
        total_log_blocks=len(blocks),
        total_log_files_compacted=len(logs),
        total_log_size_compacted=sum(log.size_bytes for log in logs),
    )


def _split(changes: Changes, read: LogRead) -> tuple[pa.Table, pa.Table]:
    """
    The records, also those that say of themselves that they are deleted, and the deletes.

    A delete that holds by commit time has no ordering value.
    """
    rules = read.rules
    of_block = (changes.kinds != ChangeKind.RECORD) & ~rules.deletes(changes.rows)
    records = changes.rows.filter(pa.array(~of_block)).select(read.schema.names)
    gone = changes.rows.filter(pa.array(of_block))
    by_commit_time = pa.array(changes.kinds[of_block] == ChangeKind.COMMIT_TIME_DELETE)
    names = rules.ordering_fields if rules.reads_order else ()
    columns = []
    for name in names:
        values = ordering_column(gone, name)
        nothing = pa.scalar(None, values.type)
        columns.append(pc.if_else(by_commit_time, nothing, values))
    return records, pa.table([gone.column(KEY_COLUMN), *columns], names=[KEY_COLUMN, *names])


def _blocks(
    task: LogCompactionTask, blocks: tuple[LogBlock, ...], records: pa.Table, deletes: pa.Table
) -> list[bytes]:
    """The new log's bytes, block by block: records, then deletes."""
    avro_json = avro_with_meta(task.avro_json)
    newest_first = dict.fromkeys(block.instant_time for block in reversed(blocks))
    header: dict[int, str] = {
        HeaderKey.INSTANT_TIME: task.requested_time,
        HeaderKey.SCHEMA: avro_json,
        HeaderKey.COMPACTED_BLOCK_TIMES: ",".join(newest_first),
    }
    pieces: list[bytes] = []
    if records.num_rows:
        kind, content = BlockType.PARQUET_DATA, b""
        if task.format is LogFormat.PARQUET:
            content = parquet_bytes(records, task.avro_json, task.parquet)
        else:
            plain = with_meta(TableSchema.from_avro(task.avro_json).arrow)
            kind, content = BlockType.AVRO_DATA, encode_records(records.cast(plain), avro_json)
        head, tail = block_frame(kind, header, len(content))
        pieces += [head, content, tail]
    if deletes.num_rows:
        columns = deletes.columns[1:]
        unordered = None
        if columns:
            missing = np.logical_or.reduce([np.asarray(pc.is_null(each)) for each in columns])
            unordered = pa.array(missing) if missing.any() else None
        content = encode_deletes(
            deletes.column(KEY_COLUMN),
            task.slice.file_group.partition_path,
            columns,
            is_commit_time=unordered,
        )
        head, tail = block_frame(BlockType.DELETE, header, len(content))
        pieces += [head, content, tail]
    return pieces

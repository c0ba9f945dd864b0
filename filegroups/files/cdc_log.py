"""
The CDC log of one rewritten base file: write it, and read it (fmt 5.4).

The log has the base file's write token and requested time, so that a rollback or clean of one finds
the other. Readers find it only through the base file's write stat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import decode_block, encode_records
from filegroups.files.blocks import opened
from filegroups.files.record_values import record_values
from filegroups.merge.change_images import (
    AFTER,
    BEFORE,
    CHANGE_TIME,
    OPERATION,
    OPERATIONS,
    RECORD_KEY,
    RecordChanges,
    cdc_schema,
    changes_of_merge,
    image,
    operation_texts,
)
from filegroups.merge.merging import MergeOutcome
from filegroups.schema.schema import KEY_COLUMN
from timeline.codecs.log_blocks import (
    BlockType,
    HeaderKey,
    LogBlock,
    encode_block,
    iter_blocks,
    read_content,
)
from timeline.commit.markers import create_marker
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import CdcMode
from timeline.model.file_names import BaseFileName, IOType, LogFileName, join
from timeline.model.instant_time import InstantTime
from timeline.ports.storage import Storage

__all__ = [
    "cdc_log_name",
    "kinds_of",
    "read_cdc_log",
    "write_cdc_log",
    "write_cdc_of_merge",
]

_CHUNK_ROWS: Final = 16 * 1024
_BLOCK_BYTES: Final = 256 * 1024 * 1024  # hoodie.logfile.data.block.max.size


def cdc_log_name(base: BaseFileName) -> str:
    """Return the name of the CDC log that belongs to a base file."""
    return LogFileName(base.file_id, base.requested_time, 1, base.write_token, is_cdc=True).text


def write_cdc_of_merge(
    storage: Storage,
    partition_path: str,
    base: BaseFileName,
    before: pa.Table,
    outcome: MergeOutcome,
    *,
    mode: CdcMode,
    avro_json: str,
    by_values: bool = False,
) -> dict[str, int]:
    """
    Write the CDC log of a base file that was merged from another.

    Args:
        storage: Storage of the table.
        partition_path: The partition of both files.
        base: The new base file's name.
        before: Rows of the old one, with record key and commit time.
        outcome: The merge result in the new one.
        mode: The images to write.
        avro_json: The table's schema without meta columns.
        by_values: Whether rows may change without a new commit time.

    Returns:
        Path and size of the log, for the write stat.

    Errors: as ``write_cdc_log``. Outside: 1 create (marker), 1 open_output.
    """
    values = None
    if by_values:
        values = record_values(before, avro_json), record_values(outcome.table, avro_json)
    changes = changes_of_merge(before, outcome, base.requested_time, values)
    name = cdc_log_name(base)
    create_marker(storage, base.requested_time, partition_path, name, IOType.CREATE)
    path = join(partition_path, name)
    size_bytes = write_cdc_log(
        storage,
        path,
        changes,
        (before, outcome.table),
        mode=mode,
        avro_json=avro_json,
        requested_time=base.requested_time,
    )
    return {path: size_bytes}


def write_cdc_log(
    storage: Storage,
    path: str,
    changes: RecordChanges,
    states: tuple[pa.Table, pa.Table],
    *,
    mode: CdcMode,
    avro_json: str,
    requested_time: InstantTime,
) -> int:
    """
    Write a CDC log; blocks end near 256 MiB, and only a part of the rows is encoded at a time.

    Args:
        storage: Storage of the table.
        path: Relative path of the new file; its marker exists.
        changes: The changes.
        states: The rows before and after, to which the changes refer, with the record key and the
            table's columns.
        mode: The images to write.
        avro_json: The table's schema without meta columns.
        requested_time: Of the writing instant.

    Returns:
        Its size in bytes.

    Raises:
        ObjectExistsError: The name is taken.
        StorageUnavailableError: The storage failed; the unfinished file is removed.

    Outside: 1 open_output.
    """
    schema = cdc_schema(mode, avro_json)
    header: dict[int, str] = {HeaderKey.SCHEMA: schema, HeaderKey.INSTANT_TIME: requested_time}
    names = [each for each in states[1].schema.names if not each.startswith("_hoodie_")]
    with storage.open_output(path) as sink:
        start = 0
        rows = _CHUNK_ROWS
        while start < len(changes):
            part = changes.part(start, rows)
            table = _rows(part, states, names, mode, requested_time)
            if table.nbytes > _BLOCK_BYTES and len(part) > 1:
                rows = len(part) // 2
                continue
            content = encode_records(table, schema)
            sink.write(encode_block(BlockType.CDC_DATA, header, content))
            start += len(part)
        return sink.tell()


def _rows(
    changes: RecordChanges,
    states: tuple[pa.Table, pa.Table],
    names: list[str],
    mode: CdcMode,
    requested_time: InstantTime,
) -> pa.Table:
    before, after = states
    columns: dict[str, Any] = {OPERATION: operation_texts(changes.kinds)}
    if mode is CdcMode.DATA_BEFORE_AFTER:
        columns[CHANGE_TIME] = pa.repeat(pa.scalar(requested_time), len(changes))
    else:
        old = image(before.select([KEY_COLUMN]), changes.before).field(0)
        new = image(after.select([KEY_COLUMN]), changes.after).field(0)
        columns[RECORD_KEY] = pc.coalesce(new, old)
    if mode is not CdcMode.OP_KEY_ONLY:
        columns[BEFORE] = image(before.select(names), changes.before)
    if mode is CdcMode.DATA_BEFORE_AFTER:
        columns[AFTER] = image(after.select(names), changes.after)
    return pa.table(columns)


def read_cdc_log(
    storage: Storage, path: str, requested_time: InstantTime
) -> Iterator[tuple[LogBlock, pa.Table]]:
    """
    Read a CDC log block by block.

    Yields:
        The block and its rows, as written: ``op``, and those of ``ts_ms``, ``record_key``,
        ``before`` and ``after`` that its mode has.

    Raises:
        MissingFileError: It is missing.
        CorruptTableError: It is damaged. It was committed whole, so no block is skipped.

    Outside: 1 open_input, 1 stat.
    """
    size = storage.stat(path)
    with opened(storage, path) as source:
        size_bytes = 0 if size is None else size.size_bytes
        for block in iter_blocks(source, size_bytes, path=path):
            if block.block_type is not BlockType.CDC_DATA or block.instant_time != requested_time:
                raise _damaged(path, f"a block of type {block.block_type.name}")
            rows = decode_block(read_content(source, block), block.schema_json, path=path)
            yield block, _checked(rows, path)


def kinds_of(rows: pa.Table) -> pa.Array:
    """Return the column ``op`` of a CDC log as numbers of ``Kind``."""
    return pc.index_in(rows.column(OPERATION), value_set=pa.array(OPERATIONS))


def _checked(rows: pa.Table, path: str) -> pa.Table:
    held = set(rows.schema.names)
    if OPERATION not in held or not ({RECORD_KEY} <= held or {BEFORE, AFTER} <= held):
        raise _damaged(path, f"its rows have the columns {rows.schema.names}")
    if kinds_of(rows).null_count:
        raise _damaged(path, "an operation is none of i, u and d")
    for name in (BEFORE, AFTER):
        if name in held and not pa.types.is_struct(rows.schema.field(name).type):
            raise _damaged(path, f"{name} is no record")
    return rows


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"a change log is damaged ({why}); the rows themselves are whole, read the table "
        f"without images: {path}",
        kind="bad_change_log",
        path=path,
    )

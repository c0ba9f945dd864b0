"""
Append to one file group by log files; ``rewrite`` writes base files instead.

Updates, and rows marked as deleted, are written without a read of existing rows; readers merge them
by the table's rules. A delete by key carries the ordering value of the row it deletes, read from
the merged slice. A commit-time delete would lose its effect after a late row: the deleted row would
be visible again, and readers of Hudi 1.0 fail on it (fmt 5.5).

Record positions are left out: they are optional, and wrong ones are dangerous (fmt 5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import encode_records
from filegroups.files.delete_block import encode_deletes
from filegroups.files.log_files import LogSettings, LogTarget
from filegroups.files.parquet import parquet_bytes, read_base_file
from filegroups.files.rewrite import (
    FileGroupTask,
    create_partition_metadata,
    full_rows,
    merge_rules_of,
    with_meta_columns,
    written_schema,
)
from filegroups.files.slice_reader import SliceRead, merged_slice_rows
from filegroups.keys.keys import field_type
from filegroups.merge.merging import DeleteKind, combine_incoming, split_relocated_keys
from filegroups.merge.rules import MergeRules, ordering_column
from filegroups.schema.schema import (
    KEY_COLUMN,
    PARTITION_COLUMN,
    TableSchema,
    avro_with_meta,
    with_meta,
)
from timeline.codecs.log_blocks import BlockType, HeaderKey, block_frame
from timeline.commit.markers import create_marker
from timeline.errors import InvariantError
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_names import (
    IOType,
    LogFileName,
    check_partition_path,
    join,
)
from timeline.ports.ports import ObjectExistsError, Storage
from timeline.properties.setting_enums import LogFormat
from timeline.system import NullEvents


def block_format(settings: LogSettings, rules: MergeRules, schema: pa.Schema) -> LogFormat:
    """
    Return the format of data blocks: Parquet, or Avro if an ordering field is a text.

    Parquet is smaller. But the reader of Java Hudi 1.0.2 and 1.2.0 keeps a text of a Parquet block
    in memory that the next row overwrites. So its queries compare the last row's value and return
    older rows.

    Args:
        settings: Their format wins if it is set.
        rules: Name the ordering fields.
        schema: The table's columns.
    """
    if settings.format is not None or not rules.reads_order:
        return settings.format or LogFormat.PARQUET
    kinds = (field_type(schema, name) for name in rules.ordering_fields)
    texts = any(kind in (pa.string(), pa.large_string()) for kind in kinds)
    return LogFormat.AVRO if texts else LogFormat.PARQUET


def append_to_file_group(
    storage: Storage, task: FileGroupTask, target: LogTarget, incoming: pa.Table
) -> tuple[WriteStat, ...]:
    """
    Append rows to a slice: a block of records, then one of deletes (fmt 5.4).

    Args:
        storage: Storage of the table.
        task: What to write and how; its base file, if any, is the slice's.
        target: Settings of log files, and the slice's existing ones.
        incoming: Rows with ``_hoodie_record_key`` and the table's columns, or some of them if the
            task is partial; of equal keys one is written. An explicit delete needs the record keys
            only.

    Returns:
        One stat per log file, more than one if it would grow too big; none if there is nothing to
        write (no rows, or deletes of missing keys).

    Raises:
        MissingFileError: A file of the slice was cleaned since (hole 12).
        CorruptTableError: A file of the slice is damaged.
        InvalidInputError: A value does not fit the schema, or an ordering value no delete block.
        StorageUnavailableError: The storage failed; a marker may remain for the rollback.

    Outside, per log file: 1 create (marker), 1 open_output. For deletes by key, first the slice's
    files. For a file group's first log, 1 stat and at most 1 create (partition metadata). The
    caller makes names durable (``sync_folders``) before it commits.
    """
    check_partition_path(task.partition_path)
    written = written_schema(task, incoming)
    base_name, below = _is_based_on(task, target)
    records, deletes = _changes(storage, task, target, incoming, written.arrow)
    blocks = _blocks(task, target.settings, records, deletes, written)
    stats: list[WriteStat] = []
    block = next(blocks, None)
    opens = task.base_path is None and not target.logs
    if opens and block is not None and not task.partition_marked:
        create_partition_metadata(
            storage, task.partition_path, task.requested_time, ending=task.partition_metafile
        )
    while block is not None:
        name = LogFileName(task.file_id, task.requested_time, len(stats) + 1, task.write_token).text
        path = join(task.partition_path, name)
        create_marker(storage, task.requested_time, task.partition_path, name, IOType.CREATE)
        size_bytes = rows = gone = 0
        try:
            with storage.open_output(path) as sink:
                while block is not None and (
                    not size_bytes
                    or size_bytes + block.size_bytes <= target.settings.file_bytes_max
                ):
                    for piece in block.pieces:
                        sink.write(piece)
                    size_bytes += block.size_bytes
                    rows, gone = rows + block.records, gone + block.deletes
                    block = next(blocks, None)
        except ObjectExistsError as error:
            raise InvariantError(
                f"two attempts of one task have one write token; report it: {path}", path=path
            ) from error
        stats.append(
            WriteStat(
                file_id=task.file_id,
                path=path,
                prev_commit=task.requested_time,  # as Java's: a log has no earlier version
                partition_path=task.partition_path,
                num_writes=rows,
                num_inserts=rows if opens else 0,
                num_update_writes=0 if opens else rows,
                num_deletes=gone,
                total_write_bytes=size_bytes,
                file_size_in_bytes=size_bytes,
                log_version=len(stats) + 1,
                log_offset=0,
                base_file=base_name,
                log_files=(*below, name),
            )
        )
    return tuple(stats)


def _is_based_on(task: FileGroupTask, target: LogTarget) -> tuple[str, tuple[str, ...]]:
    """
    Return the base file and the logs below a new log, for its stat, as Java writes them.

    Java Hudi reads the row before a change there, so only tables with CDC logs have them.
    """
    if task.change_log is None:
        return "", ()
    base_name = "" if task.base_path is None else task.base_path.rpartition("/")[2]
    return base_name, tuple(log.name for log in target.logs)


def current_rows(
    storage: Storage, task: FileGroupTask, target: LogTarget, columns: tuple[str, ...]
) -> pa.Table:
    """
    Return the record keys and some columns of the merged slice that a task appends to.

    A dotted name is a field inside a struct.

    Errors: as ``append_to_file_group``. Outside: 1 open_input a file of the slice, 2 of a log.
    """
    schema = with_meta(TableSchema.from_avro(task.avro_json).arrow)
    computed = task.virtual_keys
    fields = tuple(one.partition(".")[0] for one in computed.fields) if computed else ()
    heads = (one.partition(".")[0] for one in columns)
    names = tuple(dict.fromkeys((KEY_COLUMN, *fields, *heads)))
    read = SliceRead(
        file_schema=schema,
        columns=names,
        rules=merge_rules_of(task),
        keys=computed,
        visible=frozenset(log.instant_time for log in target.logs),
        history=task.history,
    )
    rows, one = None, task.previous_slice
    if one is not None and one.log_files:
        # Reads of the table report corrupt blocks.
        rows = merged_slice_rows(storage, NullEvents(), one, read)
    if rows is None:
        rows = read.output_schema.empty_table()
        if task.base_path is not None:
            rows = read_base_file(
                storage, task.base_path, schema=schema, columns=names, renaming=task.renaming
            )
    if computed is not None:
        rows = computed.fill(rows)
    return _keys_and(rows, columns)


def _keys_and(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    values = [ordering_column(rows, name) for name in columns]
    return pa.table([rows.column(KEY_COLUMN), *values], names=[KEY_COLUMN, *columns])


def _changes(
    storage: Storage,
    task: FileGroupTask,
    target: LogTarget,
    incoming: pa.Table,
    schema: pa.Schema,
) -> tuple[pa.Table, pa.Table]:
    """Return the records to write, and the keys to delete with their ordering values."""
    rules = merge_rules_of(task)
    incoming, by_key = split_relocated_keys(incoming)
    ordering = rules.ordering_fields if rules.by_order or rules.merger else ()
    records = with_meta(schema).empty_table()
    deletes = _keys_and(records, ordering)
    shape = deletes.schema
    if task.deletes is DeleteKind.EXPLICIT:
        by_key = incoming.column(KEY_COLUMN)
    elif incoming.num_rows:
        if PARTITION_COLUMN in incoming.schema.names:  # readers compare keys alone
            incoming = incoming.drop_columns([PARTITION_COLUMN])
        incoming = combine_incoming(incoming, rules)
        rows = with_meta_columns(task, incoming, schema)
        if task.deletes is DeleteKind.COLUMN:
            gone = rules.deletes(rows)
            deletes = _keys_and(rows.filter(pa.array(gone)), ordering).cast(shape)
            rows = rows.filter(pa.array(~gone))
        records = full_rows(rows, task, schema, task.file_id)
    if by_key is not None and len(by_key):
        held = current_rows(storage, task, target, ordering).cast(shape)
        there = held.filter(pc.is_in(held.column(KEY_COLUMN), value_set=pc.unique(by_key)))
        # A key that plain inserts wrote twice is deleted with the ordering value of each row.
        deletes = pa.concat_tables([deletes, there])
    return records, deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    pieces: tuple[bytes, ...]
    records: int = 0
    deletes: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(len(piece) for piece in self.pieces)


def _blocks(
    task: FileGroupTask,
    settings: LogSettings,
    records: pa.Table,
    deletes: pa.Table,
    written: TableSchema,
) -> Iterator[_Block]:
    """Yield blocks of bounded size, encoded on demand; ``written`` is the records' schema."""
    avro_json = avro_with_meta(written.avro_json)
    header: dict[int, str] = {
        HeaderKey.INSTANT_TIME: task.requested_time,
        HeaderKey.SCHEMA: avro_json,
    }
    of_records = {**header, HeaderKey.IS_PARTIAL: "true"} if task.partial else header
    plain = with_meta(written.arrow)
    as_parquet = block_format(settings, merge_rules_of(task), plain) is LogFormat.PARQUET
    kind = BlockType.PARQUET_DATA if as_parquet else BlockType.AVRO_DATA
    for part in _parts(records, settings.block_bytes_max):
        if as_parquet:
            content = parquet_bytes(part, written.avro_json, task.parquet)
        else:
            content = encode_records(part.cast(plain), avro_json)
        head, tail = block_frame(kind, of_records, len(content))
        yield _Block(pieces=(head, content, tail), records=part.num_rows)
    for part in _parts(deletes, settings.block_bytes_max):
        columns = part.columns[1:]
        unordered = _without_value(columns) if columns else None
        content = encode_deletes(
            part.column(KEY_COLUMN), task.partition_path, columns, is_commit_time=unordered
        )
        head, tail = block_frame(BlockType.DELETE, header, len(content))
        yield _Block(pieces=(head, content, tail), deletes=part.num_rows)


def _parts(rows: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    if not rows.num_rows:
        return
    step = max(1, min(rows.num_rows, bytes_max * rows.num_rows // max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _without_value(columns: list[pa.ChunkedArray]) -> pa.Array | None:
    """Return a mask of rows without ordering value: commit-time deletes; None for none."""
    missing = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        missing |= np.asarray(pc.is_null(column)).astype(np.bool_)
    return pa.array(missing) if missing.any() else None

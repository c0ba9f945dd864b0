"""
Write one file group: the single function that both executors run.

A task is a frozen value that travels as JSON, so the local executor's threads and Spark's tasks do
exactly the same. They create the marker, read the old file, merge, write the new file, and return
Hudi's write stat. Nothing becomes visible before the instant is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from filegroups.files.bloom import DYNAMIC, BloomFilter, BloomSettings
from filegroups.files.cdc_log import write_cdc_of_merge
from filegroups.files.log_files import LogTarget
from filegroups.files.parquet import (
    base_file_bytes,
    empty_file,
    is_small,
    read_base_file,
    read_footer,
    with_compute_lock,
    write_base_file,
)
from filegroups.files.parquet_layout import ParquetSettings
from filegroups.keys.keys import VirtualKeys
from filegroups.merge.merging import (
    DeleteKind,
    MergeOutcome,
    append_rows,
    merge_base,
    remove_relocated_keys,
    split_relocated_keys,
)
from filegroups.merge.rules import MergeRules
from filegroups.schema.casting import normalise
from filegroups.schema.column_ids import Renaming, SchemaHistory
from filegroups.schema.schema import (
    FILE_NAME_COLUMN,
    KEY_COLUMN,
    META_COLUMNS,
    PARTITION_COLUMN,
    TableSchema,
    with_meta,
)
from timeline.commit.markers import create_marker
from timeline.errors import CorruptTableError, InvariantError, StorageUnavailableError
from timeline.model.commit_metadata import (
    NO_PREVIOUS_COMMIT,
    CdcMode,
    FileGroupId,
    MergeMode,
    WriteOperation,
    WriteStat,
)
from timeline.model.file_names import (
    PARTITION_METADATA,
    BaseFileName,
    IOType,
    LogFileName,
    check_partition_path,
    join,
)
from timeline.model.file_slice import BaseFile, FileSlice
from timeline.model.instant_time import InstantTime
from timeline.model.merge_definition import MergeDefinition
from timeline.ports.ports import ObjectExistsError, Storage, create_if_absent
from timeline.properties.properties_file import format_properties

_BY_COMMIT_TIME = MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupTask:
    """Everything a task needs besides its rows."""

    requested_time: InstantTime
    operation: WriteOperation
    partition_path: str
    file_id: str
    write_token: str  # unique for this attempt of this task
    task_number: int  # second part of every sequence number
    avro_json: str  # the table's schema to write with, without meta columns
    base_path: str | None = None  # newest base file of the file group; None makes a new one
    base_requested_time: InstantTime | None = None
    merge: MergeDefinition = _BY_COMMIT_TIME  # how its rows and existing ones are merged
    deletes: DeleteKind = DeleteKind.NONE
    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    bloom: BloomSettings | None = field(default_factory=BloomSettings)  # None writes none
    stores_keys: bool = True  # False leaves the meta columns empty
    virtual_keys: VirtualKeys | None = None  # how keys that are not stored are computed
    automatic_keys: bool = False  # rows have no key and get one here
    change_log: CdcMode | None = None  # the images in a rewrite's CDC log; None writes no log
    partial: bool = False  # rows have some of the columns; records keep the others
    log: LogTarget | None = None  # append to the slice instead of writing a new base file
    partition_metafile: str = ""  # the ending of a new partition's metadata file
    partition_marked: bool = False  # the partition's metadata file exists
    announced: bool = False  # its base file has a marker already
    indexed: bool = False  # the record index has the keys of all its rows in its file group
    history: SchemaHistory | None = None  # names of columns in older files, if columns have ids

    @property
    def file_group(self) -> FileGroupId:
        """The file group that it writes."""
        return FileGroupId(self.partition_path, self.file_id)

    @property
    def file_name(self) -> str:
        """The file this task will write; the first of several log files."""
        if self.log is not None:
            return LogFileName(self.file_id, self.requested_time, 1, self.write_token).text
        return BaseFileName(self.file_id, self.write_token, self.requested_time).text

    @property
    def previous_slice(self) -> FileSlice | None:
        """The slice that it changes; its base file has no size. None makes a new file group."""
        logs = () if self.log is None else self.log.logs
        if self.base_path is None and not logs:
            return None
        base = None
        if self.base_path is not None:
            base = BaseFile(
                file_group=self.file_group,
                name=self.base_path.rpartition("/")[2],
                requested_time=self.base_requested_time or "",
                size_bytes=0,
            )
        return FileSlice(
            file_group=self.file_group,
            base_instant_time=self.base_requested_time or logs[0].instant_time,
            base_file=base,
            log_files=logs,
        )

    @property
    def renaming(self) -> Renaming | None:
        """How to read its base file in the table's names; None if that has them."""
        if self.history is None or self.base_requested_time is None:
            return None
        return self.history.renaming_for(self.base_requested_time)

    def to_json(self) -> str:
        """Return the task as text, for a worker in another process; without a plug-in's merger."""
        return _task_codec().dump_json(self, exclude={"merge": {"merger"}}).decode()

    @classmethod
    def from_json(cls, text: str) -> FileGroupTask:
        """Read back the output of ``to_json``."""
        return _task_codec().validate_json(text)


@cache
def _task_codec() -> TypeAdapter[FileGroupTask]:
    return TypeAdapter(FileGroupTask)


@cache
def _stats_codec() -> TypeAdapter[tuple[WriteStat, ...]]:
    return TypeAdapter(tuple[WriteStat, ...])


def stats_to_json(stats: tuple[WriteStat, ...]) -> str:
    """Return write stats as text, for the result of a worker."""
    return _stats_codec().dump_json(stats).decode()


def stats_from_json(text: str) -> tuple[WriteStat, ...]:
    """Read back the output of ``stats_to_json``."""
    return _stats_codec().validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFileGroup:
    """The rows of a new file group, and its encoded file if that is small."""

    outcome: MergeOutcome
    content: bytes | None  # None for a big one, or if nothing changes


def make_new_file_group(storage: Storage, task: FileGroupTask, incoming: pa.Table) -> NewFileGroup:
    """
    Make a new file group in memory; nothing is read or written.

    Arguments, errors: as ``write_file_group``.
    """
    schema = TableSchema.from_avro(task.avro_json).arrow
    with with_compute_lock(storage, incoming):
        outcome = _first_rows(task, incoming, schema)
        content = _small_file(storage, task, outcome, schema)
    return NewFileGroup(outcome=outcome, content=content)


def write_file_group(
    storage: Storage, task: FileGroupTask, incoming: pa.Table, made: NewFileGroup | None = None
) -> tuple[WriteStat, ...]:
    """
    Write the next version of a file group, or its first.

    If the table has CDC logs, the next version gets one; the first needs none.

    Args:
        storage: Storage of the table.
        task: What to write and how.
        incoming: Rows with ``_hoodie_record_key`` and the table's columns (other meta columns are
            filled here); keys are unique unless the operation only appends. An explicit delete
            needs the record keys only.
        made: The first version of a new file group, if it was made already.

    Returns:
        One stat; none if nothing would change (no rows, only late or unmatched ones). Then no file
        was written and the old one stays the newest.

    Raises:
        MissingFileError: The base file was cleaned since, so the caller must plan again from a new
            snapshot (concurrency hole 12).
        CorruptTableError: The base file is damaged or does not fit the schema.
        InvalidInputError: A value does not fit the schema.
        StorageUnavailableError: The storage failed; a marker may remain for the rollback.

    Outside: with a base file 2 open_kept; 1 stat and at most 1 create (partition metadata not seen
    yet, new file groups only); 1 create (marker, unless it exists); 1 open_output; the last two
    again for a CDC log. The caller makes the names durable (``sync_folders``) before it commits.
    """
    schema = TableSchema.from_avro(task.avro_json).arrow
    check_partition_path(task.partition_path)
    before: pa.Table | None = None
    content: bytes | None = None
    if task.base_path is None:
        made = made or make_new_file_group(storage, task, incoming)
        outcome, content = made.outcome, made.content
    else:
        base, outcome = _next_version(storage, task, task.base_path, incoming, schema)
        before = None if task.change_log is None else base
        del base
    if not outcome.changed:
        return ()
    bloom = None if content is not None else bloom_for(storage, task, outcome)
    path = join(task.partition_path, task.file_name)
    if task.base_path is None and not task.partition_marked:
        create_partition_metadata(
            storage, task.partition_path, task.requested_time, ending=task.partition_metafile
        )
    if not task.announced:
        announce_base_file(storage, task)
    try:
        if content is not None:
            with storage.open_output(path) as sink:
                sink.write(content)
            size_bytes = len(content)
        else:
            size_bytes = write_base_file(
                storage,
                path,
                full_rows(outcome.table, task, schema, task.file_name),
                avro_json=task.avro_json,
                bloom=bloom,
                settings=task.parquet,
            )
        logged = None if before is None else _log_changes(storage, task, before, outcome)
    except ObjectExistsError as error:
        raise InvariantError(
            f"two attempts of one task have one write token; report it: {path}", path=path
        ) from error
    return (replace(base_file_stat(task, path, outcome, size_bytes), cdc_stats=logged),)


def _small_file(
    storage: Storage, task: FileGroupTask, outcome: MergeOutcome, schema: pa.Schema
) -> bytes | None:
    """Return a first version as a whole file; None if it is big or empty."""
    if not outcome.changed or not is_small(outcome.table):
        return None
    return base_file_bytes(
        full_rows(outcome.table, task, schema, task.file_name),
        avro_json=task.avro_json,
        bloom=bloom_for(storage, task, outcome),  # for a first version this reads nothing
        settings=task.parquet,
    )


def announce_base_file(storage: Storage, task: FileGroupTask) -> None:
    """Create the marker of a task's base file. Outside, errors: as ``create_marker``."""
    io_type = IOType.CREATE if task.base_path is None else IOType.MERGE
    create_marker(storage, task.requested_time, task.partition_path, task.file_name, io_type)


def _log_changes(
    storage: Storage, task: FileGroupTask, before: pa.Table, outcome: MergeOutcome
) -> dict[str, int] | None:
    """Write the CDC log of a rewrite; return its path and size for the write stat."""
    if task.change_log is None:
        return None
    # If a late record fills in values, no commit time shows it.
    return write_cdc_of_merge(
        storage,
        task.partition_path,
        BaseFileName(task.file_id, task.write_token, task.requested_time),
        before,
        outcome,
        mode=task.change_log,
        avro_json=task.avro_json,
        by_values=task.merge.updates_partially,
    )


def create_partition_metadata(
    storage: Storage,
    partition_path: str,
    requested_time: InstantTime,
    *,
    ending: str = "",
    checks_first: bool = True,
) -> None:
    """
    Create the metadata file by which Java finds a partition, unless it exists (fmt 4.1).

    Args:
        storage: The table's.
        partition_path: The partition.
        requested_time: Requested time of the instant that creates it.
        ending: ``.parquet`` for a table with ``hoodie.partition.metafile.use.base.format``; then
            the properties are in the footer of a file without rows, as from Java.
        checks_first: Whether to check first if it exists.

    Raises:
        StorageUnavailableError: No answer; the file may exist now or later.

    Outside: 1 stat, and 1 create if it is new. Without ``checks_first`` 1 create, which costs as much as
    the check.
    """
    path = join(partition_path, PARTITION_METADATA + ending)
    if checks_first and storage.stat(path) is not None:
        return
    depth = partition_path.count("/") + 1 if partition_path else 0
    # The date is a comment of Java's properties files; the instant's own time makes it repeatable.
    moment = datetime.strptime(requested_time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    properties = {"commitTime": requested_time, "partitionDepth": str(depth)}
    if ending:
        data = empty_file(properties)
    else:
        comments = ("partition metadata", f"{moment:%a %b %d %H:%M:%S UTC %Y}")
        data = format_properties(properties, comments)
    # Another task of this or another write may create it first.
    create_if_absent(storage, path, data, repeat="write again")


def _first_rows(task: FileGroupTask, incoming: pa.Table, schema: pa.Schema) -> MergeOutcome:
    empty = _merged_schema(schema).empty_table()
    if task.deletes is DeleteKind.EXPLICIT:
        return append_rows(empty, empty)  # an empty file group has nothing to delete
    incoming, _ = split_relocated_keys(incoming)
    rows = with_meta_columns(task, incoming, schema)
    if task.deletes is DeleteKind.NONE:
        return append_rows(empty, rows)
    return merge_base(empty, rows, merge_rules_of(task), deletes=DeleteKind.COLUMN)


def _next_version(
    storage: Storage, task: FileGroupTask, base_path: str, incoming: pa.Table, schema: pa.Schema
) -> tuple[pa.Table, MergeOutcome]:
    """Return the existing rows, and the merged ones."""
    # Partition path and file name are equal in all rows and written again: not read, not merged.
    wanted, names = _merged_schema(schema), task.renaming
    base = read_base_file(storage, base_path, schema=wanted, renaming=names, kept=True)
    if task.virtual_keys is not None and not task.operation.traits.only_adds:
        base = task.virtual_keys.fill(base)
    before = base
    base, incoming, left = remove_relocated_keys(base, incoming)
    if task.deletes is DeleteKind.EXPLICIT:
        rows = incoming.select([KEY_COLUMN])
    else:
        rows = with_meta_columns(task, incoming, written_schema(task, incoming).arrow)
    if task.operation.traits.only_adds:
        if task.deletes is DeleteKind.COLUMN:  # an insert writes no deleted row, as into new files
            rows = rows.filter(pa.array(~merge_rules_of(task).deletes(rows)))
        return before, append_rows(base, rows)
    outcome = merge_base(base, rows, merge_rules_of(task), deletes=task.deletes)
    return before, replace(outcome, deleted=outcome.deleted + left)


def merge_rules_of(task: FileGroupTask) -> MergeRules:
    """Return the rules that merge the task's rows into its file group."""
    return MergeRules.of(task.merge, task.avro_json)


def written_schema(task: FileGroupTask, incoming: pa.Table) -> TableSchema:
    """Return the table's columns; for a partial update those that the rows have."""
    schema = TableSchema.from_avro(task.avro_json)
    return schema.only(incoming.schema.names) if task.partial else schema


def with_meta_columns(task: FileGroupTask, incoming: pa.Table, schema: pa.Schema) -> pa.Table:
    """
    Return incoming rows as merged: commit time, sequence number, key, own columns.

    Raises:
        InvalidInputError: A value does not fit the schema.
    """
    count = incoming.num_rows
    prefix = f"{task.requested_time}_{task.task_number}_"
    numbers = pc.cast(pa.array(np.arange(count)), pa.string())
    own = normalise(incoming, schema)
    sequence = pc.binary_join_element_wise(prefix, numbers, "")
    # A row without a key gets its sequence number as key, as in Java (fmt 4.3).
    key = sequence if task.automatic_keys else pc.cast(incoming.column(KEY_COLUMN), pa.string())
    columns = [_constant(task.requested_time, count), sequence, key, *own.columns]
    return pa.Table.from_arrays(columns, schema=_merged_schema(schema))


def full_rows(rows: pa.Table, task: FileGroupTask, schema: pa.Schema, file_name: str) -> pa.Table:
    """Return the file's full rows, with the columns that are equal in all of them."""
    count = rows.num_rows
    if not task.stores_keys:
        nothing = [pa.nulls(count, pa.string())] * len(META_COLUMNS)
        return pa.Table.from_arrays([*nothing, *rows.columns[3:]], schema=with_meta(schema))
    time, sequence, key, *own = rows.columns
    constants = [_repeated(task.partition_path, count), _repeated(file_name, count)]
    fields = [
        each.with_type(constants[0].type)
        if each.name in (PARTITION_COLUMN, FILE_NAME_COLUMN)
        else each
        for each in with_meta(schema)
    ]
    return pa.Table.from_arrays([time, sequence, key, *constants, *own], schema=pa.schema(fields))


def _constant(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


def _repeated(value: str, count: int) -> pa.Array:
    # A dictionary of one value: Parquet stores it so, and readers return plain text.
    indices = pa.repeat(pa.scalar(0, pa.int8()), count)
    return pa.DictionaryArray.from_arrays(indices, pa.repeat(pa.scalar(value), 1))


def bloom_for(storage: Storage, task: FileGroupTask, outcome: MergeOutcome) -> BloomFilter | None:
    """
    Return the bloom filter of a task's new base file; None if it has none.

    Outside: 1 open_input of the base file before it, if any.
    """
    if task.bloom is None or not task.stores_keys:
        return None
    rows = outcome.table.num_rows
    if task.base_path is not None:
        footer = read_footer(storage, task.base_path, kept=True)
        if footer.bloom_base64 is not None:
            try:
                old = BloomFilter.load(footer.bloom_base64, footer.bloom_kind, task.bloom)
            except CorruptTableError:
                pass  # an old format: create a new one below from all keys
            else:
                # A filter made for fewer keys is replaced: each further row of bits costs one more
                # check per searched key.
                if old.kind != DYNAMIC or old.entries >= min(rows, task.bloom.entries):
                    # Keys of deleted records stay in it, which only costs needless reads.
                    old.add(outcome.new_keys)
                    return old
    return _bloom(task, outcome.table)


def base_file_stat(
    task: FileGroupTask, path: str, outcome: MergeOutcome, size_bytes: int
) -> WriteStat:
    """Return the write stat of a new base file."""
    previous = None if task.base_path is None else task.base_path.rpartition("/")[2]
    return WriteStat(
        file_id=task.file_id,
        path=path,
        prev_commit=task.base_requested_time or NO_PREVIOUS_COMMIT,
        prev_base_file=previous,
        partition_path=task.partition_path,
        num_writes=outcome.table.num_rows,
        num_inserts=outcome.inserted,
        num_update_writes=outcome.updated,
        num_deletes=outcome.deleted,
        total_write_bytes=size_bytes,
        file_size_in_bytes=size_bytes,
    )


def _merged_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            each
            for each in with_meta(schema)
            if each.name not in (PARTITION_COLUMN, FILE_NAME_COLUMN)
        ]
    )


# ---- Write rows that only move: a clustering's base files, with their commit times
# The file name follows from the plan (CMP-2), and a file is created whole or not at all. So two
# executors of one plan, one of which seemed dead, create the same file. An existing file is adopted.


def write_clustered_file(storage: Storage, task: FileGroupTask, rows: pa.Table) -> int:
    """
    Write one base file, or adopt an existing one; return its size in bytes.

    The encoded file is in memory.

    Args:
        storage: Storage of the table.
        task: The file: path, name, schema, layout.
        rows: Commit time, sequence number, record key, then the table's own columns.

    Raises:
        CorruptTableError: The existing file of that name is not a base file.
        StorageUnavailableError: The storage failed, or the existing file has another number of
            rows; a marker may remain, by which a cancel finds the written files.

    Outside: 1 create (marker) and 1 create; 1 open_input and 1 stat if the file exists.
    """
    path = join(task.partition_path, task.file_name)
    schema = TableSchema.from_avro(task.avro_json).arrow
    data = base_file_bytes(
        full_rows(rows, task, schema, task.file_name),
        avro_json=task.avro_json,
        bloom=_bloom(task, rows),
        settings=task.parquet,
    )
    create_marker(storage, task.requested_time, task.partition_path, task.file_name, IOType.CREATE)
    if create_if_absent(storage, path, data, repeat="run the service again"):
        return len(data)
    return _adopted(storage, path, rows.num_rows)


def _bloom(task: FileGroupTask, rows: pa.Table) -> BloomFilter | None:
    if task.bloom is None or not task.stores_keys:
        return None
    made = BloomFilter(task.bloom.fitted(rows.num_rows))
    made.add(rows.column(KEY_COLUMN))
    return made


def _adopted(storage: Storage, path: str, rows: int) -> int:
    found = read_footer(storage, path).rows
    stat = storage.stat(path)
    if stat is None or found != rows:
        raise StorageUnavailableError(
            "a file of the plan vanished or has other rows: run 'hoodoo services cancel TABLE "
            f"INSTANT', then plan again: {path}",
            path=path,
        )
    return stat.size_bytes

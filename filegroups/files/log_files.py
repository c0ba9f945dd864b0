"""The blocks of log files: which of them count, in which order (fmt 5.7), and their content."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import IO, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import decode_block, decode_datums
from filegroups.files.delete_block import decode_deletes, ordering_names
from filegroups.files.hfile import open_hfile
from filegroups.files.parquet import open_parquet
from filegroups.keys.keys import VirtualKeys
from filegroups.merge.merging import ChangeKind, Changes, fold_changes, join_changes
from filegroups.merge.rules import Mask, MergeRules, ordering_column
from filegroups.schema.casting import promote, schema_mismatch_error
from filegroups.schema.column_ids import SchemaHistory
from filegroups.schema.schema import KEY_COLUMN
from timeline.codecs.log_blocks import (
    DATA_BLOCKS,
    BlockType,
    BytesSource,
    HeaderKey,
    LogBlock,
    iter_blocks,
    read_content,
)
from timeline.errors import CorruptTableError, InvalidInputError, MissingFileError
from timeline.model.commit_metadata import MergeMode
from timeline.model.file_names import METADATA_TABLE
from timeline.model.file_slice import LogFile
from timeline.model.instant_time import InstantTime
from timeline.model.merge_definition import MergeDefinition
from timeline.ports.ports import EventSink, ObjectMissingError, Storage
from timeline.properties.setting_enums import LogFormat
from timeline.snapshot import Snapshot
from timeline.system import NullEvents

# ---- Selection of blocks (fmt 5.7)
#
# Headers alone decide, before any record is decoded. Three kinds of blocks are left out: those of
# invisible instants, of instants that were rolled back, and of instants that a log compaction has
# merged. The block of a log compaction takes the position of the newest instant it replaces, not
# its own: blocks that others wrote between the two are newer.

_COUNTING = DATA_BLOCKS | {BlockType.DELETE}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleInstants:
    """
    The instants whose blocks count, as a plain value that can be sent to another process.

    ``times`` are requested times; every instant below ``archived_below`` counts too.
    """

    times: frozenset[InstantTime]
    archived_below: InstantTime | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> VisibleInstants:
        """
        Return the visible instants of a snapshot (fmt 6.3, 6.5).

        Outside: the times of the archived timeline if savepoints keep every write of the active
        one.
        """
        active, as_of = snapshot.active, snapshot.as_of
        times, below = set(snapshot.completions), active.archived_below
        if active.first_write_time is None:
            archived = snapshot.archived.completions
            times.update(time for time in archived if as_of is None or time <= as_of)
        if below is not None and as_of is not None and as_of < below:
            below = as_of + "0"  # the least text above it
        return cls(times=frozenset(times), archived_below=below)

    def __contains__(self, time: object) -> bool:
        below = self.archived_below
        return time in self.times or (below is not None and str(time) < below)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedBlocks:
    """Data and delete blocks in the order they are applied, and the corrupt ones."""

    blocks: tuple[LogBlock, ...]
    corrupt: tuple[LogBlock, ...] = ()


def select_blocks(blocks: Iterable[LogBlock], visible: Container[InstantTime]) -> SelectedBlocks:
    """
    Select the blocks of a slice that count.

    Args:
        blocks: Of all log files, in the files' order.
        visible: The instants that count in the snapshot.

    Raises:
        CorruptTableError: A block lacks a header entry that it needs.
    """
    corrupt: list[LogBlock] = []
    rolled_back: set[InstantTime] = set()
    by_instant: dict[InstantTime, list[LogBlock]] = {}  # in the order instants first appear
    for block in blocks:
        if block.block_type is BlockType.CORRUPT:
            corrupt.append(block)
        elif block.block_type is BlockType.COMMAND:
            rolled_back.add(block.target_instant_time)
        elif block.block_type in _COUNTING and block.instant_time in visible:
            by_instant.setdefault(block.instant_time, []).append(block)
    for time in rolled_back:
        by_instant.pop(time, None)
    order = _after_log_compactions(
        {time: found[0].compacted_times for time, found in by_instant.items()}
    )
    return SelectedBlocks(
        blocks=tuple(block for time in order for block in by_instant[time]),
        corrupt=tuple(corrupt),
    )


def find_corrupt_log(
    logs: Sequence[LogFile],
    blocks: Sequence[LogBlock],
    visible: Container[InstantTime],
    base_time: InstantTime | None,
) -> LogFile | None:
    """
    Return the first log file that lost a committed part (F21), or None.

    A crash truncates data that was not committed yet; such damage is ignored. In a file of one
    instant that counts, no block may be corrupt and at least one must exist. Logs of version 6 are
    named after the base file below and keep blocks of crashed writes: they are never reported as
    damaged.

    Args:
        logs: Of a slice.
        blocks: All blocks found in them.
        visible: The instants that count in the snapshot.
        base_time: Requested time of the base file below, None without one.
    """
    found: dict[str, list[LogBlock]] = {log.path: [] for log in logs}
    needless = {base_time}
    for block in blocks:
        found[block.path].append(block)
        if block.block_type is BlockType.COMMAND:
            needless.add(block.target_instant_time)
        elif block.header.get(HeaderKey.INSTANT_TIME) in visible:
            needless.update(block.compacted_times)
    for log in logs:
        if log.instant_time in needless or log.instant_time not in visible:
            continue
        whole = [one for one in found[log.path] if one.block_type is not BlockType.CORRUPT]
        times = {one.header.get(HeaderKey.INSTANT_TIME) for one in whole}
        if times <= {log.instant_time} and not 0 < len(whole) == len(found[log.path]):
            return log
    return None


def _after_log_compactions(
    compacted: dict[InstantTime, tuple[InstantTime, ...]],
) -> list[InstantTime]:
    """Return the instants to read, oldest first; ``compacted`` maps each to those it replaces."""
    if not any(compacted.values()):
        return list(compacted)
    replacements: dict[InstantTime, InstantTime] = {}
    newest_first: dict[InstantTime, None] = {}
    for time in reversed(compacted):
        replaced = compacted[time]
        if replaced:
            # If a later one replaces this one, that one replaces all of these.
            final = replacements.get(time, time)
            for original in replaced:
                replacements[original] = final
            if final == time and not any(original in compacted for original in replaced):
                newest_first[time] = None  # its instants were removed: it keeps its position
            continue
        newest_first.setdefault(replacements.get(time, time))
    return list(newest_first)[::-1]


# ---- Reading of selected blocks, file by file

_KEPT_OPEN_MAX = 64  # log files of a slice, between finding blocks and reading them

Decoded = TypeVar("Decoded")


class InputFiles(Protocol):
    """The part of a storage that opens files."""

    def open_input(self, path: str) -> IO[bytes]:
        """As ``Storage.open_input``."""


class OpenedFile:
    """An open file of the storage as a ``ByteSource``."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read_at(self, offset: int, length: int, /) -> bytes:
        """As the protocol."""
        self._file.seek(offset)
        return bytes(self._file.read(length))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


@contextmanager
def opened(storage: InputFiles, path: str) -> Iterator[OpenedFile]:
    """
    Open a file for reads of ranges.

    Raises:
        MissingFileError: It is missing.

    Outside: 1 open_input.
    """
    try:
        file = storage.open_input(path)
    except ObjectMissingError as error:
        raise MissingFileError.of_table(path) from error
    with file:
        yield OpenedFile(file)


def find_blocks(
    storage: Storage,
    logs: Sequence[LogFile],
    visible: Container[InstantTime],
    base_time: InstantTime | None = None,
) -> tuple[LogBlock, ...]:
    """
    Return the blocks of a slice's logs that count, unread, in the order they are applied.

    Errors and calls outside: as ``read_blocks``, 1 open_input for each file.
    """
    found: list[LogBlock] = []
    for log in logs:
        with opened(storage, log.path) as source:
            found.extend(iter_blocks(source, log.size_bytes, path=log.path))
    return _selected(found, logs, visible, base_time).blocks


def read_blocks(
    storage: InputFiles,
    events: EventSink,
    logs: Sequence[LogFile],
    visible: Container[InstantTime],
    decode: Callable[[LogBlock, bytes], Decoded],
    *,
    base_time: InstantTime | None = None,
) -> list[Decoded]:
    """
    Read the blocks of a slice's logs that count.

    Args:
        storage: Storage of the table.
        events: Receives corrupt blocks without committed data (``log.corrupt``).
        logs: In the order of ``LogFile.order``.
        visible: The instants whose blocks count.
        decode: Decodes a block and its content, which is not kept.
        base_time: Requested time of the base file below, None without one.

    Returns:
        The results of ``decode``, in the order in which blocks are applied.

    Raises:
        MissingFileError: A log file is missing.
        CorruptTableError: A log file is damaged, and the lost part was committed.
        UnsupportedTableError: A block is of an unknown kind.

    Outside: 1 open_input for each file; 2 for those after the first 64 that have blocks that count.
    """
    files = {log.path: log for log in logs}
    with ExitStack() as kept:
        sources: dict[str, OpenedFile] = {}
        found: list[LogBlock] = []
        for log in files.values():
            source = kept.enter_context(opened(storage, log.path))
            found.extend(iter_blocks(source, log.size_bytes, path=log.path))
            if len(sources) < _KEPT_OPEN_MAX:
                sources[log.path] = source
            else:
                source.close()
        selected = _selected(found, list(files.values()), visible, base_time)
        for block in selected.corrupt:
            events.emit(
                "log.corrupt", path=block.path, offset=block.offset, bytes=block.content_length
            )
        decoded: dict[tuple[str, int], Decoded] = {}
        for path in dict.fromkeys(block.path for block in selected.blocks):
            source = sources.get(path) or kept.enter_context(opened(storage, path))
            for block in selected.blocks:
                if block.path == path:
                    decoded[path, block.offset] = decode(block, read_content(source, block))
            source.close()
    return [decoded[block.path, block.offset] for block in selected.blocks]


def _selected(
    blocks: Sequence[LogBlock],
    logs: Sequence[LogFile],
    visible: Container[InstantTime],
    base_time: InstantTime | None,
) -> SelectedBlocks:
    damaged = find_corrupt_log(logs, blocks, visible, base_time)
    if damaged is not None:
        step = f"or restore the table to an instant before {damaged.instant_time}"
        if damaged.path.startswith(f"{METADATA_TABLE}/"):  # it has copies only
            step = "or run 'hoodoo metadata repair TABLE'"
        raise CorruptTableError(
            f"a log file lost committed changes: restore it from a backup, {step}: {damaged.path}",
            kind="log_torn",
            path=damaged.path,
        )
    return select_blocks(blocks, visible)


# ---- Settings of log writes (fmt 5, 6.7)

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of log files."""

    format: LogFormat | None = None  # None: Parquet, unless Java's queries read it wrong
    file_bytes_max: int = 1024 * _MIB  # hoodie.logfile.max.size: then a new file begins
    block_bytes_max: int = 256 * _MIB  # rows of one block in memory; Java reads a block whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTarget:
    """The settings and the existing log files for a task that appends to its slice."""

    settings: LogSettings = field(default_factory=LogSettings)
    logs: tuple[LogFile, ...] = ()  # existing ones, in their order


# ---- Log files read into changes
#
# Block headers decide which blocks count; only those are decoded, and only the needed columns:
# wanted ones, keys, ordering fields. Records are converted from the writer's schema to the reader's
# (fmt 5.4). A block of partial updates lists its columns.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """
    What to read of log files.

    ``schema`` has the wanted columns, the record key and the columns that ``rules`` need, in the
    table's types. ``keys`` says how keys are computed if the rows have none (tables without meta
    columns); the schema then includes the columns it needs. Only blocks of ``visible`` instants
    count. ``history`` has the names of columns when a block was written, if the table has column
    ids. ``base_time`` is the requested time of the base file below, to which positions in blocks
    may refer.
    """

    schema: pa.Schema
    rules: MergeRules
    visible: Container[InstantTime]
    keys: VirtualKeys | None = None
    history: SchemaHistory | None = None
    base_time: InstantTime | None = None


def read_logs(
    storage: Storage,
    events: EventSink,
    logs: Sequence[LogFile],
    read: LogRead,
) -> Changes | None:
    """
    Read the logs of a slice and fold them.

    Args:
        storage: Storage of the table.
        events: Receives corrupt blocks.
        logs: In the order of ``LogFile.order``.
        read: What to read.

    Returns:
        One change for each record key; None if nothing in the logs counts.

    Errors and calls outside: as ``read_blocks``.
    """
    read = replace(read, schema=_with_inner_ordering(read.schema, read.rules))
    placed: list[bool] = []
    partial: list[pa.ChunkedArray] = []

    def decode(block: LogBlock, content: bytes) -> Changes:
        placed.append(block.record_positions_base == read.base_time is not None)
        decoded = _decoded(block, content, read)
        if block.is_partial:
            partial.append(decoded.rows.column(KEY_COLUMN))
        return decoded

    changes = read_blocks(storage, events, logs, read.visible, decode, base_time=read.base_time)
    if not changes:
        return None
    folded = fold_changes(join_changes(changes, read.schema), read.rules)
    # Java merges by position if all blocks have positions: each copy of a key has its own change.
    chunks = [chunk for column in partial for chunk in column.chunks]
    keys = pa.chunked_array(chunks, pa.string()) if chunks else None
    return replace(folded, every_copy=all(placed), partial_keys=keys)


def keys_of_log(
    storage: Storage,
    log: LogFile,
    schema: pa.Schema,
    keys: VirtualKeys | None,
    *,
    with_deleted: bool = True,
) -> pa.ChunkedArray:
    """
    Return the record keys in one log file, written and deleted ones, each once.

    Args:
        storage: Storage of the table.
        log: The file.
        schema: The table's current columns.
        keys: How keys are computed if rows have none.
        with_deleted: Whether to return the deleted ones, too.

    Errors and calls outside: as ``read_blocks``.
    """
    heads = dict.fromkeys(name.partition(".")[0] for name in keys.fields) if keys else {}
    columns = [pa.field(KEY_COLUMN, pa.string()), *(schema.field(name) for name in heads)]
    read = LogRead(
        schema=pa.schema(columns),
        rules=MergeRules(definition=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING)),
        visible=frozenset((log.instant_time,)),
        keys=keys,
    )
    changes = read_logs(storage, NullEvents(), [log], read)
    if changes is None:
        return pa.chunked_array([], pa.string())
    found = changes.rows.column(KEY_COLUMN)
    return found if with_deleted else found.filter(pa.array(changes.kinds == ChangeKind.RECORD))


def _decoded(block: LogBlock, content: bytes, read: LogRead) -> Changes:
    if block.block_type is BlockType.DELETE:
        return _deletes(block, content, read)
    rows, held = _records(block, content, read)
    rows = _with_keys(rows, block, read.keys)
    for name in _compared(read.rules):
        if name not in rows.schema.names and name.partition(".")[0] in held:
            rows = rows.append_column(name, ordering_column(rows, name))
    kinds = np.zeros(rows.num_rows, np.int8)
    deleted = read.rules.deletes(rows)
    if deleted.any():
        kinds[deleted] = ChangeKind.DELETE_ROW
        kinds[deleted & _natural(rows, read.rules)] = ChangeKind.COMMIT_TIME_DELETE
    known: dict[str, Mask] = {}
    if block.is_partial or read.rules.retains_missing_columns:
        missing = np.zeros(rows.num_rows, np.bool_)
        known = {
            name: missing
            for name in read.schema.names
            if name.partition(".")[0] not in held and name != KEY_COLUMN
        }
    return Changes(rows=rows, kinds=kinds, known=known)


def _records(block: LogBlock, content: bytes, read: LogRead) -> tuple[pa.Table, frozenset[str]]:
    """Return the wanted columns that a data block has, and the names of all its columns."""
    renaming = read.history.renaming_for(block.instant_time) if read.history else None
    try:
        if renaming is not None:
            # Columns have older names, at any level: decode as written, then match by id.
            rows = renaming.apply(block_rows(block, content, None))
            held = frozenset(rows.schema.names)
            wanted = _held(read.schema, held)
            return promote(rows.select(wanted.names), wanted), held
        if block.block_type is BlockType.PARQUET_DATA:
            file = open_parquet(pa.BufferReader(content))
            held = frozenset(file.schema_arrow.names)
            wanted = _held(read.schema, held)
            return promote(file.read(columns=wanted.names, use_threads=False), wanted), held
        else:
            held = _field_names(block.schema_json, block.path)
        wanted = _held(read.schema, held)
        return promote(block_rows(block, content, wanted), wanted), held
    except InvalidInputError as error:
        raise schema_mismatch_error(
            error, "a block of a log file", block.path, kind="bad_log_block"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise CorruptTableError(
            "a block of a log file does not fit the table's schema: restore the file from a "
            f"backup, or roll its instant back with 'hoodoo rollback TABLE INSTANT': {block.path} "
            f"({str(error).partition(chr(10))[0][:200]})",
            kind="bad_log_block",
            path=block.path,
        ) from error


def block_rows(block: LogBlock, content: bytes, wanted: pa.Schema | None) -> pa.Table:
    """
    Return the rows of a data block: all columns as written, or the wanted ones that it has.

    Args:
        block: The block.
        content: From ``read_content``.
        wanted: Top-level columns of the block, in its types; None for all.
    """
    if block.block_type is BlockType.AVRO_DATA:
        return decode_block(content, block.schema_json, wanted, path=block.path)
    if block.block_type is BlockType.PARQUET_DATA:
        columns = None if wanted is None else wanted.names
        file = open_parquet(pa.BufferReader(content))
        return file.read(columns=columns, use_threads=False)
    entries = open_hfile(BytesSource(content), len(content), path=block.path).read_all()
    values = entries.column("value").combine_chunks()
    rows = decode_datums(values, block.schema_json, wanted, path=block.path)
    position = rows.schema.get_field_index(KEY_COLUMN)
    if position < 0:
        return rows
    # The record does not repeat the file's key.
    keys = pc.cast(entries.column("key"), pa.string())
    return rows.set_column(position, rows.schema.field(position), keys)


def _deletes(block: LogBlock, content: bytes, read: LogRead) -> Changes:
    deletes = decode_deletes(content, path=block.path)
    commit_time = np.asarray(deletes.column("is_commit_time")).astype(np.bool_)
    columns = {KEY_COLUMN: deletes.column(KEY_COLUMN)}
    if read.rules.reads_order:
        names = ordering_names(deletes)
        if read.rules.definition.precombines:
            # Java 0.15 compares values of one class only, and a record's text is not a String.
            commit_time |= any(pa.types.is_string(deletes.column(name).type) for name in names)
        for name, ordering in zip(read.rules.log_ordering_fields, names, strict=False):
            kind = read.schema.field(name).type
            columns[name] = _cast_ordering(deletes.column(ordering), kind, block)
    kinds = np.where(commit_time, ChangeKind.COMMIT_TIME_DELETE, ChangeKind.DELETE)
    return Changes(rows=pa.table(columns), kinds=kinds.astype(np.int8))


def _cast_ordering(column: pa.ChunkedArray, kind: pa.DataType, block: LogBlock) -> pa.ChunkedArray:
    """Cast ordering values to the column's type: wrappers have fewer types than columns."""
    if column.type == kind:
        return column
    try:
        if pa.types.is_integer(column.type) and not pa.types.is_integer(kind):
            bits = pa.int32() if kind.bit_width == 32 else pa.int64()
            if pa.types.is_temporal(kind):
                return pc.cast(pc.cast(column, bits), kind)
        return pc.cast(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CorruptTableError(
            "a delete in a log has an ordering of another type than the table's ordering field: "
            "restore the file from a backup, or roll its instant back with 'hoodoo rollback "
            f"TABLE INSTANT': {column.type} against {kind} in {block.path}",
            kind="delete_ordering",
            path=block.path,
        ) from error


def _natural(rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of rows without ordering value for Java: an int of 0 in a single field."""
    if not rules.by_order or len(rules.ordering_fields) != 1:
        return np.zeros(rows.num_rows, np.bool_)
    position = rows.schema.get_field_index(rules.ordering_fields[0])
    if position < 0 or rows.schema.field(position).type != pa.int32():
        return np.zeros(rows.num_rows, np.bool_)
    return np.asarray(pc.fill_null(pc.equal(rows.column(position), 0), True)).astype(np.bool_)


def _compared(rules: MergeRules) -> Iterable[str]:
    """Return the ordering fields that are compared."""
    fields = (*rules.ordering_fields, *rules.log_ordering_fields)
    return dict.fromkeys(fields if rules.reads_order else ())


def _with_inner_ordering(schema: pa.Schema, rules: MergeRules) -> pa.Schema:
    """Add ordering fields inside structs as columns: a delete has nothing else of the struct."""
    for name in _compared(rules):
        if name not in schema.names:
            kind = ordering_column(schema.empty_table(), name).type
            schema = schema.append(pa.field(name, kind))
    return schema


def _held(schema: pa.Schema, names: frozenset[str]) -> pa.Schema:
    return pa.schema([each for each in schema if each.name in names])


def _with_keys(rows: pa.Table, block: LogBlock, keys: VirtualKeys | None) -> pa.Table:
    position = rows.schema.get_field_index(KEY_COLUMN)
    if keys is None:
        if position < 0 or rows.column(position).null_count:
            raise CorruptTableError(
                "the records of a log block have no record key: restore the file from a backup, "
                f"or roll its instant back with 'hoodoo rollback TABLE INSTANT': {block.path}",
                kind="bad_log_block",
                path=block.path,
            )
        return rows
    try:
        computed: Any = keys.of(rows)
    except InvalidInputError as error:
        raise CorruptTableError(
            "the records of a log block have no key: restore the file from a backup, or roll its "
            f"instant back with 'hoodoo rollback TABLE INSTANT': {block.path} ({error.message})",
            kind="bad_log_block",
            path=block.path,
        ) from error
    if position >= 0:
        return rows.set_column(position, KEY_COLUMN, computed)
    return rows.append_column(KEY_COLUMN, computed)


@lru_cache(maxsize=64)
def _field_names(schema_json: str, path: str) -> frozenset[str]:
    """Return the field names of a schema; cached, because a writer's blocks share one text."""
    try:
        return frozenset(each["name"] for each in json.loads(schema_json)["fields"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(
            "the schema of a log block cannot be read: restore the file from a backup, or roll "
            f"its instant back with 'hoodoo rollback TABLE INSTANT': {path}",
            kind="bad_log_block",
            path=path,
        ) from error

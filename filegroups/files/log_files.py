"""Read the log files of a slice into changes; settings of log writes."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import decode_block, decode_datums
from filegroups.files.blocks import read_blocks
from filegroups.files.delete_block import decode_deletes, ordering_names
from filegroups.files.hfile import open_hfile
from filegroups.files.parquet import open_parquet
from filegroups.keys.keys import VirtualKeys
from filegroups.merge.log_merging import fold_changes, join_changes
from filegroups.merge.merging import ChangeKind, Changes
from filegroups.merge.ordering import Mask, ordering_column
from filegroups.merge.rules import MergeRules
from filegroups.schema.casting import promote, schema_mismatch_error
from filegroups.schema.internal_schema import SchemaHistory
from filegroups.schema.schema import KEY_COLUMN
from timeline.codecs.log_blocks import BlockType, BytesSource, LogBlock
from timeline.errors import CorruptTableError, InvalidInputError
from timeline.model.commit_metadata import MergeMode
from timeline.model.file_names import LogFile
from timeline.model.instant_time import InstantTime
from timeline.model.merge_definition import MergeDefinition
from timeline.ports.ports import EventSink
from timeline.ports.storage import Storage
from timeline.system import NullEvents

__all__ = ["LogFormat", "LogRead", "LogSettings", "LogTarget", "keys_of_log", "read_logs"]

# ---- Settings of log writes (fmt 5, 6.7)

_MIB = 1024 * 1024


class LogFormat(Enum):
    """The format of data blocks in a log file (fmt 5.4); readers accept both."""

    PARQUET = "parquet"
    AVRO = "avro"


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
    storage: Storage, log: LogFile, schema: pa.Schema, keys: VirtualKeys | None
) -> pa.ChunkedArray:
    """
    Return the record keys in one log file, written and deleted ones, each once.

    Args:
        storage: Storage of the table.
        log: The file.
        schema: The table's current columns.
        keys: How keys are computed if rows have none.

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
    return pa.chunked_array([], pa.string()) if changes is None else changes.rows.column(KEY_COLUMN)


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
    told: dict[str, Mask] = {}
    if block.is_partial or read.rules.keeps_lacking:
        silent = np.zeros(rows.num_rows, np.bool_)
        told = {
            name: silent
            for name in read.schema.names
            if name.partition(".")[0] not in held and name != KEY_COLUMN
        }
    return Changes(rows=rows, kinds=kinds, told=told)


def _records(block: LogBlock, content: bytes, read: LogRead) -> tuple[pa.Table, frozenset[str]]:
    """Return the wanted columns that a data block has, and the names of all its columns."""
    renaming = read.history.renaming_for(block.instant_time) if read.history else None
    try:
        if renaming is not None:
            # Columns have older names, at any level: decode as written, then match by id.
            rows = renaming.apply(_written(block, content, None))
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
        return promote(_written(block, content, wanted), wanted), held
    except InvalidInputError as error:
        raise schema_mismatch_error(
            error, "a block of a log file", block.path, kind="bad_log_block"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise CorruptTableError(
            f"a block of a log file does not fit the table's schema: {block.path} "
            f"({str(error).partition(chr(10))[0][:200]})",
            kind="bad_log_block",
            path=block.path,
        ) from error


def _written(block: LogBlock, content: bytes, wanted: pa.Schema | None) -> pa.Table:
    """Return the rows of a data block: all columns as written, or the wanted ones that it has."""
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
            "the ordering of a delete has another type than the table's ordering field: "
            f"{column.type} against {kind} in {block.path}",
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
                f"records of a log block have no record key: {block.path}",
                kind="bad_log_block",
                path=block.path,
            )
        return rows
    try:
        computed: Any = keys.of(rows)
    except InvalidInputError as error:
        raise CorruptTableError(
            f"records of a log block have no key: {block.path} ({error.message})",
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
            f"the schema of a log block cannot be read: {path}", kind="bad_log_block", path=path
        ) from error

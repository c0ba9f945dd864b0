"""
The CDC log of one rewritten base file: write it, and read it (fmt 5.4).

The log has the base file's write token and requested time, so that a rollback or clean of one finds
the other. Readers find it only through the base file's write stat.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import decode_block, encode_records
from filegroups.files.avro_columns.encode import encode_rows
from filegroups.files.avro_columns.types import arrow_type, parse_schema
from filegroups.files.log_files import opened
from filegroups.files.slice_reader import SliceRead, read_slice
from filegroups.merge.change_images import (
    AFTER,
    BEFORE,
    CHANGE_TIME,
    OPERATION,
    OPERATIONS,
    RECORD_KEY,
    Kind,
    RecordChanges,
    cdc_schema,
    changes_of_merge,
    compare_slices,
    image,
    operation_texts,
)
from filegroups.merge.merging import MergeOutcome
from filegroups.merge.rules import Positions
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.casting import cast_column, promote, schema_mismatch_error
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
from timeline.errors import CorruptTableError, InvalidInputError
from timeline.model.commit_metadata import CdcMode, FileGroupId
from timeline.model.file_names import BaseFileName, IOType, LogFileName, join
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import EventSink, Storage

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
        f"a change log is damaged ({why}), and the rows of the table are complete: read the range "
        f"without images: {path}",
        kind="bad_change_log",
        path=path,
    )


# ---- The changes of one file group by one instant, each with its images before and after
# If there is a CDC log, its changes count, and images it lacks are read from the file slices before
# and after. Otherwise (the first rows of a file group, log files of merge-on-read, replaced file
# groups, tables without CDC logs) the merged slices are compared: new rows, missing rows, and rows
# with the instant's commit time.

_BATCH_ROWS: Final = 16 * 1024


class CdcSource(Enum):
    """The source of a unit's changes."""

    LOGGED = "change logs"
    INSERTED = "a file of new rows"
    REMOVED = "a file group that was replaced"
    COMPARED = "the slices before and after"


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcUnit:
    """
    The changes of one instant to one file group: only one unit is in memory at a time.

    ``before`` and ``after`` are the merged slices just before and after its completion, None if
    there is none or none is needed; ``logs`` are paths of CDC logs, of ``log_bytes`` in all.
    """

    file_group: FileGroupId
    requested_time: InstantTime
    completion_time: InstantTime
    source: CdcSource
    before: FileSlice | None = None
    after: FileSlice | None = None
    logs: tuple[str, ...] = ()
    log_bytes: int = 0

    @property
    def logs_suffice(self) -> bool:
        """Return whether the CDC logs have all images, so that no slice is read."""
        return self.source is CdcSource.LOGGED and self.before is None and self.after is None

    @property
    def path(self) -> str:
        """A file to name in errors."""
        return self.logs[0] if self.logs else str(self.file_group)


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcRead:
    """
    How to read every unit: a plain value, which an executor can send to another process.

    Args:
        slices: How to read slices; its columns are the record key, the commit time and an image's
            columns.
        image: An image's columns.
        completions: Requested time -> completion time, of the instants whose rows count.
        archived_below: Every instant below counts too.
        avro_json: The table's schema, if slices are compared by values; None if commit times show
            the updates.
    """

    slices: SliceRead
    image: pa.Schema
    completions: Mapping[InstantTime, InstantTime]
    archived_below: InstantTime | None = None
    avro_json: str | None = None

    @property
    def output_schema(self) -> pa.Schema:
        """``op``, ``ts_ms``, ``before``, ``after``."""
        images = pa.struct(list(self.image))
        return pa.schema(
            {OPERATION: pa.string(), CHANGE_TIME: pa.string(), BEFORE: images, AFTER: images}
        )


@dataclass(frozen=True, slots=True)
class _Until:
    """The instants that completed before a time, or at it."""

    read: CdcRead
    moment: InstantTime
    inclusive: bool

    def __contains__(self, time: object) -> bool:
        completed = self.read.completions.get(str(time))
        if completed is None:
            return self.read.archived_below is not None and str(time) < self.read.archived_below
        return completed < self.moment or (self.inclusive and completed == self.moment)


def read_cdc(
    storage: Storage, events: EventSink, unit: CdcUnit, read: CdcRead
) -> Iterator[pa.RecordBatch]:
    """
    Read the changes of a unit; each record has one change.

    Yields:
        Batches of ``read.output_schema``; ``ts_ms`` is the requested time of the instant.

    Raises:
        MissingFileError: A file is missing.
        CorruptTableError: A file is damaged, or a CDC log has a record that no slice has
            (``change_without_record``).

    Outside: those of ``read_slice`` for at most two slices, those of ``read_cdc_log``.
    """
    sides = _Sides(storage, events, unit, read)
    if unit.source is CdcSource.LOGGED:
        for path in unit.logs:
            for block, rows in read_cdc_log(storage, path, unit.requested_time):
                if _keys_suffice(rows, sides):
                    yield from _logged(block, rows, sides)
                else:
                    yield from _compared(sides)
                    return
    elif unit.source is CdcSource.COMPARED:
        yield from _compared(sides)
    elif unit.source is CdcSource.INSERTED:
        for rows in sides.stream(unit.after, inclusive=True):
            yield from _pieces(RecordChanges.all_inserted(rows.num_rows), rows[:0], rows, sides)
    else:
        for rows in sides.stream(unit.before, inclusive=False):
            yield from _pieces(RecordChanges.all_deleted(rows.num_rows), rows, rows[:0], sides)


class _Sides:
    """The rows of a file group before and after; each side is read once, when first needed."""

    def __init__(self, storage: Storage, events: EventSink, unit: CdcUnit, read: CdcRead) -> None:
        self.storage = storage
        self.events = events
        self.unit = unit
        self.read = read
        self._held: dict[bool, pa.Table] = {}

    def before(self) -> pa.Table:
        return self._state(self.unit.before, inclusive=False)

    def after(self) -> pa.Table:
        return self._state(self.unit.after, inclusive=True)

    def stream(self, one: FileSlice | None, *, inclusive: bool) -> Iterator[pa.Table]:
        """Yield the rows of a side in batches, with computed keys if none are stored."""
        if one is None:
            return
        read = self.read.slices
        visible: Container[InstantTime] = _Until(self.read, self.unit.completion_time, inclusive)
        for batch in read_slice(self.storage, self.events, one, replace(read, visible=visible)):
            rows = pa.Table.from_batches([batch])
            if read.keys is not None:
                rows = read.keys.fill(rows)
            yield rows

    def _state(self, one: FileSlice | None, *, inclusive: bool) -> pa.Table:
        if inclusive not in self._held:
            empty = self.read.slices.output_schema.empty_table()
            pieces = list(self.stream(one, inclusive=inclusive))
            self._held[inclusive] = pa.concat_tables(pieces) if pieces else empty
        return self._held[inclusive]


def _compared(sides: _Sides) -> Iterator[pa.RecordBatch]:
    before, after = sides.before(), sides.after()
    values = _values(before, after, sides.read)
    changes = compare_slices(before, after, sides.unit.requested_time, values)
    yield from _pieces(changes, before, after, sides)


def _keys_suffice(rows: pa.Table, sides: _Sides) -> bool:
    """
    Return whether a log's keys are enough to find the images it lacks.

    Plain inserts may have written a key twice. Then the key does not identify the row, and the
    slices are compared instead.
    """
    held = rows.schema.names
    lacking = [
        state for name, state in ((BEFORE, sides.before), (AFTER, sides.after)) if name not in held
    ]
    return all(
        pc.count_distinct(state().column(KEY_COLUMN), mode="all").as_py() == state().num_rows
        for state in lacking
    )


def _values(
    before: pa.Table, after: pa.Table, read: CdcRead
) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
    if read.avro_json is None:
        return None
    return record_values(before, read.avro_json), record_values(after, read.avro_json)


def _pieces(
    changes: RecordChanges, before: pa.Table, after: pa.Table, sides: _Sides
) -> Iterator[pa.RecordBatch]:
    names = sides.read.image.names
    before, after = before.select(names), after.select(names)
    for start in range(0, len(changes), _BATCH_ROWS):
        part = changes.part(start, _BATCH_ROWS)
        images = image(before, part.before), image(after, part.after)
        yield _batch(operation_texts(part.kinds), images, sides)


def _batch(
    operations: pa.Array, images: tuple[pa.Array, pa.Array], sides: _Sides
) -> pa.RecordBatch:
    times = pa.repeat(pa.scalar(sides.unit.requested_time), len(operations))
    return pa.RecordBatch.from_arrays([operations, times, *images], schema=sides.read.output_schema)


def _logged(block: LogBlock, rows: pa.Table, sides: _Sides) -> Iterator[pa.RecordBatch]:
    held = rows.schema.names
    for start in range(0, rows.num_rows, _BATCH_ROWS):
        part = rows.slice(start, _BATCH_ROWS)
        kinds = np.asarray(kinds_of(part)).astype(np.int8)
        images = []
        for name, lacking in ((BEFORE, Kind.INSERT), (AFTER, Kind.DELETE)):
            if name in held:
                images.append(_shaped(block, part.column(name), sides))
            else:
                state = sides.before() if name == BEFORE else sides.after()
                positions = _found(part, state, kinds != lacking, sides)
                images.append(image(state.select(sides.read.image.names), positions))
        yield _batch(operation_texts(kinds), (images[0], images[1]), sides)


def _found(rows: pa.Table, state: pa.Table, expected: np.ndarray, sides: _Sides) -> Positions:
    """Return the position of each record in a side; -1 for records that are not expected there."""
    found = pc.index_in(rows.column(RECORD_KEY), value_set=state.column(KEY_COLUMN))
    positions = np.asarray(pc.fill_null(found, -1)).astype(np.intp)
    if (positions[expected] < 0).any():
        raise CorruptTableError(
            "a change log contains a record that its file group lacks, and the rows of the table "
            f"are complete: read the range without images: {sides.unit.path}",
            kind="change_without_record",
            path=sides.unit.path,
        )
    return np.where(expected, positions, -1)


def _shaped(block: LogBlock, column: pa.ChunkedArray, sides: _Sides) -> pa.Array:
    """Return images of a log in the columns and types of a reader."""
    read = sides.read.slices
    values = column.combine_chunks()
    values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
    rows = pa.Table.from_arrays(values.flatten(), names=[each.name for each in values.type])
    if read.history is not None:
        renaming = read.history.renaming_for(block.instant_time)
        rows = rows if renaming is None else renaming.apply(rows)
    if read.folders is not None:
        rows = read.folders.fill(rows, sides.unit.file_group.partition_path)
    try:
        rows = promote(rows, sides.read.image)
    except InvalidInputError as error:
        raise schema_mismatch_error(
            error, "a change log", sides.unit.path, kind="bad_change_log"
        ) from error
    except pa.ArrowException as error:
        raise CorruptTableError(
            "a change log does not fit the table's schema: read the range without images: "
            f"{sides.unit.path} ({error})",
            kind="bad_change_log",
            path=sides.unit.path,
        ) from error
    everywhere = np.arange(rows.num_rows)
    return image(rows, np.where(np.asarray(pc.is_valid(values)), everywhere, -1))


# ---- Encode the values of a record as one text, so that one kernel compares whole rows
# Arrow cannot compare nested values. The Avro datums of two rows are equal exactly if their values
# are, including nulls and every bit of a float.


def record_values(rows: pa.Table, schema_json: str) -> pa.ChunkedArray:
    """
    Return a text per row; two texts are equal exactly if all the schema's columns are.

    Shapes: rows (n,) with the schema's columns -> (n,).

    Raises:
        InvalidInputError: A column is missing or has a value that the schema does not accept.
    """
    record = parse_schema(schema_json, path="")
    chunks = []
    for start in range(0, rows.num_rows, _CHUNK_ROWS):
        part = rows.slice(start, _CHUNK_ROWS)
        columns = [
            one_array(cast_column(part.column(field.name), field.type, field.name))
            for field in arrow_type(record)
        ]
        chunks.append(encode_rows(record, columns, part.num_rows).cast(pa.large_binary()))
    return pa.chunked_array(chunks, pa.large_binary())

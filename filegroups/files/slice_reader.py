"""
Read one file slice: its base file, merged with its logs if it has any.

A filter is pushed into the base file only if the slice has no logs. A row that a log changes must
be merged before the filter is evaluated. Its old version may not be visible, and its new version may
match although the old one did not.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns.types import arrow_type, parse_schema
from filegroups.files.log_files import LogRead, find_blocks, read_logs
from filegroups.files.parquet import filter_columns, read_base_file, read_batches
from filegroups.keys.keys import DroppedPartitionColumns, VirtualKeys, set_keys
from filegroups.merge.merging import Changes, MergeOutcome, merge_changes
from filegroups.merge.rules import MergeRules, Positions
from filegroups.schema.casting import promote, schema_mismatch_error
from filegroups.schema.column_ids import Renaming, SchemaHistory
from filegroups.schema.schema import KEY_COLUMN
from timeline.errors import InstantNotFoundError, InvalidInputError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import BaseFile, FileSlice
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import EventSink, Storage

_BATCH_ROWS = 65_536
_NUMBER = "_hoodoo_number"


@dataclass(frozen=True, slots=True)
class WholeFileGroups:
    """
    The whole file groups of an incremental read at the end of its range.

    Args:
        visible: The instants whose log blocks count there.
        of: Returns the merged slice of a file group, None if a file of it was cleaned. Called only
            if logs of the range have partial updates.
    """

    visible: Container[InstantTime]
    of: Callable[[FileGroupId], FileSlice | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRead:
    """
    What to read of every slice: a plain value, which an executor can send to another process.

    Args:
        file_schema: The table's schema with the meta columns.
        columns: The columns to return, in this order.
        filter: The rows to return; None for all.
        base_filter: Rows of base files that count, before the merge.
        rules: How versions of a record merge.
        keys: How keys are computed in a table without meta columns; else None.
        finds_keys: Whether the filter compares computed keys instead of the key column in files.
        visible: The instants whose log blocks count in the snapshot.
        whole_file_groups: For an incremental read: what its partial updates need.
        whole_filter: Rows of whole slices to return, whenever they were written.
        history: The names of columns when files were written, in a table with column ids.
        folders: Columns that files leave out, because the folder's name has their values.
    """

    file_schema: pa.Schema
    columns: tuple[str, ...]
    filter: pc.Expression | None = None
    base_filter: pc.Expression | None = None
    rules: MergeRules
    keys: VirtualKeys | None = None
    finds_keys: bool = False
    visible: Container[InstantTime]
    whole_file_groups: WholeFileGroups | None = None
    whole_filter: pc.Expression | None = None
    history: SchemaHistory | None = None
    folders: DroppedPartitionColumns | None = None

    @property
    def base_file_suffices(self) -> bool:
        """Whether any Parquet reader gets the right rows from a base file alone."""
        return self.history is None and self.folders is None

    def renaming_for(self, base: BaseFile) -> Renaming | None:
        """Return how the schema's columns are named in a base file; None if unchanged."""
        return self.history.renaming_for(base.requested_time) if self.history else None

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of the returned batches."""
        return pa.schema([self.file_schema.field(name) for name in self.columns])


def read_slice(
    storage: Storage, events: EventSink, one: FileSlice, read: SliceRead
) -> Iterator[pa.RecordBatch]:
    """
    Read a slice in batches.

    A slice without logs is streamed; one with logs is in memory (the needed columns).

    Raises:
        MissingFileError: A file is missing.
        CorruptTableError: A file is damaged or does not fit the schema.
        UnsupportedTableError: A log file has blocks of an unsupported kind.

    Outside: 1 open_input of the base file, those of ``read_logs``.
    """
    if read.keys is not None and read.finds_keys:
        yield from _by_computed_keys(storage, events, one, read, read.keys)
        return
    if read.folders is not None:
        yield from _with_folders(storage, events, one, read, read.folders)
        return
    changed = merged_slice_rows(storage, events, one, read) if one.log_files else None
    if changed is not None:
        yield from changed.combine_chunks().to_batches(_BATCH_ROWS)
    elif one.base_file is not None:
        yield from read_batches(
            storage,
            one.base_file.path,
            schema=read.file_schema,
            columns=read.columns,
            row_filter=_both(read.filter, read.base_filter),
            renaming=read.renaming_for(one.base_file),
        )


def assert_base_fits(stored: pa.Schema, base: BaseFile, read: SliceRead) -> None:
    """
    Refuse a base file whose columns cannot be read in the table's schema.

    Args:
        stored: Its footer's schema.
        base: The file.
        read: The read; all its columns are checked.

    Raises:
        CorruptTableError, UnsupportedTableError: As ``read_base_file``, except for single values.
    """
    renaming = read.renaming_for(base)
    _assert_fits(stored, renaming, read, ("a base file", base.path, "bad_base_file"))


def assert_logs_fit(storage: Storage, one: FileSlice, read: SliceRead) -> None:
    """
    Refuse a slice whose logs cannot be read in the table's schema, by their headers alone.

    Raises:
        MissingFileError: A log file is missing.
        CorruptTableError, UnsupportedTableError: As ``read_logs``, except for single records.

    Outside: 1 open_input for each log file.
    """
    base_time = one.base_file.requested_time if one.base_file is not None else None
    blocks = find_blocks(storage, one.log_files, read.visible, base_time)
    written = {(block.schema_json, block.instant_time): block for block in blocks if block.has_rows}
    for (text, instant_time), block in written.items():
        renaming = read.history.renaming_for(instant_time) if read.history else None
        stored = pa.schema(list(arrow_type(parse_schema(text, path=block.path))))
        what = ("a block of a log file", block.path, "bad_log_block")
        _assert_fits(stored, renaming, read, what)


def _assert_fits(
    stored: pa.Schema, renaming: Renaming | None, read: SliceRead, what: tuple[str, str, str]
) -> None:
    left_out = read.folders.dropped if read.folders is not None else ()
    named, path, kind = what
    try:
        rows = stored.empty_table()
        if renaming is not None:
            rows = renaming.apply(rows)
        promote(rows, pa.schema([each for each in read.file_schema if each.name not in left_out]))
    except InvalidInputError as error:
        raise schema_mismatch_error(error, named, path, kind=kind) from error


def _by_computed_keys(
    storage: Storage, events: EventSink, one: FileSlice, read: SliceRead, keys: VirtualKeys
) -> Iterator[pa.RecordBatch]:
    """Filter by computed keys, which files do not store and the result does not contain."""
    wanted = {*read.columns, *(name.partition(".")[0] for name in keys.fields)}
    if read.filter is not None:
        wanted.update(filter_columns(read.filter, read.file_schema))
    names = tuple(name for name in read.file_schema.names if name in wanted)
    inner = replace(read, columns=names, filter=None, finds_keys=False)
    for batch in read_slice(storage, events, one, inner):
        rows = pa.Table.from_batches([batch])
        rows = keys.fill(rows).filter(read.filter)
        rows = set_keys(rows, pa.nulls(rows.num_rows, pa.string()))
        if rows.num_rows:
            yield from rows.select(list(read.columns)).combine_chunks().to_batches()


def _with_folders(
    storage: Storage,
    events: EventSink,
    one: FileSlice,
    read: SliceRead,
    folders: DroppedPartitionColumns,
) -> Iterator[pa.RecordBatch]:
    """Read the columns of files, add those of the folder, then filter by both."""
    wanted = {*read.columns}
    if read.filter is not None:
        wanted.update(filter_columns(read.filter, read.file_schema))
    stored = pa.schema([each for each in read.file_schema if each.name not in folders.dropped])
    names = tuple(name for name in stored.names if name in wanted) or (stored.names[0],)
    inner = replace(read, file_schema=stored, columns=names, filter=None, folders=None)
    for batch in read_slice(storage, events, one, inner):
        rows = folders.fill(pa.Table.from_batches([batch]), one.file_group.partition_path)
        if read.filter is not None:
            rows = rows.filter(read.filter)
        if rows.num_rows:
            yield from rows.select(list(read.columns)).combine_chunks().to_batches()


def merged_slice_rows(
    storage: Storage, events: EventSink, one: FileSlice, read: SliceRead
) -> pa.Table | None:
    """
    Return the merged, filtered and projected rows of a slice; None if none of its logs counts.

    Errors and calls outside: as ``read_slice``.
    """
    changes = _changes(storage, events, one, read)
    if changes is None:
        return None
    rows = _merged(storage, one, read, changes).table
    partial = changes.partial_keys
    del changes  # else a filter would hold the file group a third time
    if read.keys is not None:
        # They were computed for the merge and are never stored.
        rows = set_keys(rows, pa.nulls(rows.num_rows, pa.string()))
    if read.filter is not None:
        rows = rows.filter(read.filter)
    names = list(read.columns)
    if partial is None or read.whole_file_groups is None:
        return rows.select(names)
    complete = rows.filter(pc.invert(pc.is_in(rows.column(KEY_COLUMN), value_set=partial)))
    there = replace(
        read, visible=read.whole_file_groups.visible, base_filter=None, filter=read.whole_filter
    )
    whole = merge_slice(storage, events, _whole(one, read.whole_file_groups), there)
    if whole is None:
        return complete.select(names)
    filled = whole.table.filter(pc.is_in(whole.table.column(KEY_COLUMN), value_set=partial))
    if read.whole_filter is not None:
        filled = filled.filter(read.whole_filter)
    return pa.concat_tables([complete.select(names), filled.select(names)])


def _whole(one: FileSlice, whole_file_groups: WholeFileGroups) -> FileSlice:
    """
    Return the whole file group at the end of a range with partial updates.

    Older files have the values that the range lacks. A late change fills columns of a newer row,
    whose commit time may be before the range.

    Raises:
        InstantNotFoundError: An older file was cleaned.
    """
    found = whole_file_groups.of(one.file_group)
    if found is not None:
        return found
    raise InstantNotFoundError(
        "the range has partial updates, and cleaning deleted a file with the other columns of "
        f"their records: begin the range later: {one.file_group}",
        kind="changes_cleaned",
        path=one.log_files[0].path,
    )


def split_by_logs(
    storage: Storage, events: EventSink, one: FileSlice, read: SliceRead
) -> tuple[Positions, pa.Table]:
    """
    Return which rows of a base file its logs hide, and the merged rows in their place.

    The other rows of the file are rows of the slice, for any reader of Parquet files. Memory is
    that of the logs, of the base rows with their keys, and of one batch.

    Args:
        storage: Storage of the table.
        events: Receives corrupt blocks.
        one: A slice with logs.
        read: All rows of the slice: neither filters nor columns of folders.

    Returns:
        Ascending positions in the base file, and the rows in the wanted columns. The positions
        are the same whatever columns are wanted.

    Errors and calls outside: as ``read_slice``.
    """
    changes = _changes(storage, events, one, read)
    if changes is None:
        return np.zeros(0, np.intp), read.output_schema.empty_table()
    # A record in the logs replaces its base row whole or not at all. Then the key and the order of
    # the base row suffice. A merge of single values or by a plug-in reads whole base rows.
    rules = read.rules
    by_values = rules.merger is not None or rules.reads_values or rules.retains_missing_columns
    wholly = not by_values and changes.partial_keys is None
    wanted = replace(read, columns=(KEY_COLUMN,)) if wholly else read
    touched, base = _base_rows_of(storage, one, wanted, changes.rows.column(KEY_COLUMN))
    hidden = touched
    if wholly:
        # Number the rows of both sides, and merge the numbers.
        base = base.append_column(_NUMBER, pa.array(~touched))
        numbers = pa.array(np.arange(changes.rows.num_rows))
        numbered = replace(changes, rows=changes.rows.append_column(_NUMBER, numbers))
        merged = np.asarray(merge_changes(base, numbered, rules).table.column(_NUMBER))
        hidden = np.setdiff1d(touched, ~merged[merged < 0], assume_unique=True)
        rows = changes.rows.take(pa.array(merged[merged >= 0]))
    else:
        rows = merge_changes(base, changes, rules).table
    if read.keys is not None:
        rows = set_keys(rows, pa.nulls(rows.num_rows, pa.string()))
    return hidden, rows.select(list(read.columns))


def _base_rows_of(
    storage: Storage, one: FileSlice, read: SliceRead, keys: pa.ChunkedArray
) -> tuple[Positions, pa.Table]:
    """Return the rows of a base file that have one of the keys, and their positions in the file."""
    schema = _merge_schema(read)
    found, positions, start = [schema.empty_table()], [np.zeros(0, np.intp)], 0
    if one.base_file is None:
        return positions[0], found[0]
    for batch in read_batches(
        storage,
        one.base_file.path,
        schema=read.file_schema,
        columns=schema.names,
        renaming=read.renaming_for(one.base_file),
    ):
        rows = pa.Table.from_batches([batch])
        if read.keys is not None:
            rows = read.keys.fill(rows)
        chosen = pc.is_in(rows.column(KEY_COLUMN), value_set=keys)
        found.append(rows.filter(chosen))
        positions.append(start + np.flatnonzero(chosen))
        start += rows.num_rows
    return np.concatenate(positions), pa.concat_tables(found)


def merge_slice(
    storage: Storage, events: EventSink, one: FileSlice, read: SliceRead
) -> MergeOutcome | None:
    """
    Return the merged rows of a slice and their changes; None if none of its logs counts.

    The rows have the wanted columns and those that the merge reads, unfiltered; keys that are not
    stored are computed. Errors and calls outside: as ``read_slice``.
    """
    changes = _changes(storage, events, one, read)
    return None if changes is None else _merged(storage, one, read, changes)


def _changes(
    storage: Storage, events: EventSink, one: FileSlice, read: SliceRead
) -> Changes | None:
    logs = LogRead(
        schema=_merge_schema(read),
        rules=read.rules,
        visible=read.visible,
        keys=read.keys,
        history=read.history,
        base_time=one.base_file.requested_time if one.base_file is not None else None,
    )
    return read_logs(storage, events, one.log_files, logs)


def _merged(storage: Storage, one: FileSlice, read: SliceRead, changes: Changes) -> MergeOutcome:
    schema = _merge_schema(read)
    base = schema.empty_table()
    if one.base_file is not None:
        path = one.base_file.path
        base = read_base_file(
            storage,
            path,
            schema=read.file_schema,
            columns=schema.names,
            row_filter=read.base_filter,
            renaming=read.renaming_for(one.base_file),
        )
        if read.keys is not None:
            base = read.keys.fill(base)
    return merge_changes(base, changes, read.rules)


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _merge_schema(read: SliceRead) -> pa.Schema:
    """Return the wanted columns, those of the filter, and those that the merge reads."""
    names = {KEY_COLUMN, *read.columns, *read.rules.columns_for(read.file_schema)}
    if read.keys is not None:
        names.update(name.partition(".")[0] for name in read.keys.fields)
    if read.filter is not None:
        names.update(filter_columns(read.filter, read.file_schema))
    return pa.schema([each for each in read.file_schema if each.name in names])

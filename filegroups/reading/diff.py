"""
The rows that differ between two snapshots of a table, by partition and record key.

File groups with the same slice in both snapshots are not read, so the cost follows the change.
Each other file group is compared on its own. Then keys that left one file group of a partition and
appeared in another are compared, as after a clustering. A row that moved to another partition
counts as one deleted and one inserted row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.leased_read import PlannedRead, stream
from filegroups.reading.scan import plan_scan, read_schema
from filegroups.schema.evolution import is_list
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import FileSlice
from timeline.snapshot import Snapshot

_KEY: Final = "_hoodie_record_key"
_APPENDED_BELOW: Final = 8  # writers of older table versions append to existing log files

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class DiffCounts:
    """The number of rows that differ."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    columns: dict[str, int] = field(default_factory=dict)  # column -> updated rows with a new value
    partitions: dict[str, DiffCounts] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of one batch of ``TableDiff.rows``, all of one partition."""
        count = {one["values"]: one["counts"] for one in pc.value_counts(batch["op"]).to_pylist()}
        self.inserted += count.get("i", 0)
        self.updated += count.get("u", 0)
        self.deleted += count.get("d", 0)
        for one in pc.value_counts(batch["changed"].flatten()).to_pylist():
            self.columns[one["values"]] = self.columns.get(one["values"], 0) + one["counts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """The difference of two snapshots of a table; each call reads the changed file groups."""

    context: TableContext
    before: Snapshot
    after: Snapshot
    views: tuple[FileSystemView, FileSystemView]
    stored: tuple[frozenset[str], frozenset[str]]  # the columns that reads of both sides return
    columns: tuple[pa.Field, ...]  # the compared columns, in their newer type

    @property
    def row_schema(self) -> pa.Schema:
        """
        The schema of ``rows``.

        ``op`` is ``i``, ``u`` or ``d``, as in changes with images. ``changed`` has the names of the
        columns with another value.
        """
        row = pa.struct(list(self.columns))
        return pa.schema(
            [
                ("op", pa.string()),
                ("partition", pa.string()),
                ("key", pa.string()),
                ("changed", pa.list_(pa.string())),
                ("before", row),
                ("after", row),
            ]
        )

    def rows(self) -> pa.RecordBatchReader:
        """Stream the rows that differ, with both values. Memory: one file group, and moved rows."""
        return pa.RecordBatchReader.from_batches(self.row_schema, self._batches())

    def counts(self) -> DiffCounts:
        """Count the rows that differ, in all and by partition."""
        found = DiffCounts()
        for batch in self._batches():
            found.add(batch)
            path = batch["partition"][0].as_py()
            found.partitions.setdefault(path, DiffCounts()).add(batch)
        return found

    # ---- reading

    def _batches(self) -> Iterator[pa.RecordBatch]:
        compares = _Comparison(columns=self.columns, schema=self.row_schema)
        for path, pairs in self._changed_file_groups().items():
            left: list[tuple[pa.Table, pa.Table]] = []
            for before, after in pairs:
                found = compares.rows(self._read(0, before), self._read(1, after))
                yield from compares.updates(path, found)
                left.append((found.deleted, found.inserted))
            deleted, inserted = (pa.concat_tables(side) for side in zip(*left, strict=True))
            found = compares.rows(deleted, inserted)  # keys that moved between file groups
            yield from compares.updates(path, found)
            yield from compares.one_sided(path, found)

    def _changed_file_groups(
        self,
    ) -> dict[str, list[tuple[FileSlice | None, FileSlice | None]]]:
        """Return both slices of each file group that differs, by partition path."""
        sides: list[dict[FileGroupId, FileSlice]] = [
            {one.file_group: one for one in view.latest_slices()} for view in self.views
        ]
        found: dict[str, list[tuple[FileSlice | None, FileSlice | None]]] = {}
        for group in sorted(
            sides[0].keys() | sides[1].keys(), key=lambda one: (one.partition_path, one.file_id)
        ):
            before, after = sides[0].get(group), sides[1].get(group)
            if not self._is_same(before, after):
                found.setdefault(group.partition_path, []).append((before, after))
        return found

    def _is_same(self, before: FileSlice | None, after: FileSlice | None) -> bool:
        if before is None or after is None or _files(before) != _files(after):
            return False
        return not before.log_files or self.context.config.table_version >= _APPENDED_BELOW

    def _read(self, side: int, chosen: FileSlice | None) -> pa.Table:
        """Return the rows of a slice: key and compared columns; missing columns are null."""
        snapshot, there = (self.before, self.after)[side], self.stored[side]
        fields = [pa.field(_KEY, pa.string()), *self.columns]
        if chosen is None:
            return pa.schema(fields).empty_table()
        names = [one.name for one in fields if one.name in there]
        plan = plan_scan(self.context, snapshot, [chosen], columns=names, with_hoodie_columns=True)
        batches = stream(self.context, PlannedRead(snapshot=snapshot, plan=plan))
        rows = pa.Table.from_batches(batches, plan.output_schema).combine_chunks()
        return pa.table(
            [
                rows[one.name].cast(one.type)
                if one.name in there
                else pa.nulls(rows.num_rows, one.type)
                for one in fields
            ],
            schema=pa.schema(fields),
        )


def diff_snapshots(
    context: TableContext,
    before: tuple[Snapshot, FileSystemView],
    after: tuple[Snapshot, FileSystemView],
    columns: Sequence[str] | None = None,
) -> TableDiff:
    """
    Return the difference of two snapshots.

    Args:
        context: The table.
        before: The older snapshot and its view.
        after: The newer snapshot and its view.
        columns: The columns to compare and return; None for all.

    Raises:
        InvalidInputError: A column is in neither snapshot (``unknown_column``).
    """
    newer, older = (read_schema(context, one[0]).arrow for one in (after, before))
    known = list(dict.fromkeys([*newer.names, *older.names]))
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise InvalidInputError(
            f"the table has no such columns: {unknown}; it has {known}",
            kind="unknown_column",
            columns=unknown,
        )
    return TableDiff(
        context=context,
        before=before[0],
        after=after[0],
        views=(before[1], after[1]),
        stored=(_stored(context, before[0]), _stored(context, after[0])),
        columns=tuple(
            pa.field(name, (newer if name in newer.names else older).field(name).type)
            for name in (known if columns is None else columns)
        ),
    )


def _stored(context: TableContext, snapshot: Snapshot) -> frozenset[str]:
    return frozenset(plan_scan(context, snapshot, [], with_hoodie_columns=True).output_schema.names)


def _files(one: FileSlice) -> tuple[str | None, tuple[str, ...]]:
    base = None if one.base_file is None else one.base_file.name
    return base, tuple(sorted(log.name for log in one.log_files))


# ---- Rows of two tables by key


class _Found(NamedTuple):
    deleted: pa.Table
    inserted: pa.Table
    old: pa.Table  # updated rows, before and after
    new: pa.Table
    changed: Mask  # (updated rows, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    columns: tuple[pa.Field, ...]
    schema: pa.Schema

    def rows(self, before: pa.Table, after: pa.Table) -> _Found:
        """Compare rows by key; equal keys of one side are paired in their order."""
        before, after = before.combine_chunks(), after.combine_chunks()
        keys_before, keys_after = _distinct(before[_KEY]), _distinct(after[_KEY])
        place = pc.index_in(keys_after, value_set=keys_before)
        matched = place.is_valid()
        old, new = before.take(place.drop_null()), after.filter(matched)
        changed = np.zeros((new.num_rows, len(self.columns)), np.bool_)
        for number, column in enumerate(self.columns):
            sides = (_array(old[column.name]), _array(new[column.name]))
            changed[:, number] = ~equal_values(*sides)
        differs = changed.any(axis=1)
        return _Found(
            deleted=before.filter(pc.invert(pc.is_in(keys_before, value_set=keys_after))),
            inserted=after.filter(pc.invert(matched)),
            old=old.filter(pa.array(differs)),
            new=new.filter(pa.array(differs)),
            changed=changed[differs],
        )

    def updates(self, path: str, found: _Found) -> Iterator[pa.RecordBatch]:
        """Yield the updated rows."""
        if not found.new.num_rows:
            return
        names = pa.array([one.name for one in self.columns], pa.string())
        ends = np.concatenate([[0], np.cumsum(found.changed.sum(axis=1))]).astype(np.int32)
        changed = pa.ListArray.from_arrays(
            pa.array(ends), names.take(pa.array(np.nonzero(found.changed)[1]))
        )
        old, new = self._structs(found.old), self._structs(found.new)
        yield self._batch("u", path, _array(found.new[_KEY]), changed, (old, new))

    def one_sided(self, path: str, found: _Found) -> Iterator[pa.RecordBatch]:
        """Yield the deleted and the inserted rows."""
        for op, rows in (("d", found.deleted), ("i", found.inserted)):
            if rows.num_rows:
                there = self._structs(rows)
                none = pa.nulls(rows.num_rows, there.type)
                unchanged = pa.array([[]], pa.list_(pa.string())).take(
                    pa.array(np.zeros(rows.num_rows, np.int64))
                )
                sides = (there, none) if op == "d" else (none, there)
                yield self._batch(op, path, _array(rows[_KEY]), unchanged, sides)

    def _structs(self, rows: pa.Table) -> pa.StructArray:
        values = [_array(rows[one.name]) for one in self.columns]
        return pa.StructArray.from_arrays(values, fields=list(self.columns))

    def _batch(
        self,
        op: str,
        path: str,
        keys: pa.Array,
        changed: pa.Array,
        sides: tuple[pa.Array, pa.Array],
    ) -> pa.RecordBatch:
        count = len(keys)
        columns = [pa.repeat(op, count), pa.repeat(path, count), keys, changed, *sides]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _array(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _distinct(keys: pa.ChunkedArray) -> pa.Array:
    """Return the keys; the second row of a key gets its number, as a table may have duplicates."""
    one = _array(keys)
    codes = pc.fill_null(one.dictionary_encode("encode").indices, -1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
    if len(starts) == len(codes):
        return one
    lengths = np.diff(np.append(starts, len(codes)))
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return pc.binary_join_element_wise(one, pa.array(rank).cast(pa.string()), "\x00")


def equal_values(one: pa.Array, two: pa.Array) -> Mask:
    """
    Return where two arrays of one type have the same value; null and NaN equal themselves.

    Shapes: (n,), (n,) -> (n,).
    """
    kind = one.type
    nulls = _mask(pc.and_(one.is_null(), two.is_null()))
    both = _mask(pc.and_(one.is_valid(), two.is_valid()))
    if pa.types.is_struct(kind):
        fields = (
            equal_values(pc.struct_field(one, [at]), pc.struct_field(two, [at]))
            for at in range(kind.num_fields)
        )
        return nulls | (both & reduce(np.logical_and, fields, both))
    if pa.types.is_map(kind) or is_list(kind):
        return nulls | (both & _equal_lists(one, two))
    if pa.types.is_dictionary(kind):
        return equal_values(one.dictionary_decode(), two.dictionary_decode())
    if pa.types.is_null(kind):
        return nulls
    same = _mask(pc.fill_null(pc.equal(one, two), fill_value=False))
    if pa.types.is_floating(kind):
        not_numbers = pc.and_(pc.is_nan(one), pc.is_nan(two))
        same = same | _mask(pc.fill_null(not_numbers, fill_value=False))
    return nulls | same


def _equal_lists(one: pa.Array, two: pa.Array) -> Mask:
    """Compare lists and maps, element by element in their order."""
    sides = [_as_lists(side) for side in (one, two)]
    lengths = [
        pc.fill_null(pc.list_value_length(side), -1).to_numpy(zero_copy_only=False)
        for side in sides
    ]
    same: Mask = lengths[0] == lengths[1]
    filled = np.flatnonzero(same & (lengths[0] > 0))
    if len(filled):
        elements = (side.take(pa.array(filled)).flatten() for side in sides)
        starts = np.concatenate([[0], np.cumsum(lengths[0][filled])[:-1]])
        same[filled] = np.logical_and.reduceat(equal_values(*elements), starts)
    return same


def _as_lists(values: pa.Array) -> pa.Array:
    if not pa.types.is_map(values.type):
        return values
    entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
    return pa.ListArray.from_arrays(values.offsets, entries)


def _mask(values: pa.Array) -> Mask:
    found: Mask = values.to_numpy(zero_copy_only=False)
    return found

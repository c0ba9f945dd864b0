"""
A table's rules for merging two versions of a record: order, deletes, partial updates.

Reads, compaction and copy-on-write writes share these rules (fmt 7). They decide per column which
rows mean a delete and which values of a row count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.schema import IS_DELETED_COLUMN, META_COLUMNS
from timeline.errors import UnsafeSetupError, counted
from timeline.model.merge_definition import MergeDefinition, PartialUpdateMode
from timeline.ports.merger import RecordMerger, Versions

OPERATION_COLUMN: Final = "_hoodie_operation"
DELETING_OPERATIONS: Final = ("D", "-U")
_PLAIN: Final = ("boolean", "int", "long", "float", "double", "string")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """
    The rules that merge two versions of a record into one.

    ``defaults`` are the values that do not count if a table ignores defaults. For a column that is
    not listed, null is the default.
    """

    definition: MergeDefinition
    defaults: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, definition: MergeDefinition, avro_json: str | None = None) -> MergeRules:
        """
        Return the rules of a table.

        Args:
            definition: From its properties. Ordering fields that its schema lacks are left out: for
                Java all rows are equal in them.
            avro_json: Its schema, for these fields and for the columns' defaults.

        Raises:
            UnsupportedTableError: A class of the table's owner merges its records, and no allowed
                plug-in replaces it (``custom_merger``).
        """
        definition.require_known()
        if avro_json:
            held = _column_names(avro_json)
            kept, kept_in_logs = (
                tuple(name for name in fields if name.partition(".")[0] in held)
                for fields in (definition.ordering_fields, definition.precombine_fields)
            )
            definition = replace(definition, ordering_fields=kept, precombine_fields=kept_in_logs)
        ignores = definition.partial_update_mode is PartialUpdateMode.IGNORE_DEFAULTS
        return cls(
            definition=definition,
            defaults=_defaults(avro_json) if avro_json and ignores else {},
        )

    @property
    def merger(self) -> RecordMerger | None:
        """The record merger that replaces these rules; None if there is none."""
        return self.definition.merger

    @property
    def ordering_fields(self) -> tuple[str, ...]:
        """The ordering fields, compared left to right."""
        return self.definition.ordering_fields

    @property
    def log_ordering_fields(self) -> tuple[str, ...]:
        """The ordering fields among changes in logs, whose deletes carry them."""
        return self.definition.precombine_fields or self.ordering_fields

    @property
    def by_order(self) -> bool:
        """Whether ordering values decide; else the newer of two versions always wins."""
        return self.definition.orders

    @property
    def reads_order(self) -> bool:
        """Whether ordering values decide anything, or a record merger may need them."""
        by_order = self.folds_by_order or self.definition.deletes_by_order
        return (by_order or self.merger is not None) and bool(self.ordering_fields)

    @property
    def folds_by_order(self) -> bool:
        """Whether ordering values decide between two changes in the logs."""
        precombines = self.definition.precombines and bool(self.ordering_fields)
        return self.by_order or precombines

    @property
    def fold_reads_values(self) -> bool:
        """Whether single values may be ignored between two records in the logs, too."""
        return self.reads_values and (not self.definition.precombines or self.by_order)

    @property
    def reads_values(self) -> bool:
        """Whether single values of a full record may be ignored."""
        return self.definition.updates_partially and self.merger is None

    @property
    def combines_in_pieces(self) -> bool:
        """
        Whether rows of a batch may be combined piece by piece, each with the result so far.

        These rules fold the rows of a key in their order, so the result of the first rows stands
        for them. A plug-in's merger may need all versions at once. If a delete goes by order, and a
        row takes values of others, the result lacks the ordering value by which it stayed.
        """
        by_other_order = self.definition.deletes_by_order and self.fold_reads_values
        return self.merger is None and not by_other_order

    @property
    def keeps_whole_rows(self) -> bool:
        """
        Whether one whole row of each key stays, the newest or that of the greatest ordering value.

        Then any parts of a batch may be combined first, and the rows that stay after that.
        """
        definition = self.definition
        by_other_order = definition.deletes_by_order or definition.precombines
        return self.merger is None and not self.reads_values and not by_other_order

    @property
    def retains_missing_columns(self) -> bool:
        """Whether columns that a record's own schema lacks keep their older value."""
        return self.definition.partial_update_mode is PartialUpdateMode.KEEP_VALUES

    def columns_for(self, schema: pa.Schema) -> list[str]:
        """Return the columns of a schema that merging reads: order first, then deletes."""
        names = set(schema.names)
        fields = dict.fromkeys((*self.ordering_fields, *self.log_ordering_fields))
        ordering = fields if self.reads_order else ()
        deletes = (self.definition.delete_field, IS_DELETED_COLUMN, OPERATION_COLUMN)
        heads = [name if name in names else name.partition(".")[0] for name in ordering]
        needed = () if self.merger is None else self.merger.columns_needed(schema)
        return [name for name in (*heads, *deletes, *needed) if name is not None and name in names]

    def deletes(self, rows: pa.Table) -> Mask:
        """Return a mask of rows whose values mean a delete. Shapes: (n rows) -> (n,)."""
        found = np.zeros(rows.num_rows, np.bool_)
        names = set(rows.schema.names)
        if IS_DELETED_COLUMN in names and pa.types.is_boolean(rows.field(IS_DELETED_COLUMN).type):
            found |= _true(rows.column(IS_DELETED_COLUMN))
        if OPERATION_COLUMN in names:
            found |= _true(
                pc.is_in(rows.column(OPERATION_COLUMN), value_set=pa.array(DELETING_OPERATIONS))
            )
        marked, marker = self.definition.delete_field, self.definition.delete_marker
        if marked in names and marker is not None:
            texts = pc.cast(rows.column(marked), pa.string())
            found |= _true(pc.equal(texts, marker))
        return found


def known_values(rows: pa.Table, rules: MergeRules) -> dict[str, Mask]:
    """
    Return a mask of the values that count, for the columns where some do not.

    Shapes: (n rows) -> (n,) for each column named.
    """
    masks: dict[str, Mask] = {}
    mode, marker = rules.definition.partial_update_mode, rules.definition.unavailable_marker
    if mode is PartialUpdateMode.IGNORE_DEFAULTS:
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name in META_COLUMNS:  # a record always has them, and a delete fills nothing
                continue
            default = rules.defaults.get(name)
            if default is not None and not pa.types.is_nested(column.type):
                counts = ~_true(pc.equal(column, pa.scalar(default, column.type)))
            elif column.null_count:
                counts = np.asarray(pc.is_valid(column)).astype(np.bool_)
            else:
                continue
            if not counts.all():
                masks[name] = counts
    elif mode is PartialUpdateMode.FILL_UNAVAILABLE and marker is not None:
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                counts = ~_true(pc.equal(column, pa.scalar(marker).cast(column.type)))
                if not counts.all():
                    masks[name] = counts
    return masks


def _true(values: Any) -> Mask:
    return np.asarray(pc.fill_null(values, False)).astype(np.bool_)


@lru_cache(maxsize=64)
def _column_names(avro_json: str) -> frozenset[str]:
    return frozenset(each["name"] for each in json.loads(avro_json).get("fields", ()))


@lru_cache(maxsize=64)
def _defaults(avro_json: str) -> Mapping[str, object]:
    """Return the defaults that are not null, of columns of plain types."""
    found: dict[str, object] = {}
    for each in json.loads(avro_json).get("fields", ()):
        kind, default = each["type"], each.get("default")
        first = kind[0] if isinstance(kind, list) and kind else kind  # a default is of this branch
        if first in _PLAIN and isinstance(default, bool | int | float | str):
            found[each["name"]] = default
    return found


# ---- Comparison of ordering values: several columns left to right, as Java's ``compareTo`` does
# A batch, the logs of a slice and a base file share it. They must agree even on NaN, or a record
# would win in one step and lose in the next.

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]


def ordering_column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return an ordering field of rows: a column, or a field inside a struct by a dotted name."""
    position = rows.schema.get_field_index(name)
    if position >= 0:
        return rows.column(position)
    head, *rest = name.split(".")
    return pc.struct_field(rows.column(head), rest)


def order_numbers(columns: Sequence[pa.ChunkedArray]) -> tuple[npt.NDArray[Any], Mask]:
    """
    Return numbers that compare as the rows' ordering values do.

    Args:
        columns: The ordering fields, the most significant first; at least one.

    Returns:
        Numbers, equal where the ordering values are, and a mask of rows without a value in some
        field: their numbers mean nothing.

    Shapes: columns (n,) each -> (n,), (n,).
    """
    missing = np.zeros(len(columns[0]), np.bool_)
    parts = []
    for column in columns:
        if column.null_count:
            missing |= np.asarray(pc.is_null(column)).astype(np.bool_)
        parts.append(_numbers(column))
    if len(parts) == 1:
        return parts[0], missing
    order = np.lexsort(parts[::-1])
    steps = np.zeros(len(order), np.bool_)
    for part in parts:
        steps[1:] |= np.diff(part[order]) != 0
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(steps)
    return numbers, missing


def not_below(newer: Sequence[Any], older: Sequence[Any]) -> Mask:
    """
    Return for each pair of rows whether the newer's ordering fields are >= the older's.

    A row without a value in a field is the older one. If both lack it, the newer row wins.

    Shapes: columns (n,) each -> (n,).
    """
    above = np.zeros(len(newer[0]), np.bool_)
    equal = np.ones(len(newer[0]), np.bool_)
    for new, old in zip(newer, older, strict=True):
        greater, same = _compare(new, old)
        above |= equal & greater
        equal &= same
    return above | equal


def _compare(new: Any, old: Any) -> tuple[Mask, Mask]:
    greater, same = pc.greater(new, old), pc.equal(new, old)
    if pa.types.is_floating(new.type):
        # As Java's Double.compareTo: NaN is above every number and equal to itself.
        new_nan, old_nan = pc.is_nan(new), pc.is_nan(old)
        greater = pc.or_(greater, pc.and_not(new_nan, old_nan))
        same = pc.or_(same, pc.and_(new_nan, old_nan))
    # Without a value on either side the newer wins: Java treats such orderings as "natural".
    greater = pc.fill_null(greater, True)
    same = pc.fill_null(same, False)
    return np.asarray(greater).astype(np.bool_), np.asarray(same).astype(np.bool_)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = pc.cast(column, pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = pc.cast(column, pa.int64())
    if pa.types.is_integer(column.type):
        return np.asarray(pc.fill_null(column, 0) if column.null_count else column)
    if pa.types.is_floating(column.type):
        # Sorted with NaN last, and all NaN equal, as Java does.
        values = np.asarray(pc.fill_null(column, 0.0) if column.null_count else column)
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks).astype(np.int64)


# ---- Merging by a plug-in: call a ``RecordMerger`` and check its result


def merge_by_rounds(
    versions: Versions,
    codes: npt.NDArray[np.int64],
    sections: Iterable[Positions],
    merger: RecordMerger,
) -> Versions:
    """
    Merge all versions of each record, oldest first, in one vectorised step per round.

    Args:
        versions: Oldest first.
        codes: A number for each version's record.
        sections: Positions of every record's first version, then of every record's second, and so on;
            within a round in the order of ``codes``.
        merger: The record merger.

    Raises:
        UnsafeSetupError: See ``merge_versions``.

    Shapes: versions (n rows), codes (n,) -> one row for each code.
    """
    done: list[Versions] = []
    state, keys = _taken_versions(versions, np.zeros(0, np.intp)), np.zeros(0, np.int64)
    for section in sections:
        new, newer = codes[section], _taken_versions(versions, section)
        goes_on = np.isin(keys, new)
        done.append(_taken_versions(state, np.flatnonzero(~goes_on)))
        if not len(keys):
            state, keys = newer, new
            continue
        state, _ = merge_versions(merger, _taken_versions(state, np.flatnonzero(goes_on)), newer)
        keys = new
    done.append(state)
    return Versions(
        rows=pa.concat_tables([each.rows for each in done]),
        deleted=np.concatenate([each.deleted for each in done]),
    )


def merge_versions(merger: RecordMerger, older: Versions, newer: Versions) -> tuple[Versions, Mask]:
    """
    Merge pairs of versions.

    Returns:
        The merged versions in the columns of ``older``, and a mask of those left as the older one
        was. A deleted record has the values of the version that was a delete.

    Raises:
        UnsafeSetupError: The result has another length, or values of other types (``bad_merger``;
            field ``merger``).

    Shapes: older, newer (n rows) -> (n rows), (n,).
    """
    count = older.rows.num_rows
    answer = merger.merge(older, newer)
    deleted = _mask(answer.deleted, count, merger)
    kept = np.zeros(count, np.bool_) if answer.kept is None else _mask(answer.kept, count, merger)
    # Per row: 0 the older version's value, 1 the newer's, 2 the merged one.
    plain = np.where((newer.deleted & ~deleted) | kept, 0, 1)
    plain = np.where(deleted & ~newer.deleted & older.deleted, 0, plain)
    is_delete = deleted & (newer.deleted | older.deleted)
    merged = np.where(kept | is_delete, plain, 2)
    columns = []
    for each in older.rows.schema:
        given = each.name not in META_COLUMNS and each.name in answer.columns
        parts = [older.rows.column(each.name), newer.rows.column(each.name)]
        if given:
            parts.append(_fitting(answer.columns[each.name], each, count, merger))
        source = (merged if given else plain) * count + np.arange(count)
        chunks = [chunk for part in parts for chunk in part.chunks]
        columns.append(pa.chunked_array(chunks, each.type).take(pa.array(source)))
    rows = pa.Table.from_arrays(columns, schema=older.rows.schema)
    return Versions(rows=rows, deleted=deleted), kept


def _taken_versions(versions: Versions, positions: Positions) -> Versions:
    return Versions(
        rows=versions.rows.take(pa.array(positions)), deleted=versions.deleted[positions]
    )


def _fitting(
    column: pa.Array | pa.ChunkedArray, wanted: pa.Field, count: int, merger: RecordMerger
) -> pa.ChunkedArray:
    if len(column) != count:
        raise _bad(
            merger, f"column {wanted.name} of {len(column)} values for {counted(count, 'record')}"
        )
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    try:
        return pa.chunked_array(chunks, column.type).cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _bad(
            merger, f"column {wanted.name} as {column.type} instead of {wanted.type}"
        ) from error


def _mask(mask: Mask, count: int, merger: RecordMerger) -> Mask:
    found = np.asarray(mask)
    if found.shape != (count,) or found.dtype != np.bool_:
        raise _bad(
            merger,
            f"a mask of {found.dtype} of the shape {found.shape} for {counted(count, 'record')}",
        )
    return found


def _bad(merger: RecordMerger, what: str) -> UnsafeSetupError:
    name = type(merger).__name__
    return UnsafeSetupError(
        f"a plug-in's merger breaks its contract: ask its author: {name} returned {what}",
        kind="bad_merger",
        merger=name,
    )

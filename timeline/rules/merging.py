"""
Which version of a record stays: duplicates inside a batch, and a batch against a base file.

Java Hudi's mergers decide the same way (fmt 7), so readers of a copy-on-write file and of
a base file with logs see equal rows. In commit-time order the newer always wins; in
event-time order it wins when its ordering value is not below the older one's. Everything
works on whole columns; a loop over rows would make big files unusable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.model.operations import MergeMode
from timeline.model.schema import IS_DELETED_COLUMN

__all__ = ["DeleteKind", "MergeOutcome", "append_rows", "combine_incoming", "merge_base"]

_KEY = "_hoodie_record_key"
_PARTITION = "_hoodie_partition_path"

_Mask = npt.NDArray[np.bool_]
_Positions = npt.NDArray[np.intp]


class DeleteKind(Enum):
    """What incoming rows mean."""

    NONE = "none"  # all are records
    COLUMN = "column"  # those with `_hoodie_is_deleted` delete, with their own ordering value
    EXPLICIT = "explicit"  # all delete, whatever the order says (a commit-time delete)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """A merged file group and what happened to its records."""

    table: pa.Table
    new_keys: pa.Array | pa.ChunkedArray  # keys of the inserted records
    inserted: int
    updated: int
    deleted: int
    ignored_late: int  # records of the base that an older incoming one did not replace

    @property
    def changed(self) -> bool:
        """Whether the file group needs a new file at all."""
        return bool(self.inserted or self.updated or self.deleted)


def combine_incoming(table: pa.Table, ordering_fields: Sequence[str], mode: MergeMode) -> pa.Table:
    """
    Keep one row for each record key and partition path of a batch.

    In event-time order the greatest ordering value stays, of equal ones the later row; in
    commit-time order, or without ordering fields, the last row.

    Args:
        table: Rows with ``_hoodie_record_key``, and ``_hoodie_partition_path`` if it varies.
        ordering_fields: Compared left to right; no nulls in them.
        mode: The table's merge mode.

    Shapes: (n rows) -> (at most n rows); order of the rows that stay is kept.
    """
    codes, distinct = _key_codes(table)
    if distinct == len(codes):
        return table
    if not ordering_fields or mode is not MergeMode.EVENT_TIME_ORDERING:
        winners = np.zeros(distinct, np.intp)
        winners[codes] = np.arange(len(codes))  # the last assignment stays
    else:
        ranks = [_rank(table.column(name)) for name in reversed(ordering_fields)]
        order = np.lexsort([*ranks, codes])  # stable: later rows come last among equals
        winners = order[np.append(np.flatnonzero(np.diff(codes[order])), len(codes) - 1)]
    return table.take(pa.array(np.sort(winners)))


def merge_base(
    base: pa.Table,
    incoming: pa.Table,
    *,
    mode: MergeMode,
    ordering_fields: Sequence[str] = (),
    deletes: DeleteKind = DeleteKind.NONE,
) -> MergeOutcome:
    """
    Merge a batch into the rows of one file group (fmt 7, step B).

    Args:
        base: All rows of the newest base file, meta columns included. Keys may repeat (a
            plain insert wrote them twice); then every copy is updated.
        incoming: Rows of the same schema with unique keys and filled meta columns; an
            explicit delete needs the record key only.
        mode: The table's merge mode.
        ordering_fields: Compared left to right. A base row without a value is older than
            anything.
        deletes: What incoming rows mean.

    Returns:
        Base rows in their order, changed ones in place, then the inserted ones. Unchanged
        rows keep all their columns.
    """
    position = _lookup(base.column(_KEY), incoming.column(_KEY))
    matched_base = np.flatnonzero(position >= 0)
    matched_incoming = position[matched_base]
    is_delete = _is_delete(incoming, deletes)
    wins = np.ones(len(matched_base), np.bool_)
    by_order = mode is MergeMode.EVENT_TIME_ORDERING and deletes is not DeleteKind.EXPLICIT
    if by_order and ordering_fields and len(matched_base):
        older = base.select(list(ordering_fields)).take(pa.array(matched_base))
        newer = incoming.select(list(ordering_fields)).take(pa.array(matched_incoming))
        wins = _not_below(newer, older)
    removes = wins & is_delete[matched_incoming]
    replaces = wins & ~removes

    table = base
    if replaces.any():
        rows = incoming.take(pa.array(matched_incoming[replaces]))
        table = _replace_rows(base, matched_base[replaces], rows)
    if removes.any():
        keep = np.ones(base.num_rows, np.bool_)
        keep[matched_base[removes]] = False
        table = table.filter(pa.array(keep))
    fresh = ~is_delete
    fresh[matched_incoming] = False
    inserts = incoming if fresh.all() else incoming.filter(pa.array(fresh))
    if inserts.num_rows:
        table = pa.concat_tables([table, inserts.select(table.schema.names)])
    return MergeOutcome(
        table=table,
        new_keys=inserts.column(_KEY),
        inserted=inserts.num_rows,
        updated=int(replaces.sum()),
        deleted=int(removes.sum()),
        ignored_late=int((~wins).sum()),
    )


def append_rows(base: pa.Table, incoming: pa.Table) -> MergeOutcome:
    """Add a batch behind the base's rows without looking at keys (the insert operation)."""
    return MergeOutcome(
        table=pa.concat_tables([base, incoming.select(base.schema.names)]),
        new_keys=incoming.column(_KEY),
        inserted=incoming.num_rows,
        updated=0,
        deleted=0,
        ignored_late=0,
    )


def _key_codes(table: pa.Table) -> tuple[npt.NDArray[np.int64], int]:
    """One number for each distinct (key, partition path), and how many there are."""
    codes, distinct = _codes(table.column(_KEY))
    if _PARTITION in table.schema.names:
        paths, count = _codes(table.column(_PARTITION))
        if count > 1:
            pairs, codes = np.unique(codes * count + paths, return_inverse=True)
            distinct = len(pairs)
    return codes, distinct


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], int]:
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    encoded = column.dictionary_encode().unify_dictionaries()
    if encoded.num_chunks == 0:
        return np.zeros(0, np.int64), 0
    indices = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    distinct = len(encoded.chunk(encoded.num_chunks - 1).dictionary)
    return np.concatenate(indices).astype(np.int64), distinct


def _lookup(base_keys: pa.ChunkedArray, incoming_keys: pa.ChunkedArray) -> _Positions:
    found = pc.index_in(base_keys, value_set=incoming_keys)
    return np.asarray(pc.fill_null(found, -1)).astype(np.intp)


def _is_delete(incoming: pa.Table, deletes: DeleteKind) -> _Mask:
    if deletes is DeleteKind.EXPLICIT:
        return np.ones(incoming.num_rows, np.bool_)
    if deletes is DeleteKind.NONE or IS_DELETED_COLUMN not in incoming.schema.names:
        return np.zeros(incoming.num_rows, np.bool_)
    flag = pc.fill_null(incoming.column(IS_DELETED_COLUMN), False)
    return np.asarray(flag).astype(np.bool_)


def _replace_rows(base: pa.Table, where: _Positions, rows: pa.Table) -> pa.Table:
    mask = np.zeros(base.num_rows, np.bool_)
    mask[where] = True
    arrow_mask = pa.array(mask)
    choice: pa.Array | None = None
    columns = []
    for name, column in zip(base.schema.names, base.columns, strict=True):
        values = _one_array(column)
        new = _one_array(rows.column(name))
        if not pa.types.is_nested(values.type) and not pa.types.is_dictionary(values.type):
            columns.append(pc.replace_with_mask(values, arrow_mask, new))
            continue
        if choice is None:
            chosen = np.arange(base.num_rows)
            chosen[where] = base.num_rows + np.arange(len(where))
            choice = pa.array(chosen)
        columns.append(pa.concat_arrays([values, new]).take(choice))
    return pa.Table.from_arrays(columns, schema=base.schema)


def _not_below(newer: pa.Table, older: pa.Table) -> _Mask:
    """For each pair of rows whether the newer's ordering fields are >= the older's."""
    above = np.zeros(newer.num_rows, np.bool_)
    equal = np.ones(newer.num_rows, np.bool_)
    for new, old in zip(newer.columns, older.columns, strict=True):
        greater, same = _compare(new, old)
        above |= equal & greater
        equal &= same
    return above | equal


def _compare(new: Any, old: Any) -> tuple[_Mask, _Mask]:
    greater, same = pc.greater(new, old), pc.equal(new, old)
    if pa.types.is_floating(new.type):
        # As Java's Double.compareTo: NaN is above every number and equal to itself.
        new_nan, old_nan = pc.is_nan(new), pc.is_nan(old)
        greater = pc.or_(greater, pc.and_not(new_nan, old_nan))
        same = pc.or_(same, pc.and_(new_nan, old_nan))
    # Without a value the base row is older than anything.
    greater = pc.fill_null(greater, True)
    same = pc.fill_null(same, False)
    return np.asarray(greater).astype(np.bool_), np.asarray(same).astype(np.bool_)


def _rank(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers in the order of the column's values (numpy sorts NaN last, as Java does)."""
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if is_number and not column.null_count:
        return np.asarray(column)
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    return np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense"))


def _one_array(column: pa.ChunkedArray) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if hasattr(combined, "chunks") else combined

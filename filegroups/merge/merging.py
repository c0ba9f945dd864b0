"""
Merge the versions of a record: in a batch, among the logs of a slice, and with a base file (fmt 7).

Step A folds several changes of one record to one. Step B merges them into the rows of a base file.
Java Hudi's mergers decide in the same way, so readers of a copy-on-write file and of a base file
with logs return equal rows. In commit-time order the newer version always wins. In event-time order
it wins if its ordering value is not below the older one's. All steps work on whole columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.merge.rules import (
    Mask,
    MergeRules,
    Positions,
    known_values,
    merge_by_rounds,
    merge_versions,
    not_below,
    order_numbers,
    ordering_column,
)
from filegroups.schema.arrow_columns import (
    JOINED_BYTES_MAX,
    distinct_codes,
    one_array,
    version_rounds,
)
from filegroups.schema.schema import IS_DELETED_COLUMN, KEY_COLUMN, META_COLUMNS, PARTITION_COLUMN
from timeline.errors import InvalidInputError, UnsupportedTableError, counted
from timeline.ports.merger import RecordMerger, Versions


class DeleteKind(Enum):
    """The meaning of incoming rows."""

    NONE = "none"  # all are records
    COLUMN = "column"  # those with `_hoodie_is_deleted` delete, with their own ordering value
    EXPLICIT = "explicit"  # all delete, whatever their ordering values (a commit-time delete)


class ChangeKind(IntEnum):
    """The effect of one change on its record."""

    RECORD = 0
    DELETE_ROW = 1  # a record that is marked as deleted
    DELETE = 2  # an entry of a delete block with an ordering value of its own
    COMMIT_TIME_DELETE = 3  # an entry of a delete block without one: wins over all older changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """
    Changes to the records of one file group, oldest first.

    ``rows`` has one row per change. A record has its columns; a delete has its key and ordering
    fields, the rest null. ``known`` maps each column that some changes lack to a mask of the changes
    that have it; without an entry every record has the column. ``every_copy`` says that the changes
    were made for each of several rows of one key. ``partial_keys`` are the keys in a block of
    partial updates.
    """

    rows: pa.Table
    kinds: npt.NDArray[np.int8]
    known: Mapping[str, Mask] = field(default_factory=dict)
    every_copy: bool = False
    partial_keys: pa.ChunkedArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """A merged file group and the number of records inserted, updated, deleted and ignored."""

    table: pa.Table
    new_keys: pa.Array | pa.ChunkedArray  # keys of the inserted records
    inserted: int
    updated: int
    deleted: int
    ignored_late: int  # records of the base that an older incoming record did not replace

    @property
    def changed(self) -> bool:
        """Whether the file group needs a new file."""
        return bool(self.inserted or self.updated or self.deleted)


def shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the columns of a schema; columns they lack are null."""
    held = set(rows.schema.names)
    columns = [
        rows.column(each.name)
        if each.name in held
        else pa.chunked_array([pa.nulls(rows.num_rows, each.type)], type=each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def key_codes(table: pa.Table, *, by_partition: bool = False) -> tuple[npt.NDArray[np.int64], int]:
    """
    Return a number per row for its key, or its (key, partition path), and their count.

    Shapes: (n rows) -> (n,), a count; every number is below the count.
    """
    codes, keys = distinct_codes(table.column(KEY_COLUMN))
    may_repeat = len(keys) < len(codes)
    if may_repeat and by_partition and PARTITION_COLUMN in table.schema.names:
        places, paths = distinct_codes(table.column(PARTITION_COLUMN))
        if len(paths) > 1:
            pairs, codes = np.unique(codes * len(paths) + places, return_inverse=True)
            return codes, len(pairs)
    return codes, len(keys)


# ---- Step A: fold changes, so that one change of each record remains
#
# The logs of a file slice are folded, and the duplicates of a batch before it is written.
#
# Worked example, also a test: update(20), delete without ordering, update(5) over a base row with
# ordering 10. The delete replaces the first update, and the late update replaces the delete. Against
# the base (step B) it loses: the base row stays and the delete has no effect. Java Hudi gives the
# same result, so compaction must write it.
#
# If every record has all its columns, the fold is a closed form (``newest_positions``). Partial
# updates combine a record from several changes. Then step 1 applies the first change of all records,
# step 2 their second, and so on. The number of vectorised steps is that of the changes of the most
# changed record.

_NOTHING = -1


def join_changes(blocks: Sequence[Changes], schema: pa.Schema) -> Changes:
    """
    Concatenate the changes of several blocks.

    Args:
        blocks: Oldest first; each with any of the schema's columns in the schema's types.
        schema: Schema of the result. Columns that a block lacks are null; they count as unknown if
            the block says so.
    """
    tables = [shaped(block.rows, schema) for block in blocks]
    known: dict[str, Mask] = {}
    for name in dict.fromkeys(name for block in blocks for name in block.known):
        if name in schema.names:
            known[name] = np.concatenate(
                [block.known.get(name, np.ones(block.rows.num_rows, np.bool_)) for block in blocks]
            )
    return Changes(
        rows=pa.concat_tables(tables) if tables else schema.empty_table(),
        kinds=np.concatenate([block.kinds for block in blocks] or [np.zeros(0, np.int8)]),
        known=known,
    )


def fold_changes(changes: Changes, rules: MergeRules) -> Changes:
    """
    Apply changes to each other, oldest first, until one remains for each record key.

    Args:
        changes: Changes of one file group; the partition path is not compared.
        rules: The table's.

    Returns:
        One change per key, in the order of the remaining changes.

    Raises:
        UnsupportedTableError: Changes have some columns only, and a record merger needs whole rows
            (``custom_merger_partial``).
        UnsafeSetupError: The record merger returns a wrong result (``bad_merger``).

    Shapes: changes (n rows) -> (at most n rows).
    """
    folded = _folded(changes, rules, *key_codes(changes.rows))
    if not rules.definition.precombines:
        return folded
    # In version 6 the payload of a delete is empty: against a base file it has no order.
    deletes = folded.kinds == ChangeKind.DELETE
    kinds = np.where(deletes, ChangeKind.COMMIT_TIME_DELETE, folded.kinds).astype(np.int8)
    known = folded.known
    if rules.reads_values and not rules.fold_reads_values:
        known = {**known, **known_values(folded.rows, rules)}
    return Changes(rows=folded.rows, kinds=kinds, known=known)


def combine_incoming(table: pa.Table, rules: MergeRules) -> pa.Table:
    """
    Reduce the rows of a batch to one per record key and partition path.

    The rule is that of log rows. In event-time order the greatest ordering value stays, and the
    later row among equal values. In commit-time order the last row stays. With partial updates,
    values that the row lacks come from an earlier one.

    Args:
        table: Rows with ``_hoodie_record_key``, and ``_hoodie_partition_path`` if it varies; no
            nulls in ordering fields.
        rules: The table's.

    Raises:
        InvalidInputError: The record merger deletes a record although none of its rows is a delete,
            and the rows have no column to mark it (``merged_delete``).
        UnsafeSetupError: The record merger returns a wrong result (``bad_merger``).

    Shapes: (n rows) -> (at most n rows); remaining rows keep their order, except after a record
    merger.
    """
    codes, distinct = key_codes(table, by_partition=True)
    if distinct == len(codes):
        return table
    kinds = np.zeros(table.num_rows, np.int8)
    kinds[rules.deletes(table)] = ChangeKind.DELETE_ROW
    folded = _folded(Changes(rows=table, kinds=kinds), rules, codes, distinct)
    if rules.merger is None:
        return folded.rows
    return _with_deletes_marked(folded, rules)


def _with_deletes_marked(combined: Changes, rules: MergeRules) -> pa.Table:
    """Mark rows that the record merger turned into deletes, so that writers see them."""
    rows = combined.rows
    unmarked = (combined.kinds != ChangeKind.RECORD) & ~rules.deletes(rows)
    if not unmarked.any():
        return rows
    position = rows.schema.get_field_index(IS_DELETED_COLUMN)
    if position < 0:
        raise InvalidInputError(
            "the table's merger deletes a record while it combines rows of one key, and the rows "
            f"have no column for deletes: add a boolean column {IS_DELETED_COLUMN}, or write the "
            f"versions one after the other: {counted(int(unmarked.sum()), 'record')}",
            kind="merged_delete",
            rows=int(unmarked.sum()),
        )
    marks = pc.if_else(pa.array(unmarked), True, rows.column(position))
    return rows.set_column(position, rows.schema.field(position), marks)


def _folded(
    changes: Changes, rules: MergeRules, codes: npt.NDArray[np.int64], distinct: int
) -> Changes:
    if rules.merger is not None:
        return _merged_by_plugin(changes, codes, distinct, rules.merger)
    known = dict(changes.known)
    if rules.fold_reads_values:
        for name, counts in known_values(changes.rows, rules).items():
            known[name] = counts & known[name] if name in known else counts
    if distinct == len(codes):
        return Changes(rows=changes.rows, kinds=changes.kinds, known=known)
    if not known and not _goes_by_steps(changes, rules):
        stay = newest_positions(changes, codes, distinct, rules)
        return Changes(rows=changes.rows.take(pa.array(stay)), kinds=changes.kinds[stay])
    return _fold_in_rounds(
        Changes(rows=changes.rows, kinds=changes.kinds, known=known), codes, distinct, rules
    )


def _merged_by_plugin(
    changes: Changes, codes: npt.NDArray[np.int64], distinct: int, merger: RecordMerger
) -> Changes:
    if changes.known:
        raise UnsupportedTableError(
            "log files contain partial updates, which a plug-in's merger cannot merge: compact "
            f"the table with the engine that wrote them: {type(merger).__name__}",
            kind="custom_merger_partial",
        )
    if distinct == len(codes):
        return changes
    versions = Versions(rows=changes.rows, deleted=changes.kinds != ChangeKind.RECORD)
    merged = merge_by_rounds(versions, codes, version_rounds(codes), merger)
    kinds = np.where(merged.deleted, ChangeKind.DELETE, ChangeKind.RECORD).astype(np.int8)
    return Changes(rows=merged.rows, kinds=kinds)


def _goes_by_steps(changes: Changes, rules: MergeRules) -> bool:
    """Return whether changes must be applied step by step, even if all columns are known."""
    definition = rules.definition
    if definition.late_rows_sign:
        return True
    if definition.deletes_by_order and rules.reads_order:
        return bool((changes.kinds != ChangeKind.RECORD).any())
    return definition.precombines and bool((changes.kinds == ChangeKind.DELETE).any())


def _fold_in_rounds(
    changes: Changes, codes: npt.NDArray[np.int64], distinct: int, rules: MergeRules
) -> Changes:
    """Fold changes in rounds: the first of each record, then the second of each, and so on."""
    kinds = changes.kinds
    if rules.reads_order:
        ordering = [ordering_column(changes.rows, name) for name in rules.log_ordering_fields]
        numbers, missing = order_numbers(ordering)
    else:
        numbers, missing = np.zeros(len(codes), np.int64), np.ones(len(codes), np.bool_)
    # Changes without an ordering value, which keep that of the older change.
    without_order = np.zeros(len(codes), np.bool_)
    for name in rules.log_ordering_fields:
        if name in changes.known:
            without_order |= ~changes.known[name]
    # For each record: the change that remains and the change its order comes from. For each column
    # that some changes lack: the change its value comes from.
    stays = np.full(distinct, _NOTHING, np.intp)
    order_from = np.full(distinct, _NOTHING, np.intp)
    sources = {name: np.full(distinct, _NOTHING, np.intp) for name in changes.known}
    signs = stays.copy()  # the change that the meta columns come from

    for new in version_rounds(codes):
        key = codes[new]
        old, old_order = stays[key], order_from[key]
        there = old != _NOTHING
        old_gone = there & (kinds[old] == ChangeKind.COMMIT_TIME_DELETE)
        if rules.definition.precombines:
            old_gone |= there & (kinds[old] == ChangeKind.DELETE)
        new_gone = kinds[new] == ChangeKind.COMMIT_TIME_DELETE
        unordered = missing[new] | (old_order == _NOTHING)
        wins = ~there | new_gone | old_gone | unordered | (numbers[new] >= numbers[old_order])
        both = there & (kinds[new] == ChangeKind.RECORD) & (kinds[old] == ChangeKind.RECORD)
        if not rules.folds_by_order:
            wins |= both
        if rules.reads_order:
            wins &= ~(old_gone & (kinds[new] == ChangeKind.DELETE))
        signs[key] = np.where(wins | both, new, signs[key])
        for name, source in sources.items():
            has_value = changes.known[name][new]
            from_new = np.where(has_value, new, _NOTHING)
            from_old = np.where(both, source[key], _NOTHING)
            older_kept = np.where(both & (source[key] == _NOTHING), from_new, source[key])
            source[key] = np.where(wins, np.where(has_value, new, from_old), older_kept)
        stays[key] = np.where(wins, new, old)
        kept = np.where(both & without_order[new], old_order, _NOTHING)
        ordered = np.where(missing[new], kept, new)
        order_from[key] = np.where(wins, ordered, old_order)

    by_age = np.argsort(stays, kind="stable")
    stays, signs = stays[by_age], signs[by_age]
    columns, masks = [], {}
    for name, column in zip(changes.rows.schema.names, changes.rows.columns, strict=True):
        if name not in sources:
            signed = rules.definition.late_rows_sign and name in META_COLUMNS
            columns.append(column.take(pa.array(signs if signed else stays)))
            continue
        source = sources[name][by_age]
        known = source != _NOTHING
        columns.append(column.take(pa.array(np.where(known, source, stays))))
        if not known.all():
            masks[name] = known
    rows = pa.Table.from_arrays(columns, schema=changes.rows.schema)
    return Changes(rows=rows, kinds=kinds[stays], known=masks)


def newest_positions(
    changes: Changes, codes: npt.NDArray[np.int64], distinct: int, rules: MergeRules
) -> Positions:
    """
    Return the change of each record that remains after all are applied in order.

    A change replaces the current one unless that has a greater ordering value. A change without
    ordering value (most often a commit-time delete) replaces every change and is replaced by every
    change. So for each record, only changes from the last one without a value on count. Among them
    the greatest remains, the newest of equal ones. An entry of a delete block never replaces a
    commit-time delete.

    Args:
        changes: Oldest first; whole records only (``known`` is empty).
        codes: A number for each change's record, below ``distinct``.
        distinct: The number of records.
        rules: The table's order.

    Shapes: changes (n rows), codes (n,) -> ascending positions (distinct,).
    """
    winners = np.zeros(distinct, np.intp)
    if not rules.folds_by_order:
        winners[codes] = np.arange(len(codes))  # the last assignment stays
        return np.sort(winners)
    ordering = [ordering_column(changes.rows, name) for name in rules.log_ordering_fields]
    numbers, missing = order_numbers(ordering)
    commit_time = changes.kinds == ChangeKind.COMMIT_TIME_DELETE
    restarts = missing | commit_time
    if not restarts.any():
        order = np.argsort(numbers, kind="stable")  # later rows are last among equals
        winners[codes[order]] = order
        return np.sort(winners)
    positions = np.arange(len(codes))
    begin = np.zeros(distinct, np.intp)
    begin[codes[restarts]] = positions[restarts]
    gone = np.zeros(distinct, np.bool_)
    gone[codes[restarts]] = commit_time[restarts]
    alive = positions >= begin[codes]
    records = np.flatnonzero(alive & (changes.kinds <= ChangeKind.DELETE_ROW))[::-1]
    revived = np.full(distinct, len(codes), np.intp)
    revived[codes[records]] = records  # the first of them: the order is reversed
    waits = gone[codes] & (changes.kinds == ChangeKind.DELETE) & (positions < revived[codes])
    counting = np.flatnonzero(alive & ~waits)
    first = np.flatnonzero(restarts[counting])
    order = np.argsort(numbers[counting], kind="stable")
    order = np.concatenate([first, order[~restarts[counting][order]]])  # below every value
    winners[codes[counting[order]]] = counting[order]
    return np.sort(winners)


# ---- Step B: merge changes into the rows of a base file
#
# Only ``merge_changes`` does it. Reads and compaction pass it the folded logs of a slice,
# copy-on-write writes pass a batch.

_WIDER = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_PIECE_ROWS = 65_536
_SMALL_BYTES = 1 << 20


def merge_base(
    base: pa.Table,
    incoming: pa.Table,
    rules: MergeRules,
    *,
    deletes: DeleteKind = DeleteKind.NONE,
) -> MergeOutcome:
    """
    Merge a batch into the rows of one file group.

    Args:
        base: As in ``merge_changes``.
        incoming: Rows of the same schema with unique keys and filled meta columns; an explicit
            delete needs the record key only. Columns that the rows lack keep their values in the
            records; only rows of known keys may lack any.
        rules: The table's.
        deletes: The meaning of incoming rows.

    Returns:
        As ``merge_changes``.
    """
    kinds = np.zeros(incoming.num_rows, np.int8)
    if deletes is DeleteKind.EXPLICIT:
        kinds[:] = ChangeKind.COMMIT_TIME_DELETE
    elif deletes is DeleteKind.COLUMN:
        kinds[rules.deletes(incoming)] = ChangeKind.DELETE_ROW
    known = known_values(incoming, rules) if rules.reads_values else {}
    missing = np.zeros(incoming.num_rows, np.bool_)
    known |= {name: missing for name in base.schema.names if name not in incoming.schema.names}
    changes = Changes(rows=incoming, kinds=kinds, known=known)
    return merge_changes(base, changes, rules, every_copy=True)


def merge_changes(
    base: pa.Table, changes: Changes, rules: MergeRules, *, every_copy: bool = False
) -> MergeOutcome:
    """
    Merge changes into the rows of one file group (fmt 7, step B).

    Args:
        base: All rows of the newest base file. A row without an ordering value is the oldest.
        changes: At most one for each key; records of the base's schema.
        rules: The table's.
        every_copy: Whether to change every row of a key that the base has several times, after
            plain inserts. Java's copy-on-write writer does; its reader of logs changes only the
            first row, unless the logs name the rows (``Changes.every_copy``).

    Returns:
        Base rows in their order, changed ones in place, then the inserted ones. Unchanged rows keep
        all their columns.
    """
    position = _lookup(base.column(KEY_COLUMN), changes.rows.column(KEY_COLUMN))
    matched_base = np.flatnonzero(position >= 0)
    matched = position[matched_base]
    if not (every_copy or changes.every_copy) and len(matched) and np.bincount(matched).max() > 1:
        firsts = np.sort(np.unique(matched, return_index=True)[1])
        matched_base, matched = matched_base[firsts], matched[firsts]
    wins = np.ones(len(matched), np.bool_)
    if rules.merger is not None:
        changes, kept = _base_merged_by_plugin(base, changes, (matched_base, matched), rules.merger)
        matched, wins = np.arange(len(matched)), ~kept
    rows, is_delete = changes.rows, changes.kinds != ChangeKind.RECORD
    # Java's copy-on-write writer uses the payload alone.
    deletes_by_order = rules.definition.deletes_by_order and not every_copy
    if (rules.by_order or deletes_by_order) and rules.reads_order and len(matched):
        commit_time = changes.kinds[matched] == ChangeKind.COMMIT_TIME_DELETE
        if not rules.by_order:
            commit_time |= changes.kinds[matched] == ChangeKind.RECORD
        if not commit_time.all():
            newer = [column.take(pa.array(matched)) for column in _ordering(rows, rules)]
            older = [column.take(pa.array(matched_base)) for column in _ordering(base, rules)]
            wins = commit_time | not_below(newer, older)
    removes = wins & is_delete[matched]
    replaces = wins & ~removes

    fresh = ~is_delete
    fresh[matched] = False
    inserted = np.flatnonzero(fresh)
    late = ~wins & ~is_delete[matched]
    filled: Mapping[str, Mask] = {}
    if rules.reads_values and late.any():
        # Values that the base row lacks come from the late record.
        filled = _lacking(base, matched_base[late], rules)
        if rules.definition.late_rows_sign:
            every = np.ones(int(late.sum()), np.bool_)
            held = set(rows.schema.names) & set(base.schema.names)
            filled = {**filled, **{name: every for name in META_COLUMNS if name in held}}
    places = _RowPositions(
        base_rows=base.num_rows,
        replaced=(matched_base[replaces], matched[replaces]),
        filled=(matched_base[late], matched[late]),
        removed=matched_base[removes],
        inserted=inserted,
    )
    changed_late = np.logical_or.reduce([*filled.values()]) if filled else np.zeros(0, np.bool_)
    updated_late = int(changed_late.sum())
    return MergeOutcome(
        table=_put_in_place(base, changes, places, filled),
        new_keys=rows.column(KEY_COLUMN).take(pa.array(inserted)),
        inserted=len(inserted),
        updated=int(replaces.sum()) + updated_late,
        deleted=int(removes.sum()),
        ignored_late=int((~wins).sum()) - updated_late,
    )


def _base_merged_by_plugin(
    base: pa.Table, changes: Changes, pairs: tuple[Positions, Positions], merger: RecordMerger
) -> tuple[Changes, Mask]:
    """
    Merge the changes of existing base rows with these rows and put them first.

    Shapes: pairs (n,) each -> (n + the rest, rows), a mask of the n that change nothing (n,).
    """
    of_base, of_changes = pairs
    rows = shaped(changes.rows, base.schema)
    newer = rows.take(pa.array(of_changes))
    deletes = changes.kinds != ChangeKind.RECORD
    merged, kept = merge_versions(
        merger,
        Versions(rows=base.take(pa.array(of_base)), deleted=np.zeros(len(of_base), np.bool_)),
        Versions(rows=newer, deleted=deletes[of_changes]),
    )
    rest = np.ones(len(deletes), np.bool_)
    rest[of_changes] = False
    kinds = np.where(merged.deleted, ChangeKind.DELETE, ChangeKind.RECORD).astype(np.int8)
    return Changes(
        rows=pa.concat_tables([merged.rows, rows.filter(pa.array(rest))]),
        kinds=np.concatenate([kinds, changes.kinds[rest]]),
    ), kept


def append_rows(base: pa.Table, incoming: pa.Table) -> MergeOutcome:
    """Append a batch to the base's rows without comparing keys (the insert operation)."""
    return MergeOutcome(
        table=pa.concat_tables([base, incoming.select(base.schema.names)]),
        new_keys=incoming.column(KEY_COLUMN),
        inserted=incoming.num_rows,
        updated=0,
        deleted=0,
        ignored_late=0,
    )


def _ordering(rows: pa.Table, rules: MergeRules) -> list[pa.ChunkedArray]:
    return [ordering_column(rows, name) for name in rules.ordering_fields]


def _lookup(base_keys: pa.ChunkedArray, incoming_keys: pa.ChunkedArray) -> Positions:
    found = pc.index_in(base_keys, value_set=incoming_keys)
    return np.asarray(pc.fill_null(found, -1)).astype(np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowPositions:
    """The sources of a merged table's rows: positions in the base and in the changes."""

    base_rows: int
    replaced: tuple[Positions, Positions]  # base row, and the change that replaces it
    filled: tuple[Positions, Positions]  # base row, and the late change that fills its gaps
    removed: Positions
    inserted: Positions

    @property
    def moves(self) -> bool:
        """Whether rows are added or removed, so that every column changes."""
        return bool(len(self.removed) or len(self.inserted))

    def sources(self, replaces: Mask | None, fills: Mask | None) -> Positions:
        """Return each merged row's position in the base's rows followed by the changes."""
        source = np.arange(self.base_rows + len(self.inserted))
        source[self.base_rows :] = self.base_rows + self.inserted
        where, chosen = self.replaced
        if replaces is not None:
            where, chosen = where[replaces], chosen[replaces]
        source[where] = self.base_rows + chosen
        if fills is not None:
            where, chosen = self.filled
            source[where[fills]] = self.base_rows + chosen[fills]
        return np.delete(source, self.removed) if len(self.removed) else source


def _put_in_place(
    base: pa.Table, changes: Changes, places: _RowPositions, filled: Mapping[str, Mask]
) -> pa.Table:
    """
    Return the merged rows: one gather per column from base values followed by changes.

    One gather costs a third of a replacement under a mask, most of all for texts.
    """
    chosen = places.replaced[1]
    held = set(changes.rows.schema.names)
    if not len(chosen) and not filled and not len(places.removed):
        if not len(places.inserted):
            return base
        inserts = changes.rows.take(pa.array(places.inserted))
        return pa.concat_tables([base, inserts.select(base.schema.names)])
    whole = pa.array(places.sources(None, None))
    if not changes.known and not filled and changes.rows.schema.equals(base.schema):
        joined = pa.concat_tables([base, changes.rows])
        if joined.get_total_buffer_size() <= _SMALL_BYTES:
            return joined.take(whole)  # a call for each column costs more than its few values
    columns = []
    for name, column in zip(base.schema.names, base.columns, strict=True):
        known, fills = changes.known.get(name), filled.get(name)
        replaces = None if known is None else known[chosen]
        count = len(chosen) if replaces is None else int(replaces.sum())
        if not places.moves and (name == KEY_COLUMN or (not count and fills is None)):
            columns.append(column)  # a changed row keeps its key
            continue
        plain = replaces is None and fills is None
        source = whole if plain else pa.array(places.sources(replaces, fills))
        behind = changes.rows.column(name) if name in held else None  # a delete needs a key only
        columns.append(_taken(column, behind, source))
    return pa.Table.from_arrays(columns, schema=base.schema)


def _taken(column: pa.ChunkedArray, behind: pa.ChunkedArray | None, source: pa.Array) -> Any:
    """Return the values at ``source`` of two joined columns. Shapes: source (n,) -> (n,)."""
    kind = column.type
    parts = [column] if behind is None else [column, behind]
    if pa.types.is_dictionary(kind):
        values = pa.concat_arrays([one_array(part) for part in parts])
    elif sum(part.nbytes for part in parts) > JOINED_BYTES_MAX and kind in _WIDER:
        wide = pa.concat_arrays(
            [chunk for part in parts for chunk in part.cast(_WIDER[kind]).chunks]
        )
        pieces = range(0, len(source), _PIECE_ROWS)
        taken = [wide.take(source.slice(begin, _PIECE_ROWS)).cast(kind) for begin in pieces]
        return pa.chunked_array(taken, type=kind)
    else:
        values = pa.concat_arrays([chunk for part in parts for chunk in part.chunks])
    return pc.take(values, source, boundscheck=False)


def _lacking(base: pa.Table, where: Positions, rules: MergeRules) -> Mapping[str, Mask]:
    """Return a mask of the base rows that lack a column, for the columns that some rows lack."""
    return {name: ~known for name, known in known_values(base.take(pa.array(where)), rules).items()}


# ---- Rows that leave a file group because their key moved to another partition
#
# With a global index a key exists once in the table. The row is inserted in its new partition. A
# marked copy goes to the old file group; its mark column is never stored. The move is already
# decided here, so the old row is removed whatever the ordering values are. A write that read its
# rows, such as a merge, marks the rows that it deletes in the same way.

RELOCATED_COLUMN = "_hoodoo_leaves"


def mark_relocated_keys(rows: pa.Table, leaving: pa.Table) -> pa.Table:
    """Concatenate a file group's rows and the rows that leave it, marked by a column."""
    if RELOCATED_COLUMN not in rows.schema.names:
        rows = rows.append_column(RELOCATED_COLUMN, pa.repeat(False, rows.num_rows))
    if RELOCATED_COLUMN in leaving.schema.names:
        leaving = leaving.drop_columns([RELOCATED_COLUMN])
    gone = leaving.append_column(RELOCATED_COLUMN, pa.repeat(True, leaving.num_rows))
    return pa.concat_tables([rows, gone])


def split_relocated_keys(incoming: pa.Table) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """Return the rows that stay, without the mark, and the keys of leaving rows; None for none."""
    if RELOCATED_COLUMN not in incoming.schema.names:
        return incoming, None
    leaves = incoming.column(RELOCATED_COLUMN)
    staying = incoming.filter(pc.invert(leaves)).drop_columns([RELOCATED_COLUMN])
    return staying, incoming.filter(leaves).column(KEY_COLUMN)


def remove_relocated_keys(base: pa.Table, incoming: pa.Table) -> tuple[pa.Table, pa.Table, int]:
    """
    Remove the leaving rows from a base file.

    Returns:
        The remaining base, the incoming rows that stay (unmarked), and the number of removed rows.
    """
    staying, keys = split_relocated_keys(incoming)
    if keys is None:
        return base, staying, 0
    kept = base.filter(pc.invert(pc.is_in(base.column(KEY_COLUMN), value_set=keys)))
    return kept, staying, base.num_rows - kept.num_rows

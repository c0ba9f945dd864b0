"""
Fold changes: reduce several changes of one record to one (fmt 7, step A).

The logs of a file slice are folded, and the duplicates of a batch before it is written.

Worked example, also a test: update(20), delete without ordering, update(5) over a base row with
ordering 10. The delete replaces the first update, and the late update replaces the delete. Against
the base (step B) it loses: the base row stays and the delete has no effect. Java Hudi gives the
same result, so compaction must write it.

If every record has all its columns, the fold is a closed form (``newest_positions``). Partial
updates combine a record from several changes. Then step 1 applies the first change of all records,
step 2 their second, and so on. The number of vectorised steps is that of the changes of the most
changed record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.merge.merging import (
    ChangeKind,
    Changes,
    key_codes,
    merge_by_rounds,
    newest_positions,
    shaped,
)
from filegroups.merge.rules import Mask, MergeRules, known_values, order_numbers, ordering_column
from filegroups.schema.casting import version_rounds
from filegroups.schema.schema import IS_DELETED_COLUMN, KEY_COLUMN, META_COLUMNS
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.ports.merger import RecordMerger, Versions

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
    told: dict[str, Mask] = {}
    for name in dict.fromkeys(name for block in blocks for name in block.told):
        if name in schema.names:
            told[name] = np.concatenate(
                [block.told.get(name, np.ones(block.rows.num_rows, np.bool_)) for block in blocks]
            )
    return Changes(
        rows=pa.concat_tables(tables) if tables else schema.empty_table(),
        kinds=np.concatenate([block.kinds for block in blocks] or [np.zeros(0, np.int8)]),
        told=told,
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
    told = folded.told
    if rules.reads_values and not rules.fold_reads_values:
        told = {**told, **known_values(folded.rows, rules)}
    return Changes(rows=folded.rows, kinds=kinds, told=told)


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
    unsaid = (combined.kinds != ChangeKind.RECORD) & ~rules.deletes(rows)
    if not unsaid.any():
        return rows
    position = rows.schema.get_field_index(IS_DELETED_COLUMN)
    if position < 0:
        raise InvalidInputError(
            "the table's merger deletes a record while rows of one key are combined, and the "
            f"rows cannot say so; give them a boolean column {IS_DELETED_COLUMN}, or write the "
            f"versions one after the other: {int(unsaid.sum())} records",
            kind="merged_delete",
            rows=int(unsaid.sum()),
        )
    marks = pc.if_else(pa.array(unsaid), True, rows.column(position))
    return rows.set_column(position, rows.schema.field(position), marks)


def _folded(
    changes: Changes, rules: MergeRules, codes: npt.NDArray[np.int64], distinct: int
) -> Changes:
    if rules.merger is not None:
        return _merged_by_plugin(changes, codes, distinct, rules.merger)
    told = dict(changes.told)
    if rules.fold_reads_values:
        for name, counts in known_values(changes.rows, rules).items():
            told[name] = counts & told[name] if name in told else counts
    if distinct == len(codes):
        return Changes(rows=changes.rows, kinds=changes.kinds, told=told)
    if not told and not _goes_by_steps(changes, rules):
        stay = newest_positions(changes, codes, distinct, rules)
        return Changes(rows=changes.rows.take(pa.array(stay)), kinds=changes.kinds[stay])
    return _put_together(
        Changes(rows=changes.rows, kinds=changes.kinds, told=told), codes, distinct, rules
    )


def _merged_by_plugin(
    changes: Changes, codes: npt.NDArray[np.int64], distinct: int, merger: RecordMerger
) -> Changes:
    if changes.told:
        raise UnsupportedTableError(
            "log files hold partial updates, which a plug-in's merger cannot merge; compact "
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


def _put_together(
    changes: Changes, codes: npt.NDArray[np.int64], distinct: int, rules: MergeRules
) -> Changes:
    kinds = changes.kinds
    if rules.reads_order:
        ordering = [ordering_column(changes.rows, name) for name in rules.log_ordering_fields]
        numbers, missing = order_numbers(ordering)
    else:
        numbers, missing = np.zeros(len(codes), np.int64), np.ones(len(codes), np.bool_)
    silent = np.zeros(len(codes), np.bool_)  # has no ordering value: keeps that of the older change
    for name in rules.log_ordering_fields:
        if name in changes.told:
            silent |= ~changes.told[name]
    # For each record: the change that remains and the change its order comes from. For each column
    # that some changes lack: the change its value comes from.
    stays = np.full(distinct, _NOTHING, np.intp)
    order_from = np.full(distinct, _NOTHING, np.intp)
    sources = {name: np.full(distinct, _NOTHING, np.intp) for name in changes.told}
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
            tells = changes.told[name][new]
            from_new = np.where(tells, new, _NOTHING)
            from_old = np.where(both, source[key], _NOTHING)
            older_kept = np.where(both & (source[key] == _NOTHING), from_new, source[key])
            source[key] = np.where(wins, np.where(tells, new, from_old), older_kept)
        stays[key] = np.where(wins, new, old)
        kept = np.where(both & silent[new], old_order, _NOTHING)
        ordered = np.where(missing[new], kept, new)
        order_from[key] = np.where(wins, ordered, old_order)

    by_age = np.argsort(stays, kind="stable")
    stays, signs = stays[by_age], signs[by_age]
    columns, told = [], {}
    for name, column in zip(changes.rows.schema.names, changes.rows.columns, strict=True):
        if name not in sources:
            signed = rules.definition.late_rows_sign and name in META_COLUMNS
            columns.append(column.take(pa.array(signs if signed else stays)))
            continue
        source = sources[name][by_age]
        known = source != _NOTHING
        columns.append(column.take(pa.array(np.where(known, source, stays))))
        if not known.all():
            told[name] = known
    rows = pa.Table.from_arrays(columns, schema=changes.rows.schema)
    return Changes(rows=rows, kinds=kinds[stays], told=told)


# ---- Rows that leave a file group because their key moved to another partition
#
# With a global index a key exists once in the table. The row is inserted in its new partition. A
# marked copy goes to the old file group; its mark column is never stored. The move is already
# decided here, so the old row is removed whatever the ordering values are.

RELOCATED_COLUMN = "_hoodoo_leaves"


def mark_relocated_keys(rows: pa.Table, leaving: pa.Table) -> pa.Table:
    """Concatenate a file group's rows and the rows that leave it, marked by a column."""
    marks = pa.chunked_array(
        [pa.repeat(pa.scalar(leaves), part.num_rows) for leaves, part in _parts(rows, leaving)],
        pa.bool_(),
    )
    return pa.concat_tables([rows, leaving]).append_column(RELOCATED_COLUMN, marks)


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


def _parts(rows: pa.Table, leaving: pa.Table) -> tuple[tuple[bool, pa.Table], ...]:
    return (False, rows), (True, leaving)

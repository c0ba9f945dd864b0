"""
The fold: the logs of a file slice become one change for each record (fmt 7, step A).

Worked example, also a test: update(20), delete without ordering, update(5) over a base row
with ordering 10. The delete replaces the first update, the late one replaces the delete, and
against the base (step B) it loses: the base row stays, the delete is forgotten. That is what
Java Hudi answers, so it is what compaction must write.

Where every record tells all its columns the fold is a closed form (``newest_positions``).
Partial updates put records together from several changes; then all records take their first
change at once, then all their second, and so on: the number of vectorised steps is that of
the changes of the most changed record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timeline.model.schema import META_COLUMNS
from timeline.rules.merge_rules import MergeRules, told_values
from timeline.rules.merging import ChangeKind, Changes, key_codes, newest_positions
from timeline.rules.ordering import Mask, Positions, order_numbers, ordering_column

__all__ = ["fold_changes", "join_changes"]

_NOTHING = -1


def join_changes(blocks: Sequence[Changes], schema: pa.Schema) -> Changes:
    """
    Put the changes of several blocks behind each other.

    Args:
        blocks: Oldest first; each with any of the schema's columns in the schema's types.
        schema: What comes out; columns a block lacks are null, and not told of where the
            block says so.
    """
    tables = []
    for block in blocks:
        held = set(block.rows.schema.names)
        columns = [
            block.rows.column(each.name)
            if each.name in held
            else pa.chunked_array([pa.nulls(block.rows.num_rows, each.type)], type=each.type)
            for each in schema
        ]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
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
    Apply changes to each other, oldest first, until one is left for each record key.

    Args:
        changes: Of one file group; the partition path is not compared.
        rules: The table's.

    Returns:
        One change a key, in the order of the changes that stayed.

    Shapes: changes (n rows) -> (at most n rows).
    """
    folded = _folded(changes, rules)
    if not rules.definition.precombines:
        return folded
    # The payload of a delete is empty in version 6: against a base file it has no order.
    deletes = folded.kinds == ChangeKind.DELETE
    kinds = np.where(deletes, ChangeKind.COMMIT_TIME_DELETE, folded.kinds).astype(np.int8)
    told = folded.told
    if rules.reads_values and not rules.fold_reads_values:
        told = {**told, **told_values(folded.rows, rules)}
    return Changes(rows=folded.rows, kinds=kinds, told=told)


def _folded(changes: Changes, rules: MergeRules) -> Changes:
    codes, distinct = key_codes(changes.rows)
    told = dict(changes.told)
    if rules.fold_reads_values:
        for name, counts in told_values(changes.rows, rules).items():
            told[name] = counts & told[name] if name in told else counts
    if distinct == len(codes):
        return Changes(rows=changes.rows, kinds=changes.kinds, told=told)
    if not told and not _goes_by_steps(changes, rules):
        stay = newest_positions(changes, codes, distinct, rules)
        return Changes(rows=changes.rows.take(pa.array(stay)), kinds=changes.kinds[stay])
    return _put_together(
        Changes(rows=changes.rows, kinds=changes.kinds, told=told), codes, distinct, rules
    )


def _goes_by_steps(changes: Changes, rules: MergeRules) -> bool:
    """Whether what stays depends on each change in turn, even where all columns are told."""
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
        ordering = [ordering_column(changes.rows, name) for name in rules.ordering_fields]
        numbers, missing = order_numbers(ordering)
    else:
        numbers, missing = np.zeros(len(codes), np.int64), np.ones(len(codes), np.bool_)
    silent = np.zeros(len(codes), np.bool_)  # says nothing of the order: keeps the older's
    for name in rules.ordering_fields:
        if name in changes.told:
            silent |= ~changes.told[name]
    # Of each record: the change that stays, the one its order comes from, and for each column
    # that not all tell, the change its value comes from.
    stays = np.full(distinct, _NOTHING, np.intp)
    order_from = np.full(distinct, _NOTHING, np.intp)
    sources = {name: np.full(distinct, _NOTHING, np.intp) for name in changes.told}
    signs = stays.copy()  # the change the meta columns come from

    for new in _turns(codes):
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


def _turns(codes: npt.NDArray[np.int64]) -> Iterator[Positions]:
    """Positions of every record's first change, then of every record's second, and so on."""
    order = np.argsort(codes, kind="stable")
    grouped = codes[order]
    starts = np.flatnonzero(np.append(True, grouped[1:] != grouped[:-1]))
    turn = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    by_turn = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    for begin, end in zip(np.append(0, ends[:-1]), ends, strict=True):
        yield order[by_turn[begin:end]]

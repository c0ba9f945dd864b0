"""
Rows under a wrong record key or in a wrong folder are brought to where their columns say.

Each step is a write like any other, judged by what it read: first the newest row of a record
goes under its right key, then what lies elsewhere is deleted there. Whoever reads meanwhile sees
a record twice, as before, and never misses one; a repair that stopped goes on when it runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.key_checks import Addresses, addresses_of, keys_of_table
from timeline.context import TableContext
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.files.slice_reader import read_slice
from timeline.model.columns import one_array
from timeline.model.operations import MergeMode, WriteOperation
from timeline.model.schema import (
    COMMIT_TIME_COLUMN,
    KEY_COLUMN,
    PARTITION_COLUMN,
    SEQUENCE_COLUMN,
    drop_meta,
)
from timeline.properties.settings import WriteSettings
from timeline.publishing.refusal import RefusalReport
from timeline.reading.point_lookup import plan_look_up
from timeline.reading.read import plan_scan, scan
from timeline.registry import refuse_beside_writers
from timeline.rules.keys import KeySpec
from timeline.rules.ordering import ordering_column
from timeline.table import Table, TableSnapshot
from timeline.writing.local_workload import LocalWorkload
from timeline.writing.rereading import from_fresh_reads
from timeline.writing.workload import Workload
from timeline.writing.write import Receipt, WritePlan

__all__ = ["KeyRepair", "repair_keys"]

_ROWS_MAX = 500_000  # held in memory at once, and written by one step
_RIGHT_KEY, _RIGHT_PATH = "_right_key", "_right_path"
_ADDED = (_RIGHT_KEY, _RIGHT_PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRepair:
    """What a repair did, or would do."""

    rows: int  # found under a wrong key or in a wrong folder
    rewritten: int = 0  # that won, and lie under their right key now
    deleted: int = 0  # where they were, of all of them
    writes: int = 0


class _NothingLeftError(Exception):
    """No row is left that the next step would change."""


def repair_keys(
    table: Table,
    settings: WriteSettings,
    plan_for: Callable[[WriteOperation], WritePlan],
    publish: Callable[[WritePlan, Workload], Receipt],
    *,
    dry_run: bool = False,
) -> KeyRepair:
    """
    Bring rows to the record keys and folders that their columns make.

    Of several rows of one record the greatest ordering value wins, and of equal ones, or without
    ordering fields, the row that was written last. Other writers may go on, except where the form
    of complex keys changes: they remember the form that they found.

    Args:
        table: The table.
        settings: The caller's.
        plan_for: Plans one write.
        publish: Carries out one attempt.
        dry_run: Only count the rows.

    Outside: each round reads the table once; at most two writes for half a million rows.

    Raises:
        UnsupportedTableError: Its keys cannot be made again (``keys_of_others``).
        InvalidInputError: Two rows have one stored key and path, and only one of them is right,
            so that a delete would take both (``key_twice``), or the form of keys changes and
            another writer is at work (``writers_at_work``).
        BudgetSpentError: Others changed the same partitions in every attempt.
    """
    context = table.context
    if not context.config.populate_meta_fields or not context.config.record_key_fields:
        raise UnsupportedTableError(
            "the table stores no record keys that are made of its columns, so there is nothing "
            "to repair",
            kind="keys_of_others",
            feature="keys made again",
        )
    if dry_run:
        with table.hold() as state:
            return KeyRepair(rows=_count(context, state, settings))
    rewritten = deleted = writes = 0
    context.key_forms.clear()  # what was found long ago
    tried = pa.array([], pa.string())
    while True:
        step = _Step(
            context=context,
            table=table,
            settings=settings,
            plan_for=plan_for,
            publish=publish,
            tried=tried,
        )
        try:
            from_fresh_reads(context, step.attempt)
        except _NothingLeftError:
            break
        tried = pa.concat_arrays([tried, step.upserted])
        rewritten += step.rewritten
        deleted += step.deleted
        writes += 1
    context.key_forms.clear()
    return KeyRepair(
        rows=max(rewritten, deleted), rewritten=rewritten, deleted=deleted, writes=writes
    )


@dataclass(slots=True, kw_only=True)
class _Step:
    """One write of a repair; what it counts is of its last attempt."""

    context: TableContext
    table: Table
    settings: WriteSettings
    plan_for: Callable[[WriteOperation], WritePlan]
    publish: Callable[[WritePlan, Workload], Receipt]
    tried: pa.Array  # right addresses that earlier steps wrote
    upserted: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    rewritten: int = 0
    deleted: int = 0

    def attempt(self, refusals: tuple[RefusalReport, ...]) -> Receipt:
        """Find rows, and bring the winners to their places or delete what lies elsewhere."""
        self.rewritten, self.deleted, self.upserted = 0, 0, self.upserted[:0]
        with self.table.hold() as state:
            keys = keys_of_table(self.context, state.snapshot, self.settings)
            wrong = _wrong_rows(self.context, state, keys)
            if not wrong.num_rows:
                raise _NothingLeftError
            if _changes_form(wrong, keys):
                refuse_beside_writers(self.context)
            right = _right_rows(self.context, state, keys, wrong)
            winners = _winners(self.context, wrong, right, self.tried)
            if winners.num_rows:
                operation, rows = (
                    WriteOperation.UPSERT,
                    _addressed(winners, _RIGHT_KEY, _RIGHT_PATH),
                )
            else:
                _refuse_twice(wrong, right)
                operation = WriteOperation.DELETE
                rows = wrong.select([KEY_COLUMN, PARTITION_COLUMN])
            paths = pa.concat_arrays(
                [pc.unique(wrong.column(name)) for name in (PARTITION_COLUMN, _RIGHT_PATH)]
            )
            plan = self.plan_for(operation)
            plan = plan.with_keys(replace(plan.rules.keys, carried=True))
            plan = replace(plan, reads=state.reads(partitions=paths.to_pylist()), refusals=refusals)
            workload = LocalWorkload(self.context.world, rows)
            try:
                receipt = self.publish(plan, workload)
            finally:
                workload.release()
        if winners.num_rows:
            self.rewritten = winners.num_rows
            self.upserted = _places(winners, _RIGHT_KEY, _RIGHT_PATH)
        else:
            self.deleted = wrong.num_rows
        return receipt


def _count(context: TableContext, state: TableSnapshot, settings: WriteSettings) -> int:
    keys = keys_of_table(context, state.snapshot, settings)
    return sum(rows.num_rows for rows in _found(context, state, keys))


def _found(context: TableContext, state: TableSnapshot, keys: KeySpec) -> Iterator[pa.Table]:
    """Rows that lie elsewhere, batch by batch, with the address that is right."""
    for one in state.file_slices():
        read = plan_scan(context, state.snapshot, [one], with_hoodie_columns=True).read
        path = one.file_group.partition_path
        for batch in read_slice(context.world.storage, context.world.events, one, read):
            if not batch.num_rows:
                continue
            rows = pa.Table.from_batches([batch])
            found = addresses_of(rows, path, keys)
            number = rows.schema.get_field_index(PARTITION_COLUMN)
            folder = pa.repeat(pa.scalar(path), rows.num_rows)
            rows = _with_right(rows.set_column(number, PARTITION_COLUMN, folder), found)
            yield rows.filter(found.differ)


def _with_right(rows: pa.Table, found: Addresses) -> pa.Table:
    key = rows.schema.get_field_index(KEY_COLUMN)
    rows = rows.set_column(key, KEY_COLUMN, pc.cast(rows.column(KEY_COLUMN), pa.string()))
    return rows.append_column(_RIGHT_KEY, found.keys).append_column(_RIGHT_PATH, found.paths)


def _wrong_rows(context: TableContext, state: TableSnapshot, keys: KeySpec) -> pa.Table:
    kept, count = [], 0
    for rows in _found(context, state, keys):
        kept.append(rows)
        count += rows.num_rows
        if count >= _ROWS_MAX:
            break
    return pa.concat_tables(kept) if kept else pa.table({KEY_COLUMN: pa.array([], pa.string())})


def _changes_form(wrong: pa.Table, keys: KeySpec) -> bool:
    """Whether keys get the field's name before them, or lose it."""
    if not keys.has_two_forms:
        return False
    stored, right = wrong.column(KEY_COLUMN), wrong.column(_RIGHT_KEY)
    bare, prefixed = (stored, right) if keys.prefixes_keys else (right, stored)
    named = pc.binary_join_element_wise(keys.single_prefix, bare, "")
    return bool(pc.any(pc.equal(named, prefixed)).as_py())


def _right_rows(
    context: TableContext, state: TableSnapshot, keys: KeySpec, wrong: pa.Table
) -> pa.Table:
    """Rows that lie right, at the right addresses of others and at those where others lie."""
    wanted = pa.concat_arrays([pc.unique(wrong.column(name)) for name in (KEY_COLUMN, _RIGHT_KEY)])
    plan = plan_look_up(
        context,
        state.snapshot,
        state.file_slices(),
        pc.unique(wanted).to_pylist(),
        with_hoodie_columns=True,
    )
    rows = pa.Table.from_batches(list(scan(context, plan)), schema=plan.output_schema)
    paths = pc.cast(rows.column(PARTITION_COLUMN), pa.string())
    found = addresses_of(rows, paths, keys)
    rows = rows.set_column(rows.schema.get_field_index(PARTITION_COLUMN), PARTITION_COLUMN, paths)
    return _with_right(rows, found).filter(pc.invert(found.differ))


def _winners(context: TableContext, wrong: pa.Table, right: pa.Table, tried: pa.Array) -> pa.Table:
    """Of each record's rows the one that stays, where it does not lie right already."""
    rows = pa.concat_tables([wrong, right.select(wrong.schema.names).cast(wrong.schema)])
    places = _places(rows, _RIGHT_KEY, _RIGHT_PATH)
    is_right = pa.array(np.arange(rows.num_rows) >= wrong.num_rows)
    # What a step wrote and the table's own rule of merging did not take, has lost by that rule.
    settled = pc.and_(is_right, pc.is_in(places, value_set=tried))
    config = context.config
    by_value = config.merge_mode is MergeMode.EVENT_TIME_ORDERING
    columns = {"settled": settled}
    for number, name in enumerate(config.ordering_fields if by_value else ()):
        values = ordering_column(rows, name)
        columns[f"known {number}"] = pc.is_valid(values)  # nulls are below all others
        columns[f"order {number}"] = values
    columns["time"] = pc.cast(rows.column(COMMIT_TIME_COLUMN), pa.string())
    columns["sequence"] = pc.cast(rows.column(SEQUENCE_COLUMN), pa.string())
    columns["right"] = is_right
    keys = [(name, "ascending") for name in columns]
    order = np.asarray(pc.sort_indices(pa.table(columns), sort_keys=keys))
    codes = np.asarray(pc.index_in(places, value_set=pc.unique(places)))
    last = np.full(int(codes.max(initial=-1)) + 1, -1)
    last[codes[order]] = order  # the last one of each record stays
    return rows.take(pa.array(np.sort(last[last < wrong.num_rows])))


def _places(rows: pa.Table, key: str, path: str) -> pa.Array:
    """Record key and partition path as one text."""
    return one_array(pc.binary_join_element_wise(rows.column(key), rows.column(path), "\0"))


def _addressed(rows: pa.Table, key: str, path: str) -> pa.Table:
    own = rows.select([name for name in drop_meta(rows.schema).names if name not in _ADDED])
    return own.append_column(KEY_COLUMN, rows.column(key)).append_column(
        PARTITION_COLUMN, rows.column(path)
    )


def _refuse_twice(wrong: pa.Table, right: pa.Table) -> None:
    """A delete by key takes every row of that key."""
    held = _places(right, KEY_COLUMN, PARTITION_COLUMN)
    twice = pc.is_in(_places(wrong, KEY_COLUMN, PARTITION_COLUMN), value_set=held)
    number = pc.sum(twice, min_count=0).as_py()
    if number:
        example = wrong.filter(twice).column(KEY_COLUMN)[0].as_py()
        raise InvalidInputError(
            "rows lie under the key of another record that is right, and a delete would take both; "
            f"delete that record, repair, and write it again: {number} rows, the first has {example!r}",
            kind="key_twice",
            rows=number,
            key=example,
        )

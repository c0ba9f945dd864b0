"""Repair rows with a wrong record key or in a wrong partition: plan each step and write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.slice_reader import read_slice
from filegroups.index.lookup import has_record_index
from filegroups.keys.bucketing import xx_hashes
from filegroups.keys.keys import KeySpec
from filegroups.merge.rules import Mask, ordering_column
from filegroups.reading.point_lookup import plan_get_rows
from filegroups.reading.read_set import ReadSet
from filegroups.reading.scan import plan_scan, scan
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.schema import (
    COMMIT_TIME_COLUMN,
    KEY_COLUMN,
    PARTITION_COLUMN,
    SEQUENCE_COLUMN,
    drop_meta,
)
from filegroups.settings.settings import WriteSettings
from filegroups.table import TableReader, TableSnapshot
from filegroups.writing.retry import rerun_until_unchanged
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.verify.records import Addresses, addresses_of, keys_of_table
from timeline.commit.conflict_report import ConflictReport
from timeline.context import TableContext
from timeline.errors import InvalidInputError, UnsupportedTableError, counted
from timeline.model.commit_metadata import MergeMode, TableType, WriteOperation
from timeline.properties.setting_enums import GLOBAL_INDEXES
from timeline.rules.isolation import Isolation
from timeline.writer_registry import refuse_with_writers

# ---- The next step of a repair: the rows to write and the rows to delete, decided on known rows
# Each step keeps the winning row of each record among the known rows. So no record is lost,
# regardless of writes between the steps and of the step at which a repair stops.

RIGHT_KEY, RIGHT_PATH = "_right_key", "_right_path"
#: Suffix of the key of a row that waits until its address is free.
ASIDE = "~hoodoo-repair"


def no_texts() -> pa.Array:
    """Return an empty array; not a constant, because the first array imports pandas."""
    return pa.array([], pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRows:
    """
    Rows with the meta columns, and with their right keys and partition paths.

    They include all rows at each stored and each right address of a row.

    Shapes: rows (n rows), masks (n,).
    """

    rows: pa.Table
    wrong: Mask  # stored at another address than its columns give
    complete: Mask  # all wrong rows of its record are included


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """One write: it upserts rows under other addresses, or deletes addresses."""

    upserts: pa.Table | None = None
    deletes: pa.Table | None = None
    moved: int = 0  # upserts to the right address
    aside: int = 0  # deletes of rows under a waiting key, which are duplicates
    returns: bool = False  # some upserted rows had a waiting key
    done: pa.Array = field(default_factory=no_texts)
    key_twice: pa.Array = field(default_factory=no_texts)


def next_step(
    known: KnownRows, ordering_fields: Sequence[str], done: pa.Array, *, by_key: bool
) -> RepairStep:
    """
    Return the next step of a repair.

    The step writes each winner to its right address. If a wrong row of another record has that
    address, an upsert would merge the two, so the winner gets a waiting key. If no winner remains
    to write, the step deletes each address that holds neither a winner nor a right row.

    Args:
        known: The rows.
        ordering_fields: Compared left to right; empty if the newer row always wins.
        done: The results of earlier steps (``RepairStep.done``), which are not repeated.
        by_key: Whether a key is unique in the table; else in its partition.

    Returns:
        The step; without upserts and deletes if no work is possible.
    """
    rows, wrong = known.rows, known.wrong
    stored, right = (
        _places(rows, KEY_COLUMN, PARTITION_COLUMN),
        _places(rows, RIGHT_KEY, RIGHT_PATH),
    )
    spare_keys = pc.binary_join_element_wise(rows.column(RIGHT_KEY), ASIDE, "")
    aside = _joined(spare_keys, rows.column(RIGHT_PATH))
    addresses = pa.concat_arrays([stored, right, aside]).dictionary_encode()
    stored_at, belongs, waits = np.asarray(addresses.indices).reshape(3, rows.num_rows)
    records, _ = _codes(record_names(rows, by_key=by_key))
    sources = _joined(stored, rows.column(COMMIT_TIME_COLUMN), rows.column(SEQUENCE_COLUMN))
    # A wrong row that was written to its right address and is still wrong lost the merge.
    offered = _in(_joined(sources, right), done) & wrong
    wins = _winners(rows, records, offered, ~wrong, ordering_fields)

    def counts(mask: Mask) -> npt.NDArray[np.intp]:
        """Return by address the number of the chosen rows stored there."""
        return np.bincount(stored_at[mask], minlength=len(addresses.dictionary))

    def held(mask: Mask) -> Mask:
        return counts(mask) > 0

    taken, strange = held(wrong)[belongs], held(stored_at != waits)[waits]
    goal = addresses.dictionary.take(pa.array(np.where(taken, waits, belongs)))
    moves = wins & wrong & known.complete & ~(taken & ((stored_at == waits) | strange))
    names = _joined(sources, goal)
    moves &= ~_in(names, done)
    if moves.any():
        chosen, keys = (
            pa.array(moves),
            pc.if_else(pa.array(taken), spare_keys, rows.column(RIGHT_KEY)),
        )
        return RepairStep(
            upserts=_addressed(rows, keys).filter(chosen),
            moved=int((moves & ~taken).sum()),
            returns=bool((moves & ~taken & (stored_at == waits)).any()),
            done=names.filter(chosen),
        )
    stays = wins | ~wrong
    loses = known.complete & ~wins & wrong
    if by_key:  # right rows in other partitions lose, too
        touched = np.isin(records, records[known.complete & wrong])
        stays, loses = wins | (~wrong & ~touched), known.complete & ~wins & touched
    # A delete removes the rows of one file group, so it repeats while the number of rows falls.
    everything = counts(np.ones(rows.num_rows, np.bool_))[stored_at]
    names = _joined(stored, pa.array(everything))
    goes = held(loses & ~held(stays)[stored_at] & ~_in(names, done))[stored_at]
    chosen = pa.array(goes)
    return RepairStep(
        deletes=_distinct(rows.filter(chosen)) if goes.any() else None,
        aside=int((goes & (stored_at == waits)).sum()),
        done=pc.unique(names.filter(chosen)),
        key_twice=one_array(rows.column(KEY_COLUMN)).filter(
            pa.array(loses & wrong & held(~wrong)[stored_at])
        ),
    )


def record_names(rows: pa.Table, *, by_key: bool) -> pa.Array:
    """Return the name of each row's record. Shapes: rows (n rows) -> (n,) texts."""
    if by_key:
        return one_array(rows.column(RIGHT_KEY))
    return _places(rows, RIGHT_KEY, RIGHT_PATH)


def _winners(
    rows: pa.Table,
    records: npt.NDArray[np.intp],
    offered: Mask,
    right: Mask,
    ordering_fields: Sequence[str],
) -> Mask:
    """Return the mask of the rows that win, one of each record."""
    columns: dict[str, object] = {"new": pa.array(~offered)}
    for number, name in enumerate(ordering_fields):
        values = ordering_column(rows, name)
        columns[f"known {number}"] = pc.is_valid(values)  # nulls order below all values
        columns[f"order {number}"] = values
    columns["time"] = pc.cast(rows.column(COMMIT_TIME_COLUMN), pa.string())
    columns["sequence"] = pc.cast(rows.column(SEQUENCE_COLUMN), pa.string())
    columns["right"] = pa.array(right)
    keys = [(name, "ascending") for name in columns]
    order = np.asarray(pc.sort_indices(pa.table(columns), sort_keys=keys))
    last = np.zeros(int(records.max(initial=-1)) + 1, np.intp)
    last[records[order]] = order  # the last row of each record wins
    wins = np.zeros(rows.num_rows, np.bool_)
    wins[last] = True
    return wins


def _addressed(rows: pa.Table, keys: pa.ChunkedArray) -> pa.Table:
    own = [name for name in drop_meta(rows.schema).names if name not in (RIGHT_KEY, RIGHT_PATH)]
    made = rows.select(own).append_column(KEY_COLUMN, keys)
    return made.append_column(PARTITION_COLUMN, rows.column(RIGHT_PATH))


def _distinct(rows: pa.Table) -> pa.Table:
    return rows.group_by([KEY_COLUMN, PARTITION_COLUMN]).aggregate([])


def _places(rows: pa.Table, key: str, path: str) -> pa.Array:
    """Return record key and partition path as one text."""
    return _joined(rows.column(key), rows.column(path))


def _joined(*texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    known = [pc.fill_null(pc.cast(one, pa.string()), "") for one in texts]
    return one_array(pc.binary_join_element_wise(*known, "\0"))


def _codes(texts: pa.Array) -> tuple[npt.NDArray[np.intp], pa.Array]:
    coded = texts.dictionary_encode()
    return np.asarray(coded.indices).astype(np.intp), coded.dictionary


def _in(texts: pa.Array, some: pa.Array) -> Mask:
    return np.asarray(pc.is_in(texts, value_set=some)).astype(np.bool_)


# ---- Moving rows to the addresses that their columns give
# Each step is an ordinary write that validates its reads. First it writes the newest row of a
# record under its right key, then it deletes the rows of the record at other addresses. Meanwhile
# readers see a record twice, as before, and never miss one. A stopped repair continues at its next
# run.
#
# If the right address of a row holds a wrong row of another record, the row waits under a key of
# its own until that row is deleted. So a chain or circle of such rows takes at most four writes.

_ROWS_MAX = 500_000  # rows in memory and in one write
_HASHES = 1 << 32
_NO_COLUMN: Final = ("",)  # gives the partition of a row; its meta column does


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRepair:
    """The result of a repair or of its dry run."""

    rows: int  # found with a wrong key or in a wrong partition
    rewritten: int = 0  # winners that have their right address now
    deleted: int = 0  # at their old addresses
    writes: int = 0


class _NothingToDoError(Exception):
    """A window has no wrong rows, or none that a step can move."""


class _CompactionDueError(Exception):
    """The next rows go to addresses of rows deleted in logs, so a compaction must come first."""


def repair_keys(
    table: TableReader,
    settings: WriteSettings,
    plan_for: Callable[[WriteOperation], WriteRequest],
    publish: Callable[[WriteRequest, Workload], CommitResult],
    compact: Callable[[], object],
    *,
    dry_run: bool = False,
) -> KeyRepair:
    """
    Move rows to the record keys and partitions that their columns give.

    Among the rows of one record the greatest ordering value wins. Among equal values, or without
    ordering fields, the last written row wins. With a global index the rows of one key in several
    partitions are one record. Other writers may write meanwhile, unless the form of complex keys
    changes, because they cache the form that they found.

    Args:
        table: The table.
        settings: The caller's settings.
        plan_for: Returns the request of one write.
        publish: Runs one attempt.
        compact: Merges all logs into base files.
        dry_run: Only count the rows.

    Outside: each write reads the table once; at most four writes for half a million rows. A
    merge-on-read table needs a compaction if rows move to addresses of other rows.

    Raises:
        UnsupportedTableError: The columns do not give the keys (``keys_of_others``).
        InvalidInputError: Two rows have one stored key and path, and only one of them is right,
            so a delete would remove both (``key_twice``). Or the table does not accept rows under
            their right keys (``row_stays``). In both cases the other rows are repaired. Or the
            form of keys changes while another writer is registered (``writers_at_work``).
        BudgetSpentError: In each attempt other writers changed the same partitions.
    """
    context = table.context
    if not context.config.populate_meta_fields or not context.config.record_key_fields:
        raise UnsupportedTableError(
            "the table stores no record keys that come from its columns, so this command has "
            "nothing to repair; omit it",
            kind="keys_of_others",
            feature="keys made again",
        )
    if dry_run:
        with table.pin() as state:
            return KeyRepair(rows=_count(context, state, settings))
    context.key_encodings.clear()  # the cached forms may be old
    repair = _Repair(
        context=context, table=table, settings=settings, plan_for=plan_for, commit=publish
    )
    while True:
        try:
            result = rerun_until_unchanged(context, repair.attempt)
        except _CompactionDueError:
            compact()
            repair.compacted = True
        except _NothingToDoError:
            if repair.is_over():
                break
            if repair.start == 0 and repair.is_compaction_due():
                compact()
                repair.compacted = True
        else:
            repair.count(result)
    context.key_encodings.clear()
    return KeyRepair(
        rows=max(repair.rewritten, repair.deleted),
        rewritten=repair.rewritten,
        deleted=repair.deleted,
        writes=repair.writes,
    )


@dataclass(slots=True, kw_only=True)
class _Repair:
    """
    The state of a repair between its writes.

    A window is a range of record hashes, so it has all rows of a record. Rows that wait for rows
    of another window stay until the next round.
    """

    context: TableContext
    table: TableReader
    settings: WriteSettings
    plan_for: Callable[[WriteOperation], WriteRequest]
    commit: Callable[[WriteRequest, Workload], CommitResult]
    start: int = 0  # the window, without its end
    end: int = _HASHES
    done: pa.Array = field(default_factory=no_texts)
    step: RepairStep = field(default_factory=RepairStep)
    compacted: bool | None = None  # since the last delete; None: nothing was deleted
    remaining: int = 0  # wrong rows in the last read of the window
    remaining_in_round: int = 0
    remaining_before: int | None = None  # after the previous round
    key_twice: pa.Array = field(default_factory=no_texts)
    rewritten: int = 0
    deleted: int = 0
    writes: int = 0

    @property
    def by_key(self) -> bool:
        """Whether the caller's index makes a key unique in the whole table."""
        return self.settings.index_type in GLOBAL_INDEXES

    def attempt(self, refusals: tuple[ConflictReport, ...]) -> CommitResult:
        """Read the window's rows and write their next step."""
        with self.table.pin() as state:
            keys = keys_of_table(self.context, state.snapshot, self.settings)
            window = self._window(_found(self.context, state, keys))
            self.remaining = window.num_rows if window is not None else 0
            if window is None or not window.num_rows:
                raise _NothingToDoError
            if _changes_form(window, keys):
                refuse_with_writers(self.context)
            known = self._known(state, keys, window)
            config = self.context.config
            by_value = config.merge_mode is MergeMode.EVENT_TIME_ORDERING
            fields = config.ordering_fields if by_value else ()
            self.step = step = next_step(known, fields, self.done, by_key=self.by_key)
            if step.upserts is not None:
                if self.is_compaction_due():
                    raise _CompactionDueError
                operation, rows = WriteOperation.UPSERT, step.upserts
            elif step.deletes is not None:
                operation, rows = WriteOperation.DELETE, step.deletes
            else:
                raise _NothingToDoError
            plan = replace(self._plan(operation, state, keys, known.rows), conflicts=refusals)
            workload = LocalWorkload(self.context.ports, rows)
            try:
                return self.commit(plan, workload)
            finally:
                workload.release()

    def count(self, result: CommitResult) -> None:
        """Add the result of the last attempt to the counters."""
        step = self.step
        self.done = pa.concat_arrays([self.done, step.done])
        if step.deletes is not None:
            self.compacted = False
        self.rewritten += step.moved
        self.deleted += result.rows_deleted - step.aside
        self.writes += 1

    def is_over(self) -> bool:
        """
        Move to the next window; return whether no wrong rows remain.

        Raises:
            InvalidInputError: A round left as many wrong rows as the round before.
        """
        if self.remaining and len(self.step.key_twice):
            self.key_twice = self.step.key_twice
        self.remaining_in_round += self.remaining
        self.start, self.end, self.done = self.end, _HASHES, no_texts()
        if self.start < _HASHES:
            return False
        if not self.remaining_in_round:
            return True
        # After a round each record has at most one wrong row; the next round moves it.
        if self.remaining_before is not None and self.remaining_in_round >= self.remaining_before:
            raise self._stuck()
        self.start, self.remaining_before, self.remaining_in_round = 0, self.remaining_in_round, 0
        self.key_twice = no_texts()
        return False

    def _window(self, found: Iterable[pa.Table]) -> pa.Table | None:
        """Return all wrong rows of the window, which shrinks until they fit into memory."""
        kept: list[pa.Table] = []
        count = 0
        for rows in found:
            inside = rows.filter(pa.array(self._inside(rows)))
            kept.append(inside)
            count += inside.num_rows
            if count <= _ROWS_MAX:
                continue
            whole = pa.concat_tables(kept)
            hashes = np.sort(self._hashes(whole))
            above = hashes[hashes > hashes[0]]  # never splits a record
            if len(above):
                self.end = int(max(hashes[len(hashes) // 2], above[0]))
                kept = [whole.filter(pa.array(self._inside(whole)))]
                count = kept[0].num_rows
        return pa.concat_tables(kept) if kept else None

    def _hashes(self, rows: pa.Table) -> npt.NDArray[np.uint32]:
        return xx_hashes(record_names(rows, by_key=self.by_key))

    def _inside(self, rows: pa.Table) -> Mask:
        hashes = self._hashes(rows).astype(np.int64)
        inside: Mask = (hashes >= self.start) & (hashes < self.end)
        return inside

    def _known(self, state: TableSnapshot, keys: KeySpec, window: pa.Table) -> KnownRows:
        """Return the window's rows and all other rows at their addresses, wrong or right."""
        wanted = pc.unique(
            pa.concat_arrays([_texts(window, KEY_COLUMN), *_right_keys(window)]).drop_null()
        )
        rows, wrong = _rows_of(self.context, state, keys, wanted)
        others = pa.array(~(wrong & self._inside(rows)))
        tables, masks = [rows.filter(others)], [wrong[np.asarray(others)]]
        strange = rows.filter(pa.array(wrong & ~self._inside(rows)))
        if strange.num_rows:  # records of other windows may have better rows
            more = pc.unique(pa.concat_arrays(_right_keys(strange)))
            more = more.filter(pc.invert(pc.is_in(more, value_set=wanted)))
            rows, wrong = _rows_of(self.context, state, keys, more)
            names = record_names(rows, by_key=self.by_key)
            same = pc.is_in(names, value_set=record_names(strange, by_key=self.by_key))
            tables.append(rows.filter(same))
            masks.append(wrong[np.asarray(same)])
        schema = window.schema
        rows = pa.concat_tables(
            [window, *(one.select(schema.names).cast(schema) for one in tables)]
        )
        wrong = np.concatenate([np.ones(window.num_rows, np.bool_), *masks])
        return KnownRows(rows=rows, wrong=wrong, complete=self._inside(rows))

    def _plan(
        self, operation: WriteOperation, state: TableSnapshot, keys: KeySpec, read: pa.Table
    ) -> WriteRequest:
        """Return a write of whole rows to the addresses in their meta columns."""
        plan = self.plan_for(operation)
        rules = replace(
            plan.rules,
            keys=replace(
                plan.rules.keys,
                carried=True,
                partition_fields=keys.partition_fields or _NO_COLUMN,
            ),
            lookup=replace(plan.rules.lookup, whole_table=False),
            partial_columns=None,
        )
        return replace(plan, rules=rules, reads=self._reads(state, read))

    def _reads(self, state: TableSnapshot, read: pa.Table) -> ReadSet:
        """Return the reads to validate; a table-wide key may be in any partition."""
        columns = (KEY_COLUMN, RIGHT_KEY) if self.by_key else (PARTITION_COLUMN, RIGHT_PATH)
        named = pc.unique(pa.concat_arrays([_texts(read, name) for name in columns])).drop_null()
        if not self.by_key:
            return state.reads(partitions=named.to_pylist())
        reads = state.reads(filter=pc.field(KEY_COLUMN).isin(named))
        return replace(reads, level=Isolation.SERIALIZABLE)

    def is_compaction_due(self) -> bool:
        """
        Return whether logs deleted rows that base files still contain.

        A new row at such an address may lose. The logs fold the delete and the new row to the new
        row, and in event-time mode the base file's row may be greater. A delete of a key in several
        files finds the row that is already deleted.
        """
        if self.context.config.table_type is not TableType.MERGE_ON_READ:
            return False
        return self.compacted is False or (self.compacted is None and self.step.returns)

    def _stuck(self) -> InvalidInputError:
        if len(self.key_twice):
            number, example = len(self.key_twice), self.key_twice[0].as_py()
            return InvalidInputError(
                "outdated rows are stored under the key of another, correct record, and a delete "
                "would remove both. End the writers and save the correct record with 'hoodoo "
                "read TABLE --filter TEXT --to FILE'. Delete its key, repair again, then write "
                f"only the saved record: {counted(number, 'row')}, the first has {example!r}",
                kind="key_twice",
                rows=number,
                key=example,
            )
        return InvalidInputError(
            "the table does not accept rows under the keys of their columns. Save them with "
            "'hoodoo read TABLE --to FILE', delete them under their present keys, then insert "
            f"them again: {counted(self.remaining_in_round, 'row')}",
            kind="row_stays",
            rows=self.remaining_in_round,
        )


def _count(context: TableContext, state: TableSnapshot, settings: WriteSettings) -> int:
    keys = keys_of_table(context, state.snapshot, settings)
    return sum(rows.num_rows for rows in _found(context, state, keys))


def _found(context: TableContext, state: TableSnapshot, keys: KeySpec) -> Iterator[pa.Table]:
    """Yield the wrong rows, batch by batch, with their right address."""
    for one in state.file_slices():
        read = plan_scan(context, state.snapshot, [one], with_hoodie_columns=True).read
        path = one.file_group.partition_path
        for batch in read_slice(context.ports.storage, context.ports.events, one, read):
            if not batch.num_rows:
                continue
            rows = pa.Table.from_batches([batch])
            found = addresses_of(rows, path, keys)
            number = rows.schema.get_field_index(PARTITION_COLUMN)
            folder = pa.repeat(pa.scalar(path), rows.num_rows)
            rows = _with_right(rows.set_column(number, PARTITION_COLUMN, folder), found)
            yield rows.filter(found.differ)


def _changes_form(wrong: pa.Table, keys: KeySpec) -> bool:
    """Return whether the repair adds the field's name to keys, or removes it."""
    if not keys.has_two_forms:
        return False
    stored, right = wrong.column(KEY_COLUMN), wrong.column(RIGHT_KEY)
    bare, prefixed = (stored, right) if keys.prefixes_keys else (right, stored)
    named = pc.binary_join_element_wise(keys.single_prefix, bare, "")
    return bool(pc.any(pc.equal(named, prefixed)).as_py())


def _rows_of(
    context: TableContext, state: TableSnapshot, keys: KeySpec, wanted: pa.Array
) -> tuple[pa.Table, Mask]:
    """
    Return all rows under some stored keys, with their right address, and the mask of wrong rows.

    The record index is not used: it knows one position of a key, and rows may be in several.
    """
    slices = state.file_slices()
    if has_record_index(context.config):
        among = pc.field(KEY_COLUMN).isin(wanted)
        plan = plan_scan(context, state.snapshot, slices, filter=among, with_hoodie_columns=True)
    else:
        plan = plan_get_rows(
            context, state.snapshot, slices, wanted.to_pylist(), with_hoodie_columns=True
        )
    rows = pa.Table.from_batches(list(scan(context, plan)), schema=plan.output_schema)
    paths = pc.cast(rows.column(PARTITION_COLUMN), pa.string())
    found = addresses_of(rows, paths, keys)
    rows = rows.set_column(rows.schema.get_field_index(PARTITION_COLUMN), PARTITION_COLUMN, paths)
    return _with_right(rows, found), np.asarray(found.differ).astype(np.bool_)


def _with_right(rows: pa.Table, found: Addresses) -> pa.Table:
    key = rows.schema.get_field_index(KEY_COLUMN)
    rows = rows.set_column(key, KEY_COLUMN, pc.cast(rows.column(KEY_COLUMN), pa.string()))
    return rows.append_column(RIGHT_KEY, found.keys).append_column(RIGHT_PATH, found.paths)


def _texts(rows: pa.Table, name: str) -> pa.Array:
    return one_array(rows.column(name))


def _right_keys(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return the right keys of rows, and their waiting keys."""
    keys = _texts(rows, RIGHT_KEY)
    return keys, pc.binary_join_element_wise(keys, ASIDE, "")

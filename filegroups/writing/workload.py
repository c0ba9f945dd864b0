"""
The workload: the incoming rows of one write, in memory or on a cluster.

The write path decides: which file groups, which base files, what to repeat. The workload does the
work: find keys, route rows, merge and write files. The local workload has Arrow data in this
process, the Spark workload a DataFrame on a cluster. Both run the same function for each file
group, ``write_task``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.append import append_to_file_group
from filegroups.files.parquet import is_small, with_compute_lock
from filegroups.files.rewrite import (
    FileGroupTask,
    NewFileGroup,
    make_new_file_group,
    write_file_group,
)
from filegroups.index import IndexedFile
from filegroups.index.lookup import RecordIndex, find_in_table, rows_located, tag
from filegroups.keys.bucketing import BucketAssigner, InsertBucket, assign_buckets, assign_by_bucket
from filegroups.keys.keys import KeySpec, addresses, changed_addresses, validate_ordering
from filegroups.merge.merging import (
    RELOCATED_COLUMN,
    combine_incoming,
    mark_relocated_keys,
)
from filegroups.merge.rules import MergeRules
from filegroups.schema.arrow_columns import codes_of, one_array, rows_by_number
from filegroups.schema.casting import normalise, refuse_null_elements
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN, TableSchema, drop_meta
from filegroups.writing.write_request import RowRules
from timeline.errors import InvalidInputError, InvariantError, counted
from timeline.model.commit_metadata import FileGroupId, WriteStat
from timeline.model.file_names import join
from timeline.ports.ports import Ports, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """Row counts after tagging: new records by partition, known ones by file group."""

    inserts: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[FileGroupId, int] = field(default_factory=dict)


class Workload(Protocol):
    """
    Rows of one write. The write calls the methods in this order; a retry repeats some.

    ``tasks_name_files``: Each attempt of a task chooses the names of its files and announces them
    itself, because tasks may run twice. So the write announces none before.
    """

    tasks_name_files: bool

    @property
    def schema(self) -> pa.Schema:
        """Columns of the incoming data, with meta columns if the caller left them in."""

    def is_empty(self) -> bool:
        """Return whether there are no rows. If so, their columns do not matter."""

    def prepare(self, rules: RowRules, schema: TableSchema) -> None:
        """
        Fit the rows to the table's schema, compute keys and partition paths, combine.

        Called once, before the write begins, so that bad input changes nothing.

        Raises:
            InvalidInputError: A key, partition or ordering column is missing or null, or a
                value does not fit.
        """

    def partition_paths(self) -> tuple[str, ...]:
        """Return the partitions of the rows, sorted."""

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """
        Tag the rows: find the candidate file group that contains each row's key.

        After repeated calls only the last result counts.

        Args:
            candidates: Newest base files by partition path; empty if there is nothing to find.

        Raises:
            MissingFileError: A candidate was cleaned meanwhile; tag again.
        """

    def locate(self, index: RecordIndex) -> frozenset[FileGroupId]:
        """
        Look up the keys of the rows in a record index; return the file groups that it names.

        Errors and calls outside: as ``RecordIndex.locate``.
        """

    def tag_located(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """
        Tag the rows by the last ``locate`` instead of the keys in files.

        Args:
            candidates: The file groups that ``locate`` returned, by partition path. They are read
                only where the order of old and new rows decides whether a row moves.

        Errors as ``tag``.
        """

    def count_by_bucket(self, shares: BucketAssigner) -> Mapping[tuple[str, int], int]:
        """Count the rows not found by ``tag``, by partition path and bucket of a bucket index."""

    def assign(self, buckets: Sequence[InsertBucket], file_ids: Mapping[int, str]) -> None:
        """Route new records to insert buckets; ``file_ids`` maps bucket numbers to file ids."""

    def precompute(self, tasks: Sequence[FileGroupTask]) -> None:
        """
        Make in memory the new small files of these tasks, without writing them.

        Called at most once, while a high-latency store receives the tasks' announcement. It may do
        nothing. A failure here repeats in ``rewrite``.
        """

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        """
        Write each task's file group with the rows routed to it; return stats in task order.

        Called again with some of the tasks for a rebase of their file groups.

        Raises:
            MissingFileError: A base file was cleaned meanwhile (hole 12).
        """

    def attempted(self) -> frozenset[str] | None:
        """
        Return the paths of all files that tasks of this write may have created so far.

        None if tasks run elsewhere and may have been repeated: then the markers list the files.
        """

    def release(self) -> None:
        """Release cached rows; a second call is no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGroupStats:
    """A new file group with the rows that arrived for it and its write stats."""

    file_group: FileGroupId
    rows: int
    stats: tuple[WriteStat, ...]  # empty if all rows are deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGroups:
    """How rows of any number become new file groups, in one pass over them."""

    task: FileGroupTask  # with what all file groups share
    rows_per_file: int  # at least, if there are so many
    bytes_per_file: int = 0  # of the rows in memory, at least; 0: the number of rows decides


@runtime_checkable
class OnePassWorkload(Workload, Protocol):
    """A workload that may write new file groups without a count of its rows before."""

    def prepare_one_pass(self, rules: RowRules, schema: TableSchema) -> None:
        """As ``prepare``, but bad rows are found by ``write_new_groups``."""

    def write_new_groups(self, groups: NewGroups) -> list[NewGroupStats]:
        """
        Write all rows into new file groups, and choose these meanwhile.

        Raises:
            InvalidInputError: As ``prepare``. Some files may be written.
        """


def write_task(
    storage: Storage, task: FileGroupTask, incoming: pa.Table, made: NewFileGroup | None = None
) -> tuple[WriteStat, ...]:
    """
    Write a file group as its task says: log files if it has a target, else a base file.

    Arguments, errors and calls outside: as ``append_to_file_group`` and ``write_file_group``.
    """
    if task.log is None:
        return write_file_group(storage, task, incoming, made)
    return append_to_file_group(storage, task, task.log, incoming)


# ---- The local workload: incoming rows of one or several writes, as one Arrow table
#
# This is the default. The whole batch is in memory once. Threads of the executor port merge the file
# groups separately. For batches beyond the memory of one machine use the Spark workload.


class LocalWorkload:
    """Rows of one write in memory. The contract is ``filegroups.writing.workload.Workload``."""

    tasks_name_files = False

    def __init__(
        self, ports: Ports, rows: pa.Table, deleted: pa.ChunkedArray | None = None
    ) -> None:
        self._world = ports
        self._rows = rows
        self._deleted = deleted  # a mask of rows that delete their records, if rows were read
        self._schema = rows.schema
        self._rules: RowRules | None = None
        self._found: pa.Array = pa.nulls(0, pa.string())
        self._located: pa.Table | None = None  # of the record index
        self._paths: Any = None  # target partition of each row: its own, or that of its key
        self._leaving: Mapping[FileGroupId, Any] = {}
        self._shares: Any = None
        self._routed: dict[FileGroupId, Any] = {}
        self._attempted: set[str] = set()
        self._ahead: dict[FileGroupTask, NewFileGroup] = {}

    @classmethod
    def of_prepared(
        cls, ports: Ports, rows: pa.Table, rules: RowRules, *, incoming: pa.Schema
    ) -> LocalWorkload:
        """
        Make a workload of rows that were prepared before, by another process or coalesced.

        Args:
            ports: The ports.
            rows: Rows as ``prepare`` leaves them.
            rules: The rules they were prepared by.
            incoming: The columns of the incoming data.
        """
        own = cls(ports, rows)
        own._schema, own._rules = incoming, rules
        return own

    @property
    def schema(self) -> pa.Schema:
        """See ``Workload.schema``."""
        return self._schema

    @property
    def rows(self) -> pa.Table:
        """The current rows: incoming, or prepared."""
        return self._rows

    @property
    def rules(self) -> RowRules:
        """The rules the rows were prepared by."""
        return self._required_rules()

    def is_empty(self) -> bool:
        """See ``Workload.is_empty``."""
        return bool(self._rows.num_rows == 0)

    def prepare(self, rules: RowRules, schema: TableSchema) -> None:
        """See ``Workload.prepare``."""
        with with_compute_lock(self._world.storage, self._rows):
            self._prepare(rules, schema)

    def _prepare(self, rules: RowRules, schema: TableSchema) -> None:
        if self.is_empty():
            self._prepare_nothing(rules, schema)
            return
        keys, paths = self._addresses(rules.keys, schema.arrow)
        rows = self._rows.select(drop_meta(self._rows.schema).names)
        if rules.operation.traits.deletes_keys:
            kept = pa.table({KEY_COLUMN: keys, PARTITION_COLUMN: paths})
        else:
            validate_ordering(rows, rules.ordering_fields)
            kept = normalise(rows, schema.arrow)
            if rules.for_java:
                refuse_null_elements(kept)
            kept = kept.append_column(KEY_COLUMN, keys).append_column(PARTITION_COLUMN, paths)
        if self._deleted is not None:
            refuse_other_keys(self._rows, keys, None if rules.lookup.whole_table else paths)
            kept = kept.append_column(RELOCATED_COLUMN, self._deleted)
        if rules.combine:
            kept = combined(kept, rules, schema.avro_json)
        if rules.sort is not None and rules.sort.by_key:
            kept = kept.sort_by([(PARTITION_COLUMN, "ascending"), (KEY_COLUMN, "ascending")])
        self._rules = rules
        self._rows = kept

    def _addresses(self, spec: KeySpec, schema: pa.Schema) -> tuple[pa.Array, pa.Array]:
        """Return the rows' keys and partition paths; rows that a merge inserts move to the end."""
        if self._deleted is None or not spec.carried:
            return addresses(self._rows, spec, schema)
        rows = self._rows.append_column(RELOCATED_COLUMN, self._deleted)
        if rows.column(KEY_COLUMN).null_count:
            rows = _with_new_keys(rows, self._world.ids.uuid())
        rows, keys, paths = changed_addresses(rows, spec, schema)
        self._deleted = rows.column(RELOCATED_COLUMN)
        self._rows = rows.drop_columns([RELOCATED_COLUMN])
        return keys, paths

    def _prepare_nothing(self, rules: RowRules, schema: TableSchema) -> None:
        """Prepare an empty batch: it takes the table's columns, whatever its own are."""
        own = () if rules.operation.traits.deletes_keys else tuple(schema.arrow)
        text = pa.string()
        shape = [*own, pa.field(KEY_COLUMN, text), pa.field(PARTITION_COLUMN, text)]
        self._rules, self._schema = rules, schema.arrow
        self._rows = pa.schema(shape).empty_table()

    def partition_paths(self) -> tuple[str, ...]:
        """See ``Workload.partition_paths``."""
        return tuple(sorted(pc.unique(self._rows.column(PARTITION_COLUMN)).to_pylist()))

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """See ``Workload.tag``. Outside: at most 1 open_input per candidate file."""
        return self._tagged(candidates, None)

    def locate(self, index: RecordIndex) -> frozenset[FileGroupId]:
        """See ``Workload.locate``."""
        keys, paths = self._rows.column(KEY_COLUMN), self._rows.column(PARTITION_COLUMN)
        whole_table = self._required_rules().lookup.whole_table
        self._located = index.locate(keys, None if whole_table else paths)
        groups = self._located.group_by(["partition_path", "file_id"]).aggregate([])
        columns = (groups.column(name).to_pylist() for name in ("partition_path", "file_id"))
        return frozenset(map(FileGroupId, *columns))

    def tag_located(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """See ``Workload.tag_located``."""
        return self._tagged(candidates, self._located)

    def _tagged(
        self, candidates: Mapping[str, Sequence[IndexedFile]], located: pa.Table | None
    ) -> WorkloadProfile:
        keys, paths = self._rows.column(KEY_COLUMN), self._rows.column(PARTITION_COLUMN)
        rules = self._required_rules()
        self._paths, self._leaving, self._shares = paths, {}, None
        self._attempted = set()
        self._ahead = {}
        if not candidates:
            self._found = pa.nulls(self._rows.num_rows, pa.string())
            counts = pc.value_counts(paths)
            inserts = dict(zip(*(part.to_pylist() for part in counts.flatten()), strict=True))
            return WorkloadProfile(inserts=inserts, updates={})
        if rules.lookup.whole_table:
            paths = self._find_in_table(candidates, rules, located)
        elif located is not None:
            found = rows_located(located, keys, paths)
            self._found = one_array(located.column("file_id")).take(found)
        else:
            self._found = tag(
                self._world.storage,
                self._world.executor,
                candidates,
                keys,
                paths,
                filters=rules.lookup.filters,
            )
        inserts, updates = _counted(paths, self._found)
        for group, positions in self._leaving.items():
            updates[group] = updates.get(group, 0) + len(positions)
        return WorkloadProfile(inserts=inserts, updates=updates)

    def _find_in_table(
        self,
        candidates: Mapping[str, Sequence[IndexedFile]],
        rules: RowRules,
        located: pa.Table | None,
    ) -> Any:
        if rules.operation.traits.deletes_keys:
            deletes = np.ones(self._rows.num_rows, np.bool_)
        else:
            deletes = MergeRules(definition=rules.merge).deletes(self._rows)
            if RELOCATED_COLUMN in self._rows.schema.names:
                deletes |= np.asarray(self._rows.column(RELOCATED_COLUMN)).astype(np.bool_)
        where = find_in_table(
            self._world.storage,
            self._world.executor,
            candidates,
            self._rows,
            replace(rules.lookup, moves_rows=rules.moves_rows),
            ordering_fields=rules.ordering_fields,
            deletes=deletes,
            located=located,
        )
        self._found, self._paths, self._leaving = (
            where.file_ids,
            where.partition_paths,
            where.relocated,
        )
        return where.partition_paths

    def count_by_bucket(self, shares: BucketAssigner) -> Mapping[tuple[str, int], int]:
        """See ``Workload.spread``."""
        places = np.flatnonzero(np.asarray(pc.is_null(self._found)))
        where = pa.array(places)
        paths = self._paths.take(where)
        self._shares = np.full(len(self._found), -1, np.int64)
        numbers = shares.numbers(self._rows.column(KEY_COLUMN).take(where), paths)
        self._shares[places] = numbers
        codes, names = codes_of(paths)
        wide = int(numbers.max(initial=0)) + 1
        found, counts = np.unique(codes * wide + numbers, return_counts=True)
        pairs = zip(found.tolist(), counts.tolist(), strict=True)
        return {(names[one // wide], one % wide): count for one, count in pairs}

    def assign(self, buckets: Sequence[InsertBucket], file_ids: Mapping[int, str]) -> None:
        """See ``Workload.assign``."""
        rules = self._required_rules()
        if len(buckets) == 1 and buckets[0].rows == self._rows.num_rows:
            (only,) = buckets  # all rows are new and go to one file group
            group = FileGroupId(only.partition_path, file_ids[only.number])
            self._routed = {group: np.arange(self._rows.num_rows)}
            return
        new = np.asarray(pc.is_null(self._found))
        paths = self._paths
        targets: list[FileGroupId] = [
            FileGroupId(bucket.partition_path, file_ids[bucket.number]) for bucket in buckets
        ]
        numbers = np.full(len(new), -1, np.int64)
        if buckets:
            places = np.flatnonzero(new)
            homes = paths.take(pa.array(places))
            if self._shares is None:
                numbers[places] = assign_buckets(homes, buckets)
            else:
                numbers[places] = assign_by_bucket(homes, self._shares[places], buckets)
        if not rules.drop_found and not new.all():
            places = np.flatnonzero(~new)
            where = pa.array(places)
            codes, groups = _group_codes(paths.take(where), self._found.take(where))
            numbers[places] = codes + len(targets)
            targets.extend(groups)
        routed: dict[FileGroupId, list[Any]] = {}
        for number, positions in rows_by_number(numbers).items():
            if number >= 0:
                routed.setdefault(targets[number], []).append(positions)
        self._routed = {
            group: parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
            for group, parts in routed.items()
        }

    def precompute(self, tasks: Sequence[FileGroupTask]) -> None:
        """See ``Workload.precompute``."""
        for task in tasks:
            rows = self.rows_of(task)
            if task.log is None and task.base_path is None and is_small(rows):
                self._ahead[_unannounced(task)] = make_new_file_group(
                    self._world.storage, task, rows
                )

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        """See ``Workload.rewrite``."""
        self._attempted.update(join(task.partition_path, task.file_name) for task in tasks)
        written = self._world.executor.map(partial(_rewrite_one, self), tasks)
        for stats in written:  # successors of oversized log files, and CDC logs
            self._attempted.update(path for stat in stats for path in stat.paths)
        return written

    def attempted(self) -> frozenset[str]:
        """See ``Workload.attempted``."""
        return frozenset(self._attempted)

    def rows_of(self, task: FileGroupTask) -> pa.Table:
        """Return the rows routed to a task's file group, in incoming order."""
        group = task.file_group
        positions, leaving = self._routed.get(group), self._leaving.get(group)
        if positions is None:
            rows = self._rows.slice(0, 0)
        elif len(positions) == self._rows.num_rows:
            rows = self._rows
        else:
            rows = self._rows.take(pa.array(positions))
        if leaving is None:
            return rows
        return mark_relocated_keys(rows, self._rows.take(pa.array(leaving)))

    def write(self, task: FileGroupTask) -> tuple[WriteStat, ...]:
        """Write one task, on any thread."""
        made = self._ahead.pop(_unannounced(task), None) if self._ahead else None
        return write_task(self._world.storage, task, self.rows_of(task), made)

    def release(self) -> None:
        """See ``Workload.release``."""
        self._rows = self._rows.slice(0, 0)
        self._routed = {}
        self._ahead = {}

    def _required_rules(self) -> RowRules:
        if self._rules is None:
            raise InvariantError("a workload was used before it was prepared; report it")
        return self._rules


def _with_new_keys(rows: pa.Table, prefix: str) -> pa.Table:
    """Return rows with a key where they have none, for a table without key fields."""
    fresh = pc.is_null(rows.column(KEY_COLUMN))
    numbers = pa.array(np.arange(rows.num_rows)).cast(pa.string())
    made = pc.binary_join_element_wise(prefix, numbers, "_")
    position = rows.schema.get_field_index(KEY_COLUMN)
    keys = pc.if_else(fresh, made, rows.column(KEY_COLUMN).cast(pa.string()))
    return rows.set_column(position, KEY_COLUMN, keys)


def refuse_other_keys(rows: pa.Table, keys: pa.Array, paths: pa.Array | None) -> None:
    """
    Refuse changed rows whose columns give another key or partition than the one they were read from.

    Raises:
        InvalidInputError: There are such rows (``stored_key_differs``).
    """
    differs = np.zeros(rows.num_rows, np.bool_)
    for name, made in ((KEY_COLUMN, keys), (PARTITION_COLUMN, paths)):
        if made is not None and name in rows.schema.names:
            other = pc.not_equal(made, pc.cast(rows.column(name), pa.string()))
            differs |= np.asarray(pc.fill_null(other, False)).astype(np.bool_)
    if differs.any():
        raise InvalidInputError(
            "the stored record key or partition of some rows differs from that of their columns. "
            "An update would write a second record. Repair them first: 'hoodoo table repair-keys "
            f"TABLE': {counted(int(differs.sum()), 'row')}",
            kind="stored_key_differs",
            rows=int(differs.sum()),
        )


def combined(rows: pa.Table, rules: RowRules, avro_json: str) -> pa.Table:
    """
    Return prepared rows with one row for each key.

    Errors: as ``combine_incoming``.
    """
    # With a global index a key counts once, in whatever partition its rows are.
    hidden = f"{PARTITION_COLUMN}_" if rules.lookup.whole_table else PARTITION_COLUMN
    rows = _renamed(rows, PARTITION_COLUMN, hidden)
    return _renamed(combine_incoming(rows, rules.combining(avro_json)), hidden, PARTITION_COLUMN)


def _rewrite_one(workload: LocalWorkload, task: FileGroupTask) -> tuple[WriteStat, ...]:
    return workload.write(task)


def _unannounced(task: FileGroupTask) -> FileGroupTask:
    """Return the task as it was before its announcement, which does not change its output."""
    return replace(task, announced=False, partition_marked=False)


def _renamed(rows: pa.Table, old: str, new: str) -> pa.Table:
    return rows.rename_columns([new if name == old else name for name in rows.schema.names])


def _counted(paths: Any, file_ids: Any) -> tuple[dict[str, int], dict[FileGroupId, int]]:
    """
    Count rows without a file id by path, and others by file group, in order of appearance.

    Shapes: (n,) each.
    """
    path_codes, path_names = codes_of(paths)
    id_codes, id_names = codes_of(pc.fill_null(file_ids, ""))  # no file id is empty
    wide = path_codes * len(id_names) + id_codes
    distinct, firsts, counts = np.unique(wide, return_index=True, return_counts=True)
    inserts: dict[str, int] = {}
    updates: dict[FileGroupId, int] = {}
    for place in np.argsort(firsts).tolist():
        path, number = divmod(int(distinct[place]), len(id_names))
        if id_names[number]:
            updates[FileGroupId(path_names[path], id_names[number])] = int(counts[place])
        else:
            inserts[path_names[path]] = int(counts[place])
    return inserts, updates


def _group_codes(paths: Any, file_ids: Any) -> tuple[Any, list[FileGroupId]]:
    """Number the distinct pairs of a path and a file id. Shapes: (n,) each -> (n,), groups (m,)."""
    path_codes, path_names = codes_of(paths)
    id_codes, id_names = codes_of(file_ids)
    wide = path_codes * len(id_names) + id_codes
    distinct, codes = np.unique(wide, return_inverse=True)
    pairs = (divmod(one, len(id_names)) for one in distinct.tolist())
    return codes, [FileGroupId(path_names[path], id_names[number]) for path, number in pairs]

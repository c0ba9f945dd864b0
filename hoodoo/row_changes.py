"""
Delete, update and merge rows by conditions: read them, compute the changes, write them in one commit.

The reads are part of the commit: if another writer changed them, the statement reads again and
retries. So no update is lost. In memory are the rows that change and, of a merge, the source and a
piece of the table as long as the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_nested

from filegroups.keys.keys import addresses, plain_column
from filegroups.merge.rules import MergeRules
from filegroups.reading.filter_text import FilterText
from filegroups.reading.filters import Filter
from filegroups.reading.read_set import ReadSet
from filegroups.reading.scan import read_schema
from filegroups.schema.casting import cast_column
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN, drop_meta, with_meta
from filegroups.table import TableReader, TableSnapshot
from filegroups.writing.merge_clauses import (
    SOURCE,
    TARGET,
    ChangedRows,
    MergeAction,
    MergeClause,
    RowMerge,
    TargetRules,
    When,
    apply_clauses,
    bind_clause,
    bind_clauses,
    joined_schema,
)
from filegroups.writing.retry import rerun_until_unchanged
from filegroups.writing.stored_forms import with_stored_forms
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.inspect.rejected_writes import record_rejected_write
from timeline.context import TableContext
from timeline.errors import ConflictError, InvalidInputError, RolledBackError
from timeline.model.commit_metadata import MergeMode
from timeline.model.table_config import TableConfig

_PIECE_ROWS = 65_536
_LISTED_KEYS_MAX = 1_000  # that a read set names one by one


def delete_key_columns(config: TableConfig) -> tuple[str, ...]:
    """
    Return the columns that hold the key and partition of a row; a nested field needs its struct.

    A table without key fields uses the meta columns.
    """
    if not config.record_key_fields:
        return KEY_COLUMN, PARTITION_COLUMN
    names = (*config.record_key_fields, *config.partition_fields)
    return tuple(dict.fromkeys(name.partition(".")[0] for name in names))


@dataclass(frozen=True, slots=True)
class Statement:
    """
    Runs one statement that computes its rows from reads.

    Args:
        table: The table.
        plan: The write, without its reads.
        publish: Runs one attempt.
    """

    table: TableReader
    plan: WriteRequest
    publish: Callable[[WriteRequest, Workload], CommitResult]

    def delete(self, found_by: Filter, partitions: Sequence[str] | None) -> CommitResult:
        """Delete the rows that match a filter. Errors: as ``rerun_until_unchanged``."""
        plan, columns = self.plan, delete_key_columns(self.table.config)
        if self.table.config.populate_meta_fields:
            # The meta columns hold the stored address; key columns may give another one.
            columns = (KEY_COLUMN, PARTITION_COLUMN)
            plan = plan.with_keys(replace(plan.rules.keys, carried=True))

        def read(state: TableSnapshot) -> tuple[ReadSet, Workload]:
            keys = state.to_arrow(columns=columns, filter=found_by, partitions=partitions)
            reads = state.reads(filter=found_by, partitions=partitions)
            return reads, LocalWorkload(self.table.context.ports, keys)

        return self.run(plan, read)

    def update(
        self, found_by: Filter, values: Mapping[str, object], partitions: Sequence[str] | None
    ) -> CommitResult:
        """Set columns of the rows that match a filter. Errors: as ``rerun_until_unchanged``."""
        clause = MergeClause(
            when=When.NOT_MATCHED_BY_SOURCE, action=MergeAction.UPDATE, values=values
        )

        def read(state: TableSnapshot) -> tuple[ReadSet, Workload]:
            target = target_rules(self.table.context, state, keeps_order=True)
            bound = bind_clause(clause, target, pa.schema([]))
            rows = state.to_arrow(
                columns=target.schema.names, filter=found_by, partitions=partitions
            )
            changed, _ = apply_clauses({TARGET: rows}, [bound], target)
            return state.reads(filter=found_by, partitions=partitions), self._workload(changed)

        return self.run(self.plan, read)

    def merge(self, source: pa.Table, on: MatchOn, clauses: Sequence[MergeClause]) -> CommitResult:
        """Merge rows of a source. Errors: as ``rerun_until_unchanged``."""

        def read(state: TableSnapshot) -> tuple[ReadSet, Workload]:
            context = self.table.context
            changed, reads = merged(
                context, state, self.plan, source=source, on=on, clauses=clauses
            )
            return reads, self._workload(changed)

        return self.run(self.plan, read)

    def _workload(self, changed: ChangedRows) -> LocalWorkload:
        return LocalWorkload(self.table.context.ports, changed.rows, changed.deleted)

    def run(
        self,
        plan: WriteRequest,
        read: Callable[[TableSnapshot], tuple[ReadSet, Workload]],
    ) -> CommitResult:
        """
        Read, and write what the reads give, until no other writer changes the reads meanwhile.

        Args:
            plan: The write, without its reads.
            read: Returns the read set of a pinned snapshot and the rows to write.

        Errors: as ``rerun_until_unchanged``.
        """

        def attempt(refusals: tuple[Any, ...]) -> CommitResult:
            with self.table.pin() as state:
                reads, workload = read(state)
                try:
                    return self.publish(replace(plan, reads=reads, conflicts=refusals), workload)
                finally:
                    workload.release()

        try:
            return rerun_until_unchanged(self.table.context, attempt)
        except (ConflictError, RolledBackError) as error:  # the last attempt failed
            record_rejected_write(self.table.context, plan, error)
            raise


def target_rules(
    context: TableContext, state: TableSnapshot, *, keeps_order: bool = False, moves: bool = False
) -> TargetRules:
    """
    Return the rows of a snapshot as the target of a statement.

    Args:
        context: The table.
        state: The snapshot.
        keeps_order: Refuse updates that lower an ordering value.
        moves: Whether an update may change the partition, because a global index moves the row.
    """
    config, schema = context.config, read_schema(context, state.snapshot)
    stored = (KEY_COLUMN, PARTITION_COLUMN) if config.populate_meta_fields else ()
    if not (stored or config.record_key_fields):
        raise InvalidInputError(
            "the table has neither record key fields nor meta columns, so no row can be found "
            "again; overwrite its partitions by insert_overwrite instead",
            kind="no_key_fields",
            operation="update",
        )
    names = (*stored, *schema.arrow.names)
    by_order = keeps_order and config.merge_mode is MergeMode.EVENT_TIME_ORDERING
    return TargetRules(
        schema=pa.schema([with_meta(schema.arrow).field(name) for name in names]),
        fixed=(*config.record_key_fields, *(() if moves else config.partition_fields)),
        ordering=config.ordering_fields if by_order else (),
        merge=MergeRules.of(config.merge, schema.avro_json),
    )


# ---- Merge


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOn:
    """
    How rows of a target and a source match.

    Args:
        pairs: Columns that must be equal, of the target and of the source, by dotted names.
        also: A further condition of a match; None for none.
    """

    pairs: tuple[tuple[str, str], ...]
    also: pc.Expression | None = None

    @classmethod
    def of(
        cls,
        on: str | Sequence[str] | None,
        config: TableConfig,
        target: pa.Schema,
        source: pa.Schema,
        *,
        whole_table: bool,
    ) -> MatchOn:
        """
        Read the argument ``on`` of a merge.

        None is the record key, and the partition unless a key is unique in the whole table.

        Raises:
            InvalidInputError: No columns are joined (``merge_on``), or a column is unknown.
        """
        if on is None:
            on = key_columns_of_merge(config, whole_table=whole_table)
        twice = [name for name, count in Counter(source.names).items() if count > 1]
        if twice:
            raise InvalidInputError(
                f"the source has several columns of one name; rename or drop them: {twice}",
                kind="data",
                columns=twice,
            )
        schema = joined_schema(When.MATCHED, target, source)
        if isinstance(on, str) and on.isidentifier():
            on = [on]
        pairs: list[tuple[str, str]] = []
        also = None
        if isinstance(on, str):
            pairs, also = FilterText(on, schema, sides=True).join()
        elif isinstance(on, list | tuple) and all(isinstance(name, str) for name in on):
            sides = (
                (FilterText(_quoted(f"{side}.{name}"), schema, sides=True).column_name() or "")
                for name in on
                for side in (TARGET, SOURCE)
            )
            names = [name.partition(".")[2] for name in sides]
            pairs = list(zip(names[::2], names[1::2], strict=True))
        if not pairs:
            raise no_match_columns()
        return cls(pairs=tuple(pairs), also=also)

    def is_key(self, config: TableConfig, *, whole_table: bool) -> bool:
        """Return whether matching rows are those of one record key, in one partition if it counts."""
        fields = {*config.record_key_fields, *(() if whole_table else config.partition_fields)}
        names = [name for name, _ in self.pairs]
        return self.also is None and len(names) == len(fields) and set(names) == fields

    def finds_every_key(self, config: TableConfig, *, whole_table: bool) -> bool:
        """Return whether a row of the source that matches no row has a key that the table lacks."""
        fields = set(config.record_key_fields)
        names = {name for name, _ in self.pairs}
        return self.is_key(config, whole_table=whole_table) or (
            self.also is None and names == fields
        )


def key_columns_of_merge(config: TableConfig, *, whole_table: bool) -> list[str]:
    """Return the columns that a merge matches by default: record key, and partition if it counts."""
    fields = (*config.record_key_fields, *(() if whole_table else config.partition_fields))
    return list(dict.fromkeys(fields))


def no_match_columns() -> InvalidInputError:
    """Return the error of a merge that joins no columns."""
    return InvalidInputError(
        "a merge needs columns that are equal in the table and the source; name them: "
        "on=['id'], or on=\"target.id = source.user_id\"",
        kind="merge_on",
    )


def _quoted(name: str) -> str:
    return ".".join(f'"{step}"' for step in name.split("."))


def merged(
    context: TableContext,
    state: TableSnapshot,
    plan: WriteRequest,
    *,
    source: pa.Table,
    on: MatchOn,
    clauses: Sequence[MergeClause],
) -> tuple[ChangedRows, ReadSet]:
    """
    Return the changes that a merge makes to a snapshot, and its read set.

    Raises:
        InvalidInputError: As ``bind_clause`` and ``RowMerge.piece``; the inserts do not take their
            keys from the source's joined columns (``merge_insert_key``).
    """
    config = context.config
    rules = with_stored_forms(context, state.snapshot, plan).rules
    whole = rules.lookup.whole_table
    target = target_rules(context, state, moves=rules.moves_rows)
    bound = bind_clauses(clauses, target, source.schema)
    _refuse_unsafe_inserts(clauses, on, config, whole_table=whole)
    own = drop_meta(target.schema)
    columns: tuple[str, ...] = ()
    if on.is_key(config, whole_table=whole):
        columns = (KEY_COLUMN,) if whole else (KEY_COLUMN, PARTITION_COLUMN)

    def addressed(rows: pa.Table) -> pa.Table:
        made = addresses(rows, rules.keys, own)
        return pa.table(list(made), names=[KEY_COLUMN, PARTITION_COLUMN]).select(columns)

    if columns:
        source_keys = addressed(_with_columns(source, on.pairs))
    else:
        source_keys = _values_of(source, (name for _, name in on.pairs), on, own)
    only_matches = all(clause.when is not When.NOT_MATCHED_BY_SOURCE for clause in bound)
    read: dict[str, Any] = {}
    if only_matches:
        read = _narrowed(source_keys, on, stored=config.populate_meta_fields)
    rest = RowMerge(
        clauses=bound, target=target, source=source, source_keys=source_keys, also=on.also
    )
    parts = []
    for rows in _pieces(state.scan(columns=target.schema.names, **read), source.num_rows, target):
        if columns:
            keys = rows.select(columns) if config.populate_meta_fields else addressed(rows)
        else:
            keys = _values_of(rows, (name for name, _ in on.pairs), on, own)
        parts.append(rest.piece(rows, keys))
    return ChangedRows.of([*parts, rest.rest()], target.schema), state.reads(**read)


def _pieces(
    batches: Iterable[pa.RecordBatch], rows_min: int, target: TargetRules
) -> Iterator[pa.Table]:
    """Yield the rows in pieces that are as long as the source, so that each join pays off."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= max(rows_min, _PIECE_ROWS):
            yield pa.Table.from_batches(held, schema=target.schema)
            held, count = [], 0
    yield pa.Table.from_batches(held, schema=target.schema)


def _with_columns(source: pa.Table, pairs: Sequence[tuple[str, str]]) -> pa.Table:
    """Return the source with the values of its joined columns under the names of the target."""
    for name, other in pairs:
        if name == other:
            continue
        column, position = plain_column(source, other), source.schema.get_field_index(name)
        if position >= 0:
            source = source.remove_column(position)
        source = source.append_column(name, column)
    return source.select(drop_meta(source.schema).names)


def _values_of(rows: pa.Table, names: Iterable[str], on: MatchOn, target: pa.Schema) -> pa.Table:
    """Return the joined columns of rows, in the types of the target."""
    empty = target.empty_table()
    kinds = [plain_column(empty, name).type for name, _ in on.pairs]  # type: ignore[union-attr]
    nested = [name for (name, _), kind in zip(on.pairs, kinds, strict=True) if is_nested(kind)]
    if nested:
        raise InvalidInputError(
            "a merge compares plain columns; name a field of the struct, or other columns than "
            f"lists, maps and structs: {nested}",
            kind="merge_on",
            columns=nested,
        )
    values = [plain_column(rows, name) for name in names]
    cast = [
        cast_column(value, kind, name)
        for value, kind, (_, name) in zip(values, kinds, on.pairs, strict=True)
    ]
    return pa.table(cast, names=[str(number) for number in range(len(cast))])


def _narrowed(keys: pa.Table, on: MatchOn, *, stored: bool) -> dict[str, Any]:
    """
    Return the partitions and the filter that hold every row that may match, for reads.

    Fewer rows are read, and fewer concurrent commits conflict.
    """
    read: dict[str, Any] = {}
    terms = []
    for number, name in enumerate(keys.schema.names):
        column = keys.column(number).combine_chunks()
        if name == PARTITION_COLUMN:
            read["partitions"] = pc.unique(column).to_pylist()
            continue
        if name == KEY_COLUMN and not stored:
            continue
        field = pc.field(name) if name == KEY_COLUMN else pc.field(*on.pairs[number][0].split("."))
        distinct = pc.unique(column.drop_null())
        if len(distinct) <= _LISTED_KEYS_MAX:
            terms.append(field.isin(distinct))
        elif not pa.types.is_floating(column.type) and not pa.types.is_boolean(column.type):
            least, greatest = pc.min_max(column).values()
            terms.append((field >= least) & (field <= greatest))
    for term in terms:
        read["filter"] = read["filter"] & term if "filter" in read else term
    return read


def _refuse_unsafe_inserts(
    clauses: Sequence[MergeClause], on: MatchOn, config: TableConfig, *, whole_table: bool
) -> None:
    """
    Refuse inserts whose key the table may have: an insert would replace that row.

    Raises:
        InvalidInputError: The merge is not on the record key (``merge_on``), or the inserts take
            their key from other columns (``merge_insert_key``).
    """
    inserts = [clause for clause in clauses if clause.action is MergeAction.INSERT]
    if not inserts:
        return
    if not config.record_key_fields:
        return  # each row is new
    if not on.finds_every_key(config, whole_table=whole_table):
        raise unsafe_insert(config)
    for clause in inserts:
        for name, other in on.pairs:
            given = other
            if clause.values is None:
                given = name
            elif "." not in name:
                by_name = {key.casefold(): value for key, value in clause.values.items()}
                value = by_name.get(name.casefold())
                given = value.partition(f"{SOURCE}.")[2] or value if isinstance(value, str) else ""
            if given.casefold() != other.casefold():
                raise InvalidInputError(
                    "a merge inserts rows with the key that it looked for; set the column to the "
                    f"joined one: values={{{name!r}: 'source.{other}'}}",
                    kind="merge_insert_key",
                    column=name,
                )


def unsafe_insert(config: TableConfig) -> InvalidInputError:
    """Return the error of a merge whose inserts may have the key of a row of the table."""
    return InvalidInputError(
        "a merge that inserts must match rows by the record key, because an insert with the "
        "key of an existing row would replace it; merge on these columns alone, or leave the "
        f"insert out: {list(config.record_key_fields)}",
        kind="merge_on",
        columns=list(config.record_key_fields),
    )


class Merge:
    """
    A merge of a source into a table: add clauses, then ``execute``.

    For each row the first clause whose condition is true acts. Conditions are SQL texts or pyarrow
    expressions over ``target.`` and ``source.`` columns; a name that only one side has needs no
    prefix. ``values`` maps columns to SQL texts, pyarrow expressions or literals.
    """

    def __init__(
        self,
        source: Any,
        run: Callable[[str | None], Any],
        on: Callable[[], Any],
    ) -> None:
        self._source = source
        self._run = run
        self._on = on
        self._clauses: list[MergeClause] = []

    def when_matched_update(self, values: Mapping[str, object], condition: Filter = None) -> Self:
        """Set columns of rows that match a row of the source; the ordering value stays."""
        return self._with(When.MATCHED, MergeAction.UPDATE, condition, dict(values))

    def when_matched_update_all(self, condition: Filter = None) -> Self:
        """Set all columns of rows that match to the source's values."""
        return self._with(When.MATCHED, MergeAction.UPDATE, condition, None)

    def when_matched_delete(self, condition: Filter = None) -> Self:
        """Delete rows that match a row of the source."""
        return self._with(When.MATCHED, MergeAction.DELETE, condition, None)

    def when_not_matched_insert(
        self, values: Mapping[str, object], condition: Filter = None
    ) -> Self:
        """Insert rows of the source that match no row; columns without a value are null."""
        return self._with(When.NOT_MATCHED, MergeAction.INSERT, condition, dict(values))

    def when_not_matched_insert_all(self, condition: Filter = None) -> Self:
        """Insert rows of the source that match no row, with all their columns."""
        return self._with(When.NOT_MATCHED, MergeAction.INSERT, condition, None)

    def when_not_matched_by_source_update(
        self, values: Mapping[str, object], condition: Filter = None
    ) -> Self:
        """Set columns of rows that match no row of the source; the whole table is read."""
        return self._with(When.NOT_MATCHED_BY_SOURCE, MergeAction.UPDATE, condition, dict(values))

    def when_not_matched_by_source_delete(self, condition: Filter = None) -> Self:
        """Delete rows that match no row of the source; the whole table is read."""
        return self._with(When.NOT_MATCHED_BY_SOURCE, MergeAction.DELETE, condition, None)

    def execute(self, *, batch_id: str | None = None) -> CommitResult:
        """
        Commit the updates, deletes and inserts at once; if their reads change, read again and retry.

        Args:
            batch_id: As of ``upsert``.

        Raises:
            InvalidInputError: There is no clause, or one never acts (``merge_clauses``), a clause
                does not fit, or two rows of the source change one row (``merge_row_twice``). The
                table is unchanged.
            BudgetSpentError: Each attempt conflicted with other writers.
            ConflictError: As of ``upsert``.
        """
        result: CommitResult = self._run(batch_id).merge(self._source, self._on(), self._clauses)
        return result

    def _with(
        self,
        when: When,
        action: MergeAction,
        condition: Filter,
        values: Mapping[str, object] | None,
    ) -> Self:
        self._clauses.append(
            MergeClause(when=when, action=action, condition=condition, values=values)
        )
        return self

"""
Delete, update and merge rows on Spark: joins of DataFrames give the changes of one commit.

The rules are those of ``hoodoo/row_changes.py``; conditions and values are Spark's. A statement
pins the newest snapshot, computes the changed rows from it, checks them, and writes them with its
reads. Only changed rows and the keys of matches are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.merge.merging import RELOCATED_COLUMN
from filegroups.schema.schema import KEY_COLUMN, META_COLUMNS, PARTITION_COLUMN
from filegroups.table import TableSnapshot
from filegroups.writing.merge_clauses import (
    TARGET,
    MergeAction,
    TargetRules,
    When,
    changed_key,
    ordering_lowered,
    refuse_idle_clauses,
    row_twice,
)
from filegroups.writing.stored_forms import with_stored_forms
from filegroups.writing.workload import Workload
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.row_changes import Statement, delete_key_columns, target_rules, unsafe_insert
from hoodoo.spark.error_transport import collect_dataframe
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.sql.catalyst import (
    assignable,
    attribute,
    cast_to_store,
    column_of,
    first_line,
    kind_of,
    listed_seq,
)
from timeline.errors import InvalidInputError

if TYPE_CHECKING:
    from hoodoo.spark.table import SparkSnapshot, SparkTable

_ACT: Final = "_hoodoo_act"  # the number of the clause that acts on a row
_SOURCE_ROW: Final = "_hoodoo_source_row"
_BEFORE: Final = "_hoodoo_before_{}"  # a column of the target
_VALUE: Final = "_hoodoo_value_{}_{}"  # of a clause, of a column
_FLAG: Final = "_hoodoo_refused_{}"

#: Runs the analysis of a statement's parts, in which names of tables lead to given snapshots.
Analysis = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkClause:
    """
    One clause of a merge, over Spark's columns.

    Args:
        when: The rows that it may act on.
        action: Its effect.
        condition: A catalyst expression; None for all rows.
        values: For each column of the table an expression; None takes every column from the
            source's column of its name.
    """

    when: When
    action: MergeAction
    condition: Any = None
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSource:
    """The source of a merge: makes its rows anew for each attempt, and how conditions name it."""

    rows: Callable[[], Any]
    alias: str


@contextmanager
def _analysed() -> Iterator[None]:
    """Raise an error of Spark's analyser as one of hoodoo, without its stack."""
    try:
        yield
    except AnalysisException as error:
        raise InvalidInputError(
            f"Spark cannot resolve a part of the statement: {first_line(error)}",
            kind="expression",
        ) from error


@dataclass(slots=True, kw_only=True)
class SparkStatement:
    """
    One statement on a table.

    Args:
        table: The open table.
        statement: Reads, writes and retries.
        alias: How conditions name the table.
        analysis: Surrounds the analysis of each attempt.
    """

    table: SparkTable
    statement: Statement
    alias: str
    analysis: Analysis = field(default=lambda _: nullcontext())

    def delete(self, condition: Any) -> CommitResult:
        """Delete the rows for which an expression is true; None for all. Errors: as ``update``."""
        config, plan = self.table.config, self.statement.plan
        columns = list(delete_key_columns(config))
        if config.populate_meta_fields:
            columns = [KEY_COLUMN, PARTITION_COLUMN]
            plan = plan.with_keys(replace(plan.rules.keys, carried=True))

        def changed(state: SparkSnapshot) -> Any:
            rows = self._found(state, condition)
            return rows.select(*(self._target(name) for name in columns))

        return self._run(plan, changed, ())

    def update(self, values: Mapping[str, Any], condition: Any) -> CommitResult:
        """
        Set columns of the rows for which an expression is true; None for all rows.

        Raises:
            InvalidInputError: A part cannot be resolved (``expression``), a value does not fit its
                column, or an update is refused as by ``apply_clauses``.
            BudgetSpentError, ConflictError: As ``rerun_until_unchanged``.
        """
        clause = SparkClause(
            when=When.NOT_MATCHED_BY_SOURCE, action=MergeAction.UPDATE, values=values
        )
        checks: list[_Check] = []

        def changed(state: SparkSnapshot) -> Any:
            rules = target_rules(self.table.context, state, keeps_order=True)
            target = _Target.of(self, rules)
            made = _Changes(target, (clause,), "", None)
            checks[:] = made.checks
            found = self._found(state, condition).withColumn(_ACT, F.lit(0))
            return made.of(found, clause.when)

        return self._run(self.statement.plan, changed, checks)

    def merge(self, source: MergeSource, on: Any, clauses: Sequence[SparkClause]) -> CommitResult:
        """
        Merge rows of a source.

        Args:
            source: The source.
            on: The expression that is true for a match.
            clauses: In the order of the statement.

        Raises:
            InvalidInputError: As ``update``; a clause never acts (``merge_clauses``), two rows of
                the source change one row (``merge_row_twice``), or an insert has the key of a row
                of the table (``merge_on``).
            BudgetSpentError, ConflictError: As ``rerun_until_unchanged``.
        """
        refuse_idle_clauses([(one.when, one.action, one.condition is not None) for one in clauses])
        merge = _SparkMerge(self, source, on, tuple(clauses))
        try:
            return self.statement.run(self.statement.plan, merge.read)
        finally:
            merge.release()

    def _found(self, state: SparkSnapshot, condition: Any) -> Any:
        rows = state.to_df().alias(self.alias)
        return rows if condition is None else rows.where(column_of(self.table.spark, condition))

    def _target(self, name: str) -> Any:
        return column_of(self.table.spark, attribute(self.table.spark, self.alias, name))

    def _run(
        self, plan: WriteRequest, changed: Callable[[SparkSnapshot], Any], checks: Sequence[_Check]
    ) -> CommitResult:
        def read(state: TableSnapshot) -> tuple[Any, Workload]:
            with self.analysis(state), _analysed():
                rows = changed(state)  # type: ignore[arg-type]
            return state.reads(), checked_workload(self.table, rows, checks)

        return self.statement.run(plan, read)


# ---- Checks of changed rows, before the write begins


@dataclass(frozen=True, slots=True)
class _Check:
    """A column of flags; rows with a true flag are refused with an error of their number."""

    column: str
    error: Callable[[int], InvalidInputError]


def checked_workload(table: SparkTable, rows: Any, checks: Sequence[_Check]) -> Workload:
    """
    Return changed rows as a workload, after their checks.

    Raises:
        InvalidInputError: A check fails.
    """
    if checks:
        rows.persist(StorageLevel.MEMORY_AND_DISK)
        _run_checks(rows, checks)
        rows = rows.drop(*(one.column for one in checks))
    return table._workload(rows)  # noqa: SLF001


def _run_checks(rows: Any, checks: Sequence[_Check]) -> None:
    counted = [
        F.coalesce(F.sum(F.col(one.column).cast("long")), F.lit(0)).alias(one.column)
        for one in checks
    ]
    (counts,) = collect_dataframe(rows.agg(*counted))
    for one in checks:
        if counts[one.column]:
            raise one.error(int(counts[one.column]))


# ---- The values of clauses


@dataclass(frozen=True, slots=True)
class _Target:
    """The columns of the table of a statement."""

    spark: Any
    alias: str
    table: str
    rules: TargetRules
    types: Mapping[str, Any]  # Spark's, of its own columns

    @classmethod
    def of(cls, statement: SparkStatement, rules: TargetRules) -> _Target:
        shape = spark_schema_of(rules.schema)
        types = {each.name: each.dataType for each in shape if each.name not in META_COLUMNS}
        config = statement.table.config
        return cls(statement.table.spark, statement.alias, config.name, rules, types)

    @property
    def stored(self) -> list[str]:
        """The meta columns that carry the key of a row that was read."""
        return [name for name in self.rules.schema.names if name in META_COLUMNS]

    def column(self, name: str) -> Any:
        return column_of(self.spark, attribute(self.spark, self.alias, name))

    def named(self, name: str) -> str:
        """Return a column's own spelling. Raises: InvalidInputError if there is none."""
        bare = name.removeprefix(f"{self.alias}.")
        for own in (*(one for one in self.types if one == bare), *self.types):
            if own.casefold() == bare.casefold():
                return own
        raise InvalidInputError(
            f"no such column to set: {name!r}; the table has {list(self.types)}",
            kind="unknown_column",
            columns=[name],
        )


class _Changes:
    """
    The rows that clauses make of joined rows.

    Args:
        target: The target.
        clauses: They act on rows whose column ``_ACT`` has their number.
        source: The name of the source.
        source_names: Its columns; None without a source.
    """

    def __init__(
        self,
        target: _Target,
        clauses: Sequence[SparkClause],
        source: str,
        source_names: Sequence[str] | None,
    ) -> None:
        self._target = target
        self._clauses = clauses
        self._source = source
        self._values = [self._bound(one, source_names) for one in clauses]
        self._fixed = self._set_columns(target.rules.fixed)
        self._ordering = self._set_columns(target.rules.ordering)

    @property
    def checks(self) -> list[_Check]:
        """The checks of rows that are made."""
        made = [
            _Check(_FLAG.format(number), partial(changed_key, name))
            for number, name in enumerate(self._fixed)
        ]
        if self._ordering:
            fields = self._target.rules.ordering
            number = len(self._fixed)
            made.append(_Check(_FLAG.format(number), partial(ordering_lowered, fields)))
        return made

    def _set_columns(self, names: Sequence[str]) -> list[str]:
        """Return those of the target's columns that an update may change, by their dotted names."""
        updates = [
            values
            for one, values in zip(self._clauses, self._values, strict=True)
            if one.action is MergeAction.UPDATE
        ]
        return [name for name in names if any(name.partition(".")[0] in v for v in updates)]

    def _bound(self, clause: SparkClause, source_names: Sequence[str] | None) -> dict[str, Any]:
        if clause.action is MergeAction.DELETE:
            return {}
        if clause.values is not None:
            if not clause.values:
                raise InvalidInputError("name at least one column to set", kind="no_column")
            found: dict[str, Any] = {}
            for name, value in clause.values.items():
                own = self._target.named(name)
                if own in found:
                    raise InvalidInputError(
                        f"a column is set twice: {own!r}", kind="expression", column=name
                    )
                found[own] = value
            return found
        folded = {name.casefold(): name for name in source_names or ()}
        missing = [name for name in self._target.types if name.casefold() not in folded]
        if missing:
            raise InvalidInputError(
                "a clause that takes all columns needs all columns of the table in the source; add "
                f"these, or name the columns to set: {missing}",
                kind="unknown_column",
                columns=missing,
            )
        spark = self._target.spark
        return {
            name: attribute(spark, self._source, folded[name.casefold()])
            for name in self._target.types
        }

    def of(
        self,
        joined: Any,
        when: When,
        *,
        keeps: Sequence[str] = (),
        new_key: Any = None,
    ) -> Any:
        """
        Return the changed rows: keys, own columns, a mark of deletes, and flags for the checks.

        Args:
            joined: Rows with ``_ACT``.
            when: The clauses that act on them.
            keeps: Further columns to keep.
            new_key: The record key of inserts into a table without key fields.
        """
        target, spark = self._target, self._target.spark
        has_target = TARGET in when.value
        inner = [F.col(name) for name in dict.fromkeys((_ACT, *keeps))]
        if has_target:
            names = [*target.stored, *target.types]
            inner += [target.column(name).alias(_BEFORE.format(name)) for name in names]
        acting = [(n, one) for n, one in enumerate(self._clauses) if one.when is when]
        for number, _ in acting:
            inner += [
                F.when(F.col(_ACT) == number, column_of(spark, value)).alias(
                    _VALUE.format(number, name)
                )
                for name, value in self._values[number].items()
            ]
        staged = joined.select(*inner)
        given = {each.name: each.dataType for each in staged.schema}
        made = {
            name: self._made(name, acting, given, has_target=has_target) for name in target.types
        }
        columns = []
        for name in target.stored:
            before = F.lit(None).cast("string")
            if has_target:
                before = F.col(_BEFORE.format(name))
            elif name == KEY_COLUMN and new_key is not None:
                before = new_key
            columns.append(before.alias(name))
        deletes = [n for n, one in acting if one.action is MergeAction.DELETE]
        mark = F.col(_ACT).isin(deletes) if deletes else F.lit(False)
        columns += [value.alias(name) for name, value in made.items()]
        columns.append(mark.alias(RELOCATED_COLUMN))
        columns += [F.col(name) for name in keeps]
        columns += self._flags(made, has_target=has_target)
        return staged.select(*columns)

    def _made(
        self,
        name: str,
        acting: Sequence[tuple[int, SparkClause]],
        given: Mapping[str, Any],
        *,
        has_target: bool,
    ) -> Any:
        target, kind = self._target, self._target.types[name]
        before = F.col(_BEFORE.format(name)) if has_target else F.lit(None).cast(kind)
        made = before
        for number, _ in reversed(acting):
            if name not in self._values[number]:
                continue
            key = _VALUE.format(number, name)
            value = stored_column(target.spark, key, given[key], kind, name)
            made = F.when(F.col(_ACT) == number, value).otherwise(made)
        return made

    def _flags(self, made: Mapping[str, Any], *, has_target: bool) -> list[Any]:
        flags = []
        for number, name in enumerate(self._fixed):
            flag = F.lit(False)
            if has_target:
                flag = ~_field(made, name).eqNullSafe(_before(name))
            flags.append(flag.alias(_FLAG.format(number)))
        if self._ordering:
            flag = F.lit(False)
            if has_target:
                flag = _is_lower(self._target.rules.ordering, made)
            flags.append(flag.alias(_FLAG.format(len(self._fixed))))
        return flags


def _field(made: Mapping[str, Any], name: str) -> Any:
    head, *rest = name.split(".")
    return reduce(lambda column, step: column.getField(step), rest, made[head])


def _before(name: str) -> Any:
    head, *rest = name.split(".")
    return reduce(lambda column, step: column.getField(step), rest, F.col(_BEFORE.format(head)))


def _is_lower(fields: Sequence[str], made: Mapping[str, Any]) -> Any:
    """Return whether ordering values fall; a row without a value is the older one."""
    new = F.struct(*(_field(made, name).alias(str(n)) for n, name in enumerate(fields)))
    old = F.struct(*(_before(name).alias(str(n)) for n, name in enumerate(fields)))
    complete = reduce(lambda one, name: one & _before(name).isNotNull(), fields, F.lit(True))
    return complete & (new < old)


def stored_column(spark: Any, name: str, given: Any, wanted: Any, column: str) -> Any:
    """
    Return a column in the type of the table's column.

    Raises:
        InvalidInputError: A value of this type cannot be stored (``lossy_type``).
    """
    if given == wanted:
        return F.col(f"`{name}`")
    if not assignable(spark, given, wanted):
        raise InvalidInputError(
            f"a value does not fit its column: {column} has type {wanted.simpleString()}, the "
            f"value {given.simpleString()}; convert it by CAST",
            kind="expression",
            column=column,
        )
    return cast_to_store(spark, attribute(spark, name), wanted)


# ---- Merge


@dataclass(slots=True)
class _SparkMerge:
    """A merge in progress: matched rows by a join, then the rows of each side that match none."""

    statement: SparkStatement
    source: MergeSource
    on: Any
    clauses: tuple[SparkClause, ...]
    _cached: list[Any] = field(default_factory=list)

    def read(self, state: TableSnapshot) -> tuple[Any, Workload]:
        """Return the read set and the changes of one attempt."""
        self.release()
        statement, table = self.statement, self.statement.table
        plan = with_stored_forms(table.context, state.snapshot, statement.statement.plan)
        rules = target_rules(table.context, state, moves=plan.rules.moves_rows)
        with statement.analysis(state), _analysed():
            source = self._source_rows()
            target = _Target.of(statement, rules)
            changes = _Changes(target, self.clauses, self.source.alias, source.columns)
            base = state.to_df().alias(statement.alias)  # type: ignore[attr-defined]
            parts = self._matched(base, source, changes, target)
            inserts = self._inserts(base, source, changes)
        if inserts is not None:
            if not self._inserts_new_keys(target, source.columns, plan):
                self._refuse_known_inserts(base, inserts, plan)
            parts.append(inserts)
        rows = reduce(lambda one, other: one.unionByName(other), parts)
        return state.reads(), checked_workload(table, rows, changes.checks)

    def release(self) -> None:
        """Forget the cached rows of the last attempt."""
        for rows in self._cached:
            rows.unpersist()
        self._cached.clear()

    def _kept(self, rows: Any) -> Any:
        self._cached.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    def _source_rows(self) -> Any:
        rows = self.source.rows()
        twice = sorted({name for name in rows.columns if rows.columns.count(name) > 1})
        if twice:
            raise InvalidInputError(
                f"the source has several columns of one name; rename or drop them: {twice}",
                kind="data",
                columns=twice,
            )
        if self._of(When.NOT_MATCHED):  # the numbers must stay
            numbered = rows.withColumn(_SOURCE_ROW, F.monotonically_increasing_id())
            rows = self._kept(numbered)
        return rows.alias(self.source.alias)

    def _matched(self, base: Any, source: Any, changes: _Changes, target: _Target) -> list[Any]:
        """Return the changes of rows of the table."""
        on, parts = column_of(target.spark, self.on), []
        if matching := self._of(When.MATCHED):
            acted = self._acted(base.join(source, on, "inner"), matching)
            made = self._kept(changes.of(acted, When.MATCHED))
            _refuse_twice(made, target)
            parts.append(made)
        if lonely := self._of(When.NOT_MATCHED_BY_SOURCE):
            alone = self._acted(base.join(source, on, "left_anti"), lonely)
            parts.append(changes.of(alone, When.NOT_MATCHED_BY_SOURCE))
        return parts

    def _inserts(self, base: Any, source: Any, changes: _Changes) -> Any:
        """Return the rows of the source that match no row and that a clause inserts; or None."""
        clauses = self._of(When.NOT_MATCHED)
        if not clauses:
            return None
        table = self.statement.table
        # The source is the smaller side, so its rows that match are found, not those that do not.
        on = column_of(table.spark, self.on)
        matched = base.join(source, on, "inner").select(_SOURCE_ROW).distinct()
        new = source.join(matched, _SOURCE_ROW, "left_anti").alias(self.source.alias)
        key = None
        if not table.config.record_key_fields:
            prefix = F.lit(f"{table.context.ports.ids.uuid()}_")
            key = F.concat(prefix, F.col(_SOURCE_ROW).cast("string"))
        acted = self._acted(new, clauses)
        made = changes.of(acted, When.NOT_MATCHED, keeps=[_SOURCE_ROW], new_key=key)
        return self._kept(made.drop(_SOURCE_ROW))

    def _acted(self, rows: Any, clauses: Sequence[tuple[int, SparkClause]]) -> Any:
        """Return the rows on which a clause acts, with its number."""
        spark = self.statement.table.spark
        act = F.lit(None).cast("int")
        for number, clause in reversed(clauses):
            if clause.condition is None:
                act = F.lit(number)
            else:
                act = F.when(column_of(spark, clause.condition), number).otherwise(act)
        return rows.withColumn(_ACT, act).where(f"{_ACT} is not null")

    def _inserts_new_keys(self, target: _Target, source: Sequence[str], plan: WriteRequest) -> bool:
        """Return whether the match itself shows that no row of the table has an insert's key."""
        config = self.statement.table.config
        if not config.record_key_fields:
            return True
        pairs = equal_columns(self.on, self.statement.alias, self.source.alias, target, source)
        keys = {*config.record_key_fields}
        whole = plan.rules.lookup.whole_table
        places = keys if whole else keys | {*config.partition_fields}
        if pairs is None or set(pairs) not in (keys, places):
            return False
        for _, clause in self._of(When.NOT_MATCHED):
            for name, other in pairs.items():
                given = _source_name(clause, name, target, self.source.alias)
                if given is None or given.casefold() != other.casefold():
                    return False
        return True

    def _refuse_known_inserts(self, base: Any, inserts: Any, plan: WriteRequest) -> None:
        """Refuse inserts whose key the table has, because they would replace those rows."""
        config = self.statement.table.config
        whole = plan.rules.lookup.whole_table
        fields = (*config.record_key_fields, *(() if whole else config.partition_fields))
        names = {f"_hoodoo_key_{n}": name for n, name in enumerate(dict.fromkeys(fields))}
        keys = [_path(name).alias(key) for key, name in names.items()]
        known = base.select(*keys).join(inserts.select(*keys), list(names), "left_semi")
        if not known.isEmpty():
            raise unsafe_insert(config)

    def _of(self, when: When) -> list[tuple[int, SparkClause]]:
        return [(n, one) for n, one in enumerate(self.clauses) if one.when is when]


def _path(name: str) -> Any:
    head, *rest = name.split(".")
    return reduce(lambda column, step: column.getField(step), rest, F.col(f"`{head}`"))


def _refuse_twice(changed: Any, target: _Target) -> None:
    """Raise ``merge_row_twice`` if several rows of the source change one row of the table."""
    keys = [f"`{name}`" for name in target.stored] or [
        f"`{name.partition('.')[0]}`" for name in target.rules.fixed
    ]
    counted = changed.groupBy(*keys).count().where("count > 1")
    (row,) = collect_dataframe(counted.agg(F.sum(F.col("count") - 1).alias("rows")))
    if row["rows"]:
        raise row_twice(int(row["rows"]))


def equal_columns(
    on: Any, target_alias: str, source_alias: str, target: _Target, source: Sequence[str]
) -> dict[str, str] | None:
    """
    Return the columns of table and source that a match makes equal; None if it says more.

    Args:
        on: The parsed condition of the match.
        target_alias: The name of the table in it.
        source_alias: The name of the source in it.
        target: The table's columns.
        source: The source's columns.
    """
    pairs: dict[str, str] = {}
    waiting = [on]
    own = {name.casefold(): name for name in target.types}
    others = {name.casefold() for name in source}
    while waiting:
        term = waiting.pop()
        kind = kind_of(term)
        if kind == "And":
            waiting += [term.left(), term.right()]
            continue
        if kind != "EqualTo" or {kind_of(term.left()), kind_of(term.right())} != {
            "UnresolvedAttribute"
        }:
            return None
        mine = theirs = None
        for side in (term.left(), term.right()):
            *around, name = (str(part).casefold() for part in listed_seq(side.nameParts()))
            if around == [target_alias.casefold()] or (not around and name not in others):
                mine = own.get(name)
            elif around == [source_alias.casefold()] or (not around and name not in own):
                theirs = name
        if mine is None or theirs is None:
            return None
        pairs[mine] = theirs
    return pairs


def _source_name(clause: SparkClause, name: str, target: _Target, alias: str) -> str | None:
    """Return the source's column that an insert takes for a column; None for another value."""
    if clause.values is None:
        return name
    value = next((v for k, v in clause.values.items() if target.named(k) == name), None)
    if value is None or kind_of(value) != "UnresolvedAttribute":
        return None
    parts = [str(part) for part in listed_seq(value.nameParts())]
    return parts[-1] if len(parts) == 1 or parts[0].casefold() == alias.casefold() else None

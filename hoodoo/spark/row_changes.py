"""
Delete, update and merge rows on Spark: joins of DataFrames give the changes of one commit.

The rules are those of ``hoodoo/row_changes.py``; conditions and values are Spark's. A statement
pins the newest snapshot, computes the changed rows from it, checks them, and writes them with its
reads. Only changed rows, the keys of matches and few rows of a source are kept.

If a merge has few source rows and matches record keys, the driver reads the rows of these keys. The
join and the clauses then have few rows on both sides, and no task reads the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import ByteType, DateType, IntegerType, LongType, ShortType, StringType

from filegroups.reading.leased_read import PlannedRead, stream
from filegroups.reading.scan import read_schema
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN, with_meta
from filegroups.settings.read_settings import ReadSettings
from filegroups.table import TableSnapshot
from filegroups.writing.merge_clauses import (
    SOURCE,
    MergeAction,
    MergeClause,
    When,
    refuse_idle_clauses,
    row_twice,
)
from filegroups.writing.stored_forms import with_stored_forms
from filegroups.writing.workload import Workload
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.row_changes import Statement, delete_key_columns, target_rules, unsafe_insert
from hoodoo.spark.changed_columns import ACT, Changes, Check, SparkClause, Target
from hoodoo.spark.error_transport import collect_dataframe
from hoodoo.spark.few_rows import collect_few, has_plain_types, local_workload
from hoodoo.spark.read import arrow_shape
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.slices import dataframe_of
from hoodoo.spark.sql.catalyst import (
    attribute,
    column_of,
    first_line,
    kind_of,
    listed_seq,
    part_of,
)
from hoodoo.spark.sql.declared import LENGTH, as_declared
from hoodoo.spark.workload import SparkWorkload
from timeline.errors import HoodooError, InvalidInputError, StorageUnavailableError

if TYPE_CHECKING:
    from hoodoo.spark.spark_table import SparkSnapshot, SparkTable

_SOURCE_ROW: Final = "_hoodoo_source_row"

#: Types whose equal values are the same for Spark and for filters.
_ALIKE: Final = (StringType, LongType, IntegerType, ShortType, ByteType, DateType)

#: Spark's error of a value, among the texts of a failed job; until Spark 4.0 ``raise_error`` has no name.
_VALUE_ERROR = re.compile(
    r"\[(?:ARITHMETIC|BINARY|CANNOT_PARSE|CAST|CONVERSION|DATETIME|DIVIDE|DUPLICATED_MAP|ELEMENT|EXCEED|"
    r"FAILED_EXECUTE_UDF|INTERVAL|INVALID|MALFORMED|MAP_KEY|NULL_MAP|NUMERIC|REMAINDER|SCALAR|USER)"
    r"[A-Z_.]*\] [^\n]{,200}"
    r"|(?<=java\.lang\.RuntimeException: )[^\n]{1,200}"
)
#: The last line of the traceback of a user's function, and a frame of hoodoo in a traceback.
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: [^\n]{1,200}", re.MULTILINE)
_OWN_FRAME = re.compile(r"[/\\](?:hoodoo|tableservices|filegroups|lockproviders|timeline)[/\\]")
#: Spark's error of a lost block of rows that it must not compute again.
_LOST_ROWS = re.compile(r"Checkpoint block \S+ not found")
_LOSSES_MAX: Final = 3  # then the cluster loses executors faster than a statement runs
#: Runs the analysis of a statement's parts, in which names of tables lead to given snapshots.
Analysis = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSource:
    """The source of a merge: it computes its rows for each attempt, and says how conditions name it."""

    rows: Callable[[], Any]
    alias: str


@dataclass(frozen=True, slots=True)
class Kept:
    """
    Rows that are computed once.

    Args:
        df: The rows.
        few: The same rows, if the driver has them; else Spark caches them.
    """

    df: Any
    few: pa.Table | None = None


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


@contextmanager
def computed() -> Iterator[None]:
    """Raise an error of a value that Spark computes as one of hoodoo, without its stack."""
    try:
        yield
    except HoodooError:
        raise
    except Exception as error:
        text = str(error)
        found = [one[0] for one in _VALUE_ERROR.finditer(text)]
        if not found and isinstance(error, PythonException) and not _OWN_FRAME.search(text):
            found = _PYTHON_ERROR.findall(text)[-1:]
        if not found:
            raise
        raise InvalidInputError(
            f"Spark cannot compute a value of the statement: {found[0]}", kind="expression_value"
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
    _cached: list[Any] = field(default_factory=list)

    def delete(self, condition: Any, partitions: Sequence[str] | None = None) -> CommitResult:
        """Delete the rows for which an expression is true; None for all. Errors: as ``update``."""
        config, plan = self.table.config, self.statement.plan
        columns = list(delete_key_columns(config))
        if config.populate_meta_fields:
            columns = [KEY_COLUMN, PARTITION_COLUMN]
            plan = plan.with_keys(replace(plan.rules.keys, carried=True))

        def changed(state: SparkSnapshot) -> Any:
            rows = self._found(state, condition, partitions)
            return rows.select(*(self._target(name) for name in columns))

        return self._run(plan, changed, (), partitions)

    def update(
        self, values: Mapping[str, Any], condition: Any, partitions: Sequence[str] | None = None
    ) -> CommitResult:
        """
        Set columns of the rows for which an expression is true; None for all rows.

        ``partitions`` are partition paths to search; None for all.

        Raises:
            InvalidInputError: A part cannot be resolved (``expression``), a value does not fit its
                column, or an update is refused as by ``apply_clauses``.
            BudgetSpentError, ConflictError: As ``rerun_until_unchanged``.
        """
        clause = SparkClause(
            when=When.NOT_MATCHED_BY_SOURCE, action=MergeAction.UPDATE, values=values
        )
        checks: list[Check] = []

        def changed(state: SparkSnapshot) -> Any:
            rules = target_rules(self.table.context, state, keeps_order=True)
            target = Target.of(self.table.spark, self.alias, rules, self.table.declared)
            made = Changes(target, (clause,), "", None)
            checks[:] = made.checks
            rows = self._found(state, condition, partitions)
            return made.of(rows.withColumn(ACT, F.lit(0)), clause.when)

        return self._run(self.statement.plan, changed, checks, partitions)

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
        return self._attempts(
            self.statement.plan, _SparkMerge(self, source, on, tuple(clauses)).read
        )

    def kept(self, rows: Any, source: Kept) -> Kept:
        """Keep rows made from those of a source for the rest of an attempt; they are computed once."""
        few = None if source.few is None else self.collected(rows)
        return few or Kept(self.cached(rows))

    def collected(self, rows: Any) -> Kept | None:
        """Return few rows in the memory of the driver; None for more rows."""
        spark = self.table.spark
        if not has_plain_types(rows.schema):
            return None
        few = collect_few(rows, self.table.settings.driver_write_bytes_max)
        return None if few is None else Kept(dataframe_of(spark, few, rows.schema), few)

    def cached(self, rows: Any) -> Any:
        """
        Keep rows for the rest of an attempt; Spark computes them once.

        A lost executor may have had rows that differ if they are computed again: an order or a
        random value. Spark raises an error instead, and the statement begins again.
        """
        self._cached.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        if not rows._jdf.queryExecution().analyzed().deterministic():  # noqa: SLF001
            _blocks(rows).localCheckpoint()
        return rows

    def fixed(self, rows: Any) -> Any:
        """Compute rows now, and keep them as ``cached``."""
        _blocks(self.cached(rows)).count()
        return rows

    def checked(self, made: Kept, checks: Sequence[Check]) -> Workload:
        """
        Return changed rows as a workload; all values and checks are computed before.

        Raises:
            InvalidInputError: A check fails, or a value cannot be computed (``expression_value``).
        """
        settings, ports = self.table.settings, self.table.context.ports
        few, rows, flags = made.few, made.df, [one.column for one in checks]
        if few is None:
            few = collect_few(rows, settings.driver_write_bytes_max)
        if few is not None:
            _refuse({name: pc.sum(few.column(name)).as_py() or 0 for name in flags}, checks)
            return local_workload(ports, few.drop_columns(flags))
        if checks:
            _run_checks(self.cached(rows), checks)
            rows = rows.drop(*flags)
        workload = self.table._workload(rows)  # noqa: SLF001
        if isinstance(workload, SparkWorkload) and not checks:
            workload.df = self.cached(rows)
            rows.count()
        return workload

    def _found(self, state: SparkSnapshot, condition: Any, partitions: Sequence[str] | None) -> Any:
        rows = state.to_df().alias(self.alias)
        if partitions is not None:
            rows = rows.where(F.col(PARTITION_COLUMN).isin(list(partitions)))
        return rows if condition is None else rows.where(column_of(self.table.spark, condition))

    def _target(self, name: str) -> Any:
        return column_of(self.table.spark, attribute(self.table.spark, self.alias, name))

    def _run(
        self,
        plan: WriteRequest,
        changed: Callable[[SparkSnapshot], Any],
        checks: Sequence[Check],
        partitions: Sequence[str] | None,
    ) -> CommitResult:
        def read(state: TableSnapshot) -> tuple[Any, Workload]:
            with self.analysis(state), _analysed():
                rows = changed(state)  # type: ignore[arg-type]
            return state.reads(partitions=partitions), self.checked(Kept(rows), checks)

        return self._attempts(plan, read)

    def _attempts(
        self, plan: WriteRequest, read: Callable[[TableSnapshot], tuple[Any, Workload]]
    ) -> CommitResult:
        def attempt(state: TableSnapshot) -> tuple[Any, Workload]:
            self._release()
            with computed():
                return read(state)

        for _ in range(_LOSSES_MAX):
            try:
                return self.statement.run(plan, attempt)
            except Exception as error:
                if not _LOST_ROWS.search(str(error)):
                    raise
            finally:
                self._release()
        raise StorageUnavailableError(
            f"executors with rows of the statement were lost in {_LOSSES_MAX} attempts, and nothing "
            "was written: run it again when the cluster keeps its executors",
            kind="executors_lost",
        )

    def _release(self) -> None:
        for rows in reversed(self._cached):  # Spark plans others again that were made of them
            rows.unpersist()
        self._cached.clear()


def _blocks(rows: Any) -> Any:
    """Return the RDD of the blocks in which Spark keeps persisted rows."""
    cached = rows.sparkSession._jsparkSession.sharedState().cacheManager()  # noqa: SLF001
    relation = cached.lookupCachedData(rows._jdf).get().cachedRepresentation()  # noqa: SLF001
    return relation.cacheBuilder().cachedColumnBuffers()


@dataclass(frozen=True, slots=True)
class SparkMergeRun:
    """Runs the clauses of ``hoodoo.row_changes.Merge`` on Spark; both name columns alike."""

    statement: SparkStatement

    def merge(self, source: Any, on: Any, clauses: Sequence[MergeClause]) -> CommitResult:
        """Merge a DataFrame. Errors: as ``SparkStatement.merge``."""
        spark = self.statement.table.spark
        parts = [
            SparkClause(
                when=one.when,
                action=one.action,
                condition=None if one.condition is None else part_of(spark, one.condition),
                values=None
                if one.values is None
                else {name: part_of(spark, value) for name, value in one.values.items()},
            )
            for one in clauses
        ]
        return self.statement.merge(MergeSource(rows=lambda: source, alias=SOURCE), on, parts)


# ---- Checks of changed rows, before the write begins


def _run_checks(rows: Any, checks: Sequence[Check]) -> None:
    counted = [
        F.coalesce(F.sum(F.col(one.column).cast("long")), F.lit(0)).alias(one.column)
        for one in checks
    ]
    (counts,) = collect_dataframe(rows.agg(*counted))
    _refuse(counts.asDict(), checks)


def _refuse(counts: Mapping[str, Any], checks: Sequence[Check]) -> None:
    """Raise the error of the first check that refuses rows, whose number is its count."""
    for one in checks:
        if counts[one.column]:
            raise one.error(int(counts[one.column]))


# ---- Merge


@dataclass(slots=True)
class _SparkMerge:
    """A merge in progress: matched rows by a join, then the rows of each side that match none."""

    statement: SparkStatement
    source: MergeSource
    on: Any
    clauses: tuple[SparkClause, ...]

    def read(self, state: TableSnapshot) -> tuple[Any, Workload]:
        """Return the read set and the changes of one attempt."""
        statement, table = self.statement, self.statement.table
        plan = with_stored_forms(table.context, state.snapshot, statement.statement.plan)
        rules = target_rules(table.context, state, moves=plan.rules.moves_rows)
        with statement.analysis(state), _analysed():
            source = self._source_rows()
            target = Target.of(table.spark, statement.alias, rules, table.declared)
            joined = equal_columns(
                self.on, statement.alias, self.source.alias, target, source.df.columns
            )
            changes = Changes(target, self.clauses, self.source.alias, source.df.columns)
            base = self._base(state, source, target, joined).alias(statement.alias)
            others = source.df.alias(self.source.alias)
            pairs = base.join(others, column_of(table.spark, self.on), "inner")
            parts, matched = self._matched(pairs, source, changes, target)
            if lonely := self._of(When.NOT_MATCHED_BY_SOURCE):
                alone = base.join(others, column_of(table.spark, self.on), "left_anti")
                acted = self._acted(alone, lonely)
                parts.append(Kept(changes.of(acted, When.NOT_MATCHED_BY_SOURCE)))
            inserts = self._inserts(matched, source, changes)
        if inserts is not None:
            if not self._inserts_new_keys(joined, source, target, plan):
                self._refuse_known_inserts(state.to_df(), inserts.df, plan)  # type: ignore[attr-defined]
            parts.append(inserts)
        return state.reads(), statement.checked(_united(parts), changes.checks)

    def _source_rows(self) -> Kept:
        rows = self.source.rows()
        twice = sorted({name for name in rows.columns if rows.columns.count(name) > 1})
        if twice:
            raise InvalidInputError(
                f"the source has several columns of one name; rename or drop them: {twice}",
                kind="data",
                columns=twice,
            )
        is_numbered = bool(self._of(When.NOT_MATCHED))
        if is_numbered:
            rows = rows.withColumn(_SOURCE_ROW, F.monotonically_increasing_id())
        few = self.statement.collected(rows)
        if few is not None:
            return few
        return Kept(self.statement.fixed(rows) if is_numbered else rows)  # the numbers must stay

    def _base(
        self, state: TableSnapshot, source: Kept, target: Target, joined: EqualColumns
    ) -> Any:
        """Return rows of the table with all that match: those of few keys, or all."""
        found = None
        if not self._of(When.NOT_MATCHED_BY_SOURCE):
            found = self._rows_of_keys(state, source, target, joined)
        if found is None:
            return state.to_df()  # type: ignore[attr-defined]
        shape = spark_schema_of(found.schema)
        rows = dataframe_of(target.spark, found.cast(arrow_shape(shape)), shape)
        return as_declared(rows, target.declared)

    def _rows_of_keys(
        self, state: TableSnapshot, source: Kept, target: Target, joined: EqualColumns
    ) -> pa.Table | None:
        """Return the rows that have the source's record keys; None if the driver cannot read them."""
        keys = self.statement.table.config.record_key_fields
        settings = ReadSettings.from_properties(self.statement.table.properties)
        if source.few is None or not keys:
            return None
        types = {each.name: each.dataType for each in source.df.schema}
        spelled = {name.casefold(): name for name in types}
        terms = {}
        for name, other in joined.pairs.items():
            kind = types[spelled[other]]
            has_length = LENGTH in target.declared.get(name.casefold(), {})  # spaces may not count
            if kind == target.types[name] and isinstance(kind, _ALIKE) and not has_length:
                values = pc.unique(source.few.column(spelled[other])).drop_null()
                terms[name] = pc.field(name).isin(values.cast(target.rules.schema.field(name).type))
        if not terms.keys() >= {*keys}:
            return None
        condition = reduce(and_, terms.values())
        context = self.statement.table.context
        wanted = with_meta(read_schema(context, state.snapshot).arrow)
        names = wanted.names
        if not joined.says_more and all(
            one.takes_all_of(self.source.alias, target) for _, one in self._of(When.MATCHED)
        ):
            heads = {name.partition(".")[0] for name in (*target.rules.fixed, *joined.pairs)}
            names = [name for name in names if name in {*target.stored, *heads}]
        plan = state.plan(columns=names, filter=condition)
        if sum(one.size_bytes for one in plan.slices) > settings.spark_driver_read_bytes_max:
            return None
        planned = PlannedRead(snapshot=state.snapshot, plan=plan, is_pinned=state.is_pinned)
        found, bytes_left = [], self.statement.table.settings.driver_write_bytes_max
        for batch in stream(context, planned):
            found.append(batch)
            bytes_left -= batch.nbytes
            if bytes_left < 0:
                return None
        rows = pa.Table.from_batches(found, schema=plan.output_schema)
        # No clause reads the other columns, so their values do not matter.
        columns = [
            rows.column(each.name) if each.name in names else pa.nulls(rows.num_rows, each.type)
            for each in wanted
        ]
        return pa.Table.from_arrays(columns, schema=wanted)

    def _matched(
        self, pairs: Any, source: Kept, changes: Changes, target: Target
    ) -> tuple[list[Kept], Kept]:
        """Return the changes of matching rows, and the numbers of the source's rows that match."""
        matching, inserts = self._of(When.MATCHED), self._of(When.NOT_MATCHED)
        if not matching:
            if not inserts:
                return [], Kept(pairs)
            return [], self.statement.kept(pairs.select(_SOURCE_ROW), source)
        keeps = [_SOURCE_ROW, ACT] if inserts else []
        acted = self._acted(pairs, matching, keeps_all=bool(inserts))
        made = self.statement.kept(changes.of(acted, When.MATCHED, keeps=keeps), source)
        changed = made
        if inserts:
            few = made.few
            if few is not None:
                few = few.filter(pc.is_valid(few.column(ACT))).drop_columns(keeps)
            changed = Kept(made.df.where(f"{ACT} is not null").drop(*keeps), few)
        _refuse_twice(changed, target)
        return [changed], made

    def _inserts(self, matched: Kept, source: Kept, changes: Changes) -> Kept | None:
        """Return the rows of the source that match no row and that a clause inserts; or None."""
        clauses = self._of(When.NOT_MATCHED)
        if not clauses:
            return None
        table = self.statement.table
        if source.few is not None and matched.few is not None:
            numbers = matched.few.column(_SOURCE_ROW)
            is_found = pc.is_in(source.few.column(_SOURCE_ROW), value_set=numbers)
            few = source.few.filter(pc.invert(is_found))
            new = dataframe_of(table.spark, few, source.df.schema)
        else:
            # The source is the smaller side, so its rows that match are found.
            found = matched.df.select(_SOURCE_ROW).distinct()
            new = source.df.join(found, _SOURCE_ROW, "left_anti")
        new = new.alias(self.source.alias)
        key = None
        if not table.config.record_key_fields:
            prefix = F.lit(f"{table.context.ports.ids.uuid()}_")
            key = F.concat(prefix, F.col(_SOURCE_ROW).cast("string"))
        acted = self._acted(new, clauses)
        made = changes.of(acted, When.NOT_MATCHED, keeps=[_SOURCE_ROW], new_key=key)
        return self.statement.kept(made.drop(_SOURCE_ROW), source)

    def _acted(
        self, rows: Any, clauses: Sequence[tuple[int, SparkClause]], *, keeps_all: bool = False
    ) -> Any:
        """Return the rows with the number of the clause that acts; others only if ``keeps_all``."""
        spark = self.statement.table.spark
        act = F.lit(None).cast("int")
        for number, clause in reversed(clauses):
            if clause.condition is None:
                act = F.lit(number)
            else:
                act = F.when(column_of(spark, clause.condition), number).otherwise(act)
        acted = rows.withColumn(ACT, act)
        return acted if keeps_all else acted.where(f"{ACT} is not null")

    def _inserts_new_keys(
        self, joined: EqualColumns, source: Kept, target: Target, plan: WriteRequest
    ) -> bool:
        """Return whether the match itself shows that no row of the table has an insert's key."""
        config = self.statement.table.config
        if not config.record_key_fields:
            return True
        pairs, keys = joined.pairs, {*config.record_key_fields}
        whole = plan.rules.lookup.whole_table
        places = keys if whole else keys | {*config.partition_fields}
        if joined.says_more or set(pairs) not in (keys, places):
            return False
        types = {each.name.casefold(): each.dataType for each in source.df.schema}
        if not all(target.stores_as_compared(name, types[pairs[name]]) for name in pairs):
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


def _united(parts: Sequence[Kept]) -> Kept:
    """Return the rows of all parts."""
    rows = reduce(lambda one, other: one.unionByName(other), (one.df for one in parts))
    tables = [one.few for one in parts if one.few is not None]
    if len(tables) < len(parts):
        return Kept(rows)
    names = tables[0].schema.names
    alike = [pa.table([one.column(name) for name in names], names=names) for one in tables]
    return Kept(rows, pa.concat_tables(alike))


def _refuse_twice(changed: Kept, target: Target) -> None:
    """Raise ``merge_row_twice`` if several rows of the source change one row of the table."""
    keys = target.stored or [name.partition(".")[0] for name in target.rules.fixed]
    if changed.few is not None and target.stored:
        rows = changed.few.num_rows - changed.few.group_by(keys).aggregate([]).num_rows
    else:
        counted = changed.df.groupBy(*(f"`{name}`" for name in keys)).count().where("count > 1")
        (row,) = collect_dataframe(counted.agg(F.sum(F.col("count") - 1).alias("rows")))
        rows = int(row["rows"] or 0)
    if rows:
        raise row_twice(rows)


@dataclass(frozen=True, slots=True)
class EqualColumns:
    """
    The columns that a match makes equal.

    Args:
        pairs: Columns of the table, and of the source in small letters.
        says_more: Whether the match has further conditions.
    """

    pairs: Mapping[str, str]
    says_more: bool


def equal_columns(
    on: Any, target_alias: str, source_alias: str, target: Target, source: Sequence[str]
) -> EqualColumns:
    """
    Return the columns of table and source that a match makes equal.

    Args:
        on: The parsed condition of the match.
        target_alias: The name of the table in it.
        source_alias: The name of the source in it.
        target: The table's columns.
        source: The source's columns.
    """
    pairs: dict[str, str] = {}
    says_more = False
    waiting = [on]
    own = {name.casefold(): name for name in target.types}
    others = {name.casefold() for name in source}
    while waiting:
        term = waiting.pop()
        kind = "Column" if isinstance(term, Column) else kind_of(term)
        if kind == "And":
            waiting += [term.left(), term.right()]
            continue
        mine = theirs = None
        if kind == "EqualTo":
            for side in (term.left(), term.right()):
                if kind_of(side) != "UnresolvedAttribute":
                    continue
                *around, name = (str(part).casefold() for part in listed_seq(side.nameParts()))
                if around == [target_alias.casefold()] or (not around and name not in others):
                    mine = own.get(name)
                elif around == [source_alias.casefold()] or (not around and name not in own):
                    theirs = name if name in others else None
        if mine is None or theirs is None or mine in pairs:
            says_more = True
        else:
            pairs[mine] = theirs
    return EqualColumns(pairs, says_more)


def _source_name(clause: SparkClause, name: str, target: Target, alias: str) -> str | None:
    """Return the source's column that an insert takes for a column; None for another value."""
    if clause.values is None:
        return name
    value = next((v for k, v in clause.values.items() if target.named(k) == name), None)
    if value is None or isinstance(value, Column) or kind_of(value) != "UnresolvedAttribute":
        return None
    parts = [str(part) for part in listed_seq(value.nameParts())]
    return parts[-1] if len(parts) == 1 or parts[0].casefold() == alias.casefold() else None

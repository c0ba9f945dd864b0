"""INSERT, UPDATE, DELETE and MERGE: each statement is one commit, validated by its reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.keys.keys import field_type, partition_paths
from filegroups.schema.schema import META_COLUMNS
from filegroups.settings.settings import WriteSettings
from filegroups.writing.merge_clauses import MergeAction, When
from filegroups.writing.stored_forms import with_stored_forms
from filegroups.writing.write_request import CommitResult
from hoodoo.spark.changed_columns import (
    FieldValues,
    SparkClause,
    default_column,
    set_twice,
    stored_column,
)
from hoodoo.spark.few_rows import collect_batches
from hoodoo.spark.row_changes import MergeSource, SparkStatement, computed
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.sql.catalyst import (
    attribute,
    cast_to_store,
    column_of,
    dataframe_of,
    first_line,
    has_field,
    kind_of,
    listed_map,
    listed_seq,
    value_of,
)
from hoodoo.spark.sql.definitions import partitions_last
from hoodoo.spark.sql.names import NamedTable, PinnedTable, names_in, served
from hoodoo.spark.sql.statements import Statement, parts_of
from hoodoo.write_requests import insert_for_known_keys, write_request_of
from timeline.errors import InvalidInputError, counted
from timeline.model.commit_metadata import WriteOperation
from timeline.properties.setting_enums import OverwriteMode, SqlInsertMode

_OVERWRITE_MODE = "hoodie.datasource.overwrite.mode"
_OPERATION = WriteSettings.options["operation"].key
_NO_INSERTS = frozenset({WriteOperation.DELETE, WriteOperation.DELETE_PARTITION})


# ---- UPDATE, DELETE, MERGE


def update(statement: Statement) -> Any:
    """Run ``UPDATE table SET column = value, ... [WHERE condition]``."""
    plan = statement.plan
    named = statement.target_of(plan.table())
    if named is None:
        return None
    statement.replace_defaults(named, _prefixes(statement, plan.table()))
    statement.shorten_columns(statement.plan.table())
    with statement.with_views(statement.plan.table(), loads=False):
        plan = statement.plan
        values = _values(plan.assignments(), _prefixes(statement, plan.table()))
        with _opened(statement, named, plan.table(), plan) as one:
            return statement.done(one.update(values, value_of(plan.condition())))


def delete(statement: Statement) -> Any:
    """Run ``DELETE FROM table [WHERE condition]``."""
    named = statement.target_of(statement.plan.table())
    if named is None:
        return None
    statement.shorten_columns(statement.plan.table())
    with statement.with_views(statement.plan.table(), loads=False):
        plan = statement.plan
        with _opened(statement, named, plan.table(), plan, WriteOperation.DELETE) as one:
            return statement.done(one.delete(plan.condition()))


def merge(statement: Statement) -> Any:
    """Run ``MERGE INTO table USING source ON condition WHEN ... THEN ...``."""
    named = statement.target_of(statement.plan.targetTable())
    if named is None:
        return None
    statement.replace_defaults(named, _prefixes(statement, statement.plan.targetTable()))
    statement.shorten_columns(statement.plan.targetTable(), statement.plan.sourceTable())
    with statement.with_views(statement.plan.targetTable(), loads=False):
        plan = statement.plan
        if has_field(plan, "withSchemaEvolution") and plan.withSchemaEvolution():
            raise InvalidInputError(
                "MERGE WITH SCHEMA EVOLUTION is not supported: add the columns first by ALTER "
                "TABLE ... ADD COLUMNS",
                kind="sql_statement",
            )
        source = MergeSource(
            rows=lambda: dataframe_of(statement.spark, plan.sourceTable()),
            alias=_alias(plan.sourceTable(), "source"),
        )
        prefixes = _prefixes(statement, plan.targetTable())
        clauses = [
            *_clauses(When.MATCHED, plan.matchedActions(), prefixes),
            *_clauses(When.NOT_MATCHED, plan.notMatchedActions(), prefixes),
            *_clauses(When.NOT_MATCHED_BY_SOURCE, plan.notMatchedBySourceActions(), prefixes),
        ]
        with _opened(statement, named, plan.targetTable(), plan) as one:
            return statement.done(one.merge(source, plan.mergeCondition(), clauses))


@contextmanager
def _opened(
    statement: Statement,
    named: NamedTable,
    node: Any,
    plan: Any,
    operation: WriteOperation = WriteOperation.UPSERT,
) -> Iterator[SparkStatement]:
    """Open the table of a statement, and close it after its commit."""
    spark = statement.spark

    def analysis(state: Any) -> Any:
        uri = table.context.ports.storage.base_uri
        pinned = PinnedTable(base_uri=uri, rows=cache(state.to_df))
        statement.load_paths(pinned)
        return served(spark, names_in(plan, besides=parts_of(node)), pinned)

    with SparkTable(spark, named.path, named.options, declared=named.declared) as table:
        yield SparkStatement(
            table=table,
            statement=table._statement(operation, None),  # noqa: SLF001
            alias=_alias(node, "target"),
            analysis=analysis,
        )


def _alias(node: Any, default: str) -> str:
    if kind_of(node) == "SubqueryAlias":
        return str(node.alias())
    parts = parts_of(node)
    return default if parts is None or "/" in parts[-1] else parts[-1]


def _prefixes(statement: Statement, node: Any) -> set[tuple[str, ...]]:
    """Return what may stand before the columns of the changed table, in lower case."""
    return {(_alias(node, "target").lower(),), *statement.prefixes_of(node)}


def _values(
    assignments: Any, prefixes: Collection[tuple[str, ...]], *, takes_fields: bool = True
) -> dict[str, Any]:
    """
    Return the values by the columns that they are assigned to.

    Args:
        assignments: Of the plan.
        prefixes: What may stand before the columns, in lower case.
        takes_fields: Whether fields of a struct may be set.

    Raises:
        InvalidInputError: A column is set twice (``expression``), or what is set is no column of the
            table (``unknown_column``).
    """
    found: dict[str, Any] = {}
    for one in listed_seq(assignments):
        key = one.key()
        is_name = kind_of(key) == "UnresolvedAttribute"
        parts = tuple(str(p) for p in listed_seq(key.nameParts())) if is_name else ()
        folded = tuple(part.lower() for part in parts)
        lengths = (n for n in (3, 2, 1) if len(parts) > n and folded[:n] in prefixes)
        name, *path = parts[next(lengths, 0) :] or ("",)
        if not is_name or (path and not takes_fields):
            raise InvalidInputError(
                f"a clause gives values to columns, and of old rows to fields of structs, not to "
                f"{key.sql()}: give the whole column, an array or a map by its functions",
                kind="unknown_column",
                columns=[str(key.sql())],
            )
        if path:  # names of columns match in any case
            name = next((own for own in found if own.casefold() == name.casefold()), name)
        known, inner = found.get(name), tuple(part.casefold() for part in path)
        fields = dict(known.by_path) if isinstance(known, FieldValues) else {}
        if name in found and not (inner and fields and inner not in fields):
            raise set_twice(".".join((name, *path)))
        found[name] = FieldValues({**fields, inner: one.value()}) if inner else one.value()
    return found


def _clauses(when: When, actions: Any, prefixes: Collection[tuple[str, ...]]) -> list[SparkClause]:
    found = []
    for one in listed_seq(actions):
        kind = kind_of(one)
        values = None
        if kind in ("UpdateAction", "InsertAction"):
            values = _values(one.assignments(), prefixes, takes_fields=kind == "UpdateAction")
        action = MergeAction.DELETE
        if kind.startswith("Update"):
            action = MergeAction.UPDATE
        elif kind.startswith("Insert"):
            action = MergeAction.INSERT
        condition = value_of(one.condition())
        found.append(SparkClause(when=when, action=action, condition=condition, values=values))
    return found


# ---- INSERT


def insert(statement: Statement) -> Any:
    """Run ``INSERT INTO`` and ``INSERT OVERWRITE``, with partitions and lists of columns."""
    named = statement.target_of(statement.plan.table())
    if named is None:
        return None
    statement.replace_defaults(named)
    spark = statement.spark
    with statement.with_views(statement.plan.table()):
        plan = statement.plan
        query = plan.query()
        if has_field(plan, "replaceCriteriaOpt") and value_of(plan.replaceCriteriaOpt()):
            raise InvalidInputError(
                "INSERT ... REPLACE is not supported: use INSERT OVERWRITE with a PARTITION, or "
                "MERGE INTO",
                kind="sql_statement",
            )
        with served(spark, names_in(query)):
            try:
                rows = dataframe_of(spark, query)
            except AnalysisException as error:
                raise InvalidInputError(
                    f"Spark cannot resolve the rows to insert: {first_line(error)}",
                    kind="expression",
                ) from error
        partitions = {key: value_of(one) for key, one in listed_map(plan.partitionSpec()).items()}
        insertion = Insertion(
            names=[str(name) for name in listed_seq(plan.userSpecifiedCols())],
            partitions={
                key: None if value is None else str(value) for key, value in partitions.items()
            },
            by_name=bool(has_field(plan, "byName") and plan.byName()),
            overwrites=bool(plan.overwrite()),
        )
        with (
            SparkTable(spark, named.path, named.options, declared=named.declared) as table,
            computed(),
        ):
            return statement.done(insert_rows(table, rows, insertion))


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion:
    """
    How rows go into a table.

    Args:
        names: The columns that the statement lists; empty for all.
        partitions: Partition columns that it names, with their values; None for dynamic ones.
        by_name: Whether columns are found by their names only.
        overwrites: Whether the rows replace partitions or the table.
        is_dynamic: Whether they replace their own partitions; None asks the options.
    """

    names: Sequence[str] = ()
    partitions: Mapping[str, str | None] = field(default_factory=dict)
    by_name: bool = False
    overwrites: bool = False
    is_dynamic: bool | None = None


def insert_rows(table: SparkTable, rows: Any, how: Insertion) -> CommitResult:
    """Insert rows. Raises: as ``aligned_rows``, ``FixedPartitions.of`` and ``Table.write``."""
    fixed = {name: value for name, value in how.partitions.items() if value is not None}
    named = FixedPartitions.of(table, fixed) if fixed else None
    data = aligned_rows(table, rows, names=how.names, fixed=fixed, by_name=how.by_name)
    if not how.overwrites:
        return table.write(data, _insert_operation(table))
    is_static = not how.is_dynamic
    if how.is_dynamic is None:
        is_static = _overwrites_statically(table)
    fields = table.config.partition_fields
    if not fields or (not fixed and is_static):
        return table.insert_overwrite_table(data)
    if named is None or (not is_static and len(fixed) < len(fields)):
        return table.insert_overwrite(data)
    return table.insert_overwrite(data, partitions=named.paths(table))


def _insert_operation(table: SparkTable) -> WriteOperation:
    """
    Return the operation of INSERT INTO: with an ordering field an upsert, as Hudi documents it.

    Older options count as Hudi documents them, too: its release 1.2 keeps both rows of a known key
    in each mode.

    Raises:
        InvalidInputError: The options name an operation that is no insert (``sql_statement``).
        SettingError: A bulk insert would refuse or update known keys (``setting_contradiction``).
    """
    settings = table.settings
    given = settings.sql_insert_operation
    if table.properties.get(_OPERATION) is not None:  # it wins in Java Hudi, too
        given = settings.operation
        if given in _NO_INSERTS:
            raise InvalidInputError(
                f"{_OPERATION}={given.value} is set, and INSERT INTO adds rows: RESET {_OPERATION}, "
                "or use DELETE FROM",
                kind="sql_statement",
            )
    mode = settings.sql_insert_mode if table.config.record_key_fields else None
    if mode is SqlInsertMode.STRICT:
        table.refuse_known_keys()
    return insert_for_known_keys(table.settings, given or _older_operation(table, mode))


def _older_operation(table: SparkTable, mode: SqlInsertMode | None) -> WriteOperation:
    """Return the operation by the older options, and without them by the table."""
    settings = table.settings
    if settings.sql_bulk_insert:
        if mode in (SqlInsertMode.STRICT, SqlInsertMode.UPSERT):
            settings.refuse(
                "sql_bulk_insert",
                f"a bulk insert looks up no keys, and the mode of INSERT INTO is {mode.value}",
                "leave out one of the two, or use hoodie.sql.insert.mode=non-strict",
            )
        return WriteOperation.BULK_INSERT
    if mode is not None:
        return WriteOperation.UPSERT if mode is SqlInsertMode.UPSERT else WriteOperation.INSERT
    keyed = table.config.record_key_fields and table.config.ordering_fields
    return WriteOperation.UPSERT if keyed else WriteOperation.INSERT


def _overwrites_statically(table: SparkTable) -> bool:
    if table.settings.operation.replaces and table.properties.get(_OPERATION) is not None:
        return table.settings.operation is WriteOperation.INSERT_OVERWRITE_TABLE
    if table.properties.get(_OVERWRITE_MODE) is not None:
        return table.settings.overwrite_mode is not OverwriteMode.DYNAMIC
    mode = table.spark.conf.get("spark.sql.sources.partitionOverwriteMode", "static")
    return str(mode).lower() != "dynamic"


@dataclass(frozen=True, slots=True)
class FixedPartitions:
    """
    The partitions with some fixed values.

    Args:
        pattern: What a partition path matches wholly.
        path: The path, if all partition columns have a value.
    """

    pattern: re.Pattern[str]
    path: str | None

    @classmethod
    def of(
        cls, table: SparkTable, fixed: Mapping[str, str], *, of_folders: bool = False
    ) -> FixedPartitions:
        """
        Return the partitions of fixed values; it lists none.

        Args:
            table: The table.
            fixed: Texts by partition columns; a cast makes them values, as in an INSERT.
            of_folders: Whether a text may also be the folder's, as SHOW PARTITIONS shows it.

        Raises:
            InvalidInputError: A column is no partition column (``unknown_column``), a text is no
                value of its column (``expression_value``), or as ``partition_paths``.
        """
        request = write_request_of(table.settings, table.config, WriteOperation.DELETE_PARTITION)
        keys = with_stored_forms(table.context, table.context.snapshot(), request).rules.keys
        texts = _by_partition_field(keys.partition_fields, fixed)
        values = _cast_texts(table, texts)
        named: list[str] = []
        patterns: list[str] = []
        for number, name in enumerate(keys.partition_fields):
            start = f"{name}=" if keys.hive_style else ""
            if name not in texts:
                times = keys.times if keys.are_times[number] else None
                count = 1 if times is None else times.levels
                patterns.append(re.escape(start) + "/".join(["[^/]+"] * count))
                continue
            folders = [start + texts[name]] if of_folders else []
            if not values.column(name).null_count:
                types = keys.partition_types[number : number + 1]
                one = replace(keys, partition_fields=(name,), partition_types=types)
                folders.insert(0, partition_paths(values, one)[0].as_py())
            elif not of_folders:
                raise InvalidInputError(
                    f"a value of PARTITION does not fit its column: {name}={texts[name]!r}, the "
                    f"column has type {values.schema.field(name).type}",
                    kind="expression_value",
                    column=name,
                )
            named.append(folders[0])
            patterns.append(f"(?:{'|'.join(map(re.escape, folders))})")
        is_whole = len(named) == len(patterns)
        return cls(re.compile("/".join(patterns)), "/".join(named) if is_whole else None)

    def paths(self, table: SparkTable) -> list[str]:
        """Return the existing partition paths; else the wholly named one."""
        existing = table.current_state().view.partition_paths()
        found = [one for one in existing if self.pattern.fullmatch(one)]
        return found if found or self.path is None else [self.path]


def _by_partition_field(fields: Sequence[str], fixed: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of PARTITION by the table's partition fields."""
    spelled = {name.casefold(): name for name in fields}
    unknown = [name for name in fixed if name.casefold() not in spelled]
    if unknown:
        raise InvalidInputError(
            f"PARTITION names no partition columns of the table: {unknown}; it has {list(fields)}",
            kind="unknown_column",
            columns=unknown,
        )
    return {spelled[name.casefold()]: text for name, text in fixed.items()}


def _cast_texts(table: SparkTable, texts: Mapping[str, str]) -> pa.Table:
    """Return one row with the texts in the types of their columns; null for one that is no value."""
    names = {f"_hoodoo_{number}": name for number, name in enumerate(texts)}
    shape = [(name, field_type(table.schema, name) or pa.string()) for name in texts]
    kinds = {each.name: each.dataType for each in spark_schema_of(pa.schema(shape))}
    row = table.spark.range(1).select(*(F.lit(texts[name]).alias(n) for n, name in names.items()))
    spark = table.spark
    casts = [
        column_of(spark, cast_to_store(spark, attribute(spark, n), kinds[name], tries=True)).alias(
            name
        )
        for n, name in names.items()
    ]
    batches = collect_batches(row.select(*casts)) or []
    return pa.Table.from_batches(batches)


def aligned_rows(
    table: SparkTable,
    rows: Any,
    *,
    names: Sequence[str],
    fixed: Mapping[str, str],
    by_name: bool = False,
) -> Any:
    """
    Return rows in the columns of a table, as INSERT assigns them.

    As in Java Hudi, columns are found by their names if the query has all of them, else by their
    places. Columns that a list of columns leaves out get their default.

    Args:
        table: The table.
        rows: The rows of the query.
        names: The columns that the statement lists; empty for all.
        fixed: Values of partition columns that the statement names.
        by_name: Whether the statement has BY NAME.

    Raises:
        InvalidInputError: The numbers of columns differ, a name is unknown, or a type does not fit.
    """
    shape = partitions_last(spark_schema_of(table.schema), table.config.partition_fields)
    types = {each.name: each.dataType for each in shape}
    spelled = {name.casefold(): name for name in types}
    unknown = [name for name in (*names, *fixed) if name.casefold() not in spelled]
    if unknown:
        raise InvalidInputError(
            f"no such column: {unknown}; the table has {list(types)}",
            kind="unknown_column",
            columns=unknown,
        )
    values = {spelled[name.casefold()]: value for name, value in fixed.items()}
    own = [name for name in rows.columns if name not in META_COLUMNS]
    rows = rows.select(*(F.col(f"`{name}`") for name in own)) if own != rows.columns else rows
    wanted = [spelled[name.casefold()] for name in names] or [
        name for name in types if name not in values
    ]
    order = {name.casefold(): position for position, name in enumerate(own)}
    if by_name or (not names and {name.casefold() for name in wanted} == set(order)):
        missing = [name for name in own if name.casefold() not in spelled]
        if missing:
            raise InvalidInputError(
                f"no such column: {missing}; the table has {list(types)}",
                kind="unknown_column",
                columns=missing,
            )
        places = {name: order[name.casefold()] for name in wanted if name.casefold() in order}
    elif len(wanted) != len(own):
        raise InvalidInputError(
            f"the statement has {counted(len(own), 'value')} a row, and needs one for each of "
            f"{wanted}",
            kind="column_count",
        )
    else:
        places = {name: position for position, name in enumerate(wanted)}
    staged = rows.toDF(*(f"_hoodoo_{number}" for number in range(len(own))))
    given = {each.name: each.dataType for each in staged.schema}
    columns = []
    for name, kind in types.items():
        declared = table.declared.get(name.casefold(), {})
        if name in values:
            value = F.lit(values[name]).cast(kind)
        elif name in places:
            key = f"_hoodoo_{places[name]}"
            value = stored_column(
                table.spark, key, given[key], kind, column=name, declared=declared
            )
        else:
            value = default_column(table.spark, kind, declared)
        columns.append(value.alias(name))
    return staged.select(*columns)


HANDLERS: Mapping[str, Callable[[Statement], Any]] = {
    "UpdateTable": update,
    "DeleteFromTable": delete,
    "MergeIntoTable": merge,
    "InsertIntoStatement": insert,
}

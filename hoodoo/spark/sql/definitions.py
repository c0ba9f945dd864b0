"""CREATE TABLE, also AS SELECT, and DROP TABLE, with their entries in Spark's session catalog."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from filegroups.schema.schema import META_COLUMNS, META_FIELDS
from filegroups.settings.settings import WriteSettings
from hoodoo.catalog import create_table, delete_unwritten_table, drop_table
from hoodoo.spark.formats import serves
from hoodoo.spark.options import layers_for
from hoodoo.spark.read import load_dataframe
from hoodoo.spark.row_changes import computed
from hoodoo.spark.schema import arrow_schema_of, spark_schema_of
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.sql.catalyst import (
    constants,
    dataframe_of,
    first_line,
    has_field,
    listed_map,
    listed_seq,
    value_of,
)
from hoodoo.spark.sql.declared import (
    DEFAULT,
    Declared,
    check_declared,
    declared_in,
    fields_of,
    with_declared,
    without_defaults,
)
from hoodoo.spark.sql.names import (
    change_columns,
    create_entry,
    default_path,
    find_entry,
    identifier,
    is_option,
    names_in,
    new_entry,
    served,
    with_load,
)
from hoodoo.spark.sql.session_catalog import session_catalog
from hoodoo.spark.sql.statements import Statement, parts_of
from hoodoo.spark.write import save_dataframe, table_exists
from timeline.errors import InvalidInputError

#: Hudi's names of table properties in SQL, and the options that they stand for.
_OPTIONS: Final = {
    "primarykey": "hoodie.datasource.write.recordkey.field",
    "precombinefield": "hoodie.datasource.write.precombine.field",
    "orderingfields": "hoodie.datasource.write.precombine.field",
    "type": "hoodie.datasource.write.table.type",
}
_NAMES_COLUMNS: Final = frozenset(_OPTIONS) - {"type"}
#: Properties that a table keeps.
FIXED_PROPERTIES: Final = frozenset(_OPTIONS)
_TYPES: Final = {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}
_PARTITIONS = "hoodie.datasource.write.partitionpath.field"
_HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
_NAME, _DATABASE = "hoodie.table.name", "hoodie.database.name"
_OPERATION = "hoodie.datasource.write.operation"
_PLAIN_COLLATION = "UTF8_BINARY"
_COMBINE = "hoodie.combine.before.insert"
#: Properties of CREATE TABLE that the entry does not keep in their own spelling, as in Java Hudi.
_NOT_KEPT: Final = frozenset({*_OPTIONS, _OPERATION, _NAME, _DATABASE})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """
    A table as CREATE TABLE or ``saveAsTable`` define it.

    Args:
        ident: Spark's identifier, with the database.
        provider: The format.
        path: The location; None for the warehouse.
        properties: Table properties and options as they are given.
        partitions: Columns of the partition path; empty for those of the properties.
        comment: The table's comment.
    """

    ident: Any
    provider: str
    path: str | None = None
    properties: Mapping[str, str]
    partitions: Sequence[str] = ()
    comment: str | None = None

    def address(self, spark: Any) -> str:
        """Return the path of the table."""
        return self.path or default_path(spark, self.ident)

    def spelled(self, columns: Sequence[str]) -> TableDefinition:
        """Return the definition with columns as the table spells them: SQL ignores case."""
        own = {name.casefold(): name for name in columns}

        def one(name: str) -> str:
            head, dot, rest = name.strip().partition(".")
            return own.get(head.casefold(), head) + dot + rest

        return replace(
            self,
            partitions=[one(name) for name in self.partitions],
            properties={
                key: ",".join(one(name) for name in value.split(","))
                if key.lower() in _NAMES_COLUMNS
                else value
                for key, value in self.properties.items()
            },
        )

    def options(self, *, is_new: bool) -> dict[str, str]:
        """Return the options of a write that creates or opens the table."""
        found: dict[str, str] = {}
        for key, value in self.properties.items():
            known = _OPTIONS.get(key.lower())
            if known is not None:
                found[known] = _TYPES.get(value.lower(), value) if key.lower() == "type" else value
            elif is_option(key):
                found[key] = value
        typed = [one.partition(":")[0].strip() for one in found.get(_PARTITIONS, "").split(",")]
        if self.partitions and typed != [*self.partitions]:  # else they may have types
            found[_PARTITIONS] = ",".join(self.partitions)
        if is_new:
            folded = {key.lower() for key in found}
            if _HIVE_STYLE not in folded:
                found[_HIVE_STYLE] = "true"
            if _NAME not in folded:
                found[_NAME] = str(self.ident.table())
            if _DATABASE not in folded:
                found[_DATABASE] = str(value_of(self.ident.database()))
        return found


def create(statement: Statement) -> Any:
    """Run ``CREATE TABLE ... USING hudi`` for a new table, or for the existing one of a LOCATION."""
    definition = _definition_of(statement)
    if definition is None or _is_done(statement, definition):
        return None if definition is None else statement.done()
    spark, plan = statement.spark, statement.plan
    columns = StructType(fields_of(spark, plan.tableSchema()))
    _refuse_computed(columns)
    check_declared(spark, columns.fields)
    _refuse_constraints(statement)
    path = definition.address(spark)
    layers = layers_for(spark, definition.options(is_new=False))
    if table_exists(path, layers):
        register(spark, definition, columns, declared=declared_in(columns.fields))
        return statement.done()
    if not columns.fields:
        raise InvalidInputError(
            f"there is no Hudi table at the location, and the statement has no columns: {path}",
            kind="table_not_found",
        )
    _warn_not_null(definition, columns)
    create_new(spark, definition, columns)
    return statement.done()


def create_new(spark: Any, definition: TableDefinition, columns: Any) -> None:
    """
    Create a table and its entry.

    Args:
        spark: The session.
        definition: The table.
        columns: Its columns, as Spark's schema.

    Raises:
        InvalidInputError: A column has no type here, or the catalog refuses the name.
        SettingError: A property is wrong.
    """
    definition = definition.spelled(columns.names)
    path = definition.address(spark)
    partitions = partition_fields(spark, definition)
    _refuse_partition_defaults(declared_in(columns.fields), partitions)
    schema = partitions_last(columns, partitions)
    layers = layers_for(spark, definition.options(is_new=True))
    create_table(path, schema=arrow_schema_of(schema), properties=layers).close()
    try:
        register(spark, definition, declared=declared_in(columns.fields))
    except InvalidInputError:
        delete_unwritten_table(path, layers)
        raise


def create_as_select(statement: Statement) -> Any:
    """Run ``CREATE TABLE ... USING hudi AS SELECT ...``."""
    definition = _definition_of(statement)
    if definition is None or _is_done(statement, definition):
        return None if definition is None else statement.done()
    spark = statement.spark
    with statement.with_views():
        query = statement.plan.query()
        with served(spark, names_in(query)):
            try:
                rows = dataframe_of(spark, query)
            except AnalysisException as error:
                raise InvalidInputError(
                    f"Spark cannot resolve the query: {first_line(error)}", kind="expression"
                ) from error
        own = rows.drop(*META_COLUMNS)
        definition = definition.spelled(own.columns)
        path = definition.address(spark)
        if table_exists(path, layers_for(spark, definition.options(is_new=False), warns=False)):
            raise InvalidInputError(
                "the location has a Hudi table: CREATE TABLE without AS SELECT names it, then use "
                f"INSERT: {path}",
                kind="table_exists",
            )
        order = partitions_last(own.schema, partition_fields(spark, definition)).names
        options = definition.options(is_new=True)
        settings = WriteSettings.from_properties(layers_for(spark, options, warns=False).load())
        combines = bool(settings.record_key_fields and settings.ordering_fields)
        defaults = {_OPERATION: "bulk_insert", _COMBINE: str(combines).lower()}
        with computed():
            result = save_dataframe(
                own.select(*(f"`{name}`" for name in order)),
                path,
                {**defaults, **options},
                mode="errorifexists",
            )
    register(spark, definition)
    return statement.done(result)


def create_view(statement: Statement) -> Any:
    """Run ``CREATE TEMPORARY VIEW name USING hudi OPTIONS (path '...')``, of one snapshot."""
    spark, plan = statement.spark, statement.plan
    if not serves(spark, str(plan.provider())):
        return None
    options = {key: str(value) for key, value in listed_map(plan.options()).items()}
    path = options.pop("path", None)
    if path is None or value_of(plan.userSpecifiedSchema()) is not None:
        raise InvalidInputError(
            "a view over a Hudi table takes OPTIONS (path '...') and no columns",
            kind="sql_statement",
        )
    load = partial(load_dataframe, spark, [path], options)
    df = with_load(load(), load)
    name = str(plan.tableIdent().table())
    if getattr(plan, "global")():
        (df.createOrReplaceGlobalTempView if plan.replace() else df.createGlobalTempView)(name)
    else:
        (df.createOrReplaceTempView if plan.replace() else df.createTempView)(name)
    return statement.done()


def replace_table(statement: Statement) -> Any:
    """Refuse ``CREATE OR REPLACE TABLE ... USING hudi``, which has no single commit."""
    if _definition_of(statement) is None:
        return None
    raise InvalidInputError(
        "CREATE OR REPLACE TABLE and REPLACE TABLE are not supported: DROP TABLE ... PURGE, then "
        "CREATE TABLE; or INSERT OVERWRITE to replace all rows in one commit",
        kind="sql_statement",
    )


def drop(statement: Statement) -> Any:
    """Run ``DROP TABLE [IF EXISTS] name [PURGE]``: files go with a managed table, or by PURGE."""
    parts = parts_of(statement.plan.child())
    named = statement.table_of(statement.plan.child())
    if named is None or parts is None:
        return None
    if named.entry is None:
        raise InvalidInputError(
            f"DROP TABLE takes a name of the catalog; to delete the files of a path, call "
            f"hoodoo.drop_table({named.path!r})",
            kind="sql_statement",
        )
    spark = statement.spark
    is_managed = str(named.entry.tableType().name()) == "MANAGED"
    if is_managed or statement.plan.purge():
        layers = layers_for(spark, named.options, warns=False)
        if table_exists(named.path, layers):
            drop_table(named.path, properties=layers)
    session_catalog(spark).dropTable(named.entry.identifier(), True, False)
    return statement.done()


def _definition_of(statement: Statement) -> TableDefinition | None:
    """Return what a CREATE statement defines; None for other formats and catalogs."""
    spark, plan = statement.spark, statement.plan
    spec = plan.tableSpec()
    provider = value_of(spec.provider())
    ident = identifier(spark, parts_of(plan.name()) or ("", "", "", ""))
    if provider is None or ident is None or not serves(spark, provider):
        return None
    options = listed_seq(spec.optionExpression().options())
    texts = constants(spark, [one._2() for one in options])  # noqa: SLF001
    given = {
        str(one._1()): _text(value)  # noqa: SLF001
        for one, value in zip(options, texts, strict=True)
    }
    properties = {key: str(value) for key, value in listed_map(spec.properties()).items()}
    path = value_of(spec.location()) or given.pop("path", None)
    return TableDefinition(
        ident=ident,
        provider=str(provider).lower().rpartition(".")[2],
        path=None if path is None else str(path),
        properties={**given, **properties},
        partitions=tuple(_partition_column(one) for one in listed_seq(plan.partitioning())),
        comment=value_of(spec.comment()),
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _partition_column(transform: Any) -> str:
    if str(transform.name()) != "identity":
        raise partition_transform(str(transform.toString()))
    return ".".join(transform.references()[0].fieldNames())


def partition_transform(text: str) -> InvalidInputError:
    """Return the error of a partition that is an expression, such as ``days(ts)``."""
    instead = (
        "for folders of times set hoodie.datasource.write.keygenerator.class to a "
        "TimestampBasedKeyGenerator"
    )
    if text.startswith("bucket("):
        instead = "for buckets set hoodie.index.type=BUCKET and hoodie.bucket.index.num.buckets"
    elif text.startswith("cluster_by("):
        instead = "for an order CALL run_clustering(table => '...', order => '...')"
    return InvalidInputError(
        f"a Hudi table is partitioned by columns; {instead}: {text}", kind="sql_statement"
    )


def _is_done(statement: Statement, definition: TableDefinition) -> bool:
    """Return whether the catalog has the name and the statement says IF NOT EXISTS."""
    ident = definition.ident
    if find_entry(statement.spark, (value_of(ident.database()), str(ident.table()))) is None:
        return False
    if statement.plan.ignoreIfExists():
        return True
    raise InvalidInputError(
        f"Spark's catalog has this name: drop it first, or say IF NOT EXISTS: "
        f"{value_of(ident.database())}.{ident.table()}",
        kind="table_exists",
    )


def partition_fields(spark: Any, definition: TableDefinition) -> Sequence[str]:
    """Return the partition columns of a new table, by its clause or its options."""
    layers = layers_for(spark, definition.options(is_new=True), warns=False)
    return WriteSettings.from_properties(layers.load()).partition_fields


def partitions_last(schema: Any, partitions: Sequence[str]) -> Any:
    """Return a schema with partition columns at its end, as Spark's catalog keeps them."""
    named = {each.name: each for each in schema.fields}
    last = [named[name] for name in partitions if name in named]
    return StructType([*(each for each in schema.fields if each not in last), *last])


def _refuse_constraints(statement: Statement) -> None:
    """Refuse PRIMARY KEY, CHECK and the like, which would have no effect."""
    spec = statement.plan.tableSpec()
    if has_field(spec, "constraints") and listed_seq(spec.constraints()):
        raise InvalidInputError(
            "a Hudi table has no constraints: name its record key by TBLPROPERTIES "
            "(primaryKey = 'id')",
            kind="sql_statement",
        )


def _refuse_computed(columns: Any) -> None:
    marks = ("GENERATION_EXPRESSION", "identity.")
    named = [
        one.name for one in columns.fields if any(key.startswith(marks) for key in one.metadata)
    ]
    collated = [
        one.name
        for one in columns.fields
        if getattr(one.dataType, "collation", _PLAIN_COLLATION) != _PLAIN_COLLATION
    ]
    if collated:
        raise InvalidInputError(
            f"texts of a Hudi table have no collation; compare with lower(column): {collated}",
            kind="sql_statement",
        )
    if named:
        raise InvalidInputError(
            "columns of a Hudi table have no GENERATED or IDENTITY; give their values in "
            f"each INSERT: {named}",
            kind="sql_statement",
        )


def register(
    spark: Any,
    definition: TableDefinition,
    given: Any = None,
    declared: Declared | None = None,
) -> None:
    """
    Add the entry of an existing Hudi table to Spark's session catalog.

    Args:
        spark: The session.
        definition: The table.
        given: Columns that the statement names; they must be those of the table.
        declared: What only the catalog keeps of columns.

    Raises:
        InvalidInputError: The columns differ, or the catalog refuses the name.
        SettingError: The properties contradict the table.
    """
    path = definition.address(spark)
    with SparkTable(spark, path, definition.options(is_new=False)) as table:
        own = spark_schema_of(table.schema)
        config, properties = table.config, definition.properties
    _refuse_other_columns(given, own)
    _warn_misspelled(properties)
    schema = partitions_last(own, config.partition_fields)
    meta = spark_schema_of(pa.schema(META_FIELDS)).fields
    names = set(schema.names)
    partitions = [name for name in config.partition_fields if name in names]
    properties_of_entry = {
        "primaryKey": ",".join(config.record_key_fields),
        "orderingFields": ",".join(config.ordering_fields),
        "type": next(k for k, v in _TYPES.items() if v == config.table_type.value),
        **{key: value for key, value in properties.items() if key.lower() not in _NOT_KEPT},
    }
    whole = StructType([*(meta if config.populate_meta_fields else []), *schema.fields])
    kept = declared or {}
    _refuse_partition_defaults(kept, partitions)
    plain = without_defaults(kept)  # Spark creates an entry with defaults for its own formats only
    entry = new_entry(
        spark,
        definition.ident,
        path=path,
        provider=definition.provider,
        schema=with_declared(whole, plain),
        partition_columns=partitions if len(partitions) == len(config.partition_fields) else [],
        properties={key: value for key, value in properties_of_entry.items() if value},
        table_type=config.table_type.value,
        is_managed=definition.path is None,
        comment=definition.comment,
    )
    create_entry(spark, entry)
    if plain != kept:
        change_columns(spark, entry, with_declared(whole, kept))


def _refuse_partition_defaults(declared: Declared, partitions: Sequence[str]) -> None:
    """Refuse a default of a partition column, which Spark's catalog would lose."""
    named = [name for name in partitions if DEFAULT in declared.get(name.casefold(), {})]
    if named:
        raise InvalidInputError(
            f"a partition column has no DEFAULT; give its value in each INSERT: {named}",
            kind="sql_statement",
        )


def _warn_misspelled(properties: Iterable[str]) -> None:
    """Warn of table properties that only the catalog keeps, and whose names are nearly Hudi's."""
    known = {name.lower(): name for name in ("primaryKey", "preCombineField", "orderingFields")}
    for key in properties:
        if key.lower() in _OPTIONS or is_option(key):
            continue
        near = get_close_matches(key.lower(), known, n=1, cutoff=0.75)
        if near:
            warnings.warn(
                f"only Spark's catalog keeps the table property {key}, did you mean "
                f"{known[near[0]]}?",
                stacklevel=4,
            )


def _warn_not_null(definition: TableDefinition, columns: Any) -> None:
    """Warn of columns without nulls that are no key: Hudi's tables here check only their keys."""
    key_text = definition.options(is_new=False).get(_OPTIONS["primarykey"], "")
    keys = {name.strip().casefold() for name in key_text.split(",")}
    named = [one.name for one in columns if not one.nullable and one.name.casefold() not in keys]
    if named:
        warnings.warn(
            "columns of a Hudi table may have nulls, so NOT NULL has no effect; leave it out, and "
            f"check rows by assert_true(column IS NOT NULL): {named}",
            stacklevel=4,
        )


def _refuse_other_columns(given: Any, own: Any) -> None:
    if given is None or not given.fields:
        return
    mine = {each.name.lower(): each.dataType for each in given.fields}
    for name in META_COLUMNS:
        mine.pop(name, None)
    theirs = {each.name.lower(): each.dataType for each in own.fields}
    if mine != theirs:
        raise InvalidInputError(
            "the columns of the statement are not those of the Hudi table at the location; leave "
            f"them out: the table has {own.simpleString()}",
            kind="table_columns",
        )


HANDLERS: Mapping[str, Callable[[Statement], Any]] = {
    "CreateTable": create,
    "CreateTableAsSelect": create_as_select,
    "CreateTempViewUsing": create_view,
    "ReplaceTable": replace_table,
    "ReplaceTableAsSelect": replace_table,
    "DropTable": drop,
}

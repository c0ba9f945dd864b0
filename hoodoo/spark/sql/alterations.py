"""ALTER TABLE, TRUNCATE, partitions and indexes of Hudi tables in SQL."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructField, StructType

from filegroups.metadata_table.index_definitions import read_index_definitions
from filegroups.schema.schema import META_COLUMNS
from hoodoo.spark.formats import has_hudi_bundle, serves
from hoodoo.spark.java import java_class
from hoodoo.spark.schema import arrow_schema_of, spark_schema_of
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.sql.catalyst import (
    first_line,
    has_field,
    listed_map,
    listed_seq,
    value_of,
)
from hoodoo.spark.sql.changes import FixedPartitions
from hoodoo.spark.sql.declared import (
    COMMENT,
    DEFAULT,
    LENGTH,
    Declared,
    check_declared,
    declared_in,
    fields_of,
    with_declared,
)
from hoodoo.spark.sql.definitions import (
    FIXED_PROPERTIES,
    partitions_last,
)
from hoodoo.spark.sql.names import (
    NamedTable,
    change_columns,
    find_table,
    identifier,
    refresh_view,
    required_table,
)
from hoodoo.spark.sql.session_catalog import session_catalog
from hoodoo.spark.sql.statements import Statement, name_parts, parts_in, parts_of
from timeline.errors import InvalidInputError
from timeline.model.metadata_table import PartitionKind
from timeline.writer_registry import refuse_with_writers

#: A statement that Spark's parser does not know.
SHOW_INDEXES = re.compile(
    r"\s*show\s+index(?:es)?\s+(?:from|in)\s+(?P<name>\S+?)\s*;?\s*", re.IGNORECASE
)
REFRESH_INDEX = re.compile(r"\s*refresh\s+index\s.*", re.IGNORECASE | re.DOTALL)

_SECONDARY = PartitionKind.SECONDARY_INDEX.value

Change = Callable[[Statement, NamedTable, SparkTable], Any]


def _on_table(change: Change) -> Callable[[Statement], Any]:
    """Return a handler that opens the table of the plan's first child."""

    def run(statement: Statement) -> Any:
        named = statement.table_of(statement.plan.children().head())
        if named is None:
            return None
        with SparkTable(statement.spark, named.path, named.options) as table:
            return change(statement, named, table)

    return run


# ---- Columns


def _add_columns(statement: Statement, named: NamedTable, table: SparkTable) -> Any:
    add: dict[str, pa.DataType] = {}
    move: dict[str, str] = {}
    declared: dict[str, dict[str, str]] = {}
    for one in listed_seq(statement.plan.columnsToAdd()):
        if value_of(one.default()) is not None or not one.nullable():
            raise _refused(
                "a new column with DEFAULT or NOT NULL",
                "add it without; then ALTER COLUMN ... SET DEFAULT is for new rows, UPDATE for the "
                "rows of now",
            )
        around = value_of(one.path())
        inside = [] if around is None else [_spelled(table, _field(around))]
        parts = [*inside, str(one.colName())]
        name, (field,) = ".".join(parts), _typed(statement.spark, parts[-1], one.dataType())
        check_declared(statement.spark, [field])
        add[name] = arrow_schema_of(StructType([field])).field(0).type
        move |= _moved(table, name, value_of(one.position()))
        declared |= declared_in([StructField(name, field.dataType, True, field.metadata)])
        if value_of(one.comment()) is not None:
            declared.setdefault(name.casefold(), {})[COMMENT] = str(one.comment().get())
    return _altered(statement, named, table, declared, add=add, move=move)


def _drop_columns(statement: Statement, named: NamedTable, table: SparkTable) -> Any:
    drop = [_spelled(table, _field(one)) for one in listed_seq(statement.plan.columnsToDrop())]
    if statement.plan.ifExists():
        own = {name.casefold() for name in table.schema.names}
        drop = [name for name in drop if name.partition(".")[0].casefold() in own]
    return _altered(statement, named, table, drop=drop) if drop else statement.done()


def _rename_column(statement: Statement, named: NamedTable, table: SparkTable) -> Any:
    plan = statement.plan
    old, new = _spelled(table, _field(plan.column())), str(plan.newName())
    kept = named.declared.get(old.casefold())
    declared = {} if kept is None else {new.casefold(): kept}
    return _altered(statement, named, table, declared, rename={old: new})


def _alter_columns(statement: Statement, named: NamedTable, table: SparkTable) -> Any:
    spark = statement.spark
    types: dict[str, pa.DataType] = {}
    move: dict[str, str] = {}
    declared: dict[str, dict[str, str]] = {}
    known = {each.name.casefold(): each.dataType for each in spark_schema_of(table.schema)}
    for column, kind, position, comment, default in _alterations(statement.plan):
        name = _spelled(table, _field(column))
        own, kept = known.get(name.casefold()), dict(named.declared.get(name.casefold(), {}))
        if value_of(kind) is not None:
            (field,) = _typed(spark, name, kind.get())
            if field.metadata.get(LENGTH) not in (None, kept.get(LENGTH)):
                raise _refused("a new length of texts", "TYPE STRING drops the length of a column")
            if LENGTH not in field.metadata:
                kept.pop(LENGTH, None)
            if own != field.dataType:
                types[name] = arrow_schema_of(StructType([field])).field(0).type
        move |= _moved(table, name, value_of(position))
        if value_of(comment) is not None:
            kept[COMMENT] = str(comment.get())
        if default is not None:
            kept.pop(DEFAULT, None)
        if default:  # an empty one drops it
            kept[DEFAULT] = default
            if own is None:
                raise _refused("DEFAULT of a field or of an unknown column", "name a column")
            check_declared(spark, [StructField(name, own, metadata=kept)])
        declared[name.casefold()] = kept
    _refuse_of_partitions(named, declared)
    if types or move:
        return _altered(statement, named, table, declared, types=types, move=move)
    if named.entry is None:
        raise _refused("comments and defaults of a path", "name the table")
    refresh_columns(spark, named, table, declared)
    return statement.done()


def _refuse_of_partitions(named: NamedTable, declared: Declared) -> None:
    """Refuse to declare something new of partition columns, which Spark's catalog never changes."""
    columns = [] if named.entry is None else listed_seq(named.entry.partitionColumnNames())
    for name in (str(one).casefold() for one in columns):
        if name in declared and declared[name] != named.declared.get(name, {}):
            raise _refused(
                f"a new comment, default or length of the partition column {name}",
                "only CREATE TABLE gives a comment or a length, and a default is for other columns",
            )


def _alterations(plan: Any) -> list[tuple[Any, ...]]:
    """Return column, type, position, comment and default of each altered column."""
    found = []
    if has_field(plan, "specs"):  # since Spark 4.0
        for one in listed_seq(plan.specs()):
            default = None
            if has_field(one, "newDefaultExpression"):
                default = value_of(one.newDefaultExpression())
            if default is not None and not isinstance(default, str):
                default = str(default.originalSQL())
            if has_field(one, "dropDefault") and one.dropDefault():
                default = ""
            own = (one.column(), one.newNullability(), one.newDataType(), one.newPosition())
            found.append((*own, one.newComment(), default))
    else:
        default = value_of(plan.setDefaultExpression())
        own = (plan.column(), plan.nullable(), plan.dataType(), plan.position())
        found.append((*own, plan.comment(), default))
    if any(value_of(nullable) is False for _, nullable, *_ in found):
        raise _refused("ALTER COLUMN ... SET NOT NULL", "columns of a Hudi table stay nullable")
    return [(column, *changes) for column, _, *changes in found]


def _altered(
    statement: Statement,
    named: NamedTable,
    table: SparkTable,
    declared: Declared | None = None,
    **changes: Any,
) -> Any:
    result = table.alter_schema(**changes)
    if named.entry is not None:
        refresh_columns(statement.spark, named, table, declared)
    return statement.done(result)


def refresh_columns(
    spark: Any, named: NamedTable, table: SparkTable, declared: Declared | None = None
) -> None:
    """Give the entry of a table the table's columns of now, and what is newly declared of some."""
    own = with_declared(spark_schema_of(table.schema), {**named.declared, **(declared or {})})
    partitions = listed_seq(named.entry.partitionColumnNames())
    meta = [one for one in fields_of(spark, named.entry.schema()) if one.name in META_COLUMNS]
    try:
        change_columns(
            spark,
            named.entry,
            StructType([*meta, *partitions_last(own, partitions).fields]),
        )
    except AnalysisException as error:
        warnings.warn(
            f"the table is changed, but the metastore keeps the columns of its entry {named.name}; let it "
            "change their types (hive.metastore.disallow.incompatible.col.type.changes=false), or "
            f"drop the entry and create it: {first_line(error)}",
            stacklevel=2,
        )


def _field(node: Any) -> list[str]:
    return [str(part) for part in listed_seq(node.name())]


def _spelled(table: SparkTable, names: Sequence[str]) -> str:
    """Return a column by its names from outside to inside, as the table spells them."""
    found: list[str] = []
    fields: Any = table.schema
    for name in names:
        own = [] if fields is None else [fields.field(number) for number in range(len(fields))]
        one = next((each for each in own if each.name.casefold() == name.casefold()), None)
        found.append(name if one is None else one.name)
        fields = one.type if one is not None and pa.types.is_struct(one.type) else None
    return ".".join(found)


def _moved(table: SparkTable, name: str, position: Any) -> dict[str, str]:
    """Return the move of a column to a place; none without a place."""
    if position is None:
        return {}
    place = position.position()
    if str(place.toString()).upper() == "FIRST":
        return {name: ""}
    return {name: _spelled(table, [str(place.column())])}


def _typed(spark: Any, name: str, kind: Any) -> list[StructField]:
    """Return a column of a type of the JVM."""
    schema = java_class(spark, "org.apache.spark.sql.types.StructType")()
    return fields_of(spark, schema.add(name, kind))


# ---- Names and properties


def _rename_table(statement: Statement, named: NamedTable, table: SparkTable) -> Any:
    spark = statement.spark
    new = identifier(spark, [str(part) for part in listed_seq(statement.plan.newName())])
    if named.entry is None or new is None:
        raise _refused("RENAME TO of a path", "move the folder while nothing writes to it")
    if str(named.entry.tableType().name()) == "MANAGED":  # Spark moves the folder
        refuse_with_writers(table.context)
    session_catalog(spark).renameTable(named.entry.identifier(), new)
    return statement.done()


def _set_properties(statement: Statement, named: NamedTable, table: SparkTable) -> Any:
    given = listed_map(statement.plan.properties())
    fixed = sorted(key for key in given if key.lower() in FIXED_PROPERTIES)
    if fixed:
        raise _refused(
            f"a change of {', '.join(fixed)}",
            "the key, the ordering and the type of a table stay; create another table",
        )
    options = {key: str(value) for key, value in given.items()}
    SparkTable(statement.spark, table.path, {**named.options, **options}).close()  # checks them
    return None  # Spark keeps them in its catalog


# ---- Rows and partitions


def _truncate(statement: Statement, named: NamedTable, table: SparkTable) -> Any:  # noqa: ARG001
    return statement.done(table.insert_overwrite_table(table.schema.empty_table()))


def _truncate_partition(statement: Statement, named: NamedTable, table: SparkTable) -> Any:  # noqa: ARG001
    paths = _paths(table, statement.plan.partitionSpec())
    return statement.done(table.delete_partitions(paths))


def _drop_partitions(statement: Statement, named: NamedTable, table: SparkTable) -> Any:  # noqa: ARG001
    specs = listed_seq(statement.plan.parts())
    paths = [path for one in specs for path in _paths(table, one)]
    if statement.plan.ifExists():
        known = set(_partitions(table))
        paths = [path for path in paths if path in known]
        if not paths:
            return statement.done()
    return statement.done(table.delete_partitions(paths))  # it warns of paths without rows


def _paths(table: SparkTable, spec: Any) -> list[str]:
    given = {key: str(value) for key, value in listed_map(spec.spec()).items()}
    return FixedPartitions.of(table, given, of_folders=True).paths(table)


def _partitions(table: SparkTable) -> list[str]:
    return sorted({one.file_group.partition_path for one in table.file_slices()})


def _show_partitions(statement: Statement, named: NamedTable, table: SparkTable) -> Any:  # noqa: ARG001
    pattern = value_of(statement.plan.pattern())
    paths = _partitions(table)
    if pattern is not None:
        wanted = set(_paths(table, pattern))
        paths = [path for path in paths if path in wanted]
    rows = [(path,) for path in paths if table.config.partition_fields]
    return statement.rows(rows, "partition string")


# ---- Indexes


def _create_index(statement: Statement, named: NamedTable, table: SparkTable) -> Any:  # noqa: ARG001
    plan = statement.plan
    name, kind = str(plan.indexName()), str(plan.indexType()).lower()
    columns = [".".join(_field(one._1())) for one in listed_seq(plan.columns())]  # noqa: SLF001
    options = listed_map(plan.properties())
    if "expr" in options or "func" in options or kind in ("column_stats", "bloom_filters"):
        raise _refused(
            "an expression index",
            "build statistics of columns by hoodie.metadata.index.column.stats.enable and 'hoodoo "
            "metadata create TABLE column_stats', or a secondary index by CREATE INDEX name ON "
            "table (column)",
        )
    if kind not in ("", "record_index", "secondary_index"):
        raise _refused(f"an index of type {kind}", "leave USING out")
    is_record = kind == "record_index" or set(columns) == set(table.config.record_key_fields)
    known = {one[0] for one in _indexes(table)}
    target = "record_index" if is_record else f"{_SECONDARY}{name}"
    if target in known and plan.ignoreIfExists():
        return statement.done()
    if is_record:
        table.metadata.create_index("record_index", index_type="record_index")
    elif len(columns) == 1:
        table.metadata.create_index(name, columns[0])
    else:
        raise _refused("a secondary index on several columns", "create one for each column")
    return statement.done()


def _drop_index(statement: Statement, named: NamedTable, table: SparkTable) -> Any:  # noqa: ARG001
    name, known = str(statement.plan.indexName()), {one[0] for one in _indexes(table)}
    if statement.plan.ignoreIfNotExists() and not {name, f"{_SECONDARY}{name}"} & known:
        return statement.done()
    table.metadata.drop_index(name)
    return statement.done()


def _indexes(table: SparkTable) -> list[tuple[str, str, str]]:
    """Return the indexes in the metadata table: name, type and columns, as Java shows them."""
    known = read_index_definitions(table.context.ports.storage)
    found = []
    for name in table.context.config.complete_metadata_partitions:
        if name.startswith(_SECONDARY) and name in known:
            found.append((name, "secondary_index", ",".join(known[name].source_fields)))
        elif name != PartitionKind.FILES.value:
            found.append((name, name, ""))
    return found


def show_indexes(spark: Any, match: re.Match[str]) -> Any:
    """Run ``SHOW INDEXES FROM table``; return None for a table of Hudi's bundle."""
    parts = name_parts(spark, match["name"])
    if has_hudi_bundle(spark) and find_table(spark, parts) is None:
        return None
    named = required_table(spark, parts)
    with SparkTable(spark, named.path, named.options) as table:
        rows = _indexes(table)
    return spark.createDataFrame(rows, "index_name string, index_type string, col_name string")


def refuse_refresh_index(spark: Any, match: re.Match[str]) -> Any:  # noqa: ARG001
    """Refuse ``REFRESH INDEX``, which is the bundle's where there is one."""
    if has_hudi_bundle(spark):
        return None
    raise _refused("REFRESH INDEX", "each commit keeps the indexes up to date")


# ---- Statements without a counterpart


def _refuses(what: str, instead: str) -> Callable[[Statement], Any]:
    def run(statement: Statement) -> Any:
        plan = statement.plan
        node = plan.table() if has_field(plan, "table") else plan.children().head()
        if statement.table_of(node) is None:
            return None
        raise _refused(what, instead)

    return run


_of_partition = _refuses(
    "statements on the statistics of one partition",
    "leave PARTITION out; SHOW PARTITIONS lists them",
)


#: Statements of other table formats, which end in a syntax error, and Hudi's way.
_FOREIGN = (
    (r"optimize\s+{name}.*", "CALL run_clustering(table => '...', order => 'column')"),
    (r"reorg\s+table\s+{name}.*", "CALL run_clustering or run_compaction(table => '...')"),
    (r"vacuum\s+{name}.*", "CALL run_clean(table => '...', retain_commits => 10)"),
    (
        r"restore\s+(?:table\s+)?{name}\s+to\s.*",
        "CALL rollback_to_savepoint(table => '...'), or hoodoo restore TABLE INSTANT",
    ),
    (r"desc(?:ribe)?\s+history\s+{name}.*", "CALL show_commits(table => '...')"),
    (
        r"desc(?:ribe)?\s+detail\s+{name}.*",
        "DESCRIBE EXTENDED table, or CALL show_table_properties(table => '...')",
    ),
    (
        r"create\s+(?:or\s+replace\s+)?table\s.*\sclone\s+{name}.*",
        "CREATE TABLE ... USING hudi AS SELECT * FROM table",
    ),
    (
        r"alter\s+table\s+{name}\s+write\s+ordered\s+by\s.*",
        "CALL run_clustering(table => '...', order => 'column')",
    ),
    (
        r"alter\s+table\s+{name}\s+(?:add|drop)\s+(?:constraint|check|primary|foreign|unique)\b.*",
        "a Hudi table has none; a query checks its rows by WHERE or assert_true(condition)",
    ),
)


def _refuse_foreign(spark: Any, match: re.Match[str], instead: str) -> Any:
    """Refuse a statement of another format on a Hudi table; leave it for other tables."""
    parts = parts_in(spark, match["name"].rstrip(";"))
    if parts is None or find_table(spark, parts) is None:
        return None
    raise _refused("this statement", instead)


def _refused(what: str, instead: str) -> InvalidInputError:
    return InvalidInputError(
        f"SQL on Hudi tables does not support {what}: {instead}", kind="sql_statement"
    )


def _refresh(statement: Statement) -> Any:
    """Run ``REFRESH TABLE``: load the rows of a view again; a table is read newest anyhow."""
    parts = parts_of(statement.plan.children().head())
    if parts is not None and refresh_view(statement.spark, parts):
        return statement.done()
    return do_nothing(statement)


def do_nothing(statement: Statement) -> Any:
    """
    Run ``UNCACHE TABLE`` and ``MSCK REPAIR TABLE``, which have nothing to do.

    Each statement reads the newest table, and the table itself lists its partitions.
    """
    named = statement.table_of(statement.plan.children().head())
    return None if named is None else statement.done()


def _partition_statement(statement: Statement) -> Any:
    """Refuse ANALYZE and DESCRIBE of one partition; leave those of the table to Spark."""
    plan = statement.plan
    has_partition = "Partition" in statement.kind or (
        has_field(plan, "partitionSpec") and bool(listed_map(plan.partitionSpec()))
    )
    return _of_partition(statement) if has_partition else None


def _like(statement: Statement) -> Any:
    """Refuse ``CREATE TABLE ... LIKE`` of a Hudi table, and ``LIKE ... USING hudi``."""
    plan = statement.plan
    if has_field(plan, "sourceTable"):  # until Spark 4.2
        ident = plan.sourceTable()
        database = value_of(ident.database())
        parts = (*((str(database),) if database else ()), str(ident.table()))
        provider = value_of(plan.provider())
        named = find_table(statement.spark, parts)
    else:
        named, provider = statement.table_of(plan.source()), None
    if named is None and not (provider and serves(statement.spark, str(provider))):
        return None
    raise _refused(
        "CREATE TABLE ... LIKE",
        "CREATE TABLE ... USING hudi TBLPROPERTIES (primaryKey = '...') AS SELECT * FROM table "
        "WHERE false",
    )


HANDLERS: Mapping[str, Callable[[Statement], Any]] = {
    "AddColumns": _on_table(_add_columns),
    "DropColumns": _on_table(_drop_columns),
    "RenameColumn": _on_table(_rename_column),
    "AlterColumn": _on_table(_alter_columns),
    "AlterColumns": _on_table(_alter_columns),
    "RenameTable": _on_table(_rename_table),
    "SetTableProperties": _on_table(_set_properties),
    "TruncateTable": _on_table(_truncate),
    "TruncatePartition": _on_table(_truncate_partition),
    "DropPartitions": _on_table(_drop_partitions),
    "ShowPartitions": _on_table(_show_partitions),
    "CreateIndex": _on_table(_create_index),
    "DropIndex": _on_table(_drop_index),
    "RepairTable": do_nothing,
    "RecoverPartitions": do_nothing,
    "RefreshTable": _refresh,
    "UncacheTable": do_nothing,
    "CacheTable": _refuses(
        "CACHE TABLE of a table", "call spark.table(name).cache(), and use this DataFrame"
    ),
    "AnalyzeTable": _partition_statement,
    "DescribeRelation": _partition_statement,
    "DescribeTablePartition": _partition_statement,
    "ShowTablePartition": _partition_statement,
    "CreateTableLike": _like,
    "CreateTableLikeCommand": _like,
    "AlterTableClusterBy": _refuses(
        "CLUSTER BY", "CALL run_clustering(table => '...', order => '...')"
    ),
    "SetTableSerDeProperties": _refuses("SERDE", "ALTER TABLE ... SET TBLPROPERTIES"),
    "ReplaceColumns": _refuses("REPLACE COLUMNS", "use ADD, DROP, RENAME and ALTER COLUMN"),
    "SetTableLocation": _refuses("SET LOCATION", "drop the entry and create it with LOCATION"),
    "AddPartitions": _refuses("ADD PARTITION", "a partition begins with its first row: INSERT"),
    "RenamePartitions": _refuses(
        "PARTITION ... RENAME", "INSERT its rows into the other partition, then drop it"
    ),
    "LoadData": _refuses("LOAD DATA", "INSERT INTO table SELECT ... FROM parquet.`path`"),
    "OverwriteByExpression": _refuses(
        "INSERT ... REPLACE WHERE", "use INSERT OVERWRITE with a PARTITION, or MERGE INTO"
    ),
}

TEXTS: Sequence[tuple[re.Pattern[str], Callable[[Any, re.Match[str]], Any]]] = (
    (SHOW_INDEXES, show_indexes),
    (REFRESH_INDEX, refuse_refresh_index),
    *(
        (
            re.compile(rf"\s*{text.format(name='(?P<name>[^ ;]+)')}", re.IGNORECASE | re.DOTALL),
            partial(_refuse_foreign, instead=instead),
        )
        for text, instead in _FOREIGN
    ),
)

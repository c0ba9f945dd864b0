"""
Where the names of SQL lead: to a path, or to an entry of Spark's session catalog.

The session catalog (in memory, or a Hive metastore) keeps the entries, in the form of Java Hudi:
provider, location, columns and properties. Spark has no source of its own that could read them. So
before a statement is analysed, the catalog gets the plan of a fresh load for each table that the
statement names. Each name of Spark then works, with its database and catalog.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql.types import StructField, StructType

from hoodoo.spark.java import java_class, java_type
from hoodoo.spark.read import load_dataframe
from hoodoo.spark.sql.catalyst import (
    catalyst,
    copied,
    first_line,
    listed_map,
    listed_seq,
    option,
    parse_plan,
    scala_map,
    scala_seq,
    value_of,
)
from hoodoo.spark.sql.declared import Declared, as_declared, declared_in
from hoodoo.spark.sql.session_catalog import INPUT_FORMATS, create_in_hive, session_catalog
from timeline.errors import (
    HoodooError,
    InvalidInputError,
    StorageCapabilityError,
    TableNotFoundError,
)
from timeline.storage.open_storage import storage_for

SESSION_CATALOG: Final = "spark_catalog"
_RELATION = re.compile(r"Unresolved(?:Relation|TableOrView|Table) \[([^\]]*)\]")
_ALL_HUDI = ("hudi", "hoodoo", "org.apache.hudi")
_AS_READ_OPTIMIZED: Final = "hoodie.query.as.ro.table"  # Hudi's sync sets it
_READ_OPTIMIZED: Final = {"hoodie.datasource.query.type": "read_optimized"}
_GLOBAL_VIEWS: Final = "global_temp"
_cached: Counter[tuple[int, str]] = Counter()
_caching = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTable:
    """
    A table as a statement names it.

    Args:
        path: Its path.
        entry: Spark's ``CatalogTable``; None if the statement names the path.
        options: Options of the entry, by Hudi's keys.
        is_read_optimized: Whether reads of the entry leave out log files, as Hudi's ``orders_ro``.
    """

    path: str
    entry: Any = None
    options: Mapping[str, str] = field(default_factory=dict)
    is_read_optimized: bool = False

    @property
    def read_options(self) -> dict[str, str]:
        """The options of a load by this name."""
        return {**self.options, **(_READ_OPTIMIZED if self.is_read_optimized else {})}

    @property
    def declared(self) -> Declared:
        """What the entry declares of columns; nothing without an entry."""
        fields = [] if self.entry is None else json.loads(self.entry.schema().json())["fields"]
        return declared_in(StructField.fromJson(one) for one in fields)

    @property
    def name(self) -> str:
        """The name in the session catalog; the path without an entry."""
        if self.entry is None:
            return self.path
        ident = self.entry.identifier()
        return f"{value_of(ident.database())}.{ident.table()}"


def is_path_name(parts: Sequence[str]) -> bool:
    """Return whether a name is a format and a path: ``hudi.`/tables/orders` ``."""
    return len(parts) == 2 and parts[0].lower() in _ALL_HUDI and "/" in parts[1]


def find_table(spark: Any, parts: Sequence[str]) -> NamedTable | None:
    """
    Return the Hudi table that a name leads to.

    Returns:
        The table; None if the name leads to another format, a view or nothing, or if the Hudi
        bundle of the session serves it.
    """
    from hoodoo.spark.formats import serves

    if is_path_name(parts):
        return NamedTable(path=parts[1]) if serves(spark, parts[0]) else None
    entry = find_entry(spark, parts)
    if entry is None:
        return None
    provider, location = value_of(entry.provider()), value_of(entry.storage().locationUri())
    if provider is None or location is None or not serves(spark, provider):
        return None
    kept = {**listed_map(entry.storage().properties()), **listed_map(entry.properties())}
    options = {key: str(value) for key, value in kept.items() if is_option(key)}
    optimized = options.pop(_AS_READ_OPTIMIZED, "false").lower() == "true"
    return NamedTable(
        path=_plain(spark, location), entry=entry, options=options, is_read_optimized=optimized
    )


def is_option(key: str) -> bool:
    """Return whether a property of a catalog entry is an option of Hudi or hoodoo."""
    return key.lower().startswith(("hoodie.", "hoodoo."))


def required_table(spark: Any, parts: Sequence[str]) -> NamedTable:
    """
    Return the Hudi table that a name or a path leads to, for a call that needs one.

    Raises:
        TableNotFoundError: There is no such name, or it is no Hudi table.
    """
    found = find_table(spark, parts)
    if found is None:
        raise TableNotFoundError(
            "no Hudi table has this name in Spark's catalog; create it with CREATE TABLE ... USING "
            f"hudi LOCATION '...', or name the path as hudi.`/path`: {'.'.join(parts)}"
        )
    return found


def find_entry(spark: Any, parts: Sequence[str]) -> Any:
    """Return the session catalog's entry of a name; None without one, and for temporary views."""
    catalog = session_catalog(spark)
    if len(parts) == 1 and catalog.getTempView(parts[0]).isDefined():
        return None
    ident = identifier(spark, parts)
    if ident is None or not catalog.tableExists(ident):
        return None
    return catalog.getTableMetadata(ident)


def identifier(spark: Any, parts: Sequence[str]) -> Any:
    """Return Spark's identifier of a name; None if it names another catalog."""
    *around, name = parts
    if len(around) == 2 and around[0].lower() == SESSION_CATALOG:
        around = around[1:]
    elif len(around) > 1 or spark.catalog.currentCatalog() != SESSION_CATALOG:
        return None
    database = around[0] if around else str(session_catalog(spark).getCurrentDatabase())
    return catalyst(spark, "TableIdentifier")(name, option(spark, database))


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTable:
    """
    The table that a statement changes, as one attempt reads it.

    Its other parts, such as the source of a MERGE, read the same snapshot, else the reads of the
    commit would not be all that it was computed from.

    Args:
        base_uri: The canonical address.
        rows: Returns the rows of the pinned snapshot, the same object at each call.
    """

    base_uri: str
    rows: Callable[[], Any]

    def is_at(self, path: str) -> bool:
        """Return whether a path, in any spelling, is the table's."""
        try:
            return storage_for(path).base_uri == self.base_uri
        except HoodooError:
            return False


# ---- Queries over tables


def names_in(plan: Any, besides: tuple[str, ...] | None = None) -> list[tuple[str, ...]]:
    """Return the names of relations in a parsed plan, also in sub-queries; leave out one relation."""
    found = [tuple(text.split(", ")) for text in _RELATION.findall(str(plan.toString()))]
    if besides in found:
        found.remove(besides)
    return list(dict.fromkeys(found))


@contextmanager
def served(
    spark: Any, names: Iterable[Sequence[str]], pinned: PinnedTable | None = None
) -> Iterator[list[Any]]:
    """
    Let Spark read Hudi tables and views over them by name, while statements are analysed.

    Args:
        spark: The session.
        names: Names of tables and views; others than Hudi's are left to Spark.
        pinned: The table that a statement changes.

    Yields:
        The loaded DataFrames, which keep the leases of their files while they exist.
    """
    tables = _tables_behind(spark, names)
    catalog, loaded, keys = session_catalog(spark), [], []
    for table in tables.values():
        df = load_pinned(spark, table, pinned)
        loaded.append(df)
        with _caching:
            _cached[id(catalog), table.name] += 1
            keys.append(_cache(spark, table, df._jdf.queryExecution().analyzed()))  # noqa: SLF001
    try:
        yield loaded
    finally:
        for name, key in zip(tables, keys, strict=True):
            with _caching:
                _cached[id(catalog), name] -= 1
                if not _cached[id(catalog), name]:  # else a concurrent statement needs it
                    del _cached[id(catalog), name]
                    catalog.invalidateCachedTable(key)


def forget_rows(spark: Any, table: NamedTable) -> None:
    """Make a session with Hudi's bundle drop what the bundle keeps of a table: its files."""
    from hoodoo.spark.formats import has_hudi_bundle

    if table.entry is None or not has_hudi_bundle(spark):
        return
    catalog = session_catalog(spark)
    with _caching:
        if not _cached[id(catalog), table.name]:  # else a concurrent statement needs its plan
            catalog.refreshTable(table.entry.identifier())


def load_named(spark: Any, table: NamedTable, options: Mapping[str, str]) -> Any:
    """Return the rows of a named table; partition columns are its last, as in the catalog."""
    df = load_dataframe(spark, [table.path], {**table.read_options, **options}, warns=False)
    return _as_in_catalog(df, table)


def load_pinned(spark: Any, table: NamedTable, pinned: PinnedTable | None) -> Any:
    """Return the rows of a table that a statement reads: of the pinned snapshot if it is that table."""
    if pinned is None or table.is_read_optimized or not pinned.is_at(table.path):
        return load_named(spark, table, {})
    return _as_in_catalog(pinned.rows(), table)


def _as_in_catalog(df: Any, table: NamedTable) -> Any:
    named = [] if table.entry is None else listed_seq(table.entry.partitionColumnNames())
    last = [str(name) for name in named if str(name) in df.columns]
    order = [*(name for name in df.columns if name not in last), *last]
    ordered = df if order == df.columns else df.select(*(f"`{name}`" for name in order))
    return as_declared(ordered, table.declared)


def _tables_behind(spark: Any, names: Iterable[Sequence[str]]) -> dict[str, NamedTable]:
    """Return the Hudi tables of names, and those that the named views read."""
    found: dict[str, NamedTable] = {}
    waiting, seen = [tuple(parts) for parts in names], set()
    while waiting:
        parts = waiting.pop()
        if parts in seen or is_path_name(parts):
            continue
        seen.add(parts)
        table = find_table(spark, parts)
        if table is not None:
            found[table.name] = table
        else:
            waiting += _names_in_view(spark, parts)
    return found


def is_view_of_tables(spark: Any, parts: Sequence[str], *, by_text: bool) -> bool:
    """Return whether a view names Hudi tables; any temporary one counts, unless ``by_text``."""
    is_temporary = len(parts) == 1 and session_catalog(spark).getTempView(parts[0]).isDefined()
    return (is_temporary and not by_text) or bool(_tables_behind(spark, [parts]))


def _names_in_view(spark: Any, parts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the names in the text of a view, with its own database; empty for others."""
    catalog = session_catalog(spark)
    temporary = catalog.getRawTempView(parts[0]) if len(parts) == 1 else None
    if len(parts) == 2 and parts[0].lower() == _GLOBAL_VIEWS:
        temporary = catalog.getRawGlobalTempView(parts[1])
    if temporary is not None and temporary.isDefined():
        entry = temporary.get().tableMeta()
    else:
        entry = find_entry(spark, parts)
    text = None if entry is None else value_of(entry.viewText())
    if text is None:
        return []
    around = [str(one) for one in listed_seq(entry.viewCatalogAndNamespace())]
    return [
        name if len(name) > 1 or not around else (*around, *name)
        for name in names_in(parse_plan(spark, text))
    ]


# ---- Temporary views of loads, whose rows ``REFRESH TABLE`` loads again

_LOAD: Final = "_hoodoo_load"  # of a DataFrame
_LOADED_VIEWS: Final = "_hoodoo_loaded_views"  # of a session: loads and plans by names of views


def with_load(df: Any, load: Callable[[], Any]) -> Any:
    """Return a loaded DataFrame, which remembers how to load it again for views that show it."""
    setattr(df, _LOAD, load)
    return df


def remember_view(df: Any, name: str) -> None:
    """Remember the load that a new temporary view shows, if the DataFrame is one."""
    spark, load = df.sparkSession, getattr(df, _LOAD, None)
    if load is not None:
        views = getattr(spark, _LOADED_VIEWS, {})
        setattr(spark, _LOADED_VIEWS, {**views, name.casefold(): (load, _plan_of(spark, name))})


def refresh_view(spark: Any, parts: Sequence[str]) -> bool:
    """
    Load the rows of a temporary view again, as ``REFRESH TABLE`` does with Java Hudi's relation.

    Returns:
        Whether the view shows a load. A view of a DataFrame that was derived from one does not.
    """
    name = ".".join(parts)
    load, plan = getattr(spark, _LOADED_VIEWS, {}).get(name.casefold(), (None, None))
    if load is None or not plan.equals(_plan_of(spark, name)):  # replaced meanwhile
        return False
    with_load(load(), load).createOrReplaceTempView(name)
    return True


def _plan_of(spark: Any, view: str) -> Any:
    entry = session_catalog(spark).getRawTempView(view)
    return value_of(entry.get().plan()) if entry.isDefined() else None


def _cache(spark: Any, table: NamedTable, plan: Any) -> Any:
    """Give the session catalog the plan of a table; return its key, whose class differs by version."""
    ident = table.entry.identifier()
    name = (value_of(ident.database()), ident.table())
    for kind, parts in (
        ("QualifiedTableName", name),
        ("QualifiedTableName", (SESSION_CATALOG, *name)),
        ("FullQualifiedTableName", (SESSION_CATALOG, *name)),
    ):
        try:
            key = catalyst(spark, kind)(*parts)
            session_catalog(spark).cacheTable(key, plan)
        except (TypeError, Py4JError):  # no such class, constructor or method
            continue
        return key
    raise StorageCapabilityError(
        f"this release of hoodoo cannot give tables to Spark {spark.version} by name: load the path",
        missing="session catalog",
    )


# ---- Entries of the session catalog

_OUTPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
_SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"


def default_path(spark: Any, ident: Any) -> str:
    """Return the path of a table in the warehouse, for a table without LOCATION."""
    return _plain(spark, session_catalog(spark).defaultTablePath(ident))


def _plain(spark: Any, uri: Any) -> str:
    """Return the path of a URI, in which spaces and letters are not percent-encoded."""
    return str(java_class(spark, "org.apache.hadoop.fs.Path")(uri).toString())


def new_entry(
    spark: Any,
    ident: Any,
    *,
    path: str,
    provider: str,
    schema: Any,
    partition_columns: Sequence[str],
    properties: Mapping[str, str],
    table_type: str,
    is_managed: bool,
    comment: str | None,
) -> Any:
    """
    Return a session catalog entry as Java Hudi makes it.

    Args:
        ident: Its identifier, with the database.
        path: The table's path.
        provider: ``hudi`` or ``hoodoo``.
        schema: The Spark schema, with meta columns; partition columns are its last.
        properties: The table properties.
        table_type: ``COPY_ON_WRITE`` or ``MERGE_ON_READ``.
        is_managed: Whether DROP TABLE deletes the files.
        comment: The table's comment.
    """
    kinds = catalyst(spark, "catalog.CatalogTableType")
    kind = kinds.MANAGED() if is_managed else kinds.EXTERNAL()
    uri = java_class(spark, "org.apache.hadoop.fs.Path")(path).toUri()
    storage = copied(
        catalyst(spark, "catalog.CatalogStorageFormat").empty(),
        locationUri=option(spark, uri),
        inputFormat=option(spark, INPUT_FORMATS[table_type]),
        outputFormat=option(spark, _OUTPUT),
        serde=option(spark, _SERDE),
        properties=scala_map(spark, {"path": path}),
    )
    made = _with_defaults(spark, [ident, kind, storage, java_type(spark, schema)])
    return copied(
        made,
        provider=option(spark, provider),
        partitionColumnNames=scala_seq(spark, list(partition_columns)),
        createVersion=str(spark.version),
        properties=scala_map(spark, properties),
        comment=option(spark, comment),
    )


def _with_defaults(spark: Any, values: list[Any]) -> Any:
    """Return an entry of Spark's catalog: the given values, then the class's own defaults."""
    made = catalyst(spark, "catalog.CatalogTable")
    loader = values[0].getClass().getClassLoader()
    constructors = loader.loadClass(made._fqn).getConstructors()  # noqa: SLF001
    count = max(one.getParameterCount() for one in constructors)
    numbers = range(len(values) + 1, count + 1)
    return made(*values, *(getattr(made, f"apply$default${number}")() for number in numbers))


def create_entry(spark: Any, entry: Any) -> None:
    """
    Add an entry to the session catalog.

    Raises:
        InvalidInputError: The catalog has the name, or no such database.
    """
    from pyspark.errors import AnalysisException

    catalog = session_catalog(spark)
    ident = entry.identifier()
    if not catalog.tableExists(ident) and create_in_hive(spark, catalog, entry):
        return
    try:
        catalog.createTable(entry, False, False)
    except AnalysisException as error:
        raise InvalidInputError(
            f"Spark's catalog refused the table's name: {first_line(error)}", kind="catalog_entry"
        ) from error


def change_columns(spark: Any, entry: Any, schema: Any) -> None:
    """
    Give an entry other columns.

    Args:
        entry: Its partition columns stay.
        schema: All columns, a Spark schema.

    Raises:
        AnalysisException: The metastore refuses them.
    """
    partitions = {str(name) for name in listed_seq(entry.partitionColumnNames())}
    data = StructType([one for one in schema.fields if one.name not in partitions])
    ident = entry.identifier()
    external = session_catalog(spark).externalCatalog()
    external.alterTableDataSchema(value_of(ident.database()), ident.table(), java_type(spark, data))

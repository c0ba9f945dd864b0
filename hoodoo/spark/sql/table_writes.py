"""DataFrames into tables by their names: ``saveAsTable``, ``insertInto``, ``writeTo``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.readwriter import DataFrameWriterV2

from filegroups.schema.schema import META_COLUMNS
from filegroups.writing.write_request import CommitResult
from hoodoo.spark.formats import remember_result, serves
from hoodoo.spark.options import check_others, layers_for
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.sql.alterations import refresh_columns
from hoodoo.spark.sql.changes import Insertion, insert_rows
from hoodoo.spark.sql.definitions import (
    TableDefinition,
    create_new,
    partition_fields,
    partition_transform,
    partitions_last,
    register,
)
from hoodoo.spark.sql.names import NamedTable, find_entry, find_table, identifier
from hoodoo.spark.sql.statements import name_parts
from hoodoo.spark.write import save_dataframe, table_exists
from timeline.errors import InvalidInputError


def save_as_table(
    df: Any,
    name: str,
    provider: str,
    options: Mapping[str, object],
    *,
    mode: str | None,
    partition_by: Sequence[str],
) -> CommitResult | None:
    """
    Save a DataFrame to a table by its name, as ``saveAsTable``; create table and entry if missing.

    Args:
        df: The rows; columns are found by their names.
        name: The name in Spark's session catalog.
        provider: The format.
        options: Values by Hudi's option keys; ``path`` is the location of a new table.
        mode: A save mode; None is ``errorifexists``.
        partition_by: Columns of the partition path of a new table.

    Raises:
        InvalidInputError: The catalog has the name and the mode forbids it (``table_exists``), the
            name is that of another catalog (``catalog_entry``), or as ``save_dataframe``.
    """
    spark = df.sparkSession
    parts = name_parts(spark, name)
    named = find_table(spark, parts)
    chosen = (mode or "error").lower()
    if named is not None:
        if chosen == "ignore":
            return None
        if chosen in ("append", "overwrite"):
            given = {**named.options, **options}
            result = save_dataframe(df, named.path, given, mode=chosen, partition_by=partition_by)
            _refresh_entry(spark, named, df.columns)
            return result
    if named is not None:
        raise InvalidInputError(
            f"Spark's catalog has this name: save with mode append or overwrite: {name}",
            kind="table_exists",
        )
    if find_entry(spark, parts) is not None:
        raise InvalidInputError(
            f"Spark's catalog has this name for a view or a table of another format: DROP it "
            f"first, or choose another name: {name}",
            kind="table_exists",
        )
    definition = _definition(spark, name, provider, options, partition_by)
    path = definition.address(spark)
    is_new = not table_exists(path, layers_for(spark, options, warns=False))
    own = df.drop(*META_COLUMNS)
    if is_new:
        order = partitions_last(own.schema, partition_fields(spark, definition)).names
        own = own.select(*(f"`{one}`" for one in order))
    result = save_dataframe(own, path, definition.options(is_new=is_new), mode=mode)
    register(spark, definition)
    return result


def _refresh_entry(spark: Any, named: NamedTable, columns: Sequence[str]) -> None:
    """Give an entry the columns of its table, if rows with other columns were saved."""
    known = {name.casefold() for name in named.entry.schema().fieldNames()}
    if not {name.casefold() for name in columns} <= known | {*META_COLUMNS}:
        with SparkTable(spark, named.path, named.options) as table:
            refresh_columns(spark, named, table)


def table_of_stream(
    df: Any,
    name: str,
    provider: str | None,
    options: Mapping[str, object],
    partition_by: Sequence[str],
) -> NamedTable | None:
    """
    Return the table into which a stream writes by its name; create table and entry if missing.

    Args:
        df: The streaming rows; a new table has their columns.
        name: The name in Spark's session catalog.
        provider: The format; None for that of an existing table.
        options: Options of a new table.
        partition_by: Columns of the partition path of a new table.

    Returns:
        None for tables and formats of others.

    Raises:
        InvalidInputError: As ``new_named_table``.
    """
    spark = df.sparkSession
    parts = name_parts(spark, name)
    named = find_table(spark, parts)
    is_ours = provider is not None and serves(spark, provider)
    if named is None and is_ours and find_entry(spark, parts) is None:
        columns = df.drop(*META_COLUMNS).schema
        new_named_table(
            spark, name, str(provider), options, columns=columns, partition_by=partition_by
        )
        named = find_table(spark, parts)
    return named


def new_named_table(
    spark: Any,
    name: str,
    provider: str,
    options: Mapping[str, object],
    *,
    columns: Any = None,
    partition_by: Sequence[str] = (),
) -> None:
    """
    Add an entry for the table of a path; create the table there if it is missing.

    Args:
        spark: The session.
        name: The name in Spark's session catalog.
        provider: The format.
        options: Table properties by their names in SQL or by Hudi's keys; ``path`` is the location.
        columns: Spark's schema of a new table; None if it must exist.
        partition_by: Columns of the partition path of a new table.

    Raises:
        InvalidInputError: The name is that of another catalog or is taken (``catalog_entry``), the
            table is missing and has no columns (``table_not_found``), or as ``create_new``.
    """
    definition = _definition(spark, name, provider, options, partition_by)
    path = definition.address(spark)
    if table_exists(path, layers_for(spark, definition.options(is_new=False), warns=False)):
        register(spark, definition)
    elif columns is None or not columns.fields:
        raise InvalidInputError(
            f"there is no Hudi table at the path, and the call has no columns: {path}",
            kind="table_not_found",
        )
    else:
        create_new(spark, definition, columns)


def _definition(
    spark: Any,
    name: str,
    provider: str,
    options: Mapping[str, object],
    partition_by: Sequence[str],
) -> TableDefinition:
    ident = identifier(spark, name_parts(spark, name))
    if ident is None:
        raise InvalidInputError(
            f"Hudi tables have names in Spark's session catalog only: {name}", kind="catalog_entry"
        )
    given = {key: str(value) for key, value in options.items()}
    paths = [given.pop(key) for key in list(given) if key.lower() == "path"]
    return TableDefinition(
        ident=ident,
        provider=provider.lower().rpartition(".")[2],
        path=paths[0] if paths else None,
        properties=given,
        partitions=tuple(partition_by),
    )


def insert_into(df: Any, name: str, options: Mapping[str, object], how: Insertion) -> bool:
    """
    Insert a DataFrame into a Hudi table by its name.

    Args:
        df: The rows.
        name: The name.
        options: Options of the write, which go before those of the entry.
        how: How the rows go into the table.

    Returns:
        False for tables of other formats.
    """
    spark = df.sparkSession
    named = find_table(spark, name_parts(spark, name))
    if named is None:
        return False
    check_others(spark, options)
    given = {**named.options, **options}
    with SparkTable(spark, named.path, given, declared=named.declared) as table:
        result = insert_rows(table, df, how)
    remember_result(spark, result)
    return True


class HoodooWriterV2(DataFrameWriterV2):
    """Spark's ``df.writeTo(table)``; hoodoo serves its own tables."""

    def __init__(self, df: Any, table: str) -> None:
        super().__init__(df, table)
        self._told_name = table
        self._told_provider: str | None = None
        self._told_options: dict[str, object] = {}
        self._told_partitions: list[str] = []

    def using(self, provider: str) -> Any:
        self._told_provider = provider
        return super().using(provider)

    def option(self, key: str, value: Any) -> Any:
        self._told_options[key] = value
        return super().option(key, value)

    def options(self, **options: Any) -> Any:
        self._told_options |= options
        return super().options(**options)

    def tableProperty(self, property: str, value: str) -> Any:  # noqa: N802, A002 - Spark's names
        self._told_options[property] = value
        return super().tableProperty(property, value)

    def partitionedBy(self, col: Any, *cols: Any) -> Any:  # noqa: N802
        names = [str(one._jc.toString()) for one in (col, *cols)]  # noqa: SLF001
        transforms = [name for name in names if name.endswith(")")]
        if transforms and self._is_ours():
            raise partition_transform(", ".join(transforms))
        self._told_partitions += names
        return super().partitionedBy(col, *cols)

    def create(self) -> None:
        """Create the table from the rows."""
        if not self._is_ours():
            super().create()
            return
        remember_result(
            self._spark,
            save_as_table(
                self._df,
                self._told_name,
                str(self._told_provider),
                self._told_options,
                mode="error",
                partition_by=self._told_partitions,
            ),
        )

    def replace(self) -> None:
        """Refuse a replaced table of hoodoo."""
        self._refuse_replace()
        super().replace()

    def createOrReplace(self) -> None:  # noqa: N802
        """Create the table; refuse to replace one of hoodoo."""
        parts = name_parts(self._spark, self._told_name)
        if self._is_ours() and find_entry(self._spark, parts) is None:
            self.create()
            return
        self._refuse_replace()
        super().createOrReplace()

    def append(self) -> None:
        """Insert the rows; columns are found by their names."""
        how = Insertion(by_name=True)
        if not insert_into(self._df, self._told_name, self._told_options, how):
            super().append()

    def overwritePartitions(self) -> None:  # noqa: N802
        """Replace the partitions of the rows."""
        how = Insertion(by_name=True, overwrites=True, is_dynamic=True)
        if not insert_into(self._df, self._told_name, self._told_options, how):
            super().overwritePartitions()

    def overwrite(self, condition: Any) -> None:
        """Refuse to replace the rows of a condition in a table of hoodoo."""
        if find_table(self._spark, name_parts(self._spark, self._told_name)) is not None:
            raise InvalidInputError(
                "writeTo(...).overwrite(condition) is not supported on Hudi tables: use "
                "overwritePartitions(), or MERGE INTO",
                kind="unsupported_spark_call",
                call="overwrite",
            )
        super().overwrite(condition)

    def _is_ours(self) -> bool:
        return serves(self._spark, self._told_provider)

    def _refuse_replace(self) -> None:
        named = find_table(self._spark, name_parts(self._spark, self._told_name))
        if named is not None or self._is_ours():
            raise InvalidInputError(
                "a Hudi table is not replaced by writeTo: drop it and create it, or replace its rows "
                "by df.write.mode('overwrite').saveAsTable(name)",
                kind="unsupported_spark_call",
                call="replace",
            )

"""Save a DataFrame to a table: save modes, and the first save, which creates the table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from filegroups.reading.read_set import ReadSet
from filegroups.schema.schema import TableSchema
from filegroups.settings.settings import WriteSettings
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write_request import CommitResult
from filegroups.writing.write_schema import schema_for
from hoodoo.catalog import create_table, delete_unwritten_table, drop_table, new_table_config
from hoodoo.configuration import Layers
from hoodoo.factory import compose_ports, open_context, properties_of_table
from hoodoo.spark.few_rows import collect_few
from hoodoo.spark.options import layers_for, reader_properties, storage_properties
from hoodoo.spark.schema import arrow_schema_of
from hoodoo.spark.slices import ReadReplacements, ReadSlices
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.workload import SparkWorkload
from hoodoo.write_requests import operation_of, write_request_of
from timeline.errors import InvalidInputError, SchemaConflictError, SettingError, TableNotFoundError
from timeline.model.commit_metadata import WriteOperation
from timeline.properties.setting_enums import OverwriteMode

# ---- Saving a DataFrame to a table: modes, the first save that creates it, and the operation
# As in Hudi's DataFrame writer, the options name keys, partitions and the operation. The first
# save creates the table from them; each later save is checked against the table. One difference,
# which the documentation names: mode ``overwrite`` replaces the rows by an insert_overwrite_table
# instead of deleting the folder, so readers and time travel keep working. Only if the options or
# the columns cannot be those of the table, it drops the table and creates another one.

_PARTITION_KEY = "hoodie.datasource.write.partitionpath.field"
_COMBINE_KEY = "hoodie.combine.before.insert"
_OPERATION_KEY = "hoodie.datasource.write.operation"
_PAYLOAD_KEYS = frozenset(
    {"hoodie.datasource.write.payload.class", "hoodie.compaction.payload.class"}
)
_EMPTY_PAYLOAD = "EmptyHoodieRecordPayload"
_LOCAL = re.compile("^file:/+")
#: In the text of a plan of Spark: the tasks and the data sources that read tables.
_SOURCES = (
    *(work.__name__ for work in (ReadSlices, ReadReplacements)),
    "] hoodoo",
    "] hudi",
    "] org.apache.hudi",
)
_MODES = {
    "append": "append",
    "overwrite": "overwrite",
    "ignore": "ignore",
    "error": "errorifexists",
    "errorifexists": "errorifexists",
    "default": "errorifexists",
}


def save_dataframe(
    df: Any,
    path: str,
    options: Mapping[str, object],
    *,
    mode: str | None = None,
    partition_by: Sequence[str] = (),
    batch_id: str | None = None,
    reads: ReadSet | None = None,
    metadata: Mapping[str, str] | None = None,
    layers: Layers | None = None,
) -> CommitResult | None:
    """
    Save a DataFrame as Spark's writer does, and create the table if it is missing.

    Args:
        df: The rows.
        path: The table's path.
        options: Values by Hudi's option keys.
        mode: A save mode; None is ``errorifexists`` as in Spark.
        partition_by: Columns of the partition path for a new table, as of ``partitionBy``.
        batch_id: Idempotency id: a repeated save of the batch returns the first result.
        reads: The read set that the rows were made from (``hoodoo.spark.reads``).
        metadata: More texts for the commit.
        layers: All properties of the caller, instead of the session's and ``options``.

    Returns:
        The result; None if mode ``ignore`` finds a table.

    Raises:
        InvalidInputError: The mode is unknown, the table exists although the mode forbids it, or
            the rows do not fit the table.
        SettingError: An option is wrong or contradicts the table.
        ConflictError: A concurrent commit conflicts with this write; the fields contain the report.
    """
    chosen = _save_mode(mode)
    options = save_options(options)
    if partition_by:
        options = _with_partitions(options, partition_by)
    layers = layers or layers_for(df.sparkSession, options)
    exists = table_exists(path, layers)
    if _skips(path, chosen, exists=exists):
        return None
    settings = WriteSettings.from_properties(layers.load())
    overwriting: WriteOperation | None = None
    if chosen == "overwrite":
        overwriting, layers = _overwriting(settings, layers)

    def write(data: Any) -> CommitResult:
        with SparkTable(df.sparkSession, path, layers=layers) as table:
            operation = overwriting or operation_of(settings)
            return table.write(data, operation, batch_id=batch_id, reads=reads, metadata=metadata)

    whole = (
        overwriting is WriteOperation.INSERT_OVERWRITE_TABLE and overwriting != settings.operation
    )
    replaces = exists and whole and _is_other_table(df, path, layers)
    if exists and not replaces:
        return write(df)
    operation = overwriting or operation_of(settings)
    data = _checked_for_new_table(df, path, layers, operation, at_once=replaces)
    try:
        if replaces:
            _drop(data, path, layers)
        created = _create(df, path, layers)
        if _skips(path, chosen, exists=not created):
            return None
        try:
            return write(data)
        except Exception:
            if created:  # bad rows may show only while they are written, and leave no empty table
                delete_unwritten_table(path, replace(layers, warns=False))
            raise
    finally:
        if isinstance(data, SparkWorkload):
            data.release()


def _save_mode(mode: str | None) -> str:
    chosen = _MODES.get((mode or "errorifexists").lower())
    if chosen is None:
        raise InvalidInputError(
            f"the save mode must be one of {', '.join(_MODES)}, not {mode!r}", kind="save_mode"
        )
    return chosen


def _checked_for_new_table(
    df: Any, path: str, layers: Layers, operation: WriteOperation, *, at_once: bool
) -> Any:
    """
    Check all rows before the table is created, so that bad rows leave no empty table.

    Rows that one pass writes are checked meanwhile, unless ``at_once`` is true.

    Returns:
        The DataFrame, or its rows as the check left them, for the write.
    """
    if operation.traits.deletes_keys or not operation.traits.takes_rows:
        return df
    properties = layers.load()
    settings = WriteSettings.from_properties(properties)
    config = new_table_config(path, settings, arrow_schema_of(df.schema))
    schema = TableSchema.from_avro(config.create_schema_json or "")
    ports, rules = (
        compose_ports(path, properties),
        write_request_of(settings, config, operation).rules,
    )
    rows = collect_few(df, settings.driver_write_bytes_max)
    if rows is not None:
        LocalWorkload(ports, rows).prepare(rules, schema)
        return rows
    workload = SparkWorkload(
        ports,
        df,
        storage_options=storage_properties(properties),
        shuffle_tasks=settings.shuffle_tasks,
        bulk_insert_tasks=settings.bulk_insert_tasks,
    )
    if at_once or not rules.opens_groups_only(is_first=True, fills_small_files=True):
        workload.prepare(rules, schema)
    return workload


def save_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a save that are properties, as hoodoo reads them."""
    return _deleting_by_payload(reader_properties(options))


def _deleting_by_payload(options: dict[str, object]) -> dict[str, object]:
    """Return the options of a delete instead of an upsert by Java's payload class without rows."""
    named = [
        key
        for key, value in options.items()
        if key.lower() in _PAYLOAD_KEYS and str(value).endswith(f".{_EMPTY_PAYLOAD}")
    ]
    operation = next((v for k, v in options.items() if k.lower() == _OPERATION_KEY), "upsert")
    if not named or str(operation).lower() != "upsert":
        return options
    kept = {k: v for k, v in options.items() if k not in named and k.lower() != _OPERATION_KEY}
    return {**kept, _OPERATION_KEY: WriteOperation.DELETE.value}


def _is_other_table(df: Any, path: str, layers: Layers) -> bool:
    """Return whether the options or the columns of the rows cannot be those of the table."""
    columns = arrow_schema_of(df.schema)
    row = pa.Table.from_arrays([pa.nulls(1, each.type) for each in columns], names=columns.names)
    try:
        context, _, settings = open_context(path, replace(layers, warns=False))
        plan = write_request_of(settings, context.config, WriteOperation.INSERT_OVERWRITE_TABLE)
        schema_for(context, context.snapshot(), LocalWorkload(context.ports, row), plan)
    except SettingError as error:
        if error.kind != "setting_against_table":
            raise
        return True
    except (InvalidInputError, SchemaConflictError):
        return True
    return False


def _drop(data: Any, path: str, layers: Layers) -> None:
    """
    Drop the table that the rows replace.

    Raises:
        InvalidInputError: A writer is live or an instant is pending (``writers_at_work``), or the
            rows may be read from the table itself (``overwrites_its_source``).
    """
    of_storage = Layers(code=storage_properties(layers.load()))
    context, _, _ = open_context(path, of_storage)
    if isinstance(data, SparkWorkload) and _may_read(data.df, context.ports.storage.base_uri):
        raise InvalidInputError(
            "these rows are read from the table that they would replace by one with another key "
            "or other columns: save the rows to files first, and overwrite the table from those: "
            f"{path}",
            kind="overwrites_its_source",
            path=path,
        )
    pending = [one.requested_time for one in context.snapshot().active.pending]
    if pending:
        raise InvalidInputError(
            "an instant of the table is pending, so it is not replaced by one with another key or "
            "other columns: wait for its end, or roll it back by 'hoodoo rollback', then repeat: "
            f"{', '.join(pending)}",
            kind="writers_at_work",
            writers=pending,
        )
    drop_table(path, properties=of_storage)
    context.ports.events.emit("spark.table_replaced", path=path)


def _may_read(df: Any, base_uri: str) -> bool:
    """Return whether the rows may come from a table: its files, or a task or a source of hoodoo."""
    root = _LOCAL.sub("/", base_uri).rstrip("/") + "/"
    plan = str(df._jdf.queryExecution().analyzed().toString())  # noqa: SLF001
    return any(name in plan for name in _SOURCES) or any(
        _LOCAL.sub("/", file).startswith(root) for file in df.inputFiles()
    )


def _overwriting(settings: WriteSettings, layers: Layers) -> tuple[WriteOperation, Layers]:
    operation = settings.operation
    if operation.replaces:
        return operation, layers
    if operation is WriteOperation.UPSERT and settings.combine_before_upsert:
        # An overwrite in place of an upsert keeps one row per key of the batch, too.
        layers = layers.with_code({_COMBINE_KEY: "true"})
    if settings.overwrite_mode is OverwriteMode.DYNAMIC:
        return WriteOperation.INSERT_OVERWRITE, layers
    return WriteOperation.INSERT_OVERWRITE_TABLE, layers


def table_exists(path: str, layers: Layers) -> bool:
    """Return whether there is a table at a path."""
    try:
        properties_of_table(path, layers)
    except TableNotFoundError:
        return False
    return True


def _create(df: Any, path: str, layers: Layers) -> bool:
    """Create the table from the options; return False if another writer created it first."""
    try:
        create_table(
            path,
            schema=arrow_schema_of(df.schema),
            name=None if _named(layers) else PurePath(path.rstrip("/")).name,
            properties=replace(layers, warns=False),  # the open table warns
        ).close()
    except InvalidInputError as error:
        if error.kind != "table_exists":
            raise
        return False
    return True


def _named(layers: Layers) -> bool:
    return WriteSettings.from_properties(layers.load()).table_name is not None


def _with_partitions(options: Mapping[str, object], columns: Sequence[str]) -> dict[str, object]:
    asked = ",".join(columns)
    for key, value in options.items():
        if key.lower() == _PARTITION_KEY and str(value) != asked:
            raise InvalidInputError(
                f"partitionBy and the option differ: use one of them: {asked!r}, "
                f"{_PARTITION_KEY}={value!r}",
                kind="setting_contradiction",
            )
    return {**options, _PARTITION_KEY: asked}


def _skips(path: str, mode: str, *, exists: bool) -> bool:
    """Return whether a save does nothing if there is a table; mode ``errorifexists`` refuses it."""
    if exists and mode == "errorifexists":
        raise InvalidInputError(
            f"the path already has a table: save with mode append or overwrite: {path}",
            kind="table_exists",
            path=path,
        )
    return exists and mode == "ignore"

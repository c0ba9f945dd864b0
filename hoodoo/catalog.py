"""Create and open tables by path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

import pyarrow as pa

from filegroups.index.buckets import bucket_properties
from filegroups.keys.keys import key_columns, partition_paths, record_keys
from filegroups.metadata_table.new_partitions import (
    default_partitions,
    makes_metadata_table,
    planned_partitions,
    with_needed,
)
from filegroups.schema.new_table import new_table_properties
from filegroups.schema.schema import TableSchema, missing_fields, refuse_nested_fields
from filegroups.settings.key_settings import (
    key_properties_of,
    key_spec_of,
    merge_definition_of_settings,
)
from filegroups.settings.metadata_settings import MetadataTableSettings
from filegroups.settings.settings import WriteSettings
from filegroups.supported import refuse_unwritable
from filegroups.table import create_table_files
from filegroups.writing.row_checks import refuse_unfit_buckets
from hoodoo.configuration import Layers, PropertySource
from hoodoo.factory import compose_ports, limits_of, open_context
from hoodoo.services import services_of, warn_ignored_keys
from hoodoo.table import Table
from hoodoo.write_requests import bucket_rules
from tableservices.metadata_table.build import build_partitions
from timeline.context import TableContext
from timeline.errors import InvalidInputError, StorageUnavailableError
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import (
    HOODIE,
    PROPERTIES,
    PROPERTIES_BACKUP,
    SLOTS,
    TIMELINE,
    listed,
)
from timeline.model.table_config import TableConfig
from timeline.ports.ports import EventSink, Storage
from timeline.properties.options import PropertySet
from timeline.properties.properties_file import load_config
from timeline.writer_registry import refuse_with_writers, registered_writers

Properties = PropertySource | Sequence[PropertySource] | Layers | None


def to_layers(properties: Properties) -> Layers:
    """Return one source, several sources (later ones win) or none as layers."""
    if properties is None:
        return Layers()
    if isinstance(properties, Layers):
        return properties
    if isinstance(properties, Mapping):
        return Layers(code=properties)
    if isinstance(properties, str | os.PathLike):
        return Layers(props=(properties,))
    return Layers(props=tuple(properties))


def open_with_warnings(
    path: str | os.PathLike[str], layers: Layers, *, events: EventSink | None = None
) -> tuple[TableContext, PropertySet, WriteSettings]:
    """Return the result of ``open_context``, and warn of keys without effect."""
    context, properties, settings = open_context(path, layers, events=events)
    if layers.warns:
        warn_ignored_keys(properties, context.ports.events)
    return context, properties, settings


def open_table(
    path: str | os.PathLike[str],
    *,
    properties: Properties = None,
    events: EventSink | None = None,
) -> Table:
    """
    Open an existing table.

    Args:
        path: Path or URI of the table.
        properties: A properties file, a mapping, or several of them, later ones win.
        events: Receives the events; the logger ``hoodoo`` by default.

    Raises:
        TableNotFoundError: The path holds no table.
        CorruptTableError: The table's properties are damaged.
        UnsupportedTableError: hoodoo does not support the table's version or a feature of it.
        SettingError: A property is wrong or contradicts the table.
    """
    return Table(*open_with_warnings(path, to_layers(properties), events=events))


def create_table(
    path: str | os.PathLike[str],
    *,
    schema: pa.Schema | None = None,
    record_key: Sequence[str] | str | None = None,
    partition_by: Sequence[str] | str | None = None,
    ordering: Sequence[str] | str | None = None,
    table_type: TableType | str | None = None,
    name: str | None = None,
    properties: Properties = None,
    events: EventSink | None = None,
) -> Table:
    """
    Create a table and open it.

    Args:
        path: Path or URI; the folder must not hold a table yet.
        schema: Columns without meta columns; None takes them from the first write.
        record_key: Columns of the record key; none for a table of appended rows without keys.
        partition_by: Columns of the partition path; may be empty.
        ordering: Columns that decide between versions; empty means commit-time ordering.
        table_type: ``COPY_ON_WRITE`` (default) or ``MERGE_ON_READ``.
        name: Table name; the last part of the path by default.
        properties: A properties file, a mapping, or several of them, later ones win.
        events: Receives the events; the logger ``hoodoo`` by default.

    Raises:
        InvalidInputError: A table exists, a named column is not in the schema, or a type is
            not supported.
        SettingError: A property is wrong.
    """
    layers, settings, planned = preview_create(
        path,
        schema=schema,
        record_key=record_key,
        partition_by=partition_by,
        ordering=ordering,
        table_type=table_type,
        name=name,
        properties=properties,
    )
    # The lock needs the new table's own properties, as after opening it: its name names the lock.
    ports = compose_ports(path, layers.load(planned.raw), events=events)
    _refuse_other_table(ports.storage)
    limits = limits_of(settings, layers.load())
    context = create_table_files(ports, planned.raw, limits).context
    if makes_metadata_table(layers.load(), enabled=settings.metadata_enable):
        own = MetadataTableSettings.from_properties(layers.load())
        build_partitions(context, default_partitions(context.config, own), own)
        context = TableContext.of(ports, load_config(ports.storage), limits)
    properties = layers.load(context.config.raw)
    if layers.warns:
        warn_ignored_keys(properties, ports.events)
    return Table(context, properties, settings)


def _refuse_other_table(storage: Storage) -> None:
    """Refuse the folder of a table of another format: a drop of the new table would delete both."""
    found = None
    if storage.names("_delta_log"):
        found = "Delta"
    elif any(name.endswith(".metadata.json") for name in storage.names("metadata")):
        found = "Iceberg"
    if found is not None:
        raise InvalidInputError(
            f"the folder has a table of {found}: create the Hudi table in another folder, or read "
            f"the rows by the format {found.lower()}: {storage.base_uri}",
            kind="table_exists",
            path=storage.base_uri,
        )


def delete_unwritten_table(path: str | os.PathLike[str], properties: Properties) -> None:
    """
    Delete a table that this process has just created, after its first write failed.

    It stays if any write began or another writer is registered. A writer that begins meanwhile
    gets ``TableReplacedError``.

    Args:
        path: Path or URI.
        properties: As of ``create_table``.
    """
    layers = to_layers(properties)
    context, _, _ = open_context(path, layers)
    storage = context.ports.storage
    if storage.names(TIMELINE) or storage.names(SLOTS) or registered_writers(context):
        return
    storage.delete(PROPERTIES)
    storage.delete_folder(HOODIE)


def drop_table(path: str | os.PathLike[str], *, properties: Properties = None) -> None:
    """
    Delete a table with everything in its folder.

    Its properties are deleted first, so an interrupted drop leaves no readable table. A writer that
    has the table open gets ``TableReplacedError`` (SLOT-9).

    Args:
        path: Path or URI.
        properties: As of ``open_table``.

    Raises:
        TableNotFoundError: The path holds no table.
        InvalidInputError: A writer of the table is live (``writers_at_work``).
        StorageUnavailableError: A file cannot be deleted; the rest must be deleted by hand.
    """
    context, _, _ = open_context(path, to_layers(properties))
    refuse_with_writers(context)
    storage = context.ports.storage
    storage.delete(PROPERTIES_BACKUP)
    storage.delete(PROPERTIES)
    try:
        entries = storage.list("")
        folders = {HOODIE, *(entry.name for entry in entries if entry.is_folder)}
        context.ports.for_each(storage.delete_folder, sorted(folders))
        files = [entry.name for entry in entries if not entry.is_folder]
        context.ports.for_each(storage.delete, files)
    except StorageUnavailableError as error:
        raise StorageUnavailableError(
            f"the table is dropped, delete the rest of its folder by hand: {error.message}"
        ) from error
    root = storage.capabilities.local_root
    if root is not None:
        with suppress(OSError):  # another process put a file there
            Path(root).rmdir()


def preview_create(
    path: str | os.PathLike[str],
    *,
    schema: pa.Schema | None = None,
    record_key: Sequence[str] | str | None = None,
    partition_by: Sequence[str] | str | None = None,
    ordering: Sequence[str] | str | None = None,
    table_type: TableType | str | None = None,
    name: str | None = None,
    properties: Properties = None,
) -> tuple[Layers, WriteSettings, TableConfig]:
    """Return the plan of ``create_table``, without any change. Errors: as ``create_table``."""
    layers = to_layers(properties)
    options = {
        "hoodie.datasource.write.recordkey.field": _listed(record_key),
        "hoodie.datasource.write.partitionpath.field": _listed(partition_by),
        "hoodie.datasource.write.precombine.field": _listed(ordering),
        "hoodie.datasource.write.table.type": table_type,
        "hoodie.table.name": name,
    }
    layers = layers.with_code({key: value for key, value in options.items() if value})
    settings = WriteSettings.from_properties(layers.load())
    if schema is not None and not isinstance(schema, pa.Schema):
        raise InvalidInputError(
            f"a schema must be a pyarrow.Schema, not {type(schema).__name__}: pass one",
            kind="schema",
        )
    planned = new_table_config(path, settings, schema)
    # An option that ``open_table`` would refuse must fail before the table exists.
    services_of(layers.load(), settings=settings)
    if makes_metadata_table(layers.load(), enabled=settings.metadata_enable):
        own = MetadataTableSettings.from_properties(layers.load())
        wanted = with_needed(default_partitions(planned, own), planned, own)
        planned_partitions(wanted, planned, own, avro_json=planned.create_schema_json, rows={})
    if settings.own_buckets is not None:
        refuse_unfit_buckets(settings, settings.own_buckets)
    return layers, settings, planned


def new_table_config(
    path: str | os.PathLike[str], settings: WriteSettings, schema: pa.Schema | None
) -> TableConfig:
    """
    Return the configuration of a new table, before any file of it exists.

    Args:
        path: Path of the new table; its last part is the name if no option gives one.
        settings: The caller's settings.
        schema: Columns without meta columns; None takes them from the first write.

    Raises:
        InvalidInputError: A named column is not in the schema, a type is not supported, or
            the settings cannot build keys and partition paths from the columns.
        UnsupportedTableError: This release cannot write this kind of table.
    """
    named = settings.table_name or PurePath(os.fspath(path).rstrip("/")).name
    create_schema = None
    if schema is not None:
        _refuse_missing(settings, schema)
        create_schema = TableSchema.from_arrow(_stored(settings, schema), named)
    planned = TableConfig.from_properties(
        new_table_properties(
            named,
            database=settings.database or "default",
            table_type=settings.table_type,
            table_version=settings.table_version,
            record_key_fields=settings.record_key_fields,
            partition_fields=settings.partition_fields,
            merge=merge_definition_of_settings(settings),
            hive_style=settings.hive_style_partitioning,
            url_encode=settings.url_encode_partitioning,
            key_generator_type=settings.effective_key_generator.value,
            partition_types=settings.partition_types,
            populate_meta_fields=settings.populate_meta_fields,
            partition_metafile_base_format=settings.partition_metafile_base_format,
            drop_partition_columns=settings.drop_partition_columns,
            change_log=settings.change_log_mode if settings.change_logs else None,
            key_properties=key_properties_of(settings),
            timeline_timezone=settings.timeline_zone,
            create_schema_json=create_schema.avro_json if create_schema is not None else None,
        )
    )
    refuse_unwritable(planned)
    if schema is not None:
        # A trial on zero rows: refuse to create a table that no row fits into.
        keys = key_spec_of(settings, planned)
        stored = create_schema.arrow if create_schema is not None else schema
        named = key_columns(schema.empty_table(), keys, stored)
        record_keys(named, keys)
        partition_paths(named, keys)
    buckets = bucket_rules(settings, planned)
    if buckets is not None:
        return TableConfig.from_properties({**planned.raw, **bucket_properties(buckets)})
    return planned


def _listed(names: Sequence[str] | str | None) -> str:
    return names if isinstance(names, str) else ",".join(listed(names or (), "columns"))


def _stored(settings: WriteSettings, schema: pa.Schema) -> pa.Schema:
    """Return the columns that data files store."""
    if not settings.drop_partition_columns:
        return schema
    return pa.schema([each for each in schema if each.name not in settings.partition_fields])


def _refuse_missing(settings: WriteSettings, schema: pa.Schema) -> None:
    wanted = (
        *settings.record_key_fields,
        *settings.partition_fields,
        *settings.ordering_fields,
    )
    missing = missing_fields(schema, wanted)
    if missing:
        raise InvalidInputError(
            "the schema lacks columns that the table needs as key, partition or ordering: "
            f"{missing}. Add them; it has {list(schema.names)}",
            kind="missing_key_column",
            columns=missing,
        )
    refuse_nested_fields(schema, wanted)

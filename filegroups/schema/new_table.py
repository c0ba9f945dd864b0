"""
The properties of a new table: exactly Java Hudi's own.

Version 8 follows Java 1.0.2 and version 9 follows Java 1.2.0 (format 1.1 and 11.1), tested against
tables they made. Names are checked here, because later they become parts of paths, record keys and
Avro names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.commit_metadata import CdcMode, MergeMode, TableType
from timeline.model.merge_definition import (
    MergeDefinition,
    version_8_merging,
    version_9_merging,
)
from timeline.model.table_config import LAYOUT_OF_VERSION, table_checksum

RESERVED_COLUMN_PREFIX: Final = "_hoodie_"
"""Columns of this prefix belong to Hudi and never to a key."""

_NAME_CHARACTERS_MAX: Final = 255
_WRITABLE_VERSIONS: Final = (8, 9)
_BY_COMMIT_TIME: Final = MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING)


def new_table_properties(
    name: str,
    *,
    database: str = "default",
    table_type: TableType = TableType.COPY_ON_WRITE,
    table_version: int = 9,
    record_key_fields: tuple[str, ...] = (),
    partition_fields: tuple[str, ...] = (),
    merge: MergeDefinition = _BY_COMMIT_TIME,
    hive_style: bool = False,
    url_encode: bool = False,
    key_generator_type: str | None = None,
    partition_types: tuple[str | None, ...] = (),
    populate_meta_fields: bool = True,
    partition_metafile_base_format: bool = False,
    drop_partition_columns: bool = False,
    change_log: CdcMode | None = None,
    key_properties: Mapping[str, str] | None = None,
    timeline_timezone: str = "UTC",
    create_schema_json: str | None = None,
) -> dict[str, str]:
    """
    Build the content of `hoodie.properties` for a table that is about to be created.

    Args:
        name: The table's name.
        database: Its database; enters the checksum.
        table_type: How updates are stored.
        table_version: 8 or 9.
        record_key_fields: Columns of the record key; none for an append-only table.
        partition_fields: Columns of the partition path; none for a table in one folder.
        merge: All settings of merging; version 8 has at most one ordering field.
        hive_style: Whether partition folders are named `field=value`.
        url_encode: Whether partition values are percent-encoded in paths.
        key_generator_type: Hudi's enum name; the default follows from the number of fields.
        partition_types: For each partition field of a CUSTOM key generator.
        populate_meta_fields: Whether records carry the meta columns.
        partition_metafile_base_format: Whether a partition's metadata file is a Parquet file.
        drop_partition_columns: Whether files leave out partition columns.
        change_log: The content of CDC logs with base files; None for no logs.
        key_properties: Further properties of the key generator, for example time formats.
        timeline_timezone: ``UTC``, or ``LOCAL`` for the zone of each writer's process.
        create_schema_json: Avro schema of the table without meta columns, if known already.

    Raises:
        InvalidInputError: A name is empty or too long, or contains a slash or a control character.
            A column repeats or is reserved, or the schema is not a JSON record. Event time lacks an
            ordering field. The version is neither 8 nor 9.
        UnsupportedTableError: The merge mode is CUSTOM.
    """
    if table_version not in _WRITABLE_VERSIONS:
        raise _refused("table_version", "new tables are of version 8 or 9", table_version)
    _check_name("table name", name)
    _check_name("database", database or "default")
    for what, fields in (
        ("record key field", record_key_fields),
        ("partition field", partition_fields),
        ("ordering field", merge.ordering_fields),
    ):
        _check_fields(what, fields)
    _check_merge(merge, table_version)
    properties = {
        "hoodie.table.name": name,
        "hoodie.database.name": database,
        "hoodie.table.checksum": table_checksum(name, database),
        "hoodie.table.type": table_type.value,
        "hoodie.table.version": str(table_version),
        "hoodie.table.initial.version": str(table_version),
        "hoodie.timeline.layout.version": str(LAYOUT_OF_VERSION[table_version]),
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        "hoodie.table.timeline.timezone": timeline_timezone,
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.multiple.base.file.formats.enable": "false",
        "hoodie.partition.metafile.use.base.format": _flag(partition_metafile_base_format),
        "hoodie.table.cdc.enabled": _flag(change_log is not None),
        "hoodie.populate.meta.fields": _flag(populate_meta_fields),
        "hoodie.table.partition.fields": ",".join(_typed(partition_fields, partition_types)),
        "hoodie.table.keygenerator.type": key_generator_type
        or _fitting_key_generator(record_key_fields, partition_fields),
        "hoodie.datasource.write.hive_style_partitioning": _flag(hive_style),
        "hoodie.datasource.write.partitionpath.urlencode": _flag(url_encode),
        "hoodie.datasource.write.drop.partition.columns": _flag(drop_partition_columns),
        **(key_properties or {}),
    }
    if change_log is not None:
        properties["hoodie.table.cdc.supplemental.logging.mode"] = change_log.value
    if record_key_fields:
        properties["hoodie.table.recordkey.fields"] = ",".join(record_key_fields)
    if table_version == 8:
        properties |= version_8_merging(merge)
    else:
        properties |= version_9_merging(merge)
        properties |= _version_9_only(partition_fields, hive_style=hive_style)
    if create_schema_json is not None:
        _check_schema(create_schema_json)
        properties["hoodie.table.create.schema"] = create_schema_json
    return properties


def _version_9_only(partition_fields: tuple[str, ...], *, hive_style: bool) -> dict[str, str]:
    only = {"hoodie.table.format": "native"}
    # Only Java's Hive sync reads the extractor. Its value for one plain field was never measured,
    # and 1.1.1 writes none at all, so that case is left out.
    if len(partition_fields) != 1:
        extractor = "MultiPartKeysValueExtractor"
    elif hive_style:
        extractor = "HiveStylePartitionValueExtractor"
    else:
        return only
    only["hoodie.table.partition_extractor_class"] = f"org.apache.hudi.hive.{extractor}"
    return only


def _typed(fields: tuple[str, ...], types: tuple[str | None, ...]) -> list[str]:
    if not any(types):
        return list(fields)
    return [f"{name}:{kind}" for name, kind in zip(fields, types, strict=True)]


def _fitting_key_generator(keys: tuple[str, ...], partitions: tuple[str, ...]) -> str:
    if not partitions:
        return "NON_PARTITION"
    return "SIMPLE" if len(keys) <= 1 and len(partitions) == 1 else "COMPLEX"


def _check_merge(merge: MergeDefinition, table_version: int) -> None:
    if merge.mode is MergeMode.CUSTOM:
        raise UnsupportedTableError(
            "custom merge modes are not supported, choose event or commit time ordering: CUSTOM",
            kind="merge_mode",
        )
    if merge.mode is MergeMode.EVENT_TIME_ORDERING and not merge.ordering_fields:
        raise _refused("merge_mode", "event time ordering needs an ordering field", "none given")
    if table_version == 8 and len(merge.ordering_fields) > 1:
        raise _refused(
            "ordering_fields",
            "version 8 knows one ordering field, choose one or version 9",
            ",".join(merge.ordering_fields),
        )


def _check_fields(what: str, fields: tuple[str, ...]) -> None:
    for field in fields:
        _check_name(what, field)
        if any(one in field for one in ",:"):
            raise _refused(what, f"a {what} must not contain a comma or colon", field)
        if field.startswith(RESERVED_COLUMN_PREFIX):
            raise _refused(what, f"columns named {RESERVED_COLUMN_PREFIX}* are reserved", field)
    if len(set(fields)) != len(fields):
        raise _refused(what, f"each {what} may be named once", ",".join(fields))


def _check_name(what: str, name: str) -> None:
    printable = name.isprintable() and "/" not in name and "\\" not in name
    if not name.strip() or not printable or len(name) > _NAME_CHARACTERS_MAX:
        raise _refused(
            what,
            f"a {what} is 1 to {_NAME_CHARACTERS_MAX} printable characters without slashes",
            name,
        )


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise _refused("create_schema_json", "the schema is no JSON", text[:80]) from failure
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise _refused("create_schema_json", "the schema is no Avro record", text[:80])


def _refused(argument: str, why: str, value: object) -> InvalidInputError:
    return InvalidInputError(
        f"{why}: {value!r}", kind="table_definition", argument=argument, value=str(value)
    )


def _flag(value: bool) -> str:  # noqa: FBT001
    return "true" if value else "false"

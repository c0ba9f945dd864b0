"""Return the request of one write, from the configuration of the table and the settings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

import pyarrow as pa

from filegroups.files.bloom import BloomSettings
from filegroups.files.log_files import LogSettings
from filegroups.files.parquet_layout import ParquetSettings
from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules, SizeSettings
from filegroups.keys.keys import KeySpec
from filegroups.reading.read_set import ReadSet
from filegroups.reading.scan import view_of
from filegroups.schema.column_changes import ColumnChanges
from filegroups.schema.evolution import ColumnChange, MissingColumns, SchemaRules, schema_changes
from filegroups.schema.schema import TableSchema
from filegroups.settings.key_settings import key_spec_of
from filegroups.settings.settings import WriteSettings
from filegroups.writing.write_request import FileRules, RowRules, WriteRequest
from filegroups.writing.write_schema import schema_for
from hoodoo.arguments import Operation, to_write_operation
from timeline.context import TableContext
from timeline.errors import HoodooError, InvalidInputError, MetadataTableOnError
from timeline.model.commit_metadata import MergeMode, Replaced, WriteOperation
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.model.table_config import TableConfig
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import (
    GLOBAL_INDEXES,
    RECORD_INDEXES,
    BulkInsertSort,
    ForeignWriters,
    IndexType,
    InsertDuplicates,
)
from timeline.snapshot import Snapshot

_UPSERT: Final = WriteOperation.UPSERT


def write_request_of(
    settings: WriteSettings,
    config: TableConfig,
    operation: WriteOperation,
    *,
    batch_id: str | None = None,
    delete_partitions: tuple[str, ...] = (),
    partial: bool = False,
    reads: ReadSet | None = None,
    metadata: Mapping[str, str] | None = None,
    changes: ColumnChanges | None = None,
) -> WriteRequest:
    """
    Return the request of one write, from the table's configuration and the settings.

    Args:
        metadata: More texts for the commit, besides those of the settings.
        Others: As the fields of ``WriteRequest``.

    Raises:
        SettingError: An option contradicts the table or has a wrong value.
    """
    ordering = config.ordering_fields
    if config.merge_mode is not MergeMode.EVENT_TIME_ORDERING:
        ordering = ()
    traits = operation.traits
    drops = traits.checks_duplicates and settings.insert_duplicates is InsertDuplicates.DROP
    refuses = traits.checks_duplicates and settings.insert_duplicates is InsertDuplicates.FAIL
    upserts = traits.looks_up_keys
    combine = settings.combine_before_upsert if upserts else settings.combine_before_insert
    combine &= bool(config.record_key_fields)
    keys = key_spec_of(settings, config)
    rules = RowRules(
        keys=keys,
        operation=operation,
        merge=config.merge,
        ordering_fields=ordering,
        combine=combine or drops,
        tags=upserts or drops or refuses,
        drop_found=drops,
        refuse_found=refuses,
        for_java=settings.foreign_writers is ForeignWriters.EXPECTED,
        lookup=_lookup_rules(settings, config),
        buckets=bucket_rules(settings, config),
        own_buckets=settings.own_buckets,
        partial_columns=_partial_columns(settings, operation, partial=partial),
        sort=_sort(settings, operation),
    )
    return WriteRequest(
        rules=rules,
        files=file_rules_of(settings).filtering(config.record_key_fields),
        delete_partitions=delete_partitions or _overwritten(settings, operation),
        extra_metadata={**settings.extra_metadata, **(metadata or {})},
        batch_id=batch_id,
        reads=reads,
        detect_early=settings.early_conflict_detection,
        schema=_schema_rules(settings, config, keys),
        changes=changes,
        makes_ids=settings.schema_on_read and (settings.schema_reconcile or changes is not None),
    )


def with_patterns(context: TableContext, plan: WriteRequest) -> WriteRequest:
    """
    Return the request that also deletes the partitions that match the patterns of its names.

    Names of partitions without rows give a warning.

    As in Java, ``*`` means any characters. Each attempt matches the partitions of its base
    snapshot.

    Raises:
        InvalidInputError: Each attempt raises it if no partition matches (``no_partition``).
    """
    named = plan.delete_partitions
    if (text := _missing_text(context, named)) is not None:
        warnings.warn(text, stacklevel=4)
    patterns = [
        re.compile(".*".join(map(re.escape, one.split("*")))) for one in named if "*" in one
    ]
    if not patterns:
        return plan

    def chosen(snapshot: Snapshot) -> tuple[str, ...]:
        found = view_of(context, snapshot).partition_paths()
        matching = {path for path in found if any(one.fullmatch(path) for one in patterns)}
        matching.update(one for one in named if "*" not in one)
        if not matching:
            raise InvalidInputError(
                f"no partition matches: name partitions that exist: {list(named)}",
                kind="no_partition",
            )
        return tuple(sorted(matching))

    return replace(plan, choose_partitions=chosen)


def _missing_text(context: TableContext, named: Sequence[str]) -> str | None:
    """
    Return the warning of a delete of partitions that have no rows; None if each has some.

    Patterns do not count, because ``with_patterns`` refuses those without a match.
    """
    plain = [one for one in named if "*" not in one]
    slices = view_of(context, context.snapshot()).latest_slices(plain)
    missing = sorted(set(plain) - {one.file_group.partition_path for one in slices})
    if not missing:
        return None
    fields, style = context.config.partition_fields, context.config.hive_style_partitioning
    form = "/".join(f"{name}=VALUE" if style else f"VALUE of {name}" for name in fields)
    return (
        f"these partitions have no rows, so nothing of them is deleted: {missing}; the paths of this "
        f"table have the form {form or 'of the empty text'}"
    )


def _sort(settings: WriteSettings, operation: WriteOperation) -> BulkInsertSort | None:
    """Return the sort mode of a bulk insert, also of one that Spark's mode made an overwrite."""
    bulk = WriteOperation.BULK_INSERT
    overwrites = operation.replaces and settings.operation is bulk
    return settings.bulk_insert_sort if operation is bulk or overwrites else None


def _overwritten(settings: WriteSettings, operation: WriteOperation) -> tuple[str, ...]:
    """Return the partitions that an overwrite replaces even if no row belongs to them."""
    named = operation.traits.takes_rows and operation.traits.replaces is Replaced.PARTITIONS
    return settings.overwritten_partitions if named else ()


def _partial_columns(
    settings: WriteSettings, operation: WriteOperation, *, partial: bool
) -> tuple[str, ...] | None:
    """Return the columns of a partial update (``RowRules``); as in Java, only for upserts."""
    schema = settings.partial_update_schema
    if not operation.traits.updates or not schema:
        return () if partial else None
    try:
        return tuple(TableSchema.from_avro(schema).arrow.names)
    except HoodooError as error:
        settings.refuse(
            "partial_update_schema",
            f"this is not the Avro schema of a record: {error.message}",
            "give the schema of the columns to change",
            "setting_value",
        )


def operation_of(settings: WriteSettings, operation: Operation = None) -> WriteOperation:
    """
    Return the operation that the caller names, else the one of the options.

    Raises:
        InvalidInputError: There is no such operation.
    """
    if operation is None:
        return insert_for_known_keys(settings, settings.operation)
    return to_write_operation(operation)


def insert_for_known_keys(settings: WriteSettings, operation: WriteOperation) -> WriteOperation:
    """Return an insert for an upsert by options that also drop or refuse known keys, as in Hudi."""
    keeps = settings.insert_duplicates is InsertDuplicates.NONE
    return WriteOperation.INSERT if operation is _UPSERT and not keeps else operation


def _schema_rules(settings: WriteSettings, config: TableConfig, keys: KeySpec) -> SchemaRules:
    fill = settings.set_null_for_missing_columns or settings.schema_reconcile
    named = [*config.record_key_fields, *config.partition_fields]
    if config.merge_mode is MergeMode.EVENT_TIME_ORDERING:
        named += config.ordering_fields
    return SchemaRules(
        missing=MissingColumns(fill=fill, drop=settings.drop_missing_columns),
        ordering=_with_parents(config.ordering_fields),
        required=_with_parents(named),
        keys=keys.text_fields,
    )


def _with_parents(names: Iterable[str]) -> frozenset[str]:
    """Return the columns; a dotted name adds each column around the field."""
    return frozenset(path for name in names for path in accumulate(name.split("."), "{}.{}".format))


def bucket_rules(settings: WriteSettings, config: TableConfig) -> BucketRules | None:
    """
    Return the bucket rules of the table; None if its index is not a bucket index.

    Raises:
        SettingError: A hash field is not a record key field.
    """
    if settings.index_type is not IndexType.BUCKET:
        return None
    fields = settings.bucket_hash_fields or config.record_key_fields
    strange = [field for field in fields if field not in config.record_key_fields]
    if strange:
        keys = ",".join(config.record_key_fields)
        why = f"buckets are chosen by record key fields only, the table's key is {keys}"
        settings.refuse("bucket_hash_fields", why, f"use {keys}", "setting_against_table")
    return BucketRules(
        engine=settings.bucket_engine, buckets=settings.bucket_count, hash_fields=fields
    )


def _lookup_rules(settings: WriteSettings, config: TableConfig) -> LookupRules:
    kind = settings.index_type
    filters = kind in (IndexType.BLOOM, IndexType.GLOBAL_BLOOM)
    whole_table = kind in GLOBAL_INDEXES
    if (whole_table or kind in RECORD_INDEXES) and not config.populate_meta_fields:
        settings.refuse(
            "index_type",
            "the table's files store no keys, and a global index or a record index needs them",
            "use SIMPLE or BUCKET",
            "setting_against_table",
        )
    by_record_index = kind in RECORD_INDEXES
    moves = settings.bloom_index_moves if filters else settings.simple_index_moves
    return LookupRules(
        filters=filters,
        filters_by_metadata=settings.bloom_index_by_metadata,
        whole_table=whole_table,
        moves_rows=settings.record_index_moves if by_record_index else moves,
        by_record_index=by_record_index,
    )


def may_misplace_rows(settings: WriteSettings, config: TableConfig) -> bool:
    """Return whether an update keeps a row in its partition after its partition columns change."""
    lookup = _lookup_rules(settings, config)
    return bool(config.partition_fields) and lookup.whole_table and not lookup.moves_rows


def file_rules_of(settings: WriteSettings) -> FileRules:
    """Return the rules for writing base files and log files."""
    return FileRules(
        parquet=ParquetSettings(
            compression=settings.parquet_compression,
            row_group_bytes=settings.parquet_row_group_bytes,
            page_bytes=settings.parquet_page_bytes,
            dictionary=settings.parquet_dictionary,
        ),
        bloom=BloomSettings(
            kind=settings.bloom_type.value,
            entries=settings.bloom_keys,
            error_rate=settings.bloom_false_positive_rate,
            entries_max=settings.bloom_dynamic_keys_max,
        )
        if settings.bloom_enabled
        else None,
        sizes=SizeSettings(
            file_bytes_max=settings.parquet_file_bytes_max,
            small_file_bytes=settings.small_file_bytes_max,
            record_bytes=settings.record_size_bytes,
            insert_rows=settings.insert_split_rows,
            auto_split=settings.insert_auto_split,
        ),
        small_files_max=settings.small_files_max,
        logs=LogSettings(
            format=settings.log_format,
            file_bytes_max=settings.log_file_bytes_max,
            block_bytes_max=settings.log_block_bytes_max,
        ),
    )


# ---- Changes of columns (schema on read)

#: Partitions of the metadata table that do not know columns by their names.
_WITHOUT_COLUMNS = frozenset(
    {PartitionKind.FILES, PartitionKind.RECORD_INDEX, PartitionKind.BLOOM_FILTERS}
)


def column_changes(
    rename: Mapping[str, str] | None,
    drop: Sequence[str],
    types: Mapping[str, pa.DataType] | None,
    add: Mapping[str, pa.DataType] | None,
    move: Mapping[str, str] | None,
) -> ColumnChanges:
    """
    Return changes of columns, as ``Table.alter_schema`` takes them.

    Raises:
        InvalidInputError: There is none.
    """
    added = ((name.rpartition("."), kind) for name, kind in (add or {}).items())
    changes = ColumnChanges(
        rename=dict(rename or {}),
        drop=(drop,) if isinstance(drop, str) else tuple(drop),
        types=dict(types or {}),
        add=tuple((parent, pa.field(last, kind)) for (parent, _, last), kind in added),
        move=dict(move or {}),
    )
    if changes == ColumnChanges():
        raise InvalidInputError(
            "there is nothing to change: name columns to rename, drop, add or move, or new types",
            kind="no_change",
        )
    return changes


def refuse_column_changes(
    context: TableContext, settings: WriteSettings, changes: ColumnChanges
) -> None:
    """
    Refuse changes of columns that other readers or writers of the table would not know.

    Columns that are added after the last one are not refused: a write with them does the same.

    Outside: 1 list; 1 get of the properties.

    Raises:
        SettingError: ``hoodie.schema.on.read.enable`` is not set on a table without column ids, or
            Java Hudi writes to the table.
        MetadataTableOnError: The metadata table knows columns by their names.
    """
    has_ids = bool(context.snapshot().newest_internal_schema_json)
    if changes.only_appends and not (settings.schema_on_read or has_ids):
        return
    if not (settings.schema_on_read or has_ids):
        settings.refuse(
            "schema_on_read",
            "older files keep renamed and dropped columns by ids, and Java Hudi reads these with "
            "this option only",
            "set it to true here and for each reader of Java Hudi",
            "setting_missing",
        )
    if settings.foreign_writers is ForeignWriters.EXPECTED:
        settings.refuse(
            "foreign_writers",
            "a write of Java Hudi that runs now would commit the columns of before",
            "end those writers, and change columns without this option",
        )
    config = load_config(context.ports.storage)
    named = [one for one in config.metadata_partitions if kind_of(one) not in _WITHOUT_COLUMNS]
    if named:
        raise MetadataTableOnError(
            "the metadata table has statistics or indexes by the names of columns: drop them with "
            "'hoodoo metadata drop TABLE NAME', change the columns, then build them again: "
            f"{', '.join(named)}",
            partitions=named,
        )


def preview_columns(
    context: TableContext, settings: WriteSettings, changes: ColumnChanges
) -> tuple[ColumnChange, ...]:
    """Return the changes of columns that a commit would make now. Errors: as ``schema_for``."""
    plan = write_request_of(settings, context.config, WriteOperation.INSERT, changes=changes)
    schema, before = schema_for(context, context.snapshot(), None, plan)
    return schema_changes(TableSchema.from_avro(before).arrow, schema.arrow)

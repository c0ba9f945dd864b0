"""Compose ports, settings and limits from properties; only this module does it."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from pkgutil import resolve_name

from filegroups.files.bloom import BloomSettings
from filegroups.files.log_files import LogSettings
from filegroups.files.parquet import ParquetSettings
from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules, SizeSettings
from filegroups.keys.keys import KeySpec
from filegroups.reading.read import ReadSet
from filegroups.schema.evolution import MissingColumns, SchemaRules
from filegroups.schema.schema import TableSchema
from filegroups.settings.key_settings import BUCKET_PROPERTY_KEYS, key_spec_of, refuse_other_classes
from filegroups.settings.known_keys import UNSUPPORTED
from filegroups.settings.read_settings import ReaderLeaseSettings
from filegroups.settings.settings import WriteSettings
from filegroups.settings.time_settings import refuse_other_times
from filegroups.supported import refuse_unreadable
from filegroups.writing.row_checks import refuse_unfit_buckets
from filegroups.writing.write_request import FileRules, RowRules, WriteRequest
from hoodoo.configuration import (
    Layers,
    conflict_strategy,
    slot_signing_of,
)
from hoodoo.inputs import Operation, to_write_operation
from lockproviders.registry import build_lock, registry_for, with_slot_store
from tableservices.worker import ServiceExecutor, WorkerSettings
from timeline.context import TableContext, TableLimits
from timeline.errors import HoodooError, MissingExtraError, SettingError
from timeline.heartbeat import HeartbeatLimits
from timeline.model.commit_metadata import CdcMode, MergeMode, Replaced, WriteOperation
from timeline.model.instant import SkewLimits
from timeline.model.table_config import TableConfig
from timeline.ports.ports import ClusterExecutor, EventSink, Executor, Ports, Value
from timeline.properties.options import (
    DEFAULT_LAYER,
    TABLE_LAYER,
    PropertySet,
    as_property_set,
    parse_option,
    read_option,
)
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import (
    GLOBAL_INDEXES,
    CommitLockMode,
    EarlyDetection,
    ForeignWriters,
    IndexType,
    InsertDuplicates,
)
from timeline.rules.retry import RetryBudget
from timeline.storage.open_storage import storage_for
from timeline.system import LoggingEvents, SystemClock, SystemIds, ThreadExecutor, process_zone

# ---- The executor of table services: this machine, or a cluster
# ``hoodoo.services.executor`` chooses it when a service runs, not when a table opens: a reader
# starts no cluster.

#: Value of ``hoodoo.services.executor`` -> the function that makes the executor, its extra and
#: its library. The function is imported when a service first needs it.
_CLUSTER_EXECUTORS = {
    ServiceExecutor.SPARK: ("hoodoo.spark.session:executor_of_this_process", "spark", "pyspark")
}


def service_context(context: TableContext, properties: Mapping[str, str]) -> TableContext:
    """
    Return the table's context with the executor that the properties choose for services.

    A context with a cluster executor is returned unchanged.

    Raises:
        MissingExtraError: The cluster's library is not installed.
        StorageCapabilityError: The session uses Spark Connect.
        SettingError: A property is wrong.
    """
    ports = context.ports
    # Only the caller chooses what a process starts, not the table (SEC4).
    property_set = as_property_set(properties).without_layer(TABLE_LAYER)
    settings = WorkerSettings.from_properties(property_set)
    if isinstance(ports.executor, ClusterExecutor):
        return context
    executor: Executor
    if settings.executor in _CLUSTER_EXECUTORS:
        make_executor = _load_cluster_executor(settings.executor)
        executor = make_executor(ports, properties, settings.file_groups_max)
    elif settings.file_groups_max is not None:
        executor = ThreadExecutor(settings.file_groups_max, events=ports.events)
    else:
        return context
    return TableContext.of(replace(ports, executor=executor), context.config, context.limits)


def _load_cluster_executor(
    chosen: ServiceExecutor,
) -> Callable[[Ports, Mapping[str, str], int | None], Executor]:
    function, extra, library = _CLUSTER_EXECUTORS[chosen]
    if importlib.util.find_spec(library) is None:
        raise MissingExtraError(
            "services over Spark need PySpark and a Java 17: pip install 'hoodoo[spark]', or set "
            "hoodoo.services.executor=local",
            extra=extra,
        )
    found: Callable[[Ports, Mapping[str, str], int | None], Executor] = resolve_name(function)
    return found


# ---- Ports, settings and limits from properties
# Settings are frozen and printable values; ports (storage, lock, clock, events) act on them.


#: Properties of merging and keys. The table's configuration checks them, not the settings.
_JUDGED_BY_TABLE = frozenset(
    {
        *UNSUPPORTED,
        "hoodie.table.keygenerator.type",
        "hoodie.table.keygenerator.class",
        "hoodie.compaction.payload.class",
        "hoodie.record.merge.mode",
        "hoodie.record.merge.strategy.id",
        "hoodie.table.partial.update.mode",
    }
)


def properties_of_table(
    address: str | os.PathLike[str], layers: Layers
) -> tuple[TableConfig, PropertySet, WriteSettings]:
    """
    Return the configuration of an existing table, all layers, and the settings from them.

    A table that hoodoo cannot write (for example its key generator) opens nevertheless: reads
    may work, and a write raises an error.

    Raises:
        TableNotFoundError: The address holds no table.
        CorruptTableError, SettingError: A file or value is wrong.
        UnsupportedTableError: hoodoo cannot read the table.
    """
    storage = storage_for(address, options=layers.load())
    config = load_config(storage)
    refuse_unreadable(config)
    raw = config.raw
    readable = {key: value for key, value in raw.items() if key not in _JUDGED_BY_TABLE}
    if config.timeline_layout_version == 1:  # a version that no writer may set
        readable.pop("hoodie.table.version", None)
    return config, layers.load(raw), WriteSettings.from_properties(layers.load(readable))


def compose_ports(
    address: str | os.PathLike[str], properties: PropertySet, *, events: EventSink | None = None
) -> Ports:
    """
    Compose the ports of one table from its properties.

    Args:
        address: Path or URI of the table.
        properties: All layers.
        events: Receives the events; the logger ``hoodoo`` by default.

    Raises:
        SettingError: A value is wrong.
        StorageCapabilityError, UnknownProviderError: This release lacks the storage or lock.
        UnsafeSetupError: An allowed plug-in cannot be used.
    """
    application = properties.get("hoodie.write.application.id", "")
    sink = _WarningEvents(events or LoggingEvents())
    clock = SystemClock()
    ids = SystemIds(application)
    executor = ThreadExecutor(events=sink)
    place = storage_for(address, options=properties)
    lock = build_lock(
        properties,
        storage=place,
        clock=clock,
        ids=ids,
        events=sink,
        executor=executor,
        table_identity=place.base_uri,
        table_address=os.fspath(address),
    )
    classes = read_option(
        properties.without_layer(TABLE_LAYER), WriteSettings.options["merger_classes"]
    )
    return Ports(
        storage=with_slot_store(place, properties, clock=clock, ids=ids),
        clock=clock,
        ids=ids,
        events=sink,
        executor=executor,
        lock=lock,
        zone=process_zone,
        # The caller alone allows code to run; the table chooses among the allowed (SEC4).
        mergers=registry_for(properties).mergers(classes if isinstance(classes, tuple) else ()),
    )


@dataclass(frozen=True, slots=True)
class _WarningEvents:
    """An event sink that also raises Python warnings for events that a user must see."""

    sink: EventSink

    def emit(self, name: str, /, **fields: Value) -> None:
        """Emit one event, and warn if the metadata table was switched off."""
        self.sink.emit(name, **fields)
        if name == "metadata_table.switched_off":
            with suppress(Warning):  # a filter may raise it as an error; a commit must not fail
                warnings.warn(
                    "the table's metadata table was switched off, because "
                    "hoodie.metadata.enable=false; Java Hudi can build it again: "
                    f"{fields['partitions']}",
                    stacklevel=2,
                )


def limits_of(settings: WriteSettings, properties: PropertySet) -> TableLimits:
    """
    Return the limits of a table from the settings.

    Raises:
        SettingError: Neither hoodoo nor an allowed plug-in has the conflict strategy, or a key to
            sign slots is missing.
        UnsafeSetupError: An allowed plug-in or that key is not usable.
    """
    strategy = conflict_strategy(settings, properties)
    return TableLimits(
        skew=SkewLimits(refuse_ms=settings.clock_ahead_ms_max),
        heartbeat=HeartbeatLimits(
            interval_ms=settings.heartbeat_interval_ms, misses=settings.heartbeat_misses
        ),
        retry=RetryBudget(
            conflict_retries_max=settings.conflict_retries,
            commit_attempts_max=settings.commit_attempts_max,
            pause_base_ms=settings.commit_retry_base_ms,
            pause_cap_ms=settings.commit_retry_cap_ms,
            total_ms_max=settings.commit_retry_total_ms,
            policy=settings.retry_policy,
            wasted_bytes_max=settings.retry_wasted_bytes_max,
            lock_after_conflicts=settings.retry_queue_after,
            lock_short_ms=_keep_lock_ms(settings),
        ),
        reader_lease_ms=ReaderLeaseSettings.from_properties(properties).reader_lease_ms,
        instant_files_max=settings.timeline_instants_max * 3,
        publish_lock=settings.publish_lock,
        mode=settings.concurrency_mode,
        foreign_writers=settings.foreign_writers,
        clustering_updates=settings.clustering_updates,
        strategy=strategy,
        cancels_conflicting_plans=strategy.prefers_writers
        or settings.cancel_conflicting_clustering,
        isolation=settings.isolation,
        waits_for_announced=settings.early_detection is not EarlyDetection.PUBLISHED,
        rate_limit=settings.rate_limit,
        slot_signing=slot_signing_of(properties),
        without_metadata_table=settings.metadata_enable is False,
    )


def _keep_lock_ms(settings: WriteSettings) -> int:
    """Return how long a rebase keeps the lock, in ms; 0 if others may not wait for it (PUB-11)."""
    all_wait = settings.publish_lock is CommitLockMode.LOCK
    ours = settings.foreign_writers is ForeignWriters.NONE
    return settings.retry_queue_short_ms if all_wait and ours else 0


#: Settings that an existing table fixes -> the value in its configuration.
_TABLE_FACTS: Mapping[str, Callable[[TableConfig], object]] = {
    "record_key_fields": lambda config: config.record_key_fields,
    "partition_fields": lambda config: config.partition_fields,
    "ordering_fields": lambda config: config.ordering_fields,
    "hive_style_partitioning": lambda config: config.hive_style_partitioning,
    "url_encode_partitioning": lambda config: config.url_encode_partitioning,
    "populate_meta_fields": lambda config: config.populate_meta_fields,
    "partition_metafile_base_format": lambda config: bool(config.partition_metafile_ending),
    "drop_partition_columns": lambda config: config.drop_partition_columns,
    "change_logs": lambda config: config.cdc_enabled,
    "change_log_mode": lambda config: config.change_log_mode or CdcMode.DATA_BEFORE_AFTER,
    "table_type": lambda config: config.table_type,
    "merge_mode": lambda config: config.merge_mode,
    "timeline_zone": lambda config: config.timeline_timezone,
}


#: Names that a writer may set for a table. Only writes check them: a session reads many tables.
#: Earlier releases stored the database "default" for every table, so that name is not compared.
_TABLE_NAMES: Mapping[str, Callable[[TableConfig], str]] = {
    "table_name": lambda config: config.name,
    "database": lambda config: "" if config.database == "default" else config.database,
}


def refuse_other_name(settings: WriteSettings, config: TableConfig) -> None:
    """
    Refuse a write that names another table, because the path may be wrong.

    The comparison ignores case. Java Hudi does both (``HoodieWriterUtils.validateTableConfig``).

    Raises:
        SettingError: The caller's name or database differs from the table's.
    """
    others = {
        field: value_of
        for field, value_of in _TABLE_NAMES.items()
        if str(getattr(settings, field)).lower() != value_of(config).lower()
    }
    _refuse_other_table_properties(settings, config, others)


def check_against_table(settings: WriteSettings, config: TableConfig) -> None:
    """
    Refuse options that contradict the table.

    Raises:
        SettingError: An option of the caller differs from the table's own value. A write would
            store equal records under different keys or partitions.
    """
    _refuse_other_table_properties(settings, config, _TABLE_FACTS)
    refuse_other_classes(settings, config)
    if settings.timestamp_keys is not None:
        refuse_other_times(settings.timestamp_keys, config)
    if settings.own_buckets is not None:
        refuse_unfit_buckets(settings, settings.own_buckets)
    for field, key in BUCKET_PROPERTY_KEYS.items():
        kept = config.raw.get(key)
        layer = settings.origin(field)
        if kept is None or layer in (DEFAULT_LAYER, TABLE_LAYER):
            continue
        meant = parse_option(WriteSettings.options[field], kept)
        mine = getattr(settings, field)
        if (mine.value if isinstance(mine, Enum) else mine) != meant:
            raise SettingError(
                "the table's buckets were made with other settings, and the write would miss its "
                f"rows: {WriteSettings.options[field].key}={_as_property_text(mine)} (from "
                f"{layer}), the table has {kept!r}; omit the option",
                kind="setting_against_table",
                key=WriteSettings.options[field].key,
                value=_as_property_text(mine),
                layer=layer,
                suggestion=kept,
            )


def _refuse_other_table_properties(
    settings: WriteSettings,
    config: TableConfig,
    facts: Mapping[str, Callable[[TableConfig], object]],
) -> None:
    for field, value_of in facts.items():
        layer = settings.origin(field)
        mine, theirs = getattr(settings, field), value_of(config)
        if layer in (DEFAULT_LAYER, TABLE_LAYER) or mine in (None, (), theirs) or theirs == "":
            continue
        option = WriteSettings.options[field]
        raise SettingError(
            f"the table was made with another value: {option.key}={_as_property_text(mine)} (from "
            f"{layer}), the table has {_as_property_text(theirs)!r}; omit the option, or write to "
            "another table",
            kind="setting_against_table",
            key=option.key,
            value=_as_property_text(mine),
            layer=layer,
            suggestion=_as_property_text(theirs),
        )


def _as_property_text(value: object) -> str:
    """Return a value in the form of a property."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def write_request_of(
    settings: WriteSettings,
    config: TableConfig,
    operation: WriteOperation,
    *,
    batch_id: str | None = None,
    delete_partitions: tuple[str, ...] = (),
    partial: bool = False,
    reads: ReadSet | None = None,
) -> WriteRequest:
    """
    Return the request of one write, from the table's configuration and the settings.

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
    )
    return WriteRequest(
        rules=rules,
        files=file_rules_of(settings),
        delete_partitions=delete_partitions or _overwritten(settings, operation),
        extra_metadata=dict(settings.extra_metadata),
        batch_id=batch_id,
        reads=reads,
        detect_early=settings.early_conflict_detection,
        schema=_schema_rules(settings, config, keys),
    )


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


def operation_of(
    settings: WriteSettings, record_key_fields: Sequence[str], operation: Operation = None
) -> WriteOperation:
    """
    Return the operation that the caller names, else the configured one.

    Rows without keys are inserted by default.

    Raises:
        InvalidInputError: There is no such operation.
    """
    if operation is not None:
        return to_write_operation(operation)
    if not record_key_fields and settings.origin("operation") == DEFAULT_LAYER:
        return WriteOperation.INSERT  # as Java does
    return settings.operation


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
    if whole_table and not config.populate_meta_fields:
        settings.refuse(
            "index_type",
            "the table's files store no keys, and a global index needs them",
            "use SIMPLE or BUCKET",
            "setting_against_table",
        )
    return LookupRules(
        filters=filters,
        whole_table=whole_table,
        moves_rows=settings.bloom_index_moves if filters else settings.simple_index_moves,
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

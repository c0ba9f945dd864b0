"""Compose ports, settings and limits from properties; only this module does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum

from filegroups.settings.key_settings import BUCKET_PROPERTY_KEYS, refuse_other_classes
from filegroups.settings.known_keys import UNSUPPORTED
from filegroups.settings.read_settings import ReaderLeaseSettings
from filegroups.settings.settings import WriteSettings
from filegroups.settings.time_settings import refuse_other_times
from filegroups.supported import refuse_unreadable
from hoodoo.configuration import (
    Layers,
    conflict_strategy,
    slot_signing_of,
)
from lockproviders.registry import build_lock, registry_for, with_slot_store
from timeline.context import TableContext, TableLimits
from timeline.errors import SettingError
from timeline.heartbeat import HeartbeatLimits
from timeline.model.commit_metadata import CdcMode
from timeline.model.instant_time import SkewLimits
from timeline.model.table_config import TableConfig
from timeline.ports.ports import EventSink, Ports
from timeline.properties.options import (
    DEFAULT_LAYER,
    TABLE_LAYER,
    PropertySet,
    parse_option,
    read_option,
)
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import (
    CommitLockMode,
    EarlyDetection,
    ForeignWriters,
)
from timeline.rules.retry import RetryBudget
from timeline.storage.open_storage import storage_for
from timeline.system import LoggingEvents, SystemClock, SystemIds, ThreadExecutor, process_zone

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


def open_context(
    address: str | os.PathLike[str], layers: Layers, *, events: EventSink | None = None
) -> tuple[TableContext, PropertySet, WriteSettings]:
    """Return the context, options and settings of a table. Errors: as ``hoodoo.open_table``."""
    config, properties, settings = properties_of_table(address, layers)
    ports = compose_ports(address, properties, events=events)
    context = TableContext.of(ports, config, limits_of(settings, properties))
    check_against_table(settings, config)
    return context, properties, settings


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
    sink = events or LoggingEvents()
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
        lists_by_metadata=settings.metadata_enable,
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
        from filegroups.writing.row_checks import refuse_unfit_buckets  # not for readers

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

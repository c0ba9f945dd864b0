"""The settings that all writers of a table must share, as texts for the registry (REG-1)."""

from __future__ import annotations

from filegroups.settings.settings import WriteSettings
from timeline.model.instant import UTC_ZONE, TimelineZone
from timeline.ports.ports import Ports
from timeline.properties.setting_enums import IndexType


def agreement(settings: WriteSettings, *, lock_provider: str, lock_identity: str) -> dict[str, str]:
    """
    Return the settings that must be equal on all writers of a table, as texts to compare.

    A single writer and many writers differ in ``mode``: a process configured as the only writer
    must not run together with another writer.
    """
    return {
        "mode": settings.concurrency_mode.value,
        "lock_provider": lock_provider,
        "lock_identity": lock_identity,
        "publish_lock": settings.publish_lock.value,
        "foreign_writers": settings.foreign_writers.value,
        "failed_writes_policy": settings.failed_writes_policy.value,
        "heartbeat_expiry_ms": str(settings.heartbeat_expiry_ms),
        "table_version": str(settings.table_version),
        "table_type": settings.table_type.value,
        "record_key_fields": ",".join(settings.record_key_fields),
        "partition_fields": ",".join(settings.partition_fields),
        "ordering_fields": ",".join(settings.ordering_fields),
        "key_generator": settings.effective_key_generator.value,
        "hive_style_partitioning": str(settings.hive_style_partitioning).lower(),
        "folders_of_times": repr(settings.timestamp_keys),
        "url_encode_partitioning": str(settings.url_encode_partitioning).lower(),
        "merge_mode": settings.effective_merge_mode.value,
        "timeline_zone": settings.timeline_zone,
        "index": _index_agreement(settings),
    }


def agreement_of(
    settings: WriteSettings, ports: Ports, zone: TimelineZone = UTC_ZONE
) -> dict[str, str]:
    """
    Return the settings that must be equal in all writer processes, without facts of the table.

    Args:
        settings: The writer's settings.
        ports: Its ports.
        zone: The zone of its instant times. UTC is left out: earlier releases know no other.
    """
    everything = agreement(
        settings, lock_provider=ports.lock.provider, lock_identity=ports.lock.identity
    )
    kept = (
        "mode",
        "lock_provider",
        "lock_identity",
        "publish_lock",
        "foreign_writers",
        "failed_writes_policy",
        "heartbeat_expiry_ms",
        "index",
    )
    agreed = zone.fingerprint
    zones = {} if agreed == UTC_ZONE.name else {"timeline_zone": agreed}
    return {key: everything[key] for key in kept} | zones


def _index_agreement(settings: WriteSettings) -> str:
    """
    Return the text of the index: writers may use different lookups, but of the same scope.

    A lookup in one partition inserts a key again that another partition has, and a global index
    promises that this does not happen. Buckets must be the same.
    """
    if settings.index_type is IndexType.BUCKET:
        fields = ",".join(settings.bucket_hash_fields or settings.record_key_fields)
        return f"BUCKET {settings.bucket_engine.value} {settings.bucket_count} {fields}"
    if settings.index_type.is_global and settings.partition_fields:
        return "looked up in the whole table"
    return "looked up"

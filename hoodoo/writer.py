"""The writer of a table: its checks, its entry in the registry, and the services after a commit."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from filegroups.index.buckets import (
    has_bucket_rules,
    record_bucket_rules,
    record_misplaced_rows,
    refuse_other_buckets,
)
from filegroups.metadata_table.new_partitions import partition_warnings
from filegroups.settings.known_keys import refuse_unsupported
from filegroups.settings.settings import WriteSettings
from filegroups.supported import refuse_old_version, refuse_unwritable
from filegroups.writing.row_checks import bucket_range_text
from filegroups.writing.workload import Workload
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.committer.client import GroupCommit, group_commit_of
from hoodoo.factory import refuse_other_name
from hoodoo.services import Services
from hoodoo.sync.service import refuse_unready_sync
from hoodoo.sync.settings import SyncSettings
from hoodoo.write_requests import bucket_rules, may_misplace_rows
from lockproviders.registry import ProviderRegistry, registry_for
from timeline.context import TableContext
from timeline.errors import MetadataTableOnError, StorageCapabilityError
from timeline.model.commit_metadata import ConcurrencyMode
from timeline.model.instant_time import UTC_ZONE, TimelineZone
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Lock, Ports
from timeline.properties.options import PropertySet
from timeline.properties.setting_enums import (
    GLOBAL_INDEXES,
    FailedWritesPolicy,
    ForeignWriters,
    IndexType,
)
from timeline.snapshot import Snapshot
from timeline.storage.non_atomic import prove_atomic_create
from timeline.system import await_exit
from timeline.writer_registry import Registration, register_process, warn_other_zone

_NOT_BUILT = (
    "hoodie.metadata.enable=true, and the table has no metadata table: build one with 'hoodoo "
    "metadata create TABLE', while writers write, or leave the option out"
)


class TableWriter:
    """
    The write path of one opened table.

    Args:
        context: The table.
        properties: Every effective property.
        settings: The settings of writes.
        services: Runs the services that are due after a commit.
    """

    def __init__(
        self,
        context: TableContext,
        properties: PropertySet,
        settings: WriteSettings,
        services: Services,
    ) -> None:
        self._context = context
        self._properties = properties
        self._settings = settings
        self._services = services
        self._is_registered = False
        self._beginning = threading.Lock()  # threads that share one group commit
        self._registering = threading.Lock()  # two entries would stay until they expire
        self._group: GroupCommit | None = None
        if settings.group_service or settings.group_writes_max > 1:
            self._group = group_commit_of(
                context, settings, before=self.before_group, after=self.after_group
            )

    @property
    def config(self) -> TableConfig:
        """The table's configuration."""
        return self._context.config

    def begin(self) -> None:
        """
        Refuse an impossible write; before the first write register and start services.

        Errors: as ``refuse`` and ``register_writer``.
        """
        with self._beginning:
            if not self._is_registered:  # the checked values never change after the open
                self.refuse()
                for text in self._metadata_warnings():
                    warnings.warn(text, stacklevel=4)
                self._register()
                self._is_registered = True
            self._services.start_background()

    def _metadata_warnings(self) -> Iterable[str]:
        """Return warnings of options for a metadata table, or partitions of it, that it lacks."""
        if self._settings.metadata_enable and not self.config.metadata_table_on:
            return [_NOT_BUILT]
        return partition_warnings(self.config, self._properties)

    def _register(self) -> None:
        """Register the writer, and record bucket rules and misplaced rows in the table."""
        context, settings = self._context, self._settings
        rules = None
        if not has_bucket_rules(context.config):  # another engine's table lacks them
            rules = bucket_rules(settings, context.config)
        if rules is not None:  # before the registry records these rules
            refuse_other_buckets(context, rules)
        self.register(bucket_range_text(settings))
        if rules is not None:
            record_bucket_rules(context, rules)
        if may_misplace_rows(settings, context.config):
            record_misplaced_rows(context)

    def register(self, buckets: str = "") -> None:
        """Register this process once, also if threads do so at a time. As ``register_writer``."""
        with self._registering:
            register_writer(self._context, self._properties, self._settings, buckets)

    def refuse(self) -> None:
        """
        Refuse a write that this table does not allow, before it begins.

        Raises:
            MetadataTableOnError: The metadata table has a partition that writes cannot maintain, or
                ``hoodie.metadata.enable`` is false on a table that has one.
            MissingExtraError: The packages of a catalog to sync with are not installed.
            SettingError: hoodoo does not support the value of an option.
            UnsupportedTableError: hoodoo cannot write a feature of the table.
        """
        config = self._context.config
        if self._settings.metadata_enable is False and config.metadata_table_on:
            raise MetadataTableOnError(
                "hoodie.metadata.enable=false, and the table has a metadata table that other readers "
                "and writers use: leave the option out, and this writer maintains it; or drop it for "
                "all engines with 'hoodoo metadata drop TABLE': "
                f"{', '.join(config.metadata_partitions)}",
                partitions=list(config.metadata_partitions),
            )
        refuse_unwritable(config)
        config.merge.require_known()
        refuse_other_name(self._settings, config)
        refuse_unsupported(self._properties)  # not at the open: reads ignore these options
        refuse_unready_sync(SyncSettings.from_properties(self._properties))

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """Run one write, alone or in a group. Errors: as ``filegroups.writing.write.write``."""
        if self._group is not None and plan.changes is None:
            return self._group.write(plan, workload)
        cached = self._context.cached_snapshot()
        undone = self._roll_back_dead_writers(cached)
        result = write(self._context, plan, workload, None if undone else cached)
        self.after_group()
        return result

    def before_group(self) -> None:
        """Roll back dead writers before this process commits a group."""
        self._roll_back_dead_writers(self._context.cached_snapshot())

    def after_group(self) -> None:
        """Run the services that are due after a commit, and warn of failures."""
        for warning in (*self._services.after_commit(), *self._services.take_failures()):
            warnings.warn(warning, stacklevel=3)

    def close(self) -> None:
        """Leave the registry and end the group commit; a later write registers again."""
        with self._beginning:  # a thread that is registering would mark it as done afterwards
            self._is_registered = False
            with self._registering:
                unregister_writer(self._context)
        if self._group is not None:
            self._group.close()

    def _roll_back_dead_writers(self, cached: Snapshot) -> bool:
        """Roll back dead writers under the policy EAGER (RB-11)."""
        if self._settings.failed_writes_policy is not FailedWritesPolicy.EAGER:
            return False
        return bool(self._services.rollback_dead_writers(cached.active))


# ---- Locks that other engines share (FOR-1)


def refuse_unshared_lock(settings: WriteSettings, lock: Lock, registry: ProviderRegistry) -> None:
    """
    Refuse a lock that does not exclude Java Hudi if foreign writers are expected (FOR-1).

    Raises:
        StorageCapabilityError: The lock does not exclude writers of other engines, and these
            know no other protection.
    """
    if settings.foreign_writers is not ForeignWriters.EXPECTED:
        return
    provider = lock.provider
    if not registry.find(provider).capabilities.excludes_java:
        shared = [entry.name for entry in registry.entries if entry.capabilities.excludes_java]
        raise StorageCapabilityError(
            "writers of other engines are expected (hoodoo.foreign.writers), and the lock "
            f"provider {provider!r} does not exclude them: run the engines at different times, or "
            f"use a lock that Java Hudi shares: {', '.join(shared)}",
            kind="lock_not_shared",
            missing="excludes_java",
            provider=provider,
        )


# ---- The registry entry of this writer, removed however the program ends (REG-1)
# An abandoned entry counts as alive until it expires. Until then it excludes writers with other
# settings, and keeps commit slots from being archived.

_LEAVING_MS_MAX = 5_000  # a program must end even if its storage does not answer

_entered: dict[int, tuple[Registration, int]] = {}
"""By id of a table's context: its registration and process; a forked child has none."""
_at_exit: dict[int, Callable[[int], None]] = {}
"""By process id: the function that leaves the registries when the process ends."""


def register_writer(
    context: TableContext, properties: PropertySet, settings: WriteSettings, buckets: str = ""
) -> None:
    """
    Register this process as a writer of a table, once (REG-1). Services register without buckets.

    If several writers are expected, the storage first proves that it creates an object only if
    it is absent (CAP-1). Without that the slots decide nothing.

    Raises:
        WriterDisagreementError: A live writer is configured differently, or owns ``buckets``.
        StorageCapabilityError: The storage cannot do that; or writers of other engines are
            expected, and they do not take this lock.
        UnsafeSetupError: The table's slots are in a slot store (SLOT-6).
        UnsupportedTableError: The table has version 6, which hoodoo does not write.
    """
    known, _ = _entered.get(id(context), (None, 0))
    if known is None:
        ports, prove = context.ports, None
        refuse_unshared_lock(settings, ports.lock, registry_for(properties))
        refuse_old_version(context.config)
        agreement = agreement_of(settings, ports, context.zone)
        context.identity.ensure(ports, is_asked_later=True)
        if context.limits.mode is not ConcurrencyMode.SINGLE_WRITER:
            prove = partial(prove_atomic_create, ports.storage, ports.ids)
        known = register_process(context, agreement, buckets, prove=prove)
        pid = ports.ids.identity().pid
        _entered[id(context)] = known, pid
        if pid not in _at_exit:
            _at_exit[pid] = await_exit(_leave)
        warn_other_zone(context)
    if buckets and buckets != known.buckets:
        known.widen_buckets(buckets)


def unregister_writer(context: TableContext) -> None:
    """Remove the entry of this process from a table's registry, if there is one."""
    known, _ = _entered.pop(id(context), (None, 0))
    if known is not None:
        known.unregister()


@atexit.register
def _leave_all() -> None:
    """Leave the registries at the end of a program that did not close its tables."""
    for pid in {pid for entry, pid in _entered.values() if pid == _pid_of(entry)}:
        _at_exit[pid](_LEAVING_MS_MAX)


def _leave() -> None:
    for entry, pid in tuple(_entered.values()):
        if pid == _pid_of(entry):
            with suppress(Exception):  # the entry expires by itself
                entry.unregister()


def _pid_of(entry: Registration) -> int:
    return entry.context.ports.ids.identity().pid


# ---- The settings that all writers of a table must share, as texts for the registry (REG-1)


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

    A lookup in one partition inserts a key again that another partition has; a global index
    must prevent that. Buckets must be equal.
    """
    if settings.index_type is IndexType.BUCKET:
        fields = ",".join(settings.bucket_hash_fields or settings.record_key_fields)
        return f"BUCKET {settings.bucket_engine.value} {settings.bucket_count} {fields}"
    if settings.index_type in GLOBAL_INDEXES and settings.partition_fields:
        return "looked up in the whole table"
    return "looked up"

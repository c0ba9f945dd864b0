"""The registry of lock providers and slot stores, and how properties become one of them."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from lockproviders import filesystem, hookspecs, inprocess
from lockproviders.acquire import LockPorts, ProviderLock, WaitBudget
from lockproviders.audit import AuditTrail
from lockproviders.dynamodb import client as dynamodb
from lockproviders.dynamodb.connection import BotoTransport, check_extra, region_of_machine
from lockproviders.dynamodb.settings import DynamoSettings
from lockproviders.dynamodb.slots import DynamoSlotStore
from lockproviders.hivemetastore import database_client, thrift_client
from lockproviders.hookspecs import (
    ENTRY_POINT_GROUP,
    PROJECT_NAME,
    LockContext,
    LockProviderEntry,
    hookimpl,
)
from lockproviders.settings import (
    JAVA_PROVIDERS_TO_COME,
    PROVIDER_KEY,
    LockSettings,
    default_provider,
)
from lockproviders.sql import client as sql
from lockproviders.sql.settings import TABLE_NAME, SqlSettings
from lockproviders.sql.slots import SqlSlotStore
from lockproviders.storage_based import client as storage_based
from lockproviders.zookeeper import client as zookeeper
from timeline import hookspecs as merger_hooks
from timeline.errors import HoodooError, SettingError, UnknownProviderError, UnsafeSetupError
from timeline.model.slot import TamperEvidence
from timeline.ports.merger import RecordMerger
from timeline.ports.ports import Clock, EventSink, Executor, Ids
from timeline.ports.storage import Storage
from timeline.properties.options import (
    TABLE_LAYER,
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    read_option,
)
from timeline.storage.external_slots import ExternalSlotStorage
from timeline.storage.open_storage import storage_for
from timeline.system import FanOut

__all__ = [
    "SLOT_OPTIONS",
    "ProviderRegistry",
    "build_lock",
    "has_external_slots",
    "provider_options",
    "registry_for",
    "with_slot_store",
    "without_table_properties",
]

# --- Where commit slots are decided, from properties: on the table's storage, or in a database (SLOT-6)
#
# Beside the lock providers because it asks the same question, who may publish now, of the same
# servers: the connection is theirs, only the table is another. The default needs none of it.

SLOT_OPTIONS: Mapping[str, Option] = {
    "backend": Option(
        key="hoodoo.slots.backend",
        default="storage",
        kind=OptionKind.ENUM,
        choices=("storage", "sql", "dynamodb"),
        doc="What decides commit slots; equal for all writers of a table, for ever. Other than "
        "storage is for stores without an atomic create; connection as of the lock of that name.",
    ),
    "table": Option(
        key="hoodoo.slots.table",
        default="hoodoo_slots",
        doc="Table of the database, or of DynamoDB, that holds the slots of all tables.",
    ),
    "key": Option(
        key="hoodoo.slots.key",
        doc="Name of this table there; by default its address, which must then be the same for "
        "all writers.",
    ),
    "tamper_evidence": Option(
        key="hoodoo.slots.tamper.evidence",
        default="none",
        kind=OptionKind.ENUM,
        choices=tuple(each.value for each in TamperEvidence),
        doc="What this process adds to its slots so that `hoodoo table verify` sees later edits: "
        "the digest of the slot before and of the completed file (hash), signed with a key (hmac). "
        "For verify: what it demands of the chain.",
    ),
    "tamper_key_file": Option(
        key="hoodoo.slots.tamper.key.file",
        doc="File with mode 0600 that holds the keys, one a line of 32 characters or more: the "
        "first signs, all verify. Without it HOODOO_TAMPER_KEY in the environment.",
    ),
}


def has_external_slots(properties: Mapping[str, str]) -> bool:
    """Whether a caller's properties name another place for slots than the table's storage."""
    backend = SLOT_OPTIONS["backend"]
    return read_option(as_property_set(properties), backend) != backend.default


def with_slot_store(
    storage: Storage, properties: PropertySet, *, clock: Clock, ids: Ids
) -> Storage:
    """
    The storage that a table's writers and readers use: itself, or decided by a slot store.

    Nothing is asked of a database yet.

    Args:
        storage: Where the table lies.
        properties: All layers; a table itself has no say in it (SEC11).
        clock: Waits for a table that is being created.
        ids: Tells the process, makes identities.

    Raises:
        SettingError: A value is wrong or missing.
        UnsafeSetupError: A package is missing, or the table names the server.
    """
    own = properties.without_layer(TABLE_LAYER)
    if not has_external_slots(own):
        return storage
    said = {name: read_option(own, option) for name, option in SLOT_OPTIONS.items()}
    backend, table = str(said["backend"]), str(said["table"])
    key = str(said["key"] or storage.base_uri)
    store: SqlSlotStore | DynamoSlotStore
    if backend == "sql":
        if not TABLE_NAME.fullmatch(table):
            raise SettingError(
                f"letters, digits and _ only, 63 at most: {SLOT_OPTIONS['table'].key}={table!a}",
                kind="setting_value",
                key=SLOT_OPTIONS["table"].key,
                value=table,
                suggestion=SLOT_OPTIONS["table"].default,
            )
        sql = SqlSettings.from_properties(properties)
        store = SqlSlotStore(
            sql.database(ids, durable=True), table=table, may_create=sql.create_table
        )
    else:
        check_extra()
        dynamo = replace(
            DynamoSettings.from_properties(
                properties, implicit_key=key, machine_region=region_of_machine
            ),
            table=table,
        )
        store = DynamoSlotStore(dynamo, lambda: BotoTransport(dynamo), clock=clock, ids=ids)
    return ExternalSlotStorage(storage, store, where=store.identity, key=key, ids=ids)


# ---------------- The registry of plug-ins, and the one function that turns properties into a lock
#
# Lock providers and record mergers are found by pluggy: the built-in ones always, those of
# other distributions only when the caller allows the distribution by name, never because a
# table or a property names a module (SEC4). A registry is an ordinary object, made where the
# program is put together.

_LOG = logging.getLogger("hoodoo.lock")
_BASE_PATH = "hoodie.base.path"

#: Names that lock keys are inferred from, as Java's writers do.
_TOLD_BY_TABLE = ("hoodie.table.name", "hoodie.database.name")


class _BuiltIn:
    """The providers of this release, as a plug-in like any other."""

    @hookimpl
    def lock_provider_entries(self) -> tuple[LockProviderEntry, ...]:
        return (
            filesystem.ENTRY,
            inprocess.ENTRY,
            sql.ENTRY,
            storage_based.ENTRY,
            zookeeper.ENTRY,
            zookeeper.IMPLICIT_ENTRY,
            thrift_client.ENTRY,
            database_client.ENTRY,
            dynamodb.ENTRY,
            dynamodb.IMPLICIT_ENTRY,
        )


class ProviderRegistry:
    """
    All lock providers this program knows, and what else its plug-ins offer.

    Args:
        further_hooks: Modules with hook specifications of other packages, for plug-ins
            that implement more than locks.
    """

    def __init__(self, further_hooks: Sequence[ModuleType] = ()) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        for hooks in (hookspecs, merger_hooks, *further_hooks):
            self._manager.add_hookspecs(hooks)
        self._entries: dict[str, LockProviderEntry] = {}
        self.register(_BuiltIn(), "hoodoo")

    def register(self, plugin: object, name: str) -> None:
        """
        Take in one plug-in module or object.

        Raises:
            UnsafeSetupError: It was registered before, implements a hook that does not
                exist, or offers a name that is taken; nothing of it is kept.
        """
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._manager.get_plugin(name) is plugin:
                self._manager.unregister(name=name)
            raise UnsafeSetupError(
                f"the plug-in cannot be used, ask its author: {name}: {error}",
                kind="bad_plugin",
                plugin=name,
            ) from error
        try:
            self._entries = self._collect()
        except UnsafeSetupError:
            self._manager.unregister(name=name)
            raise

    def load(self, allow: Sequence[str]) -> None:
        """
        Load the plug-ins of the allowed distributions, and of no others.

        Args:
            allow: ``distribution`` or ``distribution:entry-point``, as the caller gave them.

        Raises:
            UnknownProviderError: An allowed name offers no plug-in here.
            UnsafeSetupError: See ``register``, or the plug-in cannot be imported.
        """
        for allowed in allow:
            found = _entry_points(allowed)
            if not found:
                raise UnknownProviderError(
                    f"no installed distribution offers this plug-in; install it first: {allowed}",
                    name=allowed,
                    known=list(self.known),
                )
            for entry_point in found:
                self.register(_imported(allowed, entry_point), f"{allowed}={entry_point.name}")

    @property
    def known(self) -> tuple[str, ...]:
        """Names of all providers, sorted."""
        return tuple(sorted(self._entries))

    @property
    def entries(self) -> tuple[LockProviderEntry, ...]:
        """All providers, sorted by name."""
        return tuple(self._entries[name] for name in self.known)

    def mergers(self, class_names: Sequence[str] = ()) -> tuple[RecordMerger, ...]:
        """
        What the plug-ins offer for tables in the merge mode CUSTOM.

        Args:
            class_names: Java classes as the caller names them; those that answer to one come
                alone, where there are any.
        """
        offered = [merger for mergers in self._manager.hook.record_mergers() for merger in mergers]
        named = [each for each in offered if not set(class_names).isdisjoint(each.class_names)]
        return tuple(named or offered)

    def offers(self, hook: str, **words: Any) -> tuple[Any, ...]:
        """Everything the plug-ins answer to a hook of ``further_hooks``."""
        answers = getattr(self._manager.hook, hook)(**words)
        return tuple(one for answer in answers for one in answer)

    def find(self, name: str) -> LockProviderEntry:
        """
        The provider of a name or of Hudi's class name.

        Raises:
            UnknownProviderError: Nobody offers it; lists what there is.
        """
        for entry in self._entries.values():
            if name == entry.name or name in entry.jvm_class_names:
                return entry
        to_come = JAVA_PROVIDERS_TO_COME.get(name)
        what = "no such lock provider" if to_come is None else f"no {to_come} lock yet"
        raise UnknownProviderError(
            f"{what}; this release has {', '.join(self.known)}; {PROVIDER_KEY} is {name[:200]!a}",
            name=name,
            known=list(self.known),
        )

    def _collect(self) -> dict[str, LockProviderEntry]:
        entries: dict[str, LockProviderEntry] = {}
        taken: set[str] = set()
        for offered in self._manager.hook.lock_provider_entries():
            for entry in offered:
                for name in (entry.name, *entry.jvm_class_names):
                    if name in taken:
                        raise UnsafeSetupError(
                            "two plug-ins offer the same lock provider; allow one of them "
                            f"only: {name}",
                            kind="duplicate_provider",
                            name=name,
                        )
                    taken.add(name)
                entries[entry.name] = entry
        return entries


def registry_for(
    properties: Mapping[str, str], further_hooks: tuple[ModuleType, ...] = ()
) -> ProviderRegistry:
    """
    The built-in providers, and those of the distributions that the caller allows (SEC4).

    Args:
        properties: Effective properties; what the table's own file says is not heard.
        further_hooks: As ``ProviderRegistry``.

    Raises:
        SettingError: A lock setting is wrong.
        UnknownProviderError, UnsafeSetupError: See ``ProviderRegistry.load``.
    """
    said = LockSettings.from_properties(without_table_properties(properties))
    return _loaded(said.plugins, further_hooks)


@cache
def _loaded(allow: tuple[str, ...], further_hooks: tuple[ModuleType, ...] = ()) -> ProviderRegistry:
    """Never registered to after it is made, so one serves every table."""
    registry = ProviderRegistry(further_hooks)
    registry.load(allow)
    return registry


def without_table_properties(properties: Mapping[str, str]) -> PropertySet:
    """All but what the table's own file says: it has no say in this, but for its names."""
    # SEC11: a table must not choose the servers its writers talk to, nor what they sign in with.
    return as_property_set(properties).without_layer(TABLE_LAYER, keep=_TOLD_BY_TABLE)


def provider_options(name: str | None = None) -> tuple[Option, ...]:
    """
    What can be set about the built-in providers, each key once.

    Args:
        name: Only this one, by its own name or Hudi's class name; an unknown one has none.
    """
    entries = [
        entry
        for entry in _loaded(()).entries
        if name is None or name == entry.name or name in entry.jvm_class_names
    ]
    return tuple({option.key: option for entry in entries for option in entry.options}.values())


def _entry_points(allowed: str) -> list[importlib.metadata.EntryPoint]:
    distribution, _, wanted = allowed.partition(":")
    try:
        offered = importlib.metadata.distribution(distribution).entry_points
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []
    return [
        entry_point
        for entry_point in offered
        if entry_point.group == ENTRY_POINT_GROUP and wanted in ("", entry_point.name)
    ]


def _imported(allowed: str, entry_point: importlib.metadata.EntryPoint) -> object:
    try:
        return entry_point.load()
    except (ImportError, AttributeError) as error:
        raise UnsafeSetupError(
            f"the plug-in cannot be imported: {allowed}: {entry_point.value}: {error}",
            kind="bad_plugin",
            plugin=allowed,
        ) from error


def build_lock(
    properties: Mapping[str, str],
    *,
    storage: Storage,
    clock: Clock,
    ids: Ids,
    events: EventSink,
    executor: Executor,
    table_identity: str,
    table_address: str | None = None,
    registry: ProviderRegistry | None = None,
) -> ProviderLock:
    """
    The lock the properties ask for.

    Args:
        properties: Effective properties; only the lock's keys are read, and none that the
            table's own file says.
        storage: Where the table lies; decides the default provider.
        clock: Clock port.
        ids: Identity port.
        events: Event port.
        executor: Runs renewal and alarms.
        table_identity: Canonical identity of the table, equal for all its writers.
        table_address: The table as the caller spelled it, where ``hoodie.base.path`` does not
            say how Java does; the storage's own address by default.
        registry: The providers to choose from; as ``registry_for`` by default.

    Raises:
        SettingError: A value is wrong.
        UnknownProviderError: The named provider is not in this release.
        UnsafeSetupError: The provider cannot work with this storage.
    """
    properties = without_table_properties(properties)
    settings = LockSettings.from_properties(properties)
    capabilities = storage.capabilities
    entry = (registry or _loaded(settings.plugins)).find(
        settings.provider or default_provider(capabilities)
    )
    client = entry.factory(
        LockContext(
            properties=properties,
            table_identity=table_identity,
            table_address=_java_s_path(properties, storage) or table_address or storage.base_uri,
            table_folder=capabilities.local_root,
            clock=clock,
            ids=ids,
        )
    )
    budget = WaitBudget(
        deadline_ms=settings.deadline_ms,
        try_ms=settings.try_ms,
        retries=settings.retries,
        pause_ms=settings.pause_ms,
        hold_budget_ms=settings.hold_budget_ms,
        poll_first_ms=entry.poll_first_ms,
        poll_max_ms=entry.poll_max_ms,
    )
    if settings.audit:
        trail = AuditTrail(
            storage,
            clock=clock,
            executor=executor,
            events=events,
            keep_days=settings.audit_keep_days,
        )
        events = FanOut((events, trail))
    ports = LockPorts(clock=clock, ids=ids, events=events, executor=executor)
    return ProviderLock(entry.name, client, budget=budget, ports=ports)


def _java_s_path(properties: PropertySet, storage: Storage) -> str | None:
    """
    The table's path as Java's writers are told, unless it is certainly another table's.

    One file of properties serves several tables: its path would lead the lock of this one to a
    place where Java's writers of this one do not look.
    """
    said = properties.get(_BASE_PATH)
    if not said:
        return None
    try:
        there = storage_for(said, options=properties)
    except HoodooError:
        return said  # a scheme of Java's alone, say: the same table by another door
    here_root, there_root = storage.capabilities.local_root, there.capabilities.local_root
    is_comparable = (here_root is None) == (there_root is None)
    if there_root is not None and not Path(there_root).is_dir():
        is_comparable = False  # where Java's machines have mounted it
    if not is_comparable or there.base_uri == storage.base_uri:
        return said
    _LOG.warning(
        "%s names another table than the one that is opened, and its lock is not taken there: %s "
        "instead of %s",
        _BASE_PATH,
        ascii(said),
        storage.base_uri,
    )
    return None

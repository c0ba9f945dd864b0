"""The registry of lock providers and slot stores, and their choice by properties."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from lockproviders import hookspecs
from lockproviders.acquire import LockPorts, ProviderLock, WaitBudget
from lockproviders.hookspecs import (
    ENTRY_POINT_GROUP,
    PROJECT_NAME,
    LockContext,
    LockProviderEntry,
    hookimpl,
)
from lockproviders.settings import (
    PROVIDER_KEY,
    LockSettings,
    default_provider,
)
from timeline import hookspecs as merger_hooks
from timeline.errors import HoodooError, UnknownProviderError, UnsafeSetupError
from timeline.model.slot import TamperEvidence
from timeline.ports.merger import RecordMerger
from timeline.ports.ports import Clock, EventSink, Executor, Ids, Storage
from timeline.properties.options import (
    TABLE_LAYER,
    Option,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
    read_option,
)
from timeline.storage.open_storage import storage_for
from timeline.system import FanOut

if TYPE_CHECKING:
    from lockproviders.dynamodb.slots import DynamoSlotStore
    from lockproviders.sql.slots import SqlSlotStore

# ---- Slot stores: commit slots on the table's storage, or in a database (SLOT-6)
#
# They are here because they use the servers and connections of the lock providers; only the
# database table differs. The default needs none of it.


class SlotSettings(OptionSettings):
    """Where commit slots are decided, and what makes later edits of them visible."""

    backend: str = option(
        "hoodoo.slots.backend",
        "storage",
        "Store of the commit slots; must be equal for all writers of a table and never change. "
        "sql and dynamodb are for stores without an atomic create and use the connection of the "
        "lock of that name.",
        choices=("storage", "sql", "dynamodb"),
    )
    table: str = option(
        "hoodoo.slots.table",
        "hoodoo_slots",
        "Table of the database, or of DynamoDB, with the slots of all tables.",
    )
    key: str | None = option(
        "hoodoo.slots.key",
        None,
        "Name of this table in the slot store. The default is the table's address, "
        "which must then be the same for all writers.",
    )
    tamper_evidence: str = option(
        "hoodoo.slots.tamper.evidence",
        "none",
        "Data that this process adds to its slots so that `hoodoo table verify` finds"
        " later edits: digests of the previous slot and of the completed file (hash),"
        " also signed with a key (hmac). For verify: what it requires of the hash "
        "chain.",
        choices=tuple(each.value for each in TamperEvidence),
    )
    tamper_key_file: str | None = option(
        "hoodoo.slots.tamper.key.file",
        None,
        "File with mode 0600 with the keys, one on each line, 32 characters or more. "
        "The first signs, all verify. Without it, HOODOO_TAMPER_KEY in the "
        "environment.",
    )


def has_external_slots(properties: Mapping[str, str]) -> bool:
    """Return whether a caller's properties name a slot store other than the table's storage."""
    backend = SlotSettings.options["backend"]
    value = read_option(as_property_set(properties), backend)
    return value not in (None, backend.default)  # an empty text counts as missing


def with_slot_store(
    storage: Storage, properties: PropertySet, *, clock: Clock, ids: Ids
) -> Storage:
    """
    Return the storage for a table's writers and readers: itself, or wrapped by a slot store.

    It sends no request to a database yet.

    Args:
        storage: The table's storage.
        properties: All layers; the table's own file has no effect here (SEC11).
        clock: Waits for a database table that is being created.
        ids: Identifies the process, makes identities.

    Raises:
        SettingError: A value is wrong or missing.
        UnsafeSetupError: A package is missing, or the table names the server.
    """
    own = properties.without_layer(TABLE_LAYER)
    if not has_external_slots(own):
        return storage
    from timeline.storage.external_slots import ExternalSlotStorage

    slots = SlotSettings.from_properties(own)
    backend, table = slots.backend, slots.table
    key = slots.key or storage.base_uri
    store: SqlSlotStore | DynamoSlotStore
    if backend == "sql":
        from lockproviders.sql.settings import TABLE_NAME, SqlSettings
        from lockproviders.sql.slots import SqlSlotStore

        if not TABLE_NAME.fullmatch(table):
            why = "letters, digits and _ only, 63 at most"
            raise SlotSettings.refusal(own, "table", why, "hoodoo_slots")
        sql = SqlSettings.from_properties(properties)
        store = SqlSlotStore(
            sql.database(ids, durable=True), table=table, may_create=sql.create_table
        )
    else:
        from lockproviders.dynamodb.connection import (
            BotoTransport,
            check_extra,
            region_of_machine,
        )
        from lockproviders.dynamodb.settings import DynamoSettings
        from lockproviders.dynamodb.slots import DynamoSlotStore

        check_extra()
        dynamo = DynamoSettings.from_properties(
            properties, implicit_key=key, machine_region=region_of_machine
        ).model_copy(update={"table": table})
        store = DynamoSlotStore(dynamo, lambda: BotoTransport(dynamo), clock=clock, ids=ids)
    return ExternalSlotStorage(storage, store, where=store.identity, key=key, ids=ids)


# ---- Plug-ins, and the function that builds a lock from properties
#
# pluggy finds the built-in lock providers and record mergers always. It finds those of other
# distributions only if the caller allows the distribution by name, never because a table or a
# property names a module (SEC4). ``registry_for`` returns the registry, an ordinary object.

_LOG = logging.getLogger("hoodoo.lock")
_BASE_PATH = "hoodie.base.path"

#: Names that lock keys are inferred from, as Java's writers do.
_KEPT_OF_TABLE = ("hoodie.table.name", "hoodie.database.name")


#: Provider of this release -> its entry; the module is imported when the entry is needed.
_ENTRIES_BUILT_IN: Mapping[str, str] = {
    "filesystem": "lockproviders.filesystem:ENTRY",
    "in_process": "lockproviders.inprocess:ENTRY",
    "sql": "lockproviders.sql.client:ENTRY",
    "storage_based": "lockproviders.storage_based.client:ENTRY",
    "zookeeper": "lockproviders.zookeeper.client:ENTRY",
    "zookeeper_implicit": "lockproviders.zookeeper.client:IMPLICIT_ENTRY",
    "hivemetastore": "lockproviders.hivemetastore.thrift_client:ENTRY",
    "hivemetastore_database": "lockproviders.hivemetastore.database_client:ENTRY",
    "dynamodb": "lockproviders.dynamodb.client:ENTRY",
    "dynamodb_implicit": "lockproviders.dynamodb.client:IMPLICIT_ENTRY",
}


class _BuiltIn:
    """The providers of this release, as a plug-in."""

    @hookimpl
    def lock_provider_entries(self) -> tuple[LockProviderEntry, ...]:
        return tuple(map(_built_in, _ENTRIES_BUILT_IN))


def _built_in(name: str) -> LockProviderEntry:
    entry: LockProviderEntry = resolve_name(_ENTRIES_BUILT_IN[name])
    return entry


class ProviderRegistry:
    """
    All lock providers that this program knows, and further offers of its plug-ins.

    Args:
        further_hooks: Modules with hook specifications of other packages, for plug-ins that
            implement more than locks.
    """

    def __init__(self, further_hooks: Sequence[ModuleType] = ()) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        for hooks in (hookspecs, merger_hooks, *further_hooks):
            self._manager.add_hookspecs(hooks)
        self._manager.register(_BuiltIn(), "hoodoo")
        self._collected: dict[str, LockProviderEntry] | None = None

    def register(self, plugin: object, name: str) -> None:
        """
        Register one plug-in module or object.

        Raises:
            UnsafeSetupError: It was registered before, implements a hook that does not exist, or
                offers a name that is taken; none of its offers is kept.
        """
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._manager.get_plugin(name) is plugin:
                self._manager.unregister(name=name)
            raise UnsafeSetupError(
                f"the plug-in cannot be used: ask its author: {name}: {error}",
                kind="bad_plugin",
                plugin=name,
            ) from error
        try:
            self._collected = self._collect()
        except UnsafeSetupError:
            self._manager.unregister(name=name)
            raise

    def load(self, allow: Sequence[str]) -> None:
        """
        Load the plug-ins of the allowed distributions, and of no others.

        Args:
            allow: ``distribution`` or ``distribution:entry-point``, as given by the caller.

        Raises:
            UnknownProviderError: An allowed name offers no plug-in here.
            UnsafeSetupError: See ``register``, or the plug-in cannot be imported.
        """
        for allowed in allow:
            found = _entry_points(allowed)
            if not found:
                raise UnknownProviderError(
                    f"no installed distribution provides this plug-in: install it first: {allowed}",
                    name=allowed,
                    known=list(self.known),
                )
            for entry_point in found:
                self.register(_imported(allowed, entry_point), f"{allowed}={entry_point.name}")

    @property
    def known(self) -> tuple[str, ...]:
        """Names of all providers, sorted."""
        return tuple(sorted(self._entries()))

    @property
    def entries(self) -> tuple[LockProviderEntry, ...]:
        """All providers, sorted by name."""
        return tuple(self._entries()[name] for name in self.known)

    def mergers(self, class_names: Sequence[str] = ()) -> tuple[RecordMerger, ...]:
        """
        Return the mergers that the plug-ins offer for tables in the merge mode CUSTOM.

        Args:
            class_names: Names of Java classes from the caller; if any merger has one of these
                names, only those are returned.
        """
        offered = [merger for mergers in self._manager.hook.record_mergers() for merger in mergers]
        named = [each for each in offered if not set(class_names).isdisjoint(each.class_names)]
        return tuple(named or offered)

    def offers(self, hook: str, **words: Any) -> tuple[Any, ...]:
        """Return all answers of the plug-ins to a hook of ``further_hooks``."""
        answers = getattr(self._manager.hook, hook)(**words)
        return tuple(one for answer in answers for one in answer)

    def find(self, name: str) -> LockProviderEntry:
        """
        Return the provider with this name or Hudi class name.

        Raises:
            UnknownProviderError: No plug-in offers it; lists the known names.
        """
        if name in _ENTRIES_BUILT_IN:  # a plug-in cannot take the name
            return _built_in(name)
        for entry in self._entries().values():
            if name == entry.name or name in entry.jvm_class_names:
                return entry
        raise UnknownProviderError(
            f"this lock provider is unknown; choose one of {', '.join(self.known)}; "
            f"{PROVIDER_KEY} is {name[:200]!a}",
            name=name,
            known=list(self.known),
        )

    def _entries(self) -> dict[str, LockProviderEntry]:
        """Return all providers by name; the first call imports those of this release."""
        if self._collected is None:
            self._collected = self._collect()
        return self._collected

    def _collect(self) -> dict[str, LockProviderEntry]:
        entries: dict[str, LockProviderEntry] = {}
        taken: set[str] = set()
        for offered in self._manager.hook.lock_provider_entries():
            for entry in offered:
                for name in (entry.name, *entry.jvm_class_names):
                    if name in taken:
                        raise UnsafeSetupError(
                            "two plug-ins provide the same lock provider: allow one of them "
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
    Return the built-in providers and those of the distributions that the caller allows (SEC4).

    Args:
        properties: Effective properties; the table's own file has no effect.
        further_hooks: As ``ProviderRegistry``.

    Raises:
        SettingError: A lock setting is wrong.
        UnknownProviderError, UnsafeSetupError: See ``ProviderRegistry.load``.
    """
    settings = LockSettings.from_properties(without_table_properties(properties))
    return _loaded(settings.plugins, further_hooks)


@cache
def _loaded(allow: tuple[str, ...], further_hooks: tuple[ModuleType, ...] = ()) -> ProviderRegistry:
    """Return the cached registry; no code registers later, so one serves every table."""
    registry = ProviderRegistry(further_hooks)
    registry.load(allow)
    return registry


def without_table_properties(properties: Mapping[str, str]) -> PropertySet:
    """Return all properties but those of the table's own file, except for its names."""
    # SEC11: a table must not choose the servers or the credentials of its writers.
    return as_property_set(properties).without_layer(TABLE_LAYER, keep=_KEPT_OF_TABLE)


def provider_options(name: str | None = None) -> tuple[Option, ...]:
    """
    Return the options of the built-in providers, each key once.

    Args:
        name: Only this provider, by its own name or Hudi's class name; an unknown one has none.
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
            "the plug-in cannot be imported: install a version that fits, or remove it from "
            f"hoodoo.plugins.allow: {allowed}: {entry_point.value}: {error}",
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
    Build the lock that the properties ask for.

    Args:
        properties: Effective properties; only the lock's keys are read, and none of the table's own
            file.
        storage: The table's storage; decides the default provider.
        clock: Clock port.
        ids: Identity port.
        events: Event port.
        executor: Runs renewal and alarms.
        table_identity: Canonical identity of the table, equal for all its writers.
        table_address: The table as the caller spelled it, used if ``hoodie.base.path`` does not
            give Java's spelling; the storage's own address by default.
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
        from lockproviders.audit import AuditTrail

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
    Return the table's path in Java's spelling, unless it is certainly another table's.

    One properties file may serve several tables. The path of another table would make this table's
    lock differ from the one that its Java writers take.
    """
    base_path = properties.get(_BASE_PATH)
    if not base_path:
        return None
    try:
        there = storage_for(base_path, options=properties)
    except HoodooError:
        return base_path  # for example a scheme that only Java knows: the same table at another address
    here_root, there_root = storage.capabilities.local_root, there.capabilities.local_root
    is_comparable = (here_root is None) == (there_root is None)
    if there_root is not None and not Path(there_root).is_dir():
        is_comparable = False  # the path as Java's machines have it mounted
    if not is_comparable or there.base_uri == storage.base_uri:
        return base_path
    _LOG.warning(
        "%s names another table than the open one, and the lock is not taken there: %s instead "
        "of %s",
        _BASE_PATH,
        ascii(base_path),
        storage.base_uri,
    )
    return None

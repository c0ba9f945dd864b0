"""Register a writer, check its lock against Java writers, and deregister it at exit."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from filegroups.settings.known_keys import UNSUPPORTED_SERVICES, refuse_unsupported
from filegroups.settings.settings import WriteSettings
from filegroups.settings.writer_agreement import agreement_of
from filegroups.supported import refuse_old_version
from lockproviders.registry import ProviderRegistry, registry_for
from timeline.context import TableContext
from timeline.errors import StorageCapabilityError
from timeline.model.commit_metadata import ConcurrencyMode
from timeline.ports.ports import Lock
from timeline.properties.options import PropertySet
from timeline.properties.setting_enums import ForeignWriters
from timeline.storage.non_atomic import prove_atomic_create
from timeline.system import await_exit
from timeline.writer_registry import Registration, register_process, warn_other_zone

# ---- Whether the lock of a writer is one that writers of other engines take, where there are some


def refuse_unshared_lock(settings: WriteSettings, lock: Lock, registry: ProviderRegistry) -> None:
    """
    Pass when nobody else is expected, or the lock excludes Java Hudi (FOR-1).

    Raises:
        StorageCapabilityError: Writers of other engines, who know nothing but the lock, would
            not be excluded.
    """
    if settings.foreign_writers is not ForeignWriters.EXPECTED:
        return
    provider = lock.provider
    if not registry.find(provider).capabilities.excludes_java:
        shared = [entry.name for entry in registry.entries if entry.capabilities.excludes_java]
        raise StorageCapabilityError(
            "writers of other engines are expected (hoodoo.foreign.writers), and the lock "
            f"provider {provider!r} does not exclude them; take turns with them, or use one that "
            f"Java Hudi shares: {', '.join(shared)}",
            kind="lock_not_shared",
            missing="excludes_java",
            provider=provider,
        )


# ----- Entering the registry of a table's writers, and leaving it however the program ends (REG-1)
#
# An entry that stays behind seems alive until it was silent for long enough; until then it refuses
# writers that are configured otherwise, and holds commit slots back from the archive.

_LEAVING_MS_MAX = 5_000  # a program must end, whether its storage answers or not

_entered: dict[int, tuple[Registration, int]] = {}
"""By identity of a table's context: its registration, and the process, as a fork's child has none."""
_at_exit: dict[int, Callable[[int], None]] = {}
"""By process, what leaves them when it ends."""


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
        UnsupportedTableError: The table is of version 6, which is not written.
        SettingError: An option would keep files that a service deletes.
    """
    refuse_unsupported(properties, UNSUPPORTED_SERVICES)
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
    known.widen_buckets(buckets)


def unregister_writer(context: TableContext) -> None:
    """Remove the entry of this process from a table's registry, if there is one."""
    known, _ = _entered.pop(id(context), (None, 0))
    if known is not None:
        known.unregister()


@atexit.register
def _leave_all() -> None:
    """Leave the registries if the program ends without closing its tables."""
    for pid in {pid for entry, pid in _entered.values() if pid == _pid_of(entry)}:
        _at_exit[pid](_LEAVING_MS_MAX)


def _leave() -> None:
    for entry, pid in tuple(_entered.values()):
        if pid == _pid_of(entry):
            with suppress(Exception):  # it expires after its silence
                entry.unregister()


def _pid_of(entry: Registration) -> int:
    return entry.context.ports.ids.identity().pid

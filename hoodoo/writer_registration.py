"""Register a writer, check its lock against Java writers, and deregister it at exit."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress

from filegroups.settings.settings import WriteSettings
from filegroups.settings.writer_agreement import agreement_of
from filegroups.table import Table
from lockproviders.registry import ProviderRegistry, registry_for
from timeline.errors import StorageCapabilityError
from timeline.ports.lock import Lock
from timeline.properties.options import PropertySet
from timeline.properties.setting_enums import ForeignWriters
from timeline.system import await_exit

__all__ = ["refuse_unshared_lock", "register_writer", "unregister_writer"]


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

_entered: dict[Table, int] = {}
"""Tables whose registries this process is in, and its number: a fork's child is in none."""
_at_exit: dict[int, Callable[[int], None]] = {}
"""By process, what leaves them when it ends."""


def register_writer(
    core: Table, properties: PropertySet, settings: WriteSettings, buckets: str
) -> None:
    """
    Enter the registry of those who change the table, once.

    Raises:
        WriterDisagreementError: A live writer is configured differently, or owns ``buckets``.
        StorageCapabilityError: Writers of other engines are expected, and they do not take
            this lock.
    """
    if core.registered(buckets):  # every write and service asks; properties never change
        return
    world = core.context.world
    refuse_unshared_lock(settings, world.lock, registry_for(properties))
    core.register(agreement_of(settings, world, core.context.zone), buckets)
    pid = world.ids.identity().pid
    _entered[core] = pid
    if pid not in _at_exit:
        _at_exit[pid] = await_exit(_leave)


def unregister_writer(core: Table) -> None:
    """The table is closed, and leaves the registry by itself."""
    _entered.pop(core, None)


@atexit.register
def _leave_all() -> None:
    """A program ends that did not close its tables, or was interrupted before."""
    for pid in {pid for core, pid in _entered.items() if pid == _pid_of(core)}:
        _at_exit[pid](_LEAVING_MS_MAX)


def _leave() -> None:
    for core, pid in tuple(_entered.items()):
        if pid == _pid_of(core):
            with suppress(Exception):  # then it is given up after its silence, as ever
                core.leave()


def _pid_of(core: Table) -> int:
    return core.context.world.ids.identity().pid

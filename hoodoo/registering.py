"""
Entering the registry of a table's writers, and leaving it however the program ends (REG-1).

An entry that stays behind seems alive until it was silent for long enough; until then it refuses
writers that are configured otherwise, and holds commit slots back from the archive.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress

from hoodoo.shared_lock import refuse_unshared_lock
from lockproviders.registry import registry_for
from timeline.machine import await_exit
from timeline.properties.agreement import agreement_of
from timeline.properties.options import PropertySet
from timeline.properties.settings import WriteSettings
from timeline.table import Table

__all__ = ["join_writers", "leave_writers"]

_LEAVING_MS_MAX = 5_000  # a program must end, whether its storage answers or not

_entered: dict[Table, int] = {}
"""Tables whose registries this process is in, and its number: a fork's child is in none."""
_at_exit: dict[int, Callable[[int], None]] = {}
"""By process, what leaves them when it ends."""


def join_writers(
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


def leave_writers(core: Table) -> None:
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

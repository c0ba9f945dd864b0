"""
What a first write would refuse of the settings, asked without a table and without a server.

Lock, slot store and conflict strategy are made as for a table on a local disk, and given up: what
only the table or a server can tell is left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hoodoo.conflicts import conflict_strategy
from lockproviders.hookspecs import LockContext
from lockproviders.registry import registry_for, said_by_caller
from lockproviders.settings import LockSettings
from lockproviders.slot_stores import with_slot_store
from timeline.machine import SystemClock, SystemIds
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.properties.settings import WriteSettings
from timeline.storage.memory import MemoryStorage

__all__ = ["TRIALS"]


def _strategy(properties: PropertySet) -> None:
    conflict_strategy(WriteSettings.from_properties(properties), properties)


def _lock(properties: PropertySet) -> None:
    own = said_by_caller(properties)
    provider = LockSettings.from_properties(own).provider
    if not provider:
        return  # the storage of the table chooses
    entry = registry_for(properties).find(provider)
    if entry.name in _AT_THE_TABLE:
        return
    if own.keys().isdisjoint(_TABLE_NAMES):  # the table itself will tell it
        own = own.with_layer(TABLE_LAYER, {_TABLE_NAMES[0]: "table"})
    entry.factory(_context(own)).close()


_TABLE_NAMES = ("hoodie.table.name", "hoodie.datasource.write.table.name")
#: Made of the table's own address.
_AT_THE_TABLE = frozenset({"storage_based"})


def _context(properties: Mapping[str, str]) -> LockContext:
    return LockContext(
        properties=properties,
        table_identity="file:/table",
        table_address="file:/table",
        table_folder="/table",
        clock=SystemClock(),
        ids=SystemIds(),
    )


def _slots(properties: PropertySet) -> None:
    with_slot_store(MemoryStorage(), properties, clock=SystemClock(), ids=SystemIds())


#: Each raises what is wrong, as a ``HoodooError``.
TRIALS: tuple[Callable[[PropertySet], None], ...] = (_strategy, _lock, _slots)

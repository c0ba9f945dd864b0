"""
What a port call touches: the ground on which two calls may or may not change places.

A footprint names objects and folders. Two calls meet when one changes what the other reads or
changes; creates of different names in one folder do not meet, a listing meets them all, and two
deletes of one name leave the same behind. A create of what is there, and a delete of what is
not, only look. The order of slots against deletes of data counts as well, because the checks look at it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator.faults import Fault
from tests.simulator.world import CallKind, PortCall, SimulatedSystem
from timeline.model.file_names import HOODIE, SLOTS

_NOTHING: frozenset[str] = frozenset()
_LOCK = "\0lock"
_ORDER = "\0order of slots and deletes"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Objects read, changed, deleted; folders listed and changed (names come or go)."""

    reads: frozenset[str] = _NOTHING
    changes: frozenset[str] = _NOTHING
    deletes: frozenset[str] = _NOTHING
    lists: frozenset[str] = _NOTHING
    folders: frozenset[str] = _NOTHING
    lock: str = ""  # what it does to the lock

    def meets(self, other: Footprint) -> bool:
        """Whether the two must not change places unseen."""
        return not (
            self.changes.isdisjoint(other.changes)
            and self.changes.isdisjoint(other.reads)
            and self.changes.isdisjoint(other.deletes)
            and self.reads.isdisjoint(other.changes)
            and self.reads.isdisjoint(other.deletes)
            and self.deletes.isdisjoint(other.changes)
            and self.deletes.isdisjoint(other.reads)
            and self.folders.isdisjoint(other.lists)
            and self.lists.isdisjoint(other.folders)
        )

    def waits_for(self, other: Footprint) -> bool:
        """Whether this could not have been done before the other (a lock given back)."""
        return self.lock == "acquire" and other.lock == "release"

    def and_also(self, other: Footprint) -> Footprint:
        """Both together."""
        return Footprint(
            self.reads | other.reads,
            self.changes | other.changes,
            self.deletes | other.deletes,
            self.lists | other.lists,
            self.folders | other.folders,
            self.lock or other.lock,
        )


def footprint_of(world: SimulatedSystem, call: PortCall) -> Footprint:
    """What a call would touch now."""
    if call.port == "lock":
        return Footprint(changes=frozenset({_LOCK}), lock=call.method)
    if call.port != "storage" or call.method == "sync_folders":
        return Footprint()
    path = call.path
    if call.method in ("list", "names"):
        return Footprint(lists=frozenset({path}))
    if call.method == "delete_folder":
        below = world.paths_below(path)
        folders = {path}.union(*(_folders(world, one) for one in below))
        return Footprint(
            deletes=frozenset(below), lists=frozenset(folders), folders=frozenset(folders)
        )
    there = path in world.files
    looks_only = (call.method == "create" and there) or (call.method == "delete" and not there)
    if call.kind == CallKind.READ or looks_only:
        lists = frozenset({path}) if call.method == "stat" else _NOTHING
        return Footprint(reads=frozenset({path}), lists=lists)
    if call.method == "delete":
        reads = _NOTHING if path.startswith(f"{HOODIE}/") else frozenset({_ORDER})
        return Footprint(reads=reads, deletes=frozenset({path}), folders=_folders(world, path))
    changes = {path, _ORDER} if path.startswith(f"{SLOTS}/") else {path}
    return Footprint(changes=frozenset(changes), folders=_folders(world, path))


def _folders(world: SimulatedSystem, path: str) -> frozenset[str]:
    """The folder of a path, and those above it that come or go with it."""
    found = set()
    folder = path.rpartition("/")[0]
    while True:
        found.add(folder)
        # The last name that goes takes its folder along, the first one brings it.
        if not folder or len(world.child_names(folder)) > 1:
            return frozenset(found)
        folder = folder.rpartition("/")[0]


def footprint_of_fault(kind: str) -> Footprint:
    """What a fault touches beside its call: a death, and a lost lease, may free the lock."""
    if kind in _FREE_THE_LOCK:
        return Footprint(changes=frozenset({_LOCK}))
    return Footprint()


_FREE_THE_LOCK = frozenset(
    {Fault.CRASH_BEFORE.value, Fault.CRASH_AFTER.value, Fault.LEASE_LOST.value}
)

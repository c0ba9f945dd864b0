"""
The objects and folders that a port call reads or changes; they decide which calls commute.

Two calls conflict when one changes an object that the other reads or changes. Creates of
different names in one folder commute. A listing conflicts with both. Two deletes of one name have
the same result. A create of an existing file, and a delete of a missing one, only read. The order
of slots and data deletes counts too, because the checks depend on it.
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
    """Objects read, changed and deleted; folders listed and changed (names appear or disappear)."""

    reads: frozenset[str] = _NOTHING
    changes: frozenset[str] = _NOTHING
    deletes: frozenset[str] = _NOTHING
    lists: frozenset[str] = _NOTHING
    folders: frozenset[str] = _NOTHING
    lock: str = ""  # its effect on the lock

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
        """Whether this call was impossible before the other one, which released a lock."""
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
    """The footprint that a call would have now."""
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
    reads_only = (call.method == "create" and there) or (call.method == "delete" and not there)
    if call.kind == CallKind.READ or reads_only:
        lists = frozenset({path}) if call.method == "stat" else _NOTHING
        return Footprint(reads=frozenset({path}), lists=lists)
    if call.method == "delete":
        reads = _NOTHING if path.startswith(f"{HOODIE}/") else frozenset({_ORDER})
        return Footprint(reads=reads, deletes=frozenset({path}), folders=_folders(world, path))
    changes = {path, _ORDER} if path.startswith(f"{SLOTS}/") else {path}
    return Footprint(changes=frozenset(changes), folders=_folders(world, path))


def _folders(world: SimulatedSystem, path: str) -> frozenset[str]:
    """The folder of a path, and the parent folders that appear or disappear with it."""
    found = set()
    folder = path.rpartition("/")[0]
    while True:
        found.add(folder)
        # The last name that goes takes its folder along, the first one brings it.
        if not folder or len(world.child_names(folder)) > 1:
            return frozenset(found)
        folder = folder.rpartition("/")[0]


def footprint_of_fault(kind: str) -> Footprint:
    """What a fault touches in addition to its call: a death or a lost lease may free the lock."""
    if kind in _FREE_THE_LOCK:
        return Footprint(changes=frozenset({_LOCK}))
    return Footprint()


_FREE_THE_LOCK = frozenset(
    {Fault.CRASH_BEFORE.value, Fault.CRASH_AFTER.value, Fault.LEASE_LOST.value}
)

"""Permissions to delete: from slots, and from a writer's own uncommitted attempt (I9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.simulator.table_facts import DeletionFact, ObservedSlotKind, SlotFact


class DeleteRules:
    """Permissions to delete, by path and instant: a long run has as many deletions as slots."""

    def __init__(self, slots: Iterable[SlotFact]) -> None:
        self._cleaned: dict[str, int] = {}  # the first slots that allow it
        self._aborted: dict[str, int] = {}
        self._published: dict[str, list[set[str]]] = defaultdict(list)
        for slot in sorted(slots, key=lambda one: one.number):
            if slot.kind is ObservedSlotKind.CLEAN:
                for path in slot.removes:
                    self._cleaned.setdefault(path, slot.number)
            elif slot.kind is ObservedSlotKind.ABORT:
                self._aborted.setdefault(slot.requested_time, slot.number)
            elif slot.kind is ObservedSlotKind.COMMIT:
                paths = {stat.path for stat in slot.stats}
                self._published[slot.requested_time].append(paths)

    def allow(self, deletion: DeletionFact) -> bool:
        """Whether a slot of that moment, or the owner's own unpublished attempt, gave the right."""
        head, instant = deletion.head, deletion.requested_time
        if self._cleaned.get(deletion.path, head + 1) <= head:
            return True
        if self._aborted.get(instant, head + 1) <= head:
            return True
        commits = self._published.get(instant, [])
        if any(deletion.path not in paths for paths in commits):
            return True  # an attempt file that its own commit left out (PUB-1)
        return not commits and deletion.actor == deletion.owner

"""
What a cleaner that looks again and again remembers: that there was nothing to supersede.

A table into which only new file groups come has nothing to clean however long it grows;
listing all of it after every commit would make small commits slower and slower. Only a hint
of this process: commits of another engine are met by the next full look.
"""

from __future__ import annotations

from dataclasses import dataclass

from tableservices.cleaning.plan import CleanFacts
from timeline.context import TableContext
from timeline.errors import MissingFileError
from timeline.model.claim import Touch
from timeline.model.slot import SlotKind
from timeline.reading.snapshot import Snapshot

__all__ = ["CleanMemory"]


@dataclass(slots=True)
class CleanMemory:
    """
    The newest head at which no file was superseded by a newer one; None before a look.

    ``looked_at_ms`` is when the table was last looked at in full, on the monotonic clock.
    """

    head: int | None = None
    looked_at_ms: int = 0

    def may_rest(self, context: TableContext) -> bool:
        """
        Whether a look would find nothing: no file superseded, and no time for one to die.

        Dead writers and leftovers become such by the passing of heartbeats, so one look in
        a heartbeat's interval finds them soon enough. Outside: as ``still_quiet``.
        """
        since_ms = context.world.clock.monotonic_ms() - self.looked_at_ms
        return since_ms < context.limits.heartbeat.interval_ms and self.still_quiet(context)

    def note(self, snapshot: Snapshot, facts: CleanFacts) -> None:
        """Remember a look at everything, and what it found."""
        quiet = not facts.replaced and all(len(slices) < 2 for slices in facts.groups.values())
        self.head = snapshot.head if quiet else None

    def note_look(self, context: TableContext) -> None:
        """Remember that everything was looked at, dead writers and leftovers too."""
        self.looked_at_ms = context.world.clock.monotonic_ms()

    def still_quiet(self, context: TableContext) -> bool:
        """Whether only new file groups came since. Outside: 1 get per new slot and 1 more."""
        if self.head is None:
            return False
        head = context.chain.head()
        try:
            slots = context.chain.between(self.head, head)
        except MissingFileError:  # archived since: nobody knows what they did
            self.head = None
            return False
        for slot in slots:
            fresh = all(item.touch is Touch.NEW for item in slot.claim.file_groups)
            if slot.kind is not SlotKind.COMMIT or not fresh or slot.claim.partitions:
                self.head = None
                return False
        self.head = head
        return True

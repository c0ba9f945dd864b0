"""
A read set: the state a write was made from, and which part of it was read.

Handed to the write beside its rows (``table.upsert(rows, reads=...)``), so that publication
can judge whether the rows are still what they would be if they were made now.
"""

from __future__ import annotations

from dataclasses import dataclass

from timeline.reading.read import Filter
from timeline.reading.snapshot import Snapshot
from timeline.rules.isolation import Isolation, WhatIRead

__all__ = ["READS_KEY", "ReadSet"]

#: In the extra metadata of a commit that was made from reads: its partitions, or ``*``.
READS_KEY = "hoodoo.reads"


@dataclass(frozen=True, kw_only=True)
class ReadSet:
    """
    What was read. Made by ``TableSnapshot.reads``.

    Args:
        snapshot: The state.
        partitions: Partition paths that were read, also those without rows; None for all.
        filter: The rows that were asked for there; None for all.
        address: Canonical address of the table, which alone can be asked what came since.
        level: What a write from it is promised; None for ``hoodoo.write.isolation.level``.
    """

    snapshot: Snapshot
    address: str
    partitions: tuple[str, ...] | None = None
    filter: Filter = None
    level: Isolation | None = None

    @property
    def text(self) -> str:
        """The partitions, for the commit metadata."""
        return "*" if self.partitions is None else ",".join(self.partitions)

    @property
    def part(self) -> WhatIRead:
        """As the rules see it."""
        return WhatIRead(
            partitions=None if self.partitions is None else frozenset(self.partitions),
            instants=frozenset(self.snapshot.completions),
        )

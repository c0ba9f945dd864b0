"""The read set of a write: which part of a snapshot it was computed from."""

from __future__ import annotations

from dataclasses import dataclass

from filegroups.reading.filters import Filter
from timeline.rules.isolation import Isolation, ReadScope
from timeline.snapshot import Snapshot

#: Key in the extra metadata of a commit computed from reads: its partitions, or ``*``.
READS_KEY = "hoodoo.reads"


@dataclass(frozen=True, kw_only=True)
class ReadSet:
    """
    The part of a snapshot that a write was computed from. Made by ``TableSnapshot.reads``.

    A write passes it with its rows (``table.upsert(rows, reads=...)``). Validation then checks
    whether the rows would still be the same if they were computed now.

    Args:
        snapshot: The snapshot that was read.
        partitions: Partition paths that were read, also those without rows; None for all.
        filter: The rows that were read in them; None for all.
        address: Canonical address of the table; a read set is valid only for this table.
        level: Isolation level of the write; None for ``hoodoo.write.isolation.level``.
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
    def part(self) -> ReadScope:
        """The read set in the form that the isolation rules use."""
        return ReadScope(
            partitions=None if self.partitions is None else frozenset(self.partitions),
            instants=frozenset(self.snapshot.completions),
        )

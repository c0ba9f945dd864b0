"""
Which blocks of a slice's logs count, and in which order (fmt 5.7).

Decided from headers alone, before a single record is decoded: blocks of instants that are
not visible, of instants that were rolled back, and of instants whose content a log
compaction has put together anew are left out. The block of a log compaction takes the place
of the newest instant it replaces, not its own: what others wrote between the two is newer.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from timeline.codecs.log_blocks import DATA_BLOCKS, BlockType, LogBlock
from timeline.model.times import InstantTime
from timeline.reading.snapshot import Snapshot

__all__ = ["SelectedBlocks", "VisibleInstants", "select_blocks"]

_COUNTING = DATA_BLOCKS | {BlockType.DELETE}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleInstants:
    """
    Whose blocks count, as a plain value that can be sent to another process.

    ``times`` are requested times; every instant below ``archived_below`` counts too.
    """

    times: frozenset[InstantTime]
    archived_below: InstantTime | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> VisibleInstants:
        """What a snapshot shows (fmt 6.3, 6.5)."""
        first, as_of = snapshot.active.first_write_time, snapshot.as_of
        if first is not None and as_of is not None and as_of < first:
            first = as_of + "0"  # the least text above it
        return cls(times=frozenset(snapshot.completions), archived_below=first)

    def __contains__(self, time: object) -> bool:
        below = self.archived_below
        return time in self.times or (below is not None and str(time) < below)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedBlocks:
    """Data and delete blocks in the order they are applied, and what was corrupt."""

    blocks: tuple[LogBlock, ...]
    corrupt: tuple[LogBlock, ...] = ()


def select_blocks(blocks: Iterable[LogBlock], visible: Container[InstantTime]) -> SelectedBlocks:
    """
    Choose the blocks of a slice that count.

    Args:
        blocks: Of all log files, in the files' order.
        visible: The instants that count in the snapshot that is read.

    Raises:
        CorruptTableError: A block lacks a header entry that it needs.
    """
    corrupt: list[LogBlock] = []
    rolled_back: set[InstantTime] = set()
    by_instant: dict[InstantTime, list[LogBlock]] = {}  # in the order instants first appear
    for block in blocks:
        if block.block_type is BlockType.CORRUPT:
            corrupt.append(block)
        elif block.block_type is BlockType.COMMAND:
            rolled_back.add(block.target_instant_time)
        elif block.block_type in _COUNTING and block.instant_time in visible:
            by_instant.setdefault(block.instant_time, []).append(block)
    for time in rolled_back:
        by_instant.pop(time, None)
    order = _after_log_compactions(
        {time: found[0].compacted_times for time, found in by_instant.items()}
    )
    return SelectedBlocks(
        blocks=tuple(block for time in order for block in by_instant[time]),
        corrupt=tuple(corrupt),
    )


def _after_log_compactions(
    compacted: dict[InstantTime, tuple[InstantTime, ...]],
) -> list[InstantTime]:
    """The instants to read, oldest first; ``compacted`` has what each of all replaces."""
    if not any(compacted.values()):
        return list(compacted)
    stands_for: dict[InstantTime, InstantTime] = {}
    newest_first: dict[InstantTime, None] = {}
    for time in reversed(compacted):
        replaced = compacted[time]
        if replaced:
            # Itself replaced by a later one: then that one stands for all of these.
            final = stands_for.get(time, time)
            for original in replaced:
                stands_for[original] = final
            if final == time and not any(original in compacted for original in replaced):
                newest_first[time] = None  # what it replaces is gone: its own place is left
            continue
        newest_first.setdefault(stands_for.get(time, time))
    return list(newest_first)[::-1]

"""
The low-water mark of this process: the slots that its writes and snapshots still need.

The registry entry shows it, and the archiver truncates the commit log below it (GC-2).
``truncation`` has the functions that show and renew it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from timeline.model.instant_time import InstantTime
from timeline.model.slot import NOT_APPLIED_MAX

__all__ = ["LowWaterMark"]


@dataclass(slots=True)
class LowWaterMark:
    """
    Hold the low-water mark: the process needs the slots above ``number``, as its entry shows.

    ``entry`` is the registry entry without the mark, None while the process is in no registry.
    ``held`` maps each running write to the head of its base snapshot.
    """

    entry: Mapping[str, object] | None = None
    path: str = ""
    number: int = 0
    shown_at_ms: int = 0  # monotonic, before the put; the mark counts from then on
    held: dict[InstantTime, int] = field(default_factory=dict)
    overruns: int = 0  # changes each time the mark had to be set anew
    numbers: Iterator[int] = field(default_factory=partial(count, 1))

    def hold(self, requested_time: InstantTime, head: int) -> None:
        """Keep the slots of a write that began on a snapshot at or above this head."""
        self.held[requested_time] = head

    def release(self, requested_time: InstantTime) -> None:
        """Release the slots of a write that ended."""
        self.held.pop(requested_time, None)

    def floor(self, known_head: int) -> int:
        """
        Return the greatest slot number that this process no longer needs.

        The last two slots of a snapshot are read again, because their files may have appeared
        after the listing. All slots before them are applied (PUB-3).
        """
        return max(self.number, min([known_head, *list(self.held.values())]) - NOT_APPLIED_MAX)

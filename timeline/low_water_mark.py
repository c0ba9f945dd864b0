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
    What this process holds back: slots above ``number``, as its registry entry shows.

    ``entry`` is that entry without the pin, None while the process is in no registry.
    ``held`` tells, for each write under way, the head of its base snapshot.
    """

    entry: Mapping[str, object] | None = None
    path: str = ""
    number: int = 0
    shown_at_ms: int = 0  # monotonic, before the request that showed it; what was shown since holds
    held: dict[InstantTime, int] = field(default_factory=dict)
    overruns: int = 0  # another one since each time the pin had to begin anew
    numbers: Iterator[int] = field(default_factory=partial(count, 1))

    def hold(self, requested_time: InstantTime, head: int) -> None:
        """A write began on a snapshot at or above this head: its slots must stay."""
        self.held[requested_time] = head

    def release(self, requested_time: InstantTime) -> None:
        """That write ended."""
        self.held.pop(requested_time, None)

    def floor(self, known_head: int) -> int:
        """
        The greatest number this process needs nothing of.

        The two slots a snapshot ends with are read again, because their files may have come
        after the listing; all before them are settled (PUB-3).
        """
        return max(self.number, min([known_head, *list(self.held.values())]) - NOT_APPLIED_MAX)

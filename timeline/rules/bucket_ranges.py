"""
Bucket ownership: one writer's ranges of buckets, so that it has no conflicts (OWN-1).

With a bucket index the hash of a key decides its file group. Writers with disjoint buckets never
access the same file group, whatever they write at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: The option that gives a writer its own buckets.
BUCKET_OWNERSHIP_KEY: Final = "hoodoo.write.bucket.range"

#: The value for a writer that may write to all buckets, in place of a range.
EVERY_BUCKET: Final = "all"

_PART = re.compile(r"\s*([0-9]{1,8})\s*(?:-\s*([0-9]{1,8})\s*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BucketRanges:
    """Ranges of bucket numbers, ends included; ascending and disjoint."""

    ranges: tuple[tuple[int, int], ...]

    @staticmethod
    def parse(text: str) -> BucketRanges:
        """
        Parse ``0-63`` or ``0-15,32,48-63``.

        Raises:
            ValueError: Another form, a range from high to low, or no range.
        """
        found = []
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise ValueError(f"not a range of buckets as 0-63 or 0-15,32: {part!r}")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise ValueError(f"a range of buckets goes from low to high: {part!r}")
            found.append((first, last))
        return BucketRanges(_joined(found))

    @property
    def last(self) -> int:
        """The greatest bucket."""
        return self.ranges[-1][1]

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ranges)


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def overlapping_buckets(mine: str, theirs: str) -> str:
    """
    Return the buckets that both writers may write although one owns them; empty for none.

    Args:
        mine: A range, ``EVERY_BUCKET``, or "" for a process that writes no rows.
        theirs: The same of the other writer.
    """
    if not mine or not theirs or mine == theirs == EVERY_BUCKET:
        return ""
    if EVERY_BUCKET in (mine, theirs):
        return theirs if mine == EVERY_BUCKET else mine
    one, other = BucketRanges.parse(mine), BucketRanges.parse(theirs)
    both = [
        (max(a, c), min(b, d))
        for a, b in one.ranges
        for c, d in other.ranges
        if max(a, c) <= min(b, d)
    ]
    return str(BucketRanges(_joined(both)))

"""
How many writes may begin when: a token bucket per table, told from the timeline alone (PACE-1).

A write takes a token when it begins, and its instant shows when that was. So every writer
knows the level without asking anybody: for each write that began, the tokens taken since then
must not exceed the burst and what has come in meanwhile. Two that look at the same moment see
the same token; the one too many is a debt that later writes wait for, never a growing one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Pace", "free_at_ms", "nudge_ms"]

_MINUTE_MS: Final = 60_000
_NUDGE_MS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often writes of one table begin."""

    per_minute: float
    burst: int = 1  # so many may begin at once after a rest
    wait_ms_max: int = 600_000  # then a write begins without a token

    @property
    def interval_ms(self) -> float:
        """After so long a further token is there."""
        return _MINUTE_MS / self.per_minute


def free_at_ms(begun_ms: Sequence[int], pace: Pace) -> int | None:
    """
    When the next write may begin; None when nothing stands against it.

    Args:
        begun_ms: When others began, ascending; what lies too far back may be left out.
        pace: The table's.
    """
    newest_first = enumerate(reversed(begun_ms), start=1)
    # Of the k newest and mine, all but a burst must have come in since the first of them.
    return max(
        (
            at + math.ceil((taken + 1 - pace.burst) * pace.interval_ms)
            for taken, at in newest_first
            if taken >= pace.burst
        ),
        default=None,
    )


def nudge_ms(jitter: float, lost: int, pace: Pace) -> int:
    """
    How long after the token a waiting write looks for it, so that not all come at once.

    Args:
        jitter: A random number in [0, 1).
        lost: Tokens it waited for and others took; who lost more comes earlier.
        pace: The table's.
    """
    widest = min(pace.interval_ms / 4, _NUDGE_MS_MAX)
    return int(jitter * widest / (1 + lost))

"""
How often, after which pause and at what cost a refused publication is tried again.

Bounded in attempts, time and bytes written in vain; the pause grows and is jittered, because
writers that lost to each other would otherwise meet again in step (concurrency 9). A write
that is soon done again holds the queue for its redo, and so may one that is too dear to be lost
for ever: then nobody can publish before it (PUB-11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

__all__ = [
    "RETRY_PRESETS",
    "RateLimit",
    "RetryBudget",
    "RetryPolicy",
    "RetryPreset",
    "RetryScope",
    "exhausted_limit",
    "jitter_ms",
    "keep_lock_ms",
    "next_begin_ms",
    "pause_ms",
    "pause_within_limit",
]

_SHORT_FOLD_MAX = 4
_LOOKS_SHORT = 10  # as many rounds has the least write into one file group (far away)


class RetryPolicy(Enum):
    """How pauses grow."""

    LINEAR = "linear"  # base, twice the base, three times ...
    EXPONENTIAL = "exponential"  # base, twice, four times ...
    EXPONENTIAL_JITTER = "exponential_jitter"  # the same, times 0.5 to 1.5
    DECORRELATED_JITTER = "decorrelated_jitter"  # between the base and three times the last one
    NONE = "none"  # at once


class RetryPreset(Enum):
    """Budgets for two ways to work."""

    STREAMING = "streaming"  # a retry is cheap, a failure dear, and nobody may wait
    BACKFILL = "backfill"  # it runs for hours anyway, and must end well


class RetryScope(Enum):
    """What a refused or overtaken write had to do again."""

    NOTHING = "nothing"
    PUBLICATION = "publication"  # a commit slot was lost, no data touched
    FILE_GROUPS = "file groups"  # those that overlapped
    EVERYTHING = "everything"


#: Fields of ``WriteSettings`` that a preset sets where the caller said nothing.
RETRY_PRESETS: Final[Mapping[RetryPreset, Mapping[str, int]]] = MappingProxyType(
    {
        RetryPreset.STREAMING: {
            "conflict_retries": 8,
            "commit_retry_base_ms": 5,
            "commit_retry_cap_ms": 50,
        },
        RetryPreset.BACKFILL: {
            "conflict_retries": 32,
            "commit_attempts_max": 32,
            "commit_retry_total_ms": 0,
        },
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """Limits of one write: redo attempts, lost slots, time, bytes; how it waits in between."""

    conflict_retries_max: int = 4
    publish_attempts_max: int = 16
    policy: RetryPolicy = RetryPolicy.EXPONENTIAL_JITTER
    pause_base_ms: int = 50
    pause_cap_ms: int = 10_000
    total_ms_max: int = 1_800_000  # 0: no bound
    wasted_bytes_max: int = 0  # 0: no bound
    queue_after: int = 0  # conflicts after which any redo holds the queue; 0: never
    queue_short_ms: int = 0  # a redo that is to last no longer holds it; 0: none does


def pause_ms(attempt: int, jitter: float, budget: RetryBudget, *, previous_ms: int = 0) -> int:
    """
    Milliseconds to wait before the next try.

    Args:
        attempt: 0 for the first retry.
        jitter: A random number in [0, 1).
        budget: Policy, base and cap.
        previous_ms: The pause before, which the decorrelated policy goes by; 0 for none.
    """
    base, cap = budget.pause_base_ms, budget.pause_cap_ms
    doubled = min(base * (1 << min(attempt, 30)), cap)
    match budget.policy:
        case RetryPolicy.NONE:
            return 0
        case RetryPolicy.LINEAR:
            return min(base * (attempt + 1), cap)
        case RetryPolicy.EXPONENTIAL:
            return doubled
        case RetryPolicy.EXPONENTIAL_JITTER:
            return int(doubled * (0.5 + jitter))
        case RetryPolicy.DECORRELATED_JITTER:
            widest = 3 * max(previous_ms, base)
            return min(base + int(jitter * (widest - base)), cap)


def pause_within_limit(budget: RetryBudget, pause: int, *, elapsed_ms: int) -> int:
    """
    Milliseconds of a pause behind which another redo is still allowed.

    Args:
        budget: The bound in time; as ``exhausted_limit`` has it.
        pause: What ``pause_ms`` says.
        elapsed_ms: Since the first attempt.
    """
    left_ms = max(budget.total_ms_max - elapsed_ms, 0)
    return min(pause, left_ms) if budget.total_ms_max else pause


def keep_lock_ms(
    budget: RetryBudget, *, conflicts: int, work_ms: int, look_ms: int = 0, first_without: int = 0
) -> int | None:
    """
    How long the next attempt may hold the queue (PUB-11): 0 for all its time, None for not at all.

    Args:
        budget: From how many conflicts on, and what is short.
        conflicts: How often this write was refused.
        work_ms: What its last attempt took until it asked to be published, or was refused before.
        look_ms: What a look at a store takes that is far away; the least write makes ten such ways.
        first_without: So many are done again without it first, unless the user says from when on.
    """
    if 0 < budget.queue_after <= conflicts:
        return 0
    if conflicts <= first_without:
        return None
    # On a busy machine all is slow: whoever lost again may hold it longer, to a bound.
    folded_ms = budget.queue_short_ms * conflicts + _LOOKS_SHORT * look_ms
    short_ms = min(folded_ms, budget.queue_short_ms * _SHORT_FOLD_MAX)
    return short_ms if work_ms <= short_ms > 0 else None


def exhausted_limit(
    budget: RetryBudget, *, conflicts: int, elapsed_ms: int, wasted_bytes: int
) -> str | None:
    """
    Which bound forbids another redo; None when none does.

    Args:
        budget: The bounds.
        conflicts: How often this write was refused.
        elapsed_ms: Since its first attempt.
        wasted_bytes: Written by refused attempts and thrown away.
    """
    if conflicts > budget.conflict_retries_max:
        return "hoodie.write.num.retries.on.conflict.failures"
    if 0 < budget.total_ms_max < elapsed_ms:
        return "hoodie.write.commit.retry.total.timeout.ms"
    if 0 < budget.wasted_bytes_max <= wasted_bytes:
        return "hoodoo.retry.wasted.bytes.max"
    return None


# ----------------------------------------------------------------
# How many writes may begin when: a token bucket per table, told from the timeline alone (PACE-1).
#
# A write takes a token when it begins, and its instant shows when that was. So every writer
# knows the level without asking anybody: for each write that began, the tokens taken since then
# must not exceed the burst and what has come in meanwhile. Two that look at the same moment see
# the same token; the one too many is a debt that later writes wait for, never a growing one.

_MINUTE_MS: Final = 60_000
_NUDGE_MS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """How often writes of one table begin."""

    per_minute: float
    burst: int = 1  # so many may begin at once after a rest
    wait_ms_max: int = 600_000  # then a write begins without a token

    @property
    def interval_ms(self) -> float:
        """After so long a further token is there."""
        return _MINUTE_MS / self.per_minute


def next_begin_ms(begun_ms: Sequence[int], pace: RateLimit) -> int | None:
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


def jitter_ms(jitter: float, lost: int, pace: RateLimit) -> int:
    """
    How long after the token a waiting write looks for it, so that not all come at once.

    Args:
        jitter: A random number in [0, 1).
        lost: Tokens it waited for and others took; who lost more comes earlier.
        pace: The table's.
    """
    widest = min(pace.interval_ms / 4, _NUDGE_MS_MAX)
    return int(jitter * widest / (1 + lost))

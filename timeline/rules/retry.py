"""
Decide whether, and after which pause, a rejected write is retried.

Attempts, time and wasted bytes are bounded. The pause grows and has jitter, because writers with a
conflict would otherwise conflict again at the same pace. A short retry may keep the commit lock
from begin to commit; so may a retry after many conflicts. Then no other writer can commit first
(PUB-11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

_SHORT_FOLD_MAX = 4
_SHORT_REFRESHES = 10  # round trips of the smallest write on a high-latency store


class RetryPolicy(Enum):
    """How pauses grow."""

    LINEAR = "linear"  # base, twice the base, three times ...
    EXPONENTIAL = "exponential"  # base, twice, four times ...
    EXPONENTIAL_JITTER = "exponential_jitter"  # the same, times 0.5 to 1.5
    DECORRELATED_JITTER = "decorrelated_jitter"  # between the base and three times the last pause
    NONE = "none"  # no pause


class RetryPreset(Enum):
    """Retry budgets for two kinds of work."""

    STREAMING = "streaming"  # a retry is cheap, a failure expensive, waiting is bad
    BACKFILL = "backfill"  # it runs for hours and must succeed


class RetryScope(Enum):
    """The part of a write that a retry repeats."""

    NOTHING = "nothing"
    PUBLICATION = "publication"  # a slot was lost, no data is rewritten
    FILE_GROUPS = "file groups"  # those with a conflict
    EVERYTHING = "everything"


#: Fields of ``WriteSettings`` that a preset sets if the caller did not.
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
    """The limits of one write: retries, lost slots, time, bytes; and its pauses."""

    conflict_retries_max: int = 4
    commit_attempts_max: int = 16
    policy: RetryPolicy = RetryPolicy.EXPONENTIAL_JITTER
    pause_base_ms: int = 50
    pause_cap_ms: int = 10_000
    total_ms_max: int = 1_800_000  # 0: no bound
    wasted_bytes_max: int = 0  # 0: no bound
    lock_after_conflicts: int = 0  # after so many conflicts each retry keeps the lock; 0: never
    lock_short_ms: int = 0  # a retry up to this long keeps the lock; 0: none does


def pause_ms(attempt: int, jitter: float, budget: RetryBudget, *, previous_ms: int = 0) -> int:
    """
    Return the pause before the next attempt, in ms.

    Args:
        attempt: 0 for the first retry.
        jitter: A random number in [0, 1).
        budget: Policy, base and cap.
        previous_ms: The previous pause, for the decorrelated policy; 0 for none.
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
    Shorten a pause in ms so that another retry is still allowed after it.

    Args:
        budget: The time limit, as in ``exhausted_limit``.
        pause: The result of ``pause_ms``.
        elapsed_ms: Since the first attempt.
    """
    left_ms = max(budget.total_ms_max - elapsed_ms, 0)
    return min(pause, left_ms) if budget.total_ms_max else pause


def keep_lock_ms(
    budget: RetryBudget,
    *,
    conflicts: int,
    work_ms: int,
    refresh_ms: int = 0,
    first_without: int = 0,
) -> int | None:
    """
    Return how many ms the next attempt may keep the commit lock (PUB-11).

    0 means without limit, None means not at all.

    Args:
        budget: The number of conflicts from which it is kept, and the length of a short retry.
        conflicts: How often this write was rejected.
        work_ms: The time of its last attempt until it asked to commit, or was rejected before.
        refresh_ms: The time of one refresh of a high-latency store; the smallest write makes ten such
            round trips.
        first_without: This many retries do not keep the lock, unless the user sets the number of
            conflicts.
    """
    if 0 < budget.lock_after_conflicts <= conflicts:
        return 0
    if conflicts <= first_without:
        return None
    # On a busy host everything is slow: after each conflict the limit grows, up to a bound.
    folded_ms = budget.lock_short_ms * conflicts + _SHORT_REFRESHES * refresh_ms
    short_ms = min(folded_ms, budget.lock_short_ms * _SHORT_FOLD_MAX)
    return short_ms if work_ms <= short_ms > 0 else None


def exhausted_limit(
    budget: RetryBudget, *, conflicts: int, elapsed_ms: int, wasted_bytes: int
) -> str | None:
    """
    Return the option whose limit forbids another retry; None if none does.

    Args:
        budget: The limits.
        conflicts: How often this write was rejected.
        elapsed_ms: Since its first attempt.
        wasted_bytes: Written by rejected attempts and discarded.
    """
    if conflicts > budget.conflict_retries_max:
        return "hoodie.write.num.retries.on.conflict.failures"
    if 0 < budget.total_ms_max < elapsed_ms:
        return "hoodie.write.commit.retry.total.timeout.ms"
    if 0 < budget.wasted_bytes_max <= wasted_bytes:
        return "hoodoo.retry.wasted.bytes.max"
    return None


# ---- Rate limit (PACE-1)
# A token bucket per table, computed from the timeline alone. A write takes a token when it begins,
# and its instant shows the time. So every writer knows the level without requests: for each write
# that began, the tokens taken since then must not exceed the burst plus the tokens added since.
# Two writers that check at the same time may take the same token. Later writes wait for that debt,
# and it never grows.

_MINUTE_MS: Final = 60_000
_NUDGE_MS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """How often writes of one table begin."""

    per_minute: float
    burst: int = 1  # so many may begin at once after a quiet time
    wait_ms_max: int = 600_000  # then a write begins without a token

    @property
    def interval_ms(self) -> float:
        """The time in ms after which another token is added."""
        return _MINUTE_MS / self.per_minute


def next_begin_ms(attempt_started_ms: Sequence[int], pace: RateLimit) -> int | None:
    """
    Return when the next write may begin, in ms; None if it may begin now.

    Args:
        attempt_started_ms: When other writes began, ascending; old ones may be left out.
        pace: The table's rate limit.
    """
    newest_first = enumerate(reversed(attempt_started_ms), start=1)
    # Of the k newest begins and mine, all but a burst need tokens added since the first of them.
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
    Return how many ms after the token a waiting write checks for it, to spread the writers.

    Args:
        jitter: A random number in [0, 1).
        lost: Tokens that others took while it waited; after more losses it checks earlier.
        pace: The table's rate limit.
    """
    widest = min(pace.interval_ms / 4, _NUDGE_MS_MAX)
    return int(jitter * widest / (1 + lost))

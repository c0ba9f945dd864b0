"""
How often and after which pause a refused publication is tried again.

Bounded in attempts and time; the pause grows and is jittered, because writers that lost
to each other would otherwise meet again in step (concurrency 9).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RetryBudget", "pause_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """Limits of one write: redo attempts, lost slots, time."""

    conflict_retries_max: int = 4
    publish_attempts_max: int = 16
    pause_base_ms: int = 50
    pause_cap_ms: int = 10_000
    total_ms_max: int = 1_800_000


def pause_ms(attempt: int, jitter: float, budget: RetryBudget) -> int:
    """
    Milliseconds to wait before the next try.

    Args:
        attempt: 0 for the first retry.
        jitter: A random number in [0, 1); the pause is scaled by 0.5 to 1.5.
        budget: Base and cap.
    """
    plain = min(budget.pause_base_ms * (1 << min(attempt, 30)), budget.pause_cap_ms)
    return int(plain * (0.5 + jitter))

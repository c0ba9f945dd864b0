"""
When a pending instant counts as dead (HB-2, HB-3, HB-4).

Being dead is only a guess: safety never depends on it, because a rollback takes an abort
slot first. The guess only has to be good enough not to waste live work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "LEASE_BEATS",
    "HeartbeatLimits",
    "lease_is_over",
    "lease_is_trusted",
    "must_fence_itself",
    "seems_dead",
]

LEASE_BEATS: Final = 3
"""So many times a reader's lease is renewed before it would end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLimits:
    """How often a writer beats and how many beats others tolerate to miss."""

    interval_ms: int = 60_000
    misses: int = 2

    @property
    def tolerated_ms(self) -> int:
        """A silence longer than this counts as death (Hudi's rule: interval x misses)."""
        return self.interval_ms * self.misses


def seems_dead(last_beat_ms: int | None, storage_now_ms: int, limits: HeartbeatLimits) -> bool:
    """
    Judge another writer.

    Args:
        last_beat_ms: Modification time of its heartbeat file, None when there is none.
        storage_now_ms: The same storage's clock now; never this host's wall clock (F12).
        limits: What is tolerated.
    """
    return last_beat_ms is None or storage_now_ms - last_beat_ms > limits.tolerated_ms


def must_fence_itself(
    last_beat_monotonic_ms: int, monotonic_now_ms: int, limits: HeartbeatLimits
) -> bool:
    """
    Judge oneself: after a gap others may have started a rollback, for good (HB-3, hole 5).

    Both times are the own monotonic clock, in ms.
    """
    return monotonic_now_ms - last_beat_monotonic_ms > limits.tolerated_ms


def lease_is_over(until_ms: int, storage_now_ms: int) -> bool:
    """Judge a reader's lease; both times are the storage's clock (RDL-1)."""
    return until_ms < storage_now_ms


def lease_is_trusted(shown_monotonic_ms: int, monotonic_now_ms: int, lease_ms: int) -> bool:
    """
    Judge the own lease, by the own monotonic clock.

    A third of it is left for a storage whose clock is only guessed.
    """
    return LEASE_BEATS * (monotonic_now_ms - shown_monotonic_ms) <= (LEASE_BEATS - 1) * lease_ms

"""When a heartbeat is expired, and when a writer fences itself."""

from __future__ import annotations

import pytest

from timeline.heartbeat import HeartbeatLimits, is_heartbeat_expired, must_fence_itself

LIMITS = HeartbeatLimits(interval_ms=60_000, misses=2)


@pytest.mark.parametrize(
    ("last_beat", "now", "dead"),
    [
        (None, 5, True),
        (1_000, 1_000, False),
        (1_000, 121_000, False),
        (1_000, 121_001, True),
        (5_000, 1_000, False),  # a heartbeat from the future counts as one
    ],
)
def test_a_heartbeat_is_expired_after_more_than_the_tolerated_interval(
    last_beat: int | None, now: int, dead: bool
):
    assert is_heartbeat_expired(last_beat, now, LIMITS) is dead


@pytest.mark.parametrize(("gap", "fenced"), [(0, False), (60_000, False), (60_001, True)])
def test_a_writer_fences_itself_one_miss_before_another_engine_counts_as_dead(
    gap: int, fenced: bool
):
    assert must_fence_itself(7, 7 + gap, LIMITS) is fenced

"""When others count as dead, when one fences oneself, and how long a retry waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.heartbeat import HeartbeatLimits, is_heartbeat_expired, must_fence_itself
from timeline.rules.retry import RetryBudget, pause_ms

LIMITS = HeartbeatLimits(interval_ms=60_000, misses=2)


@pytest.mark.parametrize(
    ("last_beat", "now", "dead"),
    [
        (None, 5, True),
        (1_000, 1_000, False),
        (1_000, 121_000, False),
        (1_000, 121_001, True),
        (5_000, 1_000, False),  # a beat from the future is a beat
    ],
)
def test_a_silence_above_the_tolerated_one_is_death(last_beat: int | None, now: int, dead: bool):
    assert is_heartbeat_expired(last_beat, now, LIMITS) is dead


@pytest.mark.parametrize(("gap", "fenced"), [(0, False), (120_000, False), (120_001, True)])
def test_one_fences_oneself_after_the_same_silence(gap: int, fenced: bool):
    assert must_fence_itself(7, 7 + gap, LIMITS) is fenced


@pytest.mark.parametrize(
    ("attempt", "jitter", "pause"),
    [
        (0, 0.5, 50),
        (0, 0.0, 25),
        (1, 0.5, 100),
        (3, 0.5, 400),
        (20, 0.5, 10_000),
        (10_000, 0.0, 5_000),
    ],
)
def test_pauses_double_up_to_the_cap(attempt: int, jitter: float, pause: int):
    assert pause_ms(attempt, jitter, RetryBudget()) == pause


@given(
    attempt=st.integers(0, 1_000),
    jitter=st.floats(0, 1, exclude_max=True),
    base=st.integers(0, 1_000),
    cap=st.integers(0, 60_000),
)
def test_a_pause_is_never_longer_than_half_as_much_again_as_the_cap(
    attempt: int, jitter: float, base: int, cap: int
):
    pause = pause_ms(attempt, jitter, RetryBudget(pause_base_ms=base, pause_cap_ms=cap))
    assert 0 <= pause <= cap * 1.5

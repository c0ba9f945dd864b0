"""Retries at their bounds: defaults, presets, pauses, the kept lock, the end of the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.rules.retry import (
    RETRY_PRESETS,
    RetryBudget,
    RetryPolicy,
    RetryPreset,
    RetryScope,
    exhausted_limit,
    keep_lock_ms,
    pause_ms,
    pause_within_limit,
)


def test_the_defaults_of_a_retry_budget() -> None:
    assert RetryBudget() == RetryBudget(
        conflict_retries_max=4,
        commit_attempts_max=16,
        policy=RetryPolicy.EXPONENTIAL_JITTER,
        pause_base_ms=50,
        pause_cap_ms=10_000,
        total_ms_max=1_800_000,
        wasted_bytes_max=0,
        lock_after_conflicts=0,
        lock_short_ms=0,
    )


def test_the_values_of_each_retry_preset() -> None:
    assert RETRY_PRESETS == {
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


def test_names_of_policies_presets_and_scopes_are_stable() -> None:
    assert [one.value for one in RetryPolicy] == [
        "linear",
        "exponential",
        "exponential_jitter",
        "decorrelated_jitter",
        "none",
    ]
    assert [one.value for one in RetryPreset] == ["streaming", "backfill"]
    assert [one.value for one in RetryScope] == [
        "nothing",
        "publication",
        "file groups",
        "everything",
    ]


@pytest.mark.parametrize(
    ("policy", "attempt", "jitter", "pause"),
    [
        (RetryPolicy.NONE, 3, 0.5, 0),
        (RetryPolicy.LINEAR, 0, 0.5, 10),
        (RetryPolicy.LINEAR, 3, 0.5, 40),
        (RetryPolicy.EXPONENTIAL, 0, 0.5, 10),
        (RetryPolicy.EXPONENTIAL, 3, 0.5, 80),
        (RetryPolicy.EXPONENTIAL_JITTER, 3, 0.0, 40),
        (RetryPolicy.EXPONENTIAL_JITTER, 3, 0.75, 100),
        (RetryPolicy.DECORRELATED_JITTER, 9, 0.0, 10),
        (RetryPolicy.DECORRELATED_JITTER, 0, 0.5, 20),
    ],
)
def test_the_pause_of_each_retry_policy(
    policy: RetryPolicy, attempt: int, jitter: float, pause: int
) -> None:
    budget = RetryBudget(policy=policy, pause_base_ms=10, pause_cap_ms=1_000)
    assert pause_ms(attempt, jitter, budget) == pause
    low = RetryBudget(policy=policy, pause_base_ms=10, pause_cap_ms=10)
    assert pause_ms(attempt, 0.5, low) == (0 if policy is RetryPolicy.NONE else 10)


@given(
    policy=st.sampled_from(RetryPolicy),
    attempt=st.integers(0, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
    previous=st.integers(0, 10**6),
    base=st.integers(0, 1_000),
    cap=st.integers(0, 60_000),
)
def test_no_pause_is_longer_than_one_and_a_half_times_the_cap(
    policy: RetryPolicy, attempt: int, jitter: float, previous: int, base: int, cap: int
) -> None:
    budget = RetryBudget(policy=policy, pause_base_ms=base, pause_cap_ms=cap)
    assert 0 <= pause_ms(attempt, jitter, budget, previous_ms=previous) <= cap * 1.5


def test_a_decorrelated_pause_grows_with_the_last_one() -> None:
    budget = RetryBudget(policy=RetryPolicy.DECORRELATED_JITTER, pause_base_ms=10)
    assert pause_ms(0, 0.5, budget, previous_ms=100) == 155
    assert pause_ms(0, 0.5, budget, previous_ms=9) == 20


def test_a_pause_is_doubled_thirty_times_at_most() -> None:
    budget = RetryBudget(policy=RetryPolicy.EXPONENTIAL, pause_base_ms=1, pause_cap_ms=1 << 40)
    assert [pause_ms(n, 0.0, budget) for n in (29, 30, 31)] == [1 << 29, 1 << 30, 1 << 30]


@pytest.mark.spec("PUB-11")
@pytest.mark.parametrize(
    ("after", "short_ms", "conflicts", "work_ms", "held_ms"),
    [
        (0, 0, 1, 0, None),  # the lock is never kept
        (0, 0, 5, 0, None),
        (0, 0, 9, 0, None),
        (0, 500, 0, 1, None),  # no conflict
        (0, 500, 0, 100, None),
        (0, 500, 1, 500, 500),  # the retry is short
        (0, 1, 1, 1, 1),
        (0, 500, 1, 501, None),  # other writers would wait too long
        (0, 500, 2, 501, 1_000),  # after two conflicts the lock may be kept longer
        (0, 500, 4, 2_000, 2_000),
        (0, 500, 5, 2_001, None),  # up to a bound
        (2, 0, 1, 0, None),
        (2, 0, 2, 10_000, 0),  # by the option: until the write ends
        (2, 0, 3, 10_000, 0),
        (2, 500, 2, 60_000, 0),
        (2, 500, 1, 60_000, None),
        (2, 500, 1, 20, 500),
        (2, 500, 2, 20, 0),
        (1, 500, 1, 100, 0),
    ],
)
def test_a_short_retry_keeps_the_commit_lock_at_once_and_a_long_one_by_option(
    after: int, short_ms: int, conflicts: int, work_ms: int, held_ms: int | None
) -> None:
    budget = RetryBudget(lock_after_conflicts=after, lock_short_ms=short_ms)
    assert keep_lock_ms(budget, conflicts=conflicts, work_ms=work_ms) == held_ms


@pytest.mark.spec("PUB-11")
@pytest.mark.parametrize(
    ("short_ms", "conflicts", "refresh_ms", "work_ms", "held_ms"),
    [
        (500, 1, 60, 1_100, 1_100),  # plus ten requests to the store
        (500, 1, 60, 1_101, None),
        (500, 2, 60, 1_600, 1_600),
        (500, 4, 60, 2_000, 2_000),  # the bound does not change
        (500, 1, 900, 2_000, 2_000),
        (500, 1, 900, 2_001, None),
        (0, 1, 60, 0, None),
    ],
)
def test_on_a_high_latency_store_a_retry_of_as_many_requests_as_the_least_write_is_short(
    short_ms: int, conflicts: int, refresh_ms: int, work_ms: int, held_ms: int | None
) -> None:
    budget = RetryBudget(lock_short_ms=short_ms)
    assert (
        keep_lock_ms(budget, conflicts=conflicts, work_ms=work_ms, refresh_ms=refresh_ms) == held_ms
    )


@pytest.mark.spec("PUB-11")
@pytest.mark.parametrize(
    ("after", "conflicts", "held_ms"), [(0, 1, None), (0, 2, 1_000), (1, 1, 0), (3, 1, None)]
)
def test_after_a_shared_lock_the_first_retry_does_not_keep_the_commit_lock(
    after: int, conflicts: int, held_ms: int | None
) -> None:
    budget = RetryBudget(lock_after_conflicts=after, lock_short_ms=500)
    assert keep_lock_ms(budget, conflicts=conflicts, work_ms=400, first_without=1) == held_ms


@pytest.mark.parametrize(
    ("conflicts", "elapsed_ms", "wasted_bytes", "bound"),
    [
        (4, 1_000, 99, None),
        (5, 0, 0, "hoodie.write.num.retries.on.conflict.failures"),
        (0, 1_001, 0, "hoodie.write.commit.retry.total.timeout.ms"),
        (0, 0, 100, "hoodoo.retry.wasted.bytes.max"),
        (5, 1_001, 100, "hoodie.write.num.retries.on.conflict.failures"),
        (4, 1_001, 100, "hoodie.write.commit.retry.total.timeout.ms"),
    ],
)
def test_an_exhausted_limit_is_named(
    conflicts: int, elapsed_ms: int, wasted_bytes: int, bound: str | None
) -> None:
    spent = {"conflicts": conflicts, "elapsed_ms": elapsed_ms, "wasted_bytes": wasted_bytes}
    assert exhausted_limit(RetryBudget(total_ms_max=1_000, wasted_bytes_max=100), **spent) == bound


def test_a_limit_of_zero_is_none() -> None:
    spent = {"conflicts": 0, "elapsed_ms": 1 << 40, "wasted_bytes": 1 << 40}
    assert exhausted_limit(RetryBudget(total_ms_max=0, wasted_bytes_max=0), **spent) is None
    assert exhausted_limit(RetryBudget(total_ms_max=1), **spent) is not None
    assert exhausted_limit(RetryBudget(total_ms_max=0, wasted_bytes_max=1), **spent) is not None


@pytest.mark.parametrize(
    ("total_ms_max", "elapsed_ms", "pause"),
    [(1_000, 0, 300), (1_000, 700, 300), (1_000, 701, 299), (1_000, 1_000, 0), (1_000, 2_000, 0)],
)
def test_a_pause_ends_before_the_limit_in_time(
    total_ms_max: int, elapsed_ms: int, pause: int
) -> None:
    budget = RetryBudget(total_ms_max=total_ms_max)
    assert pause_within_limit(budget, 300, elapsed_ms=elapsed_ms) == pause
    assert pause_within_limit(RetryBudget(total_ms_max=0), 300, elapsed_ms=elapsed_ms) == 300

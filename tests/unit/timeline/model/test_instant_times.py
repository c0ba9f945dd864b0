"""The next time is above all times on the timeline, at any clock (TL-SUCC, TL-RES)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.errors import ClockRefusedError
from timeline.model.instant import Action, begin_residue
from timeline.model.instant_time import (
    Residue,
    SkewLimits,
    WallMs,
    instant_time,
    next_instant_time,
    wall_ms,
)

NOW = WallMs(1_767_323_045_000)  # divisible by four
LIMITS = SkewLimits()


@pytest.mark.spec("TL-RES-1")
@pytest.mark.parametrize(
    ("residue", "last"),
    [
        (Residue.BEGIN, "000"),
        (Residue.SLOT_REQUESTED, "001"),
        (Residue.BEGIN_REPLACE, "002"),
        (Residue.SLOT_COMPLETION, "003"),
    ],
)
def test_the_last_digits_of_a_time_show_its_purpose(residue: Residue, last: str):
    time = next_instant_time(NOW, None, residue, limits=LIMITS)
    assert time == "20260102030405" + last


def test_a_clock_behind_the_timeline_draws_a_time_just_above_it():
    newest = instant_time(WallMs(NOW + 1_000))
    assert next_instant_time(NOW, newest, Residue.BEGIN, limits=LIMITS) == "20260102030406004"


def test_a_replacecommit_begins_with_its_own_residue():
    assert begin_residue(Action.REPLACECOMMIT) is Residue.BEGIN_REPLACE
    assert begin_residue(Action.COMMIT) is Residue.BEGIN
    assert begin_residue(Action.DELTACOMMIT) is Residue.BEGIN


@pytest.mark.spec("TL-SUCC-2")
def test_a_timeline_too_far_ahead_is_refused():
    newest = instant_time(WallMs(NOW + 600_001))
    with pytest.raises(ClockRefusedError) as caught:
        next_instant_time(NOW, newest, Residue.BEGIN, limits=LIMITS)
    assert caught.value.fields == {
        "newest_time": newest,
        "ahead_ms": 600_001,
        "limit_ms": 600_000,
    }


def test_the_limit_itself_is_accepted():
    newest = instant_time(WallMs(NOW + 600_000))
    assert next_instant_time(NOW, newest, Residue.BEGIN, limits=LIMITS) > newest


@pytest.mark.spec("TL-SUCC-1")
@given(
    now=st.integers(1_600_000_000_000, 1_900_000_000_000),
    ahead=st.integers(-(10**9), 600_000),
    residue=st.sampled_from(Residue),
)
def test_the_next_time_is_the_smallest_allowed(now: int, ahead: int, residue: Residue):
    newest = now + ahead
    drawn = wall_ms(
        next_instant_time(WallMs(now), instant_time(WallMs(newest)), residue, limits=LIMITS)
    )
    assert drawn > newest
    assert drawn >= now
    assert drawn % 4 == residue
    assert drawn - max(now, newest + 1) < 4

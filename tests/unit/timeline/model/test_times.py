"""Instant times and the forms of a time argument (fmt 2.1, 6.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.errors import InvalidInputError
from timeline.model.instant_time import EARLIEST, UTC_ZONE, WallMs, instant_time, wall_ms
from timeline.model.time_arguments import parse_time_travel


@pytest.mark.spec("TL-FMT-1")
@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "19700101000000000"),
        (1_767_323_045_006, "20260102030405006"),
        (253_402_300_799_999, "99991231235959999"),
    ],
)
def test_a_wall_time_has_17_digits(at: int, text: str):
    assert instant_time(WallMs(at)) == text
    assert wall_ms(text) == at


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_wall_time_and_instant_time_are_inverse(at: int):
    assert wall_ms(instant_time(WallMs(at))) == at


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_text_order_is_time_order(one: int, other: int):
    assert (instant_time(WallMs(one)) < instant_time(WallMs(other))) == (one < other)


def test_a_14_digit_time_is_its_last_millisecond():
    assert wall_ms("20260102030405") == wall_ms("20260102030405999")


@pytest.mark.parametrize("text", ["", "2026", "20261301000000000", "2026010203040500x", EARLIEST])
def test_text_that_is_no_date_is_refused(text: str):
    with pytest.raises(InvalidInputError) as caught:
        wall_ms(text)
    assert caught.value.kind == "instant_time"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("20260102030405006", "20260102030405006"),
        ("20260102030405", "20260102030405999"),
        (" 20260102030405006 ", "20260102030405006"),
        ("2026-01-02", "20260102000000000"),
        ("2026-01-02 03:04", "20260102030400000"),
        ("2026-01-02 03:04:05", "20260102030405000"),
        ("2026-01-02T03:04:05", "20260102030405000"),
        ("2026-01-02 03:04:05.6", "20260102030405600"),
        ("2026-01-02 03:04:05.006", "20260102030405006"),
        ("2026-01-02T03:04:05.006789", "20260102030405006"),
        ("2026-01-02T03:04:05Z", "20260102030405000"),
        ("2026-01-02T03:04:05+02:00", "20260102010405000"),
        ("2026-01-02T03:04:05-0530", "20260102083405000"),
        ("2026-01-01T00:30:00+01:00", "20251231233000000"),
    ],
)
def test_accepted_forms_of_a_time(text: str, time: str):
    assert parse_time_travel(text, UTC_ZONE) == time


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026",
        "2026-1-2",
        "2026-02-30",
        "2026-01-02 25:00",
        "2026-01-02 03:04:61",
        "2026-01-02 03",
        "202601020304",
        "20260230000000000",
        "2026-01-02 03:04:05 Europe/Berlin",
        "2026-01-02T03:04:05+2",
        "2026-01-02T03:04:05+25:00",
        "0001-01-01T00:00:00+01:00",
        "٢٠٢٦-01-02",
    ],
)
def test_refused_forms_of_a_time(text: str):
    with pytest.raises(InvalidInputError) as caught:
        parse_time_travel(text, UTC_ZONE)
    assert caught.value.fields["value"] == text

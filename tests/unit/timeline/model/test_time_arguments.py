"""The forms of a time argument, and the zone in which each is read (fmt 6.5)."""
# ruff: noqa: DTZ001 - the tests need a datetime without a zone

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.settings.read_settings import ReadSettings
from timeline.errors import InvalidInputError, SettingError
from timeline.model.instant_time import EARLIEST, UTC_ZONE, TimelineZone
from timeline.model.time_arguments import parse_instant, parse_range, parse_time_travel

BERLIN = TimelineZone("Europe/Berlin", ZoneInfo("Europe/Berlin"))
TOKYO = ZoneInfo("Asia/Tokyo")


@pytest.mark.parametrize(
    ("value", "in_utc", "in_berlin"),
    [
        (datetime(2026, 7, 1, 12), "20260701120000000", "20260701120000000"),
        (datetime(2026, 7, 1, 12, tzinfo=UTC), "20260701120000000", "20260701140000000"),
        (datetime(2026, 7, 1, 12, tzinfo=TOKYO), "20260701030000000", "20260701050000000"),
        (date(2026, 7, 1), "20260701000000000", "20260701000000000"),
        ("2026-07-01", "20260701000000000", "20260701000000000"),
        ("2026-07-01T12:00Z", "20260701120000000", "20260701140000000"),
        ("2026-07-01 12:00 UTC", "20260701120000000", "20260701140000000"),
        ("2026-07-01 12:00 +05", "20260701070000000", "20260701090000000"),
        (pd.Timestamp("2026-07-01 12:00"), "20260701120000000", "20260701120000000"),
        (pd.Timestamp("2026-07-01 12:00", tz="UTC"), "20260701120000000", "20260701140000000"),
        (pd.Timestamp("2026-07-01 12:00:00.123456789"), "20260701120000123", "20260701120000123"),
        (np.datetime64("2026-07-01"), "20260701000000000", "20260701000000000"),
        (np.datetime64("2026-07-01T12:00:00.123456789"), "20260701120000123", "20260701120000123"),
        (pa.scalar(datetime(2026, 7, 1, 12)), "20260701120000000", "20260701120000000"),
        (20260701120000123, "20260701120000123", "20260701120000123"),
        (20260701120000, "20260701120000999", "20260701120000999"),
        (np.int64(20260701120000123), "20260701120000123", "20260701120000123"),
    ],
)
def test_a_time_argument_without_a_zone_is_read_in_the_zone_of_the_table(
    value: Any, in_utc: str, in_berlin: str
) -> None:
    assert parse_time_travel(value, UTC_ZONE) == in_utc
    assert parse_time_travel(value, BERLIN) == in_berlin


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        np.True_,
        0,
        1_700_000_000,
        1_700_000_000_000,
        -20260701120000,
        pytest.param(10**6000, id="huge"),
        pytest.param(-(10**6000), id="huge and negative"),
        202607011200000000,
        20261399000000,
        1.7e9,
        20260701120000.0,
        Decimal(20260701120000),
        b"2026-07-01",
        "",
        "   ",
        "now",
        "2026-02-30",
        pd.NaT,
        np.datetime64("NaT", "us"),
        np.datetime64("30000-01-01"),
        time(12),
        timedelta(days=1),
        [2026, 7, 1],
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
        date(999, 1, 1),
    ],
)
@pytest.mark.parametrize("zone", [UTC_ZONE, BERLIN])
def test_a_value_that_is_no_time_is_refused(value: Any, zone: TimelineZone) -> None:
    for reads in (parse_time_travel, parse_instant):
        if reads is parse_instant and value == 20261399000000:
            continue  # the name of an instant need not be a date
        with pytest.raises(InvalidInputError) as caught:
            reads(value, zone)
        assert caught.value.kind == "instant_time"
        assert isinstance(caught.value.fields["value"], str)


@given(st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30)), st.sampled_from([UTC, TOKYO]))
def test_a_datetime_and_its_text_are_the_same_time(moment: datetime, zone: Any) -> None:
    for value in (moment, moment.replace(tzinfo=zone)):
        text = value.isoformat() if zone is UTC else value.astimezone(UTC).isoformat()
        if value.tzinfo is None:
            text = value.isoformat(sep=" ")
        assert parse_time_travel(value, BERLIN) == parse_time_travel(text, BERLIN)


def test_an_instant_time_keeps_its_digits() -> None:
    assert parse_instant(20260701120000, UTC_ZONE) == "20260701120000"
    assert parse_instant(" 00000000000000000 ", UTC_ZONE) == EARLIEST
    assert parse_instant(datetime(2026, 7, 1, 12, 0, 0, 123999), UTC_ZONE) == "20260701120000123"


@pytest.mark.parametrize(
    "since", ["earliest", " Earliest ", "0", "00", "000", " 0000 ", "0" * 14, EARLIEST]
)
def test_the_beginning_is_called_earliest(since: str) -> None:
    assert parse_range(since, None, UTC_ZONE) == (EARLIEST, None)


@pytest.mark.parametrize("since", ["", " ", None, 0, "0 0", "0" * 14 + "Z"])
def test_an_empty_beginning_is_refused_and_earliest_offered(since: Any) -> None:
    with pytest.raises(InvalidInputError, match="earliest") as caught:
        parse_range(since, None, UTC_ZONE)
    assert caught.value.kind == "instant_time"


def test_an_empty_end_is_refused() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_range("earliest", "", UTC_ZONE)
    assert caught.value.kind == "instant_time"


@pytest.mark.parametrize(
    ("value", "time"),
    [
        (datetime(2026, 7, 1, 12, 0, 0, 5000), "20260701120000005"),
        (datetime(2026, 7, 1, 12, tzinfo=UTC), "20260701140000000"),
        (date(2026, 7, 1), "20260701000000000"),
        (pd.Timestamp("2026-07-01 12:00:00.123456789", tz="Asia/Tokyo"), "20260701050000123"),
        (np.datetime64("2026-07-01T12:00"), "20260701120000000"),
        (20260701120000123, "20260701120000123"),
        (np.int64(20260701120000123), "20260701120000123"),
    ],
)
def test_an_option_accepts_a_time(value: Any, time: str) -> None:
    settings = ReadSettings.from_properties({"as.of.instant": value})
    assert parse_time_travel(str(settings.as_of), BERLIN) == time


@pytest.mark.parametrize("value", ["", "  ", None, pd.NaT, [1], object()])
def test_an_option_with_an_invalid_time_is_refused(value: Any) -> None:
    with pytest.raises(SettingError):
        ReadSettings.from_properties({"as.of.instant": value})

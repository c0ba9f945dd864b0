"""The zone of a table's instant times: digits, local times, and days with a clock change."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.errors import ClockRefusedError, UnsafeSetupError
from timeline.model.instant_time import (
    UTC_ZONE,
    Residue,
    SkewLimits,
    TimelineZone,
    WallMs,
    instant_time,
    next_instant_time,
    wall_ms,
)
from timeline.model.time_arguments import (
    TimeArgument,
    parse_instant,
    parse_range,
    parse_time_travel,
)
from timeline.system import process_zone

NAMES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Pacific/Kiritimati",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
)
ZONES = {name: TimelineZone(name, ZoneInfo(name)) for name in NAMES}
BERLIN = ZONES["Europe/Berlin"]
LIMITS = SkewLimits()
MINUTE_MS = 60_000


def at(text: str) -> WallMs:
    return WallMs(int(datetime.fromisoformat(text).timestamp() * 1000))


BACK = at("2026-10-25T01:00:00+00:00")  # Berlin's clock shows 3 o'clock, then 2 again
FORWARD = at("2026-03-29T01:00:00+00:00")  # after 2 o'clock it shows 3


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("UTC", "20260701120000000"),
        ("Europe/Berlin", "20260701140000000"),
        ("America/New_York", "20260701080000000"),
        ("Asia/Kolkata", "20260701173000000"),
        ("Pacific/Kiritimati", "20260702020000000"),
    ],
)
def test_an_instant_time_shows_the_clock_of_its_zone(name: str, time: str) -> None:
    moment = at("2026-07-01T12:00:00+00:00")
    assert ZONES[name].instant_time(moment) == time
    assert ZONES[name].wall_ms(time) == moment


@given(st.sampled_from(NAMES), st.integers(at("2015-01-01T00:00Z"), at("2099-12-31T00:00Z")))
def test_digits_denote_their_time_or_the_first_one_with_these_digits(name: str, now: int) -> None:
    zone = ZONES[name]
    back = zone.wall_ms(zone.instant_time(now))
    assert back == now or zone.instant_time(back) == zone.instant_time(now)
    assert back <= now


@given(
    st.sampled_from(NAMES),
    st.integers(at("2026-01-01T00:00Z"), at("2027-12-31T00:00Z")),
    st.integers(0, 3 * 60 * MINUTE_MS),
)
def test_the_bounds_of_a_time_hold_for_every_earlier_and_later_time(
    name: str, now: int, span: int
) -> None:
    zone = ZONES[name]
    assert zone.instant_time(now - span) <= zone.latest_until(now)
    assert zone.earliest_from(now) <= zone.instant_time(now + span)


@pytest.mark.parametrize("as_argument", [lambda moment: moment, lambda moment: moment.isoformat()])
def test_a_time_with_a_zone_includes_the_commits_until_then(
    as_argument: Callable[[datetime], TimeArgument],
) -> None:
    newest = None
    for now in range(BACK - 60 * MINUTE_MS, BACK + 120 * MINUTE_MS, 10 * MINUTE_MS):
        newest = next_instant_time(now, newest, Residue.BEGIN, limits=LIMITS, zone=BERLIN)
        moment = datetime.fromtimestamp(now / 1000, UTC)
        for one in (moment, moment.astimezone(BERLIN.rules)):
            assert newest <= parse_time_travel(as_argument(one), BERLIN)
            since, until = parse_range(as_argument(one), as_argument(one), BERLIN)
            assert since == BERLIN.instant_time(now) <= newest <= str(until)
            assert parse_instant(as_argument(one), BERLIN) == since
        local = moment.astimezone(BERLIN.rules).replace(tzinfo=None)
        assert parse_time_travel(local, BERLIN) == BERLIN.instant_time(now)


def test_in_the_repeated_hour_the_bounds_are_those_of_the_hour() -> None:
    half = 30 * MINUTE_MS
    assert BERLIN.instant_time(BACK - half) == BERLIN.instant_time(BACK + half)
    assert BERLIN.latest_until(BACK + half) == "20261025025959999"
    assert BERLIN.earliest_from(BACK - half) == "20261025020000000"
    assert BERLIN.latest_until(BACK + 3 * half) == BERLIN.instant_time(BACK + 3 * half)
    assert BERLIN.wall_ms("20261025023000000") == BACK - half


def test_a_time_in_the_skipped_hour_continues_the_hour_before() -> None:
    assert BERLIN.wall_ms("20260329023000000") == FORWARD + 30 * MINUTE_MS


@pytest.mark.spec("TL-SUCC-1")
@pytest.mark.parametrize("turned", [BACK, FORWARD])
@pytest.mark.parametrize("step_ms", [1, 700, 20_000, 10 * MINUTE_MS])
def test_drawn_times_increase_through_a_change_of_the_clock(turned: int, step_ms: int) -> None:
    newest = None
    steps = min(2_000, 4 * 60 * MINUTE_MS // step_ms)
    for step in range(steps):
        now = WallMs(turned + (step - steps // 2) * step_ms)
        drawn = next_instant_time(now, newest, Residue.BEGIN, limits=LIMITS, zone=BERLIN)
        assert newest is None or drawn > newest
        newest = drawn


@pytest.mark.spec("TL-SUCC-1")
def test_many_times_drawn_in_the_repeated_hour_pass_its_end() -> None:
    newest = "20261025025959990"
    for second in range(0, 3_600, 60):
        now = WallMs(BACK + second * 1_000)
        newest = next_instant_time(now, newest, Residue.BEGIN, limits=LIMITS, zone=BERLIN)
    assert "20261025030000000" < newest < "20261025030001000"


@pytest.mark.spec("TL-SUCC-1")
def test_a_clock_of_another_zone_is_refused_and_the_zone_named() -> None:
    newest = ZONES["Asia/Kolkata"].instant_time(BACK)
    with pytest.raises(ClockRefusedError, match=r"TZ.*Europe/Berlin"):
        next_instant_time(BACK, newest, Residue.BEGIN, limits=LIMITS, zone=BERLIN)


@pytest.mark.spec("TL-SUCC-1")
def test_a_clock_a_second_ahead_may_be_past_the_change() -> None:
    newest = BERLIN.instant_time(FORWARD + 500)
    drawn = next_instant_time(
        WallMs(FORWARD - 500), newest, Residue.BEGIN, limits=LIMITS, zone=BERLIN
    )
    assert newest < drawn < BERLIN.instant_time(FORWARD + 600)


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("UTC", "Etc/UTC", True),
        ("UTC", "Africa/Abidjan", True),
        ("Europe/Berlin", "Europe/Paris", True),
        ("Asia/Kolkata", "Asia/Calcutta", True),
        ("Europe/Berlin", "Africa/Lagos", False),
        ("Europe/London", "UTC", False),
        ("Europe/Berlin", "Europe/Athens", False),
        ("America/New_York", "America/Havana", False),
    ],
)
def test_zones_agree_by_their_offsets_not_by_their_names(one: str, other: str, agree: bool) -> None:
    zones = [TimelineZone(name, ZoneInfo(name)) for name in (one, other)]
    assert (zones[0].fingerprint == zones[1].fingerprint) is agree


def test_a_zone_without_changes_agrees_by_its_offset_alone() -> None:
    assert UTC_ZONE.fingerprint == "UTC"
    assert ZONES["Asia/Kolkata"].fingerprint == "+05:30"
    assert BERLIN.fingerprint.startswith("+01:00/+02:00 ")


@pytest.mark.parametrize(
    ("as_argument", "name", "hour"),
    [
        ("Europe/Berlin", "Europe/Berlin", "14"),
        (":Europe/Berlin", "Europe/Berlin", "14"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "CET-1CEST,M3.5.0,M10.5.0/3", "14"),
        ("EST5EDT,M3.2.0,M11.1.0", "EST5EDT,M3.2.0,M11.1.0", "08"),
        ("", "UTC", "12"),
        ("UTC0", "UTC0", "12"),
    ],
)
def test_the_zone_of_a_process_is_that_of_tz(
    monkeypatch: pytest.MonkeyPatch, as_argument: str, name: str, hour: str
) -> None:
    monkeypatch.setenv("TZ", as_argument)
    zone = process_zone()
    assert zone.name == name
    assert zone.instant_time(at("2026-07-01T12:00:00+00:00")) == f"20260701{hour}0000000"
    assert zone.of(datetime(2026, 7, 1, 12, tzinfo=UTC)) == f"20260701{hour}0000000"


@pytest.mark.parametrize(
    "as_argument", ["Mars/Olympus", "../etc/passwd", "/no/such/file", "Ünsinn"]
)
def test_a_zone_without_rules_is_refused(monkeypatch: pytest.MonkeyPatch, as_argument: str) -> None:
    monkeypatch.setenv("TZ", as_argument)
    with pytest.raises(UnsafeSetupError) as caught:
        process_zone()
    assert caught.value.kind == "time_zone"


def test_without_tz_the_zone_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    now = at("2026-07-01T12:00:00+00:00")
    with monkeypatch.context() as patched:
        patched.delenv("TZ", raising=False)
        time.tzset()  # the library caches the zone of the former TZ
        local = datetime.fromtimestamp(now / 1000)  # noqa: DTZ006 - the machine is asked
        assert process_zone().instant_time(now) == f"{local:%Y%m%d%H%M%S}000"
    time.tzset()


def test_utc_reads_digits_as_they_are() -> None:
    assert UTC_ZONE.instant_time(BACK) == instant_time(BACK)
    assert UTC_ZONE.wall_ms("20261025023000000") == wall_ms("20261025023000000")
    assert UTC_ZONE.latest_until(BACK) == UTC_ZONE.earliest_from(BACK) == instant_time(BACK)

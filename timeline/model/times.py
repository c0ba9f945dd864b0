"""
Instant times: 17 digits ``yyyyMMddHHmmssSSS`` in UTC, compared as text (TL-FMT-1).

An instant time names an instant or orders its visibility; it is not a wall clock reading.
Wall readings are ``int`` milliseconds; the two kinds never mix. Time travel accepts the
forms of fmt 6.5 and turns them into instant times here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NewType

from timeline.errors import InvalidInputError

__all__ = [
    "EARLIEST",
    "InstantTime",
    "WallMs",
    "instant_time",
    "is_between",
    "parse_time_travel",
    "told_ms",
    "wall_ms",
]

InstantTime = str
WallMs = NewType("WallMs", int)

#: Below every real instant time; the lower bound of an unbounded range.
EARLIEST: InstantTime = "00000000000000000"

_YEAR_MIN = 1000  # below, the year has no four digits
_ZONE_HOURS_MAX = 18
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = re.compile(r"\d{17}|\d{14}", re.ASCII)
_DATE_TIME = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?"
    r"(Z|[+-]\d{2}:?\d{2})?",
    re.ASCII,
)


def is_between(time: InstantTime, since: InstantTime, until: InstantTime | None) -> bool:
    """Whether a time lies in (since, until], the form of every range; None has no end."""
    return since < time and (until is None or time <= until)


def told_ms(value: Any) -> WallMs:
    """
    A wall time as a document of the table tells it; one that no clock shows is damage.

    Raises:
        ArithmeticError, TypeError, ValueError: It is no time up to the year 9999.
    """
    at = WallMs(int(value))
    instant_time(at)
    return at


def instant_time(at: WallMs) -> InstantTime:
    """
    The 17 digits of a wall time.

    Args:
        at: Milliseconds since 1970-01-01 UTC, up to the year 9999.
    """
    moment = _EPOCH + timedelta(milliseconds=at)
    return (
        f"{moment.year:04d}{moment.month:02d}{moment.day:02d}{moment.hour:02d}"
        f"{moment.minute:02d}{moment.second:02d}{moment.microsecond // 1000:03d}"
    )


def wall_ms(time: InstantTime) -> WallMs:
    """
    The wall time an instant time stands for, in ms since 1970-01-01 UTC.

    A 14-digit time of an old table stands for its last millisecond (fmt 2.1).

    Raises:
        InvalidInputError: The text is no date (the metadata table's bootstrap times are not).
    """
    try:
        if not _DIGITS.fullmatch(time):
            raise ValueError("neither 17 nor 14 digits")
        year, month, day = int(time[:4]), int(time[4:6]), int(time[6:8])
        hour, minute, second = int(time[8:10]), int(time[10:12]), int(time[12:14])
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise InvalidInputError(
            f"not an instant time of 17 digits: {time!r}", kind="instant_time", value=time
        ) from None
    millis = int(time[14:] or "999")
    return WallMs((moment - _EPOCH) // timedelta(milliseconds=1) + millis)


def parse_time_travel(text: str) -> InstantTime:
    """
    Turn a user's moment into an instant time that includes everything up to it (fmt 6.5).

    Accepts 17 or 14 digits, ``yyyy-MM-dd``, ``yyyy-MM-dd HH:mm[:ss[.SSS]]`` with a blank or
    ``T`` between, with an optional zone (``Z``, ``+02:00``); without one it is UTC. A date
    alone means its first millisecond, as in Java Hudi.

    Raises:
        InvalidInputError: Any other form, or a day or hour that does not exist.
    """
    stripped = text.strip()
    if _DIGITS.fullmatch(stripped):
        wall_ms(stripped)
        return stripped if len(stripped) == 17 else stripped + "999"
    match = _DATE_TIME.fullmatch(stripped)
    if match is None:
        raise InvalidInputError(
            "a time is 17 or 14 digits, yyyy-MM-dd or 'yyyy-MM-dd HH:mm:ss[.SSS]' (UTC unless "
            f"a zone is given), not {text!r}",
            kind="instant_time",
            value=text,
        )
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "0").ljust(6, "0")),
            tzinfo=UTC,
        ) - _offset(zone)
        if moment.year < _YEAR_MIN:
            raise ValueError(f"before the year {_YEAR_MIN}")
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"no such moment ({error}): {text!r}", kind="instant_time", value=text
        ) from None
    return instant_time(WallMs((moment - _EPOCH) // timedelta(milliseconds=1)))


def _offset(zone: str | None) -> timedelta:
    if not zone or zone == "Z":
        return timedelta(0)
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > _ZONE_HOURS_MAX or minutes >= 60:
        raise ValueError("no such zone")
    offset = timedelta(hours=hours, minutes=minutes)
    return offset if zone[0] == "+" else -offset

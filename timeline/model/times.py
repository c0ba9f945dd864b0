"""
Instant times: 17 digits ``yyyyMMddHHmmssSSS``, compared as text (TL-FMT-1).

An instant time names an instant or orders its visibility; it is not a wall clock reading.
Wall readings are ``int`` milliseconds; the two kinds never mix. The functions here read the digits
as UTC, which is right for tables of that zone and for spans; ``zones`` knows the other tables.
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
    "told_ms",
    "wall_ms",
]

InstantTime = str
WallMs = NewType("WallMs", int)

#: Below every real instant time; the lower bound of an unbounded range.
EARLIEST: InstantTime = "00000000000000000"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = re.compile(r"\d{17}|\d{14}", re.ASCII)


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


def is_instant_time(text: str) -> bool:
    """Whether a text is a time of a timeline: a date, or zeros, which are before all dates."""
    if text == EARLIEST:
        return True
    try:
        wall_ms(text)
    except InvalidInputError:
        return False
    return True


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

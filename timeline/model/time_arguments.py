"""
Turn a time argument of a call into an instant time of a table (fmt 6.5).

Only this module does so, so every call accepts the same forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, timezone
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from timeline.errors import InstantNotFoundError, InvalidInputError
from timeline.model.instant_time import EARLIEST, InstantTime, TimelineZone, wall_ms

if TYPE_CHECKING:
    import numpy as np

#: A text, a datetime (also of pandas), a date, or an int of 14 or 17 digits.
TimeArgument: TypeAlias = "str | int | date | datetime | np.datetime64"

_YEAR_MIN = 1000  # earlier years have fewer than four digits
_ZONE_HOURS_MAX = 18
_INSTANT = re.compile(r"\d{17}|\d{14}", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)
_DATE_TIME = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?"
    r" ?(Z|UTC|[+-]\d{2}(?::?\d{2})?)?",
    re.ASCII | re.IGNORECASE,
)
_FORMS = (
    "a time is a datetime, a date, an int of 17 or 14 digits (never seconds since 1970), or a "
    "text: 17 or 14 digits, 'yyyy-MM-dd' or 'yyyy-MM-dd HH:mm:ss[.SSS][+02:00]'"
)
_ABOVE_INSTANTS = 10**17  # far greater numbers have more digits than Python converts
_BEGINNING = re.compile(r"earliest|0+", re.ASCII | re.IGNORECASE)  # Java has 3 and 14 zeros


def parse_time_travel(
    value: TimeArgument, zone: TimelineZone, *, exclusive: bool = False
) -> InstantTime:
    """
    Turn a time argument into an instant time that includes everything up to it (fmt 6.5).

    Args:
        value: 17 or 14 digits, as a text or an int; 14 digits mean their whole second, as in Java
            Hudi. Or a text ``yyyy-MM-dd`` or ``yyyy-MM-dd HH:mm[:ss[.SSS]]``, with a blank or ``T``
            between, and with an optional zone (``Z``, ``+02:00``). Or a datetime,
            ``pandas.Timestamp`` or ``numpy.datetime64``. A date means its first millisecond.
        zone: The table's; a value without a zone is read in it.
        exclusive: Whether the caller wants times above the result. This matters for a value with a
            zone where the table's clock was set back: times continue above the digits that it had
            reached.

    Raises:
        InvalidInputError: Any other form, or a day or hour that does not exist.
    """
    named = parse_instant(value, zone, reached=not exclusive)
    if not _INSTANT.fullmatch(named):
        raise _refused(value)
    wall_ms(named)
    return named if len(named) == 17 else named + "999"


def parse_instant(value: TimeArgument, zone: TimelineZone, *, reached: bool = False) -> InstantTime:
    """
    Turn a time argument into the instant time that was requested or completed then.

    Arguments, errors: as ``parse_time_travel``. Digits stay as they are, because instants of old
    tables have 14, and those of a metadata table any number. With ``reached`` a datetime becomes
    the greatest digits until then.
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return value.strip()
    if (digits := _digits_of(value)) is not None:
        if _INSTANT.fullmatch(digits):
            return digits
        raise _refused(value)
    try:
        moment = _read(value)
        time = zone.latest_for(moment) if reached else zone.of(moment)
        if int(time[:4]) < _YEAR_MIN:
            raise ValueError(f"before the year {_YEAR_MIN}")
    except InvalidInputError:
        raise
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"this is not a time ({error}); correct the value: {_as_error_field(value)}",
            kind="instant_time",
            value=_as_error_field(value),
        ) from None
    return time


def parse_range(
    since: TimeArgument, until: TimeArgument | None, zone: TimelineZone
) -> tuple[InstantTime, InstantTime | None]:
    """
    Turn two time arguments into a range (since, until], by completion times.

    Args:
        since: A time argument; the text ``earliest`` and a text of zeros mean no lower bound (fmt
            6.6).
        until: A time argument; None for now.
        zone: The table's.

    Raises:
        InvalidInputError: No such form.
    """
    start = EARLIEST
    if not (isinstance(since, str) and _BEGINNING.fullmatch(since.strip())):
        try:
            start = parse_time_travel(since, zone, exclusive=True)
        except InvalidInputError as error:
            if error.kind != "instant_time":
                raise
            raise InvalidInputError(
                f"{error.message}; 'earliest' is the beginning",
                kind="instant_time",
                value=_as_error_field(since),
            ) from None
    return start, parse_time_travel(until, zone) if until is not None else None


def time_argument_text(value: object) -> str | None:
    """Return a date, datetime or numpy int as the text of a property; None for other values."""
    if (digits := _digits_of(value)) is not None:
        return digits or None
    if isinstance(value, str):
        return None
    try:
        moment = _read(value)
    except (InvalidInputError, ValueError):
        return None
    if moment.utcoffset() is not None:
        moment = moment.astimezone(UTC)
    return moment.isoformat(sep=" ")


def _digits_of(value: Any) -> str | None:
    """Return the digits of an int, numpy's too; None for a bool and other values."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    number = int(value)
    return str(number) if 0 <= number < _ABOVE_INSTANTS else ""


def _read(value: Any) -> datetime:
    """Return the value as a plain datetime, without a zone if the value has none."""
    if isinstance(value, str):
        return _read_text(value)
    if not isinstance(value, date):  # a datetime is a date
        value = _of_library(value)
    if isinstance(value, datetime):  # a pandas.Timestamp too, which has nanoseconds, and its NaT
        return datetime.combine(value.date(), value.timetz()).replace(fold=value.fold)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001 - on the table's clock
    raise _refused(value)


def _of_library(value: Any) -> Any:
    """Return a time of numpy or pyarrow as one of Python; other values stay."""
    import numpy as np  # not for readers of the timeline
    import pyarrow as pa

    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _read_text(text: str) -> datetime:
    match = _DATE_TIME.fullmatch(text.strip())
    if match is None:
        raise _refused(text)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    return datetime(
        int(year),
        int(month),
        int(day),
        int(hour or 0),
        int(minute or 0),
        int(second or 0),
        int((fraction or "0").ljust(6, "0")[:6]),
        tzinfo=_offset(zone),
    )


def _offset(zone: str | None) -> timezone | None:
    if not zone:
        return None
    if zone.upper() in ("Z", "UTC"):
        return UTC
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > _ZONE_HOURS_MAX or minutes >= 60:
        raise ValueError("no such zone")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(offset if zone[0] == "+" else -offset)


def instant_not_found(
    problem: str, time: InstantTime, choices: Iterable[InstantTime], *, kind: str
) -> InstantNotFoundError:
    """
    Return the error for an instant that the table lacks; it names the nearest ones to choose.

    Args:
        problem: What is wrong and what to do, in lower case and without a full stop.
        time: The instant asked for, or its first digits.
        choices: The requested times that the call would accept.
        kind: Of the error, whose fields are ``requested_time``, ``before`` and ``after``.
    """
    before, after, shown = nearest_instants(time, choices)
    return InstantNotFoundError(
        f"{problem}; {shown}: {time}", kind=kind, requested_time=time, before=before, after=after
    )


def nearest_instants(
    time: InstantTime, choices: Iterable[InstantTime]
) -> tuple[InstantTime | None, InstantTime | None, str]:
    """Return the nearest choice before a time, the nearest after it, and both as text."""
    times = set(choices)
    before = max((one for one in times if one < time), default=None)
    after = min((one for one in times if one > time), default=None)
    found = [f"{one} {side} it" for one, side in ((before, "before"), (after, "after")) if one]
    shown = f"the nearest: {', '.join(found)}" if found else "the timeline has none"
    return before, after, shown


def _refused(value: object) -> InvalidInputError:
    what = _as_error_field(value) if isinstance(value, int) else repr(value)
    if not isinstance(value, str | int):
        what = f"{type(value).__name__} {what}"
    return InvalidInputError(
        f"{_FORMS}, not {what}", kind="instant_time", value=_as_error_field(value)
    )


def _as_error_field(value: object) -> str:
    """Return the value as plain data for an error."""
    if isinstance(value, int) and abs(value) >= _ABOVE_INSTANTS:
        return f"an int of {value.bit_length()} bits"
    return value if isinstance(value, str) else repr(value)

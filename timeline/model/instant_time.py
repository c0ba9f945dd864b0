"""Instant times: their digits, time zones, and the choice of the next time of a timeline."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import IntEnum
from typing import Any, NewType

from timeline.errors import ClockRefusedError, InvalidInputError

# ---- Instant times: 17 digits ``yyyyMMddHHmmssSSS``, compared as text (TL-FMT-1)
# An instant time names an instant or orders its visibility; it is not a wall clock time. Wall times
# are ``int`` milliseconds; the two kinds never mix. The plain functions here read the digits as UTC,
# which is right for tables of that zone and for differences. ``TimelineZone`` serves the other
# tables.

InstantTime = str
WallMs = NewType("WallMs", int)

#: Below every real instant time; the lower bound of an unbounded range.
EARLIEST: InstantTime = "00000000000000000"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = re.compile(r"\d{17}|\d{14}", re.ASCII)


def is_between(time: InstantTime, since: InstantTime, until: InstantTime | None) -> bool:
    """Return whether a time is in (since, until], the form of every range; None has no end."""
    return since < time and (until is None or time <= until)


def parse_wall_ms(value: Any) -> WallMs:
    """
    Return a wall time from a document of the table.

    Raises:
        ArithmeticError, TypeError, ValueError: It is no time up to the year 9999, so the document
            is damaged.
    """
    at = WallMs(int(value))
    instant_time(at)
    return at


def instant_time(at: WallMs) -> InstantTime:
    """
    Return the 17 digits of a wall time.

    Args:
        at: Milliseconds since 1970-01-01 UTC, up to the year 9999.
    """
    moment = _EPOCH + timedelta(milliseconds=at)
    return (
        f"{moment.year:04d}{moment.month:02d}{moment.day:02d}{moment.hour:02d}"
        f"{moment.minute:02d}{moment.second:02d}{moment.microsecond // 1000:03d}"
    )


def is_instant_time(text: str) -> bool:
    """Return whether a text is a time of a timeline: a date, or zeros, which precede all dates."""
    if text == EARLIEST:
        return True
    try:
        wall_ms(text)
    except InvalidInputError:
        return False
    return True


def wall_ms(time: InstantTime) -> WallMs:
    """
    Return the wall time of an instant time, in ms since 1970-01-01 UTC.

    A 14-digit time of an old table is read as its last millisecond (fmt 2.1).

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
            f"an instant time has 17 digits: copy one from 'hoodoo timeline show TABLE': {time!r}",
            kind="instant_time",
            value=time,
        ) from None
    millis = int(time[14:] or "999")
    return WallMs((moment - _EPOCH) // timedelta(milliseconds=1) + millis)


# ---- Time zones
# A table of zone LOCAL (Java Hudi's default, also without the property) uses the clock of the
# writing process. Such a clock is set back in autumn, so two wall times may have the same digits.
# Here the digits mean the first of them, as in Java's ``LocalDateTime.atZone``.

#: The value of ``hoodie.table.timeline.timezone`` that means the zone of each process.
LOCAL = "LOCAL"

_MS = timedelta(milliseconds=1)
_DAY = timedelta(days=1)
# Zones are compared over these years: no Hudi table is older, and no later rules are known.
_COMPARED_FROM, _COMPARED_TO = datetime(2015, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_HEX_DIGITS = 12


@dataclass(frozen=True, slots=True, eq=False)
class TimelineZone:
    """
    Convert wall times into instant times of one table and back.

    Args:
        name: The common name of the zone: ``UTC``, ``Europe/Berlin``.
        rules: Its offsets; None for UTC.
    """

    name: str
    rules: tzinfo | None = None

    def instant_time(self, at: int) -> InstantTime:
        """Return the 17 digits of a wall time (ms since 1970-01-01 UTC) on a clock of the zone."""
        return instant_time(WallMs(at + self._offset_ms(at)))

    def wall_ms(self, time: InstantTime) -> WallMs:
        """
        Return the wall time of an instant time, in ms since 1970-01-01 UTC.

        In a repeated hour it is the first one. A skipped hour continues the hour before it, as in
        Java.

        Raises:
            InvalidInputError: As the function ``wall_ms``.
        """
        shown = wall_ms(time)
        if self.rules is None:
            return shown
        local = _moment(shown).replace(tzinfo=self.rules)
        return WallMs(shown - (local.utcoffset() or timedelta(0)) // _MS)

    def of(self, moment: datetime) -> InstantTime:
        """
        Return the digits of a datetime; one without a zone is read on the table's clock.

        Raises:
            OverflowError: It has no four-digit year in the table's zone.
        """
        if moment.utcoffset() is None:
            shown = moment.replace(tzinfo=UTC)
        else:
            shown = moment.astimezone(self.rules or UTC).replace(tzinfo=UTC)
        return instant_time(WallMs((shown - _EPOCH) // _MS))

    def latest_for(self, moment: datetime) -> InstantTime:
        """
        Return the greatest digits for a datetime or an earlier one.

        A datetime without a zone is read as in ``of``; one with a zone is not ambiguous
        (``reached``).

        Raises:
            OverflowError: As in ``of``.
        """
        if moment.utcoffset() is None:
            return self.of(moment)
        return self.latest_until((moment - _EPOCH) // _MS)

    def latest_until(self, at: int) -> InstantTime:
        """
        Return the greatest digits that the clock has shown until a wall time.

        They are those of the time itself, except in a repeated hour: there the end of its first
        pass. A timeline that only grows stays above them until the clock reaches them again.
        """
        turned = self._turned_back(at, since=True)
        return self.instant_time(at if turned is None else turned - 1)

    def earliest_from(self, at: int) -> InstantTime:
        """
        Return the least digits that the clock shows from a wall time on.

        Smaller digits are older. In the first pass of a repeated hour the result is the begin of
        that hour, so that nothing counts as older than it is.
        """
        turned = self._turned_back(max(0, at), since=False)
        return self.instant_time(max(0, at) if turned is None else turned)

    @property
    def fingerprint(self) -> str:
        """
        A text that is equal for zones of equal offsets, from the year 2015 to 2100.

        ``UTC`` for every name of such a zone; else the offset, or the least and greatest offset
        and a digest of the times of the changes.
        """
        if self.rules is None:
            return "UTC"
        changes = list(_offsets(self.rules))
        offsets = sorted({offset for _, offset in changes})
        offset_range = "/".join(_offset_text(one) for one in (offsets[0], offsets[-1]))
        if len(changes) == 1:
            return _offset_text(offsets[0]) if offsets[0] else "UTC"
        digest = hashlib.sha256(repr(changes).encode()).hexdigest()[:_HEX_DIGITS]
        return f"{offset_range} {digest}"

    def _offset_ms(self, at: int) -> int:
        if self.rules is None:
            return 0
        shown = _moment(at).astimezone(self.rules)
        return (shown.utcoffset() or timedelta(0)) // _MS

    def _turned_back(self, at: int, *, since: bool) -> int | None:
        """Return when the clock was set back, if its digits at ``at`` occur before and after it."""
        if self.rules is None:
            return None
        shown = _moment(at).astimezone(self.rules)
        first = shown.replace(fold=0).utcoffset() or timedelta(0)
        second = shown.replace(fold=1).utcoffset() or timedelta(0)
        if first <= second or bool(shown.fold) is not since:
            return None
        span = (first - second) // _MS
        low, high = (at - span, at) if since else (at, at + span)
        before = self._offset_ms(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset_ms(middle) == before:
                low = middle
            else:
                high = middle
        return high


#: The zone of tables of zone UTC.
UTC_ZONE = TimelineZone("UTC")


def utc_zone() -> TimelineZone:
    """Return UTC, as the zone of a process."""
    return UTC_ZONE


def _moment(at: int) -> datetime:
    return _EPOCH + at * _MS


def _offsets(rules: tzinfo) -> Iterator[tuple[int, int]]:
    """Yield (second since 1970, offset in seconds) at the start and at each later change."""

    def offset(second: int) -> int:
        shown = _moment(second * 1000).astimezone(rules)
        return round((shown.utcoffset() or timedelta(0)).total_seconds())

    start, end = int(_COMPARED_FROM.timestamp()), int(_COMPARED_TO.timestamp())
    step = round(_DAY.total_seconds()) * 7
    known = offset(start)
    yield start, known
    for low in range(start, end, step):
        if (after := offset(low + step)) == known:
            continue
        before, last = low, low + step
        while last - before > 1:
            middle = (before + last) // 2
            before, last = (middle, last) if offset(middle) == known else (before, middle)
        known = after
        yield last, known


def _offset_text(seconds: int) -> str:
    sign = "-" if seconds < 0 else "+"
    hours, left = divmod(abs(seconds), 3600)
    minutes, seconds = divmod(left, 60)
    return f"{sign}{hours:02d}:{minutes:02d}" + (f":{seconds:02d}" if seconds else "")


# ---- Choose the next time on a timeline (TL-SUCC-1, TL-SUCC-2, TL-RES-1)
# The order must not depend on clocks. A new time is above every time on the timeline, and the clock
# only decides how far above. The residue modulo 4 ms shows which step drew a time. So a requested
# time drawn at begin never equals a time drawn in a slot, even if neither sees the other.

_MODULUS = 4


class Residue(IntEnum):
    """Milliseconds modulo 4 of a drawn time (TL-RES-1)."""

    BEGIN = 0  # requested time of a commit or deltacommit
    SLOT_REQUESTED = 1  # requested time drawn inside a slot: plans, cleans, rollbacks
    BEGIN_REPLACE = 2  # requested time of a replacecommit
    SLOT_COMPLETION = 3  # completion time


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewLimits:
    """How far the newest time on a timeline may be ahead of this clock (TL-SUCC-2)."""

    warn_ms: int = 1_000
    refuse_ms: int = 600_000


def next_instant_time(
    now: WallMs,
    newest: InstantTime | None,
    residue: Residue,
    *,
    limits: SkewLimits,
    zone: TimelineZone = UTC_ZONE,
) -> InstantTime:
    """
    Choose the next time on one timeline.

    Args:
        now: This host's wall clock, ms since 1970-01-01 UTC.
        newest: Largest requested or completion time anywhere on the timeline or in a slot; None
            for an empty timeline.
        residue: The residue of the step that draws the time.
        limits: How far ``newest`` may be ahead of ``now`` before it is refused.
        zone: The table's. While its clock repeats an hour, times continue above those of the first
            pass in steps of a few milliseconds.

    Returns:
        The smallest time with this residue that is at or after ``now`` and above ``newest``.

    Raises:
        ClockRefusedError: ``newest`` is further ahead than ``limits.refuse_ms``: one wrong clock
            must not move the table into the future.

    Spec: TL-SUCC-1, TL-SUCC-2, TL-RES-1 (compare Delta's in-commit timestamp rule).
    """
    shown_ms = wall_ms(zone.instant_time(now))  # from the digits alone, as they are ordered
    newest_ms = wall_ms(newest) if newest is not None else WallMs(0)
    ahead = ahead_ms(now, newest, zone)
    if ahead > limits.refuse_ms:
        other_zone = (
            ""
            if zone is UTC_ZONE
            else (
                f", or run with the time zone (TZ) of the table's other writers, here {zone.name},"
            )
        )
        raise ClockRefusedError(
            "the newest time on the timeline is ahead of this clock by more than "
            "hoodoo.clock.max.ahead.ms. Correct the clock of this host, or of the host that "
            f"wrote {newest}{other_zone}. If no writer of yours made the newest slot, end it with "
            f"'hoodoo table end-slot TABLE NUMBER': {ahead} ms ahead",
            newest_time=newest,
            ahead_ms=ahead,
            limit_ms=limits.refuse_ms,
        )
    least = max(shown_ms, newest_ms + 1)
    return instant_time(WallMs(least + (residue - least) % _MODULUS))


def ahead_ms(now: WallMs, newest: InstantTime | None, zone: TimelineZone) -> int:
    """
    Return how far the newest time is ahead of a clock, in ms.

    An hour by which the zone's clock was set back does not count. Times of its first pass are
    above the times that the clock repeats, and so are later times until the clock reaches them.
    """
    if newest is None:
        return 0
    return min(zone.wall_ms(newest) - now, wall_ms(newest) - wall_ms(zone.latest_until(now)))

"""Date patterns of Joda-Time, used for folder names by Hudi's time-based key generators."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.arrow_columns import one_array
from timeline.errors import InvalidInputError

# ---- Times from texts
#
# The fields that a date pattern extracted from whole columns become times. Calendar arithmetic is
# numpy's. The result distinguishes a time, an impossible date (30 February, hour 25) and a text
# that does not match.

Times = npt.NDArray[np.int64]  # milliseconds since 1970


class DateFields:
    """
    The groups that one pattern's expression extracted from a column of texts.

    Args:
        found: The result of Arrow's ``extract_regex``; null if a text did not match.
    """

    def __init__(self, found: Any) -> None:
        found = one_array(found)
        self._valid = np.asarray(pc.is_valid(found)).astype(np.bool_)
        self._parts = {
            found.type.field(number).name: found.field(number)
            for number in range(found.type.num_fields)
        }
        self._count = len(found)

    def local_ms(self) -> tuple[Times, npt.NDArray[np.bool_]]:
        """Return the local times of the texts, and a mask of the rows that are times."""
        valid = self._valid.copy()

        def number(group: str, default: int, low: int, high: int) -> Times:
            if group not in self._parts:
                return np.full(self._count, default, np.int64)
            values = self._numbers(group)
            np.logical_and(valid, (values >= low) & (values <= high), out=valid)
            return np.where(valid, values, default)

        has_date = any(group in self._parts for group in ("M", "month", "d", "D"))
        year = number("y", 2000 if has_date else 1970, 1, 9999)
        month = self._month_names(valid) if "month" in self._parts else number("M", 1, 1, 12)
        day = number("d", 1, 1, 31)
        months = (year - 1970) * 12 + month - 1
        first = months.astype("datetime64[M]").astype("datetime64[D]")
        date = first + (day - 1)
        valid &= date.astype("datetime64[M]") == months.astype("datetime64[M]")
        days = date.astype(np.int64)
        if "D" in self._parts:
            starts = ((year - 1970).astype("datetime64[Y]")).astype("datetime64[D]")
            dated = starts + (number("D", 1, 1, 366) - 1)
            valid &= dated.astype("datetime64[Y]") == starts.astype("datetime64[Y]")
            days = dated.astype(np.int64)
        hour = number("H", 0, 0, 23) + number("k", 24, 1, 24) % 24
        half = number("K", 0, 0, 11) + number("h", 12, 1, 12) % 12
        if "a" in self._parts:
            afternoon = pc.equal(pc.utf8_upper(self._parts["a"]), "PM")
            half = half + 12 * np.asarray(pc.fill_null(afternoon, False)).astype(np.int64)
        minute, second = number("m", 0, 0, 59), number("s", 0, 0, 59)
        whole = days * 86_400_000 + (hour + half) * 3_600_000 + minute * 60_000 + second * 1_000
        return whole + self._fraction(), valid

    def offset_ms(self) -> tuple[Times, npt.NDArray[np.bool_]]:
        """Return the offsets in the texts, and a mask of the texts that have one."""
        if "Z" not in self._parts:
            return np.zeros(self._count, np.int64), np.zeros(self._count, np.bool_)
        text = pc.replace_substring(self._parts["Z"], ":", "")
        text = pc.replace_substring_regex(text, "^[Zz]$", "+0000")
        text = pc.fill_null(pc.utf8_rpad(text, 5, padding="0"), "+0000")
        text = pc.if_else(pc.equal(pc.utf8_length(text), 5), text, "+0000")
        hours = np.asarray(pc.cast(pc.utf8_slice_codeunits(text, 1, 3), pa.int64()))
        minutes = np.asarray(pc.cast(pc.utf8_slice_codeunits(text, 3, 5), pa.int64()))
        west = np.asarray(pc.starts_with(text, "-")).astype(np.bool_)
        offset = (hours * 60 + minutes) * 60_000
        return np.where(west, -offset, offset), self._valid.copy()

    def _numbers(self, group: str) -> Times:
        text = pc.fill_null(pc.utf8_ltrim(self._parts[group], characters="+"), "0")
        text = pc.if_else(pc.equal(text, ""), "0", text)
        return np.asarray(pc.cast(text, pa.int64())).astype(np.int64)

    def _month_names(self, valid: npt.NDArray[np.bool_]) -> Times:
        short = pc.utf8_lower(pc.utf8_slice_codeunits(self._parts["month"], 0, 3))
        names = pa.array([name[:3].lower() for name in MONTH_NAMES])
        found = np.asarray(pc.fill_null(pc.index_in(short, value_set=names), -1)).astype(np.int64)
        valid &= found >= 0
        return np.where(found >= 0, found, 0) + 1

    def _fraction(self) -> Times:
        if "S" not in self._parts:
            return np.zeros(self._count, np.int64)
        text = pc.utf8_slice_codeunits(pc.fill_null(self._parts["S"], ""), 0, 3)
        return np.asarray(pc.cast(pc.utf8_rpad(text, 3, padding="0"), pa.int64())).astype(np.int64)


# ---- Date patterns
#
# A pattern becomes a writer of local times and a regular expression whose groups Arrow extracts
# from whole columns. Letters whose meaning depends on the machine (two-digit years of input, names
# of zones) are refused, because two writers would make two folders.

MONTH_NAMES: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAY_NAMES: Final = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
_PATTERN_CHARACTERS_MAX: Final = 100
_NUMBER_DIGITS_MAX: Final = 9
_TWO_DIGIT_YEAR: Final = 2
_SHORT_NAME: Final = 3
_MS_OF: Final = {"S": 1, "s": 1_000, "m": 60_000, **dict.fromkeys("HhKka", 3_600_000)}
_MS_OF_DAY: Final = 86_400_000
_UNITS: Final = "yMdHmsS"  # from the coarsest to the finest
_YEAR_DIGITS: Final = 4
_FRACTION_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class _PatternPiece:
    """One letter repeated, or literal text (letter is empty)."""

    letter: str
    count: int
    text: str = ""

    @property
    def is_number(self) -> bool:
        """Whether it reads digits; adjacent numbers are separated by width."""
        named = self.letter == "M" and self.count >= _SHORT_NAME
        return bool(self.letter) and self.letter in "yYMdDHhKkmsS" and not named


@dataclass(frozen=True, slots=True)
class DatePattern:
    """A parsed pattern."""

    text: str
    pieces: tuple[_PatternPiece, ...]

    @property
    def finest_ms(self) -> int:
        """The span, counted from local midnight, within which all times have the same text."""
        return min((_MS_OF.get(one.letter, _MS_OF_DAY) for one in self.pieces), default=_MS_OF_DAY)

    @property
    def levels(self) -> int:
        """The number of folders a time makes; a slash starts the next one."""
        return 1 + sum(one.text.count("/") for one in self.pieces)

    def span(self, text: str) -> tuple[datetime, datetime] | None:
        """
        Return the local times that are written as a text, or as one that continues with a slash.

        Returns:
            The first such time and the first time after them. None if no time has the text, or if
            the pattern does not write year, month, day and so on, each once, down to some unit.
        """
        pieces = self._first(text.count("/") + 1)
        letters = ["y" if one.letter == "Y" else one.letter for one in pieces if one.letter]
        if not letters or sorted(letters) != sorted(_UNITS[: len(letters)]):
            return None
        if not all(map(_has_own_width, pieces, [*pieces[1:], None])):
            return None
        pattern = DatePattern(self.text, tuple(pieces))
        found = re.fullmatch(pattern.expression(), text)
        if found is None:
            return None
        fields = found.groupdict()
        if "month" in fields:
            short = fields.pop("month")[:3].capitalize()
            fields["M"] = str([name[:3] for name in MONTH_NAMES].index(short) + 1)
        year, month, day = (int(fields.get(letter, 1)) for letter in "yMd")
        hour, minute, second = (int(fields.get(letter, 0)) for letter in "Hms")
        parts = timedelta(milliseconds=int(fields.get("S", "0")[:3]))
        try:
            first = datetime(year, month, day, hour, minute, second) + parts  # noqa: DTZ001
            behind = _behind(first, _UNITS[len(letters) - 1])
        except (ValueError, OverflowError):
            return None
        return (first, behind) if pattern.write(first) == text else None

    def _first(self, levels: int) -> list[_PatternPiece]:
        """Return the pieces of the first folders; none if a literal text has further slashes."""
        found: list[_PatternPiece] = []
        for one in self.pieces:
            if one.text == "/":
                levels -= 1
                if not levels:
                    break
            elif "/" in one.text:
                return []
            found.append(one)
        return found

    def write(self, local: datetime, offset_minutes: int | None = None) -> str:
        """
        Write a local time as Joda-Time does.

        Raises:
            InvalidInputError: The pattern writes an offset and none is known.
        """
        return "".join(self._written(one, local, offset_minutes) for one in self.pieces)

    def _written(self, piece: _PatternPiece, local: datetime, offset_minutes: int | None) -> str:
        if not piece.letter:
            return piece.text
        if piece.letter == "Z":
            if offset_minutes is None:
                raise _refused(self.text, "offsets are not written into folder names", "Z")
            sign = "-" if offset_minutes < 0 else "+"
            hours, minutes = divmod(abs(offset_minutes), 60)
            return f"{sign}{hours:02d}{':' if piece.count > 1 else ''}{minutes:02d}"
        return _WRITERS[piece.letter](local, piece.count)

    def expression(self) -> str:
        """
        Return a regular expression with one group a field: y M month d D H h K k a m s S Z.

        Raises:
            InvalidInputError: A letter cannot be read back.
        """
        return _expression(self)


def _has_own_width(piece: _PatternPiece, following: _PatternPiece | None) -> bool:
    """Return whether the text shows where the piece ends, with no loss of its value."""
    if piece.letter in ("y", "Y"):
        return piece.count >= _YEAR_DIGITS or (
            piece.count == 1 and not (following is not None and following.is_number)
        )
    if piece.letter == "S":
        return piece.count >= _FRACTION_DIGITS
    return piece.count > 1 or following is None or not (piece.is_number and following.is_number)


def _behind(first: datetime, unit: str) -> datetime:
    if unit == "y":
        return first.replace(year=first.year + 1)
    if unit == "M":
        months = first.year * 12 + first.month
        return first.replace(year=months // 12, month=months % 12 + 1)
    return first + timedelta(milliseconds=_MS_OF.get(unit, _MS_OF_DAY))


@lru_cache(maxsize=256)
def parse_date_pattern(text: str) -> DatePattern:
    """
    Parse a pattern.

    Raises:
        InvalidInputError: ``kind`` ``bad_date_pattern``: it is empty or too long, a quote is not
            closed, or a letter's meaning differs between machines.
    """
    if not text or len(text) > _PATTERN_CHARACTERS_MAX:
        raise _refused(text, f"a date pattern has 1 to {_PATTERN_CHARACTERS_MAX} characters", text)
    pieces: list[_PatternPiece] = []
    position = 0
    while position < len(text):
        first = text[position]
        if first == "'":
            literal, position = _quoted(text, position)
            pieces.append(_PatternPiece("", 0, literal))
        elif first.isascii() and first.isalpha():
            end = position
            while end < len(text) and text[end] == first:
                end += 1
            if first not in _WRITERS and first != "Z":
                raise _refused(text, "this letter is not supported in date patterns", first)
            if first == "Z" and end - position > 2:
                raise _refused(text, "names of time zones are not supported", "ZZZ")
            pieces.append(_PatternPiece(first, end - position))
            position = end
        else:
            pieces.append(_PatternPiece("", 0, first))
            position += 1
    return DatePattern(text, tuple(pieces))


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return the literal text after a quote, and its end; two quotes are one."""
    found: list[str] = []
    position = start + 1
    if text[position : position + 1] == "'":
        return "'", position + 1
    while position < len(text):
        if text[position] != "'":
            found.append(text[position])
            position += 1
        elif text[position + 1 : position + 2] == "'":
            found.append("'")
            position += 2
        else:
            return "".join(found), position + 1
    raise _refused(text, "a quote is not closed", text)


def _year(value: int, count: int) -> str:
    return f"{value % 100:02d}" if count == _TWO_DIGIT_YEAR else f"{value:0{count}d}"


def _named(names: tuple[str, ...], number: int, count: int) -> str:
    name = names[number]
    return name if count > _SHORT_NAME else name[:_SHORT_NAME]


def _month(local: datetime, count: int) -> str:
    if count >= _SHORT_NAME:
        return _named(MONTH_NAMES, local.month - 1, count)
    return f"{local.month:0{count}d}"


def _fraction(local: datetime, count: int) -> str:
    digits = f"{local.microsecond:06d}"[:3]
    return digits[:count].ljust(count, "0")


def _padded(value: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    return lambda local, count: f"{value(local):0{count}d}"


_WRITERS: Final[dict[str, Callable[[datetime, int], str]]] = {
    "G": lambda _local, _count: "AD",
    "C": _padded(lambda local: local.year // 100),
    "y": lambda local, count: _year(local.year, count),
    "Y": lambda local, count: _year(local.year, count),
    "x": lambda local, count: _year(local.isocalendar().year, count),
    "w": _padded(lambda local: local.isocalendar().week),
    "e": _padded(lambda local: local.isoweekday()),
    "E": lambda local, count: _named(_DAY_NAMES, local.weekday(), count),
    "D": _padded(lambda local: local.timetuple().tm_yday),
    "M": _month,
    "d": _padded(lambda local: local.day),
    "a": lambda local, _count: "AM" if local.hour < 12 else "PM",
    "K": _padded(lambda local: local.hour % 12),
    "h": _padded(lambda local: (local.hour + 11) % 12 + 1),
    "H": _padded(lambda local: local.hour),
    "k": _padded(lambda local: (local.hour + 23) % 24 + 1),
    "m": _padded(lambda local: local.minute),
    "s": _padded(lambda local: local.second),
    "S": _fraction,
}

_ALL_MONTHS: Final = "|".join([*MONTH_NAMES, *(name[:3] for name in MONTH_NAMES)])
_OFFSET: Final = r"[Zz]|[+-]\d{2}(?::?\d{2})?"


@lru_cache(maxsize=256)
def _expression(pattern: DatePattern) -> str:
    parts: list[str] = []
    seen: set[str] = set()
    for number, piece in enumerate(pattern.pieces):
        if not piece.letter:
            parts.append(f"(?i:{re.escape(piece.text)})")
            continue
        following = pattern.pieces[number + 1 : number + 2]
        group, body = _group(pattern, piece, next_is_number=any(p.is_number for p in following))
        if group in seen:
            raise _refused(pattern.text, "an input pattern has each field once", piece.letter)
        seen.add(group)
        parts.append(f"(?P<{group}>{body})")
    return "^" + "".join(parts) + "$"


def _group(pattern: DatePattern, piece: _PatternPiece, *, next_is_number: bool) -> tuple[str, str]:
    letter, count = piece.letter, piece.count
    if letter in "yY":
        if count == _TWO_DIGIT_YEAR:
            raise _refused(
                pattern.text, "the century of two-digit years depends on today's date", "yy"
            )
        # Adjacent numbers are separated by width only.
        return "y", rf"\d{{1,{count}}}" if next_is_number else r"[+-]?\d{1,9}"
    if letter == "M" and count >= _SHORT_NAME:
        return "month", f"(?i:{_ALL_MONTHS})"
    if letter == "a":
        return "a", "(?i:am|pm)"
    if letter == "Z":
        return "Z", _OFFSET
    widths = {"M": 2, "d": 2, "D": 3, "H": 2, "h": 2, "K": 2, "k": 2, "m": 2, "s": 2, "S": count}
    if letter not in widths:
        raise _refused(pattern.text, "this letter is not supported in input patterns", letter)
    return letter, rf"\d{{1,{min(widths[letter], _NUMBER_DIGITS_MAX)}}}"


def _refused(pattern: str, why: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{why}; correct the pattern: {what!r} in {pattern[:_PATTERN_CHARACTERS_MAX]!r}",
        kind="bad_date_pattern",
        pattern=pattern[:_PATTERN_CHARACTERS_MAX],
    )

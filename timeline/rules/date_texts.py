"""
Times out of texts: the fields a date pattern found in whole columns, put together.

Calendar arithmetic is numpy's; a date that is none (30 February, hour 25) is told apart from
a text that does not match, and both from a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.model.columns import one_array
from timeline.rules.date_patterns import MONTH_NAMES

__all__ = ["DateFields", "Times"]

Times = npt.NDArray[np.int64]  # milliseconds since 1970


class DateFields:
    """
    The groups that one pattern's expression extracted from a column of texts.

    Args:
        found: What Arrow's ``extract_regex`` answered; null where a text did not match.
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
        """Times on the clock that the text shows, and which rows are times at all."""
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
        """The offset that a text names, and whether it names one."""
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

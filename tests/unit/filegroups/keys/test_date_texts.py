"""Each field of a time in a text at its bounds: the last valid value and the first invalid one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from filegroups.keys.generators import TimestampKeys, TimestampType
from filegroups.keys.timestamp_keys import timestamp_folders
from timeline.errors import InvalidInputError

WHOLE = "yyyy-MM-dd HH:mm:ss.SSS"


def read(pattern: str, *texts: str, zone: str | None = None) -> list[str]:
    keys = TimestampKeys(
        kind=TimestampType.DATE_STRING,
        output_format=WHOLE,
        input_formats=(pattern,),
        output_zone=zone,
    )
    return timestamp_folders(pa.array(texts), keys, name="ts").to_pylist()


@pytest.mark.parametrize(
    ("pattern", "text", "time"),
    [
        ("y", "1", "0001-01-01 00:00:00.000"),
        ("y", "9999", "9999-01-01 00:00:00.000"),
        ("y", "+2024", "2024-01-01 00:00:00.000"),
        ("M", "1", "2000-01-01 00:00:00.000"),
        ("M", "12", "2000-12-01 00:00:00.000"),
        ("MMM", "jan", "2000-01-01 00:00:00.000"),
        ("MMM", "DECEMBER", "2000-12-01 00:00:00.000"),
        ("d", "1", "2000-01-01 00:00:00.000"),
        ("d", "31", "2000-01-31 00:00:00.000"),
        ("M d", "2 29", "2000-02-29 00:00:00.000"),
        ("y M d", "1970 12 31", "1970-12-31 00:00:00.000"),
        ("y M d", "1969 1 2", "1969-01-02 00:00:00.000"),
        ("D", "1", "2000-01-01 00:00:00.000"),
        ("D", "366", "2000-12-31 00:00:00.000"),
        ("y D", "2023 365", "2023-12-31 00:00:00.000"),
        ("H", "0", "1970-01-01 00:00:00.000"),
        ("H", "23", "1970-01-01 23:00:00.000"),
        ("k", "1", "1970-01-01 01:00:00.000"),
        ("k", "24", "1970-01-01 00:00:00.000"),
        ("K", "0", "1970-01-01 00:00:00.000"),
        ("K", "11", "1970-01-01 11:00:00.000"),
        ("h", "1", "1970-01-01 01:00:00.000"),
        ("h", "12", "1970-01-01 00:00:00.000"),
        ("K a", "11 PM", "1970-01-01 23:00:00.000"),
        ("h a", "12 am", "1970-01-01 00:00:00.000"),
        ("h a", "12 Pm", "1970-01-01 12:00:00.000"),
        ("m", "0", "1970-01-01 00:00:00.000"),
        ("m", "59", "1970-01-01 00:59:00.000"),
        ("s", "59", "1970-01-01 00:00:59.000"),
        ("S", "5", "1970-01-01 00:00:00.500"),
        ("SSS", "05", "1970-01-01 00:00:00.050"),
        ("SSSSS", "12345", "1970-01-01 00:00:00.123"),
        ("y M d H m s SSS", "2024 3 9 12 5 7 089", "2024-03-09 12:05:07.089"),
    ],
)
def test_a_field_reads_its_least_and_its_greatest_value(pattern: str, text: str, time: str) -> None:
    assert read(pattern, text) == [time]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("y", "0"),
        ("y", "-1"),
        ("y", "10000"),
        ("M", "0"),
        ("M", "13"),
        ("MMM", "foo"),
        ("d", "0"),
        ("d", "32"),
        ("M d", "4 31"),
        ("y M d", "2023 2 29"),
        ("D", "0"),
        ("D", "367"),
        ("y D", "2023 366"),
        ("H", "24"),
        ("k", "0"),
        ("k", "25"),
        ("K", "12"),
        ("h", "0"),
        ("h", "13"),
        ("m", "60"),
        ("s", "60"),
        ("S", ""),
    ],
)
def test_a_value_beyond_its_field_is_no_time(pattern: str, text: str) -> None:
    good = {"MMM": "Jan", "M d": "4 30", "y M d": "2023 2 28", "y D": "2023 365"}.get(pattern, "1")
    assert len(read(pattern, good, good)) == 2
    with pytest.raises(InvalidInputError, match="is no time in the form") as refused:
        read(pattern, good, text, good)
    assert refused.value.fields == {"column": "ts", "value": text}


def test_every_month_is_read_by_its_name() -> None:
    names = "January February March April May June July August September October November December"
    expected = [f"2000-{month:02d}-01 00:00:00.000" for month in range(1, 13)]
    assert read("MMMM", *names.split()) == expected
    assert read("MMM", *(name[:3].upper() for name in names.split())) == expected


@pytest.mark.parametrize(
    ("offset", "time"),
    [
        ("Z", "2024-03-09 12:00:00.000"),
        ("z", "2024-03-09 12:00:00.000"),
        ("+00", "2024-03-09 12:00:00.000"),
        ("+01", "2024-03-09 11:00:00.000"),
        ("+0130", "2024-03-09 10:30:00.000"),
        ("+01:30", "2024-03-09 10:30:00.000"),
        ("-01", "2024-03-09 13:00:00.000"),
        ("-11:45", "2024-03-09 23:45:00.000"),
    ],
)
def test_an_offset_is_subtracted_from_the_time_of_the_text(offset: str, time: str) -> None:
    assert read("y-M-d HZ", f"2024-3-9 12{offset}", zone="UTC") == [time]
    assert read("y-M-d HZ", f"2024-3-9 12{offset}") == ["2024-03-09 12:00:00.000"]


def test_rows_of_one_column_keep_their_order() -> None:
    texts = ["11 pm", "1 am", "12 am", "11 AM"]
    assert read("h a", *texts) == [
        "1970-01-01 23:00:00.000",
        "1970-01-01 01:00:00.000",
        "1970-01-01 00:00:00.000",
        "1970-01-01 11:00:00.000",
    ]

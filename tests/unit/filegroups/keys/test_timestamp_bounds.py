"""Folders of times at their bounds: units, first and last year, zones, and refused values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from filegroups.keys.generators import TimestampKeys, TimestampType, TimeUnit
from filegroups.keys.timestamp_keys import check_zone, timestamp_folders
from timeline.errors import InvalidInputError

WHOLE = "yyyy-MM-dd HH:mm:ss.SSS"
MILLIS = TimestampType.EPOCHMILLISECONDS
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def folders(values: object, kind: TimestampType = MILLIS, **more: object) -> list[str]:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    keys = TimestampKeys(kind=kind, output_format=WHOLE, **more)
    return timestamp_folders(column, keys, name="ts").to_pylist()


@pytest.mark.parametrize(
    ("unit", "value", "time"),
    [
        (TimeUnit.NANOSECONDS, 1_999_999, "1970-01-01 00:00:00.001"),
        (TimeUnit.NANOSECONDS, -1_999_999, "1969-12-31 23:59:59.999"),
        (TimeUnit.MICROSECONDS, 5_999, "1970-01-01 00:00:00.005"),
        (TimeUnit.MILLISECONDS, 7, "1970-01-01 00:00:00.007"),
        (TimeUnit.SECONDS, 7, "1970-01-01 00:00:07.000"),
        (TimeUnit.MINUTES, 7, "1970-01-01 00:07:00.000"),
        (TimeUnit.HOURS, 7, "1970-01-01 07:00:00.000"),
        (TimeUnit.DAYS, 7, "1970-01-08 00:00:00.000"),
    ],
)
def test_a_scalar_counts_in_its_unit_and_rounds_towards_1970(
    unit: TimeUnit, value: int, time: str
) -> None:
    assert folders([value], TimestampType.SCALAR, scalar_unit=unit) == [time]


@pytest.mark.parametrize(
    ("kind", "time"),
    [
        (TimestampType.UNIX_TIMESTAMP, "1970-01-01 00:16:40.000"),
        (MILLIS, "1970-01-01 00:00:01.000"),
        (TimestampType.EPOCHMICROSECONDS, "1970-01-01 00:00:00.001"),
    ],
)
def test_each_type_of_number_has_its_unit(kind: TimestampType, time: str) -> None:
    assert folders([1_000], kind, scalar_unit=TimeUnit.DAYS) == [time]


def test_the_first_and_the_last_time_have_folders_and_their_neighbours_none() -> None:
    assert folders([FIRST_MS, LAST_MS]) == ["0001-01-01 00:00:00.000", "9999-12-31 23:59:59.999"]
    for beyond in (FIRST_MS - 1, LAST_MS + 1):
        with pytest.raises(InvalidInputError, match="is outside of the years") as refused:
            folders([0, beyond, 0])
        assert refused.value.kind == "bad_partition_value"
        assert refused.value.fields["column"] == "ts"
        assert str(beyond) in refused.value.fields["value"]


@pytest.mark.parametrize(
    ("zone", "beyond"),
    [
        ("Europe/Berlin", FIRST_MS - 1),
        ("Europe/Berlin", LAST_MS + 1),
        ("Europe/Berlin", LAST_MS - 3_599_999),
        ("GMT+1:00", FIRST_MS - 3_600_001),
        ("GMT+1:00", LAST_MS - 3_599_999),
    ],
)
def test_a_zone_moves_no_time_beyond_the_years(zone: str, beyond: int) -> None:
    with pytest.raises(InvalidInputError, match="is outside of the years"):
        folders([0, beyond], output_zone=zone)
    assert folders([LAST_MS - 3_600_000], output_zone=zone) == ["9999-12-31 23:59:59.999"]


@pytest.mark.parametrize("value", [253_402_300_800, 2**62, -(2**62)])
def test_a_number_whose_time_would_overflow_is_refused(value: int) -> None:
    assert folders([253_402_300_799], TimestampType.UNIX_TIMESTAMP) == ["9999-12-31 23:59:59.000"]
    with pytest.raises(InvalidInputError, match="is outside of the years") as refused:
        folders([1, value], TimestampType.UNIX_TIMESTAMP)
    assert refused.value.fields == {"column": "ts", "value": str(value)}


@pytest.mark.parametrize(
    ("column", "time"),
    [
        (pa.array([1], pa.int8()), "1970-01-01 00:00:00.001"),
        (pa.array([1.9], pa.float32()), "1970-01-01 00:00:00.001"),
        (pa.array([-1.9]), "1969-12-31 23:59:59.999"),
        (pa.array([Decimal("1.9")]), "1970-01-01 00:00:00.001"),
        (pa.array([dt.date(1970, 1, 3)]), "1970-01-01 00:00:00.002"),
        (pa.array([2], pa.timestamp("s")), "1970-01-01 00:00:00.002"),
        (pa.array([None]), "1970-01-01 00:00:00.001"),
        (pa.array([None], pa.int64()), "1970-01-01 00:00:00.001"),
    ],
)
def test_a_stored_value_is_read_as_a_number(column: pa.Array, time: str) -> None:
    assert folders(column) == [time]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([True]), MILLIS),
        (pa.array([b"x"]), MILLIS),
        (pa.array([1]), TimestampType.DATE_STRING),
        (pa.array([1]), TimestampType.MIXED),
    ],
)
def test_another_kind_of_column_is_refused_by_its_name(
    column: pa.Array, kind: TimestampType
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        folders(column, kind, input_formats=("yyyy",))
    assert refused.value.kind == "unsupported_partition_type"
    assert refused.value.fields == {"column": "ts", "type": str(column.type)}


def test_a_number_beyond_64_bits_is_no_time() -> None:
    with pytest.raises(InvalidInputError, match="is no whole number of a time") as refused:
        folders([1e30])
    assert refused.value.kind == "bad_partition_value"


@pytest.mark.parametrize(
    ("zone", "time"),
    [
        ("utc", "12:00"),
        ("GMT", "12:00"),
        ("UT", "12:00"),
        ("Z", "12:00"),
        ("+5", "17:00"),
        ("+05:30", "17:30"),
        ("+0530", "17:30"),
        ("-03:30", "08:30"),
        ("GMT+1", "13:00"),
        ("GMT-1:15", "10:45"),
        ("UTC+1", "13:00"),
        ("UT-2", "10:00"),
        ("Asia/Kolkata", "17:30"),
        ("America/New_York", "07:00"),
    ],
)
def test_a_zone_has_many_spellings(zone: str, time: str) -> None:
    check_zone(zone)
    assert folders([12 * 3_600_000], output_zone=zone)[0][11:16] == time


@pytest.mark.parametrize("zone", ["GMT+12345", "+1:5", "Mars/Crater", "x" * 100])
def test_an_invalid_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_zone(zone)
    assert (refused.value.kind, refused.value.fields) == ("bad_time_zone", {"zone": zone[:80]})


TEXT = {"kind": TimestampType.DATE_STRING, "input_formats": ("yyyy-MM-dd HH:mm",)}


@pytest.mark.parametrize("kind", [TimestampType.DATE_STRING, TimestampType.MIXED])
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_texts_of_either_width_are_read(kind: TimestampType, type_: pa.DataType) -> None:
    column = pa.array(["2024-03-09 12:05"], type_)
    found = folders(column, **{**TEXT, "kind": kind})
    assert found == ["2024-03-09 12:05:00.000"]


@pytest.mark.parametrize(
    ("zones", "time"),
    [
        ({}, "1970-01-01 00:00:00.000"),
        ({"input_zone": "GMT+2"}, "1970-01-01 02:00:00.000"),
        ({"output_zone": "GMT+2"}, "1970-01-01 04:00:00.000"),
        ({"input_zone": "GMT+2", "output_zone": "GMT-1"}, "1969-12-31 23:00:00.000"),
    ],
)
def test_a_null_text_is_the_first_time_in_the_input_zone(zones: dict[str, str], time: str) -> None:
    for column in (pa.array([None], pa.string()), pa.array([None])):
        assert folders(column, **TEXT, **zones) == [time]


def test_a_null_text_is_one_millisecond_after_the_epoch() -> None:
    settings = {**TEXT, "input_formats": ("yyyy-MM-dd HH:mm:ss.SSS",)}
    assert folders(pa.array([None, "1970-01-01 00:00:00.002"]), **settings) == [
        "1970-01-01 00:00:00.001",
        "1970-01-01 00:00:00.002",
    ]


def test_a_null_text_takes_the_zone_of_a_pattern_with_an_offset() -> None:
    settings = {**TEXT, "input_formats": ("yyyy-MM-dd HH:mmZ",), "input_zone": "GMT+2"}
    assert folders(pa.array([None, "1970-01-01 02:00+0200"]), **settings) == [
        "1970-01-01 02:00:00.000",
        "1970-01-01 02:00:00.000",
    ]


def test_each_row_is_read_by_the_first_pattern_that_fits_it() -> None:
    settings = {**TEXT, "input_formats": ("yyyy-MM-dd", "HH:mm", "yyyy")}
    assert folders(["2023", "10:20", "2024-03-09", "2022"], **settings) == [
        "2023-01-01 00:00:00.000",
        "1970-01-01 10:20:00.000",
        "2024-03-09 00:00:00.000",
        "2022-01-01 00:00:00.000",
    ]


def test_codes_are_read_by_their_dictionary_and_its_holes_as_nulls() -> None:
    codes = pa.array([1, 0, 1], pa.int8())
    column = pa.DictionaryArray.from_arrays(codes, pa.array([1_000, 2_000]))
    assert folders(column) == [
        "1970-01-01 00:00:02.000",
        "1970-01-01 00:00:01.000",
        "1970-01-01 00:00:02.000",
    ]
    column = pa.DictionaryArray.from_arrays(pa.array([None, 0], pa.int8()), pa.array([2_000]))
    assert folders(column) == ["1970-01-01 00:00:00.001", "1970-01-01 00:00:02.000"]


def test_no_rows_have_no_folders() -> None:
    assert folders(pa.array([], pa.int64())) == []
    assert folders(pa.array([], pa.int64()), output_zone="Europe/Berlin") == []
    assert folders(pa.array([], pa.string()), **TEXT) == []


def test_an_hour_that_a_zone_skipped_is_refused_with_the_zone() -> None:
    zoned = {**TEXT, "input_zone": "Europe/Berlin"}
    with pytest.raises(InvalidInputError, match="is an hour that Europe/Berlin skipped") as refused:
        folders(["2024-03-31 02:30"], **zoned)
    assert refused.value.fields["column"] == "ts"
    assert folders(["2024-03-31 03:30"], **zoned, output_zone="UTC") == ["2024-03-31 01:30:00.000"]

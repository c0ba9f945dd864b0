"""Times become folders as in Java's time-based key generator (fmt 1.1, 4.1)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from filegroups.keys.date_patterns import parse_date_pattern
from filegroups.keys.generators import TimestampKeys, TimestampType, TimeUnit
from filegroups.keys.timestamp_keys import check_zone, timestamp_folders
from timeline.errors import InvalidInputError

MILLIS = TimestampType.EPOCHMILLISECONDS
TEXT = TimestampType.DATE_STRING


def folders(column: object, kind: TimestampType, output: str, **more: object) -> list[str]:
    keys = TimestampKeys(kind=kind, output_format=output, **more)
    array = column if isinstance(column, pa.Array) else pa.array(column)
    return timestamp_folders(array, keys, name="ts").to_pylist()


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (MILLIS, [1_700_000_000_000, 1_710_000_000_000], ["2023/11/14", "2024/03/09"]),
        (TimestampType.UNIX_TIMESTAMP, [1_700_000_000], ["2023/11/14"]),
        (TimestampType.EPOCHMICROSECONDS, [1_700_000_000_000_000], ["2023/11/14"]),
        (TimestampType.UNIX_TIMESTAMP, [-1], ["1969/12/31"]),
        (MILLIS, [1_700_000_000_000.9], ["2023/11/14"]),
        (MILLIS, [Decimal("1700000000000.5")], ["2023/11/14"]),
        # a microsecond before 1970 is a whole number of milliseconds after rounding to zero
        (TimestampType.EPOCHMICROSECONDS, [-999], ["1970/01/01"]),
        # a missing time counts as the first unit of 1970
        (MILLIS, [None, 1_700_000_000_000], ["1970/01/01", "2023/11/14"]),
    ],
)
def test_numbers_are_read_in_the_unit_of_the_type(
    kind: TimestampType, values: list[object], expected: list[str]
) -> None:
    assert folders(values, kind, "yyyy/MM/dd") == expected


def test_a_scalar_has_its_own_unit_and_seconds_by_default() -> None:
    days = pa.array([dt.date(2024, 3, 9)])
    scalar = TimestampType.SCALAR
    assert folders(days, scalar, "yyyyMMdd", scalar_unit=TimeUnit.DAYS) == ["20240309"]
    assert folders([28_333_333], scalar, "yyyy-MM", scalar_unit=TimeUnit.MINUTES) == ["2023-11"]
    assert folders([1_700_000_000], scalar, "yyyy-MM") == ["2023-11"]
    assert folders(["1700000000"], scalar, "yyyy-MM") == ["2023-11"]  # as Spark SQL declares it
    assert folders([None], scalar, "yyyy-MM-dd", scalar_unit=TimeUnit.DAYS) == ["1970-01-02"]


def test_a_timestamp_column_is_its_stored_number() -> None:
    column = pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC"))
    assert folders(column, TimestampType.EPOCHMICROSECONDS, "yyyy") == ["2023"]


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("UTC", "2023-11-14 22"),
        ("Asia/Tokyo", "2023-11-15 07"),
        ("America/New_York", "2023-11-14 17"),
        ("GMT+8:00", "2023-11-15 06"),
        ("GMT-03:30", "2023-11-14 18"),
        ("+05:30", "2023-11-15 03"),
    ],
)
def test_folders_show_the_output_zone(zone: str, expected: str) -> None:
    assert folders([1_700_000_000_000], MILLIS, "yyyy-MM-dd HH", output_zone=zone) == [expected]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("yyyyMMddHHmmss", "20231114221320"),
        ("yy-M-d", "23-11-14"),
        ("MMM d, yyyy", "Nov 14, 2023"),
        ("EEEE MMMM", "Tuesday November"),
        ("D", "318"),
        ("x'w'ww-e", "2023w46-2"),
        ("hh a|KK|kk", "10 PM|10|22"),
        ("SSSSS", "12300"),
        ("SS", "12"),
        ("'year='yyyy''", "year=2023'"),
        ("G C", "AD 20"),
    ],
)
def test_output_patterns_are_joda_s(pattern: str, expected: str) -> None:
    assert folders([1_700_000_000_123], MILLIS, pattern) == [expected]


@pytest.mark.parametrize(
    ("formats", "text", "expected"),
    [
        (("yyyy-MM-dd",), "2024-03-09", "2024-03-09T00:00:00"),
        (("yyyy-MM-dd",), "2024-3-9", "2024-03-09T00:00:00"),
        (("yyyyMMdd",), "20240309", "2024-03-09T00:00:00"),
        (("yyyy-MM-dd'T'HH:mm:ss.SSSZ",), "2024-03-09T23:30:00.5-0100", "2024-03-09T23:30:00"),
        (("yyyy-MM-dd'T'HH:mm:ssZ", "yyyy-MM-dd"), "2024-03-09", "2024-03-09T00:00:00"),
        (("yyyy-MM-dd'T'HH:mm:ssZ", "yyyy"), "2024-03-09T01:00:00Z", "2024-03-09T01:00:00"),
        (("d MMM yyyy hh:mm a",), "9 mar 2024 12:05 pm", "2024-03-09T12:05:00"),
        (("d MMM yyyy hh:mm a",), "9 March 2024 12:05 am", "2024-03-09T00:05:00"),
        (("yyyy D",), "2024 069", "2024-03-09T00:00:00"),
        (("MM/dd",), "02/29", "2000-02-29T00:00:00"),
        (("HH:mm",), "10:20", "1970-01-01T10:20:00"),
    ],
)
def test_texts_are_read_by_the_first_pattern_that_fits(
    formats: tuple[str, ...], text: str, expected: str
) -> None:
    found = folders([text], TEXT, "yyyy-MM-dd'T'HH:mm:ss", input_formats=formats)
    assert found == [expected]


def test_an_offset_of_the_text_counts_before_the_input_zone() -> None:
    both = ["2024-03-09T23:30:00-0100", "2024-03-10T01:30:00+01:00"]
    out = "yyyy-MM-dd HH:mm"
    pattern = ("yyyy-MM-dd'T'HH:mm:ssZ",)
    utc = folders(both, TEXT, out, input_formats=pattern, output_zone="UTC")
    assert utc == ["2024-03-10 00:30", "2024-03-10 00:30"]
    zone = {"input_zone": "Asia/Tokyo", "output_zone": "UTC"}
    assert folders(both, TEXT, out, input_formats=pattern, **zone) == utc


def test_the_input_zone_reads_texts_without_an_offset() -> None:
    zones = {"input_zone": "Asia/Tokyo", "output_zone": "UTC"}
    found = folders(["2024-03-09"], TEXT, "yyyy/MM/dd", input_formats=("yyyy-MM-dd",), **zones)
    assert found == ["2024/03/08"]
    # without an output zone the folder keeps the zone of the text
    only = {"input_zone": "Asia/Tokyo", "input_formats": ("yyyy-MM-dd",)}
    assert folders(["2024-03-09"], TEXT, "yyyy/MM/dd", **only) == ["2024/03/09"]


def test_a_repeated_hour_means_the_first_one() -> None:
    berlin = {"input_zone": "Europe/Berlin", "output_zone": "UTC"}
    pattern = ("yyyy-MM-dd HH:mm",)
    twice = folders(["2024-10-27 02:30"], TEXT, "HH:mm", input_formats=pattern, **berlin)
    assert twice == ["00:30"]
    with pytest.raises(InvalidInputError, match="skipped"):
        folders(["2024-03-31 02:30"], TEXT, "HH:mm", input_formats=pattern, **berlin)


def test_a_null_text_counts_as_the_first_time_of_1970() -> None:
    found = folders(
        pa.array([None, "2024-03-09"]), TEXT, "yyyy/MM/dd", input_formats=("yyyy-MM-dd",)
    )
    assert found == ["1970/01/01", "2024/03/09"]


@pytest.mark.parametrize(
    "text", ["2024-02-30", "2024-13-01", "today", "", "2024-03-09 ", "2024-03-09x"]
)
def test_text_that_is_no_time_is_refused_by_its_value(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        folders(["2024-03-09", text], TEXT, "yyyy", input_formats=("yyyy-MM-dd",))
    assert refused.value.kind == "bad_partition_value"
    assert refused.value.fields["column"] == "ts"
    assert refused.value.fields["value"] == text


@pytest.mark.parametrize("value", [2**62, -(2**62), 253_402_300_800_000])
def test_years_beyond_9999_are_refused(value: int) -> None:
    with pytest.raises(InvalidInputError) as refused:
        folders([value], MILLIS, "yyyy")
    assert refused.value.kind == "bad_partition_value"


def test_a_column_of_another_type_than_the_option_is_refused() -> None:
    for values, kind in ((["2024-01-01"], MILLIS), ([1], TEXT), ([True], MILLIS)):
        with pytest.raises(InvalidInputError) as refused:
            folders(values, kind, "yyyy", input_formats=("yyyy",))
        assert refused.value.kind == "unsupported_partition_type"


@pytest.mark.parametrize("pattern", ["", "yyyy'", "T", "z", "ZZZ", "q", "y" * 101])
def test_patterns_that_mean_nothing_certain_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_date_pattern(pattern)
    assert refused.value.kind == "bad_date_pattern"


@pytest.mark.parametrize("pattern", ["yy-MM-dd", "E yyyy", "yyyy yyyy", "w x"])
def test_input_patterns_that_cannot_be_read_back_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_date_pattern(pattern).expression()
    assert refused.value.kind == "bad_date_pattern"


def test_an_unknown_zone_is_refused_and_not_taken_for_gmt() -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_zone("Europe/Atlantis")
    assert refused.value.kind == "bad_time_zone"
    check_zone("Europe/Berlin")


def test_a_column_of_codes_is_read_by_its_dictionary() -> None:
    column = pa.array(["2024-03-09", None, "2024-03-10"]).dictionary_encode()
    found = folders(column, TEXT, "dd", input_formats=("yyyy-MM-dd",))
    assert found == ["09", "01", "10"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TimestampType.EPOCHMILLISECONDS, "1705311000000"),
        (TimestampType.UNIX_TIMESTAMP, "1705311000"),
    ],
)
def test_a_text_of_a_number_counts_as_the_number(kind: TimestampType, text: str) -> None:
    keys = TimestampKeys(kind=kind, output_format="yyyy/MM/dd/HH")
    made = timestamp_folders(pa.array([text]), keys, name="p").to_pylist()
    assert made == ["2024/01/15/09"]
    with pytest.raises(InvalidInputError, match="DATE_STRING for texts"):
        timestamp_folders(pa.array([text, "2024-01-15"]), keys, name="p")

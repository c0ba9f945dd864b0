"""Each letter of a date pattern: the text that it writes, reads and refuses."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from filegroups.keys.date_patterns import parse_date_pattern
from timeline.errors import InvalidInputError

NOON = datetime(2024, 3, 9, 12, 5, 7, 89_123, UTC)  # a Saturday in leap year's week 10
MIDNIGHT = datetime(987, 1, 1, 0, 0, 0, 4_000, UTC)
LATE = datetime(2021, 1, 3, 23, 59, 59, 999_999, UTC)  # a Sunday of week 53 of 2020


def written(pattern: str, local: datetime) -> str:
    return parse_date_pattern(pattern).write(local)


@pytest.mark.parametrize(
    ("pattern", "noon", "midnight", "late"),
    [
        ("G", "AD", "AD", "AD"),
        ("C", "20", "9", "20"),
        ("CCC", "020", "009", "020"),
        ("y", "2024", "987", "2021"),
        ("yy", "24", "87", "21"),
        ("yyy", "2024", "987", "2021"),
        ("yyyyy", "02024", "00987", "02021"),
        ("Y", "2024", "987", "2021"),
        ("YY", "24", "87", "21"),
        ("x", "2024", "987", "2020"),
        ("xx", "24", "87", "20"),
        ("w", "10", "1", "53"),
        ("ww", "10", "01", "53"),
        ("e", "6", "1", "7"),
        ("ee", "06", "01", "07"),
        ("E", "Sat", "Mon", "Sun"),
        ("EEE", "Sat", "Mon", "Sun"),
        ("EEEE", "Saturday", "Monday", "Sunday"),
        ("D", "69", "1", "3"),
        ("DDD", "069", "001", "003"),
        ("M", "3", "1", "1"),
        ("MM", "03", "01", "01"),
        ("MMM", "Mar", "Jan", "Jan"),
        ("MMMM", "March", "January", "January"),
        ("d", "9", "1", "3"),
        ("dd", "09", "01", "03"),
        ("a", "PM", "AM", "PM"),
        ("K", "0", "0", "11"),
        ("KK", "00", "00", "11"),
        ("h", "12", "12", "11"),
        ("H", "12", "0", "23"),
        ("HH", "12", "00", "23"),
        ("k", "12", "24", "23"),
        ("m", "5", "0", "59"),
        ("mm", "05", "00", "59"),
        ("s", "7", "0", "59"),
        ("ss", "07", "00", "59"),
        ("S", "0", "0", "9"),
        ("SSS", "089", "004", "999"),
        ("SSSSSS", "089000", "004000", "999000"),
    ],
)
def test_each_letter_formats_as_in_joda(pattern: str, noon: str, midnight: str, late: str) -> None:
    assert [written(pattern, at) for at in (NOON, MIDNIGHT, LATE)] == [noon, midnight, late]


def test_one_in_the_morning_and_one_in_the_afternoon() -> None:
    hours = [written("K h k a", NOON.replace(hour=hour)) for hour in (1, 11, 13)]
    assert hours == ["1 1 1 AM", "11 11 11 AM", "1 1 13 PM"]


def test_months_and_days_have_their_english_names() -> None:
    months = [written("MMMM MMM", NOON.replace(month=month)) for month in range(1, 13)]
    assert months == [
        "January Jan",
        "February Feb",
        "March Mar",
        "April Apr",
        "May May",
        "June Jun",
        "July Jul",
        "August Aug",
        "September Sep",
        "October Oct",
        "November Nov",
        "December Dec",
    ]
    days = [written("EEEE", NOON.replace(day=day)) for day in range(4, 11)]
    assert days == [
        "Monday",
        "Tuesday",
        "Wednesday",
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
    ]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("''", "'"),
        ("''yyyy", "'2024"),
        ("'o''clock'", "o'clock"),
        ("'at 'HH", "at 12"),
        ("HH' h'", "12 h"),
        ("HH'''", None),
        ("H-m_s.", "12-5_7."),
        ("é", "é"),
        ("yyyy''MM", "2024'03"),
    ],
)
def test_literal_text_is_formatted_as_it_is(pattern: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(InvalidInputError, match="not closed"):
            parse_date_pattern(pattern)
    else:
        assert written(pattern, NOON) == text


@pytest.mark.parametrize(
    ("pattern", "minutes", "text"),
    [
        ("Z", 0, "+0000"),
        ("Z", 90, "+0130"),
        ("ZZ", 90, "+01:30"),
        ("Z", -210, "-0330"),
        ("ZZ", -1, "-00:01"),
    ],
)
def test_an_offset_is_written_when_it_is_known(pattern: str, minutes: int, text: str) -> None:
    assert parse_date_pattern(pattern).write(NOON, minutes) == text
    with pytest.raises(InvalidInputError, match="offsets are not written") as refused:
        parse_date_pattern(pattern).write(NOON)
    assert refused.value.fields == {"pattern": pattern}


@pytest.mark.parametrize(
    ("pattern", "finest_ms"),
    [
        ("yyyy-MM-dd", 86_400_000),
        ("'text'", 86_400_000),
        *((f"yyyy {letter}", 3_600_000) for letter in "HhKka"),
        ("HH:mm", 60_000),
        ("HH:mm:ss", 1_000),
        ("S ss", 1),
    ],
)
def test_the_finest_letter_gives_the_precision_of_a_pattern(pattern: str, finest_ms: int) -> None:
    assert parse_date_pattern(pattern).finest_ms == finest_ms


MONTHS = (
    "January|February|March|April|May|June|July|August|September|October|November|December|"
    "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
)


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        ("y", r"^(?P<y>[+-]?\d{1,9})$"),
        ("Y", r"^(?P<y>[+-]?\d{1,9})$"),
        ("yyyy-", r"^(?P<y>[+-]?\d{1,9})(?i:\-)$"),
        ("yyyyMM", r"^(?P<y>\d{1,4})(?P<M>\d{1,2})$"),
        ("yyyyMMM", rf"^(?P<y>[+-]?\d{{1,9}})(?P<month>(?i:{MONTHS}))$"),
        ("MMMM", rf"^(?P<month>(?i:{MONTHS}))$"),
        ("M", r"^(?P<M>\d{1,2})$"),
        ("d", r"^(?P<d>\d{1,2})$"),
        ("D", r"^(?P<D>\d{1,3})$"),
        ("H", r"^(?P<H>\d{1,2})$"),
        ("h", r"^(?P<h>\d{1,2})$"),
        ("K", r"^(?P<K>\d{1,2})$"),
        ("k", r"^(?P<k>\d{1,2})$"),
        ("m", r"^(?P<m>\d{1,2})$"),
        ("s", r"^(?P<s>\d{1,2})$"),
        ("S", r"^(?P<S>\d{1,1})$"),
        ("SSSSSSSSSSSS", r"^(?P<S>\d{1,9})$"),
        ("a", r"^(?P<a>(?i:am|pm))$"),
        ("Z", r"^(?P<Z>[Zz]|[+-]\d{2}(?::?\d{2})?)$"),
        ("'T'H", r"^(?i:T)(?P<H>\d{1,2})$"),
    ],
)
def test_each_letter_is_read_by_its_group(pattern: str, expression: str) -> None:
    assert parse_date_pattern(pattern).expression() == expression


@pytest.mark.parametrize("letter", [*"MdDHhKkmsS"])
def test_a_year_before_a_number_is_read_by_its_width(letter: str) -> None:
    expression = parse_date_pattern(f"yyyy{letter}").expression()
    assert expression.startswith(r"^(?P<y>\d{1,4})")


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("", "characters"),
        ("y" * 101, "characters"),
        ("yyyy'", "a quote is not closed"),
        ("'", "a quote is not closed"),
        ("T", "this letter is not supported in date patterns; correct the pattern: 'T'"),
        ("z", "this letter is not supported in date patterns; correct the pattern: 'z'"),
        ("ZZZ", "names of time zones are not supported; correct the pattern: 'ZZZ'"),
    ],
)
def test_a_pattern_without_a_certain_meaning_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(InvalidInputError, match=what) as refused:
        parse_date_pattern(pattern)
    assert refused.value.kind == "bad_date_pattern"
    assert refused.value.fields == {"pattern": pattern[:100]}


def test_a_pattern_of_a_hundred_characters_is_long_enough() -> None:
    assert written("-" * 100, NOON) == "-" * 100


@pytest.mark.parametrize("pattern", ["yy", "YY", "yyyy yyyy", "yyyy Y", "G", "C", "w", "E", "x"])
def test_a_pattern_that_cannot_be_parsed_back_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_date_pattern(pattern).expression()
    assert (refused.value.kind, refused.value.fields) == ("bad_date_pattern", {"pattern": pattern})

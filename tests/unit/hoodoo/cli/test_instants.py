"""A person names instants and times in short forms, wherever a command asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.cli.instants import instant_named, time_named
from hoodoo.inspect.instants import time_text
from timeline.errors import InstantNotFoundError, InvalidInputError
from timeline.model.instant_time import instant_time, wall_ms
from timeline.model.time_arguments import parse_time_travel


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hoodoo.Table]:
    schema = pa.schema([("id", pa.string())])
    path = tmp_path_factory.mktemp("named") / "t"
    with hoodoo.create_table(path, schema=schema, record_key="id") as made:
        for key in "abc":
            made.upsert([{"id": key}])
        yield made


def test_writes_are_counted_from_the_newest(table: hoodoo.Table) -> None:
    first, _, last = table.timeline
    assert instant_named(table.context, "@-1") == last.requested_time
    assert instant_named(table.context, " @-3") == first.requested_time
    assert time_named(table.context, "@-1", completed=True) == last.completion_time
    with pytest.raises(InvalidInputError, match="3 completed writes"):
        instant_named(table.context, "@-4")


def test_the_first_digits_name_an_instant_if_no_other_begins_so(table: hoodoo.Table) -> None:
    first, second, _ = table.timeline
    times = [time for one in table.timeline for time in (one.requested_time, one.completion_time)]
    for one in (first, second):
        assert one.completion_time is not None
        for whole in (one.requested_time, one.completion_time):
            digits = whole[:16]
            if sum(str(time).startswith(digits) for time in times) == 1:
                assert instant_named(table.context, digits) == one.requested_time
    with pytest.raises(InvalidInputError, match=f"3 instants begin with .*{first.requested_time}"):
        instant_named(table.context, first.requested_time[:4])
    with pytest.raises(
        InvalidInputError, match=f"with 1999: the nearest: {first.requested_time} a"
    ):
        time_named(table.context, "1999")


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("now", timedelta(0)),
        ("90s", timedelta(seconds=90)),
        ("30min ago", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("3 d", timedelta(days=3)),
        ("1w", timedelta(weeks=1)),
    ],
)
def test_a_relative_time_is_that_long_ago(table: hoodoo.Table, text: str, age: timedelta) -> None:
    expected = (datetime.now(UTC) - age).timestamp() * 1000
    assert abs(wall_ms(time_named(table.context, text)) - expected) < 60_000


def test_yesterday_is_the_first_instant_of_the_day_before(table: hoodoo.Table) -> None:
    today = parse_time_travel(time_named(table.context, "today"), table.context.zone)
    before = parse_time_travel(time_named(table.context, "Yesterday"), table.context.zone)
    assert today[8:] == before[8:] == "000000000"
    assert wall_ms(today) - wall_ms(before) == 86_400_000
    assert today <= instant_time(wall_ms(time_named(table.context, "now")))


@pytest.mark.parametrize("text", ["2026-05-01 10:00", "20260501100000000", "20260501100000"])
def test_other_forms_stay_as_they_are(table: hoodoo.Table, text: str) -> None:
    assert time_named(table.context, text) == text


def test_a_time_names_the_newest_completed_write_until_then(table: hoodoo.Table) -> None:
    _, second, last = table.timeline
    assert instant_named(table.context, "now") == last.requested_time
    shown = f"{time_text(second.requested_time)}"
    assert instant_named(table.context, shown) == second.requested_time
    assert instant_named(table.context, shown.replace(" ", "T") + "Z") == second.requested_time
    with pytest.raises(InstantNotFoundError):
        table.restore(instant_named(table.context, "2w"))
    assert instant_named(table.context, "20200101000000000") == "20200101000000000"


def test_a_plan_is_named_among_the_pending_plans(table: hoodoo.Table) -> None:
    first, second, _ = table.timeline
    assert instant_named(table.context, "@-1", [first, second]) == second.requested_time
    assert instant_named(table.context, "now", [first]) == first.requested_time
    assert instant_named(table.context, first.requested_time[:4], [first]) == first.requested_time
    with pytest.raises(InvalidInputError, match="only 1 such instants"):
        instant_named(table.context, "@-2", [first])


@pytest.mark.parametrize("text", ["foo", "12", "2 fortnights", ""])
def test_the_error_of_a_bad_time_lists_the_forms_of_the_command_line(
    table: hoodoo.Table, text: str
) -> None:
    for read in (time_named, instant_named):
        with pytest.raises(InvalidInputError) as refused:
            read(table.context, text)
        assert refused.value.kind == "instant_time"
        for form in ("first digits", "@-1", "ISO time", "2h", "yesterday", repr(text)):
            assert form in refused.value.message


def test_a_month_that_does_not_exist_is_named(table: hoodoo.Table) -> None:
    with pytest.raises(InvalidInputError, match="month must be in"):
        instant_named(table.context, "2026-13-01")


def test_a_time_before_the_oldest_write_names_that_write(table: hoodoo.Table) -> None:
    oldest = table.timeline[0].requested_time
    with pytest.raises(InstantNotFoundError, match=f"until 2001-02-03.*the oldest is {oldest}"):
        instant_named(table.context, "2001-02-03")
    with pytest.raises(InstantNotFoundError, match="the table has no such instant"):
        instant_named(table.context, "2001-02-03", [])

"""How many writes may begin in a minute, and which writer waits (PACE-1)."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.group_commit.committer import GroupCommitter
from filegroups.settings.settings import WriteSettings
from filegroups.table import TableReader
from filegroups.writing.retry import rerun_until_unchanged
from filegroups.writing.workload import LocalWorkload
from tableservices.ttl.execute import TtlSettings, expire
from tests.unit.timeline.engine import (
    BRISK,
    StillClock,
    begun,
    heard,
    new_table,
    opened,
    planned,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.errors import SettingError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.instant_time import wall_ms
from timeline.rules.retry import RateLimit, jitter_ms, next_begin_ms

MINUTE = 60_000
TEN = RateLimit(per_minute=10)  # a token each 6 s


def row(key: str, ts: int = 2) -> dict[str, Any]:
    return {"id": key, "p": "x", "ts": ts, "v": 1}


def table_at(
    clock: StillClock, pace: RateLimit | None = TEN, kind: TableType = TableType.COPY_ON_WRITE
) -> TableReader:
    storage = MemoryStorage("memory://t", ports=MemoryWorld(clock))
    limits = replace(BRISK, rate_limit=pace)
    return new_table(storage, clock=clock, limits=limits, table_type=kind)


def begins(table: TableReader) -> list[int]:
    return [wall_ms(one.requested_time) for one in table.context.active().instants]


# ---- the rule


@pytest.mark.parametrize(
    ("burst", "attempt_started_ms", "free_at"),
    [
        (1, [], None),
        (1, [1_000], 7_000),
        (1, [1_000, 7_000], 13_000),
        (1, [1_000, 1_000], 13_000),  # one write too many: a debt of one token
        (1, [1_000, 1_000, 1_000, 7_000], 25_000),
        (1, [0, 60_000], 66_000),
        (3, [1_000, 1_000], None),
        (3, [1_000, 1_000, 1_000], 7_000),
        (3, [1_000, 2_000, 3_000], 7_000),
        (3, [1_000, 2_000, 3_000, 7_000], 13_000),
        (3, [1_000, 40_000, 40_000], 7_000),  # long ago: two of three tokens are used
    ],
)
def test_each_interval_adds_a_token_up_to_the_burst(
    burst: int, attempt_started_ms: list[int], free_at: int | None
) -> None:
    assert next_begin_ms(attempt_started_ms, replace(TEN, burst=burst)) == free_at


def test_intervals_of_odd_rates_are_rounded_up_to_milliseconds() -> None:
    assert next_begin_ms([0], RateLimit(per_minute=0.2)) == 5 * MINUTE
    assert next_begin_ms([0], RateLimit(per_minute=7)) == 8_572


def test_the_bucket_derived_from_its_begins_equals_a_step_by_step_bucket() -> None:
    """The expected bucket is filled and emptied step by step."""
    for burst in (1, 2, 5):
        pace = replace(TEN, burst=burst)
        level, at, taken = float(burst), 0, []
        for number in range(60):
            now = number * 1_700 + (number * number) % 977
            level, at = min(burst, level + (now - at) / pace.interval_ms), now
            free_at = next_begin_ms(taken, pace)
            assert (free_at is None or free_at <= now) is (level >= 1 - 1e-9), (burst, number)
            if level >= 1 - 1e-9:
                level -= 1
                taken.append(now)


@pytest.mark.parametrize(
    ("jitter", "lost", "nudge"), [(0.0, 0, 0), (0.5, 0, 500), (0.5, 1, 250), (0.5, 4, 100)]
)
def test_jitter_is_smaller_after_more_lost_tokens(jitter: float, lost: int, nudge: int) -> None:
    assert jitter_ms(jitter, lost, TEN) == nudge
    assert jitter_ms(0.5, 0, RateLimit(per_minute=600)) == 12


# ---- waiting


@pytest.mark.spec("PACE-1")
def test_writers_begin_an_interval_apart_and_none_fails() -> None:
    clock = StillClock()
    table = table_at(clock)
    other = opened(table, clock=clock, limits=table.context.limits)
    for number, one in enumerate((table, other, table, other)):
        assert upsert(one, [row(f"k{number}")]).attempts == 1
    times = begins(table)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) == 3
    assert all(6_000 <= gap <= 7_000 for gap in gaps)  # the interval, and at most one extra wait
    assert len(heard(table, "pace.waited")) == 1


def test_without_a_rate_limit_no_writer_waits() -> None:
    clock = StillClock()
    table = table_at(clock, pace=None)
    upsert(table, [row("a")])
    upsert(table, [row("b")])
    assert clock.steady == 0


def test_after_an_idle_period_a_burst_begins_at_once() -> None:
    clock = StillClock()
    table = table_at(clock, replace(TEN, burst=3))
    for key in "abc":
        upsert(table, [row(key)])
    assert clock.steady == 0
    upsert(table, [row("d")])
    assert 6_000 - 10 <= clock.steady <= 7_000


@pytest.mark.parametrize("kind", list(TableType))
def test_a_write_that_only_began_has_taken_its_token(kind: TableType) -> None:
    clock = StillClock()
    table = table_at(clock, kind=kind)
    begun(opened(table, clock=clock), WriteOperation.INSERT, [row("n")])
    upsert(table, [row("a")])
    assert clock.steady >= 6_000


def test_a_write_that_waited_too_long_begins_and_reports_it() -> None:
    clock = StillClock()
    table = table_at(clock, RateLimit(per_minute=1, wait_ms_max=60_000))
    for _ in range(3):  # other writers have no rate limit
        begun(opened(table, clock=clock, limits=BRISK), WriteOperation.INSERT, [row("n")])
    assert upsert(table, [row("a")]).attempts == 1
    assert clock.steady == 60_000
    (event,) = heard(table, "pace.overdue")
    assert event["waited_ms"] == 60_000
    assert 110_000 < event["early_ms"] <= 120_000 + 10


def test_a_writer_with_a_slower_clock_does_not_wait_for_the_difference() -> None:
    fast, slow = StillClock(1_790_000_300_000), StillClock(1_790_000_000_000)
    table = table_at(fast)
    upsert(table, [row("a")])
    behind = opened(table, clock=slow, limits=table.context.limits)
    upsert(behind, [row("b")])
    assert 6_000 <= slow.steady <= 7_000


def test_begins_older_than_an_hour_do_not_count() -> None:
    clock = StillClock()
    table = table_at(clock, RateLimit(per_minute=1 / 60, wait_ms_max=600 * MINUTE))
    for _ in range(3):  # three hours' tokens
        begun(opened(table, clock=clock, limits=BRISK), WriteOperation.INSERT, [row("n")])
    clock.sleep_ms(61 * MINUTE)
    before = clock.steady
    upsert(table, [row("a")])
    assert clock.steady == before


def test_a_rate_below_one_an_hour_is_kept() -> None:
    clock = StillClock()
    table = table_at(clock, RateLimit(per_minute=1 / 100, wait_ms_max=600 * MINUTE))
    upsert(table, [row("a")])
    clock.sleep_ms(61 * MINUTE)
    upsert(table, [row("b")])
    assert 100 * MINUTE <= clock.steady <= 100 * MINUTE + 1_000


def test_invalid_rows_are_refused_before_the_wait() -> None:
    clock = StillClock()
    table = table_at(clock)
    upsert(table, [row("a")])
    with pytest.raises(hoodoo.HoodooError):
        upsert(table, [{"p": "x"}])
    assert clock.steady == 0


def test_a_delete_by_predicate_waits_before_it_reads() -> None:
    clock = StillClock()
    table = table_at(clock)
    upsert(table, [row("a")])
    read_at: list[int] = []

    def attempt(_: object) -> Any:
        read_at.append(clock.steady)
        return upsert(table, [row("b")])

    rerun_until_unchanged(table.context, attempt)
    assert read_at[0] >= 6_000
    assert clock.steady == read_at[0]  # the write finds the token that it waited for


def test_a_service_does_not_wait() -> None:
    clock = StillClock()
    table = table_at(clock, RateLimit(per_minute=1))
    upsert(table, [row("a")])
    clock.sleep_ms(3 * 24 * 60 * MINUTE)
    begun(opened(table, clock=clock), WriteOperation.INSERT, [{**row("n"), "p": "y"}])
    before = clock.steady
    done = expire(table.context, TtlSettings(days_retained=1))
    assert done is not None
    assert done.partitions == ("x",)
    assert clock.steady == before


def test_a_group_waits_once_for_all_its_members() -> None:
    clock = StillClock()
    table = table_at(clock)
    upsert(table, [row("a")])
    together = GroupCommitter(table.context, writes_max=8)
    plan = planned(table, WriteOperation.UPSERT)
    entered = threading.Barrier(4)

    def write(key: str) -> None:
        entered.wait()
        rows = LocalWorkload(table.context.ports, pa.Table.from_pylist([row(key)]))
        together.write(plan, rows)

    threads = [threading.Thread(target=write, args=(key,)) for key in "bcde"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    waits = len(heard(table, "pace.waited"))
    assert waits == len(begins(table)) - 1
    assert clock.steady >= 6_000 * waits


# ---- the options


def test_the_options_reach_the_table(tmp_path: Path) -> None:
    event = {"hoodoo.commit.pace.per.minute": "0.5", "hoodoo.commit.pace.burst": "2"}
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    made = hoodoo.create_table(tmp_path / "t", schema=schema, record_key="id", properties=event)
    with made as table:
        assert table.context.limits.rate_limit == RateLimit(per_minute=0.5, burst=2)
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.context.limits.rate_limit is None


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"hoodoo.commit.pace.per.minute": "0.05"}, "setting_contradiction"),
        ({"hoodoo.commit.pace.per.minute": "-1"}, "setting_value"),
        ({"hoodoo.commit.pace.per.minute": "nan"}, "setting_value"),
        ({"hoodoo.commit.pace.per.minute": "often"}, "setting_value"),
        ({"hoodoo.commit.pace.burst": "0"}, "setting_value"),
    ],
)
def test_an_impossible_rate_limit_is_refused(event: dict[str, str], kind: str) -> None:
    with pytest.raises(SettingError) as caught:
        WriteSettings.from_properties(event)
    assert caught.value.kind == kind

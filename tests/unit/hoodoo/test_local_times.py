"""Tables whose times are in the zone of their writers (``hoodie.table.timeline.timezone=LOCAL``)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import hoodoo
from filegroups.table import open_reader
from tableservices.ttl.execute import expired_paths
from tests.unit.timeline.engine import StillClock, new_table, upsert
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.errors import (
    ClockRefusedError,
    CorruptTableError,
    SettingError,
    UnsafeSetupError,
    WriterDisagreementError,
)
from timeline.model.instant_time import UTC_ZONE, TimelineZone, WallMs
from timeline.properties.properties_file import update_properties
from timeline.system import SystemClock

KEY = "hoodie.table.timeline.timezone"
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
SHARED = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
}
BERLIN = TimelineZone("Europe/Berlin", ZoneInfo("Europe/Berlin"))


def made(path: Path, **properties: str) -> hoodoo.Table:
    return hoodoo.create_table(
        str(path / "t"), schema=SCHEMA, record_key="k", properties=properties
    )


def reopened(path: Path, **properties: str) -> hoodoo.Table:
    return hoodoo.open_table(str(path / "t"), properties=properties)


def shown(zone: str) -> str:
    return f"{datetime.now(ZoneInfo(zone)):%Y%m%d%H%M}"


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati"]
)
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_instants_are_drawn_in_the_zone_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, table_type: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    table = made(tmp_path, **{KEY: "LOCAL", "hoodie.datasource.write.table.type": table_type})
    before = shown(zone)
    result = table.upsert([{"k": "a", "v": 1}])
    for time in (result.requested_time, result.completion_time):
        assert before <= str(time)[:12] <= shown(zone)
    again = reopened(tmp_path).upsert([{"k": "a", "v": 2}])
    assert again.requested_time > result.completion_time
    assert table.to_arrow()["v"].to_pylist() == [2]


def test_a_hoodoo_table_stores_utc_and_has_the_zone_utc_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Mars/Olympus")  # nothing asks for it
    table = made(tmp_path)
    assert table.config.timeline_timezone == "UTC"
    assert table.upsert([{"k": "a", "v": 1}]).requested_time[:12] in (
        shown("UTC"),
        f"{datetime.now(UTC) - timedelta(minutes=1):%Y%m%d%H%M}",
    )


def without_key(path: Path) -> None:
    for file in (path / "t" / ".hoodie").glob("hoodie.properties*"):
        lines = [one for one in file.read_text().splitlines() if not one.startswith(KEY)]
        file.write_text("\n".join(lines) + "\n")


def test_a_table_without_a_zone_has_that_of_its_writers_as_in_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path).close()
    without_key(tmp_path)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    table = reopened(tmp_path)
    assert table.config.timeline_timezone == "LOCAL"
    assert table.context.zone.name == "Asia/Kolkata"
    before = shown("Asia/Kolkata")
    assert before <= table.upsert([{"k": "a", "v": 1}]).requested_time[:12]


def test_an_invalid_zone_is_damage(tmp_path: Path) -> None:
    made(tmp_path).close()
    without_key(tmp_path)
    for file in (tmp_path / "t" / ".hoodie").glob("hoodie.properties*"):
        file.write_text(file.read_text() + f"{KEY}=Europe/Berlin\n")
    with pytest.raises(CorruptTableError, match="Europe/Berlin"):
        reopened(tmp_path)


def test_an_option_that_contradicts_the_table_is_refused(tmp_path: Path) -> None:
    made(tmp_path, **{KEY: "LOCAL"}).close()
    with pytest.raises(SettingError) as caught:
        reopened(tmp_path, **{KEY: "UTC"}).upsert([{"k": "a", "v": 1}])
    assert caught.value.kind == "setting_against_table"


@pytest.mark.spec("REG-1")
@pytest.mark.parametrize(
    ("one", "other"),
    [("Europe/Berlin", "UTC"), ("UTC", "Asia/Kolkata"), ("Europe/Berlin", "Africa/Lagos")],
)
def test_writers_of_two_zones_do_not_write_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    monkeypatch.setenv("TZ", one)
    first = made(tmp_path, **{KEY: "LOCAL"}, **SHARED)
    first._register_writer()
    monkeypatch.setenv("TZ", other)
    with pytest.raises(WriterDisagreementError, match="TZ") as caught:
        reopened(tmp_path, **SHARED)._register_writer()
    assert set(caught.value.fields["differences"]) == {"timeline_zone"}
    first.close()
    with reopened(tmp_path, **SHARED) as later:
        later._register_writer()


@pytest.mark.spec("REG-1")
@pytest.mark.parametrize(
    ("timezone", "one", "other"),
    [
        ("LOCAL", "UTC", "Etc/UTC"),
        ("LOCAL", "Europe/Berlin", "Europe/Paris"),
        ("LOCAL", "", "Etc/Zulu"),
        ("UTC", "Europe/Berlin", "America/New_York"),
    ],
)
def test_zones_of_equal_offsets_and_tables_of_utc_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timezone: str, one: str, other: str
) -> None:
    monkeypatch.setenv("TZ", one)
    with made(tmp_path, **{KEY: timezone}, **SHARED) as first:
        first._register_writer()
        monkeypatch.setenv("TZ", other)
        with reopened(tmp_path, **SHARED) as second:
            second._register_writer()


def test_a_process_without_rules_of_its_zone_opens_no_such_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, **{KEY: "LOCAL"}).close()
    monkeypatch.setenv("TZ", "Mars/Olympus")
    with pytest.raises(UnsafeSetupError, match="Mars/Olympus"):
        reopened(tmp_path)


def test_a_process_in_a_distant_zone_is_refused_with_the_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    with made(tmp_path, **{KEY: "LOCAL"}) as table:
        table.upsert([{"k": "a", "v": 1}])
    monkeypatch.setenv("TZ", "UTC")
    with pytest.raises(ClockRefusedError, match="TZ"):
        reopened(tmp_path).upsert([{"k": "a", "v": 2}])


@pytest.mark.parametrize(("zone", "warned"), [("UTC", True), ("America/New_York", False)])
def test_a_process_east_of_unregistered_writers_is_warned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    zone: str,
    warned: bool,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    with made(tmp_path, **{KEY: "LOCAL"}) as table:
        for value in range(2):
            table.upsert([{"k": "a", "v": value}])
    monkeypatch.setenv("TZ", zone)
    with reopened(tmp_path) as table:
        table._register_writer()
    assert ("other_zone_noticed" in caplog.text) is warned


def test_days_of_retention_count_on_the_table_s_clock() -> None:
    now = WallMs(int(datetime(2026, 10, 26, 12, tzinfo=UTC).timestamp() * 1000))
    since = {
        "stays": BERLIN.instant_time(now - 24 * 3_600_000),
        "goes": BERLIN.instant_time(now - 24 * 3_600_000 - 1),
    }
    assert expired_paths(since, now=now, days_retained=1, partitions_max=9, zone=BERLIN) == (
        "goes",
    )


def test_a_repeated_hour_makes_no_partition_older_than_it_is() -> None:
    back = int(datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp() * 1000)
    written = BERLIN.instant_time(back + 60_000)  # in the second pass
    now = WallMs(back + 24 * 3_600_000 - 10 * 60_000)  # before its day is over
    assert BERLIN.instant_time(now - 24 * 3_600_000) > written
    assert (
        expired_paths({"p": written}, now=now, days_retained=1, partitions_max=9, zone=BERLIN) == ()
    )


def test_writes_continue_through_the_repeated_hour() -> None:
    clock = StillClock(int(datetime(2026, 10, 25, 0, 50, tzinfo=UTC).timestamp() * 1000))
    storage = MemoryStorage(ports=MemoryWorld(clock))
    founded = new_table(storage, clock=clock)
    update_properties(storage, {KEY: "LOCAL"}, now="now")
    ports = replace(founded.context.ports, zone=lambda: BERLIN)
    table = open_reader(ports, founded.context.limits)
    newest = ""
    for step in range(24):
        result = upsert(table, [{"id": "a", "p": "p", "ts": step, "v": step}])
        assert newest < result.requested_time < result.completion_time
        newest = result.completion_time
        clock.sleep_ms(5 * 60_000)
    assert newest.startswith("2026102503"), "the clock advanced after the hour"


@pytest.mark.spec("TL-SUCC-2")
@pytest.mark.parametrize(("behind_ms", "warnings"), [(900, 0), (5_000, 1)])
def test_a_clock_that_is_behind_the_timeline_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    behind_ms: int,
    warnings: int,
) -> None:
    table = made(tmp_path)
    first = table.upsert([{"k": "a", "v": 1}])
    now = UTC_ZONE.wall_ms(str(first.completion_time))
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now - behind_ms)
    with caplog.at_level("WARNING", "hoodoo"):
        assert table.upsert([{"k": "a", "v": 2}]).requested_time > str(first.completion_time)
    assert sum("clock.warning" in one.getMessage() for one in caplog.records) == warnings

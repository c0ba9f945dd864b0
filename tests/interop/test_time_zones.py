"""
Java Hudi and ours write one table of zone LOCAL, both in the same zone that is not UTC.

Java's default is LOCAL, also if the property is missing. Times of both are on one line, each
reads the other's writes, and time travel and ranges mean the same to both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.java import JavaOracle
from timeline.model.instant_time import TimelineZone

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

KEY = "hoodie.table.timeline.timezone"
ZONE = "Asia/Kolkata"
RULES = TimelineZone(ZONE, ZoneInfo(ZONE))
ALONE = {"hoodie.metadata.enable": "false", "hoodie.clean.automatic": "false"}
JAVA = {
    **ALONE,
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.hive_style_partitioning": "false",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.archive.automatic": "false",
}
OURS = {**ALONE, "hoodie.archive.automatic": "false"}


def rows(value: int) -> list[dict[str, Any]]:
    return [{"id": "a", "p": "x", "v": value}, {"id": f"only{value}", "p": "x", "v": value}]


def is_now(time: str) -> bool:
    shown = datetime.strptime(time[:14], "%Y%m%d%H%M%S").replace(tzinfo=ZoneInfo(ZONE))
    return abs(datetime.now(ZoneInfo(ZONE)) - shown) < timedelta(minutes=10)


def seen(table: Any) -> list[tuple[str, int]]:
    read = table if isinstance(table, list) else table.to_arrow(columns=["id", "v"]).to_pylist()
    return sorted((one["id"], one["v"]) for one in read)


def in_time(times: list[str]) -> bool:
    return times == sorted(times) and all(map(is_now, times))


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize(("version", "written"), [("1.2.0", "9"), ("1.0.2", "8")])
@pytest.mark.parametrize("says", [True, False])
def test_java_and_ours_write_alternately_in_their_common_zone(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_type: str,
    version: str,
    written: str,
    says: bool,
) -> None:
    monkeypatch.setenv("TZ", ZONE)
    java, path = java_oracle(version, ZONE, "LOCAL"), tmp_path / "t"
    conf = {**JAVA, "hoodie.datasource.write.table.type": table_type}
    java.write(path, rows(0), schema="id string, p string, v bigint", conf=conf)
    if not says:
        _forget_zone(path)
    table = hoodoo.open_table(str(path), properties=OURS)
    assert table.config.timeline_timezone == "LOCAL"
    assert str(table.config.table_version) == written
    ours = table.upsert(pa.Table.from_pylist(rows(1)))
    java.write(path, rows(2), conf=conf)
    again = table.upsert(pa.Table.from_pylist(rows(3)))
    done = [one for one in table.timeline if one.completion_time]
    times = [time for one in done for time in (one.requested_time, str(one.completion_time))]
    assert len(done) == 4
    assert in_time(times)
    assert times[2:4] == [ours.requested_time, ours.completion_time]

    expected = sorted([("a", 3), *((f"only{value}", value) for value in range(4))])
    assert seen(table) == seen(java.read(path, conf=ALONE)) == expected
    between = datetime.strptime(times[5], "%Y%m%d%H%M%S%f")  # noqa: DTZ007 - on the table's clock
    text = f"{between:%Y-%m-%d %H:%M:%S}.{times[5][14:]}"
    assert again.requested_time > times[5]
    third = sorted([("a", 2), *((f"only{value}", value) for value in range(3))])
    assert seen(table.as_of(between)) == seen(table.as_of(text)) == third
    assert seen(java.read(path, as_of=text, conf=ALONE)) == third
    later = rows(3)
    assert seen(table.changes(between, columns=["id", "v"]).read_all().to_pylist()) == seen(later)
    assert seen(java.read(path, incremental=[times[5]], conf=ALONE)) in (
        seen(later),
        seen([*later, rows(2)[1]]),  # 1.0.2 includes the beginning
    )
    assert verify_at(str(path), Layers()).problems == ()


def _forget_zone(path: Path) -> None:
    for file in (path / ".hoodie").glob("hoodie.properties*"):
        kept = [line for line in file.read_text().splitlines() if not line.startswith(KEY)]
        file.write_text("\n".join(kept) + "\n")
    for checksum in (path / ".hoodie").glob(".hoodie.properties*.crc"):
        checksum.unlink()


def test_java_reads_and_writes_a_table_that_hoodoo_created_in_zone_local(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", ZONE)
    java, path = java_oracle("1.2.0", ZONE, "LOCAL"), tmp_path / "t"
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
    table = hoodoo.create_table(
        str(path),
        schema=schema,
        record_key="id",
        partition_by="p",
        properties={**OURS, KEY: "LOCAL"},
    )
    table.upsert(pa.Table.from_pylist(rows(0)))
    java.write(path, rows(1), conf=JAVA)
    table.savepoint()
    table.upsert(pa.Table.from_pylist(rows(2)))
    java.service(path, "clean", conf={**ALONE, "hoodie.clean.commits.retained": "1"})
    assert seen(table) == seen(java.read(path, conf=ALONE))
    for one in table.timeline:
        assert is_now(one.requested_time)
        assert one.completion_time is None or is_now(one.completion_time)

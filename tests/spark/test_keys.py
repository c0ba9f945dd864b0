"""Keys of every kind on a cluster: given by the engine, computed anew, times as folders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoodoo

pytestmark = pytest.mark.spark

COLUMNS = "id string, region string, ts long, val double"
TIME = "hoodie.keygen.timebased."
NOVEMBER, MARCH = 1_700_000_000_000, 1_710_000_000_000


def save(spark: Any, path: Path, rows: list[tuple[Any, ...]], **options: str) -> None:
    named = {key.replace("__", "."): value for key, value in options.items()}
    df = spark.createDataFrame(rows, COLUMNS)
    df.write.format("hoodoo").options(**named).mode("append").save(str(path))


def test_rows_without_keys_are_added_and_never_found_again(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    for _ in range(2):
        save(spark, path, [("a", "eu", 1, 1.0)] * 3, hoodie__table__name="t")
    with hoodoo.open_table(path) as table:
        found = table.core.pin().to_arrow(with_hoodie_columns=True)
        keys = found.column("_hoodie_record_key").to_pylist()
    assert len(keys) == len(set(keys)) == 6


def test_keys_that_files_do_not_store_are_found_again(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {
        "hoodie__table__name": "t",
        "hoodie__datasource__write__recordkey__field": "id",
        "hoodie__datasource__write__partitionpath__field": "region",
        "hoodie__datasource__write__drop__partition__columns": "true",
        "hoodie__populate__meta__fields": "false",
    }
    save(spark, path, [("a", "eu", 1, 1.0), ("b", "us", 1, 1.0)], **options)
    save(spark, path, [("a", "eu", 2, 2.0), ("c", "us", 1, 1.0)], **options)
    read = spark.read.format("hoodoo").load(str(path)).select("id", "region", "val")
    assert sorted(tuple(row) for row in read.collect()) == [
        ("a", "eu", 2.0),
        ("b", "us", 1.0),
        ("c", "us", 1.0),
    ]


def test_folders_of_times_are_made_by_tasks(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {
        "hoodie__table__name": "t",
        "hoodie__datasource__write__recordkey__field": "id",
        "hoodie__datasource__write__partitionpath__field": "region:SIMPLE,ts:TIMESTAMP",
        TIME + "timestamp.type": "EPOCHMILLISECONDS",
        TIME + "output.dateformat": "yyyy/MM",
    }
    save(spark, path, [("a", "eu", NOVEMBER, 1.0)], **options)
    save(spark, path, [("a", "eu", NOVEMBER + 1, 2.0), ("b", "us", MARCH, 1.0)], **options)
    with hoodoo.open_table(path) as table:
        found = table.core.pin().to_arrow(with_hoodie_columns=True)
    paths = found.column("_hoodie_partition_path").to_pylist()
    assert sorted(zip(paths, found.column("val").to_pylist(), strict=True)) == [
        ("eu/2023/11", 2.0),
        ("us/2024/03", 1.0),
    ]


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A driver whose clock on the wall is behind UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_west")
def test_partitions_of_moments_are_deleted_whatever_the_clock_of_the_driver(
    spark: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "at",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
        TIME + "timestamp.type": "EPOCHMICROSECONDS",
        TIME + "output.dateformat": "yyyyMMdd",
    }
    rows = spark.sql(
        "SELECT 1L id, timestamp'2026-01-02 02:00:00Z' at "
        "UNION ALL SELECT 2L, timestamp'2026-01-01 12:00:00Z'"
    )
    rows.write.format("hoodoo").options(**options).mode("append").save(path)
    options["hoodie.datasource.write.operation"] = "delete_partition"
    rows.where("id = 1").write.format("hoodoo").options(**options).mode("append").save(path)
    assert [row.id for row in spark.read.format("hoodoo").load(path).collect()] == [2]


def test_partitions_named_by_a_field_of_a_struct_are_deleted(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "at.day",
    }
    rows = spark.sql(
        "SELECT 1L id, named_struct('day', 'mon') at UNION ALL SELECT 2L, named_struct('day', 'tue')"
    )
    rows.write.format("hoodoo").options(**options).mode("append").save(path)
    options["hoodie.datasource.write.operation"] = "delete_partition"
    rows.where("id = 1").write.format("hoodoo").options(**options).mode("append").save(path)
    assert [row.id for row in spark.read.format("hoodoo").load(path).collect()] == [2]

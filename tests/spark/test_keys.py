"""Keys of every kind on a cluster: given by the engine, computed anew, times as folders."""

from __future__ import annotations

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

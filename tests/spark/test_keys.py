"""Keys of every kind on a cluster: given by the engine, computed again, times as folders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

import hoodoo

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("each_way")]

COLUMNS = "id string, region string, ts long, val double"
TIME = "hoodie.keygen.timebased."
NOVEMBER, MARCH = 1_700_000_000_000, 1_710_000_000_000


def save(spark: Any, path: Path, rows: list[tuple[Any, ...]], **options: str) -> None:
    named = {key.replace("__", "."): value for key, value in options.items()}
    df = spark.createDataFrame(rows, COLUMNS)
    df.write.format("hoodoo").options(**named).mode("append").save(str(path))


def test_rows_without_keys_are_added_and_never_updated(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    for _ in range(2):
        save(spark, path, [("a", "eu", 1, 1.0)] * 3, hoodie__table__name="t")
    with hoodoo.open_table(path) as table:
        found = table.current_state().to_arrow(with_hoodie_columns=True)
        keys = found.column("_hoodie_record_key").to_pylist()
    assert len(keys) == len(set(keys)) == 6


@pytest.mark.parametrize(
    ("table_type", "operation"),
    [
        ("COPY_ON_WRITE", "upsert"),
        ("MERGE_ON_READ", None),
        pytest.param("COPY_ON_WRITE", None, marks=pytest.mark.slow),
        pytest.param("MERGE_ON_READ", "upsert", marks=pytest.mark.slow),
    ],
)
def test_read_rows_are_written_back_without_key_fields(
    spark: Any, tmp_path: Path, table_type: str, operation: str | None
) -> None:
    path = tmp_path / "t"
    options = {
        "hoodie__table__name": "t",
        "hoodie__datasource__write__table__type": table_type,
        "hoodie__datasource__write__partitionpath__field": "region",
    }
    save(spark, path, [("a", "eu", 1, 1.0), ("b", "eu", 1, 1.0), ("c", "us", 1, 1.0)], **options)

    def read() -> Any:
        return spark.read.format("hoodoo").load(str(path))

    def write_back(df: Any, operation: str | None) -> None:
        named = {"hoodie.datasource.write.operation": operation}
        df.write.format("hoodoo").options(**named).mode("append").save(str(path))

    write_back(read().select("id", "region").limit(0), "delete")  # no rows need no keys
    changed = read().where("id <> 'b'").withColumn("val", F.lit(9.0))
    assert "_hoodie_record_key" in changed.columns
    write_back(changed, operation)
    write_back(read().where("id = 'c'").select("_hoodie_record_key", "region"), "delete")
    rows = read().select("id", "val").collect()
    assert sorted(map(tuple, rows)) == [("a", 9.0), ("b", 1.0)]
    write_back(spark.createDataFrame([("d", "eu", 1, 1.0)], COLUMNS), operation)
    assert read().count() == 3


def test_keys_and_folders_are_made_of_the_types_of_the_table(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "p",
    }

    def write(rows: list[tuple[Any, ...]], columns: str, operation: str = "upsert") -> None:
        named = {**options, "hoodie.datasource.write.operation": operation}
        df = spark.createDataFrame(rows, columns)
        df.write.format("hoodoo").options(**named).mode("append").save(str(path))

    write([(7.0, 1.0, "a")], "id double, p double, v string")
    write([(7, 1, "b")], "id int, p long, v string")
    stored = spark.read.format("hoodoo").load(str(path))
    names = ["_hoodie_record_key", "_hoodie_partition_path", "v"]
    assert [tuple(row) for row in stored.select(*names).collect()] == [("7.0", "1.0", "b")]
    write([(7, 1)], "id int, p int", "delete")
    assert spark.read.format("hoodoo").load(str(path)).count() == 0
    write([(7, 1, "b")], "id int, p int, v string")
    write([(1,)], "p int", "delete_partition")
    assert spark.read.format("hoodoo").load(str(path)).count() == 0


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
        found = table.current_state().to_arrow(with_hoodie_columns=True)
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
def test_partitions_of_timestamps_are_deleted_under_every_zone_of_the_driver(
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

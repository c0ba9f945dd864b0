"""Loading tables: meta columns, time travel, ranges, pruning, and formats that are not ours."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

import hoodoo
import hoodoo.spark
from hoodoo.spark.read import plan_load
from tests.spark.streams import run_to_its_end
from timeline.errors import (
    InvalidInputError,
    MissingFileError,
    SettingError,
    TableNotFoundError,
)

pytestmark = pytest.mark.spark

THREE = [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0), (3, "tue", 10, 3.0)]
OWN = ["id", "day", "at", "amount"]


def test_meta_columns_are_first(save: Any, spark: Any, path: str) -> None:
    result = save(THREE)
    df = spark.read.format("hoodoo").load(path)
    assert df.columns == [
        "_hoodie_commit_time",
        "_hoodie_commit_seqno",
        "_hoodie_record_key",
        "_hoodie_partition_path",
        "_hoodie_file_name",
        *OWN,
    ]
    row = df.where("id = 3").first()
    assert row["_hoodie_commit_time"] == result.requested_time
    assert (row["_hoodie_record_key"], row["_hoodie_partition_path"]) == ("3", "tue")


def test_time_travel_shows_the_table_as_it_was(save: Any, rows: Any) -> None:
    first = save(THREE)
    save([(1, "mon", 11, 10.0)])
    assert rows(as__of__instant=first.requested_time)[0] == (1, "mon", 10, 1.0)
    assert rows()[0] == (1, "mon", 11, 10.0)


def test_incremental_reads_exclude_their_start(save: Any, rows: Any) -> None:
    first = save(THREE)
    second = save([(1, "mon", 11, 10.0), (4, "tue", 11, 4.0)])
    save([(4, "tue", 12, 44.0)])
    changed = rows(
        hoodie__datasource__query__type="incremental",
        hoodie__datasource__read__begin__instanttime=first.completion_time,
    )
    assert changed == [(1, "mon", 11, 10.0), (4, "tue", 12, 44.0)]
    bounded = rows(
        hoodie__datasource__query__type="incremental",
        hoodie__datasource__read__begin__instanttime=first.completion_time,
        hoodie__datasource__read__end__instanttime=second.completion_time,
    )
    assert bounded == [(1, "mon", 11, 10.0), (4, "tue", 11, 4.0)]


def test_an_incremental_read_needs_its_start(save: Any, rows: Any) -> None:
    save(THREE)
    with pytest.raises(SettingError, match="start"):
        rows(hoodie__datasource__query__type="incremental")


def test_a_table_without_rows_has_its_columns(spark: Any, path: str) -> None:
    hoodoo.create_table(
        path, schema=pa.schema([("id", pa.int64()), ("day", pa.string())]), record_key="id"
    ).close()
    df = spark.read.format("hoodoo").load(path)
    assert df.count() == 0
    assert df.columns[5:] == ["id", "day"]


def test_columns_are_pruned_and_filters_pushed(save: Any, spark: Any, path: str) -> None:
    save(THREE)
    df = spark.read.format("hoodoo").load(path).where("amount > 2").select("id")
    plan = df._jdf.queryExecution().executedPlan().toString()
    assert "ReadSchema: struct<id:bigint,amount:double>" in plan
    assert "GreaterThan(amount,2.0)" in plan


def test_characters_of_patterns_in_a_path_are_literal(
    save: Any, spark: Any, path: str, tmp_path: Path
) -> None:
    save(THREE)
    odd = str(tmp_path / "a {1,2} [b] 50%20 c")
    shutil.move(path, odd)
    assert spark.read.format("hoodoo").load(odd).count() == 3


def test_a_path_without_a_table_is_reported(spark: Any, path: str) -> None:
    with pytest.raises(TableNotFoundError):
        spark.read.format("hoodoo").load(path)


def test_hudi_is_served_too_without_its_bundle(save: Any, spark: Any, path: str) -> None:
    save(THREE)
    assert spark.read.format("hudi").load(path).count() == 3


def test_other_formats_pass_through(spark: Any, tmp_path: Path) -> None:
    place = str(tmp_path / "plain")
    spark.range(3).write.mode("overwrite").option("compression", "none").parquet(place)
    spark.range(3).write.format("json").save(place + "-json")
    assert spark.read.parquet(place).count() == 3
    assert spark.read.load(place, format="parquet").count() == 3
    assert spark.read.format("json").load(place + "-json").count() == 3


def test_installing_again_changes_nothing(spark: Any) -> None:
    before = type(spark.range(0)).write
    assert hoodoo.spark.install(spark) is spark
    assert type(spark.range(0)).write is before


def test_unsupported_calls_are_refused_by_name(spark: Any, path: str) -> None:
    if not hasattr(spark, "dataSource"):
        with pytest.raises(InvalidInputError, match="readStream"):
            spark.readStream.format("hoodoo").load(path)
    with pytest.raises(InvalidInputError, match="bucketBy"):
        spark.range(1).write.format("hoodoo").bucketBy(2, "id").save(path)


def test_sql_views_read_through_the_data_source(save: Any, spark: Any, path: str) -> None:
    if not hasattr(spark, "dataSource"):
        pytest.skip("this Spark has no Python data sources")
    save(THREE)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING hoodoo OPTIONS (path '{path}')")
    assert spark.sql("SELECT sum(amount) FROM orders").first()[0] == 6.0
    spark.catalog.dropTempView("orders")


def test_micro_batches_are_written_once(
    save: Any, spark: Any, path: str, tmp_path: Path, rows: Any
) -> None:
    save(THREE)
    source = str(tmp_path / "source")
    columns = "id long, day string, at long, amount double"
    spark.createDataFrame([(1, "mon", 11, 9.0), (7, "wed", 11, 7.0)], columns).write.parquet(source)
    query = (
        spark.readStream.schema(columns)
        .parquet(source)
        .writeStream.format("hoodoo")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(path)
    )
    query.awaitTermination()
    assert [row[0] for row in rows()] == [1, 2, 3, 7]
    assert rows()[0] == (1, "mon", 11, 9.0)


def test_a_stream_returns_each_change_once(
    save: Any, spark: Any, path: str, tmp_path: Path
) -> None:
    if not hasattr(spark, "dataSource"):
        pytest.skip("this Spark has no Python data sources")
    seen: list[tuple[Any, ...]] = []

    def take(batch: Any, _number: int) -> None:
        seen.extend(sorted(tuple(row) for row in batch.select(*OWN).collect()))

    def follow() -> Any:
        stream = spark.readStream.format("hoodoo").load(path)
        return (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    save(THREE)
    run_to_its_end(follow)
    assert seen == THREE
    seen.clear()
    save([(1, "mon", 11, 10.0)])
    run_to_its_end(follow)
    assert seen == [(1, "mon", 11, 10.0)]


def test_files_from_before_a_column_was_widened_are_promoted_as_hudi_does(
    spark: Any, path: str
) -> None:
    """Spark's own reader fails on some promotions, and widens a float to other digits."""

    def rows(key: str, day: str, number: pa.DataType, share: pa.DataType) -> pa.Table:
        columns = {"n": pa.array([7], number), "f": pa.array([0.1], share)}
        return pa.table({"id": [key], "day": [day], **columns})

    old = rows("a", "mon", pa.int64(), pa.float32())
    with hoodoo.create_table(
        path, schema=old.schema, record_key=["id"], partition_by=["day"]
    ) as table:
        table.insert(old)
        table.insert(rows("b", "tue", pa.float64(), pa.float64()))
        load = plan_load(table, table.properties)
        assert [one.file_group.partition_path for one in load.merged] == ["mon"]
        assert len(load.files) == 1
    df = spark.read.format("hoodoo").load(path)
    found = {row["id"]: (row["n"], row["f"]) for row in df.collect()}
    assert found == {"a": (7.0, 0.1), "b": (7.0, 0.1)}


def scans_of(df: Any) -> list[str]:
    """Return the file scans of a DataFrame's plan, with all their filters."""
    df.sparkSession.conf.set("spark.sql.maxMetadataStringLength", "2000")
    plan = df._jdf.queryExecution().executedPlan().toString()
    df.sparkSession.conf.unset("spark.sql.maxMetadataStringLength")
    return [line for line in plan.splitlines() if "FileScan" in line]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["mon", "a b", "x=y", "e%20f", "__HIVE_DEFAULT_PARTITION__"]),
        ("int", [-5, 0, 7]),
        ("long", [5, None]),
        ("date", [dt.date(2026, 4, 1), dt.date(2026, 4, 2), None]),
    ],
)
@pytest.mark.parametrize(
    "style", [{}, {"hoodie__datasource__write__hive_style_partitioning": "true"}]
)
def test_partition_columns_are_partitions_of_spark(
    spark: Any, save: Any, path: str, kind: str, values: list[Any], style: dict[str, str]
) -> None:
    columns = f"id long, day {kind}, at long, amount double"
    given = [(number, value, 10, 1.0) for number, value in enumerate(values)]
    save(given, columns=columns, **style)
    df = spark.read.format("hoodoo").load(path)
    assert dict(df.dtypes)["day"] == spark.createDataFrame(given, columns).dtypes[1][1]
    assert sorted(tuple(row) for row in df.select(*OWN).collect()) == sorted(given)
    found = df.where(df.day == values[0])
    assert [row.id for row in found.collect()] == [0]
    assert "PartitionFilters: [isnotnull(day" in scans_of(found)[0]


@pytest.mark.parametrize("few", [0, 32], ids=["named", "looked-up"])
def test_files_of_other_partitions_are_not_opened(
    save: Any, spark: Any, path: str, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr("hoodoo.spark.base_files.FEW_FILES", few)
    save(THREE)
    for file in Path(path, "tue").glob("*.parquet"):
        file.write_bytes(b"not a file of Parquet")
    df = spark.read.format("hoodoo").load(path)
    assert df.where("day = 'mon'").count() == 2
    days = spark.createDataFrame([("mon", 1)], "day string, n int").where("n > 0")
    assert df.join(F.broadcast(days), "day").count() == 2, "by dynamic pruning"
    with pytest.raises(Exception, match=r"(?i)parquet"):
        df.select("id").collect()


@pytest.mark.parametrize("partition", ["day", ""], ids=["partitions", "plain"])
def test_a_base_file_that_the_metadata_table_lists_may_not_be_missing(
    save: Any, rows: Any, path: str, partition: str
) -> None:
    listing = {"hoodie__metadata__enable": "true"}
    options = {**listing, "hoodie__datasource__write__partitionpath__field": partition}
    save(THREE, **options)
    older = set(Path(path).rglob("*.parquet"))
    later = (9, "wed", 10, 9.0)
    save([later], **options, hoodie__datasource__write__operation="bulk_insert")
    (lost,) = (one for one in set(Path(path).rglob("*.parquet")) - older if not one.match("*/.*/*"))
    lost.rename(lost.with_suffix(".lost"))
    with pytest.raises(MissingFileError, match=lost.name):
        rows(**listing)
    lost.with_suffix(".lost").rename(lost)
    assert rows(**listing) == [*THREE, later]


def test_a_session_with_other_classes_reads_without_partitions(
    save: Any, spark: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(THREE)

    def missing(*_: Any) -> Any:
        raise Py4JError("PartitionSpec does not exist in the JVM")

    monkeypatch.setattr("hoodoo.spark.base_files._relation", missing)
    df = spark.read.format("hoodoo").load(path).where("day = 'mon'")
    assert df.count() == 2
    assert "PartitionFilters: []" in scans_of(df)[0]


LOADS = {
    "*": [1, 2, 3, 4],
    "*/*": [1, 2, 3, 4],
    "*/*/*.parquet": [1, 2, 3, 4],
    "2026": [1, 2, 3],
    "2026/04/": [1, 2],
    "2026/0[3-4]/*": [1, 2],
    "202?/{05,12}": [3, 4],
}


@pytest.mark.parametrize(("below", "ids"), LOADS.items())
def test_folders_and_patterns_select_partitions(
    save: Any, spark: Any, path: str, below: str, ids: list[int]
) -> None:
    days = ["2026/04", "2026/04", "2026/05", "2025/12"]
    save([(number, day, 10, 1.0) for number, day in enumerate(days, 1)])
    reader = spark.read.format("hudi")
    found = reader.load(f"{path}/{below}")
    assert sorted(row.id for row in found.select("id").collect()) == ids
    asked = {"hoodie.datasource.query.type": "incremental"}
    asked["hoodie.datasource.read.begin.instanttime"] = "earliest"
    changed = reader.options(**asked).load(f"{path}/{below}")
    assert sorted(row.id for row in changed.select("id").collect()) == ids


def test_several_paths_are_read_together(save: Any, spark: Any, path: str) -> None:
    save(THREE)
    both = f"{path}/mon, {path}/tue/*"
    reader = spark.read.format("hudi").option("hoodie.datasource.read.paths", both)
    assert reader.load().count() == 3
    assert spark.read.format("hudi").load([f"{path}/mon"]).count() == 2
    assert spark.read.format("hudi").load([f"{path}/mon", f"{path}/tue"]).count() == 3


@pytest.mark.parametrize(
    ("paths", "wrong"),
    [
        (["{0}/wed"], "selects no partition"),
        (["{0}/mon", "/elsewhere/t"], "not below it"),
        (["{0}/mon", "{0}/tue/../../x"], "not below it"),
        (["{0}/.hoodie"], "selects no partition"),
    ],
)
def test_paths_that_select_nothing_are_refused(
    save: Any, spark: Any, path: str, paths: list[str], wrong: str
) -> None:
    save(THREE)
    with pytest.raises(InvalidInputError, match=wrong):
        spark.read.format("hudi").load([each.format(path) for each in paths])


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/mon/*", [1, 2]),
        ("*/{tue,wed}/*", [3]),
        ("/[^m]*/*.parquet", [3]),
        ("*", [1, 2, 3]),
        ("/sun/*", []),
    ],
)
def test_a_range_is_limited_to_files_of_a_pattern(
    save: Any, rows: Any, pattern: str, found: list[int]
) -> None:
    save(THREE)
    ranged = {
        "hoodie__datasource__query__type": "incremental",
        "hoodie__datasource__read__begin__instanttime": "earliest",
    }
    limit = {"hoodie__datasource__read__incr__path__glob": pattern}
    assert [row[0] for row in rows(**ranged, **limit)] == found


def test_a_pattern_of_a_range_is_refused_for_other_reads(save: Any, rows: Any) -> None:
    save(THREE)
    with pytest.raises(InvalidInputError, match="incremental reads of rows only"):
        rows(hoodie__datasource__read__incr__path__glob="/mon/*")

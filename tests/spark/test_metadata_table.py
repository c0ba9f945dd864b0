"""A metadata table under Spark: each save maintains it, and a save that would not is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.reading import open_metadata_table
from tests.interop import golden_tables
from timeline.errors import HoodooError

pytestmark = pytest.mark.spark

COLUMNS = "id string, ts long, val double, name string, region string"
STATISTICS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.operation": "insert",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.parquet.small.file.limit": "0",
    "hoodoo.spark.driver.write.max.bytes": "67108864",  # one file; tasks write as many as they are
}
NEW = ("new", 1_000, 1.0, "by us", "xx")
KINDS = {
    "id": "string",
    "part": "string",
    "ts": "long",
    "a": "int",
    "name": "string",
    "price": "decimal(10,2)",
    "d": "date",
    "t": "timestamp",
    "ok": "boolean",
    "x": "double",
}


def test_a_save_without_the_metadata_table_is_refused(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    writer = spark.createDataFrame([NEW], COLUMNS).write.format("hudi").mode("append")
    with pytest.raises(HoodooError) as refused:
        writer.options(**{"hoodie.metadata.enable": "false"}).save(str(path))
    assert refused.value.kind == "metadata_table_on"


@pytest.mark.parametrize("name", ["v9_cow_services", "v9_mor_ri"])
def test_a_save_adds_its_files_and_keys_to_the_metadata_table(
    spark: Any, tmp_path: Path, name: str
) -> None:
    path = golden_tables.unpack(name, tmp_path)
    with hoodoo.open_table(path) as table:
        before = table.to_arrow()
    rows = spark.createDataFrame(
        [*before.slice(0, 3).to_pylist(), {**before.slice(0, 1).to_pylist()[0], "id": "new"}],
        ", ".join(f"{field.name} {KINDS[field.name]}" for field in before.schema),
    )
    writer = rows.write.format("hudi").mode("append")
    writer.option("hoodie.datasource.write.operation", "upsert").save(str(path))
    with hoodoo.open_table(path) as table:
        context = table.context
        metadata = open_metadata_table(context.ports.storage, table.config, context.snapshot())
        assert metadata is not None
        assert metadata.lag.is_trusted
        listed = metadata.files_of(metadata.partition_paths())
        keys = pa.concat_tables(metadata.read("record_index")).column("key").to_pylist()
        assert sorted(keys) == sorted(table.to_arrow(["id"]).column("id").to_pylist())
        assert "new" in keys
    there = {file.name for file in path.glob("*/*") if file.parent.name != ".hoodie"}
    there -= {".hoodie_partition_metadata"}
    assert set(listed.column("name").to_pylist()) == there


# ---- Statistics of columns leave out files of a load


def files_read(df: Any) -> tuple[int, int]:
    """The rows of a query, and the files that Spark's reader opened for it."""
    rows = len(df.collect())
    found, plans = 0, [df._jdf.queryExecution().executedPlan()]
    while plans:
        plan = plans.pop()
        if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            plans.append(plan.executedPlan())
            continue
        if plan.metrics().contains("numFiles"):
            found += plan.metrics().apply("numFiles").value()
        plans += [plan.children().apply(number) for number in range(plan.children().size())]
    return rows, found


def four_files(spark: Any, path: Path, partition_by: str = "", **more: str) -> str:
    """Four saves of five rows each, with ids and values from 0 to 19; and the options of all."""
    given = {**STATISTICS, "hoodie.datasource.write.partitionpath.field": partition_by, **more}
    for start in range(0, 20, 5):
        rows = spark.range(start, start + 5, 1, 1).selectExpr(
            "id",
            "cast(id % 2 as string) as day",
            "cast(id as int) as number",
            "concat('n', lpad(id, 2, '0')) as name",
            "date_add(date'2026-01-01', cast(id as int)) as d",
            "timestamp_seconds(id * 3600) as t",
            "cast(id as decimal(10,2)) as price",
            "cast(id as double) as x",
            "if(id = 7, null, id % 2 = 0) as even",
        )
        rows.write.format("hoodoo").options(**given).mode("append").save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def statistics(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return four_files(spark, tmp_path_factory.mktemp("statistics"))


@pytest.mark.parametrize(
    ("where", "rows", "files"),
    [
        ("id >= 17", 3, 1),
        ("3 > number", 3, 1),
        ("name = 'n11'", 1, 1),
        ("name LIKE 'n0%'", 10, 2),
        ("id IN (1, 2, 19)", 3, 2),
        ("id IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)", 12, 3),
        ("d = date'2026-01-06'", 1, 1),
        ("t < timestamp'1970-01-01 01:00:00'", 1, 1),
        ("price > 12", 7, 2),
        ("id = 1 OR name = 'n19'", 2, 2),
        ("id = 1 AND x > 0", 1, 1),
        ("id = 99", 0, 0),
        # No statistics decide these.
        ("x = 1", 1, 4),
        ("id = 1 OR x = 19", 2, 4),
        ("NOT (id = 3)", 19, 4),
        ("id % 7 = 0", 3, 4),
        ("even IS NULL", 1, 4),
    ],
)
def test_statistics_of_columns_leave_out_files_of_a_load(
    spark: Any, statistics: str, where: str, rows: int, files: int
) -> None:
    loaded = spark.read.format("hoodoo").load(statistics)
    assert files_read(loaded.where(where)) == (rows, files)
    without = spark.read.format("hoodoo").option("hoodie.metadata.enable", "false")
    assert files_read(without.load(statistics).where(where)) == (rows, 4)


def test_statistics_and_partitions_leave_out_files_together(spark: Any, tmp_path: Path) -> None:
    path = four_files(spark, tmp_path / "t", partition_by="day")  # two files a save
    loaded = spark.read.format("hoodoo").load(path)
    assert files_read(loaded.where("id > 12")) == (7, 4)
    assert files_read(loaded.where("id > 12 AND day = '1'")) == (4, 2)
    assert files_read(loaded.where("day = '1'")) == (10, 4)
    assert files_read(loaded.where("id = 4").union(loaded.where("id = 15"))) == (2, 2)
    assert loaded.where("id = 3").join(loaded.where("id = 3"), "id").count() == 1
    assert loaded.where("id = 3").join(loaded, "id").count() == 1
    assert loaded.count() == 20


def test_rows_of_logs_are_found_whatever_the_statistics_of_base_files(
    spark: Any, tmp_path: Path
) -> None:
    more = {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
    path = four_files(spark, tmp_path / "t", **more)
    stored = spark.read.format("hoodoo").load(path).where("id IN (2, 12)")
    moved = stored.selectExpr("* EXCEPT (number)", "number + 100 as number")
    given = {**STATISTICS, "hoodie.datasource.write.operation": "upsert"}
    moved.write.format("hoodoo").options(**given).mode("append").save(path)
    loaded = spark.read.format("hoodoo").load(path)
    assert [row.id for row in loaded.where("number > 100").orderBy("id").collect()] == [2, 12]
    assert loaded.where("number = 12").count() == 0
    assert loaded.count() == 20


def test_a_query_whose_statistics_fail_reads_all_files(
    spark: Any, statistics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def failing(*_: object) -> None:
        asked.append(True)
        raise ValueError("the statistics are gone")

    monkeypatch.setattr("hoodoo.spark.base_files._part", failing)
    loaded = spark.read.format("hoodoo").load(statistics)
    assert files_read(loaded.where("id = 1")) == (1, 4)
    assert asked

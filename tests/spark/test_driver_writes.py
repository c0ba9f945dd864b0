"""Small DataFrames: one job collects them, and the driver writes them without tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from hoodoo.spark.few_rows import collect_batches, collect_few
from hoodoo.spark.schema import arrow_schema_of
from hoodoo.spark.workload import SparkWorkload
from tests.spark.conftest import DRIVER_BYTES, OPTIONS
from timeline.errors import InvalidInputError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("driver_writes")]

FEW = [(number, "mon", 10, 1.0) for number in range(50)]
BYTES_MAX = 1 << 20


@pytest.fixture
def job_count(spark: Any, jobs: Any) -> Iterator[Callable[[], int]]:
    """Return the number of jobs of this test so far."""
    spark.sparkContext.setJobGroup("this test", "")
    yield lambda: len(jobs().getJobIdsForGroup("this test"))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def test_each_save_of_few_rows_runs_one_job(
    save: Any, rows: Any, job_count: Callable[[], int]
) -> None:
    save(FEW)
    assert job_count() == 1
    save([(1, "mon", 20, 2.0), (99, "tue", 20, 2.0)])
    assert job_count() == 2
    assert len(rows()) == 51


def test_rows_beyond_the_limit_are_written_by_the_cluster(
    spark: Any, path: str, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write_new_groups = SparkWorkload.write_new_groups

    def noted(self: SparkWorkload, groups: Any) -> Any:
        written.append(groups)
        return write_new_groups(self, groups)

    monkeypatch.setattr(SparkWorkload, "write_new_groups", noted)
    df = spark.range(3).selectExpr("explode(sequence(id * 1000, id * 1000 + 999)) id")
    df = df.selectExpr("id", "'mon' day", "1L at", "0.5D amount")
    writer = df.write.format("hoodoo").options(**OPTIONS).option(DRIVER_BYTES, "8192")
    writer.mode("append").save(path)
    assert written
    assert [row[0] for row in rows()] == list(range(3000))


def test_the_last_row_of_a_key_stays_in_the_order_of_the_partitions(
    spark: Any, path: str, rows: Any
) -> None:
    df = spark.range(0, 80, 1, 8).selectExpr("id % 5 id", "id value")
    options = {"hoodie.datasource.write.recordkey.field": "id"}
    df.write.format("hoodoo").options(**options).mode("append").save(path)
    assert rows() == [(number, 75 + number) for number in range(5)]


@pytest.mark.parametrize("how", ["left", "cross"])
def test_a_limit_below_a_join_loses_no_rows(spark: Any, how: str) -> None:
    left = spark.range(0, 40, 1, 4)
    right = spark.range(0, 1000, 1, 4).selectExpr("id as other", "id % 40 as id_of_left")
    joined = left.join(right, None if how == "cross" else left.id == right.id_of_left, how)
    expected = joined.count()
    row_bytes = 24
    assert collect_few(joined, (expected - 1) * row_bytes) is None
    found = collect_few(joined, expected * row_bytes)
    assert found is not None
    assert sorted(map(str, found.to_pylist())) == sorted(
        str(row.asDict()) for row in joined.collect()
    )


def test_big_sources_are_not_tried(
    spark: Any, tmp_path: Path, job_count: Callable[[], int]
) -> None:
    files = str(tmp_path / "files")
    spark.range(0, 100_000, 1, 1).selectExpr("id", "uuid() text").write.parquet(files)
    df = spark.read.parquet(files)
    before = job_count()
    assert collect_few(df, BYTES_MAX) is None
    assert collect_few(spark.range(10**12), BYTES_MAX) is None
    assert job_count() == before
    found = collect_few(df.where("id < 3"), BYTES_MAX << 6)
    assert found is not None
    assert found.num_rows == 3


def test_no_bytes_leave_all_writes_to_the_cluster(spark: Any) -> None:
    assert collect_few(spark.range(1), 0) is None


def test_more_bytes_than_spark_collects_are_left_to_the_cluster() -> None:
    class TooBig:
        def _collect_as_arrow(self) -> list[pa.RecordBatch]:
            raise RuntimeError(
                "Total size of serialized results of 9 tasks (1100.0 MiB) is bigger than "
                "spark.driver.maxResultSize (1024.0 MiB)"
            )

    assert collect_batches(TooBig()) is None


def test_collected_columns_have_the_types_of_a_write_by_tasks(spark: Any) -> None:
    df = spark.range(2).selectExpr(
        "id",
        "timestamp_micros(1600000000000000 + id) zoned",
        "timestamp_ntz'2020-01-01 00:00:00.123456' plain",
        "cast(id as decimal(20, 2)) money",
        "null nothing",
        "map('a', array(id, null)) named",
    )
    found = collect_few(df, BYTES_MAX)
    assert found is not None
    assert found.schema == arrow_schema_of(df.schema)
    assert found.schema.field("zoned").type == pa.timestamp("us", "UTC")
    assert found.num_rows == 2


def test_two_columns_of_one_name_are_refused(spark: Any, path: str) -> None:
    df = spark.createDataFrame([(1, "mon", 2)], "id long, day string, at long").select(
        "*", F.lit(1).alias("id")
    )
    with pytest.raises(InvalidInputError):
        df.write.format("hoodoo").options(**OPTIONS).mode("append").save(path)
    assert not Path(path, ".hoodie").exists()

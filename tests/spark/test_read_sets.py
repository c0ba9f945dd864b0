"""Writes from Spark with a read set: write skew is refused, or permitted."""

from __future__ import annotations

from typing import Any

import pytest

import hoodoo.spark
from tests.spark.conftest import COLUMNS, OPTIONS
from timeline.errors import InvalidInputError, WriteConflictError

pytestmark = pytest.mark.spark

SHARED = {**OPTIONS, "hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
LEVEL = "hoodoo.write.isolation.level"
#: Two on duty, a file group each. Each may leave if the other one stays.
TWO = [(1, "mon", 1, 1.0), (2, "tue", 1, 1.0)]


@pytest.fixture
def duty(spark: Any, path: str) -> str:
    spark.createDataFrame(TWO, COLUMNS).write.format("hoodoo").options(**SHARED).save(path)
    return path


def go(df: Any, number: int, path: str, level: str, **more: Any) -> Any:
    """A doctor that saw two on duty leaves: the row of one, made from those of both."""
    on_duty = df.where("amount = 1.0")
    assert on_duty.count() == 2
    gone = on_duty.where(f"id = {number}").selectExpr("id", "day", "at + 1 as at", "0D as amount")
    writer = gone.write.format("hoodoo").options(**SHARED).option(LEVEL, level)
    return writer.mode("append").save(path, **more)


def amounts(rows: Any) -> list[float]:
    return [row[3] for row in rows()]


def test_serializable_writers_cannot_skew(spark: Any, duty: str, rows: Any) -> None:
    mine, theirs = (spark.read.format("hoodoo").load(duty) for _ in range(2))
    asked = [("amount", "==", 1.0)]
    go(theirs, 1, duty, "serializable", reads=hoodoo.spark.reads(theirs, filter=asked))
    with pytest.raises(WriteConflictError) as refused:
        go(mine, 2, duty, "serializable", reads=hoodoo.spark.reads(mine, filter=asked))
    assert refused.value.kind == "changed_under_read"
    assert amounts(rows) == [0.0, 1.0]


@pytest.mark.slow
def test_snapshot_permits_write_skew_and_no_reads_are_no_promise(
    spark: Any, duty: str, rows: Any
) -> None:
    mine, theirs = (spark.read.format("hoodoo").load(duty) for _ in range(2))
    go(theirs, 1, duty, "serializable")
    go(mine, 2, duty, "snapshot", reads=hoodoo.spark.reads(mine))
    assert amounts(rows) == [0.0, 0.0]


@pytest.mark.slow
def test_commits_outside_the_read_partitions_do_not_conflict(
    spark: Any, duty: str, rows: Any
) -> None:
    mine = spark.read.format("hoodoo").load(duty)
    go(spark.read.format("hoodoo").load(duty), 1, duty, "serializable")
    go(mine, 2, duty, "serializable", reads=hoodoo.spark.reads(mine, partitions=["tue"]))
    assert amounts(rows) == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "left"), [("snapshot", [0.0, 0.0]), ("serializable", [0.0, 1.0])]
)
def test_writes_of_a_spark_table_are_validated_against_a_pinned_snapshot(
    spark: Any, duty: str, rows: Any, level: str, left: list[float]
) -> None:
    with (
        hoodoo.spark.table(spark, duty, {**SHARED, LEVEL: level}) as table,
        table.pin() as state,
    ):
        before = state.to_df()
        assert before.where("amount = 1.0").count() == 2
        go(spark.read.format("hoodoo").load(duty), 1, duty, level)
        assert before.where("amount = 1.0").count() == 2
        gone = before.where("id = 2").selectExpr("id", "day", "at + 1 as at", "0D as amount")
        if level == "snapshot":
            table.upsert(gone, reads=state.reads())
        else:
            with pytest.raises(WriteConflictError, match="read again"):
                table.upsert(gone, reads=state.reads())
    assert amounts(rows) == left


def test_only_a_dataframe_of_the_newest_snapshot_has_a_read_set(spark: Any, duty: str) -> None:
    reader = spark.read.format("hoodoo")
    with pytest.raises(InvalidInputError) as derived:
        hoodoo.spark.reads(reader.load(duty).where("id = 1"))
    assert derived.value.kind == "not_loaded"
    result = hoodoo.spark.last_result(spark)
    past = [
        {"as.of.instant": result.requested_time},
        {"hoodie.datasource.query.type": "read_optimized"},
        {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": "earliest",
        },
    ]
    for options in past:
        with pytest.raises(InvalidInputError) as refused:
            hoodoo.spark.reads(spark.read.format("hoodoo").options(**options).load(duty))
        assert refused.value.kind == "reads_of_the_past"


@pytest.mark.slow
def test_reads_of_an_empty_table_conflict_with_inserts(spark: Any, path: str, rows: Any) -> None:
    one = spark.createDataFrame(TWO[:1], COLUMNS).write.format("hoodoo").options(**SHARED)
    one.save(path)
    spark.createDataFrame(TWO[:1], COLUMNS).write.format("hoodoo").options(**SHARED).option(
        "hoodie.datasource.write.operation", "delete_partition"
    ).mode("append").save(path)
    empty = spark.read.format("hoodoo").load(path)
    assert empty.count() == 0
    reads = hoodoo.spark.reads(empty)
    again = spark.createDataFrame(TWO[1:], COLUMNS).write.format("hoodoo").options(**SHARED)
    again.option(LEVEL, "serializable").mode("append").save(path, reads=reads)
    with pytest.raises(WriteConflictError):
        again.option(LEVEL, "serializable").mode("append").save(path, reads=reads)
    assert amounts(rows) == [1.0]


@pytest.mark.slow
def test_a_partition_delete_is_validated_by_its_reads(spark: Any, duty: str, rows: Any) -> None:
    mine = spark.read.format("hoodoo").load(duty)
    go(spark.read.format("hoodoo").load(duty), 1, duty, "serializable")
    drop = mine.where("id = 2").write.format("hoodoo").options(**SHARED).mode("append")
    drop.option("hoodie.datasource.write.operation", "delete_partition")
    drop.option(LEVEL, "serializable")
    with pytest.raises(WriteConflictError):
        drop.save(duty, reads=hoodoo.spark.reads(mine))
    assert amounts(rows) == [0.0, 1.0]

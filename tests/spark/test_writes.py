"""Saving DataFrames: operations, save modes, duplicates, order, and refusals."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

import hoodoo
import hoodoo.spark
from filegroups.writing.workload import LocalWorkload
from hoodoo.spark.workload import SparkWorkload
from tests.spark.conftest import COLUMNS, DRIVER_BYTES, OPTIONS
from timeline.errors import InvalidInputError, SettingError, TableNotFoundError, UnsafeSetupError
from timeline.model.commit_metadata import WriteOperation

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("each_way")]
BY_TASKS = pytest.mark.parametrize("each_way", ["cluster"], indirect=True)

OPERATION = "hoodie__datasource__write__operation"
THREE = [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0), (3, "tue", 10, 3.0)]


def test_first_save_creates_the_table_and_upserts_replace_by_key(save: Any, rows: Any) -> None:
    first = save(THREE)
    second = save([(2, "mon", 11, 22.0), (4, "wed", 11, 4.0)])
    assert (first.rows_inserted, first.rows_updated) == (3, 0)
    assert (second.rows_inserted, second.rows_updated) == (1, 1)
    assert rows() == [
        (1, "mon", 10, 1.0),
        (2, "mon", 11, 22.0),
        (3, "tue", 10, 3.0),
        (4, "wed", 11, 4.0),
    ]


def test_the_session_keeps_the_result_of_the_newest_save(save: Any, spark: Any) -> None:
    result = save(THREE)
    assert hoodoo.spark.last_result(spark) == result


def test_late_rows_do_not_replace_newer_ones(save: Any, rows: Any) -> None:
    save([(1, "mon", 10, 1.0)])
    save([(1, "mon", 9, 99.0)])
    assert rows() == [(1, "mon", 10, 1.0)]


def test_one_row_of_each_key_stays_by_the_ordering_field(save: Any, rows: Any) -> None:
    save([(1, "mon", 10, 1.0), (1, "mon", 30, 3.0), (1, "mon", 20, 2.0)])
    assert rows() == [(1, "mon", 30, 3.0)]


def test_last_row_of_each_key_stays_without_an_ordering_field(
    spark: Any, path: str, rows: Any
) -> None:
    df = spark.createDataFrame([(1, 1.0), (1, 3.0), (1, 2.0)], "id long, amount double").coalesce(1)
    options = {"hoodie.datasource.write.recordkey.field": "id"}
    df.write.format("hoodoo").options(**options).mode("append").save(path)
    assert rows() == [(1, 2.0)]


def test_insert_keeps_duplicates_and_upsert_updates_every_copy(save: Any, rows: Any) -> None:
    save(THREE, **{OPERATION: "insert"})
    save([(1, "mon", 10, 1.5)], **{OPERATION: "insert"})
    assert rows()[:2] == [(1, "mon", 10, 1.0), (1, "mon", 10, 1.5)]
    save([(1, "mon", 11, 7.0)])
    assert rows()[:2] == [(1, "mon", 11, 7.0), (1, "mon", 11, 7.0)]


def test_insert_may_drop_known_keys(save: Any, rows: Any) -> None:
    save(THREE)
    dropping = {OPERATION: "insert", "hoodie__datasource__insert__dup__policy": "drop"}
    save([(1, "mon", 99, 9.0), (5, "mon", 10, 5.0)], **dropping)
    assert [row[0] for row in rows()] == [1, 2, 3, 5]
    assert rows()[0] == (1, "mon", 10, 1.0)


def test_delete_needs_keys_and_partitions_only(save: Any, rows: Any) -> None:
    save(THREE)
    result = save([(2, "mon"), (77, "tue")], columns="id long, day string", **{OPERATION: "delete"})
    assert result.rows_deleted == 1
    assert [row[0] for row in rows()] == [1, 3]


def test_insert_overwrite_replaces_the_partitions_of_its_rows(save: Any, rows: Any) -> None:
    save(THREE)
    save([(9, "mon", 1, 9.0)], **{OPERATION: "insert_overwrite"})
    assert rows() == [(3, "tue", 10, 3.0), (9, "mon", 1, 9.0)]


def test_delete_partition_deletes_the_partitions_of_the_rows(save: Any, rows: Any) -> None:
    save(THREE)
    save([(0, "mon", 0, 0.0)], **{OPERATION: "delete_partition"})
    assert rows() == [(3, "tue", 10, 3.0)]


def test_delete_partition_matches_patterns(save: Any, rows: Any) -> None:
    save(THREE)
    named = "hoodie__datasource__write__partitions__to__delete"
    with pytest.warns(UserWarning, match=r"nothing of them is deleted: \['t\?e'\]"):
        save([(0, "x", 0, 0.0)], **{OPERATION: "delete_partition", named: "m*,t?e"})
    assert rows() == [(3, "tue", 10, 3.0)], "only * is special"
    with pytest.raises(InvalidInputError) as caught:
        save([(0, "x", 0, 0.0)], **{OPERATION: "delete_partition", named: "x*"})
    assert caught.value.kind == "no_partition"


def test_mode_overwrite_replaces_all_rows_and_keeps_earlier_snapshots(save: Any, rows: Any) -> None:
    before = save(THREE)
    result = save([(9, "wed", 2, 9.0), (9, "wed", 1, 8.0)], mode="overwrite")
    assert result.operation == "insert_overwrite_table"
    assert rows() == [(9, "wed", 2, 9.0)]
    assert len(rows(as__of__instant=before.requested_time)) == 3


@pytest.mark.parametrize(
    ("columns", "row", "options"),
    [
        ("id long, day string, at long", (9, "wed", 2), {}),
        ("id long, day string, at long, amount boolean", (9, "wed", 2, True), {}),
        (COLUMNS, (9, "wed", 2, 9.0), {"hoodie__datasource__write__recordkey__field": "id,day"}),
        (COLUMNS, (9, "wed", 2, 9.0), {"hoodie__datasource__write__table__type": "MERGE_ON_READ"}),
    ],
)
def test_mode_overwrite_with_another_key_or_schema_replaces_the_table(
    save: Any, rows: Any, path: str, columns: str, row: tuple[Any, ...], options: dict[str, str]
) -> None:
    save(THREE)
    result = save([row], mode="overwrite", columns=columns, **options)
    assert result.operation == "insert_overwrite_table"
    assert rows() == [row]
    with hoodoo.open_table(path) as table:
        assert len(table.history()) == 1, "the timeline of the other table is gone"
        assert table.verify().ok


def test_a_table_in_use_is_not_replaced(save: Any, rows: Any, path: str) -> None:
    save(THREE)
    with hoodoo.open_table(path) as writer:
        writer.upsert([{"id": 4, "day": "tue", "at": 1, "amount": 4.0}])  # registers the writer
        with pytest.raises(InvalidInputError) as caught:
            save([(9, "wed", 2)], mode="overwrite", columns="id long, day string, at long")
    assert caught.value.kind == "writers_at_work"
    pending = Path(path) / ".hoodie" / "timeline" / "20200101000000000.commit.requested"
    pending.touch()
    with pytest.raises(InvalidInputError) as caught:
        save([(9, "wed", 2)], mode="overwrite", columns="id long, day string, at long")
    assert caught.value.kind == "writers_at_work"
    pending.unlink()
    assert len(rows()) == 4


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_rows_of_the_table_itself_replace_it_only_from_memory(
    save: Any, rows: Any, spark: Any, path: str, table_type: str
) -> None:
    save(THREE, hoodie__datasource__write__table__type=table_type)
    save([(2, "mon", 11, 22.0)])  # a log file if the table is merge-on-read
    df = spark.read.format("hoodoo").load(path).select("id", "day", "at")
    writer = df.write.format("hoodoo").options(**OPTIONS).mode("overwrite")
    if spark.conf.get(f"spark.{DRIVER_BYTES}") == "0":
        with pytest.raises(InvalidInputError) as caught:
            writer.save(path)
        assert caught.value.kind == "overwrites_its_source"
        assert len(rows()[0]) == 4
    else:
        writer.save(path)
        assert rows() == [(1, "mon", 10), (2, "mon", 11), (3, "tue", 10)]


def test_bad_rows_do_not_replace_a_table(save: Any, rows: Any) -> None:
    save(THREE)
    with pytest.raises(InvalidInputError):
        save([(None, "wed", 2)], mode="overwrite", columns="id long, day string, at long")
    assert rows() == THREE


def test_java_s_payload_without_rows_deletes(save: Any, rows: Any) -> None:
    save(THREE)
    payload = "org.apache.hudi.common.model.EmptyHoodieRecordPayload"
    save([(2, "mon", 11, None)], hoodie__datasource__write__payload__class=payload)
    assert rows() == [THREE[0], THREE[2]]


def test_modes_ignore_and_errorifexists_leave_a_table_unchanged(save: Any, rows: Any) -> None:
    save(THREE, mode="errorifexists")
    with pytest.raises(InvalidInputError) as caught:
        save([(9, "wed", 2, 9.0)], mode="errorifexists")
    assert caught.value.kind == "table_exists"
    assert save([(9, "wed", 2, 9.0)], mode="ignore") is None
    assert len(rows()) == 3


def test_partition_by_of_the_writer_names_the_partition_path(spark: Any, path: str) -> None:
    df = spark.createDataFrame([(1, "mon")], "id long, day string")
    options = {"hoodie.datasource.write.recordkey.field": "id"}
    df.write.partitionBy("day").save(path, format="hoodoo", mode="append", **options)
    assert hoodoo.open_table(path).config.partition_fields == ("day",)


def test_new_columns_grow_the_schema(save: Any, rows: Any) -> None:
    save(THREE)
    grown = "id long, day string, at long, amount double, note string"
    save([(2, "mon", 12, 2.0, "late")], columns=grown)
    assert rows() == [
        (1, "mon", 10, 1.0, None),
        (2, "mon", 12, 2.0, "late"),
        (3, "tue", 10, 3.0, None),
    ]


def test_a_null_key_is_refused_and_changes_nothing(save: Any, path: str) -> None:
    save(THREE)
    with pytest.raises(InvalidInputError, match="rows have no record key") as caught:
        save([(None, "mon", 10, 1.0)] * 3)
    assert caught.value.kind == "null_key"
    assert caught.value.fields == {"columns": ["id"], "rows": 3}
    assert caught.value.message.endswith("columns=['id'] rows=3")
    assert len(hoodoo.open_table(path).timeline) == 1


def test_a_null_key_is_refused_although_the_schema_changed_since_the_last_group(
    save: Any, spark: Any, path: str, rows: Any
) -> None:
    save(THREE)
    grouped = {**OPTIONS, "hoodoo.group.commit.max.writes": "2"}
    with hoodoo.spark.table(spark, path, grouped) as table:
        table.upsert(spark.createDataFrame([(4, "mon", 1, 4.0)], COLUMNS))
        save([(5, "mon", 1, 5.0)])  # so rows that are refused are fitted to the table once more
        with pytest.raises(InvalidInputError, match="key"):
            table.upsert(
                spark.createDataFrame([(None, "mon", 1, 6.0), (6, "mon", 1, 6.0)], COLUMNS)
            )
    assert [row[0] for row in rows()] == [1, 2, 3, 4, 5]


def test_a_null_key_in_the_first_save_makes_no_table(save: Any, path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        save([{"id": None, "part": "a", "ts": 1, "v": "x"}])
    assert caught.value.kind == "null_key"
    assert not Path(path, ".hoodie").exists()


def test_a_null_ordering_value_is_refused(save: Any) -> None:
    save(THREE)
    with pytest.raises(InvalidInputError) as caught:
        save([(1, "mon", None, 1.0)])
    assert caught.value.kind == "null_ordering"


def test_a_missing_key_column_makes_no_table(spark: Any, path: str) -> None:
    df = spark.createDataFrame([("mon",)], "day string")
    options = {"hoodie.datasource.write.recordkey.field": "id"}
    with pytest.raises(InvalidInputError) as caught:
        df.write.format("hoodoo").options(**options).mode("append").save(path)
    assert caught.value.kind == "missing_key_column"
    with pytest.raises(TableNotFoundError):
        hoodoo.open_table(path)


def test_options_that_contradict_the_table_are_refused(save: Any) -> None:
    save(THREE)
    with pytest.raises(SettingError) as caught:
        save(THREE, hoodie__datasource__write__recordkey__field="amount")
    assert caught.value.kind == "setting_against_table"


def test_session_properties_are_a_layer(save: Any, spark: Any) -> None:
    spark.conf.set("spark.hoodie.datasource.write.operation", "bulk_insert")
    try:
        assert save(THREE).operation == "bulk_insert"
    finally:
        spark.conf.unset("spark.hoodie.datasource.write.operation")


def test_a_failing_task_leaves_nothing_behind(save: Any, spark: Any, path: str, rows: Any) -> None:
    save(THREE)
    before = {file.name for file in Path(path).rglob("*.parquet")}
    bad = spark.createDataFrame(
        [(1, "mon", 20, 5.0)], "id long, day string, at long, amount double"
    )
    bad = bad.selectExpr(
        "id", "day", "at", "if(id = 1, raise_error('broken source'), amount) amount"
    )
    options = {"hoodie.datasource.write.recordkey.field": "id"}
    with pytest.raises(Exception, match="broken source"):
        bad.selectExpr("id", "day", "at", "cast(amount as double) amount").write.format(
            "hoodoo"
        ).options(**options).mode("append").save(path)
    assert {file.name for file in Path(path).rglob("*.parquet")} == before
    assert len(rows()) == 3


@BY_TASKS
def test_rows_that_differ_when_they_are_computed_again_are_refused(
    save: Any, spark: Any, path: str, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(THREE)
    new_id = F.udf(lambda _: uuid.uuid4().hex).asNondeterministic()
    df = spark.range(3).select("id", new_id("id").alias("day"), F.lit(1).alias("at"))
    rewrite = SparkWorkload.rewrite

    def without_cache(self: SparkWorkload, tasks: Any) -> Any:
        spark.catalog.clearCache()  # as another thread may say, or an executor that is gone
        return rewrite(self, tasks)

    monkeypatch.setattr(SparkWorkload, "rewrite", without_cache)
    writer = df.withColumn("amount", F.lit(1.0)).write.format("hoodoo").options(**OPTIONS)
    writer = writer.option(DRIVER_BYTES, "0")
    with pytest.raises(UnsafeSetupError, match="counted=3 written=0"):
        writer.mode("append").save(path)
    assert rows() == THREE
    save([(1, "mon", 12, 11.0), (4, "wed", 12, 4.0)])  # rows that stay the same are written
    assert rows() == [(1, "mon", 12, 11.0), *THREE[1:], (4, "wed", 12, 4.0)]


@BY_TASKS
def test_other_keys_of_the_same_number_are_refused(
    save: Any, spark: Any, path: str, rows: Any
) -> None:
    save(THREE)
    chance = F.udf(lambda _: int(uuid.uuid4()) % 2**60, "long")  # claims to be deterministic
    df = spark.range(3).select(chance("id").alias("id"), F.lit("mon").alias("day"))
    writer = df.selectExpr("*", "1L at", "1.0D amount").write.format("hoodoo").options(**OPTIONS)
    with pytest.raises(UnsafeSetupError, match="counted=3 written=3") as caught:
        writer.option(DRIVER_BYTES, "0").mode("append").save(path)
    assert caught.value.kind == "other_rows"
    assert rows() == THREE


@BY_TASKS
def test_rows_with_random_keys_are_written_once_they_are_computed(
    save: Any, spark: Any, path: str, rows: Any
) -> None:
    save(THREE)
    chance = F.udf(lambda _: int(uuid.uuid4()) % 2**60 + 9, "long").asNondeterministic()
    df = spark.range(3).select(chance("id").alias("id"), F.lit("mon").alias("day"))
    writer = df.selectExpr("*", "1L at", "1.0D amount").write.format("hoodoo").options(**OPTIONS)
    writer.option(DRIVER_BYTES, "0").mode("append").save(path)
    assert len(rows()) == 6


def test_large_upserts_cache_keys_only(
    save: Any, spark: Any, path: str, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(THREE)
    columns: list[list[str]] = []
    rewrite = SparkWorkload.rewrite

    def noted(self: SparkWorkload, tasks: Any) -> Any:
        assert not self._prepared.is_cached
        columns.append(self._keys.columns)
        return rewrite(self, tasks)

    monkeypatch.setattr(SparkWorkload, "rewrite", noted)
    save([(1, "mon", 11, 7.0), (4, "wed", 11, 4.0)], **{DRIVER_BYTES: "0"})
    assert columns
    assert not {"id", "day", "at", "amount"}.intersection(columns[0])
    assert rows() == [(1, "mon", 11, 7.0), *THREE[1:], (4, "wed", 11, 4.0)]


def test_rows_of_both_executors_are_equal(save: Any, path: str, rows: Any) -> None:
    save(THREE)
    with hoodoo.open_table(path) as table:
        table.upsert(pa.table({"id": [3], "day": ["tue"], "at": [12], "amount": [33.0]}))
    save([(1, "mon", 12, 11.0)])
    with hoodoo.open_table(path) as table:
        local = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())
    assert (
        rows()
        == local
        == [
            (1, "mon", 12, 11.0),
            (2, "mon", 10, 2.0),
            (3, "tue", 12, 33.0),
        ]
    )


def test_every_type_survives_the_way_through_spark(spark: Any, path: str) -> None:
    df = spark.range(3).selectExpr(
        "id",
        "timestamp_micros(1600000000000000 + id) zoned",
        "timestamp_ntz'2020-01-01 00:00:00.123456' plain",
        "date'2020-02-29' day",
        "cast(id as decimal(20, 2)) money",
        "cast(cast(id as string) as binary) bytes",
        "array(id, null) many",
        "map('a', id) named",
        "named_struct('x', cast(id as int), 'y', cast(null as string)) both",
        "id = 1 flag",
        "cast(id as float) small",
    )
    options = {"hoodie.datasource.write.recordkey.field": "id"}
    df.write.format("hoodoo").options(**options).mode("append").save(path)
    back = spark.read.format("hoodoo").load(path).select(*df.columns)
    assert sorted(map(str, back.collect())) == sorted(map(str, df.collect()))
    assert [f.dataType.simpleString() for f in back.schema] == [
        f.dataType.simpleString() for f in df.schema
    ]


def test_spark_table_upserts_and_deletes(save: Any, spark: Any, path: str) -> None:
    save(THREE)
    with hoodoo.spark.table(spark, path) as table:
        table.upsert(
            spark.createDataFrame(
                [(1, "mon", 11, 5.0)], "id long, day string, at long, amount double"
            )
        )
        table.delete(spark.createDataFrame([(3, "tue")], "id long, day string"))
        found = sorted(tuple(r) for r in table.to_df().select("id", "amount").collect())
    assert found == [(1, 5.0), (2, 2.0)]


def test_a_conflict_rebases_the_overlapping_file_group_only(
    save: Any, spark: Any, path: str, rows: Any
) -> None:
    save(THREE)
    many = {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.write.lock.provider": "in_process",
    }
    calls: list[list[str]] = []
    begun, rival_committed = threading.Event(), threading.Event()

    class Earlier(LocalWorkload):
        """Begins first and commits after the other has written."""

        def rewrite(self, tasks: Any) -> Any:
            begun.set()
            rival_committed.wait(120)
            return super().rewrite(tasks)

    def concurrent_write() -> None:
        data = pa.table({"id": [3], "day": ["tue"], "at": [12], "amount": [33.0]})
        with hoodoo.open_table(path, properties=many) as table:
            table._run(WriteOperation.UPSERT, Earlier(table.context.ports, data))

    class Later(SparkWorkload):
        def rewrite(self, tasks: Any) -> Any:
            done = super().rewrite(tasks)
            calls.append([task.partition_path for task in tasks])
            rival_committed.set()
            other.join()
            return done

    other = threading.Thread(target=concurrent_write)
    other.start()
    begun.wait(120)
    df = spark.createDataFrame(
        [(1, "mon", 20, 11.0), (3, "tue", 11, 0.0), (4, "tue", 20, 4.0)],
        "id long, day string, at long, amount double",
    )
    with hoodoo.open_table(path, properties=many) as table:
        later = Later(table.context.ports, df)
        result = table._run(WriteOperation.UPSERT, later)
        later.release()
    assert [sorted(each) for each in calls] == [["mon", "tue"], ["tue"]]
    assert result.attempts == 2
    assert rows() == [
        (1, "mon", 20, 11.0),
        (2, "mon", 10, 2.0),
        (3, "tue", 12, 33.0),
        (4, "tue", 20, 4.0),
    ]


@BY_TASKS
def test_a_check_for_conflicts_writes_nothing(save: Any, rows: Any, spark: Any, path: str) -> None:
    save(THREE)
    changed = spark.createDataFrame([(1, "mon", 20, 11.0)], COLUMNS)
    with hoodoo.spark.table(spark, path) as table:
        assert table.check_conflicts(changed) == ()
    assert rows() == THREE


def test_a_batch_without_rows_changes_no_schema(
    save: Any, rows: Any, spark: Any, path: str
) -> None:
    save(THREE)
    with hoodoo.open_table(path) as table:
        before = table.schema
    for operation in ("upsert", "insert", "delete", "insert_overwrite"):
        save([], columns="id string, other double", **{OPERATION: operation})
        assert hoodoo.spark.last_result(spark).schema_changes == ()
    with hoodoo.open_table(path) as table:
        assert table.schema == before
    assert rows() == THREE
    save([], **{OPERATION: "insert_overwrite_table"})
    assert rows() == []


def test_columns_of_nulls_take_the_types_of_the_table(
    save: Any, rows: Any, spark: Any, path: str
) -> None:
    save(THREE)
    df = spark.sql("select 4L id, 'wed' day, 10L at, null amount")
    df.write.format("hoodoo").options(**OPTIONS).mode("append").save(path)
    assert hoodoo.spark.last_result(spark).schema_changes == ()
    assert (4, "wed", 10, None) in rows()

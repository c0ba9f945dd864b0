"""Streams into and out of a table: refusals, and the session's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from hoodoo.spark.options import layers_without_session, session_settings
from tests.spark.conftest import COLUMNS, Row
from timeline.errors import InvalidInputError

pytestmark = pytest.mark.spark

THREE: list[Row] = [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0), (3, "tue", 10, 3.0)]


def writer(spark: Any, tmp_path: Path) -> Any:
    source = str(tmp_path / "source")
    spark.createDataFrame([(7, "wed", 11, 7.0)], COLUMNS).write.parquet(source)
    stream = spark.readStream.schema(COLUMNS).parquet(source).writeStream.format("hoodoo")
    return stream.option("checkpointLocation", str(tmp_path / "checkpoint"))


def test_micro_batches_without_a_repeatable_id_are_refused(
    save: Any, spark: Any, path: str, tmp_path: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(THREE)
    # As with PYSPARK_PIN_THREAD=false, where a Python thread has no thread of its own in Java.
    monkeypatch.setattr(SparkContext, "getLocalProperty", lambda *_: None)
    query = writer(spark, tmp_path).trigger(availableNow=True).start(path)
    with pytest.raises(Exception, match="PYSPARK_PIN_THREAD"):
        query.awaitTermination()
    assert rows() == THREE


def test_output_mode_complete_is_refused(spark: Any, path: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="output mode complete"):
        writer(spark, tmp_path).outputMode("complete").start(path)


def test_a_stream_names_the_partition_columns_of_a_new_table(
    spark: Any, path: str, tmp_path: Path
) -> None:
    stream = writer(spark, tmp_path).option("hoodie.datasource.write.recordkey.field", "id")
    stream.partitionBy("day").trigger(availableNow=True).start(path).awaitTermination()
    assert Path(path, "wed").is_dir()


def test_partition_columns_of_a_stream_to_another_format_pass_through(
    spark: Any, path: str, tmp_path: Path
) -> None:
    stream = writer(spark, tmp_path).format("parquet").partitionBy("day")
    stream.trigger(availableNow=True).start(path).awaitTermination()
    assert Path(path, "day=wed").is_dir()


def test_a_stream_is_read_by_the_settings_of_its_session(save: Any, spark: Any, path: str) -> None:
    if not hasattr(spark, "dataSource"):
        pytest.skip("this Spark has no Python data sources")
    save(THREE)
    spark.conf.set("spark.hoodie.datasource.query.type", "of the session")
    try:
        with pytest.raises(Exception, match="of the session"):
            spark.readStream.format("hoodoo").load(path)
        stream = spark.readStream.format("hoodoo")
        stream = stream.option("hoodie.datasource.query.type", "snapshot").load(path)
    finally:
        spark.conf.unset("spark.hoodie.datasource.query.type")
    assert stream.isStreaming


def test_store_options_are_passed_to_a_process_without_a_session(spark: Any) -> None:
    spark.conf.set("spark.hadoop.fs.s3a.endpoint", "http://store:9000")
    try:
        carried = session_settings(spark)
    finally:
        spark.conf.unset("spark.hadoop.fs.s3a.endpoint")
    found = layers_without_session({**carried, "path": "s3a://bucket/t"}).load()
    assert found["fs.s3a.endpoint"] == "http://store:9000"
    assert "path" not in found

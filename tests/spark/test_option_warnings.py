"""Options on Spark: warnings once, values from SET, and the start of a stream."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hoodoo
import hoodoo.spark
from tests.spark.conftest import COLUMNS, OPTIONS, Row
from tests.spark.streams import run_to_its_end
from timeline.errors import SettingError

pytestmark = pytest.mark.spark

THREE: list[Row] = [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0), (3, "tue", 10, 3.0)]
METRICS = "hoodie.metrics.on"


@contextmanager
def heard() -> Iterator[list[str]]:
    """The warnings about options."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(one.message) for one in caught if "hoodie" in str(one.message)]


@contextmanager
def session_values(spark: Any, **values: str) -> Iterator[None]:
    """Set values by SQL's SET, and unset them afterwards."""
    named = {key.replace("__", "."): value for key, value in values.items()}
    try:
        for key, value in named.items():
            spark.sql(f"SET {key}={value}")
        yield
    finally:
        for key in named:
            spark.conf.unset(key)


def test_a_save_and_a_load_each_report_ignored_options_once(save: Any, rows: Any) -> None:
    more = {METRICS: "true", "hoodie.datasource.write.recordkey.feild": "id"}
    more["hoodie.metadata.index.async"] = "true"
    with heard() as texts:
        save(THREE, **more)
    assert len(texts) == 1
    assert "hoodoo sends no metrics" in texts[0]
    assert "an index is built at once, while writers write" in texts[0].lower()
    assert "did you mean hoodie.datasource.write.recordkey.field" in texts[0]
    with heard() as texts:
        assert rows(**more) == THREE
    assert len(texts) == 1
    with heard() as texts:
        save(
            THREE,
            **{"hoodie.embed.timeline.server": "true", "hoodie.insert.shuffle.parallelism": "2"},
        )
    assert texts == []


def test_options_of_other_formats_are_refused_or_reported(
    spark: Any, path: str, save: Any, rows: Any
) -> None:
    prefixed = {"hoodie__datasource__write__commitmeta__key__prefix": "job.", "job__run": "7"}
    with heard() as texts:
        save(THREE, _run="7")
        save(THREE, **prefixed)  # entries of the commit
        with session_values(spark, hoodie__datasource__write__commitmeta__key__prefix="job."):
            save(THREE, job__run="8")
    assert texts == []
    with hoodoo.open_table(path) as table:
        newest = next(iter(table.snapshot.commits_newest_first()))
    assert newest.extra_metadata["job.run"] == "8"
    with heard() as texts:
        save(THREE, mergeSchema="true", partitionOverwriteMode="static")
    assert len(texts) == 1
    assert texts[0].endswith("begin with hoodie.: mergeSchema")
    with pytest.raises(SettingError, match=r"use as\.of\.instant"):
        rows(timestampAsOf="2020-01-01")
    with pytest.raises(SettingError, match="insert_overwrite"):
        save(THREE, mode="overwrite", replaceWhere="day = 'mon'")
    assert rows() == THREE


def test_a_spark_table_reports_ignored_options_once(save: Any, spark: Any, path: str) -> None:
    save(THREE)
    with heard() as texts, hoodoo.spark.table(spark, path, {METRICS: "true"}) as table:
        table.upsert(spark.createDataFrame(THREE, COLUMNS))
        assert table.to_df().count() == len(THREE)
    assert len(texts) == 1


@pytest.mark.slow
def test_a_stream_reports_ignored_options_once_for_all_batches(
    spark: Any, path: str, tmp_path: Path
) -> None:
    for number in range(3):
        source = spark.createDataFrame([(number, "wed", 11, 7.0)], COLUMNS)
        source.coalesce(1).write.mode("append").parquet(str(tmp_path / "source"))
    stream = (
        spark.readStream.schema(COLUMNS)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "source"))
        .writeStream.format("hoodoo")
        .options(**OPTIONS, **{METRICS: "true"})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with heard() as texts:
        stream.start(path).awaitTermination()
    with hoodoo.open_table(path) as table:
        assert len([one for one in table.timeline if one.action == "commit"]) == 3
    assert len(texts) == 1


def test_set_options_reach_writes_and_reads_and_explicit_options_win(
    save: Any, spark: Any, path: str, rows: Any
) -> None:
    save(THREE)
    first = spark.read.format("hoodoo").load(path).first()["_hoodie_commit_time"]
    operation = "hoodie__datasource__write__operation"
    with session_values(spark, **{operation: "insert"}):
        save([(1, "mon", 11, 9.0)])
        assert len(rows()) == 4, "an insert searches for no key"
        save([(1, "mon", 12, 8.0)], **{operation: "upsert"})
        assert (1, "mon", 10, 1.0) not in rows()
    with session_values(spark, as__of__instant=first):
        assert len(rows()) != 3, "only keys of Hudi's and ours count"
    begin = {"hoodie__datasource__read__begin__instanttime": "2999-01-01"}
    with session_values(spark, hoodie__datasource__query__type="incremental", **begin):
        assert rows() == []
    with session_values(spark, hoodie__clean__automtic="true"), heard() as texts:
        rows()
    assert [text for text in texts if "did you mean hoodie.clean.automatic" in text]


def test_set_options_win_over_the_initial_session_options(spark: Any, save: Any, path: str) -> None:
    spark.conf.set("spark.hoodie.write.application.id", "begun")
    try:
        with session_values(spark, hoodie__write__application__id="set"):
            save(THREE)
            with hoodoo.spark.table(spark, path) as table:
                assert table.properties["hoodie.write.application.id"] == "set"
        with hoodoo.spark.table(spark, path) as table:
            assert table.properties["hoodie.write.application.id"] == "begun"
    finally:
        spark.conf.unset("spark.hoodie.write.application.id")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie__datasource__merge__type", "skip_merge"),
        ("hoodie__datasource__read__incr__path__glob", "mon*"),
    ],
)
def test_options_of_one_load_are_refused_for_a_session(
    spark: Any, save: Any, rows: Any, key: str, value: str
) -> None:
    save(THREE)
    with session_values(spark, **{key: value}), pytest.raises(SettingError, match="option"):
        rows()


@pytest.mark.slow
@pytest.mark.parametrize(("offset", "expected"), [("earliest", [1, 2, 3, 4]), ("latest", [4])])
def test_a_stream_begins_at_the_time_of_its_option(
    save: Any, spark: Any, path: str, tmp_path: Path, offset: str, expected: list[int]
) -> None:
    if not hasattr(spark, "dataSource"):
        pytest.skip("Spark streams from Python since 4.0")
    save(THREE)
    out, seen = str(tmp_path / "out"), str(tmp_path / "seen")

    def run() -> Any:
        reader = spark.readStream.format("hoodoo")
        reader = reader.option("hoodie.datasource.streaming.startOffset", offset)
        stream = reader.load(path).writeStream.format("parquet")
        stream = stream.option("checkpointLocation", seen).trigger(availableNow=True)
        return stream.start(out)

    run_to_its_end(run)
    save([(4, "wed", 11, 4.0)])
    run_to_its_end(run)
    found = spark.read.schema("id long").parquet(out)
    assert sorted(row.id for row in found.collect()) == expected

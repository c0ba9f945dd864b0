"""Spark shows a table's rows whether it reads the files or our tasks merge them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

import hoodoo
from filegroups.schema.schema import META_COLUMNS
from hoodoo.spark.session import local_session
from tests.interop import golden_tables

pytestmark = pytest.mark.spark

DATA = Path(__file__).resolve().parents[1] / "unit" / "timeline" / "data"
FOUND = Path(__file__).resolve().parents[1] / "interop" / "found"
QUERY = "hoodie.datasource.query.type"
BEGIN = "hoodie.datasource.read.begin.instanttime"
END = "hoodie.datasource.read.end.instanttime"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    session = local_session("reading")
    yield session
    session.stop()


def loaded(spark: Any, path: Path, **options: str) -> list[dict[str, Any]]:
    found = spark.read.format("hoodoo").options(**options).load(str(path)).collect()
    return in_order(row.asDict(recursive=True) for row in found)


def in_order(rows: Any) -> list[dict[str, Any]]:
    kept = [{key: row[key] for key in row if key != "_hoodie_commit_seqno"} for row in rows]
    return sorted(kept, key=lambda row: (row["_hoodie_record_key"], row["_hoodie_commit_time"]))


#: A pending compaction: slices with and without logs side by side.
PENDING = "v9_mor_compaction_pending"


def test_slices_with_and_without_logs_are_one_table(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack(PENDING, tmp_path)
    account = golden_tables.account(PENDING)
    assert loaded(spark, path) == in_order(account["snapshot"])
    found = loaded(spark, path, **{QUERY: "read_optimized"})
    assert found == in_order(account["read_optimized"])


def test_ranges_and_times_are_java_s(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack(PENDING, tmp_path)
    account = golden_tables.account(PENDING)
    for asked in account["incremental"]:
        range_of = {QUERY: "incremental", BEGIN: asked["start"]}
        if asked["end"]:
            range_of[END] = asked["end"]
        assert loaded(spark, path, **range_of) == in_order(asked["rows"])
    for time, theirs in account["as_of"].items():
        if not isinstance(theirs, dict):
            assert loaded(spark, path, **{"as.of.instant": time}) == in_order(theirs)


def test_columns_and_types_are_the_requested_ones(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack(PENDING, tmp_path)
    df = spark.read.format("hoodoo").schema("val double, id string").load(str(path))
    assert df.columns == ["val", "id"]
    expected = {row["id"]: row["val"] for row in golden_tables.account(PENDING)["snapshot"]}
    assert {row["id"]: row["val"] for row in df.collect()} == expected
    assert df.where("id = 'a00'").count() == 1


def test_every_type_is_read_through_a_merging_task(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_all_types", tmp_path)
    snapshot = golden_tables.account("v9_all_types")["snapshot"]
    found = loaded(spark, path)
    assert [row["id"] for row in found] == [row["id"] for row in in_order(snapshot)]
    assert set(found[0]) == set(snapshot[0])


def test_renamed_columns_are_read_by_our_tasks(spark: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(DATA / "v9_schema_on_read_cow.zip") as archive:
        archive.extractall(tmp_path)
    [path] = tmp_path.iterdir()
    df = spark.read.format("hoodoo").load(str(path)).select("id", "a2", "w", "gone")
    rows = sorted(tuple(row) for row in df.collect())
    assert rows == [("a", 1, "3", None), ("b", 20, "text", 9)]


@pytest.mark.parametrize(
    "name", ["trips_logical_types_json_cow_read_v6", "trips_logical_types_json_mor_read_v8"]
)
def test_timestamps_of_older_writers_equal_javas(spark: Any, tmp_path: Path, name: str) -> None:
    account = json.loads((FOUND / f"{name}.json").read_text(encoding="utf-8"))
    with zipfile.ZipFile(FOUND / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    df = spark.read.format("hoodoo").load(str(tmp_path / name))
    texts = [
        F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS") if "ts_" in column else F.col(column)
        for column in account["columns"]
    ]
    found = sorted([list(row) for row in df.select(*texts).collect()], key=str)
    told = [
        [f"{one}.000000" if at > 1 and "." not in one else one for at, one in enumerate(row)]
        for row in account["snapshot"]
    ]
    assert found == sorted(told, key=str)
    late = df.where("ts_millis >= timestamp'2020-01-01 00:00:00Z'").count()
    assert late == sum(row[2] >= "2020-01-01" for row in told)


def test_vectors_are_arrays_and_are_written_back(spark: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(FOUND / "vector_mor.zip") as archive:
        archive.extractall(tmp_path)
    path = str(tmp_path / "vector_mor")
    with hoodoo.open_table(path) as table:  # the archive lacks its metadata table
        table.metadata.drop()
    df = spark.read.format("hoodoo").load(path).drop(*META_COLUMNS)
    before = {row["id"]: row.asDict() for row in df.collect()}
    assert before[1]["embedding3"] == [3] * 128
    changed = df.where("id = 2").withColumn("name", F.lit("changed"))
    changed.write.format("hoodoo").options(**{"hoodie.datasource.write.operation": "upsert"}).mode(
        "append"
    ).save(path)
    after = {row["id"]: row.asDict() for row in spark.read.format("hoodoo").load(path).drop(*META_COLUMNS).collect()}  # fmt: skip
    assert after == {1: before[1], 2: before[2] | {"name": "changed"}}

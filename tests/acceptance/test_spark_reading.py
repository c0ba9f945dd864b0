"""Spark shows a table's rows whether it reads the files or our tasks merge them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hoodoo.spark.local_session import local_session
from tests.interop import golden_tables

pytestmark = pytest.mark.spark

DATA = Path(__file__).resolve().parents[1] / "unit" / "timeline" / "data"
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


def test_columns_and_types_are_those_asked_for(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack(PENDING, tmp_path)
    df = spark.read.format("hoodoo").schema("val double, id string").load(str(path))
    assert df.columns == ["val", "id"]
    expected = {row["id"]: row["val"] for row in golden_tables.account(PENDING)["snapshot"]}
    assert {row["id"]: row["val"] for row in df.collect()} == expected
    assert df.where("id = 'a00'").count() == 1


def test_every_type_comes_through_a_merging_task(spark: Any, tmp_path: Path) -> None:
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

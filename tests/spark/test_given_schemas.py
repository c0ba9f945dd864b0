"""Spark's own reader of Parquet and our tasks read alike, for any schema and session."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo

pytestmark = pytest.mark.spark

LONG_AGO = date(1200, 2, 3)
RANGE = {
    "hoodie.datasource.query.type": "incremental",
    "hoodie.datasource.read.begin.instanttime": "earliest",
}
SCHEMA = pa.schema(
    [("id", pa.string()), ("day", pa.string()), ("v", pa.int64()), ("born", pa.date32())]
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of two file groups: one is a base file, the other has a log as well."""
    path = str(tmp_path / "t")
    with hoodoo.create_table(
        path, schema=SCHEMA, record_key="id", partition_by="day", table_type="MERGE_ON_READ"
    ) as table:
        rows = [("a", "mon", 1), ("b", "tue", 1)]
        table.upsert(of(rows))
        table.upsert(of([("b", "tue", 2)]))
    return path


def of(rows: list[tuple[str, str, int]]) -> pa.Table:
    named = [dict(zip(SCHEMA.names, (*row, LONG_AGO), strict=True)) for row in rows]
    return pa.Table.from_pylist(named, schema=SCHEMA)


@pytest.fixture
def session_set(spark: Any) -> Iterator[Any]:
    keys: list[str] = []

    def say(key: str, value: str) -> None:
        keys.append(key)
        spark.conf.set(key, value)

    yield say
    for key in keys:
        spark.conf.unset(key)


def loaded(spark: Any, path: str, schema: str, **options: str) -> list[tuple[Any, ...]]:
    df = spark.read.format("hoodoo").options(**options).schema(schema).load(path)
    return sorted(tuple(row) for row in df.collect())


def test_columns_are_found_in_any_case_and_those_the_table_lacks_are_null(
    spark: Any, path: str
) -> None:
    assert loaded(spark, path, "ID string, later double") == [("a", None), ("b", None)]


def test_a_schema_without_a_column_of_the_table_still_counts_the_rows(
    spark: Any, path: str
) -> None:
    assert loaded(spark, path, "later map<string, int>") == [(None,), (None,)]


def test_a_range_is_read_without_the_column_that_selects_its_rows(spark: Any, path: str) -> None:
    assert loaded(spark, path, "v long", **RANGE) == [(1,), (2,)]


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_old_dates_are_read_as_written_under_every_rebase_mode(
    spark: Any, path: str, session_set: Any, mode: str
) -> None:
    session_set("spark.sql.parquet.datetimeRebaseModeInRead", mode)
    assert loaded(spark, path, "born date") == [(LONG_AGO,), (LONG_AGO,)]


def test_rows_of_a_lost_file_raise_an_error_under_every_session_setting(
    spark: Any, path: str, session_set: Any
) -> None:
    session_set("spark.sql.files.ignoreMissingFiles", "true")
    df = spark.read.format("hoodoo").load(path)
    [lost] = Path(path, "mon").glob("*.parquet")
    lost.unlink()
    with pytest.raises(Exception, match=lost.name):
        df.collect()

"""A table for dataframe tools: streams, lazy scans, datasets. The tools of all kinds: integration."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from timeline.errors import InvalidInputError, UnsafeSetupError

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("v", pa.int64())])


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hoodoo.Table]:
    with hoodoo.create_table(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="day", table_type=request.param
    ) as made:
        made.upsert([{"id": str(n), "day": "ab"[n // 5], "v": n} for n in range(10)])
        made.upsert([{"id": "7", "day": "b", "v": 77}])
        yield made


def test_a_table_and_a_snapshot_are_arrow_streams(table: hoodoo.Table) -> None:
    with table.pin() as state:
        table.delete([{"id": "7", "day": "b"}])
        assert pa.table(state).num_rows == pl.DataFrame(state).height == 10
    assert pa.table(table).num_rows == pl.DataFrame(table).height == 9
    assert pa.table(table).schema == SCHEMA


def test_rows_are_counted_with_and_without_a_filter(table: hoodoo.Table) -> None:
    assert table.count() == 10
    assert table.count("v > 5 AND day = 'b'") == 4
    assert table.count(partitions=["a"]) == 5
    assert table.to_pyarrow_dataset().count_rows() == 10
    assert table.to_pyarrow_dataset().scanner(columns=[]).count_rows() == 10


def test_a_dataset_scans_only_the_requested_columns_and_rows(table: hoodoo.Table) -> None:
    rows = table.to_pyarrow_dataset()
    assert rows.schema == SCHEMA
    found = rows.to_table(columns=["v"], filter=pc.field("v") > 8).to_pydict()
    assert sorted(found["v"]) == [9, 77]
    doubled = {"w": pc.field("v") * 2}
    assert sorted(rows.to_table(columns=doubled, filter=pc.field("v") > 8)["w"].to_pylist()) == [
        18,
        154,
    ]
    assert rows.head(3).num_rows == 3
    assert sum(batch.num_rows for batch in rows.to_batches(filter=pc.field("day") == "a")) == 5
    with pytest.raises(InvalidInputError, match="to_table"):
        rows.sort_by("v")


def test_frames_of_each_library_have_the_rows_of_the_filter(table: hoodoo.Table) -> None:
    condition = "v > 8"
    wanted = [{"id": "7", "v": 77}, {"id": "9", "v": 9}]
    frame = table.to_pandas(["id", "v"], condition).sort_values("id")
    assert frame.to_dict("records") == wanted
    assert table.to_polars(["id", "v"], condition).sort("id").to_dicts() == wanted
    lazy = table.scan_polars().filter(pl.col("v") > 8).select("id", "v")
    assert lazy.collect().sort("id").to_dicts() == wanted
    for relation in (table.to_duckdb(), table.to_duckdb(duckdb.connect())):
        found = relation.filter(condition).project("id, v").order("id").fetchall()
        assert found == [("7", 77), ("9", 9)]


def test_a_missing_package_is_named(table: hoodoo.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without_polars(name: str, *more: Any) -> Any:
        if name == "polars":
            raise ImportError(name)
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_polars)
    with pytest.raises(UnsafeSetupError, match=r"hoodoo\[polars\]"):
        table.to_polars()

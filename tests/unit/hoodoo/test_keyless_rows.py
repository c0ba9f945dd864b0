"""Rows of a table without key fields are found again by the meta columns that they carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from hoodoo.table import Table
from timeline.errors import InvalidInputError

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.int64())])
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def table_of(root: Path, table_type: str = "COPY_ON_WRITE", **options: Any) -> Table:
    properties = {"hoodie.table.cdc.enabled": "true"} if options.pop("cdc", False) else {}
    table = hoodoo.create_table(
        root, schema=SCHEMA, table_type=table_type, properties=properties, **options
    )
    table.insert(pa.table({"id": [1, 2, 3], "p": ["x", "x", "y"], "v": [10, 20, 30]}))
    return table


def read(table: Table) -> pa.Table:
    return table.current_state().to_arrow(with_hoodie_columns=True).sort_by("id")


def with_v(rows: pa.Table, value: int) -> pa.Table:
    column = pa.array([value] * rows.num_rows, pa.int64())
    return rows.set_column(rows.schema.get_field_index("v"), "v", column)


def pairs(table: Table) -> list[tuple[int, int]]:
    rows = table.to_arrow(columns=["id", "v"]).to_pylist()
    return sorted((row["id"], row["v"]) for row in rows)


@pytest.mark.parametrize("cdc", [False, True])
@pytest.mark.parametrize("partition_by", [[], ["p"]])
@pytest.mark.parametrize("table_type", TYPES)
def test_read_rows_are_replaced_and_deleted(
    tmp_path: Path, table_type: str, partition_by: list[str], cdc: bool
) -> None:
    with table_of(tmp_path / "t", table_type, partition_by=partition_by, cdc=cdc) as table:
        before = read(table)
        since = table.timeline[-1].completion_time
        result = table.upsert(with_v(before.slice(0, 2), 99))
        assert (result.rows_updated, result.rows_inserted) == (2, 0)
        assert pairs(table) == [(1, 99), (2, 99), (3, 30)]
        keys = read(table).column("_hoodie_record_key").to_pylist()
        assert keys == before.column("_hoodie_record_key").to_pylist()
        table.delete(before.slice(1, 2))
        assert pairs(table) == [(1, 99)]
        images = table.changes(since, images=True).read_all()
        assert sorted(images.column("op").to_pylist()) == ["d", "d", "u", "u"]


def test_a_delete_needs_the_meta_columns_only(tmp_path: Path) -> None:
    with table_of(tmp_path / "t", partition_by=["p"]) as table:
        wanted = ["_hoodie_record_key", "_hoodie_partition_path"]
        table.delete(read(table).slice(0, 1).select(wanted))
        assert pairs(table) == [(2, 20), (3, 30)]


def test_a_filter_names_rows_to_delete_without_key_fields(tmp_path: Path) -> None:
    with table_of(tmp_path / "t", "MERGE_ON_READ", partition_by=["p"]) as table:
        table.delete(pc.field("v") > 15)
        assert pairs(table) == [(1, 10)]


def test_an_upsert_without_meta_columns_inserts(tmp_path: Path) -> None:
    with table_of(tmp_path / "t") as table:
        batch = {"batch_id": "b"}
        result = table.upsert(pa.table({"id": [1], "p": ["x"], "v": [11]}), **batch)
        assert (result.operation, result.rows_inserted) == ("insert", 1)
        assert table.upsert(pa.table({"id": [1], "p": ["x"], "v": [11]}), **batch).already_published
        assert pairs(table) == [(1, 10), (1, 11), (2, 20), (3, 30)]


@pytest.mark.parametrize("table_type", TYPES)
def test_rows_that_are_not_in_the_table_are_refused(tmp_path: Path, table_type: str) -> None:
    with table_of(tmp_path / "t", table_type) as table, table_of(tmp_path / "o") as other:
        strange = read(other)
        with pytest.raises(InvalidInputError) as refused:
            table.upsert(strange)
        assert refused.value.kind == "unknown_record_key"
        assert table.delete(strange).rows_deleted == 0
        gone = read(table).slice(0, 1)
        table.delete(gone)
        with pytest.raises(InvalidInputError) as refused:
            table.upsert(gone)
        assert refused.value.kind == "unknown_record_key"
        assert pairs(table) == [(2, 20), (3, 30)]


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("_hoodie_record_key", None, "null_key"),
        ("_hoodie_partition_path", None, "bad_partition_value"),
        ("_hoodie_partition_path", "../t", "bad_partition_value"),
        ("_hoodie_partition_path", ".hoodie", "bad_partition_value"),
        ("p", "z", "moved_row"),
    ],
)
def test_meta_columns_that_name_no_row_are_refused(
    tmp_path: Path, column: str, value: str | None, kind: str
) -> None:
    with table_of(tmp_path / "t", partition_by=["p"]) as table:
        rows = read(table)
        number = rows.schema.get_field_index(column)
        values = [value, *rows.column(number).to_pylist()[1:]]
        rows = rows.set_column(number, column, pa.array(values, pa.string()))
        with pytest.raises(InvalidInputError) as refused:
            table.upsert(rows)
        assert refused.value.kind == kind
        assert pairs(table) == [(1, 10), (2, 20), (3, 30)]


def test_some_columns_of_read_rows_are_changed(tmp_path: Path) -> None:
    with table_of(tmp_path / "t") as table:
        rows = read(table).slice(0, 1).select(["_hoodie_record_key", "v"])
        table.upsert(with_v(rows, 5), partial=True)
        assert pairs(table) == [(1, 5), (2, 20), (3, 30)]

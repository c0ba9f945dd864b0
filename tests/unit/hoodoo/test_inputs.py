"""Rows are taken over from everything that holds rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset as ds

import hoodoo
from hoodoo.inputs import to_arrow_table
from timeline.errors import InvalidInputError

ROWS = [{"id": "a", "v": 1}, {"id": "b", "v": 2}]
TABLE = pa.Table.from_pylist(ROWS)


class Stream:
    """Anything with the Arrow C stream."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        pl.DataFrame(ROWS),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS, index=["x", "y"]),
        duckdb.sql("select * from (values ('a', 1), ('b', 2)) t(id, v)"),
        ROWS,
        tuple(ROWS),
        Stream(),
        ds.dataset(TABLE),
        pl.LazyFrame(ROWS).filter(pl.col("v") > 0),
        {"id": ["a", "b"], "v": np.array([1, 2])},
        {"id": pa.chunked_array([["a"], ["b"]]), "v": (1, 2)},
        (row for row in ROWS),
        iter(TABLE.to_batches(1)),
        [TABLE.slice(0, 1), TABLE.slice(1)],
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_kind_gives_the_same_rows(data: object):
    taken = to_arrow_table(data)
    assert isinstance(taken, pa.Table)
    assert taken.to_pylist() == ROWS
    assert taken.schema.metadata is None


@pytest.mark.parametrize(
    "data",
    [
        *(7, "rows", b"rows", [1, 2], [["a", 1]], None, object(), {1, 2}),
        {"id": "a", "v": 1},
        {"id": ["a"], "v": [1, 2]},
        [TABLE, ROWS[0]],
        [TABLE, TABLE.select(["id"])],
    ],
)
def test_anything_else_is_refused(data: object):
    with pytest.raises(InvalidInputError) as caught:
        to_arrow_table(data)
    assert caught.value.kind == "data"


def test_a_dict_of_columns_takes_the_types_of_the_table() -> None:
    known = pa.schema([("id", pa.string()), ("v", pa.decimal128(5, 2))])
    taken = to_arrow_table({"v": [1, None], "id": ["a", "b"]}, lambda: known)
    assert taken.schema.field("v").type == pa.decimal128(5, 2)


def test_a_table_takes_the_rows_of_a_file(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("id,v\nc,3\n")
    with hoodoo.create_table(tmp_path / "t", schema=TABLE.schema, record_key="id") as table:
        table.upsert(tmp_path / "rows.parquet")
        table.upsert(str(tmp_path / "rows.csv"))
        assert table.count() == 3
        with pytest.raises(InvalidInputError, match="input file does not exist"):
            table.upsert(tmp_path / "gone.parquet")


@pytest.mark.parametrize("value", ["text", [1], {"x": 1}])
def test_columns_of_two_types_are_refused(value: object):
    with pytest.raises(InvalidInputError) as caught:
        to_arrow_table([{"v": 1}, {"v": value}])
    assert caught.value.kind == "data"


def test_no_rows_are_no_columns():
    assert to_arrow_table([]).num_rows == 0


def test_row_labels_of_pandas_never_become_a_column():
    filtered = pd.DataFrame(ROWS)[lambda frame: frame["v"] > 1]
    assert to_arrow_table(filtered).to_pylist() == [{"id": "b", "v": 2}]


def test_a_pandas_series_is_no_table():
    with pytest.raises(InvalidInputError):
        to_arrow_table(pd.Series([1, 2], name="v"))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda table: table.write(ROWS, operation="merge"), "operation"),
        (lambda table: table.check_conflicts(ROWS, "merge"), "operation"),
        (lambda table: table.upsert(ROWS, reads="all"), "reads"),
        (lambda table: table.upsert(ROWS, batch_id=5), "batch_id"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, call: Any, kind: str) -> None:
    with hoodoo.create_table(tmp_path / "t", record_key="id") as table:
        with pytest.raises(InvalidInputError) as caught:
            call(table)
        assert caught.value.kind == kind
        assert not table.timeline


def test_a_schema_is_one_of_arrow(tmp_path: Path) -> None:
    wrong: Any = {"id": "string"}
    with pytest.raises(InvalidInputError, match=r"pyarrow\.Schema, not dict"):
        hoodoo.create_table(tmp_path / "t", schema=wrong, record_key="id")
    assert not (tmp_path / "t").exists()


def test_an_operation_may_be_given_by_name(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", record_key="id") as table:
        assert table.write(ROWS, "INSERT").operation == "insert"
        assert table.check_conflicts(ROWS, "upsert") == ()

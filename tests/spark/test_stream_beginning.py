"""Where a stream begins: at the start of a range, in every form that reads of a range take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.spark.schema import spark_schema_of
from timeline.errors import InvalidInputError

datasource = pytest.importorskip("hoodoo.spark.datasource", reason="Spark has them since 4.0")

BEGIN = "hoodie.datasource.read.begin.instanttime"
ROW = {"id": "a", "v": 0}


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    rows = hoodoo.inputs.to_arrow_table([ROW])
    with hoodoo.create_table(path, schema=rows.schema, record_key="id") as table:
        table.upsert(rows)
    return path


def source(path: str, begin: str) -> Any:
    with hoodoo.open_table(path) as table:
        schema = spark_schema_of(table.schema)
    return datasource.HoodooStreamSource({"path": path, BEGIN: begin}, schema)


@pytest.mark.parametrize(
    "begin", ["earliest", "Earliest", "0", "000", "2024-01-01", "20240101000000"]
)
def test_a_stream_that_begins_before_a_row_returns_it(path: str, begin: str) -> None:
    stream = source(path, begin)
    partitions = stream.partitions(stream.initialOffset(), stream.latestOffset())
    try:
        assert [r for one in partitions for b in stream.read(one) for r in b.to_pylist()] == [ROW]
    finally:
        stream.stop()


def test_a_stream_that_begins_later_waits(path: str) -> None:
    stream = source(path, "2999-01-01")
    assert (
        stream.latestOffset() == stream.initialOffset() == {"completion_time": "29990101000000000"}
    )


def test_a_beginning_that_is_no_time_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputError, match="tomorrow"):
        source(path, "tomorrow").initialOffset()

"""A stream's micro-batch holds the files it reads, from its plan until the next one is asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.spark.schemas import spark_schema_of
from tableservices.cleaning.execute import clean
from tableservices.cleaning.settings import CleaningSettings
from timeline.reading.reader_lease import registered_readers

datasource = pytest.importorskip("hoodoo.spark.datasource", reason="Spark has them since 4.0")

ROW = {"id": "a", "v": 0}
EARLIEST = {"completion_time": "0"}


@pytest.fixture
def table(tmp_path: Path) -> Any:
    properties = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    path = str(tmp_path / "t")
    rows = hoodoo.incoming.as_arrow([ROW])
    with hoodoo.create_table(
        path, schema=rows.schema, record_key="id", properties=properties
    ) as made:
        made.upsert(rows)
        yield made


@pytest.fixture
def source(table: Any, tmp_path: Path) -> Any:
    options = {"path": str(tmp_path / "t")}
    made = datasource.HoodooStreamSource(options, spark_schema_of(table.core.schema))
    yield made
    made.stop()


def ids_and_values(source: Any, partitions: Any) -> list[Any]:
    return [row for one in partitions for batch in source.read(one) for row in batch.to_pylist()]


def test_a_batch_is_read_although_its_files_were_cleaned_meanwhile(table: Any, source: Any) -> None:
    partitions = source.partitions(EARLIEST, source.latestOffset())
    source.held.beat()  # as two seconds later
    for value in range(1, 4):
        table.upsert([{**ROW, "v": value}])
    clean(table.core.context, CleaningSettings(commits_retained=1))
    assert ids_and_values(source, partitions) == [ROW]


def test_a_batch_is_let_go_when_the_next_one_is_asked_for(table: Any, source: Any) -> None:
    context = table.core.context
    first = source.latestOffset()
    source.partitions(EARLIEST, first)
    assert registered_readers(context) == []  # a short batch writes nothing
    source.held.beat()
    [reader] = registered_readers(context)
    assert (reader.alive, reader.newest) == (True, first["completion_time"])
    assert source.latestOffset() == first
    assert registered_readers(context) == []


@pytest.mark.parametrize("end", ["commit", "stop"])
def test_a_batch_is_let_go_when_it_is_done_and_when_the_stream_ends(
    table: Any, source: Any, end: str
) -> None:
    source.partitions(EARLIEST, source.latestOffset())
    source.held.beat()
    source.commit({}) if end == "commit" else source.stop()
    assert registered_readers(table.core.context) == []


def test_tasks_get_a_source_that_holds_nothing(source: Any) -> None:
    source.partitions(EARLIEST, source.latestOffset())
    assert pickle.loads(pickle.dumps(source)).held is None
    assert source.held is not None

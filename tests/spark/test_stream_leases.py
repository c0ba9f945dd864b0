"""Streams hold the files of a micro-batch until the next one, tasks of views their own files."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.spark.leases import PinnedTask
from hoodoo.spark.schema import spark_schema_of
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from timeline.errors import StorageUnavailableError
from timeline.reader_lease import LONG_READ_MS, registered_readers

datasource = pytest.importorskip("hoodoo.spark.datasource", reason="Spark has them since 4.0")

ROW = {"id": "a", "v": 0}
EARLIEST = {"completion_time": "0"}


@pytest.fixture
def table(tmp_path: Path) -> Any:
    properties = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    path = str(tmp_path / "t")
    rows = hoodoo.inputs.to_arrow_table([ROW])
    with hoodoo.create_table(
        path, schema=rows.schema, record_key="id", properties=properties
    ) as made:
        made.upsert(rows)
        yield made


@pytest.fixture
def source(table: Any, tmp_path: Path) -> Any:
    options = {"path": str(tmp_path / "t")}
    made = datasource.HoodooStreamSource(options, spark_schema_of(table.schema))
    yield made
    made.stop()


def leases_of_a_short_read(context: Any, began_s: float) -> list[Any]:
    """The leases; nothing about a read that a busy machine made long."""
    shown = registered_readers(context)
    return shown if (time.monotonic() - began_s) * 1000 < LONG_READ_MS else []


def ids_and_values(source: Any, partitions: Any) -> list[Any]:
    return [row for one in partitions for batch in source.read(one) for row in batch.to_pylist()]


def test_a_batch_is_read_although_its_files_were_cleaned_meanwhile(table: Any, source: Any) -> None:
    partitions = source.partitions(EARLIEST, source.latestOffset())
    source.held.beat()  # as two seconds later
    for value in range(1, 4):
        table.upsert([{**ROW, "v": value}])
    clean(table.context, CleaningSettings(commits_retained=1))
    assert ids_and_values(source, partitions) == [ROW]


def test_a_batch_is_released_when_the_next_one_is_requested(table: Any, source: Any) -> None:
    context = table.context
    first = source.latestOffset()
    began = time.monotonic()
    source.partitions(EARLIEST, first)
    assert leases_of_a_short_read(context, began) == []
    source.held.beat()
    [reader] = registered_readers(context)
    assert (reader.alive, reader.newest) == (True, first["completion_time"])
    assert source.latestOffset() == first
    assert registered_readers(context) == []


@pytest.mark.parametrize("end", ["commit", "stop"])
def test_a_batch_is_released_when_it_is_done_and_when_the_stream_ends(
    table: Any, source: Any, end: str
) -> None:
    source.partitions(EARLIEST, source.latestOffset())
    source.held.beat()
    source.commit({}) if end == "commit" else source.stop()
    assert registered_readers(table.context) == []


def test_tasks_get_a_source_without_a_lease(source: Any) -> None:
    source.partitions(EARLIEST, source.latestOffset())
    assert pickle.loads(pickle.dumps(source)).held is None
    assert source.held is not None


# ---------------------------------------------------------------- tasks of views


def test_a_long_task_pins_its_files_to_its_end(table: Any) -> None:
    context = table.context
    moment = context.snapshot().newest_completion
    table.upsert([{**ROW, "v": 1}])
    began = time.monotonic()
    with PinnedTask(lambda: hoodoo.open_table(context.ports.storage.base_uri), moment) as held:
        assert leases_of_a_short_read(context, began) == []
        held.beat()
        held.beat()
        [reader] = registered_readers(context)
        assert (reader.alive, reader.oldest, reader.newest) == (True, moment, moment)
    assert registered_readers(context) == []


def test_a_view_is_read_although_its_files_are_cleaned_during_its_task(
    table: Any, tmp_path: Path
) -> None:
    reader = datasource.HoodooDataSourceReader(
        {"path": str(tmp_path / "t")}, spark_schema_of(table.schema)
    )
    [partition] = reader.partitions()
    moment = partition.value[-1]
    assert moment == table.snapshot.newest_completion
    with PinnedTask(lambda: hoodoo.open_table(str(tmp_path / "t")), moment) as held:
        held.beat()
        for value in range(1, 4):
            table.upsert([{**ROW, "v": value}])
        clean(table.context, CleaningSettings(commits_retained=1))
        assert ids_and_values(reader, [partition]) == [ROW]


def test_a_task_continues_while_the_lease_cannot_be_written(table: Any) -> None:
    answers = [StorageUnavailableError("not now"), table]

    def opened() -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    with PinnedTask(opened, "20260101000000000") as held:
        with pytest.raises(StorageUnavailableError):  # an event of the thread that asks again
            held.beat()
        held.beat()
        assert len(registered_readers(table.context)) == 1

"""Saves and streams of Spark sync the catalog after each commit; a failure keeps the commit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hoodoo.sync.sync import sync_table
from tests.spark.conftest import COLUMNS, OPTIONS, Row
from tests.spark.streams import run_to_its_end
from tests.unit.hoodoo.sync.memory_catalog import MemoryCatalog
from timeline.errors import UnavailableError

pytestmark = pytest.mark.spark

SYNC = {
    "hoodie.datasource.hive_sync.enable": "true",
    "hoodie.datasource.hive_sync.mode": "hms",
    "hoodie.datasource.hive_sync.metastore.uris": "thrift://localhost:9083",
}
TWO: list[Row] = [(1, "mon", 10, 1.0), (2, "tue", 10, 2.0)]


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> MemoryCatalog:
    made = MemoryCatalog()
    run = partial(sync_table, catalog_of=lambda *_: made)
    monkeypatch.setattr("hoodoo.sync.service.sync_table", run)
    return made


def test_a_save_syncs_its_commit(save: Any, rows: Any, catalog: MemoryCatalog) -> None:
    save(TWO, **SYNC)
    assert set(catalog.registered) == {("mon",), ("tue",)}
    save([(3, "wed", 10, 3.0)], **SYNC)
    assert set(catalog.registered) == {("mon",), ("tue",), ("wed",)}
    assert set(catalog.entries) == {"orders"}


def test_a_stream_syncs_each_batch(
    spark: Any, path: str, tmp_path: Path, catalog: MemoryCatalog
) -> None:
    source = str(tmp_path / "source")
    spark.createDataFrame(TWO, COLUMNS).write.parquet(source)

    def start() -> Any:
        stream = spark.readStream.schema(COLUMNS).parquet(source).writeStream.format("hoodoo")
        return (
            stream.options(**OPTIONS, **SYNC)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(path)
        )

    run_to_its_end(start)
    assert set(catalog.registered) == {("mon",), ("tue",)}


def test_a_failed_sync_keeps_the_rows_of_a_save(
    save: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr("hoodoo.sync.service.sync_table", fail)
    with pytest.warns(UserWarning, match="the write is committed, but sync after it failed"):
        save(TWO, **SYNC)
    assert rows() == TWO

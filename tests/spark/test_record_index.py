"""Saves by the record index: the rows of a look-up in files, found by tasks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.spark import tasks
from tests.interop import golden_tables

pytestmark = pytest.mark.spark

KINDS = {
    "id": "string",
    "part": "string",
    "ts": "long",
    "a": "int",
    "name": "string",
    "price": "decimal(10,2)",
    "d": "date",
    "t": "timestamp",
    "ok": "boolean",
    "x": "double",
}


def located_keys(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record each look-up in files; Spark's tasks get the original."""
    found: list[Any] = []
    original = tasks.ReadKeys

    def made(**options: Any) -> Any:
        found.append(options)
        return original(**options)

    monkeypatch.setattr("hoodoo.spark.workload.ReadKeys", made)
    return found


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("v9_mor_ri", "RECORD_INDEX"),
        pytest.param("v9_cow_partitioned_ri", "RECORD_LEVEL_INDEX", marks=pytest.mark.slow),
    ],
)
def test_saves_by_the_record_index_leave_the_rows_of_saves_by_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, index: str
) -> None:
    chance = random.Random(name)
    by_files = {"RECORD_INDEX": "GLOBAL_SIMPLE", "RECORD_LEVEL_INDEX": "SIMPLE"}[index]
    reads = located_keys(monkeypatch)
    result = []
    for kind in (by_files, index):
        path = golden_tables.unpack(name, tmp_path / kind)
        with hoodoo.open_table(path) as table:
            before = table.to_arrow().sort_by("id")
        shape = ", ".join(f"{field.name} {KINDS[field.name]}" for field in before.schema)
        chance.seed(name)
        for value in range(2):
            known = chance.sample(before.to_pylist(), 3)
            rows = [{**one, "ts": one["ts"] + 10 + value, "a": value} for one in known]
            rows[0] |= {"part": "p9"}
            rows.append({**known[0], "id": f"new{value}"})
            writer = spark.createDataFrame(rows, shape).write.format("hudi").mode("append")
            writer = writer.option("hoodie.datasource.write.operation", "upsert")
            writer = writer.option("hoodie.simple.index.update.partition.path", "false")
            reads.clear()
            writer.option("hoodie.index.type", kind).save(str(path))
            assert bool(reads) == (kind == by_files)
        with hoodoo.open_table(path) as table:
            result.append(table.to_arrow().sort_by([("id", "ascending"), ("part", "ascending")]))
            assert table.verify().ok
    assert result[0].equals(result[1])

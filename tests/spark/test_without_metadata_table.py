"""A metadata table under Spark: refused by default, switched off by a commit without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hoodoo
from tests.interop import golden_tables
from timeline.errors import HoodooError, MetadataTableOnError

pytestmark = pytest.mark.spark

COLUMNS = "id string, ts long, val double, name string, region string"
NEW = ("new", 1_000, 1.0, "by us", "xx")


def state(path: Path) -> dict[str, bytes]:
    files = [path / ".hoodie/hoodie.properties", *(path / ".hoodie/metadata").rglob("*")]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


def test_a_committed_save_switches_the_metadata_table_off(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    before = state(path)

    def save(rows: Any, **options: str) -> None:
        writer = rows.write.format("hudi").options(**options).mode("append")
        writer.option("hoodie.datasource.write.operation", "upsert").save(str(path))

    rows = spark.createDataFrame([NEW], COLUMNS)
    off = {"hoodie.metadata.enable": "false"}
    with pytest.raises(MetadataTableOnError, match=r"hoodie.metadata.enable=false"):
        save(rows)
    with pytest.warns(UserWarning, match="metadata table"), pytest.raises(MetadataTableOnError):
        save(rows, **{"hoodie.metadata.enable": "true"})
    for unfit in (rows.drop("val"), spark.createDataFrame([(None, *NEW[1:])], COLUMNS)):
        with pytest.raises(HoodooError):
            save(unfit, **off)
    assert state(path) == before
    with pytest.warns(UserWarning, match="was switched off"):
        save(rows, **off)
    assert not (path / ".hoodie/metadata").exists()
    with hoodoo.open_table(path) as table:
        assert "new" in table.to_arrow(["id"]).column("id").to_pylist()

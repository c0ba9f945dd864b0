"""A metadata table under Spark: each save maintains it, and a save that would not is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.reading import open_metadata_table
from tests.interop import golden_tables
from timeline.errors import HoodooError

pytestmark = pytest.mark.spark

COLUMNS = "id string, ts long, val double, name string, region string"
NEW = ("new", 1_000, 1.0, "by us", "xx")
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


def test_a_save_without_the_metadata_table_is_refused(spark: Any, tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    writer = spark.createDataFrame([NEW], COLUMNS).write.format("hudi").mode("append")
    with pytest.raises(HoodooError) as refused:
        writer.options(**{"hoodie.metadata.enable": "false"}).save(str(path))
    assert refused.value.kind == "metadata_table_on"


@pytest.mark.parametrize("name", ["v9_cow_services", "v9_mor_ri"])
def test_a_save_adds_its_files_and_keys_to_the_metadata_table(
    spark: Any, tmp_path: Path, name: str
) -> None:
    path = golden_tables.unpack(name, tmp_path)
    with hoodoo.open_table(path) as table:
        before = table.to_arrow()
    rows = spark.createDataFrame(
        [*before.slice(0, 3).to_pylist(), {**before.slice(0, 1).to_pylist()[0], "id": "new"}],
        ", ".join(f"{field.name} {KINDS[field.name]}" for field in before.schema),
    )
    writer = rows.write.format("hudi").mode("append")
    writer.option("hoodie.datasource.write.operation", "upsert").save(str(path))
    with hoodoo.open_table(path) as table:
        context = table.context
        metadata = open_metadata_table(context.ports.storage, table.config, context.snapshot())
        assert metadata is not None
        assert metadata.lag.is_trusted
        listed = metadata.files_of(metadata.partition_paths())
        keys = pa.concat_tables(metadata.read("record_index")).column("key").to_pylist()
        assert sorted(keys) == sorted(table.to_arrow(["id"]).column("id").to_pylist())
        assert "new" in keys
    there = {file.name for file in path.glob("*/*") if file.parent.name != ".hoodie"}
    there -= {".hoodie_partition_metadata"}
    assert set(listed.column("name").to_pylist()) == there

"""A metadata table that hoodoo builds has the records of the one that Java Hudi wrote (MDT-11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.reading import open_metadata_table
from tests.interop import golden_tables

COUNTS = {
    "hoodie.metadata.record.index.min.filegroup.count": "3",
    "hoodie.metadata.record.index.max.filegroup.count": "3",
}
#: The time of an index entry differs in Java, too, between a rebuild and an incremental table.
LEFT_OUT = {"instant_ms", "timestamp", "is_tight"}


def records(table: hoodoo.Table) -> dict[str, dict[Any, Any]]:
    """Return the records of all partitions, by partition and key, of files that exist."""
    context = table.context
    found = open_metadata_table(context.ports.storage, table.config, context.snapshot())
    assert found is not None
    assert found.lag.is_trusted
    made: dict[str, dict[Any, Any]] = {}
    for name in found.partitions:
        rows = pa.concat_tables(found.read(name)).to_pylist()
        made[name] = {
            tuple(row[field] for field in ("key", "name", "partition_path") if field in row): {
                field: value for field, value in row.items() if field not in LEFT_OUT
            }
            for row in rows
            if not row.get("is_deleted")
        }
    files = {path[1] for path in made["files"]}
    if "column_stats" in made:  # Java keeps those of files that a clean deleted
        made["column_stats"] = {
            key: row for key, row in made["column_stats"].items() if row["file_name"] in files
        }
    return made


@pytest.mark.spec("MDT-11")
@pytest.mark.parametrize("name", golden_tables.metadata_names())
def test_a_built_metadata_table_has_the_records_of_java(tmp_path: Path, name: str) -> None:
    path = golden_tables.unpack(name, tmp_path)
    split = "partitioned" in name
    options = COUNTS | ({"hoodie.metadata.record.level.index.enable": "true"} if split else {})
    with hoodoo.open_table(path, properties=options) as table:
        theirs = records(table)
        partitions = table.config.complete_metadata_partitions
        table.metadata.drop()
    with hoodoo.open_table(path, properties=options) as table:
        for one in partitions:
            table.metadata.create(
                one, column="name" if one.startswith("secondary_index_") else None
            )
    with hoodoo.open_table(path, properties=options) as table:
        # Statistics of columns bring those of partitions, as in Java since 1.1.
        assert set(partitions) <= set(table.config.complete_metadata_partitions)
        mine = records(table)
    for partition in partitions:
        if partition == "partition_stats":
            assert mine[partition].keys() == theirs[partition].keys()
        else:
            assert mine[partition] == theirs[partition], partition

"""Spark reads a table's files by the scheme its user wrote, and executors get the means."""

from __future__ import annotations

import pytest

from hoodoo.spark.base_files import as_spelled
from hoodoo.spark.options import storage_properties
from timeline.properties.options import TABLE_LAYER, PropertySet


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ("s3a://lake/t", "s3a://lake/t/p/f.parquet"),
        ("S3N://lake/t", "s3n://lake/t/p/f.parquet"),
        ("s3://lake/t", "s3://lake/t/p/f.parquet"),
    ],
)
def test_files_on_s3_keep_the_scheme_of_the_table(table: str, read: str) -> None:
    assert as_spelled("s3://lake/t/p/f.parquet", table) == read


def test_local_files_keep_their_paths() -> None:
    assert as_spelled("file:/data/t/f.parquet", "/data/t") == "file:/data/t/f.parquet"


def test_executors_get_the_store_options_of_the_caller_and_none_of_the_table() -> None:
    options = (
        PropertySet()
        .with_layer(TABLE_LAYER, {"fs.s3a.endpoint": "https://thief.example"})
        .with_layer("code", {"fs.s3a.access.key": "a", "hoodie.table.name": "t"})
    )
    assert storage_properties(options) == {"fs.s3a.access.key": "a"}

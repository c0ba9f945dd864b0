"""Keys and partition paths of every shape are Java's own, and late data loses in both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int32()),
        ("region", pa.string()),
        ("year", pa.int32()),
        ("ts", pa.int64()),
        ("val", pa.string()),
    ]
)

#: Name -> record key, partition fields, hive style.
SHAPES: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]] = {
    "unpartitioned": (("id",), (), False),
    "simple_plain": (("id",), ("region",), False),
    "complex": (("id", "n"), ("region", "year"), True),
    "complex_of_one_field": (("id",), ("region", "year"), False),
}


@pytest.mark.parametrize(("release", "version"), [("1.2.0", 9), ("1.0.2", 8)], ids=["v9", "v8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_engines_find_each_other_s_keys(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    release: str,
    version: int,
    shape: str,
) -> None:
    java, path = java_oracle(release), tmp_path / shape
    record_key, partition_by, hive_style = SHAPES[shape]
    with hoodoo.create_table(
        path,
        schema=SCHEMA,
        record_key=record_key,
        partition_by=partition_by,
        ordering="ts",
        properties={
            "hoodie.write.table.version": str(version),
            "hoodie.metadata.enable": "false",
            "hoodie.datasource.write.hive_style_partitioning": str(hive_style).lower(),
        },
    ) as table:
        table.insert(rows(*(("abcde"[i], 10, "ours") for i in range(5))))
        theirs = rows(("a", 20, "java"), ("b", 5, "late"), ("f", 10, "java")).to_pylist()
        java.write(path, theirs, conf=java_conf(record_key, partition_by, hive_style=hive_style))
        table.upsert(rows(("c", 20, "again"), ("d", 5, "late"), ("f", 9, "late"), ("a", 21, "a")))

        found = encoded(table.core.pin().to_arrow(with_hoodie_columns=True))
        assert {row["id"]: row["val"] for row in found} == {
            "a": "a",
            "b": "ours",
            "c": "again",
            "d": "ours",
            "e": "ours",
            "f": "java",
        }
        assert len(found) == 6
        assert comparable(java.read(path)) == found


def rows(*told: tuple[str, int, str]) -> pa.Table:
    listed = [
        {"id": key, "n": 1, "region": "eu, ü" if key < "c" else "us", "year": 2024, "ts": ts}
        | {"val": val}
        for key, ts, val in told
    ]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def java_conf(
    record_key: tuple[str, ...], partition_by: tuple[str, ...], *, hive_style: bool
) -> dict[str, Any]:
    conf = {
        "hoodie.datasource.write.recordkey.field": ",".join(record_key),
        "hoodie.datasource.write.partitionpath.field": ",".join(partition_by),
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.hive_style_partitioning": str(hive_style).lower(),
        "hoodie.metadata.enable": "false",
        "hoodie.write.auto.upgrade": "false",
    }
    if not partition_by:
        conf["hoodie.datasource.write.keygenerator.class"] = (
            "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
        )
    return conf

"""Columns renamed, dropped, added and moved by either engine are the same columns to both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.values import encoded, without_meta

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

WRITE = "hoodie.datasource.write."
ON_READ = {"hoodie.schema.on.read.enable": "true"}
#: Java needs the second one to rename and drop.
SETTINGS = {
    **ON_READ,
    WRITE + "schema.allow.auto.evolution.column.drop": "true",
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("a", pa.int32()),
        ("f", pa.float32()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def row(key: str, n: int) -> dict[str, Any]:
    return {"id": key, "a": n, "f": n / 2, "s": {"x": n, "y": f"y{n}"}}


def table_of(path: Path, table_type: str) -> hoodoo.Table:
    table = hoodoo.create_table(
        path,
        schema=SCHEMA,
        record_key="id",
        properties={**ON_READ, WRITE + "table.type": table_type, "hoodie.clean.automatic": "false"},
    )
    table.upsert([row("k1", 1), row("k2", 2)])
    table.upsert([row("k2", 3)])
    return table


def same_rows(java: JavaOracle, table: hoodoo.Table, path: Path) -> list[dict[str, Any]]:
    """The rows, if both engines return the same ones."""
    mine = without_meta(encoded(table.to_arrow()))
    assert without_meta(java.read(path, conf=ON_READ)) == mine
    return sorted(mine, key=lambda one: one["id"])


@pytest.mark.parametrize("table_type", TYPES)
def test_java_reads_and_updates_the_columns_that_we_changed(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, table_type: str
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    with table_of(path, table_type) as table:
        table.alter_schema(rename={"a": "b", "s.x": "z"}, types={"a": pa.int64()})
        table.alter_schema(drop=["f"], add={"c": pa.int32(), "s.w": pa.float64()})
        table.alter_schema(add={"f": pa.string()}, move={"b": "s"})
        assert same_rows(java, table, path) == [
            {"id": "k1", "s": {"z": 1, "y": "y1", "w": None}, "b": 1, "c": None, "f": None},
            {"id": "k2", "s": {"z": 3, "y": "y3", "w": None}, "b": 3, "c": None, "f": None},
        ]
        table.upsert([{"id": "k1", "s": {"z": 9, "y": "n", "w": 0.5}, "b": 9, "c": 9, "f": "new"}])
        table.upsert([{"id": "k3", "s": None, "b": 4, "c": 4, "f": "three", "more": 1}])
        rows = same_rows(java, table, path)
        assert [one["f"] for one in rows] == ["new", None, "three"]
        java.sql(path, with_settings("update {t} set f = 'java', b = 77 where id = 'k2'"))
        rows = same_rows(java, table, path)
        assert [(one["b"], one["f"]) for one in rows] == [(9, "new"), (77, "java"), (4, "three")]
        table.delete([{"id": "k3"}])
        if table_type == "MERGE_ON_READ":  # Java has compacted the logs before
            assert table.services.compact() is not None
        assert [one["b"] for one in same_rows(java, table, path)] == [9, 77]


@pytest.mark.parametrize("table_type", TYPES)
def test_we_write_to_columns_that_java_changed(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, table_type: str
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    with table_of(path, table_type) as table:
        for words in (
            "rename column a to b",
            "alter column b type bigint",
            "drop column f",
            "add columns (f string)",
            "rename column s.x to z",
        ):
            java.sql(path, with_settings("alter table {t} " + words))
        assert same_rows(java, table, path)[0] == {
            "id": "k1", "b": 1, "s": {"z": 1, "y": "y1"}, "f": None,
        }  # fmt: skip
        table.upsert([{"id": "k2", "b": 5, "s": {"z": 5, "y": "five"}, "f": "ours"}])
        table.alter_schema(rename={"b": "a"})
        java.sql(path, with_settings("update {t} set a = 6 where id = 'k1'"))
        rows = same_rows(java, table, path)
        assert [(one["a"], one["f"]) for one in rows] == [(6, None), (5, "ours")]


def with_settings(statement: str) -> str:
    """The oracle runs statements one after the other; settings of a session stay."""
    return ";;".join([*(f"set {key}={value}" for key, value in SETTINGS.items()), statement])

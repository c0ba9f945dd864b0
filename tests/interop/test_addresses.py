"""Rows are addressed as by Java: keys of other types, of two forms, and rows without key fields."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.table import Table
from hoodoo.verify.verify import verify
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

WRITE = "hoodie.datasource.write."
NO_METADATA = {"hoodie.metadata.enable": "false"}
META = ["_hoodie_record_key", "_hoodie_partition_path"]


def with_meta(table: Table) -> pa.Table:
    return table.current_state().to_arrow(with_hoodie_columns=True).sort_by("id")


def with_v(rows: pa.Table, value: str) -> pa.Table:
    column = pa.array([value] * rows.num_rows)
    return rows.set_column(rows.schema.get_field_index("v"), "v", column)


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_rows_without_key_fields_are_written_back_by_both(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, table_type: str
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    ddl = "id int, p string, v string"
    conf = {
        **NO_METADATA,
        WRITE + "partitionpath.field": "p",
        WRITE + "table.type": table_type,
        WRITE + "precombine.field": "",
    }
    made = [{"id": number, "p": "xy"[number % 2], "v": "java"} for number in range(6)]
    java.write(path, made, "insert", schema=ddl, conf=conf)
    with hoodoo.open_table(path) as table:
        before = with_meta(table)
        result = table.upsert(with_v(before.slice(0, 2), "ours"))
        assert (result.rows_updated, result.rows_inserted) == (2, 0)
        table.delete(before.slice(2, 1))
        theirs = [
            {**row, "v": "java again"}
            for row in with_meta(table).to_pylist()
            if row["id"] in (1, 3)
        ]
        meta_ddl = ", ".join(f"{name} string" for name in theirs[0] if name.startswith("_"))
        java.write(path, theirs, "upsert", schema=f"{meta_ddl}, {ddl}", conf=conf)
        table.upsert(with_v(with_meta(table).slice(3, 1), "ours last"))
        mine = encoded(with_meta(table))
        assert {row["id"]: row["v"] for row in mine} == {
            0: "ours",
            1: "java again",
            3: "java again",
            4: "ours last",
            5: "java",
        }
        keys = {row["id"]: row["_hoodie_record_key"] for row in before.to_pylist()}
        assert all(row["_hoodie_record_key"] == keys[row["id"]] for row in mine)
        assert comparable(java.read(path)) == mine


#: DDL of the column -> the value that Java writes first, and the same value in another type.
KINDS: dict[str, tuple[str, Any, pa.Array]] = {
    "double": ("double", 7.0, pa.array([7], pa.int32())),
    "float": ("float", 0.5, pa.array([0.5], pa.float32())),
    "long": ("bigint", 7, pa.array([7], pa.uint8())),
    "decimal": ("decimal(10,2)", "1.00", pa.array([1], pa.int8()).cast(pa.decimal128(3, 0))),
    "text": ("string", "7", pa.array([7], pa.int64())),
    "date": ("date", "2024-01-01", pa.array([19723], pa.int32()).cast(pa.date32())),
    "moment": (
        "timestamp",
        "2024-01-01T00:00:00Z",
        pa.array([1704067200], pa.timestamp("s", "UTC")),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_value_has_the_key_and_folder_of_java_in_every_type(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, kind: str
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / kind
    ddl, value, other = KINDS[kind]
    partition = "p" if kind == "moment" else "id"
    conf = {**NO_METADATA, WRITE + "recordkey.field": "id", WRITE + "precombine.field": "v"}
    conf[WRITE + "partitionpath.field"] = partition
    java.write(
        path,
        [{"id": value, "p": "x", "v": 1}],
        schema=f"id {ddl}, p string, v int",
        conf=conf,
    )
    with hoodoo.open_table(path) as table:
        table.upsert(pa.table({"id": other, "p": ["x"], "v": pa.array([2], pa.int32())}))
        rows = table.to_arrow(columns=[*META, "v"]).to_pylist()
        assert [row["v"] for row in rows] == [2], rows
        assert verify(table.context, all_columns=True).ok
    java.write(path, [{"id": value, "p": "x", "v": 3}], conf=conf)
    assert [row["v"] for row in java.read(path)] == [3]


@pytest.mark.parametrize("bare", [False, True])
def test_the_form_of_complex_keys_that_java_wrote_is_kept(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, bare: bool
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    conf = {
        **NO_METADATA,
        WRITE + "recordkey.field": "id",
        WRITE + "partitionpath.field": "p",
        WRITE + "precombine.field": "v",
        WRITE + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
        "hoodie.write.table.version": "8",
        "hoodie.write.auto.upgrade": "false",
        "hoodie.write.complex.keygen.new.encoding": str(bare).lower(),
        "hoodie.write.complex.keygen.validation.enable": "false",
    }
    made = [{"id": key, "p": "x", "v": 1} for key in "abc"]
    java.write(path, made, schema="id string, p string, v int", conf=conf)
    with hoodoo.open_table(path) as table:
        result = table.upsert([{"id": "a", "p": "x", "v": 2}, {"id": "d", "p": "x", "v": 2}])
        assert (result.rows_updated, result.rows_inserted) == (1, 1)
    java.write(path, [{"id": "d", "p": "x", "v": 3}], conf=conf)
    keys = [row["_hoodie_record_key"] for row in java.read(path)]
    assert sorted(keys) == [key if bare else f"id:{key}" for key in "abcd"]

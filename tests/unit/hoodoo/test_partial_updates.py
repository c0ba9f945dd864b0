"""Partial updates as a caller asks for them: by argument, or by Hudi's property."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from timeline.errors import SettingError, UnsupportedTableError

KEY = "hoodie.write.partial.update.schema"
SCHEMA = pa.schema([("id", pa.string()), ("a", pa.string()), ("b", pa.int64())])
ROWS = pa.table({"id": ["k", "l"], "a": ["A", "A"], "b": [1, 1]}, SCHEMA)
ONLY_B = json.dumps(
    {"type": "record", "name": "t", "fields": [{"name": "b", "type": ["null", "long"]}]}
)


def made(path: Path, **properties: str) -> hoodoo.Table:
    told = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    }
    return hoodoo.create_table(path, schema=SCHEMA, properties={**told, **properties})


def told(table: hoodoo.Table) -> list[tuple[object, ...]]:
    found = table.to_arrow(columns=["id", "a", "b"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_the_argument_and_the_property_mean_the_same(tmp_path: Path) -> None:
    with made(tmp_path / "t") as table:
        table.upsert(ROWS)
        table.upsert(pa.table({"id": ["k"], "b": [2]}), partial=True)
    with hoodoo.open_table(tmp_path / "t", properties={KEY: ONLY_B}) as table:
        table.upsert(pa.table({"id": ["l"], "a": ["not this"], "b": [3]}))
        assert told(table) == [("k", "A", 2), ("l", "A", 3)]
        table.insert(pa.table({"id": ["m"], "a": ["M"], "b": [4]}))  # it is of upserts alone
        assert told(table)[-1] == ("m", "M", 4)


def test_a_property_that_is_no_schema_is_refused(tmp_path: Path) -> None:
    with made(tmp_path / "t", **{KEY: "a,b"}) as table, pytest.raises(SettingError) as refused:
        table.upsert(ROWS)
    assert refused.value.fields["key"] == KEY


def test_java_could_not_read_them_where_files_store_no_keys(tmp_path: Path) -> None:
    with made(tmp_path / "t", **{"hoodie.populate.meta.fields": "false"}) as table:
        table.upsert(ROWS)
        with pytest.raises(UnsupportedTableError) as refused:
            table.upsert(pa.table({"id": ["k"], "b": [2]}), partial=True)
    assert refused.value.kind == "partial_virtual_keys"

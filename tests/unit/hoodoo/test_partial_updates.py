"""Partial updates as a caller asks for them: by argument, or by Hudi's property."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from timeline.errors import SettingError, SnapshotExpiredError, UnsupportedTableError
from timeline.ports.ports import Stats
from timeline.storage.local import LocalStorage

KEY = "hoodie.write.partial.update.schema"
VERSIONS = "hoodie.clean.fileversions.retained"
AUTOMATIC = "hoodie.clean.automatic"
SCHEMA = pa.schema([("id", pa.string()), ("a", pa.string()), ("b", pa.int64())])
ROWS = pa.table({"id": ["k", "l"], "a": ["A", "A"], "b": [1, 1]}, SCHEMA)
ONLY_B = json.dumps(
    {"type": "record", "name": "t", "fields": [{"name": "b", "type": ["null", "long"]}]}
)


def made(path: Path, **properties: str) -> hoodoo.Table:
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    }
    return hoodoo.create_table(path, schema=SCHEMA, properties={**options, **properties})


def rows_of(table: hoodoo.Table) -> list[tuple[object, ...]]:
    found = table.to_arrow(columns=["id", "a", "b"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_the_argument_and_the_property_have_the_same_effect(tmp_path: Path) -> None:
    with made(tmp_path / "t") as table:
        table.upsert(ROWS)
        table.upsert(pa.table({"id": ["k"], "b": [2]}), partial=True)
    with hoodoo.open_table(tmp_path / "t", properties={KEY: ONLY_B}) as table:
        table.upsert(pa.table({"id": ["l"], "a": ["not this"], "b": [3]}))
        assert rows_of(table) == [("k", "A", 2), ("l", "A", 3)]
        table.insert(pa.table({"id": ["m"], "a": ["M"], "b": [4]}))  # it is of upserts alone
        assert rows_of(table)[-1] == ("m", "M", 4)


def test_a_property_that_is_no_schema_is_refused(tmp_path: Path) -> None:
    with made(tmp_path / "t", **{KEY: "a,b"}) as table, pytest.raises(SettingError) as refused:
        table.upsert(ROWS)
    assert refused.value.fields["key"] == KEY


def test_partial_updates_are_refused_where_files_store_no_keys(tmp_path: Path) -> None:
    with made(tmp_path / "t", **{"hoodie.populate.meta.fields": "false"}) as table:
        table.upsert(ROWS)
        with pytest.raises(UnsupportedTableError) as refused:
            table.upsert(pa.table({"id": ["k"], "b": [2]}), partial=True)
    assert refused.value.kind == "partial_virtual_keys"


def test_a_range_whose_whole_rows_were_cleaned_is_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", VERSIONS: "1", AUTOMATIC: "false"}
    with made(tmp_path / "t", **keep) as table:
        since = table.upsert(ROWS).completion_time
        table.upsert(pa.table({"id": ["k"], "b": [2]}), partial=True)
        reader = table.changes(since, columns=["id", "a", "b"])
        assert table.changes(since, columns=["a", "b"]).read_all().to_pylist() == [
            {"a": "A", "b": 2}
        ]
        lists = LocalStorage.list

        def after_cleaning(storage: LocalStorage, path: str) -> Stats:
            monkeypatch.setattr(LocalStorage, "list", lists)
            with hoodoo.open_table(tmp_path / "t", properties=keep) as other:
                other.services.compact()
                assert other.services.clean() is not None
            return lists(storage, path)

        monkeypatch.setattr(LocalStorage, "list", after_cleaning)
        with pytest.raises(SnapshotExpiredError):
            reader.read_all()

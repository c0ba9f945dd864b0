"""Columns renamed by Java Hudi under schema on read are found by their ids."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from filegroups.files.parquet import read_base_file, read_batches
from filegroups.schema.casting import promote
from filegroups.schema.column_ids import (
    IdentifiedColumn,
    InternalSchema,
    Renaming,
    SchemaHistory,
    first_version,
    parse_history,
    parse_internal_schema,
)
from filegroups.schema.schema import with_meta
from timeline.errors import CorruptTableError
from timeline.storage.local import LocalStorage

DATA = Path(__file__).parents[2] / "timeline" / "data"
READER = with_meta(
    pa.schema(
        [
            ("id", pa.string()),
            ("a2", pa.int32()),
            ("n", pa.struct([("x", pa.int32()), ("z", pa.string())])),
            ("w", pa.string()),
            ("gone", pa.int32()),
        ]
    )
)
#: Java Hudi's rows after the last rename; ``b`` was written after the others.
FIRST = [
    {"id": "a", "a2": 1, "n": {"x": 1, "z": "q"}, "w": "3", "gone": None},
    {"id": "b", "a2": 2, "n": {"x": 1, "z": "q"}, "w": "4", "gone": None},
]
LAST = [FIRST[0], {"id": "b", "a2": 20, "n": {"x": 5, "z": "zz"}, "w": "text", "gone": 9}]
OWN = list(LAST[0])


@pytest.fixture
def cow(tmp_path: Path) -> LocalStorage:
    with zipfile.ZipFile(DATA / "v9_schema_on_read_cow.zip") as archive:
        archive.extractall(tmp_path)
    return LocalStorage(tmp_path / "sor_cop")


@pytest.fixture
def history(cow: LocalStorage) -> SchemaHistory:
    name = max(name for name in cow.names(".hoodie/.schema") if name.endswith(".schemacommit"))
    versions = parse_history(cow.read(f".hoodie/.schema/{name}").decode())
    return SchemaHistory(versions[-1], versions)


def base_files(storage: LocalStorage) -> list[str]:
    found = [name for name in storage.names("") if name.endswith(".parquet")]
    return sorted(found, key=lambda name: name.rpartition("_")[2])


def test_every_file_is_read_in_the_schema_of_its_writer(cow: LocalStorage, history: SchemaHistory):
    for path, expected in zip(base_files(cow), (FIRST, LAST), strict=True):
        renaming = history.renaming_for(path.rpartition("_")[2].removesuffix(".parquet"))
        read = read_base_file(cow, path, schema=READER, columns=OWN, renaming=renaming)
        assert read.sort_by("id").to_pylist() == expected
        batches = list(read_batches(cow, path, schema=READER, columns=OWN, renaming=renaming))
        assert pa.Table.from_batches(batches).sort_by("id").to_pylist() == expected


def test_a_filter_sees_the_reader_s_names_and_types(cow: LocalStorage, history: SchemaHistory):
    path = base_files(cow)[0]
    renaming = history.renaming_for("20261121185621818")
    for condition in (pc.field("a2") == 2, (pc.field("w") == "4") & pc.field("gone").is_null()):
        read = read_base_file(
            cow, path, schema=READER, columns=["id"], row_filter=condition, renaming=renaming
        )
        assert read.to_pydict() == {"id": ["b"]}
        batches = list(
            read_batches(cow, path, schema=READER, columns=["id"], row_filter=condition, renaming=renaming)
        )  # fmt: skip
        assert pa.Table.from_batches(batches).to_pydict() == {"id": ["b"]}


def test_a_column_dropped_and_added_again_is_a_new_one(history: SchemaHistory):
    renaming = history.renaming_for("20261121185621818")
    assert renaming is not None
    assert [renaming.written_name(name) for name in ("a2", "gone", "w", "unheard_of")] == [
        "a",
        None,
        "w",
        "unheard_of",
    ]
    old = pa.table({"gone": ["g"], "a": [1]})
    assert renaming.apply(old).to_pydict() == {"a2": [1]}


def test_a_file_of_the_newest_schema_needs_no_renaming(history: SchemaHistory):
    assert history.renaming_for("20261121185632421") is None
    assert history.renaming_for("20261121199999999") is None
    before = history.renaming_for("20261121185632420")
    assert before is not None
    assert before.written_name("a2") == "b"


def test_names_inside_lists_and_maps_are_found_too():
    def schema(inner: str) -> InternalSchema:
        held = {"type": "record", "fields": [{"id": 9, "name": inner, "type": "int"}]}
        fields = [
            {"id": 1, "name": "l", "type": {"type": "array", "element_id": 3, "element": held}},
            {"id": 2, "name": "m", "type": {"type": "map", "key_id": 4, "key": "string", "value_id": 5, "value": held}},
        ]  # fmt: skip
        return parse_internal_schema(json.dumps({"type": "record", "fields": fields}))

    renaming = Renaming(schema("old").columns, schema("new").columns)
    rows = pa.table(
        {
            "l": pa.array([[{"old": 1}], None]),
            "m": pa.array([[("k", {"old": 2})], None], pa.map_(pa.string(), pa.struct([("old", pa.int32())]))),
        }
    )  # fmt: skip
    for part in (rows, rows.slice(1), rows.slice(0, 0)):
        renamed = renaming.apply(part)
        renamed.validate(full=True)
        expected = [{"l": [{"new": 1}], "m": [("k", {"new": 2})]}, {"l": None, "m": None}]
        assert renamed.to_pylist() == expected[2 - len(part) :] if len(part) < 2 else expected


def test_a_field_dropped_and_added_again_inside_a_struct_is_a_new_one():
    def columns(number: int) -> tuple[IdentifiedColumn, ...]:
        inner = (IdentifiedColumn(1, "kept"), IdentifiedColumn(number, "gone"))
        return (IdentifiedColumn(5, "s", inner),)

    rows = pa.table({"s": [{"kept": 1, "gone": 2}]})
    renamed = Renaming(columns(2), columns(9)).apply(rows)
    assert promote(renamed, rows.schema).to_pylist() == [{"s": {"kept": 1, "gone": None}}]


def test_swapped_names_are_distinguished():
    def columns(first: str, second: str) -> tuple[IdentifiedColumn, ...]:
        inner = (IdentifiedColumn(3, first), IdentifiedColumn(4, second))
        return (*inner, IdentifiedColumn(5, "s", inner))

    rows = pa.table({"x": [1], "y": [2], "s": [{"x": 3, "y": 4}]})
    renamed = Renaming(columns("x", "y"), columns("y", "x")).apply(rows)
    assert renamed.to_pylist() == [{"y": 1, "x": 2, "s": {"y": 3, "x": 4}}]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schemas":[{"type":"record"}]}', '{"schemas":1}']
)
def test_a_damaged_history_is_damage(text: str):
    with pytest.raises(CorruptTableError) as caught:
        parse_history(text)
    assert caught.value.kind == "bad_schema"


@pytest.mark.parametrize("name", ["cow", "mor"])
def test_whole_tables_are_read_by_the_current_names(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(DATA / f"v9_schema_on_read_{name}.zip") as archive:
        archive.extractall(tmp_path)
    [folder] = tmp_path.iterdir()
    with hoodoo.open_table(folder) as table:
        assert table.to_arrow().to_pylist() == LAST
        assert table.changes("earliest").read_all().to_pylist() == LAST
        condition = [("a2", ">", 3)]
        assert table.to_arrow(["w", "a2"], condition).to_pylist() == [{"w": "text", "a2": 20}]


@pytest.mark.parametrize(
    ("name", "first", "upserted"),
    [
        ("cow", "20261121185621818", "20261121185628199"),
        ("mor", "20261121185633069", "20261121185636237"),  # here still in a log
    ],
)
def test_time_travel_shows_the_names_of_the_time(
    tmp_path: Path, name: str, first: str, upserted: str
) -> None:
    with zipfile.ZipFile(DATA / f"v9_schema_on_read_{name}.zip") as archive:
        archive.extractall(tmp_path)
    [folder] = tmp_path.iterdir()
    with hoodoo.open_table(folder) as table:
        assert table.as_of(first).to_arrow().to_pylist() == [
            {"id": "a", "a": 1, "n": {"x": 1, "y": "q"}, "gone": "g", "w": 3},
            {"id": "b", "a": 2, "n": {"x": 1, "y": "q"}, "gone": "g", "w": 4},
        ]
        before_the_last_rename = [{"b": row["a2"], **row} for row in LAST]
        for row in before_the_last_rename:
            del row["a2"]
        assert table.as_of(upserted).to_arrow().to_pylist() == before_the_last_rename


def by_key(table: hoodoo.Table) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("name", ["cow", "mor"])
def test_a_write_keeps_the_columns_of_older_files(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(DATA / f"v9_schema_on_read_{name}.zip") as archive:
        archive.extractall(tmp_path)
    [folder] = tmp_path.iterdir()
    with hoodoo.open_table(folder) as table:
        new = {"id": "a", "a2": 7, "n": {"x": 8, "z": "new"}, "w": "w", "gone": 5}
        assert table.upsert([new]).rows_updated == 1
        assert by_key(table) == [new, LAST[1]]
        more = {**new, "id": "c", "fresh": 1.5}
        table.upsert(pa.Table.from_pylist([more]))
        rows = [{**one, "fresh": None} for one in (new, LAST[1])]
        assert by_key(table) == [*rows, more]
        assert table.delete([{"id": "b"}]).rows_deleted == 1
        if name == "mor":
            assert table.services.compact() is not None
            assert table.services.cluster() is not None
        assert by_key(table) == [rows[0], more]
    names = [each.name for each in (folder / ".hoodie/.schema").glob("2026*_*.schemacommit")]
    newest = json.loads((folder / ".hoodie/.schema" / max(names)).read_text(encoding="utf-8"))
    first, second, *_ = newest["schemas"]
    assert (first["max_column_id"], second["max_column_id"]) == (13, 12)
    assert first["fields"][-1] == {"id": 13, "name": "fresh", "optional": True, "type": "double"}
    assert second["version_id"] in (20261121185632421, 20261121185638167)


def test_the_first_version_has_the_ids_and_the_words_of_java() -> None:
    avro = json.loads((DATA / "all_types_avro.json").read_text(encoding="utf-8"))
    answer = json.loads((DATA / "all_types_ids.json").read_text(encoding="utf-8"))
    made = first_version(json.dumps(avro))
    mine = made["fields"][5:]  # Java was asked without meta columns
    shifted = json.dumps(answer["fields"])
    for word in ("id", "element_id", "key_id", "value_id"):
        shifted = re.sub(
            f'"{word}": (\\d+)', lambda found, word=word: f'"{word}": {int(found[1]) + 5}', shifted
        )
    assert mine == json.loads(shifted)
    assert made["max_column_id"] == answer["max_column_id"] + 5

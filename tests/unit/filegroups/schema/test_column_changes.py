"""Stated changes of columns: the names, the types and the ids that they leave."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from filegroups.schema.column_changes import FIRST, ColumnChanges
from filegroups.schema.column_ids import first_version
from filegroups.schema.schema import TableSchema
from timeline.errors import HoodooError, InvalidInputError, UnsupportedTableError

SCHEMA = TableSchema.from_arrow(
    pa.schema(
        [
            ("id", pa.string()),
            ("a", pa.int32()),
            ("d", pa.decimal128(5, 2)),
            ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
            ("l", pa.list_(pa.struct([("x", pa.int32())]))),
            ("m", pa.map_(pa.string(), pa.struct([("v", pa.int32())]))),
        ]
    ),
    "t",
)


def changed(**changes: Any) -> tuple[pa.Schema, dict[str, Any]]:
    """The columns after changes, and the ids of those at the top."""
    document = first_version(SCHEMA.avro_json)
    made, ids = ColumnChanges(**changes).apply(SCHEMA.avro_json, document, {"id"})
    schema = TableSchema.from_avro(made).arrow
    own = ids["fields"][5:]
    assert [each["name"] for each in own] == schema.names
    return schema, {each["name"]: each["id"] for each in own} | {"max": ids["max_column_id"]}


IDS = {"id": 5, "a": 6, "d": 7, "s": 8, "l": 9, "m": 10, "max": 17}


def test_a_renamed_column_keeps_its_id_and_its_place() -> None:
    schema, ids = changed(rename={"a": "b", "s.x": "z", "l.element.x": "q", "m.value.v": "w"})
    assert schema.names == ["id", "b", "d", "s", "l", "m"]
    assert ids == {("b" if name == "a" else name): number for name, number in IDS.items()}
    assert [each.name for each in schema.field("s").type] == ["z", "y"]
    assert schema.field("l").type.value_type.field(0).name == "q"
    assert schema.field("m").type.item_type.field(0).name == "w"


def test_two_columns_may_swap_their_names() -> None:
    _, ids = changed(rename={"a": "d", "d": "a"})
    assert (ids["a"], ids["d"]) == (7, 6)


def test_a_column_dropped_and_added_again_is_a_new_one() -> None:
    schema, ids = changed(drop=("a",), add=(("", pa.field("a", pa.string())),))
    assert schema.names == ["id", "d", "s", "l", "m", "a"]
    assert (ids["a"], ids["max"]) == (18, 18)


def test_new_columns_get_ids_at_every_level() -> None:
    inner = pa.struct([("p", pa.int32()), ("q", pa.list_(pa.int64()))])
    schema, ids = changed(add=(("", pa.field("n", inner)), ("s", pa.field("w", pa.float64()))))
    assert schema.names[-1] == "n"
    assert [each.name for each in schema.field("s").type] == ["x", "y", "w"]
    assert (ids["n"], ids["max"]) == (18, 22)  # n, p, q, the elements of q, w


@pytest.mark.parametrize(
    ("move", "names"),
    [
        ({"l": "id"}, ["id", "l", "a", "d", "s", "m"]),
        ({"m": FIRST}, ["m", "id", "a", "d", "s", "l"]),
        ({"a": "m", "d": "m"}, ["id", "s", "l", "m", "d", "a"]),
    ],
)
def test_a_moved_column_follows_the_named_one(move: dict[str, str], names: list[str]) -> None:
    schema, ids = changed(move=move)
    assert schema.names == names
    assert ids == IDS
    fields = changed(move={"s.y": FIRST})[0].field("s").type
    assert [each.name for each in fields] == ["y", "x"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a", pa.int64()),
        ("a", pa.float64()),
        ("a", pa.string()),
        ("a", pa.decimal128(12, 2)),
        ("d", pa.decimal128(8, 2)),
        ("d", pa.string()),
    ],
)
def test_a_column_gets_a_wider_type_under_its_id(name: str, kind: pa.DataType) -> None:
    schema, ids = changed(types={name: kind})
    assert schema.field(name).type == kind
    assert ids == IDS


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"rename": {"id": "key"}}, "fixed_column"),
        ({"drop": ("id",)}, "fixed_column"),
        ({"rename": {"nope": "b"}}, "unknown_column"),
        ({"rename": {"s.nope": "b"}}, "unknown_column"),
        ({"rename": {"a.b": "c"}}, "unknown_column"),
        ({"drop": ("_hoodie_record_key",)}, "unknown_column"),
        ({"move": {"a": "nope"}}, "unknown_column"),
        ({"add": (("nope", pa.field("x", pa.int32())),)}, "unknown_column"),
        ({"rename": {"a": "D"}}, "bad_column_name"),
        ({"rename": {"s.x": "y"}}, "bad_column_name"),
        ({"rename": {"a": "b c"}}, "bad_column_name"),
        ({"rename": {"a": "_hoodie_a"}}, "bad_column_name"),
        ({"add": (("", pa.field("a", pa.int32())),)}, "bad_column_name"),
        ({"types": {"a": pa.date32()}}, "schema_mismatch"),
        ({"types": {"a": pa.struct([("x", pa.int32())])}}, "schema_mismatch"),
        ({"types": {"d": pa.decimal128(4, 2)}}, "schema_mismatch"),
    ],
)
def test_an_impossible_change_is_refused_by_name(changes: dict[str, Any], kind: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        changed(**changes)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        ({"type": "string", "logicalType": "strange"}, "column_ids"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "column_ids"),
    ],
)
def test_a_type_without_a_name_in_java_gets_no_ids(inner: Any, kind: str) -> None:
    document = json.loads(SCHEMA.avro_json)
    document["fields"].append({"name": "z", "type": ["null", inner], "default": None})
    with pytest.raises(UnsupportedTableError) as caught:
        first_version(json.dumps(document))
    assert caught.value.kind == kind


def test_a_type_used_in_several_places_does_not_change_in_one() -> None:
    document = json.loads(SCHEMA.avro_json)
    named = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
    document["fields"] += [{"name": "one", "type": named}, {"name": "two", "type": "p"}]
    text = json.dumps(document)
    with pytest.raises(HoodooError) as caught:
        ColumnChanges(rename={"two.x": "y"}).apply(text, first_version(text), set())
    assert caught.value.kind == "shared_type"

"""Each Avro type has the type of Hudi 1.2 for Hive and for Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hoodoo.sync.columns import CatalogColumn, columns_of
from timeline.errors import UnsupportedTableError


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "t_record", "namespace": "hoodie.t", "fields": list(fields)}
    )


def of(kind: Any, *, timestamps: bool = False) -> tuple[str, Any]:
    """The type of a column for Hive, and its field for Spark."""
    made = columns_of(
        schema({"name": "c", "type": kind}),
        (),
        meta_columns=False,
        timestamps=timestamps,
        comments=False,
    )
    [field] = json.loads(made.spark_schema)["fields"]
    return made.columns[0].kind, field


DECIMAL = {"type": "fixed", "name": "f", "size": 5, "logicalType": "decimal", "precision": 10}
RECORD = {"type": "record", "name": "r", "fields": [{"name": "A", "type": ["null", "int"]}]}


@pytest.mark.parametrize(
    ("kind", "hive", "spark"),
    [
        ("boolean", "boolean", "boolean"),
        ("int", "int", "integer"),
        ({"type": "int", "logicalType": "date"}, "date", "date"),
        ({"type": "int", "logicalType": "time-millis"}, "int", "integer"),
        ("long", "bigint", "long"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "bigint", "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "bigint", "timestamp_ntz"),
        ("float", "float", "float"),
        ("double", "double", "double"),
        ("string", "string", "string"),
        ({"type": "string", "logicalType": "uuid"}, "string", "string"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, "string", "string"),
        ("bytes", "binary", "binary"),
        ({"type": "fixed", "name": "f", "size": 4}, "binary", "binary"),
        ({**DECIMAL, "scale": 2}, "decimal(10,2)", "decimal(10,2)"),
        (DECIMAL, "decimal(10,0)", "decimal(10,0)"),
    ],
)
def test_plain_types(kind: Any, hive: str, spark: str) -> None:
    assert of(kind) == (hive, {"name": "c", "type": spark, "nullable": False, "metadata": {}})
    assert of(["null", kind])[1]["nullable"] is True


def test_times_are_timestamps_on_request() -> None:
    kind = {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}}
    assert of(kind, timestamps=True)[0] == "array<timestamp>"
    assert of(kind)[0] == "array<bigint>"


def test_nested_types() -> None:
    hive, field = of({"type": "map", "values": ["null", {"type": "array", "items": RECORD}]})
    assert hive == "map<string,array<struct<a:int>>>"
    assert field["type"] == {
        "type": "map",
        "keyType": "string",
        "valueType": {
            "type": "array",
            "elementType": {
                "type": "struct",
                "fields": [{"name": "A", "type": "integer", "nullable": True, "metadata": {}}],
            },
            "containsNull": False,
        },
        "valueContainsNull": True,
    }


def test_a_named_type_may_be_used_again() -> None:
    first = {"name": "a", "type": {"type": "enum", "name": "colour", "symbols": ["red"]}}
    made = columns_of(
        schema(first, {"name": "b", "type": ["null", "hoodie.t.t_record.colour"]}),
        (),
        meta_columns=False,
        timestamps=False,
        comments=False,
    )
    assert [one.kind for one in made.columns] == ["string", "string"]


def test_partition_columns_come_last_and_a_missing_one_is_a_text() -> None:
    made = columns_of(
        schema(
            {"name": "Day", "type": "int", "doc": 'of "sale"'}, {"name": "id", "type": "string"}
        ),
        ("Day", "hour"),
        meta_columns=True,
        timestamps=False,
        comments=True,
    )
    assert [one.name for one in made.columns][-2:] == ["_hoodie_file_name", "id"]
    assert made.partition_columns == (
        CatalogColumn("day", "int", 'of "sale"'),
        CatalogColumn("hour", "string"),
    )
    last = json.loads(made.spark_schema)["fields"][-2:]
    assert last[0]["metadata"] == {"comment": 'of "sale"'}
    assert last[1] == {"name": "hour", "type": "string", "nullable": False, "metadata": {}}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ([{"name": "a", "type": "int"}, {"name": "A", "type": "int"}], "sync_column_twice"),
        ([{"name": "a", "type": ["int", "string"]}], "sync_type"),
        ([{"name": "a", "type": "null"}], "sync_type"),
    ],
)
def test_columns_that_a_catalog_cannot_have_are_refused(
    fields: list[dict[str, Any]], kind: str
) -> None:
    with pytest.raises(UnsupportedTableError) as caught:
        columns_of(schema(*fields), (), meta_columns=False, timestamps=False, comments=False)
    assert caught.value.kind == kind

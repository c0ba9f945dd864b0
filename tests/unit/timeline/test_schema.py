"""Arrow and Avro schemas agree, and a table's schema only grows (fmt 4.4)."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from filegroups.files.avro_columns.types import arrow_type, parse_schema
from filegroups.schema.avro_schema import arrow_to_avro, avro_to_arrow
from filegroups.schema.casting import normalise
from filegroups.schema.evolution import MissingColumns, SchemaRules
from filegroups.schema.schema import TableSchema, avro_with_meta, reconcile_schema, with_meta
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError

EVERY_TYPE = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("bin", pa.binary()),
        ("fix", pa.binary(3)),
        ("dec", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("tu", pa.timestamp("us", "UTC")),
        ("tm", pa.timestamp("ms", "UTC")),
        ("lu", pa.timestamp("us")),
        ("lm", pa.timestamp("ms")),
        ("arr", pa.list_(pa.field("element", pa.struct([("x", pa.int32())])))),
        ("map", pa.map_(pa.string(), pa.float64())),
        ("st", pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])),
    ]
)


def table_schema(**types: pa.DataType) -> TableSchema:
    return TableSchema.from_arrow(pa.schema(list(types.items())), "t")


def test_the_same_columns_are_fitted_once():
    incoming = pa.schema([("c", pa.int64()), ("new", pa.string())])
    fitted = reconcile_schema(table_schema(c=pa.int32()), incoming)
    assert reconcile_schema(table_schema(c=pa.int32()), pa.schema(list(incoming))) is fitted


def test_other_columns_or_rules_are_fitted_again():
    table = table_schema(c=pa.int32(), d=pa.int32())
    lacking = pa.schema([("c", pa.int32())])
    dropping = SchemaRules(missing=MissingColumns(drop=True))
    assert reconcile_schema(table, lacking)[0].arrow.names == ["c", "d"]
    assert reconcile_schema(table, lacking, dropping)[0].arrow.names == ["c"]
    assert reconcile_schema(table, pa.schema([("c", pa.int64())]))[0].arrow.types[0] == pa.int64()


def test_every_type_survives_the_way_to_avro_and_back():
    assert avro_to_arrow(arrow_to_avro(EVERY_TYPE, "t")) == EVERY_TYPE


def test_avro_names_follow_the_table():
    document = json.loads(arrow_to_avro(pa.schema([("dec", pa.decimal128(9, 2))]), "flights"))
    assert (document["name"], document["namespace"]) == ("flights_record", "hoodie.flights")
    assert document["fields"] == [
        {
            "name": "dec",
            "type": [
                "null",
                {
                    "type": "fixed",
                    "name": "fixed",
                    "namespace": "hoodie.flights.flights_record.dec",
                    "size": 4,
                    "logicalType": "decimal",
                    "precision": 9,
                    "scale": 2,
                },
            ],
            "default": None,
        }
    ]


def test_avro_schemas_of_other_engines_are_read():
    text = json.dumps(
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
                {"name": "again", "type": ["E", "null"]},
                {"name": "dec", "type": [{"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}, "null"]},
                {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
            ],
        }
    )  # fmt: skip
    assert avro_to_arrow(text) == pa.schema(
        [("e", pa.string()), ("again", pa.string()), ("dec", pa.decimal128(5, 1)), ("u", pa.string())]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        ({"type": {"type": "long"}, "logicalType": "timestamp-millis"}, pa.int64()),
        ({"type": ["null", "long"], "logicalType": "timestamp-millis"}, pa.int64()),
        ({"type": {"type": "string"}, "logicalType": "uuid"}, pa.string()),
        ({"type": {"type": "array", "items": "long"}, "logicalType": "z"}, pa.list_(pa.field("element", pa.int64()))),
        ({"type": {"type": "long", "logicalType": "timestamp-micros"}, "logicalType": "z"}, pa.timestamp("us", "UTC")),
        ({"type": "string", "logicalType": ["x"]}, pa.string()),
        ({"type": "long", "logicalType": {"x": 1}}, pa.int64()),
        ({"type": "int", "logicalType": 7}, pa.int32()),
        ({"type": "long", "logicalType": None}, pa.int64()),
    ],
)  # fmt: skip
def test_an_unknown_logical_type_is_ignored(kind, arrow):
    fields = [{"name": "a", "type": kind}]
    text = json.dumps({"type": "record", "name": "r", "fields": fields})
    assert avro_to_arrow(text) == pa.schema([("a", arrow)])
    assert arrow_type(parse_schema(text, path="")) == pa.struct([("a", arrow)])


@pytest.mark.parametrize("text", ["", "{", '{"type": "record"}', '"long"', "[]"])
def test_damaged_avro_is_a_damaged_table(text):
    with pytest.raises((CorruptTableError, UnsupportedTableError)):
        avro_to_arrow(text)


def test_unions_of_several_types_are_not_supported():
    text = '{"type":"record","name":"r","fields":[{"name":"u","type":["int","string"]}]}'
    with pytest.raises(UnsupportedTableError):
        avro_to_arrow(text)


def test_meta_columns_are_first_and_not_part_of_the_table_schema():
    schema = table_schema(id=pa.string())
    assert with_meta(schema.arrow).names[:2] == ["_hoodie_commit_time", "_hoodie_commit_seqno"]
    again = TableSchema.from_avro(avro_with_meta(schema.avro_json))
    assert again == schema


def test_a_new_table_takes_the_nearest_types():
    incoming = pa.schema(
        [
            ("_hoodie_commit_time", pa.string()),
            ("small", pa.int8()),
            ("text", pa.large_string()),
            ("code", pa.dictionary(pa.int32(), pa.string())),
            ("at", pa.timestamp("ns", "Europe/Berlin")),
            ("_hoodie_is_deleted", pa.bool_()),
        ]
    )
    assert TableSchema.from_arrow(incoming, "t").arrow == pa.schema(
        [
            ("small", pa.int32()),
            ("text", pa.string()),
            ("code", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("_hoodie_is_deleted", pa.bool_()),
        ]
    )


@pytest.mark.parametrize("name", ["_hoodie_mine", "a b", "1st", "", "é"])
def test_names_a_table_cannot_hold_are_refused(name):
    with pytest.raises(InvalidInputError) as caught:
        table_schema(**{name: pa.int32()})
    assert caught.value.kind == "bad_column_name"


@pytest.mark.parametrize("kind", [pa.uint64(), pa.float16(), pa.null(), pa.duration("s"), pa.map_(pa.int32(), pa.int32())])  # fmt: skip
def test_types_a_table_cannot_hold_are_refused(kind):
    with pytest.raises(InvalidInputError) as caught:
        table_schema(c=kind)
    assert caught.value.kind == "unsupported_type"


def test_new_columns_grow_the_schema_at_its_end():
    base = table_schema(id=pa.string(), v=pa.int64())
    merged, added = reconcile_schema(base, pa.schema([("extra", pa.int16()), ("id", pa.string())]))
    assert merged.arrow.names == ["id", "v", "extra"]
    assert added == (pa.field("extra", pa.int32()),)
    assert avro_to_arrow(merged.avro_json) == merged.arrow


def test_schema_growth_keeps_attributes_of_other_engines():
    text = '{"type":"record","name":"r","doc":"hello","fields":[{"name":"id","type":"string"}]}'
    merged, _ = reconcile_schema(TableSchema.from_avro(text), pa.schema([("v", pa.int64())]))
    document = json.loads(merged.avro_json)
    assert (document["doc"], document["fields"][0]["type"]) == ("hello", "string")


@pytest.mark.parametrize(
    ("table_type", "incoming"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.int32()),
        (pa.string(), pa.large_string()),
        (pa.string(), pa.dictionary(pa.int8(), pa.string())),
        (pa.int64(), pa.null()),
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "America/New_York")),
        (pa.decimal128(10, 2), pa.decimal128(8, 1)),
        (pa.list_(pa.int64()), pa.large_list(pa.int32())),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), pa.struct([("a", pa.int32())])),
    ],
)
def test_lossless_types_are_taken(table_type, incoming):
    base = table_schema(c=table_type)
    merged, added = reconcile_schema(base, pa.schema([("c", incoming)]))
    assert (merged, added) == (base, ())
    rows = normalise(pa.table({"c": pa.nulls(2, incoming)}), base.arrow)
    assert rows.schema == base.arrow


@pytest.mark.parametrize(
    ("table_type", "incoming"),
    [
        (pa.int32(), pa.decimal128(20, 2)),
        (pa.int32(), pa.date32()),
        (pa.date32(), pa.string()),
        (pa.string(), pa.decimal128(8, 2)),
        (pa.string(), pa.bool_()),
        (pa.bool_(), pa.int32()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.string()),
        (pa.decimal128(8, 2), pa.decimal128(9, 4)),
        (pa.decimal128(8, 2), pa.int32()),
        (pa.struct([("a", pa.int64())]), pa.int64()),
        (pa.list_(pa.int32()), pa.map_(pa.string(), pa.int32())),
    ],
)
def test_other_types_are_refused_with_both_names(table_type, incoming):
    with pytest.raises(InvalidInputError) as caught:
        reconcile_schema(table_schema(c=table_type), pa.schema([("c", incoming)]))
    assert caught.value.kind == "schema_mismatch"
    assert caught.value.fields["incoming_type"] == str(incoming)


def test_a_column_that_differs_by_case_is_refused():
    with pytest.raises(InvalidInputError, match="table_column='id'"):
        reconcile_schema(table_schema(id=pa.string()), pa.schema([("ID", pa.string())]))


def test_values_below_the_tables_resolution_are_refused():
    schema = pa.schema([("t", pa.timestamp("us"))])
    with pytest.raises(InvalidInputError) as caught:
        normalise(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), schema)
    assert caught.value.kind == "lossy_value"


def test_missing_columns_become_nulls_and_order_is_the_tables():
    rows = normalise(pa.table({"b": [1], "x": [2]}), pa.schema([("a", pa.string()), ("b", pa.int64())]))  # fmt: skip
    assert rows.to_pydict() == {"a": [None], "b": [1]}


@pytest.mark.parametrize(
    ("table_name", "record", "space"),
    [
        ("flights", "flights_record", "hoodie.flights"),
        ("demo-table", "demo__table_record", "hoodie.demo__table"),
        ("2024 ü.x", "__024______x_record", "hoodie.__024______x"),
    ],
)
def test_any_table_name_makes_an_avro_name_as_in_java(
    table_name: str, record: str, space: str
) -> None:
    schema = TableSchema.from_arrow(pa.schema([("id", pa.string())]), table_name)
    document = json.loads(schema.avro_json)
    assert (document["name"], document["namespace"]) == (record, space)

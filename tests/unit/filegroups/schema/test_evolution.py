"""A column's type changes by Hudi's rules, and older rows are converted (fmt 4.4)."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from filegroups.schema.avro_schema import avro_to_arrow
from filegroups.schema.casting import normalise, promote, refuse_null_elements
from filegroups.schema.evolution import MissingColumns, SchemaRules
from filegroups.schema.java_text import java_text
from filegroups.schema.schema import TableSchema, reconcile_schema
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tests.unit.timeline.engine import files_below, new_table, planned, rows_of
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError
from timeline.model.commit_metadata import WriteOperation

FILLING = SchemaRules(missing=MissingColumns(fill=True))
DROPPING = SchemaRules(missing=MissingColumns(drop=True), required=frozenset({"id"}))
STRICT = SchemaRules()


def table_schema(**types: pa.DataType) -> TableSchema:
    return TableSchema.from_arrow(pa.schema(list(types.items())), "t")


def evolved(table_type: pa.DataType, incoming: pa.DataType) -> pa.DataType:
    """Return the column's type after the change; the Avro text must have the same type."""
    found, _ = reconcile_schema(table_schema(c=table_type), pa.schema([("c", incoming)]), FILLING)
    assert avro_to_arrow(found.avro_json) == found.arrow
    return found.arrow.field("c").type


def read_as(values: pa.Array, kind: pa.DataType) -> list[object]:
    return promote(pa.table({"c": values}), pa.schema([("c", kind)])).column("c").to_pylist()


STRUCT = pa.struct([("a", pa.int32())])
WIDER_STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("table_type", "incoming", "afterwards"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.string(), pa.string()),
        (pa.int64(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int64(), pa.large_string(), pa.string()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.float32(), pa.string(), pa.string()),
        (pa.float64(), pa.string(), pa.string()),
        (pa.decimal128(9, 2), pa.decimal128(20, 2), pa.decimal128(20, 2)),
        (pa.decimal128(9, 2), pa.decimal128(20, 5), pa.decimal128(20, 5)),
        # a narrower type is widened to the table's
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float64(), pa.int64(), pa.float64()),
        (pa.string(), pa.int32(), pa.string()),
        (pa.string(), pa.date32(), pa.string()),
        (pa.string(), pa.binary(), pa.string()),
        (pa.binary(), pa.string(), pa.binary()),
        # inside other types
        (STRUCT, WIDER_STRUCT, WIDER_STRUCT),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.field("element", pa.int64()))),
        (pa.list_(STRUCT), pa.large_list(WIDER_STRUCT), pa.list_(pa.field("element", WIDER_STRUCT))),
        (pa.map_(pa.string(), STRUCT), pa.map_(pa.string(), WIDER_STRUCT), pa.map_(pa.string(), WIDER_STRUCT)),
    ],
)  # fmt: skip
def test_a_column_gets_the_type_that_hudi_gives_it(table_type, incoming, afterwards):
    assert evolved(table_type, incoming) == afterwards


def test_evolution_keeps_schema_attributes_of_other_engines():
    text = json.dumps(
        {
            "type": "record",
            "name": "r",
            "namespace": "n",
            "doc": "kept",
            "fields": [
                {"name": "id", "type": "string"},
                {"name": "n", "type": ["int", "null"], "default": 7, "doc": "kept too"},
                {"name": "s", "type": ["null", {"type": "record", "name": "S", "doc": "inner",
                 "fields": [{"name": "a", "type": "int", "default": 1}]}], "default": None},
            ],
        }
    )  # fmt: skip
    incoming = pa.schema([("id", pa.string()), ("n", pa.string()), ("s", WIDER_STRUCT)])
    found, _ = reconcile_schema(TableSchema.from_avro(text), incoming, STRICT)
    assert json.loads(found.avro_json) == {
        "type": "record",
        "name": "r",
        "namespace": "n",
        "doc": "kept",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "n", "type": ["string", "null"], "default": "7", "doc": "kept too"},
            {"name": "s", "type": ["null", {"type": "record", "name": "S", "doc": "inner",
             "fields": [{"name": "a", "type": "long", "default": 1},
                        {"name": "b", "type": ["null", "string"], "default": None}]}],
             "default": None},
        ],
    }  # fmt: skip


def test_a_type_that_is_used_twice_does_not_change_in_one_place():
    text = json.dumps(
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "x", "type": {"type": "record", "name": "P", "fields": [{"name": "a", "type": "int"}]}},
                {"name": "y", "type": "P"},
            ],
        }
    )  # fmt: skip
    with pytest.raises(UnsupportedTableError) as caught:
        reconcile_schema(TableSchema.from_avro(text), pa.schema([("x", WIDER_STRUCT)]), FILLING)
    assert caught.value.kind == "shared_type"


def test_a_missing_column_names_the_nearest_column_of_the_rows_before_the_options():
    table = table_schema(id=pa.string(), price=pa.float64())
    with pytest.raises(InvalidInputError) as caught:
        reconcile_schema(table, pa.schema([("id", pa.string()), ("prce", pa.float64())]), STRICT)
    assert caught.value.kind == "missing_column"
    assert caught.value.message.startswith(
        "the rows lack a column of the table, and have ['prce'], which the table lacks: "
        "did you mean prce -> price? Rename it, or add it, or let it become null "
    )


def test_columns_the_rows_lack_are_refused_filled_or_dropped():
    table = table_schema(id=pa.string(), v=pa.int64(), s=WIDER_STRUCT)
    for lacking in (
        pa.schema([("id", pa.string()), ("s", WIDER_STRUCT)]),
        pa.schema([("id", pa.string()), ("v", pa.int64()), ("s", STRUCT)]),
    ):
        with pytest.raises(InvalidInputError) as caught:
            reconcile_schema(table, lacking, STRICT)
        assert caught.value.kind == "missing_column"
        assert reconcile_schema(table, lacking, FILLING) == (table, ())
    dropped, added = reconcile_schema(
        table, pa.schema([("w", pa.int32()), ("v", pa.int32())]), DROPPING
    )
    assert (dropped.arrow.names, [each.name for each in added]) == (["id", "v", "w"], ["w"])
    assert avro_to_arrow(dropped.avro_json) == dropped.arrow


def test_an_ordering_column_never_becomes_text():
    rules = SchemaRules(ordering=frozenset({"ts"}))
    table = table_schema(ts=pa.int32())
    assert reconcile_schema(table, pa.schema([("ts", pa.int64())]), rules)[0].arrow.field(0).type == pa.int64()  # fmt: skip
    with pytest.raises(InvalidInputError) as caught:
        reconcile_schema(table, pa.schema([("ts", pa.string())]), rules)
    assert caught.value.kind == "schema_mismatch"


@pytest.mark.parametrize(
    ("incoming", "why"),
    [
        (pa.struct([("a", pa.int32()), ("A", pa.int32())]), "twice"),
        (pa.struct([("A", pa.int32())]), "case"),
        (pa.struct([("a", pa.int32()), ("b c", pa.int32())]), "letters"),
    ],
)
def test_bad_names_inside_a_struct_are_refused(incoming, why):
    with pytest.raises(InvalidInputError, match=why) as caught:
        evolved(STRUCT, incoming)
    assert caught.value.kind == "bad_column_name"


# ---- older rows ----


def test_a_float_becomes_the_double_of_its_text_as_in_java():
    floats = pa.array([0.1, 1e10, None], pa.float32())
    assert read_as(floats, pa.float64()) == [0.1, 1e10, None]
    written = normalise(pa.table({"c": floats}), pa.schema([("c", pa.float64())]))
    assert written.to_pydict() == {"c": [0.1, 1e10, None]}


def test_numbers_become_text_as_in_java():
    doubles = pa.array(
        [0.1, 1e10, 1e-5, 100.0, 1.1e-4, 3e38, 123456.789, 1e7, 9999999.0, 0.001, 9.9e-4, -0.0, None]
    )  # fmt: skip
    assert java_text(doubles).to_pylist() == [
        "0.1", "1.0E10", "1.0E-5", "100.0", "1.1E-4", "3.0E38", "123456.789", "1.0E7",
        "9999999.0", "0.001", "9.9E-4", "-0.0", None,
    ]  # fmt: skip
    strange = pa.array([float("nan"), float("inf"), -float("inf"), -12345678.9, 1.2345e-300, 1e22])
    assert java_text(strange).to_pylist() == [
        "NaN", "Infinity", "-Infinity", "-1.23456789E7", "1.2345E-300", "1.0E22",
    ]  # fmt: skip
    singles = pa.array([0.1, 123456.789, 16777216.0], pa.float32())
    assert read_as(singles, pa.string()) == ["0.1", "123456.79", "1.6777216E7"]
    assert read_as(pa.array([5_000_000_000, -1]), pa.string()) == ["5000000000", "-1"]


@pytest.mark.parametrize(
    ("older", "kind", "values"),
    [
        (pa.array([7], pa.int32()), pa.float32(), [7.0]),
        (pa.array([2**24 + 1]), pa.float32(), [2.0**24]),
        (pa.array([dt.date(2024, 2, 29)]), pa.string(), ["2024-02-29"]),
        (pa.array(["ä"]), pa.binary(), ["ä".encode()]),
        (pa.array([b"ab"]), pa.string(), ["ab"]),
        (pa.array([Decimal("12.34")]), pa.decimal128(20, 5), [Decimal("12.34000")]),
        # stated by an ``alter table`` under schema on read
        (pa.array([5_000_000_000]), pa.decimal128(20, 2), [Decimal("5000000000.00")]),
        (pa.array([Decimal("12.30")]), pa.string(), ["12.30"]),
        (pa.array(["2024-02-29"]), pa.date32(), [dt.date(2024, 2, 29)]),
        # Java 1.0.2 rewrites local timestamps as bare numbers
        (pa.array([1_000_000]), pa.timestamp("us"), [dt.datetime(1970, 1, 1, 0, 0, 1)]),  # noqa: DTZ001
    ],
)
def test_older_values_are_promoted(older, kind, values):
    assert read_as(older, kind) == values


def test_older_rows_are_promoted_inside_structs_lists_and_maps():
    older = pa.table(
        {
            "s": pa.array([{"a": 1, "gone": "x"}, None]),
            "l": pa.array([[{"a": 1}], None]),
            "m": pa.array([[("k", {"a": 1})], None], pa.map_(pa.string(), STRUCT)),
            "f": pa.array([[0.1], []], pa.list_(pa.float32())),
        }
    )
    wanted = pa.schema(
        [
            ("s", pa.struct([("b", pa.string()), ("a", pa.string())])),
            ("l", pa.list_(pa.field("element", WIDER_STRUCT))),
            ("m", pa.map_(pa.string(), WIDER_STRUCT)),
            ("f", pa.list_(pa.field("element", pa.float64()))),
            ("new", pa.list_(pa.field("element", pa.int32()))),
        ]
    )
    whole = promote(older, wanted)
    whole.validate(full=True)
    assert whole.to_pylist() == [
        {
            "s": {"b": None, "a": "1"},
            "l": [{"a": 1, "b": None}],
            "m": [("k", {"a": 1, "b": None})],
            "f": [0.1],
            "new": None,
        },
        {"s": None, "l": None, "m": None, "f": [], "new": None},
    ]
    assert promote(older.slice(1), wanted).to_pylist() == whole.to_pylist()[1:]
    assert promote(older.slice(0, 0), wanted).schema == wanted


@pytest.mark.parametrize(
    ("older", "kind"),
    [
        (pa.int64(), pa.int32()),
        (pa.string(), pa.int32()),
        (pa.bool_(), pa.string()),
        (pa.timestamp("us", "UTC"), pa.string()),
        (STRUCT, pa.string()),
        (pa.list_(pa.int32()), pa.map_(pa.string(), pa.int32())),
    ],
)
def test_other_promotions_do_not_exist_even_without_rows(older, kind):
    with pytest.raises(InvalidInputError) as caught:
        read_as(pa.array([], older), kind)
    assert caught.value.kind == "schema_mismatch"


# ---- incoming rows of every type ----


def test_a_writer_refuses_values_that_a_reader_rounds():
    wanted = pa.schema([("c", pa.float64())])
    rows = pa.table({"c": [2**53 + 1]})
    with pytest.raises(InvalidInputError) as caught:
        normalise(rows, wanted)
    assert caught.value.kind == "lossy_value"
    assert promote(rows, wanted).to_pydict() == {"c": [2.0**53]}


def test_only_readers_drop_fields_that_the_table_lacks():
    held = pa.struct([("a", pa.int32()), ("z", pa.int32())])
    rows = pa.table({"c": pa.array([{"a": 1, "z": 2}], held)})
    with pytest.raises(InvalidInputError, match=r"c\.z"):
        normalise(rows, pa.schema([("c", STRUCT)]))
    assert promote(rows, pa.schema([("c", STRUCT)])).to_pylist() == [{"c": {"a": 1}}]


def test_every_arrow_form_of_a_value_is_taken():
    token = uuid.UUID("12345678-1234-5678-1234-567812345678")
    raw = pa.array([token.bytes, None], pa.binary(16))
    rows = pa.table(
        {
            "code": pa.array(["x", None]).dictionary_encode(),
            "run": pa.RunEndEncodedArray.from_arrays(pa.array([2]), pa.array(["r"])),
            "view": pa.array(["v", None], pa.string_view()),
            "bytes": pa.array([b"v", None], pa.binary_view()),
            "list": pa.array([["a"], ["b", "c"]], pa.list_view(pa.large_string())),
            "pair": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), raw),
            "wide": pa.array([Decimal("1.5"), None], pa.decimal256(40, 2)).cast(pa.decimal256(38, 2)),
        }
    )  # fmt: skip
    schema = TableSchema.from_arrow(rows.schema, "t").arrow
    assert [str(each.type) for each in schema] == [
        "string", "string", "string", "binary", "list<element: string>", "list<element: int32>",
        "string", "decimal128(38, 2)",
    ]  # fmt: skip
    taken = normalise(rows, schema)
    taken.validate(full=True)
    assert taken.to_pylist() == [
        {"code": "x", "run": "r", "view": "v", "bytes": b"v", "list": ["a"], "pair": [1, 2],
         "uuid": str(token), "wide": Decimal("1.50")},
        {"code": None, "run": "r", "view": None, "bytes": None, "list": ["b", "c"], "pair": None,
         "uuid": None, "wide": None},
    ]  # fmt: skip
    assert normalise(rows.slice(1), schema).to_pylist() == taken.to_pylist()[1:]


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (pa.float16(), "half floats"),
        (pa.uint64(), "decimal"),
        (pa.time64("us"), "time of day"),
        (pa.opaque(pa.int32(), "point", "gis"), "arrow.opaque"),
        (pa.decimal256(60, 2), "cast"),
    ],
)
def test_types_without_a_hudi_form_are_named_with_an_alternative(kind, word):
    with pytest.raises(InvalidInputError, match=word) as caught:
        table_schema(c=pa.list_(kind))
    assert (caught.value.kind, caught.value.fields["column"]) == ("unsupported_type", "c.element")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a", None]]),
        pa.array([{"x": [[None]]}], pa.struct([("x", pa.list_(pa.list_(pa.int32())))])),
        pa.array([[("k", [None])]], pa.map_(pa.string(), pa.list_(pa.int32()))),
    ],
)
def test_null_elements_of_lists_are_kept_and_refused_where_java_writes_too(column):
    rows = pa.table({"c": column})
    schema = TableSchema.from_arrow(rows.schema, "t").arrow
    assert normalise(rows, schema).to_pylist() == rows.to_pylist()
    with pytest.raises(InvalidInputError) as caught:
        refuse_null_elements(normalise(rows, schema))
    assert caught.value.kind == "null_element"
    assert promote(rows, schema).to_pylist() == rows.to_pylist()
    hidden = pa.array([["a"], ["b"]]).filter(pa.array([True, True]))
    refuse_null_elements(pa.table({"c": hidden}))


def test_a_table_s_own_resolution_of_time_is_kept():
    text = '{"type":"record","name":"r","fields":[{"name":"t","type":["null",{"type":"long","logicalType":"timestamp-millis"}],"default":null}]}'  # fmt: skip
    table = TableSchema.from_avro(text)
    incoming = pa.table({"t": pa.array([1_000], pa.timestamp("us", "UTC"))})
    assert reconcile_schema(table, incoming.schema, STRICT) == (table, ())
    assert normalise(incoming, table.arrow).schema.field("t").type == pa.timestamp("ms", "UTC")
    with pytest.raises(InvalidInputError) as caught:
        normalise(pa.table({"t": pa.array([1_001], pa.timestamp("us", "UTC"))}), table.arrow)
    assert caught.value.kind == "lossy_value"


# ---- untrusted text ----


def avro_of(inner: object) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "c", "type": inner}]})


def test_deep_types_are_refused_from_every_source():
    kind, deep = pa.int32(), "int"
    for _ in range(100):
        kind, deep = pa.list_(kind), {"type": "array", "items": deep}
    with pytest.raises(InvalidInputError, match="64 levels"):
        table_schema(c=kind)
    with pytest.raises(UnsupportedTableError, match="64 levels"):
        avro_to_arrow(avro_of(["null", deep]))
    with pytest.raises((CorruptTableError, UnsupportedTableError)):
        avro_to_arrow('{"type":"record","name":"r","fields":[{"name":"c","type":' + "[" * 100_000)


def test_types_that_contain_each_other_many_times_are_refused():
    fields = [{"name": "c0", "type": {"type": "record", "name": "T0", "fields": [{"name": "a", "type": "int"}]}}]  # fmt: skip
    for level in range(1, 30):
        inner = [{"name": side, "type": f"T{level - 1}"} for side in ("l", "r")]
        fields.append({"name": f"c{level}", "type": {"type": "record", "name": f"T{level}", "fields": inner}})  # fmt: skip
    with pytest.raises(UnsupportedTableError, match="100000 columns"):
        avro_to_arrow(json.dumps({"type": "record", "name": "r", "fields": fields}))


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        ({"type": "record", "name": "S", "fields": [{"name": "s", "type": ["null", "S"]}]}, "contain themselves"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "microseconds"),
        (["int", "string"], "unions"),
    ],
)  # fmt: skip
def test_avro_types_without_a_column_type_are_refused_with_a_reason(inner, why):
    with pytest.raises(UnsupportedTableError, match=why):
        avro_to_arrow(avro_of(inner))


@pytest.mark.parametrize("for_java", [False, True])
def test_null_elements_are_refused_where_java_writers_are_expected(for_java):
    table = new_table()
    rows = pa.Table.from_pylist([{"id": "a", "p": "x", "ts": 1, "v": 1, "many": [1, None]}])
    plan = planned(table, WriteOperation.UPSERT)
    plan = replace(plan, rules=replace(plan.rules, for_java=for_java))
    workload = LocalWorkload(table.context.ports, rows)
    if not for_java:
        write(table.context, plan, workload)
        assert rows_of(table, "many") == [([1, None],)]
        return
    before = files_below(table.context.ports.storage)
    with pytest.raises(InvalidInputError) as caught:
        write(table.context, plan, workload)
    assert caught.value.kind == "null_element"
    assert files_below(table.context.ports.storage) == before

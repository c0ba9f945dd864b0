"""Values of every Avro type and handwritten bytes, in both directions."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from filegroups.files.avro_columns import (
    decode_block,
    decode_datums,
    decode_records,
    encode_records,
)
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError

PATH = "p/.f_1.log.1_0-0-0"
HEAD = "00000003 00000001"


def record(*types: Any) -> str:
    fields = [{"name": f"c{i}", "type": each} for i, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


DECIMAL = {"type": "fixed", "name": "d", "size": 3, "logicalType": "decimal", "precision": 5}
ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B", "Ü"]}
NESTED = {
    "type": "record",
    "name": "n",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"]}],
}
LONGS = {"type": "array", "items": "long"}
TEXTS = {"type": "array", "items": ["null", "string"]}
COUNTS = {"type": "map", "values": "int"}

CASES = [
    ("null", "", pa.null(), None),
    ("boolean", "01", pa.bool_(), True),
    ("boolean", "00", pa.bool_(), False),
    ("int", "00", pa.int32(), 0),
    ("int", "01", pa.int32(), -1),
    ("int", "7f", pa.int32(), -64),
    ("int", "8001", pa.int32(), 64),
    ("int", "feffffff0f", pa.int32(), 2147483647),
    ("int", "ffffffff0f", pa.int32(), -2147483648),
    ("long", "80808080808040", pa.int64(), 1 << 47),
    ("long", "ffffffffffffff7f", pa.int64(), -(1 << 55)),
    ("long", "808080808080808001", pa.int64(), 1 << 55),
    ("long", "feffffffffffffffff01", pa.int64(), 9223372036854775807),
    ("long", "ffffffffffffffffff01", pa.int64(), -9223372036854775808),
    ("float", "0000c03f", pa.float32(), 1.5),
    ("double", "000000000000f8bf", pa.float64(), -1.5),
    ("bytes", "0400ff", pa.binary(), b"\x00\xff"),
    ("bytes", "00", pa.binary(), b""),
    ("string", "0cc3bce29c9321", pa.string(), "ü✓!"),
    (logical("string", "uuid"), "0261", pa.string(), "a"),
    ({"type": "string", "avro.java.string": "String"}, "0261", pa.string(), "a"),
    ({"type": "fixed", "name": "f", "size": 2}, "cafe", pa.binary(2), b"\xca\xfe"),
    (ENUM, "04", pa.string(), "Ü"),
    (DECIMAL, "fffffe", pa.decimal128(5, 0), Decimal(-2)),
    (DECIMAL, "00ea60", pa.decimal128(5, 0), Decimal(60000)),
    (
        logical("bytes", "decimal", precision=20, scale=2),
        "1200123456789abcdef0",
        pa.decimal128(20, 2),
        Decimal("13117684674637903.20"),
    ),
    (logical("int", "date"), "a0b202", pa.date32(), date(2023, 8, 31)),
    (logical("int", "time-millis"), "d00f", pa.time32("ms"), time(0, 0, 1)),
    (logical("long", "time-micros"), "80897a", pa.time64("us"), time(0, 0, 1)),
    (
        logical("long", "timestamp-millis"),
        "d00f",
        pa.timestamp("ms", "UTC"),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ),
    (
        logical("long", "timestamp-micros"),
        "8080f28183898506",
        pa.timestamp("us", "UTC"),
        datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    ),
    (
        logical("long", "local-timestamp-micros"),
        "80897a",
        pa.timestamp("us"),
        datetime(1970, 1, 1, 0, 0, 1),  # noqa: DTZ001
    ),
    (
        logical("long", "local-timestamp-millis"),
        "cf0f",
        pa.timestamp("ms"),
        datetime(1969, 12, 31, 23, 59, 59),  # noqa: DTZ001
    ),
    (NESTED, "06020261", pa.struct({"a": pa.int32(), "b": pa.string()}), {"a": 3, "b": "a"}),
    (LONGS, "04020400", pa.list_(pa.field("element", pa.int64())), [1, 2]),
    (LONGS, "00", pa.list_(pa.field("element", pa.int64())), []),
    (TEXTS, "04000204787900", pa.list_(pa.field("element", pa.string())), [None, "xy"]),
    (COUNTS, "02026b0e00", pa.map_(pa.string(), pa.int32()), [("k", 7)]),
]
IDS = [f"{json.dumps(each[0])[:40]}-{each[1]}" for each in CASES]


def framed(*rows: str) -> bytes:
    data = [bytes.fromhex(row) for row in rows]
    return b"".join(len(each).to_bytes(4, "big") + each for each in data)


def decoded(schema: str, *rows: str, reader: pa.Schema | None = None) -> pa.Table:
    return decode_records(framed(*rows), len(rows), schema, reader, path=PATH)


@pytest.mark.parametrize(("avro", "datum", "arrow", "value"), CASES, ids=IDS)
def test_a_value_is_read_as_written_by_hand(
    avro: Any, datum: str, arrow: pa.DataType, value: Any
) -> None:
    table = decoded(record(avro), datum, datum)
    table.validate(full=True)
    assert table.schema == pa.schema([("c0", arrow)])
    assert table.to_pylist() == [{"c0": value}] * 2


@pytest.mark.parametrize(("avro", "datum", "arrow", "value"), CASES[1:], ids=IDS[1:])
def test_a_nullable_value_is_read_in_both_orders_of_the_union(
    avro: Any, datum: str, arrow: pa.DataType, value: Any
) -> None:
    first = decoded(record(["null", avro], "boolean"), "02" + datum + "01", "0000")
    last = decoded(record([avro, "null"], "boolean"), "0201", "00" + datum + "00")
    first.validate(full=True)
    last.validate(full=True)
    assert first.to_pylist() == [{"c0": value, "c1": True}, {"c0": None, "c1": False}]
    assert last.to_pylist() == [{"c0": None, "c1": True}, {"c0": value, "c1": False}]


@pytest.mark.parametrize(("avro", "datum", "arrow", "value"), CASES, ids=IDS)
def test_a_value_is_written_as_by_hand(
    avro: Any, datum: str, arrow: pa.DataType, value: Any
) -> None:
    table = pa.table([pa.array([value], arrow)], names=["c0"])
    assert encode_records(table, record(avro)) == bytes.fromhex(HEAD) + framed(datum)


@pytest.mark.parametrize(("avro", "datum", "arrow", "value"), CASES[1:], ids=IDS[1:])
def test_nulls_are_written_by_the_branch_of_the_schema(
    avro: Any, datum: str, arrow: pa.DataType, value: Any
) -> None:
    values = pa.array([value, None, None, value], arrow).slice(1)
    head = bytes.fromhex("00000003 00000003")
    table = pa.table([values], names=["c0"])
    first = framed("00", "00", "02" + datum)
    last = framed("02", "02", "00" + datum)
    assert encode_records(table, record(["null", avro])) == head + first
    assert encode_records(table, record([avro, "null"])) == head + last


def test_a_block_begins_with_version_and_count() -> None:
    content = bytes.fromhex("00000003 00000002") + framed("02", "04")
    assert decode_block(content, record("int"), path=PATH)["c0"].to_pylist() == [1, 2]
    assert encode_records(pa.table({"c0": pa.array([1, 2], pa.int32())}), record("int")) == content
    with pytest.raises(CorruptTableError, match=r"content version 4.*p/\.f_1"):
        decode_block(b"\0\0\0\4" + content[4:], record("int"), path=PATH)
    with pytest.raises(CorruptTableError):
        decode_block(content[:7], record("int"), path=PATH)


def test_a_block_without_records_has_the_columns() -> None:
    content = bytes.fromhex("00000003 00000000")
    table = decode_block(content, record("int", TEXTS), path=PATH)
    assert table.num_rows == 0
    assert table.schema.names == ["c0", "c1"]
    assert encode_records(table, record("int", TEXTS)) == content


def test_several_blocks_of_an_array_are_one_list() -> None:
    rows = ["02 02 01 02 04 00", "00", "04 06 08 01 02 0a 00"]
    for copies in (1, 100):  # one by one, and all arrays at once
        table = decoded(record(LONGS), *rows * copies)
        assert table["c0"].to_pylist() == [[1, 2], [], [3, 4, 5]] * copies


def test_long_and_short_arrays_are_decoded_together() -> None:
    many = "d00f" + "01" * 1000 + "00"
    rows = ["020200"] * 100 + [many] + ["00"] * 100
    table = decoded(record(LONGS), *rows)
    assert table["c0"].to_pylist() == [[1]] * 100 + [[-1] * 1000] + [[]] * 100


def test_arrays_in_arrays_keep_their_order() -> None:
    deep = {"type": "array", "items": ["null", LONGS]}
    rows = ["06 00 02 00 02 02 02 00 00", "00"] * 60
    table = decoded(record(deep, "int"), *(row + "08" for row in rows))
    assert table["c0"].to_pylist() == [[None, [], [1]], []] * 60
    assert table["c1"].to_pylist() == [4] * 120


def test_only_wanted_columns_are_built_and_the_rest_is_null() -> None:
    schema = record("string", ["null", NESTED], TEXTS, "long", ["null", "int", "string"])
    row = "0261" + "0206020262" + "0202026300" + "0a" + "04047879"
    wanted = pa.schema([("c3", pa.int64()), ("gone", pa.string()), ("new", pa.int32())])
    table = decoded(schema, row, row, reader=wanted)
    assert table.schema == wanted
    assert table.to_pylist() == [{"c3": 5, "gone": None, "new": None}] * 2


def test_values_of_a_column_are_records_without_lengths() -> None:
    values = pa.array([b"zz", b"\x02", b"\x04", b"\x06"], pa.binary())
    assert decode_datums(values.slice(1, 2), record("int"), path=PATH)["c0"].to_pylist() == [1, 2]
    assert decode_datums(values.slice(1, 0), record("int"), path=PATH).num_rows == 0
    with pytest.raises(CorruptTableError):
        decode_datums(values, record("int"), path=PATH)


def test_columns_that_no_record_has_are_null_for_every_row() -> None:
    table = decoded(record("int"), "02", "04", reader=pa.schema([("C0", pa.int32())]))
    assert table.to_pylist() == [{"C0": None}, {"C0": None}]


def test_fields_of_a_struct_are_matched_by_name() -> None:
    wanted = pa.schema([("c0", pa.struct({"new": pa.int64(), "b": pa.string()}))])
    table = decoded(record(["null", NESTED]), "0206020261", "00", reader=wanted)
    assert table.schema == wanted
    assert table.to_pylist() == [{"c0": {"new": None, "b": "a"}}, {"c0": None}]


@pytest.mark.parametrize(
    ("avro", "datum", "arrow", "value"),
    [
        ("int", "06", pa.int64(), 3),
        ("int", "06", pa.float32(), 3.0),
        ("int", "06", pa.float64(), 3.0),
        ("long", "06", pa.float64(), 3.0),
        ("float", "0000c03f", pa.float64(), 1.5),
        ("string", "0261", pa.binary(), b"a"),
        ("bytes", "0261", pa.string(), "a"),
        (DECIMAL, "00ea60", pa.decimal128(10, 2), Decimal("60000.00")),
        (LONGS, "020600", pa.list_(pa.field("element", pa.float64())), [3.0]),
    ],
)
def test_older_types_are_promoted(avro: Any, datum: str, arrow: pa.DataType, value: Any) -> None:
    wanted = pa.schema([("c0", arrow)])
    table = decoded(record(avro), datum, reader=wanted)
    assert table.schema == wanted
    assert table.to_pylist() == [{"c0": value}]


def test_a_type_that_does_not_promote_is_refused() -> None:
    with pytest.raises(InvalidInputError) as caught:
        decoded(record("string"), "0261", reader=pa.schema([("c0", pa.int64())]))
    assert caught.value.fields["column"] == "c0"


@pytest.mark.parametrize(
    "avro",
    [
        ["null", "int", "string"],
        {"type": "array", "items": "null"},
        {"type": "fixed", "name": "f", "size": 1 << 30},
        logical("bytes", "decimal", precision=39),
    ],
)
def test_types_beyond_this_engine_are_refused_by_name(avro: Any) -> None:
    with pytest.raises(UnsupportedTableError) as caught:
        decoded(record(avro), "00")
    assert caught.value.kind == "unsupported_type"


def test_named_types_are_found_by_short_and_full_name() -> None:
    inner = {"type": "fixed", "name": "f", "namespace": "a.b", "size": 1}
    other = {"type": "record", "name": "a.b.n", "fields": [{"name": "x", "type": "f"}]}
    table = decoded(record(inner, "a.b.f", other), "010203")
    assert table.to_pylist() == [{"c0": b"\1", "c1": b"\2", "c2": {"x": b"\3"}}]


def test_more_rows_than_a_chunk_keep_their_order() -> None:
    numbers = pa.array(range(40_000), pa.int64())
    texts = pa.array([None, "a", "ö" * 50, ""] * 10_000)
    lists = pa.array([[1], None, [], [2, 3]] * 10_000, pa.list_(pa.field("element", pa.int64())))
    rows = pa.table({"c0": numbers, "c1": texts, "c2": lists})
    schema = record("long", ["null", "string"], ["null", LONGS])
    content = encode_records(rows.slice(3), schema)
    assert decode_block(content, schema, path=PATH) == rows.slice(3)


def test_rows_to_write_must_fit_the_schema() -> None:
    with pytest.raises(InvalidInputError) as unknown:
        encode_records(pa.table({"c0": [1], "zz": [2]}), record("long"))
    assert unknown.value.fields["columns"] == ["zz"]
    with pytest.raises(InvalidInputError) as null:
        encode_records(pa.table({"c0": [1, None]}), record("long"))
    assert null.value.kind == "null_value"
    with pytest.raises(InvalidInputError) as absent:
        encode_records(pa.table({"c0": [1]}), record("long", "string"))
    assert absent.value.fields["column"] == "c1"
    with pytest.raises(InvalidInputError) as symbol:
        encode_records(pa.table({"c0": ["C"]}), record(ENUM))
    assert symbol.value.kind == "unknown_symbol"
    with pytest.raises(InvalidInputError):
        encode_records(pa.table({"c0": ["x"]}), record("long"))


def test_columns_to_write_may_have_any_order_and_be_missing() -> None:
    schema = record("int", ["null", "string"], ["null", "long"])
    rows = pa.table({"c2": pa.array([5]), "c0": pa.array([1], pa.int16())})
    assert encode_records(rows, schema) == bytes.fromhex(HEAD) + framed("0200020a")


def test_a_map_that_was_decoded_is_written_to_parquet_as_it_is() -> None:
    """Arrow's Parquet writer overruns its buffers when the map's keys may be null."""
    schema = record({"type": "map", "values": ["null", {"type": "map", "values": "long"}]})
    table = decoded(schema, "04" + "026b" + "00" + "026c" + "02" + "02" + "026d" + "02" + "0000")
    expected = [{"c0": [("k", None), ("l", [("m", 1)])]}]
    assert table.to_pylist() == expected
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert pq.ParquetFile(pa.BufferReader(sink.getvalue())).read().to_pylist() == expected

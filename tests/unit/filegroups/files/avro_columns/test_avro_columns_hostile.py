"""Damaged and malicious blocks raise a clear error, within the size of the input."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pyarrow as pa
import pytest

from filegroups.files.avro_columns import decode_block, decode_records, encode_records
from timeline.errors import CorruptTableError, UnsupportedTableError

PATH = "p/.f_1.log.1_0-0-0"


def record(*types: Any) -> str:
    fields = [{"name": f"c{i}", "type": each} for i, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


def framed(*rows: str) -> bytes:
    data = [bytes.fromhex(row) for row in rows]
    return b"".join(len(each).to_bytes(4, "big") + each for each in data)


LONGS = {"type": "array", "items": "long"}
TEXTS = {"type": "array", "items": ["null", "string"]}
MAP = {"type": "map", "values": LONGS}
NARROW = {"type": "fixed", "name": "d", "size": 2, "logicalType": "decimal", "precision": 2}


@pytest.mark.parametrize(
    ("avro", "datum"),
    [
        ("int", ""),
        ("int", "80"),
        ("int", "8080808010"),  # 33 bits
        ("int", "808080808001"),
        ("long", "ffffffffffffffffff02"),  # 65 bits
        ("long", "ffffffffffffffffffff01"),
        ("long", "0000"),  # one byte too many
        ("boolean", "02"),
        ("float", "0000c0"),
        ("double", "00000000000000"),
        ("string", "04"),
        ("string", "0661"),
        ("string", "0161"),  # length -1
        ("string", "feffffffffffffffff01"),
        ("string", "02ff"),
        ("string", "04c3a9c3"),
        ("bytes", "ffffffffffffffffff01"),
        ({"type": "fixed", "name": "f", "size": 3}, "0102"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "02"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "01"),
        (["null", "long"], "04"),
        (["null", "long"], "01"),
        (["null", "long"], "8000"),  # a branch in two bytes
        (["null", "string"], "0206"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, "00"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, "22" + "00" * 17),
        (NARROW, "0064"),  # 100 has three digits
        (LONGS, "02"),
        (LONGS, "0202"),
        (LONGS, "feffffffffffffffff0100"),  # 2**63 - 1 items
        (LONGS, "ffffffffffffffffff010000"),  # -2**63 items
        (LONGS, "01"),
        (LONGS, "010602"),
        (TEXTS, "04000400"),
        (TEXTS, "0202016100"),
        (MAP, "02026b0202"),
        ({"type": "array", "items": "double"}, "0a" + "00" * 8),
    ],
)
@pytest.mark.parametrize("copies", [1, 100])
def test_a_damaged_value_is_an_error_that_names_the_path(
    avro: Any, datum: str, copies: int
) -> None:
    # A hundred times, so that arrays are also read all at once; then after valid records.
    for schema, row in ((record(avro), datum), (record("int", avro), "02" + datum)):
        with pytest.raises(CorruptTableError) as caught:
            decode_records(framed(*[row] * copies), copies, schema, None, path=PATH)
        assert caught.value.fields["path"] == PATH


@pytest.mark.parametrize(
    ("avro", "datum"),
    [("string", "0661"), (LONGS, "02"), (MAP, "02026b0202"), (["null", "long"], "04")],
)
def test_a_damaged_value_outside_the_requested_columns_is_an_error_too(
    avro: Any, datum: str
) -> None:
    wanted = pa.schema([("c1", pa.int32())])
    rows = [datum + "02"] * 100
    with pytest.raises(CorruptTableError):
        decode_records(framed(*rows), 100, record(avro, "int"), wanted, path=PATH)


@pytest.mark.parametrize("copies", [2, 100])
@pytest.mark.parametrize(
    ("avro", "datum"),
    [("double", "0000"), ("string", "0461"), (LONGS, "0202"), (LONGS, "0102"), (MAP, "")],
)
def test_a_value_does_not_end_in_the_next_record(avro: Any, datum: str, copies: int) -> None:
    cases = (record(avro, "int"), datum), (record(["null", avro], "int"), "02" + datum)
    for schema, row in cases:
        columns = decode_records(b"", 0, schema, None, path=PATH).schema
        first = pa.schema([columns.field(0)])  # the rest of the record is not read
        with pytest.raises(CorruptTableError):
            decode_records(framed(*[row] * copies), copies, schema, first, path=PATH)


def test_a_skipped_value_does_not_move_the_position_back() -> None:
    wanted = pa.schema([("c1", pa.int32())])
    with pytest.raises(CorruptTableError):  # a length of -1, which is then read as the int
        decode_records(framed("01", "01"), 2, record("string", "int"), wanted, path=PATH)


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (b"", 1),
        (b"\0\0\0", 1),
        (b"\0\0\0\2\2", 1),
        (b"\0\0\0\1\2", 2),
        (b"\0\0\0\1\2", 0),
        (b"\0\0\0\1\2\0", 1),
        (b"\xff\xff\xff\xff\2", 1),
        (b"\x7f\xff\xff\xff\2", 1),
        (b"\0\0\0\1\2", -1),
        (b"\0\0\0\1\2", 2**31 - 1),
    ],
)
def test_damaged_framing_is_an_error(content: bytes, count: int) -> None:
    with pytest.raises(CorruptTableError) as caught:
        decode_records(content, count, record("int"), None, path=PATH)
    assert caught.value.fields["path"] == PATH


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "{}",
        "[]",
        '"int"',
        "nonsense",
        record("int").replace('"c0"', '["c0"]').replace('"name": ["c0"], ', ""),
        '{"type": "record", "name": "r", "fields": 3}',
        record({"type": "fixed", "name": "f", "size": "x"}),
        record([]),
        "[" * 100_000,
        record("int", "int").replace("c1", "c0"),
    ],
)
def test_a_damaged_schema_is_an_error(schema: str) -> None:
    with pytest.raises(CorruptTableError) as caught:
        decode_records(b"", 0, schema, None, path=PATH)
    assert caught.value.kind == "bad_schema"


def doubling(levels: int) -> str:
    kind: Any = "int"
    for level in range(levels):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"n{level - 1}"}]
        if not level:
            fields[1]["type"] = "int"
        kind = {"type": "record", "name": f"n{level}", "fields": fields}
    return record(kind)


def nested(levels: int) -> str:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return record(kind)


@pytest.mark.parametrize(
    "schema",
    [
        doubling(40),
        nested(70),
        record({"type": "record", "name": "n", "fields": [{"name": "a", "type": ["null", "n"]}]}),
        record(*["int"] * 30_000),
        record({"type": "fixed", "name": "f", "size": 2**40}),
        record({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}),
    ],
    ids=["doubling", "nested", "recursive", "wide", "fixed", "empty items"],
)
def test_a_schema_of_exponential_size_is_refused(schema: str) -> None:
    with pytest.raises(UnsupportedTableError):
        decode_records(b"", 0, schema, None, path=PATH)


@pytest.mark.parametrize("in_struct", [False, True])
def test_nulls_of_a_wide_type_cannot_fill_the_memory(in_struct: bool) -> None:
    wide: Any = {"type": "fixed", "name": "f", "size": 1 << 20}
    if in_struct:
        wide = {"type": "record", "name": "n", "fields": [{"name": "a", "type": wide}]}
    with pytest.raises(CorruptTableError, match="more bytes of nulls"):
        decode_records(framed("00") * 5_000, 5_000, record(["null", wide]), None, path=PATH)


def test_one_endless_array_among_many_takes_time_by_its_size_only() -> None:
    long_array = "80897a" + "00" * 1_000_000 + "00"  # a million items
    blocks = "0200" * 200_000 + "00"  # the same number of blocks with one item each
    rows = ["00"] * 100 + [long_array, blocks]
    table = decode_records(framed(*rows), len(rows), record(LONGS), None, path=PATH)
    assert [len(each) for each in table["c0"][99:]] == [0, 1_000_000, 200_000]


SCHEMA = record(["null", "string"], "long", TEXTS, ["null", MAP], NARROW, ["null", "double"], LONGS)


def block() -> bytes:
    pairs = pa.map_(pa.string(), pa.list_(pa.field("element", pa.int64())))
    rows = 200
    columns = {
        "c0": pa.array([None, "a", "bc" * 40, "ü"] * (rows // 4)),
        "c1": pa.array(range(0, rows * 1_000_003, 1_000_003)),
        "c2": pa.array([[], ["x", None], ["y"] * 3, []] * (rows // 4)),
        "c3": pa.array([None, [("k", [1, 2])], [], [("l", []), ("m", [3])]] * (rows // 4), pairs),
        "c4": pa.array([1, -1, 99, 0] * (rows // 4), pa.int8()).cast(pa.decimal128(3, 0)),
        "c5": pa.array([None, 0.5, 1.5, -2.0] * (rows // 4)),
        "c6": pa.array([[1], [], [2, 3], [4] * 20] * (rows // 4)),
    }
    columns["c4"] = columns["c4"].cast(pa.decimal128(2, 0))
    return encode_records(pa.table(columns), SCHEMA)


def test_mutated_blocks_give_an_error_or_a_valid_table() -> None:
    good = block()
    assert decode_block(good, SCHEMA, path=PATH).num_rows == 200
    dice = random.Random(20261101)
    right = 0
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(bad))
            bad[at] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, dice.randrange(256)))
        if dice.random() < 0.2:
            del bad[dice.randrange(len(bad)) :]
        # Any other error fails the test.
        with contextlib.suppress(CorruptTableError):
            decode_block(bytes(bad), SCHEMA, path=PATH).validate(full=True)
            right += 1
    assert 0 < right < 400

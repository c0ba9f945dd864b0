"""Delete blocks: Java's are decoded, ours equal Java's byte for byte, and damage is named."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import struct
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.files.delete_block import decode_deletes, encode_deletes, ordering_names
from tests.interop import golden_tables
from timeline.codecs.log_blocks import BlockType, BytesSource, iter_blocks, read_content
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError

UTC = dt.UTC
KEY, PATH = "_hoodie_record_key", "_hoodie_partition_path"


def wrapper(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "value", "type": kind}]}


PLAIN = [
    wrapper("BooleanWrapper", "boolean"),
    wrapper("IntWrapper", "int"),
    wrapper("LongWrapper", "long"),
    wrapper("FloatWrapper", "float"),
    wrapper("DoubleWrapper", "double"),
    wrapper("BytesWrapper", "bytes"),
    wrapper("StringWrapper", "string"),
    wrapper("DateWrapper", "int"),
    wrapper(
        "DecimalWrapper",
        {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15},
    ),
    wrapper("TimeMicrosWrapper", {"type": "long", "logicalType": "time-micros"}),
    wrapper("TimestampMicrosWrapper", "long"),
]
SEVERAL = {
    "type": "record",
    "name": "ArrayWrapper",
    "fields": [
        {
            "name": "wrappedValues",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": [
                        "null",
                        *(one["name"] for one in PLAIN),
                        wrapper("LocalDateWrapper", "int"),
                    ],
                },
            ],
        }
    ],
}
DELETES = fastavro.parse_schema(
    {
        "type": "record",
        "name": "HoodieDeleteRecordList",
        "fields": [
            {
                "name": "deleteRecordList",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "HoodieDeleteRecord",
                        "fields": [
                            {"name": "recordKey", "type": ["null", "string"]},
                            {"name": "partitionPath", "type": ["null", "string"]},
                            {"name": "orderingVal", "type": ["null", *PLAIN, SEVERAL]},
                        ],
                    },
                },
            }
        ],
    }
)


def framed(datum: bytes, version: int = 3) -> bytes:
    return struct.pack(">ii", version, len(datum)) + datum


def by_avro(*deletes: tuple[str | None, str | None, Any]) -> bytes:
    """Encode the content with another Avro library; an ordering is (wrapper, value) or None."""
    records = [
        {"recordKey": key, "partitionPath": path, "orderingVal": boxed(ordering)}
        for key, path, ordering in deletes
    ]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, DELETES, {"deleteRecordList": records})
    return framed(out.getvalue())


def boxed(ordering: Any) -> Any:
    if ordering is None:
        return None
    name, value = ordering
    if name == "ArrayWrapper":
        return (name, {"wrappedValues": [boxed(one) for one in value]})
    return (name, {"value": value})


def rows(content: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decode_deletes(content, path="p/x.log").to_pylist()
    return found


def orderings(content: bytes) -> list[Any]:
    return [row["ordering_0"] for row in rows(content)]


# ---------------------------------------------------------------- Java's blocks


def of_java(name: str, folder: Path) -> list[tuple[str, bytes]]:
    """Return instant and content of every delete block of a golden table, oldest first."""
    found = []
    for file in sorted(golden_tables.unpack(name, folder).rglob(".*.log.*")):
        if file.name.endswith(".crc") or ".temp" in file.parts:
            continue
        source = BytesSource(file.read_bytes())
        for block in iter_blocks(source, len(source.data), path=file.name):
            if block.block_type is BlockType.DELETE:
                found.append((block.instant_time, read_content(source, block)))
    return sorted(found)


def test_deletes_with_and_without_ordering_of_version_8(tmp_path: Path) -> None:
    real, by_commit_time = of_java("v8_deletes_ordering", tmp_path)
    assert rows(real[1]) == [
        {KEY: "a", PATH: "", "is_commit_time": False, "ordering_0": 90},
        {KEY: "b", PATH: "", "is_commit_time": False, "ordering_0": 100},
        {KEY: "c", PATH: "", "is_commit_time": False, "ordering_0": 110},
    ]
    assert rows(by_commit_time[1]) == [
        {KEY: "d", PATH: "", "is_commit_time": True},
        {KEY: "e", PATH: "", "is_commit_time": True},
    ]


@pytest.mark.parametrize(
    ("name", "key", "partition_path"),
    [
        ("v6_mor_logs", "a03", "region=us"),
        ("v8_mor_logs", "a03", "region=us"),
        ("v9_cdc_mor", "a01", ""),
        ("v9_commit_time_order", "c", ""),
        ("v9_multi_ordering", "b", ""),
    ],
)
def test_java_s_delete_operation_is_a_commit_time_delete(
    tmp_path: Path, name: str, key: str, partition_path: str
) -> None:
    ((_, content),) = of_java(name, tmp_path)
    assert rows(content) == [{KEY: key, PATH: partition_path, "is_commit_time": True}]


def test_the_metadata_table_writes_blocks_without_deletes(tmp_path: Path) -> None:
    contents = of_java("v9_cow_mdt_record_index", tmp_path)
    assert [rows(content) for _, content in contents] == [[]] * 5


@pytest.mark.parametrize("name", golden_tables.names())
def test_every_delete_block_of_java_is_written_again_byte_for_byte(
    tmp_path: Path, name: str
) -> None:
    for _, content in of_java(name, tmp_path):
        found = decode_deletes(content, path=name)
        columns = [found[each] for each in ordering_names(found)]
        path = found[PATH][0].as_py() if found.num_rows else ""
        again = encode_deletes(found[KEY], path, columns, is_commit_time=found["is_commit_time"])
        assert again == content


# ---------------------------------------------------------------- every wrapper

VALUES: list[tuple[str, Any, Any, pa.DataType]] = [
    ("BooleanWrapper", True, True, pa.bool_()),
    ("IntWrapper", -7, -7, pa.int32()),
    ("LongWrapper", 2**62, 2**62, pa.int64()),
    ("LongWrapper", -(2**63), -(2**63), pa.int64()),
    ("FloatWrapper", 0.5, 0.5, pa.float32()),
    ("DoubleWrapper", -1e300, -1e300, pa.float64()),
    ("BytesWrapper", b"\x00\xff", b"\x00\xff", pa.binary()),
    ("StringWrapper", "é𝄞", "é𝄞", pa.string()),
    ("DateWrapper", 20_000, dt.date(2024, 10, 4), pa.date32()),
    (
        "DecimalWrapper",
        decimal.Decimal("-12345678901234.5"),
        decimal.Decimal("-12345678901234.5"),
        pa.decimal128(30, 15),
    ),
    ("TimeMicrosWrapper", dt.time(1, 2, 3), dt.time(1, 2, 3), pa.time64("us")),
    (
        "TimestampMicrosWrapper",
        1_000_000,
        dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        pa.timestamp("us", "UTC"),
    ),
]


@pytest.mark.parametrize(("name", "written", "read", "kind"), VALUES)
def test_an_ordering_has_the_type_of_its_wrapper(
    name: str, written: Any, read: Any, kind: pa.DataType
) -> None:
    content = by_avro(("k", "p", (name, written)), ("l", "p", (name, written)))
    found = decode_deletes(content, path="x")
    assert found["ordering_0"].type == kind
    assert found["ordering_0"].to_pylist() == [read, read]
    assert found["is_commit_time"].to_pylist() == [False, False]


@pytest.mark.parametrize(("name", "written", "read", "kind"), VALUES)
def test_an_ordering_among_several_has_the_type_of_its_wrapper(
    name: str, written: Any, read: Any, kind: pa.DataType
) -> None:
    several = ("ArrayWrapper", [("LongWrapper", 1), (name, written)])
    found = decode_deletes(by_avro(("k", "p", several)), path="x")
    assert ordering_names(found) == ["ordering_0", "ordering_1"]
    assert found["ordering_1"].type == kind
    assert found.select(ordering_names(found)).to_pylist() == [
        {"ordering_0": 1, "ordering_1": read}
    ]


def test_several_orderings_may_hold_nothing_and_local_dates() -> None:
    content = by_avro(
        ("k", "p", ("ArrayWrapper", [None, ("LocalDateWrapper", 1), ("IntWrapper", 0)])),
        ("l", "p", ("ArrayWrapper", [("LongWrapper", 2), None, None])),
    )
    assert rows(content) == [
        {
            KEY: "k",
            PATH: "p",
            "is_commit_time": False,
            "ordering_0": None,
            "ordering_1": dt.date(1970, 1, 2),
            "ordering_2": 0,
        },
        {
            KEY: "l",
            PATH: "p",
            "is_commit_time": False,
            "ordering_0": 2,
            "ordering_1": None,
            "ordering_2": None,
        },
    ]


def test_an_int_of_zero_and_null_mean_commit_time_among_others() -> None:
    content = by_avro(
        ("a", "p", ("LongWrapper", 5)),
        ("b", None, ("IntWrapper", 0)),
        ("c", "", None),
        (None, "p", ("LongWrapper", 0)),
    )
    assert [tuple(row.values()) for row in rows(content)] == [
        ("a", "p", False, 5),
        ("b", None, True, None),
        ("c", "", True, None),
        (None, "p", False, 0),
    ]


def test_numbers_of_different_width_become_the_wider() -> None:
    assert orderings(by_avro(("a", "", ("IntWrapper", 3)), ("b", "", ("LongWrapper", 4)))) == [3, 4]
    mixed = by_avro(("a", "", ("FloatWrapper", 0.5)), ("b", "", ("DoubleWrapper", 2.0)))
    assert orderings(mixed) == [0.5, 2.0]


@pytest.mark.parametrize(
    "two",
    [
        (("StringWrapper", "1"), ("LongWrapper", 1)),
        (("LongWrapper", 1), ("ArrayWrapper", [("LongWrapper", 1), ("LongWrapper", 1)])),
        (
            ("ArrayWrapper", [("LongWrapper", 1)]),
            ("ArrayWrapper", [("LongWrapper", 1), ("LongWrapper", 1)]),
        ),
        (("ArrayWrapper", []), ("ArrayWrapper", [])),
    ],
)
def test_orderings_that_cannot_be_compared_are_damage(two: tuple[Any, Any]) -> None:
    with pytest.raises(CorruptTableError, match="ordering"):
        rows(by_avro(("a", "", two[0]), ("b", "", two[1])))


# ---------------------------------------------------------------- many records


@pytest.mark.parametrize("count", [255, 256, 257, 40_000])
@pytest.mark.parametrize("partition_path", ["region=us", "", None])
def test_many_deletes_are_read_as_few(count: int, partition_path: str | None) -> None:
    deletes = [(f"key-{n * n}", partition_path, ("LongWrapper", n * 1000)) for n in range(count)]
    found = decode_deletes(by_avro(*deletes), path="x")
    assert found[KEY].to_pylist() == [key for key, _, _ in deletes]
    assert found[PATH].to_pylist() == [partition_path] * count
    assert found["ordering_0"].to_pylist() == [n * 1000 for n in range(count)]


@pytest.mark.parametrize(
    "traps",
    [
        {3: ("\x02\x00\x06", "", ("LongWrapper", 1))},  # the searched bytes are inside a key
        {3: ("k", "elsewhere", ("LongWrapper", 1))},
        {3: ("k\x02\x00\x06\x08", "", ("LongWrapper", 1)), 9: ("k", "q", ("LongWrapper", 2))},
        {3: ("k", "", ("IntWrapper", 0))},
        {3: ("k", "", None)},
        {3: (None, "", ("LongWrapper", 1))},
        {0: (None, "", ("LongWrapper", 1))},
        dict.fromkeys(range(300), ("k", "", ("StringWrapper", "\x02\x00\x0e"))),
    ],
)
def test_many_deletes_that_are_not_alike_are_read_one_by_one(traps: dict[int, Any]) -> None:
    deletes = [traps.get(n, (f"k{n}", "", ("LongWrapper", n))) for n in range(300)]
    found = decode_deletes(by_avro(*deletes), path="x")
    assert found[KEY].to_pylist() == [key for key, _, _ in deletes]
    assert found[PATH].to_pylist() == [path for _, path, _ in deletes]
    real = [o[1] if o and o != ("IntWrapper", 0) else None for _, _, o in deletes]
    assert found["ordering_0"].to_pylist() == real


def test_many_deletes_with_several_orderings() -> None:
    deletes = [
        (f"k{n}", "p", ("ArrayWrapper", [("LongWrapper", n), ("StringWrapper", "x" * (n % 7))]))
        for n in range(1000)
    ]
    found = decode_deletes(by_avro(*deletes), path="x")
    assert found["ordering_0"].to_pylist() == list(range(1000))
    assert found["ordering_1"].to_pylist() == ["x" * (n % 7) for n in range(1000)]


def test_an_array_in_sized_pieces_is_one_array() -> None:
    one = by_avro(("k", "p", ("LongWrapper", 5)))[8:]
    record = one[1:-1]
    sized = b"\x01" + bytes([2 * len(record)]) + record  # a count of -1, then the bytes
    assert orderings(framed(sized + one)) == [5, 5]


# ---------------------------------------------------------------- writing


def avro_rows(content: bytes) -> list[tuple[str, str, Any]]:
    """Decode with another Avro library; a branch is named."""
    body = io.BytesIO(content[8:])
    found = fastavro.schemaless_reader(body, DELETES, None, return_record_name=True)
    assert body.read() == b""
    records = found["deleteRecordList"]
    return [(one["recordKey"], one["partitionPath"], one["orderingVal"]) for one in records]


COLUMNS: list[tuple[pa.Array, str, list[Any]]] = [
    (pa.array([True, False]), "BooleanWrapper", [True, False]),
    (pa.array([-1, 2], pa.int8()), "IntWrapper", [-1, 2]),
    (pa.array([-(2**31), 2**31 - 1], pa.int32()), "IntWrapper", [-(2**31), 2**31 - 1]),
    (pa.array([-(2**63), 2**63 - 1]), "LongWrapper", [-(2**63), 2**63 - 1]),
    (pa.array([0.5, -2.0], pa.float32()), "FloatWrapper", [0.5, -2.0]),
    (pa.array([0.1, -1e300]), "DoubleWrapper", [0.1, -1e300]),
    (pa.array([b"", b"\x00\xff"]), "BytesWrapper", [b"", b"\x00\xff"]),
    (pa.array(["", "é𝄞"]), "StringWrapper", ["", "é𝄞"]),
    (pa.array(["a", "b" * 300], pa.large_string()), "StringWrapper", ["a", "b" * 300]),
    (pa.array(["u", "v"]).dictionary_encode(), "StringWrapper", ["u", "v"]),
    (pa.array([-1, 20_000], pa.date32()), "IntWrapper", [-1, 20_000]),
    (pa.array([1, 2], pa.timestamp("us", "UTC")), "LongWrapper", [1, 2]),
    (pa.array([1, 2], pa.timestamp("ms")), "LongWrapper", [1, 2]),
    (pa.array([1, 2], pa.time64("us")), "LongWrapper", [1, 2]),
    (
        pa.array([decimal.Decimal("1.5"), decimal.Decimal("-0.5")], pa.decimal128(10, 2)),
        "DecimalWrapper",
        [decimal.Decimal("1.5"), decimal.Decimal("-0.5")],
    ),
]


@pytest.mark.parametrize(("column", "name", "values"), COLUMNS)
def test_a_column_is_wrapped_by_its_type(column: pa.Array, name: str, values: list[Any]) -> None:
    keys = pa.array(["a", "b"])
    content = encode_deletes(keys, "p", [column])
    expected = [(name, {"value": value}) for value in values]
    assert avro_rows(content) == list(zip(["a", "b"], "pp", expected, strict=True))
    # A slice and chunks of the same values encode to the same bytes.
    doubled = pa.concat_arrays([column, column]).slice(1, 2)
    assert avro_rows(encode_deletes(keys, "p", [doubled]))[0][2] == expected[1]
    chunks = pa.chunked_array([column.slice(0, 1), column.slice(1, 1)])
    assert encode_deletes(keys, "p", [chunks]) == content


@pytest.mark.parametrize(
    ("unscaled", "expected"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "0080"),
        (255, "00ff"),
        (256, "0100"),
        (-1, "ff"),
        (-128, "80"),
        (-129, "ff7f"),
        (-(10**29), "febce1f051928de83560000000"),
    ],
)
def test_decimals_are_as_short_as_java_s(unscaled: int, expected: str) -> None:
    value = decimal.Decimal(unscaled).scaleb(-15)
    content = encode_deletes(pa.array(["k"]), "", [pa.array([value], pa.decimal128(30, 15))])
    written = bytes.fromhex(expected)
    assert content.endswith(bytes([18, 2 * len(written)]) + written + b"\x00")


def test_several_columns_are_wrapped_together() -> None:
    columns = [pa.array([1, 2]), pa.array(["x", "y"])]
    content = encode_deletes(pa.array(["a", "b"]), "p", columns)
    assert [ordering[0] for _, _, ordering in avro_rows(content)] == ["ArrayWrapper"] * 2
    assert rows(content) == [
        {KEY: "a", PATH: "p", "is_commit_time": False, "ordering_0": 1, "ordering_1": "x"},
        {KEY: "b", PATH: "p", "is_commit_time": False, "ordering_0": 2, "ordering_1": "y"},
    ]


def test_deletes_by_commit_time_carry_an_int_of_zero_as_java_s() -> None:
    content = encode_deletes(pa.array(["d", "e"]), "")
    assert content[:8] == b"\x00\x00\x00\x03\x00\x00\x00\x10"
    assert content[8:] == b"\x04\x02\x02d\x02\x00\x04\x00\x02\x02e\x02\x00\x04\x00\x00"


def test_some_deletes_are_commit_time_deletes() -> None:
    content = encode_deletes(
        pa.array(["a", "b", "c"]),
        "p",
        [pa.array([None, 7, None], pa.int64())],
        is_commit_time=pa.array([True, False, True]),
    )
    assert [row[2] for row in avro_rows(content)] == [
        ("IntWrapper", {"value": 0}),
        ("LongWrapper", {"value": 7}),
        ("IntWrapper", {"value": 0}),
    ]


def test_no_deletes_are_the_empty_array() -> None:
    none = pa.array([], pa.string())
    assert encode_deletes(none, "p") == b"\x00\x00\x00\x03\x00\x00\x00\x01\x00"
    assert encode_deletes(none, "p", [pa.array([], pa.int64())]) == encode_deletes(none, "p")


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ([pa.array([1, None])], "null_ordering"),
        ([pa.array([[1], [2]])], "ordering_type"),
        ([pa.array([1, 2], pa.uint64())], "ordering_type"),
        ([pa.array([decimal.Decimal(10**20), decimal.Decimal(0)])], "ordering_value"),
    ],
)
def test_an_ordering_value_that_java_cannot_read_is_not_written(
    columns: list[pa.Array], kind: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        encode_deletes(pa.array(["a", "b"]), "p", columns)
    assert caught.value.kind == kind


def test_a_delete_without_key_is_not_written() -> None:
    with pytest.raises(InvalidInputError) as caught:
        encode_deletes(pa.array(["a", None]), "p")
    assert caught.value.kind == "null_key"


@given(
    st.lists(
        st.tuples(st.text(max_size=200), st.integers(-(2**63), 2**63 - 1)),
        max_size=20,
    ),
    st.text(max_size=80),
)
def test_decoding_the_encoding_gives_the_same_deletes(
    deletes: list[tuple[str, int]], path: str
) -> None:
    deletes = [one for one in deletes if one[0].isprintable()]
    path = "".join(filter(str.isprintable, path))
    keys, values = ([one[n] for one in deletes] for n in range(2))
    content = encode_deletes(pa.array(keys, pa.string()), path, [pa.array(values, pa.int64())])
    assert avro_rows(content) == [
        (key, path, ("LongWrapper", {"value": value})) for key, value in deletes
    ]
    found = decode_deletes(content, path="x")
    assert (found[KEY].to_pylist(), found[PATH].to_pylist()) == (keys, [path] * len(keys))
    if deletes:
        assert found["ordering_0"].to_pylist() == values


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("version", [1, 2, 4, 0, -1])
def test_other_versions_are_refused_by_name(version: int) -> None:
    with pytest.raises(UnsupportedTableError, match=f"version {version}, p/x.log") as caught:
        rows(framed(b"\x00", version))
    assert caught.value.kind == "delete_block_version"
    assert ("serialised by java" in caught.value.message) == (version in {1, 2})


def test_every_truncation_and_every_changed_byte_gives_deletes_or_a_clear_error() -> None:
    whole = by_avro(
        ("key", "path", ("LongWrapper", 300)),
        ("l", None, ("ArrayWrapper", [("StringWrapper", "é"), ("IntWrapper", 0)])),
        ("m", "", ("DecimalWrapper", decimal.Decimal(1))),
    )
    damaged = [framed(whole[8:cut]) for cut in range(8, len(whole))]
    damaged += [whole[:cut] for cut in range(len(whole))]
    for place in range(8, len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            damaged.append(bytes(changed))
    refused = 0
    for content in damaged:
        try:
            rows(content)
        except (CorruptTableError, UnsupportedTableError):
            refused += 1
    assert refused > len(damaged) / 2


@pytest.mark.parametrize("count", [2, 2**20, 2**40, 2**62, -1, -(2**62)])
def test_a_hostile_count_of_deletes_is_refused_at_once(count: int) -> None:
    number = np.array(count)
    zigzag = int((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    with pytest.raises(CorruptTableError):
        rows(framed(bytes([*out, zigzag]) + by_avro(("k", "p", None))[9:]))


def test_trailing_bytes_are_damage() -> None:
    content = by_avro(("k", "p", ("LongWrapper", 1)))
    with pytest.raises(CorruptTableError, match="behind the last"):
        rows(framed(content[8:] + b"\x00"))
    with pytest.raises(CorruptTableError, match="bytes of records"):
        rows(content + b"\x00")
    many = by_avro(*[(f"k{n}", "p", ("LongWrapper", n)) for n in range(300)])
    with pytest.raises(CorruptTableError, match="behind the last"):
        rows(framed(many[8:] + b"\x00"))


def test_several_orderings_in_two_pieces_are_refused() -> None:
    one = by_avro(("k", "p", ("ArrayWrapper", [("LongWrapper", 1)])))[8:]
    piece = b"\x02\x06\x02"  # a count of 1 and a long of 1
    assert one.endswith(b"\x02" + piece + b"\x00\x00")
    with pytest.raises(CorruptTableError, match="several pieces"):
        rows(framed(one[:-2] + piece + b"\x00\x00"))


def test_a_block_may_contain_commit_time_deletes_only() -> None:
    nothing = [pa.nulls(2, kind) for kind in (pa.int64(), pa.float64(), pa.string())]
    both = pa.array([True, True])
    data = encode_deletes(pa.array(["a", "b"]), "p", nothing, is_commit_time=both)
    found = decode_deletes(data, path="log")
    assert found.column("is_commit_time").to_pylist() == [True, True]

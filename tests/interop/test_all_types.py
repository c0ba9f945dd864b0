"""Every column type we write is the same value in Java Hudi, nulls and extremes included."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded, same

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("c_int", pa.int32()),
        pa.field("c_long", pa.int64()),
        pa.field("c_float", pa.float32()),
        pa.field("c_double", pa.float64()),
        pa.field("c_bool", pa.bool_()),
        pa.field("c_string", pa.string()),
        pa.field("c_binary", pa.binary()),
        pa.field("c_small_decimal", pa.decimal128(9, 2)),
        pa.field("c_large_decimal", pa.decimal128(38, 10)),
        pa.field("c_date", pa.date32()),
        pa.field("c_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("c_local_timestamp", pa.timestamp("us")),
        pa.field("c_list", pa.list_(pa.string())),
        pa.field("c_map", pa.map_(pa.string(), pa.int64())),
        pa.field("c_struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])),
        pa.field("part", pa.string()),
    ]
)

ROWS = [
    {
        "id": "usual",
        "c_int": 7,
        "c_long": 2**40,
        "c_float": 1.5,
        "c_double": 0.1,
        "c_bool": True,
        "c_string": "text, ä, 日本, 🦉",
        "c_binary": b"\x00\xff\x80abc",
        "c_small_decimal": Decimal("-12345.67"),
        "c_large_decimal": Decimal("1234567890123456789012345678.0123456789"),
        "c_date": dt.date(2024, 2, 29),
        "c_timestamp": dt.datetime(2024, 2, 29, 23, 59, 59, 123456, dt.UTC),
        "c_local_timestamp": dt.datetime(2024, 2, 29, 23, 59, 59, 123456),  # noqa: DTZ001
        "c_list": ["a", "", "b"],
        "c_map": [("k1", 1), ("k2", None)],
        "c_struct": {"a": 1, "b": [1.0, 2.5]},
        "part": "p1",
    },
    {
        "id": "extreme",
        "c_int": -(2**31),
        "c_long": 2**63 - 1,
        "c_float": float("inf"),
        "c_double": float("nan"),
        "c_bool": False,
        "c_string": "",
        "c_binary": b"",
        "c_small_decimal": Decimal("9999999.99"),
        "c_large_decimal": Decimal("-9999999999999999999999999999.9999999999"),
        "c_date": dt.date(1969, 12, 31),
        "c_timestamp": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
        "c_local_timestamp": dt.datetime(1969, 7, 20, 20, 17, 40),  # noqa: DTZ001
        "c_list": [],
        "c_map": [],
        "c_struct": {"a": None, "b": None},
        "part": "p2",
    },
    {"id": "empty", "part": "p1"},
]


@pytest.mark.parametrize(("release", "version"), [("1.2.0", 9), ("1.0.2", 8)])
def test_all_types_are_the_same_in_java(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str, version: int
) -> None:
    java, path = java_oracle(release), tmp_path / "all_types"
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    if release == "1.0.2":  # it does not know local timestamps ("Unexpected type TimestampNTZ")
        rows = rows.drop_columns(["c_local_timestamp"])
    settings = {
        "hoodie.write.table.version": str(version),
        "hoodie.metadata.enable": "false",
        "hoodie.datasource.write.hive_style_partitioning": "true",
    }
    with hoodoo.create_table(
        path, schema=rows.schema, record_key="id", partition_by="part", properties=settings
    ) as table:
        table.insert(rows)
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
        for theirs, ours in zip(comparable(java.read(path)), mine, strict=True):
            assert theirs == ours
        assert [row["id"] for row in mine if row["c_int"] is None] == ["empty"]

        # Java rewrites the file group of one partition through its own Avro, we another.
        off = "set hoodie.metadata.enable=false"
        java.sql(path, f"{off};;update {{t}} set c_int = 8 where id = 'usual'")
        table.upsert(rows.filter(pa.array([False, True, False])))
        again = encoded(table.current_state().to_arrow())
        changed = [{**row, "c_int": 8} if row["id"] == "usual" else row for row in encoded(rows)]
        assert same(again, comparable(changed))
        assert same(comparable(java.read(path, meta=False)), again)


STEPS = (
    pa.table(
        {
            "id": ["a", "b", "c"],
            "n": pa.array([1, 2, None], pa.int32()),
            "f": pa.array([0.1, 1e10, None], pa.float32()),
            "t": pa.array([7, -8, None], pa.int32()),
            "d": pa.array([Decimal("1.50"), None, None], pa.decimal128(9, 2)),
            "s": pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int32())])),
            "l": pa.array([[{"x": 1}], [], None], pa.list_(pa.struct([("x", pa.int32())]))),
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            "part": ["one", "two", "one"],
        }
    ),
    pa.table(
        {
            "id": ["b"],
            "added": ["new"],
            "n": pa.array([2**40], pa.int64()),
            "f": pa.array([0.25], pa.float64()),
            "t": pa.array([9], pa.int64()),
            "d": pa.array([Decimal("123456789012.34567")], pa.decimal128(20, 5)),
            "s": pa.array([{"b": "in", "a": 5}], pa.struct([("b", pa.string()), ("a", pa.int64())])),
            "l": pa.array([[{"x": 2**40, "y": "in"}]], pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))),
            "m": pa.array([[("k", 2**40)]], pa.map_(pa.string(), pa.int64())),
            "part": ["two"],
        }
    ),
    pa.table(
        {
            "id": ["d"],
            "n": pa.array([3], pa.int32()),
            "f": pa.array([0.5], pa.float64()),
            "t": ["text"],
            "part": ["two"],
        }
    ),
)  # fmt: skip
EVOLVED = [
    {"id": "a", "n": 1, "f": 0.1, "t": "7", "d": {"dec": "1.50000"}, "s": {"a": 1, "b": None},
     "l": [{"x": 1, "y": None}], "m": {"map": [["k", 1]]}, "part": "one", "added": None},
    {"id": "b", "n": 2**40, "f": 0.25, "t": "9", "d": {"dec": "123456789012.34567"},
     "s": {"a": 5, "b": "in"}, "l": [{"x": 2**40, "y": "in"}], "m": {"map": [["k", 2**40]]},
     "part": "two", "added": "new"},
    {"id": "c", "n": None, "f": None, "t": None, "d": None, "s": {"a": None, "b": None}, "l": None,
     "m": None, "part": "one", "added": None},
    {"id": "d", "n": 3, "f": 0.5, "t": "text", "d": None, "s": None, "l": None, "m": None,
     "part": "two", "added": None},
]  # fmt: skip


def test_columns_that_were_added_and_widened_are_the_same_in_java(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    """Partition `one` keeps the oldest file, `two` is rewritten by every step; then Java writes."""
    java, path = java_oracle("1.2.0"), tmp_path / "evolved"
    settings = {
        "hoodie.metadata.enable": "false",
        "hoodie.write.set.null.for.missing.columns": "true",
    }
    with hoodoo.create_table(
        path, schema=STEPS[0].schema, record_key="id", partition_by="part", properties=settings
    ) as table:
        for step in STEPS:
            table.upsert(step)
        mine = encoded(table.current_state().to_arrow())
        assert same(mine, comparable(EVOLVED))
        # Spark's vectorised reader cannot promote inside nested types, so it is off.
        java.sql(path, "set spark.sql.parquet.enableVectorizedReader=false")
        assert same(comparable(java.read(path, meta=False)), mine)

        # Java merges the oldest file, through its own promotions, and widens once more.
        off = "set hoodie.metadata.enable=false"
        java.sql(path, f"{off};;update {{t}} set n = 11 where id = 'c'")
        java.write(
            path,
            [{"id": "e", "n": 0.5, "part": "one"}],
            schema="id string, n double, part string",
            conf={**settings, "hoodie.datasource.write.partitionpath.field": "part"},
        )
        again = encoded(table.current_state().to_arrow())
        assert same(comparable(java.read(path, meta=False)), again)
        again = sorted(again, key=lambda row: row["id"])
        assert [(row["id"], row["n"]) for row in again] == [
            ("a", 1.0), ("b", 2.0**40), ("c", 11.0), ("d", 3.0), ("e", 0.5),
        ]  # fmt: skip
        unchanged = [row for row in again if row["id"] in "abd"]
        assert [{**row, "n": None} for row in unchanged] == [
            {**row, "n": None} for row in EVOLVED if row["id"] != "c"
        ]

"""Keys and partition paths of every shape are Java's own, and late data loses in both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded

# Options of Java alone are given to both engines; ours warns that they have no effect.
_FOR_JAVA = pytest.mark.filterwarnings("ignore:no effect here")
pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600), _FOR_JAVA]

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int32()),
        ("region", pa.string()),
        ("year", pa.int32()),
        ("ts", pa.int64()),
        ("val", pa.string()),
    ]
)

#: Name -> record key, partition fields, hive style.
SHAPES: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]] = {
    "unpartitioned": (("id",), (), False),
    "simple_plain": (("id",), ("region",), False),
    "complex": (("id", "n"), ("region", "year"), True),
    "complex_of_one_field": (("id",), ("region", "year"), False),
}


@pytest.mark.parametrize(("release", "version"), [("1.2.0", 9), ("1.0.2", 8)], ids=["v9", "v8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_engines_find_each_other_s_keys(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    release: str,
    version: int,
    shape: str,
) -> None:
    java, path = java_oracle(release), tmp_path / shape
    record_key, partition_by, hive_style = SHAPES[shape]
    with hoodoo.create_table(
        path,
        schema=SCHEMA,
        record_key=record_key,
        partition_by=partition_by,
        ordering="ts",
        properties={
            "hoodie.write.table.version": str(version),
            "hoodie.metadata.enable": "false",
            "hoodie.datasource.write.hive_style_partitioning": str(hive_style).lower(),
        },
    ) as table:
        table.insert(rows(*(("abcde"[i], 10, "ours") for i in range(5))))
        theirs = rows(("a", 20, "java"), ("b", 5, "late"), ("f", 10, "java")).to_pylist()
        java.write(path, theirs, conf=java_conf(record_key, partition_by, hive_style=hive_style))
        table.upsert(rows(("c", 20, "again"), ("d", 5, "late"), ("f", 9, "late"), ("a", 21, "a")))

        found = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
        assert {row["id"]: row["val"] for row in found} == {
            "a": "a",
            "b": "ours",
            "c": "again",
            "d": "ours",
            "e": "ours",
            "f": "java",
        }
        assert len(found) == 6
        assert comparable(java.read(path)) == found


def rows(*values: tuple[str, int, str]) -> pa.Table:
    listed = [
        {"id": key, "n": 1, "region": "eu, ü" if key < "c" else "us", "year": 2024, "ts": ts}
        | {"val": val}
        for key, ts, val in values
    ]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def java_conf(
    record_key: tuple[str, ...], partition_by: tuple[str, ...], *, hive_style: bool
) -> dict[str, Any]:
    conf = {
        "hoodie.datasource.write.recordkey.field": ",".join(record_key),
        "hoodie.datasource.write.partitionpath.field": ",".join(partition_by),
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.hive_style_partitioning": str(hive_style).lower(),
        "hoodie.metadata.enable": "false",
        "hoodie.write.auto.upgrade": "false",
    }
    if not partition_by:
        conf["hoodie.datasource.write.keygenerator.class"] = (
            "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
        )
    return conf


TIME = "hoodie.keygen.timebased."
WRITE = "hoodie.datasource.write."

#: Name -> partition fields and properties of a table that we make and Java writes on.
OTHER_KEYS: dict[str, tuple[str, dict[str, str]]] = {
    "times_of_numbers": (
        "ts",
        {
            WRITE + "keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
            TIME + "timestamp.type": "EPOCHMILLISECONDS",
            TIME + "output.dateformat": "yyyy/MM/dd HH 'h' EEE",
            TIME + "output.timezone": "Asia/Tokyo",
        },
    ),
    "times_of_texts": (
        "day",
        {
            WRITE + "keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
            WRITE + "hive_style_partitioning": "true",
            TIME + "timestamp.type": "DATE_STRING",
            TIME + "input.dateformat": "yyyy-MM-dd'T'HH:mm:ss.SSSZ;d MMM yyyy",
            TIME + "input.dateformat.list.delimiter.regex": ";",
            TIME + "input.timezone": "Europe/Berlin",
            TIME + "output.dateformat": "yyyyMMddHH",
            TIME + "output.timezone": "UTC",
        },
    ),
    "custom": (
        "region:SIMPLE,ts:TIMESTAMP",
        {
            WRITE + "keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator",
            TIME + "timestamp.type": "EPOCHMILLISECONDS",
            TIME + "output.dateformat": "yyyyDDD",  # Java reads it back as the column's number
            TIME + "timezone": "UTC",
        },
    ),
    "keys_not_stored": (
        "region",
        {"hoodie.populate.meta.fields": "false", "hoodie.index.type": "SIMPLE"},
    ),
    "columns_left_out": ("region", {WRITE + "drop.partition.columns": "true"}),
    "older_encoding": (
        "region",
        {
            WRITE + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
            "hoodie.write.table.version": "8",
            "hoodie.write.complex.keygen.new.encoding": "false",
            "hoodie.write.complex.keygen.validation.enable": "false",
        },
    ),
}
OTHER_DDL = "id string, day string, region string, ts bigint, val string"
NOVEMBER = 1_700_000_000_000


def test_java_finds_the_keys_of_every_generator(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java = java_oracle("1.2.0")
    for name, (partition_by, properties) in OTHER_KEYS.items():
        path = tmp_path / name
        common = {"hoodie.metadata.enable": "false", "hoodie.write.auto.upgrade": "false"}
        made = {"record_key": "id", "partition_by": partition_by, "ordering": "ts"}
        with hoodoo.create_table(path, **made, properties={**common, **properties}) as table:
            table.insert([other("a", 0, "ours"), other("b", 0, "ours"), other("z", 0, "ours")])
            conf = {
                WRITE + "recordkey.field": "id",
                WRITE + "partitionpath.field": partition_by,
                WRITE + "precombine.field": "ts",
            }
            theirs = [other("a", 1, "java"), other("b", -1, "late"), other("c", 0, "java")]
            java.write(path, theirs, schema=OTHER_DDL, conf={**conf, **common, **properties})
            result = table.upsert([other("b", 2, "again"), other("c", 1, "again")])
            assert (result.rows_updated, result.rows_inserted) == (2, 0), name
            mine = encoded(table.to_arrow(columns=["id", "val"]))
            assert sorted((row["id"], row["val"]) for row in mine) == [
                ("a", "java"),
                ("b", "again"),
                ("c", "again"),
                ("z", "ours"),
            ], name
            shown = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
        read = java.read(path)
        assert sorted((row["id"], row["val"]) for row in read) == sorted(
            (row["id"], row["val"]) for row in mine
        ), name
        if "_hoodie_record_key" in read[0]:
            keys = ("_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name")
            assert [[row[key] for key in keys] for row in in_order(read)] == [
                [row[key] for key in keys] for row in in_order(shown)
            ], name


def other(key: str, later: int, val: str) -> dict[str, Any]:
    day = "2024-03-10T00:30:00.5+0100" if key < "c" else "10 Mar 2024"
    return {"id": key, "day": day, "region": "eu", "ts": NOVEMBER + later, "val": val}


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: str(row["id"]))


OF_TIMES = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("v", pa.int64()),
    ]
)
CONSISTENT = WRITE + "keygenerator.consistent.logical.timestamp.enabled"


def times(*values: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"at": text + "Z", "local": text, "day": text[:10], "v": v} for text, v in values]


def arrow_times(*values: tuple[str, int]) -> pa.Table:
    plain = pa.Table.from_pylist(
        [{**row, "at": row["local"]} for row in times(*values)],
        schema=pa.schema(
            [(each.name, pa.string() if each.name != "v" else each.type) for each in OF_TIMES]
        ),
    )
    moments = plain.column("local").cast(pa.timestamp("us"))
    columns = [
        moments.cast(pa.timestamp("us", "UTC")),
        moments,
        plain.column("day").cast(pa.date32()),
    ]
    return pa.table([*columns, plain.column("v")], schema=OF_TIMES)


@pytest.mark.parametrize("consistent", ["true", "false"])
@pytest.mark.parametrize("key", ["at", "local", "day,at"])
@pytest.mark.parametrize("made_by_java", [True, False])
def test_keys_of_timestamps_are_java_s_own(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    consistent: str,
    key: str,
    made_by_java: bool,
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    first = (("2023-03-10T12:30:00.123456", 1), ("1969-12-31T23:59:59.999999", 1))
    second = (("2023-03-10T12:30:00.123456", 2), ("2023-03-10T12:30:00", 2))
    conf = {
        WRITE + "recordkey.field": key,
        WRITE + "partitionpath.field": "day",
        WRITE + "precombine.field": "v",
        WRITE + "hive_style_partitioning": "true",
        "hoodie.metadata.enable": "false",
        CONSISTENT: consistent,
    }
    ddl = "at timestamp, local timestamp_ntz, day date, v bigint"
    if made_by_java:
        java.write(path, times(*first), "upsert", schema=ddl, conf=conf)
        table = hoodoo.open_table(path)
    else:
        table = hoodoo.create_table(path, schema=OF_TIMES, properties=conf)
        table.upsert(arrow_times(*first))
    with table:
        if made_by_java:
            table.upsert(arrow_times(*second))
        else:
            java.write(path, times(*second), "upsert", schema=ddl, conf=conf)
        found = table.current_state().to_arrow(with_hoodie_columns=True).to_pylist()
        assert sorted(row["v"] for row in found) == [1, 2, 2]  # one row was updated
        assert len({row["_hoodie_record_key"] for row in found}) == 3
        assert len(java.read(path)) == 3

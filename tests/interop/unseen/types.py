"""Tables of every type, at the limits of each type."""

from __future__ import annotations

from typing import Any

from tests.interop.unseen.recipe import WRITE, Recipe, Service, Write

COLUMNS = (
    "id string",
    "ts bigint",
    "b boolean",
    "by tinyint",
    "sh smallint",
    "i int",
    "l bigint",
    "f float",
    "d double",
    "s string",
    "bin binary",
    "dt date",
    "tm timestamp",
    "d9 decimal(9,2)",
    "d18 decimal(18,6)",
    "d38 decimal(38,10)",
    "ai array<int>",
    "ast array<struct<x:int,y:array<string>>>",
    "aa array<array<double>>",
    "ms map<string,bigint>",
    "mst map<string,struct<z:decimal(5,2),t:timestamp>>",
    "st struct<a:int,b:struct<c:date,d:map<string,array<int>>>>",
)
SCHEMA = ", ".join(COLUMNS)

FULL: dict[str, Any] = {
    "b": True,
    "by": -128,
    "sh": 32767,
    "i": -2147483648,
    "l": 9223372036854775807,
    "f": 1.1,
    "d": 0.1,
    "s": 'é漢\U0001f600\n"',
    "bin": "AAH/",
    "dt": "1969-12-31",
    "tm": "2024-02-29T12:34:56.123456Z",
    "d9": "-1234567.89",
    "d18": "123456789012.345678",
    "d38": "1234567890123456789012345678.0123456789",
    "ai": [1, -1],
    "ast": [{"x": 1, "y": ["q", ""]}],
    "aa": [[0.5], []],
    "ms": {"k": 1, "": 2},
    "mst": {"z": {"z": "1.50", "t": "1970-01-01T00:00:00Z"}},
    "st": {"a": 1, "b": {"c": "2024-01-01", "d": {"e": [1, 2]}}},
}
ENDS: dict[str, Any] = {
    "b": False,
    "by": 127,
    "sh": -32768,
    "i": 2147483647,
    "l": -9223372036854775808,
    "f": "NaN",
    "d": "NaN",
    "s": "",
    "bin": "",
    "dt": "9999-12-31",
    "tm": "9999-12-31T23:59:59.999999Z",
    "d9": "9999999.99",
    "d18": "-999999999999.999999",
    "d38": "-9999999999999999999999999999.9999999999",
    "ai": [],
    "ast": [],
    "aa": [],
    "ms": {},
    "mst": {},
    "st": {"a": None, "b": {"c": None, "d": {}}},
}
SIGNS: dict[str, Any] = {
    "b": None,
    "by": 0,
    "sh": 0,
    "i": 0,
    "l": 0,
    "f": -0.0,
    "d": -0.0,
    "s": "\u0000",
    "bin": "AA==",
    "dt": "1583-01-01",
    "tm": "1883-06-01T00:00:00Z",
    "d9": "0.00",
    "d18": "0.000001",
    "d38": "0",
    "ai": [0],
    "ast": [{"x": None, "y": None}],
    "aa": [[-0.0, "Infinity", "-Infinity"]],
    "ms": {"n": None},
    "mst": {"n": None},
    "st": None,
}
BEFORE: dict[str, Any] = {
    "dt": "1899-12-31",
    "tm": "1969-12-31T23:59:59.999999Z",
    "d": "-Infinity",
    "f": "Infinity",
}


def types() -> list[Recipe]:
    """One table a format of blocks, with and without compaction, and one that is rewritten."""
    names = {"full": FULL, "ends": ENDS, "signs": SIGNS, "before": BEFORE, "nulls": {}}

    def at(ts: int, **named: str) -> list[dict[str, Any]]:
        return [{"id": key, "ts": ts, **names[kind]} for key, kind in named.items()]

    first = Write(
        rows=at(1, a="full", b="ends", c="signs", d="before", e="nulls"), operation="insert"
    )
    second = Write(rows=at(2, a="ends", b="signs", c="before", d="nulls", e="full", x="full"))
    third = Write(rows=at(3, a="signs", b="before", c="nulls", y="signs"))
    common = {
        WRITE + "partitionpath.field": "",
        WRITE + "keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    }
    found = []
    for blocks in ("avro", "parquet"):
        conf = {**common, "hoodie.logfile.data.block.format": blocks}
        found.append(
            Recipe(name=f"types_{blocks}", schema=SCHEMA, steps=(first, second, third), conf=conf)
        )
        compacted = (first, second, Service(what="compact"), third)
        found.append(
            Recipe(name=f"types_{blocks}_compacted", schema=SCHEMA, steps=compacted, conf=conf)
        )
    cow = {**common, WRITE + "table.type": "COPY_ON_WRITE"}
    found.append(Recipe(name="types_cow", schema=SCHEMA, steps=(first, second, third), conf=cow))
    return found

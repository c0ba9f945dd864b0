"""
Tables at random: settings, keys and types of every kind and a walk of writes and services.

A seed makes the same recipe again. Ordering values are drawn from few, so that ties, late
rows and rows after a delete happen often.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.interop.unseen import types
from tests.interop.unseen.keys import TIME
from tests.interop.unseen.recipe import WRITE, Recipe, Service, Step, Write

KEYS = ("a", "b", "c", "d", "e", "f")
REGIONS = ("us", "eu")

#: Type of an ordering field -> its values in ascending order.
ORDERS: Mapping[str, tuple[Any, ...]] = {
    "int": (-2147483648, -7, 0, 3, 2147483647),
    "bigint": (-9223372036854775808, -1, 0, 5, 9223372036854775807),
    "double": (-1e300, -0.5, 0.0, 2.5, 1e300),
    "float": (-1e30, -0.5, 0.0, 2.5, 1e30),
    "string": ("", "B", "a", "aa", "é"),
    "timestamp": (
        "1900-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
        "2024-02-29T12:00:00.000001Z",
        "2262-01-01T00:00:00Z",
    ),
    "date": ("1600-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31"),
    "decimal(12,3)": ("-999999999.999", "-0.001", "0.000", "2.500", "999999999.999"),
}


GENERATOR = "org.apache.hudi.keygen."

#: Type of a record key's field -> the six keys of that type.
KEY_TYPES: Mapping[str, tuple[Any, ...]] = {
    "string": KEYS,
    "int": (-1, 0, 7, 10, 2147483647, -2147483648),
    "bigint": (-1, 0, 7, 10, 9223372036854775807, -9223372036854775808),
    "date": ("1969-12-31", "1970-01-01", "2024-02-29", "1600-01-01", "9999-12-31", "2000-01-01"),
    "boolean": (True, False, True, False, True, False),
    "decimal(9,2)": ("0.00", "1.50", "-1.50", "9999999.99", "0.01", "10.00"),
}

#: How a time-based generator reads its field: the field's type, settings, two values.
CLOCKS: tuple[tuple[str, Mapping[str, str], tuple[Any, Any]], ...] = (
    ("bigint", {"timestamp.type": "EPOCHMILLISECONDS"}, (1_700_000_000_000, 1_710_000_000_123)),
    ("bigint", {"timestamp.type": "UNIX_TIMESTAMP"}, (1_700_000_000, 0)),
    (
        "bigint",
        {"timestamp.type": "SCALAR", "timestamp.scalar.time.unit": "DAYS"},
        (19_000, 20_001),
    ),
    (
        "string",
        {"timestamp.type": "DATE_STRING", "input.dateformat": "yyyy-MM-dd'T'HH:mm:ss"},
        ("2024-02-29T23:59:59", "1999-12-31T00:00:00"),
    ),
)
PATTERNS = ("yyyy/MM/dd", "yyyyMMdd", "yyyy-MM", "yyyyMMddHH")

EXTRA: Mapping[str, str] = {
    name: kind
    for name, kind in (one.split(" ", 1) for one in types.COLUMNS)
    if name not in ("id", "ts", "by", "sh")  # bulk_insert refuses the last two
}
VALUES = (types.FULL, types.ENDS, types.SIGNS, types.BEFORE, {})


def walk(seed: int, release: str) -> Recipe:
    """The table of a seed, as a release of Java Hudi shall make it."""
    rng = random.Random(f"{release}/{seed}")
    conf: dict[str, str] = {}
    mor = rng.random() < 0.8
    conf[WRITE + "table.type"] = "MERGE_ON_READ" if mor else "COPY_ON_WRITE"
    by_order = rng.random() < 0.7
    if release.startswith("0."):
        model = "org.apache.hudi.common.model."
        payload = "DefaultHoodieRecordPayload" if by_order else "OverwriteWithLatestAvroPayload"
        conf[WRITE + "payload.class"] = model + payload
    else:
        conf["hoodie.record.merge.mode"] = (
            "EVENT_TIME_ORDERING" if by_order else "COMMIT_TIME_ORDERING"
        )
    count = rng.choice((1, 1, 2, 3)) if release == "1.2.0" else 1
    kinds = [rng.choice(tuple(ORDERS)) for _ in range(count)]
    names = ["ts", "ts2", "ts3"][:count]
    # Hudi 1 treats ordering fields as a request for event time, whatever the mode says.
    conf[WRITE + "precombine.field"] = ",".join(names)
    if not by_order and not release.startswith("0."):
        conf[WRITE + "precombine.field"] = ""
    shape = _shape(rng, names, kinds)
    conf |= shape.conf
    _index(rng, conf, mor=mor)
    odd = rng.random() < 0.15
    if odd and mor:
        conf["hoodie.metadata.enable"] = "true"

    def rows(some: int) -> list[dict[str, Any]]:
        return [_row(rng, shape) for _ in range(some)]

    # A bulk insert does not record in the new table that columns are left out.
    bulk = () if WRITE + "drop.partition.columns" in conf else ("bulk_insert",)
    # Duplicate keys are a kind of their own (`twice`): a range of changes returns each.
    begin = {json.dumps([row["id"], row["region"], row.get("at")]): row for row in rows(6)}
    operation = rng.choice(("insert", "upsert", *bulk))
    steps: list[Step] = [Write(rows=list(begin.values()), operation=operation)]
    for _ in range(rng.randint(5, 9)):
        steps.extend(_step(rng, rows, mor=mor, by_region=shape.by_region, release=release))
    return Recipe(
        name=f"walk_{release.replace('.', '')}_{seed}",
        schema=shape.schema,
        steps=steps,
        conf=conf,
        releases=(release,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The columns of a table, the drawn values of each, and its keys."""

    conf: Mapping[str, str]
    by_region: bool  # the first level of folders is the region
    ids: tuple[Any, ...]
    key_type: str
    orders: Mapping[str, str]  # ordering field -> type
    clock: tuple[str, tuple[Any, Any]] | None  # type and values of the field `at`
    extra: tuple[str, ...]
    marks: bool

    @property
    def schema(self) -> str:
        columns = [f"id {self.key_type}", "region string", "year int"]
        columns += [f"{name} {kind}" for name, kind in self.orders.items()]
        columns += [f"at {self.clock[0]}"] if self.clock else []
        columns += ["val int", "name string"]
        columns += [f"x_{name} {EXTRA[name]}" for name in self.extra]
        columns += ["_hoodie_is_deleted boolean"] if self.marks else []
        return ", ".join(columns)


def _shape(rng: random.Random, names: list[str], kinds: list[str]) -> _Shape:
    made = rng.choice(
        ("simple", "simple", "none", "complex", "plain", "time", "custom", "many", "dropped")
    )
    conf, clock = _KEYS.get(made, {}), None
    if made in ("time", "custom"):
        kind, told, values = rng.choice(CLOCKS)
        pattern = rng.choice(PATTERNS)
        clock = (kind, values)
        settings = {**told, "output.dateformat": pattern, "timezone": "UTC"}
        conf = {**conf, **{TIME + key: text for key, text in settings.items()}}
    if rng.random() < 0.1:
        conf = {**conf, "hoodie.parquet.outputtimestamptype": "TIMESTAMP_MILLIS"}
    key_type = rng.choice(("string", "string", *KEY_TYPES))
    return _Shape(
        conf=conf,
        by_region=made in ("simple", "complex", "dropped"),
        ids=KEY_TYPES[key_type],
        key_type=key_type,
        orders=dict(zip(names, kinds, strict=True)),
        clock=clock,
        extra=tuple(rng.sample(sorted(EXTRA), rng.randint(2, 8))),
        marks=rng.random() < 0.6,
    )


_KEYS: Mapping[str, Mapping[str, str]] = {
    "none": {
        WRITE + "partitionpath.field": "",
        WRITE + "keygenerator.class": GENERATOR + "NonpartitionedKeyGenerator",
    },
    "many": {
        WRITE + "recordkey.field": "id,region",
        WRITE + "partitionpath.field": "",
        WRITE + "keygenerator.class": GENERATOR + "NonpartitionedKeyGenerator",
    },
    "complex": {
        WRITE + "recordkey.field": "id,region",
        WRITE + "partitionpath.field": "region,year",
        WRITE + "keygenerator.class": GENERATOR + "ComplexKeyGenerator",
    },
    "plain": {WRITE + "hive_style_partitioning": "false"},
    "time": {
        WRITE + "partitionpath.field": "at",
        WRITE + "keygenerator.class": GENERATOR + "TimestampBasedKeyGenerator",
    },
    "custom": {
        WRITE + "partitionpath.field": "region:SIMPLE,at:TIMESTAMP",
        WRITE + "keygenerator.class": GENERATOR + "CustomKeyGenerator",
    },
    "dropped": {WRITE + "drop.partition.columns": "true"},
}


def _index(rng: random.Random, conf: dict[str, str], *, mor: bool) -> None:
    kind = rng.choice(("SIMPLE", "BLOOM", "BUCKET", "BUCKET", "GLOBAL_SIMPLE", "GLOBAL_BLOOM"))
    conf["hoodie.index.type"] = kind
    if kind == "BUCKET":
        conf["hoodie.bucket.index.num.buckets"] = "2"
        conf["hoodie.bucket.index.hash.field"] = "id"
        if mor and rng.random() < 0.25:
            conf["hoodie.index.bucket.engine"] = "CONSISTENT_HASHING"
            conf["hoodie.bucket.index.min.num.buckets"] = "2"
            conf["hoodie.bucket.index.max.num.buckets"] = "4"


def _row(rng: random.Random, shape: _Shape) -> dict[str, Any]:
    number = rng.randrange(len(KEYS))
    moves = number < 2
    row: dict[str, Any] = {"id": shape.ids[number], "year": 2024}
    row["region"] = rng.choice(REGIONS) if moves else "us"
    row |= {name: rng.choice(ORDERS[kind]) for name, kind in shape.orders.items()}
    if shape.clock:
        row["at"] = rng.choice(shape.clock[1]) if moves else shape.clock[1][0]
    row["val"] = rng.randrange(1000)
    if rng.random() < 0.7:
        row["name"] = rng.choice(("", "x", "é漢", "n" * 40))
    for name in shape.extra:
        told = rng.choice(VALUES)
        if name in told:
            row[f"x_{name}"] = told[name]
    if shape.marks:
        row["_hoodie_is_deleted"] = rng.random() < 0.25
    return row


def _step(rng: random.Random, rows: Any, *, mor: bool, by_region: bool, release: str) -> list[Step]:
    logs = {"hoodie.logfile.data.block.format": rng.choice(("avro", "parquet"))} if mor else {}
    roll = rng.random()
    some = rng.randint(1, 4)
    if roll < 0.5:
        return [Write(rows=rows(some), conf=logs)]
    if roll < 0.62:
        return [Write(rows=rows(some), operation="delete", conf=logs)]
    if roll < 0.66:
        conf = {**logs, WRITE + "insert.drop.duplicates": "true"}
        return [Write(rows=rows(some), operation="insert", conf=conf)]
    if roll < 0.71:
        return [Write(rows=rows(some), conf=logs, crashes=True)]
    if roll < 0.75:
        return [Service(what="rollback", instant=-1)]
    if roll < 0.79:
        return [
            Write(
                rows=rows(some),
                operation=rng.choice(("insert_overwrite", "insert_overwrite_table")),
            )
        ]
    if roll < 0.81 and by_region:
        conf = {WRITE + "partitions.to.delete": "region=eu"}
        return [Write(rows=rows(1), operation="delete_partition", conf=conf)]
    if roll < 0.84:
        return [Service(what="cluster", schedule_only=rng.random() < 0.3)]
    if roll < 0.87 and mor and not release.startswith("0."):
        conf = {
            "hoodie.log.compaction.blocks.threshold": "1",
            "hoodie.log.compaction.enable": "true",
            "hoodie.log.compaction.inline": "true",
        }
        return [Service(what="logcompact", conf=conf, schedule_only=rng.random() < 0.3)]
    if roll < 0.94 and mor:
        return [Service(what="compact")]
    if roll < 0.97 and mor:
        return [Service(what="compact", schedule_only=True)]
    if mor:
        return [Service(what="compact", pending=True)]
    return [Write(rows=rows(some))]

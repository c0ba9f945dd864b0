"""
Tables at random: settings of every kind and a walk of writes and services over them.

A seed makes the same recipe again. Ordering values are drawn from few, so that ties, late
rows and rows that come back after a delete happen often.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from tests.interop.unseen.recipe import WRITE, Recipe, Service, Step, Write

__all__ = ["walk"]

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
    # Hudi 1.2 takes ordering fields for a wish for event time, whatever the mode says.
    conf[WRITE + "precombine.field"] = ",".join(names)
    if not by_order and release == "1.2.0":
        conf[WRITE + "precombine.field"] = ""
    marks = rng.random() < 0.6
    columns = ["id string", "region string", "year int"]
    columns += [f"{name} {kind}" for name, kind in zip(names, kinds, strict=True)]
    columns += ["val int", "name string", "st struct<x:int,y:array<string>>", "m map<string,int>"]
    columns += ["_hoodie_is_deleted boolean"] if marks else []
    partitioned = _keys(rng, conf)
    _index(rng, conf, mor=mor)
    odd = rng.random() < 0.15
    if odd and mor:
        conf["hoodie.metadata.enable"] = "true"

    def rows(some: int) -> list[dict[str, Any]]:
        return [_row(rng, names, kinds, marks=marks) for _ in range(some)]

    steps: list[Step] = [
        Write(rows=rows(6), operation=rng.choice(("insert", "upsert", "bulk_insert")))
    ]
    for _ in range(rng.randint(5, 9)):
        steps.extend(_step(rng, rows, mor=mor, partitioned=partitioned, release=release))
    return Recipe(
        name=f"walk_{release.replace('.', '')}_{seed}",
        schema=", ".join(columns),
        steps=steps,
        conf=conf,
        releases=(release,),
    )


def _keys(rng: random.Random, conf: dict[str, str]) -> bool:
    shape = rng.choice(("simple", "simple", "none", "complex", "plain"))
    if shape == "none":
        conf[WRITE + "partitionpath.field"] = ""
        conf[WRITE + "keygenerator.class"] = "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
        return False
    if shape == "complex":
        conf[WRITE + "recordkey.field"] = "id,region"
        conf[WRITE + "partitionpath.field"] = "region,year"
        conf[WRITE + "keygenerator.class"] = "org.apache.hudi.keygen.ComplexKeyGenerator"
    if shape == "plain":
        conf[WRITE + "hive_style_partitioning"] = "false"
    return True


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


def _row(rng: random.Random, names: list[str], kinds: list[str], *, marks: bool) -> dict[str, Any]:
    key = rng.choice(KEYS)
    row: dict[str, Any] = {"id": key, "region": rng.choice(REGIONS) if key < "c" else "us"}
    row["year"] = 2024
    row |= {name: rng.choice(ORDERS[kind]) for name, kind in zip(names, kinds, strict=True)}
    row["val"] = rng.randrange(1000)
    if rng.random() < 0.7:
        row["name"] = rng.choice(("", "x", "é漢", "n" * 40))
    if rng.random() < 0.6:
        row["st"] = {"x": rng.choice((None, 1)), "y": rng.choice((None, [], ["q", "r"]))}
        row["m"] = rng.choice((None, {}, {"k": 1, "n": None}))
    if marks:
        row["_hoodie_is_deleted"] = rng.random() < 0.25
    return row


def _step(
    rng: random.Random, rows: Any, *, mor: bool, partitioned: bool, release: str
) -> list[Step]:
    logs = {"hoodie.logfile.data.block.format": rng.choice(("avro", "parquet"))} if mor else {}
    roll = rng.random()
    some = rng.randint(1, 4)
    if roll < 0.5:
        return [Write(rows=rows(some), conf=logs)]
    if roll < 0.62:
        return [Write(rows=rows(some), operation="delete", conf=logs)]
    if roll < 0.66:
        return [Write(rows=rows(some), operation="insert", conf=logs)]
    if roll < 0.71:
        # 0.15 stops reading a log at the block of a rollback that began after the newest write:
        # the write that rolled a crash back is not seen until the next one.
        return [Write(rows=rows(some), conf=logs, crashes=not release.startswith("0."))]
    if roll < 0.75:
        return [Service(what="rollback", instant=-1)]
    if roll < 0.79:
        return [
            Write(
                rows=rows(some),
                operation=rng.choice(("insert_overwrite", "insert_overwrite_table")),
            )
        ]
    if roll < 0.81 and partitioned:
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

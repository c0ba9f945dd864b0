"""Both engines find each other's rows by every index, and leave no key twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.index.lookup import open_record_index
from filegroups.keys.bucketing import SimpleBucketAssigner, bucket_of
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded

# Options of Java alone are given to both engines; ours warns that they have no effect.
_FOR_JAVA = pytest.mark.filterwarnings("ignore:no effect here")
pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600), _FOR_JAVA]

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("region", pa.string()),
        ("ts", pa.int64()),
        ("val", pa.string()),
    ]
)
DDL = "id string, name string, region string, ts bigint, val string"
COMMON = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id,name",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
    "hoodie.metadata.enable": "false",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.embed.timeline.server": "false",
    "hoodie.database.name": "default",
}
BUCKET = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "5",
    "hoodie.bucket.index.hash.field": "id,name",
}
KINDS = {
    "bucket": BUCKET,
    "bucket_of_one_field": {**BUCKET, "hoodie.bucket.index.hash.field": "name"},
    "bucket_ring": {
        **BUCKET,
        "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
        "hoodie.bucket.index.min.num.buckets": "2",
        "hoodie.bucket.index.max.num.buckets": "9",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    },
    "global_simple": {"hoodie.index.type": "GLOBAL_SIMPLE"},
    "global_bloom_stays": {
        "hoodie.index.type": "GLOBAL_BLOOM",
        "hoodie.bloom.index.update.partition.path": "false",
    },
}


def row(number: int, region: str, ts: int, val: str) -> dict[str, Any]:
    name = ("plain", "ü漢\U0001f600", "a, b", "c:d")[number % 4]
    return {"id": f"k{number:03d}", "name": name, "region": region, "ts": ts, "val": val}


def batch(numbers: range, region: str, ts: int, val: str) -> pa.Table:
    return pa.Table.from_pylist([row(n, region, ts, val) for n in numbers], schema=SCHEMA)


def expected(kind: str) -> dict[tuple[str, str], str]:
    """By key and partition folder: the expected rows after the writes below."""
    rows = {(f"k{n:03d}", "region=eu"): "first" for n in range(40)}
    rows |= {(f"k{n:03d}", "region=eu"): "second" for n in range(30, 50)}
    if kind == "global_simple":
        rows = {key: val for key, val in rows.items() if not "k020" <= key[0] < "k035"}
    place = "region=eu" if kind == "global_bloom_stays" else "region=us"
    return rows | {(f"k{n:03d}", place): "third" for n in range(20, 35)}


@pytest.mark.parametrize(
    ("kind", "we_begin"),
    [
        ("bucket", True),
        ("bucket_of_one_field", False),
        ("bucket_ring", True),
        ("global_simple", True),
        ("global_bloom_stays", False),
    ],
)
def test_both_engines_write_by_one_index(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, kind: str, we_begin: bool
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    options = {**COMMON, **KINDS[kind]}

    def theirs(rows: pa.Table) -> None:
        java.write(path, rows.to_pylist(), schema=DDL, conf=options)

    def ours(rows: pa.Table) -> None:
        if not path.exists():
            hoodoo.create_table(path, schema=SCHEMA, properties=options).close()
        with hoodoo.open_table(path, properties=options) as table:
            table.upsert(rows)

    first, second = (ours, theirs) if we_begin else (theirs, ours)
    late = batch(range(5), "us" if kind.startswith("global") else "eu", 5, "late")
    first(batch(range(40), "eu", 10, "first"))
    second(pa.concat_tables([batch(range(30, 50), "eu", 20, "second"), late]))
    first(batch(range(20, 35), "us", 30, "third"))

    with hoodoo.open_table(path, properties=options) as table:
        found = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
        slices = table.file_slices()
    rows_of_java = java.read(path)
    if kind.endswith("stays"):  # Spark returns a row's folder instead of its column
        found, rows_of_java = without_region(found), without_region(rows_of_java)
    assert comparable(rows_of_java) == found
    by_key = {(r["id"], r["_hoodie_partition_path"]): r["val"] for r in found}
    assert len(by_key) == len(found)
    assert by_key == expected(kind)
    if kind == "bucket_ring":
        assert len(slices) == 5 + 5  # in two partitions
    elif kind.startswith("bucket"):
        places = [(s.file_group.partition_path, bucket_of(s.file_group.file_id)) for s in slices]
        assert max(Counter(places).values()) == 1


def without_region(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return comparable([{k: v for k, v in row.items() if k != "region"} for row in rows])


def test_buckets_of_awkward_keys_are_java_s(java_oracle: Callable[..., JavaOracle]) -> None:
    keys = [
        "plain",
        "id:a",
        "a:b",
        "id:a,b",
        "id:a,b,name:c",
        "id:a:c,name:b",
        "id:2014-10-22 13:50:42,name:x",
        "id:__null__,name:__empty__",
        "id:ü漢\U0001f600,name:\u00e9",
        "other:x,name:y",
    ]
    java = java_oracle("1.2.0")
    theirs = java.ask("bucket", *keys, "--fields", "id,name", "--buckets", "97")
    shares = SimpleBucketAssigner(hash_fields=("id", "name"), buckets=97)
    mine = shares.numbers(pa.array(keys), pa.array(["p"] * len(keys))).tolist()
    assert dict(zip(keys, mine, strict=True)) == theirs


@pytest.mark.slow
def test_javas_record_index_gives_the_file_group_of_every_key(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    """Several file groups, HFile base files after a compaction, and deletes in logs."""
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    shards = {
        f"hoodie.metadata.{name}record{level}.index.{end}.filegroup.count": "3"
        for name, level in (("", ""), ("global.", ".level"))
        for end in ("min", "max")
    }
    options = {
        **COMMON,
        **shards,
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.metadata.compact.max.delta.commits": "2",
        "hoodie.index.type": "RECORD_INDEX",
    }

    def write(rows: pa.Table, operation: str = "upsert") -> None:
        java.write(path, rows.to_pylist(), operation, schema=DDL, conf=options)

    write(batch(range(3000), "eu", 1, "first"))
    write(batch(range(2990, 3100), "eu", 2, "second"))
    write(batch(range(3100, 3200), "us", 3, "third"))
    write(batch(range(10), "eu", 4, ""), "delete")
    with hoodoo.open_table(path) as table:
        context = table.context
        index = open_record_index(context.ports.storage, table.config, context.snapshot())
        assert index is not None
        groups = index.metadata.slices("record_index")
        assert len(groups) == 3
        rows = table.current_state().to_arrow(with_hoodie_columns=True).to_pylist()
        lives = {
            (
                r["_hoodie_record_key"],
                r["_hoodie_partition_path"],
                r["_hoodie_file_name"].split("_")[0],
            )
            for r in rows
        }
        assert len(lives) == 3190
        gone = [
            f"id:{row['id']},name:{row['name']}"
            for row in batch(range(10), "eu", 4, "").to_pylist()
        ]
        for some in (lives, sorted(lives)[::50]):
            found = index.locate(pa.array([*(key for key, _, _ in some), *gone]))
            assert sorted(tuple(r.values()) for r in found.to_pylist()) == sorted(some)
        assert any(one.base_file is not None for one in groups.values())

"""
The merge-on-read tables of the tests with Java Hudi: their rows, and the options of each engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hudi
import pyarrow as pa

from tests.interop.values import encoded

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("p", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("val", pa.string()),
        pa.field("_hoodie_is_deleted", pa.bool_()),
    ]
)
COMMON = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
}
JAVA = {
    "hoodie.write.auto.upgrade": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.embed.timeline.server": "false",
}
EVENT_TIME = {"hoodie.datasource.write.precombine.field": "ts"}
COMMIT_TIME = {
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
}
SIMPLE = {"hoodie.index.type": "SIMPLE"}
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
FORMAT = "hoodie.logfile.data.block.format"


def row(key: str, ts: int, val: str | None, *, gone: bool = False) -> dict[str, Any]:
    """A row of `SCHEMA`; keys before `e` are in one partition, the others in another."""
    part = "x" if key < "e" else "y"
    return {"id": key, "p": part, "ts": ts, "val": val, "_hoodie_is_deleted": gone}


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as ours takes them."""
    return pa.Table.from_pylist(rows, SCHEMA)


START = [row(key, 10, "first") for key in "abcdefgh"]


def by_hudi_rs(path: Path) -> list[dict[str, Any]]:
    """The table as the hudi wheel reads it."""
    read = hudi.HudiTableBuilder.from_base_uri(str(path)).build().read(hudi.HudiReadOptions())
    return encoded(pa.Table.from_batches([pa.record_batch(batch) for batch in read]))

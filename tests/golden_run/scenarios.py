"""
The scenarios of the golden run: both table types, every operation, every service.

They use the front door alone. Each step has one moment of the fixed clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from tests.golden_run.steps import GoldenRun

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("day", pa.int32()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("v", pa.float64()),
    ]
)
RETENTION = {
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5",
}
STORE = "s3://golden"
LOCK_OF_THE_STORE = {"hoodie.write.lock.provider": "storage_based"}
SLOT = r"/\.hoodoo/slots/"
COMPLETED = r"/timeline/\d{17}_\d{17}\."
BASE_FILE = r"^\w+/a/[^/]*\.parquet$"
INFLIGHT = r"/timeline/\d{17}(\.\w+)?\.inflight$"


def rows(keys: range, partition: str, ts: int, **more: Any) -> pa.Table:
    """Rows of some keys in one partition; more columns on request."""
    found = [
        {"id": f"k{key}", "day": key % 7, "p": partition, "ts": ts, "v": key * 1.5 + ts, **more}
        for key in keys
    ]
    return pa.Table.from_pylist(found) if more else pa.Table.from_pylist(found, SCHEMA)


def copy_on_write(run: GoldenRun) -> None:
    run.scenario("cow")
    table = run.create(
        schema=SCHEMA,
        record_key=["id", "day"],
        partition_by="p",
        ordering="ts",
        properties={**RETENTION, "hoodie.partition.ttl.strategy.days.retain": "2"},
    )
    with run.step("insert"):
        table.insert(pa.concat_tables([rows(range(20), "a", 1), rows(range(20, 40), "b", 1)]))
    with run.step("bulk insert"):
        table.bulk_insert(rows(range(40, 50), "c", 1))
    with run.step("upsert"):
        table.upsert(pa.concat_tables([rows(range(5, 25), "a", 2), rows(range(3), "d", 2)]))
    with run.step("upsert a batch by its id"):
        table.upsert(rows(range(60, 63), "b", 3), batch_id="batch-1")
    with run.step("repeat the batch"):
        table.upsert(rows(range(60, 63), "b", 3), batch_id="batch-1")
    with run.step("delete"):
        table.delete(rows(range(5), "a", 4))
    with run.step("delete where"):
        table.delete([("id", "=", "k61")])
    with run.step("upsert with a new column"):
        table.upsert(rows(range(10, 12), "a", 5, note="é"))
    with run.step("partial upsert"):
        row = [{"id": "k11", "day": 4, "p": "a", "ts": 6, "note": "later"}]
        table.upsert(pa.Table.from_pylist(row), partial=True)
    with run.step("savepoint"):
        saved = table.savepoint(comments="kept")
    with run.step("insert overwrite"):
        table.insert_overwrite(rows(range(70, 73), "b", 7))
    with run.step("insert overwrite of named partitions"):
        table.insert_overwrite(rows(range(73, 75), "c", 7), partitions=["c", "d"])
    with run.step("restore"):
        table.restore(saved.requested_time)
    with run.step("delete the savepoint"):
        table.delete_savepoint(saved.requested_time)
    with run.step("insert and roll back"):
        last = table.insert(rows(range(80, 82), "a", 8))
        table.rollback(last.requested_time)
    with run.step("delete a partition"):
        table.delete_partitions(["d"])
    with run.step("insert overwrite of the table"):
        table.insert_overwrite_table(
            pa.concat_tables([rows(range(30), "a", 9), rows(range(30, 60), "b", 9)])
        )
    with run.step("bulk inserts"):
        for key in (60, 70):
            table.bulk_insert(rows(range(key, key + 5), "a", 9))
    with run.step("plan a clustering"):
        planned = table.services.schedule("cluster")
    with run.step("carry the clustering out"):
        assert table.services.execute(planned.requested_time) is not None
    with run.step("cluster, sorted"):
        table.bulk_insert(rows(range(90, 95), "b", 9))
        assert table.services.cluster(sort_by=["v", "id"], curve="hilbert") is not None
    with run.step("plan a clustering and cancel it"):
        table.bulk_insert(rows(range(95, 99), "b", 9))
        assert table.services.cancel(table.services.schedule("cluster").requested_time)
    with run.step("read with a lease while cleaning"), table.pin() as state:
        assert table.services.clean() is not None
        state.to_arrow()
    with run.step("archive"):
        assert table.services.archive() is not None
    with run.step("write on"):
        table.upsert(rows(range(3), "a", 10))
        table.upsert(rows(range(31, 33), "b", 10))
        table.upsert(rows(range(4), "a", 11))
    with run.step("clean and archive again"):
        table.services.clean()
        table.services.archive()
    run.machine.now_ms += 3 * 24 * 3_600_000
    with run.step("write a young partition"):
        table.upsert(rows(range(100, 103), "young", 12))
    with run.step("expire partitions"):
        assert table.services.expire_partitions() is not None
    with run.step("close"):
        table.close()


def copy_on_write_of_version_8(run: GoldenRun) -> None:
    run.scenario("cow8")
    table = run.create(
        schema=SCHEMA,
        record_key="id",
        ordering="ts",
        properties={
            **RETENTION,
            "hoodie.write.table.version": "8",
            "hoodie.table.cdc.enabled": "true",
            "hoodie.write.concurrency.mode": "SINGLE_WRITER",
            "hoodie.clean.failed.writes.policy": "EAGER",
            "hoodie.clean.automatic": "true",
            "hoodie.archive.automatic": "true",
            "hoodoo.storage.durability": "strict",
        },
    )
    with run.step("insert"):
        table.insert(rows(range(20), "", 1))
    with run.step("upsert and delete"):
        table.upsert(rows(range(5, 25), "", 2))
        table.delete(rows(range(3), "", 3))
    for number in range(8):
        with run.step(f"upsert {number}"):
            table.upsert(rows(range(number, number + 2), "", 4 + number))
    with run.step("close"):
        table.close()


def merge_on_read(run: GoldenRun) -> None:
    run.scenario("mor")
    table = run.create(
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        table_type="MERGE_ON_READ",
        properties={
            **RETENTION,
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.log.compaction.blocks.threshold": "2",
        },
    )
    with run.step("insert"):
        table.insert(pa.concat_tables([rows(range(20), "a", 1), rows(range(20, 40), "b", 1)]))
    with run.step("upserts"):
        for ts in (2, 3):
            table.upsert(
                pa.concat_tables([rows(range(5, 9), "a", ts), rows(range(50, 52), "b", ts)])
            )
    with run.step("delete"):
        table.delete(rows(range(2), "a", 4))
    with run.step("log compaction"):
        assert table.services.log_compact() is not None
    with run.step("partial upsert"):
        row = [{"id": "k5", "p": "a", "ts": 5, "v": -1.0}]
        table.upsert(pa.Table.from_pylist(row), partial=True)
    with run.step("upsert with a new column"):
        table.upsert(rows(range(6, 9), "a", 6, note="new"))
    with run.step("plan a compaction"):
        planned = table.services.schedule("compact")
    with run.step("write beside the plan"):
        table.upsert(rows(range(6, 8), "a", 7, note="beside"))
    with run.step("carry the compaction out"):
        assert table.services.execute(planned.requested_time) is not None
    with run.step("compact"):
        assert table.services.compact() is not None
    with run.step("delete a partition"):
        table.delete_partitions(["p=b"])
    with run.step("savepoint, upsert, restore"):
        saved = table.savepoint()
        table.upsert(rows(range(6, 8), "a", 8, note="undone"))
        table.restore(saved.requested_time)
        table.delete_savepoint(saved.requested_time)
    with run.step("bulk insert and cluster"):
        table.bulk_insert(rows(range(60, 70), "a", 8, note="more"))
        assert table.services.cluster() is not None
    with run.step("upsert and roll back"):
        table.rollback(table.upsert(rows(range(6, 8), "a", 9, note="undone")).requested_time)
    with run.step("more upserts"):
        for ts in range(10, 13):
            table.upsert(rows(range(6, 8), "a", ts, note="last"))
            table.services.compact()
    with run.step("clean and archive"):
        assert table.services.clean() is not None
        assert table.services.archive() is not None
    with run.step("close"):
        table.close()


def merge_on_read_of_version_8(run: GoldenRun) -> None:
    run.scenario("mor8")
    table = run.create(
        schema=SCHEMA,
        record_key=["id", "day"],
        ordering="ts",
        table_type="MERGE_ON_READ",
        properties={
            "hoodie.write.table.version": "8",
            "hoodie.logfile.data.block.format": "avro",
            "hoodie.table.cdc.enabled": "true",
        },
    )
    with run.step("insert"):
        table.insert(rows(range(20), "", 1))
    with run.step("upserts and a delete"):
        table.upsert(rows(range(5, 9), "", 2))
        table.upsert(rows(range(6, 30), "", 3))
        table.delete(rows(range(2), "", 4))
    with run.step("compact"):
        assert table.services.compact() is not None
    with run.step("close"):
        table.close()


def buckets(run: GoldenRun) -> None:
    run.scenario("buckets")
    table = run.create(
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        table_type="MERGE_ON_READ",
        properties={
            "hoodie.index.type": "BUCKET",
            "hoodie.bucket.index.num.buckets": "4",
            "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
        },
    )
    with run.step("upserts"):
        table.upsert(rows(range(12), "a", 1))
        table.upsert(rows(range(5, 20), "a", 2))
    mode = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    with run.step("two writers of one bucket"):
        other = run.open("second", mode)
        run.before(INFLIGHT, lambda: other.upsert(rows(range(3), "a", 3)))
        table.upsert(rows(range(4), "a", 4))
    with run.step("compact"):
        assert table.services.compact() is not None
    with run.step("close"):
        other.close()
        table.close()


def several_writers(run: GoldenRun) -> None:
    run.scenario("writers")
    _writers_and_services(run)


def several_writers_far_away(run: GoldenRun) -> None:
    run.scenario("far", at=STORE, options=LOCK_OF_THE_STORE)
    _writers_and_services(run)


def several_writers_beside_java(run: GoldenRun) -> None:
    options = {**LOCK_OF_THE_STORE, "hoodoo.foreign.writers": "expected"}
    run.scenario("java", at=STORE, options=options)
    # A commit waits for instants that did not start to write: they may be of Java.
    _writers_and_services(run, moment=BASE_FILE)


def _writers_and_services(run: GoldenRun, moment: str = INFLIGHT) -> None:
    """Run writers and services concurrently, once for each implementation of the commit."""
    table = run.create(
        schema=SCHEMA, record_key="id", partition_by="p", ordering="ts", properties=RETENTION
    )
    with run.step("insert"):
        table.insert(pa.concat_tables([rows(range(20), "a", 1), rows(range(20, 40), "b", 1)]))
    with run.step("a second writer comes"):
        other = run.open("second")
        other.upsert(rows(range(20, 22), "b", 2))
    with run.step("two that do not conflict"):
        run.before(moment, lambda: other.upsert(rows(range(22, 24), "b", 3)))
        table.upsert(rows(range(2), "a", 3))
    with run.step("two that conflict, one is rebased"):
        run.before(moment, lambda: other.upsert(rows(range(2), "a", 4)))
        table.upsert(pa.concat_tables([rows(range(1, 4), "a", 5), rows(range(30, 33), "b", 5)]))
    with run.step("two that conflict, one has written its file"):
        run.before(BASE_FILE, lambda: other.upsert(rows(range(3, 5), "a", 6)))
        table.upsert(rows(range(4, 6), "a", 7))
    with run.step("one is refused"):
        strict = run.open("strict", {"hoodie.write.num.retries.on.conflict.failures": "0"})
        run.before(BASE_FILE, lambda: other.upsert(rows(range(3, 5), "a", 8)))
        with pytest.raises(hoodoo.HoodooError, match="C1"):
            strict.upsert(rows(range(4, 6), "a", 9))
        strict.close()
    with run.step("one dies before its slot"):
        run.die("dead before", SLOT, lambda dead: dead.upsert(rows(range(6, 9), "a", 10)))
    with run.step("one dies after its slot"):
        run.die("dead after", COMPLETED, lambda dead: dead.upsert(rows(range(25, 27), "b", 11)))
    with run.step("write beside the dead"):
        table.upsert(rows(range(50, 52), "c", 12))
    with run.step("roll the dead back"):
        assert table.services.rollback_dead_writers()
    with run.step("cluster"):
        table.bulk_insert(rows(range(60, 63), "a", 13))
        assert table.services.cluster() is not None
    with run.step("savepoint, upsert, restore"):
        saved = table.savepoint()
        table.upsert(rows(range(2), "a", 14))
        assert table.restore(saved.requested_time) is not None
        table.delete_savepoint(saved.requested_time)
    with run.step("clean and archive"):
        assert table.services.clean() is not None
        assert table.services.archive() is not None
    with run.step("close"):
        other.close()
        table.close()


SCENARIOS: tuple[Callable[[GoldenRun], None], ...] = (
    copy_on_write,
    copy_on_write_of_version_8,
    merge_on_read,
    merge_on_read_of_version_8,
    buckets,
    several_writers,
    several_writers_far_away,
    several_writers_beside_java,
)

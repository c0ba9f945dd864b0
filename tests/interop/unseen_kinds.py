"""
Tables of one kind each: keys, types, evolution, payloads, services. What chance would not find.

`unseen_walks.py` has the tables at random.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.interop.unseen import WRITE, Recipe, Service, Sql, Step, Write
from tests.interop.unseen_types import typed

__all__ = ["kinds"]

PLAIN = "id string, region string, ts bigint, name string, val double"
NONE = {
    WRITE + "partitionpath.field": "",
    WRITE + "keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
}
COW = {WRITE + "table.type": "COPY_ON_WRITE"}
MODEL = "org.apache.hudi.common.model."
TIME = "hoodie.keygen.timebased."


def kinds(release: str) -> list[Recipe]:
    """All recipes that a release of Java Hudi can make."""
    every = [*_keys(), *typed(), *_evolution(), *_payloads(), *_partial(), *_services(), *_others()]
    return [one for one in every if release in one.releases]


def rows(*told: str) -> list[dict[str, Any]]:
    """Rows of `PLAIN`: `"a us 10 x 1.5"`; a dash is a null."""
    found = []
    for text in told:
        key, region, ts, name, val = text.split(" ")
        found.append(
            {"id": key, "region": region, "ts": int(ts)}
            | ({} if name == "-" else {"name": name})
            | ({} if val == "-" else {"val": float(val)})
        )
    return found


FIRST = Write(rows=rows("a us 10 x 1", "b us 10 y 2", "c us 10 z 3", "d eu 10 x 4"), operation="insert")
LATER = (
    FIRST,
    Write(rows=rows("a us 20 aa 1.5", "b us 5 late 0", "e eu 7 new 5")),
    Write(rows=rows("c us 11 - -"), operation="delete"),
    Write(rows=rows("c us 1 back 9", "d eu 10 tie 4.5")),
)


def _keys() -> list[Recipe]:
    odd = ("a b", "50%", "k=v", "é漢", "x/y", "a:b", "", None, "c'd\"e", "2024-01-01", ".x", "q?#&+")
    found = []

    def odd_rows(later: int) -> list[dict[str, Any]]:
        return [
            {"id": f"k{i}", "region": region, "ts": later, "name": str(i), "val": later + i / 2}
            for i, region in enumerate(odd)
            if later == 1 or i % 2
        ]

    for encode in ("true", "false"):
        for hive in ("true", "false"):
            conf = {
                WRITE + "partitionpath.urlencode": encode,
                WRITE + "hive_style_partitioning": hive,
                WRITE + "table.type": "MERGE_ON_READ" if encode == hive else "COPY_ON_WRITE",
            }
            steps = (Write(rows=odd_rows(1)), Write(rows=odd_rows(2)))
            found.append(Recipe(name=f"odd_paths_{encode}_{hive}", schema=PLAIN, steps=steps, conf=conf))
            conf = {
                **conf,
                WRITE + "recordkey.field": "id,name",
                WRITE + "partitionpath.field": "region,name",
                WRITE + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
            }
            found.append(Recipe(name=f"odd_complex_{encode}_{hive}", schema=PLAIN, steps=steps, conf=conf))
    odd_keys = [
        {"id": key, "region": "us", "ts": 1, "name": name, "val": 1.0}
        for key in ("a,b", "a:b", "id:x", "é", " ", "%41", "__null__", "__empty__")
        for name in ("n", "", None)
    ]
    for buckets in ("", "3"):
        conf = {
            WRITE + "recordkey.field": "id,name",
            WRITE + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
            "hoodie.index.type": "BUCKET" if buckets else "",
            "hoodie.bucket.index.num.buckets": buckets,
        }
        again = [{**row, "ts": 2, "val": 2.0} for row in odd_keys[::2]]
        steps = (Write(rows=odd_keys), Write(rows=again), Write(rows=odd_keys[1:4], operation="delete"))
        found.append(Recipe(name=f"odd_keys_{buckets or 'plain'}", schema=PLAIN, steps=steps, conf=conf))
    found.append(Recipe(name="single_complex", schema=PLAIN, steps=LATER, conf={
        WRITE + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator"}))
    times = {"plain_day": "yyyy/MM/dd", "hour": "yyyyMMddHH", "month": "yyyy-MM"}
    for name, pattern in times.items():
        conf = {
            WRITE + "keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
            WRITE + "partitionpath.field": "ts",
            WRITE + "hive_style_partitioning": "true" if name == "hour" else "false",
            WRITE + "partitionpath.urlencode": "true" if name == "month" else "false",
            TIME + "timestamp.type": "EPOCHMILLISECONDS",
            TIME + "output.dateformat": pattern,
            TIME + "timezone": "UTC",
        }
        moved = [{**row, "ts": 1_700_000_000_000 + 3_600_000 * i} for i, row in enumerate(FIRST.rows)]
        again = [{**row, "val": 7.0} for row in moved[:2]]
        steps = (Write(rows=moved), Write(rows=again))
        found.append(Recipe(name=f"times_{name}", schema=PLAIN, steps=steps, conf=conf))
    custom = {
        WRITE + "keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator",
        WRITE + "partitionpath.field": "region:SIMPLE,ts:TIMESTAMP",
        TIME + "timestamp.type": "EPOCHMILLISECONDS",
        TIME + "output.dateformat": "yyyyMM",
        TIME + "timezone": "UTC",
    }
    for table_type in ("MERGE_ON_READ", "COPY_ON_WRITE"):
        found.append(Recipe(name=f"custom_{table_type[:4].lower()}", schema=PLAIN, conf={
            **custom, WRITE + "table.type": table_type}, steps=LATER))
    keyless = {WRITE + "recordkey.field": "", WRITE + "precombine.field": ""}
    appended = (Write(rows=FIRST.rows, operation="insert"), Write(rows=FIRST.rows, operation="insert"),
                Write(rows=FIRST.rows, operation="bulk_insert"))
    found.append(Recipe(name="keyless_mor", schema=PLAIN, steps=appended, conf=keyless))
    found.append(Recipe(name="keyless_cow", schema=PLAIN, steps=appended, conf={**keyless, **COW, **NONE}))
    virtual = {"hoodie.populate.meta.fields": "false", "hoodie.index.type": "SIMPLE"}
    bulk = Write(rows=FIRST.rows, operation="bulk_insert")
    found.append(Recipe(name="virtual_mor", schema=PLAIN, steps=(bulk, *LATER[1:]), conf=virtual))
    found.append(Recipe(name="virtual_mor_compacted", schema=PLAIN, conf=virtual,
                        steps=(bulk, LATER[1], Service(what="compact"), LATER[3])))
    found.append(Recipe(name="virtual_bucket", schema=PLAIN, steps=LATER, conf={
        **virtual, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}))
    found.append(Recipe(name="virtual_cow", schema=PLAIN, steps=(bulk, *LATER[1:]), conf={**virtual, **COW}))
    dropped = {WRITE + "drop.partition.columns": "true"}
    found.append(Recipe(name="dropped_cow", schema=PLAIN, steps=LATER, conf={**dropped, **COW}))
    found.append(Recipe(name="dropped_mor", schema=PLAIN, steps=LATER, conf=dropped))
    found.append(Recipe(name="dropped_plain", schema=PLAIN, steps=LATER, conf={
        **dropped, WRITE + "hive_style_partitioning": "false"}))
    by_int = PLAIN.replace("region string", "region int")
    numbers = [{**row, "region": i} for i, row in enumerate(FIRST.rows)]
    found.append(Recipe(name="dropped_int", schema=by_int, conf={**dropped, **COW}, steps=(
        Write(rows=numbers), Write(rows=[{**numbers[0], "val": 8.0}]))))
    found.append(Recipe(name="int_partition", schema=by_int, steps=(
        Write(rows=numbers), Write(rows=[{**numbers[0], "ts": 50, "val": 8.0}]))))
    by_date = PLAIN.replace("region string", "region date")
    dates = [{**row, "region": f"2024-0{i + 1}-01"} for i, row in enumerate(FIRST.rows)]
    found.append(Recipe(name="date_partition", schema=by_date, steps=(
        Write(rows=dates), Write(rows=[{**dates[0], "ts": 50, "val": 8.0}]))))
    return found


def _evolution() -> list[Recipe]:
    schema = "id string, ts bigint, n int, f float, s struct<a:int,b:string>, l array<struct<x:int>>"

    def at(key: str, ts: int, **more: Any) -> dict[str, Any]:
        row: dict[str, Any] = {"id": key, "ts": ts, "n": ts, "f": ts / 4}
        return row | {"s": {"a": ts, "b": "b"}, "l": [{"x": ts}, {"x": None}]} | more

    start = Write(rows=[at(key, 1) for key in "abcde"], operation="insert")
    wide = schema.replace("n int", "n bigint").replace("f float", "f double")
    grown = wide.replace("b:string>", "b:string,c:double>").replace("x:int", "x:int,y:string")
    grown += ", extra string, dec decimal(10,2)"
    far = wide.replace("n bigint", "n double")
    found = []
    for table_type in ("MERGE_ON_READ", "COPY_ON_WRITE"):
        for blocks in ("avro", "parquet") if table_type == "MERGE_ON_READ" else ("avro",):
            conf = {**NONE, WRITE + "table.type": table_type, "hoodie.logfile.data.block.format": blocks}
            name = f"{table_type[:4].lower()}_{blocks}"
            big = 5_000_000_000
            steps: tuple[Step, ...] = (
                start,
                Write(rows=[at("a", 2)]),
                Write(rows=[at("b", 3, n=big)], schema=wide),
                Write(rows=[at("c", 4, extra="e", dec="1.25", s={"a": 1, "b": "b", "c": 0.5},
                               l=[{"x": 1, "y": "y"}])], schema=grown),
                Write(rows=[at("a", 5, dec="7.00")], schema=grown),
            )
            found.append(Recipe(name=f"grown_{name}", schema=schema, steps=steps, conf=conf))
            steps = (start, Write(rows=[at("a", 2)]), Write(rows=[at("b", 3, n=2.5)], schema=far),
                     Service(what="compact"), Write(rows=[at("c", 4, n=0.1)], schema=far))
            found.append(Recipe(name=f"far_{name}", schema=schema, steps=steps, conf=conf))
            less = Write(rows=[{"id": "a", "ts": 9, "f": 0.5}], schema="id string, ts bigint, f float")
            found.append(Recipe(name=f"less_{name}", schema=schema, steps=(start, less), conf={
                **conf, "hoodie.write.set.null.for.missing.columns": "true"}))
            on_read = {"hoodie.schema.on.read.enable": "true"}
            alter = "set hoodie.schema.on.read.enable=true;;alter table {t} "
            steps = (
                start,
                Write(rows=[at("a", 2)], conf=on_read),
                Sql(statement=alter + "add columns (late string after n)"),
                Write(rows=[at("b", 3, late="l")], conf=on_read, schema=schema + ", late string"),
                Sql(statement=alter + "rename column n to m"),
                Sql(statement=alter + "rename column s.a to q"),
                Sql(statement=alter + "alter column m type bigint"),
                Sql(statement=alter + "drop column f"),
                Sql(statement=alter + "add columns (s.z double)"),
                Sql(statement="update {t} set late = 'up', m = 77 where id = 'c'"),
            )
            found.append(Recipe(name=f"on_read_{name}", schema=schema, steps=steps, conf=conf))
    return found


def _payloads() -> list[Recipe]:
    schema = "id string, ts bigint, name string, val double, n int, Op string"
    found = []

    def at(key: str, ts: int, **more: Any) -> dict[str, Any]:
        return {"id": key, "ts": ts, **more}

    steps: tuple[Step, ...] = (
        Write(rows=[at(key, 10, name="n", val=1.0, n=1, Op="I") for key in "abcdef"], operation="insert"),
        Write(rows=[at("a", 11, val=2.0), at("b", 9, name="late", n=5), at("c", 10, name="tie")]),
        Write(rows=[at("a", 12, name="aa"), at("b", 20, Op="D"), at("d", 5, Op="D", name="q")]),
        Write(rows=[at("b", 15, name="back"), at("e", 30, n=9), at("g", 1, Op="I", n=0)]),
        Write(rows=[at("f", 50)], operation="delete"),
        Write(rows=[at("f", 5, name="f"), at("e", 25, name="ee")]),
    )
    names = (
        "DefaultHoodieRecordPayload",
        "EventTimeAvroPayload",
        "OverwriteWithLatestAvroPayload",
        "OverwriteNonDefaultsWithLatestAvroPayload",
        "PartialUpdateAvroPayload",
        "AWSDmsAvroPayload",
    )
    for payload in names:
        conf = {**NONE, WRITE + "payload.class": MODEL + payload}
        for ending, more in {"": (), "_compacted": (Service(what="compact"),)}.items():
            told = (*steps[:3], *more, *steps[3:])
            name = f"payload_{payload[:18]}{ending}"
            found.append(Recipe(name=name, schema=schema, steps=told, conf=conf))
        v8 = {**conf, "hoodie.write.table.version": "8"}
        found.append(Recipe(name=f"payload8_{payload[:18]}", schema=schema, steps=steps, conf=v8,
                            releases=("1.2.0",)))
        found.append(Recipe(name=f"payload_cow_{payload[:18]}", schema=schema, steps=steps,
                            conf={**conf, **COW}))
    marked = {**NONE, "hoodie.payload.delete.field": "Op", "hoodie.payload.delete.marker": "D",
              WRITE + "payload.class": MODEL + "DefaultHoodieRecordPayload"}
    found.append(Recipe(name="marked_deletes", schema=schema, steps=steps, conf=marked))
    found.append(Recipe(name="marked_deletes_cow", schema=schema, steps=steps, conf={**marked, **COW}))
    changes = "id string, name string, val double, _change_operation_type string, _event_lsn bigint, "
    changes += "_event_bin_file string, _event_pos bigint, _event_seq string"

    def change(key: str, lsn: int, kind: str, **more: Any) -> dict[str, Any]:
        place = {"_event_lsn": lsn, "_event_bin_file": "mysql-bin.000001", "_event_pos": lsn}
        return {"id": key, "_change_operation_type": kind, "_event_seq": f"1.{lsn}", **place, **more}

    toast = "__debezium_unavailable_value"
    told_changes: tuple[Step, ...] = (
        Write(rows=[change(key, 10, "c", name="n", val=1.0) for key in "abcd"], operation="insert"),
        Write(rows=[change("a", 11, "u", name=toast, val=2.0), change("b", 12, "d", name="x")]),
        Write(rows=[change("a", 12, "u", name="late", val=3.0), change("c", 5, "d"),
                    change("d", 13, "u", name=toast, val=7.5)]),
        Write(rows=[change("b", 11, "u", name="no"), change("e", 1, "c", name=toast)]),
    )
    for kind, order in {"Postgres": "_event_lsn", "MySql": "_event_seq"}.items():
        for version in ("", "8"):
            conf = {**NONE, WRITE + "precombine.field": order,
                    WRITE + "payload.class": f"{MODEL}debezium.{kind}DebeziumAvroPayload",
                    "hoodie.write.table.version": version}
            if kind == "MySql" and not version:
                conf[WRITE + "precombine.field"] = "_event_bin_file,_event_pos"
            releases = ("1.2.0",) if version else ("1.2.0", "1.0.2", "0.15.0")
            found.append(Recipe(name=f"debezium_{kind}{version}", schema=changes, steps=told_changes,
                                conf=conf, releases=releases))
    return found


def _partial() -> list[Recipe]:
    schema = "id string, ts bigint, name string, val double, st struct<x:int,y:string>, n int"
    start = Write(
        rows=[{"id": k, "ts": 100, "name": f"n-{k}", "val": 1.0, "st": {"x": 1, "y": "y"}, "n": 1}
              for k in "abcdef"],
        operation="insert",
    )
    using = "merge into {t} t using (%s) s on t.id = s.id when matched then update set %s"

    def merge(source: str, told: str) -> Sql:
        return Sql(statement=using % (source, told))

    one = merge("select 'a' id, 110L ts, 2.5D val union all select 'b', 90L, 3.5D",
                "ts = s.ts, val = s.val")
    two = merge("select 'a' id, 120L ts, 'x' name union all select 'c', 100L, 'tie'",
                "ts = s.ts, name = s.name")
    three = merge("select 'a' id, 115L ts, 7 n union all select 'd', 130L, 8", "ts = s.ts, n = s.n")
    nested = merge("select 'd' id, 140L ts, named_struct('x', 5, 'y', 'q') st", "ts = s.ts, st = s.st")
    gone = Write(rows=[{"id": "b", "ts": 105}], operation="delete")
    again = Write(rows=[{"id": "b", "ts": 80, "name": "again"}, {"id": "c", "ts": 300, "val": 9.0}])
    full = Sql(statement="merge into {t} t using (select 'a' id, 200L ts, 'i' name, 0D val, "
               "named_struct('x', 1, 'y', 'z') st, 3 n union all select 'z', 1L, 'i', 0D, null, 4) s "
               "on t.id = s.id when matched then update set * when not matched then insert *")
    removal = Sql(statement="merge into {t} t using (select 'e' id, 500L ts) s on t.id = s.id "
                  "when matched then delete")
    told: dict[str, tuple[Step, ...]] = {
        "merge_columns": (start, one, two, three, nested),
        "merge_and_deletes": (start, one, gone, two, again, three),
        "merge_compacted": (start, one, two, Service(what="compact"), three, nested),
        "merge_pending": (start, one, Service(what="compact", schedule_only=True), two, three),
        "merge_full": (start, one, full, three, removal),
    }
    found = []
    for name, steps in told.items():
        for blocks in ("avro", "parquet"):
            conf = {**NONE, "hoodie.logfile.data.block.format": blocks}
            found.append(Recipe(name=f"{name}_{blocks}", schema=schema, steps=steps, conf=conf,
                                releases=("1.2.0", "1.0.2"), incremental=False))
        commit = {**NONE, "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
                  WRITE + "precombine.field": ""}
        found.append(Recipe(name=f"{name}_commit", schema=schema, steps=steps, conf=commit,
                            releases=("1.2.0", "1.0.2"), incremental=False))
    return found


def _services() -> list[Recipe]:
    def up(ts: int, *keys: str) -> Write:
        return Write(rows=rows(*(f"{key} us {ts} n{ts} {ts}" for key in keys)))

    compact, plan = Service(what="compact"), Service(what="compact", schedule_only=True)
    logs = {"hoodie.log.compaction.blocks.threshold": "1", "hoodie.log.compaction.enable": "true",
            "hoodie.log.compaction.inline": "true"}
    crash = Write(rows=rows("a us 99 crash 99", "q us 99 crash 99"), crashes=True)
    told: dict[str, tuple[Step, ...]] = {
        "saved": (FIRST, up(11, "a"), Service(what="savepoint", instant=-1), up(12, "b"), compact,
                  up(13, "z"), Service(what="restore", instant=1), up(14, "c")),
        "saved_kept": (FIRST, up(11, "a"), Service(what="savepoint", instant=-1), up(12, "b")),
        "plan_then_logs": (FIRST, up(11, "a"), plan, up(12, "b"), up(13, "a"), up(14, "c")),
        "plan_run_late": (FIRST, up(11, "a"), plan, up(12, "b"), Service(what="compact", pending=True),
                          up(13, "a")),
        "two_plans": (FIRST, up(11, "a"), compact, up(12, "a"), plan, up(13, "b"), up(14, "a")),
        "crash_then_writes": (FIRST, up(11, "a"), crash, up(12, "b"), up(13, "a")),
        "crash_last": (FIRST, up(11, "a"), crash),
        "rolled_back": (FIRST, up(11, "a", "y"), up(12, "b"), Service(what="rollback", instant=-1),
                        up(13, "c"), Service(what="rollback", instant=-1)),
        "log_compacted": (FIRST, up(11, "a"), up(12, "b", "a"), Service(what="logcompact", conf=logs),
                          up(13, "a"), Service(what="logcompact", conf=logs), up(14, "b")),
        "log_plan": (FIRST, up(11, "a"), up(12, "b"),
                     Service(what="logcompact", conf=logs, schedule_only=True), up(13, "a")),
        "log_then_full": (FIRST, up(11, "a"), up(12, "b"), Service(what="logcompact", conf=logs),
                          up(13, "a"), compact, up(14, "b")),
        "cluster_done": (FIRST, up(11, "a"), compact, Service(what="cluster"), up(12, "a", "b")),
        "cluster_plan": (FIRST, Service(what="cluster", schedule_only=True)),
        "cluster_logs": (FIRST, up(11, "a"), up(12, "b"), Service(what="cluster"), up(13, "c")),
        "many_logs": (FIRST, *(up(20 + i, "abcde"[i % 5]) for i in range(14))),
        "overwritten": (FIRST, up(11, "a"), Write(rows=rows("w us 1 w 1"), operation="insert_overwrite"),
                        up(12, "w", "a"), Write(rows=rows("v eu 1 v 1"), operation="insert_overwrite_table"),
                        up(13, "a")),
        "partition_gone": (FIRST, up(11, "a"), Write(rows=rows("a us 1 a 1"), operation="delete_partition",
                           conf={WRITE + "partitions.to.delete": "region=us"}), up(12, "a")),
        "emptied": (FIRST, Write(rows=FIRST.rows[:3], operation="delete"), compact, up(12, "b")),
        "emptied_all": (FIRST, Write(rows=FIRST.rows, operation="delete"), compact),
    }
    found = []
    for name, steps in told.items():
        found.append(Recipe(name=f"{name}_mor", schema=PLAIN, steps=steps))
        if not name.startswith(("log_", "plan", "two", "many")):
            found.append(Recipe(name=f"{name}_cow", schema=PLAIN, steps=steps, conf=COW))
    for name in ("plan_then_logs", "log_compacted", "crash_then_writes", "rolled_back", "many_logs"):
        conf = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
        found.append(Recipe(name=f"{name}_bucket", schema=PLAIN, steps=told[name], conf=conf))
        for version in ("8", "6"):
            found.append(Recipe(name=f"{name}_as{version}", schema=PLAIN, steps=told[name],
                                conf={"hoodie.write.table.version": version}, releases=("1.2.0",)))
    return found


def _others() -> list[Recipe]:
    def many(count: int) -> list[Step]:
        return [Write(rows=rows(f"{'abcdefg'[i % 7]} us {i} n{i} {i}")) for i in range(count)]

    automatic: Mapping[str, str] = {
        **NONE,
        "hoodie.archive.automatic": "true",
        "hoodie.clean.automatic": "true",
        "hoodie.clean.commits.retained": "2",
        "hoodie.commits.archival.batch": "2",
        "hoodie.keep.max.commits": "5",
        "hoodie.keep.min.commits": "4",
        "hoodie.timeline.compaction.batch.size": "4",
    }
    inline = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "4"}
    indexed = {
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.index.type": "RECORD_INDEX",
    }
    found = [
        Recipe(name="archived_cow", schema=PLAIN, steps=many(12), conf={**automatic, **COW}),
        Recipe(name="archived_mor", schema=PLAIN, steps=many(14), conf={**automatic, **inline}),
        Recipe(name="archived_uncleaned", schema=PLAIN, steps=many(12), conf={
            **automatic, **COW, "hoodie.clean.automatic": "false"}),
        Recipe(name="indexed_mor", schema=PLAIN, steps=LATER, conf=indexed),
        Recipe(name="indexed_cow", schema=PLAIN, steps=LATER, conf={**indexed, **COW}),
        Recipe(name="sql_changes", schema=PLAIN, steps=(
            FIRST,
            Sql(statement="update {t} set val = val + 1, ts = ts + 1 where region = 'us'"),
            Sql(statement="delete from {t} where id = 'b'"),
            Sql(statement="insert into {t} select 'n', 3L, 'nn', 2D, 'us'"),
        )),
    ]
    for mode in ("DATA_BEFORE_AFTER", "OP_KEY_ONLY", "DATA_BEFORE"):
        conf = {"hoodie.table.cdc.enabled": "true", "hoodie.table.cdc.supplemental.logging.mode": mode}
        found.append(Recipe(name=f"cdc_cow_{mode}", schema=PLAIN, steps=LATER, conf={**conf, **COW}))
        found.append(Recipe(name=f"cdc_mor_{mode}", schema=PLAIN, conf=conf, steps=(
            *LATER[:3], Service(what="compact"), LATER[3])))
    moved = Write(rows=rows("a eu 30 moved 1", "d us 5 late 1", "z us 1 z 1"))
    for kind in ("SIMPLE", "BLOOM"):
        conf = {"hoodie.index.type": f"GLOBAL_{kind}",
                "hoodie.simple.index.update.partition.path": "true",
                "hoodie.bloom.index.update.partition.path": "true"}
        found.append(Recipe(name=f"moved_{kind}_mor", schema=PLAIN, steps=(*LATER, moved), conf=conf))
        found.append(Recipe(name=f"moved_{kind}_cow", schema=PLAIN, steps=(*LATER, moved), conf={**conf, **COW}))
    twice = Write(rows=[*FIRST.rows, *rows("a us 30 twice 7")], operation="insert",
                  conf={"hoodie.combine.before.insert": "false"})
    for table in (COW, {}):
        found.append(Recipe(name=f"twice_{'cow' if table else 'mor'}", schema=PLAIN, conf=table, steps=(
            twice, Write(rows=rows("a us 25 mid 8", "b us 50 b 8")), Write(rows=rows("a us 1 - -"), operation="delete"))))
    return found

"""Tables that services, crashes, archives, indexes and change data capture made."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.unseen.parts import COW, FIRST, LATER, NONE, PLAIN, rows
from tests.interop.unseen.recipe import WRITE, Recipe, Service, Sql, Step, Write


def services() -> list[Recipe]:
    def up(ts: int, *keys: str) -> Write:
        return Write(rows=rows(*(f"{key} us {ts} n{ts} {ts}" for key in keys)))

    compact, plan = Service(what="compact"), Service(what="compact", schedule_only=True)
    logs = {
        "hoodie.log.compaction.blocks.threshold": "1",
        "hoodie.log.compaction.enable": "true",
        "hoodie.log.compaction.inline": "true",
    }
    crash = Write(rows=rows("a us 99 crash 99", "q us 99 crash 99"), crashes=True)
    cases: dict[str, tuple[Step, ...]] = {
        "saved": (
            FIRST,
            up(11, "a"),
            Service(what="savepoint", instant=-1),
            up(12, "b"),
            compact,
            up(13, "z"),
            Service(what="restore", instant=1),
            up(14, "c"),
        ),
        "saved_kept": (FIRST, up(11, "a"), Service(what="savepoint", instant=-1), up(12, "b")),
        "plan_then_logs": (FIRST, up(11, "a"), plan, up(12, "b"), up(13, "a"), up(14, "c")),
        "plan_run_late": (
            FIRST,
            up(11, "a"),
            plan,
            up(12, "b"),
            Service(what="compact", pending=True),
            up(13, "a"),
        ),
        "two_plans": (FIRST, up(11, "a"), compact, up(12, "a"), plan, up(13, "b"), up(14, "a")),
        "crash_then_writes": (FIRST, up(11, "a"), crash, up(12, "b"), up(13, "a")),
        "crash_last": (FIRST, up(11, "a"), crash),
        "rolled_back": (
            FIRST,
            up(11, "a", "y"),
            up(12, "b"),
            Service(what="rollback", instant=-1),
            up(13, "c"),
            Service(what="rollback", instant=-1),
        ),
        "log_compacted": (
            FIRST,
            up(11, "a"),
            up(12, "b", "a"),
            Service(what="logcompact", conf=logs),
            up(13, "a"),
            Service(what="logcompact", conf=logs),
            up(14, "b"),
        ),
        "log_plan": (
            FIRST,
            up(11, "a"),
            up(12, "b"),
            Service(what="logcompact", conf=logs, schedule_only=True),
            up(13, "a"),
        ),
        "log_then_full": (
            FIRST,
            up(11, "a"),
            up(12, "b"),
            Service(what="logcompact", conf=logs),
            up(13, "a"),
            compact,
            up(14, "b"),
        ),
        "cluster_done": (FIRST, up(11, "a"), compact, Service(what="cluster"), up(12, "a", "b")),
        "cluster_plan": (FIRST, Service(what="cluster", schedule_only=True)),
        "cluster_logs": (FIRST, up(11, "a"), up(12, "b"), Service(what="cluster"), up(13, "c")),
        "many_logs": (FIRST, *(up(20 + i, "abcde"[i % 5]) for i in range(14))),
        "overwritten": (
            FIRST,
            up(11, "a"),
            Write(rows=rows("w us 1 w 1"), operation="insert_overwrite"),
            up(12, "w", "a"),
            Write(rows=rows("v eu 1 v 1"), operation="insert_overwrite_table"),
            up(13, "a"),
        ),
        "partition_gone": (
            FIRST,
            up(11, "a"),
            Write(
                rows=rows("a us 1 a 1"),
                operation="delete_partition",
                conf={WRITE + "partitions.to.delete": "region=us"},
            ),
            up(12, "a"),
        ),
        "emptied": (FIRST, Write(rows=FIRST.rows[:3], operation="delete"), compact, up(12, "b")),
        "emptied_all": (FIRST, Write(rows=FIRST.rows, operation="delete"), compact),
    }
    found = []
    for name, steps in cases.items():
        found.append(Recipe(name=f"{name}_mor", schema=PLAIN, steps=steps))
        if not name.startswith(("log_", "plan", "two", "many")):
            found.append(Recipe(name=f"{name}_cow", schema=PLAIN, steps=steps, conf=COW))
    for name in (
        "plan_then_logs",
        "log_compacted",
        "crash_then_writes",
        "rolled_back",
        "many_logs",
    ):
        conf = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
        found.append(Recipe(name=f"{name}_bucket", schema=PLAIN, steps=cases[name], conf=conf))
        for version in ("8", "6"):
            found.append(
                Recipe(
                    name=f"{name}_as{version}",
                    schema=PLAIN,
                    steps=cases[name],
                    conf={"hoodie.write.table.version": version},
                    releases=("1.2.0",),
                )
            )
    return found


def others() -> list[Recipe]:
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
        Recipe(
            name="archived_uncleaned",
            schema=PLAIN,
            steps=many(12),
            conf={**automatic, **COW, "hoodie.clean.automatic": "false"},
        ),
        Recipe(name="indexed_mor", schema=PLAIN, steps=LATER, conf=indexed),
        Recipe(name="indexed_cow", schema=PLAIN, steps=LATER, conf={**indexed, **COW}),
        Recipe(
            name="sql_changes",
            schema=PLAIN,
            steps=(
                FIRST,
                Sql(statement="update {t} set val = val + 1, ts = ts + 1 where region = 'us'"),
                Sql(statement="delete from {t} where id = 'b'"),
                Sql(statement="insert into {t} select 'n', 3L, 'nn', 2D, 'us'"),
            ),
        ),
    ]
    for mode in ("DATA_BEFORE_AFTER", "OP_KEY_ONLY", "DATA_BEFORE"):
        conf = {
            "hoodie.table.cdc.enabled": "true",
            "hoodie.table.cdc.supplemental.logging.mode": mode,
        }
        found.append(
            Recipe(name=f"cdc_cow_{mode}", schema=PLAIN, steps=LATER, conf={**conf, **COW})
        )
        found.append(
            Recipe(
                name=f"cdc_mor_{mode}",
                schema=PLAIN,
                conf=conf,
                steps=(*LATER[:3], Service(what="compact"), LATER[3]),
            )
        )
    moved = Write(rows=rows("a eu 30 moved 1", "d us 5 late 1", "z us 1 z 1"))
    for kind in ("SIMPLE", "BLOOM"):
        conf = {
            "hoodie.index.type": f"GLOBAL_{kind}",
            "hoodie.simple.index.update.partition.path": "true",
            "hoodie.bloom.index.update.partition.path": "true",
        }
        found.append(
            Recipe(name=f"moved_{kind}_mor", schema=PLAIN, steps=(*LATER, moved), conf=conf)
        )
        found.append(
            Recipe(
                name=f"moved_{kind}_cow", schema=PLAIN, steps=(*LATER, moved), conf={**conf, **COW}
            )
        )
    twice = Write(
        rows=[*FIRST.rows, *rows("a us 30 twice 7")],
        operation="insert",
        conf={"hoodie.combine.before.insert": "false"},
    )
    for table in (COW, {}):
        found.append(
            Recipe(
                name=f"twice_{'cow' if table else 'mor'}",
                schema=PLAIN,
                conf=table,
                steps=(
                    twice,
                    Write(rows=rows("a us 25 mid 8", "b us 50 b 8")),
                    Write(rows=rows("a us 1 - -"), operation="delete"),
                ),
            )
        )
    return found

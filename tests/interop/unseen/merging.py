"""Tables whose records merge by payload classes, partial updates and delete markers."""

from __future__ import annotations

from typing import Any

from tests.interop.unseen.parts import COW, MODEL, NONE
from tests.interop.unseen.recipe import WRITE, Recipe, Service, Sql, Step, Write


def payloads() -> list[Recipe]:
    schema = "id string, ts bigint, name string, val double, n int, Op string"
    found = []

    def at(key: str, ts: int, **more: Any) -> dict[str, Any]:
        return {"id": key, "ts": ts, **more}

    steps: tuple[Step, ...] = (
        Write(
            rows=[at(key, 10, name="n", val=1.0, n=1, Op="I") for key in "abcdef"],
            operation="insert",
        ),
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
            with_more = (*steps[:3], *more, *steps[3:])
            name = f"payload_{payload[:18]}{ending}"
            found.append(Recipe(name=name, schema=schema, steps=with_more, conf=conf))
        v8 = {**conf, "hoodie.write.table.version": "8"}
        found.append(
            Recipe(
                name=f"payload8_{payload[:18]}",
                schema=schema,
                steps=steps,
                conf=v8,
                releases=("1.2.0",),
            )
        )
        found.append(
            Recipe(
                name=f"payload_cow_{payload[:18]}", schema=schema, steps=steps, conf={**conf, **COW}
            )
        )
    marked = {
        **NONE,
        "hoodie.payload.delete.field": "Op",
        "hoodie.payload.delete.marker": "D",
        WRITE + "payload.class": MODEL + "DefaultHoodieRecordPayload",
    }
    found.append(Recipe(name="marked_deletes", schema=schema, steps=steps, conf=marked))
    found.append(
        Recipe(name="marked_deletes_cow", schema=schema, steps=steps, conf={**marked, **COW})
    )
    changes = (
        "id string, name string, val double, _change_operation_type string, _event_lsn bigint, "
    )
    changes += "_event_bin_file string, _event_pos bigint, _event_seq string"

    def change(key: str, lsn: int, kind: str, file: int = 1, **more: Any) -> dict[str, Any]:
        return {
            "id": key,
            "_change_operation_type": kind,
            "_event_lsn": 1_000 * file + lsn,
            "_event_bin_file": f"mysql-bin.{file:06}",
            "_event_pos": lsn,
            "_event_seq": f"{file:06}.{lsn}",
            **more,
        }

    toast = "__debezium_unavailable_value"
    changed_cases: tuple[Step, ...] = (
        Write(rows=[change(key, 10, "c", name="n", val=1.0) for key in "abcd"], operation="insert"),
        Write(rows=[change("a", 11, "u", name=toast, val=2.0), change("b", 12, "d", name="x")]),
        Write(
            rows=[
                change("a", 12, "u", name="late", val=3.0),
                change("c", 5, "d"),
                change("d", 13, "u", name=toast, val=7.5),
            ]
        ),
        Write(rows=[change("b", 11, "u", name="no"), change("e", 1, "c", name=toast)]),
        # As texts, places compare in another way.
        Write(rows=[change("a", 100, "u", name="digits"), change("d", 9, "u", 2, name="file")]),
        Write(rows=[change("a", 20, "u", name="late"), change("d", 80, "d", name="late")]),
        Write(rows=[change("c", 9, "u", name="late"), change("e", 1, "u", 10, name="file")]),
    )
    old, new = ("1.0.2", "0.15.0"), ("1.2.0",)
    places = "_event_bin_file,_event_pos"
    for kind, version, order, releases in (
        ("Postgres", "", "_event_lsn", (*new, *old)),
        ("Postgres", "8", "_event_lsn", new),
        ("MySql", "", places, new),
        ("MySql", "8", "_event_seq", new),
        ("MySql", "", "_event_seq", old),
        ("MySql", "file", "_event_bin_file", old),
    ):
        for suffix in ("", "_cow"):
            conf = {
                **NONE,
                **(COW if suffix else {}),
                WRITE + "precombine.field": order,
                WRITE + "payload.class": f"{MODEL}debezium.{kind}DebeziumAvroPayload",
                "hoodie.write.table.version": version if version == "8" else "",
            }
            found.append(
                Recipe(
                    name=f"debezium_{kind}{version}{suffix}",
                    schema=changes,
                    steps=changed_cases,
                    conf=conf,
                    releases=releases,
                )
            )
    return found


def partial() -> list[Recipe]:
    schema = "id string, ts bigint, name string, val double, st struct<x:int,y:string>, n int"
    start = Write(
        rows=[
            {"id": k, "ts": 100, "name": f"n-{k}", "val": 1.0, "st": {"x": 1, "y": "y"}, "n": 1}
            for k in "abcdef"
        ],
        operation="insert",
    )
    using = "merge into {t} t using (%s) s on t.id = s.id when matched then update set %s"

    def merge(source: str, clauses: str) -> Sql:
        return Sql(statement=using % (source, clauses))

    one = merge(
        "select 'a' id, 110L ts, 2.5D val union all select 'b', 90L, 3.5D", "ts = s.ts, val = s.val"
    )
    two = merge(
        "select 'a' id, 120L ts, 'x' name union all select 'c', 100L, 'tie'",
        "ts = s.ts, name = s.name",
    )
    three = merge("select 'a' id, 115L ts, 7 n union all select 'd', 130L, 8", "ts = s.ts, n = s.n")
    nested = merge(
        "select 'd' id, 140L ts, named_struct('x', 5, 'y', 'q') st", "ts = s.ts, st = s.st"
    )
    gone = Write(rows=[{"id": "b", "ts": 105}], operation="delete")
    again = Write(rows=[{"id": "b", "ts": 80, "name": "again"}, {"id": "c", "ts": 300, "val": 9.0}])
    full = Sql(
        statement="merge into {t} t using (select 'a' id, 200L ts, 'i' name, 0D val, "
        "named_struct('x', 1, 'y', 'z') st, 3 n union all select 'z', 1L, 'i', 0D, null, 4) s "
        "on t.id = s.id when matched then update set * when not matched then insert *"
    )
    removal = Sql(
        statement="merge into {t} t using (select 'e' id, 500L ts) s on t.id = s.id "
        "when matched then delete"
    )
    cases: dict[str, tuple[Step, ...]] = {
        "merge_columns": (start, one, two, three, nested),
        "merge_and_deletes": (start, one, gone, two, again, three),
        "merge_compacted": (start, one, two, Service(what="compact"), three, nested),
        "merge_pending": (start, one, Service(what="compact", schedule_only=True), two, three),
        "merge_full": (start, one, full, three, removal),
    }
    found = []
    for name, steps in cases.items():
        for blocks in ("avro", "parquet"):
            conf = {**NONE, "hoodie.logfile.data.block.format": blocks}
            found.append(
                Recipe(
                    name=f"{name}_{blocks}",
                    schema=schema,
                    steps=steps,
                    conf=conf,
                    releases=("1.2.0", "1.0.2"),
                    incremental=False,
                )
            )
        commit = {
            **NONE,
            "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
            WRITE + "precombine.field": "",
        }
        found.append(
            Recipe(
                name=f"{name}_commit",
                schema=schema,
                steps=steps,
                conf=commit,
                releases=("1.2.0", "1.0.2"),
                incremental=False,
            )
        )
    return found

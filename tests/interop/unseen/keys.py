"""Tables of every kind of key: odd texts, generators, virtual keys, columns left out."""

from __future__ import annotations

from typing import Any

from tests.interop.unseen.parts import COW, FIRST, LATER, NONE, PLAIN
from tests.interop.unseen.recipe import WRITE, Recipe, Service, Write

TIME = "hoodie.keygen.timebased."


def keys() -> list[Recipe]:
    odd = (
        "a b",
        "50%",
        "k=v",
        "é漢",
        "x/y",
        "a:b",
        "",
        None,
        "c'd\"e",
        "2024-01-01",
        ".x",
        "q?#&+",
    )
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
            found.append(
                Recipe(name=f"odd_paths_{encode}_{hive}", schema=PLAIN, steps=steps, conf=conf)
            )
            conf = {
                **conf,
                WRITE + "recordkey.field": "id,name",
                WRITE + "partitionpath.field": "region,name",
                WRITE + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
            }
            found.append(
                Recipe(name=f"odd_complex_{encode}_{hive}", schema=PLAIN, steps=steps, conf=conf)
            )
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
        steps = (
            Write(rows=odd_keys),
            Write(rows=again),
            Write(rows=odd_keys[1:4], operation="delete"),
        )
        found.append(
            Recipe(name=f"odd_keys_{buckets or 'plain'}", schema=PLAIN, steps=steps, conf=conf)
        )
    found.append(
        Recipe(
            name="single_complex",
            schema=PLAIN,
            steps=LATER,
            conf={WRITE + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator"},
        )
    )
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
        moved = [
            {**row, "ts": 1_700_000_000_000 + 3_600_000 * i} for i, row in enumerate(FIRST.rows)
        ]
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
        found.append(
            Recipe(
                name=f"custom_{table_type[:4].lower()}",
                schema=PLAIN,
                conf={**custom, WRITE + "table.type": table_type},
                steps=LATER,
            )
        )
    keyless = {WRITE + "recordkey.field": "", WRITE + "precombine.field": ""}
    appended = (
        Write(rows=FIRST.rows, operation="insert"),
        Write(rows=FIRST.rows, operation="insert"),
        Write(rows=FIRST.rows, operation="bulk_insert"),
    )
    found.append(Recipe(name="keyless_mor", schema=PLAIN, steps=appended, conf=keyless))
    found.append(
        Recipe(name="keyless_cow", schema=PLAIN, steps=appended, conf={**keyless, **COW, **NONE})
    )
    virtual = {"hoodie.populate.meta.fields": "false", "hoodie.index.type": "SIMPLE"}
    bulk = Write(rows=FIRST.rows, operation="bulk_insert")
    found.append(Recipe(name="virtual_mor", schema=PLAIN, steps=(bulk, *LATER[1:]), conf=virtual))
    found.append(
        Recipe(
            name="virtual_mor_compacted",
            schema=PLAIN,
            conf=virtual,
            steps=(bulk, LATER[1], Service(what="compact"), LATER[3]),
        )
    )
    found.append(
        Recipe(
            name="virtual_bucket",
            schema=PLAIN,
            steps=LATER,
            conf={**virtual, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
        )
    )
    found.append(
        Recipe(name="virtual_cow", schema=PLAIN, steps=(bulk, *LATER[1:]), conf={**virtual, **COW})
    )
    dropped = {WRITE + "drop.partition.columns": "true"}
    found.append(Recipe(name="dropped_cow", schema=PLAIN, steps=LATER, conf={**dropped, **COW}))
    found.append(Recipe(name="dropped_mor", schema=PLAIN, steps=LATER, conf=dropped))
    found.append(
        Recipe(
            name="dropped_plain",
            schema=PLAIN,
            steps=LATER,
            conf={**dropped, WRITE + "hive_style_partitioning": "false"},
        )
    )
    by_int = PLAIN.replace("region string", "region int")
    numbers = [{**row, "region": i} for i, row in enumerate(FIRST.rows)]
    found.append(
        Recipe(
            name="dropped_int",
            schema=by_int,
            conf={**dropped, **COW},
            steps=(Write(rows=numbers), Write(rows=[{**numbers[0], "val": 8.0}])),
        )
    )
    found.append(
        Recipe(
            name="int_partition",
            schema=by_int,
            steps=(Write(rows=numbers), Write(rows=[{**numbers[0], "ts": 50, "val": 8.0}])),
        )
    )
    by_date = PLAIN.replace("region string", "region date")
    dates = [{**row, "region": f"2024-0{i + 1}-01"} for i, row in enumerate(FIRST.rows)]
    found.append(
        Recipe(
            name="date_partition",
            schema=by_date,
            steps=(Write(rows=dates), Write(rows=[{**dates[0], "ts": 50, "val": 8.0}])),
        )
    )
    return found

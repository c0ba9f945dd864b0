"""Tables whose schema changes: by writers, and by statements with schema on read."""

from __future__ import annotations

from typing import Any

from tests.interop.unseen.parts import NONE
from tests.interop.unseen.recipe import WRITE, Recipe, Service, Sql, Step, Write

#: Settings for statements that change a schema.
EVOLVES = {
    "hoodie.schema.on.read.enable": "true",
    WRITE + "schema.allow.auto.evolution.column.drop": "true",
}


def _alter(words: str) -> Sql:
    return Sql(statement="alter table {t} " + words, settings=EVOLVES)


def evolution() -> list[Recipe]:
    schema = "id string, ts bigint, n int, f float, s struct<a:int,b:string>, l array<struct<x:int,w:int>>"

    def at(key: str, ts: int, **more: Any) -> dict[str, Any]:
        row: dict[str, Any] = {"id": key, "ts": ts, "n": ts, "f": ts / 4}
        return row | {"s": {"a": ts, "b": "b"}, "l": [{"x": ts}, {"x": None}]} | more

    start = Write(rows=[at(key, 1) for key in "abcde"], operation="insert")
    wide = schema.replace("n int", "n bigint").replace("f float", "f double")
    grown = wide.replace("b:string>", "b:string,c:double>").replace("w:int", "w:int,y:string")
    grown += ", extra string, dec decimal(10,2)"
    far = wide.replace("n bigint", "n double")
    found = []
    for table_type in ("MERGE_ON_READ", "COPY_ON_WRITE"):
        for blocks in ("avro", "parquet") if table_type == "MERGE_ON_READ" else ("avro",):
            conf = {
                **NONE,
                WRITE + "table.type": table_type,
                "hoodie.logfile.data.block.format": blocks,
            }
            name = f"{table_type[:4].lower()}_{blocks}"
            big = 5_000_000_000
            steps: tuple[Step, ...] = (
                start,
                Write(rows=[at("a", 2)]),
                Write(rows=[at("b", 3, n=big)], schema=wide),
                Write(
                    rows=[
                        at(
                            "c",
                            4,
                            extra="e",
                            dec="1.25",
                            s={"a": 1, "b": "b", "c": 0.5},
                            l=[{"x": 1, "y": "y"}],
                        )
                    ],
                    schema=grown,
                ),
                Write(rows=[at("a", 5, dec="7.00")], schema=grown),
            )
            found.append(Recipe(name=f"grown_{name}", schema=schema, steps=steps, conf=conf))
            steps = (
                start,
                Write(rows=[at("a", 2)]),
                Write(rows=[at("b", 3, n=2.5)], schema=far),
                Service(what="compact"),
                Write(rows=[at("c", 4, n=0.1)], schema=far),
            )
            found.append(Recipe(name=f"far_{name}", schema=schema, steps=steps, conf=conf))
            less = Write(
                rows=[{"id": "a", "ts": 9, "f": 0.5}], schema="id string, ts bigint, f float"
            )
            found.append(
                Recipe(
                    name=f"less_{name}",
                    schema=schema,
                    steps=(start, less),
                    conf={**conf, "hoodie.write.set.null.for.missing.columns": "true"},
                )
            )
            on_read = {"hoodie.schema.on.read.enable": "true"}
            for nested in ("", "_nested"):
                steps = (
                    start,
                    Write(rows=[at("a", 2)], conf=on_read),
                    _alter("add columns (late string after n)"),
                    Write(
                        rows=[at("b", 3, late="l")], conf=on_read, schema=schema + ", late string"
                    ),
                    *([_alter("rename column s.a to q")] if nested else []),
                    _alter("rename column n to m"),
                    _alter("alter column m type bigint"),
                    _alter("drop column f"),
                    _alter("add columns (s.z double)"),
                    Sql(
                        statement="update {t} set late = 'up', m = 77 where id = 'c'",
                        settings=EVOLVES,
                    ),
                )
                found.append(
                    Recipe(
                        name=f"on_read_{name}{nested}",
                        schema=schema,
                        steps=steps,
                        conf=conf,
                        read_conf={"hoodie.schema.on.read.enable": "true"},
                    )
                )
    return found

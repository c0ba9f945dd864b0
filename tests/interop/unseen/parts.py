"""The common parts of recipes: a plain schema, its rows, frequent settings."""

from __future__ import annotations

from typing import Any

from tests.interop.unseen.recipe import WRITE, Write

PLAIN = "id string, region string, ts bigint, name string, val double"
NONE = {
    WRITE + "partitionpath.field": "",
    WRITE + "keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
}
COW = {WRITE + "table.type": "COPY_ON_WRITE"}
MODEL = "org.apache.hudi.common.model."


def rows(*texts: str) -> list[dict[str, Any]]:
    """Rows of `PLAIN`: `"a us 10 x 1.5"`; a dash is a null."""
    found = []
    for text in texts:
        key, region, ts, name, val = text.split(" ")
        found.append(
            {"id": key, "region": region, "ts": int(ts)}
            | ({} if name == "-" else {"name": name})
            | ({} if val == "-" else {"val": float(val)})
        )
    return found


FIRST = Write(
    rows=rows("a us 10 x 1", "b us 10 y 2", "c us 10 z 3", "d eu 10 x 4"), operation="insert"
)
LATER = (
    FIRST,
    Write(rows=rows("a us 20 aa 1.5", "b us 5 late 0", "e eu 7 new 5")),
    Write(rows=rows("c us 11 - -"), operation="delete"),
    Write(rows=rows("c us 1 back 9", "d eu 10 tie 4.5")),
)

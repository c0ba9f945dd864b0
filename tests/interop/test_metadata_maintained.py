"""Java Hudi reads through a metadata table that hoodoo maintains, and writes on (MDT-1 to MDT-10)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from tests.interop import golden_tables
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

ON = {"hoodie.metadata.enable": "true", "hoodie.enable.data.skipping": "true"}
OFF = {"hoodie.metadata.enable": "false", "hoodie.enable.data.skipping": "false"}
PARTITIONS = "hoodie.table.metadata.partitions"
#: Filters whose columns the tables index.
FILTERS = ("a = 35", "name = 'by us'", "price > 500", "d = DATE'2024-01-04'", "id = 'new1'", "ok")

TABLES = [
    pytest.param(name, marks=[] if name in ("v8_cow_all", "v9_mor_ri") else pytest.mark.slow)
    for name in golden_tables.metadata_names()
]


def row(key: str, part: str, number: int) -> dict[str, Any]:
    return {
        "id": key,
        "part": part,
        "ts": 1_000 + number,
        "a": number,
        "name": "by us",
        "price": Decimal(number) + Decimal("900.25"),
        "d": dt.date(2024, 1, 4),
        "t": dt.datetime(2024, 2, 3, 4, 5, tzinfo=dt.UTC),
        "ok": True,
        "x": 1.5,
    }


def for_java(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "price": str(one["price"]), "d": str(one["d"]), "t": "2024-02-03T04:05:00"}


def check(java: JavaOracle, path: Path) -> None:
    """Java sees the same rows with the metadata table as without it, and the rows that we see."""
    with hoodoo.open_table(path) as table:
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
        matching = {text: table.to_arrow(filter=text.replace("DATE", "date ")) for text in FILTERS}
    assert comparable(java.read(path, conf=OFF)) == mine
    assert comparable(java.read(path, conf=ON)) == mine
    for text, rows in matching.items():
        found = java.sql(path, f"select id from {{t}} where {text}")
        assert sorted(one["id"] for one in found) == sorted(rows.column("id").to_pylist()), text


@pytest.mark.spec("MDT-4")
@pytest.mark.parametrize("name", TABLES)
def test_java_reads_and_writes_on_through_the_metadata_table_of_our_commits(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str
) -> None:
    account = golden_tables.account(name)
    java, path = java_oracle(account["hudi"]), golden_tables.unpack(name, tmp_path)
    partitions = java.properties(path)[PARTITIONS]
    rows = sorted(account["snapshot"], key=lambda one: one["id"])
    first, second = rows[0], rows[-1]
    with hoodoo.open_table(path) as table:
        table.upsert(
            [
                row(first["id"], first["part"], 1),
                row("new1", first["part"], 35),
                row("new2", "p9", 3),
            ]
        )
        table.delete(keys=[{"id": second["id"], "part": second["part"]}])
    assert java.properties(path)[PARTITIONS] == partitions
    check(java, path)
    conf = {**account["conf"], **ON, "hoodie.write.auto.upgrade": "false"}
    if account["conf"].get("hoodie.metadata.record.level.index.enable") == "true":
        conf |= {"hoodie.index.type": "RECORD_LEVEL_INDEX"}  # of each partition
    elif "record_index" in partitions:
        conf |= {"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"}
    java.write(
        path,
        [for_java(one) for one in (row("new1", first["part"], 36), row("theirs", "p9", 5))],
        conf=conf,
    )
    assert java.properties(path)[PARTITIONS] == partitions
    check(java, path)
    with hoodoo.open_table(path) as table:
        table.upsert([row("theirs", "p9", 6), row("new3", "p9", 7)])
    check(java, path)

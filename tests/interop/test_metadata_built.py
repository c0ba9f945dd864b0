"""Java Hudi reads and writes on over metadata tables that hoodoo built (MDT-11)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hoodoo
from tests.interop import golden_tables
from tests.interop.java import JavaOracle
from tests.interop.test_metadata_maintained import ON, PARTITIONS, check, for_java, row

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

COUNTS = {
    "hoodie.metadata.record.index.min.filegroup.count": "3",
    "hoodie.metadata.record.index.max.filegroup.count": "3",
}
OF_PARTITIONS = "hoodie.metadata.index.partition.stats.enable"  # of Hudi 1.0
TABLES = [
    pytest.param(name, marks=[] if name == "v9_mor_ri" else pytest.mark.slow)
    for name in golden_tables.metadata_names()
]


@pytest.mark.spec("MDT-11")
@pytest.mark.parametrize("name", TABLES)
def test_java_reads_writes_and_compacts_over_a_metadata_table_that_we_built(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str
) -> None:
    account = golden_tables.account(name)
    java, path = java_oracle(account["hudi"]), golden_tables.unpack(name, tmp_path)
    partitions = java.properties(path)[PARTITIONS]
    split = account["conf"].get("hoodie.metadata.record.level.index.enable") == "true"
    options = COUNTS | ({"hoodie.metadata.record.level.index.enable": "true"} if split else {})
    options |= {key: value for key, value in account["conf"].items() if key == OF_PARTITIONS}
    with hoodoo.open_table(path, properties=options) as table:
        table.metadata.drop()
        assert java.properties(path)[PARTITIONS] == ""
    with hoodoo.open_table(path, properties=options) as table:
        for one in partitions.split(","):
            column = "name" if one.startswith("secondary_index_") else None
            table.metadata.create(one, column=column)
        assert table.verify().ok
    assert java.properties(path)[PARTITIONS] == partitions
    check(java, path)
    conf = {**account["conf"], **ON, "hoodie.write.auto.upgrade": "false"}
    conf |= {"hoodie.metadata.compact.max.delta.commits": "1"}
    if split:
        conf |= {"hoodie.index.type": "RECORD_LEVEL_INDEX"}
    elif "record_index" in partitions:
        conf |= {"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"}
    first = min(account["snapshot"], key=lambda one: one["id"])
    for number in range(3):
        rows = [row(first["id"], first["part"], number), row(f"theirs{number}", "p9", 5)]
        java.write(path, [for_java(one) for one in rows], conf=conf)
        check(java, path)
    assert java.properties(path)[PARTITIONS] == partitions
    own = sorted((path / ".hoodie/metadata/.hoodie/timeline").iterdir())
    assert any(file.name.endswith(".commit") for file in own)  # compactions of Java
    with hoodoo.open_table(path) as table:
        table.upsert([row("mine", "p9", 6), row("theirs1", "p9", 7)])
    check(java, path)

"""A metadata table is never written behind its back; Java builds a dropped one again (MDT-11)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from tests.interop import golden_tables
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded, without_meta
from timeline.errors import TableConfigConflictError

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

OFF = {"hoodie.metadata.enable": "false"}
ON = {"hoodie.metadata.enable": "true", "hoodie.metadata.record.index.enable": "true"}
PARTITIONS = "hoodie.table.metadata.partitions"


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("1.2.0", "v9_cow_mdt_record_index"),
        pytest.param("1.0.2", "v8_cow_mdt_record_index", marks=pytest.mark.slow),
    ],
)
def test_a_dropped_metadata_table_is_built_again_by_java(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str, name: str
) -> None:
    java, path = java_oracle(release), golden_tables.unpack(name, tmp_path)
    rows = without_meta(golden_tables.account(name)["snapshot"])
    refused = hoodoo.open_table(path, properties=OFF)
    with refused as table, pytest.raises(TableConfigConflictError) as caught:
        table.upsert([row("new", "xx")])
    assert caught.value.kind == "metadata_table_on"
    assert java.properties(path)[PARTITIONS]
    assert (path / ".hoodie" / "metadata").exists()

    with hoodoo.open_table(path) as table:
        table.metadata.drop()
    with hoodoo.open_table(path, properties=OFF) as table:
        table.upsert([row("new", "xx"), row(rows[0]["id"], rows[0]["region"])])
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert len(mine) == len(rows) + 1
    assert not java.properties(path)[PARTITIONS]
    assert not (path / ".hoodie" / "metadata").exists()
    assert comparable(java.read(path)) == mine
    assert comparable(java.read(path, conf=ON)) == mine

    # Java with its metadata table on builds it again, with our new file group in it.
    java.write(path, [row("later", "xx")], conf={**ON, "hoodie.write.auto.upgrade": "false"})
    assert "record_index" in java.properties(path)[PARTITIONS]
    theirs = comparable(java.read(path, conf=ON))
    assert len(theirs) == len(mine) + 1
    assert theirs == comparable(java.read(path, conf=OFF))
    with hoodoo.open_table(path) as table:
        assert encoded(table.current_state().to_arrow(with_hoodie_columns=True)) == theirs
        table.upsert([row("again", "xx")])
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert comparable(java.read(path, conf=ON)) == mine


def row(key: str, region: str) -> dict[str, Any]:
    return {"id": key, "ts": 1_000, "val": 1.0, "name": f"by us {key}", "region": region}


def test_java_rebuilds_a_metadata_table_after_a_crash(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java, path = java_oracle("1.2.0"), golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    index, kept = path / ".hoodie/metadata", tmp_path / "kept"
    shutil.copytree(index, kept)
    with hoodoo.open_table(path) as table:
        table.metadata.drop()
    with hoodoo.open_table(path) as table:
        table.upsert([row("new", "xx")])
    # the process that dropped it died before it deleted the folder
    shutil.copytree(kept, index)
    with hoodoo.open_table(path) as table:
        table.upsert([row("second", "xx")])
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert comparable(java.read(path, conf=ON)) == comparable(java.read(path, conf=OFF)) == mine
    java.write(path, [row("later", "xx")], conf={**ON, "hoodie.write.auto.upgrade": "false"})
    theirs = comparable(java.read(path, conf=ON))
    assert len(theirs) == len(mine) + 1
    assert theirs == comparable(java.read(path, conf=OFF))

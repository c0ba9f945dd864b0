"""
Upgrades of merge-on-read tables of version 6 with Java Hudi on both sides.

Java 0.15 made the tables, with updates and deletes in logs. Java 1.2 reads them before and
after, continues to write, and upgrades a copy for comparison.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tableservices.upgrade import upgrade
from tests.interop import golden_tables
from tests.interop import test_metadata_maintained as maintained
from tests.interop.java import JavaOracle
from tests.interop.mor import COMMON, EVENT_TIME, JAVA, row
from tests.unit.timeline.engine import Behind
from timeline.context import TableContext
from timeline.properties.properties_file import load_config

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DDL = "id string, p string, ts bigint, val string, _hoodie_is_deleted boolean"
COLUMNS = ["id", "p", "ts", "val"]
OLD = {
    **COMMON,
    **EVENT_TIME,
    "hoodie.datasource.write.payload.class": (
        "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
    ),
    "hoodie.archive.automatic": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.compact.inline": "false",
}
NEW = {**OLD, "hoodie.write.auto.upgrade": "true"}


def made_by_java(java: JavaOracle, path: Path) -> None:
    """A compaction that completed, and on top of it updates, late ones and deletes in logs."""
    java.write(path, [row(key, 10, "first") for key in "abcdefgh"], schema=DDL, conf=OLD)
    java.write(path, [row("a", 20, "second"), row("e", 20, "second")], conf=OLD)
    inline = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
    java.write(path, [row("b", 30, "third")], conf={**OLD, **inline})
    java.write(path, [row("b", 5, "late"), row("d", 40, "fourth")], conf=OLD)
    java.write(path, [row("c", 50, None, gone=True), row("a", 60, None, gone=True)], conf=OLD)
    java.write(path, [row("f", 10, "first")], "delete", conf=OLD)
    java.write(path, [row("g", 70, "fifth"), row("i", 70, "new")], conf=OLD)


ANY_STRATEGY = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"  # Hudi's own merger
EXPECTED = [
    {"id": "b", "p": "x", "ts": 30, "val": "third"},
    {"id": "d", "p": "x", "ts": 40, "val": "fourth"},
    {"id": "e", "p": "y", "ts": 20, "val": "second"},
    {"id": "g", "p": "y", "ts": 70, "val": "fifth"},
    {"id": "h", "p": "y", "ts": 10, "val": "first"},
    {"id": "i", "p": "y", "ts": 70, "val": "new"},
]


def theirs(java: JavaOracle, path: Path) -> list[dict[str, Any]]:
    return sorted(java.read(path, columns=COLUMNS), key=lambda one: one["id"])


def ours(path: Path) -> list[dict[str, Any]]:
    with hoodoo.open_table(path) as table:
        return table.to_arrow(columns=COLUMNS).sort_by("id").to_pylist()


def upgraded(path: Path) -> None:
    with hoodoo.open_table(path) as table:
        assert upgrade(table.context) is not None


def different_properties(path: Path, other: Path) -> dict[str, tuple[str | None, str | None]]:
    with hoodoo.open_table(path) as one, hoodoo.open_table(other) as two:
        left, right = one.config.raw, two.config.raw
        return {
            key: (left.get(key), right.get(key))
            for key in left.keys() | right.keys()
            if left.get(key) != right.get(key)
        }


def timeline_files(path: Path, *, until: str) -> list[str]:
    """Of the instants up to a requested time, with the completion times in their names."""
    names = (file.name for file in (path / ".hoodie/timeline").iterdir() if file.is_file())
    return sorted(name for name in names if name[: len(until)] <= until and name[0] != ".")


def kinds(java: JavaOracle, path: Path) -> Counter[tuple[str, str]]:
    return Counter((one["action"], one["state"]) for one in java.timeline(path))


def test_java_continues_on_logs_that_we_merged_for_the_upgrade(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java, path = java_oracle("1.2.0"), golden_tables.unpack("v6_mor_logs", tmp_path)
    before = java.read(path, meta=False)
    upgraded(path)
    assert java.read(path, meta=False) == before
    assert all(not one["slices"][0]["log_files"] for one in java.slices(path))
    conf = {"hoodie.metadata.enable": "false", "hoodie.archive.automatic": "false"}
    changed = {**before[0], "val": 77.0}
    java.write(path, [changed], conf=conf)
    assert java.read(path, meta=False) == sorted([changed, *before[1:]], key=str)


@pytest.mark.slow
def test_an_upgrade_of_logs_has_the_result_of_javas(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    old, path, copy = java_oracle("0.15.0"), tmp_path / "ours", tmp_path / "theirs"
    made_by_java(old, path)
    assert ours(path) == theirs(old, path) == EXPECTED
    past = {one["requested"]: None for one in old.timeline(path) if one["action"] == "deltacommit"}
    shutil.copytree(path, copy)
    newest, java = max(past), java_oracle("1.2.0")
    before = {time: java.read(path, as_of=time, columns=COLUMNS) for time in past}
    upgraded(path)
    assert ours(path) == theirs(java, path) == EXPECTED
    for time, rows in before.items():
        assert java.read(path, as_of=time, columns=COLUMNS) == rows, time

    more = [row("b", 80, "sixth"), row("h", 5, "late"), row("j", 80, "new")]
    for table in (copy, path):  # Java upgrades its own copy by this write
        java.write(table, more, conf=NEW)
    assert different_properties(path, copy) == {
        # Java leaves some of version 6's words behind; version 9 says them otherwise.
        "hoodie.archivelog.folder": ("history", "archived"),
        "hoodie.timeline.history.path": ("history", None),
        "hoodie.compaction.record.merger.strategy": (None, ANY_STRATEGY),
        "hoodie.table.keygenerator.class": (None, "org.apache.hudi.keygen.SimpleKeyGenerator"),
    }
    moved = timeline_files(path, until=newest)
    assert len(moved) == 3 * 8
    assert moved == timeline_files(copy, until=newest)
    assert kinds(java, path) == kinds(java, copy)
    assert ours(path) == ours(copy) == theirs(java, path) == theirs(java, copy)
    java.write(path, [row("b", 90, None, gone=True)], conf=NEW)
    java.service(path, "compact", conf={**NEW, **JAVA})
    assert [one["id"] for one in ours(path)] == ["d", "e", "g", "h", "i", "j"]
    assert ours(path) == theirs(java, path)
    found = verify_at(path, Layers(), history=True)
    assert found.ok, found.problems


@pytest.mark.slow
@pytest.mark.parametrize("by_java", [False, True], ids=["ours", "java"])
def test_either_engine_finishes_the_merge_of_an_interrupted_upgrade(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, *, by_java: bool
) -> None:
    """Java 0.15 continues to write on top of the pending plan, and may execute it."""

    class Cut(Behind):
        def create(self, path: str, data: bytes, **how: Any) -> None:
            self.inner.create(path, data, **how)
            if path.endswith(".parquet"):
                raise KeyboardInterrupt

    java, path = java_oracle("0.15.0"), tmp_path / "t"
    made_by_java(java, path)
    with hoodoo.open_table(path) as table, suppress(KeyboardInterrupt):
        ports = table.context.ports
        storage = Cut(ports.storage)
        upgrade(TableContext.of(replace(ports, storage=storage), load_config(storage)))
    assert ours(path) == theirs(java, path) == EXPECTED
    java.write(path, [row("d", 80, "sixth")], conf=OLD)
    expected = [{**one, "ts": 80, "val": "sixth"} if one["id"] == "d" else one for one in EXPECTED]
    assert ours(path) == theirs(java, path) == expected
    if by_java:
        [plan] = [one["requested"] for one in java.timeline(path) if one["action"] == "compaction"]
        java.service(path, "compact", pending=plan, conf={**OLD, "hoodie.auto.commit": "true"})
        assert ("commit", "COMPLETED") in kinds(java, path)
        assert ours(path) == theirs(java, path) == expected
    upgraded(path)
    assert ours(path) == expected
    newer = java_oracle("1.2.0")
    assert theirs(newer, path) == expected
    newer.write(path, [row("d", 90, "seventh")], conf=NEW)
    assert ours(path) == theirs(newer, path)


@pytest.mark.spec("MDT-15")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "v8_cow_all" else pytest.mark.slow)
        for name in golden_tables.metadata_names("v8")
    ],
)
def test_java_uses_the_metadata_table_that_we_upgraded(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str
) -> None:
    account = golden_tables.account(name)
    java, path = java_oracle("1.2.0"), golden_tables.unpack(name, tmp_path)
    first, *_ = sorted(account["snapshot"], key=lambda one: one["id"])
    with hoodoo.open_table(path) as table:
        table.upsert([maintained.row("ours", "p9", 1)])
        partitions = table.config.metadata_partitions
    upgraded(path)
    maintained.check(java, path)
    with hoodoo.open_table(path) as table:
        table.upsert([maintained.row("ours", "p9", 2), maintained.row(first["id"], "p9", 3)])
        assert table.config.metadata_partitions == partitions
    maintained.check(java, path)
    conf = {**account["conf"], **maintained.ON, "hoodie.metadata.compact.max.delta.commits": "2"}
    if "record_index" in partitions:
        conf |= {"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"}
    for number in (4, 5, 6):
        java.write(path, [maintained.for_java(maintained.row("ours", "p9", number))], conf=conf)
        maintained.check(java, path)
    with hoodoo.open_table(path) as table:
        table.upsert([maintained.row("ours", "p9", 7)])
        assert table.config.metadata_partitions == partitions
    maintained.check(java, path)
    assert verify_at(path, Layers()).problems == ()

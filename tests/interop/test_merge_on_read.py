"""
Java Hudi beside us on merge-on-read tables: each reads, compacts and appends to what the other wrote.

One table lives through it all, in both table versions, and every answer of both engines is
compared row by row, meta columns included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.assembly import Layers
from hoodoo.verify import verify_at
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded, same, without_meta
from timeline.files.rewrite import FileGroupTask
from timeline.local_workload import LocalWorkload
from timeline.model.commit_metadata import WriteStat
from timeline.model.operations import WriteOperation

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("p", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("val", pa.string()),
        pa.field("_hoodie_is_deleted", pa.bool_()),
    ]
)
COMMON = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
}
JAVA = {
    "hoodie.write.auto.upgrade": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.embed.timeline.server": "false",
}
EVENT_TIME = {"hoodie.datasource.write.precombine.field": "ts"}
COMMIT_TIME = {
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
}
SIMPLE = {"hoodie.index.type": "SIMPLE"}
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
FORMAT = "hoodie.logfile.data.block.format"

Rows = list[dict[str, Any]]


def row(key: str, ts: int, val: str, *, gone: bool = False) -> dict[str, Any]:
    part = "x" if key < "e" else "y"
    return {"id": key, "p": part, "ts": ts, "val": val, "_hoodie_is_deleted": gone}


def arrow(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


START = [row(key, 10, "first") for key in "abcdefgh"]
SHORT = [
    pytest.param("1.2.0", 9, EVENT_TIME, SIMPLE, "parquet", id="9-event-simple-parquet"),
    pytest.param("1.0.2", 8, EVENT_TIME, SIMPLE, "parquet", id="8-event-simple-parquet"),
]
LONG = [
    pytest.param(*case, id=name, marks=pytest.mark.slow)
    for name, case in {
        "9-event-bucket-avro": ("1.2.0", 9, EVENT_TIME, BUCKET, "avro"),
        "9-commit-bucket-parquet": ("1.2.0", 9, COMMIT_TIME, BUCKET, "parquet"),
        "9-commit-simple-avro": ("1.2.0", 9, COMMIT_TIME, SIMPLE, "avro"),
        "8-event-bucket-avro": ("1.0.2", 8, EVENT_TIME, BUCKET, "avro"),
        "8-commit-simple-parquet": ("1.0.2", 8, COMMIT_TIME, SIMPLE, "parquet"),
        "8-newer-java": ("1.2.0", 8, EVENT_TIME, SIMPLE, "parquet"),
    }.items()
]


@pytest.mark.parametrize(("release", "version", "order", "index", "form"), SHORT + LONG)
def test_both_engines_read_compact_and_append(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    release: str,
    version: int,
    order: dict[str, str],
    index: dict[str, str],
    form: str,
) -> None:
    java, path = java_oracle(release), tmp_path / "t"
    told = {**COMMON, **order, **index, "hoodie.write.table.version": str(version)}
    theirs = {**told, **JAVA}
    by_event = order is EVENT_TIME

    def agreed(*expected: tuple[str, str]) -> None:
        """Both engines see exactly these keys and values, and the same meta columns."""
        with hoodoo.open_table(path, properties=told) as table:
            mine = encoded(table.core.pin().to_arrow(with_hoodie_columns=True))
        found = comparable(java.read(path))
        assert sorted((each["id"], each["val"]) for each in mine) == sorted(expected)
        assert same(found, mine)

    hoodoo.create_table(path, schema=SCHEMA, properties=told).close()
    with hoodoo.open_table(path, properties={**told, FORMAT: form}) as table:
        first = table.upsert(arrow(START))
        # updates, late and of the same time; rows that say they are deleted, one of them late
        table.upsert(
            arrow(
                [
                    row("a", 20, "newer"),
                    row("b", 5, "late"),
                    row("c", 10, "tie"),
                    row("d", 20, "gone", gone=True),
                    row("e", 5, "late gone", gone=True),
                ]
            )
        )
        # deletes by key; what comes after one revives it only when it is not older
        assert table.delete(arrow([row("f", 0, ""), row("g", 0, "")])).rows_deleted == 2
        table.upsert(arrow([row("f", 10, "back"), row("g", 9, "late back")]))
        assert all(each.log_files for each in table.file_slices())
    now = {"a": "newer", "c": "tie", "f": "back", "h": "first"}
    if by_event:
        now |= {"b": "first", "e": "first"}
    else:
        now |= {"b": "late", "g": "late back"}
    agreed(*now.items())
    assert_changes_agree(java, path, told, first.completion_time)
    base = without_meta(java.read(path, query_type="read_optimized"))
    assert [each["val"] for each in base] == ["first"] * 8

    java.service(path, "compact", conf={**theirs, "hoodie.auto.commit": "true"})  # asked by 1.0.2
    assert [each["state"] for each in java.timeline(path)].count("COMPLETED") == 5
    agreed(*now.items())
    with hoodoo.open_table(path, properties={**told, FORMAT: form}) as table:
        assert not any(each.log_files for each in table.file_slices())
        table.upsert(arrow([row("a", 30, "on top"), row("h", 30, "on top")]))
        table.delete(arrow([row("c", 0, "")]))
        assert any(each.log_files for each in table.file_slices())
    now |= {"a": "on top", "h": "on top"}
    del now["c"]
    agreed(*now.items())

    java.write(path, [row("a", 40, "java"), row("b", 40, "java"), row("n", 1, "new")], conf=theirs)
    now |= {"a": "java", "b": "java", "n": "new"}
    agreed(*now.items())
    java.write(path, [row("h", 0, "")], "delete", conf=theirs)
    del now["h"]
    agreed(*now.items())
    with hoodoo.open_table(path, properties={**told, FORMAT: form}) as table:
        table.upsert(arrow([row("a", 50, "ours"), row("n", 50, "ours")]))
    now |= {"a": "ours", "n": "ours"}
    agreed(*now.items())
    assert verify_at(path, Layers()).problems == ()


def assert_changes_agree(java: JavaOracle, path: Path, told: dict[str, str], since: str) -> None:
    """What changed in a range of completion times; 1.0 counts its start in (fmt 6.6)."""
    with hoodoo.open_table(path, properties=told) as table:
        mine = without_meta(encoded(table.changes(since).read_all()))
    start = str(int(since) + 1) if java.version.startswith("1.0") else since
    assert same(without_meta(java.read(path, incremental=[start])), mine)


@pytest.fixture
def appended(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A table with a base file and a log for each partition."""
    path, told = tmp_path / "t", {**COMMON, **EVENT_TIME, **SIMPLE}
    with hoodoo.create_table(path, schema=SCHEMA, properties=told) as table:
        table.upsert(arrow(START))
        table.upsert(arrow([row("a", 20, "newer"), row("e", 20, "newer")]))
    return path, told


@pytest.mark.slow
def test_java_rolls_back_what_a_dead_writer_of_ours_appended(
    java_oracle: Callable[..., JavaOracle], appended: tuple[Path, dict[str, str]]
) -> None:
    """By its markers alone: CREATE for a log file (fmt 1.4)."""
    path, told = appended
    java = java_oracle("1.2.0")
    with hoodoo.open_table(path, properties=told) as table:
        before = encoded(table.to_arrow())
        workload = _Dying(table.core.context.world, arrow([row("b", 30, "never")]))
        with pytest.raises(KeyboardInterrupt):
            table.run(WriteOperation.UPSERT, workload)
        (dead,) = table.core.context.active().pending
    logs = list(path.glob(f"*/.*_{dead.requested_time}.log.1_*"))
    assert len(logs) == 1
    java.service(path, "rollback", dead.requested_time, conf={**told, **JAVA})
    assert not logs[0].exists()
    with hoodoo.open_table(path, properties=told) as table:
        assert encoded(table.to_arrow()) == before
        assert table.core.context.active().pending == ()
    assert without_meta(java.read(path)) == without_meta(before)


@pytest.mark.slow
def test_java_cleans_and_archives_our_appends(
    java_oracle: Callable[..., JavaOracle], appended: tuple[Path, dict[str, str]]
) -> None:
    path, told = appended
    java = java_oracle("1.2.0")
    conf = {
        **told,
        **JAVA,
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    }
    for number in range(4):
        with hoodoo.open_table(path, properties=told) as table:
            table.upsert(arrow([row("a", 30 + number, f"round {number}")]))
        java.service(path, "compact", conf=conf)
    java.service(path, "clean", conf=conf)
    java.service(path, "archive", conf=conf)
    assert any(each["action"] == "clean" for each in java.timeline(path))
    assert len(java.timeline(path, archived=True)) > len(java.timeline(path))
    with hoodoo.open_table(path, properties=told) as table:
        mine = encoded(table.core.pin().to_arrow(with_hoodie_columns=True))
    assert same(comparable(java.read(path)), mine)
    assert [each["val"] for each in mine if each["id"] == "a"] == ["round 3"]


class _Dying(LocalWorkload):
    """Dies behind its files, before it publishes."""

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        super().rewrite(tasks)
        raise KeyboardInterrupt

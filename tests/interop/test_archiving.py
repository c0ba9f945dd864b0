"""
Java reads our archived timeline, and we read Java's: listed, read incrementally, continued.

Both engines archive the same table alternately, so levels are merged over files of either.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded, same, without_meta
from timeline.codecs.archive_manifest import parse_manifest
from timeline.model.file_names import HISTORY

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

KEPT = {
    "hoodie.metadata.enable": "false",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.timeline.compaction.batch.size": "3",
}
JAVA = {
    **KEPT,
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.datasource.write.keygenerator.class": (
        "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
    ),
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.index.type": "SIMPLE",
    "hoodie.write.auto.upgrade": "false",
}


def row(number: int) -> dict[str, object]:
    return {"id": f"r{number}", "ts": number, "by": "ours"}


def commit(path: Path, numbers: range) -> None:
    with hoodoo.open_table(path, properties=KEPT) as table:
        for number in numbers:
            table.upsert(pa.Table.from_pylist([row(number), {**row(0), "ts": number}]))


def listed(path: Path) -> list[tuple[str, str, str | None]]:
    """Completed instants, active and archived, as we see them."""
    with hoodoo.open_table(path) as table:
        return [
            (one.requested_time, one.action, one.completion_time)
            for one in table.timeline
            if one.state == "completed"
        ]


def theirs(java: JavaOracle, path: Path) -> list[tuple[str, str, str | None]]:
    found = java.timeline(path, archived=True)
    return sorted((one["requested"], one["action"], one["completion"]) for one in found)


def levels(path: Path) -> list[int]:
    number = int((path / HISTORY / "_version_").read_text())
    manifest = (path / HISTORY / f"manifest_{number}").read_bytes()
    return [one.level for one in parse_manifest(manifest)]


@pytest.mark.parametrize(
    "version", ["1.2.0", *(pytest.param(one, marks=pytest.mark.slow) for one in ("1.1.1", "1.0.2"))]
)
def test_both_engines_archive_one_table_alternately(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, version: str
) -> None:
    java, path = java_oracle(version), tmp_path / "t"
    made = {**KEPT, "hoodie.write.table.version": "8"} if version < "1.1" else KEPT
    with hoodoo.create_table(path, record_key="id", ordering="ts", properties=made) as table:
        table.insert(pa.Table.from_pylist([row(0)]))
    commit(path, range(1, 12))
    assert max(levels(path)) >= 1
    before = listed(path)
    assert theirs(java, path) == before
    first = before[0][2]
    assert first is not None
    since_first = java.read(path, incremental=[first])
    with hoodoo.open_table(path) as table:
        mine = table.changes(first, with_hoodie_columns=True).read_all()
    assert same(comparable(since_first), encoded(mine))

    for number in range(12, 16):
        java.write(path, [{**row(number), "by": "java"}], conf=JAVA)
    java.service(path, "archive", conf=JAVA)
    after = listed(path)
    assert after[: len(before)] == before
    assert theirs(java, path) == after

    commit(path, range(16, 26))
    with hoodoo.open_table(path, properties=KEPT) as table:
        assert len(table.context.active().completed_writes) <= 4
        rows = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    everything = listed(path)
    assert everything[: len(after)] == after
    assert theirs(java, path) == everything
    assert same(comparable(java.read(path)), rows)
    assert len(without_meta(rows)) == 26

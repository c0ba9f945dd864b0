"""Writers that archive after their commits: one does, the others leave it to that one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from tableservices.archiving import execute
from tests.unit.timeline.engine import Heard

PROPERTIES = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.automatic": "false",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


def write(table: Any, times: int) -> None:
    for number in range(times):
        table.upsert(pa.table({"id": ["a"], "v": [number]}))


def test_a_writer_leaves_archiving_to_a_running_archiver_unless_it_is_explicit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_REST_MS", 3_600_000)  # on any machine it was a moment ago
    with (
        hoodoo.create_table(tmp_path / "t", record_key="id", properties=PROPERTIES) as first,
        monkeypatch.context() as slow,
    ):
        # only its slot names the files to delete
        slow.setattr(execute, "_finish", lambda *_: False)
        write(first, 6)
        assert not any(entry.archived for entry in first.timeline)
    heard = Heard()
    second = hoodoo.open_table(tmp_path / "t", properties=PROPERTIES, events=heard)
    with second:
        write(second, 4)
        assert heard.named("archiving.done") == []
        assert second.services.archive() is not None
        assert len(heard.named("archiving.done")) == 1

"""
Four processes append to one bucket concurrently, with a compactor (NBCC-1 to NBCC-3).

No write is rejected, and the rows are those that the commit results and the plans on the timeline
define: of the logs between two plans the one with the greatest requested time counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from tests.integration.contention.contenders import (
    Commit,
    Race,
    commits_of,
    prepared_processes,
    running,
)
from timeline.model.commit_metadata import WriteOperation

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("busy"),
]

WRITERS, ROUNDS, SHARED = 4, 8, 5
SCHEMA = pa.schema([("id", pa.string()), ("by", pa.int64()), ("round", pa.int64())])
PROPERTIES = {
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
    "hoodie.write.num.retries.on.conflict.failures": "0",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline.max.delta.commits": "3",
    "hoodoo.storage.durability": "relaxed",
    "hoodoo.publish.lock": "none",
}


def rows(writer: int, section: int) -> pa.Table:
    """Rows that all processes write, and one of this commit alone."""
    keys = [*(f"shared-{one}" for one in range(SHARED)), f"{writer}-{section}"]
    return pa.Table.from_pylist(
        [{"id": key, "by": writer, "round": section} for key in keys], SCHEMA
    )


def compact(address: str, ended: Any) -> None:
    with hoodoo.open_table(address, properties=PROPERTIES) as table:
        while not ended.wait(0.2):
            table.services.compact()


def defined(commits: list[Commit], plans: list[str]) -> dict[str, tuple[int, int]]:
    """Record key to writer and round."""

    def place(one: Commit) -> tuple[int, str]:
        return sum(plan <= one.completion_time for plan in plans), one.requested_time

    found: dict[str, tuple[int, int]] = {}
    for one in sorted(commits, key=place):
        keys = rows(one.writer, one.round).column("id").to_pylist()
        found.update(dict.fromkeys(keys, (one.writer, one.round)))
    return found


def test_rows_are_the_defined_ones_and_no_writer_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t"
    hoodoo.create_table(path, schema=SCHEMA, record_key="id", properties=PROPERTIES).close()
    started = prepared_processes()
    ended = started.Event()
    with running([started.Process(target=compact, args=(str(path), ended))]):
        try:
            commits = commits_of(
                Race(
                    address=str(path),
                    operation=WriteOperation.UPSERT,
                    properties=PROPERTIES,
                    rows=rows,
                    writers=WRITERS,
                    rounds=ROUNDS,
                )
            )
        finally:
            ended.set()
    assert [one.error for one in commits if one.error] == []
    assert sum(one.refused for one in commits) == 0
    by_completion = sorted(commits, key=lambda one: one.completion_time)
    assert by_completion != sorted(commits, key=lambda one: one.requested_time)  # they overlapped
    with hoodoo.open_table(path, properties=PROPERTIES) as table:
        appended = {one.requested_time for one in commits}
        plans = [one.requested_time for one in table.timeline if one.requested_time not in appended]
        assert plans
        for _ in range(2):  # before and after a compaction of everything
            there = table.to_arrow(columns=["id", "by", "round"]).to_pylist()
            found = {row["id"]: (row["by"], row["round"]) for row in there}
            assert len(found) == len(there)
            assert found == defined(commits, plans)
            while (result := table.services.compact()) is not None:
                plans.append(result.requested_time)

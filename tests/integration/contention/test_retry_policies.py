"""
Thirty processes at one barrier: the retries of each policy, compared with published figures.

The published figures are for thirty writers on one partition: linear pauses 35 % of commits retried
and 4.1 retries a commit, exponential ones 22 %, exponential with jitter 6 % and 1.04 retries.
Here every commit appends a file group of its own, without the lock, so that writers contend only
for the next commit slot. Another run uses the commit lock, which is the default. Every
request takes 20 ms; otherwise writers would wait for the two processors, not for slots.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from tests.integration.contention.contenders import Commit, Race, commits_of
from timeline.model.commit_metadata import WriteOperation
from timeline.rules.retry import RetryPolicy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("busy"),
]

WRITERS, ROUNDS = 30, 3
QUEUE = "the lock as queue"
PUBLISHED = {
    RetryPolicy.LINEAR.value: "35 %, 4.1 retries",
    RetryPolicy.EXPONENTIAL.value: "22 %",
    RetryPolicy.EXPONENTIAL_JITTER.value: "6 %, 1.04 retries",
}
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
LOCK_FREE = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodoo.publish.lock": "none",
    "hoodie.write.commit.retry.max.attempts": "500",
    "hoodie.write.num.retries.on.conflict.failures": "500",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.clean.automatic": "false",
    "hoodoo.storage.durability": "relaxed",
    "hoodie.write.commit.retry.base.ms": "10",
    "hoodie.write.commit.retry.cap.ms": "400",
}


def new_rows(writer: int, section: int) -> pa.Table:
    rows = [{"id": f"{writer}-{section}", "p": "one", "v": writer}]
    return pa.Table.from_pylist(rows, SCHEMA)


def same_file_group(writer: int, section: int) -> pa.Table:
    """Every writer raises its own row; all rows are in one base file."""
    return pa.Table.from_pylist([{"id": str(writer), "p": "one", "v": section + 1}], SCHEMA)


def make(path: Path) -> None:
    hoodoo.create_table(path, schema=SCHEMA, record_key="id", partition_by="p").close()


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        *((policy.value, {"hoodoo.retry.policy": policy.value}) for policy in RetryPolicy),
        (QUEUE, {"hoodoo.publish.lock": "lock"}),
    ],
)
def test_no_policy_loses_a_commit(name: str, properties: dict[str, str], tmp_path: Path) -> None:
    make(tmp_path / "t")
    commits = commits_of(
        Race(
            address=str(tmp_path / "t"),
            operation=WriteOperation.INSERT,
            properties={**LOCK_FREE, **properties},
            rows=new_rows,
            writers=WRITERS,
            rounds=ROUNDS,
            latency_ms=20,
            think_ms=4_000,
        )
    )
    assert [one.error for one in commits if one.error] == []
    with hoodoo.open_table(tmp_path / "t") as table:
        there = set(table.to_arrow(columns=["id"]).column("id").to_pylist())
    assert there == {f"{one.writer}-{one.round}" for one in commits}
    assert len({one.completion_time for one in commits}) == WRITERS * ROUNDS
    if name == QUEUE:
        assert [one for one in commits if one.lost_slots] == []
    report(name, commits)


def report(name: str, commits: list[Commit]) -> None:
    """One line of the table; see it with ``pytest -s``, or in the file the environment names."""
    retried = [one for one in commits if one.lost_slots]
    lost = sum(one.lost_slots for one in commits)
    most = max(one.lost_slots for one in commits)
    line = (
        f"{name:20} {len(retried) / len(commits):5.0%} of commits retried, "
        f"{lost / len(commits):4.2f} retries a commit, at most {most}"
        f"; published: {PUBLISHED.get(name, 'none')}"
    )
    where = os.environ.get("HOODOO_RETRY_TABLE")
    if where:
        with Path(where).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    print(line)


@pytest.mark.parametrize("careless", [False, True], ids=["engine", "read then write"])
def test_a_mutant_that_checks_before_it_writes_a_slot_loses_commits(
    careless: bool, tmp_path: Path
) -> None:
    """The mutant checks whether a slot exists, then writes it: it loses acknowledged commits."""
    make(tmp_path / "t")
    with hoodoo.open_table(tmp_path / "t") as table:
        table.insert(pa.concat_tables([same_file_group(one, -1) for one in range(WRITERS)]))
    commits = commits_of(
        Race(
            address=str(tmp_path / "t"),
            operation=WriteOperation.UPSERT,
            properties=LOCK_FREE,
            rows=same_file_group,
            writers=WRITERS,
            rounds=1,
            careless=careless,
        )
    )
    acked = {str(one.writer) for one in commits if not one.error}
    with hoodoo.open_table(tmp_path / "t") as table:
        rows = table.to_arrow(columns=["id", "v"]).to_pylist()
    lost = acked - {row["id"] for row in rows if row["v"] == 1}
    if careless:
        assert lost
    else:
        assert (lost, len(acked)) == (set(), WRITERS)

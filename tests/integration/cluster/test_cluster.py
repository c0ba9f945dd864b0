"""
Jobs of a standalone Spark cluster write one table on S3, while executors and drivers are killed.

A stream, a backfill and a job that deletes write with speculation on; a worker of table services
runs beside them. All use DynamoDB's lock, and the table has a metadata table. One executor and one
driver are killed. Then each row of the table is compared with the rows of the jobs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from tests.integration.cluster import jobs
from tests.servers.dynamodb import create_table, lock_properties
from tests.servers.moto_server import MotoServer
from tests.servers.s3 import BUCKET, S3Server
from tests.servers.spark_cluster import SparkCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("busy_spark"),
]

TABLE = f"s3a://{BUCKET}/tables/orders"
ROUNDS, ROUNDS_NIGHTLY = 3, 30
JOB_S_MAX = 600
OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
    "hoodie.metadata.enable": "true",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.num.retries.on.conflict.failures": "30",
    "hoodie.client.heartbeat.interval_in_ms": "3000",
    "hoodie.compact.inline.max.delta.commits": "3",
    "hoodoo.spark.driver.write.max.bytes": "0",  # the executors write
}


class Job:
    """The driver of one application, a process of its own."""

    def __init__(self, role: str, cluster: SparkCluster, folder: Path, rounds: int) -> None:
        self.role = role
        properties = folder / "writer.properties"
        self._command = [
            *(sys.executable, "-m", "tests.integration.cluster.jobs", role, cluster.master),
            *(TABLE, str(properties), str(folder), str(rounds)),
        ]
        self._log = folder / f"{role}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        self.application = self._process.stdout.readline().strip()
        assert self.application, self.tail()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        assert self._process.wait(JOB_S_MAX) == 0, f"{self.role}: {self.tail()}"

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:]


@pytest.fixture
def properties(tmp_path: Path) -> Iterator[dict[str, str]]:
    with S3Server(tmp_path / "s3") as store, MotoServer(tmp_path / "dynamodb") as locks:
        create_table(locks.url)
        yield {
            **OPTIONS,
            **store.properties(),
            **lock_properties(locks.url, "orders", lease_ms=20_000),
        }


def expected(rounds: int) -> pa.Table:
    """Return the rows that all jobs leave: what a later backfill updates has its value."""
    backfill = [jobs.backfill_rows(number).slice(0, jobs.STEP) for number in range(rounds)]
    last = jobs.backfill_rows(rounds - 1).slice(jobs.STEP)
    streamed = [jobs.stream_rows(number) for number in range(jobs.FILES)]
    return pa.concat_tables([*backfill, last, *streamed])


def test_jobs_with_speculation_lose_and_double_no_row(
    tmp_path: Path, properties: dict[str, str], nightly: bool
) -> None:
    rounds = ROUNDS_NIGHTLY if nightly else ROUNDS
    (tmp_path / "writer.properties").write_text(
        "".join(f"{key}={value}\n" for key, value in properties.items())
    )
    (tmp_path / "source").mkdir()
    for number in range(jobs.FILES):
        pq.write_table(jobs.stream_rows(number), tmp_path / "source" / f"{number}.parquet")
    doomed = jobs.rows("d", range(jobs.DOOMED), 0)
    with hoodoo.create_table(TABLE, schema=jobs.COLUMNS, properties=properties) as table:
        table.bulk_insert(doomed)
    with SparkCluster(tmp_path / "cluster") as cluster, services(tmp_path), ExitStack() as ends:
        running = {
            role: Job(role, cluster, tmp_path, rounds) for role in ("backfill", "stream", "delete")
        }
        for job in running.values():
            ends.callback(job.kill)
        wait_for_commit("backfill", properties)
        cluster.kill_executor(running["backfill"].application)
        wait_for_commit("delete", properties)
        running["delete"].kill()
        running["delete"].start()
        for job in running.values():
            job.wait()
    notes = [json.loads((tmp_path / f"{role}.json").read_text()) for role in running]
    assert any(note["rivals"] for note in notes), "no speculative attempt began"
    with hoodoo.open_table(TABLE, properties=properties) as table:
        found = table.to_arrow()
        verified = table.verify()
    order = [("id", "ascending")]
    assert found.select(jobs.COLUMNS.names).sort_by(order) == expected(rounds).sort_by(order)
    assert verified.ok, verified
    assert any(one.action == "commit" for one in history(properties)), "no compaction ran"


class services:  # noqa: N801 - a context
    """A worker of table services, beside the jobs."""

    def __init__(self, folder: Path) -> None:
        self._command = [
            *(sys.executable, "-m", "hoodoo.cli", "services", "worker", TABLE),
            *("--props", str(folder / "writer.properties")),
        ]
        self._log = folder / "services.log"

    def __enter__(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        assert self._process.wait(120) == 0, self._log.read_text()[-3_000:]


def history(properties: dict[str, str]) -> Any:
    with hoodoo.open_table(TABLE, properties=properties) as table:
        return table.history()


def wait_for_commit(application: str, properties: dict[str, str]) -> None:
    """Wait until an application has committed."""
    end = time.monotonic() + JOB_S_MAX
    while not any(one.application == application for one in history(properties)):
        assert time.monotonic() < end, f"{application} committed nothing"
        time.sleep(0.3)

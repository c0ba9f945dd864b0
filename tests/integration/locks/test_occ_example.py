"""
A known example of Hudi's multi-writer set-up, run as it was printed, two of it at once.

Its options, class name and save mode are those of the publication. Ours are the line that
installs hoodoo, the server's address and the table's place. An outside client takes the head of
Java's lock queue first and keeps both jobs waiting until both queue behind it. So they
write at the same time on every machine, however slow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.inspect.instants import list_instants
from hoodoo.verify.verify import verify_at
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.xdist_group("busy")]

ROOT = Path(__file__).resolve().parents[3]
LOCK = "/test/my_hudi_table"  # base path and, by default, the table's name
FIRST_IN_LINE = LOCK + "/_c_00000000-0000-0000-0000-000000000000-lock-"
START_SECONDS_MAX = 300.0  # two JVMs and their first job on a busy machine
JOBS = 2

EXAMPLE = """
from pyspark.sql import SparkSession

# Start Spark
spark = SparkSession.builder \\
    .appName("Hudi Example with OCC") \\
    .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer") \\
    .getOrCreate()
{installed}
# Two rows
inputDF = spark.createDataFrame([
    (1, "2024-11-19 10:00:00", "A", "partition1"),
    (2, "2024-11-19 10:05:00", "B", "partition1")
], ["uuid", "ts", "value", "partitionpath"])

tableName = "my_hudi_table"
basePath = "{base_path}"

# Save them under optimistic concurrency control and a lock in ZooKeeper
inputDF.write.format("hudi") \\
    .option("hoodie.datasource.write.precombine.field", "ts") \\
    .option("hoodie.cleaner.policy.failed.writes", "LAZY") \\
    .option("hoodie.write.concurrency.mode", "optimistic_concurrency_control") \\
    .option("hoodie.write.lock.provider", "{provider}") \\
    .option("hoodie.write.lock.zookeeper.url", "{address}") \\
    .option("hoodie.write.lock.zookeeper.port", "2181") \\
    .option("hoodie.write.lock.zookeeper.base_path", "/test") \\
    .option("hoodie.datasource.write.recordkey.field", "uuid") \\
    .option("hoodie.datasource.write.partitionpath.field", "partitionpath") \\
    .option("hoodie.table.name", tableName) \\
    .mode("overwrite") \\
    .save(basePath)

spark.stop()
"""
INSTALLED = "import hoodoo.spark; hoodoo.spark.install(spark)\n"
PROVIDER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
# Not the example's but the machine's: how spark-submit would be called.
SUBMIT = (
    "--master local[1] --driver-memory 600m --conf spark.ui.enabled=false"
    " --conf spark.ui.showConsoleProgress=false --conf spark.driver.bindAddress=127.0.0.1"
    " --conf spark.driver.extraJavaOptions='-XX:+UseSerialGC -XX:TieredStopAtLevel=1'"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as running:
        yield running


@pytest.fixture
def stranger(server: ZooKeeperServer) -> Iterator[Any]:
    """A ZooKeeper client outside of both engines, like that of an operator."""
    from kazoo.client import KazooClient

    client = KazooClient(server.address)
    client.start()
    yield client
    client.stop()
    client.close()


class Jobs:
    """The example running several times at once."""

    def __init__(self, script: Path, *, more: str = "") -> None:
        environment = {
            **os.environ,
            "PYSPARK_SUBMIT_ARGS": f"{SUBMIT}{more} pyspark-shell",
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._log = script.with_suffix(".log")
        with self._log.open("wb") as log:
            self._running = [
                subprocess.Popen(
                    [sys.executable, str(script)], env=environment, stdout=log, stderr=log
                )
                for _ in range(JOBS)
            ]

    def wait_until(self, reached: Any) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while not reached():
            codes = [job.poll() for job in self._running]
            assert codes == [None] * JOBS, f"{codes}: {self.log()}"
            assert time.monotonic() < end, self.log()
            time.sleep(0.1)

    def exit_codes(self) -> list[int]:
        return [job.wait(START_SECONDS_MAX) for job in self._running]

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-4_000:]

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._running:
            job.kill()
            job.wait()


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("", id="alone"),
        pytest.param(
            " --conf spark.hoodoo.foreign.writers=expected",
            id="beside-java",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_runs_of_the_printed_example_at_once(
    tmp_path: Path, server: ZooKeeperServer, stranger: Any, more: str
) -> None:
    table_folder = tmp_path / "my_hudi_table"
    script = tmp_path / "example.py"
    script.write_text(
        EXAMPLE.format(
            installed=INSTALLED,
            base_path=table_folder,
            provider=PROVIDER,
            address=server.address,
        ),
        encoding="utf-8",
    )
    first = stranger.create(FIRST_IN_LINE, b"", ephemeral=True, sequence=True, makepath=True)
    with Jobs(script, more=more) as jobs:
        jobs.wait_until(lambda: len(stranger.get_children(LOCK)) == 1 + JOBS)
        assert not list((table_folder / ".hoodie" / "timeline").glob("*_*.replacecommit"))
        stranger.delete(first)
        assert jobs.exit_codes() == [0] * JOBS, jobs.log()
    assert stranger.get_children(LOCK) == []
    with hoodoo.open_table(table_folder) as table:
        accounts = sorted(list_instants(table.context), key=lambda each: each.completion_time or "")
        rows = table.to_arrow().sort_by("uuid").select(["uuid", "value"]).to_pylist()
    assert rows == [{"uuid": 1, "value": "A"}, {"uuid": 2, "value": "B"}]
    assert [each.action for each in accounts] == ["replacecommit"] * JOBS
    winner, loser = accounts
    # Both overwrite everything: the second one was rejected and retried on top.
    assert [each.attempts for each in accounts] == [1, 2]
    [refusal] = loser.refusals
    assert winner.requested_time in str(refusal["winners"])
    assert 0 < (winner.fencing_token or 0) < (loser.fencing_token or 0)
    assert verify_at(table_folder, Layers()).ok

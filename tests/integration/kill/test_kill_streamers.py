"""
Kill -9 of two streamers of one table, ten times: each message and each row of a file comes once.

One streamer reads a real Kafka, the other files. Both insert without looking up keys, so a batch
that came twice would be seen. Then that of Kafka runs on a Spark session and is killed there; at night
also that of files. At the end the table has each id once, and it verifies.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import hoodoo
from hoodoo.streamer.run import Streamer
from tests.servers.kafka import KafkaServer
from timeline.errors import InvalidInputError

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("busy")]

KILLS = 10
PARTITIONS = 3
MESSAGES, FILES, ROWS = 200, 4, 50  # of each round, several batches of each streamer
WAIT_S = 120
SMALL = {"kafka": "40", "files": "1"}  # messages or bytes of a batch


def options(folder: Path, kafka: KafkaServer, role: str) -> dict[str, str]:
    shared = {
        "hoodie.streamer.ingestion.targetBasePath": str(folder / "t"),
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.operation": "insert",
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.write.lock.provider": "filesystem",
        "hoodie.clean.automatic": "false",
    }
    if role == "kafka":
        return shared | {
            "hoodoo.streamer.source.class": "JsonKafkaSource",
            "hoodie.streamer.source.kafka.topic": "numbers",
            "bootstrap.servers": kafka.address,
            "auto.offset.reset": "earliest",
        }
    return shared | {
        "hoodoo.streamer.source.class": "JsonDFSSource",
        "hoodie.streamer.source.dfs.root": str(folder / "in"),
        "hoodoo.streamer.identifier": "files",
    }


class Crew:
    """The streamers' processes."""

    def __init__(self, folder: Path, kafka: KafkaServer) -> None:
        self.folder = folder
        for role, limit in SMALL.items():
            lines = options(folder, kafka, role) | {
                "hoodoo.streamer.source.limit": limit,
                "hoodoo.streamer.continuous": "true",
            }
            text = "".join(f"{key}={value}\n" for key, value in lines.items())
            (folder / f"{role}.properties").write_text(text)
        self.running = {role: self._start(role) for role in SMALL}

    def _start(self, role: str, executor: str = "local") -> subprocess.Popen[bytes]:
        spark = "--master local[2] --driver-memory 768m --conf spark.ui.enabled=false pyspark-shell"
        with (self.folder / f"{role}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "hoodoo.cli", "streamer",
                 "--props", str(self.folder / f"{role}.properties"), "--executor", executor],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_SUBMIT_ARGS": spark, "PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self, role: str) -> None:
        process = self.running[role]
        assert process.poll() is None, (self.folder / f"{role}.log").read_text()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def restart(self, role: str, executor: str = "local") -> None:
        self.running[role] = self._start(role, executor)

    def batches(self, role: str) -> int:
        """The number of commits that a role printed."""
        return (self.folder / f"{role}.log").read_text().count(", checkpoint ")

    def wait_for_batch(self, role: str, before: int) -> None:
        until = time.monotonic() + WAIT_S
        while self.batches(role) == before:
            assert self.running[role].poll() is None, self.log(role)
            assert time.monotonic() < until, self.log(role)
            time.sleep(0.01)

    def log(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text()[-3000:]


def feed(folder: Path, kafka: KafkaServer, number: int) -> set[str]:
    """Send messages and put files of a round; return their ids."""
    messages = [f"k{number}-{n}" for n in range(MESSAGES)]
    values = [json.dumps({"id": one, "n": number}).encode() for one in messages]
    kafka.produce("numbers", values, partitions=PARTITIONS)
    ids = set(messages)
    for file in range(FILES):
        rows = [f"f{number}-{file}-{row}" for row in range(ROWS)]
        path = folder / "in" / f"_{number}-{file}"
        path.write_text("".join(json.dumps({"id": one, "n": number}) + "\n" for one in rows))
        path.rename(path.with_name(path.name[1:]))
        ids.update(rows)
    return ids


def test_killed_streamers_write_each_row_once(tmp_path: Path, nightly: bool) -> None:
    pick = random.Random(1)
    wanted: set[str] = set()
    (tmp_path / "in").mkdir()
    kafka = KafkaServer(tmp_path / "kafka").start()
    try:
        kafka.create_topic("numbers", PARTITIONS)
        with hoodoo.create_table(
            tmp_path / "t", record_key="id", properties=options(tmp_path, kafka, "files")
        ):
            crew = Crew(tmp_path, kafka)
        for number in range(KILLS):
            role = list(SMALL)[number % 2]
            before = crew.batches(role)
            wanted |= feed(tmp_path, kafka, number)
            crew.wait_for_batch(role, before)
            time.sleep(pick.uniform(0, 0.2))
            crew.kill(role)
            crew.restart(role)
        before = {role: crew.batches(role) for role in SMALL}
        wanted |= feed(tmp_path, kafka, KILLS)
        for role in SMALL:
            crew.wait_for_batch(role, before[role])
            crew.kill(role)
        on_spark = list(SMALL) if nightly else ["kafka"]
        for role in on_spark:
            before[role] = crew.batches(role)
            wanted |= feed(tmp_path, kafka, KILLS + 1 + on_spark.index(role))
            crew.restart(role, "spark")
            crew.wait_for_batch(role, before[role])
            crew.kill(role)
        for role in SMALL:
            with Streamer(options(tmp_path, kafka, role)) as streamer:
                streamer.run()
        gone = options(tmp_path, kafka, "kafka") | {"hoodie.streamer.source.kafka.topic": "no"}
        with Streamer(gone) as streamer, pytest.raises(InvalidInputError) as caught:
            streamer.check()
        assert caught.value.kind == "streamer_checkpoint"
        with (
            Streamer(gone | {"hoodoo.streamer.ignore.checkpoint": "x"}) as streamer,
            pytest.raises(InvalidInputError, match="have no such topic"),
        ):
            streamer.check()
    finally:
        kafka.kill()
    with hoodoo.open_table(tmp_path / "t") as table:
        found = Counter(table.to_arrow(columns=["id"]).column("id").to_pylist())
        assert set(found) == wanted
        assert max(found.values()) == 1
        assert table.verify().ok
        commits = len(list(table.snapshot.commits_newest_first()))
    print(f"{KILLS + 2 + len(on_spark)} kills, {commits} commits, {len(found)} rows, each once")

"""
Kill -9 of either writer at random moments: the survivors continue and nothing is lost.

Two writer processes (one loads new keys, one corrects existing keys) and a cleaning
process work on one table. The test kills a random writer after a random pause, ten times,
and restarts it. At the end the rows must contain every acknowledged step exactly, and the table
must verify. After heartbeats expired, one clean must leave no trace of the dead.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import hoodoo
from hoodoo.verify.verify import verify
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tests.integration.kill import writer
from timeline.model.file_names import parse_base_file_name

ROOT = Path(__file__).parents[3]
KILLS = 10
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("busy")]


class Crew:
    """The processes of one round."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder = folder
        self.engine = engine
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str) -> None:
        """Start or restart one role."""
        log = (self.folder / f"{role}.log").open("ab")
        arguments = [role, str(self.folder / "table"), str(self.folder / f"{role}.jsonl")]
        self.running[role] = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.integration.kill.writer",
                *arguments,
                self.engine,
            ],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def kill(self, role: str) -> None:
        """SIGKILL the whole process group, as a crash of the machine's user would."""
        process = self.running[role]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait(self, role: str, seconds: float) -> None:
        """Wait for a role to finish its steps; its log is shown when it failed."""
        code = self.running[role].wait(seconds)
        assert code == 0, (self.folder / f"{role}.log").read_text()[-3000:]


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
)
def test_killed_writers_lose_nothing_and_leave_nothing(tmp_path: Path, seed: int) -> None:
    _round(tmp_path, seed, engine="local", pause=(0.5, 3.5), seconds=120)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_spark_writers_lose_nothing_and_leave_nothing(tmp_path: Path, seed: int) -> None:
    _round(tmp_path, seed, engine="spark", pause=(14.0, 32.0), seconds=300)


def _round(
    folder: Path, seed: int, *, engine: str, pause: tuple[float, float], seconds: float
) -> None:
    chance = random.Random(seed)
    table = _created(folder / "table")
    crew = Crew(folder, engine)
    for role in ("load", "correct", "clean"):
        crew.start(role)
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(*pause))
            role = chance.choice(["load", "correct"])
            assert crew.running[role].poll() is None, (folder / f"{role}.log").read_text()[-3000:]
            crew.kill(role)
            crew.start(role)
        time.sleep(pause[1])
        (folder / "stop").touch()
        crew.wait("load", seconds)
        crew.wait("correct", seconds)
    finally:
        for role, process in crew.running.items():
            if process.poll() is None:
                crew.kill(role)
    _check_rows(table, folder)
    _check_leftovers(table)
    found = verify(table.context)
    assert found.ok, found.problems


def _created(path: Path) -> hoodoo.Table:
    schema = writer.loaded(0).schema
    return hoodoo.create_table(
        path,
        schema=schema,
        record_key=["id"],
        partition_by=["part"],
        ordering=["version"],
        properties=writer.PROPERTIES,
    )


def _check_rows(table: hoodoo.Table, folder: Path) -> None:
    """Exactly the rows that the acknowledged steps make, by numpy alone."""
    loads = writer._journal(str(folder / "load.jsonl"))
    corrections = writer._journal(str(folder / "correct.jsonl"))
    keys = len(loads) * writer.KEYS_PER_STEP
    versions = np.zeros(keys, np.int64)
    for done in corrections:
        touched = np.arange(done["step"] % 7, done["keys"], 7)
        versions[touched] = np.maximum(versions[touched], done["step"] + 1)
    rows = table.to_arrow().sort_by("id")
    assert rows.num_rows == keys
    assert rows["id"].to_pylist() == list(range(keys))
    assert rows["version"].to_pylist() == versions.tolist()
    assert rows["written_by"].to_pylist() == [
        f"correct-{version - 1}" if version else f"load-{key // writer.KEYS_PER_STEP}"
        for key, version in enumerate(versions.tolist())
    ]


def _check_leftovers(table: hoodoo.Table) -> None:
    """After the dead ones' heartbeats ran out one clean removes every trace of them."""
    time.sleep(4)
    clean(table.context, CleaningSettings.from_properties(table.properties))
    storage = table.context.ports.storage
    snapshot = table.snapshot
    assert [str(instant) for instant in snapshot.active.pending] == []
    assert storage.names(".hoodie/.heartbeat") == []
    assert storage.list(".hoodie/.temp") == []
    strange = [
        entry.name
        for partition in table.view.partition_paths()
        for entry in storage.list(partition)
        if (base := parse_base_file_name(entry.name)) is not None
        and not snapshot.is_committed(base.requested_time)
    ]
    assert strange == []
    assert isinstance(table.to_arrow(), pa.Table)

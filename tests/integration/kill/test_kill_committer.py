"""Eight writer processes, a committer that is killed under them, and the next one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.verify.verify import verify
from tests.servers.signals import freeze, thaw

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.xdist_group("busy")]

WRITERS = 8
LONG_S = 200
ROOT = Path(__file__).parents[3]
PROPERTIES = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodoo.group.commit.service.wait.ms": "60000",
}


class Host:
    """A table, its properties file, and the processes of one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / "t"
        self.socket = folder / "s"
        self.properties = folder / "p.properties"
        output = {**PROPERTIES, "hoodoo.group.commit.service": str(self.socket)}
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in output.items()))
        self.processes: list[subprocess.Popen[str]] = []
        schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
        hoodoo.create_table(
            self.table, record_key="id", partition_by="p", schema=schema, properties=PROPERTIES
        ).close()

    def start(self, *command: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self.processes.append(process)
        return process

    def committer(self, health: Path, *more: str) -> subprocess.Popen[str]:
        return self.start("-m", "hoodoo.cli", "committer", "--props", self.properties,
                          "--health", health, *more, self.table)  # fmt: skip

    def crew(self, operation: str, *more: str) -> subprocess.Popen[str]:
        crew = Path(__file__).with_name("crew.py")
        with self.properties.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        return self.start(crew, self.properties, self.table, self.folder, WRITERS, operation)

    def notes(self) -> list[dict[str, Any]]:
        """Every commit result so far; a line that is being written is left out."""
        texts = [one.read_text() for one in self.folder.glob("*.ndjson")]
        lines = [line for text in texts for line in text.split("\n")[:-1]]
        return [json.loads(line) for line in lines]

    def wait(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + LONG_S
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.05)

    def stop(self, crew: subprocess.Popen[str]) -> None:
        (self.folder / "stop").touch()
        _, output = crew.communicate(timeout=LONG_S)
        assert crew.returncode == 0, output

    def end(self) -> None:
        (self.folder / "stop").touch()
        for one in self.processes:
            if one.poll() is None:
                one.kill()
            one.wait()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.end()


def check(host: Host, killed: Collection[int] = ()) -> None:
    """Every commit result has its row; only a dead writer's last row may lack a result."""
    notes = host.notes()
    assert {note["rows"] for note in notes} == {1}
    assert max(note["group"] for note in notes) > 1
    with hoodoo.open_table(host.table, properties=PROPERTIES) as table:
        found = table.to_arrow(columns=["_hoodie_commit_time", "id"]).to_pylist()
        rows = sorted((row["_hoodie_commit_time"], row["id"]) for row in found)
        acknowledged = sorted((note["time"], note["key"]) for note in notes)
        unacknowledged = sorted(key for _, key in set(rows) - set(acknowledged))
        lasts = {f"{one}-{sum(x['key'].startswith(f'{one}-') for x in notes)}" for one in killed}
        assert set(unacknowledged) <= lasts
        assert [row for row in rows if row[1] not in unacknowledged] == acknowledged
        assert len(rows) == len(acknowledged) + len(unacknowledged)
        assert verify(table.context).problems == ()


def freeze_without_a_lock(pid: int) -> None:
    """
    Stop a process between two of its commits.

    The kernel keeps a stopped process's lock. With the ``filesystem`` provider all others then
    wait for it (``docs/locks``). A process that commits half of the time often has the lock.
    """
    while True:
        freeze(pid)
        locks = Path("/proc/locks").read_text().splitlines()
        if not any(str(pid) in line.split() for line in locks):
            return
        thaw(pid)
        time.sleep(0.003)


def committed(health: Path) -> int:
    """Number of commits that a committer reports."""
    return int(json.loads(health.read_text())["writes"]) if health.exists() else 0


OPERATIONS = pytest.mark.parametrize("operation", ["insert", "upsert"])  # by each, as one


@pytest.mark.spec("GRP-6")
@pytest.mark.spec("GRP-8")
@OPERATIONS
def test_writers_continue_when_their_committer_is_killed_and_find_the_next_one(
    host: Host, tmp_path: Path, operation: str
) -> None:
    first = host.committer(tmp_path / "first")
    host.wait(host.socket.exists)
    crew = host.crew(operation)
    host.wait(lambda: committed(tmp_path / "first") >= 2 * WRITERS)
    first.send_signal(signal.SIGKILL)
    first.wait()
    known = len(host.notes())
    host.wait(lambda: len(host.notes()) >= known + WRITERS)
    assert host.socket.exists(), "the dead one left it"
    second = host.committer(tmp_path / "second")
    host.wait(lambda: committed(tmp_path / "second") >= WRITERS)
    host.stop(crew)
    second.send_signal(signal.SIGTERM)
    _, output = second.communicate(timeout=LONG_S)
    assert second.returncode == 0, output
    assert not host.socket.exists()
    assert json.loads((tmp_path / "second").read_text())["state"] == "ended"
    check(host)
    with hoodoo.open_table(host.table, properties=PROPERTIES) as table:
        left = [one.requested_time for one in table.timeline if one.state != "completed"]
    # Killed before it asked for files, it leaves one that a clean rolls back when it is old enough.
    assert len(left) <= 1
    assert not any(time in path.name for time in left for path in host.table.rglob("*.parquet"))


@pytest.mark.slow
@pytest.mark.spec("GRP-5")
@pytest.mark.spec("GRP-6")
@OPERATIONS
def test_a_committer_that_is_stopped_and_writers_that_are_killed_lose_nothing(
    host: Host, tmp_path: Path, operation: str
) -> None:
    committer = host.committer(
        tmp_path / "health", "--hoodie-conf", "hoodoo.group.commit.service.wait.ms=3000"
    )
    host.wait(host.socket.exists)
    crew = host.crew(operation, "hoodoo.group.commit.service.wait.ms=3000")
    dead: set[int] = set()
    for number in (0, 1):
        known = committed(tmp_path / "health")
        host.wait(lambda known=known: committed(tmp_path / "health") >= known + 2 * WRITERS)
        freeze_without_a_lock(committer.pid)
        stopped = len(host.notes())
        host.wait(lambda stopped=stopped: len(host.notes()) >= stopped + WRITERS)
        thaw(committer.pid)
        os.kill(int((tmp_path / f"{number}.pid").read_text()), signal.SIGKILL)
        dead.add(number)
    host.stop(crew)
    committer.send_signal(signal.SIGTERM)
    _, output = committer.communicate(timeout=LONG_S)
    assert committer.returncode == 0, output
    check(host, dead)

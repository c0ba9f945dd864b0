"""The worker as a process: its output while it works, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from timeline.writer_registry import registered_writers

pytestmark = pytest.mark.integration

LONG_S = 120
PROPERTIES = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "60",  # a busy machine may pause anybody
    "hoodoo.services.interval.ms": "200",
}
#: For tests that wait until a killed process is taken for dead.
HASTY = {**PROPERTIES, "hoodie.client.heartbeat.tolerable.misses": "2"}


@pytest.fixture
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A table with a log to compact."""
    properties = getattr(request, "param", PROPERTIES)
    with hoodoo.create_table(
        tmp_path / "t", record_key="id", ordering="ts", properties=properties
    ) as made:
        for number in (1, 2):
            made.upsert(pa.table({"id": ["a", "b"], "ts": [number] * 2, "v": [number] * 2}))
        yield made


def started(
    folder: Path, *arguments: object, properties: dict[str, str] = PROPERTIES
) -> subprocess.Popen[str]:
    """A worker of the table, by the properties of its writers."""
    settings = [
        part for key, value in properties.items() for part in ("--hoodie-conf", f"{key}={value}")
    ]
    command = [sys.executable, "-m", "hoodoo.cli", "services", *map(str, arguments), *settings]
    return subprocess.Popen(
        [*command, "--output", "ndjson"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )


def wait_until(holds: Any) -> None:
    until = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_worker_reports_its_health_and_ends_at_sigterm(table: Any, tmp_path: Path) -> None:
    health = tmp_path / "health.json"
    worker = started(tmp_path, "worker", tmp_path / "t", "--service", "compact",
                     "--health", health, "--events", "--max-file-groups", 1)  # fmt: skip
    try:
        wait_until(lambda: health.exists() and json.loads(health.read_text())["receipts"] == 1)
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=LONG_S)
    finally:
        worker.kill()
    assert worker.returncode == 0, err
    assert json.loads(health.read_text())["state"] == "ended"
    [done] = [json.loads(line) for line in out.splitlines()]
    assert (done["action"], done["file_groups"], done["rows_written"]) == ("compact", 1, 2)
    events = [line.split()[3] for line in err.splitlines() if " INFO " in line]
    assert events[0] == "worker.began"
    assert "service.done" in events
    assert events[-1] == "worker.ended"
    assert len(registered_writers(table.context)) == 1, "it has left the writers"
    assert not any((tmp_path / "t" / ".hoodie" / ".heartbeat").iterdir())
    assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": 2}, {"v": 2}]


@pytest.mark.slow
def test_a_second_signal_interrupts_a_worker_and_the_next_one_continues(
    table: Any, tmp_path: Path
) -> None:
    for number in (3, 4):
        ids = pa.array(range(400_000)).cast(pa.string())
        same = pa.repeat(number, len(ids))
        table.upsert(pa.table({"id": ids, "ts": same, "v": same}))
    beats = tmp_path / "t" / ".hoodie" / ".heartbeat"
    worker = started(tmp_path, "worker", tmp_path / "t", "--service", "compact",
                     "--max-file-groups", 1)  # fmt: skip
    try:
        wait_until(lambda: any(beats.iterdir()))
        while any(beats.iterdir()):  # two signals at nearly the same time are one to the process
            worker.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        _, err = worker.communicate(timeout=LONG_S)
    finally:
        worker.kill()
    assert worker.returncode == 130, err
    assert not any(beats.iterdir())
    [plan] = [one for one in table.timeline if one.state != "completed"]
    after = started(tmp_path, "worker", tmp_path / "t", "--service", "compact", "--rounds", 1)
    out, err = after.communicate(timeout=LONG_S)
    assert after.returncode == 0, err
    assert json.loads(out)["requested_time"] == plan.requested_time


@pytest.mark.slow
@pytest.mark.parametrize("table", [HASTY], ids=["hasty"], indirect=True)
def test_a_second_executor_waits_and_replaces_a_killed_one(table: Any, tmp_path: Path) -> None:
    planned = table.services.schedule("compact").requested_time
    beat = tmp_path / "t" / ".hoodie" / ".heartbeat" / planned
    hold = (
        "import hoodoo, json, sys, time\n"
        "from hoodoo.services import find_plan\n"
        "from tableservices.plan_execution import lease_plan\n"
        "table = hoodoo.open_table(sys.argv[1], properties=json.loads(sys.argv[2]))\n"
        "lease = lease_plan(table.context, find_plan(table.context, sys.argv[3]))\n"
        "time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "t"), json.dumps(HASTY), planned],
        cwd=Path(__file__).parents[2],
    )
    try:
        wait_until(beat.exists)
        second = started(tmp_path, "run", tmp_path / "t", "--instant", planned, "--wait", 60,
                         properties=HASTY)  # fmt: skip
        time.sleep(4)  # longer than a silence is tolerated: the first one beats
        assert second.poll() is None
    finally:
        holder.kill()
        holder.wait()
    out, err = second.communicate(timeout=LONG_S)
    assert second.returncode == 0, err
    assert json.loads(out)["requested_time"] == planned
    assert json.loads(out)["rows_written"] == 2

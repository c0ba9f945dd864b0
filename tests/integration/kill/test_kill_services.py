"""
Kill -9 of workers and writers at random moments: plans are finished, no row is lost.

Two writers work on a merge-on-read table, and two workers that do everything for it: compact,
put logs together, cluster, clean, archive. The test kills one of the four again and again.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import hoodoo
from hoodoo.services import services_of
from hoodoo.verify.verify import verify
from tests.integration.kill import writer
from tests.integration.kill.test_kill import Crew, _check_leftovers, _check_rows

KILLS = 50
ROLES = ("load", "correct", "serve-1", "serve-2")
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("busy")]


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers_and_writers_lose_nothing_and_leave_nothing(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    table = hoodoo.create_table(
        tmp_path / "table",
        schema=writer.loaded(0).schema,
        record_key=["id"],
        partition_by=["part"],
        ordering=["version"],
        table_type="MERGE_ON_READ",
        properties=writer.SERVING,
    )
    crew = Crew(tmp_path, "local")
    for role in ROLES:
        crew.start(role)
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 3.0))
            role = chance.choice(ROLES)
            log = tmp_path / f"{role}.log"
            assert crew.running[role].poll() is None, log.read_text()[-3000:]
            crew.kill(role)
            crew.start(role)
        _wait_for_every_service(tmp_path)
        (tmp_path / "stop").touch()
        crew.wait("load", 120)
        crew.wait("correct", 120)
    finally:
        for role, process in crew.running.items():
            if process.poll() is None:
                crew.kill(role)
    time.sleep(4)  # the heartbeats of the dead run out
    for _ in range(2):
        for service in services_of(table.properties):
            service.run_once(table.context)
    _check_rows(table, tmp_path)
    _check_leftovers(table)
    found = verify(table.context)
    assert found.ok, found.problems


def _wait_for_every_service(folder: Path) -> None:
    """Until the workers have done some of everything."""
    wanted = [f"{name}: " for name in ("compact", "logcompact", "cluster", "clean", "archive")]
    for _ in range(1_800):
        logs = "".join((folder / f"{role}.log").read_text() for role in ROLES[2:])
        lines = [line for line in logs.splitlines() if "error" not in line]
        missing = [name for name in wanted if not any(line.startswith(name) for line in lines)]
        if not missing:
            return
        time.sleep(0.1)
    pytest.fail(f"never worked: {missing}\n{logs[-3000:]}")

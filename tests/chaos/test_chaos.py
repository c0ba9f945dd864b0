"""
Chaos with real processes: kills, stops, cut wires and full disks lose no row.

The smoke run has every kind of fault once under ZooKeeper's lock. Nightly it is 20 minutes for
each lock (``HOODOO_CHAOS_MINUTES`` makes it shorter or longer). The verdict is about safety alone:
the report shows durations and recovery times, since machines differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import Kind
from tests.chaos.locks import LOCKS
from tests.chaos.passing import commits_wanted
from tests.servers import server_missing

ROOT = Path(__file__).parents[2]
SMOKE_S = 90
NIGHTLY_S = 60 * float(os.environ.get("HOODOO_CHAOS_MINUTES", "20"))
NO_SERVER = 77
#: Where reports are kept: CI and ``make nightly`` may show them.
REPORTS = ROOT / "build" / "chaos"


@pytest.mark.integration
@pytest.mark.xdist_group("busy")
@pytest.mark.timeout(900)
def test_every_kind_of_fault_occurs_once_and_no_row_is_lost(tmp_path: Path) -> None:
    report = _run(tmp_path, "zookeeper", SMOKE_S, "--seed", str(os.getpid()))
    assert report["violations"] == []
    assert report["operations"]["open"] == 0
    assert min(report["operations"]["by_writer"].values()) > 0, report["operations"]
    assert report["readers"]["read"] > 0
    assert report["impossible"] == []
    wanted = {"kill", "pause", "cut", "delay", "drop", "drop_one", "server", "clock", "disk"}
    assert wanted - _kinds(report["lacking"]) == set(report["faults"]), report["faults"]
    nothing_is_lacking(report)


@pytest.mark.integration
@pytest.mark.xdist_group("busy")
@pytest.mark.slow
@pytest.mark.timeout(5 * NIGHTLY_S + 900)
@pytest.mark.parametrize("lock", LOCKS)
def test_a_long_run_under_each_lock_loses_nothing(tmp_path: Path, lock: str) -> None:
    enough = str(commits_wanted(NIGHTLY_S))
    report = _run(tmp_path, lock, NIGHTLY_S, "--seed", str(os.getpid()), "--acknowledged", enough)
    assert report["violations"] == []
    assert report["operations"]["open"] == 0
    assert min(report["operations"]["by_writer"].values()) > 0, report["operations"]
    left_out = _kinds(report["impossible"]) | _kinds(report["lacking"])
    assert set(report["faults"]) == {kind.value for kind in Kind} - left_out
    nothing_is_lacking(report)


@pytest.mark.integration
@pytest.mark.xdist_group("busy")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_storage_that_reads_and_then_writes_is_caught(tmp_path: Path) -> None:
    report = _run(tmp_path, "filesystem", 30, "--mutant", "read-then-write")
    found = "\n".join(report["violations"])
    # By the rows, by the journals and the table's own story, and by its slots.
    assert "was acknowledged and is lost" in found or "the operations make" in found, found
    assert "lost_update" in found, found
    assert "I6" in found, found


def nothing_is_lacking(report: Mapping[str, Any]) -> None:
    """Skip a test whose machine cannot bring a fault about; fail it where CI runs."""
    if report["lacking"]:
        server_missing(f"not every fault is possible on this machine: {report['lacking']}")


def _kinds(impossible: list[str]) -> set[str]:
    """Of entries like ``clock (why)``."""
    return {one.partition(" ")[0] for one in impossible}


def _run(folder: Path, lock: str, seconds: float, *more: str) -> dict[str, Any]:
    """The command as a user runs it; its report."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    mutant = "-mutant" if "--mutant" in more else ""
    report = REPORTS / f"{lock}-{seconds:g}s{mutant}.json"
    report.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "tests.chaos", "--lock", lock, "--seconds", str(seconds)),
        *("--folder", str(folder / "run"), "--report", str(report), *more),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == NO_SERVER:
        server_missing(done.stderr)
    print(done.stdout)
    assert report.exists(), done.stderr
    document: dict[str, Any] = json.loads(report.read_text())
    assert done.returncode == (1 if document["violations"] else 0), done.stderr
    return document

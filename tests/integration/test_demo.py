"""The demonstration as a user runs it: real Spark processes, real flights, every row checked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.demo.flights import ROWS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.xdist_group("busy")]

DEMO = [sys.executable, "-m", "hoodoo.cli", "demo"]


def play(path: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(
        [*DEMO, "--path", str(path), "--output", "json", *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def applications(document: dict[str, Any], action: str) -> set[str]:
    return {each["application"] for each in document["timeline"] if each["action"] == action}


@pytest.mark.spark
def test_two_spark_writers_lose_and_double_nothing(tmp_path: Path) -> None:
    path = tmp_path / "flights"
    document = play(path)
    assert (document["ok"], document["rows"]) == (True, ROWS)
    assert document["verify"]["problems"] == []
    assert document["overlaps"] > 0
    assert document["refused_and_retried"] > 0
    assert applications(document, "commit") == {"loader", "corrector"}
    assert applications(document, "clean") == {"cleaner"}
    refused = [each for each in document["timeline"] if each["refusals"]]
    # the counted instants include these
    assert any(each["archived"] for each in document["timeline"])
    assert all(each["refusals"][0]["winners"] for each in refused)
    with hoodoo.open_table(path) as table:
        assert sum(batch.num_rows for batch in table.scan(columns=["flight"])) == ROWS


def test_the_demo_replaces_its_own_older_table_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "flights"
    for _ in range(2):
        document = play(path, "--engine", "local", "--half-months", "2")
        assert document["ok"] is True
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "file.txt").write_text("x")
    refused = subprocess.run(
        [*DEMO, "--path", str(foreign), "--engine", "local", "--output", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["kind"] == "not_a_demo_folder"
    assert [file.name for file in foreign.iterdir()] == ["file.txt"]


def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    with hearing_ctrl_c():
        process = subprocess.Popen(
            [*DEMO, "--path", str(tmp_path / "flights"), "--engine", "local"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert process.stdout is not None
    line = next(line for line in process.stdout if "started" in line)
    pids = [int(part.split(")")[0]) for part in line.split("pid ")[1:]]
    assert len(pids) == 3
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


@contextlib.contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """
    Processes started here receive Ctrl-C, also if the tests are a background job that does not.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

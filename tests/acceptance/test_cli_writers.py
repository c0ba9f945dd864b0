"""Several processes at one table, as the command line shows and judges them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from filegroups.writing.workload import LocalWorkload
from tests.acceptance.cli import Answer, contents, run, table_with_rows
from timeline.model.commit_metadata import WriteOperation

MANY = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.write.application.id": "nightly load",
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return table_with_rows(tmp_path)


def upsert(table: Path, text: str, *more: object) -> Answer:
    file = table.parent / "more.csv"
    file.write_text("id,name,amount,day,version\n" + text, encoding="utf-8")
    return run("write", table, "--input", file, *more)


# ---- asked before a write


BERT, ANN = "2,bert,3.5,2013-01-02,2\n", "1,anna,1.5,2013-01-01,2\n"
NEW = "9,new,1.0,2013-01-09,1\n"


def during_a_write(table: Path, *asked: Any) -> list[Any]:
    """The answers while another process writes the row of bob."""
    answers: list[Any] = []

    class Slow(LocalWorkload):
        def rewrite(self, tasks: Any) -> Any:
            answers.extend(one() for one in asked)
            return super().rewrite(tasks)

    with hoodoo.open_table(table, properties=MANY) as opened:
        rows = opened.to_arrow(filter=[("id", "==", 2)])
        opened._run(WriteOperation.UPSERT, Slow(opened.context.ports, rows))
    return answers


def test_a_dry_run_names_the_writers_that_would_conflict(table: Path) -> None:
    expire = "hoodie.datasource.write.partitions.to.delete=2013-01-02"
    before, same, other, filtered, partition, after = during_a_write(
        table,
        lambda: contents(table),
        lambda: upsert(table, BERT, "--dry-run"),
        lambda: upsert(table, ANN + NEW, "--dry-run"),
        lambda: run("write", table, "--operation", "delete", "--filter", "id = 2", "--dry-run"),
        lambda: run("write", table, "--operation", "delete_partition", "--hoodie-conf", expire,
                    "--dry-run"),
        lambda: contents(table),
    )  # fmt: skip
    assert (same.exit_code, same.document["rows"]) == (5, 1)
    (conflict,) = same.document["would_meet"]
    assert (conflict["rule"], conflict["kind"], conflict["redo"]) == (
        "C1",
        "write_conflict",
        "file groups",
    )
    assert len(conflict["winners"]) == 1
    assert (other.exit_code, other.document["would_meet"]) == (0, [])
    assert filtered.exit_code == partition.exit_code == 5
    assert filtered.document["rows"] == 1
    assert partition.document["would_meet"][0]["partitions"] == ["2013-01-02"]
    assert after == before
    quiet = upsert(table, BERT, "--dry-run")
    assert (quiet.exit_code, quiet.document["would_meet"]) == (0, [])


# ---- live writers, and whether they agree


@contextmanager
def worker(table: Path, *settings: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the command line that stays in the registry."""
    command = [sys.executable, "-m", "hoodoo.cli", "services", "worker", str(table)]
    for text in settings:
        command += ["--hoodie-conf", text]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        while not any(one["alive"] for one in run("writers", table).document["writers"]):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


@pytest.mark.spec("REG-1")
def test_a_process_that_disagrees_is_refused_with_the_differences(table: Path) -> None:
    settings = [f"{key}={value}" for key, value in MANY.items()]
    agreeing = [part for text in settings for part in ("--hoodie-conf", text)]
    with worker(table, *settings) as process:
        (entry,) = run("writers", table).document["writers"]
        assert (entry["pid"], entry["application"]) == (process.pid, "nightly load")
        assert entry["agreement"]["mode"] == "OPTIMISTIC_CONCURRENCY_CONTROL"
        assert entry["buckets"] == ""  # it writes no rows
        before = run("timeline", "show", table).document
        refused = upsert(table, BERT, "--output", "json")
        assert (refused.exit_code, refused.error["kind"]) == (1, "writer_disagreement")
        assert refused.error["differences"]["mode"] == {
            "mine": "SINGLE_WRITER",
            "theirs": "OPTIMISTIC_CONCURRENCY_CONTROL",
        }
        assert "nightly load (pid" in refused.error["other"]
        late = upsert(table, BERT, *agreeing, "--hoodie-conf",
                      "hoodie.client.heartbeat.interval_in_ms=5000", "--output", "json")  # fmt: skip
        assert list(late.error["differences"]) == ["heartbeat_expiry_ms"]
        checked = run("config", "check", table)
        assert (checked.exit_code, checked.document["ok"]) == (5, False)
        (problem,) = checked.document["problems"]
        assert problem["kind"] == "writer_disagreement"
        assert problem["key"].split(",")[-1] == "mode"
        assert run("config", "check", table, *agreeing).exit_code == 0
        assert run("timeline", "show", table).document == before
        assert upsert(table, BERT, *agreeing).document["rows_updated"] == 1
        assert [one["pid"] for one in run("writers", table).document["writers"]] == [process.pid]
    assert run("writers", table).document["writers"] == []
    assert upsert(table, ANN).document["rows_updated"] == 1


def test_a_killed_process_is_forgotten_and_a_live_one_only_by_force(table: Path) -> None:
    with worker(table) as process:
        (entry,) = run("writers", table).document["writers"]
        refused = run("writers", "forget", table, entry["writer_id"], "--yes", "--output", "json")
        assert (refused.exit_code, refused.error["kind"]) == (1, "writer_alive")
        process.kill()
        process.wait(timeout=60)
        dry_run = run("writers", "forget", table, entry["writer_id"], "--force", "--dry-run")
        assert (dry_run.document["forgotten"], dry_run.document["pin"]) == (False, entry["pin"])
        assert len(run("writers", "show", table).document["writers"]) == 1
        forgotten = run("writers", "forget", table, entry["writer_id"], "--force", "--yes")
        assert (forgotten.document["forgotten"], forgotten.document["pid"]) == (True, process.pid)
        assert forgotten.document["next_pin"] is None
    assert run("writers", table).document["writers"] == []


def test_a_command_with_another_lock_than_a_killed_writer_says_so(table: Path) -> None:
    folder = table / ".hoodie/.hoodoo/writers"
    with hoodoo.open_table(table, properties=MANY) as opened:
        opened.upsert(opened.to_arrow())
        [entry] = folder.iterdir()
        document = entry.read_text(encoding="utf-8")
    for provider, is_said in (("zookeeper", True), ("filesystem", False)):
        changed = json.loads(document)
        changed["agreement"]["lock_provider"] = provider
        entry.write_text(json.dumps(changed), encoding="utf-8")
        os.utime(entry, (1e9, 1e9))  # as if it were killed long ago
        lock = ("--hoodie-conf", "hoodie.write.lock.provider=filesystem")
        made = run("savepoint", "create", table, *lock, "-o", "table")
        assert made.exit_code == 0, made.err
        said = "used another lock than this command" in made.err
        assert said is is_said, made.err
        assert not said or "theirs 'zookeeper'" in made.err
        run("savepoint", "delete", table, "@-1", "--yes")

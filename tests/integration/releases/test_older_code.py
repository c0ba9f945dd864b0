"""
The code of this commit and of an earlier one write one table side by side; no row is lost.

The earlier code is the commit before engine versions (REL-1 to REL-7): it knows only SLOT-3.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
EARLIER = "78366b6"
PACKAGES = ("hoodoo", "timeline", "tableservices", "lockproviders")
PROPERTIES = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.automatic": "false",
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
    "hoodie.clean.fileversions.retained": "1",
    "hoodie.archive.automatic": "false",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.parquet.small.file.limit": "0",
}
WRITES = 8


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the packages of the earlier commit."""
    archived = subprocess.run(
        ["git", "-C", str(ROOT), "archive", EARLIER, *PACKAGES], check=False, capture_output=True
    )
    if archived.returncode:
        pytest.skip(f"this clone has no commit {EARLIER}: fetch the whole history to run this")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


class Process:
    """A process that has a table open, by the code in a folder."""

    def __init__(self, code: Path, table: Path, **environment: str) -> None:
        inherited = {name: text for name, text in os.environ.items() if "PYTHON" not in name}
        self._running = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("process.py")),
                str(table),
                json.dumps(PROPERTIES),
            ],
            env={**inherited, "PYTHONPATH": str(code), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.ask("code") == str(code), "it runs the code that it should"

    def send(self, *act: object) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps(act) + "\n")
        self._running.stdin.flush()

    def answer(self) -> Any:
        assert self._running.stdout is not None
        line = self._running.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def ask(self, *act: object) -> Any:
        self.send(*act)
        answer = self.answer()
        assert "is" in answer, answer
        return answer["is"]

    def refuses(self, *act: object) -> dict[str, Any]:
        self.send(*act)
        answer = self.answer()
        assert answer.get("type") == "UnsupportedTableError", answer
        error: dict[str, Any] = answer["error"]
        return error

    def end(self) -> None:
        assert self._running.stdin is not None
        self._running.stdin.close()
        assert self._running.wait(60) == 0


def rows_of(process: Process) -> dict[str, int]:
    found = process.ask("read")
    assert len(found) == len(dict(found)), "no key twice"
    return dict(found)


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
    chosen = {**PROPERTIES, "hoodie.datasource.write.table.type": request.param}
    path = tmp_path / request.param
    hoodoo.create_table(
        path, schema=schema, record_key="id", partition_by="p", ordering="v", properties=chosen
    ).close()
    return path


@pytest.fixture
def both(earlier: Path, table: Path) -> Iterator[tuple[Process, Process]]:
    """An older and a newer process of one table."""
    old, new = Process(earlier, table), Process(ROOT, table)
    yield old, new
    old.end()
    new.end()


@pytest.mark.spec("REL-5")
def test_rows_of_both_are_kept_and_each_executes_the_other_s_plans(
    both: tuple[Process, Process], table: Path
) -> None:
    old, new = both
    old.send("many", "o", WRITES)
    new.send("many", "n", WRITES)
    assert (old.answer(), new.answer()) == ({"is": None}, {"is": None})
    expected = {f"{prefix}{number}": number for prefix in "on" for number in range(WRITES)}
    expected["shared"] = WRITES - 1
    assert rows_of(old) == rows_of(new) == expected

    services = ["cluster"] if table.name == "COPY_ON_WRITE" else ["logcompact", "compact"]
    value = 100
    for service in services:
        for planner, executor in (both, both[::-1]):
            for writer in both:
                value += 1
                expected = dict.fromkeys([*expected, f"n{value}"], value)  # a file group more
                writer.ask("upsert", sorted(expected), value)
            time = planner.ask("schedule", service)
            assert time is not None
            planner.ask("upsert", ["z"], value)  # behind the pending plan
            executor.ask("upsert", ["y"], value)
            expected |= {"y": value, "z": value}
            assert executor.ask("execute", time)
            assert rows_of(old) == rows_of(new) == expected
    for cleaner in both:
        for service in ("clean", "archive"):
            cleaner.ask("service", service)
            assert rows_of(old) == rows_of(new) == expected
        value += 1
        cleaner.ask("upsert", ["o0"], value)
        expected["o0"] = value
    assert rows_of(old) == rows_of(new) == expected


@pytest.mark.spec("SLOT-3")
def test_a_slot_of_a_later_release_stops_both_and_loses_nothing(
    both: tuple[Process, Process], table: Path
) -> None:
    old, new = both
    old.ask("upsert", ["o"], 1)
    new.ask("upsert", ["n"], 2)
    later = Process(ROOT, table, HOODOO_TEST_RAISE="3")
    later.ask("upsert", ["s"], 3)
    assert "newer release" in old.refuses("upsert", ["lost"], 4)["message"]
    error = new.refuses("upsert", ["lost"], 4)
    assert error["kind"] == "newer_engine"
    assert (error["engine_version"], error["least_engine_version"]) == (2, 3)
    for process in both:
        process.refuses("service", "clean")
        process.refuses("read")
    late = Process(ROOT, table)
    assert late.refuses("read")["kind"] == "newer_engine"
    late.end()
    assert later.ask("read") == [["n", 2], ["o", 1], ["s", 3]]
    later.end()

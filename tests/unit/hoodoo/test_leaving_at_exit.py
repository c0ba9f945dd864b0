"""A program that ends without closing its tables leaves no entry behind (REG-1)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from timeline.writer_registry import registered_writers

pytestmark = pytest.mark.spec("REG-1")

OCC = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
}
WRITES = f"""
import os, sys, time
import pyarrow as pa, hoodoo, timeline.writer_registry
table = hoodoo.open_table(sys.argv[1], properties={OCC!r})
table.insert(pa.table({{"id": ["a"], "v": [1]}}))
"""


def entries_after(tmp_path: Path, then: str) -> tuple[int, list[int]]:
    """How a program ended that writes and then does something, and whose entries are there."""
    folder = tmp_path / "t"
    hoodoo.create_table(folder, record_key="id", properties=OCC).close()
    command = [sys.executable, "-c", WRITES + then, str(folder)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    with hoodoo.open_table(folder, properties=OCC) as table:
        found = registered_writers(table.context)
        assert len(table.to_arrow()) == 1, ended.stderr
    return ended.returncode, [one.pid for one in found]


@pytest.mark.parametrize(
    ("then", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1), ("table.close()", 0)],
    ids=["end", "exit", "error", "closed"],
)
def test_an_entry_is_removed_when_its_program_ends(tmp_path: Path, then: str, code: int) -> None:
    assert entries_after(tmp_path, then) == (code, [])


def test_an_entry_of_a_program_that_is_killed_stays(tmp_path: Path) -> None:
    """It cannot be distinguished from a sleeping one."""
    code, left = entries_after(tmp_path, "os.kill(os.getpid(), 9)")
    assert code == -9
    assert len(left) == 1


@pytest.mark.spec("BEG-1")
def test_a_table_registers_once_and_unregisters_on_close(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a"], "v": [1]})
    with hoodoo.create_table(tmp_path / "t", record_key="id", properties=OCC) as table:
        table.upsert(rows)
        table.upsert(rows)
        assert len(registered_writers(table.context)) == 1
    with hoodoo.open_table(tmp_path / "t", properties=OCC) as table:
        assert registered_writers(table.context) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_leaves_its_parents_entry_alone(tmp_path: Path) -> None:
    seen = """
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
from timeline.writer_registry import registered_writers
assert [one.pid for one in registered_writers(table.context)] == [os.getpid()]
"""
    assert entries_after(tmp_path, seen) == (0, [])


def test_an_unavailable_storage_does_not_delay_a_program_for_long(tmp_path: Path) -> None:
    started = time.monotonic()
    code, left = entries_after(
        tmp_path,
        "hoodoo.writer._LEAVING_MS_MAX = 100\ntimeline.writer_registry.Registration.unregister = lambda _: time.sleep(50)",
    )
    assert time.monotonic() - started < 40
    assert (code, len(left)) == (0, 1)

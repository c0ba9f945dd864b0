"""Tests of one group run in one worker, and each file of a group carries its mark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOK = "from tests.conftest import pytest_collection_modifyitems\n"
# Others wait for the second worker, which a busy machine may start long after the first.
TESTS = """
import os
import time
import pytest

@pytest.mark.parametrize("number", range(8))
@pytest.mark.{mark}
def test_notes_its_worker(number, request):
    folder = request.path.parent
    (folder / ("{mark} " + os.environ["PYTEST_XDIST_WORKER"])).touch()
    ends = time.monotonic() + 60
    while "{mark}" == "other" and len(list(folder.glob("other gw*"))) < 2:
        assert time.monotonic() < ends, "no other worker came"
        time.sleep(0.01)
"""


def test_tests_with_spark_or_servers_run_in_one_worker_and_others_in_all(tmp_path: Path) -> None:
    # pytest 9.2 with xdist 3.8 forgot every group, and two Spark sessions starved each other.
    (tmp_path / "conftest.py").write_text(HOOK)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for mark in ("spark", "integration", "other"):
        (tmp_path / f"test_{mark}.py").write_text(TESTS.format(mark=mark))
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    ran = sorted(path.name.split()[0] for path in tmp_path.glob("* gw*"))
    assert ran == ["integration", "other", "other", "spark"]


@pytest.mark.parametrize(
    ("folder", "mark", "sign"), [("interop", "jvm", ""), ("spark", "spark", "spark: Any")]
)
def test_each_file_that_runs_java_says_so(folder: str, mark: str, sign: str) -> None:
    # Two files without the mark ran Java in `make test`, and in `make interop` not at all.
    texts = {one.name: one.read_text() for one in (ROOT / "tests" / folder).glob("test_*.py")}
    assert [
        name for name, text in texts.items() if sign in text and f"pytest.mark.{mark}" not in text
    ] == []

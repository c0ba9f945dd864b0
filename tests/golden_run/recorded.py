"""Digests of a golden run: made by a process of its own, recorded, and compared by file."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from tests.golden_run.fixed_machine import FixedMachine

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("digests.json")
RECORD = "python -m tests.golden_run --record"
#: Libraries whose version is in the files, or decides how they are encoded.
LIBRARIES = ("pyarrow", "fastavro", "numpy")
_SHOWN_MAX = 8  # files of a step

Steps = dict[str, dict[str, str]]
Golden = dict[str, object]


def run_here(folder: Path, last_step: str = "") -> None:
    """
    Run every scenario in this process, which is of no other use afterwards, and print digests.

    Args:
        folder: Where the tables are made.
        last_step: The name of the step after which the run ends; empty for all of them.
    """
    machine = FixedMachine(folder)
    machine.fix()  # before anything of the engine is imported
    os.chdir(folder)
    from tests.golden_run.folder_store import FolderStore
    from tests.golden_run.kinds_of_tables import KINDS_OF_TABLES
    from tests.golden_run.scenarios import SCENARIOS
    from tests.golden_run.steps import GoldenRun, LastStepError

    FolderStore(machine).install()
    run = GoldenRun(machine, last_step)
    with contextlib.suppress(LastStepError):
        for scenario in (*SCENARIOS, *KINDS_OF_TABLES):
            scenario(run)
    print(json.dumps(run.steps))


def run_elsewhere(folder: Path, last_step: str = "", **environment: str) -> Golden:
    """
    Run every scenario in a new process, which leaves the tables in the folder.

    Raises:
        AssertionError: A scenario failed.
    """
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    used = {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "tests.golden_run", "--inside", str(folder)]
    ended = subprocess.run(
        [*command, "--step", last_step],
        cwd=ROOT,
        env=used,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    if ended.returncode:
        raise AssertionError(f"a scenario of the golden run failed\n{ended.stderr}")
    return {
        "libraries": {name: version(name) for name in LIBRARIES},
        "steps": json.loads(ended.stdout),
    }


def load() -> Golden:
    """Return the recorded digests."""
    found: Golden = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def record(found: Golden) -> None:
    """Replace the recorded digests."""
    RECORDED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def report(before: Golden, now: Golden) -> str:
    """Return the differences and the next action; empty when nothing differs."""
    differing = differences(before, now)
    if not differing:
        return ""
    first = _first_of_each_scenario(differing)
    files = sum(map(len, differing.values()))
    lines = [f"the bytes of {files} files differ from {RECORDED.name}. The first steps:"]
    for step in first:
        lines += differing[step][:_SHOWN_MAX]
        if len(differing[step]) > _SHOWN_MAX:
            lines.append(f"  [{step}] and {len(differing[step]) - _SHOWN_MAX} more files")
    if before["libraries"] != now["libraries"]:
        lines.append(
            f"Other libraries are installed: recorded with {before['libraries']}, now "
            f"{now['libraries']}. Their versions alone change data files. Record on a commit "
            "whose bytes are right, then compare this one."
        )
    lines.append(
        f"""To see the bytes, run 'python -m tests.golden_run --keep FOLDER --step "{first[0]}"' """
        "on both commits and compare the folders. If the bytes are meant to change, run "
        f"'{RECORD}' and say why in the commit."
    )
    return "\n".join(lines)


def differences(before: Golden, now: Golden) -> dict[str, list[str]]:
    """Return a line for each file that differs, by step and in the order of the steps."""
    recorded, found = _steps(before), _steps(now)
    differing = {}
    for step in [*recorded, *(name for name in found if name not in recorded)]:
        old, new = recorded.get(step, {}), found.get(step, {})
        lines = [
            f"  [{step}] {path}: recorded {old.get(path, 'no file')}, now {new.get(path, 'no file')}"
            for path in sorted(old.keys() | new.keys())
            if old.get(path) != new.get(path)
        ]
        if lines:
            differing[step] = lines
    return differing


def _first_of_each_scenario(steps: Iterable[str]) -> list[str]:
    """The later steps of a scenario follow from its first one."""
    first: dict[str, str] = {}
    for step in steps:
        first.setdefault(step.partition(" ")[0], step)
    return list(first.values())


def _steps(golden: Golden) -> Steps:
    steps = golden["steps"]
    assert isinstance(steps, dict)
    return steps

"""Digests of a golden run: made by a process of its own, recorded, and compared by file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.golden_run.fixed_machine import FixedMachine

__all__ = ["differences", "load", "record", "report", "run_elsewhere", "run_here"]

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("digests.json")
RECORD = "python -m tests.golden_run --record"
#: Libraries whose version is in the files, or decides how they are encoded.
LIBRARIES = ("pyarrow", "fastavro", "numpy")
_SHOWN_MAX = 40

Steps = dict[str, dict[str, str]]
Golden = dict[str, object]


def run_here(folder: Path) -> None:
    """Run every scenario in this process, which cannot be used for anything else, and print it."""
    machine = FixedMachine(folder)
    machine.fix()  # before anything of the engine is imported
    os.chdir(folder)
    from tests.golden_run.folder_store import FolderStore
    from tests.golden_run.kinds_of_tables import KINDS_OF_TABLES
    from tests.golden_run.scenarios import SCENARIOS
    from tests.golden_run.steps import GoldenRun

    FolderStore(machine).install()
    run = GoldenRun(machine)
    for scenario in (*SCENARIOS, *KINDS_OF_TABLES):
        scenario(run)
    print(json.dumps(run.steps))


def run_elsewhere(folder: Path, **environment: str) -> Golden:
    """Run every scenario in a new process; the tables are left in the folder."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    told |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "tests.golden_run", "--inside", str(folder)]
    ended = subprocess.run(
        command, cwd=ROOT, env=told, check=False, capture_output=True, text=True, timeout=240
    )
    if ended.returncode:
        raise AssertionError(f"a scenario of the golden run failed\n{ended.stderr}")
    return {
        "libraries": {name: version(name) for name in LIBRARIES},
        "steps": json.loads(ended.stdout),
    }


def load() -> Golden:
    found: Golden = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def record(found: Golden) -> None:
    RECORDED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def report(before: Golden, now: Golden) -> str:
    """What differs, and what to do about it; empty when nothing does."""
    found = differences(before, now)
    if not found:
        return ""
    lines = [f"the bytes of {len(found)} files differ from {RECORDED.relative_to(ROOT)}:"]
    lines += found[:_SHOWN_MAX]
    if len(found) > _SHOWN_MAX:
        lines.append(f"... and {len(found) - _SHOWN_MAX} more; later steps follow from the first")
    if before["libraries"] != now["libraries"]:
        lines.append(
            f"The digests were recorded with {before['libraries']}, and these files were written "
            f"with {now['libraries']}: that alone changes data files. Record on a commit whose "
            "bytes are known to be right, then compare."
        )
    lines.append(
        "To see the bytes, run 'python -m tests.golden_run --keep FOLDER' on both commits and "
        f"compare the folders. If the bytes are meant to change, run '{RECORD}' and say why in "
        "the commit."
    )
    return "\n".join(lines)


def differences(before: Golden, now: Golden) -> list[str]:
    """One line for each file of each step that is not the same, in the order of the steps."""
    recorded, found = _steps(before), _steps(now)
    lines = []
    for step in [*recorded, *(name for name in found if name not in recorded)]:
        old, new = recorded.get(step, {}), found.get(step, {})
        for path in sorted(old.keys() | new.keys()):
            if old.get(path) != new.get(path):
                was, is_now = old.get(path, "not there"), new.get(path, "not there")
                lines.append(f"  [{step}] {path}: recorded {was}, now {is_now}")
    return lines


def _steps(golden: Golden) -> Steps:
    steps = golden["steps"]
    assert isinstance(steps, dict)
    return steps

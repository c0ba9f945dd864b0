"""
Chaos from the command line: ``python -m tests.chaos --minutes 20 --lock zookeeper --report FILE``.

The exit code is 1 after a broken promise, and 77 if the lock's server is not installed. The
tables are on a small file system of their own, in a mount namespace that ends with the run. If
neither root nor an unprivileged namespace may mount one, the run does not fill the disk and the
report says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.chaos.faults import SMOKE_S_MAX
from tests.chaos.locks import LOCKS
from tests.chaos.process import without_pandas
from tests.chaos.setup import MUTANTS

_INSIDE = "HOODOO_CHAOS_INSIDE"
_DISK_MB = 160
NO_SERVER = 77


def main() -> int:
    """Run it and write the report."""
    said = _arguments()
    if _INSIDE not in os.environ:
        _enter_own_mounts()
    without_pandas()
    from tests.chaos.report import save
    from tests.chaos.run import Wanted, chaos

    folder = Path(said.folder or tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"the folder of a run must be empty: {folder}", file=sys.stderr)
        return 2
    seconds = said.seconds or said.minutes * 60
    smoke = seconds <= SMOKE_S_MAX
    wanted = Wanted(
        lock=said.lock,
        seconds=seconds,
        acknowledged=said.acknowledged,
        seed=said.seed,
        writers=said.writers or (4 if smoke else 8),
        servers=said.servers or (2 if smoke else 4),
        readers=said.readers or (1 if smoke else 2),
        mutant=said.mutant,
        all_services=said.all_services or not smoke,
        metadata=said.metadata,
        disk=_small_disk(folder),
    )
    try:
        document = chaos(wanted, folder)
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        print(missing, file=sys.stderr)
        return NO_SERVER
    report = Path(said.report or folder / "report.json")
    save(document, report)
    if document["violations"] and wanted.disk is not None:
        # The small file system ends with this process; a later search for the cause needs its
        # files.
        shutil.copytree(wanted.disk, folder / "kept")
    print(report.with_suffix(".md").read_text())
    print(f"report: {report}; journals and logs: {folder}")
    return 1 if document["violations"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--lock", choices=LOCKS, default="zookeeper")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument(
        "--acknowledged",
        type=int,
        default=0,
        help="continue until so many, up to four times as long",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--writers", type=int)
    parser.add_argument("--servers", type=int, help="processes that run table services")
    parser.add_argument("--readers", type=int)
    parser.add_argument("--mutant", choices=MUTANTS, default="")
    parser.add_argument(
        "--all-services", action="store_true", help="compaction and clustering in a short run, too"
    )
    parser.add_argument(
        "--metadata", action="store_true", help="tables with a metadata table and a record index"
    )
    parser.add_argument("--folder", help="an empty one, for journals and logs")
    parser.add_argument(
        "--report", help="a .json file; a .md file with the same name is written too"
    )
    return parser.parse_args()


def _enter_own_mounts() -> None:
    """Continue in a mount namespace of this run alone, where the system permits one."""
    os.environ[_INSIDE] = "no"
    unshare = shutil.which("unshare")
    for how in (["-m"], ["-rm"]):
        command = [unshare or "", *how, "--", "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
        if unshare is None or subprocess.run(command, capture_output=True, check=False).returncode:
            continue
        os.environ[_INSIDE] = "yes"
        again = [unshare, *how, "--", sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
        os.execv(unshare, again)


def _small_disk(folder: Path) -> Path | None:
    """A file system of a few megabytes below the folder; None where it cannot be mounted."""
    if os.environ[_INSIDE] != "yes":
        return None
    place = folder / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "none", str(place)]
    return None if subprocess.run(command, check=False).returncode else place


if __name__ == "__main__":
    sys.exit(main())

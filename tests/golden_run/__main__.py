"""
Compare the golden run with its recorded digests, or record them again.

python -m tests.golden_run                      compare
python -m tests.golden_run --record             record; a commit that changes digests says why
python -m tests.golden_run --keep FOLDER        leave the tables in an empty folder
python -m tests.golden_run --keep FOLDER --step "cow 04 upsert"   as they are after this step
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.golden_run import recorded


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", action="store_true", help="replace the recorded digests")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the tables here")
    parser.add_argument("--step", default="", help="the last step of the run")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        recorded.run_here(options.inside, options.step)
        return 0
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        recorded.run_elsewhere(options.keep.resolve(), options.step)
        return 0
    return _record() if options.record else _compare()


def _compare() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = recorded.report(recorded.load(), recorded.run_elsewhere(Path(folder)))
    print(found or "all files have the recorded bytes")
    return int(bool(found))


def _record() -> int:
    """Record a run, unless a second one in another time zone differs from it."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        found = recorded.run_elsewhere(Path(first), TZ="UTC")
        again = recorded.run_elsewhere(Path(second), TZ="Asia/Kolkata")
    if differing := recorded.differences(found, again):
        lines = [line for step in differing.values() for line in step]
        print("two runs differ, so nothing is recorded", *lines, sep="\n")
        return 1
    recorded.record(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

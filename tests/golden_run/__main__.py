"""
The golden run by hand.

python -m tests.golden_run                   compare with what is recorded
python -m tests.golden_run --record          record anew; the diff belongs to a commit that says why
python -m tests.golden_run --keep FOLDER     leave the tables of a run in an empty folder
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.golden_run import recorded


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden_run", description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.inside:
        recorded.run_here(told.inside)
        return 0
    if told.keep:
        told.keep.mkdir(parents=True, exist_ok=True)
        recorded.run_elsewhere(told.keep)
        return 0
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        found = recorded.run_elsewhere(Path(first), TZ="UTC")
        if told.record:
            again = recorded.run_elsewhere(Path(second), TZ="Asia/Kolkata")
            if differences := recorded.differences(found, again):
                print("two runs differ, so nothing is recorded", *differences, sep="\n")
                return 1
            recorded.record(found)
            return 0
    told_anew = recorded.report(recorded.load(), found)
    print(told_anew or "all files have the recorded bytes")
    return int(bool(told_anew))


if __name__ == "__main__":
    sys.exit(main())

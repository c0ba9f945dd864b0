"""
Compare the text output of the commands with the committed screens, or record them.

python -m tests.golden_screens             compare
python -m tests.golden_screens --record    record; read the difference before you commit it
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.golden_screens import screens


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden_screens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", action="store_true", help="replace the committed screens")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(screens.run_here(options.inside), end="")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = screens.run_elsewhere(Path(folder))
    if options.record:
        screens.RECORDED.write_text(found, encoding="utf-8")
        return 0
    difference = screens.difference(found)
    print(difference or "all screens are as committed")
    return int(bool(difference))


if __name__ == "__main__":
    sys.exit(main())

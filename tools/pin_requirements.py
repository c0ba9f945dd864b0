#!/usr/bin/env python3
"""
Pin `requirements/*.in` into `requirements/*.txt`: exact versions, hashes, no addresses.

A pinned file says what to install, never where from: that is the business of the machine's own
client, so one file serves behind any mirror. `make requirements` runs it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "requirements"
SETS = ("uv", "jdk", "test", "frames", "bench")  # bench is constrained by test, so it comes last
FLAGS = (
    "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade",
    "--no-header", "--no-emit-index-url", "--no-emit-find-links",
)  # fmt: skip


def main() -> int:
    """Pin every set; stop at the first that cannot be resolved."""
    own = Path(sys.executable).parent / "uv"
    uv = str(own) if own.exists() else shutil.which("uv")
    if uv is None:
        print("pinning needs uv; run `make install` where it can be had", file=sys.stderr)
        return 1
    for name in SETS:
        command = [uv, "pip", "compile", *FLAGS, f"{name}.in", "--output-file", f"{name}.txt"]
        done = subprocess.run(command, cwd=FOLDER, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            return done.returncode
        print(f"pinned requirements/{name}.txt", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

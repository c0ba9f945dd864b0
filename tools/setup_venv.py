#!/usr/bin/env python3
"""
Make the virtual environment and install pinned requirements into it.

`make install` runs it, on a machine that may have nothing but Python, so it uses the
standard library only. The packages come from the index that the user's own pip or uv is set to;
every file is checked against the hashes in ``requirements/``. uv is several times faster than
pip and therefore tried first; without it, pip does the same work.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 11)


def main(arguments: list[str]) -> int:
    """Install the named requirement files, then the project itself when asked to."""
    parser = argparse.ArgumentParser(description="make .venv and install pinned requirements")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--project", action="store_true", help="also install hoodoo, editable")
    parser.add_argument("requirements", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    if sys.version_info < PYTHON_MIN:
        found = ".".join(str(part) for part in sys.version_info[:3])
        return fail(
            f"hoodoo needs python 3.11 or newer; name one with "
            f"`make install PYTHON=/path/to/python3.11`, found {found}"
        )
    try:
        python = make_venv(options.venv)
        install = installer(python)
        for requirements in options.requirements:
            say(f"installing {requirements}")
            run([*install, "--require-hashes", "-r", str(requirements)])
        if options.project:
            say("installing hoodoo itself, editable")
            run([*install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    except subprocess.CalledProcessError as error:
        command = " ".join(str(part) for part in error.cmd)
        return fail(f"set-up stopped; see the lines above, exit code {error.returncode}: {command}")
    return 0


def make_venv(folder: Path) -> Path:
    """The environment's Python, made first when it is not there."""
    python = folder.absolute() / "bin" / "python"
    if not answers([str(python), "-c", "pass"]):
        say(f"making {folder}")
        # Some distributions keep pip's installer in a package of its own; uv needs no pip.
        if not answers([sys.executable, "-m", "venv", "--clear", str(folder)]):
            run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
    return python


def installer(python: Path) -> list[str]:
    """The fastest working command that installs into this environment."""
    own_uv = python.parent / "uv"
    if not answers([str(own_uv), "--version"]):
        pins = ROOT / "requirements" / "uv.txt"
        pip = [str(python), "-m", "pip"]
        if answers([*pip, "--version"]) or answers([str(python), "-m", "ensurepip"]):
            answers([*pip, "install", "-q", "--require-hashes", "-r", str(pins)])
    for uv in (str(own_uv), shutil.which("uv")):
        if uv and answers([uv, "--version"]):
            return [uv, "pip", "install", "-q", "--python", str(python)]
    say("uv cannot be had here; pip does the work, which takes longer")
    return [str(python), "-m", "pip", "install", "-q"]


def answers(command: list[str]) -> bool:
    """Whether a command runs and succeeds; its output is dropped."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(command: list[str]) -> None:
    """Run a command in the open. Raises: ``CalledProcessError`` when it fails."""
    subprocess.run(command, check=True, cwd=ROOT)


def say(text: str) -> None:
    """One line of progress, on stderr."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> int:
    """Say why, and give the exit code for it."""
    say(text)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

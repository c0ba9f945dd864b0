"""Throw-away environments: a Python, and packages out of the cache of uv, or by pip without it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "requirements" / "test.txt"
SECONDS_MAX = 600
DOWNLOAD_SECONDS_MAX = 120


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command without the settings of the calling Python; return what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept.pop("VIRTUAL_ENV", None)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def _uv() -> str | None:
    own = Path(sys.executable).parent / "uv"
    return str(own) if own.exists() else shutil.which("uv")


def pack_spark(folder: Path) -> None:
    """
    Pack the installed PySpark without its JARs as a wheel.

    PySpark is released as source only, and each build of it takes 20 s and half a gigabyte. ``make
    install`` builds it; an environment here needs its Python and its metadata.
    """
    spark = distribution("pyspark")
    kept = {str(one): one for one in spark.files or () if one.parts[0].startswith("pyspark")}
    name = folder / f"pyspark-{spark.version}-py2.py3-none-any.whl"
    with zipfile.ZipFile(name, "w", zipfile.ZIP_STORED) as archive:
        for path, file in kept.items():
            if not path.startswith("pyspark/jars/") and "__pycache__" not in path:
                archive.write(str(file.locate()), path)


def _pins() -> str:
    """Return the versions of the repository without hashes, which a wheel made here has not."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.rstrip(" \\") for line in lines if line[:1].isalnum()) + "\n"


def make_environment(
    folder: Path, *packages: str | Path, python: str = sys.executable, wheels: Path | None = None
) -> Path:
    """
    Return the Python of a new environment that has these packages and no other.

    Args:
        folder: The environment's folder.
        packages: Packages to install.
        python: Its interpreter.
        wheels: A folder of further wheels.
    """
    made = folder / "bin" / "python"
    pins = folder.parent / "pins.txt"
    pins.write_text(_pins(), encoding="utf-8")
    more = ("-c", pins, *(("--find-links", wheels) if wheels else ()))
    if uv := _uv():
        run(uv, "venv", "-q", "--python", python, folder)
        run(uv, "pip", "install", "-q", "--python", made, *more, *packages)
    else:
        run(python, "-m", "venv", folder)
        run(made, "-m", "pip", "install", "-q", *more, *packages)
    return made


def find_python(version: str) -> str:
    """
    Return an interpreter of this version.

    It may be this one, one on the PATH, one of pyenv, or one that uv has or can download. The test
    is skipped if there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, shutil.which(f"python{version}"), f"/usr/bin/python{version}"]
    candidates += map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))
    for candidate in candidates:
        if candidate and _version(candidate) == version:
            return candidate
    if uv := _uv():
        with contextlib.suppress(subprocess.TimeoutExpired):
            install = [uv, "python", "install", "-q", version]
            subprocess.run(install, capture_output=True, timeout=DOWNLOAD_SECONDS_MAX, check=False)
        found = subprocess.run(
            [uv, "python", "find", "--managed-python", version],
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode == 0:
            return found.stdout.strip()
    pytest.skip(f"no Python {version}: not on the PATH, not of pyenv, and uv cannot download it")


def _version(python: str) -> str:
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""

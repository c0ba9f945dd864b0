"""
Golden tables: whole tables made by the real Java Hudi, with its own account of each.

`golden/PROVENANCE.md` says how they were made and explains the keys of the account. They are
never edited; a test works on a copy. The tables of `golden_metadata/` have a metadata table each.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "golden"
METADATA_FOLDER = FOLDER.with_name("golden_metadata")


def names(prefix: str = "") -> list[str]:
    """Names of the golden tables, for example `v9_cow_part`."""
    return sorted(file.stem for file in FOLDER.glob(f"{prefix}*.zip"))


def metadata_names(prefix: str = "") -> list[str]:
    """Names of the golden tables whose account describes their metadata table."""
    return sorted(file.stem for file in METADATA_FOLDER.glob(f"{prefix}*.zip"))


@functools.cache
def account(name: str) -> dict[str, Any]:
    """Java Hudi's account of a golden table."""
    document: dict[str, Any] = json.loads(_path(f"{name}.json").read_text(encoding="utf-8"))
    return document


def unpack(name: str, folder: Path) -> Path:
    """A fresh copy of a golden table under `folder`; returns the table's base folder."""
    base = folder / name
    with open_zip(name) as archive:
        archive.extractall(base if (METADATA_FOLDER / f"{name}.zip").exists() else folder)
    return base


def open_zip(name: str) -> zipfile.ZipFile:
    """The files of a golden table: in `golden_metadata/` without its name, else in that folder."""
    archive = zipfile.ZipFile(_path(f"{name}.zip"))
    if archive.namelist() != ["table.zip"]:
        return archive
    with archive:
        return zipfile.ZipFile(io.BytesIO(archive.read("table.zip")))


def _path(file: str) -> Path:
    found = METADATA_FOLDER / file
    return found if found.exists() else FOLDER / file

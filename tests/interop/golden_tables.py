"""
Golden tables: whole tables made by the real Java Hudi, with its own account of each.

`golden/PROVENANCE.md` tells who made them and what the keys of the account mean. They are
never edited; a test works on a copy.
"""

from __future__ import annotations

import functools
import json
import zipfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "golden"


def names(prefix: str = "") -> list[str]:
    """Names of the golden tables, for example `v9_cow_part`."""
    return sorted(file.stem for file in FOLDER.glob(f"{prefix}*.zip"))


@functools.cache
def account(name: str) -> dict[str, Any]:
    """What Java Hudi says about a golden table."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return document


def unpack(name: str, folder: Path) -> Path:
    """A fresh copy of a golden table under `folder`; returns the table's base folder."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder / name

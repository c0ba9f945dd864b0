"""ARCHITECTURE.md draws the tree; the tree must be equal to it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "ARCHITECTURE.md"
MADE = {"build", "dist", "demo-table", "spark-warehouse", "metastore_db", "__pycache__"}


def drawn() -> set[str]:
    """Folders drawn in the document's tree, as paths from the repository's root."""
    block = re.search(r"```tree\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert block, "ARCHITECTURE.md needs a block that opens with ```tree"
    folders: set[str] = set()
    top = ""
    for line in block[1].splitlines():
        name = re.match(r"( *)([\w.]+)/", line)
        if name is None:
            continue
        if not name[1]:
            top = name[2]
        folders.add(name[2] if not name[1] else f"{top}/{name[2]}")
    return folders


def test_every_drawn_folder_exists() -> None:
    assert sorted(folder for folder in drawn() if not (ROOT / folder).is_dir()) == []


def test_every_top_level_folder_is_drawn() -> None:
    present = {
        f.name for f in ROOT.iterdir() if f.is_dir() and (f.name == ".ci" or f.name[0] != ".")
    }
    assert sorted(present - MADE - drawn()) == []


def test_every_folder_of_the_engine_is_drawn() -> None:
    present = {
        f"{package}/{f.name}"
        for package in ("timeline", "lockproviders", "filegroups", "tableservices", "hoodoo")
        for f in (ROOT / package).iterdir()
        if f.is_dir() and f.name not in MADE
    }
    assert sorted(present - drawn()) == []

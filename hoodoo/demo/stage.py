"""Where the demonstration plays: its folder, its table and its properties files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

import pyarrow as pa

from hoodoo.catalog import create_table
from hoodoo.configuration import PropertySource
from hoodoo.demo.flights import KEY_COLUMNS, ORDERING, PARTITION
from timeline.errors import InvalidInputError, NotFoundError

__all__ = ["CLEANER_PROPERTIES", "WRITER_PROPERTIES", "ready_properties", "set_up"]

WRITER_PROPERTIES: Final = "multi_writer_local.properties"
CLEANER_PROPERTIES: Final = "cleaning_worker_local.properties"

_SIGN: Final = Path(".hoodie", ".hoodoo", "demo.json")  # tells our own older table from others


def ready_properties(name: str) -> Path:
    """
    A file of ``configs/``: shipped inside the package, or beside it in a clone.

    Raises:
        NotFoundError: This installation lacks it.
    """
    inside = Path(str(files("hoodoo"))) / "configs" / name
    beside = Path(str(files("hoodoo"))).parent / "configs" / name
    for path in (inside, beside):
        if path.is_file():
            return path
    raise NotFoundError(f"this installation lacks a properties file: {name}", kind="no_configs")


def set_up(path: Path, schema: pa.Schema, properties: Sequence[PropertySource]) -> None:
    """
    Make the empty table, in place of an older one of the demonstration.

    Args:
        path: Its folder.
        schema: Its columns.
        properties: The writers' properties, later ones win.

    Raises:
        InvalidInputError: The folder holds anything else; nothing was changed.
    """
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or _is_ours(path))):
        raise InvalidInputError(
            "the folder holds something that the demonstration did not make, and is left alone; "
            f"name another one by --path: {path}",
            kind="not_a_demo_folder",
            path=str(path),
        )
    if path.exists():
        shutil.rmtree(path)
    table = create_table(
        path,
        schema=schema,
        record_key=KEY_COLUMNS,
        partition_by=PARTITION,
        ordering=ORDERING,
        name="flights",
        properties=list(properties),
    )
    table.close()
    (path / _SIGN).parent.mkdir(parents=True, exist_ok=True)
    (path / _SIGN).write_text(json.dumps({"made_by": "hoodoo demo"}), encoding="utf-8")


def _is_ours(path: Path) -> bool:
    return (path / _SIGN).is_file()

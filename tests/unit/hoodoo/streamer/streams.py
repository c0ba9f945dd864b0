"""Streams of JSON files into ``folder/t``, for the tests of the streamer on both engines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import hoodoo
from hoodoo.streamer.run import Streamer, StreamerReport


def put(folder: Path, name: str, lines: Iterable[object], *, at_s: int) -> None:
    """Write a JSON file with a modification time in s; a text is a line as it is."""
    path = folder / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    os.utime(path, (at_s, at_s))


def options(folder: Path, **more: str) -> dict[str, str]:
    return {
        "hoodie.streamer.ingestion.targetBasePath": str(folder / "t"),
        "hoodie.streamer.source.dfs.root": str(folder / "in"),
        "hoodoo.streamer.source.class": "JsonDFSSource",
        "hoodie.datasource.write.recordkey.field": "id",
        **{f"hoodoo.streamer.{key}": value for key, value in more.items()},
    }


def stream(properties: Mapping[str, str], spark: Any = None) -> StreamerReport:
    with Streamer(properties, spark=spark) as streamer:
        return streamer.run()


def rows_of(path: Path | str) -> list[tuple[Any, ...]]:
    with hoodoo.open_table(path) as table:
        return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())

"""
A damaged file of any kind is an error that names it, or does no harm: never wrong rows.

Goal: with any damaged file, no reader returns a wrong state, and no writer writes on top of one or
deletes files that a repair needs. Method: a table with a file of every kind. One after the other
is damaged, read and written to, and restored from a backup.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from timeline.errors import HoodooError, InternalError

PROPERTIES = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodoo.storage.durability": "relaxed",
}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped": lambda data: bytes([data[0] ^ 0x55]) + data[1:],
    "text": lambda _: b"garb\xffage\n",
}


def rows(version: int, *ids: str) -> list[dict[str, Any]]:
    return [{"id": one, "ts": version, "v": f"{one}{version}"} for one in ids]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Merge-on-read, with a history, a savepoint, a pending plan and a writer that died."""
    path = tmp_path_factory.mktemp("whole") / "t"
    table = hoodoo.create_table(
        path,
        record_key="id",
        ordering="ts",
        table_type="MERGE_ON_READ",
        properties=PROPERTIES,
    )
    for version in range(5):
        table.upsert(rows(version, "a", "b"))
    table.services.compact()
    table.services.clean()
    table.services.archive()
    table.upsert(rows(6, "a"))
    table.savepoint()
    table.services.schedule("compact")
    table.upsert(rows(7, "b"))
    with table.pin():
        used = path.with_name("used")
        shutil.copytree(path, used)
    table.close()
    for entry in used.rglob(".hoodoo/writers/*"):  # of a process that ended without a word
        (path / entry.relative_to(used)).write_bytes(entry.read_bytes())
    return path


def opened(path: Path) -> Any:
    return hoodoo.open_table(path, properties=PROPERTIES)


def read(path: Path) -> list[dict[str, Any]]:
    with opened(path) as table:
        return sorted(table.to_arrow(["id", "v"]).to_pylist(), key=str)


def write(path: Path) -> list[dict[str, Any]]:
    with opened(path) as table:
        table.upsert(rows(9, "a"))
    return []


def service(name: str) -> Callable[[Path], list[dict[str, Any]]]:
    def run(path: Path) -> list[dict[str, Any]]:
        with opened(path) as table:
            getattr(table.services, name)()
        return []

    return run


def one_of_each_kind(path: Path) -> dict[str, Path]:
    """The newest file of each kind; names without their numbers give the kind."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    plain = (re.sub(r"[0-9a-f]{6,}[-0-9a-f]*|\d+", "N", file.name) for file in files)
    return {f"{file.parent.name}/{name}": file for name, file in zip(plain, files, strict=True)}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("act", [read, write, service("compact"), service("clean")])
def test_no_damaged_file_makes_wrong_rows(
    whole: Path, tmp_path: Path, act: Callable[[Path], list[dict[str, Any]]], damage: str
) -> None:
    before = read(whole)
    after = [before, sorted([{"id": "a", "v": "a9"}, {"id": "b", "v": "b7"}], key=str)]
    kinds = one_of_each_kind(whole)
    assert len(kinds) >= 15
    refused = 0
    for kind, file in kinds.items():
        path = tmp_path / "t"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        there = path / file.relative_to(whole)
        damaged = DAMAGE[damage](file.read_bytes())
        there.write_bytes(damaged)
        try:
            found = act(path)
            assert act is not read or found == before, kind
            assert read(path) in after, kind
        except InternalError:
            raise
        except HoodooError:
            refused += 1
        if there.exists() and there.read_bytes() == damaged:
            there.write_bytes(file.read_bytes())  # from a backup
        assert read(path) in after, kind
    assert refused

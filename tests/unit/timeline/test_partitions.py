"""Which folders are partitions, and which of them a listing finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import CorruptTableError
from timeline.partitions import list_partition_paths

MARK = ".hoodie_partition_metadata"


def test_partitions_are_folders_with_their_file():
    storage = MemoryStorage()
    for path in (f"a/1/{MARK}", f"a/2/{MARK}.parquet", "a/3/other", f"b/{MARK}", f"b/c/{MARK}"):
        storage.create(path, b"")
    storage.create(f".hoodie/x/{MARK}", b"")
    assert list_partition_paths(storage) == ["a/1", "a/2", "b"]


def test_the_unpartitioned_table_is_one_partition():
    storage = MemoryStorage()
    storage.create(MARK, b"")
    storage.create(f"strange/{MARK}", b"")
    assert list_partition_paths(storage) == [""]


def test_folders_that_are_pruned_are_not_walked():
    storage = MemoryStorage()
    for path in (f"a/1/{MARK}", f"a/2/{MARK}", f"b/1/{MARK}", f"b/c/d/{MARK}"):
        storage.create(path, b"")
    asked: list[str] = []

    def prune(folders: Sequence[str]) -> list[str]:
        asked.extend(folders)
        return [one for one in folders if one not in ("a", "b/1")]

    assert list_partition_paths(storage, prune) == ["b/c/d"]
    assert asked == ["", "a", "b", "b/1", "b/c", "b/c/d"]


def test_folders_without_end_are_refused():
    storage = MemoryStorage()
    storage.create("d/" * 40 + "file", b"")
    with pytest.raises(CorruptTableError):
        list_partition_paths(storage)

"""
Partitions are folders with the file ``.hoodie_partition_metadata``, as in Java Hudi (fmt 4.1).

The module finds them by listing folders, as every Hudi reader does without a metadata table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from timeline.codecs.properties import parse_properties
from timeline.errors import CorruptTableError
from timeline.model.file_names import join
from timeline.model.instant_time import InstantTime
from timeline.ports.storage import ObjectMissingError, Stats, Storage

__all__ = [
    "PARTITION_METADATA",
    "is_partition",
    "is_partition_file",
    "list_partition_paths",
    "partition_created_by",
]

PARTITION_METADATA = ".hoodie_partition_metadata"
_DEPTH_MAX = 32


def list_partition_paths(
    storage: Storage,
    prune: Callable[[Sequence[str]], Sequence[str]] | None = None,
    *,
    below: str | None = None,
) -> list[str]:
    """
    Return every partition path of the table, sorted; ``[""]`` for an unpartitioned table.

    It walks the folders below the base, except ``.hoodie`` and folders inside partitions. Outside:
    for folders that are not pruned 1 stat each, and 1 list for each that is no partition.

    Args:
        storage: The table's.
        prune: Returns the folders that are walked, of a list of folders; None to walk all.
        below: Only partitions inside this folder, even if it is a partition; None for all.

    Raises:
        CorruptTableError: Folders nest deeper than 32 levels (SEC14).
    """
    found: list[str] = []
    level = [""] if below is None else _folders_in(below, storage.list(below))
    for _ in range(_DEPTH_MAX):
        inside: list[str] = []
        for folder in level if prune is None else prune(level):
            # Most folders are partitions, which may have thousands of files: stat is cheaper than
            # list.
            if storage.stat(join(folder, PARTITION_METADATA)) is not None:
                found.append(folder)
                continue
            entries = storage.list(folder)
            if any(is_partition_file(entry.name) for entry in entries if not entry.is_folder):
                found.append(folder)
                continue
            inside.extend(_folders_in(folder, entries))
        if not inside:
            return sorted(found)
        level = inside
    raise CorruptTableError("folders nest too deeply to be partitions", path=level[0])


def _folders_in(folder: str, entries: Stats) -> list[str]:
    start = f"{folder}/" if folder else ""  # the storage checks it on use
    return [
        f"{start}{entry.name}"
        for entry in entries
        if entry.is_folder and not (folder == "" and entry.name == ".hoodie")
    ]


def is_partition(storage: Storage, folder: str, ending: str) -> bool:
    """Return whether a folder has a metadata file, text or ``ending``. Outside: up to 2 stats."""
    names = dict.fromkeys((PARTITION_METADATA, PARTITION_METADATA + ending))
    return any(storage.stat(join(folder, name)) is not None for name in names)


def partition_created_by(storage: Storage, partition_path: str) -> InstantTime | None:
    """
    Return the requested time of the instant that created a partition, committed or not.

    None if there is no such text, or it is in a Parquet file. Outside: 1 get.
    """
    path = join(partition_path, PARTITION_METADATA)
    try:
        return parse_properties(storage.read(path), path=path).get("commitTime") or None
    except (CorruptTableError, ObjectMissingError):
        return None


def is_partition_file(name: str) -> bool:
    """Return whether a file of this name makes its folder a partition."""
    return name == PARTITION_METADATA or name.startswith(PARTITION_METADATA + ".")

"""
Partitions are folders with the file ``.hoodie_partition_metadata``, as in Java Hudi (fmt 4.1).

The module finds them by listing folders, as every Hudi reader does without a metadata table.
It also finds partitions inside of other partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from timeline.context import TableContext
from timeline.errors import CorruptTableError, HoodooError
from timeline.model.file_names import PARTITION_METADATA, data_file_time, is_partition_file, join
from timeline.model.file_slice import BaseFile, LogFile
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import ObjectMissingError, Stats, Storage
from timeline.properties.properties_file import parse_properties
from timeline.snapshot import Snapshot

_DEPTH_MAX = 32


def list_partition_paths(
    storage: Storage,
    prune: Callable[[Sequence[str]], Sequence[str]] | None = None,
    *,
    below: str | None = None,
    together: Callable[..., tuple[Any, ...]] | None = None,
) -> list[str]:
    """
    Return every partition path of the table, sorted; ``[""]`` for an unpartitioned table.

    It walks the folders below the base, except ``.hoodie`` and folders inside partitions. Outside:
    for folders that are not pruned 1 stat each, and 1 list for each that is no partition.

    Args:
        storage: The table's.
        prune: Returns the folders that are walked, of a list of folders; None to walk all.
        below: Only partitions inside this folder, even if it is a partition; None for all.
        together: Makes the calls of one level of folders (``Ports.concurrently``); None makes one
            after the other.

    Raises:
        CorruptTableError: Folders nest deeper than 32 levels (SEC14).
    """
    found: list[str] = []
    level = [""] if below is None else _folders_in(below, storage.list(below))
    for _ in range(_DEPTH_MAX):
        folders = list(level if prune is None else prune(level))
        calls = [partial(_folders_unless_partition, storage, folder) for folder in folders]
        looked_at = [call() for call in calls] if together is None else together(*calls)
        seen = list(zip(folders, looked_at, strict=True))
        found += [folder for folder, below_it in seen if below_it is None]
        inside = [folder for _, below_it in seen for folder in below_it or ()]
        if not inside:
            return sorted(found)
        level = inside
    raise CorruptTableError(
        "the table's folders are nested too deeply for partitions: remove the folders that no "
        f"writer created: {level[0]}",
        path=level[0],
    )


def _folders_unless_partition(storage: Storage, folder: str) -> list[str] | None:
    """Return the folders in a folder; None if it is a partition."""
    # Most folders are partitions, which may have thousands of files: stat is cheaper than list.
    if storage.stat(join(folder, PARTITION_METADATA)) is not None:
        return None
    entries = storage.list(folder)
    if any(is_partition_file(entry.name) for entry in entries if not entry.is_folder):
        return None
    return _folders_in(folder, entries)


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


# ---- Handle partitions inside of other partitions, so that no committed rows are hidden
# Java Hudi and this engine search for no partition below another one. So the metadata file of an
# outer partition hides everything inside. If two writers create both at the same time, the conflict
# rules reject the later commit (C21). Its metadata file would stay, so it is deleted: nothing can be
# committed there any more.


def with_committed_files(
    context: TableContext, snapshot: Snapshot, folders: Iterable[str]
) -> list[str]:
    """Return the folders that hold committed files, even replaced ones. Outside: 1 list each."""
    storage = context.ports.storage
    return [one for one in folders if any(map(snapshot.shows, _data_files(storage, one)))]


def _data_files(storage: Storage, folder: str) -> Iterator[BaseFile | LogFile]:
    for entry in storage.list(folder):
        if not entry.is_folder:
            base = BaseFile.found(folder, entry.name, entry.size_bytes)
            file = base or LogFile.found(folder, entry.name, entry.size_bytes)
            if file is not None:
                yield file


def inner_partitions(context: TableContext, snapshot: Snapshot, folder: str) -> list[str]:
    """
    Return the partitions inside a folder that hold committed files, at any depth.

    Outside: the lists of a walk below the folder, and 1 list per partition. Where a partition holds
    no committed file, the walk continues below it.
    """
    inside = list_partition_paths(context.ports.storage, below=folder)
    found = with_committed_files(context, snapshot, inside)
    for empty in sorted({*inside}.difference(found)):
        found += inner_partitions(context, snapshot, empty)
    return found


def delete_hiding_metadata(context: TableContext, folders: Iterable[str]) -> None:
    """
    Delete metadata files of folders without committed rows that hide committed rows inside.

    A writer that commits rows in such a folder is rejected. Either it began before the inner
    commit, which is then a concurrent commit, or it finds the inner folder. Java does not validate
    this. So in mode ``shared`` a folder stays as it is while a pending write has files in it. A
    failure here is reported as an event and never fails a write.

    Outside: 1 list per folder. If the folder has a metadata file and folders: also a refresh, 2
    lists, 1 stat and 1 list per inner partition, and the deletes.
    """
    if context.config.url_encode_partitioning:
        return
    for folder in sorted(filter(None, set(folders)), reverse=True):  # the inner before the outer
        try:
            _uncover(context, folder)
        except HoodooError as error:
            context.ports.events.emit("partition.still_covered", folder=folder, why=error.message)


def _uncover(context: TableContext, folder: str) -> None:
    storage = context.ports.storage
    entries = storage.list(folder)
    files = [one.name for one in entries if not one.is_folder and is_partition_file(one.name)]
    if not files or not any(one.is_folder for one in entries):
        return
    snapshot = context.snapshot()
    if context.has_foreign_writers:
        pending = {one.requested_time for one in snapshot.active.pending}
        if not pending.isdisjoint(data_file_time(one.name) for one in entries):
            return
    inner = inner_partitions(context, snapshot, folder)
    if not inner or with_committed_files(context, snapshot, [folder]):
        return
    for name in files:
        storage.delete(join(folder, name))
    context.ports.events.emit("partition.uncovered", folder=folder, inside=inner[0])

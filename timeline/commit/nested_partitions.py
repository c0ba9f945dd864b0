"""
Handle partitions inside of other partitions, so that no committed rows are hidden.

Java Hudi and this engine search for no partition below another one. So the metadata file of an
outer partition hides everything inside. If two writers create both at the same time, the conflict
rules reject the later commit (C21). Its metadata file would stay, so it is deleted: nothing can be
committed there any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.file_names import BaseFile, LogFile, data_file_time, join
from timeline.partitions import is_partition_file, list_partition_paths
from timeline.ports.storage import Storage
from timeline.properties.setting_enums import ForeignWriters
from timeline.snapshot import Snapshot

__all__ = ["delete_hiding_metadata", "inner_partitions", "with_committed_files"]


def with_committed_files(
    context: TableContext, snapshot: Snapshot, folders: Iterable[str]
) -> list[str]:
    """Return the folders that hold committed files, even replaced ones. Outside: 1 list each."""
    storage = context.world.storage
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
    inside = list_partition_paths(context.world.storage, below=folder)
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
            context.world.events.emit("partition.still_covered", folder=folder, why=error.message)


def _uncover(context: TableContext, folder: str) -> None:
    storage = context.world.storage
    entries = storage.list(folder)
    files = [one.name for one in entries if not one.is_folder and is_partition_file(one.name)]
    if not files or not any(one.is_folder for one in entries):
        return
    snapshot = context.snapshot()
    if context.limits.foreign_writers is ForeignWriters.EXPECTED:
        pending = {one.requested_time for one in snapshot.active.pending}
        if not pending.isdisjoint(data_file_time(one.name) for one in entries):
            return
    inner = inner_partitions(context, snapshot, folder)
    if not inner or with_committed_files(context, snapshot, [folder]):
        return
    for name in files:
        storage.delete(join(folder, name))
    context.world.events.emit("partition.uncovered", folder=folder, inside=inner[0])

"""Compare the metadata table with the timeline and the files of its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from timeline.context import TableContext
from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.file_names import METADATA_TABLE, BaseFile, LogFile, join, parent_folder
from timeline.snapshot import Snapshot

_FIRST_VERSION: Final = 8  # of tables whose metadata table is read

#: Problems that a clean after the snapshot may cause.
MAY_BE_CLEANED: Final = frozenset({"metadata_stale_file", "missing_file"})

#: Kind, path and message of a problem.
Problem = tuple[str, str, str]


def check_metadata_table(
    context: TableContext, snapshot: Snapshot, sizes: Mapping[str, int]
) -> Iterator[Problem]:
    """
    Yield what the metadata table has wrong; nothing without one.

    Args:
        context: The table.
        snapshot: The commits that count.
        sizes: Bytes of each file in the partitions, by path.

    Outside: as ``open_metadata_table``, and the files of its partition ``files``.
    """
    config = context.config
    if not config.metadata_table_on or config.table_version < _FIRST_VERSION:
        return
    try:
        table = open_metadata_table(context.ports.storage, config, snapshot)
        if table is None:
            return
        yield from _instants(table)
        listed = _listed(table)
    except (CorruptTableError, UnsupportedTableError) as error:
        yield error.kind, str(error.fields.get("path", METADATA_TABLE)), error.message
        return
    for path, size in sorted(listed.items()):
        if path not in sizes:
            yield "metadata_stale_file", path, "the metadata table lists it, and it is missing"
        elif size != sizes[path]:
            yield (
                "metadata_file_size",
                path,
                f"{size} bytes in the metadata table instead of {sizes[path]}",
            )
    for path in sorted(sizes.keys() - listed.keys()):
        folder, name = parent_folder(path), path.rpartition("/")[2]
        file = BaseFile.found(folder, name, 0) or LogFile.found(folder, name, 0)
        if file is not None and snapshot.shows(file):
            yield (
                "metadata_missing_file",
                path,
                "a commit wrote it, and the metadata table lacks it",
            )


def _instants(table: MetadataTable) -> Iterator[Problem]:
    for time in table.lag.behind:
        yield "metadata_behind", time, "the metadata table lacks this completed instant"
    for time in table.lag.unknown:
        yield "metadata_unknown_instant", time, "only the metadata table has this instant"


def _listed(table: MetadataTable) -> dict[str, int]:
    files = table.files_of(table.partition_paths())
    paths, names, sizes = (files.column(name).to_pylist() for name in files.column_names)
    return {join(path, name): size for path, name, size in zip(paths, names, sizes, strict=True)}

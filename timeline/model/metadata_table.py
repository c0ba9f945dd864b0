"""
The metadata table's part of a commit, and where its files are.

Hudi's metadata table is a merge-on-read table in ``.hoodie/metadata``. It lists the files of the
table and has statistics and indexes of them. Each commit of the table adds one deltacommit with the
same requested time to it. Its log files are written before the slot and are invisible. The slot
names them, and apply makes them visible right before the commit itself (MDT-2, MDT-4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from timeline.model.file_names import METADATA_TABLE
from timeline.model.instant_time import EARLIEST, InstantTime

METADATA_TIMELINE: Final = f"{METADATA_TABLE}/.hoodie/timeline"
#: What the times of instants begin with that built a partition: 0, 1, 2 and so on.
BUILDING: Final = EARLIEST[:-3]

# A file id of a record index per partition may have dots, unlike one of the table.
_FILE: Final = re.compile(
    r"(?:\.([^_/\\\x00-\x1f]+)_(\d{17})\.log\.\d+_\d+-\d+-\d+"
    r"|([^._/\\\x00-\x1f][^_/\\\x00-\x1f]*)_\d+-\d+-\d+_(\d{17})\.hfile)",
    re.ASCII,
)
_PARTITION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", re.ASCII)


def parse_metadata_file_name(name: str) -> tuple[str, InstantTime] | None:
    """Return file id and time of a base or log file of the metadata table; None for another file."""
    found = _FILE.fullmatch(name)
    return None if found is None else (found[1] or found[3], found[2] or found[4])


class PartitionKind(Enum):
    """A kind of partition of the metadata table; the value is its folder, or the folder's prefix."""

    FILES = "files"
    COLUMN_STATS = "column_stats"
    BLOOM_FILTERS = "bloom_filters"
    RECORD_INDEX = "record_index"
    PARTITION_STATS = "partition_stats"
    SECONDARY_INDEX = "secondary_index_"
    EXPRESSION_INDEX = "expr_index_"

    @property
    def is_named(self) -> bool:
        """Whether a table may have several of the kind, each with a name after the prefix."""
        return self.value.endswith("_")


def kind_of(partition: str) -> PartitionKind | None:
    """Return the kind of a partition of the metadata table, None if this release knows none."""
    for kind in PartitionKind:
        has_name = partition.startswith(kind.value) and partition != kind.value
        if has_name if kind.is_named else partition == kind.value:
            return kind
    return None


def is_metadata_log_of(path: str, requested_time: InstantTime) -> bool:
    """Return whether a path is that of a log file of this instant in the metadata table."""
    table, _, rest = path.partition(f"{METADATA_TABLE}/")
    partition, _, name = rest.partition("/")
    found = parse_metadata_file_name(name)
    is_log = name.startswith(".") and found is not None and found[1] == requested_time
    return is_log and not table and _PARTITION.fullmatch(partition) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogFile:
    """
    A log file of one file group of the metadata table, or the base file that a build writes.

    ``base_time`` is the requested time of the file group's slice, ``records`` the number of its
    records and deletes. ``content`` are its bytes if apply creates it (MDT-9); empty if it exists
    before the slot.
    """

    partition: str
    file_id: str
    name: str
    size_bytes: int
    records: int
    base_time: InstantTime
    content: bytes = b""

    @property
    def path(self) -> str:
        """The table-relative path."""
        return f"{METADATA_TABLE}/{self.partition}/{self.name}"

    @property
    def is_base_file(self) -> bool:
        """Whether it is a base file; no slot has one."""
        return not self.name.startswith(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataUpdate:
    """
    What a slot adds to the metadata table: one deltacommit of log files (MDT-3).

    ``table_version`` decides the form of its records. ``partitions`` are those that the table had
    when the log files were written, complete ones and those still being built, sorted.
    """

    table_version: int
    partitions: tuple[str, ...]
    files: tuple[MetadataLogFile, ...]

    def with_token(self, token: str) -> MetadataUpdate:
        """Return the update with this write token in the names of its log files."""
        files = (replace(one, name=f"{one.name.rpartition('_')[0]}_{token}") for one in self.files)
        return replace(self, files=tuple(files))

    def invalid_names(self, requested_time: InstantTime) -> Iterator[str]:
        """Yield the names that no update of this requested time may have (SEC2)."""
        for one in self.files:
            is_log = one.name.startswith(".")
            if not is_log or parse_metadata_file_name(one.name) != (one.file_id, requested_time):
                yield one.name
        for partition in {*self.partitions, *(one.partition for one in self.files)}:
            if _PARTITION.fullmatch(partition) is None:
                yield partition

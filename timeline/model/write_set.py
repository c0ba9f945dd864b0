"""
The write set of an instant: accessed file groups and whole partitions, for conflict rules.

A whole partition is in a write set if the write overwrites or deletes it. File ids alone cannot
express that, because another writer may add new file groups meanwhile (docs/spec/holes.md, hole
9).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from timeline.model.instant import InstantTime

#: Every partition, also future ones: the write set of ``insert_overwrite_table``.
WHOLE_TABLE = "*"


@dataclass(frozen=True, slots=True, order=True)
class FileGroupId:
    """The identity of a file group: (partition path, file id)."""

    partition_path: str
    file_id: str

    def __str__(self) -> str:
        return f"{self.partition_path}/{self.file_id}" if self.partition_path else self.file_id


class Access(Enum):
    """How an instant accesses a file group."""

    NEW = "new"  # creates it
    BASE = "base"  # writes a new base file from its newest slice
    LOG = "log"  # appends a log file
    REPLACE = "replace"  # hides it


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessedFileGroup:
    """One accessed file group, and the slice that its new content comes from."""

    file_group: FileGroupId
    access: Access
    source_requested_time: InstantTime | None = None  # base instant of the slice that was read
    files: tuple[str, ...] = ()  # names relative to the partition
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """All file groups and partitions that an instant changes."""

    file_groups: tuple[AccessedFileGroup, ...] = ()
    partitions: tuple[str, ...] = ()  # changed as a whole; WHOLE_TABLE means all
    inserting: tuple[str, ...] = field(default=())  # partitions that got keys new to the writer

    @staticmethod
    def of(
        file_groups: Iterable[AccessedFileGroup],
        partitions: Iterable[str] = (),
        inserting: Iterable[str] = (),
    ) -> WriteSet:
        """Build a write set in canonical order, so that equal content gives equal bytes."""
        return WriteSet(
            file_groups=tuple(
                sorted(file_groups, key=lambda item: (item.file_group, item.access.value))
            ),
            partitions=tuple(sorted(set(partitions))),
            inserting=tuple(sorted(set(inserting))),
        )

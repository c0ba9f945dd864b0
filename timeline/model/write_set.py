"""
What an instant touches: file groups and claimed partitions, the input of conflict rules.

A claim is a promise about whole partitions (an overwrite, a delete of partitions): file
ids alone cannot express it, because another writer may add new file groups meanwhile
(docs/spec/holes.md, hole 9).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from timeline.model.instant_time import InstantTime

__all__ = ["WHOLE_TABLE", "Access", "AccessedFileGroup", "FileGroupId", "WriteSet"]

#: The claim of ``insert_overwrite_table``: every partition, also those not there yet.
WHOLE_TABLE = "*"


@dataclass(frozen=True, slots=True, order=True)
class FileGroupId:
    """All versions of one set of records: (partition path, file id)."""

    partition_path: str
    file_id: str

    def __str__(self) -> str:
        return f"{self.partition_path}/{self.file_id}" if self.partition_path else self.file_id


class Access(Enum):
    """How an instant touches a file group."""

    NEW = "new"  # creates it
    BASE = "base"  # a new base file from its newest slice
    LOG = "log"  # appends a log file
    REPLACE = "replace"  # hides it


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessedFileGroup:
    """One file group an instant touches, and the slice its new content came from."""

    file_group: FileGroupId
    touch: Access
    source_requested_time: InstantTime | None = None  # base of the slice that was read
    files: tuple[str, ...] = ()  # names relative to the partition
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """Everything an instant touches."""

    file_groups: tuple[AccessedFileGroup, ...] = ()
    partitions: tuple[str, ...] = ()  # claimed as wholes; WHOLE_TABLE claims all
    inserting: tuple[str, ...] = field(default=())  # partitions that got keys new to the writer

    @staticmethod
    def of(
        file_groups: Iterable[AccessedFileGroup],
        partitions: Iterable[str] = (),
        inserting: Iterable[str] = (),
    ) -> WriteSet:
        """A claim in canonical order, so that equal content gives equal bytes."""
        return WriteSet(
            file_groups=tuple(
                sorted(file_groups, key=lambda item: (item.file_group, item.touch.value))
            ),
            partitions=tuple(sorted(set(partitions))),
            inserting=tuple(sorted(set(inserting))),
        )

"""
The request and the result of a write.

A batch id makes a repeated call return the first result instead of writing again (BATCH-1). The
id is in the commit slot, so it is as reliable as the commit itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from filegroups.keys.keys import KeySpec
from filegroups.reading.read import ReadSet
from filegroups.schema.evolution import ColumnChange, MissingColumns, SchemaRules
from filegroups.writing.assign_file_groups import FileRules
from filegroups.writing.workload import RowRules
from timeline.commit.conflict_report import ConflictReport
from timeline.model.commit_metadata import CommitMetadata, WriteOperation
from timeline.model.instant_time import InstantTime
from timeline.snapshot import Snapshot

__all__ = ["CommitResult", "RowCounts", "WriteRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The request of a caller to write."""

    rules: RowRules
    files: FileRules = field(default_factory=FileRules)
    delete_partitions: tuple[str, ...] = ()
    # Instead of ``delete_partitions``: chooses them from the base snapshot of each attempt.
    choose_partitions: Callable[[Snapshot], tuple[str, ...]] | None = None
    extra_metadata: dict[str, str] = field(default_factory=dict)
    batch_id: str | None = None
    reads: ReadSet | None = None  # the reads that the rows were computed from
    refusals: tuple[ConflictReport, ...] = ()  # of attempts from earlier reads
    detect_early: bool = True  # also detect conflicts before files are written
    paced: bool = True  # obey the table's rate limit; services do not wait
    schema: SchemaRules = field(
        default_factory=lambda: SchemaRules(missing=MissingColumns(fill=True))
    )

    @property
    def operation(self) -> WriteOperation:
        """The requested operation."""
        return self.rules.operation

    def with_keys(self, keys: KeySpec) -> WriteRequest:
        """Return the request with another way to make record keys and partition paths."""
        return replace(self, rules=replace(self.rules, keys=keys))

    def partitions_deleted(self, base: Snapshot) -> tuple[str, ...]:
        """Return the partitions that a write with base snapshot ``base`` deletes as a whole."""
        return self.choose_partitions(base) if self.choose_partitions else self.delete_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Row counts of one write."""

    inserted: int
    updated: int
    deleted: int

    @classmethod
    def of(cls, metadata: CommitMetadata) -> RowCounts:
        """Return the counts of a commit's metadata."""
        return cls(
            inserted=metadata.total_rows_inserted,
            updated=metadata.total_rows_updated,
            deleted=metadata.total_rows_deleted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The result of a committed write."""

    action: str
    operation: str
    requested_time: InstantTime
    completion_time: InstantTime
    attempts: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    files_written: int = 0  # a file with rows of several writes counts for each (GRP-7)
    bytes_written: int = 0
    refusals: tuple[ConflictReport, ...] = ()
    redone: str = "nothing"  # "publication", "file groups" or "everything"
    lost_slots: int = 0  # other commits took the slot first, and no data changed
    already_published: bool = False  # the batch id was committed before
    schema_changes: tuple[ColumnChange, ...] = ()  # changes of the table's columns by this instant
    group: int = 1  # writes that the instant committed together (GRP-1)

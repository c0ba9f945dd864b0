"""
What a caller asks of a write and what it is told: the plan and the receipt.

A batch id makes a repeated call return the first receipt instead of writing again
(BATCH-1): the id lies in the commit slot, so the answer is as certain as the publication.
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
    """What a caller wants written."""

    rules: RowRules
    files: FileRules = field(default_factory=FileRules)
    delete_partitions: tuple[str, ...] = ()
    # Instead of those: which, told of the base snapshot of each attempt.
    choose_partitions: Callable[[Snapshot], tuple[str, ...]] | None = None
    extra_metadata: dict[str, str] = field(default_factory=dict)
    batch_id: str | None = None
    reads: ReadSet | None = None  # what the rows were made from
    refusals: tuple[ConflictReport, ...] = ()  # of attempts from earlier reads
    detect_early: bool = True  # look for conflicts before files are written, too
    paced: bool = True  # by the table's pace; services do not wait
    schema: SchemaRules = field(
        default_factory=lambda: SchemaRules(missing=MissingColumns(fill=True))
    )

    @property
    def operation(self) -> WriteOperation:
        """The operation asked for."""
        return self.rules.operation

    def with_keys(self, keys: KeySpec) -> WriteRequest:
        """The plan with record keys and partition paths made in another way."""
        return replace(self, rules=replace(self.rules, keys=keys))

    def partitions_deleted(self, base: Snapshot) -> tuple[str, ...]:
        """Partitions that a write which began from ``base`` deletes as wholes."""
        return self.choose_partitions(base) if self.choose_partitions else self.delete_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """What the rows of one write did."""

    inserted: int
    updated: int
    deleted: int

    @classmethod
    def of(cls, metadata: CommitMetadata) -> RowCounts:
        """As a commit tells it."""
        return cls(
            inserted=metadata.total_rows_inserted,
            updated=metadata.total_rows_updated,
            deleted=metadata.total_rows_deleted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What a write did."""

    action: str
    operation: str
    requested_time: InstantTime
    completion_time: InstantTime
    attempts: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    files_written: int = 0  # one that has rows of several writes counts for each (GRP-7)
    bytes_written: int = 0
    refusals: tuple[ConflictReport, ...] = ()
    redone: str = "nothing"  # "publication", "file groups" or "everything"
    lost_slots: int = 0  # others published first, and no data had to be touched
    already_published: bool = False  # a batch id that was published before
    schema_changes: tuple[ColumnChange, ...] = ()  # what its instant made of the table's columns
    group: int = 1  # writes that one instant published together (GRP-1)

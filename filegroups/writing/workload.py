"""
The workload port: the incoming rows of one write, wherever they lie.

One engine, two executors: the write path decides (which file groups, which base files,
what to redo) and a workload does (find keys, route rows, merge and write files). The local
one holds Arrow in this process; the Spark one holds a DataFrame on a cluster. Both run the
same function per file group, ``filegroups.files.append.write_task``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from filegroups.files.rewrite import FileGroupTask
from filegroups.index import IndexedFile, LookupRules
from filegroups.keys.bucketing import BucketAssigner, BucketRules
from filegroups.keys.insert_buckets import InsertBucket
from filegroups.keys.keys import KeySpec
from filegroups.merge.rules import MergeRules
from filegroups.schema.schema import TableSchema
from timeline.model.commit_metadata import MergeMode, WriteOperation, WriteStat
from timeline.model.merge_definition import MergeDefinition
from timeline.model.write_set import FileGroupId
from timeline.rules.bucket_ranges import BucketRanges

__all__ = ["RowRules", "Workload", "WorkloadProfile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """How incoming rows become records: keys, order, and what is done with duplicates."""

    keys: KeySpec
    operation: WriteOperation
    merge_mode: MergeMode
    ordering_fields: tuple[str, ...]
    combine: bool  # keep one row per key of the batch
    tags: bool  # look for the keys in existing file groups
    drop_found: bool = False  # inserts of keys already there are left out
    refuse_found: bool = False  # an insert with keys already there is refused as a whole
    for_java: bool = False  # Java writes this table, too: what it cannot rewrite is refused
    merge_definition: MergeDefinition | None = None  # None: by mode and ordering fields alone
    lookup: LookupRules = field(default_factory=LookupRules)
    buckets: BucketRules | None = None  # the key's hash says the file group; nothing is looked up
    own_buckets: BucketRanges | None = None  # rows of others are refused (OWN-1)
    # The columns that rows change of records that are there, none meaning all they have; None
    # for whole rows.
    partial_columns: tuple[str, ...] | None = None

    @property
    def moves_rows(self) -> bool:
        """Whether a row whose key is in another partition leaves it; inserts never do that."""
        upserts = self.operation is WriteOperation.UPSERT
        return upserts and self.lookup.whole_table and self.lookup.moves

    @property
    def changes_known(self) -> bool:
        """Whether each row changes a record that is there; one that is not is refused."""
        keyless = self.keys.carried and not self.keys.record_key_fields
        return self.partial or (keyless and self.operation is WriteOperation.UPSERT)

    @property
    def partial(self) -> bool:
        """Whether rows have some of the columns, and records keep the others."""
        return self.partial_columns is not None

    @property
    def merge(self) -> MergeDefinition:
        """How rows are merged, in full."""
        return self.merge_definition or MergeDefinition(
            mode=self.merge_mode, ordering_fields=self.ordering_fields
        )

    def combining(self, avro_json: str) -> MergeRules:
        """How rows of one key in a batch become one; of deletes by key there is but one kind."""
        if self.operation is WriteOperation.DELETE:
            return MergeRules(definition=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING))
        return MergeRules.of(self.merge, avro_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """Row counts after tagging: new records per partition, found ones per file group."""

    inserts: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[FileGroupId, int] = field(default_factory=dict)


class Workload(Protocol):
    """Rows of one write; the path calls the methods in this order, some of them again on redo."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the incoming data, meta columns included if the caller left them in."""

    def is_empty(self) -> bool:
        """Whether there are no rows; asked where the columns would matter, which then do not."""

    def prepare(self, rules: RowRules, schema: TableSchema) -> None:
        """
        Fit the rows to the table's schema, compute keys and partition paths, combine.

        Called once, before anything is begun, so that bad input changes nothing.

        Raises:
            InvalidInputError: A key, partition or ordering column is missing or null, or a
                value does not fit.
        """

    def partition_paths(self) -> tuple[str, ...]:
        """The partitions the rows belong to, sorted."""

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """
        Find out which rows' keys live in which candidate file group.

        Asked again with other candidates, only the last answer counts.

        Args:
            candidates: Newest base files by partition path; empty when nothing is to be found.

        Raises:
            MissingFileError: A candidate was cleaned meanwhile; tag anew.
        """

    def spread(self, shares: BucketAssigner) -> Mapping[tuple[str, int], int]:
        """Count the rows not found by ``tag`` by partition path and bucket of a bucket index."""

    def assign(self, buckets: Sequence[InsertBucket], file_ids: Mapping[int, str]) -> None:
        """Route new records to buckets; ``file_ids`` gives each bucket number its file id."""

    def make_ahead(self, tasks: Sequence[FileGroupTask]) -> None:
        """
        Make in memory, of what these tasks will write, new small files; nothing is written.

        Asked while the tasks are announced to a storage far away, and at most once. It may do
        nothing; what fails here fails again in ``rewrite``.
        """

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        """
        Write each task's file group with the rows routed to it; answers in task order.

        Called again with some of the tasks when only those file groups must be redone.

        Raises:
            MissingFileError: A base file was cleaned meanwhile (hole 12).
        """

    def attempted(self) -> frozenset[str] | None:
        """
        Paths of all files that tasks of this write may have made so far.

        None where tasks run elsewhere and may have been repeated: then the markers tell.
        """

    def release(self) -> None:
        """Let go of cached rows; twice is no error."""

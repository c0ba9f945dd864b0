"""
The workload port: the incoming rows of one write, in memory or on a cluster.

The write path decides: which file groups, which base files, what to repeat. The workload does the
work: find keys, route rows, merge and write files. The local workload has Arrow data in this
process, the Spark workload a DataFrame on a cluster. Both run the same function for each file
group, ``filegroups.files.append.write_task``.
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
    """How incoming rows become records: keys, ordering fields, and the handling of duplicates."""

    keys: KeySpec
    operation: WriteOperation
    merge_mode: MergeMode
    ordering_fields: tuple[str, ...]
    combine: bool  # keep one row per key of the batch
    tags: bool  # look up the keys in existing file groups
    drop_found: bool = False  # skip inserts of existing keys
    refuse_found: bool = False  # refuse the whole insert if any key exists
    for_java: bool = False  # Java also writes this table: refuse values that Java cannot rewrite
    merge_definition: MergeDefinition | None = None  # None: by mode and ordering fields alone
    lookup: LookupRules = field(default_factory=LookupRules)
    buckets: BucketRules | None = None  # the key's hash gives the file group, without a lookup
    own_buckets: BucketRanges | None = None  # rows of other buckets are refused (OWN-1)
    # The columns that a partial update changes, empty for all columns of the rows; None for whole
    # rows.
    partial_columns: tuple[str, ...] | None = None

    @property
    def moves_rows(self) -> bool:
        """Whether a row whose key is in another partition moves the record; inserts never do."""
        updates = self.operation.traits.updates
        return updates and self.lookup.whole_table and self.lookup.moves

    @property
    def changes_known(self) -> bool:
        """Whether each row must change an existing record; a row with a new key is refused."""
        keyless = self.keys.carried and not self.keys.record_key_fields
        return self.partial or (keyless and self.operation.traits.updates)

    @property
    def checks_known(self) -> bool:
        """Whether an insert skips or refuses keys that exist."""
        return self.drop_found or self.refuse_found

    @property
    def depends_on_lookup(self) -> bool:
        """
        Whether the result depends on the exact lookup of keys, not only on the merge.

        Then log files count in the lookup. A rebase is not enough after a conflict: a key of a
        global index may have moved, a partial update may change a deleted key, and a rebase does
        not check again which keys exist.
        """
        return self.lookup.whole_table or self.changes_known or self.checks_known

    @property
    def partial(self) -> bool:
        """Whether rows have some of the columns, and records keep the others."""
        return self.partial_columns is not None

    @property
    def merge(self) -> MergeDefinition:
        """The full definition of how rows are merged."""
        return self.merge_definition or MergeDefinition(
            mode=self.merge_mode, ordering_fields=self.ordering_fields
        )

    def combining(self, avro_json: str) -> MergeRules:
        """Return how rows of one key in a batch become one. Deletes by key are all alike."""
        if self.operation.traits.deletes_keys:
            return MergeRules(definition=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING))
        return MergeRules.of(self.merge, avro_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """Row counts after tagging: new records by partition, known ones by file group."""

    inserts: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[FileGroupId, int] = field(default_factory=dict)


class Workload(Protocol):
    """Rows of one write. The write calls the methods in this order; a retry repeats some."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the incoming data, with meta columns if the caller left them in."""

    def is_empty(self) -> bool:
        """Return whether there are no rows. If so, their columns do not matter."""

    def prepare(self, rules: RowRules, schema: TableSchema) -> None:
        """
        Fit the rows to the table's schema, compute keys and partition paths, combine.

        Called once, before the write begins, so that bad input changes nothing.

        Raises:
            InvalidInputError: A key, partition or ordering column is missing or null, or a
                value does not fit.
        """

    def partition_paths(self) -> tuple[str, ...]:
        """Return the partitions of the rows, sorted."""

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """
        Tag the rows: find the candidate file group that contains each row's key.

        After repeated calls only the last result counts.

        Args:
            candidates: Newest base files by partition path; empty if there is nothing to find.

        Raises:
            MissingFileError: A candidate was cleaned meanwhile; tag again.
        """

    def spread(self, shares: BucketAssigner) -> Mapping[tuple[str, int], int]:
        """Count the rows not found by ``tag``, by partition path and bucket of a bucket index."""

    def assign(self, buckets: Sequence[InsertBucket], file_ids: Mapping[int, str]) -> None:
        """Route new records to insert buckets; ``file_ids`` maps bucket numbers to file ids."""

    def make_ahead(self, tasks: Sequence[FileGroupTask]) -> None:
        """
        Make in memory the new small files of these tasks, without writing them.

        Called at most once, while a high-latency store receives the tasks' announcement. It may do
        nothing. A failure here repeats in ``rewrite``.
        """

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        """
        Write each task's file group with the rows routed to it; return stats in task order.

        Called again with some of the tasks for a rebase of their file groups.

        Raises:
            MissingFileError: A base file was cleaned meanwhile (hole 12).
        """

    def attempted(self) -> frozenset[str] | None:
        """
        Return the paths of all files that tasks of this write may have created so far.

        None if tasks run elsewhere and may have been repeated: then the markers list the files.
        """

    def release(self) -> None:
        """Release cached rows; a second call is no error."""

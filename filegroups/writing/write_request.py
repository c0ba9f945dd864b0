"""
The request and the result of a write, with its rules of rows and files.

A batch id makes a repeated call return the first result instead of writing again (BATCH-1). The
id is in the commit slot, so it is as reliable as the commit itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from filegroups.files.bloom import BloomSettings
from filegroups.files.log_files import LogSettings
from filegroups.files.parquet_layout import ParquetSettings
from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules, SizeSettings
from filegroups.keys.keys import KeySpec
from filegroups.merge.rules import MergeRules
from filegroups.reading.read_set import ReadSet
from filegroups.schema.column_changes import ColumnChanges
from filegroups.schema.evolution import ColumnChange, MissingColumns, SchemaRules
from timeline.commit.conflict_report import ConflictReport
from timeline.errors import counted
from timeline.model.commit_metadata import CommitMetadata, MergeMode, Replaced, WriteOperation
from timeline.model.instant_time import InstantTime
from timeline.model.merge_definition import MergeDefinition
from timeline.properties.setting_enums import BulkInsertSort
from timeline.rules.bucket_ranges import BucketRanges
from timeline.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """How incoming rows become records: keys, ordering fields, and the handling of duplicates."""

    keys: KeySpec
    operation: WriteOperation
    merge: MergeDefinition
    ordering_fields: tuple[str, ...]
    combine: bool  # keep one row per key of the batch
    tags: bool  # look up the keys in existing file groups
    drop_found: bool = False  # skip inserts of existing keys
    refuse_found: bool = False  # refuse the whole insert if any key exists
    for_java: bool = False  # Java also writes this table: refuse values that Java cannot rewrite
    lookup: LookupRules = field(default_factory=LookupRules)
    buckets: BucketRules | None = None  # the key's hash gives the file group, without a lookup
    own_buckets: BucketRanges | None = None  # rows of other buckets are refused (OWN-1)
    sort: BulkInsertSort | None = None  # of a bulk insert; None for other operations
    # The columns that a partial update changes, empty for all columns of the rows; None for whole
    # rows.
    partial_columns: tuple[str, ...] | None = None
    # A merge may add rows where ``changes_known`` forbids new keys; its reads are validated instead.
    adds_rows: bool = False

    @property
    def moves_rows(self) -> bool:
        """Whether a row whose key is in another partition moves the record; inserts never do."""
        updates = self.operation.traits.updates
        return updates and self.lookup.whole_table and self.lookup.moves_rows

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

        Then log files count in the lookup. A rebase is not enough after a conflict, because it does
        not check again which keys exist. A key of a global index may have moved, and a partial
        update may change a deleted key. A record index does not have keys that a log deleted.
        """
        lookup = self.lookup
        counts_logs = lookup.whole_table or lookup.by_record_index
        return counts_logs or self.changes_known or self.checks_known

    @property
    def partial(self) -> bool:
        """Whether rows have some of the columns, and records keep the others."""
        return self.partial_columns is not None

    def opens_groups_only(self, *, is_first: bool, fills_small_files: bool) -> bool:
        """
        Return whether all rows go to new file groups, whatever their keys and partitions are.

        Args:
            is_first: Whether the table has no write yet.
            fills_small_files: Whether inserts may go to small files.
        """
        traits = self.operation.traits
        if traits.deletes_keys or self.changes_known or self.buckets or self.own_buckets:
            return False
        if traits.replaces is not Replaced.NOTHING:
            return traits.replaces is Replaced.TABLE
        if traits.opens_new_files_only:
            return not self.tags
        return is_first or (traits.only_adds and not self.tags and not fills_small_files)

    def combining(self, avro_json: str) -> MergeRules:
        """Return how rows of one key in a batch become one. Deletes by key are all alike."""
        if self.operation.traits.deletes_keys:
            return MergeRules(definition=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING))
        return MergeRules.of(self.merge, avro_json)

    def combining_parts(self, avro_json: str) -> MergeRules | None:
        """Return how parts of a batch may be combined before the whole; None if they may not."""
        rules = self.combining(avro_json) if self.combine else None
        return rules if rules is not None and rules.keeps_whole_rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """How to make base files and log files."""

    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    bloom: BloomSettings | None = field(default_factory=BloomSettings)
    sizes: SizeSettings = field(default_factory=SizeSettings)
    # Small files to fill in each partition (hoodie.merge.small.file.group.candidates.limit).
    small_files_max: int = 1
    learn_record_size: bool = True
    logs: LogSettings = field(default_factory=LogSettings)  # of merge-on-read tables

    def filtering(self, key_fields: tuple[str, ...]) -> FileRules:
        """Return the rules for a table of these key fields, whose columns queries search."""
        if self.bloom is None:
            return self
        return replace(self, parquet=replace(self.parquet, filtered=key_fields))

    @property
    def fills_small_files(self) -> bool:
        """Whether inserts may go to small files."""
        return self.small_files_max > 0 and self.sizes.small_file_bytes > 0


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
    conflicts: tuple[ConflictReport, ...] = ()  # of attempts from earlier reads
    detect_early: bool = True  # also detect conflicts before files are written
    rate_limited: bool = True  # obey the table's rate limit; services do not wait
    changes: ColumnChanges | None = None  # of the table's columns; such a write has no rows
    makes_ids: bool = False  # give the columns ids, if they have none
    schema: SchemaRules = field(
        default_factory=lambda: SchemaRules(missing=MissingColumns(fill=True))
    )

    @property
    def operation(self) -> WriteOperation:
        """The requested operation."""
        return self.rules.operation

    @property
    def hudi_name(self) -> str:
        """The enum name of the operation in commit metadata (fmt 3, operationType)."""
        return self.operation.hudi_name if self.changes is None else "ALTER_SCHEMA"

    @property
    def operation_name(self) -> str:
        """The name of the operation in results."""
        return self.operation.value if self.changes is None else "alter_schema"

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CommitResult:
    """The result of a committed write; it prints as one line."""

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

    def __repr__(self) -> str:
        rows = f"+{self.rows_inserted} ~{self.rows_updated} -{self.rows_deleted} rows"
        files = f"{counted(self.files_written, 'file')}, {self.bytes_written:,} bytes"
        again = "; this batch was committed before" if self.already_published else ""
        tries = counted(self.attempts, "attempt")
        tried = "" if self.attempts == 1 else f"; {tries}, last for {self.redone}"
        return (
            f"<{self.operation} {self.requested_time}: {rows}, {files}, "
            f"completed {self.completion_time}{tried}{again}>"
        )

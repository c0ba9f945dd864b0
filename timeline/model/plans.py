"""
The plans and results of table services and of rollback, as their instants record them.

There is one value class per Avro record of format 3, with the record's fields in their order. The
codec derives the schemas from these classes. File names and
paths in a plan are untrusted text, because any process may have written it. Code that uses a plan
validates each name against the grammar and the table's root before it opens or deletes anything
(SEC1, SEC2). Defaults are the values that Hudi itself writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, TypeAlias, TypeVar


class AvroForm(Enum):
    """How a field may be absent in a file; ``timeline.codecs.avro_schemas`` reads it."""

    NULLABLE = auto()  # of every other field with a default
    NULLABLE_WITHOUT_DEFAULT = auto()
    REQUIRED = auto()  # of every field without a default
    FILLED = auto()  # absent in older files: then it is the default
    FILLED_OR_NULL = auto()


_T = TypeVar("_T")
NullableWithoutDefault: TypeAlias = Annotated[_T, AvroForm.NULLABLE_WITHOUT_DEFAULT]
Required: TypeAlias = Annotated[_T, AvroForm.REQUIRED]
Filled: TypeAlias = Annotated[_T, AvroForm.FILLED]
FilledOrNull: TypeAlias = Annotated[_T, AvroForm.FILLED_OR_NULL]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionInstant:
    """An instant named in a cleaner plan, with its state as text."""

    requested_time: str
    action: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantInfo:
    """An instant named in a rollback."""

    requested_time: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanFileInfo:
    """One file that a clean will delete; a full path, with scheme if Java wrote it."""

    file_path: str | None = None
    is_bootstrap_base_file: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerPlan:
    """The files that a clean will delete, and the earliest commit to retain."""

    earliest_instant_to_retain: ActionInstant | None = None
    last_completed_commit_timestamp: Filled[str] = ""
    policy: Required[str] = "KEEP_LATEST_COMMITS"
    files_to_be_deleted_per_partition: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    version: int = 2
    file_paths_to_be_deleted_per_partition: Mapping[str, tuple[CleanFileInfo, ...]] = field(
        default_factory=dict
    )
    partitions_to_be_deleted: tuple[str, ...] = ()
    extra_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPartitionMetadata:
    """The result of a clean in one partition; file names are relative to it."""

    partition_path: str
    policy: Required[str] = "KEEP_LATEST_COMMITS"
    delete_path_patterns: Required[tuple[str, ...]] = ()
    success_delete_files: Required[tuple[str, ...]] = ()
    failed_delete_files: Required[tuple[str, ...]] = ()
    is_partition_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanMetadata:
    """The result of a completed clean."""

    start_clean_time: str
    time_taken_in_millis: Required[int] = 0
    total_files_deleted: Required[int] = 0
    earliest_commit_to_retain: Required[str] = ""
    last_completed_commit_timestamp: Filled[str] = ""
    partition_metadata: Required[Mapping[str, CleanPartitionMetadata]] = field(default_factory=dict)
    version: int = 2
    bootstrap_partition_metadata: Mapping[str, CleanPartitionMetadata] = field(default_factory=dict)
    extra_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """Files of one failed write to delete; absolute paths if Java wrote them."""

    partition_path: str
    file_id: str = ""
    latest_base_instant: str = ""
    files_to_be_deleted: Filled[tuple[str, ...]] = ()
    log_blocks_to_be_deleted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The instant and the files that a rollback will delete."""

    instant_to_rollback: InstantInfo | None = None
    rollback_requests: tuple[RollbackRequest, ...] = ()
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPartitionMetadata:
    """The result of a rollback in one partition."""

    partition_path: str
    success_delete_files: Required[tuple[str, ...]] = ()
    failed_delete_files: Required[tuple[str, ...]] = ()
    rollback_log_files: Mapping[str, int] = field(default_factory=dict)
    log_files_from_failed_commit: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackMetadata:
    """The result of a completed rollback; the only trace of the write that it rolled back."""

    start_rollback_time: str
    time_taken_in_millis: Required[int] = 0
    total_files_deleted: Required[int] = 0
    commits_rollback: Required[tuple[str, ...]] = ()
    partition_metadata: Required[Mapping[str, RollbackPartitionMetadata]] = field(
        default_factory=dict
    )
    version: int = 1
    instants_rollback: Filled[tuple[InstantInfo, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """The instants that a restore removes, newest first, and the one that it restores."""

    instants_to_rollback: Filled[tuple[InstantInfo, ...]] = ()
    version: int = 2
    savepoint_to_restore_timestamp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMetadata:
    """The result of a completed restore, by the requested time of each removed instant."""

    start_restore_time: str
    time_taken_in_millis: Required[int] = 0
    instants_to_rollback: Required[tuple[str, ...]] = ()
    hoodie_restore_metadata: Required[Mapping[str, tuple[RollbackMetadata | None, ...]]] = field(
        default_factory=dict
    )
    version: int = 1
    restore_instant_info: Filled[tuple[InstantInfo, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceInfo:
    """One file slice that a clustering plan reads; `data_file_path` is absolute, with scheme."""

    data_file_path: str | None = None
    delta_file_paths: tuple[str, ...] = ()
    file_id: NullableWithoutDefault[str | None] = None
    partition_path: str | None = None
    bootstrap_file_path: str = ""
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringGroup:
    """Slices that are rewritten together."""

    slices: tuple[SliceInfo, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    num_output_file_groups: FilledOrNull[int] = 1
    extra_metadata: Mapping[str, str] | None = None
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanClusteringStrategy:
    """The Java class that executes a clustering plan, and its parameters."""

    strategy_class_name: str | None = None
    strategy_params: Mapping[str, str] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPlan:
    """
    The file groups that a clustering rewrites.

    `preserve_hoodie_metadata` is False if a plan does not contain it, as in Java; Hudi's own
    planner writes True.
    """

    input_groups: tuple[ClusteringGroup, ...] = ()
    strategy: PlanClusteringStrategy | None = None
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    version: int = 1
    preserve_hoodie_metadata: bool = False
    missing_schedule_partitions: tuple[str, ...] = ()

    def file_groups(self) -> frozenset[tuple[str, str]]:
        """Return the (partition path, file id) pairs of this plan."""
        return frozenset(
            (one.partition_path or "", one.file_id)
            for group in self.input_groups
            for one in group.slices
            if one.file_id
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedReplaceMetadata:
    """Content of a requested replacecommit or clustering; all None for an overwrite."""

    operation_type: str | None = None
    clustering_plan: ClusteringPlan | None = None
    extra_metadata: Mapping[str, str] | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOperation:
    """One file slice to compact; bare file names from plan version 2 on."""

    base_instant_time: NullableWithoutDefault[str | None] = None
    delta_file_paths: tuple[str, ...] = ()
    data_file_path: str | None = None
    file_id: NullableWithoutDefault[str | None] = None
    partition_path: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    bootstrap_file_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCompactionStrategy:
    """The Java class that executes a compaction plan, and its parameters."""

    compactor_class_name: str | None = None
    strategy_params: Mapping[str, str] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The file slices that a compaction or log compaction merges."""

    operations: tuple[CompactionOperation, ...] = ()
    extra_metadata: Mapping[str, str] | None = None
    version: int = 2
    strategy: PlanCompactionStrategy | None = None
    preserve_hoodie_metadata: FilledOrNull[bool] = False
    missing_schedule_partitions: tuple[str, ...] = ()

    def file_groups(self) -> frozenset[tuple[str, str]]:
        """Return the (partition path, file id) pairs of this plan."""
        return frozenset(
            (one.partition_path or "", one.file_id) for one in self.operations if one.file_id
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointPartitionMetadata:
    """Files that a savepoint keeps in one partition; bare names."""

    partition_path: str
    savepoint_data_file: Required[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointMetadata:
    """The user, the time (milliseconds since 1970-01-01 UTC) and the files of a savepoint."""

    savepointed_by: str
    savepointed_at: int
    comments: Required[str] = ""
    partition_metadata: Required[Mapping[str, SavepointPartitionMetadata]] = field(
        default_factory=dict
    )
    version: int = 1

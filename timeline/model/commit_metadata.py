"""The metadata of a write in its completed file, its write set, and the operations of writers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from timeline.model.instant_time import InstantTime

# ---- Operations, table types and modes, as in Hudi


class Replaced(Enum):
    """The file groups that a write replaces as a whole, whatever their keys."""

    NOTHING = "nothing"
    PARTITIONS = "partitions"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTraits:
    """How one write operation treats incoming rows and existing file groups."""

    takes_rows: bool = True
    looks_up_keys: bool = False  # a row belongs to the file group that has its key
    deletes_keys: bool = False  # the rows are keys, and delete their records
    fills_small_files: bool = False  # new rows may go to a small file of their partition
    checks_duplicates: bool = False  # hoodie.datasource.insert.dup.policy applies
    replaces: Replaced = Replaced.NOTHING

    @property
    def updates(self) -> bool:
        """Whether rows change records that have their keys."""
        return self.looks_up_keys and not self.deletes_keys

    @property
    def only_adds(self) -> bool:
        """Whether every row becomes a record, even if its key exists."""
        return self.takes_rows and not self.looks_up_keys and self.replaces is Replaced.NOTHING

    @property
    def opens_new_files_only(self) -> bool:
        """Whether the write reads no existing file, so partitions need no listing."""
        return self.only_adds and not self.fills_small_files


class WriteOperation(Enum):  # a new member needs a line in ``_TRAITS``
    """The operation that a caller asks for; the resulting ``Action`` is the timeline's."""

    INSERT = "insert"
    UPSERT = "upsert"
    BULK_INSERT = "bulk_insert"
    DELETE = "delete"
    INSERT_OVERWRITE = "insert_overwrite"
    INSERT_OVERWRITE_TABLE = "insert_overwrite_table"
    DELETE_PARTITION = "delete_partition"

    @property
    def traits(self) -> OperationTraits:
        """How the operation treats rows and file groups."""
        return _TRAITS[self]

    @property
    def replaces(self) -> bool:
        """Whether it commits a replacecommit."""
        return self.traits.replaces is not Replaced.NOTHING

    @property
    def hudi_name(self) -> str:
        """The enum name that Java Hudi expects in commit metadata (fmt 3, operationType)."""
        return self.name


_TRAITS: Final = {
    WriteOperation.UPSERT: OperationTraits(looks_up_keys=True, fills_small_files=True),
    WriteOperation.INSERT: OperationTraits(fills_small_files=True, checks_duplicates=True),
    WriteOperation.BULK_INSERT: OperationTraits(),
    WriteOperation.DELETE: OperationTraits(looks_up_keys=True, deletes_keys=True),
    WriteOperation.INSERT_OVERWRITE: OperationTraits(replaces=Replaced.PARTITIONS),
    WriteOperation.INSERT_OVERWRITE_TABLE: OperationTraits(replaces=Replaced.TABLE),
    WriteOperation.DELETE_PARTITION: OperationTraits(
        takes_rows=False, replaces=Replaced.PARTITIONS
    ),
}


class TableType(Enum):
    """How updates are stored."""

    COPY_ON_WRITE = "COPY_ON_WRITE"
    MERGE_ON_READ = "MERGE_ON_READ"


class MergeMode(Enum):
    """The rule that decides between two versions of one record (fmt 7)."""

    COMMIT_TIME_ORDERING = "COMMIT_TIME_ORDERING"
    EVENT_TIME_ORDERING = "EVENT_TIME_ORDERING"
    CUSTOM = "CUSTOM"


class CdcMode(Enum):
    """The content of a change log besides the operation (``hoodie.table.cdc.supplemental...``)."""

    OP_KEY_ONLY = "OP_KEY_ONLY"
    DATA_BEFORE = "DATA_BEFORE"
    DATA_BEFORE_AFTER = "DATA_BEFORE_AFTER"


class ConcurrencyMode(Enum):
    """Which writers may write at the same time."""

    SINGLE_WRITER = "SINGLE_WRITER"
    OPTIMISTIC_CONCURRENCY_CONTROL = "OPTIMISTIC_CONCURRENCY_CONTROL"
    NON_BLOCKING_CONCURRENCY_CONTROL = "NON_BLOCKING_CONCURRENCY_CONTROL"


# ---- Commit metadata
# One value serves three files: the workload profile of an inflight instant (format 2.4), the
# metadata of a completed commit or deltacommit, and, with replaced file groups, that of a
# replacecommit. Names and paths in a decoded value come from the table and are untrusted text;
# validate them before use (SEC1, SEC2).

LOG_COMPACT = "LOG_COMPACT"
"""The operation of an instant that merged log files; its block repeats rows of other blocks."""

SINK_CHECKPOINT_KEY = "_hudi_streaming_sink_checkpoint"
"""Extra metadata of a micro-batch: a JSON map from the stream's identifier to its batch number."""

NO_PREVIOUS_COMMIT = "null"
"""The text that Hudi writes into `prevCommit` of a new file group."""

SCHEMA_KEY = "schema"
"""Key in the extra metadata that holds the table's Avro schema without meta columns."""

INTERNAL_SCHEMA_KEY = "latest_schema"  # for schema on read: the schema with column ids

GROUP_KEY = "hoodoo.group"
"""Key in the extra metadata of a group commit that holds the number of its writes (GRP-1)."""

_KEEPS_SCHEMA = frozenset({"CLUSTER", "COMPACT", "INDEX", "LOG_COMPACT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """The times of writing one file, in ms."""

    total_scan_time: int = 0
    total_create_time: int = 0
    total_upsert_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStat:
    """
    One file of a write, with every field of `HoodieWriteStat`, in its order.

    Counters count records unless the name says otherwise; sizes are bytes; `path` is relative to
    the table. Defaults are those that Hudi writes for a counter that does not apply.
    """

    file_id: str = ""
    path: str | None = None
    prev_commit: str = NO_PREVIOUS_COMMIT
    num_writes: int = 0
    num_deletes: int = 0
    num_update_writes: int = 0
    total_write_bytes: int = 0
    total_write_errors: int = 0
    partition_path: str | None = None
    total_log_records: int = 0
    total_log_files: int | None = None
    total_updated_records_compacted: int = 0
    num_inserts: int = 0
    total_log_blocks: int = 0
    total_corrupt_log_block: int = 0
    total_rollback_blocks: int = 0
    file_size_in_bytes: int = 0
    log_version: int | None = None
    log_offset: int | None = None
    base_file: str | None = None
    log_files: tuple[str, ...] | None = None
    cdc_stats: Mapping[str, int] | None = None
    prev_base_file: str | None = None
    min_event_time: int | None = None
    max_event_time: int | None = None
    runtime_stats: RuntimeStats | None = None
    total_log_files_compacted: int = 0
    total_log_read_time_ms: int = 0
    total_log_size_compacted: int = 0
    temp_path: str | None = None
    num_updates: int = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """The file and its change logs; untrusted when decoded."""
        return (*((self.path,) if self.path else ()), *(self.cdc_stats or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """
    The record of one write: its files by partition path, its operation and free text.

    `partition_to_replace_file_ids` is None for commits and deltacommits, and a mapping, possibly
    empty, for replacecommits. It alone decides which schema is written.
    """

    partition_to_write_stats: Mapping[str, tuple[WriteStat, ...]] = field(default_factory=dict)
    compacted: bool = False
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    operation_type: str = "UNKNOWN"
    partition_to_replace_file_ids: Mapping[str, tuple[str, ...]] | None = None

    def write_stats(self) -> tuple[WriteStat, ...]:
        """Return every stat of every partition, in the order of the mapping."""
        return tuple(s for stats in self.partition_to_write_stats.values() for s in stats)

    def file_groups(self) -> frozenset[tuple[str, str]]:
        """
        Return the (partition path, file id) pairs that this write accessed, replaced ones included.

        Planned inserts of a workload profile have no file id yet and are left out.
        """
        written = {
            (partition_path, stat.file_id)
            for partition_path, stats in self.partition_to_write_stats.items()
            for stat in stats
            if stat.file_id
        }
        return frozenset(written | self.replaced_file_groups())

    def replaced_file_groups(self) -> frozenset[tuple[str, str]]:
        """Return the (partition path, file id) pairs that this write replaced."""
        replaced = self.partition_to_replace_file_ids or {}
        return frozenset((path, file_id) for path, ids in replaced.items() for file_id in ids)

    def partition_paths(self) -> frozenset[str]:
        """Return every partition path written or replaced, also those with planned inserts only."""
        return frozenset(self.partition_to_write_stats) | frozenset(
            self.partition_to_replace_file_ids or {}
        )

    def written_paths(self) -> tuple[str, ...]:
        """Return table-relative paths of the files of this write; untrusted when decoded."""
        return tuple(stat.path for stat in self.write_stats() if stat.path)

    @property
    def schema_json(self) -> str | None:
        """The table's Avro schema (JSON, without meta columns) as of this write, if recorded."""
        return self.extra_metadata.get(SCHEMA_KEY) or None

    @property
    def decides_schema(self) -> bool:
        """
        Whether the write may change the table's schema, by Java's rule.

        A table service repeats a schema; another engine's service repeats the one it began with.
        """
        return self.operation_type not in _KEEPS_SCHEMA

    @property
    def total_files(self) -> int:
        """Number of files written."""
        return len(self.written_paths())

    @property
    def total_bytes(self) -> int:
        """Bytes written."""
        return sum(stat.total_write_bytes for stat in self.write_stats())

    @property
    def total_rows_inserted(self) -> int:
        """Records inserted."""
        return sum(stat.num_inserts for stat in self.write_stats())

    @property
    def total_rows_updated(self) -> int:
        """Records updated."""
        return sum(stat.num_update_writes for stat in self.write_stats())

    @property
    def total_rows_deleted(self) -> int:
        """Records deleted."""
        return sum(stat.num_deletes for stat in self.write_stats())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUpdate:
    """A file group that a pending write will change, and its base instant."""

    partition_path: str
    file_id: str
    base_requested_time: str
    update_rows: int


def workload_profile(
    *,
    operation_type: str,
    planned_insert_rows: Mapping[str, int],
    planned_updates: tuple[PlannedUpdate, ...] = (),
) -> CommitMetadata:
    """
    Build the content of an inflight file: the planned changes of a write (format 2.4).

    Writers, Java's included, read it to detect conflicts while the write is pending. Each
    partition gets one stat without file id for its planned inserts, 0 when there are only updates,
    then one stat per file group to update.

    Args:
        operation_type: Hudi's enum name, for example `UPSERT`.
        planned_insert_rows: Records to insert by partition path.
        planned_updates: File groups to update.
    """
    stats: dict[str, list[WriteStat]] = {
        partition_path: [WriteStat(num_inserts=rows)]
        for partition_path, rows in sorted(planned_insert_rows.items())
    }
    for update in planned_updates:
        stats.setdefault(update.partition_path, [WriteStat()]).append(
            WriteStat(
                file_id=update.file_id,
                prev_commit=update.base_requested_time,
                num_update_writes=update.update_rows,
            )
        )
    return CommitMetadata(
        operation_type=operation_type,
        partition_to_write_stats={path: tuple(listed) for path, listed in stats.items()},
    )


# ---- The write set of an instant: accessed file groups and whole partitions, for conflict rules
# A whole partition is in a write set if the write overwrites or deletes it. File ids alone cannot
# express that, because another writer may add new file groups meanwhile (docs/spec/holes.md, hole
# 9).

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


#: Types of commits that move rows and add none.
COMPACTING: Final = frozenset({"COMPACT", LOG_COMPACT})
_REPLACED: Final = {operation.hudi_name: operation.traits.replaces for operation in WriteOperation}


def write_set_of(metadata: CommitMetadata) -> WriteSet:
    """Return what a commit changed, read from its metadata."""
    touched = []
    inserting = set()
    for partition_path, stats in metadata.partition_to_write_stats.items():
        for stat in stats:
            name = (stat.path or "").rpartition("/")[2]
            source = None if stat.prev_commit == NO_PREVIOUS_COMMIT else stat.prev_commit
            touch = Access.NEW if source is None else Access.BASE
            if name.startswith("."):
                touch, source = Access.LOG, None  # its previous commit is itself (fmt 3)
            if stat.num_inserts and metadata.operation_type not in COMPACTING:
                inserting.add(partition_path)
            touched.append(
                AccessedFileGroup(
                    file_group=FileGroupId(partition_path, stat.file_id),
                    access=touch,
                    source_requested_time=source,
                    files=(name,) if name else (),
                    written_bytes=stat.file_size_in_bytes,
                )
            )
    replaced = metadata.partition_to_replace_file_ids or {}
    for partition_path, file_ids in replaced.items():
        touched.extend(
            AccessedFileGroup(
                file_group=FileGroupId(partition_path, file_id), access=Access.REPLACE
            )
            for file_id in file_ids
        )
    claimed: set[str] = set()
    scope = _REPLACED.get(metadata.operation_type)
    if scope is Replaced.TABLE:
        claimed = {WHOLE_TABLE}
    elif scope is Replaced.PARTITIONS:
        claimed = {*replaced, *metadata.partition_to_write_stats}
    return WriteSet.of(touched, claimed, inserting)

"""
Options of writes; each field of ``WriteSettings`` declares its option.

The settings are built once from properties and handed down as frozen values; no lower layer reads
a property. Each value knows its layer. Contradictions are refused here, before anything changes.
Keys and defaults are those of Hudi 1.2; keys that begin with ``hoodoo.`` and the family
``hoodie.write.commit.retry.`` exist in hoodoo only. Our defaults differ for conflict retries 4
(Hudi 0), early conflict detection on, metadata table off, timeline zone UTC, compression snappy
(gzip), log blocks parquet (avro).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from filegroups.settings.insert_settings import InsertSettings
from filegroups.settings.key_settings import KeySettings, resolve_key_options
from filegroups.settings.known_keys import is_key_of_hudi, refuse_unsupported
from filegroups.settings.read_settings import LimitSettings, ReadSettings
from timeline.model.commit_metadata import ConcurrencyMode, TableType, WriteOperation
from timeline.properties.options import (
    DEFAULT_LAYER,
    OptionKind,
    PropertySet,
    as_property_set,
    option,
)
from timeline.properties.setting_enums import (
    BloomType,
    BulkInsertSort,
    ClusteringUpdates,
    CommitLockMode,
    Durability,
    EarlyDetection,
    FailedWritesPolicy,
    ForeignWriters,
    IndexType,
    InsertDuplicates,
    LogFormat,
)
from timeline.redaction import redact
from timeline.rules.bucket_ranges import BUCKET_OWNERSHIP_KEY, BucketRanges
from timeline.rules.conflicts import SIMPLE
from timeline.rules.isolation import Isolation
from timeline.rules.retry import RETRY_PRESETS, RateLimit, RetryPolicy, RetryPreset

_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]
_TABLE_ID: Final = "hoodoo.table.id"  # in hoodie.properties of tables that hoodoo made


_Buckets = Annotated[
    BucketRanges | None,
    BeforeValidator(lambda given: BucketRanges.parse(given) if isinstance(given, str) else given),
]


class WriteSettings(KeySettings, LimitSettings, InsertSettings):
    """All settings of a write."""

    operation: WriteOperation = option(
        "hoodie.datasource.write.operation",
        WriteOperation.UPSERT,
        "Operation of a write.",
        choices=(
            "upsert",
            "insert",
            "bulk_insert",
            "delete",
            "insert_overwrite",
            "insert_overwrite_table",
            "delete_partition",
        ),
    )
    partitions_to_delete: tuple[str, ...] = option(
        "hoodie.datasource.write.partitions.to.delete",
        (),
        "Partition paths that delete_partition deletes.",
    )
    overwritten_partitions: tuple[str, ...] = option(
        "hoodie.static.overwrite.partition.paths",
        (),
        "Partition paths that insert_overwrite replaces, even if no row belongs to them.",
    )
    combine_before_insert: bool = option(
        "hoodie.combine.before.insert", False, "Merge incoming rows of one key before an insert."
    )
    combine_before_upsert: bool = option(
        "hoodie.combine.before.upsert",
        True,
        "Merge incoming rows of one key before an upsert. Use false only if no batch "
        "has a key twice: a copy-on-write table may keep all such rows, as in Hudi.",
    )
    metadata_enable: bool | None = option(
        "hoodie.metadata.enable",
        None,
        "Whether a new table gets a metadata table (Hudi's default is true; here the option of "
        "one of its indexes suffices); writers maintain "
        "the one that a table has, and refuse false then. Reads list and skip files by it with "
        "true, and not with false; by default they do on an object store, and Spark's loads skip "
        "files.",
    )

    schema_reconcile: bool = option(
        "hoodie.datasource.write.reconcile.schema",
        False,
        "The same as hoodie.write.set.null.for.missing.columns.",
    )
    schema_on_read: bool = option(
        "hoodie.schema.on.read.enable",
        False,
        "Allow statements that rename, drop or move columns; the table's columns get ids, and "
        "readers of Java Hudi need this option, too. With hoodie.datasource.write.reconcile.schema "
        "a write gives the ids.",
    )
    schema_validate: bool = option(
        "hoodie.avro.schema.validate",
        False,
        "Check the incoming schema against the table's, even if they are equal.",
    )
    set_null_for_missing_columns: bool = option(
        "hoodie.write.set.null.for.missing.columns",
        False,
        "Fill columns that the incoming rows lack with nulls; otherwise such rows are refused.",
    )
    drop_missing_columns: bool = option(
        "hoodie.datasource.write.schema.allow.auto.evolution.column.drop",
        False,
        "Remove columns from the table that the incoming rows lack, except key and "
        "ordering fields.",
    )

    parquet_file_bytes_max: Annotated[_Positive, OptionKind.BYTES] = option(
        "hoodie.parquet.max.file.size", 125_829_120, "Target size of base files."
    )
    small_file_bytes_max: Annotated[_Count, OptionKind.BYTES] = option(
        "hoodie.parquet.small.file.limit",
        104_857_600,
        "Base files below this size receive new rows; 0 fills none.",
    )
    small_files_max: _Positive = option(
        "hoodie.merge.small.file.group.candidates.limit",
        1,
        "Number of small file groups that one write task fills.",
    )
    record_size_bytes: Annotated[_Positive, OptionKind.BYTES] = option(
        "hoodie.copyonwrite.record.size.estimate",
        1024,
        "Assumed size of a row until a commit shows the real one.",
    )
    insert_split_rows: _Positive = option(
        "hoodie.copyonwrite.insert.split.size",
        500_000,
        "Number of rows of a new file if it is not computed.",
    )
    insert_auto_split: bool = option(
        "hoodie.copyonwrite.insert.auto.split",
        True,
        "Compute the number of rows of a new file from earlier commits.",
    )
    parquet_row_group_bytes: Annotated[_Positive, OptionKind.BYTES] = option(
        "hoodie.parquet.block.size", 125_829_120, "Size of a row group."
    )
    parquet_page_bytes: Annotated[_Positive, OptionKind.BYTES] = option(
        "hoodie.parquet.page.size", 1_048_576, "Size of a page."
    )
    parquet_compression: str = option(
        "hoodie.parquet.compression.codec",
        "snappy",
        "Compression of base files (Hudi: gzip; snappy writes several times faster).",
        choices=("gzip", "snappy", "zstd", "lz4", "lz4_raw", "brotli", "uncompressed", "none"),
    )
    parquet_dictionary: bool = option(
        "hoodie.parquet.dictionary.enabled", True, "Dictionary-encode columns that repeat values."
    )
    log_format: LogFormat | None = option(
        "hoodie.logfile.data.block.format",
        None,
        "Format of the blocks of log files. By default parquet (Hudi: avro), but avro"
        " if an ordering field is a text, because queries of Java Hudi then return "
        "older rows from parquet blocks.",
    )
    log_file_bytes_max: Annotated[_Positive, OptionKind.BYTES] = option(
        "hoodie.logfile.max.size",
        1_073_741_824,
        "Size from which a new log file is started.",
    )
    log_block_bytes_max: Annotated[int, OptionKind.BYTES, Field(ge=1, le=1_073_741_824)] = option(
        "hoodie.logfile.data.block.max.size",
        268_435_456,
        "Most bytes of rows in one block of a log file, before compression.",
    )
    shuffle_tasks: _Count = option(
        "hoodie.upsert.shuffle.parallelism",
        0,
        "Number of tasks of a write on Spark; 0 lets the engine choose.",
    )
    bulk_insert_tasks: _Count = option(
        "hoodie.bulkinsert.shuffle.parallelism",
        0,
        "Number of tasks of a bulk insert on Spark that sorts or distributes its rows; 0 lets "
        "Spark choose.",
    )
    bulk_insert_sort: BulkInsertSort = option(
        "hoodie.bulkinsert.sort.mode",
        BulkInsertSort.NONE,
        "How a bulk insert distributes and sorts its rows: not at all (NONE), by partition path "
        "and record key over all tasks (GLOBAL_SORT) or in each task (PARTITION_SORT), or by "
        "partition path, one task for each (PARTITION_PATH_REPARTITION, and _AND_SORT).",
    )
    driver_write_bytes_max: Annotated[_Count, OptionKind.BYTES] = option(
        "hoodoo.spark.driver.write.max.bytes",
        67_108_864,
        "Spark's driver collects DataFrames up to about this size in one job and writes them "
        "itself, and compacts file groups up to this size; 0 leaves all of it to tasks.",
    )

    own_buckets: _Buckets = option(
        BUCKET_OWNERSHIP_KEY,
        None,
        "Buckets that this writer owns, such as 0-63 or 0-15,32; all by default. Rows of other "
        "buckets are refused, and so is a writer whose buckets overlap those of a live one.",
    )
    simple_index_moves: bool = option(
        "hoodie.simple.index.update.partition.path",
        True,
        "With GLOBAL_SIMPLE, move a row whose partition changes; false updates it in "
        "its old partition.",
    )
    bloom_index_moves: bool = option(
        "hoodie.bloom.index.update.partition.path",
        True,
        "With GLOBAL_BLOOM, move a row whose partition changes; false updates it in "
        "its old partition.",
    )
    bloom_index_by_metadata: bool | None = option(
        "hoodie.bloom.index.use.metadata",
        None,
        "Whether BLOOM and GLOBAL_BLOOM ask the metadata table for bloom filters and key ranges; by "
        "default for bloom filters on an object store. The footer of a file that it does not have is "
        "read.",
    )
    record_index_moves: bool = option(
        "hoodie.record.index.update.partition.path",
        False,
        "With RECORD_INDEX or GLOBAL_RECORD_LEVEL_INDEX, move a row whose partition changes; "
        "false updates it in its old partition.",
    )
    bloom_enabled: bool = option(
        "hoodie.parquet.bloom.filter.enabled",
        True,
        "Write bloom filters of record keys into base files: Hudi's, and Parquet's own.",
    )
    bloom_type: BloomType = option(
        "hoodie.bloom.index.filter.type",
        BloomType.DYNAMIC_V0,
        "Whether a bloom filter has a fixed size or grows with its file.",
    )
    bloom_keys: _Positive = option(
        "hoodie.index.bloom.num_entries",
        60_000,
        "Number of keys for which a bloom filter is sized.",
    )
    bloom_false_positive_rate: Annotated[float, Field(gt=0, lt=1)] = option(
        "hoodie.index.bloom.fpp",
        0.000000001,
        "Share of absent keys that a bloom filter may report as present.",
    )
    bloom_dynamic_keys_max: _Positive = option(
        "hoodie.bloom.index.filter.dynamic.max.entries",
        100_000,
        "Number of keys up to which a growing filter keeps its error rate.",
    )

    concurrency_mode: ConcurrencyMode = option(
        "hoodie.write.concurrency.mode",
        ConcurrencyMode.SINGLE_WRITER,
        "One writer, many writers whose conflicts are found when they commit, or many"
        " writers of log files without such conflicts.",
    )
    failed_writes_policy: FailedWritesPolicy = option(
        "hoodie.clean.failed.writes.policy",
        None,
        "When failed writes are rolled back: by the next writer (EAGER), by cleaning "
        "(LAZY), or never.",
        aliases=("hoodie.cleaner.policy.failed.writes",),
    )
    early_conflict_detection: bool = option(
        "hoodie.write.concurrency.early.conflict.detection.enable",
        True,
        "Check for conflicts before files are written. On by default (Hudi: off).",
    )
    early_detection: EarlyDetection = option(
        "hoodie.write.concurrency.early.conflict.detection.strategy",
        EarlyDetection.PUBLISHED,
        "The check before files are written: commits since the write began "
        "(published), or also announced changes of live writers that began earlier "
        "(announced). With announced, a write waits for those writers, or is rejected"
        " if it may not be retried. Hudi's classes mean announced.",
    )
    heartbeat_interval_ms: Annotated[int, OptionKind.MS, Field(ge=1000, le=86_400_000)] = option(
        "hoodie.client.heartbeat.interval_in_ms",
        60_000,
        "Time between two heartbeats of a pending write.",
    )
    heartbeat_misses: Annotated[int, Field(ge=1, le=1000)] = option(
        "hoodie.client.heartbeat.tolerable.misses",
        2,
        "Number of missed heartbeats after which the heartbeat of a write is expired; "
        "one fewer if hoodoo wrote it, since it beats more often.",
    )
    conflict_retries: Annotated[int, Field(ge=0, le=1000)] = option(
        "hoodie.write.num.retries.on.conflict.failures",
        4,
        "Number of retries of a rejected write; 4 by default (Hudi: 0).",
    )
    commit_attempts_max: Annotated[int, Field(ge=1, le=100_000)] = option(
        "hoodie.write.commit.retry.max.attempts",
        16,
        "Number of attempts to take a slot in one commit.",
    )
    commit_retry_base_ms: Annotated[_Count, OptionKind.MS] = option(
        "hoodie.write.commit.retry.base.ms", 50, "First pause between attempts."
    )
    commit_retry_cap_ms: Annotated[_Count, OptionKind.MS] = option(
        "hoodie.write.commit.retry.cap.ms", 10_000, "Longest pause between attempts."
    )
    commit_retry_total_ms: Annotated[_Count, OptionKind.MS] = option(
        "hoodie.write.commit.retry.total.timeout.ms",
        1_800_000,
        "Time after which a write is not retried; 0 for no limit.",
    )
    retry_policy: RetryPolicy = option(
        "hoodoo.retry.policy",
        RetryPolicy.EXPONENTIAL_JITTER,
        "Growth of the pauses between attempts.",
    )
    retry_preset: RetryPreset | None = option(
        "hoodoo.retry.preset",
        None,
        "Retries, pauses and time limit for small batches that must not wait, or for "
        "long runs that must succeed. Explicit options override it.",
    )
    retry_wasted_bytes_max: Annotated[_Count, OptionKind.BYTES] = option(
        "hoodoo.retry.wasted.bytes.max",
        0,
        "Most bytes that rejected attempts of one write may have written; 0 for no limit.",
    )
    retry_queue_after: Annotated[int, Field(ge=0, le=1000)] = option(
        "hoodoo.retry.queue.after",
        0,
        "Number of conflicts after which a write holds the table's lock during its "
        "retry, however long that lasts, so that it cannot lose again. Others wait; 0"
        " never.",
    )
    retry_queue_short_ms: Annotated[_Count, OptionKind.MS] = option(
        "hoodoo.retry.queue.short.ms",
        500,
        "A rejected write whose last attempt was no longer than this holds the "
        "table's lock during its retry, for at most this time. After further "
        "conflicts it is two to four times that; on a high-latency store ten requests"
        " more, up to four times. Not if writers commit without the lock, or other "
        "engines write; 0 never.",
    )
    pace_per_minute: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] = option(
        "hoodoo.commit.pace.per.minute",
        0,
        "Rate limit: number of writes of all writers that may begin in a minute; 0.2 "
        "is one in five minutes, 0 no limit. Others wait before they begin; table "
        "services do not wait.",
    )
    pace_burst: Annotated[int, Field(ge=1, le=1000)] = option(
        "hoodoo.commit.pace.burst", 1, "Number of writes that may begin at once after a pause."
    )
    pace_wait_ms_max: Annotated[_Count, OptionKind.MS] = option(
        "hoodoo.commit.pace.max.wait.ms",
        600_000,
        "Longest wait of a write for the rate limit; then it begins anyway.",
    )
    group_writes_max: Annotated[int, Field(ge=1, le=1000)] = option(
        "hoodoo.group.commit.max.writes",
        1,
        "Most writes of this process's threads in one instant; 1 groups none.",
    )
    group_linger_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=60_000)] = option(
        "hoodoo.group.commit.linger.ms",
        0,
        "Time for which the first write of a group waits for others. Writes that "
        "arrive during a commit join the next group in any case.",
    )
    group_service: str | None = option(
        "hoodoo.group.commit.service",
        None,
        "Socket of a committer of this host (hoodoo committer), which commits writes "
        "of many processes in one instant. If it does not answer, the process commits"
        " itself.",
    )
    group_service_wait_ms: Annotated[int, OptionKind.MS, Field(ge=10, le=3_600_000)] = option(
        "hoodoo.group.commit.service.wait.ms",
        60_000,
        "Time without an answer after which the writers of a committer commit "
        "themselves. The committer waits half as long for an answer of a writer.",
    )
    publish_lock: CommitLockMode = option(
        "hoodoo.publish.lock",
        CommitLockMode.LOCK,
        "When a commit takes the lock: always (required if other engines write), "
        "after two lost slots, or never.",
        caller_only=True,
    )
    foreign_writers: ForeignWriters = option(
        "hoodoo.foreign.writers",
        ForeignWriters.NONE,
        "Whether other engines (Java Hudi) also write this table.",
    )
    clustering_updates: ClusteringUpdates | None = option(
        "hoodie.clustering.updates.strategy",
        None,
        "Whether a write into file groups of a pending clustering is rejected, or "
        "allowed and the clustering leaves them out. Unset: allowed, unless other "
        "engines write too.",
    )
    conflict_strategy: str = option(
        "hoodie.write.lock.conflict.resolution.strategy",
        SIMPLE.class_names[0],
        "Which write wins a conflict: simple, bucket, prefer_writer (cancels a "
        "pending clustering that would reject the write), partition (one writer for "
        "each partition at a time), the name of a plug-in, or Hudi's class of the "
        "same meaning.",
    )
    cancel_conflicting_clustering: bool = option(
        "hoodie.clustering.rollback.pending.replacecommit.on.conflict",
        False,
        "Cancel a pending clustering that would reject the write, as with prefer_writer.",
    )
    isolation: Isolation = option(
        "hoodoo.write.isolation.level",
        Isolation.SNAPSHOT,
        "Guarantee for a write with a read set (reads=, a filter, a merge): no concurrent "
        "commit changed the same rows (snapshot), some serial order of the writes "
        "gives the same table (write_serializable), or the commit order does "
        "(serializable).",
    )

    stream_identifier: str = option(
        "hoodie.datasource.write.streaming.checkpoint.identifier",
        "default_single_writer",
        "Name of a stream into the table, by which Java Hudi knows its batches: set one for each "
        "stream that Java may continue.",
    )
    stream_attempts_max: _Positive = option(
        "hoodie.datasource.write.streaming.retry.count",
        3,
        "Number of attempts to write a micro-batch, if a repetition may help.",
    )
    stream_retry_interval_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=86_400_000)] = option(
        "hoodie.datasource.write.streaming.retry.interval.ms",
        2_000,
        "Pause before the second attempt of a micro-batch; each later pause is twice as long.",
    )
    stream_ignores_failed_batch: bool = option(
        "hoodie.datasource.write.streaming.ignore.failed.batch",
        False,
        "Continue a stream after a micro-batch whose attempts all failed; its rows are lost.",
    )
    stream_disables_compaction: bool = option(
        "hoodie.datasource.write.streaming.disable.compaction",
        False,
        "A stream does not compact in the background; a worker or another job does.",
    )
    batch_id: str | None = option(
        "hoodoo.batch.id",
        None,
        "Idempotency id of this batch: a repeated write of it is done once.",
    )
    application_id: str = option(
        "hoodie.write.application.id", "Unknown", "Name of the writing job."
    )
    commit_metadata_prefix: str = option(
        "hoodie.datasource.write.commitmeta.key.prefix",
        "_",
        "Properties with this prefix are written into the commit.",
    )
    extra_metadata: Mapping[str, str] = Field(default_factory=dict)
    durability: Durability = option(
        "hoodoo.storage.durability",
        Durability.STRICT,
        "strict survives a power cut; relaxed lets the system write back later.",
        caller_only=True,
    )
    clock_ahead_ms_max: Annotated[_Positive, OptionKind.MS] = option(
        "hoodoo.clock.max.ahead.ms",
        600_000,
        "Refuse to write if the timeline is further ahead of this clock.",
        caller_only=True,
    )

    @classmethod
    def from_properties(cls, properties: PropertySet | Mapping[str, object]) -> Self:
        """
        Read and check every option of a write.

        Raises:
            SettingError: A text is not accepted, two options contradict each other, or this release
                does not support one (``kind`` ``unsupported_setting``).
        """
        properties = as_property_set(properties)
        refuse_unsupported(properties)
        values, origins = cls.read_all(properties)
        resolve_key_options(properties, values)
        if values.get("insert_drop_duplicates") and "insert_duplicates" not in origins:
            values["insert_duplicates"] = InsertDuplicates.DROP.value
        fill_from_preset(values, origins)
        prefix = values.get("commit_metadata_prefix", cls.options["commit_metadata_prefix"].default)
        values["extra_metadata"] = _extra_metadata(properties, str(prefix))
        return cls(**values, origins=origins)

    @property
    def multi_writer(self) -> bool:
        """Whether other writers are expected at the same time."""
        return self.concurrency_mode is not ConcurrencyMode.SINGLE_WRITER

    @property
    def heartbeat_expiry_ms(self) -> int:
        """Time in ms without an update after which a heartbeat is expired (HB-2)."""
        return self.heartbeat_interval_ms * self.heartbeat_misses

    @property
    def rate_limit(self) -> RateLimit | None:
        """The rate limit of all writers of the table; None for none."""
        if not self.pace_per_minute:
            return None
        rate, burst = self.pace_per_minute, self.pace_burst
        return RateLimit(per_minute=rate, burst=burst, wait_ms_max=self.pace_wait_ms_max)

    @model_validator(mode="before")
    @classmethod
    def _force_lazy(cls, values: Any) -> Any:
        """With many writers the cleaner rolls failed writes back, never the next writer."""
        if isinstance(values, dict) and values.get("failed_writes_policy") is None:
            single = ConcurrencyMode.SINGLE_WRITER
            mode = values.get("concurrency_mode", single)
            many = mode not in (single, single.value)
            policy = FailedWritesPolicy.LAZY if many else FailedWritesPolicy.EAGER
            return {**values, "failed_writes_policy": policy}
        return values

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.table_version not in (8, 9):
            self.refuse(
                "table_version",
                "this release writes table versions 8 and 9 only",
                "use 9, or 8 for readers of hudi 1.0",
                "unsupported_setting",
            )
        if self.multi_writer and self.failed_writes_policy is FailedWritesPolicy.EAGER:
            self.refuse(
                "failed_writes_policy",
                "with several writers the next writer does not distinguish a failed write from a "
                "live one",
                "omit it or use LAZY",
            )
        foreign = self.foreign_writers is ForeignWriters.EXPECTED
        if foreign and self.publish_lock is not CommitLockMode.LOCK:
            self.refuse(
                "publish_lock",
                "writers of other engines are excluded by the lock only, each time (FOR-1)",
                "use lock",
            )
        if foreign and self.clustering_updates is ClusteringUpdates.ALLOW:
            self.refuse(
                "clustering_updates",
                "a clustering of another engine does not validate its input again when it "
                "completes, and would lose the write",
                "leave it out",
            )
        self._refuse_retries()
        rate = self.rate_limit
        if rate is not None and rate.interval_ms > rate.wait_ms_max:
            self.refuse(
                "pace_wait_ms_max",
                "no write would wait long enough for the pace that is asked for",
                f"use at least {round(rate.interval_ms)}",
            )
        self._refuse_non_blocking()
        self.refuse_contradicting_keys()
        return self

    def _refuse_retries(self) -> None:
        if self.commit_retry_base_ms > self.commit_retry_cap_ms:
            self.refuse(
                "commit_retry_base_ms",
                "the first pause between attempts is above the longest one",
                f"use at most {self.commit_retry_cap_ms}",
            )
        for field in ("retry_queue_after", "retry_queue_short_ms"):
            if self.origin(field) == DEFAULT_LAYER or not getattr(self, field):
                continue
            if self.publish_lock is not CommitLockMode.LOCK:
                self.refuse(
                    field,
                    "writers that commit without the lock do not wait for its holder",
                    "use hoodoo.publish.lock=lock on all writers, or omit it",
                )
            if self.foreign_writers is ForeignWriters.EXPECTED:
                self.refuse(
                    field,
                    "another engine's writers give up when the lock is held as long as a write lasts",
                    "leave it out",
                )

    def _refuse_non_blocking(self) -> None:
        """
        Check that a table fits non-blocking writers, before it is opened (NBCC-1).

        Such writers append to one file group without reading each other's commits. So the key alone
        must determine the file group, and they may only add logs: merge-on-read with a bucket index.
        """
        if self.concurrency_mode is not ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL:
            return
        mode = ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL
        instead = f"use {self.options['concurrency_mode'].key}={mode.value}"
        if self.table_type is not TableType.MERGE_ON_READ:
            self.refuse(
                "table_type",
                "non-blocking writers append log files, which only merge-on-read tables have",
                instead,
            )
        if self.index_type is not IndexType.BUCKET:
            self.refuse(
                "index_type",
                "non-blocking writers see no new keys of each other; the key alone must say where",
                f"use BUCKET for a new table, else {instead}",
            )
        if self.change_logs:
            self.refuse(
                "change_logs",
                "the row before a change is unknown while other writers append at the same time",
                instead,
            )


def fill_from_preset(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Set the fields that have no origin to the values of the preset, in place, with origins."""
    name = values.get("retry_preset")
    if name is None:
        return
    for field, value in RETRY_PRESETS[RetryPreset(name)].items():
        if field not in origins:
            values[field] = value
            origins[field] = f"{WriteSettings.options['retry_preset'].key}={name}"


@cache
def keys_of_writes_and_reads() -> frozenset[str]:
    """Return every spelling of an option of writes and reads, in lower case."""
    options = (*WriteSettings.options.values(), *ReadSettings.options.values())
    return frozenset(key.casefold() for one in options for key in one.spellings) | {_TABLE_ID}


def _extra_metadata(properties: PropertySet, prefix: str) -> dict[str, str]:
    """Return the properties to keep in the commit; never an option, never a secret (SEC5)."""
    own = keys_of_writes_and_reads()
    return {
        key: value
        for key, value in (properties.with_prefix(prefix).items() if prefix else ())
        if not (key.casefold() in own or is_key_of_hudi(key)) and redact(key, value) == value
    }

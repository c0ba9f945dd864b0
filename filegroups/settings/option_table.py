"""
The table of options of writes and reads: key, default, aliases, description.

Data only, one entry an option. Settings, documentation and the check of unknown keys read this
table. Keys and defaults are those of Hudi 1.2; a different default is stated in the entry. Keys
that begin with ``hoodoo.`` and the ``hoodie.write.commit.retry.`` family exist in hoodoo only.
"""

from __future__ import annotations

from typing import Final

from filegroups.settings.index_options import INDEX_OPTIONS
from filegroups.settings.key_options import KEY_OPTIONS
from filegroups.settings.rate_limit_options import RATE_LIMIT_OPTIONS
from filegroups.settings.retry_options import RETRY_OPTIONS
from timeline.properties.options import Option, OptionKind
from timeline.properties.setting_enums import ClusteringUpdates, EarlyDetection
from timeline.rules.conflicts import SIMPLE
from timeline.rules.isolation import Isolation

__all__ = ["READ_OPTIONS", "WRITE_OPTIONS"]

_INT, _BOOL, _MS = OptionKind.INT, OptionKind.BOOL, OptionKind.MS
_BYTES, _ENUM, _LIST = OptionKind.BYTES, OptionKind.ENUM, OptionKind.LIST


def _option(
    key: str,
    default: str | None,
    kind: OptionKind,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
) -> Option:
    return Option(key=key, default=default, kind=kind, doc=doc, aliases=aliases, choices=choices)


# By the field of WriteSettings that the option sets.
WRITE_OPTIONS: Final[dict[str, Option]] = {
    # what is written
    "operation": _option(
        "hoodie.datasource.write.operation",
        "upsert",
        _ENUM,
        "What a write does with its rows.",
        choices=(
            "upsert",
            "insert",
            "bulk_insert",
            "delete",
            "insert_overwrite",
            "insert_overwrite_table",
            "delete_partition",
        ),
    ),
    "partitions_to_delete": _option(
        "hoodie.datasource.write.partitions.to.delete",
        None,
        _LIST,
        "Partition paths that delete_partition removes.",
    ),
    "overwritten_partitions": _option(
        "hoodie.static.overwrite.partition.paths",
        None,
        _LIST,
        "Partition paths that insert_overwrite replaces, also where no row is of them.",
    ),
    "overwrite_mode": _option(
        "hoodie.datasource.overwrite.mode",
        None,
        _ENUM,
        "Whether save mode overwrite replaces the table or the partitions it meets.",
        choices=("STATIC", "DYNAMIC"),
    ),
    "combine_before_insert": _option(
        "hoodie.combine.before.insert",
        "false",
        _BOOL,
        "Merge incoming rows of one key before an insert.",
    ),
    "combine_before_upsert": _option(
        "hoodie.combine.before.upsert",
        "true",
        _BOOL,
        "Merge incoming rows of one key before an upsert; false is for batches that bring no key "
        "twice, rows of one that do may all stay in a copy-on-write table, as by Hudi.",
    ),
    "insert_drop_duplicates": _option(
        "hoodie.datasource.write.insert.drop.duplicates",
        "false",
        _BOOL,
        "An insert leaves out rows whose key the table has already.",
    ),
    "insert_duplicates": _option(
        "hoodie.datasource.insert.dup.policy",
        "none",
        _ENUM,
        "What an insert does with keys the table has: keep both, drop the new row, fail.",
        choices=("none", "drop", "fail"),
    ),
    "allow_duplicates_on_inserts": _option(
        "hoodie.merge.allow.duplicate.on.inserts",
        "true",
        _BOOL,
        "An insert that fills a small file keeps rows of equal keys apart.",
    ),
    # the table
    "table_name": _option(
        "hoodie.table.name",
        None,
        OptionKind.TEXT,
        "Name of the table.",
        aliases=("hoodie.datasource.write.table.name",),
    ),
    "database": _option(
        "hoodie.database.name",
        None,
        OptionKind.TEXT,
        "Database of the table, for catalogs; a table made without it says default, which any writer may write to.",
    ),
    "table_type": _option(
        "hoodie.datasource.write.table.type",
        "COPY_ON_WRITE",
        _ENUM,
        "How updates are stored.",
        aliases=("hoodie.table.type", "hoodie.datasource.write.storage.type"),
        choices=("COPY_ON_WRITE", "MERGE_ON_READ"),
    ),
    "table_version": _option(
        "hoodie.write.table.version",
        "9",
        _INT,
        "Version of the files on disk: 9, or 8 for readers of Hudi 1.0.",
        aliases=("hoodie.table.version",),
    ),
    "timeline_zone": _option(
        "hoodie.table.timeline.timezone",
        "UTC",
        _ENUM,
        "Zone of a new table's instant times: UTC, the same on every machine, or (Hudi) LOCAL, each "
        "process's TZ.",
        choices=("UTC", "LOCAL"),
    ),
    **KEY_OPTIONS,
    "metadata_enable": _option(
        "hoodie.metadata.enable",
        None,
        _BOOL,
        "Ours is off (Hudi: on); false said explicitly also switches an existing one off.",
    ),
    # schema
    "schema_reconcile": _option(
        "hoodie.datasource.write.reconcile.schema",
        "false",
        _BOOL,
        "The same as hoodie.write.set.null.for.missing.columns.",
    ),
    "schema_validate": _option(
        "hoodie.avro.schema.validate",
        "false",
        _BOOL,
        "Check the incoming schema against the table's even when nothing changed.",
    ),
    "set_null_for_missing_columns": _option(
        "hoodie.write.set.null.for.missing.columns",
        "false",
        _BOOL,
        "Columns that the incoming rows lack are filled with nulls; else such rows are refused.",
    ),
    "drop_missing_columns": _option(
        "hoodie.datasource.write.schema.allow.auto.evolution.column.drop",
        "false",
        _BOOL,
        "Columns that the incoming rows lack leave the table, but for keys and ordering fields.",
    ),
    # files
    "parquet_file_bytes_max": _option(
        "hoodie.parquet.max.file.size", "125829120", _BYTES, "Base files grow to about this size."
    ),
    "small_file_bytes_max": _option(
        "hoodie.parquet.small.file.limit",
        "104857600",
        _BYTES,
        "Base files below this size take new rows; 0 never fills a file.",
    ),
    "small_files_max": _option(
        "hoodie.merge.small.file.group.candidates.limit",
        "1",
        _INT,
        "How many small file groups one write task fills.",
    ),
    "record_size_bytes": _option(
        "hoodie.copyonwrite.record.size.estimate",
        "1024",
        _BYTES,
        "Assumed size of a row until a commit shows the real one.",
    ),
    "insert_split_rows": _option(
        "hoodie.copyonwrite.insert.split.size",
        "500000",
        _INT,
        "Rows of a new file when sizes are not computed.",
    ),
    "insert_auto_split": _option(
        "hoodie.copyonwrite.insert.auto.split",
        "true",
        _BOOL,
        "Compute the rows of a new file from earlier commits.",
    ),
    "parquet_row_group_bytes": _option(
        "hoodie.parquet.block.size", "125829120", _BYTES, "Size of a row group."
    ),
    "parquet_page_bytes": _option("hoodie.parquet.page.size", "1048576", _BYTES, "Size of a page."),
    "parquet_compression": _option(
        "hoodie.parquet.compression.codec",
        "snappy",
        _ENUM,
        "Compression of base files (Hudi: gzip; snappy writes several times faster).",
        choices=("gzip", "snappy", "zstd", "lz4", "lz4_raw", "brotli", "uncompressed", "none"),
    ),
    "parquet_dictionary": _option(
        "hoodie.parquet.dictionary.enabled", "true", _BOOL, "Dictionary-encode columns."
    ),
    "log_format": _option(
        "hoodie.logfile.data.block.format",
        None,
        _ENUM,
        "What the blocks of log files hold; when not said, avro where an ordering field is a text "
        "(queries of Java Hudi show older rows of such parquet blocks), else parquet (Hudi: avro).",
        choices=("parquet", "avro"),
    ),
    "log_file_bytes_max": _option(
        "hoodie.logfile.max.size",
        "1073741824",
        _BYTES,
        "A log file that would grow beyond this size gets a successor.",
    ),
    "log_block_bytes_max": _option(
        "hoodie.logfile.data.block.max.size",
        "268435456",
        _BYTES,
        "Most bytes of rows, before compression, in one block of a log file.",
    ),
    "shuffle_tasks": _option(
        "hoodie.upsert.shuffle.parallelism",
        "0",
        _INT,
        "Tasks of a write on Spark; 0 lets the engine choose.",
    ),
    # index and bloom filters
    **INDEX_OPTIONS,
    # many writers
    "concurrency_mode": _option(
        "hoodie.write.concurrency.mode",
        "SINGLE_WRITER",
        _ENUM,
        "One writer, or many with conflicts found at publication.",
        choices=(
            "SINGLE_WRITER",
            "OPTIMISTIC_CONCURRENCY_CONTROL",
            "NON_BLOCKING_CONCURRENCY_CONTROL",
        ),
    ),
    "failed_writes_policy": _option(
        "hoodie.clean.failed.writes.policy",
        None,
        _ENUM,
        "Who undoes failed writes: the next writer, the cleaner, nobody.",
        aliases=("hoodie.cleaner.policy.failed.writes",),
        choices=("EAGER", "LAZY", "NEVER"),
    ),
    "early_conflict_detection": _option(
        "hoodie.write.concurrency.early.conflict.detection.enable",
        "true",
        _BOOL,
        "Look for conflicts before files are written; ours is on (Hudi: off).",
    ),
    "early_detection": _option(
        "hoodie.write.concurrency.early.conflict.detection.strategy",
        EarlyDetection.PUBLISHED.value,
        _ENUM,
        "What is looked at before files are written: what others published meanwhile (published), "
        "or also what living writers that began before have announced (announced): then a write waits "
        "for them, or is refused when it may not be retried. Hudi's classes mean announced.",
        choices=tuple(each.value for each in EarlyDetection),
    ),
    "heartbeat_interval_ms": _option(
        "hoodie.client.heartbeat.interval_in_ms",
        "60000",
        _MS,
        "Time between two signs of life of a write.",
    ),
    "heartbeat_misses": _option(
        "hoodie.client.heartbeat.tolerable.misses",
        "2",
        _INT,
        "Missed signs of life after which others take a write for dead.",
    ),
    **RETRY_OPTIONS,
    **RATE_LIMIT_OPTIONS,
    "group_writes_max": _option(
        "hoodoo.group.commit.max.writes",
        "1",
        _INT,
        "Most writes of this process's threads that one instant publishes together; 1: none do.",
    ),
    "group_linger_ms": _option(
        "hoodoo.group.commit.linger.ms",
        "0",
        _MS,
        "How long the first write of a group waits for others; writes that come while another "
        "is published are waited for in any case.",
    ),
    "group_service": _option(
        "hoodoo.group.commit.service",
        None,
        OptionKind.TEXT,
        "Socket of a committer of this host (hoodoo committer), which publishes the writes of many "
        "processes together; a process whose committer is not there publishes by itself.",
    ),
    "group_service_wait_ms": _option(
        "hoodoo.group.commit.service.wait.ms",
        "60000",
        _MS,
        "How long a committer may be silent before its writers publish by themselves; it waits "
        "half as long for the answer of one writer.",
    ),
    "publish_lock": _option(
        "hoodoo.publish.lock",
        "lock",
        _ENUM,
        "When publishing takes the lock: always (a must beside other engines), after two lost slots, or never.",
        choices=("lock", "auto", "none"),
    ),
    "foreign_writers": _option(
        "hoodoo.foreign.writers",
        "none",
        _ENUM,
        "Whether other engines (Java Hudi) write this table too (FOR-1).",
        choices=("none", "expected"),
    ),
    "clustering_updates": _option(
        "hoodie.clustering.updates.strategy",
        None,
        _ENUM,
        "What a write into file groups of a pending clustering does: it is refused, or allowed "
        "and the clustering leaves them out. Unset: allowed, unless other engines write too.",
        choices=tuple(updates.value for updates in ClusteringUpdates),
    ),
    "conflict_strategy": _option(
        "hoodie.write.lock.conflict.resolution.strategy",
        SIMPLE.class_names[0],
        OptionKind.TEXT,
        "Who yields where both may: simple, bucket, prefer_writer (a pending clustering that would "
        "refuse a write is cancelled), partition (one writer a partition at a time), the name of "
        "a plug-in's, or Hudi's class of the same meaning.",
    ),
    "cancel_met_clustering": _option(
        "hoodie.clustering.rollback.pending.replacecommit.on.conflict",
        "false",
        _BOOL,
        "A pending clustering that would refuse a write is cancelled by the writer, as with "
        "prefer_writer.",
    ),
    "isolation": _option(
        "hoodoo.write.isolation.level",
        Isolation.SNAPSHOT.value,
        _ENUM,
        "What a write is promised that tells what it was made from (reads=, delete_where): nobody "
        "changed what it changes (snapshot), some serial order of the writes gives the same table "
        "(write_serializable), or the order of publication does (serializable).",
        choices=tuple(level.value for level in Isolation),
    ),
    # identity and safety
    "batch_id": _option(
        "hoodoo.batch.id",
        None,
        OptionKind.TEXT,
        "Name of this batch: a repeated write of it is done once.",
    ),
    "application_id": _option(
        "hoodie.write.application.id", "Unknown", OptionKind.TEXT, "Name of the writing job."
    ),
    "commit_metadata_prefix": _option(
        "hoodie.datasource.write.commitmeta.key.prefix",
        "_",
        OptionKind.TEXT,
        "Properties with this prefix are written into the commit.",
    ),
    "durability": _option(
        "hoodoo.storage.durability",
        "strict",
        _ENUM,
        "strict survives a power cut; relaxed leaves writing back to the system (LOC-2).",
        choices=("strict", "relaxed"),
    ),
    "clock_ahead_ms_max": _option(
        "hoodoo.clock.max.ahead.ms",
        "600000",
        _MS,
        "A timeline further ahead of this clock is not written to (TL-SUCC-2).",
    ),
    "timeline_instants_max": _option(
        "hoodoo.limits.timeline.instants.max",
        "1000000",
        _INT,
        "A timeline of more instants is refused (SEC14).",
    ),
    "metadata_bytes_max": _option(
        "hoodoo.limits.metadata.bytes.max",
        "268435456",
        _BYTES,
        "A larger file of the timeline is refused (SEC14).",
    ),
    "plan_files_max": _option(
        "hoodoo.limits.plan.files.max",
        "10000000",
        _INT,
        "A plan that names more files is refused (SEC14).",
    ),
}

# By the field of ReadSettings that the option sets.
READ_OPTIONS: Final[dict[str, Option]] = {
    "query_type": _option(
        "hoodie.datasource.query.type",
        "snapshot",
        _ENUM,
        "The whole table, only its base files, or what changed in a range.",
        aliases=("hoodie.datasource.view.type",),
        choices=("snapshot", "read_optimized", "incremental"),
    ),
    "incremental_format": _option(
        "hoodie.datasource.query.incremental.format",
        "latest_state",
        _ENUM,
        "Rows as they are at the end of the range, or each change.",
        choices=("latest_state", "cdc"),
    ),
    "as_of": _option(
        "as.of.instant", None, OptionKind.TEXT, "Read the table as it was at this time."
    ),
    "begin_time": _option(
        "hoodie.datasource.read.begin.instanttime",
        None,
        OptionKind.TEXT,
        "Start of the range, not part of it.",
    ),
    "end_time": _option(
        "hoodie.datasource.read.end.instanttime",
        None,
        OptionKind.TEXT,
        "End of the range, part of it; now when not said.",
    ),
    "start_offset": _option(
        "hoodie.datasource.streaming.startOffset",
        "earliest",
        OptionKind.TEXT,
        "Where a stream begins: earliest, latest (what comes from now on), or a time, which is no "
        "part of it.",
    ),
    "schema_of_end_time": _option(
        "hoodie.datasource.read.schema.use.end.instanttime",
        "false",
        _BOOL,
        "Use the schema at the end of the range instead of the newest.",
    ),
    "reader_lease_ms": _option(
        "hoodoo.reader.lease.ms",
        "900000",
        _MS,
        "Cleaning leaves a snapshot's files alone for so long after a long read's last sign of "
        "use; 0 for no leases.",
    ),
    "timeline_instants_max": WRITE_OPTIONS["timeline_instants_max"],
    "metadata_bytes_max": WRITE_OPTIONS["metadata_bytes_max"],
}

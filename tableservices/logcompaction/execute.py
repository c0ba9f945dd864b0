"""Log compaction: its settings, its plan, its execution and the service around them (LC-1)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from filegroups.files.append import block_format
from filegroups.files.avro_columns import encode_records
from filegroups.files.delete_block import encode_deletes
from filegroups.files.log_files import LogRead, VisibleInstants, find_blocks, read_logs
from filegroups.files.parquet import parquet_bytes
from filegroups.files.parquet_layout import ParquetSettings
from filegroups.merge.merging import ChangeKind, Changes
from filegroups.merge.rules import ordering_column
from filegroups.reading.scan import plan_scan, view_of
from filegroups.schema.column_ids import refuse_renamed
from filegroups.schema.schema import KEY_COLUMN, TableSchema, avro_with_meta, with_meta
from filegroups.supported import load_writable
from filegroups.writing.write_request import FileRules
from tableservices.compaction.plan import execute_leased, log_figures, operations_of
from tableservices.plan_execution import (
    commit_metadata,
    complete,
    discard_output,
    make_inflight,
    on_file_groups,
)
from tableservices.planned_service import Phase, PlannedServiceSettings, run_round
from tableservices.service import ServiceResult, schedule
from timeline.codecs.instant_avro import encode_compaction_plan
from timeline.codecs.log_blocks import BlockType, HeaderKey, LogBlock, block_frame
from timeline.commit.cancel_plan import PlanOutcome, cancel_pending_plan
from timeline.commit.commit_lock import CommitSection
from timeline.commit.markers import create_marker
from timeline.context import TableContext
from timeline.errors import MissingFileError, UnsupportedTableError, counted
from timeline.heartbeat import Heartbeat
from timeline.model.commit_metadata import (
    Access,
    FileGroupId,
    MergeMode,
    TableType,
    WriteStat,
    write_set_of,
)
from timeline.model.file_names import IOType, LogFileName, join, pending_file_names
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CompactionOperation, CompactionPlan, PlanCompactionStrategy
from timeline.model.slot import plan_version_entry
from timeline.pending_plans import (
    file_groups_in_clustering,
    file_groups_in_plans,
    pending_compactions,
)
from timeline.ports.ports import Ports, create_if_absent
from timeline.properties.options import option
from timeline.properties.setting_enums import LogFormat
from timeline.snapshot import ActiveTimeline, Snapshot

# ---- Settings of log compaction, read from ``hoodie.log.compaction.*`` keys


class LogCompactionSettings(PlannedServiceSettings):
    """All settings of log compaction."""

    enabled: bool = option(
        "hoodie.log.compaction.enable",
        False,
        "Merge log files of a file slice into one log file, if compaction into base "
        "files is too rare.",
    )
    inline: bool = option(
        "hoodie.log.compaction.inline",
        False,
        "Plan a log compaction after a commit if one is due, and execute it.",
    )
    blocks_min: Annotated[int, Field(ge=2, le=1_000_000)] = option(
        "hoodie.log.compaction.blocks.threshold",
        5,
        "Number of log blocks of a file slice, and of delta commits, from which a log"
        " compaction is due.",
    )


# ---- Which log files a log compaction merges: pure, in the form of Java Hudi
#
# Only log files older than every pending write are taken. A writer that began in between and
# completes later has its position between them, in the order of requested times (fmt 5.7). One file
# cannot be both before and after it (NBCC-5).

_HELPER = "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper"


def is_due(timeline: ActiveTimeline, commits_min: int) -> bool:
    """Return whether enough delta commits completed since the last compaction of either kind."""
    return delta_commits_since(timeline) >= commits_min


def delta_commits_since(timeline: ActiveTimeline) -> int:
    """Return the number of delta commits that completed since the last compaction of either kind."""
    since = max(
        (one.requested_time for one in timeline.completed_writes if _compacts(timeline, one)),
        default="",
    )
    return sum(
        1
        for one in timeline.completed_writes
        if one.action is Action.DELTACOMMIT
        and not _compacts(timeline, one)
        and (one.completion_time or "") > since
    )


def _compacts(timeline: ActiveTimeline, one: Instant) -> bool:
    """Return whether an instant compacts; the requested file identifies a log compaction."""
    requested = pending_file_names(Action.LOGCOMPACTION, one.requested_time)[-1]
    return one.action is Action.COMMIT or requested in timeline.file_names


def candidates(
    slices: Iterable[FileSlice],
    busy: Container[FileGroupId],
    *,
    oldest_pending: InstantTime | None,
) -> list[FileSlice]:
    """Return slices that no other plan owns, each with at least two log files to merge."""
    found = []
    for one in slices:
        logs = tuple(
            log
            for log in one.log_files
            if oldest_pending is None or log.instant_time < oldest_pending
        )
        if len(logs) > 1 and one.file_group not in busy:
            found.append(replace(one, log_files=logs))
    return found


def log_compaction_plan(slices: Iterable[FileSlice]) -> CompactionPlan | None:
    """Return the content of a requested log compaction; None for no slices."""
    operations: list[CompactionOperation] = operations_of(slices, (), new_file_bytes=0)
    if not operations:
        return None
    return CompactionPlan(
        operations=tuple(operations),
        extra_metadata=plan_version_entry(Action.LOGCOMPACTION),
        strategy=PlanCompactionStrategy(compactor_class_name=_HELPER),
        preserve_hoodie_metadata=True,
    )


# ---- Log compaction as a service: inline after a commit, or in rounds of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionService:
    """Log compaction of merge-on-read tables; schedules only where it is switched on."""

    settings: LogCompactionSettings
    files: FileRules
    phase: Phase = Phase.BOTH
    name: str = "logcompact"
    action: Action = Action.LOGCOMPACTION

    @property
    def runs_inline(self) -> bool:
        """Return ``hoodie.log.compaction.inline``."""
        return self.settings.inline

    @property
    def runs_in_background(self) -> bool:
        """Return False: Hudi has no key for it."""
        return False

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Run one round; errors as ``run_round``."""
        if context.config.table_type is not TableType.MERGE_ON_READ:
            return None
        return run_round(context, self, self.phase, expiry_ms=self.settings.expiry_ms)

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:  # noqa: ARG002
        """Apply the settings."""
        wanted = self.settings.enabled or self.settings.inline
        return wanted and is_due(timeline, self.settings.blocks_min)

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the file groups, log files and bytes of a plan made now."""
        snapshot = context.snapshot()
        plan = plan_log_compaction(context, snapshot, self.settings)
        return {"due": self.is_due(context, snapshot.active), **log_figures(plan)}

    def schedule(self, context: TableContext) -> Instant | None:
        """Schedule a plan; errors as ``schedule_log_compaction``."""
        return schedule_log_compaction(context, self.settings)

    def execute(self, context: TableContext, planned: Instant) -> LogCompactionResult | None:
        """Execute a plan; errors as ``execute_log_compaction``."""
        return execute_log_compaction(context, planned, self.files)


# ---- Merge the log files of one slice into one whose name follows from the plan (LC-1)
#
# The new log file lists the instants that it replaces. Readers skip their blocks and read it at the
# position of the newest of them (fmt 5.7). The storage creates it whole or not at all, like the
# base files of a compaction (CMP-2).


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionTask:
    """The log files of a slice, how to read them, and the log file to write."""

    slice: FileSlice
    read: LogRead
    requested_time: InstantTime
    number: int  # position in the plan: the write token
    avro_json: str
    format: LogFormat
    parquet: ParquetSettings

    @property
    def file_name(self) -> str:
        """Return the file name, which follows from the plan."""
        token = f"{self.number}-0-0"
        return LogFileName(self.slice.file_group.file_id, self.requested_time, 1, token).text


def merge_slice_logs(ports: Ports, task: LogCompactionTask) -> WriteStat | None:
    """
    Merge the log files of one slice and write the new one; return None if none counts.

    Raises:
        MissingFileError: A log file is missing; cancel the plan.
        CorruptTableError: A log file is damaged.
        UnsupportedTableError: The log files have partial updates.
        StorageUnavailableError: The storage failed; run the plan again.

    Outside: 2 open_input for each log, 1 create (marker), 1 create; 1 stat where an earlier
    executor had written it.
    """
    storage, logs = ports.storage, task.slice.log_files
    blocks = find_blocks(storage, logs, task.read.visible)
    if any(block.is_partial for block in blocks):
        raise UnsupportedTableError(
            "this release does not merge log files with partial updates: cancel the plan with "
            f"'hoodoo services cancel TABLE INSTANT', then compact: {task.slice.file_group}",
            kind="partial_blocks",
        )
    changes = read_logs(storage, ports.events, logs, task.read)
    if changes is None:
        return None
    records, deletes = _split(changes, task.read)
    data = b"".join(_blocks(task, blocks, records, deletes))
    partition_path = task.slice.file_group.partition_path
    path = join(partition_path, task.file_name)
    create_marker(storage, task.requested_time, partition_path, task.file_name, IOType.CREATE)
    size_bytes = len(data)
    if not create_if_absent(storage, path, data, repeat="run the service again"):
        found = storage.stat(path)
        size_bytes = found.size_bytes if found is not None else size_bytes
    return WriteStat(
        file_id=task.slice.file_group.file_id,
        path=path,
        prev_commit=task.requested_time,  # as Java's: a log has no earlier version
        partition_path=partition_path,
        num_writes=records.num_rows,
        num_update_writes=records.num_rows,
        num_deletes=deletes.num_rows,
        total_write_bytes=size_bytes,
        file_size_in_bytes=size_bytes,
        log_version=1,
        log_offset=0,
        base_file="",
        log_files=(task.file_name,),
        total_log_records=changes.rows.num_rows,
        total_updated_records_compacted=changes.rows.num_rows,
        total_log_blocks=len(blocks),
        total_log_files_compacted=len(logs),
        total_log_size_compacted=sum(log.size_bytes for log in logs),
    )


def _split(changes: Changes, read: LogRead) -> tuple[pa.Table, pa.Table]:
    """
    Split changes into records, also those marked as deleted by their content, and deletes.

    A delete that is effective by commit time has no ordering value.
    """
    rules = read.rules
    of_block = (changes.kinds != ChangeKind.RECORD) & ~rules.deletes(changes.rows)
    records = changes.rows.filter(pa.array(~of_block)).select(read.schema.names)
    gone = changes.rows.filter(pa.array(of_block))
    by_commit_time = pa.array(changes.kinds[of_block] == ChangeKind.COMMIT_TIME_DELETE)
    names = rules.ordering_fields if rules.reads_order else ()
    columns = []
    for name in names:
        values = ordering_column(gone, name)
        nothing = pa.scalar(None, values.type)
        columns.append(pc.if_else(by_commit_time, nothing, values))
    return records, pa.table([gone.column(KEY_COLUMN), *columns], names=[KEY_COLUMN, *names])


def _blocks(
    task: LogCompactionTask, blocks: tuple[LogBlock, ...], records: pa.Table, deletes: pa.Table
) -> list[bytes]:
    """Return the new log file's bytes, block by block: records, then deletes."""
    avro_json = avro_with_meta(task.avro_json)
    newest_first = dict.fromkeys(block.instant_time for block in reversed(blocks))
    header: dict[int, str] = {
        HeaderKey.INSTANT_TIME: task.requested_time,
        HeaderKey.SCHEMA: avro_json,
        HeaderKey.COMPACTED_BLOCK_TIMES: ",".join(newest_first),
    }
    pieces: list[bytes] = []
    if records.num_rows:
        kind, content = BlockType.PARQUET_DATA, b""
        if task.format is LogFormat.PARQUET:
            content = parquet_bytes(records, task.avro_json, task.parquet)
        else:
            plain = with_meta(TableSchema.from_avro(task.avro_json).arrow)
            kind, content = BlockType.AVRO_DATA, encode_records(records.cast(plain), avro_json)
        head, tail = block_frame(kind, header, len(content))
        pieces += [head, content, tail]
    if deletes.num_rows:
        columns = deletes.columns[1:]
        unordered = None
        if columns:
            missing = np.logical_or.reduce([np.asarray(pc.is_null(each)) for each in columns])
            unordered = pa.array(missing) if missing.any() else None
        content = encode_deletes(
            deletes.column(KEY_COLUMN),
            task.slice.file_group.partition_path,
            columns,
            is_commit_time=unordered,
        )
        head, tail = block_frame(BlockType.DELETE, header, len(content))
        pieces += [head, content, tail]
    return pieces


# ---- Log compaction from its plan to its delta commit (LC-1)
#
# Unlike a compaction it can be rejected: if the file group got a new base file meanwhile, that has
# newer rows, and the new log file with older ones would be on top of it. So its last check lists
# the changes since its plan. If there are others than further log files, the plan is cancelled.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionResult:
    """The result of one log compaction; times are instant times, sizes bytes."""

    requested_time: InstantTime
    completion_time: InstantTime
    file_groups: int
    log_files: int
    bytes_written: int

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"merged {counted(self.log_files, 'log file')} of "
            f"{counted(self.file_groups, 'file group')} ({self.bytes_written} bytes)"
        )


def plan_log_compaction(
    context: TableContext, snapshot: Snapshot, settings: LogCompactionSettings
) -> CompactionPlan | None:
    """
    Return the plan of a log compaction of this snapshot; None when there is nothing to merge.

    Outside: 1 list per partition, 1 get per pending plan, 1 open_input for each log file; where one
    is missing 1 snapshot and 1 list.

    Raises:
        MissingFileError: A log file is missing, although no restore removed it and no other slice
            replaced its own.
    """
    oldest = min((one.requested_time for one in snapshot.active.pending_ingestion), default=None)
    found = candidates(
        view_of(context, snapshot).latest_slices(),
        file_groups_in_plans(context, snapshot.active),
        oldest_pending=oldest,
    )
    visible = VisibleInstants.of(snapshot)
    worth = []
    for one in found:
        try:
            blocks = find_blocks(context.ports.storage, one.log_files, visible)
        except MissingFileError:
            if not _is_over(context, one):
                raise
            continue  # compacted and cleaned since it was listed, or restored away
        partial_blocks = any(block.is_partial for block in blocks)
        if len(blocks) >= settings.blocks_min and not partial_blocks:
            worth.append(one)
    return log_compaction_plan(worth)


def _is_over(context: TableContext, seen: FileSlice) -> bool:
    """
    Return whether a newer slice or another file group has replaced a slice.

    Also return True if a restore removed one of its log files; a restore hides instants before it
    deletes their data (RST-1).
    """
    snapshot = context.snapshot()
    visible = VisibleInstants.of(snapshot)
    if seen.file_group in snapshot.replaced:
        return True
    if any(log.instant_time not in visible for log in seen.log_files):
        return True
    newest = view_of(context, snapshot).latest_slice(seen.file_group)
    return newest is not None and newest.base_instant_time > seen.base_instant_time


def schedule_log_compaction(
    context: TableContext, settings: LogCompactionSettings
) -> Instant | None:
    """
    Commit a plan; return None when there is nothing to merge.

    Calls outside and errors: as ``plan_log_compaction`` and ``schedule``.

    Raises:
        UnsupportedTableError: The table has no log files, has partial updates or cannot be written.
        MetadataTableOnError: Its metadata table has a partition that cannot be maintained.
    """
    _refuse(context)

    def build(snapshot: Snapshot) -> bytes | None:
        plan = plan_log_compaction(context, snapshot, settings)
        return None if plan is None else encode_compaction_plan(plan)

    return schedule(context, Action.LOGCOMPACTION, build)


def execute_log_compaction(
    context: TableContext, planned: Instant, files: FileRules
) -> LogCompactionResult | None:
    """
    Execute a pending log compaction, or cancel it when it is no longer valid (LC-1).

    Outside: 2 gets, the lease, 1 create (inflight), 1 list per partition, those of
    ``merge_slice_logs`` for each slice, those of ``complete``.

    Args:
        context: The table.
        planned: The pending instant, of this engine or of Java Hudi.
        files: How to write log files.

    Returns:
        None when another executor has it, or it has ended otherwise.

    Raises:
        As ``tableservices.compaction.execute.execute_compaction``.
    """
    _refuse(context)
    return execute_leased(context, planned, partial(_execute, context, planned, files))


def _execute(
    context: TableContext,
    planned: Instant,
    files: FileRules,
    slices: list[FileSlice],
    heartbeat: Heartbeat,
) -> LogCompactionResult | None:
    groups = frozenset(one.file_group for one in slices)
    snapshot = context.snapshot()
    if not _is_still_valid(context, planned, groups, snapshot.active):
        cancel_pending_plan(context, planned)
        return None
    make_inflight(context, planned)
    tasks = _tasks(context, snapshot, planned, slices, files)
    made = on_file_groups(context.ports, merge_slice_logs, tasks)
    stats = [one for one in made if one is not None]
    avro_json = tasks[0].avro_json if tasks else None
    ids = snapshot.newest_internal_schema_json
    metadata = commit_metadata(context, "LOG_COMPACT", stats, avro_json, ids)

    def check(section: CommitSection) -> bool:
        return _is_still_valid(context, planned, groups, section.timeline)

    outcome = complete(
        context,
        planned,
        metadata,
        write_set=write_set_of(metadata),
        heartbeat=heartbeat,
        check=check,
    )
    if outcome is PlanOutcome.REJECTED:
        cancel_pending_plan(context, planned)
        outcome = PlanOutcome.CANCELLED
    if isinstance(outcome, PlanOutcome):
        discard_output(context, planned, outcome, heartbeat)
        return None
    return LogCompactionResult(
        requested_time=planned.requested_time,
        completion_time=outcome.completion_time,
        file_groups=len(stats),
        log_files=sum(stat.total_log_files_compacted for stat in stats),
        bytes_written=sum(stat.total_write_bytes for stat in stats),
    )


def _is_still_valid(
    context: TableContext,
    planned: Instant,
    groups: frozenset[FileGroupId],
    timeline: ActiveTimeline,
) -> bool:
    """
    Return whether the file groups only got log files since the plan, and no other plan.

    Outside: 1 get per pending plan, and per commit that was not read before.
    """
    planned_else = set(file_groups_in_clustering(context, timeline))
    planned_else.update(pending_compactions(context, timeline))
    if planned_else & groups:
        return False
    for one in timeline.completed_writes:
        if (one.completion_time or "") <= planned.requested_time:
            continue
        for item in write_set_of(context.commits.read(one)).file_groups:
            if item.file_group in groups and item.access is not Access.LOG:
                return False
    return True


def _refuse(context: TableContext) -> None:
    config = load_writable(context)
    if config.table_type is not TableType.MERGE_ON_READ:
        raise UnsupportedTableError(
            "only merge-on-read tables have logs to merge, and this one is copy-on-write: omit "
            "log compaction",
            kind="no_logs",
        )
    if config.merge.updates_partially or config.merge.mode is MergeMode.CUSTOM:
        raise UnsupportedTableError(
            "the logs of this table cannot be merged without their base file, because its "
            "records are merged value by value: compact the table instead",
            kind="partial_updates",
        )


def _tasks(
    context: TableContext,
    snapshot: Snapshot,
    planned: Instant,
    slices: Sequence[FileSlice],
    files: FileRules,
) -> list[LogCompactionTask]:
    scan = plan_scan(context, snapshot, slices, with_hoodie_columns=True).read
    refuse_renamed(scan.history, planned.requested_time)
    text = snapshot.newest_schema_json or context.config.create_schema_json or ""
    schema = TableSchema.from_avro(text)
    read = LogRead(
        schema=with_meta(schema.arrow),
        rules=scan.rules,
        visible=scan.visible,
        keys=scan.keys,
        history=scan.history,
    )
    return [
        LogCompactionTask(
            slice=one,
            read=read,
            requested_time=planned.requested_time,
            number=number,
            avro_json=schema.avro_json,
            format=block_format(files.logs, scan.rules, schema.arrow),
            parquet=files.parquet,
        )
        for number, one in enumerate(slices)
    ]

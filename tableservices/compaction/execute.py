"""Execute a compaction plan: merge each file slice into a base file (CMP-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from filegroups.files.parquet import base_file_bytes, read_base_file, read_footer
from filegroups.files.rewrite import (
    FileGroupTask,
    base_file_stat,
    bloom_for,
    create_partition_metadata,
    full_rows,
)
from filegroups.files.slice_reader import SliceRead, merge_slice
from filegroups.merge.merging import MergeOutcome, append_rows
from filegroups.reading.scan import plan_scan, view_of
from filegroups.schema.column_ids import refuse_renamed
from filegroups.schema.schema import META_COLUMNS, TableSchema, with_meta
from filegroups.supported import load_writable
from filegroups.writing.write_request import FileRules
from tableservices.compaction.plan import (
    CompactionOrder,
    CompactionSettings,
    CompactionTrigger,
    choose,
    compaction_plan,
    execute_leased,
    log_figures,
    operations_of,
)
from tableservices.plan_execution import (
    commit_metadata,
    complete,
    discard_output,
    make_inflight,
    on_file_groups,
)
from tableservices.planned_service import Phase, run_round
from tableservices.service import ServiceResult, schedule
from timeline.codecs.instant_avro import encode_compaction_plan
from timeline.commit.apply import data_files_of
from timeline.commit.cancel_plan import PlanOutcome
from timeline.commit.commit import CommittedWrite
from timeline.commit.markers import create_marker
from timeline.context import TableContext
from timeline.errors import StorageUnavailableError, UnsupportedTableError, counted
from timeline.heartbeat import Heartbeat
from timeline.model.commit_metadata import (
    CommitMetadata,
    RuntimeStats,
    TableType,
    WriteOperation,
    WriteStat,
    write_set_of,
)
from timeline.model.file_names import IOType, join, parse_base_file_name
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import UTC_ZONE, InstantTime, TimelineZone, WallMs
from timeline.model.plans import CompactionPlan
from timeline.pending_plans import file_groups_in_plans
from timeline.ports.ports import Ports, create_if_absent
from timeline.snapshot import ActiveTimeline, Snapshot

# ---- Compact one file group into a base file whose name follows from the plan
#
# The storage creates the file whole or not at all, because two executors may work on one plan, for
# example after the heartbeat of a live one expired. The first one creates the file, the other one
# adopts it (CMP-2). So a plan never leaves two base files of one instant in a file group, and never
# part of a file.

_MERGED_APART = META_COLUMNS[3:]  # equal in all rows of a file: written again, not merged


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """A slice, how to read it, and the base file to write."""

    slice: FileSlice
    read: SliceRead
    target: FileGroupTask


def compact_file_group(ports: Ports, task: CompactionTask) -> WriteStat:
    """
    Merge one slice and write its base file, unless an earlier executor did.

    Holds in memory the file group, and the bytes of its new file.

    Raises:
        MissingFileError: A file of the slice is missing; cancel the plan.
        CorruptTableError: A file of the slice is damaged or does not fit the schema.
        UnsupportedTableError: A log file has blocks of an unsupported kind.
        StorageUnavailableError: The storage failed; run the plan again.

    Outside: 1 stat; then the reads of the slice and its footer, 1 create (marker; for a file group
    without a base file also a stat of the partition's metadata) and 1 create.
    """
    storage, target = ports.storage, task.target
    path = join(target.partition_path, target.file_name)
    if storage.stat(path) is not None:
        return _adopted(ports, task, path)
    started = ports.clock.monotonic_ms()
    outcome = _merged(ports, task)
    read_ms = ports.clock.monotonic_ms() - started
    schema = TableSchema.from_avro(target.avro_json).arrow
    data = base_file_bytes(
        full_rows(outcome.table, target, schema, target.file_name),
        avro_json=target.avro_json,
        bloom=bloom_for(storage, target, outcome),
        settings=target.parquet,
    )
    if target.base_path is None:
        create_partition_metadata(storage, target.partition_path, target.requested_time)
    io_type = IOType.CREATE if target.base_path is None else IOType.MERGE
    create_marker(storage, target.requested_time, target.partition_path, target.file_name, io_type)
    if not create_if_absent(storage, path, data, repeat="run the service again"):
        return _adopted(ports, task, path)
    taken = RuntimeStats(
        total_scan_time=read_ms, total_upsert_time=ports.clock.monotonic_ms() - started
    )
    return replace(_stat(task, path, outcome, len(data)), runtime_stats=taken)


def _merged(ports: Ports, task: CompactionTask) -> MergeOutcome:
    names = [name for name in task.read.file_schema.names if name not in _MERGED_APART]
    read = replace(task.read, columns=tuple(names))
    outcome = merge_slice(ports.storage, ports.events, task.slice, read)
    if outcome is None:  # all its log files were rolled back
        rows = read.output_schema.empty_table()
        base = task.slice.base_file
        if base is not None:
            rows = read_base_file(
                ports.storage,
                base.path,
                schema=read.file_schema,
                columns=names,
                renaming=read.renaming_for(base),
            )
        return append_rows(rows, rows.slice(0, 0))
    return replace(outcome, table=outcome.table.select(names))


def _adopted(ports: Ports, task: CompactionTask, path: str) -> WriteStat:
    """
    Return the statistics of a file that another executor wrote; its footer proves a base file.

    The slice is merged again nevertheless, because writers must learn whether deleted keys were
    left out.
    """
    rows = read_footer(ports.storage, path).rows
    stat = ports.storage.stat(path)
    if stat is None:
        raise StorageUnavailableError(
            f"a file of the plan vanished: run the service again: {path}", path=path
        )
    return replace(_stat(task, path, _merged(ports, task), stat.size_bytes), num_writes=rows)


def _stat(task: CompactionTask, path: str, outcome: MergeOutcome, size_bytes: int) -> WriteStat:
    target, logs = task.target, task.slice.log_files
    merged = outcome.inserted + outcome.updated + outcome.deleted + outcome.ignored_late
    return replace(
        base_file_stat(target, path, outcome, size_bytes),
        total_log_records=merged,
        total_updated_records_compacted=merged,
        total_log_files_compacted=len(logs),
        total_log_size_compacted=sum(log.size_bytes for log in logs),
    )


# ---- The tasks of a compaction
#
# The write token of a file is its position in the plan, so that its name follows from the plan
# alone (CMP-2).


def tasks_of(
    context: TableContext,
    snapshot: Snapshot,
    planned: Instant,
    slices: Sequence[FileSlice],
    files: FileRules,
) -> list[CompactionTask]:
    """
    Return one task for each slice of a plan, in its order.

    Args:
        context: The table.
        snapshot: Taken after the plan, so that it includes all instants of the plan; the new files
            have its schema.
        planned: The plan's instant.
        slices: Checked.
        files: How to write base files.

    Raises:
        UnsupportedTableError: The table has no schema yet, or a merger class of its owner merges
            its records; or as ``refuse_renamed``.
    """
    config = context.config
    files = files.filtering(config.record_key_fields)
    read = plan_scan(context, snapshot, slices, with_hoodie_columns=True).read
    refuse_renamed(read.history, planned.requested_time)
    schema = TableSchema.from_avro(snapshot.newest_schema_json or config.create_schema_json or "")
    # The old file left out columns that the folder's name holds; so does the new one.
    read = replace(
        read,
        file_schema=with_meta(schema.arrow),
        columns=tuple(with_meta(schema.arrow).names),
        folders=None,
    )
    return [
        CompactionTask(
            slice=one,
            read=read,
            target=FileGroupTask(
                requested_time=planned.requested_time,
                operation=WriteOperation.UPSERT,
                partition_path=one.file_group.partition_path,
                file_id=one.file_group.file_id,
                write_token=f"{number}-0-0",
                task_number=number,
                avro_json=schema.avro_json,
                base_path=one.base_file.path if one.base_file is not None else None,
                base_requested_time=(
                    one.base_file.requested_time if one.base_file is not None else None
                ),
                parquet=files.parquet,
                bloom=files.bloom,
                stores_keys=config.populate_meta_fields,
                virtual_keys=read.keys,
                partition_marked=True,  # or its slices would not have been found
            ),
        )
        for number, one in enumerate(slices)
    ]


# ---- Compaction from plan to commit; hoodoo or Java Hudi scheduled it (CMP-1)
#
# Writers continue during a compaction. Log files that complete after the plan's requested time are
# merged on top of the new base file (NBCC-3). No commit conflicts with a compaction, so validation
# never rejects it.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """The result of one compaction; times are instant times, sizes bytes."""

    requested_time: InstantTime
    completion_time: InstantTime
    file_groups: int
    rows_written: int
    log_files: int
    log_bytes: int
    bytes_written: int

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"compacted {counted(self.log_files, 'log file')} ({self.log_bytes} bytes) of "
            f"{counted(self.file_groups, 'file group')} into {counted(self.rows_written, 'row')} "
            f"({self.bytes_written} bytes)"
        )


def plan_compaction(
    context: TableContext,
    snapshot: Snapshot,
    settings: CompactionSettings,
    files: FileRules,
    orders: Sequence[CompactionOrder] = (),
) -> CompactionPlan | None:
    """
    Return the plan of a compaction of this snapshot; None when there is nothing to merge.

    ``orders`` are the strategies of plug-ins. Outside: 1 list per partition, 1 get per pending
    plan.

    Raises:
        SettingError: No strategy has the name in the settings.
    """
    operations = operations_of(
        view_of(context, snapshot).latest_slices(),
        file_groups_in_plans(context, snapshot.active),
        new_file_bytes=files.sizes.file_bytes_max,
    )
    chosen = choose(operations, settings, orders)
    return compaction_plan(chosen) if chosen else None


def schedule_compaction(
    context: TableContext,
    settings: CompactionSettings,
    files: FileRules,
    orders: Sequence[CompactionOrder] = (),
) -> Instant | None:
    """
    Commit a plan; return None when there is nothing to compact.

    Arguments, calls outside and errors: as ``plan_compaction`` and ``schedule``.

    Raises:
        UnsupportedTableError: The table has no log files, or cannot be written.
        MetadataTableOnError: Its metadata table has a partition that cannot be maintained.
    """
    _refuse(context)

    def build(snapshot: Snapshot) -> bytes | None:
        plan = plan_compaction(context, snapshot, settings, files, orders)
        return None if plan is None else encode_compaction_plan(plan)

    return schedule(context, Action.COMPACTION, build)


def execute_compaction(
    context: TableContext, planned: Instant, files: FileRules
) -> CompactionResult | None:
    """
    Execute a pending compaction of any planner, also one that another executor began.

    Outside: 2 gets, the lease, 1 create (inflight), 1 list per partition, those of
    ``compact_file_group`` for each slice, those of ``complete``.

    Args:
        context: The table.
        planned: The pending instant.
        files: How to write base files.

    Returns:
        None when another executor has it or has ended it.

    Raises:
        InstantNotFoundError: The plan does not exist any more.
        CorruptTableError, MalformedNameError: The plan is damaged or hostile; nothing was read or
            written.
        MissingFileError: A file of the pending plan is missing; cancel the plan.
        UnsupportedTableError, MetadataTableOnError: As ``schedule_compaction``.
        HeartbeatExpiredError: This process paused too long.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, StorageUnavailableError: As
            ``complete``; the plan remains, and its next executor adopts the files.
    """
    _refuse(context)
    return execute_leased(context, planned, partial(_execute, context, planned, files))


def _execute(
    context: TableContext,
    planned: Instant,
    files: FileRules,
    slices: list[FileSlice],
    heartbeat: Heartbeat,
) -> CompactionResult | None:
    metadata = merge_slices(context, planned, slices, files)
    outcome = complete(
        context, planned, metadata, write_set=write_set_of(metadata), heartbeat=heartbeat
    )
    if isinstance(outcome, PlanOutcome):
        discard_output(context, planned, outcome, heartbeat)
        return None
    return _result(outcome, planned, metadata.write_stats())


def merge_slices(
    context: TableContext, planned: Instant, slices: Sequence[FileSlice], files: FileRules
) -> CommitMetadata:
    """
    Write the base files of a plan; return the metadata that commits them.

    Outside: 1 create (inflight), 1 list per partition, those of ``compact_file_group`` for each
    slice; after an earlier executor also those of ``data_files_of`` and deletes.

    Raises:
        UnsupportedTableError, MissingFileError, CorruptTableError, StorageUnavailableError: As
            ``execute_compaction``.
    """
    storage = context.ports.storage
    began_before = make_inflight(context, planned)
    snapshot = context.snapshot()
    tasks = tasks_of(context, snapshot, planned, slices, files)
    stats = on_file_groups(
        context.ports,
        compact_file_group,
        tasks,
        size_bytes=sum(one.size_bytes for one in slices),
    )
    made = {stat.path for stat in stats}
    if began_before:  # PUB-1: an executor of another engine used other file names
        for stray in data_files_of(storage, planned.requested_time):
            # In version 6 log files on top of the plan have its time (fmt 5.1).
            is_base = parse_base_file_name(stray.rpartition("/")[2]) is not None
            if is_base and stray not in made:
                storage.delete(stray)
    avro_json = tasks[0].target.avro_json if tasks else None
    ids = snapshot.newest_internal_schema_json
    return commit_metadata(context, "COMPACT", stats, avro_json, ids)


def _refuse(context: TableContext) -> None:
    config = load_writable(context)
    context.config.merge.require_known()
    if config.table_type is not TableType.MERGE_ON_READ:
        raise UnsupportedTableError(
            "only merge-on-read tables have logs to compact, and this one is copy-on-write: omit "
            "compaction",
            kind="no_logs",
        )


def _result(
    published: CommittedWrite, planned: Instant, stats: Sequence[WriteStat]
) -> CompactionResult:
    return CompactionResult(
        requested_time=planned.requested_time,
        completion_time=published.completion_time,
        file_groups=len(stats),
        rows_written=sum(stat.num_writes for stat in stats),
        log_files=sum(stat.total_log_files_compacted for stat in stats),
        log_bytes=sum(stat.total_log_size_compacted for stat in stats),
        bytes_written=sum(stat.total_write_bytes for stat in stats),
    )


# ---- When a compaction is due; pure


def is_due(
    timeline: ActiveTimeline,
    settings: CompactionSettings,
    now: WallMs,
    zone: TimelineZone = UTC_ZONE,
) -> bool:
    """
    Return whether enough commits or time passed since the last compaction (Hudi's rule).

    Return False before the first delta commit, and during a restore, because it changes what there
    is to compact.
    """
    if any(one.action is Action.RESTORE for one in timeline.pending):
        return False
    appended = [one for one in timeline.completed_writes if one.action is Action.DELTACOMMIT]
    if not appended:
        return False
    asked = settings.trigger is CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST
    last = _last_compaction(timeline, requested=asked)
    since = last.requested_time if last is not None else ""
    enough = sum(1 for one in appended if (one.completion_time or "") > since)
    began = last or appended[0]
    elapsed_s = (now - zone.wall_ms(began.requested_time)) // 1_000
    by_number = enough >= settings.commits_max
    by_time = enough > 0 and elapsed_s >= settings.seconds_max
    return settings.trigger.is_met(by_number=by_number, by_time=by_time)


def _last_compaction(timeline: ActiveTimeline, *, requested: bool) -> Instant | None:
    """Return the newest completed compaction; with ``requested`` also count pending ones."""
    found = [one for one in timeline.completed_writes if one.action is Action.COMMIT]
    if requested:
        found += [one for one in timeline.pending if one.action is Action.COMPACTION]
    return max(found, key=lambda one: one.requested_time, default=None)


# ---- The service: inline after a commit, or in rounds of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionService:
    """Compaction of merge-on-read tables; does nothing for other tables."""

    settings: CompactionSettings
    files: FileRules
    orders: tuple[CompactionOrder, ...] = ()  # strategies of plug-ins
    phase: Phase = Phase.BOTH
    name: str = "compact"
    action: Action = Action.COMPACTION

    @property
    def runs_inline(self) -> bool:
        """Return ``hoodie.compact.inline`` or ``hoodie.compact.schedule.inline``."""
        return self.settings.runs_inline or self.settings.plans_inline

    @property
    def runs_in_background(self) -> bool:
        """Return ``hoodie.datasource.compaction.async.enable``, unless compaction runs inline."""
        return self.settings.asynchronous and not self.settings.runs_inline

    @property
    def after_commit(self) -> CompactionService:
        """Return the service as a writer runs it."""
        part = Phase.BOTH if self.settings.runs_inline else Phase.SCHEDULE
        return replace(self, phase=part)

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Run one round; errors as ``run_round``."""
        if context.config.table_type is not TableType.MERGE_ON_READ:
            return None
        return run_round(context, self, self.phase, expiry_ms=self.settings.expiry_ms)

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:
        """Apply the trigger of the settings."""
        return is_due(timeline, self.settings, WallMs(context.ports.clock.now_ms()), context.zone)

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the file groups, log files and bytes of a plan made now."""
        snapshot = context.snapshot()
        plan = plan_compaction(context, snapshot, self.settings, self.files, self.orders)
        operations = plan.operations if plan is not None else ()
        return {
            "due": self.is_due(context, snapshot.active),
            **log_figures(plan),
            "io_mb": int(sum(one.metrics["TOTAL_IO_MB"] for one in operations)),
        }

    def schedule(self, context: TableContext) -> Instant | None:
        """Schedule a plan; errors as ``schedule_compaction``."""
        return schedule_compaction(context, self.settings, self.files, self.orders)

    def execute(self, context: TableContext, planned: Instant) -> CompactionResult | None:
        """Execute a plan; errors as ``execute_compaction``."""
        return execute_compaction(context, planned, self.files)

"""
Log compaction from its plan to its delta commit (LC-1).

Unlike a compaction it can lose: a base file that the file group got meanwhile holds newer
rows, and the new log would lie on top of it with older ones. So it is asked at its end what
came since its plan, and cancelled if that was more than further logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tableservices.claims import claimed, unless_ended
from tableservices.compaction.plan_files import read_slices
from tableservices.completing import complete, withdraw
from tableservices.executing import commit_metadata, make_inflight, on_file_groups
from tableservices.logcompaction.file_group import LogCompactionTask, compact_logs
from tableservices.logcompaction.plan import candidates, log_compaction_plan
from tableservices.logcompaction.settings import LogCompactionSettings
from tableservices.scheduling import schedule
from timeline.active import ActiveTimeline
from timeline.codecs.instant_avro import encode_compaction_plan
from timeline.context import TableContext
from timeline.errors import MissingFileError, UnsupportedTableError
from timeline.files.append import block_format
from timeline.files.block_selection import VisibleInstants
from timeline.files.blocks import find_blocks
from timeline.files.log_files import LogRead
from timeline.heartbeat import Heartbeat
from timeline.model.claim import FileGroupId, Touch
from timeline.model.file_group import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.operations import MergeMode, TableType
from timeline.model.plans import CompactionPlan
from timeline.model.schema import TableSchema, with_meta
from timeline.model.times import InstantTime
from timeline.properties.properties_file import load_config
from timeline.publishing.look import Turn
from timeline.publishing.plan_ending import Ended, cancel
from timeline.publishing.rivals import claim_of
from timeline.readable import refuse_unwritable
from timeline.reading.pending_plans import (
    file_groups_in_clustering,
    file_groups_in_plans,
    pending_compactions,
)
from timeline.reading.read import plan_scan, view_of
from timeline.reading.snapshot import Snapshot
from timeline.writing.placing import FileRules

__all__ = [
    "LogCompactionReceipt",
    "execute_log_compaction",
    "plan_log_compaction",
    "schedule_log_compaction",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionReceipt:
    """What one log compaction did; times are instant times, sizes bytes."""

    requested_time: InstantTime
    completion_time: InstantTime
    file_groups: int
    log_files: int
    bytes_written: int

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"put {self.log_files} log files of {self.file_groups} file groups together "
            f"({self.bytes_written} bytes)"
        )


def plan_log_compaction(
    context: TableContext, snapshot: Snapshot, settings: LogCompactionSettings
) -> CompactionPlan | None:
    """
    What a log compaction of this snapshot would put together; None for nothing.

    Outside: 1 list per partition, 1 get per pending plan, 1 open_input for each log file; where one
    is gone 1 snapshot and 1 list.

    Raises:
        MissingFileError: A log file is gone, no restore took it away, and nothing has taken the place
            of its slice.
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
            blocks = find_blocks(context.world.storage, one.log_files, visible)
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
    Whether a newer slice, or another file group, has taken the place of one by now.

    Or a restore took a log of it away, which hides instants before it deletes their data (RST-1).
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
    Put a plan on the timeline; None when there is nothing to put together.

    Calls outside and errors: as ``plan_log_compaction`` and ``schedule``.

    Raises:
        UnsupportedTableError: The table keeps no logs, updates partially or cannot be written.
        TableConfigConflictError: Its metadata table is on.
    """
    _refuse(context)

    def build(snapshot: Snapshot) -> bytes | None:
        plan = plan_log_compaction(context, snapshot, settings)
        return None if plan is None else encode_compaction_plan(plan)

    return schedule(context, Action.LOGCOMPACTION, build)


def execute_log_compaction(
    context: TableContext, planned: Instant, files: FileRules
) -> LogCompactionReceipt | None:
    """
    Carry out a pending log compaction, or cancel it when it can no longer stand (LC-1).

    Outside: 2 gets, the claim, 1 create (inflight), 1 list per partition, those of
    ``compact_logs`` for each slice, those of ``complete``.

    Args:
        context: The table.
        planned: The pending instant, of this engine or of Java Hudi.
        files: How logs are made.

    Returns:
        None when another executor is at it, or it has ended otherwise.

    Raises:
        As ``tableservices.compaction.execute.execute_compaction``.
    """
    _refuse(context)
    with unless_ended(context, planned):
        slices = read_slices(context, planned)
        with claimed(context, planned) as heartbeat:
            if heartbeat is not None:
                return _execute(context, planned, slices, files, heartbeat)
    return None


def _execute(
    context: TableContext,
    planned: Instant,
    slices: list[FileSlice],
    files: FileRules,
    heartbeat: Heartbeat,
) -> LogCompactionReceipt | None:
    groups = frozenset(one.file_group for one in slices)
    snapshot = context.snapshot()
    if not _stands(context, planned, groups, snapshot.active):
        cancel(context, planned)
        return None
    make_inflight(context, planned)
    tasks = _tasks(context, snapshot, planned, slices, files)
    made = on_file_groups(context.world, compact_logs, tasks)
    stats = [one for one in made if one is not None]
    metadata = commit_metadata(context, "LOG_COMPACT", stats, tasks[0].avro_json if tasks else None)

    def check(turn: Turn) -> bool:
        return _stands(context, planned, groups, turn.timeline)

    outcome = complete(
        context, planned, metadata, claim=claim_of(metadata), heartbeat=heartbeat, check=check
    )
    if outcome is Ended.REFUSED:
        cancel(context, planned)
        outcome = Ended.CANCELLED
    if isinstance(outcome, Ended):
        withdraw(context, planned, outcome, heartbeat)
        return None
    return LogCompactionReceipt(
        requested_time=planned.requested_time,
        completion_time=outcome.completion_time,
        file_groups=len(stats),
        log_files=sum(stat.total_log_files_compacted for stat in stats),
        bytes_written=sum(stat.total_write_bytes for stat in stats),
    )


def _stands(
    context: TableContext,
    planned: Instant,
    groups: frozenset[FileGroupId],
    timeline: ActiveTimeline,
) -> bool:
    """
    Whether the file groups got nothing but logs since the plan, and nothing else is planned.

    Outside: 1 get per pending plan, and per commit that was not read before.
    """
    planned_else = set(file_groups_in_clustering(context, timeline))
    planned_else.update(pending_compactions(context, timeline))
    if planned_else & groups:
        return False
    for one in timeline.completed_writes:
        if (one.completion_time or "") <= planned.requested_time:
            continue
        for item in claim_of(context.commits.read(one)).file_groups:
            if item.file_group in groups and item.touch is not Touch.LOG:
                return False
    return True


def _refuse(context: TableContext) -> None:
    config = load_config(context.world.storage)
    refuse_unwritable(config, without_metadata_table=context.limits.without_metadata_table)
    if config.table_type is not TableType.MERGE_ON_READ:
        raise UnsupportedTableError(
            "only merge-on-read tables have logs to put together: this one is copy-on-write",
            kind="no_logs",
        )
    if config.merge.updates_partially or config.merge.mode is MergeMode.CUSTOM:
        raise UnsupportedTableError(
            "the logs of this table cannot be put together without their base file, because its "
            "records are merged value by value; compact it instead",
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

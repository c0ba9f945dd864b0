"""
Compaction from its plan to its commit: scheduled here or by Java, carried out here (CMP-1).

Writers go on all the while: what completes after the plan's requested time counts on top of
the new base file (NBCC-3). Nothing of theirs is judged, and so a compaction never loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tableservices.claims import claimed, unless_ended
from tableservices.compaction.file_group import compact_file_group
from tableservices.compaction.plan import (
    CompactionOrder,
    choose,
    compaction_plan,
    operations_of,
)
from tableservices.compaction.plan_files import read_slices
from tableservices.compaction.settings import CompactionSettings
from tableservices.compaction.tasks import tasks_of
from tableservices.completing import complete, withdraw
from tableservices.executing import commit_metadata, make_inflight, on_file_groups
from tableservices.scheduling import schedule
from timeline.codecs.instant_avro import encode_compaction_plan
from timeline.context import TableContext
from timeline.errors import UnsupportedTableError
from timeline.heartbeat import Heartbeat
from timeline.model.commit_metadata import CommitMetadata, WriteStat
from timeline.model.file_group import FileSlice
from timeline.model.filenames import parse_base_file_name
from timeline.model.instant import Action, Instant
from timeline.model.operations import TableType
from timeline.model.plans import CompactionPlan
from timeline.model.times import InstantTime
from timeline.properties.properties_file import load_config
from timeline.publishing.plan_ending import Ended
from timeline.publishing.publish import Published
from timeline.publishing.rivals import claim_of
from timeline.publishing.settle import data_files_of
from timeline.readable import refuse_unwritable
from timeline.reading.pending_plans import file_groups_in_plans
from timeline.reading.read import view_of
from timeline.reading.snapshot import Snapshot
from timeline.writing.placing import FileRules

__all__ = [
    "CompactionReceipt",
    "execute_compaction",
    "merge_slices",
    "plan_compaction",
    "schedule_compaction",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReceipt:
    """What one compaction did; times are instant times, sizes bytes."""

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
            f"compacted {self.log_files} log files ({self.log_bytes} bytes) of "
            f"{self.file_groups} file groups into {self.rows_written} rows "
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
    What a compaction of this snapshot would merge; None for nothing.

    ``orders`` are the strategies of plug-ins. Outside: 1 list per partition, 1 get per
    pending plan.

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
    Put a plan on the timeline; None when there is nothing to compact.

    Arguments, calls outside and errors: as ``plan_compaction`` and ``schedule``.

    Raises:
        UnsupportedTableError: The table keeps no logs, or cannot be written.
        TableConfigConflictError: Its metadata table is on.
    """
    _refuse(context)

    def build(snapshot: Snapshot) -> bytes | None:
        plan = plan_compaction(context, snapshot, settings, files, orders)
        return None if plan is None else encode_compaction_plan(plan)

    return schedule(context, Action.COMPACTION, build)


def execute_compaction(
    context: TableContext, planned: Instant, files: FileRules
) -> CompactionReceipt | None:
    """
    Carry out a pending compaction, whoever planned it and however far an executor came.

    Outside: 2 gets, the claim, 1 create (inflight), 1 list per partition, those of
    ``compact_file_group`` for each slice, those of ``complete``.

    Args:
        context: The table.
        planned: The pending instant.
        files: How base files are made.

    Returns:
        None when another executor is at it or has ended it.

    Raises:
        InstantNotFoundError: There is no such plan any more.
        CorruptTableError, MalformedNameError: The plan is damaged or hostile; nothing was
            read or written.
        MissingFileError: A file of the pending plan is gone: cancel it.
        UnsupportedTableError, TableConfigConflictError: As ``schedule_compaction``.
        HeartbeatExpiredError: This process paused too long.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, StorageUnavailableError: As
            ``complete``; the plan stays, and what was written for it is found again.
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
) -> CompactionReceipt | None:
    metadata = merge_slices(context, planned, slices, files)
    outcome = complete(context, planned, metadata, claim=claim_of(metadata), heartbeat=heartbeat)
    if isinstance(outcome, Ended):
        withdraw(context, planned, outcome, heartbeat)
        return None
    return _receipt(outcome, planned, metadata.write_stats())


def merge_slices(
    context: TableContext, planned: Instant, slices: Sequence[FileSlice], files: FileRules
) -> CommitMetadata:
    """
    Make the base files of a plan; what is returned makes them count once it is published.

    Outside: 1 create (inflight), 1 list per partition, those of ``compact_file_group`` for
    each slice; where somebody had begun before, those of ``data_files_of`` and deletes.

    Raises:
        UnsupportedTableError, MissingFileError, CorruptTableError, StorageUnavailableError: As
            ``execute_compaction``.
    """
    storage = context.world.storage
    began_before = make_inflight(context, planned)
    tasks = tasks_of(context, context.snapshot(), planned, slices, files)
    stats = on_file_groups(context.world, compact_file_group, tasks)
    made = {stat.path for stat in stats}
    if began_before:  # PUB-1: an executor of another engine gave its files other names
        for stray in data_files_of(storage, planned.requested_time):
            # In version 6 the logs that writers put on top of the plan bear its time (fmt 5.1).
            is_base = parse_base_file_name(stray.rpartition("/")[2]) is not None
            if is_base and stray not in made:
                storage.delete(stray)
    return commit_metadata(context, "COMPACT", stats, tasks[0].target.avro_json if tasks else None)


def _refuse(context: TableContext) -> None:
    config = load_config(context.world.storage)
    refuse_unwritable(config, without_metadata_table=context.limits.without_metadata_table)
    context.config.merge.require_known()
    if config.table_type is not TableType.MERGE_ON_READ:
        raise UnsupportedTableError(
            "only merge-on-read tables have logs to compact: this one is copy-on-write",
            kind="no_logs",
        )


def _receipt(
    published: Published, planned: Instant, stats: Sequence[WriteStat]
) -> CompactionReceipt:
    return CompactionReceipt(
        requested_time=planned.requested_time,
        completion_time=published.completion_time,
        file_groups=len(stats),
        rows_written=sum(stat.num_writes for stat in stats),
        log_files=sum(stat.total_log_files_compacted for stat in stats),
        log_bytes=sum(stat.total_log_size_compacted for stat in stats),
        bytes_written=sum(stat.total_write_bytes for stat in stats),
    )

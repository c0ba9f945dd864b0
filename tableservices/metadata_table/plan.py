"""
Plan the services of the metadata table: its settings, what is merged, deleted and archived (MDT-8).

The metadata table has a timeline of its own, without slots. Its compaction is ordered against the
commits of the table by one slot. All functions here but ``read_metadata_timeline`` are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field

from filegroups.metadata_table.lag import is_log_compaction
from filegroups.metadata_table.reading import MetadataTable
from tableservices.compaction.plan import CompactionTrigger, operations_of
from tableservices.logcompaction.execute import delta_commits_since, log_compaction_plan
from timeline.model.file_names import METADATA_TABLE
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.instant_time import (
    EARLIEST,
    UTC_ZONE,
    InstantTime,
    TimelineZone,
    WallMs,
    is_instant_time,
)
from timeline.model.metadata_table import BUILDING
from timeline.model.plans import CompactionOperation, CompactionPlan
from timeline.model.slot import LEAST_VERSION_KEY, METADATA_VERSION
from timeline.ports.ports import Storage
from timeline.properties.options import OptionSettings, option
from timeline.snapshot import ActiveTimeline, TimelineReader
from timeline.storage.subfolder import SubfolderStorage

_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]

#: In the extra metadata of a plan: its completion time, so that any process completes it equally.
COMPLETION_KEY: Final = "hoodoo.completion_time"
#: Assumed size of a new base file, for the metrics of a plan.
_NEW_FILE_BYTES: Final = 120 * 1024 * 1024
#: A log compaction leaves out a file group with more bytes of logs: one block has them all.
_LOG_BYTES_MAX: Final = 256 * 1024 * 1024
#: So many instants move at a time; the next round moves more.
_INSTANTS_MAX: Final = 500
#: What Java's archiver leaves in addition to the commits of the table.
_KEPT_MORE: Final = 1
_RECORDED: Final = frozenset({*WRITE_ACTIONS, Action.CLEAN})
_MERGING: Final = frozenset({Action.COMPACTION, Action.LOGCOMPACTION})


class MetadataServiceSettings(OptionSettings):
    """All settings of the services of the metadata table."""

    inline: bool = option(
        "hoodoo.metadata.services.inline",
        True,
        "Compact, clean and archive the metadata table after a commit, when it is due.",
    )
    commits_max: _Count = option(
        "hoodie.metadata.compact.max.delta.commits",
        10,
        "Number of delta commits of the metadata table since its last compaction after which one "
        "is due.",
    )
    seconds_max: _Count = option(
        "hoodie.metadata.compact.max.delta.seconds",
        7_200,
        "Seconds since the last compaction of the metadata table after which one is due.",
    )
    trigger: CompactionTrigger = option(
        "hoodie.metadata.compact.trigger.strategy",
        CompactionTrigger.NUM_COMMITS,
        "Condition for a compaction of the metadata table: delta commits, time, both, or either "
        "of them.",
    )
    pending_max: _Count = option(
        "hoodie.metadata.max.deltacommits.when_pending",
        1_000,
        "Number of delta commits above which the service fails while a pending instant holds the "
        "compaction of the metadata table; below it the service only reports that instant.",
    )
    log_compaction: bool = option(
        "hoodie.metadata.log.compaction.enable",
        False,
        "Merge the log files of a file group of the metadata table into one, between its "
        "compactions.",
    )
    log_blocks_min: Annotated[int, Field(ge=2, le=1_000_000)] = option(
        "hoodie.metadata.log.compaction.blocks.threshold",
        5,
        "Number of log files of a file group, and of delta commits, from which a log compaction of "
        "the metadata table is due.",
    )


def read_metadata_timeline(storage: Storage) -> ActiveTimeline:
    """Return the timeline of the metadata table of a table's storage. Outside: 1 list."""
    return TimelineReader(SubfolderStorage(storage, METADATA_TABLE)).read()


def newest_compaction(own: ActiveTimeline) -> Instant | None:
    """Return the completed compaction of the metadata table with the greatest requested time."""
    return next(iter(_compactions(own)), None)


def _compactions(own: ActiveTimeline) -> list[Instant]:
    """Return the completed compactions, newest first."""
    return [one for one in reversed(own.completed_writes) if one.action is Action.COMMIT]


def delta_commits(own: ActiveTimeline) -> int:
    """Return the number of delta commits that no compaction has merged."""
    last = newest_compaction(own)
    since = last.requested_time if last is not None else ""
    return sum(
        1
        for one in own.completed_writes
        if one.action is Action.DELTACOMMIT and one.newest_time > since
    )


def is_due(
    own: ActiveTimeline,
    settings: MetadataServiceSettings,
    now: WallMs,
    zone: TimelineZone = UTC_ZONE,
) -> bool:
    """Return whether enough delta commits or time passed since the last compaction."""
    count, last = delta_commits(own), newest_compaction(own)
    began = last or next(
        (one for one in own.completed_writes if not one.requested_time.startswith(BUILDING)), None
    )
    elapsed_s = 0 if began is None else (now - zone.wall_ms(began.requested_time)) // 1_000
    return settings.trigger.is_met(
        by_number=count >= settings.commits_max,
        by_time=count > 0 and elapsed_s >= settings.seconds_max,
    )


def is_log_compaction_due(own: ActiveTimeline, settings: MetadataServiceSettings) -> bool:
    """Return whether enough delta commits completed since the last compaction of either kind."""
    return settings.log_compaction and delta_commits_since(own) >= settings.log_blocks_min


def commits_until_due(own: ActiveTimeline, settings: MetadataServiceSettings) -> int:
    """Return how many delta commits are missing until a compaction of either kind is due."""
    missing = settings.commits_max - delta_commits(own)
    if settings.log_compaction:
        missing = min(missing, settings.log_blocks_min - delta_commits_since(own))
    return max(1, missing)


# ---- The plan of a compaction, in the form that Java Hudi writes and executes


def metadata_compaction_plan(
    table: MetadataTable, completion_time: InstantTime
) -> CompactionPlan | None:
    """
    Return the plan that merges every log file of the metadata table; None without log files.

    No partition may be under construction: its base files come later, and would be below the files
    of the plan.

    Args:
        table: As of a commit section, so that its log files are all that completed.
        completion_time: Of the slot that orders the plan.

    Raises: as ``MetadataTable.slices``. Outside: 1 list for each partition.
    """
    operations: list[CompactionOperation] = []
    for partition in table.partitions:
        slices = table.slices(partition).values()
        operations += [
            replace(one, partition_path=partition)
            for one in operations_of(slices, (), new_file_bytes=_NEW_FILE_BYTES)
        ]
    if not operations:
        return None
    return CompactionPlan(operations=tuple(operations), extra_metadata=_extra(completion_time))


def metadata_log_compaction_plan(
    table: MetadataTable, completion_time: InstantTime, blocks_min: int
) -> CompactionPlan | None:
    """
    Return the plan that merges the log files of file groups with many of them; None without any.

    The files that an earlier log compaction replaced are left out, as its own file counts for them.
    A file group with many bytes of logs waits for the compaction.

    Args:
        table: As of a commit section, and no write is pending on the table (MDT-17).
        completion_time: Of the slot that orders the plan.
        blocks_min: Log files from which a file group is worth it.

    Raises: as ``MetadataTable.slices``. Outside: 1 list for each partition.
    """
    found = [
        replace(one, log_files=logs)
        for partition in table.partitions
        for one in table.slices(partition).values()
        if len(logs := _unmerged(table.own.active, one)) >= blocks_min
        and sum(log.size_bytes for log in logs) <= _LOG_BYTES_MAX
    ]
    plan = log_compaction_plan(found)
    if plan is None:
        return None
    operations = [
        replace(one, partition_path=(one.partition_path or "").removeprefix(f"{METADATA_TABLE}/"))
        for one in plan.operations
    ]
    return replace(plan, operations=tuple(operations), extra_metadata=_extra(completion_time))


def _unmerged(own: ActiveTimeline, one: FileSlice) -> tuple[LogFile, ...]:
    """Return the log files from the newest one of a log compaction on."""
    logs = one.log_files
    compacted = [at for at, log in enumerate(logs) if is_log_compaction(own, log.instant_time)]
    return logs[compacted[-1] :] if compacted else logs


def _extra(completion_time: InstantTime) -> dict[str, str]:
    return {COMPLETION_KEY: completion_time, LEAST_VERSION_KEY: str(METADATA_VERSION)}


def completion_time_of(plan: CompactionPlan, requested_time: InstantTime) -> InstantTime | None:
    """Return the completion time that a plan names; None for the plan of another engine."""
    time = (plan.extra_metadata or {}).get(COMPLETION_KEY, "")
    return time if is_instant_time(time) and time > requested_time else None


# ---- Which files a clean deletes


def retained_since(
    own: ActiveTimeline, completed_long_ago: Iterable[InstantTime]
) -> InstantTime | None:
    """
    Return the compaction whose slices and later ones are kept; None to keep all.

    Args:
        own: The timeline of the metadata table.
        completed_long_ago: Requested times of compactions that completed before any present reader
            opened the metadata table.
    """
    old = set(completed_long_ago)
    return next(
        (one.requested_time for one in _compactions(own)[1:] if one.requested_time in old), None
    )


def stale_files(
    table: MetadataTable, partition: str, since: InstantTime
) -> list[BaseFile | LogFile]:
    """
    Return the files of slices below the newest base file up to a time, in each file group.

    A file without a completed instant is never among them. Outside: 1 list.
    """
    found: list[BaseFile | LogFile] = []
    for slices in table.all_slices(*table.files(partition)).values():
        bases = [one.base_file.requested_time for one in slices if one.base_file is not None]
        floor = max((time for time in bases if time <= since), default="")
        for one in slices:
            if one.base_instant_time >= floor:
                continue
            found += one.log_files
            found += [one.base_file] if one.base_file is not None else []
    return found


# ---- Which instants are archived


def archivable(
    own: ActiveTimeline,
    table: ActiveTimeline,
    *,
    kept_min: int,
    kept_max: int,
    unknown: Iterable[InstantTime] = (),
) -> tuple[Instant, ...]:
    """
    Return the completed instants of the metadata table to archive, ascending by requested time.

    Java Hudi limits its archive in the same way: by the first write and by the oldest pending
    instant of the table, and by the newest compaction (``HoodieTimelineArchiver``). A block of an
    archived instant counts no more in Java, so a compaction must have merged it.

    Args:
        own: The timeline of the metadata table.
        table: The timeline of the table.
        kept_min: Commits of the table that remain after archiving.
        kept_max: Number of commits above which archiving begins.
        unknown: Instants that only the metadata table has; while they are there, no reader uses it.
    """
    writes, last = own.completed_writes, newest_compaction(own)
    if last is None or len(writes) <= kept_max + _KEPT_MORE:
        return ()
    end = min(
        last.requested_time,
        *unknown,
        *(one.requested_time for one in (*own.pending, *table.pending)),
        *(one.requested_time for one in table.instants if one.action.completes_as in _RECORDED),
    )
    moved: list[Instant] = []
    for one in writes[: -(kept_min + _KEPT_MORE)][:_INSTANTS_MAX]:
        is_merged = one.newest_time < last.requested_time
        if one.requested_time >= end or not is_merged or one.legacy:
            break
        moved.append(one)
    if not moved:
        return ()
    newest = moved[-1].requested_time
    upkeep = [
        one
        for one in own.instants
        if one.completed
        and one.action in (Action.CLEAN, Action.ROLLBACK)
        and one.requested_time < newest
    ]
    return tuple(sorted([*moved, *upkeep], key=lambda one: one.requested_time))


def truncation_limit(table: ActiveTimeline, compaction: Instant | None) -> InstantTime | None:
    """
    Return the first instant of the table that no compaction of its metadata table has merged.

    No such instant is archived: a reader of the metadata table would miss its blocks. Without a
    compaction nothing is archived.
    """
    if compaction is None:
        return EARLIEST
    return min(
        (
            one.requested_time
            for one in table.instants
            if one.completed
            and one.action is not Action.SAVEPOINT
            and one.newest_time > compaction.requested_time
        ),
        default=None,
    )


def pending_compactions(own: ActiveTimeline) -> Sequence[Instant]:
    """Return the pending compactions of either kind of the metadata table, oldest first."""
    return [one for one in own.pending if one.action in _MERGING]

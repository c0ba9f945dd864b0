"""Plan a log compaction, and read its settings."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from tableservices.compaction.plan import operations_of
from tableservices.planned_service import PlannedServiceSettings
from timeline.active_timeline import ActiveTimeline
from timeline.model.engine_version import plan_version_entry
from timeline.model.file_names import FileSlice, pending_file_names
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CompactionOperation, CompactionPlan, PlanCompactionStrategy
from timeline.model.write_set import FileGroupId
from timeline.properties.option_settings import option

__all__ = [
    "LogCompactionSettings",
    "candidates",
    "is_due",
    "log_compaction_plan",
]

# ---- Settings of log compaction, read from ``hoodie.log.compaction.*`` keys


class LogCompactionSettings(PlannedServiceSettings):
    """All settings of log compaction."""

    enabled: bool = option(
        "hoodie.log.compaction.enable",
        False,
        "Put log files together where compacting them into base files comes too seldom.",
    )
    inline: bool = option(
        "hoodie.log.compaction.inline",
        False,
        "Plan a log compaction after a commit when it is due, and carry it out.",
    )
    blocks_min: Annotated[int, Field(ge=2, le=1_000_000)] = option(
        "hoodie.log.compaction.blocks.threshold",
        5,
        "Log blocks of a file slice, and delta commits, that make one worth it.",
    )


# ---- Which log files a log compaction merges: pure, in the form of Java Hudi
#
# Only log files older than every pending write are taken. A writer that began in between and
# completes later has its position between them, in the order of requested times (fmt 5.7). One file
# cannot be both before and after it (NBCC-5).

_HELPER = "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper"


def is_due(timeline: ActiveTimeline, commits_min: int) -> bool:
    """Return whether enough delta commits completed since the last compaction of either kind."""
    since = max(
        (one.requested_time for one in timeline.completed_writes if _compacts(timeline, one)),
        default="",
    )
    appended = sum(
        1
        for one in timeline.completed_writes
        if one.action is Action.DELTACOMMIT
        and not _compacts(timeline, one)
        and (one.completion_time or "") > since
    )
    return appended >= commits_min


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

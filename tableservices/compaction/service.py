"""Compaction as a service: when it is due; inline after a commit or in rounds of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from filegroups.writing.write_request import FileRules
from tableservices.compaction.execute import (
    CompactionResult,
    execute_compaction,
    plan_compaction,
    schedule_compaction,
)
from tableservices.compaction.plan import CompactionOrder
from tableservices.compaction.settings import CompactionSettings, CompactionTrigger
from tableservices.planned_service import Phase, run_round
from tableservices.service import ServiceResult
from timeline.active_timeline import ActiveTimeline
from timeline.context import TableContext
from timeline.model.commit_metadata import TableType
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import UTC_ZONE, TimelineZone, WallMs

__all__ = ["CompactionService", "is_due"]


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
    return {
        CompactionTrigger.NUM_COMMITS: by_number,
        CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST: by_number,
        CompactionTrigger.TIME_ELAPSED: by_time,
        CompactionTrigger.NUM_AND_TIME: by_number and by_time,
        CompactionTrigger.NUM_OR_TIME: by_number or by_time,
    }[settings.trigger]


def _last_compaction(timeline: ActiveTimeline, *, requested: bool) -> Instant | None:
    """Return the newest completed compaction; with ``requested`` also count pending ones."""
    found = [one for one in timeline.completed_writes if one.action is Action.COMMIT]
    if requested:
        found += [one for one in timeline.pending if one.action is Action.COMPACTION]
    return max(found, key=lambda one: one.requested_time, default=None)


# ---- The service


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionService:
    """Compaction of merge-on-read tables; does nothing for other tables."""

    settings: CompactionSettings
    files: FileRules
    orders: tuple[CompactionOrder, ...] = ()  # strategies of plug-ins
    part: Phase = Phase.BOTH
    name: str = "compact"
    action: Action = Action.COMPACTION

    @property
    def inline(self) -> bool:
        """Return ``hoodie.compact.inline`` or ``hoodie.compact.schedule.inline``."""
        return self.settings.runs_inline or self.settings.plans_inline

    @property
    def beside(self) -> bool:
        """Return ``hoodie.datasource.compaction.async.enable``, unless compaction runs inline."""
        return self.settings.asynchronous and not self.settings.runs_inline

    @property
    def after_commit(self) -> CompactionService:
        """Return the service as a writer runs it."""
        part = Phase.BOTH if self.settings.runs_inline else Phase.SCHEDULE
        return replace(self, part=part)

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Run one round; errors as ``run_round``."""
        if context.config.table_type is not TableType.MERGE_ON_READ:
            return None
        return run_round(context, self, self.part, expiry_ms=self.settings.expiry_ms)

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:
        """Apply the trigger of the settings."""
        return is_due(timeline, self.settings, WallMs(context.world.clock.now_ms()), context.zone)

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the file groups, log files and bytes of a plan made now."""
        snapshot = context.snapshot()
        plan = plan_compaction(context, snapshot, self.settings, self.files, self.orders)
        operations = plan.operations if plan is not None else ()
        return {
            "due": self.is_due(context, snapshot.active),
            "file_groups": len(operations),
            "log_files": sum(len(one.delta_file_paths) for one in operations),
            "log_bytes": int(sum(one.metrics["TOTAL_LOG_FILES_SIZE"] for one in operations)),
            "io_mb": int(sum(one.metrics["TOTAL_IO_MB"] for one in operations)),
        }

    def schedule(self, context: TableContext) -> Instant | None:
        """Schedule a plan; errors as ``schedule_compaction``."""
        return schedule_compaction(context, self.settings, self.files, self.orders)

    def execute(self, context: TableContext, planned: Instant) -> CompactionResult | None:
        """Execute a plan; errors as ``execute_compaction``."""
        return execute_compaction(context, planned, self.files)

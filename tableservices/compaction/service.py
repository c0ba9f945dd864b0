"""Compaction as a service: inline after a commit, or in rounds of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tableservices.compaction.execute import (
    CompactionReceipt,
    execute_compaction,
    plan_compaction,
    schedule_compaction,
)
from tableservices.compaction.plan import CompactionOrder
from tableservices.compaction.settings import CompactionSettings
from tableservices.compaction.trigger import is_due
from tableservices.planned_service import Part, run_round
from tableservices.service import ServiceReceipt
from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.model.instant import Action, Instant
from timeline.model.operations import TableType
from timeline.model.times import WallMs
from timeline.writing.placing import FileRules

__all__ = ["CompactionService"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionService:
    """Compaction of merge-on-read tables; of others there is nothing to do."""

    settings: CompactionSettings
    files: FileRules
    orders: tuple[CompactionOrder, ...] = ()  # strategies of plug-ins
    part: Part = Part.BOTH
    name: str = "compact"
    action: Action = Action.COMPACTION

    @property
    def inline(self) -> bool:
        """``hoodie.compact.inline`` or ``hoodie.compact.schedule.inline``."""
        return self.settings.runs_inline or self.settings.plans_inline

    @property
    def beside(self) -> bool:
        """``hoodie.datasource.compaction.async.enable``, unless it is done after each commit."""
        return self.settings.asynchronous and not self.settings.runs_inline

    @property
    def after_commit(self) -> CompactionService:
        """The same as a writer runs it."""
        part = Part.BOTH if self.settings.runs_inline else Part.SCHEDULE
        return replace(self, part=part)

    def run_once(self, context: TableContext) -> ServiceReceipt | None:
        """One round; errors as ``run_round``."""
        if context.config.table_type is not TableType.MERGE_ON_READ:
            return None
        return run_round(context, self, self.part, expiry_ms=self.settings.expiry_ms)

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:
        """As the settings' trigger says."""
        return is_due(timeline, self.settings, WallMs(context.world.clock.now_ms()), context.zone)

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """File groups, log files and bytes of a plan made now."""
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
        """Errors as ``schedule_compaction``."""
        return schedule_compaction(context, self.settings, self.files, self.orders)

    def execute(self, context: TableContext, planned: Instant) -> CompactionReceipt | None:
        """Errors as ``execute_compaction``."""
        return execute_compaction(context, planned, self.files)

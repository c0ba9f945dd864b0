"""Log compaction as a service: inline after a commit, or in rounds of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from filegroups.writing.write_request import FileRules
from tableservices.logcompaction.execute import (
    LogCompactionResult,
    execute_log_compaction,
    plan_log_compaction,
    schedule_log_compaction,
)
from tableservices.logcompaction.plan import LogCompactionSettings, is_due
from tableservices.planned_service import Phase, run_round
from tableservices.service import ServiceResult
from timeline.active_timeline import ActiveTimeline
from timeline.context import TableContext
from timeline.model.commit_metadata import TableType
from timeline.model.instant import Action, Instant

__all__ = ["LogCompactionService"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionService:
    """Log compaction of merge-on-read tables; schedules only where it is switched on."""

    settings: LogCompactionSettings
    files: FileRules
    part: Phase = Phase.BOTH
    name: str = "logcompact"
    action: Action = Action.LOGCOMPACTION

    @property
    def inline(self) -> bool:
        """Return ``hoodie.log.compaction.inline``."""
        return self.settings.inline

    @property
    def beside(self) -> bool:
        """Return False: Hudi has no key for it."""
        return False

    @property
    def after_commit(self) -> LogCompactionService:
        """Return the service as a writer runs it."""
        return self

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Run one round; errors as ``run_round``."""
        if context.config.table_type is not TableType.MERGE_ON_READ:
            return None
        return run_round(context, self, self.part, expiry_ms=self.settings.expiry_ms)

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:  # noqa: ARG002
        """Apply the settings."""
        wanted = self.settings.enabled or self.settings.inline
        return wanted and is_due(timeline, self.settings.blocks_min)

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the file groups, log files and bytes of a plan made now."""
        snapshot = context.snapshot()
        plan = plan_log_compaction(context, snapshot, self.settings)
        operations = plan.operations if plan is not None else ()
        return {
            "due": self.is_due(context, snapshot.active),
            "file_groups": len(operations),
            "log_files": sum(len(one.delta_file_paths) for one in operations),
            "log_bytes": int(sum(one.metrics["TOTAL_LOG_FILES_SIZE"] for one in operations)),
        }

    def schedule(self, context: TableContext) -> Instant | None:
        """Schedule a plan; errors as ``schedule_log_compaction``."""
        return schedule_log_compaction(context, self.settings)

    def execute(self, context: TableContext, planned: Instant) -> LogCompactionResult | None:
        """Execute a plan; errors as ``execute_log_compaction``."""
        return execute_log_compaction(context, planned, self.files)

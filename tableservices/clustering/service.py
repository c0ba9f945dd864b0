"""Clustering as a service: inline after a commit, or in rounds of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from filegroups.writing.write_request import FileRules
from tableservices.clustering.execute import ClusteringResult, execute_clustering
from tableservices.clustering.plan import (
    clusterings,
    commits_since_clustering,
    plan_clustering,
    schedule_clustering,
)
from tableservices.clustering.settings import ClusteringSettings
from tableservices.plan_execution import is_plan_leased
from tableservices.planned_service import Phase, run_round
from tableservices.schedule_plan import pending_plans
from tableservices.service import ServiceResult
from timeline.active_timeline import ActiveTimeline
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableContext
from timeline.model.instant import Action, Instant

__all__ = ["ClusteringService"]

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringService:
    """
    Clustering.

    Args:
        settings: Of the clustering.
        files: How to write base files.
        part: The phases of a round.
        by_writer: Whether a writer runs it; then the inline number of commits is the trigger.
    """

    settings: ClusteringSettings
    files: FileRules
    part: Phase = Phase.BOTH
    by_writer: bool = False
    name: str = "cluster"
    action: Action = Action.CLUSTERING

    @property
    def inline(self) -> bool:
        """Return ``hoodie.clustering.inline`` or ``hoodie.clustering.schedule.inline``."""
        return self.settings.inline or self.settings.schedule_inline

    @property
    def beside(self) -> bool:
        """Return ``hoodie.clustering.async.enabled``, unless clustering runs inline."""
        return self.settings.asynchronous and not self.settings.inline

    @property
    def after_commit(self) -> ClusteringService:
        """Return the service as a writer runs it."""
        part = Phase.BOTH if self.settings.inline else Phase.SCHEDULE
        return replace(self, part=part, by_writer=True)

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Expire old plans without an executor, then run one round; errors as ``run_round``."""
        if self.settings.expires and self.part.executes:
            self._expire(context)
        return run_round(context, self, self.part, expiry_ms=self.settings.expiry_ms)

    def _expire(self, context: TableContext) -> None:
        age_ms = self.settings.expiration_mins * _MINUTE_MS
        oldest = context.zone.from_then_on(context.world.clock.now_ms() - age_ms)
        for planned in pending_plans(context.active(), self.action):
            if planned.requested_time < oldest and not is_plan_leased(context, planned):
                cancel_pending_plan(context, planned)

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:
        """
        Return whether enough commits completed since the last clustering.

        A worker schedules only if ``hoodie.clustering.async.enabled`` is set; else it executes the
        plans of others.
        """
        wanted = self.settings.inline_commits if self.by_writer else self.settings.async_commits
        if not (self.by_writer or self.settings.asynchronous):
            return False
        clustered = clusterings(context.commits, timeline)
        return commits_since_clustering(timeline, clustered) >= wanted

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the groups, file groups and bytes of a plan made now."""
        snapshot = context.snapshot()
        groups = plan_clustering(context, snapshot, self.settings)
        return {
            "due": self.is_due(context, snapshot.active),
            "groups": len(groups),
            "file_groups": sum(len(group.slices) for group in groups),
            "output_files": sum(group.output_files for group in groups),
            "bytes": sum(group.size_bytes for group in groups),
        }

    def schedule(self, context: TableContext) -> Instant | None:
        """Schedule a plan; errors as ``schedule_clustering``."""
        return schedule_clustering(context, self.settings)

    def execute(self, context: TableContext, planned: Instant) -> ClusteringResult | None:
        """Execute a plan; errors as ``execute_clustering``."""
        return execute_clustering(context, planned, self.settings, self.files)

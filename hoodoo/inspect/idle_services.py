"""The reason why a run of a table service had nothing to do."""

from __future__ import annotations

from filegroups.metadata_table.reading import lag_of_timelines
from hoodoo.sync.service import CatalogSyncService
from tableservices.archiving.execute import ArchivingService
from tableservices.archiving.plan import NO_METADATA_COMPACTION, differing_from_metadata_table
from tableservices.cleaning.execute import CleaningService
from tableservices.cleaning.plan import is_due as cleaning_is_due
from tableservices.clustering.execute import ClusteringService
from tableservices.compaction.execute import CompactionService
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionService, LogCompactionSettings
from tableservices.metadata_table.execute import MetadataTableService, idle_reason_of
from tableservices.metadata_table.plan import newest_compaction, read_metadata_timeline
from tableservices.service import PLANS, TableService
from tableservices.ttl.execute import TtlService
from timeline.context import TableContext
from timeline.errors import counted
from timeline.model.commit_metadata import TableType
from timeline.properties.options import OptionSettings
from timeline.properties.properties_file import load_config


def idle_reason(context: TableContext, service: TableService, *, now: bool = False) -> str:
    """
    Return why a run of a service had nothing to do; empty for a plug-in's service.

    Outside: nothing, or for clustering the commits that it has not read yet.

    Args:
        context: The table, right after the run.
        service: The service.
        now: Whether the run was asked for, due or not.
    """
    timeline = context.cached_snapshot().active
    if isinstance(service, CleaningService):
        if cleaning_is_due(timeline, service.settings):
            return "all files are within the retention"
        return _after_commits("trigger_commits", service.settings.trigger_commits, service.settings)
    if isinstance(service, MetadataTableService):
        return idle_reason_of(context, service.settings)
    if isinstance(service, ArchivingService):
        archiving, commits = service.rules.archiving, len(timeline.completed_writes)
        if commits > archiving.commits_kept_max:
            return _what_holds_archive(context)
        key = archiving.options["commits_kept_max"].key
        return f"{counted(commits, 'commit')}; it runs above {archiving.commits_kept_max} ({key})"
    if isinstance(service, TtlService):
        key = service.settings.options["days_retained"].key
        return (
            "no partition has expired"
            if service.settings.days_retained > 0
            else f"{key} is not set"
        )
    if isinstance(service, CatalogSyncService):
        key = service.settings.options["hive_enabled"].key
        return "the catalogs are current" if service.settings.is_on else f"{key} is false"
    planned = service
    if not isinstance(planned, CompactionService | LogCompactionService | ClusteringService):
        return ""
    if not isinstance(planned, ClusteringService) and (
        context.config.table_type is not TableType.MERGE_ON_READ
    ):
        return "a copy-on-write table has no log files"
    if not planned.phase.schedules:
        return "no pending plan"
    if now or planned.is_due(context, timeline):
        return "no file group needs it"
    return _not_due(planned)


def _what_holds_archive(context: TableContext) -> str:
    """
    Return which instant is still needed.

    Outside: 1 get; with a metadata table 1 list, and the calls of ``lag_of_timelines``.
    """
    storage, snapshot = context.ports.storage, context.cached_snapshot()
    timeline = snapshot.active
    if load_config(storage).metadata_table_on:
        own = read_metadata_timeline(storage)
        if newest_compaction(own) is None:
            return NO_METADATA_COMPACTION
        if differing := lag_of_timelines(storage, own, snapshot).differing:
            return differing_from_metadata_table(differing[0])
    pending = next(iter(timeline.pending), None)
    if pending is not None and pending.requested_time <= timeline.completed_writes[0].newest_time:
        if pending.action in PLANS:
            return (
                f"the plan {pending} is pending: execute it, or run 'hoodoo services cancel TABLE "
                f"{pending.requested_time}'"
            )
        return (
            f"{pending} is pending. If its writer is dead, run 'hoodoo explain TABLE "
            f"{pending.requested_time} --resolve'"
        )
    return "the oldest instants are still needed"


def _not_due(service: CompactionService | LogCompactionService | ClusteringService) -> str:
    settings = service.settings
    if isinstance(settings, CompactionSettings):
        limits = f"{counted(settings.commits_max, 'commit')}, {settings.seconds_max} s"
        key = settings.options["trigger"].key
        return f"not due by {settings.trigger.value} of {limits} ({key})"
    if isinstance(settings, LogCompactionSettings):
        if settings.enabled or settings.inline:
            return _after_commits("blocks_min", settings.blocks_min, settings)
        return f"{settings.options['enabled'].key} is off"
    if settings.asynchronous:
        return _after_commits("async_commits", settings.async_commits, settings)
    return f"{settings.options['asynchronous'].key} is off"


def _after_commits(name: str, count: int, settings: OptionSettings) -> str:
    times = "each commit" if count == 1 else counted(count, "commit")
    return f"not due; it runs after {times} ({settings.options[name].key})"

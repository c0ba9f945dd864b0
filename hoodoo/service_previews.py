"""What a service would do now, in figures: ``--dry-run`` of services; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tableservices.archiving.execute import preview as archive_preview
from tableservices.archiving.settings import ArchiveRules
from tableservices.cleaning.facts import gather
from tableservices.cleaning.plan import plan_clean
from tableservices.cleaning.refusal import refuse_uncleanable
from tableservices.cleaning.settings import CleaningSettings
from tableservices.planned_service import PlannedService
from tableservices.service import TableService
from tableservices.ttl.execute import expired_partitions
from tableservices.ttl.settings import TtlSettings
from timeline.context import TableContext
from timeline.model.filenames import parse_base_file_name, parse_log_file_name
from timeline.properties.properties_file import load_config
from timeline.readable import refuse_unwritable
from timeline.reading.read import view_of

__all__ = ["preview"]


def preview(
    context: TableContext,
    service: TableService,
    properties: Mapping[str, str],
    planning: Mapping[str, PlannedService],
) -> dict[str, object]:
    """
    What a run of the service would do now, with file groups and bytes where files are met.

    Outside: what its planning reads; of cleaning 1 stat more for each file that would go.

    Args:
        context: The table.
        service: Any of this release; of a plug-in's nothing is known.
        properties: Effective ones.
        planning: Those that put their plans on the timeline, by name.

    Raises:
        SettingError: A property of the service is wrong.
        MetadataTableOnError: As the run itself.
        Others: As planning it.
    """
    if service.name in planning:
        return {"would_plan": dict(planning[service.name].preview(context))}
    if service.name == "clean":
        return _clean(context, CleaningSettings.from_properties(properties))
    if service.name == "archive":
        rules = ArchiveRules.from_properties(properties)
        archived = list(archive_preview(context, rules))
        if archived:
            refuse_uncleanable(context, "archive")
        return {"would_archive": archived}
    if service.name == "ttl":
        return _expire(context, TtlSettings.from_properties(properties))
    return {}


def _clean(context: TableContext, settings: CleaningSettings) -> dict[str, object]:
    refuse_uncleanable(context)
    paths = plan_clean(gather(context, context.snapshot(), settings).facts, settings).paths
    found = context.world.executor.map(context.world.storage.stat, list(paths))
    return {
        "would_delete": list(paths),
        "file_groups": len(set(_file_groups(paths))),
        "bytes": sum(one.size_bytes for one in found if one is not None),
    }


def _file_groups(paths: Iterable[str]) -> Iterable[tuple[str, str]]:
    for path in paths:
        partition_path, _, name = path.rpartition("/")
        file = parse_base_file_name(name) or parse_log_file_name(name)
        if file is not None:
            yield partition_path, file.file_id


def _expire(context: TableContext, settings: TtlSettings) -> dict[str, object]:
    if settings.days_retained > 0:
        config, limits = load_config(context.world.storage), context.limits
        refuse_unwritable(config, without_metadata_table=limits.without_metadata_table)
    partitions = expired_partitions(context, settings)
    # No partition at all would mean every partition.
    view = view_of(context, context.snapshot())
    slices = view.latest_slices(partitions) if partitions else []
    return {
        "would_delete_partitions": list(partitions),
        "file_groups": len(slices),
        "bytes": sum(one.size_bytes for one in slices),
    }

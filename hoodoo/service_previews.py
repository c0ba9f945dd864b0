"""Dry runs of table services (``--dry-run``): the work in figures, without any change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from filegroups.reading.scan import view_of
from filegroups.supported import load_writable
from tableservices.archiving.execute import preview_archive as archive_preview
from tableservices.archiving.plan import ArchiveRules
from tableservices.cleaning.plan import (
    CleaningSettings,
    collect_clean_input,
    plan_clean,
    refuse_uncleanable,
)
from tableservices.metadata_table.execute import MetadataTableService
from tableservices.planned_service import PlannedService
from tableservices.service import TableService
from tableservices.ttl.execute import TtlSettings, expired_partitions
from timeline.context import TableContext
from timeline.model.file_names import parse_base_file_name, parse_log_file_name


def preview(
    context: TableContext,
    service: TableService,
    properties: Mapping[str, str],
    planning: Mapping[str, PlannedService],
) -> dict[str, object]:
    """
    Return the work of a run of the service now, with file groups and bytes of its files.

    Outside: the reads of its planning; for cleaning also 1 stat for each file to delete.

    Args:
        context: The table.
        service: A service of this release; a plug-in's service returns an empty result.
        properties: Effective properties.
        planning: The services with plans on the timeline, by name.

    Raises:
        SettingError: A property of the service is wrong.
        MetadataTableOnError: As the run itself.
        Others: As the planning of the service.
    """
    if service.name in planning:
        return {"would_plan": dict(planning[service.name].preview(context))}
    if isinstance(service, MetadataTableService):
        return {"would_plan": dict(service.preview(context))}
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
    paths = plan_clean(
        collect_clean_input(context, context.snapshot(), settings).clean_input, settings
    ).paths
    found = context.ports.executor.map(context.ports.storage.stat, list(paths))
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
        load_writable(context)
    partitions = expired_partitions(context, settings)
    # An empty list would mean all partitions.
    view = view_of(context, context.snapshot())
    slices = view.latest_slices(partitions) if partitions else []
    return {
        "would_delete_partitions": list(partitions),
        "file_groups": len(slices),
        "bytes": sum(one.size_bytes for one in slices),
    }

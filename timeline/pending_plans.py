"""
File groups owned by pending service plans: writers keep their hands off them (CL-2).

Java Hudi's clustering does not check at its completion what happened to its input, so a
write into a file group of a pending clustering would silently vanish; it is refused here.
"""

from __future__ import annotations

from timeline.active import ActiveTimeline
from timeline.codecs.instant_avro import decode_compaction_plan, decode_requested_replace
from timeline.context import TableContext
from timeline.model.claim import FileGroupId
from timeline.model.filenames import instant_file_name
from timeline.model.instant import Action, Instant, State
from timeline.model.times import InstantTime
from timeline.ports.storage import ObjectMissingError

__all__ = ["file_groups_in_clustering", "moves_rows_only", "pending_compactions"]


def file_groups_in_clustering(
    context: TableContext, timeline: ActiveTimeline
) -> dict[FileGroupId, Instant]:
    """File group -> the pending clustering that will replace it. Outside: 1 get per plan."""
    owned: dict[FileGroupId, Instant] = {}
    for instant in timeline.pending:
        if instant.action not in (Action.CLUSTERING, Action.REPLACECOMMIT):
            continue
        data = _requested_bytes(context, instant)
        if not data:
            continue
        path = context.instant_path(_requested_name(instant))
        plan = decode_requested_replace(data, path=path).clustering_plan
        if plan is None:
            continue
        for partition_path, file_id in plan.file_groups():
            owned[FileGroupId(partition_path, file_id)] = instant
    return owned


def pending_compactions(
    context: TableContext, timeline: ActiveTimeline
) -> dict[FileGroupId, list[InstantTime]]:
    """File group -> requested times of its pending compactions. Outside: 1 get per plan."""
    owned: dict[FileGroupId, list[InstantTime]] = {}
    for instant in timeline.pending:
        if instant.action is not Action.COMPACTION:
            continue
        data = _requested_bytes(context, instant)
        if not data:
            continue
        plan = decode_compaction_plan(data, path=context.instant_path(_requested_name(instant)))
        for partition_path, file_id in plan.file_groups():
            group = FileGroupId(partition_path, file_id)
            owned.setdefault(group, []).append(instant.requested_time)
    return owned


def moves_rows_only(context: TableContext, instant: Instant) -> bool:
    """
    Whether a pending instant is a clustering under the name of a replacecommit.

    Only its plan tells it apart in version 6, which has no action of that name (fmt 11.2).
    Outside: 1 get for a replacecommit of such a table, else nothing.
    """
    if instant.action is not Action.REPLACECOMMIT or context.config.timeline_layout_version != 1:
        return False
    path = context.instant_path(_requested_name(instant))
    data = _requested_bytes(context, instant)
    return decode_requested_replace(data, path=path).clustering_plan is not None


def _requested_name(instant: Instant) -> str:
    return instant_file_name(
        Instant(action=instant.action, requested_time=instant.requested_time, state=State.REQUESTED)
    )


def _requested_bytes(context: TableContext, instant: Instant) -> bytes:
    try:
        return context.world.storage.read(context.instant_path(_requested_name(instant)))
    except ObjectMissingError:
        return b""

"""
Find the file groups of pending service plans, and those that writers must avoid (CL-2).

hoodoo's clustering validates again at its completion and leaves out changed file groups (CL-1), so
a writer may ignore it. Java Hudi's clustering does not. A write into a file group of a clustering
that Java planned, or may execute, would silently vanish, so it is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from timeline.codecs.instant_avro import (
    decode_compaction_plan,
    decode_requested_replace,
    decode_rollback_plan,
)
from timeline.context import TableContext
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import instant_file_name, pending_file_names, timeline_path
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.plans import ClusteringPlan
from timeline.ports.ports import ObjectMissingError
from timeline.properties.setting_enums import ClusteringUpdates
from timeline.rules.conflicts import Rejected, RuleId
from timeline.snapshot import ActiveTimeline

#: In the extra metadata of a clustering plan: its planner validates again (CL-1).
RECHECKED = "hoodoo.clustering.rechecked"

#: File group -> the requested times of its pending compactions.
PendingCompactions: TypeAlias = Mapping[FileGroupId, Sequence[InstantTime]]


def file_groups_in_clustering(
    context: TableContext, timeline: ActiveTimeline
) -> dict[FileGroupId, Instant]:
    """Map each file group to the pending clustering that replaces it. Outside: 1 get per plan."""
    return {
        FileGroupId(partition_path, file_id): instant
        for instant, plan in _pending_clusterings(context, timeline)
        for partition_path, file_id in plan.file_groups()
    }


def file_groups_to_avoid(
    context: TableContext, timeline: ActiveTimeline
) -> dict[FileGroupId, Instant]:
    """
    Map each file group to the pending clustering with which a write into it conflicts.

    This covers all plans if writers are to be rejected or another engine may complete the plan,
    else only plans that another engine made. Outside: 1 get per plan.
    """
    updates = context.limits.clustering_updates
    foreign = context.has_foreign_writers
    all_of_them = foreign or updates is ClusteringUpdates.REJECT
    return {
        FileGroupId(partition_path, file_id): instant
        for instant, plan in _pending_clusterings(context, timeline)
        if all_of_them or RECHECKED not in plan.extra_metadata
        for partition_path, file_id in plan.file_groups()
    }


def plan_conflict(
    owned: Mapping[FileGroupId, Instant], groups: Iterable[FileGroupId]
) -> Rejected | None:
    """
    Return the rejection of a write into file groups of pending plans; None if none is in a plan.

    Args:
        owned: As ``file_groups_to_avoid``.
        groups: The file groups that are written or replaced.
    """
    conflicting = tuple(sorted(owned.keys() & set(groups)))
    if not conflicting:
        return None
    plans = tuple(dict.fromkeys(owned[group] for group in conflicting))
    return Rejected(
        RuleId.PENDING_PLAN_OWNS_FILE_GROUP,
        f"a pending clustering contains it and would lose the write: {plans[0]}. Let the "
        f"clustering complete, or run 'hoodoo services cancel TABLE {plans[0].requested_time}'",
        (),
        conflicting,
        retry_can_succeed=False,
        plans=plans,
    )


def _pending_clusterings(
    context: TableContext, timeline: ActiveTimeline
) -> Iterator[tuple[Instant, ClusteringPlan]]:
    for instant in timeline.pending:
        if instant.action not in (Action.CLUSTERING, Action.REPLACECOMMIT):
            continue
        data = _requested_bytes(context, instant)
        if not data:
            continue
        path = context.instant_path(_requested_name(instant))
        plan = decode_requested_replace(data, path=path).clustering_plan
        if plan is not None:
            yield instant, plan


def file_groups_in_plans(context: TableContext, timeline: ActiveTimeline) -> frozenset[FileGroupId]:
    """Return the file groups of all pending plans; no other plan may include them (PLAN-3)."""
    return frozenset(
        {
            *file_groups_in_clustering(context, timeline),
            *pending_compactions(context, timeline),
            *pending_compactions(context, timeline, action=Action.LOGCOMPACTION),
        }
    )


def pending_compactions(
    context: TableContext, timeline: ActiveTimeline, *, action: Action = Action.COMPACTION
) -> dict[FileGroupId, list[InstantTime]]:
    """
    Map each file group to its pending compactions' requested times. Outside: 1 get per plan.

    With ``LOGCOMPACTION`` it lists log compactions, which open no slices.
    """
    owned: dict[FileGroupId, list[InstantTime]] = {}
    for instant in timeline.pending:
        if instant.action is not action:
            continue
        data = _requested_bytes(context, instant)
        if not data:
            continue
        plan = decode_compaction_plan(data, path=context.instant_path(_requested_name(instant)))
        for partition_path, file_id in plan.file_groups():
            group = FileGroupId(partition_path, file_id)
            owned.setdefault(group, []).append(instant.requested_time)
    return owned


def joined_logs(context: TableContext, instant: Instant) -> dict[FileGroupId, frozenset[str]]:
    """
    Map each file group to the names of the log files that a log compaction merged.

    Empty if the plan is missing. Outside: 1 get.
    """
    planned = replace(instant, action=Action.LOGCOMPACTION)
    data = _requested_bytes(context, planned)
    if not data:
        return {}
    plan = decode_compaction_plan(data, path=context.instant_path(_requested_name(planned)))
    return {
        FileGroupId(one.partition_path or "", one.file_id or ""): frozenset(
            path.rpartition("/")[2] for path in one.delta_file_paths
        )
        for one in plan.operations
    }


def rollback_target(context: TableContext, instant: Instant) -> InstantTime | None:
    """
    Return the target that a rollback's plan names; None without a plan. Outside: 1 get.

    Raises:
        CorruptTableError: The plan is damaged.
    """
    requested = pending_file_names(Action.ROLLBACK, instant.requested_time)[-1]
    path = timeline_path(requested)
    try:
        plan = decode_rollback_plan(context.ports.storage.read(path), path=path)
    except ObjectMissingError:
        return None
    return plan.instant_to_rollback.requested_time if plan.instant_to_rollback else None


def pending_rollback_of(
    context: TableContext, timeline: ActiveTimeline, target: InstantTime
) -> Instant | None:
    """
    Return the pending rollback whose plan names this write.

    In a commit section it is never a rollback of ours. Damaged plans are skipped. Outside: 1 get
    per pending rollback.
    """
    for instant in timeline.pending:
        if instant.action is not Action.ROLLBACK:
            continue
        try:
            if rollback_target(context, instant) == target:
                return instant
        except CorruptTableError:
            continue
    return None


def moves_rows_only(context: TableContext, instant: Instant) -> bool:
    """
    Return whether a pending instant is a clustering under the name of a replacecommit.

    Version 6 has no clustering action, so only the plan distinguishes the two (fmt 11.2). Outside:
    1 get for a replacecommit of such a table, else nothing.
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
        return context.ports.storage.read(context.instant_path(_requested_name(instant)))
    except ObjectMissingError:
        return b""

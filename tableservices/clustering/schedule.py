"""When slices become a plan on the timeline, and what earlier clusterings did."""

from __future__ import annotations

from collections.abc import Sequence

from tableservices.clustering.curves import Curve
from tableservices.clustering.plan import SliceGroup, chosen_partitions, plan_groups
from tableservices.clustering.planned import plan_bytes
from tableservices.clustering.refusal import (
    refuse_bucket_names,
    refuse_unclusterable,
    refuse_unsortable,
)
from tableservices.clustering.settings import ClusteringSettings
from tableservices.scheduling import schedule
from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.model.instant import Action, Instant
from timeline.model.times import InstantTime
from timeline.reading.pending_plans import file_groups_in_plans
from timeline.reading.read import view_of
from timeline.reading.snapshot import CommitReader, Snapshot

__all__ = [
    "CLUSTER",
    "ORDER",
    "clusterings",
    "order_text",
    "plan_clustering",
    "schedule_clustering",
]

CLUSTER = "CLUSTER"  # Hudi's name of the operation, in the commit metadata
ORDER = "hoodoo.clustering.order"  # how rows were ordered, in its extra metadata
_HOUR_MS = 3_600_000


def clusterings(commits: CommitReader, timeline: ActiveTimeline) -> dict[InstantTime, str | None]:
    """
    Requested times of completed clusterings, and how they ordered rows; None of Java's.

    Outside: 1 get per replacecommit, kept.
    """
    found = {}
    for one in timeline.completed_writes:
        if one.action.completes_as is Action.REPLACECOMMIT:
            metadata = commits.read(one)
            if metadata.operation_type == CLUSTER:
                found[one.requested_time] = metadata.extra_metadata.get(ORDER)
    return found


def order_text(columns: Sequence[str], curve: Curve) -> str:
    """What the commit metadata keeps of the order of rows."""
    return " ".join((curve.value, *columns)) if columns else "kept"


def plan_clustering(
    context: TableContext, snapshot: Snapshot, settings: ClusteringSettings
) -> tuple[SliceGroup, ...]:
    """
    What a clustering of this snapshot would rewrite; nothing is changed.

    Outside: 1 list per partition, 1 get per pending plan and completed replacecommit.

    Args:
        context: The table.
        snapshot: What is visible.
        settings: What is wanted.

    Raises:
        InvalidInputError: A sort column is not there or has no order.
        UnsupportedTableError: The table's buckets must stay as they are, or it is not written.
        TableConfigConflictError: Its metadata table is on.
    """
    schema = refuse_unclusterable(context, snapshot)
    refuse_unsortable(schema, settings.sort_columns)
    view = view_of(context, snapshot)
    hour = int(context.zone.instant_time(context.world.clock.now_ms())[8:10])
    partitions = chosen_partitions(view.partition_paths(), settings, hour=hour)
    slices = view.latest_slices(partitions)
    refuse_bucket_names(one.file_group for one in slices)
    return plan_groups(
        slices,
        file_groups_in_plans(context, snapshot.active),
        settings,
        clustered=frozenset(
            time
            for time, order in clusterings(context.commits, snapshot.active).items()
            if order == order_text(settings.sort_columns, settings.curve)
        ),
    )


def schedule_clustering(context: TableContext, settings: ClusteringSettings) -> Instant | None:
    """
    Put a plan on the timeline; None when there is nothing to cluster.

    Arguments, calls outside and errors: as ``plan_clustering`` and ``schedule``.
    """

    def build(snapshot: Snapshot) -> bytes | None:
        groups = plan_clustering(context, snapshot, settings)
        return plan_bytes(context.world.storage, groups, settings) if groups else None

    return schedule(context, Action.CLUSTERING, build)

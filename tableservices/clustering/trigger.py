"""When a clustering is worth planning; pure."""

from __future__ import annotations

from collections.abc import Collection

from timeline.active import ActiveTimeline
from timeline.model.instant import Action
from timeline.model.times import InstantTime

__all__ = ["commits_since_clustering"]


def commits_since_clustering(timeline: ActiveTimeline, clustered: Collection[InstantTime]) -> int:
    """
    How many writes completed since the last clustering was requested, pending ones included.

    Args:
        timeline: All instants.
        clustered: Requested times of completed clusterings, which on the timeline are
            replacecommits like others.
    """
    pending = {one.requested_time for one in timeline.pending if one.action is Action.CLUSTERING}
    last = max({*clustered, *pending}, default="")
    return sum(
        1
        for one in timeline.completed_writes
        if one.requested_time > last and one.requested_time not in clustered
    )

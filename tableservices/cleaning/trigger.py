"""When a clean is worth planning, and which partitions it has to look at; pure."""

from __future__ import annotations

from collections.abc import Iterable

from tableservices.cleaning.settings import CleaningSettings
from timeline.active import ActiveTimeline
from timeline.model.instant import Action, Instant

__all__ = ["is_due", "last_completed_clean"]


def last_completed_clean(instants: Iterable[Instant]) -> Instant | None:
    """The clean that completed last."""
    cleans = [one for one in instants if one.action is Action.CLEAN and one.completed]
    return max(cleans, key=lambda one: one.completion_time or "", default=None)


def is_due(timeline: ActiveTimeline, settings: CleaningSettings) -> bool:
    """
    Whether enough commits completed since the last clean was requested.

    Never while a restore is under way: it decides anew which slices are the latest.
    """
    if any(one.action is Action.RESTORE for one in timeline.pending):
        return False
    last = last_completed_clean(timeline.instants)
    since = sum(
        1
        for one in timeline.completed_writes
        if last is None or (one.completion_time or "") > last.requested_time
    )
    return since >= settings.trigger_commits

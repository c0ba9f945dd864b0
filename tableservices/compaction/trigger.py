"""When a compaction is due; pure."""

from __future__ import annotations

from tableservices.compaction.settings import CompactionSettings, CompactionTrigger
from timeline.active import ActiveTimeline
from timeline.model.instant import Action, Instant
from timeline.model.times import WallMs
from timeline.model.zones import UTC_ZONE, TimelineZone

__all__ = ["is_due"]


def is_due(
    timeline: ActiveTimeline,
    settings: CompactionSettings,
    now: WallMs,
    zone: TimelineZone = UTC_ZONE,
) -> bool:
    """
    Whether enough was appended, or enough time passed, since the last compaction (Hudi's rule).

    Never before the first delta commit, nor while a restore is under way, which decides anew
    what there is to compact.
    """
    if any(one.action is Action.RESTORE for one in timeline.pending):
        return False
    appended = [one for one in timeline.completed_writes if one.action is Action.DELTACOMMIT]
    if not appended:
        return False
    asked = settings.trigger is CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST
    last = _last_compaction(timeline, requested=asked)
    since = last.requested_time if last is not None else ""
    enough = sum(1 for one in appended if (one.completion_time or "") > since)
    began = last or appended[0]
    elapsed_s = (now - zone.wall_ms(began.requested_time)) // 1_000
    by_number = enough >= settings.commits_max
    by_time = enough > 0 and elapsed_s >= settings.seconds_max
    return {
        CompactionTrigger.NUM_COMMITS: by_number,
        CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST: by_number,
        CompactionTrigger.TIME_ELAPSED: by_time,
        CompactionTrigger.NUM_AND_TIME: by_number and by_time,
        CompactionTrigger.NUM_OR_TIME: by_number or by_time,
    }[settings.trigger]


def _last_compaction(timeline: ActiveTimeline, *, requested: bool) -> Instant | None:
    """The newest completed compaction; with ``requested`` a newer one that is only planned."""
    found = [one for one in timeline.completed_writes if one.action is Action.COMMIT]
    if requested:
        found += [one for one in timeline.pending if one.action is Action.COMPACTION]
    return max(found, key=lambda one: one.requested_time, default=None)

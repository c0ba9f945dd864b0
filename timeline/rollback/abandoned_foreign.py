"""
Upkeep that another engine planned and did not finish, told apart from what it is still at.

Java Hudi plans a rollback under the lock and deletes without it; whoever comes later finds
its plan and carries it out. So do we, once nobody seems to be at it any more: a rollback
left pending would keep savepoints, restores and Java's own cleaning from going on.
"""

from __future__ import annotations

import re

from timeline.active_timeline import ActiveTimeline
from timeline.commit.apply import data_files_of
from timeline.commit.concurrent_commits import rollback_target
from timeline.context import TableContext
from timeline.errors import CorruptTableError
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.layout import timeline_path
from timeline.model.file_names import pending_file_names
from timeline.model.instant import WRITE_ACTIONS, Instant
from timeline.model.instant_time import InstantTime
from timeline.ports.storage import ObjectMissingError

__all__ = [
    "completed_before_rollback",
    "is_abandoned",
    "requested_age_ms",
    "requested_plan_bytes",
    "vanished_target",
]

_TIME = re.compile(r"\d{17}|\d{14}", re.ASCII)


def is_abandoned(context: TableContext, instant: Instant) -> bool:
    """
    Whether nobody is at this pending upkeep of another engine, as far as can be told.

    Its requested file is older than the tolerated silence of writers and its heartbeat, which
    few releases give a rollback, is not fresh. Outside: 1 stat, 1 list.
    """
    storage, limits = context.world.storage, context.limits.heartbeat
    age_ms = requested_age_ms(context, instant)
    if age_ms is None or age_ms <= limits.tolerated_ms:
        return False
    return bool(instants_with_expired_heartbeat(storage, (instant.requested_time,), limits))


def requested_age_ms(context: TableContext, instant: Instant) -> int | None:
    """For how long pending upkeep was requested; None without a requested file. Outside: 1 stat."""
    storage = context.world.storage
    stat = storage.stat(_requested_path(instant))
    return None if stat is None else storage.now_ms() - stat.modified_ms


def requested_plan_bytes(context: TableContext, instant: Instant) -> bytes:
    """What its owner requested. Outside: 1 get."""
    try:
        return context.world.storage.read(_requested_path(instant))
    except ObjectMissingError as error:
        raise CorruptTableError(
            f"the plan of a pending instant is gone; list the timeline again: {instant}",
            kind="no_plan",
            requested_time=instant.requested_time,
        ) from error


def vanished_target(
    context: TableContext, timeline: ActiveTimeline, instant: Instant
) -> InstantTime | None:
    """
    The write a rollback had taken off the timeline before its owner died, else None.

    None as well where the plan cannot be believed: it is damaged, or files of the time it
    names may be those of an archived commit (SEC2). Outside: 1 get; the listing of its files and
    the history's times when it lies below the timeline.
    """
    try:
        target = rollback_target(context, instant)
    except CorruptTableError:
        return None
    if target is None or not _TIME.fullmatch(target):
        return None
    if any(
        one.action in WRITE_ACTIONS and one.requested_time == target for one in timeline.instants
    ):
        return None
    if timeline.first_write_time is None or target < timeline.first_write_time:
        archived = context.history.times()
        if not archived.rules_out(target) and data_files_of(context.world.storage, target):
            return None
    return target


def completed_before_rollback(
    context: TableContext, timeline: ActiveTimeline, instant: Instant
) -> bool:
    """
    Whether the target of a rollback completed after the rollback was requested.

    So it is when a try at a plan was to be undone and another try carried the plan out: carried
    out now, the rollback could only harm. Outside: 1 get, and the history's times.
    """
    try:
        target = rollback_target(context, instant)
    except CorruptTableError:
        return False
    for one in timeline.completed_writes:
        if one.requested_time == target:
            return (one.completion_time or "") > instant.requested_time
    return context.history.times().completions.get(target or "", "") > instant.requested_time


def _requested_path(instant: Instant) -> str:
    return timeline_path(pending_file_names(instant.action, instant.requested_time)[-1])

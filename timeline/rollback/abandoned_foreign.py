"""
Recognise abandoned rollbacks: planned by another engine, not completed, with no live process.

Java Hudi plans a rollback under the lock and deletes without it. A later process finds the plan and
executes it. This engine does so too, once the instant seems abandoned: a pending rollback would
block savepoints, restores and Java's own cleaning.
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
    Return whether a pending service instant of another engine seems abandoned.

    Its requested file is older than the tolerated interval of heartbeats, and its heartbeat is not
    fresh. Few releases write a heartbeat for a rollback. Outside: 1 stat, 1 list.
    """
    storage, limits = context.world.storage, context.limits.heartbeat
    age_ms = requested_age_ms(context, instant)
    if age_ms is None or age_ms <= limits.tolerated_ms:
        return False
    return bool(instants_with_expired_heartbeat(storage, (instant.requested_time,), limits))


def requested_age_ms(context: TableContext, instant: Instant) -> int | None:
    """Return the age of the requested file in ms; None without such a file. Outside: 1 stat."""
    storage = context.world.storage
    stat = storage.stat(_requested_path(instant))
    return None if stat is None else storage.now_ms() - stat.modified_ms


def requested_plan_bytes(context: TableContext, instant: Instant) -> bytes:
    """Return the plan that its owner requested. Outside: 1 get."""
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
    Return the write that a rollback removed from the timeline before its owner died, else None.

    Returns None also if the plan cannot be trusted: it is damaged, or files with the time it names
    may belong to an archived commit (SEC2). Outside: 1 get; the listing of its files and the
    archived timeline's times if it is older than the timeline.
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
    Return whether the target of a rollback completed after the rollback was requested.

    This happens if an attempt to execute a plan was to be rolled back and another attempt completed
    the plan. Executing the rollback now could only do harm. Outside: 1 get, and the archived
    timeline's times.
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

"""
Compare the timeline of a table with that of its metadata table: what counts, and what is missing.

An instant counts if it is completed in the metadata table and not pending on the table. The services
of the metadata table have instants of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timeline.model.instant import Action, Instant
from timeline.model.instant_time import EARLIEST, InstantTime
from timeline.model.metadata_table import BUILDING
from timeline.ports.ports import Storage
from timeline.snapshot import ActiveTimeline, Snapshot, TimelineReader

#: The actions of the table that have a deltacommit in the metadata table.
_RECORDED: Final = frozenset(
    {Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.CLEAN}
)
_REMOVING: Final = frozenset({Action.RESTORE, Action.ROLLBACK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """
    The difference between the timelines of the table and of its metadata table.

    Args:
        behind: Completed instants of the table that the metadata table lacks. Their files and keys
            are missing in it.
        pending: Completed in the metadata table and pending on the table: a commit in progress, or
            one that crashed. They do not count.
        unknown: Completed in the metadata table and unknown to the table, for example rolled back on
            the table only. They count, as in Java.
        removing: Restores and rollbacks that are pending on the table and completed in the metadata
            table. Until they complete, its base files have records of removed writes (MDT-12).
    """

    behind: tuple[InstantTime, ...] = ()
    pending: tuple[InstantTime, ...] = ()
    unknown: tuple[InstantTime, ...] = ()
    removing: tuple[InstantTime, ...] = ()

    @property
    def differing(self) -> tuple[InstantTime, ...]:
        """The instants that only one of the timelines has, oldest first."""
        return tuple(sorted((*self.behind, *self.unknown)))

    @property
    def is_trusted(self) -> bool:
        """Whether the metadata table has all of the table, and nothing else."""
        return not (self.behind or self.unknown or self.removing)


def hidden_instants(storage: Storage, own: Snapshot, snapshot: Snapshot) -> frozenset[InstantTime]:
    """Return the completed instants of the metadata table that the snapshot does not have."""
    known = {one.requested_time for one in snapshot.active.instants}
    newest = snapshot.active.newest_time or ""
    hidden = own.completions.keys() & _pending(snapshot.active)
    later = {
        one.requested_time
        for one in own.active.completed_writes
        if one.action is Action.DELTACOMMIT
        and one.requested_time not in known
        and (one.completion_time or "") > newest
        and not one.requested_time.startswith(BUILDING)
    }
    if later:
        now = TimelineReader(storage).read()
        hidden |= later & {one.requested_time for one in now.instants}
    return frozenset(hidden)


def _pending(active: ActiveTimeline) -> set[InstantTime]:
    """Return the times of pending instants; a savepoint has the time of its completed commit."""
    return {one.requested_time for one in active.pending if one.action is not Action.SAVEPOINT}


def lag_of(own: Snapshot, snapshot: Snapshot, hidden: frozenset[InstantTime]) -> Lag:
    """
    Return how the timelines differ.

    Args:
        own: The snapshot of the metadata table's own timeline.
        snapshot: That of the table.
        hidden: From ``hidden_instants``.

    Outside: perhaps the archived timelines.
    """
    active = snapshot.active
    done = {one.requested_time for one in own.active.instants if one.completed}
    known = {one.requested_time for one in active.instants}
    missing = [
        one
        for one in active.instants
        if one.completed and one.action.completes_as in _RECORDED and one.requested_time not in done
    ]
    if missing:  # older than the metadata table, or than its active timeline
        built, restored = _built_at(own), _restored_at(own.active)
        missing = [
            one
            for one in missing
            if (one.completion_time or "") > built
            and not (one.action is Action.CLEAN and (one.completion_time or "") < restored)
            and one.requested_time not in own.archived.completions
        ]
    strange = [
        one.requested_time
        for one in own.active.completed_writes
        if one.requested_time not in known
        and one.requested_time not in hidden
        and not _is_own(own.active, one)
        and not active.is_archived(one.requested_time, lambda: snapshot.archived)
    ]
    removing = [
        one.requested_time
        for one in active.pending
        if one.action in _REMOVING and one.requested_time in hidden
    ]
    return Lag(
        behind=tuple(one.requested_time for one in missing),
        pending=tuple(sorted(hidden & _pending(active))),
        unknown=tuple(strange),
        removing=tuple(removing),
    )


def is_log_compaction(active: ActiveTimeline, time: InstantTime) -> bool:
    """Return whether an instant of the metadata table is a log compaction of it."""
    return f"{time}.{Action.LOGCOMPACTION.value}.requested" in active.file_names


def newest_merge(active: ActiveTimeline) -> InstantTime:
    """Return when the metadata table's newest completed compaction of either kind was requested, or ""."""
    return max(
        (
            one.requested_time
            for one in active.completed_writes
            if one.action is Action.COMMIT or is_log_compaction(active, one.requested_time)
        ),
        default="",
    )


def _built_at(own: Snapshot) -> InstantTime:
    """Return when the metadata table was built; instants that completed before are part of it."""
    times = own.completions.get(EARLIEST) or own.archived.completions.get(EARLIEST)
    return times or min(own.completions.values(), default="")


def _restored_at(active: ActiveTimeline) -> InstantTime:
    """
    Return when Java's newest restore of the metadata table began, or "".

    It removes later cleans as well, and the deltacommit after it has what they deleted.
    """
    restores = (one for one in active.instants if one.action is Action.RESTORE and one.completed)
    return max((one.requested_time for one in restores), default="")


def _is_own(active: ActiveTimeline, instant: Instant) -> bool:
    """Return whether an instant of the metadata table belongs to no instant of the table."""
    time = instant.requested_time
    if time.startswith(BUILDING) or instant.action is not Action.DELTACOMMIT:
        return True
    if is_log_compaction(active, time):
        return True
    before = [one for one in active.instants if one.requested_time < time]
    return bool(before) and before[-1].action is Action.RESTORE

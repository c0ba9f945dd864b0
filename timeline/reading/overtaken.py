"""
Whether cleaning was faster than the listing of a snapshot's files (RDL-2).

A snapshot names instants; its files are found by listing partitions, which comes later. A file that
is gone by then is in no listing: its file group would be left out, and nobody would miss its
rows. A clean says what it takes before it takes it, by its slot or, another engine's, by its files
on the timeline. So a look behind the listing tells.
"""

from __future__ import annotations

from timeline.context import TableContext
from timeline.errors import SnapshotExpiredError
from timeline.model.instant import Action, Instant
from timeline.model.plans import CleanMetadata
from timeline.model.times import InstantTime
from timeline.properties.setting_names import ForeignWriters
from timeline.reading.cleans import read_clean
from timeline.reading.reader_lease import ReaderLease
from timeline.reading.snapshot import Snapshot

__all__ = ["assert_all_listed", "expired", "is_overtaken"]


def assert_all_listed(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> None:
    """
    Ask once the files of a state are listed that nobody held meanwhile.

    Raises:
        SnapshotExpiredError: Files of it may be missing in the listing.
    """
    if is_overtaken(context, snapshot, lease):
        raise expired(context, lease.newest)


def expired(
    context: TableContext, moment: InstantTime, path: str | None = None
) -> SnapshotExpiredError:
    """What a reader is told whose state is not whole any more."""
    context.world.events.emit("reader.expired", moment=moment)
    return SnapshotExpiredError(
        "files of this snapshot were cleaned while it was read; read again, and if reads last "
        "that long keep more commits (hoodie.clean.commits.retained), raise "
        f"hoodoo.reader.lease.ms, or hold the table while you read (with table.hold()): {moment}",
        moment=moment,
        path=path,
    )


def is_overtaken(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> bool:
    """
    Whether something may have taken files of a snapshot since it was looked at.

    Outside: 1 get; where slots came since, those and 1 list. Where other engines write, nobody of
    ours ever did, or the slots of that time are gone, 1 list more, 1 get for each new clean, and
    the history in the last case.
    """
    taken = lease.is_taken_from()
    alone = context.limits.foreign_writers is not ForeignWriters.EXPECTED
    if taken or (taken is False and alone and context.chain.known_head):
        return bool(taken)
    seen = {one.requested_time for one in snapshot.active.instants if one.action is Action.CLEAN}
    cleans = [one for one in context.active().instants if one.action is Action.CLEAN]
    new = (one for one in cleans if one.requested_time not in seen)
    if any(_promises_less(context, one, lease.newest) for one in new):
        return True
    return taken is None and any(
        row.action == Action.CLEAN.value and row.requested_time > lease.newest
        for row in context.history.instants()
    )


def _promises_less(context: TableContext, clean: Instant, moment: InstantTime) -> bool:
    """Whether a clean keeps less than what is needed to read as of a moment."""
    line = _line_of(context, clean)
    return line is None or moment < line


def _line_of(context: TableContext, clean: Instant) -> InstantTime | None:
    """The oldest commit that a clean keeps readable; None where it counts versions instead."""
    told = read_clean(context, clean)
    if isinstance(told, CleanMetadata):
        return told.earliest_commit_to_retain or None
    kept = None if told is None else told.earliest_instant_to_retain
    return None if kept is None else kept.requested_time or None

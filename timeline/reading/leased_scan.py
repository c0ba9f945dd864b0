"""
Scans that last: under a reader lease once they are long, begun anew where nothing came out yet.

A file that is gone under a reader is either damage or the work of cleaning. The timeline
tells which, so a reader that stood still for too long is told so, and nobody is told that a
table is corrupt because it was cleaned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

import pyarrow as pa

from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import MissingFileError, SnapshotExpiredError
from timeline.model.instant import Action
from timeline.model.times import InstantTime
from timeline.reading.read import ScanPlan, scan
from timeline.reading.reader_lease import ReaderLease
from timeline.reading.snapshot import Snapshot

__all__ = ["PlannedRead", "Replan", "collect", "leased", "stream"]

_TRIES: Final = 4
_TAKING: Final = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE)

PlannedRead: TypeAlias = tuple[Snapshot, ScanPlan]
Replan: TypeAlias = Callable[[], PlannedRead]


def leased(
    context: TableContext,
    snapshot: Snapshot,
    batches: Iterator[pa.RecordBatch],
    *,
    since: InstantTime | None = None,
    until: InstantTime | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Hand batches on, under a lease once that takes long.

    Args:
        context: The table.
        snapshot: What is read.
        batches: Made lazily, from files of the snapshot.
        since: As of ``ReaderLease``.
        until: As of ``ReaderLease``.

    Raises:
        SnapshotExpiredError: Files were cleaned meanwhile.
        MissingFileError: A file is gone and nobody cleaned.
    """
    lease = ReaderLease(context, snapshot, since=since, until=until)
    lease.begin()
    try:
        for batch in batches:
            lease.used()
            yield batch
    except MissingFileError as error:
        raise _expired(context, snapshot, error) from error
    finally:
        lease.end()


def stream(
    context: TableContext, first: PlannedRead, again: Replan | None = None
) -> Iterator[pa.RecordBatch]:
    """
    The rows of a planned read, batch by batch.

    Args:
        context: The table.
        first: The snapshot and what is read of it.
        again: Plans the read on a newer snapshot, for as long as nothing came out; None where
            the snapshot was asked for.

    Raises: as ``leased``.
    """
    snapshot, plan = first
    left = _TRIES
    while True:
        given = False
        try:
            for batch in leased(context, snapshot, scan(context, plan)):
                given = True
                yield batch
            return
        except SnapshotExpiredError as error:
            left -= 1
            if given or again is None or not left:
                raise
            snapshot, plan = _planned_again(again, plan, error)


def collect(context: TableContext, first: PlannedRead, again: Replan | None = None) -> pa.Table:
    """The same rows in one table, files read side by side. Arguments, errors: as ``stream``."""
    snapshot, plan = first
    left = _TRIES
    while True:
        lease = ReaderLease(context, snapshot)
        lease.begin()
        try:
            return _side_by_side(context, plan, lease)
        except MissingFileError as error:
            expired = _expired(context, snapshot, error)
            left -= 1
            if again is None or not left:
                raise expired from error
        finally:
            lease.end()
        snapshot, plan = _planned_again(again, plan, expired)


def _side_by_side(context: TableContext, plan: ScanPlan, lease: ReaderLease) -> pa.Table:
    def one(number: int) -> list[pa.RecordBatch]:
        lease.used()
        return list(scan(context, replace(plan, slices=(plan.slices[number],))))

    pieces = context.world.executor.map(one, range(len(plan.slices)))
    return pa.Table.from_batches(
        [batch for piece in pieces for batch in piece], schema=plan.output_schema
    )


def _planned_again(again: Replan, before: ScanPlan, why: SnapshotExpiredError) -> PlannedRead:
    """The schema was told to the caller already, so it may not have changed."""
    snapshot, plan = again()
    if plan.output_schema != before.output_schema:
        raise why
    return snapshot, plan


def _expired(
    context: TableContext, snapshot: Snapshot, error: MissingFileError
) -> SnapshotExpiredError:
    """
    What a missing file means.

    Raises:
        MissingFileError: The same, where nothing was taken away since the snapshot.
    """
    if not _anything_taken(snapshot.active, context.active()):
        raise error
    moment = snapshot.as_of or snapshot.newest_completion or ""
    context.world.events.emit("reader.expired", moment=moment)
    return SnapshotExpiredError(
        "files of this snapshot were cleaned while it was read; read again, and if reads last "
        "that long keep more commits (hoodie.clean.commits.retained), raise "
        f"hoodoo.reader.lease.ms, or hold the table while you read (with table.hold()): {moment}",
        moment=moment,
        path=error.fields.get("path"),
    )


def _anything_taken(seen: ActiveTimeline, now: ActiveTimeline) -> bool:
    ended = {(one.action, one.requested_time) for one in seen.instants if one.completed}
    if any(
        one.action in _TAKING and (one.action, one.requested_time) not in ended
        for one in now.instants
    ):
        return True
    return seen.first_write_time != now.first_write_time  # archived since: nobody can tell

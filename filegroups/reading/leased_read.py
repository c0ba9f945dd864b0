"""Reads that a clean may overtake: checks after the listing, and streams under a reader lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa

from filegroups.reading.scan import ScanPlan, scan
from timeline.context import TableContext
from timeline.errors import (
    InstantNotFoundError,
    MissingFileError,
    SnapshotExpiredError,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CleanMetadata
from timeline.reader_lease import ReaderLease, read_clean
from timeline.snapshot import ActiveTimeline, Snapshot

# ---- Clean races (RDL-2)
#
# A snapshot names instants; a later listing of the partitions finds its files. If a clean deletes a
# file in between, its file group is missing in the listing, and so are its rows. A clean announces
# its deletes first, by its slot or, in another engine, by its files on the timeline. So the reader
# checks for cleans after the listing.


def assert_not_cleaned(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> None:
    """
    Raise if files may have been cleaned before they were listed.

    Call this after the listing of a snapshot that no lease protected.

    Raises:
        SnapshotExpiredError: Files of the snapshot may be missing in the listing.
    """
    if may_be_cleaned(context, snapshot, lease):
        raise expired_error(context, lease.newest)


def expired_error(
    context: TableContext, moment: InstantTime, path: str | None = None
) -> SnapshotExpiredError:
    """Return the error for a reader whose snapshot is no longer complete, and emit its event."""
    context.ports.events.emit("reader.expired", moment=moment)
    return SnapshotExpiredError(
        "cleaning deleted files of this snapshot during the read: read again. For long reads "
        "retain more commits (hoodie.clean.commits.retained), raise hoodoo.reader.lease.ms, or "
        f"pin the snapshot (table.pin()): {moment}",
        moment=moment,
        path=path,
    )


def may_be_cleaned(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> bool:
    """
    Return whether files of a snapshot may have been cleaned since it was taken.

    Outside: 1 get; if slots were added since, those and 1 list. In three cases 1 list more, and 1
    get for each new clean: other engines write the table, no hoodoo writer ever wrote it, or the
    slots of that time are truncated. In the last case also the archived timeline.
    """
    taken = lease.may_lose_files()
    alone = not context.has_foreign_writers
    if taken or (taken is False and alone and context.commit_log.known_head):
        return bool(taken)
    seen = {one.requested_time for one in snapshot.active.instants if one.action is Action.CLEAN}
    cleans = [one for one in context.active().instants if one.action is Action.CLEAN]
    new = (one for one in cleans if one.requested_time not in seen)
    if any(_promises_less(context, one, lease.newest) for one in new):
        return True
    return taken is None and any(
        row.action == Action.CLEAN.value and row.requested_time > lease.newest
        for row in context.archived_timeline.instants()
    )


def _promises_less(context: TableContext, clean: Instant, moment: InstantTime) -> bool:
    """Return whether a clean retains less than a read as of ``moment`` needs."""
    line = _earliest_retained(context, clean)
    return line is None or moment < line


def _earliest_retained(context: TableContext, clean: Instant) -> InstantTime | None:
    """Return the oldest commit that a clean keeps readable; None if it counts versions instead."""
    metadata = read_clean(context, clean)
    if isinstance(metadata, CleanMetadata):
        return metadata.earliest_commit_to_retain or None
    kept = None if metadata is None else metadata.earliest_instant_to_retain
    return None if kept is None else kept.requested_time or None


# ---- Streams and tables under a reader lease
#
# A long scan writes a reader lease. A scan that has returned no rows yet may start again on a newer
# snapshot. A missing file is either damage or the work of a clean; the timeline decides which error
# is raised.

_TRIES: Final = 4
_TAKING: Final = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRead:
    """A snapshot, and the plan of a read from it."""

    snapshot: Snapshot
    plan: ScanPlan
    is_pinned: bool = False  # since before its files were listed
    release: Callable[[], None] = lambda: None  # releases a pin that exists for this read alone


#: Plans a read again on the newest snapshot, which is pinned before its files are listed.
Replan: TypeAlias = Callable[[], PlannedRead]


def with_lease(
    context: TableContext,
    snapshot: Snapshot,
    batches: Iterator[pa.RecordBatch],
    *,
    since: InstantTime | None = None,
    until: InstantTime | None = None,
    is_held: bool = False,
) -> Iterator[pa.RecordBatch]:
    """
    Yield batches unchanged, under a reader lease if the read takes long.

    Args:
        context: The table.
        snapshot: The snapshot that is read.
        batches: Made lazily, from files of the snapshot.
        since: See ``ReaderLease``.
        until: See ``ReaderLease``.
        is_held: Whether the snapshot was pinned when its files were listed.

    Raises:
        SnapshotExpiredError: Files were cleaned during the read, or before they were listed
            (RDL-2).
        MissingFileError: A file is missing and no clean deleted it.
    """
    lease = ReaderLease(context, snapshot, since=since, until=until)
    if not is_held:
        assert_not_cleaned(context, snapshot, lease)
    lease.begin()
    try:
        for batch in batches:
            lease.note_use()
            yield batch
    except MissingFileError as error:
        raise _expired(context, snapshot, error) from error
    finally:
        lease.end()


def stream(
    context: TableContext, first: PlannedRead, again: Replan | None = None
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of a planned read, batch by batch.

    Args:
        context: The table.
        first: The snapshot and its scan plan.
        again: Plans the read on a newer snapshot, used until the first batch is returned; None if
            the caller asked for this snapshot.

    Raises: as ``with_lease``.
    """
    reading, left = first, _TRIES
    while True:
        given = False
        batches = scan(context, reading.plan)
        try:
            for batch in with_lease(context, reading.snapshot, batches, is_held=reading.is_pinned):
                given = True
                yield batch
            return
        except SnapshotExpiredError as error:
            left -= 1
            if given or again is None or not left:
                raise
            why = error
        finally:
            reading.release()
        reading = _replan(again, reading.plan, why)


def collect_table(
    context: TableContext, first: PlannedRead, again: Replan | None = None
) -> pa.Table:
    """Return the same rows as one table; files are read in parallel. As ``stream`` otherwise."""
    reading, left = first, _TRIES
    while True:
        lease = ReaderLease(context, reading.snapshot)
        try:
            if not reading.is_pinned:
                assert_not_cleaned(context, reading.snapshot, lease)
            lease.begin()
            return _side_by_side(context, reading.plan, lease)
        except (MissingFileError, SnapshotExpiredError) as error:
            why = (
                error
                if isinstance(error, SnapshotExpiredError)
                else _expired(context, reading.snapshot, error)
            )
            left -= 1
            if again is None or not left:
                raise why from error
        finally:
            lease.end()
            reading.release()
        reading = _replan(again, reading.plan, why)


@contextmanager
def expired_where_missing(context: TableContext, snapshot: Snapshot) -> Iterator[None]:
    """
    Turn missing files inside the block into an expired snapshot if a service removed them.

    Raises:
        SnapshotExpiredError: A restore or a clean ran since the snapshot: read again.
        MissingFileError, InstantNotFoundError: Unchanged, if nothing was removed.
    """
    try:
        yield
    except (MissingFileError, InstantNotFoundError) as error:
        raise _expired(context, snapshot, error) from error


def _side_by_side(context: TableContext, plan: ScanPlan, lease: ReaderLease) -> pa.Table:
    def one(number: int) -> list[pa.RecordBatch]:
        lease.note_use()
        return list(scan(context, replace(plan, slices=(plan.slices[number],))))

    pieces = context.ports.executor.map(one, range(len(plan.slices)))
    return pa.Table.from_batches(
        [batch for piece in pieces for batch in piece], schema=plan.output_schema
    )


def _replan(again: Replan, before: ScanPlan, why: SnapshotExpiredError) -> PlannedRead:
    """Plan the read again; raise ``why`` if the schema, which the caller has, would change."""
    reading = again()
    if reading.plan.output_schema != before.output_schema:
        reading.release()
        raise why
    return reading


def _expired(
    context: TableContext, snapshot: Snapshot, error: MissingFileError | InstantNotFoundError
) -> SnapshotExpiredError:
    """
    Return the error that a missing file means.

    Raises:
        MissingFileError, InstantNotFoundError: Unchanged, if nothing was removed since the
            snapshot.
    """
    if not may_be_missing_files(snapshot.active, context.active()):
        raise error
    moment = snapshot.as_of or snapshot.newest_completion or ""
    return expired_error(context, moment, path=error.fields.get("path"))


def may_be_missing_files(seen: ActiveTimeline, now: ActiveTimeline) -> bool:
    """Return whether files or instants may have been removed between two timelines on purpose."""
    ended = {(one.action, one.requested_time) for one in seen.instants if one.completed}
    if any(
        one.action in _TAKING and (one.action, one.requested_time) not in ended
        for one in now.instants
    ):
        return True
    return seen.first_write_time != now.first_write_time  # archived since: the cause is unknown

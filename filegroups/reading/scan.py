"""Scan file slices as a stream under a reader lease, and detect a clean race (RDL-2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa

from filegroups.reading.read import ScanPlan, scan
from timeline.active_timeline import ActiveTimeline
from timeline.clean_metadata import read_clean
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, MissingFileError, SnapshotExpiredError
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CleanMetadata
from timeline.properties.setting_enums import ForeignWriters
from timeline.reader_lease import ReaderLease
from timeline.snapshot import Snapshot

__all__ = [
    "PlannedRead",
    "Replan",
    "assert_not_cleaned",
    "collect_table",
    "expired_error",
    "expired_where_missing",
    "may_be_cleaned",
    "may_be_missing_files",
    "stream",
    "with_lease",
]


# ---------------------- Whether cleaning was faster than the listing of a snapshot's files (RDL-2)
#
# A snapshot names instants; its files are found by listing partitions, which comes later. A file that
# is gone by then is in no listing: its file group would be left out, and nobody would miss its
# rows. A clean says what it takes before it takes it, by its slot or, another engine's, by its files
# on the timeline. So a look behind the listing tells.


def assert_not_cleaned(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> None:
    """
    Ask once the files of a state are listed that nobody held meanwhile.

    Raises:
        SnapshotExpiredError: Files of it may be missing in the listing.
    """
    if may_be_cleaned(context, snapshot, lease):
        raise expired_error(context, lease.newest)


def expired_error(
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


def may_be_cleaned(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> bool:
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
    line = _earliest_retained(context, clean)
    return line is None or moment < line


def _earliest_retained(context: TableContext, clean: Instant) -> InstantTime | None:
    """The oldest commit that a clean keeps readable; None where it counts versions instead."""
    told = read_clean(context, clean)
    if isinstance(told, CleanMetadata):
        return told.earliest_commit_to_retain or None
    kept = None if told is None else told.earliest_instant_to_retain
    return None if kept is None else kept.requested_time or None


# ----------------------------------------------------------------
# Scans that last: under a reader lease once they are long, begun anew where nothing came out yet.
#
# A file that is gone under a reader is either damage or the work of cleaning. The timeline
# tells which, so a reader that stood still for too long is told so, and nobody is told that a
# table is corrupt because it was cleaned.

_TRIES: Final = 4
_TAKING: Final = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRead:
    """A state, and what is read of it."""

    snapshot: Snapshot
    plan: ScanPlan
    is_held: bool = False  # from before its files were listed
    release: Callable[[], None] = lambda: None  # of who holds it for this read alone


#: Plans a read anew, on the newest state, which is held from before its files are listed.
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
    Hand batches on, under a lease once that takes long.

    Args:
        context: The table.
        snapshot: What is read.
        batches: Made lazily, from files of the snapshot.
        since: As of ``ReaderLease``.
        until: As of ``ReaderLease``.
        is_held: Whether the state was held when its files were listed.

    Raises:
        SnapshotExpiredError: Files were cleaned meanwhile, or before they were listed (RDL-2).
        MissingFileError: A file is gone and nobody cleaned.
    """
    lease = ReaderLease(context, snapshot, since=since, until=until)
    if not is_held:
        assert_not_cleaned(context, snapshot, lease)
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
        again: Plans the read on a newer state, for as long as nothing came out; None where the
            state was asked for.

    Raises: as ``with_lease``.
    """
    reading, left = first, _TRIES
    while True:
        given = False
        batches = scan(context, reading.plan)
        try:
            for batch in with_lease(context, reading.snapshot, batches, is_held=reading.is_held):
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
    """The same rows in one table, files read side by side. Arguments, errors: as ``stream``."""
    reading, left = first, _TRIES
    while True:
        lease = ReaderLease(context, reading.snapshot)
        try:
            if not reading.is_held:
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
    Within, what is missing while a read is planned is told as expired where it was taken since.

    Raises:
        SnapshotExpiredError: A restore or a clean came since the snapshot: read again.
        MissingFileError, InstantNotFoundError: The same, where nothing was taken away.
    """
    try:
        yield
    except (MissingFileError, InstantNotFoundError) as error:
        raise _expired(context, snapshot, error) from error


def _side_by_side(context: TableContext, plan: ScanPlan, lease: ReaderLease) -> pa.Table:
    def one(number: int) -> list[pa.RecordBatch]:
        lease.used()
        return list(scan(context, replace(plan, slices=(plan.slices[number],))))

    pieces = context.world.executor.map(one, range(len(plan.slices)))
    return pa.Table.from_batches(
        [batch for piece in pieces for batch in piece], schema=plan.output_schema
    )


def _replan(again: Replan, before: ScanPlan, why: SnapshotExpiredError) -> PlannedRead:
    """The schema was told to the caller already, so it may not have changed."""
    reading = again()
    if reading.plan.output_schema != before.output_schema:
        reading.release()
        raise why
    return reading


def _expired(
    context: TableContext, snapshot: Snapshot, error: MissingFileError | InstantNotFoundError
) -> SnapshotExpiredError:
    """
    What a missing file means.

    Raises:
        MissingFileError, InstantNotFoundError: The same, where nothing was taken away since
            the snapshot.
    """
    if not may_be_missing_files(snapshot.active, context.active()):
        raise error
    moment = snapshot.as_of or snapshot.newest_completion or ""
    return expired_error(context, moment, path=error.fields.get("path"))


def may_be_missing_files(seen: ActiveTimeline, now: ActiveTimeline) -> bool:
    """Whether instants or their files may have gone between two looks without being damage."""
    ended = {(one.action, one.requested_time) for one in seen.instants if one.completed}
    if any(
        one.action in _TAKING and (one.action, one.requested_time) not in ended
        for one in now.instants
    ):
        return True
    return seen.first_write_time != now.first_write_time  # archived since: nobody can tell

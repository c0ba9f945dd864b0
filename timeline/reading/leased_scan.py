"""
Scans that last: under a reader lease once they are long, begun anew where nothing came out yet.

A file that is gone under a reader is either damage or the work of cleaning. The timeline
tells which, so a reader that stood still for too long is told so, and nobody is told that a
table is corrupt because it was cleaned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa

from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, MissingFileError, SnapshotExpiredError
from timeline.model.instant import Action
from timeline.model.times import InstantTime
from timeline.reading.overtaken import assert_all_listed, expired
from timeline.reading.read import ScanPlan, scan
from timeline.reading.reader_lease import ReaderLease
from timeline.reading.snapshot import Snapshot

__all__ = ["PlannedRead", "Replan", "anything_taken", "collect", "leased", "stream", "whole"]

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


def leased(
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
        assert_all_listed(context, snapshot, lease)
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

    Raises: as ``leased``.
    """
    reading, left = first, _TRIES
    while True:
        given = False
        batches = scan(context, reading.plan)
        try:
            for batch in leased(context, reading.snapshot, batches, is_held=reading.is_held):
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
        reading = _planned_again(again, reading.plan, why)


def collect(context: TableContext, first: PlannedRead, again: Replan | None = None) -> pa.Table:
    """The same rows in one table, files read side by side. Arguments, errors: as ``stream``."""
    reading, left = first, _TRIES
    while True:
        lease = ReaderLease(context, reading.snapshot)
        try:
            if not reading.is_held:
                assert_all_listed(context, reading.snapshot, lease)
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
        reading = _planned_again(again, reading.plan, why)


@contextmanager
def whole(context: TableContext, snapshot: Snapshot) -> Iterator[None]:
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


def _planned_again(again: Replan, before: ScanPlan, why: SnapshotExpiredError) -> PlannedRead:
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
    if not anything_taken(snapshot.active, context.active()):
        raise error
    moment = snapshot.as_of or snapshot.newest_completion or ""
    return expired(context, moment, path=error.fields.get("path"))


def anything_taken(seen: ActiveTimeline, now: ActiveTimeline) -> bool:
    """Whether instants or their files may have gone between two looks without being damage."""
    ended = {(one.action, one.requested_time) for one in seen.instants if one.completed}
    if any(
        one.action in _TAKING and (one.action, one.requested_time) not in ended
        for one in now.instants
    ):
        return True
    return seen.first_write_time != now.first_write_time  # archived since: nobody can tell

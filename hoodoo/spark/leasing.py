"""
Reader leases for what Spark reads, while its tasks may read the files (RDL-1).

A DataFrame is a recipe: nobody tells when it is read, how often, or that it was the last time.
So its lease is taken a moment after loading and renewed whenever jobs of the session run; it
ends ``hoodoo.reader.lease.ms`` after the last of them. Once the DataFrame's own object is gone
only those derived from it can still read: then the first look that meets no job is the last. A
stream's micro-batch does tell when it is done, and a task of a view when it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from hoodoo.table import Table
from timeline.context import TableContext
from timeline.machine import LoggingEvents, ThreadTicker
from timeline.model.times import InstantTime
from timeline.ports.executor import Ticker
from timeline.reading.reader_lease import LONG_READ_MS, ReaderLease

__all__ = ["HeldBatch", "HeldTask", "keep_while_read"]


def keep_while_read(spark: Any, context: TableContext, lease: ReaderLease, df: Any) -> None:
    """Take and renew a lease for as long as the DataFrame, or one made of it, is read."""
    if not lease.is_useful:
        return
    keeper = _Keeper(_busy(spark), lease, weakref.ref(df))
    keeper.ticker = context.world.executor.every(LONG_READ_MS, keeper.beat)


class HeldBatch:
    """
    What a micro-batch of a stream reads, held from a moment after it was planned to its ``end``.

    Args:
        table: Opened, and closed at the end.
        lease: On the range that is read.
    """

    def __init__(self, table: Table, lease: ReaderLease) -> None:
        self._table = table
        self._lease = lease
        self._ticker: Ticker | None = None
        if lease.is_useful:
            executor = table.core.context.world.executor
            self._ticker = executor.every(LONG_READ_MS, self.beat)

    def end(self) -> None:
        """The batch was read. Never fails: a lease that stays ends by itself."""
        if self._ticker is not None:
            self._ticker.stop()
        self._lease.end()
        self._table.close()

    def beat(self) -> None:
        """Once in a while."""
        self._lease.used()
        self._lease.beat()


class HeldTask:
    """
    What a task reads, held once that has lasted for a while.

    For plans of a process that ended with planning. Tasks that wait for their turn live by the
    leases of those that read.

    Args:
        opened: Opens the table; asked when it lasts.
        moment: Completion time up to which files are read.
    """

    def __init__(self, opened: Callable[[], Table], moment: InstantTime) -> None:
        self._opened = opened
        self._moment = moment
        self._table: Table | None = None
        self._lease: ReaderLease | None = None
        self._ticker = ThreadTicker(LONG_READ_MS, self.beat, LoggingEvents())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.stop()
        if self._lease is not None:
            self._lease.end()
        if self._table is not None:
            self._table.close()

    def beat(self) -> None:
        """Once in a while. Outside: at first what opening a table and a lease take."""
        if self._lease is None:
            self._table = self._table or self._opened()
            context = self._table.core.context
            self._lease = ReaderLease(context, context.snapshot(), until=self._moment)
        if self._lease.is_useful:
            self._lease.used()
            self._lease.beat()


class _Keeper:
    """What one ticker renews."""

    def __init__(
        self, busy: Callable[[], bool], lease: ReaderLease, df: weakref.ReferenceType[Any]
    ) -> None:
        self._busy = busy
        self._lease = lease
        self._df = df
        self.ticker: Ticker | None = None

    def beat(self) -> None:
        """Once in a while."""
        if self._busy():
            self._lease.used()
        elif self._df() is None and self.ticker is not None:
            self.ticker.stop()
            return
        self._lease.beat()


def _busy(spark: Any) -> Callable[[], bool]:
    tracker = spark.sparkContext.statusTracker()

    def busy() -> bool:
        with suppress(Exception):  # the session ended
            return bool(tracker.getActiveJobsIds())
        return False

    return busy

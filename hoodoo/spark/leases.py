"""Reader leases for the reads of Spark, while its tasks may read the files (RDL-1)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from hoodoo.table import Table
from timeline.context import TableContext
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import Ticker
from timeline.reader_lease import LONG_READ_MS, ReaderLease
from timeline.system import LoggingEvents, ThreadTicker

# A DataFrame is a recipe: Spark does not report when it reads it, how often, or for the last time.
# So a lease is taken ``LONG_READ_MS`` after loading and renewed while jobs of the session run. It
# ends ``hoodoo.reader.lease.ms`` after the last job. After the DataFrame's object is deleted, only
# DataFrames derived from it can read. Then the ticker stops at its first tick without a job. A
# micro-batch of a stream and a task of a view have a known end.


def pin_while_read(spark: Any, context: TableContext, lease: ReaderLease, df: Any) -> None:
    """Take and renew a lease while the DataFrame, or one derived from it, is read."""
    if not lease.is_needed:
        return
    keeper = _Keeper(_busy(spark), lease, weakref.ref(df))
    keeper.ticker = context.ports.executor.every(LONG_READ_MS, keeper.beat)


class PinnedBatch:
    """
    The files of a micro-batch, pinned from ``LONG_READ_MS`` after its planning to its ``end``.

    Args:
        table: An open table; ``end`` closes it.
        lease: The lease on the range that is read.
    """

    def __init__(self, table: Table, lease: ReaderLease) -> None:
        self._table = table
        self._lease = lease
        self._ticker: Ticker | None = None
        if lease.is_needed:
            executor = table.context.ports.executor
            self._ticker = executor.every(LONG_READ_MS, self.beat)

    def end(self) -> None:
        """Release the files. Never fails, because a lease that remains expires."""
        if self._ticker is not None:
            self._ticker.stop()
        self._lease.end()
        self._table.close()

    def beat(self) -> None:
        """Renew the lease."""
        self._lease.note_use()
        self._lease.beat()


class PinnedTask:
    """
    The files of a task, pinned after it has read for ``LONG_READ_MS``.

    For plans of a process that ends after planning. The leases of running tasks also keep the
    files of waiting tasks.

    Args:
        opened: Opens the table; called only for a long read.
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
        """Renew the lease. Outside: the first call opens the table and takes the lease."""
        if self._lease is None:
            self._table = self._table or self._opened()
            context = self._table.context
            self._lease = ReaderLease(context, context.snapshot(), until=self._moment)
        if self._lease.is_needed:
            self._lease.note_use()
            self._lease.beat()


class _Keeper:
    """Renew the lease of one DataFrame at each tick."""

    def __init__(
        self, busy: Callable[[], bool], lease: ReaderLease, df: weakref.ReferenceType[Any]
    ) -> None:
        self._busy = busy
        self._lease = lease
        self._df = df
        self.ticker: Ticker | None = None

    def beat(self) -> None:
        """Renew the lease while jobs run; stop after the DataFrame's end."""
        if self._busy():
            self._lease.note_use()
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

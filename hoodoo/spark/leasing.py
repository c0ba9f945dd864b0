"""
The driver's reader lease for a DataFrame, while tasks may read its files (RDL-1).

A DataFrame is a recipe: nobody tells when it is read, how often, or that it was the last time.
So its lease is taken a moment after loading and renewed whenever jobs of the session run; it
ends ``hoodoo.reader.lease.ms`` after the last of them. Once the DataFrame's own object is gone
only those derived from it can still read: then the first look that meets no job is the last.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from timeline.context import TableContext
from timeline.ports.executor import Ticker
from timeline.reading.reader_lease import LONG_READ_MS, ReaderLease

__all__ = ["keep_while_read"]


def keep_while_read(spark: Any, context: TableContext, lease: ReaderLease, df: Any) -> None:
    """Take and renew a lease for as long as the DataFrame, or one made of it, is read."""
    if not lease.is_useful:
        return
    keeper = _Keeper(_busy(spark), lease, weakref.ref(df))
    keeper.ticker = context.world.executor.every(LONG_READ_MS, keeper.beat)


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

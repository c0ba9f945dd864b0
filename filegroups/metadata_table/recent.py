"""
The records of HFiles that this process encoded lately, by the bytes of each file.

A compaction by the process that wrote the log files would decode what it encoded. It reads each
file all the same, so that damage is found; equal bytes have equal records.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import pyarrow as pa

FILE_BYTES_MAX: Final = 64 * 1024
"""Larger files are not kept: their decoding costs little for each record."""

_BYTES_MAX: Final = 8 * 1024 * 1024  # of files and their records


class RecentRecords:
    """
    Records by the bytes of their HFile; the ones that were not used for longest leave first.

    Args:
        bytes_max: The most bytes of files and records.
    """

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[pa.Table, pa.Array | None, int]] = OrderedDict()
        self._guard = threading.Lock()

    def keep(self, content: bytes, records: pa.Table, places: pa.Array | None = None) -> None:
        """Keep the records of a file, those at some places or all, unless it is large."""
        if len(content) > FILE_BYTES_MAX:
            return
        size = len(content) + records.nbytes
        with self._guard:
            self._forget(content)
            self._kept[content] = records, places, size
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._forget(next(iter(self._kept)))

    def find(self, content: bytes, shape: pa.Schema) -> pa.Table | None:
        """Return the records of a file, of schema ``shape``; None if they are not kept."""
        if len(content) > FILE_BYTES_MAX:
            return None
        with self._guard:
            found = self._kept.get(content)
            if found is None or found[0].schema != shape:
                return None
            self._kept.move_to_end(content)
        records, places, _ = found
        return records if places is None else records.take(places)

    def _forget(self, content: bytes) -> None:
        gone = self._kept.pop(content, None)
        self._bytes -= gone[2] if gone is not None else 0


RECENT: Final = RecentRecords()
"""Those of this process, of all tables."""

"""
The records of HFiles that this process encoded lately, by the bytes of each file.

A compaction by the process that wrote the log files would decode what it encoded. It reads each
file all the same, so that damage is found; equal bytes have equal records.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from filegroups.recently_used import RecentlyUsed

FILE_BYTES_MAX: Final = 64 * 1024
"""Larger files are not kept: their decoding costs little for each record."""

_BYTES_MAX: Final = 8 * 1024 * 1024  # of files and their records


class RecentRecords:
    """
    Records by the bytes of their HFile.

    Args:
        bytes_max: The most bytes of files and records.
    """

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._kept: RecentlyUsed[bytes, tuple[pa.Table, pa.Array | None]] = RecentlyUsed(bytes_max)

    def keep(self, content: bytes, records: pa.Table, places: pa.Array | None = None) -> None:
        """Keep the records of a file, those at some places or all, unless it is large."""
        if len(content) <= FILE_BYTES_MAX:
            self._kept.keep(content, (records, places), len(content) + records.nbytes)

    def find(self, content: bytes, shape: pa.Schema) -> pa.Table | None:
        """Return the records of a file, of schema ``shape``; None if they are not kept."""
        found = self._kept.find(content) if len(content) <= FILE_BYTES_MAX else None
        if found is None or found[0].schema != shape:
            return None
        records, places = found
        return records if places is None else records.take(places)


RECENT: Final = RecentRecords()
"""Those of this process, of all tables."""

"""
The clock of a file system, read from the stamp it puts on a new file.

A network file system stamps with its server's clock, and a process's own may be off by an hour:
it would take living writers for dead and the leases of readers for ended (F12). So ages of files
are measured from a stamp of the same file system, kept for a moment by the monotonic clock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from timeline.places import HOODIE, OURS
from timeline.ports.clock import Clock
from timeline.ports.ids import Ids
from timeline.storage.entries import file_stat_of
from timeline.storage.folders import FolderWalker
from timeline.storage.leftovers import TEMPORARY_PREFIX

__all__ = ["FolderClock", "folder_clock"]

#: Whoever judges looks at several files at once; a clock that is set back or forth shows soon.
_AGE_MS_MAX: Final = 1_000
_FILE_MODE: Final = 0o600
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderClock:
    """
    The time of a folder's file system.

    Args:
        clock: The own clocks: the monotonic one for the moment between two stamps, the wall
            clock where nothing can be stamped.
        stamp: Makes a file and gives its modification time in ms, None where it cannot.
    """

    def __init__(self, clock: Clock, stamp: Callable[[], int | None]) -> None:
        self._clock = clock
        self._stamp = stamp
        self._read: tuple[int, int] | None = None  # a stamp, and the monotonic time after it

    def now_ms(self) -> int:
        """
        Milliseconds since 1970 UTC; a second late when the clock behind it was set.

        Outside: a small file is made and removed, at most once a second.
        """
        monotonic_ms = self._clock.monotonic_ms()
        read = self._read
        if read is None or monotonic_ms - read[1] > _AGE_MS_MAX:
            stamp_ms = self._stamp()
            if stamp_ms is None:
                return self._clock.now_ms()
            # A pause in between makes it late, which lets others live longer.
            monotonic_ms = self._clock.monotonic_ms()
            read = self._read = (stamp_ms, monotonic_ms)
        return read[0] + monotonic_ms - read[1]


def folder_clock(folders: FolderWalker, ids: Ids, clock: Clock) -> FolderClock:
    """Of the table in this folder; of the own clock while it is none or may not be written."""

    def stamp() -> int | None:
        for folder in (OURS, HOODIE):
            with contextlib.suppress(OSError):
                return _stamp_in(folders, folder, TEMPORARY_PREFIX + ids.nonce())
        return None

    return FolderClock(clock, stamp)


def _stamp_in(folders: FolderWalker, folder: str, name: str) -> int:
    opened = folders.open(folder)
    descriptor = os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=opened.descriptor)
    try:
        os.write(descriptor, b"\n")  # the bytes bring the server's stamp, as those of others do
        return file_stat_of(name, os.fstat(descriptor)).modified_ms
    finally:
        os.close(descriptor)
        os.unlink(name, dir_fd=opened.descriptor)

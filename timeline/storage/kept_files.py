"""
Small data files that this process wrote or read a moment ago.

A write that changes a few rows reads the same small base file for its keys, its rows and its
footer, and the next one reads what this one wrote. A data file never changes and its name is
never used again, so its bytes say the same from memory; whether the file is still there is for
the publication to judge, as always.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

__all__ = ["KeptFiles"]

_FILE_BYTES_MAX = 1 << 20
_BYTES_MAX = 16 << 20


class KeptFiles:
    """Whole files by path, the longest unused ones forgotten first."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._guard = threading.Lock()
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0

    def keep(self, path: str, data: bytes) -> None:
        """Remember a file, unless it is too big."""
        if len(data) > _FILE_BYTES_MAX:
            return
        with self._guard:
            self._drop(path)
            self._files[path] = data
            self._size_bytes += len(data)
            while self._size_bytes > self._bytes_max:
                self._drop(next(iter(self._files)))

    def find(self, path: str) -> bytes | None:
        """A file's bytes, None when they are not known."""
        with self._guard:
            if path in self._files:
                self._files.move_to_end(path)
            return self._files.get(path)

    def forget(self, path: str) -> None:
        """A file was deleted or given up here."""
        with self._guard:
            self._drop(path)

    def _drop(self, path: str) -> None:
        self._size_bytes -= len(self._files.pop(path, b""))

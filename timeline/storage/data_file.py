"""
The file object ``LocalStorage.open_output`` hands out for a new data file.

Its own file because it has a small life of its own: written through a big buffer, made
durable by closing, removed when its ``with`` block ends by an exception.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

from timeline.storage.folders import Syscalls, unavailable

__all__ = ["DataFile"]

_BUFFER_BYTES = 1 << 20


class DataFile(io.BufferedWriter):
    """
    A new binary file that only grows.

    Args:
        descriptor: Open for writing; owned by this object from now on.
        path: Relative path, for errors.
        calls: The system calls to use.
        durable: Whether closing waits until the bytes are on the disk (LOC-2).
        remove: Takes the unfinished file away.
    """

    def __init__(
        self,
        descriptor: int,
        path: str,
        calls: Syscalls,
        *,
        durable: bool,
        remove: Callable[[], None],
    ) -> None:
        super().__init__(_RawDataFile(descriptor, path, calls), _BUFFER_BYTES)
        self._path = path
        self._calls = calls
        self._durable = durable
        self._remove = remove

    def close(self) -> None:
        """
        Write what is buffered, make it durable and close; a second call does nothing.

        Raises:
            StorageUnavailableError: The disk refused; the unfinished file is removed.
        """
        if self.closed:
            return
        try:
            self.flush()
            if self._durable:
                self._sync()
        except BaseException:
            self.abort()
            raise
        super().close()

    def abort(self) -> None:
        """Close without keeping anything; a second call does nothing."""
        if self.closed:
            return
        # The raw file is closed first: closing the buffer would write it out.
        self.raw.close()
        self._remove()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _sync(self) -> None:
        try:
            self._calls.fsync(self.fileno())
        except OSError as error:
            raise unavailable(error, self._path, "making a data file durable") from error


class _RawDataFile(io.RawIOBase):
    """The unbuffered side: system calls with typed errors."""

    def __init__(self, descriptor: int, path: str, calls: Syscalls) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._path = path
        self._calls = calls
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any, /) -> int:
        try:
            written = self._calls.write(self._descriptor, data)
        except OSError as error:
            raise unavailable(error, self._path, "writing a data file") from error
        self._position += written
        return written

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._descriptor)

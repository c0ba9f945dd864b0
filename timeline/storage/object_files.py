"""
The file objects that the object-store adapter hands out: one to read, one to write.

Reading fetches only the ranges that are asked for, because a key look-up needs the footer
and one column of a data file. Writing gathers the bytes and sends them when the file is
closed: the object appears whole or not at all, and nothing half-sent is left to pay for.
"""

from __future__ import annotations

import atexit
import gc
import io
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from timeline.machine import SystemClock

__all__ = ["ObjectInput", "ObjectOutput"]

_FETCH_BYTES_MIN = 128 * 1024  # a little more costs nothing beside the way there and back
_EXIT_WAIT_MS_MAX = 500  # what Arrow needs is a few; a file held by the program is held for good
_EXIT_PAUSE_MS = 5

# Closed files that something still holds; see _wait_for_arrow.
_CLOSED: weakref.WeakSet[ObjectInput] = weakref.WeakSet()
_HOOKED: list[bool] = []


class ObjectInput(io.RawIOBase):
    """
    A seekable file over an object that never changes.

    Args:
        fetch: Gives the bytes from a start to an end (exclusive).
        size_bytes: Size of the object.
        tail: Its last bytes, where they are known already.
    """

    def __init__(
        self, fetch: Callable[[int, int], bytes], size_bytes: int, *, tail: bytes = b""
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size_bytes
        self._position = 0
        self._block = tail
        self._block_start = size_bytes - len(tail)
        if not _HOOKED:
            _HOOKED.append(True)
            atexit.register(_wait_for_arrow)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        """Bytes of the whole object."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"there is nothing before the beginning of a file: {start + offset}")
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        self._checkOpen()
        start = self._position
        end = self._size if size is None or size < 0 else min(start + size, self._size)
        if end <= start:
            return b""
        self._position = end
        if not self._block_start <= start or end > self._block_start + len(self._block):
            self._block = self._fetch(start, min(max(end, start + _FETCH_BYTES_MIN), self._size))
            self._block_start = start
        return self._block[start - self._block_start : end - self._block_start]

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, target: Any, /) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._block = b""
            _CLOSED.add(self)

    def _checkOpen(self) -> None:  # noqa: N802 - not ours to name
        if self.closed:
            raise ValueError("this file is closed")


def _wait_for_arrow() -> None:
    """
    Let Arrow's threads forget their files before the interpreter goes.

    One that lets go of a Python object while the process ends aborts the process.
    """
    gc.collect()
    clock = SystemClock()
    end_ms = clock.monotonic_ms() + _EXIT_WAIT_MS_MAX
    while len(_CLOSED) and clock.monotonic_ms() < end_ms:
        clock.sleep_ms(_EXIT_PAUSE_MS)


class ObjectOutput(io.BufferedIOBase):
    """
    A data file in the making.

    Args:
        keep: Makes the object out of all its bytes.
        done: Called once at the end, whether it was kept or given up.
    """

    def __init__(self, *, keep: Callable[[bytes], None], done: Callable[[], None]) -> None:
        super().__init__()
        self._gathered = bytearray()
        self._keep = keep
        self._done = done

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self._gathered)

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._gathered += view
        return len(view)

    def close(self) -> None:
        """Make the object; a second call does nothing. Errors are those of ``keep``."""
        if self.closed:
            return
        try:
            self._keep(bytes(self._gathered))
        finally:
            self.abort()

    def abort(self) -> None:
        """Keep nothing; a second call does nothing."""
        if not self.closed:
            super().close()
            self._gathered = bytearray()
            self._done()

    def __del__(self) -> None:
        # Forgotten is given up: the base class would close it, and so make the object.
        self.abort()

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

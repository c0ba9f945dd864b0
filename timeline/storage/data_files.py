"""Data files of the local storage: written in place or staged, cached while small."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timeline.errors import MalformedNameError
from timeline.storage.folder_walker import OpenFolder, Syscalls, system_call_error
from timeline.system import Started, start_in_background

# ---- The file object that ``LocalStorage.open_output`` returns for a new data file
#
# It writes through a big buffer, becomes durable when closed, and is deleted when its ``with``
# block ends by an exception.

_BUFFER_BYTES = 1 << 20


class DataFile(io.BufferedWriter):
    """
    A new binary file that only grows.

    Args:
        descriptor: Open for writing; this object owns it from now on.
        path: Relative path, for errors.
        calls: The system calls to use.
        durable: Whether closing waits until the bytes are on the disk (LOC-2).
        remove: Deletes the unfinished file.
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
        Write the buffer, make the file durable and close it; a second call does nothing.

        Raises:
            StorageUnavailableError: The disk refused; the unfinished file is deleted.
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
        # Close the raw file first: closing the buffer would write it out.
        self.raw.close()
        self._remove()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _sync(self) -> None:
        try:
            self._calls.fsync(self.fileno())
        except OSError as error:
            raise system_call_error(error, self._path, "making a data file durable") from error


class _RawDataFile(io.RawIOBase):
    """The unbuffered layer: system calls with typed errors."""

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
            raise system_call_error(error, self._path, "writing a data file") from error
        self._position += written
        return written

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._descriptor)


# ---- The permit for threads that compute for a table (``compute_permit`` of a storage)


class ComputeLock:
    """One lock per process: a forked child would inherit locks that no thread there releases."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def here(self) -> threading.Lock:
        """Return this process's lock."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


# ---- Temporary files that are written and made durable before their object is created
#
# Waiting for the disk is most of a small commit. The bytes of the completed file are known before
# its slot is taken, so both wait for the disk at the same time.

TemporaryFile = tuple[OpenFolder, str]  # the folder of a temporary file, and its name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    data: bytes
    written: Started[TemporaryFile]

    def drop(self) -> None:
        self.written.add_done_callback(_remove)


class StagedFiles:
    """Temporary files that are written for later objects, by the object's path."""

    def __init__(self) -> None:
        self._files: dict[str, _Staged] = {}

    def begin(self, path: str, data: bytes, write: Callable[[], TemporaryFile]) -> None:
        """Start ``write`` on another thread; it makes a durable temporary file of these bytes."""
        self.drop(path)
        with contextlib.suppress(RuntimeError):  # the interpreter ends: no new threads
            self._files[path] = _Staged(data=data, written=start_in_background(write))

    def take(self, path: str, data: bytes, folder: int) -> str | None:
        """
        Return the finished temporary file for an object; the caller must then delete it.

        Args:
            path: The object.
            data: The content it must have.
            folder: Descriptor of the folder it must be in.

        Returns:
            None if there is none, or it failed: the caller's own attempt raises the reason.
        """
        staged = self._files.pop(path, None)
        if staged is None:
            return None
        if staged.data == data:
            try:
                opened, name = staged.written.result()
            except (OSError, MalformedNameError):
                return None
            if os.path.samestat(os.fstat(opened.descriptor), os.fstat(folder)):
                return name
        staged.drop()
        return None

    def drop(self, path: str) -> None:
        """Delete a file that was not taken; none is no error."""
        staged = self._files.pop(path, None)
        if staged is not None:
            staged.drop()


def _remove(written: Started[TemporaryFile]) -> None:
    if written.cancelled() or written.exception() is not None:
        return
    # Listings hide temporary names, so a file that stays does no harm.
    opened, name = written.result()
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=opened.descriptor)


# ---- Small data files that this process wrote or read a moment ago
#
# A write that changes a few rows reads the same small base file for its keys, its rows and its
# footer. The next write reads the file that this one wrote. A data file never changes and its name
# is never used again, so its bytes in memory stay right. The commit checks whether the file still
# exists.

_FILE_BYTES_MAX = 1 << 20
_BYTES_MAX = 16 << 20


class FileCache:
    """Cache whole files by path; drop the least recently used ones first."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._guard = threading.Lock()
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0

    def add(self, path: str, data: bytes) -> None:
        """Cache a file, unless it is too big."""
        if len(data) > _FILE_BYTES_MAX:
            return
        with self._guard:
            self._drop(path)
            self._files[path] = data
            self._size_bytes += len(data)
            while self._size_bytes > self._bytes_max:
                self._drop(next(iter(self._files)))

    def find(self, path: str) -> bytes | None:
        """Return a file's bytes, or None if they are not cached."""
        with self._guard:
            if path in self._files:
                self._files.move_to_end(path)
            return self._files.get(path)

    def forget(self, path: str) -> None:
        """Drop a file that this process deleted or gave up."""
        with self._guard:
            self._drop(path)

    def _drop(self, path: str) -> None:
        self._size_bytes -= len(self._files.pop(path, b""))

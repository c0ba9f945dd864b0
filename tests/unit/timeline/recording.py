"""
A storage that records every call to an inner storage.

The number of outside calls is part of a function's contract, and tests count the recorded calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, TypeAlias, TypeVar

from timeline.ports.ports import EventSink, FileStat, Names, Stats, Storage, StorageCapabilities
from timeline.system import NullEvents

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCall:
    """One call: its arguments, duration and result."""

    operation: str  # name of the port's method
    path: str
    seconds: float
    size_bytes: int  # bytes read or written by the call itself; 0 for opened files
    failure: str | None  # name of the exception's class


_Calls: TypeAlias = list[StorageCall]
_Texts: TypeAlias = list[str]


class RecordingStorage:
    """
    Pass every call on and record it.

    Args:
        inner: The storage that does the work.
        events: Receives ``storage.call`` for each call.
        calls: Receives each call; pass one list to several storages to see their order.
        timer: Seconds on a monotonic clock.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        events: EventSink | None = None,
        calls: _Calls | None = None,
        timer: Callable[[], float] | None = None,
    ) -> None:
        self._inner = inner
        self._events: EventSink = events or NullEvents()
        self.calls: _Calls = [] if calls is None else calls
        self._timer = timer or time.perf_counter

    def operations(self) -> _Texts:
        """Return the recorded calls as ``operation path`` texts, in order."""
        return [f"{call.operation} {call.path}" for call in self.calls]

    def count(self, *operations: str) -> int:
        """Return the number of calls of these operations; of all if none is named."""
        if not operations:
            return len(self.calls)
        return sum(call.operation in operations for call in self.calls)

    def forget(self) -> None:
        """Reset the count."""
        self.calls.clear()

    @property
    def base_uri(self) -> str:
        """As the inner storage; not counted."""
        return self._inner.base_uri

    @property
    def capabilities(self) -> StorageCapabilities:
        """As the inner storage; not counted."""
        return self._inner.capabilities

    def now_ms(self) -> int:
        """As the inner storage."""
        return self._note("now_ms", "", self._inner.now_ms)

    def locate(self, path: str) -> str:
        """As the inner storage; not counted, since it sends no request."""
        return self._inner.locate(path)

    def read(self, path: str) -> bytes:
        """As the inner storage."""
        return self._note("read", path, lambda: self._inner.read(path))

    def stat(self, path: str) -> FileStat | None:
        """As the inner storage."""
        return self._note("stat", path, lambda: self._inner.stat(path))

    def list(self, folder: str) -> Stats:
        """As the inner storage."""
        return self._note("list", folder, lambda: self._inner.list(folder))

    def names(self, folder: str) -> Names:
        """As the inner storage."""
        return self._note("names", folder, lambda: self._inner.names(folder))

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """As the inner storage."""
        self._note(
            "create", path, lambda: self._inner.create(path, data, durable=durable), len(data)
        )

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """As the inner storage."""
        self._note("write", path, lambda: self._inner.write(path, data, durable=durable), len(data))

    def delete(self, path: str) -> None:
        """As the inner storage."""
        self._note("delete", path, lambda: self._inner.delete(path))

    def delete_folder(self, folder: str) -> None:
        """As the inner storage."""
        self._note("delete_folder", folder, lambda: self._inner.delete_folder(folder))

    def open_input(self, path: str) -> IO[bytes]:
        """As the inner storage."""
        return self._note("open_input", path, lambda: self._inner.open_input(path))

    def open_output(self, path: str) -> IO[bytes]:
        """As the inner storage."""
        return self._note("open_output", path, lambda: self._inner.open_output(path))

    def sync_folders(self, folders: Iterable[str]) -> None:
        """As the inner storage; one call for any number of folders."""
        wanted = tuple(folders)
        self._note("sync_folders", " ".join(wanted), lambda: self._inner.sync_folders(wanted))

    def _note(
        self, operation: str, path: str, ask: Callable[[], Answer], size_bytes: int = 0
    ) -> Answer:
        failure: str | None = None
        started = self._timer()
        try:
            answer = ask()
            if isinstance(answer, bytes):
                size_bytes = len(answer)
            return answer
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            call = StorageCall(
                operation=operation,
                path=path,
                seconds=self._timer() - started,
                size_bytes=size_bytes,
                failure=failure,
            )
            self.calls.append(call)
            self._events.emit(
                "storage.call",
                operation=operation,
                path=path,
                seconds=call.seconds,
                size_bytes=size_bytes,
                failure=failure,
            )

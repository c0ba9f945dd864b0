"""
A storage that notes every call made to the one behind it.

What a path costs in outside calls is part of its contract; tests count the noted calls
and users see them as ``storage.call`` events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, TypeAlias, TypeVar

from timeline.ports.ports import EventSink
from timeline.ports.storage import FileStat, Names, Stats, Storage, StorageCapabilities
from timeline.system import NullEvents, SystemClock

__all__ = ["RecordingStorage", "StorageCall"]

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCall:
    """One call: what was asked, how long it took and how it ended."""

    operation: str  # name of the port's method
    path: str
    seconds: float
    size_bytes: int  # bytes read or written by the call itself; 0 for opened files
    failure: str | None  # name of the exception's class


_Calls: TypeAlias = list[StorageCall]
_Texts: TypeAlias = list[str]


class RecordingStorage:
    """
    Passes every call on and notes it.

    Args:
        inner: The storage that does the work.
        events: Receives ``storage.call`` for each call.
        calls: Grows by each call; give one list to several storages to see their order.
        timer: Seconds on a clock that never goes back.
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
        self._timer = timer or SystemClock().precise_seconds

    def operations(self) -> _Texts:
        """The noted calls as ``operation path`` texts, in order."""
        return [f"{call.operation} {call.path}" for call in self.calls]

    def count(self, *operations: str) -> int:
        """How many calls of these operations were made; of all when none is named."""
        if not operations:
            return len(self.calls)
        return sum(call.operation in operations for call in self.calls)

    def forget(self) -> None:
        """Start counting anew."""
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
        """As the inner storage; not counted, it asks nobody."""
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
        """As the inner storage; one call, however many folders."""
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

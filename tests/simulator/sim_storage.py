"""
The storage port of the simulated system: each call is a switching point before it is applied.

Faults belong to the scheduler: this adapter only gives the effect of a call and its kind.
``open_output`` shows its name at once and its bytes at ``close``, the most awkward behaviour the
port allows: a crash between the two leaves an empty file. Otherwise it keeps the port's contract,
which ``timeline.testing.storage_suite`` checks.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from types import TracebackType
from typing import IO, TypeVar, cast

import pyarrow as pa

from tests.simulator.world import ActorState, CallKind, LateCreate, PortCall, SimulatedSystem
from timeline.errors import StorageUnavailableError
from timeline.model.file_names import check_relative_path
from timeline.ports.ports import (
    FileStat,
    Names,
    ObjectExistsError,
    ObjectMissingError,
    Stats,
    StorageCapabilities,
)
from timeline.storage.folder_walker import checksum_sibling, is_leftover

Answer = TypeVar("Answer")


class SimStorage:
    """
    One actor's access to the objects of the system.

    Args:
        world: Holds the bytes.
        actor: The caller.
        atomic_create: False makes create-if-absent read and write in two steps, to
            show the damage on a storage without it.
        far: Calls that need no order are handed to the executor at once.
    """

    def __init__(
        self,
        world: SimulatedSystem,
        actor: ActorState,
        *,
        atomic_create: bool = True,
        far: bool = False,
    ) -> None:
        self._world = world
        self._actor = actor
        self._atomic_create = atomic_create
        self._capabilities = StorageCapabilities(
            atomic_create=atomic_create,
            shared_between_processes=True,
            local_root=None,
            high_latency=far,
        )

    @property
    def base_uri(self) -> str:
        return "memory:/simulated/table"

    @property
    def capabilities(self) -> StorageCapabilities:
        return self._capabilities

    def now_ms(self) -> int:
        return self._world.now_ms

    def locate(self, path: str) -> str:
        return f"{self.base_uri}/{check_relative_path(path)}" if path else self.base_uri

    def read(self, path: str) -> bytes:
        return self._call("read", path, lambda: self._content(path))

    def stat(self, path: str) -> FileStat | None:
        return self._call("stat", path, lambda: self._stat(path))

    def list(self, folder: str) -> Stats:
        return self._call("list", folder, lambda: self._entries(folder))

    def names(self, folder: str) -> Names:
        def apply() -> Names:
            files, prefix = self._world.files, f"{folder}/" if folder else ""
            names = self._world.child_names(folder)
            return [name for name in names if prefix + name in files and not _hidden(name)]

        return self._call("names", folder, apply)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        def apply() -> None:
            if path in self._world.files:
                raise ObjectExistsError(path)
            self._world.put(self._actor.name, path, data, durable=durable, new=True)
            self._drop_checksum(path)

        def late() -> None:
            self._world.late.append(
                LateCreate(actor=self._actor.name, path=path, data=data, durable=durable)
            )

        if not self._atomic_create:
            if self.stat(path) is not None:
                raise ObjectExistsError(path)
            self.write(path, data, durable=durable)
            return
        self._call("create", path, apply, kind=CallKind.CREATE, late=late)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        def apply() -> None:
            self._world.put(self._actor.name, path, data, durable=durable, new=False)
            self._drop_checksum(path)

        self._call("write", path, apply, kind=CallKind.CHANGE)

    def delete(self, path: str) -> None:
        def apply() -> None:
            self._world.remove(self._actor.name, path)
            self._drop_checksum(path)

        self._call("delete", path, apply, kind=CallKind.CHANGE)

    def delete_folder(self, folder: str) -> None:
        def apply() -> None:
            for path in self._world.paths_below(folder):
                self._world.remove(self._actor.name, path)

        self._call("delete_folder", folder, apply, kind=CallKind.CHANGE)

    def open_input(self, path: str) -> IO[bytes]:
        # An Arrow native file: see ``LocalStorage.open_input`` for why.
        data = self._call("open_input", path, lambda: self._content(path))
        copy = pa.BufferOutputStream()
        copy.write(data)
        return cast("IO[bytes]", pa.BufferReader(copy.getvalue()))

    def open_output(self, path: str) -> IO[bytes]:
        def apply() -> None:
            if path in self._world.files:
                raise ObjectExistsError(path)
            self._world.put(self._actor.name, path, b"", durable=False, new=True)

        self._call("open_output", path, apply, kind=CallKind.CHANGE)
        made = OutputFile(partial(self._finish_output, path), lambda *_: self.delete(path))
        return cast("IO[bytes]", made)

    def sync_folders(self, folders: Iterable[str]) -> None:
        wanted = frozenset(check_relative_path(folder) if folder else "" for folder in folders)

        def apply() -> None:
            for path, entry in self._world.files.items():
                if path.rpartition("/")[0] in wanted:
                    entry.name_durable = True

        label = ",".join(sorted(wanted))
        call = PortCall("storage", "sync_folders", label, apply, kind=CallKind.CHANGE)
        self._world.perform(self._actor, call)

    def sync_soon(self, folders: Iterable[str]) -> Callable[[], None]:
        """As ``WorksAhead``, and as late as it may be: only when it is waited for."""
        wanted = tuple(folders)
        return lambda: self.sync_folders(wanted)

    def _finish_output(self, path: str, data: bytes) -> None:
        """Close of an output file: its bytes become whole and durable."""

        def apply() -> None:
            entry = self._world.files.get(path)
            if entry is None:  # deleted meanwhile: like an unlinked descriptor
                return
            entry.data = data
            entry.data_durable = True
            entry.modified_ms = self._world.now_ms

        try:
            self._call("close", path, apply, kind=CallKind.CHANGE)
        except StorageUnavailableError:
            with contextlib.suppress(StorageUnavailableError):
                self.delete(path)
            raise

    # ------------------------------------------------------------ applied side

    def _call(
        self,
        method: str,
        path: str,
        apply: Callable[[], Answer],
        *,
        kind: str = CallKind.READ,
        late: Callable[[], None] | None = None,
    ) -> Answer:
        if path or method not in _MAY_NAME_THE_BASE:
            _checked(path)
        call = PortCall("storage", method, path, apply, kind=kind, late=late)
        return cast("Answer", self._world.perform(self._actor, call))

    def _content(self, path: str) -> bytes:
        entry = self._world.files.get(path)
        if entry is None:
            raise ObjectMissingError(path)
        return entry.data

    def _drop_checksum(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        sibling = checksum_sibling(name)
        self._world.remove(self._actor.name, f"{folder}/{sibling}" if folder else sibling)

    def _stat(self, path: str) -> FileStat | None:
        name = path.rpartition("/")[2]
        entry = self._world.files.get(path)
        if entry is not None:
            return FileStat(
                name=name,
                is_folder=False,
                size_bytes=len(entry.data),
                modified_ms=entry.modified_ms,
                version=str(entry.rewrites),
            )
        if path and not self._world.child_names(path):
            return None
        return FileStat(
            name=name,
            is_folder=True,
            size_bytes=0,
            modified_ms=self._world.folder_changed_ms(path),
            version="folder",
        )

    def _entries(self, folder: str) -> Stats:
        prefix = f"{folder}/" if folder else ""
        names = self._world.child_names(folder)
        found = [self._stat(prefix + name) for name in names]
        return [
            entry
            for entry in found
            if entry is not None and (entry.is_folder or not _hidden(entry.name))
        ]


_checked = lru_cache(maxsize=8_192)(check_relative_path)
_hidden = lru_cache(maxsize=8_192)(is_leftover)

#: Methods that take ``""`` for the table's base folder.
_MAY_NAME_THE_BASE = frozenset({"stat", "list", "names"})


class OutputFile(io.BytesIO):
    """
    A file under construction.

    Args:
        finish: Called once by the close, with the bytes.
        drop: Called instead, with the error, when the block ends by an error.
    """

    def __init__(
        self,
        finish: Callable[[bytes], None],
        drop: Callable[[type[BaseException], BaseException | None, TracebackType | None], object],
    ) -> None:
        super().__init__()
        self._finish = finish
        self._drop = drop

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self.closed:
            super().close()
            self._drop(kind, error, trace)

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        self._finish(data)

    def __del__(self) -> None:
        """Drop the buffer only: a collected file of a dead actor must not write."""

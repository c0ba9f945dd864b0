"""
Storage in the memory of a process, for tests and simulations.

It keeps the whole contract of the port without the failures of a disk. Handles that share one
``MemoryWorld`` see the same tables, as processes share a disk. There is no hidden global registry,
so tests cannot affect each other.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, cast

import pyarrow as pa

from timeline.errors import InvalidInputError, StorageUnavailableError
from timeline.model.file_names import check_relative_path, check_size
from timeline.ports.ports import (
    Clock,
    FileStat,
    Names,
    ObjectExistsError,
    ObjectMissingError,
    Stats,
    StorageCapabilities,
)
from timeline.storage.folder_walker import checksum_sibling, is_leftover
from timeline.system import SystemClock

_SCHEME = "memory://"


@dataclass(slots=True)
class _Object:
    data: bytes
    modified_ms: int
    version: int


@dataclass(slots=True)
class _Folder:
    modified_ms: int
    files: dict[str, _Object] = field(default_factory=dict)
    folders: dict[str, _Folder] = field(default_factory=dict)


class MemoryWorld:
    """
    The state that handles share: tables by name, and the clock for their timestamps.

    Args:
        clock: Source of ``modified_ms``; the machine's clock by default.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.guard = threading.Lock()
        self._tables: dict[str, _Folder] = {}
        self._version = 0

    def table(self, name: str) -> _Folder:
        """Return the base folder of a table; create it if missing."""
        with self.guard:
            return self._tables.setdefault(name, _Folder(self.clock.now_ms()))

    def new_object(self, data: bytes) -> _Object:
        """Return an object with a fresh version; call it under the guard."""
        self._version += 1
        return _Object(data, self.clock.now_ms(), self._version)


class MemoryStorage:
    """
    One table in memory; every method is one atomic step.

    Args:
        uri: ``memory://`` and a name.
        ports: The state shared with other handles; a new one by default.

    Raises:
        InvalidInputError: The address is not of this form.
    """

    def __init__(self, uri: str = "memory://table", *, ports: MemoryWorld | None = None) -> None:
        name = uri.removeprefix(_SCHEME).rstrip("/")
        if not uri.startswith(_SCHEME) or not name:
            raise InvalidInputError(
                f"an address in memory is memory:// and a name, for example memory://t: {uri!r}",
                uri=uri,
            )
        self._world = ports or MemoryWorld()
        self._name = name
        self._root = self._world.table(name)

    @property
    def base_uri(self) -> str:
        """``memory://`` and the table's name."""
        return _SCHEME + self._name

    @property
    def capabilities(self) -> StorageCapabilities:
        """Atomic creation, but only inside this process."""
        return StorageCapabilities(
            atomic_create=True, shared_between_processes=False, local_root=None
        )

    def now_ms(self) -> int:
        """Return the world's clock."""
        return self._world.clock.now_ms()

    def locate(self, path: str) -> str:
        """Return ``memory://name/path``; ``""`` is the base folder."""
        return f"{self.base_uri}/{check_relative_path(path)}" if path else self.base_uri

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises: ``ObjectMissingError``, and as ``check_size``."""
        folder, _, name = check_relative_path(path).rpartition("/")
        with self._world.guard:
            found = self._find(folder)
            if found is None or name not in found.files:
                raise ObjectMissingError(path)
            check_size(path, len(found.files[name].data))
            return found.files[name].data

    def stat(self, path: str) -> FileStat | None:
        """Return the object's entry, or None if there is none; ``""`` is the base folder."""
        with self._world.guard:
            if not path:
                return _folder_stat("", self._root)
            folder, _, name = check_relative_path(path).rpartition("/")
            found = self._find(folder)
            if found is None:
                return None
            if name in found.files:
                return _object_stat(name, found.files[name])
            return _folder_stat(name, found.folders[name]) if name in found.folders else None

    def list(self, folder: str) -> Stats:
        """Return direct children (files and folders) sorted by name; none for a missing folder."""
        with self._world.guard:
            found = self._find(check_relative_path(folder) if folder else "")
            if found is None:
                return []
            entries = [_folder_stat(name, child) for name, child in found.folders.items()]
            entries += [
                _object_stat(name, one)
                for name, one in found.files.items()
                if not is_leftover(name)
            ]
        entries.sort(key=lambda entry: entry.name)
        return entries

    def names(self, folder: str) -> Names:
        """Return the names of the direct child files, sorted; none for a missing folder."""
        with self._world.guard:
            found = self._find(check_relative_path(folder) if folder else "")
            if found is None:
                return []
            return sorted(name for name in found.files if not is_leftover(name))

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create if absent; create missing parents. Raises: ``ObjectExistsError``."""
        folder, _, name = check_relative_path(path).rpartition("/")
        with self._world.guard:
            place = self._make(folder, path)
            if name in place.files or name in place.folders:
                raise ObjectExistsError(path)
            place.files.pop(checksum_sibling(name), None)
            place.files[name] = self._world.new_object(bytes(data))

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Create or replace in one step."""
        folder, _, name = check_relative_path(path).rpartition("/")
        with self._world.guard:
            place = self._make(folder, path)
            if name in place.folders:
                raise _in_the_way("a folder stands where a file is needed", path)
            place.files.pop(checksum_sibling(name), None)
            place.files[name] = self._world.new_object(bytes(data))

    def delete(self, path: str) -> None:
        """Delete an object and its ``.crc`` sibling; absent is no error."""
        folder, _, name = check_relative_path(path).rpartition("/")
        with self._world.guard:
            place = self._find(folder)
            if place is not None:
                place.files.pop(checksum_sibling(name), None)
                place.files.pop(name, None)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything below it; absent is no error."""
        parent, _, name = check_relative_path(folder).rpartition("/")
        with self._world.guard:
            place = self._find(parent)
            if place is not None:
                place.folders.pop(name, None)

    def open_input(self, path: str) -> IO[bytes]:
        """
        Return a seekable binary file (an Arrow native file). Raises: ``ObjectMissingError``.

        It is a copy outside Python's memory: see ``LocalStorage.open_input`` for the reason.
        """
        copy = pa.BufferOutputStream()
        copy.write(self.read(path))
        return cast(IO[bytes], pa.BufferReader(copy.getvalue()))

    def open_output(self, path: str) -> IO[bytes]:
        """
        Return a new binary file; the name is taken at once, the bytes appear when it closes.

        Raises:
            ObjectExistsError: The name is taken.
        """
        self.create(path, b"")
        return _OutputFile(
            keep=lambda data: self.write(path, data), remove=lambda: self.delete(path)
        )

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Check the folders; memory needs no sync, because it does not survive a power cut."""
        for folder in folders:
            if folder:
                check_relative_path(folder)

    def _find(self, folder: str) -> _Folder | None:
        at: _Folder | None = self._root
        for segment in folder.split("/") if folder else ():
            if at is None:
                return None
            at = at.folders.get(segment)
        return at

    def _make(self, folder: str, path: str) -> _Folder:
        at = self._root
        for segment in folder.split("/") if folder else ():
            if segment in at.files:
                raise _in_the_way("a file stands where a folder is needed", path)
            at = at.folders.setdefault(segment, _Folder(self._world.clock.now_ms()))
        return at


class _OutputFile(io.BytesIO):
    """An unfinished data file."""

    def __init__(self, *, keep: Callable[[bytes], None], remove: Callable[[], None]) -> None:
        super().__init__()
        self._keep = keep
        self._remove = remove

    def close(self) -> None:
        if not self.closed:
            self._keep(self.getvalue())
            super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self.closed:
            super().close()
            self._remove()
        self.close()


def _in_the_way(what: str, path: str) -> StorageUnavailableError:
    return StorageUnavailableError(f"{what}; choose another path: {path!r}", path=path)


def _object_stat(name: str, found: _Object) -> FileStat:
    return FileStat(
        name=name,
        is_folder=False,
        size_bytes=len(found.data),
        modified_ms=found.modified_ms,
        version=str(found.version),
    )


def _folder_stat(name: str, found: _Folder) -> FileStat:
    return FileStat(
        name=name, is_folder=True, size_bytes=0, modified_ms=found.modified_ms, version="folder"
    )

"""Storages without an atomic create: the test for them (CAP-1), and their adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import IO

from timeline.errors import StorageCapabilityError, StorageUnavailableError
from timeline.model.file_names import check_relative_path
from timeline.ports.ports import (
    AmbiguousWriteError,
    FileStat,
    Ids,
    ListsTemporaries,
    Names,
    ObjectExistsError,
    Stats,
    Storage,
    StorageCapabilities,
    open_cached,
    sync_soon,
)

# ---- The proof that a storage really creates an object only if it is absent (CAP-1)
#
# Some stores accept the condition and ignore it (several S3-compatible ones do). A table with
# several writers on such a store loses commits, so the promise is tested.

PROBE_FOLDER = ".hoodie/.hoodoo/probe"


def prove_atomic_create(storage: Storage, ids: Ids) -> None:
    """
    Check that a second create of one object reports that it exists and changes nothing.

    Outside: 2 creates, 1 read, 1 delete.

    Raises:
        StorageCapabilityError: The storage does not promise it, or does not do it.
        StorageUnavailableError: No answer, so the result is unknown.
    """
    if not storage.capabilities.atomic_create:
        raise _incapable(storage, "the adapter does not claim it")
    path = f"{PROBE_FOLDER}/{ids.nonce()}"
    try:
        storage.create(path, b"first", durable=False)
        try:
            storage.create(path, b"second", durable=False)
        except ObjectExistsError:
            pass
        else:
            raise _incapable(storage, "a second creation succeeded")
        if storage.read(path) != b"first":
            raise _incapable(storage, "a rejected creation changed the object")
    except AmbiguousWriteError as error:
        # No data depends on the object yet, so the next write repeats the proof under another name.
        raise StorageUnavailableError(
            f"the storage did not answer during its check; write again: {path}", path=path
        ) from error
    finally:
        storage.delete(path)


def _incapable(storage: Storage, why: str) -> StorageCapabilityError:
    return StorageCapabilityError(
        "this storage cannot create an object only if it is absent, so writers would overwrite "
        f"each other's commits ({why}). Let a database decide commits (hoodoo.slots.backend), or "
        f"move the table to another storage: {storage.base_uri}",
        missing="atomic_create",
        base_uri=storage.base_uri,
    )


# ---- A storage that receives whole writes only, never a create-if-absent
#
# For stores whose create is not atomic, or that refuse the condition. A check before the write is
# enough if only one actor writes the object, or if all would write the same bytes. For the rest
# there is ``ExternalSlotStorage``, which adds a slot store (SLOT-6).


class NonAtomicStorage:
    """
    Pass all calls on, except creates.

    Args:
        inner: The table's storage.
    """

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    @property
    def base_uri(self) -> str:
        """As the inner storage."""
        return self._inner.base_uri

    @property
    def capabilities(self) -> StorageCapabilities:
        """As the inner storage, without its atomic create."""
        return replace(self._inner.capabilities, atomic_create=False)

    def now_ms(self) -> int:
        """As the inner storage."""
        return self._inner.now_ms()

    def locate(self, path: str) -> str:
        """As the inner storage."""
        return self._inner.locate(path)

    def read(self, path: str) -> bytes:
        """As the inner storage."""
        return self._inner.read(path)

    def stat(self, path: str) -> FileStat | None:
        """As the inner storage."""
        return self._inner.stat(path)

    def list(self, folder: str) -> Stats:
        """As the inner storage."""
        return self._inner.list(folder)

    def names(self, folder: str) -> Names:
        """As the inner storage."""
        return self._inner.names(folder)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """
        Check, then write; two that check at once both write. Outside: 1 stat, 1 write.

        Raises:
            ObjectExistsError: The name was taken at the check.
        """
        if self._inner.stat(check_relative_path(path)) is not None:
            raise ObjectExistsError(path)
        self._inner.write(path, data, durable=durable)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """As the inner storage."""
        self._inner.write(path, data, durable=durable)

    def delete(self, path: str) -> None:
        """As the inner storage."""
        self._inner.delete(path)

    def delete_folder(self, folder: str) -> None:
        """As the inner storage."""
        self._inner.delete_folder(folder)

    def open_input(self, path: str) -> IO[bytes]:
        """As the inner storage."""
        return self._inner.open_input(path)

    def open_kept(self, path: str) -> IO[bytes]:
        """As the inner storage."""
        return open_cached(self._inner, path)

    def open_output(self, path: str) -> IO[bytes]:
        """As the inner storage: names of data files carry a nonce."""
        return self._inner.open_output(path)

    def sync_folders(self, folders: Iterable[str]) -> None:
        """As the inner storage."""
        self._inner.sync_folders(folders)

    def sync_soon(self, folders: Iterable[str]) -> Callable[[], None]:
        """As the inner storage."""
        return sync_soon(self._inner, folders)

    def temporaries(self) -> Stats:
        """Return temporary files of the inner storage; none if it leaves none."""
        inner = self._inner
        return inner.temporaries() if isinstance(inner, ListsTemporaries) else []

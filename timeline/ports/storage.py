"""
The storage port: the bytes of one table.

Paths are relative to the table's base folder, with forward slashes, no leading slash, already
validated by ``timeline.model.file_names``. ``timeline.testing.storage_suite`` tests the contract of
every adapter: read-after-write, atomic create-if-absent (if promised), and a typed error for every
failure. A listing never contains leftovers of the file system (``*.crc``, ``.tmp-*``,
``<name>.<uuid>``, LOC-3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Protocol, TypeAlias, runtime_checkable

from timeline.errors import StorageUnavailableError, UnsafeSetupError

__all__ = [
    "AmbiguousWriteError",
    "FileStat",
    "HasComputeLock",
    "ListsTemporaries",
    "Names",
    "ObjectExistsError",
    "ObjectMissingError",
    "SlotNames",
    "SlotStore",
    "StagesFiles",
    "Stats",
    "Storage",
    "StorageCapabilities",
    "close_storage",
    "create_if_absent",
    "open_cached",
    "slot_store_lost",
    "staged",
    "sync_soon",
]


class ObjectMissingError(LookupError):
    """The named object does not exist; the argument is its path."""


class ObjectExistsError(Exception):
    """Create-if-absent found the name taken; the argument is its path."""


class AmbiguousWriteError(Exception):
    """
    A write was sent and its outcome is unknown: executed, to be executed later, or never.

    UNK-1: the only safe reaction is to repeat the identical bytes until the name has them or those
    of another writer.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """The entry of one object or folder."""

    name: str  # last segment of the path
    is_folder: bool
    size_bytes: int
    modified_ms: int  # by the storage's clock, ms since 1970-01-01 UTC
    version: str  # changes with every rewrite; opaque


# In the protocol class ``list`` is a method, so the result types are named here.
Stats: TypeAlias = list[FileStat]
Names: TypeAlias = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCapabilities:
    """The promises of a storage; multi-writer modes need ``atomic_create`` (CAP-1)."""

    atomic_create: bool
    shared_between_processes: bool
    local_root: str | None  # absolute folder if the table is on this machine's disk
    slots: str = "storage"  # what decides commit slots; equal text means the same one (SLOT-6)
    # a high-latency store: each call is a round trip, and parallel calls take the time of one
    far: bool = False


class Storage(Protocol):
    """
    The bytes of one table.

    Every method may raise ``StorageUnavailableError`` (no answer, no access, disk full) and
    ``MalformedNameError`` (a path that leaves the table, or that contains a symbolic link, SEC1).
    """

    @property
    def base_uri(self) -> str:
        """Canonical address (``file:/a/b``, ``memory://name``), without a trailing slash."""

    @property
    def capabilities(self) -> StorageCapabilities:
        """The promises of this storage."""

    def now_ms(self) -> int:
        """Return the clock of ``FileStat.modified_ms``, ms since 1970 UTC."""

    def locate(self, path: str) -> str:
        """Return a path's absolute address for other engines (``file:/...``, ``s3://...``)."""

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises: ``ObjectMissingError``."""

    def stat(self, path: str) -> FileStat | None:
        """Return the object's entry, or None if there is none."""

    def list(self, folder: str) -> Stats:
        """Return direct children (files and folders) sorted by name; none for a missing folder."""

    def names(self, folder: str) -> Names:
        """
        Return the names of the direct child files, sorted; none for a missing folder.

        This is the cheap listing without file attributes: the timeline needs only names.
        """

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """
        Create if absent, whole or not at all; create missing parents.

        With ``durable`` the object survives a power cut once this returns (LOC-1, LOC-2).

        Raises:
            ObjectExistsError: The name is taken.
            AmbiguousWriteError: The answer was lost.
        """

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """
        Create or replace atomically: readers see the old bytes or the new (heartbeat, hints).

        It first deletes a ``.crc`` sibling of an older content (LOC-3).
        """

    def delete(self, path: str) -> None:
        """Delete an object and its ``.crc`` sibling; absent is no error."""

    def delete_folder(self, folder: str) -> None:
        """Delete a folder of markers with everything below it; absent is no error."""

    def open_input(self, path: str) -> IO[bytes]:
        """Return a seekable binary file for Arrow readers. Raises: ``ObjectMissingError``."""

    def open_output(self, path: str) -> IO[bytes]:
        """
        Return a new binary file for a data file; create missing parents.

        Closing makes the file's bytes durable; the name is durable after ``sync_folders``. Leaving
        a ``with`` block by an exception deletes the unfinished file.

        Raises:
            ObjectExistsError: The name is taken (data file names are never reused); here, or when
                the file is closed.
        """

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Make the names created by ``open_output`` in these folders durable (LOC-2)."""


class StagesFiles(Protocol):
    """
    An optional extension of a storage: wait for the disk in the background.

    Both methods only move a wait; they do not change what becomes visible when. ``staged`` and
    ``sync_soon`` use them, and work without them if a storage has neither.
    """

    def stage(self, path: str, data: bytes) -> AbstractContextManager[None]:
        """
        Start to make the bytes durable for a ``create`` that follows within the block.

        A create with other bytes, or none, is no error: the staged file is then deleted.
        """

    def sync_soon(self, folders: Iterable[str]) -> Callable[[], None]:
        """Begin ``sync_folders``; the returned function waits for its end and raises its error."""


@runtime_checkable
class ListsTemporaries(Protocol):
    """An optional extension of a storage: find the files that a killed ``create`` left."""

    def temporaries(self) -> Stats:
        """Return temporary files, also of running creates, by path; sorted."""


class HasComputeLock(Protocol):
    """
    An optional extension of a storage: a permit to compute for its table.

    ``filegroups.files.parquet`` uses it.
    """

    @property
    def compute_permit(self) -> AbstractContextManager[object]:
        """Return the permit; one thread of this process holds it at a time."""


def staged(storage: Storage, path: str, data: bytes) -> AbstractContextManager[None]:
    """Within the block, make a durable ``create`` of these bytes cheaper if the storage can."""
    ahead: Callable[[str, bytes], AbstractContextManager[None]] | None = getattr(
        storage, "stage", None
    )
    return nullcontext() if ahead is None else ahead(path, data)


def create_if_absent(
    storage: Storage, path: str, data: bytes, *, repeat: str, durable: bool = True
) -> bool:
    """
    Create an object that every actor creates with the same meaning; return whether it was absent.

    Args:
        storage: The storage of the object.
        path: Relative path.
        data: Its content.
        repeat: What the user repeats if the answer was lost, for the error.
        durable: As ``Storage.create``.

    Raises:
        StorageUnavailableError: The answer was lost; the object may exist now or later.
    """
    try:
        storage.create(path, data, durable=durable)
    except ObjectExistsError:
        return False
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; {repeat}: {path}", path=path
        ) from error
    return True


def open_cached(storage: Storage, path: str) -> IO[bytes]:
    """
    Open like ``open_input``, for a data file that was read or written a moment ago.

    A high-latency store may answer from memory: data files never change, and their names are never
    used again. So the result shows the content, not whether the file still exists.
    """
    kept: Callable[[str], IO[bytes]] | None = getattr(storage, "open_kept", None)
    return storage.open_input(path) if kept is None else kept(path)


def sync_soon(storage: Storage, folders: Iterable[str]) -> Callable[[], None]:
    """
    Begin to make names in these folders durable.

    Args:
        storage: The storage of the folders.
        folders: With none there is nothing to wait for.

    Returns:
        A function that waits for the end; the names are durable only after that.

    Raises:
        StorageUnavailableError: The disk refused; here, or from the returned function.
    """
    wanted = tuple(folders)
    ahead: Callable[[Iterable[str]], Callable[[], None]] | None = getattr(
        storage, "sync_soon", None
    )
    if ahead is not None and wanted:
        return ahead(wanted)
    if wanted:
        storage.sync_folders(wanted)
    return _done


def close_storage(storage: Storage) -> None:
    """Close the connections of a storage that has some; a later call opens new ones."""
    close: Callable[[], None] | None = getattr(storage, "close", None)
    if close is not None:
        close()


def _done() -> None:
    """Do nothing: there is nothing left to wait for."""


# ---- The slot store port: decides commit slots if the table's storage cannot (SLOT-6)
#
# It is the least that decides a commit: small objects, each created by one actor only. A storage
# with an atomic create-if-absent can implement it (the methods mean the same), and so can a
# database table with a primary key. ``timeline.testing.slot_suite`` tests the contract.

SlotNames: TypeAlias = list[str]


class SlotStore(Protocol):
    """
    Small objects under paths with forward slashes; each was created whole.

    Every method may raise ``StorageUnavailableError`` (no answer; nothing was executed, unless the
    method says otherwise) and ``UnsafeSetupError`` (waiting does not help).
    """

    def create(self, path: str, data: bytes) -> None:
        """
        Create the object unless it exists; on return it survives a power cut.

        Raises:
            ObjectExistsError: The name is taken.
            AmbiguousWriteError: The answer was lost (UNK-1).
        """

    def read(self, path: str) -> bytes:
        """Return the whole content, also right after its create. Raises: ``ObjectMissingError``."""

    def names(self, folder: str) -> SlotNames:
        """Return the last segments of the objects in a folder, sorted; none if it is unknown."""

    def delete(self, path: str) -> None:
        """Delete the object; absent is no error. Its name is free afterwards."""

    def close(self) -> None:
        """Close connections; a later call opens new ones."""


def slot_store_lost(where: str) -> UnsafeSetupError:
    """Return the error for a slot store that lost its decisions."""
    return UnsafeSetupError(
        "the slot store has lost this table, so nobody knows which slots are taken; "
        f"restore it before anybody writes: {where}",
        kind="slots_lost",
        slots=where,
    )

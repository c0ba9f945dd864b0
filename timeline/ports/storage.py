"""
The storage port: where the bytes of one table lie.

Paths are relative to the table's base folder, with forward slashes, no leading slash,
already validated by ``timeline.model.file_names``. The contract every adapter keeps is
tested by ``timeline.testing.storage_suite``: read-after-write, atomic create-if-absent
(where claimed), and a typed answer to every failure. Anything the file system leaves
behind (``*.crc``, ``.tmp-*``, ``<name>.<uuid>``) never shows in a listing (LOC-3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import IO, Protocol, TypeAlias, runtime_checkable

from timeline.errors import UnsafeSetupError

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
    "list_for_delete",
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
    A write was sent and its fate is unknown: it may have happened, may still happen or never.

    UNK-1: the only safe reaction is to repeat the identical bytes until the name shows
    them or somebody else's.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """One entry of a listing or one looked-up object."""

    name: str  # last segment of the path
    is_folder: bool
    size_bytes: int
    modified_ms: int  # by the storage's clock, ms since 1970-01-01 UTC
    version: str  # changes with every rewrite; opaque


# Inside the protocol the word ``list`` names its method, so the result types are named here.
Stats: TypeAlias = list[FileStat]
Names: TypeAlias = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCapabilities:
    """What a storage can promise; multi-writer modes need ``atomic_create`` (CAP-1)."""

    atomic_create: bool
    shared_between_processes: bool
    local_root: str | None  # absolute folder when the table lies on this machine's disk
    slots: str = "storage"  # what decides commit slots, equal for all that mean the same (SLOT-6)
    far: bool = False  # every call is a way there and back: some side by side take the time of one


class Storage(Protocol):
    """
    Bytes of one table.

    Every method may raise ``StorageUnavailableError`` (no answer, no access, disk full) and
    ``MalformedNameError`` (a path that leaves the table, or a symbolic link on the way, SEC1).
    """

    @property
    def base_uri(self) -> str:
        """Canonical address (``file:/a/b``, ``memory://name``), without a trailing slash."""

    @property
    def capabilities(self) -> StorageCapabilities:
        """What this storage promises."""

    def now_ms(self) -> int:
        """The clock that ``FileStat.modified_ms`` is taken from, ms since 1970 UTC."""

    def locate(self, path: str) -> str:
        """Absolute address of a path, as other engines want it (``file:/...``, ``s3://...``)."""

    def read(self, path: str) -> bytes:
        """Whole content. Raises: ``ObjectMissingError``."""

    def stat(self, path: str) -> FileStat | None:
        """The object's entry, or None when there is none."""

    def list(self, folder: str) -> Stats:
        """Direct children (files and folders) sorted by name; a missing folder is empty."""

    def names(self, folder: str) -> Names:
        """
        Names of the direct child files, sorted; a missing folder is empty.

        The cheap listing (no look at each file): the timeline's names say all it needs.
        """

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """
        Create-if-absent, whole or not at all; parents are made.

        With ``durable`` the object survives a power cut once this returns (LOC-1, LOC-2).

        Raises:
            ObjectExistsError: The name is taken.
            AmbiguousWriteError: The answer was lost.
        """

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """
        Create or replace atomically: readers see the old bytes or the new (heartbeat, hints).

        A ``.crc`` sibling that an older content left goes first (LOC-3).
        """

    def delete(self, path: str) -> None:
        """Remove an object and its ``.crc`` sibling; absent is no error."""

    def delete_folder(self, folder: str) -> None:
        """Remove a folder of markers with everything below it; absent is no error."""

    def open_input(self, path: str) -> IO[bytes]:
        """A seekable binary file for Arrow readers. Raises: ``ObjectMissingError``."""

    def open_output(self, path: str) -> IO[bytes]:
        """
        A new binary file for a data file; parents are made.

        Closing makes the file's bytes durable; the name is durable after ``sync_folders``.
        Leaving a ``with`` block by an exception removes the unfinished file.

        Raises:
            ObjectExistsError: The name is taken (data file names are never reused); here, or
                when the file is closed.
        """

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Make the names created by ``open_output`` in these folders durable (LOC-2)."""


class StagesFiles(Protocol):
    """
    What a storage may offer beside the port: waiting for the disk while others work.

    Both only move a wait; what becomes visible when is as without them. ``staged`` and
    ``sync_soon`` ask for them and do without where a storage has neither.
    """

    def stage(self, path: str, data: bytes) -> AbstractContextManager[None]:
        """
        Begin to make the bytes of a ``create`` durable that follows within the block.

        A create with other bytes, or none, is no error: what was staged then goes away.
        """

    def sync_soon(self, folders: Iterable[str]) -> Callable[[], None]:
        """Begin ``sync_folders``; the returned function waits for its end and raises its error."""


@runtime_checkable
class ListsTemporaries(Protocol):
    """What a storage may offer beside the port: to find what a killed ``create`` left."""

    def temporaries(self) -> Stats:
        """Temporary files, also of creates under way, named by their paths; sorted."""


class HasComputeLock(Protocol):
    """
    What a storage may offer beside the port: a permit to compute for its table.

    ``filegroups.files.parquet`` asks for it.
    """

    @property
    def compute_permit(self) -> AbstractContextManager[object]:
        """Held by one thread of this process at a time."""


def staged(storage: Storage, path: str, data: bytes) -> AbstractContextManager[None]:
    """Within the block a durable ``create`` of these bytes is cheaper, where the storage can."""
    ahead: Callable[[str, bytes], AbstractContextManager[None]] | None = getattr(
        storage, "stage", None
    )
    return nullcontext() if ahead is None else ahead(path, data)


def open_cached(storage: Storage, path: str) -> IO[bytes]:
    """
    As ``open_input``, for a write that reads a data file again or soon after it was written.

    A storage that is far away may answer from memory: data files never change, and their names
    are never used again. So it says what is in the file, not that it is still there.
    """
    kept: Callable[[str], IO[bytes]] | None = getattr(storage, "open_kept", None)
    return storage.open_input(path) if kept is None else kept(path)


def sync_soon(storage: Storage, folders: Iterable[str]) -> Callable[[], None]:
    """
    Begin to make names in these folders durable.

    Args:
        storage: Where the names are.
        folders: None at all is done at once.

    Returns:
        A function that waits for it; only then are they.

    Raises:
        StorageUnavailableError: The disk refused; here, or when it is waited for.
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


def list_for_delete(storage: Storage, folder: str) -> Callable[[], None]:
    """
    Find what a folder of markers holds, to be deleted when the answer is called.

    A storage that is far away lists it and deletes what was listed, which are two rounds; others
    do all of it then.

    Raises:
        StorageUnavailableError: The storage does not answer; here, or when it is called.
    """
    find: Callable[[str], Callable[[], None]] | None = getattr(storage, "found_to_delete", None)
    return partial(storage.delete_folder, folder) if find is None else find(folder)


def close_storage(storage: Storage) -> None:
    """Give up the connections of a storage that has some; a later call makes new ones."""
    close: Callable[[], None] | None = getattr(storage, "close", None)
    if close is not None:
        close()


def _done() -> None:
    """Nothing is left to wait for."""


# ---- The slot store port: where commit slots are decided when the table's storage cannot (SLOT-6)
#
# The least that decides a publication: small objects, each created by one actor only. Every
# storage with an atomic create-if-absent fulfils it (the methods mean the same), and so does a
# table of a database with a primary key. The contract is tested by
# ``timeline.testing.slot_suite``.

SlotNames: TypeAlias = list[str]


class SlotStore(Protocol):
    """
    Small objects under paths with forward slashes; what is read was created whole.

    Every method may raise ``StorageUnavailableError`` (no answer; nothing was done, unless the
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
        """Whole content, also when it was created a moment ago. Raises: ``ObjectMissingError``."""

    def names(self, folder: str) -> SlotNames:
        """Last segments of the objects in a folder, sorted; an unknown folder is empty."""

    def delete(self, path: str) -> None:
        """Remove the object; absent is no error. Its name is free afterwards."""

    def close(self) -> None:
        """Give up connections; a later call makes new ones."""


def slot_store_lost(where: str) -> UnsafeSetupError:
    """What everybody is told of a slot store that does not know any more what it decided."""
    return UnsafeSetupError(
        "the slot store has lost this table, so nobody knows which slots are taken; "
        f"restore it before anybody writes: {where}",
        kind="slots_lost",
        slots=where,
    )

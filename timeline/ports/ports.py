"""
The ports: everything that the engine asks of the outside, as protocols.

Storage, slot store, lock, clock, identity, events, executors; ``Ports`` has those of one table.

The lock is the right to commit now. Among hoodoo writers it only saves work, because the slot
decides (SLOT-1). If foreign writers share the table, the lock decides: they know nothing else
(FOR-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import IO, Any, Protocol, Self, TypeAlias, TypeVar, cast, overload, runtime_checkable

from timeline.errors import StorageUnavailableError, UnsafeSetupError
from timeline.model.instant_time import TimelineZone, utc_zone
from timeline.ports.merger import RecordMerger


class LockSharing(Enum):
    """Whether other writers that decide by slots may hold the lock at the same time (LOCK-1)."""

    NO = "no"
    JOIN = "join"  # join the writers that share it
    START = "start"  # make a free lock a shared one, since others will soon want it, too


class Lease(Protocol):
    """One holding of the lock; use it in a ``with`` block. Bound to its process (F26)."""

    @property
    def fencing_token(self) -> int | None:
        """A number that grows with every holding, if the provider has one."""

    @property
    def owner(self) -> str:
        """The holder: host, pid and writer id."""

    @property
    def is_shared(self) -> bool:
        """Whether other writers that decide by slots hold it at the same time (LOCK-1)."""

    def remaining_ms(self) -> int | None:
        """Return the time until the lease counts as lost, or None if it has no end."""

    def has_time_for_request(self) -> bool:
        """Return whether enough time is left for one more request that cannot be undone (FOR-8)."""

    def assert_held(self) -> None:
        """Raise ``LeaseLostError`` if the lease ended, was lost or was inherited by a fork."""

    def release(self) -> None:
        """Release the own holding, and only that; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Lock(Protocol):
    """A configured lock of one table: provider, identity and waiting budget together."""

    @property
    def provider(self) -> str:
        """Name of the provider, for example ``filesystem``."""

    @property
    def identity(self) -> str:
        """Name of the locked thing, comparable between writers (REG-1)."""

    @property
    def is_fifo(self) -> bool:
        """Whether waiting writers get it in the order of their requests."""

    @property
    def is_shareable(self) -> bool:
        """Whether the lock is in shared use now, as far as known without a request."""

    def acquire(self, purpose: str) -> Lease:
        """
        Wait for the lock within its budget.

        Args:
            purpose: Why the caller needs the lock (``publish 2026...``); waiting writers see it.

        Raises:
            LockTimeoutError: The budget ended; the error names the holder if known.
        """

    def acquire_while(
        self, wanted: Callable[[], bool], purpose: str, sharing: LockSharing = LockSharing.NO
    ) -> Lease | None:
        """
        Wait like ``acquire``, but return None when ``wanted()`` becomes false.

        Args:
            wanted: Called now and then while another writer holds the lock; sends no request.
            purpose: As of ``acquire``.
            sharing: Whether other writers may hold it at the same time.
        """

    def close(self) -> None:
        """Close connections and threads and release a held lease."""


def is_exclusive(lease: Lease | None) -> bool:
    """Return whether no other writer can commit while this is held."""
    return lease is not None and not lease.is_shared


# ---- The clock port: wall time names instants, monotonic time measures waits


class Clock(Protocol):
    """This process's clocks, in milliseconds."""

    def now_ms(self) -> int:
        """Return the wall clock, ms since 1970-01-01 UTC; it may jump."""

    def monotonic_ms(self) -> int:
        """Return a time that never decreases; only differences have a meaning."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait; the simulator may switch to another task here."""


# ---- The identity port: the source of every random number and name of the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """The identity of this process for others (SEC6: no environment, no stack, no settings)."""

    host: str
    pid: int
    writer_id: str  # unique per process and start
    application: str  # the user's text (``hoodie.write.application.id``), may be empty

    @property
    def as_metadata(self) -> dict[str, str]:
        """Return the identity for an instant's extra metadata, where it outlives the slot."""
        identity = {
            "hoodoo.writer": self.writer_id,
            "hoodoo.host": self.host,
            "hoodoo.pid": str(self.pid),
        }
        return identity | ({"hoodoo.application": self.application} if self.application else {})


class Ids(Protocol):
    """Randomness and identity."""

    def uuid(self) -> str:
        """Return a random UUID, lower-case hex with dashes."""

    def nonce(self) -> str:
        """Return 128 random bits as 32 hex digits."""

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""

    def identity(self) -> ProcessIdentity:
        """Return the identity of this process."""


# ---- The event port: events for logs, metrics, progress and the tests' counters

Value = str | int | float | bool | None


class EventSink(Protocol):
    """Receive events; never raise and never block."""

    def emit(self, name: str, /, **fields: Value) -> None:
        """Process one event."""


# ---- The executor port: parallel work, and repeated work in the background

Task = TypeVar("Task")
Result = TypeVar("Result")


class Ticker(Protocol):
    """A running background repetition."""

    def stop(self) -> None:
        """End it; return when no further call can start. A second call does nothing."""


class Executor(Protocol):
    """Run the engine's own functions on this machine."""

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        Run ``work`` on every task, in any order, and return the results in task order.

        The first exception is raised after all started tasks ended (PUB-2: no straggler).
        """

    def concurrently(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """As ``map``, for calls that only wait for the storage."""

    def every(self, interval_ms: int, work: Callable[[], None]) -> Ticker:
        """Call ``work`` every ``interval_ms`` until stopped; its exceptions end in an event."""


@runtime_checkable
class ClusterExecutor(Executor, Protocol):
    """
    An executor that also sends work to other processes, on a cluster.

    The work uses the ports of the process where it runs, not the caller's. It is a plain function,
    and its tasks and results are values. The caller does work of up to ``local_bytes_max`` itself,
    because starting processes costs more.
    """

    @property
    def local_bytes_max(self) -> int:
        """Greatest size of files whose merging needs no other process; 0 sends all work."""

    def map_on_cluster(
        self, work: Callable[[Ports, Task], Result], tasks: Sequence[Task]
    ) -> list[Result]:
        """
        Run ``work`` like ``map``, in other processes.

        Raises:
            HoodooError: The error that a task raised.
        """


# ---- All ports of one table in one value, passed explicitly; there are no globals

One = TypeVar("One")
Two = TypeVar("Two")
Three = TypeVar("Three")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything outside the engine, for one writer or reader of one table."""

    storage: Storage
    clock: Clock
    ids: Ids
    events: EventSink
    executor: Executor
    lock: Lock
    mergers: tuple[RecordMerger, ...] = ()  # from the plug-ins that the caller allows
    zone: Callable[[], TimelineZone] = utc_zone  # this process's, for tables of zone LOCAL

    @overload
    def concurrently(
        self, one: Callable[[], One], two: Callable[[], Two], /
    ) -> tuple[One, Two]: ...

    @overload
    def concurrently(
        self, one: Callable[[], One], two: Callable[[], Two], three: Callable[[], Three], /
    ) -> tuple[One, Two, Three]: ...

    @overload
    def concurrently(self, *calls: Callable[[], One]) -> tuple[One, ...]: ...

    def concurrently(self, *calls: Callable[[], Any]) -> tuple[Any, ...]:
        """
        Make independent calls and return their results in the order of the calls.

        On a high-latency store all calls run at once, in any order, and take the time of the
        longest. On a local store they run one after the other, because such a call ends before a
        thread has started. The first failure is raised after all started calls have ended.
        """
        if len(calls) > 1 and self.storage.capabilities.high_latency:
            return tuple(self.executor.concurrently(calls))
        return tuple(call() for call in calls)

    def for_each(self, work: Callable[[One], Two], items: Sequence[One]) -> list[Two]:
        """
        Make the same small request for each item, in any order; return results in item order.

        On a high-latency store it works like ``together``, else on as many threads as there are
        processors.
        """
        if self.storage.capabilities.high_latency:
            return list(self.concurrently(*(partial(work, item) for item in items)))
        return self.executor.map(work, items)


# ---- The storage port: the bytes of one table
# Paths are relative to the table's base folder, with forward slashes, no leading slash, already
# validated by ``timeline.model.file_names``. ``timeline.testing.storage_suite`` tests the contract of
# every adapter: read-after-write, atomic create-if-absent (if promised), and a typed error for every
# failure. A listing never contains leftovers of the file system (``*.crc``, ``.tmp-*``,
# ``<name>.<uuid>``, LOC-3).


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
    high_latency: bool = False


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


@runtime_checkable
class ListsTemporaries(Protocol):
    """An optional extension of a storage: find the files that a killed ``create`` left."""

    def temporaries(self) -> Stats:
        """Return temporary files, also of running creates, by path; sorted."""


def staged(storage: Storage, path: str, data: bytes) -> AbstractContextManager[None]:
    """
    Within the block, make a durable ``create`` of these bytes cheaper if the storage can.

    A storage may have a method ``stage`` of the same arguments, which starts to make the bytes
    durable. It moves a wait and does not change what becomes visible when. A create with other
    bytes, or none, is no error: the staged file is then deleted.
    """
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


class _CachedReads:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def open_input(self, path: str) -> IO[bytes]:
        return open_cached(self._storage, path)


def with_cached_reads(storage: Storage) -> Storage:
    """Return the storage with an ``open_input`` that is ``open_cached``, to read data files."""
    if getattr(storage, "open_kept", None) is None:
        return storage
    return cast(Storage, _CachedReads(storage))


def sync_soon(storage: Storage, folders: Iterable[str]) -> Callable[[], None]:
    """
    Begin to make names in these folders durable; a storage may have a method of this name for it.

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
        "the slot store lost this table, so the engine cannot know which slots are taken. Stop "
        f"all writers and restore the slot store from a backup: {where}",
        kind="slots_lost",
        slots=where,
    )

"""The storage port over an object store: S3 and compatible stores, GCS, Azure."""

from __future__ import annotations

import atexit
import gc
import io
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO, Any, cast

import pyarrow as pa

from timeline.errors import CorruptTableError
from timeline.model.file_names import check_relative_path, check_size
from timeline.ports.ports import (
    AmbiguousWriteError,
    Clock,
    FileStat,
    Ids,
    Names,
    ObjectExistsError,
    ObjectMissingError,
    Stats,
    StorageCapabilities,
)
from timeline.storage.data_files import ComputeLock, FileCache
from timeline.storage.folder_walker import checksum_sibling, is_leftover
from timeline.storage.object_address import ObjectAddress, with_account
from timeline.storage.object_client import (
    ObjectSettings,
    RequestFailure,
    StoreClock,
    assert_not_forked,
    classify_failure,
    is_no_such_range,
    open_client,
    request_error,
)
from timeline.system import SystemClock, SystemIds

# ---- The file objects of the object-store adapter: one to read, one to write
#
# A reader fetches only the requested ranges, because a key look-up needs only the footer and one
# column of a data file. A writer collects the bytes and sends them at close: the object appears
# whole or not at all, and no unfinished upload stays to be paid for.

_FETCH_BYTES_MIN = 128 * 1024  # a few more bytes cost nothing compared with the round trip
_EXIT_WAIT_MS_MAX = 500  # Arrow needs a few ms; a file that the program keeps is kept for good
_EXIT_PAUSE_MS = 5

# Closed files that are still referenced; see _wait_for_arrow.
_CLOSED: weakref.WeakSet[ObjectInput] = weakref.WeakSet()
_HOOKED: list[bool] = []


class ObjectInput(io.RawIOBase):
    """
    A seekable file over an object that never changes.

    Args:
        fetch: Returns the bytes from a start to an end (exclusive).
        size_bytes: Size of the object.
        tail: Its last bytes, if they are already known.
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
            raise ValueError(f"a read must not begin before the file: {start + offset}")
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
    Let Arrow's threads release their files before the interpreter ends.

    A thread that releases a Python object while the process ends aborts the process.
    """
    gc.collect()
    clock = SystemClock()
    end_ms = clock.monotonic_ms() + _EXIT_WAIT_MS_MAX
    while len(_CLOSED) and clock.monotonic_ms() < end_ms:
        clock.sleep_ms(_EXIT_PAUSE_MS)


class ObjectOutput(io.BufferedIOBase):
    """
    An unfinished data file.

    Args:
        keep: Creates the object from all its bytes.
        done: Called once at the end, whether it was kept or not.
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
        """Create the object; a second call does nothing. Raises the errors of ``keep``."""
        if self.closed:
            return
        try:
            self._keep(bytes(self._gathered))
        finally:
            self.abort()

    def abort(self) -> None:
        """Discard the bytes; a second call does nothing."""
        if not self.closed:
            super().close()
            self._gathered = bytearray()
            self._done()

    def __del__(self) -> None:
        # A dropped file is discarded: the base class would close it, and so create the object.
        self.abort()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


# ---- Storage of a table in an object store: S3 and compatible stores, GCS, Azure
#
# Objects appear whole, and creation is conditional (``If-None-Match: *``, generation 0). There are
# no folders: a folder exists while it contains an object. Invariants:
#
# - A conditional write is sent once. An answer that leaves the outcome open is an
#   ``AmbiguousWriteError``, and the caller decides whether to repeat (UNK-1, F14, F16).
# - Times are the store's: ``now_ms`` is its clock in whole seconds, like its timestamps.
# - A data file is one conditional write up to 64 MiB. A larger one is sent in parts that appear
#   together, after a check that its name is free (names are never reused).

_CREATES_MAX = 4
_NOT_DONE = frozenset(
    (RequestFailure.BUSY, RequestFailure.THROTTLED)
)  # answered by the store, so it can be sent again
_PAUSE_MS = 50  # before the second create; doubled for each further one
_WHOLE_READ_BYTES_MAX = 4 << 20
_SOON_BYTES_MAX = 4 << 20  # takes no longer than any small answer, down to 140 kB/s
_TAIL_BYTES = 256 << 10  # Parquet's footer, and all of a small file
_CONDITIONAL_BYTES_MAX = 64 << 20
_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4


class ObjectStorage:
    """
    One table's objects.

    Args:
        address: The table.
        settings: The access to the store.
        clock: Waits, and counts the time since the store's clock was read.
        ids: Spreads repetitions.
        clients: The clients to use instead of real ones (tests): with retries, without, and for
            much data.

    Raises:
        MissingExtraError: obstore is not installed.
        UnsafeSetupError, InvalidInputError: The options do not fit the address.
    """

    def __init__(
        self,
        address: ObjectAddress,
        settings: ObjectSettings | None = None,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        clients: tuple[Any, Any, Any] | None = None,
    ) -> None:
        settings = settings or ObjectSettings()
        self._address = with_account(address, settings.azure_account)
        made: tuple[Any, Any, Any] = clients or (
            open_client(self._address, settings, retries=True),
            open_client(self._address, settings, retries=False),
            open_client(self._address, settings, retries=True, much=True),
        )
        self._plain, self._once, self._much = made
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._ids: Ids = ids or SystemIds()
        self._store_clock = StoreClock(self._clock, self._stamp_now)
        self._guard = threading.Lock()
        self._permit = ComputeLock()
        self._being_written: set[str] = set()
        self._kept = FileCache()
        self._checksums: set[str] = set()  # paths of .crc files seen so far

    @property
    def base_uri(self) -> str:
        """``s3://bucket/folder``, ``gs://...`` or ``abfss://...``, without a trailing slash."""
        return self._address.base_uri

    @property
    def capabilities(self) -> StorageCapabilities:
        """Conditional creation, seen by every process with access."""
        return StorageCapabilities(
            atomic_create=True, shared_between_processes=True, local_root=None, high_latency=True
        )

    def now_ms(self) -> int:
        """Return the store's clock in whole seconds. Outside: 1 put, 1 head every ten minutes."""
        return self._store_clock.now_ms()

    def locate(self, path: str) -> str:
        """Return the canonical address; ``""`` is the table's folder."""
        return f"{self.base_uri}/{check_relative_path(path)}" if path else self.base_uri

    def read(self, path: str) -> bytes:
        """Return the content. Raises: ``ObjectMissingError``, as ``check_size``. Outside: 1 get."""
        import obstore

        key = self._key(path)
        try:
            found = obstore.get(self._plain, key)
            check_size(path, found.meta["size"])
            return found.bytes().to_bytes()
        except CorruptTableError:
            raise
        except Exception as error:
            raise self._missing_or(error, path, "reading") from error

    def stat(self, path: str) -> FileStat | None:
        """Return the object's entry, or None; ``""`` is the folder. Outside: 1 head, 1 list."""
        if path:
            found = self._head(path)
            if found is not None:
                return _file_stat(path.rpartition("/")[2], found)
        return _folder_stat(path.rpartition("/")[2]) if self._has_children(path) else None

    def list(self, folder: str) -> Stats:
        """Return direct children sorted by name. Outside: 1 list for each 1,000 of them."""
        folders, files = self._children(folder)
        entries = [_folder_stat(name) for name in folders]
        entries += [_file_stat(name, found) for name, found in files if not is_leftover(name)]
        entries.sort(key=lambda entry: entry.name)
        return entries

    def names(self, folder: str) -> Names:
        """Return the names of the direct child files, sorted. Outside: as ``list``."""
        return sorted(name for name, _ in self._children(folder)[1] if not is_leftover(name))

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002
        """
        Create if absent, whole or not at all; it is durable on return. Outside: 1 put.

        A request that was certainly not executed (throttled, or another one for the same name was
        in progress) is repeated up to three times.

        Raises:
            ObjectExistsError: The name is taken.
            AmbiguousWriteError: The answer was lost, or leaves the outcome open.
        """
        self._drop_checksum(path)
        self._put_if_absent(self._once, path, data)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:  # noqa: ARG002
        """Create or replace atomically. Outside: 1 put."""
        import obstore

        key = self._key(path)
        self._drop_checksum(path)
        self._remember_checksum(path)
        try:
            obstore.put(self._plain, key, data, use_multipart=False)
        except Exception as error:
            raise request_error(error, path, "writing") from error

    def delete(self, path: str) -> None:
        """Delete an object and its ``.crc`` sibling, if one was seen; absent is no error."""
        self._drop_checksum(path)
        self._kept.forget(path)
        self._delete([self._key(path)], path)

    def delete_folder(self, folder: str) -> None:
        """Delete everything below a folder. Outside: 1 list and 1 delete for each 1,000."""
        import obstore

        prefix = self._key(folder)
        try:
            pages = obstore.list(self._plain, prefix)
            keys = [found["path"] for page in pages for found in page]
        except Exception as error:
            raise request_error(error, folder, "listing") from error
        # An object with the folder's own name is a marker that some tools create.
        self._delete([key for key in keys if key != prefix], folder)

    def open_input(self, path: str) -> IO[bytes]:
        """
        Return a seekable binary file; fetch small objects whole, of others the ranges read.

        Raises: ``ObjectMissingError``. Outside: 1 get, which returns the size and the end of the
        object; 1 more for each earlier range (Azure: and 1 head first).
        """
        return self._open_input(path)

    def open_kept(self, path: str) -> IO[bytes]:
        """Open like ``open_input``. Outside: no request for a small file that is cached."""
        known = self._kept.find(path)
        if known is None:
            return self._open_input(path, keep=True)
        return cast(IO[bytes], pa.BufferReader(known))

    def _open_input(self, path: str, *, keep: bool = False) -> IO[bytes]:
        size_bytes, tail = self._end_of(path)
        key = self._key(path)

        def fetch(start: int, end: int) -> bytes:
            import obstore

            try:
                client = self._client_for(end - start)
                return obstore.get_range(client, key, start=start, end=end).to_bytes()
            except Exception as error:
                raise self._missing_or(error, path, "reading") from error

        if size_bytes > _WHOLE_READ_BYTES_MAX:
            return cast(IO[bytes], ObjectInput(fetch, size_bytes, tail=tail))
        copy = pa.BufferOutputStream()  # outside Python's memory, see LocalStorage.open_input
        if size_bytes > len(tail):
            copy.write(fetch(0, size_bytes - len(tail)))
        copy.write(tail)
        whole = copy.getvalue()
        if keep:
            self._kept.add(path, whole.to_pybytes())
        return cast(IO[bytes], pa.BufferReader(whole))

    def open_output(self, path: str) -> IO[bytes]:
        """
        Return a new binary file; the object appears when it closes.

        Raises:
            ObjectExistsError: A file of this name is open here; at closing: the name is taken.
            StorageUnavailableError: At closing: no answer.

        Outside: at closing 1 put, above 64 MiB 1 head and 1 put for each 16 MiB.
        """
        key = self._key(path)
        with self._guard:
            if key in self._being_written:
                raise ObjectExistsError(path)
            self._being_written.add(key)
        file = ObjectOutput(
            keep=lambda data: self._keep(path, data), done=lambda: self._forget(key)
        )
        return cast(IO[bytes], file)

    @property
    def compute_permit(self) -> threading.Lock:
        """Return the permit; one thread of this process holds it at a time."""
        return self._permit.here

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Check the folders; no sync is needed, because an answered write is durable."""
        for folder in folders:
            if folder:
                check_relative_path(folder)

    def _key(self, path: str) -> str:
        assert_not_forked(self._ids.identity().pid)
        return self._address.key_of(check_relative_path(path))

    def _prefix(self, folder: str) -> str:
        assert_not_forked(self._ids.identity().pid)
        return self._key(folder) if folder else self._address.prefix

    def _client_for(self, size_bytes: int) -> Any:
        """Return the client whose time limit fits this size; a broken connection shows no error."""
        return self._much if _is_much(size_bytes) else self._plain

    def _put_if_absent(
        self, client: Any, path: str, data: bytes, *, again: frozenset[RequestFailure] = _NOT_DONE
    ) -> None:
        import obstore

        key = self._key(path)
        self._remember_checksum(path)
        pause_ms = _PAUSE_MS
        wait_ms = self._settings.wait_ms(much=_is_much(len(data)))
        last_ms = self._clock.monotonic_ms() + wait_ms
        for attempt in range(1, _CREATES_MAX + 1):
            try:
                obstore.put(client, key, data, mode="create", use_multipart=False)
                return
            except Exception as error:
                fate = classify_failure(error)
                if fate in (RequestFailure.EXISTS, RequestFailure.CHANGED):
                    raise ObjectExistsError(path) from error
                is_last = attempt == _CREATES_MAX or self._clock.monotonic_ms() > last_ms
                if is_last or fate not in again:
                    if fate is RequestFailure.UNKNOWN:
                        raise AmbiguousWriteError(path) from error
                    raise request_error(error, path, "creating", fate) from error
            self._clock.sleep_ms(int(pause_ms * (0.5 + self._ids.jitter())))
            pause_ms *= 2

    def _keep(self, path: str, data: bytes) -> None:
        """Create a data file from its bytes; an existing object with these bytes is our own."""
        import obstore

        if len(data) > _CONDITIONAL_BYTES_MAX:
            if self._head(path) is not None:
                raise ObjectExistsError(path)
            key = self._key(path)
            try:
                obstore.put(
                    self._much,
                    key,
                    data,
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            except Exception as error:
                raise request_error(error, path, "writing a data file") from error
            return
        try:
            # The client and this method repeat it, so "exists" may mean our own first attempt.
            client = self._client_for(len(data))
            self._put_if_absent(client, path, data, again=_NOT_DONE | {RequestFailure.UNKNOWN})
        except ObjectExistsError as error:
            if self.read(path) != data:
                raise ObjectExistsError(path) from error
        except AmbiguousWriteError as error:
            cause = error.__cause__
            known = cause if isinstance(cause, Exception) else error
            raise request_error(known, path, "writing a data file") from error
        self._kept.add(path, data)

    def _forget(self, key: str) -> None:
        with self._guard:
            self._being_written.discard(key)

    def _head(self, path: str) -> Any:
        import obstore

        key = self._key(path)
        try:
            return obstore.head(self._plain, key)
        except Exception as error:
            fate = classify_failure(error)
            if fate is RequestFailure.MISSING:
                return None
            raise request_error(error, path, "looking up", fate) from error

    def _end_of(self, path: str) -> tuple[int, bytes]:
        """
        Return an object's size and its last bytes; no bytes if only the size was available.

        Raises: ``ObjectMissingError``. Outside: 1 get; of an empty object and on Azure 1 head.
        """
        import obstore

        if self._address.kind != "az":  # Azure supports no ranges from the end
            key = self._key(path)
            try:
                found = obstore.get(self._plain, key, options={"range": {"suffix": _TAIL_BYTES}})
                return int(found.meta["size"]), found.bytes().to_bytes()
            except Exception as error:
                if not is_no_such_range(error):
                    raise self._missing_or(error, path, "reading") from error
        head = self._head(path)
        if head is None:
            raise ObjectMissingError(path)
        return int(head["size"]), b""

    def _has_children(self, path: str) -> bool:
        import obstore

        prefix = self._prefix(path)
        try:
            pages = obstore.list(self._plain, prefix or None, chunk_size=2)
            return any(found["path"] != prefix for page in pages for found in page)
        except Exception as error:
            raise request_error(error, path, "listing") from error

    def _children(self, folder: str) -> tuple[Names, Iterable[tuple[str, Any]]]:
        import obstore

        prefix = self._prefix(folder)
        try:
            found = obstore.list_with_delimiter(self._plain, prefix or None)
        except Exception as error:
            if classify_failure(error) is RequestFailure.MISSING:
                return [], []
            raise request_error(error, folder, "listing") from error
        cut = len(prefix) + 1 if prefix else 0
        folders = [name for each in found["common_prefixes"] if (name := each[cut:].rstrip("/"))]
        # An empty rest is the marker object that some tools create for a folder.
        files = [(name, each) for each in found["objects"] if (name := str(each["path"])[cut:])]
        for name, _ in files:
            if name.endswith(".crc"):
                self._checksums.add(f"{folder}/{name}" if folder else name)
        return folders, files

    def _delete(self, keys: Names, path: str) -> None:
        import obstore

        if not keys:
            return
        try:
            with suppress(FileNotFoundError):
                obstore.delete(self._plain, keys if len(keys) > 1 else keys[0])
        except Exception as error:
            raise request_error(error, path, "deleting") from error

    def _remember_checksum(self, path: str) -> None:
        if path.endswith(".crc"):
            self._checksums.add(path)

    def _drop_checksum(self, path: str) -> None:
        """
        Delete a checksum sibling (LOC-3), if one was ever seen here.

        Hadoop keeps them on local disks only. A table that was copied from one may have them, and a
        request for each write to be sure would double the cost.
        """
        if not self._checksums:
            return
        folder, _, name = check_relative_path(path).rpartition("/")
        sibling = f"{folder}/{checksum_sibling(name)}" if folder else checksum_sibling(name)
        if sibling in self._checksums:
            self._delete([self._key(sibling)], sibling)
            self._checksums.discard(sibling)

    def _stamp_now(self, path: str) -> int:
        self.write(path, b"")
        found = self._head(path)
        return 0 if found is None else _modified_ms(found)

    def _missing_or(self, error: Exception, path: str, doing: str) -> Exception:
        fate = classify_failure(error)
        if fate is RequestFailure.MISSING:
            return ObjectMissingError(path)
        return request_error(error, path, doing, fate)


def _is_much(size_bytes: int) -> bool:
    return size_bytes > _SOON_BYTES_MAX


def _modified_ms(found: Any) -> int:
    return int(found["last_modified"].timestamp() * 1000)


def _file_stat(name: str, found: Any) -> FileStat:
    modified_ms = _modified_ms(found)
    return FileStat(
        name=name,
        is_folder=False,
        size_bytes=int(found["size"]),
        modified_ms=modified_ms,
        # S3's tag is a hash of the content: the same bytes written again differ only in their time.
        version=f"{found.get('version') or ''}{found['e_tag']}@{modified_ms}",
    )


def _folder_stat(name: str) -> FileStat:
    return FileStat(name=name, is_folder=True, size_bytes=0, modified_ms=0, version="folder")

"""
Storage of a table on this machine's disk (or a file system that behaves like one).

A new object appears under its name whole or not at all. The storage writes it and makes it durable
under a temporary name in the same folder, and then links it to its own name (LOC-1). Creating the
final name with ``O_EXCL`` would show torn content for a moment, and for ever after a power cut. An
empty object has only its name, so it is created directly. Symbolic links below the base folder are
never followed (SEC1).

Addresses have Java Hudi's form: ``file:`` and the absolute path, one slash, nothing escaped
(``file:/data/flights``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Literal, TypeVar, cast

from timeline.errors import InvariantError
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
from timeline.storage.data_files import ComputeLock, DataFile, StagedFiles
from timeline.storage.folder_walker import (
    TEMPORARY_PREFIX,
    FolderWalker,
    NameLists,
    OpenFolder,
    Syscalls,
    checksum_sibling,
    entry_of,
    file_stat_of,
    folder_clock,
    is_leftover,
    no_hard_links_error,
    open_regular,
    remove_tree,
    symlink_error,
    system_call_error,
    temporaries_below,
)
from timeline.system import SystemClock, SystemIds, start_in_background

DurabilityName = Literal["strict", "relaxed"]
Made = TypeVar("Made")

_FILE_MODE = 0o640  # SEC12; the umask may remove further bits
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS_MAX = 3  # a folder deleted by another process between opening and use

# After these the link was certainly not made; after any other error the outcome is unknown.
_LINK_NOT_MADE = frozenset(
    (
        errno.ENOENT,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EACCES,
        errno.EROFS,
        errno.EMLINK,
        errno.ENAMETOOLONG,
    )
)
_LINK_UNKNOWN_HERE = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS))


class LocalStorage:
    """
    One table's folder on a local disk.

    Args:
        base: Folder of the table; the first write creates it. Links in its own path are resolved
            once, here.
        durability: ``relaxed`` never waits for the disk: a power cut may then lose the newest
            commits or leave empty files (``hoodoo.storage.durability``).
        ids: Source of temporary names.
        clock: The clock for ``now_ms`` instead of the file system's own.
        calls: The system calls; tests pass failing or recording ones.
    """

    def __init__(
        self,
        base: str | os.PathLike[str],
        *,
        durability: DurabilityName = "strict",
        ids: Ids | None = None,
        clock: Clock | None = None,
        calls: Syscalls | None = None,
    ) -> None:
        self._root = os.path.realpath(base)
        self._strict = durability == "strict"
        self._ids: Ids = ids or SystemIds()
        self._calls = calls or Syscalls()
        self._folders = FolderWalker(self._root, self._calls, strict=self._strict)
        self._clock = clock or folder_clock(self._folders, self._ids, SystemClock())
        self._names = NameLists()
        self._staged = StagedFiles()
        self._permit = ComputeLock()

    @property
    def base_uri(self) -> str:
        """``file:`` and the absolute real path, without a trailing slash."""
        return f"file:{self._root}"

    @property
    def capabilities(self) -> StorageCapabilities:
        """Atomic creation, seen by every process of this machine."""
        return StorageCapabilities(
            atomic_create=True, shared_between_processes=True, local_root=self._root
        )

    def now_ms(self) -> int:
        """Return the file system's clock; a process's own may be far off (F12)."""
        return self._clock.now_ms()

    def locate(self, path: str) -> str:
        """Return ``file:`` and the absolute path; ``""`` is the base folder."""
        return f"file:{self._root}/{check_relative_path(path)}" if path else self.base_uri

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises: ``ObjectMissingError``, and as ``check_size``."""
        with self._inside(path, "reading") as (folder, name):
            descriptor, size_bytes = open_regular(name, folder, path)
            try:
                check_size(path, size_bytes)
                return _read_all(descriptor, size_bytes)
            finally:
                os.close(descriptor)

    def stat(self, path: str) -> FileStat | None:
        """Return the object's entry, or None if there is none; ``""`` is the base folder."""
        try:
            if not path:
                return file_stat_of("", os.stat(self._root))
            with self._inside(path, "looking up") as (folder, name):
                return entry_of(name, os.lstat(name, dir_fd=folder), path)
        except (ObjectMissingError, FileNotFoundError):
            return None

    def list(self, folder: str) -> Stats:
        """Return direct children (files and folders) sorted by name; none for a missing folder."""
        found = []
        with self._scanned(folder) as entries:
            for entry in entries:
                try:
                    described = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted since
                if stat.S_ISDIR(described.st_mode) or not is_leftover(entry.name):
                    found.append(entry_of(entry.name, described, _below(folder, entry.name)))
        found.sort(key=_name_of)
        return found

    def names(self, folder: str) -> Names:
        """Return the names of the direct child files, sorted; none for a missing folder."""
        if folder:
            check_relative_path(folder)
        try:
            return self._names.read(folder, self._folders.open(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise system_call_error(error, folder, "listing") from error

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """
        Create if absent, whole or not at all; create missing parents.

        Outside: one fsync of the file and one of its folder if durable and strict; one more for
        each parent folder that this process uses for the first time.

        Raises:
            ObjectExistsError: The name is taken.
            AmbiguousWriteError: The link's answer was lost, or the folder could not be synced.
        """
        durable = durable and self._strict

        def put(folder: int, name: str) -> None:
            if not data:
                _remove_quietly(checksum_sibling(name), folder)
                self._name_anew(folder, name, path)
                self._sync_name(folder, path, durable=durable)
                return
            with self._temporary(folder, path, data, durable=durable) as temporary:
                # Before the name appears: an outdated checksum makes Java refuse the new bytes.
                _remove_quietly(checksum_sibling(name), folder)
                self._link(folder, temporary, name, path)
                self._sync_name(folder, path, durable=durable)

        self._link_into_folder(path, "creating", put, durable=durable)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Create or replace atomically: readers see the old bytes or the new."""
        durable = durable and self._strict

        def put(folder: int, name: str) -> None:
            with self._temporary(folder, path, data, durable=durable) as temporary:
                _remove_quietly(checksum_sibling(name), folder)
                self._calls.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                if durable:
                    self._calls.fsync(folder)

        self._link_into_folder(path, "writing", put, durable=durable)

    def delete(self, path: str) -> None:
        """Delete an object and its ``.crc`` sibling; absent is no error."""
        with (
            contextlib.suppress(ObjectMissingError),
            self._inside(path, "deleting") as (folder, name),
        ):
            _remove_quietly(checksum_sibling(name), folder)
            os.unlink(name, dir_fd=folder)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything below it; delete links in it, but not their targets."""
        self._folders.forget(folder)
        with (
            contextlib.suppress(ObjectMissingError),
            self._inside(folder, "deleting a folder") as (parent, name),
        ):
            found = os.lstat(name, dir_fd=parent)
            if stat.S_ISLNK(found.st_mode):
                raise symlink_error(folder)
            if stat.S_ISDIR(found.st_mode):
                remove_tree(name, parent)

    def open_input(self, path: str) -> IO[bytes]:
        """
        Return a seekable binary file (an Arrow native file) over the mapped bytes.

        The mapping makes no copy; it is safe because data files never change. The file must not be
        a Python object: Arrow's threads release it late, and a thread that needs the interpreter's
        lock while the process ends aborts the process.

        Raises: ``ObjectMissingError``.
        """
        import pyarrow as pa  # not for readers of the timeline

        with self._inside(path, "opening") as (folder, name):
            descriptor, size_bytes = open_regular(name, folder, path)
            try:
                if size_bytes == 0:  # an empty file cannot be mapped
                    return cast(IO[bytes], pa.BufferReader(b""))
                # By descriptor, not by path: open exactly the checked file (SEC1).
                return cast(IO[bytes], pa.memory_map(f"/dev/fd/{descriptor}"))
            finally:
                os.close(descriptor)

    def open_output(self, path: str) -> IO[bytes]:
        """
        Return a new binary file for a data file; create missing parents.

        Closing makes its bytes durable (in strict mode), ``sync_folders`` its name and the names of
        its folders.

        Raises:
            ObjectExistsError: The name is taken.
        """

        def put(folder: int, name: str) -> int:
            try:
                descriptor = os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=folder)
            except FileExistsError as error:
                raise ObjectExistsError(path) from error
            _remove_quietly(checksum_sibling(name), folder)
            return descriptor

        return DataFile(
            self._link_into_folder(path, "creating a data file", put, durable=False),
            path,
            self._calls,
            durable=self._strict,
            remove=lambda: self.delete(path),
        )

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Make these folders' entries durable, and their own names up to the base (LOC-2)."""
        wanted = set(folders)
        walked = set()
        for folder in wanted:
            above = check_relative_path(folder) if folder else ""
            while above:
                walked.add(above)
                above = above.rpartition("/")[0]
        if not self._strict:
            return
        # A folder whose name is on the disk already needs no sync of its parent.
        fresh = self._folders.not_durable(walked)
        wanted.update(folder.rpartition("/")[0] for folder in fresh)
        # Deepest first: a name on the disk is useful only if its content is there.
        for folder in sorted(wanted, key=lambda each: (-each.count("/") if each else 1, each)):
            try:
                opened = self._folders.open(folder)  # this variable keeps the descriptor open
                self._calls.fsync(opened.descriptor)
            except (FileNotFoundError, NotADirectoryError):
                fresh.discard(folder)  # no file was created there
            except OSError as error:
                raise system_call_error(error, folder, "making a folder durable") from error
        self._folders.note_durable(fresh)

    @contextlib.contextmanager
    def stage(self, path: str, data: bytes) -> Iterator[None]:
        """Stage the file on another thread; see ``ports.staged``."""
        if self._strict and data:
            self._staged.begin(path, data, lambda: self._write_ahead(path, data))
        try:
            yield
        finally:
            self._staged.drop(path)

    def sync_soon(self, folders: Iterable[str]) -> Callable[[], None]:
        """Begin ``sync_folders``; see ``ports.sync_soon``."""
        wanted = tuple(folders)
        if not self._strict:
            return _nothing
        return start_in_background(lambda: self.sync_folders(wanted)).result

    @property
    def compute_permit(self) -> threading.Lock:
        """Return the permit; one thread of this process holds it at a time."""
        return self._permit.here

    def temporaries(self) -> Stats:
        """Return temporary files; see ``ListsTemporaries``."""
        return temporaries_below(self._root)

    @contextlib.contextmanager
    def _inside(self, path: str, doing: str) -> Iterator[tuple[int, str]]:
        """Yield the open folder of a path and its last segment; make system errors typed."""
        folder, _, name = check_relative_path(path).rpartition("/")
        try:
            opened = self._folders.open(folder)
            yield opened.descriptor, name
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectMissingError(path) from error
        except OSError as error:
            raise system_call_error(error, path, doing) from error

    def _link_into_folder(
        self, path: str, doing: str, put: Callable[[int, str], Made], *, durable: bool
    ) -> Made:
        """Open the folder of a new object, create it if missing, then put the object there."""
        folder, _, name = check_relative_path(path).rpartition("/")
        for attempt in range(_ATTEMPTS_MAX):
            try:
                opened = self._folders.open(folder, make=True, durable=durable)
                return put(opened.descriptor, name)
            except OSError as error:
                # Another process may delete the folder between opening and use.
                if isinstance(error, FileNotFoundError) and attempt + 1 < _ATTEMPTS_MAX:
                    continue
                raise system_call_error(error, path, doing) from error
        raise InvariantError("a bounded loop ended without a result; report it")

    @contextlib.contextmanager
    def _temporary(self, folder: int, path: str, data: bytes, *, durable: bool) -> Iterator[str]:
        """Yield a finished temporary file next to its final name; always delete it afterwards."""
        name = self._staged.take(path, data, folder)
        if name is None:
            name = self._write_temporary(folder, data, durable=durable)
        try:
            yield name
        finally:
            _remove_quietly(name, folder)

    def _write_temporary(self, folder: int, data: bytes, *, durable: bool) -> str:
        name = TEMPORARY_PREFIX + self._ids.nonce()
        descriptor = os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=folder)
        try:
            _write_all(self._calls.write, descriptor, data)
            if durable:
                self._calls.fsync(descriptor)
        except BaseException:
            _remove_quietly(name, folder)
            raise
        finally:
            os.close(descriptor)
        return name

    def _write_ahead(self, path: str, data: bytes) -> tuple[OpenFolder, str]:
        opened = self._folders.open(path.rpartition("/")[0], make=True, durable=True)
        return opened, self._write_temporary(opened.descriptor, data, durable=True)

    def _name_anew(self, folder: int, name: str, path: str) -> None:
        """Create an empty object directly: it has no content that could be torn."""
        try:
            os.close(self._calls.open_new(name, _NEW_FILE, _FILE_MODE, dir_fd=folder))
        except FileExistsError as error:
            raise ObjectExistsError(path) from error
        except OSError as error:
            if error.errno in _LINK_NOT_MADE:
                raise
            raise AmbiguousWriteError(path) from error

    def _sync_name(self, folder: int, path: str, *, durable: bool) -> None:
        if not durable:
            return
        try:
            self._calls.fsync(folder)
        except OSError as error:
            raise AmbiguousWriteError(path) from error

    def _link(self, folder: int, temporary: str, name: str, path: str) -> None:
        try:
            self._calls.link(
                temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False
            )
        except OSError as error:
            # A network file system may lose the answer and repeat the call. Two names for our own
            # temporary file mean that the link was made, whatever the error (LOC-1).
            if _links(temporary, folder) == 2:
                return
            if isinstance(error, FileExistsError):
                raise ObjectExistsError(path) from error
            if error.errno in _LINK_UNKNOWN_HERE:
                raise no_hard_links_error(path) from error
            if error.errno in _LINK_NOT_MADE:
                raise
            raise AmbiguousWriteError(path) from error

    @contextlib.contextmanager
    def _scanned(self, folder: str) -> Iterator[Iterable[os.DirEntry[str]]]:
        """Yield the entries of a folder, none if it is missing; make system errors typed."""
        if folder:
            check_relative_path(folder)
        try:
            descriptor = self._folders.open(folder).duplicate()
        except (FileNotFoundError, NotADirectoryError):
            yield ()
            return
        except OSError as error:
            raise system_call_error(error, folder, "listing") from error
        try:
            with os.scandir(descriptor) as entries:
                yield entries
        except FileNotFoundError:
            return
        except OSError as error:
            raise system_call_error(error, folder, "listing") from error
        finally:
            os.close(descriptor)


def _nothing() -> None:
    """Do nothing: there is no work to wait for."""


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _name_of(entry: FileStat) -> str:
    return entry.name


def _read_all(descriptor: int, size_bytes: int) -> bytes:
    first = os.read(descriptor, size_bytes + 1)
    if len(first) == size_bytes:
        return first
    pieces = [first]
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def _write_all(write: Callable[..., int], descriptor: int, data: bytes) -> None:
    rest: Any = memoryview(data)
    while rest:
        rest = rest[write(descriptor, rest) :]


def _links(name: str, folder: int) -> int:
    try:
        return os.lstat(name, dir_fd=folder).st_nlink
    except OSError:
        return 0


def _remove_quietly(name: str, folder: int) -> None:
    # Only for names that listings hide, so a file that stays does no harm.
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)

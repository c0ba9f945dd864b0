"""Walk a table's folders on a file system without following a symbolic link (SEC1, SEC12)."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from timeline.errors import MalformedNameError, StorageCapabilityError, StorageUnavailableError
from timeline.model.file_names import HOODIE, OURS
from timeline.ports.ports import Clock, FileStat, Ids, Stats

# ---- Temporary files on a local disk whose writer died before it renamed or deleted them
#
# No listing shows them (LOC-3), so no other code finds them.


def temporaries_below(root: str) -> Stats:
    """
    Return every temporary file of ours by its path below the root, sorted; ignore links.

    Raises:
        StorageUnavailableError: A folder cannot be read.
    """
    found: Stats = []
    for folder, _, names, descriptor in os.fwalk(root, onerror=_refuse):
        for name in filter(is_temporary, names):
            try:
                described = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue  # its writer is alive
            path = f"{folder}/{name}".removeprefix(f"{root}/")
            found.append(replace(file_stat_of(name, described), name=path))
    return sorted(found, key=lambda one: one.name)


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a folder deleted since
        raise system_call_error(error, str(error.filename), "listing temporary files")


# ---- Names that listings hide: leftovers of file systems and of unfinished writes (LOC-3)
#
# The rules are in one place, so that every adapter hides the same names: Hadoop's checksum files,
# our own temporary files, and the temporary files that Java renames (``<name>.<uuid>``, fmt 1 and
# 2).

TEMPORARY_PREFIX = ".tmp-"

_TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + r"[0-9a-f]{32}\Z")
_UUID_SUFFIX = re.compile(r"\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_UUID_SUFFIX_LENGTH = 37


def is_leftover(name: str) -> bool:
    """Return whether listings hide a file of this name."""
    if name.endswith(".crc") or name.startswith(TEMPORARY_PREFIX):
        return True
    # Check the dot's position first: the pattern would cost a third of a big listing.
    if len(name) <= _UUID_SUFFIX_LENGTH or name[-_UUID_SUFFIX_LENGTH] != ".":
        return False
    return _UUID_SUFFIX.search(name) is not None


def is_temporary(name: str) -> bool:
    """Return whether this is the name of our temporary files: the prefix and a nonce."""
    return _TEMPORARY.match(name) is not None


def checksum_sibling(name: str) -> str:
    """Return the name of the checksum file that Java's local file system keeps for ``name``."""
    return f".{name}.crc"


# ---- Opening a table's folders without following a symbolic link (SEC1, SEC12)
#
# Each step opens the next folder relative to the one before and refuses links. The open is the
# check, so a link planted between check and use changes nothing. ``Syscalls`` has the few system
# calls that a test may fail or record.

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Non-blocking: opening a planted named pipe must not block a reader.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER_MODE = 0o750
_ATTEMPTS_MAX = 3
_KEPT_MAX = 16  # open folders kept per table: its own few, and partitions in use

_ADVICE = {
    errno.ENOSPC: "the disk is full: free space or move the table, then repeat",
    errno.EDQUOT: "the disk quota is used up: free space or raise it, then repeat",
    errno.EACCES: "access was denied: give this user read and write access to the table",
    errno.EPERM: "access was denied: give this user read and write access to the table",
    errno.EROFS: "the file system is read-only: mount it for writing",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "this host has too many open files: close some or raise the limit",
    errno.EIO: "the device failed: read the kernel log, the disk may be defective",
    errno.ESTALE: "the network file system lost the file: mount it again, then repeat",
}


@dataclass(frozen=True, slots=True)
class Syscalls:
    """The system calls whose order and failures decide about durability."""

    write: Callable[..., int] = os.write
    fsync: Callable[[int], None] = os.fsync
    link: Callable[..., None] = os.link
    rename: Callable[..., None] = os.rename
    open_new: Callable[..., int] = os.open


def system_call_error(error: OSError, path: str, doing: str) -> StorageUnavailableError:
    """Return the typed error of a failed system call, with the path and the next step."""
    code = errno.errorcode.get(error.errno or 0, "unknown")
    advice = _ADVICE.get(error.errno or 0, "check the file system, then repeat")
    return StorageUnavailableError(
        f"{doing} failed, {advice}: {code} ({os.strerror(error.errno or 0)}), path {path!r}",
        path=path,
        errno=code,
    )


def no_hard_links_error(path: str) -> StorageCapabilityError:
    """Return the error of a file system that cannot create an object whole or not at all."""
    return StorageCapabilityError(
        "the file system has no hard links, so the engine cannot create a file in one step. Let "
        "a database decide commits (hoodoo.slots.backend), or move the table to another file "
        f"system (ext4, xfs, NFS): path {path!r}",
        missing="atomic_create",
        path=path,
    )


def symlink_error(path: str) -> MalformedNameError:
    """Return the error for a symbolic link below a table's base folder."""
    return MalformedNameError(
        "the table's folder contains a symbolic link, and the engine never follows one: replace "
        f"it by the real file or folder: {path!r}",
        kind="symlink",
        path=path,
    )


class OpenFolder:
    """
    An open folder; its descriptor is closed when the last user drops it.

    Never list through ``descriptor`` itself: all users share one position in the folder.
    """

    __slots__ = ("descriptor", "identity")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        found = os.fstat(descriptor)
        self.identity = (found.st_dev, found.st_ino)

    def duplicate(self) -> int:
        """Return a new descriptor for the caller, with a position of its own."""
        return os.open(".", _FOLDER_FLAGS, dir_fd=self.descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.descriptor)


class FolderWalker:
    """
    Open folders below one base folder, and keep the last few open.

    A kept folder is used again only if one ``stat`` shows that its path still leads to it. If the
    path changed since, also by a link, the result is another folder, and the path is opened again.

    Args:
        root: Absolute real path of the base folder; may not exist yet.
        calls: The system calls to use.
        strict: Whether durable means that names reach the disk (LOC-2).
    """

    def __init__(self, root: str, calls: Syscalls, *, strict: bool) -> None:
        self._root = root
        self._calls = calls
        self._strict = strict
        # Folders whose own name is known to be on the disk. Each process syncs each folder once
        # more, because the process that made it may have died before its sync.
        self._anchored: set[str] = set()
        self._kept: OrderedDict[str, OpenFolder] = OrderedDict()

    def open(self, folder: str, *, make: bool = False, durable: bool = False) -> OpenFolder:
        """
        Open a checked relative folder (``""`` is the base).

        Raises:
            FileNotFoundError, NotADirectoryError: There is none, and ``make`` is not set.
            MalformedNameError: A component is a symbolic link.
            OSError: Anything else.
        """
        durable = durable and self._strict
        if not durable or folder in self._anchored:
            kept = self._still_there(folder)
            if kept is not None:
                return kept
        opened = OpenFolder(self._walk(folder, make=make, durable=durable))
        self._kept[folder] = opened
        while len(self._kept) > _KEPT_MAX:
            with contextlib.suppress(KeyError):  # another thread removed it first
                self._kept.popitem(last=False)
        return opened

    def _still_there(self, folder: str) -> OpenFolder | None:
        kept = self._kept.get(folder)
        if kept is None:
            return None
        try:
            found = os.stat(f"{self._root}/{folder}")  # noqa: PTH116 - as the calls around it
        except OSError:
            return None
        if (found.st_dev, found.st_ino) != kept.identity:
            return None
        with contextlib.suppress(KeyError):
            self._kept.move_to_end(folder)
        return kept

    def _walk(self, folder: str, *, make: bool, durable: bool) -> int:
        walked, descriptor = self._nearest(folder, make=make, durable=durable)
        for segment in folder[len(walked) :].strip("/").split("/"):
            if not segment:
                break
            walked = f"{walked}/{segment}" if walked else segment
            try:
                child = self._open_child(descriptor, segment, walked, make=make)
                if durable and walked not in self._anchored:
                    self._anchor(descriptor, child, walked)
            finally:
                os.close(descriptor)
            descriptor = child
        return descriptor

    def _nearest(self, folder: str, *, make: bool, durable: bool) -> tuple[str, int]:
        """Return the deepest kept folder on the path, else the base, and a new descriptor of it."""
        above = folder.rpartition("/")[0]
        while above:
            if not durable or above in self._anchored:
                kept = self._still_there(above)
                if kept is not None:
                    return above, kept.duplicate()
            above = above.rpartition("/")[0]
        return "", self._open_root(make=make, durable=durable)

    def forget(self, folder: str) -> None:
        """Drop a deleted folder from the folders known to be on the disk."""
        prefix = folder + "/"
        self._anchored = {
            known
            for known in tuple(self._anchored)  # other threads may add some meanwhile
            if known != folder and not known.startswith(prefix)
        }
        for known in tuple(self._kept):
            if known == folder or known.startswith(prefix):
                self._kept.pop(known, None)

    def not_durable(self, folders: Iterable[str]) -> set[str]:
        """Return those of these folders whose own name may not be on the disk yet."""
        return set(folders) - self._anchored

    def note_durable(self, folders: Iterable[str]) -> None:
        """Record that these folders' names are on the disk."""
        self._anchored.update(folders)

    def _anchor(self, parent: int, child: int, walked: str) -> None:
        try:
            self._calls.fsync(parent)
        except BaseException:
            os.close(child)
            raise
        self._anchored.add(walked)

    def _open_root(self, *, make: bool, durable: bool) -> int:
        try:
            return os.open(self._root, _FOLDER_FLAGS)
        except FileNotFoundError:
            if not make:
                raise
        self._make_root(Path(self._root), durable=durable)
        return os.open(self._root, _FOLDER_FLAGS)

    def _make_root(self, path: Path, *, durable: bool) -> None:
        if not path.parent.is_dir():
            self._make_root(path.parent, durable=durable)
        try:
            path.mkdir(_FOLDER_MODE)
        except FileExistsError:
            return
        if durable:
            descriptor = os.open(path.parent, _FOLDER_FLAGS)
            try:
                self._calls.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _open_child(self, parent: int, segment: str, walked: str, *, make: bool) -> int:
        flags = _FOLDER_FLAGS | os.O_NOFOLLOW
        try:
            return os.open(segment, flags, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(segment, parent):
                raise symlink_error(walked) from error
            raise
        self._anchored.discard(walked)
        with contextlib.suppress(FileExistsError):  # another process created it first
            os.mkdir(segment, _FOLDER_MODE, dir_fd=parent)
        return os.open(segment, flags, dir_fd=parent)


def open_regular(name: str, folder: int, path: str) -> tuple[int, int]:
    """
    Open a file for reading, relative to its folder; return descriptor and size in bytes.

    Raises:
        FileNotFoundError: There is none, or a folder has this name.
        MalformedNameError: It is a symbolic link, a pipe or a device.
        OSError: Anything else.
    """
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise symlink_error(path) from error
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode):
        return descriptor, found.st_size
    os.close(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "a folder has this name", path)
    raise MalformedNameError(
        "this is neither a file nor a folder, so it does not belong to the table; remove it: "
        f"{path!r}",
        path=path,
    )


def remove_tree(name: str, parent: int) -> None:
    """Delete a folder; start over a few times if writers still add files to it."""
    for attempt in range(_ATTEMPTS_MAX):
        try:
            folder = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:
            return
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        remove_tree(entry.name, folder)
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(entry.name, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            os.rmdir(name, dir_fd=parent)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt + 1 == _ATTEMPTS_MAX:
                raise


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:
        return False


# ---- Entries of the file system as values of the storage port


def entry_of(name: str, found: os.stat_result, path: str) -> FileStat:
    """
    Return the entry of a file or folder.

    Raises:
        MalformedNameError: It is a symbolic link, a pipe or a device (SEC1).
    """
    if stat.S_ISLNK(found.st_mode):
        raise symlink_error(path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise MalformedNameError(
            "this is neither a file nor a folder, so it does not belong to the table; remove it: "
            f"{path!r}",
            path=path,
        )
    return file_stat_of(name, found)


def file_stat_of(name: str, found: os.stat_result) -> FileStat:
    """Return the entry of a known file or folder."""
    is_folder = stat.S_ISDIR(found.st_mode)
    return FileStat(
        name=name,
        is_folder=is_folder,
        size_bytes=0 if is_folder else found.st_size,
        modified_ms=found.st_mtime_ns // 1_000_000,
        # Every rewrite is a new file under the old name, so the inode alone is almost enough.
        version=f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}",
    )


# ---- Names of a folder's files, listed often, at the cost of the changes only
#
# A timeline has thousands of names, and every commit lists them several times, while few names
# change in between. The type of a name (a visible plain file) is determined once; after that the
# name only has to exist.

_FOLDERS_MAX = 16
_SINGLE_LOOKUPS_MAX = 64


class NameLists:
    """The last name lists of a few folders; thread-safe, since each entry is one value."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[frozenset[str], tuple[str, ...]]] = OrderedDict()

    def read(self, folder: str, opened: OpenFolder) -> list[str]:
        """
        Return the names of the plain files in a folder, sorted; hide leftovers (LOC-3).

        Raises:
            MalformedNameError: A symbolic link is among the new names.
            OSError: The folder cannot be listed.
        """
        descriptor = opened.duplicate()
        try:
            known, names = self._last.get(folder, (frozenset(), ()))
            present = set(os.listdir(descriptor)) if known else set()  # noqa: PTH208 - by descriptor
            fresh = present - known
            if not known or len(fresh) > _SINGLE_LOOKUPS_MAX:
                found = _scanned(folder, descriptor)
            else:
                gone = known - present
                added = _plain(folder, fresh, descriptor)
                if not gone and not added:
                    return list(names)
                found = [name for name in names if name not in gone] if gone else list(names)
                found.extend(added)
        finally:
            os.close(descriptor)
        found.sort()
        self._last[folder] = (frozenset(found), tuple(found))
        while len(self._last) > _FOLDERS_MAX:
            self._last.popitem(last=False)
        return found


def _plain(folder: str, names: Iterable[str], descriptor: int) -> list[str]:
    found = []
    for name in names:
        if is_leftover(name):
            continue
        try:
            mode = os.lstat(name, dir_fd=descriptor).st_mode
        except FileNotFoundError:
            continue  # deleted since
        if stat.S_ISREG(mode):
            found.append(name)
        elif stat.S_ISLNK(mode):
            raise symlink_error(f"{folder}/{name}" if folder else name)
    return found


def _scanned(folder: str, descriptor: int) -> list[str]:
    found = []
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if is_leftover(entry.name):
                continue
            if entry.is_file(follow_symlinks=False):
                found.append(entry.name)
            elif entry.is_symlink():
                raise symlink_error(f"{folder}/{entry.name}" if folder else entry.name)
    return found


# ---- The clock of a file system, read from the timestamp of a new file
#
# A network file system uses its server's clock, and a process's own clock may be off by an hour: it
# would take living writers for dead and the leases of readers for ended (F12). So ages of files are
# measured from a timestamp of the same file system, kept for a moment by the monotonic clock.

# : One check reads several files at once; a changed clock still shows soon.
_AGE_MS_MAX: Final = 1_000
_FILE_MODE: Final = 0o600
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderClock:
    """
    The time of a folder's file system.

    Args:
        clock: The own clocks: the monotonic one for the time between two stamps, the wall clock if
            no file can be stamped.
        stamp: Creates a file and returns its modification time in ms, or None if it cannot.
    """

    def __init__(self, clock: Clock, stamp: Callable[[], int | None]) -> None:
        self._clock = clock
        self._stamp = stamp
        self._read: tuple[int, int] | None = None  # a timestamp, and the monotonic time after it

    def now_ms(self) -> int:
        """
        Return milliseconds since 1970 UTC; up to a second late after a change of the clock.

        Outside: creates and deletes a small file, at most once a second.
        """
        monotonic_ms = self._clock.monotonic_ms()
        read = self._read
        if read is None or monotonic_ms - read[1] > _AGE_MS_MAX:
            stamp_ms = self._stamp()
            if stamp_ms is None:
                return self._clock.now_ms()
            # A pause in between makes it late, so other writers count as alive for longer.
            monotonic_ms = self._clock.monotonic_ms()
            read = self._read = (stamp_ms, monotonic_ms)
        return read[0] + monotonic_ms - read[1]


def folder_clock(folders: FolderWalker, ids: Ids, clock: Clock) -> FolderClock:
    """Return the clock of this folder's table; the own clock if it is missing or read-only."""

    def stamp() -> int | None:
        for folder in (OURS, HOODIE):
            with contextlib.suppress(OSError):
                return _stamp_in(folders, folder, TEMPORARY_PREFIX + ids.nonce())
        return None

    return FolderClock(clock, stamp)


def _stamp_in(folders: FolderWalker, folder: str, name: str) -> int:
    opened = folders.open(folder)
    descriptor = os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=opened.descriptor)
    try:
        # a written byte brings the server's timestamp, as for other files
        os.write(descriptor, b"\n")
        return file_stat_of(name, os.fstat(descriptor)).modified_ms
    finally:
        os.close(descriptor)
        os.unlink(name, dir_fd=opened.descriptor)

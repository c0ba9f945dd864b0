"""
The lock on local disks: ``flock(2)`` on one file next to the table.

The kernel keeps the lock and frees it when the holder dies, so no lock gets stuck and none has to
be broken by hand. Invariants:

- Every acquire opens the file itself, so threads of one process exclude each other, too.
- The locked file must be the file on disk. A file that was replaced or deleted is not accepted when
  acquiring, and counts as lost afterwards.
- The first line contains the count of holdings (the fencing token) and, while held, the holder
  (SEC6). It is for reading; the kernel decides.
- A forked child closes its copy of the file, so it neither holds nor prolongs the lock.

Use it on local disks only; over NFS, or if Java writers take part, use another provider. Java's own
``FileSystemBasedLockProvider`` never asks the kernel. It is not exclusive on local disks, not even
between two JVMs (a test showed it); ``excludes_java`` is therefore False.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import os
import stat
import weakref
from typing import Any
from urllib.parse import unquote, urlsplit

from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry
from lockproviders.settings import PROVIDER_KEY, LockSettings
from timeline.errors import (
    LeaseLostError,
    SettingError,
    StorageUnavailableError,
    UnsafeSetupError,
)
from timeline.ports.ports import Clock

_LOG = logging.getLogger(__name__)

PATH_KEY = "hoodie.write.lock.filesystem.path"
JAVA_CLASS = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
DEFAULT_FOLDER = ".hoodie/.locks"
FILE_NAME = "hoodoo.lock"
RECORD_BYTES_MAX = 4096  # one page: written and read whole
REPLACED_TRIES_MAX = 8
# The kernel does not wake waiters in time, a query takes microseconds, and most holders need a few
# milliseconds. A waiter that slept 250 ms would leave the lock free for longer than it was held,
# and later waiters would overtake it.
POLL_MAX_MS = 20

# Open lock files of this process, so that a forked child can close its copies.
_OPEN_FILES: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
_FORK_HOOK: list[bool] = []


class FlockHolding:
    """One holding: an open, locked file; deleting the object closes the file and frees the lock."""

    def __init__(
        self, path: str, file: io.FileIO, *, token: int, clock: Clock, lease_ms: int
    ) -> None:
        self._path = path
        self._file = file
        self._process = os.getpid()
        self._clock = clock
        self._lease_ms = lease_ms
        self._ends_at_ms = clock.monotonic_ms() + lease_ms
        self.fencing_token: int | None = token  # the count of holdings

    def expires_in_ms(self) -> int | None:
        """Return the time until the holder stops itself, or None without ``filesystem.expire``."""
        return self._ends_at_ms - self._clock.monotonic_ms() if self._lease_ms else None

    def renew(self) -> None:
        """Move the own end; the kernel's lock has none. Raises: ``LeaseLostError``."""
        if not self.is_held():
            raise LeaseLostError("the lock file was replaced, deleted or closed", path=self._path)
        self._ends_at_ms = self._clock.monotonic_ms() + self._lease_ms

    def is_held(self) -> bool:
        """Return whether the locked file is still the one on disk; 2 calls of stat."""
        if self._file.closed or os.getpid() != self._process:
            return False
        return _is_file_at(self._path, self._file)

    def release(self) -> None:
        """Clear the holder's entry, keep the count, unlock and close the file."""
        if self._file.closed:
            return
        if os.getpid() != self._process:
            # An unlock here would free the parent's lock; closing a copy does not.
            self._file.close()
            return
        try:
            _write_record(self._file.fileno(), {"token": self.fencing_token})
        except OSError:
            pass  # a full disk only leaves an outdated holder to read
        finally:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
            self._file.close()


class FlockClient:
    """
    The client of one lock file.

    Args:
        folder: Absolute local folder of the lock file; created if missing.
        clock: Measures the own end, and gives the first count of holdings of a new file.
        lease_ms: Time without renewal after which a holder stops itself; 0 never.
    """

    def __init__(self, folder: str, *, clock: Clock, lease_ms: int = 0) -> None:
        self._folder = os.path.realpath(folder)
        self._path = os.path.join(self._folder, FILE_NAME)
        self._clock = clock
        self._lease_ms = lease_ms
        _drop_copies_after_fork()

    @property
    def identity(self) -> str:
        """The lock file by its real path."""
        return f"flock:{self._path}"

    @property
    def margin_ms(self) -> int:
        """0, since the kernel answers at once."""
        return 0

    def try_acquire(self, owner_text: str) -> FlockHolding | None:
        """
        Take the lock if it is free, else return None. Outside: open, flock, 2 stat, read, write.

        Raises:
            UnsafeSetupError: The file is not a plain file, this user may not write it, or the
                folder cannot be created or does not support locks.
            StorageUnavailableError: The disk is full or broken, or the file is replaced again and
                again.
        """
        for _ in range(REPLACED_TRIES_MAX):
            file = self._open()
            try:
                try:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.close()
                    return None
                if not _is_file_at(self._path, file):
                    file.close()  # replaced between open and flock: lock the new one
                    continue
                return self._hold(file, owner_text)
            except OSError as error:
                file.close()
                raise self._trouble(error) from error
            except BaseException:
                file.close()
                raise
        raise StorageUnavailableError(
            "another process replaces the lock file again and again: find and stop that process: "
            f"{self._path}",
            path=self._path,
        )

    def holder(self) -> str | None:
        """Return the entry of the holder, or None if the lock is free; one read."""
        try:
            file = self._open_plain(os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble(error) from error
        with file:
            try:
                # A dead holder's entry stays until the next holder; the kernel has the true state.
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                line = os.pread(file.fileno(), RECORD_BYTES_MAX, 0).partition(b"\n")[0]
                return line.decode("utf-8", "replace") or None
            return None

    def close(self) -> None:
        """Do nothing: files are open only while held."""

    def _hold(self, file: io.FileIO, owner_text: str) -> FlockHolding:
        last_token = _read_token(file.fileno())
        # A new, damaged or replaced file starts at the wall clock instead of 1, so that old tokens
        # do not return after the file was deleted. No sync: after a power cut every holder on this
        # machine is gone, and no other machine uses a local file.
        token = last_token + 1 if last_token is not None else max(1, self._clock.now_ms())
        _write_record(file.fileno(), {**_owner_fields(owner_text), "token": token})
        return FlockHolding(
            self._path, file, token=token, clock=self._clock, lease_ms=self._lease_ms
        )

    def _open(self) -> io.FileIO:
        try:
            try:
                return self._open_plain(os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                os.makedirs(self._folder, mode=0o750, exist_ok=True)
                return self._open_plain(os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._trouble(error) from error

    def _open_plain(self, flags: int) -> io.FileIO:
        """Open without following links, and refuse anything but a plain file (SEC12)."""
        number = os.open(self._path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        try:
            entry = os.fstat(number)
            # With a second hard link, another user could make us overwrite one of our other files.
            if not stat.S_ISREG(entry.st_mode) or entry.st_nlink > 1:
                raise UnsafeSetupError(
                    "the lock file must be a plain file with one name: remove it when no writer "
                    f"runs: {self._path}",
                    kind="lock_file",
                    path=self._path,
                )
            file = io.FileIO(number, "r+" if flags & os.O_RDWR else "r", closefd=True)
        except BaseException:
            os.close(number)
            raise
        _OPEN_FILES.add(file)
        return file

    def _trouble(self, error: OSError) -> UnsafeSetupError | StorageUnavailableError:
        if error.errno in _SETUP_ERRORS:
            return UnsafeSetupError(
                "the lock file cannot be used: give this user write access to a local folder, or "
                f"set {PATH_KEY}: {self._path}: {error.strerror}",
                kind="lock_file",
                path=self._path,
            )
        return StorageUnavailableError(
            "the lock file could not be read or written: check its disk and its rights, then try "
            f"again: {self._path}: {error.strerror}",
            path=self._path,
        )


_SETUP_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOTSUP,
        errno.ENOLCK,
        errno.ENAMETOOLONG,
    }
)


def _is_file_at(path: str, file: io.FileIO) -> bool:
    try:
        on_disk = os.stat(path, follow_symlinks=False)
    except OSError:
        return False  # gone or unknown: "not held" is the safe answer
    try:
        ours = os.fstat(file.fileno())
    except (OSError, ValueError):
        return False  # closed meanwhile by a release in another thread
    return (on_disk.st_dev, on_disk.st_ino) == (ours.st_dev, ours.st_ino)


def _read_token(number: int) -> int | None:
    line = os.pread(number, RECORD_BYTES_MAX, 0).partition(b"\n")[0]
    try:
        token = json.loads(line)["token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return token if isinstance(token, int) and token > 0 else None


def _owner_fields(owner_text: str) -> dict[str, Any]:
    try:
        fields = json.loads(owner_text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or len(owner_text) > RECORD_BYTES_MAX - 128:
        fields = {"owner": owner_text[:512]}
    return fields


def _write_record(number: int, record: dict[str, Any]) -> None:
    """Write one line in one call, then truncate: a crash in between leaves a readable line."""
    line = json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
    os.pwrite(number, line, 0)
    os.ftruncate(number, len(line))


def _drop_copies_after_fork() -> None:
    """Close lock files in forked children; registered once, at the first client."""
    if not _FORK_HOOK:
        _FORK_HOOK.append(True)
        os.register_at_fork(after_in_child=_close_copies)


def _close_copies() -> None:
    for file in list(_OPEN_FILES):
        file.close()


def _lock_folder(settings: LockSettings, table_folder: str | None) -> str:
    named = settings.filesystem_path
    if named is None:
        if table_folder is None:
            raise UnsafeSetupError(
                "the filesystem lock needs a table on local disks: set "
                f"{PATH_KEY} to a local folder if all writers are on this machine, "
                "or name another provider",
                kind="lock_file",
                key=PATH_KEY,
            )
        return os.path.join(table_folder, DEFAULT_FOLDER)
    parts = urlsplit(named)
    folder = unquote(parts.path) if parts.scheme == "file" else named
    if not os.path.isabs(folder) or parts.scheme not in ("", "file") or "\0" in folder:
        raise SettingError(
            f"the lock file's folder must be absolute and local; correct {PATH_KEY}, which is "
            f"{named!a}",
            key=PATH_KEY,
            value=named,
            suggestion="an absolute folder on a disk of this machine",
        )
    return folder


def _client(context: LockContext) -> FlockClient:
    settings = LockSettings.from_properties(context.properties)
    if settings.provider == JAVA_CLASS:
        # Accepted, so that settings carry over from Java; a table that names it may have Java
        # writers.
        _LOG.warning(
            "Java's FileSystemBasedLockProvider does not exclude even two JVMs on a local disk, "
            "and it does not exclude hoodoo's writers. With Java writers set %s to a lock that "
            "both take, such as zookeeper",
            PROVIDER_KEY,
        )
    return FlockClient(
        _lock_folder(settings, context.table_folder),
        clock=context.clock,
        lease_ms=settings.filesystem_expire_minutes * 60_000,
    )


ENTRY = LockProviderEntry(
    name="filesystem",
    factory=_client,
    capabilities=LockCapabilities(
        between_processes=True,
        between_hosts=False,
        excludes_java=False,
        expires=False,
        fencing_tokens=True,
    ),
    jvm_class_names=(JAVA_CLASS,),
    options=(
        LockSettings.options["filesystem_path"],
        LockSettings.options["filesystem_expire_minutes"],
    ),
    poll_max_ms=POLL_MAX_MS,
)

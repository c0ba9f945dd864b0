"""
A machine with a fixed clock, fixed random numbers and a fixed identity, for one process.

It replaces functions of the standard library and nothing of the engine, so a renaming inside the
engine needs no change here. Call ``fix`` before the engine is imported. It is never undone.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

#: 2026-01-15 00:00 UTC.
START_MS = 1_768_435_200_000
STEP_MS = 600_000  # between two steps
_FIXED_NS = 424_242  # below the millisecond, in the file times that this module sets
#: Every address begins with the working folder, so no file holds the path of a real one.
HERE = "/proc/self/cwd"
#: Each nonce begins so, and digests mask it: the number of nonces drawn before does not count.
NONCE_PREFIX = bytes.fromhex("0bad5eed")
_SLEEPS_MAX = 20_000

Hook = Callable[[str], None]


class FixedMachine:
    """
    Clock, random draws, identity and file system calls of this process.

    The streams of random names restart with each step (``begin``), so one more
    draw in one step changes no later step.
    """

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.now_ms = START_MS
        self.steady_ms = 1_000_000
        self.gone: dict[str, bytes] = {}  # files that were deleted or replaced in this step
        self.before_naming: Hook = _nothing  # called with the path a new file is about to get
        self.process = ""  # a child of a fork has another name, and so other nonces
        self._sleeps = self._drawn = self._nonces = 0
        self._stream = ""
        self._one = ""

    @property
    def file_time_ns(self) -> int:
        """The time of a file that is written now."""
        return self.now_ms * 1_000_000 + _FIXED_NS

    def begin(self, stream: str) -> None:
        """Begin a step: later by ``STEP_MS``, with names of its own."""
        self.now_ms += STEP_MS
        self.steady_ms += STEP_MS
        self._stream, self._drawn, self._nonces, self._one = stream, 0, 0, ""
        self.gone = {}
        self.before_naming = _nothing

    def known_as(self, name: str) -> None:
        """Draw one id again and again until ``draw_again``: all ids of a process are this one."""
        self._one = name

    def draw_again(self) -> None:
        """Draw another id each time again."""
        self._one = ""

    def fix(self) -> None:
        """Replace clock, random numbers, identity, threads and file times of this process."""
        self._fix_time()
        self._fix_chance()
        self._fix_files()
        os.getpid = lambda: 4242
        os.cpu_count = lambda: 1  # one thread
        concurrent.futures.ThreadPoolExecutor = _NoThreads
        socket.gethostname = lambda: "golden.example"

    def _fix_time(self) -> None:
        time.time_ns = lambda: self.now_ms * 1_000_000
        time.time = lambda: self.now_ms / 1_000
        time.monotonic_ns = lambda: self.steady_ms * 1_000_000
        time.clock_gettime_ns = lambda _clock: self.steady_ms * 1_000_000
        time.monotonic = lambda: 0.0  # no repetition on a thread is ever due
        time.sleep = self._sleep

    def _sleep(self, seconds: float) -> None:
        """Move the monotonic clock. The wall clock keeps the time of the step."""
        self._sleeps += 1
        if self._sleeps > _SLEEPS_MAX:
            raise AssertionError("the scenario waits without end")
        self.steady_ms += max(1, round(seconds * 1_000))

    def _fix_chance(self) -> None:
        uuid.uuid4 = self._uuid
        os.urandom = self._random

    def _uuid(self) -> uuid.UUID:
        self._drawn += 1
        text = self._one or f"{self._stream} {self._drawn}"
        return uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4)

    def _random(self, size: int) -> bytes:
        if size < 16:  # the jitter of a pause
            return b"\x80" + bytes(size - 1)
        self._nonces += 1
        text = f"nonce {self.process} {self._stream} {self._nonces}"
        drawn = hashlib.sha256(text.encode()).digest()
        return (NONCE_PREFIX + drawn)[:size]

    def _fix_files(self) -> None:
        link, rename, opened, unlink, fstat = os.link, os.rename, os.open, os.unlink, os.fstat
        realpath, entry_of = os.path.realpath, self._path_of

        def fixed_link(source: Any, name: Any, **how: Any) -> None:
            self.before_naming(entry_of(name, how.get("dst_dir_fd")))
            link(source, name, **how)

        def fixed_rename(source: Any, name: Any, **how: Any) -> None:
            self._keep(entry_of(name, how.get("dst_dir_fd")))
            rename(source, name, **how)

        def fixed_open(name: Any, flags: int, *more: Any, **how: Any) -> int:
            if flags & os.O_EXCL:
                self.before_naming(entry_of(name, how.get("dir_fd")))
            return opened(name, flags, *more, **how)

        def fixed_unlink(name: Any, *, dir_fd: int | None = None) -> None:
            self._keep(entry_of(name, dir_fd))
            unlink(name, dir_fd=dir_fd)

        def fixed_realpath(path: Any, **how: Any) -> Any:
            text = os.fspath(path)
            return text if str(text).startswith(HERE) else realpath(path, **how)

        def fixed_fstat(descriptor: int) -> os.stat_result:
            return self._as_of_now(fstat(descriptor))

        os.link, os.rename, os.open, os.unlink = fixed_link, fixed_rename, fixed_open, fixed_unlink
        os.path.realpath, os.fstat = fixed_realpath, fixed_fstat

    def _as_of_now(self, found: os.stat_result) -> os.stat_result:
        """Return the entry; a file that this step wrote has the time of the step."""
        if _is_fixed(found):
            return found
        _, (values, named) = found.__reduce__()  # type: ignore[misc]
        now_ns = self.file_time_ns
        return os.stat_result(values, named | {"st_mtime_ns": now_ns, "st_mtime": now_ns / 1e9})

    def _path_of(self, name: Any, folder: int | None) -> str:
        text = os.fspath(name)
        if folder is not None:
            text = f"{Path(f'/proc/self/fd/{folder}').readlink()}/{text}"
        return text.replace(HERE, self.root, 1).removeprefix(self.root + "/")

    def _keep(self, path: str) -> None:
        whole = Path(self.root, path)
        if not whole.name.startswith(".tmp-") and whole.is_file():
            self.gone[path] = whole.read_bytes()

    def end(self) -> None:
        """End a step: run the work that is left, and give new files the time of the step."""
        while _NoThreads.waiting:
            _NoThreads.waiting.pop(0).do()
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                if not _is_fixed(path.stat()):
                    os.utime(path, ns=(self.file_time_ns, self.file_time_ns))


class _Later(concurrent.futures.Future[Any]):
    """Work that runs when its result is asked for, on that thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.do()
        return super().exception(timeout)

    def do(self) -> None:
        """Run now, unless it has run or is cancelled."""
        if not self.done() and not self.running() and self.set_running_or_notify_cancel():
            try:
                self.set_result(self._work())
            except BaseException as error:  # noqa: BLE001 - raised by result()
                self.set_exception(error)


class _NoThreads:
    """A pool without threads: work runs in the order of the code."""

    waiting: ClassVar[list[_Later]] = []

    def __init__(self, *_: Any, **_how: Any) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: Any) -> _Later:
        later = _Later(partial(work, *arguments))
        self.waiting.append(later)
        return later

    def shutdown(self, *_: Any, **_how: Any) -> None: ...


def _is_fixed(found: os.stat_result) -> bool:
    return found.st_mtime_ns % 1_000_000 == _FIXED_NS


def _nothing(_path: str) -> None: ...

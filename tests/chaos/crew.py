"""The processes of a run: started, killed, stopped for a while, each with a clock that can jump."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


def faketime_library() -> Path | None:
    """The library that changes a process's wall clock (Debian: faketime), None without one."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


def under_clock(library: Path, clock: Path) -> dict[str, str]:
    """Return the environment of a process whose wall clock comes from a file."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",  # seconds until a jump is noticed
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Without it, monotonic deadlines count as past ones of the wall clock. Then a thread that
        # waits for the interpreter's lock spins: 20 times the work of a write.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "NO_FAKE_STAT": "1",  # file times are the storage's, as on a network file system
    }


#: With these, resident memory shows the memory in use. By default the allocators of a process with
#: many threads keep some 30 MB more that is free, and take it in steps that seem like a leak.
SPARING = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}


@dataclass(slots=True)
class Crew:
    """Names have the form ``write-2``; the part before the dash is the role."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)  # on its own, with the end of its log
    _pids: list[int] = field(default_factory=list)

    def start(self, name: str) -> None:
        """Start or restart one."""
        surroundings = {**os.environ, **SPARING}
        library = faketime_library()
        if library is not None:
            clock = self._clock(name)
            if not clock.exists():
                clock.write_text("+0")
            surroundings |= under_clock(library, clock)
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.chaos.process"),
                    *(name.partition("-")[0], name, str(self.folder)),
                ],
                cwd=ROOT,
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pids.append(self.running[name].pid)

    def log(self, name: str) -> Path:
        """The file of its output."""
        return self.folder / f"{name}.log"

    def kill(self, name: str) -> None:
        """kill -9, also of a stopped one."""
        process = self.running.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.stopped.discard(name)

    def stop(self, name: str) -> bool:
        """SIGSTOP; whether it could be stopped."""
        if name not in self.running or name in self.stopped:
            return False
        self.running[name].send_signal(signal.SIGSTOP)
        self.stopped.add(name)
        return True

    def go_on(self, name: str) -> None:
        """SIGCONT; nothing where it was killed meanwhile."""
        if name in self.stopped:
            self.running[name].send_signal(signal.SIGCONT)
            self.stopped.discard(name)

    def set_clock(self, name: str, seconds: int) -> None:
        """Its wall clock jumps to so many seconds ahead of the right time, now."""
        new = self._clock(name).with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.rename(self._clock(name))

    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by name."""
        return {name: process.pid for name, process in self.running.items()}

    def record_ended(self) -> None:
        """Record processes that ended unasked; none should."""
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[name]
                said = self.log(name).read_text(errors="replace")[-2_000:]
                self.ended[name] = f"{name} ended with {process.returncode}: {said}"

    def finish(self, seconds: float) -> list[str]:
        """Ask all to stop and wait; return the names of those that did not stop in time."""
        (self.folder / "stop").touch()
        end = time.monotonic() + seconds
        hung = []
        for name, process in list(self.running.items()):
            try:
                code = process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung.append(name)
                continue
            del self.running[name]
            if code != 0:
                said = self.log(name).read_text(errors="replace")[-2_000:]
                self.ended[name] = f"{name} ended with {code}: {said}"
        return hung

    def close(self) -> None:
        """Kill the remaining processes, and remove files that the clock's library leaves behind."""
        for name in list(self.running):
            self.kill(name)
        for pid in self._pids:
            for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
                Path("/dev/shm", name).unlink(missing_ok=True)

    def _clock(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

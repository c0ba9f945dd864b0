"""
Stop a process so that it really stops, let it continue, and end it for certain.

SIGSTOP only asks: the kernel stops a process thread by thread, after one of them was scheduled
and took the signal, and ``kill`` returns long before. Until then a server still answers and a
holder still renews, on a busy machine for a tenth of a second and more. SIGKILL is no faster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")
SECONDS_MAX = 60.0
LOOK_SECONDS = 0.001
BLIND_SECONDS = 0.5
DEAD = frozenset("ZX")
STANDING = DEAD | frozenset("Tt")


def freeze(pid: int) -> None:
    """
    Send SIGSTOP, and return when no thread of the process runs any more.

    Without ``/proc`` it waits half a second instead.

    Raises:
        ProcessLookupError: There is no such process.
        TimeoutError: It still ran after a minute.
    """
    os.kill(pid, signal.SIGSTOP)
    _wait(pid, STANDING)


def thaw(pid: int) -> None:
    """SIGCONT; a process that is gone needs none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def end(pid: int) -> None:
    """SIGKILL to a process that need not be our child, and return when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        _wait(pid, DEAD)


def states(pid: int) -> dict[str, str]:
    """
    The letter of each thread's state, as proc(5) has them; an ended thread is left out.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        tasks = list(PROC.joinpath(str(pid), "task").iterdir())
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    found = {}
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # read says the latter
            # The name before it is in brackets and may hold anything.
            found[task.name] = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return found


def _wait(pid: int, wanted: frozenset[str]) -> None:
    if not PROC.joinpath("self/task").is_dir():
        time.sleep(BLIND_SECONDS)
        return
    last = time.monotonic() + SECONDS_MAX
    before: dict[str, str] = {}
    # Twice the same: a thread that started during the first reading is in the second.
    while not before or states(pid) != before:
        if time.monotonic() > last:
            raise TimeoutError(f"process {pid} does not heed a signal: {states(pid)}")
        seen = states(pid)
        before = seen if wanted.issuperset(seen.values()) else {}
        if not before:
            time.sleep(LOOK_SECONDS)

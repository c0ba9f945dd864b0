"""
A command run under a lease, as flock(1) runs one under a file's lock.

Its own file because it is the one place of the command line that starts processes. What
the lease cannot promise to a foreign command is kept here: it is ended when the lease is
lost, and by the kernel when this process dies, so that no two of them run at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

from timeline.ports.lock import Lease

__all__ = ["CANNOT_RUN", "NOT_FOUND", "run_under"]

NOT_FOUND = 127  # as shells report it
CANNOT_RUN = 126
KILLED_BY = 128  # plus the signal's number
LOOK_SECONDS = 0.1
KILL_SECONDS_MAX = 30.0

_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1


def run_under(lease: Lease, command: Sequence[str], *, kill_after_seconds: float) -> int:
    """
    Run a command while the lease is held; signals reach it, its exit code is returned.

    It finds ``HOODOO_LOCK_OWNER`` and, where the provider has them, ``HOODOO_LOCK_TOKEN`` in
    its environment: a fencing token that other systems may check.

    Args:
        lease: Held; stays so.
        command: Program and arguments; no shell looks at them.
        kill_after_seconds: Between SIGTERM and SIGKILL, when the lease is lost.

    Returns:
        The command's exit code; 128 and the signal's number when one ended it; 126 or 127
        when it could not be started.

    Raises:
        LeaseLostError: The lease was lost; the command has been ended.
    """
    forwarding = _Forwarding()
    with forwarding:
        try:
            process = _start(lease, command, own_group=not forwarding.at_terminal)
        except FileNotFoundError:
            return NOT_FOUND
        except OSError:
            return CANNOT_RUN
        forwarding.to(process)
        try:
            return _watched(lease, process)
        except BaseException:
            forwarding.end(process, kill_after_seconds)
            raise


def _watched(lease: Lease, process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            lease.assert_held()
        else:
            return code if code >= 0 else KILLED_BY - code


def _start(lease: Lease, command: Sequence[str], *, own_group: bool) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HOODOO_LOCK_OWNER": lease.owner}
    if lease.fencing_token is not None:
        environment["HOODOO_LOCK_TOKEN"] = str(lease.fencing_token)
    lease.assert_held()
    return subprocess.Popen(  # noqa: S603 - the command is the caller's own, and no shell
        list(command),
        env=environment,
        process_group=0 if own_group else None,
        preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509 - one system call, no locks
    )


def _dying_with(parent: int) -> Callable[[], None] | None:
    """
    Has the kernel end the command when this process dies, because its lock ends then, too.

    Looked up before the fork: the child of a process with threads does as little as possible.
    Linux only; elsewhere a killed ``locks run`` leaves its command behind.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or not sys.platform.startswith("linux"):
        return None

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # it died in between

    return before_exec


class _Forwarding:
    """Signals of this process, handed to the command instead of ending this process."""

    def __init__(self) -> None:
        # At a terminal the kernel sends Ctrl-C to the command itself, and job control must
        # see both in one group; elsewhere the command gets a group, to be ended as a whole.
        self.at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, object] = {}

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Hand over what came while the command was being started, and what comes."""
        self._process = process
        while self._early:
            self._send(self._early.pop(0))

    def end(self, process: subprocess.Popen[bytes], kill_after_seconds: float) -> None:
        """SIGTERM, then SIGKILL; also to what it started, which may outlive it."""
        self._process = process
        self._send(signal.SIGTERM)
        looks_left = round(kill_after_seconds / LOOK_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kill_after_seconds)
        pause = threading.Event()
        while process.returncode is not None and self._is_group_left(process) and looks_left > 0:
            looks_left -= 1
            pause.wait(LOOK_SECONDS)
        if process.returncode is None:
            self._send(signal.SIGKILL)
            process.wait(KILL_SECONDS_MAX)
        elif self._is_group_left(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _is_group_left(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether anybody is in the command's own group; at a terminal it has none."""
        if self.at_terminal:
            return False
        try:
            os.killpg(process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.at_terminal and number in _FROM_THE_TERMINAL:
            return
        if self._process is None:
            self._early.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            if self.at_terminal:
                process.send_signal(number)
            else:
                os.killpg(process.pid, number)
        except ProcessLookupError:
            return  # ended by itself

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _FORWARDED:
                self._before[number] = signal.signal(number, self._take)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

"""Servers of ours as child processes; the first of them is moto's DynamoDB and S3."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from tests.servers.ports import free_port
from tests.servers.signals import freeze, thaw

HOST = "127.0.0.1"
REGION = "us-east-1"
ACCESS_KEY = "testing"  # the server ignores it, but clients need a key to sign with
SECRET_KEY = "testing"
START_SECONDS_MAX = 200.0
APPLICATION = Path(__file__).with_name("moto_app.py")


class ChildServer(ABC):
    """A server of our own as a child process on a port that stays the same over restarts."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command line that starts it."""

    def start(self) -> Self:
        """Start it and wait until it answers; its output is written to a file in its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"server-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        end = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"server did not start, see its log in {self.folder}")
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """End it as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Killed, then there again under the same address."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Let it take connections and answer nothing, until ``thaw``."""
        assert self._process is not None
        freeze(self._process.pid)

    def thaw(self) -> None:
        assert self._process is not None
        thaw(self._process.pid)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGCONT)  # a frozen one does not die of SIGTERM
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), 1):
                return True
        except OSError:
            return False


class MotoServer(ChildServer):
    """moto's DynamoDB, Glue and S3, made atomic; up in about a second."""

    throttled = 0  # requests that the last ``throttling`` refused

    def command(self) -> Sequence[str]:
        return [sys.executable, str(APPLICATION), str(self.port), str(self._switch)]

    @contextlib.contextmanager
    def throttling(self) -> Iterator[None]:
        """Throttle every request within the block, from any client."""
        self._switch.touch()
        try:
            yield
        finally:
            self.throttled = self.refused()
            self._switch.unlink()

    def refused(self) -> int:
        """How many requests the present ``throttling`` has refused so far."""
        return self._switch.stat().st_size

    @property
    def _switch(self) -> Path:
        return self.folder.resolve() / f"throttled-{self.port}"

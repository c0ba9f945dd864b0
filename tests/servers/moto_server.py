"""
A DynamoDB and an S3 to test against: moto behind a mutex, as a child process.

moto checks a condition and then writes without a lock between the two, so that of six racers
two sometimes win (runtime 5). Every request that changes something therefore passes one
mutex here; with it the conditional writes are as atomic as the real services'.

``python tests/servers/moto_server.py PORT [SWITCH]`` serves until it is killed. Everything is
kept in memory: a restarted server has forgotten all tables and buckets. While there is a file
SWITCH, every request is answered as the real services answer those that are too many.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

__all__ = ["ACCESS_KEY", "REGION", "SECRET_KEY", "ChildServer", "MotoServer", "free_port"]

HOST = "127.0.0.1"
REGION = "us-east-1"
ACCESS_KEY = "testing"  # checked by nobody, but clients want to sign with something
SECRET_KEY = "testing"
START_SECONDS_MAX = 60.0

TOO_MANY_ROWS = (
    "com.amazon.coral.availability#ThrottlingException",
    "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
)
TOO_MANY_OBJECTS = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code><Message>Please reduce '
    b"your request rate.</Message><RequestId>0</RequestId><HostId>0</HostId></Error>"
)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


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
        """Start it and wait until it answers; what it says goes to a file in its folder."""
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
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

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
    """moto's DynamoDB and S3, made atomic; up in about a second."""

    throttled = 0  # requests that the last ``throttling`` refused

    def command(self) -> Sequence[str]:
        program = str(Path(__file__).resolve())
        return [sys.executable, program, str(self.port), str(self._switch)]

    @contextlib.contextmanager
    def throttling(self) -> Iterator[None]:
        """Every request within the block is too many for it, whoever asks."""
        self._switch.touch()
        try:
            yield
        finally:
            self.throttled = self._switch.stat().st_size
            self._switch.unlink()

    @property
    def _switch(self) -> Path:
        return self.folder.resolve() / f"throttled-{self.port}"


def throttled(app: Callable[..., Iterable[bytes]], switch: Path) -> Callable[..., Iterable[bytes]]:
    """The application, which refuses whatever comes while there is such a file."""
    numbers = itertools.count()

    def throttling(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            # One look, which also counts; it never makes the file.
            file = os.open(switch, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return app(environ, start_response)
        os.write(file, b".")
        os.close(file)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if "DynamoDB" in environ.get("HTTP_X_AMZ_TARGET", ""):
            kind = TOO_MANY_ROWS[next(numbers) % len(TOO_MANY_ROWS)]
            body = json.dumps({"__type": kind, "message": "Rate exceeded"}).encode("ascii")
            status, media = "400 Bad Request", "application/x-amz-json-1.0"
        else:
            body, status, media = TOO_MANY_OBJECTS, "503 Slow Down", "application/xml"
        start_response(status, [("Content-Type", media), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return throttling


def one_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The application with a mutex around every request that may change something."""
    mutex = threading.Lock()

    def locked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
            return app(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length:
            # Read before the mutex, or a slow sender would keep all others waiting.
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with mutex:
            return list(app(environ, start_response))

    return locked


def serve(port: int, switch: Path | None) -> None:
    """Serve until killed; throttled while there is a file ``switch``."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    if switch is not None:
        app = throttled(app, switch)
    run_simple(HOST, port, app, threaded=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

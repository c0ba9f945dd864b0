"""
Small JVM servers for tests: where a JDK and PySpark's own JARs are, and starting a main class.

PySpark ships ZooKeeper, the Hive Metastore and Derby, so a real server needs no download.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.servers import server_missing
from tests.servers.signals import freeze, thaw

HOST = "127.0.0.1"
# Small and quick to start; nothing here runs long enough to earn the better compiler.
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
START_SECONDS_MAX = 200.0
STOP_SECONDS_MAX = 20.0
LOG_TAIL_CHARACTERS = 3_000


@functools.cache
def java() -> str | None:
    """The ``java`` to start servers with: the one of ``JAVA_HOME``, else of the path."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


@functools.cache
def spark_jars() -> Path | None:
    """The folder of JARs inside the installed PySpark."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "jars"
    return folder if folder.is_dir() else None


def needs_java() -> None:
    """Skip the test that asks where no JVM server can be started."""
    if java() is None:
        server_missing("no java on the path and no JAVA_HOME")
    if spark_jars() is None:
        server_missing("pyspark is not installed, its JARs are the servers")


class JvmServer:
    """
    One Java main class as a child process.

    Args:
        name: For its log, ``<folder>/<name>.log``.
        folder: Its working directory.
        class_path: Files, folders and patterns.
        main: Main class and its arguments.
        is_ready: Whether it serves; asked until it does.
        heap_mb: Largest heap.
        options: Further options of the JVM.
        variables: Further environment variables.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        class_path: Sequence[str],
        main: Sequence[str],
        is_ready: Callable[[], bool],
        heap_mb: int = 256,
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        needs_java()
        self._variables = dict(variables or {})
        folder.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._folder = folder
        self._log_path = folder / f"{name}.log"
        self._is_ready = is_ready
        self._command = [
            *(str(java()), f"-Xmx{heap_mb}m", *SMALL_JVM, *options),
            *("-cp", os.pathsep.join(class_path), *main),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the running server."""
        return None if self._process is None else self._process.pid

    def start(self, *, wait: bool = True) -> Self:
        """Start it; with ``wait`` return when it serves."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_surroundings() | self._variables,
            )
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        """Return when it serves; a server that ended or stays silent fails the test."""
        end = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > end:
                self.kill()
                pytest.fail(f"{self._name} did not start; the end of its log:\n{self.log_tail()}")
            time.sleep(0.03)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again on the same data and ports."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it in the middle of its work; connections stay open."""
        if self._process is not None and self._process.poll() is None:
            freeze(self._process.pid)

    def thaw(self) -> None:
        """Let it continue."""
        if self._process is not None and self._process.poll() is None:
            thaw(self._process.pid)

    def log_tail(self) -> str:
        """The end of its output."""
        if not self._log_path.exists():
            return ""
        return self._log_path.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARACTERS:]

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # a frozen one cannot end
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _surroundings() -> dict[str, str]:
    # Options meant for the tests' own JVMs must not reach a server.
    return {k: v for k, v in os.environ.items() if k not in {"JAVA_TOOL_OPTIONS", "CLASSPATH"}}


def listens(port: int, host: str = HOST) -> bool:
    """Whether a process accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False

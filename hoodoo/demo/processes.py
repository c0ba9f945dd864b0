"""The demonstration's processes: started in groups of their own, listened to, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

_END_S = 15.0


class DemoProcess:
    """One process and the lines it says."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, lines: queue.Queue[Any]
    ) -> None:
        self.name = name
        self.log = log
        self._lines = lines
        with log.open("wb") as errors:
            # A session of its own: Ctrl-C reaches the parent only, which ends all in order.
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def start(self) -> None:
        """Let it begin; one that has ended already shows by its exit code."""
        stream = self._process.stdin
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.write(b"go\n")
                stream.flush()

    def end(self) -> int:
        """Ask it to end, wait, and end it and its children by force after that."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            code = self._process.wait()
        # Spark's JVM may outlive its Python for a moment.
        self._signal(signal.SIGKILL)
        self._reader.join(_END_S)
        return code

    def stderr_tail(self, lines_max: int = 12) -> str:
        """The end of what it wrote to standard error."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines_max:])

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _listen(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        for line in stream:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # Spark's own words
            if isinstance(said, dict):
                self._lines.put((self.name, said))
        self._lines.put((self.name, None))


class DemoProcesses:
    """All processes of one run; leaving the block ends those that still run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.lines: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
        self.actors: dict[str, DemoProcess] = {}

    def start(self, name: str, command: Sequence[str]) -> DemoProcess:
        """Start one."""
        actor = DemoProcess(name, command, self._logs / f"{name}.log", self.lines)
        self.actors[name] = actor
        return actor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors.values():
            actor.end()

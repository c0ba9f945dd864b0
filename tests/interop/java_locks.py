"""
Games of our locks against those of Java Hudi, judged by the lock oracle.

``oracles/lock_oracle.py`` starts processes of both languages on one lock and reports every holding
with its time. ``oracles/JavaLocks.java`` is the Java player, the providers of the released
JARs themselves; ``lock_command.py`` is ours. The servers are those of ``tests/servers``.
The Java side is fetched by Maven on first use, into ``.work/lock-oracle``, and not with the
Spark of the Java oracle: the providers need its older libraries.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import set_up

HERE = Path(__file__).resolve().parent
ORACLE = HERE / "oracles" / "lock_oracle.py"
JAVA_SIDE = HERE / "oracles" / "JavaLocks.java"
OUR_SIDE = HERE / "lock_command.py"
WORK = HERE.parent.parent / ".work" / "lock-oracle"
GAME_SECONDS_MAX = 300
SPREAD_MS = 4_000  # ours would be through before Java has warmed up
# No holder is silent while they count: a pause of a busy machine must not free the lock.
PATIENT_SESSION = "hoodie.write.lock.zookeeper.session_timeout_ms=20000"
# The Java keys of the oracle's state file; the rest are ports of servers.
PATHS = ("jars", "cp", "cp_aws")


def java_lock_paths() -> dict[str, str]:
    """Class paths of the Java side; made on first use, a failure fails the test."""
    state = WORK / "oracle.json"
    (jars,) = set_up("1.2.0").parents[1].glob("lib/python*/site-packages/pyspark/jars")
    made_of = hashlib.sha256(f"{JAVA_SIDE.read_text('utf-8')}|{jars}".encode()).hexdigest()
    ready = WORK / f"ready-{made_of[:16]}"
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "set-up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (ready.exists() and state.exists()):
            state.unlink(missing_ok=True)
            words = ["--work", str(WORK), "setup", "--only", "java", "--spark-jars", str(jars)]
            done = subprocess.run(
                [sys.executable, str(ORACLE), *words], check=False, capture_output=True, text=True
            )
            if done.returncode:
                pytest.fail(
                    "the java side of the locks cannot be set up: it needs maven and a jdk 17\n"
                    + (done.stdout + done.stderr)[-3000:]
                )
            ready.touch()
        known = json.loads(state.read_text(encoding="utf-8"))
    return {name: str(known[name]) for name in PATHS}


@dataclass(frozen=True)
class Crash:
    """How the lock passed from a holder that was killed or stopped."""

    seconds: float  # until the other side had it, from the signal on
    woken_thinks_held: bool | None  # the belief of a stopped holder when it continues
    output: str


@dataclass(frozen=True)
class Arena:
    """
    One lock on one running server.

    Args:
        provider: The oracle's name of the provider.
        folder: For the oracle's files.
        ports: Servers' ports by the oracle's names for them.
        conf: Properties of both sides.
        ours: Properties of our side alone.
        our_provider: Ours, if it is not Java's of the same name.
        shares: Ours is one of the holders of the shared lock (LOCK-1).
    """

    provider: str
    folder: Path
    ports: Mapping[str, int]
    conf: Mapping[str, str] = field(default_factory=dict)
    ours: Mapping[str, str] = field(default_factory=dict)
    our_provider: str = ""
    shares: bool = False

    def contend(self) -> str:
        """Each side holds while the other is refused, waits, and gets it by the release."""
        code, output = self._play("contend", "--cmd", self._command())
        assert code == 0, output
        return output

    def counter(self, *, java: int, python: int, times: int) -> tuple[int, str]:
        """
        Return a number that each process raises so often, with separate reads and writes.

        Args:
            java: Processes of Java.
            python: Processes of ours.
            times: Increments of each.
        """
        words = ["--java", str(java), "--python", str(python), "--times", str(times)]
        ours = f"{self._command()} --pace-ms {SPREAD_MS // times if java else 0}"
        words += ["--python-cmd", ours, "--limit", str(GAME_SECONDS_MAX - 30)]
        if self.provider.startswith("zookeeper"):
            words += ["--conf", PATIENT_SESSION]
        _, output = self._play("counter", *words)
        found = re.search(r"counter (\d+) of \d+ in [\d.]+ s", output)
        assert found, output
        return int(found[1]), output

    def sections(self) -> int:
        """How often in the last counter game one language followed the other."""
        log = (self.folder / "counter.log").read_text(encoding="ascii").splitlines()
        return sum(a.split()[0] != b.split()[0] for a, b in pairwise(log))

    def crash(self, how: str, victim: str) -> Crash:
        """
        Kill or stop the holder, and let the other side wait for the lock.

        Args:
            how: KILL or STOP.
            victim: java or python.
        """
        words = ["--signal", how, "--victim", victim, "--cmd", self._command(), "--limit", "60"]
        code, output = self._play("crash", *words)
        assert code == 0, output
        found = re.search(r"got the lock ([\d.]+) s after SIG", output)
        assert found, output
        woken = re.search(r"\(woken\) thinks: (\{.*\})", output)
        thinks: dict[str, Any] | None = ast.literal_eval(woken[1]) if woken else None
        return Crash(
            seconds=float(found[1]),
            woken_thinks_held=bool(thinks["ok"]) if thinks else None,
            output=output,
        )

    def _command(self) -> str:
        words = [sys.executable, str(OUR_SIDE)]
        if self.shares:
            words += ["--share"]
        if self.our_provider:
            words += ["--provider", self.our_provider]
        if self.ours:
            file = self.folder / "ours.properties"
            file.write_text("".join(f"{k}={v}\n" for k, v in self.ours.items()), encoding="ascii")
            words += ["--props", str(file)]
        return shlex.join(words)

    def _play(self, game: str, *words: str) -> tuple[int, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {"pids": {}, **java_lock_paths(), **self.ports}
        (self.folder / "oracle.json").write_text(json.dumps(state), encoding="utf-8")
        conf = [word for k, v in self.conf.items() for word in ("--conf", f"{k}={v}")]
        command = [sys.executable, str(ORACLE), "--work", str(self.folder), game, self.provider]
        return _run([*command, *conf, *words])


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run the oracle with all its players in one group, so that none outlives a timeout."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={k: v for k, v in os.environ.items() if k not in {"JAVA_TOOL_OPTIONS", "CLASSPATH"}},
    ) as process:
        try:
            output, _ = process.communicate(timeout=GAME_SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output

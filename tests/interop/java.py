"""
The real Java Hudi as a fixture: `java_oracle("1.2.0").read(table)`.

One JVM per Hudi version serves a whole test session, because starting one takes most of the
time. The oracle is the command-line program in `oracles/java_oracle.py`, driven through its
`batch` mode, so it runs in an environment of its own with the Spark that Java Hudi supports.
That environment and Hudi's bundle by Maven are fetched on first use into `.work/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ORACLE = HERE / "oracles" / "java_oracle.py"
WORK = Path(
    os.environ.get("HUDI_ORACLE_DIR", HERE.parent.parent / ".work" / "hudi-oracle")
).absolute()

#: The bundle that shares a session with hoodoo.
BUNDLE = WORK / "jars" / "hudi-spark3.5-bundle_2.12-1.2.0.jar"

Rows = list[dict[str, Any]]


class JavaRefusedError(Exception):
    """Java Hudi answered with an error; `answer` holds its class, first line and cause."""

    def __init__(self, question: Sequence[str], answer: Mapping[str, str]) -> None:
        super().__init__(f"{answer['error']} | {answer.get('cause', '')} | asked: {question}")
        self.answer = answer


class JavaOracle:
    """
    A running Java Hudi of one version; every method asks one question and waits.

    Args:
        version: Of Hudi.
        zone: Of its process.
    """

    def __init__(self, version: str, zone: str = "UTC") -> None:
        self.version = version
        python = set_up(version)
        (WORK / "logs").mkdir(parents=True, exist_ok=True)
        self._log_path = (
            WORK / "logs" / f"oracle-{version}-{zone.replace('/', '-')}-{os.getpid()}.log"
        )
        self._log = self._log_path.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(python), str(ORACLE), "batch", "-", "--hudi", version, "--work", str(WORK)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**_surroundings(), "HUDI_ORACLE_TZ": zone},
            start_new_session=True,
        )

    def ask(self, *question: str) -> Any:
        """
        One command of the oracle, in its own words.

        Raises:
            JavaRefusedError: Java answered with an error.
        """
        self._send(question)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log_path.read_text(encoding="utf-8", errors="replace")[-3000:]
            pytest.fail(f"java hudi {self.version} ended; the end of {self._log_path}:\n{tail}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise JavaRefusedError(question, answer)
        return answer

    def _send(self, question: Sequence[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(question)) + "\n")
        self._process.stdin.flush()

    def dies_at(
        self,
        table: Path | str,
        what: str,
        instant: str | None = None,
        *,
        shown: str,
        pending: str | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        """
        Run a table service and kill Java as soon as the timeline shows a file of that ending.

        It answers nothing from then on.
        """
        folder = Path(table) / ".hoodie" / "timeline"
        before = set(folder.iterdir())
        words = ["service", str(table), what, *([instant] if instant else [])]
        words += ["--pending", pending] if pending else []
        self._send([*words, *_conf(conf)])
        deadline = time.monotonic() + 120
        while not any(one.name.endswith(shown) for one in set(folder.iterdir()) - before):
            if time.monotonic() > deadline:
                pytest.fail(f"java showed no {shown} of its {what}")
            time.sleep(0.0005)
        self.kill()

    def kill(self) -> None:
        """Kill it, wherever it is; it answers nothing from then on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def read(
        self,
        table: Path | str,
        *,
        as_of: str | None = None,
        incremental: Sequence[str] = (),
        query_type: str = "snapshot",
        columns: Sequence[str] = (),
        meta: bool = True,
        conf: Mapping[str, str] | None = None,
    ) -> Rows:
        """Rows sorted by their JSON text; `incremental` is a start and maybe an end."""
        words = ["read", str(table), "--type", query_type]
        words += ["--as-of", as_of] if as_of else []
        words += ["--incremental", *incremental] if incremental else []
        words += ["--columns", ",".join(columns)] if columns else []
        words += [] if meta else ["--no-meta"]
        return self.ask(*words, *_conf(conf))

    def write(
        self,
        table: Path | str,
        rows: Rows,
        operation: str = "upsert",
        *,
        schema: str | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> Any:
        """Write rows; `schema` is Spark DDL, needed when Java shall make the table."""
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(rows, file)
            file.flush()
            words = ["write", str(table), "--rows", file.name, "--op", operation]
            words += ["--schema", schema] if schema else []
            return self.ask(*words, *_conf(conf))

    def service(
        self,
        table: Path | str,
        what: str,
        instant: str | None = None,
        *,
        pending: str | None = None,
        schedule_only: bool = False,
        conf: Mapping[str, str] | None = None,
    ) -> Any:
        """
        Run a table service: clean, archive, compact, cluster, rollback, savepoint, ...

        Services with plans execute the `pending` plan, or plan again; maybe only that.
        """
        words = ["service", str(table), what, *([instant] if instant else [])]
        words += ["--pending", pending] if pending else []
        words += ["--schedule-only"] if schedule_only else []
        return self.ask(*words, *_conf(conf))

    def timeline(self, table: Path | str, *, archived: bool = False) -> Rows:
        """Instants as Java's meta client sees them."""
        return self.ask("timeline", str(table), *(["--archived"] if archived else []))

    def slices(self, table: Path | str, *, as_of: str | None = None) -> Rows:
        """File slices as Java's file system view sees them, from a folder listing."""
        return self.ask("slices", str(table), *(["--as-of", as_of] if as_of else []))

    def properties(self, table: Path | str) -> dict[str, str]:
        """The table's configuration as Java loads it, defaults resolved."""
        return self.ask("properties", str(table))

    def sql(self, table: Path | str, statement: str) -> Any:
        """Spark SQL; `{t}` in the statement is the table."""
        return self.ask("sql", str(table), statement)

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


@pytest.fixture(scope="session")
def java_oracle() -> Iterator[Callable[..., JavaOracle]]:
    """
    A function from a Hudi version (1.2.0), a zone (UTC) and a clock (UTC) to an oracle.

    A session has one for each. The clock is that of the tables, UTC or LOCAL: a JVM that wrote by
    the later one waits for hours before it writes by the other.
    """
    running: dict[tuple[str, str, str], JavaOracle] = {}

    def start(version: str = "1.2.0", zone: str = "UTC", clock: str = "UTC") -> JavaOracle:
        if (version, zone, clock) not in running:
            running[version, zone, clock] = JavaOracle(version, zone)
        return running[version, zone, clock]

    yield start
    for oracle in running.values():
        oracle.close()


def set_up(version: str) -> Path:
    """
    Fetch the oracle's environment, once for all test processes; a failure fails the test.

    Returns:
        The Python whose PySpark is the one that this Java Hudi supports.
    """
    python = WORK / "venv" / "bin" / "python"
    jar = WORK / "jars" / f"hudi-spark3.5-bundle_2.12-{version}.jar"
    ready = WORK / f"ready-{version}"
    made = WORK / "classes" / "LocalFiles.class"
    source = ORACLE.with_name("LocalFiles.java")
    compiled = made.exists() and made.stat().st_mtime >= source.stat().st_mtime
    if ready.exists() and jar.exists() and python.exists() and compiled:
        return python
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "set-up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, str(ORACLE), "setup", "--hudi", version, "--work", str(WORK)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.fail(
                "the java oracle cannot be set up: it needs maven and a jdk 17\n"
                + (done.stdout + done.stderr)[-3000:]
            )
        ready.touch()
    return python


def _surroundings() -> dict[str, str]:
    """This process's environment without the variables that name our own PySpark."""
    ours = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "PYTHONPATH", "HUDI_CONF_DIR"}
    return {name: value for name, value in os.environ.items() if name not in ours}


def _conf(conf: Mapping[str, str] | None) -> list[str]:
    return [word for key, value in (conf or {}).items() for word in ("--conf", f"{key}={value}")]


def set_up_both() -> Path:
    """Return a Python with PySpark 3.5 and what hoodoo needs, made once for all test processes."""
    set_up("1.2.0")
    venv = WORK / "venv-both"
    python, ready = venv / "bin" / "python", WORK / "ready-both"
    with (WORK / "set-up-both.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not ready.exists():
            uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
            subprocess.run([uv, "venv", "-q", "--clear", "-p", sys.executable, venv], check=True)
            packages = ["pyspark==3.5.*", "pandas<3", "setuptools<81", "kazoo"]
            needed = ["-r", str(HERE.parent.parent / "pyproject.toml"), *packages]
            subprocess.run([uv, "pip", "install", "-q", "-p", python, *needed], check=True)
            ready.touch()
    return python

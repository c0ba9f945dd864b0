"""
A real PostgreSQL as a child process, from the distribution's packages alone.

The SQL lock is tested on it, also against a server that is killed, started again or stopped
for a while. Needs ``postgres`` and ``initdb`` (Debian: postgresql). The server refuses to run
as root; then it runs as the package's own user ``postgres``.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pytest

from tests.servers import server_missing
from tests.servers.ports import free_port
from tests.servers.signals import end, freeze, thaw

HOST = "127.0.0.1"
START_SECONDS_MAX = 200.0
STOP_SECONDS_MAX = 20.0
ROOT_RUNS_AS = "postgres"


def _program(name: str) -> str | None:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, versions)])
    return shutil.which(name, path=folders)


def needs_postgres() -> None:
    """Skip the test that asks where there is no PostgreSQL to start."""
    for program in ("postgres", "initdb"):
        if _program(program) is None:
            server_missing(f"no {program}: install postgresql from the distribution")


def memory_folder() -> str | None:
    """A folder in memory, where a busy disk delays no commit; None where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Postgres:
    """
    One server on a free port of 127.0.0.1; ``with Postgres() as server``.

    Its data are in a short folder of their own, which its user can reach; ``stop`` removes it.

    Args:
        tls: Certificate and key of the server; none: plain text only.
    """

    user = "lock"
    password = "geheim"
    database = "locks"

    def __init__(self, *, tls: tuple[Path, Path] | None = None) -> None:
        self._tls = tls
        self.host = HOST
        self.port = free_port()
        self._as_user = ROOT_RUNS_AS if getpass.getuser() == "root" else None
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir=memory_folder()))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The value for ``hoodoo.lock.sql.url``."""
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    @property
    def pid(self) -> int:
        """The running server's process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Initialise the folder if it is new, start, and wait until it answers."""
        data = self._folder / "data"
        fresh = not (data / "PG_VERSION").exists()
        if fresh:
            self._initialise(data)
        log = (self._folder / "postgres.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    *(_program("postgres") or "postgres", "-D", str(data), "-p", str(self.port)),
                    *("-h", HOST, "-k", str(self._folder)),
                    *("-c", "shared_buffers=16MB", "-c", "max_connections=50"),
                    # Killed servers lose nothing all the same; only a power cut would.
                    *("-c", "fsync=off", "-c", "restart_after_crash=off"),
                    *self._tls_options(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._as_user,
                cwd=self._folder,
            )
        self._await_answer()
        if fresh:
            self.execute(f"create role {self.user} login password '{self.password}'")
            self.execute(f"create database {self.database} owner {self.user}")
        return self

    def stop(self) -> None:
        """Ask it to end; remove its folder. Twice is no error."""
        self._end(signal.SIGINT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """kill -9 of the server and of every process that serves a connection."""
        if self._process is None:
            return
        freeze(self.pid)  # a frozen process starts no children
        for child in self._children():
            end(child)  # one that lives keeps the memory, and the next server would not start
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and data, after ``kill`` or while it runs."""
        self._end(signal.SIGINT)
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        self.start()

    def freeze(self) -> None:
        """Stop all its processes: connections stay open and nothing answers."""
        freeze(self.pid)  # a frozen process starts no children
        for child in self._children():
            with contextlib.suppress(ProcessLookupError):  # its connection was just closed
                freeze(child)

    def thaw(self) -> None:
        """Let them continue."""
        for process in (self.pid, *self._children()):
            thaw(process)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser; its rows, if it has any."""
        with psycopg.connect(
            host=str(self._folder),
            port=self.port,
            user="admin",
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _initialise(self, data: Path) -> None:
        if self._as_user is not None:
            shutil.chown(self._folder, self._as_user)
        subprocess.run(
            [
                *(_program("initdb") or "initdb", "-D", str(data), "-U", "admin", "-N"),
                *("-E", "UTF8", "--locale=C", "--auth-local=trust", "--auth-host=scram-sha-256"),
            ],
            check=True,
            capture_output=True,
            user=self._as_user,
            cwd=self._folder,
        )

    def _tls_options(self) -> list[str]:
        if self._tls is None:
            return []
        options = ["-c", "ssl=on"]
        for name, source in zip(("ssl_cert_file", "ssl_key_file"), self._tls, strict=True):
            copy = self._folder / source.name
            shutil.copyfile(source, copy)
            copy.chmod(0o600)
            if self._as_user is not None:
                shutil.chown(copy, self._as_user)
            options += ["-c", f"{name}={copy}"]
        return options

    def _children(self) -> list[int]:
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        return [int(child) for child in listed.split()]

    def _await_answer(self) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                pytest.fail(f"postgres ended at once:\n{self._log_end()}")
            try:
                self.execute("select 1")
            except psycopg.Error:
                if time.monotonic() > end:
                    pytest.fail(f"postgres does not answer:\n{self._log_end()}")
                time.sleep(0.02)
            else:
                return

    def _log_end(self) -> str:
        return (self._folder / "postgres.log").read_text(errors="replace")[-2000:]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a frozen one cannot end in order
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS_MAX)

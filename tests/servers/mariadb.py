"""
A real MariaDB as a child process, from the distribution's packages alone.

Two providers are tested on it: the own lock table of the SQL lock, and the metastore's lock
rows. It has no state beyond its folder, so that it can be killed and started again on the
same data. Needs ``mariadbd`` and ``mariadb-install-db`` (Debian: mariadb-server).
"""

from __future__ import annotations

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

import pymysql
import pytest

from tests.servers import server_missing
from tests.servers.ports import free_port
from tests.servers.signals import freeze, thaw

HOST = "127.0.0.1"
START_SECONDS_MAX = 200.0
STOP_SECONDS_MAX = 20.0
# A user's path often lacks the folder of server programs.
PROGRAM_FOLDERS = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/libexec"))


def needs_mariadb() -> None:
    """Skip the test that asks where there is no MariaDB to start."""
    for program in ("mariadbd", "mariadb-install-db"):
        if shutil.which(program, path=PROGRAM_FOLDERS) is None:
            server_missing(f"no {program}: install mariadb-server from the distribution")


class MariaDb:
    """
    One server on a free port of 127.0.0.1; ``with MariaDb(folder) as server``.

    Args:
        folder: For its data and log; an existing one is used again.
        options: Further options of ``mariadbd``, for example for TLS.
    """

    def __init__(self, folder: Path, *, options: tuple[str, ...] = ()) -> None:
        self.host = HOST
        self.port = free_port()
        self._folder = folder
        self._options = options
        # The system takes no socket path above 107 characters, a test's folder may have more.
        self._short = Path(tempfile.mkdtemp(prefix="mdb"))
        self.socket = self._short / "s.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The running server's process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Initialise the folder if it is new, start, and wait until it answers."""
        data = self._folder / "data"
        if not data.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._initialise(data)
        with (self._folder / "mariadbd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _program("mariadbd"),
                    "--no-defaults",
                    f"--user={getpass.getuser()}",
                    f"--datadir={data}",
                    f"--socket={self.socket}",
                    f"--pid-file={self._short / 'pid'}",
                    f"--port={self.port}",
                    f"--bind-address={HOST}",
                    "--innodb-buffer-pool-size=32M",
                    # Written at each commit, so that a killed server loses nothing; no sync.
                    "--innodb-flush-log-at-trx-commit=2",
                    "--performance-schema=OFF",
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await_answer()
        return self

    def stop(self) -> None:
        """Ask it to end; remove its socket. Twice is no error."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self._short, ignore_errors=True)

    def kill(self) -> None:
        """kill -9; the data stay."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and data, after ``kill`` or while it runs."""
        self._end(signal.SIGTERM)
        self.start()

    def freeze(self) -> None:
        """Stop it: connections stay open and nothing answers."""
        freeze(self.pid)

    def thaw(self) -> None:
        """Let it continue."""
        thaw(self.pid)

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements as root, one transaction; the rows of the last one."""
        with pymysql.connect(
            unix_socket=str(self.socket), user="root", database=database, autocommit=False
        ) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                rows = list(cursor.fetchall())
            connection.commit()
            return rows

    def create_database(
        self, name: str, *, user: str, password: str, charset: str = "utf8mb4"
    ) -> None:
        """Create a database and a user with all rights in it, over TCP."""
        self.execute(
            f"create database `{name}` character set {charset}",
            f"create user if not exists `{user}`@'{HOST}' identified by '{password}'",
            f"grant all on `{name}`.* to `{user}`@'{HOST}'",
        )

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
        subprocess.run(
            [
                _program("mariadb-install-db"),
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                f"--user={getpass.getuser()}",
                f"--datadir={data}",
                "--skip-test-db",
            ],
            check=True,
            capture_output=True,
        )

    def _await_answer(self) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                pytest.fail(f"mariadbd ended at once:\n{self._log_end()}")
            try:
                self.execute("select 1")
            except pymysql.Error:
                if time.monotonic() > end:
                    pytest.fail(f"mariadbd does not answer:\n{self._log_end()}")
                time.sleep(0.02)
            else:
                return

    def _log_end(self) -> str:
        return (self._folder / "mariadbd.log").read_text(errors="replace")[-2000:]

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


def _program(name: str) -> str:
    found = shutil.which(name, path=PROGRAM_FOLDERS)
    assert found is not None, name
    return found

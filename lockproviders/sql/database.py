"""
Databases behind one small face, for the SQL lock: run a statement, say how it went.

Its own file because the lock's algorithm is the same everywhere and the drivers are not:
how to connect with a deadline, what the database's clock is called and, above all, what an
error means. Every failure becomes one of these, and nothing else leaves this module:

- ``NotExecuted``: nothing happened (busy, deadlock, no connection); ask again later. ``ReadOnlyServer``: and
  on a new connection, because a server that was replaced serves its old ones for ever.
- ``OutcomeLost``: sent, fate unknown; read it back before anything is concluded (UNK-1).
- ``RowExists``: somebody made it meanwhile, the row or the table itself.
- ``NoTable``: the lock's table is not there.
- ``UnsafeSetupError``: waiting does not help (no access, no such database, no driver).
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timeline.errors import UnsafeSetupError
from timeline.ports.ports import Ids

__all__ = [
    "Database",
    "NoTable",
    "NotExecuted",
    "OutcomeLost",
    "ReadOnlyServer",
    "Row",
    "RowExists",
    "SqliteDatabase",
    "Value",
]

_LOG_TRIES = 16

Row = tuple[Any, ...]
Value = str | int | None


class NotExecuted(Exception):  # noqa: N818 - an answer, not a fault
    """The database did nothing; asking again later may help."""


class ReadOnlyServer(NotExecuted):
    """The server takes no changes; where its name leads by now there may be one that does."""


class OutcomeLost(Exception):  # noqa: N818
    """The statement was sent and nobody knows whether it was executed."""


class RowExists(Exception):  # noqa: N818
    """The row, or the table that was to be made, is already there."""


class NoTable(Exception):  # noqa: N818
    """The lock's table is not there."""


class Database(ABC):
    """
    One connection, opened when first needed and again after it broke.

    Statements are written with ``?`` for values and ``{now}`` for the database's own clock
    in milliseconds since 1970 UTC. Threads take turns, a statement each; a forked child
    never touches its parent's connection (F26).

    Args:
        ids: Tells the current process.
        timeout_ms: How long connecting and each statement may take.
    """

    now_sql: str
    column_types: tuple[str, str]  # of the row's name, of longer texts
    long_text_type = "TEXT"  # of ASCII texts up to a megabyte
    table_options = ""  # what follows the columns where a table is made
    unsafe_engine_sql = ""  # tells the engine of a table (its schema, name) that a crash may empty
    placeholder = "%s"

    def __init__(self, *, ids: Ids, timeout_ms: int) -> None:
        self._ids = ids
        self._timeout_ms = timeout_ms
        self._abandoned: list[Any] = []  # a parent's connections: forgetting them closes them
        self._begin()

    def _begin(self) -> None:
        self._process = self._ids.identity().pid
        self._guard = threading.Lock()
        self._connection: Any = None

    @property
    @abstractmethod
    def address(self) -> str:
        """The database by name, without user and password; equal for all that mean it."""

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """
        Run a query.

        Raises:
            Refused, AnswerLost, NoTable, UnsafeSetupError: See the module.
        """
        return self._run(statement, values)[1]

    def change(self, statement: str, values: Sequence[Value] = ()) -> int:
        """
        Run one change as a transaction of its own and return the number of rows it met.

        Raises:
            Refused, AnswerLost, RowExists, NoTable, UnsafeSetupError: See the module.
        """
        return self._run(statement, values)[0]

    def close(self) -> None:
        """Give up the connection; a later statement makes a new one."""
        self._notice_fork()
        with self._guard:
            self._drop()

    def spelled(self, statement: str) -> str:
        """The statement as this database wants it."""
        return statement.replace("{now}", self.now_sql).replace("?", self.placeholder)

    def _run(self, statement: str, values: Sequence[Value]) -> tuple[int, list[Row]]:
        self._notice_fork()
        with self._guard:
            if self._connection is not None and self._leads_elsewhere():
                self._drop()
            if self._connection is None:
                self._connection = self._connected()
            try:
                return self._execute(self._connection, self.spelled(statement), values)
            except Exception as error:
                trouble = self._meaning(error)
                if isinstance(trouble, OutcomeLost | ReadOnlyServer):
                    self._drop()
                raise trouble from error
            except BaseException:
                self._drop()  # interrupted in between: the connection is in no known state
                raise

    def _connected(self) -> Any:
        try:
            return self._connect()
        except UnsafeSetupError:
            raise
        except Exception as error:
            trouble = self._meaning(error)
            if isinstance(trouble, OutcomeLost):
                trouble = NotExecuted(str(trouble))  # nothing was asked yet
            raise trouble from error

    def _notice_fork(self) -> None:
        if self._ids.identity().pid != self._process:
            self._abandoned.append(self._connection)
            self._begin()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                self._shut(connection)
            except Exception:  # noqa: BLE001 - it is broken, which is why it goes
                return

    @abstractmethod
    def _connect(self) -> Any:
        """Open a connection in autocommit mode."""

    @abstractmethod
    def _execute(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> tuple[int, list[Row]]:
        """Run one statement; returns rows met and rows found."""

    @abstractmethod
    def _meaning(self, error: Exception) -> Exception:
        """One of the answers of this module for an error of the driver."""

    def _leads_elsewhere(self) -> bool:
        """Whether a new connection would see another database than the open one."""
        return False

    def _shut(self, connection: Any) -> None:
        connection.close()

    def _setup(self, message: str) -> UnsafeSetupError:
        return UnsafeSetupError(
            f"the lock database cannot be used, correct hoodoo.lock.sql.* or its grants: "
            f"{self.address}: {message}",
            kind="lock_database",
            database=self.address,
        )


class SqliteDatabase(Database):
    """
    A file on a local disk, shared by the processes of one machine.

    Every change is a ``BEGIN IMMEDIATE``: writers queue up for ``timeout_ms`` instead of
    failing when two of them upgrade a read. A write-ahead log; a lock's needs no sync per
    commit, because a power cut kills every holder together with the machine.

    Args:
        path: Absolute path of the file.
        may_create: Whether a missing file is made.
        durable: Whether a change outlives a power cut.
        ids: See ``Database``.
        timeout_ms: See ``Database``.
    """

    now_sql = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
    column_types = ("TEXT", "TEXT")
    placeholder = "?"

    def __init__(
        self, path: str, *, may_create: bool, ids: Ids, timeout_ms: int, durable: bool = False
    ) -> None:
        super().__init__(ids=ids, timeout_ms=timeout_ms)
        self._path = Path(path).resolve()
        self._may_create = may_create
        self._durable = durable
        self._opened: tuple[int, int] | None = None

    @property
    def address(self) -> str:
        """The file by its real path."""
        return f"sqlite:{self._path}"

    def _connect(self) -> sqlite3.Connection:
        if self._may_create and not self._path.exists():
            self._path.touch(mode=0o640)  # ours and our group's (SEC12)
        self._opened = self._file_there()  # before it is opened: who is in between is noticed later
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=rw",
            uri=True,
            timeout=self._timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _keep_a_log(connection)
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _leads_elsewhere(self) -> bool:
        # A file that was removed lives on for who has it open, and nobody else is met there.
        return self._file_there() != self._opened

    def _file_there(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _execute(
        self, connection: sqlite3.Connection, statement: str, values: Sequence[Value]
    ) -> tuple[int, list[Row]]:
        if statement.startswith("SELECT"):
            return 0, connection.execute(statement, values).fetchall()
        connection.execute("BEGIN IMMEDIATE")
        try:
            met = connection.execute(statement, values).rowcount
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return met, []

    def _meaning(self, error: Exception) -> Exception:
        if isinstance(error, OSError):
            return self._setup(error.strerror or type(error).__name__)
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return NotExecuted(str(error))
        if code == sqlite3.SQLITE_CONSTRAINT:
            return RowExists(str(error))
        if "no such table" in str(error):
            return NoTable(str(error))
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT):
            return OutcomeLost(str(error))
        if code == sqlite3.SQLITE_CANTOPEN and not self._path.parent.is_dir():
            return self._setup("its folder is missing")
        if code == sqlite3.SQLITE_CANTOPEN and not self._path.exists():
            return self._setup("there is no such file; hoodoo.lock.sql.create_table=true makes it")
        return self._setup(str(error))


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """
    Have a write-ahead log, whoever else opens the new file at this moment.

    The one who turns it on must be alone, and SQLite refuses all others at once instead of
    letting them wait. A transaction does wait, and when it is had the log is there.
    """
    for _ in range(_LOG_TRIES):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        else:
            return
    connection.execute("PRAGMA journal_mode = WAL")

"""
Databases behind one small interface, for the SQL lock: run a statement, classify its failure.

The lock's algorithm is the same for all databases. The drivers differ in the connection with a
deadline, the name of the database's clock and the meaning of an error. Every failure
becomes one of these, and no other error leaves this module:

- ``NotExecuted``: the statement was not executed (busy, deadlock, no connection); retry later.
- ``ReadOnlyServer``: as ``NotExecuted``, but retry on a new connection, because a replaced server
  keeps its old connections for ever.
- ``OutcomeLost``: sent, outcome unknown; read it before any conclusion (UNK-1).
- ``RowExists``: another client created the row or the table meanwhile.
- ``NoTable``: the lock's table does not exist.
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

_LOG_TRIES = 16

Row = tuple[Any, ...]
Value = str | int | None


class NotExecuted(Exception):  # noqa: N818 - an answer, not a fault
    """The database did nothing; a later attempt may succeed."""


class ReadOnlyServer(NotExecuted):
    """The server accepts no changes; its name may now lead to a server that does."""


class OutcomeLost(Exception):  # noqa: N818
    """The statement was sent and its outcome is unknown."""


class RowExists(Exception):  # noqa: N818
    """The row, or the table that was to be created, already exists."""


class NoTable(Exception):  # noqa: N818
    """The lock's table does not exist."""


class Database(ABC):
    """
    One connection, opened at the first use and again after it broke.

    Statements contain ``?`` for values and ``{now}`` for the database's own clock in milliseconds
    since 1970 UTC. Threads alternate, one statement each; a forked child never uses its parent's
    connection (F26).

    Args:
        ids: Identifies the current process.
        timeout_ms: Time limit of connecting and of each statement.
    """

    now_sql: str
    column_types: tuple[str, str]  # of the row's name, of longer texts
    long_text_type = "TEXT"  # of ASCII texts up to a megabyte
    table_options = ""  # the SQL after the columns in the create statement
    unsafe_engine_sql = ""  # returns a table's engine (by schema, name) if a crash may empty it
    placeholder = "%s"

    def __init__(self, *, ids: Ids, timeout_ms: int) -> None:
        self._ids = ids
        self._timeout_ms = timeout_ms
        self._abandoned: list[Any] = []  # a parent's connections: deleting them would close them
        self._begin()

    def _begin(self) -> None:
        self._process = self._ids.identity().pid
        self._guard = threading.Lock()
        self._connection: Any = None

    @property
    @abstractmethod
    def address(self) -> str:
        """The database by name, without user and password; equal for all processes that use it."""

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """
        Run a query.

        Raises:
            NotExecuted, OutcomeLost, NoTable, UnsafeSetupError: See the module.
        """
        return self._run(statement, values)[1]

    def change(self, statement: str, values: Sequence[Value] = ()) -> int:
        """
        Run one change as a transaction of its own and return the number of rows it matched.

        Raises:
            NotExecuted, OutcomeLost, RowExists, NoTable, UnsafeSetupError: See the module.
        """
        return self._run(statement, values)[0]

    def close(self) -> None:
        """Close the connection; a later statement opens a new one."""
        self._notice_fork()
        with self._guard:
            self._drop()

    def spelled(self, statement: str) -> str:
        """Return the statement in the syntax of this database."""
        return statement.replace("{now}", self.now_sql).replace("?", self.placeholder)

    def _run(self, statement: str, values: Sequence[Value]) -> tuple[int, list[Row]]:
        self._notice_fork()
        with self._guard:
            if self._connection is not None and self._has_moved():
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
                self._drop()  # interrupted in between: the connection's state is unknown
                raise

    def _connected(self) -> Any:
        try:
            return self._connect()
        except UnsafeSetupError:
            raise
        except Exception as error:
            trouble = self._meaning(error)
            if isinstance(trouble, OutcomeLost):
                trouble = NotExecuted(str(trouble))  # no statement was sent yet
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
            except Exception:  # noqa: BLE001 - it is broken, so it is dropped
                return

    @abstractmethod
    def _connect(self) -> Any:
        """Open a connection in autocommit mode."""

    @abstractmethod
    def _execute(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> tuple[int, list[Row]]:
        """Run one statement; return rows matched and rows found."""

    @abstractmethod
    def _meaning(self, error: Exception) -> Exception:
        """Return the error of this module for an error of the driver."""

    def _has_moved(self) -> bool:
        """Return whether a new connection would reach another database than the open one."""
        return False

    def _shut(self, connection: Any) -> None:
        connection.close()

    def _setup(self, message: str) -> UnsafeSetupError:
        return UnsafeSetupError(
            "the lock database cannot be used: correct hoodoo.lock.sql.* or its grants: "
            f"{self.address}: {message}",
            kind="lock_database",
            database=self.address,
        )


class SqliteDatabase(Database):
    """
    A file on a local disk, shared by the processes of one machine.

    Every change is a ``BEGIN IMMEDIATE``: writers queue for ``timeout_ms`` instead of failing when
    two of them upgrade a read. It uses a write-ahead log. A lock needs no sync per commit, because
    a power cut kills every holder together with the machine.

    Args:
        path: Absolute path of the file.
        may_create: Whether a missing file is created.
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
        """Name of the file by its real path."""
        return f"sqlite:{self._path}"

    def _connect(self) -> sqlite3.Connection:
        if self._may_create and not self._path.exists():
            self._path.touch(mode=0o640)  # only for this user and its group (SEC12)
        self._opened = self._file_there()  # before opening: a later replacement is noticed
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

    def _has_moved(self) -> bool:
        # Clients with a deleted file open still see it, but no other client does.
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
            count = connection.execute(statement, values).rowcount
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return count, []

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
            return self._setup(
                "the file does not exist; hoodoo.lock.sql.create_table=true creates it"
            )
        return self._setup(str(error))


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """
    Turn on the write-ahead log, also if others open the new file at the same time.

    The client that turns it on must be alone, and SQLite refuses all others at once instead of
    making them wait. A transaction does wait, and when it begins the log exists.
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

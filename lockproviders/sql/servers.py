"""
Database servers for the SQL lock: MySQL and MariaDB by pymysql, PostgreSQL by psycopg.

Each driver needs its own configuration for the same three rules. Every request has a deadline, also
if the server is stopped. The driver does not retry. No plain text goes to another machine (SEC10).
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockproviders.sql.database import (
    Database,
    NoTable,
    NotExecuted,
    OutcomeLost,
    ReadOnlyServer,
    Row,
    RowExists,
    Value,
)
from timeline.errors import needs_extra
from timeline.ports.ports import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Address of a database server and the credentials for it."""

    host: str
    port: int
    database: str
    user: str
    password: str
    verify_tls: bool
    tls_ca: str  # file with the authorities; empty: those of the system

    def __repr__(self) -> str:
        return f"Server({self.host}:{self.port}/{self.database})"  # never the password (SEC5)


def mysql_connection(
    driver: Any, server: Server, *, seconds: float, autocommit: bool, init_command: str
) -> Any:
    """
    Return a new connection of pymysql; errors are the driver's.

    Args:
        driver: The module ``pymysql``.
        server: Address and credentials.
        seconds: Time limit of connecting and of each answer.
        autocommit: Whether each statement is its own transaction.
        init_command: The first statement.
    """
    from pymysql.constants import CLIENT

    tls: dict[str, Any] = {"ssl_disabled": True}
    if server.verify_tls:
        tls = {"ssl": ssl.create_default_context(cafile=server.tls_ca or None)}
    return driver.connect(
        host=server.host,
        port=server.port,
        user=server.user,
        password=server.password,
        database=server.database,
        connect_timeout=seconds,
        read_timeout=seconds,
        write_timeout=seconds,
        autocommit=autocommit,
        charset="utf8mb4",
        local_infile=False,
        # Count rows matched, not rows changed: two renewals within a millisecond are both
        # renewals.
        client_flag=CLIENT.FOUND_ROWS,
        init_command=init_command,
        **tls,
    )


class MySqlDatabase(Database):
    """
    MySQL or MariaDB by pymysql.

    Args:
        server: Address and credentials.
        ids: See ``Database``.
        timeout_ms: See ``Database``; also bounds the wait for a stopped server.
    """

    # Not NOW(): it follows the session's time zone, where one hour occurs twice in autumn.
    now_sql = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"
    column_types = (
        "VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin",
        "TEXT CHARACTER SET utf8mb4",
    )
    long_text_type = "LONGTEXT CHARACTER SET ascii COLLATE ascii_bin"
    table_options = " ENGINE=InnoDB"  # a crash may empty tables of the server's default engine
    unsafe_engine_sql = (
        "SELECT t.engine FROM information_schema.tables t JOIN information_schema.engines e "
        "ON e.engine = t.engine WHERE e.transactions <> 'YES' "
        "AND t.table_schema = COALESCE(?, DATABASE()) AND t.table_name = ?"
    )

    def __init__(self, server: Server, *, ids: Ids, timeout_ms: int) -> None:
        super().__init__(ids=ids, timeout_ms=timeout_ms)
        self._server = server

    @property
    def address(self) -> str:
        """Host, port and database."""
        return f"mysql://{self._server.host}:{self._server.port}/{self._server.database}"

    def _connect(self) -> Any:
        with needs_extra("the sql lock needs pymysql for this database", "sql"):
            import pymysql
        server = self._server
        connection = mysql_connection(
            pymysql,
            server,
            seconds=max(1, -(-self._timeout_ms // 1000)),
            autocommit=True,
            init_command="SET SESSION innodb_lock_wait_timeout = 1",
        )
        if server.verify_tls:
            # Older drivers continue in plain text if the server offers nothing else.
            _, found = self._execute(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'", ())
            if not found or not found[0][1]:
                connection.close()
                raise self._setup("the server has no TLS, which hoodoo.lock.sql.tls requires")
        return connection

    def _execute(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> tuple[int, list[Row]]:
        with connection.cursor() as cursor:
            count = cursor.execute(statement, tuple(values))
            return int(count), list(cursor.fetchall())

    def _meaning(self, error: Exception) -> Exception:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1] if len(error.args) > 1 else error)
        if code == 1146:
            return NoTable(text)
        if code == 1062:
            return RowExists(text)
        if code in _MYSQL_BROKEN:  # some of them among those of the set-up
            return OutcomeLost(text)
        if code in _MYSQL_SETUP or "CERTIFICATE_VERIFY_FAILED" in text or 1100 <= code < 1200:
            return self._setup(text)
        if code in _MYSQL_ONLY_READS:
            return ReadOnlyServer(text)
        if 1000 <= code < 2000:
            return NotExecuted(text)
        return OutcomeLost(text)


# Errors that stay: access, unknown database, a rejected statement, no TLS.
_MYSQL_SETUP = frozenset({1044, 1045, 1049, 1054, 1064, 1227, 1698, 2026})
_MYSQL_ONLY_READS = frozenset({1290, 1792, 1836})
# Server errors after which the statement may have been executed: shut down, killed, cut off; an
# unclassified one of a proxy; an error during the commit.
_MYSQL_BROKEN = frozenset(
    {1053, 1077, 1078, 1079, 1105, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1317, 1927}
)


class PostgresDatabase(Database):
    """
    PostgreSQL by psycopg.

    Statements use libpq's asynchronous calls, because the synchronous ones wait for a stopped
    server for ever.

    Args:
        server: Address and credentials.
        ids: See ``Database``.
        timeout_ms: See ``Database``.
        durable: Whether an answered change outlives the server, also if by the server's default
            commits do not wait for the disk.
    """

    now_sql = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint"
    column_types = ("VARCHAR(255)", "TEXT")

    def __init__(self, server: Server, *, ids: Ids, timeout_ms: int, durable: bool = False) -> None:
        super().__init__(ids=ids, timeout_ms=timeout_ms)
        self._server = server
        self._durable = durable

    @property
    def address(self) -> str:
        """Host, port and database."""
        return f"postgresql://{self._server.host}:{self._server.port}/{self._server.database}"

    def spelled(self, statement: str) -> str:
        """Number the placeholders of the values."""
        first, *others = statement.replace("{now}", self.now_sql).split("?")
        return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))

    def _connect(self) -> Any:
        with needs_extra("the sql lock needs psycopg for this database", "sql"):
            import psycopg
        server = self._server
        tls: dict[str, Any] = {"sslmode": "disable"}
        if server.verify_tls:
            tls = {"sslmode": "verify-full", "sslrootcert": server.tls_ca or "system"}
        connection = psycopg.connect(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password,
            dbname=server.database,
            connect_timeout=max(2, -(-self._timeout_ms // 1000)),
            application_name="hoodoo lock",
            # The server gives up before we do, so that most time-outs have a known outcome.
            options=f"-c statement_timeout={max(1, self._timeout_ms * 3 // 4)}",
            gssencmode="disable",
            autocommit=True,
            **tls,
        )
        if self._durable:
            try:
                self._execute(connection, _WAIT_FOR_THE_DISK, ())
            except BaseException:
                connection.close()
                raise
        return connection

    def _execute(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> tuple[int, list[Row]]:
        from psycopg import pq

        link = connection.pgconn
        sent = [None if value is None else str(value).encode() for value in values]
        link.send_query_params(statement.encode(), sent)
        self._hand_over(link)
        result = self._answer(link)
        while self._answer(link) is not None:
            continue
        if result.status == pq.ExecStatus.COMMAND_OK:
            return result.command_tuples or 0, []
        if result.status != pq.ExecStatus.TUPLES_OK:
            state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
            raise _PostgresError(state.decode(), result.get_error_message().strip())
        kinds = [result.ftype(column) for column in range(result.nfields)]
        return 0, [
            tuple(
                _plain(result.get_value(row, column), kinds[column])
                for column in range(result.nfields)
            )
            for row in range(result.ntuples)
        ]

    def _hand_over(self, link: Any) -> None:
        """Send what the socket did not accept at once: a slot may be longer than its buffer."""
        while link.flush():
            if self._ready(link, select.POLLIN | select.POLLOUT) != select.POLLOUT:
                link.consume_input()  # a server that cannot send may not read either

    def _answer(self, link: Any) -> Any:
        """Return the next part of the answer; wait at most ``timeout_ms`` for it."""
        while link.is_busy():
            self._ready(link, select.POLLIN)
            link.consume_input()
        return link.get_result()

    def _ready(self, link: Any, events: int) -> int:
        """Return the ready events; ``select`` would refuse files above number 1024."""
        waiter = select.poll()
        waiter.register(link.socket, events)
        for _, came in waiter.poll(self._timeout_ms):
            return came
        raise _PostgresError("", "no answer in time")

    def _meaning(self, error: Exception) -> Exception:
        state = getattr(error, "sqlstate", None) or ""
        text = str(error).strip().replace("\n", " ")
        if state == "42P01":
            return NoTable(text)
        if state in _POSTGRES_THERE:
            return RowExists(text)
        if state[:2] in ("28", "3D", "3F", "42"):
            return self._setup(text)
        if not state and any(part in text for part in _POSTGRES_SETUP):
            return self._setup(text)  # an error while connecting has no SQLSTATE
        if state == "25006":
            return ReadOnlyServer(text)
        if (state and state[:2] not in ("08", "57", "58", "XX")) or state == "57014":
            return NotExecuted(text)
        return OutcomeLost(text)


# Only where commits do not wait: a session that waits for standbys, too, keeps doing so.
_WAIT_FOR_THE_DISK = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)
# A row; or a table or its row type that another session created meanwhile, since IF NOT EXISTS
# first checks and then creates.
_POSTGRES_THERE = frozenset({"23505", "42P07", "42710"})
_POSTGRES_SETUP = (
    "authentication failed",
    '" does not exist',
    "no pg_hba.conf entry",
    "certificate",
    "does not support SSL",
)


class _PostgresError(Exception):
    """A statement's error as libpq reports it."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


_INT8_OID = 20


def _plain(value: bytes | None, kind: int) -> Value:
    if value is None:
        return None
    return int(value) if kind == _INT8_OID else value.decode()

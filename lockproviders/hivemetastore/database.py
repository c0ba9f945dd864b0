"""The metastore's lock tables in MySQL or MariaDB, as the metastore uses them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lockproviders.sql.servers import Server, mysql_connection
from timeline.errors import (
    HoodooError,
    LeaseLostError,
    SettingError,
    UnavailableError,
    UnsafeSetupError,
    needs_extra,
)

# ---- The free text of a lock row, and the values that settings may have; pure
#
# The Thrift provider and the database provider write the same rows and share this part. A row has
# 128 characters of free text (``agentInfo``): our mark, a nonce that identifies an unanswered
# request, the owner and the purpose.
#
# The metastore up to release 2.3 puts the texts of a request between quotes into SQL without
# escaping them. So our text contains harmless characters only, and names of a database or table
# with others are refused.

MARK = "hoodoo"
USER = "hoodoo"  # do not print the account's name (SEC6)
NONCE_CHARACTERS = 20
TEXT_CHARACTERS_MAX = 128
LEASE_MS_DEFAULT = 300_000  # hive.txn.timeout, if the server does not report it
NO_OWNER = "-"

_UNSAFE = re.compile(r"[^A-Za-z0-9 ._:/@=+,()-]")
_NAME = re.compile(r"[ !#-&(-\[\]-_a-~]{1,128}")  # printable ASCII but quotes and backslash
_DURATION = re.compile(r"([0-9]{1,15})\s*([a-z]*)")
_UNIT_MS = {
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_UNIT_NAMES = {
    "": "s",
    "day": "d",
    "days": "d",
    "hour": "h",
    "hours": "h",
    "min": "m",
    "minute": "m",
    "minutes": "m",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "msec": "ms",
    "millisecond": "ms",
    "milliseconds": "ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockName:
    """The names that are locked, as the Java writers spell them; neither need exist."""

    database: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetastoreLockRow:
    """One request for the lock, of any client, as the metastore lists it."""

    lock_id: int
    acquired: bool
    user: str
    host: str
    agent: str

    @property
    def holder_text(self) -> str:
        """The owner in the form of ``OwnerNote``; foreign rows by user and host."""
        words = self.agent.split(" ", 3)
        purpose = words[3] if len(words) > 3 else ""
        if nonce_of(self.agent) is None or len(words) < 3:
            owner = f"{self.user}@{self.host}"
            purpose = "" if self.agent == "Unknown" else self.agent
        elif words[2] == NO_OWNER:
            return purpose
        else:
            owner = f"{self.host}/{words[2]}"
        return json.dumps({"owner": owner, "purpose": purpose, "lock_id": self.lock_id})


def check_name(key: str, value: str | None, layer: str) -> str:
    """
    Check and return a database or table name that may be sent verbatim.

    Raises:
        SettingError: It is missing, longer than the row's 128 characters, or has quotes,
            backslashes or characters beyond printable ASCII.
    """
    if value and _NAME.fullmatch(value):
        return value
    wanted = "a name of up to 128 characters of plain ASCII without quotes or backslashes"
    raise SettingError(
        f"the metastore's lock needs {wanted}, spelled as in the Java writers; correct {key}, "
        f"which is {(value or '')[:200]!a} (from {layer})",
        kind="setting_value" if value else "setting_missing",
        key=key,
        value=(value or "")[:200],
        layer=layer,
        suggestion=wanted,
    )


def agent_text(nonce: str, owner_text: str) -> str:
    """
    Return the free text of our row: mark, nonce, owner, purpose; at most 128 safe characters.

    Args:
        nonce: Differs with every request; hexadecimal.
        owner_text: The JSON text of an ``OwnerNote``, or any other text.
    """
    try:
        note = json.loads(owner_text)
    except (ValueError, RecursionError):
        note = None
    if isinstance(note, dict) and isinstance(note.get("owner"), str):
        # The row has a separate field for the host.
        who = note["owner"].partition("/")[2] or NO_OWNER
        purpose = str(note.get("purpose", ""))
    else:
        who, purpose = NO_OWNER, owner_text
    words = (MARK, nonce[:NONCE_CHARACTERS], plain_text(who).replace(" ", "_"), purpose)
    return plain_text(" ".join(words)).strip()


def plain_text(text: str) -> str:
    """Replace every character that SQL could interpret, and cut the text to the row's width."""
    return _UNSAFE.sub("_", text)[:TEXT_CHARACTERS_MAX]


def nonce_of(agent: str) -> str | None:
    """Return the nonce in a row's free text, or None if the row is not ours."""
    words = agent.split(" ")
    return words[1] if len(words) > 1 and words[0] == MARK else None


def duration_ms(text: str) -> int | None:
    """Return a duration as Hive writes it (``300s``, ``5 min``, plain seconds), or None."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        return None
    unit_ms = _UNIT_MS.get(_UNIT_NAMES.get(found[2], found[2]))
    return None if unit_ms is None else int(found[1]) * unit_ms


# ---- The metastore's lock tables in MySQL or MariaDB, read and written as the metastore does
#
# For writers that reach the database but no Thrift service. These rules keep our rows equal to
# those of the metastore and of Java's writers:
#
# - A client that checks whether a lock can be granted holds the metastore's own mutex, the row
#   ``CheckLock`` of AUX_TABLE, until the outcome is committed.
# - Ids come from NEXT_LOCK_ID, which is locked as well while rows are read. Every earlier request
#   is then visible, so the ids of successive holders grow (fencing).
# - READ COMMITTED, like the metastore: a snapshot would show outdated rows.
# - Times are the database's, in milliseconds since 1970 UTC.
# - Rows of other clients are never changed; the metastore removes the rows of dead holders.
# - A stopped process must not keep the mutex: the server closes a connection that is silent for
#   long, also in a transaction (``wait_timeout``).

AHEAD_MS_MAX = 300_000  # time zones differ by more
TABLES = ("AUX_TABLE", "HIVE_LOCKS", "NEXT_LOCK_ID")
NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + %s)"

_MUTEX = "SELECT MT_COMMENT FROM AUX_TABLE WHERE MT_KEY1 = 'CheckLock' AND MT_KEY2 = 0 FOR UPDATE"
_NEW_MUTEX = "INSERT IGNORE INTO AUX_TABLE (MT_KEY1, MT_KEY2) VALUES ('CheckLock', 0)"
_NEXT = "SELECT NL_NEXT FROM NEXT_LOCK_ID FOR UPDATE"
_DRAWN = "UPDATE NEXT_LOCK_ID SET NL_NEXT = %s"
_ROWS = (
    "SELECT HL_LOCK_EXT_ID, HL_LOCK_STATE, HL_USER, HL_HOST, HL_AGENT_INFO, "  # noqa: S608
    f"HL_LAST_HEARTBEAT - {NOW} FROM HIVE_LOCKS "
    "WHERE HL_DB = %s AND (HL_TABLE = %s OR HL_TABLE IS NULL) ORDER BY HL_LOCK_EXT_ID"
)
_COLUMNS = (
    "HL_LOCK_EXT_ID, HL_LOCK_INT_ID, HL_TXNID, HL_DB, HL_TABLE, HL_PARTITION, HL_LOCK_STATE, "
    "HL_LOCK_TYPE, HL_LAST_HEARTBEAT, HL_ACQUIRED_AT, HL_USER, HL_HOST, HL_AGENT_INFO"
)
_VALUES = f"%s, 1, 0, %s, %s, NULL, 'a', 'e', {NOW}, {NOW}, %s, %s, %s"
_INSERT = f"INSERT INTO HIVE_LOCKS ({_COLUMNS}) VALUES ({_VALUES})"  # noqa: S608  constants only
# The free text is compared, too: a database restored from a backup hands out old ids again.
_OURS = "WHERE HL_LOCK_EXT_ID = %s AND HL_TXNID = 0 AND HL_AGENT_INFO = %s"
_BEAT = (
    f"UPDATE HIVE_LOCKS SET HL_LAST_HEARTBEAT = {NOW} "  # noqa: S608  constants only
    f"{_OURS} AND HL_LOCK_STATE = 'a'"
)
_DELETE = f"DELETE FROM HIVE_LOCKS {_OURS}"  # noqa: S608  constants only
_ENGINES = (
    "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (%s, %s, %s)"
)

# Server errors that stay: access, no such database, table or column.
_SETUP_CODES = frozenset({1044, 1045, 1049, 1054, 1064, 1142, 1143, 1146, 1227, 1698})
_SERVER_CODES = range(1000, 2000)  # reported by the server: the statement was not executed
# Except these, of a server that shuts down: the statement may have been executed.
_BROKEN_CODES = frozenset({1053, 1077, 1078, 1079, 1152, 1158, 1159, 1160, 1161, 1317, 1927})

_NO_TLS_CODE = 2026

_Answer = TypeVar("_Answer")


class CommitUnknownError(UnavailableError):
    """The commit was sent and not answered; check its outcome under the mutex."""


class MetastoreRows:
    """
    One connection to the metastore's database; not for several threads at once.

    Args:
        server: Address and credentials.
        offset_ms: How far the metastore's clock is ahead of UTC; see the settings.
    """

    def __init__(self, server: Server, *, offset_ms: int = 0) -> None:
        self._driver = _driver()
        self._server = server
        self._offset_ms = offset_ms
        self._connection: Any = None

    @property
    def is_open(self) -> bool:
        """Whether a connection is open; it may have broken unnoticed."""
        return self._connection is not None

    def connect(self, timeout_ms: int) -> None:
        """
        Connect and check that the lock tables can be trusted.

        Raises:
            UnavailableError: No answer.
            UnsafeSetupError: No access, no TLS, or the tables are missing or have no transactions.
        """
        try:
            self._connection = self._open(timeout_ms)
            self._examine(timeout_ms)
        except HoodooError:
            self.drop()
            raise
        except Exception as error:
            self.drop()
            raise self._meaning(error, sent_commit=False) from error
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Close the connection without a request; the server rolls back uncommitted changes."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection._force_close()  # noqa: SLF001  a polite goodbye may block

    def take(self, name: LockName, host: str, agent: str, strays: Collection[str]) -> int | None:
        """
        Take the lock if no client has or awaits it; return the lock id, or None.

        Args:
            name: The names to lock.
            host: This machine, for others to read.
            agent: The row's free text; a row that has it already is ours, and is renewed.
            strays: Nonces of own rows that are not held; they are deleted.

        Raises:
            CommitUnknownError: It may have happened; take again with the same text.
            UnavailableError: It did not happen.
            UnsafeSetupError: The tables are not the metastore's.
        """

        def work() -> int | None:
            self._lock_mutex()
            drawn = self._run(_NEXT)[1]
            if not drawn:
                raise UnsafeSetupError(
                    "the metastore's table NEXT_LOCK_ID is empty: initialise the metastore's "
                    f"schema with Hive's schematool: {self._here}",
                    kind="no_locks",
                    address=self._here,
                )
            others = []
            for row in self._rows(name):
                if row.agent == agent and row.acquired:
                    self._run(_BEAT, self._offset_ms, row.lock_id, agent)
                    return row.lock_id
                if nonce_of(row.agent) in strays:
                    self._run(_DELETE, row.lock_id, row.agent)
                else:
                    others.append(row)
            if others:
                return None
            lock_id = int(drawn[0][0])
            now = (self._offset_ms, self._offset_ms)
            self._run(_DRAWN, lock_id + 1)
            self._run(_INSERT, lock_id, name.database, name.table, *now, USER, host, agent)
            return lock_id

        return self._transaction(work)

    def rows(self, name: LockName) -> list[MetastoreLockRow]:
        """
        Return all requests for this lock, without the mutex.

        Raises:
            UnavailableError: No answer.
        """
        return self._transaction(lambda: self._rows(name))

    def beat(self, lock_id: int, agent: str) -> None:
        """
        Move a row's end back.

        Raises:
            LeaseLostError: The row is gone.
            UnavailableError: No answer; it may have happened.
        """
        updated = self._transaction(lambda: self._run(_BEAT, self._offset_ms, lock_id, agent)[0])
        if not updated:
            raise LeaseLostError(
                "the lock's row in the metastore's database was deleted: stop this write: lock "
                f"id {lock_id}",
                lock_id=lock_id,
            )

    def delete(self, lock_id: int, agent: str) -> bool:
        """
        Delete a row by its id and text; return whether it existed.

        Raises:
            UnavailableError: No answer; it may have happened.
        """
        return self._transaction(lambda: self._run(_DELETE, lock_id, agent)[0]) > 0

    def now_ms(self) -> int:
        """
        Return the database's clock, ms since 1970-01-01 UTC.

        Raises:
            UnavailableError: No answer.
        """
        return self._transaction(lambda: int(self._run(f"SELECT {NOW}", 0)[1][0][0]))

    def delete_strays(self, name: LockName, strays: Collection[str]) -> None:
        """
        Delete the own rows with these nonces, after every earlier transaction has ended.

        Raises:
            UnavailableError: No answer.
        """

        def work() -> None:
            self._lock_mutex()
            for row in self._rows(name):
                if nonce_of(row.agent) in strays:
                    self._run(_DELETE, row.lock_id, row.agent)

        self._transaction(work)

    @property
    def _here(self) -> str:
        return f"{self._server.host}:{self._server.port}/{self._server.database}"

    def _open(self, timeout_ms: int) -> Any:
        return mysql_connection(
            self._driver,
            self._server,
            seconds=timeout_ms / 1000,
            autocommit=False,
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )

    def _examine(self, timeout_ms: int) -> None:
        if self._server.verify_tls:
            # Older drivers continue in plain text if the server offers nothing else.
            found = self._run("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[1]
            if not found or not found[0][1]:
                raise UnsafeSetupError(
                    f"the metastore's database has no TLS: enable TLS on that server: {self._here}",
                    kind="tls",
                    address=self._here,
                )
        # One second is the shortest row-lock wait that every release understands.
        silence = silence_seconds(timeout_ms)
        self._run("SET SESSION wait_timeout = %s, innodb_lock_wait_timeout = 1", silence)
        engines = dict(self._run(_ENGINES, *TABLES)[1])
        wrong = [table for table in TABLES if (engines.get(table) or "").casefold() != "innodb"]
        if wrong:
            raise UnsafeSetupError(
                "these are not lock tables of a Hive metastore, or they have no transactions: "
                f"name the metastore's own InnoDB database: {', '.join(wrong)} in {self._here}",
                kind="no_locks",
                address=self._here,
            )
        self._connection.commit()

    def _lock_mutex(self) -> None:
        if not self._run(_MUTEX)[1]:
            self._run(_NEW_MUTEX)
            self._run(_MUTEX)

    def _rows(self, name: LockName) -> list[MetastoreLockRow]:
        rows = []
        for lock_id, state, user, host, agent, ahead_ms in self._run(
            _ROWS, self._offset_ms, name.database, name.table
        )[1]:
            if ahead_ms > AHEAD_MS_MAX:
                # The metastore would delete our rows at once: by its clock they are that old.
                raise UnsafeSetupError(
                    "the metastore's clock is ahead of this database's clock, often because "
                    f"their time zones differ: add about {ahead_ms} to "
                    f"hoodoo.lock.hivemetastore_database.clock.offset.ms: {self._here}",
                    kind="clock_offset",
                    address=self._here,
                    ahead_ms=int(ahead_ms),
                )
            row = MetastoreLockRow(
                lock_id=int(lock_id),
                acquired=state == "a",
                user=user or "",
                host=host or "",
                agent=agent or "",
            )
            rows.append(row)
        return rows

    def _run(self, statement: str, *values: str | int) -> tuple[int, Sequence[tuple[Any, ...]]]:
        """Return rows matched and rows read; values are only ever parameters (SEC10)."""
        with self._connection.cursor() as cursor:
            count = cursor.execute(statement, values or None)
            return int(count), list(cursor.fetchall())

    def _transaction(self, work: Callable[[], _Answer]) -> _Answer:
        if self._connection is None:
            raise UnavailableError(
                "there is no connection to the database: check the server and the network, then "
                f"try again: {self._here}"
            )
        sent_commit = False
        try:
            answer = work()
            sent_commit = True
            self._connection.commit()
        except UnsafeSetupError:
            self.drop()
            raise
        except Exception as error:
            # A closed connection rolls it back, and takes less time than a request for that.
            self.drop()
            raise self._meaning(error, sent_commit=sent_commit) from error
        except BaseException:
            self.drop()
            raise
        return answer

    def _meaning(self, error: Exception, *, sent_commit: bool) -> HoodooError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        message = str(error.args[1] if len(error.args) > 1 else error)[:300]
        if code == _NO_TLS_CODE or "CERTIFICATE_VERIFY_FAILED" in message:
            return UnsafeSetupError(
                "the TLS certificate of the metastore's database could not be verified, or the "
                "database has no TLS: set hoodoo.lock.hivemetastore_database.tls.ca to the file "
                f"of its authority: {self._here}: {message}",
                kind="tls",
                address=self._here,
            )
        if code in _SETUP_CODES:
            return UnsafeSetupError(
                "the metastore's lock tables cannot be used: grant this user SELECT, INSERT, "
                "UPDATE and DELETE on HIVE_LOCKS, SELECT and UPDATE on NEXT_LOCK_ID, SELECT, "
                f"INSERT and UPDATE on AUX_TABLE: {self._here}: {code} {message}",
                kind="no_locks",
                address=self._here,
            )
        answered = code in _SERVER_CODES and code not in _BROKEN_CODES
        kind = CommitUnknownError if sent_commit and not answered else UnavailableError
        return kind(
            "the metastore's database did not answer: check the server and the network, then try "
            f"again: {self._here}: {type(error).__name__} {code}: {message}",
            address=self._here,
            code=code,
        )


def silence_seconds(timeout_ms: int) -> int:
    """Return the seconds of silence after which the server closes the connection."""
    return max(2, -(-timeout_ms // 1000))


def _driver() -> Any:
    with needs_extra("the metastore's database needs a further package", "hive"):
        import pymysql
    return pymysql

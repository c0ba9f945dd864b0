"""The lock in a table of a SQL database: one row for each lock, with a lease."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry
from lockproviders.sql.database import (
    Database,
    NoTable,
    NotExecuted,
    OutcomeLost,
    Row,
    RowExists,
    Value,
)
from lockproviders.sql.settings import SqlSettings
from timeline.errors import LeaseLostError, StorageUnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock, Ids

# ---- One table of a SQL database, created on request if missing
#
# The lock and the commit slots are in tables of the same databases. They share the handling of a
# missing table and of a lost answer to a repeatable request.

Answer = TypeVar("Answer")


class SqlTable:
    """
    Statements about one table, which they name ``{table}``.

    Args:
        database: The database of the table; closed with this object.
        name: Table name, checked by the settings.
        columns: The SQL after its name in the create statement.
        may_create: Whether a missing one is created.
    """

    def __init__(self, database: Database, name: str, *, columns: str, may_create: bool) -> None:
        self.database = database
        self._name = name
        self._columns = columns
        self._may_create = may_create

    @property
    def address(self) -> str:
        """Database and table; equal for all processes that use it."""
        return f"{self.database.address}#{self._name}"

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """
        Run a query, once more after a lost answer.

        Raises:
            NoTable: It is missing.
            StorageUnavailableError: No answer.
            UnsafeSetupError: Waiting does not help.
        """
        return self._asked(lambda: self.database.rows(self._spelled(statement), values))

    def change(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a change that may run twice; return the rows matched. Raises: as ``rows``."""
        return self._asked(lambda: self.database.change(self._spelled(statement), values))

    def change_once(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a change only once. Raises: as ``Database.change``."""
        return self.database.change(self._spelled(statement), values)

    def make(self, missing: NoTable) -> None:
        """
        Create the table.

        Raises:
            UnsafeSetupError: The settings do not allow it; the error contains the statement.
            StorageUnavailableError: No answer.
        """
        options = self.database.table_options
        create = f"CREATE TABLE IF NOT EXISTS {self._name} ({self._columns}){options}"
        if not self._may_create:
            raise UnsafeSetupError(
                f"the lock database lacks the table {self._name}: set "
                f"{SqlSettings.options['create_table'].key}=true, or run: {create}",
                kind="lock_table",
                database=self.database.address,
                table=self._name,
            ) from missing
        try:
            self._asked(lambda: self.database.change(create))
        except RowExists:
            return  # several clients created it at once; PostgreSQL reports that to all but one

    def refuse_unsafe_engine(self) -> None:
        """
        Check that the rows of an existing table outlive a crash.

        Raises:
            UnsafeSetupError: They may not.
            StorageUnavailableError: No answer.
        """
        if not self.database.unsafe_engine_sql:
            return
        schema, _, table = self._name.rpartition(".")
        for (engine,) in self.rows(self.database.unsafe_engine_sql, (schema or None, table)):
            raise UnsafeSetupError(
                "a crash may empty this table: stop all writers and run: ALTER TABLE "
                f"{self._name}{self.database.table_options}; {self.database.address} keeps it in "
                f"{engine}",
                kind="slot_table_engine",
                database=self.database.address,
                table=self._name,
            )

    def silent(self, why: str) -> StorageUnavailableError:
        """Return the error for a database that does not answer."""
        return StorageUnavailableError(
            "the lock database did not answer: check whether the server runs, then try again: "
            f"{self.database.address}: {why}",
            database=self.database.address,
        )

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def _spelled(self, statement: str) -> str:
        return statement.replace("{table}", self._name)

    def _asked(self, request: Callable[[], Answer]) -> Answer:
        """Send a request that may run twice; repeat it once after a lost answer."""
        try:
            try:
                return request()
            except OutcomeLost:
                return request()
        except (OutcomeLost, NotExecuted) as error:
            raise self.silent(str(error)) from error


# ---- The lock: one row per lock, with a lease
#
# For sites that run only a database: SQLite for the processes of one machine, MySQL, MariaDB or
# PostgreSQL for many machines. No Java provider takes this lock. Invariants:
#
# - Every change is one statement that compares and sets: the token it has seen, the own nonce.
# - Leases end by the database's clock alone, so the clocks of writers may differ. The holder counts
#   its own end on its monotonic clock from before the request.
# - The token grows with every holding. A new count starts no lower than the database's clock in
#   milliseconds, so old tokens do not return after a deleted row or a restored backup.
# - After a lost answer the client reads the row and compares the nonce. A request that arrives late
#   finds another token and does nothing; until then, the row counts as free for its client.

TRIES = 3
NAME_CHARACTERS_MAX = 200

_COLUMNS = (
    "name {name_type} NOT NULL PRIMARY KEY, "
    "token BIGINT NOT NULL, nonce VARCHAR(64), owner {text_type}, lease_ms BIGINT NOT NULL, "
    "held_since BIGINT NOT NULL, heartbeat BIGINT NOT NULL, lease_end BIGINT NOT NULL"
)
_READ_ROW = "SELECT token, nonce, owner, lease_end, {now} FROM {table} WHERE name = ?"
_NOW = "SELECT {now}"
_INSERT = (
    "INSERT INTO {table} "
    "(name, token, nonce, owner, lease_ms, held_since, heartbeat, lease_end) "
    "VALUES (?, ?, ?, ?, ?, {now}, {now}, {now} + ?)"
)
_TAKE = (
    "UPDATE {table} SET token = ?, nonce = ?, owner = ?, lease_ms = ?, held_since = {now}, "
    "heartbeat = {now}, lease_end = {now} + ? "
    "WHERE name = ? AND token = ? AND (nonce IS NULL OR lease_end <= {now} OR nonce = ?)"
)
_RENEW = (
    "UPDATE {table} SET heartbeat = {now}, lease_end = {now} + ? "
    "WHERE name = ? AND token = ? AND nonce = ?"
)
_FREE = (
    "UPDATE {table} SET nonce = NULL, owner = NULL, lease_end = {now} "
    "WHERE name = ? AND token = ? AND nonce = ?"
)


def row_name(key: str) -> str:
    """
    Return the name of a lock's row in printable ASCII, so that no collation merges two locks.

    A long key keeps its beginning and gets a digest of the whole.
    """
    text = quote(key, safe="/:@+=,.~-_")
    if len(text) <= NAME_CHARACTERS_MAX:
        return text
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{text[: NAME_CHARACTERS_MAX - len(digest) - 1]}#{digest}"


@dataclass(frozen=True, slots=True)
class _Row:
    """The row as read at one time."""

    token: int
    nonce: str | None
    owner: str | None
    lease_end_ms: int  # by the database's clock
    now_ms: int  # the same

    @property
    def is_held(self) -> bool:
        return self.nonce is not None and self.lease_end_ms > self.now_ms


@dataclass(slots=True)
class _Try:
    """One attempt to take the row."""

    nonce: str
    owner_text: str
    is_lost: bool = False  # a request of it may have been executed, or may still be


class SqlHolding:
    """One holding: the row contains our token and nonce."""

    def __init__(self, client: SqlClient, token: int, nonce: str, asked_at_ms: int) -> None:
        self._client = client
        self._token = token
        self.fencing_token: int | None = token
        self._nonce = nonce
        self._ends_at_ms = asked_at_ms + client.lease_ms
        self._ours = True

    def expires_in_ms(self) -> int | None:
        """Return the time left, counted from before the request that set the end."""
        return self._ends_at_ms - self._client.now_ms()

    def renew(self) -> None:
        """Move the end to a lease length from now. Errors: as in the protocol."""
        asked_at_ms = self._client.now_ms()
        if not self._ours or not self._client.renew(self._token, self._nonce):
            self._ours = False
            raise LeaseLostError(
                "another writer took the lock, or an operator broke it",
                identity=self._client.identity,
            )
        self._ends_at_ms = asked_at_ms + self._client.lease_ms

    def is_held(self) -> bool:
        """Return whether it is held, without a request; the lease's end covers the rest."""
        return self._ours

    def release(self) -> None:
        """Clear the row if it is still ours."""
        if self._ours:
            self._ours = False
            self._client.free(self._token, self._nonce)


class SqlClient:
    """
    The client of one row.

    Args:
        database: The database of the row; closed with this client.
        name: Name of the row.
        settings: Table, lease and time-out.
        clock: Counts the own end of a lease.
        ids: Makes nonces.
    """

    def __init__(
        self, database: Database, name: str, *, settings: SqlSettings, clock: Clock, ids: Ids
    ) -> None:
        name_type, text_type = database.column_types
        self._table = SqlTable(
            database,
            settings.table,
            columns=_COLUMNS.format(name_type=name_type, text_type=text_type),
            may_create=settings.create_table,
        )
        self._name = name
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._free_at_token: int | None = None  # our last release; saves a read if still free
        self._unsure: str | None = None  # nonce of a request with unknown outcome

    @property
    def identity(self) -> str:
        """Database, table and row."""
        return f"sql:{self._table.address}#{self._name}"

    @property
    def margin_ms(self) -> int:
        """Twice the time-out of a request."""
        return 2 * self._settings.timeout_ms

    @property
    def lease_ms(self) -> int:
        """Length of a lease."""
        return self._settings.lease_ms

    def now_ms(self) -> int:
        """Return the monotonic clock."""
        return self._clock.monotonic_ms()

    def try_acquire(self, owner_text: str) -> SqlHolding | None:
        """
        Take the row if it is free. Outside: 1 update, plus 1 query after holdings of others.

        Raises:
            StorageUnavailableError: No answer, and the outcome could not be read. If the request
                did arrive, its row does not block this client later.
            UnsafeSetupError: The database, its table or our access is wrong.
        """
        trying = _Try(self._ids.nonce(), owner_text)
        try:
            return self._tried(trying)
        except BaseException:
            if trying.is_lost:
                # Only after this attempt has ended: any thread of this client takes over an unsure
                # row.
                self._unsure = trying.nonce
            raise

    def holder(self) -> str | None:
        """Return the owner text in the row while its lease lasts; one query."""
        row = self._read_row()
        return row.owner if row is not None and row.is_held else None

    def server_now_ms(self) -> int:
        """Return the database's clock, ms since 1970-01-01 UTC; one query."""
        return int(self._table.rows(_NOW)[0][0])

    def break_lock(self, holder_text: str) -> bool:
        """
        Take the lock away from a holder, if it is still the named one.

        The holder's next renewal or release finds that the row is not its own. Outside: 1 query, 1
        update.

        Args:
            holder_text: The result of ``holder``.

        Returns:
            Whether it was taken away; False if it is free or has another holder now.

        Raises:
            StorageUnavailableError: No answer.
        """
        row = self._read_row()
        if row is None or row.nonce is None or row.owner != holder_text:
            return False
        return self.free(row.token, row.nonce)

    def renew(self, token: int, nonce: str) -> bool:
        """Renew the row; return whether it was still ours. Raises: as ``holder``."""
        return self._changed(_RENEW, (self.lease_ms, self._name, token, nonce))

    def free(self, token: int, nonce: str) -> bool:
        """Clear the row if it belongs to this holding. Raises: as ``holder``."""
        freed = self._changed(_FREE, (self._name, token, nonce))
        self._free_at_token = token if freed else None
        return freed

    def close(self) -> None:
        """Close the connection."""
        self._table.close()

    def _tried(self, trying: _Try) -> SqlHolding | None:
        nonce = trying.nonce
        # The lease counts from before the request that took it. If an answer was lost, that request
        # is unknown; then it counts from the first one.
        first_asked_at_ms = asked_at_ms = self.now_ms()
        token, self._free_at_token = self._free_at_token, None
        if token is not None:
            token += 1
            if self._put(_TAKE, token, trying, seen=token - 1):
                return SqlHolding(self, token, nonce, asked_at_ms)
        for _ in range(TRIES):
            row = self._read_row()
            if row is not None and row.nonce == nonce:
                self._unsure = None
                return SqlHolding(self, row.token, nonce, first_asked_at_ms)
            if row is not None and row.is_held and row.nonce != self._unsure:
                return None
            now_ms = self.server_now_ms() if row is None else row.now_ms
            asked_at_ms = self.now_ms()
            if row is None:
                token = max(1, now_ms)
                taken = self._put(_INSERT, token, trying)
            else:
                token = max(row.token + 1, now_ms)
                taken = self._put(_TAKE, token, trying, seen=row.token)
            if taken:
                self._unsure = None
                return SqlHolding(self, token, nonce, asked_at_ms)
        if trying.is_lost:
            raise self._table.silent("its answers were lost")
        return None

    def _put(self, statement: str, token: int, trying: _Try, seen: int | None = None) -> bool:
        """Write the own holding; return False if it did not happen or the outcome is unknown."""
        lease_ms, nonce = self.lease_ms, trying.nonce
        values: tuple[str | int | None, ...]
        if seen is None:
            values = (self._name, token, nonce, trying.owner_text, lease_ms, lease_ms)
        else:
            taking = (token, nonce, trying.owner_text, lease_ms, lease_ms)
            values = (*taking, self._name, seen, self._unsure)
        try:
            return self._table.change_once(statement, values) == 1
        except OutcomeLost:
            trying.is_lost = True
            return False
        except (RowExists, NoTable):
            return False  # the next read shows the outcome
        except NotExecuted as error:
            raise self._table.silent(str(error)) from error
        except UnsafeSetupError:
            raise
        except BaseException:
            trying.is_lost = True
            with contextlib.suppress(StorageUnavailableError):
                self.free(token, nonce)  # interrupted: release the row if it is ours
            raise

    def _read_row(self) -> _Row | None:
        try:
            found = self._table.rows(_READ_ROW, (self._name,))
        except NoTable as error:
            self._table.make(error)
            return None
        if not found:
            return None
        token, nonce, owner, lease_end_ms, now_ms = found[0]
        return _Row(int(token), nonce, owner, int(lease_end_ms), int(now_ms))

    def _changed(self, statement: str, values: tuple[str | int, ...]) -> bool:
        try:
            return self._table.change(statement, values) == 1
        except NoTable:
            return False  # the table was dropped, and our row with it


def _client(context: LockContext) -> SqlClient:
    settings = SqlSettings.from_properties(context.properties)
    return SqlClient(
        settings.database(context.ids),
        row_name(settings.key or context.table_identity),
        settings=settings,
        clock=context.clock,
        ids=context.ids,
    )


ENTRY = LockProviderEntry(
    name="sql",
    factory=_client,
    capabilities=LockCapabilities(
        between_processes=True,
        between_hosts=True,
        excludes_java=False,
        expires=True,
        fencing_tokens=True,
    ),
    options=tuple(SqlSettings.options.values()),
    poll_first_ms=10,
)

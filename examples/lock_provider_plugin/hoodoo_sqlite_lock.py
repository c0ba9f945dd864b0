"""
Example lock provider: one row of a SQLite database on a local disk, with a lease.

It shows a provider whose lock ends by time. A waiter measures the holder's silence itself, as
the DynamoDB provider does, so no two clocks are ever compared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from hoodoo.errors import LeaseLostError, SettingError, StorageUnavailableError
from hoodoo.plugins import (
    Clock,
    Ids,
    LockCapabilities,
    LockContext,
    LockProviderEntry,
    Option,
    hookimpl,
)

__all__ = ["ENTRY", "SqliteClient", "lock_provider_entries"]

PATH = Option(key="example.sqlite.lock.path", doc="Absolute local path of the database.")
LEASE_MS = 30_000
REQUEST_SECONDS = 1.0

TABLE = """
CREATE TABLE IF NOT EXISTS table_lock (
    identity TEXT PRIMARY KEY, owner TEXT, nonce TEXT, lease_ms INTEGER, token INTEGER NOT NULL
)
"""
LOOK = "SELECT owner, nonce, lease_ms, token FROM table_lock WHERE identity = ?"
TAKE = "INSERT OR REPLACE INTO table_lock VALUES (?, ?, ?, ?, ?)"
RENEW = "UPDATE table_lock SET nonce = ? WHERE identity = ? AND nonce = ?"
FREE = "UPDATE table_lock SET owner = NULL, nonce = NULL WHERE identity = ? AND nonce = ?"


class SqliteHolding:
    """One holding: the row carries our nonce."""

    def __init__(self, client: SqliteClient, nonce: str, token: int, asked_at_ms: int) -> None:
        self._client = client
        self._nonce: str | None = nonce
        self._ends_at_ms = asked_at_ms + client.lease_ms
        self.fencing_token: int | None = token

    def expires_in_ms(self) -> int | None:
        """Counted from before the request, so never too long."""
        return self._ends_at_ms - self._client.clock.monotonic_ms()

    def renew(self) -> None:
        """Write a new nonce, which tells every waiter that we live."""
        asked_at_ms = self._client.clock.monotonic_ms()
        nonce = self._client.renew(self._nonce)
        if nonce is None:
            self._nonce = None
            raise LeaseLostError("another writer took over the lock", path=self._client.path)
        self._nonce = nonce
        self._ends_at_ms = asked_at_ms + self._client.lease_ms

    def is_held(self) -> bool:
        """What is known without a request; the lease's end does the rest."""
        return self._nonce is not None

    def release(self) -> None:
        """Empty the row if it is still ours."""
        nonce, self._nonce = self._nonce, None
        if nonce is not None:
            self._client.free(nonce)


class SqliteClient:
    """
    The client of one row.

    Args:
        path: Absolute local path of the database; made when missing.
        table_identity: Which table's lock; the row's key.
        clock: Measures leases.
        ids: Makes nonces.
        lease_ms: How long others wait for a holder that went silent.
    """

    margin_ms = int(2 * REQUEST_SECONDS * 1000)

    def __init__(
        self, path: str, table_identity: str, *, clock: Clock, ids: Ids, lease_ms: int = LEASE_MS
    ) -> None:
        self.path = path
        self.clock = clock
        self.lease_ms = lease_ms
        self._table = table_identity
        self._ids = ids
        # What a waiter has seen, and since when. It outlives a single try: a dead holder is
        # given up after a lease of silence, however short the tries are.
        self._seen_nonce: str | None = None
        self._seen_at_ms = 0

    @property
    def identity(self) -> str:
        """The database and the row."""
        return f"sqlite:{self.path}:{self._table}"

    def try_acquire(self, owner_text: str) -> SqliteHolding | None:
        """Take a free row, or one whose holder was silent for its whole lease."""
        asked_at_ms = self.clock.monotonic_ms()
        with self._transaction() as database:
            row = database.execute(LOOK, (self._table,)).fetchone()
            token = 1 if row is None else row[3] + 1
            if row is not None and row[1] is not None and not self._is_silent(row[1], row[2]):
                return None
            nonce = self._ids.nonce()
            database.execute(TAKE, (self._table, owner_text, nonce, self.lease_ms, token))
        return SqliteHolding(self, nonce, token, asked_at_ms)

    def holder(self) -> str | None:
        """The owner text in the row."""
        with self._transaction() as database:
            row = database.execute(LOOK, (self._table,)).fetchone()
        return None if row is None else row[0]

    def renew(self, nonce: str | None) -> str | None:
        """A new nonce in the row if the old one is in it, else None."""
        new_nonce = self._ids.nonce()
        with self._transaction() as database:
            changed = database.execute(RENEW, (new_nonce, self._table, nonce)).rowcount
        return new_nonce if changed == 1 else None

    def free(self, nonce: str) -> None:
        """Empty the row if this nonce is in it."""
        with self._transaction() as database:
            database.execute(FREE, (self._table, nonce))

    def close(self) -> None:
        """Nothing to give up: every request has a connection of its own."""

    def _is_silent(self, nonce: str, lease_ms: int) -> bool:
        now_ms = self.clock.monotonic_ms()
        if nonce != self._seen_nonce:
            self._seen_nonce, self._seen_at_ms = nonce, now_ms
        return now_ms - self._seen_at_ms >= lease_ms

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=REQUEST_SECONDS)) as database:
                database.isolation_level = None  # BEGIN and COMMIT are ours
                database.execute("BEGIN IMMEDIATE")
                database.execute(TABLE)
                yield database
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageUnavailableError(
                f"the lock database did not answer: {self.path}: {error}", path=self.path
            ) from error


def _client(context: LockContext) -> SqliteClient:
    path = context.properties.get(PATH.key, "")
    if not path.startswith("/"):
        raise SettingError(
            f"the lock database needs an absolute path: {PATH.key}={path!a}",
            key=PATH.key,
            value=path,
            suggestion="an absolute path on a disk of this machine",
        )
    return SqliteClient(path, context.table_identity, clock=context.clock, ids=context.ids)


ENTRY = LockProviderEntry(
    name="sqlite",
    factory=_client,
    capabilities=LockCapabilities(
        between_processes=True,
        between_hosts=False,
        excludes_java=False,
        expires=True,
        fencing_tokens=True,
    ),
    options=(PATH,),
)


@hookimpl
def lock_provider_entries() -> tuple[LockProviderEntry, ...]:
    """The providers of this plug-in."""
    return (ENTRY,)

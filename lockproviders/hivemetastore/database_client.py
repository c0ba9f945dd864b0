"""
The Hive Metastore's lock by its database, for writers that reach no Thrift service.

Opt-in by its own name: it writes into tables of the metastore. It writes the same rows as the
metastore, so its Thrift clients and Java's writers respect our rows, and we respect theirs (tests
cover both directions). ``database.py`` writes the tables; this module keeps the state between
attempts:

- A refused attempt leaves no row: no client queues, as in ``thrift_client.py``, which says why.
- After a refusal the client reads the rows without the mutex, until there are none.
- Only the outcome of a commit can be unknown. The client then checks it at once under the
  metastore's mutex, which the lost transaction holds until it has ended, so the result is final
  (F10). If that fails, too, the client keeps the nonce; the next attempt or ``close`` deletes the
  row.
- The database does not report hive.txn.timeout: ``lease.ms`` must not be longer than it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field

from lockproviders.hivemetastore.database import (
    LEASE_MS_DEFAULT,
    NONCE_CHARACTERS,
    CommitUnknownError,
    LockName,
    MetastoreLockRow,
    MetastoreRows,
    agent_text,
    nonce_of,
    plain_text,
    silence_seconds,
)
from lockproviders.hivemetastore.settings import Duration, LockOptions, lock_name
from lockproviders.hivemetastore.thrift_client import MetastoreClient, MetastoreHolding
from lockproviders.hookspecs import SERVER_SHARED_WITH_JAVA, LockContext, LockProviderEntry
from lockproviders.settings import refuse_from_table
from lockproviders.sql.servers import Server
from timeline.errors import UnavailableError
from timeline.ports.ports import Clock, Ids
from timeline.properties.options import PropertySet, as_property_set, option
from timeline.system import is_loopback

_PREFIX = "hoodoo.lock.hivemetastore_database."


OFFSET_MS_MAX = 24 * 3_600_000


class DatabaseOptions(LockOptions):
    """The options as they are set; ``DatabaseSettings`` is made of them."""

    url: str | None = option(
        _PREFIX + "url", None, "The metastore's own database, mysql://host:port/name."
    )
    user: str | None = option(_PREFIX + "user", None, "User of that database.")
    password: str | None = option(
        _PREFIX + "password",
        None,
        "Password of that user; only from a file with mode 0600.",
        repr=False,
    )
    lease_ms: Duration = option(
        _PREFIX + "lease.ms",
        LEASE_MS_DEFAULT,
        "hive.txn.timeout of the metastore, after which it deletes locks without a renewal.",
    )
    timeout_ms: Duration = option(
        _PREFIX + "timeout.ms",
        10_000,
        "Longest wait for one answer of that database; at most an eighth of the lease.",
    )
    clock_offset_ms: Annotated[int, Field(ge=-OFFSET_MS_MAX, le=OFFSET_MS_MAX)] = option(
        _PREFIX + "clock.offset.ms",
        0,
        "Time by which the metastore's reading of the database's clock differs from "
        "UTC; not 0 if its Java and the database use different time zones.",
    )
    tls: str = option(
        _PREFIX + "tls",
        "auto",
        "Whether the database must prove its name; auto verifies unless it is on this machine.",
        choices=("auto", "verify", "off"),
    )
    tls_ca: str | None = option(
        _PREFIX + "tls.ca",
        None,
        "File of the authorities that may sign the database's certificate; the "
        "system's by default.",
    )


PORT = 3306

_DATABASE = re.compile(r"[A-Za-z0-9_$-]{1,64}")


class DatabaseSettings(DatabaseOptions):
    """All settings of the metastore's lock in its database: its options, and what follows."""

    name: LockName
    server: Server

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the provider's settings from all properties.

        Raises:
            SettingError: A value is missing, not a number or out of range.
            UnsafeSetupError: The url comes from the table's own properties (SEC11).
        """
        property_set = as_property_set(properties)
        refuse_from_table(property_set, cls.options["url"])
        given = DatabaseOptions.from_properties(property_set)
        return cls(
            **given.model_dump(), name=lock_name(property_set), server=_server(property_set, given)
        )


def _server(properties: PropertySet, given: DatabaseOptions) -> Server:
    wanted = f"write it as mysql://host:{PORT}/name, the user and password in keys of their own"
    kind = "setting_value" if given.url else "setting_missing"
    refusal = given.refusal(properties, "url", wanted, kind=kind)
    try:
        parts = urlsplit(given.url or "")
        host, port = parts.hostname or "", parts.port or PORT
    except ValueError:
        raise refusal from None
    name = unquote(parts.path).strip("/")
    if parts.scheme not in ("mysql", "mariadb") or not host or parts.query or parts.fragment:
        raise refusal
    if not _DATABASE.fullmatch(name) or parts.password:
        raise refusal
    return Server(
        host=host,
        port=port,
        database=name,
        user=unquote(parts.username or "") or (given.user or ""),
        password=given.password or "",
        verify_tls=given.tls == "verify" or (given.tls != "off" and not is_loopback(host)),
        tls_ca=given.tls_ca or "",
    )


class MetastoreDatabaseClient(MetastoreClient):
    """
    The client of one metastore lock, by the database.

    Args:
        settings: Names to lock, server and time limits.
        tables: The connection.
        clock: As of ``MetastoreClient``.
        ids: As of ``MetastoreClient``.
    """

    def __init__(
        self, settings: DatabaseSettings, tables: MetastoreRows, *, clock: Clock, ids: Ids
    ) -> None:
        self._settings = settings
        self._tables = tables
        super().__init__(
            settings.name,
            tables,
            beat_ms=settings.beat_ms,
            timeout_ms=settings.timeout_ms,
            clock=clock,
            ids=ids,
        )
        self._limit_by(settings.lease_ms)
        self._idle_ms = silence_seconds(self._timeout_ms) * 1000 // 2

    def _begin(self) -> None:
        super()._begin()
        self._held: dict[int, str] = {}  # free text of own rows by lock id
        self._strays: set[str] = set()  # nonces of own unheld rows that exist or may exist
        self._used_at_ms = self.clock.monotonic_ms()

    @property
    def identity(self) -> str:
        """The database and the names locked in it."""
        server = self._settings.server
        where = f"{server.host.lower()}:{server.port}/{server.database}"
        return f"hivemetastore_database:{where}/{self._name.database}.{self._name.table}"

    def try_acquire(self, owner_text: str) -> MetastoreHolding | None:
        """
        Take the lock if no client has or awaits it, else return None and leave no row.

        Raises:
            UnavailableError: No answer; a row that the attempt may have left is deleted later.
            UnsafeSetupError: No access, or these are not the metastore's tables.
        """
        nonce = self._ids.nonce()[-NONCE_CHARACTERS:]
        agent = agent_text(nonce, owner_text)
        with self._connected():
            if self._was_taken and not self._strays and self._twice(self._rows):
                return None
            lock_id, asked_at_ms = self._take(nonce, agent)
            self._was_taken = lock_id is None
            if lock_id is None:
                return None
            self._held[lock_id] = agent
            return MetastoreHolding(self, lock_id, ends_at_ms=asked_at_ms + self._lease_ms)

    def server_now_ms(self) -> int:
        """
        Return the database's clock, ms since 1970-01-01 UTC, without the configured offset.

        Raises:
            UnavailableError: No answer.
        """
        with self._connected():
            return self._twice(self._tables.now_ms)

    def beat(self, lock_id: int) -> int:
        """Renew a row. Errors: as of ``MetastoreClient``."""
        with self._connected():
            asked_at_ms = self.clock.monotonic_ms()
            self._twice(lambda: self._tables.beat(lock_id, self._held.get(lock_id, "")))
            return asked_at_ms + self._lease_ms

    def give_back(self, lock_id: int) -> None:
        """Delete an own row. Errors: as of ``MetastoreClient``."""
        agent = self._held.pop(lock_id)
        nonce = nonce_of(agent) or agent
        self._strays.add(nonce)
        with self._connected():
            self._twice(lambda: self._tables.delete(lock_id, agent))
            self._strays.discard(nonce)

    def _rows(self) -> Sequence[MetastoreLockRow]:
        return self._tables.rows(self._name)

    def _delete(self, row: MetastoreLockRow) -> bool:
        return self._tables.delete(row.lock_id, row.agent)

    def _delete_leftovers(self) -> None:
        if self._strays:
            self._connect()
            self._tables.delete_strays(self._name, self._strays)
            self._strays.clear()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self.is_own_process and self.clock.monotonic_ms() - self._used_at_ms > self._idle_ms:
            with self._guard:
                self._tables.drop()  # the server may have closed the connection, or be about to
        with super()._connected():
            yield
            self._used_at_ms = self.clock.monotonic_ms()

    def _connect(self) -> None:
        if not self._tables.is_open:
            self._tables.connect(self._timeout_ms)

    def _take(self, nonce: str, agent: str) -> tuple[int | None, int]:
        """Return the lock id and the time when its request was sent."""
        others = self._strays.copy()
        # Before the request: after any interruption the client searches for the row.
        self._strays.add(nonce)
        host = plain_text(self._ids.identity().host)

        def take() -> int | None:
            return self._tables.take(self._name, host, agent, others)

        asked_at_ms = self.clock.monotonic_ms()
        try:
            lock_id = take()
        except CommitUnknownError:
            self._connect()
            asked_at_ms = self.clock.monotonic_ms()
            lock_id = take()
        except UnavailableError:
            self._strays.discard(nonce)  # it was not executed
            raise
        # The mutex proves that every earlier transaction of this client has ended.
        self._strays.clear()
        return lock_id, asked_at_ms


def _client(context: LockContext) -> MetastoreDatabaseClient:
    settings = DatabaseSettings.from_properties(context.properties)
    tables = MetastoreRows(settings.server, offset_ms=settings.clock_offset_ms)
    return MetastoreDatabaseClient(settings, tables, clock=context.clock, ids=context.ids)


ENTRY = LockProviderEntry(
    name="hivemetastore_database",
    factory=_client,
    capabilities=SERVER_SHARED_WITH_JAVA,
    options=tuple(DatabaseOptions.options.values()),
    poll_first_ms=10,
    poll_max_ms=300,
)

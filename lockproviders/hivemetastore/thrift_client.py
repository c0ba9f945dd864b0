"""
The Hive Metastore's lock by Thrift: the lock Java's ``HiveMetastoreBasedLockProvider`` takes.

The metastore keeps a row for every request in its own database and grants them in order. It removes
rows that are silent for its hive.txn.timeout. Invariants:

- **No client waits in the metastore's queue.** The client withdraws a queued request at once, as
  Java does, and asks again later; acquire.py polls with jitter. A queued request would get the lock
  faster. But Java's writers never stay queued and were then refused 64 times of 64, and a waiter
  that dies in the queue blocks all others for a time-out.
- After a refusal the client reads the rows first, and sends no request while there are any. So
  waiters do not put rows before each other's or before Java's.
- A request without an answer may be granted later. The client remembers its nonce, searches the
  rows for it before every further attempt and at the end, and deletes its row (F10, F11).
- The end is counted from before the request, and is never later than the server's: three beats of
  ``hoodie.write.lock.heartbeat_interval_ms`` or the server's time-out, whichever is shorter.
- The lock id is the fencing token: ids are given in order, and a request is granted only when all
  earlier ones for the table are gone.
- One connection, one mutex: the renewal runs in another thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from lockproviders.hivemetastore.database import (
    LEASE_MS_DEFAULT,
    NONCE_CHARACTERS,
    LockName,
    MetastoreLockRow,
    MetastoreRows,
    agent_text,
    duration_ms,
    nonce_of,
    plain_text,
)
from lockproviders.hivemetastore.settings import HiveMetastoreOptions, HiveMetastoreSettings
from lockproviders.hivemetastore.thrift_connection import Granted, ThriftWire
from lockproviders.hookspecs import SERVER_SHARED_WITH_JAVA, LockContext, LockProviderEntry
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock, Ids

_Answer = TypeVar("_Answer")

BEATS_PER_LEASE = 3
TIMEOUTS_PER_LEASE = 8
TIMEOUT_MS_MIN = 100
STRAY_MS_MAX = 3_600_000  # a frozen server answers late, but hardly later


class MetastoreHolding:
    """One granted row."""

    def __init__(self, client: MetastoreClient, lock_id: int, *, ends_at_ms: int) -> None:
        self._client = client
        self._lock_id = lock_id
        self.fencing_token: int | None = lock_id
        self._ends_at_ms = ends_at_ms
        self._over = False

    def expires_in_ms(self) -> int | None:
        """Return the time until the metastore may delete the row, at most three beats."""
        return self._ends_at_ms - self._client.clock.monotonic_ms()

    def renew(self) -> None:
        """
        Send one heartbeat.

        Raises:
            LeaseLostError: The metastore no longer knows the row, it was released, or this is
                another process.
            UnavailableError: No answer.
        """
        if not self.is_held():
            raise LeaseLostError(
                f"the lock was released or lost earlier: stop this write: lock id {self._lock_id}",
                lock_id=self._lock_id,
            )
        try:
            self._ends_at_ms = self._client.beat(self._lock_id)
        except LeaseLostError:
            self._over = True
            raise

    def is_held(self) -> bool:
        """Return whether it is neither released, lost, nor inherited by a fork; no request."""
        return not self._over and self._client.is_own_process

    def release(self) -> None:
        """
        Delete the row; no error if it is gone or on a second call.

        Raises:
            UnavailableError: No answer; the next acquire and ``close`` try again.
        """
        if self.is_held():
            self._over = True
            self._client.give_back(self._lock_id)


class MetastoreClient(ABC):
    """
    A client of one metastore lock; a subclass knows the way to the metastore.

    Args:
        name: The names to lock.
        link: The connection.
        beat_ms: Interval of the heartbeats.
        timeout_ms: Longest wait for one answer.
        clock: Counts the end of holdings.
        ids: Nonces, host and process.
    """

    def __init__(
        self,
        name: LockName,
        link: ThriftWire | MetastoreRows,
        *,
        beat_ms: int,
        timeout_ms: int,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.clock = clock
        self._name = name
        self._link = link
        self._beat_ms = beat_ms
        self._timeout_ms_max = timeout_ms
        self._ids = ids
        self._lease_ms = 0
        self._timeout_ms = 0
        self._begin()

    def _begin(self) -> None:
        self._process = self._ids.identity().pid
        self._guard = threading.Lock()
        self._was_taken = False

    @property
    def margin_ms(self) -> int:
        """Twice the request time-out; final once connected, when the server's lease is known."""
        return 2 * self._timeout_ms

    @property
    def is_own_process(self) -> bool:
        """Whether this process made the client; False in a fork of it."""
        return self._ids.identity().pid == self._process

    def holder(self) -> str | None:
        """
        Return the current holder, Java's writers included, or None if the lock is free.

        Raises:
            UnavailableError: No answer.
        """
        with self._connected():
            rows = self._twice(self._rows)
        return next((row.holder_text for row in rows if row.acquired), None)

    def break_lock(self, holder_text: str) -> bool:
        """Delete the row of the named holder; see ``BreakableLockClient``. Ids are used once."""
        with self._connected():
            for row in self._twice(self._rows):
                if row.acquired and row.holder_text == holder_text:
                    return self._delete(row)
        return False

    def close(self) -> None:
        """Delete rows that unanswered requests may have left, and disconnect. Twice is no error."""
        if not self.is_own_process:
            self._link.drop()
            return
        with self._guard:
            with suppress(UnavailableError, UnsafeSetupError):
                self._delete_leftovers()
            self._link.drop()

    @abstractmethod
    def beat(self, lock_id: int) -> int:
        """
        Renew a row; return its new end on the monotonic clock.

        Raises:
            LeaseLostError: The row is gone.
            UnavailableError: No answer.
        """

    @abstractmethod
    def give_back(self, lock_id: int) -> None:
        """
        Delete an own row.

        Raises:
            UnavailableError: No answer; the client tries again later.
        """

    @abstractmethod
    def _rows(self) -> Sequence[MetastoreLockRow]:
        """Return all requests for the lock."""

    @abstractmethod
    def _delete(self, row: MetastoreLockRow) -> bool:
        """Delete a row of any client; return whether it existed."""

    @abstractmethod
    def _delete_leftovers(self) -> None:
        """Connect and delete the own rows that are not held, if there may be some."""

    @abstractmethod
    def _connect(self) -> None:
        """Open a connection unless one is open."""

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Hold the mutex with an open connection; a forked child starts with both of its own."""
        if not self.is_own_process:
            self._link.drop()
            self._begin()
        with self._guard:
            self._connect()
            yield

    def _limit_by(self, *lease_ms: int) -> None:
        """Set the own lease, and the time limit of a request."""
        self._lease_ms = min(*lease_ms, BEATS_PER_LEASE * self._beat_ms)
        # Several unanswered beats must fit into one lease, else one of them would end it.
        wanted_ms = min(self._timeout_ms_max, self._lease_ms // TIMEOUTS_PER_LEASE)
        self._timeout_ms = max(TIMEOUT_MS_MIN, wanted_ms)

    def _twice(self, request: Callable[[], _Answer]) -> _Answer:
        """Send a request that may run twice; repeat it on a new connection if needed."""
        try:
            return request()
        except UnavailableError:
            self._connect()
            return request()


class HiveMetastoreClient(MetastoreClient):
    """
    The client of one metastore lock, by Thrift.

    Args:
        settings: Names to lock, addresses and time limits.
        wire: The connection.
        clock: Also counts the age of unanswered requests.
        ids: As of ``MetastoreClient``.
    """

    def __init__(
        self, settings: HiveMetastoreSettings, wire: ThriftWire, *, clock: Clock, ids: Ids
    ) -> None:
        self._settings = settings
        self._wire = wire
        super().__init__(
            settings.name,
            wire,
            beat_ms=settings.beat_ms,
            timeout_ms=settings.timeout_ms,
            clock=clock,
            ids=ids,
        )
        self._limit_by(settings.lease_ms or LEASE_MS_DEFAULT)

    def _begin(self) -> None:
        super()._begin()
        self._strays: dict[str, int] = {}  # nonces without an answer, with the end of their search
        self._to_unlock: set[int] = set()  # own rows that are not held

    @property
    def identity(self) -> str:
        """The metastore's addresses and the names locked there."""
        where = ",".join(sorted(str(address).lower() for address in self._settings.addresses))
        return f"hivemetastore:{where}/{self._name.database}.{self._name.table}"

    def try_acquire(self, owner_text: str) -> MetastoreHolding | None:
        """
        Request the lock once; if the request is queued, the lock is taken: withdraw it.

        Raises:
            UnavailableError: No answer; a row that the request may have left is deleted later.
            UnsafeSetupError: The metastore has no locks, or its certificate could not be verified.
        """
        nonce = self._ids.nonce()[-NONCE_CHARACTERS:]
        agent = agent_text(nonce, owner_text)
        with self._connected():
            if (self._was_taken or self._strays or self._to_unlock) and self._others():
                self._was_taken = True
                return None
            asked_at_ms = self.clock.monotonic_ms()
            # Before the request: after any interruption the client searches for the row.
            self._strays[nonce] = asked_at_ms + STRAY_MS_MAX
            granted = self._ask(agent)
            self._was_taken = not granted.acquired
            if self._was_taken:
                self._to_unlock.add(granted.lock_id)
                del self._strays[nonce]
                self._unlock_known()
                return None
            ends_at_ms = asked_at_ms + self._lease_ms
            holding = MetastoreHolding(self, granted.lock_id, ends_at_ms=ends_at_ms)
            del self._strays[nonce]
            return holding

    def beat(self, lock_id: int) -> int:
        """Send a heartbeat. Errors: as of ``MetastoreClient``."""
        with self._connected():
            asked_at_ms = self.clock.monotonic_ms()
            self._twice(lambda: self._wire.heartbeat(lock_id))
            return asked_at_ms + self._lease_ms

    def give_back(self, lock_id: int) -> None:
        """Unlock an own row. Errors: as of ``MetastoreClient``."""
        self._to_unlock.add(lock_id)
        with self._connected():
            self._unlock_known()

    def _rows(self) -> Sequence[MetastoreLockRow]:
        return self._wire.show(self._name)

    def _delete(self, row: MetastoreLockRow) -> bool:
        self._to_unlock.add(row.lock_id)
        self._unlock_known()
        return True

    def _delete_leftovers(self) -> None:
        if self._strays or self._to_unlock:
            self._connect()
            self._unlock_leftovers(self._rows())

    def _connect(self) -> None:
        if self._wire.is_open:
            return
        self._wire.connect(self._timeout_ms)
        own_ms = self._settings.lease_ms or LEASE_MS_DEFAULT
        server_ms = duration_ms(self._wire.lease_text())
        self._limit_by(min(server_ms or own_ms, self._settings.lease_ms or server_ms or own_ms))
        self._wire.limit(self._timeout_ms)

    def _ask(self, agent: str) -> Granted:
        """Send the one request that may not run twice; after a failure, search for its row."""
        host = plain_text(self._ids.identity().host)
        try:
            return self._wire.lock(self._name, host, agent)
        except UnavailableError:
            with suppress(UnavailableError):
                self._connect()
                self._unlock_leftovers(self._rows())
            raise

    def _others(self) -> list[MetastoreLockRow]:
        """Delete our leftovers and return the requests of other clients."""
        return self._unlock_leftovers(self._twice(self._rows))

    def _unlock_leftovers(self, rows: Sequence[MetastoreLockRow]) -> list[MetastoreLockRow]:
        """Delete the rows that are ours and not held; return those of other clients."""
        now_ms = self.clock.monotonic_ms()
        others = []
        for row in rows:
            nonce = nonce_of(row.agent)
            if nonce in self._strays:
                self._to_unlock.add(row.lock_id)
            elif row.lock_id not in self._to_unlock:
                others.append(row)
        self._unlock_known()
        found = {nonce_of(row.agent) for row in rows}
        self._strays = {
            nonce: until_ms
            for nonce, until_ms in self._strays.items()
            if nonce not in found and now_ms < until_ms
        }
        return others

    def _unlock_known(self) -> None:
        for lock_id in tuple(self._to_unlock):
            self._twice(lambda lock_id=lock_id: self._wire.unlock(lock_id))  # type: ignore[misc]
            self._to_unlock.discard(lock_id)


def _client(context: LockContext) -> HiveMetastoreClient:
    settings = HiveMetastoreSettings.from_properties(context.properties)
    wire = ThriftWire(settings.addresses, settings.verified_by)
    return HiveMetastoreClient(settings, wire, clock=context.clock, ids=context.ids)


ENTRY = LockProviderEntry(
    name="hivemetastore",
    factory=_client,
    capabilities=SERVER_SHARED_WITH_JAVA,
    jvm_class_names=("org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",),
    options=tuple(HiveMetastoreOptions.options.values()),
    poll_first_ms=20,
    poll_max_ms=300,
)

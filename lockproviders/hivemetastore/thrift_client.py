"""
The Hive Metastore's lock by Thrift: the lock Java's ``HiveMetastoreBasedLockProvider`` takes.

The metastore keeps a row for every request in its own database, grants them in their order
and takes away the rows that are silent for its hive.txn.timeout. Invariants:

- **Nobody waits in the metastore's queue.** A request that is queued is taken back at once,
  as Java does, and asked again later; acquire.py polls with jitter. Staying queued would
  hand over faster, but Java's writers, which never stay, were then refused 64 times of
  64, and a waiter that dies in the queue blocks the others for a time-out.
- After a refusal the rows are read first, and while there are any nothing is asked: waiters
  do not put rows before each other's or before Java's.
- A request without an answer may be granted later. Its nonce is remembered, looked for in the
  rows before every further try and at the end, and its row is given back (F10, F11).
- The end is counted from before the request, and never later than the server's: three beats
  of ``hoodie.write.lock.heartbeat_interval_ms`` or the server's time-out, what is shorter.
- The lock id is the fencing token: ids are drawn in order, and a request is granted only when
  all earlier ones for the table are gone.
- One connection, one mutex: renewal comes from another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from lockproviders.hivemetastore.database import (
    LEASE_MS_DEFAULT,
    NONCE_CHARACTERS,
    MetastoreLockRow,
    agent_text,
    duration_ms,
    nonce_of,
    plain_text,
)
from lockproviders.hivemetastore.settings import OPTIONS, HiveMetastoreSettings
from lockproviders.hivemetastore.thrift_connection import Granted, MetastoreWire, ThriftWire
from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock, Ids

__all__ = ["ENTRY", "OPTIONS", "HiveMetastoreClient", "MetastoreHolding"]

_Answer = TypeVar("_Answer")

BEATS_PER_LEASE = 3
TIMEOUTS_PER_LEASE = 8
TIMEOUT_MS_MIN = 100
STRAY_MS_MAX = 3_600_000  # a frozen server answers late, but hardly later


class RowKeeper(Protocol):
    """What a holding asks of its client, by Thrift or by SQL."""

    clock: Clock

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that made the client, and no fork of it."""

    def beat(self, lock_id: int) -> int:
        """Renew a row; answers when it ends, on the monotonic clock."""

    def give_back(self, lock_id: int) -> None:
        """Take an own row away."""


class MetastoreHolding:
    """One granted row."""

    def __init__(self, client: RowKeeper, lock_id: int, *, ends_at_ms: int) -> None:
        self._client = client
        self._lock_id = lock_id
        self._ends_at_ms = ends_at_ms
        self._over = False

    @property
    def fencing_token(self) -> int | None:
        """The lock id."""
        return self._lock_id

    def expires_in_ms(self) -> int | None:
        """Time until the metastore may take the row away, or earlier: three beats."""
        return self._ends_at_ms - self._client.clock.monotonic_ms()

    def renew(self) -> None:
        """
        One heartbeat.

        Raises:
            LeaseLostError: The metastore does not know the row any more, it was released, or
                this is another process.
            UnavailableError: No answer.
        """
        if not self.is_held():
            raise LeaseLostError(
                f"the lock was given back or lost before: lock id {self._lock_id}",
                lock_id=self._lock_id,
            )
        try:
            self._ends_at_ms = self._client.beat(self._lock_id)
        except LeaseLostError:
            self._over = True
            raise

    def is_held(self) -> bool:
        """What is known without asking: neither released, lost, nor inherited by a fork."""
        return not self._over and self._client.is_own_process

    def release(self) -> None:
        """
        Take the row away. Twice is no error, nor is a row that is gone.

        Raises:
            UnavailableError: No answer; tried again at the next acquire and at ``close``.
        """
        if self.is_held():
            self._over = True
            self._client.give_back(self._lock_id)


class HiveMetastoreClient:
    """
    The client of one metastore lock.

    Args:
        settings: What is locked, where, and how long everything may take.
        wire: The connection; Thrift to ``settings.addresses`` in production.
        clock: Counts the end of holdings and the age of unanswered requests.
        ids: Nonces, host and process.
    """

    def __init__(
        self, settings: HiveMetastoreSettings, wire: MetastoreWire, *, clock: Clock, ids: Ids
    ) -> None:
        self.clock = clock
        self._settings = settings
        self._wire = wire
        self._ids = ids
        self._lease_ms = 0
        self._timeout_ms = 0
        self._limit_by(settings.lease_ms or LEASE_MS_DEFAULT)
        self._begin()

    def _begin(self) -> None:
        self._process = self._ids.identity().pid
        self._guard = threading.Lock()
        self._strays: dict[str, int] = {}  # nonces without an answer: until when to look
        self._to_unlock: set[int] = set()  # own rows that are not held
        self._was_taken = False

    @property
    def identity(self) -> str:
        """The metastore's addresses and the names locked there."""
        where = ",".join(sorted(str(address).lower() for address in self._settings.addresses))
        return f"hivemetastore:{where}/{self._settings.name.database}.{self._settings.name.table}"

    @property
    def margin_ms(self) -> int:
        """Twice the request timeout; final once connected, when the server's lease is known."""
        return 2 * self._timeout_ms

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that made the client, and no fork of it."""
        return self._ids.identity().pid == self._process

    def try_acquire(self, owner_text: str) -> MetastoreHolding | None:
        """
        One request for the lock; queued means taken, and the request is taken back.

        Raises:
            UnavailableError: No answer; what the request may have left is given back later.
            UnsafeSetupError: The metastore has no locks, or its certificate is not believed.
        """
        nonce = self._ids.nonce()[-NONCE_CHARACTERS:]
        agent = agent_text(nonce, owner_text)
        with self._connected():
            if (self._was_taken or self._strays or self._to_unlock) and self._others():
                self._was_taken = True
                return None
            asked_at_ms = self.clock.monotonic_ms()
            # Before the request: whatever interrupts it, the row is looked for.
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

    def holder(self) -> str | None:
        """
        Who holds it now, also when that is Java; None when free.

        Raises:
            UnavailableError: No answer.
        """
        with self._connected():
            rows = self._twice(lambda: self._wire.show(self._settings.name))
        return next((row.holder_text for row in rows if row.acquired), None)

    def break_lock(self, holder_text: str) -> bool:
        """Unlock the row of the named holder; see ``BreakableLockClient``. Ids are used once."""
        with self._connected():
            for row in self._twice(lambda: self._wire.show(self._settings.name)):
                if row.acquired and row.holder_text == holder_text:
                    self._to_unlock.add(row.lock_id)
                    self._unlock_known()
                    return True
        return False

    def close(self) -> None:
        """Give back what unanswered requests may have left, and hang up. Twice is no error."""
        if not self.is_own_process:
            self._wire.drop()
            return
        with self._guard:
            if self._strays or self._to_unlock:
                with suppress(UnavailableError, UnsafeSetupError):
                    self._connect()
                    self._unlock_leftovers(self._wire.show(self._settings.name))
            self._wire.drop()

    def beat(self, lock_id: int) -> int:
        """
        Renew a row; answers when it ends, on the monotonic clock.

        Raises:
            LeaseLostError: The metastore does not know it any more.
            UnavailableError: No answer.
        """
        with self._connected():
            asked_at_ms = self.clock.monotonic_ms()
            self._twice(lambda: self._wire.heartbeat(lock_id))
            return asked_at_ms + self._lease_ms

    def give_back(self, lock_id: int) -> None:
        """
        Take an own row away.

        Raises:
            UnavailableError: No answer; it is tried again later.
        """
        self._to_unlock.add(lock_id)
        with self._connected():
            self._unlock_known()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """The mutex and an open connection; a forked child starts with both of its own."""
        if not self.is_own_process:
            self._wire.drop()
            self._begin()
        with self._guard:
            self._connect()
            yield

    def _connect(self) -> None:
        if self._wire.is_open:
            return
        self._wire.connect(self._timeout_ms)
        told_ms = duration_ms(self._wire.lease_text())
        self._limit_by(told_ms or self._settings.lease_ms or LEASE_MS_DEFAULT)
        self._wire.limit(self._timeout_ms)

    def _limit_by(self, server_lease_ms: int) -> None:
        ends_ms = [server_lease_ms, BEATS_PER_LEASE * self._settings.beat_ms]
        if self._settings.lease_ms is not None:
            ends_ms.append(self._settings.lease_ms)
        self._lease_ms = min(ends_ms)
        # Several unanswered beats must fit into one lease, else one of them would end it.
        wanted_ms = min(self._settings.timeout_ms, self._lease_ms // TIMEOUTS_PER_LEASE)
        self._timeout_ms = max(TIMEOUT_MS_MIN, wanted_ms)

    def _twice(self, request: Callable[[], _Answer]) -> _Answer:
        """A request that may be repeated: again on a new connection when the old one is dead."""
        try:
            return request()
        except UnavailableError:
            self._connect()
            return request()

    def _ask(self, agent: str) -> Granted:
        """The one request that may not be repeated; when it fails its row is looked for."""
        host = plain_text(self._ids.identity().host)
        try:
            return self._wire.lock(self._settings.name, host, agent)
        except UnavailableError:
            with suppress(UnavailableError):
                self._connect()
                self._unlock_leftovers(self._wire.show(self._settings.name))
            raise

    def _others(self) -> list[MetastoreLockRow]:
        """The requests of others, after our leftovers are taken away."""
        return self._unlock_leftovers(self._twice(lambda: self._wire.show(self._settings.name)))

    def _unlock_leftovers(self, rows: Sequence[MetastoreLockRow]) -> list[MetastoreLockRow]:
        """Take away the rows that are ours and not held; answers those of others."""
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
    wire = ThriftWire(settings.addresses, settings.tls)
    return HiveMetastoreClient(settings, wire, clock=context.clock, ids=context.ids)


ENTRY = LockProviderEntry(
    name="hivemetastore",
    factory=_client,
    capabilities=LockCapabilities(
        between_processes=True,
        between_hosts=True,
        excludes_java=True,
        expires=True,
        fencing_tokens=True,
    ),
    jvm_class_names=("org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",),
    options=tuple(OPTIONS.values()),
    poll_first_ms=20,
    poll_max_ms=300,
)

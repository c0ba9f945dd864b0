"""
The lock in ZooKeeper, the very one that Java's ``ZookeeperBasedLockProvider`` takes.

A waiter is an ephemeral, numbered node in the queue under the lock's node; the first one
holds the lock, and a node dies with the session of its maker. Invariants:

- One acquire has one node; a waiter watches only the one ahead, is woken when it goes, and
  removes its node however the acquire ends. So the server's fairness is kept.
- A holding is believed only as long as the server was bound to keep our session, counted on
  the monotonic clock from before the last confirmed request: a process that slept knows it.
- An interrupted connection makes a holding unproven: not held until the own node was seen
  again. A lost session makes it lost for good.
- Whatever may be left in a session by a request without an answer ends with the session,
  which is closed instead of being used again.

The fencing token is the node's creation id (czxid): it grows over the whole ensemble, while
the number in the name starts anew when somebody removes the lock's node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry
from lockproviders.path_hash import ADDRESS_OPTION
from lockproviders.zookeeper.queue import owner_in, queue_order
from lockproviders.zookeeper.settings import OPTIONS, ZooKeeperSettings, request_timeout_ms
from lockproviders.zookeeper.waiter import LOOKS_MAX, ZooKeeperHolding, ZooKeeperPlace
from timeline.errors import UnsafeSetupError

if TYPE_CHECKING:
    from lockproviders.zookeeper.session import ZkSession
    from timeline.ports.clock import Clock
    from timeline.ports.ids import Ids

__all__ = ["ENTRY", "IMPLICIT_ENTRY", "OPTIONS", "ZooKeeperClient"]


class ZooKeeperClient:
    """
    The client of one lock: at most one session at a time, opened at the first use.

    Args:
        settings: Servers, node and times.
        clock: Clock port.
        ids: Names our nodes, and tells the process.
        open_session: Makes a session; replaced in tests.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        *,
        clock: Clock,
        ids: Ids,
        open_session: Callable[[], ZkSession] | None = None,
    ) -> None:
        self.clock = clock
        self.ids = ids
        self.path = settings.path
        self.application = settings.application
        self._settings = settings
        self._open_session = open_session or self._open
        self._pid = ids.identity().pid
        self._guard = threading.Lock()
        self._session: ZkSession | None = None
        self._holdings: set[ZooKeeperHolding] = set()

    @property
    def identity(self) -> str:
        """Servers and node."""
        return self._settings.lock_identity

    @property
    def margin_ms(self) -> int:
        """Twice the request time, which follows the session time the servers granted."""
        session = self._session
        session_ms = self._settings.session_timeout_ms if session is None else session.lease_ms
        return 2 * request_timeout_ms(session_ms)

    def enter(self, owner_text: str) -> ZooKeeperPlace:
        """A place for one acquire; queued at its first try."""
        return ZooKeeperPlace(self, owner_text)

    def try_acquire(self, owner_text: str) -> ZooKeeperHolding | None:
        """
        One try without waiting: queue up, and leave again when somebody is ahead.

        Raises:
            UnavailableError: No answer or no connection.
            UnsafeSetupError: The servers refuse us, or kazoo is missing.
        """
        place = self.enter(owner_text)
        try:
            holding = place.try_acquire()
        except BaseException:
            place.leave()
            raise
        if holding is None:
            place.leave()
        return holding

    def holder(self) -> str | None:
        """What the first node of the queue says, None when there is none."""
        first = self._first()
        return None if first is None else owner_in(first[1])

    def break_lock(self, holder_text: str) -> bool:
        """
        Remove the first node of the queue if it is the named holder's; True when it was.

        A node's name is used once and its text never changes, so what was read is what goes.
        """
        first = self._first()
        if first is None or owner_in(first[1]) != holder_text:
            return False
        return self.session().delete(f"{self.path}/{first[0]}")

    def close(self) -> None:
        """End the session and with it all our nodes. Twice is no error."""
        self._forget_after_fork()
        with self._guard:
            sessions = {holding.session for holding in self._holdings}
            if self._session is not None:
                sessions.add(self._session)
            self._session = None
            self._holdings.clear()
        for session in sessions:
            session.end(wait_ms=session.request_timeout_ms)

    def session(self) -> ZkSession:
        """
        The live session, opened where there is none.

        Raises:
            UnavailableError: No server let us in within the connection time.
            UnsafeSetupError: The servers refuse us, or kazoo is missing.
        """
        self._forget_after_fork()
        with self._guard:
            known = self._session
            if known is None or known.is_lost or known.is_tainted:
                known = self._session = self._open_session()
            return known

    def is_elsewhere(self, session: ZkSession) -> bool:
        """Whether the session belongs to the process this one was forked from."""
        return session.pid != self.ids.identity().pid

    def remember(self, holding: ZooKeeperHolding) -> None:
        """A holding whose session must not be closed under it."""
        session = holding.session
        with self._guard:
            self._holdings.add(holding)
        session.watch_over(lambda: self._least_left_ms(session))

    def forget(self, holding: ZooKeeperHolding) -> None:
        """A holding that was given back."""
        with self._guard:
            self._holdings.discard(holding)

    def abandon(self, session: ZkSession) -> None:
        """
        End a session in which a node of ours may linger, now or with the holding in it.

        Threads that share this client share its session; the holder among them keeps it.
        """
        with self._guard:
            session.is_tainted = True
            if any(holding.session is session for holding in self._holdings):
                return
            if self._session is session:
                self._session = None
        session.end(wait_ms=session.request_timeout_ms)

    def _least_left_ms(self, session: ZkSession) -> int | None:
        with self._guard:
            held = [holding for holding in self._holdings if holding.session is session]
        return min((holding.expires_in_ms() for holding in held), default=None)

    def _first(self) -> tuple[str, bytes] | None:
        """Name and text of the first node."""
        session = self.session()
        for _ in range(LOOKS_MAX):
            names = queue_order(session.children(self.path))
            if not names:
                return None
            found = session.read(f"{self.path}/{names[0]}")
            if found is not None:
                return names[0], found[0]
        return None

    def _forget_after_fork(self) -> None:
        """A forked child has neither kazoo's threads nor a right to the parent's session."""
        pid = self.ids.identity().pid
        if pid != self._pid:
            self._pid, self._guard, self._session = pid, threading.Lock(), None
            self._holdings = set()

    def _open(self) -> ZkSession:
        return _session_class()(self._settings, clock=self.clock, pid=self._pid)


def _session_class() -> type[ZkSession]:
    try:
        from lockproviders.zookeeper.session import ZkSession
    except ImportError as error:
        raise UnsafeSetupError(
            "the ZooKeeper lock needs the package kazoo: pip install 'hoodoo[zookeeper]'",
            kind="missing_extra",
            extra="zookeeper",
        ) from error
    return ZkSession


def _client(context: LockContext, *, implicit: bool) -> ZooKeeperClient:
    _session_class()  # say at once what is missing
    settings = ZooKeeperSettings.from_context(context, implicit=implicit)
    return ZooKeeperClient(settings, clock=context.clock, ids=context.ids)


def _explicit_client(context: LockContext) -> ZooKeeperClient:
    return _client(context, implicit=False)


def _implicit_client(context: LockContext) -> ZooKeeperClient:
    return _client(context, implicit=True)


_JAVA = "org.apache.hudi.client.transaction.lock."
_CAPABILITIES = LockCapabilities(
    between_processes=True,
    between_hosts=True,
    excludes_java=True,
    expires=True,
    fencing_tokens=True,
)
# A waiter is woken by its watch; polling is for servers that do not answer.
_POLL_FIRST_MS = 500
_POLL_MAX_MS = 2_000

ENTRY = LockProviderEntry(
    name="zookeeper",
    factory=_explicit_client,
    capabilities=_CAPABILITIES,
    jvm_class_names=(_JAVA + "ZookeeperBasedLockProvider",),
    options=tuple(OPTIONS.values()),
    poll_first_ms=_POLL_FIRST_MS,
    poll_max_ms=_POLL_MAX_MS,
)

IMPLICIT_ENTRY = LockProviderEntry(
    name="zookeeper_implicit",
    factory=_implicit_client,
    capabilities=_CAPABILITIES,
    jvm_class_names=(_JAVA + "ZookeeperBasedImplicitBasePathLockProvider",),
    options=(*OPTIONS.values(), ADDRESS_OPTION),
    poll_first_ms=_POLL_FIRST_MS,
    poll_max_ms=_POLL_MAX_MS,
)

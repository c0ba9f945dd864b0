"""The lock in ZooKeeper, the same one that Java's ``ZookeeperBasedLockProvider`` takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lockproviders.hookspecs import SERVER_SHARED_WITH_JAVA, LockContext, LockProviderEntry
from lockproviders.settings import ADDRESS_OPTION
from lockproviders.zookeeper.queue import (
    node_prefix,
    node_text,
    own_nodes,
    owner_in,
    predecessor,
    queue_order,
)
from lockproviders.zookeeper.settings import ZooKeeperOptions, ZooKeeperSettings, request_timeout_ms
from timeline.errors import (
    HoodooError,
    LeaseLostError,
    MissingExtraError,
    UnavailableError,
    needs_extra,
)

if TYPE_CHECKING:
    from lockproviders.zookeeper.session import ZkSession
    from timeline.ports.ports import Clock, Ids


# ---- A waiter's node in ZooKeeper's queue, and the holding of the first node

CHECKS_MAX = 3  # if the queue changes during the read
# A watch wakes the waiter; this poll is for a watch that was lost with its server.
RECHECK_MS = 1_000


class ZooKeeperHolding:
    """One holding: our node is the first of the queue."""

    def __init__(
        self, client: ZooKeeperClient, session: ZkSession, path: str, *, token: int, seen_ms: int
    ) -> None:
        self._client = client
        self.session = session
        self._path = path
        self.fencing_token: int | None = token  # the creation id of our node
        self._seen_ms = seen_ms  # monotonic time before the last request that proved it
        self._drops_seen = session.drops
        self._gone = False
        self._released = False

    def expires_in_ms(self) -> int:
        """Return the time for which the servers must keep our session, and so our node."""
        return self._seen_ms + self.session.lease_ms - self._client.clock.monotonic_ms()

    def renew(self) -> None:
        """
        Read our node again, which also renews the session. One request.

        Raises:
            LeaseLostError: The node or the session is gone.
            UnavailableError: No answer.
        """
        drops = self.session.drops
        asked_ms = self._client.clock.monotonic_ms()
        if not self._is_lost() and self.session.read(self._path, self.on_event) is None:
            self._gone = True
        if self._is_lost():
            raise LeaseLostError(
                "the node of this lock left ZooKeeper's queue: its session expired or a user "
                f"deleted it; stop this write: {self._path}",
                path=self._path,
            )
        self._seen_ms = asked_ms
        self._drops_seen = drops

    def is_held(self) -> bool:
        """
        Return what watch and connection show; ask the server only after an interruption.

        Then it waits a moment for the connection, so that a new leader causes a delay and no failed
        write (F9).
        """
        if self._released or self._is_lost() or self._client.is_of_other_process(self.session):
            return False
        if self.session.is_connected and self.session.drops == self._drops_seen:
            return True
        if not self.session.wait_connected(self._client.margin_ms):
            return False
        try:
            self.renew()
        except (LeaseLostError, UnavailableError):
            return False
        return True

    def release(self) -> None:
        """
        Delete our node; one request.

        Raises:
            UnavailableError: No answer; the session is closed and ends at the latest with its time.
            UnsafeSetupError: Access is denied; the session is closed, which deletes the node.
        """
        if self._released:
            return
        self._released = True
        if self._client.is_of_other_process(self.session):
            return
        self._client.untrack(self)
        if self._is_lost():
            return
        if self.session.is_tainted:
            self._client.end_session(self.session)
            return
        try:
            self.session.delete(self._path)
        except HoodooError:
            self._client.end_session(
                self.session
            )  # else our node stays as long as this process lives
            raise

    def on_event(self, event: Any) -> None:
        """Handle our node's watch; any event but an end makes the next check ask the server."""
        if event.type == "DELETED":
            self._gone = True

    def on_gone(self) -> None:
        """Mark the holding as lost: the node was gone before it could be watched."""
        self._gone = True

    def _is_lost(self) -> bool:
        return self._gone or self.session.is_lost


class ZooKeeperQueueEntry:
    """One waiter's node in the queue."""

    def __init__(self, client: ZooKeeperClient, owner_text: str) -> None:
        self._client = client
        self._owner_text = owner_text
        self._session: ZkSession | None = None
        self._unique = ""
        self._token: int | None = None  # of our node, while known from the server's answer
        self._own: str | None = None
        self._ahead: str | None = None
        self._checked_ms = 0
        self._sent = 0  # creates in this session
        self._is_doubtful = False  # the queue does not show exactly one node per create
        self._changed = threading.Event()

    def try_acquire(self) -> ZooKeeperHolding | None:
        """
        Enter the queue on the first call; take the lock if our node is first, else return None.

        At most two round trips if free or newly queued, none while the watch is quiet.

        Raises:
            UnavailableError: No answer or no connection.
            UnsafeSetupError: The servers refuse us, or kazoo is missing.
        """
        clock = self._client.clock
        asked_ms = clock.monotonic_ms()
        if self._is_quiet(asked_ms):
            return None
        if self._changed.is_set():
            self._changed.clear()  # before the read, so that no event is missed
            self._ahead = None
        session = self._client.session()
        for _ in range(CHECKS_MAX):
            asked_ms = clock.monotonic_ms()
            names = self._list_queue(session)
            own = own_nodes(names, self._unique)
            self._is_doubtful = not self._sent == len(own) == 1
            if not own:
                raise UnavailableError(
                    "the node of this lock vanished from its queue: find the process that "
                    f"deletes it: {self._client.path}",
                    path=self._client.path,
                )
            self._own = own[0]
            ahead = predecessor(names, own[0])
            if ahead is None:
                return self._hold(session, own[0], asked_ms)
            self._checked_ms = asked_ms
            if ahead == self._ahead:
                return None
            if session.read(f"{self._client.path}/{ahead}", self._on_event) is not None:
                self._ahead = ahead
                return None
        self._changed.set()
        return None

    def wait(self, duration_ms: int) -> None:
        """Wait until the node ahead is gone, the connection is interrupted, or the time is over."""
        if self._ahead is None:
            # No watch wakes us: no connection, or the queue changed too fast.
            self._client.clock.sleep_ms(duration_ms)
            return
        self._changed.wait(duration_ms / 1000)

    def leave(self) -> None:
        """Delete our node; if that is not certain, end its session."""
        session, self._session = self._session, None
        if session is None or session.is_lost or self._client.is_of_other_process(session):
            return
        if self._is_doubtful or self._own is None:
            self._client.end_session(session)
            return
        try:
            session.delete(f"{self._client.path}/{self._own}")
        except HoodooError:
            self._client.end_session(session)

    def _is_quiet(self, now_ms: int) -> bool:
        session = self._session
        return (
            self._ahead is not None
            and not self._changed.is_set()
            and session is not None
            and session.is_connected
            and now_ms - self._checked_ms < RECHECK_MS
        )

    def _list_queue(self, session: ZkSession) -> tuple[str, ...]:
        """Return the names in the queue; enter it first if our node is not there."""
        if session is self._session:
            names = session.children(self._client.path)
            if own_nodes(names, self._unique):
                return names
        # A new name for every session: a slow server may still show the node of an old one. In the
        # same session the name stays, so that a late create is recognised.
        if session is not self._session:
            self._session = session
            self._unique = self._client.ids.uuid()
            self._ahead = self._own = self._token = None
            self._sent = 0
        self._sent += 1
        self._is_doubtful = True
        queued, names = session.enqueue(
            self._client.path,
            node_prefix(self._unique),
            node_text(self._client.application, self._owner_text),
        )
        self._own, self._token = queued.name, queued.czxid
        return names

    def _hold(self, session: ZkSession, own: str, asked_ms: int) -> ZooKeeperHolding:
        path = f"{self._client.path}/{own}"
        token = self._token
        if token is None or own != self._own:
            found = session.read(path)
            if found is None:
                raise UnavailableError(
                    f"the node of this lock vanished from its queue; try again: {path}", path=path
                )
            token = found[1]
        if self._is_doubtful:
            session.is_tainted = True  # a second node of ours may still appear
        holding = ZooKeeperHolding(self._client, session, path, token=token, seen_ms=asked_ms)
        self._client.track(holding)
        self._session = None
        session.watch_later(path, holding.on_event, holding.on_gone)
        return holding

    def _on_event(self, _event: Any) -> None:
        self._changed.set()


# ---- The client of the lock
#
# A waiter is an ephemeral, numbered node in the queue under the lock's node. The first one holds
# the lock, and a node ends with the session that made it. Invariants:
#
# - One acquire has one node. A waiter watches only the node ahead, wakes when that is gone, and
#   deletes its own node however the acquire ends. That keeps the server's fairness.
# - A holding counts only as long as the server must keep our session, on the monotonic clock from
#   before the last confirmed request: a process that slept notices it.
# - After an interrupted connection a holding is unproven: it is not held until its node was read
#   again. A lost session makes it lost for good.
# - A request without an answer may leave a node in a session. The client then closes the session
#   instead of using it again, and the node ends with it.
#
# The fencing token is the node's creation id (czxid). It grows over the whole ensemble, while the
# number in the name restarts when the lock's node is deleted.


class ZooKeeperClient:
    """
    The client of one lock: at most one session at a time, opened at the first use.

    Args:
        settings: Servers, node and times.
        clock: Clock port.
        ids: Names our nodes, and identifies the process.
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
        """Twice the request time, which follows the session time that the servers granted."""
        session = self._session
        session_ms = self._settings.session_timeout_ms if session is None else session.lease_ms
        return 2 * request_timeout_ms(session_ms)

    def enter(self, owner_text: str) -> ZooKeeperQueueEntry:
        """Return an entry for one acquire; its first attempt enters the queue."""
        return ZooKeeperQueueEntry(self, owner_text)

    def try_acquire(self, owner_text: str) -> ZooKeeperHolding | None:
        """
        Try once without waiting: enter the queue, and leave it if another node is ahead.

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
        """Return the text of the first node of the queue, or None without a node."""
        first = self._first()
        return None if first is None else owner_in(first[1])

    def break_lock(self, holder_text: str) -> bool:
        """
        Delete the first node of the queue if it belongs to the named holder; return whether it did.

        A node's name is used once and its text never changes, so it deletes exactly the node it
        read.
        """
        first = self._first()
        if first is None or owner_in(first[1]) != holder_text:
            return False
        return self.session().delete(f"{self.path}/{first[0]}")

    def close(self) -> None:
        """End the session and with it all our nodes; a second call does nothing."""
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
        Return the live session; open one if there is none.

        Raises:
            UnavailableError: No server accepted us within the connection time.
            UnsafeSetupError: The servers refuse us, or kazoo is missing.
        """
        self._forget_after_fork()
        with self._guard:
            known = self._session
            if known is None or known.is_lost or known.is_tainted:
                known = self._session = self._open_session()
            return known

    def is_of_other_process(self, session: ZkSession) -> bool:
        """Return whether the session belongs to the process that forked this one."""
        return session.pid != self.ids.identity().pid

    def track(self, holding: ZooKeeperHolding) -> None:
        """Record a holding whose session must stay open."""
        session = holding.session
        with self._guard:
            self._holdings.add(holding)
        session.watch_over(lambda: self._least_left_ms(session))

    def untrack(self, holding: ZooKeeperHolding) -> None:
        """Delete the record of a released holding."""
        with self._guard:
            self._holdings.discard(holding)

    def end_session(self, session: ZkSession) -> None:
        """
        End a session that may contain a node of ours, now or together with its holding.

        Threads that share this client share its session; the thread that holds the lock keeps it.
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
        """Return name and text of the first node."""
        session = self.session()
        for _ in range(CHECKS_MAX):
            names = queue_order(session.children(self.path))
            if not names:
                return None
            found = session.read(f"{self.path}/{names[0]}")
            if found is not None:
                return names[0], found[0]
        return None

    def _forget_after_fork(self) -> None:
        """Drop the parent's session: a forked child has no kazoo threads and no right to it."""
        pid = self.ids.identity().pid
        if pid != self._pid:
            self._pid, self._guard, self._session = pid, threading.Lock(), None
            self._holdings = set()

    def _open(self) -> ZkSession:
        return _session_class()(self._settings, clock=self.clock, pid=self._pid)


def _session_class() -> type[ZkSession]:
    with needs_extra("the ZooKeeper lock needs the package kazoo", "zookeeper"):
        from lockproviders.zookeeper.session import ZkSession
    return ZkSession


def _check_sasl(mechanism: str) -> None:
    """Report a missing package at once; kazoo would only fail at the handshake."""
    with needs_extra("SASL with ZooKeeper needs the package pure-sasl", "zookeeper-sasl"):
        import puresasl  # noqa: F401
    if mechanism == "GSSAPI" and find_spec("kerberos") is None:
        raise MissingExtraError(
            "SASL by GSSAPI needs the package kerberos, too: "
            "pip install 'hoodoo[zookeeper-sasl]' kerberos",
            extra="zookeeper-sasl",
        )


def _client(context: LockContext, *, implicit: bool) -> ZooKeeperClient:
    _session_class()  # report a missing package at once
    settings = ZooKeeperSettings.from_context(context, implicit=implicit)
    if settings.sasl is not None:
        _check_sasl(settings.sasl)
    return ZooKeeperClient(settings, clock=context.clock, ids=context.ids)


_JAVA = "org.apache.hudi.client.transaction.lock."

ENTRY = LockProviderEntry(
    name="zookeeper",
    factory=partial(_client, implicit=False),
    capabilities=SERVER_SHARED_WITH_JAVA,
    jvm_class_names=(_JAVA + "ZookeeperBasedLockProvider",),
    options=tuple(ZooKeeperOptions.options.values()),
    # The watch wakes a waiter; polling is for servers that do not answer.
    poll_first_ms=500,
    poll_max_ms=2_000,
)

IMPLICIT_ENTRY = replace(
    ENTRY,
    name="zookeeper_implicit",
    factory=partial(_client, implicit=True),
    jvm_class_names=(_JAVA + "ZookeeperBasedImplicitBasePathLockProvider",),
    options=(*ZooKeeperOptions.options.values(), ADDRESS_OPTION),
)

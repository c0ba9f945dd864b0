"""
One ZooKeeper session through kazoo: bounded requests, and the state of its life.

It hides three properties of kazoo. Requests have no time limit. After a lost session kazoo silently
opens a new one. It does not publish the negotiated session time. Invariants:

- An object is one session. When the server ends it, the object is lost for good, and its threads
  and connection are closed; a new session is a new object.
- Every request is answered, or fails with ``UnavailableError`` after ``request_timeout_ms``; it may
  still have been executed then.
- kazoo renews a session as long as the process lives. A lease that is not renewed ends all the
  same: its session is closed when the lease is over.
- Callbacks run on kazoo's threads and must not block.

Importing this module needs kazoo; ``client.py`` imports it when a client is made.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo import exceptions as refusals
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from lockproviders.zookeeper.settings import ZooKeeperSettings, request_timeout_ms
from timeline.errors import UnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock
from timeline.system import is_loopback

_LOG = logging.getLogger("hoodoo.lock")

# Without handlers, Python prints kazoo's warnings to stderr; the errors of the lock say the same.
# Handlers of the program, of kazoo's logger or of the root logger, get them as before.
logging.getLogger("kazoo").addHandler(logging.NullHandler())

# kazoo waits for two thirds of the negotiated time before it gives up a server.
READ_SHARE = 1.5
# Used if the negotiated time cannot be read: even a server with short ticks grants this.
ASSUMED_LEASE_MS = 4_000
# The longest pause between two attempts to reconnect, as a part of the session. One unanswered
# attempt and one pause end within the time that a lease check waits.
RECONNECT_SHARE = 12

Watch = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Queued:
    """A node of ours that the server reports as created."""

    name: str
    czxid: int


class ZkSession:
    """
    One session, connected when the constructor returns.

    Args:
        settings: Servers, times, identity.
        clock: Bounds the requests.
        pid: The process it belongs to.
        make: Builds the kazoo client; replaced in tests.

    Raises:
        UnavailableError: No server accepted us within the connection time.
        UnsafeSetupError: The servers refuse our identity.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        *,
        clock: Clock,
        pid: int,
        make: Callable[[ZooKeeperSettings], Any] | None = None,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self.pid = pid
        self.is_lost = False
        self.is_tainted = False  # a node of ours may remain in it: end it, do not use it again
        self.drops = 0  # how often the connection was interrupted
        self.lease_ms = min(settings.session_timeout_ms, ASSUMED_LEASE_MS)
        self._ready = threading.Event()
        self._guard = threading.Lock()
        self._closer: Any = None
        self._is_refused = False
        self._ended = threading.Event()
        self._watchdog: Any = None
        self._client = (make or _kazoo_client)(settings)
        self._is_measured = self._measure()
        self._bound_reconnects()
        self._client.add_listener(self._on_state)
        try:
            self._client.start_async()
            is_in = self._ready.wait(settings.connection_timeout_ms / 1000) and not self.is_lost
        except BaseException:
            self.end(wait_ms=0)
            raise
        if not is_in:
            self.end(wait_ms=0)
            raise self._not_let_in()

    @property
    def request_timeout_ms(self) -> int:
        """Time limit of one request."""
        return request_timeout_ms(self.lease_ms)

    @property
    def is_connected(self) -> bool:
        """Whether a server answers now."""
        return not self.is_lost and bool(self._client.connected)

    def enqueue(self, folder: str, prefix: str, data: bytes) -> tuple[Queued, tuple[str, ...]]:
        """
        Create a node in the queue, with missing parents, and list the queue after that.

        Both requests are sent together, so that taking a free lock costs one round trip.
        """
        for _ in range(2):
            created, names = self._answers(
                self._client.create_async(
                    f"{folder}/{prefix}", data, ephemeral=True, sequence=True, include_data=True
                ),
                self._client.get_children_async(folder),
            )
            if created is not None:
                path, stat = created
                return Queued(path.rpartition("/")[2], stat.czxid), tuple(names or ())
            self._make_folders(folder)
        if self._settings.root and self.read("/") is None:
            raise UnsafeSetupError(
                f"the root in {self._settings.url_key} does not exist in ZooKeeper: create "
                f"{self._settings.root}, or omit it: {self._settings.connect_text}",
                kind="lock_root",
                key=self._settings.url_key,
                server=self._settings.servers_text,
                path=self._settings.root,
            )
        raise UnavailableError(
            "another process deletes the lock's node again and again: find and stop that "
            f"process: {folder}",
            path=folder,
        )

    def children(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, none if it does not exist."""
        (names,) = self._answers(self._client.get_children_async(folder))
        return tuple(names or ())

    def read(self, path: str, watch: Watch | None = None) -> tuple[bytes, int] | None:
        """Return text and creation id of a node, or None without it; ``watch`` receives its end."""
        (answer,) = self._answers(self._client.get_async(path, watch=watch))
        return None if answer is None else (answer[0], answer[1].czxid)

    def watch_later(self, path: str, watch: Watch, on_gone: Callable[[], None]) -> None:
        """Watch a node without waiting for the answer; call ``on_gone`` if it is already gone."""

        def answered(result: Any) -> None:
            if isinstance(result.exception, refusals.NoNodeError):
                on_gone()

        self._client.get_async(path, watch=watch).rawlink(answered)

    def delete(self, path: str) -> bool:
        """Delete a node; return False if it was gone."""
        (answer,) = self._answers(self._client.delete_async(path))
        return answer is not None

    def wait_connected(self, duration_ms: int) -> bool:
        """Wait until the connection is back; return False if it is not, or the session ended."""
        end_ms = self._clock.monotonic_ms() + duration_ms
        while not self.is_connected:
            left_ms = end_ms - self._clock.monotonic_ms()
            if self.is_lost or left_ms <= 0:
                return False
            self._clock.sleep_ms(min(left_ms, 10))
        return True

    def end(self, *, wait_ms: int) -> bool:
        """
        Close the session, which deletes its nodes; return True if the server confirms it in time.

        If a server does not answer, a kazoo thread waits for it. Its nodes end with the session
        time, because the session is no longer renewed.
        """
        with self._guard:
            self.is_lost = True
            self._ended.set()
            if self._closer is None:
                self._closer = self._client.handler.spawn(self._shut)
        if wait_ms > 0 and self._closer is not threading.current_thread():
            self._closer.join(wait_ms / 1000)
        return not self._closer.is_alive()

    def watch_over(self, least_left_ms: Callable[[], int | None]) -> None:
        """
        Start the thread that ends the session when a lease in it is over; only once.

        Args:
            least_left_ms: Time left of the lease that ends first, None if none is held.
        """
        if self._watchdog is None:

            def watch() -> None:
                while not self._ended.wait(self.end_overdue(least_left_ms()) / 1000):
                    pass

            self._watchdog = self._client.handler.spawn(watch)

    def end_overdue(self, left_ms: int | None) -> int:
        """End the session if no time is left; return the time until the next check, in ms."""
        # A lease taken during the pause still has half of its time at the next check.
        pause_ms = max(1, self.lease_ms // 2)
        if left_ms is None or self.is_lost:
            return pause_ms
        if left_ms <= 0:
            _LOG.warning(
                "a lock in ZooKeeper was neither renewed nor released in time; its session is "
                "closed: %s",
                self._settings.lock_identity,
            )
            self.end(wait_ms=0)
        return min(pause_ms, max(left_ms, 1))

    def _shut(self) -> None:
        try:
            self._client.stop()
        except Exception as error:  # noqa: BLE001  whatever it is, the session ends by itself
            _LOG.debug("a ZooKeeper session did not close correctly: %s", error)
        with contextlib.suppress(Exception):
            self._client.close()

    def _measure(self) -> bool:
        """Read the granted session time from the handshake, since kazoo does not return it."""
        handshake = getattr(self._client, "_connection", None)
        connect = getattr(handshake, "_connect", None)
        if handshake is None or connect is None:
            return False

        def measured(*arguments: Any) -> Any:
            try:
                answer = connect(*arguments)
            except _NOT_LET_IN as error:
                # kazoo would let these end its thread silently.
                raise refusals.AuthFailedError from error
            with contextlib.suppress(TypeError, IndexError):
                self.lease_ms = round(answer[0] * READ_SHARE)
            self._ready.set()
            return answer

        handshake._connect = measured  # noqa: SLF001  no public way, see ASSUMED_LEASE_MS
        return True

    def _bound_reconnects(self) -> None:
        """
        Limit an attempt to reconnect to the time of a request; kazoo allows the whole session.

        A server may accept a connection while it starts and never answer it, and packets to a host
        that is gone may be dropped. The attempt would outlast the lease.
        """

        def limit_s(timeout_s: float) -> float:
            is_first = not self._ready.is_set()  # no lease yet, and the caller limits it
            return timeout_s if is_first else min(timeout_s, self.request_timeout_ms / 1000)

        handler = getattr(self._client, "handler", None)
        connect = getattr(handler, "create_connection", None)
        if handler is not None and connect is not None:
            handler.create_connection = lambda *arguments, timeout, **named: connect(
                *arguments, timeout=limit_s(timeout), **named
            )
        handshake = getattr(self._client, "_connection", None)
        invoke = getattr(handshake, "_invoke", None)
        if handshake is not None and invoke is not None:
            handshake._invoke = lambda timeout, *arguments, **named: invoke(  # noqa: SLF001
                limit_s(timeout), *arguments, **named
            )

    def _on_state(self, state: str) -> None:
        """Handle a state change; runs on kazoo's connection thread and must not block."""
        if state == "CONNECTED":
            if not self._is_measured:
                self._ready.set()
        elif state == "SUSPENDED":
            self.drops += 1
        else:
            self._is_refused = self._client.client_state == "AUTH_FAILED"
            self.end(wait_ms=0)  # else kazoo would open another session by itself
            self._ready.set()

    def _make_folders(self, folder: str) -> None:
        path = ""
        for part in folder.split("/")[1:]:
            path += f"/{part}"
            self._answers(self._client.create_async(path, b""))

    def _answers(self, *sent: Any) -> Sequence[Any]:
        """Return the answers to sent requests; None for a node that is missing or exists already."""
        end_ms = self._clock.monotonic_ms() + self.request_timeout_ms
        answers = []
        for one in sent:
            left_ms = max(1, end_ms - self._clock.monotonic_ms())
            try:
                answers.append(one.get(timeout=left_ms / 1000))
            except (refusals.NoNodeError, refusals.NodeExistsError):
                answers.append(None)
            except _ACCESS as error:
                raise self._access_error(error) from error
            except (refusals.KazooException, KazooTimeoutError) as error:
                raise self._unavailable(error) from error
        if self.is_lost:
            # kazoo may have executed it in a new session, which is not wanted.
            raise self._unavailable(refusals.SessionExpiredError())
        return answers

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            "ZooKeeper did not answer a request: check its servers, or raise "
            f"hoodie.write.lock.zookeeper.session_timeout_ms: {self._settings.servers_text}: "
            f"{type(error).__name__} within {self.request_timeout_ms} ms",
            server=self._settings.servers_text,
            cause=type(error).__name__,
        )

    def _access_error(self, error: Exception) -> UnsafeSetupError:
        return UnsafeSetupError(
            "ZooKeeper denies access to the lock's node: give this identity the rights create, "
            "read and delete there, or use the identity that created it: "
            f"{self._settings.servers_text}{self._settings.path}: {type(error).__name__}",
            kind="lock_access",
            server=self._settings.servers_text,
            path=self._settings.path,
            cause=type(error).__name__,
        )

    def _not_let_in(self) -> UnavailableError | UnsafeSetupError:
        if self._is_refused:
            return self._access_error(refusals.AuthFailedError())
        return UnavailableError(
            "no ZooKeeper server answered within "
            "hoodie.write.lock.zookeeper.connection_timeout_ms or hoodoo.lock.deadline.ms: check "
            f"its servers and {self._settings.url_key}: {self._settings.servers_text} within "
            f"{self._settings.connection_timeout_ms} ms",
            server=self._settings.servers_text,
            waited_ms=self._settings.connection_timeout_ms,
        )


_NOT_LET_IN = (refusals.SASLException, refusals.SessionClosedRequireSaslError)
_ACCESS = (
    refusals.AuthFailedError,
    refusals.InvalidACLError,
    refusals.NoAuthError,
    refusals.NoChildrenForEphemeralsError,
    refusals.UnimplementedError,
)


def _kazoo_client(settings: ZooKeeperSettings) -> Any:
    longest_ms = min(settings.reconnect_max_ms, settings.session_timeout_ms // RECONNECT_SHARE)
    first_ms = min(settings.reconnect_first_ms, longest_ms)
    identity = settings.identity()
    is_known = identity is not None or settings.sasl is not None
    if not is_known:
        _warn_of_open_nodes(settings)
    return KazooClient(
        hosts=settings.connect_text,
        timeout=settings.session_timeout_ms / 1000,
        # Reconnecting must be quick enough to keep the session, and outlast it. Then it ends, so
        # that an idle lock does not keep connecting to a dead ensemble (SEC17).
        connection_retry=KazooRetry(
            max_tries=max(settings.reconnect_tries, 2 * RECONNECT_SHARE),
            delay=first_ms / 1000,
            backoff=2,
            max_jitter=0.2,
            max_delay=longest_ms / 1000,
        ),
        command_retry=KazooRetry(max_tries=0),
        default_acl=CREATOR_ALL_ACL if is_known else None,
        auth_data=[("digest", identity)] if identity and not settings.sasl else None,
        sasl_options=_sasl_options(settings.sasl, identity),
        use_ssl=settings.tls,
        ca=settings.tls_ca,
        certfile=settings.tls_certificate,
        keyfile=settings.tls_private_key,
        verify_certs=True,
        check_hostname=settings.tls,
    )


def _sasl_options(mechanism: str | None, identity: str | None) -> dict[str, str] | None:
    if mechanism is None:
        return None
    if identity is None:
        return {"mechanism": mechanism}
    user, _, password = identity.partition(":")
    return {"mechanism": mechanism, "username": user, "password": password}


def _warn_of_open_nodes(settings: ZooKeeperSettings) -> None:
    """Warn once per process (SEC7), but not about servers on this machine."""
    is_remote = not all(is_loopback(one.rpartition(":")[0]) for one in settings.servers)
    if is_remote and not _WARNED:
        _WARNED.append(settings.servers_text)
        _LOG.warning(
            "every user of ZooKeeper can remove this lock's nodes: give the writers an identity "
            "with hoodoo.lock.zookeeper.identity.file: %s",
            settings.servers_text,
        )


_WARNED: list[str] = []

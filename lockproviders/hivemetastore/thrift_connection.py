"""
The Thrift connection to a Hive Metastore, and the five requests of its lock.

The generated client (pymetastore) is imported with the first connection, so the provider can be
listed without it. Rules of this module:

- It has one open connection at a time, and tries the addresses in order, the next one after a
  failure. It repeats nothing: the caller knows which request may be sent twice.
- It closes a connection that failed, because a late answer would be read as the next one.
- TLS checks the server's name and never falls back to plain (SEC9); answers have a size limit.
- It is not for several threads at once; the client holds its mutex around every request.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lockproviders.hivemetastore.database import USER, LockName, MetastoreLockRow
from timeline.errors import (
    HoodooError,
    LeaseLostError,
    SettingError,
    UnavailableError,
    UnsafeSetupError,
    needs_extra,
)

DEFAULT_PORT = 9083
ANSWER_BYTES_MAX = 16 * 1024 * 1024
ANSWER_ROWS_MAX = 100_000
TIMEOUT_SETTING = "hive.txn.timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a metastore."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How to verify the server's identity."""

    ca_file: str  # empty: the system's


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The answer to a request for the lock."""

    lock_id: int
    acquired: bool  # else it is queued, or refused


def parse_uris(key: str, uris: tuple[str, ...], layer: str) -> tuple[Address, ...]:
    """
    Parse ``thrift://host:port`` texts into addresses; the default port is 9083.

    Raises:
        SettingError: There is none, one is not such an address, or it names a link-local host,
            where cloud machines serve their credentials (SEC11).
    """
    addresses = []
    for uri in uris or ("",):
        address = _address_in(uri)
        if address is None:
            raise SettingError(
                "the metastore's addresses have the form thrift://host:port, several with commas "
                f"between them; correct {key}, which is {uri[:200]!a} (from {layer})",
                kind="setting_value" if uri else "setting_missing",
                key=key,
                value=uri[:200],
                layer=layer,
                suggestion="thrift://metastore.example.com:9083",
            )
        addresses.append(address)
    return tuple(addresses)


def _address_in(uri: str) -> Address | None:
    """Return the address in a text; None if it has more or fewer parts than a host and port."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        return None
    more = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme != "thrift" or more or host is None or _is_link_local(host):
        return None
    return Address(host=host, port=port)


def _is_link_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_link_local or host.lower() == "fd00:ec2::254"


class ThriftConnection:
    """
    A connection to a metastore's Thrift service.

    Args:
        addresses: Tried in this order.
        tls: None for a plain connection.

    Raises:
        MissingExtraError: The optional packages are not installed.
    """

    ca_key = "hoodoo.lock.hivemetastore.tls.ca"  # the option of the authority's file

    def __init__(self, addresses: tuple[Address, ...], tls: Tls | None) -> None:
        self.messages = _messages()
        self._addresses = addresses
        self._turn = 0
        self._tls = tls
        self._transport: Any = None
        self._service: Any = None

    @property
    def is_open(self) -> bool:
        """Whether a connection is open; it may have broken unnoticed."""
        return self._service is not None

    def connect(self, timeout_ms: int) -> None:
        """
        Open a connection to the next address that answers.

        Raises:
            UnavailableError: None of them answers.
            UnsafeSetupError: The server's certificate could not be verified.
        """
        failures = []
        for _ in self._addresses:
            try:
                self._open(self._addresses[self._turn], timeout_ms)
            except ssl.SSLCertVerificationError as error:
                raise UnsafeSetupError(
                    f"the metastore's TLS certificate could not be verified: set {self.ca_key} to the "
                    f"file of its authority: {self.here}: {error.verify_message}",
                    kind="tls",
                    address=self.here,
                ) from error
            except OSError as error:
                failures.append(f"{self.here} ({error.strerror or type(error).__name__})")
                self._next()
            else:
                return
        raise UnavailableError(
            f"no metastore answers: start it, or correct its addresses: {', '.join(failures)}",
            addresses=failures,
        )

    def limit(self, timeout_ms: int) -> None:
        """Set the time limit of every later request of this connection."""
        if self._transport is not None:
            self._transport.setTimeout(timeout_ms)

    def drop(self) -> None:
        """Close the connection without a request."""
        transport, self._transport, self._service = self._transport, None, None
        if transport is not None:
            transport.close()

    @property
    def here(self) -> str:
        """The address of the connection."""
        return str(self._addresses[self._turn])

    def _next(self) -> None:
        self._turn = (self._turn + 1) % len(self._addresses)

    def _open(self, address: Address, timeout_ms: int) -> None:
        made = socket.create_connection((address.host, address.port), timeout_ms / 1000)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is not None:
                believed = ssl.create_default_context(cafile=self._tls.ca_file or None)
                made = believed.wrap_socket(made, server_hostname=address.host)
        except BaseException:
            made.close()
            raise
        self._transport, self._service = self.messages.open(made, address, timeout_ms)

    def call(
        self, request: str, values: tuple[Any, ...], expected: tuple[type[Exception], ...] = ()
    ) -> Any:
        """
        Send one request; raise expected answers unchanged and keep the connection for them.

        Raises:
            UnavailableError: There is no connection, or no usable answer.
        """
        if self._service is None:
            raise UnavailableError(
                "there is no connection to a metastore: check the server and the network, then "
                "try again"
            )
        try:
            return getattr(self._service, request)(*values)
        except expected:
            raise
        except Exception as error:
            here = self.here
            self.drop()
            self._next()
            raise self.meaning(error, request, here) from error
        except BaseException:
            self.drop()  # interrupted between request and answer
            raise

    def meaning(self, error: Exception, request: str, here: str) -> HoodooError:
        """Return the error to raise for a failed request to an address."""
        if isinstance(error, self.messages.ApplicationError):
            return UnavailableError(
                f"the metastore reports an error: read its log: {request} at {here}: "
                f"{message_of(error)}",
                address=here,
            )
        return UnavailableError(
            "the metastore did not answer: check the server and the network, then try again: "
            f"{request} at {here}: {type(error).__name__}: {message_of(error)}",
            address=here,
        )


def message_of(error: Exception) -> str:
    """Return the text of an answer of the metastore, cut to a length that messages can show."""
    return str(getattr(error, "message", None) or error)[:300]


class ThriftWire(ThriftConnection):
    """The requests of the lock: five, and their errors. Arguments and errors: as its base."""

    def lease_text(self) -> str:
        """Return the server's hive.txn.timeout as it spells it, empty if not reported."""
        types = self.messages.types
        unanswered = (types.ConfigValSecurityException, self.messages.ApplicationError)
        try:
            value = self.call("get_config_value", (TIMEOUT_SETTING, ""), expected=unanswered)
        except unanswered:
            return ""
        return str(value or "")

    def lock(self, name: LockName, host: str, agent: str) -> Granted:
        """
        Request the lock exactly as Java's provider does: exclusive, the table, no transaction.

        Raises:
            UnavailableError: It may have happened, or happen later.
            UnsafeSetupError: This metastore has no locks.
        """
        types = self.messages.types
        component = types.LockComponent(
            type=types.LockType.EXCLUSIVE,
            level=types.LockLevel.TABLE,
            dbname=name.database,
            tablename=name.table,
        )
        request = types.LockRequest(
            component=[component], txnid=0, user=USER, hostname=host, agentInfo=agent
        )
        answer = self.call("lock", (request,))
        acquired = answer.state == types.LockState.ACQUIRED
        return Granted(lock_id=answer.lockid, acquired=acquired)

    def heartbeat(self, lock_id: int) -> None:
        """
        Move the end back.

        Raises:
            LeaseLostError: The metastore no longer knows the lock.
            UnavailableError: No answer.
        """
        types = self.messages.types
        gone = (types.NoSuchLockException, types.NoSuchTxnException, types.TxnAbortedException)
        request = types.HeartbeatRequest(lockid=lock_id, txnid=0)
        try:
            self.call("heartbeat", (request,), expected=gone)
        except gone as error:
            raise LeaseLostError(
                f"the metastore no longer has the lock: stop this write: lock id {lock_id}",
                lock_id=lock_id,
            ) from error

    def unlock(self, lock_id: int) -> None:
        """
        Withdraw a request or release the lock; one that is gone is no error.

        Raises:
            UnavailableError: No answer.
        """
        types = self.messages.types
        gone = (types.NoSuchLockException, types.TxnOpenException)
        try:
            self.call("unlock", (types.UnlockRequest(lockid=lock_id),), expected=gone)
        except gone:
            return

    def show(self, name: LockName) -> Sequence[MetastoreLockRow]:
        """
        Return all requests for this lock.

        Raises:
            UnavailableError: No answer.
        """
        types = self.messages.types
        request = types.ShowLocksRequest(dbname=name.database, tablename=name.table)
        answer = self.call("show_locks", (request,))
        return [
            MetastoreLockRow(
                lock_id=row.lockid,
                acquired=row.state == types.LockState.ACQUIRED,
                user=row.user or "",
                host=row.hostname or "",
                agent=row.agentInfo or "",
            )
            for row in answer.locks or ()
            # Databases differ in case sensitivity; the lock manager is case-sensitive.
            if (row.dbname, row.tablename) == (name.database, name.table)
        ]

    def meaning(self, error: Exception, request: str, here: str) -> HoodooError:
        """Return the error to raise for a failed request to an address."""
        message = message_of(error)
        if isinstance(error, self.messages.ApplicationError):
            if "operationType=UNSET" in message:
                return UnsafeSetupError(
                    "this metastore has hive.in.test=true and rejects the locks of Hudi writers: "
                    f"set it to false: {here}",
                    kind="no_locks",
                    address=here,
                )
            if error.type in self.messages.unknown_requests or "nsupported" in message:
                return UnsafeSetupError(
                    "this metastore has no locks (Glue and Dataproc have none): choose another "
                    f"lock provider: {here} does not know the request {request}: {message}",
                    kind="no_locks",
                    address=here,
                )
            return UnavailableError(
                "the metastore reports an error: read its log; often its database is down or "
                f"lacks lock tables: {request} at {here}: {message}",
                address=here,
            )
        return super().meaning(error, request, here)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """The parts of thrift and pymetastore that are used, found at run time."""

    types: Any
    ApplicationError: Any
    refusals: tuple[type[Exception], ...]  # answers by which the metastore refuses a request
    unknown_requests: frozenset[int]
    open: Callable[[socket.socket, Address, int], tuple[Any, Any]]


def _messages() -> _Messages:
    with needs_extra("a Hive Metastore needs further packages", "hive"):
        from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.Thrift import TApplicationException
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport

    def open_over(made: socket.socket, address: Address, timeout_ms: int) -> tuple[Any, Any]:
        transport = TSocket(address.host, address.port)
        transport.setHandle(made)
        transport.setTimeout(timeout_ms)
        protocol = TBinaryProtocol(
            TBufferedTransport(transport),
            string_length_limit=ANSWER_BYTES_MAX,
            container_length_limit=ANSWER_ROWS_MAX,
        )
        return transport, ThriftHiveMetastore.Client(protocol)

    return _Messages(
        types=ttypes,
        ApplicationError=TApplicationException,
        refusals=(
            ttypes.MetaException,
            ttypes.NoSuchObjectException,
            ttypes.AlreadyExistsException,
            ttypes.InvalidObjectException,
            ttypes.InvalidOperationException,
            ttypes.InvalidInputException,
        ),
        unknown_requests=frozenset(
            {
                TApplicationException.UNKNOWN_METHOD,
                TApplicationException.WRONG_METHOD_NAME,
                TApplicationException.UNSUPPORTED_CLIENT_TYPE,
            }
        ),
        open=open_over,
    )

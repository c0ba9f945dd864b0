"""
ZooKeeper's settings: Hudi's keys with Hudi's defaults, and ours where Hudi has none.

Hudi has no keys for TLS or for an identity (its Java client reads system properties), so these are
ours. A property names the file of a secret and never contains the secret (SEC5).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from lockproviders.hookspecs import LockContext
from lockproviders.settings import (
    ADDRESS_OPTION,
    MS_MAX,
    LockSettings,
    hashed_address,
    path_hash,
)
from lockproviders.zookeeper.queue import hosts_identity, lock_path, split_hosts
from timeline.errors import UnsafeSetupError
from timeline.properties.options import (
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
)

_HUDI = "hoodie.write.lock."
_OURS = "hoodoo.lock.zookeeper."

IMPLICIT_FOLDER = "/tmp"  # noqa: S108  a node of ZooKeeper's, named by Java
IMPLICIT_KEY = "lock_key"
NAME_KEY = "hoodie.table.name"

REQUEST_SHARE = 6  # of the session: time limit of one request, so that the margin is a third
REQUEST_MS_MIN = 250
REQUEST_MS_MAX = 10_000
SECRET_BYTES_MAX = 4_096
_CONNECT_MS_MIN = 1_000  # also with a deadline of 0: an acquire makes one attempt

_Count = Annotated[int, Field(ge=0, le=MS_MAX)]
_Positive = Annotated[int, Field(ge=1, le=MS_MAX)]


def request_timeout_ms(session_ms: int) -> int:
    """Return the time limit of one request in a session of this length."""
    return min(max(session_ms // REQUEST_SHARE, REQUEST_MS_MIN), REQUEST_MS_MAX)


class ZooKeeperOptions(OptionSettings):
    """The options as they are set; ``ZooKeeperSettings`` is made of them."""

    url: str | None = option(
        _HUDI + "zookeeper.url",
        None,
        "Servers of ZooKeeper, host:port,host:port,..., with an optional root /path; required.",
    )
    port: str | None = option(
        _HUDI + "zookeeper.port",
        None,
        "Not used, as in Java: put ports into the url. A server without a port has 2181.",
    )
    base_path: str | None = option(
        _HUDI + "zookeeper.base_path",
        None,
        "Parent node of the lock's node; required, except for the implicit variant.",
    )
    lock_key: str | None = option(
        _HUDI + "zookeeper.lock_key",
        None,
        "The lock's node under the base path; the table's name by default.",
    )
    session_timeout_ms: Annotated[_Positive, OptionKind.MS] = option(
        _HUDI + "zookeeper.session_timeout_ms",
        60_000,
        "Session time, which the servers keep within their own limits; a dead holder "
        "blocks that long.",
    )
    connection_timeout_ms: Annotated[_Positive, OptionKind.MS] = option(
        _HUDI + "zookeeper.connection_timeout_ms",
        15_000,
        "Longest wait for the first connection of a session.",
    )
    reconnect_tries: _Count = option(
        _HUDI + "num_retries",
        15,
        "Attempts to connect to ZooKeeper again; always enough to keep a session.",
    )
    reconnect_first_ms: Annotated[_Count, OptionKind.MS] = option(
        _HUDI + "wait_time_ms_between_retry",
        1_000,
        "First pause between attempts to connect to ZooKeeper again; at most a "
        "twelfth of the session time.",
    )
    reconnect_max_ms: Annotated[_Count, OptionKind.MS] = option(
        _HUDI + "max_wait_time_ms_between_retry",
        16_000,
        "Longest pause between attempts to connect to ZooKeeper again; at most a "
        "twelfth of the session time.",
    )
    application: str = option(
        "hoodie.write.application.id",
        "Unknown",
        "Name of the writer, for people to read; it is in ZooKeeper's lock node.",
    )
    tls: bool = option(
        _OURS + "tls",
        False,
        "Use TLS on ZooKeeper's secure port, and check the servers' names.",
    )
    tls_ca: str | None = option(
        _OURS + "tls.ca",
        None,
        "File of the certificates that signed the servers' certificates; required for TLS.",
    )
    tls_certificate: str | None = option(
        _OURS + "tls.certificate",
        None,
        "File of the writer's own certificate, if the servers ask for one.",
    )
    tls_private_key: str | None = option(
        _OURS + "tls.key.file", None, "File of the key of that certificate."
    )
    identity_file: str | None = option(
        _OURS + "identity.file",
        None,
        "File that only its owner can read, with one line user:password: the identity"
        " for ZooKeeper. Nodes created with it belong to it alone.",
    )
    sasl: str | None = option(
        _OURS + "sasl",
        None,
        "Prove the identity by SASL: DIGEST-MD5 with the identity file, or GSSAPI "
        "with the Kerberos ticket of this process. By default ZooKeeper's own digest "
        "scheme is used.",
        choices=("DIGEST-MD5", "GSSAPI"),
    )


class ZooKeeperSettings(ZooKeeperOptions):
    """All settings of one lock in ZooKeeper: its options, and what follows from them."""

    servers: tuple[str, ...]  # host:port, sorted
    root: str  # a path in ZooKeeper above all nodes, or empty
    path: str  # of the lock's node, below the root

    @property
    def url_key(self) -> str:
        """The property that names the servers."""
        return _key("url")

    @property
    def servers_text(self) -> str:
        """The servers for messages."""
        return ",".join(self.servers)

    @property
    def connect_text(self) -> str:
        """Servers and root in the form of ZooKeeper's clients."""
        return self.servers_text + self.root

    @property
    def lock_identity(self) -> str:
        """Name of the lock (REG-1)."""
        return hosts_identity(self.servers, self.root, self.path)

    def identity(self) -> str | None:
        """
        Return the text ``user:password`` from its file; read when a session is opened.

        Raises:
            UnsafeSetupError: The file cannot be read, is open to others, or has other content.
        """
        if self.identity_file is None:
            return None
        return _secret_line(self.identity_file)

    @classmethod
    def from_context(cls, context: LockContext, *, implicit: bool) -> ZooKeeperSettings:
        """
        Read the settings from all properties.

        Args:
            context: Properties and the table's address.
            implicit: Whether the hash of the address names the node, as in Java's implicit
                provider, instead of base path and key.

        Raises:
            SettingError: A value is missing or wrong; names key, value and unit.
        """
        property_set = as_property_set(context.properties)
        given = ZooKeeperOptions.from_properties(property_set)
        servers, root = split_hosts(_required(property_set, given, "url"), key=_key("url"))
        _refuse_unused_port(property_set, given, servers)
        if implicit:
            folder = f"{IMPLICIT_FOLDER}/{path_hash(hashed_address(context))}"
            path = lock_path(folder, IMPLICIT_KEY, key=ADDRESS_OPTION.key)
        else:
            base = _required(property_set, given, "base_path")
            path = lock_path(base, _lock_key(property_set, given), key=_key("base_path"))
        if given.tls:
            _required(property_set, given, "tls_ca")
        if given.sasl == "DIGEST-MD5":
            _required(property_set, given, "identity_file")
        chosen = given.model_dump()
        deadline_ms = max(LockSettings.from_properties(property_set).deadline_ms, _CONNECT_MS_MIN)
        chosen["connection_timeout_ms"] = min(given.connection_timeout_ms, deadline_ms)
        return cls(**chosen, servers=servers, root=root, path=path)


def _key(field: str) -> str:
    return ZooKeeperOptions.options[field].key


def _refuse_unused_port(
    properties: PropertySet, given: ZooKeeperOptions, servers: tuple[str, ...]
) -> None:
    """Refuse a port that no server of the url has: Java would use another server."""
    key, port = _key("port"), given.port
    if port is None or any(server.endswith(f":{port}") for server in servers):
        return
    if ":" in str(given.url):
        return  # the url has ports, and this one has no effect
    raise given.refusal(
        properties,
        "port",
        f"write the port into {_key('url')}, because Java does not read {key} and would use 2181",
        f"{servers[0].rpartition(':')[0]}:{port[:200]}",
    )


def _lock_key(properties: PropertySet, given: ZooKeeperOptions) -> str:
    """Return the lock's key as Java infers it: the table's name if no key is set."""
    value = given.lock_key or properties.get(NAME_KEY)
    if value:
        return value
    raise given.missing(
        properties,
        "lock_key",
        f"the name of the lock's node, or set {NAME_KEY}",
        "the lock provider zookeeper",
    )


def _required(properties: PropertySet, given: ZooKeeperOptions, field: str) -> str:
    value = getattr(given, field)
    if value:
        return str(value)
    raise given.missing(properties, field, _WANTED[field], "the lock provider zookeeper")


#: The values that settings of a lock need, for errors.
_WANTED: Final = {
    "url": "the servers of ZooKeeper, such as zk1:2181,zk2:2181",
    "base_path": "the parent node of the lock's node, such as /hudi/locks",
    "tls_ca": "the file of the certificates that signed the servers' certificates",
    "identity_file": "a file with one line user:password that only its owner can read",
}


def _secret_line(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            line = opened.read(SECRET_BYTES_MAX).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        raise _secret_error(f"it cannot be read: {type(error).__name__}", file) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _secret_error("other users may read it: take their rights away (chmod 600)", file)
    user, colon, password = line.partition(":")
    if not (user and colon and password) or "\n" in line:
        raise _secret_error("it must contain one line user:password", file)
    return line


def _secret_error(what: str, file: str) -> UnsafeSetupError:
    key = _key("identity_file")
    return UnsafeSetupError(
        f"ZooKeeper's identity cannot be used: {what}. Correct the file: {key}={file}",
        kind="lock_access",
        key=key,
        path=file,
    )

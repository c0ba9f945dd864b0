"""
ZooKeeper's settings: Hudi's keys with Hudi's defaults, and ours where Hudi has none.

Hudi has no keys for TLS or for an identity (its Java client reads system properties), so these are
ours. A property names the file of a secret and never contains the secret (SEC5).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockproviders.hookspecs import LockContext
from lockproviders.settings import ADDRESS_OPTION, hashed_address, path_hash
from lockproviders.zookeeper.queue import hosts_identity, lock_path, split_hosts
from timeline.errors import SettingError, UnsafeSetupError
from timeline.properties.options import (
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    read_option,
)

__all__ = ["OPTIONS", "ZooKeeperSettings", "request_timeout_ms"]

_HUDI = "hoodie.write.lock."
_OURS = "hoodoo.lock.zookeeper."

# By the name of the setting.
OPTIONS: Mapping[str, Option] = {
    "url": Option(
        key=_HUDI + "zookeeper.url",
        doc="ZooKeeper's servers, host:port,host:port,..., with an optional root /path; required.",
    ),
    "port": Option(
        key=_HUDI + "zookeeper.port",
        doc=(
            "Kept for old set-ups and not used, as in Java: put ports into the url, where one "
            "without a port means 2181."
        ),
    ),
    "base_path": Option(
        key=_HUDI + "zookeeper.base_path",
        doc="Parent node of the lock's node; required, except for the implicit variant.",
    ),
    "lock_key": Option(
        key=_HUDI + "zookeeper.lock_key",
        doc="The lock's node under the base path; else the table's name.",
    ),
    "session_timeout_ms": Option(
        key=_HUDI + "zookeeper.session_timeout_ms",
        default="60000",
        kind=OptionKind.MS,
        doc=(
            "Session time asked of the servers, which keep it within their own bounds; a dead "
            "holder keeps the lock that long."
        ),
    ),
    "connection_timeout_ms": Option(
        key=_HUDI + "zookeeper.connection_timeout_ms",
        default="15000",
        kind=OptionKind.MS,
        doc="How long the first connection may take.",
    ),
    "reconnect_tries": Option(
        key=_HUDI + "num_retries",
        default="15",
        kind=OptionKind.INT,
        doc="Attempts to connect again inside the provider; at least enough to keep a session.",
    ),
    "reconnect_first_ms": Option(
        key=_HUDI + "wait_time_ms_between_retry",
        default="1000",
        kind=OptionKind.MS,
        doc="First pause between such attempts; at most a twelfth of the session time.",
    ),
    "reconnect_max_ms": Option(
        key=_HUDI + "max_wait_time_ms_between_retry",
        default="16000",
        kind=OptionKind.MS,
        doc="Longest pause between such attempts; at most a twelfth of the session time.",
    ),
    "application": Option(
        key="hoodie.write.application.id",
        default="Unknown",
        doc="Who writes, for people to read; stands in ZooKeeper's lock node.",
    ),
    "tls": Option(
        key=_OURS + "tls",
        default="false",
        kind=OptionKind.BOOL,
        doc="Talk to ZooKeeper's secure port by TLS, and check the servers' names.",
    ),
    "tls_ca": Option(
        key=_OURS + "tls.ca",
        doc="File with the certificates that signed the servers'; required for TLS.",
    ),
    "tls_certificate": Option(
        key=_OURS + "tls.certificate",
        doc="File with our own certificate, where the servers ask for one.",
    ),
    "tls_private_key": Option(
        key=_OURS + "tls.key.file",
        doc="File with the key of our own certificate.",
    ),
    "identity_file": Option(
        key=_OURS + "identity.file",
        doc=(
            "File readable by its owner only, with one line user:password: the identity for "
            "ZooKeeper; the nodes made with it belong to it alone."
        ),
    ),
    "sasl": Option(
        key=_OURS + "sasl",
        kind=OptionKind.ENUM,
        choices=("DIGEST-MD5", "GSSAPI"),
        doc=(
            "Prove the identity by SASL: DIGEST-MD5 with the identity file, or GSSAPI with the "
            "Kerberos ticket of this process; else by ZooKeeper's own digest scheme."
        ),
    ),
}

MS_MAX = 7 * 24 * 3_600_000
IMPLICIT_FOLDER = "/tmp"  # noqa: S108  a node of ZooKeeper's, named by Java
IMPLICIT_KEY = "lock_key"
NAME_KEY = "hoodie.table.name"

REQUEST_SHARE = 6  # of the session: time limit of one request, so that the margin is a third
REQUEST_MS_MIN = 250
REQUEST_MS_MAX = 10_000
SECRET_BYTES_MAX = 4_096


def request_timeout_ms(session_ms: int) -> int:
    """Return the time limit of one request in a session of this length."""
    return min(max(session_ms // REQUEST_SHARE, REQUEST_MS_MIN), REQUEST_MS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSettings:
    """All settings of one lock in ZooKeeper; times in milliseconds."""

    servers: tuple[str, ...]  # host:port, sorted
    root: str  # a path in ZooKeeper above all nodes, or empty
    path: str  # of the lock's node, below the root
    session_timeout_ms: int
    connection_timeout_ms: int
    reconnect_tries: int
    reconnect_first_ms: int
    reconnect_max_ms: int
    application: str
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_private_key: str | None = None
    identity_file: str | None = None
    sasl: str | None = None

    @property
    def url_key(self) -> str:
        """The property that names the servers."""
        return OPTIONS["url"].key

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
        said = as_property_set(context.properties)
        servers, root = split_hosts(_required(said, OPTIONS["url"]), key=OPTIONS["url"].key)
        _refuse_unused_port(said, servers)
        if implicit:
            folder = f"{IMPLICIT_FOLDER}/{path_hash(hashed_address(context))}"
            path = lock_path(folder, IMPLICIT_KEY, key=ADDRESS_OPTION.key)
        else:
            base = OPTIONS["base_path"]
            path = lock_path(_required(said, base), _lock_key(said), key=base.key)
        tls = bool(read_option(said, OPTIONS["tls"]))
        tls_ca = _text(said, OPTIONS["tls_ca"])
        if tls and tls_ca is None:
            _required(said, OPTIONS["tls_ca"])
        identity_file = _text(said, OPTIONS["identity_file"])
        if read_option(said, OPTIONS["sasl"]) == "DIGEST-MD5" and identity_file is None:
            _required(said, OPTIONS["identity_file"])
        return cls(
            servers=servers,
            root=root,
            path=path,
            session_timeout_ms=_number(said, OPTIONS["session_timeout_ms"], least=1),
            connection_timeout_ms=_number(said, OPTIONS["connection_timeout_ms"], least=1),
            reconnect_tries=_number(said, OPTIONS["reconnect_tries"]),
            reconnect_first_ms=_number(said, OPTIONS["reconnect_first_ms"]),
            reconnect_max_ms=_number(said, OPTIONS["reconnect_max_ms"]),
            application=str(
                read_option(said, OPTIONS["application"]) or OPTIONS["application"].default
            ),
            tls=tls,
            tls_ca=tls_ca,
            tls_certificate=_text(said, OPTIONS["tls_certificate"]),
            tls_private_key=_text(said, OPTIONS["tls_private_key"]),
            identity_file=identity_file,
            sasl=_text(said, OPTIONS["sasl"]),
        )


def _refuse_unused_port(said: PropertySet, servers: tuple[str, ...]) -> None:
    """Refuse a port that no server of the url has: Java would use another server."""
    option = OPTIONS["port"]
    port = _text(said, option)
    if port is None or any(server.endswith(f":{port}") for server in servers):
        return
    if ":" in str(read_option(said, OPTIONS["url"])):
        return  # the url has ports, and this one has no effect
    raise SettingError(
        f"write the port into {OPTIONS['url'].key}, Java does not read {option.key} and would "
        f"take 2181: {option.key}={port[:200]!a}",
        kind="setting_value",
        key=option.key,
        value=port[:200],
        layer=said.layer_of(option.key),
        suggestion=f"{servers[0].rpartition(':')[0]}:{port}",
    )


def _lock_key(said: PropertySet) -> str:
    """Return the lock's key as Java infers it: the table's name if no key is set."""
    option = OPTIONS["lock_key"]
    value = read_option(said, option) or said.get(NAME_KEY)
    if value:
        return str(value)
    raise SettingError(
        f"the lock needs a node: set {option.key}, or {NAME_KEY}, which stands in for it",
        key=option.key,
        value="",
        suggestion="the table's name",
    )


def _required(said: PropertySet, option: Option) -> str:
    value = read_option(said, option)
    if value:
        return str(value)
    raise SettingError(
        f"this lock provider needs {option.key}: {option.doc}",
        key=option.key,
        value="",
        suggestion=option.doc,
    )


def _number(said: PropertySet, option: Option, *, least: int = 0) -> int:
    value = read_option(said, option)
    number = int(str(option.default)) if value is None else int(str(value))
    if least <= number <= MS_MAX:
        return number
    raise SettingError(
        f"this property accepts {option.accepted} from {least} to {MS_MAX}, default "
        f"{option.default}: {option.key}={number} (from {said.layer_of(option.key)})",
        kind="setting_value",
        key=option.key,
        value=str(number),
        layer=said.layer_of(option.key),
        suggestion=f"default {option.default}",
    )


def _text(said: PropertySet, option: Option) -> str | None:
    value = read_option(said, option)
    return str(value) if value else None


def _secret_line(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            line = opened.read(SECRET_BYTES_MAX).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        raise _secret_error(f"it cannot be read: {type(error).__name__}", file) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _secret_error("others may read it, take their rights away (chmod 600)", file)
    user, colon, password = line.partition(":")
    if not (user and colon and password) or "\n" in line:
        raise _secret_error("it must hold one line user:password", file)
    return line


def _secret_error(what: str, file: str) -> UnsafeSetupError:
    key = OPTIONS["identity_file"].key
    return UnsafeSetupError(
        f"ZooKeeper's identity cannot be used; {what}; {key}={file}",
        kind="lock_access",
        key=key,
        path=file,
    )

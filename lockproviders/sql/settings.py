"""
The settings of the SQL lock, and the database that a url means.

This module does not lock: it has keys, defaults, errors that name key, value and unit, and the
choice of a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self
from urllib.parse import unquote, urlsplit

from lockproviders.sql.database import Database, SqliteDatabase
from lockproviders.sql.servers import MySqlDatabase, PostgresDatabase, Server, is_loopback
from timeline.errors import SettingError, UnsafeSetupError
from timeline.ports.ports import Ids
from timeline.properties.options import (
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    read_option,
    redact,
)

__all__ = ["OPTIONS", "TABLE_NAME", "SqlSettings"]

_PREFIX = "hoodoo.lock.sql."

OPTIONS: Mapping[str, Option] = {
    "url": Option(
        key=_PREFIX + "url",
        doc="The lock database: an absolute path of a SQLite file on a local disk, "
        "mysql://host:port/database or postgresql://host:port/database.",
    ),
    "user": Option(key=_PREFIX + "user", doc="User of the lock database, where the url has none."),
    "password": Option(
        key=_PREFIX + "password", doc="Password of that user; only from a file with mode 0600."
    ),
    "table": Option(
        key=_PREFIX + "table",
        default="hoodoo_locks",
        doc="Table that holds the locks; a schema before a dot where the database has them.",
    ),
    "key": Option(
        key=_PREFIX + "key",
        doc="Name of this lock's row; by default the table's address, which must then be the "
        "same for all writers.",
    ),
    "create_table": Option(
        key=_PREFIX + "create_table",
        default="false",
        kind=OptionKind.BOOL,
        doc="Whether a missing table (and SQLite file) is made.",
    ),
    "lease_ms": Option(
        key=_PREFIX + "lease.ms",
        default="30000",
        kind=OptionKind.MS,
        doc="After how long without renewal others may take the lock; renewed every third of it.",
    ),
    "timeout_ms": Option(
        key=_PREFIX + "timeout.ms",
        default="3000",
        kind=OptionKind.MS,
        doc="How long connecting and each request may take; a quarter of the lease at most.",
    ),
    "tls": Option(
        key=_PREFIX + "tls",
        default="auto",
        kind=OptionKind.ENUM,
        choices=("auto", "verify", "off"),
        doc="Whether the server must prove itself; auto: verify unless it is this machine.",
    ),
    "tls_ca": Option(
        key=_PREFIX + "tls.ca",
        doc="File with the authorities a server's certificate may come from; else the system's.",
    ),
}

LEASE_MS_MAX = 24 * 3_600_000
TIMEOUTS_PER_LEASE = 4
TABLE_NAME = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}")
_PORTS = {"mysql": 3306, "postgresql": 5432}
_SCHEMES = {
    "mysql": "mysql",
    "mariadb": "mysql",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSettings:
    """All settings of the SQL lock; the fields of ``OPTIONS``."""

    url: str
    user: str = ""
    password: str = ""
    table: str = "hoodoo_locks"
    key: str = ""
    create_table: bool = False
    lease_ms: int = 30_000
    timeout_ms: int = 3_000
    tls: str = "auto"
    tls_ca: str = ""

    def __repr__(self) -> str:
        return f"SqlSettings({redact('url', self.url)}, {self.table})"  # no secrets (SEC5)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the settings from all properties.

        Raises:
            SettingError: The url is missing or unsupported, or a name or a time is not accepted.
            UnsafeSetupError: The url comes from the table's own properties (SEC11).
        """
        said = as_property_set(properties)
        values: dict[str, Any] = {}
        for field, option in OPTIONS.items():
            value = read_option(said, option)
            if value not in (None, ""):
                values[field] = value
        if "url" not in values:
            _refuse(said, "url", "the sql lock needs a database")
        if said.layer_of(OPTIONS["url"].key) == "hoodie.properties":
            raise UnsafeSetupError(
                "a table does not choose the server its lock is taken on; put it into the "
                f"writer's own properties: {OPTIONS['url'].key}",
                kind="endpoint_from_table",
                key=OPTIONS["url"].key,
            )
        settings = cls(**values)
        settings._check(said)
        return settings

    def _check(self, said: PropertySet) -> None:
        if not TABLE_NAME.fullmatch(self.table):
            _refuse(said, "table", "letters, digits and _ only, 63 at most")
        if not 1_000 <= self.lease_ms <= LEASE_MS_MAX:
            _refuse(said, "lease_ms", f"a lease lasts 1000 to {LEASE_MS_MAX} milliseconds")
        if not 1 <= self.timeout_ms <= self.lease_ms // TIMEOUTS_PER_LEASE:
            _refuse(
                said,
                "timeout_ms",
                f"at least 1 and at most a quarter of the lease of {self.lease_ms} milliseconds",
            )

    def database(self, ids: Ids, *, durable: bool = False) -> Database:
        """
        Return the database of the url, not connected yet.

        Args:
            ids: Identifies the current process.
            durable: Whether changes must outlive a power cut; on MySQL or MariaDB the server's own
                settings decide that.

        Raises:
            SettingError: The url is unsupported.
        """
        said = as_property_set({OPTIONS["url"].key: self.url})
        parts = urlsplit(self.url)
        scheme = parts.scheme.casefold()
        if scheme in ("", "sqlite", "file"):
            path = self.url if not scheme else unquote(parts.path)
            if parts.netloc or not path.startswith("/") or path.endswith("/") or "\0" in path:
                _refuse(said, "url", "a SQLite lock is an absolute path of a file on a local disk")
            return SqliteDatabase(
                path,
                may_create=self.create_table,
                ids=ids,
                timeout_ms=self.timeout_ms,
                durable=durable,
            )
        if scheme not in _SCHEMES:
            _refuse(said, "url", "known are a path, mysql://, mariadb:// and postgresql://")
        kind = _SCHEMES[scheme]
        try:
            port = parts.port or _PORTS[kind]
        except ValueError:
            _refuse(said, "url", "its port is no number")
        host, name = parts.hostname or "", unquote(parts.path).strip("/")
        if not host or not name or "/" in name or parts.query or parts.fragment:
            _refuse(said, "url", f"write it as {kind}://host:{_PORTS[kind]}/database")
        server = Server(
            host=host,
            port=port,
            database=name,
            user=unquote(parts.username or "") or self.user,
            password=unquote(parts.password or "") or self.password,
            verify_tls=self.tls == "verify" or (self.tls == "auto" and not is_loopback(host)),
            tls_ca=self.tls_ca,
        )
        if kind == "mysql":
            return MySqlDatabase(server, ids=ids, timeout_ms=self.timeout_ms)
        return PostgresDatabase(server, ids=ids, timeout_ms=self.timeout_ms, durable=durable)


def _refuse(said: PropertySet, field: str, accepted: str) -> NoReturn:
    option = OPTIONS[field]
    value = redact(option.key, said.get_option(option) or "")
    layer = said.layer_of(option.key)
    raise SettingError(
        f"{accepted}: {option.key}={value[:200]!a} (from {layer})",
        kind="setting_value",
        key=option.key,
        value=value,
        layer=layer,
        suggestion=accepted,
    )

"""
The settings of the SQL lock, and the database that a url means.

This module does not lock: it has keys, defaults, errors that name key, value and unit, and the
choice of a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, NoReturn, Self
from urllib.parse import unquote, urlsplit

from lockproviders.sql.database import Database, SqliteDatabase
from lockproviders.sql.servers import MySqlDatabase, PostgresDatabase, Server, is_loopback
from timeline.errors import SettingError, UnsafeSetupError
from timeline.ports.ports import Ids
from timeline.properties.options import (
    TABLE_LAYER,
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
)
from timeline.redaction import redact

_PREFIX = "hoodoo.lock.sql."

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


class SqlSettings(OptionSettings):
    """All settings of the SQL lock."""

    url: str = option(
        _PREFIX + "url",
        "",
        "The lock database: an absolute path of a SQLite file on a local disk, "
        "mysql://host:port/database or postgresql://host:port/database.",
    )
    user: str = option(_PREFIX + "user", "", "User of the lock database, where the url has none.")
    password: str = option(
        _PREFIX + "password", "", "Password of that user; only from a file with mode 0600."
    )
    table: str = option(
        _PREFIX + "table",
        "hoodoo_locks",
        "Table that holds the locks; a schema before a dot where the database has them.",
    )
    key: str = option(
        _PREFIX + "key",
        "",
        "Name of this lock's row; by default the table's address, which must then be the same "
        "for all writers.",
    )
    create_table: bool = option(
        _PREFIX + "create_table", False, "Whether a missing table (and SQLite file) is made."
    )
    lease_ms: Annotated[int, OptionKind.MS] = option(
        _PREFIX + "lease.ms",
        30_000,
        "After how long without renewal others may take the lock; renewed every third of it.",
    )
    timeout_ms: Annotated[int, OptionKind.MS] = option(
        _PREFIX + "timeout.ms",
        3_000,
        "How long connecting and each request may take; a quarter of the lease at most.",
    )
    tls: str = option(
        _PREFIX + "tls",
        "auto",
        "Whether the server must prove itself; auto: verify unless it is this machine.",
        choices=("auto", "verify", "off"),
    )
    tls_ca: str = option(
        _PREFIX + "tls.ca",
        "",
        "File with the authorities a server's certificate may come from; else the system's.",
    )

    def __repr__(self) -> str:
        return f"SqlSettings({redact('url', self.url)}, {self.table})"  # no secrets (SEC5)

    __str__ = __repr__

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the settings from all properties.

        Raises:
            SettingError: The url is missing or unsupported, or a name or a time is not accepted.
            UnsafeSetupError: The url comes from the table's own properties (SEC11).
        """
        said = as_property_set(properties)
        settings = super().from_properties(said)
        if not settings.url:
            _refuse(said, "url", "the sql lock needs a database")
        url = cls.options["url"].key
        if said.layer_of(url) == TABLE_LAYER:
            raise UnsafeSetupError(
                "a table does not choose the server its lock is taken on; put it into the "
                f"writer's own properties: {url}",
                kind="endpoint_from_table",
                key=url,
            )
        settings.check(said)
        return settings

    def check(self, said: PropertySet) -> None:
        """
        Refuse a table name or a time that is not accepted.

        Raises:
            SettingError: As ``from_properties``; names the value's layer in ``said``.
        """
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
        said = as_property_set({self.options["url"].key: self.url})
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
    declared = SqlSettings.options[field]
    value = redact(declared.key, said.get_option(declared) or "")
    layer = said.layer_of(declared.key)
    raise SettingError(
        f"{accepted}: {declared.key}={value[:200]!a} (from {layer})",
        kind="setting_value",
        key=declared.key,
        value=value,
        layer=layer,
        suggestion=accepted,
    )

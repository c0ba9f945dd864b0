"""
The settings of the SQL lock, and the database that a url means.

This module does not lock: it has keys, defaults, errors that name key, value and unit, and the
choice of a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field

from lockproviders.settings import refuse_from_table
from lockproviders.sql.database import Database, SqliteDatabase
from lockproviders.sql.servers import MySqlDatabase, PostgresDatabase, Server
from timeline.ports.ports import Ids
from timeline.properties.options import (
    OptionKind,
    OptionSettings,
    as_property_set,
    option,
)
from timeline.redaction import redact
from timeline.system import is_loopback

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
    user: str = option(_PREFIX + "user", "", "User of the lock database, if the url has none.")
    password: str = option(
        _PREFIX + "password", "", "Password of that user; only from a file with mode 0600."
    )
    table: str = option(
        _PREFIX + "table",
        "hoodoo_locks",
        "Table of the locks, with a schema before a dot if the database has schemas.",
    )
    key: str = option(
        _PREFIX + "key",
        "",
        "Name of this lock's row. The default is the table's address, which must then"
        " be the same for all writers.",
    )
    create_table: bool = option(
        _PREFIX + "create_table", False, "Create a missing table, and a missing SQLite file."
    )
    lease_ms: Annotated[int, OptionKind.MS, Field(ge=1_000, le=LEASE_MS_MAX)] = option(
        _PREFIX + "lease.ms",
        30_000,
        "Time without a renewal after which others may take the lock; renewed every third of it.",
    )
    timeout_ms: Annotated[int, OptionKind.MS, Field(ge=1)] = option(
        _PREFIX + "timeout.ms",
        3_000,
        "Longest time of connecting and of each request; at most a quarter of the lease.",
    )
    tls: str = option(
        _PREFIX + "tls",
        "auto",
        "Whether the server must prove its name; auto verifies unless it is on this machine.",
        choices=("auto", "verify", "off"),
    )
    tls_ca: str = option(
        _PREFIX + "tls.ca",
        "",
        "File of the authorities that may sign the server's certificate; the system's by default.",
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
        property_set = as_property_set(properties)
        settings = super().from_properties(property_set)
        if not settings.url:
            wanted = "the database of the locks, such as postgresql://host:5432/locks"
            raise SqlSettings.missing(
                property_set, "url", wanted, "the lock provider sql", kind="setting_value"
            )
        refuse_from_table(property_set, cls.options["url"])
        if not TABLE_NAME.fullmatch(settings.table):
            raise cls.refusal(property_set, "table", "letters, digits and _ only, 63 at most")
        if settings.timeout_ms > settings.lease_ms // TIMEOUTS_PER_LEASE:
            why = f"at most a quarter of the lease of {settings.lease_ms} milliseconds"
            raise cls.refusal(property_set, "timeout_ms", why)
        return settings

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
        property_set = as_property_set({self.options["url"].key: self.url})
        parts = urlsplit(self.url)
        scheme = parts.scheme.casefold()
        if scheme in ("", "sqlite", "file"):
            path = self.url if not scheme else unquote(parts.path)
            if parts.netloc or not path.startswith("/") or path.endswith("/") or "\0" in path:
                raise SqlSettings.refusal(
                    property_set,
                    "url",
                    "a SQLite lock is an absolute path of a file on a local disk",
                )
            return SqliteDatabase(
                path,
                may_create=self.create_table,
                ids=ids,
                timeout_ms=self.timeout_ms,
                durable=durable,
            )
        if scheme not in _SCHEMES:
            raise SqlSettings.refusal(
                property_set, "url", "known are a path, mysql://, mariadb:// and postgresql://"
            )
        kind = _SCHEMES[scheme]
        try:
            port = parts.port or _PORTS[kind]
        except ValueError:
            raise SqlSettings.refusal(property_set, "url", "its port is no number") from None
        host, name = parts.hostname or "", unquote(parts.path).strip("/")
        if not host or not name or "/" in name or parts.query or parts.fragment:
            raise SqlSettings.refusal(
                property_set, "url", f"write it as {kind}://host:{_PORTS[kind]}/database"
            )
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

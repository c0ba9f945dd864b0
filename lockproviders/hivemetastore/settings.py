"""
The settings of the Hive Metastore's lock, by Thrift and by its database.

Java's keys keep Java's defaults; our keys add what Java reads from hive-site.xml. Host names come
from the caller's properties only, never from a table (SEC11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lockproviders.hivemetastore.database import LEASE_MS_DEFAULT, LockName, check_name
from lockproviders.hivemetastore.thrift_connection import Address, Tls, parse_uris
from timeline.errors import SettingError, UnsafeSetupError
from timeline.properties.options import (
    TABLE_LAYER,
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    read_option,
)

__all__ = ["OPTIONS", "HiveMetastoreSettings", "lock_name", "positive_ms", "refuse_from_table"]

MS_MIN = 100
MS_MAX = 7 * 24 * 3_600_000  # a week; a larger value has a wrong unit

_MS, _TEXT = OptionKind.MS, OptionKind.TEXT

OPTIONS: Mapping[str, Option] = {
    "database": Option(
        key="hoodie.write.lock.hivemetastore.database",
        kind=_TEXT,
        doc="Database named in the metastore's lock, as Java spells it; need not exist.",
    ),
    "table": Option(
        key="hoodie.write.lock.hivemetastore.table",
        kind=_TEXT,
        doc="Table named in the metastore's lock, as Java spells it; need not exist.",
    ),
    "uris": Option(
        key="hoodie.write.lock.hivemetastore.uris",
        kind=OptionKind.LIST,
        doc="The metastore's addresses, thrift://host:port with commas between them.",
    ),
    "beat_ms": Option(
        key="hoodie.write.lock.heartbeat_interval_ms",
        default="60000",
        kind=_MS,
        doc="How often the metastore's lock is renewed; a holder without three stops itself.",
    ),
    "lease_ms": Option(
        key="hoodoo.lock.hivemetastore.lease.ms",
        kind=_MS,
        doc="The metastore's hive.txn.timeout, where it does not tell (else 300000).",
    ),
    "timeout_ms": Option(
        key="hoodoo.lock.hivemetastore.timeout.ms",
        default="10000",
        kind=_MS,
        doc="Longest wait for one answer of the metastore; at most an eighth of the lease.",
    ),
    "tls": Option(
        key="hoodoo.lock.hivemetastore.tls",
        default="off",
        kind=OptionKind.ENUM,
        choices=("off", "verify"),
        doc="Whether the metastore speaks TLS and must prove its name; never falls back to plain.",
    ),
    "tls_ca": Option(
        key="hoodoo.lock.hivemetastore.tls.ca",
        kind=_TEXT,
        doc="File of the authorities that may sign its certificate; the system's by default.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveMetastoreSettings:
    """The fields of ``OPTIONS``."""

    name: LockName
    addresses: tuple[Address, ...]
    beat_ms: int
    lease_ms: int | None
    timeout_ms: int
    tls: Tls | None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the provider's settings from all properties.

        Raises:
            SettingError: A value is missing, not a number or out of range.
        """
        said = as_property_set(properties)
        key = OPTIONS["uris"].key
        refuse_from_table(said, OPTIONS["uris"])
        uris = read_option(said, OPTIONS["uris"])
        ca_file = str(read_option(said, OPTIONS["tls_ca"]) or "")
        return cls(
            name=lock_name(properties),
            addresses=parse_uris(key, uris if isinstance(uris, tuple) else (), said.layer_of(key)),
            beat_ms=positive_ms(properties, OPTIONS["beat_ms"]) or 60_000,
            lease_ms=positive_ms(properties, OPTIONS["lease_ms"]),
            timeout_ms=positive_ms(properties, OPTIONS["timeout_ms"]) or 10_000,
            tls=Tls(ca_file=ca_file) if read_option(said, OPTIONS["tls"]) == "verify" else None,
        )


def refuse_from_table(said: PropertySet, option: Option) -> None:
    """
    Refuse a server's address from the table's own properties.

    Raises:
        UnsafeSetupError: The address comes from there (SEC11).
    """
    if said.layer_of(option.key) == TABLE_LAYER:
        raise UnsafeSetupError(
            "a table does not choose the server its lock is taken on; put it into the writer's "
            f"own properties: {option.key}",
            kind="endpoint_from_table",
            key=option.key,
        )


def lock_name(properties: Mapping[str, str]) -> LockName:
    """
    Return the names to lock, from Java's two keys.

    Raises:
        SettingError: One is missing or has characters that cannot be sent.
    """
    said = as_property_set(properties)
    database, table = (
        check_name(option.key, said.get_option(option), said.layer_of(option.key))
        for option in (OPTIONS["database"], OPTIONS["table"])
    )
    return LockName(database=database, table=table)


def positive_ms(properties: Mapping[str, str], option: Option) -> int | None:
    """
    Return a duration from 100 ms to a week, or None without a value and a default.

    Raises:
        SettingError: Not a number, or out of range.
    """
    said = as_property_set(properties)
    value = read_option(said, option)
    if value is None:
        return None
    if not isinstance(value, int) or not MS_MIN <= value <= MS_MAX:
        layer = said.layer_of(option.key)
        raise SettingError(
            f"this duration must be from {MS_MIN} to {MS_MAX} milliseconds: "
            f"{option.key}={value} (from {layer})",
            kind="setting_value",
            key=option.key,
            value=str(value),
            layer=layer,
            suggestion=f"default {option.default or LEASE_MS_DEFAULT}",
        )
    return value

"""
The settings of the Hive Metastore's lock, by Thrift and by its database.

Java's keys keep Java's defaults; our keys add what Java reads from hive-site.xml. Host names come
from the caller's properties only, never from a table (SEC11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from lockproviders.hivemetastore.database import LEASE_MS_DEFAULT, LockName, check_name
from lockproviders.hivemetastore.thrift_connection import Address, Tls, parse_uris
from timeline.errors import SettingError, UnsafeSetupError
from timeline.properties.options import (
    TABLE_LAYER,
    Option,
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
    read_option,
)

MS_MIN = 100
MS_MAX = 7 * 24 * 3_600_000  # a week; a larger value has a wrong unit


class LockOptions(OptionSettings):
    """What both clients of the metastore's lock read."""

    database: str | None = option(
        "hoodie.write.lock.hivemetastore.database",
        None,
        "Database named in the metastore's lock, as Java spells it; need not exist.",
    )
    table: str | None = option(
        "hoodie.write.lock.hivemetastore.table",
        None,
        "Table named in the metastore's lock, as Java spells it; need not exist.",
    )
    beat_ms: Annotated[int, OptionKind.MS] = option(
        "hoodie.write.lock.heartbeat_interval_ms",
        60_000,
        "How often the metastore's lock is renewed; a holder without three stops itself.",
    )


class HiveMetastoreOptions(LockOptions):
    """The options as they are set; ``HiveMetastoreSettings`` is made of them."""

    uris: tuple[str, ...] = option(
        "hoodie.write.lock.hivemetastore.uris",
        (),
        "The metastore's addresses, thrift://host:port with commas between them.",
    )
    lease_ms: Annotated[int, OptionKind.MS] | None = option(
        "hoodoo.lock.hivemetastore.lease.ms",
        None,
        "The metastore's hive.txn.timeout, where it does not tell (else 300000).",
    )
    timeout_ms: Annotated[int, OptionKind.MS] = option(
        "hoodoo.lock.hivemetastore.timeout.ms",
        10_000,
        "Longest wait for one answer of the metastore; at most an eighth of the lease.",
    )
    tls: str = option(
        "hoodoo.lock.hivemetastore.tls",
        "off",
        "Whether the metastore speaks TLS and must prove its name; never falls back to plain.",
        choices=("off", "verify"),
    )
    tls_ca: str | None = option(
        "hoodoo.lock.hivemetastore.tls.ca",
        None,
        "File of the authorities that may sign its certificate; the system's by default.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveMetastoreSettings:
    """All settings of the metastore's lock by Thrift."""

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
        options = HiveMetastoreOptions.options
        refuse_from_table(said, options["uris"])
        given = HiveMetastoreOptions.from_properties(said)
        key = options["uris"].key
        return cls(
            name=lock_name(properties),
            addresses=parse_uris(key, given.uris, said.layer_of(key)),
            beat_ms=ms_or_default(properties, options["beat_ms"]),
            lease_ms=positive_ms(properties, options["lease_ms"]),
            timeout_ms=ms_or_default(properties, options["timeout_ms"]),
            tls=Tls(ca_file=given.tls_ca or "") if given.tls == "verify" else None,
        )


def refuse_from_table(said: PropertySet, declared: Option) -> None:
    """
    Refuse a server's address from the table's own properties.

    Raises:
        UnsafeSetupError: The address comes from there (SEC11).
    """
    if said.layer_of(declared.key) == TABLE_LAYER:
        raise UnsafeSetupError(
            "a table does not choose the server its lock is taken on; put it into the writer's "
            f"own properties: {declared.key}",
            kind="endpoint_from_table",
            key=declared.key,
        )


def lock_name(properties: Mapping[str, str]) -> LockName:
    """
    Return the names to lock, from Java's two keys.

    Raises:
        SettingError: One is missing or has characters that cannot be sent.
    """
    said = as_property_set(properties)
    database, table = (
        check_name(declared.key, said.get_option(declared), said.layer_of(declared.key))
        for declared in (LockOptions.options["database"], LockOptions.options["table"])
    )
    return LockName(database=database, table=table)


def positive_ms(properties: Mapping[str, str], declared: Option) -> int | None:
    """
    Return a duration from 100 ms to a week, or None without a value and a default.

    Raises:
        SettingError: Not a number, or out of range.
    """
    said = as_property_set(properties)
    value = read_option(said, declared)
    if value is None:
        return None
    if not isinstance(value, int) or not MS_MIN <= value <= MS_MAX:
        layer = said.layer_of(declared.key)
        raise SettingError(
            f"this duration must be from {MS_MIN} to {MS_MAX} milliseconds: "
            f"{declared.key}={value} (from {layer})",
            kind="setting_value",
            key=declared.key,
            value=str(value),
            layer=layer,
            suggestion=f"default {declared.default or LEASE_MS_DEFAULT}",
        )
    return value


def ms_or_default(properties: Mapping[str, str], declared: Option) -> int:
    """Return a duration, or the option's default, also for an empty text."""
    value = positive_ms(properties, declared)
    return int(declared.default or 0) if value is None else value

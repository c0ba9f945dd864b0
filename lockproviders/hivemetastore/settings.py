"""
The settings of the Hive Metastore's lock, by Thrift and by its database.

Java's keys keep Java's defaults; our keys add what Java reads from hive-site.xml. Host names come
from the caller's properties only, never from a table (SEC11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field

from lockproviders.hivemetastore.database import LockName, check_name
from lockproviders.hivemetastore.thrift_connection import Address, Tls, parse_uris
from lockproviders.settings import MS_MAX, refuse_from_table
from timeline.properties.options import (
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
)

Duration = Annotated[int, OptionKind.MS, Field(ge=100, le=MS_MAX)]


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
        "Table name in the metastore's lock, as Java spells it; it need not exist.",
    )
    beat_ms: Duration = option(
        "hoodie.write.lock.heartbeat_interval_ms",
        60_000,
        "Time between two renewals of the metastore's lock; a holder without three renewals stops.",
    )


class HiveMetastoreOptions(LockOptions):
    """The options as they are set; ``HiveMetastoreSettings`` is made of them."""

    uris: tuple[str, ...] = option(
        "hoodie.write.lock.hivemetastore.uris",
        (),
        "The metastore's addresses, thrift://host:port with commas between them.",
    )
    lease_ms: Duration | None = option(
        "hoodoo.lock.hivemetastore.lease.ms",
        None,
        "hive.txn.timeout of a metastore that does not report it (else 300000).",
    )
    timeout_ms: Duration = option(
        "hoodoo.lock.hivemetastore.timeout.ms",
        10_000,
        "Longest wait for one answer of the metastore; at most an eighth of the lease.",
    )
    tls: str = option(
        "hoodoo.lock.hivemetastore.tls",
        "off",
        "Use TLS, and the metastore must prove its name; never falls back to plain text.",
        choices=("off", "verify"),
    )
    tls_ca: str | None = option(
        "hoodoo.lock.hivemetastore.tls.ca",
        None,
        "File of the authorities that may sign the metastore's certificate; the "
        "system's by default.",
    )


class HiveMetastoreSettings(HiveMetastoreOptions):
    """All settings of the metastore's lock by Thrift: its options, and what follows from them."""

    name: LockName
    addresses: tuple[Address, ...]

    @property
    def verified_by(self) -> Tls | None:
        """How the metastore proves its name; None for a plain connection."""
        return Tls(ca_file=self.tls_ca or "") if self.tls == "verify" else None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the provider's settings from all properties.

        Raises:
            SettingError: A value is missing, not a number or out of range.
        """
        property_set = as_property_set(properties)
        declared = cls.options["uris"]
        refuse_from_table(property_set, declared)
        given = HiveMetastoreOptions.from_properties(property_set)
        addresses = parse_uris(declared.key, given.uris, property_set.layer_of(declared.key))
        return cls(**given.model_dump(), name=lock_name(property_set), addresses=addresses)


def lock_name(properties: PropertySet) -> LockName:
    """
    Return the names to lock, from Java's two keys.

    Raises:
        SettingError: One is missing or has characters that cannot be sent.
    """
    database, table = (
        check_name(declared.key, properties.get_option(declared), properties.layer_of(declared.key))
        for declared in (LockOptions.options["database"], LockOptions.options["table"])
    )
    return LockName(database=database, table=table)

"""
The settings of the DynamoDB lock, read from Hudi's keys and a few of ours.

Hudi's keys keep their names, units and defaults (hudi_configs: DynamoDbBasedLockConfig), so the
properties of a Java job work unchanged. Two of Java's behaviours are made safe. The provider
creates a missing table only on request, because a wrong region would otherwise silently split the
lock. The endpoint may not come from the table (SEC11).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NoReturn, Self
from urllib.parse import urlsplit

from lockproviders.dynamodb.rows import COUNT_SUFFIX, KEY_BYTES_MAX
from lockproviders.settings import MS_MAX, LockSettings
from timeline.errors import SettingError
from timeline.properties.options import (
    TABLE_LAYER,
    Option,
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
)
from timeline.redaction import redact

_PREFIX = "hoodie.write.lock.dynamodb."
_OURS = "hoodoo.lock.dynamodb."

LEASE_MS_MIN = 1_000
REQUESTS_PER_LEASE = 10  # this many timed-out requests fit into one lease
REQUEST_MS_MAX = 5_000
DEFAULT_REGION = "us-east-1"
_METADATA_NETWORKS = tuple(
    ipaddress.ip_network(text) for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32")
)


class DynamoOptions(OptionSettings):
    """The options as they are set; ``DynamoSettings`` is made of them."""

    table: str = option(_PREFIX + "table", "hudi_locks", "Name of the DynamoDB table of the locks.")
    partition_key: str | None = option(
        _PREFIX + "partition_key",
        None,
        "Name of the lock in that table (the value of its key); else the table's name.",
    )
    table_name: str | None = option(
        "hoodie.table.name",
        None,
        "Name of the table.",
        aliases=("hoodie.datasource.write.table.name",),
    )
    region: str | None = option(
        _PREFIX + "region",
        None,
        "AWS region; else the variable AWS_REGION, else us-east-1, as in Hudi.",
    )
    endpoint: str | None = option(
        _PREFIX + "endpoint_url", None, "Another endpoint than the region's; for local servers."
    )
    billing: str = option(
        _PREFIX + "billing_mode",
        "PAY_PER_REQUEST",
        "How a table that is created here is paid for.",
        choices=("PAY_PER_REQUEST", "PROVISIONED"),
    )
    read_units: int = option(
        _PREFIX + "read_capacity", 20, "Read units of a created table if PROVISIONED."
    )
    write_units: int = option(
        _PREFIX + "write_capacity", 10, "Write units of a created table if PROVISIONED."
    )
    creation_timeout_ms: Annotated[int, OptionKind.MS] = option(
        _PREFIX + "table_creation_timeout",
        120_000,
        "Milliseconds after which a created table that is not ready counts as failed.",
    )
    access_key: str | None = option(
        "hoodie.aws.access.key",
        None,
        "AWS access key; else the usual chain of environment, profile and role.",
        repr=False,
    )
    secret_key: str | None = option("hoodie.aws.secret.key", None, "The secret to it.", repr=False)
    session_token: str | None = option(
        "hoodie.aws.session.token",
        None,
        "Token of temporary credentials.",
        repr=False,
    )
    create_table: bool = option(
        _OURS + "create.table",
        False,
        "Create the table of the locks when it is missing (Hudi: always).",
    )
    count_holdings: bool = option(
        _OURS + "fencing.token",
        True,
        "Count the holdings in a second row, which makes the fencing token.",
    )
    allow_insecure: bool = option(
        _OURS + "endpoint.allow.insecure",
        False,
        "Accept an http:// endpoint on another machine (SEC11).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoSettings:
    """All settings of one DynamoDB lock."""

    table: str
    key: str
    region: str
    endpoint: str | None
    lease_ms: int
    create_table: bool
    capacity: tuple[int, int] | None  # read and write units; None pays per request
    creation_timeout_ms: int
    count_holdings: bool
    access_key: str | None = field(repr=False)  # SEC5
    secret_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)

    @property
    def request_ms(self) -> int:
        """Time-out of one request: a tenth of the lease, at most 5 s."""
        return min(REQUEST_MS_MAX, self.lease_ms // REQUESTS_PER_LEASE)

    @property
    def identity(self) -> str:
        """Region or endpoint, table and key; equal for writers that exclude each other."""
        where = self.region if self.endpoint is None else f"{self.region}@{self.endpoint}"
        return f"dynamodb:{where}/{self.table}/{self.key}"

    @classmethod
    def from_properties(
        cls,
        properties: Mapping[str, str],
        *,
        implicit_key: str | None = None,
        machine_region: Callable[[], str | None] = lambda: None,
    ) -> Self:
        """
        Read the settings from all properties; an empty text counts as absent.

        Args:
            properties: Effective properties.
            implicit_key: The path hash for the implicit variant, which ignores the configured key.
            machine_region: Returns a region if the properties have none.

        Raises:
            SettingError: A value is wrong or missing; names key, value and accepted values.
            UnsafeSetupError: ``machine_region`` finds no certain region.
        """
        said = as_property_set(properties)
        read = _PropertyReader(said)
        lease_ms = LockSettings.from_properties(said).try_ms
        if lease_ms < LEASE_MS_MIN:
            read.refuse(
                LockSettings.options["try_ms"],
                str(lease_ms),
                f"at least {LEASE_MS_MIN} milliseconds, because it is also the lease of the "
                "DynamoDB lock",
            )
        given = read.given
        capacity = (read.number("read_units"), read.number("write_units"))
        if (given.access_key is None) != (given.secret_key is None):
            missing = "access_key" if given.access_key is None else "secret_key"
            read.refuse(given.options[missing], "", "a value, because its other half is set")
        return cls(
            table=given.table,
            key=implicit_key or read.key(),
            region=given.region or machine_region() or DEFAULT_REGION,
            endpoint=read.endpoint(),
            lease_ms=lease_ms,
            create_table=given.create_table,
            capacity=capacity if given.billing == "PROVISIONED" else None,
            creation_timeout_ms=read.number("creation_timeout_ms"),
            count_holdings=given.count_holdings,
            access_key=given.access_key,
            secret_key=given.secret_key,
            session_token=given.session_token,
        )


class _PropertyReader:
    """Check values that depend on others or on their layer; an error names key, value and layer."""

    def __init__(self, said: PropertySet) -> None:
        self._said = said
        self.given = DynamoOptions.from_properties(said)

    def number(self, name: str) -> int:
        value = int(getattr(self.given, name))
        if not 1 <= value <= MS_MAX:
            self.refuse(self.given.options[name], str(value), f"a number from 1 to {MS_MAX}")
        return value

    def key(self) -> str:
        """Return the lock's name; like Hudi, fall back to the table's name."""
        declared = self.given.options["partition_key"]
        key = self.given.partition_key or self.given.table_name
        if key is None:
            self.refuse(
                declared,
                "",
                "a name for the lock, equal for all writers of the table, or set hoodie.table.name",
            )
        if len((key + COUNT_SUFFIX).encode()) > KEY_BYTES_MAX:
            self.refuse(declared, key, f"at most {KEY_BYTES_MAX - 32} bytes")
        return key

    def endpoint(self) -> str | None:
        """
        Return the endpoint, if it is allowed.

        Spec: SEC11: only from the caller, no plain HTTP to other machines, no metadata service.
        """
        declared = self.given.options["endpoint"]
        address = self.given.endpoint
        if address is None:
            return None
        if self._said.layer_of(declared.key) == TABLE_LAYER:
            self.refuse(declared, address, "what the writer is given, never what the table says")
        try:
            parts = urlsplit(address)
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            host = ""
        if not host or parts.scheme not in ("http", "https") or "@" in parts.netloc:
            self.refuse(declared, address, "an address http(s)://host:port without a user")
        if _is_metadata_address(host):
            self.refuse(declared, address, "no address of a machine's metadata service")
        if parts.scheme == "http" and not _is_loopback(host) and not self.given.allow_insecure:
            self.refuse(
                declared,
                address,
                "https:// for another machine; plain http only with "
                f"{self.given.options['allow_insecure'].key}=true",
            )
        return address

    def refuse(self, declared: Option, value: str, accepted: str) -> NoReturn:
        layer = self._said.layer_of(declared.key)
        shown = redact(declared.key, value[:200])
        raise SettingError(
            f"this property accepts {accepted}: {declared.key}={shown} (from {layer})",
            kind="setting_value",
            key=declared.key,
            value=shown,
            layer=layer,
            suggestion=accepted,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_metadata_address(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _METADATA_NETWORKS)

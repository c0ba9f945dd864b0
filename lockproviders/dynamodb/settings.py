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
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field

from lockproviders.dynamodb.rows import COUNT_SUFFIX, KEY_BYTES_MAX
from lockproviders.settings import MS_MAX, LockSettings
from timeline.errors import SettingError
from timeline.properties.options import (
    TABLE_LAYER,
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
)
from timeline.system import is_loopback

_PREFIX = "hoodie.write.lock.dynamodb."
_OURS = "hoodoo.lock.dynamodb."

LEASE_MS_MIN = 1_000
REQUESTS_PER_LEASE = 10  # this many timed-out requests fit into one lease
REQUEST_MS_MAX = 5_000
DEFAULT_REGION = "us-east-1"
_METADATA_NETWORKS = tuple(
    ipaddress.ip_network(text) for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32")
)


_Units = Annotated[int, Field(ge=1, le=MS_MAX)]


class DynamoOptions(OptionSettings):
    """The options as they are set; ``DynamoSettings`` is made of them."""

    table: str = option(_PREFIX + "table", "hudi_locks", "Name of the DynamoDB table of the locks.")
    partition_key: str | None = option(
        _PREFIX + "partition_key",
        None,
        "Name of the lock in that table (the value of its key); the table's name by default.",
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
        "AWS region; the variable AWS_REGION, else us-east-1 by default, as in Hudi.",
    )
    endpoint: str | None = option(
        _PREFIX + "endpoint_url",
        None,
        "Another endpoint than that of the region, for local servers.",
    )
    billing: str = option(
        _PREFIX + "billing_mode",
        "PAY_PER_REQUEST",
        "Billing of a table that hoodoo creates.",
        choices=("PAY_PER_REQUEST", "PROVISIONED"),
    )
    read_units: _Units = option(
        _PREFIX + "read_capacity", 20, "Read units of a created table if PROVISIONED."
    )
    write_units: _Units = option(
        _PREFIX + "write_capacity", 10, "Write units of a created table if PROVISIONED."
    )
    creation_timeout_ms: Annotated[_Units, OptionKind.MS] = option(
        _PREFIX + "table_creation_timeout",
        120_000,
        "Milliseconds after which a created table that is not ready is an error.",
    )
    access_key: str | None = option(
        "hoodie.aws.access.key",
        None,
        "AWS access key; the usual chain of environment, profile and role by default.",
        repr=False,
    )
    secret_key: str | None = option(
        "hoodie.aws.secret.key", None, "Secret of the AWS access key.", repr=False
    )
    session_token: str | None = option(
        "hoodie.aws.session.token",
        None,
        "Token of temporary credentials.",
        repr=False,
    )
    create_table: bool = option(
        _OURS + "create.table",
        False,
        "Create the table of the locks if it is missing (Hudi: always).",
    )
    count_holdings: bool = option(
        _OURS + "fencing.token",
        True,
        "Count the holdings in a second row, which gives the fencing token.",
    )
    allow_insecure: bool = option(
        _OURS + "endpoint.allow.insecure",
        False,
        "Accept an http:// endpoint on another machine.",
    )


class DynamoSettings(DynamoOptions):
    """All settings of one DynamoDB lock: its options, and what follows from them."""

    key: str
    lease_ms: int

    @property
    def capacity(self) -> tuple[int, int] | None:
        """Read and write units of a created table; None pays per request."""
        units = (self.read_units, self.write_units)
        return units if self.billing == "PROVISIONED" else None

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
        property_set = as_property_set(properties)
        lease_ms = LockSettings.from_properties(property_set).try_ms
        if lease_ms < LEASE_MS_MIN:
            why = (
                f"this property accepts at least {LEASE_MS_MIN} milliseconds, because it is also "
                "the lease of the DynamoDB lock"
            )
            raise LockSettings.refusal(property_set, "try_ms", why)
        given = DynamoOptions.from_properties(property_set)
        if (given.access_key is None) != (given.secret_key is None):
            missing = "access_key" if given.access_key is None else "secret_key"
            why = "this property accepts a value, because its other half is set"
            raise given.refusal(property_set, missing, why)
        if given.endpoint is not None:
            _check_endpoint(property_set, given, given.endpoint)
        region = given.region or machine_region() or DEFAULT_REGION
        return cls(
            **{**given.model_dump(), "region": region},
            key=implicit_key or _key_of(property_set, given),
            lease_ms=lease_ms,
        )


def _key_of(properties: PropertySet, given: DynamoOptions) -> str:
    """Return the lock's name; like Hudi, fall back to the table's name."""
    key = given.partition_key or given.table_name
    if key is None:
        wanted = "a name for the lock, equal for all writers of the table, or set hoodie.table.name"
        raise given.missing(
            properties, "partition_key", wanted, "the lock provider dynamodb", kind="setting_value"
        )
    if len((key + COUNT_SUFFIX).encode()) > KEY_BYTES_MAX:
        why = f"this property accepts at most {KEY_BYTES_MAX - 32} bytes"
        raise given.refusal(properties, "partition_key", why, value=key)
    return key


def _check_endpoint(properties: PropertySet, given: DynamoOptions, address: str) -> None:
    """Refuse one of the table, of plain HTTP to other machines, or a metadata service (SEC11)."""

    def refusal(accepted: str) -> SettingError:
        return given.refusal(properties, "endpoint", f"this property accepts {accepted}", accepted)

    if properties.layer_of(given.options["endpoint"].key) == TABLE_LAYER:
        raise refusal("the value of the writer's own properties, never one of the table")
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        raise refusal("an address http(s)://host:port without a user")
    if _is_metadata_address(host):
        raise refusal("no address of a machine's metadata service")
    if parts.scheme == "http" and not is_loopback(host) and not given.allow_insecure:
        insecure = given.options["allow_insecure"].key
        raise refusal(f"https:// for another machine; plain http only with {insecure}=true")


def _is_metadata_address(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _METADATA_NETWORKS)

"""
The lock's settings, read from ``hoodie.*`` and ``hoodoo.*`` properties.

Hudi's keys keep Hudi's defaults (release 1.2.0). Our keys add a total deadline and a budget for
holding, which Hudi lacks. Tables map the names of Java classes, which are never imported (SEC4).
"""

from __future__ import annotations

import logging
from typing import Annotated

import xxhash
from pydantic import Field

from lockproviders.hookspecs import LockContext
from timeline.errors import SettingError, UnsafeSetupError
from timeline.ports.ports import StorageCapabilities
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

PROVIDER_KEY = "hoodie.write.lock.provider"


MS_MAX = 7 * 24 * 3_600_000  # a week; a larger value has a wrong unit

_Milliseconds = Annotated[int, Field(ge=0, le=MS_MAX)]


class LockSettings(OptionSettings):
    """All settings of a lock."""

    provider: str | None = option(
        PROVIDER_KEY, None, "Name of the lock provider, or the name of Hudi's class for it."
    )
    try_ms: Annotated[_Milliseconds, OptionKind.MS] = option(
        "hoodie.write.lock.wait_time_ms",
        60_000,
        "Length of one round of waiting for the lock.",
    )
    retries: Annotated[int, Field(ge=0, le=1_000_000)] = option(
        "hoodie.write.lock.client.num_retries", 50, "Further rounds of waiting after the first."
    )
    pause_ms: Annotated[_Milliseconds, OptionKind.MS] = option(
        "hoodie.write.lock.client.wait_time_ms_between_retry",
        5_000,
        "Pause between two rounds, shortened by up to half at random.",
    )
    deadline_ms: Annotated[_Milliseconds, OptionKind.MS] = option(
        "hoodoo.lock.deadline.ms", 120_000, "Longest wait for the lock in all; limits the rounds."
    )
    hold_budget_ms: Annotated[_Milliseconds, OptionKind.MS] = option(
        "hoodoo.lock.hold.budget.ms",
        5_000,
        "Holding the lock for longer raises an alarm; 0 raises none.",
        caller_only=True,
    )
    audit: bool = option(
        "hoodoo.lock.audit",
        False,
        "Write a file for each holding to .hoodie/.locks/audit, after its release.",
    )
    audit_keep_days: Annotated[int, Field(ge=0, le=36_500)] = option(
        "hoodoo.lock.audit.keep.days",
        7,
        "Days after which audit files are deleted; 0 keeps them all.",
    )
    plugins: tuple[str, ...] = option(
        "hoodoo.plugins.allow",
        (),
        "Installed distributions whose plug-ins may be loaded: name or name:entry-point.",
    )
    filesystem_path: str | None = option(
        "hoodie.write.lock.filesystem.path",
        None,
        "Absolute local folder of the lock file; .hoodie/.locks of the table by default.",
    )
    filesystem_expire_minutes: Annotated[int, Field(ge=0, le=MS_MAX // 60_000)] = option(
        "hoodie.write.lock.filesystem.expire",
        0,
        "Minutes after which a holder without a renewal stops; 0 never.",
    )


def default_provider(capabilities: StorageCapabilities) -> str:
    """
    Return the provider that is used if none is named.

    On an object store it is the lock file in the table, so that no writer works without a lock
    (hole 13).

    Raises:
        UnsafeSetupError: Other machines share the storage and it has no conditional writes, so no
            provider here would exclude the other writers.
    """
    if capabilities.local_root is not None:
        return "filesystem"
    if not capabilities.shared_between_processes:
        return "in_process"
    if capabilities.atomic_create:
        return "storage_based"
    raise UnsafeSetupError(
        "this storage is shared with other hosts and has no default lock: name one with "
        f"{PROVIDER_KEY}",
        kind="no_default_lock",
        key=PROVIDER_KEY,
    )


def refuse_from_table(properties: PropertySet, declared: Option) -> None:
    """
    Refuse a server's address from the table's own properties.

    Raises:
        UnsafeSetupError: The address comes from there (SEC11).
    """
    if properties.layer_of(declared.key) == TABLE_LAYER:
        raise UnsafeSetupError(
            "a table must not choose the server of its lock: put the key into the writer's own "
            f"properties: {declared.key}",
            kind="endpoint_from_table",
            key=declared.key,
        )


# ---- The hash of a table's path, which names the lock of Java's implicit lock variants
#
# ZooKeeper and DynamoDB share it. It hashes the path as spelled, unlike the rest of this engine:
# Java 1.2.0 does not normalise (a test of its provider showed it). A normalised path would give
# another lock than Java's. Only ``s3a://`` is read as ``s3://``.

_LOG = logging.getLogger("hoodoo.lock")

SEED = 0xFFFFFFFFDABADABA  # Java's int 0xDABADABA, sign-extended

ADDRESS_OPTION = Option(
    key="hoodoo.lock.table.address",
    doc=(
        "The table's path as the Java writers spell it, for the implicit lock "
        "variants, which hash it. The default is the path that this writer was given."
    ),
)


def path_hash(address: str) -> str:
    """
    Return the XXH64 of a path as Java prints it: 16 upper-case hex digits.

    Args:
        address: The path, exactly as the Java writers are configured.
    """
    if address.startswith("s3a://"):
        address = "s3://" + address.removeprefix("s3a://")
    digest: str = xxhash.xxh64_hexdigest(address.encode("utf-8"), seed=SEED)
    return digest.upper()


def hashed_address(context: LockContext) -> str:
    """
    Return the path whose hash names the lock: the override, else the table as spelled.

    It logs a warning if the spelling differs from the usual one (a slash at the end, blanks). A
    Java writer with the other spelling takes another lock.

    Raises:
        SettingError: There is no path at all.
    """
    address_option = read_option(as_property_set(context.properties), ADDRESS_OPTION)
    address = str(address_option) if address_option else context.table_address
    if not address.strip():
        raise SettingError(
            "the implicit lock uses the table's path as its name: set hoodie.base.path as the "
            f"Java writers do, or {ADDRESS_OPTION.key}",
            key=ADDRESS_OPTION.key,
            value=address,
            suggestion="the value of hoodie.base.path",
        )
    if address.endswith("/") or address != address.strip():
        _LOG.warning(
            "the implicit lock hashes the table's path as it is spelled, and this one ends with "
            "a slash or has blanks around it. Use one spelling in every writer, see %s: %s",
            ADDRESS_OPTION.key,
            ascii(address),
        )
    return address

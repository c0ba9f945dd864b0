"""
The lock's settings, read from ``hoodie.*`` and ``hoodoo.*`` properties.

Hudi's keys keep Hudi's defaults (release 1.2.0); ours add what Hudi lacks: a total
deadline and a budget for holding. Names of Java classes are looked up in tables, never
imported (SEC4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lockproviders.hookspecs import LockOption
from timeline.errors import SettingError, UnsafeSetupError
from timeline.ports.storage import StorageCapabilities

__all__ = ["JAVA_PROVIDERS_TO_COME", "LOCK_OPTIONS", "LockSettings", "default_provider"]

PROVIDER_KEY = "hoodie.write.lock.provider"

_JAVA = "org.apache.hudi.client.transaction.lock."

# Known to Hudi, not in this release: the answer names what to use instead.
JAVA_PROVIDERS_TO_COME: Mapping[str, str] = {
    _JAVA + "ZookeeperBasedLockProvider": "ZooKeeper",
    _JAVA + "ZookeeperBasedImplicitBasePathLockProvider": "ZooKeeper",
    _JAVA + "StorageBasedLockProvider": "storage based",
    "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider": "DynamoDB",
    "org.apache.hudi.aws.transaction.lock.DynamoDBBasedImplicitPartitionKeyLockProvider": (
        "DynamoDB"
    ),
    "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider": "Hive metastore",
}

LOCK_OPTIONS: tuple[LockOption, ...] = (
    LockOption(
        key=PROVIDER_KEY,
        default=None,
        meaning="name of the lock provider, or the name of Hudi's class for it",
    ),
    LockOption(
        key="hoodie.write.lock.wait_time_ms",
        default="60000",
        meaning="how long one round of waiting for the lock lasts, in milliseconds",
    ),
    LockOption(
        key="hoodie.write.lock.client.num_retries",
        default="50",
        meaning="further rounds of waiting after the first",
    ),
    LockOption(
        key="hoodie.write.lock.client.wait_time_ms_between_retry",
        default="5000",
        meaning="pause between two rounds, in milliseconds; shortened by up to half at random",
    ),
    LockOption(
        key="hoodoo.lock.deadline.ms",
        default="120000",
        meaning="longest wait for the lock altogether, in milliseconds; caps the rounds",
    ),
    LockOption(
        key="hoodoo.lock.hold.budget.ms",
        default="5000",
        meaning="holding the lock longer raises an alarm, in milliseconds; 0 never",
    ),
    LockOption(
        key="hoodie.write.lock.filesystem.path",
        default=None,
        meaning="absolute local folder of the lock file; else .hoodie/.locks of the table",
    ),
    LockOption(
        key="hoodie.write.lock.filesystem.expire",
        default="0",
        meaning="minutes after which a holder that did not renew stops itself; 0 never",
    ),
)

MS_MAX = 7 * 24 * 3_600_000  # a week; larger values are a wrong unit


class LockSettings(BaseModel):
    """Everything that can be set about a lock; field aliases are the property keys."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    provider: str | None = Field(default=None, alias=PROVIDER_KEY, min_length=1)
    try_ms: int = Field(default=60_000, alias="hoodie.write.lock.wait_time_ms", ge=0, le=MS_MAX)
    retries: int = Field(
        default=50, alias="hoodie.write.lock.client.num_retries", ge=0, le=1_000_000
    )
    pause_ms: int = Field(
        default=5_000,
        alias="hoodie.write.lock.client.wait_time_ms_between_retry",
        ge=0,
        le=MS_MAX,
    )
    deadline_ms: int = Field(default=120_000, alias="hoodoo.lock.deadline.ms", ge=0, le=MS_MAX)
    hold_budget_ms: int = Field(default=5_000, alias="hoodoo.lock.hold.budget.ms", ge=0, le=MS_MAX)
    filesystem_path: str | None = Field(
        default=None, alias="hoodie.write.lock.filesystem.path", min_length=1
    )
    filesystem_expire_minutes: int = Field(
        default=0, alias="hoodie.write.lock.filesystem.expire", ge=0, le=MS_MAX // 60_000
    )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        The lock settings among all properties.

        Raises:
            SettingError: A value is no number or out of range; names key and value.
        """
        wanted: dict[str, Any] = {}
        for option in LOCK_OPTIONS:
            value = properties.get(option.key)
            if value is not None:
                wanted[option.key] = value.strip()
        try:
            return cls.model_validate(wanted)
        except ValidationError as error:
            raise _setting_error(error, wanted) from None


def _setting_error(error: ValidationError, wanted: Mapping[str, Any]) -> SettingError:
    first = error.errors(include_url=False)[0]
    key = str(first["loc"][0])
    meaning = next((option.meaning for option in LOCK_OPTIONS if option.key == key), "")
    default = next((option.default for option in LOCK_OPTIONS if option.key == key), None)
    suggestion = f"{meaning}; default {default if default is not None else 'none'}"
    return SettingError(
        f"{first['msg'].lower()}; {key} is {suggestion}; got {wanted.get(key)!a}",
        key=key,
        value=str(wanted.get(key)),
        suggestion=suggestion,
    )


def default_provider(capabilities: StorageCapabilities) -> str:
    """
    The provider used when none is named.

    Raises:
        UnsafeSetupError: The storage is shared between processes but not on local disks, so
            nothing here would exclude the other writers.
    """
    if capabilities.local_root is not None:
        return "filesystem"
    if not capabilities.shared_between_processes:
        return "in_process"
    raise UnsafeSetupError(
        "this storage is shared with other machines and has no default lock: "
        f"name one with {PROVIDER_KEY}",
        kind="no_default_lock",
        key=PROVIDER_KEY,
    )

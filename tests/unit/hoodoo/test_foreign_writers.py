"""With writers of other engines only locks that those engines take, too (FOR-1)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from filegroups.settings.settings import WriteSettings
from hoodoo.writer import refuse_unshared_lock
from lockproviders.registry import ProviderRegistry
from timeline.errors import StorageCapabilityError

SHARED = (
    "dynamodb",
    "dynamodb_implicit",
    "hivemetastore",
    "hivemetastore_database",
    "storage_based",
    "zookeeper",
    "zookeeper_implicit",
)
OURS = ("filesystem", "in_process", "sql")


def under(provider: str) -> SimpleNamespace:
    return SimpleNamespace(provider=provider)


def refuse(settings: WriteSettings, lock: SimpleNamespace) -> None:
    refuse_unshared_lock(settings, lock, ProviderRegistry())


EXPECTED = WriteSettings.from_properties({"hoodoo.foreign.writers": "expected"})


def test_every_provider_is_on_one_of_the_two_lists() -> None:
    assert sorted((*SHARED, *OURS)) == list(ProviderRegistry().known)


@pytest.mark.parametrize("provider", SHARED)
def test_locks_that_java_takes_are_accepted(provider: str) -> None:
    refuse(EXPECTED, under(provider))


@pytest.mark.parametrize("provider", OURS)
def test_other_locks_are_refused_and_the_shared_ones_named(provider: str) -> None:
    with pytest.raises(StorageCapabilityError, match=r"hivemetastore.*zookeeper") as caught:
        refuse(EXPECTED, under(provider))
    assert caught.value.kind == "lock_not_shared"


@pytest.mark.parametrize("provider", OURS)
def test_any_lock_is_accepted_without_writers_of_other_engines(provider: str) -> None:
    refuse(WriteSettings.from_properties({}), under(provider))

"""The shipped storage suite detects adapters that break the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.errors import Reaction, StorageCapabilityError, StorageUnavailableError
from timeline.ports.ports import (
    AmbiguousWriteError,
    Names,
    ObjectExistsError,
    Storage,
    StorageCapabilities,
)
from timeline.storage.non_atomic import prove_atomic_create
from timeline.system import SystemIds
from timeline.testing.storage_suite import StorageSuite


class CheckThenPut(MemoryStorage):
    """Checks the name first and puts the object later, so two writers may create one name."""

    def __init__(self) -> None:
        super().__init__()
        self._meeting = threading.Barrier(4)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        taken = self.stat(path) is not None
        if path.startswith("race/"):
            self._meeting.wait(timeout=30)  # as a scheduler may switch threads here
        if taken:
            raise ObjectExistsError(path)
        self.write(path, data)


class IgnoresTheCondition(MemoryStorage):
    """Overwrites, as some object stores do with an unknown condition."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.write(path, data)


class LosesAnAnswer(MemoryStorage):
    """Executes every request; the answer to one create is lost."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.creations = 0
        self._lost = lost

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.creations += 1
        if self.creations != self._lost:
            return super().create(path, data, durable=durable)
        with suppress(ObjectExistsError):
            super().create(path, data, durable=durable)
        raise AmbiguousWriteError(path)


class ListsLeftovers(MemoryStorage):
    """Lists every file that it finds."""

    def names(self, folder: str) -> Names:
        return [*super().names(folder), "x.crc"]


class ClaimsNothing(RecordingStorage):
    """A correct store without conditional creates."""

    @property
    def capabilities(self) -> StorageCapabilities:
        return StorageCapabilities(
            atomic_create=False, shared_between_processes=True, local_root=None
        )


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (CheckThenPut(), StorageSuite.test_racing_creates_have_exactly_one_winner),
        (
            IgnoresTheCondition(),
            StorageSuite.test_create_refuses_a_taken_name_and_keeps_its_bytes,
        ),
        (ListsLeftovers(), StorageSuite.test_leftovers_are_never_listed),
    ],
)
def test_suite_catches_the_mutant(
    mutant: Storage, test: Callable[[StorageSuite, Storage], None]
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(StorageSuite(), mutant)


def test_probe_refuses_a_store_that_ignores_the_condition() -> None:
    storage = IgnoresTheCondition()
    with pytest.raises(StorageCapabilityError) as refused:
        prove_atomic_create(storage, SystemIds())
    assert refused.value.fields["missing"] == "atomic_create"
    assert storage.names(".hoodie/.hoodoo/probe") == []


@pytest.mark.parametrize("lost", [1, 2])
def test_a_probe_with_a_lost_answer_is_repeated_by_the_next_write(lost: int) -> None:
    storage = LosesAnAnswer(lost)
    with pytest.raises(StorageUnavailableError) as refused:
        prove_atomic_create(storage, SystemIds())
    assert refused.value.reaction is Reaction.WAIT
    assert storage.names(".hoodie/.hoodoo/probe") == []
    prove_atomic_create(storage, SystemIds())
    assert storage.creations == lost + 2


def test_a_store_without_the_capability_gets_no_probe() -> None:
    storage = ClaimsNothing(MemoryStorage())
    with pytest.raises(StorageCapabilityError):
        prove_atomic_create(storage, SystemIds())
    assert storage.calls == []


def test_the_race_test_is_skipped_for_a_store_without_the_capability() -> None:
    with pytest.raises(pytest.skip.Exception):
        StorageSuite().test_racing_creates_have_exactly_one_winner(ClaimsNothing(MemoryStorage()))

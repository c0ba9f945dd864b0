"""The shipped suite of slot stores catches those that break the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.timeline.memory import MemoryStorage
from timeline.ports.ports import Names, ObjectExistsError, SlotStore
from timeline.testing.slot_suite import SlotStoreSuite


class MemorySlots(MemoryStorage):
    """The least slot store there is."""

    def close(self) -> None:
        """Nothing is kept open."""


class ReadsThenWrites(MemorySlots):
    """Looks whether the number is free, and takes it later: several may find it free."""

    def __init__(self) -> None:
        super().__init__()
        self._meeting = threading.Barrier(4)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        taken = self.stat(path) is not None
        self._meeting.wait(timeout=30)  # the switch that a scheduler makes now and then
        if taken:
            raise ObjectExistsError(path)
        self.write(path, data)


class Replaces(MemorySlots):
    """The last one wins."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.write(path, data)


class ListsOnePage(MemorySlots):
    """Forgets that answers come in pages."""

    def names(self, folder: str) -> Names:
        return super().names(folder)[:20]


class KeepsDeleted(MemorySlots):
    """A number that was collected can never be taken again."""

    def delete(self, path: str) -> None:
        if self.stat(path) is not None:
            self.write(path, b"deleted")


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (ReadsThenWrites, SlotStoreSuite.test_threads_of_one_client_have_one_winner),
        (Replaces, SlotStoreSuite.test_repeated_create_shows_the_first_nonce),
        (ListsOnePage, SlotStoreSuite.test_many_names_are_all_listed),
        (KeepsDeleted, SlotStoreSuite.test_collected_number_can_be_taken_again),
    ],
)
def test_suite_catches_the_mutant(
    mutant: type[MemorySlots], test: Callable[[SlotStoreSuite, SlotStore], None]
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, ObjectExistsError)):
        test(SlotStoreSuite(), mutant())


class TestMemorySlots(SlotStoreSuite):
    """The honest one passes, but for races of processes."""

    processes = 1
    stores: dict[Path, MemorySlots] = {}  # noqa: RUF012 - a folder is one store, however often opened

    @staticmethod
    def open_store(folder: Path) -> SlotStore:
        return TestMemorySlots.stores.setdefault(folder, MemorySlots())

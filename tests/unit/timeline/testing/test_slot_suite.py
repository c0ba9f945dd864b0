"""The shipped suite of slot stores detects stores that break the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.timeline.memory import MemoryStorage
from timeline.ports.ports import Names, ObjectExistsError, SlotStore
from timeline.testing.slot_suite import SlotStoreSuite


class MemorySlots(MemoryStorage):
    """The simplest valid slot store."""

    def close(self) -> None:
        """No resource is open."""


class ReadsThenWrites(MemorySlots):
    """Checks the number first and takes it later, so several writers may take one number."""

    def __init__(self) -> None:
        super().__init__()
        self._meeting = threading.Barrier(4)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        taken = self.stat(path) is not None
        self._meeting.wait(timeout=30)  # as a scheduler may switch threads here
        if taken:
            raise ObjectExistsError(path)
        self.write(path, data)


class Replaces(MemorySlots):
    """Overwrites: the last writer wins."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.write(path, data)


class ListsOnePage(MemorySlots):
    """Returns only the first page of a listing."""

    def names(self, folder: str) -> Names:
        return super().names(folder)[:20]


class KeepsDeleted(MemorySlots):
    """Never allows a deleted number again."""

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
    """The valid store passes; races between processes are not tested."""

    processes = 1
    stores: dict[Path, MemorySlots] = {}  # noqa: RUF012 - a folder is one store, however often opened

    @staticmethod
    def open_store(folder: Path) -> SlotStore:
        return TestMemorySlots.stores.setdefault(folder, MemorySlots())

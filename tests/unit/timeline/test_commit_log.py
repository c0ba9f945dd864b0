"""The commit log: its head is exact, and a lost answer never becomes a wrong one (UNK)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.timeline.engine import Behind, Far, StillClock, world_of
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.commit_log import encode_slot
from timeline.commit_log import CommitLog
from timeline.errors import (
    CorruptTableError,
    MissingFileError,
    OutcomeUnknownError,
)
from timeline.errors import StorageUnavailableError as Unavailable
from timeline.model.file_names import SLOTS, slot_path
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError
from timeline.system import ThreadExecutor


def slot(number: int, nonce: str = "mine", **changes: object) -> Slot:
    made = Slot(
        number=number,
        table_id="t",
        kind=SlotKind.COMMIT,
        action=Action.COMMIT,
        requested_time=f"2026010203040{number:04d}",
        completion_time=f"2026010203050{number:04d}",
        base=number - 1,
        nonce=nonce,
        owner=SlotOwner(host="h", pid=1, writer_id="w"),
    )
    return replace(made, **changes)


def chain_over(storage: object, *, clock: StillClock | None = None, **more: int) -> CommitLog:
    return CommitLog(world_of(storage, clock=clock or StillClock()), "t", **more)


def filled(*numbers: int) -> MemoryStorage:
    storage = MemoryStorage()
    for number in numbers:
        storage.create(slot_path(number), encode_slot(slot(number)))
    return storage


def test_an_empty_commit_log_has_head_zero():
    assert chain_over(MemoryStorage()).head() == 0


@pytest.mark.spec("SLOT-2")
def test_an_empty_commit_log_is_read_again():
    storage = filled()
    commit_log = chain_over(storage)
    assert not commit_log.is_loaded
    assert [commit_log.head(), commit_log.head()] == [0, 0]
    assert commit_log.is_loaded
    storage.create(slot_path(1), encode_slot(slot(1)))
    assert commit_log.head() == 1
    commit_log.restart()
    assert not commit_log.is_loaded


@pytest.mark.spec("SLOT-2")
def test_an_empty_commit_log_is_found_again_after_its_first_slots_were_truncated():
    """A reader has no low-water mark, so truncation may delete slots that it has not read."""
    storage = filled()
    commit_log = chain_over(storage)
    assert commit_log.head() == 0
    for number in (70, 71):
        storage.create(slot_path(number), encode_slot(slot(number)))
    assert commit_log.head() == 71


def test_on_a_high_latency_store_an_empty_commit_log_is_read_in_one_round():
    asked: list[int] = []

    class Counting(ThreadExecutor):
        def concurrently(self, calls):
            asked.append(len(calls))
            return [call() for call in calls]

    ports = replace(world_of(Far(filled()), clock=StillClock()), executor=Counting())
    commit_log = CommitLog(ports, "t")
    commit_log.head()
    asked.clear()
    assert commit_log.head() == 0
    assert asked == [2]  # the listing and the first slot


def test_the_head_is_the_last_slot_of_the_commit_log():
    assert chain_over(filled(1, 2, 3)).head() == 3


@pytest.mark.spec("SLOT-2")
def test_a_stale_listing_does_not_hide_the_head():
    class Stale(Behind):
        def names(self, folder: str) -> list[str]:
            return self.inner.names(folder)[:1]

    assert chain_over(Stale(filled(1, 2, 3))).head() == 3


@pytest.mark.spec("SLOT-2")
def test_a_stale_listing_does_not_hide_the_first_slot_of_an_empty_commit_log():
    class Stale(Behind):
        def names(self, folder: str) -> list[str]:
            return []

    storage = filled()
    commit_log = chain_over(Stale(storage))
    assert commit_log.head() == 0
    storage.create(slot_path(1), encode_slot(slot(1)))
    assert commit_log.head() == 1


def test_files_that_are_no_slots_do_not_count():
    storage = filled(1)
    storage.create(f"{SLOTS}/notes.txt", b"")
    assert chain_over(storage).head() == 1


def test_known_slots_are_not_read_again():
    observed = RecordingStorage(filled(1, 2, 3))
    commit_log = chain_over(observed)
    commit_log.head()
    commit_log.between(0, 3)
    observed.forget()
    assert [each.number for each in commit_log.between(0, commit_log.head())] == [1, 2, 3]
    assert observed.operations() == [f"read {slot_path(4)}"]


@pytest.mark.spec("SLOT-2")
def test_a_gap_in_the_commit_log_is_reported():
    with pytest.raises(MissingFileError) as caught:
        chain_over(filled(1, 3)).between(0, 3)
    assert caught.value.kind == "slot_missing"


def test_a_damaged_slot_is_reported():
    storage = MemoryStorage()
    storage.create(slot_path(1), b"torn")
    with pytest.raises(CorruptTableError):
        chain_over(storage).read(1)


def test_a_free_number_is_taken():
    storage = filled(1)
    commit_log = chain_over(storage)
    assert commit_log.head() == 1
    assert commit_log.take(slot(2))
    assert commit_log.head() == 2
    assert storage.read(slot_path(2)) == encode_slot(slot(2))


def test_a_taken_number_is_lost():
    commit_log = chain_over(filled(1))
    assert not commit_log.take(slot(1, nonce="late"))
    assert commit_log.read(1).nonce == "mine"


class Unanswered(Behind):
    """Leaves the first creates unanswered, done or not."""

    def __init__(self, inner: MemoryStorage, *fates: str) -> None:
        super().__init__(inner)
        self.fates = list(fates)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        fate = self.fates.pop(0) if self.fates else "answered"
        if fate == "applied":
            self.inner.create(path, data)
        if fate == "taken":
            self.inner.create(path, encode_slot(slot(1, nonce="theirs")))
        if fate == "unavailable":
            raise Unavailable("no answer", path=path)
        if fate != "answered":
            raise AmbiguousWriteError(path)
        self.inner.create(path, data, durable=durable)


@pytest.mark.spec("UNK-1")
@pytest.mark.parametrize(
    ("fates", "won"),
    [
        (["applied"], True),
        (["lost"], True),
        (["lost", "lost", "applied"], True),
        (["unavailable", "unavailable"], True),
        (["taken"], False),
        (["lost", "taken"], False),
    ],
)
def test_an_unanswered_create_is_resolved_by_reading(fates: list[str], won: bool):
    commit_log = chain_over(Unanswered(MemoryStorage(), *fates))
    assert commit_log.take(slot(1)) is won
    assert commit_log.read(1).nonce == ("mine" if won else "theirs")


@pytest.mark.parametrize("fate", ["lost", "unavailable"])
def test_an_answer_that_never_arrives_is_an_unknown_outcome(fate: str):
    clock = StillClock()
    commit_log = chain_over(
        Unanswered(MemoryStorage(), *[fate] * 1_000), clock=clock, unknown_ms_max=5_000
    )
    with pytest.raises(OutcomeUnknownError) as caught:
        commit_log.take(slot(1))
    assert caught.value.fields == {
        "requested_time": "20260102030400001",
        "slot_number": 1,
        "nonce": "mine",
    }
    assert 5_000 < clock.steady <= 7_000
    assert str(caught.value.__cause__) in str(caught.value)  # the last error of the storage


def test_a_taken_slot_that_cannot_be_read_has_an_unknown_outcome():
    class Mute(Behind):
        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            raise ObjectExistsError(path)

        def read(self, path: str) -> bytes:
            raise Unavailable("no answer", path=path)

    clock = StillClock()
    with pytest.raises(OutcomeUnknownError):
        chain_over(Mute(MemoryStorage()), clock=clock, unknown_ms_max=5_000).take(slot(1))
    assert clock.steady <= 7_000

"""The caches, repeated requests and own slots of the commit log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import Behind, Heard, StillClock, world_of
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.commit_log import encode_slot
from timeline.commit_log import CommitLog
from timeline.errors import OutcomeUnknownError
from timeline.model.file_names import slot_path
from timeline.model.slot import Slot
from timeline.ports.ports import AmbiguousWriteError, Ports


def slot(number: int, nonce: str = "mine") -> Slot:
    return commit_slot(number, nonce=nonce)


def filled(*numbers: int) -> MemoryStorage:
    storage = MemoryStorage()
    for number in numbers:
        storage.create(slot_path(number), encode_slot(slot(number)))
    return storage


class Clock(StillClock):
    """A clock that records pauses and starts above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.steady = 1_000_000
        self.pauses: list[int] = []

    def sleep_ms(self, duration_ms: int) -> None:
        self.pauses.append(duration_ms)
        super().sleep_ms(duration_ms)


class Silent(Behind):
    """Leaves the first creates unanswered and undone."""

    def __init__(self, inner: MemoryStorage, silences: int) -> None:
        super().__init__(inner)
        self.silences = silences

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.silences -= 1
        if self.silences >= 0:
            raise AmbiguousWriteError(path)
        self.inner.create(path, data, durable=durable)


def asking(silences: int, **more: int) -> tuple[CommitLog, Clock, Ports]:
    clock = Clock()
    ports = world_of(Silent(MemoryStorage(), silences), clock=clock)
    return CommitLog(ports, "t", **more), clock, ports


def chain_over(storage: object) -> CommitLog:
    return CommitLog(world_of(storage, clock=StillClock()), "t")


DOUBLING = [10, 20, 40, 80, 160, 320, 640]


@pytest.mark.spec("UNK-1")
def test_pauses_double_from_ten_milliseconds_to_a_second():
    commit_log, clock, _ = asking(9)
    assert commit_log.take(slot(1))
    assert clock.pauses == [*DOUBLING, 1_000, 1_000]


@pytest.mark.spec("UNK-3")
@pytest.mark.parametrize(("limit", "pauses"), [(1_269, DOUBLING), (1_270, [*DOUBLING, 1_000])])
def test_an_answer_is_awaited_as_long_as_the_limit_and_no_longer(limit: int, pauses: list[int]):
    """The first seven pauses are 1,270 ms together."""
    commit_log, clock, _ = asking(1_000, unknown_ms_max=limit)
    with pytest.raises(OutcomeUnknownError):
        commit_log.take(slot(1))
    assert clock.pauses == pauses


def test_each_unanswered_create_is_reported_with_number_and_instant():
    commit_log, _, ports = asking(2)
    commit_log.take(slot(1))
    assert isinstance(ports.events, Heard)
    assert ports.events.named("slot.unknown") == [
        {"number": 1, "rt": "20260102030400001"},
        {"number": 1, "rt": "20260102030400001"},
    ]


def test_the_newest_own_slot_is_the_last_one_that_was_taken():
    commit_log = chain_over(filled(1))
    assert commit_log.last_own == 0
    assert commit_log.take(slot(2))
    assert commit_log.last_own == 2
    chain_over_same = commit_log.take(slot(1, nonce="late"))
    assert (chain_over_same, commit_log.last_own) == (False, 2)


@pytest.mark.spec("UNK-3")
def test_an_instant_may_be_committed_from_its_first_request_until_a_known_loss():
    mine = slot(1).requested_time
    assert not chain_over(MemoryStorage()).may_have_committed(mine)

    def won() -> CommitLog:
        commit_log = chain_over(MemoryStorage())
        commit_log.take(slot(1))
        return commit_log

    def lost() -> CommitLog:
        commit_log = chain_over(filled(1))
        commit_log.take(slot(1, nonce="late"))
        return commit_log

    def unanswered() -> CommitLog:
        commit_log, _, _ = asking(1_000, unknown_ms_max=0)
        with pytest.raises(OutcomeUnknownError):
            commit_log.take(slot(1))
        return commit_log

    def disowned() -> CommitLog:
        commit_log = won()
        commit_log.mark_void(slot(1))
        return commit_log

    def ended() -> CommitLog:
        commit_log = won()
        commit_log.ended(mine)
        return commit_log

    ends: list[tuple[Callable[[], CommitLog], bool]] = [
        *((won, True), (lost, False), (unanswered, True), (disowned, False), (ended, False)),
    ]
    assert [end().may_have_committed(mine) for end, _ in ends] == [may for _, may in ends]


def test_a_taken_slot_is_known_without_another_read():
    observed = RecordingStorage(MemoryStorage())
    commit_log = chain_over(observed)
    commit_log.take(slot(1))
    assert observed.operations() == [f"create {slot_path(1)}"]
    assert commit_log.known_head == 1
    assert commit_log.read(1) == slot(1)
    assert observed.operations() == [f"create {slot_path(1)}"]


def test_taking_an_early_number_does_not_lower_the_head():
    commit_log = chain_over(filled(2, 3))
    assert commit_log.head() == 3
    commit_log.take(slot(1))
    assert commit_log.known_head == 3


@pytest.mark.spec("SLOT-2")
def test_the_head_of_a_truncated_commit_log():
    assert chain_over(filled(3, 4)).head() == 4


def test_a_cached_head_continues_from_the_head():
    storage = filled(3, 4)
    commit_log = chain_over(storage)
    assert commit_log.head() == 4
    for number in (5, 6, 9):
        storage.create(slot_path(number), encode_slot(slot(number)))
    commit_log.cached_head()
    assert commit_log.known_head == 6, "slots after a gap are not part of the commit log"


def test_a_stale_cached_head_does_not_lower_the_head():
    class Stale(Behind):
        stale = False

        def names(self, folder: str) -> list[str]:
            names = self.inner.names(folder)
            return names[:1] if self.stale else names

    storage = Stale(filled(3, 4))
    commit_log = chain_over(storage)
    assert commit_log.head() == 4
    storage.stale = True
    commit_log.cached_head()
    assert commit_log.known_head == 4


def test_a_restarted_commit_log_knows_no_slot():
    storage = filled(1, 2, 3)
    commit_log = chain_over(storage)
    assert (commit_log.head(), len(commit_log.between(0, 3))) == (3, 3)
    for number in (1, 2, 3):
        storage.delete(slot_path(number))
    assert (commit_log.head(), len(commit_log.between(0, 3))) == (3, 3), "slots never change"
    commit_log.restart()
    assert commit_log.known_head == 0
    assert (commit_log.read(3), commit_log.head()) == (None, 0)


def test_truncated_slots_leave_the_cache_and_those_above_them_do_not():
    storage = filled(1, 2, 3)
    commit_log = chain_over(storage)
    assert (commit_log.head(), len(commit_log.between(0, 3))) == (3, 3)
    for number in (1, 2, 3):
        storage.delete(slot_path(number))
    commit_log.forget(2)
    assert [commit_log.read(number) is None for number in (1, 2, 3)] == [True, True, False]
    assert commit_log.known_head == 3


def test_slots_are_returned_newest_first_down_to_the_truncation_point():
    commit_log = chain_over(filled(3, 4, 5))
    assert [one.number for one in commit_log.newest_first()] == [5, 4, 3]
    assert [one.number for one in commit_log.newest_first(4)] == [4, 3]
    assert [one.number for one in chain_over(filled(1, 2)).newest_first()] == [2, 1]


def test_between_returns_the_slots_above_the_first_number_up_to_the_second():
    commit_log = chain_over(filled(1, 2, 3, 4))
    assert [one.number for one in commit_log.between(1, 3)] == [2, 3]
    assert commit_log.between(3, 3) == []

"""The wait in a service's own queue: one entry, kept to the end, and always removed."""

from __future__ import annotations

import pytest

from lockproviders.client import QueueingLockClient
from tests.unit.lockproviders.plain_machine import ManualClock, PlainClient, PlainHolding
from timeline.errors import LockTimeoutError, UnavailableError


class PlainPlace:
    def __init__(self, client: QueueClient, clock: ManualClock) -> None:
        self._client = client
        self._clock = clock
        self.waits: list[int] = []
        self.tries = 0
        self.left = 0

    def try_acquire(self) -> PlainHolding | None:
        self.tries += 1
        if self._client.trouble is not None:
            raise self._client.trouble
        if self.tries == self._client.free_at_try:
            return PlainHolding(self._clock)
        return None

    def wait(self, duration_ms: int) -> None:
        self.waits.append(duration_ms)
        self._clock.time_ms += min(duration_ms, self._client.wakes_after_ms)
        self._client.on_wait()

    def leave(self) -> None:
        self.left += 1


class QueueClient(PlainClient):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.places: list[PlainPlace] = []
        self.wakes_after_ms = 1_000_000
        self.on_wait = lambda: None

    def enter(self, owner_text: str) -> PlainPlace:
        self.texts.append(owner_text)
        self.places.append(PlainPlace(self, self._clock))
        return self.places[-1]


@pytest.fixture
def client(machine) -> QueueClient:
    return QueueClient(machine.clock)


def test_client_with_a_queue_is_recognised(machine, client: QueueClient) -> None:
    assert isinstance(client, QueueingLockClient)
    assert not isinstance(machine.client(), QueueingLockClient)
    assert machine.lock(client).is_fifo
    assert not machine.lock(machine.client()).is_fifo


def test_one_acquire_has_one_place_over_all_rounds(machine, client: QueueClient) -> None:
    with pytest.raises(LockTimeoutError):
        machine.lock(client, try_ms=100, retries=2, pause_ms=40).acquire("publish")
    (entry,) = client.places
    assert entry.left == 1
    assert client.tries == 0  # the client makes no attempt outside the queue
    assert machine.clock.sleeps == []  # pauses happen in the queue too
    assert sum(entry.waits) == 360


def test_a_client_that_got_the_lock_does_not_leave_the_queue(machine, client: QueueClient) -> None:
    client.free_at_try = 3
    machine.lock(client).acquire("publish")
    assert [entry.left for entry in client.places] == [0]


def test_each_acquire_has_a_place_and_a_text_of_its_own(machine, client: QueueClient) -> None:
    client.free_at_try = 1
    lock = machine.lock(client)
    lock.acquire("one").release()
    lock.acquire("two").release()
    assert len(client.places) == 2
    assert len(set(client.texts)) == 2


def test_a_woken_client_tries_at_once(machine, client: QueueClient) -> None:
    client.free_at_try = 2
    client.wakes_after_ms = 1
    machine.lock(client, poll_first_ms=500, poll_max_ms=2_000).acquire("publish")
    assert machine.events.fields("lock.acquired")["wait_ms"] == 1


def test_an_interrupted_wait_leaves_the_queue(machine, client: QueueClient) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    client.on_wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        machine.lock(client).acquire("publish")
    assert [entry.left for entry in client.places] == [1]


def test_service_without_answer_keeps_the_place(machine, client: QueueClient) -> None:
    client.trouble = UnavailableError("no answer")
    client.free_at_try = 4

    def recover() -> None:
        if client.places[0].tries == 3:
            client.trouble = None

    client.on_wait = recover
    machine.lock(client).acquire("publish")
    assert [(entry.tries, entry.left) for entry in client.places] == [(4, 0)]


def test_a_client_that_no_longer_wants_the_lock_leaves_the_queue(
    machine, client: QueueClient
) -> None:
    client.free_at_try = 5
    wanted = iter([True, True, False, False])
    assert machine.lock(client).acquire_while(lambda: next(wanted), "publish") is None
    (entry,) = client.places
    assert (entry.tries, entry.left) == (3, 1)


def test_a_free_lock_is_acquired_without_asking_whether_it_is_still_wanted(machine) -> None:
    lease = machine.lock(machine.client()).acquire_while(lambda: False, "publish")
    assert lease is not None

"""
The locks of DynamoDB and of the object store while their service throttles everything.

Each holder notes when it last knew that it may act, on the one clock that all threads share.
Two holders whose notes overlap could both have committed.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from lockproviders.acquire import HeldLease, LockPorts, ProviderLock, WaitBudget
from lockproviders.client import LockClient
from lockproviders.dynamodb.client import ENTRY as DYNAMODB
from lockproviders.hookspecs import LockProviderEntry
from lockproviders.storage_based.client import ENTRY as STORAGE_BASED
from lockproviders.testing.contender import wait_for
from tests.servers.dynamodb import client_of, create_table
from tests.servers.s3 import S3Server, storage_lock_client
from timeline.errors import LeaseLostError, LockTimeoutError
from timeline.system import SystemClock, SystemIds, ThreadExecutor

pytestmark = pytest.mark.integration

LEASE_S = 5.0
SLACK_S = 4.0  # generous: two busy cores, yet less than a lease
LOOK_S = 0.01
SEEN_S = 0.8  # within which a waiter has seen a renewal
CONTENDERS = 3
THROTTLED = {"dynamodb": "dynamodb throttles", "storage_based": "asks for fewer requests"}


class Notes:
    """An event sink that keeps the name and the moment of each event."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []
        self.ends_at = 0.0  # of the lease, as the last answered request set it

    def emit(self, name: str, /, **fields: str | int | float | bool | None) -> None:
        now = time.monotonic()
        self.events.append((now, name))
        left_ms = fields.get("expires_in_ms")
        if isinstance(left_ms, int):
            self.ends_at = now + left_ms / 1000

    def names(self) -> list[str]:
        return [name for _, name in self.events]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One provider on the server, and a lock of this test's own."""

    entry: LockProviderEntry
    server: S3Server
    name: str

    def client(self, lease_s: float) -> LockClient:
        lease_ms = int(lease_s * 1000)
        if self.entry.name == "dynamodb":
            return client_of(self.server.url, self.name, lease_ms=lease_ms)
        return storage_lock_client(self.server.url, self.name, lease_ms=lease_ms)

    def lock(
        self, *, lease_s: float = LEASE_S, deadline_s: float = 60, notes: Notes | None = None
    ) -> ProviderLock:
        """A lock that polls as often as the provider's users do."""
        budget = WaitBudget(
            deadline_ms=int(deadline_s * 1000),
            try_ms=int(deadline_s * 1000),
            retries=0,
            pause_ms=0,
            hold_budget_ms=0,
            poll_first_ms=self.entry.poll_first_ms,
            poll_max_ms=self.entry.poll_max_ms,
        )
        ports = LockPorts(
            clock=SystemClock(),
            ids=SystemIds(),
            events=notes or Notes(),
            executor=ThreadExecutor(),
        )
        return ProviderLock(self.entry.name, self.client(lease_s), budget=budget, ports=ports)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("moto")) as running:
        create_table(running.url)
        yield running


@pytest.fixture(params=[DYNAMODB, STORAGE_BASED], ids=lambda entry: entry.name)
def bench(request: pytest.FixtureRequest, server: S3Server) -> Bench:
    name = request.node.name.replace("[", "-").rstrip("]")
    return Bench(entry=request.param, server=server, name=name)


def act_until(lease: HeldLease, is_over: Callable[[], bool]) -> float:
    """Ask before each act, as a writer does; the moment before the last answer that was yes."""
    last_yes = time.monotonic()
    while not is_over():
        asked_at = time.monotonic()
        try:
            lease.assert_held()
        except LeaseLostError:
            break
        last_yes = asked_at
        time.sleep(LOOK_S)
    return last_yes


def until(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


class Waiter:
    """Waits in a thread of its own."""

    def __init__(self, lock: ProviderLock) -> None:
        self.lock = lock
        self.lease: HeldLease | None = None
        self.error: LockTimeoutError | None = None
        self.got_at = 0.0
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self.lease = self.lock.acquire("waiter")
        except LockTimeoutError as error:
            self.error = error
        self.got_at = time.monotonic()

    def done(self) -> HeldLease:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the lock hangs"
        assert self.lease is not None, self.error
        return self.lease


# ---------------------------------------------------------------- the holder


def throttle_longer_than_a_lease(bench: Bench, *, lease_s: float, throttled_s: float) -> None:
    notes = Notes()
    lock = bench.lock(lease_s=lease_s, notes=notes)
    lease = lock.acquire("publish")
    waiter = Waiter(bench.lock(lease_s=lease_s))
    act_until(lease, lambda: "lock.renewed" in notes.names())
    act_until(lease, until(SEEN_S))  # else it would have to watch for a whole lease more
    with bench.server.throttling():
        began = time.monotonic()
        last_yes = act_until(lease, until(throttled_s))
        lost_at = time.monotonic()
        ends_at = notes.ends_at
        assert waiter.lease is None
        time.sleep(max(0.0, began + throttled_s - lost_at))
    ended = time.monotonic()
    heir = waiter.done()
    margin_s = lock.client.margin_ms / 1000
    assert lost_at - began < lease_s < throttled_s
    assert last_yes < ends_at - margin_s, "no answer was yes within the margin before the end"
    assert lost_at > ends_at - margin_s - 0.25, "nor was one no before it"
    assert "lock.renew_failed" in notes.names()
    assert last_yes < ends_at < waiter.got_at, "two held it at once"
    assert ended < waiter.got_at < ended + SLACK_S
    # Late requests of the lost holder must do no harm.
    with pytest.raises(LeaseLostError):
        lease.assert_held()
    lease.release()
    act_until(heir, until(1.0))
    heir.assert_held()
    refusals = bench.server.throttled / throttled_s
    assert 0.5 < refusals < 20, "neither silence nor a storm"
    lock.close()
    waiter.lock.close()


def test_holder_throttled_for_longer_than_its_lease_stops_before_another_gets_the_lock(
    bench: Bench,
) -> None:
    throttle_longer_than_a_lease(bench, lease_s=LEASE_S, throttled_s=LEASE_S + 2)


@pytest.mark.slow
def test_half_a_minute_of_throttling_costs_a_short_lease_and_makes_no_second_holder(
    bench: Bench,
) -> None:
    throttle_longer_than_a_lease(bench, lease_s=10, throttled_s=30)


def throttle_shorter_than_a_lease(bench: Bench, *, lease_s: float, throttled_s: float) -> None:
    notes = Notes()
    lock = bench.lock(lease_s=lease_s, notes=notes)
    lease = lock.acquire("publish")
    first_end = notes.ends_at
    is_over = until(throttled_s)
    with bench.server.throttling():
        act_until(lease, lambda: is_over() and "lock.renew_failed" in notes.names())
    act_until(lease, lambda: notes.ends_at > first_end)
    lease.assert_held()
    with pytest.raises(LockTimeoutError):
        bench.lock(deadline_s=0.5).acquire("other")
    lease.release()
    assert "lock.renew_failed" in notes.names()
    assert "lock.renewed" in notes.names()
    assert "lock.lost" not in notes.names()
    other = bench.lock(deadline_s=SLACK_S)
    other.acquire("other").release()
    other.close()
    lock.close()


def test_throttling_for_less_than_a_lease_costs_no_lock(bench: Bench) -> None:
    throttle_shorter_than_a_lease(bench, lease_s=2 * LEASE_S, throttled_s=LEASE_S / 2)


@pytest.mark.slow
def test_half_a_minute_of_throttling_costs_no_lease_of_a_minute(bench: Bench) -> None:
    throttle_shorter_than_a_lease(bench, lease_s=60, throttled_s=30)


# ---------------------------------------------------------------- waiting clients


@pytest.mark.slow
def test_free_lock_is_acquired_as_soon_as_the_throttling_ends(bench: Bench) -> None:
    throttled_s = 5.0
    patient, hasty = bench.lock(deadline_s=15), bench.lock(deadline_s=2)
    with bench.server.throttling():
        began = time.monotonic()
        waiter = Waiter(patient)
        with pytest.raises(LockTimeoutError) as caught:
            hasty.acquire("hasty")
        refused_at = time.monotonic()
        time.sleep(max(0.0, began + throttled_s - refused_at))
    ended = time.monotonic()
    waiter.done().release()
    assert refused_at - began < 2 + SLACK_S
    assert THROTTLED[bench.entry.name] in caught.value.message
    assert ended < waiter.got_at < ended + SLACK_S
    patient.close()
    hasty.close()


def test_release_succeeds_after_short_throttling(bench: Bench) -> None:
    notes = Notes()
    lock, other = bench.lock(notes=notes), bench.lock(deadline_s=SLACK_S)
    lease = lock.acquire("publish")
    with contextlib.ExitStack() as moment:
        moment.enter_context(bench.server.throttling())

        def end_the_moment() -> None:
            wait_for(lambda: bench.server.refused() > 0)
            moment.close()

        ending = threading.Thread(target=end_the_moment)
        ending.start()
        lease.release()
        ending.join()
    assert bench.server.throttled > 0
    assert "lock.release_failed" not in notes.names()
    other.acquire("other").release()
    other.close()
    lock.close()


@pytest.mark.slow
def test_lock_that_is_released_while_throttled_is_free_within_a_lease(bench: Bench) -> None:
    notes = Notes()
    lock = bench.lock(notes=notes)
    lease = lock.acquire("publish")
    waiter = Waiter(bench.lock(deadline_s=20))
    with bench.server.throttling():
        lease.release()
        released_at = time.monotonic()
        time.sleep(1)
    waiter.done().release()
    assert "lock.release_failed" in notes.names()
    assert waiter.got_at < released_at + LEASE_S + 2 * SLACK_S
    lock.close()
    waiter.lock.close()


def contend(bench: Bench, *, before_s: float, throttled_s: float, after_s: float) -> None:
    """Several clients alternate before, during and after; none overlap, all continue."""
    stop = threading.Event()
    held: list[tuple[float, float, int]] = []
    failures: list[BaseException] = []

    def work(number: int, lock: ProviderLock) -> None:
        try:
            while not stop.is_set():
                with lock.acquire("turn") as lease:
                    got_at = time.monotonic()
                    held.append((got_at, act_until(lease, until(0.05)), number))
        except BaseException as error:  # noqa: BLE001  told to the test's own thread
            failures.append(error)

    locks = [bench.lock(deadline_s=60) for _ in range(CONTENDERS)]
    threads = [threading.Thread(target=work, args=numbered) for numbered in enumerate(locks)]
    for thread in threads:
        thread.start()
    time.sleep(before_s)
    with bench.server.throttling():
        time.sleep(throttled_s)
    ended = time.monotonic()
    time.sleep(after_s)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "the lock hangs"
    assert failures == []
    held.sort()
    for (_, last_yes, _), (got_at, _, _) in itertools.pairwise(held):
        assert last_yes < got_at, "two held it at once"
    later = {number for got_at, _, number in held if got_at > ended}
    assert later == set(range(CONTENDERS)), "somebody was left behind"
    for lock in locks:
        lock.close()


@pytest.mark.slow
def test_contenders_continue_after_throttling_and_never_overlap(bench: Bench) -> None:
    contend(bench, before_s=1, throttled_s=LEASE_S + 1, after_s=LEASE_S + 3)


@pytest.mark.slow
def test_contenders_continue_after_half_a_minute_of_throttling(bench: Bench) -> None:
    contend(bench, before_s=2, throttled_s=30, after_s=LEASE_S + 5)

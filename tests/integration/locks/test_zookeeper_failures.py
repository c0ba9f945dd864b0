"""
The ZooKeeper lock while holders stop, servers die and the wire is cut.

Invariants: never two that both believe to hold it, and no lock that stays taken.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockproviders.acquire import HeldLease, ProviderLock
from lockproviders.hookspecs import LockContext
from lockproviders.testing.contender import COUNTER, build_lock_over, count_under
from lockproviders.zookeeper.client import ENTRY, ZooKeeperClient
from tests.interop import lock_command
from tests.servers.proxy import FaultProxy
from tests.servers.signals import freeze, thaw
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from timeline.errors import LeaseLostError, LockTimeoutError, UnavailableError
from timeline.system import SystemClock, SystemIds

pytestmark = pytest.mark.integration

SESSION_MS = 3_000
SESSION_S = SESSION_MS / 1000
CONNECTION_MS, REFUSED_MS = 8_000, 1_000  # the shorter one if no server listens
LONG_MS = 4 * SESSION_MS  # where no session has to end
PREFIX = "hoodie.write.lock.zookeeper."
NUMBERS = itertools.count()
TRIES = 4


def properties(
    address: str, key: str, session_ms: int = SESSION_MS, connection_ms: int = CONNECTION_MS
) -> dict[str, str]:
    return {
        PREFIX + "url": address,
        PREFIX + "base_path": "/hudi/locks",
        PREFIX + "lock_key": key,
        PREFIX + "session_timeout_ms": str(session_ms),
        PREFIX + "connection_timeout_ms": str(connection_ms),
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def key() -> str:
    return f"t{next(NUMBERS)}"


@pytest.fixture
def new_client(key: str) -> Iterator[Callable[..., ZooKeeperClient]]:
    made: list[ZooKeeperClient] = []

    def make(
        address: str, session_ms: int = SESSION_MS, connection_ms: int = CONNECTION_MS
    ) -> ZooKeeperClient:
        context = LockContext(
            properties=properties(address, key, session_ms, connection_ms),
            table_identity=key,
            table_address=f"/data/{key}",
            table_folder=None,
            clock=SystemClock(),
            ids=SystemIds(),
        )
        client = ENTRY.factory(context)
        assert isinstance(client, ZooKeeperClient)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def new_lock(new_client: Callable[..., ZooKeeperClient]) -> Callable[..., ProviderLock]:
    def make(
        address: str, *, deadline_ms: int = 30_000, session_ms: int = SESSION_MS
    ) -> ProviderLock:
        return build_lock_over(new_client(address, session_ms), deadline_ms=deadline_ms)

    return make


class OtherProcess:
    """A holder in a process of its own, controlled by lines."""

    def __init__(self, address: str, key: str) -> None:
        said = [f"{name}={value}" for name, value in properties(address, key).items()]
        self._process = subprocess.Popen(
            [sys.executable, str(lock_command.__file__), "zookeeper", *said],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def ask(self, op: str, **more: object) -> dict[str, object]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **more}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def freeze(self) -> None:
        freeze(self._process.pid)

    def thaw(self) -> None:
        thaw(self._process.pid)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, object]:
        assert self._process.stdout is not None
        answer: dict[str, object] = json.loads(self._process.stdout.readline())
        return answer


def is_held(lease: HeldLease) -> bool:
    try:
        lease.assert_held()
    except LeaseLostError:
        return False
    return True


def seconds_until_acquired(lock: ProviderLock) -> tuple[float, HeldLease]:
    began = time.monotonic()
    lease = lock.acquire("next")
    return time.monotonic() - began, lease


# ---------------------------------------------------------------- holders


def test_stopped_holder_is_replaced_and_knows_it_when_resumed(
    server: ZooKeeperServer, key: str, new_lock: Callable[..., ProviderLock]
) -> None:
    zombie = OtherProcess(server.address, key)
    try:
        assert zombie.ask("try", ms=60_000)["ok"]
        zombie.freeze()
        waited_s, lease = seconds_until_acquired(new_lock(server.address, session_ms=LONG_MS))
        assert waited_s < 2 * SESSION_S, "not another one after the first"
        time.sleep(max(0.0, 3 * SESSION_S - waited_s))  # three leases long altogether
        zombie.thaw()
        assert zombie.ask("state")["ok"] is False
        assert zombie.ask("release")["ok"] is True
        assert is_held(lease)
        with pytest.raises(LockTimeoutError):
            new_lock(server.address, deadline_ms=100).acquire("third")
        lease.release()
    finally:
        zombie.end()


def test_lease_without_renewals_ends_although_its_process_runs(
    server: ZooKeeperServer, new_client: Callable[..., ZooKeeperClient], new_lock
) -> None:
    client, lock = new_client(server.address), new_lock(server.address)
    assert lock.holder() is None  # both are connected, or that would count
    assert client.holder() is None
    began = time.monotonic()
    forgotten = client.try_acquire("forgotten")
    assert forgotten is not None
    heir = lock.acquire("next")
    assert SESSION_S * 2 / 3 < time.monotonic() - began < 2 * SESSION_S
    assert not forgotten.is_held()
    heir.release()


def test_killed_waiter_does_not_block_those_behind_it(
    server: ZooKeeperServer, key: str, new_lock: Callable[..., ProviderLock]
) -> None:
    lease = new_lock(server.address, session_ms=LONG_MS).acquire("first")
    waiter = OtherProcess(server.address, key)
    asking = threading.Thread(target=_ask_quietly, args=(waiter,), daemon=True)
    asking.start()
    _wait_until(lambda: _queue_length(server, key) == 2)
    waiter.end()
    lease.release()
    waited_s, heir = seconds_until_acquired(new_lock(server.address))
    assert waited_s < 2 * SESSION_S
    heir.release()


def _ask_quietly(waiter: OtherProcess) -> None:
    with contextlib.suppress(ValueError, OSError):  # it is killed, as planned
        waiter.ask("try", ms=120_000)


# ---------------------------------------------------------------- servers


def test_lock_survives_a_restart_of_the_server(
    tmp_path: Path, key: str, new_lock: Callable[..., ProviderLock]
) -> None:
    for number in range(TRIES):
        with ZooKeeperServer(tmp_path / str(number)) as server:
            lease = new_lock(server.address, session_ms=5 * LONG_MS).acquire("publish")
            ends_s = time.monotonic() + (lease.remaining_ms() or 0) / 1000
            server.restart()
            held = is_held(lease)
            if time.monotonic() > ends_s:  # the machine starved: it has ended by right
                continue
            assert held, "within its session a restart is a delay"
            with pytest.raises(LockTimeoutError):
                new_lock(server.address, deadline_ms=500).acquire("other")
            lease.release()
            new_lock(server.address).acquire("other").release()
            return
    pytest.fail("no restart came within a session's time")


def test_lock_survives_a_connection_that_a_starting_server_never_answers(
    tmp_path: Path, new_lock: Callable[..., ProviderLock]
) -> None:
    with ZooKeeperServer(tmp_path) as server:
        lease = new_lock(server.address, session_ms=5 * LONG_MS).acquire("publish")
        ends_s = time.monotonic() + (lease.remaining_ms() or 0) / 1000
        server.kill()
        with socket.create_server(("127.0.0.1", server.port)) as mute:
            mute.settimeout(LONG_MS / 1000)
            silent, _ = mute.accept()
        with silent:  # the attempt to reconnect waits for its answer
            server.start()
            held = is_held(lease)
        assert held or time.monotonic() > ends_s, "the next attempt finds the server"
        lease.release()


def test_lease_ends_while_the_server_is_away_and_waiting_clients_return(
    tmp_path: Path,
    new_client: Callable[..., ZooKeeperClient],
    new_lock: Callable[..., ProviderLock],
) -> None:
    with ZooKeeperServer(tmp_path) as server:
        lease = new_lock(server.address).acquire("publish")
        server.kill()
        time.sleep(SESSION_S)
        assert not is_held(lease)
        knocking = new_client(server.address, SESSION_MS, REFUSED_MS)
        impatient = build_lock_over(knocking, deadline_ms=300)
        with pytest.raises(LockTimeoutError, match="connection_timeout_ms"):
            impatient.acquire("other")
        server.start()
        assert not is_held(lease), "lost is lost, although the server gives its session new time"
        waited_s, heir = seconds_until_acquired(new_lock(server.address, session_ms=LONG_MS))
        assert waited_s < 2 * SESSION_S
        lease.release()
        assert is_held(heir)


def test_frozen_server_is_a_lost_lease_and_no_hung_caller(
    tmp_path: Path, key: str, new_lock: Callable[..., ProviderLock]
) -> None:
    with ZooKeeperServer(tmp_path) as server:
        holder = new_lock(server.address)
        lease = holder.acquire("publish")
        server.freeze()
        time.sleep(SESSION_S)
        began = time.monotonic()
        assert not is_held(lease)
        holder.close()
        assert time.monotonic() - began < 5 * SESSION_S
        server.thaw()
        new_lock(server.address).acquire("other").release()


def test_leader_dies_while_the_lock_is_held(
    tmp_path: Path, key: str, new_lock: Callable[..., ProviderLock]
) -> None:
    with ZooKeeperEnsemble(tmp_path) as ensemble:
        lease = new_lock(ensemble.address, session_ms=LONG_MS).acquire("publish")
        ensemble.leader().kill()
        assert is_held(lease), "a new leader costs a delay, not the lock"
        with pytest.raises(LockTimeoutError):
            new_lock(ensemble.address, deadline_ms=300).acquire("other")
        lease.release()
        new_lock(ensemble.address).acquire("other").release()


@pytest.mark.slow
def test_counters_stay_right_while_leaders_die(
    tmp_path: Path, key: str, new_lock: Callable[..., ProviderLock]
) -> None:
    rounds, threads = 150, 3
    with ZooKeeperEnsemble(tmp_path / "ensemble") as ensemble:
        done: list[int] = []

        def work() -> None:
            lock = new_lock(ensemble.address)
            for _ in range(rounds):
                try:
                    count_under(lock, tmp_path, 1)
                except LeaseLostError:
                    continue  # stopped before it wrote: not counted, and nothing broken
                done.append(1)

        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for _ in range(2):
            time.sleep(0.5)
            victim = ensemble.leader()
            victim.kill()
            time.sleep(1.0)
            victim.start()
        for thread in running:
            thread.join()
        assert int((tmp_path / COUNTER).read_text()) == len(done)
        assert len(done) > rounds * threads * 0.9


# ---------------------------------------------------------------- the wire


def test_holder_without_connection_stops_before_another_gets_the_lock(
    server: ZooKeeperServer, new_lock: Callable[..., ProviderLock]
) -> None:
    for fault in (FaultProxy.refuse, FaultProxy.stall):
        with FaultProxy(server.port) as proxy:
            lease = new_lock(proxy.address).acquire("publish")
            fault(proxy)
            heirs: list[tuple[float, HeldLease]] = []

            def wait(heirs: list[tuple[float, HeldLease]] = heirs) -> None:
                heir = new_lock(server.address, session_ms=LONG_MS).acquire("heir")
                heirs.append((time.monotonic(), heir))

            waiting = threading.Thread(target=wait)
            waiting.start()
            began = time.monotonic()
            while is_held(lease):
                time.sleep(0.01)
            lost_at = time.monotonic()
            waiting.join()
            got_at, heir = heirs[0]
            assert lost_at < got_at
            assert got_at - began < 2 * SESSION_S
            proxy.heal()
            assert not is_held(lease)
            lease.release()
            assert is_held(heir)
            heir.release()


def test_short_network_failure_costs_nothing(
    server: ZooKeeperServer, new_lock: Callable[..., ProviderLock]
) -> None:
    with FaultProxy(server.port) as proxy:
        lease = new_lock(proxy.address).acquire("publish")
        proxy.cut()
        assert is_held(lease)
        lease.release()


def test_acquire_without_answers_leaves_no_node(
    server: ZooKeeperServer, key: str, new_client: Callable[..., ZooKeeperClient]
) -> None:
    with FaultProxy(server.port) as proxy:
        client = new_client(proxy.address)
        first = client.try_acquire("open the session")
        assert first is not None
        first.release()
        proxy.drop_replies()
        with pytest.raises(UnavailableError):
            client.try_acquire("unheard")
        proxy.heal()
        _wait_until(lambda: _queue_length(server, key) == 0)
        again = client.try_acquire("heard")
        assert again is not None
        again.release()


def test_unanswered_create_is_found_again_and_not_doubled(
    server: ZooKeeperServer, key: str, new_client: Callable[..., ZooKeeperClient]
) -> None:
    with FaultProxy(server.port) as proxy:
        client = new_client(proxy.address)
        assert client.holder() is None
        place = client.enter("me")
        proxy.drop_one_reply()
        with pytest.raises(UnavailableError):
            place.try_acquire()
        _wait_until(lambda: client.session().is_connected)
        holding = place.try_acquire()
        assert holding is not None
        assert _queue_length(server, key) == 1
        holding.release()
        assert _queue_length(server, key) == 0


def test_unanswered_release_frees_the_lock_at_once(
    server: ZooKeeperServer, key: str, new_lock: Callable[..., ProviderLock]
) -> None:
    with FaultProxy(server.port) as proxy:
        lease = new_lock(proxy.address, session_ms=LONG_MS).acquire("publish")
        proxy.drop_replies()
        lease.release()  # reported as an event, not raised
        waited_s, heir = seconds_until_acquired(new_lock(server.address))
        assert waited_s < LONG_MS / 1000 / 2, "not when the session ends"
        heir.release()


def test_failed_connections_leave_no_threads(new_client: Callable[..., ZooKeeperClient]) -> None:
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(UnavailableError):
            new_client("127.0.0.1:1", SESSION_MS, REFUSED_MS).try_acquire("nobody there")
    _wait_until(lambda: threading.active_count() <= before)


def _queue_length(server: ZooKeeperServer, key: str) -> int:
    from kazoo.client import KazooClient

    looker = KazooClient(server.address)
    looker.start()
    try:
        return len(looker.get_children(f"/hudi/locks/{key}"))
    finally:
        looker.stop()
        looker.close()


def _wait_until(condition: Callable[[], bool], *, seconds_max: float = 60.0) -> None:
    end = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.02)

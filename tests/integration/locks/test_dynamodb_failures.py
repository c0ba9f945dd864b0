"""The DynamoDB lock while holders stop and servers go away, on dynalite and moto."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.testing.contender import COUNTER, build_lock_over, count_under, wait_for
from tests.integration.locks import dynamodb_holder
from tests.integration.locks.server_away import server_away_costs_the_lock
from tests.servers.dynamodb import (
    ChildServer,
    DynaliteServer,
    MotoServer,
    boto_client,
    client_of,
    create_table,
    rows,
)
from tests.servers.proxy import FaultProxy
from tests.servers.signals import freeze, thaw
from timeline.errors import UnavailableError, UnsafeSetupError
from timeline.system import SystemClock

pytestmark = pytest.mark.integration

LEASE_MS = 3_000
LONG_MS = 20_000  # where no lease has to end


@pytest.fixture(scope="module")
def dynalite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynaliteServer]:
    with DynaliteServer(tmp_path_factory.mktemp("dynalite")) as server:
        create_table(server.url)
        yield server


@pytest.fixture(
    scope="module", params=[MotoServer, pytest.param(DynaliteServer, marks=pytest.mark.slow)]
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChildServer]:
    with request.param(tmp_path_factory.mktemp("server")) as running:
        create_table(running.url)
        yield running


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A lock of its own for every test."""
    return str(request.node.name)


def start_holder(url: str, key: str) -> subprocess.Popen[str]:
    command = [sys.executable, dynamodb_holder.__file__, url, key, str(LEASE_MS)]
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        command, env=inherited, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert said(holder) == "holding"
    return holder


def said(holder: subprocess.Popen[str]) -> str:
    assert holder.stdout is not None
    return holder.stdout.readline().strip()


def test_frozen_holder_is_followed_within_a_lease_and_learns_it(
    server: ChildServer, key: str
) -> None:
    clock = SystemClock()
    holder = start_holder(server.url, key)
    try:
        heir = build_lock_over(client_of(server.url, key, lease_ms=LONG_MS))
        assert heir.holder() is not None  # connected
        freeze(holder.pid)
        frozen_at_ms = clock.monotonic_ms()
        with heir.acquire("heir") as lease:
            waited_ms = clock.monotonic_ms() - frozen_at_ms
            assert waited_ms < 2 * LEASE_MS, "not another one after the first"
            # the next holder's own renewals continue
            clock.sleep_ms(max(0, 3 * LEASE_MS - waited_ms))
            mine = rows(server.url)[key]["ownerName"]
            thaw(holder.pid)
            assert holder.stdin is not None
            holder.stdin.write("look\n")
            holder.stdin.flush()
            assert said(holder) == "lost"
            assert said(holder) == "closed"
            assert rows(server.url)[key]["ownerName"] == mine, "the zombie touched the heir's row"
            lease.assert_held()
        heir.close()
    finally:
        holder.kill()
        holder.wait()


def test_killed_server_that_restarts_in_time_costs_no_lock(
    dynalite: DynaliteServer, key: str
) -> None:
    lock = build_lock_over(client_of(dynalite.url, key, lease_ms=LONG_MS // 2))
    with lock.acquire("publish") as lease:
        before = rows(dynalite.url)[key]["recordVersionNumber"]
        dynalite.kill()
        lease._renew_at_ms = 0  # due at once
        lease.beat()  # matches no row
        lease.assert_held()
        dynalite.start()
        wait_for(lambda: rows(dynalite.url)[key]["recordVersionNumber"] != before)
        lease.assert_held()
    assert key not in rows(dynalite.url)
    lock.close()


def test_server_away_for_longer_than_a_lease_costs_the_lock_before_others_get_it(
    dynalite: DynaliteServer, key: str
) -> None:
    holder, waiter = (
        client_of(dynalite.url, key, lease_ms=lease_ms) for lease_ms in (LEASE_MS, LONG_MS)
    )
    server_away_costs_the_lock(holder, waiter, dynalite, lease_ms=LEASE_MS)


def test_dropped_replies_make_no_second_holder(
    dynalite: DynaliteServer, key: str, tmp_path: Path
) -> None:
    rounds = 25
    with FaultProxy(dynalite.port) as proxy:
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.15):
                proxy.drop_one_reply()

        url = f"http://{proxy.address}"
        locks = [build_lock_over(client_of(url, key, lease_ms=LONG_MS)) for _ in range(3)]
        failures: list[BaseException] = []

        def work(place: int) -> None:
            try:
                count_under(locks[place], tmp_path, rounds)
            except BaseException as error:  # noqa: BLE001  told to the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
        disturber = threading.Thread(target=disturb)
        for thread in (*threads, disturber):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        disturber.join()
        proxy.heal()
        dropped = proxy.dropped_bytes
        for lock in locks:
            lock.close()
    assert failures == []
    assert dropped > 0
    assert (tmp_path / COUNTER).read_text(encoding="ascii") == str(3 * rounds)


def test_reply_to_the_acquire_lost_on_the_wire_is_found_in_the_row(
    server: ChildServer, key: str
) -> None:
    with FaultProxy(server.port) as proxy:
        client = client_of(f"http://{proxy.address}", key, lease_ms=LONG_MS)
        assert client.holder() is None  # connected
        proxy.drop_one_reply()
        holding = client.try_acquire("me")
        assert holding is not None
        proxy.drop_one_reply()
        holding.renew()
        proxy.drop_one_reply()
        holding.release()
        client.close()
    assert key not in rows(server.url)


def test_refused_connections_are_no_holder(dynalite: DynaliteServer, key: str) -> None:
    with FaultProxy(dynalite.port) as proxy:
        client = client_of(f"http://{proxy.address}", key, lease_ms=LONG_MS)
        proxy.refuse()
        with pytest.raises(UnavailableError):
            client.try_acquire("me")
        proxy.heal()
        holding = client.try_acquire("me")
        assert holding is not None
        holding.release()
        client.close()


def test_two_first_writers_create_the_table_together(tmp_path: Path, key: str) -> None:
    with DynaliteServer(tmp_path / "empty", create_ms=700) as empty:
        further = {"hoodoo.lock.dynamodb.create.table": "true"}
        locks = [
            build_lock_over(client_of(empty.url, key, lease_ms=LEASE_MS, **further))
            for _ in range(3)
        ]
        done: list[str] = []

        def work(place: int) -> None:
            with locks[place].acquire("first"):
                done.append("held")
            locks[place].close()

        threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        table = boto_client(empty.url).describe_table(TableName="hudi_locks")["Table"]
    assert done == ["held"] * 3
    assert table["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]


def test_table_with_another_key_is_refused_with_advice(server: ChildServer, key: str) -> None:
    create_table(server.url, "wrong", hash_key="id")
    wrong = {"hoodie.write.lock.dynamodb.table": "wrong"}
    client = client_of(server.url, key, lease_ms=LEASE_MS, **wrong)
    with pytest.raises(UnsafeSetupError, match="one hash key named 'key'") as caught:
        client.try_acquire("me")
    assert caught.value.kind == "lock_table_schema"
    client.close()


def test_missing_table_is_refused_with_advice(server: ChildServer, key: str) -> None:
    missing = {"hoodie.write.lock.dynamodb.table": "missing"}
    client = client_of(server.url, key, lease_ms=LEASE_MS, **missing)
    with pytest.raises(UnsafeSetupError, match="the table of locks does not exist") as caught:
        client.try_acquire("me")
    assert caught.value.kind == "lock_table_missing"
    client.close()

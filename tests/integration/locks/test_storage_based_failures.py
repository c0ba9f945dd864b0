"""The storage-based lock while holders stop, answers are lost and the store goes away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.testing.contender import COUNTER, build_lock_over, count_under, wait_for
from tests.integration.locks import storage_based_holder
from tests.integration.locks.server_away import server_away_costs_the_lock
from tests.servers.proxy import FaultProxy
from tests.servers.s3 import BUCKET, S3Server, storage_lock_client
from tests.servers.signals import freeze, thaw
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.system import SystemClock

pytestmark = pytest.mark.integration

LEASE_MS = 5_000  # of both holders: the second waits for as long as the first has it
LONG_MS = 20_000  # where no lease has to end


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def table(request: pytest.FixtureRequest) -> str:
    """A lock of its own for every test."""
    return str(request.node.name)


def content(server: S3Server, table: str) -> dict[str, object]:
    key = f"{table}/.hoodie/.locks/table_lock.json"
    found = json.loads(server.client().get_object(Bucket=BUCKET, Key=key)["Body"].read())
    assert isinstance(found, dict)
    return found


def start_holder(url: str, table: str) -> subprocess.Popen[str]:
    command = [sys.executable, storage_based_holder.__file__, url, table, str(LEASE_MS)]
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
    server: S3Server, table: str
) -> None:
    clock = SystemClock()
    holder = start_holder(server.url, table)
    try:
        heir = build_lock_over(storage_lock_client(server.url, table, lease_ms=LEASE_MS))
        assert heir.holder() is not None  # connected
        freeze(holder.pid)
        frozen_at_ms = clock.monotonic_ms()
        with heir.acquire("heir") as lease:
            waited_ms = clock.monotonic_ms() - frozen_at_ms
            assert waited_ms < 2 * LEASE_MS, "not another one after the first"
            clock.sleep_ms(LEASE_MS)  # the next holder's own renewals continue
            nonce = content(server, table)["hoodooNonce"]
            thaw(holder.pid)
            assert holder.stdin is not None
            holder.stdin.write("look\n")
            holder.stdin.flush()
            assert said(holder) == "lost"
            assert said(holder) == "closed"
            now = content(server, table)
            assert (now["hoodooNonce"], now["expired"]) == (nonce, False), "touched by the zombie"
            lease.assert_held()
        heir.close()
    finally:
        holder.kill()
        holder.wait()


def test_store_away_for_longer_than_a_lease_costs_the_lock_before_others_get_it(
    server: S3Server, table: str
) -> None:
    holder, waiter = (storage_lock_client(server.url, table, lease_ms=LEASE_MS) for _ in range(2))
    server_away_costs_the_lock(holder, waiter, server, lease_ms=LEASE_MS)


def test_short_outage_of_the_store_costs_no_lock(server: S3Server, table: str) -> None:
    clock = SystemClock()
    lock = build_lock_over(storage_lock_client(server.url, table, lease_ms=LONG_MS // 2))
    with lock.acquire("publish") as lease:
        before = content(server, table)["validUntil"]
        server.freeze()
        try:
            lease._renew_at_ms = 0  # due at once
            lease.beat()  # matches no object
        finally:
            server.thaw()
        lease.assert_held()
        end_ms = clock.monotonic_ms() + (lease.remaining_ms() or 0)
        wait_for(lambda: clock.monotonic_ms() + (lease.remaining_ms() or 0) > end_ms + 1_000)
        lease.assert_held()
        assert int(str(content(server, table)["validUntil"])) > int(str(before))
    assert content(server, table)["expired"] is True
    lock.close()


@pytest.mark.slow
def test_store_without_the_lock_file_is_a_lost_lock_and_no_crash(
    tmp_path: Path, table: str
) -> None:
    with S3Server(tmp_path / "own") as server:
        lock = build_lock_over(storage_lock_client(server.url, table, lease_ms=LEASE_MS))
        lease = lock.acquire("publish")
        server.restart()  # an empty bucket
        SystemClock().sleep_ms(LEASE_MS)
        with pytest.raises(LeaseLostError):
            lease.assert_held()
        lease.release()
        server.client().delete_bucket(Bucket=BUCKET)
        with pytest.raises(UnsafeSetupError, match="bucket"):
            lock.acquire("again")
        lock.close()


def test_dropped_replies_make_no_second_holder(
    server: S3Server, table: str, tmp_path: Path
) -> None:
    rounds = 20
    with FaultProxy(server.port) as proxy:
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.15):
                proxy.drop_one_reply()

        url = f"http://{proxy.address}"
        locks = [
            build_lock_over(storage_lock_client(url, table, lease_ms=LONG_MS)) for _ in range(3)
        ]
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


def test_lost_replies_are_found_in_the_file(server: S3Server, table: str) -> None:
    with FaultProxy(server.port) as proxy:
        client = storage_lock_client(f"http://{proxy.address}", table, lease_ms=LONG_MS)
        assert client.holder() is None  # connected
        proxy.drop_one_reply()
        with pytest.raises(UnavailableError):
            client.try_acquire("me")  # the read was lost, nothing is taken
        for step in ("acquire", "renew", "release"):
            if step == "acquire":
                holding = _acquired_with_a_lost_answer(client, proxy)
            else:
                proxy.drop_one_reply()
                getattr(holding, step)()
        client.close()
    assert content(server, table)["expired"] is True


def _acquired_with_a_lost_answer(client: object, proxy: FaultProxy) -> object:
    place = client._place  # type: ignore[attr-defined]
    put = place.put

    def drop_then_put(*content: object) -> object:
        place.put = put
        proxy.drop_one_reply()
        return put(*content)

    place.put = drop_then_put  # the proof of the conditions, before it, is no put of the file
    holding = client.try_acquire("me")  # type: ignore[attr-defined]
    assert holding is not None
    return holding


def test_refused_connections_are_no_holder(server: S3Server, table: str) -> None:
    with FaultProxy(server.port) as proxy:
        client = storage_lock_client(f"http://{proxy.address}", table, lease_ms=LONG_MS)
        proxy.refuse()
        with pytest.raises(UnavailableError):
            client.try_acquire("me")

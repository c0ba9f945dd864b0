"""
The metastore's lock by Thrift while holders stop, the metastore dies and answers are lost.

Invariants: never two that both believe to hold it, and no lock that stays taken.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockproviders.hivemetastore.database import LockName
from lockproviders.hivemetastore.thrift_client import ENTRY, HiveMetastoreClient
from lockproviders.hivemetastore.thrift_connection import Address, ThriftWire
from lockproviders.hookspecs import LockContext
from lockproviders.testing.contender import build_lock_over
from tests.interop import lock_command
from tests.servers.hivemetastore import HiveMetastore
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy
from tests.servers.signals import freeze, thaw
from timeline.errors import LeaseLostError, LockTimeoutError, UnavailableError, UnsafeSetupError
from timeline.system import SystemClock, SystemIds

pytestmark = pytest.mark.integration

LEASE_S = 8
LONG_S = 120  # where no lease has to end
PREFIX = "hoodie.write.lock.hivemetastore."
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    folder = tmp_path_factory.mktemp("metastore") / "derby"
    with HiveMetastore(folder, timeout_s=LEASE_S) as server:
        yield warm(server)


def warm(server: HiveMetastore) -> HiveMetastore:
    """It listens before it has opened its database; the first answer is as late as it likes."""
    with contextlib.closing(build_lock_over(client_of(properties(server.uri, "warm")))) as lock:
        lock.acquire("warm").release()
    return server


@pytest.fixture
def table() -> str:
    return f"t{next(NUMBERS)}"


@pytest.fixture
def new_client(table: str) -> Iterator[Callable[..., HiveMetastoreClient]]:
    made: list[HiveMetastoreClient] = []

    def make(uris: str, **more: str) -> HiveMetastoreClient:
        made.append(client_of({**properties(uris, table), **more}))
        return made[-1]

    yield make
    for client in made:
        client.close()


def client_of(settings: dict[str, str]) -> HiveMetastoreClient:
    context = LockContext(
        properties=settings,
        table_identity="unused",
        table_address="unused",
        table_folder=None,
        clock=SystemClock(),
        ids=SystemIds(),
    )
    client = ENTRY.factory(context)
    assert isinstance(client, HiveMetastoreClient)
    return client


def properties(uris: str, table: str) -> dict[str, str]:
    return {PREFIX + "uris": uris, PREFIX + "database": "Default", PREFIX + "table": table}


def rows_of(metastore: HiveMetastore, table: str) -> list[tuple[int, bool]]:
    wire = ThriftWire((Address(host=metastore.host, port=metastore.port),), None)
    wire.connect(10_000)
    try:
        rows = wire.show(LockName(database="Default", table=table))
        return [(row.lock_id, row.acquired) for row in rows]
    finally:
        wire.drop()


def until(condition: Callable[[], object], seconds: float = 60.0) -> float:
    """How long it took until the condition held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


def test_stopped_holder_is_replaced_and_knows_it_when_resumed(
    metastore: HiveMetastore, table: str, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    settings = [f"{key}={value}" for key, value in properties(metastore.uri, table).items()]
    process = subprocess.Popen(
        [sys.executable, str(lock_command.__file__), "--provider", "hivemetastore", *settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(op: str, **more: object) -> dict[str, object]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"op": op, **more}) + "\n")
        process.stdin.flush()
        answer: dict[str, object] = json.loads(process.stdout.readline())
        return answer

    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert ask("try", ms=20_000)["ok"] is True
        time.sleep(LEASE_S / 2)  # it has renewed since
        freeze(process.pid)
        stopped = time.monotonic()
        lease = build_lock_over(new_client(metastore.uri)).acquire("heir")
        assert time.monotonic() - stopped < 2 * LEASE_S
        time.sleep(LEASE_S / 2)  # the next holder's own renewals continue
        thaw(process.pid)
        assert ask("state")["ok"] is False
        ask("release")
        lease.assert_held()
        lease.release()
    finally:
        process.kill()
        process.wait()


def test_lock_outlives_a_killed_and_restarted_metastore(
    tmp_path: Path, table: str, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    # Its reaper begins as it starts: it must not find a lease that ended meanwhile.
    with HiveMetastore(tmp_path / "derby", timeout_s=LONG_S) as metastore:
        client = new_client(warm(metastore).uri)
        holding = client.try_acquire("holder")
        assert holding is not None
        metastore.kill()
        with pytest.raises(UnavailableError, match="no metastore answers"):
            holding.renew()
        metastore.start()
        before_ms = holding.expires_in_ms() or 0
        holding.renew()
        assert (holding.expires_in_ms() or 0) > before_ms
        assert new_client(metastore.uri).try_acquire("rival") is None
        holding.release()
        assert rows_of(metastore, table) == []


def test_lease_ends_while_the_metastore_is_frozen_and_its_late_grant_is_released(
    metastore: HiveMetastore, table: str, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    client = new_client(metastore.uri)
    lease = build_lock_over(client).acquire("holder")
    metastore.freeze()
    try:
        began = time.monotonic()
        second_client = new_client(metastore.uri)
        with pytest.raises(UnavailableError):
            second_client.try_acquire("rival")
        # Connecting and asking for the lease, each bounded; the lease itself is not known yet.
        assert time.monotonic() - began < 60
        with pytest.raises(LeaseLostError):
            lease.assert_held()
    finally:
        metastore.thaw()
    lease.release()
    build_lock_over(second_client).acquire("rival").release()
    client.close()
    second_client.close()
    until(lambda: rows_of(metastore, table) == [])


def test_grant_with_a_lost_answer_is_released(
    metastore: HiveMetastore, table: str, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    with FaultProxy(metastore.port) as proxy:
        client = new_client(f"thrift://{proxy.address}")
        holding = client.try_acquire("first")
        assert holding is not None
        holding.release()
        proxy.drop_one_reply()
        with pytest.raises(UnavailableError):
            client.try_acquire("lost")
        assert rows_of(metastore, table) == []
        again = client.try_acquire("again")
        assert again is not None
        proxy.drop_one_reply()
        again.release()
        assert rows_of(metastore, table) == []


def test_holder_without_answers_stops_before_the_next_one_starts(
    metastore: HiveMetastore, table: str, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    with FaultProxy(metastore.port) as proxy:
        lease = build_lock_over(new_client(f"thrift://{proxy.address}")).acquire("holder")
        proxy.stall()
        lost_at: list[float] = []

        def watch() -> None:
            while not lost_at:
                try:
                    lease.assert_held()
                except LeaseLostError:
                    lost_at.append(time.monotonic())
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        heir = build_lock_over(new_client(metastore.uri)).acquire("heir")
        taken_at = time.monotonic()
        watcher.join()
        assert lost_at[0] < taken_at
        proxy.heal()
        lease.release()
        heir.assert_held()
        heir.release()


def test_silent_holder_is_removed_and_learns_it_at_its_next_heartbeat(
    metastore: HiveMetastore, table: str, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    began = time.monotonic()
    holding = new_client(metastore.uri).try_acquire("silent")
    assert holding is not None
    until(lambda: rows_of(metastore, table) == [])
    # Checked every second; some databases count in whole ones.
    assert LEASE_S - 0.5 < time.monotonic() - began < 2 * LEASE_S
    with pytest.raises(LeaseLostError):
        holding.renew()


def test_addresses_are_tried_one_after_another(
    metastore: HiveMetastore, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    with FaultProxy(metastore.port) as proxy:
        dead = f"thrift://127.0.0.1:{free_port()}"
        client = new_client(f"{dead},thrift://{proxy.address},{metastore.uri}")
        holding = client.try_acquire("me")
        assert holding is not None
        assert proxy.accepted == 1
        proxy.refuse()
        holding.renew()  # by the third
        holding.release()


def test_waiting_writers_do_not_starve_one_that_polls_like_java(
    metastore: HiveMetastore, table: str, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    over = threading.Event()

    def work() -> None:
        lock = build_lock_over(new_client(metastore.uri))
        while not over.is_set():
            lock.acquire("work").release()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        wire = ThriftWire((Address(host=metastore.host, port=metastore.port),), None)
        wire.connect(10_000)
        name = LockName(database="Default", table=table)
        refusals = 0
        while not (granted := wire.lock(name, "host", "Unknown")).acquired:
            wire.unlock(granted.lock_id)
            refusals += 1
            assert refusals < 400
            time.sleep(0.02)
        wire.unlock(granted.lock_id)
        wire.drop()
    finally:
        over.set()
        for worker in workers:
            worker.join()


def test_broken_holder_learns_it(
    metastore: HiveMetastore, new_client: Callable[..., HiveMetastoreClient]
) -> None:
    holding = new_client(metastore.uri).try_acquire("holder")
    other = new_client(metastore.uri)
    assert holding is not None
    assert other.break_lock(other.holder() or "")
    with pytest.raises(LeaseLostError):
        holding.renew()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HiveMetastore, Path]]:
    """A metastore that speaks TLS, and its certificate."""
    folder = tmp_path_factory.mktemp("tls")
    keys, certificate = folder / "keys.jks", folder / "certificate.pem"
    common = ["-alias", "a", "-keystore", str(keys), "-storepass", "changeit"]
    name = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-keyalg", "RSA"]
    for command in (
        ["keytool", "-genkeypair", *common, *name, "-keypass", "changeit", "-validity", "2"],
        ["keytool", "-exportcert", "-rfc", *common, "-file", str(certificate)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    settings = {
        "hive.metastore.use.SSL": "true",
        "hive.metastore.keystore.path": str(keys),
        "hive.metastore.keystore.password": "changeit",
    }
    with HiveMetastore(folder / "server", timeout_s=LEASE_S, settings=settings) as server:
        yield server, certificate


def test_tls_is_used_and_the_server_authenticates(
    tls: tuple[HiveMetastore, Path], new_client: Callable[..., HiveMetastoreClient]
) -> None:
    server, certificate = tls
    ours = "hoodoo.lock.hivemetastore."
    trusted = {ours + "tls": "verify", ours + "tls.ca": str(certificate)}
    trusted[ours + "timeout.ms"] = "60000"  # the first request of a metastore lays out its database
    holding = new_client(server.uri, **trusted).try_acquire("me")
    assert holding is not None
    holding.release()
    with pytest.raises(UnsafeSetupError, match="certificate"):
        new_client(server.uri, **{ours + "tls": "verify"}).try_acquire("me")
    # Right authority, wrong name.
    with pytest.raises(UnsafeSetupError, match="certificate"):
        new_client(f"thrift://localhost:{server.port}", **trusted).try_acquire("me")


def test_plain_client_gets_no_lock_from_a_tls_metastore(
    tls: tuple[HiveMetastore, Path], new_client: Callable[..., HiveMetastoreClient]
) -> None:
    client = new_client(tls[0].uri, **{"hoodoo.lock.hivemetastore.timeout.ms": "500"})
    with pytest.raises(LockTimeoutError):
        build_lock_over(client, deadline_ms=100).acquire("me")

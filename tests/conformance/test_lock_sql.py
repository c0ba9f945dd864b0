"""The SQL lock keeps the contract of every lock provider, on three databases."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.sql.client import ENTRY, SqlClient, SqlSettings, row_name
from lockproviders.testing import LockProviderSuite
from lockproviders.testing.contender import HELD, wait_for
from tests.servers.mariadb import MariaDb
from tests.servers.postgres import Postgres
from tests.servers.proxy import FaultProxy
from tests.servers.signals import freeze, thaw
from timeline.errors import LeaseLostError, StorageUnavailableError, UnsafeSetupError
from timeline.system import SystemClock, SystemIds

# Tests here must not depend on the load of the machine; tests that need an end set it.
LEASE_MS = 60_000
TIMEOUT_MS = 10_000
URL = "url.txt"
TERMS = "terms.json"


def make_client(folder: Path) -> SqlClient:
    """The lock named after a folder, on the database its url file names."""
    written = folder / URL
    url = written.read_text(encoding="ascii") if written.exists() else str(folder / "locks.db")
    terms = folder / TERMS
    ids = SystemIds()
    settings = SqlSettings.from_properties(
        {
            "hoodoo.lock.sql.url": url,
            "hoodoo.lock.sql.create_table": "true",
            "hoodoo.lock.sql.lease.ms": str(LEASE_MS),
            "hoodoo.lock.sql.timeout.ms": str(TIMEOUT_MS),
            **(json.loads(terms.read_text(encoding="ascii")) if terms.exists() else {}),
        }
    )
    return SqlClient(
        settings.database(ids),
        row_name(str(folder)),
        settings=settings,
        clock=SystemClock(),
        ids=ids,
    )


def terms(folder: Path, *, lease_ms: int = LEASE_MS, timeout_ms: int = TIMEOUT_MS) -> None:
    """The settings of clients that are made from now on, in other processes too."""
    settings = {
        "hoodoo.lock.sql.lease.ms": str(lease_ms),
        "hoodoo.lock.sql.timeout.ms": str(timeout_ms),
    }
    (folder / TERMS).write_text(json.dumps(settings), encoding="ascii")


class Suite(LockProviderSuite):
    """The shipped suite, and further tests of a lock with a lease."""

    __test__ = False
    capabilities = ENTRY.capabilities
    make_client = staticmethod(make_client)

    def test_killed_holder_does_not_block_for_ever(self, folder: Path, new_lock) -> None:
        terms(folder, lease_ms=4_000, timeout_ms=500)
        super().test_killed_holder_does_not_block_for_ever(folder, new_lock)

    def test_stopped_holder_is_replaced_in_time_and_learns_it(self, folder: Path, new_lock) -> None:
        clock, lease_ms = SystemClock(), 3_000
        terms(folder, lease_ms=lease_ms, timeout_ms=500)
        mine = new_lock().acquire("stopped")
        mine._stop_watching()  # as a stopped process does to the renewal
        began_ms = clock.monotonic_ms()
        terms(folder)
        with new_lock().acquire("heir") as heir:
            waited_ms = clock.monotonic_ms() - began_ms
            with pytest.raises(LeaseLostError):
                mine.assert_held()
            mine.release()
            heir.assert_held()
            assert heir.fencing_token > mine.fencing_token
        assert waited_ms < 2 * lease_ms, "not another one after the first"

    @pytest.mark.integration
    @pytest.mark.slow
    def test_a_process_that_is_stopped_for_three_leases_is_replaced(
        self, folder: Path, new_lock
    ) -> None:
        lease_ms = 3_000
        terms(folder, lease_ms=lease_ms, timeout_ms=500)
        victim = self._start(folder, "hold")
        try:
            wait_for((folder / HELD).exists)
            freeze(victim.pid)
            terms(folder)
            with new_lock().acquire("heir") as heir:
                SystemClock().sleep_ms(2 * lease_ms)
                thaw(victim.pid)
                SystemClock().sleep_ms(lease_ms // 2)
                heir.assert_held()
        finally:
            victim.kill()
            victim.wait(60)

    def test_broken_lock_is_free_and_its_holder_learns_it(self, new_client) -> None:
        holder, other = new_client(), new_client()
        holding = holder.try_acquire("slow")
        assert not other.break_lock("somebody else")
        assert other.break_lock("slow")
        assert not other.break_lock("slow")
        assert other.holder() is None
        with pytest.raises(LeaseLostError):
            holding.renew()
        assert not holding.is_held()
        holding.release()

    def test_clock_of_the_database_is_known(self, new_client) -> None:
        before_ms = SystemClock().now_ms()
        server_ms = new_client().server_now_ms()
        assert before_ms - 2_000 < server_ms < SystemClock().now_ms() + 2_000

    def test_renewals_extend_the_end_here_and_in_the_database(
        self, folder: Path, new_lock, new_client
    ) -> None:
        terms(folder, lease_ms=6_000, timeout_ms=300)
        clock, looker = SystemClock(), new_client()
        with new_lock().acquire("long") as lease:
            first_end_ms = clock.monotonic_ms() + lease.remaining_ms()
            written_ms = looker._read_row().lease_end_ms
            wait_for(lambda: clock.monotonic_ms() + lease.remaining_ms() > first_end_ms + 1_000)
            lease.assert_held()
            assert looker._read_row().lease_end_ms > written_ms + 1_000


class TestOnSqlite(Suite):
    __test__ = True


@contextlib.contextmanager
def through(server: MariaDb | Postgres, folder: Path) -> Iterator[tuple[FaultProxy, SqlClient]]:
    """A client that was connected by a faulty wire."""
    with FaultProxy(server.port) as proxy:
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        (folder / URL).write_text(url, encoding="ascii")
        with contextlib.closing(make_client(folder)) as client:
            client.try_acquire("warm").release()
            yield proxy, client


class _OnServer(Suite):
    """The same with a server, which can also go away."""

    @pytest.mark.integration
    def test_stopped_holder_is_replaced_in_time_and_learns_it(self, folder: Path, new_lock) -> None:
        super().test_stopped_holder_is_replaced_in_time_and_learns_it(folder, new_lock)

    @pytest.mark.integration
    def test_renewals_extend_the_end_here_and_in_the_database(
        self, folder: Path, new_lock, new_client
    ) -> None:
        super().test_renewals_extend_the_end_here_and_in_the_database(folder, new_lock, new_client)

    @pytest.fixture
    def folder(self, tmp_path: Path, server) -> Path:
        (tmp_path / URL).write_text(server.url, encoding="ascii")
        return tmp_path

    def test_holding_survives_a_restart_of_the_server(self, server, new_client) -> None:
        holder, other = new_client(), new_client()
        holding = holder.try_acquire("patient")
        server.kill()
        try:
            with pytest.raises(StorageUnavailableError):
                holding.renew()
            with pytest.raises(StorageUnavailableError):
                other.try_acquire("impatient")
            assert holding.is_held(), "no answer does not mean that it is lost"
        finally:
            server.restart()
        holding.renew()
        assert other.try_acquire("impatient") is None
        holding.release()
        again = other.try_acquire("impatient")
        assert again.fencing_token > holding.fencing_token
        again.release()

    def test_a_silent_server_delays_no_client_beyond_its_timeout(
        self, folder: Path, server, new_lock, new_client
    ) -> None:
        terms(folder, lease_ms=4_000, timeout_ms=1_000)
        lease, other = new_lock().acquire("held over a stopped server"), new_client()
        assert other.holder() is not None
        clock = SystemClock()
        server.freeze()
        try:
            began_ms = clock.monotonic_ms()
            with pytest.raises(StorageUnavailableError):
                other.try_acquire("waiting")
            assert clock.monotonic_ms() - began_ms < 15_000
            wait_for(lambda: lease.remaining_ms() == 0)
            with pytest.raises(LeaseLostError):
                lease.assert_held()
        finally:
            server.thaw()
        lease.release()
        new_lock().acquire("afterwards").release()

    def test_lost_replies_are_read_back(self, folder: Path, server) -> None:
        with through(server, folder) as (proxy, client):
            proxy.drop_one_reply()
            holding = client.try_acquire("reply lost")
            assert holding is not None, "recognised as its own"
            proxy.drop_one_reply()
            holding.renew()
            proxy.drop_one_reply()
            holding.release()
            assert client.holder() is None

    def test_a_network_that_drops_replies_is_no_answer(self, folder: Path, server) -> None:
        terms(folder, timeout_ms=1_000)
        with through(server, folder) as (proxy, client):
            proxy.drop_replies()
            with pytest.raises(StorageUnavailableError):
                client.try_acquire("no answer")
            proxy.heal()
            holding = client.try_acquire("again")
            assert holding is not None, "its own late request does not block it"
            holding.release()

    @pytest.mark.parametrize(
        ("wrong", "right"), [("geheim", "falsch"), ("/locks", "/nowhere"), ("lock:", "nobody:")]
    )
    def test_wrong_access_is_a_set_up_error(
        self, folder: Path, server, new_client, wrong: str, right: str
    ) -> None:
        url = server.url.replace(wrong, right)
        (folder / URL).write_text(url, encoding="ascii")
        with pytest.raises(UnsafeSetupError, match="cannot be used") as caught:
            new_client().try_acquire("me")
        assert "falsch" not in str(caught.value)


class TestOnMariaDb(_OnServer):
    __test__ = True

    @pytest.fixture
    def server(self, mariadb) -> MariaDb:
        return mariadb


class TestOnPostgres(_OnServer):
    __test__ = True

    @pytest.fixture
    def server(self, postgres) -> Postgres:
        return postgres

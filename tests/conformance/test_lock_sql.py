"""The SQL lock keeps the contract of every lock provider, on three databases."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.sql.client import ENTRY, SqlClient, SqlSettings, row_name
from lockproviders.testing import LockProviderSuite
from lockproviders.testing.contender import HELD, build_lock_over, wait_for
from tests.servers.mariadb import MariaDb
from tests.servers.postgres import Postgres
from tests.servers.proxy import FaultProxy
from timeline.errors import LeaseLostError, StorageUnavailableError, UnsafeSetupError
from timeline.machine import SystemClock, SystemIds

LEASE_MS = 3_000  # a busy machine may keep a database waiting for its disk
URL = "url.txt"


def make_client(folder: Path) -> LockClient:
    """The lock named after a folder, on the database its url file names."""
    written = folder / URL
    url = written.read_text(encoding="ascii") if written.exists() else str(folder / "locks.db")
    ids = SystemIds()
    settings = SqlSettings.from_properties(
        {
            "hoodoo.lock.sql.url": url,
            "hoodoo.lock.sql.create_table": "true",
            "hoodoo.lock.sql.lease.ms": str(LEASE_MS),
            "hoodoo.lock.sql.timeout.ms": "500",
        }
    )
    return SqlClient(
        settings.database(ids),
        row_name(str(folder)),
        settings=settings,
        clock=SystemClock(),
        ids=ids,
    )


class Suite(LockProviderSuite):
    """The shipped suite, and what a lock with a lease must do beside it."""

    __test__ = False
    capabilities = ENTRY.capabilities
    lease_ms = LEASE_MS
    make_client = staticmethod(make_client)

    def test_stopped_holder_is_replaced_in_time_and_finds_out(self, folder: Path, new_lock) -> None:
        clock = SystemClock()
        mine = new_lock().acquire("stopped")
        mine._stop_watching()  # as SIGSTOP does to the renewal
        began_ms = clock.monotonic_ms()
        with new_lock().acquire("heir") as heir:
            waited_ms = clock.monotonic_ms() - began_ms
            with pytest.raises(LeaseLostError):
                mine.assert_held()
            mine.release()
            heir.assert_held()
            assert heir.fencing_token > mine.fencing_token
        assert waited_ms <= self.lease_ms + 1_000

    @pytest.mark.integration
    @pytest.mark.slow
    def test_a_process_that_is_stopped_three_leases_long_is_replaced(
        self, folder: Path, new_lock
    ) -> None:
        victim = self._start(folder, "hold")
        try:
            wait_for((folder / HELD).exists)
            victim.send_signal(signal.SIGSTOP)
            with new_lock().acquire("heir") as heir:
                SystemClock().sleep_ms(2 * self.lease_ms)
                victim.send_signal(signal.SIGCONT)
                SystemClock().sleep_ms(self.lease_ms // 2)
                heir.assert_held()
        finally:
            victim.send_signal(signal.SIGKILL)
            victim.wait(60)

    def test_broken_lock_is_free_and_its_holder_finds_out(self, folder: Path) -> None:
        holder, other = make_client(folder), make_client(folder)
        holding = holder.try_acquire("slow")
        assert not other.break_lock("somebody else")
        assert other.break_lock("slow")
        assert not other.break_lock("slow")
        assert other.holder() is None
        with pytest.raises(LeaseLostError):
            holding.renew()
        assert not holding.is_held()
        holding.release()
        holder.close()
        other.close()

    def test_clock_of_the_database_is_known(self, folder: Path) -> None:
        client = make_client(folder)
        assert abs(client.server_now_ms() - SystemClock().now_ms()) < 2_000
        client.close()

    def test_renewed_holding_outlives_its_first_lease(self, new_lock) -> None:
        with new_lock().acquire("long") as lease:
            SystemClock().sleep_ms(self.lease_ms + 500)
            lease.assert_held()


class TestOnSqlite(Suite):
    __test__ = True


class _OnServer(Suite):
    """The same with a server, which can also go away."""

    @pytest.mark.integration
    def test_stopped_holder_is_replaced_in_time_and_finds_out(self, folder: Path, new_lock) -> None:
        super().test_stopped_holder_is_replaced_in_time_and_finds_out(folder, new_lock)

    @pytest.mark.integration
    def test_renewed_holding_outlives_its_first_lease(self, new_lock) -> None:
        super().test_renewed_holding_outlives_its_first_lease(new_lock)

    @pytest.fixture
    def folder(self, tmp_path: Path, server) -> Path:
        (tmp_path / URL).write_text(server.url, encoding="ascii")
        return tmp_path

    def test_holding_survives_a_restart_of_the_server(self, folder: Path, server) -> None:
        holder, other = make_client(folder), make_client(folder)
        holding = holder.try_acquire("patient")
        server.kill()
        with pytest.raises(StorageUnavailableError):
            holding.renew()
        with pytest.raises(StorageUnavailableError):
            other.try_acquire("impatient")
        assert holding.is_held(), "no answer does not mean that it is lost"
        server.restart()
        holding.renew()
        assert other.try_acquire("impatient") is None
        holding.release()
        again = other.try_acquire("impatient")
        assert again.fencing_token > holding.fencing_token
        again.release()
        holder.close()
        other.close()

    def test_silent_server_does_not_hold_anybody_up(self, folder: Path, server) -> None:
        holder, other = make_client(folder), make_client(folder)
        lock = build_lock_over(holder)
        lease = lock.acquire("held over a stopped server")
        assert other.holder() is not None
        clock = SystemClock()
        server.freeze()
        try:
            began_ms = clock.monotonic_ms()
            with pytest.raises(StorageUnavailableError):
                other.try_acquire("waiting")
            assert clock.monotonic_ms() - began_ms < 6_000
            wait_for(lambda: lease.remaining_ms() == 0, seconds_max=self.lease_ms / 1000)
            with pytest.raises(LeaseLostError):
                lease.assert_held()
        finally:
            server.thaw()
        lock.close()
        other.close()
        build_lock_over(make_client(folder)).acquire("afterwards").release()

    def test_lost_replies_are_read_back(self, folder: Path, server) -> None:
        with FaultProxy(server.port) as proxy:
            url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
            (folder / URL).write_text(url, encoding="ascii")
            client = make_client(folder)
            client.try_acquire("warm").release()
            proxy.drop_one_reply()
            holding = client.try_acquire("reply lost")
            assert holding is not None, "recognised as its own"
            proxy.drop_one_reply()
            holding.renew()
            proxy.drop_one_reply()
            holding.release()
            assert client.holder() is None
            client.close()

    def test_network_that_swallows_replies_is_no_answer(self, folder: Path, server) -> None:
        with FaultProxy(server.port) as proxy:
            url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
            (folder / URL).write_text(url, encoding="ascii")
            client = make_client(folder)
            client.try_acquire("warm").release()
            proxy.drop_replies()
            with pytest.raises(StorageUnavailableError):
                client.try_acquire("no answer")
            proxy.heal()
            holding = client.try_acquire("again")
            assert holding is not None, "its own late request does not stand in the way"
            holding.release()
            client.close()

    @pytest.mark.parametrize(
        ("wrong", "right"), [("geheim", "falsch"), ("/locks", "/nowhere"), ("lock:", "nobody:")]
    )
    def test_wrong_access_is_a_matter_of_set_up(
        self, folder: Path, server, wrong: str, right: str
    ) -> None:
        url = server.url.replace(wrong, right)
        (folder / URL).write_text(url, encoding="ascii")
        with pytest.raises(UnsafeSetupError, match="cannot be used") as caught:
            make_client(folder).try_acquire("me")
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

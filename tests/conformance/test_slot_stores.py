"""Every place that may decide commit slots keeps one contract: storages, databases, DynamoDB."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockproviders.registry import with_slot_store
from lockproviders.sql.database import SqliteDatabase
from lockproviders.sql.slots import SqlSlotStore
from tests.servers.dynamodb import DynaliteServer, MotoServer, lock_properties
from tests.servers.mariadb import MariaDb
from tests.servers.postgres import Postgres
from tests.servers.proxy import FaultProxy
from timeline.errors import StorageUnavailableError, UnsafeSetupError
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError, SlotStore
from timeline.properties.options import PropertySet
from timeline.storage.local import LocalStorage
from timeline.system import SystemClock, SystemIds
from timeline.testing.slot_suite import RACERS, SlotStoreSuite, together

URL = "url.txt"


class LocalSlots(LocalStorage):
    """A storage is a slot store as it is."""

    def close(self) -> None:
        """Nothing is kept open."""


def open_local(folder: Path) -> SlotStore:
    return LocalSlots(folder / "slots")


class TestOnLocalStorage(SlotStoreSuite):
    open_store = staticmethod(open_local)


def options_of(url: str) -> dict[str, str]:
    """The properties of a slot store on the server at an address."""
    if url.startswith("http"):
        return {
            **lock_properties(url, "any", lease_ms=60_000),
            "hoodoo.slots.backend": "dynamodb",
            "hoodoo.lock.dynamodb.create.table": "true",
        }
    return {
        "hoodoo.slots.backend": "sql",
        "hoodoo.lock.sql.url": url,
        "hoodoo.lock.sql.create_table": "true",
        "hoodoo.lock.sql.timeout.ms": "7000",  # a busy disk
    }


def open_from_file(folder: Path) -> SlotStore:
    """The slot store whose address is in a file, with a table of slots for each folder."""
    written = folder / URL
    url = written.read_text(encoding="ascii") if written.exists() else str(folder / "slots.db")
    table = "slots_" + "".join(each for each in folder.name if each.isalnum())[-40:]
    options = {**options_of(url), "hoodoo.slots.table": table}
    decided = with_slot_store(
        LocalStorage(folder),
        PropertySet().with_layer("code", options),
        clock=SystemClock(),
        ids=SystemIds(),
    )
    return decided._store


class TestOnSqlite(SlotStoreSuite):
    open_store = staticmethod(open_from_file)

    def test_slots_survive_a_power_cut(self, store: SlotStore) -> None:
        """Other than locks: the log is synced with every commit."""
        store.create("a/1", b"x")
        assert store._table.database.rows("SELECT synchronous FROM pragma_synchronous") == [(2,)]

    def test_a_missing_table_is_made_only_on_request(self, tmp_path: Path) -> None:
        (tmp_path / "empty.db").touch()
        database = SqliteDatabase(
            str(tmp_path / "empty.db"), may_create=False, ids=SystemIds(), timeout_ms=1_000
        )
        store = SqlSlotStore(database, table="slots", may_create=False)
        assert store.names("a") == []
        with pytest.raises(UnsafeSetupError, match="CREATE TABLE IF NOT EXISTS slots"):
            store.create("a/1", b"x")
        store.close()


class _OnServer(SlotStoreSuite):
    race_numbers = 30
    open_store = staticmethod(open_from_file)

    @pytest.fixture
    def folder(self, tmp_path: Path, server) -> Path:
        (tmp_path / URL).write_text(server.url, encoding="ascii")
        return tmp_path


class _OnDatabaseServer(_OnServer):
    new_connections_only_read: tuple[str, str, str]  # how to set it, and how not and how

    def test_clients_that_create_a_missing_table_concurrently_all_continue(
        self, folder: Path, server
    ) -> None:
        """PostgreSQL refuses IF NOT EXISTS in three ways if another client was faster."""
        for number in range(60):
            each = folder / f"made{number}"
            each.mkdir()
            (each / URL).write_text(server.url, encoding="ascii")
            with contextlib.ExitStack() as opened:
                clients = [
                    opened.enter_context(closing(open_from_file(each))) for _ in range(RACERS)
                ]
                for client in clients:
                    assert client.names("a") == []  # connected before they begin
                together(lambda racer, clients=clients: clients[racer].create(f"a/{racer}", b"x"))
                assert len(clients[0].names("a")) == RACERS

    def test_a_read_only_server_is_skipped_for_the_primary(self, folder: Path, server) -> None:
        """After a failover the connection to the old primary stays open and useless for ever."""
        setting, off, on = self.new_connections_only_read
        with closing(open_from_file(folder)) as store:
            store.create("a/1", b"warm")
            store.close()
            server.execute(setting.format(on))
            try:
                with pytest.raises(StorageUnavailableError):
                    store.create("a/2", b"x")
            finally:
                server.execute(setting.format(off))
            store.create("a/2", b"x")
            assert store.read("a/2") == b"x"

    def test_a_lost_answer_is_raised_and_the_repetition_finds_the_nonce(
        self, folder: Path, server
    ) -> None:
        """UNK-1: the outcome is unknown until the same name is requested again."""
        with FaultProxy(server.port) as proxy:
            url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
            (folder / URL).write_text(url, encoding="ascii")
            store = open_from_file(folder)
            store.create("a/1", b"warm")
            proxy.drop_one_reply()
            with pytest.raises(AmbiguousWriteError):
                store.create("a/2", b"mine")
            with pytest.raises(ObjectExistsError):
                store.create("a/2", b"mine")
            assert store.read("a/2") == b"mine"
            store.close()


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="module")
def dynalite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynaliteServer]:
    with DynaliteServer(tmp_path_factory.mktemp("dynalite")) as server:
        yield server


@pytest.mark.integration
class TestOnMariaDb(_OnDatabaseServer):
    new_connections_only_read = "SET GLOBAL tx_read_only = {}", "OFF", "ON"

    @pytest.fixture
    def server(self, mariadb) -> MariaDb:
        return mariadb

    @pytest.mark.spec("SLOT-6")
    def test_slots_are_kept_in_an_engine_that_survives_a_crash(
        self, folder: Path, server: MariaDb
    ) -> None:
        """Whatever the server's default is; a table with another engine is refused."""
        tables = "SELECT table_name, engine FROM information_schema.tables"
        server.execute("SET GLOBAL default_storage_engine = MyISAM")
        try:
            with closing(open_from_file(folder)) as store:
                store.create("a/1", b"x")
                name = store.identity.rpartition("#")[2]
                made = server.execute(f"{tables} WHERE table_name = '{name}'")
                assert made == [(name, "InnoDB")]
        finally:
            server.execute("SET GLOBAL default_storage_engine = InnoDB")
        server.execute(f"ALTER TABLE locks.{name} ENGINE=MyISAM")
        with closing(open_from_file(folder)) as store:
            assert store.read("a/1") == b"x"
            with pytest.raises(
                UnsafeSetupError, match=f"ALTER TABLE {name} ENGINE=InnoDB"
            ) as caught:
                store.create("a/2", b"x")
            assert caught.value.kind == "slot_table_engine"
            server.execute(f"ALTER TABLE locks.{name} ENGINE=InnoDB")
            store.create("a/2", b"x")


@pytest.mark.integration
class TestOnPostgres(_OnDatabaseServer):
    new_connections_only_read = (
        f"ALTER DATABASE {Postgres.database} SET default_transaction_read_only = {{}}",
        "off",
        "on",
    )

    @pytest.fixture
    def server(self, postgres) -> Postgres:
        return postgres

    def test_a_slot_longer_than_the_sockets_buffer_arrives(
        self, folder: Path, server: Postgres
    ) -> None:
        """On a wire of some milliseconds the buffer takes less than a big commit's slot."""
        with FaultProxy(server.port) as proxy:
            url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
            (folder / URL).write_text(url, encoding="ascii")
            with closing(open_from_file(folder)) as store:
                store.create("a/1", b"warm")
                wire = os.dup(store._table.database._connection.pgconn.socket)
                with socket.socket(fileno=wire) as same:
                    same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
                proxy.stall()
                healer = threading.Timer(0.3, proxy.heal)
                healer.start()
                store.create("a/2", b"x" * 262_144)
                healer.join()
                assert len(store.read("a/2")) == 262_144

    def test_a_process_with_a_thousand_open_files_is_answered(
        self, folder: Path, server: Postgres
    ) -> None:
        """A big Spark driver has them, and ``select`` refuses descriptors above 1023."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2_048), before[1]))
        taken = []
        try:
            while not taken or taken[-1] < 1_024:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            with closing(open_from_file(folder)) as store:
                store.create("a/1", b"x")
                assert store.read("a/1") == b"x"
        finally:
            for each in taken:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def test_slots_survive_a_server_crash_with_asynchronous_commits(
        self, folder: Path, server: Postgres
    ) -> None:
        """Other than locks: a number whose row is lost would be taken again."""
        server.execute(f"ALTER DATABASE {server.database} SET synchronous_commit = off")
        try:
            with closing(open_from_file(folder)) as store:
                for number in range(30):
                    store.create(f"a/{number}", b"x")
                server.kill()
                server.restart()
                assert len(store.names("a")) == 30
        finally:
            server.execute(f"ALTER DATABASE {server.database} RESET synchronous_commit")


@pytest.mark.integration
class TestOnMoto(_OnServer):
    @pytest.fixture
    def server(self, moto) -> MotoServer:
        return moto


@pytest.mark.integration
@pytest.mark.slow
class TestOnDynalite(_OnServer):
    @pytest.fixture
    def server(self, dynalite) -> DynaliteServer:
        return dynalite

"""
The metastore's lock rows, written by its Thrift service and by us concurrently.

Both must have the same form; and the database dies, freezes and loses answers here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.hivemetastore import database_client as hivemetastore_database
from lockproviders.hivemetastore import thrift_client as hivemetastore
from lockproviders.hivemetastore.database import MetastoreRows
from lockproviders.hivemetastore.database_client import DatabaseSettings, MetastoreDatabaseClient
from lockproviders.hookspecs import LockContext, LockProviderEntry
from lockproviders.testing.contender import COUNTER, build_lock_over, count_under
from tests.interop import lock_command
from tests.servers import server_missing
from tests.servers.hivemetastore import (
    DATABASE,
    PASSWORD,
    USER,
    HiveMetastore,
    lay_out_lock_tables,
    needs_mariadb_driver,
)
from tests.servers.mariadb import MariaDb, needs_mariadb
from tests.servers.proxy import FaultProxy
from tests.servers.signals import freeze, thaw
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.system import SystemClock, SystemIds

pytestmark = pytest.mark.integration

LEASE_S = 8
THRIFT = "hoodie.write.lock.hivemetastore."
OURS = "hoodoo.lock.hivemetastore_database."
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    needs_mariadb()
    needs_mariadb_driver()
    with MariaDb(tmp_path_factory.mktemp("database") / "data") as server:
        lay_out_lock_tables(server)
        yield server


@pytest.fixture(scope="module")
def metastore(
    tmp_path_factory: pytest.TempPathFactory, database: MariaDb
) -> Iterator[HiveMetastore]:
    folder = tmp_path_factory.mktemp("metastore") / "service"
    with HiveMetastore(folder, mariadb=database, timeout_s=LEASE_S) as server:
        settings = lock_of(database, server)
        with contextlib.closing(build_lock_over(client_of(hivemetastore.ENTRY, settings))) as lock:
            lock.acquire("warm").release()  # it listens before it has opened its database
        yield server


@pytest.fixture
def properties(database: MariaDb, metastore: HiveMetastore) -> dict[str, str]:
    """Of one lock, for both ways to it."""
    return lock_of(database, metastore)


def lock_of(database: MariaDb, metastore: HiveMetastore) -> dict[str, str]:
    return {
        THRIFT + "uris": metastore.uri,
        THRIFT + "database": "Default",
        THRIFT + "table": f"t{next(NUMBERS)}",
        OURS + "url": f"mysql://{database.host}:{database.port}/{DATABASE}",
        OURS + "user": USER,
        OURS + "password": PASSWORD,
        OURS + "lease.ms": str(LEASE_S * 1000),
    }


@pytest.fixture
def make(properties: dict[str, str]) -> Iterator[Callable[..., LockClient]]:
    made: list[LockClient] = []

    def build(entry: LockProviderEntry = hivemetastore_database.ENTRY, **more: str) -> LockClient:
        made.append(client_of(entry, {**properties, **more}))
        return made[-1]

    yield build
    for client in made:
        client.close()


def client_of(entry: LockProviderEntry, properties: dict[str, str]) -> LockClient:
    context = LockContext(
        properties=properties,
        table_identity="unused",
        table_address="unused",
        table_folder=None,
        clock=SystemClock(),
        ids=SystemIds(),
    )
    return entry.factory(context)


def rows_of(database: MariaDb, properties: dict[str, str]) -> list[tuple[object, ...]]:
    return database.execute(
        "select HL_LOCK_INT_ID, HL_TXNID, HL_DB, HL_TABLE, HL_PARTITION, HL_LOCK_STATE, "
        "HL_LOCK_TYPE, HL_USER, HL_HEARTBEAT_COUNT, HL_BLOCKEDBY_EXT_ID, HL_BLOCKEDBY_INT_ID, "
        "HL_LOCK_EXT_ID, HL_HOST, HL_ACQUIRED_AT, HL_LAST_HEARTBEAT "
        f"from HIVE_LOCKS where HL_TABLE = '{properties[THRIFT + 'table']}'",
        database=DATABASE,
    )


def test_our_row_is_the_one_the_metastore_writes(
    make: Callable[..., LockClient], database: MariaDb, properties: dict[str, str]
) -> None:
    rows, now_ms = [], time.time() * 1000
    for entry in (hivemetastore.ENTRY, hivemetastore_database.ENTRY):
        holding = make(entry).try_acquire("me")
        assert holding is not None
        rows += rows_of(database, properties)
        holding.release()
    theirs, ours = rows
    assert theirs[:11] == ours[:11]
    assert ours[:9] == (
        *(1, 0, "Default", properties[THRIFT + "table"], None, "a", "e", "hoodoo", None),
    )
    assert ours[11] == theirs[11] + 1  # ids are drawn from one count
    assert ours[12] == theirs[12]
    for time_ms in (*theirs[13:], *ours[13:]):
        assert abs(time_ms - now_ms) < 60_000  # milliseconds of UTC and no other zone's


@pytest.mark.parametrize("first", [hivemetastore.ENTRY, hivemetastore_database.ENTRY])
def test_each_way_respects_the_other(
    make: Callable[..., LockClient], first: LockProviderEntry
) -> None:
    entries = {hivemetastore.ENTRY.name: hivemetastore.ENTRY}
    entries[hivemetastore_database.ENTRY.name] = hivemetastore_database.ENTRY
    second = next(entry for name, entry in entries.items() if name != first.name)
    holding = make(first).try_acquire("first")
    second_client = make(second)
    assert holding is not None
    assert second_client.try_acquire("second") is None
    assert "first" in (second_client.holder() or "")
    holding.release()
    taken = second_client.try_acquire("second")
    assert taken is not None
    assert (taken.fencing_token or 0) > (holding.fencing_token or 0)


def test_both_ways_count_right_together(make: Callable[..., LockClient], tmp_path: Path) -> None:
    entries = [hivemetastore.ENTRY, hivemetastore_database.ENTRY] * 2
    failures: list[BaseException] = []

    def work(entry: LockProviderEntry) -> None:
        try:
            count_under(build_lock_over(make(entry)), tmp_path, 15)
        except BaseException as error:  # noqa: BLE001  told to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(entry,)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (tmp_path / COUNTER).read_text() == "60"


def test_stopped_holder_is_replaced_and_knows_it_when_resumed(
    make: Callable[..., LockClient], properties: dict[str, str]
) -> None:
    settings = [f"{key}={value}" for key, value in properties.items()]
    name = hivemetastore_database.ENTRY.name
    process = subprocess.Popen(
        [sys.executable, str(lock_command.__file__), "--provider", name, *settings],
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
        freeze(process.pid)
        stopped = time.monotonic()
        lease = build_lock_over(make()).acquire("heir")
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


def test_lock_outlives_a_killed_and_restarted_database(
    make: Callable[..., LockClient], database: MariaDb
) -> None:
    holding = make().try_acquire("holder")
    assert holding is not None
    database.kill()
    with pytest.raises(UnavailableError):
        holding.renew()
    database.restart()
    holding.renew()
    assert make().try_acquire("rival") is None
    holding.release()


def test_frozen_database_is_waited_for_but_not_for_ever(
    make: Callable[..., LockClient], database: MariaDb
) -> None:
    lease = build_lock_over(make()).acquire("holder")
    second_client = make()
    assert second_client.try_acquire("rival") is None
    database.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            second_client.try_acquire("rival")
        assert time.monotonic() - began < 20
        while time.monotonic() - began < LEASE_S:
            time.sleep(0.1)
        with pytest.raises(LeaseLostError):
            lease.assert_held()
    finally:
        database.thaw()
    lease.release()
    build_lock_over(second_client).acquire("rival").release()


class CutAtCommit(MetastoreRows):
    """Loses the answer to the commit of the next acquire."""

    proxy: FaultProxy | None = None

    def _run(self, statement: str, *values: str | int) -> object:
        answer = super()._run(statement, *values)
        if statement.startswith("INSERT INTO HIVE_LOCKS") and self.proxy is not None:
            self.proxy.drop_one_reply()
            self.proxy = None
        return answer


def test_commit_with_a_lost_answer_is_recognised(
    database: MariaDb, properties: dict[str, str]
) -> None:
    with FaultProxy(database.port) as proxy:
        through = {**properties, OURS + "url": f"mysql://{proxy.address}/{DATABASE}"}
        settings = DatabaseSettings.from_properties(through)
        tables = CutAtCommit(settings.server)
        tables.proxy = proxy
        client = MetastoreDatabaseClient(settings, tables, clock=SystemClock(), ids=SystemIds())
        holding = client.try_acquire("me")
        assert proxy.accepted == 2
        assert proxy.dropped_bytes > 0
        assert holding is not None
        assert len(rows_of(database, properties)) == 1
        holding.renew()
        holding.release()
        assert rows_of(database, properties) == []
        client.close()


def test_process_stopped_in_a_transaction_does_not_keep_the_metastores_mutex(
    make: Callable[..., LockClient], properties: dict[str, str]
) -> None:
    stopped = MetastoreRows(DatabaseSettings.from_properties(properties).server)
    stopped.connect(1_000)
    stopped._lock_mutex()  # and nothing more is heard of it
    began = time.monotonic()
    lease = build_lock_over(make(hivemetastore.ENTRY)).acquire("by thrift")
    assert time.monotonic() - began < 20  # the database itself waits for fifty
    lease.release()
    stopped.drop()


def test_user_with_the_documented_rights_can_lock_and_one_without_gets_an_error(
    make: Callable[..., LockClient], database: MariaDb
) -> None:
    here = f"'{database.host}'"
    database.execute(
        f"create user few@{here} identified by 'few-secret'",
        f"create user none@{here} identified by 'none-secret'",
        f"grant select, insert, update, delete on {DATABASE}.HIVE_LOCKS to few@{here}",
        f"grant select, update on {DATABASE}.NEXT_LOCK_ID to few@{here}",
        f"grant select, insert, update on {DATABASE}.AUX_TABLE to few@{here}",
        f"grant select on {DATABASE}.NEXT_TXN_ID to none@{here}",
    )
    few = {OURS + "user": "few", OURS + "password": "few-secret"}
    holding = make(**few).try_acquire("me")
    assert holding is not None
    holding.renew()
    holding.release()
    none = {OURS + "user": "none", OURS + "password": "none-secret"}
    with pytest.raises(UnsafeSetupError, match="HIVE_LOCKS") as caught:
        make(**none).try_acquire("me")
    wrong = {OURS + "user": "few", OURS + "password": "wrong-secret"}
    with pytest.raises(UnsafeSetupError) as denied:
        make(**wrong).try_acquire("me")
    assert "secret" not in str(caught.value) + str(denied.value)


def test_other_tables_are_not_taken_for_the_metastores(
    make: Callable[..., LockClient], database: MariaDb
) -> None:
    database.create_database("empty", user=USER, password=PASSWORD)
    url = f"mysql://{database.host}:{database.port}/empty"
    with pytest.raises(UnsafeSetupError, match="AUX_TABLE, HIVE_LOCKS, NEXT_LOCK_ID"):
        make(**{OURS + "url": url}).try_acquire("me")


@pytest.mark.parametrize("name", ["x; drop table HIVE_LOCKS", "%s %(a)s {}", "-- #", "a=1 or 1=1"])
def test_names_are_values_and_never_statements(
    make: Callable[..., LockClient], database: MariaDb, name: str
) -> None:
    for entry in (hivemetastore.ENTRY, hivemetastore_database.ENTRY):
        named = {THRIFT + "database": name, THRIFT + "table": name}
        holding = make(entry, **named).try_acquire("x'); delete from HIVE_LOCKS; -- ")
        assert holding is not None
        found_rows = database.execute("select HL_DB, HL_TABLE from HIVE_LOCKS", database=DATABASE)
        assert (name, name) in found_rows
        holding.release()


@pytest.mark.slow
def test_metastore_in_another_time_zone_is_detected_by_its_rows(
    make: Callable[..., LockClient],
    database: MariaDb,
    properties: dict[str, str],
    tmp_path: Path,
) -> None:
    zone = ("-Duser.timezone=Etc/GMT+5",)  # its java takes the database's UTC for local time
    with HiveMetastore(tmp_path / "there", mariadb=database, timeout_s=LEASE_S, jvm=zone) as other:
        away = {THRIFT + "uris": other.uri, THRIFT + "table": properties[THRIFT + "table"]}
        theirs = make(hivemetastore.ENTRY, **away)
        holding = theirs.try_acquire("there")
        assert holding is not None
        with pytest.raises(UnsafeSetupError, match=r"clock\.offset\.ms") as caught:
            make(**away).try_acquire("here")
        assert abs(caught.value.fields["ahead_ms"] - 5 * 3_600_000) < 10_000
        holding.release()
        right = {OURS + "clock.offset.ms": str(5 * 3_600_000)}
        ours = make(**away, **right).try_acquire("here")
        assert ours is not None
        time.sleep(2.5)  # the reaper ran, and the lock was too young
        ours.renew()
        ours.release()


def test_server_without_tls_is_refused_when_tls_is_required(
    make: Callable[..., LockClient],
) -> None:
    with pytest.raises(UnsafeSetupError) as caught:
        make(**{OURS + "tls": "verify"}).try_acquire("me")
    assert caught.value.kind == "tls"


def test_server_with_tls_authenticates(
    make: Callable[..., LockClient], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if shutil.which("openssl") is None:
        server_missing("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    options = (f"--ssl-cert={certificate}", f"--ssl-key={key}")
    with MariaDb(folder / "data", options=options) as server:
        lay_out_lock_tables(server)
        trusted = {OURS + "tls": "verify", OURS + "tls.ca": str(certificate)}
        url = {OURS + "url": f"mysql://{server.host}:{server.port}/{DATABASE}"}
        holding = make(**url, **trusted).try_acquire("me")
        assert holding is not None
        holding.release()
        with pytest.raises(UnsafeSetupError) as caught:
            make(**url, **{OURS + "tls": "verify"}).try_acquire("me")
        assert caught.value.kind == "tls"

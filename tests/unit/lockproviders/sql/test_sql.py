"""The SQL lock: settings, lost answers, late requests, tokens, and errors."""

from __future__ import annotations

import os
import sqlite3

import pytest

from lockproviders.hookspecs import LockContext
from lockproviders.registry import ProviderRegistry
from lockproviders.sql.client import ENTRY, SqlClient, SqlSettings, row_name
from lockproviders.sql.database import (
    NoTable,
    NotExecuted,
    OutcomeLost,
    ReadOnlyServer,
    RowExists,
    SqliteDatabase,
    _keep_a_log,
)
from lockproviders.sql.servers import MySqlDatabase, PostgresDatabase, Server
from timeline.errors import (
    LeaseLostError,
    SettingError,
    StorageUnavailableError,
    UnsafeSetupError,
)
from timeline.properties.options import PropertySet

URL = "hoodoo.lock.sql.url"
SERVER = Server(
    host="db", port=1, database="d", user="u", password="geheim", verify_tls=True, tls_ca=""
)


class Wire(SqliteDatabase):
    """A SQLite file behind a connection that loses answers or delivers requests late."""

    def __init__(self, path, *, ids) -> None:
        super().__init__(str(path), may_create=True, ids=ids, timeout_ms=1_000)
        self.lose_answers = 0
        self.hold_back = 0
        self.is_down = False
        self.late: list[tuple[str, tuple]] = []
        self.changes = 0
        self.queries = 0

    def rows(self, statement, values=()):
        self.queries += 1
        if self.is_down:
            raise OutcomeLost("down")
        return super().rows(statement, values)

    def change(self, statement, values=()):
        self.changes += 1
        if self.is_down:
            raise OutcomeLost("down")
        if self.hold_back and not statement.startswith("CREATE"):
            self.hold_back -= 1
            self.late.append((statement, values))
            raise OutcomeLost("on its way")
        changed = super().change(statement, values)
        if self.lose_answers and not statement.startswith("CREATE"):
            self.lose_answers -= 1
            raise OutcomeLost("lost")
        return changed

    def deliver(self) -> list[int]:
        return [super(Wire, self).change(*late) for late in self.late]


def client_on(machine, path, **settings) -> SqlClient:
    chosen = SqlSettings(url=str(path), create_table=True, **settings)
    wire = Wire(path, ids=machine.ids)
    return SqlClient(wire, "t", settings=chosen, clock=machine.clock, ids=machine.ids)


def settings_of(**properties: str) -> SqlSettings:
    return SqlSettings.from_properties(
        {f"hoodoo.lock.sql.{key}": value for key, value in properties.items()}
    )


def test_a_lost_answer_of_an_acquire_is_recognised_as_its_own(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db")
    client._table.database.lose_answers = 1
    holding = client.try_acquire("me")
    assert holding is not None
    holding.renew()
    assert client_on(machine, tmp_path / "l.db").try_acquire("other") is None


def test_an_own_row_is_recognised_by_its_nonce_despite_other_threads(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db", lease_ms=30_000)
    client.try_acquire("before").release()
    asked = client._table.database.rows

    def slow_rows(statement, values=()):
        client._unsure = "of another thread"
        machine.clock.time_ms += 400
        return asked(statement, values)

    client._table.database.rows = slow_rows
    client._table.database.lose_answers = 1
    holding = client.try_acquire("me")
    assert holding is not None
    assert holding.expires_in_ms() == 29_600, "the lease starts at the lost request"


def test_another_thread_does_not_take_over_an_acquire_under_resolution(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db")
    client.try_acquire("before").release()
    asked, of_other_thread = client._table.database.rows, []

    def rows_then_other_thread(statement, values=()):
        found = asked(statement, values)
        client._table.database.rows = asked
        of_other_thread.append(client.try_acquire("another thread"))
        return found

    client._table.database.rows = rows_then_other_thread
    client._table.database.lose_answers = 1
    holding = client.try_acquire("me")
    assert holding is not None
    assert of_other_thread == [None], "the lock has two holders at once"
    holding.renew()


def test_lost_answers_of_every_try_leave_the_row_free_for_the_same_client(
    machine, tmp_path
) -> None:
    client = client_on(machine, tmp_path / "l.db")
    client.try_acquire("before").release()
    client._free_at_token = None
    client._table.database.hold_back = 9
    with pytest.raises(StorageUnavailableError):
        client.try_acquire("me")
    client._table.database.hold_back = 0
    assert client._table.database.deliver() == [1, 0, 0], "the token allows only one of them"
    assert client_on(machine, tmp_path / "l.db").try_acquire("other") is None
    assert client.try_acquire("me again") is not None


def test_request_that_arrives_after_the_next_holding_does_nothing(machine, tmp_path) -> None:
    client, other = client_on(machine, tmp_path / "l.db"), client_on(machine, tmp_path / "l.db")
    client.try_acquire("before").release()
    client._table.database.hold_back = 9
    with pytest.raises(StorageUnavailableError):
        client.try_acquire("me")
    holding = other.try_acquire("other")
    holding.release()
    assert client._table.database.deliver() == [0, 0, 0, 0]
    assert other.holder() is None


def test_unanswered_renewals_and_releases_are_repeated(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db")
    holding = client.try_acquire("me")
    client._table.database.lose_answers = 1
    holding.renew()
    client._table.database.lose_answers = 1
    holding.release()
    assert client.holder() is None


def test_unreachable_database_is_unavailable_and_takes_nothing_away(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db")
    holding = client.try_acquire("me")
    client._table.database.is_down = True
    for request in (holding.renew, client.holder, lambda: client.try_acquire("me")):
        with pytest.raises(StorageUnavailableError):
            request()
    client._table.database.is_down = False
    assert holding.is_held()
    holding.renew()


def test_own_end_counts_from_before_the_request(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db", lease_ms=30_000)
    asked = client._table.database.change

    def slow(statement, values=()):
        machine.clock.time_ms += 700
        return asked(statement, values)

    client._table.database.change = slow
    holding = client.try_acquire("me")
    assert holding.expires_in_ms() == 29_300
    holding.renew()
    assert holding.expires_in_ms() == 29_300


def test_repeated_acquires_without_contention_cost_one_request_each(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db")
    client.try_acquire("first").release()
    client._table.database.changes = client._table.database.queries = 0
    client.try_acquire("second").release()
    assert (client._table.database.changes, client._table.database.queries) == (2, 0)


def test_a_token_never_repeats_after_the_row_was_deleted(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db")
    first = client.try_acquire("first")
    first.release()
    client._table.database.change("DELETE FROM hoodoo_locks")
    machine.clock.sleep_ms(2)
    second = client_on(machine, tmp_path / "l.db").try_acquire("second")
    assert second.fencing_token >= first.fencing_token
    assert first.fencing_token > 1_600_000_000_000, "the token starts at the database's clock"


def test_expired_row_is_taken_over_and_the_old_holding_is_refused(machine, tmp_path) -> None:
    client, other = client_on(machine, tmp_path / "l.db"), client_on(machine, tmp_path / "l.db")
    old = client.try_acquire("old")
    client._table.database.change("UPDATE hoodoo_locks SET lease_end = 5")
    assert client.holder() is None
    new = other.try_acquire("new")
    assert new.fencing_token > old.fencing_token
    old.release()
    with pytest.raises(LeaseLostError):
        old.renew()
    assert other.holder() == "new"


def test_missing_table_is_made_only_on_request(machine, tmp_path) -> None:
    (tmp_path / "l.db").touch()
    client = client_on(machine, tmp_path / "l.db")
    client._table._may_create = False
    with pytest.raises(UnsafeSetupError, match="create_table=true, or run: CREATE TABLE"):
        client.try_acquire("me")


def test_sqlite_file_is_made_readable_for_the_group_only(machine, tmp_path) -> None:
    mask = os.umask(0)
    try:
        client_on(machine, tmp_path / "l.db").try_acquire("me")
    finally:
        os.umask(mask)
    assert (tmp_path / "l.db").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("is_recreated", [True, False])
def test_the_holder_of_a_removed_lock_file_loses_the_lock(machine, tmp_path, is_recreated) -> None:
    holder, other = client_on(machine, tmp_path / "l.db"), client_on(machine, tmp_path / "l.db")
    holding = holder.try_acquire("me")
    for file in tmp_path.iterdir():
        file.unlink()
    if is_recreated:
        assert other.try_acquire("other") is not None
    with pytest.raises(LeaseLostError):
        holding.renew()
    assert (holder.try_acquire("me again") is None) == is_recreated, (
        "the lock has two holders at once"
    )


class _Opening:
    """A connection to a new file while another process enables its log."""

    def __init__(self, refused: int, code: int) -> None:
        self.refused, self.code = refused, code
        self.asked: list[str] = []

    def execute(self, statement: str) -> None:
        self.asked.append(statement.split(maxsplit=1)[0])
        if statement.startswith("PRAGMA") and self.refused:
            self.refused -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error


def test_a_new_sqlite_file_is_waited_for_while_another_process_enables_its_log() -> None:
    opening = _Opening(2, sqlite3.SQLITE_BUSY)
    _keep_a_log(opening)  # type: ignore[arg-type]
    waited = ["PRAGMA", "BEGIN", "ROLLBACK"]
    assert opening.asked == [*waited, *waited, "PRAGMA"]


@pytest.mark.parametrize(
    ("refused", "code"), [(1, sqlite3.SQLITE_IOERR), (1_000, sqlite3.SQLITE_BUSY)]
)
def test_a_sqlite_file_that_stays_locked_or_is_broken_is_reported(refused: int, code: int) -> None:
    with pytest.raises(sqlite3.OperationalError):
        _keep_a_log(_Opening(refused, code))  # type: ignore[arg-type]


def test_a_sqlite_file_in_a_missing_folder_is_a_set_up_error(machine, tmp_path) -> None:
    with pytest.raises(UnsafeSetupError, match=r"cannot be used.*No such file"):
        client_on(machine, tmp_path / "nowhere" / "l.db").try_acquire("me")


def test_a_file_that_is_no_database_is_a_set_up_error(machine, tmp_path) -> None:
    (tmp_path / "l.db").write_text("no database at all, but long enough to be looked at" * 30)
    with pytest.raises(UnsafeSetupError, match="not a database"):
        client_on(machine, tmp_path / "l.db").try_acquire("me")


def test_forked_child_leaves_its_parents_connection_alone(machine, tmp_path) -> None:
    client = client_on(machine, tmp_path / "l.db")
    client.try_acquire("parent")
    connection = client._table.database._connection
    machine.ids.pid = 42
    assert client.holder() == "parent"
    assert client._table.database._connection is not connection
    assert connection.execute("SELECT 1").fetchall() == [(1,)], "the parent's connection is open"


def test_row_names_are_ascii_and_long_ones_stay_different() -> None:
    assert row_name("file:/data/flüge ") == "file:/data/fl%C3%BCge%20"
    one, other = row_name("x" * 300), row_name("x" * 301)
    assert one != other
    assert len(one) == len(other) == 200


def test_settings_have_defaults() -> None:
    settings = settings_of(url="/data/locks.db")
    assert (settings.lease_ms, settings.timeout_ms, settings.table) == (
        30_000,
        3_000,
        "hoodoo_locks",
    )
    assert settings.create_table is False


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "set hoodoo.lock.sql.url to .*: the lock provider sql needs it"),
        ({"url": "/l.db", "table": "x; drop table y"}, "letters, digits and _ only"),
        ({"url": "/l.db", "lease.ms": "30"}, "equal to 1000, a whole number of milliseconds"),
        ({"url": "/l.db", "timeout.ms": "9000"}, "a quarter of the lease of 30000 milliseconds"),
        ({"url": "/l.db", "lease.ms": "30s"}, "a whole number of milliseconds"),
    ],
)
def test_wrong_settings_are_refused_by_name(properties, message) -> None:
    with pytest.raises(SettingError, match=message):
        settings_of(**properties)


@pytest.mark.parametrize(
    "url",
    [
        "locks.db",
        "sqlite://host/l.db",
        "oracle://host/d",
        "mysql://host",
        "mysql:///d",
        "mysql://host:port/d",
        "postgresql://host/d?sslmode=disable",
    ],
)
def test_urls_that_name_no_database_of_ours_are_refused(machine, url) -> None:
    with pytest.raises(SettingError):
        settings_of(url=url).database(machine.ids)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("/a/l.db", "sqlite:/a/l.db"),
        ("sqlite:///a/l.db", "sqlite:/a/l.db"),
        ("file:/a/l.db", "sqlite:/a/l.db"),
        ("mysql://u:p@DB/d", "mysql://db:3306/d"),
        ("mariadb://db:3307/d", "mysql://db:3307/d"),
        ("postgres://db/d", "postgresql://db:5432/d"),
    ],
)
def test_address_names_the_database_without_secrets(machine, url, address) -> None:
    assert settings_of(url=url).database(machine.ids).address == address


@pytest.mark.parametrize(
    ("host", "tls", "verified"),
    [
        ("127.0.0.1", "auto", False),
        ("localhost", "auto", False),
        ("db.example", "auto", True),
        ("10.0.0.1", "auto", True),
        ("db.example", "off", False),
        ("127.0.0.1", "verify", True),
    ],
)
def test_other_machines_must_authenticate(machine, host, tls, verified) -> None:
    database = settings_of(url=f"mysql://{host}/d", tls=tls).database(machine.ids)
    assert database._server.verify_tls is verified


def test_a_table_does_not_choose_its_lock_server() -> None:
    options = PropertySet().with_layer("hoodie.properties", {URL: "mysql://elsewhere/d"})
    with pytest.raises(UnsafeSetupError, match="a table must not choose"):
        SqlSettings.from_properties(options)


def test_secrets_are_never_shown(machine) -> None:
    settings = settings_of(url="mysql://u:geheim@127.0.0.1:1/d", password="geheim")
    database = settings.database(machine.ids)
    client = SqlClient(database, "t", settings=settings, clock=machine.clock, ids=machine.ids)
    with pytest.raises(StorageUnavailableError) as caught:
        client.holder()
    shown = f"{settings!r}{database._server!r}{client.identity}{caught.value}{caught.value.fields}"
    assert "geheim" not in shown


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (1146, NoTable),
        (1062, RowExists),
        (1045, UnsafeSetupError),
        (1049, UnsafeSetupError),
        (1142, UnsafeSetupError),
        (1205, NotExecuted),
        (1213, NotExecuted),
        (1040, NotExecuted),
        (1290, ReadOnlyServer),
        (1792, ReadOnlyServer),
        (1836, ReadOnlyServer),
        (1053, OutcomeLost),
        (1105, OutcomeLost),
        (1158, OutcomeLost),
        (1161, OutcomeLost),
        (1180, OutcomeLost),
        (1317, OutcomeLost),
        (2006, OutcomeLost),
        (2013, OutcomeLost),
    ],
)
def test_errors_of_mysql_have_their_meaning(machine, code, meaning) -> None:
    database = MySqlDatabase(SERVER, ids=machine.ids, timeout_ms=1)
    assert type(database._meaning(Exception(code, "text"))) is meaning


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        ("42P01", NoTable),
        ("23505", RowExists),
        ("42P07", RowExists),
        ("42710", RowExists),
        ("28P01", UnsafeSetupError),
        ("3D000", UnsafeSetupError),
        ("42501", UnsafeSetupError),
        ("40001", NotExecuted),
        ("25006", ReadOnlyServer),
        ("53300", NotExecuted),
        ("57014", NotExecuted),
        ("57P01", OutcomeLost),
        ("08006", OutcomeLost),
        ("", OutcomeLost),
    ],
)
def test_errors_of_postgresql_have_their_meaning(machine, state, meaning) -> None:
    database = PostgresDatabase(SERVER, ids=machine.ids, timeout_ms=1)
    error = Exception("text")
    error.sqlstate = state
    assert type(database._meaning(error)) is meaning


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (sqlite3.SQLITE_BUSY, NotExecuted),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, RowExists),
        (sqlite3.SQLITE_IOERR, OutcomeLost),
        (sqlite3.SQLITE_READONLY, UnsafeSetupError),
    ],
)
def test_errors_of_sqlite_have_their_meaning(machine, tmp_path, code, meaning) -> None:
    database = SqliteDatabase(
        str(tmp_path / "l.db"), may_create=False, ids=machine.ids, timeout_ms=1
    )
    error = sqlite3.OperationalError("text")
    error.sqlite_errorcode = code
    assert type(database._meaning(error)) is meaning


def test_statements_carry_values_apart_on_every_database(machine) -> None:
    statement = "UPDATE t SET a = ? WHERE b = ? AND c <= {now}"
    assert (
        PostgresDatabase(SERVER, ids=machine.ids, timeout_ms=1)
        .spelled(statement)
        .startswith("UPDATE t SET a = $1 WHERE b = $2 AND c <= (EXTRACT")
    )
    assert (
        MySqlDatabase(SERVER, ids=machine.ids, timeout_ms=1)
        .spelled(statement)
        .startswith("UPDATE t SET a = %s WHERE b = %s AND c <= (TIMESTAMPDIFF")
    )


def test_provider_is_found_by_name_and_names_its_row_by_the_table(machine, tmp_path) -> None:
    assert ProviderRegistry().find("sql") is ENTRY
    client = ENTRY.factory(
        LockContext(
            properties={URL: str(tmp_path / "l.db")},
            table_identity="file:/data/t",
            table_address="/data/t",
            table_folder=None,
            clock=machine.clock,
            ids=machine.ids,
        )
    )
    assert client.identity == f"sql:sqlite:{tmp_path}/l.db#hoodoo_locks#file:/data/t"
    assert client.margin_ms == 6_000


def test_a_missing_file_and_a_missing_folder_have_different_errors(tmp_path, machine) -> None:
    def refused(path) -> str:
        database = SqliteDatabase(str(path), may_create=False, ids=machine.ids, timeout_ms=100)
        with pytest.raises(UnsafeSetupError) as caught:
            database.rows("SELECT 1")
        return caught.value.message

    assert "hoodoo.lock.sql.create_table=true creates it" in refused(tmp_path / "x.db")
    assert refused(tmp_path / "no" / "x.db").endswith("its folder is missing")

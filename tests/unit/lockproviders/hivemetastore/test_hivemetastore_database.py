"""The metastore's lock by its database: lost commits and refused requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockproviders.hivemetastore.database import (
    CommitUnknownError,
    LockName,
    MetastoreLockRow,
    nonce_of,
)
from lockproviders.hivemetastore.database_client import DatabaseSettings, MetastoreDatabaseClient
from tests.unit.lockproviders.plain_machine import Machine
from timeline.errors import LeaseLostError, SettingError, UnavailableError, UnsafeSetupError
from timeline.properties.options import TABLE_LAYER, PropertySet

OURS = "hoodoo.lock.hivemetastore_database."
PROPERTIES = {
    "hoodie.write.lock.hivemetastore.database": "Sales",
    "hoodie.write.lock.hivemetastore.table": "Orders",
    OURS + "url": "mysql://127.0.0.1:3307/hive",
    OURS + "user": "hive",
    OURS + "password": "canary",
    OURS + "lease.ms": "4000",
}


class PlainTables:
    """The rows of one lock; a named request may raise ``before`` or ``after`` it runs."""

    def __init__(self) -> None:
        self.held: list[MetastoreLockRow] = []
        self.next_id = 1
        self.is_open = False
        self.requests: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}

    def connect(self, timeout_ms: int) -> None:
        self._do("connect", lambda: None)
        self.is_open = True

    def drop(self) -> None:
        self.is_open = False

    def take(self, name: LockName, host: str, agent: str, strays: set[str]) -> int | None:
        def work() -> int | None:
            for row in self.held:
                if row.agent == agent:
                    return row.lock_id
            self.held = [row for row in self.held if nonce_of(row.agent) not in strays]
            if self.held:
                return None
            return self.put(agent)

        return self._do("take", work)

    def put(self, agent: str) -> int:
        row = MetastoreLockRow(
            lock_id=self.next_id, acquired=True, user="hoodoo", host="h", agent=agent
        )
        self.held.append(row)
        self.next_id += 1
        return row.lock_id

    def rows(self, name: LockName) -> list[MetastoreLockRow]:
        return self._do("rows", lambda: list(self.held))

    def beat(self, lock_id: int, agent: str) -> None:
        def work() -> None:
            if (lock_id, agent) not in [(row.lock_id, row.agent) for row in self.held]:
                raise LeaseLostError("gone")

        self._do("beat", work)

    def delete(self, lock_id: int, agent: str) -> bool:
        def work() -> bool:
            before = len(self.held)
            self.held = [row for row in self.held if (row.lock_id, row.agent) != (lock_id, agent)]
            return len(self.held) < before

        return self._do("delete", work)

    def delete_strays(self, name: LockName, strays: set[str]) -> None:
        def work() -> None:
            self.held = [row for row in self.held if nonce_of(row.agent) not in strays]

        self._do("delete_strays", work)

    def _do(self, request: str, work: Callable[[], object]) -> object:
        self.requests.append(request)
        try:
            self.before.pop(request, lambda: None)()
            answer = work()
            self.after.pop(request, lambda: None)()
        except UnavailableError:
            self.is_open = False
            raise
        return answer


def lose() -> None:
    raise UnavailableError("no answer")


def lose_commit() -> None:
    raise CommitUnknownError("no answer to the commit")


@pytest.fixture
def tables() -> PlainTables:
    return PlainTables()


@pytest.fixture
def client(machine: Machine, tables: PlainTables) -> MetastoreDatabaseClient:
    settings = DatabaseSettings.from_properties(PROPERTIES)
    return MetastoreDatabaseClient(settings, tables, clock=machine.clock, ids=machine.ids)


def test_free_lock_costs_one_transaction_and_its_release_another(client, tables) -> None:
    client.try_acquire("me").release()
    assert tables.requests == ["connect", "take", "delete"]


def test_lost_answer_to_the_commit_is_recognised_as_ours(client, tables) -> None:
    tables.after["take"] = lose_commit
    holding = client.try_acquire("me")
    assert holding.fencing_token == 1
    assert len(tables.held) == 1


def test_commit_that_did_not_happen_is_done_again(client, tables) -> None:
    tables.before["take"] = lose_commit
    assert client.try_acquire("me").fencing_token == 1


def test_commit_in_doubt_is_cleared_up_by_the_next_try(client, tables) -> None:
    tables.after["take"] = lose_commit
    tables.before["connect"] = lambda: tables.before.update(connect=lose)
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    assert len(tables.held) == 1
    holding = client.try_acquire("me")
    assert [row.lock_id for row in tables.held] == [holding.fencing_token]


def test_commit_in_doubt_is_cleared_up_at_the_end(client, tables) -> None:
    tables.after["take"] = lose_commit
    tables.before["connect"] = lambda: tables.before.update(connect=lose)
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    client.close()
    assert tables.held == []


def test_interrupted_try_is_cleared_up_at_the_end(client, tables) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    tables.after["take"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.try_acquire("me")
    client.close()
    assert tables.held == []


def test_certain_failure_leaves_nothing_to_clear_up(client, tables) -> None:
    tables.before["take"] = lose
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    client.close()
    assert "delete_strays" not in tables.requests


def test_refused_client_reads_without_the_mutex_while_there_are_rows(client, tables) -> None:
    tables.put("Unknown")
    assert client.try_acquire("me") is None
    assert client.try_acquire("me") is None
    assert tables.requests == ["connect", "take", "rows"]
    tables.held.clear()
    assert client.try_acquire("me") is not None


def test_failed_release_is_made_up_for_at_the_next_try(client, tables) -> None:
    held = client.try_acquire("me")
    tables.before["delete"] = lambda: (tables.before.update(delete=lose), lose())
    with pytest.raises(UnavailableError):
        held.release()
    assert client.try_acquire("me").fencing_token == 2
    assert len(tables.held) == 1


def test_row_deleted_by_the_metastore_is_a_lost_lease(client, tables) -> None:
    held = client.try_acquire("me")
    tables.held.clear()
    with pytest.raises(LeaseLostError):
        held.renew()
    assert not held.is_held()


def test_row_with_our_id_but_not_our_text_is_not_ours(client, tables) -> None:
    held = client.try_acquire("me")
    tables.held.clear()
    tables.next_id = 1
    tables.put("Unknown")
    with pytest.raises(LeaseLostError):
        held.renew()
    held.release()
    assert len(tables.held) == 1


def test_connection_the_server_may_have_closed_is_not_used(client, tables, machine) -> None:
    held = client.try_acquire("me")
    machine.clock.time_ms += 1_001
    held.renew()
    assert tables.requests == ["connect", "take", "connect", "beat"]


def test_end_is_counted_from_before_the_request(client, tables, machine) -> None:
    def slow() -> None:
        machine.clock.time_ms += 300

    tables.after["take"] = slow
    assert client.try_acquire("me").expires_in_ms() == 3_700


def test_forked_child_leaves_the_row_alone(client, tables, machine) -> None:
    held = client.try_acquire("me")
    machine.ids.pid = 42
    held.release()
    client.close()
    assert len(tables.held) == 1


def test_identity_names_server_and_lock(client) -> None:
    assert client.identity == "hivemetastore_database:127.0.0.1:3307/hive/Sales.Orders"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "postgresql://h/hive",
        "mysql://h/",
        "mysql:///hive",
        "mysql://h/hive?ssl=0",
        "mysql://u:p@h/hive",
        "mysql://h:port/hive",
        "mysql://h/hive`; drop",
    ],
)
def test_url_of_another_kind_is_refused(url) -> None:
    with pytest.raises(SettingError, match="mysql://host"):
        DatabaseSettings.from_properties({**PROPERTIES, OURS + "url": url})


def test_table_may_not_name_the_server() -> None:
    properties = PropertySet().with_layer(TABLE_LAYER, PROPERTIES)
    with pytest.raises(UnsafeSetupError, match="must not choose the server"):
        DatabaseSettings.from_properties(properties)


@pytest.mark.parametrize(
    ("url", "tls", "verified"),
    [
        ("mysql://127.0.0.1/hive", "auto", False),
        ("mysql://db.example.com/hive", "auto", True),
        ("mysql://db.example.com/hive", "off", False),
        ("mysql://127.0.0.1/hive", "verify", True),
    ],
)
def test_other_machines_must_prove_themselves(url, tls, verified) -> None:
    properties = {**PROPERTIES, OURS + "url": url, OURS + "tls": tls}
    assert DatabaseSettings.from_properties(properties).server.verify_tls is verified


def test_password_is_in_no_text(client) -> None:
    assert "canary" not in repr(DatabaseSettings.from_properties(PROPERTIES)) + client.identity


def test_only_the_named_holder_is_broken(client, tables) -> None:
    client.try_acquire("me")
    assert not client.break_lock("somebody else")
    assert client.break_lock(client.holder())
    assert tables.held == []
    assert not client.break_lock("me")

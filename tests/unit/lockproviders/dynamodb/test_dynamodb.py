"""The DynamoDB lock: Java's rows, leases by observation, and missing answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from lockproviders.dynamodb.client import DynamoClient
from lockproviders.dynamodb.connection import BotoTransport
from lockproviders.dynamodb.settings import DynamoSettings
from lockproviders.dynamodb.slots import DynamoSlotStore
from tests.unit.lockproviders.dynamodb_table import CountingIds, FakeTable
from tests.unit.lockproviders.plain_machine import Machine
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError

LEASE_MS = 20_000
JAVA_ROW = {
    "key": {"S": "t1"},
    "ownerName": {"S": "java-host5d3c"},
    "leaseDuration": {"S": "7000"},
    "recordVersionNumber": {"S": "j1"},
}

Build = Callable[..., DynamoClient]


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


@pytest.fixture
def build(machine: Machine, table: FakeTable) -> Build:
    """Builds clients of the lock ``t1``, with fencing tokens only where a test needs them."""
    ids = CountingIds()

    def make(*, count: bool = False, **further: str) -> DynamoClient:
        settings = DynamoSettings.from_properties(
            {
                "hoodie.write.lock.dynamodb.partition_key": "t1",
                "hoodie.write.lock.wait_time_ms": str(LEASE_MS),
                "hoodoo.lock.dynamodb.fencing.token": str(count).lower(),
                **further,
            }
        )
        return DynamoClient(settings, table.connect, clock=machine.clock, ids=ids)

    return make


def version(table: FakeTable) -> str:
    return table.rows["t1"]["recordVersionNumber"]["S"]


# ------------------------------------------------------------------ rows


def test_the_row_is_javas_with_one_note_of_hoodoo(build: Build, table: FakeTable) -> None:
    build().try_acquire("me")
    assert table.rows["t1"] == {
        "key": {"S": "t1"},
        "ownerName": {"S": "hereu1"},  # host, directly followed by a uuid
        "leaseDuration": {"S": "20000"},
        "recordVersionNumber": {"S": "u2"},
        "hoodooOwner": {"S": "me"},
    }


def test_free_lock_costs_two_requests(build: Build, table: FakeTable) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    holding.release()
    assert table.asked == ["put_item", "delete_item"]
    assert table.rows == {}


def test_released_row_of_java_is_taken_over(build: Build, table: FakeTable) -> None:
    table.rows["t1"] = {**JAVA_ROW, "isReleased": {"S": "1"}}
    assert build().holder() is None
    assert build().try_acquire("me") is not None
    assert "isReleased" not in table.rows["t1"]


def test_holder_of_a_java_row_is_its_owner_name(build: Build, table: FakeTable) -> None:
    table.rows["t1"] = dict(JAVA_ROW)
    assert build().holder() == "java-host5d3c"


@pytest.mark.parametrize(
    "broken",
    [
        {"leaseDuration": {"S": "soon"}},
        {"leaseDuration": {"N": "7000"}},
        {"leaseDuration": {"S": "-1"}},
        {"recordVersionNumber": {"S": ""}},
    ],
)
def test_row_that_is_no_lock_is_refused(build: Build, table: FakeTable, broken) -> None:
    table.rows["t1"] = {**JAVA_ROW, **broken}
    with pytest.raises(UnsafeSetupError) as caught:
        build().try_acquire("me")
    assert caught.value.kind == "lock_row"


# ------------------------------------------------------------------ after a dead holder


@pytest.mark.parametrize("sends_items", [True, False])
def test_a_dead_holder_is_followed_one_of_its_leases_after_the_first_read(
    build: Build, table: FakeTable, machine: Machine, *, sends_items: bool
) -> None:
    table.sends_items = sends_items
    table.rows["t1"] = dict(JAVA_ROW)
    client = build()
    first_look = machine.clock.time_ms
    for waited_ms in (0, 1_000, 6_999, 7_000):
        machine.clock.time_ms = first_look + waited_ms
        assert client.try_acquire("me") is None
    machine.clock.time_ms = first_look + 7_001
    assert client.try_acquire("me") is not None


def test_a_renewal_of_the_holder_restarts_the_wait(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    table.rows["t1"] = dict(JAVA_ROW)
    client = build()
    assert client.try_acquire("me") is None
    machine.clock.time_ms += 6_000
    table.rows["t1"]["recordVersionNumber"] = {"S": "j2"}
    assert client.try_acquire("me") is None
    machine.clock.time_ms += 6_000
    assert client.try_acquire("me") is None
    machine.clock.time_ms += 1_001
    assert client.try_acquire("me") is not None


def test_taken_lock_is_only_read_after_the_first_try(build: Build, table: FakeTable) -> None:
    table.rows["t1"] = dict(JAVA_ROW)
    client = build()
    for _ in range(3):
        assert client.try_acquire("me") is None
    assert table.asked == ["put_item", "get_item", "get_item"]


def test_a_holder_that_renews_just_before_the_takeover_keeps_the_lock(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    table.rows["t1"] = dict(JAVA_ROW)
    client = build()
    assert client.try_acquire("me") is None
    machine.clock.time_ms += 7_001

    def wake() -> None:
        if table.asked[-1] == "put_item":
            table.rows["t1"]["recordVersionNumber"] = {"S": "j2"}

    table.before_answer = wake
    assert client.try_acquire("me") is None
    assert version(table) == "j2"


# ------------------------------------------------------------------ unanswered acquires


def test_an_unanswered_acquire_is_recognised_as_its_own(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    table.faults = [("put_item", "unheard")]
    sent_at = machine.clock.time_ms
    table.before_answer = lambda: machine.clock.sleep_ms(300)
    holding = build().try_acquire("me")
    assert holding is not None
    assert machine.clock.time_ms == sent_at + 600
    assert holding.expires_in_ms() == LEASE_MS - 600


def test_own_copy_of_an_acquire_is_no_other_holder(build: Build, table: FakeTable) -> None:
    table.faults = [("put_item", "twice")]
    holding = build().try_acquire("me")
    assert holding is not None
    holding.release()
    assert table.rows == {}


def test_an_acquire_that_arrives_late_does_not_block_its_own_client(
    build: Build, table: FakeTable
) -> None:
    client = build()
    table.faults = [("put_item", "late"), ("get_item", "lost")]
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    table.land()
    assert "t1" in table.rows
    assert build().try_acquire("other") is None
    holding = client.try_acquire("me again")
    assert holding is not None
    assert table.rows["t1"]["hoodooOwner"] == {"S": "me again"}


def test_close_deletes_the_row_of_an_unanswered_acquire(build: Build, table: FakeTable) -> None:
    client = build()
    table.faults = [("put_item", "unheard"), ("get_item", "lost")]
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    client.close()
    assert table.rows == {}


def test_close_leaves_rows_of_other_clients(build: Build, table: FakeTable) -> None:
    client = build()
    table.faults = [("put_item", "lost"), ("get_item", "lost")]
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    table.rows["t1"] = dict(JAVA_ROW)
    client.close()
    client.close()
    assert version(table) == "j1"
    assert table.closed == 1


def test_a_throttled_acquire_is_a_temporary_failure(build: Build, table: FakeTable) -> None:
    client = build()
    table.faults = [("put_item", "throttled")]
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    assert table.asked == ["put_item"]
    assert client.try_acquire("me") is not None


def test_a_lease_that_expired_before_the_answers_is_released(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    table.before_answer = lambda: machine.clock.sleep_ms(LEASE_MS)
    with pytest.raises(UnavailableError, match="too slowly"):
        build().try_acquire("me")
    assert table.rows == {}


# ------------------------------------------------------------------ renewal


def test_renewal_writes_a_new_number_and_counts_from_before_it_was_sent(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    before = version(table)
    machine.clock.time_ms += 5_000
    table.before_answer = lambda: machine.clock.sleep_ms(100)
    holding.renew()
    assert version(table) != before
    assert holding.expires_in_ms() == LEASE_MS - 100


def test_an_unanswered_renewal_is_looked_up(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    machine.clock.time_ms += 5_000
    table.faults = [("update_item", "unheard")]
    holding.renew()
    assert holding.expires_in_ms() == LEASE_MS


def test_lost_renewal_keeps_the_old_end(build: Build, table: FakeTable, machine: Machine) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    machine.clock.time_ms += 5_000
    table.faults = [("update_item", "lost")]
    with pytest.raises(UnavailableError):
        holding.renew()
    assert holding.is_held()
    assert holding.expires_in_ms() == LEASE_MS - 5_000


def test_a_renewal_that_arrived_late_is_recognised_as_its_own(
    build: Build, table: FakeTable
) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.faults = [("update_item", "late")]
    with pytest.raises(UnavailableError):
        holding.renew()
    table.land()
    holding.renew()
    holding.release()
    assert table.rows == {}


@pytest.mark.parametrize("sends_items", [True, False])
def test_own_copy_of_a_renewal_is_no_other_holder(
    build: Build, table: FakeTable, *, sends_items: bool
) -> None:
    table.sends_items = sends_items
    holding = build().try_acquire("me")
    assert holding is not None
    table.faults = [("update_item", "twice")]
    holding.renew()
    assert holding.is_held()


@pytest.mark.parametrize("fault", [None, "lost"])
def test_stolen_lock_is_lost_and_stays_with_its_new_holder(
    build: Build, table: FakeTable, fault: str | None
) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.rows["t1"] = dict(JAVA_ROW)
    table.faults = [] if fault is None else [("update_item", fault)]
    with pytest.raises(LeaseLostError):
        holding.renew()
    assert not holding.is_held()
    with pytest.raises(LeaseLostError):
        holding.renew()
    holding.release()
    assert version(table) == "j1"


def test_deleted_row_is_a_lost_lock(build: Build, table: FakeTable) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.rows.clear()
    with pytest.raises(LeaseLostError):
        holding.renew()
    assert table.rows == {}, "a renewal must not create the row again"


def test_denied_renewal_is_tried_again_until_the_end(build: Build, table: FakeTable) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.faults = [("update_item", "denied")]
    with pytest.raises(UnavailableError):
        holding.renew()
    table.exists = False
    with pytest.raises(UnavailableError):
        holding.renew()
    table.exists = True
    holding.renew()


def test_half_a_minute_of_throttling_ends_the_lease_before_others_may_have_it(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    lock = machine.lock(build())
    lease = lock.acquire("publish")
    waiter = build()
    assert waiter.try_acquire("waiter") is None
    table.faults = [("any", "throttled")]
    lost_after_ms = taken_after_ms = None
    ticker = machine.executor.tickers[0]
    began_ms = machine.clock.time_ms
    for _ in range(30):
        machine.clock.time_ms += 1_000
        ticker.work()
        if lost_after_ms is None and "lock.lost" in machine.events.names():
            lost_after_ms = machine.clock.time_ms - began_ms
    table.faults = []
    if waiter.try_acquire("waiter") is not None:
        taken_after_ms = machine.clock.time_ms - began_ms
    assert lost_after_ms == 16_000  # a lease of 20 s less two requests of 2 s
    assert taken_after_ms == 30_000
    assert "lock.renew_failed" in machine.events.names()
    with pytest.raises(LeaseLostError):
        lease.assert_held()


# ------------------------------------------------------------------ release


def test_unheard_release_is_a_release(build: Build, table: FakeTable) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.faults = [("delete_item", "unheard")]
    holding.release()
    assert table.rows == {}


def test_a_lost_release_is_reported_and_the_same_client_need_not_wait(
    build: Build, table: FakeTable
) -> None:
    client = build()
    holding = client.try_acquire("me")
    assert holding is not None
    table.faults = [("delete_item", "lost")]
    with pytest.raises(UnavailableError):
        holding.release()
    assert build().try_acquire("other") is None
    assert client.try_acquire("me again") is not None


def test_throttled_release_is_repeated_with_pauses(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.faults = [("delete_item", "throttled")] * 3
    began_ms = machine.clock.time_ms
    holding.release()
    assert table.rows == {}
    assert machine.clock.time_ms - began_ms == 200 + 400 + 800


def test_a_release_that_is_throttled_to_the_end_raises_an_error(
    build: Build, table: FakeTable
) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.faults = [("delete_item", "throttled")] * 4
    with pytest.raises(UnavailableError, match="throttled"):
        holding.release()
    assert "t1" in table.rows


def test_lost_release_is_not_repeated(build: Build, table: FakeTable) -> None:
    holding = build().try_acquire("me")
    assert holding is not None
    table.faults = [("delete_item", "late")]
    with pytest.raises(UnavailableError):
        holding.release()
    assert table.asked.count("delete_item") == 1


def test_an_acquire_whose_count_is_throttled_deletes_the_row_without_waiting(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    table.faults = [("update_item", "throttled"), ("delete_item", "throttled")]
    began_ms = machine.clock.time_ms
    with pytest.raises(UnavailableError):
        build(count=True).try_acquire("me")
    assert table.asked.count("delete_item") == 1
    assert machine.clock.time_ms == began_ms


def test_only_the_named_holder_is_broken_and_learns_it(build: Build, table: FakeTable) -> None:
    holding = build().try_acquire("stuck")
    assert holding is not None
    client = build()
    assert not client.break_lock("somebody else")
    assert client.break_lock("stuck")
    assert not client.break_lock("stuck"), "the lock is free already"
    heir = client.try_acquire("heir")
    assert heir is not None
    with pytest.raises(LeaseLostError):
        holding.renew()
    holding.release()
    heir.renew()


def test_breaking_a_lock_succeeds_although_its_holder_renews(
    build: Build, table: FakeTable
) -> None:
    holding = build().try_acquire("alive")
    assert holding is not None

    def renew_once() -> None:
        if table.asked[-1] == "delete_item":
            table.before_answer = lambda: None
            holding.renew()

    table.before_answer = renew_once
    assert build().break_lock("alive")
    assert table.rows == {}


# ------------------------------------------------------------------ token


def test_token_counts_the_holdings_of_all_clients(build: Build, table: FakeTable) -> None:
    tokens = []
    for _ in range(3):
        holding = build(count=True).try_acquire("me")
        assert holding is not None
        tokens.append(holding.fencing_token)
        holding.release()
    assert tokens == [1_700_000_001_001, 1_700_000_001_002, 1_700_000_001_003]


def test_row_of_the_count_reads_as_a_released_lock(build: Build, table: FakeTable) -> None:
    build(count=True).try_acquire("me")
    assert table.rows["t1#hoodoo-fencing-token"] == {
        "key": {"S": "t1#hoodoo-fencing-token"},
        "ownerName": {"S": "hereu1"},
        "leaseDuration": {"S": "0"},
        "recordVersionNumber": {"S": "u3"},
        "isReleased": {"S": "1"},
        "fencingToken": {"N": "1700000001001"},
    }


def test_counting_can_be_switched_off(build: Build, table: FakeTable) -> None:
    holding = build(count=False).try_acquire("me")
    assert holding is not None
    assert holding.fencing_token is None
    assert list(table.rows) == ["t1"]


@pytest.mark.parametrize(
    ("fault", "error"), [("lost", UnavailableError), ("denied", UnsafeSetupError)]
)
def test_lock_is_released_when_it_cannot_be_counted(
    build: Build, table: FakeTable, fault: str, error: type[Exception]
) -> None:
    table.faults = [("update_item", fault)]
    with pytest.raises(error):
        build(count=True).try_acquire("me")
    assert table.rows == {}


# ------------------------------------------------------------------ the table itself

CREATE = {"hoodoo.lock.dynamodb.create.table": "true"}


def test_missing_table_is_an_error_with_advice(build: Build, table: FakeTable) -> None:
    table.exists = False
    with pytest.raises(UnsafeSetupError, match=r"create\.table=true") as caught:
        build().try_acquire("me")
    assert caught.value.kind == "lock_table_missing"
    assert "create_table" not in table.asked
    assert build().holder() is None


def test_missing_table_is_created_on_request(build: Build, table: FakeTable) -> None:
    table.exists = False
    client = build(**CREATE)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="being created"):
            client.try_acquire("me")
    assert table.asked.count("create_table") == 1
    assert table.requests[1] == {
        "TableName": "hudi_locks",
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
    }
    table.exists = True
    assert client.try_acquire("me") is not None


def test_provisioned_table_has_its_capacity(build: Build, table: FakeTable) -> None:
    table.exists = False
    client = build(**CREATE, **{"hoodie.write.lock.dynamodb.billing_mode": "PROVISIONED"})
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    assert table.requests[1]["ProvisionedThroughput"] == {
        "ReadCapacityUnits": 20,
        "WriteCapacityUnits": 10,
    }


def test_the_second_client_to_create_the_table_waits_for_it(build: Build, table: FakeTable) -> None:
    table.exists = False
    table.being_created = True
    with pytest.raises(UnavailableError, match="being created"):
        build(**CREATE).try_acquire("me")


def test_table_that_never_becomes_ready_is_an_error(
    build: Build, table: FakeTable, machine: Machine
) -> None:
    table.exists = False
    client = build(**CREATE)
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    machine.clock.time_ms += 120_001
    with pytest.raises(UnsafeSetupError, match="table_creation_timeout"):
        client.try_acquire("me")


# ------------------------------------------------------------------ processes


def test_forked_child_opens_its_own_connection_under_its_own_name(
    machine: Machine, table: FakeTable
) -> None:
    ids = CountingIds()
    settings = DynamoSettings.from_properties({"hoodie.table.name": "t1"})
    client = DynamoClient(settings, table.connect, clock=machine.clock, ids=ids)
    holding = client.try_acquire("parent")
    assert holding is not None
    parent_owner = table.rows["t1"]["ownerName"]
    holding.release()
    ids.pid += 1
    client.close()
    assert table.closed == 0, "the child must not close the parent's connection"
    assert client.try_acquire("child") is not None
    assert table.opened == 2
    assert table.rows["t1"]["ownerName"] != parent_owner


@pytest.mark.parametrize("make", [DynamoClient, DynamoSlotStore])
def test_forked_child_does_not_wait_for_a_thread_of_its_parent(
    machine: Machine, table: FakeTable, make: Callable[..., DynamoClient | DynamoSlotStore]
) -> None:
    """The fork copies a mutex that a connecting thread holds, and nothing releases the copy."""
    ids, connecting, go_on = CountingIds(), threading.Event(), threading.Event()
    parent = ids.pid

    def connect() -> BotoTransport:
        if ids.pid == parent:
            connecting.set()
            go_on.wait(30)
        return table

    settings = DynamoSettings.from_properties({"hoodie.table.name": "t1"})
    user = make(settings, connect, clock=machine.clock, ids=ids)

    def use() -> None:
        with contextlib.suppress(Exception):  # a table of locks has no slots
            user.holder() if isinstance(user, DynamoClient) else user.read("a/1")

    of_parent, of_child = (threading.Thread(target=use, daemon=True) for _ in range(2))
    of_parent.start()
    assert connecting.wait(30)
    ids.pid += 1
    of_child.start()
    of_child.join(5)
    is_stuck = of_child.is_alive()
    go_on.set()
    assert not is_stuck

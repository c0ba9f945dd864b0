"""The metastore's lock by Thrift: valid answers, errors and missing answers."""

from __future__ import annotations

import pytest

from lockproviders.hivemetastore.database import MetastoreLockRow
from lockproviders.hivemetastore.settings import HiveMetastoreSettings
from lockproviders.hivemetastore.thrift_client import ENTRY, HiveMetastoreClient
from lockproviders.hookspecs import LockContext
from tests.unit.lockproviders.plain_machine import Machine
from tests.unit.lockproviders.plain_metastore import PlainMetastore, PlainWire, lose
from timeline.errors import LeaseLostError, SettingError, UnavailableError, UnsafeSetupError
from timeline.properties.options import TABLE_LAYER, PropertySet

KEYS = "hoodie.write.lock.hivemetastore."
PROPERTIES = {
    KEYS + "uris": "thrift://Meta-2:9083,thrift://meta-1",
    KEYS + "database": "Sales",
    KEYS + "table": "Orders",
}


def build(machine: Machine, wire: PlainWire, **more: str) -> HiveMetastoreClient:
    settings = HiveMetastoreSettings.from_properties({**PROPERTIES, **more})
    return HiveMetastoreClient(settings, wire, clock=machine.clock, ids=machine.ids)


@pytest.fixture
def metastore() -> PlainMetastore:
    return PlainMetastore()


@pytest.fixture
def wire(metastore: PlainMetastore) -> PlainWire:
    return PlainWire(metastore)


@pytest.fixture
def client(machine: Machine, wire: PlainWire) -> HiveMetastoreClient:
    return build(machine, wire)


@pytest.fixture
def rival(machine: Machine, metastore: PlainMetastore) -> HiveMetastoreClient:
    return build(machine, PlainWire(metastore))


def test_free_lock_costs_one_request_and_its_release_another(client, wire) -> None:
    client.try_acquire("me").release()
    assert wire.requests == ["connect", "lock", "unlock"]


def test_lock_id_is_the_fencing_token(client) -> None:
    first = client.try_acquire("me")
    first.release()
    assert (first.fencing_token, client.try_acquire("me").fencing_token) == (1, 2)


def test_identity_names_all_addresses_in_a_fixed_order(client) -> None:
    assert client.identity == "hivemetastore:meta-1:9083,meta-2:9083/Sales.Orders"


def test_queued_request_is_deleted_at_once(client, rival, metastore) -> None:
    client.try_acquire("me")
    assert rival.try_acquire("other") is None
    assert [row.lock_id for row in metastore.rows] == [1]


def test_refused_client_sends_no_request_while_there_are_rows(client, rival, wire) -> None:
    held = rival.try_acquire("other")
    assert client.try_acquire("me") is None
    asked = wire.requests.count("lock")
    assert client.try_acquire("me") is None
    assert wire.requests.count("lock") == asked
    held.release()
    assert client.try_acquire("me") is not None


def test_granted_request_without_answer_is_given_back(client, wire, metastore) -> None:
    wire.after["lock"] = lose
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    assert metastore.rows == []
    assert client.try_acquire("me") is not None


def test_request_granted_late_is_given_back_at_the_next_try(client, wire, metastore) -> None:
    wire.before["lock"] = lose
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    late = "hoodoo 00000000000000000001 - me"  # the nonce of the first request
    metastore.ask("hoodoo", "here", late)
    holding = client.try_acquire("me")
    assert holding is not None
    assert [row.lock_id for row in metastore.rows] == [holding.fencing_token]


def test_request_granted_late_is_given_back_at_the_end(client, wire, metastore) -> None:
    wire.before["lock"] = lose
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    metastore.ask("hoodoo", "here", "hoodoo 00000000000000000001 - me")
    client.close()
    assert metastore.rows == []


def test_interrupted_request_is_given_back_at_the_end(client, wire, metastore) -> None:
    def interrupt() -> None:
        wire.drop()
        raise KeyboardInterrupt

    wire.after["lock"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.try_acquire("me")
    assert len(metastore.rows) == 1
    client.close()
    assert metastore.rows == []


def test_held_row_survives_the_search_for_stray_rows(client, wire, metastore) -> None:
    held = client.try_acquire("me")
    wire.after["lock"] = lose
    with pytest.raises(UnavailableError):
        client.try_acquire("me again")
    client.try_acquire("me again")
    client.close()
    assert [row.lock_id for row in metastore.rows] == [held.fencing_token]


def test_a_queued_request_whose_unlock_failed_is_unlocked_later(
    client, rival, wire, metastore
) -> None:
    held = rival.try_acquire("other")

    def fail_twice() -> None:
        wire.before["unlock"] = lose
        lose()

    wire.before["unlock"] = fail_twice
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    assert len(metastore.rows) == 2
    assert client.try_acquire("me") is None
    assert [row.lock_id for row in metastore.rows] == [held.fencing_token]


def test_release_without_answer_is_repeated_on_a_new_connection(client, wire, metastore) -> None:
    held = client.try_acquire("me")
    wire.before["unlock"] = lose
    held.release()
    assert metastore.rows == []


def test_failed_release_is_made_up_for_at_the_next_try(client, wire, metastore) -> None:
    held = client.try_acquire("me")
    wire.before["unlock"] = lose
    wire.before["connect"] = lose
    with pytest.raises(UnavailableError):
        held.release()
    assert not held.is_held()
    assert client.try_acquire("me") is not None
    assert [row.lock_id for row in metastore.rows] == [2]


def test_a_heartbeat_after_a_restart_of_the_metastore_succeeds(client, wire) -> None:
    held = client.try_acquire("me")
    wire.before["heartbeat"] = lose
    held.renew()
    assert wire.requests[-3:] == ["heartbeat", "connect", "heartbeat"]


def test_row_deleted_by_the_metastore_is_a_lost_lease(client, metastore) -> None:
    held = client.try_acquire("me")
    metastore.remove(1)
    with pytest.raises(LeaseLostError):
        held.renew()
    assert not held.is_held()


def test_release_of_a_lost_lease_leaves_the_next_holder_alone(client, rival, metastore) -> None:
    held = client.try_acquire("me")
    metastore.remove(1)
    rival.try_acquire("other")
    held.release()
    assert [row.lock_id for row in metastore.rows] == [2]


def test_end_is_counted_from_before_the_request(client, wire, machine) -> None:
    def slow() -> None:
        machine.clock.time_ms += 2_000

    wire.after["lock"] = slow
    held = client.try_acquire("me")
    assert held.expires_in_ms() == 3 * 60_000 - 2_000
    wire.after["heartbeat"] = slow
    held.renew()
    assert held.expires_in_ms() == 3 * 60_000 - 2_000


@pytest.mark.parametrize(
    ("server_lease", "beat_ms", "option_ms", "lease_ms"),
    [
        ("300s", 60_000, None, 180_000),
        ("20s", 60_000, None, 20_000),
        ("5000ms", 60_000, None, 5_000),
        ("", 1_000_000, None, 300_000),
        ("", 1_000_000, 40_000, 40_000),
        ("600s", 1_000_000, 40_000, 40_000),
        ("20s", 60_000, 40_000, 20_000),
    ],
)
def test_lease_is_never_longer_than_the_servers(
    machine, wire, metastore, server_lease, beat_ms, option_ms, lease_ms
) -> None:
    metastore.lease = server_lease
    options = {"hoodie.write.lock.heartbeat_interval_ms": str(beat_ms)}
    if option_ms:
        options["hoodoo.lock.hivemetastore.lease.ms"] = str(option_ms)
    assert build(machine, wire, **options).try_acquire("me").expires_in_ms() == lease_ms


def test_a_request_takes_an_eighth_of_the_lease_at_most(client, wire, metastore) -> None:
    metastore.lease = "4s"
    client.try_acquire("me")
    assert wire.timeouts[-1] == 500
    assert client.margin_ms == 1_000


def test_forked_child_neither_renews_nor_releases(client, wire, machine, metastore) -> None:
    held = client.try_acquire("me")
    machine.ids.pid = 42
    held.release()
    with pytest.raises(LeaseLostError):
        held.renew()
    client.close()
    assert [row.lock_id for row in metastore.rows] == [1]


def test_a_forked_child_opens_its_own_connection(client, wire, machine) -> None:
    client.try_acquire("me")
    machine.ids.pid = 42
    assert client.try_acquire("child") is None
    assert wire.requests.count("connect") == 2


def test_java_holder_is_shown_by_user_and_host(client, metastore) -> None:
    metastore.rows.append(
        MetastoreLockRow(lock_id=9, acquired=True, user="etl", host="edge-1", agent="Unknown")
    )
    assert client.holder() == '{"owner": "etl@edge-1", "purpose": "", "lock_id": 9}'


@pytest.mark.parametrize("missing", ["uris", "database", "table"])
def test_a_missing_setting_is_named(missing) -> None:
    properties = {key: value for key, value in PROPERTIES.items() if key != KEYS + missing}
    with pytest.raises(SettingError) as caught:
        HiveMetastoreSettings.from_properties(properties)
    assert caught.value.fields["key"] == KEYS + missing
    assert caught.value.kind == "setting_missing"


@pytest.mark.parametrize("value", ["0", "99", "604800001", "a minute"])
def test_impossible_duration_names_key_value_and_unit(value) -> None:
    key = "hoodie.write.lock.heartbeat_interval_ms"
    with pytest.raises(SettingError, match=f"milliseconds.*{key}='?{value}"):
        HiveMetastoreSettings.from_properties({**PROPERTIES, key: value})


def test_a_table_may_not_name_the_metastore() -> None:
    properties = PropertySet().with_layer(TABLE_LAYER, PROPERTIES)
    with pytest.raises(UnsafeSetupError, match="must not choose the server"):
        HiveMetastoreSettings.from_properties(properties)


def test_factory_connects_to_nothing_yet(machine) -> None:
    context = LockContext(
        properties=PROPERTIES,
        table_identity="",
        table_address="",
        table_folder=None,
        clock=machine.clock,
        ids=machine.ids,
    )
    ENTRY.factory(context).close()


def test_only_the_named_holder_is_broken_and_learns_it(client, rival, metastore) -> None:
    held = client.try_acquire("me")
    assert not rival.break_lock("somebody else")
    assert rival.break_lock(rival.holder())
    assert not rival.break_lock("me")
    with pytest.raises(LeaseLostError):
        held.renew()

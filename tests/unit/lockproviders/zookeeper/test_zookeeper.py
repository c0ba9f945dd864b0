"""ZooKeeper's lock without a server: one node in the queue, and unanswered requests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lockproviders.client import BreakableLockClient
from lockproviders.hookspecs import LockContext
from lockproviders.zookeeper.client import ENTRY, ZooKeeperClient
from lockproviders.zookeeper.session import ZkSession
from lockproviders.zookeeper.settings import ZooKeeperSettings
from tests.unit.lockproviders.zookeeper_tree import Kazoo, Tree
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError

FOLDER = "/hudi/locks/t1"
PROPERTIES = {
    "hoodie.write.lock.zookeeper.url": "zk1:2181",
    "hoodie.write.lock.zookeeper.base_path": "/hudi/locks",
    "hoodie.write.lock.zookeeper.lock_key": "t1",
    "hoodie.write.lock.zookeeper.session_timeout_ms": "3000",
    "hoodie.write.lock.zookeeper.connection_timeout_ms": "1",
}


class NumberedIds:
    """Uuids that name the client that drew them."""

    def __init__(self, ids, name: str) -> None:
        self._ids = ids
        self._name = name
        self.drawn = 0

    def uuid(self) -> str:
        self.drawn += 1
        return f"{self._name}{self.drawn}"

    def identity(self):
        return self._ids.identity()


@pytest.fixture
def tree() -> Tree:
    return Tree()


@pytest.fixture
def new_client(machine, tree: Tree):
    def make(name: str, **options: str) -> ZooKeeperClient:
        context = LockContext(
            properties={**PROPERTIES, **options},
            table_identity="t1",
            table_address="/data/t1",
            table_folder=None,
            clock=machine.clock,
            ids=machine.ids,
        )
        settings = ZooKeeperSettings.from_context(context, implicit=False)

        def open_session() -> ZkSession:
            return ZkSession(settings, clock=machine.clock, pid=machine.ids.pid, make=tree.connect)

        return ZooKeeperClient(
            settings,
            clock=machine.clock,
            ids=NumberedIds(machine.ids, name),
            open_session=open_session,
        )

    return make


def wire(client: ZooKeeperClient) -> Kazoo:
    return client.session()._client


def prepared(client: ZooKeeperClient) -> ZooKeeperClient:
    """Open the client's session and create the lock's node."""
    holding = client.try_acquire("before")
    assert holding is not None
    holding.release()
    wire(client).asked.clear()
    return client


# ---------------------------------------------------------------- acquire and release


def test_free_lock_costs_one_round_trip_and_its_release_one(new_client) -> None:
    client = prepared(new_client("a"))
    holding = client.try_acquire("me")
    assert holding is not None
    # the first two in one request; the client does not wait for the watch
    assert wire(client).asked == ["create", "children", "get"]
    holding.release()
    assert wire(client).asked == ["create", "children", "get", "delete"]


def test_node_is_named_and_filled_as_java_reads_it(new_client, tree: Tree) -> None:
    client = new_client("a")
    assert client.try_acquire('{"owner":"me"}') is not None
    (name,) = tree.names(FOLDER)
    assert name == "_c_a1-lock-0000000000"
    assert tree.nodes[f"{FOLDER}/{name}"].data == b'application_id=Unknown;owner={"owner":"me"}'
    assert client.holder() == '{"owner":"me"}'


def test_java_ahead_is_waited_for_and_named(new_client, tree: Tree) -> None:
    client = prepared(new_client("a"))
    java = tree.add_numbered(f"{FOLDER}/_c_java-lock-", b"application_id=spark-1", object())
    assert client.try_acquire("me") is None
    assert client.holder() == "application_id=spark-1"
    tree.remove(java)
    assert client.try_acquire("me") is not None


def test_refused_try_leaves_no_node(new_client, tree: Tree) -> None:
    holder, other = new_client("a"), new_client("b")
    assert holder.try_acquire("one") is not None
    assert other.try_acquire("other") is None
    assert tree.names(FOLDER) == ["_c_a1-lock-0000000000"]


def test_the_token_is_the_creation_id_and_grows_when_sequence_numbers_restart(
    new_client, tree: Tree
) -> None:
    first = new_client("a").try_acquire("one")
    first.release()
    tree.numbers.clear()  # as if another client had deleted the lock's node
    second = new_client("b").try_acquire("two")
    assert tree.names(FOLDER) == ["_c_b1-lock-0000000000"]
    assert second.fencing_token > first.fencing_token


def test_only_the_own_node_is_removed(new_client, tree: Tree) -> None:
    one = new_client("a").try_acquire("one")
    one.release()
    other = new_client("b").try_acquire("other")
    one.release()
    assert tree.names(FOLDER) == ["_c_b1-lock-0000000001"]
    assert other.is_held()
    assert not one.is_held()


# ---------------------------------------------------------------- waiting in the queue


def test_waiter_keeps_its_node_between_tries(new_client, tree: Tree) -> None:
    holding = new_client("a").try_acquire("one")
    entry = new_client("b").enter("two")
    assert entry.try_acquire() is None
    queued = tree.names(FOLDER)
    assert entry.try_acquire() is None
    assert tree.names(FOLDER) == queued
    holding.release()
    assert entry.try_acquire() is not None


def test_a_waiting_client_sends_no_request_while_the_node_ahead_exists(machine, new_client) -> None:
    new_client("a").try_acquire("one")
    client = new_client("b")
    entry = client.enter("two")
    entry.try_acquire()
    asked = list(wire(client).asked)
    machine.clock.time_ms += 999
    assert entry.try_acquire() is None
    assert wire(client).asked == asked
    machine.clock.time_ms += 1  # a watch may be lost with its server
    assert entry.try_acquire() is None
    assert wire(client).asked == [*asked, "children"]


def test_a_waiting_client_is_woken_when_the_node_ahead_is_deleted(machine, new_client) -> None:
    holding = new_client("a").try_acquire("one")
    entry = new_client("b").enter("two")
    entry.try_acquire()
    holding.release()
    entry.wait(60_000)  # returns at once; otherwise this test would not end
    assert machine.clock.sleeps == []


def test_waiting_clients_get_the_lock_in_order_of_arrival(new_client) -> None:
    holding = new_client("a").try_acquire("one")
    second, third = new_client("b").enter("two"), new_client("c").enter("three")
    assert second.try_acquire() is None
    assert third.try_acquire() is None
    holding.release()
    assert third.try_acquire() is None
    next_holding = second.try_acquire()
    assert next_holding is not None
    next_holding.release()
    assert third.try_acquire() is not None


def test_a_waiting_client_that_leaves_lets_those_behind_it_advance(new_client) -> None:
    holding = new_client("a").try_acquire("one")
    second, third = new_client("b").enter("two"), new_client("c").enter("three")
    second.try_acquire()
    third.try_acquire()
    second.leave()
    second.leave()
    holding.release()
    assert third.try_acquire() is not None


# ---------------------------------------------------------------- missing answers


def test_unanswered_create_is_recognised_by_its_name(new_client, tree: Tree) -> None:
    client = prepared(new_client("a"))
    wire(client).faults["create"] = ["unanswered"]
    entry = client.enter("me")
    with pytest.raises(UnavailableError):
        entry.try_acquire()
    holding = entry.try_acquire()
    assert tree.names(FOLDER) == ["_c_a2-lock-0000000001"]
    assert holding.fencing_token == tree.nodes[f"{FOLDER}/_c_a2-lock-0000000001"].czxid


def test_lost_create_is_sent_again(new_client, tree: Tree) -> None:
    client = prepared(new_client("a"))
    wire(client).faults["create"] = ["lost"]
    entry = client.enter("me")
    with pytest.raises(UnavailableError):
        entry.try_acquire()
    assert entry.try_acquire() is not None
    assert len(tree.names(FOLDER)) == 1


def test_a_second_node_that_arrives_late_is_deleted_with_the_session(
    new_client, tree: Tree
) -> None:
    client = prepared(new_client("a"))
    session, connection = client.session(), wire(client)
    connection.faults["create"] = ["lost"]
    entry = client.enter("me")
    with pytest.raises(UnavailableError):
        entry.try_acquire()
    holding = entry.try_acquire()
    # the lost create arrives later
    tree.add_numbered(f"{FOLDER}/_c_a2-lock-", b"", connection)
    assert holding.is_held()
    holding.release()
    assert tree.names(FOLDER) == []
    assert session.is_lost
    assert connection.closed


def test_an_abandoned_unanswered_create_leaves_no_node(new_client, tree: Tree) -> None:
    client = prepared(new_client("a"))
    connection = wire(client)
    connection.faults["create"] = ["unanswered"]
    with pytest.raises(UnavailableError):
        client.try_acquire("me")
    assert tree.names(FOLDER) == []
    assert connection.closed


def test_leaving_without_an_answer_ends_the_session(new_client, tree: Tree) -> None:
    assert new_client("a").try_acquire("one") is not None
    client = new_client("b")
    entry = client.enter("two")
    entry.try_acquire()
    connection = wire(client)
    connection.faults["delete"] = ["lost"]
    entry.leave()
    assert tree.names(FOLDER) == ["_c_a1-lock-0000000000"]
    assert connection.closed


def test_a_denied_release_is_reported_and_ends_the_session(new_client, tree: Tree) -> None:
    """With rights to create and read only, an identity would block all clients for ever."""
    client = prepared(new_client("a"))
    holding = client.try_acquire("me")
    wire(client).faults["delete"] = ["denied"]
    with pytest.raises(UnsafeSetupError, match="delete there"):
        holding.release()
    assert tree.names(FOLDER) == []
    assert new_client("b").try_acquire("other") is not None


def test_a_release_without_an_answer_is_reported_and_ends_the_session(
    new_client, tree: Tree
) -> None:
    client = new_client("a")
    holding = client.try_acquire("me")
    connection = wire(client)
    connection.faults["delete"] = ["lost"]
    with pytest.raises(UnavailableError):
        holding.release()
    assert tree.names(FOLDER) == []
    assert connection.closed
    assert client.try_acquire("again") is not None


def test_a_holder_keeps_the_session_that_another_thread_abandons(new_client, tree: Tree) -> None:
    client = new_client("a")
    holding = client.try_acquire("one thread")
    session = client.session()
    entry = client.enter("another thread")
    assert entry.try_acquire() is None
    wire(client).faults["delete"] = ["lost"]
    entry.leave()
    assert holding.is_held()
    holding.release()
    assert session.is_lost
    assert tree.names(FOLDER) == []


def test_a_node_ahead_that_is_deleted_during_the_check_costs_no_wait(
    new_client, tree: Tree
) -> None:
    client = prepared(new_client("a"))
    java = tree.add_numbered(f"{FOLDER}/_c_java-lock-", b"", object())
    connection = wire(client)
    answer = connection.get_async

    def gone_first(path: str, watch=None):
        tree.remove(java)
        return answer(path, watch)

    connection.get_async = gone_first
    assert client.try_acquire("me") is not None


# ---------------------------------------------------------------- checks of the holding


def test_lease_counts_from_before_the_request(machine, new_client) -> None:
    client = prepared(new_client("a"))
    connection = wire(client)
    answer = connection.create_async

    def slow(*arguments, **options):
        machine.clock.time_ms += 400
        return answer(*arguments, **options)

    connection.create_async = slow
    assert client.try_acquire("me").expires_in_ms() == 2_600


def test_renewal_sees_the_own_node_and_moves_the_end(machine, new_client) -> None:
    holding = new_client("a").try_acquire("me")
    machine.clock.time_ms += 1_000
    assert holding.expires_in_ms() == 2_000
    holding.renew()
    assert holding.expires_in_ms() == 3_000


def test_renewal_without_an_answer_moves_nothing(machine, new_client) -> None:
    client = new_client("a")
    holding = client.try_acquire("me")
    machine.clock.time_ms += 1_000
    wire(client).faults["get"] = ["unanswered"]
    with pytest.raises(UnavailableError):
        holding.renew()
    assert holding.expires_in_ms() == 2_000


def test_a_node_that_was_deleted_is_detected_by_its_watch(new_client, tree: Tree) -> None:
    holding = new_client("a").try_acquire("me")
    tree.remove(f"{FOLDER}/_c_a1-lock-0000000000")
    assert not holding.is_held()
    with pytest.raises(LeaseLostError):
        holding.renew()


def test_interrupted_connection_is_not_held(machine, new_client) -> None:
    client = new_client("a")
    holding = client.try_acquire("me")
    wire(client).suspend()
    began_ms = machine.clock.time_ms
    assert not holding.is_held()
    assert machine.clock.time_ms - began_ms == client.margin_ms == 1_000


def test_a_restored_connection_must_find_the_node(new_client, tree: Tree) -> None:
    client = new_client("a")
    holding = client.try_acquire("me")
    wire(client).suspend()
    wire(client).reconnect()
    wire(client).asked.clear()
    assert holding.is_held()
    assert wire(client).asked == ["get"]
    assert holding.is_held()
    assert wire(client).asked == ["get"]  # one check is enough
    wire(client).suspend()
    tree.remove(f"{FOLDER}/_c_a1-lock-0000000000")  # without a notification
    wire(client).reconnect()
    assert not holding.is_held()


def test_short_interruption_is_waited_out(machine, new_client) -> None:
    client = new_client("a")
    holding = client.try_acquire("me")
    connection = wire(client)
    connection.suspend()
    machine.clock.on_sleep = connection.reconnect
    assert holding.is_held()


def test_expired_session_is_lost_for_good(new_client, tree: Tree) -> None:
    client = new_client("a")
    holding = client.try_acquire("me")
    connection = wire(client)
    connection.expire()
    assert connection.closed  # otherwise kazoo would open another session by itself
    connection.reconnect()
    assert not holding.is_held()
    with pytest.raises(LeaseLostError):
        holding.renew()
    holding.release()
    again = client.try_acquire("me again")
    assert tree.names(FOLDER) == ["_c_a2-lock-0000000001"]
    assert again.is_held()
    assert not holding.is_held()


def test_answer_of_a_session_that_ended_meanwhile_is_not_taken(new_client, tree: Tree) -> None:
    client = prepared(new_client("a"))
    connection = wire(client)
    answer = connection.get_children_async

    def ended(path: str):
        result = answer(path)
        connection.expire()
        return result

    connection.get_children_async = ended
    entry = client.enter("me")
    with pytest.raises(UnavailableError):
        entry.try_acquire()
    assert entry.try_acquire() is not None
    assert tree.names(FOLDER) == ["_c_a3-lock-0000000002"]


def test_a_waiting_client_gets_another_node_name_in_a_new_session(new_client, tree: Tree) -> None:
    new_client("a").try_acquire("one")
    client = new_client("b")
    entry = client.enter("two")
    entry.try_acquire()
    wire(client).expire()
    # a node of the old session that a slow server may still list
    tree.add(f"{FOLDER}/_c_b1-lock-0000000001")
    assert entry.try_acquire() is None
    assert "_c_b2-lock-0000000002" in tree.names(FOLDER)
    tree.remove(f"{FOLDER}/_c_a1-lock-0000000000")
    assert entry.try_acquire() is None


def test_a_forked_child_neither_holds_nor_uses_the_session(machine, new_client, tree) -> None:
    client = new_client("a")
    holding = client.try_acquire("parent")
    entry = client.enter("parent waits")
    entry.try_acquire()
    connection = wire(client)
    connection.asked.clear()
    machine.ids.pid += 1
    assert not holding.is_held()
    holding.release()
    entry.leave()
    client.close()
    assert connection.asked == []
    assert not connection.stopped
    assert client.try_acquire("child") is None
    assert len(tree.clients) == 2


def test_a_lease_that_is_not_renewed_ends_although_kazoo_sends_heartbeats(
    machine, new_client, tree: Tree
) -> None:
    client = prepared(new_client("a"))
    session = client.session()
    assert session.end_overdue(client._least_left_ms(session)) == 1_500
    holding = client.try_acquire("me")
    machine.clock.time_ms += 1_000
    holding.renew()
    machine.clock.time_ms += 2_000
    assert session.end_overdue(client._least_left_ms(session)) == 1_000
    assert holding.is_held()
    machine.clock.time_ms += 1_000
    session.end_overdue(client._least_left_ms(session))
    assert tree.names(FOLDER) == []
    assert not holding.is_held()


def test_a_released_lease_ends_no_session(machine, new_client) -> None:
    client = prepared(new_client("a"))
    client.try_acquire("me").release()
    machine.clock.time_ms += 60_000
    session = client.session()
    session.end_overdue(client._least_left_ms(session))
    assert not session.is_lost


# ---------------------------------------------------------------- changes by an operator


def test_breaking_takes_the_lock_from_the_named_holder_only(new_client, tree: Tree) -> None:
    holding = new_client("a").try_acquire('{"owner":"a"}')
    entry = new_client("b").enter('{"owner":"b"}')
    entry.try_acquire()
    operator = new_client("c")
    assert isinstance(operator, BreakableLockClient)
    assert not operator.break_lock('{"owner":"b"}')
    assert holding.is_held()
    assert operator.break_lock('{"owner":"a"}')
    assert not holding.is_held()
    heir = entry.try_acquire()
    assert heir is not None
    assert not operator.break_lock('{"owner":"a"}')
    holding.release()
    assert heir.is_held()


def test_breaking_a_free_lock_is_nothing(new_client) -> None:
    assert not prepared(new_client("a")).break_lock("anybody")


def test_breaking_a_lock_that_is_being_released_is_reported(new_client, tree: Tree) -> None:
    java = prepared(new_client("a")) and tree.add_numbered(f"{FOLDER}/_c_j-lock-", b"j", object())
    operator = new_client("c")
    connection = wire(operator)
    answer = connection.delete_async

    def gone_first(path: str):
        tree.remove(java)
        return answer(path)

    connection.delete_async = gone_first
    assert not operator.break_lock("j")


# ---------------------------------------------------------------- connections


def test_a_failed_connection_is_closed(new_client, tree: Tree) -> None:
    tree.accepts = False
    with pytest.raises(UnavailableError, match=r"connection_timeout_ms.*zk1:2181"):
        new_client("a").try_acquire("me")
    assert [(client.stopped, client.closed) for client in tree.clients] == [(True, True)]


def test_refused_rights_are_a_set_up_error(new_client, tree: Tree) -> None:
    tree.add("/hudi")
    tree.readable = False
    with pytest.raises(UnsafeSetupError) as caught:
        new_client("a").try_acquire("me")
    assert caught.value.kind == "lock_access"
    assert all(client.closed for client in tree.clients)


def test_one_client_has_one_session(new_client, tree: Tree) -> None:
    client = new_client("a")
    for _ in range(3):
        client.try_acquire("me").release()
    client.holder()
    assert len(tree.clients) == 1


def test_closing_ends_the_session_and_its_nodes(new_client, tree: Tree) -> None:
    client = new_client("a")
    holding = client.try_acquire("me")
    client.close()
    client.close()
    assert tree.names(FOLDER) == []
    assert tree.clients[0].closed
    assert not holding.is_held()


def test_margin_is_a_third_of_the_session(new_client) -> None:
    assert new_client("a").margin_ms == 1_000


def test_missing_package_names_the_extra(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lockproviders.zookeeper.session")
    monkeypatch.setitem(sys.modules, "kazoo", None)
    context = LockContext(
        properties=PROPERTIES,
        table_identity="t1",
        table_address="/data/t1",
        table_folder=None,
        clock=machine.clock,
        ids=machine.ids,
    )
    with pytest.raises(UnsafeSetupError, match=r"hoodoo\[zookeeper\]") as caught:
        ENTRY.factory(context)
    assert caught.value.kind == "missing_extra"


@pytest.mark.parametrize(
    ("mechanism", "package"), [("DIGEST-MD5", "puresasl"), ("GSSAPI", "kerberos")]
)
def test_missing_sasl_package_names_the_extra_before_the_first_lock(
    machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("lockproviders.zookeeper.client.find_spec", lambda name: None)
    secret = tmp_path / "identity"
    secret.write_text("user:password")
    secret.chmod(0o600)
    ours = "hoodoo.lock.zookeeper."
    context = LockContext(
        properties={**PROPERTIES, ours + "sasl": mechanism, ours + "identity.file": str(secret)},
        table_identity="t1",
        table_address="/data/t1",
        table_folder=None,
        clock=machine.clock,
        ids=machine.ids,
    )
    with pytest.raises(UnsafeSetupError, match=r"hoodoo\[zookeeper-sasl\]") as caught:
        ENTRY.factory(context)
    assert caught.value.kind == "missing_extra"


def test_a_missing_root_is_a_set_up_error(new_client, tree: Tree) -> None:
    tree.has_root = False
    client = new_client("a", **{"hoodie.write.lock.zookeeper.url": "zk1:2181/nowhere"})
    with pytest.raises(UnsafeSetupError, match="create /nowhere") as caught:
        client.try_acquire("me")
    assert caught.value.kind == "lock_root"

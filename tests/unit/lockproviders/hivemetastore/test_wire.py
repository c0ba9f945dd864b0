"""The Thrift requests of the metastore's lock, and the meaning of their failures."""

from __future__ import annotations

import sys

import pytest
from pymetastore.hive_metastore import ttypes
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TTransportException

from lockproviders.hivemetastore.database import LockName
from lockproviders.hivemetastore.thrift_connection import Address, ThriftWire, parse_uris
from timeline.errors import LeaseLostError, SettingError, UnavailableError, UnsafeSetupError

NAME = LockName(database="Sales", table="Orders")


class Service:
    """Returns the given answer to each request; an exception is raised."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.asked: list[tuple[object, ...]] = []

    def __getattr__(self, request: str):
        def answer(*values: object) -> object:
            self.asked.append((request, *values))
            given = self.answers[request]
            if isinstance(given, BaseException):
                raise given
            return given

        return answer


def wire_to(**answers: object) -> tuple[ThriftWire, Service]:
    wire = ThriftWire((Address(host="a", port=1), Address(host="b", port=2)), None)
    service = Service(**answers)
    wire._service = service
    return wire, service


def test_request_is_the_one_of_java() -> None:
    wire, service = wire_to(lock=ttypes.LockResponse(lockid=7, state=ttypes.LockState.ACQUIRED))
    granted = wire.lock(NAME, "edge-1", "hoodoo n 7/w x")
    assert (granted.lock_id, granted.acquired) == (7, True)
    ((_, request),) = service.asked
    (component,) = request.component
    assert (component.type, component.level) == (3, 2)  # exclusive, table
    assert (component.dbname, component.tablename, component.partitionname) == (
        "Sales",
        "Orders",
        None,
    )
    assert (component.operationType, component.isTransactional) == (5, False)  # unset
    assert (request.txnid, request.user, request.hostname) == (0, "hoodoo", "edge-1")
    assert request.agentInfo == "hoodoo n 7/w x"


@pytest.mark.parametrize("state", [2, 3, 4])
def test_every_state_but_acquired_is_no_lock(state) -> None:
    wire, _ = wire_to(lock=ttypes.LockResponse(lockid=7, state=state))
    assert not wire.lock(NAME, "h", "a").acquired


def test_beat_is_for_the_lock_and_no_transaction() -> None:
    wire, service = wire_to(heartbeat=None)
    wire.heartbeat(7)
    ((_, request),) = service.asked
    assert (request.lockid, request.txnid) == (7, 0)


@pytest.mark.parametrize("gone", [ttypes.NoSuchLockException, ttypes.TxnAbortedException])
def test_unknown_lock_is_a_lost_lease_and_keeps_the_connection(gone) -> None:
    wire, _ = wire_to(heartbeat=gone("no such lock"))
    with pytest.raises(LeaseLostError):
        wire.heartbeat(7)
    assert wire.is_open


def test_unlock_of_an_unknown_lock_is_no_error() -> None:
    wire, _ = wire_to(unlock=ttypes.NoSuchLockException("no such lock"))
    wire.unlock(7)
    assert wire.is_open


@pytest.mark.parametrize(
    "error",
    [
        TApplicationException(TApplicationException.UNKNOWN_METHOD, "Invalid method name: 'lock'"),
        TApplicationException(TApplicationException.INTERNAL_ERROR, "UnsupportedOperation"),
        TApplicationException(TApplicationException.INTERNAL_ERROR, "Bug: operationType=UNSET"),
    ],
)
def test_a_metastore_without_locks_is_reported(error) -> None:
    wire, _ = wire_to(lock=error)
    with pytest.raises(UnsafeSetupError) as caught:
        wire.lock(NAME, "h", "a")
    assert caught.value.kind == "no_locks"


@pytest.mark.parametrize(
    "error",
    [
        TApplicationException(TApplicationException.INTERNAL_ERROR, None),
        TTransportException(TTransportException.TIMED_OUT, "read timeout"),
        ttypes.MetaException("the database is away"),
        EOFError(),
        BrokenPipeError(32, "broken pipe"),
    ],
)
def test_other_failures_are_waited_out_at_the_next_address(error) -> None:
    wire, _ = wire_to(show_locks=error)
    with pytest.raises(UnavailableError, match="a:1"):
        wire.show(NAME)
    assert not wire.is_open
    assert wire.here == "b:2"


def test_interruption_leaves_no_connection_with_a_late_answer() -> None:
    wire, _ = wire_to(show_locks=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        wire.show(NAME)
    assert not wire.is_open


def test_rows_of_another_spelling_are_not_this_lock() -> None:
    def element(lock_id: int, table: str):
        return ttypes.ShowLocksResponseElement(
            lockid=lock_id, dbname="Sales", tablename=table, state=1, user="u", hostname="h"
        )

    answer = ttypes.ShowLocksResponse(locks=[element(1, "orders"), element(2, "Orders")])
    wire, _ = wire_to(show_locks=answer)
    assert [row.lock_id for row in wire.show(NAME)] == [2]


def test_a_server_that_hides_its_settings_gives_no_lease_time() -> None:
    wire, _ = wire_to(get_config_value=ttypes.ConfigValSecurityException("no"))
    assert wire.lease_text() == ""
    assert wire.is_open


def test_port_is_9083_by_default() -> None:
    assert parse_uris("k", ("thrift://a", "thrift://[::1]:7"), "code") == (
        Address(host="a", port=9083),
        Address(host="::1", port=7),
    )


@pytest.mark.parametrize(
    "uri",
    [
        "http://a:9083",
        "a:9083",
        "thrift://",
        "thrift://a:port",
        "thrift://a:99999",
        "thrift://user@a:9083",
        "thrift://a:9083/path",
        "thrift://169.254.169.254:80",
        "thrift://[fe80::1]:9083",
        "thrift://[fd00:ec2::254]",
        "thrift://[broken",
    ],
)
def test_address_of_another_kind_is_refused(uri) -> None:
    with pytest.raises(SettingError, match="thrift://host:port"):
        parse_uris("k", (uri,), "code")


def test_missing_package_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetastore.hive_metastore", None)
    with pytest.raises(UnsafeSetupError, match=r"pip install 'hoodoo\[hive\]'") as caught:
        ThriftWire((Address(host="a", port=1),), None)
    assert caught.value.kind == "missing_extra"

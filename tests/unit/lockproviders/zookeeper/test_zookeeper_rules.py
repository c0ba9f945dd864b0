"""Names, order, paths, keys and defaults of ZooKeeper's queue are those of Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockproviders.hookspecs import LockContext
from lockproviders.zookeeper.queue import (
    hosts_identity,
    lock_path,
    node_prefix,
    node_text,
    own_nodes,
    owner_in,
    predecessor,
    queue_order,
    split_hosts,
)
from lockproviders.zookeeper.settings import ZooKeeperOptions, ZooKeeperSettings, request_timeout_ms
from timeline.errors import SettingError, UnsafeSetupError
from timeline.redaction import redact

URL = "hoodie.write.lock.zookeeper.url"
BASE = "hoodie.write.lock.zookeeper.base_path"
KEY = "hoodie.write.lock.zookeeper.lock_key"
PORT = "hoodie.write.lock.zookeeper.port"
SESSION = "hoodie.write.lock.zookeeper.session_timeout_ms"
LEAST = {URL: "zk1:2181", BASE: "/hudi/locks", "hoodie.table.name": "trips"}


def test_order_is_by_the_text_after_the_last_mark() -> None:
    names = [
        "_c_11111111-lock-0000000012",
        "_c_99999999-lock-0000000003",
        "_c_lock-5555-lock-0000000007",
    ]
    assert queue_order(names) == [names[1], names[2], names[0]]


def test_a_node_name_without_the_marker_has_javas_position() -> None:
    # Java compares its whole name with the numbers of the others
    names = ["ff00__lock__0000000001", "_c_1-lock-0000000000", "0-someone"]
    assert queue_order(names) == ["0-someone", "_c_1-lock-0000000000", "ff00__lock__0000000001"]


def test_waiter_watches_only_the_one_ahead() -> None:
    names = ["_c_a-lock-0000000004", "_c_b-lock-0000000009", "_c_c-lock-0000000002"]
    assert predecessor(names, "_c_b-lock-0000000009") == "_c_a-lock-0000000004"
    assert predecessor(names, "_c_a-lock-0000000004") == "_c_c-lock-0000000002"
    assert predecessor(names, "_c_c-lock-0000000002") is None


def test_own_nodes_are_found_by_their_unique_part() -> None:
    names = ["_c_b-lock-0000000001", "_c_a-lock-0000000009", "_c_a-lock-0000000003"]
    assert node_prefix("a") == "_c_a-lock-"
    assert own_nodes(names, "a") == ["_c_a-lock-0000000003", "_c_a-lock-0000000009"]


@pytest.mark.parametrize(
    ("data", "owner"),
    [
        (node_text("etl", '{"owner":"here/1/w"}'), '{"owner":"here/1/w"}'),
        (node_text("a;owner=b", '{"owner":"w"}'), '{"owner":"w"}'),
        (b"application_id=spark-1", "application_id=spark-1"),
        (b"application_id=x;owner=nobody", "application_id=x;owner=nobody"),
        (b"", None),
        (b"10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_owner_is_read_from_hoodoos_nodes_and_text_from_others(
    data: bytes, owner: str | None
) -> None:
    assert owner_in(data) == owner


def test_path_is_base_and_key() -> None:
    assert lock_path("/hudi/locks", "db/trips", key=BASE) == "/hudi/locks/db/trips"


@pytest.mark.parametrize(
    ("base", "key"),
    [
        ("hudi", "t"),
        ("/hudi/", "t"),
        ("/", "t"),
        ("/hudi", "/t"),
        ("/hudi", "t/"),
        ("/hudi/../x", "t"),
        ("/hudi", "."),
        ("/hudi", "t\n"),
        ("/hudi", "t\x7f"),
    ],
)
def test_path_that_java_refuses_is_refused(base: str, key: str) -> None:
    with pytest.raises(SettingError, match="base_path"):
        lock_path(base, key, key=BASE)


@pytest.mark.parametrize(
    ("url", "servers", "root"),
    [
        ("zk1", ("zk1:2181",), ""),
        ("ZK2:2182, zk1:2181", ("zk1:2181", "zk2:2182"), ""),
        ("zk1:2181,zk2:2181/hudi", ("zk1:2181", "zk2:2181"), "/hudi"),
        ("[::1]:2181", ("[::1]:2181",), ""),
    ],
)
def test_servers_are_read_as_java_reads_them(url: str, servers: tuple, root: str) -> None:
    assert split_hosts(url, key=URL) == (servers, root)


@pytest.mark.parametrize(
    "url", ["", ",", "zk1:", "zk1:x", "zk1:0", "zk1:70000", "zk 1:2181", "u@zk1:2181", "zk1/a//b"]
)
def test_an_invalid_server_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match=r"zookeeper\.url"):
        split_hosts(url, key=URL)


def test_identity_is_the_same_for_every_spelling_of_one_ensemble() -> None:
    one = split_hosts("zk2:2181,ZK1", key=URL)
    other = split_hosts("zk1:2181,zk2", key=URL)
    assert hosts_identity(*one, "/l/t") == hosts_identity(*other, "/l/t")
    assert hosts_identity(*one, "/l/t") == "zookeeper:zk1:2181,zk2:2181/l/t"


def settings(machine, *, implicit: bool = False, **properties: str) -> ZooKeeperSettings:
    context = LockContext(
        properties=properties,
        table_identity="t",
        table_address="s3a://bkt/t1",
        table_folder=None,
        clock=machine.clock,
        ids=machine.ids,
    )
    return ZooKeeperSettings.from_context(context, implicit=implicit)


def test_defaults_are_hudis(machine) -> None:
    read = settings(machine, **LEAST)
    assert read.session_timeout_ms == 60_000
    assert read.connection_timeout_ms == 15_000
    assert (read.reconnect_tries, read.reconnect_first_ms, read.reconnect_max_ms) == (
        15,
        1_000,
        16_000,
    )
    assert read.application == "Unknown"


@pytest.mark.parametrize(("deadline_ms", "wait_ms"), [("2000", 2_000), ("0", 1_000)])
def test_the_wait_for_a_connection_ends_with_the_lock_deadline(
    machine, deadline_ms: str, wait_ms: int
) -> None:
    read = settings(machine, **LEAST, **{"hoodoo.lock.deadline.ms": deadline_ms})
    assert read.connection_timeout_ms == wait_ms


def test_key_is_inferred_from_the_tables_name(machine) -> None:
    assert settings(machine, **LEAST).path == "/hudi/locks/trips"
    assert settings(machine, **LEAST, **{KEY: "mine"}).path == "/hudi/locks/mine"


def test_implicit_node_is_named_by_the_hash_of_the_path(machine) -> None:
    read = settings(machine, implicit=True, **{URL: "zk1:2181", BASE: "/ignored", KEY: "ignored"})
    assert read.path == "/tmp/C18CF90096A11877/lock_key"


@pytest.mark.parametrize("missing", [URL, BASE, "hoodie.table.name"])
def test_a_missing_setting_is_named(machine, missing: str) -> None:
    options = {key: value for key, value in LEAST.items() if key != missing}
    with pytest.raises(SettingError, match=missing.replace(".", r"\.")):
        settings(machine, **options)


@pytest.mark.parametrize(("url", "port"), [("zk1", "2181"), ("zk1:2182", "2181")])
def test_a_port_option_with_a_url_has_no_effect_as_in_java(machine, url: str, port: str) -> None:
    options = {**LEAST, URL: url}
    with_port = settings(machine, **options, **{PORT: port})
    assert with_port.model_copy(update={"port": None}) == settings(machine, **options)


def test_port_that_java_would_not_use_is_refused(machine) -> None:
    with pytest.raises(SettingError, match=r"zookeeper\.port=.2182"):
        settings(machine, **{**LEAST, URL: "zk1", PORT: "2182"})


@pytest.mark.parametrize("value", ["soon", "-1", "0", "99999999999"])
def test_wrong_time_is_named_with_its_key(machine, value: str) -> None:
    with pytest.raises(SettingError, match="milliseconds") as caught:
        settings(machine, **LEAST, **{SESSION: value})
    assert caught.value.fields["key"] == SESSION
    assert caught.value.fields["value"] == value


def test_tls_needs_a_certificate_authority(machine) -> None:
    with pytest.raises(SettingError, match=r"tls\.ca"):
        settings(machine, **LEAST, **{"hoodoo.lock.zookeeper.tls": "true"})


def test_request_time_follows_the_session_within_bounds() -> None:
    assert [request_timeout_ms(ms) for ms in (600, 4_000, 40_000, 600_000)] == [
        250,
        666,
        6_666,
        10_000,
    ]


def test_sasl_with_a_password_needs_one(machine) -> None:
    with pytest.raises(SettingError, match=r"identity\.file"):
        settings(machine, **LEAST, **{"hoodoo.lock.zookeeper.sasl": "digest-md5"})
    options = {"hoodoo.lock.zookeeper.sasl": "GSSAPI"}
    assert settings(machine, **LEAST, **options).sasl == "GSSAPI"


def with_secret(machine, file: Path) -> ZooKeeperSettings:
    return settings(machine, **LEAST, **{ZooKeeperOptions.options["identity_file"].key: str(file)})


def test_the_identity_is_read_from_a_private_file(machine, tmp_path: Path) -> None:
    file = tmp_path / "digest"
    file.write_text("loader:s:ecret\n")
    file.chmod(0o600)
    read = with_secret(machine, file)
    assert read.identity() == "loader:s:ecret"
    assert "ecret" not in repr(read)
    assert settings(machine, **LEAST).identity() is None


@pytest.mark.parametrize(
    ("text", "mode"), [("loader:secret", 0o640), ("loader:secret", 0o604), ("loader", 0o600)]
)
def test_identity_that_others_can_read_is_refused(
    machine, tmp_path: Path, text: str, mode: int
) -> None:
    file = tmp_path / "digest"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(UnsafeSetupError) as caught:
        with_secret(machine, file).identity()
    assert "secret" not in caught.value.message


def test_values_of_our_own_keys_are_no_secrets() -> None:
    assert redact(ZooKeeperOptions.options["identity_file"].key, "/etc/digest") == "/etc/digest"


def test_a_missing_url_is_asked_for_with_an_example(machine) -> None:
    with pytest.raises(SettingError) as caught:
        settings(machine)
    assert caught.value.message == (
        "set hoodie.write.lock.zookeeper.url to the servers of ZooKeeper, such as "
        "zk1:2181,zk2:2181: the lock provider zookeeper needs it"
    )

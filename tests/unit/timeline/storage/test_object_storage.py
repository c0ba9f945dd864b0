"""The object-store adapter: addresses, options, answers and the clock."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from obstore import get
from obstore.store import AzureStore, MemoryStore, S3Store

from tests.unit.timeline.engine import wait_for
from timeline.errors import (
    InvalidInputError,
    MissingExtraError,
    SettingError,
    StorageUnavailableError,
    UnavailableError,
    UnsafeSetupError,
)
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    ProcessIdentity,
)
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.storage import object_client
from timeline.storage.object_address import parse_object_address, with_account
from timeline.storage.object_client import (
    ObjectSettings,
    StoreClock,
    first_line,
    open_client,
)
from timeline.storage.object_store import ObjectInput, ObjectOutput, ObjectStorage
from timeline.system import SystemIds

RESET = b"reset"  # the request is read, then the connection closes
PATIENCE_S = 60
PLACE = parse_object_address("s3://lake/t")


class PlainClock:
    def __init__(self, *, wall_ms: int = 1_700_000_000_250, monotonic_ms: int = 5_000) -> None:
        self.wall_ms = wall_ms
        self.time_ms = monotonic_ms
        self.sleeps: list[int] = []

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.sleeps.append(duration_ms)
        self.time_ms += duration_ms


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("s3://lake/a/t", "s3://lake/a/t"),
        ("s3a://lake//a/t//", "s3://lake/a/t"),
        ("S3N://lake/a/t", "s3://lake/a/t"),
        ("s3://lake", "s3://lake"),
        ("s3a://lake/", "s3://lake"),
        ("gcs://lake/a b%20c", "gs://lake/a b%20c"),
        ("az://box/t", "az://box/t"),
        ("abfs://box@acct.blob.core.windows.net/t", "abfss://box@acct.dfs.core.windows.net/t"),
        ("abfss://box@Acct.dfs.core.windows.net/t", "abfss://box@acct.dfs.core.windows.net/t"),
    ],
)
def test_every_spelling_has_one_canonical_address(address: str, canonical: str) -> None:
    assert parse_object_address(address).base_uri == canonical


@pytest.mark.parametrize(
    "address",
    ["s3://", "s3:///t", "s3://a\nb/t", "s3://lake/../x", "s3://k:s@lake/t", "abfss://c@evil/t"],
)
def test_addresses_that_could_lead_elsewhere_are_refused(address: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_object_address(address)


def test_the_account_option_completes_the_address_and_never_contradicts_it() -> None:
    short = with_account(parse_object_address("az://box/t"), "acct")
    assert short.base_uri == "abfss://box@acct.dfs.core.windows.net/t"
    with pytest.raises(InvalidInputError, match="another storage account"):
        with_account(short, "other")


# ---------------------------------------------------------------- options


def test_keys_of_hadoop_and_hudi_are_other_spellings() -> None:
    settings = ObjectSettings.from_properties(
        {
            "hoodie.aws.access.key": "a",
            "fs.s3a.secret.key": "s",
            "fs.s3a.endpoint": "s3.eu-west-1.amazonaws.com",
            "fs.s3a.path.style.access": "false",
        },
        PLACE,
    )
    assert (settings.s3_access_key, settings.s3_secret_key) == ("a", "s")
    assert settings.region() == "eu-west-1"
    assert settings.s3_path_style is False
    assert repr(settings) == (
        "ObjectSettings(s3_endpoint='s3.eu-west-1.amazonaws.com', s3_region=None)"
    )


def test_hadoops_azure_key_is_found_by_the_account_of_the_address() -> None:
    location = parse_object_address("abfss://box@acct.dfs.core.windows.net/t")
    options = {"fs.azure.account.key.acct.dfs.core.windows.net": "a2V5"}
    assert ObjectSettings.from_properties(options, location).azure_account_key == "a2V5"


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"fs.s3a.access.key": "only"}, "hoodoo.storage.s3.secret.key"),
        ({"fs.s3a.endpoint": "http://minio.example:9000"}, "hoodoo.storage.s3.endpoint"),
        ({"fs.s3a.endpoint": "http://169.254.169.254"}, "hoodoo.storage.s3.endpoint"),
        ({"fs.s3a.endpoint": "ftp://h"}, "hoodoo.storage.s3.endpoint"),
        ({"hoodoo.storage.request.timeout.ms": "0"}, "hoodoo.storage.request.timeout.ms"),
        ({"fs.s3a.path.style.access": "maybe"}, "fs.s3a.path.style.access"),
    ],
)
def test_bad_options_are_refused_by_their_key(properties: dict[str, str], key: str) -> None:
    with pytest.raises(SettingError) as refused:
        ObjectSettings.from_properties(properties, PLACE)
    assert refused.value.fields["key"] == key
    assert "only" not in refused.value.message


@pytest.mark.parametrize(
    "leave", [{"hoodoo.storage.allow.http": "true"}, {"fs.s3a.connection.ssl.enabled": "false"}]
)
def test_plain_http_needs_permission_except_on_this_machine(leave: dict[str, str]) -> None:
    options = {"fs.s3a.endpoint": "http://minio.example:9000"}
    settings = ObjectSettings.from_properties({**options, **leave}, PLACE)
    assert settings.endpoint_url() == "http://minio.example:9000"
    local = ObjectSettings.from_properties({"fs.s3a.endpoint": "http://127.0.0.1:9"}, PLACE)
    assert local.endpoint_url() == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "address", ["gs://lake/t", "abfss://box@acct.dfs.core.windows.net/t", "s3://lake/t"]
)
def test_a_client_is_created_for_each_store_without_a_request(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = parse_object_address(address)
    options = {"hoodoo.storage.azure.account.key": "a2V5"} if location.kind == "az" else {}
    client = open_client(location, ObjectSettings.from_properties(options, location), retries=False)
    assert (
        type(client).__name__
        == {"gs": "GCSStore", "az": "AzureStore", "s3": "S3Store"}[location.kind]
    )


def test_a_missing_client_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtraError, match=r"hoodoo\[objectstore\]"):
        ObjectStorage(PLACE)


def test_a_connection_that_is_not_used_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_client, "_IDLE_SECONDS", 1)
    given_up = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            whole_request(connection)
            connection.sendall(ranged(b"1", 1).replace(b"Connection: close\r\n", b""))
            connection.settimeout(PATIENCE_S)
            if connection.recv(1) == b"":
                given_up.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        options = {
            "hoodoo.storage.s3.endpoint": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "hoodoo.storage.s3.access.key": "x",
            "hoodoo.storage.s3.secret.key": "x",
        }
        location = parse_object_address("s3://lake/t")
        client = open_client(
            location, ObjectSettings.from_properties(options, location), retries=False
        )
        assert bytes(get(client, "x").bytes()) == b"1"
        assert given_up.wait(PATIENCE_S)


def test_every_option_has_a_description() -> None:
    assert all(option.doc for option in ObjectSettings.options.values())


# ---------------------------------------------------------------- answers


@contextmanager
def answering(
    *replies: bytes | None, swallow_s: float = PATIENCE_S
) -> Iterator[tuple[int, list[bytes]]]:
    """Serve one given answer to each request; None sends no answer."""
    got: list[bytes] = []
    stopped = threading.Event()

    def answer(connection: socket.socket, reply: bytes | None) -> None:
        got.append(whole_request(connection))
        if reply is None:
            stopped.wait(swallow_s)
        elif reply == RESET:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        else:
            connection.sendall(reply)

    def serve() -> None:
        with suppress(OSError):  # the client has closed, or the test has failed
            for reply in replies:
                connection, _ = listener.accept()
                with connection:
                    answer(connection, reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], got
        finally:
            stopped.set()


def whole_request(connection: socket.socket) -> bytes:
    """Read head and body: a close with unread bytes would reset the answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65_536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head.lower())
    while length and len(body) < int(length[1]):
        piece = connection.recv(65_536)
        if not piece:
            break
        body += piece
    return head + b"\r\n\r\n" + body


def reply(status: int, code: str = "") -> bytes:
    body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
    return b'HTTP/1.1 %d X\r\nConnection: close\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n%s' % (
        status,
        len(body),
        body,
    )


def storage_on(
    port: int, clock: PlainClock | None = None, *, timeout_s: int = PATIENCE_S
) -> ObjectStorage:
    client = S3Store(
        "lake",
        config={
            "endpoint": f"http://127.0.0.1:{port}",
            "access_key_id": "x",
            "secret_access_key": "x",
            "region": "us-east-1",
        },
        client_options={"allow_http": True, "timeout": f"{timeout_s}s"},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=2 * timeout_s)},
    )
    return ObjectStorage(PLACE, clock=clock or PlainClock(), clients=(client, client, client))


@pytest.mark.parametrize("answer", [None, b"", RESET, reply(500), reply(502), reply(503)])
def test_a_create_without_a_clear_answer_is_ambiguous_and_sent_once(answer: bytes | None) -> None:
    with answering(answer) as (port, got):
        with pytest.raises(AmbiguousWriteError):
            storage_on(port, timeout_s=PATIENCE_S if answer is not None else 2).create("x", b"1")
        wait_for(lambda: bool(got))  # its sender gave up, so it may be unread
        assert len(got) == 1
        assert b"if-none-match: *" in got[0].lower()


def test_a_conflict_of_two_requests_is_repeated_and_is_not_existence() -> None:
    clock = PlainClock()
    busy = reply(409, "ConditionalRequestConflict")
    with answering(busy, busy, reply(200)) as (port, got):
        storage_on(port, clock).create("x", b"1")
        assert len(got) == 3
    assert len(clock.sleeps) == 2


@pytest.mark.parametrize("busy", [reply(409, "ConditionalRequestConflict"), reply(429)])
def test_a_store_that_stays_busy_ends_in_a_typed_failure(busy: bytes) -> None:
    with (
        answering(busy, busy, busy, busy) as (port, got),
        pytest.raises(StorageUnavailableError),
    ):
        storage_on(port).create("x", b"1")
    assert len(got) == 4


def test_a_precondition_that_failed_means_that_the_name_is_taken() -> None:
    with answering(reply(412)) as (port, _), pytest.raises(ObjectExistsError):
        storage_on(port).create("x", b"1")


@pytest.mark.parametrize(
    ("answer", "fate", "advice"),
    [
        (reply(403, "AccessDenied"), "denied", "give these credentials the rights of"),
        (reply(404, "NoSuchBucket"), "no_bucket", "create the bucket"),
        (reply(301, "PermanentRedirect"), "wrong", "region"),
    ],
)
def test_a_denied_create_names_the_change_that_helps(answer: bytes, fate: str, advice: str) -> None:
    with (
        answering(answer) as (port, _),
        pytest.raises(StorageUnavailableError, match=advice) as refused,
    ):
        storage_on(port).create("x", b"1")
    assert refused.value.fields["fate"] == fate
    assert "Debug" not in refused.value.message


def test_an_unreachable_server_is_no_ambiguity() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no other process gets this port, and none listens on it
        with pytest.raises(StorageUnavailableError) as refused:
            storage_on(taken.getsockname()[1]).create("x", b"1")
    assert refused.value.fields["fate"] == "not_sent"


# ---------------------------------------------------------------- data files


def memory_storage() -> tuple[ObjectStorage, MemoryStore]:
    store = MemoryStore()
    return ObjectStorage(PLACE, ids=SystemIds(), clients=(store, store, store)), store


def test_a_forgotten_data_file_is_given_up() -> None:
    storage, _ = memory_storage()
    file = storage.open_output("p/x")
    file.write(b"half")
    del file
    assert storage.stat("p/x") is None
    storage.open_output("p/x").close()  # the name is free again
    assert storage.read("p/x") == b""


def test_a_data_file_whose_own_first_request_succeeded_is_kept() -> None:
    storage, _ = memory_storage()
    file = storage.open_output("p/x")
    file.write(b"mine")
    storage.create("p/x", b"mine")  # written by the client's lost first request
    file.close()
    assert storage.read("p/x") == b"mine"


def keep(storage: ObjectStorage, data: bytes) -> None:
    with storage.open_output("p/x") as file:
        file.write(data)


@pytest.mark.parametrize("lost", [RESET, b"", reply(500)])
def test_a_data_file_is_sent_again_when_its_answer_is_lost(lost: bytes) -> None:
    with answering(lost, lost, reply(200)) as (port, got):
        keep(storage_on(port), b"mine")
        assert [request.rpartition(b"\r\n\r\n")[2] for request in got] == [b"mine"] * 3


@pytest.mark.parametrize(("there", "is_kept"), [(b"mine", True), (b"another's", False)])
def test_a_data_file_that_is_there_after_a_lost_answer_is_the_own_one_if_it_is_equal(
    there: bytes, is_kept: bool
) -> None:
    with answering(RESET, reply(412), ranged(there, len(there))) as (port, got):
        if is_kept:
            keep(storage_on(port), b"mine")
        else:
            with pytest.raises(ObjectExistsError):
                keep(storage_on(port), b"mine")
        assert [request.split(b" ")[0] for request in got] == [b"PUT", b"PUT", b"GET"]


def test_a_data_file_that_never_gets_an_answer_ends_in_a_typed_failure() -> None:
    with answering(RESET, RESET, RESET, RESET) as (port, got):
        with pytest.raises(StorageUnavailableError, match="writing a data file") as options:
            keep(storage_on(port), b"mine")
        assert options.value.fields["fate"] == "unknown"
        assert len(got) == 4


SOON = 4 << 20


@pytest.mark.parametrize(
    ("size", "took_ms", "sent"), [(4, 30_001, 2), (SOON + 1, 30_001, 3), (SOON + 1, 300_001, 2)]
)
def test_a_data_file_is_not_sent_again_when_the_time_of_a_request_is_over(
    size: int, took_ms: int, sent: int
) -> None:
    clock = PlainClock()
    clock.sleep_ms = lambda _: setattr(clock, "time_ms", clock.time_ms + took_ms)  # type: ignore[method-assign]
    with answering(RESET, RESET, reply(200)) as (port, got):
        if sent == 3:
            keep(storage_on(port, clock), bytes(size))
        else:
            with pytest.raises(StorageUnavailableError):
                keep(storage_on(port, clock), bytes(size))
        assert len(got) == sent


@pytest.mark.parametrize(("size", "is_much"), [(SOON, False), (SOON + 1, True)])
def test_only_a_large_upload_has_a_long_timeout(size: int, is_much: bool) -> None:
    clients = MemoryStore(), MemoryStore(), MemoryStore()
    keep(ObjectStorage(PLACE, clock=PlainClock(), clients=clients), bytes(size))
    there = [[one["path"] for page in client.list() for one in page] for client in clients]
    assert there == ([[], [], ["t/p/x"]] if is_much else [["t/p/x"], [], []])


@pytest.mark.parametrize("of", ["a file", "the content before its end"])
def test_a_dead_connection_is_given_up_after_the_time_of_one_request(of: str) -> None:
    size = 5 if of == "a file" else (256 << 10) + 5
    end = bytes(min(size, 256 << 10))
    before = [] if of == "a file" else [ranged(end, size)]
    rest = ranged(end, size) if of == "a file" else ranged(bytes(5), size, start=0)
    with answering(*before, None, rest, swallow_s=2) as (port, got):
        options = {
            "hoodoo.storage.s3.endpoint": f"http://127.0.0.1:{port}",
            "hoodoo.storage.s3.access.key": "x",
            "hoodoo.storage.s3.secret.key": "x",
            "hoodoo.storage.request.timeout.ms": "1000",
        }
        storage = ObjectStorage(PLACE, ObjectSettings.from_properties(options, PLACE))
        started = time.monotonic()
        with storage.open_input("x") as file:
            assert len(file.read()) == size
        assert time.monotonic() - started < 9  # ten seconds are enough for much data
        assert len(got) == len(before) + 2


def test_failing_to_keep_frees_the_name_and_closes() -> None:
    ended: list[str] = []

    def refuse(_: bytes) -> None:
        raise StorageUnavailableError("no")

    file = ObjectOutput(keep=refuse, done=lambda: ended.append("done"))
    with pytest.raises(StorageUnavailableError):
        file.close()
    assert file.closed
    assert ended == ["done"]


def test_a_read_fetches_only_the_requested_range() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> bytes:
        asked.append((start, end))
        return bytes(end - start)

    file = ObjectInput(fetch, 10_000_000)
    file.seek(-8, 2)
    assert len(file.read(100)) == 8
    file.seek(1_000_000)
    assert len(file.read(10)) == 10
    assert len(file.read(10)) == 10
    assert asked == [(9_999_992, 10_000_000), (1_000_000, 1_131_072)]
    assert file.read(0) == b""
    file.seek(0, 2)
    assert file.read() == b""


def test_the_known_end_of_a_file_is_not_requested() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> bytes:
        asked.append((start, end))
        return b"a" * (end - start)

    file = ObjectInput(fetch, 1_000_000, tail=b"b" * 100)
    file.seek(-100, 2)
    assert file.read(50) + file.read() == b"b" * 100
    assert asked == []
    file.seek(999_899)
    assert file.read(2) == b"aa"  # overlapping ranges are fetched in one request
    assert asked == [(999_899, 1_000_000)]


def ranged(data: bytes, size: int, *, start: int | None = None) -> bytes:
    """Return the last bytes of an object, or those from ``start``."""
    start = size - len(data) if start is None else start
    head = reply(206).replace(b"Content-Length: 0\r\n\r\n", b"")
    content_range = b"Content-Range: bytes %d-%d/%d\r\n" % (start, start + len(data) - 1, size)
    stamp = b"Last-Modified: Sat, 01 Nov 2025 00:00:00 GMT\r\n"
    return head + content_range + stamp + b"Content-Length: %d\r\n\r\n%s" % (len(data), data)


def test_a_small_file_is_one_request() -> None:
    with answering(ranged(b"12345", 5)) as (port, got):
        with storage_on(port).open_input("x") as file:
            assert file.read() == b"12345"
        assert len(got) == 1
        assert b"range: bytes=-262144\r\n" in got[0].lower()


_EMPTY = reply(200).replace(b"ETag", b"Last-Modified: Sat, 01 Nov 2025 00:00:00 GMT\r\nETag")


@pytest.mark.parametrize("answer", [reply(416, "InvalidRange"), _EMPTY])
def test_a_file_that_has_no_end_to_get_is_empty(answer: bytes) -> None:
    with answering(answer, _EMPTY) as (port, got):
        with storage_on(port).open_input("x") as file:
            assert file.read() == b""
        assert [request.split(b" ")[0] for request in got] == [b"GET", b"HEAD"]


def test_azure_has_no_range_from_the_end_and_gets_a_request_for_the_size() -> None:
    location = parse_object_address("abfss://box@acct.dfs.core.windows.net/t")
    with answering(_EMPTY) as (port, got):
        client = AzureStore(
            "box",
            config={
                "account_name": "acct",
                "account_key": "eA==",
                "endpoint": f"http://127.0.0.1:{port}",
            },
            client_options={"allow_http": True, "timeout": f"{PATIENCE_S}s"},
        )
        storage = ObjectStorage(location, clock=PlainClock(), clients=(client, client, client))
        with storage.open_input("x") as file:
            assert file.read() == b""
        assert [request.split(b" ")[0] for request in got] == [b"HEAD"]


@pytest.mark.parametrize(
    ("answer", "raised"), [(reply(404), ObjectMissingError), (reply(500), StorageUnavailableError)]
)
def test_a_missing_or_forbidden_file_costs_one_request(
    answer: bytes, raised: type[Exception]
) -> None:
    with answering(answer) as (port, got):
        with pytest.raises(raised):
            storage_on(port).open_input("x")
        assert len(got) == 1


def test_a_checksum_sibling_costs_requests_only_when_one_was_listed() -> None:
    storage, store = memory_storage()
    store.put("t/f/.x.crc", b"old")  # copied by another program
    storage.write("f/x", b"1")
    assert storage.stat("f/.x.crc") is not None
    storage.names("f")
    storage.write("f/x", b"2")
    assert storage.stat("f/.x.crc") is None


# ---------------------------------------------------------------- the store's clock


def test_the_own_clock_is_used_where_the_stamp_agrees_with_it() -> None:
    clock = PlainClock(wall_ms=1_700_000_000_250)
    store = StoreClock(clock, lambda _: 1_700_000_000_000)
    assert store.now_ms() == 1_700_000_000_000
    clock.time_ms += 800
    assert store.now_ms() == 1_700_000_001_000


def test_a_clock_that_is_off_is_corrected_by_the_stamp() -> None:
    clock = PlainClock(wall_ms=1_700_000_600_000)  # ten minutes ahead
    store = StoreClock(clock, lambda _: 1_700_000_000_000)
    assert store.now_ms() == 1_700_000_000_000


def test_the_clock_of_the_store_is_read_once_in_ten_minutes() -> None:
    clock = PlainClock()
    asked: list[str] = []

    def stamp(path: str) -> int:
        asked.append(path)
        return 1_700_000_000_000

    store = StoreClock(clock, stamp)
    store.now_ms()
    clock.time_ms += 600_000
    store.now_ms()
    assert len(asked) == 1
    clock.time_ms += 1
    store.now_ms()
    assert len(asked) == 2


def test_without_an_answer_the_own_clock_has_to_do() -> None:
    def refuse(_: str) -> int:
        raise UnavailableError("read only")

    clock = PlainClock(wall_ms=1_700_000_000_250)
    assert StoreClock(clock, refuse).now_ms() == 1_700_000_000_000


def test_a_table_cannot_choose_where_credentials_are_sent() -> None:
    options = (
        PropertySet()
        .with_layer(TABLE_LAYER, {"fs.s3a.endpoint": "https://thief.example"})
        .with_layer("code", {"fs.s3a.access.key": "a", "fs.s3a.secret.key": "s"})
    )
    assert ObjectSettings.from_properties(options, PLACE).endpoint_url() is None


def test_a_displayed_error_contains_no_signature_and_no_dump() -> None:
    error = RuntimeError(
        "Error performing PUT https://acct.blob.example/box/t?sig=canary&se=1 in 3ms - Server "
        'returned non-2xx status code: 403 Forbidden: <?xml version="1.0"?>\n\nDebug source: {}'
    )
    assert first_line(error) == (
        "Error performing PUT https://acct.blob.example/box/t?*** in 3ms - Server returned "
        "non-2xx status code: 403 Forbidden"
    )


# ---------------------------------------------------------------- forked processes


class Forked(SystemIds):
    """Return the same object as in a child process, with another process id."""

    pid = 7

    def identity(self) -> ProcessIdentity:
        return replace(super().identity(), pid=self.pid)


def test_a_forked_child_is_refused_instead_of_waiting_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_client, "_ANSWERED_IN", [])
    store, ids = MemoryStore(), Forked()
    parent = ObjectStorage(PLACE, clients=(store, store, store), ids=ids)
    parent.write("a", b"x")
    ids.pid = 8
    opened_there = ObjectStorage(PLACE, clients=(store, store, store), ids=ids)
    calls: tuple[Callable[[ObjectStorage], object], ...] = (
        lambda one: one.read("a"),
        lambda one: one.names("b"),
        lambda one: one.stat(""),
        lambda one: one.create("c", b""),
        lambda one: one.open_input("a"),
    )
    for one in (parent, opened_there):
        for call in calls:
            with pytest.raises(UnsafeSetupError, match="Start it with") as refused:
                call(one)
            assert refused.value.kind == "forked"


def test_a_child_that_was_forked_before_the_first_request_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_client, "_ANSWERED_IN", [])
    store, ids = MemoryStore(), Forked()
    storage = ObjectStorage(PLACE, clients=(store, store, store), ids=ids)
    ids.pid = 8
    storage.write("a", b"x")
    assert storage.read("a") == b"x"

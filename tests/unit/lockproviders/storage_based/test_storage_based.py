"""The storage-based lock in doubt: lost answers, late requests, foreign and damaged files."""

from __future__ import annotations

import json
from collections.abc import Callable

import obstore
import pytest
from obstore.store import MemoryStore

from lockproviders.hookspecs import LockContext
from lockproviders.storage_based.client import ENTRY, StorageClient
from lockproviders.storage_based.lock_file import (
    LOCK_PATH,
    ChangedError,
    ConditionalObject,
    LockRecord,
    ObjectVersion,
    Tag,
    next_token,
)
from lockproviders.storage_based.settings import StorageLockSettings
from tests.unit.lockproviders.plain_machine import ManualClock, PlainIds
from timeline.errors import (
    LeaseLostError,
    MissingExtraError,
    SettingError,
    UnavailableError,
    UnsafeSetupError,
)
from timeline.ports.ports import AmbiguousWriteError
from timeline.storage.object_address import parse_object_address

VALIDITY_MS = 300_000
WALL_0 = 1_700_000_000_000
JAVA = "6a7b7c1e-1111-4000-8000-000000000001"


class Ids(PlainIds):
    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner

    def uuid(self) -> str:
        return self.owner

    def nonce(self) -> str:
        return f"{self.owner}-{super().nonce()}"


class FakeStore:
    """A store with one object; requests may be done without an answer, or not be done."""

    address = "s3://lake/t/.hoodie/.locks/table_lock.json"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.data: bytes | None = None
        self.version = 0
        self.modified_ms = 0
        self.ahead_ms = 0  # store's clock minus ours
        self.asked: list[str] = []
        self.faults: list[str] = []  # of the next puts: lost, late, twice, refused, or ok
        self.late: list[Callable[[], None]] = []
        self.unreadable = 0
        self.proofs: list[str] = []

    def read(self) -> ObjectVersion | None:
        self.asked.append("read")
        if self.unreadable:
            self.unreadable -= 1
            raise UnavailableError("no answer")
        if self.data is None:
            return None
        return ObjectVersion(
            data=self.data, tag=(str(self.version), None), modified_ms=self.modified_ms
        )

    def put(self, data: bytes, over: Tag | None) -> Tag:
        self.asked.append("put")
        fault = self.faults.pop(0) if self.faults else "ok"
        if fault == "refused":
            raise UnavailableError("slow down")
        if fault == "late":
            self.late.append(lambda: self._try(data, over))
            raise AmbiguousWriteError(self.address)
        tag = self._set(data, over)
        if fault == "lost":
            raise AmbiguousWriteError(self.address)
        if fault == "twice":
            self._set(data, over)
        return tag

    def prove(self, nonce: str) -> None:
        self.proofs.append(nonce)

    def store_now_ms(self) -> int:
        self.asked.append("clock")
        return self.clock.now_ms() + self.ahead_ms

    def let_late_ones_in(self) -> None:
        while self.late:
            self.late.pop(0)()

    def _try(self, data: bytes, over: Tag | None) -> None:
        if over == self._tag():
            self._set(data, over)

    def _set(self, data: bytes, over: Tag | None) -> Tag:
        if over != self._tag():
            raise ChangedError(self.address)
        self.data = data
        self.version += 1
        self.modified_ms = self.clock.now_ms() + self.ahead_ms
        return str(self.version), None

    def _tag(self) -> Tag | None:
        return None if self.data is None else (str(self.version), None)

    @property
    def content(self) -> dict[str, object]:
        found = json.loads(self.data or b"null")
        assert isinstance(found, dict)
        return found


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FakeStore(self.clock)

    def client(self, owner: str = "a") -> StorageClient:
        settings = StorageLockSettings.of(VALIDITY_MS)
        return StorageClient(self.store, settings, clock=self.clock, ids=Ids(owner))  # type: ignore[arg-type]

    def java_holds(self, *, for_ms: int = VALIDITY_MS, expired: bool = False) -> None:
        until = self.clock.now_ms() + for_ms
        content = {"expired": expired, "validUntil": until, "owner": JAVA}
        self.store.data = json.dumps(content, separators=(",", ":")).encode()
        self.store.version += 1
        self.store.modified_ms = self.clock.now_ms()


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---------------------------------------------------------------- the file


def test_the_first_three_fields_are_java_s_bytes() -> None:
    record = LockRecord(expired=False, valid_until_ms=1_700_000_300_000, owner=JAVA)
    assert record.encode() == (
        b'{"expired":false,"validUntil":1700000300000,"owner":"' + JAVA.encode() + b'"}'
    )


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[]",
        b'{"expired":false,"validUntil":1}',
        b'{"expired":"no","validUntil":1,"owner":"o"}',
        b'{"expired":false,"validUntil":true,"owner":"o"}',
        b'{"expired":false,"validUntil":1,"owner":null}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_blocks_with_advice_as_it_blocks_java(damaged: bytes, bench: Bench) -> None:
    bench.store.data = damaged
    with pytest.raises(UnsafeSetupError, match="delete it"):
        bench.client().try_acquire("me")
    assert bench.store.asked == ["read"]


def test_a_file_of_java_is_read_without_our_fields() -> None:
    record = LockRecord.decode(b'{"expired":true,"validUntil":5,"owner":"o","more":[1]}', "x")
    assert record == LockRecord(expired=True, valid_until_ms=5, owner="o")
    assert not record.is_holding("o", "")


def test_expired_wins_over_any_end_and_the_end_has_java_s_tolerance() -> None:
    record = LockRecord(expired=False, valid_until_ms=1_000, owner="o")
    assert record.is_valid_at(1_500)
    assert not record.is_valid_at(1_501)
    assert not record.released().is_valid_at(0)
    assert record.released().valid_until_ms == 1_000


def test_tokens_grow_over_java_s_holdings_and_a_deleted_file() -> None:
    java = LockRecord(expired=True, valid_until_ms=9_000, owner="j")
    ours = LockRecord(expired=True, valid_until_ms=4_000, owner="o", nonce="n", token=12_000)
    arguments = {"now_ms": 5_000, "validity_ms": 300, "at_least": 0}
    assert next_token(java, **arguments) == 9_001
    assert next_token(ours, **arguments) == 12_001
    assert next_token(None, **arguments) == 5_300
    assert next_token(java, **{**arguments, "at_least": 20_000}) == 20_001


def test_tokens_grow_over_a_holding_of_java_with_a_shorter_lease(bench: Bench) -> None:
    first = bench.client("a").try_acquire("me")
    assert first is not None
    first.release()
    bench.java_holds(for_ms=60_000, expired=True)
    bench.clock.time_ms += 1_000
    second = bench.client("b").try_acquire("other")
    assert second is not None
    assert (second.fencing_token or 0) > (first.fencing_token or 0)


# ---------------------------------------------------------------- acquiring


def test_a_free_lock_costs_one_read_and_one_write(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    assert bench.store.asked == ["read", "put"]
    assert holding.expires_in_ms() == VALIDITY_MS
    assert bench.store.content["validUntil"] == WALL_0 + 1_000 + VALIDITY_MS


def test_a_lock_that_no_other_client_took_costs_two_writes_and_no_read(bench: Bench) -> None:
    client = bench.client("a")
    first = client.try_acquire("a")
    first.release()
    bench.store.asked.clear()
    second = client.try_acquire("a")
    second.release()
    assert bench.store.asked == ["put", "put"]
    assert second.fencing_token > first.fencing_token


def test_a_lock_that_other_clients_took_meanwhile_is_read_again(bench: Bench) -> None:
    mine, other = bench.client("a"), bench.client("b")
    first = mine.try_acquire("a")
    first.release()
    theirs = other.try_acquire("b")
    assert mine.try_acquire("a") is None
    theirs.release()
    again = mine.try_acquire("a")
    assert again.fencing_token > theirs.fencing_token > first.fencing_token


def test_a_repeated_acquire_with_a_lost_answer_is_recognised(bench: Bench) -> None:
    client = bench.client("a")
    client.try_acquire("a").release()
    bench.store.faults = ["lost"]
    assert client.try_acquire("a").is_held()


def test_a_held_lock_costs_one_read(bench: Bench) -> None:
    bench.java_holds()
    assert bench.client().try_acquire("me") is None
    assert bench.store.asked == ["read"]


def test_an_acquire_with_a_lost_answer_is_recognised(bench: Bench) -> None:
    bench.store.faults = ["lost"]
    holding = bench.client().try_acquire("me")
    assert holding is not None
    holding.renew()
    holding.release()
    assert bench.store.content["expired"] is True


def test_an_own_write_delivered_twice_is_recognised_as_its_own(bench: Bench) -> None:
    bench.store.faults = ["twice"]
    assert bench.client().try_acquire("me") is not None


def test_the_lease_counts_from_before_the_request(bench: Bench) -> None:
    real_put = bench.store.put

    def slow(data: bytes, over: Tag | None) -> Tag:
        bench.clock.time_ms += 7_000
        return real_put(data, over)

    bench.store.put = slow  # type: ignore[method-assign]
    holding = bench.client().try_acquire("me")
    assert holding is not None
    assert holding.expires_in_ms() == VALIDITY_MS - 7_000


def test_an_acquire_that_arrives_late_is_taken_over_by_its_own_client_only(bench: Bench) -> None:
    mine, other = bench.client("a"), bench.client("b")
    bench.store.faults = ["late"]
    with pytest.raises(UnavailableError, match="did not answer"):
        mine.try_acquire("me")
    bench.store.let_late_ones_in()
    assert other.try_acquire("other") is None
    holding = mine.try_acquire("me again")
    assert holding is not None
    assert mine.try_acquire("and again") is None, "a held lock is not free"


def test_close_releases_an_acquire_that_arrived_late(bench: Bench) -> None:
    mine = bench.client("a")
    bench.store.faults = ["late"]
    with pytest.raises(UnavailableError):
        mine.try_acquire("me")
    bench.store.let_late_ones_in()
    mine.close()
    assert bench.client("b").try_acquire("other") is not None


def test_close_leaves_the_lock_of_another_client(bench: Bench) -> None:
    mine = bench.client("a")
    bench.store.faults = ["late"]
    with pytest.raises(UnavailableError):
        mine.try_acquire("me")
    bench.java_holds()
    mine.close()
    assert bench.store.content["expired"] is False


def test_another_thread_does_not_take_over_an_acquire_under_resolution(
    bench: Bench,
) -> None:
    client, of_other_thread = bench.client(), []
    real, reads = bench.store.read, []

    def asked_meanwhile() -> ObjectVersion | None:
        found = real()
        reads.append(found)
        if len(reads) == 2:  # the holder reads its own record before its acquire returns
            of_other_thread.append(client.try_acquire("another thread"))
        return found

    bench.store.faults = ["lost"]
    bench.store.read = asked_meanwhile  # type: ignore[method-assign]
    assert client.try_acquire("me") is not None
    assert of_other_thread == [None], "the lock has two holders at once"


def test_close_releases_an_acquire_that_was_interrupted(bench: Bench) -> None:
    mine, real = bench.client("a"), bench.store.put

    def interrupted(data: bytes, over: Tag | None) -> Tag:
        real(data, over)
        bench.store.put = real  # type: ignore[method-assign]
        raise KeyboardInterrupt

    bench.store.put = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        mine.try_acquire("me")
    mine.close()
    assert bench.client("b").try_acquire("other") is not None


def test_an_own_write_delivered_twice_and_not_found_at_once_does_not_block(bench: Bench) -> None:
    mine, real = bench.client("a"), bench.store.put

    def twice_and_then_silent(data: bytes, over: Tag | None) -> Tag:
        bench.store.unreadable = 1
        return real(data, over)

    bench.store.faults = ["twice"]
    bench.store.put = twice_and_then_silent  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        mine.try_acquire("me")
    bench.store.put = real  # type: ignore[method-assign]
    assert mine.try_acquire("me again") is not None


def test_a_lost_race_is_a_refusal(bench: Bench) -> None:
    real_read = bench.store.read

    def after_first_request() -> ObjectVersion | None:
        found = real_read()
        bench.java_holds()
        bench.store.read = real_read  # type: ignore[method-assign]
        return found

    bench.store.read = after_first_request  # type: ignore[method-assign]
    assert bench.client().try_acquire("me") is None
    assert bench.store.content["owner"] == JAVA


def test_a_silent_holder_is_followed_after_its_end_and_the_tolerance(bench: Bench) -> None:
    bench.java_holds()
    bench.clock.time_ms += VALIDITY_MS + 500
    assert bench.client().try_acquire("early") is None
    bench.clock.time_ms += 1
    assert bench.client().try_acquire("heir") is not None


def test_a_clock_that_runs_ahead_steals_nothing(bench: Bench) -> None:
    bench.java_holds()
    bench.clock.time_ms += VALIDITY_MS + 60_000  # our wall clock, not the time
    bench.store.ahead_ms = -(VALIDITY_MS + 59_000)
    assert bench.client().try_acquire("too early") is None
    assert bench.store.asked == ["read", "clock"]


def test_a_released_lock_is_taken_without_asking_for_the_time(bench: Bench) -> None:
    bench.java_holds(expired=True)
    assert bench.client().try_acquire("me") is not None
    assert bench.store.asked == ["read", "put"]


# ---------------------------------------------------------------- renewing and releasing


def test_a_renewal_with_a_lost_answer_is_recognised(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    bench.clock.time_ms += 100_000
    bench.store.faults = ["lost"]
    holding.renew()
    assert holding.expires_in_ms() == VALIDITY_MS
    assert bench.store.content["validUntil"] == WALL_0 + 101_000 + VALIDITY_MS


def test_a_renewal_that_arrives_late_is_recognised_as_its_own(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    bench.store.faults = ["late"]
    bench.store.unreadable = 0
    bench.clock.time_ms += 100_000
    holding.renew()  # the second request succeeds; the late one fails by its condition
    late_end = bench.store.content["validUntil"]
    bench.store.let_late_ones_in()
    assert bench.store.content["validUntil"] == late_end
    bench.clock.time_ms += 100_000
    holding.renew()
    assert holding.is_held()


def test_a_renewal_without_any_answer_is_tried_again_at_the_next_beat(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    bench.store.faults = ["late"]
    bench.store.unreadable = 1
    with pytest.raises(UnavailableError):
        holding.renew()
    assert holding.is_held()
    bench.store.let_late_ones_in()
    holding.renew()
    assert holding.expires_in_ms() == VALIDITY_MS


def test_another_holder_in_the_file_ends_the_lease_for_good(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    bench.java_holds()
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            holding.renew()
    holding.release()
    assert bench.store.content == {
        "expired": False,
        "validUntil": WALL_0 + 1_000 + VALIDITY_MS,
        "owner": JAVA,
    }


def test_another_lease_of_the_same_client_ends_the_first_one_too(bench: Bench) -> None:
    client = bench.client()
    first = client.try_acquire("first")
    assert first is not None
    bench.clock.time_ms += VALIDITY_MS + 501
    second = client.try_acquire("second")
    assert second is not None
    first.release()
    assert bench.store.content["expired"] is False
    with pytest.raises(LeaseLostError):
        first.renew()


def test_a_lock_that_was_broken_is_lost(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    bench.store.data = json.dumps({**bench.store.content, "expired": True}).encode()
    bench.store.version += 1
    with pytest.raises(LeaseLostError):
        holding.renew()


def test_a_holder_without_access_gets_a_temporary_failure(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None

    def denied(data: bytes, over: Tag | None) -> Tag:
        raise UnsafeSetupError("access was denied")

    bench.store.put = denied  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="access was denied"):
        holding.renew()
    with pytest.raises(UnavailableError):
        holding.release()


def test_a_file_that_was_damaged_or_deleted_is_not_ours(bench: Bench) -> None:
    for data in (b"{", None):
        holding = bench.client().try_acquire("me")
        assert holding is not None
        bench.store.data = data
        bench.store.version += 1
        with pytest.raises(LeaseLostError):
            holding.renew()
        bench.store.data = None


def test_only_the_named_holder_is_broken_and_learns_it(bench: Bench) -> None:
    client = bench.client("b")
    holding = bench.client("a").try_acquire("stuck")
    assert holding is not None
    assert not client.break_lock("somebody else")
    assert client.break_lock("stuck")
    assert not client.break_lock("stuck"), "the lock is free already"
    heir = client.try_acquire("heir")
    assert heir is not None
    with pytest.raises(LeaseLostError):
        holding.renew()
    holding.release()
    heir.renew()


def test_a_java_holder_is_broken_by_its_description(bench: Bench) -> None:
    bench.java_holds()
    client = bench.client()
    holder = client.holder()
    assert holder == f"a Java writer, owner {JAVA}"
    assert client.break_lock(holder)
    assert bench.store.content["expired"] is True


def test_a_release_that_is_throttled_is_repeated_with_pauses(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    bench.store.faults = ["refused", "refused", "ok"]
    holding.release()
    assert bench.store.content["expired"] is True
    assert bench.clock.sleeps == [200, 400]


def test_a_release_that_never_succeeds_raises_an_error_and_may_be_repeated(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    bench.store.faults = ["refused"] * 4
    with pytest.raises(UnavailableError):
        holding.release()
    holding.release()
    assert bench.store.content["expired"] is True


def test_an_own_lease_that_could_not_be_released_does_not_block(bench: Bench) -> None:
    client, other = bench.client(), bench.client()
    holding = client.try_acquire("me")
    assert holding is not None
    bench.store.faults = ["refused"] * 4
    with pytest.raises(UnavailableError):
        holding.release()
    assert other.try_acquire("other") is None
    heir = client.try_acquire("me again")
    assert heir is not None
    holding.release()  # repeated too late
    heir.renew()


def test_close_repeats_a_failed_release(bench: Bench) -> None:
    client = bench.client()
    holding = client.try_acquire("me")
    assert holding is not None
    bench.store.faults = ["refused"] * 4
    with pytest.raises(UnavailableError):
        holding.release()
    client.close()
    assert bench.store.content["expired"] is True


def test_a_release_keeps_the_file_and_its_end(bench: Bench) -> None:
    holding = bench.client().try_acquire("me")
    assert holding is not None
    before = bench.store.content
    bench.store.faults = ["lost"]
    holding.release()
    assert bench.store.content == {**before, "expired": True}


# ---------------------------------------------------------------- transport and settings


def test_the_transport_replaces_only_the_version_it_read() -> None:
    store = ConditionalObject(MemoryStore(), parse_object_address("s3://lake/t"), LOCK_PATH)
    assert store.read() is None
    first = store.put(b"1", None)
    with pytest.raises(ChangedError):
        store.put(b"2", None)
    store.put(b"2", first)
    with pytest.raises(ChangedError):
        store.put(b"3", first)
    seen = store.read()
    assert seen is not None
    assert seen.data == b"2"
    assert store.store_now_ms() >= seen.modified_ms - 1_000


def test_a_store_that_obeys_conditions_is_probed_once(bench: Bench) -> None:
    store = ConditionalObject(MemoryStore(), parse_object_address("s3://lake/t"), LOCK_PATH)
    store.prove("n")
    client = bench.client()
    for _ in range(2):
        holding = client.try_acquire("me")
        assert holding is not None
        holding.release()
    assert len(bench.store.proofs) == 1


def test_a_store_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = obstore.put

    def ignoring(store: MemoryStore, path: str, data: bytes, **options: object) -> object:
        return keep(store, path, data)

    monkeypatch.setattr(obstore, "put", ignoring)
    store = ConditionalObject(MemoryStore(), parse_object_address("s3://lake/t"), LOCK_PATH)
    with pytest.raises(UnsafeSetupError, match="ignores the conditions"):
        store.prove("n")


def context(address: str, properties: dict[str, str] | None = None) -> LockContext:
    return LockContext(
        properties=properties or {},
        table_identity=address,
        table_address=address,
        table_folder=None,
        clock=ManualClock(),
        ids=PlainIds(),
    )


@pytest.mark.parametrize("address", ["/data/t", "file:/data/t", "hdfs://n/t", "memory://t"])
def test_a_local_table_is_refused_with_the_alternatives(address: str) -> None:
    with pytest.raises(UnsafeSetupError, match=r"filesystem.*zookeeper"):
        ENTRY.factory(context(address))


def test_every_spelling_of_the_table_is_one_lock() -> None:
    identities = {
        ENTRY.factory(context(address)).identity
        for address in ("s3://lake/t", "s3a://lake/t/", "s3n://lake//t")
    }
    assert identities == {"storage:s3://lake/t/.hoodie/.locks/table_lock.json"}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"validity.timeout.secs": "299"}, "validity.timeout.secs"),
        ({"renew.interval.secs": "31"}, "validity.timeout.secs"),
        ({"renew.interval.secs": "0"}, "renew.interval.secs"),
        ({"heartbeat.poll.secs": "-1"}, "heartbeat.poll.secs"),  # the text of the option
        ({"validity.timeout.secs": "five"}, "validity.timeout.secs"),
        ({"validity.timeout.secs": "99999999"}, "validity.timeout.secs"),
    ],
)
def test_settings_follow_java_s_rule(options: dict[str, str], key: str) -> None:
    prefix = "hoodie.write.lock.storage."
    with pytest.raises(SettingError) as refused:
        StorageLockSettings.from_properties(
            {prefix + name: value for name, value in options.items()}
        )
    assert refused.value.fields["key"] == prefix + key


def test_defaults_are_java_s_and_a_request_is_short() -> None:
    assert StorageLockSettings.from_properties({}) == StorageLockSettings(
        validity_ms=300_000, request_ms=10_000
    )
    old = {
        "hoodie.write.lock.storage.heartbeat.poll.secs": "1",
        "hoodie.write.lock.storage.validity.timeout.secs": "10",
    }
    assert StorageLockSettings.from_properties(old) == StorageLockSettings(
        validity_ms=10_000, request_ms=500
    )


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtraError, match=r"hoodoo\[objectstore\]"):
        ENTRY.factory(context("s3://lake/t"))

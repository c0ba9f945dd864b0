"""The lock file that writers of hoodoo share (LOCK-1)."""

from __future__ import annotations

import pytest

from lockproviders.acquire import ProviderLock, WaitBudget
from lockproviders.client import describe_owner
from lockproviders.storage_based.client import StorageClient
from lockproviders.storage_based.lock_file import LockRecord, ObjectVersion, StorageHolding, Tag
from lockproviders.storage_based.shared_lock import ALONE_MS, GAP_MS, SESSION_MS, SharedFileHolding
from tests.unit.lockproviders.plain_machine import Machine
from tests.unit.lockproviders.storage_based.test_storage_based import VALIDITY_MS, Bench
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.ports.ports import LockSharing

LENGTH_MS = 5_000
ENOUGH_MS = LENGTH_MS // 2

pytestmark = pytest.mark.spec("LOCK-1")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def share(client: StorageClient, *, starts: bool = True) -> SharedFileHolding:
    held = client.try_share("me", starts=starts)
    assert isinstance(held, SharedFileHolding)
    return held


def alone(client: StorageClient, *, starts: bool = True) -> StorageHolding:
    held = client.try_share("me", starts=starts)
    assert isinstance(held, StorageHolding)
    return held


def taken(client: StorageClient) -> StorageHolding:
    held = client.try_acquire("me")
    assert held is not None
    return held


def test_a_free_lock_becomes_a_shared_one_that_java_can_read(bench: Bench) -> None:
    held = share(bench.client())
    assert bench.store.asked == ["read", "put"]
    now_ms = bench.clock.now_ms()
    content = bench.store.content
    assert (content["expired"], content["validUntil"]) == (False, now_ms + LENGTH_MS)
    assert content["hoodooSharedTo"] == now_ms + SESSION_MS
    assert "hoodooAloneTo" not in content
    assert held.expires_in_ms() == LENGTH_MS
    assert held.margin_ms == LENGTH_MS // 5
    held.release()
    assert bench.store.content == content, "other members may use it"


def test_a_client_that_does_not_start_sharing_takes_a_free_lock_exclusively(bench: Bench) -> None:
    client = bench.client()
    alone(client, starts=False).release()
    bench.store.asked.clear()
    alone(client, starts=False).release()
    assert bench.store.asked == ["put", "put"], "no other client held it in between"
    assert "hoodooSharedTo" not in bench.store.content


@pytest.mark.parametrize("starts", [True, False])
def test_other_clients_join_by_one_read_and_count_the_remaining_time_from_before_it(
    bench: Bench, starts: bool
) -> None:
    first = share(bench.client("a"))
    bench.clock.time_ms += 1_000
    bench.store.asked.clear()
    real = bench.store.read

    def slow() -> object:
        found = real()
        bench.clock.time_ms += 700
        return found

    bench.store.read = slow  # type: ignore[method-assign, assignment]
    second = share(bench.client("b"), starts=starts)
    assert bench.store.asked == ["read"]
    assert second.expires_in_ms() == LENGTH_MS - 1_000 - 2 * 700, (
        "the remaining time is never too long"
    )
    assert second.fencing_token == first.fencing_token


def test_the_next_use_of_a_shared_lock_costs_no_request_until_half_of_it_remains(
    bench: Bench,
) -> None:
    client = bench.client()
    share(client)
    bench.store.asked.clear()
    bench.clock.time_ms += LENGTH_MS - ENOUGH_MS
    assert share(client).expires_in_ms() == ENOUGH_MS
    assert bench.store.asked == []
    bench.clock.time_ms += 1
    assert share(client).expires_in_ms() == LENGTH_MS
    assert bench.store.asked == ["read", "put"]


def test_the_end_of_a_shared_lock_is_only_ever_extended(bench: Bench) -> None:
    late, behind = bench.client("a"), bench.client("b")
    share(late)
    content = bench.store.content
    ahead = LockRecord.decode(bench.store.data or b"", "x").until(bench.clock.now_ms() + 3_600_000)
    bench.store.data = ahead.encode()  # by a client whose clock is an hour ahead
    held = share(behind)
    assert held.expires_in_ms() == LENGTH_MS, "the end does not depend on clocks"
    assert bench.store.content == {**content, "validUntil": ahead.valid_until_ms}


def test_java_s_lock_is_waited_for(bench: Bench) -> None:
    bench.java_holds()
    assert bench.client().try_share("me", starts=True) is None
    assert bench.store.asked == ["read"]
    bench.java_holds(expired=True)
    assert (share(bench.client()).fencing_token or 0) > bench.clock.now_ms()


def test_an_exclusive_client_takes_a_shared_lock_at_once_and_waits_for_its_members(
    bench: Bench,
) -> None:
    member, loner = bench.client("a"), bench.client("b")
    held = share(member)
    bench.clock.time_ms += 4_000
    held.renew()
    mine = taken(loner)
    assert (mine.fencing_token or 0) > (held.fencing_token or 0)
    assert mine.ready_in_ms() == LENGTH_MS, "another client may have joined a moment ago"
    assert mine.expires_in_ms() == VALIDITY_MS
    assert bench.client("c").try_share("me", starts=True) is None, "no client joins any more"
    bench.clock.time_ms += 2_600
    held.renew()
    assert held.expires_in_ms() == LENGTH_MS - 2_600, "no member extends its end"
    bench.clock.time_ms += LENGTH_MS - 2_600
    assert not held.is_held()
    assert mine.ready_in_ms() == 0
    assert mine.is_held()


def test_a_lock_is_not_shared_for_some_time_after_an_exclusive_request(bench: Bench) -> None:
    member, loner = bench.client("a"), bench.client("b")
    share(member)
    mine = taken(loner)
    bench.clock.time_ms += LENGTH_MS
    mine.release()
    for _ in range(3):  # each further acquire extends the time
        assert bench.client("c").shares, "the client has not read the file yet"
        client = bench.client("c")
        alone(client).release()
        assert not client.shares
        bench.clock.time_ms += ALONE_MS - LENGTH_MS - 1
        taken(loner).release()
    bench.clock.time_ms += ALONE_MS
    assert client.shares
    share(client)


def test_an_early_release_keeps_others_out_until_the_members_are_done(
    bench: Bench,
) -> None:
    share(bench.client("a"))
    mine = taken(bench.client("b"))
    before_ms = bench.clock.time_ms
    mine.release()
    assert bench.clock.time_ms == before_ms + LENGTH_MS
    assert bench.store.content["expired"] is True


def test_an_exclusive_acquire_of_unknown_outcome_waits_as_long(bench: Bench) -> None:
    share(bench.client("a"))
    loner = bench.client("b")
    bench.store.faults = ["late"]
    with pytest.raises(UnavailableError):
        loner.try_acquire("me")
    bench.clock.time_ms += 3_000
    share(bench.client("c"))
    bench.store.let_late_ones_in()
    first = loner.try_acquire("me")
    assert first is not None, "the request was too late, and the lock is still shared"
    assert first.ready_in_ms() == LENGTH_MS


def in_doubt(bench: Bench, fault: str) -> StorageClient:
    """Return a client whose exclusive request has no answer yet."""
    share(bench.client("a"))
    loner = bench.client("b")
    bench.store.faults = [fault]
    real, reads = bench.store.read, iter([bench.store.read])

    def silent_from_the_second_on() -> ObjectVersion | None:
        read = next(reads, None)
        if read is None:
            raise UnavailableError("no answer")
        return read()

    bench.store.read = silent_from_the_second_on  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        loner.try_acquire("me")
    bench.store.read = real  # type: ignore[method-assign]
    return loner


def test_an_unanswered_exclusive_acquire_that_is_recognised_waits_as_long(bench: Bench) -> None:
    loner = in_doubt(bench, "lost")
    bench.clock.time_ms += 100
    assert taken(loner).ready_in_ms() == LENGTH_MS


def test_an_exclusive_acquire_overtaken_by_its_own_late_request_waits_as_long(bench: Bench) -> None:
    loner = in_doubt(bench, "late")
    real = bench.store.put

    def after_the_first_request(data: bytes, over: Tag | None) -> Tag:
        bench.store.let_late_ones_in()
        return real(data, over)

    bench.store.put = after_the_first_request  # type: ignore[method-assign]
    assert loner.try_acquire("me") is None
    bench.clock.time_ms += 100
    assert taken(loner).ready_in_ms() == LENGTH_MS


def test_a_client_that_closes_with_an_unknown_outcome_waits_for_the_members(bench: Bench) -> None:
    loner = in_doubt(bench, "lost")
    before_ms = bench.clock.time_ms
    loner.close()
    assert bench.store.content["expired"] is True
    assert bench.clock.time_ms == before_ms + LENGTH_MS


def test_the_second_exclusive_client_waits_for_the_first_only(bench: Bench) -> None:
    """Otherwise sixteen exclusive clients would wait five seconds each."""
    share(bench.client("a"))
    first, second = bench.client("b"), bench.client("c")
    real, had = bench.store.put, []

    def after_first_client(data: bytes, over: Tag | None) -> Tag:
        bench.store.put = real  # type: ignore[method-assign]
        had.append(taken(first))
        return real(data, over)

    bench.store.put = after_first_client  # type: ignore[method-assign]
    assert second.try_acquire("me") is None
    had[0].release()
    assert taken(second).ready_in_ms() == 0


def test_an_exclusive_holder_waits_for_the_members_although_another_thread_was_second(
    bench: Bench,
) -> None:
    share(bench.client("a"))
    loner, of_other_thread = bench.client("b"), []
    real_read, real_put = bench.store.read, bench.store.put
    shared = real_read()

    def put_and_let_other_thread_acquire(data: bytes, over: Tag | None) -> Tag:
        bench.store.put = real_put  # type: ignore[method-assign]
        tag = real_put(data, over)
        bench.store.read = old_version  # type: ignore[method-assign]
        of_other_thread.append(loner.try_acquire("another thread"))
        return tag

    def old_version() -> ObjectVersion | None:
        bench.store.read = real_read  # type: ignore[method-assign]
        return shared

    bench.store.put = put_and_let_other_thread_acquire  # type: ignore[method-assign]
    mine = taken(loner)
    assert of_other_thread == [None]
    assert mine.ready_in_ms() == LENGTH_MS, "client a may still commit"


def test_after_a_minute_a_shared_lock_ends_and_stays_free_for_longer_than_java_waits(
    bench: Bench,
) -> None:
    client, began_ms = bench.client(), bench.clock.time_ms
    token = share(client).fencing_token or 0
    while (held := client.try_share("me", starts=True)) is not None:
        last = held
        bench.clock.time_ms += 100
    assert isinstance(last, SharedFileHolding)
    left_ms = began_ms + SESSION_MS - bench.clock.time_ms
    assert 0 < left_ms < ENOUGH_MS
    assert last.expires_in_ms() == left_ms, "the lease ends with the session"
    bench.clock.time_ms += left_ms + GAP_MS - 1
    assert client.try_share("me", starts=True) is None, "Java may take the lock"
    bench.clock.time_ms += 1
    assert (share(client).fencing_token or 0) > token


@pytest.mark.parametrize("left_ms", [2_000, 1_000])
def test_an_unavailable_store_costs_no_time_while_enough_of_the_lease_remains(
    bench: Bench, left_ms: int
) -> None:
    client = bench.client()
    share(client)
    bench.clock.time_ms += LENGTH_MS - left_ms
    bench.store.faults = ["refused"]
    if left_ms == 2_000:
        assert share(client).expires_in_ms() == left_ms
    else:
        with pytest.raises(UnavailableError):
            client.try_share("me", starts=True)


@pytest.mark.parametrize("fault", ["lost", "late", "twice"])
def test_a_client_joins_after_any_outcome_of_its_own_request(bench: Bench, fault: str) -> None:
    bench.store.faults = [fault]
    client = bench.client()
    held = share(client)
    bench.store.let_late_ones_in()
    again = share(bench.client("b"))
    assert again.fencing_token == held.fencing_token
    assert bench.store.content["validUntil"] == bench.clock.now_ms() + LENGTH_MS


def test_a_renewal_reads_the_lock_file(bench: Bench) -> None:
    held = share(bench.client("a"))
    bench.clock.time_ms += 3_000
    held.renew()
    assert held.expires_in_ms() == LENGTH_MS
    bench.clock.time_ms += 3_000
    bench.store.unreadable = 1
    with pytest.raises(UnavailableError):
        held.renew()
    bench.store.data = b"{"
    with pytest.raises(UnavailableError):
        held.renew()
    assert held.expires_in_ms() == LENGTH_MS - 3_000
    bench.store.data = None
    held.renew()
    assert held.expires_in_ms() == LENGTH_MS - 3_000, "the file is missing"


@pytest.mark.parametrize("first_alone", [True, False])
def test_the_token_of_a_shared_lock_exceeds_earlier_ones_although_the_file_was_deleted(
    bench: Bench, first_alone: bool
) -> None:
    client = bench.client("a")
    before = taken(client) if first_alone else share(client)
    bench.store.data = None
    bench.clock.time_ms += 10_000
    after = share(bench.client("b")) if first_alone else taken(client)
    assert (after.fencing_token or 0) > (before.fencing_token or 0)


def test_a_shared_lock_is_not_broken_because_java_could_take_it_while_it_is_used(
    bench: Bench,
) -> None:
    share(bench.client("a"))
    client = bench.client("b")
    content = bench.store.content
    with pytest.raises(UnsafeSetupError, match="at most 5 s after") as refused:
        client.break_lock(client.holder() or "")
    assert refused.value.kind == "lock_shared"
    assert bench.store.content == content
    bench.clock.time_ms += 60_000
    assert not client.break_lock("whoever"), "it ended by itself"


@pytest.mark.parametrize(
    ("note", "shown"),
    [
        ('{"owner":"h/1/w","nonce":"n"}', '{"owner":"h/1/w","nonce":"n","shared":true}'),
        ("[1]", "[1]"),
        ('{"owner":"cut of', '{"owner":"cut of'),
    ],
)
def test_the_holder_of_a_shared_lock_is_shown_with_the_other_writers(
    bench: Bench, note: str, shown: str
) -> None:
    client = bench.client()
    assert client.try_share(note, starts=True) is not None
    assert client.holder() == shown
    assert describe_owner(shown).endswith("other writers of hoodoo") == ("shared" in shown)


def locked(machine: Machine, client: StorageClient) -> ProviderLock:
    budget = WaitBudget(
        deadline_ms=20_000,
        try_ms=20_000,
        retries=0,
        pause_ms=0,
        hold_budget_ms=2_000,
        poll_first_ms=50,
    )
    return ProviderLock("storage_based", client, budget=budget, ports=machine.ports())


def test_a_lease_of_a_shared_lock_has_its_own_margin_and_is_marked_shared(bench: Bench) -> None:
    machine = Machine(clock=bench.clock)
    lock = locked(machine, bench.client())
    assert lock.is_shareable
    lease = lock.acquire_while(lambda: True, "publish", LockSharing.START)
    assert lease is not None
    assert lease.is_shared
    assert lease.remaining_ms() == LENGTH_MS - LENGTH_MS // 5
    assert machine.events.fields("lock.acquired")["shared"] is True
    bench.clock.time_ms += LENGTH_MS // 2 + 1
    machine.executor.tickers[0].work()
    assert lease.remaining_ms() == LENGTH_MS - LENGTH_MS // 5, "renewed during its use"
    assert "lock.hold_alarm" not in machine.events.names(), "no client waits for it"
    bench.clock.time_ms += LENGTH_MS
    with pytest.raises(LeaseLostError):
        lease.assert_held()


@pytest.mark.parametrize("waits", [True, False])
def test_a_client_that_had_to_wait_shares_the_lock(bench: Bench, waits: bool) -> None:
    machine = Machine(clock=bench.clock)
    if waits:
        bench.java_holds()
        bench.clock.on_sleep = lambda: bench.java_holds(expired=True)
    lease = locked(machine, bench.client()).acquire_while(lambda: True, "publish", LockSharing.JOIN)
    assert lease is not None
    assert lease.is_shared is waits


def test_an_exclusive_acquire_gets_the_lock_when_the_members_are_done(bench: Bench) -> None:
    machine = Machine(clock=bench.clock)
    share(bench.client("a"))
    before_ms = bench.clock.time_ms
    lock = locked(machine, bench.client("b"))
    lease = lock.acquire("write again")
    assert bench.clock.time_ms == before_ms + LENGTH_MS
    assert not lease.is_shared
    lease.release()
    assert not lock.is_shareable


def test_an_interrupted_wait_for_the_members_releases_the_lock(bench: Bench) -> None:
    machine = Machine(clock=bench.clock)
    share(bench.client("a"))
    lock = locked(machine, bench.client("b"))

    def interrupt() -> None:
        bench.clock.on_sleep = lambda: None
        raise KeyboardInterrupt

    bench.clock.on_sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        lock.acquire("write again")
    assert bench.store.content["expired"] is True

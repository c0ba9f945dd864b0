"""The lock file that writers of hoodoo have together (LOCK-1)."""

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
    assert bench.place.asked == ["read", "put"]
    now_ms = bench.clock.now_ms()
    told = bench.place.content
    assert (told["expired"], told["validUntil"]) == (False, now_ms + LENGTH_MS)
    assert told["hoodooSharedTo"] == now_ms + SESSION_MS
    assert "hoodooAloneTo" not in told
    assert held.expires_in_ms() == LENGTH_MS
    assert held.margin_ms == LENGTH_MS // 5
    held.release()
    assert bench.place.content == told, "others may be in it"


def test_a_client_that_does_not_start_sharing_takes_a_free_lock_exclusively(bench: Bench) -> None:
    client = bench.client()
    alone(client, starts=False).release()
    bench.place.asked.clear()
    alone(client, starts=False).release()
    assert bench.place.asked == ["put", "put"], "nobody had it since"
    assert "hoodooSharedTo" not in bench.place.content


@pytest.mark.parametrize("starts", [True, False])
def test_other_clients_join_by_one_read_and_count_the_remaining_time_from_before_it(
    bench: Bench, starts: bool
) -> None:
    first = share(bench.client("a"))
    bench.clock.time_ms += 1_000
    bench.place.asked.clear()
    real = bench.place.read

    def slow() -> object:
        found = real()
        bench.clock.time_ms += 700
        return found

    bench.place.read = slow  # type: ignore[method-assign, assignment]
    second = share(bench.client("b"), starts=starts)
    assert bench.place.asked == ["read"]
    assert second.expires_in_ms() == LENGTH_MS - 1_000 - 2 * 700, "never too much"
    assert second.fencing_token == first.fencing_token


def test_the_next_use_of_a_shared_lock_costs_no_request_until_half_of_it_remains(
    bench: Bench,
) -> None:
    client = bench.client()
    share(client)
    bench.place.asked.clear()
    bench.clock.time_ms += LENGTH_MS - ENOUGH_MS
    assert share(client).expires_in_ms() == ENOUGH_MS
    assert bench.place.asked == []
    bench.clock.time_ms += 1
    assert share(client).expires_in_ms() == LENGTH_MS
    assert bench.place.asked == ["read", "put"]


def test_the_end_of_a_shared_lock_is_only_ever_extended(bench: Bench) -> None:
    late, behind = bench.client("a"), bench.client("b")
    share(late)
    content = bench.place.content
    ahead = LockRecord.decode(bench.place.data or b"", "x").until(bench.clock.now_ms() + 3_600_000)
    bench.place.data = ahead.encode()  # by one whose clock is an hour ahead
    held = share(behind)
    assert held.expires_in_ms() == LENGTH_MS, "no clock gives more than that"
    assert bench.place.content == {**content, "validUntil": ahead.valid_until_ms}


def test_java_s_lock_is_waited_for(bench: Bench) -> None:
    bench.java_holds()
    assert bench.client().try_share("me", starts=True) is None
    assert bench.place.asked == ["read"]
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
    assert mine.ready_in_ms() == LENGTH_MS, "somebody may have joined a moment ago"
    assert mine.expires_in_ms() == VALIDITY_MS
    assert bench.client("c").try_share("me", starts=True) is None, "nobody joins any more"
    bench.clock.time_ms += 2_600
    held.renew()
    assert held.expires_in_ms() == LENGTH_MS - 2_600, "nor puts its end off"
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
    for _ in range(3):  # each redo puts it off
        assert bench.client("c").shares, "it has not looked yet"
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
    assert bench.place.content["expired"] is True


def test_an_exclusive_acquire_of_unknown_outcome_waits_as_long(bench: Bench) -> None:
    share(bench.client("a"))
    loner = bench.client("b")
    bench.place.faults = ["late"]
    with pytest.raises(UnavailableError):
        loner.try_acquire("me")
    bench.clock.time_ms += 3_000
    share(bench.client("c"))
    bench.place.let_late_ones_in()
    first = loner.try_acquire("me")
    assert first is not None, "it came too late, and the lock is shared as before"
    assert first.ready_in_ms() == LENGTH_MS


def in_doubt(bench: Bench, fault: str) -> StorageClient:
    """One that wanted it alone, and whose request came or comes without an answer."""
    share(bench.client("a"))
    loner = bench.client("b")
    bench.place.faults = [fault]
    real, reads = bench.place.read, iter([bench.place.read])

    def silent_from_the_second_on() -> ObjectVersion | None:
        read = next(reads, None)
        if read is None:
            raise UnavailableError("no answer")
        return read()

    bench.place.read = silent_from_the_second_on  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        loner.try_acquire("me")
    bench.place.read = real  # type: ignore[method-assign]
    return loner


def test_an_unanswered_exclusive_acquire_that_is_recognised_waits_as_long(bench: Bench) -> None:
    loner = in_doubt(bench, "lost")
    bench.clock.time_ms += 100
    assert taken(loner).ready_in_ms() == LENGTH_MS


def test_an_exclusive_acquire_overtaken_by_its_own_late_request_waits_as_long(bench: Bench) -> None:
    loner = in_doubt(bench, "late")
    real = bench.place.put

    def overtaken_by_the_first(data: bytes, over: Tag | None) -> Tag:
        bench.place.let_late_ones_in()
        return real(data, over)

    bench.place.put = overtaken_by_the_first  # type: ignore[method-assign]
    assert loner.try_acquire("me") is None
    bench.clock.time_ms += 100
    assert taken(loner).ready_in_ms() == LENGTH_MS


def test_a_client_that_closes_with_an_unknown_outcome_waits_for_the_members(bench: Bench) -> None:
    loner = in_doubt(bench, "lost")
    before_ms = bench.clock.time_ms
    loner.close()
    assert bench.place.content["expired"] is True
    assert bench.clock.time_ms == before_ms + LENGTH_MS


def test_the_second_exclusive_client_waits_for_the_first_only(bench: Bench) -> None:
    """Sixteen who want it alone would wait five seconds each."""
    share(bench.client("a"))
    first, second = bench.client("b"), bench.client("c")
    real, had = bench.place.put, []

    def overtaken(data: bytes, over: Tag | None) -> Tag:
        bench.place.put = real  # type: ignore[method-assign]
        had.append(taken(first))
        return real(data, over)

    bench.place.put = overtaken  # type: ignore[method-assign]
    assert second.try_acquire("me") is None
    had[0].release()
    assert taken(second).ready_in_ms() == 0


def test_an_exclusive_holder_waits_for_the_members_although_another_thread_was_second(
    bench: Bench,
) -> None:
    share(bench.client("a"))
    loner, of_other_thread = bench.client("b"), []
    real_read, real_put = bench.place.read, bench.place.put
    shared = real_read()

    def taken_and_not_told_yet(data: bytes, over: Tag | None) -> Tag:
        bench.place.put = real_put  # type: ignore[method-assign]
        tag = real_put(data, over)
        bench.place.read = seen_before  # type: ignore[method-assign]
        of_other_thread.append(loner.try_acquire("another thread"))
        return tag

    def seen_before() -> ObjectVersion | None:
        bench.place.read = real_read  # type: ignore[method-assign]
        return shared

    bench.place.put = taken_and_not_told_yet  # type: ignore[method-assign]
    mine = taken(loner)
    assert of_other_thread == [None]
    assert mine.ready_in_ms() == LENGTH_MS, "client a publishes meanwhile"


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
    assert last.expires_in_ms() == left_ms, "nothing of it is left behind its end"
    bench.clock.time_ms += left_ms + GAP_MS - 1
    assert client.try_share("me", starts=True) is None, "java has its turn"
    bench.clock.time_ms += 1
    assert (share(client).fencing_token or 0) > token


@pytest.mark.parametrize("left_ms", [2_000, 1_000])
def test_an_unavailable_store_costs_no_time_while_enough_of_the_lease_remains(
    bench: Bench, left_ms: int
) -> None:
    client = bench.client()
    share(client)
    bench.clock.time_ms += LENGTH_MS - left_ms
    bench.place.faults = ["refused"]
    if left_ms == 2_000:
        assert share(client).expires_in_ms() == left_ms
    else:
        with pytest.raises(UnavailableError):
            client.try_share("me", starts=True)


@pytest.mark.parametrize("fault", ["lost", "late", "twice"])
def test_a_client_joins_after_any_outcome_of_its_own_request(bench: Bench, fault: str) -> None:
    bench.place.faults = [fault]
    client = bench.client()
    held = share(client)
    bench.place.let_late_ones_in()
    again = share(bench.client("b"))
    assert again.fencing_token == held.fencing_token
    assert bench.place.content["validUntil"] == bench.clock.now_ms() + LENGTH_MS


def test_a_renewal_reads_the_lock_file(bench: Bench) -> None:
    held = share(bench.client("a"))
    bench.clock.time_ms += 3_000
    held.renew()
    assert held.expires_in_ms() == LENGTH_MS
    bench.clock.time_ms += 3_000
    bench.place.unreadable = 1
    with pytest.raises(UnavailableError):
        held.renew()
    bench.place.data = b"{"
    with pytest.raises(UnavailableError):
        held.renew()
    assert held.expires_in_ms() == LENGTH_MS - 3_000
    bench.place.data = None
    held.renew()
    assert held.expires_in_ms() == LENGTH_MS - 3_000, "the file is gone"


@pytest.mark.parametrize("first_alone", [True, False])
def test_the_token_of_a_shared_lock_exceeds_earlier_ones_although_the_file_was_deleted(
    bench: Bench, first_alone: bool
) -> None:
    client = bench.client("a")
    before = taken(client) if first_alone else share(client)
    bench.place.data = None
    bench.clock.time_ms += 10_000
    after = share(bench.client("b")) if first_alone else taken(client)
    assert (after.fencing_token or 0) > (before.fencing_token or 0)


def test_a_shared_lock_is_not_broken_because_java_could_take_it_while_it_is_used(
    bench: Bench,
) -> None:
    share(bench.client("a"))
    client = bench.client("b")
    told = bench.place.content
    with pytest.raises(UnsafeSetupError, match="at most 5 s after") as refused:
        client.break_lock(client.holder() or "")
    assert refused.value.kind == "lock_shared"
    assert bench.place.content == told
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
    assert lease.remaining_ms() == LENGTH_MS - LENGTH_MS // 5, "renewed while it is used"
    assert "lock.hold_alarm" not in machine.events.names(), "nobody waits for it"
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
    assert bench.place.content["expired"] is True

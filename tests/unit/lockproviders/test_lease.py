"""A lease detects by itself when its holder must stop."""

from __future__ import annotations

import pytest

from lockproviders.acquire import HeldLease, LeaseTerms
from timeline.errors import LeaseLostError, StorageUnavailableError, UnsafeSetupError


def lease_over(machine, holding, *, margin_ms: int = 0, hold_budget_ms: int = 0) -> HeldLease:
    terms = LeaseTerms(
        provider="plain",
        identity="plain:t",
        owner="here/41/w1",
        purpose="publish",
        margin_ms=margin_ms,
        hold_budget_ms=hold_budget_ms,
    )
    lease = HeldLease(holding, terms, clock=machine.clock, events=machine.events, ids=machine.ids)
    lease.watch(machine.executor)
    return lease


def test_remaining_time_leaves_a_tenth_as_margin(machine) -> None:
    assert lease_over(machine, machine.holding(60_000)).remaining_ms() == 54_000


def test_margin_of_the_provider_wins_when_larger(machine) -> None:
    lease = lease_over(machine, machine.holding(60_000), margin_ms=20_000)
    assert lease.remaining_ms() == 40_000


@pytest.mark.parametrize(("margin_ms", "room_until_ms"), [(0, 45_000), (20_000, 33_334)])
def test_a_lease_has_room_until_a_sixth_of_its_time_remains(
    machine, margin_ms: int, room_until_ms: int
) -> None:
    lease = lease_over(machine, machine.holding(60_000), margin_ms=margin_ms)
    machine.clock.time_ms += room_until_ms
    assert lease.has_time_for_request()
    machine.clock.time_ms += 1
    assert not lease.has_time_for_request()
    lease.assert_held()


def test_a_lease_without_end_has_room(machine) -> None:
    assert lease_over(machine, machine.holding()).has_time_for_request()


def test_lease_without_end_stays_held(machine) -> None:
    lease = lease_over(machine, machine.holding())
    machine.clock.time_ms += 10_000_000
    lease.assert_held()
    assert lease.remaining_ms() is None


def test_lease_is_lost_at_its_end_less_the_margin(machine) -> None:
    lease = lease_over(machine, machine.holding(60_000))
    machine.clock.time_ms += 53_999
    lease.assert_held()
    machine.clock.time_ms += 1
    with pytest.raises(LeaseLostError):
        lease.assert_held()
    assert machine.events.names() == ["lock.lost"]


def test_lost_lease_is_not_revived_by_a_renewal(machine) -> None:
    holding = machine.holding(60_000)
    lease = lease_over(machine, holding)
    machine.clock.time_ms += 59_000
    lease.beat()
    assert holding.renewals == 0
    holding.ends_ms += 60_000
    with pytest.raises(LeaseLostError):
        lease.assert_held()


def test_lease_is_renewed_after_a_third(machine) -> None:
    holding = machine.holding(60_000)
    lease = lease_over(machine, holding)
    assert machine.executor.tickers[0].interval_ms == 10_000
    machine.clock.time_ms += 10_000
    lease.beat()
    assert holding.renewals == 0
    machine.clock.time_ms += 10_000
    lease.beat()
    assert holding.renewals == 1
    assert lease.remaining_ms() == 54_000


def test_renewal_without_answer_is_tried_at_the_next_beat(machine) -> None:
    holding = machine.holding(60_000)
    lease = lease_over(machine, holding)
    holding.trouble = StorageUnavailableError("no answer")
    machine.clock.time_ms += 20_000
    lease.beat()
    lease.assert_held()
    holding.trouble = None
    machine.clock.time_ms += 10_000
    lease.beat()
    assert holding.renewals == 1
    assert machine.events.names() == ["lock.renew_failed", "lock.renewed"]
    assert machine.events.fields("lock.renewed")["expires_in_ms"] == 60_000


def test_refused_renewal_loses_the_lease(machine) -> None:
    holding = machine.holding(60_000)
    lease = lease_over(machine, holding)
    holding.trouble = LeaseLostError("taken by somebody")
    machine.clock.time_ms += 20_000
    lease.beat()
    with pytest.raises(LeaseLostError, match="taken by somebody"):
        lease.assert_held()


def test_a_lost_lease_is_reported_once(machine) -> None:
    holding = machine.holding()
    lease = lease_over(machine, holding)
    holding.ours = False
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            lease.assert_held()
    assert machine.events.names() == ["lock.lost"]


def test_fork_does_not_inherit_the_lease(machine) -> None:
    holding = machine.holding()
    lease = lease_over(machine, holding)
    machine.ids.pid = 42
    with pytest.raises(LeaseLostError, match="fork"):
        lease.assert_held()
    lease.release()
    assert holding.releases == 0
    machine.ids.pid = 41
    lease.assert_held()


def test_release_happens_once_and_stops_the_ticker(machine) -> None:
    holding = machine.holding(60_000)
    with lease_over(machine, holding) as lease:
        machine.clock.time_ms += 30
    lease.release()
    assert holding.releases == 1
    assert machine.executor.tickers[0].stopped
    assert machine.events.fields("lock.released")["held_ms"] == 30


def test_released_lease_is_not_held(machine) -> None:
    lease = lease_over(machine, machine.holding())
    lease.release()
    with pytest.raises(LeaseLostError, match="released"):
        lease.assert_held()


def test_failed_release_is_an_event_not_an_error(machine) -> None:
    holding = machine.holding()
    lease = lease_over(machine, holding)
    holding.trouble = StorageUnavailableError("no answer")
    lease.release()
    assert machine.events.names() == ["lock.release_failed", "lock.released"]


def test_long_holding_raises_one_alarm_while_held_and_a_warning_at_release(machine, caplog) -> None:
    lease = lease_over(machine, machine.holding(), hold_budget_ms=5_000)
    machine.clock.time_ms += 5_000
    machine.executor.tickers[0].work()
    machine.clock.time_ms += 5_000
    machine.executor.tickers[0].work()
    assert machine.events.names() == ["lock.hold_alarm"]
    lease.release()
    assert machine.events.names()[1:] == ["lock.released", "lock.hold_over_budget"]
    assert machine.events.fields("lock.hold_over_budget")["held_ms"] == 10_000
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_holding_within_budget_is_silent(machine, caplog) -> None:
    lease = lease_over(machine, machine.holding(), hold_budget_ms=5_000)
    machine.clock.time_ms += 5_000
    lease.release()
    assert machine.events.names() == ["lock.released"]
    assert caplog.records == []


def test_lease_without_end_and_budget_needs_no_ticker(machine) -> None:
    lease_over(machine, machine.holding())
    assert machine.executor.tickers == []


@pytest.mark.parametrize("lease_ms", [None, 60_000])
def test_a_refused_release_is_reported_and_raises_nothing(machine, lease_ms) -> None:
    """The password changed during the commit; the commit stays valid."""
    holding = machine.holding(lease_ms)
    lease = lease_over(machine, holding)
    holding.trouble = UnsafeSetupError("access denied", kind="lock_database")
    with lease:
        pass
    assert machine.events.fields("lock.release_failed")["error"] == "access denied"
    with pytest.raises(LeaseLostError, match="released earlier"):
        lease.assert_held()


def test_a_refused_renewal_is_reported_and_retried(machine) -> None:
    holding = machine.holding(60_000)
    lease = lease_over(machine, holding)
    holding.trouble = UnsafeSetupError("access denied", kind="lock_database")
    machine.clock.time_ms += 20_000
    lease.beat()
    assert machine.events.fields("lock.renew_failed")["error"] == "access denied"
    holding.trouble = None
    lease.beat()
    assert holding.renewals == 1

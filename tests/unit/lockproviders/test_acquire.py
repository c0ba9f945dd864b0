"""The wait for a lock: bounded, jittered, and with the holder in the error."""

from __future__ import annotations

import json

import pytest

from timeline.errors import LockTimeoutError, StorageUnavailableError


def test_free_lock_is_taken_without_sleeping(machine) -> None:
    client = machine.client()
    lease = machine.lock(client).acquire("publish")
    assert machine.clock.sleeps == []
    assert lease.owner == "here/41/w1"
    assert machine.events.fields("lock.acquired") == {
        "provider": "plain",
        "identity": "plain:t",
        "owner": "here/41/w1",
        "purpose": "publish",
        "fencing_token": 7,
        "expires_in_ms": None,
        "wait_ms": 0,
        "shared": False,
    }


def test_the_owner_text_contains_host_pid_ids_and_purpose_only(machine) -> None:
    client = machine.client()
    machine.lock(client).acquire("publish")
    assert json.loads(client.texts[0]) == {
        "owner": "here/41/w1",
        "host": "here",
        "pid": 41,
        "application": "loader",
        "purpose": "publish",
        "since_ms": 1_700_000_001_000,
        "nonce": "00000000000000000000000000000001",
    }


def test_polling_starts_fast_and_slows_down_to_its_limit(machine) -> None:
    client = machine.client()
    client.free = False
    with pytest.raises(LockTimeoutError):
        machine.lock(client).acquire("publish")
    assert machine.clock.sleeps == [2, 3, 5, 8, 13, 21, 34, 54, 86, 137, 220, 250, 167]


def test_deadline_caps_rounds_and_pauses(machine) -> None:
    client = machine.client()
    client.free = False
    lock = machine.lock(client, deadline_ms=120_000, try_ms=60_000, retries=50, pause_ms=5_000)
    with pytest.raises(LockTimeoutError) as caught:
        lock.acquire("publish")
    assert caught.value.fields["waited_ms"] == 120_000


def test_rounds_end_before_the_deadline_when_they_are_shorter(machine) -> None:
    client = machine.client()
    client.free = False
    lock = machine.lock(client, deadline_ms=120_000, try_ms=100, retries=2, pause_ms=40)
    with pytest.raises(LockTimeoutError) as caught:
        lock.acquire("publish")
    # three rounds of 100 ms and two pauses of three quarters of 40 ms
    assert caught.value.fields["waited_ms"] == 360


def test_rounds_and_pauses_of_zero_make_no_busy_loop(machine) -> None:
    client = machine.client()
    client.free = False
    with pytest.raises(LockTimeoutError):
        machine.lock(client, try_ms=0, retries=3, pause_ms=0).acquire("publish")
    assert machine.clock.sleeps == [2, 2, 2]


def test_a_deadline_of_zero_still_makes_one_attempt(machine) -> None:
    client = machine.client()
    machine.lock(client, deadline_ms=0).acquire("publish")
    assert client.tries == 1


def test_a_timeout_names_the_holder_and_the_next_step(machine) -> None:
    client = machine.client()
    client.free = False
    with pytest.raises(LockTimeoutError) as caught:
        machine.lock(client).acquire("publish")
    assert caught.value.fields["holder"] == "there/9/w2 for 'publish 20260101000000000'"
    assert "hoodoo.lock.deadline.ms" in caught.value.message
    assert machine.events.fields("lock.timeout")["tries"] == 14


def test_a_wait_is_reported_once_after_a_second(machine) -> None:
    client = machine.client()
    client.free = False
    with pytest.raises(LockTimeoutError):
        machine.lock(client, deadline_ms=5_000, try_ms=5_000).acquire("publish")
    assert machine.events.names() == ["lock.waiting", "lock.timeout"]


def test_an_unavailable_provider_is_waited_for(machine) -> None:
    client = machine.client()
    client.trouble = StorageUnavailableError("the disk is full")

    def recover() -> None:
        if len(machine.clock.sleeps) == 3:
            client.trouble = None

    machine.clock.on_sleep = recover
    machine.lock(client).acquire("publish")
    assert client.tries == 4


def test_a_timeout_keeps_the_last_failure_as_its_cause(machine) -> None:
    client = machine.client()
    client.trouble = StorageUnavailableError("the disk is full")
    with pytest.raises(LockTimeoutError) as caught:
        machine.lock(client).acquire("publish")
    assert caught.value.__cause__ is client.trouble
    assert "the disk is full" in caught.value.message
    assert "not free" not in caught.value.message
    assert caught.value.kind == "lock_unanswered"


def test_waiting_clients_use_different_pauses(machine) -> None:
    client = machine.client()
    client.free = False
    machine.ids.chance = 0.0
    with pytest.raises(LockTimeoutError):
        machine.lock(client).acquire("publish")
    assert machine.clock.sleeps[:6] == [1, 2, 3, 4, 7, 10]


def test_closing_releases_the_held_lease_and_the_client(machine) -> None:
    client = machine.client()
    lock = machine.lock(client)
    lock.acquire("publish")
    lock.close()
    lock.close()
    assert client.closed
    assert client.holding.releases == 1


def test_lock_is_given_back_when_its_watch_cannot_start(machine) -> None:
    client = machine.client()

    def refuse(interval_ms: int, work: object) -> None:
        raise RuntimeError("no threads left")

    machine.executor.every = refuse
    with pytest.raises(RuntimeError):
        machine.lock(client, hold_budget_ms=5).acquire("publish")
    assert client.holding.releases == 1

"""Retries: how long a write waits, how much it may cost, and its end after repeated conflicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.settings.settings import WriteSettings
from filegroups.table import TableReader
from hoodoo.factory import limits_of
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    Rows,
    StillClock,
    heard,
    limited,
    new_table,
    opened,
    put_watched,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.commit.commit_lock import keep_commit_lock
from timeline.errors import BudgetSpentError, LeaseLostError, SettingError, WriteConflictError
from timeline.model.commit_metadata import WriteOperation
from timeline.properties.options import as_property_set

START: Rows = [{"id": "a", "p": "x", "ts": 1, "v": 1}, {"id": "b", "p": "y", "ts": 1, "v": 1}]


def row(key: str, partition: str, ts: int, v: int) -> dict[str, object]:
    return {"id": key, "p": partition, "ts": ts, "v": v}


# ---------------------------------------------------------------- properties


def test_a_preset_sets_only_options_that_are_not_set() -> None:
    options = {"hoodoo.retry.preset": "streaming", "hoodie.write.commit.retry.base.ms": "7"}
    settings = WriteSettings.from_properties(options)
    assert (settings.conflict_retries, settings.commit_retry_cap_ms) == (8, 50)
    assert settings.commit_retry_base_ms == 7
    assert settings.origin("conflict_retries") == "hoodoo.retry.preset=streaming"


def test_the_preset_backfill_has_no_limit_in_time_and_hudis_own_option_wins() -> None:
    options = {
        "hoodoo.retry.preset": "backfill",
        "hoodie.write.num.retries.on.conflict.failures": "3",
    }
    settings = WriteSettings.from_properties(options)
    assert (settings.conflict_retries, settings.commit_retry_total_ms) == (3, 0)


@pytest.mark.parametrize(
    "options",
    [{"hoodoo.publish.lock": "auto"}, {"hoodoo.foreign.writers": "expected"}],
)
@pytest.mark.parametrize("key", ["hoodoo.retry.queue.after", "hoodoo.retry.queue.short.ms"])
def test_retry_under_lock_is_refused_where_other_writers_take_no_lock(
    options: dict[str, str], key: str
) -> None:
    with pytest.raises(SettingError) as refused:
        WriteSettings.from_properties({key: "2", **options})
    assert refused.value.fields["key"] == key


@pytest.mark.spec("PUB-11")
@pytest.mark.parametrize(
    ("options", "short_ms"),
    [
        ({}, 500),
        ({"hoodoo.retry.queue.short.ms": "0"}, 0),
        ({"hoodoo.publish.lock": "auto"}, 0),
        ({"hoodoo.publish.lock": "none"}, 0),
        ({"hoodoo.foreign.writers": "expected"}, 0),
    ],
)
def test_retry_under_lock_is_the_default_where_all_writers_take_the_lock(
    options: dict[str, str], short_ms: int
) -> None:
    properties = as_property_set(options)
    limits = limits_of(WriteSettings.from_properties(properties), properties)
    assert (limits.retry.lock_after_conflicts, limits.retry.lock_short_ms) == (0, short_ms)


# ---------------------------------------------------------------- writes


def two_writers(**budget: Any) -> tuple[TableReader, TableReader]:
    table = new_table(limits=limited(**budget))
    upsert(table, START)
    return table, opened(table)


def test_a_commit_result_names_the_scope_of_its_retry() -> None:
    mine, other = two_writers()
    assert upsert(mine, [row("a", "x", 2, 2)]).redone == "nothing"
    retried = upsert(mine, [row("a", "x", 3, 3)], lambda: upsert(other, [row("a", "x", 2, 7)]))
    assert (retried.redone, retried.lost_slots) == ("everything", 0)


def test_wasted_bytes_end_the_retries() -> None:
    mine, other = two_writers(wasted_bytes_max=1)
    acts = [lambda: upsert(other, [row("a", "x", 2, 7)])] * 2
    with pytest.raises(WriteConflictError, match=r"or raise hoodoo\.retry\.wasted\.bytes\.max"):
        upsert(mine, [row("a", "x", 3, 3)], *acts)
    assert rows_of(mine, "id", "v") == [("a", 7), ("b", 1)]


def test_the_error_of_a_spent_budget_names_its_limit() -> None:
    clock = StillClock()
    mine = new_table(limits=limited(total_ms_max=1_000), clock=clock)
    upsert(mine, START)
    other = opened(mine, clock=clock)

    def slow_concurrent_write() -> None:
        upsert(other, [row("a", "x", 2, 7)])
        clock.sleep_ms(700)

    with pytest.raises(BudgetSpentError, match="every attempt had a conflict") as spent:
        upsert(mine, [row("a", "x", 3, 3)], *[slow_concurrent_write] * 4)
    assert spent.value.fields["bound"] == "hoodie.write.commit.retry.total.timeout.ms"


def test_no_attempt_begins_after_the_limit_in_time() -> None:
    clock = StillClock()
    long = limited(total_ms_max=200, pause_base_ms=900, pause_cap_ms=900)
    mine = new_table(limits=long, clock=clock)
    upsert(mine, START)
    other, begins = opened(mine, clock=clock), []

    def concurrent_write() -> None:
        begins.append(clock.steady)
        upsert(other, [row("a", "x", 2, 7)])

    began = clock.steady
    upsert(mine, [row("a", "x", 3, 3)], concurrent_write, lambda: begins.append(clock.steady))
    assert len(begins) == 2
    assert began < begins[1] <= began + 200


def test_a_writer_that_lost_too_often_retries_under_the_lock() -> None:
    mine, other = two_writers(lock_after_conflicts=2)
    lock_states: list[str] = []

    def concurrent_write() -> None:
        upsert(other, [row("a", "x", 2, 7)])

    def waiting_write() -> None:
        """The third concurrent write finds the lock taken, so it cannot commit first."""
        lock_states.append("held" if heard(mine, "write.queued") else "free")

    result, _ = put_watched(
        mine,
        WriteOperation.UPSERT,
        [row("a", "x", 3, 3)],
        concurrent_write,
        concurrent_write,
        waiting_write,
    )
    assert lock_states == ["held"]
    assert (result.attempts, result.redone) == (3, "everything")
    assert rows_of(mine, "id", "v") == [("a", 3), ("b", 1)]
    upsert(other, [row("a", "x", 9, 9)])  # the lock is released


@pytest.mark.spec("PUB-11")
def test_a_short_rejected_write_retries_under_the_lock_without_a_pause() -> None:
    clock = StillClock()
    mine = new_table(limits=limited(lock_short_ms=500, pause_base_ms=50), clock=clock)
    upsert(mine, START)
    other = opened(mine, clock=clock)
    waits: list[str] = []

    def concurrent_write() -> None:
        upsert(other, [row("a", "x", 2, 7)])

    def waiting_write() -> None:
        waits.append("held" if heard(mine, "write.queued") else "free")

    result, _ = put_watched(
        mine, WriteOperation.UPSERT, [row("a", "x", 3, 3)], concurrent_write, waiting_write
    )
    assert waits == ["held"]
    assert (result.attempts, clock.steady) == (2, 0)
    assert rows_of(mine, "id", "v") == [("a", 3), ("b", 1)]
    upsert(other, [row("a", "x", 9, 9)])  # the lock is released


@pytest.mark.spec("PUB-11")
def test_a_long_rejected_write_retries_without_the_lock() -> None:
    clock = StillClock()
    mine = new_table(limits=limited(lock_short_ms=500, pause_base_ms=50), clock=clock)
    upsert(mine, START)
    other = opened(mine, clock=clock)

    def slow_concurrent_write() -> None:
        upsert(other, [row("a", "x", 2, 7)])
        clock.sleep_ms(501)

    result = upsert(mine, [row("a", "x", 3, 3)], slow_concurrent_write)
    assert result.attempts == 2
    assert heard(mine, "write.queued") == []


class _Lease:
    fencing_token = 7
    is_shared = False
    owner = "me"
    released = 0

    def __init__(self, *, held: bool) -> None:
        self.held = held

    def remaining_ms(self) -> int | None:
        return None

    def has_time_for_request(self) -> bool:
        return self.held

    def assert_held(self) -> None:
        if not self.held:
            raise LeaseLostError("lost", owner=self.owner)

    def release(self) -> None:
        self.released += 1

    def __enter__(self) -> _Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Lock:
    provider, identity = "scripted", "t"

    def __init__(self, *leases: _Lease) -> None:
        self.leases = list(leases)

    def acquire(self, purpose: str) -> _Lease:
        return self.leases.pop(0)

    def close(self) -> None: ...


def test_a_kept_lock_is_acquired_again_only_if_it_was_lost() -> None:
    first, second = _Lease(held=True), _Lease(held=True)
    table = new_table()
    context = replace(table.context, ports=replace(table.context.ports, lock=_Lock(first, second)))
    with keep_commit_lock(context, "redo") as held:
        assert held.ports.lock.is_fifo, "no writer waits ahead of the holder"
        with held.ports.lock.acquire("publish") as lease:
            assert (lease.fencing_token, lease.owner, lease.remaining_ms()) == (7, "me", None)
            assert lease.has_time_for_request()
        assert first.released == 0
        first.held = False
        assert held.ports.lock.acquire("publish") is second
        held.ports.lock.close()
    assert first.released == 1
    assert BRISK.retry.lock_after_conflicts == 0


class _Beats:
    """An executor whose background work is run by the test."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.beat: Callable[[], None] = lambda: None
        self.stopped = 0

    def every(self, interval_ms: int, work: Callable[[], None]) -> _Beats:
        self.asked.append(interval_ms)
        self.beat = work
        return self

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.spec("PUB-11")
def test_a_retry_that_takes_long_releases_the_lock_but_not_in_the_commit_section() -> None:
    first, second = _Lease(held=True), _Lease(held=True)
    table, beats = new_table(), _Beats()
    ports: Any = replace(table.context.ports, lock=_Lock(first, second), executor=beats)
    with keep_commit_lock(replace(table.context, ports=ports), "redo", ms_max=500) as held:
        with held.ports.lock.acquire("publish"):
            beats.beat()
            assert first.released == 0
        beats.beat()
        first.held = False  # the lease is released
        beats.beat()
        assert first.released == 1
        assert held.ports.lock.acquire("publish") is second
    assert (beats.asked, beats.stopped) == ([500], 1)
    assert len(heard(table, "write.queue_given_back")) == 1


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("PUB-11")
def test_on_a_high_latency_store_a_retry_releases_the_lock_along_with_its_completed_file() -> None:
    """Other writers do not wait for the deletes of markers after the commit."""

    class Watching(Behind):
        def delete_folder(self, path: str) -> None:
            still_held.extend(one.held for one in lease_of_mine[:1])
            self.inner.delete_folder(path)

    class Watched(Behind):
        def acquire(self, purpose: str) -> Any:
            asked.append(purpose)
            lease_of_mine.append(Held(self.inner.acquire(purpose)))
            return lease_of_mine[-1]

    class Held(Behind):
        held = True

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.release()

        def release(self) -> None:
            self.held = False
            self.inner.release()

    still_held: list[bool] = []
    asked: list[str] = []
    lease_of_mine: list[Any] = []
    base, clock = MemoryStorage(), StillClock()
    table = new_table(Far(base), clock=clock)
    upsert(table, START)
    mine = opened(
        table, storage=Far(Watching(base)), limits=limited(lock_short_ms=500), clock=clock
    )
    other = opened(table, clock=clock)

    def concurrent_write() -> None:
        upsert(other, [row("a", "x", 2, 7)])
        lock: Any = Watched(mine.context.ports.lock)
        object.__setattr__(mine.context, "ports", replace(mine.context.ports, lock=lock))

    result = upsert(mine, [row("a", "x", 3, 3)], concurrent_write)
    assert result.attempts == 2
    assert [one for one in asked if one.startswith("write again")] == [
        "write again after 1 conflict"
    ]
    assert still_held[-1] is False
    assert rows_of(mine, "id", "v") == [("a", 3), ("b", 1)]

"""No commit precedes a started write of another engine that has not read yet (FOR-5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader, open_reader
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    StillClock,
    heard,
    leftovers,
    new_table,
    opened,
    rows_of,
    upsert,
    world_of,
)
from tests.unit.timeline.publishing import write_at
from timeline.commit.section import open_commit
from timeline.commit.shared_with_java import SharedWithJava
from timeline.context import TableLimits
from timeline.errors import LockTimeoutError
from timeline.model.file_names import heartbeat_path, timeline_path
from timeline.model.instant_time import WallMs, instant_time
from timeline.properties.setting_enums import ForeignWriters

SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
OLD = [{"id": "a", "p": "x", "ts": 1, "v": 1}]
NEW = [{"id": "a", "p": "x", "ts": 2, "v": 2}]


class ActingClock(StillClock):
    """A clock that runs an action at its n-th sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps = 0
        self.acts: dict[int, Callable[[], object]] = {}

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        self.sleeps += 1
        self.acts.pop(self.sleeps, lambda: None)()


class JavaWriter:
    """Begins a write as Java does: heartbeat, requested file, and the inflight file much later."""

    def __init__(self, table: TableReader, requested_time: str, *, beats: bool = True) -> None:
        self.storage = table.context.ports.storage
        self.requested_time = requested_time
        if beats:
            self.storage.write(heartbeat_path(requested_time), b"")
        self.storage.create(timeline_path(f"{requested_time}.commit.requested"), b"")

    def goes_inflight(self) -> None:
        self.storage.create(timeline_path(f"{self.requested_time}.inflight"), b"")


def table_at(clock: StillClock, limits: TableLimits = SHARED) -> TableReader:
    """Open a table with one row for a second writer, one second after the row was written."""
    table = opened(seeded(clock), limits=limits, clock=clock)
    clock.wall += 1_000
    return table


def seeded(clock: StillClock) -> TableReader:
    table = new_table(clock=clock)
    upsert(table, OLD)
    return table


def below(clock: StillClock) -> str:
    return instant_time(WallMs(clock.wall - 500))


@pytest.mark.spec("FOR-5")
def test_a_commit_waits_until_another_engines_started_write_is_inflight():
    clock = ActingClock()
    table = table_at(clock)
    java = JavaWriter(table, below(clock))
    clock.acts[3] = java.goes_inflight
    upsert(table, NEW)
    assert clock.sleeps == 3
    assert [one["wait_ms"] for one in heard(table, "publish.begin_awaited")] == [20 + 40 + 80]
    assert rows_of(table, "id", "v") == [("a", 2)]


def test_a_writer_waits_for_a_started_write_without_holding_the_lock():
    clock = ActingClock()
    table = table_at(clock)
    java = JavaWriter(table, below(clock))
    free: list[str | None] = []

    def look() -> None:
        free.append(table.context.ports.lock.holder())
        java.goes_inflight()

    clock.acts[1] = look
    upsert(table, NEW)
    assert free == [None]


def test_a_write_that_begins_during_the_wait_is_waited_for_too():
    clock = ActingClock()
    table = table_at(clock)
    first, second = below(clock), instant_time(WallMs(clock.wall - 400))
    java = JavaWriter(table, first)

    def next_one() -> None:
        java.goes_inflight()
        clock.acts[2] = JavaWriter(table, second).goes_inflight

    clock.acts[1] = next_one
    upsert(table, NEW)
    assert clock.sleeps == 2


def test_a_write_that_waited_a_minute_is_rejected_and_leaves_no_files():
    clock = ActingClock()
    table = table_at(clock)
    java = JavaWriter(table, below(clock))
    with pytest.raises(LockTimeoutError, match=java.requested_time) as caught:
        upsert(table, NEW)
    assert caught.value.kind == "foreign_begin"
    assert 60_000 <= clock.steady <= 61_000
    assert rows_of(table, "id", "v") == [("a", 1)]
    assert [path for path in leftovers(table) if java.requested_time not in path] == []


@pytest.mark.parametrize(
    ("limits", "beats", "after_ms"),
    [
        pytest.param(SHARED, False, -500, id="its writer is dead"),
        pytest.param(
            SHARED, True, 60_000, id="it was requested later, and Java will find the conflict"
        ),
        pytest.param(BRISK, True, -500, id="no other engine is expected"),
    ],
)
def test_a_commit_does_not_wait_in_these_cases(limits: TableLimits, beats: bool, after_ms: int):
    clock = ActingClock()
    table = table_at(clock, limits)
    when = instant_time(WallMs(clock.wall + after_ms))
    upsert(table, NEW, lambda: JavaWriter(table, when, beats=beats))
    assert clock.sleeps == 0
    assert rows_of(table, "id", "v") == [("a", 2)]


def commit_of(table: TableReader, requested_time: str) -> SharedWithJava:
    commit = open_commit(table.context, "test", write_at(requested_time))
    assert isinstance(commit, SharedWithJava)
    return commit


def test_a_commit_waits_only_for_writes_with_an_earlier_requested_time():
    clock = ActingClock()
    table = table_at(clock)
    java = JavaWriter(table, below(clock))
    later = instant_time(WallMs(clock.wall - 499))
    found = []
    for time in (java.requested_time, later):
        with commit_of(table, time).section() as section:
            found.append(section.unread)
    assert found == [(), (java.requested_time,)]


def test_the_wait_of_a_commit_ends_a_minute_after_its_first_wait_began():
    clock = ActingClock()
    clock.steady = 1_000
    table = table_at(clock)
    java = JavaWriter(table, below(clock))
    commit = commit_of(table, instant_time(WallMs(clock.wall)))
    second = instant_time(WallMs(clock.wall - 400))

    def almost_a_minute() -> None:
        clock.steady = 1_000 + 59_999
        java.goes_inflight()

    clock.acts[2] = almost_a_minute
    commit.wait_until_read((java.requested_time,))
    assert [one["wait_ms"] for one in heard(table, "publish.begin_awaited")] == [59_999]
    JavaWriter(table, second)

    def the_minute() -> None:
        clock.steady = 1_000 + 60_000

    clock.acts[3] = the_minute
    with pytest.raises(LockTimeoutError, match=second):
        commit.wait_until_read((second,))
    assert clock.sleeps == 3


class Watching(Behind):
    """Records whether the lock is held when a write is requested."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.is_held: Callable[[], bool] = lambda: False
        self.noted: list[bool] = []

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(".commit.requested"):
            self.noted.append(self.is_held())
        self.inner.create(path, data, durable=durable)


@pytest.mark.spec("FOR-1")
@pytest.mark.parametrize(("limits", "held"), [(SHARED, True), (BRISK, False)])
def test_a_write_begins_under_the_lock_where_other_engines_write(limits, held):
    clock = StillClock()
    watching = Watching(table_at(clock, limits).context.ports.storage)
    table = open_reader(world_of(watching, clock=clock), limits)
    watching.is_held = lambda: table.context.ports.lock.holder() is not None
    upsert(table, NEW)
    assert watching.noted == [held]

"""The begin of a write: heartbeat first, a time above all others, no files after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    StillClock,
    files_below,
    heard,
    leftovers,
    new_table,
    opened,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.instant_avro import decode_requested_replace
from timeline.commit.begin import StartedWrite, begin, make_inflight
from timeline.context import GLANCE_MS
from timeline.errors import (
    ClockRefusedError,
    InternalError,
    RolledBackError,
    StorageUnavailableError,
    TableConfigConflictError,
)
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import HEARTBEATS, TIMELINE, timeline_path
from timeline.model.instant import Action, State
from timeline.model.instant_time import WallMs, instant_time
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.system import ThreadExecutor

ROWS = [{"id": "a", "p": "x", "ts": 1, "v": 1}]
NOW = 1_790_000_000_000  # 2026-09-21 14:13:20, divisible by four


def end(started_write: StartedWrite) -> None:
    started_write.heartbeat.stop()


@pytest.mark.spec("BEG-2")
def test_the_heartbeat_is_written_before_the_requested_file():
    storage = RecordingStorage(MemoryStorage())
    table = new_table(storage)
    storage.forget()
    started_write = begin(table.context, Action.COMMIT)
    time = started_write.requested_time
    changes = [
        text for text in storage.operations() if text.startswith(("write", "create", "delete"))
    ]
    end(started_write)
    assert changes == [
        f"write {HEARTBEATS}/{time}",
        f"create {TIMELINE}/{time}.commit.requested",
    ]


class AtOnce(ThreadExecutor):
    """Records concurrent calls, and runs them in the opposite order."""

    def __init__(self, storage: RecordingStorage) -> None:
        super().__init__(1)
        self.storage = storage
        self.together: list[set[str]] = []

    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        before = len(self.storage.calls)
        answers = [call() for call in reversed(calls)][::-1]
        self.together.append(set(self.storage.operations()[before:]))
        return answers


@pytest.mark.spec("BEG-2")
@pytest.mark.spec("PAR-1")
@pytest.mark.parametrize("foreign", [ForeignWriters.NONE, ForeignWriters.EXPECTED])
def test_a_high_latency_store_creates_heartbeat_and_requested_file_together_without_java_writers(
    foreign: ForeignWriters,
):
    storage = RecordingStorage(Far(MemoryStorage()))
    table = new_table(storage, limits=replace(BRISK, foreign_writers=foreign))
    executor = AtOnce(storage)
    context = replace(table.context, ports=replace(table.context.ports, executor=executor))
    storage.forget()
    started_write = begin(context, Action.COMMIT)
    end(started_write)
    beat = f"write {HEARTBEATS}/{started_write.requested_time}"
    shown = f"create {TIMELINE}/{started_write.requested_time}.commit.requested"
    assert ({beat, shown} in executor.together) == (foreign is ForeignWriters.NONE)
    if foreign is ForeignWriters.EXPECTED:
        assert storage.operations().index(beat) < storage.operations().index(shown)


@pytest.mark.spec("BEG-2")
def test_a_failed_first_heartbeat_leaves_no_pending_instant():
    class NoBeats(Behind):
        def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
            if path.startswith(HEARTBEATS):
                raise StorageUnavailableError("gone")
            self.inner.write(path, data, durable=durable)

    base = MemoryStorage()
    table = opened(new_table(Far(base)), storage=Far(NoBeats(base)))
    executor = AtOnce(RecordingStorage(base))  # the requested file is created first
    context = replace(table.context, ports=replace(table.context.ports, executor=executor))
    with pytest.raises(StorageUnavailableError):
        begin(context, Action.COMMIT)
    assert context.active().pending == ()


class SyncsWhenWaitedFor(RecordingStorage):
    def sync_soon(self, folders: Iterable[str]) -> Callable[[], None]:
        wanted = tuple(folders)
        return lambda: self.sync_folders(wanted)


@pytest.mark.spec("BEG-6")
def test_the_requested_file_is_durable_before_the_first_data_file_is_created():
    """LOC-2: after a power cut no data file may exist without its instant."""
    storage = SyncsWhenWaitedFor(MemoryStorage())
    table = new_table(storage)
    storage.forget()
    upsert(table, ROWS)
    calls = storage.operations()
    requested = next(i for i, call in enumerate(calls) if call.endswith(".commit.requested"))
    data = next(i for i, call in enumerate(calls) if call.startswith("open_output"))
    assert requested < calls.index(f"sync_folders {TIMELINE}") < data


def test_a_commit_has_an_empty_requested_file_and_a_replacecommit_a_plan_in_it():
    table = new_table()
    storage = table.context.ports.storage
    commit, replace = (
        begin(table.context, Action.COMMIT),
        begin(table.context, Action.REPLACECOMMIT),
    )
    path = timeline_path(replace.file_name(State.REQUESTED))
    assert storage.read(timeline_path(commit.file_name(State.REQUESTED))) == b""
    assert decode_requested_replace(storage.read(path), path=path).clustering_plan is None
    assert (int(commit.requested_time) % 4, int(replace.requested_time) % 4) == (0, 2)
    end(commit)
    end(replace)


def test_two_begins_in_one_millisecond_draw_different_times():
    table = new_table(clock=StillClock(NOW))
    first, second = begin(table.context, Action.COMMIT), begin(table.context, Action.COMMIT)
    assert first.requested_time == "20260921141320000"
    assert second.requested_time == "20260921141320004"
    end(first)
    end(second)


@pytest.mark.spec("BEG-4")
def test_the_base_snapshot_contains_earlier_commits():
    table = new_table()
    result = upsert(table, ROWS)
    started_write = begin(table.context, Action.COMMIT)
    end(started_write)
    assert result.requested_time in started_write.snapshot.completions
    assert started_write.snapshot.head == 1
    assert started_write.requested_time > result.completion_time


class PublishingWhileBegun(Behind):
    """Lets another writer commit right before the requested file appears."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.acts: list = []

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(".commit.requested") and self.acts:
            self.acts.pop(0)()
        self.inner.create(path, data, durable=durable)


@pytest.mark.spec("BEG-5")
def test_a_requested_time_below_a_concurrent_commit_is_drawn_again():
    base = MemoryStorage()
    storage = PublishingWhileBegun(base)
    ahead = new_table(base, clock=StillClock(NOW + 5_000))
    table = opened(ahead, storage=storage, clock=StillClock(NOW))
    storage.acts.append(lambda: upsert(ahead, ROWS))
    started_write = begin(table.context, Action.COMMIT)
    end(started_write)
    committed = ahead.context.active().completed_writes[0].newest_time
    assert started_write.requested_time > committed
    [redrawn] = heard(table, "begin.redrawn")
    assert redrawn == {"rt": "20260921141320000", "decided": committed}
    assert files_below(base, TIMELINE)[-1].endswith(
        f"{started_write.requested_time}.commit.requested"
    )
    assert [str(i) for i in table.context.active().pending] == [
        f"{started_write.requested_time}.commit (requested)"
    ]


@pytest.mark.spec("TL-SUCC-1")
@pytest.mark.parametrize(("took_ms", "ahead_ms"), [(180, 180), (500, 500), (900, 500)])
def test_on_a_high_latency_store_the_second_time_is_drawn_ahead_by_the_duration_of_the_first_attempt(
    took_ms: int, ahead_ms: int
) -> None:
    base = MemoryStorage()
    clock = StillClock(NOW)
    storage = PublishingWhileBegun(base)
    other = new_table(base, clock=clock)
    table = opened(other, storage=Far(storage), clock=clock)

    def overtake() -> None:
        clock.sleep_ms(took_ms)
        upsert(other, ROWS)

    storage.acts.append(overtake)
    started_write = begin(table.context, Action.COMMIT)
    end(started_write)
    earliest = NOW + took_ms + ahead_ms
    assert instant_time(WallMs(earliest)) < started_write.requested_time
    assert started_write.requested_time <= instant_time(WallMs(earliest + 32))


@pytest.mark.spec("TL-SUCC-1")
@pytest.mark.parametrize(("others", "ahead_ms"), [(3, 180), (0, 0)])
def test_on_a_high_latency_store_the_first_time_is_drawn_ahead_while_other_writers_commit(
    others: int, ahead_ms: int
) -> None:
    clock = StillClock(NOW)
    other = new_table(clock=clock)
    table = opened(other, storage=Far(other.context.ports.storage), clock=clock)
    upsert(other, ROWS)
    table.context.refresh()
    for _ in range(others):
        upsert(other, ROWS)
    table.context.refresh()
    table.context.drawn_times.took_ms = 180
    clock.sleep_ms(1_000)
    started_write = begin(table.context, Action.COMMIT)
    end(started_write)
    earliest = NOW + 1_000 + ahead_ms
    assert instant_time(WallMs(earliest)) <= started_write.requested_time
    assert started_write.requested_time <= instant_time(WallMs(earliest + 32))


@pytest.mark.spec("BEG-5")
@pytest.mark.parametrize(
    ("lock", "redrawn"),
    [(CommitLockMode.LOCK, 3), (CommitLockMode.AUTO, 12), (CommitLockMode.NONE, 12)],
)
def test_a_begin_takes_the_commit_lock_after_three_lost_times_and_later_without_a_mandatory_lock(
    lock: CommitLockMode, redrawn: int
) -> None:
    base = MemoryStorage()
    storage = PublishingWhileBegun(base)
    clock = StillClock(NOW)
    ahead = new_table(base, clock=clock)
    limits = replace(BRISK, publish_lock=lock)
    table = opened(ahead, storage=storage, clock=StillClock(NOW), limits=limits)

    def publish_ahead() -> None:
        clock.wall += 5_000
        upsert(ahead, [{**ROWS[0], "ts": clock.wall}])

    storage.acts = [publish_ahead] * redrawn
    started_write = begin(table.context, Action.COMMIT)
    end(started_write)
    assert len(heard(table, "begin.redrawn")) == redrawn
    locked = heard(table, "lock.acquired")
    assert [one["purpose"] for one in locked] == ["begin"]
    assert len(table.context.active().pending) == 1


@pytest.mark.spec("BEG-5")
def test_the_refresh_after_a_lost_time_serves_the_next_attempt() -> None:
    base = MemoryStorage()
    ahead = new_table(base, clock=StillClock(NOW + 5_000))
    storage = PublishingWhileBegun(base)
    observed = RecordingStorage(storage)
    table = opened(ahead, storage=observed, clock=StillClock(NOW))
    storage.acts.append(lambda: upsert(ahead, ROWS))
    observed.forget()
    end(begin(table.context, Action.COMMIT))
    assert observed.operations().count(f"names {TIMELINE}") == 3  # before and after each attempt


@pytest.mark.spec("BEG-3")
def test_a_pending_restore_prevents_a_begin():
    table = new_table()
    table.context.ports.storage.create(timeline_path("20260101000000000.restore.inflight"), b"")
    with pytest.raises(TableConfigConflictError) as caught:
        begin(table.context, Action.COMMIT)
    assert caught.value.kind == "restore_pending"
    assert files_below(table.context.ports.storage, HEARTBEATS) == []


def test_a_clock_far_behind_the_timeline_is_refused():
    base = MemoryStorage()
    ahead = new_table(base, clock=StillClock(NOW + 700_000))
    upsert(ahead, ROWS)
    late = opened(ahead, clock=StillClock(NOW))
    with pytest.raises(ClockRefusedError):
        begin(late.context, Action.COMMIT)
    assert leftovers(late) == []


class Failing(Behind):
    """Raises for creates of one kind of path."""

    def __init__(self, inner: MemoryStorage, ending: str, error: Exception, times: int) -> None:
        super().__init__(inner)
        self.ending, self.error, self.times = ending, error, times

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(self.ending) and self.times:
            self.times -= 1
            raise self.error
        self.inner.create(path, data, durable=durable)


@pytest.mark.spec("TL-REQ-2")
def test_a_time_whose_create_was_not_answered_is_not_used():
    base = MemoryStorage()
    clock = StillClock(NOW)
    storage = Failing(base, ".requested", AmbiguousWriteError("lost"), 1)
    table = opened(new_table(base, clock=clock), storage=storage, clock=clock)
    started_write = begin(table.context, Action.COMMIT)
    end(started_write)
    assert started_write.requested_time == "20260921141320004"


@pytest.mark.spec("TL-REQ-1")
def test_an_existing_instant_name_is_not_taken_over():
    base = MemoryStorage()
    clock = StillClock(NOW)
    taken = instant_time(WallMs(NOW))

    class Taken(Behind):
        def names(self, folder: str):
            hidden = f"{taken}.commit.requested"
            return [name for name in self.inner.names(folder) if name != hidden]

    table = opened(new_table(base, clock=clock), storage=Taken(base), clock=clock)
    base.create(timeline_path(f"{taken}.commit.requested"), b"theirs")
    started_write = begin(table.context, Action.COMMIT)
    end(started_write)
    assert started_write.requested_time == "20260921141320004"
    assert base.read(timeline_path(f"{taken}.commit.requested")) == b"theirs"


@pytest.mark.spec("TL-REQ-2")
def test_no_heartbeat_remains_for_a_time_that_an_old_snapshot_drew_for_a_completed_write():
    """The clock does not advance, so an old snapshot draws the time of a later commit."""
    clock = StillClock(NOW)
    table = new_table(clock=clock)
    other = opened(table, clock=clock)
    old = other.context.snapshot()
    result = upsert(table, ROWS)
    started_write = begin(other.context, Action.COMMIT, old)
    storage = table.context.ports.storage
    assert result.requested_time == instant_time(WallMs(NOW))
    assert files_below(storage, HEARTBEATS) == [f"{HEARTBEATS}/{started_write.requested_time}"]
    end(started_write)
    assert files_below(storage, HEARTBEATS) == []


@pytest.mark.spec("TL-REQ-2")
def test_the_heartbeat_of_a_pending_write_remains_when_another_writer_draws_its_time():
    clock = StillClock(NOW)
    table = new_table(clock=clock)
    other = opened(table, clock=clock)
    old = other.context.snapshot()
    first = begin(table.context, Action.COMMIT)
    second = begin(other.context, Action.COMMIT, old)
    storage = table.context.ports.storage
    beats = [f"{HEARTBEATS}/{started_write.requested_time}" for started_write in (first, second)]
    assert len(set(beats)) == 2
    assert files_below(storage, HEARTBEATS) == beats
    end(first)
    end(second)
    assert files_below(storage, HEARTBEATS) == []


def test_an_unavailable_storage_ends_the_begin():
    base = MemoryStorage()
    storage = Failing(base, ".requested", StorageUnavailableError("gone"), 1)
    table = opened(new_table(base), storage=storage)
    with pytest.raises(StorageUnavailableError):
        begin(table.context, Action.COMMIT)
    assert table.context.active().pending == ()


def test_a_begin_fails_when_every_drawn_time_is_taken():
    base = MemoryStorage()
    storage = Failing(base, ".requested", AmbiguousWriteError("lost"), 1_000)
    table = opened(new_table(base), storage=storage)
    with pytest.raises(InternalError):
        begin(table.context, Action.COMMIT)


@pytest.mark.spec("UNK-5")
def test_the_inflight_file_may_be_repeated_but_not_taken_over():
    table = new_table()
    started_write = begin(table.context, Action.COMMIT)
    make_inflight(table.context, started_write, CommitMetadata(operation_type="UPSERT"))
    make_inflight(table.context, started_write, CommitMetadata(operation_type="UPSERT"))
    with pytest.raises(RolledBackError):
        make_inflight(table.context, started_write, CommitMetadata(operation_type="INSERT"))
    end(started_write)


@pytest.mark.spec("PUB-6")
def test_an_inflight_file_that_was_sent_twice_and_rolled_back_ends_the_attempt():
    """The request arrived twice, and the first file was rolled back before the check."""

    class Twice(Behind):
        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if path.endswith(".inflight"):
                raise ObjectExistsError(path)
            self.inner.create(path, data, durable=durable)

    base = MemoryStorage()
    table = opened(new_table(base), storage=Twice(base))
    started_write = begin(table.context, Action.COMMIT)
    with pytest.raises(RolledBackError):
        make_inflight(table.context, started_write, CommitMetadata())
    end(started_write)


def test_an_unanswered_inflight_file_ends_the_attempt():
    base = MemoryStorage()
    storage = Failing(base, ".inflight", AmbiguousWriteError("lost"), 1)
    table = opened(new_table(base), storage=storage)
    started_write = begin(table.context, Action.COMMIT)
    with pytest.raises(StorageUnavailableError):
        make_inflight(table.context, started_write, CommitMetadata())
    end(started_write)


def test_a_stale_snapshot_costs_a_second_draw_and_keeps_the_order_of_times():
    table = new_table(clock=StillClock(NOW))
    context = table.context
    old = context.snapshot()
    committed = upsert(table, ROWS)
    started_write = begin(context, Action.COMMIT, old)
    end(started_write)
    assert started_write.requested_time > committed.completion_time
    assert committed.requested_time in started_write.snapshot.completions


def test_a_fresh_snapshot_saves_one_listing():
    storage = RecordingStorage(MemoryStorage())
    table = new_table(storage)
    snapshot = table.context.snapshot()
    storage.forget()
    end(begin(table.context, Action.COMMIT, snapshot))
    assert storage.operations().count(f"names {TIMELINE}") == 1


def test_an_old_cached_snapshot_is_refreshed():
    clock = StillClock(NOW)
    table = new_table(clock=clock)
    upsert(table, ROWS)
    other = opened(table, clock=clock)
    theirs = upsert(other, ROWS)
    assert theirs.requested_time not in table.context.cached_snapshot().completions
    clock.steady += GLANCE_MS + 1
    assert theirs.requested_time in table.context.cached_snapshot().completions


def test_a_cached_snapshot_contains_the_commits_of_its_own_process():
    table = new_table(clock=StillClock(NOW))
    mine = upsert(table, ROWS)
    glance = table.context.cached_snapshot()
    assert glance.completions == {mine.requested_time: mine.completion_time}
    assert glance.head == 1


def test_a_column_that_another_writer_added_after_the_cached_snapshot_is_kept():
    clock = StillClock(NOW)
    table = new_table(clock=clock)
    upsert(table, ROWS)
    other = opened(table, clock=clock)
    upsert(other, [{**ROWS[0], "added": 7}])
    assert "added" not in (table.context.cached_snapshot().newest_schema_json or "")
    upsert(table, ROWS)
    assert "added" in opened(table).schema.names

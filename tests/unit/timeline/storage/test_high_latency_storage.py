"""A high-latency storage: which requests run concurrently, and which are not repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from obstore.store import MemoryStore

from filegroups.table import TableReader
from tests.unit.timeline.engine import BRISK, Behind, Far, StillClock, new_table, opened, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import commit_in_section
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.commit_lock import CommitSection
from timeline.commit.section import protocol_of
from timeline.commit_log import CommitLog
from timeline.context import GLANCE_MS, TableContext
from timeline.model.file_names import TIMELINE, slot_path
from timeline.model.instant import Action, State
from timeline.model.instant_time import Residue
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import LockSharing, ObjectMissingError, open_cached
from timeline.properties.setting_enums import ForeignWriters
from timeline.storage.data_files import FileCache
from timeline.storage.object_address import parse_object_address
from timeline.storage.object_store import ObjectStorage
from timeline.system import SystemIds, ThreadExecutor

NOW = 1_790_000_000_000
ROWS = [{"id": "a", "p": "x", "ts": 1, "v": 1}]


class Backwards(ThreadExecutor):
    """Runs concurrent calls in the opposite order, and counts them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.together: list[int] = []
        self.repeated: Callable[[], None] = lambda: None

    def every(self, interval_ms: int, work: Callable[[], None]) -> Any:
        self.repeated = work
        return super().every(interval_ms, work)

    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        self.together.append(len(calls))
        return [call() for call in reversed(calls)][::-1]


def far_table(clock: Any = None) -> TableReader:
    return new_table(RecordingStorage(Far(MemoryStorage())), clock=clock)


def backwards(table: TableReader) -> tuple[TableContext, Backwards]:
    executor = Backwards()
    ports = replace(table.context.ports, executor=executor)
    context = replace(
        table.context, ports=ports, commit_log=CommitLog(ports, table.context.table_id)
    )
    return context, executor


def test_the_refreshed_timeline_contains_only_commits_up_to_the_head() -> None:
    table = far_table()
    context, _ = backwards(table)
    assert context.refresh()[0] == 0
    for expected in (1, 2):
        upsert(opened(table), ROWS)
        head, active = context.refresh()
        assert head == expected
        assert len(active.completed_writes) == expected


def test_the_commit_log_reads_ahead_as_many_slots_as_came_last_time() -> None:
    table = far_table()
    context, executor = backwards(table)
    other = opened(table)
    upsert(other, ROWS)
    context.refresh()
    assert not context.commit_log.is_contended
    for _ in range(3):
        upsert(other, ROWS)
    context.refresh()
    assert context.commit_log.is_contended
    for at_once in (4, 2):  # half as many after a read without new slots
        executor.together.clear()
        assert context.commit_log.head() == 4
        assert executor.together == [at_once]
    assert not context.commit_log.is_contended


class CommitsWhileListed(Behind):
    """Lets another writer commit after each listing of the timeline."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.act: Callable[[], object] | None = None
        self.listings = 0

    def names(self, folder: str) -> list[str]:
        found = self.inner.names(folder)
        if folder == TIMELINE and self.act is not None:
            self.listings += 1
            if self.listings < 4:
                self.act()
        return list(found)


@pytest.mark.spec("BEG-4")
def test_a_refresh_does_not_wait_until_no_writer_commits() -> None:
    base = Far(MemoryStorage())
    storage = CommitsWhileListed(base)
    table = new_table(base)
    other = opened(table)
    upsert(other, ROWS)
    context, _ = backwards(opened(table, storage=Far(storage)))
    context.refresh()
    storage.act = lambda: upsert(other, ROWS)
    storage.listings = 0
    head, active = context.refresh()
    assert (head, storage.listings) == (2, 2)
    assert len(active.completed_writes) == 2
    storage.listings = 0
    head, active, _ = context.refresh_with(lambda: None)
    assert (head, storage.listings) == (4, 2)
    assert len(active.completed_writes) == 4


def test_a_gap_ends_the_head_although_a_later_slot_exists() -> None:
    table = far_table()
    context, _ = backwards(table)
    other = opened(table)
    for expected in (1, 3):  # the next read requests three slots at once
        while other.context.commit_log.head() < expected:
            upsert(other, ROWS)
        assert context.commit_log.head() == expected
    for _ in range(3):
        upsert(other, ROWS)
    context.ports.storage.delete(slot_path(4))
    assert context.commit_log.head() == 3


def test_a_local_storage_is_read_in_order_on_the_calling_thread() -> None:
    table = new_table()
    threads: list[int] = []
    table.context.ports.concurrently(*[lambda: threads.append(threading.get_ident())] * 3)
    assert threads == [threading.get_ident()] * 3


def test_waiting_calls_run_concurrently() -> None:
    meeting = threading.Barrier(5, timeout=60)
    with ThreadExecutor(1) as executor:
        assert sorted(executor.concurrently([meeting.wait] * 5)) == [0, 1, 2, 3, 4]


def test_the_first_failure_is_raised_when_all_have_ended() -> None:
    ended: list[str] = []

    def fail() -> None:
        raise ObjectMissingError("x")

    with ThreadExecutor(1) as executor, pytest.raises(ObjectMissingError):
        executor.concurrently([lambda: ended.append("first"), fail])
    assert ended in ([], ["first"])


@pytest.mark.parametrize(
    ("took_ms", "cached_snapshot_age_ms"), [(0, 100), (60, 1_800), (900, 2_000)]
)
def test_a_cached_snapshot_may_be_as_old_as_thirty_refreshes_take(
    took_ms: int, cached_snapshot_age_ms: int
) -> None:
    near, far = new_table(clock=StillClock(NOW)), far_table(StillClock(NOW))
    for table in (near, far):
        table.context.last_refresh.took_ms = took_ms
    assert (near.context.cached_snapshot_age_ms, far.context.cached_snapshot_age_ms) == (
        GLANCE_MS,
        cached_snapshot_age_ms,
    )


@pytest.mark.parametrize(("read", "rounds"), [(1, [8]), (9, [8, 8]), (20, [8, 8, 4])])
def test_the_commit_log_is_read_ahead_from_its_newest_slot(read: int, rounds: list[int]) -> None:
    table = far_table()
    for _ in range(20):
        upsert(table, ROWS)
    context, executor = backwards(table)
    numbers = (slot.number for slot in context.commit_log.newest_first(20))
    assert [next(numbers) for _ in range(read)] == list(range(20, 20 - read, -1))
    assert executor.together == rounds


# ---------------------------------------------------------------- the wait for the lock


class WatchedLock:
    """A lock without other holders; actions run while a client waits and when it releases."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.waiting: list[Callable[[], object]] = []
        self.released: list[Callable[[], object]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def acquire(self, purpose: str) -> Any:
        while self.waiting:
            self.waiting.pop(0)()
        return _Watched(self.inner.acquire(purpose), self.released)

    def acquire_while(
        self, _wanted: Callable[[], bool], purpose: str, sharing: LockSharing = LockSharing.NO
    ) -> Any:
        return self.acquire(purpose)


class _Watched:
    def __init__(self, lease: Any, released: list[Callable[[], object]]) -> None:
        self.lease, self.released = lease, released

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lease, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self.lease.release()
        while self.released:
            self.released.pop(0)()


def behind_watched_lock(
    table: TableReader, clock: Any = None
) -> tuple[TableReader, WatchedLock, Backwards]:
    """Open the table again, for a writer with a recorded lock."""
    mine = opened(table, clock=clock)
    context, executor = backwards(mine)
    queue = WatchedLock(context.ports.lock)
    object.__setattr__(mine.context, "ports", replace(context.ports, lock=queue))
    object.__setattr__(mine.context, "commit_log", CommitLog(mine.context.ports, context.table_id))
    return mine, queue, executor


@pytest.mark.spec("PAR-1")
def test_a_writer_that_waits_for_the_lock_reads_new_commits_before_it_gets_the_lock() -> None:
    clock = StillClock(NOW)  # no wait takes time on this clock
    table = far_table(clock)
    storage: Any = table.context.ports.storage
    upsert(table, ROWS)
    mine, queue, executor = behind_watched_lock(table, clock)

    def others_publish() -> None:
        for _ in range(3):
            upsert(table, [{**ROWS[0], "p": "elsewhere"}])
        executor.repeated()  # the background refresh is due
        read.append(len(storage.calls))

    read: list[int] = []
    queue.waiting.append(others_publish)
    assert upsert(mine, ROWS).lost_slots == 0, "the state read during the wait is too old"
    [section] = read
    asked = {
        call.path[-1]
        for call in storage.calls[section:]
        if call.operation == "read" and "/slots/" in call.path
    }
    assert min(asked) == "5", "only whether there are more than four"
    assert mine.context.commit_log.head() == 5


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("HELP-1")
def test_the_lock_is_released_while_the_completed_file_is_created_and_the_next_writer_helps() -> (
    None
):
    table = far_table()
    upsert(table, ROWS)
    mine, queue, _ = behind_watched_lock(table)
    shown: list[int] = []

    def next_one() -> None:
        shown.append(len(table.context.active().completed_writes))
        upsert(table, [{**ROWS[0], "id": "b", "p": "elsewhere"}])
        shown.append(len(table.context.active().completed_writes))

    queue.released.append(next_one)  # the lock is released before the completed file is created
    upsert(mine, ROWS)
    assert shown == [1, 3], "only the slot first, then both commits"
    head, active = opened(table).context.refresh()
    assert (head, len(active.completed_writes)) == (3, 3)
    times = [one.completion_time for one in active.completed_writes]
    assert times == sorted(times, key=str)


@pytest.mark.spec("PAR-1")
@pytest.mark.parametrize("shared", [False, True])
def test_in_mode_shared_a_plan_is_visible_before_the_lock_is_released(shared: bool) -> None:
    """Java helps no writer, so it must see the plan before it begins a write."""
    table = far_table()
    upsert(table, ROWS)
    mine, queue, _ = behind_watched_lock(table)
    expected = ForeignWriters.EXPECTED if shared else ForeignWriters.NONE
    context = replace(mine.context, limits=replace(mine.context.limits, foreign_writers=expected))
    shown: list[bool] = []

    def plan(section: CommitSection) -> Slot:
        time = section.draw_time(context, Residue.SLOT_REQUESTED)
        return section.next_slot(context, SlotKind.PLAN, Action.COMPACTION, time, nonce="n")

    queue.released.append(lambda: shown.append(bool(table.context.active().pending)))
    commit_in_section(context, "plan", plan)
    assert shown == [shared]
    assert len(table.context.active().pending) == 1


# ---------------------------------------------------------------- cached files


def object_storage() -> ObjectStorage:
    store = MemoryStore()
    place = parse_object_address("s3://lake/t")
    return ObjectStorage(place, ids=SystemIds(), clients=(store, store, store))


def delete_externally(storage: ObjectStorage, path: str) -> None:
    """Delete an object without using this process's storage."""
    import obstore

    obstore.delete(storage._plain, f"t/{path}")


def test_files_that_this_process_wrote_or_read_twice_are_cached() -> None:
    storage = object_storage()
    with storage.open_output("p/mine") as file:
        file.write(b"mine")
    storage.create("p/read", b"read")
    for name in ("mine", "read"):
        with open_cached(storage, f"p/{name}") as cached:
            assert cached.read() == name.encode()
        delete_externally(storage, f"p/{name}")
        with open_cached(storage, f"p/{name}") as cached:
            assert cached.read() == name.encode()
        with pytest.raises(ObjectMissingError):  # a check for existence requests the store
            storage.open_input(f"p/{name}")


def test_a_file_that_was_deleted_here_is_forgotten() -> None:
    storage = object_storage()
    with storage.open_output("p/x") as file:
        file.write(b"mine")
    storage.delete("p/x")
    with pytest.raises(ObjectMissingError):
        open_cached(storage, "p/x")


def test_the_longest_unused_files_are_forgotten_first_and_big_ones_are_never_kept() -> None:
    cache = FileCache(bytes_max=10)
    cache.add("a", b"12345")
    cache.add("b", b"12345")
    assert cache.find("a") == b"12345"
    cache.add("c", b"1")
    assert (cache.find("a"), cache.find("b"), cache.find("c")) == (b"12345", None, b"1")
    cache.add("a", b"1234")
    cache.add("d", b"12345")
    assert (cache.find("a"), cache.find("c"), cache.find("d")) == (b"1234", b"1", b"12345")
    roomy = FileCache()
    roomy.add("big", bytes((1 << 20) + 1))
    roomy.add("fits", bytes(1 << 20))
    assert (roomy.find("big"), len(roomy.find("fits") or b"")) == (None, 1 << 20)


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("HELP-1")
@pytest.mark.parametrize(
    ("far", "foreign", "listings"),
    [
        (True, ForeignWriters.NONE, 1),
        (
            True,
            ForeignWriters.EXPECTED,
            2,
        ),  # another engine's commit may have been added and removed
        (False, ForeignWriters.NONE, 2),
    ],
)
def test_on_a_high_latency_store_a_helped_commit_is_added_without_a_listing(
    far: bool, foreign: ForeignWriters, listings: int
) -> None:
    base = MemoryStorage()
    table = new_table(Far(base) if far else base)
    upsert(table, ROWS)
    [shown] = [name for name in base.names(TIMELINE) if name.endswith(".commit")]
    storage = RecordingStorage(Far(base) if far else base)
    mine = opened(table, storage=storage, limits=replace(BRISK, foreign_writers=foreign))
    mine.context.commit_log.head()
    base.delete(f"{TIMELINE}/{shown}")  # as if its owner had not created it yet
    storage.forget()
    section = protocol_of(mine.context).refresh(None)
    assert shown in base.names(TIMELINE)
    assert shown in section.timeline.file_names
    assert [one.state for one in section.timeline.instants] == [State.COMPLETED]
    assert storage.operations().count(f"names {TIMELINE}") == listings

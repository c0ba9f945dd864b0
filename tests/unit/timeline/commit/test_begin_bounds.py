"""A begin concurrent with other writers, or on a storage that fails in the middle (BEG-*)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.restoring.restore import restore
from tests.unit.timeline.engine import (
    Behind,
    StillClock,
    files_below,
    heard,
    leftovers,
    new_table,
    opened,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.begin import begin, make_inflight
from timeline.context import TableContext
from timeline.errors import IllegalTransitionError, StorageUnavailableError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import HEARTBEATS, TIMELINE, slot_path
from timeline.model.instant import Action
from timeline.model.instant_time import WallMs, instant_time
from timeline.ports.ports import AmbiguousWriteError
from timeline.rollback.rollback import rollback
from timeline.system import ThreadExecutor

NOW = 1_790_000_000_000
KEPT_ALWAYS = 900  # of a thousand slots: many more than a begin caches
ROWS = [{"id": "a", "p": "x", "ts": 1, "v": 1}]


class Beats(ThreadExecutor):
    """An executor that counts its background work."""

    def __init__(self) -> None:
        super().__init__(1)
        self.running = 0

    def every(self, interval_ms: int, work: Callable[[], None]) -> Any:
        self.running += 1
        return self

    def stop(self) -> None:
        self.running -= 1


class Meddled(Behind):
    """Runs an action before or after a requested file is created; deletes may fail."""

    before: Callable[[], object] = staticmethod(lambda: None)
    after: Callable[[], object] = staticmethod(lambda: None)
    keeps = ""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        is_begin = path.endswith(".commit.requested")
        if is_begin:
            before, self.before = self.before, lambda: None
            before()
        self.inner.create(path, data, durable=durable)
        if is_begin:
            after, self.after = self.after, lambda: None
            after()

    def delete(self, path: str) -> None:
        if self.keeps and path.startswith(self.keeps):
            raise StorageUnavailableError("gone", path=path)
        self.inner.delete(path)


class Scene:
    """A writer with a faulty storage, and another writer whose clock is ahead."""

    def __init__(self) -> None:
        self.base = MemoryStorage()
        self.storage, self.beats = Meddled(self.base), Beats()
        self.other = new_table(self.base, clock=StillClock(NOW + 5_000))
        mine = opened(self.other, storage=self.storage, clock=StillClock(NOW))
        ports = replace(mine.context.ports, executor=self.beats)
        self.mine: TableContext = replace(mine.context, ports=ports)

    def others_commit(self) -> None:
        upsert(self.other, ROWS)

    def requested(self) -> list[str]:
        return [path for path in files_below(self.base, TIMELINE) if path.endswith(".requested")]


def fail(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def fail_once(error: Exception, then: Callable[[str], Any]) -> Callable[[str], Any]:
    errors = [error]

    def act(folder: str) -> Any:
        if errors:
            raise errors.pop()
        return then(folder)

    return act


@pytest.mark.spec("TL-REQ-2")
def test_a_time_of_unknown_owner_gets_no_more_heartbeats_and_keeps_its_last_one() -> None:
    scene = Scene()
    scene.storage.after = fail(AmbiguousWriteError("lost"))
    started_write = begin(scene.mine, Action.COMMIT)
    assert scene.beats.running == 1, "the heartbeat of the next drawn time"
    assert len(scene.requested()) == 2
    assert len(files_below(scene.base, HEARTBEATS)) == 2, (
        "a rollback waits until the heartbeat expires"
    )
    started_write.heartbeat.stop()
    assert scene.beats.running == 0


@pytest.mark.parametrize("deletes_fail", [False, True])
def test_a_storage_that_fails_after_the_requested_file_ends_the_begin(deletes_fail: bool) -> None:
    scene = Scene()
    scene.storage.keeps = TIMELINE if deletes_fail else ""
    scene.storage.after = fail(StorageUnavailableError("gone"))
    with pytest.raises(StorageUnavailableError):
        begin(scene.mine, Action.COMMIT)
    assert scene.beats.running == 0


def test_a_failed_second_refresh_leaves_no_files_of_the_begin() -> None:
    scene = Scene()
    before = scene.mine.snapshot()
    scene.storage.names = fail_once(StorageUnavailableError("gone"), scene.base.names)
    with pytest.raises(StorageUnavailableError):
        begin(scene.mine, Action.COMMIT, before)
    assert scene.beats.running == 0
    assert files_below(scene.base, HEARTBEATS) == scene.requested() == []
    assert scene.mine.low_water_mark.floor(1_000) > KEPT_ALWAYS, "its slots are not pinned"


@pytest.mark.spec("TL-SUCC-1")
def test_times_are_drawn_above_another_engines_instants_without_slots() -> None:
    scene = Scene()
    ahead = instant_time(WallMs(NOW + 700)), instant_time(WallMs(NOW + 800))
    scene.base.create(f"{TIMELINE}/{ahead[0]}_{ahead[1]}.commit", b"")
    started_write = begin(scene.mine, Action.COMMIT)
    started_write.heartbeat.stop()
    assert started_write.requested_time > ahead[1]
    assert heard(scene.mine, "begin.redrawn") == []


@pytest.mark.spec("TL-REQ-1")
def test_two_begins_from_one_old_snapshot_create_different_names() -> None:
    scene = Scene()
    storage = RecordingStorage(scene.base)
    mine = opened(scene.other, storage=storage, clock=StillClock(NOW)).context
    before = mine.snapshot()
    storage.forget()
    started_write = [begin(mine, Action.COMMIT, before) for _ in range(2)]
    for one in started_write:
        one.heartbeat.stop()
    assert len([one for one in storage.operations() if one.startswith("create")]) == 2


@pytest.mark.spec("BEG-5")
def test_a_time_is_drawn_again_when_slots_were_truncated_after_the_snapshot() -> None:
    scene = Scene()
    scene.others_commit()
    upsert(scene.other, [{**ROWS[0], "ts": 2}])
    mine = opened(scene.other, clock=StillClock(NOW + 9_000)).context
    before = replace(mine.snapshot(), head=0)
    scene.base.delete(slot_path(1))
    started_write = begin(mine, Action.COMMIT, before)
    started_write.heartbeat.stop()
    [redrawn] = heard(mine, "begin.redrawn")
    assert redrawn["rt"] == redrawn["decided"] < started_write.requested_time


@pytest.mark.spec("BEG-5")
@pytest.mark.parametrize("keeps", [TIMELINE, ""])
def test_a_begin_whose_time_cannot_be_deleted_fails_and_stops_its_heartbeat(keeps: str) -> None:
    scene = Scene()
    scene.storage.before, scene.storage.keeps = scene.others_commit, keeps
    if not keeps:
        started_write = begin(scene.mine, Action.COMMIT)
        started_write.heartbeat.stop()
        scene.mine.low_water_mark.release(started_write.requested_time)
        assert len(scene.requested()) == 1 + len(scene.other.context.active().completed_writes)
    else:
        with pytest.raises(StorageUnavailableError):
            begin(scene.mine, Action.COMMIT)
        assert len(files_below(scene.base, HEARTBEATS)) == 1, (
            "it stays live until its heartbeat expires"
        )
    assert scene.mine.low_water_mark.floor(1_000) > KEPT_ALWAYS, "its slots are not pinned"
    assert scene.beats.running == 0


@pytest.mark.spec("BEG-5")
def test_a_write_that_is_rolled_back_while_it_begins_draws_another_time() -> None:
    scene = Scene()

    def taken_for_dead() -> None:
        [pending] = scene.other.context.active().pending
        rollback(scene.other.context, pending)

    scene.storage.after = taken_for_dead
    started_write = begin(scene.mine, Action.COMMIT)
    started_write.heartbeat.stop()
    [redrawn] = heard(scene.mine, "begin.redrawn")
    assert redrawn["rt"] < redrawn["decided"] < started_write.requested_time
    assert [one.requested_time for one in scene.mine.active().pending] == [
        started_write.requested_time
    ]


def test_an_action_that_is_no_write_does_not_begin() -> None:
    scene = Scene()
    with pytest.raises(IllegalTransitionError):
        begin(scene.mine, Action.SAVEPOINT)
    assert files_below(scene.base, HEARTBEATS) == scene.requested() == []
    started_write = begin(scene.mine, Action.COMMIT)
    started_write.heartbeat.stop()
    with pytest.raises(IllegalTransitionError):
        make_inflight(scene.mine, replace(started_write, action=Action.SAVEPOINT), CommitMetadata())


@pytest.mark.spec("BEG-3")
@pytest.mark.parametrize("ended", [True, False])
def test_a_begin_first_applies_a_restore_whose_writer_died(ended: bool) -> None:
    table = new_table()
    kept = upsert(table, ROWS)
    upsert(table, [{**ROWS[0], "ts": 2, "v": 2}])
    restore(opened(table).context, kept.requested_time)
    storage = table.context.ports.storage
    [end] = [path for path in files_below(storage, TIMELINE) if path.endswith(".restore")]
    if not ended:
        storage.delete(end)
    mine: TableReader = opened(table)
    upsert(mine, [{"id": "b", "p": "x", "ts": 3, "v": 3}])
    assert len(heard(mine, "begin.finished_restore")) == (not ended)
    assert storage.stat(end) is not None
    assert rows_of(mine, "id", "v") == [("a", 1), ("b", 3)]
    assert leftovers(mine) == []

"""Rollback of a failed write: the abort slot first, then the deletes; commits stay (RB)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.engine import (
    BRISK,
    StillClock,
    begun,
    data_files,
    files_below,
    leftovers,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.metadata_tables import add_metadata_table
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.instant_avro import (
    decode_rollback,
    decode_rollback_plan,
    encode_rollback_plan,
)
from timeline.commit.begin import begin, make_inflight
from timeline.commit.markers import create_marker
from timeline.errors import UnsupportedTableError
from timeline.heartbeat import HeartbeatLimits
from timeline.model.commit_metadata import CommitMetadata, WriteOperation
from timeline.model.file_names import (
    HEARTBEATS,
    METADATA_TABLE,
    TIMELINE,
    IOType,
    heartbeat_path,
    slot_path,
    timeline_path,
)
from timeline.model.instant import Action, Instant, State
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.plans import InstantInfo, RollbackPlan
from timeline.model.slot import SlotKind
from timeline.properties.setting_enums import ForeignWriters
from timeline.rollback.resolve_unknown import resolve
from timeline.rollback.rollback import discard_attempt, rollback, rollback_dead_writers
from timeline.storage.local import LocalStorage

ROWS = [{"id": "a", "p": "x", "ts": 1, "v": 1}]


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path) -> MemoryStorage | LocalStorage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "t")


def crashed_write(table: TableReader) -> Instant:
    """Return a pending commit with a marker, a data file, and an announced data file."""
    started = begin(table.context, Action.COMMIT)
    make_inflight(table.context, started, CommitMetadata())
    started.heartbeat.stop()
    storage = table.context.ports.storage
    time = started.requested_time
    written, announced = (f"f-{n}_0-0-0_{time}.parquet" for n in (1, 2))
    for name in (written, announced):
        create_marker(storage, time, "x", name, IOType.CREATE)
    storage.create(f"x/{written}", b"half")
    [found] = [i for i in table.context.active().pending if i.requested_time == time]
    return found


@pytest.mark.spec("RB-1")
def test_the_abort_slot_is_created_before_the_first_delete():
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed)
    upsert(table, ROWS)
    target = crashed_write(table)
    observed.forget()
    rollback(table.context, target)
    texts = observed.operations()
    slot = texts.index(f"create {slot_path(2)}")
    deletes = [n for n, text in enumerate(texts) if text.startswith("delete")]
    assert deletes
    assert min(deletes) > slot
    assert f"delete x/f-1_0-0-0_{target.requested_time}.parquet" in texts


@pytest.mark.parametrize(
    "undo",
    [
        rollback,
        lambda context, _: rollback_dead_writers(context),
        lambda context, target: resolve(context, target.requested_time),
    ],
    ids=["rollback", "the dead", "resolve"],
)
@pytest.mark.spec("MDT-7")
def test_a_rollback_takes_a_write_out_of_the_metadata_table(undo: Callable[..., object]):
    """Java's record index counted a write that was rolled back without it, so upserts failed."""
    table = new_table()
    upsert(table, ROWS)
    storage = table.context.ports.storage
    add_metadata_table(storage, "files", "record_index")
    before = files_below(storage, METADATA_TABLE)
    target = crashed_write(table)
    time = target.requested_time
    for name in ("files/.files-0000-0", "record_index/.record-index-0000-0"):
        storage.create(f"{METADATA_TABLE}/{name}_{time}.log.1_0-0-0", b"")
    for name in (f"{time}.deltacommit.requested", f"{time}_{time[:-1]}9.deltacommit"):
        storage.create(f"{METADATA_TIMELINE}/{name}", b"")
    undo(table.context, target)
    assert files_below(storage, METADATA_TABLE) == before
    assert table.context.active().find(time, target.action) is None


def test_a_rollback_leaves_the_table_as_before(storage: MemoryStorage | LocalStorage):
    table = new_table(storage)
    upsert(table, ROWS)
    before = data_files(table)
    target = crashed_write(table)
    done = rollback(table.context, target)
    assert data_files(table) == before
    # The markers stay for a later clean: the owner may still write the announced file (RB-10).
    assert [path for path in leftovers(table) if not path.startswith(".hoodie/.temp/")] == []
    assert rows_of(table, "id") == [("a",)]
    assert done.slot is not None
    assert (done.slot.kind, done.slot.requested_time) == (SlotKind.ABORT, target.requested_time)


def test_a_rollback_writes_its_instant_for_other_engines():
    table = new_table()
    upsert(table, ROWS)
    target = crashed_write(table)
    slot = rollback(table.context, target).slot
    storage = table.context.ports.storage
    own = slot.instant_time
    names = [path.rpartition("/")[2] for path in files_below(storage, TIMELINE) if own in path]
    assert names == [
        f"{own}.rollback.inflight",
        f"{own}.rollback.requested",
        f"{own}_{slot.completion_time}.rollback",
    ]
    plan_path, done_path = (timeline_path(name) for name in names[1:])
    plan = decode_rollback_plan(storage.read(plan_path), path=plan_path)
    done = decode_rollback(storage.read(done_path), path=done_path)
    assert plan.instant_to_rollback.requested_time == target.requested_time
    assert done.commits_rollback == (target.requested_time,)
    assert done.total_files_deleted == 2
    assert own > target.requested_time
    assert int(own) % 4 == 1


@pytest.mark.spec("RB-3")
def test_a_committed_write_is_never_rolled_back():
    table = new_table()
    result = upsert(table, ROWS)
    known = Instant(
        action=Action.COMMIT, requested_time=result.requested_time, state=State.INFLIGHT
    )
    done = rollback(table.context, known)
    assert (done.slot, done.why) == (None, "it was committed")
    assert rows_of(table, "id") == [("a",)]


def test_a_rollback_applies_a_committed_write_without_its_completed_file():
    table = new_table()
    result = upsert(table, ROWS)
    storage = table.context.ports.storage
    name = f"{result.requested_time}_{result.completion_time}.commit"
    storage.delete(timeline_path(name))
    done = rollback(table.context, table.context.active().pending[0])
    assert done.slot is None
    assert storage.stat(timeline_path(name)) is not None
    assert rows_of(table, "id") == [("a",)]


@pytest.mark.spec("RB-5")
def test_two_rollbacks_of_one_write_take_one_slot():
    table = new_table()
    upsert(table, ROWS)
    target = crashed_write(table)
    first = rollback(table.context, target)
    second = rollback(opened(table).context, target)
    assert second.why == "another process rolled it back"
    assert second.slot == first.slot
    assert table.context.commit_log.head() == 2
    # The markers stay for a later clean: the owner may still write the announced file (RB-10).
    assert [path for path in leftovers(table) if not path.startswith(".hoodie/.temp/")] == []


@pytest.mark.spec("RB-5")
def test_a_rollback_repeats_deletes_that_were_interrupted():
    table = new_table()
    upsert(table, ROWS)
    target = crashed_write(table)
    rollback(table.context, target)
    late = f"x/f-9_0-0-0_{target.requested_time}.parquet"
    table.context.ports.storage.create(late, b"from a paused task")
    rollback(table.context, target)
    assert late not in data_files(table)


@pytest.mark.parametrize(
    "target",
    [
        Instant(action=Action.COMPACTION, requested_time="1" * 17, state=State.INFLIGHT),
        Instant(action=Action.CLEAN, requested_time="1" * 17, state=State.REQUESTED),
        Instant(
            action=Action.COMMIT,
            requested_time="1" * 17,
            state=State.COMPLETED,
            completion_time="2" * 17,
        ),
    ],
)
def test_only_pending_writes_are_rolled_back(target: Instant):
    with pytest.raises(UnsupportedTableError) as caught:
        rollback(new_table().context, target)
    assert caught.value.kind == "rollback_target"


@pytest.mark.spec("RB-4")
def test_a_missing_instant_needs_no_rollback():
    table = new_table()
    gone = Instant(action=Action.COMMIT, requested_time="20260102030405004", state=State.INFLIGHT)
    assert rollback(table.context, gone).why == "it is no longer pending"
    assert table.context.commit_log.head() == 0


@pytest.mark.spec("RB-6")
def test_files_of_other_instants_are_never_deleted():
    table = new_table()
    upsert(table, ROWS)
    [kept_file] = data_files(table)
    target = crashed_write(table)
    storage = table.context.ports.storage
    name = kept_file.rpartition("/")[2]
    create_marker(storage, target.requested_time, "x", name, IOType.MERGE)  # damaged or malicious
    rollback(table.context, target)
    assert data_files(table) == [kept_file]


def test_writers_with_expired_heartbeats_are_rolled_back_and_live_ones_are_not():
    table = new_table()
    upsert(table, ROWS)
    dead = crashed_write(table)
    living = begin(opened(table).context, Action.COMMIT)
    done = rollback_dead_writers(table.context)
    assert [each.target for each in done] == [dead.requested_time]
    assert [i.requested_time for i in table.context.active().pending] == [living.requested_time]
    living.heartbeat.stop()


def planned_by_java(table: TableReader, target: str, time: str) -> None:
    """Create another engine's pending rollback of that target."""
    plan = encode_rollback_plan(
        RollbackPlan(
            instant_to_rollback=InstantInfo(requested_time=target, action="commit"),
            rollback_requests=(),
        )
    )
    table.context.ports.storage.create(timeline_path(f"{time}.rollback.requested"), plan)


SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
ANYTHING_IS_OLD = replace(SHARED, heartbeat=HeartbeatLimits(interval_ms=-1, misses=1))


@pytest.mark.spec("RB-4")
@pytest.mark.parametrize(
    ("limits", "of_another", "why"),
    [
        pytest.param(SHARED, False, "another engine is rolling it back", id="at work"),
        pytest.param(SHARED, True, "rolled back", id="of another target"),
        pytest.param(ANYTHING_IS_OLD, False, "rolled back", id="left behind"),
    ],
)
def test_a_write_that_another_engine_is_rolling_back_is_left_to_it(
    limits, of_another: bool, why: str
):
    table = new_table()
    upsert(table, ROWS)
    dead = crashed_write(table)
    target = "20200101000000000" if of_another else dead.requested_time
    planned_by_java(table, target, f"{int(dead.requested_time) + 2}")
    mine = opened(table, limits=limits)
    assert [each.why for each in rollback_dead_writers(mine.context)] == [why]


def rollbacks(table: TableReader) -> list[str]:
    return sorted(
        path.rpartition("/")[2]
        for path in files_below(table.context.ports.storage, TIMELINE)
        if "rollback" in path
    )


@pytest.mark.parametrize("vanished", [False, True], ids=["its target pending", "its target gone"])
def test_a_rollback_that_another_engine_abandoned_completes_under_its_own_name(vanished: bool):
    table = new_table()
    upsert(table, ROWS)
    before = data_files(table)
    dead = crashed_write(table)
    own = f"{int(dead.requested_time) + 2}"
    planned_by_java(table, dead.requested_time, own)
    if vanished:
        for name in (f"{dead.requested_time}.commit.requested", f"{dead.requested_time}.inflight"):
            table.context.ports.storage.delete(timeline_path(name))
    mine = opened(table, limits=ANYTHING_IS_OLD)
    [done] = rollback_dead_writers(mine.context)
    assert (done.target, done.slot.instant_time) == (dead.requested_time, own)
    ended = [f"{own}.rollback.inflight", f"{own}.rollback.requested"]
    assert rollbacks(table) == [*ended, f"{own}_{done.slot.completion_time}.rollback"]
    assert data_files(table) == before
    assert rollback_dead_writers(mine.context) == []


def test_a_rollback_plan_whose_target_committed_is_deleted():
    """Java planned to roll back an attempt at a compaction that a later attempt completed."""
    table = new_table()
    done = upsert(table, ROWS)
    before = data_files(table)
    planned_by_java(table, done.requested_time, f"{int(done.requested_time) + 1}")
    assert f"{int(done.requested_time) + 1}" < done.completion_time
    [ended] = rollback_dead_writers(opened(table, limits=ANYTHING_IS_OLD).context)
    assert ended.slot.kind is SlotKind.NOOP
    assert rollbacks(table) == []
    assert data_files(table) == before
    assert rows_of(table, "id") == [("a",)]


@pytest.mark.parametrize("target", ["20200101000000000", "../../elsewhere"])
def test_a_plan_that_may_name_an_archived_write_is_left_unchanged(target: str):
    table = new_table()
    upsert(table, ROWS)
    table.context.ports.storage.create("x/f-1_0-0-0_20200101000000000.parquet", b"archived")
    before = data_files(table)
    planned_by_java(table, target, "29990101000000001")
    assert rollback_dead_writers(opened(table, limits=ANYTHING_IS_OLD).context) == []
    assert data_files(table) == before
    assert rollbacks(table) == ["29990101000000001.rollback.requested"]


def test_a_damaged_plan_of_another_engine_prevents_no_rollback():
    table = new_table()
    upsert(table, ROWS)
    dead = crashed_write(table)
    time = f"{int(dead.requested_time) + 2}"
    table.context.ports.storage.create(timeline_path(f"{time}.rollback.requested"), b"half")
    mine = opened(table, limits=SHARED)
    assert [each.why for each in rollback_dead_writers(mine.context)] == ["rolled back"]


@pytest.mark.spec("HB-2")
def test_a_heartbeat_expires_by_the_clock_of_the_storage():
    clock = StillClock()
    table = new_table(clock=clock)
    finish = begun(table, WriteOperation.UPSERT, ROWS)
    [pending] = table.context.active().pending
    clock.wall -= 10**9  # our wall clock does not apply to files of other writers
    assert rollback_dead_writers(table.context) == []
    assert table.context.ports.storage.stat(heartbeat_path(pending.requested_time)) is not None
    clock.wall += 10**9
    assert finish().rows_inserted == 1


def test_a_committed_write_without_a_heartbeat_is_not_rolled_back():
    table = new_table()
    finish = begun(table, WriteOperation.UPSERT, ROWS)
    known = table.context.active()
    finish()
    assert [each.why for each in rollback_dead_writers(table.context, known)] == [
        "it was committed"
    ]
    assert rows_of(table, "id") == [("a",)]


@pytest.mark.spec("RB-9")
def test_abandoning_deletes_data_files_before_the_pending_files():
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed)
    started = begin(table.context, Action.COMMIT)
    make_inflight(table.context, started, CommitMetadata())
    name = f"f-1_0-0-0_{started.requested_time}.parquet"
    create_marker(observed, started.requested_time, "x", name, IOType.CREATE)
    observed.create(f"x/{name}", b"half")
    observed.forget()
    discard_attempt(table.context, started)
    deleted = [text for text in observed.operations() if text.startswith("delete ")]
    data = deleted.index(f"delete x/{name}")
    pending = deleted.index(f"delete {TIMELINE}/{started.requested_time}.inflight")
    assert data < pending
    assert leftovers(table) == []


def test_a_running_process_caches_no_commit_of_a_write_that_ended():
    """Without this the cache grows with each commit of the process."""
    table = new_table()
    result = upsert(table, ROWS)
    assert not table.context.commit_log.may_have_committed(result.requested_time)


@pytest.mark.spec("RB-2")
def test_an_aborted_write_stays_aborted_when_its_writer_resumes():
    table = new_table()
    other = opened(table, limits=BRISK)
    upsert(table, ROWS)

    def taken_for_dead() -> None:
        rollback(other.context, other.context.active().pending[0])

    result = put(table, WriteOperation.UPSERT, [{**ROWS[0], "ts": 2, "v": 2}], taken_for_dead)
    kinds = [
        each.kind for each in table.context.commit_log.between(0, table.context.commit_log.head())
    ]
    assert kinds == [SlotKind.COMMIT, SlotKind.ABORT, SlotKind.COMMIT]
    assert result.attempts == 2
    assert files_below(table.context.ports.storage, HEARTBEATS) == []

"""Archiving must not change reads of earlier snapshots, batch ids, and valid writers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from filegroups.table import TableReader
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.cleaning.execute import clean
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    StillClock,
    files_below,
    new_table,
    opened,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.publishing import commit_in_section
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.begin import begin
from timeline.commit.commit_lock import BaseState, CommitSection
from timeline.commit.section import apply_pending_slots
from timeline.commit.validate import commits_since
from timeline.errors import HeartbeatExpiredError, MissingFileError
from timeline.model.file_names import BOUNDARIES, HISTORY, SLOTS, TIMELINE, WRITERS, slot_path
from timeline.model.instant import Action
from timeline.model.instant_time import Residue
from timeline.model.slot import Slot, SlotKind
from timeline.properties.setting_enums import CommitLockMode
from timeline.rollback.rollback import rollback, rollback_dead_writers
from timeline.truncation import read_truncation_point, truncated_up_to
from timeline.writer_registry import register_process

RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    }
)
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def grown(count: int) -> tuple[TableReader, StillClock, list[str]]:
    """A table of so many upserts of one row and a new one; with their requested times."""
    clock = StillClock()
    table = new_table(MemoryStorage("memory://t", ports=MemoryWorld(clock)), clock=clock)
    times = []
    for number in range(count):
        rows = [{"id": "a", "p": "x", "ts": number}, {"id": f"n{number}", "p": "x", "ts": number}]
        times.append(upsert(table, rows, batch_id=f"batch {number}").requested_time)
    return table, clock, times


def changed(table: TableReader, since: str, until: str | None = None) -> list[str]:
    return sorted(table.changes(since, until, columns=["id"]).read_all()["id"].to_pylist())


def test_reads_are_the_same_before_and_after():
    table, clock, times = grown(6)
    asked = [("earliest", None), (times[0], None), (times[1], None)]
    before = [changed(table, *one) for one in asked]
    images = table.changes("earliest", images=True).read_all()
    shown = [(one.requested_time, one.action, one.state) for one in table.timeline]
    rows, then = rows_of(table), table.as_of(times[2]).to_arrow()
    assert archive(table.context, RULES) is not None
    reader = opened(table, clock=clock)
    for each in (table, reader):
        assert [changed(each, *one) for one in asked] == before
        assert each.changes("earliest", images=True).read_all().equals(images)
        # As in Java: a row that was written again is in a later range only.
        assert changed(each, times[1], times[4]) == ["n1", "n2", "n3"]
        assert [(one.requested_time, one.action, one.state) for one in each.timeline] == shown
        assert rows_of(each) == rows
        assert each.as_of(times[2]).to_arrow().equals(then)
    assert [one.archived for one in reader.timeline].count(True) == 4


def test_a_savepointed_write_hides_no_column_that_a_compaction_has(tmp_path: Path):
    """The write that added the column is archived; services only repeat its schema."""
    retained = {
        "hoodie.keep.min.commits": "4",
        "hoodie.keep.max.commits": "5",
        "hoodie.clean.commits.retained": "2",
        "hoodie.archive.beyond.savepoint": "true",
        **dict.fromkeys(("hoodie.clean.automatic", "hoodie.archive.automatic"), "false"),
    }
    with hoodoo.create_table(
        tmp_path / "t",
        schema=pa.schema([("id", pa.string()), ("ts", pa.int64())]),
        record_key="id",
        ordering="ts",
        table_type="MERGE_ON_READ",
        properties=retained,
    ) as table:
        table.savepoint(table.upsert([{"id": "a", "ts": 1}]).requested_time)
        table.upsert([{"id": "a", "ts": 2, "new": "n"}])
        table.services.compact()
        compacted = table.timeline[-1].requested_time
        for number in range(3, 6):
            table.upsert([{"id": "a", "ts": number, "new": "m"}])
        for number in range(6, 8):
            table.services.archive()
            there = hoodoo.open_table(tmp_path / "t").as_of(compacted).to_arrow()
            assert there.to_pylist() == [{"id": "a", "ts": 2, "new": "n"}]
            table.upsert([{"id": "a", "ts": number, "new": "m"}])
        table.services.archive()
        active = table.context.active()
        assert active.find(compacted) is None
        assert active.completed_writes[0].requested_time < compacted
        there = hoodoo.open_table(tmp_path / "t").as_of(compacted).to_arrow()
        assert there.to_pylist() == [{"id": "a", "ts": 2, "new": "n"}]


def test_a_pinned_snapshot_stays_readable():
    table, clock, _ = grown(6)
    before = table.to_arrow()
    held = opened(table, clock=clock).current_state()
    for number in range(6):
        upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
    assert archive(table.context, RULES) is not None
    newest = held.snapshot.newest_write
    assert newest is not None
    assert table.context.active().find(newest.requested_time) is None
    assert held.to_arrow().equals(before)


def test_an_archive_that_is_merged_during_a_read_is_read_again():
    table, clock, times = grown(6)
    archive(table.context, RULES)
    inner = table.context.ports.storage

    class Merging(Behind):
        reached = False

        def read(self, path: str) -> bytes:
            if path.endswith(".parquet") and path.startswith(HISTORY) and not self.reached:
                self.reached = True
                number = int(inner.read(f"{HISTORY}/_version_"))
                name = path.rpartition("/")[2]
                merged = name.replace("_0.parquet", "_1.parquet")
                inner.write(f"{HISTORY}/{merged}", inner.read(path))
                manifest = inner.read(f"{HISTORY}/manifest_{number}")
                inner.write(
                    f"{HISTORY}/manifest_{number + 1}",
                    manifest.replace(name.encode(), merged.encode()),
                )
                inner.write(f"{HISTORY}/_version_", str(number + 1).encode())
                inner.delete(path)
            return bytes(self.inner.read(path))

    reader = opened(table, storage=Merging(inner), clock=clock)
    assert [one.requested_time for one in reader.context.archived_timeline.instants()] == times[:4]


def test_a_batch_is_not_written_twice_after_its_slot_was_truncated():
    table, clock, times = grown(6)
    archive(table.context, RULES)
    assert truncated_up_to(table.context.ports.storage) == 4
    again = upsert(opened(table, clock=clock), [{"id": "z", "p": "x", "ts": 9}], batch_id="batch 0")
    assert again.already_published
    assert again.requested_time == times[0]
    clock.sleep_ms(8 * DAY_MS)
    for number in range(2):
        upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
    archive(table.context, RULES)
    known = [
        one.batch.batch_id for one in read_truncation_point(table.context.ports.storage).batches
    ]
    assert known == []  # remembered for 7 days


def rolled_back(table: TableReader) -> None:
    for one in table.context.active().pending_ingestion:
        rollback(table.context, one)


@pytest.mark.spec("GC-4")
def test_a_writer_that_paused_during_truncation_is_fenced_and_retries():
    table, clock, _ = grown(2)
    sleeper = opened(table, application="sleeper", clock=clock)
    register_process(sleeper.context, {})

    def sleep() -> None:
        clock.sleep_ms(11 * MINUTE_MS)
        rolled_back(table)
        for number in range(6):
            upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
        clock.sleep_ms(11 * MINUTE_MS)
        assert archive(table.context, RULES) is not None
        assert truncated_up_to(table.context.ports.storage) == 7

    result = upsert(sleeper, [{"id": "s", "p": "y", "ts": 5}], sleep)
    assert result.attempts == 2
    assert ("s", "y", 5) in rows_of(sleeper, "id", "p", "ts")
    assert ("a", "x", 105) in rows_of(sleeper, "id", "p", "ts")
    assert sleeper.context.low_water_mark.number >= 7


def test_a_commit_section_after_such_a_pause_is_rejected_and_the_next_one_sees_the_head():
    table, clock, _ = grown(2)
    sleeper = opened(table, application="sleeper", clock=clock)
    register_process(sleeper.context, {})
    clock.sleep_ms(11 * MINUTE_MS)
    for number in range(4):
        upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
    assert archive(table.context, RULES) is not None
    with pytest.raises(HeartbeatExpiredError) as caught:
        apply_pending_slots(sleeper.context, "look")
    assert caught.value.kind == "pin_overrun"
    heads = []
    commit_in_section(sleeper.context, "look", lambda section: heads.append(section.head))
    assert heads == [7]


class Hanging(Behind):
    """Something happens before one listing of a folder is answered."""

    def __init__(self, inner: MemoryStorage, folder: str, then: Callable[[], None]) -> None:
        super().__init__(inner)
        self.folder, self.then, self.is_armed = folder, then, False

    def names(self, folder: str) -> list[str]:
        if self.is_armed and folder == self.folder:
            self.is_armed = False
            self.then()
        return list(self.inner.names(folder))


def gone_past(table: TableReader, clock: StillClock) -> None:
    """Longer than any pin is respected; meanwhile the archive takes away slots 3 and 4."""
    clock.sleep_ms(11 * MINUTE_MS)
    for number in range(4):
        upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
    assert archive(table.context, RULES) is not None
    assert truncated_up_to(table.context.ports.storage) == 4


def lock_free(table: TableReader, storage: Hanging, clock: StillClock) -> TableReader:
    limits = replace(BRISK, publish_lock=CommitLockMode.NONE)
    return opened(table, application="sleeper", storage=storage, limits=limits, clock=clock)


@pytest.mark.spec("GC-4")
def test_a_heartbeat_that_hangs_during_an_archive_detects_the_truncation():
    """Its number after the last one it knows is free, because it was collected: a second chain."""
    table, clock, _ = grown(2)
    hanging = Hanging(table.context.ports.storage, SLOTS, lambda: gone_past(table, clock))
    sleeper = lock_free(table, hanging, clock)
    registration = register_process(sleeper.context, {})
    hanging.is_armed = True
    registration.beat()
    assert not hanging.is_armed
    assert sleeper.context.commit_log.known_head == 7
    slot, _ = commit_in_section(
        sleeper.context, "test", lambda section: empty_slot(sleeper, section)
    )
    assert slot is not None
    assert slot.number == 8


@pytest.mark.spec("GC-4")
def test_a_restored_low_water_mark_counts_only_after_a_read_of_the_truncation_point():
    """The heartbeat is a thread of its own: the writer continues during that read."""
    table, clock, _ = grown(2)
    caught: list[HeartbeatExpiredError] = []

    def publish() -> None:
        with pytest.raises(HeartbeatExpiredError) as found:
            commit_in_section(sleeper.context, "test", lambda section: empty_slot(sleeper, section))
        caught.append(found.value)

    hanging = Hanging(table.context.ports.storage, BOUNDARIES, publish)
    sleeper = lock_free(table, hanging, clock)
    registration = register_process(sleeper.context, {})
    gone_past(table, clock)
    hanging.is_armed = True
    registration.beat()
    assert [one.kind for one in caught] == ["pin_overrun"]
    assert table.context.ports.storage.names(SLOTS) == [f"{number:020d}" for number in (5, 6, 7)]


@pytest.mark.spec("GC-4")
@pytest.mark.parametrize("refreshed_before", [True, False])
def test_a_commit_section_with_a_new_low_water_mark_reads_the_truncation_point_after_its_slot(
    refreshed_before: bool,
):
    """Its refresh is from before the new low-water mark, or concurrent with it."""
    table, clock, _ = grown(2)
    beats: list[bool] = []

    class Slow(Behind):
        """The low-water mark begins again between a commit section's refresh and its slot."""

        def names(self, folder: str) -> list[str]:
            found = list(self.inner.names(folder))
            if folder == TIMELINE and beats == [True]:
                beats.append(True)
                if refreshed_before:
                    gone_past(table, clock)
                registration.beat()
            return found

    limits = replace(BRISK, publish_lock=CommitLockMode.NONE)
    sleeper = opened(table, storage=Slow(table.context.ports.storage), limits=limits, clock=clock)
    registration = register_process(sleeper.context, {})
    if not refreshed_before:
        gone_past(table, clock)
    beats.append(True)
    with pytest.raises(HeartbeatExpiredError) as caught:
        commit_in_section(sleeper.context, "test", lambda section: empty_slot(sleeper, section))
    assert caught.value.kind == "pin_overrun"
    assert len(beats) == 2
    assert table.context.ports.storage.names(SLOTS) == [f"{number:020d}" for number in (5, 6, 7)]


@pytest.mark.spec("GC-4")
def test_the_commit_log_is_never_half_reset_by_a_new_low_water_mark():
    """A chain without a known slot would be read from its first one, which was collected."""
    table, clock, _ = grown(2)
    heads: list[int] = []
    hanging = Hanging(
        table.context.ports.storage,
        SLOTS,
        lambda: heads.append(sleeper.context.commit_log.known_head),
    )
    sleeper = lock_free(table, hanging, clock)
    registration = register_process(sleeper.context, {})
    gone_past(table, clock)
    sleeper.context.commit_log.cached_head = lambda: setattr(hanging, "is_armed", True)  # type: ignore[method-assign]
    registration.beat()
    assert heads == [2]
    assert sleeper.context.commit_log.known_head == 7


@pytest.mark.spec("F13")
def test_a_stale_listing_gives_a_new_low_water_mark_no_head_below_the_truncation_point():
    table, clock, _ = grown(2)

    class Stale(Behind):
        stale: tuple[str, ...] = ()

        def names(self, folder: str) -> list[str]:
            return list(self.stale if folder == SLOTS and self.stale else self.inner.names(folder))

    storage = Stale(table.context.ports.storage)
    sleeper = opened(table, application="sleeper", storage=storage, clock=clock)
    registration = register_process(sleeper.context, {})
    gone_past(table, clock)
    storage.stale = (f"{1:020d}", f"{2:020d}", f"{3:020d}")
    registration.beat()
    assert sleeper.context.commit_log.known_head == 7
    assert sleeper.context.low_water_mark.number >= 4


@pytest.mark.spec("BEG-5")
def test_a_write_from_a_snapshot_before_the_archive_draws_another_time():
    table, clock, _ = grown(2)
    sleeper = opened(table, application="sleeper", clock=clock)
    registration = register_process(sleeper.context, {})
    before = sleeper.context.snapshot()
    gone_past(table, clock)
    registration.beat()
    begun = begin(sleeper.context, Action.COMMIT, before)
    assert begun.snapshot.head == 7
    begun.heartbeat.stop()


@pytest.mark.spec("GC-4")
def test_a_writer_whose_slots_were_truncated_gets_an_expired_heartbeat():
    table, clock, _ = grown(2)
    sleeper = opened(table, application="sleeper", clock=clock)
    registration = register_process(sleeper.context, {})
    seen = BaseState.by(sleeper.context.snapshot())
    gone_past(table, clock)
    registration.beat()
    timeline = sleeper.context.active()
    with pytest.raises(HeartbeatExpiredError) as caught:
        commits_since(sleeper.context, seen, timeline, head=7)
    assert caught.value.kind == "pin_overrun"
    new_handle = opened(table, clock=clock)
    with pytest.raises(MissingFileError) as missing:
        commits_since(new_handle.context, seen, timeline, head=7)
    assert missing.value.kind == "slot_missing"


@pytest.mark.spec("GC-2")
def test_a_slot_created_below_the_truncation_point_decides_nothing():
    table, clock, _ = grown(2)
    storage = table.context.ports.storage

    class Slow(Behind):
        """Its request for a slot is on the way for longer than any pin is respected."""

        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if path == slot_path(3):
                clock.sleep_ms(11 * MINUTE_MS)
                for number in range(4):
                    upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
                assert archive(table.context, RULES) is not None
            self.inner.create(path, data, durable=durable)

    lock_free = replace(BRISK, publish_lock=CommitLockMode.NONE)
    slow = opened(table, storage=Slow(storage), limits=lock_free, clock=clock)
    register_process(slow.context, {})
    with pytest.raises(HeartbeatExpiredError) as caught:
        commit_in_section(slow.context, "test", lambda section: empty_slot(slow, section))
    assert caught.value.kind == "pin_overrun"
    assert truncated_up_to(storage) == 4
    assert storage.names(SLOTS) == [f"{number:020d}" for number in (5, 6, 7)]


@pytest.mark.spec("GC-2")
def test_a_process_outside_the_registry_commits_nothing_under_a_truncated_number():
    table, clock, _ = grown(2)
    storage = table.context.ports.storage
    new_handle = opened(table, application="stranger", clock=clock)
    assert new_handle.context.commit_log.head() == 2  # and no process keeps the later slots for it
    for number in range(4):
        upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
    assert archive(table.context, RULES) is not None
    assert truncated_up_to(storage) == 4
    with pytest.raises(HeartbeatExpiredError) as caught:
        commit_in_section(
            new_handle.context, "test", lambda section: empty_slot(new_handle, section)
        )
    assert caught.value.kind == "pin_overrun"
    assert storage.names(SLOTS) == [f"{number:020d}" for number in (5, 6, 7)]
    slot, lost = commit_in_section(
        new_handle.context, "test", lambda section: empty_slot(new_handle, section)
    )
    assert slot is not None
    assert (slot.number, lost) == (8, 0)


@pytest.mark.spec("RB-7")
def test_a_pending_file_that_lands_after_the_archive_costs_no_rows():
    table, clock, times = grown(5)
    assert archive(table.context, RULES) is not None
    before = rows_of(table)
    storage = table.context.ports.storage
    for ending in ("requested", "inflight"):
        storage.create(f"{TIMELINE}/{times[0]}.commit.{ending}".replace(".commit.inf", ".inf"), b"")
    clock.sleep_ms(DAY_MS)
    [ended] = rollback_dead_writers(table.context)
    assert ended.slot is None
    assert rows_of(opened(table)) == before
    assert [name for name in storage.names(TIMELINE) if name.startswith(times[0])] == []


def empty_slot(table: TableReader, section: CommitSection) -> Slot:
    requested = section.draw_time(table.context, Residue.SLOT_REQUESTED)
    return Slot(
        number=section.head + 1,
        table_id=table.context.table_id,
        kind=SlotKind.NOOP,
        action=Action.COMMIT,
        requested_time=requested,
        completion_time=requested,
        base=section.head,
        nonce="n",
        owner=section.owner,
    )


@pytest.mark.spec("GC-3")
def test_entries_show_a_low_water_mark_below_the_last_slots_and_raise_it_with_each_heartbeat():
    """The last two slots may be unapplied: a helper must be sure that they stay (PUB-3)."""
    table, _, _ = grown(3)
    registration = register_process(table.context, {})
    path = f"{WRITERS}/{table.context.ports.ids.identity().writer_id}.json"

    def shown() -> int:
        return int(json.loads(table.context.ports.storage.read(path))["pin"])

    assert shown() == 1
    upsert(table, [{"id": "a", "p": "x", "ts": 100}])
    assert shown() == 1
    registration.beat()
    assert shown() == 2
    table.context.low_water_mark.keep_above("20260102030405004", 4)
    upsert(table, [{"id": "a", "p": "x", "ts": 101}])
    registration.beat()
    assert shown() == 2
    registration.unregister()


def test_a_table_of_many_small_commits_is_opened_as_fast_as_one_of_few():
    """The cost of an open, a read and a refresh is counted in calls of the storage."""
    clock = StillClock()
    inner = MemoryStorage("memory://t", ports=MemoryWorld(clock))
    table = new_table(inner, clock=clock)
    calls, objects = [], []
    for number in range(60):
        upsert(table, [{"id": "a", "p": "x", "ts": number}])
        clean(table.context, RULES.cleaning)
        archive(table.context, RULES)
        clock.sleep_ms(DAY_MS)
        if number in (11, 59):
            observed = RecordingStorage(inner)
            reader = opened(table, storage=observed, clock=clock)
            assert rows_of(reader, "ts") == [(number,)]
            calls.append(len(observed.calls))
            objects.append(len(files_below(inner)))
    assert calls[1] <= calls[0] + 2
    assert objects[1] <= 2 * objects[0]
    assert len(table.timeline) >= 60


def test_a_busy_writer_and_an_idle_one_raise_their_low_water_marks():
    table, clock, _ = grown(1)
    looking_on = opened(table, application="looks on", clock=clock)
    registrations = [register_process(table.context, {}), register_process(looking_on.context, {})]
    for number in range(40):
        upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
    assert table.context.low_water_mark.number > 24
    assert looking_on.context.low_water_mark.number == 0
    registrations[1].beat()
    assert looking_on.context.low_water_mark.number == 39
    assert archive(table.context, RULES) is not None
    upsert(looking_on, [{"id": "b", "p": "x", "ts": 1}])
    assert ("b", 1) in rows_of(table, "id", "ts")
    for one in registrations:
        one.unregister()


def test_a_long_lived_reader_caches_no_more_than_the_timeline_contains():
    """A slot and the metadata of a commit may be megabytes each, and a process lives for months."""
    table, clock, _ = grown(1)
    reader, registration = opened(table, clock=clock), register_process(table.context, {})
    first = reader.current_state()
    for number in range(160):
        upsert(table, [{"id": "a", "p": "x", "ts": 100 + number}])
        assert ("a", 100 + number) in rows_of(reader, "id", "ts")
        if number % 20 == 19:
            registration.beat()
            archive(table.context, RULES)
    on_it = len(reader.context.active().file_names)
    assert on_it < 100
    for context in (table.context, reader.context):
        assert len(context.commits._kept) <= max(64, on_it) + 1
        assert len(context.commit_log._known) <= 130
    commit_log = reader.context.commit_log
    head = commit_log.head()
    commit_log.forget(head)
    assert [one.number for one in commit_log.between(head - 2, head)] == [head - 1, head], (
        "read again"
    )
    assert first.to_arrow()["id"].to_pylist() == ["a", "n0"]
    registration.unregister()

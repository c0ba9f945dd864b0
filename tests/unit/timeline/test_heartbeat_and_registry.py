"""Which writers are live, which are fenced, and whether all settings agree (HB, REG-1)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    StillClock,
    new_table,
    opened,
    world_of,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.recording import RecordingStorage
from timeline.errors import (
    HeartbeatExpiredError,
    InvalidInputError,
    StorageUnavailableError,
    WriterDisagreementError,
)
from timeline.heartbeat import (
    Heartbeat,
    HeartbeatLimits,
    instants_with_expired_heartbeat,
    stray_heartbeats,
)
from timeline.model.file_names import WRITERS, heartbeat_path, timeline_path
from timeline.writer_registry import forget, register_process, registered_writers

RT, OTHER = "20260102030405004", "20260102030405008"
LIMITS = HeartbeatLimits(interval_ms=1_000_000, misses=2)  # no background heartbeat in a test
MINE = {"mode": "occ", "lock": "a"}


def storage_at(clock: StillClock) -> MemoryStorage:
    return MemoryStorage("memory://t", ports=MemoryWorld(clock))


@pytest.mark.spec("HB-1")
def test_a_beat_renews_the_file_and_a_stop_removes_it():
    clock = StillClock()
    storage = storage_at(clock)
    beating = Heartbeat.start(world_of(storage, clock=clock), RT, LIMITS)
    first = storage.stat(heartbeat_path(RT)).modified_ms
    clock.sleep_ms(5)
    beating.beat()
    assert storage.stat(heartbeat_path(RT)).modified_ms == first + 5
    beating.stop()
    beating.stop()
    assert storage.stat(heartbeat_path(RT)) is None


@pytest.mark.spec("HB-3")
def test_a_writer_that_paused_too_long_is_fenced_for_good():
    clock = StillClock()
    storage = storage_at(clock)
    ports = world_of(storage, clock=clock)
    beating = Heartbeat.start(ports, RT, LIMITS)
    clock.sleep_ms(LIMITS.silence_ms)
    beating.check()
    clock.sleep_ms(1)
    with pytest.raises(HeartbeatExpiredError) as caught:
        beating.check()
    assert caught.value.fields == {"requested_time": RT, "tolerated_ms": 1_000_000}
    old = storage.stat(heartbeat_path(RT)).modified_ms
    beating.beat()  # it must not become live again
    assert storage.stat(heartbeat_path(RT)).modified_ms == old
    assert beating.fenced()
    beating.stop()


def test_a_failed_beat_is_an_event_and_the_next_may_succeed():
    class Failing(Behind):
        failing = False

        def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
            if self.failing:
                raise StorageUnavailableError("gone")
            self.inner.write(path, data, durable=durable)

    clock = StillClock()
    storage = Failing(storage_at(clock))
    ports = world_of(storage, clock=clock)
    beating = Heartbeat.start(ports, RT, LIMITS)
    storage.failing = True
    clock.sleep_ms(750_000)
    beating.beat()
    storage.failing = False
    clock.sleep_ms(200_000)
    beating.beat()
    clock.sleep_ms(950_000)
    beating.check()
    assert len(ports.events.named("heartbeat.failed")) == 1
    beating.stop()


def test_missing_and_old_heartbeats_are_expired():
    clock = StillClock()
    storage = storage_at(clock)
    storage.write(heartbeat_path(RT), b"")
    assert instants_with_expired_heartbeat(storage, (RT, OTHER), LIMITS) == (OTHER,)
    clock.sleep_ms(LIMITS.tolerated_ms + 1)
    assert instants_with_expired_heartbeat(storage, (RT,), LIMITS) == (RT,)
    assert instants_with_expired_heartbeat(storage, (), LIMITS) == ()


@pytest.mark.spec("HB-2")
@pytest.mark.parametrize(
    ("beat", "silence_ms"),
    [
        (None, 1_000_000),  # hoodoo's own, as a write begins
        (b"", 2_000_000),  # of Java, and of releases that say nothing
        (b'{"silence_ms": 1500000}', 1_500_000),
        (b'{"silence_ms": 9000000}', 2_000_000),  # never longer than Hudi's rule
        (b'{"silence_ms": "soon"}', 2_000_000),
        (b"[1]", 2_000_000),
        (b'{"silence_ms": 1}' + b" " * 300, 2_000_000),  # not read
    ],
)
def test_a_writer_is_dead_after_the_silence_that_its_heartbeat_names(
    beat: bytes | None, silence_ms: int
):
    clock = StillClock()
    storage = storage_at(clock)
    if beat is None:
        Heartbeat.start(world_of(storage, clock=clock), RT, LIMITS).stop(remove=False)
    else:
        storage.write(heartbeat_path(RT), beat)
    clock.sleep_ms(silence_ms)
    assert instants_with_expired_heartbeat(storage, (RT,), LIMITS) == ()
    clock.sleep_ms(1)
    assert instants_with_expired_heartbeat(storage, (RT,), LIMITS) == (RT,)


@pytest.mark.spec("BEG-2")
@pytest.mark.parametrize(
    ("files", "far", "lives"),
    [
        (["commit.requested"], True, True),
        (["deltacommit.requested"], True, True),
        (["commit.requested"], False, False),
        (["commit.requested", "inflight"], True, False),  # both were registered before that
        (["compaction.requested"], True, False),  # a plan that no process executes yet
    ],
)
def test_on_a_high_latency_store_a_requested_file_counts_as_the_first_heartbeat(
    files: list[str], far: bool, lives: bool
):
    clock = StillClock()
    storage = storage_at(clock)
    for name in files:
        storage.create(timeline_path(f"{RT}.{name}"), b"")
    asked = Far(storage) if far else storage
    assert instants_with_expired_heartbeat(asked, (RT,), LIMITS) == (() if lives else (RT,))
    clock.sleep_ms(LIMITS.tolerated_ms + 1)
    assert instants_with_expired_heartbeat(asked, (RT,), LIMITS) == (RT,)


def test_stray_heartbeats_are_old_and_have_no_pending_instant():
    clock = StillClock()
    storage = storage_at(clock)
    for name in (RT, OTHER, "notes"):
        storage.write(heartbeat_path(name), b"")
    assert stray_heartbeats(storage, frozenset(), LIMITS) == ()
    clock.sleep_ms(LIMITS.tolerated_ms + 1)
    assert stray_heartbeats(storage, frozenset({RT}), LIMITS) == (OTHER,)


def test_a_writer_does_not_read_its_own_entry_when_it_registers():
    storage = RecordingStorage(MemoryStorage())
    table = new_table(storage)
    register_process(opened(table, application="second").context, MINE)
    storage.forget()
    register_process(table.context, MINE).unregister()
    own = table.context.ports.ids.identity().writer_id
    reads = [text for text in storage.operations() if text.startswith(f"read {WRITERS}/")]
    assert len(reads) == 2  # the other entry, before and after the own one was written
    assert not any(own in text for text in reads)


def test_writers_that_agree_are_listed():
    table = new_table()
    first = register_process(table.context, MINE)
    second = register_process(opened(table, application="second").context, MINE)
    found = registered_writers(table.context)
    assert {writer.application for writer in found} == {"", "second"}
    assert all(writer.alive and writer.agreement == MINE for writer in found)
    own = table.context.ports.ids.identity().writer_id
    assert [one.application for one in registered_writers(table.context, but=own)] == ["second"]
    first.unregister()
    second.unregister()
    assert registered_writers(table.context) == []


def test_a_writer_configured_differently_is_refused_with_the_difference():
    table = new_table()
    first = register_process(table.context, MINE)
    newcomer = opened(table, application="newcomer")
    with pytest.raises(WriterDisagreementError) as caught:
        register_process(newcomer.context, {"mode": "occ", "lock": "b", "more": "x"})
    assert caught.value.fields["differences"] == {
        "lock": {"mine": "b", "theirs": "a"},
        "more": {"mine": "x", "theirs": ""},
    }
    assert len(registered_writers(table.context)) == 1
    first.unregister()


@pytest.mark.spec("REG-1")
def test_at_least_one_of_two_concurrent_newcomers_is_refused():
    table = new_table()
    storage = table.context.ports.storage

    class Racing(Behind):
        def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
            if path.startswith(WRITERS):
                other_entry = {**json.loads(data), "writer_id": "r", "agreement": {"lock": "b"}}
                self.inner.write(f"{WRITERS}/r.json", json.dumps(other_entry).encode())
            self.inner.write(path, data, durable=durable)

    with pytest.raises(WriterDisagreementError):
        register_process(opened(table, storage=Racing(storage)).context, {"lock": "a"})
    assert storage.names(WRITERS) == ["r.json"]


def test_entries_of_writers_long_silent_are_ignored():
    clock = StillClock()
    table = new_table(storage_at(clock), clock=clock)
    crashed = register_process(table.context, MINE)
    crashed.ticker.stop()
    clock.sleep_ms(table.context.limits.heartbeat.tolerated_ms + 1)
    other = register_process(opened(table, clock=clock).context, {"lock": "b"})
    assert [writer.alive for writer in registered_writers(table.context)] == [False, True]
    other.unregister()


@pytest.mark.spec("REG-1")
def test_the_entry_of_a_dropped_table_s_writer_counts_for_nothing_in_the_new_one():
    clock = StillClock()
    storage = storage_at(clock)
    idle = register_process(new_table(storage, clock=clock).context, MINE)
    storage.delete_folder(".hoodie")
    table = new_table(storage, clock=clock)
    mine = register_process(table.context, {"lock": "b"})
    idle.beat()
    assert len(storage.names(WRITERS)) == 2
    (entry,) = registered_writers(table.context)
    assert entry.writer_id == table.context.ports.ids.identity().writer_id
    register_process(opened(table, clock=clock).context, {"lock": "b"})
    idle.unregister()
    mine.unregister()


@pytest.mark.spec("REG-1")
def test_an_entry_that_names_no_table_counts():
    table = new_table()
    register_process(table.context, MINE)
    (name,) = table.context.ports.storage.names(WRITERS)
    path = f"{WRITERS}/{name}"
    document = json.loads(table.context.ports.storage.read(path))
    assert document.pop("table") == table.context.table_id
    table.context.ports.storage.write(path, json.dumps(document).encode())
    with pytest.raises(WriterDisagreementError):
        register_process(opened(table).context, {"lock": "b"})


def test_a_writer_that_ended_without_notice_can_be_forgotten():
    clock = StillClock()
    table = new_table(storage_at(clock), clock=clock)
    crashed = register_process(table.context, MINE)
    crashed.ticker.stop()
    other = opened(table, clock=clock)
    (entry,) = registered_writers(other.context)
    with pytest.raises(InvalidInputError) as caught:
        forget(other.context, entry.writer_id)
    assert caught.value.kind == "writer_alive"
    clock.sleep_ms(table.context.limits.heartbeat.tolerated_ms + 1)
    assert (
        forget(other.context, entry.writer_id, dry_run=True).low_water_mark == entry.low_water_mark
    )
    assert len(registered_writers(other.context)) == 1
    assert forget(other.context, entry.writer_id).writer_id == entry.writer_id
    assert registered_writers(other.context) == []
    with pytest.raises(InvalidInputError) as caught:
        forget(other.context, entry.writer_id)
    assert caught.value.kind == "no_such_writer"


def test_a_writer_with_a_live_entry_is_forgotten_by_force_and_registers_again():
    table = new_table()
    living = register_process(table.context, MINE)
    (entry,) = registered_writers(table.context)
    assert forget(opened(table).context, entry.writer_id, force=True).alive
    assert registered_writers(table.context) == []
    living.beat()
    assert [one.writer_id for one in registered_writers(table.context)] == [entry.writer_id]
    living.unregister()


def strange(**changes: object) -> bytes:
    """Return a registry entry with one changed value."""
    entry = dict.fromkeys(("writer_id", "host", "pid", "application", "since_ms", "pin"), 1)
    return json.dumps({**entry, "agreement": {}, **changes}).encode()


DAMAGED = {
    "empty": b"",
    "torn": b"{",
    "list": b"[]",
    "part": b'{"writer_id": 1}',
    "text": b"\xff",
    "type": b'{"pid": "x"}',
    "null": b"null",
    "nested": b"[" * 100_000,
    "agreement": strange(agreement=[]),
    "none": strange(agreement=None),
    "pid": strange(pid=1e999),
    "pin": strange(pin=1e999),
    "since": strange(since_ms=10**30),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_entries_are_ignored(damage: str):
    table = new_table()
    table.context.ports.storage.write(f"{WRITERS}/strange.json", DAMAGED[damage])
    register_process(table.context, MINE).unregister()
    assert registered_writers(table.context) == []


SLOW = replace(BRISK, heartbeat=HeartbeatLimits(interval_ms=60_000, misses=2))
QUICK = replace(BRISK, heartbeat=HeartbeatLimits(interval_ms=2_000, misses=2))


@pytest.mark.spec("REG-1")
def test_a_newcomer_with_a_shorter_heartbeat_expiry_than_a_live_writer_is_refused():
    """With its shorter limit it would roll back pending writes of a live writer."""
    clock = StillClock()
    table = new_table(storage_at(clock), limits=SLOW, clock=clock)
    register_process(table.context, {"lock": "a", "heartbeat_expiry_ms": "120000"})
    clock.sleep_ms(30_000)
    quick = opened(table, limits=QUICK, clock=clock)
    with pytest.raises(WriterDisagreementError):
        register_process(quick.context, {"lock": "a", "heartbeat_expiry_ms": "4000"})


@pytest.mark.spec("REG-1")
def test_a_slow_heartbeat_writer_is_not_forgotten_by_one_with_a_shorter_expiry():
    clock = StillClock()
    table = new_table(storage_at(clock), limits=SLOW, clock=clock)
    register_process(table.context, {"lock": "a"})
    (entry,) = registered_writers(table.context)
    clock.sleep_ms(30_000)
    with pytest.raises(InvalidInputError):
        forget(opened(table, limits=QUICK, clock=clock).context, entry.writer_id)

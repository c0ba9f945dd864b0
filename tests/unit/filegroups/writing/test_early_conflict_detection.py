"""Conflicts with announced writes before data files are written (option ``announced``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.files.parquet import read_base_file
from filegroups.settings.settings import WriteSettings
from filegroups.table import TableReader
from hoodoo.factory import limits_of
from hoodoo.inspect.contention import measure_contention
from hoodoo.inspect.instants import list_instants
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    StillClock,
    begun,
    data_files,
    heard,
    leftovers,
    new_table,
    opened,
    put,
    put_watched,
    upsert,
)
from timeline.codecs.instant_avro import encode_commit
from timeline.commit.concurrent_commits import announced_writes
from timeline.commit.markers import create_marker
from timeline.context import TableLimits
from timeline.errors import WriteConflictError
from timeline.model.commit_metadata import Access, TableType, WriteOperation, workload_profile
from timeline.model.file_names import MARKERS, IOType, heartbeat_path, timeline_path
from timeline.properties.options import as_property_set
from timeline.properties.setting_enums import EarlyDetection
from timeline.rules.conflicts import find_strategy

UPSERT, INSERT = WriteOperation.UPSERT, WriteOperation.INSERT
APART = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))
YIELDING = replace(BRISK, waits_for_announced=True)
ON_SERVER = "org.apache.hudi.timeline.service.handlers.marker"
STRATEGY = "hoodie.write.concurrency.early.conflict.detection.strategy"


def limits(**budget: int) -> TableLimits:
    return replace(YIELDING, retry=replace(YIELDING.retry, **budget))


AT_ONCE = limits(conflict_retries_max=0)  # does not wait: the write is rejected


def row(key: str, ts: int = 2, p: str = "x") -> dict[str, Any]:
    return {"id": key, "p": p, "ts": ts, "v": ts}


def table_of(kind: TableType = TableType.COPY_ON_WRITE, how: TableLimits = YIELDING) -> TableReader:
    """Return a table with keys a and b, each in its own file group."""
    table = new_table(table_type=kind, limits=how, clock=StillClock())
    for key in "ab":
        put(table, INSERT, [row(key, ts=1)], files=APART)
    return table


class Waits(StillClock):
    """A clock that runs an action during its n-th sleep."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__()
        self._at, self._act, self.slept = at, act, 0

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        self.slept += 1
        if self.slept == self._at:
            self._act()


# ---------------------------------------------------------------- which write is rejected


@pytest.mark.parametrize("kind", list(TableType))
def test_the_later_write_is_rejected_before_it_writes_and_names_the_earlier_one(kind: TableType):
    table = table_of(kind)
    later = opened(table, limits=AT_ONCE, clock=StillClock())
    before = data_files(table)
    errors: list[WriteConflictError] = []

    def meanwhile() -> None:
        (first,) = table.context.active().pending
        with pytest.raises(WriteConflictError) as refused:
            upsert(later, [row("a", ts=3)], files=APART)
        errors.append(refused.value)
        report = refused.value.fields["report"]
        (winner,) = report["winners"]
        assert winner.startswith(f"{first.requested_time} {first.action.value} by pid ")
        assert (report["rule"], report["redo"]) == ("C20", "everything")
        assert len(report["file_groups"]) == 1
        assert data_files(table) == before
        assert [one.requested_time for one in table.context.active().pending] == [
            first.requested_time
        ]

    result = upsert(table, [row("a", ts=2)], meanwhile, files=APART)
    assert (errors[0].kind, result.attempts) == ("announced_conflict", 1)
    assert leftovers(table) == []


@pytest.mark.spec("BEG-8")
def test_the_earlier_write_continues():
    """Both writes see each other, and only one of them may be rejected."""
    table = table_of()
    earlier = begun(
        opened(table, limits=AT_ONCE, clock=StillClock()), UPSERT, [row("a", ts=5)], files=APART
    )
    first: list[Any] = []
    second = upsert(table, [row("a", ts=3)], lambda: first.append(earlier()), files=APART)
    assert (first[0].attempts, first[0].refusals) == (1, ())
    assert first[0].completion_time < second.completion_time


def test_announced_writes_count_only_when_the_option_is_set():
    table = table_of()
    later = opened(table, limits=replace(AT_ONCE, waits_for_announced=False), clock=StillClock())
    first: list[Any] = []
    upsert(
        table,
        [row("a", ts=2)],
        lambda: first.append(upsert(later, [row("a", ts=3)], files=APART)),
        files=APART,
    )
    assert first[0].attempts == 1


def test_announced_writes_to_other_file_groups_do_not_conflict():
    table = table_of()
    later = opened(table, limits=AT_ONCE, clock=StillClock())
    act = lambda: upsert(later, [row("b", ts=3)], files=APART)  # noqa: E731
    assert upsert(table, [row("a", ts=2)], act, files=APART).attempts == 1


def test_a_strategy_rejects_an_announced_write():
    """One writer at a time in a partition: the file groups differ."""
    table = table_of()
    strategy = find_strategy("partition")
    assert strategy is not None
    later = opened(table, limits=replace(AT_ONCE, strategy=strategy), clock=StillClock())

    def meanwhile() -> None:
        with pytest.raises(WriteConflictError) as refused:
            upsert(later, [row("b", ts=3)], files=APART)
        assert refused.value.kind == "announced_conflict"

    upsert(table, [row("a", ts=2)], meanwhile, files=APART)


def test_an_announced_overwrite_of_a_partition_conflicts():
    table = table_of()
    later = opened(table, limits=AT_ONCE, clock=StillClock())

    def meanwhile() -> None:
        with pytest.raises(WriteConflictError) as refused:
            upsert(later, [row("c", ts=3)], files=APART)
        assert refused.value.kind == "announced_conflict"

    put(table, WriteOperation.INSERT_OVERWRITE, [row("z")], meanwhile, files=APART)


# ---------------------------------------------------------------- waiting


def test_a_writer_with_an_expired_heartbeat_is_not_waited_for():
    table = table_of()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upsert(table, [row("a", ts=2)], interrupted, files=APART)
    assert len(table.context.active().pending) == 1
    later = opened(table, limits=AT_ONCE, clock=StillClock())
    assert upsert(later, [row("a", ts=3)], files=APART).attempts == 1


def test_a_wait_ends_when_the_heartbeat_of_the_other_writer_expires():
    table = table_of()
    storage = table.context.ports.storage

    def meanwhile() -> None:
        (first,) = table.context.active().pending
        silent = Waits(3, lambda: storage.delete(heartbeat_path(first.requested_time)))
        later = opened(table, limits=YIELDING, clock=silent)
        assert upsert(later, [row("a", ts=3)], files=APART).attempts == 1
        assert silent.slept == 3
        (event,) = heard(later, "write.gives_way")
        assert event["rivals"] == first.requested_time
        assert heard(later, "write.way_given") == [{"rt": event["rt"], "wait_ms": 20 + 40 + 80}]

    upsert(table, [row("a", ts=2)], meanwhile, files=APART)
    assert leftovers(table) == []


def test_a_wait_is_recorded_in_the_commit_and_in_contention():
    table = table_of()
    storage = table.context.ports.storage
    waited: list[str] = []

    def meanwhile() -> None:
        (first,) = table.context.active().pending
        silent = Waits(3, lambda: storage.delete(heartbeat_path(first.requested_time)))
        later = opened(table, limits=YIELDING, clock=silent)
        waited.append(upsert(later, [row("a", ts=3)], files=APART).requested_time)

    upsert(table, [row("a", ts=2)], meanwhile, files=APART)
    (account,) = [one for one in list_instants(table.context) if one.requested_time == waited[0]]
    (wait,) = account.waits
    assert (wait["rule"], wait["kind"], wait["wait_ms"]) == ("C20", "announced_conflict", 140)
    assert account.lines()[-1].startswith("waited: 140 ms for what was announced before: ")
    contention = measure_contention(table.context)
    assert contention.waits == 1
    (meeting,) = [one for one in contention.meetings if one.kind == "announced_conflict"]
    assert (meeting.times, meeting.written_again, meeting.lost_seconds) == (1, 0, 0.14)
    assert len(meeting.places) == 1
    assert contention.lines()[0].endswith(", 1 wait for announced writes")
    assert any("strategy=published" in text for text in contention.advice)


def test_a_wait_has_the_limits_of_retries():
    table = table_of()

    def meanwhile() -> None:
        clock = StillClock()
        later = opened(table, limits=limits(total_ms_max=5_000), clock=clock)
        with pytest.raises(WriteConflictError) as refused:
            upsert(later, [row("a", ts=3)], files=APART)
        assert refused.value.kind == "announced_conflict"
        assert 5_000 < clock.steady <= 7_000

    assert upsert(table, [row("a", ts=2)], meanwhile, files=APART).attempts == 1
    assert leftovers(table) == []


def test_a_writer_that_pauses_too_long_while_it_waits_is_retried():
    """Other writers may have rolled it back (HB-3), so it must not use its old time."""
    table = table_of()
    storage = table.context.ports.storage

    def meanwhile() -> None:
        (first,) = table.context.active().pending

        def oversleep() -> None:
            clock.steady += 10 * YIELDING.heartbeat.tolerated_ms
            storage.delete(heartbeat_path(first.requested_time))

        clock = Waits(2, oversleep)
        later = opened(table, limits=YIELDING, clock=clock)
        result, written = put_watched(later, UPSERT, [row("a", ts=3)], files=APART)
        assert [refusal.rule for refusal in result.refusals] == ["C6"]
        assert len(written) == 1  # no file with the old time

    upsert(table, [row("a", ts=2)], meanwhile, files=APART)
    assert leftovers(table) == []


@pytest.mark.spec("BEG-8")
def test_a_writer_with_the_commit_lock_does_not_wait_for_announced_writes():
    """The first write requests the lock to commit, so both would wait for ever."""
    table = table_of()

    def meanwhile() -> None:
        clock = StillClock()
        later = opened(table, limits=YIELDING, clock=clock)
        finish = begun(later, UPSERT, [row("a", ts=3)], queued=True, files=APART)
        assert finish().attempts == 1
        assert clock.steady == 0

    upsert(table, [row("a", ts=2)], meanwhile, files=APART)


# ---------------------------------------------------------------- the announcement

RT = "20260921141320500"  # half a second after the times of the table


def by_java(table: TableReader, *, server: bool) -> None:
    """Add a live writer with markers, but without a file group in its profile."""
    storage = table.context.ports.storage
    assert (table.context.active().newest_time or "") < RT
    (path,) = [path for path in data_files(table) if "a" in keys_in(table, path)]
    partition_path, _, name = path.rpartition("/")
    file = f"{name.rpartition('_')[0]}_{RT}.parquet"
    profile = workload_profile(operation_type="BULK_INSERT", planned_insert_rows={"x": 1})
    storage.create(timeline_path(f"{RT}.commit.requested"), b"")
    storage.create(timeline_path(f"{RT}.inflight"), encode_commit(profile))
    storage.create(heartbeat_path(RT), b"")
    if not server:
        create_marker(storage, RT, partition_path, file, IOType.MERGE)
        return
    storage.create(f"{MARKERS}/{RT}/MARKERS.type", b"TIMELINE_SERVER_BASED")
    line = f"{partition_path}/{file}.marker.MERGE\n"
    storage.create(f"{MARKERS}/{RT}/MARKERS2", line.encode())


def keys_in(table: TableReader, path: str) -> list[str]:
    found = read_base_file(table.context.ports.storage, path, columns=["id"])
    return [str(key) for key in found.column("id").to_pylist()]


@pytest.mark.parametrize("server", [False, True], ids=["a file each", "timeline server"])
def test_markers_of_java_are_read_in_both_forms(server: bool):
    table = table_of(how=AT_ONCE)
    by_java(table, server=server)
    later = opened(table, limits=AT_ONCE, clock=StillClock(StillClock().wall + 1_000))
    with pytest.raises(WriteConflictError) as refused:
        upsert(later, [row("a")], files=APART)
    assert refused.value.kind == "announced_conflict"
    assert refused.value.fields["report"]["winners"] == (f"{RT} commit by an unknown writer",)
    assert upsert(later, [row("b")], files=APART).attempts == 1


@pytest.mark.parametrize(
    ("kind", "access"),
    [(TableType.COPY_ON_WRITE, Access.BASE), (TableType.MERGE_ON_READ, Access.LOG)],
)
def test_an_inflight_file_announces_writer_and_write_set(kind: TableType, access: Access):
    table = table_of(kind)
    found: list[Any] = []
    read_announced = lambda: found.extend(announced_writes(table.context, table.context.active()))  # noqa: E731
    upsert(table, [row("a")], read_announced, files=APART)
    (announced,) = found
    assert [item.access for item in announced.write_set.file_groups if item.file_group.file_id] == [
        access
    ]
    identity = table.context.ports.ids.identity()
    assert announced.writer == f"pid {identity.pid} on {identity.host}"


# ---------------------------------------------------------------- the option


@pytest.mark.parametrize(
    ("strategy", "waits_for_announced"),
    [
        ("published", False),
        ("announced", True),
        ("org.apache.hudi.table.marker.SimpleDirectMarkerBasedDetectionStrategy", True),
        ("org.apache.hudi.table.marker.SimpleTransactionDirectMarkerBasedDetectionStrategy", True),
        (
            f"{ON_SERVER}.AsyncTimelineServerBasedDetectionStrategy",
            True,
        ),
    ],
)
def test_classes_of_hudi_compare_announcements(strategy: str, waits_for_announced: bool):
    settings = WriteSettings.from_properties({STRATEGY: strategy})
    assert (
        limits_of(settings, as_property_set({STRATEGY: strategy})).waits_for_announced
        is waits_for_announced
    )


def test_announcements_do_not_count_by_default():
    assert WriteSettings().early_detection is EarlyDetection.PUBLISHED

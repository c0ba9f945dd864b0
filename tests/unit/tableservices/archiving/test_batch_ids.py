"""Batch ids whose slots are truncated: every truncation point knows them (BATCH-2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.table import TableReader
from filegroups.writing.idempotency import committed_batch
from hoodoo.verify.verify import check_batches
from tableservices.archiving.batch_ids import remember_batches
from tableservices.archiving.execute import _unneeded_truncation_points, archive
from tableservices.archiving.plan import ArchiveRules, next_truncation_point
from tableservices.restoring.restore import restore
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import Behind, StillClock, new_table, opened, planned, upsert
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.commit_log import NO_TRUNCATION, TruncationPoint, encode_truncation_point
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import BOUNDARIES, truncation_point_path
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Batch, Slot
from timeline.snapshot import ActiveTimeline
from timeline.truncation import read_truncated_batches, read_truncation_point

pytestmark = pytest.mark.spec("BATCH-2")

RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodoo.batch.boundary.ids": "2",
    }
)
TOGETHER = 2
DAY_MS = 24 * 3_600_000


class Cutter:
    """
    Truncates repeatedly a commit log of one batch a slot, without a timeline: content of its files.
    """

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.truncation_point, self.body = NO_TRUNCATION, b""
        self.slots = 0
        self.times: dict[str, tuple[InstantTime, InstantTime]] = {}  # requested, completed
        self.repeats: Counter[str] = Counter()

    def cut(self, count: int, *, since: InstantTime, withdrawn: frozenset[InstantTime]) -> None:
        """Collect so many new slots; none leaves the boundary where it was."""
        carried = remember_batches(
            self.storage,
            self.truncation_point,
            self.body,
            since=since,
            withdrawn=withdrawn,
            together=TOGETHER,
        )
        slots = [*self.published(count), commit_slot(self.slots + count + 1)]
        new = next_truncation_point(
            self.truncation_point, ActiveTimeline.of([]), [], slots, ceiling=10**6, carried=carried
        )
        moved = new.number > self.truncation_point.number
        self.truncation_point = new
        if moved:
            self.body = encode_truncation_point(new)
            self.storage.create(truncation_point_path(new.number), self.body)
            self.repeats.update(one.batch.batch_id for one in new.batches)
        for number in _unneeded_truncation_points(self.storage, new):
            self.storage.delete(truncation_point_path(number))

    def published(self, count: int) -> Iterator[Slot]:
        for _ in range(count):
            self.slots += 1
            batch = Batch(batch_id=f"b{self.slots}")
            slot = commit_slot(self.slots, batches=(batch,))
            self.times[batch.batch_id] = (slot.requested_time, slot.completion_time)
            yield slot

    def known(self) -> list[str]:
        present = read_truncation_point(self.storage)
        numbers = [one.number for one in present.earlier]
        batches = [
            *present.batches,
            *(b for n in numbers for b in read_truncated_batches(self.storage, n)),
        ]
        return [one.batch.batch_id for one in batches]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from((None, None, None, 1, 30)), st.integers(0, 12)
        ),
        min_size=1,
        max_size=40,
    )
)
def test_no_truncation_forgets_a_batch_that_is_neither_old_nor_restored_away(
    cuts: list[tuple[int, int | None, int]],
):
    cutter, gone, since = Cutter(), set[str](), ""
    for count, taken, older in cuts:
        at = None if taken is None else f"b{cutter.slots - taken}"
        withdrawn = frozenset({cutter.times[at][0]}) if at in cutter.times else frozenset()
        old = f"b{cutter.slots - older - 10}"
        if old in cutter.times:  # batches older than a past retention are forgotten for good
            since = max(since, cutter.times[old][1])
        moves = count > 0
        cutter.cut(count, since=since, withdrawn=withdrawn)
        if withdrawn and at is not None and moves:
            gone.add(at)
        known = Counter(cutter.known())
        assert max(known.values(), default=1) == 1, "each once"
        owed = {name for name, (_, completed) in cutter.times.items() if completed >= since} - gone
        assert owed <= set(known)
        assert gone.isdisjoint(known)
        names = {int(name) for name in cutter.storage.names(BOUNDARIES)}
        present = read_truncation_point(cutter.storage)
        assert names - {0} == {present.number, *(one.number for one in present.earlier)} - {0}


def test_a_batch_is_copied_as_often_as_the_number_of_batches_doubles():
    cutter = Cutter()
    for _ in range(400):
        cutter.cut(1, since="", withdrawn=frozenset())
        assert len(cutter.truncation_point.batches) <= 16 * TOGETHER + 1
    assert len(cutter.known()) == 400
    assert max(cutter.repeats.values()) <= 2 * (TOGETHER + 5)  # 2, 4, 8, 16, 32
    assert len(cutter.truncation_point.earlier) <= 400 / (8 * TOGETHER) + 5


def test_each_truncation_point_records_count_age_and_digest_of_earlier_ones():
    cutter = Cutter()
    for _ in range(3):
        cutter.cut(1, since="", withdrawn=frozenset())
    (one,) = cutter.truncation_point.earlier
    assert (one.number, one.count) == (2, 2)
    assert one.newest == cutter.times["b2"][1]
    assert check_all(cutter.storage) == []
    assert read_truncation_point(cutter.storage) == cutter.truncation_point


def check_all(storage: MemoryStorage) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    class Report:
        def problem(self, kind: str, path: str, message: str) -> None:
            assert message
            found.append((kind, path))

    context: Any = SimpleNamespace(ports=SimpleNamespace(storage=storage))
    check_batches(context, Report())
    return found


def test_verify_reports_an_earlier_truncation_point_that_is_missing_or_edited():
    cutter = Cutter()
    for _ in range(3):
        cutter.cut(1, since="", withdrawn=frozenset())
    path = truncation_point_path(2)
    data = cutter.storage.read(path)
    cutter.storage.write(path, data.replace(b'"b1"', b'"c1"'))
    assert check_all(cutter.storage) == [("boundary_differs", path)]
    cutter.storage.delete(path)
    assert check_all(cutter.storage) == [("boundary_missing", path)]


# ---- a table


def grown(count: int) -> tuple[TableReader, StillClock, RecordingStorage]:
    """So many writes of one batch each, archived as they go."""
    clock = StillClock()
    storage = RecordingStorage(MemoryStorage("memory://t", ports=MemoryWorld(clock)))
    table = new_table(storage, clock=clock)
    for number in range(count):
        write(table, number)
        archive(table.context, RULES)
    return table, clock, storage


def write(table: TableReader, number: int) -> bool:
    rows = [{"id": "a", "p": "x", "ts": number}]
    return upsert(table, rows, batch_id=f"batch {number}").already_published


def asked(table: TableReader, number: int) -> bool:
    plan = planned(table, WriteOperation.UPSERT, batch_id=f"batch {number}")
    return committed_batch(table.context, plan) is not None


def truncation_point_of(table: TableReader) -> TruncationPoint:
    return read_truncation_point(table.context.ports.storage)


@pytest.mark.spec("BATCH-1")
def test_every_batch_is_known_to_old_and_new_processes():
    table, clock, _ = grown(40)
    assert len(truncation_point_of(table).earlier) >= 2
    new_handle = opened(table, clock=clock)
    for each in (table, new_handle):
        assert [asked(each, number) for number in range(41)] == [True] * 40 + [False]
    assert write(new_handle, 0)
    assert not write(new_handle, 40)


def test_a_truncation_point_file_is_read_once():
    table, _, storage = grown(40)
    assert not asked(table, 99)
    storage.forget()
    assert not asked(table, 98)
    assert [
        call for call in storage.calls if BOUNDARIES in call.path and call.operation == "read"
    ] == []
    for number in range(40, 60):
        assert not write(table, number)
        archive(table.context, RULES)
    read = Counter(call.path for call in storage.calls if call.operation == "read")
    of_truncation_points = {
        path: count for path, count in read.items() if path.startswith(BOUNDARIES)
    }
    assert max(of_truncation_points.values()) <= 2, "to read its content, and once to merge it"


def test_old_batch_ids_are_deleted_with_their_files():
    table, clock, storage = grown(40)
    clock.sleep_ms(8 * DAY_MS)
    for number in range(40, 48):
        write(table, number)
        archive(table.context, RULES)
    left = set(storage.names(BOUNDARIES))
    present = truncation_point_of(table)
    assert left == {f"{n:020d}" for n in (present.number, *(e.number for e in present.earlier))}
    assert not asked(opened(table, clock=clock), 0)
    assert asked(opened(table, clock=clock), 40)


def test_a_missing_truncation_point_file_is_reported_and_stops_no_archive():
    table, clock, storage = grown(40)
    lost = truncation_point_path(truncation_point_of(table).earlier[0].number)
    storage.delete(lost)
    new_handle = opened(table, clock=clock)
    with pytest.raises(CorruptTableError, match="committed before") as refused:
        write(new_handle, 40)
    assert refused.value.fields["path"] == lost
    for number in range(8):
        upsert(new_handle, [{"id": "a", "p": "x", "ts": 100 + number}])
        archive(new_handle.context, RULES)
    assert truncation_point_of(table).number > 40


def test_a_truncation_point_file_that_is_deleted_meanwhile_is_found_in_the_next_one():
    table, clock, storage = grown(40)

    class CutsAgain(Behind):
        """Another archiver gives the file up just before it is read."""

        reached = 0

        def read(self, path: str) -> bytes:
            first = truncation_point_path(truncation_point_of(table).earlier[-1].number)
            if path == first and not self.reached:
                self.reached = 1
                number = 40
                while path[-20:] in self.inner.names(BOUNDARIES):
                    write(table, number)
                    archive(table.context, RULES)
                    number += 1
            return bytes(self.inner.read(path))

    behind = CutsAgain(storage)
    new_handle = opened(table, storage=behind, clock=clock)
    assert [asked(new_handle, number) for number in (0, 20, 38, 39, 99)] == [True] * 4 + [False]
    assert behind.reached


@pytest.mark.spec("RST-1")
def test_a_restored_away_batch_is_written_again_also_after_truncation_of_the_restore():
    table, clock, _ = grown(0)
    for number in range(3):
        write(table, number)
    kept = table.context.active().completed_writes[0].requested_time
    restore(table.context, kept)
    for number in range(3, 40):
        write(table, number)
        archive(table.context, RULES)
    known = opened(table, clock=clock)
    assert [asked(known, number) for number in range(4)] == [True, False, False, True]
    assert not write(known, 1)


# ---- the newest boundary


def newest_path(table: TableReader) -> str:
    return truncation_point_path(truncation_point_of(table).number)


def test_the_newest_truncation_point_is_restored_from_its_truncate_slot():
    table, clock, storage = grown(40)
    path = newest_path(table)
    data = storage.read(path)
    storage.delete(path)
    new_handle = opened(table, clock=clock)
    assert [asked(new_handle, number) for number in range(41)] == [True] * 40 + [False]
    assert storage.read(path) == data
    assert not write(new_handle, 40)


def test_a_process_that_read_the_newest_truncation_point_keeps_its_batches_when_it_is_lost():
    table, _, storage = grown(40)
    assert asked(table, 0)
    storage.delete(newest_path(table))
    assert [asked(table, number) for number in range(41)] == [True] * 40 + [False]


def test_a_truncation_point_that_cannot_be_restored_refuses_batches():
    table, clock, storage = grown(40)
    path = newest_path(table)
    storage.delete(path)

    class NeverLists(Behind):
        """Its listing shows no newer one, as if the file could not be made."""

        def names(self, folder: str) -> list[str]:
            names = list(self.inner.names(folder))
            return [one for one in names if one != path[-20:]] if folder == BOUNDARIES else names

    new_handle = opened(table, storage=NeverLists(storage), clock=clock)
    with pytest.raises(CorruptTableError, match="what batches") as refused:
        write(new_handle, 0)
    assert refused.value.fields["path"] == path
    upsert(new_handle, [{"id": "b", "p": "x", "ts": 1}])  # without an id nothing is owed


def test_an_archiver_with_a_fast_clock_forgets_no_batch_id_early():
    table, clock, _ = grown(10)
    archiver = opened(table, clock=clock)
    for number in range(10, 16):
        write(table, number)
    ahead = StillClock()
    ahead.sleep_ms(clock.now_ms() - ahead.now_ms() + 30 * DAY_MS)
    archive(opened(table, clock=ahead).context, RULES)
    assert truncation_point_of(table).number > 0
    assert [asked(archiver, number) for number in range(17)] == [True] * 16 + [False]
    assert [asked(opened(table, clock=clock), number) for number in range(16)] == [True] * 16


@pytest.mark.spec("SLOT-10")
def test_a_truncation_point_of_a_dropped_table_forgets_no_batch():
    """A writer with that table open moved it here, and removes it when it refreshes."""
    table, clock, storage = grown(0)
    for number in range(4):
        write(table, number)
    alien = truncation_point_path(500)
    storage.create(
        alien, encode_truncation_point(TruncationPoint(number=500, time="20260101000000000"))
    )
    for each in (table, opened(table, clock=clock)):
        assert [asked(each, number) for number in range(5)] == [True] * 4 + [False]
        assert [asked(each, number) for number in range(5)] == [True] * 4 + [False], "again"
    storage.delete(alien)
    for number in range(4, 20):
        assert not write(table, number)
        archive(table.context, RULES)
    assert 0 < truncation_point_of(table).number < 500
    for each in (table, opened(table, clock=clock)):
        assert [asked(each, number) for number in range(21)] == [True] * 20 + [False]

"""Reader leases: the files that cleaning keeps, and the error of an expired reader."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader, open_reader
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tests.unit.timeline.engine import (
    BRISK,
    StillClock,
    data_files,
    files_below,
    new_table,
    upsert,
    world_of,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.errors import MissingFileError, SnapshotExpiredError
from timeline.heartbeat import is_lease_expired, is_lease_trusted
from timeline.model.file_names import DEFERRED_DELETES, READERS
from timeline.reader_lease import ReaderLease, registered_readers

ONE = CleaningSettings(commits_retained=1)
LEASE_MS = 9_000


class Tickers:
    """An executor whose background work runs when a test calls it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.works: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def every(self, interval_ms: int, work: Any) -> Any:
        self.works.append(work)
        return self

    def stop(self) -> None:
        self.works.clear()


class Bench:
    """A table with one file group that every commit rewrites, and a reader of it."""

    def __init__(self, lease_ms: int = LEASE_MS) -> None:
        self.clock = StillClock()
        self.storage = MemoryStorage(ports=MemoryWorld(self.clock))
        self.writer = new_table(self.storage, clock=self.clock)
        self.commit(0)
        ports = world_of(self.storage, application="report", clock=self.clock)
        self.tickers = Tickers(ports.executor)
        limits = replace(BRISK, reader_lease_ms=lease_ms)
        self.reader = open_reader(replace(ports, executor=self.tickers), limits)

    def commit(self, *values: int) -> None:
        for value in values:
            upsert(self.writer, [{"id": "a", "p": "x", "v": value, "ts": value}])

    def clean(self) -> int:
        """Clean once, and return the number of remaining data files."""
        clean(self.writer.context, ONE)
        return len(data_files(self.writer))

    def leases(self) -> list[str]:
        return files_below(self.storage, READERS)

    def tick(self) -> None:
        for work in list(self.tickers.works):
            work()


def values(table: Any) -> list[int]:
    return table.to_arrow(columns=["v"])["v"].to_pylist()


def test_a_pinned_snapshot_keeps_its_files_until_the_clean_after_its_release() -> None:
    bench = Bench()
    with bench.reader.pin() as state:
        bench.commit(1, 2, 3)
        assert bench.clean() == 3  # the slice of 1 is deleted at once: no reader has it
        assert files_below(bench.storage, DEFERRED_DELETES) != []
        assert values(state) == [0]
    assert bench.leases() == []
    bench.commit(4)
    assert bench.clean() == 2
    assert files_below(bench.storage, DEFERRED_DELETES) == []


def test_deferred_deletes_are_not_planned_again_before_the_reader_ends() -> None:
    bench = Bench()
    with bench.reader.pin() as state:
        bench.commit(1, 2, 3)
        assert bench.clean() == 3
        assert clean(bench.writer.context, ONE) is None
        bench.commit(4)
        result = clean(bench.writer.context, ONE)
        assert result is not None
        assert len(result.files) == 1  # the slice of 2 only: that of 0 was deleted before
        assert values(state) == [0]
        assert len(files_below(bench.storage, DEFERRED_DELETES)) == 1
    assert clean(bench.writer.context, ONE) is None
    assert len(data_files(bench.writer)) == 2
    assert files_below(bench.storage, DEFERRED_DELETES) == []


def test_a_reader_above_the_floor_of_a_clean_keeps_no_files() -> None:
    bench = Bench()
    bench.commit(1, 2)
    with bench.reader.pin() as state:
        bench.commit(3)
        assert bench.clean() == 2
        assert values(state) == [2]
    assert files_below(bench.storage, DEFERRED_DELETES) == []


def test_a_reader_whose_files_were_cleaned_cannot_pin_and_reads_a_newer_snapshot() -> None:
    bench = Bench()
    bench.commit(1, 2)
    at = bench.reader.current_state()
    assert at.snapshot.newest_completion is not None
    bench.commit(3, 4)
    bench.clean()
    with pytest.raises(SnapshotExpiredError, match="read a newer one"):
        at.pin()
    assert bench.leases() == []
    with bench.reader.pin() as state:
        assert values(state) == [4]


def test_a_short_read_writes_nothing() -> None:
    bench = Bench()
    with bench.reader.scan(columns=["v"]) as rows:
        assert len(bench.tickers.works) == 0  # no file is read before the first batch is requested
        rows.read_next_batch()
        assert bench.leases() == []
        rows.read_all()
    assert bench.tickers.works == []


def test_a_long_read_takes_a_lease_and_releases_it() -> None:
    bench = Bench()
    upsert(bench.writer, [{"id": "b", "p": "y", "v": 7, "ts": 7}])
    with bench.reader.scan(columns=["v"]) as rows:
        first = rows.read_next_batch()
        bench.tick()
        [lease] = registered_readers(bench.writer.context)
        assert (lease.application, lease.alive, lease.lease_ms) == ("report", True, LEASE_MS)
        upsert(bench.writer, [{"id": "b", "p": "y", "v": 8, "ts": 8}])
        bench.commit(1, 2)
        bench.clean()
        second = rows.read_next_batch()
        assert sorted(first["v"].to_pylist() + second["v"].to_pylist()) == [0, 7]
        rows.read_all()
    assert bench.leases() == []


def test_a_reader_that_stalls_loses_its_lease() -> None:
    bench = Bench()
    lease = ReaderLease(bench.reader.context, bench.reader.snapshot)
    lease.begin()
    bench.tick()
    for _ in range(4):
        bench.clock.sleep_ms(LEASE_MS // 3)
        bench.tick()
    [seen] = registered_readers(bench.writer.context) or [None]
    assert seen is None or not seen.alive
    lease.end()


def test_a_lease_that_expired_in_a_pause_is_replaced_by_one_with_another_name() -> None:
    bench = Bench()
    lease = ReaderLease(bench.reader.context, bench.reader.snapshot, held=True)
    lease.begin()
    bench.tick()
    [before] = bench.leases()
    bench.clock.sleep_ms(LEASE_MS)
    bench.tick()
    [after] = bench.leases()
    assert before != after
    lease.end()
    assert bench.leases() == []


def test_a_read_of_the_newest_snapshot_restarts_when_no_row_was_returned() -> None:
    bench = Bench()
    rows = bench.reader.scan(columns=["v"])
    bench.commit(1, 2, 3)
    assert bench.clean() == 2
    assert rows.read_all()["v"].to_pylist() == [3]


def test_a_pinned_snapshot_that_was_cleaned_is_expired_and_not_corrupt() -> None:
    bench = Bench()
    at = bench.reader.current_state()
    assert at.file_slices() != []
    bench.commit(1, 2, 3)
    bench.clean()
    with pytest.raises(SnapshotExpiredError) as caught:
        at.to_arrow()
    assert caught.value.kind == "snapshot_expired"
    assert "hoodoo.reader.lease.ms" in caught.value.message


def test_a_deleted_file_that_no_clean_names_is_missing() -> None:
    bench = Bench()
    at = bench.reader.current_state()
    [one] = at.file_slices()
    assert one.base_file is not None
    bench.storage.delete(one.base_file.path)
    with pytest.raises(MissingFileError):
        at.to_arrow()


def test_leases_are_switched_off_by_zero() -> None:
    bench = Bench(lease_ms=0)
    with bench.reader.pin() as state:
        assert bench.leases() == []
        assert values(state) == [0]


def test_an_expired_lease_keeps_no_files_and_is_deleted_when_it_is_old() -> None:
    bench = Bench()
    bench.reader.pin()  # a reader that dies
    bench.clock.sleep_ms(LEASE_MS + 1)
    bench.commit(1, 2, 3)
    assert bench.clean() == 2
    assert len(bench.leases()) == 1
    bench.clock.sleep_ms(10 * LEASE_MS)
    bench.commit(4)
    bench.clean()
    assert bench.leases() == []


def test_a_reader_of_changes_needs_every_file_of_its_range() -> None:
    bench = Bench()
    bench.commit(1)
    lease = ReaderLease(
        bench.reader.context, bench.reader.snapshot, since="00000000000000000", held=True
    )
    assert lease.acquire()
    bench.commit(2, 3, 4)
    assert bench.clean() == 4  # of 0 and 1, which it reads, and the two retained ones
    lease.end()


@pytest.mark.spec("RDL-1")
def test_an_incremental_read_of_newer_files_leases_those() -> None:
    """Files of the range were cleaned, so the read uses newer files than those of the range."""
    bench = Bench()
    two = [{"id": "b", "p": "y", "v": 5, "ts": 5}, {"id": "c", "p": "z", "v": 6, "ts": 6}]
    end = upsert(bench.writer, two).completion_time
    beside = [{**one, "id": "beside", "v": 7} for one in two]
    upsert(bench.writer, beside)
    bench.commit(1, 2)
    bench.clean()
    with bench.reader.changes("earliest", end, columns=["v"]) as rows:
        assert rows.read_next_batch()["v"].to_pylist() == [5]
        bench.tick()
        assert len(bench.leases()) == 1
        upsert(bench.writer, beside)
        bench.commit(3, 4)
        bench.clean()
        assert rows.read_all()["v"].to_pylist() == [6]


def two(table: TableReader, value: int) -> str:
    """Rewrite both keys, each in its own file group, and return the completion time."""
    rows = [{"id": key, "p": key, "v": value, "ts": value} for key in ("x", "y")]
    return upsert(table, rows).completion_time


@pytest.mark.spec("RDL-1")
def test_a_range_that_is_read_keeps_the_files_of_its_end_from_cleaning() -> None:
    bench = Bench()
    since = bench.writer.snapshot.newest_completion or ""
    end = two(bench.writer, 1)
    two(bench.writer, 2)
    two(bench.writer, 3)
    with bench.reader.changes(since, end, columns=["v"]) as rows:
        assert rows.read_next_batch()["v"].to_pylist() == [1]
        bench.tick()
        bench.clean()  # a reader of the newest state needs no deleted file
        assert rows.read_all()["v"].to_pylist() == [1]
    assert len(files_below(bench.storage, DEFERRED_DELETES)) == 1
    assert bench.leases() == []


@pytest.mark.spec("RDL-1")
@pytest.mark.parametrize("ends", [False, True])
def test_changes_that_are_read_keep_the_files_of_their_range_from_cleaning(ends: bool) -> None:
    """The slices before and after each write are needed, even if the newest state lacks them."""
    bench = Bench()
    since = two(bench.writer, 1)
    end = two(bench.writer, 2)
    newest = two(bench.writer, 3)
    until = end if ends else newest
    wanted = [(1, 2), (2, 3)][: 1 if ends else 2]
    found = []
    with bench.reader.changes(since, until, images=True, columns=["v"]) as changes:
        found += changes.read_next_batch().to_pylist()
        bench.tick()
        assert len(bench.leases()) == 1
        bench.clean()
        if ends:
            two(bench.writer, 4)
            bench.clean()
        found += changes.read_all().to_pylist()
    document = [(one["before"]["v"], one["after"]["v"]) for one in found]
    assert sorted(document) == sorted(wanted * 2)
    assert files_below(bench.storage, DEFERRED_DELETES) != []


def lease(**changes: object) -> bytes:
    """Return a lease with one changed value."""
    document = dict.fromkeys(("since", "until", "lease_ms", "pid", "n"), 1)
    names = dict.fromkeys(("host", "application", "oldest", "newest"), "20260101000000000")
    return json.dumps({**document, **names, **changes}).encode()


DAMAGED = {
    "empty": b"",
    "torn": b"{",
    "list": b"[]",
    "null": b"null",
    "text": b"\xff",
    "nested": b"[" * 100_000,
    "far": lease(until=10**30),
    "farther": lease(since=1e999),
    "endless": lease(lease_ms=1e999),
    "process": lease(pid=1e999),
    "never": lease(until=None),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_lease_or_deferred_delete_keeps_no_file_and_stops_no_clean(damage: str) -> None:
    bench = Bench()
    bench.commit(1, 2, 3)
    bench.storage.write(f"{READERS}/strange.json", DAMAGED[damage])
    bench.storage.write(f"{DEFERRED_DELETES}/00000000000000000001", DAMAGED[damage])
    assert registered_readers(bench.writer.context) == []
    assert bench.clean() == 2


def test_a_deferred_delete_names_data_files_only() -> None:
    bench = Bench()
    bench.storage.create(
        f"{DEFERRED_DELETES}/00000000000000000009",
        b'{"floor": "2", "paths": [".hoodie/hoodie.properties", "x/../y"]}',
    )
    bench.commit(1)
    bench.clean()
    assert bench.storage.stat(".hoodie/hoodie.properties") is not None


@pytest.mark.parametrize(("until", "now", "over"), [(100, 100, False), (100, 101, True)])
def test_a_lease_is_over_after_its_end(until: int, now: int, over: bool) -> None:
    assert is_lease_expired(until, now) is over


@pytest.mark.parametrize(("silence", "trusted"), [(0, True), (600, True), (601, False)])
def test_a_reader_trusts_two_thirds_of_its_own_lease(silence: int, trusted: bool) -> None:
    assert is_lease_trusted(50, 50 + silence, 900) is trusted

"""Repeated refreshes of the reader agree with a full read of the timeline."""

from __future__ import annotations

import random

import pytest

from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import UnsupportedTableError
from timeline.model.file_names import timeline_path
from timeline.snapshot import ActiveTimeline, TimelineReader

NAMES = (
    "20260102030405001.commit.requested",
    "20260102030405001.inflight",
    "20260102030405001_20260102030405003.commit",
    "20260102030405001.savepoint.inflight",
    "20260102030405001_20260102030405009.savepoint",
    "20260102030405002.compaction.requested",
    "20260102030405002_20260102030405004.commit",
    "20260102030405002.deltacommit.requested",
    "20260102030405005.clean.requested",
    "20260102030405005_20260102030405006.clean",
    "20260102030405005_20260102030405008.clean",
    "20260102030405007.replacecommit.requested",
    "no instant at all",
)


def create_files(storage: MemoryStorage, *names: str) -> None:
    for name in names:
        storage.create(timeline_path(name), b"")


@pytest.mark.parametrize("seed", range(40))
def test_names_in_any_order_of_appearance_give_the_same_timeline(seed: int) -> None:
    chance = random.Random(seed)
    order = chance.sample(NAMES, len(NAMES))
    storage = MemoryStorage()
    reader = TimelineReader(storage)
    count = 0
    while count < len(order):
        appeared = order[count : count + chance.choice((1, 1, 3))]
        count += len(appeared)
        create_files(storage, *appeared)
        refreshed, reread = reader.read(), ActiveTimeline.of(order[:count])
        assert refreshed == reread
        assert refreshed.newest_time == reread.newest_time
        assert refreshed.newest_decided_time == reread.newest_decided_time
        assert refreshed.completed_times == reread.completed_times
        assert refreshed.pending == reread.pending
        assert refreshed.completed_writes == reread.completed_writes
        assert refreshed.newest_completed_write == reread.newest_completed_write


def test_an_own_file_is_known_without_a_listing() -> None:
    storage = MemoryStorage()
    reader = TimelineReader(storage)
    reader.add(NAMES[0])
    assert reader.last is None, "no instant is known before the first refresh"
    create_files(storage, *NAMES[:2])
    reader.read()
    reader.add(NAMES[2])
    reader.add(NAMES[2])
    assert reader.last == ActiveTimeline.of(NAMES[:3])
    create_files(storage, NAMES[2], NAMES[3])
    assert reader.read() == ActiveTimeline.of(NAMES[:4])


def test_unchanged_names_give_the_very_same_timeline() -> None:
    storage = MemoryStorage()
    create_files(storage, *NAMES)
    reader = TimelineReader(storage)
    assert reader.read() is reader.read()


def test_a_removed_name_is_detected_although_another_appeared() -> None:
    storage = MemoryStorage()
    create_files(storage, NAMES[0], NAMES[1])
    reader = TimelineReader(storage)
    reader.read()
    storage.delete(timeline_path(NAMES[0]))
    storage.delete(timeline_path(NAMES[1]))
    create_files(storage, NAMES[-2], NAMES[8])
    assert reader.read() == ActiveTimeline.of([NAMES[-2], NAMES[8]])


def test_too_many_files_are_refused() -> None:
    storage = MemoryStorage()
    create_files(storage, *NAMES[:3])
    with pytest.raises(UnsupportedTableError, match="Archive with a higher limit"):
        TimelineReader(storage, files_max=2).read()

"""A repeated batch id, in a process that no longer caches the slots it read (BATCH-1)."""

from __future__ import annotations

import pytest

from filegroups.table import TableReader
from filegroups.writing.idempotency import committed_batch
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import new_table, opened, planned, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.commit_log import (
    CommittedBatch,
    TruncationPoint,
    encode_truncation_point,
)
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS, truncation_point_path
from timeline.model.slot import NOT_APPLIED_MAX, Batch

FIRST = 5  # existing batches


@pytest.fixture
def observed() -> RecordingStorage:
    return RecordingStorage(MemoryStorage())


@pytest.fixture
def table(observed: RecordingStorage) -> TableReader:
    made = new_table(observed)
    for number in range(FIRST):
        write_batch(made, number)
    return made


def write_batch(table: TableReader, number: int) -> CommitResult:
    return upsert(
        table, [{"id": f"k{number}", "p": "x", "ts": 1, "v": number}], batch_id=f"b{number}"
    )


def asked(table: TableReader, number: int) -> CommitResult | None:
    return committed_batch(
        table.context, planned(table, WriteOperation.UPSERT, batch_id=f"b{number}")
    )


def slots_read(observed: RecordingStorage) -> int:
    return sum(call.operation == "read" and call.path.startswith(SLOTS) for call in observed.calls)


def evict(table: TableReader) -> None:
    """Remove all but the last slots from the cache, as each heartbeat does."""
    commit_log = table.context.commit_log
    commit_log.forget(commit_log.head() - NOT_APPLIED_MAX)


@pytest.mark.spec("BATCH-1")
def test_a_new_batch_does_not_read_evicted_slots_again(
    observed: RecordingStorage, table: TableReader
):
    evict(table)
    observed.forget()
    assert asked(table, FIRST) is None
    assert slots_read(observed) == 1, "only the absence of the next slot"


@pytest.mark.spec("BATCH-1")
def test_an_old_batch_is_known_after_its_slot_was_evicted(table: TableReader):
    evict(table)
    assert not write_batch(table, FIRST).already_published
    for number in range(FIRST + 1):
        assert write_batch(table, number).already_published


@pytest.mark.spec("BATCH-1")
def test_new_commits_of_other_writers_are_searched(table: TableReader):
    other = opened(table)
    assert asked(table, FIRST) is None
    write_batch(other, FIRST)
    write_batch(other, FIRST + 1)
    evict(table)
    assert [asked(table, FIRST + more) is None for more in range(3)] == [False, False, True]


@pytest.mark.spec("BATCH-1")
def test_ids_of_truncated_slots_are_not_cached(observed: RecordingStorage, table: TableReader):
    assert asked(table, FIRST) is None
    assert sorted(table.context.batches.cached.ids) == list(range(1, FIRST + 1))
    truncation_point = TruncationPoint(number=FIRST - 1, time="0")
    observed.create(
        truncation_point_path(truncation_point.number), encode_truncation_point(truncation_point)
    )
    assert asked(table, FIRST) is None
    assert sorted(table.context.batches.cached.ids) == [FIRST]


@pytest.mark.spec("BATCH-2")
def test_a_truncation_point_is_read_once_for_many_batches(
    observed: RecordingStorage, table: TableReader
):
    """Each write checks twice, and the file never changes."""
    path = truncation_point_path(1)
    known = CommittedBatch(
        batch=Batch(batch_id="old"), action="commit", requested_time="1", completion_time="2"
    )
    observed.create(
        path, encode_truncation_point(TruncationPoint(number=1, time="2", batches=(known,)))
    )
    for number in range(FIRST, FIRST + 3):
        assert asked(table, number) is None
    assert sum(call.operation == "read" and call.path == path for call in observed.calls) == 1

"""A table that is dropped and made again, or restored by another engine, around an archive."""

from __future__ import annotations

import pytest

from filegroups.table import TableReader
from filegroups.writing.idempotency import committed_batch
from tableservices.archiving.execute import archive
from tests.unit.tableservices.archiving.test_batch_ids import RULES, write
from tests.unit.timeline.engine import (
    Behind,
    Far,
    StillClock,
    files_below,
    new_table,
    opened,
    planned,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.test_replaced_table import OLD_MS, Swapped, again
from timeline.errors import TableReplacedError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import BOUNDARIES, SLOTS
from timeline.truncation import truncated_up_to


class Dies(Behind):
    """Its process is killed before it moves the boundary."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.startswith(BOUNDARIES):
            raise KeyboardInterrupt
        self.inner.create(path, data, durable=durable)


def grown(commits: int) -> tuple[TableReader, Swapped]:
    """A handle of a table with twelve batches; one with so many commits may replace the table."""
    storage = Swapped(MemoryStorage(), commits=commits)
    table = new_table(storage.inner, clock=StillClock(OLD_MS))
    handle = opened(table, storage=storage, clock=StillClock(OLD_MS))
    for number in range(12):
        upsert(handle, [{"id": "a", "p": "x", "ts": number}], batch_id=f"b{number}")
    return handle, storage


@pytest.mark.spec("SLOT-10")
@pytest.mark.parametrize("commits", [1, 6, 20])
def test_the_truncation_point_of_a_dropped_table_does_not_stay_in_the_new_one(commits: int):
    """It would report batches as committed that the new table does not have."""
    handle, storage = grown(commits)
    storage.at = BOUNDARIES
    with pytest.raises(TableReplacedError):
        archive(handle.context, RULES)
    assert truncated_up_to(storage.inner) == 0
    new = again(storage)
    result = upsert(new, [{"id": "zz", "p": "x", "ts": 1}], batch_id="b1")
    assert not result.already_published
    assert ("zz",) in rows_of(new, "id")


@pytest.mark.spec("SLOT-10")
@pytest.mark.parametrize("commits", [4, 9])
def test_a_finished_truncation_of_a_dropped_table_deletes_nothing_of_the_new_one(commits: int):
    handle, storage = grown(commits)
    dead = opened(handle, storage=Dies(storage), clock=StillClock(OLD_MS))
    with pytest.raises(KeyboardInterrupt):
        archive(dead.context, RULES)
    storage.at = BOUNDARIES
    with pytest.raises(TableReplacedError):
        archive(handle.context, RULES)
    assert len(storage.inner.names(SLOTS)) == commits
    assert truncated_up_to(storage.inner) == 0


@pytest.mark.spec("BATCH-1")
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("commits", [0, 1, 3])
def test_a_batch_of_a_dropped_table_is_not_reported_as_committed(commits: int, far: bool):
    storage = Swapped(MemoryStorage(), commits=commits)
    table = new_table(storage.inner, clock=StillClock(OLD_MS))
    seen = Far(storage) if far else storage
    handle = opened(table, storage=seen, clock=StillClock(OLD_MS))
    upsert(handle, [{"id": "a", "p": "x", "ts": 1}], batch_id="b1")
    upsert(handle, [{"id": "b", "p": "x", "ts": 1}])
    storage.swap()
    with pytest.raises(TableReplacedError):
        upsert(handle, [{"id": "a", "p": "x", "ts": 1}], batch_id="b1")


@pytest.mark.spec("BATCH-1")
def test_a_batch_that_another_engine_restored_away_is_written_again_also_after_an_archive():
    """Below the timeline everything seems archived; the archive has no such instant."""
    clock = StillClock()
    table = new_table(MemoryStorage("memory://t", ports=MemoryWorld(clock)), clock=clock)
    taken = [{"id": "k", "p": "x", "ts": 1}]
    for number in range(3):
        write(table, number)
    first = upsert(table, taken, batch_id="taken")
    storage = table.context.ports.storage
    for path in files_below(storage):
        if first.requested_time in path and ".hoodoo" not in path:
            storage.delete(path)
    plan = planned(table, WriteOperation.UPSERT, batch_id="taken")
    assert committed_batch(opened(table).context, plan) is None
    for number in range(3, 14):
        write(table, number)
        archive(table.context, RULES)
    result = upsert(opened(table, clock=clock), taken, batch_id="taken")
    assert not result.already_published
    assert ("k",) in rows_of(table, "id")

"""
SLOT-8: a slot of a dropped table does not hide that the commit before it is incomplete.

A commit of the new table has its slot and not yet its completed file. A writer that has the
dropped table open takes the next number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from hoodoo.verify.verify import verify
from tests.unit.timeline.engine import Behind, StillClock, new_table, opened, rows_of, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.test_replaced_table import (
    FREE,
    NEW_MS,
    C,
    Mute,
    Swapped,
    handle_of_old_table,
    slot,
)
from timeline.codecs.commit_log import encode_slot
from timeline.errors import OutcomeUnknownError, TableReplacedError
from timeline.model.file_names import HEARTBEATS, SLOTS, TIMELINE, slot_path
from timeline.model.slot import SlotSigning, TamperEvidence
from timeline.rollback.resolve_unknown import WriteOutcome, resolve
from timeline.rollback.rollback import rollback_dead_writers

pytestmark = pytest.mark.spec("SLOT-8")


class HalfDone(Swapped):
    """The newest commit of the new table has a slot; its writer died before the completed file."""

    half: OutcomeUnknownError

    def swap(self) -> None:
        super().swap()
        limits = replace(FREE, unknown_ms_max=0)
        clock = StillClock(NEW_MS + 5_000)
        dead = opened(self.new, storage=Mute(self.inner), clock=clock, limits=limits)
        with pytest.raises(OutcomeUnknownError) as caught:
            upsert(dead, [{"id": "n0", "p": "x", "ts": 2}, {"id": "half", "p": "x", "ts": 1}])
        self.half = caught.value


def half_done(*, far: bool = False) -> HalfDone:
    storage = HalfDone(MemoryStorage(), commits=1)
    handle = handle_of_old_table(storage, far=far)
    storage.at = SLOTS
    with pytest.raises(TableReplacedError):
        upsert(handle, [C])
    return storage


def later(table: TableReader, **how: Any) -> TableReader:
    return opened(table, **{"limits": FREE, "clock": StillClock(NEW_MS + 20_000), **how})


def with_a_late_slot(table: TableReader) -> None:
    """Add a slot of another table in the next number."""
    storage = table.context.ports.storage
    number = max(int(name) for name in storage.names(SLOTS)) + 1
    storage.create(slot_path(number), encode_slot(slot(number, "old")))


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("row", [C, {"id": "n1", "p": "x", "ts": 9}], ids=["elsewhere", "beside"])
def test_the_next_writer_applies_it(far: bool, row: dict[str, Any]) -> None:
    storage = half_done(far=far)
    upsert(later(storage.table), [row])
    assert {("half", 1), ("n0", 2)} <= set(rows_of(later(storage.table), "id", "ts"))


def test_resolve_reports_that_it_is_committed() -> None:
    storage = half_done()
    found = resolve(later(storage.table).context, storage.half.fields["requested_time"])
    assert found.outcome is WriteOutcome.PUBLISHED


def test_the_half_applied_commit_is_not_rolled_back() -> None:
    storage = half_done()
    for name in storage.inner.names(HEARTBEATS):
        storage.inner.delete(f"{HEARTBEATS}/{name}")
    rollback_dead_writers(later(storage.table).context)
    upsert(later(storage.table), [C])
    assert {("half", 1), ("n0", 2)} <= set(rows_of(later(storage.table), "id", "ts"))


class Between(Behind):
    """Another process acts once between the slot of a commit and its completed file."""

    act: Callable[[], None] | None = None

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self.act is not None and path.startswith(TIMELINE) and path.endswith(".commit"):
            act, self.act = self.act, None
            act()
        self.inner.create(path, data, durable=durable)


@pytest.mark.parametrize("key", ["v", "w"], ids=["another key", "the same key"])
def test_concurrent_acknowledged_writes_are_not_lost(key: str) -> None:
    inner = MemoryStorage()
    table = new_table(inner, clock=StillClock(NEW_MS), limits=FREE)
    upsert(table, [{"id": "n0", "p": "x", "ts": 1}])
    between = Between(inner)

    def act() -> None:
        with_a_late_slot(table)
        upsert(later(table, clock=StillClock(NEW_MS + 10_000)), [{"id": key, "p": "x", "ts": 5}])

    between.act = act
    slow = opened(table, storage=between, clock=StillClock(NEW_MS + 5_000), limits=FREE)
    upsert(slow, [{"id": "w", "p": "x", "ts": 7}])
    assert ("w", 7) in rows_of(later(table), "id", "ts")
    assert verify(later(table).context).ok


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.spec("PUB-8")
@pytest.mark.spec("BATCH-1")
def test_a_repeated_batch_returns_its_result_when_its_rows_are_visible(late: bool) -> None:
    """A caller that gets ``already_published`` can read the rows of the batch."""
    inner = MemoryStorage()
    table = new_table(inner, clock=StillClock(NEW_MS), limits=FREE)
    upsert(table, [{"id": "n0", "p": "x", "ts": 1}])
    limits = replace(FREE, unknown_ms_max=0)
    dead = opened(table, storage=Mute(inner), clock=StillClock(NEW_MS + 5_000), limits=limits)
    batch = [{"id": "w", "p": "x", "ts": 7}]
    with pytest.raises(OutcomeUnknownError):
        upsert(dead, batch, batch_id="b1")
    if late:
        with_a_late_slot(table)
    assert upsert(later(table), batch, batch_id="b1").already_published
    assert ("w", 7) in rows_of(later(table), "id", "ts")


@pytest.mark.parametrize("sealed", [False, True])
def test_verify_does_not_blame_the_late_slot(sealed: bool) -> None:
    limits = FREE
    if sealed:
        limits = replace(FREE, slot_signing=SlotSigning(evidence=TamperEvidence.HASH))
    storage = Swapped(MemoryStorage(), commits=2)
    handle = handle_of_old_table(storage)
    object.__setattr__(handle.context, "limits", limits)
    storage.at = SLOTS
    with pytest.raises(TableReplacedError):
        upsert(handle, [C])
    for _ in range(2):
        upsert(later(storage.table, limits=limits), [C])
    found = verify(later(storage.table, limits=limits).context)
    assert found.ok, found.problems

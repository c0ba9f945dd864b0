"""When a slot is still valid after the second refresh, and what that costs (FOR-4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import open_reader
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    heard,
    new_table,
    opened,
    rows_of,
    upsert,
    world_of,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.commit_log import encode_slot
from timeline.commit.revalidate import is_still_valid, timeline_digest, without_void
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.properties.setting_enums import ForeignWriters
from timeline.snapshot import ActiveTimeline
from timeline.writer_registry import register_process

SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
EARLY, RT, MID, CT, LATE = (f"20260102030405{ms:03}" for ms in (0, 4, 8, 11, 20))
BEFORE = [f"{EARLY}.commit.requested", f"{EARLY}_{EARLY}.commit", f"{RT}.commit.requested"]
ROWS = [{"id": "a", "p": "x", "ts": 1, "v": 1}]


def seen(*more: str) -> ActiveTimeline:
    return ActiveTimeline.of([*BEFORE, *more])


def slot(number: int = 2, kind: SlotKind = SlotKind.COMMIT) -> Slot:
    made = Slot(
        number=number,
        table_id="t",
        kind=kind,
        action=Action.COMMIT,
        requested_time=RT,
        completion_time=CT,
        base=1,
        nonce="n",
        owner=SlotOwner(host="h", pid=1, writer_id="w"),
    )
    return replace(made, timeline_digest=timeline_digest(seen(), made))


@pytest.mark.spec("FOR-4")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{MID}_{LATE}.commit", id="a write above its time"),
        pytest.param(f"{EARLY}_{MID}.deltacommit", id="a write of a slow clock"),
        pytest.param(f"{MID}.compaction.requested", id="a plan"),
        pytest.param(f"{MID}.rollback.requested", id="a rollback"),
        pytest.param(f"{LATE}.commit.requested", id="a write begun above its time"),
    ],
)
def test_a_slot_is_not_valid_after_these_instants_of_another_engine(name: str):
    assert not is_still_valid(slot(), seen(name))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param((), id="nothing"),
        pytest.param((f"{RT}_{CT}.commit",), id="its own file"),
        pytest.param((f"{MID}.commit.requested",), id="a write begun before its time"),
        pytest.param((f"{LATE}.clean.requested",), id="a clean"),
        pytest.param((f"{EARLY}_{LATE}.savepoint",), id="a savepoint"),
    ],
)
def test_a_slot_is_valid_after_these_instants_of_another_engine(names: tuple[str, ...]):
    assert is_still_valid(slot(), seen(*names))


@pytest.mark.spec("FOR-9")
@pytest.mark.parametrize(
    ("kind", "name", "is_valid"),
    [
        pytest.param(
            SlotKind.PLAN, f"{MID}.compaction.requested", False, id="plan, another's plan"
        ),
        pytest.param(SlotKind.PLAN, f"{EARLY}_{LATE}.savepoint", True, id="plan, a savepoint"),
        pytest.param(SlotKind.PLAN, f"{MID}.clean.requested", True, id="plan, a clean"),
        pytest.param(SlotKind.SAVEPOINT, f"{MID}.clean.requested", False, id="savepoint, a clean"),
        pytest.param(SlotKind.SAVEPOINT, f"{MID}_{LATE}.commit", False, id="savepoint, a write"),
        pytest.param(SlotKind.CLEAN, f"{EARLY}_{LATE}.savepoint", False, id="clean, a savepoint"),
        pytest.param(SlotKind.CLEAN, f"{MID}.clean.requested", False, id="clean, a clean"),
        pytest.param(SlotKind.CLEAN, f"{MID}.restore.requested", False, id="clean, a restore"),
        pytest.param(SlotKind.CLEAN, f"{MID}.commit.requested", True, id="clean, a write begun"),
    ],
)
def test_a_slot_with_a_file_is_valid_by_the_rule_of_its_kind(
    kind: SlotKind, name: str, is_valid: bool
):
    assert is_still_valid(slot(kind=kind), seen()) is True
    assert is_still_valid(slot(kind=kind), seen(name)) is is_valid


def test_a_void_slot_cancels_the_slot_before_it():
    commit_log = [slot(4), slot(3, SlotKind.VOID), slot(2), slot(1)]
    assert [one.number for one in without_void(commit_log)] == [4, 3, 1]


def test_only_slots_written_in_mode_shared_have_a_timeline_digest():
    table = new_table()
    upsert(table, ROWS)
    upsert(opened(table, limits=SHARED), ROWS)
    first, second = table.context.commit_log.between(0, table.context.commit_log.head())
    assert (first.timeline_digest, len(second.timeline_digest)) == ("", 32)
    assert b'"foreign"' not in encode_slot(first)


@pytest.mark.parametrize(("limits", "listings"), [(BRISK, 0), (SHARED, 1)])
def test_the_second_refresh_is_one_listing_and_happens_only_in_mode_shared(limits, listings):
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed, limits=limits)
    register_process(table.context, {})  # a writer without a registry entry reads more slots (GC-4)
    upsert(table, ROWS)
    calls = [f"{call.operation} {call.path}" for call in observed.calls]
    taken = next(
        at for at, call in enumerate(calls) if call.startswith("create .hoodie/.hoodoo/sl")
    )
    shown = next(at for at, call in enumerate(calls) if call.endswith(".commit"))
    assert calls[taken + 1 : shown] == ["names .hoodie/timeline"] * listings


class Tight(Behind):
    """A lock whose leases have time for one more request or not, by a list of answers."""

    def __init__(self, inner: object, rooms: list[bool]) -> None:
        super().__init__(inner)
        self.rooms = rooms

    def acquire(self, purpose: str) -> TightLease:
        return TightLease(self.inner.acquire(purpose), self.rooms)


class TightLease(Tight):
    def has_time_for_request(self) -> bool:
        return self.rooms.pop(0) if self.rooms else True

    def __enter__(self) -> TightLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.release()


def test_a_lease_near_its_end_creates_no_completed_file() -> None:
    """FOR-8: a pause would outlast the lease. The next commit section decides with a new lease."""
    first = new_table(MemoryStorage())
    upsert(first, ROWS)
    ports = world_of(first.context.ports.storage)
    tight = replace(ports, lock=Tight(ports.lock, [False]))
    table = open_reader(tight, SHARED)
    before = first.context.ports.storage.names(".hoodie/timeline")
    result = upsert(table, [{**ROWS[0], "ts": 2, "v": 2}])
    assert [one["number"] for one in heard(table, "publish.undecided")] == [2]
    after = set(first.context.ports.storage.names(".hoodie/timeline")) - set(before)
    assert f"{result.requested_time}_{result.completion_time}.commit" in after
    assert rows_of(first, "id", "v") == [("a", 2)]

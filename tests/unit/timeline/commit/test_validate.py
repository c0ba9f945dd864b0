"""Validation against the commit log and the timeline: unapplied slots, other engines' instants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.engine import BRISK, Behind, StillClock, heard, new_table, opened
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import (
    A,
    B,
    clock_of,
    commit_in_section,
    numbers,
    pending_commit,
    publish_one,
    seen_by,
    started,
    touching,
    two_writers,
)
from timeline.codecs.instant_avro import encode_commit
from timeline.commit.apply import is_applied
from timeline.commit.commit import CommittedWrite, Conflict, commit_write
from timeline.commit.commit_lock import BaseState, CommitSection
from timeline.commit.validate import commits_since
from timeline.context import TableLimits
from timeline.errors import OutcomeUnknownError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import TIMELINE, timeline_path
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime, WallMs, instant_time, wall_ms
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import AmbiguousWriteError


class Losing(Behind):
    """Never answers the creation of completed files."""

    broken = False

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self.broken and path.startswith(TIMELINE) and path.endswith(".commit"):
            raise AmbiguousWriteError(path)
        self.inner.create(path, data, durable=durable)


def with_an_unsettled_slot() -> tuple[TableReader, Slot]:
    """Begin my write after another writer died between its slot and its completed file."""
    base = MemoryStorage()
    mine = new_table(base, clock=StillClock())
    losing = Losing(base)
    limits = TableLimits(unknown_ms_max=1_000, retry=BRISK.retry)
    other = opened(mine, storage=losing, clock=StillClock(), limits=limits)
    losing.broken = True
    with pytest.raises(OutcomeUnknownError):
        publish_one(other, A)
    slot = mine.context.commit_log.read(1)
    assert slot is not None
    return mine, slot


def times_of_slot(slot: Slot) -> tuple[InstantTime, InstantTime]:
    return slot.instant_time, slot.completion_time


def times_of(mine: TableReader, base_state: BaseState, head: int) -> list[InstantTime]:
    concurrent_commits, _ = commits_since(
        mine.context, base_state, mine.context.active(), head=head
    )
    return [concurrent.requested_time for concurrent in concurrent_commits]


@pytest.mark.spec("PUB-3")
def test_a_conflict_with_an_unapplied_slot_is_reported_after_that_slot_is_applied():
    mine, slot = with_an_unsettled_slot()
    started_write = started(mine)
    outcome = commit_write(
        mine.context, started_write, pending_commit(A), BaseState(head=0, completed=frozenset())
    )
    assert isinstance(outcome, Conflict)
    assert outcome.verdict.concurrent_commits[0].requested_time == slot.requested_time
    assert slot.file_name in mine.context.active().file_names


def test_a_conflict_with_an_applied_slot_is_reported_without_the_lock():
    mine, other = two_writers()
    started_write = started(mine)
    publish_one(other, A)

    class Closed(Behind):
        def acquire(self, purpose: str) -> object:
            raise AssertionError(f"nobody needs the lock: {purpose}")

    object.__setattr__(mine.context.ports, "lock", Closed(mine.context.ports.lock))
    outcome = commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert isinstance(outcome, Conflict)


def test_the_last_known_slot_counts_when_its_completed_file_was_not_listed():
    mine, other = two_writers()
    committed = publish_one(other, A)
    assert isinstance(committed, CommittedWrite)
    slot = committed.slot
    assert times_of(mine, BaseState(head=1, completed=frozenset()), 1) == [slot.requested_time]
    assert times_of(mine, BaseState(head=1, completed=frozenset({times_of_slot(slot)})), 1) == []
    [concurrent], _ = commits_since(
        mine.context, BaseState(head=1, completed=frozenset()), mine.context.active(), head=1
    )
    assert concurrent.write_set == touching(A), "as in the slot, and not as another engine's commit"


def test_the_last_known_slot_counts_while_its_completed_file_is_missing():
    mine, slot = with_an_unsettled_slot()
    assert not is_applied(slot, mine.context.active())
    assert times_of(mine, BaseState(head=1, completed=frozenset()), 1) == [slot.requested_time]


def test_the_last_known_slot_precedes_those_above_it():
    mine, other = two_writers()
    first, second = publish_one(other, A), publish_one(other, B)
    assert isinstance(first, CommittedWrite)
    assert isinstance(second, CommittedWrite)
    assert times_of(mine, BaseState(head=1, completed=frozenset()), 2) == [
        first.slot.requested_time,
        second.slot.requested_time,
    ]
    concurrent_commits, _ = commits_since(
        mine.context, BaseState(head=1, completed=frozenset()), mine.context.active(), head=2
    )
    assert [concurrent.write_set for concurrent in concurrent_commits] == [touching(A), touching(B)]


def test_the_last_known_slot_does_not_count_when_another_engine_deleted_its_files():
    mine, other = two_writers()
    committed = publish_one(other, A)
    assert isinstance(committed, CommittedWrite)
    storage = mine.context.ports.storage
    for name in storage.names(TIMELINE):
        if name.startswith(committed.slot.requested_time):
            storage.delete(timeline_path(name))
    assert times_of(mine, BaseState(head=1, completed=frozenset()), 1) == []


# ---------------------------------------------------------------- other engines


def foreign_commit(mine: TableReader, after: InstantTime) -> tuple[InstantTime, InstantTime]:
    """Create a commit without a slot; it begins 1 ms and completes 2 ms after the given time."""
    began, ended = (instant_time(WallMs(wall_ms(after) + more)) for more in (1, 2))
    name = timeline_path(f"{began}_{ended}.commit")
    mine.context.ports.storage.create(name, encode_commit(CommitMetadata()))
    return began, ended


@pytest.mark.spec("FOR-2")
def test_commits_of_other_engines_have_the_order_of_completion():
    mine, other = two_writers()
    started_write = started(mine)
    theirs = foreign_commit(mine, started_write.requested_time)
    clock_of(other).wall += 1_000
    committed = publish_one(other, A)
    assert isinstance(committed, CommittedWrite)
    concurrent_commits, base_state = commits_since(
        mine.context, seen_by(started_write), mine.context.active(), head=1
    )
    assert [one.requested_time for one in concurrent_commits] == [
        theirs[0],
        committed.slot.requested_time,
    ]
    assert [one.writer == "another engine" for one in concurrent_commits] == [True, False]
    completed = frozenset({theirs, times_of_slot(committed.slot)})
    assert base_state == replace(seen_by(started_write), head=1, completed=completed)


@pytest.mark.spec("FOR-2")
def test_a_known_commit_of_another_engine_does_not_conflict_again():
    mine, _ = two_writers()
    started_write = started(mine)
    theirs = foreign_commit(mine, started_write.requested_time)
    base_state = BaseState(head=0, completed=frozenset({theirs}))
    assert commits_since(mine.context, base_state, mine.context.active(), head=0) == (
        [],
        base_state,
    )
    missing = BaseState(
        head=0, completed=frozenset({theirs, ("20200101000000000", "20200101000000003")})
    )
    assert commits_since(mine.context, missing, mine.context.active(), head=0) == ([], missing)


# ---------------------------------------------------------------- SGL-1


def upkeep(table: TableReader, action: Action, kind: SlotKind) -> Slot | None:
    """Take a slot of another process that is no write."""

    def decide(section: CommitSection) -> Slot:
        nonce = table.context.ports.ids.nonce()
        return section.next_slot(table.context, kind, action, "20200101000000000", nonce=nonce)

    return commit_in_section(table.context, "upkeep", decide)[0]


@pytest.mark.spec("SGL-1")
def test_a_single_writer_does_not_report_a_table_service_as_a_second_writer():
    mine, other = two_writers()
    publish_one(mine, A)
    publish_one(other, B)
    assert upkeep(other, Action.COMMIT, SlotKind.NOOP) is not None
    publish_one(mine, A)
    assert numbers(mine) == [1, 2, 3, 4]
    assert [event["number"] for event in heard(mine, "writer.second_noticed")] == [2]


@pytest.mark.spec("SGL-1")
def test_a_single_writer_does_not_report_an_executed_plan_as_a_second_writer():
    mine, other = two_writers()
    publish_one(mine, A)
    assert upkeep(other, Action.COMPACTION, SlotKind.COMMIT) is not None
    publish_one(mine, A)
    assert numbers(mine) == [1, 2, 3]
    assert heard(mine, "writer.second_noticed") == []


# ---------------------------------------------------------------- cached state


def test_a_committed_write_is_not_read_back():
    mine, _ = two_writers()
    reads: list[str] = []

    class Noted(Behind):
        def read(self, path: str) -> bytes:
            reads.append(path)
            return self.inner.read(path)

    object.__setattr__(mine.context.ports, "storage", Noted(mine.context.ports.storage))
    assert isinstance(publish_one(mine, A), CommittedWrite)
    [instant] = mine.context.active().completed_writes
    reads.clear()
    mine.context.commits.read(instant)
    assert reads == []

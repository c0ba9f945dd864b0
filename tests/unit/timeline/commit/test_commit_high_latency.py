"""A commit on a high-latency store: the reads it saves, and conflicts found before the lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.commit.test_object_store import InTurn
from tests.unit.timeline.engine import BRISK, Behind, Far, StillClock, new_table, opened
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import (
    A,
    B,
    commit_in_section,
    pending_commit,
    publish_one,
    seen_by,
    started,
    touching,
    two_writers,
    validate_early,
)
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.apply import not_applied
from timeline.commit.commit import CommittedWrite, Conflict, commit_write
from timeline.commit.commit_lock import CommitSection, PendingCommit, keep_commit_lock
from timeline.commit.object_store import refresh_at_once
from timeline.context import TableContext, TableLimits
from timeline.errors import OutcomeUnknownError
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    WriteSet,
)
from timeline.model.file_names import PROPERTIES, SLOTS, TABLE_DESCRIPTOR, TIMELINE
from timeline.model.instant import Action
from timeline.model.instant_time import Residue
from timeline.model.slot import Slot, SlotKind
from timeline.model.table_config import TableConfig
from timeline.ports.ports import AmbiguousWriteError, LockSharing
from timeline.properties.setting_enums import CommitLockMode
from timeline.rules.conflicts import ConcurrentCommit, NoConflict, Rejected, RuleId
from timeline.snapshot import ActiveTimeline

C = FileGroupId("x", "c")
Config = Callable[[], TableConfig]


class Alone(InTurn):
    """Starts no background work."""

    def every(self, interval_ms: int, work: Callable[[], None]) -> Any:
        return super().every(600_000, work)


class WatchedLock(Behind):
    """A lock on which other writers act during each wait; an unwanted wait ends."""

    def __init__(self, inner: Any, *, shares: bool = False) -> None:
        super().__init__(inner)
        self.in_order = False
        self.is_shareable = shares
        self.meanwhile: Callable[[], object] = lambda: None
        self.wanted: list[bool] = []  # at the end of each wait
        self.had: list[str] = []

    def acquire(self, purpose: str) -> Any:
        self.had.append(purpose)
        return self.inner.acquire(purpose)

    def acquire_while(
        self, wanted: Callable[[], bool], purpose: str, _sharing: LockSharing = LockSharing.NO
    ) -> Any:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.wanted.append(wanted())
        return self.acquire(purpose) if self.wanted[-1] else None


@dataclass
class CountingCheck:
    """A commit check without objections that counts its calls and their requests."""

    storage: RecordingStorage
    requests: list[int] = field(default_factory=list)  # of each call, for the properties

    def __call__(
        self, timeline: ActiveTimeline, rivals: list[ConcurrentCommit], config: Config
    ) -> None:
        before = len(self.storage.calls)
        config()
        self.requests.append(len(self.storage.calls) - before)

    @property
    def times(self) -> int:
        return len(self.requests)


@dataclass
class Writers:
    """One writer behind a recorded lock, and another without a lock."""

    mine: TableReader
    other: TableReader
    lock: WatchedLock
    storage: RecordingStorage
    check_calls: CountingCheck

    def let_other_commit(self, *write_sets: WriteSet) -> None:
        """Let the other writer commit each write set, and read the commit log."""
        for write_set in write_sets:
            theirs = started(self.other)
            wanted = PendingCommit(write_set=write_set, metadata=CommitMetadata())
            assert isinstance(
                commit_write(self.other.context, theirs, wanted, seen_by(theirs)),
                CommittedWrite,
            )
        self.mine.context.commit_log.head()

    def pending_commit(self, write_set: WriteSet) -> PendingCommit:
        return PendingCommit(write_set=write_set, metadata=CommitMetadata(), check=self.check_calls)


def writers(*, far: bool = True, shares: bool = False, **limits: Any) -> Writers:
    base = MemoryStorage()
    storage = RecordingStorage(Far(base) if far else base)
    mine = new_table(storage, clock=StillClock(), limits=replace(BRISK, **limits))
    other = opened(
        mine,
        storage=base,
        clock=StillClock(),
        limits=replace(BRISK, publish_lock=CommitLockMode.NONE),
    )
    ports = mine.context.ports
    lock = WatchedLock(ports.lock, shares=shares)
    object.__setattr__(ports, "executor", Alone(1))
    object.__setattr__(ports, "lock", lock)
    return Writers(mine, other, lock, storage, CountingCheck(storage))


def inserting(group: FileGroupId, *partitions: str) -> WriteSet:
    return WriteSet.of(
        [AccessedFileGroup(file_group=group, access=Access.NEW)], inserting=partitions
    )


# ---------------------------------------------------------------- the wait for the lock


@pytest.mark.spec("PUB-7")
@pytest.mark.parametrize(
    ("mine", "new_commits"),
    [
        pytest.param(touching(A), [], id="nothing"),
        pytest.param(touching(A), [touching(B)], id="another file group"),
        pytest.param(inserting(A, "x"), [touching(C)], id="no new key"),
        pytest.param(inserting(A, "x"), [inserting(B, "y")], id="keys elsewhere"),
        pytest.param(touching(A), [inserting(B, "y")], id="keys in a partition that is not mine"),
    ],
)
def test_a_writer_waits_for_the_lock_while_no_new_commit_can_conflict(
    mine: WriteSet, new_commits: list[WriteSet]
) -> None:
    both = writers()
    my_write = started(both.mine)
    both.lock.meanwhile = lambda: both.let_other_commit(*new_commits)
    ended = commit_write(both.mine.context, my_write, both.pending_commit(mine), seen_by(my_write))
    assert isinstance(ended, CommittedWrite)
    assert (ended.slot.number, ended.lost_slots) == (len(new_commits) + 1, 0)
    assert both.lock.wanted == [True]
    assert both.lock.had == [f"commit {my_write.requested_time}"]
    assert both.check_calls.times == 1, "the write is validated once, in the commit section"


@pytest.mark.spec("PUB-7")
def test_a_table_service_slot_during_the_wait_for_the_lock_rejects_no_write() -> None:
    both = writers()
    my_write = started(both.mine)

    def upkeep() -> None:
        def decide(section: CommitSection) -> Slot:
            time = section.draw_time(both.other.context, Residue.SLOT_REQUESTED)
            return section.next_slot(
                both.other.context, SlotKind.NOOP, Action.COMMIT, time, nonce="n"
            )

        assert commit_in_section(both.other.context, "upkeep", decide)[0] is not None
        both.let_other_commit()

    both.lock.meanwhile = upkeep
    ended = commit_write(
        both.mine.context, my_write, both.pending_commit(touching(A)), seen_by(my_write)
    )
    assert isinstance(ended, CommittedWrite)
    assert (ended.slot.number, both.lock.wanted, both.check_calls.times) == (2, [True], 1)


@pytest.mark.spec("PUB-7")
def test_the_wait_for_the_lock_checks_known_slots_without_requests() -> None:
    """A waiting writer knows the new slots already, so it sends no requests in its loop."""
    both = writers()
    my_write = started(both.mine)
    asked: list[int] = []

    def glanced() -> None:
        publish_one(both.other, A)
        both.mine.context.commit_log.cached_head()
        asked.append(len(both.storage.calls))

    both.lock.meanwhile = glanced
    real = both.lock.acquire

    def acquire(purpose: str) -> Any:
        asked.append(len(both.storage.calls))
        return real(purpose)

    object.__setattr__(both.lock, "acquire", acquire)
    ended = commit_write(
        both.mine.context, my_write, both.pending_commit(touching(A)), seen_by(my_write)
    )
    assert isinstance(ended, Conflict)
    assert both.lock.wanted == [True], "the refresh of the commit section shows the conflict"
    assert asked[0] == asked[1]


@pytest.mark.spec("PUB-7")
@pytest.mark.parametrize(
    "new_commits",
    [[touching(A)], [touching(B), touching(A)], [touching(A), touching(B)]],
    ids=["it", "it at last", "it at first"],
)
def test_a_conflict_is_reported_while_another_writer_holds_the_lock(
    new_commits: list[WriteSet],
) -> None:
    both = writers()
    my_write = started(both.mine)
    both.lock.meanwhile = lambda: both.let_other_commit(*new_commits)
    ended = commit_write(
        both.mine.context, my_write, both.pending_commit(touching(A)), seen_by(my_write)
    )
    assert isinstance(ended, Conflict)
    assert ended.base_state.head == len(new_commits)
    assert (both.lock.wanted, both.lock.had) == ([False], [])


@pytest.mark.spec("PUB-7")
@pytest.mark.parametrize(
    "new_commits",
    [
        [inserting(C, "x")],
        [inserting(C, "x", "y")],
        [inserting(C, "x"), touching(B)],
        [touching(B), inserting(C, "x")],
    ],
    ids=["the same partition", "more partitions", "it and another", "another and it"],
)
def test_inserts_into_a_shared_partition_are_compared_by_key_without_the_lock(
    new_commits: list[WriteSet],
) -> None:
    both = writers()
    my_write = started(both.mine)
    both.lock.meanwhile = lambda: both.let_other_commit(*new_commits)
    ended = commit_write(
        both.mine.context, my_write, both.pending_commit(inserting(A, "x")), seen_by(my_write)
    )
    assert isinstance(ended, CommittedWrite), "they are not"
    assert (ended.slot.number, ended.lost_slots) == (len(new_commits) + 1, 0)
    assert both.lock.wanted == [False, True]
    assert both.check_calls.times == 2, "without the lock, and with it"


# ---------------------------------------------------------------- the refresh before the section


def as_it_is(context: TableContext) -> Any:
    return nullcontext(context)


def held(context: TableContext) -> Any:
    return keep_commit_lock(context, "redo")


@pytest.mark.spec("PUB-1")
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "still"])
@pytest.mark.parametrize(
    ("setting", "inside", "refresh_before"),
    [
        pytest.param({}, as_it_is, "busy", id="behind the queue"),
        pytest.param({"shares": True}, as_it_is, "never", id="a lock had together"),
        pytest.param({"publish_lock": CommitLockMode.NONE}, as_it_is, "never", id="no lock"),
        pytest.param({}, held, "never", id="the queue is held"),
        pytest.param({"far": False}, as_it_is, "always", id="near by"),
    ],
)
def test_a_refresh_precedes_the_commit_section_where_it_may_save_a_wait(
    busy: bool, setting: dict[str, Any], inside: Callable[[TableContext], Any], refresh_before: str
) -> None:
    both = writers(**setting)
    both.let_other_commit(touching(B))
    both.let_other_commit(*[touching(B)] * 7)
    with inside(both.mine.context) as context:
        my_write = started(both.mine)
        base_state = seen_by(my_write)
        if not busy:
            for _ in range(4):
                context.commit_log.head()
        assert context.commit_log.is_contended is (busy and refresh_before != "always")
        publish_one(both.other, B)
        ended = commit_write(context, my_write, both.pending_commit(touching(A)), base_state)
    assert isinstance(ended, CommittedWrite)
    before = refresh_before == "always" or (busy and refresh_before == "busy")
    assert both.check_calls.times == (2 if before else 1)


@pytest.mark.spec("PUB-1")
def test_on_a_contended_table_a_conflict_is_reported_before_the_lock_is_requested() -> None:
    both = writers()
    both.let_other_commit(touching(B))
    both.let_other_commit(*[touching(B)] * 7)
    my_write = started(both.mine)
    publish_one(both.other, A)
    ended = commit_write(
        both.mine.context, my_write, both.pending_commit(touching(A)), seen_by(my_write)
    )
    assert isinstance(ended, Conflict)
    assert (both.lock.wanted, both.lock.had) == ([], [])


class Losing(Behind):
    """Never answers the creation of completed files."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.startswith(TIMELINE) and path.endswith(".commit"):
            raise AmbiguousWriteError(path)
        self.inner.create(path, data, durable=durable)


@pytest.mark.spec("PUB-3")
def test_early_validation_counts_an_unapplied_slot_only_without_a_conflict() -> None:
    """The commit section applies a slot with a conflict first, and validates then."""
    base = MemoryStorage()
    mine = new_table(base, clock=StillClock())
    my_write = started(mine)
    limits = TableLimits(unknown_ms_max=1_000, retry=BRISK.retry)
    other = opened(mine, storage=Losing(base), clock=StillClock(), limits=limits)
    with pytest.raises(OutcomeUnknownError):
        publish_one(other, A)
    [slot] = not_applied(mine.context, 1, mine.context.active())
    times = (slot.requested_time, slot.completion_time)
    base_state = seen_by(my_write)
    assert validate_early(mine.context, my_write, touching(A), base_state) == (
        NoConflict(),
        base_state,
    )
    assert validate_early(mine.context, my_write, touching(B), base_state) == (
        NoConflict(),
        replace(base_state, head=1, completed=frozenset({times})),
    )


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(
    ("setting", "refreshes"),
    [({}, 1), ({"publish_lock": CommitLockMode.NONE}, 0)],
    ids=["a lock had alone", "no lock"],
)
def test_the_refresh_of_the_waiting_line_serves_the_commit_section_except_under_an_exclusive_lock(
    setting: dict[str, Any], refreshes: int
) -> None:
    """The former holder of an exclusive lock may have changed the properties after that refresh."""
    both = writers(**setting)
    my_write = started(both.mine)
    refreshed = refresh_at_once(both.mine.context)
    both.storage.forget()
    wanted = both.pending_commit(touching(A))
    ended = commit_write(both.mine.context, my_write, wanted, seen_by(my_write), refreshed)
    assert isinstance(ended, CommittedWrite)
    asked = both.storage.operations()
    slot = next(at for at, one in enumerate(asked) if one.startswith(f"create {SLOTS}"))
    assert sum(one == f"names {TIMELINE}" for one in asked[:slot]) == refreshes
    assert sum(one == f"read {PROPERTIES}" for one in asked[:slot]) == refreshes


# ---------------------------------------------------------------- requests and their targets


def test_the_properties_that_a_check_needs_are_read_along_with_the_refresh() -> None:
    both = writers()
    my_write = started(both.mine)
    ended = commit_write(
        both.mine.context, my_write, both.pending_commit(touching(A)), seen_by(my_write)
    )
    assert isinstance(ended, CommittedWrite)
    assert both.check_calls.requests == [0]


@pytest.mark.spec("SLOT-10")
@pytest.mark.parametrize("far", [True, False])
def test_a_commit_does_not_read_the_table_descriptor_again(far: bool) -> None:
    both = writers(far=far)
    publish_one(both.mine, A)
    my_write = started(both.mine)
    both.storage.forget()
    assert isinstance(
        commit_write(both.mine.context, my_write, pending_commit(A), seen_by(my_write)),
        CommittedWrite,
    )
    assert f"read {TABLE_DESCRIPTOR}" not in both.storage.operations()


@pytest.mark.parametrize("far", [True, False])
def test_a_committed_write_is_not_read_back_after_its_slot_left_the_cache(far: bool) -> None:
    both = writers(far=far)
    committed = publish_one(both.mine, A)
    assert isinstance(committed, CommittedWrite)
    context = both.mine.context
    [instant] = context.active().completed_writes
    context.commit_log.forget(committed.slot.number)
    both.storage.forget()
    context.commits.read(instant)
    assert both.storage.operations() == []


# ---------------------------------------------------------------- cleans


@pytest.mark.spec("CLN-3")
@pytest.mark.parametrize(
    ("theirs", "rule"),
    [
        (touching(A, access=Access.REPLACE), RuleId.FILE_GROUP_REPLACED),
        (touching(A), RuleId.SOURCE_NOT_NEWEST),
        (touching(B), RuleId.SOURCE_NOT_NEWEST),
    ],
    ids=["refused", "to be redone", "let stand"],
)
def test_a_clean_rejects_a_write_only_when_its_concurrent_commits_do_not(
    theirs: WriteSet, rule: RuleId
) -> None:
    mine, other = two_writers()
    before = started(other)
    my_write = started(mine)
    wanted = PendingCommit(write_set=theirs, metadata=CommitMetadata())
    assert isinstance(commit_write(other.context, before, wanted, seen_by(before)), CommittedWrite)

    def clean(section: CommitSection) -> Slot:
        time = section.draw_time(other.context, Residue.SLOT_REQUESTED)
        return section.next_slot(
            other.context,
            SlotKind.CLEAN,
            Action.CLEAN,
            time,
            nonce="n",
            deletes=("x/a-0_0-0-0_20260101000000000.parquet",),
        )

    assert commit_in_section(other.context, "clean", clean)[0] is not None
    outcome = commit_write(mine.context, my_write, pending_commit(A), seen_by(my_write))
    assert isinstance(outcome, Conflict)
    assert isinstance(outcome.verdict, Rejected)
    assert outcome.verdict.rule is rule

"""Each guard of a commit alone: which write it rejects, when, and why (PUB, HB-3, SGL-1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.engine import BRISK, Behind, StillClock, heard, new_table, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import (
    A,
    B,
    begun_after,
    clock_of,
    numbers,
    pending_commit,
    publish_one,
    seen_by,
    started,
    touching,
    two_writers,
    validate_early,
)
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.commit import CommittedWrite, Conflict, commit_write
from timeline.commit.commit_lock import PendingCommit
from timeline.commit.concurrent_commits import verdict_on
from timeline.commit.validate import commits_since
from timeline.errors import HeartbeatExpiredError, RolledBackError
from timeline.model.commit_metadata import Access, CommitMetadata, ConcurrencyMode, WriteSet
from timeline.model.file_names import pending_file_names, timeline_path
from timeline.model.instant import Action, Instant, State
from timeline.model.slot import Batch, SlotKind
from timeline.model.table_config import TableConfig
from timeline.rules.conflicts import (
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    RuleId,
    find_strategy,
)
from timeline.snapshot import ActiveTimeline

PLAN = Instant(action=Action.CLUSTERING, requested_time="20260102030405006", state=State.REQUESTED)


class ActingLock(Behind):
    """A lock that runs an action before it is granted."""

    def __init__(self, inner: object, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act = act

    def acquire(self, purpose: str) -> object:
        self._act()
        return self.inner.acquire(purpose)


def while_it_waits(table: TableReader, act: Callable[[], object]) -> None:
    """Let ``act`` happen while the next commit section of this table waits for the lock."""
    left = [act]
    ports = table.context.ports
    queue = ActingLock(ports.lock, lambda: left.pop()() if left else None)
    object.__setattr__(ports, "lock", queue)


@pytest.mark.spec("HB-3")
def test_a_writer_that_paused_too_long_gets_an_expired_heartbeat_instead_of_a_conflict():
    mine, other = two_writers()
    started_write = started(mine)
    publish_one(other, A)
    clock_of(mine).steady += 120_001
    with pytest.raises(HeartbeatExpiredError):
        commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))


@pytest.mark.spec("HB-3")
def test_a_writer_that_paused_while_waiting_for_the_lock_takes_no_slot():
    mine, _ = two_writers()
    started_write = started(mine)

    def pause() -> None:
        clock_of(mine).steady += 120_001

    while_it_waits(mine, pause)
    with pytest.raises(HeartbeatExpiredError):
        commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert numbers(mine) == []


@pytest.mark.spec("PUB-6")
@pytest.mark.parametrize("which", [0, 1], ids=["inflight", "requested"])
def test_a_missing_pending_file_means_that_the_write_is_rolled_back(which: int):
    mine, _ = two_writers()
    started_write = started(mine)
    name = pending_file_names(started_write.action, started_write.requested_time)[which]
    mine.context.ports.storage.delete(timeline_path(name))
    with pytest.raises(RolledBackError) as caught:
        commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert caught.value.fields == {"requested_time": started_write.requested_time}
    assert numbers(mine) == []


@pytest.mark.spec("GC-3")
def test_a_write_without_its_low_water_mark_is_not_committed():
    mine, _ = two_writers()
    mine.context.low_water_mark.entry = {}
    started_write = started(mine)
    mine.context.low_water_mark.release(started_write.requested_time)
    with pytest.raises(HeartbeatExpiredError):
        commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert numbers(mine) == []


def test_a_committed_write_releases_its_low_water_mark():
    mine, _ = two_writers()
    mine.context.low_water_mark.entry = {}
    assert isinstance(publish_one(mine, A), CommittedWrite)
    assert mine.context.low_water_mark.kept_above == {}


def test_a_slot_contains_the_validated_write_set_base_schemas_and_batches():
    mine, other = two_writers()
    started_write = started(mine)
    publish_one(other, B)
    committed = commit_write(
        mine.context,
        started_write,
        pending_commit(A, schema_before="s1", schema_after="s2", batches=(Batch(batch_id="b"),)),
        seen_by(started_write),
    )
    assert isinstance(committed, CommittedWrite)
    slot = committed.slot
    assert (slot.number, slot.base, slot.kind) == (2, 1, SlotKind.COMMIT)
    assert (slot.action, slot.requested_time) == (Action.COMMIT, started_write.requested_time)
    assert (slot.schema_before, slot.schema_after) == ("s1", "s2")
    assert (slot.write_set, slot.batches) == (touching(A), (Batch(batch_id="b"),))
    assert (committed.completion_time, committed.lost_slots) == (slot.completion_time, 0)
    assert int(slot.completion_time) % 4 == 3
    assert slot.completion_time > started_write.requested_time


def test_the_lock_purpose_names_the_instant_to_commit():
    mine, _ = two_writers()
    purposes: list[str] = []

    class Noted(Behind):
        def acquire(self, purpose: str) -> object:
            purposes.append(purpose)
            return self.inner.acquire(purpose)

    ports = mine.context.ports
    object.__setattr__(ports, "lock", Noted(ports.lock))
    started_write = started(mine)
    commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert purposes == [f"commit {started_write.requested_time}"]


# ---------------------------------------------------------------- pending plans with a conflict


Config = Callable[[], TableConfig]


def refusing_for(plan: Instant | None, calls: list[int]) -> Callable[..., Rejected]:
    def check(
        timeline: ActiveTimeline, concurrent_commits: list[ConcurrentCommit], config: Config
    ) -> Rejected:
        calls.append(len(concurrent_commits))
        plans = (plan,) if plan else ()
        return Rejected(RuleId.PENDING_PLAN_OWNS_FILE_GROUP, "a plan owns it", (), plans=plans)

    return check


@pytest.mark.parametrize(
    ("cancels", "plan", "validations"), [(False, PLAN, 1), (True, None, 1), (True, PLAN, 4)]
)
def test_a_rejection_is_validated_again_only_for_plans_that_may_be_cancelled(
    cancels: bool, plan: Instant | None, validations: int
):
    """At most as often as slots may be lost, which is three times here."""
    retry = replace(BRISK.retry, commit_attempts_max=3)
    mine, _ = two_writers(cancels_conflicting_plans=cancels, retry=retry)
    calls: list[int] = []
    outcome = publish_one(mine, A, check=refusing_for(plan, calls))
    assert isinstance(outcome, Conflict)
    assert outcome.verdict.rule is RuleId.PENDING_PLAN_OWNS_FILE_GROUP
    assert len(calls) == validations


def test_a_rebaseable_file_group_cancels_no_plan():
    mine, other = two_writers(cancels_conflicting_plans=True)
    started_write = begun_after(other, mine, A)
    outcome = commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert isinstance(outcome, Conflict)
    assert isinstance(outcome.verdict, Rebase)
    assert outcome.verdict.file_groups == (A,)


# ---------------------------------------------------------------- the input of validation


def test_a_conflict_carries_the_concurrent_commits_and_the_new_base_state():
    mine, other = two_writers()
    started_write = started(mine)
    won = publish_one(other, A)
    assert isinstance(won, CommittedWrite)
    outcome = commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert isinstance(outcome, Conflict)
    assert [one.requested_time for one in outcome.verdict.concurrent_commits] == [
        won.slot.requested_time
    ]
    completed = frozenset({(won.slot.requested_time, won.completion_time)})
    assert outcome.base_state == replace(seen_by(started_write), head=1, completed=completed)
    assert numbers(mine) == [1]


def test_a_commit_during_the_wait_for_the_lock_conflicts_in_the_commit_section():
    mine, other = two_writers()
    started_write = started(mine)
    while_it_waits(mine, lambda: publish_one(other, A))
    outcome = commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert isinstance(outcome, Conflict)
    assert outcome.base_state.head == 1
    assert numbers(mine) == [1]


def test_a_commit_to_other_file_groups_during_the_wait_becomes_the_base():
    mine, other = two_writers()
    started_write = started(mine)
    while_it_waits(mine, lambda: publish_one(other, B))
    committed = commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert isinstance(committed, CommittedWrite)
    assert (committed.slot.number, committed.slot.base) == (2, 1)


def test_a_commit_in_the_base_state_does_not_conflict_again():
    mine, _ = two_writers()
    publish_one(mine, A)
    started_write = started(mine)
    concurrent_commits, base_state = commits_since(
        mine.context,
        seen_by(started_write),
        mine.context.active(),
        head=mine.context.commit_log.head(),
    )
    assert (concurrent_commits, base_state) == ([], seen_by(started_write))


def test_concurrent_commits_have_the_order_of_their_slots():
    mine, other = two_writers()
    started_write = started(mine)
    times = [publish_one(other, group).slot.requested_time for group in (B, A, B)]
    concurrent_commits, base_state = commits_since(
        mine.context, seen_by(started_write), mine.context.active(), head=3
    )
    assert [one.requested_time for one in concurrent_commits] == times
    assert (base_state.head, len(base_state.completed)) == (3, 3)


def test_slots_above_the_requested_head_are_left_to_the_next_refresh():
    mine, other = two_writers()
    started_write = started(mine)
    first = publish_one(other, A)
    publish_one(other, B)
    concurrent_commits, _ = commits_since(
        mine.context, seen_by(started_write), mine.context.active(), head=1
    )
    assert [one.requested_time for one in concurrent_commits] == [first.slot.requested_time]


def test_file_groups_that_were_only_read_are_validated_and_not_written():
    mine, other = two_writers()
    started_write = started(mine)
    publish_one(other, B)
    read = touching(B).file_groups
    outcome = commit_write(
        mine.context, started_write, pending_commit(A, read_only=read), seen_by(started_write)
    )
    assert isinstance(outcome, Conflict)
    assert outcome.verdict.file_groups == (B,)


def concurrent(write_set: WriteSet, requested_time: str = "20260102030405000") -> ConcurrentCommit:
    return ConcurrentCommit(
        action=Action.COMMIT,
        requested_time=requested_time,
        completion_time="20260102030405011",
        write_set=write_set,
    )


MY_TIME = "20260102030405004"


def test_the_strategy_rejects_after_the_conflict_matrix_and_before_a_rebase():
    partition = find_strategy("partition")
    assert partition is not None
    mine, _ = two_writers(strategy=partition)
    verdict_found = verdict_on(mine.context, pending_commit(A), MY_TIME, [concurrent(touching(A))])
    assert isinstance(verdict_found, Rejected)
    assert verdict_found.rule is RuleId.STRATEGY_REFUSED
    replaced = verdict_on(
        mine.context, pending_commit(A), MY_TIME, [concurrent(touching(A, access=Access.REPLACE))]
    )
    assert replaced.rule is RuleId.FILE_GROUP_REPLACED
    assert (
        verdict_on(mine.context, pending_commit(A), MY_TIME, [concurrent(touching(B))])
        == NoConflict()
    )


def test_the_pending_commit_defines_partitions_and_log_conflicts():
    mine, _ = two_writers()
    log = touching(A, access=Access.LOG)
    both = PendingCommit(write_set=log, metadata=CommitMetadata(), logs_may_conflict=True)
    assert verdict_on(mine.context, both, MY_TIME, [concurrent(log)]) == NoConflict()
    alone = replace(both, logs_may_conflict=False)
    assert isinstance(verdict_on(mine.context, alone, MY_TIME, [concurrent(log)]), Rejected)
    claiming = PendingCommit(write_set=WriteSet.of([], ["x"]), metadata=CommitMetadata())
    verdict_found = verdict_on(mine.context, claiming, MY_TIME, [concurrent(touching(A))])
    assert verdict_found.rule is RuleId.WRITTEN_INTO_MY_CLAIM


def test_the_own_check_runs_after_a_rebase_verdict_but_not_after_a_rejection():
    mine, other = two_writers()
    for access, verdict, asked in (
        (Access.BASE, RuleId.SAME_NEW_KEY, [1]),
        (Access.REPLACE, RuleId.WRITTEN_WHAT_I_REPLACE, []),
    ):
        started_write = begun_after(other, mine, A)
        calls: list[int] = []

        def check(
            timeline: ActiveTimeline,
            concurrent_commits: list[ConcurrentCommit],
            config: Config,
            calls: list[int] = calls,
        ) -> Rejected:
            calls.append(len(concurrent_commits))
            return Rejected(
                RuleId.SAME_NEW_KEY, "one key is new to both", tuple(concurrent_commits)
            )

        wanted = PendingCommit(
            write_set=touching(A, access=access), metadata=CommitMetadata(), check=check
        )
        outcome = commit_write(mine.context, started_write, wanted, seen_by(started_write))
        assert isinstance(outcome, Conflict)
        assert (outcome.verdict.rule, calls) == (verdict, asked)
        assert outcome.base_state.head == mine.context.commit_log.head()


def test_a_check_without_objection_lets_the_write_commit():
    mine, other = two_writers()
    started_write = started(mine)
    publish_one(other, B)
    committed = commit_write(
        mine.context,
        started_write,
        pending_commit(A, check=lambda *asked: None),
        seen_by(started_write),
    )
    assert isinstance(committed, CommittedWrite)


def test_early_validation_finds_commits_after_the_base_snapshot():
    mine, other = two_writers()
    started_write = started(mine)
    assert validate_early(mine.context, started_write, touching(A), seen_by(started_write)) == (
        NoConflict(),
        seen_by(started_write),
    )
    publish_one(other, A)
    verdict, base_state = validate_early(
        mine.context, started_write, touching(A), seen_by(started_write)
    )
    assert isinstance(verdict, Rebase | Rejected)
    assert base_state.head == 1
    assert validate_early(mine.context, started_write, touching(A), base_state) == (
        NoConflict(),
        base_state,
    )
    assert isinstance(
        validate_early(mine.context, started_write, touching(B), seen_by(started_write))[0],
        NoConflict,
    )


def test_early_validation_permits_log_conflicts_where_they_are_allowed():
    mine, other = two_writers()
    started_write = started(mine)
    log = touching(A, access=Access.LOG)
    commit_write(
        other.context,
        other_begun := started(other),
        PendingCommit(write_set=log, metadata=CommitMetadata()),
        seen_by(other_begun),
    )
    early = validate_early(
        mine.context, started_write, log, seen_by(started_write), logs_may_conflict=True
    )
    assert isinstance(early[0], NoConflict)
    assert isinstance(
        validate_early(mine.context, started_write, log, seen_by(started_write))[0], Rejected
    )


def test_early_validation_lists_nothing_while_the_commit_log_does_not_grow():
    observed = RecordingStorage(MemoryStorage())
    mine = new_table(observed, clock=StillClock())
    publish_one(mine, A)
    started_write = started(mine)
    observed.forget()
    validate_early(mine.context, started_write, touching(A), seen_by(started_write))
    assert [call.operation for call in observed.calls] == ["read"]


# ---------------------------------------------------------------- SGL-1


@pytest.mark.spec("SGL-1")
def test_a_single_writer_names_the_writer_that_committed_between_its_own_slots():
    mine, other = two_writers()
    publish_one(mine, A)
    theirs = publish_one(other, B)
    assert isinstance(theirs, CommittedWrite)
    publish_one(mine, A)
    publish_one(mine, A)
    assert heard(mine, "writer.second_noticed") == [
        {
            "writer": theirs.slot.owner.text,
            "number": 2,
            "rt": theirs.slot.requested_time,
            "advice": "set hoodie.write.concurrency.mode on all writers of this table",
        }
    ]


@pytest.mark.spec("SGL-1")
def test_a_single_writer_reports_a_commit_between_its_begin_and_its_first_slot():
    mine, other = two_writers()
    publish_one(other, B)
    started_write = started(mine)
    theirs = publish_one(other, B)
    commit_write(mine.context, started_write, pending_commit(A), seen_by(started_write))
    assert isinstance(theirs, CommittedWrite)
    assert [event["number"] for event in heard(mine, "writer.second_noticed")] == [2]


@pytest.mark.spec("SGL-1")
def test_writers_of_a_concurrency_mode_report_no_second_writer():
    mine, other = two_writers(mode=ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL)
    publish_one(mine, A)
    publish_one(other, B)
    publish_one(mine, A)
    assert heard(mine, "writer.second_noticed") == []


def test_rows_are_visible_after_a_commit():
    table = new_table(clock=StillClock())
    result = upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    [instant] = table.context.active().completed_writes
    assert (instant.requested_time, instant.completion_time) == (
        result.requested_time,
        result.completion_time,
    )

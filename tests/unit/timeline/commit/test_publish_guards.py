"""Each guard of a publication on its own: who is stopped, when, and what is told (PUB, HB-3, SGL-1)."""

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
)
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.commit import CommittedWrite, Conflict, commit_write
from timeline.commit.commit_lock import PendingCommit
from timeline.commit.concurrent_commits import verdict_on
from timeline.commit.validate import commits_since, validate_early
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


class Queue(Behind):
    """A lock before which something happens."""

    def __init__(self, inner: object, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act = act

    def acquire(self, purpose: str) -> object:
        self._act()
        return self.inner.acquire(purpose)


def while_it_waits(table: TableReader, act: Callable[[], object]) -> None:
    """The next turn of this table waits for the lock while ``act`` happens."""
    left = [act]
    ports = table.context.ports
    queue = Queue(ports.lock, lambda: left.pop()() if left else None)
    object.__setattr__(ports, "lock", queue)


@pytest.mark.spec("HB-3")
def test_who_paused_too_long_is_told_so_and_not_what_it_meets():
    mine, other = two_writers()
    begun = started(mine)
    publish_one(other, A)
    clock_of(mine).steady += 120_001
    with pytest.raises(HeartbeatExpiredError):
        commit_write(mine.context, begun, pending_commit(A), seen_by(begun))


@pytest.mark.spec("HB-3")
def test_who_paused_in_the_queue_takes_no_slot():
    mine, _ = two_writers()
    begun = started(mine)

    def pause() -> None:
        clock_of(mine).steady += 120_001

    while_it_waits(mine, pause)
    with pytest.raises(HeartbeatExpiredError):
        commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert numbers(mine) == []


@pytest.mark.spec("PUB-6")
@pytest.mark.parametrize("which", [0, 1], ids=["inflight", "requested"])
def test_a_pending_file_that_is_gone_means_rolled_back(which: int):
    mine, _ = two_writers()
    begun = started(mine)
    name = pending_file_names(begun.action, begun.requested_time)[which]
    mine.context.ports.storage.delete(timeline_path(name))
    with pytest.raises(RolledBackError) as caught:
        commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert caught.value.fields == {"requested_time": begun.requested_time}
    assert numbers(mine) == []


@pytest.mark.spec("GC-3")
def test_what_is_no_longer_held_is_not_published():
    mine, _ = two_writers()
    mine.context.low_water_mark.entry = {}
    begun = started(mine)
    mine.context.low_water_mark.release(begun.requested_time)
    with pytest.raises(HeartbeatExpiredError):
        commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert numbers(mine) == []


def test_a_published_write_holds_nothing_back_any_more():
    mine, _ = two_writers()
    mine.context.low_water_mark.entry = {}
    assert isinstance(publish_one(mine, A), CommittedWrite)
    assert mine.context.low_water_mark.kept_above == {}


def test_the_slot_says_all_that_was_judged():
    mine, other = two_writers()
    begun = started(mine)
    publish_one(other, B)
    published = commit_write(
        mine.context,
        begun,
        pending_commit(A, schema_before="s1", schema_after="s2", batches=(Batch(batch_id="b"),)),
        seen_by(begun),
    )
    assert isinstance(published, CommittedWrite)
    slot = published.slot
    assert (slot.number, slot.base, slot.kind) == (2, 1, SlotKind.COMMIT)
    assert (slot.action, slot.requested_time) == (Action.COMMIT, begun.requested_time)
    assert (slot.schema_before, slot.schema_after) == ("s1", "s2")
    assert (slot.write_set, slot.batches) == (touching(A), (Batch(batch_id="b"),))
    assert (published.completion_time, published.lost_slots) == (slot.completion_time, 0)
    assert int(slot.completion_time) % 4 == 3
    assert slot.completion_time > begun.requested_time


def test_the_queue_is_told_who_wants_to_publish():
    mine, _ = two_writers()
    purposes: list[str] = []

    class Noted(Behind):
        def acquire(self, purpose: str) -> object:
            purposes.append(purpose)
            return self.inner.acquire(purpose)

    ports = mine.context.ports
    object.__setattr__(ports, "lock", Noted(ports.lock))
    begun = started(mine)
    commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert purposes == [f"commit {begun.requested_time}"]


# ---------------------------------------------------------------- plans in the way


Config = Callable[[], TableConfig]


def refusing_for(plan: Instant | None, calls: list[int]) -> Callable[..., Rejected]:
    def check(timeline: ActiveTimeline, rivals: list[ConcurrentCommit], config: Config) -> Rejected:
        calls.append(len(rivals))
        plans = (plan,) if plan else ()
        return Rejected(RuleId.PENDING_PLAN_OWNS_FILE_GROUP, "a plan owns it", (), plans=plans)

    return check


@pytest.mark.parametrize(
    ("cancels", "plan", "looks"), [(False, PLAN, 1), (True, None, 1), (True, PLAN, 4)]
)
def test_a_refusal_is_looked_at_again_only_for_plans_that_may_be_cancelled(
    cancels: bool, plan: Instant | None, looks: int
):
    """As often as slots may be lost: three times here."""
    retry = replace(BRISK.retry, commit_attempts_max=3)
    mine, _ = two_writers(cancels_conflicting_plans=cancels, retry=retry)
    calls: list[int] = []
    met = publish_one(mine, A, check=refusing_for(plan, calls))
    assert isinstance(met, Conflict)
    assert met.verdict.rule is RuleId.PENDING_PLAN_OWNS_FILE_GROUP
    assert len(calls) == looks


def test_a_file_group_that_can_be_redone_cancels_no_plan():
    mine, other = two_writers(cancels_conflicting_plans=True)
    begun = begun_after(other, mine, A)
    met = commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert isinstance(met, Conflict)
    assert isinstance(met.verdict, Rebase)
    assert met.verdict.file_groups == (A,)


# ---------------------------------------------------------------- what is judged


def test_what_is_met_is_told_with_what_was_seen():
    mine, other = two_writers()
    begun = started(mine)
    won = publish_one(other, A)
    assert isinstance(won, CommittedWrite)
    met = commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert isinstance(met, Conflict)
    assert [one.requested_time for one in met.verdict.concurrent_commits] == [
        won.slot.requested_time
    ]
    completed = frozenset({(won.slot.requested_time, won.completion_time)})
    assert met.base_state == replace(seen_by(begun), head=1, completed=completed)
    assert numbers(mine) == [1]


def test_what_comes_while_one_waits_in_the_queue_is_met_there():
    mine, other = two_writers()
    begun = started(mine)
    while_it_waits(mine, lambda: publish_one(other, A))
    met = commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert isinstance(met, Conflict)
    assert met.base_state.head == 1
    assert numbers(mine) == [1]


def test_other_file_groups_that_come_while_one_waits_stand_and_are_the_base():
    mine, other = two_writers()
    begun = started(mine)
    while_it_waits(mine, lambda: publish_one(other, B))
    published = commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert isinstance(published, CommittedWrite)
    assert (published.slot.number, published.slot.base) == (2, 1)


def test_what_was_seen_is_not_met_again():
    mine, _ = two_writers()
    publish_one(mine, A)
    begun = started(mine)
    rivals, seen = commits_since(
        mine.context, seen_by(begun), mine.context.active(), head=mine.context.commit_log.head()
    )
    assert (rivals, seen) == ([], seen_by(begun))


def test_rivals_come_in_the_order_of_their_slots():
    mine, other = two_writers()
    begun = started(mine)
    times = [publish_one(other, group).slot.requested_time for group in (B, A, B)]
    rivals, seen = commits_since(mine.context, seen_by(begun), mine.context.active(), head=3)
    assert [one.requested_time for one in rivals] == times
    assert (seen.head, len(seen.completed)) == (3, 3)


def test_slots_above_the_head_asked_for_are_left_to_the_next_look():
    mine, other = two_writers()
    begun = started(mine)
    first = publish_one(other, A)
    publish_one(other, B)
    rivals, _ = commits_since(mine.context, seen_by(begun), mine.context.active(), head=1)
    assert [one.requested_time for one in rivals] == [first.slot.requested_time]


def test_what_was_only_read_is_judged_and_not_published():
    mine, other = two_writers()
    begun = started(mine)
    publish_one(other, B)
    read = touching(B).file_groups
    met = commit_write(mine.context, begun, pending_commit(A, read_only=read), seen_by(begun))
    assert isinstance(met, Conflict)
    assert met.verdict.file_groups == (B,)


def rival(claim: WriteSet, requested_time: str = "20260102030405000") -> ConcurrentCommit:
    return ConcurrentCommit(
        action=Action.COMMIT,
        requested_time=requested_time,
        completion_time="20260102030405011",
        write_set=claim,
    )


MY_TIME = "20260102030405004"


def test_the_strategy_objects_after_the_matrix_and_before_a_redo():
    partition = find_strategy("partition")
    assert partition is not None
    mine, _ = two_writers(strategy=partition)
    judged = verdict_on(mine.context, pending_commit(A), MY_TIME, [rival(touching(A))])
    assert isinstance(judged, Rejected)
    assert judged.rule is RuleId.STRATEGY_REFUSED
    replaced = verdict_on(
        mine.context, pending_commit(A), MY_TIME, [rival(touching(A, touch=Access.REPLACE))]
    )
    assert replaced.rule is RuleId.FILE_GROUP_REPLACED
    assert (
        verdict_on(mine.context, pending_commit(A), MY_TIME, [rival(touching(B))]) == NoConflict()
    )


def test_partitions_and_logs_count_as_the_candidate_says():
    mine, _ = two_writers()
    log = touching(A, touch=Access.LOG)
    both = PendingCommit(write_set=log, metadata=CommitMetadata(), logs_may_conflict=True)
    assert verdict_on(mine.context, both, MY_TIME, [rival(log)]) == NoConflict()
    alone = replace(both, logs_may_conflict=False)
    assert isinstance(verdict_on(mine.context, alone, MY_TIME, [rival(log)]), Rejected)
    claiming = PendingCommit(write_set=WriteSet.of([], ["x"]), metadata=CommitMetadata())
    judged = verdict_on(mine.context, claiming, MY_TIME, [rival(touching(A))])
    assert judged.rule is RuleId.WRITTEN_INTO_MY_CLAIM


def test_an_own_check_is_asked_beside_a_redo_but_not_after_a_refusal():
    mine, other = two_writers()
    for touch, verdict, asked in (
        (Access.BASE, RuleId.SAME_NEW_KEY, [1]),
        (Access.REPLACE, RuleId.WRITTEN_WHAT_I_REPLACE, []),
    ):
        begun = begun_after(other, mine, A)
        calls: list[int] = []

        def check(
            timeline: ActiveTimeline,
            rivals: list[ConcurrentCommit],
            config: Config,
            calls: list[int] = calls,
        ) -> Rejected:
            calls.append(len(rivals))
            return Rejected(RuleId.SAME_NEW_KEY, "one key is new to both", tuple(rivals))

        wanted = PendingCommit(
            write_set=touching(A, touch=touch), metadata=CommitMetadata(), check=check
        )
        met = commit_write(mine.context, begun, wanted, seen_by(begun))
        assert isinstance(met, Conflict)
        assert (met.verdict.rule, calls) == (verdict, asked)
        assert met.base_state.head == mine.context.commit_log.head()


def test_a_check_that_has_no_objection_lets_it_stand():
    mine, other = two_writers()
    begun = started(mine)
    publish_one(other, B)
    published = commit_write(
        mine.context, begun, pending_commit(A, check=lambda *asked: None), seen_by(begun)
    )
    assert isinstance(published, CommittedWrite)


def test_an_early_look_meets_what_came_since_the_base_snapshot():
    mine, other = two_writers()
    begun = started(mine)
    assert validate_early(mine.context, begun, touching(A), seen_by(begun)) == (
        NoConflict(),
        seen_by(begun),
    )
    publish_one(other, A)
    verdict, seen = validate_early(mine.context, begun, touching(A), seen_by(begun))
    assert isinstance(verdict, Rebase | Rejected)
    assert seen.head == 1
    assert validate_early(mine.context, begun, touching(A), seen) == (NoConflict(), seen)
    assert isinstance(
        validate_early(mine.context, begun, touching(B), seen_by(begun))[0], NoConflict
    )


def test_logs_that_may_meet_may_meet_in_the_early_look():
    mine, other = two_writers()
    begun = started(mine)
    log = touching(A, touch=Access.LOG)
    commit_write(
        other.context,
        other_begun := started(other),
        PendingCommit(write_set=log, metadata=CommitMetadata()),
        seen_by(other_begun),
    )
    early = validate_early(mine.context, begun, log, seen_by(begun), logs_may_conflict=True)
    assert isinstance(early[0], NoConflict)
    assert isinstance(validate_early(mine.context, begun, log, seen_by(begun))[0], Rejected)


def test_while_the_chain_stands_still_the_early_look_lists_nothing():
    observed = RecordingStorage(MemoryStorage())
    mine = new_table(observed, clock=StillClock())
    publish_one(mine, A)
    begun = started(mine)
    observed.forget()
    validate_early(mine.context, begun, touching(A), seen_by(begun))
    assert [call.operation for call in observed.calls] == ["read"]


# ---------------------------------------------------------------- SGL-1


@pytest.mark.spec("SGL-1")
def test_a_single_writer_names_whoever_published_between_its_own_slots():
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
def test_a_single_writer_notices_who_came_before_its_first_slot_and_after_its_begin():
    mine, other = two_writers()
    publish_one(other, B)
    begun = started(mine)
    theirs = publish_one(other, B)
    commit_write(mine.context, begun, pending_commit(A), seen_by(begun))
    assert isinstance(theirs, CommittedWrite)
    assert [told["number"] for told in heard(mine, "writer.second_noticed")] == [2]


@pytest.mark.spec("SGL-1")
def test_writers_that_know_of_each_other_notice_nothing():
    mine, other = two_writers(mode=ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL)
    publish_one(mine, A)
    publish_one(other, B)
    publish_one(mine, A)
    assert heard(mine, "writer.second_noticed") == []


def test_rows_are_visible_after_a_guarded_publication():
    table = new_table(clock=StillClock())
    receipt = upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    [instant] = table.context.active().completed_writes
    assert (instant.requested_time, instant.completion_time) == (
        receipt.requested_time,
        receipt.completion_time,
    )

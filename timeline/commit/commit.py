"""
Publishing a write: judged against what others published, then made visible (PUB-1 to PUB-9).

Theory of operation. Everything slow happened before: data is written and durable, stray
files are gone. A candidate is first judged without the lock against everything published
since its base snapshot; in its turn only the delta is judged, then the completion time is
drawn above everything and the slot taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from timeline.active_timeline import ActiveTimeline
from timeline.codecs.commit_body import CommitBody
from timeline.commit.admission import TimelineState, is_commit_lock_kept, waits_for_others
from timeline.commit.apply import is_applied, newest_slots, not_applied
from timeline.commit.begin import StartedWrite, refuse_during_restore
from timeline.commit.cancel_plan import cancel_blocking_plans
from timeline.commit.concurrent_commits import (
    CONCURRENT_KINDS,
    archived_commits,
    clean_conflict,
    commit_of_slot,
    foreign_clean_conflict,
    foreign_commits,
    pending_rollback_of,
)
from timeline.commit.nested_partitions import delete_hiding_metadata
from timeline.commit.revalidate import (
    ForeignWriterWait,
    foreign_writes_without_snapshot,
    without_void,
)
from timeline.commit.section import commit_in_section
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.errors import (
    RolledBackError,
)
from timeline.model.commit_metadata import CommitMetadata, ConcurrencyMode
from timeline.model.file_names import instant_file_name, pending_file_names
from timeline.model.instant import Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Batch, Slot, SlotKind
from timeline.model.table_config import TableConfig
from timeline.model.write_set import AccessedFileGroup, WriteSet
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import ForeignWriters
from timeline.rules.conflicts import (
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    objection_to,
    validate_write_set,
)
from timeline.rules.instant_times import Residue
from timeline.snapshot import Snapshot
from timeline.truncation import assert_slots_kept, slots_since

__all__ = [
    "BaseState",
    "CommitCheck",
    "CommittedWrite",
    "Conflict",
    "PendingCommit",
    "commit_write",
    "commits_since",
    "validate_early",
    "validate_since",
    "verdict_on",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseState:
    """What a candidate was judged against: the chain up to ``head`` and these completed instants."""

    head: int
    completed: frozenset[tuple[InstantTime, InstantTime]]
    first: InstantTime | None = None  # where the timeline began: what is below was archived before

    @staticmethod
    def by(snapshot: Snapshot) -> BaseState:
        """Everything a snapshot shows."""
        active = snapshot.active
        return BaseState(
            head=snapshot.head, completed=active.completed_times, first=active.first_write_time
        )


#: With the timeline, the rivals since the last look, and how the table's properties are got.
CommitCheck: TypeAlias = Callable[
    [ActiveTimeline, list[ConcurrentCommit], Callable[[], TableConfig]], Rejected | None
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """What a begun write wants to publish."""

    claim: WriteSet  # what it touches, published in the slot
    metadata: CommitMetadata
    read_only: tuple[
        AccessedFileGroup, ...
    ] = ()  # read and left as they were; judged, not published
    inside: tuple[str, ...] = ()  # folders around the partitions that it opens
    schema_before: str = ""
    schema_after: str = ""
    batches: tuple[Batch, ...] = ()
    logs_may_meet: bool = False  # NBCC-1
    check: CommitCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedWrite:
    """A write that became visible."""

    slot: Slot
    lost_slots: int

    @property
    def completion_time(self) -> InstantTime:
        """When, in the order of visibility."""
        return self.slot.completion_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A candidate that meets something published before it; ``seen`` includes the winner."""

    verdict: Rebase | Rejected
    seen: BaseState


def validate_early(
    context: TableContext,
    begun: StartedWrite,
    claim: WriteSet,
    seen: BaseState,
    *,
    logs_may_meet: bool = False,
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """
    Judge a planned claim before any file is written, without the lock.

    Finding the keys of a big batch takes long; what was published meanwhile is cheaper to
    meet now than after writing (early conflict detection). Outside: 1 list, chain probes.
    """
    planned = PendingCommit(claim=claim, metadata=CommitMetadata(), logs_may_meet=logs_may_meet)
    return _validate_unlocked(context, begun, planned, seen)


def commit_write(
    context: TableContext,
    begun: StartedWrite,
    candidate: PendingCommit,
    seen: BaseState,
    looked: TimelineState | None = None,
) -> CommittedWrite | Conflict:
    """
    Make a begun write visible, or say what it meets.

    Outside, after the unlocked look: lock, 1 list, 1 get, 2 creates, unlock. Who calls asks
    ``assert_landed`` before anybody is told (SLOT-10), beside what else is left to do.

    Args:
        context: The table.
        begun: The write.
        candidate: What it wants to publish.
        seen: What its content was made from.
        looked: What was read of the table when its place in a line had come.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).
        RolledBackError: Another actor aborted the instant (PUB-6).
        LockTimeoutError, LeaseLostError: The queue did not let us through, or another engine's
            begun write did not start (FOR-5).
        OutcomeUnknownError: The storage never answered the decisive request.
        BudgetSpentError: Too many slots were lost to others.
    """
    outcome = _try_commit(context, begun, candidate, seen, looked)
    for _ in range(context.limits.retry.publish_attempts_max):
        plans = _blocking_plans(outcome)
        if not (plans and context.limits.cancels_met_plans):
            break
        cancel_blocking_plans(context, plans)
        # Judged anew against all since ``seen``: what else was met then was not looked at.
        outcome = _try_commit(context, begun, candidate, seen)
    return outcome


def _blocking_plans(outcome: CommittedWrite | Conflict) -> tuple[Instant, ...]:
    """The plans without which a candidate would not have been refused."""
    if isinstance(outcome, Conflict) and isinstance(outcome.verdict, Rejected):
        return outcome.verdict.plans
    return ()


def _try_commit(
    context: TableContext,
    begun: StartedWrite,
    candidate: PendingCommit,
    seen: BaseState,
    looked: TimelineState | None = None,
) -> CommittedWrite | Conflict:
    begun.heartbeat.check()
    if looked is None and not _skips_early_validation(context):
        verdict, seen = _validate_unlocked(context, begun, candidate, seen)
        if not isinstance(verdict, NoConflict):
            return Conflict(verdict=verdict, seen=seen)
    body = CommitBody(candidate.metadata)
    nonce = context.world.ids.nonce()
    state = {"seen": seen}
    met: list[Conflict] = []
    unread: tuple[InstantTime, ...] = ()
    wait = ForeignWriterWait(context, begun.requested_time)

    def decide(turn: CommitSection) -> Slot | None:
        nonlocal unread
        begun.heartbeat.check()
        assert_slots_kept(context, begun.requested_time)
        refuse_during_restore(turn.timeline)
        _assert_still_pending(context, begun, turn.timeline)
        unread = foreign_writes_without_snapshot(context, turn.timeline, begun.requested_time)
        if unread:
            return None
        verdict, state["seen"] = validate_since(
            context,
            begun,
            candidate,
            state["seen"],
            turn.timeline,
            head=turn.head,
            config=turn.config,
        )
        if not isinstance(verdict, NoConflict):
            met.append(Conflict(verdict=verdict, seen=state["seen"]))
            return None
        return Slot(
            number=turn.head + 1,
            table_id=context.table_id,
            kind=SlotKind.COMMIT,
            action=begun.action,
            requested_time=begun.requested_time,
            completion_time=turn.draw(context, Residue.SLOT_COMPLETION, above=begun.requested_time),
            base=state["seen"].head,
            nonce=nonce,
            owner=turn.owner,
            claim=candidate.claim,
            schema_before=candidate.schema_before,
            schema_after=candidate.schema_after,
            batches=candidate.batches,
            body=body.bytes_with(turn.owner.fencing_token),
        )

    def is_met() -> bool:
        # What was not read yet tells nothing; and whoever waits asks nothing here.
        slots = context.chain.known_between(state["seen"].head, context.chain.known_head)
        rivals = [commit_of_slot(slot) for slot in slots if slot.kind in CONCURRENT_KINDS]
        if not rivals:
            return False
        verdict = verdict_on(context, candidate, begun.requested_time, rivals)
        mine = set(candidate.claim.inserting)
        # Where both inserted keys only their files tell whether they are the same (C9).
        may_meet = any(not mine.isdisjoint(rival.claim.inserting) for rival in rivals)
        return may_meet or not isinstance(verdict, NoConflict)

    known = context.chain.last_own or begun.snapshot.head
    turn = partial(
        commit_in_section,
        context,
        f"publish {begun.requested_time}",
        decide,
        begun=begun.requested_time,
        asks_config=True,
        looks_behind=False,
        is_met=is_met,
    )
    slot, lost = turn(looked=looked)
    while slot is None:
        if met:
            return met[-1]
        wait.wait(unread)
        slot, lost = turn()
    mine = Instant(
        action=begun.action.completes_as,
        requested_time=begun.requested_time,
        state=State.COMPLETED,
        completion_time=slot.completion_time,
    )
    context.commits.remember(mine, body.metadata_with(slot.owner.fencing_token))
    context.timelines.add(instant_file_name(mine))
    context.pin.release(begun.requested_time)
    _notice_second_writer(context, known, slot)
    delete_hiding_metadata(context, candidate.inside)
    return CommittedWrite(slot=slot, lost_slots=lost)


def _notice_second_writer(context: TableContext, known: int, mine: Slot) -> None:
    """
    SGL-1: commits of another process between my slots mean that I am not the single writer.

    Nothing is lost, because every slot is judged (PUB-4); but the set-up is not what its
    owner believes, so it is said (hole 13). Workers complete plans, and are no writers.
    """
    if context.limits.mode is not ConcurrencyMode.SINGLE_WRITER:
        return
    for slot in without_void(context.chain.newest_first(mine.number - 1)):
        if slot.number <= known:
            break
        planned = slot.action.completes_as is not slot.action
        if slot.kind is not SlotKind.COMMIT or planned:
            continue
        if slot.owner.writer_id != mine.owner.writer_id:
            context.world.events.emit(
                "writer.second_noticed",
                writer=slot.owner.text,
                number=slot.number,
                rt=slot.requested_time,
                advice="set hoodie.write.concurrency.mode on all writers of this table",
            )


def _assert_still_pending(
    context: TableContext, begun: StartedWrite, timeline: ActiveTimeline
) -> None:
    """
    PUB-6: whoever rolled this instant back removed its pending files, or another engine is about to.

    That one plans under the lock and deletes later without it. Outside: 1 get per pending rollback.
    """
    missing = set(pending_file_names(begun.action, begun.requested_time)) - timeline.file_names
    if missing or pending_rollback_of(context, timeline, begun.requested_time):
        raise RolledBackError(
            "this write was rolled back by another process, which took it for dead; write "
            f"again: {begun.requested_time}",
            requested_time=begun.requested_time,
        )


def commits_since(
    context: TableContext, seen: BaseState, timeline: ActiveTimeline, *, head: int
) -> tuple[list[ConcurrentCommit], BaseState]:
    """
    What became visible since ``seen``, in the order of completion, and the new ``BaseState``.

    Outside: 1 get per instant of another engine.

    Args:
        context: The table.
        seen: What is known already.
        timeline: Listed after ``head`` was read.
        head: Greatest slot to look at.
    """
    slots = _slots_since_base(context, seen, head, timeline)
    rivals = [commit_of_slot(slot) for slot in slots if slot.kind in CONCURRENT_KINDS]
    completed = timeline.completed_times
    ours = {(slot.instant_time, slot.completion_time) for slot in slots}
    fresh = completed - seen.completed - ours
    if fresh:
        # What one of us published after ``head`` was read has a slot, which the next look meets.
        later = context.chain.between(head, context.chain.head())
        fresh -= {(slot.instant_time, slot.completion_time) for slot in later}
    if fresh:
        rivals.extend(foreign_commits(context, timeline, fresh))
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    archived: frozenset[tuple[InstantTime, InstantTime]] = frozenset()
    if shared and seen.first and timeline.first_write_time != seen.first:
        # Java archives what began before a pending write, whenever it completed.
        known = seen.completed | ours | completed
        theirs = archived_commits(context, seen.first, known)
        archived = frozenset((one.requested_time, one.completion_time) for one in theirs)
        rivals.extend(theirs)
    rivals.sort(key=lambda rival: rival.completion_time)
    all_seen = completed | ours | seen.completed | archived
    return rivals, BaseState(head=head, completed=all_seen, first=seen.first)


def validate_since(
    context: TableContext,
    begun: StartedWrite,
    candidate: PendingCommit,
    seen: BaseState,
    timeline: ActiveTimeline,
    *,
    head: int,
    config: Callable[[], TableConfig],
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """Judge against all that became visible since ``seen``: slots up to ``head``, and foreign."""
    rivals, now_seen = commits_since(context, seen, timeline, head=head)
    verdict: NoConflict | Rebase | Rejected = NoConflict()
    if rivals:
        verdict = verdict_on(context, candidate, begun.requested_time, rivals)
    if rivals and not isinstance(verdict, Rejected):
        slots = context.chain.between(seen.head, head)
        base = begun.snapshot.active
        verdict = (
            clean_conflict(slots, rivals)
            or foreign_clean_conflict(context, base, timeline, slots, rivals)
            or verdict
        )
    # Asked also when a file group can be redone: the redo never sees these rivals again, and
    # merging anew answers neither a changed schema nor a key inserted elsewhere.
    if candidate.check is not None and not isinstance(verdict, Rejected):
        refused = candidate.check(timeline, rivals, config)
        if refused is not None:
            return refused, now_seen
    return verdict, now_seen


def verdict_on(
    context: TableContext,
    candidate: PendingCommit,
    requested_time: InstantTime,
    rivals: list[ConcurrentCommit],
) -> NoConflict | Rebase | Rejected:
    """What the conflict matrix says of a candidate beside its rivals, and after it the strategy."""
    judged = WriteSet.of(
        [*candidate.claim.file_groups, *candidate.read_only],
        candidate.claim.partitions,
        candidate.claim.inserting,
    )
    verdict = validate_write_set(
        judged, requested_time, rivals, logs_may_meet=candidate.logs_may_meet
    )
    if isinstance(verdict, Rejected):
        return verdict
    return objection_to(judged, rivals, context.limits.strategy) or verdict


def _skips_early_validation(context: TableContext) -> bool:
    """
    Whether a look before the turn would cost more than it may spare (PUB-1).

    Far away it costs a whole way there and back. It spares nothing where no queue comes before
    the turn's own look, and hardly ever anything while nobody else publishes.
    """
    if not context.world.storage.capabilities.far:
        return False
    return is_commit_lock_kept(context) or not (waits_for_others(context) and context.chain.is_busy)


def _validate_unlocked(
    context: TableContext, begun: StartedWrite, candidate: PendingCommit, seen: BaseState
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """
    The look before the turn, which only spares one.

    While the chain stands still there is nothing of ours to meet; what another engine
    published or planned is met under the lock, where the timeline is listed anyway.
    Outside: 1 get; 1 list when the chain moved.

    What an unsettled slot refuses is left to the turn, which settles it first: its owner may
    be dead, and a writer refused here would never see the files it has to begin from.
    """
    head = context.chain.head()
    if head == seen.head:
        return NoConflict(), seen
    timeline = context.active()
    config = partial(load_config, context.world.storage)
    verdict, now_seen = validate_since(
        context, begun, candidate, seen, timeline, head=head, config=config
    )
    if not isinstance(verdict, NoConflict) and not_applied(context, head, timeline):
        return NoConflict(), seen
    return verdict, now_seen


def _slots_since_base(
    context: TableContext, seen: BaseState, head: int, timeline: ActiveTimeline
) -> list[Slot]:
    """
    The slots above the seen ones, and the last of those whose files were not there yet.

    A snapshot reads the chain before the timeline, so its newest slots may lack the completed
    file that makes them visible (PUB-3 settles all before those). One that lacks it still,
    with nothing left to do, was taken away by another engine before.
    """
    slots = slots_since(context, seen.head, head)
    for last in reversed(newest_slots(context, seen.head)):
        key = (last.instant_time, last.completion_time)
        shows = key in timeline.completed_times or not is_applied(last, timeline, context.history)
        if shows and key not in seen.completed:
            slots = [last, *slots]
    return list(without_void(reversed(slots)))[::-1]

"""
Commit a write: validate it against concurrent commits, then make it visible (PUB-1 to PUB-9).

All slow work is done before: data is durable, stray files are gone. The write is first validated
without the lock against all commits since its base snapshot. In the commit section only newer
commits are validated. Then the completion time is drawn above all others and the slot is taken.
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
    """The commit log up to ``head`` and the completed instants that a write validated against."""

    head: int
    completed: frozenset[tuple[InstantTime, InstantTime]]
    first: InstantTime | None = None  # first write of that timeline; older ones were archived

    @staticmethod
    def by(snapshot: Snapshot) -> BaseState:
        """Return the state that a snapshot shows."""
        active = snapshot.active
        return BaseState(
            head=snapshot.head, completed=active.completed_times, first=active.first_write_time
        )


#: Takes the timeline, the concurrent commits since the last refresh, and a loader of the
#: properties.
CommitCheck: TypeAlias = Callable[
    [ActiveTimeline, list[ConcurrentCommit], Callable[[], TableConfig]], Rejected | None
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """A write with all files written that is to be committed."""

    claim: WriteSet  # what it changes; stored in the slot
    metadata: CommitMetadata
    read_only: tuple[
        AccessedFileGroup, ...
    ] = ()  # read but not changed; validated, not in the slot
    inside: tuple[str, ...] = ()  # folders around the partitions that it creates
    schema_before: str = ""
    schema_after: str = ""
    batches: tuple[Batch, ...] = ()
    logs_may_meet: bool = False  # NBCC-1
    check: CommitCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedWrite:
    """A write that is committed and visible."""

    slot: Slot
    lost_slots: int

    @property
    def completion_time(self) -> InstantTime:
        """Return the completion time, which orders commits by visibility."""
        return self.slot.completion_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A conflict of a write with concurrent commits; ``seen`` includes the winner."""

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
    Validate a planned write set without the lock, before any data file is written.

    Finding the keys of a large batch takes long. A conflict that appeared meanwhile costs less now
    than after writing (early conflict detection). Outside: 1 list, commit log probes.
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
    Commit a started write, or return its conflict.

    The caller calls ``assert_same_table_after_commit`` before it acknowledges the commit (SLOT-10),
    together with its other work. Outside, after the unlocked validation: lock, 1 list, 1 get, 2
    creates, unlock.

    Args:
        context: The table.
        begun: The write.
        candidate: What to commit.
        seen: The base state of its content.
        looked: The table state that was read when its wait in the waiting line ended.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).
        RolledBackError: Another process rolled the instant back (PUB-6).
        LockTimeoutError, LeaseLostError: The lock was not granted or was lost, or another engine's
            pending write did not become inflight in time (FOR-5).
        OutcomeUnknownError: The storage never answered the request for the slot.
        BudgetSpentError: Too many slots were lost to other writers.
    """
    outcome = _try_commit(context, begun, candidate, seen, looked)
    for _ in range(context.limits.retry.publish_attempts_max):
        plans = _blocking_plans(outcome)
        if not (plans and context.limits.cancels_met_plans):
            break
        cancel_blocking_plans(context, plans)
        # Validate again from ``seen``: the rejection ended validation before other conflicts.
        outcome = _try_commit(context, begun, candidate, seen)
    return outcome


def _blocking_plans(outcome: CommittedWrite | Conflict) -> tuple[Instant, ...]:
    """Return the plans without which validation would not have rejected the write."""
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
        # Use only slots that are in memory: this runs while the writer waits, without requests.
        slots = context.chain.known_between(state["seen"].head, context.chain.known_head)
        rivals = [commit_of_slot(slot) for slot in slots if slot.kind in CONCURRENT_KINDS]
        if not rivals:
            return False
        verdict = verdict_on(context, candidate, begun.requested_time, rivals)
        mine = set(candidate.claim.inserting)
        # If both inserted keys, only the files show whether the keys are equal (C9).
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
    Report commits of another process between this writer's slots (SGL-1).

    They mean that this writer is not the single writer, as its mode says. Nothing is lost, because
    every slot is validated (PUB-4), but the configuration is wrong (hole 13). Processes that
    complete plans do not count as writers.
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
    Raise if this instant was rolled back, or if another engine is about to do so (PUB-6).

    A rollback deletes the instant's pending files. Another engine plans its rollback under the lock
    and deletes later without it. Outside: 1 get per pending rollback.
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
    Return the commits that became visible since ``seen``, by completion, and the new base state.

    Outside: 1 get per instant of another engine.

    Args:
        context: The table.
        seen: What is known already.
        timeline: Listed after ``head`` was read.
        head: The greatest slot to read.
    """
    slots = _slots_since_base(context, seen, head, timeline)
    rivals = [commit_of_slot(slot) for slot in slots if slot.kind in CONCURRENT_KINDS]
    completed = timeline.completed_times
    ours = {(slot.instant_time, slot.completion_time) for slot in slots}
    fresh = completed - seen.completed - ours
    if fresh:
        # Our own commits after ``head`` was read have slots; the next refresh finds them.
        later = context.chain.between(head, context.chain.head())
        fresh -= {(slot.instant_time, slot.completion_time) for slot in later}
    if fresh:
        rivals.extend(foreign_commits(context, timeline, fresh))
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    archived: frozenset[tuple[InstantTime, InstantTime]] = frozenset()
    if shared and seen.first and timeline.first_write_time != seen.first:
        # Java archives all that began before a pending write, whenever it completed.
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
    """Validate against slots above ``seen`` up to ``head`` and foreign instants since ``seen``."""
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
    # Also checked before a rebase: a rebase never validates against these commits again, and
    # merging again solves neither a changed schema nor a key inserted elsewhere.
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
    """Return the verdict of the conflict matrix and, after it, of the conflict strategy."""
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
    Return whether validation before the commit section costs more than it saves (PUB-1).

    On a high-latency store it costs a round trip. It saves nothing if the writer does not wait for
    the lock before its refresh, and hardly anything while no other writer commits.
    """
    if not context.world.storage.capabilities.far:
        return False
    return is_commit_lock_kept(context) or not (waits_for_others(context) and context.chain.is_busy)


def _validate_unlocked(
    context: TableContext, begun: StartedWrite, candidate: PendingCommit, seen: BaseState
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """
    Validate before the commit section, only to avoid entering it in vain.

    If the commit log has not grown, there is no conflict with our own writers. Commits and plans of
    other engines are validated under the lock, where the timeline is listed anyway. Outside: 1 get;
    1 list if the log has grown.

    A rejection caused by a slot that is not applied is left to the commit section, which applies
    the slot first. The slot's owner may be dead, and a retry needs the slot's files.
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
    Return the slots above the base state, and the newest older ones whose files it lacked.

    A snapshot reads the commit log before the timeline, so its newest slots may lack their
    completed file (PUB-3: all before those are applied). If such a file is still missing though
    nothing is left to apply, another engine had removed it before.
    """
    slots = slots_since(context, seen.head, head)
    for last in reversed(newest_slots(context, seen.head)):
        key = (last.instant_time, last.completion_time)
        shows = key in timeline.completed_times or not is_applied(last, timeline, context.history)
        if shows and key not in seen.completed:
            slots = [last, *slots]
    return list(without_void(reversed(slots)))[::-1]

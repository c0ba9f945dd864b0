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
from timeline.commit.admission import Looked, has_queue, is_held
from timeline.commit.apply import is_settled, newest_slots, unsettled
from timeline.commit.begin import Begun, refuse_while_restored
from timeline.commit.cancel_plan import make_way
from timeline.commit.concurrent_commits import (
    RIVAL_KINDS,
    archived_rivals,
    cleaned_by_others,
    cleaned_by_slots,
    foreign_rivals,
    pending_rollback_of,
    rival_of_slot,
)
from timeline.commit.nested_partitions import uncover
from timeline.commit.revalidate import BeginWait, begins_unread, without_void
from timeline.commit.section import take_turn
from timeline.commit.state import Turn
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
from timeline.model.write_set import Claim, TouchedFileGroup
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import ForeignWriters
from timeline.rules.conflicts import Clean, Rebaseable, Refused, Rival, judge, objection_to
from timeline.rules.instant_times import Residue
from timeline.snapshot import Snapshot
from timeline.truncation import assert_held, slots_since

__all__ = [
    "Candidate",
    "Check",
    "Met",
    "Published",
    "Seen",
    "judge_early",
    "judge_since",
    "publish",
    "rivals_since",
    "verdict_on",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a candidate was judged against: the chain up to ``head`` and these completed instants."""

    head: int
    completed: frozenset[tuple[InstantTime, InstantTime]]
    first: InstantTime | None = None  # where the timeline began: what is below was archived before

    @staticmethod
    def by(snapshot: Snapshot) -> Seen:
        """Everything a snapshot shows."""
        active = snapshot.active
        return Seen(
            head=snapshot.head, completed=active.completed_times, first=active.first_write_time
        )


#: With the timeline, the rivals since the last look, and how the table's properties are got.
Check: TypeAlias = Callable[
    [ActiveTimeline, list[Rival], Callable[[], TableConfig]], Refused | None
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a begun write wants to publish."""

    claim: Claim  # what it touches, published in the slot
    metadata: CommitMetadata
    read_only: tuple[
        TouchedFileGroup, ...
    ] = ()  # read and left as they were; judged, not published
    inside: tuple[str, ...] = ()  # folders around the partitions that it opens
    schema_before: str = ""
    schema_after: str = ""
    batches: tuple[Batch, ...] = ()
    logs_may_meet: bool = False  # NBCC-1
    check: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A write that became visible."""

    slot: Slot
    lost_slots: int

    @property
    def completion_time(self) -> InstantTime:
        """When, in the order of visibility."""
        return self.slot.completion_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A candidate that meets something published before it; ``seen`` includes the winner."""

    verdict: Rebaseable | Refused
    seen: Seen


def judge_early(
    context: TableContext, begun: Begun, claim: Claim, seen: Seen, *, logs_may_meet: bool = False
) -> tuple[Clean | Rebaseable | Refused, Seen]:
    """
    Judge a planned claim before any file is written, without the lock.

    Finding the keys of a big batch takes long; what was published meanwhile is cheaper to
    meet now than after writing (early conflict detection). Outside: 1 list, chain probes.
    """
    planned = Candidate(claim=claim, metadata=CommitMetadata(), logs_may_meet=logs_may_meet)
    return _judge_unlocked(context, begun, planned, seen)


def publish(
    context: TableContext,
    begun: Begun,
    candidate: Candidate,
    seen: Seen,
    looked: Looked | None = None,
) -> Published | Met:
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
    outcome = _try_publish(context, begun, candidate, seen, looked)
    for _ in range(context.limits.retry.publish_attempts_max):
        plans = _in_the_way(outcome)
        if not (plans and context.limits.cancels_met_plans):
            break
        make_way(context, plans)
        # Judged anew against all since ``seen``: what else was met then was not looked at.
        outcome = _try_publish(context, begun, candidate, seen)
    return outcome


def _in_the_way(outcome: Published | Met) -> tuple[Instant, ...]:
    """The plans without which a candidate would not have been refused."""
    if isinstance(outcome, Met) and isinstance(outcome.verdict, Refused):
        return outcome.verdict.plans
    return ()


def _try_publish(
    context: TableContext,
    begun: Begun,
    candidate: Candidate,
    seen: Seen,
    looked: Looked | None = None,
) -> Published | Met:
    begun.heartbeat.check()
    if looked is None and not _turn_tells_soon(context):
        verdict, seen = _judge_unlocked(context, begun, candidate, seen)
        if not isinstance(verdict, Clean):
            return Met(verdict=verdict, seen=seen)
    body = CommitBody(candidate.metadata)
    nonce = context.world.ids.nonce()
    state = {"seen": seen}
    met: list[Met] = []
    unread: tuple[InstantTime, ...] = ()
    wait = BeginWait(context, begun.requested_time)

    def decide(turn: Turn) -> Slot | None:
        nonlocal unread
        begun.heartbeat.check()
        assert_held(context, begun.requested_time)
        refuse_while_restored(turn.timeline)
        _assert_still_pending(context, begun, turn.timeline)
        unread = begins_unread(context, turn.timeline, begun.requested_time)
        if unread:
            return None
        verdict, state["seen"] = judge_since(
            context,
            begun,
            candidate,
            state["seen"],
            turn.timeline,
            head=turn.head,
            config=turn.config,
        )
        if not isinstance(verdict, Clean):
            met.append(Met(verdict=verdict, seen=state["seen"]))
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
        rivals = [rival_of_slot(slot) for slot in slots if slot.kind in RIVAL_KINDS]
        if not rivals:
            return False
        verdict = verdict_on(context, candidate, begun.requested_time, rivals)
        mine = set(candidate.claim.inserting)
        # Where both inserted keys only their files tell whether they are the same (C9).
        may_meet = any(not mine.isdisjoint(rival.claim.inserting) for rival in rivals)
        return may_meet or not isinstance(verdict, Clean)

    known = context.chain.last_own or begun.snapshot.head
    turn = partial(
        take_turn,
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
    uncover(context, candidate.inside)
    return Published(slot=slot, lost_slots=lost)


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


def _assert_still_pending(context: TableContext, begun: Begun, timeline: ActiveTimeline) -> None:
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


def rivals_since(
    context: TableContext, seen: Seen, timeline: ActiveTimeline, *, head: int
) -> tuple[list[Rival], Seen]:
    """
    What became visible since ``seen``, in the order of completion, and the new ``Seen``.

    Outside: 1 get per instant of another engine.

    Args:
        context: The table.
        seen: What is known already.
        timeline: Listed after ``head`` was read.
        head: Greatest slot to look at.
    """
    slots = _slots_not_seen(context, seen, head, timeline)
    rivals = [rival_of_slot(slot) for slot in slots if slot.kind in RIVAL_KINDS]
    completed = timeline.completed_times
    ours = {(slot.instant_time, slot.completion_time) for slot in slots}
    fresh = completed - seen.completed - ours
    if fresh:
        # What one of us published after ``head`` was read has a slot, which the next look meets.
        later = context.chain.between(head, context.chain.head())
        fresh -= {(slot.instant_time, slot.completion_time) for slot in later}
    if fresh:
        rivals.extend(foreign_rivals(context, timeline, fresh))
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    archived: frozenset[tuple[InstantTime, InstantTime]] = frozenset()
    if shared and seen.first and timeline.first_write_time != seen.first:
        # Java archives what began before a pending write, whenever it completed.
        known = seen.completed | ours | completed
        theirs = archived_rivals(context, seen.first, known)
        archived = frozenset((one.requested_time, one.completion_time) for one in theirs)
        rivals.extend(theirs)
    rivals.sort(key=lambda rival: rival.completion_time)
    all_seen = completed | ours | seen.completed | archived
    return rivals, Seen(head=head, completed=all_seen, first=seen.first)


def judge_since(
    context: TableContext,
    begun: Begun,
    candidate: Candidate,
    seen: Seen,
    timeline: ActiveTimeline,
    *,
    head: int,
    config: Callable[[], TableConfig],
) -> tuple[Clean | Rebaseable | Refused, Seen]:
    """Judge against all that became visible since ``seen``: slots up to ``head``, and foreign."""
    rivals, now_seen = rivals_since(context, seen, timeline, head=head)
    verdict: Clean | Rebaseable | Refused = Clean()
    if rivals:
        verdict = verdict_on(context, candidate, begun.requested_time, rivals)
    if rivals and not isinstance(verdict, Refused):
        slots = context.chain.between(seen.head, head)
        base = begun.snapshot.active
        verdict = (
            cleaned_by_slots(slots, rivals)
            or cleaned_by_others(context, base, timeline, slots, rivals)
            or verdict
        )
    # Asked also when a file group can be redone: the redo never sees these rivals again, and
    # merging anew answers neither a changed schema nor a key inserted elsewhere.
    if candidate.check is not None and not isinstance(verdict, Refused):
        refused = candidate.check(timeline, rivals, config)
        if refused is not None:
            return refused, now_seen
    return verdict, now_seen


def verdict_on(
    context: TableContext, candidate: Candidate, requested_time: InstantTime, rivals: list[Rival]
) -> Clean | Rebaseable | Refused:
    """What the conflict matrix says of a candidate beside its rivals, and after it the strategy."""
    judged = Claim.of(
        [*candidate.claim.file_groups, *candidate.read_only],
        candidate.claim.partitions,
        candidate.claim.inserting,
    )
    verdict = judge(judged, requested_time, rivals, logs_may_meet=candidate.logs_may_meet)
    if isinstance(verdict, Refused):
        return verdict
    return objection_to(judged, rivals, context.limits.strategy) or verdict


def _turn_tells_soon(context: TableContext) -> bool:
    """
    Whether a look before the turn would cost more than it may spare (PUB-1).

    Far away it costs a whole way there and back. It spares nothing where no queue comes before
    the turn's own look, and hardly ever anything while nobody else publishes.
    """
    if not context.world.storage.capabilities.far:
        return False
    return is_held(context) or not (has_queue(context) and context.chain.is_busy)


def _judge_unlocked(
    context: TableContext, begun: Begun, candidate: Candidate, seen: Seen
) -> tuple[Clean | Rebaseable | Refused, Seen]:
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
        return Clean(), seen
    timeline = context.active()
    config = partial(load_config, context.world.storage)
    verdict, now_seen = judge_since(
        context, begun, candidate, seen, timeline, head=head, config=config
    )
    if not isinstance(verdict, Clean) and unsettled(context, head, timeline):
        return Clean(), seen
    return verdict, now_seen


def _slots_not_seen(
    context: TableContext, seen: Seen, head: int, timeline: ActiveTimeline
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
        shows = key in timeline.completed_times or not is_settled(last, timeline, context.history)
        if shows and key not in seen.completed:
            slots = [last, *slots]
    return list(without_void(reversed(slots)))[::-1]

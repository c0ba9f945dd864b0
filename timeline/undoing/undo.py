"""
Undoing a failed write: an abort slot first, the deletes after it (RB-1 to RB-9).

The abort slot ends the target in the total order: from then on it can never commit, so
deleting its files is safe even while a paused owner still lives. A commit slot of the
target means the opposite: it is published, and it is helped instead of undone (RB-3).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from timeline.active import ActiveTimeline
from timeline.codecs.instant_avro import (
    decode_rollback_plan,
    encode_rollback,
    encode_rollback_plan,
)
from timeline.context import TableContext
from timeline.errors import (
    OutcomeUnknownError,
    StorageUnavailableError,
    TableReplacedError,
    UnsupportedTableError,
)
from timeline.files.markers import delete_markers
from timeline.heartbeat import instants_that_seem_dead
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Action, Instant
from timeline.model.plans import InstantInfo
from timeline.model.slot import Slot, SlotKind
from timeline.model.times import InstantTime
from timeline.places import timeline_path
from timeline.properties.properties_file import refuse_behind_metadata_table
from timeline.properties.setting_names import ForeignWriters
from timeline.publishing.begin import Begun
from timeline.publishing.look import Turn
from timeline.publishing.nesting import uncover
from timeline.publishing.rivals import pending_rollback_of
from timeline.publishing.settle import data_files_of, settle
from timeline.publishing.turn import take_turn
from timeline.reading.withdrawal import withdrawn_by
from timeline.rules.succession import Residue
from timeline.undoing.left_upkeep import (
    plan_bytes,
    seems_left,
    vanished_target,
    was_overtaken,
)
from timeline.undoing.rollback_documents import plan_document, result_document

__all__ = ["RolledBack", "abandon", "finish_left", "rollback", "rollback_dead_writers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """What became of a target: undone by ``slot``, or left alone because it had ended."""

    target: InstantTime
    slot: Slot | None
    why: str


def rollback(context: TableContext, target: Instant) -> RolledBack:
    """
    Roll back one pending write for good.

    Outside: the target's listing, 1 turn (lock, list, create), the deletes, 3 creates.

    Args:
        context: The table.
        target: A pending commit, deltacommit or replacecommit.

    Raises:
        UnsupportedTableError: The target is a plan or a completed instant.
        TableConfigConflictError: The metadata table is on, and may list the target's files: once
            a rollback is on the timeline without a word in it, readers of it look for them.
        LockTimeoutError, OutcomeUnknownError: As ``publish``.
    """
    if target.completed or target.action not in _UNDOABLE:
        raise UnsupportedTableError(
            f"only a pending write can be rolled back by this release: {target}",
            kind="rollback_target",
            requested_time=target.requested_time,
        )
    nonce = context.world.ids.nonce()
    ended: list[RolledBack] = []

    def decide(turn: Turn) -> Slot | None:
        ending = _ending_of(context, turn, target)
        if ending is not None:
            ended.append(ending)
            return None
        left = pending_rollback_of(context, turn.timeline, target.requested_time)
        if left is not None and not seems_left(context, left):
            if context.limits.foreign_writers is ForeignWriters.EXPECTED:
                # Java is at it without the lock, and fails when files it deletes are gone.
                why = "another engine is rolling it back"
                ended.append(RolledBack(target=target.requested_time, slot=None, why=why))
                return None
            left = None
        refuse_behind_metadata_table(
            turn.config(), without_metadata_table=context.limits.without_metadata_table
        )
        info = InstantInfo(requested_time=target.requested_time, action=target.action.value)
        return _abort_slot(context, turn, info, nonce, left=left)

    slot, _ = take_turn(context, f"roll back {target.requested_time}", decide)
    if slot is None:
        return ended[-1]
    plan = decode_rollback_plan(slot.plan, path=f"slot {slot.number}")
    uncover(context, {one.partition_path for one in plan.rollback_requests})
    context.world.events.emit("rollback.done", target=target.requested_time)
    return RolledBack(target=target.requested_time, slot=slot, why="rolled back")


_UNDOABLE = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


def _ending_of(context: TableContext, turn: Turn, target: Instant) -> RolledBack | None:
    """Whether the target ended meanwhile: helped when published, cleaned again when aborted."""
    time = target.requested_time
    for number in range(turn.head, 0, -1):
        slot = context.chain.read(number)
        if slot is not None and context.chain.is_of_another(slot):
            continue  # SLOT-8: of another table's times
        if slot is None or slot.completion_time < time:
            break  # every slot of the target was taken after its begin: times ascend
        if time in withdrawn_by(slot):
            break  # its commit slot, if it has one, is below and counts no more (RST-1)
        if slot.requested_time != time:
            continue
        if slot.kind is SlotKind.VOID:
            break  # its commit slot right below never happened (FOR-4)
        if slot.kind is SlotKind.COMMIT:  # the turn's look settled it, if nobody took it away since
            return RolledBack(target=time, slot=None, why="it was published")
        if slot.kind is SlotKind.ABORT:
            settle(context, slot)  # RB-5: repeat the deletes
            return RolledBack(target=time, slot=slot, why="another process rolled it back")
    now = turn.timeline.find(time, target.action, target.action.completes_as)
    if now is None or now.completed:
        return RolledBack(target=time, slot=None, why="it is no longer pending")
    if time in context.history.times().completions:
        # RB-7: a request for a pending file landed after the archive; the data is a commit's.
        for name in pending_file_names(target.action, time):
            context.world.storage.delete(context.instant_path(name))
        return RolledBack(target=time, slot=None, why="it was published and is archived")
    return None


def _abort_slot(
    context: TableContext,
    turn: Turn,
    target: InstantInfo,
    nonce: str,
    *,
    left: Instant | None,
) -> Slot:
    """The slot that ends a target, under the name of the rollback that another engine left."""
    storage = context.world.storage
    files = data_files_of(storage, target.requested_time)
    if left is None:
        above = target.requested_time
        own_time = turn.draw(context, Residue.SLOT_REQUESTED, above=above)
        plan = encode_rollback_plan(plan_document(storage, target, files))
    else:
        own_time, plan = left.requested_time, plan_bytes(context, left)
    return turn.slot(
        context,
        SlotKind.ABORT,
        Action(target.action),
        target.requested_time,
        nonce=nonce,
        own_requested_time=own_time,
        body=encode_rollback(result_document(storage, target, files, own_time=own_time)),
        plan=plan,
    )


def rollback_dead_writers(
    context: TableContext, timeline: ActiveTimeline | None = None
) -> list[RolledBack]:
    """
    Roll back every pending write whose heartbeat is missing or too old, newest first.

    The timeline is read before the heartbeats: a writer that published in between has no
    heartbeat any more, and the abort's own look then finds it completed (hole 8, M11).
    What another engine had undone but for the last steps is brought to its end.
    """
    timeline = timeline or context.active()
    pending = timeline.pending_ingestion
    times = tuple(instant.requested_time for instant in pending)
    dead = set(instants_that_seem_dead(context.world.storage, times, context.limits.heartbeat))
    done = [
        rollback(context, instant)
        for instant in reversed(pending)
        if instant.requested_time in dead
    ]
    left = [one for one in timeline.pending if one.action is Action.ROLLBACK]
    done.extend(filter(None, (finish_left(context, timeline, one) for one in left)))
    return done


def finish_left(
    context: TableContext, timeline: ActiveTimeline, left: Instant
) -> RolledBack | None:
    """
    End a rollback of another engine that has no pending target any more, else nothing.

    Where its target is off the timeline its last steps are done; where the target completed
    meanwhile it is taken away. Outside: 1 stat, 1 list; where it was left 2 gets, and 1 turn, the
    listing of the target, the deletes, 2 creates.
    """
    if not seems_left(context, left):
        return None
    if not was_overtaken(context, timeline, left) and not vanished_target(context, timeline, left):
        return None
    nonce = context.world.ids.nonce()
    ended: RolledBack | None = None

    def decide(turn: Turn) -> Slot | None:
        nonlocal ended
        now = turn.timeline.find(left.requested_time, Action.ROLLBACK)
        if now is None or now.completed:
            return None
        if was_overtaken(context, turn.timeline, now):
            names = pending_file_names(Action.ROLLBACK, now.requested_time)
            slot = turn.slot(
                context,
                SlotKind.NOOP,
                Action.ROLLBACK,
                now.requested_time,
                nonce=nonce,
                deletes=tuple(timeline_path(name) for name in names),
            )
            why = "what another engine was to roll back has completed since"
            ended = RolledBack(target=now.requested_time, slot=slot, why=why)
            return slot
        target = vanished_target(context, turn.timeline, now)
        if target is None:
            return None
        info = InstantInfo(requested_time=target, action=Action.COMMIT.value)
        slot = _abort_slot(context, turn, info, nonce, left=now)
        ended = RolledBack(target=target, slot=slot, why="another engine had begun to roll it back")
        return slot

    slot, _ = take_turn(context, f"finish rollback {left.requested_time}", decide)
    if slot is None or ended is None:
        return None
    context.world.events.emit("rollback.finished", rt=left.requested_time, why=ended.why)
    return ended


def abandon(context: TableContext, begun: Begun) -> None:
    """
    Remove an own write that failed before any slot create was left unknown (RB-9).

    Data files first, the requested file last: a crash in between leaves a pending instant,
    and whoever draws the same time once it is gone meets no further delete of ours.
    Outside: the target's listing and deletes.

    Raises:
        OutcomeUnknownError: A commit slot of the instant was sent and not seen lost, so it
            may stand: nothing was touched (UNK-3).
    """
    storage = context.world.storage
    if context.chain.may_hold(begun.requested_time):
        begun.heartbeat.stop()
        raise OutcomeUnknownError(
            "an error struck behind the publication; run 'hoodoo explain' on instant "
            f"{begun.requested_time} before you repeat the write",
            requested_time=begun.requested_time,
        )
    try:
        if context.chain.has_shown:
            with suppress(TableReplacedError):  # told by the error that ends the write
                context.chain.assert_same_table()  # or takes away what it helped on (SLOT-10)
        files = data_files_of(storage, begun.requested_time)
        for path in files:
            storage.delete(path)
        delete_markers(storage, begun.requested_time)
    except StorageUnavailableError:
        begun.heartbeat.stop(remove=False)  # others must see that nobody works on it any more
        raise
    begun.heartbeat.stop()
    for name in pending_file_names(begun.action, begun.requested_time):
        storage.delete(timeline_path(name))
    uncover(context, {path.rpartition("/")[0] for path in files})
    context.world.events.emit("write.abandoned", rt=begun.requested_time)

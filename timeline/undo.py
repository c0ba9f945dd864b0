"""
Undoing a failed write: an abort slot first, the deletes after it (RB-1 to RB-9).

The abort slot ends the target in the total order: from then on it can never commit, so
deleting its files is safe even while a paused owner still lives. A commit slot of the
target means the opposite: it is published, and it is helped instead of undone (RB-3).
"""

from __future__ import annotations

from dataclasses import dataclass

from timeline.active import ActiveTimeline
from timeline.begin import Begun
from timeline.codecs.instant_avro import encode_rollback, encode_rollback_plan
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    OutcomeUnknownError,
    StorageUnavailableError,
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
from timeline.rivals import rollback_target
from timeline.rollback_documents import plan_document, result_document
from timeline.rules.succession import Residue
from timeline.setting_names import ForeignWriters
from timeline.settle import data_files_of, settle
from timeline.turn import Turn, take_turn

__all__ = ["RolledBack", "abandon", "rollback", "rollback_dead_writers"]


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
        own_time = turn.draw(context, Residue.SLOT_REQUESTED, above=target.requested_time)
        return _abort_slot(context, turn, target, own_time, nonce)

    slot, _ = take_turn(context, f"roll back {target.requested_time}", decide)
    if slot is None:
        return ended[-1]
    context.world.events.emit("rollback.done", target=target.requested_time)
    return RolledBack(target=target.requested_time, slot=slot, why="rolled back")


_UNDOABLE = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


def _ending_of(context: TableContext, turn: Turn, target: Instant) -> RolledBack | None:
    """Whether the target ended meanwhile: helped when published, cleaned again when aborted."""
    time = target.requested_time
    for number in range(turn.head, 0, -1):
        slot = context.chain.read(number)
        if slot is None or slot.completion_time < time:
            break  # every slot of the target was taken after its begin: times ascend
        if slot.requested_time != time:
            continue
        if slot.kind is SlotKind.COMMIT:
            settle(context, slot)
            return RolledBack(target=time, slot=None, why="it was published")
        if slot.kind is SlotKind.ABORT:
            settle(context, slot)  # RB-5: repeat the deletes
            return RolledBack(target=time, slot=slot, why="another process rolled it back")
    now = turn.timeline.find(time, target.action, target.action.completes_as)
    if now is None or now.completed:
        return RolledBack(target=time, slot=None, why="it is no longer pending")
    if _undone_elsewhere(context, turn.timeline, time):
        return RolledBack(target=time, slot=None, why="another engine is rolling it back")
    return None


def _undone_elsewhere(context: TableContext, timeline: ActiveTimeline, time: InstantTime) -> bool:
    """
    Whether another engine planned this rollback a moment ago and is at it, without the lock.

    Java fails when files it wants to delete are gone. What is pending within a turn is no
    rollback of ours, and an old one was left behind by its owner.
    """
    if context.limits.foreign_writers is not ForeignWriters.EXPECTED:
        return False
    storage = context.world.storage
    for instant in timeline.pending:
        if instant.action is not Action.ROLLBACK:
            continue
        try:
            if rollback_target(context, instant) != time:
                continue
        except CorruptTableError:
            continue  # its owner's matter; it names nothing that we could spare
        path = timeline_path(pending_file_names(Action.ROLLBACK, instant.requested_time)[-1])
        stat = storage.stat(path)
        if stat is None:
            continue
        if storage.now_ms() - stat.modified_ms <= context.limits.heartbeat.tolerated_ms:
            return True
    return False


def _abort_slot(
    context: TableContext, turn: Turn, target: Instant, own_time: InstantTime, nonce: str
) -> Slot:
    info = InstantInfo(requested_time=target.requested_time, action=target.action.value)
    storage = context.world.storage
    files = data_files_of(storage, target.requested_time)
    return turn.slot(
        context,
        SlotKind.ABORT,
        target.action,
        target.requested_time,
        nonce=nonce,
        own_requested_time=own_time,
        body=encode_rollback(result_document(storage, info, files, own_time=own_time)),
        plan=encode_rollback_plan(plan_document(storage, info, files)),
    )


def rollback_dead_writers(
    context: TableContext, timeline: ActiveTimeline | None = None
) -> list[RolledBack]:
    """
    Roll back every pending write whose heartbeat is missing or too old, newest first.

    The timeline is read before the heartbeats: a writer that published in between has no
    heartbeat any more, and the abort's own look then finds it completed (hole 8, M11).
    """
    pending = (timeline or context.active()).pending_ingestion
    times = tuple(instant.requested_time for instant in pending)
    dead = set(instants_that_seem_dead(context.world.storage, times, context.limits.heartbeat))
    return [
        rollback(context, instant)
        for instant in reversed(pending)
        if instant.requested_time in dead
    ]


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
        for path in data_files_of(storage, begun.requested_time):
            storage.delete(path)
        delete_markers(storage, begun.requested_time)
    except StorageUnavailableError:
        begun.heartbeat.stop(remove=False)  # others must see that nobody works on it any more
        raise
    begun.heartbeat.stop()
    for name in pending_file_names(begun.action, begun.requested_time):
        storage.delete(timeline_path(name))
    context.world.events.emit("write.abandoned", rt=begun.requested_time)

"""
Validate again before a file appears: in mode ``shared`` no slot alone decides (FOR-4, FOR-9).

Java Hudi only takes the lock and never reads a slot. If our writer loses the lock between its slot
and its completed file, Java may validate and commit without seeing the slot. The file would then
appear with a completion time below Java's (hole 24). So the slot contains a digest of the timeline
that its owner validated against, and the process that creates the file validates again. If a
foreign instant appeared since, the slot becomes void.

Only its owner applies a plan, a savepoint or a clean. All three are cheap to make again. A helper
cannot distinguish one that never became visible from one that another engine has removed. A clean
that never became visible has deleted nothing, and its files may be needed by now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b

from timeline.codecs.metadata_instants import files_made_in_metadata_table
from timeline.commit.apply import revert_if_restored, try_apply
from timeline.commit.commit_lock import CommitSection, has_lease
from timeline.context import TableContext
from timeline.errors import OutcomeUnknownError, StorageUnavailableError
from timeline.model.file_names import pending_file_names, timeline_path
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Lease
from timeline.snapshot import ActiveTimeline

#: Kinds that decide together with their file, and the kind of the slot that ends each of them.
ENDED_BY: Mapping[SlotKind, SlotKind] = {
    SlotKind.COMMIT: SlotKind.VOID,
    SlotKind.PLAN: SlotKind.CANCEL,
    SlotKind.SAVEPOINT: SlotKind.UNSAVEPOINT,
    SlotKind.CLEAN: SlotKind.VOID,
}

_DIGEST_BYTES = 16
#: Cleans and savepoints neither write rows nor refer to a write of ours.
_MATTERING = WRITE_ACTIONS | {Action.ROLLBACK, Action.RESTORE}
#: But a clean deletes files, and a savepoint lists files that must stay.
_MATTERING_TOO: Mapping[SlotKind, frozenset[Action]] = {
    SlotKind.SAVEPOINT: frozenset({Action.CLEAN}),
    SlotKind.CLEAN: frozenset({Action.CLEAN, Action.SAVEPOINT}),
}


def timeline_digest(timeline: ActiveTimeline, slot: Slot) -> str:
    """
    Return a digest of everything that is decided on a timeline except the slot's own instant.

    It covers completed writes, plans and rollbacks; pending writes have decided nothing yet. For a
    savepoint it also covers cleans. For a clean it covers cleans and savepoints, because a clean
    may delete files that a savepoint lists.
    """
    started = set(timeline.pending_ingestion)
    names = (
        f"{one.requested_time} {one.completion_time}"
        for one in _others(timeline, slot)
        if one not in started
    )
    return blake2b("\n".join(names).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def is_still_valid(slot: Slot, timeline: ActiveTimeline) -> bool:
    """
    Return whether no foreign instant appeared since the owner refreshed: the file may appear.

    A write that began above the slot's completion time counts as well. It may have read the table
    without the file, and its engine validates only against what completed later.
    """
    if any(one.newest_time > slot.completion_time for one in _others(timeline, slot)):
        return False
    mine = timeline.find(slot.requested_time, slot.action, slot.action.completes_as)
    if mine is not None and mine.completed and mine.completion_time != slot.completion_time:
        return False  # another engine executed the same plan
    return timeline_digest(timeline, slot) == slot.timeline_digest


def is_ended_by(slot: Slot, later: Slot) -> bool:
    """Return whether a later slot ends this one, which decides together with its file."""
    return later.kind is ENDED_BY[slot.kind] and later.requested_time == slot.requested_time


def without_void(newest_first: Iterable[Slot]) -> Iterator[Slot]:
    """Return the slots of a commit log, newest first, without the commits that are void."""
    void = ""
    for slot in newest_first:
        if slot.kind is SlotKind.VOID:
            void = slot.requested_time
        elif slot.kind is SlotKind.COMMIT and slot.requested_time == void:
            void = ""  # slots of another table may be between the two (SLOT-8)
            continue
        yield slot


def _others(timeline: ActiveTimeline, slot: Slot) -> Iterator[Instant]:
    mattering = _MATTERING | _MATTERING_TOO.get(slot.kind, frozenset())
    for one in timeline.instants:
        if one.action in mattering and one.requested_time != slot.requested_time:
            yield one


def may_apply(context: TableContext, slot: Slot, lease: Lease | None) -> bool:
    """
    Validate again, then check the lock (FOR-3, FOR-4) and the time left for a request (FOR-8).

    Outside: 1 list, 1 read of the lock.
    """
    held = is_still_valid(slot, context.active()) and has_lease(lease)
    return held and (lease is None or lease.has_time_for_request())


# ---- Decide an earlier slot whose file is missing: apply it, or end it (FOR-4, FOR-9)


def was_rolled_back(context: TableContext, last: Slot, timeline: ActiveTimeline) -> bool:
    """
    Return whether another engine rolled back a commit slot that has no completed file yet.

    The other engine may take a sleeping writer for dead; its rollback leaves no file of the
    instant. An archived instant also has no file, but was completed (FOR-6). Outside: the archived
    timeline if no file is left.
    """
    if not last.timeline_digest or last.kind is not SlotKind.COMMIT:
        return False
    names = {last.file_name, *pending_file_names(last.action, last.requested_time)}
    return timeline.file_names.isdisjoint(names) and not _is_archived(context, last)


def decide_earlier_slot(
    context: TableContext, section: CommitSection, last: Slot, *, was_rolled_back: bool
) -> bool:
    """
    Apply or end a slot of mode ``shared`` whose file is missing.

    A commit is applied if no foreign instant appeared since its owner's refresh; otherwise it
    becomes void (FOR-4). A plan or savepoint is ended, and so is a clean that deleted nothing
    (FOR-9). Outside: as ``apply``, or 1 create.

    Args:
        context: The table.
        section: The commit section.
        last: The slot.
        was_rolled_back: As ``was_rolled_back``.

    Returns:
        Whether the caller must refresh; False if the slot needs nothing.

    Raises:
        LeaseLostError: The lock was lost before that could be decided.
        StorageUnavailableError: The storage failed.
    """
    if last.kind in (SlotKind.PLAN, SlotKind.CLEAN) and _is_archived(context, last):
        return False  # by a savepoint: the first write of the timeline is older
    may = None
    if not (was_rolled_back or _lacks_metadata_logs(context, last)):
        may = _apply_condition(context, last, section.timeline, section.lease)
    if may is None:
        _end(context, section, last)
        return True
    try_apply(context, last, may_show=may)
    # It may be void by now, and a later refresh applies only the newest slot.
    revert_if_restored(context, last, None)
    return True


def _apply_condition(
    context: TableContext, last: Slot, timeline: ActiveTimeline, lease: Lease | None
) -> Callable[[], bool] | None:
    """
    Return the condition for helping a slot in mode ``shared``; None if helping is not allowed.

    A clean deletes after its inflight file exists; from then on the only way is to complete it.
    With its requested file alone it is treated like a commit; before that only its owner may apply
    it (FOR-4, FOR-9).
    """
    inflight, *requested = pending_file_names(last.own_action, last.instant_time)
    cleans = last.kind is SlotKind.CLEAN
    if cleans and inflight in timeline.file_names:
        return lambda: True
    helps = (
        not timeline.file_names.isdisjoint(requested) if cleans else last.kind is SlotKind.COMMIT
    )
    if helps and is_still_valid(last, timeline):
        return partial(may_apply, context, last, lease)
    return None


def _lacks_metadata_logs(context: TableContext, slot: Slot) -> bool:
    """
    Return whether another engine deleted the slot's log files of the metadata table (MDT-10).

    Java Hudi rolls back each pending instant of the metadata table. Log files whose bytes are in
    the slot do not exist before apply creates them. Outside: 1 stat for each other file.
    """
    storage, update = context.ports.storage, slot.metadata_update
    return update is not None and any(
        storage.stat(one.path) is None for one in update.files if not one.content
    )


def _is_archived(context: TableContext, last: Slot) -> bool:
    return last.requested_time in context.archived_timeline.times().completions


def _end(context: TableContext, section: CommitSection, target: Slot) -> None:
    """
    Take the slot that ends the one before it: a void, cancel or unsavepoint.

    A process that lost the lock may still create the target's file, so the new slot deletes it. For
    a savepoint and a clean it also deletes the pending files. The owner of the savepoint, or another
    engine that deleted it, may have died before it deleted the inflight file. The clean's requested
    file may exist or still appear.
    """
    names = [target.file_name] if target.file_name else []
    if target.kind in (SlotKind.SAVEPOINT, SlotKind.CLEAN):
        names += pending_file_names(target.action, target.requested_time)
    end = section.next_slot(
        context,
        ENDED_BY[target.kind],
        target.action,
        target.requested_time,
        nonce=context.ports.ids.nonce(),
        deletes=()
        if target.kind is SlotKind.PLAN
        else (*files_made_in_metadata_table(target), *map(timeline_path, names)),
    )
    try:
        taken = context.commit_log.take(section.with_hash_link(context, end))
    except OutcomeUnknownError as error:  # not the outcome of the caller's write
        raise StorageUnavailableError(
            "the storage failed while this process ended an earlier commit. Nothing of this "
            f"write was committed; write again: slot {target.number}",
            slot_number=target.number,
        ) from error
    if taken:
        context.ports.events.emit(
            f"publish.{end.kind.value}", number=target.number, rt=target.requested_time
        )

"""
Settling a slot: doing what it decided, by its owner or by any helper (HELP-1, SLOT-5).

Every step is idempotent and its result a function of the slot alone, so a crash between
the slot and its file loses nothing: whoever comes next finishes the same bytes under the
same name. For upkeep (abort, clean, restore) settling repeats the deletes, then the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from timeline.active_timeline import ActiveTimeline
from timeline.archived import NOTHING_ARCHIVED, ArchivedTimeline
from timeline.codecs.truncation_point import decode_truncation_point
from timeline.commit.markers import marker_files
from timeline.context import TableContext
from timeline.errors import OutcomeUnknownError, StorageUnavailableError
from timeline.layout import TIMELINE, heartbeat_path, timeline_path, truncation_point_path
from timeline.model.file_names import data_file_time, instant_file_name, join, pending_file_names
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.partitions import list_partition_paths
from timeline.ports.lock import Lease
from timeline.ports.storage import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Storage,
    staged,
)
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.reader_lease import defer_leased_deletes
from timeline.restored_away import (
    files_removed_by_restore,
    restored_away_by,
    slots_with_removed_file,
)
from timeline.truncation import is_archived_since, is_truncated_since

__all__ = [
    "APPLIED_BY_A_FILE",
    "apply",
    "data_files_of",
    "has_instant_file",
    "is_applied",
    "may_overlap",
    "newest_slots",
    "not_applied",
    "revert_if_restored",
    "revert_truncation",
    "staged_completed_file",
    "try_apply",
]


#: Upkeep whose pending files are written by the slot as well: nobody saw them before.
_BORN_IN_SLOT = frozenset({SlotKind.ABORT, SlotKind.CLEAN, SlotKind.SAVEPOINT, SlotKind.RESTORE})

#: One file is all that shows them, and they delete nothing.
APPLIED_BY_A_FILE = frozenset({SlotKind.COMMIT, SlotKind.PLAN})

#: What a restore, a cancel, a void or the end of a savepoint takes away again.
_TAKEN_BACK = frozenset(
    {SlotKind.COMMIT, SlotKind.PLAN, SlotKind.SAVEPOINT, SlotKind.ABORT, SlotKind.CLEAN}
)

#: Upkeep that another engine may finish from its pending files.
_ENDED_BY_ANYBODY = frozenset(
    {SlotKind.ABORT, SlotKind.CLEAN, SlotKind.RESTORE, SlotKind.SAVEPOINT}
)


def staged_completed_file(storage: Storage, slot: Slot) -> AbstractContextManager[None]:
    """
    Within the block the bytes of the slot's completed file wait for the disk beside the slot's.

    They have no name yet: what shows the instant is still created after its slot (LOC-2).
    """
    name = slot.file_name
    return nullcontext() if name is None else staged(storage, timeline_path(name), slot.body)


def is_applied(
    slot: Slot, timeline: ActiveTimeline, history: ArchivedTimeline | None = None
) -> bool:
    """
    Whether the slot's file exists, or was archived since (Java archives ours too).

    A cancel, a void and the end of a savepoint have none: their target's files must be gone.

    Archived means: it counts as archived for every reader (``ActiveTimeline.is_archived``),
    and is without pending files: a rollback or clean whose owner died between its deletes and
    its completed file may also lie below the first write that is left. A commit without any
    file is over, too: its requested file stays until it is archived, so another engine's
    restore took it away, and its data with it. So is a plan without a file once there was one.

    Upkeep whose owner died is finished by whoever finds it. Java Hudi carries the same plan out
    and completes it under a time of its own: one end is enough. So is one savepoint of a write.

    Outside: the history's times where savepoints keep every write of the timeline, else nothing.
    """
    name = slot.file_name
    if name is None:
        if slot.kind is SlotKind.CANCEL:
            pending = pending_file_names(slot.action, slot.requested_time)
            return timeline.file_names.isdisjoint(pending)
        if slot.kind is SlotKind.UNSAVEPOINT:
            shown = timeline.find(slot.requested_time, Action.SAVEPOINT)
            return shown is None or _is_another(shown, slot)
        if slot.kind is SlotKind.VOID:
            names = (path.rpartition("/")[2] for path in slot.deletes)
            return timeline.file_names.isdisjoint(names)
        return True
    if name in timeline.file_names:
        return True
    if slot.kind in _ENDED_BY_ANYBODY:
        shown = timeline.find(slot.instant_time, slot.own_action)
        if shown is not None and shown.completed:
            return True
    pending = pending_file_names(slot.own_action, slot.instant_time)
    if not timeline.file_names.isdisjoint(pending):
        return False
    if slot.kind is SlotKind.COMMIT or _was_restored_away(slot, timeline):
        return True
    return timeline.is_archived(
        slot.instant_time, lambda: NOTHING_ARCHIVED if history is None else history.times()
    )


def _is_another(shown: Instant, ended: Slot) -> bool:
    """Whether a savepoint is not the one that was ended: another engine made it since."""
    return shown.completed and timeline_path(instant_file_name(shown)) not in ended.deletes


def _was_restored_away(slot: Slot, timeline: ActiveTimeline) -> bool:
    """Whether a plan without a file went with another engine's restore: its files are gone (RST-3)."""
    return slot.kind is SlotKind.PLAN and any(
        one.action is Action.RESTORE and (one.completion_time or "") > slot.completion_time
        for one in timeline.instants
    )


def has_instant_file(slot: Slot, timeline: ActiveTimeline) -> bool:
    """Whether a timeline has any file of the slot's instant: one listed before it began has none."""
    pending = pending_file_names(slot.own_action, slot.instant_time)
    return not timeline.file_names.isdisjoint({slot.file_name, *pending})


def may_overlap(slot: Slot) -> bool:
    """
    Whether a slot may be taken, or its number be followed by the next one, before all is settled.

    One file is all that shows such a commit, it deletes nothing, and nobody can call it void.
    """
    return slot.kind is SlotKind.COMMIT and not slot.foreign


def newest_slots(context: TableContext, head: int) -> tuple[Slot, ...]:
    """
    The slots up to ``head`` that need not be settled yet, in their order (PUB-3).

    The last one, and where that is a commit the commit before it as well; all others were
    settled before the last number was taken. Outside: those of the two that were never read.
    """
    last = context.chain.deciding(head)
    if last is None:
        return ()
    before = context.chain.deciding(last.number - 1) if may_overlap(last) else None
    return (last,) if before is None or not may_overlap(before) else (before, last)


def not_applied(context: TableContext, head: int, timeline: ActiveTimeline) -> tuple[Slot, ...]:
    """Those of ``newest_slots`` that are not settled yet, as far as a timeline tells."""
    return tuple(
        slot
        for slot in newest_slots(context, head)
        if not is_applied(slot, timeline, context.history)
    )


def _always() -> bool:
    return True


def apply(context: TableContext, slot: Slot, *, may_show: Callable[[], bool] = _always) -> bool:
    """
    Do what the slot decided; doing it again changes nothing.

    Outside: 1 create for a commit or plan; the deletes, 2 creates and 1 create for upkeep.

    Args:
        context: The table.
        slot: What was decided.
        may_show: Asked before every request for a file that shows it (FOR-4), of a clean before
            its deletes instead of behind them: from then on nobody ends it (FOR-9).

    Returns:
        Whether it is done; False when such a file may not be written any more.

    Raises:
        OutcomeUnknownError: The slot stands, so the decision is final, but the completed file
            could not be written within the deadline; any later writer finishes it.
    """
    overruns = context.pin.overruns
    if slot.kind in _BORN_IN_SLOT and not _write_pending(context, slot, may_show):
        return False
    if slot.kind in (SlotKind.ABORT, SlotKind.CANCEL):
        if not _end_target(context, slot):
            return True
    elif slot.kind is SlotKind.RESTORE:
        _delete_restored_files(context, slot)
    elif slot.kind is SlotKind.CUT:
        _write_truncation_point(context, slot)
    cleans = slot.kind is SlotKind.CLEAN
    for path in defer_leased_deletes(context, slot) if cleans and slot.deletes else slot.deletes:
        context.world.storage.delete(path)
    name = slot.file_name
    if name is None:
        return True
    if is_archived_since(context, slot, overruns):
        _delete_archived_files(context, slot)
        return True
    if slot.kind in APPLIED_BY_A_FILE and is_truncated_since(context, slot, overruns):
        return True
    context.chain.will_show(slot)
    if not _create_until_known(
        context, timeline_path(name), slot.body, slot, _always if cleans else may_show
    ):
        return False
    if is_archived_since(context, slot, overruns):
        _delete_archived_files(context, slot, name)
    return True


def _delete_archived_files(context: TableContext, slot: Slot, *names: str) -> None:
    """Files that came behind the archive, which has the instant (GC-6)."""
    born = slot.kind in _BORN_IN_SLOT
    pending = pending_file_names(slot.own_action, slot.instant_time) if born else ()
    for name in (*pending, *names):
        context.world.storage.delete(timeline_path(name))


def revert_if_restored(context: TableContext, slot: Slot, lease: Lease | None) -> None:
    """
    Take the file of a slot away again that a later slot had ended before the file was there.

    Whoever slept between a slot and its file, and lost the lock or has none, may come behind a
    restore, a cancel, a void or the end of a savepoint that others settled (RST-4). So may the file of the
    commit before, which was made beside the slot (PUB-3). While nobody else can have had a lock
    that all take, since before the look that found the slot, nobody can have taken a later one.
    Outside: nothing then, else 1 get per later slot and 1 delete for each of the files.
    """
    if slot.kind not in _TAKEN_BACK or slot.file_name is None:
        return
    all_wait = context.limits.publish_lock is CommitLockMode.LOCK
    if all_wait and lease is not None and not lease.is_shared and lease.remaining_ms() != 0:
        return
    later, number = [], slot.number + 1
    while (found := context.chain.read(number)) is not None:
        later.append(found)
        number += 1
    known = context.chain.newest_known(slot.number - 1)
    before = [one for one in known if not context.chain.is_of_another(one)][:1]
    shown = [*filter(may_overlap, before), slot] if may_overlap(slot) else [slot]
    gone = slots_with_removed_file([*shown, *later])
    for one in shown:
        if one.number not in gone or one.file_name is None:
            continue
        context.world.events.emit("publish.taken_back", number=one.number)
        context.world.storage.delete(timeline_path(one.file_name))
        if one.kind in _BORN_IN_SLOT:  # its owner made them all
            for name in pending_file_names(one.own_action, one.instant_time):
                context.world.storage.delete(timeline_path(name))


def _write_truncation_point(context: TableContext, slot: Slot) -> None:
    """GC-2: before anything is deleted; a cut may leave the boundary where it was."""
    number = decode_truncation_point(slot.body, path=f"slot {slot.number}").number
    if number:
        _create_until_known(context, truncation_point_path(number), slot.body, slot)


def revert_truncation(context: TableContext, slot: Slot) -> None:
    """SLOT-10: take the boundary of a cut away that came into another table, if it is this one's."""
    number = decode_truncation_point(slot.body, path=f"slot {slot.number}").number
    path = truncation_point_path(number)
    with suppress(ObjectMissingError):
        if number and context.world.storage.read(path) == slot.body:
            context.world.storage.delete(path)


def try_apply(context: TableContext, slot: Slot, *, may_show: Callable[[], bool] = _always) -> None:
    """
    Settle another's slot; that it cannot be done says nothing about the own write.

    Raises:
        StorageUnavailableError: The storage did not let it be finished.
    """
    try:
        apply(context, slot, may_show=may_show)
    except OutcomeUnknownError as error:
        raise StorageUnavailableError(
            "the storage did not let this process finish an earlier publication; write again: "
            f"slot {slot.number}",
            slot_number=slot.number,
        ) from error


#: What a rollback may have to undo: a requested time does not tell which of them it is.
_BEGUN = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)


def _write_pending(context: TableContext, slot: Slot, may_show: Callable[[], bool]) -> bool:
    """
    The requested file, which a savepoint has not, then the inflight one; whether they are there.

    A clean deletes behind them, so it asks once more.
    """
    inflight, *requested = pending_file_names(slot.own_action, slot.instant_time)
    files = [*((name, slot.plan) for name in requested), (inflight, b"")]
    return all(
        _create_until_known(context, timeline_path(name), data, slot, may_show)
        for name, data in files
    ) and (slot.kind is not SlotKind.CLEAN or may_show())


def _create_until_known(
    context: TableContext,
    path: str,
    data: bytes,
    slot: Slot,
    may_create: Callable[[], bool] = _always,
) -> bool:
    """
    Create until it exists: content is fixed by the slot, so another's success is ours (UNK-5).

    Returns whether it does, unless it may not any more.
    """
    clock = context.world.clock
    started = clock.monotonic_ms()
    pause = 10
    while True:
        try:
            if not may_create():
                return False
            context.world.storage.create(path, data)
        except ObjectExistsError:
            return True
        except (AmbiguousWriteError, StorageUnavailableError) as error:
            if clock.monotonic_ms() - started > context.limits.unknown_ms_max:
                raise OutcomeUnknownError(
                    "published, but the file that shows it could not be written; any later "
                    f"writer or service finishes it, do not repeat the write: {path}",
                    kind="published_not_visible",
                    requested_time=slot.instant_time,
                    slot_number=slot.number,
                    path=path,
                ) from error
            clock.sleep_ms(pause)
            pause = min(pause * 2, 1_000)
        else:
            return True


def _end_target(context: TableContext, slot: Slot) -> bool:
    """
    Undo what an abort or a cancel ends; False where another engine completed it, which stands.

    Outside: as ``_has_completed`` and ``_undo_target``.
    """
    aborts = slot.kind is SlotKind.ABORT
    actions = _BEGUN if aborts else (slot.action,)
    if not _has_completed(context, slot.requested_time, actions):
        _undo_target(context, slot.requested_time, actions)
        return True
    if aborts:  # the rollback comes to nothing
        for name in pending_file_names(slot.own_action, slot.instant_time):
            context.world.storage.delete(timeline_path(name))
    return False


def _has_completed(context: TableContext, target: InstantTime, actions: Sequence[Action]) -> bool:
    """
    Whether another engine completed what is to be undone: it knows no slots (RB-12).

    It completes only what is inflight, so that goes first. Outside: 1 delete per action, 1 list.
    """
    if context.limits.foreign_writers is not ForeignWriters.EXPECTED:
        return False
    for action in actions:
        context.world.storage.delete(timeline_path(pending_file_names(action, target)[0]))
    now = context.active().find(target, *actions, *(action.completes_as for action in actions))
    return now is not None and now.completed


def _undo_target(context: TableContext, target: InstantTime, actions: Iterable[Action]) -> None:
    """
    Delete what an aborted or cancelled instant wrote, then its pending files and heartbeat (RB-6).

    The markers stay: a paused owner may stand between a marker and its file, and once it
    wakes the markers are all that tells of it (RB-10). The clean sweeps both when they are old.
    """
    storage = context.world.storage
    for path in data_files_of(storage, target):
        storage.delete(path)
    for action in actions:
        for name in pending_file_names(action, target):
            storage.delete(timeline_path(name))
    storage.delete(heartbeat_path(target))


def _delete_restored_files(context: TableContext, slot: Slot) -> None:
    """
    Take published and begun instants away: unseen first, then without data, then unknown.

    What a paused owner writes afterwards is found by its markers, which stay (RB-10).
    """
    storage = context.world.storage
    shown, known = files_removed_by_restore(storage, slot, TIMELINE)
    times = restored_away_by(slot)
    for name in shown:
        storage.delete(timeline_path(name))
    for path in data_files_of(storage, *times):
        storage.delete(path)
    for name in known:
        storage.delete(timeline_path(name))
    for time in sorted(times):
        storage.delete(heartbeat_path(time))


def data_files_of(storage: Storage, *requested_times: InstantTime) -> list[str]:
    """
    Paths of every data file these instants announced or left: markers united with a listing.

    Only names that follow the grammar and carry one of these very times are returned, so
    that a hostile or damaged marker can never name another instant's file (RB-6, SEC2).
    Outside: the marker folders' lists, 1 list per partition.
    """
    found = {
        join(partition_path, file_name)
        for requested_time in sorted(requested_times)
        for partition_path, file_name, _ in marker_files(storage, requested_time)
        if data_file_time(file_name) == requested_time
    }
    times = frozenset(requested_times)
    for partition_path in list_partition_paths(storage) if times else ():
        found.update(
            join(partition_path, entry.name)
            for entry in storage.list(partition_path)
            if not entry.is_folder and data_file_time(entry.name) in times
        )
    return sorted(found)

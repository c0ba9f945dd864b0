"""
Apply a slot: carry out its decision, as its owner or as a helper (HELP-1, SLOT-5).

Every step is idempotent and depends on the slot alone. A crash between the slot and its file loses
nothing: the next writer creates the same bytes under the same name. For an abort, clean or restore,
apply repeats the deletes, then creates the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from timeline.archived import NOTHING_ARCHIVED, ArchivedTimeline
from timeline.codecs.commit_log import decode_truncation_point
from timeline.codecs.metadata_instants import files_made_in_metadata_table, metadata_instant_files
from timeline.commit.markers import marker_files
from timeline.commit_log import files_removed_by_restore, restored_away_by, slots_with_removed_file
from timeline.context import TableContext
from timeline.errors import OutcomeUnknownError, StorageUnavailableError
from timeline.model.file_names import (
    HOODIE,
    METADATA_TABLE,
    TIMELINE,
    data_file_time,
    heartbeat_path,
    instant_file_name,
    join,
    parse_instant_name,
    pending_file_names,
    timeline_path,
    truncation_point_path,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import METADATA_TIMELINE, parse_metadata_file_name
from timeline.model.slot import Slot, SlotKind
from timeline.partitions import list_partition_paths
from timeline.ports.ports import (
    AmbiguousWriteError,
    Lease,
    ObjectExistsError,
    ObjectMissingError,
    Storage,
    staged,
)
from timeline.properties.setting_enums import CommitLockMode
from timeline.reader_lease import defer_leased_deletes
from timeline.snapshot import ActiveTimeline
from timeline.truncation import is_archived_since, is_truncated_since

#: Slots that also create their pending files; no other process saw these before.
_BORN_IN_SLOT = frozenset({SlotKind.ABORT, SlotKind.CLEAN, SlotKind.SAVEPOINT, SlotKind.RESTORE})

#: These slots delete nothing and become visible by one file.
APPLIED_BY_A_FILE = frozenset({SlotKind.COMMIT, SlotKind.PLAN})

#: Slots whose file a restore, a cancel, a void or the end of a savepoint removes.
_TAKEN_BACK = frozenset(
    {SlotKind.COMMIT, SlotKind.PLAN, SlotKind.SAVEPOINT, SlotKind.ABORT, SlotKind.CLEAN}
)

#: Pending services of the metadata table that name log files, or block its next write in Java.
_ENDED_BY_RESTORE = frozenset({Action.COMPACTION, Action.LOGCOMPACTION, Action.RESTORE})

#: Slots of services that another engine may complete from their pending files.
_ENDED_BY_ANYBODY = frozenset(
    {SlotKind.ABORT, SlotKind.CLEAN, SlotKind.RESTORE, SlotKind.SAVEPOINT}
)


def staged_completed_file(storage: Storage, slot: Slot) -> AbstractContextManager[None]:
    """
    Sync the slot's completed file in this block, at the same time as the slot itself.

    The bytes have no name yet: the completed file is still created after its slot (LOC-2).
    """
    name = slot.file_name
    return nullcontext() if name is None else staged(storage, timeline_path(name), slot.body)


def is_applied(
    slot: Slot, timeline: ActiveTimeline, history: ArchivedTimeline | None = None
) -> bool:
    """
    Return whether the slot's file exists or was archived since (Java archives ours too).

    A cancel, a void and the end of a savepoint have no file. They are applied when their target's
    files are deleted. A compaction of the metadata table counts as applied: if its owner dies
    before it creates the plan, there is none (MDT-8).

    An instant is archived if every reader takes it as archived (``ActiveTimeline.is_archived``) and
    it has no pending files. The second condition is needed because a rollback or clean may be
    below the first write of the timeline, while its owner died between its deletes and its
    completed file. A commit without any file is applied, too: its requested file stays until it is
    archived, so another engine's restore removed it and its data. The same holds for a plan that
    once had a file.

    If a service's owner died, any process completes the instant. Java Hudi executes the same plan
    and completes it under its own completion time: one completion is enough. So is one savepoint of
    a write.

    Outside: the archived timeline's times if savepoints keep every write of the timeline, else
    nothing.
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
            parts = (path.rpartition("/") for path in slot.deletes)
            return timeline.file_names.isdisjoint(
                name for folder, _, name in parts if folder == TIMELINE
            )
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
    """Return whether another engine created this savepoint after the ended one."""
    return shown.completed and timeline_path(instant_file_name(shown)) not in ended.deletes


def _was_restored_away(slot: Slot, timeline: ActiveTimeline) -> bool:
    """Return whether another engine's restore removed a plan and its files (RST-3)."""
    return slot.kind is SlotKind.PLAN and any(
        one.action is Action.RESTORE and (one.completion_time or "") > slot.completion_time
        for one in timeline.instants
    )


def has_instant_file(slot: Slot, timeline: ActiveTimeline) -> bool:
    """Return whether a timeline has a file of the slot's instant, so was listed after its begin."""
    pending = pending_file_names(slot.own_action, slot.instant_time)
    return not timeline.file_names.isdisjoint({slot.file_name, *pending})


def may_overlap(slot: Slot) -> bool:
    """
    Return whether the next slot may be taken before this one is applied, or at the same time.

    This holds for a commit that becomes visible by one file, deletes nothing and cannot become
    void.
    """
    return slot.kind is SlotKind.COMMIT and not slot.timeline_digest


def newest_slots(context: TableContext, head: int) -> tuple[Slot, ...]:
    """
    Return the slots up to ``head`` that may not be applied yet, in their order (PUB-3).

    These are the last slot and, if it is a commit, the commit before it. All others were applied
    before the last number was taken. Outside: a get for each of the two that was never read.
    """
    last = context.commit_log.newest_own_slot(head)
    if last is None:
        return ()
    before = context.commit_log.newest_own_slot(last.number - 1) if may_overlap(last) else None
    return (last,) if before is None or not may_overlap(before) else (before, last)


def not_applied(context: TableContext, head: int, timeline: ActiveTimeline) -> tuple[Slot, ...]:
    """Return those of ``newest_slots`` that are not applied yet according to a timeline."""
    return tuple(
        slot
        for slot in newest_slots(context, head)
        if not is_applied(slot, timeline, context.archived_timeline)
        or slot.deletes_in_metadata_table
    )


def _always() -> bool:
    return True


def apply(context: TableContext, slot: Slot, *, may_show: Callable[[], bool] = _always) -> bool:
    """
    Make a decided commit visible: do what its slot decided; repeating it changes nothing.

    This is the only place that does so. The data files exist before the slot. The completed file is
    created last. The instant of the metadata table precedes it (MDT-4).

    Outside: 1 create for a commit or plan; the deletes, 2 creates and 1 create for a service. With
    a metadata table 3 creates more, on a high-latency store all at once.

    Args:
        context: The table.
        slot: The decision.
        may_show: Called before every request for a file that makes the slot visible (FOR-4). For a
            clean it is called before its deletes and not after them: after the deletes no process
            ends it (FOR-9).

    Returns:
        True when done; False if such a file may not be written any more.

    Raises:
        OutcomeUnknownError: The slot exists, so the decision is final, but the completed file could
            not be written within the deadline. Any later writer creates it.
    """
    overruns = context.low_water_mark.overruns
    if slot.kind in _BORN_IN_SLOT and not _write_pending(context, slot, may_show):
        return False
    if slot.kind in (SlotKind.ABORT, SlotKind.CANCEL) and not _end_target(context, slot):
        return True
    if slot.kind is SlotKind.METADATA:
        if not slot.body:  # a build or a drop of partitions; the slot only orders it (MDT-11)
            return True
        path = metadata_plan_path(slot.requested_time, slot.action)
        return _create_until_known(context, path, slot.body, slot, may_show)
    if slot.kind is SlotKind.RESTORE and not is_archived_since(context, slot, overruns):
        _show_in_metadata_table(context, slot, _always)  # before the deletes (MDT-12)
    _carry_out(context, slot)
    if slot.file_name is None:
        return True
    if is_archived_since(context, slot, overruns):
        _delete_archived_files(context, slot)
        return True
    if slot.kind in APPLIED_BY_A_FILE and is_truncated_since(context, slot, overruns):
        return True
    return _show_in_metadata_table(context, slot, may_show) and _create_completed_file(
        context, slot, slot.file_name, overruns, may_show
    )


def _carry_out(context: TableContext, slot: Slot) -> None:
    """Make the changes, other than its own files, that a slot of a service decided."""
    deletes: Sequence[str] = slot.deletes
    if slot.kind is SlotKind.RESTORE:
        _delete_restored_files(context, slot)
    elif slot.kind is SlotKind.TRUNCATE:
        _write_truncation_point(context, slot)
    elif slot.kind is SlotKind.CLEAN and deletes:
        deletes = defer_leased_deletes(context, slot)
    for path in deletes:
        context.ports.storage.delete(path)


def _show_in_metadata_table(
    context: TableContext, slot: Slot, may_show: Callable[[], bool]
) -> bool:
    """
    Create the slot's deltacommit on the metadata table's timeline; return False if forbidden.

    Readers of the metadata table ignore it until the slot's own completed file exists (MDT-4). Only
    the completed file must be durable: a lost pending file of a completed instant has no meaning.
    """
    if slot.metadata_update is None:
        return True
    may_create = _always if slot.kind is SlotKind.CLEAN else may_show
    logs = [(one.path, one.content) for one in slot.metadata_update.files if one.content]
    made = context.ports.for_each(
        lambda log: _create_until_known(context, *log, slot, may_create), logs
    )
    if not (all(made) and may_create()):
        return False
    files = metadata_instant_files(slot)
    context.ports.concurrently(
        *(
            partial(_create_until_known, context, path, data, slot, durable=number == len(files))
            for number, (path, data) in enumerate(files, 1)
        )
    )
    return True


def metadata_plan_path(requested_time: InstantTime, action: Action = Action.COMPACTION) -> str:
    """Return the path of the plan of a compaction or log compaction of the metadata table (MDT-8)."""
    return f"{METADATA_TIMELINE}/{pending_file_names(action, requested_time)[-1]}"


def delete_from_metadata_table(
    storage: Storage, *requested_times: InstantTime, of_restore: bool = False
) -> None:
    """
    Delete writes that ended from the metadata table: their completed files, then their other files.

    A completed instant there whose write is neither pending nor completed would be visible. So this
    precedes the delete of the write's pending files (MDT-7). Log files have no markers. Outside: 1
    list; with a metadata table 1 list more and 1 for each of its partitions; the deletes.

    Args:
        storage: Storage of the table.
        requested_times: Of the writes.
        of_restore: Whether they were completed. Then pending services of the metadata table that
            may name their log files end before (MDT-12).
    """
    folders = [
        join(METADATA_TABLE, entry.name)
        for entry in storage.list(METADATA_TABLE)
        if entry.is_folder and entry.name != HOODIE
    ]
    times = frozenset(requested_times)
    if not folders or not times:
        return
    own = ActiveTimeline.of(storage.names(METADATA_TIMELINE))
    if of_restore:
        _end_services(storage, folders, own, times)
    instants = filter(None, map(parse_instant_name, own.file_names))
    ended = [one for one in instants if one.requested_time in times]
    for one in sorted(ended, key=lambda one: one.state.rank, reverse=True):
        storage.delete(f"{METADATA_TIMELINE}/{instant_file_name(one)}")
    _delete_files_of(storage, folders, times)


def _end_services(
    storage: Storage, folders: Sequence[str], own: ActiveTimeline, times: frozenset[InstantTime]
) -> None:
    """
    End pending services of the metadata table that were requested after one of the writes.

    Their files go before their pending files: a base file of an unknown instant may count later.
    """
    done = [one for one in own.instants if one.completed and one.requested_time in times]
    first = min((one.completion_time or "" for one in done), default="9")
    services = [
        one for one in own.pending if one.action in _ENDED_BY_RESTORE and one.requested_time > first
    ]
    _delete_files_of(storage, folders, frozenset(one.requested_time for one in services))
    for one in services:
        for name in pending_file_names(one.action, one.requested_time):
            storage.delete(f"{METADATA_TIMELINE}/{name}")


def _delete_files_of(
    storage: Storage, folders: Sequence[str], times: frozenset[InstantTime]
) -> None:
    """Delete base and log files of the metadata table that have one of the times in their name."""
    for folder in folders if times else ():
        for name in storage.names(folder):
            found = parse_metadata_file_name(name)
            if found is not None and found[1] in times:
                storage.delete(join(folder, name))


def _create_completed_file(
    context: TableContext, slot: Slot, name: str, overruns: int, may_show: Callable[[], bool]
) -> bool:
    """Create the completed file; return False if ``may_show`` forbids it."""
    context.commit_log.will_create_file(slot)
    may_create = _always if slot.kind is SlotKind.CLEAN else may_show
    if not _create_until_known(context, timeline_path(name), slot.body, slot, may_create):
        return False
    if is_archived_since(context, slot, overruns):
        _delete_archived_files(context, slot, name)
    return True


def _delete_archived_files(context: TableContext, slot: Slot, *names: str) -> None:
    """Delete files that were created after the instant was archived (GC-6)."""
    born = slot.kind in _BORN_IN_SLOT
    pending = pending_file_names(slot.own_action, slot.instant_time) if born else ()
    for name in (*pending, *names):
        context.ports.storage.delete(timeline_path(name))
    for path in files_made_in_metadata_table(slot):
        context.ports.storage.delete(path)


def revert_if_restored(context: TableContext, slot: Slot, lease: Lease | None) -> None:
    """
    Delete the file of a slot that a later slot had ended before the file was created (RST-4).

    A process without an exclusive lock may sleep between a slot and its file. Meanwhile others may
    apply a restore, a cancel, a void or the end of a savepoint. The same can happen to the previous
    commit's file, created at the same time as the slot (PUB-3). No later slot can exist if all
    writers take the lock and this process has held it alone since before the refresh that found the
    slot. Outside: nothing in that case, else 1 get per later slot and 1 delete for each of the
    files.
    """
    if slot.kind not in _TAKEN_BACK or slot.file_name is None:
        return
    all_wait = context.limits.publish_lock is CommitLockMode.LOCK
    if all_wait and lease is not None and not lease.is_shared and lease.remaining_ms() != 0:
        return
    later, number = [], slot.number + 1
    while (found := context.commit_log.read(number)) is not None:
        later.append(found)
        number += 1
    known = context.commit_log.newest_known(slot.number - 1)
    before = [one for one in known if not context.commit_log.is_of_another(one)][:1]
    shown = [*filter(may_overlap, before), slot] if may_overlap(slot) else [slot]
    gone = slots_with_removed_file([*shown, *later])
    for one in shown:
        if one.number not in gone or one.file_name is None:
            continue
        context.ports.events.emit("publish.taken_back", number=one.number)
        # The pending files may be gone. Then a deltacommit without the completed file is visible.
        for path in files_made_in_metadata_table(one):
            context.ports.storage.delete(path)
        context.ports.storage.delete(timeline_path(one.file_name))
        if one.kind in _BORN_IN_SLOT:  # the owner of the slot made them all
            for name in pending_file_names(one.own_action, one.instant_time):
                context.ports.storage.delete(timeline_path(name))


def _write_truncation_point(context: TableContext, slot: Slot) -> None:
    """Write the truncation point before anything is deleted (GC-2); it may not have moved."""
    number = decode_truncation_point(slot.body, path=f"slot {slot.number}").number
    if number:
        _create_until_known(context, truncation_point_path(number), slot.body, slot)


def revert_truncation(context: TableContext, slot: Slot) -> None:
    """Delete the truncation point that a slot created in a replaced table (SLOT-10)."""
    number = decode_truncation_point(slot.body, path=f"slot {slot.number}").number
    path = truncation_point_path(number)
    with suppress(ObjectMissingError):
        if number and context.ports.storage.read(path) == slot.body:
            context.ports.storage.delete(path)


def try_apply(context: TableContext, slot: Slot, *, may_show: Callable[[], bool] = _always) -> None:
    """
    Apply another writer's slot; a failure says nothing about the caller's own write.

    Raises:
        StorageUnavailableError: The storage failed, so the slot is not applied.
    """
    try:
        apply(context, slot, may_show=may_show)
    except OutcomeUnknownError as error:
        raise StorageUnavailableError(
            "the storage failed while this process applied an earlier commit. Nothing of this "
            f"write was committed; write again: slot {slot.number}",
            slot_number=slot.number,
        ) from error


#: Possible actions of a rollback's target: a requested time does not determine its action.
_BEGUN = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)


def _write_pending(context: TableContext, slot: Slot, may_show: Callable[[], bool]) -> bool:
    """
    Create the requested file, which a savepoint lacks, and the inflight file.

    Returns whether both exist. A clean calls ``may_show`` once more, because its deletes follow.
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
    *,
    durable: bool = True,
) -> bool:
    """
    Create a file until it exists; the slot fixes its content, so any creator will do (UNK-5).

    Returns whether it exists; False once ``may_create`` forbids it.
    """
    clock = context.ports.clock
    started = clock.monotonic_ms()
    pause = 10
    while True:
        try:
            if not may_create():
                return False
            context.ports.storage.create(path, data, durable=durable)
        except ObjectExistsError:
            return True
        except (AmbiguousWriteError, StorageUnavailableError) as error:
            if clock.monotonic_ms() - started > context.limits.unknown_ms_max:
                raise OutcomeUnknownError(
                    "the write is committed, but its completed file could not be written. Do not "
                    f"repeat the write: the next writer or service creates the file: {path}",
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
    Delete what an abort or a cancel ends; return False if another engine completed it.

    The completed instant then stays. Outside: as ``_has_completed`` and ``_undo_target``.
    """
    aborts = slot.kind is SlotKind.ABORT
    actions = _BEGUN if aborts else (slot.action,)
    if not _has_completed(context, slot.requested_time, actions):
        _undo_target(context, slot.requested_time, actions)
        return True
    if aborts:  # the rollback has no effect
        for name in pending_file_names(slot.own_action, slot.instant_time):
            context.ports.storage.delete(timeline_path(name))
    return False


def _has_completed(context: TableContext, target: InstantTime, actions: Sequence[Action]) -> bool:
    """
    Return whether another engine, which ignores slots, completed the target (RB-12).

    It completes only inflight instants, so the inflight file is deleted first. Outside: 1 delete
    per action, 1 list.
    """
    if not context.has_foreign_writers:
        return False
    for action in actions:
        context.ports.storage.delete(timeline_path(pending_file_names(action, target)[0]))
    now = context.active().find(target, *actions, *(action.completes_as for action in actions))
    return now is not None and now.completed


def _undo_target(context: TableContext, target: InstantTime, actions: Iterable[Action]) -> None:
    """
    Delete an aborted or cancelled instant's data, then its pending files and heartbeat (RB-6).

    The markers stay. A paused owner may have created a marker and not yet its file; only the marker
    names that file once the owner wakes (RB-10). The cleaner deletes both when they are old.
    """
    storage = context.ports.storage
    for path in data_files_of(storage, target):
        storage.delete(path)
    delete_from_metadata_table(storage, target)
    for action in actions:
        for name in pending_file_names(action, target):
            storage.delete(timeline_path(name))
    storage.delete(heartbeat_path(target))


def _delete_restored_files(context: TableContext, slot: Slot) -> None:
    """
    Delete restored-away instants: first hide them, then delete data, then their other files.

    The metadata table forgets them while they are pending on the table (MDT-12). Markers stay, so files that a paused owner writes later are found (RB-10).
    """
    storage = context.ports.storage
    shown, known = files_removed_by_restore(storage, slot, TIMELINE)
    times = restored_away_by(slot)
    for name in shown:
        storage.delete(timeline_path(name))
    delete_from_metadata_table(storage, *times, of_restore=True)
    for path in data_files_of(storage, *times):
        storage.delete(path)
    for name in known:
        storage.delete(timeline_path(name))
    for time in sorted(times):
        storage.delete(heartbeat_path(time))


def data_files_of(storage: Storage, *requested_times: InstantTime) -> list[str]:
    """
    Return paths of all data files of these instants, from markers and a listing together.

    Only names that follow the grammar and carry one of these times are returned. A hostile or
    damaged marker can never name another instant's file (RB-6, SEC2). Outside: the marker folders'
    lists, 1 list per partition.
    """
    found = {
        marked.path
        for requested_time in sorted(requested_times)
        for marked in marker_files(storage, requested_time)
        if data_file_time(marked.file_name) == requested_time
    }
    times = frozenset(requested_times)
    for partition_path in list_partition_paths(storage) if times else ():
        found.update(
            join(partition_path, entry.name)
            for entry in storage.list(partition_path)
            if not entry.is_folder and data_file_time(entry.name) in times
        )
    return sorted(found)

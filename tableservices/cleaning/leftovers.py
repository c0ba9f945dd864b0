"""
Sweeping what crashed writers left beside the table: heartbeats and markers of nobody.

Only what no pending instant owns and nobody renewed for the tolerated silence goes. The
timeline is listed after the folders, so that an instant begun in between is seen. Markers
of a rolled back or cancelled instant may tell of files that its owner wrote after the rollback had
looked (RB-10); the slot that ended it allows to delete those too.
"""

from __future__ import annotations

from tableservices.scheduling import PLANS
from timeline.context import TableContext
from timeline.files.markers import delete_markers
from timeline.heartbeat import stray_heartbeats
from timeline.model.filenames import pending_file_names
from timeline.model.slot import SlotKind
from timeline.places import MARKERS, heartbeat_path
from timeline.ports.storage import Storage
from timeline.publishing.settle import data_files_of, settle
from timeline.reading.reader_lease import sweep_leased
from timeline.reading.withdrawal import ended_times

__all__ = ["remove_leftovers"]


def remove_leftovers(context: TableContext) -> int:
    """
    Remove stray heartbeats and marker folders; returns how many.

    Files that earlier cleans left to readers go, too. Outside: 3 lists, 2 more and 1 get per
    lease where there are any, and when something is old 1 list more and 1 delete each; for a
    rolled back instant 1 list per partition and 1 delete per late file.
    """
    storage = context.world.storage
    _sweep_late_plans(context)
    sweep_leased(context)
    limits = context.limits.heartbeat
    beats = stray_heartbeats(storage, frozenset(), limits)
    marked = _old_marker_folders(storage, limits.tolerated_ms)
    if not beats and not marked:
        return 0
    pending = {one.requested_time for one in context.active().pending}
    beats = tuple(one for one in beats if one not in pending)
    marked = tuple(one for one in marked if one not in pending)
    for requested_time in beats:
        storage.delete(heartbeat_path(requested_time))
    aborted = ended_times(context.chain) if marked else frozenset()
    for requested_time in marked:
        if requested_time in aborted:
            for path in data_files_of(storage, requested_time):
                storage.delete(path)
        delete_markers(storage, requested_time)
    context.world.events.emit(
        "cleaning.leftovers", heartbeats=len(beats), marker_folders=len(marked)
    )
    return len(beats) + len(marked)


def _sweep_late_plans(context: TableContext) -> None:
    """
    End plans that an executor showed as begun when they had been cancelled already.

    Such a plan has an inflight file and no requested one, and would be pending for ever. What
    a cancel slot ended is undone again; what ended otherwise is archived and keeps its data
    (RB-7). Outside: nothing where there is none, else the slots and the deletes.
    """
    timeline = context.timelines.last or context.active()
    late = {
        one.requested_time: one.action
        for one in timeline.pending
        if one.action in PLANS
        and pending_file_names(one.action, one.requested_time)[-1] not in timeline.file_names
    }
    if not late:
        return
    for slot in context.chain.newest_first():
        if slot.kind is SlotKind.CANCEL and slot.requested_time in late:
            settle(context, slot)
    for requested_time, action in late.items():
        inflight = pending_file_names(action, requested_time)[0]
        context.world.storage.delete(context.instant_path(inflight))
    context.world.events.emit("cleaning.late_plans", plans=len(late))


def _old_marker_folders(storage: Storage, tolerated_ms: int) -> tuple[str, ...]:
    now = storage.now_ms()
    return tuple(
        entry.name
        for entry in storage.list(MARKERS)
        if entry.is_folder
        and entry.name.isdigit()
        and len(entry.name) in (14, 17)
        and now - entry.modified_ms > tolerated_ms
    )

"""
Sweeping what crashed writers left beside the table: heartbeats and markers of nobody.

Only what no pending instant owns and nobody renewed for the tolerated silence goes. The
timeline is listed after the folders, so that an instant begun in between is seen.
"""

from __future__ import annotations

from timeline.context import TableContext
from timeline.files.markers import delete_markers
from timeline.heartbeat import stray_heartbeats
from timeline.places import MARKERS, heartbeat_path

__all__ = ["remove_leftovers"]


def remove_leftovers(context: TableContext) -> int:
    """
    Remove stray heartbeats and marker folders; returns how many.

    Outside: 3 lists, 1 delete each.
    """
    storage = context.world.storage
    folders = storage.list(MARKERS)
    now = storage.now_ms()
    pending = frozenset(one.requested_time for one in context.active().pending)
    limits = context.limits.heartbeat
    beats = stray_heartbeats(storage, pending, limits)
    for requested_time in beats:
        storage.delete(heartbeat_path(requested_time))
    marked = [
        entry.name
        for entry in folders
        if entry.is_folder
        and entry.name.isdigit()
        and len(entry.name) in (14, 17)
        and entry.name not in pending
        and now - entry.modified_ms > limits.tolerated_ms
    ]
    for requested_time in marked:
        delete_markers(storage, requested_time)
    if beats or marked:
        context.world.events.emit(
            "cleaning.leftovers", heartbeats=len(beats), marker_folders=len(marked)
        )
    return len(beats) + len(marked)

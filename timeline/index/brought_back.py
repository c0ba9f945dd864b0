"""
Slices whose logs may hold a key that their base file lacks (CMP-4).

A key that a log deleted stays where it was until a compaction drops it. A write that began
before that compaction completed still finds the key there and brings it back, by a log that
lies on the new base file, and from then on in no base file. Whoever looks for keys in base
files only would take it for a new one and insert it a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from timeline.boundary import read_boundary
from timeline.context import TableContext
from timeline.model.file_group import FileSlice
from timeline.model.times import InstantTime
from timeline.reading.view import FileSystemView

__all__ = ["may_bring_back"]


def may_bring_back(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice]
) -> Iterator[FileSlice]:
    """
    The slices with a log that began before their base file was there.

    Outside: nothing while the base files' instants are on the timeline; else 1 list, 1 get,
    and of a log that began before the newest archived instant completed, the history.
    """
    archived: InstantTime | None = None
    for one in slices:
        if one.base_file is None or not one.log_files:
            continue
        began = min(log.instant_time for log in one.log_files)
        base_time = one.base_file.requested_time
        completed = view.snapshot.completions.get(base_time)
        if completed is None:
            if archived is None:
                archived = read_boundary(context.world.storage).time
            if archived and began >= archived:
                continue
            completed = view.snapshot.archived.completions.get(base_time)
        if completed is not None and began < completed:
            yield one

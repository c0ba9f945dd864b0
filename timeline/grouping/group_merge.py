"""The members of a group as one write: what it intends, and the files it publishes (GRP-1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from timeline.model.commit_metadata import CommitMetadata, WriteStat
from timeline.writing.candidate import Written

__all__ = ["merged", "merged_profile"]


def merged(members: Sequence[Written]) -> Written:
    """The files of all members as those of one write."""
    first = members[0]
    new_rows: dict[str, int] = {}
    for one in members:
        for path, rows in one.placement.new_rows.items():
            new_rows[path] = new_rows.get(path, 0) + rows
    missed = {path for one in members for path in one.placement.missed_in}
    placement = replace(
        first.placement,
        tasks=tuple(task for one in members for task in one.placement.tasks),
        missed_in=tuple(sorted(missed)),
        new_rows=new_rows,
    )
    stats = tuple(pair for one in members for pair in one.stats)
    return replace(first, placement=placement, stats=stats)


def merged_profile(profiles: Sequence[CommitMetadata]) -> CommitMetadata:
    """The inflight content of all members: per partition one stat of new rows, then the updates."""
    inserts: dict[str, int] = {}
    updates: dict[str, list[WriteStat]] = {}
    for profile in profiles:
        for path, (new, *known) in profile.partition_to_write_stats.items():
            inserts[path] = inserts.get(path, 0) + new.num_inserts
            updates.setdefault(path, []).extend(known)
    stats = {
        path: (WriteStat(num_inserts=rows), *updates[path])
        for path, rows in sorted(inserts.items())
    }
    return CommitMetadata(operation_type=profiles[0].operation_type, partition_to_write_stats=stats)

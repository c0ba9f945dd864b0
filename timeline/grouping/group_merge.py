"""The members of a group as one write: what it intends, and the files it publishes (GRP-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from timeline.grouping.group_messages import OwnPart
from timeline.grouping.joint import parts_text
from timeline.model.commit_metadata import CommitMetadata, WriteStat
from timeline.writing.candidate import Written
from timeline.writing.receipt import WritePlan

__all__ = ["GROUP_KEY", "merged", "merged_profile", "shared_plan"]

#: Extra metadata of a commit: how many writes share it.
GROUP_KEY = "hoodoo.group"


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
        sought={key: rows for one in members for key, rows in one.placement.sought.items()},
        new_rows=new_rows,
        inside=tuple(sorted({folder for one in members for folder in one.placement.inside})),
        read_only=tuple(item for one in members for item in one.placement.read_only),
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


def shared_plan(first: WritePlan, size: int, parts: Mapping[str, OwnPart]) -> WritePlan:
    """What the members ask for together; their batches are told by themselves."""
    told = {**first.extra_metadata, GROUP_KEY: str(size), **parts_text(parts)}
    return replace(first, batch_id=None, extra_metadata=told)

"""
Read the write sets that live pending writes have announced (BEG-6).

A write announces its write set before its first data file, by its inflight file with the workload
profile and by a marker for each file. Java Hudi writes both as well. If a profile names no file
group, the markers do, in either of Java's forms. An announcement may be incomplete and binds no
writer: only the commit decides.
"""

from __future__ import annotations

from dataclasses import replace

from timeline.active_timeline import ActiveTimeline
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.concurrent_commits import write_set_of
from timeline.commit.markers import MarkedFile, list_markers
from timeline.context import TableContext
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import (
    IOType,
    parse_base_file_name,
    parse_log_file_name,
    pending_file_names,
)
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.model.slot import SlotOwner
from timeline.model.write_set import Access, AccessedFileGroup, FileGroupId, WriteSet
from timeline.ports.storage import ObjectMissingError
from timeline.rules.conflicts import ConcurrentCommit

__all__ = ["announced_writes"]


def announced_writes(
    context: TableContext, timeline: ActiveTimeline, *, below: InstantTime | None = None
) -> list[ConcurrentCommit]:
    """
    Return live pending writes as if they were committed, with the write sets they announced.

    Outside: 1 list of heartbeats and 1 get per pending write; the lists of its markers if the
    profile names no file group.

    Args:
        context: The table.
        timeline: The timeline on which they are pending.
        below: Only those requested before this time.
    """
    pending = [
        one for one in timeline.pending_ingestion if below is None or one.requested_time < below
    ]
    times = tuple(one.requested_time for one in pending)
    dead = instants_with_expired_heartbeat(context.world.storage, times, context.limits.heartbeat)
    found = []
    for one in pending:
        if one.requested_time in dead:
            continue
        path = context.instant_path(pending_file_names(one.action, one.requested_time)[0])
        try:
            profile = decode_commit(context.world.storage.read(path), path=path)
        except ObjectMissingError:
            continue  # it has announced nothing yet, or has ended
        writer = SlotOwner.told_in(profile.extra_metadata)
        found.append(
            ConcurrentCommit(
                action=one.action,
                requested_time=one.requested_time,
                completion_time=one.requested_time,
                claim=_announced_write_set(context, profile, one.requested_time, one.action),
                writer=writer.text if writer is not None else "",
            )
        )
    return found


def _announced_write_set(
    context: TableContext, profile: CommitMetadata, requested_time: InstantTime, action: Action
) -> WriteSet:
    """
    Return the announced write set.

    A profile does not contain the access to a file group; in a delta commit it is mostly LOG.
    """
    claim = write_set_of(profile)
    if not any(item.file_group.file_id for item in claim.file_groups):
        listing = list_markers(context.world.storage, requested_time)
        marked = [each for one in listing.files if (each := _file_group_of(one)) is not None]
        return WriteSet.of([*claim.file_groups, *marked], claim.partitions, claim.inserting)
    if action is not Action.DELTACOMMIT:
        return claim
    touched = (
        replace(item, touch=Access.LOG) if item.touch is Access.BASE else item
        for item in claim.file_groups
    )
    return WriteSet.of(touched, claim.partitions, claim.inserting)


def _file_group_of(marked: MarkedFile) -> AccessedFileGroup | None:
    """Return the file group of an announced file; None for change logs, which share one."""
    log = parse_log_file_name(marked.file_name)
    base = parse_base_file_name(marked.file_name)
    if log is not None and not log.is_cdc:
        file_id, touch = log.file_id, Access.LOG
    elif base is not None:
        file_id = base.file_id
        touch = Access.NEW if marked.io_type is IOType.CREATE else Access.BASE
    else:
        return None
    return AccessedFileGroup(file_group=FileGroupId(marked.partition_path, file_id), touch=touch)

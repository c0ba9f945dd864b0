"""
Delete old slices of the metadata table, and archive its instants (MDT-8).

The process that completed a compaction does both right after it. Java Hudi needs no instant for the
deletes: its own clean lists the folders, and nothing reads a slice below a newer one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from filegroups.metadata_table.reading import lag_of_timelines, open_metadata_table
from tableservices.archiving.archived_timeline import merge_levels, move_instants
from tableservices.archiving.plan import ArchivingSettings
from tableservices.metadata_table.plan import (
    archivable,
    read_metadata_timeline,
    retained_since,
    stale_files,
)
from timeline.commit.apply import delete_from_metadata_table
from timeline.commit.commit_lock import assert_lease
from timeline.context import TableContext
from timeline.model.file_names import METADATA_TABLE, instant_file_name, pending_file_names
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import BUILDING, METADATA_TIMELINE
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Lease
from timeline.snapshot import ActiveTimeline
from timeline.storage.subfolder import SubfolderStorage
from timeline.truncation import GRACE_OF_SILENCES

_LEFT_PENDING: Final = frozenset({Action.DELTACOMMIT, Action.CLEAN, Action.ROLLBACK})


def clean_metadata_table(context: TableContext, config: TableConfig, lease: Lease | None) -> int:
    """
    Delete slices that no reader needs; return the number of files.

    Outside: 1 list, 1 stat for each compaction on the timeline; 1 list for each partition, the
    deletes.
    """
    storage = context.ports.storage
    table = open_metadata_table(storage, config, context.snapshot())
    if table is None:
        return 0
    own = table.own.active
    since = retained_since(own, _completed_long_ago(context, own))
    if since is None:
        return 0
    paths = [
        file.path for partition in table.partitions for file in stale_files(table, partition, since)
    ]
    assert_lease(lease)
    context.ports.for_each(storage.delete, paths)
    return len(paths)


def _completed_long_ago(context: TableContext, own: ActiveTimeline) -> list[InstantTime]:
    storage, limits = context.ports.storage, context.limits
    age_ms = max(limits.reader_lease_ms, GRACE_OF_SILENCES * limits.heartbeat.tolerated_ms)
    found = []
    for one in own.completed_writes:
        if one.action is not Action.COMMIT:
            continue
        stat = storage.stat(f"{METADATA_TIMELINE}/{instant_file_name(one)}")
        if stat is not None and storage.now_ms() - stat.modified_ms > age_ms:
            found.append(one.requested_time)
    return found


def archive_metadata_table(
    context: TableContext, archiving: ArchivingSettings, lease: Lease | None
) -> int:
    """
    Archive instants of the metadata table; return their number.

    One process completes a compaction, so two rarely archive at the same time. If they do, a row may
    be in two files of the archived timeline, which readers accept. Outside: 2 lists; as
    ``_end_leftovers``, ``lag_of_timelines``, ``move_instants`` and ``merge_levels``.
    """
    storage = context.ports.storage
    own, snapshot = read_metadata_timeline(storage), context.snapshot()
    if _end_leftovers(context, own, snapshot.active, lease):
        own = read_metadata_timeline(storage)
    going = archivable(
        own,
        snapshot.active,
        kept_min=archiving.commits_kept_min,
        kept_max=archiving.commits_kept_max,
        unknown=lag_of_timelines(storage, own, snapshot).unknown,
    )
    if not going:
        return 0
    assert_lease(lease)
    inside = replace(
        context, ports=replace(context.ports, storage=SubfolderStorage(storage, METADATA_TABLE))
    )
    move_instants(inside, [instant_file_name(one) for one in going], own.file_names)
    merge_levels(inside, archiving)
    return len(going)


def _end_leftovers(
    context: TableContext, own: ActiveTimeline, table: ActiveTimeline, lease: Lease | None
) -> int:
    """
    Delete what a dead process of another engine left pending in the metadata table (MDT-8).

    No write of the table has its time, so nothing else ends it, and it would hold the archive for
    good. Java ends its own with its next write. Outside: 1 stat for each; the deletes.

    Args:
        context: The table.
        own: The timeline of the metadata table.
        table: The timeline of the table, read after ``own``.
        lease: Of the lock, where the caller holds it.
    """
    both = (*own.pending, *table.pending)
    if context.has_foreign_writers or any(one.action is Action.RESTORE for one in both):
        return 0
    storage, known = context.ports.storage, {one.requested_time for one in table.instants}
    ended = 0
    for one in own.pending:
        time = one.requested_time
        if one.action not in _LEFT_PENDING or time in known or time.startswith(BUILDING):
            continue
        stat = storage.stat(f"{METADATA_TIMELINE}/{instant_file_name(one)}")
        tolerated_ms = GRACE_OF_SILENCES * context.limits.heartbeat.tolerated_ms
        if stat is None or storage.now_ms() - stat.modified_ms <= tolerated_ms:
            continue
        assert_lease(lease)
        if one.action is Action.DELTACOMMIT:
            delete_from_metadata_table(storage, time)
        for name in pending_file_names(one.action, time):
            storage.delete(f"{METADATA_TIMELINE}/{name}")
        context.ports.events.emit("metadata_table.plan_deleted", rt=time)
        ended += 1
    return ended

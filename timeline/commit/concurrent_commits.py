"""
Find concurrent commits, and writes of other writers that are not committed yet.

Our commits are read from slots, which contain everything the conflict rules need. Instants of
another engine have no slot; their commit metadata is read (FOR-2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial

from timeline.archived import ARCHIVED_WRITES
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.commit_lock import PendingCommit
from timeline.commit.markers import MarkedFile, marker_files
from timeline.context import TableContext
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.commit_metadata import (
    COMPACTING,
    LOG_COMPACT,
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    WriteSet,
    write_set_of,
)
from timeline.model.file_names import (
    IOType,
    parse_base_file_name,
    parse_log_file_name,
    pending_file_names,
    slot_path,
)
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CleanMetadata
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.pending_plans import rollback_target
from timeline.ports.ports import ObjectMissingError
from timeline.reader_lease import read_clean
from timeline.rules.conflicts import (
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    RuleId,
    objection_to,
    validate_write_set,
)
from timeline.snapshot import ActiveTimeline

#: A plan is not one: writers ignore it, and actions that conflict with it read the timeline.
CONCURRENT_KINDS = frozenset({SlotKind.COMMIT, SlotKind.ABORT, SlotKind.RESTORE})


def commit_of_slot(slot: Slot) -> ConcurrentCommit:
    """Return the concurrent commit of a slot of ours."""
    return ConcurrentCommit(
        action=slot.action,
        requested_time=slot.instant_time,
        completion_time=slot.completion_time,
        write_set=slot.write_set,
        aborts=slot.requested_time if slot.kind is SlotKind.ABORT else None,
        restores=slot.kind is SlotKind.RESTORE,
        writer=slot.owner.text,
        is_compaction=slot.action in (Action.COMPACTION, Action.LOGCOMPACTION),
        dropped=cache(partial(_dropped_by_slot, slot)),
        schema=slot.schema_after,
        batches=tuple(batch.batch_id for batch in slot.batches),
    )


def foreign_commits(
    context: TableContext,
    timeline: ActiveTimeline,
    fresh: Iterable[tuple[InstantTime, InstantTime]],
) -> list[ConcurrentCommit]:
    """Return the completed instants without a slot, which another engine committed (FOR-2)."""
    found = []
    for requested_time, completion_time in sorted(fresh):
        for instant in timeline.instants:
            if (instant.requested_time, instant.completion_time) != (
                requested_time,
                completion_time,
            ):
                continue
            context.ports.events.emit("publish.foreign", rt=requested_time)
            found.append(_foreign_rival(context, instant))
    return found


def verdict_on(
    context: TableContext,
    pending_commit: PendingCommit,
    requested_time: InstantTime,
    commits: list[ConcurrentCommit],
) -> NoConflict | Rebase | Rejected:
    """Return the verdict of the conflict matrix and, after it, of the conflict strategy."""
    accessed = WriteSet.of(
        [*pending_commit.write_set.file_groups, *pending_commit.read_only],
        pending_commit.write_set.partitions,
        pending_commit.write_set.inserting,
    )
    verdict = validate_write_set(
        accessed, requested_time, commits, logs_may_conflict=pending_commit.logs_may_conflict
    )
    if isinstance(verdict, Rejected):
        return verdict
    return objection_to(accessed, commits, context.limits.strategy) or verdict


def archived_commits(
    context: TableContext,
    first: InstantTime,
    known: frozenset[tuple[InstantTime, InstantTime]],
) -> list[ConcurrentCommit]:
    """
    Return archived writes from ``first`` on that were never seen as completed (FOR-6).

    Outside: the archived timeline's times that were not read before; its instants if there are such
    writes.
    """
    times = context.archived_timeline.times().completions.items()
    if not any(requested >= first and (requested, done) not in known for requested, done in times):
        return []
    return [
        _foreign_rival(
            context,
            Instant(
                action=Action(row.action),
                requested_time=row.requested_time,
                state=State.COMPLETED,
                completion_time=row.completion_time,
            ),
        )
        for row in context.archived_timeline.instants()
        if row.action in ARCHIVED_WRITES
        and row.requested_time >= first
        and row.completion_time
        and (row.requested_time, row.completion_time) not in known
    ]


def _foreign_rival(context: TableContext, instant: Instant) -> ConcurrentCommit:
    write_set = WriteSet()
    aborts = None
    schema = ""
    is_compaction = False
    dropped: Collection[FileGroupId] = frozenset()
    if instant.action.completes_as in (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT):
        metadata = context.commits.read(instant)
        write_set = write_set_of(metadata)
        schema = metadata.schema_json or ""
        is_compaction = metadata.operation_type in COMPACTING
        dropped = _dropped_by(metadata)
    elif instant.action is Action.ROLLBACK:
        aborts = rollback_target(context, instant)
    return ConcurrentCommit(
        action=instant.action,
        requested_time=instant.requested_time,
        completion_time=instant.completion_time or instant.requested_time,
        write_set=write_set,
        aborts=aborts,
        restores=instant.action is Action.RESTORE,
        writer="another engine",
        schema=schema,
        is_compaction=is_compaction,
        dropped=lambda: dropped,
    )


def _dropped_by_slot(slot: Slot) -> frozenset[FileGroupId]:
    if slot.kind is not SlotKind.COMMIT:
        return frozenset()
    return _dropped_by(decode_commit(slot.body, path=slot_path(slot.number)))


def _dropped_by(metadata: CommitMetadata) -> frozenset[FileGroupId]:
    """
    Return the file groups from which a commit deleted keys.

    A compaction deletes the keys that logs had marked as deleted; a log compaction keeps these
    marks.
    """
    if metadata.operation_type == LOG_COMPACT:
        return frozenset()
    return frozenset(
        FileGroupId(partition_path, stat.file_id)
        for partition_path, stats in metadata.partition_to_write_stats.items()
        for stat in stats
        if stat.num_deletes
    )


# ---- Conflicts with a clean that deleted files of a write's base snapshot (CLN-3)
#
# A writer that lists a partition does not find a file group whose file is deleted, and takes its
# keys for new ones. Cleans retain files that pending instants need, by requested times. These do
# not define a base snapshot exactly: slots may lack their files, clocks differ, and an engine may
# retain versions without regard to writers.


def clean_conflict(slots: list[Slot], commits: list[ConcurrentCommit]) -> Rejected | None:
    """
    Return the conflict with a clean of ours above the base snapshot, if any.

    From its floor on, a clean deletes files that no snapshot contains. The base snapshot lacks the
    concurrent commits, and some of them may have completed before the floor: commits whose file did
    not exist yet when the write began.

    Args:
        slots: All slots above the base snapshot.
        commits: The concurrent commits that the base snapshot lacks; at least one.
    """
    first = min(concurrent.completion_time for concurrent in commits)
    for slot in slots:
        if slot.kind is not SlotKind.CLEAN or not slot.deletes:
            continue
        if (slot.floor or slot.completion_time) >= first:
            lacking = [concurrent for concurrent in commits if concurrent.completion_time == first]
            return _rejected(slot.instant_time, lacking)
    return None


def foreign_clean_conflict(
    context: TableContext,
    seen: ActiveTimeline,
    now: ActiveTimeline,
    slots: list[Slot],
    commits: list[ConcurrentCommit],
) -> Rejected | None:
    """
    Return the conflict with another engine's clean since the base snapshot, if any.

    These cleans have no slot. The base snapshot can show a deleted file only if a concurrent commit
    made all newer files of its file group. Outside: 1 get for each such clean.
    """
    known = {one.requested_time for one in seen.instants if one.action is Action.CLEAN}
    known.update(slot.instant_time for slot in slots if slot.kind is SlotKind.CLEAN)
    for clean in now.instants:
        if clean.action is not Action.CLEAN or clean.requested_time in known:
            continue
        gone = set(_groups_of(context, clean))
        meant = [
            concurrent
            for concurrent in commits
            if not gone.isdisjoint(item.file_group for item in concurrent.write_set.file_groups)
        ]
        if meant:
            return _rejected(clean.requested_time, meant)
    return None


def _rejected(clean: str, commits: list[ConcurrentCommit]) -> Rejected:
    return Rejected(
        RuleId.SOURCE_NOT_NEWEST,
        "a clean deleted files of the base snapshot, so the rows must be assigned to file groups "
        f"again: clean {clean}",
        tuple(commits),
    )


def _groups_of(context: TableContext, clean: Instant) -> Iterator[FileGroupId]:
    """Return the file groups of which a clean deleted, or will delete, a file."""
    for partition_path, name in _files_of(context, clean):
        file = parse_base_file_name(name) or parse_log_file_name(name)
        if file is not None:
            yield FileGroupId(partition_path, file.file_id)


def _files_of(context: TableContext, clean: Instant) -> Iterator[tuple[str, str]]:
    """Return the partition path and name of each file that a clean deleted or will delete."""
    metadata = read_clean(context, clean)
    if isinstance(metadata, CleanMetadata):
        for partition_path, done in metadata.partition_metadata.items():
            for deleted in done.success_delete_files:
                yield partition_path, deleted.rpartition("/")[2]
    elif metadata is not None:
        for partition_path, names in metadata.files_to_be_deleted_per_partition.items():
            for planned in names:
                yield partition_path, planned.rpartition("/")[2]
        for partition_path, files in metadata.file_paths_to_be_deleted_per_partition.items():
            for file in files:
                yield partition_path, (file.file_path or "").rpartition("/")[2]


# ---- Read the write sets that live pending writes have announced (BEG-6)
# A write announces its write set before its first data file, by its inflight file with the workload
# profile and by a marker for each file. Java Hudi writes both as well. If a profile names no file
# group, the markers do, in either of Java's forms. An announcement may be incomplete and binds no
# writer: only the commit decides.


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
    dead = instants_with_expired_heartbeat(context.ports.storage, times, context.limits.heartbeat)
    found = []
    for one in pending:
        if one.requested_time in dead:
            continue
        path = context.instant_path(pending_file_names(one.action, one.requested_time)[0])
        try:
            profile = decode_commit(context.ports.storage.read(path), path=path)
        except ObjectMissingError:
            continue  # it has announced nothing yet, or has ended
        writer = SlotOwner.from_metadata(profile.extra_metadata)
        found.append(
            ConcurrentCommit(
                action=one.action,
                requested_time=one.requested_time,
                completion_time=one.requested_time,
                write_set=_announced_write_set(context, profile, one.requested_time, one.action),
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
    write_set = write_set_of(profile)
    if not any(item.file_group.file_id for item in write_set.file_groups):
        files = marker_files(context.ports.storage, requested_time)
        marked = [each for one in files if (each := _file_group_of(one)) is not None]
        return WriteSet.of(
            [*write_set.file_groups, *marked], write_set.partitions, write_set.inserting
        )
    if action is not Action.DELTACOMMIT:
        return write_set
    touched = (
        replace(item, access=Access.LOG) if item.access is Access.BASE else item
        for item in write_set.file_groups
    )
    return WriteSet.of(touched, write_set.partitions, write_set.inserting)


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
    return AccessedFileGroup(file_group=FileGroupId(marked.partition_path, file_id), access=touch)

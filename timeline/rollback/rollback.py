"""
Roll back a failed write: an abort slot first, the deletes after it (RB-1 to RB-9).

The abort slot ends the target in the order of commits. From then on the target can never commit, so
deleting its files is safe even if a paused owner still lives. If the target has a commit slot, it
is committed and gets help instead (RB-3). ``timeline.commit.apply`` deletes the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.codecs.instant_avro import (
    decode_restore,
    decode_rollback_plan,
    encode_rollback,
    encode_rollback_plan,
)
from timeline.codecs.legacy_commit import decode_archived_rollback
from timeline.commit.apply import (
    apply,
    data_files_of,
    delete_from_metadata_table,
    is_applied,
    may_overlap,
    revert_if_restored,
    try_apply,
)
from timeline.commit.begin import StartedWrite
from timeline.commit.commit_lock import CommitSection
from timeline.commit.markers import delete_markers
from timeline.commit.section import open_commit
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    OutcomeUnknownError,
    StorageUnavailableError,
    TableReplacedError,
    UnsupportedTableError,
)
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.file_names import (
    HISTORY,
    instant_file_name,
    parent_folder,
    pending_file_names,
    timeline_path,
)
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.plans import (
    InstantInfo,
    RollbackMetadata,
    RollbackPartitionMetadata,
    RollbackPlan,
    RollbackRequest,
)
from timeline.model.slot import Slot, SlotKind
from timeline.partitions import delete_hiding_metadata
from timeline.pending_plans import pending_rollback_of, rollback_target
from timeline.ports.ports import ObjectMissingError, Storage
from timeline.snapshot import ActiveTimeline

# ---- Completed rollbacks and restores
#
# Slots contain the same targets until the commit log is truncated (GC-2). These instants stay
# longer, on the active or the archived timeline. Other engines leave nothing else.

_UNDOING = {one.value: one for one in (Action.ROLLBACK, Action.RESTORE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRecord:
    """A completed rollback or restore, and the requested times of its targets."""

    action: Action
    requested_time: InstantTime
    completion_time: InstantTime
    targets: frozenset[InstantTime]


def rollback_records(
    context: TableContext, active: ActiveTimeline, archived: Iterable[ArchivedInstant]
) -> Iterator[RollbackRecord]:
    """
    Yield every completed rollback and restore that names targets.

    A target may be committed all the same: a plan that was rolled back is executed again. Outside:
    1 get per rollback and restore on the timeline.

    Args:
        context: The table.
        active: Its active timeline.
        archived: Its archived timeline, read after the active one and with metadata.

    Raises:
        CorruptTableError: One of them is damaged.
    """
    for one in active.instants:
        if one.completed and one.action.value in _UNDOING:
            path = context.instant_path(instant_file_name(one))
            yield from _targets_of(one, _content(context, one, path), path)
    for row in archived:
        if row.action in _UNDOING:
            yield from _targets_of(row, row.metadata, f"{HISTORY} ({row.requested_time})")


def _content(context: TableContext, instant: Instant, path: str) -> bytes | None:
    try:
        return context.ports.storage.read(path)
    except ObjectMissingError:  # archived since it was listed
        row = context.archived_timeline.find(instant.requested_time, instant.action.value)
        return None if row is None else row.metadata


def _targets_of(
    one: Instant | ArchivedInstant, content: bytes | None, path: str
) -> Iterator[RollbackRecord]:
    if not content:
        return
    action = one.action if isinstance(one.action, Action) else _UNDOING[one.action]
    if action is Action.ROLLBACK:
        targets = decode_archived_rollback(content, path=path).commits_rollback
    else:
        targets = decode_restore(content, path=path).instants_to_rollback
    yield RollbackRecord(
        action=action,
        requested_time=one.requested_time,
        completion_time=one.completion_time or one.requested_time,
        targets=frozenset(targets),
    )


# ---- Plan and result of a rollback, in Java Hudi's format (fmt 3)


def rollback_plan(storage: Storage, target: InstantInfo, files: Iterable[str]) -> RollbackPlan:
    """
    Return the plan that deletes these files of ``target``, with one request per file.

    Args:
        storage: Returns the files' addresses for other engines.
        target: The instant to roll back.
        files: Paths relative to the table.
    """
    return RollbackPlan(
        instant_to_rollback=target,
        rollback_requests=tuple(
            RollbackRequest(
                partition_path=parent_folder(path),
                file_id=path.rpartition("/")[2].partition("_")[0].lstrip("."),
                latest_base_instant=target.requested_time,
                files_to_be_deleted=(_plain(storage.locate(path)),),
            )
            for path in files
        ),
    )


def rollback_metadata(
    storage: Storage, target: InstantInfo, files: Iterable[str], *, own_time: InstantTime
) -> RollbackMetadata:
    """Return the result after the instant ``own_time`` deleted these files of ``target``."""
    by_partition: dict[str, list[str]] = {}
    for path in files:
        by_partition.setdefault(parent_folder(path), []).append(_plain(storage.locate(path)))
    return RollbackMetadata(
        start_rollback_time=own_time,
        total_files_deleted=sum(map(len, by_partition.values())),
        commits_rollback=(target.requested_time,),
        partition_metadata={
            partition: RollbackPartitionMetadata(
                partition_path=partition, success_delete_files=tuple(addresses)
            )
            for partition, addresses in sorted(by_partition.items())
        },
        instants_rollback=(target,),
    )


def _plain(address: str) -> str:
    """Return an absolute path without a local scheme, as in rollback plans (fmt 3)."""
    return (
        "/" + address.removeprefix("file:").lstrip("/") if address.startswith("file:") else address
    )


# ---- Rollback (RB-1 to RB-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackDecision:
    """The result for one target: rolled back by ``slot``, or left alone because it had ended."""

    target: InstantTime
    slot: Slot | None
    why: str


def rollback(context: TableContext, target: Instant) -> RollbackDecision:
    """
    Roll back one pending write for good.

    Outside: the target's listing, 1 commit section (lock, list, create), the deletes, 3 creates.

    Args:
        context: The table.
        target: A pending commit, deltacommit or replacecommit.

    Raises:
        UnsupportedTableError: The target is a plan or a completed instant.
        LockTimeoutError, OutcomeUnknownError: As ``commit_write``.
    """
    if target.completed or target.action not in _UNDOABLE:
        raise UnsupportedTableError(
            "this release rolls back pending writes only; use 'hoodoo rollback TABLE INSTANT' "
            f"for a completed write: {target}",
            kind="rollback_target",
            requested_time=target.requested_time,
        )
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, f"roll back {target.requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            ending = _ending_of(context, section, target)
            if ending is not None:
                return ending
            left = pending_rollback_of(context, section.timeline, target.requested_time)
            if left is not None and not is_abandoned(context, left):
                if context.has_foreign_writers:
                    # Java deletes without the lock, and fails if files it deletes are missing.
                    why = "another engine is rolling it back"
                    return RollbackDecision(target=target.requested_time, slot=None, why=why)
                left = None
            info = InstantInfo(requested_time=target.requested_time, action=target.action.value)
            commit.take(section, _abort_slot(context, section, info, nonce, left=left))
    slot = commit.taken
    plan = decode_rollback_plan(slot.plan, path=f"slot {slot.number}")
    delete_hiding_metadata(context, {one.partition_path for one in plan.rollback_requests})
    context.ports.events.emit("rollback.done", target=target.requested_time)
    return RollbackDecision(target=target.requested_time, slot=slot, why="rolled back")


_UNDOABLE = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


def _ending_of(
    context: TableContext, section: CommitSection, target: Instant
) -> RollbackDecision | None:
    """Return how the target ended meanwhile, if it did; repeat the deletes of an aborted one."""
    time = target.requested_time
    for number in range(section.head, 0, -1):
        slot = context.commit_log.read(number)
        if slot is not None and context.commit_log.is_of_another(slot):
            continue  # SLOT-8: the times of another table
        if slot is None or slot.completion_time < time:
            break  # every slot of the target was taken after its begin: times ascend
        if time in restored_away_by(slot):
            break  # its commit slot, if it has one, is below and no longer counts (RST-1)
        if slot.requested_time != time:
            continue
        if slot.kind is SlotKind.VOID:
            break  # its commit slot right below is void (FOR-4)
        if slot.kind is SlotKind.COMMIT:
            restore_completed_file(context, section, slot)
            return RollbackDecision(target=time, slot=None, why="it was committed")
        if slot.kind is SlotKind.ABORT:
            apply(context, slot)  # RB-5: repeat the deletes
            return RollbackDecision(target=time, slot=slot, why="another process rolled it back")
    now = section.timeline.find(time, target.action, target.action.completes_as)
    if now is None or now.completed:
        return RollbackDecision(target=time, slot=None, why="it is no longer pending")
    if time in context.archived_timeline.times().completions:
        # RB-7: a late request created a pending file after archiving; the data is the commit's.
        for name in pending_file_names(target.action, time):
            context.ports.storage.delete(context.instant_path(name))
        return RollbackDecision(target=time, slot=None, why="it is committed and archived")
    return None


def restore_completed_file(context: TableContext, section: CommitSection, commit: Slot) -> None:
    """
    Create the completed file of an older commit again, if it was deleted by mistake (RB-3).

    The refresh applies only the newest slots (PUB-3). Nothing happens if another engine removes the
    commit, or if it decides with its file whether the slot counts (FOR-4).
    """
    timeline = section.timeline
    if not may_overlap(commit) or is_applied(commit, timeline, context.archived_timeline):
        return
    restored = any(one.action is Action.RESTORE for one in timeline.pending)
    if restored or pending_rollback_of(context, timeline, commit.requested_time) is not None:
        return
    try_apply(context, commit)
    revert_if_restored(context, commit, section.lease)
    context.ports.events.emit("publish.helped", number=commit.number)


def _abort_slot(
    context: TableContext,
    section: CommitSection,
    target: InstantInfo,
    nonce: str,
    *,
    left: Instant | None,
) -> Slot:
    """Return the slot that ends a target; it adopts the abandoned rollback ``left`` if given."""
    storage = context.ports.storage
    files = data_files_of(storage, target.requested_time)
    if left is None:
        above = target.requested_time
        own_time = section.draw_time(context, Residue.SLOT_REQUESTED, above=above)
        plan = encode_rollback_plan(rollback_plan(storage, target, files))
    else:
        own_time, plan = left.requested_time, requested_plan_bytes(context, left)
    return section.next_slot(
        context,
        SlotKind.ABORT,
        Action(target.action),
        target.requested_time,
        nonce=nonce,
        own_requested_time=own_time,
        body=encode_rollback(rollback_metadata(storage, target, files, own_time=own_time)),
        plan=plan,
    )


def rollback_dead_writers(
    context: TableContext, timeline: ActiveTimeline | None = None
) -> list[RollbackDecision]:
    """
    Roll back every pending write whose heartbeat is missing or too old, newest first.

    The timeline is read before the heartbeats. A writer that committed in between has no heartbeat
    any more, and the refresh before the abort then finds it completed (hole 8, M11). Abandoned
    rollbacks of another engine that lack only their last steps are completed.
    """
    timeline = timeline or context.active()
    pending = timeline.pending_ingestion
    times = tuple(instant.requested_time for instant in pending)
    dead = set(
        instants_with_expired_heartbeat(context.ports.storage, times, context.limits.heartbeat)
    )
    done = [
        rollback(context, instant)
        for instant in reversed(pending)
        if instant.requested_time in dead
    ]
    left = [one for one in timeline.pending if one.action is Action.ROLLBACK]
    done.extend(filter(None, (finish_abandoned(context, timeline, one) for one in left)))
    return done


def finish_abandoned(
    context: TableContext, timeline: ActiveTimeline, left: Instant
) -> RollbackDecision | None:
    """
    End an abandoned rollback of another engine that has no pending target any more.

    If its target is off the timeline, its last steps are done. If the target completed meanwhile,
    the rollback is removed. In other cases nothing is done. Outside: 1 stat, 1 list; if it was
    abandoned also 2 gets, 1 commit section, the listing of the target, the deletes, 2 creates.
    """
    if not is_abandoned(context, left):
        return None
    if not completed_before_rollback(context, timeline, left) and not vanished_target(
        context, timeline, left
    ):
        return None
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, f"finish rollback {left.requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            now = section.timeline.find(left.requested_time, Action.ROLLBACK)
            if now is None or now.completed:
                return None
            if completed_before_rollback(context, section.timeline, now):
                target = now.requested_time
                why = "another engine began to roll it back, but it has completed since"
                names = pending_file_names(Action.ROLLBACK, now.requested_time)
                slot = section.next_slot(
                    context,
                    SlotKind.NOOP,
                    Action.ROLLBACK,
                    now.requested_time,
                    nonce=nonce,
                    deletes=tuple(timeline_path(name) for name in names),
                )
            else:
                vanished = vanished_target(context, section.timeline, now)
                if vanished is None:
                    return None
                target, why = vanished, "another engine began to roll it back"
                info = InstantInfo(requested_time=target, action=Action.COMMIT.value)
                slot = _abort_slot(context, section, info, nonce, left=now)
            commit.take(section, slot)
    ended = RollbackDecision(target=target, slot=commit.taken, why=why)
    context.ports.events.emit("rollback.finished", rt=left.requested_time, why=ended.why)
    return ended


def discard_attempt(context: TableContext, started: StartedWrite) -> None:
    """
    Delete an own failed write, if no request for its slot has an unknown outcome (RB-9).

    Data files are deleted first, the requested file last. A crash in between leaves a pending
    instant. A writer that then draws the same time faces no further delete of ours. Outside: the
    target's listing and deletes.

    Raises:
        OutcomeUnknownError: A commit slot of the instant was requested and not seen as lost, so it
            may exist: nothing was deleted (UNK-3).
    """
    storage = context.ports.storage
    if context.commit_log.may_have_committed(started.requested_time):
        started.heartbeat.stop()
        raise OutcomeUnknownError(
            "an error occurred after the commit of the rollback. Run 'hoodoo explain TABLE "
            f"{started.requested_time} --resolve' before you repeat it",
            requested_time=started.requested_time,
        )
    try:
        if context.commit_log.has_created_files:
            with suppress(TableReplacedError):  # the error that ends the write reports it
                context.commit_log.assert_same_table()  # or deletes its files there (SLOT-10)
        files = data_files_of(storage, started.requested_time)
        for path in files:
            storage.delete(path)
        delete_from_metadata_table(storage, started.requested_time)
        delete_markers(storage, started.requested_time)
    except StorageUnavailableError:
        started.heartbeat.stop(remove=False)  # others must see that no process works on it any more
        raise
    started.heartbeat.stop()
    for name in pending_file_names(started.action, started.requested_time):
        storage.delete(timeline_path(name))
    delete_hiding_metadata(context, {path.rpartition("/")[0] for path in files})
    context.ports.events.emit("write.abandoned", rt=started.requested_time)


# --- Recognise abandoned rollbacks: planned by another engine, not completed, with no live process
#
# Java Hudi plans a rollback under the lock and deletes without it. A later process finds the plan and
# executes it. This engine does so too, once the instant seems abandoned: a pending rollback would
# block savepoints, restores and Java's own cleaning.

_TIME = re.compile(r"\d{17}|\d{14}", re.ASCII)


def is_abandoned(context: TableContext, instant: Instant) -> bool:
    """
    Return whether a pending service instant of another engine seems abandoned.

    Its requested file is older than the tolerated interval of heartbeats, and its heartbeat is not
    fresh. Few releases write a heartbeat for a rollback. Outside: 1 stat, 1 list.
    """
    storage, limits = context.ports.storage, context.limits.heartbeat
    age_ms = requested_age_ms(context, instant)
    if age_ms is None or age_ms <= limits.tolerated_ms:
        return False
    return bool(instants_with_expired_heartbeat(storage, (instant.requested_time,), limits))


def requested_age_ms(context: TableContext, instant: Instant) -> int | None:
    """Return the age of the requested file in ms; None without such a file. Outside: 1 stat."""
    storage = context.ports.storage
    stat = storage.stat(_requested_path(instant))
    return None if stat is None else storage.now_ms() - stat.modified_ms


def requested_plan_bytes(context: TableContext, instant: Instant) -> bytes:
    """Return the plan that its owner requested. Outside: 1 get."""
    try:
        return context.ports.storage.read(_requested_path(instant))
    except ObjectMissingError as error:
        raise CorruptTableError(
            "the plan of a pending instant is missing. Run the command again; if the error "
            "returns, restore the requested file from a backup and run 'hoodoo table verify TABLE': "
            f"{instant}",
            kind="no_plan",
            requested_time=instant.requested_time,
        ) from error


def vanished_target(
    context: TableContext, timeline: ActiveTimeline, instant: Instant
) -> InstantTime | None:
    """
    Return the write that a rollback removed from the timeline before its owner died, else None.

    Returns None also if the plan cannot be trusted: it is damaged, or files with the time it names
    may belong to an archived commit (SEC2). Outside: 1 get; the listing of its files and the
    archived timeline's times if it is older than the timeline.
    """
    try:
        target = rollback_target(context, instant)
    except CorruptTableError:
        return None
    if target is None or not _TIME.fullmatch(target):
        return None
    if any(
        one.action in WRITE_ACTIONS and one.requested_time == target for one in timeline.instants
    ):
        return None
    if timeline.first_write_time is None or target < timeline.first_write_time:
        archived = context.archived_timeline.times()
        if not archived.rules_out(target) and data_files_of(context.ports.storage, target):
            return None
    return target


def completed_before_rollback(
    context: TableContext, timeline: ActiveTimeline, instant: Instant
) -> bool:
    """
    Return whether the target of a rollback completed after the rollback was requested.

    This happens if an attempt to execute a plan was to be rolled back and another attempt completed
    the plan. Executing the rollback now could only do harm. Outside: 1 get, and the archived
    timeline's times.
    """
    try:
        target = rollback_target(context, instant)
    except CorruptTableError:
        return False
    for one in timeline.completed_writes:
        if one.requested_time == target:
            return (one.completion_time or "") > instant.requested_time
    return (
        context.archived_timeline.times().completions.get(target or "", "") > instant.requested_time
    )


def _requested_path(instant: Instant) -> str:
    return timeline_path(pending_file_names(instant.action, instant.requested_time)[-1])

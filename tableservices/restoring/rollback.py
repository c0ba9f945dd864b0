"""
Roll back one named instant: a pending write, or the newest completed one.

A pending write ends by an abort slot, like that of a dead writer. A completed one ends by a restore
to the write before it, which must not remove any other instant. So later instants are rolled back
first, and an instant with a savepoint is kept, as in Java Hudi. The timeline records a rollback
instant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from filegroups.supported import load_writable
from tableservices.restoring.metadata_removal import MetadataRemoval
from tableservices.restoring.restore import refuse_live_writers
from tableservices.restoring.state_at import (
    completed_write,
    refuse_cleaned,
    refuse_during_foreign_service,
    refuse_old_logs,
    refuse_savepointed,
    savepoint_times,
)
from timeline.codecs.instant_avro import encode_rollback, encode_rollback_plan
from timeline.commit.apply import data_files_of
from timeline.commit.section import open_commit
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.plans import InstantInfo
from timeline.model.slot import Slot, SlotKind
from timeline.model.time_arguments import instant_not_found
from timeline.pending_plans import pending_rollback_of
from timeline.rollback.rollback import (
    is_abandoned,
    requested_plan_bytes,
    rollback_metadata,
    rollback_plan,
)
from timeline.rollback.rollback import rollback as undo
from timeline.snapshot import ActiveTimeline, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRollback:
    """The instant and files that a rollback removes."""

    target: Instant
    files: tuple[str, ...]  # its data files, relative to the table


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """The result for the instant; without own times it is unchanged."""

    target: InstantTime
    requested_time: InstantTime | None
    completion_time: InstantTime | None
    files: tuple[str, ...]
    why: str

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.target}: {self.why}"


def plan_rollback(
    context: TableContext, requested_time: InstantTime, *, force: bool = False
) -> PlannedRollback:
    """
    Return what ``rollback_write`` would remove; change nothing. Arguments, errors: as there.

    Outside: 1 get (properties), 1 list of heartbeats or 1 get after a clean, 1 list a partition.
    """
    load_writable(context)
    snapshot = context.snapshot()
    target = _target(snapshot.active, requested_time)
    if target.completed:
        _refuse_needed(context, snapshot, target)
    elif not force:
        refuse_live_writers(context, [target])
    files = data_files_of(context.ports.storage, requested_time)
    return PlannedRollback(target=target, files=tuple(files))


def rollback_write(
    context: TableContext, requested_time: InstantTime, *, force: bool = False
) -> RollbackResult:
    """
    Roll back one write for good.

    Outside: as ``plan_rollback``; 1 commit section (lock, list, create), the deletes, 3 creates.

    Args:
        context: The table.
        requested_time: The write's: pending, or the newest completed one.
        force: Also while the writer of a pending one is alive.

    Raises:
        InstantNotFoundError: No such write, or files of the state before it were cleaned.
        InvalidInputError: Its writer is alive, a savepoint keeps it, later writes or plans may
            depend on it, or its logs are of version 6.
        MetadataTableOnError: The metadata table has a partition that is not maintained (MDT-6).
        UnsupportedTableError: This release does not write the table.
        ServiceConflictError: Another engine's clean, rollback or restore is pending.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``commit_write``; the next commit section finishes a rollback whose slot was taken.
    """
    planned = plan_rollback(context, requested_time, force=force)
    if not planned.target.completed:
        done = undo(context, planned.target)
        return RollbackResult(
            target=requested_time,
            requested_time=done.slot.instant_time if done.slot else None,
            completion_time=done.slot.completion_time if done.slot else None,
            files=planned.files if done.slot else (),
            why=done.why,
        )
    slot = _take(context, planned)
    context.ports.events.emit("rollback.done", target=requested_time)
    return RollbackResult(
        target=requested_time,
        requested_time=slot.instant_time,
        completion_time=slot.completion_time,
        files=planned.files,
        why="rolled back",
    )


def _target(timeline: ActiveTimeline, requested_time: InstantTime) -> Instant:
    writes = (*timeline.pending_ingestion, *timeline.completed_writes)
    for one in writes:
        if one.requested_time == requested_time:
            return one
    pending = ", ".join(one.requested_time for one in timeline.pending_ingestion)
    raise instant_not_found(
        "the timeline has no completed or pending write with this instant; pending: "
        f"{pending or 'none'}",
        requested_time,
        [one.requested_time for one in writes],
        kind="no_such_write",
    )


def _refuse_needed(context: TableContext, snapshot: Snapshot, target: Instant) -> None:
    """Pass when no instant depends on a completed write, and the state before is whole."""
    timeline = snapshot.active
    refuse_savepointed(savepoint_times(timeline), frozenset({target.requested_time}))
    refuse_old_logs(context, [target])
    others = [one for one in timeline.instants if one.action in WRITE_ACTIONS and one != target]
    later = [
        one
        for one in others
        if not one.completed
        or one.requested_time > target.requested_time
        or (one.completion_time or "") > (target.completion_time or "")
    ]
    if later:
        raise InvalidInputError(
            "later or pending writes may depend on it: roll those back first, or restore to an "
            f"instant before it: {target.requested_time}, later is {later[-1]}",
            kind="later_instants",
            requested_time=target.requested_time,
            later=[str(one) for one in later],
        )
    if others:
        before = max(others, key=lambda one: one.completion_time or "")
        if before.requested_time not in savepoint_times(timeline):
            refuse_cleaned(context, snapshot, before)
    elif context.archived_timeline.instants():
        raise InvalidInputError(
            "this is the last write that is not archived, and readers need it to know which "
            "files before it are committed. Keep it, and delete its rows with 'hoodoo write TABLE "
            f"--operation delete --filter TEXT': {target.requested_time}",
            kind="last_active_write",
            requested_time=target.requested_time,
        )


def _take(context: TableContext, planned: PlannedRollback) -> Slot:
    storage = context.ports.storage
    nonce = context.ports.ids.nonce()
    target, files = planned.target, planned.files
    info = InstantInfo(requested_time=target.requested_time, action=target.action.value)
    in_metadata_table = MetadataRemoval(context, [target.requested_time])
    in_metadata_table.prepare(context.snapshot())

    commit = open_commit(context, f"roll back {target.requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            left = pending_rollback_of(context, section.timeline, target.requested_time)
            if left is not None and not is_abandoned(context, left):
                left = None  # its engine may work on it, so it is refused below
            refuse_during_foreign_service(section.timeline, taken_over=left)
            now = Snapshot(active=section.timeline, head=section.head, commits=context.commits)
            _refuse_needed(context, now, completed_write(section.timeline, target.requested_time))
            if left is None:
                own_time = section.draw_time(context, Residue.SLOT_REQUESTED)
                plan = encode_rollback_plan(rollback_plan(storage, info, files))
            else:
                own_time, plan = left.requested_time, requested_plan_bytes(context, left)
            slot = section.next_slot(
                context,
                SlotKind.RESTORE,
                Action.ROLLBACK,
                target.requested_time,
                nonce=nonce,
                own_requested_time=own_time,
                body=encode_rollback(rollback_metadata(storage, info, files, own_time=own_time)),
                plan=plan,
            )
            update = in_metadata_table.of(now, section.config(), own_time)
            commit.take(section, replace(slot, metadata_update=update))
    return commit.taken

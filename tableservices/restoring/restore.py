"""
Restore: return the table to its state when an instant completed (RST-1).

The slot is taken first and holds the whole decision. From then on, writes that began before are
rejected, and a write that begins finishes the restore or waits. The next commit section of any
process repeats what a crash left undone. Which instants are removed follows Java Hudi
(``state_at``), and so does the restore's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from filegroups.supported import load_writable
from tableservices.restoring.metadata_removal import MetadataRemoval
from tableservices.restoring.state_at import (
    completed_write,
    instants_after,
    refuse_archived_since,
    refuse_cleaned,
    refuse_during_archiving,
    refuse_during_foreign_service,
    refuse_old_logs,
    refuse_savepointed,
    savepoint_times,
)
from timeline.codecs.instant_avro import (
    decode_restore_plan,
    encode_restore,
    encode_restore_plan,
)
from timeline.commit.apply import data_files_of
from timeline.commit.section import open_commit
from timeline.context import TableContext
from timeline.errors import (
    BudgetSpentError,
    CorruptTableError,
    InvalidInputError,
    OutcomeUnknownError,
    StorageUnavailableError,
    counted,
)
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.file_names import (
    data_file_time,
    instant_file_name,
    pending_file_names,
    timeline_path,
)
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.plans import InstantInfo, RestoreMetadata, RestorePlan
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import AmbiguousWriteError, ObjectMissingError
from timeline.rollback.rollback import rollback_metadata
from timeline.snapshot import Snapshot

_TRIES = 3
_LEFT = frozenset({Action.ROLLBACK})
_TIME = re.compile(r"\d{14}|\d{17}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRestore:
    """The instants and files that a restore removes."""

    target: Instant
    instants: tuple[Instant, ...]  # newest first
    files: tuple[str, ...]  # their data files, relative to the table


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The result of a restore; times are instant times."""

    requested_time: InstantTime
    completion_time: InstantTime
    restored_to: InstantTime
    instants: tuple[InstantTime, ...]  # removed, newest first
    files: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"restored to {self.restored_to}: removed {counted(len(self.instants), 'instant')} and "
            f"{counted(len(self.files), 'file')}"
        )


def plan_restore(
    context: TableContext, requested_time: InstantTime, *, force: bool = False
) -> PlannedRestore:
    """
    Return what ``restore`` would remove; change nothing. Arguments and errors: as there.

    Outside: 1 get (properties), 1 get after a clean, 1 list of heartbeats, 1 list a partition.
    """
    load_writable(context)
    snapshot = context.snapshot()
    target = completed_write(snapshot.active, requested_time)
    refuse_archived_since(context, target)
    instants = _gone(context, snapshot, target, force=force)
    times = tuple(one.requested_time for one in instants)
    return PlannedRestore(
        target=target,
        instants=instants,
        files=tuple(data_files_of(context.ports.storage, *times)),
    )


def _gone(
    context: TableContext, snapshot: Snapshot, target: Instant, *, force: bool
) -> tuple[Instant, ...]:
    timeline = snapshot.active
    held = savepoint_times(timeline)
    if target.requested_time not in held:
        refuse_cleaned(context, snapshot, target)
    instants = instants_after(timeline, target, context.config.table_type)
    refuse_savepointed(held, frozenset(one.requested_time for one in instants))
    refuse_during_archiving(context, timeline, (target, *instants))
    refuse_old_logs(context, instants)
    if not force:
        refuse_live_writers(context, instants)
    return instants


def refuse_live_writers(context: TableContext, instants: Sequence[Instant]) -> None:
    """
    Pass when no live writer seems to own a pending one of these instants. Outside: 1 list.

    Raises:
        InvalidInputError: A heartbeat is fresh.
    """
    pending = tuple(one.requested_time for one in instants if not one.completed)
    dead = instants_with_expired_heartbeat(context.ports.storage, pending, context.limits.heartbeat)
    alive = sorted(set(pending) - set(dead))
    if alive:
        raise InvalidInputError(
            "the heartbeat of its writer is fresh: end the writer and wait, or use --force if "
            f"its process has ended: {', '.join(alive)}",
            kind="writer_alive",
            requested_time=alive[0],
            alive=alive,
        )


def restore(
    context: TableContext, requested_time: InstantTime, *, force: bool = False
) -> RestoreResult | None:
    """
    Remove every instant after a write: reads then return the rows as of its completion.

    Outside: as ``plan_restore``; 1 commit section (lock, list, create), the deletes, 3 creates.

    Args:
        context: The table.
        requested_time: The write's. If it has a savepoint, its files certainly exist.
        force: Also while writers of removed instants are alive; their commits are then rejected.
            And while another engine's rollback is pending, which is removed too.

    Returns:
        None when there is no instant after that write.

    Raises:
        InstantNotFoundError: No such write on the active timeline, or files of that state were
            cleaned.
        InvalidInputError: A later savepoint keeps an instant to remove, a writer is alive, later
            writes are archived or being archived, or their logs are of version 6.
        MetadataTableOnError: The metadata table has a partition that is not maintained (MDT-6).
        UnsupportedTableError: This release does not write the table.
        ServiceConflictError: Another engine's clean, rollback or restore is pending.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``commit_write``; the next begin
            or commit section of any process finishes a restore whose slot was taken.
        BudgetSpentError: Other writers committed during every attempt.
    """
    nonce = context.ports.ids.nonce()
    for _ in range(_TRIES):
        planned = plan_restore(context, requested_time, force=force)
        if not planned.instants:
            return None
        slot = _take(context, planned, nonce, force=force)
        if slot is None:
            continue
        context.ports.events.emit(
            "restore.done", target=requested_time, instants=len(planned.instants)
        )
        return RestoreResult(
            requested_time=slot.instant_time,
            completion_time=slot.completion_time,
            restored_to=requested_time,
            instants=tuple(one.requested_time for one in planned.instants),
            files=planned.files,
        )
    raise BudgetSpentError(
        "other writers committed during every attempt: stop the writers, then restore again: "
        f"{_TRIES} attempts",
        attempts=_TRIES,
    )


def _take(
    context: TableContext, planned: PlannedRestore, nonce: str, *, force: bool
) -> Slot | None:
    """Take the restore's slot; None when there was a commit after the plan was made."""
    infos = tuple(
        InstantInfo(requested_time=one.requested_time, action=one.action.value)
        for one in planned.instants
    )
    in_metadata_table = MetadataRemoval(context, [one.requested_time for one in infos])
    in_metadata_table.prepare(context.snapshot())
    plan = encode_restore_plan(
        RestorePlan(
            instants_to_rollback=infos,
            savepoint_to_restore_timestamp=planned.target.requested_time,
        )
    )

    expected = context.has_foreign_writers
    shown: Instant | None = None
    commit = open_commit(context, f"restore to {planned.target.requested_time}")
    try:
        while not commit.is_decided():
            with commit.section() as section:
                # An abandoned rollback is removed with the instant that it was to end.
                spared = _LEFT if force else frozenset[Action]()
                refuse_during_foreign_service(section.timeline, but=spared, taken_over=shown)
                target = completed_write(section.timeline, planned.target.requested_time)
                now = Snapshot(active=section.timeline, head=section.head, commits=context.commits)
                if _gone(context, now, target, force=force) != planned.instants:
                    return None
                if shown is None:
                    own_time = section.draw_time(context, Residue.SLOT_REQUESTED)
                else:
                    own_time = shown.requested_time
                update = in_metadata_table.of(now, section.config(), own_time)
                if expected and shown is None:
                    shown = Instant(
                        action=Action.RESTORE, requested_time=own_time, state=State.REQUESTED
                    )
                    _show(context, shown, plan)
                slot = section.next_slot(
                    context,
                    SlotKind.RESTORE,
                    Action.RESTORE,
                    target.requested_time,
                    nonce=nonce,
                    own_requested_time=own_time,
                    body=encode_restore(_result(context, infos, planned.files, own_time)),
                    plan=plan,
                )
                commit.take(section, replace(slot, metadata_update=update))
    except OutcomeUnknownError:
        shown = None  # it may be committed
        raise
    finally:
        if commit.slot is None and shown is not None:
            context.ports.storage.delete(timeline_path(instant_file_name(shown)))
    return commit.taken


def _show(context: TableContext, restoring: Instant, plan: bytes) -> None:
    """
    Create the restore's requested file before its slot, for other engines (FOR-4).

    Outside: 1 create. Java Hudi begins no write while a restore is pending. If the file were
    created after the slot, a crash in between would let Java write on top of removed instants.
    After a crash before the slot, any process finishes the restore from its plan
    (``finish_restore``).
    """
    path = timeline_path(instant_file_name(restoring))
    try:
        context.ports.storage.create(path, plan)
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; restore again: {path}", path=path
        ) from error


def finish_restore(context: TableContext) -> RestoreResult | None:
    """
    Execute a restore that another engine planned and left; that engine must have ended.

    Its plan names the files and instants to remove. Outside: 1 commit section (lock, list, get,
    1 list a partition, create), the deletes, 1 create.

    Returns:
        None when no restore of another engine is pending.

    Raises:
        CorruptTableError: Its plan is missing, damaged, or has a value that is no instant time
            (SEC2).
        InvalidInputError: A savepoint keeps an instant to remove.
        ServiceConflictError: Another engine's clean is pending.
        MetadataTableOnError: The metadata table has records of removed writes in a partition that
            is not maintained (MDT-6).
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``commit_write``.
    """
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, "finish a restore")
    while not commit.is_decided():
        with commit.section() as section:
            left = [one for one in section.timeline.pending if one.action is Action.RESTORE]
            if not left:
                return None
            refuse_during_foreign_service(section.timeline, but=_LEFT | {Action.RESTORE})
            own_time = left[0].requested_time
            data, plan = _foreign_plan(context, own_time)
            times = [one.requested_time for one in plan.instants_to_rollback]
            refuse_savepointed(savepoint_times(section.timeline), frozenset(times))
            files = data_files_of(context.ports.storage, *times)
            restoring = section.next_slot(
                context,
                SlotKind.RESTORE,
                Action.RESTORE,
                plan.savepoint_to_restore_timestamp or own_time,
                nonce=nonce,
                own_requested_time=own_time,
                body=encode_restore(_result(context, plan.instants_to_rollback, files, own_time)),
                plan=data,
            )
            now = Snapshot(active=section.timeline, head=section.head, commits=context.commits)
            update = MetadataRemoval(context, times).of(now, section.config(), own_time)
            commit.take(section, replace(restoring, metadata_update=update))
    slot = commit.taken
    context.ports.events.emit("restore.done", target=slot.requested_time)
    return RestoreResult(
        requested_time=slot.instant_time,
        completion_time=slot.completion_time,
        restored_to=slot.requested_time,
        instants=tuple(one.requested_time for one in plan.instants_to_rollback),
        files=tuple(files),
    )


def _foreign_plan(context: TableContext, own_time: InstantTime) -> tuple[bytes, RestorePlan]:
    path = timeline_path(pending_file_names(Action.RESTORE, own_time)[-1])
    try:
        data = context.ports.storage.read(path)
    except ObjectMissingError:
        data = b""  # reported as damaged, like an empty one
    plan = decode_restore_plan(data, path=path)
    target = plan.savepoint_to_restore_timestamp
    times = [one.requested_time for one in plan.instants_to_rollback]
    for time in (*times, *([target] if target else ())):
        if not _TIME.fullmatch(time):
            raise CorruptTableError(
                "a plan of a restore names an entry that is not an instant. Nothing was changed: "
                f"restore the plan's file from a backup: {path}",
                kind="restore_plan",
                path=path,
            )
    return data, plan


def _result(
    context: TableContext,
    infos: Sequence[InstantInfo],
    files: Sequence[str],
    own_time: InstantTime,
) -> RestoreMetadata:
    of_instant = _by_time(files)
    return RestoreMetadata(
        start_restore_time=own_time,
        instants_to_rollback=tuple(one.requested_time for one in infos),
        hoodie_restore_metadata={
            one.requested_time: (
                rollback_metadata(
                    context.ports.storage,
                    one,
                    of_instant.get(one.requested_time, ()),
                    own_time=own_time,
                ),
            )
            for one in infos
        },
        restore_instant_info=tuple(infos),
    )


def _by_time(files: Sequence[str]) -> Mapping[InstantTime, list[str]]:
    found: dict[InstantTime, list[str]] = {}
    for path in files:
        time = data_file_time(path.rpartition("/")[2])
        if time is not None:
            found.setdefault(time, []).append(path)
    return found

"""
Commit a write: validate it against concurrent commits, then make it visible (PUB-1 to PUB-9).

All slow work is done before: data is durable, stray files are gone. The write is first validated
without the lock against all commits since its base snapshot. In the commit section only newer
commits are validated. Then the completion time is drawn above all others and the slot is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from timeline.codecs.instant_avro import CommitBody
from timeline.commit.begin import StartedWrite, refuse_during_restore
from timeline.commit.cancel_plan import cancel_blocking_plans
from timeline.commit.commit_lock import (
    BaseState,
    CommitSection,
    PendingCommit,
    TimelineState,
    WriteToCommit,
)
from timeline.commit.revalidate import without_void
from timeline.commit.section import open_commit, protocol_of
from timeline.commit.validate import validate_since, validate_unlocked
from timeline.context import TableContext
from timeline.errors import RolledBackError
from timeline.model.commit_metadata import ConcurrencyMode
from timeline.model.file_names import instant_file_name, pending_file_names
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.slot import Slot, SlotKind
from timeline.partitions import delete_hiding_metadata
from timeline.pending_plans import pending_rollback_of
from timeline.ports.ports import create_if_absent
from timeline.rules.conflicts import NoConflict, Rebase, Rejected
from timeline.snapshot import ActiveTimeline
from timeline.truncation import assert_slots_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedWrite:
    """A write that is committed and visible."""

    slot: Slot
    lost_slots: int

    @property
    def completion_time(self) -> InstantTime:
        """Return the completion time, which orders commits by visibility."""
        return self.slot.completion_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A conflict of a write with concurrent commits; ``seen`` includes the winner."""

    verdict: Rebase | Rejected
    base_state: BaseState


def commit_write(
    context: TableContext,
    started: StartedWrite,
    pending_commit: PendingCommit,
    seen: BaseState,
    state: TimelineState | None = None,
) -> CommittedWrite | Conflict:
    """
    Commit a started write, or return its conflict.

    The caller calls ``CommitProtocol.assert_same_table`` before it acknowledges the commit (SLOT-10),
    together with its other work. Outside, after the unlocked validation: lock, 1 list, 1 get, 2
    creates, unlock.

    Args:
        context: The table.
        started: The write.
        pending_commit: What to commit.
        seen: The base state of its content.
        state: The table state that was read when its wait in the waiting line ended.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).
        RolledBackError: Another process rolled the instant back (PUB-6).
        LockTimeoutError, LeaseLostError: The lock was not granted or was lost, or another engine's
            pending write did not become inflight in time (FOR-5).
        OutcomeUnknownError: The storage never answered the request for the slot.
        BudgetSpentError: Too many slots were lost to other writers.
    """
    outcome = _try_commit(context, started, pending_commit, seen, state)
    for _ in range(context.limits.retry.commit_attempts_max):
        plans = _blocking_plans(outcome)
        if not (plans and context.limits.cancels_conflicting_plans):
            break
        cancel_blocking_plans(context, plans)
        # Validate again from ``seen``: the rejection ended validation before other conflicts.
        outcome = _try_commit(context, started, pending_commit, seen)
    return outcome


def _blocking_plans(outcome: CommittedWrite | Conflict) -> tuple[Instant, ...]:
    """Return the plans without which validation would not have rejected the write."""
    if isinstance(outcome, Conflict) and isinstance(outcome.verdict, Rejected):
        return outcome.verdict.plans
    return ()


def _try_commit(
    context: TableContext,
    started: StartedWrite,
    pending_commit: PendingCommit,
    seen: BaseState,
    state: TimelineState | None = None,
) -> CommittedWrite | Conflict:
    started.heartbeat.check()
    if state is None and protocol_of(context).validates_first():
        verdict, seen = validate_unlocked(context, started, pending_commit, seen)
        if not isinstance(verdict, NoConflict):
            return Conflict(verdict=verdict, base_state=seen)
    known = context.commit_log.last_own or started.snapshot.head
    body, nonce = CommitBody(pending_commit.metadata), context.ports.ids.nonce()
    write = WriteToCommit(
        requested_time=started.requested_time,
        pending=pending_commit,
        base_head=seen.head,
        read=state,
    )
    commit = open_commit(context, f"commit {started.requested_time}", write)
    while not commit.is_decided():
        unread: tuple[InstantTime, ...] = ()
        with commit.section() as section:
            started.heartbeat.check()
            assert_slots_kept(context, started.requested_time)
            refuse_during_restore(section.timeline)
            _assert_still_pending(context, started, section.timeline)
            unread = section.unread
            if not unread:
                verdict, seen = validate_since(
                    context,
                    started,
                    pending_commit,
                    seen,
                    section.timeline,
                    head=section.head,
                    config=section.config,
                )
                if not isinstance(verdict, NoConflict):
                    return Conflict(verdict=verdict, base_state=seen)
                if pending_commit.schema_file is not None:  # under the lock: Java sweeps others
                    path, data = pending_commit.schema_file
                    create_if_absent(context.ports.storage, path, data, repeat="write again")
                slot = _slot_of(
                    context, started, pending_commit, seen, section, body=body, nonce=nonce
                )
                commit.take(section, slot)
        if unread:
            commit.wait_until_read(unread)
    slot = commit.taken
    mine = Instant(
        action=started.action.completes_as,
        requested_time=started.requested_time,
        state=State.COMPLETED,
        completion_time=slot.completion_time,
    )
    context.commits.cache(mine, body.metadata_with(slot.owner.fencing_token))
    context.timelines.add(instant_file_name(mine))
    context.low_water_mark.release(started.requested_time)
    _notice_second_writer(context, known, slot)
    if pending_commit.outer_folders:
        delete_hiding_metadata(context, pending_commit.outer_folders)
    return CommittedWrite(slot=slot, lost_slots=commit.lost)


def _slot_of(
    context: TableContext,
    started: StartedWrite,
    pending_commit: PendingCommit,
    seen: BaseState,
    section: CommitSection,
    *,
    body: CommitBody,
    nonce: str,
) -> Slot:
    """Return the write's slot, with a completion time above all others (PUB-7)."""
    return Slot(
        number=section.head + 1,
        table_id=context.table_id,
        kind=SlotKind.COMMIT,
        action=started.action,
        requested_time=started.requested_time,
        completion_time=section.draw_time(
            context, Residue.SLOT_COMPLETION, above=started.requested_time
        ),
        base=seen.head,
        nonce=nonce,
        owner=section.owner,
        write_set=pending_commit.write_set,
        schema_before=pending_commit.schema_before,
        schema_after=pending_commit.schema_after,
        batches=pending_commit.batches,
        body=body.bytes_with(section.owner.fencing_token),
        metadata_update=pending_commit.metadata_update,
    )


def _notice_second_writer(context: TableContext, known: int, mine: Slot) -> None:
    """
    Report commits of another process between this writer's slots (SGL-1).

    They mean that this writer is not the single writer, as its mode says. Nothing is lost, because
    every slot is validated (PUB-4), but the configuration is wrong (hole 13). Processes that
    complete plans do not count as writers.
    """
    if context.limits.mode is not ConcurrencyMode.SINGLE_WRITER:
        return
    for slot in without_void(context.commit_log.newest_first(mine.number - 1)):
        if slot.number <= known:
            break
        planned = slot.action.completes_as is not slot.action
        if slot.kind is not SlotKind.COMMIT or planned:
            continue
        if slot.owner.writer_id != mine.owner.writer_id:
            context.ports.events.emit(
                "writer.second_noticed",
                writer=slot.owner.text,
                number=slot.number,
                rt=slot.requested_time,
                advice="set hoodie.write.concurrency.mode on all writers of this table",
            )


def _assert_still_pending(
    context: TableContext, started: StartedWrite, timeline: ActiveTimeline
) -> None:
    """
    Raise if this instant was rolled back, or if another engine is about to do so (PUB-6).

    A rollback deletes the instant's pending files. Another engine plans its rollback under the lock
    and deletes later without it. Outside: 1 get per pending rollback.
    """
    missing = set(pending_file_names(started.action, started.requested_time)) - timeline.file_names
    is_planned = timeline.has_pending(Action.ROLLBACK) and pending_rollback_of(
        context, timeline, started.requested_time
    )
    if missing or is_planned:
        raise RolledBackError(
            "another process rolled this write back, because its heartbeat was expired; write "
            f"again: {started.requested_time}",
            requested_time=started.requested_time,
        )

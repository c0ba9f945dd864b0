"""
Resolve a write of unknown outcome: decide for good whether it is committed (UNK-3, UNK-4).

Any process may ask at any time: the writer that got ``OutcomeUnknownError``, another process, an
operator the next day. A slot of the instant means committed. Without a slot the outcome is open
until the commit log has grown past the requested number. A rollback's abort slot makes it grow and
ends the instant in the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from timeline.commit.apply import not_applied
from timeline.commit.section import apply_pending_slots, open_commit
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.model.time_arguments import instant_not_found
from timeline.rollback.rollback import restore_completed_file, rollback, rollback_records
from timeline.snapshot import ActiveTimeline

#: The newest slot of these kinds may be ended before any of its files is visible (FOR-9).
_ENDED_UNSHOWN = frozenset({SlotKind.PLAN, SlotKind.CLEAN})
#: These slots have a target or no instant at all; errors contain the slot's own time.
_WITHOUT_WRITE = frozenset({SlotKind.ABORT, SlotKind.RESTORE, SlotKind.TRUNCATE, SlotKind.METADATA})


class WriteOutcome(Enum):
    """The outcome of a write."""

    PUBLISHED = "published"  # its rows are in the table
    NOT_PUBLISHED = "not published"  # and never will be: write them again
    RUNNING = "running"  # its writer is still working: resolve it again later


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The answer for one write."""

    requested_time: InstantTime
    outcome: WriteOutcome
    completion_time: InstantTime | None
    why: str

    @property
    def text(self) -> str:
        """Return the resolution as one line of text."""
        return f"{self.requested_time}: {self.outcome.value}, {self.why}"


def resolve(context: TableContext, requested_time: InstantTime) -> Resolution:
    """
    Decide whether a write is committed; the two final outcomes never change.

    Both outlive the slots: a committed instant is archived, and so is the rollback of one that is
    not. A slot that is not applied yet is applied. A pending write without a live heartbeat is
    rolled back. A savepoint has the requested time of its write, so the answer also contains
    whether it exists.

    Outside: 1 list and the slots that were not read before; as ``rollback`` if it is pending; the
    archived timeline if no other trace is left.

    Args:
        context: The table.
        requested_time: The write's; ``OutcomeUnknownError.requested_time``.

    Raises:
        InstantNotFoundError: No trace is left, so the outcome cannot be known. This happens once
            the slots are archived, for a cancelled plan and for a write whose rollback a restore
            removed.
        CorruptTableError: A rollback or restore that may contain the answer is damaged.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As ``rollback``;
            nothing was decided, resolve it again.

    Spec: UNK-3, UNK-4, RB-3, FOR-9.
    """
    saved = _of_a_savepoint(context, requested_time)
    resolution = _resolved(context, requested_time)
    return replace(resolution, why=f"{resolution.why}; {saved}") if saved else resolution


def _of_a_savepoint(context: TableContext, requested_time: InstantTime) -> str:
    """Return whether the write has its savepoint, as text; empty if no slot made one."""
    for slot in context.commit_log.newest_first():
        if context.commit_log.is_of_another(slot):
            continue
        if slot.newest_time < requested_time:
            break
        if slot.kind is SlotKind.SAVEPOINT and slot.requested_time == requested_time:
            _apply_last(context, slot)
            kept = context.active().find(requested_time, Action.SAVEPOINT)
            return "it has a savepoint" if kept is not None else "it has no savepoint"
    return ""


def _resolved(context: TableContext, requested_time: InstantTime) -> Resolution:
    by_slot = _from_commit_log(context, requested_time)
    if by_slot is not None:
        return by_slot
    known_head = context.commit_log.known_head
    active = context.active()
    instant = next((one for one in active.instants if one.requested_time == requested_time), None)
    if instant is not None and instant.completed:
        return _published(instant.requested_time, instant.completion_time, "it is completed")
    if instant is not None:
        return _decided(context, instant)
    for row in context.archived_timeline.instants():
        if row.requested_time == requested_time:
            return _published(requested_time, row.completion_time, "it is archived")
    undone = _undone(context, active, requested_time)
    if undone is not None:
        return undone
    if (
        context.commit_log.head() > known_head
    ):  # a slot may have ended it since, without any file yet
        return _resolved(context, requested_time)
    raise instant_not_found(
        "the table has no trace of this write: no instant, no archived instant and no rollback. "
        "Check the instant, and that it belongs to this table",
        requested_time,
        [one.requested_time for one in active.instants],
        kind="instant_unknown",
    )


def _from_commit_log(context: TableContext, requested_time: InstantTime) -> Resolution | None:
    """
    Return the outcome in the newest slot about it.

    Times ascend, so the search ends at the first slot with smaller times.
    """
    for slot in context.commit_log.newest_first():
        if context.commit_log.is_of_another(slot):
            continue  # SLOT-8: the times of another table
        if slot.newest_time < requested_time:
            return None
        if requested_time in restored_away_by(slot):
            return _not_published(
                requested_time, f"{slot.owner.text} restored the table to an earlier instant"
            )
        if slot.kind in _WITHOUT_WRITE and slot.instant_time == requested_time:
            return _after_upkeep(context, slot)
        if slot.requested_time != requested_time:
            continue
        if slot.kind in _ENDED_UNSHOWN and _apply_last(context, slot):
            return _from_commit_log(context, requested_time)  # it may be ended now
        if slot.kind is SlotKind.VOID:
            return _after_void(context, slot)
        if slot.kind is SlotKind.COMMIT:
            return _after_commit(context, slot)
        if slot.kind is SlotKind.ABORT:
            _apply_last(context, slot)
            return _not_published(requested_time, f"{slot.owner.text} rolled it back")
        if slot.kind is SlotKind.CANCEL:
            return _not_published(requested_time, f"{slot.owner.text} cancelled it")
    return None


def _after_upkeep(context: TableContext, slot: Slot) -> Resolution | None:
    """Apply a rollback or restore, so that the timeline shows it; the others have no file there."""
    if slot.kind in (SlotKind.TRUNCATE, SlotKind.METADATA):
        rest = (
            "the next archiving deletes the remaining files"
            if slot.kind is SlotKind.TRUNCATE
            else "the next service of the metadata table completes it or plans again"
        )
        why = f"as number {slot.number} of this table; {rest}"
        return _published(slot.instant_time, slot.completion_time, why)
    _apply_last(context, slot)
    return None


def _after_commit(context: TableContext, commit: Slot) -> Resolution | None:
    time = commit.requested_time
    if _apply_last(context, commit):
        return _from_commit_log(context, time)  # it may be void now
    pending = context.active().find(time)
    if pending is not None and not pending.completed:
        with open_commit(context, f"resolve {time}").section() as section:
            restore_completed_file(context, section, commit)
    why = f"as number {commit.number} of this table"
    published = _published(time, commit.completion_time, why)
    return _taken_away_without_slot(context, time) or published


def _taken_away_without_slot(context: TableContext, time: InstantTime) -> Resolution | None:
    """Return the outcome if another engine removed a committed write without a slot (RST-3)."""
    active = context.active()
    if active.find(time) is not None or time in context.archived_timeline.times().completions:
        return None
    return _undone(context, active, time)


def _undone(context: TableContext, active: ActiveTimeline, time: InstantTime) -> Resolution | None:
    """Return the outcome in rollbacks and restores, of a write that is on neither timeline."""
    for one in rollback_records(
        context, active, context.archived_timeline.instants(times_only=False)
    ):
        if time in one.targets:
            why = f"the {one.action.value} {one.requested_time} removed it"
            return _not_published(time, why)
    return None


def _after_void(context: TableContext, void: Slot) -> Resolution | None:
    """Return the outcome of a void slot; while its instant exists, it may commit again (FOR-4)."""
    if context.active().find(void.requested_time) is not None:
        return None
    why = "another engine committed without it, because its writer had lost the lock"
    return _not_published(void.requested_time, why)


def _apply_last(context: TableContext, slot: Slot) -> bool:
    """
    Apply the slot in a commit section, if it is one of the last that may be pending (PUB-3).

    Returns whether that added another slot.
    """
    head = context.commit_log.known_head
    if slot != context.commit_log.newest_own_slot(head) and slot not in not_applied(
        context, head, context.active()
    ):
        return False
    apply_pending_slots(context, f"resolve {slot.instant_time}")
    return context.commit_log.known_head != head


def _decided(context: TableContext, pending: Instant) -> Resolution:
    time = pending.requested_time
    if pending not in context.active().pending_ingestion:
        return Resolution(
            requested_time=time,
            outcome=WriteOutcome.RUNNING,
            completion_time=None,
            why="it is a plan that no executor has completed yet",
        )
    if not instants_with_expired_heartbeat(
        context.ports.storage, (time,), context.limits.heartbeat
    ):
        return Resolution(
            requested_time=time,
            outcome=WriteOutcome.RUNNING,
            completion_time=None,
            why="the heartbeat of its writer is fresh",
        )
    ended = rollback(context, pending)
    by_slot = _from_commit_log(context, time)
    if by_slot is not None:
        return by_slot
    return Resolution(
        requested_time=time, outcome=WriteOutcome.RUNNING, completion_time=None, why=ended.why
    )


def _published(time: InstantTime, completion_time: InstantTime | None, why: str) -> Resolution:
    return Resolution(
        requested_time=time,
        outcome=WriteOutcome.PUBLISHED,
        completion_time=completion_time,
        why=why,
    )


def _not_published(time: InstantTime, why: str) -> Resolution:
    return Resolution(
        requested_time=time, outcome=WriteOutcome.NOT_PUBLISHED, completion_time=None, why=why
    )

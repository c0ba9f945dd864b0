"""Explain one instant of a table, also a rejected, rolled back or archived one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hoodoo.inspect.instants import (
    InstantSummary,
    archived_summaries,
    slots_by_instant,
    summarize,
    time_text,
)
from hoodoo.inspect.rejected_writes import RejectedWrite, rejected_writes
from timeline.commit.apply import not_applied
from timeline.commit.revalidate import without_void
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.errors import counted
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.model.time_arguments import TimeArgument, instant_not_found
from timeline.rollback.rollback import rollback_records
from timeline.snapshot import ActiveTimeline

_RETRIES_KEY = "hoodie.write.num.retries.on.conflict.failures"
_DEAD = (
    "its heartbeat has expired; the next clean rolls it back, or 'hoodoo explain --resolve' does "
    "it now"
)
_PUBLISHED = (
    "committed, as number {}; its completed file is missing, and the next writer or 'hoodoo "
    "explain --resolve' creates it; do not repeat the write"
)
_UNDECIDED = (
    "it has number {}, and its outcome is not decided yet; 'hoodoo explain --resolve' decides it"
)
_UNDONE = "rolled back by {who}, as instant {instant}; the next write deletes its remaining files"
_ROLLED_BACK = ("rolled back", "rolled back by {who} at {when}, as instant {instant}, {number}")
#: Kind of slot that leaves no file of an instant -> the state of the instant and its remark.
_ENDINGS: Mapping[SlotKind, tuple[str, str]] = {
    SlotKind.ABORT: _ROLLED_BACK,
    SlotKind.RESTORE: _ROLLED_BACK,
    SlotKind.TRUNCATE: (
        "decided",
        (
            "the truncation of an archiving, by {who} at {when}, {number}; the next archiving "
            "deletes the remaining files"
        ),
    ),
    SlotKind.METADATA: (
        "decided",
        (
            "a compaction of the metadata table, by {who} at {when}, {number}; it is not on the "
            "timeline of the table"
        ),
    ),
    SlotKind.CANCEL: ("cancelled", "cancelled by {who} at {when}, {number}"),
    SlotKind.VOID: (
        "void",
        (
            "its writer lost the lock before the completed file existed, and another engine "
            "committed without it: {who} marked it void at {when}, {number}"
        ),
    ),
}


def explain_instant(context: TableContext, requested_time: TimeArgument) -> InstantSummary:
    """
    Return the summary of one instant, also of a rejected, rolled back or archived one.

    Raises:
        InstantNotFoundError: No record of the instant remains.
        InvalidInputError: The argument is not a time.
        UnsafeSetupError: The table's slots are in another place than this process is set up for.
    """
    time = context.parse_instant(requested_time)
    return replace(_lines_of(context, time), zone=context.zone)


def _lines_of(context: TableContext, requested_time: InstantTime) -> InstantSummary:
    slots = slots_by_instant(context)
    active = context.active()
    for instant in active.instants:
        if requested_time in (instant.requested_time, instant.completion_time):
            found = summarize(context, instant, slots, in_full=True)
            if instant.completed:
                return found
            return replace(found, remarks=_pending_remarks(context, instant, active))
    archived = archived_summaries(context)
    for one in archived:
        if requested_time in (one.requested_time, one.completion_time):
            return one
    return _vanished(context, active, archived, requested_time)


def _vanished(
    context: TableContext,
    active: ActiveTimeline,
    archived: Sequence[InstantSummary],
    time: InstantTime,
) -> InstantSummary:
    """Return the summary of an instant without files, from slots, retries and rollbacks."""
    context.identity.assert_decided_here(context.ports)
    for slot in context.commit_log.newest_first():
        named = slot.requested_time == time and slot.kind is not SlotKind.RESTORE
        if slot.kind in _ENDINGS and (named or time in restored_away_by(slot)):
            state, template = _ENDINGS[slot.kind]
            remark = template.format(
                who=slot.owner.text,
                when=f"{time_text(slot.completion_time)} {context.zone.name}",
                instant=slot.instant_time,
                number=f"number {slot.number} of this table",
            )
            decided = slots_by_instant(context).get((time, False), slot)
            return _without_files(time, decided.action, state, remark)
    for slot in not_applied(context, context.commit_log.head(), active):
        if slot.instant_time == time and slot.file_name is not None:
            return _without_files(time, slot.own_action, "decided", _not_applied_remark(slot))
    written = (summarize(context, one, {}) for one in active.completed_writes)
    for summary in itertools.chain(written, archived):
        attempt = _rejected_first(summary, time)
        if attempt is not None:
            return attempt
    for one in rejected_writes(context):
        if one.has(time):
            return _rejected_write(one, time)
    for undoing in rollback_records(
        context, active, context.archived_timeline.instants(times_only=False)
    ):
        if time in undoing.targets:
            when = f"{time_text(undoing.completion_time)} {context.zone.name}"
            ended = f"rolled back at {when}, as instant "
            remark = ended + undoing.requested_time
            return _without_files(time, undoing.action, "rolled back", remark)
    raise instant_not_found(
        "the table has no trace of this instant: it is neither on the timeline nor archived, and "
        "no rollback or rejected write names it. Check the instant, and that it belongs to this "
        "table",
        time,
        {one.requested_time for one in active.instants} | {one.requested_time for one in archived},
        kind="instant_unknown",
    )


def _without_files(time: InstantTime, action: Action, state: str, remark: str) -> InstantSummary:
    return InstantSummary(
        requested_time=time,
        completion_time=None,
        action=action.value,
        state=state,
        archived=False,
        remarks=(remark,),
    )


def _rejected_first(write: InstantSummary, time: InstantTime) -> InstantSummary | None:
    """Return the rejected attempt of a committed write with this requested time, or None."""
    for refusal in write.refusals:
        if refusal.get("instant") == time:
            return _rejected_attempt(
                write, time, f"written again as {write.requested_time}", refusals=(refusal,)
            )
    return None


def _rejected_write(write: RejectedWrite, time: InstantTime) -> InstantSummary:
    """Return one attempt of a rejected write; the last attempt has all conflicts."""
    last = time == write.requested_time
    attempts = (
        write.attempts if last else [one for one in write.attempts if one.get("instant") == time]
    )
    remark = f"not committed after {counted(len(write.attempts), 'attempt')}"
    if write.attempts[-1].get("retry_can_succeed"):
        remark += f"; write again, or raise {_RETRIES_KEY} so that the engine retries by itself"
    return _rejected_attempt(
        write,
        time,
        remark if last else f"written again as {write.requested_time}, which was not committed",
        operation=write.operation,
        attempts=len(write.attempts),
        refusals=tuple(attempts),
    )


def _rejected_attempt(
    write: InstantSummary | RejectedWrite, time: InstantTime, remark: str, **more: Any
) -> InstantSummary:
    return InstantSummary(
        requested_time=time,
        completion_time=None,
        action=write.action,
        state="rejected",
        archived=False,
        writer=write.writer,
        host=write.host,
        pid=write.pid,
        application=write.application,
        remarks=(remark,),
        **more,
    )


def rejected_writes_of(context: TableContext) -> list[InstantSummary]:
    """Return the last attempt of each of the ``rejected_writes``."""
    return [_rejected_write(one, one.requested_time) for one in rejected_writes(context)]


def _pending_remarks(
    context: TableContext, instant: Instant, active: ActiveTimeline
) -> tuple[str, ...]:
    if instant not in active.pending_ingestion:
        return ("a plan that no executor has completed yet",)
    context.identity.assert_decided_here(context.ports)
    taken = _deciding(context, instant)
    if taken is not None and taken.kind is not SlotKind.COMMIT:
        return (_UNDONE.format(who=taken.owner.text, instant=taken.instant_time),)
    if taken is not None:
        return (_not_applied_remark(taken),)
    dead = instants_with_expired_heartbeat(
        context.ports.storage, (instant.requested_time,), context.limits.heartbeat
    )
    if dead:
        return (_DEAD,)
    return ("the heartbeat of its writer is fresh",)


def _not_applied_remark(slot: Slot) -> str:
    """Return the remark on a slot whose completed file is missing."""
    return (_UNDECIDED if slot.timeline_digest else _PUBLISHED).format(slot.number)


def _deciding(context: TableContext, instant: Instant) -> Slot | None:
    """Return the slot that committed or ended a pending write, regardless of its files."""
    time = instant.requested_time
    return next(
        (
            slot
            for slot in without_void(context.commit_log.newest_first())
            if time in restored_away_by(slot)
            or (slot.kind in (SlotKind.COMMIT, SlotKind.ABORT) and slot.requested_time == time)
        ),
        None,
    )

"""
Refresh the table state for a commit section: commit log, timeline, and apply what is pending.

It is a separate module, because upgrades, and begins in mode ``shared``, refresh without taking a
slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from timeline.active_timeline import ActiveTimeline
from timeline.commit.admission import TimelineState, WaitingLine, read_table
from timeline.commit.apply import (
    APPLIED_BY_A_FILE,
    is_applied,
    may_overlap,
    not_applied,
    revert_if_restored,
    try_apply,
)
from timeline.commit.revalidate import ENDED_BY, assert_lease, is_still_valid, may_apply
from timeline.context import TableContext
from timeline.errors import OutcomeUnknownError, StorageUnavailableError
from timeline.layout import timeline_path
from timeline.model.file_names import pending_file_names
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime, WallMs
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.model.table_config import TableConfig
from timeline.ports.lock import Lease, is_exclusive
from timeline.properties.setting_enums import ForeignWriters
from timeline.rules.instant_times import Residue, next_instant_time
from timeline.truncation import assert_not_truncated

__all__ = ["CommitSection", "refresh_and_apply", "revert_helped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSection:
    """The state of the table at the moment a slot may be taken."""

    head: int
    timeline: ActiveTimeline
    newest_time: InstantTime | None
    owner: SlotOwner
    before: str = ""  # digest of the head slot, empty when there is none
    unshown: Slot | None = None  # the head, if its file and the next slot are created together
    config: Callable[[], TableConfig]  # the table's properties, read once in this section

    def draw(self, context: TableContext, residue: Residue, *, above: InstantTime = "") -> str:
        """Draw a time above all others in this commit section (PUB-7)."""
        newest = max(self.newest_time or "", above) or None
        now = WallMs(context.world.clock.now_ms())
        return next_instant_time(
            now, newest, residue, limits=context.limits.skew, zone=context.zone
        )

    def slot(
        self,
        context: TableContext,
        kind: SlotKind,
        action: Action,
        requested_time: InstantTime,
        *,
        nonce: str,
        own_requested_time: InstantTime | None = None,
        base: int | None = None,
        body: bytes = b"",
        plan: bytes = b"",
        deletes: tuple[str, ...] = (),
        floor: InstantTime = "",
    ) -> Slot:
        """
        Return the next slot for a table service; its completion time is above all others (PUB-7).

        Arguments: as the fields of ``Slot``; ``base`` defaults to the head of this section.
        """
        above = own_requested_time or requested_time
        return Slot(
            number=self.head + 1,
            table_id=context.table_id,
            kind=kind,
            action=action,
            requested_time=requested_time,
            own_requested_time=own_requested_time,
            completion_time=self.draw(context, Residue.SLOT_COMPLETION, above=above),
            base=self.head if base is None else base,
            nonce=nonce,
            owner=self.owner,
            body=body,
            plan=plan,
            deletes=deletes,
            floor=floor,
        )

    def sealed(self, context: TableContext, slot: Slot) -> Slot:
        """Return the slot with hash link and signature, if this process signs slots (SLOT-7)."""
        return replace(slot, seal=context.limits.sealing.seal(self.before, slot.body))


def refresh_and_apply(
    context: TableContext,
    lease: Lease | None,
    *,
    line: WaitingLine | None = None,
    looked: TimelineState | None = None,
) -> CommitSection:
    """
    Read the commit log, then the timeline, and apply all slots up to the head (PUB-3).

    In mode ``shared``, a commit slot whose file is missing is applied if no foreign instant
    appeared since its owner's refresh; otherwise it becomes void (FOR-4). A plan or savepoint slot
    whose file is missing is ended there, and so is a clean that deleted nothing (FOR-9). For a
    write on a high-latency store (``line``) a commit at the head is left to the writer that takes
    the next slot. ``looked`` is a table state that was read a moment ago.

    Raises:
        LeaseLostError: The lock was lost before that could be decided.
        StorageUnavailableError: The storage failed while a slot was applied.
        HeartbeatExpiredError: As ``assert_not_truncated``.
    """
    while True:
        head, timeline, config = looked or read_table(
            context,
            asks_config=line is not None and line.asks_config,
            until_still=is_exclusive(lease),
        )
        looked = None
        assert_not_truncated(context)
        last = context.chain.deciding(head)
        gone = last is not None and _was_rolled_back(context, last, timeline)
        if last is None or (is_applied(last, timeline, context.history) and not gone):
            return _section(context, head, last, timeline, lease, config=config)
        context.world.events.emit("publish.helped", number=last.number)
        if not last.foreign:
            return _apply_pending_slots(context, head, timeline, line, lease, config=config)
        assert_lease(lease)
        turn = _section(context, head, last, timeline, lease, config=config)
        if last.kind in (SlotKind.PLAN, SlotKind.CLEAN) and _is_archived(context, last):
            return turn  # by a savepoint: the first write of the timeline is older
        may = None if gone else _apply_condition(context, last, timeline, lease)
        if may is not None:
            try_apply(context, last, may_show=may)
            # It may be void by now, and a later refresh applies only the newest slot.
            revert_helped(context, last, lease)
        else:
            _end(context, turn, last)


def _apply_pending_slots(
    context: TableContext,
    head: int,
    timeline: ActiveTimeline,
    line: WaitingLine | None,
    lease: Lease | None,
    *,
    config: Callable[[], TableConfig],
) -> CommitSection:
    """Apply pending slots in their order and return the state after them (HELP-1, PUB-3)."""
    left = not_applied(context, head, timeline)
    unshown = left[-1] if line is not None and line.overlaps and may_overlap(left[-1]) else None
    for slot in left:
        if slot is not unshown and (line is None or line.settled < slot.number):
            try_apply(context, slot)
            revert_helped(context, slot, lease)
    shown = _with_applied(context, left, timeline)
    turn = _section(context, head, left[-1], shown, lease, config=config)
    return replace(turn, unshown=unshown)


def revert_helped(context: TableContext, slot: Slot, lease: Lease | None) -> None:
    """
    Call ``revert_if_restored`` for a slot that a refresh found.

    On a high-latency store the refresh and the lock request overlap (PAR-1). A process that slept
    during the refresh may hold the lock alone, yet others may have applied the slot and ended it
    before that. So the lease proves nothing there.
    """
    revert_if_restored(context, slot, None if context.world.storage.capabilities.far else lease)


def _with_applied(
    context: TableContext, left: Sequence[Slot], timeline: ActiveTimeline
) -> ActiveTimeline:
    """
    Return the timeline after slots were applied, without a listing where possible.

    On a high-latency store all committing writers wait for this round trip, so the names of the
    commits' files are added instead (PAR-1). Validation finds later instants as it finds
    everything after a refresh. In mode ``shared`` it lists, because foreign instants have no slots.
    """
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    names = [slot.file_name for slot in left if slot.file_name and slot.kind in APPLIED_BY_A_FILE]
    if shared or len(names) < len(left) or not context.world.storage.capabilities.far:
        return context.active()
    return timeline.with_names(names)


def _was_rolled_back(context: TableContext, last: Slot, timeline: ActiveTimeline) -> bool:
    """
    Return whether another engine rolled back a commit slot that has no completed file yet.

    The other engine may take a sleeping writer for dead; its rollback leaves no file of the
    instant. An archived instant also has no file, but was completed (FOR-6). Outside: the archived
    timeline if no file is left.
    """
    if not last.foreign or last.kind is not SlotKind.COMMIT:
        return False
    names = {last.file_name, *pending_file_names(last.action, last.requested_time)}
    return timeline.file_names.isdisjoint(names) and not _is_archived(context, last)


def _apply_condition(
    context: TableContext, last: Slot, timeline: ActiveTimeline, lease: Lease | None
) -> Callable[[], bool] | None:
    """
    Return the condition for helping a slot in mode ``shared``; None if helping is not allowed.

    A clean deletes after its inflight file exists; from then on the only way is to complete it.
    With its requested file alone it is treated like a commit; before that only its owner may apply
    it (FOR-4, FOR-9).
    """
    inflight, *requested = pending_file_names(last.own_action, last.instant_time)
    cleans = last.kind is SlotKind.CLEAN
    if cleans and inflight in timeline.file_names:
        return lambda: True
    helps = (
        not timeline.file_names.isdisjoint(requested) if cleans else last.kind is SlotKind.COMMIT
    )
    if helps and is_still_valid(last, timeline):
        return partial(may_apply, context, last, lease)
    return None


def _is_archived(context: TableContext, last: Slot) -> bool:
    return last.requested_time in context.history.times().completions


def _end(context: TableContext, turn: CommitSection, target: Slot) -> None:
    """
    Take the slot that ends the one before it: a void, cancel or unsavepoint.

    A process that lost the lock may still create the target's file, so the new slot deletes it. For
    a savepoint and a clean it also deletes the pending files: the savepoint's owner, or another
    engine that deleted it, may have died and left its inflight file; the clean's requested file may
    exist or still appear.
    """
    names = [target.file_name] if target.file_name else []
    if target.kind in (SlotKind.SAVEPOINT, SlotKind.CLEAN):
        names += pending_file_names(target.action, target.requested_time)
    end = turn.slot(
        context,
        ENDED_BY[target.kind],
        target.action,
        target.requested_time,
        nonce=context.world.ids.nonce(),
        deletes=() if target.kind is SlotKind.PLAN else tuple(map(timeline_path, names)),
    )
    try:
        taken = context.chain.take(turn.sealed(context, end))
    except OutcomeUnknownError as error:  # not the outcome of the caller's write
        raise StorageUnavailableError(
            "the storage did not let this process end an earlier publication; write again: "
            f"slot {target.number}",
            slot_number=target.number,
        ) from error
    if taken:
        context.world.events.emit(
            f"publish.{end.kind.value}", number=target.number, rt=target.requested_time
        )


def _section(
    context: TableContext,
    head: int,
    last: Slot | None,
    timeline: ActiveTimeline,
    lease: Lease | None,
    *,
    config: Callable[[], TableConfig],
) -> CommitSection:
    top = context.chain.read(head) if head else None  # SLOT-8: may differ from ``last``
    times = [one.newest_time for one in (top, last) if one is not None]
    newest = max(filter(None, (timeline.newest_time, *times)), default=None)
    who = context.world.ids.identity()
    return CommitSection(
        head=head,
        timeline=timeline,
        newest_time=newest,
        before=top.digest if top else "",
        config=config,
        owner=SlotOwner(
            host=who.host,
            pid=who.pid,
            writer_id=who.writer_id,
            application=who.application,
            fencing_token=lease.fencing_token if lease is not None else None,
        ),
    )

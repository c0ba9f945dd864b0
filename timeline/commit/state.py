"""
A look at the table in which a slot may be taken: chain, then timeline, and all that is unsettled.

Its own file because upgrades and begins beside other engines look so, too, and take no slot.
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
    unshown: Slot | None = None  # the head, when its file is to be made beside the next slot
    config: Callable[[], TableConfig]  # the table's properties in this turn, got once

    def draw(self, context: TableContext, residue: Residue, *, above: InstantTime = "") -> str:
        """A time above everything in this turn (PUB-7)."""
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
        The next slot, for upkeep; it completes above everything (PUB-7).

        Arguments: as the fields of ``Slot``; ``base`` is this turn's head unless it is said.
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
        """The slot with what shows later edits of the chain, if this process seals (SLOT-7)."""
        return replace(slot, seal=context.limits.sealing.seal(self.before, slot.body))


def refresh_and_apply(
    context: TableContext,
    lease: Lease | None,
    *,
    line: WaitingLine | None = None,
    looked: TimelineState | None = None,
) -> CommitSection:
    """
    Chain, then timeline, with everything up to the head settled (PUB-3).

    A commit slot beside other engines whose file is missing is settled when nothing foreign
    came since its owner looked; else it is called void (FOR-4). A plan or savepoint slot whose file
    is missing there is ended, and so is a clean that deleted nothing (FOR-9). In a ``line`` of
    writes far away a commit at the head is left to whoever takes the next slot. ``looked`` is what
    was read a moment ago.

    Raises:
        LeaseLostError: The lock was lost before that could be decided.
        StorageUnavailableError: The storage did not let it be settled.
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
            return turn  # past a savepoint: the first write of the timeline is older
        may = None if gone else _apply_condition(context, last, timeline, lease)
        if may is not None:
            try_apply(context, last, may_show=may)
            # Called void meanwhile: the next look sees only what is still the newest slot.
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
    """The turn after what was not settled, in the order of the slots (HELP-1, PUB-3)."""
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
    As ``revert_if_restored``, of a slot that a look found.

    Far away that look and the request for the lock are under way together (PAR-1): who slept over
    the one may have the other for itself only since others settled the slot and ended it.
    """
    revert_if_restored(context, slot, None if context.world.storage.capabilities.far else lease)


def _with_applied(
    context: TableContext, left: Sequence[Slot], timeline: ActiveTimeline
) -> ActiveTimeline:
    """
    The timeline once slots were finished, whose file is all that this changes of a commit.

    Far away it is not listed for that: all who publish wait for this round (PAR-1). What came
    meanwhile is met as what comes after a look always is; another engine's knows no slots.
    """
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    names = [slot.file_name for slot in left if slot.file_name and slot.kind in APPLIED_BY_A_FILE]
    if shared or len(names) < len(left) or not context.world.storage.capabilities.far:
        return context.active()
    return timeline.with_names(names)


def _was_rolled_back(context: TableContext, last: Slot, timeline: ActiveTimeline) -> bool:
    """
    Whether another engine rolled back what has a commit slot and no completed file yet.

    It may take a sleeping writer for dead, and then leaves none of its files. Archived is
    something else: it was completed (FOR-6). Outside: the history where no file is left.
    """
    if not last.foreign or last.kind is not SlotKind.COMMIT:
        return False
    names = {last.file_name, *pending_file_names(last.action, last.requested_time)}
    return timeline.file_names.isdisjoint(names) and not _is_archived(context, last)


def _apply_condition(
    context: TableContext, last: Slot, timeline: ActiveTimeline, lease: Lease | None
) -> Callable[[], bool] | None:
    """
    What is asked of who finishes a slot beside other engines; None where nobody may (FOR-4, FOR-9).

    A clean deletes behind its inflight file: from then on nothing else is left. With the requested
    one alone it is as a commit, and before that it is its owner's.
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
    Take the slot that says that the one before never happened: void, cancel or unsavepoint.

    Its file may still be on its way from one who lost the lock: it is taken away. A savepoint's
    owner, or another engine that deleted it, may have died with the inflight file left. A clean's
    requested file may be there, or on its way.
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
    except OutcomeUnknownError as error:  # it says nothing about the own write
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
    top = context.chain.read(head) if head else None  # SLOT-8: may be another than the last
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

"""
A turn: the only critical section. Whoever takes the next commit slot takes it here (SLOT-1).

The order is: wait in the queue, read the chain, list the timeline, settle what is unsettled,
decide, create slot n+1, do what it decided. Creating the slot decides; the lock only spares
work. Writers publish by a turn, all upkeep acts by one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from timeline.active import ActiveTimeline
from timeline.boundary import assert_not_overrun, is_collected
from timeline.context import TableContext
from timeline.errors import (
    BudgetSpentError,
    HeartbeatExpiredError,
    LeaseLostError,
    OutcomeUnknownError,
)
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.model.times import InstantTime, WallMs
from timeline.ports.lock import Lease
from timeline.rules.retry import pause_ms
from timeline.rules.succession import Residue, next_instant_time
from timeline.setting_names import PublishLock
from timeline.settle import completed_ahead, finish, is_settled, settle

__all__ = ["Turn", "take_turn"]

_WITHOUT_LOCK_FIRST = 2  # PublishLock.AUTO takes the queue after two lost slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The state of the table at the moment a slot may be taken."""

    head: int
    timeline: ActiveTimeline
    newest_time: InstantTime | None
    owner: SlotOwner

    def draw(self, context: TableContext, residue: Residue, *, above: InstantTime = "") -> str:
        """A time above everything in this turn (PUB-7)."""
        newest = max(self.newest_time or "", above) or None
        now = WallMs(context.world.clock.now_ms())
        return next_instant_time(now, newest, residue, limits=context.limits.skew)

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
        )


def take_turn(
    context: TableContext, purpose: str, decide: Callable[[Turn], Slot | None]
) -> tuple[Slot | None, int]:
    """
    Take the next slot of the chain: wait in the queue, look, decide, create, settle.

    ``decide`` is called again after every lost slot, with a fresh look at the table; None
    from it ends the turn without a slot. Returns the slot and the number of lost ones.

    Raises:
        BudgetSpentError: ``publish_attempts_max`` slots were lost to others.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``publish``.
    """
    budget = context.limits.retry
    for lost in range(budget.publish_attempts_max):
        with _queue(context, purpose, lost) as lease:
            started = context.world.clock.monotonic_ms()
            overruns = context.pin.overruns
            turn = _look(context, lease)
            slot = decide(turn)
            if slot is None:
                return None, lost
            last = lost + 1 == budget.publish_attempts_max
            if _held(context, lease, last=last) and _take_and_settle(context, slot, overruns):
                held = context.world.clock.monotonic_ms() - started
                context.world.events.emit(
                    "publish.done", kind=slot.kind.value, number=slot.number, held_ms=held
                )
                return slot, lost
        context.world.events.emit("publish.slot_lost", number=slot.number)
        context.world.clock.sleep_ms(pause_ms(lost, context.world.ids.jitter(), budget))
    raise BudgetSpentError(
        "other writers took the next commit slot every time; try again later or raise "
        f"hoodie.write.commit.retry.max.attempts: {budget.publish_attempts_max} attempts",
        attempts=budget.publish_attempts_max,
    )


def _held(context: TableContext, lease: Lease | None, *, last: bool) -> bool:
    """Whether the queue is still ours; losing it costs a turn, never data (SLOT-1)."""
    if lease is None:
        return True
    try:
        lease.assert_held()
    except LeaseLostError:
        if last:
            raise
        context.world.events.emit("publish.lease_lost", owner=lease.owner)
        return False
    return True


def _take_and_settle(context: TableContext, slot: Slot, overruns: int) -> bool:
    """
    Create the slot and do what it decided.

    From the first request on nobody may conclude "failed" from an error: whatever else goes
    wrong in here is an unknown outcome, so that no caller deletes what may be published.
    """
    try:
        with completed_ahead(context.world.storage, slot):
            if not context.chain.take(slot):
                return False
            if not is_collected(context, slot, overruns):
                settle(context, slot)
    except (OutcomeUnknownError, HeartbeatExpiredError):
        raise
    except Exception as error:
        raise OutcomeUnknownError(
            "an error struck while publishing; run 'hoodoo explain' on instant "
            f"{slot.instant_time} before you repeat the write: {error}",
            requested_time=slot.instant_time,
            slot_number=slot.number,
            nonce=slot.nonce,
        ) from error
    return True


def _queue(context: TableContext, purpose: str, lost: int) -> AbstractContextManager[Lease | None]:
    mode = context.limits.publish_lock
    if mode is PublishLock.NONE or (mode is PublishLock.AUTO and lost < _WITHOUT_LOCK_FIRST):
        return nullcontext(None)
    return context.world.lock.acquire(purpose)


def _look(context: TableContext, lease: Lease | None) -> Turn:
    """Chain, then timeline, then settle everything up to the head (PUB-3)."""
    head = context.chain.head()
    assert_not_overrun(context)
    timeline = context.active()
    last = context.chain.read(head) if head else None
    if last is not None and not is_settled(last, timeline):
        context.world.events.emit("publish.helped", number=last.number)
        finish(context, last)
        timeline = context.active()
    newest = max(
        filter(None, (timeline.newest_time, last.newest_time if last else None)), default=None
    )
    who = context.world.ids.identity()
    return Turn(
        head=head,
        timeline=timeline,
        newest_time=newest,
        owner=SlotOwner(
            host=who.host,
            pid=who.pid,
            writer_id=who.writer_id,
            application=who.application,
            fencing_token=lease.fencing_token if lease is not None else None,
        ),
    )

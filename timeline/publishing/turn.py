"""
A turn: the only critical section. Whoever takes the next commit slot takes it here (SLOT-1).

The order is: wait in the queue, read the chain, list the timeline, settle what is unsettled,
decide, create slot n+1, do what it decided. Creating the slot decides; the lock only spares
work. Writers publish by a turn, all upkeep acts by one.

Beside other engines a commit slot decides together with its completed file, within one holding
of the lock (FOR-4). Where that was cut short the next turn tells what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from timeline.active import ActiveTimeline
from timeline.boundary import assert_not_overrun, is_collected
from timeline.context import TableContext
from timeline.errors import (
    BudgetSpentError,
    HeartbeatExpiredError,
    LeaseLostError,
    OutcomeUnknownError,
    StorageUnavailableError,
    TableReplacedError,
)
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.model.table_config import TableConfig
from timeline.model.times import InstantTime, WallMs
from timeline.places import timeline_path
from timeline.ports.lock import Lease
from timeline.properties.properties_file import load_config
from timeline.properties.setting_names import ForeignWriters
from timeline.publishing.queue import Line, Looked, queue, read_table
from timeline.publishing.second_look import seen_by, still_stands
from timeline.publishing.settle import completed_ahead, finish, is_settled, settle
from timeline.rules.retry import pause_ms
from timeline.rules.succession import Residue, next_instant_time

__all__ = ["Turn", "assert_landed", "look", "take_turn"]

_AGAIN_MS = 100
_SHOWN = frozenset({SlotKind.COMMIT, SlotKind.PLAN})  # by one file, and nothing is deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The state of the table at the moment a slot may be taken."""

    head: int
    timeline: ActiveTimeline
    newest_time: InstantTime | None
    owner: SlotOwner
    before: str = ""  # digest of the head slot, empty when there is none
    config: Callable[[], TableConfig]  # the table's properties now

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


def take_turn(
    context: TableContext,
    purpose: str,
    decide: Callable[[Turn], Slot | None],
    *,
    begun: InstantTime | None = None,
    asks_config: bool = False,
    looks_behind: bool = True,
) -> tuple[Slot | None, int]:
    """
    Take the next slot of the chain: wait in the queue, look, decide, create, settle.

    ``decide`` is called again after every lost slot, with a fresh look at the table; None
    from it ends the turn without a slot; ``begun`` is the write that is published so;
    ``asks_config`` says that it will ask for the table's properties; without ``looks_behind`` the
    caller asks ``assert_landed``. Returns the slot and the number of lost ones.

    Raises:
        BudgetSpentError: ``publish_attempts_max`` slots were lost to others.
        TableReplacedError: As ``assert_landed``.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``publish``.
    """
    budget = context.limits.retry
    paused_ms = 0
    undecided: Slot | None = None
    line = Line(context, asks_config=asks_config, begun=begun)
    for lost in range(budget.publish_attempts_max):
        with queue(line, purpose, lost) as (lease, looked):
            started = context.world.clock.monotonic_ms()
            overruns = context.pin.overruns
            try:
                turn = look(context, lease, asks_config=asks_config, looked=looked)
                if undecided is not None:
                    if _counts(context, turn, undecided, lease):
                        return undecided, lost
                    undecided = None
                    continue
                turn, slot = _decided(line, turn, decide, lease)
                if slot is None:
                    return None, lost
                slot = _sealed(context, turn, _with_look(context, slot, turn.timeline))
                _assert_held(lease)
            except LeaseLostError:  # it costs a turn, never data (SLOT-1)
                if lost + 1 == budget.publish_attempts_max and undecided is None:
                    raise
                context.world.events.emit("publish.lease_lost", purpose=purpose)
            else:
                fate = _take_and_settle(line, slot, overruns, lease)
                if fate is _Fate.SETTLED:
                    if looks_behind:
                        assert_landed(context, slot)
                    held = context.world.clock.monotonic_ms() - started
                    context.world.events.emit(
                        "publish.done", kind=slot.kind.value, number=slot.number, held_ms=held
                    )
                    return slot, lost
                undecided = slot if fate is _Fate.UNDECIDED else None
                context.world.events.emit(f"publish.{fate.value}", number=slot.number)
        if line.has_read:
            continue
        paused_ms = pause_ms(lost, context.world.ids.jitter(), budget, previous_ms=paused_ms)
        context.world.clock.sleep_ms(paused_ms)
    if undecided is not None:
        raise _unknown(undecided, "the lock was lost while publishing, every time")
    raise BudgetSpentError(
        "other writers took the next commit slot every time; try again later or raise "
        f"hoodie.write.commit.retry.max.attempts: {budget.publish_attempts_max} attempts",
        attempts=budget.publish_attempts_max,
    )


def _decided(
    line: Line, turn: Turn, decide: Callable[[Turn], Slot | None], lease: Lease | None
) -> tuple[Turn, Slot | None]:
    """What the caller decides on this look, or on a later one where others are in front."""
    slot = decide(turn)
    while slot and lease is None and line.waits(turn.head, turn.timeline, slot):
        turn = look(line.context, None, asks_config=line.asks_config)
        slot = decide(turn)
    return turn, slot


class _Fate(Enum):
    """What became of a slot that was sent."""

    SETTLED = "settled"
    LOST = "slot_lost"  # another took its number
    UNDECIDED = "undecided"  # taken; whoever has the next turn settles it or calls it void


def _assert_held(lease: Lease | None) -> None:
    if lease is not None:
        lease.assert_held()


def _is_held(lease: Lease | None) -> bool:
    try:
        _assert_held(lease)
    except LeaseLostError:
        return False
    return True


def _with_look(context: TableContext, slot: Slot, timeline: ActiveTimeline) -> Slot:
    """A commit slot beside other engines tells what its owner saw (FOR-4)."""
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    if slot.kind is not SlotKind.COMMIT or not shared:
        return slot
    return replace(slot, foreign=seen_by(timeline, slot.requested_time))


def _sealed(context: TableContext, turn: Turn, slot: Slot) -> Slot:
    """The slot with what shows later edits of the chain, if this process seals (SLOT-7)."""
    return replace(slot, seal=context.limits.sealing.seal(turn.before, slot.body))


def _take_and_settle(line: Line, slot: Slot, overruns: int, lease: Lease | None) -> _Fate:
    """
    Create the slot and do what it decided.

    From the first request on nobody may conclude "failed" from an error: whatever else goes
    wrong in here is an unknown outcome, so that no caller deletes what may be published.
    """
    context = line.context
    try:
        with completed_ahead(context.world.storage, slot):
            if not context.chain.take(slot, look=partial(line.read_on, lease)):
                return _Fate.LOST
            if is_collected(context, slot, overruns):
                return _Fate.SETTLED
            if not slot.foreign:
                _show(context, slot, lease)
                return _Fate.SETTLED
            shown = settle(context, slot, may_show=partial(_may_show, context, slot, lease))
            # A lease that is still held was never another's: nobody can have called it void.
            return _Fate.SETTLED if shown and _is_held(lease) else _Fate.UNDECIDED
    except (OutcomeUnknownError, HeartbeatExpiredError, TableReplacedError):
        raise
    except Exception as error:
        raise _unknown(slot, f"an error struck while publishing ({error})") from error


def _show(context: TableContext, slot: Slot, lease: Lease | None) -> None:
    """
    Settle an own slot; of a store far away the queue goes on meanwhile (PAR-1).

    Whoever comes next and finds no completed file yet helps (HELP-1), as without a lock. Another
    engine would not: beside it also a plan's file is there before the lock is free (FOR-1).
    """
    if slot.kind not in _SHOWN:
        assert_landed(context, slot)  # it deletes
    far = context.world.storage.capabilities.far
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    if lease is None or shared or slot.kind not in _SHOWN or not far:
        settle(context, slot)
    else:
        context.world.together(partial(settle, context, slot), lease.release)


def assert_landed(context: TableContext, slot: Slot) -> None:
    """
    SLOT-10: an own slot counts if the table is still the one for which it was taken.

    Asked when what shows the slot is there: a table that is dropped and made again between the
    last look and that is noticed only afterwards. Outside: 1 get.

    Raises:
        TableReplacedError: Others take the slot for nobody's, and what showed it is gone again.
        OutcomeUnknownError: The storage did not answer.
    """
    try:
        _insist(context, slot, context.chain.assert_same_table)
    except TableReplacedError:
        names = {slot.file_name, *pending_file_names(slot.own_action, slot.instant_time)}
        for name in sorted(filter(None, names)):
            path = timeline_path(name)
            _insist(context, slot, partial(context.world.storage.delete, path))
        context.chain.disown(slot)
        raise


def _insist(context: TableContext, slot: Slot, call: Callable[[], None]) -> None:
    """Make a call behind a slot until the storage answers (UNK-5)."""
    clock = context.world.clock
    started = clock.monotonic_ms()
    while True:
        try:
            call()
        except StorageUnavailableError as error:
            if clock.monotonic_ms() - started > context.limits.unknown_ms_max:
                raise _unknown(slot, "the storage did not answer") from error
            clock.sleep_ms(_AGAIN_MS)
        else:
            return


def _unknown(slot: Slot, why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{why}; run 'hoodoo explain' on instant {slot.instant_time} before you repeat the write",
        requested_time=slot.instant_time,
        slot_number=slot.number,
        nonce=slot.nonce,
    )


def _may_show(context: TableContext, slot: Slot, lease: Lease | None) -> bool:
    """
    The second look, and the lock after it (FOR-3, FOR-4), with time for the request (FOR-8).

    Outside: 1 list, 1 look at the lock.
    """
    held = still_stands(slot, context.active()) and _is_held(lease)
    return held and (lease is None or lease.has_room())


def _counts(context: TableContext, turn: Turn, mine: Slot, lease: Lease | None) -> bool:
    """
    Whether a slot that was left undecided counts, told by the slot after it (FOR-4).

    Where there is none its file has appeared by now. Taking the number keeps out whoever
    looked before that, lost the lock and is about to call it void.
    """
    if turn.head == mine.number:
        requested_time = turn.draw(context, Residue.SLOT_REQUESTED)
        nonce = context.world.ids.nonce()
        _assert_held(lease)
        noop = turn.slot(context, SlotKind.NOOP, mine.action, requested_time, nonce=nonce)
        try:
            context.chain.take(_sealed(context, turn, noop))
        except OutcomeUnknownError as error:
            raise _unknown(mine, "the storage did not answer") from error
    after = context.chain.read(mine.number + 1)
    if after is None or after.kind is not SlotKind.VOID:
        return True
    settle(context, after)  # once more: the own file may have appeared after it
    context.chain.disown(mine)
    return False


def look(
    context: TableContext,
    lease: Lease | None,
    *,
    asks_config: bool = False,
    looked: Looked | None = None,
) -> Turn:
    """
    Chain, then timeline, with everything up to the head settled (PUB-3).

    A commit slot beside other engines whose file is missing is settled when nothing foreign
    came since its owner looked; else it is called void (FOR-4). ``looked`` is what was read a
    moment ago.

    Raises:
        LeaseLostError: The lock was lost before that could be decided.
        StorageUnavailableError: The storage did not let it be settled.
        HeartbeatExpiredError: As ``assert_not_overrun``.
    """
    while True:
        head, timeline, config = looked or read_table(
            context, asks_config=asks_config, until_still=lease is not None
        )
        looked = None
        assert_not_overrun(context)
        last = context.chain.read(head) if head else None
        gone = last is not None and _is_gone(context, last, timeline)
        if last is None or (is_settled(last, timeline) and not gone):
            return replace(_turn(context, head, last, timeline, lease), config=config)
        context.world.events.emit("publish.helped", number=last.number)
        if not last.foreign:
            finish(context, last)
            return _turn(context, head, last, _with_shown(context, last, timeline), lease)
        _assert_held(lease)
        if still_stands(last, timeline) and not gone:
            finish(context, last, may_show=partial(_may_show, context, last, lease))
        else:
            _call_void(context, _turn(context, head, last, timeline, lease), last)


def _with_shown(context: TableContext, last: Slot, timeline: ActiveTimeline) -> ActiveTimeline:
    """
    The timeline once a slot was finished, whose file is all that this changes of a commit.

    Far away it is not listed for that: all who publish wait for this round (PAR-1). What came
    meanwhile is met as what comes after a look always is; another engine's knows no slots.
    """
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    name = last.file_name
    if (
        name is None
        or shared
        or last.kind not in _SHOWN
        or not context.world.storage.capabilities.far
    ):
        return context.active()
    return timeline.with_names([name])


def _is_gone(context: TableContext, last: Slot, timeline: ActiveTimeline) -> bool:
    """
    Whether another engine rolled back what has a commit slot and no completed file yet.

    It may take a sleeping writer for dead, and then leaves none of its files. Archived is
    something else: it was completed (FOR-6). Outside: the history where no file is left.
    """
    if not last.foreign or last.file_name in timeline.file_names:
        return False
    pending = pending_file_names(last.action, last.requested_time)
    if not timeline.file_names.isdisjoint(pending):
        return False
    return last.requested_time not in context.history.times().completions


def _call_void(context: TableContext, turn: Turn, target: Slot) -> None:
    """
    Take the slot that says that the one before never happened.

    Its completed file may still be on its way from one who lost the lock: it is taken away.
    """
    name = target.file_name
    void = turn.slot(
        context,
        SlotKind.VOID,
        target.action,
        target.requested_time,
        nonce=context.world.ids.nonce(),
        deletes=(timeline_path(name),) if name else (),
    )
    try:
        taken = context.chain.take(_sealed(context, turn, void))
    except OutcomeUnknownError as error:  # it says nothing about the own write
        raise StorageUnavailableError(
            "the storage did not let this process end an earlier publication; write again: "
            f"slot {target.number}",
            slot_number=target.number,
        ) from error
    if taken:
        context.world.events.emit("publish.void", number=target.number, rt=target.requested_time)


def _turn(
    context: TableContext,
    head: int,
    last: Slot | None,
    timeline: ActiveTimeline,
    lease: Lease | None,
) -> Turn:
    newest = max(
        filter(None, (timeline.newest_time, last.newest_time if last else None)), default=None
    )
    who = context.world.ids.identity()
    return Turn(
        head=head,
        timeline=timeline,
        newest_time=newest,
        before=last.digest if last else "",
        config=partial(load_config, context.world.storage),
        owner=SlotOwner(
            host=who.host,
            pid=who.pid,
            writer_id=who.writer_id,
            application=who.application,
            fencing_token=lease.fencing_token if lease is not None else None,
        ),
    )

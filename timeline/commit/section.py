"""
A turn: the only critical section. Whoever takes the next commit slot takes it here (SLOT-1).

The order is: wait in the queue, read the chain, list the timeline, settle what is unsettled,
decide, create slot n+1, do what it decided. Creating the slot decides; the lock only spares
work. Writers publish by a turn, all upkeep acts by one.

Of a storage far away a commit's file and the next commit's slot are made at once (PUB-3): one way
there and back between two commits instead of two. Its own file then follows both.

Beside other engines the slot of a commit, a plan, a savepoint or a clean decides together with its
file, within one holding of the lock (FOR-4, FOR-9). Where that was cut short the next turn tells
what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TypeVar

from timeline.active_timeline import ActiveTimeline
from timeline.commit.admission import TimelineState, WaitingLine, acquire_commit_lock
from timeline.commit.apply import (
    APPLIED_BY_A_FILE,
    apply,
    has_instant_file,
    is_applied,
    may_overlap,
    revert_if_restored,
    revert_truncation,
    staged_completed_file,
    try_apply,
)
from timeline.commit.metadata_table import with_metadata_table_off
from timeline.commit.revalidate import (
    ENDED_BY,
    assert_lease,
    has_lease,
    is_ended_by,
    may_apply,
    timeline_digest,
)
from timeline.commit.state import CommitSection, refresh_and_apply, revert_helped
from timeline.context import TableContext
from timeline.errors import (
    BudgetSpentError,
    HeartbeatExpiredError,
    LeaseLostError,
    OutcomeUnknownError,
    StorageUnavailableError,
    TableReplacedError,
)
from timeline.layout import timeline_path
from timeline.model.file_names import pending_file_names
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.ports.lock import Lease, is_exclusive
from timeline.properties.setting_enums import ForeignWriters
from timeline.rules.instant_times import Residue
from timeline.rules.retry import pause_ms
from timeline.truncation import is_truncated

__all__ = ["assert_same_table_after_commit", "commit_in_section"]

_Answer = TypeVar("_Answer")

_AGAIN_MS = 100


def commit_in_section(
    context: TableContext,
    purpose: str,
    decide: Callable[[CommitSection], Slot | None],
    *,
    begun: InstantTime | None = None,
    asks_config: bool = False,
    looks_behind: bool = True,
    is_met: Callable[[], bool] = lambda: False,
    looked: TimelineState | None = None,
) -> tuple[Slot | None, int]:
    """
    Take the next slot of the chain: wait in the queue, look, decide, create, settle.

    ``decide`` is called again after every lost slot, with a fresh look at the table; None
    from it ends the turn without a slot; ``begun`` is the write that is published so;
    ``asks_config`` says that it will ask for the table's properties; without ``looks_behind`` the
    caller asks ``assert_same_table_after_commit``; ``is_met`` tells, of what is known, that a decision would end the
    turn; ``looked`` is what was read of the table already, where the write has its place. Returns the
    slot and the number of lost ones.

    Raises:
        BudgetSpentError: ``publish_attempts_max`` slots were lost to others.
        InvalidInputError: The slot is too large to be read (``commit_too_large``).
        TableReplacedError: As ``assert_same_table_after_commit``.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``publish``.
    """
    budget = context.limits.retry
    paused_ms = 0
    undecided: Slot | None = None
    line = WaitingLine(context, asks_config=asks_config, begun=begun, is_met=is_met, looked=looked)
    lost = 0
    while lost < budget.publish_attempts_max:
        with acquire_commit_lock(line, purpose, lost) as (lease, read), ExitStack() as held:
            started = context.world.clock.monotonic_ms()
            overruns = context.pin.overruns
            try:
                turn = refresh_and_apply(context, lease, line=line, looked=read)
                if undecided is not None:
                    if _counts(context, turn, undecided, lease):
                        return undecided, lost
                    undecided = None
                    lost += 1
                    continue
                turn, slot = _decided(line, turn, decide, lease)
                if slot is None:
                    _apply_deferred(line, turn)  # what it refuses must be there to begin from
                    _revert_deferred(context, turn, lease)
                    return None, lost
                if line.goes_on():
                    continue  # not refused after all: with the lock, and nothing was lost
                slot = turn.sealed(context, _with_timeline_digest(context, slot, turn.timeline))
                context.chain.encoded(slot)  # one that is too large is refused before it is sent
                assert_lease(lease)
                alone = held.enter_context(with_metadata_table_off(context, turn, slot, lease))
            except LeaseLostError:  # it costs a turn, never data (SLOT-1)
                if lost + 1 == budget.publish_attempts_max and undecided is None:
                    raise
                context.world.events.emit("publish.lease_lost", purpose=purpose)
            else:
                fate = _take_and_apply(line, turn, slot, overruns, alone)
                if fate is _SlotOutcome.SETTLED:
                    _emit_committed(context, slot, started, looks_behind=looks_behind)
                    return slot, lost
                undecided = slot if fate is _SlotOutcome.UNDECIDED else None
                _revert_deferred(context, turn, lease)
                context.world.events.emit(f"publish.{fate.value}", number=slot.number)
        lost += 1
        if line.has_read:
            continue
        paused_ms = pause_ms(lost - 1, context.world.ids.jitter(), budget, previous_ms=paused_ms)
        context.world.clock.sleep_ms(paused_ms)
    if undecided is not None:
        raise _unknown(undecided, "the lock was lost while publishing, every time")
    raise BudgetSpentError(
        "other writers took the next commit slot every time; try again later or raise "
        f"hoodie.write.commit.retry.max.attempts: {budget.publish_attempts_max} attempts",
        attempts=budget.publish_attempts_max,
    )


def _emit_committed(
    context: TableContext, slot: Slot, started_ms: int, *, looks_behind: bool
) -> None:
    if looks_behind:
        assert_same_table_after_commit(context, slot)
    held_ms = context.world.clock.monotonic_ms() - started_ms
    context.world.events.emit(
        "publish.done", kind=slot.kind.value, number=slot.number, held_ms=held_ms
    )


def _decided(
    line: WaitingLine,
    turn: CommitSection,
    decide: Callable[[CommitSection], Slot | None],
    lease: Lease | None,
) -> tuple[CommitSection, Slot | None]:
    """What the caller decides on this look, or on a later one where others are in front."""
    slot = decide(turn)
    while slot and not is_exclusive(lease) and line.waits(turn.head, turn.timeline, slot):
        turn = refresh_and_apply(line.context, lease, line=line, looked=line.read_before())
        slot = decide(turn)
    return turn, slot


class _SlotOutcome(Enum):
    """What became of a slot that was sent."""

    SETTLED = "settled"
    LOST = "slot_lost"  # another took its number
    UNDECIDED = "undecided"  # taken; whoever has the next turn settles it or ends it


def _with_timeline_digest(context: TableContext, slot: Slot, timeline: ActiveTimeline) -> Slot:
    """
    A slot beside other engines that shows a file tells what its owner saw (FOR-4, FOR-9).

    Not one that finishes what another engine showed already: its clean.
    """
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    adopts = slot.kind is SlotKind.CLEAN and has_instant_file(slot, timeline)
    if slot.kind not in ENDED_BY or not shared or adopts:
        return slot
    return replace(slot, foreign=timeline_digest(timeline, slot))


def _take_and_apply(
    line: WaitingLine, turn: CommitSection, slot: Slot, overruns: int, lease: Lease | None
) -> _SlotOutcome:
    """
    Create the slot and do what it decided.

    From the first request on nobody may conclude "failed" from an error: whatever else goes
    wrong in here is an unknown outcome, so that no caller deletes what may be published.
    """
    context = line.context
    try:
        with staged_completed_file(context.world.storage, slot):
            if not _taken(line, turn, slot, lease):
                return _SlotOutcome.LOST
            if is_truncated(context, slot, overruns):
                return _SlotOutcome.SETTLED
            if not slot.foreign:
                _or_look(context, slot, partial(_apply_own, context, slot, lease))
                return _SlotOutcome.SETTLED
            if slot.deletes:  # SLOT-10
                assert_same_table_after_commit(context, slot)
            may = partial(may_apply, context, slot, lease)
            shown = _or_look(context, slot, partial(apply, context, slot, may_show=may))
            if shown:
                _repeat_until_known(
                    context, slot, partial(revert_if_restored, context, slot, lease)
                )
            # A lease that is still held was never another's: nobody can have called it void.
            return _SlotOutcome.SETTLED if shown and has_lease(lease) else _SlotOutcome.UNDECIDED
    except (OutcomeUnknownError, HeartbeatExpiredError, TableReplacedError):
        raise
    except Exception as error:
        raise _unknown(slot, f"an error struck while publishing ({error})") from error


def _taken(line: WaitingLine, turn: CommitSection, slot: Slot, lease: Lease | None) -> bool:
    """Take the slot; beside it, or before it, what is left to do of the one before is done."""
    look, beside = partial(line.read_on, lease, slot), partial(line.read_ahead, lease)
    take = partial(line.context.chain.take, slot, look=look, beside=beside)
    if turn.unshown is None:
        return take()
    if not may_overlap(slot):
        _apply_deferred(line, turn)
        return take()

    def help_on() -> None:
        with suppress(StorageUnavailableError):  # asked again where the slot is ours
            _apply_deferred(line, turn)

    try:
        _, taken = line.context.world.together(help_on, take)
    except TableReplacedError:
        _take_away(line.context, slot)
        raise
    if taken:
        _apply_deferred(line, turn)  # PUB-3: files appear in the order of their slots
    return taken


def _apply_deferred(line: WaitingLine, turn: CommitSection) -> None:
    if turn.unshown is not None and line.settled < turn.unshown.number:
        try_apply(line.context, turn.unshown)
        line.settled = turn.unshown.number


def _revert_deferred(context: TableContext, turn: CommitSection, lease: Lease | None) -> None:
    """
    RST-4 for the commit before, helped on by one who does not have the next slot after all.

    Outside: nothing where all was shown, else as ``revert_if_restored``.
    """
    if turn.unshown is not None:
        revert_helped(context, turn.unshown, lease)


def _apply_own(context: TableContext, slot: Slot, lease: Lease | None) -> None:
    """
    Settle an own slot; of a store far away the queue goes on meanwhile (PAR-1).

    Whoever comes next and finds no completed file yet helps (HELP-1), as without a lock. Another
    engine would not: what shows a file beside it does not come here (FOR-9).
    """
    if slot.kind not in APPLIED_BY_A_FILE:
        assert_same_table_after_commit(context, slot)  # it deletes
    far = context.world.storage.capabilities.far
    if lease is None or lease.is_shared or slot.kind not in APPLIED_BY_A_FILE or not far:
        apply(context, slot)
    else:
        context.world.together(partial(apply, context, slot), lease.release)
    if not _is_asked_later(context, slot):
        _repeat_until_known(context, slot, partial(revert_if_restored, context, slot, lease))


def _or_look(context: TableContext, slot: Slot, show: Callable[[], _Answer]) -> _Answer:
    """
    What shows a slot; if nobody knows whether it is there, a look whether the table is (SLOT-10).

    The write ends there, so no later look of it takes away what may have come into another table.
    Outside: as ``show``; if it fails 1 get, and the deletes.
    """
    try:
        return show()
    except TableReplacedError:
        raise
    except Exception:
        with suppress(StorageUnavailableError):
            _check_same_table(context, slot, context.chain.assert_same_table)
        raise


def assert_same_table_after_commit(context: TableContext, slot: Slot) -> None:
    """
    SLOT-10: an own slot counts if the table is still the one for which it was taken.

    Asked when what shows the slot is there: a table that is dropped and made again between the
    last look and that is noticed only afterwards. Outside: 1 get, far away 1 more beside it.

    Raises:
        TableReplacedError: Others take the slot for nobody's, and what showed it is gone again.
        OutcomeUnknownError: The storage did not answer.
    """
    looks = [partial(_repeat_until_known, context, slot, context.chain.assert_same_table)]
    if _is_asked_later(context, slot):
        looks.append(
            partial(
                _repeat_until_known, context, slot, partial(revert_if_restored, context, slot, None)
            )
        )
    _check_same_table(context, slot, partial(context.world.together, *looks))


def _is_asked_later(context: TableContext, slot: Slot) -> bool:
    """Whether RST-4 is asked beside the table's identity, where a round for it costs much."""
    return context.world.storage.capabilities.far and slot.kind in APPLIED_BY_A_FILE


def _check_same_table(context: TableContext, slot: Slot, look: Callable[[], object]) -> None:
    try:
        look()
    except TableReplacedError:
        _take_away(context, slot, *pending_file_names(slot.own_action, slot.instant_time))
        context.chain.disown(slot)
        raise


def _take_away(context: TableContext, slot: Slot, *names: str) -> None:
    """What showed a slot in the wrong table, and what was helped on beside it (PUB-3)."""
    helped = filter(may_overlap, context.chain.newest_known(slot.number))
    shown = {slot.file_name, *(one.file_name for one in helped)}
    for name in sorted({*names, *filter(None, shown)}):
        path = timeline_path(name)
        _repeat_until_known(context, slot, partial(context.world.storage.delete, path))
    if slot.kind is SlotKind.CUT:
        _repeat_until_known(context, slot, partial(revert_truncation, context, slot))


def _repeat_until_known(context: TableContext, slot: Slot, call: Callable[[], None]) -> None:
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


def _next_of_this_table(context: TableContext, slot: Slot) -> Slot | None:
    number = slot.number + 1
    while (found := context.chain.read(number)) and context.chain.is_of_another(found):
        number += 1  # it decides nothing (SLOT-8)
    return found


def _counts(context: TableContext, turn: CommitSection, mine: Slot, lease: Lease | None) -> bool:
    """
    Whether a slot that was left undecided counts, told by the slot after it (FOR-4).

    Where there is none its file has appeared by now. Taking the number keeps out whoever
    looked before that, lost the lock and is about to call it void.
    """
    last = context.chain.deciding(turn.head)
    if last is not None and last.number == mine.number:
        requested_time = turn.draw(context, Residue.SLOT_REQUESTED)
        nonce = context.world.ids.nonce()
        assert_lease(lease)
        noop = turn.slot(context, SlotKind.NOOP, mine.action, requested_time, nonce=nonce)
        try:
            context.chain.take(turn.sealed(context, noop))
        except OutcomeUnknownError as error:
            raise _unknown(mine, "the storage did not answer") from error
    after = _next_of_this_table(context, mine)
    if after is None or not is_ended_by(mine, after):
        return True
    # Once more: a file of the own slot may have appeared after that. Of a savepoint another engine
    # may have made one of the same write since, which is left alone (FOR-9).
    if after.kind is not SlotKind.UNSAVEPOINT or not is_applied(
        after, context.active(), context.history
    ):
        apply(context, after)
    context.chain.disown(mine)
    return False

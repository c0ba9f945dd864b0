"""
Run the commit section: the critical section in which a writer takes the next slot (SLOT-1).

The order is: acquire the commit lock, read the commit log, list the timeline, apply slots that are
not applied yet, decide, create slot n+1, apply it. Creating the slot decides; the lock only saves
work. Writers commit in this section, and so does every table service.

On a high-latency store one commit's completed file and the next commit's slot are created at the
same time (PUB-3). This saves one of two round trips between commits. The next commit's own file
follows both.

If other engines write too, the slot of a commit, plan, savepoint or clean decides together with its
file, within one holding of the lock (FOR-4, FOR-9). If that was interrupted, the next commit
section finds out the outcome.
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
    Take the next slot of the commit log and apply it.

    A lost slot costs a refresh and another call of ``decide``.

    Args:
        context: The table.
        purpose: Shown to processes that wait for the lock.
        decide: Returns the slot to take, or None to leave the section without a slot.
        begun: The requested time of the write to commit, if it is a write.
        asks_config: Whether ``decide`` reads the table's properties.
        looks_behind: False if the caller calls ``assert_same_table_after_commit`` itself.
        is_met: Whether the known part of the commit log already rejects what ``decide`` wants.
        looked: The table state that the write read when its wait in the waiting line ended.

    Returns:
        The slot, and the number of lost slots.

    Raises:
        BudgetSpentError: Other writers took ``publish_attempts_max`` slots.
        InvalidInputError: The slot is too large to be read (``commit_too_large``).
        TableReplacedError: As ``assert_same_table_after_commit``.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``commit_write``.
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
                    _apply_deferred(line, turn)  # a retry must find what rejected this attempt
                    _revert_deferred(context, turn, lease)
                    return None, lost
                if line.goes_on():
                    continue  # validation under the lock does not reject it: no slot is lost
                slot = turn.sealed(context, _with_timeline_digest(context, slot, turn.timeline))
                context.chain.encoded(slot)  # raises if the slot is too large, before the request
                assert_lease(lease)
                alone = held.enter_context(with_metadata_table_off(context, turn, slot, lease))
            except LeaseLostError:  # costs a pass of this loop, never data (SLOT-1)
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
    """Return what ``decide`` returns, after waiting for earlier writers where there are some."""
    slot = decide(turn)
    while slot and not is_exclusive(lease) and line.waits(turn.head, turn.timeline, slot):
        turn = refresh_and_apply(line.context, lease, line=line, looked=line.read_before())
        slot = decide(turn)
    return turn, slot


class _SlotOutcome(Enum):
    """The outcome of a request for a slot."""

    SETTLED = "settled"
    LOST = "slot_lost"  # another writer took the number
    UNDECIDED = "undecided"  # taken; the next commit section applies it or ends it


def _with_timeline_digest(context: TableContext, slot: Slot, timeline: ActiveTimeline) -> Slot:
    """
    Return the slot with a digest of the timeline that its owner validated against (FOR-4, FOR-9).

    In mode ``shared`` each slot that decides together with its file has one. The slot for a clean
    that another engine has already started has none.
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
    Create the slot and apply it.

    After the first request an error no longer means "failed". Any unexpected error becomes an
    unknown outcome, so that no caller deletes files that may be committed.
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
            # While the lease is held, no other process can have made the slot void.
            return _SlotOutcome.SETTLED if shown and has_lease(lease) else _SlotOutcome.UNDECIDED
    except (OutcomeUnknownError, HeartbeatExpiredError, TableReplacedError):
        raise
    except Exception as error:
        raise _unknown(slot, f"an error struck while publishing ({error})") from error


def _taken(line: WaitingLine, turn: CommitSection, slot: Slot, lease: Lease | None) -> bool:
    """Take the slot; apply the slot before it first, or at the same time where allowed."""
    look, beside = partial(line.read_on, lease, slot), partial(line.read_ahead, lease)
    take = partial(line.context.chain.take, slot, look=look, beside=beside)
    if turn.unshown is None:
        return take()
    if not may_overlap(slot):
        _apply_deferred(line, turn)
        return take()

    def help_on() -> None:
        with suppress(StorageUnavailableError):  # tried again below if the slot is ours
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
    Revert the previous commit's file if RST-4 requires it, after this writer lost the next slot.

    Outside: nothing if no slot was deferred, else as ``revert_if_restored``.
    """
    if turn.unshown is not None:
        revert_helped(context, turn.unshown, lease)


def _apply_own(context: TableContext, slot: Slot, lease: Lease | None) -> None:
    """
    Apply an own slot; on a high-latency store release the lock meanwhile (PAR-1).

    A writer that enters next and finds no completed file helps (HELP-1), as it does without a lock.
    Another engine would not help, so slots that decide together with their file do not use this
    function (FOR-9).
    """
    if slot.kind not in APPLIED_BY_A_FILE:
        assert_same_table_after_commit(context, slot)  # apply deletes files
    far = context.world.storage.capabilities.far
    if lease is None or lease.is_shared or slot.kind not in APPLIED_BY_A_FILE or not far:
        apply(context, slot)
    else:
        context.world.together(partial(apply, context, slot), lease.release)
    if not _is_asked_later(context, slot):
        _repeat_until_known(context, slot, partial(revert_if_restored, context, slot, lease))


def _or_look(context: TableContext, slot: Slot, show: Callable[[], _Answer]) -> _Answer:
    """
    Call ``show``; if it fails, check that the table was not replaced before raising (SLOT-10).

    The write ends with this error. No later check would delete what it may have created in another
    table. Outside: as ``show``; if it fails 1 get, and the deletes.
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
    Check that the table is still the one for which this process took the slot (SLOT-10).

    The check runs after the slot is applied. Only then does it notice a table that was dropped and
    created again since the last refresh. Outside: 1 get; on a high-latency store 1 more at the same
    time.

    Raises:
        TableReplacedError: The table was replaced. Its writers ignore the slot, and this function
            has deleted the files that the slot created.
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
    """Return whether RST-4 is checked together with the table's identity, to save a round trip."""
    return context.world.storage.capabilities.far and slot.kind in APPLIED_BY_A_FILE


def _check_same_table(context: TableContext, slot: Slot, look: Callable[[], object]) -> None:
    try:
        look()
    except TableReplacedError:
        _take_away(context, slot, *pending_file_names(slot.own_action, slot.instant_time))
        context.chain.disown(slot)
        raise


def _take_away(context: TableContext, slot: Slot, *names: str) -> None:
    """Delete the files that a slot, and slots helped with it (PUB-3), created in a wrong table."""
    helped = filter(may_overlap, context.chain.newest_known(slot.number))
    shown = {slot.file_name, *(one.file_name for one in helped)}
    for name in sorted({*names, *filter(None, shown)}):
        path = timeline_path(name)
        _repeat_until_known(context, slot, partial(context.world.storage.delete, path))
    if slot.kind is SlotKind.CUT:
        _repeat_until_known(context, slot, partial(revert_truncation, context, slot))


def _repeat_until_known(context: TableContext, slot: Slot, call: Callable[[], None]) -> None:
    """Repeat a call that follows a slot until the storage answers (UNK-5)."""
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
    Return whether an undecided slot counts, which the slot after it decides (FOR-4).

    If no slot follows, the undecided slot's file exists by now. This function then takes the next
    number. That stops a process which refreshed earlier, lost the lock and is about to make the
    slot void.
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
    # Apply it again: a file of the own slot may have appeared since. After an unsavepoint, another
    # engine may have created a savepoint of the same write, which stays (FOR-9).
    if after.kind is not SlotKind.UNSAVEPOINT or not is_applied(
        after, context.active(), context.history
    ):
        apply(context, after)
    context.chain.disown(mine)
    return False

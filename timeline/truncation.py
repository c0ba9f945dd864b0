"""
The boundary's files, and the pin by which a process holds the boundary back (GC-2 to GC-4).

Every process that changes the table shows a pin in its registry entry: it still needs the
slots above that number. The archiver stops below every pin it finds, except those that were
not renewed for the grace; their owners notice by their own monotonic clock that they may
have been overrun, look at the boundary, and abandon what they began.
"""

from __future__ import annotations

import json
import re
from typing import Final

from timeline.codecs.truncation_point import (
    NO_TRUNCATION,
    CommittedBatch,
    TruncationPoint,
    decode_truncation_point,
)
from timeline.context import TableContext
from timeline.errors import CorruptTableError, HeartbeatExpiredError, MissingFileError
from timeline.layout import BOUNDARIES, slot_path, truncation_point_path
from timeline.model.instant_time import InstantTime
from timeline.model.slot import NOT_APPLIED_MAX, Slot
from timeline.ports.storage import ObjectMissingError, Storage

__all__ = [
    "GRACE_OF_SILENCES",
    "advance_low_water_mark",
    "assert_not_truncated",
    "assert_slots_kept",
    "is_archived_since",
    "is_truncated",
    "is_truncated_since",
    "keep_low_water_mark_above",
    "raise_low_water_mark",
    "read_truncated_batches",
    "read_truncation_point",
    "renew_low_water_mark",
    "set_low_water_mark",
    "slots_since",
    "slots_since_snapshot",
    "truncated_up_to",
    "write_low_water_mark",
]

GRACE_OF_SILENCES: Final = 5
"""A pin is overrun when its owner was silent for so many times what a heartbeat may miss."""

_LAG_MAX = 16  # slots
_NAME = re.compile(r"[0-9]{20}")


def truncated_up_to(storage: Storage) -> int:
    """The present boundary, 0 for none. Outside: 1 list."""
    names = (name for name in storage.names(BOUNDARIES) if _NAME.fullmatch(name))
    return max(map(int, names), default=0)


def read_truncation_point(storage: Storage) -> TruncationPoint:
    """The present boundary with the batches it repeats. Outside: 1 list, 1 get."""
    while True:
        number = truncated_up_to(storage)
        if number == 0:
            return NO_TRUNCATION
        path = truncation_point_path(number)
        try:
            boundary = decode_truncation_point(storage.read(path), path=path)
        except ObjectMissingError:
            continue  # a greater one came and this one was tidied away
        if boundary.number != number:
            raise CorruptTableError(
                f"a boundary was moved: {path} says it is number {boundary.number}", path=path
            )
        return boundary


def read_truncated_batches(storage: Storage, number: int) -> tuple[CommittedBatch, ...]:
    """
    The batches in the file of one boundary, the present one or an earlier one. Outside: 1 get.

    Raises:
        ObjectMissingError: Its file is not kept any more.
        CorruptTableError: It cannot be read.
    """
    path = truncation_point_path(number)
    return decode_truncation_point(storage.read(path), path=path).batches


def set_low_water_mark(context: TableContext) -> None:
    """
    Show a pin that the boundary has not passed (GC-3). Outside: 1 put, 1 list, chain probes.

    The archiver looks at pins again after it moved the boundary, so either it sees this one
    or this look sees its boundary.
    """
    keep_low_water_mark_above(context, write_low_water_mark(context, context.chain.look_anew()))


def write_low_water_mark(context: TableContext, head: int) -> int:
    """
    Show that the last slots, which may not be settled, are needed. Outside: 1 put.

    Returns the monotonic time before the request: what ``keep_low_water_mark_above`` trusts it from.
    """
    return _write_mark(context, max(head - NOT_APPLIED_MAX, 0))


def keep_low_water_mark_above(context: TableContext, shown_at_ms: int) -> None:
    """
    Show a higher pin until the boundary has not passed it, and trust it then. Outside: 1 list.

    Nothing that began before counts as kept: a turn that looked while nobody knew where the
    boundary is looks for it once more when it has a slot.
    """
    pin = context.pin
    while (reached := truncated_up_to(context.world.storage)) > pin.number:
        head = context.chain.look_anew(at_least=reached)
        shown_at_ms = _write_mark(context, max(head - NOT_APPLIED_MAX, reached))
    pin.overruns = next(pin.numbers)
    pin.shown_at_ms = shown_at_ms


def raise_low_water_mark(context: TableContext) -> None:
    """
    A beat: show that this process lives, and let go what it no longer needs.

    One that only looks on lets go as well, or it would hold the archive back for ever.
    Outside: 1 list, 1 put; 1 list more when the last one was too long ago.
    """
    pin = context.pin
    before = pin.number
    context.chain.glance()
    shown_at_ms = _write_mark(context, pin.floor(context.chain.known_head))
    context.chain.forget(pin.number)
    # Judged now that the new one is there: the glance and the request may have taken long, and
    # nothing else would ever tell that the archive went past meanwhile.
    if not _is_trusted(context) and truncated_up_to(context.world.storage) > before:
        _reset(context)
    else:
        pin.shown_at_ms = shown_at_ms


def advance_low_water_mark(context: TableContext) -> None:
    """
    After a publication: a busy writer does not hold the archive back until its next beat.

    Outside: as ``raise_low_water_mark`` once in so many slots, else nothing.
    """
    pin = context.pin
    if pin.entry is not None and pin.floor(context.chain.known_head) - pin.number >= _LAG_MAX:
        raise_low_water_mark(context)


def assert_not_truncated(context: TableContext) -> None:
    """
    Pass when the slots above the own pin are all there (GC-4).

    Outside: nothing while the pin was shown a moment ago, else 1 list.

    Raises:
        HeartbeatExpiredError: This process paused so long that the archive went on without
            it; what it began is void, the next begin has a new pin.
    """
    pin = context.pin
    if pin.entry is None or _is_trusted(context):
        return
    if truncated_up_to(context.world.storage) > pin.number:
        _reset(context)
        raise _overrun()


def slots_since(context: TableContext, after: int, last: int) -> list[Slot]:
    """
    The slots ``after < n <= last`` that came since a look of this process. As ``SlotChain.between``.

    Raises:
        HeartbeatExpiredError: They were collected, because this process was silent for too long
            and its pin began anew since.
        MissingFileError: One of them was collected, and no pin tells why.
    """
    try:
        return context.chain.between(after, last)
    except MissingFileError:
        if context.pin.entry is not None and context.pin.number > after:
            raise _overrun() from None
        raise


def slots_since_snapshot(context: TableContext, after: int, last: int) -> list[Slot] | None:
    """
    The slots ``after < n <= last`` that came since a decision; None where the archive took one.

    A decision of a service holds no pin: while it is made, the beats of its process let go of
    what it looked at (``raise_low_water_mark``), and another's archive may go past it. Then it is made anew.
    Outside: as ``SlotChain.between``; 1 list where a slot is gone.

    Raises:
        MissingFileError: A slot is gone, and no archive tells why.
    """
    try:
        return context.chain.between(after, last)
    except MissingFileError:
        if truncated_up_to(context.world.storage) <= after:
            raise
        return None


def renew_low_water_mark(context: TableContext) -> bool:
    """
    Before a write begins: after too long a sleep, begin with a new pin and a new look.

    Outside: nothing while the pin was shown a moment ago, else 1 list.

    Returns:
        Whether earlier looks at the chain count no more.
    """
    try:
        assert_not_truncated(context)
    except HeartbeatExpiredError:
        return True
    return False


def assert_slots_kept(context: TableContext, requested_time: InstantTime) -> None:
    """
    Pass when what a write has to be judged against was kept since its base snapshot.

    Raises:
        HeartbeatExpiredError: As ``assert_not_truncated``, noticed by another path meanwhile.
    """
    if context.pin.entry is not None and requested_time not in context.pin.held:
        raise _overrun(requested_time=requested_time)


def is_truncated(context: TableContext, slot: Slot, overruns: int) -> bool:
    """
    Whether a slot that was just created is done with already: settled, archived, collected.

    Outside: nothing while the pin was shown a moment ago, else (without a pin, too) 1 list; below
    the boundary 1 delete, 1 list and the history.

    Args:
        context: The table.
        slot: Created by this process.
        overruns: Those noticed when it looked at the chain.

    Raises:
        HeartbeatExpiredError: Its number was taken by another once and collected since: it
            decides nothing (GC-2, UNK-4).
    """
    if _slots_are_kept(context, overruns):
        return False
    if truncated_up_to(context.world.storage) < slot.number:
        return False
    context.world.storage.delete(slot_path(slot.number))
    _reset(context)
    ended = {one.requested_time for one in context.active().instants if one.completed}
    ended.update(one.requested_time for one in context.history.instants())
    if slot.instant_time in ended:
        return True
    context.chain.disown(slot)
    raise _overrun(requested_time=slot.requested_time)


def is_archived_since(context: TableContext, slot: Slot, overruns: int) -> bool:
    """
    Whether a slot's instant was archived under a process that slept (GC-3, GC-6).

    Outside: nothing while the pin was shown a moment ago, else the history.
    """
    if _slots_are_kept(context, overruns):
        return False
    archived = context.history.instants()
    return any(one.requested_time == slot.instant_time for one in archived)


def is_truncated_since(context: TableContext, slot: Slot, overruns: int) -> bool:
    """
    Whether a slot was settled and collected under a process that slept (HELP-2).

    What a restore or a cancel took away is not in the history, and the slot that tells so may be
    collected with it. Outside: nothing while the pin was shown a moment ago, else 1 list.
    """
    if _slots_are_kept(context, overruns):
        return False
    return truncated_up_to(context.world.storage) >= slot.number


def _write_mark(context: TableContext, number: int) -> int:
    """Show a pin; it is trusted once the boundary is known not to have passed the one before."""
    pin = context.pin
    started = context.world.clock.monotonic_ms()
    grace_ms = GRACE_OF_SILENCES * context.limits.heartbeat.tolerated_ms
    document = {**(pin.entry or {}), "pin": number, "grace_ms": grace_ms}
    context.world.storage.write(pin.path, json.dumps(document, sort_keys=True).encode())
    pin.number = number
    return started


def _is_trusted(context: TableContext) -> bool:
    """Whether nobody can have overrun the pin: half the grace is left for a request to land."""
    silence_ms = context.world.clock.monotonic_ms() - context.pin.shown_at_ms
    return 2 * silence_ms < GRACE_OF_SILENCES * context.limits.heartbeat.tolerated_ms


def _slots_are_kept(context: TableContext, overruns: int) -> bool:
    """Whether everything above the pin is as it was; who is in no registry holds nothing back."""
    pin = context.pin
    return pin.entry is not None and pin.overruns == overruns and _is_trusted(context)


def _reset(context: TableContext) -> None:
    """Nothing that was held is there for sure: every write under way is void."""
    context.pin.held.clear()
    if context.pin.entry is None:
        context.chain.restart()
        context.pin.overruns = next(context.pin.numbers)
    else:
        set_low_water_mark(context)
    context.world.events.emit("pin.overrun", pin=context.pin.number)


def _overrun(**fields: object) -> HeartbeatExpiredError:
    return HeartbeatExpiredError(
        "this process paused so long that what it had to be compared with was archived; write "
        "again",
        kind="pin_overrun",
        **fields,
    )

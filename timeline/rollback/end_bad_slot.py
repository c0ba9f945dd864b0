"""
End a slot that no writer can apply: forged, damaged or too large (SLOT-11).

Every writer refuses such a slot before it changes anything, so the slot stops the table. A user
without a backup of the slot ends it here: a slot that decides nothing takes its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timeline.codecs.commit_log import decode_slot, encode_slot
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    InstantNotFoundError,
    InvalidInputError,
    MalformedNameError,
)
from timeline.model.file_names import OURS, SLOTS, slot_path
from timeline.model.instant import Action
from timeline.model.instant_time import (
    EARLIEST,
    InstantTime,
    WallMs,
    ahead_ms,
    instant_time,
    wall_ms,
)
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.ports.ports import ObjectMissingError

_KEPT: Final = f"{OURS}/ended"
_KEPT_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSlot:
    """A slot that no writer can apply, and the reason."""

    number: int
    path: str
    why: str


def find_bad_slot(context: TableContext, number: int | None = None) -> BadSlot:
    """
    Find a slot that no writer can apply.

    Args:
        context: The table.
        number: Number of the slot; None for the first such slot. This clock may be wrong. So a slot
            whose time is ahead of it by more than ``hoodoo.clock.max.ahead.ms`` is found only by
            its number, and only if its file is not on the timeline.

    Raises:
        InstantNotFoundError: There is no such slot.
        InvalidInputError: The slot is good, so it is never ended (``good_slot``).
        UnsupportedTableError: A newer release wrote it.

    Outside: 1 list, 1 get per slot, 1 stat for each file that it deletes; with a number the
    timeline.
    """
    storage = context.ports.storage
    names = [name for name in storage.names(SLOTS) if name.isdecimal()]
    numbers = [int(name) for name in names if name == slot_path(int(name)).rpartition("/")[2]]
    if number is not None:
        numbers = [one for one in numbers if one == number]
    for one in numbers:
        why = _why_bad(context, one, named=number is not None)
        if why is not None:
            return BadSlot(number=one, path=slot_path(one), why=why)
    if number is not None and not numbers:
        raise InstantNotFoundError(
            "the commit log has no slot with this number; 'hoodoo table verify TABLE' lists the "
            f"damaged ones: {number}",
            kind="no_such_slot",
        )
    raise InvalidInputError(
        "the slot is valid, so it is not ended. To undo a write, run 'hoodoo rollback TABLE "
        f"INSTANT' or 'hoodoo restore TABLE INSTANT': {slot_path(number)}"
        if number is not None
        else "all commit slots are valid. If a time is ahead of a correct clock, name its slot by "
        "number",
        kind="good_slot",
    )


def end_slot(context: TableContext, number: int) -> BadSlot:
    """
    Replace a slot that no writer can apply by a slot that decides nothing.

    The old slot's decision is lost. A commit whose completed file is not on the timeline counts as
    failed and is rolled back. The old bytes stay in ``.hoodie/.hoodoo/ended`` up to a size of 16
    MiB.

    Raises: As ``find_bad_slot``, LockTimeoutError.

    Outside: the lock, twice the reads of ``find_bad_slot``, 1 get, at most 2 puts.
    """
    ports, path = context.ports, slot_path(number)
    storage = ports.storage
    with ports.lock.acquire(f"end slot {number}"):
        found = find_bad_slot(context, number)
        identity = ports.ids.identity()
        time = _time_after_those_before(context, number)
        nothing = Slot(
            number=number,
            table_id=context.identity.ensure(ports),
            kind=SlotKind.NOOP,
            action=Action.ROLLBACK,
            requested_time=time,
            completion_time=time,
            base=number - 1,
            nonce=ports.ids.nonce(),
            owner=SlotOwner(host=identity.host, pid=identity.pid, writer_id=identity.writer_id),
        )
        _keep(context, path, number)
        if storage.capabilities.slots == "storage":
            storage.write(path, encode_slot(nothing), durable=True)
        else:  # a slot store cannot replace a slot
            storage.delete(path)
            storage.create(path, encode_slot(nothing))
    ports.events.emit("slot.ended", number=number, why=found.why)
    return found


def _why_bad(context: TableContext, number: int, *, named: bool) -> str | None:
    path, storage = slot_path(number), context.ports.storage
    try:
        slot = decode_slot(storage.read(path), path=path, number=number)
        for one in slot.deletes:  # a link or a folder in the path would stop its clean for ever
            there = storage.stat(one)
            if there is not None and there.is_folder:
                return f"it deletes a folder: {one}"
        if named:
            return _why_ahead(context, slot)
    except ObjectMissingError:
        return None  # truncated since
    except MalformedNameError as error:
        return f"it names a path that is not a file of the table: {error.message}"
    except CorruptTableError as error:
        return error.message
    return None


def _why_ahead(context: TableContext, slot: Slot) -> str | None:
    ahead = ahead_ms(WallMs(context.ports.clock.now_ms()), slot.newest_time, context.zone)
    shown = slot.file_name in context.active().file_names
    if shown or ahead <= context.limits.skew.refuse_ms:
        return None
    return (
        f"its time {slot.newest_time} is {ahead / 1000:.0f} s ahead of this clock, so no writer "
        "can commit after it; make sure that this clock is correct"
    )


def _time_after_those_before(context: TableContext, number: int) -> InstantTime:
    """Return a time above the slots before, so that times still ascend with the numbers."""
    for earlier in range(number - 1, 0, -1):
        path = slot_path(earlier)
        try:
            before = decode_slot(context.ports.storage.read(path), path=path, number=earlier)
        except ObjectMissingError:
            break  # truncated, with all slots before it
        except CorruptTableError:
            continue
        return instant_time(WallMs(wall_ms(before.newest_time) + 1))
    return EARLIEST


def _keep(context: TableContext, path: str, number: int) -> None:
    storage = context.ports.storage
    try:
        data = storage.read(path)
    except (ObjectMissingError, CorruptTableError):
        return  # too large, or no file
    if len(data) <= _KEPT_BYTES_MAX:
        storage.write(f"{_KEPT}/{number:020d}", data, durable=True)

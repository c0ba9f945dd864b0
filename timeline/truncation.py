"""
Read the truncation point, and keep the low-water mark of this process valid (GC-2 to GC-4).

Every process that changes the table writes a low-water mark in its registry entry: it needs the
slots above that number. The archiver stops below every mark that it finds, except marks that were
not renewed for the grace. The owner of such a mark notices by its own monotonic clock that the
archiver may have passed it. The owner then reads the truncation point. If that is above the mark,
the owner abandons its writes.
"""

from __future__ import annotations

import json
import re
from typing import Final

from timeline.codecs.commit_log import (
    NO_TRUNCATION,
    CommittedBatch,
    TruncationPoint,
    decode_truncation_point,
)
from timeline.context import TableContext
from timeline.errors import CorruptTableError, HeartbeatExpiredError, MissingFileError
from timeline.model.file_names import BOUNDARIES, slot_path, truncation_point_path
from timeline.model.instant_time import InstantTime
from timeline.model.slot import NOT_APPLIED_MAX, Slot
from timeline.ports.ports import ObjectMissingError, Storage

GRACE_OF_SILENCES: Final = 5
"""A mark is overrun after its owner was silent for this many times the tolerated heartbeat gap."""

_LAG_MAX = 16  # slots
_NAME = re.compile(r"[0-9]{20}")


def truncated_up_to(storage: Storage) -> int:
    """Return the truncation point, 0 for none. Outside: 1 list."""
    names = (name for name in storage.names(BOUNDARIES) if _NAME.fullmatch(name))
    return max(map(int, names), default=0)


def read_truncation_point(storage: Storage) -> TruncationPoint:
    """Read the truncation point with the batches that it repeats. Outside: 1 list, 1 get."""
    while True:
        number = truncated_up_to(storage)
        if number == 0:
            return NO_TRUNCATION
        path = truncation_point_path(number)
        try:
            truncation_point = decode_truncation_point(storage.read(path), path=path)
        except ObjectMissingError:
            continue  # a greater one replaced it meanwhile
        if truncation_point.number != number:
            raise CorruptTableError(
                "the file of a truncation point was moved: restore it from a backup under its "
                f"own name: {path} contains number {truncation_point.number}",
                path=path,
            )
        return truncation_point


def read_truncated_batches(storage: Storage, number: int) -> tuple[CommittedBatch, ...]:
    """
    Read the batches from the file of one truncation point, present or earlier. Outside: 1 get.

    Raises:
        ObjectMissingError: The file is deleted.
        CorruptTableError: The file cannot be read.
    """
    path = truncation_point_path(number)
    return decode_truncation_point(storage.read(path), path=path).batches


def set_low_water_mark(context: TableContext) -> None:
    """
    Write a mark that is not below the truncation point (GC-3).

    Outside: 1 put, 1 list, slot probes.

    The archiver reads the marks again after it moved the truncation point. So either the archiver
    sees this mark, or this function sees the new truncation point.
    """
    keep_low_water_mark_above(context, write_low_water_mark(context, context.commit_log.rescan()))


def write_low_water_mark(context: TableContext, head: int) -> int:
    """
    Write a mark that keeps the last slots, which may not be applied yet. Outside: 1 put.

    Returns the monotonic time before the request; ``keep_low_water_mark_above`` trusts the mark
    from then on.
    """
    return _write_mark(context, max(head - NOT_APPLIED_MAX, 0))


def keep_low_water_mark_above(context: TableContext, written_at_ms: int) -> None:
    """
    Raise the mark until the truncation point is not above it, then trust it. Outside: 1 list.

    Writes that began before do not count as kept. A commit section that refreshed before the
    truncation point was known reads it once more after it has a slot.
    """
    pin = context.low_water_mark
    while (reached := truncated_up_to(context.ports.storage)) > pin.number:
        head = context.commit_log.rescan(at_least=reached)
        written_at_ms = _write_mark(context, max(head - NOT_APPLIED_MAX, reached))
    pin.overruns = next(pin.numbers)
    pin.written_at_ms = written_at_ms


def raise_low_water_mark(context: TableContext) -> None:
    """
    Beat: show that this process lives, and release the slots that it no longer needs.

    A process that only reads releases slots as well; otherwise it would block archiving forever.
    Outside: 1 list, 1 put; 1 list more when the last beat is too long ago.
    """
    pin = context.low_water_mark
    before = pin.number
    context.commit_log.cached_head()
    written_at_ms = _write_mark(context, pin.floor(context.commit_log.known_head))
    context.commit_log.forget(pin.number)
    # Checked after the new mark is written. The listing and the put may have taken long, and no
    # later check would notice that the archiver passed the mark meanwhile.
    if not _is_trusted(context) and truncated_up_to(context.ports.storage) > before:
        _reset(context)
    else:
        pin.written_at_ms = written_at_ms


def advance_low_water_mark(context: TableContext) -> None:
    """
    Raise the mark after a commit, so that a busy writer does not block archiving until its beat.

    Outside: as ``raise_low_water_mark`` once every few slots, else nothing.
    """
    pin = context.low_water_mark
    if pin.entry is not None and pin.floor(context.commit_log.known_head) - pin.number >= _LAG_MAX:
        raise_low_water_mark(context)


def assert_not_truncated(context: TableContext) -> None:
    """
    Raise unless all slots above this process's mark still exist (GC-4).

    Outside: nothing while the mark is recent, else 1 list.

    Raises:
        HeartbeatExpiredError: The process paused so long that the archiver passed its mark. Its
            running writes are void; the next begin has a new mark.
    """
    pin = context.low_water_mark
    if pin.entry is None or _is_trusted(context):
        return
    if truncated_up_to(context.ports.storage) > pin.number:
        _reset(context)
        raise _overrun()


def slots_since(context: TableContext, after: int, last: int) -> list[Slot]:
    """
    Return the slots ``after < n <= last`` since a refresh. Outside: as ``CommitLog.between``.

    Raises:
        HeartbeatExpiredError: They were truncated, because this process was silent for too long
            and its mark was set again since.
        MissingFileError: One of them was truncated, and the mark does not explain it.
    """
    try:
        return context.commit_log.between(after, last)
    except MissingFileError:
        if context.low_water_mark.entry is not None and context.low_water_mark.number > after:
            raise _overrun() from None
        raise


def slots_since_snapshot(context: TableContext, after: int, last: int) -> list[Slot] | None:
    """
    Return the slots ``after < n <= last`` since a decision, or None if one was truncated.

    The decision of a service has no mark. While the service decides, the beats of its process
    release the slots that it read (``raise_low_water_mark``), and another process may truncate
    them. On None the service decides again. Outside: as ``CommitLog.between``; 1 list where a slot
    is missing.

    Raises:
        MissingFileError: A slot is missing, and no truncation explains it.
    """
    try:
        return context.commit_log.between(after, last)
    except MissingFileError:
        if truncated_up_to(context.ports.storage) <= after:
            raise
        return None


def renew_low_water_mark(context: TableContext) -> bool:
    """
    Set a new mark before a write begins, if this process slept too long.

    Outside: nothing while the mark is recent, else 1 list.

    Returns:
        Whether earlier reads of the commit log no longer count.
    """
    try:
        assert_not_truncated(context)
    except HeartbeatExpiredError:
        return True
    return False


def assert_slots_kept(context: TableContext, requested_time: InstantTime) -> None:
    """
    Raise unless all slots since the write's base snapshot were kept for its validation.

    Raises:
        HeartbeatExpiredError: As ``assert_not_truncated``; another code path noticed it meanwhile.
    """
    if (
        context.low_water_mark.entry is not None
        and requested_time not in context.low_water_mark.kept_above
    ):
        raise _overrun(requested_time=requested_time)


def is_truncated(context: TableContext, slot: Slot, overruns: int) -> bool:
    """
    Return whether a slot that was just created is already applied, archived and truncated.

    Outside: nothing while the mark is recent, else (also without a mark) 1 list. Below the
    truncation point 1 delete, 1 list and the archived timeline.

    Args:
        context: The table.
        slot: Created by this process.
        overruns: The mark's ``overruns`` when the process refreshed.

    Raises:
        HeartbeatExpiredError: Another writer took the number earlier, and that slot was truncated
            since. The new slot decides nothing (GC-2, UNK-4).
    """
    if _slots_are_kept(context, overruns):
        return False
    if truncated_up_to(context.ports.storage) < slot.number:
        return False
    context.ports.storage.delete(slot_path(slot.number))
    _reset(context)
    ended = {one.requested_time for one in context.active().instants if one.completed}
    ended.update(one.requested_time for one in context.archived_timeline.instants())
    if slot.instant_time in ended:
        return True
    context.commit_log.mark_void(slot)
    raise _overrun(requested_time=slot.requested_time)


def is_archived_since(context: TableContext, slot: Slot, overruns: int) -> bool:
    """
    Return whether a slot's instant was archived while this process slept (GC-3, GC-6).

    Outside: nothing while the mark is recent, else the archived timeline.
    """
    if _slots_are_kept(context, overruns):
        return False
    archived = context.archived_timeline.instants()
    return any(one.requested_time == slot.instant_time for one in archived)


def is_truncated_since(context: TableContext, slot: Slot, overruns: int) -> bool:
    """
    Return whether a slot was applied and truncated while this process slept (HELP-2).

    The archived timeline does not list instants that a restore or a cancel removed, and the slot
    that removed them may be truncated too. Outside: nothing while the mark is recent, else 1 list.
    """
    if _slots_are_kept(context, overruns):
        return False
    return truncated_up_to(context.ports.storage) >= slot.number


def _write_mark(context: TableContext, number: int) -> int:
    """Write a mark; it is trusted once the truncation point has not passed the mark before it."""
    pin = context.low_water_mark
    started = context.ports.clock.monotonic_ms()
    grace_ms = GRACE_OF_SILENCES * context.limits.heartbeat.tolerated_ms
    document = {**(pin.entry or {}), "pin": number, "grace_ms": grace_ms}
    context.ports.storage.write(pin.path, json.dumps(document, sort_keys=True).encode())
    pin.number = number
    return started


def _is_trusted(context: TableContext) -> bool:
    """Return whether no archiver can have overrun the mark; slow requests have half the grace."""
    silence_ms = context.ports.clock.monotonic_ms() - context.low_water_mark.written_at_ms
    return 2 * silence_ms < GRACE_OF_SILENCES * context.limits.heartbeat.tolerated_ms


def _slots_are_kept(context: TableContext, overruns: int) -> bool:
    """Return whether all slots above the mark still exist; without registry entry none are kept."""
    pin = context.low_water_mark
    return pin.entry is not None and pin.overruns == overruns and _is_trusted(context)


def _reset(context: TableContext) -> None:
    """Set a new mark and void every running write, because its slots may be truncated."""
    context.low_water_mark.kept_above.clear()
    if context.low_water_mark.entry is None:
        context.commit_log.restart()
        context.low_water_mark.overruns = next(context.low_water_mark.numbers)
    else:
        set_low_water_mark(context)
    context.ports.events.emit("pin.overrun", pin=context.low_water_mark.number)


def _overrun(**fields: object) -> HeartbeatExpiredError:
    return HeartbeatExpiredError(
        "this process paused for so long that the commits it must compare with were archived; "
        "write again",
        kind="pin_overrun",
        **fields,
    )

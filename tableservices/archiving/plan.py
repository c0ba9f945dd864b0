"""
What may be archived, and which commit slots may be collected; pure (GC-1).

Completed writes go in the order of requested times, so that no hole opens in the active
timeline: below its first write everything counts as committed (fmt 6.3). The first of them
that somebody may still need ends the cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tableservices.archiving.remembering import CarriedBatches
from tableservices.archiving.settings import ArchivingSettings
from timeline.active import ActiveTimeline
from timeline.model.boundary import Boundary, PublishedBatch
from timeline.model.filenames import instant_file_name
from timeline.model.instant import Action, Instant
from timeline.model.slot import Slot, SlotKind
from timeline.model.times import InstantTime
from timeline.reading.withdrawal import withdrawn_by, withdrawn_in
from timeline.writing.batches import batches_of

__all__ = [
    "CUT_INSTANTS_MAX",
    "choose_instants",
    "compaction_line",
    "ended_by",
    "is_due",
    "left_behind",
    "needed_since",
    "next_boundary",
]

#: So many instants move at a time; more come in the next cut.
CUT_INSTANTS_MAX = 500

#: Slots whose instant has to be archived before they go.
_SHOWN = frozenset({SlotKind.COMMIT, SlotKind.PLAN, SlotKind.ABORT})
#: Slots that become a file of their own instant.
_WRITES_FILES = frozenset({*_SHOWN, SlotKind.CLEAN, SlotKind.RESTORE})


def is_due(
    timeline: ActiveTimeline,
    settings: ArchivingSettings,
    released: Collection[InstantTime] = frozenset(),
) -> bool:
    """Whether there are more completed commits than are kept, or one that is not kept any more."""
    more = len(timeline.completed_writes) > settings.commits_kept_max
    return more or bool(left_behind(timeline, released))


def left_behind(timeline: ActiveTimeline, saved: Collection[InstantTime]) -> tuple[Instant, ...]:
    """
    Writes before the first one that no savepoint keeps, of those that these savepoints keep.

    Where commits behind a savepoint are archived (``hoodie.archive.beyond.savepoint``), they are
    archived for readers because they lie below that first one. Without its savepoint the saved
    write would be the first, and they would be nobody's (fmt 6.3). Where savepoints keep every
    write, the newest of them takes the place of that first one.
    """
    writes = timeline.completed_writes
    first = timeline.first_write_time or (writes[-1].requested_time if writes else "")
    return tuple(
        one for one in writes if one.requested_time in saved and one.requested_time < first
    )


def choose_instants(
    timeline: ActiveTimeline,
    settings: ArchivingSettings,
    lines: Iterable[InstantTime],
    released: Collection[InstantTime] = frozenset(),
) -> tuple[Instant, ...]:
    """
    The completed instants that move, ascending by requested time.

    Writes first; then cleans and rollbacks requested before the last of them. None of these
    stays: Java Hudi takes an archived write above the first active instant for a pending one, and
    reads its logs upon the newest base file (fmt 6.1).

    Args:
        timeline: The active timeline.
        settings: How many commits stay.
        lines: Nothing requested at or after any of these times moves.
        released: Saved writes whose savepoint is about to be deleted; those left behind move
            first.
    """
    freed = left_behind(timeline, released)
    if freed:
        line = min(lines, default=None)
        return tuple(
            one for one in freed if not one.legacy and (line is None or one.requested_time < line)
        )
    if not is_due(timeline, settings):
        return ()
    pending = min((one.requested_time for one in timeline.pending), default=None)
    saved = {one.requested_time for one in timeline.instants if one.action is Action.SAVEPOINT}
    ends = [*lines, *([] if settings.beyond_savepoint else saved)]
    end = min(ends, default=None)
    kept = min(
        (one.newest_time for one in timeline.completed_writes if one.requested_time in saved),
        default="",
    )
    writes: list[Instant] = []
    for one in timeline.completed_writes[: -settings.commits_kept_min]:
        # What completed while an older write was under way is what that one is judged by.
        if pending is not None and one.newest_time >= pending:
            break
        if (end is not None and one.requested_time >= end) or one.legacy:
            break
        # What began before a saved write and completed after it: a restore takes it away.
        if kept and not settings.beyond_savepoint and one.newest_time > kept:
            break
        if not settings.beyond_savepoint or one.requested_time not in saved:
            writes.append(one)
        if len(writes) == CUT_INSTANTS_MAX:
            break
    if not writes:
        return ()
    last = writes[-1].requested_time
    upkeep = [
        one
        for one in timeline.instants
        if one.completed
        and one.action in (Action.CLEAN, Action.ROLLBACK)
        and one.requested_time < last
        and (pending is None or one.newest_time < pending)
    ]
    return tuple(sorted([*writes, *upkeep], key=lambda one: one.requested_time))


def compaction_line(timeline: ActiveTimeline, delta_commits_max: int) -> InstantTime | None:
    """
    What a merge-on-read table keeps so that its next compaction is still due in time.

    As Java Hudi: the last compaction while fewer delta commits than trigger one came since,
    else the oldest of those that trigger it.
    """
    completed = timeline.completed_writes
    compactions = [one for one in completed if one.action is Action.COMMIT]
    last = max(compactions, key=lambda one: one.newest_time, default=None)
    since = [
        one
        for one in completed
        if one.action is Action.DELTACOMMIT
        and (last is None or one.newest_time > last.requested_time)
    ]
    if len(since) >= delta_commits_max:
        return since[-delta_commits_max].requested_time
    if last is not None:
        return last.requested_time
    return since[0].requested_time if since else None


def ended_by(slot: Slot) -> frozenset[InstantTime]:
    """Requested times of instants that a slot ended before or after they were published."""
    if slot.kind in (SlotKind.ABORT, SlotKind.CANCEL):
        return frozenset({slot.requested_time})
    return withdrawn_by(slot)


def needed_since(slots: Iterable[Slot], ceiling: int) -> InstantTime | None:
    """
    The oldest instant whose slot lies above ``ceiling``, None for none (GC-3).

    Whoever pinned those slots may be about to write their completed files.
    """
    shown = (s.instant_time for s in slots if s.number > ceiling and s.kind in _WRITES_FILES)
    return min(shown, default=None)


def next_boundary(
    former: Boundary,
    timeline: ActiveTimeline,
    going: Sequence[Instant],
    slots: Sequence[Slot],
    *,
    ceiling: int,
    carried: CarriedBatches,
) -> Boundary:
    """
    The boundary that takes these instants with it; its number may stay where it was.

    Args:
        former: That of the last cut.
        timeline: The active timeline.
        going: What moves to the history.
        slots: The chain above the former boundary, oldest first.
        ceiling: The greatest slot that no pin and no other reason keeps.
        carried: What it takes over of the batches that the former one knew; while its number
            stays, nobody reads it but the next cut, and it has them all.
    """
    moved = {(one.requested_time, one.action) for one in going}
    left = {
        (one.requested_time, one.action.completes_as)
        for one in timeline.instants
        if not (one.completed and (one.requested_time, one.action) in moved)
    }
    newest_commit = max((s.number for s in slots if s.kind is SlotKind.COMMIT), default=0)
    number, digest = former.number, former.digest
    batches: list[PublishedBatch] = []
    for slot in slots:
        if slot.number > ceiling or slot.number >= newest_commit or _shows(slot, left):
            break
        number, digest = slot.number, slot.digest
        batches += batches_of(slot)
    if number == former.number:
        carried = CarriedBatches(batches=former.batches, earlier=former.earlier)
    withdrawn = withdrawn_in(slots)
    new = (
        one
        for one in batches
        if one.completion_time >= carried.since and one.requested_time not in withdrawn
    )
    return Boundary(
        number=number,
        time=max([former.time, *(one.newest_time for one in going)]),
        completed=tuple(instant_file_name(one) for one in going),
        batches=(*carried.batches, *new),
        digest=digest,
        earlier=carried.earlier,
    )


def _shows(slot: Slot, left: set[tuple[InstantTime, Action]]) -> bool:
    """Whether the instant a slot decided about is still on the timeline."""
    if slot.kind not in _SHOWN:
        return False
    action = Action.ROLLBACK if slot.kind is SlotKind.ABORT else slot.action.completes_as
    return (slot.instant_time, action) in left

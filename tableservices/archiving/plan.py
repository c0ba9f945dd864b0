"""Plan an archive: which instants move, and which slots are truncated (GC-1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from filegroups.writing.idempotency import batches_of
from tableservices.archiving.batch_ids import RememberedBatches
from tableservices.archiving.settings import ArchiveRules, ArchivingSettings
from tableservices.cleaning.plan import (
    earliest_commit_to_retain,
    pending_that_need_files,
    read_last_clean,
)
from tableservices.cleaning.settings import CleaningSettings
from tableservices.compaction.settings import CompactionSettings, CompactionTrigger
from tableservices.schedule_plan import PLANS
from timeline.active_timeline import ActiveTimeline
from timeline.codecs.truncation_point import CommittedBatch, TruncationPoint
from timeline.context import TableContext
from timeline.layout import slot_path
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import (
    check_partition_path,
    instant_file_name,
    parse_base_file_name,
    parse_log_file_name,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.slot import NOT_APPLIED_MAX, Slot, SlotKind
from timeline.model.write_set import Access, FileGroupId
from timeline.ports.storage import Storage
from timeline.restored_away import restored_away_by, restored_away_in
from timeline.snapshot import Snapshot
from timeline.truncation import GRACE_OF_SILENCES
from timeline.writer_registry import registered_writers

__all__ = [
    "TRUNCATE_INSTANTS_MAX",
    "ArchivalLimits",
    "archival_limits",
    "ceiling_of",
    "choose_instants",
    "compaction_limit",
    "ended_by",
    "is_due",
    "kept_by_savepoint",
    "needed_since",
    "next_truncation_point",
]

# ----- Gathers what holds an archive back: all looking of the decision is here (GC-1, GC-3, RB-10)
#
# Each line is a requested time; nothing at or after the oldest of them moves.

_HOUR_MS = 3_600_000
_WRITING = frozenset({Access.NEW, Access.BASE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivalLimits:
    """
    The lines of one decision, and the greatest slot that nobody has pinned.

    ``ended`` are instants that came to nothing, of which no file may be left when the cut
    has passed them.
    """

    times: tuple[InstantTime, ...]
    ceiling: int
    ended: tuple[InstantTime, ...] = ()

    def and_(self, *more: InstantTime | None) -> ArchivalLimits:
        """With further lines, those that there are."""
        return replace(self, times=(*self.times, *(one for one in more if one)))


def ceiling_of(context: TableContext, head: int) -> int:
    """
    The greatest slot number that no process still needs. Outside: 1 list, 1 get per writer.

    The newest slots stay anyway: the head is found by them, and they may not be settled.
    """
    own = context.world.ids.identity().writer_id
    pins = [one.pin for one in registered_writers(context, but=own) if not one.silent]
    return min([*pins, context.pin.floor(head), head - NOT_APPLIED_MAX])


def archival_limits(
    context: TableContext,
    snapshot: Snapshot,
    slots: Sequence[Slot],
    rules: ArchiveRules,
) -> ArchivalLimits:
    """
    Look at everything that may need an old instant.

    Outside: the registry; 1 get of the last clean where the settings ask for it; 1 stat per
    ended instant; and while there is something to move, 1 list per partition of which file
    groups were replaced, with 1 stat per plan that was completed just now.

    Args:
        context: The table.
        snapshot: What is visible.
        slots: The chain as far as it is there, oldest first.
        rules: What is kept, and what cleaning and compaction decide by.
    """
    active = snapshot.active
    ceiling = ceiling_of(context, snapshot.head)
    lines = ArchivalLimits(times=(), ceiling=ceiling).and_(
        needed_since(slots, ceiling),
        _cleaning_limit(context, active, rules.cleaning),
        _clean_retained(context, active) if rules.archiving.not_past_clean else None,
        _compaction_limit(context, active, rules.compaction),
    )
    going = choose_instants(active, rules.archiving, lines.times, rules.released)
    if not going:
        return lines
    ended, fresh = _ended(context, slots, before=going[-1].requested_time)
    return replace(lines, ended=ended).and_(
        _unclean_replace(context, snapshot, slots, going), min(fresh, default=None)
    )


def _cleaning_limit(
    context: TableContext, active: ActiveTimeline, cleaning: CleaningSettings
) -> InstantTime | None:
    """The commit before the one that cleaning retains: Java keeps it as well."""
    oldest = min((one.requested_time for one in pending_that_need_files(active)), default=None)
    hours_ago = context.world.clock.now_ms() - cleaning.hours_retained * _HOUR_MS
    writes = active.completed_writes
    line = earliest_commit_to_retain(writes, oldest, cleaning, context.zone.from_then_on(hours_ago))
    if line is None:
        return None
    return writes[max(0, writes.index(line) - 1)].requested_time


def _compaction_limit(
    context: TableContext, active: ActiveTimeline, compaction: CompactionSettings
) -> InstantTime | None:
    if context.config.table_type is not TableType.MERGE_ON_READ:
        return None
    if compaction.trigger not in (CompactionTrigger.NUM_COMMITS, CompactionTrigger.NUM_AND_TIME):
        return None
    return compaction_limit(active, compaction.commits_max)


def _clean_retained(context: TableContext, active: ActiveTimeline) -> InstantTime | None:
    # One that is archived retains less than the writes that are left.
    last = read_last_clean(context, active)
    return last.earliest_commit_to_retain or None if last is not None else None


def _unclean_replace(
    context: TableContext, snapshot: Snapshot, slots: Sequence[Slot], going: Sequence[Instant]
) -> InstantTime | None:
    """
    The first replacing instant whose replaced files are still there, or may still come.

    Once it is archived nothing hides them any more: readers would see old rows twice. Looking
    for the files is exact whoever cleans, by whatever policy.
    """
    replacing = [one for one in going if one.action is Action.REPLACECOMMIT]
    present: dict[str, frozenset[str]] = {}
    coming = _may_come(context, snapshot, slots) if replacing else frozenset()
    for one in replacing:
        replaced = snapshot.commits.read(one).partition_to_replace_file_ids or {}
        for partition_path, file_ids in replaced.items():
            if partition_path not in present:
                present[partition_path] = _file_ids(context.world.storage, partition_path)
            if not present[partition_path].isdisjoint(file_ids):
                return one.requested_time
            if any(FileGroupId(partition_path, file_id) in coming for file_id in file_ids):
                return one.requested_time
    return None


def _may_come(
    context: TableContext, snapshot: Snapshot, slots: Sequence[Slot]
) -> frozenset[FileGroupId]:
    """
    File groups of which an executor that slept may write a file, its plan being completed.

    Another executor completed it; the sleeper notices with its next request (RB-10), which
    may be a file of what the plan made, or of groups that it gave up. Outside: 1 stat per plan
    that was completed within the grace, and 1 more.
    """
    found: set[FileGroupId] = set()
    for slot in reversed(slots):
        if slot.kind is not SlotKind.COMMIT or slot.action not in PLANS:
            continue
        if _is_aged(context, slot):
            break
        written = {one.file_group for one in slot.claim.file_groups if one.touch in _WRITING}
        taken = {one.file_group for one in slot.claim.file_groups} - written
        done = snapshot.active.find(slot.requested_time, slot.action.completes_as)
        if done is not None and done.completed:
            hidden = snapshot.commits.read(done).replaced_file_groups()
            found |= {FileGroupId(*group) for group in hidden} - taken
        found |= written
    return frozenset(found)


def _file_ids(storage: Storage, partition_path: str) -> frozenset[str]:
    check_partition_path(partition_path)
    parsed = (
        parse_base_file_name(name) or parse_log_file_name(name)
        for name in storage.names(partition_path)
    )
    return frozenset(file.file_id for file in parsed if file is not None)


def _ended(
    context: TableContext, slots: Sequence[Slot], *, before: InstantTime
) -> tuple[tuple[InstantTime, ...], tuple[InstantTime, ...]]:
    """
    Instants that ended without a result up to a time: long ago, and just now.

    Below the first active write every file counts as committed, so nothing of them may be
    left there, and nothing may come: their owners, had they only slept, must have noticed by
    then (RB-10).
    """
    old: list[InstantTime] = []
    fresh: list[InstantTime] = []
    for slot in slots:
        targets = [target for target in ended_by(slot) if target <= before]
        if targets:
            (old if _is_aged(context, slot) else fresh).extend(targets)
    return tuple(old), tuple(fresh)


def _is_aged(context: TableContext, slot: Slot) -> bool:
    """Whether whoever slept when the slot was taken must have noticed by now. Outside: 1 stat."""
    storage = context.world.storage
    stat = storage.stat(slot_path(slot.number))
    grace_ms = GRACE_OF_SILENCES * context.limits.heartbeat.tolerated_ms
    return stat is None or storage.now_ms() - stat.modified_ms > grace_ms


# ---------------------- What may be archived, and which commit slots may be collected; pure (GC-1)
#
# Completed writes go in the order of requested times, so that no hole opens in the active
# timeline: below its first write everything counts as committed (fmt 6.3). The first of them
# that somebody may still need ends the cut.

#: So many instants move at a time; more come in the next cut.
TRUNCATE_INSTANTS_MAX = 500

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
    return more or bool(kept_by_savepoint(timeline, released))


def kept_by_savepoint(
    timeline: ActiveTimeline, saved: Collection[InstantTime]
) -> tuple[Instant, ...]:
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
    freed = kept_by_savepoint(timeline, released)
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
        if len(writes) == TRUNCATE_INSTANTS_MAX:
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


def compaction_limit(timeline: ActiveTimeline, delta_commits_max: int) -> InstantTime | None:
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
    return restored_away_by(slot)


def needed_since(slots: Iterable[Slot], ceiling: int) -> InstantTime | None:
    """
    The oldest instant whose slot lies above ``ceiling``, None for none (GC-3).

    Whoever pinned those slots may be about to write their completed files.
    """
    shown = (s.instant_time for s in slots if s.number > ceiling and s.kind in _WRITES_FILES)
    return min(shown, default=None)


def next_truncation_point(
    former: TruncationPoint,
    timeline: ActiveTimeline,
    going: Sequence[Instant],
    slots: Sequence[Slot],
    *,
    ceiling: int,
    carried: RememberedBatches,
) -> TruncationPoint:
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
    batches: list[CommittedBatch] = []
    for slot in slots:
        if slot.number > ceiling or slot.number >= newest_commit or _shows(slot, left):
            break
        number, digest = slot.number, slot.digest
        batches += batches_of(slot)
    if number == former.number:
        carried = RememberedBatches(batches=former.batches, earlier=former.earlier)
    withdrawn = restored_away_in(slots)
    new = (
        one
        for one in batches
        if one.completion_time >= carried.since and one.requested_time not in withdrawn
    )
    return TruncationPoint(
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

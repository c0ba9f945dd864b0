"""
Gathers what holds an archive back: all looking of the decision is here (GC-1, GC-3, RB-10).

Each line is a requested time; nothing at or after the oldest of them moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tableservices.archiving.plan import (
    choose_instants,
    compaction_line,
    ended_by,
    needed_since,
)
from tableservices.archiving.settings import ArchiveRules
from tableservices.cleaning.facts import needing, read_last_clean
from tableservices.cleaning.plan import retained_line
from tableservices.cleaning.settings import CleaningSettings
from tableservices.compaction.settings import CompactionSettings, CompactionTrigger
from tableservices.scheduling import PLANS
from timeline.active import ActiveTimeline
from timeline.boundary import GRACE_OF_SILENCES
from timeline.context import TableContext
from timeline.model.claim import FileGroupId, Touch
from timeline.model.filenames import parse_base_file_name, parse_log_file_name
from timeline.model.instant import Action, Instant
from timeline.model.operations import TableType
from timeline.model.paths import check_partition_path
from timeline.model.slot import UNSETTLED_MAX, Slot, SlotKind
from timeline.model.times import InstantTime
from timeline.places import slot_path
from timeline.ports.storage import Storage
from timeline.reading.snapshot import Snapshot
from timeline.registry import registered_writers

__all__ = ["Lines", "ceiling_of", "lines_of"]

_HOUR_MS = 3_600_000
_WRITING = frozenset({Touch.NEW, Touch.BASE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """
    The lines of one decision, and the greatest slot that nobody has pinned.

    ``ended`` are instants that came to nothing, of which no file may be left when the cut
    has passed them.
    """

    times: tuple[InstantTime, ...]
    ceiling: int
    ended: tuple[InstantTime, ...] = ()

    def and_(self, *more: InstantTime | None) -> Lines:
        """With further lines, those that there are."""
        return replace(self, times=(*self.times, *(one for one in more if one)))


def ceiling_of(context: TableContext, head: int) -> int:
    """
    The greatest slot number that no process still needs. Outside: 1 list, 1 get per writer.

    The newest slots stay anyway: the head is found by them, and they may not be settled.
    """
    own = context.world.ids.identity().writer_id
    pins = [one.pin for one in registered_writers(context, but=own) if not one.silent]
    return min([*pins, context.pin.floor(head), head - UNSETTLED_MAX])


def lines_of(
    context: TableContext,
    snapshot: Snapshot,
    slots: Sequence[Slot],
    rules: ArchiveRules,
) -> Lines:
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
    lines = Lines(times=(), ceiling=ceiling).and_(
        needed_since(slots, ceiling),
        _cleaning_line(context, active, rules.cleaning),
        _clean_retained(context, active) if rules.archiving.not_past_clean else None,
        _compaction_line(context, active, rules.compaction),
    )
    going = choose_instants(active, rules.archiving, lines.times, rules.released)
    if not going:
        return lines
    ended, fresh = _ended(context, slots, before=going[-1].requested_time)
    return replace(lines, ended=ended).and_(
        _unclean_replace(context, snapshot, slots, going), min(fresh, default=None)
    )


def _cleaning_line(
    context: TableContext, active: ActiveTimeline, cleaning: CleaningSettings
) -> InstantTime | None:
    """The commit before the one that cleaning retains: Java keeps it as well."""
    oldest = min((one.requested_time for one in needing(active)), default=None)
    hours_ago = context.world.clock.now_ms() - cleaning.hours_retained * _HOUR_MS
    writes = active.completed_writes
    line = retained_line(writes, oldest, cleaning, context.zone.from_then_on(hours_ago))
    if line is None:
        return None
    return writes[max(0, writes.index(line) - 1)].requested_time


def _compaction_line(
    context: TableContext, active: ActiveTimeline, compaction: CompactionSettings
) -> InstantTime | None:
    if context.config.table_type is not TableType.MERGE_ON_READ:
        return None
    if compaction.trigger not in (CompactionTrigger.NUM_COMMITS, CompactionTrigger.NUM_AND_TIME):
        return None
    return compaction_line(active, compaction.commits_max)


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

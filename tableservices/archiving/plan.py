"""Plan an archive: its settings, which instants move, and which slots are truncated (GC-1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Self

from pydantic import Field

from filegroups.metadata_table.reading import lag_of_timelines
from filegroups.writing.idempotency import batches_of
from tableservices.archiving.batch_ids import RememberedBatches
from tableservices.cleaning.plan import (
    CleaningPolicy,
    CleaningSettings,
    earliest_commit_to_retain,
    pending_that_need_files,
    read_last_clean,
)
from tableservices.compaction.plan import CompactionSettings, CompactionTrigger
from tableservices.metadata_table.plan import (
    newest_compaction,
    read_metadata_timeline,
    truncation_limit,
)
from tableservices.service import PLANS
from timeline.codecs.commit_log import CommittedBatch, TruncationPoint
from timeline.commit_log import restored_away_by, restored_away_in
from timeline.context import TableContext
from timeline.model.commit_metadata import Access, FileGroupId, TableType
from timeline.model.file_names import (
    check_partition_path,
    instant_file_name,
    parse_base_file_name,
    parse_log_file_name,
    slot_path,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.slot import NOT_APPLIED_MAX, Slot, SlotKind
from timeline.ports.ports import Storage
from timeline.properties.options import OptionKind, OptionSettings, as_property_set, option
from timeline.properties.properties_file import load_config
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.truncation import GRACE_OF_SILENCES
from timeline.writer_registry import registered_writers

# ---- Collect the limits of an archive; all reads of the decision are here (GC-1, GC-3, RB-10)
#
# Each limit is a requested time; no instant at or after the oldest limit moves.

_HOUR_MS = 3_600_000
_WRITING = frozenset({Access.NEW, Access.BASE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivalLimits:
    """
    The limits of one decision, and the greatest slot that no process needs.

    ``ended`` are instants without a result. None of their files may remain when the truncation has
    passed them.
    """

    times: tuple[InstantTime, ...]
    ceiling: int
    ended: tuple[InstantTime, ...] = ()

    def merged_with(self, *more: InstantTime | None) -> ArchivalLimits:
        """Return the limits with further ones; None is left out."""
        return replace(self, times=(*self.times, *(one for one in more if one)))


def ceiling_of(context: TableContext, head: int) -> int:
    """
    Return the greatest slot number that no process needs. Outside: 1 list, 1 get per writer.

    The newest slots always remain: processes find the head by them, and some may not be applied.
    """
    own = context.ports.ids.identity().writer_id
    pins = [one.low_water_mark for one in registered_writers(context, but=own) if not one.silent]
    return min([*pins, context.low_water_mark.floor(head), head - NOT_APPLIED_MAX])


def archival_limits(
    context: TableContext,
    snapshot: Snapshot,
    slots: Sequence[Slot],
    rules: ArchiveRules,
) -> ArchivalLimits:
    """
    Return the limits set by every reader, writer and service that may need an old instant.

    Outside: the registry; as ``_metadata_limit``; 1 get of the last clean where the settings ask for it; 1 stat per ended
    instant; and while there is something to move, 1 list per partition with replaced file groups,
    with 1 stat per plan completed just now.

    Args:
        context: The table.
        snapshot: The visible instants.
        slots: The commit log as far as it exists, oldest first.
        rules: Which instants are kept, and the settings of cleaning and compaction.
    """
    active = snapshot.active
    ceiling = ceiling_of(context, snapshot.head)
    lines = ArchivalLimits(times=(), ceiling=ceiling).merged_with(
        needed_since(slots, ceiling),
        _cleaning_limit(context, active, rules.cleaning),
        _clean_retained(context, active) if rules.archiving.not_past_clean else None,
        _compaction_limit(context, active, rules.compaction),
        _metadata_limit(context, snapshot),
    )
    going = choose_instants(active, rules.archiving, lines.times, rules.released)
    if not going:
        return lines
    ended, fresh = _ended(context, slots, before=going[-1].requested_time)
    return replace(lines, ended=ended).merged_with(
        _unclean_replace(context, snapshot, slots, going), min(fresh, default=None)
    )


def _cleaning_limit(
    context: TableContext, active: ActiveTimeline, cleaning: CleaningSettings
) -> InstantTime | None:
    """Return the commit before the earliest commit to retain; Java Hudi keeps it as well."""
    oldest = min((one.requested_time for one in pending_that_need_files(active)), default=None)
    hours_ago = context.ports.clock.now_ms() - cleaning.hours_retained * _HOUR_MS
    writes = active.completed_writes
    line = earliest_commit_to_retain(
        writes, oldest, cleaning, context.zone.earliest_from(hours_ago)
    )
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


def _metadata_limit(context: TableContext, snapshot: Snapshot) -> InstantTime | None:
    """
    Return the limit of the metadata table (MDT-8).

    Outside: 1 get; with a metadata table 1 list, and the calls of ``lag_of_timelines``.
    """
    storage, active = context.ports.storage, snapshot.active
    if not load_config(storage).metadata_table_on:
        return None
    own = read_metadata_timeline(storage)
    compaction = newest_compaction(own)
    if compaction is None:
        context.ports.events.emit("archiving.held_by_metadata_table", why=NO_METADATA_COMPACTION)
        return truncation_limit(active, None)
    limits = [truncation_limit(active, compaction)]
    # Readers compare the active timelines. What differs stays there, or they would use the list.
    lag = lag_of_timelines(storage, own, snapshot)
    for time in lag.differing[:1]:
        limits.append(time if time in lag.behind else _newest_write_below(active, time))
        why = differing_from_metadata_table(time)
        context.ports.events.emit("archiving.held_by_metadata_table", why=why)
    return min(filter(None, limits), default=None)


def _newest_write_below(active: ActiveTimeline, time: InstantTime) -> InstantTime | None:
    """Return the write that keeps a time from counting as archived; None without one."""
    saved = {one.requested_time for one in active.instants if one.action is Action.SAVEPOINT}
    times = {one.requested_time for one in active.completed_writes} - saved
    return max((one for one in times if one < time), default=None)


def _clean_retained(context: TableContext, active: ActiveTimeline) -> InstantTime | None:
    # An archived clean retains less than the remaining writes.
    last = read_last_clean(context, active)
    return last.earliest_commit_to_retain or None if last is not None else None


def _unclean_replace(
    context: TableContext, snapshot: Snapshot, slots: Sequence[Slot], going: Sequence[Instant]
) -> InstantTime | None:
    """
    Return the first replacing instant whose replaced files exist, or may still be written.

    After it is archived, nothing hides these files: readers would read old rows twice. Listing the
    files is exact for any cleaner and any policy.
    """
    replacing = [one for one in going if one.action is Action.REPLACECOMMIT]
    present: dict[str, frozenset[str]] = {}
    coming = _may_come(context, snapshot, slots) if replacing else frozenset()
    for one in replacing:
        replaced = snapshot.commits.read(one).partition_to_replace_file_ids or {}
        for partition_path, file_ids in replaced.items():
            if partition_path not in present:
                present[partition_path] = _file_ids(context.ports.storage, partition_path)
            if not present[partition_path].isdisjoint(file_ids):
                return one.requested_time
            if any(FileGroupId(partition_path, file_id) in coming for file_id in file_ids):
                return one.requested_time
    return None


def _may_come(
    context: TableContext, snapshot: Snapshot, slots: Sequence[Slot]
) -> frozenset[FileGroupId]:
    """
    Return file groups in which a paused executor of a completed plan may still write a file.

    Another executor completed the plan. The paused one notices that with its next request (RB-10),
    which may create a file of the plan's output, or of file groups that it left out. Outside: 1
    stat per plan completed within the grace time, and 1 more.
    """
    found: set[FileGroupId] = set()
    for slot in reversed(slots):
        if slot.kind is not SlotKind.COMMIT or slot.action not in PLANS:
            continue
        if _is_aged(context, slot):
            break
        written = {one.file_group for one in slot.write_set.file_groups if one.access in _WRITING}
        taken = {one.file_group for one in slot.write_set.file_groups} - written
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
    Return instants that ended without a result up to a time: old ones and fresh ones.

    Below the first active write every file counts as committed. So none of their files may remain
    there, and none may appear: an owner that paused must have noticed the end by then (RB-10).
    """
    old: list[InstantTime] = []
    fresh: list[InstantTime] = []
    for slot in slots:
        targets = [target for target in ended_by(slot) if target <= before]
        if targets:
            (old if _is_aged(context, slot) else fresh).extend(targets)
    return tuple(old), tuple(fresh)


def _is_aged(context: TableContext, slot: Slot) -> bool:
    """
    Return whether a writer that paused when the slot was taken must know of it by now.

    Outside: 1 stat.
    """
    storage = context.ports.storage
    stat = storage.stat(slot_path(slot.number))
    grace_ms = GRACE_OF_SILENCES * context.limits.heartbeat.tolerated_ms
    return stat is None or storage.now_ms() - stat.modified_ms > grace_ms


# ---- Which instants may be archived and which slots truncated; pure (GC-1)
#
# Completed writes move in the order of requested times, so that the active timeline has no gap:
# every file below its first write counts as committed (fmt 6.3). The first write that a process may
# still need ends the truncation.

#: Why a table with a metadata table may archive nothing.
NO_METADATA_COMPACTION: Final = (
    "the metadata table has no compaction yet: run 'hoodoo services run TABLE --service metadata'"
)


def differing_from_metadata_table(time: InstantTime) -> str:
    """Return why archiving stops at an instant that only one of the two timelines has."""
    return (
        f"instant {time} is on only one of the timelines of the table and of its metadata table: "
        "run 'hoodoo metadata repair TABLE'"
    )


#: So many instants move at a time; the next truncation moves more.
TRUNCATE_INSTANTS_MAX = 500

#: Slots whose instant must be archived before they are deleted.
_SHOWN = frozenset({SlotKind.COMMIT, SlotKind.PLAN, SlotKind.ABORT})
#: Slots that become a file of their own instant.
_WRITES_FILES = frozenset({*_SHOWN, SlotKind.CLEAN, SlotKind.RESTORE})


def is_due(
    timeline: ActiveTimeline,
    settings: ArchivingSettings,
    released: Collection[InstantTime] = frozenset(),
) -> bool:
    """Return whether there are more completed commits than are kept, or a released one."""
    more = len(timeline.completed_writes) > settings.commits_kept_max
    return more or bool(kept_by_savepoint(timeline, released))


def kept_by_savepoint(
    timeline: ActiveTimeline, saved: Collection[InstantTime]
) -> tuple[Instant, ...]:
    """
    Return the writes of these savepoints that precede the first write without a savepoint.

    Where commits behind a savepoint are archived (``hoodie.archive.beyond.savepoint``), readers
    know them as archived because they are below that first write. Without its savepoint the saved
    write would be the first one, and the archived ones would count as uncommitted (fmt 6.3). If
    every write has a savepoint, the newest write counts as that first one.
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
    Return the completed instants to move, ascending by requested time.

    These are writes, then cleans and rollbacks requested before the last of them. All of those
    move: Java Hudi takes an archived write above the first active instant for a pending one, and
    reads its logs on the newest base file (fmt 6.1).

    Args:
        timeline: The active timeline.
        settings: How many commits remain.
        lines: No instant requested at or after any of these times moves.
        released: Saved writes whose savepoint is about to be deleted; those left behind by an
            archive move first.
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
        # Validation of a pending write needs the commits that completed since its begin.
        if pending is not None and one.newest_time >= pending:
            break
        if (end is not None and one.requested_time >= end) or one.legacy:
            break
        # It began before a saved write and completed after it: a restore would remove it.
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
    Return the oldest instant that a merge-on-read table keeps for its compaction trigger.

    As in Java Hudi: the last compaction while there are fewer delta commits since than trigger one,
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
    """Return the requested times of instants that a slot ended, before or after their commit."""
    if slot.kind in (SlotKind.ABORT, SlotKind.CANCEL):
        return frozenset({slot.requested_time})
    return restored_away_by(slot)


def needed_since(slots: Iterable[Slot], ceiling: int) -> InstantTime | None:
    """
    Return the oldest instant whose slot is above ``ceiling``, None for none (GC-3).

    A process that needs those slots may be about to write their completed files.
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
    Return the truncation point for these instants; its number may be the former one.

    Args:
        former: That of the last truncation.
        timeline: The active timeline.
        going: Instants that move to the archived timeline.
        slots: The commit log above the former truncation point, oldest first.
        ceiling: The greatest slot that may be truncated.
        carried: The batches that it keeps of the former one. With the former number, only the next
            truncation reads it, and that needs all of them.
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
    """Return whether the instant of a slot is still on the timeline."""
    if slot.kind not in _SHOWN:
        return False
    action = Action.ROLLBACK if slot.kind is SlotKind.ABORT else slot.action.completes_as
    return (slot.instant_time, action) in left


# ---- Settings of archiving, read from ``hoodie.archive.*`` and ``hoodie.keep.*`` keys
# Defaults are those of Hudi 1.2.0. Commits that cleaning retains remain on the active timeline,
# because the cleaner needs them. Settings that contradict this are refused before anything moves.

_Count = Annotated[int, Field(ge=2, le=1_000_000_000)]


class ArchivingSettings(OptionSettings):
    """All settings of archiving."""

    automatic: bool = option(
        "hoodie.archive.automatic",
        True,
        "Archive after a commit, once there are more commits than hoodie.keep.max.commits.",
    )
    asynchronous: bool = option(
        "hoodie.archive.async",
        False,
        "Archive in the background of the writes instead of after a commit.",
    )
    commits_kept_min: _Count = option(
        "hoodie.keep.min.commits",
        20,
        "Number of commits that remain on the active timeline after archiving.",
    )
    commits_kept_max: _Count = option(
        "hoodie.keep.max.commits",
        30,
        "Number of commits on the active timeline above which archiving begins.",
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        "Also archive commits after the first savepoint, except saved ones. Java Hudi"
        " (1.2.0) then returns no row that is only in commits archived after a saved "
        "one, and no restore to that savepoint is possible. `hoodoo savepoint delete`"
        " first archives the saved commit; if another engine deletes the savepoint, "
        "the archived rows after it are hidden until the next archiving.",
    )
    not_past_clean: bool = option(
        "hoodie.archive.block.on.latest.clean.ectr",
        False,
        "Keep all instants since the earliest commit that the last clean retained.",
    )
    merged_files: _Count = option(
        "hoodie.timeline.compaction.batch.size",
        10,
        "Number of files of one level of the archived timeline that are merged into "
        "one of the next level.",
    )
    merged_bytes_max: Annotated[int, Field(ge=1, le=2**40)] = option(
        "hoodie.timeline.compaction.target.file.max.bytes",
        1_048_576_000,
        "Largest total size of files of the archived timeline that are merged.",
    )
    batches_kept_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=2**53)] = option(
        "hoodoo.batch.retention.ms",
        604_800_000,
        "Time for which a batch id is remembered, from the completion of its commit; "
        "longer while the commit is on the active timeline. A later repeat is written"
        " again. Ids are one space for a table: two sources must not use the same "
        "ones.",
    )
    batches_together: Annotated[int, Field(ge=1, le=1_000_000)] = option(
        "hoodoo.batch.boundary.ids",
        512,
        "Number of batch ids that each archiving repeats; the others remain in earlier files.",
    )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the archiving settings from all properties.

        If the properties do not set how many commits are kept, and cleaning retains more than
        Hudi's default, more are kept.

        Raises:
            SettingError: A value is wrong, or the two numbers of commits contradict each other or
                the retention of cleaning.
        """
        settings = super().from_properties(properties)
        cleaning = CleaningSettings.from_properties(properties)
        property_set = as_property_set(properties)
        retained = cleaning.commits_retained if cleaning.policy is CleaningPolicy.COMMITS else 0
        low, high = settings.commits_kept_min, settings.commits_kept_max
        keys = [cls.options[one].key for one in ("commits_kept_min", "commits_kept_max")]
        if low <= retained and not any(property_set.get(key) for key in keys):
            more = {
                "commits_kept_min": retained + 10,
                "commits_kept_max": retained + 10 + high - low,
            }
            return settings.model_copy(update=more)
        if high <= low:
            why = (
                f"archiving begins above {keys[1]} and leaves {keys[0]}={low}: raise the first or "
                "lower the second"
            )
            raise cls.refusal(
                property_set, "commits_kept_max", why, kind="archive_range", value=str(high)
            )
        if low <= retained and settings.automatic:
            why = (
                "cleaning needs each commit it retains on the active timeline, and "
                f"hoodie.clean.commits.retained={retained}: raise this key or lower the other"
            )
            raise cls.refusal(
                property_set, "commits_kept_min", why, kind="archive_retention", value=str(low)
            )
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRules:
    """The rules of an archive: its own settings, and those of services that need instants."""

    archiving: ArchivingSettings
    cleaning: CleaningSettings
    compaction: CompactionSettings
    released: frozenset[InstantTime] = frozenset()  # saved writes that need not be kept any more

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], archiving: ArchivingSettings | None = None
    ) -> Self:
        """
        Read the rules from all properties.

        Args:
            properties: Effective ones.
            archiving: The settings of archiving if they were read already.

        Raises:
            SettingError: A property of one of the services is wrong.
        """
        return cls(
            archiving=archiving or ArchivingSettings.from_properties(properties),
            cleaning=CleaningSettings.from_properties(properties),
            compaction=CompactionSettings.from_properties(properties),
        )

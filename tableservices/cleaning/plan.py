"""Plan a clean: when it is due, what it depends on, and which files it deletes (CLN-2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from filegroups.reading.file_system_view import FileSystemView
from tableservices.cleaning.settings import CleaningPolicy, CleaningSettings
from timeline.active_timeline import ActiveTimeline
from timeline.codecs.instant_avro import decode_clean, decode_savepoint
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.errors import MissingFileError, UnsupportedTableError
from timeline.layout import timeline_path
from timeline.model.file_names import (
    FileSlice,
    check_partition_path,
    instant_file_name,
    join,
    parse_base_file_name,
    parse_log_file_name,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CleanMetadata
from timeline.model.slot import SlotKind
from timeline.model.write_set import FileGroupId
from timeline.partitions import list_partition_paths
from timeline.pending_plans import file_groups_in_clustering, pending_compactions
from timeline.ports.storage import ObjectMissingError, Storage
from timeline.properties.properties_file import load_config, refuse_behind_metadata_table
from timeline.reader_lease import deferred_deletes
from timeline.snapshot import Snapshot
from timeline.truncation import slots_since_snapshot

__all__ = [
    "SAVEPOINTED",
    "CleanInput",
    "CleanPlan",
    "CollectedCleanInput",
    "collect_clean_input",
    "earliest_commit_to_retain",
    "is_due",
    "last_completed_clean",
    "pending_that_need_files",
    "plan_clean",
    "read_last_clean",
    "refuse_uncleanable",
    "savepoints_of",
]

# --- Gathers from the table what the cleaner's decision depends on; all reading of cleaning is here
#
# A clean that looked everywhere left nothing older than its line, so the next one looks only
# at partitions written since that line (as Java Hudi's incremental cleaning).

#: Key of the extra metadata by which the next cleaner sees that a savepoint was removed.
SAVEPOINTED = "savepointed_timestamps"
_HOUR_MS = 3_600_000
_UNSHOWN_FAR = 2  # commits with a slot and without their file, all the time (PUB-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedCleanInput:
    """The facts, the snapshot they are from and the savepoints that were looked at."""

    snapshot: Snapshot
    facts: CleanInput
    savepoints: tuple[InstantTime, ...]

    def still_holds(self, context: TableContext, turn: CommitSection) -> bool:
        """
        Whether nothing that appeared since the snapshot needs a file the facts let go.

        A write begun since took its base snapshot after ours, so it needs newest slices
        only, which are never planned. What could need older ones: a savepoint made since, a
        pending instant that is older than our snapshot yet was not in it, and newer slices
        that vanished, by a restore, under the ones to delete. Outside: new slots.
        """
        seen, now = self.snapshot.active, turn.timeline
        slots = slots_since_snapshot(context, self.snapshot.head, turn.head)
        if slots is None or any(slot.kind is SlotKind.CLEAN for slot in slots):
            return False
        if set(savepoints_of(now)) != set(savepoints_of(seen)):
            return False
        newest = seen.newest_decided_time or ""
        known = {(one.action, one.requested_time) for one in pending_that_need_files(seen)}
        for one in pending_that_need_files(now):
            if one.action is Action.RESTORE:
                return False
            if (one.action, one.requested_time) not in known and one.requested_time <= newest:
                return False
        first = now.first_write_time or ""
        present = {one.requested_time for one in now.completed_writes}
        return all(
            one.requested_time in present or one.requested_time < first
            for one in seen.completed_writes
        )


def pending_that_need_files(timeline: ActiveTimeline) -> tuple[Instant, ...]:
    """Pending instants that may still need files they saw: everything but cleans and rollbacks."""
    return tuple(
        one for one in timeline.pending if one.action not in (Action.CLEAN, Action.ROLLBACK)
    )


def _oldest_needed(timeline: ActiveTimeline, *, unshown: int) -> InstantTime | None:
    """
    From which moment on pending instants need what was visible; None without one.

    Of the commits before its requested time the base snapshot of a write may lack so many of the
    newest: they had slots, but not yet the files that show them. Where that is rare, such a write
    is done again instead (CLN-3).
    """
    requested = min((one.requested_time for one in pending_that_need_files(timeline)), default=None)
    if requested is None:
        return None
    before = sorted(
        done
        for one in timeline.completed_writes
        if (done := one.completion_time or one.requested_time) < requested
    )
    return before[-unshown:][0] if unshown and before else requested


def savepoints_of(timeline: ActiveTimeline) -> tuple[Instant, ...]:
    """Completed savepoints."""
    return tuple(
        one for one in timeline.instants if one.action is Action.SAVEPOINT and one.completed
    )


def collect_clean_input(
    context: TableContext,
    snapshot: Snapshot,
    settings: CleaningSettings,
) -> CollectedCleanInput:
    """
    Look at the table; at no partition when nothing can be old enough.

    Outside: 1 get per savepoint and pending plan, 1 get of the last clean, 2 lists per
    partition to look at (3 where change logs are kept), and 1 list per folder when all
    partitions are looked at; where there is something to look at 1 list, and 1 get per clean
    that spared files for readers.

    Args:
        context: The table.
        snapshot: What is visible.
        settings: Policy and retention.
    """
    active = snapshot.active
    far = context.world.storage.capabilities.far
    oldest = _oldest_needed(active, unshown=_UNSHOWN_FAR if far else 0)
    now = context.world.clock.now_ms()
    line = earliest_commit_to_retain(
        active.completed_writes,
        oldest,
        settings,
        context.zone.from_then_on(now - settings.hours_retained * _HOUR_MS),
    )
    savepoints = savepoints_of(active)
    named = tuple(one.requested_time for one in savepoints)
    partitions: list[str] | None = None
    if settings.policy is not CleaningPolicy.VERSIONS:
        if line is None:
            partitions = []
        elif settings.incremental:
            partitions = _written_since_last_clean(context, snapshot, named)
    if partitions is None:
        partitions = list_partition_paths(context.world.storage)
    compactions = pending_compactions(context, active)
    view = FileSystemView(
        storage=context.world.storage,
        snapshot=snapshot,
        pending_compactions=compactions,
        show_replaced=True,
    )
    groups: dict[FileGroupId, list[FileSlice]] = {}
    for partition_path in partitions:
        # A table that only grows is looked at by names alone, however many files it has.
        if snapshot.replaced or _has_superseded(context.world.storage, partition_path):
            groups.update(view.slices(partition_path))
    clusterings = file_groups_in_clustering(context, active)
    change_logs: dict[tuple[FileGroupId, InstantTime], list[str]] = {}
    if context.config.cdc_enabled:
        for partition_path in sorted({group.partition_path for group in groups}):
            _add_change_logs(context.world.storage, partition_path, change_logs)
    facts = CleanInput(
        line=line,
        oldest_pending=oldest,
        completions=snapshot.completions,
        groups=groups,
        replaced=snapshot.replaced,
        pinned=_savepointed_files(context, savepoints),
        compactions=compactions,
        clusterings={group: instant.requested_time for group, instant in clusterings.items()},
        change_logs=change_logs,
        owed=deferred_deletes(context.world.storage) if groups else frozenset(),
    )
    return CollectedCleanInput(snapshot=snapshot, facts=facts, savepoints=named)


def _has_superseded(storage: Storage, partition_path: str) -> bool:
    """Whether a file group of the partition has more than one file, so perhaps an old one."""
    file_ids = set()
    for name in storage.names(partition_path):
        file = parse_base_file_name(name) or parse_log_file_name(name)
        if file is None:
            continue
        if file.file_id in file_ids:
            return True
        file_ids.add(file.file_id)
    return False


def _add_change_logs(
    storage: Storage,
    partition_path: str,
    found: dict[tuple[FileGroupId, InstantTime], list[str]],
) -> None:
    """The change logs of a partition, by the base file that each lies beside."""
    for name in storage.names(partition_path):
        log = parse_log_file_name(name)
        if log is not None and log.is_cdc:
            key = (FileGroupId(partition_path, log.file_id), log.instant_time)
            found.setdefault(key, []).append(join(partition_path, name))


def _savepointed_files(context: TableContext, savepoints: tuple[Instant, ...]) -> frozenset[str]:
    pinned: set[str] = set()
    for savepoint in savepoints:
        path = timeline_path(instant_file_name(savepoint))
        try:
            data = context.world.storage.read(path)
        except ObjectMissingError as error:
            raise MissingFileError(
                f"a savepoint was removed while it was read; clean again: {path}", path=path
            ) from error
        for partition_path, kept in decode_savepoint(data, path=path).partition_metadata.items():
            check_partition_path(partition_path)
            pinned.update(join(partition_path, name) for name in kept.savepoint_data_file)
    return frozenset(pinned)


def _written_since_last_clean(
    context: TableContext, snapshot: Snapshot, savepoints: tuple[InstantTime, ...]
) -> list[str] | None:
    """Partitions that can hold something new to delete; None when any can."""
    last = read_last_clean(context, snapshot.active)
    first = snapshot.active.first_write_time
    if last is None or first is None or not last.earliest_commit_to_retain:
        return None
    line = last.earliest_commit_to_retain
    recorded = tuple(filter(None, last.extra_metadata.get(SAVEPOINTED, "").split(",")))
    if first > line or sorted(recorded) != sorted(savepoints):
        return None
    touched: set[str] = set()
    for instant in snapshot.active.completed_writes:
        if (instant.completion_time or instant.requested_time) < line:
            continue
        metadata = snapshot.commits.read(instant)
        touched.update(metadata.partition_to_write_stats)
        touched.update(metadata.partition_to_replace_file_ids or ())
    return sorted(touched)


def read_last_clean(context: TableContext, timeline: ActiveTimeline) -> CleanMetadata | None:
    """What the clean that completed last recorded; None without one. Outside: 1 get."""
    last = last_completed_clean(timeline.instants)
    if last is None:
        return None
    path = timeline_path(instant_file_name(last))
    try:
        data = context.world.storage.read(path)
    except ObjectMissingError:
        return None  # archived meanwhile
    return decode_clean(data, path=path)


# -------- Tables that this release must not clean, looked at before planning and again in the turn

_VERSIONS = (8, 9)


def refuse_uncleanable(context: TableContext, verb: str = "clean") -> None:
    """
    Pass when deleting old slices, or instants, leaves the table whole for every reader.

    Outside: 1 get. The properties are read anew, because another engine may have changed
    them since the table was opened.

    Raises:
        MetadataTableOnError: The metadata table is on: it would go on listing files that
            are gone (FOR-7).
        UnsupportedTableError: Its timeline has another layout.
    """
    config = load_config(context.world.storage)
    refuse_behind_metadata_table(
        config, without_metadata_table=context.limits.without_metadata_table
    )
    unsupported = {
        f"table version {config.table_version}": config.table_version not in _VERSIONS,
    }
    for what, refused in unsupported.items():
        if refused:
            raise UnsupportedTableError(
                f"this release does not {verb} {what}; let Java Hudi {verb} this table",
                kind="not_cleanable",
                feature=what,
            )


# -------------------- When a clean is worth planning, and which partitions it has to look at; pure


def last_completed_clean(instants: Iterable[Instant]) -> Instant | None:
    """The clean that completed last."""
    cleans = [one for one in instants if one.action is Action.CLEAN and one.completed]
    return max(cleans, key=lambda one: one.completion_time or "", default=None)


def is_due(timeline: ActiveTimeline, settings: CleaningSettings) -> bool:
    """
    Whether enough commits completed since the last clean was requested.

    Never while a restore is under way: it decides anew which slices are the latest.
    """
    if any(one.action is Action.RESTORE for one in timeline.pending):
        return False
    last = last_completed_clean(timeline.instants)
    since = sum(
        1
        for one in timeline.completed_writes
        if last is None or (one.completion_time or "") > last.requested_time
    )
    return since >= settings.trigger_commits


# ---------------- What the cleaner deletes: a pure decision from the facts of one snapshot (CLN-2)
#
# Theory of operation. Every file group is a row of slices, oldest first. Each reason to keep
# something says from which slice on everything stays; the smallest answer wins and the
# slices before it go, except those a savepoint pins. The reasons:
#
# - the policy: the newest slice completed before the retained line (a query that began just
#   before the line reads it), or the newest N slices;
# - the oldest pending instant, for every policy: its base snapshot may show the newest slice
#   completed before it was requested (hole 12);
# - the input slice of a pending compaction or clustering;
# - what lies below a slice of logs alone, down to a base file;
# - the newest slice that has files, always.
#
# "Before" is judged by completion time: with many writers an instant requested before the
# line may have become visible after it. A replaced file group has no newest slice to keep:
# it goes as a whole once the replacement lies before the same lines.
#
# Worked example, also a test: commits t10..t50 all rewrite one file group, 2 are retained.
# The line is t40, the slice of t30 stays for queries begun before t40; t10 and t20 go.


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanInput:
    """Everything the decision depends on; times of unknown instants count as completed long ago."""

    line: Instant | None  # see retained_line
    oldest_pending: InstantTime | None
    completions: Mapping[InstantTime, InstantTime]  # requested -> completion, active writes
    groups: Mapping[FileGroupId, Sequence[FileSlice]]  # oldest first, replaced ones included
    replaced: Mapping[FileGroupId, InstantTime] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()  # paths that savepoints protect
    compactions: Mapping[FileGroupId, Sequence[InstantTime]] = field(default_factory=dict)
    clusterings: Mapping[FileGroupId, InstantTime] = field(default_factory=dict)
    # Paths by file group and requested time of the base file they lie beside.
    change_logs: Mapping[tuple[FileGroupId, InstantTime], Sequence[str]] = field(
        default_factory=dict
    )
    owed: frozenset[str] = frozenset()  # paths that earlier cleans let go and spared for readers


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """
    Files to delete by partition path, paths relative to the table, all sorted.

    ``floor`` is the completion time from which on no snapshot shows any of them.
    """

    files: Mapping[str, tuple[str, ...]]
    floor: InstantTime = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(path for paths in self.files.values() for path in paths)


def earliest_commit_to_retain(
    completed: Sequence[Instant],
    oldest_pending: InstantTime | None,
    settings: CleaningSettings,
    now: InstantTime,
) -> Instant | None:
    """
    The earliest commit that stays readable, as Java Hudi finds it.

    Args:
        completed: Completed write instants, ascending by requested time.
        oldest_pending: Requested time of the oldest instant that is not completed.
        settings: Policy and retention.
        now: This moment minus ``hours_retained``, for that policy.

    Returns:
        None when there is no such line: nothing is old enough, or the policy counts slices.
    """
    line: Instant | None = None
    if settings.policy is CleaningPolicy.COMMITS and len(completed) > settings.commits_retained:
        line = completed[-settings.commits_retained]
    elif settings.policy is CleaningPolicy.HOURS:
        line = next((one for one in completed if one.requested_time >= now), None)
    if line is None or oldest_pending is None or line.requested_time <= oldest_pending:
        return line
    before = [one for one in completed if one.requested_time < oldest_pending]
    return before[-1] if before else None


def plan_clean(facts: CleanInput, settings: CleaningSettings) -> CleanPlan:
    """Decide which files go."""
    chosen: dict[str, list[str]] = {}
    floor, archived_before = "", min(facts.completions.values(), default="")
    for group in sorted(facts.groups):
        slices = facts.groups[group]
        first = _first_kept(facts, settings, group, slices)
        going = _going(facts, group, slices[:first])
        if going:
            kept = slices[first].base_instant_time if first < len(slices) else facts.replaced[group]
            floor = max(floor, facts.completions.get(kept, archived_before))
            chosen.setdefault(group.partition_path, []).extend(going)
    return CleanPlan(
        files={
            partition: tuple(sorted(paths)) for partition, paths in sorted(chosen.items()) if paths
        },
        floor=floor,
    )


def _going(facts: CleanInput, group: FileGroupId, slices: Sequence[FileSlice]) -> list[str]:
    """Paths of slices that go, but for those that have gone but for the deletes."""
    going = []
    for one in slices:
        paths = _paths(one)
        if facts.pinned.isdisjoint(paths):
            # Without the base files beside it a change log cannot be read in every mode.
            logs = facts.change_logs.get((group, one.base_instant_time), ())
            going += [path for path in (*paths, *logs) if path not in facts.owed]
    return going


def _paths(one: FileSlice) -> list[str]:
    base = [one.base_file.path] if one.base_file is not None else []
    return base + [log.path for log in one.log_files]


def _first_kept(
    facts: CleanInput,
    settings: CleaningSettings,
    group: FileGroupId,
    slices: Sequence[FileSlice],
) -> int:
    """Index of the first slice that stays; the length when all go."""
    if group in facts.replaced:
        gone = group not in facts.clusterings and _replaced_long_ago(facts, settings, group)
        return len(slices) if gone else 0
    kept = [_by_policy(facts, settings, slices), _newest_with_files(slices)]
    if facts.oldest_pending is not None:
        kept.append(_newest_completed_before(facts, slices, facts.oldest_pending))
    if group in facts.clusterings:
        kept.append(_newest_completed_before(facts, slices, facts.clusterings[group]))
    kept.extend(
        _newest_requested_before(slices, requested)
        for requested in facts.compactions.get(group, ())
    )
    first = min(kept)
    while first and slices[first].base_file is None:
        first -= 1  # logs alone are merged with what lies below them (fmt 6.2)
    return first


def _replaced_long_ago(facts: CleanInput, settings: CleaningSettings, group: FileGroupId) -> bool:
    completed = _completion(facts, facts.replaced[group])
    if facts.oldest_pending is not None and completed >= facts.oldest_pending:
        return False  # its snapshot may still show the group
    if settings.policy is CleaningPolicy.VERSIONS:
        return True
    return facts.line is not None and completed < facts.line.requested_time


def _by_policy(facts: CleanInput, settings: CleaningSettings, slices: Sequence[FileSlice]) -> int:
    if settings.policy is CleaningPolicy.VERSIONS:
        return max(0, len(slices) - settings.versions_retained)
    if facts.line is None:
        return 0
    return _newest_completed_before(facts, slices, facts.line.requested_time)


def _newest_with_files(slices: Sequence[FileSlice]) -> int:
    return next((at for at in range(len(slices) - 1, 0, -1) if _paths(slices[at])), 0)


def _newest_completed_before(
    facts: CleanInput, slices: Sequence[FileSlice], line: InstantTime
) -> int:
    for at in range(len(slices) - 1, 0, -1):
        if _paths(slices[at]) and _completion(facts, slices[at].base_instant_time) < line:
            return at
    return 0


def _newest_requested_before(slices: Sequence[FileSlice], requested: InstantTime) -> int:
    for at in range(len(slices) - 1, 0, -1):
        if slices[at].base_instant_time < requested:
            return at
    return 0


def _completion(facts: CleanInput, requested: InstantTime) -> InstantTime:
    return facts.completions.get(requested, requested)

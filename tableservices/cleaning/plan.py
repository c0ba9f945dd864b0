"""Plan a clean: its settings, when it is due, its input, and the files to delete (CLN-2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from pydantic import Field

from filegroups.reading.file_system_view import FileSystemView
from filegroups.supported import refuse_unmaintained
from timeline.codecs.instant_avro import decode_clean, decode_savepoint
from timeline.commit.commit_lock import CommitSection
from timeline.context import TableContext
from timeline.errors import MissingFileError, UnsupportedTableError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import (
    check_partition_path,
    instant_file_name,
    join,
    parse_base_file_name,
    parse_log_file_name,
    timeline_path,
)
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CleanMetadata, CleanPartitionMetadata
from timeline.model.slot import SlotKind
from timeline.model.table_config import TableConfig
from timeline.partitions import list_partition_paths
from timeline.pending_plans import file_groups_in_clustering, pending_compactions
from timeline.ports.ports import ObjectMissingError, Storage
from timeline.properties.options import Expression, OptionSettings, option
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import FailedWritesPolicy
from timeline.reader_lease import deferred_deletes
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.truncation import slots_since_snapshot

# ---- Collect the input of a clean; all reads of cleaning are here
#
# After a full clean, nothing older than its earliest commit to retain remains. So the next clean
# lists only partitions written since that commit, as Java Hudi's incremental cleaning does.

#: Key of the extra metadata from which the next clean sees that a savepoint was removed.
SAVEPOINTED = "savepointed_timestamps"
#: Key of the extra metadata from which the next clean sees that this one left partitions out.
PARTITIONS_CLEANED = "hoodoo.clean.partitions"
_HOUR_MS = 3_600_000
_UNSHOWN_FAR = 2  # commits with a slot and without their completed file, at any time (PUB-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedCleanInput:
    """The clean input, its snapshot and the savepoints in it."""

    snapshot: Snapshot
    clean_input: CleanInput
    savepoints: tuple[InstantTime, ...]

    def is_current(self, context: TableContext, section: CommitSection) -> bool:
        """
        Return whether nothing new since the snapshot needs a file that the plan deletes.

        A write begun since has a newer base snapshot, so it needs newest slices only, and no plan
        deletes those. Older slices may be needed by a savepoint made since, or by a pending instant
        that is older than the snapshot but not in it. They are also needed after a restore removed
        newer slices. Outside: new slots.
        """
        seen, now = self.snapshot.active, section.timeline
        slots = slots_since_snapshot(context, self.snapshot.head, section.head)
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
    """Return the pending instants that may still need files: all but cleans and rollbacks."""
    return tuple(
        one for one in timeline.pending if one.action not in (Action.CLEAN, Action.ROLLBACK)
    )


def _oldest_needed(timeline: ActiveTimeline, *, unshown: int) -> InstantTime | None:
    """
    Return the oldest time whose visible files a pending instant needs; None without one.

    The base snapshot of a write may lack the newest ``unshown`` commits before its requested time:
    they had slots, but not yet their completed files. On a store where this is rare, such a write
    runs again instead (CLN-3).
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
    """Return the completed savepoints."""
    return tuple(
        one for one in timeline.instants if one.action is Action.SAVEPOINT and one.completed
    )


def collect_clean_input(
    context: TableContext,
    snapshot: Snapshot,
    settings: CleaningSettings,
) -> CollectedCleanInput:
    """
    Read the input of a clean; list no partition when nothing can be old enough.

    Outside: 1 get per savepoint and pending plan, 1 get of the last clean, 2 lists per listed
    partition (3 where change logs are kept), and 1 list per folder when all partitions are listed;
    where there is a partition to list 1 list, and 1 get per clean with deferred deletes.

    Args:
        context: The table.
        snapshot: The visible instants.
        settings: Policy and retention.
    """
    active = snapshot.active
    far = context.ports.storage.capabilities.high_latency
    oldest = _oldest_needed(active, unshown=_UNSHOWN_FAR if far else 0)
    now = context.ports.clock.now_ms()
    line = earliest_commit_to_retain(
        active.completed_writes,
        oldest,
        settings,
        context.zone.earliest_from(now - settings.hours_retained * _HOUR_MS),
    )
    savepoints = savepoints_of(active)
    named = tuple(one.requested_time for one in savepoints)
    partitions: list[str] | None = None
    if settings.policy is not CleaningPolicy.VERSIONS:
        if line is None:
            partitions = []
        elif settings.incremental and not settings.partition_filter:
            partitions = _written_since_last_clean(context, snapshot, named)
    if partitions is None:
        ports = context.ports
        partitions = list_partition_paths(ports.storage, together=ports.concurrently)
    partitions = [path for path in partitions if settings.cleans(path)]
    compactions = pending_compactions(context, active)
    view = FileSystemView(
        storage=context.ports.storage,
        snapshot=snapshot,
        pending_compactions=compactions,
        include_replaced=True,
    )
    groups: dict[FileGroupId, list[FileSlice]] = {}
    for partition_path in partitions:
        # For a table that only grows, names are enough, however many files it has.
        if snapshot.replaced or _has_superseded(context.ports.storage, partition_path):
            groups.update(view.slices(partition_path))
    clusterings = file_groups_in_clustering(context, active)
    change_logs: dict[tuple[FileGroupId, InstantTime], list[str]] = {}
    if context.config.cdc_enabled:
        for partition_path in sorted({group.partition_path for group in groups}):
            _add_change_logs(context.ports.storage, partition_path, change_logs)
    facts = CleanInput(
        line=line,
        oldest_pending=oldest,
        completions=snapshot.completions,
        groups=groups,
        replaced=snapshot.replaced,
        savepointed_files=_savepointed_files(context, savepoints),
        compactions=compactions,
        clusterings={group: instant.requested_time for group, instant in clusterings.items()},
        change_logs=change_logs,
        deferred_deletes=deferred_deletes(context.ports.storage) if groups else frozenset(),
    )
    return CollectedCleanInput(snapshot=snapshot, clean_input=facts, savepoints=named)


def _has_superseded(storage: Storage, partition_path: str) -> bool:
    """Return whether a file group of the partition has several files, so perhaps an old one."""
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
    """Add the CDC logs of a partition, by the base file that each belongs to."""
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
            data = context.ports.storage.read(path)
        except ObjectMissingError as error:
            raise MissingFileError(
                f"a savepoint was deleted while it was read: clean again: {path}", path=path
            ) from error
        for partition_path, kept in decode_savepoint(data, path=path).partition_metadata.items():
            check_partition_path(partition_path)
            pinned.update(join(partition_path, name) for name in kept.savepoint_data_file)
    return frozenset(pinned)


def _written_since_last_clean(
    context: TableContext, snapshot: Snapshot, savepoints: tuple[InstantTime, ...]
) -> list[str] | None:
    """Return the partitions that can have something new to delete; None when any can."""
    last = read_last_clean(context, snapshot.active)
    first = snapshot.active.first_write_time
    if last is None or first is None or not last.earliest_commit_to_retain:
        return None
    line = last.earliest_commit_to_retain
    recorded = tuple(filter(None, last.extra_metadata.get(SAVEPOINTED, "").split(",")))
    if first > line or sorted(recorded) != sorted(savepoints):
        return None
    if PARTITIONS_CLEANED in last.extra_metadata:
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
    """Return the metadata of the last completed clean; None without one. Outside: 1 get."""
    last = last_completed_clean(timeline.instants)
    if last is None:
        return None
    path = timeline_path(instant_file_name(last))
    try:
        data = context.ports.storage.read(path)
    except ObjectMissingError:
        return None  # archived meanwhile
    return decode_clean(data, path=path)


# ---- Tables that this release must not clean; checked before planning and in the commit section

_VERSIONS = (8, 9)


def refuse_uncleanable(
    context: TableContext, verb: str = "clean", *, config: TableConfig | None = None
) -> None:
    """
    Pass when every reader can still read the table after old slices or instants are deleted.

    Outside: 1 get without ``config``. The properties are read again, because another engine may
    have changed them since the table was opened.

    Args:
        context: The table.
        verb: What the caller does, for the error.
        config: The table's present properties, if the caller has read them.

    Raises:
        MetadataTableOnError: The metadata table has a partition that a clean cannot maintain
            (MDT-6). Archiving changes none of its records.
        UnsupportedTableError: Its timeline has another layout.
    """
    config = config or load_config(context.ports.storage)
    if verb == "clean":
        refuse_unmaintained(config)
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


# ---- When a clean is due, and which partitions it lists; pure


def last_completed_clean(instants: Iterable[Instant]) -> Instant | None:
    """Return the clean that completed last."""
    cleans = [one for one in instants if one.action is Action.CLEAN and one.completed]
    return max(cleans, key=lambda one: one.completion_time or "", default=None)


def is_due(timeline: ActiveTimeline, settings: CleaningSettings) -> bool:
    """
    Return whether enough commits completed since the last clean was requested.

    Return False during a restore, because it changes which slices are the newest.
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


# ---- Which files a clean deletes: a pure decision from one snapshot (CLN-2)
#
# Theory of operation. Every file group is a row of slices, oldest first. Each reason to keep a
# slice gives the first slice to keep; all newer slices are kept too. The oldest of these wins.
# The slices before it are deleted, except those with a savepoint. The reasons:
#
# - the policy: the newest slice completed before the earliest commit to retain (a query that
#   began just before that commit reads it), or the newest N slices;
# - the oldest pending instant, for every policy: its base snapshot may include the newest slice
#   completed before it was requested (hole 12);
# - the input slice of a pending compaction or clustering;
# - below a slice of log files only: the slices down to a base file;
# - the newest slice that has files, always.
#
# "Before" compares completion times: with many writers, an instant requested before the
# earliest commit to retain may become visible after it. A replaced file group has no newest slice
# to keep. It is deleted as a whole once its replacement completed before the same times.
#
# Worked example, also a test: commits t10..t50 all rewrite one file group, 2 are retained.
# The earliest commit to retain is t40. The slice of t30 is kept for queries begun before t40;
# t10 and t20 are deleted.


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanInput:
    """The input of the decision; an instant of unknown completion time counts as long completed."""

    line: Instant | None  # see earliest_commit_to_retain
    oldest_pending: InstantTime | None
    completions: Mapping[InstantTime, InstantTime]  # requested -> completion, active writes
    groups: Mapping[FileGroupId, Sequence[FileSlice]]  # oldest first, replaced ones included
    replaced: Mapping[FileGroupId, InstantTime] = field(default_factory=dict)
    savepointed_files: frozenset[str] = frozenset()  # paths that savepoints protect
    compactions: Mapping[FileGroupId, Sequence[InstantTime]] = field(default_factory=dict)
    clusterings: Mapping[FileGroupId, InstantTime] = field(default_factory=dict)
    # Paths of CDC logs, by file group and requested time of the base file of the same slice.
    change_logs: Mapping[tuple[FileGroupId, InstantTime], Sequence[str]] = field(
        default_factory=dict
    )
    deferred_deletes: frozenset[str] = frozenset()  # deferred deletes: paths kept for reader leases


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """
    Files to delete by partition path, paths relative to the table, all sorted.

    ``floor`` is a completion time; no snapshot from then on includes any of these files.
    """

    files: Mapping[str, tuple[str, ...]]
    floor: InstantTime = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return all of them."""
        return tuple(path for paths in self.files.values() for path in paths)


def earliest_commit_to_retain(
    completed: Sequence[Instant],
    oldest_pending: InstantTime | None,
    settings: CleaningSettings,
    now: InstantTime,
) -> Instant | None:
    """
    Return the earliest commit that stays readable, as Java Hudi finds it.

    Args:
        completed: Completed write instants, ascending by requested time.
        oldest_pending: Requested time of the oldest instant that is not completed.
        settings: Policy and retention.
        now: The present time minus ``hours_retained``, for that policy.

    Returns:
        None when there is no such commit: nothing is old enough, or the policy counts slices.
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
    """Decide which files to delete."""
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
    """Return the paths of deleted slices, without those of deferred deletes."""
    going = []
    for one in slices:
        paths = _paths(one)
        if facts.savepointed_files.isdisjoint(paths):
            # A change log is not readable in every mode without its base files.
            logs = facts.change_logs.get((group, one.base_instant_time), ())
            going += [path for path in (*paths, *logs) if path not in facts.deferred_deletes]
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
    """Return the index of the first slice to keep; the length when all are deleted."""
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
        first -= 1  # logs alone are merged with the slices below them (fmt 6.2)
    return first


def _replaced_long_ago(facts: CleanInput, settings: CleaningSettings, group: FileGroupId) -> bool:
    completed = _completion(facts, facts.replaced[group])
    if facts.oldest_pending is not None and completed >= facts.oldest_pending:
        return False  # its snapshot may still include the group
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


def deleted_files(
    files: Mapping[str, Sequence[str]], policy: str
) -> dict[str, CleanPartitionMetadata]:
    """Return the result of a clean that deletes these paths, by partition path."""
    found = {}
    for partition_path, paths in files.items():
        names = tuple(path.rpartition("/")[2] for path in paths)
        found[partition_path] = CleanPartitionMetadata(
            partition_path=partition_path,
            policy=policy,
            delete_path_patterns=names,
            success_delete_files=names,
        )
    return found


# ----------------------------------------------------------------
# Settings of cleaning, read from ``hoodie.clean.*`` (and Hudi's older ``hoodie.cleaner.*``) keys.
#
# Defaults are those of Hudi 1.2.0. Contradictory settings are refused before a plan is made, because
# files deleted by a wrong retention cannot be restored.


class CleaningPolicy(Enum):
    """The retention policy; the value is Hudi's name, also inside clean instants."""

    COMMITS = "KEEP_LATEST_COMMITS"
    VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
    HOURS = "KEEP_LATEST_BY_HOURS"


class TriggerStrategy(Enum):
    """The rule by which a clean becomes due."""

    NUM_COMMITS = "NUM_COMMITS"


_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class CleaningSettings(OptionSettings):
    """All settings of cleaning."""

    automatic: bool = option(
        "hoodie.clean.automatic",
        True,
        "Clean after a commit.",
        aliases=("hoodie.cleaner.automatic",),
    )
    asynchronous: bool = option(
        "hoodie.clean.async",
        False,
        "Clean in the background of the writes instead of after a commit.",
        aliases=("hoodie.clean.async.enabled",),
    )
    policy: CleaningPolicy = option(
        "hoodie.clean.policy",
        CleaningPolicy.COMMITS,
        "File slices that are retained: of the latest commits, the latest ones, or of"
        " the last hours.",
        aliases=("hoodie.cleaner.policy",),
    )
    commits_retained: _Count = option(
        "hoodie.clean.commits.retained",
        10,
        "Number of latest commits that time travel can read.",
        aliases=("hoodie.cleaner.commits.retained",),
    )
    versions_retained: _Count = option(
        "hoodie.clean.fileversions.retained",
        3,
        "Number of file slices of each file group that are retained.",
        aliases=("hoodie.cleaner.fileversions.retained",),
    )
    hours_retained: Annotated[int, Field(ge=1, le=24 * 366 * 100)] = option(
        "hoodie.clean.hours.retained",
        24,
        "Hours back that time travel can read.",
        aliases=("hoodie.cleaner.hours.retained",),
    )
    trigger: TriggerStrategy = option(
        "hoodie.clean.trigger.strategy",
        TriggerStrategy.NUM_COMMITS,
        "Condition for planning a clean.",
    )
    trigger_commits: _Count = option(
        "hoodie.clean.trigger.max.commits",
        1,
        "Number of commits since the last clean after which the next one is planned.",
        aliases=("hoodie.clean.max.commits",),
    )
    incremental: bool = option(
        "hoodie.cleaner.incremental.mode",
        True,
        "Check only partitions written since the earliest retained commit of the last clean.",
        aliases=("hoodie.clean.incremental.enabled",),
    )
    partitions_regex: Expression = option(
        "hoodie.clean.partition.filter.regex",
        None,
        "Clean only partition paths that match this expression as a whole; such a clean checks all "
        "of them.",
        aliases=("hoodie.cleaner.partition.filter.regex",),
    )
    partitions_selected: tuple[str, ...] = option(
        "hoodie.clean.partition.filter.selected",
        (),
        "Clean only these partition paths; the expression then does not count.",
        aliases=("hoodie.cleaner.partition.filter.selected",),
    )
    failed_writes: FailedWritesPolicy | None = option(
        "hoodie.clean.failed.writes.policy",
        None,
        "LAZY, and when unset: cleaning also rolls back writes whose heartbeat has expired.",
        aliases=("hoodie.cleaner.policy.failed.writes",),
    )

    @property
    def rolls_back(self) -> bool:
        """Return whether a clean first rolls back writers with an expired heartbeat."""
        return self.failed_writes in (None, FailedWritesPolicy.LAZY)

    @property
    def partition_filter(self) -> str:
        """The partitions that are cleaned, as they were set; empty for all."""
        return ",".join(self.partitions_selected) or self.partitions_regex or ""

    def cleans(self, partition_path: str) -> bool:
        """Return whether a clean covers a partition; a list counts before an expression."""
        if self.partitions_selected:
            return partition_path in self.partitions_selected
        wanted = self.partitions_regex
        return not wanted or re.fullmatch(wanted, partition_path) is not None

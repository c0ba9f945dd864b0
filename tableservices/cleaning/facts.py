"""
Gathers from the table what the cleaner's decision depends on; all reading of cleaning is here.

A clean that looked everywhere left nothing older than its line, so the next one looks only
at partitions written since that line (as Java Hudi's incremental cleaning).
"""

from __future__ import annotations

from dataclasses import dataclass

from tableservices.cleaning.plan import CleanFacts, retained_line
from tableservices.cleaning.settings import CleaningPolicy, CleaningSettings
from tableservices.cleaning.trigger import last_completed_clean
from timeline.active import ActiveTimeline
from timeline.boundary import came_since
from timeline.codecs.instant_avro import decode_clean, decode_savepoint
from timeline.context import TableContext
from timeline.errors import MissingFileError
from timeline.model.claim import FileGroupId
from timeline.model.file_group import FileSlice
from timeline.model.filenames import (
    instant_file_name,
    parse_base_file_name,
    parse_log_file_name,
)
from timeline.model.instant import Action, Instant
from timeline.model.paths import check_partition_path, join
from timeline.model.plans import CleanMetadata
from timeline.model.slot import SlotKind
from timeline.model.times import InstantTime
from timeline.partitions import list_partition_paths
from timeline.places import timeline_path
from timeline.ports.storage import ObjectMissingError, Storage
from timeline.publishing.look import Turn
from timeline.reading.pending_plans import file_groups_in_clustering, pending_compactions
from timeline.reading.reader_lease import owed_paths
from timeline.reading.snapshot import Snapshot
from timeline.reading.view import FileSystemView

__all__ = ["SAVEPOINTED", "Gathered", "gather", "needing", "read_last_clean", "savepoints_of"]

#: Key of the extra metadata by which the next cleaner sees that a savepoint was removed.
SAVEPOINTED = "savepointed_timestamps"
_HOUR_MS = 3_600_000
_UNSHOWN_FAR = 2  # commits with a slot and without their file, all the time (PUB-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The facts, the snapshot they are from and the savepoints that were looked at."""

    snapshot: Snapshot
    facts: CleanFacts
    savepoints: tuple[InstantTime, ...]

    def still_holds(self, context: TableContext, turn: Turn) -> bool:
        """
        Whether nothing that appeared since the snapshot needs a file the facts let go.

        A write begun since took its base snapshot after ours, so it needs newest slices
        only, which are never planned. What could need older ones: a savepoint made since, a
        pending instant that is older than our snapshot yet was not in it, and newer slices
        that vanished, by a restore, under the ones to delete. Outside: new slots.
        """
        seen, now = self.snapshot.active, turn.timeline
        slots = came_since(context, self.snapshot.head, turn.head)
        if slots is None or any(slot.kind is SlotKind.CLEAN for slot in slots):
            return False
        if set(savepoints_of(now)) != set(savepoints_of(seen)):
            return False
        newest = seen.newest_decided_time or ""
        known = {(one.action, one.requested_time) for one in needing(seen)}
        for one in needing(now):
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


def needing(timeline: ActiveTimeline) -> tuple[Instant, ...]:
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
    requested = min((one.requested_time for one in needing(timeline)), default=None)
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


def gather(
    context: TableContext,
    snapshot: Snapshot,
    settings: CleaningSettings,
) -> Gathered:
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
    line = retained_line(
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
    facts = CleanFacts(
        line=line,
        oldest_pending=oldest,
        completions=snapshot.completions,
        groups=groups,
        replaced=snapshot.replaced,
        pinned=_pinned(context, savepoints),
        compactions=compactions,
        clusterings={group: instant.requested_time for group, instant in clusterings.items()},
        change_logs=change_logs,
        owed=owed_paths(context.world.storage) if groups else frozenset(),
    )
    return Gathered(snapshot=snapshot, facts=facts, savepoints=named)


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


def _pinned(context: TableContext, savepoints: tuple[Instant, ...]) -> frozenset[str]:
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

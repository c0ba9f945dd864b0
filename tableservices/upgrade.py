"""Upgrade a table from version 6 or 8 to 9, as Java Hudi 1.2 does (fmt 11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from filegroups.files.parquet import read_footer
from filegroups.files.slice_reader import assert_base_fits, assert_logs_fit
from filegroups.metadata_table.index_definitions import (
    read_index_definitions,
    write_index_definitions,
)
from filegroups.reading.scan import plan_scan, view_of
from filegroups.settings.key_settings import key_spec_of
from filegroups.settings.settings import WriteSettings
from filegroups.supported import refuse_unwritable
from filegroups.writing.stored_forms import forms_of
from filegroups.writing.write_request import FileRules
from tableservices.archiving.archived_timeline import append_to_archive
from tableservices.compaction.execute import (
    execute_compaction,
    merge_slices,
    plan_compaction,
    tasks_of,
)
from tableservices.compaction.plan import (
    CompactionSettings,
    CompactionStrategy,
    compaction_plan,
    operations_of,
    read_slices,
)
from tableservices.plan_execution import read_requested
from tableservices.service import schedule
from timeline.codecs.instant_avro import (
    decode_compaction_plan,
    encode_commit,
    encode_compaction_plan,
)
from timeline.codecs.legacy_commit import decode_legacy_commit, encode_legacy_commit
from timeline.commit.markers import delete_markers
from timeline.commit.section import protocol_of
from timeline.context import TableContext
from timeline.errors import (
    InvalidInputError,
    ServiceConflictError,
    StorageUnavailableError,
    TableChangedError,
    UnsupportedTableError,
    counted,
)
from timeline.model.file_names import (
    HOODIE,
    METADATA_TABLE,
    TIMELINE,
    instant_file_name,
    parse_instant_name,
    pending_file_names,
    timeline_path,
)
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import (
    InstantTime,
    Residue,
    WallMs,
    instant_time,
    next_instant_time,
    wall_ms,
)
from timeline.model.merge_definition import version_9_merging
from timeline.model.plans import CompactionPlan
from timeline.model.table_config import TableConfig
from timeline.ports.ports import AmbiguousWriteError, Lease, ObjectExistsError
from timeline.properties.properties_file import (
    load_config,
    metadata_table_off,
    switch_metadata_table_off,
    update_properties,
)
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.storage.subfolder import SubfolderStorage
from timeline.writer_registry import refuse_with_writers

# ---- Convert the timeline of version 6 to the layout of versions 8 and 9 (fmt 2.2, 11.2)
#
# The new files are written to their own folder, which version 6 does not read, before the
# properties name the new version. Then the old files are deleted. So a crash leaves a whole table
# of one version or the other, and the upgrade starts again.
#
# Completion times are the modification times of the old files, as in Java Hudi, where they are
# possible: after the instant's request and before the next one's. The files of a copied table may
# have any age; there an instant completes a millisecond after its request.

_COMMITS = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


def write_new_timeline(context: TableContext) -> int:
    """
    Write every instant's files in the new layout, active and archived; return how many.

    Outside: 1 delete, 1 list, 1 get and 1 put per file; for the archive 1 get per file and a few
    puts.
    """
    storage = context.ports.storage
    storage.delete_folder(TIMELINE)  # of an interrupted attempt, outdated since
    made = 0
    for name, data in _converted(context):
        storage.write(timeline_path(name), data, durable=True)
        made += 1
    archived = context.archived_timeline.instants(times_only=False)
    if archived:
        append_to_archive(storage, archived)
    return made


def _converted(context: TableContext) -> Iterator[tuple[str, bytes]]:
    read = context.ports.storage.read
    active = context.active()
    completions = _completions(context, active.instants)
    for instant in active.instants:
        old = instant_file_name(instant)
        new = replace(
            instant,
            completion_time=completions[instant.requested_time, instant.action],
            legacy=False,
        )
        path = f"{HOODIE}/{old}"
        yield instant_file_name(new), _content(read(path), instant.action, path)
        for name in _pending_names(instant):
            if name in active.file_names:
                path = f"{HOODIE}/{name}"
                inflight = name.endswith("inflight")
                action = instant.action if inflight else Action.CLEAN  # plans are Avro already
                yield name, _content(read(path), action, path)


def _pending_names(instant: Instant) -> Iterator[str]:
    """Yield possible names of its pending states; those of a compaction identify it."""
    for action in Action:
        if action.completes_as is instant.action:
            yield from pending_file_names(action, instant.requested_time)


def _content(data: bytes, action: Action, path: str) -> bytes:
    """Convert the content of a file: only commits differ, as JSON in the old layout."""
    if not data or action not in _COMMITS:
        return data
    metadata = decode_legacy_commit(data, path=path)
    if action is Action.REPLACECOMMIT:
        replaced = metadata.partition_to_replace_file_ids or {}
        return encode_commit(replace(metadata, partition_to_replace_file_ids=replaced))
    return encode_commit(replace(metadata, partition_to_replace_file_ids=None))


def _completions(
    context: TableContext, instants: tuple[Instant, ...]
) -> dict[tuple[InstantTime, Action], InstantTime]:
    """Return completion times by requested time and action: a savepoint has its commit's time."""
    ages = {
        entry.name: context.zone.instant_time(entry.modified_ms)
        for entry in context.ports.storage.list(HOODIE)
        if not entry.is_folder
    }
    found: dict[tuple[InstantTime, Action], InstantTime] = {}
    following: InstantTime | None = None
    for time, same in groupby(reversed(instants), key=lambda one: one.requested_time):
        soonest = instant_time(WallMs(wall_ms(time) + 1))
        for one in same:
            aged = ages.get(instant_file_name(one), "")
            possible = aged >= soonest and (following is None or aged < following)
            found[time, one.action] = aged if possible else soonest
        following = time
    return found


def delete_old_timeline(context: TableContext) -> None:
    """Delete the instants' files of the old layout, once the properties name the new one."""
    storage = context.ports.storage
    for name in storage.names(HOODIE):
        if parse_instant_name(name) is not None:
            storage.delete(f"{HOODIE}/{name}")


# ---- Merge all log files into base files before the upgrade (fmt 11.2)
#
# In version 8 an ordinary compaction does it; after an interruption the next upgrade continues it.
#
# Version 6 names a log file after the base file below it, later versions after its writer (fmt
# 5.1). So no current slice may have log files when the version changes. Java Hudi compacts them all
# first, and so does this module: it plans, executes and completes one compaction in the old layout.
# After an interruption the table is a valid one of version 6, perhaps with a pending compaction.
# The table's own engine can execute that; the next upgrade continues it.

#: In the extra metadata of a plan: an upgrade made it, and the next one may execute it.
_OF_UPGRADE = "hoodoo.upgrade"
_EVERY_LOG = CompactionSettings(strategy=CompactionStrategy.UNBOUNDED)


def logged_slices(context: TableContext, snapshot: Snapshot) -> list[FileSlice]:
    """Return the slices of a snapshot that have log files. Outside: 1 list a partition."""
    return [one for one in view_of(context, snapshot).latest_slices() if one.log_files]


def interrupted_merge(context: TableContext, active: ActiveTimeline) -> Instant | None:
    """
    Return the compaction of an interrupted upgrade. Outside: 1 get per pending compaction.

    Raises:
        CorruptTableError: A plan is damaged.
    """
    for instant in active.pending:
        if instant.action is Action.COMPACTION:
            data, path = read_requested(context, instant)
            plan = decode_compaction_plan(data, path=path)
            if _OF_UPGRADE in (plan.extra_metadata or {}):
                return instant
    return None


def compact_all_logs(context: TableContext, files: FileRules) -> None:
    """
    Compact every slice with log files of a version 8 table. Calls outside: as a compaction's.

    Raises:
        ServiceConflictError: Another executor has the plan.
        Others: As ``schedule_compaction`` and ``execute_compaction``.
    """

    def build(snapshot: Snapshot) -> bytes | None:
        plan = plan_compaction(context, snapshot, _EVERY_LOG, files)
        if plan is None:
            return None
        return encode_compaction_plan(_of_upgrade(plan, "8"))

    begun = interrupted_merge(context, context.active())
    if begun is not None:
        _execute(context, begun, files)
    planned = schedule(context, Action.COMPACTION, build)
    if planned is not None:
        _execute(context, planned, files)


def _of_upgrade(plan: CompactionPlan, table_version: str) -> CompactionPlan:
    return replace(plan, extra_metadata={**(plan.extra_metadata or {}), _OF_UPGRADE: table_version})


def _execute(context: TableContext, planned: Instant, files: FileRules) -> None:
    if execute_compaction(context, planned, files) is None:
        raise ServiceConflictError(
            "another executor works on this compaction: wait for it, then upgrade again: "
            f"{planned.requested_time}",
            kind="plan_claimed",
            requested_time=planned.requested_time,
        )


def merge_logs(context: TableContext, files: FileRules) -> None:
    """
    Merge every slice with log files into its next base file; first finish an interrupted merge.

    Holds one file group in memory for each thread of the executor. Call it with the lock held and
    no other instant pending.

    Outside: 2 lists a partition, 1 get, 1 put (the plan), 1 create (inflight), those of
    ``compact_file_group`` for each slice, 1 create (completed), 1 delete.

    Raises:
        UnsupportedTableError: Its rows cannot be merged here; nothing was written.
        CorruptTableError, MissingFileError: A file is damaged or missing.
        ClockRefusedError: The newest instant is too far ahead of this clock.
        StorageUnavailableError: The storage failed; upgrade again.
    """
    begun = interrupted_merge(context, context.active())
    if begun is not None:
        _carry_out(context, begun, files)  # the table's engine may have written on top of it
    planned = _planned(context, files)
    if planned is not None:
        _carry_out(context, planned, files)


def _planned(context: TableContext, files: FileRules) -> Instant | None:
    snapshot = context.snapshot()
    slices = logged_slices(context, snapshot)
    if not slices:
        return None
    now = WallMs(context.ports.clock.now_ms())
    planned = Instant(
        action=Action.COMPACTION,
        requested_time=next_instant_time(
            now,
            snapshot.active.newest_time,
            Residue.SLOT_REQUESTED,
            limits=context.limits.skew,
            zone=context.zone,
        ),
        state=State.REQUESTED,
    )
    tasks_of(context, snapshot, planned, slices, files)  # refuses what would block the plan
    operations = operations_of(slices, (), new_file_bytes=files.sizes.file_bytes_max)
    plan = _of_upgrade(compaction_plan(operations), "6")
    context.ports.storage.write(
        context.instant_path(instant_file_name(planned)), encode_compaction_plan(plan), durable=True
    )
    return planned


def _carry_out(context: TableContext, planned: Instant, files: FileRules) -> None:
    metadata = merge_slices(context, planned, read_slices(context, planned), files)
    done = Instant(
        action=Action.COMMIT,
        requested_time=planned.requested_time,
        state=State.COMPLETED,
        completion_time=planned.requested_time,
        legacy=True,
    )
    storage = context.ports.storage
    path = context.instant_path(instant_file_name(done))
    with suppress(ObjectExistsError):  # another executor's files have the same rows
        storage.create(path, encode_legacy_commit(metadata))
    delete_markers(storage, planned.requested_time)
    context.ports.events.emit(
        "upgrade.logs_merged", rt=planned.requested_time, file_groups=metadata.total_files
    )


# ---- Upgrade a table from version 6 or 8 to 9, as Java Hudi 1.2 does it (fmt 11, 1.3)
#
# Between 8 and 9 only ``hoodie.properties`` differs, in the keys of the merge rules. Version 6 also
# has another timeline. During the change there must be no pending instant and no live writer. A
# merge-on-read table must have no slice with log files, which another rule would merge differently.
# They are merged first, as Java does; in version 8 by an ordinary compaction. The commit of a
# writer that opened the table before is rejected.
#
# The metadata table of version 8 is upgraded with its table, as in Java: its own properties name the
# new version, and each index definition without a version gets V1. Its records stay as they are.
# That of version 6 has another timeline; it is dropped.
#
# One thing differs from Java: a table of version 6 without a merge mode keeps the one that its
# payload implies. Java chooses event time whenever there is an ordering field (fmt 11.2).

NEWEST_VERSION = 9

#: Version 9 has other keys for these, or none with a merge mode (fmt 11.1).
_LEFT_OUT = (
    "hoodie.compaction.payload.class",
    "hoodie.compaction.record.merger.strategy",
    "hoodie.record.merge.strategy.id",
    "hoodie.table.keygenerator.class",
    "hoodie.table.precombine.field",
)
_NEW_LAYOUT = {
    "hoodie.timeline.layout.version": "2",
    "hoodie.timeline.path": "timeline",
    "hoodie.timeline.history.path": "history",
    "hoodie.archivelog.folder": "history",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """
    Changes of the properties (None removes a key), and the number of merged file groups.

    ``drops_metadata_table``: the metadata table of version 6 is not converted.
    """

    from_version: int
    changes: Mapping[str, str | None]
    file_groups_merged: int = 0
    drops_metadata_table: bool = False


def plan_upgrade(context: TableContext) -> Upgrade | None:
    """
    Return the changes that ``upgrade`` would make; None for a table of the newest version.

    Errors: as there.

    Outside: 1 get, 1 list of the timeline, 1 list a partition, 1 get per pending compaction; 1
    open_input for the base file and each log of a slice with logs.
    """
    config = load_config(context.ports.storage)
    if config.table_version == NEWEST_VERSION:
        return None
    old_layout = config.timeline_layout_version == 1
    if config.timeline_layout_version != context.config.timeline_layout_version:
        raise TableChangedError(
            "the table was upgraded after this process opened it: open the table again: its "
            f"version is {config.table_version}"
        )
    refuse_unwritable(replace(config, timeline_layout_version=2, metadata_partitions=()))
    snapshot = context.snapshot()
    _refuse_unlike_keys(context, snapshot, config)
    _refuse_work_in_progress(context, snapshot.active)
    logged = logged_slices(context, snapshot)
    if old_layout and logged:
        _refuse_column_ids(snapshot)
    _refuse_unreadable(context, snapshot, logged)
    target = {"hoodie.table.version": str(NEWEST_VERSION), **version_9_merging(config.merge)}
    if old_layout:
        target |= _NEW_LAYOUT
        target["hoodie.table.initial.version"] = str(config.initial_version)
    drops = old_layout and config.metadata_table_on
    if drops:
        target |= metadata_table_off(config)
    if config.key_generator_type is not None:
        target["hoodie.table.keygenerator.type"] = config.key_generator_type
    changes: dict[str, str | None] = {
        key: None for key in _LEFT_OUT if key in config.raw and key not in target
    }
    changes |= {key: text for key, text in target.items() if config.raw.get(key) != text}
    return Upgrade(
        from_version=config.table_version,
        changes=dict(sorted(changes.items())),
        file_groups_merged=len(logged),
        drops_metadata_table=drops,
    )


def upgrade(context: TableContext, files: FileRules | None = None) -> Upgrade | None:
    """
    Upgrade the table to version 9; then open it again.

    Outside: lock, as ``plan_upgrade``, 1 get, 2 creates, 3 deletes; of version 6 also 1 get, 1 put
    and 1 delete per file of the timeline, and where it has logs those of ``merge_logs``, of version
    8 those of a compaction.

    Args:
        context: The table.
        files: How to write base files.

    Returns:
        The changes; None when the table had that version already.

    Raises:
        UnsupportedTableError: Its merge mode is unknown, version 9 stores its keys differently, or
            its log files cannot be merged here.
        TableConfigConflictError: Another process upgraded the table.
        MetadataTableOnError: Log files of version 8 must be compacted, and the metadata table has a
            partition that is not maintained.
        InvalidInputError: An instant is pending, or a writer is alive or wrote log files meanwhile.
        ServiceConflictError: Another executor compacts the table just now.
        CorruptTableError, MissingFileError: As ``merge_logs``.
        LockTimeoutError, LeaseLostError, StorageUnavailableError: The lock or the storage did not
            answer; upgrade again. If the change was interrupted, the backup of the properties
            replaces them.
    """
    files = files or FileRules()
    emptied: Mapping[str, str] = {}
    try:
        if context.config.timeline_layout_version != 1:
            _compact_first(context, files)
        else:
            emptied = _drop_metadata_table(context)
        with context.ports.lock.acquire("upgrade the table") as lease:
            protocol_of(context).refresh(lease)
            planned = plan_upgrade(context)
            if planned is not None and context.config.timeline_layout_version == 1:
                _upgrade_old_layout(context, planned, files, lease)
            elif planned is not None:
                _refuse_logs(logged_slices(context, context.snapshot()))
                _upgrade_metadata_table(context)
                _change_properties(context, planned)
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; upgrade again: {error}", path=str(error)
        ) from error
    if planned is None:
        return None
    context.ports.events.emit("table.upgraded", version=NEWEST_VERSION)
    return replace(
        planned,
        changes={**emptied, **planned.changes},
        drops_metadata_table=bool(emptied) or planned.drops_metadata_table,
    )


def _drop_metadata_table(context: TableContext) -> Mapping[str, str]:
    """Drop the metadata table before other changes, and only if the upgrade is possible."""
    storage = context.ports.storage
    with context.ports.lock.acquire("drop the metadata table") as lease:
        protocol_of(context).refresh(lease)
        planned = plan_upgrade(context)
        before = load_config(storage)
        if planned is None or not before.metadata_table_on:
            return {}
        now = instant_time(WallMs(context.ports.clock.now_ms()))
        context.metadata_table.config = switch_metadata_table_off(storage, now=now)
    return metadata_table_off(before)


def _compact_first(context: TableContext, files: FileRules) -> None:
    """Compact version 8 by the compaction service; the upgrade refuses log files written later."""
    planned = plan_upgrade(context)
    if planned is not None and planned.file_groups_merged:
        compact_all_logs(context, files)


def _upgrade_old_layout(
    context: TableContext, planned: Upgrade, files: FileRules, lease: Lease
) -> None:
    """Upgrade version 6; each step leaves a whole table of version 6 or 9 and may be repeated."""
    if planned.file_groups_merged or interrupted_merge(context, context.active()):
        merge_logs(context, files)
        lease.assert_held()
        snapshot = context.snapshot()  # the merge is slow, and Java begins without a lock
        _refuse_work_in_progress(context, snapshot.active)
        _refuse_logs(logged_slices(context, snapshot))
    write_new_timeline(context)
    _change_properties(context, planned)
    delete_old_timeline(context)


def _upgrade_metadata_table(context: TableContext) -> None:
    """
    Upgrade the metadata table, before the table itself as in Java; repeating it changes nothing.

    Until the table follows, the versions differ: no reader of ours uses the metadata table then, and
    Java upgrades the table with its next write. Outside: 3 gets; 1 put, 2 creates and 3 deletes.
    """
    storage = context.ports.storage
    if not load_config(storage).metadata_table_on:
        return
    defined = read_index_definitions(storage).values()
    old = [replace(one, has_version=True) for one in defined if not one.has_version]
    if old:
        write_index_definitions(storage, old)
    below = SubfolderStorage(storage, METADATA_TABLE)
    now = instant_time(WallMs(context.ports.clock.now_ms()))
    update_properties(below, {"hoodie.table.version": str(NEWEST_VERSION)}, now=now)


def _change_properties(context: TableContext, planned: Upgrade) -> None:
    now = instant_time(WallMs(context.ports.clock.now_ms()))
    update_properties(context.ports.storage, planned.changes, now=now)


def _refuse_unlike_keys(context: TableContext, snapshot: Snapshot, config: TableConfig) -> None:
    """
    Refuse complex keys of one field without the field's name, which version 9 stores with it.

    Files of older tables may have the name, too (0.14.0 and older write it): the stored keys
    decide.
    """
    keys = key_spec_of(WriteSettings(), config)
    if not keys.has_two_forms:
        return
    wanted = replace(keys, stored_prefix=True)
    for one in view_of(context, snapshot).latest_slices(None):
        if False not in forms_of(context, snapshot, one, wanted):
            continue
        step = (
            "write the rows into a new table"
            if config.timeline_layout_version == 1
            else "keep version 8, or rewrite the keys before: 'hoodoo table repair-keys TABLE "
            "--hoodie-conf hoodie.write.complex.keygen.new.encoding=false'"
        )
        raise UnsupportedTableError(
            "the record keys of this table are bare values, and in version 9 they begin with the "
            f"field's name. Updates would not find the existing rows: {step}: "
            f"{config.record_key_fields[0]}, first in {one.file_group}",
            kind="not_upgradable",
            feature="complex key of one field",
        )


def _refuse_column_ids(snapshot: Snapshot) -> None:
    if snapshot.newest_internal_schema_json:
        raise UnsupportedTableError(
            "the table's columns have ids (schema on read), and its log files of version 6 are not "
            "merged with ids here: let Java Hudi compact the table, then upgrade it",
            kind="not_upgradable",
            feature="column ids in log files of version 6",
        )


def _refuse_work_in_progress(context: TableContext, active: ActiveTimeline) -> None:
    begun = interrupted_merge(context, active)
    pending = [one for one in active.pending if one != begun]
    if pending:
        raise InvalidInputError(
            "the table has pending instants: finish them, roll them back or cancel them, then "
            f"upgrade: {', '.join(map(str, pending[:5]))}",
            kind="instants_pending",
            pending=[str(one) for one in pending],
        )
    refuse_with_writers(context)


def _refuse_unreadable(
    context: TableContext, snapshot: Snapshot, logged: Sequence[FileSlice]
) -> None:
    """Refuse log files that no reader can read, before their merge fails halfway."""
    if not logged:
        return
    storage = context.ports.storage
    read = plan_scan(context, snapshot, logged, with_hoodie_columns=True).read
    for one in logged:
        if one.base_file is not None:
            stored = read_footer(storage, one.base_file.path).schema
            assert_base_fits(stored, one.base_file, read)
        assert_logs_fit(storage, one, read)


def _refuse_logs(logged: Sequence[FileSlice]) -> None:
    if logged:
        raise InvalidInputError(
            "file groups have log files, which version 9 may merge differently: compact them "
            "first ('hoodoo services run TABLE --service compact'), then upgrade: "
            f"{counted(len(logged), 'file group')}, the first is {logged[0].file_group}",
            kind="logs_not_compacted",
            file_groups=len(logged),
        )

"""
Upgrade of a table from version 6 or 8 to 9, as Java Hudi 1.2 does it (fmt 11, 1.3).

Between 8 and 9 only ``hoodie.properties`` differs, in how it says that records merge; version
6 has another timeline, too. Nothing may be in the making while it changes: no pending
instant, no live writer, and of a merge-on-read table no slice with logs, which another rule
would merge differently: they are merged first, as Java does, those of version 8 by a compaction
like any other. A writer that opened the table before is refused when it publishes.

One thing is not as Java does it: a table of version 6 without a merge mode keeps the one its
payload means, where Java says event time whenever there is an ordering field (fmt 11.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tableservices.upgrade_logs import begun_merge, compact_logs, logged_slices, merge_logs
from tableservices.upgrade_timeline import delete_old_timeline, write_new_timeline
from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import (
    InvalidInputError,
    StorageUnavailableError,
    TableConfigConflictError,
    UnsupportedTableError,
)
from timeline.files.parquet import read_footer
from timeline.files.slice_reader import assert_base_fits, assert_logs_fit
from timeline.model.file_group import FileSlice
from timeline.model.merge_definition import version_9_merging
from timeline.model.table_config import TableConfig
from timeline.model.times import WallMs, instant_time
from timeline.ports.lock import Lease
from timeline.ports.storage import AmbiguousWriteError
from timeline.properties.key_settings import key_spec_of
from timeline.properties.properties_file import (
    load_config,
    metadata_table_off,
    switch_metadata_table_off,
    update_properties,
)
from timeline.properties.settings import WriteSettings
from timeline.publishing.look import look
from timeline.readable import refuse_unwritable
from timeline.reading.read import plan_scan, view_of
from timeline.reading.snapshot import Snapshot
from timeline.registry import refuse_beside_writers
from timeline.writing.key_encoding import forms_of
from timeline.writing.placing import FileRules

__all__ = ["NEWEST_VERSION", "Upgrade", "plan_upgrade", "upgrade"]

NEWEST_VERSION = 9

#: Said otherwise in version 9, or not at all with a merge mode (fmt 11.1).
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
    """What changes in the properties; None takes a key away. File groups whose logs are merged."""

    from_version: int
    changes: Mapping[str, str | None]
    file_groups_merged: int = 0


def plan_upgrade(context: TableContext, *, without_metadata_table: bool = False) -> Upgrade | None:
    """
    What ``upgrade`` would change, None when the table is of the newest version.

    Arguments, errors: as there.

    Outside: 1 get, 1 list of the timeline, 1 list a partition, 1 get per pending compaction; 1
    open_input for the base file and each log of a slice with logs.
    """
    config = load_config(context.world.storage)
    if config.table_version == NEWEST_VERSION:
        return None
    old_layout = config.timeline_layout_version == 1
    if config.timeline_layout_version != context.config.timeline_layout_version:
        raise TableConfigConflictError(
            "the table was upgraded since it was opened; open it again: now it is of version "
            f"{config.table_version}"
        )
    kept = () if without_metadata_table else config.metadata_partitions
    refuse_unwritable(replace(config, timeline_layout_version=2, metadata_partitions=kept))
    snapshot = context.snapshot()
    _refuse_unlike_keys(context, snapshot, config)
    _refuse_work_in_progress(context, snapshot.active)
    logged = logged_slices(context, snapshot)
    _refuse_unreadable(context, snapshot, logged)
    said = {"hoodie.table.version": str(NEWEST_VERSION), **version_9_merging(config.merge)}
    if old_layout:
        said |= _NEW_LAYOUT
        said["hoodie.table.initial.version"] = str(config.initial_version)
    if config.metadata_table_on:
        said |= metadata_table_off(config)
    if config.key_generator_type is not None:
        said["hoodie.table.keygenerator.type"] = config.key_generator_type
    changes: dict[str, str | None] = {
        key: None for key in _LEFT_OUT if key in config.raw and key not in said
    }
    changes |= {key: text for key, text in said.items() if config.raw.get(key) != text}
    return Upgrade(
        from_version=config.table_version,
        changes=dict(sorted(changes.items())),
        file_groups_merged=len(logged),
    )


def upgrade(
    context: TableContext,
    files: FileRules | None = None,
    *,
    without_metadata_table: bool = False,
) -> Upgrade | None:
    """
    Make the table one of version 9; open it again afterwards.

    Outside: lock, as ``plan_upgrade``, 1 get, 2 creates, 3 deletes; of version 6 also 1 get, 1
    put and 1 delete per file of the timeline, and where it has logs those of ``merge_logs``, of
    version 8 those of a compaction.

    Args:
        context: The table.
        files: How base files are made of logs.
        without_metadata_table: Switch it off first where it is on: a table of version 6 cannot be
            written, which is what switches it off else.

    Returns:
        What was changed; None when it was of that version already.

    Raises:
        UnsupportedTableError: Its merge mode is unknown, its keys are written differently in
            version 9, or its logs cannot be merged here.
        TableConfigConflictError: The metadata table is on and was not to be switched off, or
            another process upgraded the table.
        InvalidInputError: Something is pending, a writer lives, or wrote logs meanwhile.
        ServiceConflictError: Another executor compacts the table just now.
        CorruptTableError, MissingFileError: As ``merge_logs``.
        LockTimeoutError, LeaseLostError, StorageUnavailableError: Something outside did not
            answer: upgrade again. Where the change was cut off, the backup of the properties
            stands for them.
    """
    files = files or FileRules()
    emptied: Mapping[str, str] = {}
    try:
        if without_metadata_table:
            emptied = _switch_metadata_table_off(context)
        if context.config.timeline_layout_version != 1:
            _compact_first(context, files)
        with context.world.lock.acquire("upgrade the table") as lease:
            look(context, lease)
            planned = plan_upgrade(context)
            if planned is not None and context.config.timeline_layout_version == 1:
                _upgrade_old_layout(context, planned, files, lease)
            elif planned is not None:
                _refuse_logs(logged_slices(context, context.snapshot()))
                _change_properties(context, planned)
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; upgrade again: {error}", path=str(error)
        ) from error
    if planned is None:
        return None
    context.world.events.emit("table.upgraded", version=NEWEST_VERSION)
    return replace(planned, changes={**emptied, **planned.changes})


def _switch_metadata_table_off(context: TableContext) -> Mapping[str, str]:
    """Before anything is changed behind it, and only where nothing else stands in the way."""
    storage = context.world.storage
    with context.world.lock.acquire("switch the metadata table off") as lease:
        look(context, lease)
        planned = plan_upgrade(context, without_metadata_table=True)
        before = load_config(storage)
        if planned is None or not before.metadata_table_on:
            return {}
        switch_metadata_table_off(storage, now=instant_time(WallMs(context.world.clock.now_ms())))
    return metadata_table_off(before)


def _compact_first(context: TableContext, files: FileRules) -> None:
    """Version 8 knows compactions of ours; the upgrade refuses what somebody writes after it."""
    planned = plan_upgrade(context)
    if planned is not None and planned.file_groups_merged:
        compact_logs(context, files)


def _upgrade_old_layout(
    context: TableContext, planned: Upgrade, files: FileRules, lease: Lease
) -> None:
    """Each step leaves a whole table of version 6 or 9, and is done again without harm."""
    if planned.file_groups_merged or begun_merge(context, context.active()):
        merge_logs(context, files)
        lease.assert_held()
        snapshot = context.snapshot()  # that took long, and Java begins without asking for a lock
        _refuse_work_in_progress(context, snapshot.active)
        _refuse_logs(logged_slices(context, snapshot))
    write_new_timeline(context)
    _change_properties(context, planned)
    delete_old_timeline(context)


def _change_properties(context: TableContext, planned: Upgrade) -> None:
    now = instant_time(WallMs(context.world.clock.now_ms()))
    update_properties(context.world.storage, planned.changes, now=now)


def _refuse_unlike_keys(context: TableContext, snapshot: Snapshot, config: TableConfig) -> None:
    """
    Complex keys of one field have their field's name before them only in version 9.

    Files of older tables may have it, too (0.14.0 and older write it): the stored keys decide.
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
            "record keys of a complex key generator with one field are stored as the bare value, "
            "and version 9 has the field's name before it, so its updates would not find the "
            f"rows that are there; {step}: {config.record_key_fields[0]}, first in "
            f"{one.file_group}",
            kind="not_upgradable",
            feature="complex key of one field",
        )


def _refuse_work_in_progress(context: TableContext, active: ActiveTimeline) -> None:
    begun = begun_merge(context, active)
    pending = [one for one in active.pending if one != begun]
    if pending:
        raise InvalidInputError(
            "a table is upgraded when nothing is pending; finish it, roll it back or cancel it: "
            f"{', '.join(map(str, pending[:5]))}",
            kind="instants_pending",
            pending=[str(one) for one in pending],
        )
    refuse_beside_writers(context)


def _refuse_unreadable(
    context: TableContext, snapshot: Snapshot, logged: Sequence[FileSlice]
) -> None:
    """Their logs are merged: what no reader can read must not stop that in the middle."""
    if not logged:
        return
    storage = context.world.storage
    read = plan_scan(context, snapshot, logged, with_hoodie_columns=True).read
    for one in logged:
        if one.base_file is not None:
            stored = read_footer(storage, one.base_file.path).schema
            assert_base_fits(stored, one.base_file, read)
        assert_logs_fit(storage, one, read)


def _refuse_logs(logged: Sequence[FileSlice]) -> None:
    if logged:
        raise InvalidInputError(
            "file groups have log files, which version 9 may merge differently; compact them "
            "first ('hoodoo services run --service compact'), then upgrade: "
            f"{len(logged)} file groups, the first is {logged[0].file_group}",
            kind="logs_not_compacted",
            file_groups=len(logged),
        )

"""
Upgrade of a table from version 6 or 8 to 9, as Java Hudi 1.2 does it (fmt 11, 1.3).

Between 8 and 9 only ``hoodie.properties`` differs, in how it says that records merge; version
6 has another timeline, too. Nothing may be in the making while it changes: no pending
instant, no live writer, and of a merge-on-read table no log file, which another rule would
merge differently (Java compacts first). A writer that opened the table before is refused when
it publishes.

One thing is not as Java does it: a table of version 6 without a merge mode keeps the one its
payload means, where Java says event time whenever there is an ordering field (fmt 11.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tableservices.upgrade_timeline import (
    delete_old_timeline,
    refuse_logs_of_version_6,
    write_new_timeline,
)
from timeline.context import TableContext
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.merge_definition import version_9_merging
from timeline.model.table_config import TableConfig
from timeline.model.times import WallMs, instant_time
from timeline.properties_file import load_config, update_properties
from timeline.read import view_of
from timeline.readable import refuse_unwritable
from timeline.registry import registered_writers
from timeline.settle import finish, is_settled

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
    """What changes in the properties; None takes a key away."""

    from_version: int
    changes: Mapping[str, str | None]


def plan_upgrade(context: TableContext) -> Upgrade | None:
    """
    What ``upgrade`` would change, None when the table is of the newest version. Errors: as there.

    Outside: 1 get, 1 list of the timeline, 1 list a partition of merge-on-read tables.
    """
    config = load_config(context.world.storage)
    if config.table_version == NEWEST_VERSION:
        return None
    old_layout = config.timeline_layout_version == 1
    refuse_unwritable(replace(config, timeline_layout_version=2))
    _refuse_unlike_keys(config)
    if old_layout:
        refuse_logs_of_version_6(context)
    _refuse_work_in_progress(context)
    said = {"hoodie.table.version": str(NEWEST_VERSION), **version_9_merging(config.merge)}
    if old_layout:
        said |= _NEW_LAYOUT
        said["hoodie.table.initial.version"] = str(config.initial_version)
    if config.key_generator_type is not None:
        said["hoodie.table.keygenerator.type"] = config.key_generator_type
    changes: dict[str, str | None] = {
        key: None for key in _LEFT_OUT if key in config.raw and key not in said
    }
    changes |= {key: text for key, text in said.items() if config.raw.get(key) != text}
    return Upgrade(from_version=config.table_version, changes=dict(sorted(changes.items())))


def upgrade(context: TableContext) -> Upgrade | None:
    """
    Make the table one of version 9; open it again afterwards.

    Outside: lock, as ``plan_upgrade``, 1 get, 2 creates, 3 deletes; of version 6 also 1 get, 1
    put and 1 delete per file of the timeline.

    Returns:
        What was changed; None when it was of that version already.

    Raises:
        UnsupportedTableError: Its merge mode is unknown, or its keys are written differently
            in version 9.
        TableConfigConflictError: The metadata table is on.
        InvalidInputError: Something is pending, a writer lives, or logs are not compacted.
        LockTimeoutError, StorageUnavailableError: Something outside did not answer; where the
            change was cut off, the backup of the properties stands for them.
    """
    with context.world.lock.acquire("upgrade the table"):
        head = context.chain.head()
        last = context.chain.read(head) if head else None
        if last is not None and not is_settled(last, context.active()):
            finish(context, last)
        planned = plan_upgrade(context)
        if planned is not None:
            old_layout = context.config.timeline_layout_version == 1
            if old_layout:
                write_new_timeline(context)
            now = instant_time(WallMs(context.world.clock.now_ms()))
            update_properties(context.world.storage, planned.changes, now=now)
            if old_layout:
                delete_old_timeline(context)
            context.world.events.emit("table.upgraded", version=NEWEST_VERSION)
    return planned


def _refuse_unlike_keys(config: TableConfig) -> None:
    """Complex keys of one field have their field's name before them only since version 9."""
    complex_keys = (config.key_generator_type or "").startswith("COMPLEX")
    if complex_keys and len(config.record_key_fields) == 1:
        raise UnsupportedTableError(
            "record keys of a complex key generator with one field are written differently in "
            "version 9, so its updates would not find the rows that are there; keep version 8, "
            f"or write the rows into a new table: {config.record_key_fields[0]}",
            kind="not_upgradable",
            feature="complex key of one field",
        )


def _refuse_work_in_progress(context: TableContext) -> None:
    snapshot = context.snapshot()
    pending = snapshot.active.pending
    if pending:
        raise InvalidInputError(
            "a table is upgraded when nothing is pending; finish it, roll it back or cancel it: "
            f"{', '.join(map(str, pending[:5]))}",
            kind="instants_pending",
            pending=[str(one) for one in pending],
        )
    own = context.world.ids.identity().writer_id
    alive = [one.text for one in registered_writers(context) if one.alive and one.writer_id != own]
    if alive:
        raise InvalidInputError(
            f"a writer is at work on this table, end it first: {'; '.join(alive)}",
            kind="writers_at_work",
            writers=alive,
        )
    logs = [one for one in view_of(context, snapshot).latest_slices() if one.log_files]
    if logs:
        raise InvalidInputError(
            "file groups have log files, which version 9 may merge differently; compact them "
            "first ('hoodoo services run --service compact'), then upgrade: "
            f"{len(logs)} file groups, the first is {logs[0].file_group}",
            kind="logs_not_compacted",
            file_groups=len(logs),
        )

"""Drop partitions of the metadata table, or all of it, while writers write (MDT-11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from filegroups.metadata_table.index_definitions import (
    read_index_definitions,
    write_index_definitions,
)
from filegroups.metadata_table.new_partitions import dependents
from filegroups.supported import refuse_old_version
from tableservices.metadata_table.build import next_change
from timeline.commit.begin import refuse_during_restore
from timeline.commit.commit_lock import assert_lease, keep_commit_lock
from timeline.commit.section import open_commit
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.file_names import METADATA_TABLE, join
from timeline.model.instant import Action
from timeline.model.instant_time import Residue, WallMs, instant_time
from timeline.model.metadata_table import PartitionKind
from timeline.model.slot import SlotKind
from timeline.model.table_config import (
    METADATA_CHANGES,
    METADATA_COMPLETE,
    METADATA_INFLIGHT,
    TableConfig,
)
from timeline.properties.properties_file import (
    load_config,
    metadata_table_off,
    update_properties,
)


def drop_partitions(context: TableContext, names: Iterable[str] = ()) -> tuple[str, ...]:
    """
    Drop partitions and those that need them; without names all, and the metadata table.

    First the properties stop naming them, then their folders are deleted, then a ``metadata`` slot
    follows. Writes in flight that brought records for them are rejected and try again. A crash in
    between leaves folders that count for nothing.

    Returns:
        The dropped partitions, sorted; none if the table has no metadata table.

    Raises:
        InvalidInputError: The metadata table has no such partition (``metadata_partition_unknown``).
        LockTimeoutError, LeaseLostError, StorageUnavailableError: As a commit; drop again.
        CorruptTableError: The index definitions are damaged (``bad_index_definitions``); drop all.

    Outside: 1 commit section, a change of the properties, the deletes.
    """
    refuse_old_version(load_config(context.ports.storage))
    purpose, nonce = "drop from the metadata table", context.ports.ids.nonce()
    dropped: tuple[str, ...] = ()
    with keep_commit_lock(context, purpose) as locked:
        commit = open_commit(locked, purpose)
        while not commit.is_decided():
            with commit.section() as section:
                refuse_during_restore(section.timeline)
                now = dropped_partitions(section.config(), tuple(names))
                if not now and not dropped:
                    return ()
                dropped = tuple(sorted({*dropped, *now}))
                with locked.ports.lock.acquire(purpose) as lease:
                    assert_lease(lease)
                    context.metadata_table.config = _drop(locked, now)
                time = section.draw_time(locked, Residue.SLOT_REQUESTED)
                slot = section.next_slot(
                    locked, SlotKind.METADATA, Action.DELTACOMMIT, time, nonce=nonce
                )
                commit.take(section, slot)
    context.ports.events.emit("metadata_table.dropped", partitions=", ".join(dropped))
    return dropped


def dropped_partitions(config: TableConfig, names: Sequence[str]) -> tuple[str, ...]:
    """
    Return what ``drop_partitions`` would drop.

    Raises: as there.
    """
    present = set(config.metadata_partitions)
    if not names:
        return tuple(sorted(present))
    unknown = sorted(set(names) - present)
    if unknown:
        raise InvalidInputError(
            "the metadata table has no such partition: 'hoodoo metadata status TABLE' lists those "
            f"that it has: {', '.join(unknown)}",
            kind="metadata_partition_unknown",
            partitions=unknown,
        )
    return tuple(sorted({one for name in names for one in dependents(name, present)}))


def _drop(context: TableContext, gone: Sequence[str]) -> TableConfig:
    """Change the properties, then delete the folders and definitions."""
    storage = context.ports.storage
    config = load_config(storage)
    left = set(config.metadata_partitions) - set(gone)
    if left:
        read_index_definitions(storage)  # raises before anything is changed
    changes: dict[str, str | None] = {METADATA_CHANGES: next_change(config)}
    if PartitionKind.RECORD_INDEX.value in gone:
        # Rows may be in other partitions than their columns say; the index said where.
        noted = metadata_table_off(config)
        changes |= {key: text for key, text in noted.items() if text}
    complete = left.intersection(config.complete_metadata_partitions)
    changes |= {
        METADATA_COMPLETE: ",".join(sorted(complete)),
        METADATA_INFLIGHT: ",".join(sorted(left - complete)),
    }
    now = instant_time(WallMs(context.ports.clock.now_ms()))
    changed = update_properties(storage, changes, now=now)
    for folder in [join(METADATA_TABLE, name) for name in gone] if left else [METADATA_TABLE]:
        storage.delete_folder(folder)
    write_index_definitions(storage, (), gone, is_all=not left)
    return changed

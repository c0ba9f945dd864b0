"""
Take removed writes out of the metadata table, with the slot of a restore or rollback (MDT-12).

Apply deletes the deltacommits and log files of the writes. That is exact for most of them. Two
kinds of writes need an update: those that a compaction of the metadata table merged, and those older
than one of its partitions. The update is the difference between the metadata table and the table
without the write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from filegroups.metadata_table.contents import (
    KEEPS_KEYS,
    PartitionContents,
    statistics_of_slices,
)
from filegroups.metadata_table.file_group_contents import IndexedTable
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.metadata_table.removed_writes import contents_of_removal, merged_times
from filegroups.reading.scan import known_schema, view_of
from filegroups.writing.metadata_update import ServiceUpdate
from tableservices.restoring.state_at import without
from timeline.context import TableContext
from timeline.errors import ServiceConflictError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action
from timeline.model.instant_time import EARLIEST, InstantTime
from timeline.model.metadata_table import METADATA_TIMELINE, MetadataUpdate, PartitionKind
from timeline.model.slot import SlotKind
from timeline.model.table_config import TableConfig
from timeline.properties.properties_file import load_config
from timeline.snapshot import ActiveTimeline, Snapshot

_Contents = Mapping[str, PartitionContents]
#: Plans whose execution may contain a removed write.
_MERGING: Final = frozenset({Action.COMPACTION, Action.LOGCOMPACTION})


class MetadataRemoval:
    """
    The metadata table's part of a slot that removes writes.

    Args:
        context: The table.
        times: Requested times of the removed writes and plans.
    """

    def __init__(self, context: TableContext, times: Iterable[InstantTime]) -> None:
        self._context = context
        self._times = frozenset(times)
        self._made: dict[tuple[tuple[str, ...], frozenset[InstantTime]], _Contents] = {}

    def prepare(self, snapshot: Snapshot) -> None:
        """Read the indexes before the section, for the partitions as they are now (PUB-1)."""
        self.of(snapshot, load_config(self._context.ports.storage), max(self._times))

    def of(
        self, snapshot: Snapshot, config: TableConfig, requested_time: InstantTime
    ) -> MetadataUpdate | None:
        """
        Return the update; None if the deletes of apply suffice, or without a metadata table.

        Args:
            snapshot: With the writes that are removed.
            config: The present properties.
            requested_time: Of the restore or rollback.

        Raises:
            MetadataTableOnError, CorruptTableError: As ``MetadataFileGroups.read``.
            ServiceConflictError: A compaction of the metadata table may still merge the writes
                (``metadata_compaction_pending``), or one of its partitions is being built
                (``metadata_build_pending``).

        Outside: with a metadata table 1 list, and the slots since the first of the writes. For an update the calls of ``ServiceUpdate.of``, and
        those of ``contents_of_removal`` unless ``prepare`` made them.
        """
        if not config.metadata_table_on:
            return None
        listed = self._context.ports.storage.list(METADATA_TIMELINE)
        self._refuse_build(config)
        self._refuse_open_compaction(snapshot, ActiveTimeline.of([one.name for one in listed]))
        pending = {one.requested_time for one in snapshot.active.pending}
        merged = merged_times(listed, self._times - pending)
        if not merged:
            return None
        schema = known_schema(self._context, snapshot)
        update = ServiceUpdate(
            self._context,
            None if schema is None else schema.avro_json,
            partial(self._contents, snapshot, config, merged),
        )
        return update.of(config, requested_time, slot_number=snapshot.head + 1)

    def _refuse_build(self, config: TableConfig) -> None:
        """Pass if no partition is being built: its base files may have the writes (MDT-11)."""
        building = sorted(
            set(config.metadata_partitions) - set(config.complete_metadata_partitions)
        )
        if building:
            raise ServiceConflictError(
                "a partition of the metadata table is being built, and it may contain writes that "
                "this would remove: wait for the build, or drop the partition with 'hoodoo metadata "
                f"drop TABLE PARTITION', then repeat: {', '.join(building)}",
                kind="metadata_build_pending",
                partitions=building,
            )

    def _refuse_open_compaction(self, snapshot: Snapshot, own: ActiveTimeline) -> None:
        """
        Pass if no process can complete a compaction that names log files of the writes.

        Where other engines write, a compaction is executed under the lock, so a pending one is left
        by a dead process, and apply ends it. Elsewhere any process may complete it at any time,
        also one whose plan is decided and not visible yet (MDT-8).
        """
        mine = [one for one in own.instants if one.requested_time in self._times]
        first = min((one.completion_time for one in mine if one.completion_time), default=None)
        if first is None or self._context.has_foreign_writers:
            return
        newest = max(
            (one.requested_time for one in own.completed_writes if one.action is Action.COMMIT),
            default=EARLIEST,
        )
        planned = {one.requested_time for one in own.pending if one.action in _MERGING}
        for slot in self._context.commit_log.newest_first(snapshot.head):
            if slot.completion_time < first:
                break
            if slot.kind is SlotKind.METADATA and slot.action in _MERGING:
                planned.add(slot.requested_time)
        planned.difference_update(one.requested_time for one in own.instants if one.completed)
        left = [time for time in planned if time > max(first, newest)]
        if left:
            raise ServiceConflictError(
                "a compaction of the metadata table is pending, and it may contain writes that this "
                "would remove: finish it with 'hoodoo services run TABLE --service metadata', then "
                f"repeat: {min(left)}",
                kind="metadata_compaction_pending",
                requested_time=min(left),
            )

    def _contents(
        self,
        snapshot: Snapshot,
        config: TableConfig,
        merged: frozenset[InstantTime],
        table: IndexedTable,
        _requested_time: InstantTime,
    ) -> _Contents:
        key = table.partitions, merged
        if key not in self._made:
            self._made[key] = self._difference(snapshot, config, merged, table)
        return self._made[key]

    def _difference(
        self,
        snapshot: Snapshot,
        config: TableConfig,
        merged: frozenset[InstantTime],
        table: IndexedTable,
    ) -> _Contents:
        context, then = self._context, without(snapshot, self._times)
        ports = context.ports
        metadata = open_metadata_table(ports.storage, config, then, ports=ports)
        if metadata is None:
            return {}
        metadata = replace(metadata, is_newer=False)  # it counts what a compaction merged
        groups, view = self._groups(snapshot, merged, table), view_of(context, then)
        slices: Sequence[FileSlice] = []
        if table.indexes_keys and groups is None:
            slices = view.latest_slices()
        elif table.indexes_keys and groups is not None:
            slices = [one for one in map(view.latest_slice, sorted(groups)) if one is not None]
        made = contents_of_removal(
            ports.storage,
            ports.executor,
            table,
            metadata,
            removed=self._times,
            slices=slices,
            of_groups=groups,
            zone=context.zone,
        )
        if not table.has(PartitionKind.PARTITION_STATS):
            return made
        # A build after the writes has bounds of the newest slices only. Others are visible now.
        shown = view.latest_slices(self._partitions(snapshot, merged))
        index = PartitionKind.PARTITION_STATS.value
        bounds = statistics_of_slices(ports.storage, ports.executor, table, shown, EARLIEST)
        return {**made, index: PartitionContents(records=bounds)}

    def _partitions(self, snapshot: Snapshot, merged: frozenset[InstantTime]) -> list[str] | None:
        """Return the partitions whose visible files the writes may have changed; None for all."""
        done = {one.requested_time: one for one in snapshot.active.completed_writes}
        if not merged <= done.keys():
            return None
        found: set[str] = set()
        for time in merged:
            commit = self._context.commits.read(done[time])
            found.update(commit.partition_paths())
        return sorted(found)

    def _groups(
        self, snapshot: Snapshot, merged: frozenset[InstantTime], table: IndexedTable
    ) -> frozenset[FileGroupId] | None:
        """Return the file groups whose keys the writes may have changed; None if unknown."""
        if not table.has(PartitionKind.RECORD_INDEX):
            return None  # a secondary index does not name file groups
        found: set[FileGroupId] = set()
        done = {one.requested_time: one for one in snapshot.active.completed_writes}
        for time in merged:
            if time not in done:
                return None
            commit = self._context.commits.read(done[time])
            if commit.operation_type in KEEPS_KEYS:
                continue
            found.update(FileGroupId(*place) for place in commit.replaced_file_groups())
            for path, stats in commit.partition_to_write_stats.items():
                found.update(FileGroupId(path, stat.file_id) for stat in stats)
        return frozenset(found)

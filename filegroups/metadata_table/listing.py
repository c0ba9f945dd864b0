"""List partitions and files of a table by its metadata table, while it can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from timeline.context import TableContext
from timeline.errors import CorruptTableError, SnapshotExpiredError, UnsupportedTableError
from timeline.model.metadata_table import PartitionKind
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Ports
from timeline.properties.properties_file import load_config
from timeline.snapshot import Snapshot

_STATISTICS = PartitionKind.COLUMN_STATS.value
_PARTITION_STATISTICS = PartitionKind.PARTITION_STATS.value
_FIRST_VERSION = 8  # of tables whose metadata table is read
_Found = TypeVar("_Found")


@dataclass(kw_only=True)
class MetadataListing:
    """
    The list of files that the metadata table has for a snapshot.

    Each answer is None if the metadata table is damaged, missing, of a version that is not read, or
    does not have exactly the commits of the snapshot. The caller then lists folders. The event
    ``metadata_table.not_used`` names the reason once.
    """

    ports: Ports
    config: TableConfig
    snapshot: Snapshot
    _table: MetadataTable | None = None
    _is_unusable: bool = field(default=False)

    def partition_paths(self) -> list[str] | None:
        """Return the partitions, sorted. Outside: as ``MetadataTable.partition_paths``."""
        return self._ask(lambda table: table.partition_paths())

    def files(self, partition_paths: Sequence[str]) -> pa.Table | None:
        """Return the files of partitions. Shapes, calls outside: as ``MetadataTable.files_of``."""
        return self._ask(lambda table: table.files_of(partition_paths))

    @property
    def has_statistics(self) -> bool:
        """Whether the table has statistics of columns, by its properties."""
        return _STATISTICS in self.config.metadata_partitions

    def statistics(self, keys: pa.ChunkedArray) -> pa.Table | None:
        """Return the records of ``column_stats``. Outside: as ``MetadataTable.look_up``."""
        return self._ask(lambda table: table.look_up(_STATISTICS, keys))

    @property
    def has_partition_statistics(self) -> bool:
        """
        Whether ``partition_stats`` may exclude rows of the snapshot, by the table's properties.

        Bounds of a partition follow the newest commit, so they are no bounds of an earlier time.
        """
        complete = self.config.complete_metadata_partitions
        return _PARTITION_STATISTICS in complete and self.snapshot.as_of is None

    def partition_statistics(self, keys: pa.Array | pa.ChunkedArray) -> pa.Table | None:
        """
        Return the records of ``partition_stats``; None if their bounds may be too narrow.

        A compaction may have merged later commits, or another process may be building the
        partition again. Outside: as ``MetadataTable.look_up``, 1 get.
        """
        found = self._ask(
            lambda table: None if table.is_newer else table.look_up(_PARTITION_STATISTICS, keys)
        )
        now = load_config(self.ports.storage)
        is_same = now.metadata_state == self.config.metadata_state
        complete = now.complete_metadata_partitions
        return found if is_same and _PARTITION_STATISTICS in complete else None

    def _ask(self, question: Callable[[MetadataTable], _Found]) -> _Found | None:
        if self._is_unusable:
            return None
        try:
            if self._table is None:
                self._table = self._opened()
            if self._table is not None:
                return question(self._table)
        except (CorruptTableError, SnapshotExpiredError, UnsupportedTableError) as error:
            self._note(error.kind)
        self._is_unusable = True
        return None

    def _opened(self) -> MetadataTable | None:
        if self.config.table_version < _FIRST_VERSION:
            return None
        ports = self.ports
        table = open_metadata_table(ports.storage, self.config, self.snapshot, ports=ports)
        if table is None or table.lag.is_trusted:
            return table
        self._note("behind" if table.lag.behind else "unknown_instants")
        return None

    def _note(self, reason: str) -> None:
        self.ports.events.emit("metadata_table.not_used", reason=reason)


def metadata_listing(
    context: TableContext,
    snapshot: Snapshot,
    *,
    of_partitions: bool = True,
    is_cheaper: bool = False,
) -> MetadataListing | None:
    """
    Return the listing that a read uses; None to list folders.

    ``hoodie.metadata.enable`` decides. Without the option, the metadata table is used on a
    high-latency store where that takes fewer requests: for files of partitioned tables, and for
    statistics.

    Args:
        context: The table.
        snapshot: The snapshot that is read.
        of_partitions: Whether files are listed; False for statistics.
        is_cheaper: Whether the metadata table saves work without the option on any store.
    """
    wanted = context.limits.lists_by_metadata
    config = context.metadata_table.config or context.config
    if wanted is None:
        is_far = context.ports.storage.capabilities.high_latency
        fewer = is_far and (not of_partitions or bool(config.partition_fields))
        wanted = fewer or is_cheaper
    if not wanted or not config.metadata_table_on:
        return None
    return MetadataListing(ports=context.ports, config=config, snapshot=snapshot)

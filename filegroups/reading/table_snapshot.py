"""
One snapshot of a table: its file slices and its rows, as a stream or as one table.

It returns the same answer each time, whatever other writers commit, as long as its files are
retained. While it is pinned, cleaning retains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import pyarrow as pa

from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.read import (
    Filter,
    ReadSet,
    ScanPlan,
    plan_scan,
    pruner_of,
    read_schema,
    view_of,
)
from filegroups.reading.scan import PlannedRead, Replan, collect_table, stream
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.file_names import FileSlice, check_partition_path, listed
from timeline.properties.setting_enums import QueryType
from timeline.reader_lease import ReaderLease, pin
from timeline.snapshot import Snapshot

__all__ = ["TableSnapshot"]


class TableSnapshot:
    """The table at one time."""

    def __init__(
        self, context: TableContext, snapshot: Snapshot, lease: ReaderLease | None = None
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self._view: FileSystemView | None = None
        self._lease = lease

    def hold(self) -> TableSnapshot:
        """
        Pin the snapshot: keep its files from cleaning until ``release`` or the end of ``with``.

        Raises:
            SnapshotExpiredError: A clean is deleting files of the snapshot.
            StorageUnavailableError: The lease could not be written.
        """
        if self._lease is None:
            self._lease = pin(self._context, self.snapshot)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End the lease; a second call does nothing."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None

    @property
    def is_held(self) -> bool:
        """Whether its files were kept from cleaning without a gap since ``hold``."""
        return self._lease is not None and self._lease.is_unbroken

    @property
    def snapshot(self) -> Snapshot:
        """The visible instants."""
        return self._snapshot

    @property
    def view(self) -> FileSystemView:
        """Its file slices; each partition is listed when first needed and then cached."""
        if self._view is None:
            self._view = view_of(self._context, self._snapshot)
        return self._view

    @property
    def schema(self) -> pa.Schema:
        """The table's columns without the meta columns."""
        return read_schema(self._context, self._snapshot).arrow

    def file_slices(
        self,
        partitions: Iterable[str] | None = None,
        *,
        query_type: str = "snapshot",
        filter: Filter = None,  # noqa: A002
    ) -> list[FileSlice]:
        """
        Return the newest slice of each file group; ``read_optimized``: its newest base file only.

        A filter on partition columns leaves out partitions without matching rows.

        Raises:
            InvalidInputError: The query type is unknown, or ``partitions`` is a text and not a
                list.
        """
        if partitions is not None:
            partitions = listed(partitions, "partitions")
        pruner = pruner_of(self._context, self.snapshot, filter)
        if query_type == QueryType.READ_OPTIMIZED.value:
            return self.view.base_slices(partitions, pruner)
        if query_type != QueryType.SNAPSHOT.value:
            raise InvalidInputError(
                "a snapshot is read as snapshot or read_optimized; what changed in a range is "
                f"read by changes(): {query_type!r}",
                kind="query_type",
                query_type=query_type,
            )
        return self.view.latest_slices(partitions, pruner)

    def plan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Iterable[str] | None = None,
        with_hoodie_columns: bool = False,
        query_type: str = "snapshot",
    ) -> ScanPlan:
        """Return which files a scan reads and its output schema."""
        return plan_scan(
            self._context,
            self._snapshot,
            self.file_slices(partitions, query_type=query_type, filter=filter),
            columns=columns,
            filter=filter,
            with_hoodie_columns=with_hoodie_columns,
        )

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002 - the public word
        partitions: Iterable[str] | None = None,
        *,
        with_hoodie_columns: bool = False,
        query_type: str = "snapshot",
    ) -> pa.RecordBatchReader:
        """
        Stream the rows. Memory is bounded by a few batches, or by a file group that has logs.

        Args:
            columns: Names to return; None for all.
            filter: A pyarrow expression or ``(column, operator, value)`` triples.
            partitions: Partition paths to read; None for all.
            with_hoodie_columns: Return the meta columns too.
            query_type: ``read_optimized`` leaves out log files: rows are as of the last
                compaction of their file group, and reading costs no merge.

        Raises:
            InvalidInputError: A column, an operator or the query type is unknown.
            SnapshotExpiredError: A file was cleaned since the snapshot was taken.
        """
        first, again = self._reading(
            columns=columns,
            filter=filter,
            partitions=partitions,
            with_hoodie_columns=with_hoodie_columns,
            query_type=query_type,
        )
        batches = stream(self._context, first, again)
        return pa.RecordBatchReader.from_batches(first.plan.output_schema, batches)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Iterable[str] | None = None,
        *,
        with_hoodie_columns: bool = False,
        query_type: str = "snapshot",
    ) -> pa.Table:
        """Return the same rows as one table; the executor reads files in parallel."""
        first, again = self._reading(
            columns=columns,
            filter=filter,
            partitions=partitions,
            with_hoodie_columns=with_hoodie_columns,
            query_type=query_type,
        )
        return collect_table(self._context, first, again)

    def reads(
        self,
        *,
        partitions: Iterable[str] | None = None,
        filter: Filter = None,  # noqa: A002
    ) -> ReadSet:
        """
        Return the read set of this snapshot, for a write computed from it (``reads=``).

        Args:
            partitions: Partition paths, also those in which no row was found; None for all.
            filter: As in ``scan``: the rows that were read. None for all.

        Raises:
            InvalidInputError: The snapshot is time travel, which says nothing about the newest
                rows; or ``partitions`` is not a list of paths.
            MalformedNameError: A path that no partition can have.
        """
        snapshot = self.snapshot
        if snapshot.as_of is not None:
            raise InvalidInputError(
                "a write can only be made from the newest state, not from one of the past; read "
                f"it by hold(): {snapshot.as_of}",
                kind="reads_of_the_past",
                as_of=snapshot.as_of,
            )
        chosen = None
        if partitions is not None:  # validation would compare an impossible path with nothing
            paths = map(check_partition_path, listed(partitions, "partitions"))
            chosen = tuple(sorted(set(paths)))
        address = self._context.world.storage.base_uri
        return ReadSet(snapshot=snapshot, address=address, partitions=chosen, filter=filter)

    def _reading(self, **options: Any) -> tuple[PlannedRead, Replan | None]:
        """Return the planned read, and its replan: None, because this snapshot is fixed."""
        plan = self.plan(**options)
        return PlannedRead(snapshot=self.snapshot, plan=plan, is_held=self.is_held), None

"""
One state of a table: its file slices, its rows as a stream or at once, held while it is read.

Pinned: it gives the same answer however often it is asked and whatever is published
meanwhile, as long as its files are retained; while it is held, cleaning retains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
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
    """The table at one moment."""

    def __init__(
        self, context: TableContext, snapshot: Snapshot, lease: ReaderLease | None = None
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self._view: FileSystemView | None = None
        self._lease = lease

    def hold(self) -> TableSnapshot:
        """
        Keep its files from cleaning, until ``release`` or the end of a ``with`` block.

        Raises:
            SnapshotExpiredError: A clean is taking files of it away.
            StorageUnavailableError: The lease could not be written.
        """
        if self._lease is None:
            self._lease = pin(self._context, self.snapshot)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the lease up; calling twice is no error."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None

    @property
    def is_held(self) -> bool:
        """Whether its files were kept from cleaning ever since it was held."""
        return self._lease is not None and self._lease.is_unbroken

    @property
    def snapshot(self) -> Snapshot:
        """The visible instants."""
        return self._snapshot

    @property
    def view(self) -> FileSystemView:
        """Its file slices, listed when first needed and then kept."""
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
        The newest slice of each file group; with ``read_optimized`` its newest base file only.

        A filter on partition columns leaves partitions out that hold no matching row.

        Raises:
            InvalidInputError: Another query type, or a text instead of a list of partition paths.
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
        """Which files a scan reads and what comes out."""
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
        *,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Iterable[str] | None = None,
        with_hoodie_columns: bool = False,
        query_type: str = "snapshot",
    ) -> pa.RecordBatchReader:
        """
        Stream the rows. Memory is bounded by a few batches, or by a file group that has logs.

        With ``query_type="read_optimized"`` logs are left out: rows as of the last compaction
        of their file group, at the price of reading base files.

        Raises:
            InvalidInputError: An unknown column, operator or query type.
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
        *,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Iterable[str] | None = None,
        with_hoodie_columns: bool = False,
        query_type: str = "snapshot",
    ) -> pa.Table:
        """The same rows collected, files read side by side by the executor."""
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
        What was read of this state, for a write that is made from it (``reads=``).

        Args:
            partitions: Partition paths, also those in which no row was found; None for all.
            filter: As of ``scan``: the rows that were asked for. None for all.

        Raises:
            InvalidInputError: A state of the past, which says nothing of the newest rows; or
                something else than a list of partition paths.
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
        if partitions is not None:  # a path that no partition has would be judged by nothing
            paths = map(check_partition_path, listed(partitions, "partitions"))
            chosen = tuple(sorted(set(paths)))
        address = self._context.world.storage.base_uri
        return ReadSet(snapshot=snapshot, address=address, partitions=chosen, filter=filter)

    def _reading(self, **options: Any) -> tuple[PlannedRead, Replan | None]:
        """What is read, and how it is planned again where it may be a newer state."""
        plan = self.plan(**options)
        return PlannedRead(snapshot=self.snapshot, plan=plan, is_held=self.is_held), None

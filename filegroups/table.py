"""
A table over ports, and one snapshot of it: create, open, read.

A ``TableSnapshot`` returns the same rows each time, whatever other writers commit, as long as its
files are retained. While it is pinned, cleaning retains them. A ``TableReader`` uses the newest
snapshot for each read. ``hoodoo.Table`` adds options and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from filegroups.metadata_table.listing import metadata_listing
from filegroups.reading.cdc import plan_cdc, refuse_filtered_cdc, stream_cdc
from filegroups.reading.data_skipping import skip_partitions, skip_slices
from filegroups.reading.diff import TableDiff, diff_snapshots
from filegroups.reading.file_system_view import FileSystemView, SkipPartitions
from filegroups.reading.filters import Filter
from filegroups.reading.incremental import plan_incremental_read
from filegroups.reading.leased_read import (
    PlannedRead,
    Replan,
    assert_not_cleaned,
    collect_table,
    may_be_cleaned,
    may_be_missing_files,
    stream,
    with_lease,
)
from filegroups.reading.point_lookup import plan_get_rows
from filegroups.reading.read_set import ReadSet
from filegroups.reading.scan import ScanPlan, plan_scan, pruner_of, read_schema, scan, view_of
from filegroups.reading.time_travel import snapshot_as_of
from filegroups.supported import refuse_unreadable
from timeline.context import TableContext, TableLimits
from timeline.entries import TimelineEntry, timeline_entries
from timeline.errors import (
    InvalidInputError,
    MissingFileError,
    StorageUnavailableError,
    needs_extra,
)
from timeline.model.file_names import TIMELINE, check_partition_path, listed
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import WallMs, instant_time
from timeline.model.table_config import TableConfig
from timeline.model.time_arguments import TimeArgument, parse_range, parse_time_travel
from timeline.ports.ports import Ports, Storage, close_storage
from timeline.properties.properties_file import create_properties, load_config
from timeline.properties.setting_enums import QueryType
from timeline.reader_lease import ReaderLease, lease_newest, pin
from timeline.snapshot import Snapshot

if TYPE_CHECKING:
    from filegroups.reading.dataset import SnapshotDataset


def open_reader(ports: Ports, limits: TableLimits | None = None) -> TableReader:
    """
    Open an existing table for reading.

    Raises:
        TableNotFoundError: There is no table.
        CorruptTableError: Its properties are damaged.
        UnsupportedTableError: A table version or feature this release does not handle.
    """
    config = load_config(ports.storage)
    refuse_unreadable(config)
    return TableReader(TableContext.of(ports, config, limits))


def create_table_files(
    ports: Ports, properties: Mapping[str, str], limits: TableLimits | None = None
) -> TableReader:
    """
    Create a table from the properties of ``new_table_properties``, and open it for reading.

    Raises:
        InvalidInputError: A table exists already, or a property is wrong.
    """
    now = instant_time(WallMs(ports.clock.now_ms()))
    config = create_properties(ports.storage, properties, now=now)
    if ports.storage.capabilities.local_root is not None:
        _make_timeline_folder(ports.storage)
    return TableReader(TableContext.of(ports, config, limits))


def _make_timeline_folder(storage: Storage) -> None:
    """Make the folder without which Java Hudi does not open a table that has no commit yet."""
    path = f"{TIMELINE}/.created"
    storage.create(path, b"")
    storage.delete(path)


def _chosen_slices(
    context: TableContext,
    state: TableSnapshot,
    partitions: Iterable[str] | None,
    *,
    query_type: str,
    condition: Filter,
    skip: SkipPartitions | None = None,
) -> Sequence[FileSlice]:
    """Return the slices of ``TableSnapshot.file_slices``, without partitions that ``skip`` leaves out."""
    if partitions is not None:
        partitions = listed(partitions, "partitions")
    pruner = pruner_of(context, state.snapshot, condition)
    if query_type == QueryType.READ_OPTIMIZED.value:
        return state.view.base_slices(partitions, pruner, skip)
    if query_type != QueryType.SNAPSHOT.value:
        raise InvalidInputError(
            "a snapshot is read as snapshot or read_optimized: use changes() to read the "
            f"changes of a range: {query_type!r}",
            kind="query_type",
            query_type=query_type,
        )
    return state.view.latest_slices(partitions, pruner, skip)


class TableSnapshot:
    """The table at one time."""

    def __init__(
        self, context: TableContext, snapshot: Snapshot, lease: ReaderLease | None = None
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self._view: FileSystemView | None = None
        self._lease = lease

    def pin(self) -> TableSnapshot:
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
    def is_pinned(self) -> bool:
        """Whether its files were kept from cleaning without a gap since ``pin``."""
        return self._lease is not None and self._lease.is_valid

    @property
    def snapshot(self) -> Snapshot:
        """The visible instants."""
        return self._snapshot

    def current_state(self) -> TableSnapshot:
        """Return the snapshot that a read uses: this one; of a table the newest."""
        return self

    @property
    def view(self) -> FileSystemView:
        """Its file slices; each partition is listed when first needed and then cached."""
        if self._view is None:
            self._view = view_of(self._context, self._snapshot)
            self._view.by_metadata = metadata_listing(self._context, self._snapshot)
        return self._view

    @property
    def schema(self) -> pa.Schema:
        """The table's columns without the meta columns."""
        return read_schema(self._context, self.snapshot).arrow

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
        return list(
            _chosen_slices(self._context, self, partitions, query_type=query_type, condition=filter)
        )

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
        state = self.current_state()
        listing = state.view.by_metadata
        skip = partial(skip_partitions, self._context, state.snapshot, filter, listing=listing)
        plan = plan_scan(
            self._context,
            state.snapshot,
            _chosen_slices(
                self._context,
                state,
                partitions,
                query_type=query_type,
                condition=filter,
                skip=skip,
            ),
            columns=columns,
            filter=filter,
            with_hoodie_columns=with_hoodie_columns,
        )
        return skip_slices(self._context, state.snapshot, plan, listing)

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
            filter: A SQL condition (``"month = 3 AND name LIKE 'A%'"``), a pyarrow expression, or
                ``(column, operator, value)`` triples.
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

    def count(self, filter: Filter = None, partitions: Iterable[str] | None = None) -> int:  # noqa: A002
        """Return the number of rows. Arguments, errors: as ``scan``. It reads one column."""
        columns = self.schema
        cheap = next(
            (one.name for one in columns if pa.types.is_primitive(one.type)), columns[0].name
        )
        return sum(batch.num_rows for batch in self.scan([cheap], filter, partitions))

    # ---- Dataframe tools

    def __repr__(self) -> str:
        config = self._context.config
        return f"<{type(self).__name__} {config.name!r} at {self._context.ports.storage.base_uri}>"

    def _repr_html_(self) -> str:
        """Show the table in a notebook: its properties and columns. It reads no rows."""
        config = self._context.config
        facts = {
            "path": self._context.ports.storage.base_uri,
            "type": f"{config.table_type.value}, version {config.table_version}",
            "record key": ", ".join(config.record_key_fields) or "none",
            "partitioned by": ", ".join(config.partition_fields) or "nothing",
            "columns": "; ".join(f"{one.name} {one.type}" for one in self.schema),
        }
        rows = "".join(
            f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()
        )
        return f"<table><caption>{escape(config.name)}</caption>{rows}</table>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream the rows to any tool that takes Arrow data (Arrow PyCapsule interface)."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Iterable[str] | None = None,
    ) -> Any:
        """Return the rows as a pandas DataFrame. Arguments, errors: as ``scan``."""
        with needs_extra("pandas is not installed", "pandas", package="pandas"):
            import pandas as pd  # noqa: F401
        return self.to_arrow(columns, filter, partitions).to_pandas()

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Iterable[str] | None = None,
    ) -> Any:
        """Return the rows as a polars DataFrame. Arguments, errors: as ``scan``."""
        with needs_extra("polars is not installed", "polars", package="polars"):
            import polars as pl
        return pl.from_arrow(self.to_arrow(columns, filter, partitions))

    def scan_polars(self) -> Any:
        """Return a polars LazyFrame; its columns and filters are pushed down into the scan."""
        with needs_extra("polars is not installed", "polars", package="polars"):
            import polars as pl
        return pl.scan_pyarrow_dataset(self.to_pyarrow_dataset())

    def to_duckdb(self, connection: Any = None) -> Any:
        """
        Return a DuckDB relation; columns and filters of a query are pushed down into the scan.

        Args:
            connection: The DuckDB connection to use; None for DuckDB's default one.
        """
        with needs_extra("duckdb is not installed", "duckdb", package="duckdb"):
            import duckdb
        return (connection or duckdb.default_connection()).from_arrow(self.to_pyarrow_dataset())

    def to_pyarrow_dataset(self) -> SnapshotDataset:
        """Return a pyarrow dataset, whose scans read only the columns and partitions they need."""
        from filegroups.reading.dataset import SnapshotDataset  # it imports pandas

        return SnapshotDataset(self)

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
                "a write must start from the newest state, not from a past one: read it with "
                f"pin(): {snapshot.as_of}",
                kind="reads_of_the_past",
                as_of=snapshot.as_of,
            )
        chosen = None
        if partitions is not None:  # validation would compare an impossible path with nothing
            paths = map(check_partition_path, listed(partitions, "partitions"))
            chosen = tuple(sorted(set(paths)))
        address = self._context.ports.storage.base_uri
        return ReadSet(snapshot=snapshot, address=address, partitions=chosen, filter=filter)

    def _reading(self, **options: Any) -> tuple[PlannedRead, Replan | None]:
        """Return the planned read, and its replan: None, because this snapshot is fixed."""
        plan = self.plan(**options)
        return PlannedRead(snapshot=self.snapshot, plan=plan, is_pinned=self.is_pinned), None


#: The snapshot of a table reader, which uses the newest each time.
_UNSET: Snapshot = None  # type: ignore[assignment]


class TableReader(TableSnapshot):
    """
    An opened table; each read uses the newest snapshot.

    Args:
        context: Ports, configuration, commit log and limits.
        refuse_reads: Raises the error of each read, because an option would make it wrong.
    """

    def __init__(
        self, context: TableContext, refuse_reads: Callable[[], None] | None = None
    ) -> None:
        super().__init__(context, _UNSET)
        self._refusal = refuse_reads

    def _refuse_reads(self) -> None:
        if self._refusal is not None:
            self._refusal()

    @property
    def context(self) -> TableContext:
        """Ports, configuration, commit log and limits."""
        return self._context

    @property
    def config(self) -> TableConfig:
        """The table's own configuration."""
        return self._context.config

    @property
    def snapshot(self) -> Snapshot:
        """The instants that are visible now, read on each access."""
        return self._context.snapshot()

    @property
    def view(self) -> FileSystemView:
        """The current file slices, read on each access."""
        return view_of(self._context, self.snapshot)

    def current_state(self) -> TableSnapshot:
        """Return the current snapshot of the table, for repeated reads."""
        return TableSnapshot(self._context, self._context.snapshot())

    def pin(self) -> TableSnapshot:
        """
        Like ``current_state``, and keep the files from cleaning: ``with table.pin() as state: ...``.

        Raises:
            SnapshotExpiredError: Cleaning was faster again and again.
        """
        self._refuse_reads()
        snapshot, lease = lease_newest(self._context)
        return TableSnapshot(self._context, snapshot, lease)

    def pin_if_allowed(self) -> TableSnapshot:
        """
        Like ``pin``; like ``current_state`` if this process may not write a lease.

        Without a lease only a check after the listing detects a clean in between (RDL-2).
        """
        try:
            return self.pin()
        except StorageUnavailableError as error:
            self._context.ports.events.emit("reader.unleased", why=str(error))
            return self.current_state()

    def file_slices(
        self,
        partitions: Iterable[str] | None = None,
        *,
        query_type: str = "snapshot",
        filter: Filter = None,  # noqa: A002
    ) -> list[FileSlice]:
        """Return the newest slices. Arguments, errors: as ``TableSnapshot.file_slices``."""
        state = self.current_state()
        found = state.file_slices(partitions, query_type=query_type, filter=filter)
        lease = ReaderLease(self._context, state.snapshot)
        if not may_be_cleaned(self._context, state.snapshot, lease):
            return found
        with self.pin_if_allowed() as state:
            found = state.file_slices(partitions, query_type=query_type, filter=filter)
            if not state.is_pinned:
                lease = ReaderLease(self._context, state.snapshot)
                assert_not_cleaned(self._context, state.snapshot, lease)
            return found

    def _reading(self, **options: Any) -> tuple[PlannedRead, Replan | None]:
        return self._planned(lambda state: state.plan(**options))

    def _planned(self, plan: Callable[[TableSnapshot], ScanPlan]) -> tuple[PlannedRead, Replan]:
        """Plan on the newest snapshot; after a clean in between, on one pinned by a lease."""
        self._refuse_reads()

        def again() -> PlannedRead:
            state = self.pin_if_allowed()
            try:
                planned = plan(state)
                return PlannedRead(
                    snapshot=state.snapshot,
                    plan=planned,
                    is_pinned=state.is_pinned,
                    release=state.release,
                )
            except BaseException:
                state.release()
                raise

        pinned = self.current_state()
        try:
            return PlannedRead(snapshot=pinned.snapshot, plan=plan(pinned)), again
        except MissingFileError:  # a restore removed an instant before it was read
            if not may_be_missing_files(pinned.snapshot.active, self._context.active()):
                raise
        return again(), again

    def as_of(self, time: TimeArgument) -> TableSnapshot:
        """
        Return the table as of a time: the writes with a requested time until then, inclusive.

        Args:
            time: A datetime, a date (its first moment), an int of 17 or 14 digits, or a text:
                17 or 14 digits, ``yyyy-MM-dd`` or ``yyyy-MM-dd HH:mm:ss[.SSS]``. A time without
                zone is in the table's zone.

        Raises:
            InvalidInputError: The time has another form.
            InstantNotFoundError: The time is too old, cleaned, or not yet applied.
        """
        self._refuse_reads()
        moment = parse_time_travel(time, self._context.zone)
        return TableSnapshot(self._context, snapshot_as_of(self._context, moment))

    def diff(
        self,
        before: TimeArgument,
        after: TimeArgument | None = None,
        columns: Sequence[str] | None = None,
    ) -> TableDiff:
        """
        Return which rows differ between two snapshots: counts, and the rows with both values.

        Rows are paired by partition and record key. Only file groups that changed are read. The
        result has ``counts()`` and ``rows()``, whose ``op`` is ``i``, ``u`` or ``d``.

        Args:
            before: The time of the older snapshot, in any form of ``as_of``.
            after: The time of the newer one, in the same forms; None for now.
            columns: The columns to compare; None for all.

        Raises:
            InvalidInputError: A time has another form (``instant_time``), or a column is unknown
                (``unknown_column``).
            InstantNotFoundError: A snapshot is too old, cleaned, or not yet applied.
            SnapshotExpiredError: A clean deletes files of a snapshot during the read.
        """
        old = self.as_of(before)
        new = self.current_state() if after is None else self.as_of(after)
        return diff_snapshots(
            self._context, (old.snapshot, old.view), (new.snapshot, new.view), columns
        )

    def get_rows(
        self,
        keys: Sequence[str],
        columns: Sequence[str] | None = None,
        partitions: Iterable[str] | None = None,
    ) -> pa.Table:
        """
        Return the current rows of some record keys, from the file groups that may hold them.

        Args:
            keys: Record keys as stored in ``_hoodie_record_key``: the value, or
                ``field:value,field:value`` for keys of several fields.
            columns: Names to return; None for all.
            partitions: Partition paths to read; None for all.

        Raises: as ``plan_get_rows``.
        """

        def plan(state: TableSnapshot) -> ScanPlan:
            slices = state.file_slices(partitions)
            return plan_get_rows(self._context, state.snapshot, slices, keys, columns=columns)

        return collect_table(self._context, *self._planned(plan))

    def changes(
        self,
        since: TimeArgument,
        until: TimeArgument | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Iterable[str] | None = None,
        *,
        with_hoodie_columns: bool = False,
        images: bool = False,
    ) -> pa.RecordBatchReader:
        """
        Return rows last written by instants that completed in (since, until].

        If cleaning removed files of the range, or instants of it are archived, rows that were
        written again since are missing here. They are in the range of their newer write.

        With ``images`` it returns every change in the range instead, in the order of completion:
        ``op`` (``i``, ``u``, ``d``), ``ts_ms`` (the instant's requested time) and the row
        ``before`` and ``after`` as structs, null where there is none.

        Args:
            since: Exclusive start in any form of ``as_of``; ``earliest`` for no bound.
            until: Inclusive end; None for now. Use a completion time from the table
                (``timeline``, a commit result). With a clock's time, a commit decided before it
                may become visible after the read, and the next range begins above it.
            columns: Names to return, inside the images if these are requested; None for all.
            filter: As for ``scan``, on the returned rows; not allowed with images.
            partitions: Partition paths to read; None for all.
            with_hoodie_columns: Return the meta columns too; an image has none.
            images: Return changes with images instead of rows.

        Raises:
            InvalidInputError: A time has no valid form, a column is unknown, or a filter is used
                with images.
            UnsupportedTableError: The rows carry no commit time (never with images).
            InstantNotFoundError: Images need a file that was cleaned (``changes_cleaned``).
            SnapshotExpiredError: A restore or a clean happened meanwhile.
        """
        self._refuse_reads()
        start, end = parse_range(since, until, self._context.zone)
        if images:
            refuse_filtered_cdc(filter)
            found = plan_cdc(self._context, start, end, columns=columns, partitions=partitions)
            changes = stream_cdc(self._context, found)
            return pa.RecordBatchReader.from_batches(
                found.output_schema,
                with_lease(
                    self._context, found.snapshot, changes, since=found.since, until=found.until
                ),
            )
        changed = plan_incremental_read(
            self._context, start, end, filter=filter, partitions=partitions
        )
        plan = plan_scan(
            self._context,
            changed.snapshot,
            changed.slices,
            columns=columns,
            filter=filter,
            among=changed.condition,
            with_hoodie_columns=with_hoodie_columns,
            base_filter=changed.base_condition,
            visible=changed.visible,
            whole_file_groups=changed.whole_file_groups,
        )
        rows = scan(self._context, plan)
        batches = with_lease(self._context, changed.snapshot, rows, until=changed.until)
        return pa.RecordBatchReader.from_batches(plan.output_schema, batches)

    @property
    def timeline(self) -> list[TimelineEntry]:
        """Every instant, active and archived, ascending by requested time."""
        return timeline_entries(self._context)

    def close(self) -> None:
        """Close the connections of lock and storage."""
        self._context.ports.lock.close()
        close_storage(self._context.ports.storage)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Iterate over batches of the newest snapshot."""
        return iter(self.scan())

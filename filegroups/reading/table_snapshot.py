"""
One snapshot of a table: its file slices and its rows, as a stream or as one table.

It returns the same answer each time, whatever other writers commit, as long as its files are
retained. While it is pinned, cleaning retains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import read_footer
from filegroups.index.buckets import bucket_rules_in, find_buckets
from filegroups.index.lookup import has_record_index, may_contain_any, open_record_index
from filegroups.keys.bucketing import BucketEngine, BucketRules
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.filters import Filter
from filegroups.reading.read import (
    PlannedRead,
    ReadSet,
    Replan,
    ScanPlan,
    collect_table,
    plan_scan,
    pruner_of,
    read_schema,
    stream,
    view_of,
)
from filegroups.schema.schema import KEY_COLUMN
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    InvalidInputError,
    MissingFileError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import FileSlice, check_partition_path, listed
from timeline.ports.ports import Storage
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import QueryType
from timeline.reader_lease import ReaderLease, pin
from timeline.snapshot import Snapshot


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
                f"it by pin(): {snapshot.as_of}",
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


# --- Point lookups: read the rows of a few record keys, from the file groups that may contain them
#
# The most exact index decides: the record index if Java maintains one, the bucket hash if the table
# stores its bucket settings, else the key ranges and bloom filters of footers. An index only excludes
# file groups. The remaining ones are merged and filtered as in any scan.


def plan_get_rows(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    keys: Iterable[str],
    *,
    columns: Sequence[str] | None = None,
    with_hoodie_columns: bool = False,
) -> ScanPlan:
    """
    Plan the read of some record keys.

    Args:
        context: The table.
        snapshot: The visible instants.
        slices: The slices of the partitions in question.
        keys: Record keys as stored: the value, or ``field:value,field:value``.
        columns: Names to return; None for all.
        with_hoodie_columns: Whether to return the meta columns too.

    Raises:
        InvalidInputError: A column is unknown, ``keys`` is a text and not a list, or rows have no
            keys.
        MissingFileError: A file was cleaned since the snapshot was taken.
    """
    config = context.config
    if not config.populate_meta_fields and not config.record_key_fields:
        raise InvalidInputError(
            "this table's rows have no keys by which they could be found; read them by a filter",
            kind="keyless",
        )
    wanted = pa.array(sorted(set(listed(keys, "record keys"))), pa.string())
    plan = plan_scan(
        context,
        snapshot,
        slices_that_may_contain(context, snapshot, slices, wanted),
        columns=columns,
        filter=pc.field(KEY_COLUMN).isin(wanted),
        with_hoodie_columns=with_hoodie_columns,
    )
    return replace(plan, read=replace(plan.read, finds_keys=True))


def slices_that_may_contain(
    context: TableContext, snapshot: Snapshot, slices: Sequence[FileSlice], keys: pa.Array
) -> list[FileSlice]:
    """
    Return the slices that may contain one of the keys.

    Outside: the files of the record index and 1 get; or nothing, with buckets; or 1 open_input for
    each slice without logs.
    """
    config, storage = context.config, context.ports.storage
    if not len(keys) or not config.populate_meta_fields:
        return list(slices) if len(keys) else []
    places = _from_record_index(context, snapshot, keys)
    if places is not None:
        return [one for one in slices if one.file_group in places]
    rules = bucket_rules_in(config)
    if rules is not None and rules.engine is BucketEngine.SIMPLE:
        return _in_buckets(context, snapshot, slices, keys, rules)
    look = partial(_may_contain, storage, keys)
    kept = context.ports.executor.map(look, slices)
    return [one for one, held in zip(slices, kept, strict=True) if held]


def _from_record_index(
    context: TableContext, snapshot: Snapshot, keys: pa.Array
) -> set[FileGroupId] | None:
    """
    Return the file groups that the record index gives for keys; None if there is no index.

    The context may be old and the metadata table switched off since. A leftover index has outdated
    positions or none, so the properties are read after it.
    """
    storage = context.ports.storage
    if snapshot.as_of is not None:
        return None
    try:
        index = open_record_index(storage, context.config, snapshot)
        found = None if index is None else index.locate(keys)
    except MissingFileError:
        return None  # a service of the metadata table deleted the file, or the table was deleted
    except (CorruptTableError, UnsupportedTableError):
        if has_record_index(load_config(storage)):
            raise
        return None
    if found is None or not has_record_index(load_config(storage)):
        return None
    # One row per file group, however many keys were asked for.
    places = found.group_by(["partition_path", "file_id"]).aggregate([])
    paths, file_ids = (places.column(name).to_pylist() for name in ("partition_path", "file_id"))
    return set(map(FileGroupId, paths, file_ids))


def _in_buckets(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    keys: pa.Array,
    rules: BucketRules,
) -> list[FileSlice]:
    paths = sorted({one.file_group.partition_path for one in slices})
    groups = [one.file_group for one in slices]
    where = find_buckets(context.ports.storage, snapshot, rules, paths, groups)
    numbers = set(where.assigner.numbers(keys, pa.nulls(len(keys), pa.string())).tolist())
    wanted = {group for (_, number), group in where.known.items() if number in numbers}
    return [one for one in slices if one.file_group in wanted]


def _may_contain(storage: Storage, keys: pa.Array, one: FileSlice) -> bool:
    if one.log_files or one.base_file is None:
        return True
    return may_contain_any(keys, read_footer(storage, one.base_file.path))

"""
The read path: snapshot -> view -> prune -> scan -> Arrow.

Streams in batches: memory is bounded by the files being read, not by the table. Which
slices are read decides the kind of query (snapshot, time travel, incremental); how a slice
is read is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from timeline.codecs.instant_avro import decode_clean
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, InvalidInputError, UnsupportedTableError
from timeline.files.parquet import read_batches
from timeline.model.claim import FileGroupId
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_group import BaseFile, FileSlice
from timeline.model.filenames import instant_file_name, parse_base_file_name
from timeline.model.instant import Action
from timeline.model.paths import check_relative_path
from timeline.model.schema import META_COLUMNS, TableSchema, with_meta
from timeline.model.times import EARLIEST, InstantTime
from timeline.pending_plans import moves_rows_only, pending_compactions
from timeline.snapshot import Snapshot
from timeline.view import FileSystemView

__all__ = ["ScanPlan", "changed_since", "plan_scan", "read_schema", "scan", "view_of"]

COMMIT_TIME = "_hoodie_commit_time"
Filter: TypeAlias = pc.Expression | Sequence[tuple[str, str, object]] | None


@dataclass(frozen=True, kw_only=True)
class ScanPlan:
    """Which files are read and what comes out; ``filter`` is pushed into every file."""

    files: tuple[BaseFile, ...]
    file_schema: pa.Schema  # table schema with meta columns
    columns: tuple[str, ...]
    filter: pc.Expression | None = None

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of the batches."""
        return pa.schema([self.file_schema.field(name) for name in self.columns])


def view_of(context: TableContext, snapshot: Snapshot) -> FileSystemView:
    """The view of a snapshot. Outside: 1 get per pending compaction."""
    plans = pending_compactions(context, snapshot.active)
    return FileSystemView(
        storage=context.world.storage, snapshot=snapshot, pending_compactions=plans
    )


def read_schema(context: TableContext, snapshot: Snapshot) -> TableSchema:
    """
    The table's schema in a snapshot, without meta columns.

    From the newest visible commit that tells it, else the table's creation schema.

    Raises:
        UnsupportedTableError: Neither is there, and so the table was never written.
    """
    text = snapshot.newest_schema_json or context.config.create_schema_json
    if text:
        return TableSchema.from_avro(text)
    raise UnsupportedTableError(
        "the table has no schema yet: nothing was ever written and none was given at its "
        "creation; write to it first",
        kind="no_schema",
    )


def plan_scan(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    *,
    columns: Sequence[str] | None = None,
    filter: Filter = None,  # noqa: A002 - the public word of the Python surface
    with_hoodie_columns: bool = False,
) -> ScanPlan:
    """
    Decide what is read.

    Args:
        context: The table.
        snapshot: What is visible; its schema is the output's.
        slices: The file slices to read.
        columns: Names to return, in this order; None for all.
        filter: A pyarrow expression, or ``(column, operator, value)`` triples that all hold.
        with_hoodie_columns: Return the five meta columns first when no columns are named.

    Raises:
        InvalidInputError: An unknown column or operator.
        UnsupportedTableError: A slice has log files (merge-on-read comes with a later release).
    """
    for one in slices:
        if one.log_files:
            raise UnsupportedTableError(
                "this release reads copy-on-write data only; compact the table first or use an "
                f"engine that merges log files: {one.log_files[0].path}",
                kind="merge_on_read",
                path=one.log_files[0].path,
            )
    schema = with_meta(read_schema(context, snapshot).arrow)
    names = (
        tuple(columns)
        if columns is not None
        else tuple(name for name in schema.names if with_hoodie_columns or name not in META_COLUMNS)
    )
    if not names:
        raise InvalidInputError(
            "name at least one column; rows are counted on any of them", kind="no_column"
        )
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidInputError(
            f"no such column: {unknown}; the table has {list(schema.names)}",
            kind="unknown_column",
            columns=unknown,
        )
    return ScanPlan(
        files=tuple(one.base_file for one in slices if one.base_file is not None),
        file_schema=schema,
        columns=names,
        filter=_as_expression(filter, schema),
    )


def _as_expression(condition: Filter, schema: pa.Schema) -> pc.Expression | None:
    if condition is None:
        return None
    try:
        wanted = condition
        if not isinstance(condition, pc.Expression):
            wanted = pq.filters_to_expression([tuple(term) for term in condition])
        # Tried on no rows: a wrong column or type is the caller's, never a damaged file's.
        schema.empty_table().filter(wanted)
    except (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            "a filter is a pyarrow expression or a list of (column, operator, value) with the "
            f"operators = == != < <= > >= in 'not in', over the columns {schema.names}: {error}",
            kind="filter",
        ) from error
    return wanted


def scan(context: TableContext, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Read the planned files one after the other, in batches of the output schema."""
    for base in plan.files:
        yield from read_batches(
            context.world.storage,
            base.path,
            schema=plan.file_schema,
            columns=plan.columns,
            row_filter=plan.filter,
        )


def snapshot_as_of(context: TableContext, time: InstantTime) -> Snapshot:
    """
    The snapshot that shows what was requested at or before a time (fmt 6.5).

    Raises:
        InstantNotFoundError: The time lies before the oldest instant, before what cleaning
            retains, or at or after the oldest pending write: the answer could still change.
    """
    snapshot = context.snapshot(as_of=time)
    active = snapshot.active
    # A pending compaction or clustering moves rows, it does not change them: Java answers too.
    pending = [
        one
        for one in active.pending_ingestion
        if time >= one.requested_time and not moves_rows_only(context, one)
    ]
    if pending:
        raise InstantNotFoundError(
            "a write that began before this time is still pending, so the answer could still "
            f"change; ask for a time before {pending[0].requested_time} or wait: {time}",
            kind="time_travel_pending",
            time=time,
            pending=pending[0].requested_time,
        )
    retained = _retained_since(context, snapshot)
    if retained is not None and time < retained:
        raise InstantNotFoundError(
            f"the files of that time were cleaned; the oldest time still kept is {retained}: {time}",
            kind="time_travel_cleaned",
            time=time,
            retained=retained,
        )
    if not snapshot.completions and active.completed_writes:
        first = active.completed_writes[0].requested_time
        raise InstantNotFoundError(
            f"the table has nothing that old; its first instant is {first}: {time}",
            kind="time_travel_too_early",
            time=time,
            first=first,
        )
    return snapshot


def _retained_since(context: TableContext, snapshot: Snapshot) -> InstantTime | None:
    """What the last completed clean promised to keep, None when nothing was cleaned."""
    cleans = [i for i in snapshot.active.instants if i.action is Action.CLEAN and i.completed]
    if not cleans:
        return None
    last = max(cleans, key=lambda instant: instant.completion_time or "")
    path = context.instant_path(instant_file_name(last))
    metadata = decode_clean(context.world.storage.read(path), path=path)
    return metadata.earliest_commit_to_retain or None


def changed_since(
    context: TableContext, since: InstantTime, until: InstantTime | None
) -> tuple[list[FileSlice], pc.Expression, Snapshot]:
    """
    The slices and the row filter of an incremental read: completion times in (since, until].

    Per file group the newest file written within the range is read, and of it the rows last
    written by an instant of the range (fmt 6.6). File groups replaced within the range are
    left out. When files of the range were cleaned, the newest slices of the whole table are
    read instead, as Java Hudi does: rows written again since then come in a later range only.

    Args:
        context: The table.
        since: Exclusive start; ``EARLIEST`` or above.
        until: Inclusive end; None for now.

    Returns:
        Slices, a filter on the meta column, and the snapshot whose schema applies.

    Raises:
        UnsupportedTableError: The rows carry no commit time, or the range has log files.
    """
    if not context.config.populate_meta_fields:
        raise UnsupportedTableError(
            "a table without meta columns has no incremental reads: its rows do not tell when "
            "they were written",
            kind="no_meta_columns",
        )
    snapshot = context.snapshot()
    found = _instants_between(context, snapshot, since, until)
    replaced: set[FileGroupId] = set()
    newest: dict[FileGroupId, BaseFile] = {}
    for requested_time, metadata in sorted(found.items()):
        for partition_path, file_ids in (metadata.partition_to_replace_file_ids or {}).items():
            replaced.update(FileGroupId(partition_path, file_id) for file_id in file_ids)
        for partition_path, stats in metadata.partition_to_write_stats.items():
            for stat in stats:
                if stat.path is None:
                    continue
                name = check_relative_path(stat.path).rpartition("/")[2]
                if parse_base_file_name(name) is None:
                    raise UnsupportedTableError(
                        f"this release reads copy-on-write data only: {stat.path}",
                        kind="merge_on_read",
                        path=stat.path,
                    )
                group = FileGroupId(partition_path, stat.file_id)
                newest[group] = BaseFile(
                    file_group=group,
                    name=name,
                    requested_time=requested_time,
                    size_bytes=stat.file_size_in_bytes,
                )
    files = [newest[group] for group in sorted(newest) if group not in replaced]
    gone = [base.path for base in files if context.world.storage.stat(base.path) is None]
    if gone:
        context.world.events.emit("changes.cleaned", since=since, until=until, path=gone[0])
        slices = view_of(context, snapshot).latest_slices()
    else:
        slices = [
            FileSlice(
                file_group=base.file_group,
                base_instant_time=base.requested_time,
                base_file=base,
            )
            for base in files
        ]
    condition = pc.field(COMMIT_TIME).isin(pa.array(sorted(found), pa.string()))
    return slices, condition, snapshot


def _instants_between(
    context: TableContext, snapshot: Snapshot, since: InstantTime, until: InstantTime | None
) -> dict[InstantTime, CommitMetadata]:
    def inside(completion: InstantTime | None) -> bool:
        return (
            completion is not None and since < completion and (until is None or completion <= until)
        )

    found = {
        instant.requested_time: snapshot.commits.read(instant)
        for instant in snapshot.active.completed_writes
        if inside(instant.completion_time)
    }
    first = min((i.completion_time or "" for i in snapshot.active.completed_writes), default="")
    if since < first and context.config.timeline_layout_version == 1:
        # Java never looks into the archive of version 6 here (golden tables): rows that were
        # written before the oldest active instant are not told.
        context.world.events.emit("changes.archived", since=since, first=first)
    elif since < first:
        found.update(
            (entry.requested_time, metadata)
            for entry, metadata in context.history.commits_between(since, until)
            if entry.requested_time not in found
        )
    # A clustering stays: rows it moved keep their commit time, and the file groups it
    # replaced must not be read beside the new ones.
    return {
        time: metadata
        for time, metadata in found.items()
        if metadata.operation_type not in ("COMPACT", "LOG_COMPACT")
    }


def start_of_range(text: str) -> InstantTime:
    """``earliest`` and ``0`` mean no lower bound (fmt 6.6)."""
    return EARLIEST if text.strip().lower() in ("earliest", "0", "000") else text

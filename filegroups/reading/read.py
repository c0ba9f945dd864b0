"""Plan and run a scan: snapshot, file system view, pruning, Arrow batches. Read sets of writes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from filegroups.files.log_files import VisibleInstants
from filegroups.files.parquet import works_without
from filegroups.files.slice_reader import SliceRead, WholeFileGroups, read_slice
from filegroups.keys.generators import KeyGenerator
from filegroups.keys.keys import DroppedPartitionColumns, KeySpec, VirtualKeys
from filegroups.keys.timestamp_keys import folders_of_texts
from filegroups.merge.rules import MergeRules
from filegroups.reading.file_slices import with_files, with_logs
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.partition_pruning import PartitionField, PartitionPruner, partition_field
from filegroups.schema.column_ids import schema_history
from filegroups.schema.schema import (
    META_COLUMNS,
    PARTITION_COLUMN,
    TableSchema,
    with_meta,
)
from timeline.context import TableContext
from timeline.errors import (
    InstantNotFoundError,
    InvalidInputError,
    MissingFileError,
    SnapshotExpiredError,
    UnsupportedTableError,
)
from timeline.model.file_names import BaseFile, FileSlice
from timeline.model.instant import Action, Instant, InstantTime
from timeline.model.plans import CleanMetadata
from timeline.pending_plans import pending_compactions
from timeline.properties.properties_file import load_config, may_have_misplaced_rows
from timeline.reader_lease import ReaderLease, read_clean
from timeline.rules.isolation import Isolation, ReadScope
from timeline.snapshot import ActiveTimeline, Snapshot

# ---- Read sets

#: Key in the extra metadata of a commit computed from reads: its partitions, or ``*``.
READS_KEY = "hoodoo.reads"


@dataclass(frozen=True, kw_only=True)
class ReadSet:
    """
    The part of a snapshot that a write was computed from. Made by ``TableSnapshot.reads``.

    A write passes it with its rows (``table.upsert(rows, reads=...)``). Validation then checks
    whether the rows would still be the same if they were computed now.

    Args:
        snapshot: The snapshot that was read.
        partitions: Partition paths that were read, also those without rows; None for all.
        filter: The rows that were read in them; None for all.
        address: Canonical address of the table; a read set is valid only for this table.
        level: Isolation level of the write; None for ``hoodoo.write.isolation.level``.
    """

    snapshot: Snapshot
    address: str
    partitions: tuple[str, ...] | None = None
    filter: Filter = None
    level: Isolation | None = None

    @property
    def text(self) -> str:
        """The partitions, for the commit metadata."""
        return "*" if self.partitions is None else ",".join(self.partitions)

    @property
    def part(self) -> ReadScope:
        """The read set in the form that the isolation rules use."""
        return ReadScope(
            partitions=None if self.partitions is None else frozenset(self.partitions),
            instants=frozenset(self.snapshot.completions),
        )


# ---- Scans: snapshot, view, pruning, batches
#
# The choice of slices makes the query type: snapshot, time travel or incremental. Each slice is
# read in the same way. Batches stream, so the files being read bound the memory, not the table.


@dataclass(frozen=True, kw_only=True)
class ScanPlan:
    """The file slices of a scan, and how to read each of them."""

    slices: Sequence[FileSlice]
    read: SliceRead

    @property
    def files(self) -> tuple[BaseFile, ...]:
        """The base files of slices without log files, for engines that read base files directly."""
        return tuple(
            one.base_file for one in self.slices if one.base_file is not None and not one.log_files
        )

    @property
    def merged(self) -> tuple[FileSlice, ...]:
        """The slices with log files."""
        return tuple(with_logs(self.slices))

    @property
    def file_schema(self) -> pa.Schema:
        """The table's schema with the meta columns."""
        return self.read.file_schema

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of the batches."""
        return self.read.output_schema


def view_of(context: TableContext, snapshot: Snapshot) -> FileSystemView:
    """Return the file system view of a snapshot. Outside: 1 get per pending compaction."""
    plans = {}
    if snapshot.active.has_pending(Action.COMPACTION):
        plans = pending_compactions(context, snapshot.active)
    return FileSystemView(
        storage=context.ports.storage,
        snapshot=snapshot,
        pending_compactions=plans,
        together=context.ports.concurrently,
    )


def read_schema(context: TableContext, snapshot: Snapshot) -> TableSchema:
    """
    Return the table's schema in a snapshot, without meta columns.

    The newest visible commit with a schema decides, else the table's creation schema. Partition
    columns that files leave out are appended as text.

    Raises:
        UnsupportedTableError: The table has neither, so it was never written.
    """
    return _schema_and_folders(context, snapshot)[0]


def known_schema(context: TableContext, snapshot: Snapshot) -> TableSchema | None:
    """Return the schema as ``read_schema``, or None if the table has none yet."""
    if not (snapshot.newest_schema_json or context.config.create_schema_json):
        return None
    return read_schema(context, snapshot)


def _schema_and_folders(
    context: TableContext, snapshot: Snapshot
) -> tuple[TableSchema, DroppedPartitionColumns | None]:
    stored = _stored_schema(context, snapshot)
    folders = _folder_columns(context, stored)
    return stored if folders is None else stored.with_new_columns(folders.schema), folders


def _stored_schema(context: TableContext, snapshot: Snapshot) -> TableSchema:
    text = snapshot.newest_schema_json or context.config.create_schema_json
    if text:
        return TableSchema.from_avro(text)
    raise UnsupportedTableError(
        "the table has no schema, because no write is complete and its creation gave none: write "
        "to it first. If commits exist, run 'hoodoo table verify TABLE': a damaged commit file "
        "hides the schema",
        kind="no_schema",
    )


def _folder_columns(context: TableContext, stored: TableSchema) -> DroppedPartitionColumns | None:
    """Return the partition columns that files leave out; None if files hold all columns."""
    config = context.config
    if not config.drop_partition_columns:
        return None
    names = stored.arrow.names
    return DroppedPartitionColumns(
        fields=config.partition_fields,
        dropped=tuple(name for name in config.partition_fields if name not in names),
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
    )


def plan_scan(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    *,
    columns: Sequence[str] | None = None,
    filter: Filter = None,  # noqa: A002 - the public word of the Python surface
    among: pc.Expression | None = None,
    with_hoodie_columns: bool = False,
    base_filter: pc.Expression | None = None,
    visible: Container[InstantTime] | None = None,
    whole_file_groups: WholeFileGroups | None = None,
) -> ScanPlan:
    """
    Decide which slices and columns a scan reads.

    Args:
        context: The table.
        snapshot: The visible instants; the output has this snapshot's schema.
        slices: The file slices to read.
        columns: Names to return, in this order; None for all.
        filter: As for ``to_expression``.
        among: Rows that the filter chooses from; None for all.
        with_hoodie_columns: Return the five meta columns first if ``columns`` is None.
        base_filter: Rows of base files that count, before logs are merged into them.
        visible: The instants whose log blocks count; None for those of the snapshot.
        whole_file_groups: See ``SliceRead``.

    Raises:
        InvalidInputError: A column or an operator is unknown.
        UnsupportedTableError: A slice has log files that only a record merger of the table's owner
            can merge (``custom_merger``).
    """
    table_schema, folders = _schema_and_folders(context, snapshot)
    schema = with_meta(table_schema.arrow)
    names = (
        tuple(columns)
        if columns is not None
        else tuple(name for name in schema.names if with_hoodie_columns or name not in META_COLUMNS)
    )
    if not names:
        raise InvalidInputError(
            "the list of columns is empty: name at least one column; any column serves to count "
            "rows",
            kind="no_column",
        )
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidInputError(
            f"the table has no such column: {unknown}; choose one of {list(schema.names)}",
            kind="unknown_column",
            columns=unknown,
        )
    wanted = to_expression(filter, schema)
    rules = MergeRules(definition=context.config.merge)
    if any(True for _ in with_logs(slices)):
        rules = MergeRules.of(context.config.merge, table_schema.avro_json)
        visible = VisibleInstants.of(snapshot) if visible is None else visible
    return ScanPlan(
        slices=with_files(slices),
        read=SliceRead(
            file_schema=schema,
            columns=names,
            filter=wanted if among is None else among if wanted is None else among & wanted,
            base_filter=base_filter,
            rules=rules,
            keys=computed_keys(context),
            visible=visible or (),
            whole_file_groups=whole_file_groups,
            whole_filter=wanted,
            history=schema_history(context.ports.storage, snapshot),
            folders=folders,
        ),
    )


def pruner_of(
    context: TableContext, snapshot: Snapshot, condition: Filter
) -> PartitionPruner | None:
    """
    Return the pruner that chooses partitions for a filter; None if all partitions qualify.

    Outside: 1 get if the filter names a partition column, 1 more if indexes are defined.

    Raises:
        InvalidInputError: As for ``plan_scan``.
    """
    config = context.config
    if condition is None or not config.partition_fields:
        return None
    table_schema, folders = _schema_and_folders(context, snapshot)
    schema = with_meta(table_schema.arrow)
    expression = to_expression(condition, schema)
    if expression is None:
        return None
    columns = [name.partition(".")[0] for name in config.partition_fields]
    asked = {*columns, PARTITION_COLUMN}.intersection(schema.names)
    named = {name for name in asked if not works_without(expression, schema, name)}
    if not config.populate_meta_fields:
        named.discard(PARTITION_COLUMN)
    if not named:
        return None
    fields = _folder_fields(context, schema, folders)
    return PartitionPruner(
        condition=expression,
        schema=schema,
        named=frozenset(named),
        fields=tuple(_bounded(one, condition, schema) for one in fields),
        names=config.partition_fields,
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
    )


def folder_values(context: TableContext, snapshot: Snapshot) -> PartitionPruner:
    """Return the pruner whose ``exact_values`` are those of the partition columns in any row."""
    config = context.config
    table_schema, folders = _schema_and_folders(context, snapshot)
    schema = with_meta(table_schema.arrow)
    return PartitionPruner(
        condition=pc.scalar(True),
        schema=schema,
        named=frozenset(name.partition(".")[0] for name in config.partition_fields),
        fields=_folder_fields(context, schema, folders),
        names=config.partition_fields,
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
    )


def _folder_fields(
    context: TableContext, schema: pa.Schema, folders: DroppedPartitionColumns | None
) -> tuple[PartitionField | None, ...]:
    """Return how the values of each partition field become folders. Outside: as ``pruner_of``."""
    if not context.config.partition_fields:
        return ()
    # The context may be older than the property that says rows can be misplaced: load it again.
    config = load_config(context.ports.storage)
    if may_have_misplaced_rows(context.ports.storage, config):
        return (None,) * len(config.partition_fields)
    left_out = () if folders is None else folders.dropped
    return tuple(
        partition_field(config, schema, number, from_folder=name in left_out)
        for number, name in enumerate(config.partition_fields)
    )


def _bounded(
    one: PartitionField | None, condition: Filter, schema: pa.Schema
) -> PartitionField | None:
    """Limit a text field that holds times to the folders of the values that a filter names."""
    if one is None or one.times is None:
        return one
    values = allowed_values(condition, one.name, schema)
    if values is None:
        return one
    try:
        found = folders_of_texts(pa.array(values, one.type), one.times)
    except (pa.ArrowException, TypeError, ValueError):
        return one
    return one if found is None else replace(one, folders=found)


def computed_keys(context: TableContext) -> VirtualKeys | None:
    """Return how keys are computed for rows without meta columns; None if rows have them."""
    config = context.config
    if config.populate_meta_fields:
        return None
    kind = (config.key_generator_type or "").removesuffix("_AVRO")
    spec = KeySpec(
        record_key_fields=config.record_key_fields,
        key_generator=KeyGenerator.__members__.get(kind, KeyGenerator.SIMPLE),
        table_version=config.table_version,
        stores_keys=False,
    )
    return spec.virtual


def scan(context: TableContext, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """
    Read the planned slices in sequence, in batches of the output schema.

    A slice with log files is in memory while it is read, with only the columns needed.
    """
    for one in plan.slices:
        yield from read_slice(context.ports.storage, context.ports.events, one, plan.read)


# ---- Clean races (RDL-2)
#
# A snapshot names instants; a later listing of the partitions finds its files. If a clean deletes a
# file in between, its file group is missing in the listing, and so are its rows. A clean announces
# its deletes first, by its slot or, in another engine, by its files on the timeline. So the reader
# checks for cleans after the listing.


def assert_not_cleaned(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> None:
    """
    Raise if files may have been cleaned before they were listed.

    Call this after the listing of a snapshot that no lease protected.

    Raises:
        SnapshotExpiredError: Files of the snapshot may be missing in the listing.
    """
    if may_be_cleaned(context, snapshot, lease):
        raise expired_error(context, lease.newest)


def expired_error(
    context: TableContext, moment: InstantTime, path: str | None = None
) -> SnapshotExpiredError:
    """Return the error for a reader whose snapshot is no longer complete, and emit its event."""
    context.ports.events.emit("reader.expired", moment=moment)
    return SnapshotExpiredError(
        "cleaning deleted files of this snapshot during the read: read again. For long reads "
        "retain more commits (hoodie.clean.commits.retained), raise hoodoo.reader.lease.ms, or "
        f"pin the snapshot (table.pin()): {moment}",
        moment=moment,
        path=path,
    )


def may_be_cleaned(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> bool:
    """
    Return whether files of a snapshot may have been cleaned since it was taken.

    Outside: 1 get; if slots were added since, those and 1 list. In three cases 1 list more, and 1
    get for each new clean: other engines write the table, no hoodoo writer ever wrote it, or the
    slots of that time are truncated. In the last case also the archived timeline.
    """
    taken = lease.may_lose_files()
    alone = not context.has_foreign_writers
    if taken or (taken is False and alone and context.commit_log.known_head):
        return bool(taken)
    seen = {one.requested_time for one in snapshot.active.instants if one.action is Action.CLEAN}
    cleans = [one for one in context.active().instants if one.action is Action.CLEAN]
    new = (one for one in cleans if one.requested_time not in seen)
    if any(_promises_less(context, one, lease.newest) for one in new):
        return True
    return taken is None and any(
        row.action == Action.CLEAN.value and row.requested_time > lease.newest
        for row in context.archived_timeline.instants()
    )


def _promises_less(context: TableContext, clean: Instant, moment: InstantTime) -> bool:
    """Return whether a clean retains less than a read as of ``moment`` needs."""
    line = _earliest_retained(context, clean)
    return line is None or moment < line


def _earliest_retained(context: TableContext, clean: Instant) -> InstantTime | None:
    """Return the oldest commit that a clean keeps readable; None if it counts versions instead."""
    metadata = read_clean(context, clean)
    if isinstance(metadata, CleanMetadata):
        return metadata.earliest_commit_to_retain or None
    kept = None if metadata is None else metadata.earliest_instant_to_retain
    return None if kept is None else kept.requested_time or None


# ---- Streams and tables under a reader lease
#
# A long scan writes a reader lease. A scan that has returned no rows yet may start again on a newer
# snapshot. A missing file is either damage or the work of a clean; the timeline decides which error
# is raised.

_TRIES: Final = 4
_TAKING: Final = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRead:
    """A snapshot, and the plan of a read from it."""

    snapshot: Snapshot
    plan: ScanPlan
    is_pinned: bool = False  # since before its files were listed
    release: Callable[[], None] = lambda: None  # releases a pin that exists for this read alone


#: Plans a read again on the newest snapshot, which is pinned before its files are listed.
Replan: TypeAlias = Callable[[], PlannedRead]


def with_lease(
    context: TableContext,
    snapshot: Snapshot,
    batches: Iterator[pa.RecordBatch],
    *,
    since: InstantTime | None = None,
    until: InstantTime | None = None,
    is_held: bool = False,
) -> Iterator[pa.RecordBatch]:
    """
    Yield batches unchanged, under a reader lease if the read takes long.

    Args:
        context: The table.
        snapshot: The snapshot that is read.
        batches: Made lazily, from files of the snapshot.
        since: See ``ReaderLease``.
        until: See ``ReaderLease``.
        is_held: Whether the snapshot was pinned when its files were listed.

    Raises:
        SnapshotExpiredError: Files were cleaned during the read, or before they were listed
            (RDL-2).
        MissingFileError: A file is missing and no clean deleted it.
    """
    lease = ReaderLease(context, snapshot, since=since, until=until)
    if not is_held:
        assert_not_cleaned(context, snapshot, lease)
    lease.begin()
    try:
        for batch in batches:
            lease.note_use()
            yield batch
    except MissingFileError as error:
        raise _expired(context, snapshot, error) from error
    finally:
        lease.end()


def stream(
    context: TableContext, first: PlannedRead, again: Replan | None = None
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of a planned read, batch by batch.

    Args:
        context: The table.
        first: The snapshot and its scan plan.
        again: Plans the read on a newer snapshot, used until the first batch is returned; None if
            the caller asked for this snapshot.

    Raises: as ``with_lease``.
    """
    reading, left = first, _TRIES
    while True:
        given = False
        batches = scan(context, reading.plan)
        try:
            for batch in with_lease(context, reading.snapshot, batches, is_held=reading.is_pinned):
                given = True
                yield batch
            return
        except SnapshotExpiredError as error:
            left -= 1
            if given or again is None or not left:
                raise
            why = error
        finally:
            reading.release()
        reading = _replan(again, reading.plan, why)


def collect_table(
    context: TableContext, first: PlannedRead, again: Replan | None = None
) -> pa.Table:
    """Return the same rows as one table; files are read in parallel. As ``stream`` otherwise."""
    reading, left = first, _TRIES
    while True:
        lease = ReaderLease(context, reading.snapshot)
        try:
            if not reading.is_pinned:
                assert_not_cleaned(context, reading.snapshot, lease)
            lease.begin()
            return _side_by_side(context, reading.plan, lease)
        except (MissingFileError, SnapshotExpiredError) as error:
            why = (
                error
                if isinstance(error, SnapshotExpiredError)
                else _expired(context, reading.snapshot, error)
            )
            left -= 1
            if again is None or not left:
                raise why from error
        finally:
            lease.end()
            reading.release()
        reading = _replan(again, reading.plan, why)


@contextmanager
def expired_where_missing(context: TableContext, snapshot: Snapshot) -> Iterator[None]:
    """
    Turn missing files inside the block into an expired snapshot if a service removed them.

    Raises:
        SnapshotExpiredError: A restore or a clean ran since the snapshot: read again.
        MissingFileError, InstantNotFoundError: Unchanged, if nothing was removed.
    """
    try:
        yield
    except (MissingFileError, InstantNotFoundError) as error:
        raise _expired(context, snapshot, error) from error


def _side_by_side(context: TableContext, plan: ScanPlan, lease: ReaderLease) -> pa.Table:
    def one(number: int) -> list[pa.RecordBatch]:
        lease.note_use()
        return list(scan(context, replace(plan, slices=(plan.slices[number],))))

    pieces = context.ports.executor.map(one, range(len(plan.slices)))
    return pa.Table.from_batches(
        [batch for piece in pieces for batch in piece], schema=plan.output_schema
    )


def _replan(again: Replan, before: ScanPlan, why: SnapshotExpiredError) -> PlannedRead:
    """Plan the read again; raise ``why`` if the schema, which the caller has, would change."""
    reading = again()
    if reading.plan.output_schema != before.output_schema:
        reading.release()
        raise why
    return reading


def _expired(
    context: TableContext, snapshot: Snapshot, error: MissingFileError | InstantNotFoundError
) -> SnapshotExpiredError:
    """
    Return the error that a missing file means.

    Raises:
        MissingFileError, InstantNotFoundError: Unchanged, if nothing was removed since the
            snapshot.
    """
    if not may_be_missing_files(snapshot.active, context.active()):
        raise error
    moment = snapshot.as_of or snapshot.newest_completion or ""
    return expired_error(context, moment, path=error.fields.get("path"))


def may_be_missing_files(seen: ActiveTimeline, now: ActiveTimeline) -> bool:
    """Return whether files or instants may have been removed between two timelines on purpose."""
    ended = {(one.action, one.requested_time) for one in seen.instants if one.completed}
    if any(
        one.action in _TAKING and (one.action, one.requested_time) not in ended
        for one in now.instants
    ):
        return True
    return seen.first_write_time != now.first_write_time  # archived since: the cause is unknown


# ---- Filters of rows: SQL text, ``(column, operator, value)`` terms, or a pyarrow expression
# ``filegroups/reading/filter_text.py`` reads texts.

Filter: TypeAlias = str | pc.Expression | Sequence[tuple[str, str, object]] | None


def to_expression(condition: Filter, schema: pa.Schema) -> pc.Expression | None:
    """
    Return a filter as a pyarrow expression over a schema; None for no filter.

    Raises:
        InvalidInputError: The text does not parse (``filter``), names no column of the schema
            (``unknown_column``), or compares a column with a value of another type
            (``filter_value``); an expression or a term does not fit the schema (``filter``).
    """
    if condition is None:
        return None
    if isinstance(condition, str):
        from filegroups.reading.filter_text import FilterText  # sqlglot takes 0.1 s to import

        return FilterText(condition, schema).expression
    try:
        wanted = condition
        if not isinstance(condition, pc.Expression):
            wanted = pq.filters_to_expression([tuple(term) for term in condition])
        # Evaluated on no rows: a wrong column or type is the caller's error, not a damaged file.
        schema.empty_table().filter(wanted)
    except (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            "a filter is a text like \"month = 3 AND name LIKE 'A%'\", a pyarrow expression, or a "
            "list of (column, operator, value) with the operators = == != < <= > >= in 'not in', "
            f"over the columns {schema.names}: {error}",
            kind="filter",
        ) from error
    return wanted


def allowed_values(condition: Filter, column: str, schema: pa.Schema) -> list[object] | None:
    """
    Return the values that a filter allows for a column by ``=`` or ``IN``; None for any value.

    Only terms that every matching row fulfils count: those of a list, and those that ``AND``
    joins in a text. The first such term of the column is returned.
    """
    terms: Iterable[tuple[str, str, Any]] = ()
    if isinstance(condition, str):
        from filegroups.reading.filter_text import FilterText

        terms = FilterText(condition, schema).equalities()
    elif condition is not None and not isinstance(condition, pc.Expression):
        terms = condition
    for name, sign, value in terms:
        if name == column and sign in ("=", "=="):
            return [value]
        if name == column and sign == "in":
            return list(value)
    return None

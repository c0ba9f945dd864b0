"""Read a table as a DataFrame: Spark reads base files, tasks merge slices, leases pin both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from filegroups.files.cdc_log import CdcRead, CdcUnit, read_cdc
from filegroups.files.parquet import read_footer
from filegroups.merge.change_images import AFTER, BEFORE, CHANGE_TIME, OPERATION
from filegroups.reading.cdc import plan_cdc
from filegroups.reading.filters import Filter
from filegroups.reading.incremental import plan_incremental_read
from filegroups.reading.leased_read import assert_not_cleaned, expired_where_missing, may_be_cleaned
from filegroups.reading.partition_pruning import PartitionField, PartitionPruner
from filegroups.reading.read_set import ReadSet
from filegroups.reading.scan import ScanPlan, folder_values, plan_scan
from filegroups.schema.evolution import canonical_type, needs_repair
from filegroups.schema.schema import COMMIT_TIME_COLUMN
from filegroups.settings.read_settings import ReadSettings
from filegroups.table import TableSnapshot
from hoodoo.spark.base_files import SparkFile, as_spelled, read_base_files
from hoodoo.spark.error_transport import TaskFailedError
from hoodoo.spark.file_index import FileSkipping, skipping_of
from hoodoo.spark.leases import pin_while_read
from hoodoo.spark.options import LoadOptions, layers_for, load_options, storage_properties
from hoodoo.spark.paths import PathSelection, matching_glob, open_selected
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.slices import (
    ReadHidden,
    ReadReplacements,
    ReadSlices,
    dataframe_of,
    hidden_in_tasks,
    in_few_tasks,
    packed,
    read_packs,
    spelled,
    split_on_driver,
    splittable,
    without_hidden,
)
from hoodoo.spark.tasks import StorageAddress
from hoodoo.table import Table
from timeline.context import TableContext
from timeline.errors import HoodooError, InvalidInputError
from timeline.model.file_slice import BaseFile, FileSlice
from timeline.ports.ports import Executor
from timeline.properties.options import PropertySet
from timeline.properties.setting_enums import QueryType
from timeline.reader_lease import ReaderLease
from timeline.snapshot import Snapshot
from timeline.system import LoggingEvents

# ---- The snapshot of a DataFrame, for a write that is made from it (``reads=``)
# A DataFrame of this engine keeps its table snapshot. Later calls (``where``, ``join``) are
# Spark's, so the caller states which part of the table was read, as in ``TableSnapshot.reads``.

_STATE = "_hoodoo_state"


def attach_read_state(df: Any, state: TableSnapshot | None) -> Any:
    """Attach its table snapshot to a DataFrame; None for a range and for base files only."""
    setattr(df, _STATE, state)
    return df


def reads(df: Any, *, partitions: Iterable[str] | None = None, filter: Filter = None) -> ReadSet:  # noqa: A002
    """
    Return the read set of a DataFrame, for a write that is made from its rows.

    Args:
        df: The result of ``spark.read.format("hoodoo").load(path)`` or ``to_df()`` itself. A
            DataFrame derived from it has no table snapshot.
        partitions: Partition paths that were read, also those without rows; None for all.
        filter: The filter of the rows that were read, as of ``Table.scan``; None for all.

    Raises:
        InvalidInputError: The DataFrame has no table snapshot (``not_loaded``), or it shows an
            earlier time, a range or base files only, not the newest rows (``reads_of_the_past``).
    """
    if not hasattr(df, _STATE):
        raise InvalidInputError(
            "this DataFrame does not know the snapshot it was read from: pass the DataFrame that "
            "load() or to_df() returned, and its selection as partitions= and filter=",
            kind="not_loaded",
        )
    state: TableSnapshot | None = getattr(df, _STATE)
    if state is None:
        raise InvalidInputError(
            "a write must start from the newest state: load it without a range and with query "
            "type snapshot",
            kind="reads_of_the_past",
        )
    return state.reads(partitions=partitions, filter=filter)


# ---- Loading a table as a DataFrame: files that Spark reads, and slices that tasks merge
# A slice without logs is one Parquet file, so Spark's reader gets the visible files by path. It
# brings column pruning, filter push-down and vectorised decoding. It also reads the base file of a
# slice with logs, without the rows that the logs hide (``slices.py``). If it cannot, a task of
# hoodoo reads the slice and merges it by the function that all readers use.

#: Several small slices share a task up to this size, as files in Spark.
_TASK_BYTES = 128 << 20
#: Spark evaluates so few rows while it plans, without a job.
_PLANNED_ROWS_MAX = 1_000
#: From this table version on, each release stores timestamps under the right label.
_RIGHT_LABELS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkReadPlan:
    """
    The plan of a load: the files that Spark reads and the slices that tasks read.

    Args:
        plan: All slices, and how they are read.
        files: The base files that Spark reads whole.
        split: Slices whose unchanged rows Spark reads, and tasks the others.
        split_files: Their base files.
        merged: The slices that tasks read.
        partition_columns: The columns of ``SparkFile.values``.
        times: Requested times of an incremental read; None for all rows.
        address: The storage of the table, for tasks.
        lease: Keeps the files from cleaning after the first call of its ``beat``.
        driver_bytes_max: Greatest size of ``split`` that the driver reads itself.
        skip: Leaves out base files by statistics; None without statistics.
        state: The table snapshot; None for a range, and for base files without their logs.
    """

    plan: ScanPlan
    files: tuple[SparkFile, ...]
    split: tuple[FileSlice, ...]
    split_files: tuple[SparkFile, ...]
    merged: tuple[FileSlice, ...]
    partition_columns: pa.Schema
    times: tuple[str, ...] | None
    address: StorageAddress
    lease: ReaderLease
    driver_bytes_max: int
    skip: FileSkipping | None = None
    state: TableSnapshot | None = None

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, with the meta columns first."""
        return self.plan.file_schema


def load_dataframe(
    spark: Any,
    paths: Sequence[str],
    options: Mapping[str, object],
    *,
    schema: Any = None,
    warns: bool = True,
) -> Any:
    """
    Load a table: the newest snapshot, one of an earlier time, or the changes of a range.

    Args:
        spark: The session.
        paths: The table's path, or paths of folders below it (``open_selected``).
        options: ``as.of.instant``, ``hoodie.datasource.query.type`` and its range.
        schema: A Spark schema (or its text) instead of the table's, for fewer columns.
        warns: Warn of options that do nothing.

    Returns:
        A DataFrame with the five meta columns first, as in Hudi. With
        ``hoodie.datasource.query.incremental.format=cdc`` each change of the range: ``op``,
        ``ts_ms``, ``before`` and ``after``, the last two as JSON.

    Raises:
        InvalidInputError: A path selects no partition, or is not below the table (``path``).
        TableNotFoundError, SettingError, InstantNotFoundError, UnsupportedTableError: See
            ``hoodoo.open_table``, ``as_of`` and ``changes``.
    """
    of_load, given = load_options(options)
    table, path, selection = open_selected(paths, layers_for(spark, given, warns=warns))
    with table:
        settings = ReadSettings.from_properties(table.properties)
        of_load.refuse_beside(settings)
        if settings.is_cdc:
            if selection is not None:
                raise InvalidInputError(
                    "a load of changes takes the table's path only: load that, then filter by "
                    f"the partition columns in before and after: {list(paths)}",
                    kind="path",
                )
            changes = plan_changes(table, settings)
            df = with_columns_of(spark, _changes(spark, table, changes), schema)
            if changes.units and not changes.is_for_driver:
                pin_while_read(spark, table.context, changes.lease, df)
            return attach_read_state(df, None)
        found = plan_load(table, table.properties, selection, of_load)
        with _while_driver_reads(table, found):
            df = _dataframe(spark, path, found, schema, table.context.ports.executor)
        if found.plan.slices:
            pin_while_read(spark, table.context, found.lease, df)
    return df


def _changes(spark: Any, table: Table, found: SparkCdcPlan) -> Any:
    count = len(found.units)
    if not count:
        return with_json_images(spark.createDataFrame([], found.shape))
    if found.is_for_driver:
        work, context = found.work(found.units), table.context
        with _pinned(context, found.snapshot, found.lease):
            read = context.ports.executor.map(lambda unit: list(work.rows(unit)), found.units)
        rows = pa.Table.from_batches([one for some in read for one in some], schema=work.shape)
        df = dataframe_of(spark, rows, found.shape)
        few = rows.num_rows <= _PLANNED_ROWS_MAX
        return with_json_images(df if few else in_few_tasks(df, rows))
    numbers = spark.range(0, count, 1, count)
    return with_json_images(numbers.mapInArrow(found.work(found.units), found.shape))


def with_columns_of(spark: Any, df: Any, schema: Any) -> Any:
    """Return the columns of a DataFrame that a schema names; all without a schema."""
    return df if schema is None else df.select(*spark.createDataFrame([], schema).columns)


@contextmanager
def _while_driver_reads(table: Table, found: SparkReadPlan) -> Iterator[None]:
    """Pin the files that the driver itself reads during a load. Raises: as ``load_dataframe``."""
    if found.state is None:
        yield
        return
    snapshot = found.state.snapshot
    with _pinned(table.context, snapshot, ReaderLease(table.context, snapshot)):
        yield


@contextmanager
def _pinned(context: TableContext, snapshot: Snapshot, lease: ReaderLease) -> Iterator[None]:
    lease.begin()
    try:
        with expired_where_missing(context, snapshot):
            yield
    finally:
        lease.end()


def load_state(spark: Any, path: str, table: Table, state: TableSnapshot) -> Any:
    """
    Load a pinned snapshot; as ``load_dataframe``, but without another lease.

    Args:
        spark: The session.
        path: The table's path, as the user spells it.
        table: The open table.
        state: A snapshot of this table; keep it pinned until the last read of the DataFrame.
    """
    found = _of_state(table, state, QueryType.SNAPSHOT)
    return _dataframe(spark, path, found, None, table.context.ports.executor)


def _dataframe(spark: Any, path: str, found: SparkReadPlan, schema: Any, executor: Executor) -> Any:
    shape = schema if schema is not None else spark_schema_of(found.schema)
    if not found.plan.slices:
        return attach_read_state(spark.createDataFrame([], shape), found.state)
    parts = []
    is_text = not isinstance(shape, StructType)
    wanted = spark.createDataFrame([], shape).schema if is_text else shape
    if found.files:
        parts.append(_read_by_spark(spark, path, found, found.files, wanted))
    tasks = spark.sparkContext.defaultParallelism
    common: dict[str, Any] = {"address": found.address, "read": found.plan.read}
    shape = arrow_shape(wanted)
    if found.split:
        if sum(one.size_bytes for one in found.split) <= found.driver_bytes_max:
            work = ReadReplacements(packs=(found.split,), shape=shape, **common)
            split = split_on_driver(spark, work, wanted, executor)
            hidden, replacing = split.hidden, split.replacing
        else:
            packs = packed(found.split, tasks, _TASK_BYTES)
            hidden = hidden_in_tasks(spark, ReadHidden(packs=packs, **common))
            work = ReadReplacements(packs=packs, shape=shape, **common)
            replacing = read_packs(spark, work, wanted)
        hide = partial(without_hidden, hidden=hidden)
        base = _read_by_spark(spark, path, found, found.split_files, wanted, each=hide)
        parts += [base, replacing]
    if found.merged:
        packs = packed(found.merged, tasks, _TASK_BYTES)
        parts.append(read_packs(spark, ReadSlices(packs=packs, shape=shape, **common), wanted))
    return attach_read_state(reduce(lambda one, other: one.union(other), parts), found.state)


def _read_by_spark(
    spark: Any,
    path: str,
    found: SparkReadPlan,
    files: Sequence[SparkFile],
    wanted: Any,
    *,
    each: Callable[[Any], Any] | None = None,
) -> Any:
    """Read the rows of base files that have one of the requested times; None for all rows."""
    spelled_files = [replace(one, path=as_spelled(one.path, path)) for one in files]
    columns, events = found.partition_columns, LoggingEvents()
    if found.times is None:
        return read_base_files(
            spark, spelled_files, wanted, columns, events=events, skip=found.skip, each=each
        )
    hidden = spelled(COMMIT_TIME_COLUMN, wanted.names) is None
    added = [StructField(COMMIT_TIME_COLUMN, StringType())] if hidden else []
    wanted = StructType([*wanted.fields, *added])
    df = read_base_files(spark, spelled_files, wanted, columns, events=events, skip=found.skip)
    df = df.where(F.col(COMMIT_TIME_COLUMN).isin(list(found.times)))
    return df.drop(COMMIT_TIME_COLUMN) if hidden else df


def arrow_shape(schema: Any) -> pa.Schema:
    """Return the Arrow form of a Spark schema, with timestamps in UTC."""
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def plan_load(
    table: Table,
    properties: PropertySet,
    selection: PathSelection | None = None,
    of_load: LoadOptions = LoadOptions(),  # noqa: B008 - immutable
) -> SparkReadPlan:
    """
    Plan a load by the read options. Other errors: as ``load_dataframe``.

    Args:
        table: The open table.
        properties: The read options.
        selection: The partitions to read; None for all.
        of_load: The options that only a load has.

    Raises:
        SnapshotExpiredError: A clean may have deleted files of the snapshot or the range.
    """
    settings = ReadSettings.from_properties(properties)
    refuse_cdc(settings)
    if settings.query_type is QueryType.INCREMENTAL:
        return _changed(table, settings, selection, of_load.path_glob)

    def planned(state: TableSnapshot) -> SparkReadPlan:
        return _of_state(table, state, settings.query_type, selection, merges=of_load.merges)

    if settings.as_of is None:
        return _newest(table, planned)
    state = table.as_of(settings.as_of)
    found = planned(state)
    assert_not_cleaned(table.context, state.snapshot, found.lease)
    return found


def _newest(table: Table, planned: Callable[[TableSnapshot], SparkReadPlan]) -> SparkReadPlan:
    """Plan the newest snapshot; pin it and plan again if a clean was faster (RDL-2)."""
    state = table.current_state()
    found = planned(state)
    if not may_be_cleaned(table.context, state.snapshot, found.lease):
        return found
    with table.pin_if_allowed() as held:
        found = planned(held)
        if held.is_pinned:
            found.lease.acquire()  # before the lease of the pin ends
        else:
            assert_not_cleaned(table.context, held.snapshot, found.lease)
    return found


def _of_state(
    table: Table,
    state: TableSnapshot,
    query_type: QueryType,
    selection: PathSelection | None = None,
    *,
    merges: bool = True,
) -> SparkReadPlan:
    chosen = None if selection is None else selection.partitions(state.view.partition_paths())
    plan = state.plan(partitions=chosen, with_hoodie_columns=True, query_type=query_type.value)
    plan = plan if merges else _unmerged(plan)
    lease = ReaderLease(table.context, state.snapshot)
    found = _load(table, plan, None, lease, state.snapshot)
    # Base files alone may be older than the snapshot, so no write may be made from them.
    is_state = merges and query_type is QueryType.SNAPSHOT
    return replace(found, state=state) if is_state else found


def _unmerged(plan: ScanPlan) -> ScanPlan:
    """Return the plan with a slice for each file, so that rows of one key stay apart."""
    slices: list[FileSlice] = []
    for one in plan.slices:
        slices += [replace(one, log_files=())] if one.base_file is not None else []
        slices += [replace(one, base_file=None, log_files=(log,)) for log in one.log_files]
    return replace(plan, slices=tuple(slices))


def _changed(
    table: Table, settings: ReadSettings, selection: PathSelection | None, path_glob: str | None
) -> SparkReadPlan:
    start, end = settings.range_in(table.context.zone)
    chosen = None
    if selection is not None or path_glob is not None:
        paths = table.current_state().view.partition_paths()
        chosen = paths if selection is None else selection.partitions(paths)
        chosen = chosen if path_glob is None else matching_glob(path_glob, chosen)
    changed = plan_incremental_read(table.context, start, end, partitions=chosen, ahead=True)
    plan = plan_scan(
        table.context,
        changed.snapshot,
        changed.slices,
        among=changed.condition,
        with_hoodie_columns=True,
        base_filter=changed.base_condition,
        visible=changed.visible,
        whole_file_groups=changed.whole_file_groups,
    )
    lease = ReaderLease(table.context, changed.snapshot, until=changed.until)
    assert_not_cleaned(table.context, changed.snapshot, lease)
    return _load(table, plan, sorted(changed.instants), lease, changed.snapshot)


def _load(
    table: Table,
    plan: ScanPlan,
    times: Sequence[str] | None,
    lease: ReaderLease,
    snapshot: Snapshot,
) -> SparkReadPlan:
    storage = table.context.ports.storage
    settings = ReadSettings.from_properties(table.properties)
    # Spark finds columns by their present names and types. Tasks of hoodoo read files with older
    # ones, and files without a column whose value is in the partition path.
    files = _in_types_of_now(table, plan) if plan.read.base_file_suffices else frozenset()
    theirs = [one for one in plan.slices if one.base_file in files]
    split: list[FileSlice] = []
    if times is None and not any(name.lower() == "_metadata" for name in plan.file_schema.names):
        limit = settings.spark_hidden_log_bytes_max
        split = splittable([one for one in theirs if one.log_files], limit)
    plain = [one for one in theirs if not one.log_files]
    rest = {*plan.slices} - {*plain, *split}
    pruner = folder_values(table.context, snapshot)
    columns = _partition_columns(pruner)

    def located(slices: Iterable[FileSlice]) -> tuple[SparkFile, ...]:
        return tuple(
            SparkFile(
                path=storage.locate(one.base_file.path),
                size_bytes=one.base_file.size_bytes,
                values=pruner.exact_values(one.file_group.partition_path) if columns else None,
            )
            for one in slices
            if one.base_file is not None
        )

    return SparkReadPlan(
        plan=plan,
        files=located(plain),
        split=tuple(split),
        split_files=located(split),
        partition_columns=columns,
        merged=tuple(one for one in plan.slices if one in rest),
        times=None if times is None else tuple(times),
        address=_address_of(table),
        lease=lease,
        driver_bytes_max=settings.spark_driver_read_bytes_max,
        skip=skipping_of(table.context, snapshot, plan),
    )


def _partition_columns(pruner: PartitionPruner) -> pa.Schema:
    """Return the partition columns if folders give exact values of all; else no column."""
    fields = [each for each in pruner.fields if each is not None and _gives_values(each)]
    every = len(fields) == len(pruner.fields) == len({each.name.lower() for each in fields})
    return pa.schema([(each.name, each.type) for each in fields] if every else [])


def _gives_values(one: PartitionField) -> bool:
    types = pa.types
    plain = types.is_string(one.type) or types.is_integer(one.type) or types.is_date32(one.type)
    return plain and one.times is None and not one.from_folder and "." not in one.name


def _address_of(table: Table) -> StorageAddress:
    options = tuple(storage_properties(table.properties).items())
    return StorageAddress(base_uri=table.context.ports.storage.base_uri, options=options)


def _in_types_of_now(table: Table, plan: ScanPlan) -> frozenset[BaseFile]:
    """
    Return the base files whose columns have the table's types.

    Spark's reader refuses some of Hudi's type promotions (each release refuses others), and widens
    a float in another way. Types only widen, so if the oldest file has the table's types, all
    files have them. But an older release of Hudi may have stored a timestamp under another label
    at any time (``needs_repair``). Outside: 1 footer; after a change of types 1 for each file.
    """
    ports = table.context.ports
    relabelled = table.config.initial_version < _RIGHT_LABELS and any(
        needs_repair(each.type) for each in plan.file_schema
    )

    def fits(base: BaseFile) -> bool:
        written = read_footer(ports.storage, base.path).schema
        return all(
            canonical_type(written.field(each.name).type, each.name) == each.type
            for each in plan.file_schema
            if each.name in written.names
        )

    found = (one.base_file for one in plan.slices)
    files = sorted(
        (base for base in found if base is not None), key=lambda base: base.requested_time
    )
    if not files or (fits(files[0]) and not relabelled):
        return frozenset(files)
    fitting = ports.executor.map(fits, files)
    return frozenset(base for base, fit in zip(files, fitting, strict=True) if fit)


# ---- CDC reads: each change of a range as a DataFrame in Hudi's columns
# Each task reads the changes of one instant to one file group. As in Hudi, ``before`` and
# ``after`` are JSON texts, in which a field without a value is null.

_JSON = {"ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCdcUnits:
    """Read CDC units by their number."""

    address: StorageAddress
    units: tuple[CdcUnit, ...]
    read: CdcRead
    shape: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the units that the batches number; runs in a worker."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.rows(self.units[number])

    def rows(self, unit: CdcUnit) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one unit."""
        try:
            for changes in read_cdc(self.address.open(), LoggingEvents(), unit, self.read):
                yield changes.cast(self.shape)
        except HoodooError as error:
            raise TaskFailedError(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCdcPlan:
    """
    The changes of a range.

    Args:
        units: Each is read alone.
        read: How to read them.
        snapshot: Of the plan.
        address: The storage of the table, for tasks.
        lease: Keeps the files from cleaning after the first call of its ``beat``.
        driver_bytes_max: Greatest size of CDC logs that the driver reads itself.
    """

    units: tuple[CdcUnit, ...]
    read: CdcRead
    snapshot: Snapshot
    address: StorageAddress
    lease: ReaderLease
    driver_bytes_max: int

    @property
    def is_for_driver(self) -> bool:
        """Return whether the driver reads the changes during the load: few, from CDC logs alone."""
        logged = all(unit.logs_suffice for unit in self.units)
        return logged and sum(unit.log_bytes for unit in self.units) <= self.driver_bytes_max

    @property
    def shape(self) -> Any:
        """The Spark schema of a change, whose images are structs."""
        return spark_schema_of(self.read.output_schema)

    def work(self, units: tuple[CdcUnit, ...]) -> ReadCdcUnits:
        """Return the reading of some units, for tasks."""
        shape = arrow_shape(self.shape)
        return ReadCdcUnits(address=self.address, units=units, read=self.read, shape=shape)


def plan_changes(table: Table, settings: ReadSettings) -> SparkCdcPlan:
    """
    Plan the changes of a range.

    Args:
        table: The open table; the result does not need it.
        settings: The range.

    Raises:
        InstantNotFoundError: A file of the range was cleaned (``changes_cleaned``).
        SnapshotExpiredError: A clean or a restore committed during planning.
    """
    context = table.context
    start, end = settings.range_in(context.zone)
    plan = plan_cdc(context, start, end)
    lease = ReaderLease(context, plan.snapshot, since=plan.since, until=plan.until)
    assert_not_cleaned(context, plan.snapshot, lease)
    return SparkCdcPlan(
        units=plan.units,
        read=plan.read,
        snapshot=plan.snapshot,
        address=_address_of(table),
        lease=lease,
        driver_bytes_max=settings.spark_driver_read_bytes_max,
    )


def with_json_images(changes: Any) -> Any:
    """Return changes in Hudi's columns ``op``, ``ts_ms``, ``before``, ``after``, all texts."""
    images = [F.to_json(F.col(name), _JSON).alias(name) for name in (BEFORE, AFTER)]
    return changes.select(OPERATION, CHANGE_TIME, *images)


def refuse_cdc(settings: ReadSettings) -> None:
    """
    Refuse a CDC read in a source that reads rows.

    Raises:
        InvalidInputError: The settings ask for a CDC read.
    """
    if settings.is_cdc:
        raise InvalidInputError(
            "this source reads rows: to read every change, call hoodoo.spark.install(spark) and "
            "use spark.read.format('hudi'), or table.changes(.., images=True), or hoodoo read "
            "--query-type cdc",
            kind="unsupported_query",
            query_type="cdc",
        )

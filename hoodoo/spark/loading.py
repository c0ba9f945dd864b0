"""
Loading a table as a DataFrame: files Spark can read itself, and slices merged in tasks.

A slice without logs is one Parquet file, so Spark's own reader gets exactly the visible
files by path: column pruning, filter push-down and vectorised decoding come with it. A slice
with logs is read by one of our tasks, which merges it with the function every reader uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from hoodoo.spark.carried import TaskFailedError
from hoodoo.spark.changes import load_changes, refuse_every_change
from hoodoo.spark.leasing import keep_while_read
from hoodoo.spark.options import layers_for
from hoodoo.spark.read_sets import remember_state
from hoodoo.spark.saving import storage_options
from hoodoo.spark.schemas import spark_schema_of
from hoodoo.spark.tasks import StorageAddress
from hoodoo.table import Table
from timeline.errors import HoodooError
from timeline.files.parquet import read_footer
from timeline.files.slice_reader import SliceRead, read_slice
from timeline.machine import LoggingEvents
from timeline.model.evolution import canonical_type, needs_repair
from timeline.model.file_group import BaseFile, FileSlice
from timeline.model.schema import COMMIT_TIME_COLUMN
from timeline.properties.options import PropertySet
from timeline.properties.settings import QueryType, ReadSettings
from timeline.reading.incremental import changed_since
from timeline.reading.overtaken import assert_all_listed, is_overtaken
from timeline.reading.read import ScanPlan, plan_scan
from timeline.reading.reader_lease import ReaderLease
from timeline.reading.table_snapshot import TableSnapshot

__all__ = [
    "Load",
    "ReadSlices",
    "arrow_shape",
    "load_dataframe",
    "load_state",
    "plan_load",
]

_PATTERN = re.compile(r"[\[\]{}*?\\]")
#: Table version of which no release writes moments under another label.
_RIGHT_LABELS = 9
# A session's own choices for other files would leave rows out, or move days before 1582 by a
# week, in the base files that Spark reads and not in those that our tasks read.
_AS_WRITTEN = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """
    What a load reads.

    Args:
        plan: Every slice, and how it is read.
        paths: Absolute base files of the slices that Spark reads itself.
        merged: The slices that tasks read.
        times: Requested times of an incremental read; None for all rows.
        address: Where tasks find the table.
        lease: Keeps the files from cleaning once somebody lets it beat.
        state: What it shows; None for a range, and for base files without their logs.
    """

    plan: ScanPlan
    paths: tuple[str, ...]
    merged: tuple[FileSlice, ...]
    times: tuple[str, ...] | None
    address: StorageAddress
    lease: ReaderLease
    state: TableSnapshot | None = None

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, meta columns first."""
        return self.plan.file_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlices:
    """Read the slices whose numbers arrive, in the columns and types of a DataFrame."""

    address: StorageAddress
    slices: tuple[FileSlice, ...]
    read: SliceRead
    shape: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a worker."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.rows(self.slices[number])

    def rows(self, one: FileSlice) -> Iterator[pa.RecordBatch]:
        """The rows of one slice."""
        # As Spark's own reader does it: in any case, and null where the table has none.
        known = self.read.file_schema.names
        named = [_spelled(name, known) for name in self.shape.names]
        read = replace(self.read, columns=tuple(filter(None, dict.fromkeys(named))) or (known[0],))
        try:
            for batch in read_slice(self.address.open(), LoggingEvents(), one, read):
                columns = [
                    batch.column(name) if name else pa.nulls(batch.num_rows, field.type)
                    for name, field in zip(named, self.shape, strict=True)
                ]
                found = pa.RecordBatch.from_arrays(columns, names=self.shape.names)
                yield found.cast(self.shape)
        except HoodooError as error:
            raise TaskFailedError(error) from error


def load_dataframe(
    spark: Any,
    path: str,
    options: Mapping[str, object],
    *,
    schema: Any = None,
    tells: bool = True,
) -> Any:
    """
    Load a table: newest state, a time of the past, or the changes of a range.

    Args:
        spark: The session.
        path: The table's address.
        options: ``as.of.instant``, ``hoodie.datasource.query.type`` and its range.
        schema: A Spark schema (or its text) to read instead of the table's, for fewer columns.
        tells: Whether options that do nothing are told.

    Returns:
        A DataFrame with the five meta columns first, as Hudi gives it. With
        ``hoodie.datasource.query.incremental.format=cdc`` each change of the range: ``op``,
        ``ts_ms``, ``before`` and ``after``, the last two as JSON.

    Raises:
        TableNotFoundError, SettingError, InstantNotFoundError, UnsupportedTableError: See
            ``hoodoo.open_table``, ``as_of`` and ``changes``.
    """
    layers = layers_for(spark, options, tells=tells)
    with Table.open(path, layers) as table:
        settings = ReadSettings.from_properties(table.properties)
        if settings.every_change:
            changes, lease = load_changes(spark, table, settings, arrow_shape)
            wanted = () if schema is None else spark.createDataFrame([], schema).columns
            df = changes.select(*wanted) if wanted else changes
            if lease is not None:
                keep_while_read(spark, table.core.context, lease, df)
            return remember_state(df, None)
        found = plan_load(table, table.properties)
        context = table.core.context
    df = _dataframe(spark, path, found, schema)
    if found.paths or found.merged:
        keep_while_read(spark, context, found.lease, df)
    return df


def load_state(spark: Any, path: str, table: Table, state: TableSnapshot) -> Any:
    """
    Load a state that somebody holds; as ``load_dataframe``, without a lease of its own.

    Args:
        spark: The session.
        path: The table's address, as its user spells it.
        table: Opened.
        state: Of this table; keep it until the DataFrame was read for the last time.
    """
    return _dataframe(spark, path, _of_state(table, state, QueryType.SNAPSHOT), None)


def _dataframe(spark: Any, path: str, found: Load, schema: Any) -> Any:
    shape = schema if schema is not None else spark_schema_of(found.schema)
    if not found.paths and not found.merged:
        return remember_state(spark.createDataFrame([], shape), found.state)
    parts = []
    wanted = spark.createDataFrame([], shape).schema
    if found.paths:
        files = [_no_pattern(_as_spelled(p, path)) for p in found.paths]
        parts.append(_read_by_spark(spark, files, wanted, found.times))
    if found.merged:
        count = len(found.merged)
        work = ReadSlices(
            address=found.address,
            slices=found.merged,
            read=found.plan.read,
            shape=arrow_shape(wanted),
        )
        parts.append(spark.range(0, count, 1, count).mapInArrow(work, wanted))
    df = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    return remember_state(df, found.state)


def _read_by_spark(
    spark: Any, files: Sequence[str], wanted: Any, times: Sequence[str] | None
) -> Any:
    """The rows of base files, those of the given requested times only; None for all."""
    reader = spark.read.format("parquet").options(**_AS_WRITTEN)
    if times is None:
        return reader.schema(wanted).load(files)
    hidden = _spelled(COMMIT_TIME_COLUMN, wanted.names) is None
    told = [StructField(COMMIT_TIME_COLUMN, StringType())] if hidden else []
    df = reader.schema(StructType([*wanted.fields, *told])).load(files)
    df = df.where(F.col(COMMIT_TIME_COLUMN).isin(list(times)))
    return df.drop(COMMIT_TIME_COLUMN) if hidden else df


def arrow_shape(schema: Any) -> pa.Schema:
    """The Arrow form of a Spark schema, moments in UTC."""
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def _spelled(name: str, known: Sequence[str]) -> str | None:
    """A column as it is spelled there; in another case only where none is spelled alike."""
    alike = [each for each in known if each.lower() == name.lower()]
    return name if name in alike else next(iter(alike), None)


def _as_spelled(file: str, table: str) -> str:
    """A file by the table's own scheme: which of S3's names a cluster knows, its users know."""
    scheme, _, rest = file.partition("://")
    said = table.partition("://")[0].lower()
    return f"{said}://{rest}" if scheme == "s3" and said in ("s3a", "s3n") else file


def _no_pattern(path: str) -> str:
    """Spark takes these characters of a path for a pattern unless they are escaped."""
    return _PATTERN.sub(r"\\\g<0>", path)


def plan_load(table: Table, properties: PropertySet) -> Load:
    """
    Choose the slices of a load by the read options. Errors: as ``load_dataframe``.

    Raises:
        SnapshotExpiredError: Files of a time or range that was asked for are just being cleaned.
    """
    settings = ReadSettings.from_properties(properties)
    refuse_every_change(settings)
    core = table.core
    if settings.query_type is QueryType.INCREMENTAL:
        return _changed(table, settings)
    if settings.as_of is None:
        return _newest(table, settings.query_type)
    state = core.as_of(settings.as_of)
    found = _of_state(table, state, settings.query_type)
    assert_all_listed(core.context, state.snapshot, found.lease)
    return found


def _newest(table: Table, query_type: QueryType) -> Load:
    """The newest state; held while it is planned where cleaning was faster (RDL-2)."""
    state = table.core.pin()
    found = _of_state(table, state, query_type)
    if not is_overtaken(table.core.context, state.snapshot, found.lease):
        return found
    with table.core.held_if_allowed() as held:
        found = _of_state(table, held, query_type)
        if held.is_held:
            found.lease.show()  # before the other ends
        else:
            assert_all_listed(table.core.context, held.snapshot, found.lease)
    return found


def _of_state(table: Table, state: TableSnapshot, query_type: QueryType) -> Load:
    plan = state.plan(with_hoodie_columns=True, query_type=query_type.value)
    found = _load(table, plan, None, ReaderLease(table.core.context, state.snapshot))
    # Base files alone are older than the state, so nothing can be made from them.
    return replace(found, state=state) if query_type is QueryType.SNAPSHOT else found


def _changed(table: Table, settings: ReadSettings) -> Load:
    core = table.core
    start, end = settings.range_in(core.context.zone)
    changed = changed_since(core.context, start, end, ahead=True)
    plan = plan_scan(
        core.context,
        changed.snapshot,
        changed.slices,
        among=changed.condition,
        with_hoodie_columns=True,
        base_filter=changed.base_condition,
        visible=changed.visible,
        wholes=changed.wholes,
    )
    lease = ReaderLease(core.context, changed.snapshot, until=changed.until)
    assert_all_listed(core.context, changed.snapshot, lease)
    return _load(table, plan, sorted(changed.instants), lease)


def _load(table: Table, plan: ScanPlan, times: Sequence[str] | None, lease: ReaderLease) -> Load:
    storage = table.core.context.world.storage
    # Spark finds columns by their names and types of now: files with older ones, or without a
    # column that the folder tells, are read by our tasks.
    files = _in_types_of_now(table, plan) if plan.read.files_suffice else frozenset()
    theirs = [one for one in plan.slices if one.base_file in files and not one.log_files]
    ours = [one for one in plan.slices if one.base_file not in files or one.log_files]
    return Load(
        plan=plan,
        paths=tuple(storage.locate(one.base_file.path) for one in theirs if one.base_file),
        merged=tuple(ours),
        times=None if times is None else tuple(times),
        address=StorageAddress(
            base_uri=storage.base_uri, options=tuple(storage_options(table).items())
        ),
        lease=lease,
    )


def _in_types_of_now(table: Table, plan: ScanPlan) -> frozenset[BaseFile]:
    """
    The base files whose columns have the table's types.

    Spark's reader refuses some of Hudi's promotions, its releases each others, and widens a
    float in another way. Types only grow, so the oldest file speaks for all that have grown
    nothing since; but an older release of Hudi may have written a moment under another label at
    any time (``needs_repair``). Outside: 1 footer, of a table that has evolved 1 for each file.
    """
    world = table.core.context.world
    relabelled = table.config.initial_version < _RIGHT_LABELS and any(
        needs_repair(each.type) for each in plan.file_schema
    )

    def fits(base: BaseFile) -> bool:
        written = read_footer(world.storage, base.path).schema
        return all(
            canonical_type(written.field(each.name).type, each.name) == each.type
            for each in plan.file_schema
            if each.name in written.names
        )

    files = sorted(plan.files, key=lambda base: base.requested_time)
    if not files or (fits(files[0]) and not relabelled):
        return frozenset(files)
    fitting = world.executor.map(fits, files)
    return frozenset(base for base, fit in zip(files, fitting, strict=True) if fit)

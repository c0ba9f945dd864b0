"""
The read-only Python data source of Spark 4, for reads that bypass the session's reader.

Streams (``readStream``) and SQL's ``CREATE TEMPORARY VIEW v USING hoodoo OPTIONS (path ...)``
use it. All other reads and writes use ``hoodoo.spark.install``, which can prune columns and
shuffle rows. Spark calls these objects in short-lived processes, so they contain plain values
only and open the table in each process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from filegroups.reading.cdc import MOVES_ROWS
from filegroups.settings.read_settings import ReadSettings
from filegroups.writing.write_request import RowCounts
from hoodoo.catalog import open_table
from hoodoo.spark.leases import PinnedBatch, PinnedTask
from hoodoo.spark.options import layers_without_session, path_of
from hoodoo.spark.read import (
    SparkCdcPlan,
    SparkReadPlan,
    arrow_shape,
    plan_changes,
    plan_load,
)
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.slices import ReadSlices
from hoodoo.table import Table
from timeline.errors import InvalidInputError
from timeline.model.instant_time import EARLIEST
from timeline.model.time_arguments import parse_range
from timeline.properties.options import CODE_LAYER, PropertySet
from timeline.properties.setting_enums import QueryType
from timeline.snapshot import completion_order

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2, which has no limits of micro-batches
    ReadAllAvailable = ReadMaxRows = SupportsTriggerAvailableNow = object

HAS_READ_LIMITS = ReadAllAvailable is not object

_OFFSET = "completion_time"
_LATEST = "latest"  # the start of a stream whose first batch has no rows; Spark keeps its end
_QUERY = "hoodie.datasource.query.type"
_BEGIN = "hoodie.datasource.read.begin.instanttime"
_END = "hoodie.datasource.read.end.instanttime"


class HoodooDataSource(DataSource):
    """The format ``hoodoo`` in Spark's data source registry."""

    @classmethod
    def name(cls) -> str:
        return "hoodoo"

    def schema(self) -> Any:
        with _opened(self.options, warns=True) as table:
            given = table.properties
            if _is_cdc(given):  # of a stream, since other reads of changes are refused
                none = given.with_layer(CODE_LAYER, {_BEGIN: _newest(table)})
                return plan_changes(table, ReadSettings.of_stream(none)).shape
            if _is_range(given):  # a stream needs no begin
                given = given.with_layer(CODE_LAYER, {_QUERY: QueryType.SNAPSHOT.value})
            return spark_schema_of(plan_load(table, given).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return HoodooDataSourceReader(dict(self.options), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return HoodooStreamSource(dict(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:  # noqa: ARG002, FBT001 - Spark's
        raise InvalidInputError(
            "this session cannot write: call hoodoo.spark.install(spark), then use "
            "df.write.format('hoodoo').save(path)",
            kind="unsupported_spark_call",
        )


class _HudiDataSource(HoodooDataSource):
    """The same source under Hudi's short name, if no Hudi bundle has that name."""

    @classmethod
    def name(cls) -> str:
        return "hudi"


class _HudiClassDataSource(HoodooDataSource):
    """The same source under the name of Hudi's package."""

    @classmethod
    def name(cls) -> str:
        return "org.apache.hudi"


HUDI_SOURCES = (_HudiDataSource, _HudiClassDataSource)


class _PlannedFiles:
    """Planned files as partitions; each partition's rows as batches of the requested columns."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self._options = dict(options)
        self._schema = schema

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:  # a table without files
            return
        work, one, moment = partition.value
        with self._pin_while_read(moment):
            yield from work.rows(one)

    def _pin_while_read(self, moment: str) -> AbstractContextManager[object]:
        return PinnedTask(partial(_opened, self._options), moment)

    def _slices(self, found: SparkReadPlan) -> list[InputPartition]:
        work = ReadSlices(
            address=found.address,
            packs=(),
            read=found.plan.read,
            shape=arrow_shape(self._schema),
        )
        moment = found.lease.newest
        return [InputPartition((work, one, moment)) for one in found.plan.slices]


class HoodooDataSourceReader(_PlannedFiles, DataSourceReader):
    """A read of the newest snapshot, of an earlier one or of a range."""

    def partitions(self) -> list[InputPartition]:
        with _opened(self._options) as table:
            return self._slices(plan_load(table, table.properties))


class HoodooStreamSource(_PlannedFiles, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    A stream of changed rows, or of changes with their images.

    Its offsets are completion times, so no row arrives twice. Spark keeps this object in one
    process for as long as the stream runs. So the object pins the files of a micro-batch until
    Spark requests the next one (RDL-1).
    """

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        super().__init__(options, schema)
        self.held: PinnedBatch | None = None
        self._target: str | None = None  # the end of a query that reads what is available now
        self._newest: str | None = None  # at the last request of an offset

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks: options and schema, because a task pins no files."""
        return {**self.__dict__, "held": None}

    def _pin_while_read(self, moment: str) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()  # the stream's process pins the batch

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        with _opened(self._options) as table:
            return {_OFFSET: _begin_of(table)}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        with _opened(self._options) as table:
            settings = ReadSettings.of_stream(table.properties)
        # Spark passes it back, or ReadAllAvailable if the trigger has no limit.
        if not settings.has_stream_limit:
            return ReadAllAvailable()
        return ReadMaxRows(settings.stream_rows_max or sys.maxsize)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with _opened(self._options) as table:
            self._target = _newest(table)

    def latestOffset(self, *start_and_limit: Any) -> dict[str, str]:  # noqa: N802
        # Spark 4.2 and later pass the stream's position and a limit.
        self._let_go()  # Spark calls this only after the batch before is done
        with _opened(self._options) as table:
            self._newest = _newest(table)
            end = self._target or self._newest
            if not start_and_limit:
                begin = _begin_of(table)
                return {_OFFSET: end if begin == _LATEST else max(end, begin)}
            start, limit = start_and_limit[0][_OFFSET], start_and_limit[1]
            if start == _LATEST:
                return {_OFFSET: end}
            if not isinstance(limit, ReadAllAvailable):
                end = _limited(table, start, end)
            return {_OFFSET: max(end, start)}

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        return None if self._newest is None else {_OFFSET: self._newest}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        if start[_OFFSET] == _LATEST or start[_OFFSET] >= end[_OFFSET]:
            return []
        self._let_go()
        wanted = {_BEGIN: start[_OFFSET], _END: end[_OFFSET]}
        table = _opened({**self._options, **wanted})
        try:
            settings = ReadSettings.of_stream(table.properties)
            if settings.is_cdc:
                changes = plan_changes(table, settings)
                found, lease = _units(changes), changes.lease
            else:
                plan = plan_load(
                    table,
                    table.properties.with_layer(CODE_LAYER, {_QUERY: QueryType.INCREMENTAL.value}),
                )
                found, lease = self._slices(plan), plan.lease
            self.held = PinnedBatch(table, lease)
        except BaseException:
            table.close()
            raise
        return found

    def commit(self, end: dict[str, str]) -> None:  # noqa: ARG002 - Spark's
        """Release the files of the finished batch; Spark's checkpoint keeps the offset."""
        self._let_go()

    def stop(self) -> None:
        """Release the files when the stream ends."""
        self._let_go()

    def _let_go(self) -> None:
        held, self.held = self.held, None
        if held is not None:
            held.end()


def _units(changes: SparkCdcPlan) -> list[InputPartition]:
    work, moment = changes.work(()), changes.lease.newest
    return [InputPartition((work, unit, moment)) for unit in changes.units]


def _begin_of(table: Table) -> str:
    """Return where a stream begins; the begin of a range beats ``startOffset``."""
    begin = ReadSettings.of_stream(table.properties).begin_time or EARLIEST
    # offsets are compared as texts
    return _LATEST if begin.lower() == _LATEST else parse_range(begin, None, table.context.zone)[0]


def _newest(table: Table) -> str:
    return table.snapshot.newest_completion or EARLIEST


def _limited(table: Table, start: str, end: str) -> str:
    """
    Return the end of the next micro-batch, after ``start`` and at most ``end``.

    Archived commits do not count: the batch of the first active commit has them, too. Services that
    only move rows do not count either. Outside: 1 get for each commit of the batch.
    """
    settings = ReadSettings.of_stream(table.properties)
    instants_max = settings.stream_instants_max or sys.maxsize
    rows_max = settings.stream_rows_max or sys.maxsize
    instants = rows = 0
    last = end
    writes = sorted(table.snapshot.writes_between(start, end), key=completion_order)
    for write in writes:
        metadata = table.snapshot.commits.read(write)
        if metadata.operation_type not in MOVES_ROWS:
            counts = RowCounts.of(metadata)
            instants += 1
            rows += counts.inserted + counts.updated + counts.deleted
            if instants > instants_max or (instants > 1 and rows > rows_max):
                return last
        last = write.completion_time or end
    return end


def _is_range(properties: PropertySet) -> bool:
    query = properties.get_option(ReadSettings.options["query_type"]) or ""
    return query.strip().lower() == QueryType.INCREMENTAL.value


def _is_cdc(properties: PropertySet) -> bool:
    return _is_range(properties) and ReadSettings.of_stream(properties).is_cdc


def _opened(options: Mapping[str, str], *, warns: bool = False) -> Table:
    path = path_of(None, options, "the option path")
    return open_table(path, properties=layers_without_session(options, warns=warns))

"""
The read-only Python data source of Spark 4, for reads that bypass the session's reader.

Streams (``readStream``) and SQL's ``CREATE TEMPORARY VIEW v USING hoodoo OPTIONS (path ...)``
use it. All other reads and writes use ``hoodoo.spark.install``, which can prune columns and
shuffle rows. Spark calls these objects in short-lived processes, so they contain plain values
only and open the table in each process.
"""

from __future__ import annotations

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

from filegroups.settings.read_settings import ReadSettings
from hoodoo.catalog import open_table
from hoodoo.spark.options import layers_without_session, path_of
from hoodoo.spark.read import (
    PinnedBatch,
    PinnedTask,
    SparkReadPlan,
    arrow_shape,
    plan_load,
)
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.slices import ReadSlices
from hoodoo.table import Table
from timeline.errors import InvalidInputError
from timeline.model.instant import EARLIEST
from timeline.model.time_arguments import parse_range

_OFFSET = "completion_time"
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
            return spark_schema_of(plan_load(table, table.properties).schema)

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

    def _planned(self, more: Mapping[str, str]) -> list[InputPartition]:
        with _opened({**self._options, **more}) as table:
            return _partitions(plan_load(table, table.properties))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:  # a table without files
            return
        address, one, read, moment = partition.value
        shape = arrow_shape(self._schema)
        work = ReadSlices(address=address, packs=((one,),), read=read, shape=shape)
        with self._pin_while_read(moment):
            yield from work.rows(one)

    def _pin_while_read(self, moment: str) -> AbstractContextManager[object]:
        return PinnedTask(partial(_opened, self._options), moment)


class HoodooDataSourceReader(_PlannedFiles, DataSourceReader):
    """A read of the newest snapshot, of an earlier one or of a range."""

    def partitions(self) -> list[InputPartition]:
        return self._planned({})


class HoodooStreamSource(_PlannedFiles, DataSourceStreamReader):
    """
    A stream of changed rows; its offsets are completion times, so no row arrives twice.

    Spark keeps this object in one process for as long as the stream runs. So the object pins the
    files of a micro-batch until Spark requests the next one (RDL-1).
    """

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        super().__init__(options, schema)
        self.held: PinnedBatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks: options and schema, because a task pins no files."""
        return {**self.__dict__, "held": None}

    def _pin_while_read(self, moment: str) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()  # the stream's process pins the batch

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        with _opened(self._options) as table:
            return {_OFFSET: _begin_of(table) or _newest(table)}

    def latestOffset(self, *_start_and_limit: Any) -> dict[str, str]:  # noqa: N802
        # Spark 4.2 and later pass the stream's position and a limit.
        self._let_go()  # Spark calls this only after the batch before is done
        with _opened(self._options) as table:
            return {_OFFSET: max(_newest(table), _begin_of(table) or EARLIEST)}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        if start[_OFFSET] >= end[_OFFSET]:
            return []
        self._let_go()
        wanted = {_QUERY: "incremental", _BEGIN: start[_OFFSET], _END: end[_OFFSET]}
        table = _opened({**self._options, **wanted})
        try:
            found = plan_load(table, table.properties)
            self.held = PinnedBatch(table, found.lease)
        except BaseException:
            table.close()
            raise
        return _partitions(found)

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


def _partitions(found: SparkReadPlan) -> list[InputPartition]:
    moment = found.lease.newest
    return [
        InputPartition((found.address, one, found.plan.read, moment)) for one in found.plan.slices
    ]


def _begin_of(table: Table) -> str | None:
    """Return where a stream begins, None for now; the begin of a range beats ``startOffset``."""
    settings = ReadSettings.from_properties(table.properties)
    begin = settings.begin_time or settings.start_offset
    # offsets are compared as texts
    return None if begin.lower() == "latest" else parse_range(begin, None, table.context.zone)[0]


def _newest(table: Table) -> str:
    done = table.snapshot.active.completed_writes
    return max((each.completion_time or EARLIEST for each in done), default=EARLIEST)


def _opened(options: Mapping[str, str], *, warns: bool = False) -> Table:
    path = path_of(None, options, "the option path")
    return open_table(path, properties=layers_without_session(options, warns=warns))

"""
The Python data source of Spark 4: read-only, for what goes around the session's reader.

SQL's ``CREATE TEMPORARY VIEW v USING hoodoo OPTIONS (path ...)`` reaches it. Everything else
is better served by ``hoodoo.spark.install``, which can prune columns and shuffle rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from hoodoo.assembly import Layers
from hoodoo.spark.loading import plan_load
from hoodoo.spark.options import path_of, without_reader_words
from hoodoo.spark.saving import storage_options
from hoodoo.spark.schemas import spark_schema_of
from hoodoo.spark.tasks import StorageAddress
from hoodoo.table import Table
from timeline.errors import InvalidInputError
from timeline.files.parquet import read_batches

__all__ = ["HoodooDataSource"]


class HoodooDataSource(DataSource):
    """Format ``hoodoo`` for Spark's own data source registry."""

    @classmethod
    def name(cls) -> str:
        return "hoodoo"

    def schema(self) -> Any:
        with self._open() as table:
            return spark_schema_of(plan_load(table, table.properties).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        with self._open() as table:
            found = plan_load(table, table.properties)
            address = StorageAddress(
                base_uri=table.core.context.world.storage.base_uri,
                options=tuple(storage_options(table).items()),
            )
        prefix = address.base_uri + "/"
        paths = [path.removeprefix(prefix) for path in found.paths]
        return HoodooDataSourceReader(address, paths, found.schema, found.times, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:  # noqa: ARG002, FBT001 - Spark's
        raise InvalidInputError(
            "writing needs hoodoo.spark.install(spark) and df.write.format('hoodoo').save(path)",
            kind="unsupported_spark_call",
        )

    def _open(self) -> Table:
        options = dict(self.options)
        path = path_of(None, options, "the option path")
        return Table.open(path, Layers(code=without_reader_words(options)))


class HoodooDataSourceReader(DataSourceReader):
    """Reads planned files, one partition each."""

    def __init__(
        self,
        address: StorageAddress,
        paths: Sequence[str],
        file_schema: pa.Schema,
        times: Sequence[str] | None,
        schema: Any,
    ) -> None:
        self._address = address
        self._paths = tuple(paths)
        self._file_schema = file_schema
        self._times = times
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(path) for path in self._paths]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:  # a table without files
            return
        zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
        shape = to_arrow_schema(self._schema, **zone)
        condition = None
        if self._times is not None:
            condition = pc.field("_hoodie_commit_time").isin(list(self._times))
        for batch in read_batches(
            self._address.open(),
            partition.value,
            schema=self._file_schema,
            columns=shape.names,
            row_filter=condition,
        ):
            yield batch.cast(shape)

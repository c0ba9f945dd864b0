"""The Spark table, whose writes and services run on the cluster: ``hoodoo.spark.table()``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.merge.merging import RELOCATED_COLUMN
from filegroups.schema.schema import TableSchema
from filegroups.table import TableSnapshot
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write_request import CommitResult
from hoodoo.catalog import open_with_warnings
from hoodoo.configuration import Layers
from hoodoo.services import Services
from hoodoo.spark.error_transport import collect_dataframe, error_from_rows
from hoodoo.spark.executor import spark_executor
from hoodoo.spark.few_rows import collect_few
from hoodoo.spark.options import layers_for, storage_properties
from hoodoo.spark.read import load_dataframe, load_state
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.tasks import ERROR, NAMED_PARTITIONS, PARTITION, NamePartitions
from hoodoo.spark.workload import SparkWorkload
from hoodoo.table import Table
from hoodoo.write_requests import write_request_of
from tableservices.worker import WorkerSettings
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteOperation
from timeline.ports.ports import Ports
from timeline.reader_lease import ReaderLease, lease_newest
from timeline.snapshot import Snapshot


class SparkSnapshot(TableSnapshot):
    """A pinned snapshot of a table: each read returns the same rows until ``release``."""

    def __init__(self, table: SparkTable, snapshot: Snapshot, lease: ReaderLease) -> None:
        super().__init__(table.context, snapshot, lease)
        self._table = table

    def to_df(self) -> Any:
        """Return the rows as a DataFrame; read it only while the snapshot is pinned."""
        return load_state(self._table.spark, self._table.path, self._table, self)


class SparkTable(Table):
    """
    An opened table over Spark: a ``Table`` that writes DataFrames.

    Reads into Arrow run in this process; ``to_df`` reads on the cluster.

    Args:
        spark: The session.
        path: The table's path.
        options: Values by Hudi's option keys.
        layers: All properties of the caller, instead of the session's and ``options``.

    Raises:
        TableNotFoundError: There is no table at the path.
        SettingError: An option is wrong or contradicts the table.
    """

    def __init__(
        self,
        spark: Any,
        path: str,
        options: Mapping[str, object] | None = None,
        *,
        layers: Layers | None = None,
    ) -> None:
        self.spark = spark
        self.path = path
        self._options = dict(options or {})
        self._cluster_services: Services | None = None
        super().__init__(*open_with_warnings(path, layers or layers_for(spark, self._options)))

    @property
    def services(self) -> Services:
        """The table services, which work on file groups in the cluster."""
        if self._cluster_services is None:
            mine, properties = self._context, self._properties
            most = WorkerSettings.from_properties(properties).file_groups_max
            executor = spark_executor(self.spark, mine.ports, properties, tasks_max=most)
            context = TableContext.of(
                replace(mine.ports, executor=executor), mine.config, mine.limits
            )
            self._cluster_services = Services(
                context, properties, self._settings, self._register_writer
            )
        return self._cluster_services

    def to_df(self, **options: object) -> Any:
        """Return the table as a DataFrame; ``options`` are those of the reader."""
        given = {**self._options, **options}
        return load_dataframe(self.spark, [self.path], given, warns=bool(options))

    def pin(self) -> SparkSnapshot:
        """
        Pin the newest snapshot: ``with table.pin() as state: ...``.

        Raises:
            SnapshotExpiredError: Each attempt lost its files to a clean.
        """
        self._refuse_reads()
        return SparkSnapshot(self, *lease_newest(self._context))

    def close(self) -> None:
        """End services on threads, leave the writer registry and close connections."""
        failures = () if self._cluster_services is None else self._cluster_services.close()
        super().close()
        for failure in failures:
            warnings.warn(failure, stacklevel=2)

    def _write(
        self, operation: WriteOperation, data: object, batch_id: str | None, **more: Any
    ) -> CommitResult:
        self._writer.begin()  # refuses an impossible write before Spark computes its rows
        return super()._write(operation, data, batch_id, **more)

    def _workload(self, data: object) -> Workload:
        if isinstance(data, SparkWorkload):  # made before the table existed
            return data
        if not isinstance(data, DataFrame):
            return super()._workload(data)
        rows = collect_few(data, self._settings.driver_write_bytes_max)
        if rows is not None:
            return local_workload(self._context.ports, rows)
        return SparkWorkload(
            self._context.ports,
            data,
            storage_options=storage_properties(self._properties),
            shuffle_tasks=self._settings.shuffle_tasks,
            bulk_insert_tasks=self._settings.bulk_insert_tasks,
        )

    def _partitions_to_delete(self, data: object) -> tuple[str, ...]:
        return self._settings.partitions_to_delete or _partitions_in(self, data)


def local_workload(ports: Ports, rows: pa.Table) -> LocalWorkload:
    """Return collected rows as a workload; a column of a statement's changes marks deletes."""
    if RELOCATED_COLUMN not in rows.schema.names:
        return LocalWorkload(ports, rows)
    deleted = rows.column(RELOCATED_COLUMN)
    return LocalWorkload(ports, rows.drop_columns([RELOCATED_COLUMN]), deleted)


def _partitions_in(table: Table, df: Any) -> tuple[str, ...]:
    """Return the partitions of the rows' partition columns, as the tasks of a write do."""
    spec = write_request_of(
        table.settings, table.config, WriteOperation.DELETE_PARTITION
    ).rules.keys
    wanted = {part for name in spec.partition_fields for part in (name, name.partition(".")[0])}
    columns = [F.col(f"`{name}`") for name in df.columns if name in wanted]
    context = table.context
    schema_json = context.snapshot().newest_schema_json or context.config.create_schema_json
    own = TableSchema.from_avro(schema_json).arrow if schema_json else pa.schema([])
    work = NamePartitions(keys=spec, schema=own)
    shape = spark_schema_of(NAMED_PARTITIONS)
    named = collect_dataframe(df.select(*columns or df.columns).mapInArrow(work, shape).distinct())
    failed = [row[ERROR] for row in named if row[ERROR] is not None]
    if failed:
        raise error_from_rows(failed)
    return tuple(sorted(row[PARTITION] for row in named))

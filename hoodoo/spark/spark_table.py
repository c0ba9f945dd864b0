"""The Spark table, whose writes and services run on the cluster: ``hoodoo.spark.table()``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.reading.read_set import ReadSet
from filegroups.schema.schema import TableSchema
from filegroups.table import TableSnapshot
from filegroups.writing.merge_clauses import SOURCE, TARGET
from filegroups.writing.workload import Workload
from filegroups.writing.write_request import CommitResult
from hoodoo.arguments import no_filter
from hoodoo.catalog import open_with_warnings
from hoodoo.configuration import Layers
from hoodoo.row_changes import Merge, key_columns_of_merge, no_match_columns
from hoodoo.services import Services
from hoodoo.spark.error_transport import collect_dataframe, error_from_rows
from hoodoo.spark.executor import spark_executor
from hoodoo.spark.few_rows import collect_few, local_workload
from hoodoo.spark.options import layers_for, storage_properties
from hoodoo.spark.read import load_dataframe, load_state
from hoodoo.spark.row_changes import SparkMergeRun, SparkStatement
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.sql.catalyst import part_of
from hoodoo.spark.sql.declared import Declared, as_declared
from hoodoo.spark.tasks import ERROR, NAMED_PARTITIONS, PARTITION, NamePartitions
from hoodoo.spark.workload import SparkWorkload
from hoodoo.table import Table
from hoodoo.write_requests import write_request_of
from tableservices.worker import WorkerSettings
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteOperation
from timeline.properties.setting_enums import InsertDuplicates
from timeline.reader_lease import ReaderLease, lease_newest
from timeline.snapshot import Snapshot


class SparkSnapshot(TableSnapshot):
    """A pinned snapshot of a table: each read returns the same rows until ``release``."""

    def __init__(self, table: SparkTable, snapshot: Snapshot, lease: ReaderLease) -> None:
        super().__init__(table.context, snapshot, lease)
        self._table = table

    def to_df(self) -> Any:
        """Return the rows as a DataFrame; read it only while the snapshot is pinned."""
        rows = load_state(self._table.spark, self._table.path, self._table, self)
        return as_declared(rows, self._table.declared)


class SparkTable(Table):
    """
    An opened table over Spark: a ``Table`` that writes DataFrames.

    Reads into Arrow run in this process; ``to_df`` reads on the cluster.

    Args:
        spark: The session.
        path: The table's path.
        options: Values by Hudi's option keys.
        layers: All properties of the caller, instead of the session's and ``options``.
        declared: What Spark's catalog keeps of its columns.

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
        declared: Declared | None = None,
    ) -> None:
        self.spark = spark
        self.declared = declared or {}
        self.path = path
        self._options = dict(options or {})
        self._cluster_services: Services | None = None
        super().__init__(*open_with_warnings(path, layers or layers_for(spark, self._options)))

    @property
    def services(self) -> Services:
        """The table services, which work on file groups in the cluster, or on few in this process."""
        if self._cluster_services is None:
            mine, properties = self._context, self._properties
            most = WorkerSettings.from_properties(properties).file_groups_max
            executor = spark_executor(
                self.spark,
                mine.ports,
                properties,
                tasks_max=most,
                local_bytes_max=self._settings.driver_write_bytes_max,
            )
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

    def refuse_known_keys(self) -> None:
        """Refuse known keys in the inserts of this open table, unless its options drop their rows."""
        if self._settings.insert_duplicates is InsertDuplicates.NONE:
            refusing = {"insert_duplicates": InsertDuplicates.FAIL}
            self._settings = self._settings.model_copy(update=refusing)

    def pin(self) -> SparkSnapshot:
        """
        Pin the newest snapshot: ``with table.pin() as state: ...``.

        Raises:
            SnapshotExpiredError: Each attempt lost its files to a clean.
        """
        self._refuse_reads()
        return SparkSnapshot(self, *lease_newest(self._context))

    def update(
        self,
        filter: Any,  # noqa: A002 - the public word
        values: Mapping[str, object],
        partitions: Sequence[str] | None = None,
        *,
        batch_id: str | None = None,
    ) -> CommitResult:
        """
        Set columns of the rows that match a filter, by joins of the cluster.

        Args:
            filter: A text of Spark's SQL or a column; ``"true"`` for all rows.
            values: For each column a text of Spark's SQL, a column, or a literal of another type.
            partitions: Partition paths to search; None for all.
            batch_id: As of ``upsert``.

        Errors: as ``Table.update``.
        """
        if filter is None:
            raise no_filter()
        parts = {name: part_of(self.spark, value) for name, value in values.items()}
        return self._on_spark(WriteOperation.UPSERT, batch_id).update(
            parts, part_of(self.spark, filter), partitions
        )

    def delete(
        self,
        filter: object = None,  # noqa: A002
        partitions: Sequence[str] | None = None,
        *,
        keys: object = None,
        batch_id: str | None = None,
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """
        Delete the rows that match a filter, or those of some keys. Errors: as ``Table.delete``.

        Args:
            filter: A text of Spark's SQL or a column; a DataFrame of keys is the same as ``keys``.
            partitions: As of ``update``.
            keys: A DataFrame, or rows in any form of ``upsert``.
            batch_id: As of ``upsert``.
            reads: With keys: as of ``upsert``.
        """
        if not isinstance(filter, str | Column) or keys is not None or reads is not None:
            return super().delete(filter, partitions, keys=keys, batch_id=batch_id, reads=reads)
        return self._on_spark(WriteOperation.DELETE, batch_id).delete(
            part_of(self.spark, filter), partitions
        )

    def merge(self, source: object, on: Any = None) -> Merge:
        """
        Return a merge of a DataFrame into the table: add its clauses, then ``execute``.

        Conditions and values are texts of Spark's SQL, or columns; they name columns as
        ``target.x`` and ``source.x``. Rows of other forms are merged as by ``Table.merge``.

        Args:
            source: The rows.
            on: Columns that are equal in rows that match, a condition as a text or a column; None
                as of ``Table.merge``.

        Errors: as ``Table.merge``.
        """
        if not isinstance(source, DataFrame):
            return super().merge(source, on)

        def matching() -> Any:
            names = on
            if names is None:
                plan = write_request_of(self._settings, self.config, WriteOperation.UPSERT)
                whole = plan.rules.lookup.whole_table
                names = key_columns_of_merge(self.config, whole_table=whole)
            if isinstance(names, str) and names.isidentifier():
                names = [names]
            if isinstance(names, list | tuple):
                names = " AND ".join(f"{TARGET}.{one} = {SOURCE}.{one}" for one in names)
            if not isinstance(names, Column) and not names:
                raise no_match_columns()
            return part_of(self.spark, names)

        def run(batch_id: str | None) -> SparkMergeRun:
            return SparkMergeRun(self._on_spark(WriteOperation.UPSERT, batch_id))

        return Merge(source, run, matching)

    def _on_spark(self, operation: WriteOperation, batch_id: str | None) -> SparkStatement:
        statement = self._statement(operation, batch_id)
        return SparkStatement(table=self, statement=statement, alias=TARGET)

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

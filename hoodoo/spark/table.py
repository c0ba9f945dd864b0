"""A table whose writes run on the cluster: ``hoodoo.spark.table(spark, path)``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from filegroups.reading.read import Filter, ReadSet
from filegroups.writing.write import CommitResult
from hoodoo.services import Services
from hoodoo.spark.executor import spark_executor
from hoodoo.spark.options import layers_for
from hoodoo.spark.read import load_dataframe, load_state
from hoodoo.spark.write import write_dataframe
from hoodoo.table import Table
from tableservices.worker import WorkerSettings
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteOperation

__all__ = ["PinnedState", "SparkTable"]


class PinnedState:
    """One state of a table, held: it reads the same until ``release``, and writes are made from it."""

    def __init__(self, spark: Any, path: str, table: Table) -> None:
        self._spark = spark
        self._path = path
        self._table = table
        self._state = table.hold()

    def to_df(self) -> Any:
        """Its rows as a DataFrame, to be read while the state is held."""
        return load_state(self._spark, self._path, self._table, self._state)

    def reads(
        self,
        *,
        partitions: Iterable[str] | None = None,
        filter: Filter = None,  # noqa: A002
    ) -> ReadSet:
        """What was read of it, for a write that is made from it; as ``TableSnapshot.reads``."""
        return self._state.reads(partitions=partitions, filter=filter)

    def release(self) -> None:
        """Give the lease up; calling twice is no error."""
        self._state.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class SparkTable:
    """
    An opened table over Spark.

    Args:
        spark: The session.
        path: The table's address.
        options: Hudi's option keys.
    """

    def __init__(self, spark: Any, path: str, options: Mapping[str, object] | None = None) -> None:
        self._spark = spark
        self._path = path
        self._options = dict(options or {})
        self._table = Table.open(path, layers_for(spark, self._options))
        self._services: tuple[TableContext, Services] | None = None

    @property
    def local(self) -> Table:
        """The same table over the local executor: timeline, services, small reads."""
        return self._table

    @property
    def services(self) -> Services:
        """Upkeep, with the work on file groups done by the cluster."""
        core = self._table.core.context
        if self._services is not None and self._services[0] is core:
            return self._services[1]
        most = WorkerSettings.from_properties(self._table.properties).file_groups_max
        executor = spark_executor(self._spark, core.world, self._table.properties, tasks_max=most)
        context = TableContext.of(replace(core.world, executor=executor), core.config, core.limits)
        made = Services(
            context, self._table.properties, self._table.settings, self._table.join_writers
        )
        self._services = core, made
        return made

    def to_df(self, **options: object) -> Any:
        """The table as a DataFrame; ``options`` are those of the reader."""
        told = {**self._options, **options}
        return load_dataframe(self._spark, self._path, told, tells=bool(options))

    def hold(self) -> PinnedState:
        """
        The table as it is now, kept from cleaning: ``with table.hold() as state: ...``.

        Raises:
            SnapshotExpiredError: Cleaning was faster again and again.
        """
        return PinnedState(self._spark, self._path, self._table)

    def upsert(
        self, df: Any, *, batch_id: str | None = None, reads: ReadSet | None = None
    ) -> CommitResult:
        """Replace rows by key, insert what is new. Arguments, errors: ``hoodoo.Table.upsert``."""
        return self._write(df, WriteOperation.UPSERT, batch_id, reads)

    def merge(
        self, df: Any, *, batch_id: str | None = None, reads: ReadSet | None = None
    ) -> CommitResult:
        """Merge by record key; this release has the one form that equals ``upsert``."""
        return self.upsert(df, batch_id=batch_id, reads=reads)

    def insert(
        self, df: Any, *, batch_id: str | None = None, reads: ReadSet | None = None
    ) -> CommitResult:
        """Append rows without looking keys up. Errors: as ``hoodoo.Table.insert``."""
        return self._write(df, WriteOperation.INSERT, batch_id, reads)

    def delete(
        self, df: Any, *, batch_id: str | None = None, reads: ReadSet | None = None
    ) -> CommitResult:
        """Delete by key; ``df`` has the record key and partition columns."""
        return self._write(df, WriteOperation.DELETE, batch_id, reads)

    def insert_overwrite(self, df: Any) -> CommitResult:
        """Replace every partition the rows belong to."""
        return write_dataframe(self._table, df, WriteOperation.INSERT_OVERWRITE)

    def insert_overwrite_table(self, df: Any) -> CommitResult:
        """Replace the whole table."""
        return write_dataframe(self._table, df, WriteOperation.INSERT_OVERWRITE_TABLE)

    def _write(
        self, df: Any, operation: WriteOperation, batch_id: str | None, reads: ReadSet | None
    ) -> CommitResult:
        return write_dataframe(self._table, df, operation, batch_id=batch_id, reads=reads)

    def close(self) -> None:
        """End services on threads, leave the writer registry and give up connections."""
        failures = self._services[1].close() if self._services is not None else ()
        self._table.close()
        for failure in failures:
            warnings.warn(failure, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

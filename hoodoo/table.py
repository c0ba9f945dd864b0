"""
The table a user holds: reads as Arrow, writes anything that is a table of rows.

Thin: options in, paths of ``timeline`` called, receipts out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from hoodoo.assembly import (
    Layers,
    agreement_of,
    assemble,
    bucket_rules,
    check_against_table,
    limits_of,
    operation_of,
    plan_of,
    properties_of_table,
)
from hoodoo.incoming import as_arrow
from hoodoo.services import Services
from lockproviders.registry import ProviderRegistry, registry_for
from tableservices.restoring.restore import RestoreReceipt, finish_restore, restore
from tableservices.restoring.rollback import RollbackReceipt, rollback
from tableservices.restoring.savepoints import Savepoint, delete_savepoint, savepoint, savepoints
from timeline.errors import InvalidInputError, StorageCapabilityError
from timeline.index.adoption import adopt_buckets, keeps_buckets
from timeline.local_workload import LocalWorkload
from timeline.model.file_group import FileSlice
from timeline.model.operations import WriteOperation
from timeline.model.table_config import TableConfig
from timeline.options import PropertySet
from timeline.point_lookup import plan_look_up
from timeline.ports.events import EventSink
from timeline.read import Filter
from timeline.settings import FailedWritesPolicy, ForeignWriters, WriteSettings
from timeline.table import Table as CoreTable
from timeline.table import TableSnapshot, TimelineEntry, collect, refuse_unwritable
from timeline.unsupported import refuse_unsupported
from timeline.workload import Workload
from timeline.write import Receipt

__all__ = ["Table"]


class Table:
    """
    An opened Hudi table. Make it by ``hoodoo.create_table`` or ``hoodoo.open_table``.

    Not tied to a transaction: every read shows the newest state unless pinned by ``as_of``.
    """

    def __init__(self, core: CoreTable, properties: PropertySet, settings: WriteSettings) -> None:
        self._core = core
        self._properties = properties
        self._settings = settings
        self._buckets_kept = False
        self._services = Services(core.context, properties, settings, self.join_writers)
        self._supported = False

    @classmethod
    def open(
        cls,
        address: str | os.PathLike[str],
        layers: Layers | None = None,
        *,
        events: EventSink | None = None,
    ) -> Table:
        """
        Open over the local executor.

        Raises:
            TableNotFoundError, CorruptTableError, UnsupportedTableError: See ``open_table``.
            SettingError: A property is wrong or contradicts the table.
        """
        chosen = layers or Layers()
        properties, settings = properties_of_table(address, chosen)
        world = assemble(address, properties, events=events)
        core = CoreTable.open(world, limits_of(settings))
        check_against_table(settings, core.config)
        return cls(core, properties, settings)

    # ---- what it is

    @property
    def core(self) -> CoreTable:
        """The engine's table, for services and further executors."""
        return self._core

    @property
    def config(self) -> TableConfig:
        """The table's own configuration."""
        return self._core.config

    @property
    def properties(self) -> PropertySet:
        """Every effective property with its layer."""
        return self._properties

    @property
    def settings(self) -> WriteSettings:
        """The typed settings of writes."""
        return self._settings

    @property
    def schema(self) -> pa.Schema:
        """Columns, without the meta columns."""
        return self._core.schema

    @property
    def timeline(self) -> list[TimelineEntry]:
        """Every instant, active and archived, ascending by requested time."""
        return self._core.timeline()

    def file_slices(self, as_of: str | None = None) -> list[FileSlice]:
        """The newest slice of each file group, now or as of a time."""
        return (self._core.as_of(as_of) if as_of else self._core).file_slices()

    @property
    def services(self) -> Services:
        """Upkeep: cleaning, rollback of dead writers."""
        return self._services

    # ---- reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002 - the public word
        partitions: Sequence[str] | None = None,
        *,
        query_type: str = "snapshot",
    ) -> pa.RecordBatchReader:
        """
        Stream the newest state.

        Args:
            columns: Names to return; None for all.
            filter: A pyarrow expression or ``(column, operator, value)`` triples.
            partitions: Partition paths to read; None for all.
            query_type: ``read_optimized`` reads base files only, as of their last compaction.
        """
        return self._core.pin().scan(
            columns=columns, filter=filter, partitions=partitions, query_type=query_type
        )

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Sequence[str] | None = None,
        *,
        query_type: str = "snapshot",
    ) -> pa.Table:
        """The same rows in one Arrow table, files read side by side."""
        return self._core.pin().to_arrow(
            columns=columns, filter=filter, partitions=partitions, query_type=query_type
        )

    def look_up(
        self,
        keys: Sequence[str],
        columns: Sequence[str] | None = None,
        partitions: Sequence[str] | None = None,
    ) -> pa.Table:
        """
        The rows of some record keys, read from the file groups that may hold them.

        Args:
            keys: Record keys as stored in ``_hoodie_record_key``: the value, or
                ``field:value,field:value`` for keys of several fields.
            columns: Names to return; None for all.
            partitions: Partition paths to look in; None for all.
        """
        pinned = self._core.pin()
        plan = plan_look_up(
            self._core.context,
            pinned.snapshot,
            pinned.file_slices(partitions),
            keys,
            columns=columns,
        )
        return collect(self._core.context, plan)

    def as_of(self, time: str) -> TableSnapshot:
        """
        The table as of a time; immutable.

        Raises:
            InvalidInputError: Not a time.
            InstantNotFoundError: Too old, cleaned or not settled yet.
        """
        return self._core.as_of(time)

    def changes(
        self,
        since: str,
        until: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        images: bool = False,
    ) -> pa.RecordBatchReader:
        """
        Rows last written by instants that completed in (since, until].

        With ``images`` every change on the way instead, in the order of completion: ``op``
        (``i``, ``u``, ``d``), ``ts_ms`` (requested time of the instant) and the row ``before``
        and ``after``. Tables with and without change logs (``hoodie.table.cdc.enabled``) tell
        it alike, as long as the files of the range are there.

        Raises:
            InvalidInputError: Not a time, or an unknown column.
            InstantNotFoundError: Images need a file that was cleaned (``changes_cleaned``).
        """
        return self._core.changes(since, until, columns=columns, images=images)

    # ---- writing

    def upsert(
        self, data: object, *, batch_id: str | None = None, partial: bool = False
    ) -> Receipt:
        """
        Replace rows by key, insert what is new; or change some columns of rows that are there.

        Args:
            data: Rows; see ``hoodoo.incoming.as_arrow``.
            batch_id: Makes a repeated call return the first receipt (BATCH-1).
            partial: Records keep the columns that the rows lack. Rows bring key, partition and
                ordering fields and the columns to change. A merge-on-read table gets log
                blocks of those columns alone, as from Java's ``MERGE INTO``.

        Raises:
            InvalidInputError: The rows do not fit, or a partial one has a key that is not there
                (``partial_new_key``); nothing was changed.
            ConflictError: Refused, with a report of who won.
            OutcomeUnknownError: The storage never answered; do not repeat blindly.
        """
        return self._write(WriteOperation.UPSERT, data, batch_id, partial=partial)

    def insert(self, data: object, *, batch_id: str | None = None) -> Receipt:
        """Append rows; small files are filled. Keys are not looked up. Errors: as ``upsert``."""
        return self._write(WriteOperation.INSERT, data, batch_id)

    def bulk_insert(self, data: object, *, batch_id: str | None = None) -> Receipt:
        """Append rows into new files only. Errors: as ``upsert``."""
        return self._write(WriteOperation.BULK_INSERT, data, batch_id)

    def delete(self, keys: object, *, batch_id: str | None = None) -> Receipt:
        """Delete by key; ``keys`` has the record key and partition columns. Errors: as ``upsert``."""
        return self._write(WriteOperation.DELETE, keys, batch_id)

    def insert_overwrite(self, data: object, *, batch_id: str | None = None) -> Receipt:
        """Replace every partition the rows belong to. Errors: as ``upsert``."""
        return self._write(WriteOperation.INSERT_OVERWRITE, data, batch_id)

    def insert_overwrite_table(self, data: object, *, batch_id: str | None = None) -> Receipt:
        """Replace the whole table. Errors: as ``upsert``."""
        return self._write(WriteOperation.INSERT_OVERWRITE_TABLE, data, batch_id)

    def delete_partitions(self, partitions: Sequence[str]) -> Receipt:
        """
        Delete whole partitions by partition path.

        Raises:
            InvalidInputError: None was named.
            ConflictError: Another instant wrote into one of them meanwhile.
        """
        if not partitions:
            raise InvalidInputError("name at least one partition path", kind="no_partition")
        return self.run(WriteOperation.DELETE_PARTITION, None, delete_partitions=tuple(partitions))

    def write(self, data: object, operation: WriteOperation | None = None) -> Receipt:
        """Write by the configured operation (``hoodie.datasource.write.operation``)."""
        chosen = operation or operation_of(self._settings, self.config.record_key_fields)
        if chosen is WriteOperation.DELETE_PARTITION:
            return self.delete_partitions(self._settings.partitions_to_delete)
        return self._write(chosen, data, None)

    def _write(
        self,
        operation: WriteOperation,
        data: object,
        batch_id: str | None,
        *,
        partial: bool = False,
    ) -> Receipt:
        rows = as_arrow(data)
        workload = LocalWorkload(self._core.context.world, rows)
        try:
            return self.run(operation, workload, batch_id=batch_id, partial=partial)
        finally:
            workload.release()

    def run(
        self,
        operation: WriteOperation,
        workload: Workload | None,
        *,
        batch_id: str | None = None,
        delete_partitions: tuple[str, ...] = (),
        partial: bool = False,
    ) -> Receipt:
        """
        Run a write of rows that lie anywhere (this process, a Spark cluster).

        Raises:
            WriterDisagreementError: A live writer is configured differently.
            TableConfigConflictError: The metadata table is on and was not switched off.
        """
        if self._core.config.metadata_table_on and self._settings.metadata_enable is False:
            self._core = self._core.switch_metadata_table_off()
            self._services = Services(
                self._core.context, self._properties, self._settings, self.join_writers
            )
            self._core.context.world.events.emit(
                "metadata_table.switched_off", table=self._core.config.name
            )
        refuse_unwritable(self._core.config)
        self._core.config.merge.require_known()
        self._refuse_unsupported()
        self._keep_buckets()
        self.join_writers()
        plan = plan_of(
            self._settings,
            self._core.config,
            operation,
            batch_id=batch_id or self._settings.batch_id,
            delete_partitions=delete_partitions,
            partial=partial,
        )
        looked = self._core.context.glance()
        undone = False
        if self._settings.failed_writes_policy is FailedWritesPolicy.EAGER:
            undone = bool(self.services.rollback_dead_writers(looked.active))  # RB-11
        receipt = self._core.write(plan, workload, None if undone else looked)
        outcome = self.services.after_commit()
        for warning in outcome.warnings:
            warnings.warn(warning, stacklevel=2)
        return receipt

    def _refuse_unsupported(self) -> None:
        """Asked by the first write, not by an opening: reading does not need these options."""
        if not self._supported:
            refuse_unsupported(self._properties)
            self._supported = True

    def _keep_buckets(self) -> None:
        """Another engine's table does not say how its buckets are made: held against it once."""
        rules = bucket_rules(self._settings, self._core.config)
        if rules is None or self._buckets_kept or keeps_buckets(self._core.config):
            return
        adopt_buckets(self._core.context, rules)
        self._buckets_kept = True

    # ---- going back

    def savepoint(self, instant: str | None = None, *, comments: str = "") -> Savepoint:
        """
        Keep the state as of a write, whatever cleaning would delete.

        Args:
            instant: The write's requested time; None for the newest completed one.
            comments: Text for people.

        Raises:
            InstantNotFoundError: No such write, or files of that state were cleaned.
            InvalidInputError: It has a savepoint already.
        """
        self.join_writers()
        return savepoint(self._core.context, instant, comments=comments)

    @property
    def savepoints(self) -> list[Savepoint]:
        """The states that are kept."""
        return savepoints(self._core.context)

    def delete_savepoint(self, instant: str) -> None:
        """Give a kept state up. Raises: ``InstantNotFoundError`` where there is none."""
        self.join_writers()
        delete_savepoint(self._core.context, instant)

    def rollback(self, instant: str, *, force: bool = False) -> RollbackReceipt:
        """
        Undo one write for good: a pending one, or the newest completed one.

        Args:
            instant: Its requested time.
            force: Also while the writer of a pending one gives signs of life.

        Raises:
            InstantNotFoundError: No such write, or the state before it was cleaned.
            InvalidInputError: Its writer is alive, a savepoint holds it, or it is needed.
        """
        self.join_writers()
        return rollback(self._core.context, instant, force=force)

    def restore(self, instant: str, *, force: bool = False) -> RestoreReceipt | None:
        """
        Take everything after a write away: the table reads as when that write completed.

        Args:
            instant: Its requested time, of a savepoint or any write that is not cleaned.
            force: Also while writers of what goes give signs of life.

        Returns:
            None when nothing came after it.

        Raises:
            InstantNotFoundError: No such write, or files of that state were cleaned.
            InvalidInputError: A later savepoint holds what would go, or a writer is alive.
        """
        self.join_writers()
        return restore(self._core.context, instant, force=force)

    def finish_restore(self) -> RestoreReceipt | None:
        """
        Carry out the restore that another engine, which has ended, planned and left.

        Returns:
            None when there is none.
        """
        self.join_writers()
        return finish_restore(self._core.context)

    # ---- life

    def join_writers(self) -> None:
        """
        Enter the registry of those who change the table; services do so, too.

        Raises:
            WriterDisagreementError: A live writer is configured differently.
            StorageCapabilityError: Writers of other engines are expected, and they do not take
                this lock.
        """
        if self._core.registered:  # every write and service asks; properties never change
            return
        registry = registry_for(self._properties)
        _refuse_lock_foreign_writers_do_not_know(self._settings, self._core, registry)
        self._core.register(agreement_of(self._settings, self._core.context.world))

    def close(self) -> None:
        """Leave the writer registry and give up connections; reads and writes end."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _refuse_lock_foreign_writers_do_not_know(
    settings: WriteSettings, core: CoreTable, registry: ProviderRegistry
) -> None:
    """Writers of other engines know nothing but the lock: it must be one they take (FOR-1)."""
    if settings.foreign_writers is not ForeignWriters.EXPECTED:
        return
    provider = core.context.world.lock.provider
    if not registry.find(provider).capabilities.excludes_java:
        shared = [entry.name for entry in registry.entries if entry.capabilities.excludes_java]
        raise StorageCapabilityError(
            "writers of other engines are expected (hoodoo.foreign.writers), and the lock "
            f"provider {provider!r} does not exclude them; take turns with them, or use one that "
            f"Java Hudi shares: {', '.join(shared)}",
            kind="lock_not_shared",
            missing="excludes_java",
            provider=provider,
        )

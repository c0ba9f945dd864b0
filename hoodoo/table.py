"""The table that a user holds: options, writes, savepoints and services; its reads are inherited."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import pyarrow as pa

from filegroups.reading.read import Filter, ReadSet, known_schema
from filegroups.settings.known_keys import UNSUPPORTED_READS, refuse_unsupported, unsupported_keys
from filegroups.settings.settings import WriteSettings
from filegroups.table import TableReader
from filegroups.writing.dry_run import dry_run_write
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write_request import CommitResult
from hoodoo.delete_where import delete_found
from hoodoo.factory import operation_of, write_request_of
from hoodoo.input_files import read_rows
from hoodoo.inputs import Operation, named_partitions, refuse_other_types, to_arrow_table
from hoodoo.inspect.instants import InstantSummary, explain_instant, list_instants
from hoodoo.inspect.rejected_writes import record_rejected_write
from hoodoo.key_repair import KeyRepair, repair_keys
from hoodoo.services import Services
from hoodoo.verify.verify import Verification, verify
from hoodoo.writer import TableWriter, register_writer, unregister_writer
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.restoring.restore import RestoreResult, finish_restore, restore
from tableservices.restoring.rollback import RollbackResult, rollback_write
from tableservices.restoring.savepoints import (
    Savepoint,
    delete_savepoint,
    is_kept_on_active_timeline,
    savepoint,
    savepoints,
)
from timeline.commit.conflict_report import ConflictReport
from timeline.context import TableContext
from timeline.errors import ConflictError, InvalidInputError, RolledBackError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.instant import InstantTime
from timeline.model.table_config import TableConfig
from timeline.model.time_arguments import TimeArgument
from timeline.properties.options import PropertySet
from timeline.rollback.resolve_unknown import Resolution, resolve
from timeline.writer_registry import RegisteredWriter, registered_writers


class Table(TableReader):
    """
    An opened Hudi table. Make it by ``hoodoo.create_table`` or ``hoodoo.open_table``.

    Each read shows the newest state; ``as_of`` and ``pin`` give one state for repeated reads.
    """

    def __init__(
        self, context: TableContext, properties: PropertySet, settings: WriteSettings
    ) -> None:
        refused = unsupported_keys(properties, UNSUPPORTED_READS)
        refuse = partial(refuse_unsupported, properties, UNSUPPORTED_READS) if refused else None
        super().__init__(context, refuse)
        self._properties = properties
        self._settings = settings
        self._services = Services(context, properties, settings, self._register_writer)
        self._writer = TableWriter(context, properties, settings, self._services)

    # ---- what it is

    @property
    def config(self) -> TableConfig:
        """The table's own configuration. Outside: 1 get until a metadata table is seen to be off."""
        return self._writer.config

    @property
    def properties(self) -> PropertySet:
        """Every effective property with its layer."""
        return self._properties

    @property
    def settings(self) -> WriteSettings:
        """The typed settings of writes."""
        return self._settings

    @property
    def services(self) -> Services:
        """Upkeep: cleaning, rollback of dead writers."""
        return self._services

    # ---- what happened

    def history(self, limit: int | None = None, *, archived: bool = False) -> list[InstantSummary]:
        """
        Return what happened to the table, newest first: who did what, when, to how many rows.

        Args:
            limit: The number of instants at most; None for all.
            archived: Return instants of the archived timeline, too.

        Raises:
            CorruptTableError: A slot cannot be read.
        """
        return list_instants(self, archived=archived)[::-1][:limit]

    def explain(self, instant: TimeArgument) -> InstantSummary:
        """
        Return what one instant did, and why it was rejected or rolled back; it prints as a text.

        Args:
            instant: Its requested or completion time, in any form of ``as_of``.

        Raises:
            InstantNotFoundError: No trace of it is left.
        """
        return explain_instant(self, instant)

    def writers(self) -> list[RegisteredWriter]:
        """Return the registered writers of the table, living and silent ones."""
        return registered_writers(self._context)

    def verify(self, *, history: bool = False, all_columns: bool = False) -> Verification:
        """
        Check the whole table: files, keys, commit log, timeline.

        Args:
            history: Check the archived timeline, too.
            all_columns: Read each column of the rows, not their keys alone.
        """
        return verify(self._context, history=history, all_columns=all_columns)

    # ---- writing

    def upsert(
        self,
        data: object,
        *,
        batch_id: str | None = None,
        partial: bool = False,
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """
        Replace rows by key, insert what is new; or change some columns of rows that are there.

        Args:
            data: Rows; see ``hoodoo.inputs.to_arrow_table``.
            batch_id: Makes a repeated call return the first receipt (BATCH-1).
            partial: Records keep the columns that the rows lack. Rows bring key, partition and
                ordering fields and the columns to change. A merge-on-read table gets log
                blocks of those columns alone, as from Java's ``MERGE INTO``.
            reads: What the rows were made from (``TableSnapshot.reads``): refused at once when
                it holds no longer, as ``hoodoo.write.isolation.level`` asks.

        Raises:
            InvalidInputError: The rows do not fit, or a partial one has a key that is not there
                (``partial_new_key``); nothing was changed.
            ConflictError: Refused, with a report of who won.
            OutcomeUnknownError: The storage never answered; do not repeat blindly.
        """
        return self._write(WriteOperation.UPSERT, data, batch_id, partial=partial, reads=reads)

    def insert(
        self, data: object, *, batch_id: str | None = None, reads: ReadSet | None = None
    ) -> CommitResult:
        """Append rows; small files are filled. Keys are not looked up. Errors: as ``upsert``."""
        return self._write(WriteOperation.INSERT, data, batch_id, reads=reads)

    def bulk_insert(self, data: object, *, batch_id: str | None = None) -> CommitResult:
        """Append rows into new files only. Errors: as ``upsert``."""
        return self._write(WriteOperation.BULK_INSERT, data, batch_id)

    def delete(
        self, keys: object, *, batch_id: str | None = None, reads: ReadSet | None = None
    ) -> CommitResult:
        """Delete by key; ``keys`` has the record key and partition columns. Errors: as ``upsert``."""
        return self._write(WriteOperation.DELETE, keys, batch_id, reads=reads)

    def delete_where(
        self,
        filter: Filter,  # noqa: A002 - the public word
        partitions: Sequence[str] | None = None,
        *,
        batch_id: str | None = None,
    ) -> CommitResult:
        """
        Delete the rows that a filter finds, read anew when others change them meanwhile.

        Args:
            filter: As of ``scan``.
            partitions: Partition paths to look in; None for all. Others cost no refusal there.
            batch_id: As of ``upsert``.

        Raises:
            InvalidInputError: No filter, or it does not fit the table.
            BudgetSpentError: Others were faster in every attempt.
            ConflictError: As of ``upsert``.
        """
        if filter is None:
            raise InvalidInputError(
                "name the rows to delete by a filter; delete_partitions deletes whole partitions",
                kind="no_filter",
            )

        refuse_other_types(batch_id, None, "")
        self._writer.begin()
        named = batch_id or self._settings.batch_id
        plan = write_request_of(self._settings, self.config, WriteOperation.DELETE, batch_id=named)
        return delete_found(self, plan, self._writer.write, filter, partitions)

    def insert_overwrite(
        self,
        data: object,
        *,
        partitions: Sequence[str] | None = None,
        batch_id: str | None = None,
    ) -> CommitResult:
        """
        Replace every partition the rows belong to; without rows none.

        Args:
            data: Rows; see ``hoodoo.inputs.to_arrow_table``.
            partitions: Replace these partition paths, also those that no row belongs to. Rows
                of others are refused.
            batch_id: As of ``upsert``.

        Errors: as ``upsert``.
        """
        named = () if partitions is None else named_partitions(partitions)
        operation = WriteOperation.INSERT_OVERWRITE
        return self._write(operation, data, batch_id, overwritten=named)

    def insert_overwrite_table(self, data: object, *, batch_id: str | None = None) -> CommitResult:
        """Replace the whole table; without rows it is empty. Errors: as ``upsert``."""
        return self._write(WriteOperation.INSERT_OVERWRITE_TABLE, data, batch_id)

    def repair_keys(self, *, dry_run: bool = False) -> KeyRepair:
        """
        Bring rows to the record keys and folders that their columns make (``repair_keys``).

        Earlier releases made a second row of a key that came in another type; ``table verify
        --all-columns`` finds such rows. The greatest ordering value wins. Writers may go on, except
        where the form of complex keys changes.
        """
        if dry_run:
            self._writer.refuse()
        else:
            self._writer.begin()
        return repair_keys(
            self,
            self._settings,
            partial(write_request_of, self._settings, self.config),
            self._writer.write,
            self._services.compact,
            dry_run=dry_run,
        )

    def delete_partitions(
        self,
        partitions: Sequence[str],
        *,
        batch_id: str | None = None,
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """Delete whole partitions by path, at least one of them. Errors: as ``upsert``."""
        named, operation = named_partitions(partitions), WriteOperation.DELETE_PARTITION
        return self._run(operation, None, batch_id=batch_id, delete_partitions=named, reads=reads)

    def write(
        self,
        data: object,
        operation: Operation = None,
        *,
        batch_id: str | None = None,
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """Write by the configured operation (``hoodie.datasource.write.operation``)."""
        chosen = operation_of(self._settings, self.config.record_key_fields, operation)
        if not chosen.traits.takes_rows:
            named = self._partitions_to_delete(data)
            return self.delete_partitions(named, batch_id=batch_id, reads=reads)
        return self._write(chosen, data, batch_id, reads=reads)

    def check_conflicts(
        self, data: object, operation: Operation = None
    ) -> tuple[ConflictReport, ...]:
        """What a write of these rows would meet now; it begins nothing (``dry_run_write``)."""
        self._writer.refuse()
        chosen = operation_of(self._settings, self.config.record_key_fields, operation)
        deletes, context = not chosen.traits.takes_rows, self._context
        named = named_partitions(self._settings.partitions_to_delete) if deletes else ()
        plan = write_request_of(self._settings, self.config, chosen, delete_partitions=named)
        workload = None if deletes else self._workload(data)
        return dry_run_write(context, plan, workload)

    def _columns(self) -> pa.Schema:
        """The table's own columns as of a moment ago; none where nothing tells them."""
        context = self._context
        known = known_schema(context, context.cached_snapshot())
        return pa.schema([]) if known is None else known.arrow

    def _partitions_to_delete(self, data: object) -> tuple[str, ...]:  # noqa: ARG002
        return self._settings.partitions_to_delete

    def _workload(self, data: object) -> Workload:
        """Return rows of any supported form as a workload; released after the write."""
        if isinstance(data, str | os.PathLike):
            data = read_rows(Path(data), self._columns())
        return LocalWorkload(self._context.ports, to_arrow_table(data, self._columns))

    def _write(
        self,
        operation: WriteOperation,
        data: object,
        batch_id: str | None,
        *,
        partial: bool = False,
        reads: ReadSet | None = None,
        overwritten: tuple[str, ...] = (),
    ) -> CommitResult:
        workload = self._workload(data)
        try:
            return self._run(
                operation,
                workload,
                batch_id=batch_id,
                delete_partitions=overwritten,
                partial=partial,
                reads=reads,
            )
        finally:
            workload.release()

    def _run(
        self,
        operation: WriteOperation,
        workload: Workload | None,
        *,
        batch_id: str | None = None,
        delete_partitions: tuple[str, ...] = (),
        partial: bool = False,
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """
        Run a write of rows that lie anywhere (this process, a Spark cluster).

        Raises:
            WriterDisagreementError: A live writer is configured differently.
            MetadataTableOnError: The metadata table is on and was not switched off.
        """
        refuse_other_types(batch_id, reads, self._context.ports.storage.base_uri)
        self._writer.begin()
        plan = write_request_of(
            self._settings,
            self._context.config,
            operation,
            batch_id=batch_id or self._settings.batch_id,
            delete_partitions=delete_partitions,
            partial=partial,
            reads=reads,
        )
        try:
            return self._writer.write(plan, workload)
        except (ConflictError, RolledBackError) as error:
            record_rejected_write(self._context, plan, error)
            raise

    # ---- savepoints, rollback, restore, and writes whose outcome is unknown

    def savepoint(self, instant: TimeArgument | None = None, *, comments: str = "") -> Savepoint:
        """
        Keep the state as of a write, whatever cleaning would delete.

        Args:
            instant: The write's requested time, in any form of a moment (``as_of``); None for
                the newest completed one.
            comments: Text for people.

        Raises:
            InstantNotFoundError: No such write, or files of that state were cleaned.
            InvalidInputError: It has a savepoint already.
        """
        self._register_writer()
        chosen = None if instant is None else self._named(instant)
        return savepoint(self._context, chosen, comments=comments)

    @property
    def savepoints(self) -> list[Savepoint]:
        """The states that are kept."""
        return savepoints(self._context)

    def delete_savepoint(self, instant: TimeArgument) -> None:
        """
        Give a kept state up.

        Where later writes were archived (``hoodie.archive.beyond.savepoint``) the saved one is
        archived before.

        Raises:
            InstantNotFoundError: There is no such savepoint.
            InvalidInputError: It cannot be archived yet, because something still needs it.
        """
        self._register_writer()
        context = self._context
        saved = self._named(instant)
        if is_kept_on_active_timeline(context, context.active(), saved):
            rules = ArchiveRules.from_properties(self.properties)
            archive(context, replace(rules, released=frozenset({saved})))
        delete_savepoint(context, saved)

    def rollback(self, instant: TimeArgument, *, force: bool = False) -> RollbackResult:
        """
        Undo one write for good: a pending one, or the newest completed one.

        Args:
            instant: Its requested time, in any form of a moment (``as_of``).
            force: Also while the writer of a pending one gives signs of life.

        Raises:
            InstantNotFoundError: No such write, or the state before it was cleaned.
            InvalidInputError: Its writer is alive, a savepoint holds it, or it is needed.
        """
        self._register_writer()
        return rollback_write(self._context, self._named(instant), force=force)

    def restore(self, instant: TimeArgument, *, force: bool = False) -> RestoreResult | None:
        """
        Take everything after a write away: the table reads as when that write completed.

        Args:
            instant: Its requested time in any form of a moment (``as_of``), of a savepoint or
                any write that is not cleaned.
            force: Also while writers of what goes give signs of life.

        Returns:
            None when nothing came after it.

        Raises:
            InstantNotFoundError: No such write, or files of that state were cleaned.
            InvalidInputError: A later savepoint holds what would go, or a writer is alive.
        """
        self._register_writer()
        return restore(self._context, self._named(instant), force=force)

    def finish_restore(self) -> RestoreResult | None:
        """
        Carry out the restore that another engine, which has ended, planned and left.

        Returns:
            None when there is none.
        """
        self._register_writer()
        return finish_restore(self._context)

    def resolve(self, instant: TimeArgument) -> Resolution:
        """Decide whether a write counts that ended unknown: ``timeline.rollback.resolve_unknown.resolve``."""
        self._register_writer()
        return resolve(self._context, self._named(instant))

    def _named(self, instant: TimeArgument) -> InstantTime:
        return self._context.parse_instant(instant)

    # ---- life

    def _register_writer(self) -> None:
        register_writer(self._context, self._properties, self._settings)

    def close(self) -> None:
        """End services on threads, leave the writer registry and give up connections."""
        failures = self._services.close()
        self._writer.close()
        unregister_writer(self._context)
        super().close()
        for warning in failures:
            warnings.warn(warning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The table of the public API: options, writes, savepoints and services; it inherits its reads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from filegroups.reading.filters import Filter
from filegroups.reading.read_set import ReadSet
from filegroups.reading.scan import known_schema
from filegroups.schema.column_changes import ColumnChanges
from filegroups.settings.known_keys import UNSUPPORTED_READS, refuse_unsupported, unsupported_keys
from filegroups.settings.settings import WriteSettings
from filegroups.table import TableReader
from filegroups.writing.dry_run import dry_run_write
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write_request import CommitResult
from hoodoo.arguments import (
    Operation,
    filter_or_keys,
    named_partitions,
    no_filter,
    refuse_other_types,
)
from hoodoo.input_files import read_rows
from hoodoo.inputs import to_arrow_table
from hoodoo.inspect.explain import explain_instant
from hoodoo.inspect.instants import InstantSummary, list_instants
from hoodoo.inspect.rejected_writes import record_rejected_write
from hoodoo.key_repair import KeyRepair, repair_keys
from hoodoo.metadata import MetadataPartitions
from hoodoo.services import Services
from hoodoo.verify.verify import Verification, verify
from hoodoo.write_requests import (
    column_changes,
    operation_of,
    refuse_column_changes,
    with_patterns,
    write_request_of,
)
from hoodoo.writer import TableWriter
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
from timeline.errors import ConflictError, RolledBackError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.instant_time import InstantTime
from timeline.model.table_config import TableConfig
from timeline.model.time_arguments import TimeArgument
from timeline.properties.options import PropertySet
from timeline.rollback.resolve_unknown import Resolution, resolve
from timeline.writer_registry import RegisteredWriter, registered_writers

if TYPE_CHECKING:
    from hoodoo.row_changes import MatchOn, Merge, Statement
    from hoodoo.sync.sync import SyncResult


class Table(TableReader):
    """
    An opened Hudi table; ``hoodoo.create_table`` and ``hoodoo.open_table`` return it.

    Each read uses the newest snapshot; ``as_of`` and ``pin`` return one snapshot for many reads.
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

    @property
    def config(self) -> TableConfig:
        """The table's own configuration. Outside: 1 get until the metadata table is off."""
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
        """The table services, such as cleaning and compaction."""
        return self._services

    @property
    def metadata(self) -> MetadataPartitions:
        """The partitions of the metadata table: build, drop and show them."""
        return MetadataPartitions(self._context, self._properties, self._register_writer)

    def sync(self, *, full: bool = False) -> SyncResult | None:
        """Sync the table with its catalogs, also if no option switches it on (``Services.sync``)."""
        return self._services.sync(full=full)

    # ---- inspection

    def history(self, limit: int | None = None, *, archived: bool = False) -> list[InstantSummary]:
        """
        Return the instants of the table, newest first, with writer, times and row counts.

        Args:
            limit: The number of instants at most; None for all.
            archived: Return instants of the archived timeline, too.

        Raises:
            CorruptTableError: A slot cannot be read.
        """
        return list_instants(self._context, archived=archived)[::-1][:limit]

    def explain(self, instant: TimeArgument) -> InstantSummary:
        """
        Return the summary of one instant, with the reason of a rejection or rollback; it prints.

        Args:
            instant: Its requested or completion time, in any form of ``as_of``.

        Raises:
            InstantNotFoundError: No trace of it is left.
        """
        return explain_instant(self._context, instant)

    def writers(self) -> list[RegisteredWriter]:
        """Return the registered writers of the table, live and expired ones."""
        return registered_writers(self._context)

    def verify(self, *, history: bool = False, all_columns: bool = False) -> Verification:
        """
        Check the whole table: files, keys, commit log, timeline.

        Args:
            history: Check the archived timeline, too.
            all_columns: Read all columns of the rows, not only the keys.
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
        Replace rows by key and insert new rows; or change some columns of existing rows.

        Args:
            data: The rows. Arrow: a Table, RecordBatch, RecordBatchReader, Dataset, or an object
                with ``__arrow_c_stream__``, such as a DuckDB relation. Dataframes: of pandas or
                polars, also a LazyFrame. Python: a dict of columns, or an iterable of dicts or
                batches. A file: its path, which ends in ``.parquet``, ``.csv``, ``.json``,
                ``.jsonl``, ``.ndjson``, ``.avro`` or ``.arrow``.
            batch_id: The name of this batch. A batch is committed once: a repeated call with this
                id writes nothing and returns the first result.
            partial: Records keep the columns that the rows lack. Rows have the key, partition and
                ordering fields and the columns to change. A merge-on-read table gets log
                blocks of those columns only, as from Java's ``MERGE INTO``.
            reads: The reads that the rows depend on (``TableSnapshot.reads``). With
                ``hoodoo.write.isolation.level`` ``write_serializable`` or ``serializable`` the
                write is rejected if they changed (``changed_under_read``,
                ``appended_into_read``). With the default ``snapshot``, changes of rows that were
                only read do not count. At each level the write is rejected if instants or commit
                slots were archived between the reads and its begin.

        Raises:
            InvalidInputError: The rows do not fit, or a partial row has a new key
                (``partial_new_key``); the table is unchanged.
            ConflictError: A concurrent commit conflicts; the error has its report.
            OutcomeUnknownError: The storage did not answer; call ``resolve`` before a retry.
        """
        return self._write(WriteOperation.UPSERT, data, batch_id, partial=partial, reads=reads)

    def insert(
        self, data: object, *, batch_id: str | None = None, reads: ReadSet | None = None
    ) -> CommitResult:
        """Append rows and fill small files, without a lookup of keys. Errors: as ``upsert``."""
        return self._write(WriteOperation.INSERT, data, batch_id, reads=reads)

    def bulk_insert(self, data: object, *, batch_id: str | None = None) -> CommitResult:
        """Append rows into new files only. Errors: as ``upsert``."""
        return self._write(WriteOperation.BULK_INSERT, data, batch_id)

    def delete(
        self,
        filter: object = None,  # noqa: A002 - the public word
        partitions: Sequence[str] | None = None,
        *,
        keys: object = None,
        batch_id: str | None = None,
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """
        Delete the rows that match a filter, or those of some keys.

        If other writers change what a filter finds, this reads again and retries.

        Args:
            filter: A text, a pyarrow expression or a list of terms, as of ``scan``. Rows in any
                other form are the same as ``keys``.
            partitions: With a filter: partition paths to search; None for all. Writes to others do
                not conflict.
            keys: Rows with the record key and partition columns, in any form of ``upsert``, also
                the path of a file.
            batch_id: As of ``upsert``.
            reads: With keys: as of ``upsert``.

        Raises:
            InvalidInputError: There is neither a filter nor keys (``no_filter``), there are both or
                an argument of the other (``delete_arguments``), or one does not fit the table.
            BudgetSpentError: Each attempt conflicted with other writers.
            ConflictError: As of ``upsert``.
        """
        found_by, rows = filter_or_keys(filter, keys, partitions, reads)
        if found_by is None:
            return self._write(WriteOperation.DELETE, rows, batch_id, reads=reads)
        return self._statement(WriteOperation.DELETE, batch_id).delete(found_by, partitions)

    def update(
        self,
        filter: Filter,  # noqa: A002
        values: Mapping[str, object],
        partitions: Sequence[str] | None = None,
        *,
        batch_id: str | None = None,
    ) -> CommitResult:
        """
        Set columns of the rows that match a filter; if other writers change them, retry.

        Args:
            filter: As of ``scan``; ``"true"`` for all rows.
            values: For each column a SQL text over the row's columns (``"price * 2"``, ``"'new'"``),
                a pyarrow expression, or a literal of another type than text. A row keeps its
                ordering value unless it is set.
            partitions: As of ``delete``.
            batch_id: As of ``upsert``.

        Raises:
            InvalidInputError: The filter is missing (``no_filter``), or a value does not fit
                (``expression``, ``expression_value``, ``changed_key``, ``ordering_lowered``).
            BudgetSpentError: Each attempt conflicted with other writers.
            ConflictError: As of ``upsert``.
        """
        if filter is None:
            raise no_filter()
        return self._statement(WriteOperation.UPSERT, batch_id).update(filter, values, partitions)

    def merge(self, source: object, on: str | Sequence[str] | None = None) -> Merge:
        """
        Return a merge of rows into the table, as ``MERGE INTO``: add its clauses, then ``execute``.

        ``table.merge(rows).when_matched_update_all().when_not_matched_insert_all().execute()``

        Clauses: ``when_matched_update``, ``when_matched_update_all``, ``when_matched_delete``,
        ``when_not_matched_insert``, ``when_not_matched_insert_all``,
        ``when_not_matched_by_source_update`` and ``when_not_matched_by_source_delete``. For each
        row the first clause whose condition is true acts. Only ``execute`` checks the clauses and
        writes; it makes one commit with the operation ``upsert``.

        Args:
            source: Rows in any form of ``upsert``.
            on: Columns that are equal in rows that match, or a SQL text such as ``target.id =
                source.user_id``. None for the record key, and the partition if a key is unique in
                its partition only.

        Raises:
            InvalidInputError: The rows have another form (``data``). ``execute`` raises it for ``on``
                (``merge_on``), for clauses that do not fit (``merge_clauses``,
                ``merge_insert_key``, ``expression``, ``unknown_column``) and if two rows of the
                source change one row (``merge_row_twice``).
            BudgetSpentError, ConflictError: Of ``execute``, if it conflicts with other writers.
        """
        from hoodoo.row_changes import MatchOn, Merge

        if isinstance(source, str | os.PathLike):
            source = read_rows(Path(source), self._columns())
        rows = to_arrow_table(source, self._columns)
        if not rows.num_columns:  # an empty list has no columns
            rows = self.schema.empty_table()

        def matching() -> MatchOn:
            plan = write_request_of(self._settings, self.config, WriteOperation.UPSERT)
            whole = plan.rules.lookup.whole_table
            return MatchOn.of(on, self.config, self.schema, rows.schema, whole_table=whole)

        return Merge(rows, partial(self._statement, WriteOperation.UPSERT), matching)

    def _statement(self, operation: WriteOperation, batch_id: str | None) -> Statement:
        """Return a statement that computes its rows from reads, after the checks of a write."""
        from hoodoo.row_changes import Statement  # sqlglot takes 0.1 s to import

        refuse_other_types(batch_id, None, "")
        self._writer.begin()
        named = batch_id or self._settings.batch_id
        plan = write_request_of(self._settings, self.config, operation, batch_id=named)
        combines = plan.rules.combine or bool(self.config.record_key_fields)
        rules = replace(plan.rules, partial_columns=None, combine=combines, adds_rows=True)
        return Statement(self, replace(plan, rules=rules), self._writer.write)

    def insert_overwrite(
        self,
        data: object,
        *,
        partitions: Sequence[str] | None = None,
        batch_id: str | None = None,
    ) -> CommitResult:
        """
        Replace all partitions of the rows; without rows none.

        Args:
            data: Rows in any form of ``upsert``.
            partitions: Replace these partition paths, also those without rows. Rows of other
                partitions raise an error.
            batch_id: As of ``upsert``.

        Errors: as ``upsert``.
        """
        named = () if partitions is None else named_partitions(partitions)
        operation = WriteOperation.INSERT_OVERWRITE
        return self._write(operation, data, batch_id, overwritten=named)

    def insert_overwrite_table(self, data: object, *, batch_id: str | None = None) -> CommitResult:
        """Replace all rows of the table; without rows it becomes empty. Errors: as ``upsert``."""
        return self._write(WriteOperation.INSERT_OVERWRITE_TABLE, data, batch_id)

    def repair_keys(self, *, dry_run: bool = False) -> KeyRepair:
        """
        Move rows to the record keys and partitions that their columns give (``repair_keys``).

        Earlier releases wrote a second row for a key of another type; ``table verify
        --all-columns`` finds such rows. The greatest ordering value wins. Other writers may
        write meanwhile, unless the form of complex keys changes.
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
        """
        Delete whole partitions, at least one of them.

        Args:
            partitions: Partition paths. As in Java, ``*`` stands for any characters; each attempt
                of the write matches the partitions that exist then.
            batch_id: As of ``upsert``.
            reads: As of ``upsert``.

        Raises:
            InvalidInputError: No partition is named, or none matches (``no_partition``). Others: as
                ``upsert``.
        """
        named, operation = named_partitions(partitions), WriteOperation.DELETE_PARTITION
        return self._run(operation, None, batch_id=batch_id, delete_partitions=named, reads=reads)

    def alter_schema(
        self,
        *,
        rename: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        types: Mapping[str, pa.DataType] | None = None,
        add: Mapping[str, pa.DataType] | None = None,
        move: Mapping[str, str] | None = None,
    ) -> CommitResult:
        """
        Change columns in one commit, as ``ALTER TABLE`` of Java Hudi; no row is rewritten.

        Without ``hoodie.schema.on.read.enable=true`` only new columns at the end are possible. With
        it the columns get ids, by which older files keep them; each later reader of Java Hudi needs
        the option. ``a.b`` is a field of a struct, ``element`` of a list, ``value`` of a map.

        Args:
            rename: The new name of each column, without the dotted part before it.
            drop: Columns to remove.
            types: The new type of each column: a wider number or decimal, or text.
            add: Types of new columns, which are null in existing rows.
            move: For each column the one before its new place, "" for the front.

        Raises:
            InvalidInputError: A column does not exist or must stay, a name or type is not possible,
                or plans of services are pending.
            SettingError: The option is not set, or Java Hudi writes to the table.
            MetadataTableOnError: The metadata table knows columns by their names.
            ConflictError: Other writers committed during every attempt.
        """
        changes = column_changes(rename, drop, types, add, move)
        refuse_column_changes(self._context, self._settings, changes)
        return self._run(WriteOperation.INSERT, None, changes=changes)

    def write(
        self,
        data: object,
        operation: Operation = None,
        *,
        batch_id: str | None = None,
        reads: ReadSet | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitResult:
        """
        Write by an operation; None for the option ``hoodie.datasource.write.operation``.

        ``metadata`` are texts for the commit. Errors: as ``upsert``.
        """
        chosen = operation_of(self._settings, operation)
        if chosen.traits.takes_rows:
            return self._write(chosen, data, batch_id, reads=reads, metadata=metadata)
        named = named_partitions(self._partitions_to_delete(data))
        run = partial(self._run, chosen, None, delete_partitions=named)
        return run(batch_id=batch_id, reads=reads, metadata=metadata)

    def check_conflicts(
        self, data: object, operation: Operation = None
    ) -> tuple[ConflictReport, ...]:
        """
        Return the conflicts that a write of these rows would have now; nothing is written.

        It assigns file groups as the write would, and compares them with the announced writes of
        live writers and with pending clusterings.

        Args:
            data: Rows in any form of ``upsert``; for ``delete_partition`` the configured partitions
                count instead.
            operation: The write's; None for ``hoodie.datasource.write.operation``.

        Returns:
            One report for each write or clustering that conflicts; another may begin later.

        Raises:
            InvalidInputError: The rows do not fit the table.
            UnsupportedTableError, MissingFileError: As the write itself.
        """
        self._writer.refuse()
        chosen = operation_of(self._settings, operation)
        deletes, context = not chosen.traits.takes_rows, self._context
        named = named_partitions(self._settings.partitions_to_delete) if deletes else ()
        plan = write_request_of(self._settings, self.config, chosen, delete_partitions=named)
        if deletes:
            plan = with_patterns(context, plan)
            return dry_run_write(context, plan, None)
        workload = self._workload(data)
        try:
            return dry_run_write(context, plan, workload)
        finally:
            workload.release()

    def _columns(self) -> pa.Schema:
        """Return the table's own columns of the cached snapshot; empty if no schema is known."""
        context = self._context
        known = known_schema(context, context.cached_snapshot())
        return pa.schema([]) if known is None else known.arrow

    def _partitions_to_delete(self, data: object) -> tuple[str, ...]:  # noqa: ARG002
        return self._settings.partitions_to_delete

    def _workload(self, data: object) -> Workload:
        """Return rows of any supported form as a workload, which the caller releases."""
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
        metadata: Mapping[str, str] | None = None,
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
                metadata=metadata,
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
        metadata: Mapping[str, str] | None = None,
        changes: ColumnChanges | None = None,
    ) -> CommitResult:
        """
        Run a write of rows of this process or of a Spark cluster, or a change of columns.

        Raises:
            WriterDisagreementError: A live writer is configured differently.
            MetadataTableOnError: The metadata table has a partition that cannot be maintained.
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
            metadata=metadata,
            changes=changes,
        )
        if operation is WriteOperation.DELETE_PARTITION:
            plan = with_patterns(self._context, plan)
        try:
            return self._writer.write(plan, workload)
        except (ConflictError, RolledBackError) as error:
            record_rejected_write(self._context, plan, error)
            raise

    # ---- savepoints, rollback, restore, and writes whose outcome is unknown

    def savepoint(self, instant: TimeArgument | None = None, *, comments: str = "") -> Savepoint:
        """
        Create a savepoint: cleaning keeps the files of the snapshot of one write.

        Args:
            instant: The write's requested time, exact, no short form of the command line such as
                ``2h``. None for the newest completed write.
            comments: Text for people.

        Raises:
            InstantNotFoundError: No such write, or a clean deleted files of its snapshot.
            InvalidInputError: The write already has a savepoint.
        """
        self._register_writer()
        chosen = None if instant is None else self._named(instant)
        return savepoint(self._context, chosen, comments=comments)

    @property
    def savepoints(self) -> list[Savepoint]:
        """The savepoints of the table."""
        return savepoints(self._context)

    def delete_savepoint(self, instant: TimeArgument) -> None:
        """
        Delete a savepoint.

        If later writes are archived (``hoodie.archive.beyond.savepoint``), this archives the
        savepointed write first.

        Raises:
            InstantNotFoundError: No such savepoint.
            InvalidInputError: The write cannot be archived yet, because it is still needed.
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
        Roll back one write: a pending one, or the newest completed one.

        Args:
            instant: Its requested time, exact, as of ``savepoint``.
            force: Roll back a pending write even if its writer is alive.

        Raises:
            InstantNotFoundError: No such write, or a clean deleted files of the state before it.
            InvalidInputError: Its writer is alive, a savepoint needs it, or a later write does.
        """
        self._register_writer()
        return rollback_write(self._context, self._named(instant), force=force)

    def restore(self, instant: TimeArgument, *, force: bool = False) -> RestoreResult | None:
        """
        Restore the table to the state of a write; this removes all later writes.

        Args:
            instant: The requested time, exact, of a savepoint or of a write whose files still
                exist; the short forms of the command line are refused.
            force: Restore even if writers of the removed writes are alive.

        Returns:
            The result; None without later writes.

        Raises:
            InstantNotFoundError: No such write, or a clean deleted files of its snapshot.
            InvalidInputError: A later savepoint needs a removed write, or a writer is alive.
        """
        self._register_writer()
        return restore(self._context, self._named(instant), force=force)

    def finish_restore(self) -> RestoreResult | None:
        """Execute the pending restore of another engine whose process ended; None without one."""
        self._register_writer()
        return finish_restore(self._context)

    def resolve(self, instant: TimeArgument) -> Resolution:
        """
        Return whether a write of unknown outcome is committed; decide it if it is still open.

        A pending write without a live heartbeat is rolled back. A final answer never changes.

        Args:
            instant: Its requested time, exact: ``OutcomeUnknownError.requested_time``.

        Returns:
            The outcome, the completion time if it is committed, and the reason in words.

        Raises:
            InvalidInputError: The instant has another form (``instant_time``).
            InstantNotFoundError: The table has no trace of the write, or none is left.
            CorruptTableError: A rollback or restore that may have the answer is damaged.
            MetadataTableOnError: The metadata table has a partition that cannot be maintained.
            LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: Nothing is
                decided; resolve it again.
        """
        self._register_writer()
        return resolve(self._context, self._named(instant))

    def _named(self, instant: TimeArgument) -> InstantTime:
        return self._context.parse_instant(instant)

    # ---- registration and closing

    def _register_writer(self) -> None:
        self._writer.register()

    def close(self) -> None:
        """
        Stop background services, leave the writer registry and close connections.

        A write of another thread commits or fails as without the close. A later call registers
        and connects again; close the table once more after it.
        """
        failures = self._services.close()
        self._writer.close()
        super().close()
        for warning in failures:
            warnings.warn(warning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""
The table a user holds: reads as Arrow, writes anything that is a table of rows.

Thin: options in, paths of ``timeline`` called, receipts out.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Self

import pyarrow as pa

from filegroups.index.bucket_properties import (
    has_bucket_rules,
    record_bucket_rules,
    record_misplaced_rows,
    refuse_other_buckets,
)
from filegroups.keys.bucketing import BucketRules
from filegroups.reading.read import Filter, ReadSet, known_schema
from filegroups.settings.known_keys import (
    UNSUPPORTED_READS,
    UNSUPPORTED_SERVICES,
    refuse_unsupported,
)
from filegroups.settings.settings import WriteSettings
from filegroups.table import Table as CoreTable
from filegroups.table import TableSnapshot, TimelineEntry, refuse_unwritable
from filegroups.writing.row_checks import bucket_range_text
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write import CommitResult, WriteRequest, dry_run_write
from hoodoo.committer.client import GroupCommit, group_commit_of
from hoodoo.factory import (
    Layers,
    bucket_rules,
    check_against_table,
    compose_ports,
    limits_of,
    may_misplace_rows,
    operation_of,
    properties_of_table,
    refuse_other_name,
    write_request_of,
)
from hoodoo.inputs import Operation, named_partitions, refuse_other_types, to_arrow_table
from hoodoo.inspect.rejected_writes import record_rejected_write
from hoodoo.key_repair import KeyRepair, repair_keys
from hoodoo.recovery import Recovery, delete_found
from hoodoo.services import Services, warn_ignored_keys
from hoodoo.writer_registration import register_writer, unregister_writer
from timeline.commit.conflict_report import ConflictReport
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import FileSlice
from timeline.model.table_config import TableConfig
from timeline.model.time_arguments import TimeArgument
from timeline.ports.ports import EventSink
from timeline.properties.options import PropertySet
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import FailedWritesPolicy
from timeline.snapshot import Snapshot

__all__ = ["Table"]


class Table(Recovery):
    """
    An opened Hudi table. Make it by ``hoodoo.create_table`` or ``hoodoo.open_table``.

    Not tied to a transaction: every read shows the newest state unless pinned by ``as_of``.
    """

    def __init__(self, core: CoreTable, properties: PropertySet, settings: WriteSettings) -> None:
        self._core = core
        self._config = core.config
        self._properties = properties
        self._settings = settings
        self._buckets_kept = False
        self._elsewhere_kept = False
        self._services = Services(core.context, properties, settings, self.join_writers)
        self._supported = False
        self._entering = threading.Lock()  # threads that hand their writes to one group
        self._group = self._grouping()

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
        world = compose_ports(address, properties, events=events)
        core = CoreTable.open(world, limits_of(settings, properties))
        check_against_table(settings, core.config)
        if chosen.tells:
            warn_ignored_keys(properties, world.events)
        return cls(core, properties, settings)

    # ---- what it is

    @property
    def core(self) -> CoreTable:
        """The engine's table, for services and further executors."""
        return self._core

    @property
    def config(self) -> TableConfig:
        """The table's own configuration. Outside: 1 get until a metadata table is seen to be off."""
        config = self._config
        if config.metadata_table_on and self._core.context.limits.without_metadata_table:
            now = load_config(self._core.context.world.storage)
            config = replace(config, metadata_partitions=now.metadata_partitions, raw=now.raw)
            self._config = config
        return config

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

    def file_slices(self, as_of: TimeArgument | None = None) -> list[FileSlice]:
        """The newest slice of each file group, now or as of a moment (``as_of``)."""
        return (self._core if as_of is None else self._core.as_of(as_of)).file_slices()

    @property
    def services(self) -> Services:
        """Upkeep: cleaning, rollback of dead writers."""
        return self._services

    # ---- reading

    @property
    def _reads(self) -> CoreTable:
        """The engine's table, for reads that no option keeps from giving the answer meant."""
        refuse_unsupported(self._properties, UNSUPPORTED_READS)
        return self._core

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
        return self._reads.scan(
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
        return self._reads.to_arrow(
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
        return self._reads.look_up(keys, columns=columns, partitions=partitions)

    def hold(self) -> TableSnapshot:
        """
        The table as it is now, kept from cleaning: ``with table.hold() as state: ...``.

        Raises:
            SnapshotExpiredError: Cleaning was faster again and again.
        """
        return self._reads.hold()

    def as_of(self, time: TimeArgument) -> TableSnapshot:
        """
        The table as of a time; immutable. Its ``hold()`` keeps it from cleaning.

        Args:
            time: A datetime (also of pandas or numpy), a date (its first moment), an int of 17 or
                14 digits, or a text: 17 or 14 digits, ``yyyy-MM-dd`` or
                ``yyyy-MM-dd HH:mm:ss[.SSS]``. What names no zone is in the table's, UTC for
                tables we make.

        Raises:
            InvalidInputError: Not a time.
            InstantNotFoundError: Too old, cleaned or not settled yet.
        """
        return self._reads.as_of(time)

    def changes(
        self,
        since: TimeArgument,
        until: TimeArgument | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002
        partitions: Sequence[str] | None = None,
        *,
        images: bool = False,
    ) -> pa.RecordBatchReader:
        """
        Rows last written by instants that completed in (since, until].

        A filter, as of ``scan``, applies to the rows that come out; ``partitions`` names the
        partition paths to read. Only files of the partitions that are left are opened.
        Ranges that follow each other end at completion times that the table told, not at a clock's.
        With ``images`` every change on the way instead, in the order of completion: ``op``
        (``i``, ``u``, ``d``), ``ts_ms`` (requested time of the instant) and the row ``before``
        and ``after``. Tables with and without change logs (``hoodie.table.cdc.enabled``) tell
        it alike, as long as the files of the range are there.

        Args:
            since: Exclusive start, in any form of ``as_of``; ``earliest`` for the beginning.
            until: Inclusive end; None for now.
            columns: Names to return, inside the images where they are asked for; None for all.
            images: Return changes with images instead of rows.

        Raises:
            InvalidInputError: Not a time, an unknown column, or a filter of images.
            InstantNotFoundError: Images need a file that was cleaned (``changes_cleaned``).
        """
        return self._reads.changes(
            since, until, columns=columns, filter=filter, partitions=partitions, images=images
        )

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
        self.begin_writing()
        named = batch_id or self._settings.batch_id
        plan = write_request_of(self._settings, self.config, WriteOperation.DELETE, batch_id=named)
        return delete_found(self._core, plan, self._published, filter, partitions)

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
            self.refuse_writes()
        else:
            self.begin_writing()
        return repair_keys(
            self._core,
            self._settings,
            partial(write_request_of, self._settings, self.config),
            self._published,
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
        return self.run(operation, None, batch_id=batch_id, delete_partitions=named, reads=reads)

    def write(
        self,
        data: object,
        operation: Operation = None,
        *,
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """Write by the configured operation (``hoodie.datasource.write.operation``)."""
        chosen = operation_of(self._settings, self.config.record_key_fields, operation)
        if not chosen.traits.takes_rows:
            return self.delete_partitions(self._settings.partitions_to_delete, reads=reads)
        return self._write(chosen, data, None, reads=reads)

    def would_conflict(
        self, data: object, operation: Operation = None
    ) -> tuple[ConflictReport, ...]:
        """What a write of these rows would meet now; it begins nothing (``dry_run_write``)."""
        self.refuse_writes()
        chosen = operation_of(self._settings, self.config.record_key_fields, operation)
        deletes, context = not chosen.traits.takes_rows, self._core.context
        named = named_partitions(self._settings.partitions_to_delete) if deletes else ()
        plan = write_request_of(self._settings, self.config, chosen, delete_partitions=named)
        workload = (
            None if deletes else LocalWorkload(context.world, to_arrow_table(data, self._columns))
        )
        return dry_run_write(context, plan, workload)

    def _columns(self) -> pa.Schema:
        """The table's own columns as of a moment ago; none where nothing tells them."""
        context = self._core.context
        known = known_schema(context, context.glance())
        return pa.schema([]) if known is None else known.arrow

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
        rows = to_arrow_table(data, self._columns)
        workload = LocalWorkload(self._core.context.world, rows)
        try:
            return self.run(
                operation,
                workload,
                batch_id=batch_id,
                delete_partitions=overwritten,
                partial=partial,
                reads=reads,
            )
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
        reads: ReadSet | None = None,
    ) -> CommitResult:
        """
        Run a write of rows that lie anywhere (this process, a Spark cluster).

        Raises:
            WriterDisagreementError: A live writer is configured differently.
            MetadataTableOnError: The metadata table is on and was not switched off.
        """
        refuse_other_types(batch_id, reads, self._core.context.world.storage.base_uri)
        self.begin_writing()
        plan = write_request_of(
            self._settings,
            self._core.config,
            operation,
            batch_id=batch_id or self._settings.batch_id,
            delete_partitions=delete_partitions,
            partial=partial,
            reads=reads,
        )
        with record_rejected_write(self._core.context, plan):
            return self._published(plan, workload)

    def _published(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        if self._group is not None:
            return self._group.write(plan, workload)
        looked = self._core.context.glance()
        undone = self._undo_dead(looked)
        receipt = self._core.write(plan, workload, None if undone else looked)
        self.after_group()
        return receipt

    def begin_writing(self) -> None:
        """What comes before a write: refusals, and what the first one does for all."""
        with self._entering:
            self.refuse_writes()
            rules = self._rules_to_keep()
            if rules is not None:  # before others hear of it, who would be refused for it
                refuse_other_buckets(self._core.context, rules)
            self.join_writers(bucket_range_text(self._settings))
            if rules is not None:
                record_bucket_rules(self._core.context, rules)
                self._buckets_kept = True
            if not self._elsewhere_kept and may_misplace_rows(self._settings, self.config):
                record_misplaced_rows(self._core.context)
                self._elsewhere_kept = True
            if not self.config.metadata_table_on:
                self._services.begin_beside()

    def refuse_writes(self) -> None:
        """
        Refuse what no write may do to this table; nothing is begun.

        Raises:
            MetadataTableOnError: The metadata table is on and is not to be switched off.
            SettingError: An option asks for what is not done.
            UnsupportedTableError: A feature of the table cannot be written yet.
        """
        off = self._core.context.limits.without_metadata_table
        refuse_unwritable(self._core.config, without_metadata_table=off)
        self._core.config.merge.require_known()
        refuse_other_name(self._settings, self._core.config)
        self._refuse_unsupported()

    def _grouping(self) -> GroupCommit | None:
        return group_commit_of(
            self._core.context, self._settings, before=self.before_group, after=self.after_group
        )

    def before_group(self) -> None:
        """What whoever publishes for others does before it; alone, it is part of the write."""
        self._undo_dead(self._core.context.glance())

    def _undo_dead(self, looked: Snapshot) -> bool:
        """RB-11; not what would switch a metadata table off before a write that may be refused."""
        eager = self._settings.failed_writes_policy is FailedWritesPolicy.EAGER
        if not eager or self.config.metadata_table_on:
            return False
        return bool(self.services.rollback_dead_writers(looked.active))

    def after_group(self) -> None:
        """And after it: upkeep that is due."""
        outcome = self.services.after_commit()
        for warning in (*outcome.warnings, *self._services.take_failures()):
            warnings.warn(warning, stacklevel=3)

    def _refuse_unsupported(self) -> None:
        """Asked by the first write, not by an opening: reading does not need these options."""
        if not self._supported:
            refuse_unsupported(self._properties)
            self._supported = True

    def _rules_to_keep(self) -> BucketRules | None:
        """Another engine's table does not say how its buckets are made: held against it once."""
        kept = self._buckets_kept or has_bucket_rules(self._core.config)
        return None if kept else bucket_rules(self._settings, self._core.config)

    # ---- life

    def join_writers(self, buckets: str = "") -> None:
        """
        Enter the registry of those who change the table; services do so, too, without buckets.

        Raises:
            WriterDisagreementError: A live writer is configured differently, or owns ``buckets``.
            StorageCapabilityError: Writers of other engines are expected, and they do not take
                this lock.
            SettingError: An option would keep files that a service deletes.
        """
        refuse_unsupported(self._properties, UNSUPPORTED_SERVICES)
        register_writer(self._core, self._properties, self._settings, buckets)

    def close(self) -> None:
        """End services on threads, leave the writer registry and give up connections."""
        failures = self._services.close()
        if self._group is not None:
            self._group.close()
        unregister_writer(self._core)
        self._core.close()
        for warning in failures:
            warnings.warn(warning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Go back to an earlier state of a table: savepoints, rollback, restore; and ``delete_where``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from filegroups.reading.read import Filter
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from filegroups.table import Table
from filegroups.table import Table as CoreTable
from filegroups.writing.retry_state import rerun_until_unchanged
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write import CommitResult, WriteRequest
from hoodoo.inspect.rejected_writes import record_rejected_write
from tableservices.archiving.execute import archive
from tableservices.archiving.settings import ArchiveRules
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
from timeline.model.instant_time import InstantTime
from timeline.model.table_config import TableConfig
from timeline.model.time_arguments import TimeArgument
from timeline.properties.options import PropertySet
from timeline.rollback.resolve_unknown import Resolution, resolve

__all__ = ["Recovery", "delete_found", "delete_key_columns"]


# ------- What a table can go back to: savepoints, rollback, restore, and writes that ended unknown
#
# Half of ``hoodoo.table.Table``, apart because none of it reads or writes rows.


class Recovery(ABC):
    """A table, as far as it can be taken back."""

    _core: CoreTable

    @property
    @abstractmethod
    def properties(self) -> PropertySet:
        """Every effective property with its layer."""

    @abstractmethod
    def join_writers(self) -> None:
        """Enter the registry of those who change the table."""

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
        self.join_writers()
        chosen = None if instant is None else self._named(instant)
        return savepoint(self._core.context, chosen, comments=comments)

    @property
    def savepoints(self) -> list[Savepoint]:
        """The states that are kept."""
        return savepoints(self._core.context)

    def delete_savepoint(self, instant: TimeArgument) -> None:
        """
        Give a kept state up.

        Where later writes were archived (``hoodie.archive.beyond.savepoint``) the saved one is
        archived before.

        Raises:
            InstantNotFoundError: There is no such savepoint.
            InvalidInputError: It cannot be archived yet, because something still needs it.
        """
        self.join_writers()
        context = self._core.context
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
        self.join_writers()
        return rollback_write(self._core.context, self._named(instant), force=force)

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
        self.join_writers()
        return restore(self._core.context, self._named(instant), force=force)

    def finish_restore(self) -> RestoreResult | None:
        """
        Carry out the restore that another engine, which has ended, planned and left.

        Returns:
            None when there is none.
        """
        self.join_writers()
        return finish_restore(self._core.context)

    def resolve(self, instant: TimeArgument) -> Resolution:
        """Decide whether a write counts that ended unknown: ``timeline.rollback.resolve_unknown.resolve``."""
        self.join_writers()
        return resolve(self._core.context, self._named(instant))

    def _named(self, instant: TimeArgument) -> InstantTime:
        return self._core.context.instant_named(instant)


# -------- Deletes by predicate: read which rows, delete those, read again when others changed them


def delete_key_columns(config: TableConfig) -> tuple[str, ...]:
    """
    Columns that tell the key and partition of a row; a field inside a struct comes with it.

    Without key fields the meta columns do.
    """
    if not config.record_key_fields:
        return KEY_COLUMN, PARTITION_COLUMN
    names = (*config.record_key_fields, *config.partition_fields)
    return tuple(dict.fromkeys(name.partition(".")[0] for name in names))


def delete_found(
    table: Table,
    plan: WriteRequest,
    publish: Callable[[WriteRequest, Workload], CommitResult],
    found_by: Filter,
    partitions: Sequence[str] | None,
) -> CommitResult:
    """
    Delete the rows that a filter finds, and are still those when the delete is published.

    Args:
        table: The table.
        plan: A delete, without its reads.
        publish: Carries out one attempt.
        found_by: The filter, as of ``scan``.
        partitions: Where rows are looked for; None for everywhere.

    Errors: as ``rerun_until_unchanged`` and ``publish``.
    """
    columns = delete_key_columns(table.config)
    if table.config.populate_meta_fields:
        # What was found is where its meta columns say, whatever its columns would make of it.
        columns = (KEY_COLUMN, PARTITION_COLUMN)
        plan = plan.with_keys(replace(plan.rules.keys, carried=True))

    def attempt(refusals: tuple[ConflictReport, ...]) -> CommitResult:
        with table.hold() as state:
            keys = state.to_arrow(columns=columns, filter=found_by, partitions=partitions)
            reads = state.reads(filter=found_by, partitions=partitions)
            workload = LocalWorkload(table.context.world, keys)
            try:
                return publish(replace(plan, reads=reads, refusals=refusals), workload)
            finally:
                workload.release()

    with record_rejected_write(table.context, plan):  # not each attempt: it gives up with the last
        return rerun_until_unchanged(table.context, attempt)

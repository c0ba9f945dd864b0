"""Delete the rows that match a filter; after a conflict read them again and retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from filegroups.reading.read import Filter
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from filegroups.table import TableReader
from filegroups.writing.retry import rerun_until_unchanged
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.inspect.rejected_writes import record_rejected_write
from timeline.commit.conflict_report import ConflictReport
from timeline.errors import ConflictError, RolledBackError
from timeline.model.table_config import TableConfig


def delete_key_columns(config: TableConfig) -> tuple[str, ...]:
    """
    Return the columns that hold the key and partition of a row; a nested field needs its struct.

    A table without key fields uses the meta columns.
    """
    if not config.record_key_fields:
        return KEY_COLUMN, PARTITION_COLUMN
    names = (*config.record_key_fields, *config.partition_fields)
    return tuple(dict.fromkeys(name.partition(".")[0] for name in names))


def delete_found(
    table: TableReader,
    plan: WriteRequest,
    publish: Callable[[WriteRequest, Workload], CommitResult],
    found_by: Filter,
    partitions: Sequence[str] | None,
) -> CommitResult:
    """
    Delete the rows that match a filter; the commit fails if other writers change that result.

    Args:
        table: The table.
        plan: A delete, without its reads.
        publish: Runs one attempt.
        found_by: The filter, as of ``scan``.
        partitions: Partition paths to search; None for all.

    Errors: as ``rerun_until_unchanged`` and ``publish``.
    """
    columns = delete_key_columns(table.config)
    if table.config.populate_meta_fields:
        # The meta columns hold the stored address; key columns may give another one.
        columns = (KEY_COLUMN, PARTITION_COLUMN)
        plan = plan.with_keys(replace(plan.rules.keys, carried=True))

    def attempt(refusals: tuple[ConflictReport, ...]) -> CommitResult:
        with table.pin() as state:
            keys = state.to_arrow(columns=columns, filter=found_by, partitions=partitions)
            reads = state.reads(filter=found_by, partitions=partitions)
            workload = LocalWorkload(table.context.ports, keys)
            try:
                return publish(replace(plan, reads=reads, conflicts=refusals), workload)
            finally:
                workload.release()

    try:
        return rerun_until_unchanged(table.context, attempt)
    except (ConflictError, RolledBackError) as error:  # the last attempt failed
        record_rejected_write(table.context, plan, error)
        raise

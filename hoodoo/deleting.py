"""Deletes by predicate: read which rows, delete those, read again when others changed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hoodoo.given_up import remembered
from timeline.model.schema import KEY_COLUMN, PARTITION_COLUMN
from timeline.model.table_config import TableConfig
from timeline.publishing.refusal import RefusalReport
from timeline.reading.read import Filter
from timeline.table import Table
from timeline.writing.local_workload import LocalWorkload
from timeline.writing.rereading import from_fresh_reads
from timeline.writing.workload import Workload
from timeline.writing.write import Receipt, WritePlan

__all__ = ["delete_found", "key_columns"]


def key_columns(config: TableConfig) -> tuple[str, ...]:
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
    plan: WritePlan,
    publish: Callable[[WritePlan, Workload], Receipt],
    found_by: Filter,
    partitions: Sequence[str] | None,
) -> Receipt:
    """
    Delete the rows that a filter finds, and are still those when the delete is published.

    Args:
        table: The table.
        plan: A delete, without its reads.
        publish: Carries out one attempt.
        found_by: The filter, as of ``scan``.
        partitions: Where rows are looked for; None for everywhere.

    Errors: as ``from_fresh_reads`` and ``publish``.
    """
    columns = key_columns(table.config)
    if table.config.populate_meta_fields:
        # What was found is where its meta columns say, whatever its columns would make of it.
        columns = (KEY_COLUMN, PARTITION_COLUMN)
        plan = plan.with_keys(replace(plan.rules.keys, carried=True))

    def attempt(refusals: tuple[RefusalReport, ...]) -> Receipt:
        with table.hold() as state:
            keys = state.to_arrow(columns=columns, filter=found_by, partitions=partitions)
            reads = state.reads(filter=found_by, partitions=partitions)
            workload = LocalWorkload(table.context.world, keys)
            try:
                return publish(replace(plan, reads=reads, refusals=refusals), workload)
            finally:
                workload.release()

    with remembered(table.context, plan):  # not each attempt: it gives up with the last
        return from_fresh_reads(table.context, attempt)

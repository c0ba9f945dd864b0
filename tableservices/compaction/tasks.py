"""
What each file group of a compaction needs: how its slice is read, and the file it becomes.

The write token of a file is its place in the plan, so that its name is a function of the
plan alone (CMP-2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tableservices.compaction.file_group import CompactionTask
from timeline.context import TableContext
from timeline.errors import UnsupportedTableError
from timeline.files.rewrite import FileGroupTask
from timeline.model.file_group import FileSlice
from timeline.model.instant import Instant
from timeline.model.operations import WriteOperation
from timeline.model.schema import TableSchema, with_meta
from timeline.reading.read import plan_scan
from timeline.reading.snapshot import Snapshot
from timeline.writing.placing import FileRules

__all__ = ["tasks_of"]


def tasks_of(
    context: TableContext,
    snapshot: Snapshot,
    planned: Instant,
    slices: Sequence[FileSlice],
    files: FileRules,
) -> list[CompactionTask]:
    """
    One task for each slice of a plan, in its order.

    Args:
        context: The table.
        snapshot: Taken after the plan, so that everything in it is visible; its schema is
            that of the new files.
        planned: The plan's instant.
        slices: Checked.
        files: How base files are made.

    Raises:
        UnsupportedTableError: The table's columns have ids, or it has no schema yet, or only
            a class of its owner's merges its records.
    """
    if snapshot.newest_internal_schema_json:
        raise UnsupportedTableError(
            "the table's columns have ids (schema on read): this release reads such a table and "
            "does not write it; let Java Hudi compact it",
            kind="schema_on_read",
        )
    config = context.config
    read = plan_scan(context, snapshot, slices, with_hoodie_columns=True).read
    schema = TableSchema.from_avro(snapshot.newest_schema_json or config.create_schema_json or "")
    # Columns that the folder tells stay out of the new file as they were out of the old one.
    read = replace(
        read,
        file_schema=with_meta(schema.arrow),
        columns=tuple(with_meta(schema.arrow).names),
        folders=None,
    )
    return [
        CompactionTask(
            slice=one,
            read=read,
            target=FileGroupTask(
                requested_time=planned.requested_time,
                operation=WriteOperation.UPSERT,
                partition_path=one.file_group.partition_path,
                file_id=one.file_group.file_id,
                write_token=f"{number}-0-0",
                task_number=number,
                avro_json=schema.avro_json,
                base_path=one.base_file.path if one.base_file is not None else None,
                base_requested_time=(
                    one.base_file.requested_time if one.base_file is not None else None
                ),
                parquet=files.parquet,
                bloom=files.bloom,
                stores_keys=config.populate_meta_fields,
                virtual_keys=read.keys,
                partition_marked=True,  # or its slices would not have been found
            ),
        )
        for number, one in enumerate(slices)
    ]

"""``hoodoo write``: rows of a file into a table."""

from __future__ import annotations

from pathlib import Path

import click
import pyarrow as pa

from filegroups.keys.keys import KeySpec, record_keys, validate_ordering
from filegroups.reading.filters import to_expression
from filegroups.reading.scan import known_schema
from filegroups.schema.schema import drop_meta, with_meta
from filegroups.settings.settings import WriteSettings
from filegroups.writing.dry_run import dry_run_write
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write_request import CommitResult
from filegroups.writing.write_schema import addressed
from hoodoo.arguments import named_partitions, refuse_other_types
from hoodoo.catalog import create_table, new_table_config
from hoodoo.cli.invocation import (
    PROBLEMS_FOUND,
    Command,
    Invocation,
    changing,
    commit_result_document,
    nothing_to_do,
)
from hoodoo.cli.printing import count_text
from hoodoo.input_files import read_files
from hoodoo.table import Table
from hoodoo.write_requests import operation_of, with_patterns, write_request_of
from hoodoo.writer import TableWriter
from timeline.errors import InvalidInputError, TableNotFoundError
from timeline.model.commit_metadata import WriteOperation

_OPERATIONS = tuple(operation.value for operation in WriteOperation)


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.option(
    "--input",
    "sources",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Rows: .parquet .csv .json .ndjson .avro .arrow. May be repeated; all files are one commit.",
)
@click.option(
    "--operation",
    metavar="NAME",
    type=click.Choice(_OPERATIONS),
    help=f"One of {', '.join(_OPERATIONS)}. Default: upsert.",
)
@click.option(
    "--filter",
    "condition",
    metavar="TEXT",
    help="With --operation delete: the rows to delete, instead of --input.",
)
@click.option("--key", metavar="A,B,..", help="Record key columns of a new table.")
@click.option("--partition-by", metavar="A,B,..", help="Partition columns of a new table.")
@click.option("--ordering", metavar="A,..", help="Ordering columns of a new table.")
@click.option(
    "--batch-id",
    help="A second write with this id changes nothing, within hoodoo.batch.retention.ms.",
)
@changing
def write(
    invocation: Invocation,
    *,
    address: str,
    sources: tuple[Path, ...],
    operation: str | None,
    condition: str | None,
    key: str | None,
    partition_by: str | None,
    ordering: str | None,
    batch_id: str | None,
) -> None:
    """
    Write the rows of files into a table.

    Update and merge are in Python only: Table.update and Table.merge.
    --key creates a missing table. --dry-run shows the live writers and plans that the write
    would conflict with now, and exits with 5 if there are any. Later writers can still conflict.
    """
    refuse_other_types(batch_id, None, address)  # before a table is made
    given = {
        "hoodie.datasource.write.recordkey.field": key,
        "hoodie.datasource.write.partitionpath.field": partition_by,
        "hoodie.datasource.write.precombine.field": ordering,
        "hoodie.datasource.write.operation": operation,
    }
    code = {name: value for name, value in given.items() if value is not None}
    table = _existing(invocation, address, code, may_create=key is not None)
    new = table is None
    settings = _settings_of(invocation, code) if table is None else table.settings
    chosen = operation_of(settings)
    if condition is not None:
        if table is None or not chosen.traits.deletes_keys or sources:
            raise InvalidInputError(
                "--filter chooses the rows of an existing table to delete: use it with "
                "--operation delete and without --input",
                kind="filter",
            )
        with table:
            _delete_by_filter(invocation, table, condition, batch_id)
        return
    rows = None
    if chosen.traits.takes_rows:
        if not sources:
            raise InvalidInputError("name the file with the rows: --input FILE", kind="no_input")
        known = None
        if table is not None:
            known = known_schema(table.context, table.context.snapshot())
        rows = read_files(sources, None if known is None else known.arrow)
    if table is None and rows is not None:
        table = _created(invocation, address, settings, code, rows)
    if table is None:
        raise TableNotFoundError(
            "cannot delete partitions, because the path has no Hudi table; correct the path: "
            f"{address}"
        )
    with table:
        if invocation.dry_run:
            _would_do(invocation, table, chosen, rows)
            return
        if chosen.replaces and not new:
            invocation.confirm(f"{chosen.value} replaces rows of {table.config.name}; continue?")
        _write(invocation, table, chosen, rows, batch_id)


def _delete_by_filter(
    invocation: Invocation, table: Table, condition: str, batch_id: str | None
) -> None:
    to_expression(condition, with_meta(table.schema))  # reject a wrong filter before the question
    if invocation.dry_run:
        from hoodoo.row_changes import delete_key_columns  # sqlglot takes 0.1 s to import

        keys = table.to_arrow(delete_key_columns(table.config), condition)
        _would_do(invocation, table, WriteOperation.DELETE, keys)
        return
    invocation.confirm(f"delete the rows of {table.config.name} where {condition}?")
    _print_result(invocation, table.delete(condition, batch_id=batch_id))


def _existing(
    invocation: Invocation, address: str, code: dict[str, str], *, may_create: bool
) -> Table | None:
    try:
        return invocation.open_table(address, code)
    except TableNotFoundError:
        if may_create:
            return None
        raise


def _settings_of(invocation: Invocation, code: dict[str, str]) -> WriteSettings:
    return WriteSettings.from_properties(invocation.layers.with_code(code).load())


def _created(
    invocation: Invocation,
    address: str,
    settings: WriteSettings,
    code: dict[str, str],
    rows: pa.Table,
) -> Table | None:
    """Create the table after the rows are checked, so that bad rows leave no empty table."""
    schema = drop_meta(rows.schema)
    keys = _list(code["hoodie.datasource.write.recordkey.field"])
    partitions = _list(code.get("hoodie.datasource.write.partitionpath.field", ""))
    ordering = _list(code.get("hoodie.datasource.write.precombine.field", ""))
    missing = [name for name in (*keys, *partitions, *ordering) if name not in schema.names]
    if missing:
        raise InvalidInputError(
            f"the rows lack key, partition or ordering columns: {missing}; "
            f"they have {list(schema.names)}",
            kind="missing_key_column",
            columns=missing,
        )
    record_keys(rows, KeySpec(record_key_fields=keys, partition_fields=partitions))
    validate_ordering(rows, ordering)
    planned, chosen = new_table_config(address, settings, schema), operation_of(settings)
    if addressed(write_request_of(settings, planned, chosen), None).operation is not chosen:
        raise InvalidInputError(
            "a new table without key fields takes inserts only; name the key by --key, or use "
            f"--operation insert: {chosen.value}",
            kind="no_key_fields",
            operation=chosen.value,
        )
    if invocation.dry_run:
        nothing = nothing_to_do(_action_of(chosen), chosen.value)
        invocation.printer.result(
            {**nothing, "creates_table": True, "rows": rows.num_rows},
            f"would create the table {address} and {chosen.value} {count_text(rows.num_rows, 'row')}",
        )
        raise click.exceptions.Exit(0)
    return create_table(address, schema=schema, properties=invocation.layers.with_code(code))


def _list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _write(
    invocation: Invocation,
    table: Table,
    operation: WriteOperation,
    rows: pa.Table | None,
    batch_id: str | None,
) -> None:
    if rows is None:
        named = table.settings.partitions_to_delete
        result = table.delete_partitions(named, batch_id=batch_id)
    else:
        result = table.write(rows, operation, batch_id=batch_id)
    _print_result(invocation, result)


def _print_result(invocation: Invocation, result: CommitResult) -> None:
    # The result of a repeated batch is that of the earlier call; its rows may differ.
    before = ["nothing was written: this batch was committed before, as"]
    invocation.printer.result(
        commit_result_document(result),
        *(before if result.already_published else ()),
        f"{result.operation.lower()} {result.requested_time}: "
        f"{result.rows_inserted} inserted, {result.rows_updated} updated, "
        f"{result.rows_deleted} deleted, {count_text(result.files_written, 'file')}, "
        f"attempts {result.attempts}",
        *(f"  schema changed: {change.text}" for change in result.schema_changes),
        *(f"  rejected first: {report.text}" for report in result.refusals),
    )


def _action_of(operation: WriteOperation) -> str:
    return "replacecommit" if operation.replaces else "commit"


def _would_do(
    invocation: Invocation, table: Table, operation: WriteOperation, rows: pa.Table | None
) -> None:
    """
    Print the conflicts that the write would have now, without starting it.

    Raises:
        click.exceptions.Exit: There are conflicts.
    """
    settings = table.settings
    TableWriter(table.context, table.properties, settings, table.services).refuse()
    document = nothing_to_do(_action_of(operation), operation.value)
    deleted = named_partitions(settings.partitions_to_delete) if rows is None else ()
    plan = write_request_of(settings, table.config, operation, delete_partitions=deleted)
    if rows is None:
        plan = with_patterns(table.context, plan)
    workload = None if rows is None else LocalWorkload(table.context.ports, rows)
    conflicts = dry_run_write(table.context, plan, workload)
    if rows is not None and workload is not None:
        document |= {"rows": rows.num_rows, "partitions": list(workload.partition_paths())}
    invocation.printer.result(
        {**document, "would_meet": [report.as_document() for report in conflicts]},
        f"would {operation.value}"
        + ("" if rows is None else f" {count_text(rows.num_rows, 'row')}"),
        *(f"conflict: {report.text}" for report in conflicts),
        *([] if conflicts else ["no conflict now"]),
    )
    if conflicts:
        raise click.exceptions.Exit(PROBLEMS_FOUND)

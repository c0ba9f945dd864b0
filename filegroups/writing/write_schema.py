"""
Fit a write to its table before it begins: the schema, and the types of keys.

It refuses schemas that no reader could read back, and those that would lose names and ids.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa

from filegroups.keys.keys import (
    field_type,
)
from filegroups.schema.column_changes import ColumnChanges
from filegroups.schema.column_ids import first_version, ids_for, ids_of, were_renamed
from filegroups.schema.evolution import changes_texts
from filegroups.schema.schema import (
    KEY_COLUMN,
    PARTITION_COLUMN,
    TableSchema,
    drop_meta,
    missing_fields,
    reconcile_schema,
    refuse_nested_fields,
)
from filegroups.writing.workload import Workload
from filegroups.writing.write_request import WriteRequest
from timeline.context import TableContext
from timeline.errors import (
    HoodooError,
    InvalidInputError,
    SchemaConflictError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.snapshot import Snapshot

_NO_COLUMNS = TableSchema(arrow=pa.schema([]), avro_json="")  # of a table never written


def schema_for(
    context: TableContext, snapshot: Snapshot, workload: Workload | None, plan: WriteRequest
) -> tuple[TableSchema, str]:
    """
    Return the schema to write with, and the table's schema before (Avro JSON, "" for none).

    A batch without rows does not count: its columns may have any type, or be missing.
    """
    text = snapshot.newest_schema_json or context.config.create_schema_json
    if plan.changes is not None:
        return _changed(context, snapshot, text, plan.changes, makes_ids=plan.makes_ids)
    schema, before = _fitting(context, text, workload, plan)
    ids = ids_of(
        context.ports.storage, snapshot, before, schema.avro_json, makes_ids=plan.makes_ids
    )
    return (schema if ids is None else replace(schema, ids=ids)), before


def _changed(
    context: TableContext,
    snapshot: Snapshot,
    text: str | None,
    changes: ColumnChanges,
    *,
    makes_ids: bool,
) -> tuple[TableSchema, str]:
    """
    Return the schema with changed columns, and the one before.

    Raises:
        UnsupportedTableError: The table has no schema yet.
        InvalidInputError: Plans are pending, whose files would get the new names and an older time
            (``instants_pending``); or as ``ColumnChanges.apply``.
    """
    known = snapshot.newest_internal_schema_json
    plain = changes.only_appends and not known and not makes_ids
    if not plain:
        _refuse_pending_plans(snapshot)
    if text is None:
        raise _no_schema()
    before = TableSchema.from_avro(text)
    document = json.loads(known) if known else first_version(before.avro_json)
    config = context.config
    named = (*config.record_key_fields, *config.partition_fields, *config.ordering_fields)
    deletes = (config.merge.delete_field,) if config.merge.delete_field else ()
    avro_json, changed = changes.apply(before.avro_json, document, {*named, *deletes})
    if plain:  # older files have no such column, and need no id to show that
        return TableSchema.from_avro(avro_json), before.avro_json
    ids = ids_for(context.ports.storage, snapshot, changed, None if known else document)
    return replace(TableSchema.from_avro(avro_json), ids=ids), before.avro_json


def _refuse_pending_plans(snapshot: Snapshot) -> None:
    pending = snapshot.active.pending
    plans = [one for one in pending if one.action.completes_as is not one.action]
    if plans:
        raise InvalidInputError(
            "columns change while no service is planned: run 'hoodoo services run TABLE --instant "
            f"INSTANT', or cancel the plans: {', '.join(one.requested_time for one in plans)}",
            kind="instants_pending",
            instants=[one.requested_time for one in plans],
        )


def _no_schema() -> UnsupportedTableError:
    return UnsupportedTableError(
        "the table has no completed write, so it has no rows to delete or update: insert rows first",
        kind="no_schema",
    )


def _fitting(
    context: TableContext, text: str | None, workload: Workload | None, plan: WriteRequest
) -> tuple[TableSchema, str]:
    try:
        schema, before = _fitted(context, text, workload, plan)
    except HoodooError:
        if workload is None or not workload.is_empty():
            raise
        return (_NO_COLUMNS, "") if text is None else _kept(text)
    if schema.avro_json != before and workload is not None and workload.is_empty():
        return (_NO_COLUMNS, "") if text is None else _kept(text)
    return schema, before


def _kept(text: str) -> tuple[TableSchema, str]:
    schema = TableSchema.from_avro(text)
    return schema, schema.avro_json


def _fitted(
    context: TableContext, text: str | None, workload: Workload | None, plan: WriteRequest
) -> tuple[TableSchema, str]:
    if workload is None or plan.rules.partial or plan.operation.traits.deletes_keys:
        if text is None:
            raise _no_schema()
        return _kept(text)
    stored = _stored_columns(context, workload.schema)
    if text is None:
        _check_fields(context, workload.schema)
        return TableSchema.from_arrow(stored, context.config.name), ""
    before = TableSchema.from_avro(text)
    changed, _ = reconcile_schema(before, stored, plan.schema)
    return changed, before.avro_json


def rows_schema(
    context: TableContext, schema: TableSchema, workload: Workload, plan: WriteRequest
) -> TableSchema:
    """
    Return the columns of the rows as written: the table's, or those of a partial update.

    Raises:
        InvalidInputError: A partial update has columns that the table lacks.
        UnsupportedTableError: No reader could read it.
    """
    chosen = plan.rules.partial_columns
    if chosen is None:
        return schema
    _refuse_partial(context)
    if workload.is_empty():
        return schema
    names = drop_meta(_stored_columns(context, workload.schema)).names
    if chosen:
        names = [name for name in names if name in plan.schema.required.union(chosen)]
    unknown = sorted({*names, *chosen}.difference(schema.arrow.names))
    if unknown:
        raise InvalidInputError(
            "a partial update changes columns that the table has: add new columns with whole "
            f"rows first: {unknown}; it has {schema.arrow.names}",
            kind="unknown_column",
            columns=unknown,
        )
    return schema.only(names)


def _refuse_partial(context: TableContext) -> None:
    config = context.config
    if config.merge.merger is not None:
        raise UnsupportedTableError(
            "a plug-in merges whole rows of this table: upsert whole rows",
            kind="custom_merger_partial",
        )
    if context.non_blocking:
        raise UnsupportedTableError(
            "a log with some columns cannot follow a delete that another writer appends at the "
            "same time, so non-blocking writers upsert whole rows: do that, or set "
            "hoodie.write.concurrency.mode=OPTIMISTIC_CONCURRENCY_CONTROL on all writers",
            kind="partial_non_blocking",
        )
    if config.table_type is TableType.MERGE_ON_READ and not config.populate_meta_fields:
        raise UnsupportedTableError(
            "Java Hudi cannot read partial updates of a merge-on-read table without stored keys "
            "(hoodie.populate.meta.fields): upsert whole rows",
            kind="partial_virtual_keys",
        )


def _stored_columns(context: TableContext, incoming: pa.Schema) -> pa.Schema:
    """Return the columns of the files; partition columns may be in the folder's name only."""
    config = context.config
    if not config.drop_partition_columns:
        return incoming
    return pa.schema([each for each in incoming if each.name not in config.partition_fields])


def addressed(plan: WriteRequest, workload: Workload | None) -> WriteRequest:
    """
    Return the request with the way to find rows of a table without key fields, as Java does.

    Rows that were read from the table carry their record key and partition path in meta columns; an
    upsert or delete uses those. An upsert of other rows only adds them. A batch without rows needs
    no lookup.

    Raises:
        InvalidInputError: The write needs to find rows without a key (``no_key_fields``).
    """
    keys, operation = plan.rules.keys, plan.operation
    finds_keys = operation.traits.looks_up_keys
    if not keys.automatic or not (finds_keys or plan.rules.tags):
        return plan
    carries = workload is not None and KEY_COLUMN in workload.schema.names
    if finds_keys and keys.stores_keys and carries:
        rules = replace(plan.rules, keys=replace(keys, carried=True), tags=True, combine=True)
        return replace(plan, rules=rules)
    if operation.traits.updates and not plan.rules.partial:
        rules = replace(plan.rules, operation=WriteOperation.INSERT, tags=False, combine=False)
        return replace(plan, rules=rules)
    if workload is not None and workload.is_empty():
        return plan
    raise InvalidInputError(
        "the table has no record key fields, so its rows are found only by their meta columns: "
        f"read them with {KEY_COLUMN} and {PARTITION_COLUMN} and write those back, or use insert, "
        f"bulk_insert or an overwrite: {operation.value}",
        kind="no_key_fields",
        operation=operation.value,
    )


def refuse_other_key_types(plan: WriteRequest, prepared: TableSchema, now: TableSchema) -> None:
    """
    Refuse rows that were prepared for columns that the table no longer has.

    Two concurrent first writes of a table may have different types. Where a column was renamed
    meanwhile, the rows' columns may mean others now.

    Raises:
        SchemaConflictError: A value of a key or partition field has another text now, or columns
            were renamed.
    """
    if plan.changes is None and were_renamed(prepared.ids, now.ids):
        raise SchemaConflictError(
            "another writer renamed columns, or dropped and added one, after these rows were "
            "prepared: compare their columns with the table's, then write them again",
            kind="schema_conflict",
        )
    if prepared.arrow == now.arrow:
        return
    for name in sorted(plan.rules.keys.text_fields):
        mine, theirs = field_type(prepared.arrow, name), field_type(now.arrow, name)
        if mine is None or theirs is None or mine == theirs:
            continue
        if changes_texts(mine, theirs) or changes_texts(theirs, mine):
            raise SchemaConflictError(
                "another writer changed the type of a key or partition column, so its values "
                f"have another text: write the rows again: column={name!r} type={mine} "
                f"table_type={theirs}",
                column=name,
                type=str(mine),
                table_type=str(theirs),
            )


def _check_fields(context: TableContext, incoming: pa.Schema) -> None:
    """Refuse data that lacks a key, partition or ordering field, before the write begins."""
    config = context.config
    named = (*config.record_key_fields, *config.partition_fields, *config.ordering_fields)
    missing = missing_fields(incoming, named)
    if missing:
        raise InvalidInputError(
            "the rows lack columns that the table needs as key, partition or ordering: "
            f"{missing}. Add them; the rows have {list(incoming.names)}",
            kind="missing_key_column",
            columns=missing,
        )
    refuse_nested_fields(incoming, named)

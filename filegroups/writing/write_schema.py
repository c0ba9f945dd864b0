"""
Fit a write to its table before it begins: the schema, and the form of stored keys and folders.

It refuses schemas that no reader could read back, and those that would lose names and ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import Footer, read_footer
from filegroups.files.slice_reader import read_slice
from filegroups.keys.keys import (
    DEFAULT_PARTITION,
    DroppedPartitionColumns,
    KeySpec,
    field_type,
    java_order,
    plain_column,
)
from filegroups.keys.timestamp_keys import timestamp_texts
from filegroups.reading.read import known_schema, plan_scan, view_of
from filegroups.schema.casting import java_texts
from filegroups.schema.evolution import changes_texts
from filegroups.schema.schema import (
    KEY_COLUMN,
    PARTITION_COLUMN,
    TableSchema,
    drop_meta,
    missing_fields,
    reconcile_schema,
)
from filegroups.writing.workload import Workload
from filegroups.writing.write_request import WriteRequest
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    HoodooError,
    InvalidInputError,
    SchemaConflictError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import FileSlice
from timeline.model.instant import NUMBERS, TimestampForm, TimestampTexts, form_of
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
    _refuse_schema_on_read(snapshot)
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
            raise UnsupportedTableError(
                "the table has no completed write, so it has no rows to delete or update: insert "
                "rows first",
                kind="no_schema",
            )
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


def _refuse_schema_on_read(snapshot: Snapshot) -> None:
    """Refuse tables with column ids: rows without ids would lose names given by ``alter table``."""
    if snapshot.newest_internal_schema_json:
        raise UnsupportedTableError(
            "the table's columns have ids (schema on read), and this release only reads such a "
            "table: write with Java Hudi and hoodie.schema.on.read.enable=true",
            kind="schema_on_read",
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


def with_stored_forms(
    context: TableContext, snapshot: Snapshot, plan: WriteRequest
) -> WriteRequest:
    """
    Return the request with keys and folders in the form of the stored rows.

    Outside and errors: as ``keys_as_stored`` and ``folders_as_stored``.
    """
    keys = keys_as_stored(context, snapshot, plan.rules.keys)
    return plan.with_keys(folders_as_stored(context, snapshot, keys))


def refuse_other_key_types(plan: WriteRequest, prepared: TableSchema, now: TableSchema) -> None:
    """
    Refuse rows whose keys were made for column types that the table no longer has.

    Two concurrent first writes of a table may have different types.

    Raises:
        SchemaConflictError: A value of a key or partition field has another text now.
    """
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


# ---- The form of stored keys of a complex key generator with one field: ``id:7`` or ``7``
#
# Releases of Java Hudi differ in it (0.14.1 to 1.0.2 write the bare value), and no property of the
# table records it. The writer reads the form from keys in the files and uses it, so that no record
# gets a second key. It refuses files with both forms.

_SAMPLED = 4  # file groups, of the oldest and of the newest each
_REMEMBERED_MAX = 100_000  # files

_BOTH = frozenset({False, True})


def keys_as_stored(context: TableContext, snapshot: Snapshot, keys: KeySpec) -> KeySpec:
    """
    Return the key spec with the form that stored keys have; other key specs stay unchanged.

    Outside: once per opened table 1 list a partition and at most 8 reads of base files, if the key
    generator is complex and has one field.

    Raises:
        UnsupportedTableError: Stored keys have both forms (``mixed_key_encoding``).
        InvalidInputError: The option names the other form (``setting_against_table``).
    """
    if not keys.has_two_forms:
        return keys
    forms = stored_forms(context, snapshot, keys)
    if forms == _BOTH:
        raise _mixed(keys, "")
    if not forms:
        return keys
    (prefixed,) = forms
    asked = keys.prefixes_single_key
    if asked is not None and asked != prefixed and keys.table_version < 9:
        raise InvalidInputError(
            "the table stores its record keys in the other form, so updates would not find them: "
            f"set hoodie.write.complex.keygen.new.encoding={str(not prefixed).lower()}, or omit "
            f"it: the keys are stored as {_shape(keys, prefixed=prefixed)}",
            kind="setting_against_table",
            key="hoodie.write.complex.keygen.new.encoding",
            value=str(not asked).lower(),
        )
    return replace(keys, stored_prefix=prefixed)


def stored_forms(context: TableContext, snapshot: Snapshot, keys: KeySpec) -> frozenset[bool]:
    """
    Return which forms the stored keys have, from a sample of file groups.

    Returns:
        True if some keys have the field's name as prefix, False if some have not. Empty without rows.

    Outside: as ``keys_as_stored``.
    """
    known = context.key_encodings.get("")
    if known:
        return known
    slices = view_of(context, snapshot).latest_slices(None)
    listed = sorted(slices, key=lambda one: one.base_instant_time)
    chosen = {one.file_group: one for one in (*listed[:_SAMPLED], *listed[-_SAMPLED:])}
    found: frozenset[bool] = frozenset()
    for one in chosen.values():
        found |= _read_forms(context, snapshot, one, keys, whole=False)
    context.key_encodings[""] = found
    return found


def refuse_other_forms(
    context: TableContext, snapshot: Snapshot, slices: Iterable[FileSlice], keys: KeySpec
) -> None:
    """
    Refuse file groups with keys in another form, because lookups would miss these keys.

    Outside: for each new file its footer, and its keys if the footer is not enough.

    Raises:
        UnsupportedTableError: ``mixed_key_encoding``.
    """
    if not keys.has_two_forms:
        return
    for one in slices:
        if forms_of(context, snapshot, one, keys) - {keys.prefixes_keys}:
            context.key_encodings.pop("", None)  # a repair may have changed them: sample again
            raise _mixed(keys, str(one.file_group))


def forms_of(
    context: TableContext, snapshot: Snapshot, one: FileSlice, keys: KeySpec
) -> frozenset[bool]:
    """Return the forms of all keys of a slice's base file, or of its logs if it has none."""
    path = one.base_file.path if one.base_file is not None else one.log_files[-1].path
    known = context.key_encodings.get(path)
    if known is not None:
        return known
    by_footer = None
    if one.base_file is not None:
        by_footer = _forms_in_footer(read_footer(context.ports.storage, path), keys)
    found = (
        by_footer
        if by_footer is not None
        else _read_forms(context, snapshot, one, keys, whole=True)
    )
    if len(context.key_encodings) > _REMEMBERED_MAX:
        context.key_encodings.clear()
    context.key_encodings[path] = found
    return found


def _forms_in_footer(footer: Footer, keys: KeySpec) -> frozenset[bool] | None:
    """Return the forms by the least and greatest key; None if keys of both forms are possible."""
    if footer.rows == 0:
        return frozenset()
    least, greatest, prefix = footer.key_min, footer.key_max, keys.single_prefix
    if least is None or greatest is None:
        return None
    if least.startswith(prefix) and greatest.startswith(prefix) and keys.prefixes_keys:
        return frozenset({True})
    below = java_order(greatest) < java_order(prefix)
    above = java_order(least) > java_order(prefix) and not least.startswith(prefix)
    return frozenset({False}) if below or above else None


def _read_forms(
    context: TableContext, snapshot: Snapshot, one: FileSlice, keys: KeySpec, *, whole: bool
) -> frozenset[bool]:
    """Return the forms by keys and values of a whole slice, or of its first rows."""
    (field,) = keys.record_key_fields
    columns = (KEY_COLUMN, field.partition(".")[0])
    read = plan_scan(context, snapshot, [one], columns=columns).read
    found: frozenset[bool] = frozenset()
    for batch in read_slice(context.ports.storage, context.ports.events, one, read):
        if batch.num_rows:
            found |= _forms(pa.Table.from_batches([batch]), field, keys.single_prefix)
            if not whole or found == _BOTH:
                break
    return found


def _forms(rows: pa.Table, field: str, prefix: str) -> frozenset[bool]:
    stored = pc.cast(rows.column(KEY_COLUMN), pa.string())
    prefixed = pc.starts_with(stored, prefix)
    column = plain_column(rows, field)
    if column is not None and (
        pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    ):
        # A bare value may itself start with the prefix.
        bare = pc.equal(stored, java_texts(column, field, "unsupported_key_type"))
        prefixed = pc.and_(prefixed, pc.invert(pc.fill_null(bare, False)))
    return frozenset(pc.unique(prefixed).drop_null().to_pylist())


def _shape(keys: KeySpec, *, prefixed: bool) -> str:
    return f"{keys.single_prefix}value" if prefixed else "the bare value"


def _mixed(keys: KeySpec, where: str) -> UnsupportedTableError:
    fields: Sequence[str] = keys.record_key_fields
    return UnsupportedTableError(
        "some stored record keys are the bare value and others begin with the field's name, "
        "because releases of Hudi differ for a complex key of one field. A write would miss "
        "rows: run 'hoodoo table repair-keys TABLE' first; "
        f"field={fields[0]}{' first in ' + where if where else ''}",
        kind="mixed_key_encoding",
        feature="keys of two forms",
        column=fields[0],
    )


# ---- How a table's partition folders show timestamps
#
# A row with a timestamp partition column belongs in the folder that its writer, perhaps Spark SQL,
# would create. Only the existing folders show the form, and only rows show the time zone.

_SAMPLED_FOLDERS = 8  # folders whose rows are read to find the zone
_SECONDS = len("2023-03-10 12:30:00")


def folders_as_stored(context: TableContext, snapshot: Snapshot, keys: KeySpec) -> KeySpec:
    """
    Return the key spec with the folder form of timestamps that the table has.

    Without folders they are numbers, the form of a DataFrame write of Java Hudi.

    Outside: if a partition column is a timestamp, until the zone is known: 1 stat a partition, 1
    list of each partition that is read, and the first rows of at most 8.

    Raises:
        UnsupportedTableError: The folders have several forms (``mixed_partition_paths``), or
            show the clock of a zone that is neither UTC nor this process's
            (``partition_zone``).
    """
    schema = known_schema(context, snapshot)
    if schema is None:
        return keys
    names = [
        name
        for name, is_time in zip(keys.partition_fields, keys.are_times, strict=True)
        if not is_time and name not in keys.untyped_fields and _is_moment(schema.arrow, name)
    ]
    if not names:
        return keys
    known = context.timestamp_texts.get("")
    if known is None:
        known = _timestamp_texts(context, snapshot, keys, names)
        if known is None:
            return keys  # no folders yet
        if not known.or_zone:
            context.timestamp_texts[""] = known
    return replace(keys, moments=known)


def _is_moment(schema: pa.Schema, name: str) -> bool:
    """Return whether a column is a timestamp with a zone; others are written as numbers."""
    place = schema.get_field_index(name)
    kind = schema.field(place).type if place >= 0 else None
    return kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None


def _timestamp_texts(
    context: TableContext, snapshot: Snapshot, keys: KeySpec, names: list[str]
) -> TimestampTexts | None:
    folders = DroppedPartitionColumns(
        fields=keys.partition_fields,
        dropped=(),
        hive_style=keys.hive_style,
        url_encode=keys.url_encode,
    )
    forms: dict[TimestampForm, str] = {}
    samples: list[tuple[str, str, str]] = []
    for path in view_of(context, snapshot).partition_paths():
        for name, text in _values(folders, path, names):
            form = form_of(text)
            if form is None:
                raise _strange(path, name)
            forms.setdefault(form, path)
            samples.append((path, name, text))
    if len(forms) > 1:
        raise UnsupportedTableError(
            "the table's folders show times in several forms, because DataFrame writes and Spark "
            "SQL differ, and a write would miss rows in the other form. End the writers and save "
            "the rows of one form with 'hoodoo read TABLE --filter TEXT --to FILE'. Delete those "
            "partitions with the engine that made them, then write the saved rows in the other "
            f"form: {sorted(forms.values())}",
            kind="mixed_partition_paths",
            feature="folders of times in several forms",
        )
    if not forms:
        return None
    (form,) = forms
    if form is TimestampForm.NUMBER:
        return NUMBERS
    return TimestampTexts(form, *_zones(context, snapshot, form, samples))


def _values(
    folders: DroppedPartitionColumns, path: str, names: Iterable[str]
) -> Iterable[tuple[str, str]]:
    try:
        values = folders.values(path)
    except CorruptTableError:
        raise _strange(path, ",".join(names)) from None
    return [(name, text) for name in names if (text := values[name]) and text != DEFAULT_PARTITION]


def _zones(
    context: TableContext,
    snapshot: Snapshot,
    form: TimestampForm,
    samples: list[tuple[str, str, str]],
) -> list[str]:
    """
    Return the zones in which rows of a partition have the timestamp that its folder shows.

    Two if no partition with rows distinguishes the own zone from UTC.
    """
    own = context.ports.zone()
    zones = ["UTC"] if own.fingerprint == "UTC" else [own.name, "UTC"]
    seen = 0
    for path, name, text in reversed(_telling(samples, zones)):  # the oldest are emptied first
        moment = _first_moment(context, snapshot, path, name)
        if moment is None:
            continue
        zones = [one for one in zones if _shows(moment, TimestampTexts(form, one), name, text)]
        seen += 1
        if not zones:
            raise UnsupportedTableError(
                "the table's folders show times in a zone that is neither UTC nor this process's "
                f"zone, {own.name}: set TZ to the zone of the table's other writers: "
                f"column={name!r} folder={path!r}",
                kind="partition_zone",
                feature="folders of times in another zone",
            )
        if seen == _SAMPLED_FOLDERS:
            break
    return zones


def _telling(samples: list[tuple[str, str, str]], zones: list[str]) -> list[tuple[str, str, str]]:
    """Return the samples whose text means different timestamps in the zones."""
    if len(zones) == 1:
        return samples
    clocks = pa.array([text.replace("%3A", ":")[:_SECONDS] for _, _, text in samples])
    moments = pc.strptime(clocks, format="%Y-%m-%d %H:%M:%S", unit="s", error_is_null=True)
    moments = moments.cast(pa.timestamp("s", "UTC"))
    name = samples[0][1]
    try:
        shown = [
            timestamp_texts(moments, TimestampTexts(TimestampForm.SQL, one), name) for one in zones
        ]
    except InvalidInputError:  # a zone that only the operating system knows
        return samples
    same = pc.fill_null(pc.equal(*shown), False).to_pylist()
    return [one for one, alike in zip(samples, same, strict=True) if not alike]


def _shows(moment: pa.Array, how: TimestampTexts, name: str, text: str) -> bool:
    try:
        (shown,) = timestamp_texts(moment, how, name).to_pylist()
    except InvalidInputError:  # a zone that only the operating system knows
        return False
    return bool(shown.replace("%3A", ":") == text.replace("%3A", ":"))


def _first_moment(
    context: TableContext, snapshot: Snapshot, path: str, name: str
) -> pa.Array | None:
    for one in view_of(context, snapshot).latest_slices([path]):
        read = plan_scan(context, snapshot, [one], columns=(name,)).read
        for batch in read_slice(context.ports.storage, context.ports.events, one, read):
            values = batch.column(name).drop_null()
            if len(values):
                return values.slice(0, 1)
    return None


def _strange(path: str, name: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        "a folder shows the time of its partition column in an unknown form. End the writers and "
        "save its rows with 'hoodoo read TABLE --filter TEXT --to FILE'. Delete the partition "
        f"with the engine that made it, then write the saved rows: column={name!r} folder={path!r}",
        kind="mixed_partition_paths",
        feature="folders of moments",
    )

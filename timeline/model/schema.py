"""
The schema of a table: one Arrow schema, its Avro form, and how it may change.

Hudi names a table's schema in Avro JSON (commit metadata, file footers); the engine
computes in Arrow. This file is the only place that knows both and the rules between
them: which types exist (fmt 4.4), which incoming data fits without loss, and growth by
added nullable columns, the only change of schema a writer may make. The Avro text a
table already has is kept as it is; growth appends fields to it, so that documents,
defaults and logical types written by others survive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import InvalidInputError
from timeline.model.avro_schema import arrow_to_avro, avro_to_arrow, field_to_avro

__all__ = [
    "IS_DELETED_COLUMN",
    "META_COLUMNS",
    "META_FIELDS",
    "TableSchema",
    "arrow_to_avro",
    "avro_to_arrow",
    "avro_with_meta",
    "canonical_type",
    "drop_meta",
    "merge_growth",
    "normalise",
    "promote",
    "reconcile",
    "with_meta",
]

META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
IS_DELETED_COLUMN = "_hoodie_is_deleted"  # the one reserved-looking name that is data (fmt 7)
META_FIELDS = tuple(pa.field(name, pa.string()) for name in META_COLUMNS)

_RESERVED_PREFIX = "_hoodie_"
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT_BITS = {
    pa.int8(): 8,
    pa.int16(): 16,
    pa.int32(): 32,
    pa.int64(): 64,
    pa.uint8(): 9,
    pa.uint16(): 17,
    pa.uint32(): 33,
}  # bits a signed type needs to hold every value
_TIMESTAMP_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """A table's own columns (no meta columns) as Arrow and as the Avro JSON on record."""

    arrow: pa.Schema
    avro_json: str

    @classmethod
    def from_avro(cls, avro_json: str) -> TableSchema:
        """
        Take over the schema of an existing table; meta columns in it are left out.

        Raises:
            CorruptTableError: The text is no Avro record.
            UnsupportedTableError: It has a type this engine does not handle.
        """
        return _of_avro(avro_json)

    @classmethod
    def from_arrow(cls, arrow: pa.Schema, table_name: str) -> TableSchema:
        """
        Make the schema of a new table: meta columns left out, types made canonical.

        Raises:
            InvalidInputError: A column's name or type cannot be in a Hudi table.
        """
        fields = [
            pa.field(each.name, canonical_type(each.type, each.name)) for each in drop_meta(arrow)
        ]
        _check_names(each.name for each in fields)
        schema = pa.schema(fields)
        return cls(arrow=schema, avro_json=arrow_to_avro(schema, table_name))

    def grown(self, added: Iterable[pa.Field]) -> TableSchema:
        """The schema with nullable columns appended; names and types must already be checked."""
        added = tuple(added)
        if not added:
            return self
        document = json.loads(self.avro_json)
        space = ".".join(filter(None, (document.get("namespace", ""), document["name"])))
        fields = [*document["fields"], *(field_to_avro(each, space) for each in added)]
        return TableSchema(
            arrow=pa.schema([*self.arrow, *added]),
            avro_json=_compact({**document, "fields": fields}),
        )


@lru_cache(maxsize=64)
def _of_avro(avro_json: str) -> TableSchema:
    """Every commit of a table meets the same few texts."""
    arrow = avro_to_arrow(avro_json)
    document = json.loads(avro_json)
    own = [each for each in document["fields"] if each["name"] not in META_COLUMNS]
    if len(own) != len(document["fields"]):
        avro_json = _compact({**document, "fields": own})
    return TableSchema(arrow=drop_meta(arrow), avro_json=avro_json)


def with_meta(schema: pa.Schema) -> pa.Schema:
    """The schema of a data file: the five meta columns first, then the table's own."""
    return pa.schema([*META_FIELDS, *schema])


@lru_cache(maxsize=64)
def avro_with_meta(avro_json: str) -> str:
    """The Avro JSON of a data file's footer: the table's own with the meta columns first."""
    document = json.loads(avro_json)
    meta = [
        {"name": name, "type": ["null", "string"], "doc": "", "default": None}
        for name in META_COLUMNS
    ]
    own = [each for each in document["fields"] if each["name"] not in META_COLUMNS]
    return _compact({**document, "fields": [*meta, *own]})


def drop_meta(schema: pa.Schema) -> pa.Schema:
    """The schema without the meta columns, as when rows read from a table are written back."""
    return pa.schema([each for each in schema if each.name not in META_COLUMNS])


def canonical_type(kind: pa.DataType, name: str) -> pa.DataType:
    """
    Choose the type a table stores for an incoming type.

    Args:
        kind: Any Arrow type.
        name: The column, for the message.

    Raises:
        InvalidInputError: No Hudi type holds its values (``unsupported_type``).
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return canonical_type(kind.value_type, name)
    simple = _canonical_scalar(kind)
    if simple is not None:
        return simple
    if _is_list(kind):
        element = canonical_type(kind.value_type, name + ".element")
        return pa.list_(pa.field("element", element))
    if pa.types.is_map(kind):
        if canonical_type(kind.key_type, name + ".key") != pa.string():
            raise _unsupported(name, kind, "map keys must be strings")
        return pa.map_(pa.string(), canonical_type(kind.item_type, name + ".value"))
    if pa.types.is_struct(kind) and kind.num_fields:
        children = list(kind)
        for child in children:
            _check_avro_name(child.name)
        return pa.struct(
            [pa.field(c.name, canonical_type(c.type, f"{name}.{c.name}")) for c in children]
        )
    raise _unsupported(name, kind, "cast the column before writing")


def reconcile(
    table_schema: TableSchema, incoming: pa.Schema
) -> tuple[TableSchema, tuple[pa.Field, ...]]:
    """
    Fit incoming columns to a table: what the schema will be, and what it grew by.

    Columns the incoming data lacks stay (``normalise`` fills them with nulls); columns of
    a type that widens without loss are taken; unknown columns are appended as nullable.

    Returns:
        The schema to write with, and the added fields (empty when nothing grew).

    Raises:
        InvalidInputError: A column repeats, has a bad name (``bad_column_name``), or its
            type does not fit (``schema_mismatch``; fields ``column``, ``table_type``,
            ``incoming_type``).
    """
    fields = list(drop_meta(incoming))
    _check_unique(each.name for each in fields)
    known = {each.name: each for each in table_schema.arrow}
    folded = {name.lower(): name for name in known}
    added: list[pa.Field] = []
    for each in fields:
        mine = known.get(each.name)
        if mine is None:
            _check_names([each.name])
            twin = folded.get(each.name.lower())
            if twin is not None:
                raise InvalidInputError(
                    "the column differs from one of the table only by case, which other engines "
                    f"cannot read; rename it: column={each.name!r} table_column={twin!r}",
                    kind="bad_column_name",
                    column=each.name,
                )
            added.append(pa.field(each.name, canonical_type(each.type, each.name)))
        elif not _fits(each.type, mine.type):
            raise _mismatch(each.name, mine.type, each.type)
    return table_schema.grown(added), tuple(added)


def merge_growth(base: TableSchema, mine: TableSchema, theirs: TableSchema) -> TableSchema | None:
    """
    Join the columns two writers added to one schema at the same time.

    Args:
        base: What both started from.
        mine: What this writer wants to publish.
        theirs: What the other published first; its columns come first in the result.

    Returns:
        The joined schema, or None when both gave one column different types or when
        either changed a column of the base: only a redo or a person can decide then.
    """
    for side in (mine.arrow, theirs.arrow):
        if any(_type_in(side, each.name) != each.type for each in base.arrow):
            return None
    added: list[pa.Field] = []
    for each in mine.arrow:
        existing = _type_in(theirs.arrow, each.name)
        if existing is None:
            added.append(each)
        elif existing != each.type:
            return None
    return theirs.grown(added)


def normalise(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """
    Bring rows to exactly this schema: order, types, missing columns as nulls.

    Columns that the schema does not name are left out.

    Shapes: table (n rows) -> (n rows); order kept.

    Raises:
        InvalidInputError: A value does not fit its column's type without loss
            (``lossy_value``), or the type cannot be converted (``schema_mismatch``).
    """
    if table.schema.equals(schema):
        return table.replace_schema_metadata(None) if table.schema.metadata else table
    columns = []
    names = set(table.schema.names)
    for each in schema:
        if each.name not in names:
            columns.append(_nulls(table.num_rows, each.type))
            continue
        columns.append(cast_column(table.column(each.name), each.type, each.name))
    return pa.Table.from_arrays(columns, schema=schema)


def promote(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """
    Bring rows read from a file to this schema, as a reader of an evolved table must.

    As ``normalise``, and also the promotions Java Hudi allows between an older file and a
    newer schema (numbers to wider or floating ones, whole numbers to text, text to bytes).

    Raises:
        InvalidInputError: ``schema_mismatch`` or ``lossy_value``: no such promotion exists.
    """
    for position, each in enumerate(table.schema):
        wanted = _type_in(schema, each.name)
        if wanted is not None and each.type != wanted and _promotes(each.type, wanted):
            column = pc.cast(table.column(position), wanted, safe=False)
            table = table.set_column(position, pa.field(each.name, wanted), column)
    return normalise(table, schema)


def cast_column(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """
    Convert one column to a type that holds its values without loss.

    Raises:
        InvalidInputError: ``lossy_value`` or ``schema_mismatch``.
    """
    if column.type == kind:
        return column
    if not _fits(column.type, kind):
        raise _mismatch(name, kind, column.type)
    try:
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        return pc.cast(column, kind)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            "a value does not fit the column without loss; round or cast it before writing: "
            f"column={name!r} table_type={kind} incoming_type={column.type} detail={error}",
            kind="lossy_value",
            column=name,
            table_type=str(kind),
            incoming_type=str(column.type),
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise _mismatch(name, kind, column.type) from error


def _nulls(rows: int, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(rows, kind)], type=kind)


def _canonical_scalar(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if kind in _INT_BITS:
        return pa.int32() if _INT_BITS[kind] <= 32 else pa.int64()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_date(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind):
        return kind
    return kind if types.is_fixed_size_binary(kind) else None


def _fits(source: pa.DataType, target: pa.DataType) -> bool:
    # Where only the resolution differs (timestamps), the safe cast of the values decides later.
    types = pa.types
    if source == target or types.is_null(source):
        return True
    if types.is_dictionary(source) or types.is_run_end_encoded(source):
        return _fits(source.value_type, target)
    if source in _INT_BITS:
        if target in _INT_BITS:
            return _INT_BITS[source] <= _INT_BITS[target]
        return bool(types.is_float64(target) and _INT_BITS[source] <= 53)
    if types.is_timestamp(source) and types.is_timestamp(target):
        return bool(source.tz) == bool(target.tz)
    if types.is_decimal(source) and types.is_decimal(target):
        whole = source.precision - source.scale <= target.precision - target.scale
        return bool(whole and source.scale <= target.scale)
    if _is_list(source) and _is_list(target):
        return _fits(source.value_type, target.value_type)
    if types.is_map(source) and types.is_map(target):
        keys_fit = _fits(source.key_type, target.key_type)
        return keys_fit and _fits(source.item_type, target.item_type)
    if types.is_struct(source) and types.is_struct(target):
        wanted = {each.name: each.type for each in target}
        return all(c.name in wanted and _fits(c.type, wanted[c.name]) for c in source)
    if types.is_floating(source) and types.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    if types.is_fixed_size_binary(source) and types.is_binary(target):
        return True
    return bool(_canonical_scalar(source) == target)


def _promotes(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(source):
        return bool(types.is_floating(target) or types.is_string(target))
    texts = (types.is_string(source) or types.is_binary(source)) and (
        types.is_string(target) or types.is_binary(target)
    )
    return bool(texts)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    position = schema.get_field_index(name)
    return None if position < 0 else schema.field(position).type


def _check_names(names: Iterable[str]) -> None:
    names = tuple(names)
    _check_unique(names)
    for name in names:
        if name.startswith(_RESERVED_PREFIX) and name != IS_DELETED_COLUMN:
            raise InvalidInputError(
                "the column's name is reserved for the table's own use; rename it: "
                f"column={name!r}",
                kind="bad_column_name",
                column=name,
            )
        _check_avro_name(name)


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InvalidInputError(
                f"two columns have one name (case does not count); rename one: column={name!r}",
                kind="bad_column_name",
                column=name,
            )
        seen.add(name.lower())


def _check_avro_name(name: str) -> None:
    if not _AVRO_NAME.fullmatch(name):
        raise InvalidInputError(
            "the column's name may only have letters, digits and underscores and must not start "
            f"with a digit; rename it: column={name!r}",
            kind="bad_column_name",
            column=name,
        )


def _mismatch(name: str, table_type: pa.DataType, incoming: pa.DataType) -> InvalidInputError:
    return InvalidInputError(
        "the column's type does not fit the table; cast it before writing: "
        f"column={name!r} table_type={table_type} incoming_type={incoming}",
        kind="schema_mismatch",
        column=name,
        table_type=str(table_type),
        incoming_type=str(incoming),
    )


def _unsupported(name: str, kind: pa.DataType, advice: str) -> InvalidInputError:
    return InvalidInputError(
        f"a Hudi table cannot hold this type; {advice}: column={name!r} type={kind}",
        kind="unsupported_type",
        column=name,
        incoming_type=str(kind),
    )


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

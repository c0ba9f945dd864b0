"""
The schema of a table: one Arrow schema, its Avro form, and how it may change.

Hudi stores a table's schema as Avro JSON (commit metadata, file footers); hoodoo computes in Arrow.
This module has both: the columns of a new table (fmt 4.4), and the schema after a write with other
columns. Such a write adds nullable columns and widens types by Hudi's table, at every level. The
existing Avro text changes only where a column does, so documentation, defaults and logical types of
other engines stay.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from filegroups.schema.avro_schema import (
    HUDI_TYPE,
    arrow_to_avro,
    avro_to_arrow,
    evolved_avro,
    field_to_avro,
    record_space,
)
from filegroups.schema.evolution import (
    VECTOR_ELEMENTS,
    MissingColumns,
    SchemaRules,
    bad_name_error,
    check_avro_name,
    column_type,
    evolved_type,
    retains_column,
)
from timeline.errors import InvalidInputError

if TYPE_CHECKING:
    from filegroups.schema.column_ids import ColumnIds

COMMIT_TIME_COLUMN = "_hoodie_commit_time"
SEQUENCE_COLUMN = "_hoodie_commit_seqno"
KEY_COLUMN = "_hoodie_record_key"
PARTITION_COLUMN = "_hoodie_partition_path"
FILE_NAME_COLUMN = "_hoodie_file_name"
META_COLUMNS = (
    COMMIT_TIME_COLUMN,
    SEQUENCE_COLUMN,
    KEY_COLUMN,
    PARTITION_COLUMN,
    FILE_NAME_COLUMN,
)
IS_DELETED_COLUMN = "_hoodie_is_deleted"  # a data column in spite of the reserved prefix (fmt 7)
META_FIELDS = tuple(pa.field(name, pa.string()) for name in META_COLUMNS)

_RESERVED_PREFIX = "_hoodie_"
#: Reserved names of columns that a user's rows may have; Hudi's streamer adds those of Kafka.
_ALLOWED: Final = frozenset(
    {IS_DELETED_COLUMN}
    | {f"_hoodie_kafka_source_{name}" for name in ("offset", "partition", "timestamp", "key")}
)
_FILLING = SchemaRules(missing=MissingColumns(fill=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """
    A table's own columns (no meta columns) as Arrow and as the stored Avro JSON.

    A schema to write with has the ``ids`` of its columns, if the table has them (schema on read).
    """

    arrow: pa.Schema
    avro_json: str
    ids: ColumnIds | None = None

    @classmethod
    def from_avro(cls, avro_json: str) -> TableSchema:
        """
        Return the schema of an existing table; meta columns in it are left out.

        Raises:
            CorruptTableError: The text is not an Avro record.
            UnsupportedTableError: It has a type that hoodoo does not support.
        """
        return _of_avro(avro_json)

    @classmethod
    def from_arrow(cls, arrow: pa.Schema, table_name: str) -> TableSchema:
        """
        Return the schema of a new table: meta columns left out, types made canonical.

        Raises:
            InvalidInputError: A column's name or type cannot be in a Hudi table.
        """
        fields = [_stored_field(each) for each in drop_meta(arrow)]
        check_names(each.name for each in fields)
        schema = pa.schema(fields)
        return cls(arrow=schema, avro_json=arrow_to_avro(schema, table_name))

    def with_new_columns(self, added: Iterable[pa.Field]) -> TableSchema:
        """Return the schema with nullable columns appended; the caller has checked them."""
        added = tuple(added)
        if not added:
            return self
        document = json.loads(self.avro_json)
        space = record_space(document, "")
        fields = [*document["fields"], *(field_to_avro(each, space) for each in added)]
        return TableSchema(
            arrow=pa.schema([*self.arrow, *added]),
            avro_json=_compact({**document, "fields": fields}),
        )

    def only(self, names: Collection[str]) -> TableSchema:
        """
        Return the schema with some of its columns, in its order; names it lacks are left out.

        Raises:
            UnsupportedTableError: As ``evolved``.
        """
        return self.evolved(pa.schema([each for each in self.arrow if each.name in names]))

    def evolved(self, columns: pa.Schema) -> TableSchema:
        """
        Return the schema with other columns and types, as ``reconcile_schema`` chose them.

        Raises:
            UnsupportedTableError: The Avro text uses one named type in several places, and only one
                of them changes (``shared_type``).
        """
        if columns == self.arrow:
            return self
        return TableSchema(arrow=columns, avro_json=evolved_avro(self.avro_json, columns))


@lru_cache(maxsize=64)
def _of_avro(avro_json: str) -> TableSchema:
    """Parse an Avro text; cached, because all commits of a table have the same few texts."""
    arrow = avro_to_arrow(avro_json)
    document = json.loads(avro_json)
    own = [each for each in document["fields"] if each["name"] not in META_COLUMNS]
    if len(own) != len(document["fields"]):
        avro_json = _compact({**document, "fields": own})
    return TableSchema(arrow=drop_meta(arrow), avro_json=avro_json)


def with_meta(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a data file: the five meta columns first, then the table's own."""
    return pa.schema([*META_FIELDS, *schema])


@lru_cache(maxsize=64)
def avro_with_meta(avro_json: str) -> str:
    """Return the Avro JSON of a data file's footer: the meta columns first, then the table's."""
    document = json.loads(avro_json)
    meta = [
        {"name": name, "type": ["null", "string"], "doc": "", "default": None}
        for name in META_COLUMNS
    ]
    own = [each for each in document["fields"] if each["name"] not in META_COLUMNS]
    return _compact({**document, "fields": [*meta, *own]})


def hudi_type_name(column: pa.Field) -> str | None:
    """
    Return Hudi's name of a type that Arrow lacks: ``VECTOR(3)``, ``VARIANT``, ``BLOB``.

    ``raw`` and a name is a type that this release cannot decode: values are as they are stored.
    """
    name = (column.metadata or {}).get(HUDI_TYPE.encode())
    return None if name is None else name.decode()


def vector_columns(schema: pa.Schema) -> str:
    """Return the vectors entry of a base file's footer: ``a:VECTOR(3),b:VECTOR(2, INT8)``."""
    return ",".join(
        f"{each.name}:VECTOR({each.type.list_size}{_element(each.type)})"
        for each in schema
        if pa.types.is_fixed_size_list(each.type)
    )


def _element(kind: pa.FixedSizeListType) -> str:
    name = next(name for name, each in VECTOR_ELEMENTS.items() if each == kind.value_type)
    return "" if name == "FLOAT" else f", {name}"


def drop_meta(schema: pa.Schema) -> pa.Schema:
    """Return the schema without meta columns, for example of rows that are written back."""
    return pa.schema([each for each in schema if each.name not in META_COLUMNS])


def missing_fields(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Return the names that are neither a column nor, dotted, a field inside one."""
    return [name for name in names if not _has_field(schema, name)]


def refuse_nested_fields(schema: pa.Schema, names: Iterable[str]) -> None:
    """
    Refuse columns of several values as key, partition or ordering fields.

    Raises:
        InvalidInputError: A field is a struct, an array or a map (``unsupported_key_type``).
    """
    for name in names:
        kind = _field_type(schema, name)
        if kind is not None and pa.types.is_nested(kind):
            raise InvalidInputError(
                "a key, partition or ordering field has one value: name a field inside of the "
                f"struct, or another column: column={name!r} type={kind}",
                kind="unsupported_key_type",
                column=name,
                type=str(kind),
            )


def _has_field(schema: pa.Schema, name: str) -> bool:
    # A name that occurs twice is there; it is refused by its own error.
    return name in schema.names or _field_type(schema, name) is not None


def _field_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    head, *rest = [name] if name in schema.names else name.split(".")
    kind = _type_in(schema, head)
    for step in rest:
        if kind is None or not pa.types.is_struct(kind):
            return None
        kind = kind.field(step).type if kind.get_field_index(step) >= 0 else None
    return kind


@lru_cache(maxsize=64)
def reconcile_schema(
    table_schema: TableSchema, incoming: pa.Schema, rules: SchemaRules = _FILLING
) -> tuple[TableSchema, tuple[pa.Field, ...]]:
    """
    Return the table's schema after a write of the incoming columns, and the added columns.

    Narrower columns are converted to the table's type. Wider ones widen it by Hudi's table of
    promotions. Unknown columns are appended as nullable. The same applies inside structs, lists and
    maps. The table's order of columns stays.

    The result is cached: a writer's rows have the same columns each time, and each write asks
    twice.

    Args:
        table_schema: The table's own.
        incoming: The rows' columns; meta columns are ignored.
        rules: The treatment of columns the rows lack (``normalise`` fills those that stay).

    Returns:
        The schema to write with, and the added columns (empty if there are none).

    Raises:
        InvalidInputError: A column repeats, has a bad name (``bad_column_name``), is missing
            (``missing_column``), or its type does not fit (``schema_mismatch``; fields ``column``,
            ``table_type``, ``incoming_type``).
        UnsupportedTableError: The Avro text cannot be changed (``shared_type``).
    """
    fields = list(drop_meta(incoming))
    _check_unique(each.name for each in fields)
    offered = {each.name: each for each in fields}
    known = {each.name for each in table_schema.arrow}
    folded = {name.lower(): name for name in known}
    kept: list[pa.Field] = []
    for mine in table_schema.arrow:
        if mine.name in offered:
            kind = evolved_type(mine.type, offered[mine.name].type, mine.name, rules)
            kept.append(pa.field(mine.name, kind))
        elif retains_column(mine.name, rules, sorted(offered.keys() - known)):
            kept.append(mine)
    added: list[pa.Field] = []
    for each in fields:
        if each.name in known:
            continue
        check_names([each.name])
        twin = folded.get(each.name.lower())
        if twin is not None:
            raise InvalidInputError(
                "the column differs from one of the table only by case, which other engines "
                f"cannot read; rename it: column={each.name!r} table_column={twin!r}",
                kind="bad_column_name",
                column=each.name,
            )
        added.append(_stored_field(each))
    return table_schema.evolved(pa.schema(kept)).with_new_columns(added), tuple(added)


def _stored_field(column: pa.Field) -> pa.Field:
    """
    Return a new column in its stored type.

    Raises:
        InvalidInputError: The type is not supported, or that of the marks of deletes is not boolean,
            so that they would have no effect (``unsupported_type``).
    """
    if column.name == IS_DELETED_COLUMN and not pa.types.is_boolean(column.type):
        raise InvalidInputError(
            f"the column {IS_DELETED_COLUMN} marks deleted rows, so its type is boolean: cast it: "
            f"type={column.type}",
            kind="unsupported_type",
            column=column.name,
            type=str(column.type),
        )
    return pa.field(column.name, column_type(column))


def _type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    position = schema.get_field_index(name)
    return None if position < 0 else schema.field(position).type


def check_names(names: Iterable[str]) -> None:
    """Refuse names that a table's column cannot have, or that are equal except for case."""
    names = tuple(names)
    _check_unique(names)
    for name in names:
        if name.startswith(_RESERVED_PREFIX) and name not in _ALLOWED:
            raise bad_name_error(name, "is reserved for the table's own use")
        check_avro_name(name)


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise bad_name_error(name, "occurs twice (case does not count)")
        seen.add(name.lower())


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

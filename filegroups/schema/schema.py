"""
The schema of a table: one Arrow schema, its Avro form, and how it may change.

Hudi names a table's schema in Avro JSON (commit metadata, file footers); the engine
computes in Arrow. This file knows both: what a new table's columns are (fmt 4.4), and what
becomes of the schema when rows of another one are written: nullable columns are added,
types widen by Hudi's table, at every level. The Avro text a table already has is kept but
for what changed, so that documents, defaults and logical types written by others survive.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from filegroups.schema.avro_schema import (
    HUDI_TYPE,
    RAW,
    arrow_to_avro,
    avro_to_arrow,
    evolved_avro,
    field_to_avro,
    record_space,
)
from filegroups.schema.casting import normalise, promote
from filegroups.schema.evolution import (
    VECTOR_ELEMENTS,
    MissingColumns,
    SchemaRules,
    bad_name_error,
    canonical_type,
    check_avro_name,
    column_type,
    evolved_type,
    retains_column,
)
from timeline.errors import InvalidInputError

__all__ = [
    "COMMIT_TIME_COLUMN",
    "FILE_NAME_COLUMN",
    "HUDI_TYPE",
    "IS_DELETED_COLUMN",
    "KEY_COLUMN",
    "META_COLUMNS",
    "META_FIELDS",
    "PARTITION_COLUMN",
    "RAW",
    "SEQUENCE_COLUMN",
    "MissingColumns",
    "SchemaRules",
    "TableSchema",
    "arrow_to_avro",
    "avro_to_arrow",
    "avro_with_meta",
    "canonical_type",
    "drop_meta",
    "hudi_type_name",
    "merge_new_columns",
    "missing_fields",
    "normalise",
    "promote",
    "reconcile_schema",
    "vector_columns",
    "with_meta",
]

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
IS_DELETED_COLUMN = "_hoodie_is_deleted"  # the one reserved-looking name that is data (fmt 7)
META_FIELDS = tuple(pa.field(name, pa.string()) for name in META_COLUMNS)

_RESERVED_PREFIX = "_hoodie_"
_FILLING = SchemaRules(missing=MissingColumns(fill=True))


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
        fields = [pa.field(each.name, column_type(each)) for each in drop_meta(arrow)]
        _check_names(each.name for each in fields)
        schema = pa.schema(fields)
        return cls(arrow=schema, avro_json=arrow_to_avro(schema, table_name))

    def grown(self, added: Iterable[pa.Field]) -> TableSchema:
        """The schema with nullable columns appended; names and types must already be checked."""
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
        The schema with some of its columns, in its order; names it lacks are left out.

        Raises:
            UnsupportedTableError: As ``evolved``.
        """
        return self.evolved(pa.schema([each for each in self.arrow if each.name in names]))

    def evolved(self, columns: pa.Schema) -> TableSchema:
        """
        The schema with other columns and types, as ``reconcile_schema`` chose them.

        Raises:
            UnsupportedTableError: The Avro text uses one named type in several places, and
                only one of them changes (``shared_type``).
        """
        if columns == self.arrow:
            return self
        return TableSchema(arrow=columns, avro_json=evolved_avro(self.avro_json, columns))


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


def hudi_type_name(column: pa.Field) -> str | None:
    """
    Hudi's word for a column's type where Arrow has none: ``VECTOR(3)``, ``VARIANT``, ``BLOB``.

    ``raw`` and a name is a type that this release cannot decode: values are as they are stored.
    """
    told = (column.metadata or {}).get(HUDI_TYPE.encode())
    return None if told is None else told.decode()


def vector_columns(schema: pa.Schema) -> str:
    """What a base file's footer says of its vectors: ``a:VECTOR(3),b:VECTOR(2, INT8)``."""
    return ",".join(
        f"{each.name}:VECTOR({each.type.list_size}{_element(each.type)})"
        for each in schema
        if pa.types.is_fixed_size_list(each.type)
    )


def _element(kind: pa.FixedSizeListType) -> str:
    name = next(name for name, each in VECTOR_ELEMENTS.items() if each == kind.value_type)
    return "" if name == "FLOAT" else f", {name}"


def drop_meta(schema: pa.Schema) -> pa.Schema:
    """The schema without the meta columns, as when rows read from a table are written back."""
    return pa.schema([each for each in schema if each.name not in META_COLUMNS])


def missing_fields(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Names that are neither a column nor, dotted, a field inside of one."""
    return [name for name in names if not _has_field(schema, name)]


def _has_field(schema: pa.Schema, name: str) -> bool:
    head, *rest = [name] if name in schema.names else name.split(".")
    kind = _type_in(schema, head)
    for step in rest:
        if kind is None or not pa.types.is_struct(kind):
            return False
        kind = kind.field(step).type if kind.get_field_index(step) >= 0 else None
    return kind is not None


@lru_cache(maxsize=64)
def reconcile_schema(
    table_schema: TableSchema, incoming: pa.Schema, rules: SchemaRules = _FILLING
) -> tuple[TableSchema, tuple[pa.Field, ...]]:
    """
    Fit incoming columns to a table: what the schema will be, and what it grew by.

    One writer's rows have the same columns each time, and are fitted twice: the answer is kept.

    Columns of a narrower type are fitted to the table's, wider ones widen the table's by
    Hudi's table of promotions, unknown columns are appended as nullable; all of it inside
    structs, lists and maps, too. The table's order of columns stays.

    Args:
        table_schema: The table's own.
        incoming: The rows' columns; meta columns are ignored.
        rules: What becomes of columns the rows lack (``normalise`` fills those that stay).

    Returns:
        The schema to write with, and the added columns (empty when none was).

    Raises:
        InvalidInputError: A column repeats, has a bad name (``bad_column_name``), is lacking
            (``missing_column``), or its type does not fit (``schema_mismatch``; fields
            ``column``, ``table_type``, ``incoming_type``).
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
        elif retains_column(mine.name, rules):
            kept.append(mine)
    added: list[pa.Field] = []
    for each in fields:
        if each.name in known:
            continue
        _check_names([each.name])
        twin = folded.get(each.name.lower())
        if twin is not None:
            raise InvalidInputError(
                "the column differs from one of the table only by case, which other engines "
                f"cannot read; rename it: column={each.name!r} table_column={twin!r}",
                kind="bad_column_name",
                column=each.name,
            )
        added.append(pa.field(each.name, column_type(each)))
    return table_schema.evolved(pa.schema(kept)).grown(added), tuple(added)


def merge_new_columns(
    base: TableSchema, mine: TableSchema, theirs: TableSchema
) -> TableSchema | None:
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


def _type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    position = schema.get_field_index(name)
    return None if position < 0 else schema.field(position).type


def _check_names(names: Iterable[str]) -> None:
    names = tuple(names)
    _check_unique(names)
    for name in names:
        if name.startswith(_RESERVED_PREFIX) and name != IS_DELETED_COLUMN:
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

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
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

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
    NESTING_MAX,
    VECTOR_ELEMENTS,
    MissingColumns,
    SchemaRules,
    bad_name_error,
    check_avro_name,
    column_type,
    evolved_type,
    retains_column,
)
from timeline.errors import CorruptTableError, InvalidInputError
from timeline.model.file_names import SCHEMAS
from timeline.model.instant import InstantTime
from timeline.ports.ports import Storage
from timeline.snapshot import Snapshot

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
_FILLING = SchemaRules(missing=MissingColumns(fill=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """A table's own columns (no meta columns) as Arrow and as the stored Avro JSON."""

    arrow: pa.Schema
    avro_json: str

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
        fields = [pa.field(each.name, column_type(each)) for each in drop_meta(arrow)]
        _check_names(each.name for each in fields)
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
    return table_schema.evolved(pa.schema(kept)).with_new_columns(added), tuple(added)


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


# ---- Schemas whose columns have ids: schema on read finds a renamed column in an older file by id
#
# Under ``hoodie.schema.on.read.enable`` Java Hudi keeps every version of a table's schema with an id
# for each column at each level. A file is read in the version of its writer: ids match columns,
# whatever their names were. A column dropped and added again under its old name is a new one. hoodoo
# reads such tables and does not write them.

_GONE = "\N{MIDDLE DOT}"  # prefix of fields that the reader no longer has: no Avro name has it


@dataclass(frozen=True, slots=True)
class IdentifiedColumn:
    """A column, its id, and the columns inside it (of a list or map: of its elements)."""

    number: int
    name: str
    inner: tuple[IdentifiedColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class InternalSchema:
    """One version of a schema, named by the instant that made it; 0 is the one before all."""

    version: int
    columns: tuple[IdentifiedColumn, ...]


@dataclass(frozen=True, slots=True)
class Renaming:
    """The renaming from a file's names to a reader's names, by the ids that both have."""

    written: tuple[IdentifiedColumn, ...]
    wanted: tuple[IdentifiedColumn, ...]

    def written_name(self, name: str) -> str | None:
        """Return the name of a reader's column in the file; None if the file does not have it."""
        numbers = {each.name: each.number for each in self.wanted}
        if name not in numbers:
            return name
        number = numbers[name]
        return next((each.name for each in self.written if each.number == number), None)

    def apply(self, rows: pa.Table) -> pa.Table:
        """
        Return the file's rows with the reader's names at every level.

        Top-level columns that the reader no longer has are left out. Inside structs they get a name
        that no reader requests, and ``promote`` leaves them out. Types stay.

        Shapes: rows (n,) -> (n,); no value is copied.
        """
        names = {each.number: each for each in self.wanted}
        known = {each.name: each for each in self.written}
        columns: dict[str, pa.ChunkedArray] = {}
        for name in rows.schema.names:
            mine = known.get(name)
            if mine is None:
                columns.setdefault(name, rows.column(name))
                continue
            theirs = names.get(mine.number)
            if theirs is not None:
                columns[theirs.name] = _viewed(rows.column(name), mine.inner, theirs.inner)
        return pa.table(columns)


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """All versions of a table's schema, and the version of the reader."""

    wanted: InternalSchema
    versions: tuple[InternalSchema, ...] = field(default=())  # ascending

    def renaming_for(self, requested_time: InstantTime) -> Renaming | None:
        """
        Return how to read the files of an instant; None if they have the reader's names.

        Args:
            requested_time: From a base file's name or a log block's header.
        """
        place = bisect_right([each.version for each in self.versions], int(requested_time))
        written = self.versions[place - 1] if place else self.wanted
        if written.columns == self.wanted.columns:
            return None
        return Renaming(written.columns, self.wanted.columns)


@lru_cache(maxsize=16)
def parse_internal_schema(text: str) -> InternalSchema:
    """
    Read the ``latest_schema`` of a commit.

    Raises:
        CorruptTableError: It is not such a schema (``bad_schema``).
    """
    try:
        return _schema(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(text) from error


def parse_history(text: str) -> tuple[InternalSchema, ...]:
    """
    Read a file of the ``.schema`` folder: every version, ascending.

    Raises:
        CorruptTableError: It is not such a history (``bad_schema``).
    """
    try:
        found = [_schema(each) for each in json.loads(text)["schemas"]]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(text) from error
    kept = {each.version: each for each in found}
    return tuple(kept[version] for version in sorted(kept))


def _schema(document: dict[str, Any]) -> InternalSchema:
    version = int(document.get("version_id", 0))
    return InternalSchema(version, _columns(document, 0))


def _columns(kind: Any, level: int) -> tuple[IdentifiedColumn, ...]:
    if not isinstance(kind, dict):
        return ()
    if level > NESTING_MAX:
        raise ValueError(f"types nest at most {NESTING_MAX} levels deep")
    if kind["type"] == "array":
        return (_held(int(kind["element_id"]), kind["element"], level),)
    if kind["type"] == "map":
        return (_held(int(kind["value_id"]), kind["value"], level),)
    return tuple(
        IdentifiedColumn(int(each["id"]), str(each["name"]), _columns(each["type"], level + 1))
        for each in kind["fields"]
    )


def _held(number: int, kind: Any, level: int) -> IdentifiedColumn:
    return IdentifiedColumn(number, "", _columns(kind, level + 1))


def _viewed(
    column: pa.ChunkedArray,
    written: Sequence[IdentifiedColumn],
    wanted: Sequence[IdentifiedColumn],
) -> pa.ChunkedArray:
    kind = _named(column.type, written, wanted)
    if kind == column.type:
        return column
    return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], type=kind)


def _named(
    kind: pa.DataType, written: Sequence[IdentifiedColumn], wanted: Sequence[IdentifiedColumn]
) -> pa.DataType:
    """Return the type with the reader's names in it."""
    names = {each.number: each for each in wanted}
    if pa.types.is_struct(kind):
        known = {each.name: each for each in written}
        taken = {each.name for each in wanted}
        fields = []
        for each in kind:
            mine = known.get(each.name)
            theirs = None if mine is None else names.get(mine.number)
            if mine is not None and theirs is not None:
                inner = _named(each.type, mine.inner, theirs.inner)
                fields.append(each.with_name(theirs.name).with_type(inner))
            else:
                gone = mine is not None or each.name in taken
                fields.append(each.with_name(_GONE + each.name) if gone else each)
        return pa.struct(fields)
    if len(written) != 1 or len(wanted) != 1:
        return kind
    if pa.types.is_list(kind):
        inner = _named(kind.value_type, written[0].inner, wanted[0].inner)
        return pa.list_(kind.value_field.with_type(inner))
    if pa.types.is_map(kind):
        inner = _named(kind.item_type, written[0].inner, wanted[0].inner)
        return pa.map_(kind.key_field, kind.item_field.with_type(inner))
    return kind


def _damaged(text: str) -> CorruptTableError:
    return CorruptTableError(
        "the table's schema with column ids cannot be read: restore the file with the schema "
        f"from a backup: {text[:200]!r}",
        kind="bad_schema",
    )


# ---- The schema versions in ``.hoodie/.schema``
#
# Each file there is the whole history up to its instant, newest first. The newest commit names the
# version for readers. A table that was never altered in this way has neither.

_NAME = re.compile(r"(\d{14,17})(?:_\d{14,17})?\.schemacommit")


def schema_history(storage: Storage, snapshot: Snapshot) -> SchemaHistory | None:
    """
    Return the schemas of a snapshot's files; None for a table without column ids.

    Versions of invisible instants do not count: a failed ``alter table``, or one after the time of
    the snapshot.

    Raises:
        CorruptTableError: The newest file cannot be read.

    Outside: nothing without column ids, else 1 list and 1 get.
    """
    text = snapshot.newest_internal_schema_json
    if not text:
        return None
    wanted = parse_internal_schema(text)
    found = sorted(
        (match[1], name) for name in storage.names(SCHEMAS) if (match := _NAME.fullmatch(name))
    )
    if not found:
        return SchemaHistory(wanted)
    path = f"{SCHEMAS}/{found[-1][1]}"
    data = storage.read(path)
    try:
        versions = parse_history(data.decode())
    except UnicodeDecodeError as error:
        raise CorruptTableError(
            "the file with the table's earlier schemas is damaged: restore it from a backup: "
            f"{path}",
            kind="bad_schema",
            path=path,
        ) from error
    visible = [
        each for each in versions if not each.version or snapshot.is_committed(str(each.version))
    ]
    return SchemaHistory(wanted, tuple(visible))

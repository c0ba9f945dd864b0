"""
Schemas whose columns have ids: schema on read finds a renamed column in an older file by id.

Under ``hoodie.schema.on.read.enable`` Java Hudi keeps every version of a table's schema with an id
for each column at each level. A file is read in the version of its writer: ids match columns,
whatever their names were. A column dropped and added again under its old name is a new one. hoodoo
reads such tables and does not write them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from filegroups.schema.evolution import NESTING_MAX
from timeline.errors import CorruptTableError
from timeline.layout import SCHEMAS
from timeline.model.instant_time import InstantTime
from timeline.ports.storage import Storage
from timeline.snapshot import Snapshot

__all__ = [
    "IdentifiedColumn",
    "InternalSchema",
    "Renaming",
    "SchemaHistory",
    "parse_history",
    "parse_internal_schema",
    "schema_history",
]

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
        f"the table's schema with column ids cannot be read: {text[:200]!r}", kind="bad_schema"
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
            f"the history of the table's schema is damaged: {path}", kind="bad_schema", path=path
        ) from error
    visible = [
        each for each in versions if not each.version or snapshot.is_committed(str(each.version))
    ]
    return SchemaHistory(wanted, tuple(visible))

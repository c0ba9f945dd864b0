"""
Columns with ids: schema on read finds a renamed column in an older file by its id.

Under ``hoodie.schema.on.read.enable`` a table keeps every version of its schema with an id for each
column at each level. A file is read in the version of its writer: ids match columns, whatever their
names were. A column dropped and added again under its old name is a new one. Each commit carries
the newest version and repeats the history in ``.hoodie/.schema`` (fmt 4.4).
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
from filegroups.schema.schema import avro_with_meta
from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.file_names import SCHEMAS
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import Storage
from timeline.snapshot import Snapshot

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

    def keeps_names_since(self, requested_time: InstantTime) -> bool:
        """Return whether columns of the version of that time are still named as they were."""
        renaming = self.renaming_for(requested_time)
        return renaming is None or _same_names(renaming.written, renaming.wanted)

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


def keeps_names(before: str | None, after: str | None) -> bool:
    """
    Return whether files written with one schema can be read with another by their names.

    Args:
        before: JSON of the schema with column ids of the writer; None if columns had none.
        after: That of a reader.
    """
    if before == after or after is None:
        return True
    if before is None:
        return False
    old, new = parse_internal_schema(before), parse_internal_schema(after)
    return _same_names(old.columns, new.columns)


def _same_names(old: Sequence[IdentifiedColumn], new: Sequence[IdentifiedColumn]) -> bool:
    """Return whether columns of both have one name, and one id, at every level."""
    by_id = {each.number: each for each in new}
    by_name = {each.name: each for each in new}
    for mine in old:
        theirs = by_id.get(mine.number)
        if theirs is None:
            if mine.name in by_name:
                return False  # dropped, and added again
        elif theirs.name != mine.name or not _same_names(mine.inner, theirs.inner):
            return False
    return True


def refuse_renamed(history: SchemaHistory | None, requested_time: InstantTime) -> None:
    """
    Refuse to execute a plan made before columns were renamed, or dropped and added again.

    Its files get the time of the plan, so readers would look in them for the names of that time.

    Raises:
        UnsupportedTableError: Columns have other names since (``schema_changed``).
    """
    if history is None or history.keeps_names_since(requested_time):
        return
    raise UnsupportedTableError(
        "columns were renamed after this plan was made, and its files would have the new names: "
        f"run 'hoodoo services cancel TABLE {requested_time}', then the service again",
        kind="schema_changed",
        feature="plans older than the schema",
    )


# ---- The schema versions in ``.hoodie/.schema``
#
# Each file there is the whole history up to its instant, newest first. The newest commit names the
# version for readers. A table that was never altered in this way has neither. The file of a commit
# is created before its slot, so files of instants that failed count for nothing.

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
    history = _history_text(storage, snapshot)
    if history is None:
        return SchemaHistory(wanted)
    visible = [
        each
        for each in parse_history(history)
        if not each.version or snapshot.is_committed(str(each.version))
    ]
    return SchemaHistory(wanted, tuple(visible))


def _history_text(storage: Storage, snapshot: Snapshot) -> str | None:
    """
    Return the newest file of a committed instant, or a later one; None without any.

    Files of archived instants are deleted. Each later file has their versions, too.

    Outside: 1 list, 1 get.
    """
    found = _schema_files(storage)
    if not found:
        return None
    committed = [name for time, name in found if snapshot.is_committed(time)]
    path = f"{SCHEMAS}/{committed[-1] if committed else found[0][1]}"
    try:
        return storage.read(path).decode()
    except UnicodeDecodeError as error:
        raise CorruptTableError(
            "the file with the table's earlier schemas is damaged: restore it from a backup: "
            f"{path}",
            kind="bad_schema",
            path=path,
        ) from error


def _schema_files(storage: Storage) -> list[tuple[InstantTime, str]]:
    return sorted(
        (match[1], name) for name in storage.names(SCHEMAS) if (match := _NAME.fullmatch(name))
    )


def remove_old_histories(storage: Storage, before: InstantTime) -> None:
    """
    Delete the histories of archived instants; at least the newest history stays.

    Args:
        storage: Storage of the table.
        before: The first active write.

    Outside: 1 list, and the deletes.
    """
    for time, name in _schema_files(storage)[:-1]:
        if time < before:
            storage.delete(f"{SCHEMAS}/{name}")


# ---- The version of a write
#
# Ids are numbered as by Java Hudi: all fields of a record, then the fields inside each of them.
# Meta columns have ids, too.


@dataclass(frozen=True, slots=True)
class ColumnIds:
    """
    The ids of a table's columns as one write leaves them.

    ``newest`` is the JSON of the version, without its number if the write makes it. ``earlier`` has
    the JSON of all versions before, newest first. ``history`` finds columns in older files.
    """

    newest: str
    is_new: bool
    earlier: tuple[str, ...]
    history: SchemaHistory

    @property
    def present(self) -> tuple[IdentifiedColumn, ...]:
        """The columns of the write's base snapshot."""
        versions = self.history.versions
        return versions[-1].columns if versions else self.history.wanted.columns

    def latest_schema(self, requested_time: InstantTime) -> str:
        """Return the entry ``latest_schema`` of the commit's extra metadata."""
        if not self.is_new:
            return self.newest
        return _json({**json.loads(self.newest), "version_id": int(requested_time)})

    def schema_file(self, requested_time: InstantTime) -> tuple[str, bytes]:
        """Return path and content of the commit's file in ``.hoodie/.schema``."""
        newest = (self.latest_schema(requested_time),) if self.is_new else ()
        path = f"{SCHEMAS}/{requested_time}_{requested_time}.schemacommit"
        return path, f'{{"schemas":[{",".join((*newest, *self.earlier))}]}}'.encode()


def were_renamed(before: ColumnIds | None, now: ColumnIds | None) -> bool:
    """Return whether columns have other names now than when rows were prepared for them."""
    if now is None:
        return False
    if before is not None:
        return not _same_names(before.present, now.present)
    versions = now.history.versions  # the first one is from before the columns had ids
    return bool(versions) and not _same_names(versions[0].columns, now.present)


def ids_of(
    storage: Storage, snapshot: Snapshot, before: str, after: str, *, makes_ids: bool = False
) -> ColumnIds | None:
    """
    Return the column ids after a write; None for a table without them.

    Args:
        storage: Storage of the table.
        snapshot: The write's base snapshot.
        before: The table's Avro schema.
        after: The Avro schema that the write leaves. Columns keep their ids by name, and new ones
            get new ids.
        makes_ids: Whether to give ids to a table without them.

    Raises:
        UnsupportedTableError: A column has a type without a name for it (``column_ids``).
        CorruptTableError: As ``schema_history``.

    Outside: nothing without column ids, else 1 list and 1 get.
    """
    text = snapshot.newest_internal_schema_json
    if not text and not (makes_ids and after):
        return None
    known = json.loads(text) if text else first_version(before or after)
    document = _with_columns(known, after) if after != (before or after) else known
    return ids_for(storage, snapshot, document, known)


def ids_for(
    storage: Storage,
    snapshot: Snapshot,
    document: dict[str, Any],
    first: dict[str, Any] | None = None,
) -> ColumnIds:
    """
    Return the ids of a write that leaves this version; one equal to the present one is repeated.

    ``first`` is the version before, if the table had no ids. Outside: 1 list and 1 get. Errors: as
    ``schema_history``.
    """
    text = snapshot.newest_internal_schema_json
    history = _history_text(storage, snapshot) if text else None
    earlier = [] if history is None else json.loads(history)["schemas"]
    visible = [one for one in earlier if _counts(snapshot, int(one.get("version_id", 0)))]
    if not visible and (text or first is not None):
        visible = [json.loads(text) if text else first]
    is_new = not text or {**json.loads(text), "version_id": 0} != {**document, "version_id": 0}
    older = tuple(map(_json, visible))
    return ColumnIds(
        newest=_json(document) if is_new else str(text),
        is_new=is_new,
        earlier=older,
        history=SchemaHistory(
            InternalSchema(-1, _columns(document, 0)),
            tuple(sorted((_schema(one) for one in visible), key=lambda one: one.version)),
        ),
    )


def _counts(snapshot: Snapshot, version: int) -> bool:
    return not version or snapshot.is_committed(str(version))


def first_version(avro_json: str) -> dict[str, Any]:
    """
    Return the first version of a table's schema: each column gets an id.

    Raises:
        UnsupportedTableError: A column has a type without a name for it (``column_ids``).
    """
    numbers = _Numbers(-1)
    made = _Conversion(numbers).of(json.loads(avro_with_meta(avro_json)), None)
    return {"max_column_id": numbers.greatest, "version_id": 0, **made}


def with_ids(avro: Any, greatest: int) -> tuple[Any, int]:
    """Return an Avro type with new ids inside, above ``greatest``, and the greatest of them."""
    numbers = _Numbers(greatest)
    return _Conversion(numbers).of(avro, None), numbers.greatest


def _with_columns(document: dict[str, Any], avro_json: str) -> dict[str, Any]:
    numbers = _Numbers(int(document["max_column_id"]))
    made = _Conversion(numbers).of(json.loads(avro_with_meta(avro_json)), document)
    return {**document, **made, "max_column_id": numbers.greatest}


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


class _Numbers:
    """The next free ids; ids of dropped columns are never given again."""

    def __init__(self, greatest: int) -> None:
        self.greatest = greatest

    def take(self) -> int:
        self.greatest += 1
        return self.greatest


#: Java's word for an Avro type, by its name and its logical type.
_WORDS = {
    ("boolean", None): "boolean",
    ("int", None): "int",
    ("long", None): "long",
    ("float", None): "float",
    ("double", None): "double",
    ("string", None): "string",
    ("bytes", None): "binary",
    ("int", "date"): "date",
    ("int", "time-millis"): "time-millis",
    ("long", "time-micros"): "time",
    ("long", "timestamp-millis"): "timestamp-millis",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "local-timestamp-millis",
    ("long", "local-timestamp-micros"): "local-timestamp-micros",
    ("string", "uuid"): "uuid",
}


class _Conversion:
    """Converts Avro types to types with ids; columns keep the ids that they have by name."""

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers
        self._named: dict[str, Any] = {}

    def of(self, avro: Any, old: Any) -> Any:
        """Return a type; ``old`` is the type that the column has, or None."""
        avro, _ = nullable_type(avro)
        if isinstance(avro, str) and avro in self._named:
            avro = self._named[avro]
        kind = avro["type"] if isinstance(avro, dict) else avro
        if isinstance(kind, dict):
            return self.of(kind, old)
        if isinstance(avro, dict) and "name" in avro:
            self._named[str(avro["name"])] = avro
        logical = avro.get("logicalType") if isinstance(avro, dict) else None
        old = old if isinstance(old, dict) and old.get("type") == kind else {}
        if kind == "record" and logical is None:
            return self._record(avro, old)
        if kind == "array" and logical is None:
            number = old.get("element_id")
            number = self._numbers.take() if number is None else number
            element = self.of(avro["items"], old.get("element"))
            return {
                "type": "array",
                "element_id": number,
                "element": element,
                "element_optional": nullable_type(avro["items"])[1],
            }
        if kind == "map" and logical is None:
            ids = [old.get(each) for each in ("key_id", "value_id")]
            key, value = (self._numbers.take() if one is None else one for one in ids)
            return {
                "type": "map",
                "key_id": key,
                "key": "string",
                "value_id": value,
                "value": self.of(avro["values"], old.get("value")),
                "value_optional": nullable_type(avro["values"])[1],
            }
        return _word_of(avro, str(kind), logical)

    def _record(self, avro: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        known = {each["name"]: each for each in old.get("fields", ())}
        numbered = [
            (each, known.get(each["name"]), self._id_of(known.get(each["name"])))
            for each in avro["fields"]
        ]
        fields = []
        for each, mine, number in numbered:
            made = {
                "id": number,
                "name": each["name"],
                "optional": nullable_type(each["type"])[1],
                "type": self.of(each["type"], None if mine is None else mine["type"]),
            }
            if "doc" in each:
                made["doc"] = each["doc"]
            fields.append(made)
        return {"type": "record", "fields": fields}

    def _id_of(self, old: dict[str, Any] | None) -> int:
        return self._numbers.take() if old is None else int(old["id"])


def nullable_type(avro: Any) -> tuple[Any, bool]:
    """Return an Avro type without the null of its union, and whether it had one."""
    if not isinstance(avro, list):
        return avro, False
    rest = [each for each in avro if each != "null"]
    return (rest[0] if len(rest) == 1 else avro), len(rest) < len(avro)


def _word_of(avro: Any, kind: str, logical: str | None) -> str:
    word = _WORDS.get((kind, logical))
    if word is None and logical == "decimal":
        digits = f"({avro['precision']}, {avro.get('scale', 0)})"
        if kind == "fixed":
            word = f"decimal_fixed{digits}[{avro['size']}]"
        elif kind == "bytes":
            word = f"decimal_bytes{digits}"
    if word is None and kind == "fixed" and logical is None:
        word = f"fixed[{avro['size']}]"
    if word is None:
        raise UnsupportedTableError(
            "columns of this type cannot have ids (schema on read), because this release does not "
            f"know Java Hudi's name for it: {kind} {logical or ''}",
            kind="column_ids",
            feature="columns with ids",
        )
    return word

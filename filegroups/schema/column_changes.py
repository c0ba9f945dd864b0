"""
Changes of a table's columns that a caller states: rename, drop, add, move, another type.

They need column ids (schema on read), by which older files keep their columns. The changes apply to
the Avro schema and to the schema with ids in step.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import pyarrow as pa

from filegroups.schema.avro_schema import avro_to_arrow, field_to_avro, record_space
from filegroups.schema.column_ids import nullable_type, with_ids
from filegroups.schema.evolution import column_type, fits, promotes
from filegroups.schema.schema import META_COLUMNS, check_names
from timeline.errors import InvalidInputError, UnsupportedTableError

#: The place of a moved column that becomes the first one.
FIRST: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """
    Changes of columns, applied in this order.

    A dotted name is a field inside a struct; ``element`` is inside a list, ``value`` inside a map.
    ``rename``, ``types`` and ``drop`` have the names before the changes, ``move`` those after them.

    Args:
        rename: The new last part of a column's name.
        types: The new type of a column.
        drop: Columns that leave the schema.
        add: New columns, each with the name of the column around it ("" for none).
        move: The column before a column's new place, by its last part; ``FIRST`` for the front.
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    add: tuple[tuple[str, pa.Field], ...] = ()
    move: Mapping[str, str] = field(default_factory=dict)

    @property
    def only_appends(self) -> bool:
        """Whether the changes only add columns after the last one, as a write with them does."""
        others = (self.rename, self.types, self.drop, self.move)
        return not any(others) and all(not around for around, _ in self.add)

    def apply(
        self, avro_json: str, document: dict[str, Any], fixed: Collection[str]
    ) -> tuple[str, dict[str, Any]]:
        """
        Return the changed Avro schema and the changed schema with ids.

        Args:
            avro_json: The table's Avro schema, without meta columns.
            document: Its schema with ids.
            fixed: Columns that keep name and type: those of keys, partitions and ordering, and the
                columns around them.

        Raises:
            InvalidInputError: There is no such column (``unknown_column``), it must stay
                (``fixed_column``), a name is invalid or taken (``bad_column_name``), or the type
                cannot become the other (``schema_mismatch``).
            UnsupportedTableError: The Avro text uses one named type in several places
                (``shared_type``), or a type has no name among types with ids (``column_ids``).
        """
        avro, ids = json.loads(avro_json), json.loads(json.dumps(document))
        root = _Node(avro, ids, record_space(avro, ""))
        for name in (*self.rename, *self.types, *self.drop):
            if name in fixed or any(one.startswith(f"{name}.") for one in fixed):
                raise InvalidInputError(
                    "the table's keys, partitions or order depend on this column, so it keeps its "
                    f"name and type: copy the rows into a new table instead: column={name!r}",
                    kind="fixed_column",
                    column=name,
                )
        renamed = [(root.find(name), new) for name, new in self.rename.items()]
        dropped = [root.find(name) for name in self.drop]
        parents = [(root.inside(parent), each) for parent, each in self.add]
        for name, kind in self.types.items():
            _retype(root.find(name), name, kind)
        for place, new in renamed:
            place.avro["name"] = place.ids["name"] = new
        for place in dropped:
            place.parent.avro["fields"].remove(place.avro)
            place.parent.ids["fields"].remove(place.ids)
        for parent, each in parents:
            _add(ids, parent, each)
        for name, after in self.move.items():
            _move(root.find(name), name, after)
        _check_records(avro)
        if not avro["fields"]:
            raise InvalidInputError(
                "a table needs a column: keep one of them", kind="fixed_column", column=""
            )
        return json.dumps(avro, separators=(",", ":"), ensure_ascii=False), ids


@dataclass(frozen=True, slots=True)
class _Node:
    """A record in both schemas, and the namespace of the types in it."""

    avro: dict[str, Any]
    ids: dict[str, Any]
    space: str

    def find(self, name: str) -> _Place:
        """Return a column by its dotted name."""
        parent, _, last = name.rpartition(".")
        return self.inside(parent, name).field(last, name)

    def inside(self, name: str, asked: str = "") -> _Node:
        """Return the record of a column by its dotted name; "" is the table's own."""
        found: _Node = self
        steps = name.split(".") if name else []
        while steps:
            place = found.field(steps.pop(0), asked or name)
            avro, ids = nullable_type(place.avro["type"])[0], place.ids["type"]
            while isinstance(avro, dict) and avro.get("type") in ("array", "map"):
                step, items = (
                    ("element", "items") if avro["type"] == "array" else ("value", "values")
                )
                if not steps or steps.pop(0) != step:
                    _unknown(asked or name)
                avro, ids = nullable_type(avro[items])[0], ids[step]
            if isinstance(avro, str) and isinstance(ids, dict):
                raise UnsupportedTableError(
                    "the table's schema uses one type in several places, so one of them cannot "
                    f"change alone: column={name!r} type={avro}",
                    kind="shared_type",
                    feature="types with a name",
                )
            if not isinstance(avro, dict) or avro.get("type") != "record":
                _unknown(asked or name)
            found = _Node(avro, ids, record_space(avro, found.space))
        return found

    def field(self, last: str, name: str) -> _Place:
        avro = next((each for each in self.avro["fields"] if each["name"] == last), None)
        ids = next((each for each in self.ids["fields"] if each["name"] == last), None)
        if avro is None or ids is None or last in META_COLUMNS:
            _unknown(name)
        return _Place(self, avro, ids)


@dataclass(frozen=True, slots=True)
class _Place:
    """A column in both schemas."""

    parent: _Node
    avro: dict[str, Any]
    ids: dict[str, Any]


def _unknown(name: str) -> NoReturn:
    raise InvalidInputError(
        "the table has no such column: use a name of 'hoodoo table show TABLE', with a dot before "
        f"a field of a struct: column={name!r}",
        kind="unknown_column",
        columns=[name],
    )


def _retype(place: _Place, name: str, kind: pa.DataType) -> None:
    made = {"type": "record", "name": "one", "fields": [place.avro]}
    mine = avro_to_arrow(json.dumps(made)).field(0).type
    wanted = column_type(pa.field(name, kind))
    if mine == wanted:
        return
    both_decimal = pa.types.is_decimal(mine) and pa.types.is_decimal(wanted)
    allowed = fits(mine, wanted) if both_decimal else promotes(mine, wanted, stated=True)
    if not allowed or pa.types.is_nested(wanted):
        raise InvalidInputError(
            "values of the column's type cannot become the other one when older files are read: "
            f"add a new column and copy the values: column={name!r} table_type={mine} "
            f"new_type={wanted}",
            kind="schema_mismatch",
            column=name,
            table_type=str(mine),
            incoming_type=str(wanted),
        )
    place.avro["type"] = field_to_avro(pa.field(place.avro["name"], wanted), place.parent.space)[
        "type"
    ]
    place.ids["type"], _ = with_ids(place.avro["type"], 0)


def _add(ids: dict[str, Any], parent: _Node, each: pa.Field) -> None:
    made = field_to_avro(pa.field(each.name, column_type(each)), parent.space)
    number = int(ids["max_column_id"]) + 1
    kind, ids["max_column_id"] = with_ids(made["type"], number)
    parent.avro["fields"].append(made)
    parent.ids["fields"].append({"id": number, "name": each.name, "optional": True, "type": kind})


def _move(place: _Place, name: str, after: str) -> None:
    for fields, each in (
        (place.parent.avro["fields"], place.avro),
        (place.parent.ids["fields"], place.ids),
    ):
        fields.remove(each)
        names = [one["name"] for one in fields]
        if after != FIRST and after not in names:
            _unknown(f"{name.rpartition('.')[0]}.{after}".lstrip("."))
        meta = sum(one in META_COLUMNS for one in names)
        fields.insert(meta if after == FIRST else names.index(after) + 1, each)


def _check_records(avro: Any) -> None:
    """Check the names of each record's fields: valid, and distinct whatever their case."""
    if isinstance(avro, list):
        _each(avro)
    elif isinstance(avro, dict):
        if avro.get("type") == "record":
            check_names(each["name"] for each in avro["fields"])
            _each(each["type"] for each in avro["fields"])
        else:
            _each(avro.get(key) for key in ("type", "items", "values"))


def _each(kinds: Iterable[Any]) -> None:
    for kind in kinds:
        if isinstance(kind, dict | list):
            _check_records(kind)

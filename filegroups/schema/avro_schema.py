"""
Convert Arrow types to Avro types and back, for ``filegroups.schema.schema``.

Names and shapes follow the schemas Java Hudi writes (fmt 4.4): a record ``<table>_record`` in the
namespace ``hoodie.<table>``, every field ``["null", T]`` with default null. Decimals are ``fixed``
of the least width. Records and fixed types have the name of their field, so that no full name
repeats. Text from a table is untrusted: the depth and size of its types are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from filegroups.schema.evolution import NESTING_MAX, VECTOR_ELEMENTS, stored_type
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError

#: The Arrow type of each primitive type of Avro, by its name and its logical type.
AVRO_PRIMITIVES: Final[Mapping[tuple[str, str | None], pa.DataType]] = {
    ("boolean", None): pa.bool_(),
    ("int", None): pa.int32(),
    ("long", None): pa.int64(),
    ("float", None): pa.float32(),
    ("double", None): pa.float64(),
    ("string", None): pa.string(),
    ("bytes", None): pa.binary(),
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_PRIMITIVE_TO_AVRO: Final[Mapping[pa.DataType, Any]] = {
    arrow: name if logical is None else {"type": name, "logicalType": logical}
    for (name, logical), arrow in AVRO_PRIMITIVES.items()
}
_RECORD_LOGICAL = {"variant", "blob"}  # records whose fields are read
#: Logical types whose values follow from the type below them; all others are returned raw.
_DECODED_LOGICAL: set[tuple[str, str]] = {
    ("bytes", "decimal"),
    ("fixed", "decimal"),
    ("string", "uuid"),
    ("map", "map"),
    ("array", "map"),
}
#: Key of a field's metadata with Hudi's name of a type that Arrow does not have.
HUDI_TYPE = "hudi_type"
RAW = "raw"  # prefix of the name of a type that is returned as stored
_UNHANDLED_LOGICAL = {"timestamp-nanos", "local-timestamp-nanos"}  # Hudi stores no nanoseconds
_DECIMAL_DIGITS_MAX = 38
_NODES_MAX = 100_000  # columns at all levels: nested named types grow fast


_FOREIGN_FIRST = re.compile(r"^[^A-Za-z_]")
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")


def avro_name(table_name: str) -> str:
    """
    Return a table name valid in Avro, by Java Hudi's rule: ``__`` for every other character.

    Java Hudi cannot parse a schema with a name like ``demo-table``.
    """
    return _FOREIGN.sub("__", _FOREIGN_FIRST.sub("__", table_name))


def arrow_to_avro(schema: pa.Schema, table_name: str) -> str:
    """
    Write an Arrow schema as the Avro JSON of a table.

    Args:
        schema: Columns of canonical types (``canonical_type``).
        table_name: The table's name, part of the record's name and namespace.

    Raises:
        InvalidInputError: A type has no Avro form (``unsupported_type``).
    """
    name = avro_name(table_name)
    record, space = f"{name}_record", f"hoodie.{name}"
    fields = [field_to_avro(each, f"{space}.{record}") for each in schema]
    document = {"type": "record", "name": record, "namespace": space, "fields": fields}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def field_to_avro(field: pa.Field, space: str) -> dict[str, Any]:
    """
    Return one nullable field of a record.

    Args:
        field: Name and type.
        space: Full name of the record it belongs to.

    Raises:
        InvalidInputError: The type has no Avro form (``unsupported_type``).
    """
    return {
        "name": field.name,
        "type": ["null", _type_to_avro(field.type, field.name, space)],
        "default": None,
    }


def avro_to_arrow(avro_json: str) -> pa.Schema:
    """
    Read the Avro JSON of a table as an Arrow schema; every field becomes nullable.

    Raises:
        CorruptTableError: The text is not an Avro record.
        UnsupportedTableError: It has a type that hoodoo does not support.
    """
    try:
        document = json.loads(avro_json)
        struct, _ = _SchemaParse().arrow_of(document, document.get("namespace", ""))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptTableError(
            "the table's schema is not an Avro record: restore the file with the schema from a "
            f"backup: {avro_json[:200]!r}",
            kind="bad_schema",
        ) from error
    if not pa.types.is_struct(struct):
        raise CorruptTableError(
            f"the table's schema is no avro record: {avro_json[:200]!r}", kind="bad_schema"
        )
    return pa.schema(list(struct))


def record_space(record: dict[str, Any], outer: str) -> str:
    """Return the full name of a record, which is the namespace of the types in its fields."""
    name = str(record["name"])
    space = record.get("namespace", outer)
    return name if "." in name or not space else f"{space}.{name}"


def evolved_avro(avro_json: str, columns: pa.Schema) -> str:
    """
    Return the Avro JSON for changed columns; unchanged columns keep their text.

    Args:
        avro_json: The table's, without meta columns.
        columns: The new columns: canonical types, each the same as before or wider.

    Raises:
        UnsupportedTableError: A named type is used in several places, and only one of them would
            change (``shared_type``).
    """
    document = json.loads(avro_json)
    made = _evolved_record(document, pa.struct(list(columns)), document.get("namespace", ""))
    text = json.dumps(made, separators=(",", ":"), ensure_ascii=False)
    if avro_to_arrow(text) != columns:
        raise UnsupportedTableError(
            "the table's Avro schema uses one named type in several places, so its columns "
            "cannot change one by one: change the schema with the tool that made the table",
            kind="shared_type",
        )
    return text


def _evolved_record(record: dict[str, Any], kind: pa.StructType, outer: str) -> dict[str, Any]:
    space = record_space(record, outer)
    held = {each["name"]: each for each in record["fields"]}
    fields = []
    for each in kind:
        mine = held.get(each.name)
        if mine is None:
            fields.append(field_to_avro(each, space))
            continue
        made = _evolved_node(mine["type"], each, space)
        if made != mine["type"]:
            mine = {**mine, "type": made}
            if mine.get("default") is not None:
                mine["default"] = _default_as(mine["default"], each.type)
        fields.append(mine)
    return {**record, "fields": fields}


def _evolved_node(avro: Any, wanted: pa.Field, space: str) -> Any:
    if isinstance(avro, list):
        return [each if each == "null" else _evolved_node(each, wanted, space) for each in avro]
    if isinstance(avro, dict):
        outer = avro["type"]
        if isinstance(outer, list | dict):
            return {**avro, "type": _evolved_node(outer, wanted, space)}
        if outer == "record" and pa.types.is_struct(wanted.type):
            return _evolved_record(avro, wanted.type, space)
        if outer == "array" and pa.types.is_list(wanted.type):
            inner = pa.field(wanted.name, wanted.type.value_type)
            return {**avro, "items": _evolved_node(avro["items"], inner, space)}
        if outer == "map" and pa.types.is_map(wanted.type):
            inner = pa.field(wanted.name, wanted.type.item_type)
            return {**avro, "values": _evolved_node(avro["values"], inner, space)}
    try:
        if _SchemaParse().arrow_of(avro, space)[0] == wanted.type:
            return avro
    except UnsupportedTableError:  # the name of a type defined elsewhere
        return avro
    return _type_to_avro(wanted.type, wanted.name, space)


def _default_as(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return str(value)
    return float(value) if pa.types.is_floating(kind) else value


def _type_to_avro(kind: pa.DataType, name: str, space: str) -> Any:
    types = pa.types
    plain = _PRIMITIVE_TO_AVRO.get(kind)
    if plain is not None:
        return plain
    if types.is_decimal128(kind):
        return {
            "type": "fixed",
            "name": "fixed",
            "namespace": f"{space}.{name}",
            "size": decimal_width(kind.precision),
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if types.is_fixed_size_list(kind):
        return _vector_to_avro(kind, f"{space}.{name}")
    if types.is_fixed_size_binary(kind):
        return {
            "type": "fixed",
            "name": "fixed",
            "namespace": f"{space}.{name}",
            "size": kind.byte_width,
        }
    if types.is_list(kind):
        return {"type": "array", "items": ["null", _type_to_avro(kind.value_type, name, space)]}
    if types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "map", "values": ["null", _type_to_avro(kind.item_type, name, space)]}
    if types.is_struct(kind):
        fields = [field_to_avro(child, f"{space}.{name}") for child in kind]
        return {"type": "record", "name": name, "namespace": space, "fields": fields}
    raise InvalidInputError(
        f"a Hudi table cannot store this type: cast the column: column={name!r} type={kind}",
        kind="unsupported_type",
        column=name,
        incoming_type=str(kind),
    )


def _vector_to_avro(kind: pa.FixedSizeListType, space: str) -> dict[str, Any]:
    element = next(name for name, each in VECTOR_ELEMENTS.items() if each == kind.value_type)
    return {
        "type": "fixed",
        "name": f"vector_{element.lower()}_{kind.list_size}",
        "namespace": space,
        "size": stored_type(kind).byte_width,
        "logicalType": "vector",
        "dimension": kind.list_size,
        "elementType": element,
        "storageBacking": "FIXED_BYTES",
    }


def decimal_width(precision: int) -> int:
    """Return the least number of bytes whose two's complement holds so many digits."""
    largest: int = 10**precision - 1
    return (largest.bit_length() + 8) // 8


class _SchemaParse:
    """One parse of an Avro text, with the named types so far and the types that are still open."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[pa.DataType, int]] = {}
        self._open: set[str] = set()

    def arrow_of(self, avro: Any, space: str, level: int = 0) -> tuple[pa.DataType, int]:
        """Return the Arrow type, and its number of columns at all levels."""
        if level > NESTING_MAX:
            raise _unsupported(avro, f"types nest at most {NESTING_MAX} levels deep")
        if isinstance(avro, list):
            branches = [each for each in avro if each != "null"]
            if len(branches) != 1:
                raise _unsupported(avro, "unions of several types have no column type")
            return self.arrow_of(branches[0], space, level)
        if isinstance(avro, str):
            return self._named(avro, space)
        outer = avro["type"]
        if isinstance(outer, list | dict):
            return self.arrow_of(outer, space, level)
        if outer == "array":
            kind, size = self.arrow_of(avro["items"], space, level + 1)
            return pa.list_(pa.field("element", kind)), _bounded(size + 1, avro)
        if outer == "map":
            kind, size = self.arrow_of(avro["values"], space, level + 1)
            return pa.map_(pa.string(), kind), _bounded(size + 2, avro)
        if outer == "record":
            return self._record(avro, space, level)
        return self._flat(avro, space)

    def _named(self, name: str, space: str) -> tuple[pa.DataType, int]:
        plain = AVRO_PRIMITIVES.get((name, None))
        if plain is not None:
            return plain, 1
        for full in (name, f"{space}.{name}"):
            if full in self._names:
                return self._names[full]
            if full in self._open:
                raise _unsupported(name, "types that contain themselves have no column type")
        raise _unsupported(name)

    def _record(self, avro: dict[str, Any], space: str, level: int) -> tuple[pa.DataType, int]:
        full = record_space(avro, space)
        inner = (
            full.rpartition(".")[0] if "." in str(avro["name"]) else avro.get("namespace", space)
        )
        self._open.add(full)
        fields, total = [], 1
        for each in avro["fields"]:
            kind, size = self.arrow_of(each["type"], inner, level + 1)
            fields.append(pa.field(each["name"], kind, metadata=_hudi_type_metadata(each["type"])))
            total = _bounded(total + size, avro)
        self._open.discard(full)
        self._names[full] = pa.struct(fields), total
        return self._names[full]

    def _flat(self, avro: dict[str, Any], space: str) -> tuple[pa.DataType, int]:
        outer, logical = avro["type"], _logical(avro)
        if logical in _UNHANDLED_LOGICAL:
            raise _unsupported(avro, "Hudi stores microseconds at most")
        if logical == "decimal":
            kind = _decimal(avro)
        elif logical is not None and (outer, logical) in AVRO_PRIMITIVES:
            return AVRO_PRIMITIVES[outer, logical], 1
        elif outer == "enum":
            kind = pa.string()
        elif outer == "fixed" and logical == "vector":
            kind = _vector(avro)
        elif outer == "fixed":
            kind = pa.binary(int(avro["size"]))
        else:
            return self._named(outer, space)
        if avro.get("name"):
            self._names[record_space(avro, space)] = kind, 1
        return kind, 1


def _hudi_type_metadata(avro: Any) -> dict[str, str] | None:
    """Return field metadata for a type that Arrow's type does not show; None for most."""
    if isinstance(avro, list):
        return next((metadata for each in avro if (metadata := _hudi_type_metadata(each))), None)
    if not isinstance(avro, dict):
        return None
    logical, outer = _logical(avro), avro["type"]
    if isinstance(outer, list | dict):  # a wrapping type has no metadata, as for its Arrow type
        return _hudi_type_metadata(outer)
    if logical is None:
        return None
    if logical == "vector":
        element = avro.get("elementType", "FLOAT")
        more = "" if element == "FLOAT" else f", {element}"
        return {HUDI_TYPE: f"VECTOR({avro.get('dimension')}{more})"}
    if logical in _RECORD_LOGICAL and outer == "record":
        return {HUDI_TYPE: logical.upper()}
    known = (outer, logical) in AVRO_PRIMITIVES or (outer, logical) in _DECODED_LOGICAL
    return None if known else {HUDI_TYPE: f"{RAW} {logical[:80]}"}


def _logical(avro: dict[str, Any]) -> str | None:
    """Return the logical type; None if it is not a text, because Avro ignores unknown ones."""
    logical = avro.get("logicalType")
    return logical if isinstance(logical, str) else None


def _bounded(size: int, avro: Any) -> int:
    if size > _NODES_MAX:
        raise _unsupported(avro, f"a table has at most {_NODES_MAX} columns at all levels")
    return size


def _decimal(avro: dict[str, Any]) -> pa.DataType:
    precision, scale = int(avro["precision"]), int(avro.get("scale", 0))
    if not 0 <= scale <= precision <= _DECIMAL_DIGITS_MAX:
        raise _unsupported(avro)
    return pa.decimal128(precision, scale)


def _vector(avro: dict[str, Any]) -> pa.DataType:
    element = VECTOR_ELEMENTS.get(avro.get("elementType", "FLOAT"))
    if element is None or avro.get("storageBacking", "FIXED_BYTES") != "FIXED_BYTES":
        raise _unsupported(avro, "the layout of its vectors is unknown")
    kind = pa.list_(pa.field("element", element), int(avro["dimension"]))
    if kind.list_size < 1 or stored_type(kind).byte_width != int(avro["size"]):
        raise _unsupported(avro, "a vector's size is not that of its numbers")
    return kind


def _unsupported(avro: Any, why: str = "") -> UnsupportedTableError:
    text = json.dumps(avro)[:200]
    return UnsupportedTableError(
        "the table has a column type that this release does not "
        f"handle{'; ' + why if why else ''}. Read the other columns, or use the engine that made "
        f"the table: {text}",
        kind="unsupported_type",
        avro_type=text,
    )

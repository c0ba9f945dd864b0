"""
Arrow types as Avro types and back: the translation behind ``timeline.model.schema``.

Names and shapes follow the schemas Java Hudi writes (fmt 4.4): a record
``<table>_record`` in the namespace ``hoodie.<table>``, every field ``["null", T]`` with
default null, decimals as ``fixed`` of the least width, records and fixed types named after
their field so that no full name repeats.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError

__all__ = ["arrow_to_avro", "avro_name", "avro_to_arrow", "field_to_avro"]

_PLAIN_TO_AVRO: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("ms", "UTC"): {"type": "long", "logicalType": "timestamp-millis"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
    pa.timestamp("ms"): {"type": "long", "logicalType": "local-timestamp-millis"},
}
_PLAIN_TO_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL_TO_ARROW = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
}
_UNHANDLED_LOGICAL = {"time-millis", "time-micros", "timestamp-nanos", "local-timestamp-nanos"}
_DECIMAL_DIGITS_MAX = 38


_FOREIGN_FIRST = re.compile(r"^[^A-Za-z_]")
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")


def avro_name(table_name: str) -> str:
    """
    A table name as Avro accepts it, by Java Hudi's own rule: ``__`` for every other character.

    With a name like ``demo-table`` in it Java Hudi could not parse the schema at all.
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
    One nullable field of a record.

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
        CorruptTableError: The text is no Avro record.
        UnsupportedTableError: It has a type this engine does not handle.
    """
    try:
        document = json.loads(avro_json)
        names: dict[str, pa.DataType] = {}
        struct = _type_to_arrow(document, document.get("namespace", ""), names)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptTableError(
            f"the table's schema is no avro record: {avro_json[:200]!r}", kind="bad_schema"
        ) from error
    if not pa.types.is_struct(struct):
        raise CorruptTableError(
            f"the table's schema is no avro record: {avro_json[:200]!r}", kind="bad_schema"
        )
    return pa.schema(list(struct))


def _type_to_avro(kind: pa.DataType, name: str, space: str) -> Any:
    types = pa.types
    plain = _PLAIN_TO_AVRO.get(kind)
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
        f"a Hudi table cannot hold this type: column={name!r} type={kind}",
        kind="unsupported_type",
        column=name,
        incoming_type=str(kind),
    )


def decimal_width(precision: int) -> int:
    """Bytes of the least two's complement number that holds so many digits."""
    largest: int = 10**precision - 1
    return (largest.bit_length() + 8) // 8


def _type_to_arrow(avro: Any, space: str, names: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(avro, list):
        branches = [each for each in avro if each != "null"]
        if len(branches) != 1:
            raise _unsupported(avro)
        return _type_to_arrow(branches[0], space, names)
    if isinstance(avro, str):
        plain = _PLAIN_TO_ARROW.get(avro)
        if plain is not None:
            return plain
        named = names.get(avro) or names.get(f"{space}.{avro}")
        if named is None:
            raise _unsupported(avro)
        return named
    return _complex_to_arrow(avro, space, names)


def _complex_to_arrow(
    avro: dict[str, Any], space: str, names: dict[str, pa.DataType]
) -> pa.DataType:
    outer, logical = avro["type"], avro.get("logicalType")
    if isinstance(outer, list | dict):
        return _type_to_arrow(outer, space, names)
    if logical == "decimal":
        return _register(avro, space, names, _decimal(avro))
    if logical is not None and (outer, logical) in _LOGICAL_TO_ARROW:
        return _LOGICAL_TO_ARROW[outer, logical]
    if logical in _UNHANDLED_LOGICAL:
        raise _unsupported(avro)
    if outer == "array":
        return pa.list_(pa.field("element", _type_to_arrow(avro["items"], space, names)))
    if outer == "map":
        return pa.map_(pa.string(), _type_to_arrow(avro["values"], space, names))
    if outer == "enum":
        return _register(avro, space, names, pa.string())
    if outer == "fixed":
        return _register(avro, space, names, pa.binary(int(avro["size"])))
    if outer == "record":
        inner = avro.get("namespace", space)
        fields = [
            pa.field(each["name"], _type_to_arrow(each["type"], inner, names))
            for each in avro["fields"]
        ]
        return _register(avro, space, names, pa.struct(fields))
    return _type_to_arrow(outer, space, names)


def _decimal(avro: dict[str, Any]) -> pa.DataType:
    precision, scale = int(avro["precision"]), int(avro.get("scale", 0))
    if not 0 <= scale <= precision <= _DECIMAL_DIGITS_MAX:
        raise _unsupported(avro)
    return pa.decimal128(precision, scale)


def _register(
    avro: dict[str, Any], space: str, names: dict[str, pa.DataType], kind: pa.DataType
) -> pa.DataType:
    name = avro.get("name")
    if name:
        full = name if "." in name else f"{avro.get('namespace', space)}.{name}"
        names[full] = kind
    return kind


def _unsupported(avro: Any) -> UnsupportedTableError:
    text = json.dumps(avro)[:200]
    return UnsupportedTableError(
        f"the table has a column type that this release does not handle: {text}",
        kind="unsupported_type",
        avro_type=text,
    )

"""
The Avro schema of a log block as a tree of layouts, for the column codec.

A tree has only what decides the bytes: the kinds and order of the fields, and the Arrow types of
their values. Names are resolved and repeated names share one node. So a hostile schema can neither
recurse nor grow without limit: its size is counted before use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from filegroups.schema.avro_schema import AVRO_PRIMITIVES
from timeline.errors import CorruptTableError, UnsupportedTableError

_DEPTH_MAX: Final = 64
_NODES_MAX: Final = 20_000
_FIXED_BYTES_MAX: Final = 1024 * 1024
_DECIMAL_DIGITS_MAX: Final = 38
_BRANCHES_MAX: Final = 64  # their numbers then take one byte

_WIDTHS: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS: Final = {
    **AVRO_PRIMITIVES,
    ("null", None): pa.null(),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """
    A value without parts.

    Args:
        kind: Avro's name of the type (``int``, ``string``, ``fixed``, ``enum`` ...).
        arrow: The Arrow type of its values before any promotion.
        width: Bytes of every value; None if they differ between values.
        symbols: The texts of an enum.
    """

    kind: str
    arrow: pa.DataType
    width: int | None = None
    symbols: tuple[str, ...] = ()

    @property
    def built(self) -> pa.DataType:
        """The Arrow type, by the name that every plan of the decoder uses."""
        return self.arrow

    @property
    def weight(self) -> int:
        """Nodes of the expanded tree."""
        return 1

    @property
    def least_bytes(self) -> int:
        """Bytes of the shortest value."""
        return 1 if self.width is None else self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Fields in sequence. ``title`` is the record's own name; a map's entries have none."""

    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    width: int | None
    weight: int
    least_bytes: int
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """An array or a map; in a map every item is a record of key and value."""

    item: Node
    is_map: bool
    weight: int
    width: None = None
    least_bytes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """A union: the number of a branch, then its value."""

    branches: tuple[Node, ...]
    weight: int
    width: None = None
    least_bytes: int = 1


Node = Leaf | Record | Items | Union


def parse_schema(schema_json: str, *, path: str) -> Record:
    """
    Parse the Avro JSON of a record.

    Args:
        schema_json: The writer's schema, as in a block's header.
        path: The file that errors name.

    Raises:
        CorruptTableError: The text is not an Avro record (``bad_schema``).
        UnsupportedTableError: The schema is recursive or beyond the limits (``unsupported_type``).
    """
    try:
        return _parse(schema_json)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptTableError(
            "the schema of a log block is not an Avro record: restore the file from a backup: "
            f"path={path} schema={schema_json[:200]!r}",
            kind="bad_schema",
            path=path,
        ) from error


@lru_cache(maxsize=64)
def _parse(schema_json: str) -> Record:
    """Parse a schema; cached, because blocks of one table repeat the same few texts."""
    root = _node(json.loads(schema_json), "", {}, 0)
    if not isinstance(root, Record):
        raise ValueError("no record")
    return root


def arrow_type(node: Node) -> pa.DataType:
    """
    Return the Arrow type that holds the values of a node without promotion.

    Raises:
        UnsupportedTableError: A union has several branches that are not null.
    """
    if isinstance(node, Leaf):
        return node.arrow
    if isinstance(node, Record):
        pairs = zip(node.names, node.nodes, strict=True)
        return pa.struct([pa.field(name, arrow_type(each)) for name, each in pairs])
    if isinstance(node, Items):
        if node.is_map:
            assert isinstance(node.item, Record)
            return pa.map_(pa.string(), arrow_type(node.item.nodes[1]))
        return pa.list_(pa.field("element", arrow_type(node.item)))
    values = [each for each in node.branches if not is_null(each)]
    if len(values) > 1:
        raise unsupported_type_error([_title(each) for each in node.branches])
    return arrow_type(values[0]) if values else pa.null()


def is_null(node: Node) -> bool:
    """Return whether a branch of a union is null."""
    return isinstance(node, Leaf) and node.kind == "null"


def unsupported_type_error(what: Any) -> UnsupportedTableError:
    """Return the error for a type that Arrow or hoodoo cannot hold."""
    text = json.dumps(what, default=str)[:200]
    return UnsupportedTableError(
        "the table has a column type that this release does not handle: read the other columns, "
        f"or use the engine that made the table: {text}",
        kind="unsupported_type",
        avro_type=text,
    )


def _title(node: Node) -> str:
    if isinstance(node, Leaf):
        return node.kind
    if isinstance(node, Items):
        return "map" if node.is_map else "array"
    return "record" if isinstance(node, Record) else "union"


def _node(avro: Any, space: str, names: dict[str, Node | None], depth: int) -> Node:
    if depth > _DEPTH_MAX:
        raise unsupported_type_error("a schema nested too deeply")
    if isinstance(avro, list):
        return _choice(avro, space, names, depth)
    if isinstance(avro, str):
        if (avro, None) in _NUMBERS:
            return _plain(avro, None)
        return _named(avro, space, names)
    outer, logical = avro["type"], avro.get("logicalType")
    if isinstance(outer, list | dict):
        return _node(outer, space, names, depth + 1)
    if outer == "array":
        return _items(_node(avro["items"], space, names, depth + 1), is_map=False)
    if outer == "map":
        value = _node(avro["values"], space, names, depth + 1)
        return _items(_record(("key", "value"), (_plain("string", None), value)), is_map=True)
    if outer == "record":
        return _named_record(avro, space, names, depth)
    if outer in ("fixed", "enum"):
        leaf = _fixed(avro) if outer == "fixed" else _enum(avro)
        names[_full_name(avro, space)] = leaf
        return leaf
    if outer == "bytes" and logical == "decimal":
        return Leaf(kind="bytes", arrow=_decimal(avro))
    if (outer, None) in _NUMBERS:
        return _plain(outer, logical)
    return _named(outer, space, names)


def _plain(kind: str, logical: Any) -> Leaf:
    # Avro requires readers to ignore unknown logical types.
    known = logical if isinstance(logical, str) else None
    arrow = _NUMBERS.get((kind, known), _NUMBERS[kind, None])
    return Leaf(kind=kind, arrow=arrow, width=_WIDTHS.get(kind))


def _choice(avro: list[Any], space: str, names: dict[str, Node | None], depth: int) -> Union:
    branches = tuple(_node(each, space, names, depth + 1) for each in avro)
    if not branches:
        raise ValueError("a union without branches")
    if len(branches) > _BRANCHES_MAX:
        raise unsupported_type_error("a union of too many types")
    return Union(branches=branches, weight=_weight(*branches))


def _items(item: Node, *, is_map: bool) -> Items:
    if item.least_bytes == 0:
        # A few bytes could then encode any number of items.
        raise unsupported_type_error("an array whose items have no bytes")
    return Items(item=item, is_map=is_map, weight=_weight(item))


def _record(names: tuple[str, ...], nodes: tuple[Node, ...], title: str = "") -> Record:
    if len(set(names)) != len(names):
        raise ValueError("a field repeats")
    widths = [each.width for each in nodes]
    known = [width for width in widths if width is not None]
    return Record(
        names=names,
        nodes=nodes,
        width=sum(known) if len(known) == len(widths) else None,
        weight=_weight(*nodes),
        least_bytes=sum(each.least_bytes for each in nodes),
        title=title,
    )


def _named_record(
    avro: dict[str, Any], space: str, names: dict[str, Node | None], depth: int
) -> Record:
    full = _full_name(avro, space)
    names[full] = None  # under construction: a use inside itself is a recursion
    inner = full.rpartition(".")[0]
    fields = avro["fields"]
    nodes = tuple(_node(each["type"], inner, names, depth + 1) for each in fields)
    title = full.rpartition(".")[2]
    record = _record(tuple(str(each["name"]) for each in fields), nodes, title)
    names[full] = record
    return record


def _weight(*nodes: Node) -> int:
    total = 1 + sum(each.weight for each in nodes)
    if total > _NODES_MAX:
        raise unsupported_type_error("a schema with too many fields")
    return total


def _full_name(avro: dict[str, Any], space: str) -> str:
    name = str(avro["name"])
    if "." in name:
        return name
    return f"{avro.get('namespace', space)}.{name}".lstrip(".")


def _named(name: str, space: str, names: dict[str, Node | None]) -> Node:
    for full in (f"{space}.{name}".lstrip("."), name):
        if full in names:
            node = names[full]
            if node is None:
                raise unsupported_type_error(f"the recursive record {full}")
            return node
    raise unsupported_type_error(name)


def _fixed(avro: dict[str, Any]) -> Leaf:
    size = int(avro["size"])
    if not 0 <= size <= _FIXED_BYTES_MAX:
        raise unsupported_type_error(avro)
    decimal = avro.get("logicalType") == "decimal"
    arrow = _decimal(avro) if decimal else pa.binary(size)
    return Leaf(kind="fixed", arrow=arrow, width=size)


def _enum(avro: dict[str, Any]) -> Leaf:
    symbols = tuple(str(each) for each in avro["symbols"])
    return Leaf(kind="enum", arrow=pa.string(), symbols=symbols)


def _decimal(avro: dict[str, Any]) -> pa.DataType:
    precision, scale = int(avro["precision"]), int(avro.get("scale", 0))
    if not (1 <= precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        raise unsupported_type_error(avro)
    return pa.decimal128(precision, scale)

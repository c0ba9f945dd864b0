"""
Decode Avro records to Arrow columns in lockstep: one field of all records at a time.

A plan fits a writer's schema to the columns of the reader: which fields are built and which are
skipped (fmt 5.4). Running it on a cursor visits the fields in the order of the schema. Every step
is a few numpy or Arrow calls on all rows of a chunk. Nested values become rows of their own: the
items of all arrays are one longer cursor. So nesting costs calls, never a loop over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from filegroups.files.avro_columns.items import Cursor, Live, find_items, skip
from filegroups.files.avro_columns.types import (
    Items,
    Leaf,
    Node,
    Record,
    Union,
    arrow_type,
    is_null,
    unsupported_type_error,
)

_INT32: Final = np.iinfo(np.int32)
_DECIMAL_BYTES_MAX: Final = 16
# Fixed values are stored for null rows, too. The limit of a chunk's growth over its bytes.
_GROWTH_MAX: Final = 8
_GROWTH_FREE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """A union of null and one type, or of one type only."""

    null_branch: int | None
    branches: int
    value: Plan
    built: pa.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappersPlan:
    """
    A union of null and records of one field each: a struct with the field of one of them.

    Args:
        branches: For each branch its layout, and how it is read; None: skipped.
        null_branch: The number of null among them, if any.
        picks: For each field of the struct the number of its branch.
        built: The struct. Its fields are named after the records; all but one are null.
    """

    branches: tuple[tuple[Node, Plan | None], ...]
    null_branch: int | None
    picks: tuple[int, ...]
    built: pa.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """
    The fields of a record in the writer's order, and those of the struct to build.

    Args:
        steps: For each of the writer's fields its layout, and how it is read; None: skipped.
        picks: For each field of the struct the position of the writer's field.
        built: The struct.
    """

    steps: tuple[tuple[Node, Plan | None], ...]
    picks: tuple[int, ...]
    built: pa.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsPlan:
    """An array or a map."""

    node: Items
    item: Plan
    built: pa.DataType


Plan = (
    Leaf | ChoicePlan | WrappersPlan | RecordPlan | ItemsPlan
)  # each has the Arrow type it builds


def plan_record(record: Record, wanted: pa.DataType) -> RecordPlan:
    """
    Plan the read of those writer's fields that a reader's struct has by exact name.

    Every chosen value is built with the writer's type, so the caller promotes it
    (``filegroups.schema.casting.promote``). Fields that the writer lacks are left out.

    Raises:
        UnsupportedTableError: A chosen field has a type that hoodoo does not support
            (``unsupported_type``).
    """
    positions = {name: position for position, name in enumerate(record.names)}
    plans = {
        field.name: _plan(record.nodes[positions[field.name]], field.type)
        for field in wanted
        if field.name in positions
    }
    return RecordPlan(
        steps=tuple(
            (node, plans.get(name)) for name, node in zip(record.names, record.nodes, strict=True)
        ),
        picks=tuple(positions[name] for name in plans),
        built=pa.struct([pa.field(name, each.built) for name, each in plans.items()]),
    )


def _plan(node: Node, wanted: pa.DataType) -> Plan:
    types = pa.types
    if isinstance(node, Leaf):
        return node
    if isinstance(node, Record):
        # A struct is pruned; if another type is wanted, it is read whole and refused later.
        return plan_record(node, wanted if types.is_struct(wanted) else arrow_type(node))
    if isinstance(node, Union):
        return _plan_choice(node, wanted)
    if node.is_map:
        entry = arrow_type(node.item)
        if types.is_map(wanted):
            entry = pa.struct([entry.field(0), pa.field("value", wanted.item_type)])
        assert isinstance(node.item, Record)
        item = plan_record(node.item, entry)
        built = pa.map_(pa.string(), item.built.field(1).type)
        # Keys of a map are never null. The entries' type must say so, too: Arrow's Parquet writer
        # trusts it and overruns its buffers if the two differ.
        return ItemsPlan(node=node, item=replace(item, built=built.field(0).type), built=built)
    element = wanted.value_type if types.is_list(wanted) else arrow_type(node.item)
    inner = _plan(node.item, element)
    return ItemsPlan(node=node, item=inner, built=pa.list_(pa.field("element", inner.built)))


def _plan_choice(node: Union, wanted: pa.DataType) -> ChoicePlan | WrappersPlan:
    values = [each for each in node.branches if not is_null(each)]
    nulls = [number for number, each in enumerate(node.branches) if is_null(each)]
    if len(nulls) > 1:
        raise unsupported_type_error("a union with null twice")
    if len(values) > 1 and pa.types.is_struct(wanted):
        return _plan_wrappers(node, wanted, nulls[0] if nulls else None)
    if len(values) > 1:
        arrow_type(node)  # refuses the union by name
    value = values[0] if values else node.branches[0]
    if isinstance(value, Union):
        raise unsupported_type_error("a union inside a union")
    plan = _plan(value, wanted)
    return ChoicePlan(
        null_branch=nulls[0] if nulls else None,
        branches=len(node.branches),
        value=plan,
        built=plan.built,
    )


def _plan_wrappers(node: Union, wanted: pa.StructType, null_branch: int | None) -> WrappersPlan:
    fields = {field.name: field.type for field in wanted}
    plans: dict[int, Plan] = {}
    built = []
    for number, each in enumerate(node.branches):
        kind = fields.pop(each.title, None) if isinstance(each, Record) else None
        if kind is None or not isinstance(each, Record):
            continue
        if len(each.nodes) != 1:
            raise unsupported_type_error(f"a union with the record {each.title} of several fields")
        plans[number] = _plan(each.nodes[0], kind)
        built.append(pa.field(each.title, plans[number].built))
    return WrappersPlan(
        branches=tuple((each, plans.get(number)) for number, each in enumerate(node.branches)),
        null_branch=null_branch,
        picks=tuple(plans),
        built=pa.struct(built),
    )


def read_record(plan: RecordPlan, cursor: Cursor, *, early_end: bool = False) -> list[pa.Array]:
    """
    Build the children of a record's struct, and move the cursor after the record.

    Args:
        early_end: Stop after the last wanted field.

    Shapes: cursor (n rows) -> arrays (n,).

    Raises:
        CorruptTableError: A value does not match the schema.
    """
    steps: Sequence[tuple[Node, Plan | None]] = plan.steps
    if early_end:
        steps = steps[: max(plan.picks, default=-1) + 1]
    built: list[pa.Array | None] = []
    for node, step in steps:
        if step is None:
            skip(node, cursor)
            built.append(None)
        else:
            built.append(_read(step, cursor))
    return [built[pick] for pick in plan.picks]


def _read(plan: Plan, cursor: Cursor) -> pa.Array:
    if isinstance(plan, Leaf):
        return _read_leaf(plan, cursor, None)
    if isinstance(plan, RecordPlan):
        return _struct(plan.built, len(cursor), read_record(plan, cursor))
    if isinstance(plan, ItemsPlan):
        return _read_items(plan, cursor, None)
    if isinstance(plan, WrappersPlan):
        return _read_wrappers(plan, cursor)
    return _read_choice(plan, cursor)


def _read_choice(plan: ChoicePlan, cursor: Cursor) -> pa.Array:
    codes = cursor.branches(plan.branches)
    live: Live = None if plan.null_branch is None else codes != plan.null_branch
    if live is None or live.all():
        return _read(plan.value, cursor)
    if isinstance(plan.value, ItemsPlan):
        return _read_items(plan.value, cursor, live)
    room = _GROWTH_FREE_BYTES + _GROWTH_MAX * len(cursor.chunk.content)
    if len(cursor) * _fixed_bytes(plan.built) > room:
        cursor.chunk.damaged("more bytes of nulls than a block may stand for")
    if isinstance(plan.value, Leaf):
        return _read_leaf(plan.value, cursor, live)
    rows = np.flatnonzero(live)
    part = cursor.at(rows)
    values = _read(plan.value, part)
    cursor.put_back(rows, part)
    return values.take(_positions(live))


def _read_wrappers(plan: WrappersPlan, cursor: Cursor) -> pa.Array:
    codes = cursor.branches(len(plan.branches))
    built: dict[int, pa.Array] = {}
    for number, (node, value) in enumerate(plan.branches):
        live = codes == number
        rows = np.flatnonzero(live)
        if not len(rows):
            if value is not None:
                built[number] = pa.nulls(len(cursor), value.built)
            continue
        part = cursor.at(rows)
        if value is None:
            skip(node, part)
        else:
            built[number] = _read(value, part).take(_positions(live))
        cursor.put_back(rows, part)
    live = codes != plan.null_branch if plan.null_branch is not None else None
    children = [built[number] for number in plan.picks]
    return pa.Array.from_buffers(plan.built, len(cursor), [_bitmap(live)], children=children)


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return the bytes that Arrow stores for a null of fixed types."""
    if pa.types.is_struct(kind):
        return sum(_fixed_bytes(field.type) for field in kind)
    return int(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else 0


def _positions(live: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the position of each row's value among the live ones, null for the others."""
    return pa.array(np.cumsum(live) - 1, mask=~live)


def _struct(kind: pa.DataType, rows: int, children: list[pa.Array]) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None], null_count=0, children=children)


def _bitmap(live: Live) -> pa.Buffer | None:
    return None if live is None else pa.py_buffer(np.packbits(live, bitorder="little"))


def _read_items(plan: ItemsPlan, cursor: Cursor, live: Live) -> pa.Array:
    if live is None:
        counts, items = find_items(plan.node, cursor)
    else:
        rows = np.flatnonzero(live)
        part = cursor.at(rows)
        part_counts, items = find_items(plan.node, part)
        cursor.put_back(rows, part)
        counts = np.zeros(len(cursor), np.int64)
        counts[rows] = part_counts
    offsets = np.zeros(len(cursor) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.Array.from_buffers(
        plan.built,
        len(cursor),
        [_bitmap(live), pa.py_buffer(offsets)],
        children=[_read(plan.item, items)],
    )


def _read_leaf(leaf: Leaf, cursor: Cursor, live: Live) -> pa.Array:
    if leaf.kind == "null" or not (live is None or live.any()):
        return pa.nulls(len(cursor), leaf.arrow)
    if pa.types.is_decimal(leaf.arrow):
        return _decimals(leaf, cursor, live)
    if leaf.kind in ("string", "bytes"):
        return _texts(leaf, cursor, live)
    if leaf.kind == "enum":
        return _symbols(leaf, cursor, live)
    if leaf.kind == "fixed":
        return _fixed(leaf, cursor, live)
    return _primitives(leaf, cursor, live)


def _primitives(leaf: Leaf, cursor: Cursor, live: Live) -> pa.Array:
    data: npt.NDArray[Any]
    if leaf.kind in ("int", "long"):
        data = cursor.integers(live)
        if leaf.kind == "int":
            if ((data < _INT32.min) | (data > _INT32.max)).any():
                cursor.chunk.damaged("an int of more than 32 bits")
            data = data.astype(np.int32)
    elif leaf.kind == "boolean":
        flags = cursor.bytes_here()
        if live is not None:
            flags = flags * live
        if (flags > 1).any():
            cursor.chunk.damaged("a boolean that is neither 0 nor 1")
        data = np.packbits(flags, bitorder="little")
        cursor.advance(1 if live is None else live)
    else:
        assert leaf.width is not None
        data = cursor.words_here()
        if leaf.kind == "float":
            data = data.astype(np.uint32)
        if live is not None:
            data = data * live
        cursor.advance(leaf.width if live is None else live * leaf.width)
    buffers = [_bitmap(live), pa.py_buffer(data)]
    return pa.Array.from_buffers(leaf.arrow, len(cursor), buffers)


def _texts(leaf: Leaf, cursor: Cursor, live: Live) -> pa.Array:
    slices = cursor.slices(cursor.lengths(live))
    _, offsets, content = slices.buffers()
    texts = pa.Array.from_buffers(leaf.arrow, len(slices), [_bitmap(live), offsets, content])
    if leaf.kind == "string" and not _is_ascii(content):
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as error:
            cursor.chunk.damaged(f"a text is not UTF-8: {error}")
    return texts


def _is_ascii(content: pa.Buffer | None) -> bool:
    if content is None or content.size == 0:
        return True
    return bool(np.frombuffer(content, np.uint8).max() < 0x80)


def _symbols(leaf: Leaf, cursor: Cursor, live: Live) -> pa.Array:
    codes = cursor.integers(live)
    if ((codes < 0) | (codes >= len(leaf.symbols))).any():
        cursor.chunk.damaged("an enum has no such symbol")
    places = pa.array(codes, mask=None if live is None else ~live)
    return pa.array(leaf.symbols, pa.string()).take(places)


def _fixed(leaf: Leaf, cursor: Cursor, live: Live) -> pa.Array:
    rows, width = len(cursor), leaf.width or 0
    if live is None:
        _, _, content = cursor.slices(width).buffers()
        buffers = [None, content if content is not None else pa.py_buffer(b"")]
        return pa.Array.from_buffers(leaf.arrow, rows, buffers, null_count=0)
    lengths = live * np.int64(width)
    _, _, content = cursor.slices(lengths).buffers()
    data = np.zeros((rows, width), np.uint8)
    data[live] = np.frombuffer(content, np.uint8)[: int(lengths.sum())].reshape(-1, width)
    return pa.Array.from_buffers(leaf.arrow, rows, [_bitmap(live), pa.py_buffer(data)])


def _decimals(leaf: Leaf, cursor: Cursor, live: Live) -> pa.Array:
    """Read big-endian two's complement numbers of up to 16 bytes as pairs of 64-bit words."""
    lengths: Any
    if leaf.kind == "bytes":
        lengths = cursor.lengths(live)
        empty = lengths == 0 if live is None else (lengths == 0) & live
        if empty.any():
            cursor.chunk.damaged("a decimal without bytes")
    else:
        lengths = np.full(len(cursor), leaf.width, np.int64)
        if live is not None:
            lengths = lengths * live
    if (lengths > _DECIMAL_BYTES_MAX).any():
        cursor.chunk.damaged("a decimal of more than 16 bytes")
    cursor.advance(lengths)
    words = cursor.chunk.words_big
    # The padding before the content makes both words loadable for short numbers, too. The bytes
    # before the number are then shifted out and replaced by its sign.
    low = words[cursor.position - 8].astype(np.int64)
    short = np.clip(8 - lengths, 0, 7) * 8
    low = (low << short) >> short
    high = words[cursor.position - 16].astype(np.int64)
    missing = np.clip(16 - lengths, 0, 7) * 8
    high = np.where(lengths > 8, (high << missing) >> missing, low >> 63)
    pairs = np.stack((low, high), axis=1)
    if live is not None:
        pairs *= live[:, None]
    buffers = [_bitmap(live), pa.py_buffer(pairs)]
    values = pa.Array.from_buffers(leaf.arrow, len(cursor), buffers)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        cursor.chunk.damaged(f"a decimal beyond its precision: {error}")
    return values

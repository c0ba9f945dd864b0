"""
Avro records to Arrow columns in lockstep: one field of all records at a time.

A plan fits a writer's schema to the Arrow types the reader wants: which fields are built,
which are only stepped over, and which promotion each value gets (fmt 5.4). Running it on
a cursor visits the fields in the order of the schema; every step is a few numpy or Arrow
calls on all rows of a chunk. Nested values become rows of their own: the items of all
arrays are one longer cursor, so the depth of a schema costs calls, never a loop over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.codecs.avro_columns_cursor import Cursor, Live
from timeline.codecs.avro_columns_items import find_items, skip
from timeline.codecs.avro_columns_types import (
    Choice,
    Items,
    Leaf,
    Node,
    Record,
    arrow_type,
    is_null,
    unsupported,
)
from timeline.errors import UnsupportedTableError

__all__ = ["Plan", "RecordPlan", "plan_record", "read_record"]

_INT32: Final = np.iinfo(np.int32)
_DECIMAL_BYTES_MAX: Final = 16
# Fixed values are stored for null rows, too: how much larger than its bytes a chunk may get.
_GROWTH_MAX: Final = 8
_GROWTH_FREE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlan:
    """A value without parts, and the type it is promoted to."""

    leaf: Leaf
    target: pa.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """A union of null and one type, or of one type only."""

    null_branch: int | None
    branches: int
    value: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """
    The fields of a record in the writer's order, and the children of the struct to build.

    Args:
        steps: Per writer's field its layout, and how it is read; None: stepped over.
        picks: Per child of the target the writer's field it is; None: the writer has none.
        target: The struct to build.
    """

    steps: tuple[tuple[Node, Plan | None], ...]
    picks: tuple[int | None, ...]
    target: pa.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsPlan:
    """An array or a map."""

    node: Items
    item: Plan
    target: pa.DataType


Plan = LeafPlan | ChoicePlan | RecordPlan | ItemsPlan


def plan_record(record: Record, target: pa.DataType, name: str = "") -> RecordPlan:
    """
    Fit a writer's record to the struct a reader wants; fields are matched by exact name.

    Raises:
        UnsupportedTableError: A field has a type that this engine does not handle
            (``unsupported_type``) or that cannot be promoted to the reader's
            (``unsupported_promotion``; fields ``column``, ``table_type``, ``file_type``).
    """
    positions = {each: position for position, each in enumerate(record.names)}
    wanted = {field.name: field.type for field in target}
    steps = tuple(
        (node, _plan(node, wanted[each], f"{name}.{each}" if name else each))
        if each in wanted
        else (node, None)
        for each, node in zip(record.names, record.nodes, strict=True)
    )
    picks = tuple(positions.get(field.name) for field in target)
    return RecordPlan(steps=steps, picks=picks, target=target)


def _plan(node: Node, target: pa.DataType, name: str) -> Plan:
    if isinstance(node, Choice):
        return _plan_choice(node, target, name)
    if isinstance(node, Leaf):
        if not _promotes(node.arrow, target):
            raise _no_promotion(node, target, name)
        return LeafPlan(leaf=node, target=target)
    if isinstance(node, Record):
        if not pa.types.is_struct(target):
            raise _no_promotion(node, target, name)
        return plan_record(node, target, name)
    if node.is_map:
        if not pa.types.is_map(target):
            raise _no_promotion(node, target, name)
        entry = pa.struct([target.key_field, target.item_field])
        assert isinstance(node.item, Record)
        pairs = Record(
            names=(target.key_field.name, target.item_field.name),
            nodes=node.item.nodes,
            width=None,
            weight=node.item.weight,
            least_bytes=node.item.least_bytes,
        )
        return ItemsPlan(node=node, item=plan_record(pairs, entry, name), target=target)
    if not pa.types.is_list(target):
        raise _no_promotion(node, target, name)
    item = _plan(node.item, target.value_type, f"{name}.element")
    return ItemsPlan(node=node, item=item, target=target)


def _plan_choice(node: Choice, target: pa.DataType, name: str) -> Plan:
    arrow_type(node)  # refuses a union of several types by name
    values = [each for each in node.branches if not is_null(each)]
    nulls = [number for number, each in enumerate(node.branches) if is_null(each)]
    if len(nulls) > 1:
        raise unsupported("a union with null twice")
    value = values[0] if values else node.branches[0]
    if isinstance(value, Choice):
        raise unsupported("a union inside a union")
    return ChoicePlan(
        null_branch=nulls[0] if nulls else None,
        branches=len(node.branches),
        value=_plan(value, target, name),
    )


def _promotes(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of a type has a counterpart, by the rules of Avro and Hudi."""
    types = pa.types
    if source == target or types.is_null(source):
        return True
    if source in (pa.int32(), pa.int64()):
        wider = types.is_int64(target) or types.is_floating(target)
        return bool(wider or types.is_string(target) or types.is_decimal128(target))
    if types.is_float32(source):
        return bool(types.is_float64(target))
    if types.is_string(source) or types.is_binary(source):
        return bool(types.is_string(target) or types.is_binary(target))
    if types.is_fixed_size_binary(source):
        return bool(types.is_binary(target))
    if types.is_decimal(source):
        if not types.is_decimal128(target):
            return False
        whole = source.precision - source.scale <= target.precision - target.scale
        return bool(whole and source.scale <= target.scale)
    if types.is_timestamp(source) and types.is_timestamp(target):
        finer = ("s", "ms", "us", "ns")
        same_zone = bool(source.tz) == bool(target.tz)
        return same_zone and finer.index(source.unit) <= finer.index(target.unit)
    return False


def _no_promotion(node: Node, target: pa.DataType, name: str) -> UnsupportedTableError:
    source = arrow_type(node)
    return UnsupportedTableError(
        "the log block's column cannot be read as the table's type; compact the table with the "
        f"engine that wrote it: column={name!r} table_type={target} file_type={source}",
        kind="unsupported_promotion",
        column=name,
        table_type=str(target),
        file_type=str(source),
    )


def read_record(plan: RecordPlan, cursor: Cursor, *, early_end: bool = False) -> list[pa.Array]:
    """
    Build the children of a record's struct, moving the cursor behind the record.

    Args:
        early_end: Stop after the last field that is wanted.

    Shapes: cursor (n rows) -> arrays (n,).

    Raises:
        CorruptTableError: A value is not what the schema says.
    """
    steps: Sequence[tuple[Node, Plan | None]] = plan.steps
    if early_end:
        last = max((pick for pick in plan.picks if pick is not None), default=-1)
        steps = steps[: last + 1]
    built: list[pa.Array | None] = []
    for node, step in steps:
        if step is None:
            skip(node, cursor)
            built.append(None)
        else:
            built.append(_read(step, cursor))
    return [
        pa.nulls(len(cursor), field.type) if pick is None else built[pick]
        for field, pick in zip(plan.target, plan.picks, strict=True)
    ]


def _read(plan: Plan, cursor: Cursor) -> pa.Array:
    if isinstance(plan, LeafPlan):
        return _read_leaf(plan, cursor, None)
    if isinstance(plan, RecordPlan):
        return _struct(plan.target, len(cursor), read_record(plan, cursor))
    if isinstance(plan, ItemsPlan):
        return _read_items(plan, cursor, None)
    return _read_choice(plan, cursor)


def _read_choice(plan: ChoicePlan, cursor: Cursor) -> pa.Array:
    codes = cursor.branches(plan.branches)
    live: Live = None if plan.null_branch is None else codes != plan.null_branch
    if live is None or live.all():
        return _read(plan.value, cursor)
    if isinstance(plan.value, LeafPlan):
        return _read_leaf(plan.value, cursor, live)
    if isinstance(plan.value, ItemsPlan):
        return _read_items(plan.value, cursor, live)
    rows = np.flatnonzero(live)
    part = cursor.at(rows)
    values = _read(plan.value, part)
    cursor.put_back(rows, part)
    return values.take(_places(live))


def _places(live: npt.NDArray[np.bool_]) -> pa.Array:
    """Per row the place of its value among the live ones, null for the others."""
    return pa.array(np.cumsum(live) - 1, mask=~live)


def _struct(target: pa.DataType, rows: int, children: list[pa.Array]) -> pa.Array:
    return pa.Array.from_buffers(target, rows, [None], null_count=0, children=children)


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
        plan.target,
        len(cursor),
        [_bitmap(live), pa.py_buffer(offsets)],
        children=[_read(plan.item, items)],
    )


def _read_leaf(plan: LeafPlan, cursor: Cursor, live: Live) -> pa.Array:
    leaf = plan.leaf
    if live is not None and not live.any():
        return pa.nulls(len(cursor), plan.target)
    if leaf.kind == "null":
        return pa.nulls(len(cursor), plan.target)
    if pa.types.is_decimal(leaf.arrow):
        values = _decimals(leaf, cursor, live)
    elif leaf.kind in ("string", "bytes"):
        return _texts(plan, cursor, live)
    elif leaf.kind == "enum":
        values = _symbols(leaf, cursor, live)
    elif leaf.kind == "fixed":
        values = _fixed(leaf, cursor, live)
    else:
        values = _primitives(leaf, cursor, live)
    if values.type == plan.target:
        return values
    return _promoted(values, plan.target, cursor)


def _promoted(values: pa.Array, target: pa.DataType, cursor: Cursor) -> pa.Array:
    if pa.types.is_integer(values.type) and pa.types.is_floating(target):
        return pc.cast(values, target, safe=False)  # rounds, as Avro's promotion does
    try:
        return pc.cast(values, target)
    except pa.ArrowInvalid as error:
        return cursor.chunk.damaged(f"a value does not fit the table's type {target}: {error}")


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


def _texts(plan: LeafPlan, cursor: Cursor, live: Live) -> pa.Array:
    slices = cursor.slices(cursor.lengths(live))
    _, offsets, content = slices.buffers()
    target = plan.target
    texts = pa.Array.from_buffers(target, len(slices), [_bitmap(live), offsets, content])
    if pa.types.is_string(target) and not _is_ascii(content):
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
    if rows * width > _GROWTH_FREE_BYTES + _GROWTH_MAX * len(cursor.chunk.content):
        cursor.chunk.damaged("more bytes of nulls than a block may stand for")
    lengths = live * np.int64(width)
    _, _, content = cursor.slices(lengths).buffers()
    data = np.zeros((rows, width), np.uint8)
    data[live] = np.frombuffer(content, np.uint8)[: int(lengths.sum())].reshape(-1, width)
    return pa.Array.from_buffers(leaf.arrow, rows, [_bitmap(live), pa.py_buffer(data)])


def _decimals(leaf: Leaf, cursor: Cursor, live: Live) -> pa.Array:
    """Big-endian two's complement numbers of up to 16 bytes as pairs of 64-bit words."""
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
    # The padding before the content lets both words be loaded for short numbers, too; the
    # bytes before the number are then shifted out and replaced by its sign.
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

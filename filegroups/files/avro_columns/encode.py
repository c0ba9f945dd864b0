"""
Encode Arrow columns as Avro records: the bytes of whole columns, joined row by row.

Short values are numbers, branches of unions and lengths. They are written into a buffer with the
same room for every row, eight bytes at a time; the next field of the row overwrites the excess. Long
values (texts, nested values) stay an Arrow array of bytes. Arrow then joins the few arrays of both
kinds into one datum per row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns.types import (
    Items,
    Leaf,
    Node,
    Record,
    Union,
    is_null,
    parse_schema,
    unsupported_type_error,
)
from filegroups.schema.avro_schema import decimal_width
from timeline.errors import InvalidInputError

Integers = npt.NDArray[np.int64]
Live = npt.NDArray[np.bool_] | None

_SHORTS_BYTES_MAX: Final = 64  # laid out at once, per row: fits the cache
_WORD_BYTES: Final = 8
_TWO_BYTES_MIN: Final = 128  # the least number that a varint writes in more than one byte
_SLACK_BYTES: Final = 16  # the last value of a row is written eight or sixteen bytes wide
_FIFTY_SIX: Final = np.uint64(56)
# Spread 56 bits over eight bytes: the reverse of the reader's joins.
_SPREADS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
    )
)
# By width in bytes: the continuation bits in the first eight bytes.
_MORE: Final = np.array(
    [0, *((1 << 8 * (width - 1)) - 1 & 0x8080808080808080 for width in range(1, 9))]
    + [0x8080808080808080] * 2,
    np.uint64,
)


def encode_rows(record: Record, columns: list[pa.Array], rows: int) -> pa.Array:
    """
    Write the datum of every row after its length as a big-endian int32.

    Args:
        record: The schema; its Arrow types are exactly those of the columns.
        columns: One array per field, in the order of the schema.
        rows: Length of each.

    Shapes: columns (rows,) -> binary array (rows,).

    Raises:
        InvalidInputError: A value is null where the schema has no null (``null_value``), or is not
            a symbol of its enum (``unknown_symbol``).
        UnsupportedTableError: The schema has a union of several types.
    """
    writer = RowWriter(rows)
    for name, node, column in zip(record.names, record.nodes, columns, strict=True):
        writer.value(node, column, name)
    pieces = writer.pieces()
    lengths = sum((_widths(each) for each in pieces), start=np.zeros(rows, np.int64))
    prefix = lengths.astype(">i4")
    places = np.arange(0, 4 * rows + 1, 4, dtype=np.int32)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(prefix)]
    return _joined([pa.Array.from_buffers(pa.binary(), rows, buffers), *pieces])


def _joined(pieces: list[pa.Array]) -> pa.Array:
    """Join the bytes of all pieces per row; a null piece has none."""
    separator = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(
        *pieces, separator, null_handling="replace", null_replacement=""
    )


def _widths(piece: pa.Array) -> Integers:
    widths: Integers = np.asarray(pc.fill_null(pc.binary_length(piece), 0)).astype(np.int64)
    return widths


class _Shorts:
    """Adjacent short values, until they are laid out row by row."""

    def __init__(self) -> None:
        self._puts: list[tuple[Any, Any, Any]] = []
        self._constant_bytes = 0  # of the last put, if it is the same in each row
        self._are_constant = True
        self.most = 0

    def put(self, words: Any, width: Any, most: int, tail: Any) -> None:
        """Add eight bytes per row of which `width` (at most `most`) are kept."""
        self._puts.append((words, width, tail))
        self._constant_bytes, self._are_constant = 0, False
        self.most += most

    def constant(self, byte: int) -> None:
        """Add the same byte in each row; up to eight in succession are one word."""
        width = self._constant_bytes
        if 0 < width < _WORD_BYTES:
            word = int(self._puts.pop()[0]) | byte << 8 * width
        else:
            word, width = byte, 0
        self._puts.append((np.uint64(word), width + 1, None))
        self._constant_bytes = width + 1
        self.most += 1

    def array(self, rows: int) -> pa.Array:
        """Return the kept bytes as one array with a value per row."""
        if self._are_constant:
            same = b"".join(
                int(word).to_bytes(_WORD_BYTES, "little")[:width] for word, width, _ in self._puts
            )
            return pa.repeat(pa.scalar(same, pa.binary()), rows)
        stride = self.most + _SLACK_BYTES
        content = np.zeros(rows * stride + _SLACK_BYTES, np.uint8)
        words_at: Any = np.ndarray((len(content) - 7,), "<u8", content.data, strides=(1,))
        starts = np.arange(rows, dtype=np.int64) * stride
        at = starts
        for words, width, tail in self._puts:
            if tail is not None:
                words_at[at + 8] = tail
            words_at[at] = words
            at = at + width
        offsets = np.empty(2 * rows + 1, np.int32)
        offsets[0:-1:2] = starts
        offsets[1::2] = at
        offsets[-1] = len(content)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        both = pa.Array.from_buffers(pa.binary(), 2 * rows, buffers, null_count=0)
        return both.take(pa.array(np.arange(0, 2 * rows, 2)))


class RowWriter:
    """Collects the bytes of some rows as adjacent pieces."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pieces: list[pa.Array] = []
        self._shorts = _Shorts()

    def pieces(self) -> list[pa.Array]:
        """Return all pieces in order."""
        if self._shorts.most:
            self._pieces.append(self._shorts.array(self._rows))
            self._shorts = _Shorts()
        return self._pieces

    def _short(self, words: Any, width: Any, most: int, *, tail: Any = None) -> None:
        if self._shorts.most > _SHORTS_BYTES_MAX:
            self.pieces()
        self._shorts.put(words, width, most, tail)

    def put(self, piece: pa.Array) -> None:
        """Write bytes as they are; a null has none."""
        self.pieces()
        self._pieces.append(piece)

    def number(self, value: int) -> None:
        """Write the same number in every row: the branch of a union, or a count of items."""
        if value < 64:
            self._constant(2 * value)
        else:
            self._varint(np.full(self._rows, value, np.int64), None)

    def _constant(self, byte: int) -> None:
        if self._shorts.most > _SHORTS_BYTES_MAX:
            self.pieces()
        self._shorts.constant(byte)

    def rows(self) -> pa.Array:
        """Return the bytes of every row."""
        return _joined(self.pieces())

    def _varint(self, numbers: Integers, live: Live) -> None:
        unsigned = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
        most = int(unsigned.max(initial=0))
        if live is None and most < _TWO_BYTES_MIN and (unsigned == most).all():
            self._constant(most)
            return
        if most < _TWO_BYTES_MIN:
            self._short(unsigned, 1 if live is None else live, 1)
            return
        width = np.ones(len(unsigned), np.int64)
        for bits in range(7, most.bit_length(), 7):
            width += unsigned >> np.uint64(bits) != 0
        words = unsigned & np.uint64((1 << 56) - 1)
        for low, high, shift in _SPREADS:
            words = (words & low) | ((words << shift) & high)
        words |= _MORE[width]
        tail = None
        if most >> 56:
            ninth = (unsigned >> _FIFTY_SIX) & np.uint64(0x7F)
            tail = ninth | np.where(width == 10, np.uint64(0x180), np.uint64(0))
        longest = max(1, -(-most.bit_length() // 7))
        self._short(words, width if live is None else width * live, longest, tail=tail)

    def value(self, node: Node, column: pa.Array, name: str) -> None:
        """
        Write one field of all rows.

        Raises:
            InvalidInputError: As ``encode_rows``.
            UnsupportedTableError: As ``encode_rows``.
        """
        if isinstance(node, Union):
            self._choice(node, column, name)
        elif isinstance(node, Leaf) and node.kind == "null":
            return
        elif column.null_count:
            raise _null_error(name)
        elif isinstance(node, Leaf):
            self._leaf(node, column, None, name)
        else:
            self._nested(node, column, name)

    def _choice(self, node: Union, column: pa.Array, name: str) -> None:
        values = [place for place, each in enumerate(node.branches) if not is_null(each)]
        nulls = [place for place, each in enumerate(node.branches) if is_null(each)]
        if len(values) > 1 and len(nulls) == 1 and pa.types.is_struct(column.type):
            self._wrappers(node, nulls[0], column, name)
            return
        if len(values) > 1 or len(nulls) > 1:
            raise unsupported_type_error(f"a union of several types: {name}")
        all_null = bool(nulls) and column.null_count == len(column)
        if all_null or not column.null_count or not nulls:
            branch = values[0] if values and not all_null else nulls[0]
            self.number(branch)
            if not all_null:
                self.value(node.branches[branch], column, name)
            return
        live = np.asarray(column.is_valid())
        chosen = 2 * values[0] if values else 0
        self._short(np.where(live, np.uint64(chosen), np.uint64(2 * nulls[0])), 1, 1)
        if values:
            self._live_rows(node.branches[values[0]], column, live, name)

    def _wrappers(self, node: Union, null: int, column: pa.StructArray, name: str) -> None:
        """
        Write a union of records of one field each, from a struct as the reader builds it.

        A child of the struct is named as the record whose field it holds. At most one child of a
        row has a value; a row without any is null.
        """
        children = dict(zip((each.name for each in column.type), column.flatten(), strict=True))
        chosen = np.full(self._rows, null, np.uint64)
        held = []
        for number, branch in enumerate(node.branches):
            if not isinstance(branch, Record):
                continue
            child = children.get(branch.title)
            if child is not None and child.null_count < len(child):
                live = np.asarray(child.is_valid())
                chosen[live] = number
                held.append((branch.nodes[0], child, live))
        self._short(chosen << np.uint64(1), 1, 1)
        for value, child, live in held:
            self._live_rows(value, child, live, name)

    def _live_rows(
        self, node: Node, column: pa.Array, live: npt.NDArray[np.bool_], name: str
    ) -> None:
        """Write a value in some rows, and nothing in the others."""
        if not live.any():
            return
        if isinstance(node, Leaf):
            self._leaf(node, column, live, name)
            return
        inner = RowWriter(int(live.sum()))
        inner.value(node, column.filter(pa.array(live)), name)
        places = pa.array(np.cumsum(live) - 1, mask=~live)
        self.put(inner.rows().take(places))

    def _nested(self, node: Record | Items, column: pa.Array, name: str) -> None:
        if isinstance(node, Record):
            for place, (child, each) in enumerate(zip(node.names, node.nodes, strict=True)):
                self.value(each, column.field(place), f"{name}.{child}")
            return
        offsets = np.asarray(column.offsets)
        counts = np.diff(offsets).astype(np.int64)
        first, size = int(offsets[0]), int(counts.sum())
        inner = RowWriter(size)
        if node.is_map:
            assert isinstance(node.item, Record)
            inner.value(node.item.nodes[0], column.keys.slice(first, size), f"{name}.key")
            inner.value(node.item.nodes[1], column.items.slice(first, size), f"{name}.value")
        else:
            inner.value(node.item, column.values.slice(first, size), f"{name}.element")
        # An array is one block: its count, its items, and a count of zero after them.
        self._varint(counts, counts > 0)
        if size:
            lists = pa.ListArray.from_arrays(
                pa.array((offsets - first).astype(np.int32)), inner.rows()
            )
            self.put(pc.binary_join(lists, pa.scalar(b"", pa.binary())))
        self.number(0)

    def _leaf(self, leaf: Leaf, column: pa.Array, live: Live, name: str) -> None:
        if pa.types.is_decimal(column.type):
            self._decimal(leaf, column, live)
        elif leaf.kind in ("string", "bytes"):
            self._varint(_widths(column), live)
            self.put(column.cast(pa.binary()))
        elif leaf.kind == "fixed":
            self.put(column.cast(pa.binary()))
        elif leaf.kind == "enum":
            codes = pc.index_in(column, pa.array(leaf.symbols, pa.string()))
            if codes.null_count > column.null_count:
                raise InvalidInputError(
                    "a value is not a symbol of the column's enum: correct it before you write: "
                    f"column={name!r} symbols={leaf.symbols[:20]}",
                    kind="unknown_symbol",
                    column=name,
                )
            self._varint(_numbers(codes, np.int32).astype(np.int64), live)
        elif leaf.kind == "int":
            self._varint(_numbers(column, np.int32).astype(np.int64), live)
        elif leaf.kind == "long":
            self._varint(_numbers(column, np.int64), live)
        else:
            width = leaf.width or 0
            if leaf.kind == "boolean":
                column = column.cast(pa.uint8())
            words = _numbers(column, {1: np.uint8, 4: np.uint32, 8: np.uint64}[width])
            self._short(words, width if live is None else live * width, width)

    def _decimal(self, leaf: Leaf, column: pa.Array, live: Live) -> None:
        width = leaf.width or decimal_width(column.type.precision)
        stored = np.frombuffer(column.buffers()[1], np.uint8)[16 * column.offset :]
        digits = stored[: 16 * self._rows].reshape(-1, 16)[:, ::-1]  # the sign is first
        kept = np.zeros((self._rows, width), np.uint8)
        kept[:, -16:] = digits[:, -width:]
        if width > 16:
            kept[:, :-16] = np.where(digits[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
        if leaf.kind == "bytes":
            self._varint(np.full(self._rows, width, np.int64), live)
        buffers = [None, pa.py_buffer(kept)]
        piece = pa.Array.from_buffers(pa.binary(width), self._rows, buffers)
        piece = piece.cast(pa.binary())
        self.put(piece if live is None else pc.if_else(pa.array(live), piece, None))


def _null_error(name: str) -> InvalidInputError:
    return InvalidInputError(
        "a column has nulls, and the table's schema forbids them: fill them before you "
        f"write: column={name!r}",
        kind="null_value",
        column=name,
    )


# ---- A few rows, one value after the other

FEW_ROWS: Final = 32
"""So few rows take longer by columns: each call of Arrow costs as much as some rows."""

_Put: TypeAlias = Callable[[Any, bytearray], None]
_FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


def encode_few_rows(schema_json: str, rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """
    Return the datum of each of at most `FEW_ROWS` rows: the bytes that ``RowWriter`` gives.

    Args:
        schema_json: The Avro JSON of a record without enums, fixed values and decimals of their own
            type: decimals are bytes.
        rows: The values of each row in the order of the fields, as ``to_pylist`` of Arrow gives them.

    Raises:
        InvalidInputError: A value is null where the schema has no null (``null_value``).
        UnsupportedTableError: The schema has a union of several types, or another type.
    """
    found = []
    puts = _field_puts(schema_json)
    for row in rows:
        out = bytearray()
        for put, value in zip(puts, row, strict=True):
            put(value, out)
        found.append(bytes(out))
    return found


@lru_cache(maxsize=16)
def _field_puts(schema_json: str) -> tuple[_Put, ...]:
    root = parse_schema(schema_json, path="")
    return tuple(_put_of(*each) for each in zip(root.nodes, root.names, strict=True))


def _put_of(node: Node, name: str) -> _Put:
    """Return a function that appends a value of a node."""
    if isinstance(node, Union):
        return _choice_put(node, name)
    if isinstance(node, Leaf):
        return _leaf_put(node, name)
    if isinstance(node, Items):
        return _items_put(node, name)
    fields = [
        _put_of(each, f"{name}.{child}") for child, each in zip(node.names, node.nodes, strict=True)
    ]

    def put_record(value: Any, out: bytearray) -> None:
        if value is None:
            raise _null_error(name)
        # By place: the value may have more fields, and other names.
        for put, one in zip(fields, value.values(), strict=False):
            put(one, out)

    return put_record


def _choice_put(node: Union, name: str) -> _Put:
    nulls = [place for place, each in enumerate(node.branches) if is_null(each)]
    values = [place for place, each in enumerate(node.branches) if not is_null(each)]
    records = {
        branch.title: (2 * place, _put_of(branch.nodes[0], name))
        for place, branch in enumerate(node.branches)
        if isinstance(branch, Record) and len(branch.nodes) == 1
    }
    if len(nulls) != 1 or (len(values) > 1 and len(records) < len(values)):
        raise unsupported_type_error(f"a union of several types: {name}")
    null = 2 * nulls[0]
    if len(values) == 1:
        chosen, put = 2 * values[0], _put_of(node.branches[values[0]], name)

        def put_optional(value: Any, out: bytearray) -> None:
            if value is None:
                out.append(null)
            else:
                out.append(chosen)
                put(value, out)

        return put_optional

    def put_wrapper(value: Any, out: bytearray) -> None:
        for title, one in (value or {}).items():
            if one is not None:
                branch, put = records[title]
                out.append(branch)
                put(one, out)
                return
        out.append(null)

    return put_wrapper


def _items_put(node: Items, name: str) -> _Put:
    if node.is_map:
        assert isinstance(node.item, Record)
        put_key, put_item = (_put_of(each, name) for each in node.item.nodes)
    else:
        put_item = _put_of(node.item, name)

    def put_items(value: Any, out: bytearray) -> None:
        if value is None:
            raise _null_error(name)
        if value:
            _append_long(len(value), out)
        for one in value:
            if node.is_map:
                put_key(one[0], out)
                put_item(one[1], out)
            else:
                put_item(one, out)
        out.append(0)

    return put_items


def _leaf_put(leaf: Leaf, name: str) -> _Put:
    if leaf.kind in ("string", "bytes"):

        def put(value: Any, out: bytearray) -> None:
            data = value.encode() if isinstance(value, str) else value
            _append_long(len(data), out)
            out += data

    elif leaf.kind in ("int", "long"):
        put = _append_long
    elif leaf.kind in _FLOATS:
        pack = _FLOATS[leaf.kind].pack

        def put(value: Any, out: bytearray) -> None:
            out += pack(value)

    elif leaf.kind == "boolean":

        def put(value: Any, out: bytearray) -> None:
            out.append(value)

    else:
        raise unsupported_type_error(f"{leaf.kind}: {name}")

    def put_value(value: Any, out: bytearray) -> None:
        if value is None:
            raise _null_error(name)
        put(value, out)

    return put_value


def _append_long(value: int, out: bytearray) -> None:
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


# ---- Decimals


def shortest_bytes(decimals: pa.Decimal128Array) -> pa.Array:
    """Return decimals as two's complement in the fewest bytes, as Java writes them."""
    if decimals.null_count == len(decimals):
        return pa.nulls(len(decimals), pa.binary())
    _, content = decimals.buffers()
    little = np.frombuffer(content, np.uint8).reshape(-1, 16)
    big = little[decimals.offset : decimals.offset + len(decimals), ::-1]
    sign = np.where(big[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    # A byte is dropped if it repeats the sign and the next byte begins with the sign's bit.
    spare = (big[:, :-1] == sign) & ((big[:, 1:] ^ sign) < 0x80)
    dropped = np.cumprod(spare, axis=1, dtype=np.int64).sum(axis=1)
    offsets = np.append(0, np.cumsum(16 - dropped)).astype(np.int32)
    kept = big[np.arange(16) >= dropped[:, None]]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(kept)]
    found = pa.Array.from_buffers(pa.binary(), len(decimals), buffers)
    return pc.if_else(decimals.is_valid(), found, None) if decimals.null_count else found


def _numbers(column: pa.Array, kind: Any) -> Any:
    """Return the stored numbers of a column; any number for a null. Shapes: (n,) -> (n,)."""
    stored = column.buffers()[1]
    if stored is None:
        return np.zeros(len(column), kind)
    return np.frombuffer(stored, kind)[column.offset : column.offset + len(column)]

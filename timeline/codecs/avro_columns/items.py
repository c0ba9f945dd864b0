"""
Stepping over Avro values, and finding where the items of arrays and maps begin.

Items have no fixed place, so they are found the way a reader would: all rows step over
their first item together, then over their second, and so on. The few rows with far more
items than the others, for which such a step would cost as much as for thousands, are
walked one item at a time by plain code; so are the hostile ones.
"""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from timeline.codecs.avro_columns.cursor import Cursor, Live
from timeline.codecs.avro_columns.types import Choice, Items, Leaf, Node, Record

__all__ = ["find_items", "skip"]

_LOCKSTEP_ROWS_MIN: Final = 48  # below, one step of all rows costs more than walking each
_VARINT_BYTES_MAX: Final = 10

Integers = npt.NDArray[np.int64]


def skip(node: Node, cursor: Cursor, live: Live = None) -> None:
    """
    Move a cursor behind one value without building it.

    Args:
        live: Rows that have the value; only for leaves.

    Raises:
        CorruptTableError: A value is not what the schema says.
    """
    if node.width is not None:
        cursor.advance(node.width if live is None else live * np.int64(node.width))
    elif isinstance(node, Leaf):
        if node.kind in ("string", "bytes"):
            cursor.advance(cursor.lengths(live))
        else:
            cursor.varints(live)
    elif isinstance(node, Record):
        for each in node.nodes:
            skip(each, cursor)
    elif isinstance(node, Items):
        find_items(node, cursor)
    else:
        _skip_choice(node, cursor)


def _skip_choice(node: Choice, cursor: Cursor) -> None:
    codes = cursor.branches(len(node.branches))
    for number, branch in enumerate(node.branches):
        live = codes == number
        if live.all():
            skip(branch, cursor)
        elif isinstance(branch, Leaf):
            if branch.width != 0 and live.any():
                skip(branch, cursor, live)
        elif live.any():
            rows = np.flatnonzero(live)
            part = cursor.at(rows)
            skip(branch, part)
            cursor.put_back(rows, part)


def find_items(node: Items, cursor: Cursor) -> tuple[Integers, Cursor]:
    """
    Find the items of one array or map per row, and move the cursor behind it.

    Shapes: cursor (n,) -> counts (n,), items (sum of counts,) in the order of the bytes.

    Raises:
        CorruptTableError: An array is not what the schema says.
    """
    finder = _Finder(node.item, cursor)
    rows = np.arange(len(cursor))
    while len(rows) >= _LOCKSTEP_ROWS_MIN:
        rows = finder.block(rows)
    for row in rows.tolist():
        finder.walk_array(row)
    return finder.found()


class _Finder:
    """The arrays of all rows, some of them already read to their end."""

    def __init__(self, item: Node, cursor: Cursor) -> None:
        self._item = item
        self._cursor = cursor
        cursor.position = cursor.position.copy()
        self._rows: list[Integers] = []
        self._starts: list[Integers] = []
        self._walker: _Walker | None = None

    def block(self, rows: Integers) -> Integers:
        """Read the next block of some rows; returns those whose array has not ended."""
        part = self._cursor.at(rows)
        counts = part.integers(None)
        sized = np.flatnonzero(counts < 0)
        if len(sized):  # such a block tells its size in bytes, too
            sizes = part.at(sized)
            sizes.lengths(None)
            part.put_back(sized, sizes)
            counts = np.abs(counts)
        room = part.end - part.position
        if (counts.view(np.uint64) > room.view(np.uint64)).any():
            part.chunk.damaged("an array of more items than bytes")
        going = counts > 0
        self._cursor.position[rows] = part.position
        rows, counts, part = rows[going], counts[going], part.at(going)
        if len(rows):
            self._items(rows, counts, part)
        return rows

    def _items(self, rows: Integers, counts: Integers, part: Cursor) -> None:
        width = self._item.width
        if width is not None:
            first = part.position
            if (counts > (part.end - first) // width).any():
                part.chunk.damaged("an array of more items than bytes")
            part.advance(counts * width)
            inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            self._rows.append(np.repeat(rows, counts))
            self._starts.append(np.repeat(first, counts) + inside * width)
            self._cursor.position[rows] = part.position
            return
        order = np.argsort(-counts, kind="stable")
        rows, left = rows[order], -np.sort(-counts)
        part = part.at(order)
        taken = 0
        while True:
            # The rows that still have items are the first ones.
            active = int(np.searchsorted(-left, -taken))
            if active < len(rows):
                self._cursor.position[rows[active:]] = part.position[active:]
                rows, left, part = rows[:active], left[:active], part.at(slice(active))
            if active < _LOCKSTEP_ROWS_MIN:
                break
            self._rows.append(rows)
            self._starts.append(part.position)
            skip(self._item, part)
            taken += 1
        self._cursor.position[rows] = part.position
        for row, count in zip(rows.tolist(), left.tolist(), strict=True):
            self._walk_items(row, count - taken)

    def walk_array(self, row: int) -> None:
        """Read what is left of one row's array, with its end."""
        walker = self._walking()
        end = int(self._cursor.end[row])
        starts: list[int] = []
        at = walker.array(self._item, int(self._cursor.position[row]), end, starts)
        self._note(row, at, starts)

    def _walk_items(self, row: int, count: int) -> None:
        walker = self._walking()
        at, end = int(self._cursor.position[row]), int(self._cursor.end[row])
        starts: list[int] = []
        for _ in range(count):
            starts.append(at)
            at = walker.value(self._item, at, end)
        self._note(row, at, starts)

    def _note(self, row: int, at: int, starts: list[int]) -> None:
        self._cursor.position[row] = at
        self._rows.append(np.full(len(starts), row, np.int64))
        self._starts.append(np.array(starts, np.int64))

    def _walking(self) -> _Walker:
        if self._walker is None:
            self._walker = _Walker(self._cursor)
        return self._walker

    def found(self) -> tuple[Integers, Cursor]:
        """All items so far, in the order of the bytes."""
        none = np.zeros(0, np.int64)
        rows = np.concatenate([none, *self._rows])
        starts = np.concatenate([none, *self._starts])
        order = np.argsort(starts, kind="stable")
        counts = np.bincount(rows, minlength=len(self._cursor)).astype(np.int64)
        ends = np.repeat(self._cursor.end, counts)
        return counts, Cursor(self._cursor.chunk, starts[order], ends)


class _Walker:
    """Steps over single values, one byte after another."""

    def __init__(self, cursor: Cursor) -> None:
        self._chunk = cursor.chunk
        self._bytes = cursor.chunk.content.data

    def value(self, node: Node, at: int, end: int) -> int:
        """The position behind one value."""
        if node.width is not None:
            at += node.width
        elif isinstance(node, Leaf):
            number, at = self._number(at)
            if node.kind in ("string", "bytes"):
                if number < 0:
                    self._damaged()
                at += number
        elif isinstance(node, Record):
            for each in node.nodes:
                at = self.value(each, at, end)
        elif isinstance(node, Items):
            at = self.array(node.item, at, end, None)
        else:
            branch, at = self._number(at)
            if not 0 <= branch < len(node.branches):
                self._damaged()
            at = self.value(node.branches[branch], at, end)
        if at > end:
            self._damaged()
        return at

    def array(self, item: Node, at: int, end: int, starts: list[int] | None) -> int:
        """The position behind an array; `starts` takes where its items begin."""
        while True:
            count, at = self._number(at)
            if count < 0:
                _, at = self._number(at)
            if at > end or abs(count) > end - at:
                self._damaged()
            if count == 0:
                return at
            for _ in range(abs(count)):
                if starts is not None:
                    starts.append(at)
                at = self.value(item, at, end)

    def _number(self, at: int) -> tuple[int, int]:
        value, shift = 0, 0
        for byte in self._bytes[at : at + _VARINT_BYTES_MAX]:
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), at
            shift += 7
        return self._damaged()

    def _damaged(self) -> NoReturn:
        self._chunk.damaged("an array that is longer than its record or malformed")

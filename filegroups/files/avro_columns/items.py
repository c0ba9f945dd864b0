"""Read primitive Avro values of many records at once, and find the items of arrays and maps."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from filegroups.files.avro_columns.types import Items, Leaf, Node, Record, Union
from timeline.errors import CorruptTableError

# ---- Cursors over many records
#
# A cursor holds one position per record of a chunk. Each read takes the same field of all records
# with a few numpy operations, and moves every position after it. No read trusts a byte: after each
# one all positions are still inside their own records. So the next read may load eight bytes (and
# eight more) at any of them from the padded chunk.

PADDING_BYTES: Final = 16
"""Zero bytes before and after a chunk's content, so that no load leaves the buffer."""

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Live = npt.NDArray[np.bool_] | None  # which rows hold a value; None: all of them

_ONE: Final = np.uint64(1)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_LOW_BITS: Final = np.uint64(0x0101010101010101)
_PAYLOAD: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_SHIFT_COUNT: Final = np.uint64(56)
# Join the 7-bit groups of eight bytes: pairs, then fours, then eights.
_JOINS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)


class Chunk:
    """
    The bytes of some whole records, padded, with the views for reads.

    Args:
        content: The bytes, without padding; they are copied.
        path: The file that errors name.
    """

    __slots__ = ("content", "path", "words", "words_big")

    def __init__(self, content: npt.NDArray[np.uint8], path: str) -> None:
        padded = np.zeros(len(content) + 2 * PADDING_BYTES, np.uint8)
        padded[PADDING_BYTES : PADDING_BYTES + len(content)] = content
        shape = (len(padded) - 7,)
        self.content = padded
        self.path = path
        # The eight bytes from every position on, without a copy.
        self.words: Any = np.ndarray(shape, "<u8", padded.data, strides=(1,))
        self.words_big: Any = np.ndarray(shape, ">u8", padded.data, strides=(1,))

    def damaged(self, why: str) -> NoReturn:
        """
        Refuse the chunk.

        Raises:
            CorruptTableError: Always; `why` names the cause.
        """
        raise CorruptTableError(
            f"a record in a log block is damaged ({why}): restore the file from a backup, or roll "
            f"its instant back with 'hoodoo rollback TABLE INSTANT': path={self.path}",
            kind="bad_record",
            path=self.path,
        )


class Cursor:
    """
    One position per record.

    Shapes: position (n,), end (n,): bytes from the start of the padded chunk; both ascending, and
    `position <= end` for every row at all times.
    """

    __slots__ = ("chunk", "end", "position")

    def __init__(self, chunk: Chunk, position: Integers, end: Integers) -> None:
        self.chunk = chunk
        self.position = position
        self.end = end

    def __len__(self) -> int:
        return len(self.position)

    def at(self, rows: Any) -> Cursor:
        """Return a cursor over some of the rows; `put_back` writes its positions back."""
        return Cursor(self.chunk, self.position[rows], self.end[rows])

    def put_back(self, rows: Any, part: Cursor) -> None:
        """Copy the positions of a cursor from `at` back."""
        self.position = self.position.copy()
        self.position[rows] = part.position

    def advance(self, step: Any) -> None:
        """
        Move every position.

        Raises:
            CorruptTableError: A position leaves its record.
        """
        self.position = self.position + step
        if (self.position > self.end).any():
            self.chunk.damaged("a value runs past its end")

    def bytes_here(self) -> npt.NDArray[np.uint8]:
        """Return the byte at every position, without moving."""
        return self.chunk.content[self.position]

    def words_here(self) -> Words:
        """Return the eight bytes from every position on as one little-endian number each."""
        words: Words = self.chunk.words[self.position]
        return words

    def varints(self, live: Live) -> Words:
        """
        Read one variable-length number per row; 0 where `live` is false.

        Raises:
            CorruptTableError: A number is longer than ten bytes or leaves its record.
        """
        words = self.words_here()
        if live is not None:
            words = words * live
        if not (words & np.uint64(0x80)).any():
            self.advance(1 if live is None else live)
            return words & np.uint64(0x7F)
        stop = ~words & _HIGH_BITS
        below = (stop & (~stop + _ONE)) - _ONE  # all bits under the first clear top bit
        values = words & below & _PAYLOAD
        for low, high, shift in _JOINS:
            values = (values & low) | ((values & high) >> shift)
        width = (((below & _LOW_BITS) * _LOW_BITS) >> _SHIFT_COUNT).view(np.int64)
        if not stop.all():
            self._long_varints(np.flatnonzero(stop == 0), values, width)
        self.advance(width if live is None else width * live)
        return values

    def _long_varints(self, rows: Integers, values: Words, width: Integers) -> None:
        """Complete the numbers of nine and ten bytes, in place."""
        tail: Words = self.chunk.words[self.position[rows] + 8]
        ninth, tenth = tail & np.uint64(0xFF), (tail >> np.uint64(8)) & np.uint64(0xFF)
        ten = ninth >= np.uint64(0x80)
        if (tenth[ten] > _ONE).any():
            self.chunk.damaged("a number of more than 64 bits")
        values[rows] |= (ninth & np.uint64(0x7F)) << _SHIFT_COUNT
        values[rows] |= (tenth * ten) << np.uint64(63)
        width[rows] = 9 + ten

    def integers(self, live: Live) -> Integers:
        """
        Read one signed number per row; 0 where `live` is false.

        Raises:
            CorruptTableError: As `varints`.
        """
        values = self.varints(live)
        return ((values >> _ONE) ^ -(values & _ONE)).view(np.int64)

    def lengths(self, live: Live) -> Integers:
        """
        Read the length in bytes before a text, per row; 0 where `live` is false.

        Raises:
            CorruptTableError: A length is negative or leaves its record.
        """
        lengths = self.integers(live)
        room = self.end - self.position
        if (lengths.view(np.uint64) > room.view(np.uint64)).any():
            self.chunk.damaged("a length that is negative or runs past its end")
        return lengths

    def slices(self, lengths: Integers | int) -> pa.Array:
        """
        Copy the bytes from every position on, and move after them.

        Shapes: lengths (n,) -> binary array (n,) without nulls.

        Raises:
            CorruptTableError: A slice leaves its record.
        """
        starts = self.position
        self.advance(lengths)
        rows = len(starts)
        # The whole chunk becomes one binary array: every second element is a slice, the others are
        # the bytes between. Arrow then copies the slices at memory speed.
        offsets = np.empty(2 * rows + 1, np.int32)
        offsets[0:-1:2] = starts
        offsets[1::2] = self.position
        offsets[-1] = len(self.chunk.content)
        if (offsets[1:] < offsets[:-1]).any():
            self.chunk.damaged("values that overlap")
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.chunk.content)]
        both = pa.Array.from_buffers(pa.binary(), 2 * rows, buffers, null_count=0)
        return both.take(pa.array(np.arange(0, 2 * rows, 2)))

    def branches(self, count: int) -> npt.NDArray[np.uint8]:
        """
        Read the number of a union's branch per row.

        Raises:
            CorruptTableError: There is no such branch.
        """
        # Branch numbers below 64 are one byte, twice their value.
        codes = self.bytes_here()
        if ((codes >= 2 * count) | (codes & 1).view(np.bool_)).any():
            self.chunk.damaged("a union has no such branch")
        self.advance(1)
        return codes >> np.uint8(1)


# ---- Skip values, and find the items of arrays and maps
#
# Items have no fixed position, so they are found as a reader would: all rows skip their first item
# together, then their second, and so on. Rows with far more items than the others are walked one
# item at a time by plain code, because a step for few rows costs as much as for thousands. Hostile
# rows are walked, too.

_LOCKSTEP_ROWS_MIN: Final = 48  # below, one step of all rows costs more than walking each
_VARINT_BYTES_MAX: Final = 10


def skip(node: Node, cursor: Cursor, live: Live = None) -> None:
    """
    Move a cursor after one value without building it.

    Args:
        live: Rows that have the value; only for leaves.

    Raises:
        CorruptTableError: A value does not match the schema.
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


def _skip_choice(node: Union, cursor: Cursor) -> None:
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
    Find the items of one array or map per row, and move the cursor after it.

    Shapes: cursor (n,) -> counts (n,), items (sum of counts,) in the order of the bytes.

    Raises:
        CorruptTableError: An array does not match the schema.
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
        """Read the next block of some rows; return the rows whose array has not ended."""
        part = self._cursor.at(rows)
        counts = part.integers(None)
        sized = np.flatnonzero(counts < 0)
        if len(sized):  # such a block has its size in bytes, too
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
            # The rows that still have items are first.
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
        """Read the rest of one row's array, including its end."""
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
        """Return all items so far, in the order of the bytes."""
        none = np.zeros(0, np.int64)
        rows = np.concatenate([none, *self._rows])
        starts = np.concatenate([none, *self._starts])
        order = np.argsort(starts, kind="stable")
        counts = np.bincount(rows, minlength=len(self._cursor)).astype(np.int64)
        ends = np.repeat(self._cursor.end, counts)
        return counts, Cursor(self._cursor.chunk, starts[order], ends)


class _Walker:
    """Skips single values, byte by byte."""

    def __init__(self, cursor: Cursor) -> None:
        self._chunk = cursor.chunk
        self._bytes = cursor.chunk.content.data

    def value(self, node: Node, at: int, end: int) -> int:
        """Return the position after one value."""
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
        """Return the position after an array; add the starts of its items to `starts`."""
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

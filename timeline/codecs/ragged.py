"""
Columns of byte strings of different lengths, and joining them row by row.

An Avro record is the bytes of its fields one after another. To write many records without
a loop over them, the bytes of each field are made for all rows at once, and the columns
are then laid into one buffer, each row's parts side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Ragged", "chosen", "constant", "joined", "longs", "of_width"]

_VARINT_BYTES_MAX: Final = 10
_NARROW_BYTES_MAX: Final = 24  # up to here a column of equal widths is laid byte by byte

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Shapes: lengths (n,), content (sum of lengths,): the rows' bytes in order."""

    lengths: Integers
    content: Bytes

    def __len__(self) -> int:
        return len(self.lengths)


def constant(value: bytes, rows: int) -> Ragged:
    """The same bytes in every row."""
    content = np.tile(np.frombuffer(value, np.uint8), rows)
    return Ragged(np.full(rows, len(value), np.int64), content)


def of_width(matrix: Bytes) -> Ragged:
    """Shapes: matrix (n, width): one row of bytes for each row."""
    rows, width = matrix.shape
    return Ragged(np.full(rows, width, np.int64), matrix.reshape(-1))


def longs(values: npt.NDArray[Any]) -> Ragged:
    """
    Avro's ints and longs: zigzag, then seven bits to a byte, the lowest first.

    Shapes: values (n,) of signed integers.
    """
    wide = values.astype(np.int64)
    left = ((wide << np.int64(1)) ^ (wide >> np.int64(63))).view(np.uint64)
    matrix = np.empty((len(values), _VARINT_BYTES_MAX), np.uint8)
    lengths = np.ones(len(values), np.int64)
    for place in range(_VARINT_BYTES_MAX):
        rest = left >> np.uint64(7)
        more = rest != 0
        matrix[:, place] = (left & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))
        lengths += more
        left = rest
        if not more.any():
            break
    return Ragged(lengths, matrix[np.arange(_VARINT_BYTES_MAX) < lengths[:, None]])


def joined(parts: Sequence[Ragged]) -> Ragged:
    """The parts of every row one after another; all parts have the same number of rows."""
    lengths: Integers = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        lengths = lengths + part.lengths
    starts = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for part in parts:
        _lay(out, starts, part)
        starts = starts + part.lengths
    return Ragged(lengths, out)


def chosen(mask: npt.NDArray[np.bool_], where_true: Ragged, where_false: Ragged) -> Ragged:
    """Rows of the first column where the mask is true and of the second elsewhere, in order."""
    lengths = np.empty(len(mask), np.int64)
    lengths[mask] = where_true.lengths
    lengths[~mask] = where_false.lengths
    starts = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    _lay(out, starts[mask], where_true)
    _lay(out, starts[~mask], where_false)
    return Ragged(lengths, out)


def _lay(out: Bytes, starts: Integers, part: Ragged) -> None:
    """Write each row's bytes from its start on; rows ascend and do not overlap."""
    if not len(part.content):
        return
    width = int(part.lengths[0])
    if width <= _NARROW_BYTES_MAX and (part.lengths == width).all():
        matrix = part.content.reshape(-1, width)
        for place in range(width):
            out[starts + place] = matrix[:, place]
        return
    filled = np.flatnonzero(part.lengths)
    first = starts[filled]
    # +1 where a row begins and -1 behind its end sum up to 1 on exactly the rows' bytes.
    steps = np.zeros(len(out) + 1, np.int8)
    steps[first] += 1
    steps[first + part.lengths[filled]] -= 1
    out[np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)] = part.content

"""
Columns of byte strings, the parts that Avro records are joined from.

An Avro record is the bytes of its fields one after another. To write many records without
a loop over them, the bytes of each field are made for all rows as one binary column, and
Arrow joins the columns row by row.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["blobs", "cells", "content_of", "joined", "longs", "with_lengths"]

_KIND: Final = pa.large_binary()
_VARINT_BYTES_MAX: Final = 10
# Of one row without bytes: ``pa.scalar`` of a Python value would import pandas to look at it.
_NO_BYTES: Final = [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")]
_NOTHING: Final = pa.Array.from_buffers(_KIND, 1, _NO_BYTES)[0]


def joined(*parts: pa.Array | bytes) -> pa.Array:
    """The parts of every row one after another; bytes stand in every row, nulls nowhere."""
    columns = [pa.scalar(part, _KIND) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*columns, _NOTHING)


def longs(values: npt.NDArray[Any]) -> pa.Array:
    """
    Avro's ints and longs: zigzag, then seven bits to a byte, the lowest first.

    Shapes: values (n,) of signed integers -> (n,).
    """
    wide = values.astype(np.int64)
    left = ((wide << np.int64(1)) ^ (wide >> np.int64(63))).view(np.uint64)
    matrix = np.zeros((len(values), _VARINT_BYTES_MAX), np.uint8)
    lengths = np.ones(len(values), np.int64)
    width = 1
    for place in range(_VARINT_BYTES_MAX):
        rest = left >> np.uint64(7)
        more = rest != 0
        matrix[:, place] = left.astype(np.uint8) & np.uint8(0x7F)
        width = place + 1
        if not more.any():
            break
        matrix[:, place] |= more.view(np.uint8) << np.uint8(7)
        lengths += more
        left = rest
    matrix = matrix[:, :width]
    return cells(matrix, np.arange(width) < lengths[:, None])


def cells(matrix: npt.NDArray[np.uint8], kept: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """
    The bytes of each row of a matrix, all or the kept ones.

    Shapes: matrix (n, width), kept (n, width) -> (n,).
    """
    rows, width = matrix.shape
    if kept is None or kept.all():
        return _column(np.full(rows, width, np.int64), np.ascontiguousarray(matrix))
    return _column(kept.sum(axis=1, dtype=np.int64), matrix[kept])


def blobs(column: pa.Array) -> pa.Array:
    """Texts or bytes without nulls, each behind its length."""
    return with_lengths(column.cast(_KIND))


def with_lengths(column: pa.Array) -> pa.Array:
    """Each value behind its length."""
    return joined(longs(np.diff(_borders(column))), column)


def content_of(column: pa.Array) -> bytes:
    """The bytes of all rows one after another."""
    borders = _borders(column)
    content = column.buffers()[2]
    return bytes(memoryview(content)[borders[0] : borders[-1]]) if content else b""


def _borders(column: pa.Array) -> npt.NDArray[np.int64]:
    offsets = column.buffers()[1]
    if not len(column):  # an empty column may have no offsets at all
        return np.zeros(1, np.int64)
    return np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]


def _column(lengths: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]) -> pa.Array:
    borders = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=borders[1:])
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(content)]
    return pa.Array.from_buffers(_KIND, len(lengths), buffers, null_count=0)

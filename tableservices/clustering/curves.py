"""
Order rows so that filters can skip files: linear, along the Z-curve, along Hilbert's curve.

Pure numpy over whole columns. A curve runs through a cube with one axis for each column. The
position of a row on an axis is the share of rows with smaller values, plus half of the rows with an
equal value. The value itself is not used. So every bit halves the rows, however skewed a column is,
and any type with an order works. Null is greater than every value, as NaN is.

The result depends only on the rows, and ties keep their order: two executors of one plan write the
same files (CMP-2).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import InvalidInputError

#: With more columns a curve has less than two bits for each.
COLUMNS_MAX = 31

_BITS = 63  # of a position on the curve
_AXIS_BITS_MAX = 16  # 65,536 shares of the rows are finer than any file
_BLOCK = 65_536  # rows whose axes fit into the processor's cache

_Numbers = npt.NDArray[np.uint64]


class Curve(Enum):
    """The rule that makes one order of several columns; the value is Hudi's name of it."""

    LINEAR = "LINEAR"
    ZORDER = "ZORDER"
    HILBERT = "HILBERT"

    @classmethod
    def _missing_(cls, value: object) -> Curve | None:
        return cls.ZORDER if value == "Z-ORDER" else None  # name in older releases


def row_order(rows: pa.Table, columns: Sequence[str], curve: Curve) -> npt.NDArray[np.int64]:
    """
    Return the positions of the rows, in the wanted order.

    Args:
        rows: Has the named columns.
        columns: At least one and at most ``COLUMNS_MAX``; ``a.b`` is a field of a struct.
        curve: A single column is sorted whatever the curve.

    Raises:
        InvalidInputError: A column is missing or its type has no order, or there are too many.

    Shapes: (n,).
    """
    if len(columns) > COLUMNS_MAX:
        raise InvalidInputError(
            f"at most {COLUMNS_MAX} columns can order rows: name fewer columns: {len(columns)} "
            "are named",
            kind="sort_columns",
        )
    axes = [sortable_column(rows, name) for name in columns]
    if curve is Curve.LINEAR or len(axes) == 1:
        return _sorted(axes)
    bits = min(_AXIS_BITS_MAX, _BITS // len(axes))
    shares = np.stack([_shares(axis, bits) for axis in axes])
    numbers = (hilbert_numbers if curve is Curve.HILBERT else z_numbers)(shares, bits)
    return np.argsort(numbers, kind="stable")


def sortable_column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """
    Return a column by its name, or by the path to a struct's field.

    Raises:
        InvalidInputError: It is missing, or its type has no order.
    """
    outer, *inner = [name] if name in rows.schema.names else name.split(".")
    if outer not in rows.schema.names:
        raise _no_order(name, f"the table has {rows.schema.names}")
    column = rows.column(outer)
    for part in inner:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(part) < 0:
            raise _no_order(name, f"{outer} is of type {column.type}")
        column = pc.struct_field(column, part)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise _no_order(name, f"type {column.type} has no order")
    return column


def _no_order(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"the rows cannot be ordered by this column: name another: {name!r}; {why}",
        kind="sort_columns",
        column=name,
    )


def _sorted(axes: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    # Arrow's sort is not stable, so the row number is the last key.
    count = len(axes[0])
    names = [str(position) for position in range(len(axes) + 1)]
    table = pa.table([*axes, pa.array(np.arange(count))], names=names)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    return np.asarray(order).astype(np.int64)


def _shares(axis: pa.ChunkedArray, bits: int) -> npt.NDArray[np.uint32]:
    """Return the middle position of the rows of equal value, in 2**bits parts of all rows."""
    ranks = np.asarray(pc.rank(axis, tiebreaker="dense")).astype(np.int64) - 1
    counts = np.bincount(ranks)
    middles = (2 * np.cumsum(counts) - counts) / (2 * max(len(ranks), 1))
    return (middles * (1 << bits)).astype(np.uint32)[ranks]


def z_numbers(axes: npt.NDArray[np.uint32], bits: int) -> _Numbers:
    """
    Return positions on the Z-curve: the bits of all axes interleaved, the first axis on top.

    Shapes: axes (d, n) with values below 2**bits, d * bits at most 63; numbers (n,).
    """
    dimensions = len(axes)
    table = np.zeros(256, np.uint64)
    for bit in range(8):
        set_there = (np.arange(256, dtype=np.uint64) >> np.uint64(bit)) & np.uint64(1)
        place = bit * dimensions
        if place < 64:
            table |= set_there << np.uint64(place)
    numbers = np.zeros(axes.shape[1], np.uint64)
    for axis, values in enumerate(axes):
        for low in range(0, bits, 8):
            # The byte above the axis' bits is zero there, so no bit leaves the number.
            spread = table[(values >> np.uint32(low)) & np.uint32(255)]
            numbers |= spread << np.uint64(low * dimensions + dimensions - 1 - axis)
    return numbers


def hilbert_numbers(axes: npt.NDArray[np.uint32], bits: int) -> _Numbers:
    """
    Return positions on Hilbert's curve: neighbours differ by one step on one axis.

    After J. Skilling, "Programming the Hilbert curve" (2004): rotate and reflect the axes bit by
    bit from the top, make them a Gray code, and interleave their bits.

    Shapes: as ``z_numbers``.
    """
    numbers = np.empty(axes.shape[1], np.uint64)
    for start in range(0, axes.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        numbers[block] = z_numbers(_transposed(axes[:, block].copy(), bits), bits)
    return numbers


def _transposed(axes: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    """Return Skilling's transposed form: the numbers' bits, spread over the axes."""
    one, first = np.uint32(1), axes[0]
    for bit in range(bits - 1, 0, -1):
        shift, below = np.uint32(bit), np.uint32((1 << bit) - 1)
        for axis in axes:
            # All ones where this axis has the bit: there invert the lower bits of the first axis;
            # elsewhere swap them with this axis'.
            has = np.uint32(0) - ((axis >> shift) & one)
            swap = (first ^ axis) & below & ~has
            first ^= (below & has) | swap
            if axis is not first:
                axis ^= swap  # noqa: PLW2901 - a view of the row, changed in place
    for position in range(1, len(axes)):
        axes[position] ^= axes[position - 1]
    turned = np.zeros_like(first)
    for bit in range(bits - 1, 0, -1):
        has = np.uint32(0) - ((axes[-1] >> np.uint32(bit)) & one)
        turned ^= np.uint32((1 << bit) - 1) & has
    axes ^= turned
    return axes

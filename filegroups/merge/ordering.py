"""
Comparison of ordering values: several columns left to right, as Java's ``compareTo`` does.

A batch, the logs of a slice and a base file share it. They must agree even on NaN, or a record
would win in one step and lose in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Mask", "Positions", "not_below", "order_numbers", "ordering_column"]

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]


def ordering_column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return an ordering field of rows: a column, or a field inside a struct by a dotted name."""
    position = rows.schema.get_field_index(name)
    if position >= 0:
        return rows.column(position)
    head, *rest = name.split(".")
    return pc.struct_field(rows.column(head), rest)


def order_numbers(columns: Sequence[pa.ChunkedArray]) -> tuple[npt.NDArray[Any], Mask]:
    """
    Return numbers that compare as the rows' ordering values do.

    Args:
        columns: The ordering fields, the most significant first; at least one.

    Returns:
        Numbers, equal where the ordering values are, and a mask of rows without a value in some
        field: their numbers mean nothing.

    Shapes: columns (n,) each -> (n,), (n,).
    """
    missing = np.zeros(len(columns[0]), np.bool_)
    parts = []
    for column in columns:
        if column.null_count:
            missing |= np.asarray(pc.is_null(column)).astype(np.bool_)
        parts.append(_numbers(column))
    if len(parts) == 1:
        return parts[0], missing
    order = np.lexsort(parts[::-1])
    steps = np.zeros(len(order), np.bool_)
    for part in parts:
        steps[1:] |= np.diff(part[order]) != 0
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(steps)
    return numbers, missing


def not_below(newer: Sequence[Any], older: Sequence[Any]) -> Mask:
    """
    Return for each pair of rows whether the newer's ordering fields are >= the older's.

    A row without a value in a field is the older one. If both lack it, the newer row wins.

    Shapes: columns (n,) each -> (n,).
    """
    above = np.zeros(len(newer[0]), np.bool_)
    equal = np.ones(len(newer[0]), np.bool_)
    for new, old in zip(newer, older, strict=True):
        greater, same = _compare(new, old)
        above |= equal & greater
        equal &= same
    return above | equal


def _compare(new: Any, old: Any) -> tuple[Mask, Mask]:
    greater, same = pc.greater(new, old), pc.equal(new, old)
    if pa.types.is_floating(new.type):
        # As Java's Double.compareTo: NaN is above every number and equal to itself.
        new_nan, old_nan = pc.is_nan(new), pc.is_nan(old)
        greater = pc.or_(greater, pc.and_not(new_nan, old_nan))
        same = pc.or_(same, pc.and_(new_nan, old_nan))
    # Without a value on either side the newer wins: Java treats such orderings as "natural".
    greater = pc.fill_null(greater, True)
    same = pc.fill_null(same, False)
    return np.asarray(greater).astype(np.bool_), np.asarray(same).astype(np.bool_)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = pc.cast(column, pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = pc.cast(column, pa.int64())
    if pa.types.is_integer(column.type):
        return np.asarray(pc.fill_null(column, 0) if column.null_count else column)
    if pa.types.is_floating(column.type):
        # Sorted with NaN last, and all NaN equal, as Java does.
        values = np.asarray(pc.fill_null(column, 0.0) if column.null_count else column)
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks).astype(np.int64)

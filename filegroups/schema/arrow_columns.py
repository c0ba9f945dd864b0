"""
Operations on Arrow columns: join the chunks of one, number its distinct values, split and rank rows.

Rows are split, ranked and ordered by such numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

JOINED_BYTES_MAX = 1 << 30  # texts of one array are at most 2 GiB


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; one chunk is not copied."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)  # Arrow cannot combine zero chunks of a dictionary of dates
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def distinct_codes(
    column: pa.Array | pa.ChunkedArray,
) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """
    Number the distinct values of a column without nulls, in the order they first appear.

    Shapes: (n,) -> codes (n,), values (m,) by code.
    """
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    chunked = isinstance(column, pa.ChunkedArray)
    if not chunked or column.num_chunks <= 1 or column.nbytes <= JOINED_BYTES_MAX:
        whole = one_array(column).dictionary_encode()  # hashed once, no dictionaries to unify
        return np.asarray(whole.indices).astype(np.int64), whole.dictionary
    encoded = column.dictionary_encode().unify_dictionaries()
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in encoded.chunks])
    return codes.astype(np.int64), encoded.chunk(0).dictionary


def codes_of(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Number the distinct texts of a column. Shapes: (n,) -> codes (n,), texts by code."""
    codes, texts = distinct_codes(column)
    return codes, texts.to_pylist()


def rows_by_number(numbers: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.intp]]:
    """
    Split rows by a small number that each has.

    Shapes: numbers (n,) -> for each number, ascending, its row positions, ascending.
    """
    if len(numbers) == 0:
        return {}
    least = int(numbers.min())
    span = int(numbers.max()) - least
    # numpy sorts 16-bit numbers by radix in one pass, much faster than by comparison.
    small = (numbers - least).astype(np.uint16) if span < 1 << 16 else numbers
    order = np.argsort(small, kind="stable")
    ordered = numbers[order]
    starts = np.append(0, np.flatnonzero(np.diff(ordered)) + 1)
    parts = np.split(order, starts[1:])
    return {int(ordered[start]): part for start, part in zip(starts, parts, strict=True)}


def ranks(codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return how many equal codes precede each code. Shapes: (n,) -> (n,)."""
    order, numbers = _ranked(codes)
    found = np.zeros(len(codes), np.int64)
    found[order] = numbers
    return found


def version_rounds(codes: npt.NDArray[np.integer]) -> Iterator[npt.NDArray[np.intp]]:
    """
    Yield positions of every code's first occurrence, then of every code's second, and so on.

    Shapes: (n,) -> at most (n,) each, in the order of the codes.
    """
    order, numbers = _ranked(codes)
    order = order[np.argsort(numbers, kind="stable")]
    begin = 0
    for end in np.cumsum(np.bincount(numbers)):
        yield order[begin:end]
        begin = end


def _ranked(
    codes: npt.NDArray[np.integer],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return positions in the order of the codes, and their ranks. Shapes: (n,) -> (n,), (n,)."""
    order = np.argsort(codes, kind="stable")
    grouped = codes[order]
    firsts = np.flatnonzero(np.append(True, grouped[1:] != grouped[:-1]))
    lengths = np.diff(np.append(firsts, len(codes)))
    return order, np.arange(len(codes)) - np.repeat(firsts, lengths)

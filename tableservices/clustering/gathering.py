"""
Rows picked from a group in a wanted order, however many bytes of text the group has.

A text column of Arrow holds 2 GiB in one piece, and picking rows joins the pieces. A bigger
group is widened to offsets of 64 bits first, and what is picked is narrowed again in parts,
because files are written with the table's own types.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["gather", "joined"]

_NARROW_BYTES_MAX = (1 << 31) - (1 << 20)

_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def joined(rows: pa.Table, *, narrow_bytes_max: int = _NARROW_BYTES_MAX) -> pa.Table:
    """The rows in one piece, their text widened where all columns together have more bytes."""
    if rows.nbytes > narrow_bytes_max:
        rows = rows.cast(
            pa.schema([each.with_type(_WIDE.get(each.type, each.type)) for each in rows.schema])
        )
    return rows.combine_chunks()


def gather(
    rows: pa.Table,
    positions: npt.NDArray[np.int64],
    schema: pa.Schema,
    *,
    narrow_bytes_max: int = _NARROW_BYTES_MAX,
) -> pa.Table:
    """
    The rows at these positions, in their order, with the schema's own types.

    Shapes: positions (n,) -> n rows.
    """
    if rows.schema.equals(schema):
        return rows.take(pa.array(positions))
    row_bytes = max(1, rows.nbytes // max(rows.num_rows, 1))
    parts = -(-len(positions) * row_bytes // (narrow_bytes_max // 2)) or 1
    pieces: list[Any] = [
        rows.take(pa.array(part)).cast(schema) for part in np.array_split(positions, parts)
    ]
    return pa.concat_tables(pieces)

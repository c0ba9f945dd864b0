"""
Rows that leave a file group because their keys moved to another partition.

With a global index a key lives once in the table: its row is inserted where it belongs
now, and a copy of it, marked by a column that is never stored, goes to the file group it
leaves. Whether it moves at all was decided before; here the old row is taken out, whatever
the order says.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from timeline.model.schema import KEY_COLUMN

__all__ = ["LEAVES_COLUMN", "mark_leaving", "split_leaving", "take_out_leaving"]

LEAVES_COLUMN = "_hoodoo_leaves"


def mark_leaving(rows: pa.Table, leaving: pa.Table) -> pa.Table:
    """A file group's rows and those that leave it, told apart by a column."""
    marks = pa.chunked_array(
        [pa.repeat(pa.scalar(leaves), part.num_rows) for leaves, part in _parts(rows, leaving)],
        pa.bool_(),
    )
    return pa.concat_tables([rows, leaving]).append_column(LEAVES_COLUMN, marks)


def split_leaving(incoming: pa.Table) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """The rows that stay, without their mark, and the keys of those that leave; None for none."""
    if LEAVES_COLUMN not in incoming.schema.names:
        return incoming, None
    leaves = incoming.column(LEAVES_COLUMN)
    staying = incoming.filter(pc.invert(leaves)).drop_columns([LEAVES_COLUMN])
    return staying, incoming.filter(leaves).column(KEY_COLUMN)


def take_out_leaving(base: pa.Table, incoming: pa.Table) -> tuple[pa.Table, pa.Table, int]:
    """
    Take the rows that leave out of a base file.

    Returns:
        The base without them, the incoming rows that stay (unmarked), and how many left.
    """
    staying, keys = split_leaving(incoming)
    if keys is None:
        return base, staying, 0
    kept = base.filter(pc.invert(pc.is_in(base.column(KEY_COLUMN), value_set=keys)))
    return kept, staying, base.num_rows - kept.num_rows


def _parts(rows: pa.Table, leaving: pa.Table) -> tuple[tuple[bool, pa.Table], ...]:
    return (False, rows), (True, leaving)

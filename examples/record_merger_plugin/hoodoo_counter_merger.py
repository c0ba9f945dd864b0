"""
Example record merger: counters add up, all other columns are the newer row's.

A table of page views, say, is upserted with what was counted since the last time. It shows
the whole contract: which tables the merger answers to, and two versions of many records
merged at once, column by column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.plugins import MergedRows, Versions, hookimpl

__all__ = ["STRATEGY_ID", "CounterMerger", "record_mergers"]

STRATEGY_ID = "6b1d3c5e-0f57-4a8e-9d55-3f2a8f0c7b21"  # of this way to merge, made once


@dataclass(frozen=True)
class CounterMerger:
    """Adds up the columns whose name begins with a prefix; a delete deletes."""

    prefix: str = "count_"

    @property
    def strategy_ids(self) -> tuple[str, ...]:
        """What the table's ``hoodie.record.merge.strategy.id`` says."""
        return (STRATEGY_ID,)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The Java class that merges so, for tables that Java writes, too."""
        return ("com.example.CounterRecordMerger",)

    def columns_needed(self, schema: pa.Schema) -> tuple[str, ...]:  # noqa: ARG002
        """None: a sum needs its own column only, which is there when it is asked for."""
        return ()

    def merge(self, older: Versions, newer: Versions) -> MergedRows:
        """
        Add what is newer to what is older.

        A null counts as nothing, and so does what was deleted. Columns that are left out come
        from the newer row. It is associative where no record is deleted and comes back.
        """
        names = [name for name in newer.rows.schema.names if name.startswith(self.prefix)]
        sums = {name: pc.add(_counted(older, name), _counted(newer, name)) for name in names}
        return MergedRows(columns=sums, deleted=newer.deleted)


def _counted(versions: Versions, name: str) -> pa.ChunkedArray:
    column = versions.rows.column(name)
    counts = pa.array(~np.asarray(versions.deleted))
    nothing = pa.scalar(0, column.type)
    return pc.if_else(counts, pc.fill_null(column, nothing), nothing)


@hookimpl
def record_mergers() -> tuple[CounterMerger, ...]:
    """The mergers of this plug-in."""
    return (CounterMerger(),)

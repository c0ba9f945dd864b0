"""
The record merger port: how two versions of a record become one, where the table's owner says so.

Java Hudi runs a class of the owner's for tables in the merge mode CUSTOM; hoodoo runs a
plug-in that answers to the same strategy id (``timeline.hookspecs``). It sees whole columns,
never single rows, and serves reads, copy-on-write writes and table services alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["MergedRows", "RecordMerger", "Versions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """
    One version each of some records.

    Attributes:
        rows: Columns of the table, and Hudi's meta columns. A row that is a delete has its
            record key, perhaps ordering fields, and null in all other columns.
        deleted: Which of the rows are deletes.

    Shapes: rows (n rows), deleted (n,).
    """

    rows: pa.Table
    deleted: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRows:
    """
    What a merger made of two versions each.

    Attributes:
        columns: The columns it merged, in the types it was given. A column it leaves out comes
            from the newer version; from the older where the newer is a delete that is not
            followed. Meta columns are the engine's own and are not looked at.
        deleted: Which records are deleted now; what ``columns`` have there does not count.
        kept: Which records stay as they are stored, with their commit time; None for none.

    Shapes: columns (n,) each, deleted (n,), kept (n,).
    """

    columns: Mapping[str, pa.Array | pa.ChunkedArray]
    deleted: npt.NDArray[np.bool_]
    kept: npt.NDArray[np.bool_] | None = None


class RecordMerger(Protocol):
    """
    Merges records of tables that name it.

    It is a plain value of an importable class: Spark sends it to executors by the name of
    its class and its fields, so the distribution must be installed there, too. It keeps no
    state between calls, and calls come from several threads.
    """

    @property
    def strategy_ids(self) -> Collection[str]:
        """Values of ``hoodie.record.merge.strategy.id`` it answers to."""

    @property
    def class_names(self) -> Collection[str]:
        """Java classes it stands for: payload classes, and mergers for a caller to name."""

    def columns_needed(self, schema: pa.Schema) -> Sequence[str]:
        """
        The columns it must see whatever a reader asks for; those a table lacks are left out.

        Args:
            schema: The table's columns.
        """

    def merge(self, older: Versions, newer: Versions) -> MergedRows:
        """
        Merge each older version with the newer one of the same record.

        Changes in log files are merged with each other first and the result with the base
        file, as Java does, so merging must be associative.

        Args:
            older: What is stored, or came first.
            newer: What came after it; row by row the same records, in the same columns.

        Shapes: older (n rows), newer (n rows) -> (n rows).
        """

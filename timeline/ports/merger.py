"""
The record merger port: merges two versions of a record by a rule of the table's owner.

For tables in the merge mode CUSTOM, Java Hudi runs the owner's class; hoodoo runs a plug-in with
the same strategy id (``timeline.hookspecs``). A merger gets whole columns, never single rows, and
serves reads, copy-on-write writes and table services alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


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
    The result of merging two versions each of some records.

    Attributes:
        columns: The merged columns, in the types of the input. A column that is missing here comes
            from the newer version, or from the older if the newer is a delete that is not applied.
            The engine sets meta columns itself and ignores them here.
        deleted: Which records are deleted now; their values in ``columns`` do not count.
        kept: Which records stay as they are stored, with their commit time; None for none.

    Shapes: columns (n,) each, deleted (n,), kept (n,).
    """

    columns: Mapping[str, pa.Array | pa.ChunkedArray]
    deleted: npt.NDArray[np.bool_]
    kept: npt.NDArray[np.bool_] | None = None


@runtime_checkable
class RecordMerger(Protocol):
    """
    Merge records of tables that name it.

    A merger is a plain value of an importable class. Spark sends it to executors by the name of its
    class and its fields, so the distribution must be installed there, too. It keeps no state
    between calls, and calls come from several threads.
    """

    @property
    def strategy_ids(self) -> Collection[str]:
        """Values of ``hoodie.record.merge.strategy.id`` that it serves."""

    @property
    def class_names(self) -> Collection[str]:
        """Java classes that it replaces: payload classes, and mergers for a caller to name."""

    def columns_needed(self, schema: pa.Schema) -> Sequence[str]:
        """
        Return the columns it needs in every read; columns that a table lacks are ignored.

        Args:
            schema: The table's columns.
        """

    def merge(self, older: Versions, newer: Versions) -> MergedRows:
        """
        Merge each older version with the newer one of the same record.

        The engine first merges changes in log files with each other and then the result with the
        base file, as Java does, so merging must be associative.

        Args:
            older: The stored or earlier versions.
            newer: The later versions; row by row the same records, in the same columns.

        Shapes: older (n rows), newer (n rows) -> (n rows).
        """

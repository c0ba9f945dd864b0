"""
What a DataFrame was read of, for a write that is made from it (``reads=``).

A DataFrame of this engine remembers the state it shows. What somebody asks of it later
(``where``, ``join``) is Spark's, so the part of the table that counts is told by the caller,
in the words of ``TableSnapshot.reads``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timeline.errors import InvalidInputError
from timeline.reading.read import Filter
from timeline.reading.read_set import ReadSet
from timeline.reading.table_snapshot import TableSnapshot

__all__ = ["reads", "remember_state"]

_STATE = "_hoodoo_state"


def remember_state(df: Any, state: TableSnapshot | None) -> Any:
    """Let a DataFrame know the state it shows; None where it shows no state, but a range."""
    setattr(df, _STATE, state)
    return df


def reads(df: Any, *, partitions: Iterable[str] | None = None, filter: Filter = None) -> ReadSet:  # noqa: A002
    """
    What was read of a table, for a write that is made from it.

    Args:
        df: What ``spark.read.format("hoodoo").load(path)`` or ``to_df()`` returned, itself: a
            DataFrame derived from it does not know where its rows lay.
        partitions: Partition paths, also those in which no row was found; None for all.
        filter: As of ``Table.scan``: the rows that were asked for. None for all.

    Raises:
        InvalidInputError: It is no such DataFrame (``not_loaded``); or it shows a time of the
            past, a range, or base files only, which say nothing of the newest rows
            (``reads_of_the_past``).
    """
    if not hasattr(df, _STATE):
        raise InvalidInputError(
            "only the DataFrame that load() or to_df() returned knows the state it was read of; "
            "give that one, and what was asked of it as partitions= and filter=",
            kind="not_loaded",
        )
    state: TableSnapshot | None = getattr(df, _STATE)
    if state is None:
        raise InvalidInputError(
            "a write can only be made from the newest state; load it without a range and as "
            "query type snapshot",
            kind="reads_of_the_past",
        )
    return state.reads(partitions=partitions, filter=filter)

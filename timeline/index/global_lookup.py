"""
The global look-up: a key is unique in the whole table, so it is looked for everywhere.

A row whose key lives in another partition either moves (it is inserted where it belongs
and leaves where it was) or is updated where it lies. What does not replace the old row
must not move it: a late row in event-time order, and a delete, go to the old row's file
group, where merging decides as always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.index import IndexedFile, LookupRules
from timeline.index.held import held_rows
from timeline.index.lookup import tag
from timeline.model.claim import FileGroupId
from timeline.model.columns import one_array
from timeline.model.schema import KEY_COLUMN, PARTITION_COLUMN
from timeline.ports.executor import Executor
from timeline.ports.storage import Storage
from timeline.rules.ordering import not_below, ordering_column
from timeline.rules.placement import rows_by_number

__all__ = ["Whereabouts", "find_everywhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where each row goes, and which ones leave another place for it."""

    partition_paths: pa.Array  # of each row's file group
    file_ids: pa.Array  # null for a row that is new there
    leaving: Mapping[FileGroupId, npt.NDArray[np.intp]]  # positions of rows that leave it


def find_everywhere(
    storage: Storage,
    executor: Executor,
    base_files: Mapping[str, Sequence[IndexedFile]],
    rows: pa.Table,
    rules: LookupRules,
    *,
    ordering_fields: Sequence[str] = (),
    deletes: npt.NDArray[np.bool_] | None = None,
) -> Whereabouts:
    """
    Find each row's file group in the whole table.

    Args:
        storage: Where the table lies.
        executor: Looks into several files side by side.
        base_files: The newest base file of every file group, by partition path.
        rows: With record key, partition path and the ordering fields; keys are unique.
        rules: How to look, and whether rows move.
        ordering_fields: Compared left to right where they decide; empty in commit-time order.
        deletes: Rows that delete; they never move.

    Shapes: rows (n), deletes (n,) -> (n,) each.

    Raises:
        MissingFileError: A candidate was cleaned meanwhile; plan anew.
        CorruptTableError: A candidate is damaged.

    Outside: at most 1 open_input a file, 1 more where moving rows lie and order decides.
    """
    files = [(path, each) for path, some in base_files.items() for each in some]
    keys, own_paths = (
        rows.column(KEY_COLUMN),
        one_array(pc.cast(rows.column(PARTITION_COLUMN), pa.string())),
    )
    everything = [replace(each, file_id=str(number)) for number, (_, each) in enumerate(files)]
    one_place = pa.repeat(pa.scalar(""), rows.num_rows)
    found = tag(storage, executor, {"": everything}, keys, one_place, filters=rules.filters)
    numbers = pc.cast(found, pa.int64())
    where = pa.array([path for path, _ in files], pa.string()).take(numbers)
    file_ids = pa.array([each.file_id for _, each in files], pa.string()).take(numbers)
    elsewhere = np.asarray(pc.fill_null(pc.not_equal(where, own_paths), False)).astype(np.bool_)
    moving = elsewhere & np.bool_(rules.moves)
    if deletes is not None:
        moving &= ~deletes
    leaving: dict[FileGroupId, npt.NDArray[np.intp]] = {}
    placed = np.asarray(pc.fill_null(numbers, -1)).astype(np.int64)
    candidates = np.flatnonzero(moving)
    for number, part in rows_by_number(placed[candidates]).items():
        path, file = files[number]
        positions = candidates[part]
        if ordering_fields:
            newer = _replaces(storage, file, rows.take(pa.array(positions)), ordering_fields)
            moving[positions[~newer]] = False
            positions = positions[newer]
        if len(positions):
            leaving[FileGroupId(path, file.file_id)] = positions
    stays = pa.array(elsewhere & ~moving)
    return Whereabouts(
        partition_paths=pc.if_else(stays, where, own_paths),
        file_ids=pc.if_else(pa.array(moving), pa.scalar(None, pa.string()), file_ids),
        leaving=leaving,
    )


def _replaces(
    storage: Storage, file: IndexedFile, rows: pa.Table, ordering_fields: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Which rows are not older than the rows of their keys in a base file."""
    held = held_rows(storage, file, rows.schema, ordering_fields)
    older = held.take(pc.index_in(rows.column(KEY_COLUMN), value_set=held.column(KEY_COLUMN)))
    newer = [ordering_column(rows, name) for name in ordering_fields]
    return not_below(newer, older.columns[1:])

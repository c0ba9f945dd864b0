"""
Merging by a plug-in: what a ``RecordMerger`` answers, held against its contract.

The places where versions meet are the same as without a plug-in (a batch, the logs of a
slice, a base file); here the versions are laid side by side, given away and taken back.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timeline.errors import UnsafeSetupError
from timeline.model.schema import META_COLUMNS
from timeline.ports.merger import RecordMerger, Versions
from timeline.rules.ordering import Mask, Positions

__all__ = ["merge_in_turns", "merge_versions"]


def merge_in_turns(
    versions: Versions,
    codes: npt.NDArray[np.int64],
    turns: Iterable[Positions],
    merger: RecordMerger,
) -> Versions:
    """
    Merge all versions of each record, oldest first, one vectorised step a turn.

    Args:
        versions: Oldest first.
        codes: A number for each version's record.
        turns: Positions of every record's first version, then of every record's second, and
            so on; within a turn in the order of ``codes``.
        merger: The plug-in's.

    Raises:
        UnsafeSetupError: See ``merge_versions``.

    Shapes: versions (n rows), codes (n,) -> one row for each code.
    """
    done: list[Versions] = []
    state, keys = _taken(versions, np.zeros(0, np.intp)), np.zeros(0, np.int64)
    for turn in turns:
        new, newer = codes[turn], _taken(versions, turn)
        goes_on = np.isin(keys, new)
        done.append(_taken(state, np.flatnonzero(~goes_on)))
        if not len(keys):
            state, keys = newer, new
            continue
        state, _ = merge_versions(merger, _taken(state, np.flatnonzero(goes_on)), newer)
        keys = new
    done.append(state)
    return Versions(
        rows=pa.concat_tables([each.rows for each in done]),
        deleted=np.concatenate([each.deleted for each in done]),
    )


def merge_versions(merger: RecordMerger, older: Versions, newer: Versions) -> tuple[Versions, Mask]:
    """
    Merge pairs of versions.

    Returns:
        The merged ones in the columns of ``older``, and which of them stayed as the older
        one was. A deleted record is told by the version that was a delete.

    Raises:
        UnsafeSetupError: The answer has another length, or values of other types
            (``bad_merger``; field ``merger``).

    Shapes: older, newer (n rows) -> (n rows), (n,).
    """
    count = older.rows.num_rows
    answer = merger.merge(older, newer)
    deleted = _mask(answer.deleted, count, merger)
    kept = np.zeros(count, np.bool_) if answer.kept is None else _mask(answer.kept, count, merger)
    # Per row: 0 the older version's value, 1 the newer's, 2 the merged one.
    plain = np.where((newer.deleted & ~deleted) | kept, 0, 1)
    plain = np.where(deleted & ~newer.deleted & older.deleted, 0, plain)
    tells_delete = deleted & (newer.deleted | older.deleted)
    merged = np.where(kept | tells_delete, plain, 2)
    columns = []
    for each in older.rows.schema:
        given = each.name not in META_COLUMNS and each.name in answer.columns
        parts = [older.rows.column(each.name), newer.rows.column(each.name)]
        if given:
            parts.append(_fitting(answer.columns[each.name], each, count, merger))
        source = (merged if given else plain) * count + np.arange(count)
        chunks = [chunk for part in parts for chunk in part.chunks]
        columns.append(pa.chunked_array(chunks, each.type).take(pa.array(source)))
    rows = pa.Table.from_arrays(columns, schema=older.rows.schema)
    return Versions(rows=rows, deleted=deleted), kept


def _taken(versions: Versions, positions: Positions) -> Versions:
    return Versions(
        rows=versions.rows.take(pa.array(positions)), deleted=versions.deleted[positions]
    )


def _fitting(
    column: pa.Array | pa.ChunkedArray, wanted: pa.Field, count: int, merger: RecordMerger
) -> pa.ChunkedArray:
    if len(column) != count:
        raise _bad(merger, f"column {wanted.name} of {len(column)} values for {count} records")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    try:
        return pa.chunked_array(chunks, column.type).cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _bad(
            merger, f"column {wanted.name} as {column.type} instead of {wanted.type}"
        ) from error


def _mask(mask: Mask, count: int, merger: RecordMerger) -> Mask:
    found = np.asarray(mask)
    if found.shape != (count,) or found.dtype != np.bool_:
        raise _bad(
            merger, f"a mask of {found.dtype} of the shape {found.shape} for {count} records"
        )
    return found


def _bad(merger: RecordMerger, what: str) -> UnsafeSetupError:
    name = type(merger).__name__
    return UnsafeSetupError(
        f"a plug-in's merger breaks its contract, ask its author: {name} answered with {what}",
        kind="bad_merger",
        merger=name,
    )

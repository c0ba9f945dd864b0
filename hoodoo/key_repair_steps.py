"""
Which rows a repair of keys writes next, and which it deletes: a decision about known rows.

Every step keeps, of each record, the row that wins among those that are known. So no record can
go missing, whatever a write in between made of the rows, and wherever a repair stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.model.columns import one_array
from timeline.model.schema import (
    COMMIT_TIME_COLUMN,
    KEY_COLUMN,
    PARTITION_COLUMN,
    SEQUENCE_COLUMN,
    drop_meta,
)
from timeline.rules.ordering import Mask, ordering_column

__all__ = [
    "ASIDE",
    "RIGHT_KEY",
    "RIGHT_PATH",
    "KnownRows",
    "Step",
    "next_step",
    "no_texts",
    "record_names",
]

RIGHT_KEY, RIGHT_PATH = "_right_key", "_right_path"
#: Behind the key of a row that waits until its place is free.
ASIDE = "~hoodoo-repair"


def no_texts() -> pa.Array:
    """None yet; no constant, since the first array of all imports pandas."""
    return pa.array([], pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRows:
    """
    Rows with the meta columns, and the keys and paths that are right for them.

    Of every place where one of them lies or belongs, all rows are there.

    Shapes: rows (n rows), masks (n,).
    """

    rows: pa.Table
    wrong: Mask  # lies elsewhere than its columns say
    complete: Mask  # all wrong rows of its record are there


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one write does: it writes rows under other addresses, or deletes addresses."""

    upserts: pa.Table | None = None
    deletes: pa.Table | None = None
    placed: int = 0  # upserts that come to their right place
    aside: int = 0  # deletes of rows that were put aside, which are there twice
    returns: bool = False  # some come back from where they were put aside
    done: pa.Array = field(default_factory=no_texts)
    key_twice: pa.Array = field(default_factory=no_texts)


def next_step(
    known: KnownRows, ordering_fields: Sequence[str], done: pa.Array, *, by_key: bool
) -> Step:
    """
    Decide what the next write does.

    A winner is written to its right place. Where a wrong row of another record lies there, an upsert
    would merge the two, so the winner is written under a key of its own. When no winner is left to
    write, the step deletes each address that holds neither a winner nor a right row.

    Args:
        known: The rows.
        ordering_fields: Compared left to right; empty where the newer row always wins.
        done: What earlier steps did, of ``Step.done``; nothing is done twice.
        by_key: A key is unique in the table; else in its partition.

    Returns:
        The step; without upserts and deletes when nothing can be done.
    """
    rows, wrong = known.rows, known.wrong
    stored, right = (
        _places(rows, KEY_COLUMN, PARTITION_COLUMN),
        _places(rows, RIGHT_KEY, RIGHT_PATH),
    )
    beside = pc.binary_join_element_wise(rows.column(RIGHT_KEY), ASIDE, "")
    aside = _joined(beside, rows.column(RIGHT_PATH))
    told = pa.concat_arrays([stored, right, aside]).dictionary_encode()
    lies, belongs, waits = np.asarray(told.indices).reshape(3, rows.num_rows)
    records, _ = _codes(record_names(rows, by_key=by_key))
    sources = _joined(stored, rows.column(COMMIT_TIME_COLUMN), rows.column(SEQUENCE_COLUMN))
    # What was written and not taken has lost by the table's own rule of merging.
    offered = _in(_joined(sources, right), done) & wrong
    wins = _winners(rows, records, offered, ~wrong, ordering_fields)

    def counts(mask: Mask) -> npt.NDArray[np.intp]:
        """By place: how many of some rows lie there."""
        return np.bincount(lies[mask], minlength=len(told.dictionary))

    def held(mask: Mask) -> Mask:
        return counts(mask) > 0

    taken, strange = held(wrong)[belongs], held(lies != waits)[waits]
    goal = told.dictionary.take(pa.array(np.where(taken, waits, belongs)))
    moves = wins & wrong & known.complete & ~(taken & ((lies == waits) | strange))
    names = _joined(sources, goal)
    moves &= ~_in(names, done)
    if moves.any():
        chosen, keys = pa.array(moves), pc.if_else(pa.array(taken), beside, rows.column(RIGHT_KEY))
        return Step(
            upserts=_addressed(rows, keys).filter(chosen),
            placed=int((moves & ~taken).sum()),
            returns=bool((moves & ~taken & (lies == waits)).any()),
            done=names.filter(chosen),
        )
    stays = wins | ~wrong
    loses = known.complete & ~wins & wrong
    if by_key:  # right rows in other folders lose, too
        touched = np.isin(records, records[known.complete & wrong])
        stays, loses = wins | (~wrong & ~touched), known.complete & ~wins & touched
    # A delete takes the rows of one file group, so it is done again while rows become fewer.
    everything = counts(np.ones(rows.num_rows, np.bool_))[lies]
    names = _joined(stored, pa.array(everything))
    goes = held(loses & ~held(stays)[lies] & ~_in(names, done))[lies]
    chosen = pa.array(goes)
    return Step(
        deletes=_distinct(rows.filter(chosen)) if goes.any() else None,
        aside=int((goes & (lies == waits)).sum()),
        done=pc.unique(names.filter(chosen)),
        key_twice=one_array(rows.column(KEY_COLUMN)).filter(
            pa.array(loses & wrong & held(~wrong)[lies])
        ),
    )


def record_names(rows: pa.Table, *, by_key: bool) -> pa.Array:
    """Which record each row is of. Shapes: rows (n rows) -> (n,) texts."""
    if by_key:
        return one_array(rows.column(RIGHT_KEY))
    return _places(rows, RIGHT_KEY, RIGHT_PATH)


def _winners(
    rows: pa.Table,
    records: npt.NDArray[np.intp],
    offered: Mask,
    right: Mask,
    ordering_fields: Sequence[str],
) -> Mask:
    """Of each record the row that stays."""
    columns: dict[str, object] = {"new": pa.array(~offered)}
    for number, name in enumerate(ordering_fields):
        values = ordering_column(rows, name)
        columns[f"known {number}"] = pc.is_valid(values)  # nulls are below all others
        columns[f"order {number}"] = values
    columns["time"] = pc.cast(rows.column(COMMIT_TIME_COLUMN), pa.string())
    columns["sequence"] = pc.cast(rows.column(SEQUENCE_COLUMN), pa.string())
    columns["right"] = pa.array(right)
    keys = [(name, "ascending") for name in columns]
    order = np.asarray(pc.sort_indices(pa.table(columns), sort_keys=keys))
    last = np.zeros(int(records.max(initial=-1)) + 1, np.intp)
    last[records[order]] = order  # the last one of each record stays
    wins = np.zeros(rows.num_rows, np.bool_)
    wins[last] = True
    return wins


def _addressed(rows: pa.Table, keys: pa.ChunkedArray) -> pa.Table:
    own = [name for name in drop_meta(rows.schema).names if name not in (RIGHT_KEY, RIGHT_PATH)]
    made = rows.select(own).append_column(KEY_COLUMN, keys)
    return made.append_column(PARTITION_COLUMN, rows.column(RIGHT_PATH))


def _distinct(rows: pa.Table) -> pa.Table:
    return rows.group_by([KEY_COLUMN, PARTITION_COLUMN]).aggregate([])


def _places(rows: pa.Table, key: str, path: str) -> pa.Array:
    """Record key and partition path as one text."""
    return _joined(rows.column(key), rows.column(path))


def _joined(*texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    known = [pc.fill_null(pc.cast(one, pa.string()), "") for one in texts]
    return one_array(pc.binary_join_element_wise(*known, "\0"))


def _codes(texts: pa.Array) -> tuple[npt.NDArray[np.intp], pa.Array]:
    coded = texts.dictionary_encode()
    return np.asarray(coded.indices).astype(np.intp), coded.dictionary


def _in(texts: pa.Array, some: pa.Array) -> Mask:
    return np.asarray(pc.is_in(texts, value_set=some)).astype(np.bool_)

"""CDC rows: the changes between two slices, in the modes of Hudi (fmt 5.4)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.merge.merging import MergeOutcome, key_codes
from filegroups.merge.rules import Mask, Positions
from filegroups.schema.arrow_columns import one_array, ranks
from filegroups.schema.schema import COMMIT_TIME_COLUMN, KEY_COLUMN
from timeline.errors import CorruptTableError, InvariantError, counted
from timeline.model.commit_metadata import CdcMode
from timeline.model.instant_time import InstantTime

# ---- CDC logs (fmt 5.4)
#
# A CDC log belongs to a rewritten base file and holds what the rewrite did to each record. Its mode
# decides which images of the record it has. Readers take missing images from the base files before
# and after.

OPERATION: Final = "op"
CHANGE_TIME: Final = "ts_ms"
RECORD_KEY: Final = "record_key"
BEFORE: Final = "before"
AFTER: Final = "after"

OPERATIONS: Final = ("i", "u", "d")
"""Insert, update, delete: the texts in the column `op`, by `Kind`."""


def cdc_schema(mode: CdcMode, avro_json: str) -> str:
    """
    Return the Avro schema of a CDC log's rows, as Java Hudi writes it.

    Args:
        mode: The images that the rows hold.
        avro_json: The table's schema without meta columns.

    Raises:
        CorruptTableError: The table's schema is not a named record.
    """
    if mode is CdcMode.OP_KEY_ONLY:
        both = ["string", "null"]
        fields = [{"name": name, "type": both} for name in (OPERATION, RECORD_KEY)]
        return json.dumps({"type": "record", "name": "Record", "fields": fields})
    row: Any = json.loads(avro_json)
    if not isinstance(row, dict) or row.get("type") != "record" or not row.get("name"):
        raise CorruptTableError(
            "the table's schema is not a named record: restore the file with the schema from a "
            f"backup: {avro_json[:80]}",
            kind="bad_schema",
        )
    fields = [_field(OPERATION, "string")]
    if mode is CdcMode.DATA_BEFORE:
        fields += [_field(RECORD_KEY, "string"), _field(BEFORE, row)]
    else:
        namespace = row.get("namespace")
        known = f"{namespace}.{row['name']}" if namespace else row["name"]
        fields += [_field(CHANGE_TIME, "string"), _field(BEFORE, row), _field(AFTER, known)]
    document = {"type": "record", "name": "CDC", "fields": fields}
    if row.get("namespace"):
        document["namespace"] = row["namespace"]
    return json.dumps(document)


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


# ---- The changes of each record between two slices of a file group
#
# Two callers use them: the writer of a CDC log, which has both slices in memory, and readers, which
# build them from file slices. A record was updated if it carries the instant's commit time, even if
# no value differs, as in Java Hudi's CDC logs. A late row that lost against the stored row leaves
# no trace.

_NOWHERE: Final = -1

Values = tuple[pa.Array, pa.Array]


class Kind(IntEnum):
    """The kind of a record's change, in the order of ``OPERATIONS``."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChanges:
    """
    The changes of one file group: updates and deletes in the order of the rows, then inserts.

    Shapes: all (n,); ``before`` and ``after`` are row numbers, -1 if there is no image.
    """

    kinds: npt.NDArray[np.int8]
    before: Positions
    after: Positions

    def __len__(self) -> int:
        return len(self.kinds)

    def part(self, start: int, rows: int) -> RecordChanges:
        """Return a range of the changes, in their order."""
        some = slice(start, start + rows)
        return RecordChanges(
            kinds=self.kinds[some], before=self.before[some], after=self.after[some]
        )

    @classmethod
    def all_inserted(cls, rows: int) -> RecordChanges:
        """Return an insert for every row."""
        return cls(
            kinds=np.full(rows, Kind.INSERT, np.int8),
            before=np.full(rows, _NOWHERE, np.intp),
            after=np.arange(rows, dtype=np.intp),
        )

    @classmethod
    def all_deleted(cls, rows: int) -> RecordChanges:
        """Return a delete for every row."""
        return cls(
            kinds=np.full(rows, Kind.DELETE, np.int8),
            before=np.arange(rows, dtype=np.intp),
            after=np.full(rows, _NOWHERE, np.intp),
        )


def compare_slices(
    before: pa.Table,
    after: pa.Table,
    requested_time: InstantTime,
    values: Values | None = None,
) -> RecordChanges:
    """
    Compare the rows of a file group before and after an instant.

    Records are matched by key. Rows with equal keys are matched by their order, which both sides
    keep.

    Args:
        before: Rows with the record key and the commit time.
        after: The same.
        requested_time: Requested time of the instant; rows it wrote have it as their commit time.
        values: One text per row of each side for its values, if the commit time does not show all
            changes: tables without meta columns, and values that are filled in.

    Shapes: (n rows), (m rows) -> changes (at most n + m,).
    """
    codes = _record_numbers(before, after)
    old, new = codes[: before.num_rows], codes[before.num_rows :]
    found = np.full(codes.max(initial=_NOWHERE) + 1, _NOWHERE, np.intp)
    found[new] = np.arange(len(new))
    after_of_old = found[old]
    stays = after_of_old != _NOWHERE
    pairs = np.flatnonzero(stays), after_of_old[stays]
    touched = np.zeros(len(old), np.bool_)
    touched[pairs[0]] = _touched(after, pairs, requested_time, values)
    fresh = np.ones(len(new), np.bool_)
    fresh[pairs[1]] = False
    return _put_in_order(touched, ~stays, after_of_old, np.flatnonzero(fresh))


def changes_of_merge(
    base: pa.Table,
    outcome: MergeOutcome,
    requested_time: InstantTime,
    values: Values | None = None,
) -> RecordChanges:
    """
    Return what a merge did to a base file's rows; keys are compared only if some were deleted.

    Args:
        base: The rows before, with key and commit time.
        outcome: Of ``merge_changes`` or ``append_rows``: the remaining rows of the base in their
            order, then the inserted ones.
        requested_time: As in ``compare_slices``.
        values: As in ``compare_slices``, of ``base`` and the outcome's table.

    Raises:
        InvariantError: The outcome does not belong to this base.
    """
    table = outcome.table
    left = table.num_rows - outcome.inserted
    stays = np.ones(base.num_rows, np.bool_)
    if left != base.num_rows:
        kept = table.column(KEY_COLUMN).slice(0, left)
        stays = np.asarray(pc.is_in(base.column(KEY_COLUMN), value_set=kept)).astype(np.bool_)
    old = np.flatnonzero(stays)
    if len(old) != left:
        raise InvariantError(
            f"a merge lost rows of its base; report it: {counted(left, 'row')} of {len(old)}",
            rows=left,
        )
    after_of_old = np.full(base.num_rows, _NOWHERE, np.intp)
    after_of_old[old] = np.arange(left)
    touched = np.zeros(base.num_rows, np.bool_)
    touched[old] = _touched(table, (old, after_of_old[old]), requested_time, values)
    return _put_in_order(touched, ~stays, after_of_old, np.arange(left, table.num_rows))


def image(rows: pa.Table, positions: Positions) -> pa.StructArray:
    """
    Return the rows at some positions as one struct column; null for position -1.

    Shapes: rows (any), positions (n,) -> (n,).
    """
    missing = pa.array(positions == _NOWHERE)
    taken = rows.take(pc.if_else(missing, pa.scalar(None, pa.int64()), pa.array(positions)))
    columns = [one_array(column) for column in taken.columns]
    return pa.StructArray.from_arrays(columns, fields=list(rows.schema), mask=missing)


def operation_texts(kinds: npt.NDArray[np.int8]) -> pa.Array:
    """Return the texts of the column ``op``. Shapes: (n,) -> (n,)."""
    return pa.DictionaryArray.from_arrays(kinds, pa.array(OPERATIONS)).cast(pa.string())


def _record_numbers(before: pa.Table, after: pa.Table) -> npt.NDArray[np.int64]:
    """Number the records of both sides: the n-th row of a key has one number on both."""
    both = pa.concat_tables([before.select([KEY_COLUMN]), after.select([KEY_COLUMN])])
    codes, distinct = key_codes(both)
    rank = np.concatenate([ranks(codes[: before.num_rows]), ranks(codes[before.num_rows :])])
    if not rank.any():
        return codes
    return np.unique(rank * distinct + codes, return_inverse=True)[1]


def _touched(
    after: pa.Table,
    pairs: tuple[Positions, Positions],
    requested_time: InstantTime,
    values: Values | None,
) -> Mask:
    """Return which pairs of an old and a new row are updates."""
    times = pc.fill_null(
        pc.equal(after.column(COMMIT_TIME_COLUMN), requested_time), fill_value=False
    )
    touched: Mask = np.asarray(times).astype(np.bool_)[pairs[1]]
    if values is not None:
        old, new = (side.take(pa.array(at)) for side, at in zip(values, pairs, strict=True))
        touched |= np.asarray(pc.not_equal(old, new)).astype(np.bool_)
    return touched


def _put_in_order(
    touched: Mask, gone: Mask, after_of_old: Positions, inserted: Positions
) -> RecordChanges:
    old = np.flatnonzero(touched | gone)
    kinds = np.where(gone[old], Kind.DELETE, Kind.UPDATE)
    return RecordChanges(
        kinds=np.concatenate([kinds, np.full(len(inserted), Kind.INSERT)]).astype(np.int8),
        before=np.concatenate([old, np.full(len(inserted), _NOWHERE)]).astype(np.intp),
        after=np.concatenate([after_of_old[old], inserted]).astype(np.intp),
    )

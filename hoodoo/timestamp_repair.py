"""
Repair timestamps that an earlier release of hoodoo divided by a thousand.

``hoodoo.verify.timestamps`` finds the rows. Only an explicit call rewrites them, because a
timestamp of early 1970 may be correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN, drop_meta
from hoodoo.table import Table
from hoodoo.verify.timestamps import MILLIS, doubtful_timestamps
from timeline.errors import InvalidInputError, counted

_PLACE: Final = (KEY_COLUMN, PARTITION_COLUMN)
_ROWS_MAX: Final = 500_000  # rows in memory and in one write


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampRepair:
    """The result of a repair or of its dry run."""

    columns: tuple[str, ...]  # of millisecond type, which may have such rows
    rows: int
    example: str = ""  # folder and record key of one of them
    writes: int = 0


def repair_timestamps(table: Table, *, dry_run: bool = False) -> TimestampRepair:
    """
    Multiply the timestamps of ``doubtful_timestamps`` by a thousand, in an upsert of their rows.

    Each write validates its reads, so it never overwrites a concurrent change of a row.

    Args:
        table: The table.
        dry_run: Only count the rows.

    Raises:
        WriteConflictError: Another writer changed the same partitions; call it again.
        InvalidInputError: The table's merge rule keeps the old rows (``row_stays``).
    """
    context = table.context
    columns = tuple(each.name for each in table.schema if each.type == MILLIS)
    repaired, writes, example = 0, 0, ""
    keyed = bool(table.config.record_key_fields)  # else the meta columns address the rows
    before = pa.chunked_array([], pa.string())
    while True:
        with table.pin() as state:
            kept, paths, count = [], set(), 0
            for one in doubtful_timestamps(context, state.snapshot, state.file_slices()):
                path = one.slice.file_group.partition_path
                count += one.rows.num_rows
                example = example or f"{path or '.'}: {one.rows.column(KEY_COLUMN)[0]}"
                if dry_run:
                    continue
                kept.append(one.multiplied())
                paths.add(path)
                if count >= _ROWS_MAX:
                    break
            if dry_run or not kept:
                return TimestampRepair(
                    columns=columns, rows=repaired or count, example=example, writes=writes
                )
            found = pa.concat_tables(kept)
            places = pc.binary_join_element_wise(*_texts(found.select(_PLACE)), "\0")
            if len(places) >= len(before) and _all_in(places, before):
                raise InvalidInputError(
                    "the table's merge rule keeps the present rows: write them with greater "
                    f"ordering values: {counted(count, 'row')}",
                    kind="row_stays",
                    rows=count,
                )
            before = places
            table.upsert(
                found.select([*(() if keyed else _PLACE), *drop_meta(found.schema).names]),
                reads=state.reads(partitions=sorted(paths)),
            )
        repaired += count
        writes += 1


def _texts(rows: pa.Table) -> list[pa.ChunkedArray]:
    return [pc.fill_null(pc.cast(column, pa.string()), "") for column in rows.columns]


def _all_in(texts: pa.ChunkedArray, some: pa.ChunkedArray) -> bool:
    return bool(pc.all(pc.is_in(texts, value_set=some), min_count=0).as_py())

"""
Moments that an earlier release of hoodoo copied with a thousandth of their number.

Files of writers before Hudi 1.1 have milliseconds under the label of microseconds. Where all
values of a file were whole seconds, earlier releases divided them by a thousand when they copied
rows into a new base file. Nothing proves it afterwards, a moment of early 1970 may be true; so
rows are found by where they come from, and rewritten only when somebody says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.files.parquet import read_footer
from timeline.files.slice_reader import read_slice
from timeline.model.file_group import FileSlice
from timeline.model.schema import COMMIT_TIME_COLUMN, avro_to_arrow, drop_meta
from timeline.reading.read import plan_scan
from timeline.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from hoodoo.table import Table

__all__ = ["MomentRepair", "doubtful_moments", "repair_moments"]

_MILLIS: Final = pa.timestamp("ms", "UTC")
_RIGHT_LABELS: Final = 9  # table version of which no release writes moments under another label
#: A thousandth of any moment up to the year 2243.
_EARLY: Final = 100 * 86_400_000  # ``pa.scalar`` would import pandas
_ROWS_MAX: Final = 500_000  # held in memory at once, and written by one write


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentRepair:
    """What a repair did, or would do."""

    columns: tuple[str, ...]  # that hold milliseconds, and so may have such rows
    rows: int
    example: str = ""  # record key or first column of one of them
    writes: int = 0


def doubtful_moments(
    context: TableContext, snapshot: Snapshot, slices: Sequence[FileSlice]
) -> Iterator[tuple[FileSlice, pa.Table]]:
    """
    Rows of slices with moments that may be a thousandth of the true ones.

    Each was copied by hoodoo from a file that another writer made while the table's schema said
    microseconds, or was archived since, and has a moment before April 1970.

    Yields:
        A slice and its rows, with the meta columns; only slices that have any.

    Outside: 1 footer for each base file; each slice whose base file hoodoo made is read.
    """
    config = context.config
    if config.initial_version >= _RIGHT_LABELS or not config.populate_meta_fields:
        return
    wrote_micros = _commits_of_micros(context, snapshot)
    for one in slices:
        base = one.base_file
        if base is None:
            continue
        footer = read_footer(context.world.storage, base.path)
        names = [each.name for each in footer.schema if each.type == _MILLIS]
        if not names or not footer.created_by.startswith("parquet-cpp"):
            continue
        read = plan_scan(context, snapshot, [one], with_hoodie_columns=True).read
        for batch in read_slice(context.world.storage, context.world.events, one, read):
            rows = pa.Table.from_batches([batch])
            times = pc.cast(rows.column(COMMIT_TIME_COLUMN), pa.string())
            copied = pc.less(times, base.requested_time)
            doubtful = pa.repeat(pa.scalar(value=False), rows.num_rows)
            for name in set(names).intersection(rows.column_names):
                if rows.schema.field(name).type == _MILLIS:
                    sources = [
                        time
                        for time in pc.unique(times.filter(copied)).to_pylist()
                        if wrote_micros(time, name)
                    ]
                    known = pc.is_in(times, value_set=pa.array(sources, pa.string()))
                    early = _early(rows.column(name))
                    doubtful = pc.or_(doubtful, pc.and_(pc.and_(copied, known), early))
            found = rows.filter(doubtful)
            if found.num_rows:
                yield one, found


def repair_moments(table: Table, *, dry_run: bool = False) -> MomentRepair:
    """
    Multiply the moments of ``doubtful_moments`` by a thousand, in an upsert of their rows.

    Each write is judged by what it read, so a row that somebody changes meanwhile stays theirs.

    Args:
        table: The table.
        dry_run: Only count the rows.

    Raises:
        WriteConflictError: Another writer changed the same partitions; call it again.
        InvalidInputError: The table's own rule of merging keeps the old rows (``row_stays``).
    """
    context = table.core.context
    columns = tuple(each.name for each in table.schema if each.type == _MILLIS)
    repaired, writes, example = 0, 0, ""
    before: pa.Table | None = None
    while True:
        with table.hold() as state:
            kept, paths, count = [], set(), 0
            for one, rows in doubtful_moments(context, state.snapshot, state.file_slices()):
                count += rows.num_rows
                example = example or f"{one.file_group.partition_path or '.'}: {rows.column(2)[0]}"
                if dry_run:
                    continue
                kept.append(rows)
                paths.add(one.file_group.partition_path)
                if count >= _ROWS_MAX:
                    break
            if dry_run or not kept:
                return MomentRepair(
                    columns=columns, rows=repaired or count, example=example, writes=writes
                )
            found = pa.concat_tables(kept)
            if before is not None and found.equals(before):
                raise InvalidInputError(
                    "the table's rule of merging keeps the rows as they are; write them with "
                    f"greater ordering values: {count} rows",
                    kind="row_stays",
                    rows=count,
                )
            before = found
            table.upsert(_repaired(found, columns), reads=state.reads(partitions=sorted(paths)))
        repaired += count
        writes += 1


def _repaired(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    for name in columns:
        column = rows.column(name)
        numbers = pc.cast(column, pa.int64())
        right = pc.cast(pc.multiply(numbers, 1_000), _MILLIS)
        made = pc.if_else(_early(column), right, column)
        rows = rows.set_column(rows.schema.get_field_index(name), name, made)
    return rows.select(drop_meta(rows.schema).names)


def _early(column: pa.ChunkedArray) -> pa.ChunkedArray:
    numbers = pc.cast(column, pa.int64())
    early = pc.and_(pc.greater(numbers, 0), pc.less(numbers, _EARLY))
    return pc.fill_null(early, fill_value=False)


def _commits_of_micros(context: TableContext, snapshot: Snapshot) -> Callable[[str, str], bool]:
    """Tells whether an instant's schema called a column microseconds; an archived one's may have."""
    writes = {one.requested_time: one for one in snapshot.active.completed_writes}

    @cache
    def schema_of(time: str) -> pa.Schema | None:
        write = writes.get(time)
        text = context.commits.read(write).schema_json if write is not None else None
        return avro_to_arrow(text) if text else None

    def wrote_micros(time: str, name: str) -> bool:
        schema = schema_of(time)
        if schema is None:
            return True
        place = schema.get_field_index(name)
        return place >= 0 and bool(schema.field(place).type == pa.timestamp("us", "UTC"))

    return wrote_micros

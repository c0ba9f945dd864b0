"""
Moments that an earlier release of hoodoo copied with a thousandth of their number.

Files of writers before Hudi 1.1 have milliseconds under the label of microseconds. Where all
values of a file were whole seconds, earlier releases divided them by a thousand when they copied
rows into a new base file. Nothing proves it afterwards, a moment of early 1970 may be true; so
rows are found by where they come from, and rewritten only when somebody says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import read_footer
from filegroups.files.slice_reader import read_slice
from filegroups.reading.read import plan_scan
from filegroups.schema.schema import (
    COMMIT_TIME_COLUMN,
    KEY_COLUMN,
    PARTITION_COLUMN,
    avro_to_arrow,
    drop_meta,
)
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.file_names import FileSlice
from timeline.snapshot import Snapshot

if TYPE_CHECKING:
    from hoodoo.table import Table

__all__ = ["DoubtfulTimestamps", "TimestampRepair", "doubtful_timestamps", "repair_timestamps"]

_MILLIS: Final = pa.timestamp("ms", "UTC")
_RIGHT_LABELS: Final = 9  # table version of which no release writes moments under another label
#: A thousandth of any moment up to the year 2243.
_EARLY: Final = 100 * 86_400_000  # ``pa.scalar`` would import pandas
_PLACE: Final = (KEY_COLUMN, PARTITION_COLUMN)
_ROWS_MAX: Final = 500_000  # held in memory at once, and written by one write


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampRepair:
    """What a repair did, or would do."""

    columns: tuple[str, ...]  # that hold milliseconds, and so may have such rows
    rows: int
    example: str = ""  # folder and record key of one of them
    writes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulTimestamps:
    """Rows of a slice, with their meta columns, and in which columns each is doubtful."""

    slice: FileSlice
    rows: pa.Table
    columns: Mapping[str, pa.ChunkedArray]  # truth values by column name, some of each row

    def multiplied(self) -> pa.Table:
        """The rows with their doubtful moments multiplied by a thousand."""
        rows = self.rows
        for name, doubtful in self.columns.items():
            column = rows.column(name)
            right = pc.cast(pc.multiply(pc.cast(column, pa.int64()), 1_000), _MILLIS)
            made = pc.if_else(doubtful, right, column)
            rows = rows.set_column(rows.schema.get_field_index(name), name, made)
        return rows


def doubtful_timestamps(
    context: TableContext, snapshot: Snapshot, slices: Sequence[FileSlice]
) -> Iterator[DoubtfulTimestamps]:
    """
    Rows of slices with moments that may be a thousandth of the true ones.

    Each was copied by hoodoo from a file that another writer made while the table's schema said
    microseconds, or was archived since, and has a moment before April 1970.

    Yields:
        Rows that have any, never none.

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
            columns = {}
            for name in set(names).intersection(rows.column_names):
                if rows.schema.field(name).type == _MILLIS:
                    sources = [
                        time
                        for time in pc.unique(times.filter(copied)).to_pylist()
                        if wrote_micros(time, name)
                    ]
                    known = pc.is_in(times, value_set=pa.array(sources, pa.string()))
                    early = _early(rows.column(name))
                    columns[name] = pc.and_(pc.and_(copied, known), early)
            if not columns:
                continue
            any_of = reduce(pc.or_, columns.values())
            found = {name: doubtful.filter(any_of) for name, doubtful in columns.items()}
            if pc.any(any_of, min_count=0).as_py():
                yield DoubtfulTimestamps(slice=one, rows=rows.filter(any_of), columns=found)


def repair_timestamps(table: Table, *, dry_run: bool = False) -> TimestampRepair:
    """
    Multiply the moments of ``doubtful_timestamps`` by a thousand, in an upsert of their rows.

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
    keyed = bool(table.config.record_key_fields)  # else rows are found by their meta columns
    before = pa.chunked_array([], pa.string())
    while True:
        with table.hold() as state:
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
                    "the table's rule of merging keeps the rows as they are; write them with "
                    f"greater ordering values: {count} rows",
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
